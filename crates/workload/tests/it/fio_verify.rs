// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Verified data in both directions: fio verifies what the engine wrote, and the engine verifies what fio wrote. Needs fio
//! 3.33; without it the tests print that they skipped.

use crate::common;
use crate::fio_parity::{Step, fio_steps};

use blk::bio::Op;
use blk::status::BlkStatus;
use blk::time::Instant;
use common::{Harness, MIB, fio_is_3_33};
use std::path::{Path, PathBuf};
use std::process::Command;
use workload::engine::{JobThread, Next, ThreadId};
use workload::job::*;
use workload::verify::state::VerifyState;

const SIZE: u64 = MIB;

/// A directory that is removed with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("mqblk-verify-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }

    fn file(&self) -> PathBuf {
        self.0.join("f")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

fn fio(dir: &Path, args: &str) -> Result<(), String> {
    let run = Command::new("fio")
        .current_dir(dir)
        .args(["--name=a", "--filename=f", "--ioengine=psync", "--size=1m", "--output=out"])
        .args(args.split_whitespace())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&run.stderr).into_owned() + &String::from_utf8_lossy(&run.stdout);
    if run.status.success() { Ok(()) } else { Err(text) }
}

struct Case {
    name: &'static str,
    kind: VerifyKind,
    /// The same job as fio options, without rw.
    args: String,
    set: fn(&mut Job),
    /// Bytes between headers; `None` = one per I/O, whose sizes vary.
    step: Option<usize>,
}

impl Case {
    /// Whether another job with these options draws the same sizes only in the same order.
    fn varies(&self) -> bool {
        self.args.contains("bsrange")
    }
}

fn cases() -> Vec<Case> {
    let special = |name, kind, args: &str, set, step| Case { name, kind, args: args.to_owned(), set, step: Some(step) };
    // A pattern needs one, and fio checks nothing with null.
    let plain = VerifyKind::ALL.into_iter().filter(|(kind, _)| kind.has_header());
    let plain = plain.map(|(kind, name)| Case {
        name,
        kind,
        args: format!("--bs=4k --verify={name}"),
        set: |_| (),
        step: Some(4096),
    });
    let more = [
        special(
            "pattern",
            VerifyKind::Pattern,
            "--bs=4k --verify=pattern --verify_pattern=0xdeadbeef",
            |j| j.verify_pattern = Some(deadbeef()),
            4096,
        ),
        special(
            "crc32c-pattern",
            VerifyKind::Crc32c,
            "--bs=4k --verify=crc32c --verify_pattern=0xdeadbeef",
            |j| j.verify_pattern = Some(deadbeef()),
            4096,
        ),
        special("null", VerifyKind::Null, "--bs=4k --verify=null", |j| j.scramble_buffers = false, 4096),
        special("crc32c-range", VerifyKind::Crc32c, "--bsrange=2k-8k --verify=crc32c", |j| range(j, 2048, 8192), 2048),
        special("common", VerifyKind::Crc32c, "--bsrange=4k-6k --verify=crc32c", |j| range(j, 4096, 6144), 2048),
        special("bytes", VerifyKind::Md5, "--bs=2300 --verify=md5", |j| range(j, 2300, 2300), 2300),
        special("bytes-range", VerifyKind::Md5, "--bsrange=1000-4500 --verify=md5", |j| range(j, 1000, 4500), 500),
        special(
            "interval",
            VerifyKind::Sha256,
            "--bs=8k --verify=sha256 --verify_interval=2k",
            |j| {
                range(j, 8192, 8192);
                j.verify_interval = Some(2048);
            },
            2048,
        ),
        special(
            "moved",
            VerifyKind::Md5,
            "--bs=4k --verify=md5 --verify_interval=2k --verify_offset=1000",
            |j| (j.verify_interval, j.verify_offset) = (Some(2048), Some(1000)),
            2048,
        ),
        Case {
            step: None,
            ..special(
                "unaligned",
                VerifyKind::Crc32c,
                "--bsrange=1000-5000 --bs_unaligned=1 --verify=crc32c",
                |j| {
                    range(j, 1000, 5000);
                    j.bs_unaligned = true;
                },
                0,
            )
        },
    ];
    plain.chain(more).collect()
}

/// Whether the kind notices that one byte of a block changed. fio's sha512 sees a part of the body only.
fn sees_all(kind: VerifyKind) -> bool {
    !matches!(kind, VerifyKind::Meta | VerifyKind::Sha512 | VerifyKind::Null)
}

fn range(job: &mut Job, min_bytes: u64, max_bytes: u64) {
    job.block_sizes = PerDir::all(match min_bytes == max_bytes {
        true => BlockSizes::Fixed(min_bytes),
        false => BlockSizes::Range { min_bytes, max_bytes },
    });
}

fn deadbeef() -> Pattern {
    Pattern { bytes: vec![0xde, 0xad, 0xbe, 0xef], offset_at: vec![] }
}

fn job(case: &Case, mode: RwMode, random: bool) -> Job {
    let mut job = Job::new("a");
    job.size = Some(Extent::Bytes(SIZE));
    job.rw = Rw { mode, random };
    job.verify = Some(case.kind);
    (case.set)(&mut job);
    job
}

#[test]
fn fio_verifies_what_we_wrote() {
    if !fio_is_3_33() {
        return;
    }
    for case in &cases() {
        for (random, word) in [(false, "read"), (true, "randread")] {
            if random && case.varies() {
                // If sizes vary, fio's reader draws other offsets than its writer.
                continue;
            }
            let mut job = job(case, RwMode::Write, random);
            job.iodepth = 8;
            let mut harness = Harness::new(&job, SIZE, 1);
            harness.run();
            assert_eq!(harness.verify_errors.first(), None, "{}: our own verify", case.name);
            let dir = Scratch::new(&format!("ours-{}-{word}", case.name));
            std::fs::write(dir.file(), &harness.data).unwrap();
            if let Err(text) = fio(&dir.0, &format!("--rw={word} {}", case.args)) {
                panic!("{} {word}: {text}", case.name);
            }
            // The same check has to fail for damaged data: change the last byte of a block.
            let mut bad = harness.data.clone();
            bad[5 * 4096 + 4095] ^= 1;
            std::fs::write(dir.file(), &bad).unwrap();
            if !sees_all(case.kind) {
                continue;
            }
            // Without verify_fatal, fio reports only the result of the last block of an I/O.
            let strict = fio(&dir.0, &format!("--rw={word} --verify_fatal=1 {}", case.args));
            assert!(strict.is_err(), "{}: fio misses damage", case.name);
        }
    }
}

#[test]
fn we_verify_what_fio_wrote() {
    if !fio_is_3_33() {
        return;
    }
    for case in &cases() {
        for word in ["write", "randwrite"] {
            if word == "randwrite" && case.varies() {
                continue;
            }
            let dir = Scratch::new(&format!("fio-{}-{word}", case.name));
            fio(&dir.0, &format!("--rw={word} --do_verify=0 {}", case.args)).unwrap();
            let data = std::fs::read(dir.file()).unwrap();
            let read = |data: &[u8]| {
                let job = job(case, RwMode::Read, false);
                let mut harness = Harness::new(&job, SIZE, 1);
                harness.data.copy_from_slice(data);
                harness.run();
                assert!(harness.thread.stats().total_bytes() > SIZE - job.max_block_bytes());
                (harness.thread.stats().verify_errors, harness.verify_errors.first().map(ToString::to_string))
            };
            assert_eq!(read(&data), (0, None), "{} {word}", case.name);
            let mut bad = data.clone();
            bad[9 * 4096 + 1000] ^= 0x10;
            let (count, errors) = read(&bad);
            if !sees_all(case.kind) {
                continue;
            }
            assert_eq!(count, 1, "{} {word}: one damaged block, found {errors:?}", case.name);
        }
    }
}

#[test]
fn the_files_of_equal_jobs_are_equal_but_for_the_time() {
    if !fio_is_3_33() {
        return;
    }
    for case in &cases() {
        let dir = Scratch::new(&format!("equal-{}", case.name));
        let random = !case.varies();
        let word = if random { "randwrite" } else { "write" };
        fio(&dir.0, &format!("--rw={word} --do_verify=0 {}", case.args)).unwrap();
        let job = job(case, RwMode::Write, random);
        let header_at = job.verify_offset.unwrap_or(0);
        let mut harness = Harness::new(&job, SIZE, 1);
        harness.run();
        let strip = |data: &[u8]| {
            let mut data = data.to_vec();
            for io in harness.trace.iter().map(|i| i.io).filter(|io| io.op == Op::Write && case.kind.has_header()) {
                let io_bytes = &mut data[io.offset_bytes as usize..][..io.len_bytes as usize];
                // Time of the write, and the header checksum that covers it.
                io_bytes.chunks_mut(case.step.unwrap_or(io.len_bytes as usize)).for_each(|b| {
                    let at = header_at as usize;
                    b[at + 24..at + 32].fill(0);
                    b[at + 36..at + 40].fill(0);
                });
            }
            data
        };
        let theirs = strip(&std::fs::read(dir.file()).unwrap());
        let ours = strip(&harness.data);
        let differs = (0..ours.len()).find(|&i| ours[i] != theirs[i]);
        assert_eq!(differs, None, "{}: first difference", case.name);
    }
}

/// What one program wrote, the other checks with the same job and `verify_only`; damage and blocks that were never written are found.
#[test]
fn verify_only_checks_what_an_earlier_run_wrote() {
    if !fio_is_3_33() {
        return;
    }
    for args in [
        "--rw=randwrite --bs=4k --verify=crc32c",
        "--rw=write --bs=2300 --verify=md5 --verify_offset=900",
        "--rw=randwrite --bsrange=1k-8k --verify=sha256",
        "--rw=write --bsrange=1000-5000 --bs_unaligned=1 --verify=crc32c",
    ] {
        let dir = Scratch::new("only");
        let text = args.replace("--", "\n");
        let job = |more: &str| {
            let text = format!("[a]\nfilename=f\nsize=1m\n{text}\n{more}\n");
            JobFile::parse_str(&text, &ParseContext::bare("a.fio"), &[]).unwrap().jobs.remove(0)
        };
        let ours = |data: &[u8]| {
            let mut harness = Harness::new(&job("verify_only=1"), SIZE, 1);
            harness.data.copy_from_slice(data);
            harness.run();
            assert!(harness.count(Op::Write) == 0 && harness.data == data, "{args}: nothing is written");
            let stats = harness.thread.stats();
            assert_eq!(stats.dirs[0].ios, stats.dirs[1].ios, "{args}: all is read back");
            stats.verify_errors
        };
        let theirs = |data: &[u8]| {
            std::fs::write(dir.file(), data).unwrap();
            fio(&dir.0, &format!("{args} --verify_only=1 --verify_fatal=1")).is_ok()
        };
        fio(&dir.0, &format!("{args} --do_verify=0")).unwrap();
        let by_fio = std::fs::read(dir.file()).unwrap();
        let mut harness = Harness::new(&job("do_verify=0"), SIZE, 1);
        harness.run();
        for data in [by_fio, harness.data] {
            assert!(ours(&data) == 0 && theirs(&data), "{args}");
            let mut bad = data.clone();
            bad[20_000] ^= 1;
            assert!(ours(&bad) == 1 && !theirs(&bad), "{args}: damage");
        }
        assert!(ours(&vec![0; SIZE as usize]) > 0 && !theirs(&vec![0; SIZE as usize]), "{args}: never written");
    }
}

fn parsed(args: &str) -> Job {
    let text = format!("[a]\nfilename=f\nsize=1m\n{}\n", args.replace("--", "\n"));
    JobFile::parse_str(&text, &ParseContext::bare("a.fio"), &[]).unwrap().jobs.remove(0)
}

/// fio 3.33 trims verified blocks only in a job that trims by itself, too; in others it aborts.
#[test]
fn verified_blocks_are_trimmed_as_by_fio() {
    if !fio_is_3_33() {
        return;
    }
    for args in [
        "--rw=trimwrite --trim_percentage=50 --trim_backlog=4",
        "--rw=randtrimwrite --trim_percentage=30 --trim_backlog=8 --trim_backlog_batch=2",
        "--rw=trimwrite --trim_percentage=100 --trim_backlog=3 --verify_backlog=5 --trim_verify_zero=0",
        "--rw=randtrimwrite --trim_percentage=40 --trim_backlog=7 --verify_backlog=9",
        "--rw=randtrimwrite --trim_percentage=60 --trim_backlog=5 --norandommap=1",
        "--rw=randtrimwrite --trim_percentage=60 --trim_backlog=5 --norandommap=1 --trim_verify_zero=0",
        "--rw=randtrimwrite --trim_percentage=20 --trim_backlog=4 --number_ios=100",
        "--rw=trimwrite --trim_percentage=20 --trim_backlog=4 --loops=2",
        "--rw=trimwrite --trim_percentage=50",
    ] {
        let args = format!("{args} --bs=4k --verify=md5");
        let theirs = fio_steps("trims", &format!("{args} --size=1m"));
        let mut harness = Harness::new(&parsed(&args), SIZE, 1);
        harness.run();
        let step = |io: &workload::engine::IoReq| {
            let op = match io.op {
                Op::Read => "read",
                Op::Write => "write",
                _ => "trim",
            };
            (op, io.offset_bytes, u64::from(io.len_bytes))
        };
        let ours: Vec<Step> = harness.trace.iter().map(|i| &i.io).filter(|io| io.op != Op::Flush).map(step).collect();
        let differs = (0..ours.len().max(theirs.len())).find(|&i| ours.get(i) != theirs.get(i));
        // At a limit fio goes on to write until all blocks are trimmed. We begin to read back.
        let ends_by_limit = args.contains("norandommap") || args.contains("number_ios");
        match differs.filter(|_| ends_by_limit) {
            Some(at) => assert!(at >= 100 && ours[at..].iter().all(|s| s.0 == "read"), "{args}: {at} of {ours:?}"),
            None => assert_eq!(differs.map(|i| (i, ours.get(i), theirs.get(i))), None, "{args}"),
        }
        assert_eq!(harness.verify_errors.first(), None, "{args}");
    }
}

/// With several in flight, and in a job that only writes.
#[test]
fn trimmed_blocks_are_verified() {
    for args in [
        "--rw=write --trim_percentage=50 --trim_backlog=4",
        "--rw=randwrite --trim_percentage=50 --trim_backlog=16 --verify_backlog=7",
        "--rw=randwrite --norandommap=1 --loops=2 --trim_percentage=30 --trim_backlog=4",
        "--rw=randwrite --norandommap=1 --trim_percentage=90 --trim_backlog=4 --trim_verify_zero=0",
    ] {
        let job = parsed(&format!("{args} --ioengine=libaio --iodepth=8 --bs=4k --verify=crc32c"));
        for seed in 1..6 {
            let mut harness = Harness::new(&job, SIZE, seed);
            harness.run();
            let (trims, stats) = (harness.count(Op::Discard), harness.thread.stats());
            assert!(trims > 20 && harness.verify_errors.is_empty(), "{args}: {trims}, {:?}", harness.verify_errors);
            assert_eq!(stats.dirs[Dir::Trim as usize].ios, trims as u64, "{args}");
        }
    }
    // No round of trims can begin at the limit of 256 writes, and blocks to trim are left.
    let never_due = "--rw=randwrite --norandommap=1 --trim_percentage=100 --trim_backlog=7 --trim_backlog_batch=1";
    let mut harness = Harness::new(&parsed(&format!("{never_due} --bs=4k --verify=crc32c")), SIZE, 1);
    assert!((0..100_000).any(|_| !harness.step()), "the job ends");
    assert_eq!((harness.count(Op::Write), harness.verify_errors.len()), (256, 0));
    let job = parsed("--rw=write --trim_percentage=50 --trim_backlog=4 --bs=4k --verify=crc32c");
    let mut harness = Harness::new(&job, SIZE, 1);
    harness.keeps_trimmed = true;
    harness.run();
    let (trims, bad) = (harness.count(Op::Discard), harness.thread.stats().verify_errors);
    assert_eq!(trims as u64, bad, "a device that trims nothing is found out");
    let text = harness.verify_errors[0].to_string();
    assert!(text.starts_with("verify trim: trimmed block has byte 0xca, 0 bytes into the I/O at offset "), "{text}");
}

#[test]
fn a_write_that_failed_or_never_completed_is_in_doubt() {
    let options = "--ioengine=libaio --iodepth=4 --bs=4k --verify=crc32c";
    for fails in [false, true] {
        let job = parsed(&format!("--rw=write {options}"));
        let mut thread = JobThread::new(&job, ThreadId { instance: 0, number: 1, entropy: 0 }, SIZE).unwrap();
        let (now, mut held, mut out, mut issued) = (Instant::from_ns(1), None, Vec::new(), 0);
        while issued < 100 {
            match thread.next(now) {
                Next::Io(io) => {
                    issued += 1;
                    if io.offset_bytes == 8192 { held = Some(io.slot) } else { out.push(io.slot) }
                }
                Next::Reap { .. } => {
                    thread.submitted(now);
                    assert!(!thread.complete(out.remove(0), BlkStatus::Ok, now).needs_verify);
                    thread.reaped(1);
                }
                other => panic!("{other:?}"),
            }
        }
        thread.submitted(now);
        if fails {
            assert!(!thread.complete(held.unwrap(), BlkStatus::Medium, now).needs_verify);
        }
        thread.abandon(now);
        let state = VerifyState::decode(&thread.verify_state().unwrap()).unwrap();
        assert_eq!((state.writes, state.completed.len()), (2 + 4, 4), "fails: {fails}");
        let mut reader = Harness::new(&parsed(&format!("--rw=read {options}")), SIZE, 1);
        reader.thread.load_verify_state(state);
        reader.run();
        let read: Vec<u64> = reader.trace.iter().map(|i| i.io.offset_bytes).collect();
        assert_eq!(read, [0, 4096], "what was written before it, fails: {fails}");
    }
}
