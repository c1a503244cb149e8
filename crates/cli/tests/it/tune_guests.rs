// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk tune` on simulated virtual machines from the outside: IOThreads, virtqueues and their mapping, with users instead of jobs.

use crate::common;

use common::{Dir, number};
use std::fs;

/// A main loop that wakes slowly, and users that wait for storage most of the time.
const MACHINE: &str = "[machine]\nsockets = 1\ncores = 16\nthreads = 1\n[disk]\nsize_gib = 64\nread_us = 40\nwrite_us = 20\n\
                       [guests]\nvcpus = 16\nqueues = 16\nusers = [2, 16]\nkick_us = 2\ninject_us = 4\ncpu_us = 40\nper_user_us = 0\nreads = 2\nwrites = 1\n\
                       main_loop = { serve_us = 5, wake_us = 60 }\niothread = { serve_us = 5, wake_us = 8, poll_us = 32 }\n";

fn tune<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["tune", "--target", "sim:m.toml", "--runtime", "100ms", "--budget", "10m"], more].concat()
}

/// Sixteen users on one thread that takes 5 us per request. The recommendation is more threads, and the reason is the wait for the thread.
#[test]
fn iothreads_are_found_confirmed_explained_and_written() {
    let dir = Dir::new("tune-guests");
    dir.file("m.toml", MACHINE);
    let goal = ["--maximize", "users16.tpm", "--keep", "users2.tpm>=99%"];
    let out = ["--results", "r.jsonl", "--report", "r.html", "--print", "qemu,sysfs,toml", "--apply", "best.toml"];
    let done = dir.mqblk(&tune(&[&goal[..], &out].concat())).exits(0);
    done.prints(&[
        "virtual machines of 16 vCPUs on a simulated machine of 16 CPUs",
        "is better than the default: users16.tpm +",
        "users2.tpm>=99%: kept: ",
        "'one IOThread' (iothreads=1): beaten: users16.tpm +",
        "turn of a transaction ",
        ": waiting until the thread that serves the virtqueue has finished other requests\n",
        "# sysfs\n# not in this form: ",
        " (a setting of the virtual machine; use --print libvirt, qemu or toml)\n",
        "-object iothread,id=iothread1\n-object iothread,id=iothread2\n",
        "\"iothread-vq-mapping\":[{\"iothread\":\"iothread1\"",
    ]);
    let past = lab::tune::journal::read(&fs::read_to_string(dir.path("r.jsonl")).unwrap(), "r.jsonl").unwrap();
    let names: Vec<&str> = past.header.plan.knobs.iter().map(|k| k.name.as_str()).collect();
    assert_eq!(
        names,
        ["iothreads", "guests.queues", "guests.mapping"],
        "polling costs nothing there: only if asked for"
    );
    let result = past.result.unwrap();
    let ratio = result.against_default.unwrap().ratio.unwrap().ratio;
    assert!(ratio > 1.5, "{ratio}");
    let iothreads: u32 = result.winner.get("iothreads").unwrap().parse().unwrap();
    assert!(iothreads >= 2, "{}", result.winner);
    assert!(fs::read_to_string(dir.path("best.toml")).unwrap().contains(&format!("iothreads = {iothreads}\n")));
    let page = fs::read_to_string(dir.path("r.html")).unwrap();
    assert!(page.contains("Where the time of a transaction goes") && !page.contains("Little"), "sections of guests");
    let told = dir.mqblk(&tune(&[&goal[..], &["--resume", "r.jsonl", "--json"]].concat())).exits(0).json();
    assert_eq!(number(&told, "/result/runs"), f64::from(result.runs), "finished, it is told without a run");
    assert!(told["simulated"].as_str().unwrap().starts_with("virtual machines of 16 vCPUs"));
    // Another machine of the same name needs another search.
    dir.file("m.toml", &MACHINE.replace("read_us = 40", "read_us = 41"));
    dir.mqblk(&tune(&[&goal[..], &["--resume", "r.jsonl"]].concat())).exits(2).says(&["file behind the target"]);
}

/// A value already in use is no gain. Fixed settings are not searched. The same command gives the same result.
#[test]
fn how_things_are_today_is_what_has_to_be_beaten() {
    let dir = Dir::new("tune-guests");
    dir.file("m.toml", MACHINE);
    let run = |results: &str| {
        let args =
            ["--minimize", "users16.tx_p99", "--set", "iothreads=8", "--fix", "guests.queues=16", "--set", "vms=1"];
        // The budget is so large that it does not end the search, because then the result would depend on the machine.
        let v = dir.mqblk(&tune(&[&args[..], &["--results", results, "--json"]].concat())).exits(0).json();
        assert_eq!(v["plan"]["base"][1], serde_json::json!(["iothreads", "8"]));
        assert!(!v["plan"]["knobs"].as_array().unwrap().iter().any(|k| k["name"] == "guests.queues"));
        let rules = v["plan"]["rules"].as_array().unwrap();
        assert!(!rules.iter().any(|r| r[1].get("guests.queues").is_some()), "{rules:?}");
        (v["result"]["winner"].clone(), v["result"]["against_default"]["ratio"].clone())
    };
    assert_eq!(run("1"), run("2"));
}

/// A run of a day of virtual time would take hours. Ctrl-C interrupts it, and the printed command resumes it.
#[test]
fn ctrl_c_stops_a_simulation_and_prints_the_resume_command() {
    let dir = Dir::new("tune-guests");
    dir.file("m.toml", MACHINE)
        .file("j.fio", "[a]\nrw=randread\nbs=4k\nsize=1g\nioengine=libaio\ndirect=1\niodepth=32\nnumjobs=8\n");
    dir.file("n.toml", "[machine]\nsockets = 2\ncores = 8\n[disk]\nsize_gib = 10\nread_us = 10\nwrite_us = 10\n");
    let long = ["--runtime", "86400", "--budget", "604800", "--results", "r", "--eta=always"];
    let guests = ["tune", "--target", "sim:m.toml", "--maximize", "users16.tpm"];
    let jobs = ["tune", "j.fio", "--target", "sim:n.toml", "--maximize", "a.iops"];
    for args in [&guests[..], &jobs] {
        let interrupted = |args: &[&str]| {
            let started = dir.start(args, "first run of the default");
            started.signal("INT");
            started.ends().exits(130)
        };
        let done = interrupted(&[args, &long].concat());
        let journal = fs::read_to_string(dir.path("r")).unwrap();
        let past = lab::tune::journal::read(&journal, "r").unwrap();
        assert!(past.runs.is_empty() && past.result.is_none(), "no part of a run is taken for one: {journal}");
        let again = done.err.lines().find_map(|l| l.split_once("resume with: mqblk ")).unwrap().1.to_owned();
        assert!(again.ends_with(" --results r --eta=always --seed=1 --resume r"), "{again}");
        interrupted(&again.split(' ').collect::<Vec<_>>());
        assert_eq!(fs::read_to_string(dir.path("r")).unwrap(), journal, "resumed, and interrupted again");
        let other = again.replace("--results r", "--results q");
        dir.mqblk(&other.split(' ').collect::<Vec<_>>())
            .exits(2)
            .says(&["--results q: --resume r appends to its own file"]);
        fs::remove_file(dir.path("r")).unwrap();
    }
    // The same for a comparison. No run was completed, so there is no file.
    let compare = ["compare", "j.fio", "--target", "sim:n.toml", "--a", "default", "--b", "nr_hw_queues=1"];
    let more = ["--runtime", "86400", "--pairs", "10", "--results", "r", "--eta=always"];
    let started = dir.start(&[&compare[..], &more].concat(), "A");
    started.signal("INT");
    started.ends().exits(130);
    assert!(!dir.path("r").exists());
}

#[test]
fn what_users_do_not_have_is_refused_with_what_they_have() {
    let dir = Dir::new("tune-guests");
    dir.file("m.toml", MACHINE).file("j.fio", "[a]\nrw=randread\nsize=1m\n");
    let refused = |more: &[&str], says: &str| {
        dir.mqblk(&tune(more)).exits(2).says(&[says]);
    };
    let goal = ["--maximize", "users16.tpm"];
    refused(&["--maximize", "users17.tpm"], "there is no job 'users17'; did you mean 'users16'?");
    refused(&["--maximize", "users16.iops"], "virtual machines run transactions: use tpm, tps, tx (mean) or tx_p99");
    refused(&["--maximize", "all.tpm"], "--maximize, --minimize: all.tpm: user counts are simulated one at a time");
    refused(&["--minimize", "users16.tpm"], "use --maximize users16.tpm");
    refused(&[&goal[..], &["--set", "nr_hw_queues=4"]].concat(), "did you mean 'guests.queues'?");
    refused(&[&goal[..], &["--set", "iothreads=many"]].concat(), "iothreads=many: must be 0..=1024");
    refused(
        &[&goal[..], &["--set", "guests.queues=17"]].concat(),
        "queues = 17 of 16 vCPUs: must be 1 to the number of vCPUs",
    );
    refused(&[&goal[..], &["--set", "guests.mapping=random"]].concat(), "unknown variant `random`");
    refused(&[&goal[..], &["--free", "iodepth=1..4"]].concat(), "--free: the target has [guests]");
    refused(&[&["j.fio"], &goal[..]].concat(), "JOB: the target has [guests], and their users are the load");
    dir.mqblk(&["run", "j.fio", "--target", "sim:m.toml"]).exits(2).says(&[
        "runs no jobs; use mqblk sim m.toml, or mqblk tune --target sim:m.toml --maximize users2.tpm without a job",
    ]);
    dir.mqblk(&["tune", "--target", "null:size=1g", "--maximize", "a.iops"])
        .exits(2)
        .says(&["JOB: no job file: name one"]);
    dir.mqblk(&["run", "--target", "null:size=1g"]).exits(2).says(&["JOB: no job file: name one"]);
}
