// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A job on a device that completes during submission: `exchanged` gives what the separate calls give.

use blk::status::BlkStatus;
use blk::time::{Duration, Instant};
use proptest::prelude::*;
use std::collections::VecDeque;
use workload::engine::{IoReq, JobThread, Next, ThreadId};
use workload::job::{BlockSizes, Extent, Job, PerDir, Rw, RwMode};
use workload::rng::Taus88;
use workload::stats::JobStats;

/// The I/O that completes next: its number and its slot.
fn one(out: &mut VecDeque<(usize, u32)>, order: &mut Taus88) -> (usize, u32) {
    let end = if order.between(0, 1) == 0 { out.pop_front() } else { out.pop_back() };
    end.expect("an I/O is out")
}

/// Runs `job` on a device that completes each I/O when it is submitted, the oldest or the youngest first. The I/O with the number `fails` has an error.
/// Returns I/Os, measurements, and the number of calls of `exchanged`.
fn run(job: &Job, seed: u32, fails: usize, may_exchange: bool) -> (Vec<IoReq>, JobStats, usize) {
    let mut thread =
        JobThread::new(job, ThreadId { instance: 0, number: 1, entropy: 0 }, 1 << 20).expect("the job fits");
    thread.keep_slices();
    let (mut ios, mut out, mut exchanged) = (Vec::new(), VecDeque::new(), 0);
    let (mut rng, mut now) = (Taus88::new(seed), Instant::from_ns(1_000_000_007));
    let mut order = Taus88::new(!seed);
    let status = |number: usize| if number == fails { BlkStatus::IoErr } else { BlkStatus::Ok };
    loop {
        match thread.next(now) {
            Next::Io(io) => {
                out.push_back((ios.len(), io.slot));
                ios.push(io);
                if !io.commit {
                    continue;
                }
                // Some are slower by far, so that windows, slices, the ramp and the run time end at any point.
                let ns = if rng.between(0, 40) == 0 { 300_000_000 } else { rng.between(20, 900) };
                now = now + Duration::from_ns(u64::from(ns));
                if may_exchange && job.iodepth > 1 && thread.exchanges(now) {
                    let (number, slot) = one(&mut out, &mut order);
                    assert!(!thread.exchanged(slot, status(number), now).needs_verify);
                    exchanged += 1;
                } else {
                    thread.submitted(now);
                }
            }
            Next::Reap { min, max } => {
                assert!(max > 0);
                thread.submitted(now);
                let n = min.max(1);
                let done: Vec<_> = (0..n).map(|_| one(&mut out, &mut order)).collect();
                if let ([(number, slot)], 1) = (&done[..], max) {
                    assert!(!thread.complete_one(*slot, status(*number), now).needs_verify);
                    continue;
                }
                for (number, slot) in done {
                    assert!(!thread.complete(slot, status(number), now).needs_verify);
                }
                thread.reaped(n);
            }
            Next::Wait(_) | Next::Spin(_) => unreachable!("the job has no pauses"),
            Next::Done => break,
        }
    }
    assert!(out.is_empty());
    (ios, thread.stats().clone(), exchanged)
}

prop_compose! {
    fn any_job()(
        mode in prop::sample::select(vec![RwMode::Read, RwMode::Write, RwMode::Trim, RwMode::ReadWrite]), random in any::<bool>(),
        norandommap in any::<bool>(), depth in 1u32..20, low in 1u32..40, batch in prop::sample::select(vec![1u32, 1, 1, 3]),
        max in prop::sample::select(vec![1u32, 1, 1, 2]), ios in 1u64..400, kib in prop::sample::select(vec![1u64, 4, 16]),
        ramp in prop::sample::select(vec![0u64, 0, 1_000_000_000]), runtime in prop::option::of(1u64..8_000_000_000),
        timed in any::<bool>(),
    ) -> Job {
        let mut job = Job::new("x");
        job.rw = Rw { mode, random };
        (job.iodepth, job.iodepth_low, job.iodepth_batch_submit) = (depth, low.min(depth), batch);
        (job.iodepth_batch_complete_min, job.iodepth_batch_complete_max) = (1, max);
        job.block_sizes = PerDir::all(BlockSizes::Fixed(kib << 10));
        (job.size, job.number_ios, job.norandommap) = (Some(Extent::Bytes(512 << 10)), Some(ios), norandommap);
        (job.ramp_time_ns, job.runtime_ns) = (ramp, runtime);
        job.time_based = timed && runtime.is_some();
        job
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn exchanged_ios_are_counted_as_others(job in any_job(), seed in any::<u32>(), fails in prop::option::of(0usize..400)) {
        let fails = fails.unwrap_or(usize::MAX);
        let (singly, exchanged) = (run(&job, seed, fails, false), run(&job, seed, fails, true));
        prop_assert_eq!(singly.0, exchanged.0);
        prop_assert_eq!(singly.1, exchanged.1);
    }
}

#[test]
fn a_full_queue_exchanges_almost_all_ios() {
    let mut job = Job::new("x");
    job.rw = Rw { mode: RwMode::Read, random: true };
    (job.iodepth, job.iodepth_low, job.number_ios, job.norandommap) = (8, 8, Some(1000), true);
    (job.size, job.io_size) = (Some(Extent::Bytes(1 << 20)), Some(Extent::Bytes(1 << 30)));
    let (ios, stats, exchanged) = run(&job, 1, usize::MAX, true);
    assert_eq!((ios.len(), stats.total_ios()), (1000, 1000));
    assert!(exchanged > 900, "{exchanged}");
}
