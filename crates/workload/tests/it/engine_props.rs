// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engine's guarantees hold for any job and any completion order. The harness asserts slots, ranges and buffers while it runs.

use crate::common;

use blk::bio::Op;
use common::{Harness, KIB, MIB};
use proptest::prelude::*;
use std::collections::BTreeSet;
use workload::job::*;

const TARGET: u64 = MIB;
const MAX_STEPS: u32 = 200_000;

fn sizes() -> impl Strategy<Value = BlockSizes> {
    let kib = prop::sample::select(vec![1u64, 2, 4, 12, 64]);
    let weights = |a: u32| vec![SizeWeight { bytes: 2 * KIB, pct: a }, SizeWeight { bytes: 16 * KIB, pct: 100 - a }];
    prop_oneof![
        4 => kib.clone().prop_map(|k| BlockSizes::Fixed(k * KIB)),
        1 => (kib, 1u64..8).prop_map(|(k, n)| BlockSizes::Range { min_bytes: k * KIB, max_bytes: n * k * KIB }),
        1 => (0u32..=100).prop_map(move |a| BlockSizes::Split(weights(a))),
    ]
}

fn mode() -> impl Strategy<Value = RwMode> {
    prop::sample::select(vec![RwMode::Read, RwMode::Write, RwMode::Trim, RwMode::ReadWrite, RwMode::TrimWrite])
}

fn distribution() -> impl Strategy<Value = Distribution> {
    prop_oneof![
        4 => Just(Distribution::Random),
        1 => Just(Distribution::Zipf { theta: 1.1, center: None }),
        1 => Just(Distribution::Pareto { h: 0.2, center: Some(0.5) }),
        1 => Just(Distribution::Normal { dev_pct: 20.0, center: None }),
        1 => Just(Distribution::Zoned(vec![
            Zone { access_pct: 70, span: Extent::Percent(50) },
            Zone { access_pct: 30, span: Extent::Percent(50) },
        ])),
    ]
}

prop_compose! {
    fn how_issued()(
        depth in 1u32..40, low in 1u32..40, batch in 1u32..40, min in 0u32..40, max in 1u32..40,
        fsync in prop::sample::select(vec![0u32, 0, 1, 7]), think in prop::sample::select(vec![0u64, 0, 50_000]),
        rate in prop::sample::select(vec![0u64, 0, 100_000]), poisson in any::<bool>(), end_fsync in any::<bool>(),
        issue in any::<bool>(),
    ) -> Job {
        let mut j = Job::new("p");
        (j.iodepth, j.iodepth_low, j.iodepth_batch_submit) = (depth, low.min(depth), batch.min(depth));
        j.iodepth_batch_complete_min = min.min(depth);
        j.iodepth_batch_complete_max = max.min(depth).max(j.iodepth_batch_complete_min).max(1);
        (j.fsync_every, j.end_fsync) = (fsync, end_fsync);
        (j.thinktime_ns, j.thinktime_blocks) = (think, 5);
        j.thinktime_blocks_type = if issue { ThinktimeBlocks::Issue } else { ThinktimeBlocks::Complete };
        j.rate_iops = PerDir::all((rate > 0).then_some(rate));
        j.rate_process = if poisson { RateProcess::Poisson } else { RateProcess::Linear };
        j
    }
}

prop_compose! {
    fn any_job()(
        mut j in how_issued(), mode in mode(), random in any::<bool>(), sizes in sizes(), dist in distribution(),
        size_kib in 128u64..512, offset_kib in 0u64..512, norandommap in any::<bool>(), pct in 0u32..=100,
        read_pct in 0u32..=100, loops in 1u64..3, ios in prop::option::of(1u64..300), io_kib in prop::option::of(1u64..2000),
        verify in prop::option::of(prop::sample::select(vec![VerifyKind::Crc32c, VerifyKind::Md5, VerifyKind::Pattern])),
        backlog in prop::sample::select(vec![0u64, 0, 8]), do_verify in any::<bool>(), every in prop::sample::select(vec![1u32, 1, 3]),
    ) -> Job {
        j.rw = Rw { mode, random };
        j.block_sizes = PerDir::all(sizes);
        j.random_distribution = PerDir { read: dist.clone(), write: dist.clone(), trim: dist };
        (j.size, j.offset) = (Some(Extent::Bytes(size_kib * KIB)), Extent::Bytes(offset_kib * KIB));
        (j.norandommap, j.rwmixread_pct, j.loops) = (norandommap, read_pct, loops);
        j.percentage_random = PerDir::all(if norandommap { pct } else { 100 });
        (j.number_ios, j.io_size) = (ios, io_kib.map(|k| Extent::Bytes(k * KIB)));
        // A job that only reads finds no verified blocks, and a trimmed block does not contain what was written.
        let verifies = matches!(mode, RwMode::Write | RwMode::ReadWrite);
        (j.verify, j.do_verify, j.verify_backlog) = (verify.filter(|_| verifies), do_verify, backlog);
        j.verify_pattern = (j.verify == Some(VerifyKind::Pattern)).then(|| Pattern { bytes: vec![1, 2, 3], offset_at: vec![] });
        j.rand_offset_every = if random { every } else { 1 };
        j
    }
}

fn run(job: &Job, seed: u32) -> Harness {
    let mut harness = Harness::new(job, TARGET, seed);
    let mut steps = 0;
    while harness.step() {
        steps += 1;
        assert!(steps < MAX_STEPS, "no end after {steps} steps and {} I/Os", harness.trace.len());
    }
    harness
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_io_is_in_its_region_and_counted_once(job in any_job(), seed in any::<u32>()) {
        let harness = run(&job, seed);
        let s = harness.thread.stats();
        prop_assert!(harness.max_out <= job.iodepth as usize);
        prop_assert!(harness.thread.is_done());
        let moved: u64 = harness.trace.iter().map(|i| u64::from(i.io.len_bytes)).sum();
        let flushes = harness.count(Op::Flush);
        prop_assert_eq!(s.total_ios() as usize + flushes, harness.trace.len());
        prop_assert_eq!(s.total_bytes(), moved);
        // As in fio, the flushes at the end of a pass (end_fsync, and before reading back) do not count as sync I/Os of the job.
        let synced = s.sync.ios as usize;
        let between_passes = job.end_fsync || job.verify.is_some();
        prop_assert!(synced <= flushes && (synced == flushes || between_passes), "{} of {}", synced, flushes);
        prop_assert!(synced == 0 || job.fsync_every > 0 || job.fdatasync_every > 0);
        prop_assert_eq!(s.depth.iter().sum::<u64>() as usize, harness.trace.len());
        prop_assert_eq!((s.verify_errors, s.total_errors), (0, 0));
        let region = harness.thread.region();
        for i in harness.trace.iter().filter(|i| i.io.op != Op::Flush) {
            prop_assert!(i.io.offset_bytes >= region.start);
            prop_assert!(i.io.offset_bytes + u64::from(i.io.len_bytes) <= region.end(), "{:?} outside {:?}", i, region);
            prop_assert!(u64::from(i.io.len_bytes) <= job.max_block_bytes());
        }
        for d in &s.dirs {
            prop_assert_eq!(d.ios, d.clat.run.count());
            prop_assert_eq!(d.ios, d.slat.run.count());
            prop_assert_eq!(d.clat.run.sum() + d.slat.run.sum(), d.lat.run.sum());
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_ios(job in any_job(), seed in any::<u32>()) {
        let (a, b) = (run(&job, seed), run(&job, seed));
        prop_assert!(a.trace.iter().map(|i| (i.io, i.at)).eq(b.trace.iter().map(|i| (i.io, i.at))));
        prop_assert_eq!(a.data, b.data);
    }

    #[test]
    fn a_random_map_hands_out_no_block_twice_in_a_pass(mut job in any_job(), seed in any::<u32>()) {
        (job.rw, job.norandommap) = (Rw { mode: RwMode::Read, random: true }, false);
        (job.verify, job.number_ios, job.io_size, job.loops) = (None, None, None, 1);
        (job.percentage_random, job.rand_offset_every) = (PerDir::all(100), 1);
        job.random_distribution = PerDir::default();
        let harness = run(&job, seed);
        let unit = job.min_block_bytes();
        let mut blocks = BTreeSet::new();
        for i in &harness.trace {
            let first = (i.io.offset_bytes - harness.thread.region().start) / unit;
            for b in first..first + u64::from(i.io.len_bytes) / unit {
                prop_assert!(blocks.insert(b), "block {} twice", b);
            }
        }
        if matches!(job.block_sizes.read, BlockSizes::Fixed(_)) {
            prop_assert_eq!(blocks.len() as u64, harness.thread.region().len / unit);
        }
    }
}
