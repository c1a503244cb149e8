// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What bfq finds out about the disk: where its head is, whether it queues internally, and its peak rate.
//!
//! The rate is the number of sectors dispatched, divided by the time that took, through a low-pass filter. Requests of
//! seeky queues and of other queues are measured apart. Each interval counts only from one request to the next of the
//! same kind, without pauses of the disk. So a sequential queue's rate is the same whether or not others have turns in
//! between. Mostly sequential service always counts; other service counts only when it is faster than the known rate.
//! The rate decides the largest budget (what `timeout_sync` can serve at that rate) and how long an interactive start
//! is helped.
//!
//! Guarantees: nothing below [`MIN_INTERVAL`] of service or [`MIN_SAMPLES`] requests changes the rate. A change goes at most
//! half of the way to the measured value. Source: `bfq_update_peak_rate`, `bfq_update_hw_tag`.

use super::budget::DEFAULT_MAX_BUDGET;
use super::io_pattern::is_seek;
use super::tunables::Rules;
use crate::request::Request;
use crate::time::{Duration, Instant};

/// Rates are sectors per microsecond in units of 1 / 65536.
const RATE_SHIFT: u32 = 16;
/// Rates of typical disks: without head 258 MB/s, with head 109 MB/s.
const REFERENCE_RATE: [u64; 2] = [33_000, 14_000];
/// How long an interactive start takes on these disks.
const REFERENCE_START: [Duration; 2] = [Duration::from_ms(2500), Duration::from_ms(7000)];
const START_BOUNDS: [Duration; 2] = [Duration::from_ms(3000), Duration::from_ms(25_000)];
/// A rate above 10 GB/s is taken for an error of measurement.
pub const MAX_SECTORS_PER_US: u64 = 20;
const MAX_RATE: u64 = MAX_SECTORS_PER_US << RATE_SHIFT;
const MIN_SAMPLES: u64 = 32;
const MIN_INTERVAL: Duration = Duration::from_ms(300);
/// An interval ends when it is this long, and then counts in full.
const FULL_INTERVAL: Duration = Duration::from_ms(1000);
/// A pause of the disk longer than this ends an interval.
const PAUSE: Duration = Duration::from_ms(100);
/// A request dispatched this soon after a completion, or with others at the disk, may be a continuation.
const AT_ONCE: Duration = Duration::from_ms(2);
/// With more than this between two completions, and a rate below [`TOO_LITTLE`] in that time, the disk is not at its
/// peak.
const SLOW: Duration = Duration::from_ms(2);
/// In sectors per microsecond, as rates are: 0.5 MB/s.
const TOO_LITTLE: u64 = 1 << (RATE_SHIFT - 10);
/// The largest of the last requests is determined anew after so many requests.
const LARGEST_OF: u32 = 32;
/// A disk that had more requests than this in flight queues internally.
const QUEUES_ABOVE: u32 = 3;
/// Whether the disk queues is decided anew after so many samples of the depth.
const DEPTH_SAMPLES: u32 = 32;

/// The disk as bfq sees it.
pub(crate) struct Device {
    /// Requests dispatched and not completed.
    pub(crate) nr_out: u32,
    /// The sector after the last dispatched request.
    pub(crate) head: u64,
    queues: bool,
    deepest: u32,
    nr_depths: u32,
    rate: Option<u64>,
    /// One for queues that are not seeky, one for those that are.
    intervals: [Interval; 2],
    /// When a request was last dispatched, and whether its queue was seeky.
    last: Option<(Instant, bool)>,
    last_completion: Instant,
    /// Sectors of the largest of the last requests, and how many those are.
    largest: (u32, u32),
}

/// Service of one kind of queues, without the time spent on the other kind.
#[derive(Clone, Copy, Default)]
struct Interval {
    took: Duration,
    samples: u64,
    sequential: u64,
    sectors: u64,
}

impl Device {
    pub(crate) fn new() -> Device {
        Device {
            nr_out: 0,
            head: 0,
            // Assumed until measured otherwise.
            queues: true,
            deepest: 0,
            nr_depths: 0,
            rate: None,
            intervals: [Interval::default(); 2],
            last: None,
            last_completion: Instant::ZERO,
            largest: (0, 0),
        }
    }

    /// The disk works on several requests at once.
    #[inline]
    pub(crate) fn queues(&self) -> bool {
        self.queues
    }

    /// A request goes to the disk, of a queue that is seeky or not.
    #[inline]
    pub(crate) fn given_out(&mut self, rq: &Request, seeky: bool, rules: &Rules) {
        let now = rules.now;
        let since_completion = now.since(self.last_completion);
        if self.nr_out == 0 && since_completion >= PAUSE && self.last.take().is_some() {
            self.end_intervals(rules);
        }
        if let Some((last, kind)) = self.last.replace((now, seeky))
            && kind == seeky
        {
            let may_continue = self.nr_out > 0 || since_completion < AT_ONCE;
            let i = &mut self.intervals[usize::from(seeky)];
            i.took = i.took + now.since(last);
            i.samples += 1;
            i.sequential += u64::from(may_continue && !is_seek(rq, self.head, rules));
            i.sectors += u64::from(rq.nr_sectors());
            if i.took >= FULL_INTERVAL {
                let interval = core::mem::take(i);
                self.learn(&interval, rules);
            }
        }
        let (largest, of) = self.largest;
        self.largest = match of {
            LARGEST_OF.. => (rq.nr_sectors(), 1),
            _ => (largest.max(rq.nr_sectors()), of + 1),
        };
        self.nr_out += 1;
        self.head = rq.end_sector().0;
    }

    /// A request completed. `nr_queued`: requests that wait in the elevator.
    #[inline]
    pub(crate) fn completed(&mut self, nr_queued: u32, rules: &Rules) {
        let took = rules.now.since(self.last_completion);
        if took > SLOW && (u64::from(self.largest.0) << RATE_SHIFT) / (took.as_ns() / 1000) < TOO_LITTLE {
            self.last = None;
            self.end_intervals(rules);
        }
        self.last_completion = rules.now;
        self.deepest = self.deepest.max(self.nr_out);
        if self.nr_out + nr_queued > QUEUES_ABOVE {
            self.nr_depths += 1;
            if self.nr_depths == DEPTH_SAMPLES {
                self.queues = self.deepest > QUEUES_ABOVE;
                self.nr_depths = 0;
                self.deepest = 0;
            }
        }
        self.nr_out -= 1;
    }

    /// Ends both intervals, because what follows cannot be measured together with what came before.
    #[cold]
    fn end_intervals(&mut self, rules: &Rules) {
        for interval in core::mem::take(&mut self.intervals) {
            self.learn(&interval, rules);
        }
    }

    fn learn(&mut self, i: &Interval, rules: &Rules) {
        if i.samples < MIN_SAMPLES || i.took < MIN_INTERVAL {
            return;
        }
        let old = self.rate_or_guess(rules);
        let rate = (i.sectors << RATE_SHIFT) / (i.took.as_ns() / 1000);
        let mostly_sequential = i.sequential * 4 >= i.samples * 3;
        if rate <= MAX_RATE && (mostly_sequential || rate > old) {
            // The more sequential and the longer the interval was, the more the new value counts.
            let weight = 9 * i.sequential / i.samples * i.took.as_ns() / FULL_INTERVAL.as_ns();
            let parts = 10 - weight.min(8);
            self.rate = Some((old * (parts - 1) / parts + rate / parts).max(1));
        }
    }

    /// Returns the measured rate; before the first measurement, two thirds of that of a typical disk.
    fn rate_or_guess(&self, rules: &Rules) -> u64 {
        self.rate.unwrap_or(REFERENCE_RATE[usize::from(rules.rotational)] * 2 / 3)
    }

    /// The largest budget on this disk: what `timeout_sync` can serve at its rate.
    pub(crate) fn max_budget(&self, rules: &Rules) -> u32 {
        match self.rate {
            None => DEFAULT_MAX_BUDGET,
            Some(rate) => {
                let us = rules.timeout.as_ns() / 1000;
                u32::try_from((rate.saturating_mul(us)) >> RATE_SHIFT).unwrap_or(u32::MAX).max(1)
            }
        }
    }

    /// How long an interactive start takes on this disk.
    pub(crate) fn start_duration(&self, rules: &Rules) -> Duration {
        let kind = usize::from(rules.rotational);
        let ns = REFERENCE_START[kind].as_ns() * REFERENCE_RATE[kind] / self.rate_or_guess(rules);
        Duration::from_ns(ns).clamp(START_BOUNDS[0], START_BOUNDS[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bio::{Bio, DataRef};
    use crate::elevator::bfq::tunables::BfqTunables;
    use crate::elevator::testbed::TestBed;
    use crate::id::Sector;
    use crate::limits::Limits;

    /// Gives out and completes `nr` requests of 256 sectors, `us` apart, `stride` sectors from start to start.
    fn run(nr: u64, us: u64, stride: u64) -> (Device, Rules) {
        let mut bed = TestBed::new(1, 1, Limits::default());
        let mut d = Device::new();
        for i in 0..nr {
            let now = Instant::from_ns((1 + i) * us * 1000);
            let bio = bed.bio(Bio::read(Sector(i * stride), 256, DataRef::NONE), now);
            let rq = bed.request(bio, now);
            let rules = BfqTunables::new().rules(&bed.cx(now));
            d.given_out(bed.get(&rq), false, &rules);
            d.completed(0, &rules);
            bed.free(rq);
        }
        let rules = BfqTunables::new().rules(&bed.cx(Instant::ZERO));
        (d, rules)
    }

    #[test]
    fn the_largest_budget_is_what_the_disk_can_serve_in_a_turn() {
        let (d, rules) = run(20, 1000, 256);
        assert_eq!(d.max_budget(&rules), DEFAULT_MAX_BUDGET, "nothing known yet");
        // 256 sectors a millisecond: 32000 in 125 ms.
        let (d, rules) = run(20_000, 1000, 256);
        let budget = d.max_budget(&rules);
        assert!((31_990..=32_000).contains(&budget), "{budget}");
        // 0.256 sectors/us are 16777 / 65536: a little slower than the reference of 33000, which takes 2.5 s.
        let start = d.start_duration(&rules);
        assert!((4915..=4920).contains(&start.as_ms()), "{start:?}");
    }

    #[test]
    fn random_io_does_not_lower_the_known_rate() {
        let (sequential, rules) = run(20_000, 1000, 256);
        let mut bed = TestBed::new(1, 1, Limits::default());
        let mut d = sequential;
        let before = d.max_budget(&rules);
        for i in 0..2000u64 {
            let now = Instant::from_ns(30_000_000_000 + i * 10_000_000);
            let bio = bed.bio(Bio::read(Sector(i * 1_000_000), 8, DataRef::NONE), now);
            let rq = bed.request(bio, now);
            let rules = BfqTunables::new().rules(&bed.cx(now));
            d.given_out(bed.get(&rq), i > 40, &rules);
            d.completed(0, &rules);
            bed.free(rq);
        }
        assert_eq!(d.max_budget(&rules), before);
    }

    #[test]
    fn a_disk_given_one_at_a_time_is_judged_by_what_it_was_given() {
        let mut bed = TestBed::new(8, 8, Limits::default());
        let mut d = Device::new();
        let now = Instant::ZERO;
        let bio = bed.bio(Bio::read(Sector(0), 8, DataRef::NONE), now);
        let rq = bed.request(bio, now);
        let round = |d: &mut Device, depth: u32, times: u32| {
            let rules = BfqTunables::new().rules(&bed.cx(now));
            for _ in 0..times {
                (0..depth).for_each(|_| d.given_out(bed.get(&rq), false, &rules));
                (0..depth).for_each(|_| d.completed(8, &rules));
            }
        };
        round(&mut d, 1, 31);
        assert!(d.queues());
        round(&mut d, 1, 1);
        assert!(!d.queues(), "never more than one of many");
        round(&mut d, 4, 8);
        assert!(d.queues());
    }
}
