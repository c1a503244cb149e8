// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Latency histograms per CPU, and the rule by which a percentile is read from their sum.
//!
//! A bucket is a quarter of the domain's target wide: the first four are good, the last one takes all that is slower
//! than 1.75 times the target. Two kinds of latency are kept: *total*, from the allocation of the request, which
//! includes the wait for a token; and *I/O*, from its issue to the driver, which only the device determines.
//!
//! Guarantees: a sample is counted once. Needs: [`Windows`] under a lock. Not here: the domain `Other`, which has no
//! target.
//!
//! Source: Linux 6.19 block/kyber-iosched.c (`add_latency_sample`, `flush_latency_buckets`, `calculate_percentile`).

use super::domain::NR_TIMED;
use crate::time::{Duration, Instant};
use core::sync::atomic::{AtomicU32, Ordering};
use crossbeam_utils::CachePadded;

/// log2 of the number of buckets within the target.
pub(super) const LATENCY_SHIFT: u32 = 2;
/// Buckets below the target.
pub(super) const GOOD_BUCKETS: usize = 1 << LATENCY_SHIFT;
/// All buckets.
pub(super) const NR_BUCKETS: usize = 2 << LATENCY_SHIFT;

/// A percentile is computed at once from this many samples.
const ENOUGH_SAMPLES: u32 = 500;
/// After this time fewer samples are enough.
const WAIT_FOR_SAMPLES: Duration = Duration::from_secs(1);

/// What a latency is counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// From the allocation of the request.
    Total = 0,
    /// From its issue to the driver.
    Io = 1,
}

/// The bucket of a latency, both in nanoseconds: a bucket includes its upper end.
#[inline]
pub(super) fn bucket_of(latency_ns: u64, target_ns: u64) -> usize {
    let width = (target_ns >> LATENCY_SHIFT).max(1);
    (latency_ns.saturating_sub(1) / width).min(NR_BUCKETS as u64 - 1) as usize
}

type Buckets = [[[AtomicU32; NR_BUCKETS]; 2]; NR_TIMED];

/// Samples since the last collection, apart for each CPU: completions on two CPUs write no common cache line.
pub(super) struct CpuHistograms {
    cpus: Box<[CachePadded<Buckets>]>,
}

impl CpuHistograms {
    /// For CPUs 0..`nr_cpus`.
    pub(super) fn new(nr_cpus: u16) -> CpuHistograms {
        CpuHistograms { cpus: (0..nr_cpus).map(|_| CachePadded::new(Buckets::default())).collect() }
    }

    /// Counts one sample; several threads may count for one CPU.
    #[inline]
    pub(super) fn add(&self, cpu: usize, domain: usize, kind: Kind, bucket: usize) {
        self.cpus[cpu][domain][kind as usize][bucket].fetch_add(1, Ordering::Relaxed);
    }

    /// Moves all samples into `windows`.
    pub(super) fn collect(&self, windows: &mut Windows) {
        for of_cpu in &self.cpus {
            for (domain, window) in of_cpu.iter().zip(&mut windows.domains) {
                let sums = window.buckets.iter_mut().flatten();
                for (bucket, sum) in domain.iter().flatten().zip(sums) {
                    // Most are empty: a look writes no cache line of a CPU that did nothing.
                    if bucket.load(Ordering::Relaxed) != 0 {
                        *sum += bucket.swap(0, Ordering::Relaxed);
                    }
                }
            }
        }
    }
}

/// Samples that were collected and not yet used for a percentile, per domain.
#[derive(Default)]
pub(super) struct Windows {
    domains: [Window; NR_TIMED],
}

#[derive(Default)]
struct Window {
    buckets: [[u32; NR_BUCKETS]; 2],
    /// When few samples become enough. Both kinds of latency share this deadline, as in the kernel: the first kind that
    /// is read after the deadline clears it. So with few samples the I/O latency is read each second, and the total
    /// latency gathers samples until it has 500.
    deadline: Option<Instant>,
}

impl Windows {
    /// Returns the bucket of the given percentile once there are enough samples, and discards these. The time until few
    /// samples are enough begins with the first call that finds any.
    pub(super) fn percentile(&mut self, domain: usize, kind: Kind, percent: u32, now: Instant) -> Option<usize> {
        let window = &mut self.domains[domain];
        let buckets = &mut window.buckets[kind as usize];
        let samples: u32 = buckets.iter().sum();
        if samples == 0 {
            return None;
        }
        let deadline = *window.deadline.get_or_insert(now + WAIT_FOR_SAMPLES);
        if samples < ENOUGH_SAMPLES && now < deadline {
            return None;
        }
        window.deadline = None;
        Some(percentile_bucket(&core::mem::take(buckets), percent))
    }
}

/// The first bucket at or below which `percent` of the samples lie, rounded up to whole samples.
fn percentile_bucket(buckets: &[u32; NR_BUCKETS], percent: u32) -> usize {
    let samples: u64 = buckets.iter().copied().map(u64::from).sum();
    let wanted = (samples * u64::from(percent)).div_ceil(100);
    let mut below = 0;
    let reaches = |n: &u32| {
        below += u64::from(*n);
        below >= wanted
    };
    buckets.iter().position(reaches).expect("all samples are in some bucket")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const READ: usize = 0;

    fn at_ms(ms: u64) -> Instant {
        Instant::from_ns(ms * MS)
    }

    /// A window of domain `READ` with these I/O latency buckets.
    fn collected(kind: Kind, buckets: [u32; NR_BUCKETS]) -> (CpuHistograms, Windows) {
        let (cpus, mut windows) = (CpuHistograms::new(2), Windows::default());
        for (bucket, n) in buckets.into_iter().enumerate() {
            (0..n).for_each(|i| cpus.add(i as usize % 2, READ, kind, bucket));
        }
        cpus.collect(&mut windows);
        (cpus, windows)
    }

    #[test]
    fn buckets_are_quarters_of_the_target_upper_end_included() {
        let target = 2 * MS;
        let of = |us: u64| bucket_of(us * 1000, target);
        assert_eq!([of(0), of(1), of(500), of(1000), of(2000)], [0, 0, 0, 1, 3]);
        assert_eq!(bucket_of(500_001, target), 1);
        assert_eq!(bucket_of(2 * MS + 1, target), 4, "just beyond the target is not good");
        assert_eq!([of(3500), bucket_of(3_500_001, target), of(1_000_000)], [6, 7, 7]);
        // A target below four nanoseconds: buckets of one nanosecond.
        assert_eq!([bucket_of(1, 0), bucket_of(2, 0), bucket_of(8, 3), bucket_of(9, 3)], [0, 1, 7, 7]);
    }

    #[test]
    fn the_percentile_rounds_samples_up() {
        // 90 % of 10 is 9 samples; of 11 it is 9.9, so 10.
        assert_eq!(percentile_bucket(&[9, 0, 0, 0, 1, 0, 0, 0], 90), 0);
        assert_eq!(percentile_bucket(&[9, 0, 0, 0, 2, 0, 0, 0], 90), 4);
        assert_eq!(percentile_bucket(&[1, 1, 1, 1, 1, 1, 1, 1], 50), 3);
        assert_eq!(percentile_bucket(&[0, 0, 0, 0, 0, 0, 0, 1], 99), 7);
        assert_eq!(percentile_bucket(&[99, 0, 1, 0, 0, 0, 0, 0], 99), 0);
        assert_eq!(percentile_bucket(&[98, 0, 2, 0, 0, 0, 0, 0], 99), 2);
    }

    #[test]
    fn five_hundred_samples_are_enough_at_once_and_used_once() {
        let (_, mut w) = collected(Kind::Io, [0, 0, 499, 0, 0, 0, 0, 0]);
        assert_eq!(w.percentile(READ, Kind::Io, 90, at_ms(100)), None);
        let (_, mut w) = collected(Kind::Io, [0, 0, 500, 0, 0, 0, 0, 0]);
        assert_eq!(w.percentile(READ, Kind::Io, 90, at_ms(100)), Some(2));
        assert_eq!(w.percentile(READ, Kind::Io, 90, at_ms(5000)), None, "the samples are gone");
    }

    #[test]
    fn few_samples_are_enough_a_second_after_they_were_first_seen() {
        let (cpus, mut w) = collected(Kind::Io, [1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(w.percentile(READ, Kind::Io, 90, at_ms(100)), None);
        cpus.add(0, READ, Kind::Io, 6);
        cpus.collect(&mut w);
        assert_eq!(w.percentile(READ, Kind::Io, 90, at_ms(1099)), None);
        assert_eq!(w.percentile(READ, Kind::Io, 90, at_ms(1100)), Some(6));
        // The next second begins when the next sample is seen.
        cpus.add(1, READ, Kind::Io, 1);
        cpus.collect(&mut w);
        assert_eq!(w.percentile(READ, Kind::Io, 90, at_ms(9000)), None);
        assert_eq!(w.percentile(READ, Kind::Io, 90, at_ms(10_000)), Some(1));
    }

    #[test]
    fn both_kinds_share_the_second() {
        let (cpus, mut w) = collected(Kind::Io, [3, 0, 0, 0, 0, 0, 0, 0]);
        (0..3).for_each(|_| cpus.add(0, READ, Kind::Total, 5));
        cpus.collect(&mut w);
        let both = |w: &mut Windows, ms| {
            (w.percentile(READ, Kind::Io, 90, at_ms(ms)), w.percentile(READ, Kind::Total, 99, at_ms(ms)))
        };
        assert_eq!(both(&mut w, 100), (None, None));
        assert_eq!(both(&mut w, 1100), (Some(0), None), "the first to be read has cleared the deadline");
        assert_eq!(both(&mut w, 2099), (None, None));
        assert_eq!(both(&mut w, 2100), (None, Some(5)), "no I/O sample came in between");
    }
}
