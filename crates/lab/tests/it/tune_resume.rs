// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A tuning that is killed after any of its runs and resumed gives the same file and result as an uninterrupted one.

use crate::synthetic;

use lab::tune::journal;
use lab::tune::point::Point;
use synthetic::{Machine, plan, tune_from};

fn effect(p: &Point) -> (f64, f64) {
    let queues = if p.get("nr_hw_queues") == Some("2") { 0.2 } else { 0.0 };
    let bfq = if p.get("scheduler") == Some("bfq") { (0.3, -0.4) } else { (0.0, 0.0) };
    (queues + bfq.0, bfq.1)
}

fn machine() -> Machine {
    Machine::new(effect, 0.01, 11)
}

#[test]
fn killed_after_any_run_it_ends_the_same() {
    let plan = journal::TunePlan { budget_seconds: 300.0, ..plan(&["b.bw>=90%"], 17) };
    let mut whole = Vec::new();
    let want = tune_from(&mut machine(), &plan, Vec::new(), &mut whole).unwrap();
    assert!(want.runs > 50);
    for k in 0..want.runs {
        let mut out = Vec::new();
        let mut dies = Machine { dies_at: k, ..machine() };
        assert_eq!(tune_from(&mut dies, &plan, Vec::new(), &mut out), Err(journal::Halt::Stopped), "run {k}");
        // The line that was being written when the tuning was killed.
        out.extend_from_slice(br#"{"type":"run","index":"#);
        let past = journal::read(std::str::from_utf8(&out).unwrap(), "f").unwrap();
        assert_eq!((past.runs.len() as u32, past.result.is_some()), (k, false));
        past.fits(&plan, "f").unwrap();
        out.truncate(past.whole_bytes);
        let mut goes_on = machine();
        goes_on.skip(k);
        let got = tune_from(&mut goes_on, &plan, past.runs, &mut out).unwrap();
        assert_eq!(got, want, "killed after run {k}");
        assert!(out == whole, "the file of a tuning killed after run {k} differs");
    }
}

#[test]
fn another_tuning_s_file_is_refused() {
    let p = plan(&[], 17);
    let mut out = Vec::new();
    tune_from(&mut Machine { dies_at: 9, ..machine() }, &p, Vec::new(), &mut out).unwrap_err();
    let past = journal::read(std::str::from_utf8(&out).unwrap(), "f").unwrap();
    let refused = |other: &journal::TunePlan| past.fits(other, "f").unwrap_err();
    assert!(refused(&plan(&[], 18)).contains("the seed (--seed) differs; the file's command: test"));
    assert!(refused(&plan(&["b.bw>=90%"], 17)).contains("the list of limits (--keep) differs"));
    // A different machine with the same plan: the first run that does not match is reported.
    let mut runs = past.runs;
    runs[3].ask.entropy += 1;
    let e = tune_from(&mut machine(), &p, runs, &mut Vec::from("x")).unwrap_err().to_string();
    assert!(e.contains("run 3 of the file is default"), "{e}");
}

#[test]
fn what_is_no_such_file_is_refused() {
    for (text, reason) in
        [("", "no complete line"), ("{}\n", "line 1"), ("{\"type\":\"run\"}\n", "line 1"), ("junk\n", "line 1")]
    {
        let e = journal::read(text, "f.jsonl").unwrap_err();
        assert!(e.starts_with("f.jsonl, line 1") && e.contains(reason) && e.contains("mqblk tune wrote"), "{e}");
    }
}
