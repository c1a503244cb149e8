// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Interrupt coalescing: when a busy virtqueue notifies its driver.
//!
//! Waking a driver that sleeps costs as much as several requests. The driver then reaps faster than an IOThread serves, so it soon sleeps
//! again. Therefore it is woken when about half of its requests have completed, or [`MAX_UNSIGNALLED`] if half is more,
//! and reaps these while others are served. A driver that does not sleep sees each round's completions at once.
//!
//! Guarantees: a signal is put off only after a round that took as many requests as it may, so another round follows at once; and only until
//! the first round that begins [`LONGEST`] after the first round whose signal was put off. Reads no clock: rounds have times.
//! Needs from callers: they signal at the end of a round, unless [`Coalescing::puts_off`], and before a round if [`Coalescing::begin`] says
//! so.

use blk::time::{Duration, Instant};

/// With this many completed requests the driver is notified after the round, even if many others wait.
const MAX_UNSIGNALLED: u64 = 32;
/// Longest time from the start of the first round whose signal is put off to the start of the round before which it is sent.
const LONGEST: Duration = Duration::from_us(50);

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Coalescing {
    /// Requests completed until the last signal.
    signalled: u64,
    /// Start of this round.
    began: Instant,
    /// Start of the first round since then whose signal was put off.
    since: Option<Instant>,
}

/// A round that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// It took as many requests as it may.
    pub(super) is_full: bool,
    /// Maximum number of requests of the next round.
    pub(super) next: usize,
    /// Requests that were available when it began, and were not taken.
    pub(super) waiting: usize,
}

impl Coalescing {
    /// Begins a round. Returns whether a signal that was put off is due before it.
    #[inline]
    pub(super) fn begin(&mut self, now: Instant) -> bool {
        self.began = now;
        self.since.is_some_and(|since| now.since(since) >= LONGEST)
    }

    /// Whether the signal after `round` is put off. `completed`: requests completed so far.
    #[inline]
    pub(super) fn puts_off(&mut self, completed: u64, round: Round) -> bool {
        let unsignalled = completed - self.signalled;
        let waits =
            round.is_full && unsignalled < MAX_UNSIGNALLED && unsignalled as usize + 2 * round.next <= round.waiting;
        if waits {
            self.since.get_or_insert(self.began);
        }
        waits
    }

    /// Notes a signal. `completed`: requests completed so far.
    #[inline]
    pub(super) fn signalled(&mut self, completed: u64) {
        (self.signalled, self.since) = (completed, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves `requests`, which are all available at the start, in rounds of 2, 4, 8 and then 16, which take `us` each. Returns how many
    /// requests had completed at each signal.
    fn signals(requests: usize, us: u64) -> Vec<usize> {
        let (mut coalescing, mut signals) = (Coalescing::default(), Vec::new());
        let (mut now, mut completed, mut most) = (Instant::from_ns(1_000_000), 0, 2);
        while completed < requests {
            if coalescing.begin(now) {
                signals.push(completed);
                coalescing.signalled(completed as u64);
            }
            let (took, next) = (most.min(requests - completed), (2 * most).min(16));
            completed += took;
            let waiting = requests - completed;
            let round = Round { is_full: took >= most, next, waiting };
            if !coalescing.puts_off(completed as u64, round) {
                signals.push(completed);
                coalescing.signalled(completed as u64);
            }
            (now, most) = (now + Duration::from_us(us), next);
        }
        signals
    }

    #[test]
    fn half_of_the_requests_or_32_are_signalled_together() {
        assert_eq!(signals(80, 1), [30, 46, 62, 78, 80]);
        assert_eq!(signals(128, 1), [46, 78, 94, 110, 126, 128]);
        assert_eq!(signals(32, 1), [14, 30, 32]);
        assert_eq!((signals(1, 1), signals(6, 1)), (vec![1], vec![2, 6]), "few are signalled at once");
    }

    #[test]
    fn rounds_that_take_long_are_signalled_each() {
        assert_eq!(signals(80, 50), [2, 6, 14, 30, 46, 62, 78, 80]);
        assert_eq!(signals(80, 20), [14, 46, 62, 78, 80], "due at the start of the fourth round");
    }

    #[test]
    fn last_completion_is_always_signalled() {
        for (requests, us) in (1..300).flat_map(|n| [1, 7, 20, 60].map(|us| (n, us))) {
            assert_eq!(signals(requests, us).last(), Some(&requests), "{requests} requests, {us} us");
        }
    }
}
