// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A device of given speed, modelled by arithmetic: rate caps, units of service, latency with jitter.
//!
//! Guarantees: the completion time of an I/O depends only on the I/Os before it and the seed; caps hold exactly over a run
//! of any length. The host's driver `model` uses it in real time, the simulator in virtual time. So a capped cloud disk
//! behaves in the same way in both. Needs from callers: monotonic times. Does not do: data, completions.

use crate::time::{Duration, Instant};
use core::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// How fast a [`Device`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed {
    /// Each latency varies evenly by up to this many percent in both directions, 0..=100.
    pub jitter_pct: u32,
    /// Seed of the jitter.
    pub seed: u64,
    /// Maximum number of I/Os per second; 0 = no cap.
    pub iops: u64,
    /// Maximum number of bytes per second; 0 = no cap.
    pub bytes_per_sec: u64,
    /// The burst after a pause, as a time: the caps let through at once what they admit in this time.
    pub burst: Duration,
    /// I/Os in service at once, 1 or more (the driver `model` takes 1..=65536).
    pub parallel: u32,
}

impl Default for Speed {
    fn default() -> Speed {
        Speed { jitter_pct: 0, seed: 1, iops: 0, bytes_per_sec: 0, burst: Duration::from_ms(1), parallel: 64 }
    }
}

/// A token bucket, stored as the time at which it is full again (GCRA): one number, no refill step.
#[derive(Debug)]
pub struct TokenBucket {
    per_sec: u64,
    depth_ns: u64,
    full_at_ns: u64,
    /// Fraction of a nanosecond not yet charged, in 1/per_sec: caps hold over any run length.
    rest: u64,
}

impl TokenBucket {
    /// Makes a full bucket that gets `per_sec` tokens a second (0 = no cap) and holds as many as it gets in `depth`.
    pub fn new(per_sec: u64, depth: Duration) -> TokenBucket {
        TokenBucket { per_sec, depth_ns: depth.as_ns(), full_at_ns: 0, rest: 0 }
    }

    /// Takes `tokens`. Returns the earliest time from `now` on at which they may pass.
    pub fn take(&mut self, tokens: u64, now: Instant) -> Instant {
        if self.per_sec == 0 || tokens == 0 {
            return now;
        }
        let cost = u128::from(tokens) * 1_000_000_000 + u128::from(self.rest);
        let cost_ns = (cost / u128::from(self.per_sec)) as u64;
        self.rest = (cost % u128::from(self.per_sec)) as u64;
        let full_at = self.full_at_ns.max(now.as_ns()).saturating_add(cost_ns);
        self.full_at_ns = full_at;
        // An I/O within the tokens of the bucket passes at once. An I/O larger than the bucket waits until the bucket
        // is full.
        Instant::from_ns(full_at.saturating_sub(self.depth_ns.max(cost_ns)).max(now.as_ns()))
    }
}

/// The times at which the units become free. Times are added nearly in order, and there may be tens of thousands of units. A
/// time that belongs near the end of the sorted queue is inserted there, which touches the same few cache lines. Only the
/// others go into a heap.
#[derive(Debug)]
struct Units {
    /// Units that were not used yet.
    unused: u32,
    sorted: VecDeque<u64>,
    others: BinaryHeap<Reverse<u64>>,
}

/// How far from the end of the sorted queue a time may be inserted.
const NEAR_THE_END: usize = 64;

impl Units {
    fn new(count: u32) -> Units {
        Units { unused: count, sorted: VecDeque::new(), others: BinaryHeap::new() }
    }

    /// Takes the unit that is free first. Returns the time from which it is free, which may have passed.
    #[inline]
    fn take_first(&mut self) -> u64 {
        if self.unused > 0 {
            self.unused -= 1;
            return 0;
        }
        let other = self.others.peek().map_or(u64::MAX, |Reverse(at)| *at);
        match self.sorted.front() {
            Some(at) if *at <= other => self.sorted.pop_front().expect("it has a front"),
            _ => self.others.pop().expect("a device has units").0,
        }
    }

    /// Adds a unit that is free from `at` on.
    #[inline]
    fn put(&mut self, at: u64) {
        let len = self.sorted.len();
        if len > NEAR_THE_END && self.sorted[len - 1 - NEAR_THE_END] > at {
            return self.others.push(Reverse(at));
        }
        match self.sorted.iter().rev().take_while(|t| **t > at).count() {
            0 => self.sorted.push_back(at),
            behind => self.sorted.insert(len - behind, at),
        }
    }
}

/// The device, which computes when an I/O that is issued now completes.
#[derive(Debug)]
pub struct Device {
    iops: TokenBucket,
    bandwidth: TokenBucket,
    units: Units,
    jitter_pct: u64,
    random: u64,
}

impl Device {
    /// Makes an idle device. [`Device::admit`] panics if the device has no unit.
    pub fn new(o: &Speed) -> Device {
        Device {
            iops: TokenBucket::new(o.iops, o.burst),
            bandwidth: TokenBucket::new(o.bytes_per_sec, o.burst),
            units: Units::new(o.parallel),
            jitter_pct: u64::from(o.jitter_pct),
            random: o.seed,
        }
    }

    /// Returns when an I/O completes that is issued at `now`, transfers `bytes` and takes `latency` in service.
    pub fn admit(&mut self, bytes: u64, latency: Duration, now: Instant) -> Instant {
        let admitted = self.iops.take(1, now).max(self.bandwidth.take(bytes, now));
        let latency = self.spread(latency);
        let free_at = self.units.take_first();
        let done = Instant::from_ns(free_at.max(admitted.as_ns())) + latency;
        self.units.put(done.as_ns());
        done
    }

    fn spread(&mut self, latency: Duration) -> Duration {
        let span = latency.as_ns() / 100 * self.jitter_pct;
        if span == 0 {
            return latency;
        }
        let offset = ((u128::from(self.next_random()) * u128::from(2 * span + 1)) >> 64) as u64;
        Duration::from_ns(latency.as_ns() - span + offset)
    }

    /// SplitMix64 (Steele, Lea, Flood 2014).
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;

    fn options() -> Speed {
        Speed { parallel: 4, burst: Duration::ZERO, ..Speed::default() }
    }

    /// Issues `n` I/Os of `bytes` at time 0. Returns when each completes, in microseconds.
    fn done_us(o: &Speed, n: usize, bytes: u64) -> Vec<u64> {
        let mut d = Device::new(o);
        (0..n).map(|_| d.admit(bytes, Duration::from_us(100), Instant::from_ns(0)).as_ns() / US).collect()
    }

    #[test]
    fn what_exceeds_the_units_queues_inside() {
        assert_eq!(done_us(&options(), 9, 4096), [100, 100, 100, 100, 200, 200, 200, 200, 300]);
    }

    #[test]
    fn the_unit_that_is_free_first_is_taken() {
        for spread in [10, 100, 1000, 100_000] {
            let (mut units, mut heap, mut random) = (Units::new(500), BinaryHeap::from(vec![Reverse(0); 500]), 1u64);
            for n in 0..20_000u64 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let first = units.take_first();
                assert_eq!(Some(Reverse(first)), heap.pop(), "{n} of spread {spread}");
                let at = first.max(n * 3) + 5_000 + (random >> 33) % spread;
                units.put(at);
                heap.push(Reverse(at));
            }
        }
    }

    #[test]
    fn the_iops_cap_spaces_admissions() {
        let o = Speed { iops: 50_000, parallel: 1000, ..options() };
        assert_eq!(done_us(&o, 4, 4096), [100, 120, 140, 160]);
        let burst = Speed { burst: Duration::from_us(40), ..o };
        assert_eq!(done_us(&burst, 5, 4096), [100, 100, 120, 140, 160], "two I/Os fit the bucket");
    }

    #[test]
    fn the_bandwidth_cap_counts_bytes_and_binds_beside_iops() {
        let o = Speed { iops: 1_000_000, bytes_per_sec: 1_000_000_000, parallel: 1000, ..options() };
        assert_eq!(done_us(&o, 3, 50_000), [100, 150, 200]);
        assert_eq!(done_us(&o, 3, 0), [100, 101, 102]);
    }

    #[test]
    fn a_cap_loses_no_fraction_over_a_long_run() {
        let mut b = TokenBucket::new(18_000, Duration::ZERO);
        let last = (0..1_800_000).map(|_| b.take(1, Instant::ZERO)).last().unwrap();
        let expected = 100_000_000_000 - 1_000_000_000 / 18_000;
        assert!(last.as_ns().abs_diff(expected) <= 1, "{}", last.as_ns());
    }

    #[test]
    fn jitter_is_bounded_and_repeats_by_seed() {
        let o = Speed { jitter_pct: 20, parallel: 10_000, ..options() };
        let run = done_us(&o, 1000, 0);
        assert!(run.iter().all(|us| (80..=120).contains(us)));
        assert!(run.iter().any(|us| *us < 90) && run.iter().any(|us| *us > 110));
        assert_eq!(run, done_us(&o, 1000, 0));
        assert_ne!(run, done_us(&Speed { seed: 2, ..o }, 1000, 0));
    }
}
