// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk run --trace` from the outside, read by Debian's blkparse and btt.

use crate::common;

use common::Dir;
use std::fs;
use std::process::Command;

const JOB: &str = "[writer]\nrw=randwrite\nsize=1m\nbs=4k\nioengine=io_uring\niodepth=8\niodepth_batch_submit=8\n";

/// Runs one of blktrace's programs in the directory. Returns its output.
fn tool(dir: &Dir, program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).current_dir(dir.as_path()).output();
    let out = out.unwrap_or_else(|e| panic!("{program}: {e}; it is in the package blktrace"));
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        out.status.success() && out.stderr.is_empty(),
        "{program}: {}\n{text}",
        String::from_utf8_lossy(&out.stderr)
    );
    text
}

/// Returns CPU, sequence number, action and the rest of each line of blkparse that is an event of a bio, request or plug.
fn events(text: &str) -> Vec<(u32, u32, String, String)> {
    let line = |l: &str| {
        let f: Vec<&str> = l.split_whitespace().collect();
        let known = f.first() == Some(&"259,0") && f.len() > 6;
        known.then(|| (f[1].parse().unwrap(), f[2].parse().unwrap(), f[5].to_owned(), f[6..].join(" ")))
    };
    text.lines().filter_map(line).collect()
}

#[test]
fn blkparse_and_btt_read_what_was_traced() {
    let dir = Dir::new("trace");
    dir.file("j.fio", JOB);
    dir.file("t.blktrace.7", "not a trace: of another run");
    dir.file("t.blktrace.1", "not a trace either");
    let settings = ["--set", "nr_cpus=1", "--set", "scheduler=mq-deadline"];
    let flags = ["run", "j.fio", "--target", "ram:size=2m", "--trace", "t"];
    dir.mqblk(&[&flags[..], &settings[..]].concat()).exits(0);
    let text = tool(&dir, "blkparse", &["-i", "t", "-d", "t.bin"]);
    let events = events(&text);
    let count = |action: &str| events.iter().filter(|e| e.2 == action).count();
    assert_eq!(count("Q"), 256, "{text}");
    assert_eq!(count("D") + count("M") + count("F"), 256, "every bio is issued or merged\n{text}");
    assert_eq!((count("C"), count("P")), (count("D"), count("U")), "{text}");
    // The order is the one in which events were written: blkparse sorts by time, and sequence numbers ascend on the only CPU.
    assert!(events.windows(2).all(|w| w[0].0 == 0 && w[0].1 < w[1].1), "{text}");
    let queued = events.iter().find(|e| e.2 == "Q").unwrap();
    assert!(queued.3.starts_with("W ") && queued.3.ends_with(" + 8 [writer]"), "{queued:?}");
    let unplug = events.iter().find(|e| e.2 == "U").unwrap();
    assert_eq!(unplug.3, "N [writer] 8", "{text}");
    assert!(text.contains("Events (t): ") && text.contains("Skips: 0 forward"), "{text}");
    let btt = tool(&dir, "btt", &["-i", "t.bin"]);
    for (stage, n) in [("Q2Q", 255), ("D2C", 256), ("Q2C", 256)] {
        let line = btt.lines().find(|l| l.starts_with(stage)).unwrap_or_else(|| panic!("{stage} in\n{btt}"));
        assert_eq!(line.split_whitespace().last(), Some(n.to_string().as_str()), "{line}\n{text}");
    }
}

#[test]
fn chrome_s_layout_is_json_and_what_does_not_fit_is_said() {
    let dir = Dir::new("trace");
    dir.file("j.fio", JOB);
    let flags = ["run", "j.fio", "--target", "null", "--trace", "t", "--trace-format=chrome", "--trace-events=50"];
    let done = dir.mqblk(&flags).exits(0);
    done.says(&["the trace has 50 events; ", "--trace-events=50 limits each thread"]);
    let doc: serde_json::Value = serde_json::from_slice(&fs::read(dir.path("t.json")).unwrap()).unwrap();
    assert_eq!(doc["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "i").count(), 50);
    assert_eq!(dir.list(), ["j.fio", "t.json"]);
}

#[test]
fn an_unwritable_trace_stops_the_run_before_it_begins() {
    let dir = Dir::new("trace");
    dir.file("j.fio", JOB);
    let done = dir.mqblk(&["run", "j.fio", "--target", "data", "--trace", "none/t"]).exits(2);
    done.says(&["trace file 'none/t.blktrace.0' cannot be written; name a prefix"]);
    assert_eq!(dir.list(), ["j.fio"]);
    dir.mqblk(&["run", "j.fio", "--trace-events=5"]).exits(2).says(&["--trace"]);
}
