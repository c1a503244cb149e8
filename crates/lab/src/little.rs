// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Little's law as a consistency check of a report: in flight = rate x latency.
//!
//! Guarantees: both sides of the law come from independent measurements; the check tells whether they agree within 10 %. If
//! they disagree, the latency omits part of an I/O's life, the rate is over the wrong time, or the queue was not full as
//! assumed.
//!
//! Needs from callers: mean in flight that was *not* derived from rate and latency. It is sampled, integrated over time, or the
//! depth of a closed loop that was always full. Does not: say which of the three is wrong.

use serde::{Deserialize, Serialize};

/// Largest relative disagreement that passes.
pub const TOLERANCE: f64 = 0.10;

/// The law's two sides.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Little {
    /// Mean number of I/Os in flight, measured.
    pub in_flight: f64,
    /// I/Os completed per second.
    pub iops: f64,
    /// Mean latency in nanoseconds, from when an I/O counts as in flight to its completion.
    pub latency_ns: f64,
    /// Length of the measurement in seconds; 1 if it is not known, so that all measurements count alike.
    #[serde(default = "one")]
    pub seconds: f64,
}

fn one() -> f64 {
    1.0
}

impl Little {
    /// Makes the check, or `None` when a figure is not positive and finite (nothing ran).
    pub fn new(in_flight: f64, iops: f64, latency_ns: f64) -> Option<Little> {
        let usable = |x: f64| x.is_finite() && x > 0.0;
        (usable(in_flight) && usable(iops) && usable(latency_ns)).then_some(Little {
            in_flight,
            iops,
            latency_ns,
            seconds: 1.0,
        })
    }

    /// The same measurements, taken over `seconds` (above 0).
    pub fn over(self, seconds: f64) -> Little {
        Little { seconds, ..self }
    }

    /// Combines two measurements: I/Os, latencies, and the product of in flight and time add up.
    pub fn and(&self, other: &Little) -> Little {
        let seconds = self.seconds + other.seconds;
        let ios = self.iops * self.seconds + other.iops * other.seconds;
        let latencies = self.expected() * self.seconds + other.expected() * other.seconds;
        let in_flight = self.in_flight * self.seconds + other.in_flight * other.seconds;
        let (in_flight, iops) = (in_flight / seconds, ios / seconds);
        Little { in_flight, iops, latency_ns: 1e9 * latencies / ios, seconds }
    }

    /// Returns rate x latency: the number in flight that the law requires.
    pub fn expected(&self) -> f64 {
        self.iops * self.latency_ns / 1e9
    }

    /// Returns measured over expected, minus 1. 0.02 means that 2 % more are in flight than rate x latency explains.
    pub fn error(&self) -> f64 {
        self.in_flight / self.expected() - 1.0
    }

    /// Whether the two agree within [`TOLERANCE`].
    pub fn holds(&self) -> bool {
        self.error().abs() <= TOLERANCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_law_holds_or_not() {
        let exact = Little::new(32.0, 1_000_000.0, 32_000.0).unwrap();
        assert!((exact.expected() - 32.0).abs() < 1e-9 && exact.holds() && exact.error().abs() < 1e-12);
        assert!(Little::new(35.0, 1e6, 32_000.0).unwrap().holds());
        let off = Little::new(36.0, 1e6, 32_000.0).unwrap();
        assert!(!off.holds() && (off.error() - 0.125).abs() < 1e-9);
        assert!(!Little::new(28.0, 1e6, 32_000.0).unwrap().holds());
    }

    #[test]
    fn runs_add_up() {
        let (short, long) =
            (Little::new(8.0, 2e6, 4_000.0).unwrap(), Little::new(2.0, 1e6, 1_000.0).unwrap().over(3.0));
        let both = short.and(&long);
        assert_eq!((both.in_flight, both.iops, both.seconds), (3.5, 1.25e6, 4.0));
        assert!((both.latency_ns - 2_200.0).abs() < 1e-9, "mean over the I/Os: {both:?}");
        assert!((both.expected() - 2.75).abs() < 1e-12 && !both.holds());
    }

    #[test]
    fn nothing_ran() {
        assert_eq!(Little::new(0.0, 1e6, 1.0), None);
        assert_eq!(Little::new(1.0, f64::NAN, 1.0), None);
        assert_eq!(Little::new(1.0, 1.0, f64::INFINITY), None);
    }
}
