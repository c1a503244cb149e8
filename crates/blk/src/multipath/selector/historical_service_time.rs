// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `historical-service-time`: the path with the least expected service time, from a moving average of its service
//! times.
//!
//! Guarantees: averages in fixed point of 10 bits, rounded. The weight of the past falls with the length of a sample, so
//! that a long sample takes effect at once. Samples are sorted into 64 buckets of 2^24 ns. The weight is `base_weight` in
//! the first bucket, a higher power of it in each later one, and 0 in the last. A path's average is stale if it was not
//! updated for (number of paths) times the average. An idle path with a stale average is tried first; a stale average does
//! not make a path win. Of two idle paths, the one whose average becomes stale earlier is tried, even before that time. All
//! numbers are integers that do not overflow: a sample of more than 2^44 ns (five hours) counts as 2^44 ns.
//!
//! Does not do: a consistent order when the comparisons of more than two paths form a cycle. Then the result depends on
//! the order of the list in the kernel, and on path numbers here. Source: drivers/md/dm-ps-historical-service-time.c.

use core::cmp::Ordering;

/// Fractional bits of a fixed-point number.
const FIXED_SHIFT: u32 = 10;
const FIXED_1: u64 = 1 << FIXED_SHIFT;
/// log2 of the nanoseconds of a bucket.
const BUCKET_SHIFT: u32 = 24;
const NR_BUCKETS: usize = 64;
/// Default weight of the past, in 1024ths: about 0.95.
pub const BASE_WEIGHT: u16 = 972;
/// Largest weight that may be given.
pub const MAX_WEIGHT: u16 = FIXED_1 as u16 - 1;
/// The average that a path begins with, 1 ns.
pub(super) const FIRST_AVERAGE: u64 = FIXED_1;
/// Longest sample in fixed point (`HST_FIXED_MAX`): an average of such samples times a weight still fits.
const MAX_SAMPLE: u64 = u64::MAX >> FIXED_SHIFT;

/// Weight of the past for each bucket of sample lengths.
#[derive(Clone, Debug)]
pub(crate) struct Weights([u16; NR_BUCKETS]);

fn multiplied(a: u64, b: u64) -> u64 {
    (a * b + FIXED_1 / 2) >> FIXED_SHIFT
}

/// Computed by squaring as in the kernel, because the places of rounding decide the last digit.
fn power(mut base: u64, mut exponent: u32) -> u64 {
    let mut result = FIXED_1;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = multiplied(result, base);
        }
        base = multiplied(base, base);
        exponent >>= 1;
    }
    result
}

impl Weights {
    pub(super) fn new(base: u16) -> Weights {
        let mut weights = [0; NR_BUCKETS];
        for (bucket, w) in weights[..NR_BUCKETS - 1].iter_mut().enumerate() {
            *w = power(base.into(), bucket as u32 + 1) as u16;
        }
        Weights(weights)
    }

    /// Returns the average after one more sample. The average is in fixed point, the sample in ns.
    #[inline]
    pub(super) fn averaged(&self, average: u64, sample: u64) -> u64 {
        let bucket = ((sample >> BUCKET_SHIFT) as usize).min(NR_BUCKETS - 1);
        let w = u64::from(self.0[bucket]);
        let sample = sample.saturating_mul(FIXED_1).min(MAX_SAMPLE);
        (average * w + sample * (FIXED_1 - w) + FIXED_1 / 2) >> FIXED_SHIFT
    }
}

/// Returns when a path that has just completed a request becomes stale, in ns; `valid`: number of usable paths of its
/// group.
#[inline]
pub(super) fn stale_after(now: u64, average: u64, valid: u8) -> u64 {
    now.saturating_add((average >> FIXED_SHIFT) * u64::from(valid))
}

/// The data about a path that this selector compares; the average in fixed point, times in ns.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathHistory {
    pub(super) average: u64,
    pub(super) stale_after: u64,
    pub(super) outstanding: u64,
}

/// Compares two paths at `now`; `Less`: the first is better. `threshold`: paths whose averages differ by at most this factor
/// count as equally fast; 0 = no such rule.
#[inline]
pub(super) fn compare(a: PathHistory, b: PathHistory, now: u64, threshold: u16) -> Ordering {
    let by_outstanding = a.outstanding.cmp(&b.outstanding);
    let (small, large) = (a.average.min(b.average), a.average.max(b.average));
    if large <= small.saturating_mul(threshold.into()) {
        return by_outstanding;
    }
    let stale = |p: PathHistory| p.stale_after < now;
    match (a.outstanding == 0, b.outstanding == 0) {
        (true, true) => return a.stale_after.cmp(&b.stale_after),
        (true, false) if stale(a) => return Ordering::Less,
        (false, true) if stale(b) => return Ordering::Greater,
        _ => {}
    }
    let expected = |p: PathHistory| u128::from(p.average) * u128::from(p.outstanding + 1);
    match expected(a).cmp(&expected(b)) {
        Ordering::Less if stale(a) => by_outstanding,
        Ordering::Greater if stale(b) => by_outstanding,
        Ordering::Equal => by_outstanding,
        clear => clear,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Ordering::{Equal, Greater, Less};

    #[test]
    fn the_past_weighs_less_the_longer_a_sample() {
        let w = Weights::new(BASE_WEIGHT);
        // 972, then 972 * 972 / 1024 rounded, and so on; none in the last.
        assert_eq!(w.0[..4], [972, 923, 876, 832]);
        assert_eq!(w.0[63], 0);
        assert!(w.0.is_sorted_by(|a, b| a >= b));
        // (1000 * 972 + 2000 * 52 * 1024 + 512) / 1024
        assert_eq!(w.averaged(1000, 2000), 104_949);
        assert_eq!(w.averaged(0, 1), 52, "less than a nanosecond");
        assert_eq!(w.averaged(1 << 20, 1 << 31), 1 << 41, "two seconds replace it");
        assert_eq!(w.averaged(MAX_SAMPLE, u64::MAX), MAX_SAMPLE);
        assert_eq!(Weights::new(0).averaged(1 << 40, 77), 77 << 10);
        assert_eq!(Weights::new(MAX_WEIGHT).averaged(MAX_SAMPLE, 1 << 23), (MAX_SAMPLE * 1023 + (1 << 33) + 512) >> 10);
        assert_eq!(stale_after(5000, (7 << 10) + 1023, 3), 5021);
        assert_eq!(stale_after(u64::MAX, MAX_SAMPLE, u8::MAX), u64::MAX);
    }

    #[test]
    fn the_kernels_rules() {
        const NOW: u64 = 1000;
        let fresh = |average, outstanding| PathHistory { average, outstanding, stale_after: 2000 };
        let stale = |average, outstanding, stale_after| PathHistory { average, outstanding, stale_after };
        for (a, b, threshold, expected, why) in [
            (fresh(10, 1), fresh(20, 1), 0, Less, "faster"),
            (fresh(10, 0), fresh(20, 0), 0, Equal, "idle, and stale at the same time"),
            (stale(20, 0, 1001), stale(10, 0, 1002), 0, Less, "idle ones: stale first, though neither is yet"),
            (stale(20, 0, 1001), stale(10, 1, 1002), 0, Less, "1 * 20 = 2 * 10: fewer outstanding"),
            (fresh(10, 1), fresh(20, 0), 0, Greater, "2 * 10 = 1 * 20: fewer outstanding"),
            (fresh(10, 2), fresh(20, 0), 0, Greater, "3 * 10 after 20"),
            (fresh(10, 3), fresh(20, 2), 2, Greater, "within the threshold: outstanding"),
            (fresh(10, 3), fresh(21, 2), 2, Less, "beyond it: 40 before 63"),
            (fresh(10, 3), fresh(10, 3), 2, Equal, "the same"),
            (fresh(10, 0), stale(90, 0, 999), 0, Greater, "an idle stale one is tried"),
            (fresh(10, 1), stale(90, 0, 999), 0, Greater, "also before a busy one"),
            (fresh(10, 1), stale(90, 0, 1000), 0, Less, "it is stale only after that"),
            (stale(5, 0, 10), stale(1, 0, 20), 0, Less, "the one stale longest"),
            (stale(1, 2, 10), fresh(100, 1), 0, Greater, "a stale winner: outstanding"),
            (stale(1, 1, 10), fresh(100, 2), 0, Less, "which it may win"),
            (stale(100, 1, 10), fresh(1, 2), 0, Greater, "a stale loser stays one"),
            (fresh(0, 0), fresh(0, 1), 0, Less, "nothing known: outstanding"),
        ] {
            assert_eq!(compare(a, b, NOW, threshold), expected, "{why}");
            assert_eq!(compare(b, a, NOW, threshold), expected.reverse(), "{why}, the other way round");
        }
    }
}
