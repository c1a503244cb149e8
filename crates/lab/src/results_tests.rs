// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of `results`: written files can be read back, torn and foreign files are handled, commands survive a shell.

use super::*;
use crate::stage::StageTimes;
use proptest::prelude::*;

fn header(pairs: u32) -> Header {
    Header {
        format: FORMAT,
        setup: Setup { kernel: Some("6.1".into()), cpus: 2, ..Setup::default() },
        command: "mqblk compare oltp.fio --a mode=sq --b mode=mq".into(),
        plan: Plan::new(pairs, 1, 99).unwrap(),
        primary: Metric::Iops,
        labels: vec!["mode=sq".into(), "mode=mq".into()],
        job: "[oltp]\nrw=randread\n".into(),
        started_unix_ms: 1_700_000_000_000,
        detect: None,
        sides: Vec::new(),
    }
}

fn run(plan: &Plan, pair: u32, first: bool) -> RunRecord {
    let side = plan.order(pair)[usize::from(!first)];
    let iops = if side == Side::A { 1000.0 } else { 1250.0 } + f64::from(pair % 3);
    let times = StageTimes { device_ns: 10, n: 1, ..StageTimes::default() };
    RunRecord {
        pair,
        side,
        first,
        metrics: RunMetrics { iops: Some(iops), ..RunMetrics::default() },
        others: Vec::new(),
        stages: Some(StageFacts { times, ios: 1, ..StageFacts::default() }),
        job_cpu_percent: Some(50.0),
        errors: 0,
        verify_errors: 0,
        histograms: vec![RawHistogram {
            job: "oltp".into(),
            dir: "read".into(),
            kind: "clat".into(),
            bins: vec![(10, 1), (20, 3)],
        }],
        detail: None,
    }
}

fn file(planned: u32, pairs: u32) -> Vec<u8> {
    let h = header(planned);
    let mut w = ResultsWriter::new(Vec::new(), "mem".into(), &h).unwrap();
    for pair in 0..pairs {
        w.pair(&[run(&h.plan, pair, true), run(&h.plan, pair, false)]).unwrap();
    }
    w.out
}

#[test]
fn what_is_written_is_read_back_and_evaluates_to_the_same() {
    let text = file(10, 10);
    let results = read(&text[..], "mem").unwrap();
    assert_eq!((results.runs.len(), &results.header, results.cut_off), (20, &header(10), false));
    let all = results.evaluate();
    let [c] = &all[..] else { panic!("{} comparisons of two sides", all.len()) };
    assert_eq!(c.verdict, crate::verdict::Verdict::BIsFaster);
    assert_eq!((c.a.label.as_str(), c.b.stages.as_ref().unwrap().times.n), ("mode=sq", 10));
    assert_eq!(c.a.job_cpu_percent, Some(50.0));
    let again = ResultsWriter { out: text, path: "mem".into() }.finish(&all).unwrap();
    let reread = read(&again[..], "mem").unwrap().comparisons.remove(0);
    assert_eq!(reread.verdict, c.verdict);
    assert_eq!(reread.rows.len(), c.rows.len());
}

#[test]
fn every_cut_of_the_file_keeps_the_whole_pairs_before_it() {
    let text = file(10, 3);
    let newlines: Vec<usize> = text.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(i, _)| i).collect();
    for cut in newlines[0] + 1..text.len() {
        let whole = newlines.iter().filter(|&&n| n < cut).count() - 1;
        let results = read(&text[..cut], "mem").unwrap();
        // A line that only lacks its newline is complete.
        let complete = whole + usize::from(newlines.contains(&cut));
        assert_eq!(results.runs.len(), complete, "cut at {cut}");
        assert_eq!(pairs(&results.runs, 2, [Side::A, Side::B]).len(), complete / 2);
    }
}

#[test]
fn three_sides_are_each_compared_with_the_first() {
    let plan = Plan::new(10, 0, 3).unwrap().of_sides(3).unwrap();
    let labels = vec!["base".into(), "same".into(), "faster".into()];
    let h = Header { plan, labels, ..header(10) };
    let mut w = ResultsWriter::new(Vec::new(), "mem".into(), &h).unwrap();
    for pair in 0..10 {
        let of = |(i, side): (usize, Side)| {
            let iops =
                if side.index() == 2 { 1250.0 } else { 1000.0 } + f64::from((pair * 7 + side.index() as u32) % 3);
            RunRecord {
                side,
                metrics: RunMetrics { iops: Some(iops), ..RunMetrics::default() },
                ..run(&h.plan, pair, i == 0)
            }
        };
        w.pair(&plan.order(pair).into_iter().enumerate().map(of).collect::<Vec<_>>()).unwrap();
    }
    let text = w.out.clone();
    let results = read(&text[..], "mem").unwrap();
    let all = results.evaluate();
    let verdicts: Vec<_> = all.iter().map(|c| (c.side.letter(), c.verdict, c.b.label.as_str())).collect();
    let [no, faster] = [crate::verdict::Verdict::NoDifferenceShown, crate::verdict::Verdict::BIsFaster];
    assert_eq!(verdicts, [('B', no, "same"), ('C', faster, "faster")]);
    let whole = ResultsWriter { out: text, path: "mem".into() }.finish(&all).unwrap();
    assert_eq!(read(&whole[..], "mem").unwrap().comparisons.len(), 2);
    // A round that was cut off is run again.
    let runs: Vec<&str> = std::str::from_utf8(&whole).unwrap().lines().take(1 + 8).collect();
    let past = interrupted(&(runs.join("\n") + "\n"), "mem").unwrap();
    assert_eq!((past.results.runs.len(), past.results.evaluate()[1].pairs_done), (6, 2));
    // Without its last line, the comparison has no result.
    let lines: Vec<&str> = std::str::from_utf8(&whole).unwrap().lines().collect();
    let cut = lines[..lines.len() - 1].join("\n");
    assert!(read(cut.as_bytes(), "mem").unwrap().comparisons.is_empty());
}

#[test]
fn foreign_and_damaged_files_are_refused_with_the_line() {
    let error = |text: &[u8]| read(text, "r.jsonl").unwrap_err().to_string();
    assert!(error(b"").contains("line 1: the file is empty"));
    assert!(error(b"{\"fio version\": 1}\n").contains("r.jsonl, line 1"));
    let text = String::from_utf8(file(10, 2)).unwrap();
    assert!(error(text.replacen("\"format\":1", "\"format\":7", 1).as_bytes()).contains("format 7"));
    let lines: Vec<&str> = text.lines().collect();
    assert!(error([lines[0], "garbage", lines[1]].join("\n").as_bytes()).contains("line 2"));
    assert!(error([lines[0], lines[2]].join("\n").as_bytes()).contains("where the plan has"));
    assert!(error(lines[1].as_bytes()).contains("first line is not a setup line"));
    assert!(error([lines[0], lines[0]].join("\n").as_bytes()).contains("line 2: unexpected setup"));
}

#[test]
fn an_existing_file_is_never_overwritten() {
    let path = std::env::temp_dir().join(format!("mqblk-results-{}.jsonl", std::process::id()));
    std::fs::write(&path, "precious").unwrap();
    let text = ResultsWriter::create(&path, &header(10)).unwrap_err().to_string();
    let kept = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(kept, "precious");
    assert!(text.contains("never overwritten"), "{text}");
}

#[test]
fn a_created_file_holds_each_pair_as_soon_as_it_is_written() {
    let path = std::env::temp_dir().join(format!("mqblk-results-live-{}.jsonl", std::process::id()));
    let h = header(10);
    let mut w = ResultsWriter::create(&path, &h).unwrap();
    w.pair(&[run(&h.plan, 0, true), run(&h.plan, 0, false)]).unwrap();
    let seen = read(std::io::BufReader::new(File::open(&path).unwrap()), "live").unwrap();
    drop(w);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(seen.runs.len(), 2);
}

#[test]
fn commands_are_quoted_only_where_needed() {
    let args = ["mqblk", "compare", "a b.fio", "--b", "mode=mq,nr_hw_queues=4", "it's", "", "$HOME"];
    assert_eq!(replay_command(&args), "mqblk compare 'a b.fio' --b mode=mq,nr_hw_queues=4 'it'\\''s' '' '$HOME'");
}

proptest! {
    /// Undoes the quoting with the two shell rules that it uses: single quotes, and a backslash outside them.
    #[test]
    fn a_shell_reads_the_arguments_back(args in prop::collection::vec("[ -~]{0,12}", 0..6)) {
        let (mut got, mut word, mut any, mut quoted, mut escaped) = (Vec::new(), String::new(), false, false, false);
        for c in replay_command(&args).chars() {
            match c {
                _ if escaped => { word.push(c); escaped = false; }
                '\'' => { quoted = !quoted; any = true; }
                '\\' if !quoted => { escaped = true; any = true; }
                ' ' if !quoted => { got.push(std::mem::take(&mut word)); any = false; }
                _ => { word.push(c); any = true; }
            }
        }
        if any || !args.is_empty() { got.push(word); }
        prop_assert_eq!(got, args);
    }
}

#[test]
fn an_interrupted_file_keeps_its_whole_pairs() {
    let text = String::from_utf8(file(10, 3)).unwrap();
    for cut in text.find('\n').unwrap() + 1..=text.len() {
        let past = interrupted(&text[..cut], "f").unwrap();
        let kept = &text[..past.kept_bytes];
        assert!(kept.ends_with('\n') && kept.len() <= cut && past.results.runs.len() + 1 == kept.lines().count());
        assert!(past.results.runs.len().is_multiple_of(2) && past.results.comparisons.is_empty());
    }
    assert_eq!(interrupted(&text, "f").unwrap().kept_bytes, text.len());
    assert!(interrupted("", "f").is_err() && interrupted("{\"type\"", "f").is_err());
}
