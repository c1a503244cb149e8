// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Traces: what is read from them, what is refused, and when a replay issues their I/Os.

use crate::common::{Harness, MIB};
use blk::time::Instant;
use sim::rng::Rng;
use std::io::Cursor;
use workload::job::{Dir, Extent, Job, JobFile, ParseContext, PerDir};
use workload::replay::blktrace::{Record, action, category};
use workload::replay::{Replay, ReplayOptions, TraceError, TraceFile, TraceOp};

const V3: &str = "fio version 3 iolog
10 a add
12 b add
20 a open
25 b open
30 a read 0 4096
1030 a write 8192 8192
1040 b trim 4096 4096
1050 a sync 8192 0
3050 b datasync 0 0
3060 b read 8192 12288
3061 a close
";
const V2: &str = "fio version 2 iolog\na add\na open\na read 0 4096\na wait 5 0\na write 512 1024\na close\n";

fn file(name: &str, bytes: impl AsRef<[u8]>) -> TraceFile {
    TraceFile { name: name.to_owned(), from: Box::new(Cursor::new(bytes.as_ref().to_vec())) }
}

fn read(bytes: impl AsRef<[u8]>, options: &ReplayOptions) -> Result<Replay, TraceError> {
    Replay::read(vec![vec![file("t", bytes)]], options)
}

/// Each step: its operation, file, offset, length and delay (microseconds; of a wait milliseconds).
fn steps(replay: &Replay) -> Vec<(TraceOp, usize, u64, u32, u64)> {
    let unit = |op| if op == TraceOp::Wait { 1 } else { 1000 };
    replay.of(0).iter().map(|io| (io.op(), io.file(), io.offset, io.len, io.delay / unit(io.op()))).collect()
}

const READ: TraceOp = TraceOp::Io(Dir::Read);
const WRITE: TraceOp = TraceOp::Io(Dir::Write);
const TRIM: TraceOp = TraceOp::Io(Dir::Trim);

#[test]
fn a_log_has_its_ios_files_and_times() {
    let replay = read(V3, &ReplayOptions::default()).unwrap();
    let expected = vec![
        (READ, 0, 0, 4096, 20),
        (WRITE, 0, 8192, 8192, 1000),
        (TRIM, 1, 4096, 4096, 10),
        (TraceOp::Sync, 0, 0, 0, 10),
        (TraceOp::Sync, 1, 0, 0, 2000),
        (READ, 1, 8192, 12288, 10),
    ];
    assert_eq!(steps(&replay), expected);
    let files: Vec<(&str, u64)> = replay.files.iter().map(|f| (f.name.as_str(), f.reach)).collect();
    assert_eq!(files, [("a", 16384), ("b", 20480)]);
    assert_eq!((replay.offset_unit, replay.length_unit), (4096, 4096));
    assert_eq!(replay.longest, PerDir { read: 12288, write: 8192, trim: 4096 });
    assert_eq!(replay.shortest, PerDir { read: 4096, write: 8192, trim: 4096 });
    let replay = read(V2, &ReplayOptions::default()).unwrap();
    assert_eq!(steps(&replay), [(READ, 0, 0, 4096, 0), (TraceOp::Wait, 0, 0, 0, 5), (WRITE, 0, 512, 1024, 0)]);
    assert_eq!((replay.offset_unit, replay.length_unit), (512, 1024));
    // Two runs that were appended to one file; the first one's last line is a microsecond after its last I/O.
    let twice = read(format!("{V3}\n{V3}"), &ReplayOptions::default()).unwrap();
    assert_eq!(steps(&twice)[6..], [&[(READ, 0, 0, 4096, 21)], &expected[1..]].concat());
}

#[test]
fn options_change_what_is_replayed() {
    let scaled = ReplayOptions { scale: 3, align: 512, time_scale_pct: 200, ..ReplayOptions::default() };
    let of = |options: &ReplayOptions| steps(&read(V3, options).unwrap());
    let first: Vec<_> = of(&scaled)[..3].to_vec();
    assert_eq!(first, [(READ, 0, 0, 4096, 9), (WRITE, 0, 2560, 8192, 500), (TRIM, 1, 1024, 4096, 5)]);
    let fast = of(&ReplayOptions { no_stall: true, ..ReplayOptions::default() });
    assert!(fast.iter().all(|step| step.4 == 0) && fast.len() == 6);
    let v2 = read(V2, &ReplayOptions { no_stall: true, ..ReplayOptions::default() }).unwrap();
    assert_eq!(steps(&v2).len(), 2);
    let one = read(V3, &ReplayOptions { redirect: Some("x".into()), ..ReplayOptions::default() }).unwrap();
    assert!(one.files.len() == 1 && one.files[0].name == "x" && steps(&one).iter().all(|step| step.1 == 0));
    // What is left out keeps its time.
    let skip = PerDir { write: true, trim: true, read: false };
    let reads = of(&ReplayOptions { skip, skip_sync: true, ..ReplayOptions::default() });
    assert_eq!(reads, [(READ, 0, 0, 4096, 20), (READ, 1, 8192, 12288, 3030)]);
}

/// A record of device 8,16.
fn record(time_ns: u64, sector: u64, bytes: u32, act: u32, categories: u32) -> Vec<u8> {
    let action = act | categories << 16;
    Record { time_ns, sector, bytes, action, device: 8 << 20 | 16, ..Record::default() }.to_bytes().to_vec()
}

fn binary() -> Vec<Vec<u8>> {
    let q = |time, sector, bytes, c| record(time, sector, bytes, action::QUEUE, category::QUEUE | c);
    let c = |time, sector, bytes| record(time, sector, bytes, action::COMPLETE, category::COMPLETE | category::READ);
    vec![
        record(0, 0, 0, 0, category::NOTIFY),
        q(1_000, 8, 4096, category::READ),
        q(3_500, 16, 4096, category::READ),
        record(3_600, 16, 4096, action::GETRQ, category::QUEUE | category::READ),
        c(9_000, 8, 4096),
        q(10_000, 0, 0, category::READ | category::FLUSH),
        q(20_000, 32, 8192, category::WRITE | category::FLUSH),
        q(30_000, 64, 1 << 31, category::WRITE | category::DISCARD),
    ]
}

#[test]
fn submissions_of_a_binary_trace_are_replayed() {
    let options = ReplayOptions { redirect: Some("x".into()), ..ReplayOptions::default() };
    let expected = [
        (READ, 0, 4096, 4096, 0),
        (READ, 0, 8192, 4096, 2),
        (TraceOp::Sync, 0, 0, 0, 6),
        (TraceOp::Sync, 0, 0, 0, 10),
        (WRITE, 0, 16384, 8192, 0),
        (TRIM, 0, 32768, 1 << 31, 10),
    ];
    let replay = read(binary().concat(), &options).unwrap();
    assert_eq!(steps(&replay), expected);
    assert_eq!(replay.depth, Some(2));
    // Records of two CPUs.
    let (odd, even): (Vec<_>, Vec<_>) = binary().into_iter().enumerate().partition(|(i, _)| i % 2 == 1);
    let joined = |records: Vec<(usize, Vec<u8>)>| records.into_iter().flat_map(|(_, r)| r).collect::<Vec<u8>>();
    let both = Replay::read(vec![vec![file("t.0", joined(even)), file("t.1", joined(odd))]], &options).unwrap();
    assert_eq!(steps(&both), expected);
    // Idle CPUs have empty files.
    let idle = |name| file(name, "");
    let files = vec![idle("t.0"), file("t.1", binary().concat()), idle("t.2")];
    let one_busy = Replay::read(vec![files], &options).unwrap();
    assert_eq!(steps(&one_busy), expected);
    let read_at = |ns| record(ns, 8, 512, action::QUEUE, category::QUEUE | category::READ);
    let close = read((0..4).map(|i| read_at(1000 + 400 * i)).collect::<Vec<_>>().concat(), &options).unwrap();
    assert_eq!(close.of(0).iter().map(|io| io.delay).collect::<Vec<_>>(), [0, 400, 400, 400]);
}

#[test]
fn what_is_no_trace_is_refused_with_its_place() {
    let v3 = |line: &str| format!("fio version 3 iolog\n0 a add\n0 a open\n0 b add\n{line}\n");
    let v2 = |line: &str| format!("fio version 2 iolog\na add\na open\n{line}\n");
    for (text, says) in [
        (String::new(), "'t', line 1: is ''"),
        ("fio version 1 iolog\n".into(), "line 1: is 'fio version 1 iolog': must be"),
        ("fio version 3 iolog\n".into(), "'t': has no I/O to replay"),
        (v3(""), "has no I/O to replay"),
        (v3("1 a read 0"), "line 5: '1 a read 0': has an offset and no length"),
        (v3("a read 0 4096"), "line 5: 'a read 0 4096': time 'a' is not a number"),
        (v3("1 a"), "has too few fields"),
        (v3("1 a read 0 4096 7"), "has too many fields"),
        (v3("1 a read x 4096"), "offset 'x' is not a number"),
        (v3("1 a read +1 4096"), "offset '+1' is not a number"),
        (v3("1 a read 0 18446744073709551616"), "length '18446744073709551616' is not a number"),
        (v3("1 a read 0 0"), "has no bytes"),
        (v3("1 a read 0 1073741825"), "must be at most 1073741824"),
        (v3("1 a read 0 4294967296"), "4294967296 bytes: must be at most 1073741824"),
        (v3("1 a trim 0 4294967296"), "4294967296 bytes: must be at most 4294967295"),
        (v3("1 a read 9223372036854775807 1"), "end beyond the largest file offset"),
        (v3("1 a read 18446744073709551615 4096"), "end beyond the largest file offset"),
        (v3("1 a wait 5 0"), "version 3 has no wait"),
        (v3("1 a copy 5 0"), "action 'copy' is not known"),
        (v3("1 a remove"), "action 'remove' is not known"),
        (v3("1 b read 0 1"), "the file is not open"),
        (v3("1 c read 0 1"), "the file was not added"),
        (v3("1 c open"), "the file was not added"),
        (v2("1 a read 0 4096"), "line 4: '1 a read 0 4096': has too many fields"),
        (v2("a"), "has too few fields"),
        (v2(&"x".repeat(5000)), "is longer than 4096 bytes"),
    ] {
        let e = read(&text, &ReplayOptions::default()).expect_err(&text);
        assert!(e.rule.contains(says) && !e.remedy.is_empty(), "{text}: {e:?}");
    }
    assert!(
        read(b"fio version 3 iolog\n0 \xff add\n", &ReplayOptions::default())
            .unwrap_err()
            .rule
            .contains("line 2: is not UTF-8")
    );
    let mut cut = binary().concat();
    cut.pop();
    let e = read(&cut, &ReplayOptions::default()).unwrap_err();
    assert!(e.rule.ends_with("at byte 336: incomplete last record"), "{e:?}");
    assert!(e.remedy.starts_with("cut it off with 'truncate -s 336 FILE'"), "{e:?}");
}

/// Mutated traces give a replay or an error.
#[test]
fn no_trace_makes_the_reader_panic() {
    let corpus = [V3.as_bytes().to_vec(), V2.as_bytes().to_vec(), binary().concat()];
    let mut random = Rng::new(7);
    let options = ReplayOptions { scale: 2, align: 4096, time_scale_pct: 7, ..ReplayOptions::default() };
    let mut good = 0;
    for case in 0..6000 {
        let mut bytes = corpus[case % 3].clone();
        for _ in 0..1 + random.below(3) {
            let at = random.below(bytes.len() as u64) as usize;
            match random.below(3) {
                0 => bytes[at] = random.below(256) as u8,
                1 => bytes.truncate(at.max(1)),
                _ => bytes.insert(at, b"0 9\nx\xff"[random.below(6) as usize]),
            }
        }
        good += u32::from(read(&bytes, &options).is_ok());
    }
    assert!((100..5900).contains(&good), "{good}");
}

/// The job of a file whose traces are `text`.
fn job(options: &str, text: &str) -> (Job, Vec<String>) {
    let traces = |name: &str| Ok(vec![file(name, text)]);
    let context = ParseContext { traces: &traces, ..ParseContext::bare("j.fio") };
    let file = JobFile::parse_str(&format!("[j]\nread_iolog=t\n{options}"), &context, &[]);
    let JobFile { mut jobs, warnings, .. } = file.unwrap_or_else(|e| panic!("{e}"));
    (jobs.remove(0), warnings.iter().map(ToString::to_string).collect())
}

#[test]
fn the_trace_decides_what_the_job_is() {
    let (j, warnings) = job("rw=randwrite\nsize=1g\nbs=64k\nloops=3\nrate_iops=5\n", V3);
    assert_eq!((j.filename.as_slice(), j.nr_files()), (["a".to_owned(), "b".to_owned()].as_slice(), 2));
    assert!(Dir::ALL.iter().all(|&d| j.rw.has(d)) && !j.rw.random);
    assert_eq!((j.size, j.loops, j.max_block_bytes()), (Some(Extent::Bytes(20480)), 1, 12288));
    assert!(j.rate_iops == PerDir::all(None) && warnings.len() == 2, "{warnings:?}");
    let shares: Vec<_> = j.file_shares(0, 1, |_| 0).iter().map(|s| s.size).collect();
    assert_eq!(shares, [Some(Extent::Bytes(16384)), Some(Extent::Bytes(20480))]);
    let (j, _) = job("replay_redirect=x\nreplay_skip=write,trim\n", V3);
    assert!(j.rw.has(Dir::Read) && !j.rw.has(Dir::Write) && !j.rw.has(Dir::Trim) && j.filename == ["x"]);
    let refused = |options: &str| {
        let traces = |name: &str| Ok(vec![file(name, binary().concat())]);
        let context = ParseContext { traces: &traces, ..ParseContext::bare("j.fio") };
        JobFile::parse_str(&format!("[j]\nread_iolog=t\n{options}"), &context, &[]).unwrap_err().to_string()
    };
    assert!(refused("").contains("add replay_redirect=PATH or TARGET"));
    assert!(refused("replay_redirect=x\nverify=crc32c\n").contains("remove verify"));
    assert!(refused("replay_redirect=x\nverify_only\n").contains("remove verify_only"));
    assert!(refused("read_iolog=:\n").contains("names no trace"));
    assert!(refused("replay_align=3000\n").contains("must be a power of two"));
    assert!(refused("replay_skip=reads\n").contains("must be a list of read,write,trim,sync"));
}

/// Offset and time of each I/O of a replay on a device that takes up to `latency_ns`.
fn issued(options: &str, latency_ns: u64) -> Vec<(u64, u64)> {
    let (j, _) = job(&format!("replay_redirect=x\n{options}"), V3);
    let mut harness = Harness::new(&j, MIB, 3);
    harness.latency_ns = latency_ns;
    let start = harness.now;
    harness.run();
    let us = |at: Instant| at.since(start).as_ns() / 1000;
    harness.trace.iter().map(|i| (i.io.offset_bytes, us(i.at))).collect()
}

#[test]
fn ios_are_due_as_in_the_trace() {
    let times = |ios: Vec<(u64, u64)>| ios.into_iter().map(|(_, at)| at).collect::<Vec<_>>();
    let ios = issued("ioengine=libaio\niodepth=8\n", 1);
    assert_eq!(ios.iter().map(|io| io.0).collect::<Vec<_>>(), [0, 8192, 4096, 0, 0, 8192]);
    assert_eq!(times(ios), [20, 1020, 1030, 1040, 3040, 3050]);
    // One at a time on a slow device: later I/Os keep their distance to the one before.
    let slow = times(issued("ioengine=psync\n", 4_000_000));
    assert!(slow.is_sorted() && slow[1] - slow[0] >= 1000 && slow[5] > 3050, "{slow:?}");
    let fast = times(issued("ioengine=libaio\niodepth=8\nreplay_no_stall=1\n", 1));
    assert!(fast.iter().all(|&at| at <= 1), "{fast:?}");
    let early = issued("ioengine=libaio\niodepth=8\nruntime=2ms\n", 1);
    assert_eq!(early.len(), 4, "the fifth is due after 3 ms");
}
