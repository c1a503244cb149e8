// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Virtual time: the clock of B-WF2Q+, which counts service instead of seconds.
//!
//! Guarantees: exact to 2^-22 of a sector per unit of weight. Comparisons survive the counter's wrapping as long as no two
//! compared values are 2^63 apart (2^41 sectors of service at weight 1). Not here: whose clock it is.
//!
//! Source: Valente and Checconi, "High Throughput Disk Scheduling with Fair Bandwidth Distribution" (2010), section 4.

/// Fraction bits.
const SHIFT: u32 = 22;

/// A point in virtual time: sectors of service divided by weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VTime(u64);

impl VTime {
    /// The start of time.
    pub(crate) const ZERO: VTime = VTime(0);

    /// The time at which `sectors` more have been served at `weight`, which is at least 1.
    #[inline]
    pub(crate) fn after_service(self, sectors: u64, weight: u64) -> VTime {
        debug_assert!(weight > 0 && sectors < 1 << (63 - SHIFT));
        VTime(self.0.wrapping_add((sectors << SHIFT) / weight))
    }

    /// How far this point lies ahead of `other`, in units of 2^-22; 0 if it does not.
    #[inline]
    pub(crate) fn lead_over(self, other: VTime) -> u64 {
        if self.is_after(other) { self.0.wrapping_sub(other.0) } else { 0 }
    }

    /// The point that comes `by` units of 2^-22 later.
    #[inline]
    pub(crate) fn later_by(self, by: u64) -> VTime {
        VTime(self.0.wrapping_add(by))
    }

    /// Whether this point comes later than `other`.
    #[inline]
    pub(crate) fn is_after(self, other: VTime) -> bool {
        (self.0.wrapping_sub(other.0) as i64) > 0
    }

    /// The later of two points.
    #[inline]
    pub(crate) fn max(self, other: VTime) -> VTime {
        if other.is_after(self) { other } else { self }
    }

    /// Whole sectors per unit of weight between `earlier` and this point; negative when it is the later one.
    #[cfg(test)]
    pub(crate) fn since(self, earlier: VTime) -> f64 {
        self.0.wrapping_sub(earlier.0) as i64 as f64 / f64::from(1u32 << SHIFT)
    }

    /// A point close to where the counter wraps.
    #[cfg(test)]
    pub(crate) fn near_wrap() -> VTime {
        VTime(u64::MAX - (100 << SHIFT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_counts_by_weight() {
        let t = VTime::ZERO.after_service(100, 10);
        assert_eq!(t.since(VTime::ZERO), 10.0);
        assert_eq!(t.after_service(1, 4).since(VTime::ZERO), 10.25);
        assert!(t.is_after(VTime::ZERO) && !VTime::ZERO.is_after(t) && !t.is_after(t));
        assert_eq!(t.max(VTime::ZERO), t);
    }

    #[test]
    fn order_survives_the_wrap() {
        let before = VTime::near_wrap();
        let after = before.after_service(200, 1);
        assert!(after.is_after(before) && after.since(before) == 200.0);
        assert_eq!(before.max(after), after);
    }
}
