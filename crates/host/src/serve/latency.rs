// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Latencies of a source's I/Os: a log-linear histogram with one writer, its IOThread, and any number of readers.
//!
//! Guarantees: recording takes no lock, reads no clock and allocates nothing. One thread writes at a time, so no count is lost; a reader
//! sees each count as of some moment. A latency is that of a bio: from the round in which the source submitted it (waiting for a slot
//! included) to the round that found its completion.

use blk::time::Instant;
use std::sync::atomic::{AtomicU64, Ordering};
use workload::hist::{BUCKETS, Histogram};

use super::port::SourceId;

/// I/Os with a larger number of the source are not timed: no source has that many in flight.
const OWN_MAX: usize = 1 << 16;

/// See the module's text.
pub(super) struct Latency(Box<[AtomicU64]>);

impl Latency {
    pub(super) fn new() -> Latency {
        Latency((0..BUCKETS).map(|_| AtomicU64::new(0)).collect())
    }

    /// Counts one I/O. Only the thread that serves the source may call it.
    #[inline]
    pub(super) fn record(&self, ns: u64) {
        let count = &self.0[Histogram::bucket_of(ns)];
        // Relaxed: counts with one writer, and nothing else depends on them.
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Returns the counts so far, in ascending order: nanoseconds and how many.
    pub(super) fn bins(&self) -> Vec<(u64, u64)> {
        let counts = self.0.iter().map(|c| c.load(Ordering::Relaxed)).enumerate();
        counts.filter(|(_, n)| *n > 0).map(|(bucket, n)| (Histogram::value_of(bucket), n)).collect()
    }
}

/// Submission times of I/Os in flight, by source and the source's own number.
#[derive(Default)]
pub(super) struct Starts(Vec<Vec<u64>>);

impl Starts {
    #[inline]
    pub(super) fn begin(&mut self, user_data: u64, now: Instant) {
        let (source, own) = SourceId::of(user_data);
        match self.0.get_mut(source).and_then(|all| all.get_mut(own as usize)) {
            Some(start) => *start = now.as_ns(),
            None => self.grow(source, own as usize, now),
        }
    }

    #[cold]
    fn grow(&mut self, source: usize, own: usize, now: Instant) {
        if own >= OWN_MAX {
            return;
        }
        if source >= self.0.len() {
            self.0.resize_with(source + 1, Vec::new);
        }
        let all = &mut self.0[source];
        all.resize(all.len().max((own + 1).next_power_of_two()), 0);
        all[own] = now.as_ns();
    }

    /// Returns how long an I/O that completes at `now` took, in nanoseconds.
    #[inline]
    pub(super) fn took(&self, user_data: u64, now: Instant) -> Option<u64> {
        let (source, own) = SourceId::of(user_data);
        let start = self.0.get(source)?.get(own as usize)?;
        Some(now.as_ns().saturating_sub(*start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_submitted_is_timed_by_source_and_number() {
        let mut starts = Starts::default();
        let of = |source: u32, own: u32| SourceId(source).tagged(own);
        let at = Instant::from_ns;
        starts.begin(of(3, 100), at(1000));
        starts.begin(of(0, 0), at(2000));
        starts.begin(of(3, 1023), at(3000));
        let took = |source, own| starts.took(of(source, own), at(3500));
        assert_eq!([took(3, 100), took(0, 0), took(3, 1023)], [Some(2500), Some(1500), Some(500)]);
        assert_eq!([took(3, 1024), took(4, 0), took(1, 0)], [None; 3]);
        starts.begin(of(0, u32::MAX), at(1));
        assert_eq!(starts.took(of(0, u32::MAX), at(2)), None, "no memory for unused numbers");
        let latency = Latency::new();
        [5, 5, 1_000_000].into_iter().for_each(|ns| latency.record(ns));
        let bins = latency.bins();
        assert_eq!((bins[0], bins.len(), bins[1].1), ((5, 2), 2, 1));
        assert!(bins[1].0.abs_diff(1_000_000) < 8000, "{bins:?}");
    }
}
