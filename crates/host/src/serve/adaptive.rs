// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long an IOThread polls before it sleeps. The settings are those of QEMU, but the decision depends on whether polling catches
//! events.
//!
//! QEMU lengthens polling after a slept wait that was shorter than the maximum, and stops it after a longer one. Both fail if waking up
//! takes about as long as the maximum: a thread that has slept once may never poll again, and waits near the maximum make it poll in vain
//! forever. Here each miss lengthens polling, and each catch cancels two misses. Too many misses turn polling off; then one wait in N is
//! polled as a trial.
//!
//! This suits clients, which send the sooner the sooner they are answered. A disk's latency does not depend on polling, so polling for
//! longer than a sleep costs only wastes CPU. So waits with I/O in flight have their own state, with a quarter of the longest time, and
//! one miss ends their polling.
//! Source: QEMU's `IOThread` properties `poll-max-ns`, `poll-grow`, `poll-shrink`, and what util/aio-posix.c does with them.

use super::trial::TIMES;
use blk::time::Duration;

/// Polling time after the first growth.
const FIRST: Duration = Duration::from_ns(4000);

/// What an IOThread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    /// No I/O is in flight.
    Client,
    /// I/O is in flight.
    Disk,
}

impl For {
    /// Returns how many misses are tolerated.
    fn forgiven(self) -> u32 {
        match self {
            For::Client => 4,
            For::Disk => 0,
        }
    }

    /// Returns N: when polling is off, one of N waits is polled.
    fn probe(self) -> u32 {
        match self {
            For::Client => 8,
            For::Disk => 64,
        }
    }
}

/// Settings of polling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polling {
    /// `poll-max-ns`: the longest polling time; 0 = never polls, `None` = found by trial.
    pub max: Option<Duration>,
    /// `poll-grow`: the factor by which the time grows; 0 = by 2.
    pub grow: u32,
    /// `poll-shrink`: the divisor by which the time shrinks; 0 = to 0.
    pub shrink: u32,
}

/// The state that decides how long to poll.
#[derive(Debug)]
pub(super) struct Adaptive {
    rules: Polling,
    max: Duration,
    kind: For,
    time: Duration,
    /// Number of waits that polling did not end, minus two for each that it did.
    misses: u32,
}

impl Adaptive {
    /// Makes one state for each kind of wait, indexed by [`For`].
    pub(super) fn both(rules: Polling) -> [Adaptive; 2] {
        let max = rules.max.unwrap_or(TIMES[0]);
        [For::Client, For::Disk].map(|kind| Adaptive::new(rules, max, kind))
    }

    fn new(rules: Polling, max: Duration, kind: For) -> Adaptive {
        let max = if kind == For::Disk { Duration::from_ns(max.as_ns() / 4) } else { max };
        Adaptive { rules, max, kind, time: Duration::ZERO, misses: 0 }
    }

    /// Returns a state with another longest time, which is used at once, as a trial.
    pub(super) fn with_max(&self, max: Duration) -> Adaptive {
        let mut new = Adaptive::new(self.rules, max, self.kind);
        new.believe();
        new
    }

    /// Sets the longest time, because polling has caught an event.
    fn believe(&mut self) {
        self.time = self.max;
        self.misses = self.kind.forgiven() / 2;
    }

    /// Returns how long to poll before sleeping.
    #[inline]
    pub(super) fn time(&self) -> Duration {
        if self.is_probe() { self.max } else { self.time }
    }

    fn is_probe(&self) -> bool {
        let every = self.kind.probe();
        self.time == Duration::ZERO && self.misses % every == every - 1
    }

    /// Records a wait that ended while the thread was awake.
    #[inline]
    pub(super) fn caught(&mut self) {
        // There was no polling: the event came before the thread could sleep.
        if self.time() == Duration::ZERO {
            return;
        }
        if self.is_probe() {
            self.believe();
        } else {
            self.misses = self.misses.min(self.kind.forgiven()).saturating_sub(2);
        }
    }

    /// Records a wait in which the thread slept, so polling did not end it.
    pub(super) fn slept(&mut self) {
        let Polling { grow, shrink, .. } = self.rules;
        self.misses = self.misses.wrapping_add(1);
        if self.misses <= self.kind.forgiven() {
            let factor = if grow == 0 { 2 } else { u64::from(grow) };
            let grown = Duration::from_ns(self.time.as_ns().saturating_mul(factor));
            self.time = if self.time == Duration::ZERO { FIRST } else { grown }.min(self.max);
        } else {
            let divisor = u64::from(shrink);
            self.time = self.time.as_ns().checked_div(divisor).map_or(Duration::ZERO, Duration::from_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = TIMES[0];

    fn rules() -> Polling {
        Polling { max: Some(MAX), ..Polling::default() }
    }

    #[test]
    fn misses_grow_it_and_more_of_them_than_catches_end_it() {
        let mut a = Adaptive::new(rules(), MAX, For::Client);
        let times: Vec<_> = (0..4)
            .map(|_| {
                a.slept();
                a.time().as_ns()
            })
            .collect();
        assert_eq!(times, [4000, 8000, 16000, 16_384], "forgiven");
        for _ in 0..64 {
            a.caught();
            a.caught();
            a.slept();
            assert_eq!(a.time().as_ns(), 16_384, "two in three");
        }
        let long = (1..).find(|_| (a.slept(), a.time() == Duration::ZERO).1);
        assert_eq!(long, Some(For::Client.forgiven()), "one has been forgiven already");
    }

    #[test]
    fn a_sleeper_still_finds_that_polling_is_worth_it() {
        let mut a = Adaptive::new(rules(), MAX, For::Client);
        (0..=For::Client.forgiven()).for_each(|_| a.slept());
        let probes = (0..64).filter(|_| {
            a.slept();
            a.time() > Duration::ZERO
        });
        assert_eq!(probes.count(), 8, "one in {}", For::Client.probe());
        while a.time() == Duration::ZERO {
            a.slept();
        }
        a.caught();
        assert_eq!(a.time().as_ns(), 16_384);
        (0..=For::Client.forgiven() / 2).for_each(|_| a.slept());
        assert_eq!(a.time(), Duration::ZERO, "it was luck");
    }

    #[test]
    fn only_a_disk_as_fast_as_a_sleep_is_polled_for() {
        let mut a = Adaptive::new(rules(), MAX, For::Disk);
        let slow = |a: &mut Adaptive| (0..128).filter(|_| (a.slept(), a.time() > Duration::ZERO).1).count();
        assert_eq!(slow(&mut a), 2, "probes alone");
        while a.time() == Duration::ZERO {
            a.slept();
        }
        a.caught();
        assert_eq!(a.time().as_ns(), 16_384 / 4);
        a.slept();
        assert_eq!(a.time(), Duration::ZERO, "at once");
    }

    #[test]
    fn shrink_divides_and_zero_is_never() {
        let mut a = Adaptive::new(Polling { shrink: 2, grow: 4, ..rules() }, MAX, For::Client);
        (0..3).for_each(|_| a.slept());
        (0..3).for_each(|_| a.caught());
        (0..=For::Client.forgiven()).for_each(|_| a.slept());
        assert_eq!(a.time().as_ns(), 8_192);
        for kind in [For::Client, For::Disk] {
            let mut never = Adaptive::new(rules(), Duration::ZERO, kind);
            (0..2 * kind.probe()).for_each(|_| {
                never.slept();
                assert_eq!(never.time(), Duration::ZERO);
            });
        }
    }
}
