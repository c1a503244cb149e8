// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk compare` from the outside. No verdict of two equal sides is asserted, because two in a hundred may be wrong.

use crate::common;

use common::{Dir, number};
use std::fs;

const JOB: &str = "[a]\nrw=randread\nsize=1m\nbs=4k\nioengine=libaio\niodepth=4\nnorandommap\n";
const SHORT: [&str; 4] = ["--pairs", "10", "--runtime", "20ms"];

#[test]
fn a_slower_device_is_called_slower_and_the_pairs_are_on_disk() {
    let dir = Dir::new("compare");
    dir.file("j.fio", JOB);
    // One side takes much longer than a thread waits for a CPU on a busy machine, and runs are longer than that, too.
    let sides =
        ["--a", "target=model:size=1g,lat_us=100,iops=100000", "--b", "mode=sq,target=model:size=1g,lat_us=100000"];
    let how = ["--seed", "1", "--exit-code", "--results", "r.jsonl", "--pairs", "10", "--runtime", "250ms"];
    let args = [&["compare", "j.fio"], &how[..], &sides[..]].concat();
    let done = dir.mqblk(&args).exits(1);
    done.prints(&[
        "B is slower: IOPS -",
        "  A: target=model:size=1g,lat_us=100,iops=100000\n  B: mode=sq,target=model:size=1g,lat_us=100000\n",
        "B/A [95% interval]",
        "B is worse\n",
        "where time went",
        "warning: only 10 pairs",
        "repeat: mqblk compare j.fio --seed 1 --exit-code",
    ]);
    done.says(&["results: r.jsonl\n"]);
    let raw = fs::read(dir.path("r.jsonl")).unwrap();
    let results = lab::results::read(raw.as_slice(), "r.jsonl").unwrap();
    assert_eq!((results.runs.len(), results.header.plan.seed(), results.cut_off), (20, 1, false));
    assert_eq!(results.header.job, JOB);
    let again = results.evaluate();
    assert_eq!(again[0].verdict, results.comparisons[0].verdict);
}

#[test]
fn ctrl_c_ends_a_comparison_with_the_whole_pairs() {
    let dir = Dir::new("compare");
    dir.file("j.fio", JOB);
    let args = ["compare", "j.fio", "--a", "mode=sq", "--b", "mode=mq", "--target", "null", "--eta=always"];
    let args = [&args[..], &["--runtime", "5ms", "--pairs", "10000", "--results", "r", "--warmup", "0"]].concat();
    let started = dir.start(&args, "Pair 2");
    started.signal("INT");
    let done = started.ends().exits(130);
    done.prints(&["stopped after ", " of 10000 pairs: no verdict"]);
    let raw = fs::read(dir.path("r")).unwrap();
    let results = lab::results::read(raw.as_slice(), "r").unwrap();
    assert!(results.runs.len() >= 2 && results.runs.len().is_multiple_of(2) && !results.comparisons.is_empty());
}

#[test]
fn json_and_exit_status_agree() {
    let dir = Dir::new("compare");
    dir.file("j.fio", JOB);
    let args = ["compare", "j.fio", "--b", "default", "--target", "null", "--json", "--exit-code"];
    let done = dir.mqblk(&[&args[..], &SHORT].concat());
    let v = done.json();
    assert_eq!(done.status, i32::from(v["difference"].as_bool().unwrap()), "{v:#}");
    assert_eq!(number(&v, "/pairs_done"), 10.0);
    assert_eq!(v["results"].as_str().map(|n| dir.path(n).exists()), Some(true));
    assert!(v["command"].as_str().unwrap().contains(" --seed="), "the seed that was drawn is in the command");
    let made: Vec<String> = dir.list().into_iter().filter(|n| n != "j.fio").collect();
    assert!(made.len() == 1 && made[0].starts_with("mqblk-compare-2") && made[0].ends_with("Z.jsonl"), "{made:?}");
}

#[test]
fn several_sides_are_compared_with_the_first() {
    // In virtual time, because real figures would depend on the machine's other load.
    let dir = Dir::new("compare");
    let machine = "[machine]\nsockets = 1\ncores = 4\nthreads = 1\n[disk]\nattach = \"scsi\"\nsize_gib = 10\n\
                   read_us = 100\nwrite_us = 200\njitter_pct = 10\nparallel = 64\nlun_queue_depth = 64\nqueue_depth = 64\n\
                   [settings]\nscheduler = \"none\"\n";
    let job = "[a]\nioengine=libaio\nrw=randread\nbs=4k\nsize=1g\niodepth=32\ntime_based\nruntime=20ms\n";
    dir.file("m.toml", machine).file("j.fio", job);
    let sides =
        ["--target=sim:m.toml", "--side=base:lun_queue_depth=2", "--side=mid:lun_queue_depth=4", "--side=wide:default"];
    let exports = ["--export-json=x.json", "--export-csv=x.csv", "--export-markdown=x.md", "--results=r"];
    let args = [&["compare", "j.fio", "--exit-code"], &sides[..], &exports[..], &SHORT[..2]].concat();
    let done = dir.mqblk(&args).exits(1);
    done.prints(&["best: C wide: IOPS +", " over A, 10 rounds, p ", "\n  A base ", "\n* C wide ", "faster than A\n"]);
    let v: serde_json::Value = serde_json::from_str(&fs::read_to_string(dir.path("x.json")).unwrap()).unwrap();
    assert_eq!((&v["best"], v["comparisons"].as_array().map(Vec::len)), (&serde_json::json!("C"), Some(2)), "{v:#}");
    assert!(fs::read_to_string(dir.path("x.csv")).unwrap().contains("\nIOPS,C,"));
    assert!(fs::read_to_string(dir.path("x.md")).unwrap().contains("| IOPS | C wide"));
    let text = fs::read_to_string(dir.path("r")).unwrap();
    let results = lab::results::read(text.as_bytes(), "r").unwrap();
    assert_eq!((results.runs.len(), results.comparisons.len()), (30, 2));
    let one = ["compare", "j.fio", "--side", "a:default"];
    dir.mqblk(&one).exits(2).says(&["--side is given 1 times: must be 2..=16"]);
    let over = [&["compare", "j.fio"], &sides[..], &["--export-csv=r2", "--results=r2"], &SHORT[..]].concat();
    dir.mqblk(&over).exits(2).says(&["--export-csv r2: another option already uses this file"]);
    assert!(!dir.path("r2").exists());
    dir.mqblk(&["compare", "j.fio", "--side", "mode=sq"])
        .exits(2)
        .says(&["--side 'mode=sq': must be NAME:SETTING=VALUE"]);
}

#[test]
fn settings_of_a_side_go_over_those_of_both() {
    let dir = Dir::new("compare");
    dir.file("j.fio", JOB);
    let args = ["compare", "j.fio", "--set", "nr_cpus=4", "--set", "nr_hw_queues=4", "--target", "null", "--json"];
    let sides = ["--a", "nr_hw_queues=1", "--b", "scheduler=mq-deadline", "--b", "iosched.read_expire=9"];
    let v = dir.mqblk(&[&args[..], &sides, &SHORT].concat()).json();
    let hctxs = |side: &str| v[side]["stages"]["hctx"].as_array().unwrap().len();
    assert_eq!((hctxs("a"), hctxs("b")), (1, 4), "{v:#}");
    assert_eq!(v["b"]["label"], "scheduler=mq-deadline,iosched.read_expire=9");
}

#[test]
fn a_file_is_made_once_and_used_by_both_sides() {
    let dir = Dir::new("compare");
    dir.file("j.fio", &format!("{JOB}filename=data\n"));
    let args = ["compare", "j.fio", "--a", "mode=sq", "--b", "mode=mq", "--results", "r"];
    dir.mqblk(&[&args[..], &SHORT].concat()).exits(0);
    assert_eq!(dir.list(), ["data", "j.fio", "r"]);
    assert_eq!(fs::metadata(dir.path("data")).unwrap().len(), 1 << 20);
}

#[test]
fn ctrl_c_in_the_first_run_leaves_no_file_but_machine_facts() {
    let dir = Dir::new("compare");
    dir.file("j.fio", JOB);
    let args = ["compare", "j.fio", "--a", "mode=sq", "--b", "mode=mq", "--target", "null", "--eta=always", "--json"];
    let started = dir.start(&[&args[..], &["--runtime", "100"]].concat(), "Warm-up");
    started.signal("INT");
    let done = started.ends().exits(130);
    let v = done.json();
    assert!(number(&v, "/setup/cpus") >= 1.0 && v["results"].is_null() && v["verdict"] == "stopped", "{v:#}");
    assert_eq!(dir.list(), ["j.fio"]);
}

#[test]
fn bad_data_gives_no_verdict_and_status_2() {
    let dir = Dir::new("compare");
    dir.file("j.fio", "[a]\nrw=read\nbs=4k\nsize=64k\nverify=crc32c\nfilename=data\n");
    fs::write(dir.path("data"), vec![0; 64 << 10]).unwrap();
    let args = ["compare", "j.fio", "--a", "mode=sq", "--b", "mode=mq", "--pairs", "10", "--results", "r"];
    let done = dir.mqblk(&args).exits(2);
    done.prints(&["errors in the runs: no verdict\n", "blocks do not hold what was written"]);
    assert!(!done.out.contains("I/Os failed"), "{}", done.out);
    done.says(&["no verdict", "results: r"]);
}

#[test]
fn judge_shows_the_other_jobs_and_lists_names_on_a_wrong_one() {
    let dir = Dir::new("compare");
    dir.file("j.fio", "[global]\nrw=randread\nsize=1m\nioengine=libaio\n[log]\n[scan]\niodepth=8\n");
    let args = ["compare", "j.fio", "--a", "default", "--b", "default", "--target", "model:size=1g", "--judge"];
    let done = dir.mqblk(&[&args[..], &["log"], &SHORT].concat()).exits(0);
    done.prints(&["\n  other job: scan\n  IOPS  ", " --judge log "]);
    dir.mqblk(&[&args[..], &["logs"]].concat()).exits(2).says(&["--judge logs: must be one of the jobs: log, scan"]);
}

#[test]
fn a_killed_comparison_resumes_and_a_foreign_file_is_rejected() {
    let dir = Dir::new("compare");
    dir.file("j.fio", JOB);
    let sides = ["compare", "j.fio", "--a", "mode=sq", "--b", "mode=mq", "--target", "null", "--seed", "5"];
    let args = [&sides[..], &["--runtime", "20ms", "--pairs", "100"]].concat();
    let started = dir.start(&[&args[..], &["--results", "r", "--eta=always"]].concat(), "Pair ");
    started.signal("KILL");
    started.ends();
    let before = fs::read_to_string(dir.path("r")).unwrap();
    let past = lab::results::interrupted(&before, "r").unwrap();
    assert!(past.results.runs.len() < 200 && past.results.comparisons.is_empty());
    let other = [&sides[..], &["--runtime", "20ms", "--pairs", "20", "--resume", "r"]].concat();
    dir.mqblk(&other).exits(2).says(&["--resume r: belongs to another comparison: the plan (--pairs"]);
    let other = [&args[..], &["--set", "queue_depth=8", "--resume", "r"]].concat();
    dir.mqblk(&other).exits(2).says(&["--resume r: belongs to another comparison: a side "]);
    assert_eq!(fs::read_to_string(dir.path("r")).unwrap(), before, "refused, it is as it was");
    let done = dir.mqblk(&[&args[..], &["--resume", "r"]].concat()).exits(0);
    done.prints(&[", 100 pairs, p "]);
    let after = fs::read_to_string(dir.path("r")).unwrap();
    assert!(after.starts_with(&before[..past.kept_bytes]), "what had run is as it was");
    let results = lab::results::read(after.as_bytes(), "r").unwrap();
    assert_eq!((results.runs.len(), !results.comparisons.is_empty()), (200, true));
    let verdict = results.evaluate()[0].verdict;
    let again = dir.mqblk(&[&args[..], &["--resume", "r", "--json"]].concat()).json();
    assert_eq!((number(&again, "/pairs_done"), again["difference"].as_bool()), (100.0, Some(verdict.is_difference())));
}

#[test]
fn pairs_are_as_many_as_a_difference_takes_or_it_says_how_many() {
    let dir = Dir::new("compare");
    dir.file("j.fio", JOB);
    let args =
        ["compare", "j.fio", "--a", "default", "--b", "default", "--target", "null", "--json", "--runtime", "10ms"];
    let v = dir.mqblk(&[&args[..], &["--detect", "90%", "--max-pairs", "400", "--results", "a.jsonl"]].concat()).json();
    let (asked, done) = (number(&v, "/detected/pairs"), number(&v, "/pairs_done"));
    assert!(done >= 12.0 && (asked > 400.0 || done == asked.max(12.0)), "{asked} {done}");
    let v = dir.mqblk(&[&args[..], &["--detect", "0.2%", "--max-pairs", "12", "--results", "b.jsonl"]].concat()).json();
    assert!(number(&v, "/detected/pairs") > 12.0 && number(&v, "/pairs_done") == 12.0, "{v:#}");
    dir.mqblk(&[&args[..], &["--detect", "3%", "--max-pairs", "4"]].concat())
        .exits(2)
        .says(&["--max-pairs 4: must be in 12..="]);
    dir.mqblk(&[&args[..], &["--detect", "much"]].concat())
        .exits(2)
        .says(&["--detect much: must be from 0.2% to 100%"]);
}
