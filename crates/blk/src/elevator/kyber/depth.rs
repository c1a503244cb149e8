// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Depth control: every 100 ms under load, check the latencies and make the domains deeper or shallower.
//!
//! The disk is *congested* if the 90th percentile of any domain's I/O latency is beyond its target. Then the depth of
//! every domain is multiplied by (b + 1) / 4, where `b` is the bucket of the 99th percentile of its total latency (the
//! target is the upper end of bucket 3). So fast domains get shallower, and domains that miss their target get deeper,
//! between 1 and the domain's greatest depth. A domain that has too few samples then is judged by its last percentile,
//! once. Without congestion only domains beyond their target change, and they can only go deeper.
//!
//! There is no timer here. A completion sets the time at which the kernel's timer would fire. The next call into the
//! elevator at or after that time does the work *as of that time*. No sample comes between the two (adding one does the work
//! first), so the outcome is the timer's.
//!
//! Source: Linux 6.19 block/kyber-iosched.c (`kyber_timer_fn`, `kyber_resize_domain`).

use super::domain::{NR_TIMED, Tokens};
use super::latency::{CpuHistograms, GOOD_BUCKETS, Kind, LATENCY_SHIFT, Windows};
use crate::sync::{AtomicU64, Mutex, Ordering};
use crate::time::{Duration, Instant};
use crossbeam_utils::CachePadded;
use lock_api::RawMutex;

/// From the first completion after a check to the next check.
const PERIOD: Duration = Duration::from_ms(100);
/// No check is due.
const NEVER: u64 = u64::MAX;

/// The control of one disk's domains.
pub(super) struct DepthControl<L> {
    /// When the next check is due, ns; `NEVER` when nothing completed since the last.
    due_ns: CachePadded<AtomicU64>,
    judge: Mutex<L, Judge>,
}

#[derive(Default)]
struct Judge {
    windows: Windows,
    /// Per domain: the percentile of a check without congestion, kept for the next check with congestion.
    last_p99: [Option<usize>; NR_TIMED],
}

impl<L: RawMutex> DepthControl<L> {
    pub(super) fn new() -> DepthControl<L> {
        DepthControl { due_ns: CachePadded::new(AtomicU64::new(NEVER)), judge: Mutex::new(Judge::default()) }
    }

    /// Something completed at `now` and was counted.
    #[inline]
    pub(super) fn arm(&self, now: Instant) {
        if self.due_ns.load(Ordering::Relaxed) == NEVER {
            // This may overwrite a time that another CPU has just set. The two times differ no more than the two calls
            // do.
            self.due_ns.store((now + PERIOD).as_ns(), Ordering::Relaxed);
        }
    }

    /// Makes the check that is due at `now`, if any.
    #[inline]
    pub(super) fn look_if_due(&self, now: Instant, cpus: &CpuHistograms, tokens: &[Tokens<L>]) {
        let due_ns = self.due_ns.load(Ordering::Relaxed);
        if now.as_ns() >= due_ns && due_ns != NEVER {
            self.look(due_ns, cpus, tokens);
        }
    }

    #[cold]
    fn look(&self, due_ns: u64, cpus: &CpuHistograms, tokens: &[Tokens<L>]) {
        // One caller; the others continue without waiting for it.
        if self.due_ns.compare_exchange(due_ns, NEVER, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        let mut judge = self.judge.lock();
        cpus.collect(&mut judge.windows);
        judge.look(Instant::from_ns(due_ns), tokens);
    }
}

impl Judge {
    fn look<L: RawMutex>(&mut self, now: Instant, tokens: &[Tokens<L>]) {
        let mut congested = false;
        for domain in 0..NR_TIMED {
            // All domains are read, so that no sample is judged twice.
            let p90 = self.windows.percentile(domain, Kind::Io, 90, now);
            congested |= p90.is_some_and(|b| b >= GOOD_BUCKETS);
        }
        for (domain, tokens) in tokens.iter().enumerate().take(NR_TIMED) {
            let mut p99 = self.windows.percentile(domain, Kind::Total, 99, now);
            if congested {
                // The remembered percentile is valid for one congested check: remove it even if this check does not need it.
                let last = self.last_p99[domain].take();
                p99 = p99.or(last);
            } else if p99.is_some() {
                self.last_p99[domain] = p99;
            }
            if let Some(b) = p99
                && (congested || b >= GOOD_BUCKETS)
            {
                tokens.resize((u64::from(tokens.depth()) * (b as u64 + 1)) >> LATENCY_SHIFT);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::domain::DEPTH;
    use super::*;

    type Lock = parking_lot::RawMutex;
    const READ: usize = 0;
    const WRITE: usize = 1;
    const DISCARD: usize = 2;

    struct Fixture {
        control: DepthControl<Lock>,
        cpus: CpuHistograms,
        tokens: Vec<Tokens<Lock>>,
        now: Instant,
    }

    impl Fixture {
        fn new() -> Fixture {
            Fixture {
                control: DepthControl::new(),
                cpus: CpuHistograms::new(1),
                tokens: DEPTH.map(Tokens::new).into(),
                now: Instant::from_ns(1_000_000_000),
            }
        }

        /// `n` completions with these buckets of I/O and of total latency.
        fn complete(&mut self, n: u32, domain: usize, io: usize, total: usize) -> &mut Fixture {
            for _ in 0..n {
                self.cpus.add(0, domain, Kind::Io, io);
                self.cpus.add(0, domain, Kind::Total, total);
            }
            self.control.arm(self.now);
            self
        }

        fn pass_ms(&mut self, ms: u64) {
            self.now = self.now + Duration::from_ms(ms);
            self.control.look_if_due(self.now, &self.cpus, &self.tokens);
        }

        /// The depths a tenth of a second later.
        fn look(&mut self) -> Vec<u32> {
            self.pass_ms(100);
            self.tokens.iter().map(Tokens::depth).collect()
        }
    }

    #[test]
    fn without_congestion_nothing_gets_shallower() {
        let mut f = Fixture::new();
        assert_eq!(f.complete(500, READ, 0, 0).look(), [256, 128, 64, 16]);
        assert_eq!(f.complete(500, READ, 3, 3).look(), [256, 128, 64, 16], "on target is not beyond it");
    }

    #[test]
    fn congestion_holds_back_what_is_fast() {
        let mut f = Fixture::new();
        // Writes take the disk's time (I/O p90 in bucket 5); reads are well within their target (total p99 in bucket 1).
        f.complete(500, READ, 0, 1).complete(500, WRITE, 5, 2);
        // 256 x 2/4 and 128 x 3/4. Discards have no samples, the last domain is not judged.
        assert_eq!(f.look(), [128, 96, 64, 16]);
        f.complete(500, READ, 0, 0).complete(500, WRITE, 4, 6);
        // 128 x 1/4; 96 x 7/4 = 168, more than writes may have.
        assert_eq!(f.look(), [32, 128, 64, 16]);
        f.complete(500, READ, 7, 0).complete(500, DISCARD, 0, 2);
        // 32 x 1/4, 64 x 3/4.
        assert_eq!(f.look(), [8, 128, 48, 16]);
    }

    #[test]
    fn a_depth_stays_within_one_and_the_domains_own() {
        let mut f = Fixture::new();
        for depth in [64, 16, 4, 1, 1] {
            assert_eq!(f.complete(500, READ, 7, 0).look()[READ], depth);
        }
        // Beyond its target a domain gets deeper with or without congestion: x 8/4, then x 5/4 rounded down.
        for depth in [2, 4, 8] {
            assert_eq!(f.complete(500, READ, 0, 7).look()[READ], depth);
        }
        for depth in [10, 12, 15] {
            assert_eq!(f.complete(500, READ, 0, 4).look()[READ], depth);
        }
        for depth in [30, 60, 120, 240, 256, 256] {
            assert_eq!(f.complete(500, READ, 7, 7).look()[READ], depth);
        }
    }

    #[test]
    fn a_percentile_is_remembered_for_one_congested_look() {
        let mut f = Fixture::new();
        // A quiet look: the read percentile (bucket 1) is kept.
        assert_eq!(f.complete(500, READ, 0, 1).look()[READ], 256);
        // Congested by writes, reads without samples: 256 x 2/4.
        assert_eq!(f.complete(500, WRITE, 7, 3).look(), [128, 128, 64, 16]);
        // Again: it has been used.
        assert_eq!(f.complete(500, WRITE, 7, 3).look(), [128, 128, 64, 16]);
        // A percentile of a congested look is not kept.
        assert_eq!(f.complete(500, READ, 7, 1).look()[READ], 64);
        assert_eq!(f.complete(500, WRITE, 7, 3).look()[READ], 64);
    }

    #[test]
    fn depths_are_adjusted_100_ms_after_the_first_completion() {
        let mut f = Fixture::new();
        f.complete(250, READ, 7, 0).pass_ms(60);
        f.complete(250, READ, 7, 0).pass_ms(39);
        assert_eq!(f.tokens[READ].depth(), 256, "99 ms");
        f.pass_ms(1);
        assert_eq!(f.tokens[READ].depth(), 64, "100 ms after the first");
    }

    #[test]
    fn a_late_look_is_made_as_of_the_time_it_was_due() {
        let mut f = Fixture::new();
        // Due at 100 ms: the second in which few samples are not enough ends at 1100 ms, whenever it is polled.
        f.complete(1, READ, 7, 0).pass_ms(30_000);
        assert_eq!(f.tokens[READ].depth(), 256);
        f.complete(1, READ, 7, 0);
        f.cpus.add(0, READ, Kind::Total, 0);
        // The I/O latency's percentile shows congestion. The total latency has too few samples, and none of its percentiles was
        // kept.
        assert_eq!(f.look()[READ], 256);
        f.pass_ms(10_000);
        assert_eq!(f.tokens[READ].depth(), 256, "nothing completed, nothing is due");
    }
}
