// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whole jobs in virtual time: what is issued when, and what is measured.

use crate::common;

use blk::bio::{IoPrio, IoPrioClass, Op, OpFlags};
use blk::status::BlkStatus;
use blk::time::Instant;
use common::{Harness, KIB, MIB};
use workload::engine::{JobThread, Next, StopReason, ThreadId};
use workload::job::*;
use workload::stats::{JobStats, LatencyStats};

const MS: u64 = 1_000_000;
const SEC: u64 = 1_000 * MS;

fn job(mode: RwMode, random: bool, set: impl FnOnce(&mut Job)) -> Job {
    let mut job = Job::new("a");
    job.size = Some(Extent::Bytes(MIB));
    job.rw = Rw { mode, random };
    set(&mut job);
    job
}

fn depth(j: &mut Job, n: u32) {
    (j.iodepth, j.iodepth_low) = (n, n);
}

fn ran(job: &Job, seed: u32) -> Harness {
    let mut harness = Harness::new(job, MIB, seed);
    harness.run();
    harness
}

#[test]
fn counts_add_up_and_every_block_comes_once() {
    for seed in 1..=5 {
        let harness = ran(&job(RwMode::Read, true, |j| depth(j, 32)), seed);
        let mut offsets: Vec<u64> = harness.trace.iter().map(|i| i.io.offset_bytes).collect();
        offsets.sort_unstable();
        assert_eq!(offsets, (0..256).map(|b| b * 4096).collect::<Vec<_>>());
        let s = harness.thread.stats();
        assert_eq!((s.total_ios(), s.total_bytes()), (256, MIB));
        let read = s.dir(Dir::Read);
        assert_eq!((read.clat.run.count(), read.slat.run.count(), read.lat.run.count()), (256, 256, 256));
        assert_eq!(read.lat.run.sum(), read.slat.run.sum() + read.clat.run.sum());
        assert_eq!(read.clat.hist.as_ref().unwrap().total(), 256);
        assert_eq!(s.depth.iter().sum::<u64>(), 256);
        assert_eq!(s.lat_ns.iter().chain(&s.lat_us).chain(&s.lat_ms).sum::<u64>(), 256);
        assert_eq!(harness.max_out, 32);
    }
}

/// Runs a job with a queue depth of one. `end` reports the rest of each I/O to the engine; its last argument is the time at
/// which the I/O was returned. With `fails` the ninth I/O fails.
fn one_by_one(job: &Job, fails: bool, end: impl Fn(&mut JobThread, u32, BlkStatus, u64)) -> JobStats {
    let mut t = JobThread::new(job, ThreadId { instance: 0, number: 1, entropy: 0 }, MIB).unwrap();
    let (mut now, mut issued) = (1_000, 0);
    loop {
        now += 370;
        match t.next(Instant::from_ns(now)) {
            Next::Io(io) => {
                issued += 1;
                let status = if fails && issued == 9 { BlkStatus::Medium } else { BlkStatus::Ok };
                end(&mut t, io.slot, status, now);
            }
            Next::Done => return t.stats().clone(),
            Next::Wait(until) => now = until.as_ns(),
            other => panic!("{other:?} with nothing out"),
        }
    }
}

/// All ways to report a single completion to the engine give the same measurements.
#[test]
fn the_short_ways_to_complete_count_as_the_long_one() {
    let ramp = |j: &mut Job| (j.ramp_time_ns, j.time_based, j.runtime_ns) = (20_000, true, Some(50_000));
    let kinds = [
        ("plain", job(RwMode::Read, true, |_| ())),
        ("flushes", job(RwMode::Write, false, |j| j.fsync_every = 3)),
        ("rated", job(RwMode::Read, true, |j| j.rate_iops[Dir::Read] = Some(100_000))),
        ("ramp", job(RwMode::Read, true, ramp)),
        ("looks", job(RwMode::Read, true, |j| j.iodepth_batch_complete_min = 0)),
    ];
    let at = Instant::from_ns;
    for (name, job, fails) in kinds.iter().flat_map(|(name, job)| [(name, job, false), (name, job, true)]) {
        let long = |submitting: u64| {
            one_by_one(job, fails, |t, slot, status, now| {
                t.submitted(at(now + submitting));
                assert!(!t.complete(slot, status, at(now + 370)).needs_verify);
                t.reaped(1);
            })
        };
        let short = one_by_one(job, fails, |t, slot, status, now| {
            t.submitted(at(now + 70));
            assert!(!t.complete_one(slot, status, at(now + 370)).needs_verify);
        });
        assert!(long(70) == short, "{name}, fails: {fails}");
        assert!(fails || short.dirs.iter().any(|d| d.slat.run.count() > 0 && d.slat.run.max() == 70), "{name}");

        let at_once = one_by_one(job, fails, |t, slot, status, now| {
            assert!(!t.ended_at_once(slot, status, at(now + 370)).needs_verify);
        });
        // The result is as with a submission that took no time, except that submission latency is not recorded, as in fio.
        let mut want = long(0);
        want.dirs.iter_mut().for_each(|d| d.slat = LatencyStats::new(d.slat.hist.is_some()));
        assert!(want == at_once, "{name}, fails: {fails}");
    }
}

#[test]
fn batches_and_low_water_mark_are_kept() {
    let j = job(RwMode::Read, true, |j| {
        (j.iodepth, j.iodepth_low, j.iodepth_batch_submit) = (16, 4, 8);
        (j.iodepth_batch_complete_min, j.iodepth_batch_complete_max) = (3, 5);
    });
    let mut t = JobThread::new(&j, ThreadId { instance: 0, number: 1, entropy: 0 }, MIB).unwrap();
    let (mut now, mut out, mut batch) = (0, Vec::new(), 0);
    for round in 0..100 {
        now += 1000;
        match t.next(Instant::from_ns(now)) {
            Next::Io(io) => {
                assert!(out.len() < 16);
                out.push(io.slot);
                batch += 1;
                assert_eq!(io.commit, batch == 8 || out.len() == 16, "round {round}");
                if io.commit {
                    t.submitted(Instant::from_ns(now));
                    batch = 0;
                }
            }
            Next::Reap { min, max } => {
                assert!(out.len() > 4, "reaps down to iodepth_low only");
                assert_eq!((min, max), (3.min(out.len() as u32), 5));
                for slot in out.drain(..min as usize) {
                    assert!(!t.complete(slot, BlkStatus::Ok, Instant::from_ns(now)).needs_verify);
                }
                t.reaped(min);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_rate_is_kept_and_its_intended_latency_counts_the_waiting() {
    let j = job(RwMode::Write, true, |j| {
        j.rate_iops = PerDir::all(Some(1000));
        depth(j, 4);
    });
    let mut harness = Harness::new(&j, MIB, 3);
    let start = harness.now;
    harness.run();
    for (i, issued) in harness.trace.iter().enumerate() {
        assert!(issued.at.since(start).as_ns() >= i as u64 * MS, "I/O {i} came early");
        assert!(issued.at.since(start).as_ns() < i as u64 * MS + 2 * MS, "I/O {i} came late");
    }
    // A device that takes 5 ms per I/O at depth 1 cannot keep 1000 IOPS: clat stays small, and the intended latency grows.
    let mut slow = Harness::new(&job(RwMode::Write, true, |j| j.rate_iops = PerDir::all(Some(1000))), MIB, 3);
    slow.latency_ns = 10 * MS;
    slow.run();
    let write = slow.thread.stats().dir(Dir::Write);
    assert!(write.clat.run.max() <= 10 * MS);
    assert!(write.intended.run.max() > 500 * MS, "{}", write.intended.run.max());
    assert_eq!(write.intended.run.count(), 256);
}

#[test]
fn thinktime_pauses_after_its_blocks_with_nothing_out() {
    let j = job(RwMode::Read, false, |j| {
        (j.thinktime_ns, j.thinktime_spin_ns, j.thinktime_blocks) = (5 * MS, MS, 16);
        depth(j, 4);
    });
    let harness = ran(&j, 1);
    let gaps: Vec<usize> =
        (1..256).filter(|&i| harness.trace[i].at.since(harness.trace[i - 1].at).as_ns() >= 5 * MS).collect();
    assert!(gaps.len() >= 12, "{gaps:?}");
    assert!(gaps.windows(2).all(|w| (16..=20).contains(&(w[1] - w[0]))), "{gaps:?}");
}

/// Runs a job on a device that ends each I/O `latency_ns` after its issue. The I/Os of a bunch differ by microseconds.
fn on_a_slow_device(job: &Job, latency_ns: u64) -> JobStats {
    let mut t = JobThread::new(job, ThreadId { instance: 0, number: 1, entropy: 0 }, MIB).unwrap();
    let (mut now, mut out) = (5_000, Vec::new());
    let mut unsubmitted = 0;
    loop {
        now += 1_000;
        let next = t.next(Instant::from_ns(now));
        if let Next::Io(io) = next {
            out.push((now + latency_ns, io.slot));
            unsubmitted += 1;
            continue;
        }
        if std::mem::take(&mut unsubmitted) > 0 {
            t.submitted(Instant::from_ns(now));
        }
        match next {
            Next::Reap { min, .. } => {
                for _ in 0..min.max(1) {
                    out.sort_unstable_by(|a, b| b.cmp(a));
                    let (ends, slot) = out.pop().unwrap();
                    now = now.max(ends);
                    assert!(!t.complete(slot, BlkStatus::Ok, Instant::from_ns(now)).needs_verify);
                }
                t.reaped(min);
            }
            Next::Wait(until) => now = now.max(until.as_ns()),
            _ => return t.stats().clone(),
        }
    }
}

/// On a device that completes one I/O per latency and depth, the measured rate must be that, whatever the ramp cuts off.
#[test]
fn a_ramp_does_not_change_the_rate_of_slow_devices() {
    for ramp_ms in [0, 300, 1000, 1100, 1700] {
        // None divides 3 s: a bunch that ends with the run would be issued again in part.
        for latency_ms in [7, 41, 400, 700, 1300] {
            for depth in [1, 4, 32] {
                let j = job(RwMode::Read, true, |j| {
                    (j.time_based, j.runtime_ns, j.ramp_time_ns) = (true, Some(3 * SEC), ramp_ms * MS);
                    (j.iodepth, j.iodepth_low) = (depth, depth);
                });
                let s = on_a_slow_device(&j, latency_ms * MS);
                let what = format!("ramp {ramp_ms} ms, latency {latency_ms} ms, depth {depth}");
                assert!(s.runtime_ns >= 3 * SEC, "{what}: {} ns", s.runtime_ns);
                let iops = s.total_ios() as f64 * 1e9 / s.runtime_ns as f64;
                let truth = f64::from(depth) * 1000.0 / latency_ms as f64;
                assert!((iops / truth - 1.0).abs() < 0.04, "{what}: {iops:.2} IOPS, truth {truth:.2}");
            }
        }
    }
}

/// Between the end of the ramp and the end of the bunch, a job that waits for its rate must not be asked again at once.
#[test]
fn a_rated_job_does_not_spin_at_the_end_of_its_ramp() {
    let j = job(RwMode::Read, true, |j| {
        (j.time_based, j.runtime_ns, j.ramp_time_ns) = (true, Some(SEC), SEC);
        (j.iodepth, j.iodepth_low, j.rate_iops) = (4, 4, PerDir::all(Some(10)));
    });
    let mut t = JobThread::new(&j, ThreadId { instance: 0, number: 1, entropy: 0 }, MIB).unwrap();
    let (mut now, mut out) = (0u64, Vec::new());
    for _ in 0..1000 {
        match t.next(Instant::from_ns(now)) {
            Next::Io(io) => out.push((now + 350 * MS, io.slot)),
            Next::Done => return,
            other => {
                t.submitted(Instant::from_ns(now));
                let ends = out.iter().map(|(ends, _)| *ends).min();
                let until = if let Next::Wait(until) = other { until.as_ns() } else { u64::MAX };
                assert!(until > now, "waits for the past");
                now = until.min(ends.unwrap_or(u64::MAX));
                while let Some(n) = out.iter().position(|(ends, _)| *ends <= now) {
                    let (_, slot) = out.remove(n);
                    assert!(!t.complete_one(slot, BlkStatus::Ok, Instant::from_ns(now)).needs_verify);
                }
            }
        }
    }
    panic!("is not done after 1000 steps");
}

#[test]
fn ramp_time_is_not_measured_and_runtime_counts_from_its_end() {
    let j = job(RwMode::Read, true, |j| {
        (j.time_based, j.runtime_ns, j.ramp_time_ns) = (true, Some(2 * SEC), SEC);
        depth(j, 8);
    });
    let mut harness = Harness::new(&j, MIB, 1);
    let start = harness.now;
    harness.run();
    let ran = harness.now.since(start).as_ns();
    assert!((3 * SEC..3 * SEC + 2 * MS).contains(&ran), "{ran}");
    let s = harness.thread.stats();
    let in_ramp = harness.trace.iter().filter(|i| i.at.since(start).as_ns() < SEC).count() as u64;
    let all = harness.trace.len() as u64;
    assert!(
        s.total_ios().abs_diff(all - in_ramp) <= 8,
        "{} measured, {all} issued, {in_ramp} in the ramp",
        s.total_ios()
    );
    let read = s.dir(Dir::Read);
    assert!(read.runtime_ns.abs_diff(2 * SEC) < 2 * MS, "{}", read.runtime_ns);
    assert_eq!((read.iops.samples, read.bw_kib.samples), (4, 4), "two seconds have four half seconds");
    assert!((read.iops.mean - s.total_ios() as f64 / 2.0).abs() < 0.02 * read.iops.mean);
}

#[test]
fn flushes_come_after_their_writes_and_at_the_end() {
    let j = job(RwMode::Write, false, |j| {
        (j.fsync_every, j.end_fsync) = (10, true);
        depth(j, 4);
    });
    let harness = ran(&j, 2);
    let ops: Vec<Op> = harness.trace.iter().map(|i| i.io.op).collect();
    let at: Vec<usize> = (0..ops.len()).filter(|&i| ops[i] == Op::Flush).collect();
    assert_eq!(at.len(), 25 + 1, "one after every 10 of 256 writes, one at the end");
    assert_eq!((at[0], at[1], *at.last().unwrap()), (10, 21, ops.len() - 1));
    let stats = harness.thread.stats();
    assert_eq!((stats.sync.ios, stats.total_ios()), (25, 256), "fio does not count end_fsync");
    assert_eq!(harness.max_out, 4, "a flush takes a slot like any I/O");
}

/// A flush covers only writes that have completed: one with others in flight is not the last.
#[test]
fn the_last_flush_covers_all_writes() {
    let mut spared = 0;
    for (iodepth, seed) in [1, 4].into_iter().flat_map(|iodepth| (1..=20).map(move |seed| (iodepth, seed))) {
        let j = job(RwMode::Write, false, |j| {
            (j.fsync_every, j.end_fsync) = (1, true);
            (j.time_based, j.runtime_ns) = (true, Some(2 * MS));
            depth(j, iodepth);
        });
        let harness = ran(&j, seed);
        let last = harness.trace.last().unwrap();
        assert_eq!((last.io.op, last.others), (Op::Flush, 0), "depth {iodepth}, seed {seed}");
        let twice = harness.trace.windows(2).any(|pair| pair[0].io.op == Op::Flush && pair[1].io.op == Op::Flush);
        assert!(iodepth > 1 || !twice, "the first covers all, seed {seed}");
        spared += u32::from(iodepth == 1 && harness.thread.stats().sync.ios as usize == harness.count(Op::Flush));
    }
    assert!(spared > 0, "some runs end with a flush of fsync");
}

#[test]
fn flags_and_priority_reach_the_request() {
    let j = job(RwMode::ReadWrite, true, |j| {
        (j.sync, j.hipri, j.prio) = (SyncMode::Dsync, true, Some(3));
    });
    for i in ran(&j, 1).trace {
        assert_eq!(i.io.flags.contains(OpFlags::FUA), i.io.op == Op::Write);
        assert!(i.io.flags.contains(OpFlags::POLLED));
        assert_eq!(i.io.prio, IoPrio::new(IoPrioClass::Be, 3));
    }
}

#[test]
fn written_blocks_are_read_back_once_and_damage_is_found() {
    let verified = |set: fn(&mut Harness)| {
        let j = job(RwMode::Write, true, |j| {
            j.verify = Some(VerifyKind::Crc32c);
            depth(j, 16);
        });
        let mut harness = Harness::new(&j, MIB, 7);
        set(&mut harness);
        harness.run();
        harness
    };
    let good = verified(|_| ());
    assert_eq!((good.count(Op::Write), good.count(Op::Flush), good.count(Op::Read)), (256, 1, 256));
    let s = good.thread.stats();
    assert_eq!((s.verified, s.verify_errors, s.first_error), (256, 0, 0));
    assert_eq!((s.dir(Dir::Read).ios, s.dir(Dir::Write).ios), (256, 256));
    let first_read = good.trace.iter().position(|i| i.io.op == Op::Read).unwrap();
    assert!(good.trace[..first_read].iter().all(|i| i.io.op != Op::Read), "writes first");

    let bad = verified(|harness| harness.damage = Some(|data, io| data[77] ^= u8::from(io.offset_bytes < 3 * 4096)));
    let s = bad.thread.stats();
    assert_eq!((s.verified, s.verify_errors, s.total_errors, s.first_error), (253, 3, 3, 84));
    assert_eq!(bad.verify_errors.len(), 3);
}

#[test]
fn verify_fatal_ends_the_job_at_the_first_bad_block() {
    let j = job(RwMode::Write, false, |j| (j.verify, j.verify_fatal) = (Some(VerifyKind::Md5), true));
    let mut harness = Harness::new(&j, MIB, 1);
    harness.damage = Some(|data, io| data[1000] ^= u8::from(io.offset_bytes >= 8 * 4096));
    harness.run();
    assert_eq!((harness.thread.stats().verified, harness.thread.stats().verify_errors), (8, 1));
    assert_eq!(harness.count(Op::Read), 9);
}

#[test]
fn a_backlog_is_read_back_while_writing_goes_on() {
    let j = job(RwMode::Write, true, |j| {
        (j.verify, j.verify_backlog, j.verify_backlog_batch) = (Some(VerifyKind::Xxhash), 32, 8);
        depth(j, 4);
    });
    let harness = ran(&j, 5);
    assert_eq!((harness.thread.stats().verified, harness.thread.stats().verify_errors), (256, 0));
    let last_write = harness.trace.iter().rposition(|i| i.io.op == Op::Write).unwrap();
    let early = harness.trace[..last_write].iter().filter(|i| i.io.op == Op::Read).count();
    assert!((100..=232).contains(&early), "{early} blocks read back before the last write");
}

/// Blocks that are read back count towards the pass and lag behind. So a pass that only time ends returns to blocks that
/// are not read back yet.
#[test]
fn a_backlog_that_lags_is_verified_as_last_written() {
    for seed in 1..=10 {
        for random in [true, false] {
            let j = job(RwMode::Write, random, |j| {
                (j.verify, j.verify_backlog) = (Some(VerifyKind::Crc32c), 64);
                (j.time_based, j.runtime_ns) = (true, Some(SEC / 4));
                depth(j, 16);
            });
            let harness = ran(&j, seed);
            assert_eq!(harness.verify_errors.first(), None, "seed {seed}, random: {random}");
            assert!(harness.thread.stats().verified > 512, "{} verified", harness.thread.stats().verified);
        }
    }
}

#[test]
fn rewritten_blocks_are_verified_as_last_written() {
    for seed in 1..=10 {
        let j = job(RwMode::ReadWrite, true, |j| {
            (j.norandommap, j.size) = (true, Some(Extent::Bytes(64 * KIB)));
            (j.verify, j.io_size) = (Some(VerifyKind::Crc32c), Some(Extent::Bytes(MIB)));
            j.block_sizes = PerDir::all(BlockSizes::Range { min_bytes: KIB, max_bytes: 8 * KIB });
            depth(j, 16);
        });
        let harness = ran(&j, seed);
        let s = harness.thread.stats();
        assert_eq!(harness.verify_errors.first(), None, "seed {seed}");
        assert!(s.verified > 5 && s.verified < harness.count(Op::Write) as u64, "{} blocks survived", s.verified);
    }
}

/// A random map does not know the sequential blocks of a random job, so a pass may write a block twice. Read back in the order of the
/// writes, the first of them would look damaged.
#[test]
fn blocks_that_no_map_knows_are_verified_as_last_written() {
    for seed in 1..=5 {
        let j = job(RwMode::Write, true, |j| {
            (j.percentage_random, j.verify) = (PerDir::all(50), Some(VerifyKind::Crc32c));
            depth(j, 16);
        });
        let harness = ran(&j, seed);
        assert_eq!(harness.verify_errors.first(), None, "seed {seed}");
        assert!(harness.thread.stats().verified < harness.count(Op::Write) as u64, "no block was written twice");
    }
}

#[test]
fn a_failed_io_ends_the_job_cleanly() {
    let j = job(RwMode::Write, false, |j| {
        j.end_fsync = true;
        depth(j, 8);
    });
    let mut harness = Harness::new(&j, MIB, 1);
    harness.fail = Some((20, BlkStatus::NoSpc));
    harness.run();
    let s = harness.thread.stats();
    assert_eq!((s.total_errors, s.first_error, s.dir(Dir::Write).errors), (1, 28, 1));
    assert_eq!(harness.count(Op::Flush), 0);
    assert_eq!(s.total_ios() as usize, harness.trace.len() - 1);
    assert!(harness.trace.len() < 40, "{} issued after the failure of the 21st", harness.trace.len());
}

#[test]
fn a_stopped_job_drains_and_still_flushes() {
    let j = job(RwMode::Write, true, |j| {
        (j.time_based, j.runtime_ns, j.end_fsync) = (true, Some(3600 * SEC), true);
        depth(j, 8);
    });
    let mut harness = Harness::new(&j, MIB, 1);
    (0..1000).for_each(|_| assert!(harness.step()));
    harness.thread.stop(StopReason::Asked);
    let issued = harness.trace.len();
    harness.run();
    assert_eq!(harness.trace.len(), issued + 1);
    assert_eq!(harness.trace.last().unwrap().io.op, Op::Flush);
    assert_eq!((harness.thread.stats().total_ios() as usize, harness.thread.stats().first_error), (issued, 0));
}

#[test]
fn trimwrite_writes_each_block_it_trimmed() {
    for random in [false, true] {
        let harness = ran(&job(RwMode::TrimWrite, random, |_| ()), 1);
        assert_eq!((harness.count(Op::Discard), harness.count(Op::Write)), (256, 256));
        for pair in harness.trace.chunks(2) {
            assert_eq!((pair[0].io.op, pair[1].io.op), (Op::Discard, Op::Write));
            assert_eq!(pair[0].io.offset_bytes, pair[1].io.offset_bytes);
        }
    }
}

#[test]
fn a_time_based_job_loops_and_covers_all_blocks_each_time() {
    let j = job(RwMode::Read, true, |j| (j.time_based, j.runtime_ns) = (true, Some(SEC)));
    let harness = ran(&j, 1);
    assert!(harness.trace.len() > 1024);
    for pass in harness.trace.chunks_exact(256) {
        let mut blocks: Vec<u64> = pass.iter().map(|i| i.io.offset_bytes / 4096).collect();
        blocks.sort_unstable();
        assert!(blocks.into_iter().eq(0..256));
    }
}

#[test]
fn what_cannot_run_is_refused_with_a_remedy() {
    let new = |set: fn(&mut Job)| {
        let j = job(RwMode::Read, true, set);
        JobThread::new(&j, ThreadId { instance: 0, number: 1, entropy: 0 }, MIB).unwrap_err()
    };
    let e = new(|j| j.size = Some(Extent::Bytes(2 * MIB)));
    assert!(e.to_string().starts_with("size=2097152: must be at most 1048576"), "{e}");
    let e = new(|j| j.block_sizes = PerDir::all(BlockSizes::Fixed(2 * MIB)));
    assert_eq!(e.option, "size");
    let e = new(|j| j.iodepth = 0);
    assert_eq!(e.to_string(), "iodepth=0: must be 1..=65536; change iodepth (job 'a')");
    let zone = |access_pct, bytes| Zone { access_pct, span: Extent::Bytes(bytes) };
    let zones = vec![zone(100, 2 * MIB)];
    let mut j = job(RwMode::Read, true, |_| ());
    j.random_distribution = PerDir { read: Distribution::Zoned(zones), ..PerDir::default() };
    let e = JobThread::new(&j, ThreadId { instance: 0, number: 1, entropy: 0 }, MIB).unwrap_err();
    assert_eq!(e.option, "random_distribution");
}

#[test]
fn slices_hold_every_io_where_it_ended() {
    for (seed, iodepth) in [(1, 1), (2, 4), (3, 32)] {
        let j = job(RwMode::ReadWrite, true, |j| {
            depth(j, iodepth);
            j.loops = 40;
        });
        let mut harness = Harness::new(&j, MIB, seed);
        harness.latency_ns = 3 * MS;
        harness.thread.keep_slices();
        harness.run();
        let s = harness.thread.stats();
        let t = s.slices.as_deref().expect("the job is done");
        let of = |d: usize| t.slices().map(|x| (x.ios[d], x.bytes[d])).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        assert_eq!([of(0), of(1)], [0, 1].map(|d| (s.dirs[d].ios, s.dirs[d].bytes)), "seed {seed}");
        let classes: u64 = t.slices().flat_map(|x| x.rows.to_vec()).sum();
        assert_eq!((classes, t.slices().count() > 60), (s.total_ios(), true), "seed {seed}");
        let mut rows = vec![0; workload::slices::ROWS];
        t.slices().for_each(|x| rows.iter_mut().zip(x.rows).for_each(|(a, b)| *a += b));
        for (ns, n) in [0, 1].into_iter().flat_map(|d| s.dirs[d].clat.hist.as_ref().unwrap().bins()) {
            let row = (0..rows.len()).find(|r| ns < workload::slices::row_range(*r).1).unwrap();
            rows[row] -= n;
        }
        assert!(rows.iter().all(|n| *n == 0), "classes are those of the histogram, seed {seed}");
        // An I/O completes no earlier than its issue. So up to any slice, no more I/Os have completed than were issued.
        let mut ended = 0;
        for slice in t.slices() {
            ended += slice.ios.iter().sum::<u64>();
            let by = slice.began_ns + t.width_ns();
            assert!(ended <= harness.trace.iter().filter(|i| i.at.as_ns() < by).count() as u64, "seed {seed}");
        }
    }
}

#[test]
fn slices_begin_after_the_ramp() {
    let j = job(RwMode::Read, true, |j| {
        (j.time_based, j.ramp_time_ns, j.runtime_ns) = (true, 500 * MS, Some(SEC));
    });
    let mut harness = Harness::new(&j, MIB, 4);
    harness.latency_ns = MS;
    harness.thread.keep_slices();
    harness.run();
    let s = harness.thread.stats();
    let t = s.slices.as_deref().unwrap();
    assert_eq!(t.slices().map(|x| x.ios[0]).sum::<u64>(), s.dirs[0].ios);
    assert!(t.span_ns().1 - t.span_ns().0 <= s.runtime_ns + MS, "{:?} of {}", t.span_ns(), s.runtime_ns);
}
