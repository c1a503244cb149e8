// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Jobs on simulated machines from the outside (`--target sim:FILE`): the same command gives the same figures and says that time is
//! virtual. `tune` finds the setting that a prepared machine needs.

use crate::common;

use common::{Dir, number};
use serde_json::Value;

const MACHINE: &str = "[machine]\nsockets = 2\ncores = 8\nthreads = 1\n[disk]\nattach = \"scsi\"\nsize_gib = 10\nread_us = 100\n\
                       write_us = 200\njitter_pct = 10\nparallel = 64\nlun_queue_depth = 64\nqueue_depth = 64\n[settings]\nscheduler = \"none\"\n";
const JOB: &str = "[global]\nioengine=libaio\ndirect=1\nbs=4k\nsize=1g\ntime_based\nruntime=50ms\n[a]\nrw=randread\niodepth=8\nnumjobs=$ncpus\n";

/// Returns the JSON without wall-clock times.
fn figures(text: &str) -> Value {
    let mut v: Value = serde_json::from_str(text).unwrap();
    for key in ["timestamp", "timestamp_ms", "time"] {
        v.as_object_mut().unwrap().remove(key);
    }
    v
}

#[test]
fn simulated_runs_repeat_exactly_and_report_virtual_time() {
    let dir = Dir::new("sim-run");
    dir.file("m.toml", MACHINE).file("j.fio", JOB);
    let run = |more: &[&str]| dir.mqblk(&[&["run", "j.fio", "--target", "sim:m.toml"], more].concat()).exits(0);
    let (one, two) = (run(&["--json"]).out, run(&["--json"]).out);
    assert_eq!(figures(&one), figures(&two));
    let v = figures(&one);
    assert_eq!(number(&v, "/mqblk/simulated/cpus"), 16.0);
    assert_eq!(v["jobs"].as_array().unwrap().len(), 16, "$ncpus is that machine's");
    assert!(number(&v, "/mqblk/stages/times/device_ns") > 0.0);
    run(&["--report", "out.html"]).prints(&[
        "simulated machine of 16 CPUs (2 x 8 cores x 1 threads, m.toml): all times are virtual\n",
        "  its CPUs     : busy=",
        "sim:m.toml: mode=mq, nr_hw_queues=16, scheduler=none",
    ]);
    let page = std::fs::read_to_string(dir.path("out.html")).unwrap();
    assert!(page.contains("simulated machine of 16 CPUs"));
    let compare = |results: &str| {
        let args =
            ["compare", "j.fio", "--target", "sim:m.toml", "--a", "default", "--b", "lun_queue_depth=8", "--pairs=10"];
        dir.mqblk(&[&args[..], &["--results", results]].concat()).exits(0).out
    };
    let (one, two) = (compare("1"), compare("2"));
    let table = |text: &str| text.lines().filter(|l| !l.contains("--results")).collect::<Vec<_>>().join("\n");
    assert_eq!(table(&one), table(&two));
    assert!(one.starts_with("simulated machine of 16 CPUs"), "{one}");
    let mixed =
        ["compare", "j.fio", "--a", "target=sim:m.toml", "--b", "target=null:size=10g", "--pairs=10", "--results", "3"];
    let mixed = dir.mqblk(&[&mixed[..], &["--job-set", "numjobs=1"]].concat());
    mixed.says(&["warning: A is a simulated machine of 16 CPUs", "all times are virtual, and another side is real"]);
    dir.mqblk(&["run", "j.fio", "--target", "sim:m.tom"]).exits(2).says(&["target 'sim:m.tom': cannot be read"]);
    dir.mqblk(&["inspect", "--target", "sim:m.toml"]).exits(2).says(&["is a simulated machine"]);
    dir.mqblk(&["run", "j.fio", "--target", "sin:m.toml"]).exits(2).says(&["did you mean 'sim:'"]);
    dir.mqblk(&["run", "j.fio", "--target", "sim:m.toml", "--set", "nr_hw_queues=17"]).exits(2).says(&["16 CPUs"]);
}

/// Eight threads on a LUN of depth four, over a device that serves 64 I/Os at a time.
#[test]
fn tune_finds_what_a_simulated_machine_lacks_and_does_so_again() {
    let dir = Dir::new("sim-tune");
    dir.file("m.toml", &MACHINE.replace("lun_queue_depth = 64", "lun_queue_depth = 4"))
        .file("j.fio", &JOB.replace("$ncpus", "8"));
    let tune = |more: &[&str]| {
        let args = ["tune", "j.fio", "--target", "sim:m.toml", "--maximize", "a.iops", "--runtime", "20ms"];
        let search = ["--knob", "lun_queue_depth", "--knob", "nomerges", "--budget", "60s"];
        dir.mqblk(&[&args[..], &search, more].concat()).exits(0)
    };
    let done = tune(&["--results", "r1", "--print", "toml,sysfs", "--apply", "best.toml"]);
    done.prints(&[
        "simulated machine of 16 CPUs",
        "lun_queue_depth=64 is better than the default: a.iops +",
        "device/queue_depth\n",
        "[settings]\nlun_queue_depth = 64\n",
    ]);
    let applied = std::fs::read_to_string(dir.path("best.toml")).unwrap();
    assert!(applied.contains("[settings]\nlun_queue_depth = 64\n"), "{applied}");
    let ratio = |results: [&str; 3]| tune(&results).json()["result"]["against_default"]["ratio"].clone();
    let recorded = ratio(["--resume", "r1", "--json"]);
    assert!(number(&recorded, "/ratio") > 5.0, "{recorded}");
    assert_eq!(recorded, ratio(["--results", "r2", "--json"]), "the same figures");
}

/// A results file belongs to one machine: it contains the text of the machine's file.
#[test]
fn a_machine_file_that_was_edited_is_another_machine() {
    let dir = Dir::new("sim-edited");
    let other = MACHINE.replace("read_us = 100", "read_us = 150");
    dir.file("m.toml", MACHINE).file("j.fio", &JOB.replace("$ncpus", "2"));
    let tune = |more: &[&str]| {
        let args = ["tune", "j.fio", "--target", "sim:m.toml", "--maximize", "a.iops", "--runtime", "20ms"];
        dir.mqblk(&[&args[..], &["--knob", "nomerges", "--budget", "60s", "--json"], more].concat())
    };
    let compare = |more: &[&str]| {
        let args = ["compare", "j.fio", "--target", "sim:m.toml", "--a", "default", "--b", "lun_queue_depth=2"];
        dir.mqblk(&[&args[..], &["--pairs=10"], more].concat())
    };
    let v = tune(&["--results", "t"]).exits(0).json();
    assert!(v["simulated"].as_str().unwrap().starts_with("simulated machine of 16 CPUs"), "{v:#}");
    assert_eq!(v["plan"]["behind"], MACHINE);
    compare(&["--results", "c"]).exits(0);
    let again = || (tune(&["--resume", "t"]), compare(&["--resume", "c"]));
    let (tuned, compared) = again();
    tuned.exits(0);
    compared.exits(0);
    dir.file("m.toml", &other);
    let (tuned, compared) = again();
    tuned.exits(2).says(&["belongs to another tuning: the disk or machine file behind the target differs"]);
    compared.exits(2).says(&["belongs to another comparison: a side (", "behind the target) differs"]);
}

#[test]
fn more_pieces_in_flight_than_can_be_simulated_are_refused() {
    let dir = Dir::new("sim-pieces");
    dir.file("m.toml", MACHINE)
        .file("j.fio", "[a]\nioengine=libaio\ndirect=1\nrw=randread\nbs=1m\nsize=1g\niodepth=8192\n");
    dir.mqblk(&["run", "j.fio", "--target", "sim:m.toml", "--set", "max_sectors_kb=4"]).exits(2).says(&[
        "iodepth=8192: blocks of 1048576 bytes split into pieces of 4 KiB",
        "lower iodepth or bs, or raise max_sectors_kb",
    ]);
}

/// If no setting has an effect, no gain is reported. A database is judged by its transactions.
#[test]
fn transactions_can_be_the_goal() {
    let dir = Dir::new("sim-oltp");
    let oltp = "[db]\nworkload=oltp\nbs=8k\nsize=1g\nusers=16\nreads_per_tx=4\nwrites_per_tx=2\nredo_bytes=1k\nruntime=100ms\n";
    // Commits share a write of the log, so its size depends on the depth.
    dir.file("m.toml", &MACHINE.replace("lun_queue_depth = 64", "bw_mb = 4000\nlun_queue_depth = 2"))
        .file("db.fio", oltp)
        .file("j.fio", JOB);
    let tune = |job: &str, more: &[&str]| {
        dir.mqblk(&[&["tune", job, "--target", "sim:m.toml", "--runtime", "50ms", "--budget", "60s"], more].concat())
    };
    let search = [
        "--maximize",
        "db.tps",
        "--keep",
        "db.commit<=110%",
        "--keep",
        "db.tpm>=99%",
        "--knob",
        "lun_queue_depth=2,32",
    ];
    tune("db.fio", &[&search[..], &["--results", "r"]].concat()).exits(0).prints(&[
        "lun_queue_depth=32 is better than the default: db.tps +",
        " transactions/s",
        "db.tpm>=99%  : kept: ",
        " transactions/min, ",
    ]);
    tune("db.fio", &["--maximize", "db.tpm", "--knob", "lun_queue_depth=32", "--results", "m"])
        .exits(0)
        .prints(&["lun_queue_depth=32 is better than the default: db.tpm +", " transactions/min"]);
    tune("j.fio", &["--maximize", "a.tpm"]).exits(2).says(&["only jobs with workload=oltp have transactions"]);
    tune("j.fio", &["--maximize", "a.tps"]).exits(2).says(&["only jobs with workload=oltp have transactions"]);
    tune("j.fio", &["--maximize", "a.iops", "--keep", "a.commit<=2ms"]).exits(2).says(&["--keep a.commit: only jobs"]);
}

/// The disk's times do not depend on the size of a request, so nothing can be told of settings that change how many are merged.
#[test]
fn merging_on_a_disk_without_a_cost_per_byte_gets_no_verdict() {
    let dir = Dir::new("sim-unmodelled");
    let machine = "[machine]\nsockets = 1\ncores = 4\nthreads = 1\n[disk]\nsize_gib = 100\nread_us = 200\nwrite_us = 200\n\
                   parallel = 8\nqueue_depth = 64\n[settings]\nnr_hw_queues = 1\nscheduler = \"none\"\n";
    let job = "[s]\nrw=read\nbs=4k\nioengine=io_uring\niodepth=64\niodepth_batch_submit=16\ndirect=1\nruntime=300ms\ntime_based\n";
    dir.file("m.toml", machine).file("j.fio", job);
    let why = "and [disk] has no cost per byte: measure the bandwidth with large blocks, and set bw_mb";
    let compare = ["compare", "j.fio", "--target", "sim:m.toml", "--pairs", "14"];
    let sides = ["--side", "a:queue_depth=64", "--side", "b:queue_depth=4", "--side", "c:nomerges=2"];
    let several = dir.mqblk(&[&compare[..], &sides, &["--results", "r"]].concat()).exits(0);
    several.prints(&["best: A a; no side is shown to be faster", "cannot tell: not modelled", why]);
    let sides = ["--a", "queue_depth=64", "--b", "queue_depth=4", "--results", "r2", "--json"];
    let v = dir.mqblk(&[&compare[..], &sides].concat()).exits(0).json();
    assert_eq!(v["verdict"], "not_modelled", "{v:#}");
    let tune = ["tune", "j.fio", "--target", "sim:m.toml", "--maximize", "s.iops", "--knob", "queue_depth=4,64"];
    let v = dir.mqblk(&[&tune[..], &["--budget", "60s", "--results", "r3", "--json"]].concat());
    let v = v.json();
    let told = &v["result"]["unmodelled"];
    assert!(told[0][0] == "queue_depth=4" && told[0][1].as_str().unwrap().contains(why), "{v:#}");
    assert_eq!(v["result"]["verdict"], "no_better", "{v:#}");
    // The number of requests in a disk that rotates counts, too.
    let rotates = machine.replace("parallel = 8", "parallel = 8\nrotational = true");
    dir.file("rotates.toml", &rotates);
    let study = dir
        .mqblk(&["sim", "--study", "depth", "--machine", "rotates.toml", "--quick", "--report", "out.html"])
        .exits(0);
    study.prints(&["cannot tell: the disk has ", "and the disk rotates, without seek times"]);
    let page = std::fs::read_to_string(dir.path("out.html")).unwrap();
    assert!(page.contains("Cannot tell"), "the page says it, too");
    let study = dir.mqblk(&["sim", "--study", "depth", "--machine", "m.toml", "--quick"]).exits(0);
    assert!(!study.out.contains("cannot tell"), "{}", study.out);
}
