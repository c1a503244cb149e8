// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk tune` from the outside, on the real-time model of a device with known limits and latency.

use crate::common;

use common::{Dir, number};
use std::fs;

const JOB: &str = "[global]\nioengine=libaio\nbs=4k\nsize=64m\n[a]\nrw=randread\niodepth=32\n";
/// 6 ms per I/O, so that the machine's own speed matters little and the depth decides.
const SLOW: &str = "model:size=1g,lat_us=6000,parallel=64";
/// More than these searches need, and too little for the probes of the device, which take some seconds.
const BUDGET: &str = "70s";

fn tune<'a>(target: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    tune_with_runtime("100ms", target, more)
}

fn tune_with_runtime<'a>(runtime: &'a str, target: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let args = ["tune", "j.fio", "--target", target, "--maximize", "a.iops", "--runtime", runtime, "--seed", "1"];
    [&args[..], more].concat()
}

/// One hardware queue of four tags under a depth of 32. The recommendation is more tags, and the reason is the wait for tags.
#[test]
fn a_starving_queue_depth_is_found_confirmed_and_explained() {
    let dir = Dir::new("tune");
    dir.file("j.fio", JOB);
    let search = ["--set", "queue_depth=4", "--set", "nr_hw_queues=1", "--knob", "queue_depth=4,8,64"];
    let form = ["--budget", BUDGET, "--results", "r.jsonl", "--print", "sysfs,toml,qemu", "--apply", "best.toml"];
    let done = dir.mqblk(&tune(SLOW, &[&search[..], &form].concat())).exits(0);
    done.prints(&[
        "queue_depth=64 is better than the default: a.iops +",
        "\nwhy\n  tag wait ",
        ": time waiting for a free tag\n",
        "# not in this form: queue_depth=64 (a parameter of the driver",
        "-device virtio-blk-pci,drive=DRIVE,queue-size=64\n",
        "repeat: mqblk tune j.fio ",
    ]);
    done.says(&["results: r.jsonl\n"]);
    let toml = fs::read_to_string(dir.path("best.toml")).unwrap();
    assert!(toml.contains("[disk.queue]\nqueue_depth = 64\n"), "{toml}");
    dir.mqblk(&["serve", "best.toml", "--dry-run"]);
    let text = fs::read_to_string(dir.path("r.jsonl")).unwrap();
    let past = lab::tune::journal::read(&text, "r.jsonl").unwrap();
    let result = past.result.unwrap();
    assert_eq!(result.runs as usize, past.runs.len());
    let ratio = result.against_default.unwrap().ratio.unwrap().ratio;
    assert!(ratio > 3.0, "32 in flight instead of 4: {ratio}");
    // A finished search is reported again without a run.
    let again = [&search[..], &["--budget", BUDGET, "--resume", "r.jsonl", "--json"]].concat();
    let v = dir.mqblk(&tune(SLOW, &again)).exits(0).json();
    assert_eq!(
        (v["result"]["winner"]["queue_depth"].as_str(), number(&v, "/result/runs")),
        (Some("64"), f64::from(result.runs))
    );
}

#[test]
fn killed_it_is_gone_on_with_and_another_s_file_is_refused() {
    let dir = Dir::new("tune");
    dir.file("j.fio", JOB);
    let search = ["--set", "queue_depth=4", "--set", "nr_hw_queues=1", "--knob", "queue_depth=8", "--budget", BUDGET];
    let first = tune(SLOW, &[&search[..], &["--results", "r", "--eta=always"]].concat());
    let started = dir.start(&first, "confirming");
    started.signal("KILL");
    started.ends();
    let before = fs::read_to_string(dir.path("r")).unwrap();
    let ran = lab::tune::journal::read(&before, "r").unwrap().runs.len();
    assert!(ran > 7, "{before}");
    dir.mqblk(&tune(SLOW, &[&search[..], &["--resume", "r", "--detect", "9%"]].concat()))
        .exits(2)
        .says(&["--resume r: belongs to another tuning: --detect differs; the file's command: mqblk tune j.fio"]);
    dir.mqblk(&tune(SLOW, &[&search[..], &["--resume", "r"]].concat())).exits(0).prints(&["queue_depth=8 is better"]);
    let after = fs::read_to_string(dir.path("r")).unwrap();
    let kept = lab::tune::journal::read(&before, "r").unwrap().whole_bytes;
    assert!(after.starts_with(&before[..kept]), "what had run is as it was");
    assert!(lab::tune::journal::read(&after, "r").unwrap().result.is_some());
}

#[test]
fn ctrl_c_says_how_to_go_on() {
    let dir = Dir::new("tune");
    dir.file("j.fio", JOB);
    let args = tune(SLOW, &["--knob", "queue_depth=8", "--budget", BUDGET, "--results", "r", "--eta=always"]);
    let started = dir.start(&args, "first run of the default");
    started.signal("INT");
    started.ends().exits(130).says(&["interrupted; resume with: mqblk tune j.fio ", " --resume r\n"]);
}

/// A disk with limits and a burst, in virtual time: no other load changes what is found.
const CAPPED: &str = "[machine]\nsockets = 1\ncores = 2\nthreads = 1\n[disk]\nattach = \"scsi\"\nsize_gib = 1\nread_us = 500\n\
                      write_us = 500\nparallel = 64\nqueue_depth = 64\niops = 20000\nbw_mb = 2000\nburst_ms = 250\n";

/// No setting reaches twice the limit of a capped device.
#[test]
fn an_unreachable_limit_reports_the_best_value_and_the_caps() {
    let dir = Dir::new("tune");
    dir.file("m.toml", CAPPED);
    the_caps_are_found(&dir, "sim:m.toml", 20_000.0, 2e9, (0.02, 0.02));
}

/// Tunes on a device with a burst of 250 ms. The rates that are found, and the credit, differ from the truth by less than these fractions.
fn the_caps_are_found(dir: &Dir, target: &str, iops: f64, bytes_per_second: f64, (rate_by, credit_by): (f64, f64)) {
    dir.file("j.fio", JOB);
    let args = ["--knob", "nomerges=1", "--keep", "all.bw>=200%", "--budget", "90s", "--results", "r", "--json"];
    let v = dir.mqblk(&tune(target, &args)).exits(1).json();
    assert_eq!(v["result"]["verdict"], "cannot_keep", "{v:#}");
    let headline = v["headline"].as_str().unwrap();
    assert!(headline.starts_with("all.bw>=200%: no setting keeps that; the best that is possible: "), "{headline}");
    let find = |kind: &str| {
        let all = v["result"]["findings"].as_array().unwrap();
        all.iter().find(|f| f["finding"] == kind).unwrap_or_else(|| panic!("no {kind}: {all:#?}"))
    };
    let near = |found: f64, want: f64, by: f64| assert!((found / want - 1.0).abs() < by, "{found} for {want}");
    near(number(find("iops_cap"), "/iops"), iops, rate_by);
    near(number(find("bandwidth_cap"), "/bytes_per_second"), bytes_per_second, rate_by);
    near(number(find("burst"), "/base"), iops, rate_by);
    near(number(find("burst"), "/credit"), 0.25 * iops, credit_by);
}

/// A SATA disk has one queue of 32 tags, whatever depth would help more. The page names the cap under the recommendation, and
/// the knobs that small random reads never meet.
#[test]
fn a_disk_s_ends_and_knobs_without_effect_are_known() {
    let dir = Dir::new("tune");
    dir.file("j.fio", "[a]\nrw=randread\nbs=4k\nioengine=libaio\ndirect=1\niodepth=128\nsize=512m\n");
    let disk = "attach = \"scsi\"\nhw_queues = 1\nqueue_depth = 32\nsize_gib = 1\nread_us = 400\nwrite_us = 400\n";
    let machine =
        format!("[machine]\nsockets = 1\ncores = 4\nthreads = 1\n[disk]\n{disk}[settings]\nlun_queue_depth = 2\n");
    dir.file("m.toml", &machine);
    let done = dir.mqblk(&tune("sim:m.toml", &["--budget", "5m", "--results", "r"])).exits(0);
    done.prints(&[
        "lun_queue_depth=32 is better than the default: a.iops +1",
        "note: not searched: nr_hw_queues: 1 is the only value\n",
        "note: not searched: max_sectors_kb: 1024: no I/O is larger, and random I/O does not merge\n",
        "iosched.write_expire, iosched.write_lat_nsec: no job writes\n",
    ]);
    // Without iops the device does as many I/Os as it gets: 32 tags are no cap of it.
    assert!(!done.out.contains("capped"), "{}", done.out);
    dir.file("m.toml", &machine.replace("[settings]", "iops = 40000\n[settings]"));
    let done = dir.mqblk(&tune("sim:m.toml", &["--budget", "5m", "--results", "capped"])).exits(0);
    done.prints(&[
        "is better than the default",
        " IOPS under the recommended settings: reads of 4 and 16 KiB reach it",
    ]);
    let rejected = |knob: &str, says: &str| {
        dir.mqblk(&tune("sim:m.toml", &["--knob", knob, "--results", "no"])).exits(2).says(&[says]);
    };
    rejected("queue_depth=64", "--knob queue_depth=64: this disk can have 1..=32; name values in that range");
    rejected("wbt_lat_usec", "--knob wbt_lat_usec: has no effect here: it delays only discards");
}

/// Four paths that each serve four I/Os at a time. The recommendation is one group of all paths, in the text of the target.
#[test]
fn how_paths_are_used_is_searched_and_stands_in_the_target() {
    let dir = Dir::new("tune");
    dir.file("j.fio", JOB);
    let path = "model:size=1g,lat_us=20000,parallel=4";
    let target = format!("multipath:{path}+{path}+{path}+{path}");
    // So large that the search ends by itself, also on a busy machine: one that uses up its budget finds less, or nothing.
    let budget = ["--budget", "5m"];
    let search = ["--knob", "path_grouping_policy", "--knob", "path_selector=queue-length"];
    let form = ["--results", "r", "--json", "--print", "toml,sysfs"];
    // Runs are long compared with the times for which a busy machine stops a thread.
    let args = tune_with_runtime("300ms", &target, &[&search[..], &budget, &form].concat());
    let v = dir.mqblk(&args).exits(0).json();
    assert_eq!(v["result"]["winner"]["path_grouping_policy"], "multibus", "{v:#}");
    assert!(number(&v, "/result/against_default/ratio/ratio") > 2.0);
    let toml = v["forms"]["toml"].as_str().unwrap();
    assert!(toml.contains("path_grouping_policy=multibus") && !toml.contains("path_grouping_policy ="), "{toml}");
    assert!(v["forms"]["sysfs"].as_str().unwrap().contains("(a multipath setting"));
    assert!(!v["plan"]["knobs"].to_string().contains("paths"), "fewer paths only where that is asked for");
}

#[test]
fn what_cannot_be_is_refused_and_leaves_nothing() {
    let dir = Dir::new("tune");
    dir.file("j.fio", JOB).file("there", "mine");
    let refused = |args: &[&str], says: &str| {
        dir.mqblk(&[&["tune", "j.fio", "--target", "null"], args].concat()).exits(2).says(&[says]);
        assert_eq!(dir.list(), ["j.fio", "there"], "{args:?}");
    };
    refused(&["--maximize", "b.iops"], "there is no job 'b'");
    refused(&["--maximize", "a.iosp"], "did you mean 'iops'?");
    refused(&["--maximize", "a.p99"], "use --minimize a.p99");
    let max = ["--maximize", "a.iops"];
    let with = |more: &[&'static str]| [&max[..], more].concat();
    refused(&with(&["--keep", "a.bw=3"]), "must be JOB.METRIC>=BOUND");
    refused(&with(&["--knob", "schedulr"]), "did you mean 'scheduler'?");
    refused(&with(&["--free", "iodept=1..8"]), "did you mean 'iodepth'?");
    refused(&with(&["--budget", "3s", "--runtime", "1s"]), "give --budget 4");
    refused(&with(&["--fix", "queue_depth=0"]), "queue_depth=0: must be 1..=10240");
    refused(&with(&["--apply", "there"]), "--apply there: exists");
    refused(&with(&["--resume", "there"]), "--resume there, line 1: there is no complete line");
    refused(&with(&["--resume", "nowhere"]), "--resume nowhere: No such file");
    assert_eq!(fs::read_to_string(dir.path("there")).unwrap(), "mine");
}

/// Run by `cargo xtask test --deep`.
mod deep {
    use super::*;

    /// In real time, where each limit is found within a second, other load changes the credit most.
    #[test]
    fn the_caps_of_a_device_in_real_time_are_found() {
        let target = "model:size=1g,lat_us=500,parallel=64,iops=250,bw=50m,burst_ms=250";
        the_caps_are_found(&Dir::new("tune"), target, 250.0, f64::from(50 << 20), (0.2, 0.9));
    }
}
