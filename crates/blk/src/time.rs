// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Points in time and durations, as plain nanosecond counts.
//!
//! `blk` never reads a clock: every entry point takes `now` from its caller, which is a real clock in `host` and the
//! virtual clock in `sim`. The caller chooses the zero point; only differences have a meaning.

use core::ops::{Add, Sub};

/// A point in time, in nanoseconds since a zero point chosen by the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

/// A span of time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration(u64);

impl Instant {
    /// The zero point.
    pub const ZERO: Instant = Instant(0);
    /// The latest instant; it stands for "never".
    pub const MAX: Instant = Instant(u64::MAX);

    /// From nanoseconds since the zero point.
    #[inline]
    pub const fn from_ns(ns: u64) -> Self {
        Instant(ns)
    }

    /// Nanoseconds since the zero point.
    #[inline]
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// Time since `earlier`; zero when `earlier` is later (clocks of two CPUs may differ by a little).
    #[inline]
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }
}

impl Duration {
    /// No time at all.
    pub const ZERO: Duration = Duration(0);

    /// From nanoseconds.
    #[inline]
    pub const fn from_ns(ns: u64) -> Self {
        Duration(ns)
    }

    /// From microseconds; saturates at the largest span.
    #[inline]
    pub const fn from_us(us: u64) -> Self {
        Duration(us.saturating_mul(1_000))
    }

    /// From milliseconds; saturates at the largest span.
    #[inline]
    pub const fn from_ms(ms: u64) -> Self {
        Duration(ms.saturating_mul(1_000_000))
    }

    /// From seconds; saturates at the largest span.
    #[inline]
    pub const fn from_secs(secs: u64) -> Self {
        Duration(secs.saturating_mul(1_000_000_000))
    }

    /// Nanoseconds.
    #[inline]
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// Whole milliseconds, rounded down.
    #[inline]
    pub const fn as_ms(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Seconds with a fraction, for rates.
    #[inline]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    #[inline]
    fn add(self, d: Duration) -> Instant {
        Instant(self.0.saturating_add(d.0))
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;
    #[inline]
    fn sub(self, d: Duration) -> Instant {
        Instant(self.0.saturating_sub(d.0))
    }
}

impl Add for Duration {
    type Output = Duration;
    #[inline]
    fn add(self, d: Duration) -> Duration {
        Duration(self.0.saturating_add(d.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_instead_of_wrapping() {
        assert_eq!(Instant::from_ns(5).since(Instant::from_ns(9)), Duration::ZERO);
        assert_eq!(Instant::MAX + Duration::from_ns(1), Instant::MAX);
        assert_eq!(Instant::ZERO - Duration::from_ns(1), Instant::ZERO);
        assert_eq!(Duration::from_secs(u64::MAX).as_ns(), u64::MAX);
        assert_eq!(Duration::from_ms(1500).as_secs_f64(), 1.5);
    }
}
