// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk inspect --export`, `mqblk profile` and `mqblk sim --what-if` from the outside.

use crate::common;

use common::Dir;
use serde_json::Value;
use sim::rng::Rng;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// Returns blkparse's output for a job that keeps 8 random reads in flight. The device has no limit and takes 1 ms for each read,
/// give or take a tenth.
fn closed_loop() -> String {
    let mut events: Vec<(u64, String)> = Vec::new();
    let mut rng = Rng::new(7);
    for lane in 0..8u64 {
        let mut at = lane * 10_000;
        for _ in 0..400 {
            let (sector, ns) = (rng.below(1_000_000) * 8, 900_000 + rng.below(200_000));
            let mut event = |at: u64, action: &str, who: &str| {
                let time = format!("{}.{:09}", at / 1_000_000_000, at % 1_000_000_000);
                events.push((at, format!("8,16 0 1 {time} 42 {action} R {sector} + 8 [{who}]\n")));
            };
            event(at, "Q", "db");
            event(at + 2_000, "D", "db");
            event(at + ns, "C", "0");
            at += ns + 3_000;
        }
    }
    events.sort_by_key(|e| e.0);
    events.into_iter().map(|e| e.1).collect()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

#[test]
fn a_profiled_workload_runs_the_same_in_the_simulator() {
    let dir = Dir::new("whatif");
    dir.file("t.txt", &closed_loop());
    let made = dir.mqblk(&["profile", "t.txt", "--output", "j.fio", "--machine", "m.toml"]).exits(0);
    made.says(&["wrote the disk's times and the measured figures to m.toml"]);
    let job = fs::read_to_string(dir.path("j.fio")).unwrap();
    for line in ["\n[db]\n", "\nrw=randread\n", "\nbs=4096\n", "\niodepth=8\n"] {
        assert!(job.contains(line), "{line:?} in\n{job}");
    }
    assert!(!job.contains("rate_iops") && !job.contains("thinktime"), "{job}");
    let ask = |more: &[&str]| {
        let args = ["sim", "m.toml", "--jobs", "j.fio", "--members", "6", "--ios", "3000"];
        dir.mqblk(&[&args[..], more].concat()).exits(0).out
    };
    let answers = json(&ask(&["--json", "--what-if", "disk.read_us=500", "--what-if", "job.iodepth=16"]));
    assert_eq!(answers["describes"], true, "{answers:#}");
    let iops = answers["as_it_is"].as_array().unwrap().iter().find(|f| f["figure"] == "db.iops").unwrap();
    let (measured, simulated) = (iops["measured"].as_f64().unwrap(), iops["simulated"]["median"].as_f64().unwrap());
    assert!((simulated / measured - 1.0).abs() < 0.05 && (measured - 7976.0).abs() < 80.0, "{measured} {simulated}");
    let verdict = |q: usize| answers["answers"][q]["figures"][0]["verdict"].as_str().unwrap();
    // Twice the speed is better. The effect of a higher parallelism than was measured is unknown.
    assert_eq!((verdict(0), verdict(1)), ("better", "cannot_tell"), "{answers:#}");
    assert_eq!(answers["answers"][1]["figures"][0]["decides"], "disk.parallel");
    let text = ask(&["--what-if", "disk.read_us=500", "--what-if", "iothreads=4", "--what-if", "nomerges=2"]);
    for needle in [
        "6 of them match the measurement, and are used",
        "\nwhat if disk.read_us=500\n",
        "better by ",
        "device is ",
        "cannot tell: iothreads: IOThreads serve virtual machines",
        "no effect [",
    ] {
        assert!(text.contains(needle), "{needle:?} in\n{text}");
    }
    let again = ["--what-if", "disk.read_us=500", "--what-if", "iothreads=4", "--what-if", "nomerges=2"];
    assert_eq!(text, ask(&[&again[..], &["--report", "w.html"]].concat()));
    let page = fs::read_to_string(dir.path("w.html")).unwrap();
    for needle in [
        "3 questions",
        "What if disk.read_us=500",
        "Cannot tell: iothreads: IOThreads serve",
        "no effect",
        "Simulated against measured",
    ] {
        assert!(page.contains(needle), "{needle:?} in the page");
    }
    let sidecar = json(&fs::read_to_string(dir.path("w.json")).unwrap());
    assert_eq!((&sidecar["kind"], &sidecar["data"]["answers"]["describes"]), (&"what_if".into(), &true.into()));
    // The output says if a machine is not this one.
    let m = fs::read_to_string(dir.path("m.toml")).unwrap();
    dir.file("m.toml", &m.replacen("\"db.iops\" = ", "\"db.iops\" = 1", 1));
    let text = ask(&["--what-if", "disk.read_us=500"]);
    assert!(
        text.contains("the model does not describe this machine: db.iops is ") && !text.contains("better"),
        "{text}"
    );
}

/// A main loop that wakes slowly, and a thread that sixteen users wait for.
#[test]
fn guest_what_ifs_name_the_part_of_a_transaction_that_changes() {
    let dir = Dir::new("whatif");
    let machine = "[machine]\nsockets = 1\ncores = 16\nthreads = 1\n[disk]\nsize_gib = 64\nread_us = 40\nwrite_us = 20\n[guests]\nvcpus = 16\nqueues = 16\n\
                   users = [2, 16]\nkick_us = 2\ninject_us = 4\ncpu_us = 40\nper_user_us = 0\nreads = 2\nwrites = 1\n\
                   main_loop = { serve_us = 5, wake_us = 60 }\niothread = { serve_us = 5, wake_us = 8, poll_us = 32 }\n";
    dir.file("m.toml", machine);
    let asks = ["--what-if", "iothreads=4", "--what-if", "disk.read_us=20", "--what-if", "guests.queues=8"];
    let args = [&["sim", "m.toml", "--members", "4"], &asks[..]].concat();
    let text = dir.mqblk(&args).exits(0).out;
    let of = |question: &str| {
        let from = text.find(&format!("what if {question}\n")).unwrap_or_else(|| panic!("{question}: {text}"));
        text[from..].split("\n\n").next().unwrap().to_owned()
    };
    let threads = of("iothreads=4");
    for part in [
        "  why: users2: a transaction takes ",
        " with 'as it is' and ",
        " shorter: wake-up is ",
        " (VM exits, and wake-ups of sleeping hypervisor threads)",
        "  why: users16: a transaction takes ",
        "turn is ",
        " (waiting until the thread that serves the virtqueue has finished other requests)",
    ] {
        assert!(threads.contains(part), "{part:?} in\n{threads}");
    }
    let disk = of("disk.read_us=20");
    assert!(disk.contains("shorter: storage is 100.0 us against 60.0 us (at the host's storage"), "{disk}");
    assert!(!of("guests.queues=8").contains("why: "), "one thread serves them all: no effect has no reason\n{text}");
    dir.mqblk(&[&args[..], &["--report", "w.html"]].concat()).exits(0);
    let page = fs::read_to_string(dir.path("w.html")).unwrap();
    assert!(
        page.contains("Why: users16: a transaction takes ") && page.contains("storage is 100.0 us against"),
        "the page"
    );
}

#[test]
fn a_run_that_is_traced_and_its_results_are_profiled_alike() {
    let dir = Dir::new("whatif");
    let job = "[mixed]\nrw=randrw\nrwmixread=70\nbs=4k\nsize=64m\niodepth=4\nioengine=io_uring\ndirect=1\nruntime=1\ntime_based\n";
    dir.file("j.fio", job);
    let target = ["--target", "model:size=128m,lat_us=2000"];
    let done = dir.mqblk(&[&["run", "j.fio", "--json", "--trace", "t"], &target[..]].concat()).exits(0);
    dir.file("run.json", &done.out);
    let traced = json(&dir.mqblk(&["profile", "t", "--json"]).exits(0).out);
    let run = json(&dir.mqblk(&["profile", "--from", "run.json", "--json"]).exits(0).out);
    for p in [&traced, &run] {
        let j = &p["jobs"][0];
        assert_eq!((j["name"].as_str(), j["iodepth"].as_u64()), (Some("mixed"), Some(4)), "{p:#}");
        let of = |dir: &str| j[dir]["iops"].as_f64().unwrap();
        let share = of("read") / (of("read") + of("write"));
        assert!((share - 0.7).abs() < 0.1, "{p:#}");
        assert!(p["disk"]["read_us"]["value"].as_f64().unwrap() >= 1900.0, "{p:#}");
    }
    assert_eq!(traced["jobs"][0]["read"]["ios"], run["jobs"][0]["read"]["ios"]);
    assert_eq!(traced["device"], "259,0");
    // The profile of stored results is that of the original job.
    let again = dir.mqblk(&["profile", "--from", "run.json"]).exits(0).out;
    assert!(again.contains("\nrwmixread=70\n") && again.contains("\niodepth=4\n"), "{again}");
    dir.file("again.fio", &again);
    dir.mqblk(&["run", "again.fio", "--target", "null:size=128m", "--job-set", "runtime=100ms"]).exits(0);
}

#[test]
fn this_host_and_a_disk_become_a_machine_file_for_what_if() {
    let dir = Dir::new("whatif");
    dir.file("j.fio", "[a]\nrw=randread\nsize=16m\ndirect=1\nruntime=1\ntime_based\nnorandommap\n");
    let disks =
        fs::read_dir("/sys/block").into_iter().flatten().flatten().map(|e| e.file_name().into_string().unwrap());
    for disk in disks.filter(|d| d.starts_with("loop") || d.starts_with("vd") || d.starts_with("sd")).take(2) {
        let file = format!("{disk}.toml");
        dir.mqblk(&["inspect", &format!("/dev/{disk}"), "--export", &file]).exits(0);
        let text = fs::read_to_string(dir.path(&file)).unwrap();
        assert!(text.contains(&format!("[disk] # {disk}: ")) && text.contains("\n[settings]\n"), "{text}");
        let args = ["sim", &file, "--jobs", "j.fio", "--what-if", "disk.read_us=20", "--members", "4", "--ios", "500"];
        dir.mqblk(&args).exits(0).prints(&[
            "without a measurement of these jobs, all of them are used",
            "a.iops",
            "better by ",
        ]);
    }
    dir.mqblk(&["inspect", "--export", "m.toml"]).exits(0);
    dir.mqblk(&["inspect", "--export", "m.toml"]).exits(2).says(&["--export m.toml: already exists", "--force"]);
    let mut costs =
        String::from("[machine]\n[disk]\nsize_gib = 1\nread_us = 1\nwrite_us = 1\n[costs.path]\nirq_ns = 777\n");
    let _ = write!(costs, "[uncertain]\n\"costs.path.irq_ns\" = [700, 800]\n");
    dir.file("costs.toml", &costs);
    dir.mqblk(&["inspect", "--export", "m.toml", "--force", "--costs", "costs.toml"]).exits(0);
    let text = fs::read_to_string(dir.path("m.toml")).unwrap();
    assert!(text.contains("\nirq_ns = 777\n") && text.contains("\"costs.path.irq_ns\" = [700.0, 800.0]"), "{text}");
    assert!(text.contains("\"disk.read_us\" = ["), "{text}");
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_written() {
    let dir = Dir::new("whatif");
    let machine = "[machine]\ncores = 2\n[disk]\nsize_gib = 1\nread_us = 100\nwrite_us = 100\n";
    dir.file("m.toml", machine)
        .file("j.fio", "[a]\nrw=read\ndirect=1\nruntime=1\n")
        .file("bad.toml", "[machine]\ncors = 2\n");
    dir.file("noise", "no trace").file("r.json", "{\"jobs\": 1}");
    let before = dir.list();
    for (args, says) in [
        (&["profile", "none"][..], "there is no such file, and no none.blktrace.N"),
        (&["profile", "noise", "--output", "o"], "no submissions (Q)"),
        (&["profile", "--from", "r.json", "--machine", "new.toml"], "r.json: there is no list 'jobs'"),
        (&["profile", "noise", "--device", "sda"], "must be MAJOR,MINOR"),
        (&["sim", "bad.toml", "--jobs", "j.fio"], "bad.toml:2: unknown field `cors`"),
        (&["sim", "m.toml", "--jobs", "none.fio"], "job file 'none.fio'"),
        (&["sim", "m.toml", "--what-if", "nomerges=2"], "name a job file by --jobs"),
        (&["sim", "m.toml", "--jobs", "j.fio", "--what-if", "nomerge=2"], "did you mean 'nomerges'?"),
        (&["sim", "m.toml", "--jobs", "j.fio", "--what-if", "queue_depth=0"], "queue_depth=0: must be 1..="),
        (&["inspect", "--export", "x.toml", "--costs", "m.toml"], "has no table [costs.path]"),
        (&["inspect", "no-such-disk", "--export", "x.toml"], "is no block device of this host"),
    ] {
        let done = dir.mqblk(args).exits(2);
        assert!(done.err.contains(says), "{args:?}: {}", done.err);
    }
    assert_eq!(dir.list(), before);
}

#[test]
fn one_name_for_two_files_is_refused() {
    let dir = Dir::new("whatif");
    let machine = "[machine]\ncores = 2\n[disk]\nsize_gib = 1\nread_us = 100\nwrite_us = 100\n";
    dir.file("t.txt", &closed_loop())
        .file("run.json", "{}")
        .file("m.toml", machine)
        .file("p.blktrace.3", &closed_loop());
    std::os::unix::fs::symlink("m.toml", dir.path("link.toml")).unwrap();
    let read = || ["t.txt", "run.json", "m.toml", "p.blktrace.3"].map(|f| fs::read_to_string(dir.path(f)).unwrap());
    let (names, before) = (dir.list(), read());
    for (args, says) in [
        (
            &["profile", "t.txt", "--output", "m.toml", "--machine", "./m.toml"][..],
            "--machine ./m.toml: is the file of --output",
        ),
        (
            &["profile", "t.txt", "--output", "link.toml", "--machine", "m.toml"],
            "--machine m.toml: is the file of --output",
        ),
        (&["profile", "t.txt", "--output", "n", "--machine", "n"], "--machine n: is the file of --output"),
        (&["profile", "t.txt", "--output", "t.txt"], "--output t.txt: is the file of the trace"),
        (&["profile", "p", "--output", "p.blktrace.3"], "--output p.blktrace.3: is the file of the trace"),
        (&["profile", "--from", "run.json", "--output", "run.json"], "--output run.json: is the file of --from"),
        (&["profile", "--from", "run.json", "--machine", "run.json"], "--machine run.json: is the file of --from"),
    ] {
        let done = dir.mqblk(args).exits(2);
        assert!(done.err.contains(says), "{args:?}: {}", done.err);
    }
    assert_eq!((dir.list(), read()), (names, before));
}

#[test]
fn a_linked_machine_file_is_replaced_at_the_links_target() {
    let dir = Dir::new("whatif");
    let machine = "# mine\n[machine]\ncores = 2\n[disk]\nsize_gib = 1\nread_us = 100\nwrite_us = 100\n";
    fs::create_dir(dir.path("real")).unwrap();
    dir.file("t.txt", &closed_loop())
        .file("real/m.toml", machine)
        .file("real/m.toml.new", "mine")
        .file("m.toml.new", "mine");
    fs::set_permissions(dir.path("real/m.toml"), fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink("real/m.toml", dir.path("m.toml")).unwrap();
    dir.mqblk(&["profile", "t.txt", "--output", "j.fio", "--machine", "m.toml"]).exits(0);
    assert!(fs::symlink_metadata(dir.path("m.toml")).unwrap().is_symlink());
    let real = fs::read_to_string(dir.path("real/m.toml")).unwrap();
    assert!(real.starts_with("# mine\n") && real.contains("# from the profile"), "{real}");
    assert_eq!(fs::metadata(dir.path("real/m.toml")).unwrap().permissions().mode() & 0o777, 0o640);
    for other in ["real/m.toml.new", "m.toml.new"] {
        assert_eq!(fs::read_to_string(dir.path(other)).unwrap(), "mine");
    }
    assert_eq!(fs::read_dir(dir.path("real")).unwrap().count(), 2, "the temporary file is gone");
}

/// CPUs that were offline have no file.
#[test]
fn traces_of_all_cpus_are_read_though_numbers_are_missing() {
    let dir = Dir::new("whatif");
    let all = closed_loop();
    let lines: Vec<&str> = all.lines().collect();
    let of = |cpu: usize| lines.iter().skip(cpu).step_by(3).map(|l| format!("{l}\n")).collect::<String>();
    for (cpu, name) in ["t.blktrace.1", "t.blktrace.3", "t.blktrace.11"].iter().enumerate() {
        dir.file(name, &of(cpu));
    }
    dir.file("t.blktrace.", "x").file("t.blktrace.old", "x").file("t.blktrace.+2", "x").file("whole", &all);
    let [cpus, whole] = ["t", "whole"].map(|t| json(&dir.mqblk(&["profile", t, "--json"]).exits(0).out));
    assert_eq!((&cpus["jobs"], &cpus["disk"]), (&whole["jobs"], &whole["disk"]));
}
