// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk inspect`, `set`, `cmdhelp` and help from the outside.

use crate::common;

use blk::settings::SETTINGS;
use common::{Dir, PROGRAM_POLL};

#[test]
fn a_stack_is_described_without_a_run() {
    let dir = Dir::new("inspect");
    let set = ["--set", "nr_cpus=8", "--set", "nr_hw_queues=2", "--set", "scheduler=mq-deadline"];
    let done = dir.mqblk(&[&["inspect"], &set[..]].concat()).exits(0);
    done.prints(&[
        " *nr_hw_queues   ",
        "  queue_depth    ",
        "iosched.fifo_batch",
        "  hctx  type     NUMA  CPUs\n  0     default  0     0-3\n  1     default  0     4-7\n",
        "what limits the I/O in flight",
    ]);
    for s in SETTINGS {
        assert!(done.out.lines().any(|l| l.trim_start_matches([' ', '*']).starts_with(s.name)), "{}", s.name);
    }
    let v = dir.mqblk(&[&["inspect", "--json"], &set[..]].concat()).exits(0).json();
    assert_eq!(v["hctxs"][1]["cpus"].as_array().unwrap().len(), 4);
    dir.file("disk", &"x".repeat(8192));
    dir.mqblk(&["inspect", "--target", "disk"]).exits(0).prints(&["target disk: 8192B"]);
    assert_eq!(dir.list(), ["disk"]);
}

#[test]
fn this_host_s_disks_are_listed_or_said_to_be_hidden() {
    let dir = Dir::new("inspect");
    dir.mqblk(&["inspect", "--host"]).exits(0).prints(&["kernel ", "module parameters", "scsi_mod.use_blk_mq"]);
    let v = dir.mqblk(&["inspect", "--host", "--json"]).exits(0).json();
    if let Some(first) = v["devices"].as_array().unwrap().first() {
        let name = first["name"].as_str().unwrap();
        dir.mqblk(&["inspect", "--host", name]).exits(0).prints(&[&format!("\n{name}: ")]);
    }
}

#[test]
fn help_names_every_command_setting_and_target() {
    let dir = Dir::new("inspect");
    let help = dir.mqblk(&["--help"]).exits(0);
    help.prints(&["run ", "compare ", "inspect ", "cmdhelp ", "Examples:", "Exit status:", "130"]);
    let run = dir.mqblk(&["run", "--help"]).exits(0);
    run.prints(&[
        "--job-set <OPTION[=VALUE]>",
        "--target <TARGET>",
        "null[:OPTIONS]",
        "model[:OPTIONS]",
        "iosched.NAME",
    ]);
    for s in SETTINGS {
        run.prints(&[s.name, s.help]);
    }
    let version = dir.mqblk(&["--version"]).exits(0);
    assert_eq!(version.out, concat!("mqblk ", env!("CARGO_PKG_VERSION"), "\n"));
    dir.mqblk(&["cmdhelp", "iodepth"]).exits(0).prints(&["iodepth: ", "status : as in fio"]);
    dir.mqblk(&["cmdhelp"]).exits(0).prints(&["\nrw ", "\niodepth ", "refused"]);
}

/// Returns a command of mqblk that finds only runs in this directory, so that other tests' runs do not interfere.
fn alone(dir: &Dir, args: &[&str]) -> std::process::Command {
    let mut command = dir.command(args);
    command.env("MQBLK_RUNTIME_DIR", dir.as_path());
    command
}

fn said(done: &std::process::Output) -> (i32, String, String) {
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    (done.status.code().unwrap_or(-1), text(&done.stdout), text(&done.stderr))
}

/// A run that is killed at the end of the test, by its own process id.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start_slow_run(dir: &Dir) -> Running {
    let set =
        ["--set", "nr_cpus=2", "--set", "nr_hw_queues=1", "--set", "queue_depth=4", "--set", "scheduler=mq-deadline"];
    let target = ["--target", "model:size=1g,lat_us=200000,parallel=1"];
    let mut command = alone(dir, &[&["run", "job.fio"], &set[..], &target[..]].concat());
    let child = command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap();
    Running(child)
}

/// Repeats a query until `want` accepts the answer. The length of the run limits the time.
fn ask_until(dir: &Dir, args: &[&str], want: impl Fn(&str) -> bool) -> String {
    let began = std::time::Instant::now();
    loop {
        let (status, out, err) = said(&alone(dir, args).output().unwrap());
        if status == 0 && want(&out) {
            return out;
        }
        assert!(began.elapsed().as_secs() < 60, "{args:?}: {status}\n{out}\n{err}");
        std::thread::sleep(PROGRAM_POLL);
    }
}

#[test]
fn a_run_that_goes_on_shows_its_queues_and_requests() {
    let dir = Dir::new("live");
    dir.file("job.fio", "[a]\nioengine=libaio\nrw=randread\nbs=4k\niodepth=16\nsize=64m\nruntime=120\ntime_based=1\n");
    let (status, _, err) = said(&alone(&dir, &["inspect", "--live"]).output().unwrap());
    assert!(status == 2 && err.contains("no run of mqblk by this user is in progress; start one"), "{err}");
    let run = start_slow_run(&dir);
    let text = ask_until(&dir, &["inspect", "--live"], |t| t.contains("-- hctx0/active\n4\n"));
    for needle in [
        &format!("process {}: mqblk run job.fio", run.0.id()),
        "\nmodel:size=1g,lat_us=200000,parallel=1\n-- state\nSAME_COMP|INIT_DONE|REGISTERED|SQ_SCHED\n",
        "-- hctx0/busy\nrq",
        "{.op=READ, .cmd_flags=, .rq_flags=SCHED_TAGS|USE_SCHED|IO_STAT, .state=in_flight, .tag=",
        "-- hctx0/tags_bitmap\n00000000: 0f\n",
        "-- sched/read1_fifo_list\n",
    ] {
        assert!(text.contains(needle), "{needle:?} in\n{text}");
    }
    let pid = run.0.id().to_string();
    let one = ask_until(&dir, &["inspect", "--live", &pid, "--path", "hctx0/type", "--json"], |_| true);
    let v: serde_json::Value = serde_json::from_str(&one).unwrap();
    assert_eq!(v["disks"][0]["files"], serde_json::json!([{ "path": "hctx0/type", "text": "default\n" }]));
    let (status, _, err) = said(&alone(&dir, &["inspect", "--live", "--path", "hctx7"]).output().unwrap());
    assert!(status == 2 && err.contains("--path hctx7: the run has no such file or directory"), "{err}");
    // With a second run, the user has to name the one that is meant.
    let other = start_slow_run(&dir);
    ask_until(&dir, &["inspect", "--live", &other.0.id().to_string()], |_| true);
    let (status, _, err) = said(&alone(&dir, &["inspect", "--live"]).output().unwrap());
    assert!(status == 2 && err.contains("several runs") && err.contains(&pid), "{err}");
    // A killed run leaves its socket behind, but the socket does not count as a run.
    drop(other);
    ask_until(&dir, &["inspect", "--live"], |t| t.contains(&format!("process {pid}:")));
    let (status, _, err) = said(&alone(&dir, &["inspect", "--live", "1"]).output().unwrap());
    assert!(status == 2 && err.contains("process 1 is not a run of mqblk by this user; runs in progress:"), "{err}");
}

#[test]
fn a_run_that_goes_on_takes_other_settings_and_reports_them() {
    let dir = Dir::new("set");
    let job = "[a]\nioengine=libaio\nrw=randread\nbs=4k\niodepth=16\nnumjobs=2\nsize=64m\nruntime=60\ntime_based=1\n";
    dir.file("job.fio", job);
    let (status, _, err) = said(&alone(&dir, &["set", "scheduler=none"]).output().unwrap());
    assert!(status == 2 && err.contains("set: no run of mqblk by this user is in progress"), "{err}");
    let target = "model:size=1g,lat_us=300";
    let mut command = alone(&dir, &["run", "job.fio", "--target", target, "--set", "nr_cpus=2", "--json"]);
    let run = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn().unwrap();
    ask_until(&dir, &["inspect", "--live", "--path", "hctx0/busy"], |t| t.contains("rq"));
    let set = |args: &[&str]| said(&alone(&dir, &[&["set"], args].concat()).output().unwrap());
    let (status, out, err) = set(&["scheduler=mq-deadline", "nr_hw_queues=1"]);
    let begins =
        format!("{target}: nr_hw_queues 2 -> 1, nr_requests 64 -> 128, scheduler none -> mq-deadline; new I/O was");
    assert!(status == 0 && out.starts_with(&begins), "{out}{err}");
    assert_eq!(set(&["iosched.read_expire=100"]).1, format!("{target}: iosched.read_expire 500 -> 100\n"));
    assert_eq!(
        set(&["iops_total=1000", "--pid", &run.id().to_string()]).1,
        format!("{target}: iops_total 0 -> 1000\n")
    );
    assert_eq!(set(&["nomerges=0", "--disk", target]).1, format!("{target}: unchanged\n"));
    for (args, says) in [
        (&["queue_depth=0"][..], "queue_depth=0: must be 1..=10240"),
        (&["nomerges=1", "--disk", "sda"], "--disk sda: no such disk in the run; it has model:"),
        (&["nomerges=1", "--pid", "1"], "process 1 is not a run of mqblk by this user; runs in progress:"),
        (&["nomerges"], "must be KEY=VALUE"),
    ] {
        let (status, out, err) = set(args);
        assert!(status == 2 && out.is_empty() && err.contains(says), "{args:?}: {out}{err}");
    }
    let v: serde_json::Value = serde_json::from_str(&set(&["queue_depth=8", "--json"]).1).unwrap();
    assert_eq!(v["disks"][0]["changed"][0], serde_json::json!(["queue_depth", "64", "8"]));
    let text = ask_until(&dir, &["inspect", "--live", "--path", "hctx0/tags"], |_| true);
    assert!(text.contains("nr_tags=8\n"), "{text}");
    let ended = std::process::Command::new("kill").args(["-s", "INT", &run.id().to_string()]).status().unwrap();
    assert!(ended.success());
    let (status, out, _) = said(&run.wait_with_output().unwrap());
    assert_eq!(status, 130);
    let v: serde_json::Value = serde_json::from_str(&out).unwrap();
    let changes: Vec<&str> = v["mqblk"]["changes"].as_array().unwrap().iter().map(|c| c.as_str().unwrap()).collect();
    assert!(changes.len() == 5 && changes[0].contains(" s: nr_hw_queues 2 -> 1, "), "{changes:?}");
    assert_eq!(v["jobs"][0]["error"], 0);
}
