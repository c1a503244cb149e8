// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Jobs on simulated machines from the outside (`--target sim:FILE`): the same command gives the same figures, and says that time is
//! virtual; `tune` finds what a planted machine needs.

mod common;

use common::{Dir, number};
use serde_json::Value;

const MACHINE: &str = "[machine]\nsockets = 2\ncores = 8\nthreads = 1\n[disk]\nattach = \"scsi\"\nsize_gib = 10\nread_us = 100\n\
                       write_us = 200\njitter_pct = 10\nparallel = 64\nlun_queue_depth = 64\nqueue_depth = 64\n[settings]\nscheduler = \"none\"\n";
const JOB: &str = "[global]\nioengine=libaio\ndirect=1\nbs=4k\nsize=1g\ntime_based\nruntime=50ms\n[a]\nrw=randread\niodepth=8\nnumjobs=$ncpus\n";

/// JSON without what a clock on the wall has told.
fn figures(text: &str) -> Value {
    let mut v: Value = serde_json::from_str(text).unwrap();
    for key in ["timestamp", "timestamp_ms", "time"] {
        v.as_object_mut().unwrap().remove(key);
    }
    v
}

#[test]
fn the_same_command_gives_the_same_figures_and_says_that_time_is_virtual() {
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
        dir.mqblk(&[&args[..], &["--results", results]].concat()).exits(1).out
    };
    let (one, two) = (compare("1"), compare("2"));
    let table = |text: &str| text.lines().filter(|l| !l.contains("--results")).collect::<Vec<_>>().join("\n");
    assert_eq!(table(&one), table(&two));
    assert!(one.starts_with("simulated machine of 16 CPUs"), "{one}");
    dir.mqblk(&["run", "j.fio", "--target", "sim:m.tom"]).exits(2).says(&["target 'sim:m.tom': cannot be read"]);
    dir.mqblk(&["inspect", "--target", "sim:m.toml"]).exits(2).says(&["is a simulated machine"]);
    dir.mqblk(&["run", "j.fio", "--target", "sin:m.toml"]).exits(2).says(&["did you mean 'sim:'"]);
    dir.mqblk(&["run", "j.fio", "--target", "sim:m.toml", "--set", "nr_hw_queues=17"]).exits(2).says(&["16 CPUs"]);
}
