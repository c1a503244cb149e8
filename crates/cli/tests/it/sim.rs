// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk sim` from the outside.

use crate::common;

use common::Dir;

#[test]
fn one_case_is_shown_event_by_event_and_the_same_every_time() {
    let dir = Dir::new("sim");
    let first = dir.mqblk(&["sim", "--seed", "3"]).exits(0);
    first.prints(&[" Q submitter ", " D hctx ", " C hctx ", " E submitter ", "\n1 disk case\n  bios "]);
    first.prints(&[
        " S safety phase: ",
        " S liveness phase: no more faults, ",
        "\n  safety    ",
        "\n  liveness  ",
        "\n  trace     ",
    ]);
    assert_eq!(first.out, dir.mqblk(&["sim", "--seed", "3"]).exits(0).out);
    assert_ne!(first.out, dir.mqblk(&["sim", "--seed", "4"]).exits(0).out);
    assert!(dir.list().is_empty(), "nothing is written");
}

/// A case begins with its parts, in lines that fit a terminal, with flags and settings by their names.
#[test]
fn a_case_begins_with_what_it_is_made_of() {
    let dir = Dir::new("sim");
    for kind in ["disk", "set", "pressure", "multipath"] {
        let out = dir.mqblk(&["sim", "--kind", kind, "--seed", "3"]).exits(0).out;
        assert!(out.contains(&format!("\n{kind} case of seed 3\n")), "{out}");
        let long = out.lines().find(|line| line.len() > 130);
        assert!(long.is_none(), "{kind}: {long:?}");
        assert!(!out.contains("QueueConfig") && !out.contains("OpFlags("), "{kind}: {out}");
    }
    let out = dir.mqblk(&["sim", "--kind", "disk", "--seed", "3"]).exits(0);
    out.prints(&[" X host      ", "   settings  mode=", "   device    ", "   faults    ", "   cache     ", " +SYNC"]);
    let out = dir.mqblk(&["sim", "--kind", "set", "--seed", "3"]).exits(0);
    out.prints(&[" X tag set   ", " X disk 0 joins\n", " D disk 1 hctx ", " S competition: "]);
}

#[test]
fn many_cases_are_counted_whatever_order_they_ran_in() {
    let dir = Dir::new("sim");
    let args = ["sim", "--seed", "10", "--count", "30"];
    let out = dir.mqblk(&args).exits(0).out;
    assert!(out.starts_with("30 disk cases of 30 seeds\n"), "{out}");
    assert!(out.contains(" set cases of 30 seeds\n") && out.contains(" pressure cases of 30 seeds\n"), "{out}");
    assert_eq!(out, dir.mqblk(&args).exits(0).out);
    let set = dir.mqblk(&["sim", "--seed", "10", "--count", "3", "--kind", "set"]).exits(0).out;
    assert!(set.starts_with("3 set cases of 3 seeds\n") && !set.contains("disk cases"), "{set}");
}

#[test]
fn seeds_have_an_end() {
    let dir = Dir::new("sim");
    dir.mqblk(&["sim", "--seed", "18446744073709551615", "--count", "2"]).exits(2).says(&["--count 2", "lower it"]);
    dir.mqblk(&["sim", "--count", "0"]).exits(2);
    dir.mqblk(&["sim", "--kind", "main"]).exits(2).says(&["disk", "set", "pressure", "multipath"]);
}

const SCENARIOS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios");

#[test]
fn a_scenario_compares_simulated_and_published_figures() {
    let dir = Dir::new("sim");
    let file = format!("{SCENARIOS}/azure-p80.toml");
    let first = dir.mqblk(&["sim", &file]).exits(0);
    first.prints(&[
        "published     simulated",
        "270 ",
        "fitted",
        "predicted",
        "why: seq_write: ",
        "plausible: 2000 to 3500",
    ]);
    assert_eq!(first.out, dir.mqblk(&["sim", &file]).exits(0).out, "the same every time");
    let json: serde_json::Value = serde_json::from_str(&dir.mqblk(&["sim", &file, "--json"]).exits(0).out).unwrap();
    assert_eq!(json["rows"][0]["figures"][1]["published"], 270.0);
    assert_eq!(json["rows"][1]["figures"][1]["fitted"], false);
    assert!(dir.list().is_empty(), "nothing is written");
    let laptop = dir.mqblk(&["sim", &format!("{SCENARIOS}/emmc-use-blk-mq.toml")]).exits(0);
    laptop.prints(&["no difference", "scsi_mod.use_blk_mq=1: no effect: not a SCSI disk"]);
}

#[test]
fn a_wrong_scenario_is_refused_with_its_line() {
    let dir = Dir::new("sim");
    let text = std::fs::read_to_string(format!("{SCENARIOS}/azure-p80.toml")).unwrap();
    std::fs::copy(format!("{SCENARIOS}/azure-p80.fio"), dir.path("azure-p80.fio")).unwrap();
    let line = |of: &str| 1 + text.lines().position(|l| l.starts_with(of)).unwrap();
    for (from, to, at, says) in [
        ("cores = 16", "cors = 16", "cores = 16", "unknown field `cors`"),
        ("write_us = 2870", "write_us = 5550", "constant = \"disk.write_us\"", "outside its plausible range"),
        ("sockets = 1", "sockets = 0", "sockets = 1", "must be 1 or more"),
    ] {
        std::fs::write(dir.path("s.toml"), text.replacen(from, to, 1)).unwrap();
        let done = dir.mqblk(&["sim", "s.toml"]).exits(2);
        assert!(done.err.contains(&format!("s.toml:{}: ", line(at))) && done.err.contains(says), "{}", done.err);
    }
    std::fs::write(dir.path("s.toml"), text.replacen("scheduler = \"mq-deadline\"", "scheduler = \"mq-deadlin\"", 1))
        .unwrap();
    let done = dir.mqblk(&["sim", "s.toml"]).exits(2);
    let said = format!("s.toml:{}: scheduler=mq-deadlin: must be one of ", line("scheduler"));
    assert!(done.err.contains(&said) && done.err.contains("did you mean 'mq-deadline'?"), "{}", done.err);
    let none = dir.mqblk(&["sim", "none.toml"]).exits(2);
    assert!(none.err.contains("scenario 'none.toml': "), "{}", none.err);
}

/// Run by `cargo xtask test --deep`.
mod deep {
    use super::*;

    #[test]
    fn a_scenario_of_transactions_says_what_makes_them_shorter() {
        let dir = Dir::new("sim");
        let guests = dir.mqblk(&["sim", &format!("{SCENARIOS}/rhel94-oracle.toml")]).exits(0);
        guests.prints(&["  why: users10: a transaction takes ", "shorter: wake-up is ", "longer: CPU wait is "]);
    }
}

#[test]
fn rows_without_published_figures_are_compared_in_simulation() {
    let dir = Dir::new("sim");
    dir.file(
        "s.toml",
        "title = \"t\"\nsource = \"s\"\njobs = \"s.fio\"\n[machine]\nsockets = 1\ncores = 4\nthreads = 1\n[disk]\nattach = \"scsi\"\nsize_gib = 32\n\
         bw_mb = 500\nread_us = 300\nwrite_us = 1000\nparallel = 4\nqueue_depth = 8\nlun_queue_depth = 3\n\
         [[row]]\nname = \"two\"\nset = { scheduler = \"none\", nr_hw_queues = 2 }\n\
         [[row]]\nname = \"one\"\nset = { scheduler = \"none\", nr_hw_queues = 1 }\n",
    );
    dir.file(
        "s.fio",
        "[a]\nrw=read\nbs=4k\nioengine=libaio\niodepth=64\ndirect=1\ntime_based\nruntime=200ms\nsize=1g\n",
    );
    dir.mqblk(&["sim", "s.toml"]).exits(0).prints(&["'one' against 'two':\n  a.iops: simulated +", "why: a: "]);
}
