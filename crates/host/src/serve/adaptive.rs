// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long an IOThread looks before it sleeps: QEMU's rules under QEMU's names, and two more against a trap in them.
//!
//! A wait that ended within the present time says nothing new; one that was longer than the greatest time was not worth any
//! polling; one in between would have been caught by a little more. But a wait that was slept through includes the time it
//! took to wake up, which may alone be longer than the greatest time: by these rules a thread that has slept once would never
//! poll again, however busy its client. So the first misses in a row count as waits in between, and when polling is off every
//! [`PROBE`]th wait is polled through to see. Source: QEMU's `IOThread` properties `poll-max-ns`, `poll-grow`, `poll-shrink`,
//! and what util/aio-posix.c does with them.

use blk::time::Duration;

/// What the first growth starts with.
const FIRST: Duration = Duration::from_ns(4000);
/// So many misses in a row end the polling.
const MISSES: u32 = 4;
/// When polling is off, one of so many waits is polled.
const PROBE: u32 = 8;

/// Settings of polling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Polling {
    /// `poll-max-ns`: the longest polling; 0 = never.
    pub max: Duration,
    /// `poll-grow`: the factor by which the time grows; 0 = 2.
    pub grow: u32,
    /// `poll-shrink`: the divisor by which it shrinks; 0 = to nothing.
    pub shrink: u32,
}

impl Default for Polling {
    fn default() -> Self {
        Polling { max: Duration::from_ns(32_768), grow: 0, shrink: 0 }
    }
}

/// How long to poll now.
#[derive(Debug)]
pub(super) struct Adaptive {
    rules: Polling,
    time: Duration,
    /// Waits in a row that polling did not end.
    misses: u32,
}

impl Adaptive {
    pub(super) fn new(rules: Polling) -> Adaptive {
        Adaptive { rules, time: Duration::ZERO, misses: 0 }
    }

    /// How long to look before sleeping.
    #[inline]
    pub(super) fn time(&self) -> Duration {
        if self.is_probe() { self.rules.max } else { self.time }
    }

    fn is_probe(&self) -> bool {
        self.time == Duration::ZERO && self.misses % PROBE == PROBE - 1
    }

    /// A wait ended while the thread was looking.
    #[inline]
    pub(super) fn caught(&mut self) {
        if self.is_probe() {
            self.time = self.rules.max;
        }
        self.misses = 0;
    }

    /// The thread slept; the wait, polling included, took `waited`.
    pub(super) fn slept(&mut self, waited: Duration) {
        let Polling { max, grow, shrink } = self.rules;
        self.misses = self.misses.wrapping_add(1);
        if waited <= max || self.misses <= MISSES {
            let factor = if grow == 0 { 2 } else { u64::from(grow) };
            let grown = Duration::from_ns(self.time.as_ns().saturating_mul(factor));
            self.time = if self.time == Duration::ZERO { FIRST } else { grown }.min(max);
        } else {
            let divisor = u64::from(shrink);
            self.time = self.time.as_ns().checked_div(divisor).map_or(Duration::ZERO, Duration::from_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(n: u64) -> Duration {
        Duration::from_us(n)
    }

    #[test]
    fn short_waits_grow_it_and_long_ones_in_a_row_end_it() {
        let mut a = Adaptive::new(Polling::default());
        let times: Vec<_> = (0..6)
            .map(|_| {
                a.slept(us(30));
                a.time().as_ns()
            })
            .collect();
        assert_eq!(times, [4000, 8000, 16000, 32000, 32768, 32768]);
        a.caught();
        for _ in 0..MISSES {
            a.slept(us(100));
            assert_eq!(a.time().as_ns(), 32_768, "forgiven");
        }
        a.slept(us(100));
        assert_eq!(a.time(), Duration::ZERO);
    }

    #[test]
    fn who_always_sleeps_long_still_finds_out_that_polling_is_worth_it() {
        let mut a = Adaptive::new(Polling::default());
        (0..=MISSES).for_each(|_| a.slept(us(50)));
        let probes = (0..64).filter(|_| {
            a.slept(us(50));
            a.time() > Duration::ZERO
        });
        assert_eq!(probes.count(), 8, "one in {PROBE}");
        while a.time() == Duration::ZERO {
            a.slept(us(50));
        }
        a.caught();
        assert_eq!(a.time().as_ns(), 32_768);
    }

    #[test]
    fn shrink_divides_and_zero_is_never() {
        let mut a = Adaptive::new(Polling { shrink: 2, grow: 4, ..Polling::default() });
        (0..3).for_each(|_| a.slept(us(32)));
        a.caught();
        (0..=MISSES).for_each(|_| a.slept(us(40)));
        assert_eq!(a.time().as_ns(), 16_384);
        let mut never = Adaptive::new(Polling { max: Duration::ZERO, ..Polling::default() });
        (0..2 * PROBE).for_each(|_| {
            never.slept(Duration::from_ns(1));
            assert_eq!(never.time(), Duration::ZERO);
        });
    }
}
