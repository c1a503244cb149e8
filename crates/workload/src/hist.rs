// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A log-linear latency histogram, and running minimum / maximum / mean / deviation.
//!
//! [`Histogram`] has 64 buckets per octave: a value read from it is within 1/128 (0.8 %) of the recorded one, and values
//! below 128 ns are exact. The bucket edges are those of fio's `plat` table, so that the json+ bins of both can be compared
//! directly. Memory is fixed (14.5 KiB). Values from 17.2 s up share the last bucket, whose percentile is reported as the
//! recorded maximum. [`Running`] sums in integers, so merging is exact in any order and on any machine.
//!
//! Neither type knows the meaning of a sample; [`crate::stats`] defines which latency is recorded where.

/// Sub-buckets per octave are 2 to this power.
const SUB_BITS: u32 = 6;
const SUB: usize = 1 << SUB_BITS;
const GROUPS: usize = 29;

/// Number of buckets of a [`Histogram`].
pub const BUCKETS: usize = GROUPS * SUB;
const _: () = assert!(BUCKETS == 1856);

/// Counts of nanosecond values in log-linear buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    /// Largest value in the last bucket, which has no upper end.
    open_max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram::new()
    }
}

impl Histogram {
    /// An empty histogram.
    pub const fn new() -> Histogram {
        Histogram { counts: [0; BUCKETS], open_max_ns: 0 }
    }

    /// Bucket of a value.
    #[inline]
    pub const fn bucket_of(ns: u64) -> usize {
        // For ns < 128 the shift is zero and the bucket is the value itself.
        let shift = 63 - SUB_BITS - (ns | SUB as u64).leading_zeros();
        let index = ((shift as u64) << SUB_BITS) + (ns >> shift);
        if index < BUCKETS as u64 { index as usize } else { BUCKETS - 1 }
    }

    /// Smallest and largest value of a bucket; the last one is open and ends at `u64::MAX`.
    ///
    /// # Panics
    /// When `bucket` is not below [`BUCKETS`].
    pub const fn range_of(bucket: usize) -> (u64, u64) {
        assert!(bucket < BUCKETS, "histogram bucket out of range");
        if bucket < 2 * SUB {
            return (bucket as u64, bucket as u64);
        }
        let shift = (bucket >> SUB_BITS) - 1;
        let low = ((bucket % SUB + SUB) as u64) << shift;
        (low, if bucket == BUCKETS - 1 { u64::MAX } else { low + (1 << shift) - 1 })
    }

    /// The value that represents a bucket: the middle of its range, rounded down (what fio prints for it).
    ///
    /// # Panics
    /// When `bucket` is not below [`BUCKETS`].
    pub const fn value_of(bucket: usize) -> u64 {
        let (low, _) = Self::range_of(bucket);
        if bucket < 2 * SUB { low } else { low + (1 << ((bucket >> SUB_BITS) - 1)) / 2 }
    }

    /// Counts one value.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.record_n(ns, 1);
    }

    /// Counts one value `times` times.
    #[inline]
    pub fn record_n(&mut self, ns: u64, times: u64) {
        let bucket = Self::bucket_of(ns);
        self.counts[bucket] += times;
        if bucket == BUCKETS - 1 && times > 0 {
            self.open_max_ns = self.open_max_ns.max(ns);
        }
    }

    /// Counts each value once.
    pub fn record_all(&mut self, ns: &[u32]) {
        for &ns in ns {
            // No value of 32 bits is in the last bucket, whose maximum would have to be kept.
            self.counts[Self::bucket_of(u64::from(ns))] += 1;
        }
    }

    /// Adds all counts of `other`.
    pub fn merge(&mut self, other: &Histogram) {
        for (a, b) in self.counts.iter_mut().zip(&other.counts) {
            *a += b;
        }
        self.open_max_ns = self.open_max_ns.max(other.open_max_ns);
    }

    /// Sets the counts to those of `later`, a later state of the same histogram. Calls `tell` with each bucket that has
    /// grown, and by how much.
    pub fn catch_up(&mut self, later: &Histogram, mut tell: impl FnMut(usize, u64)) {
        for (bucket, (mine, theirs)) in self.counts.iter_mut().zip(&later.counts).enumerate() {
            if *mine != *theirs {
                tell(bucket, *theirs - *mine);
                *mine = *theirs;
            }
        }
        self.open_max_ns = later.open_max_ns;
    }

    /// Resets all counts.
    pub fn reset(&mut self) {
        *self = Histogram::new();
    }

    /// Number of values recorded. Visits all buckets.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Smallest value recorded, to the resolution of a bucket; 0 when empty. [`Running`] has the exact one.
    pub fn min(&self) -> u64 {
        self.counts.iter().position(|&n| n != 0).map_or(0, Self::value_of)
    }

    /// Largest value recorded, to the resolution of a bucket (exact in the last one); 0 when empty.
    pub fn max(&self) -> u64 {
        self.counts.iter().rposition(|&n| n != 0).map_or(0, |b| self.bucket_value(b))
    }

    fn bucket_value(&self, bucket: usize) -> u64 {
        if bucket == BUCKETS - 1 { self.open_max_ns } else { Self::value_of(bucket) }
    }

    /// The value at `percent`, as fio reports it: the first bucket at which the cumulative count reaches `percent` % of
    /// all. 0 when empty. `percent` is clamped to 0..=100; at 0 the result is the first bucket's value, 0.
    pub fn percentile(&self, percent: f64) -> u64 {
        self.percentiles(&[percent])[0]
    }

    /// [`Histogram::percentile`] of each entry of `percents`, in one pass when they ascend.
    pub fn percentiles(&self, percents: &[f64]) -> Vec<u64> {
        let mut out = Vec::with_capacity(percents.len());
        let total = self.total();
        let (mut bucket, mut sum, mut last) = (0, self.counts[0], f64::NEG_INFINITY);
        for &p in percents {
            if p < last {
                (bucket, sum) = (0, self.counts[0]);
            }
            last = p;
            let want = p.clamp(0.0, 100.0) / 100.0 * total as f64;
            while (sum as f64) < want && bucket + 1 < BUCKETS {
                bucket += 1;
                sum += self.counts[bucket];
            }
            out.push(if total == 0 { 0 } else { self.bucket_value(bucket) });
        }
        out
    }

    /// The buckets that are not empty: (value that represents the bucket, count), ascending. These are fio's json+ bins.
    pub fn bins(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.counts.iter().enumerate().filter(|&(_, &n)| n != 0).map(|(i, &n)| (Self::value_of(i), n))
    }
}

/// Count, minimum, maximum, mean and sample standard deviation of integers. Exact and free of overflow for 2^48 samples
/// below 2^40 (18 minutes in nanoseconds).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Running {
    n: u64,
    min: u64,
    max: u64,
    sum: u128,
    sum_sq: u128,
}

impl Default for Running {
    fn default() -> Self {
        Running::new()
    }
}

impl Running {
    /// No samples.
    pub const fn new() -> Running {
        Running { n: 0, min: u64::MAX, max: 0, sum: 0, sum_sq: 0 }
    }

    /// Adds one sample.
    #[inline]
    pub fn record(&mut self, x: u64) {
        self.n += 1;
        self.min = self.min.min(x);
        self.max = self.max.max(x);
        self.sum += u128::from(x);
        self.sum_sq += u128::from(x) * u128::from(x);
    }

    /// Adds each sample.
    pub fn record_all(&mut self, samples: &[u32]) {
        // Squares are summed in two halves, so that the loop works on several samples at once.
        let (mut min, mut max, mut sum, mut low, mut high) = (u32::MAX, 0, 0, 0, 0);
        for &x in samples {
            min = x.min(min);
            max = x.max(max);
            sum += u64::from(x);
            let square = u64::from(x) * u64::from(x);
            low += square & u64::from(u32::MAX);
            high += square >> 32;
        }
        self.n += samples.len() as u64;
        self.min = self.min.min(if samples.is_empty() { u64::MAX } else { u64::from(min) });
        self.max = self.max.max(u64::from(max));
        self.sum += u128::from(sum);
        self.sum_sq += u128::from(low) + (u128::from(high) << 32);
    }

    /// Adds `times` samples of the same value.
    #[inline]
    pub fn record_n(&mut self, x: u64, times: u64) {
        if times == 0 {
            return;
        }
        self.n += times;
        self.min = self.min.min(x);
        self.max = self.max.max(x);
        self.sum += u128::from(x) * u128::from(times);
        self.sum_sq += u128::from(x) * u128::from(x) * u128::from(times);
    }

    /// Adds all samples of `other`; exact.
    pub fn merge(&mut self, other: &Running) {
        self.n += other.n;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.sum += other.sum;
        self.sum_sq += other.sum_sq;
    }

    /// Number of samples.
    pub const fn count(&self) -> u64 {
        self.n
    }

    /// Smallest sample; 0 without samples.
    pub const fn min(&self) -> u64 {
        if self.n == 0 { 0 } else { self.min }
    }

    /// Largest sample; 0 without samples.
    pub const fn max(&self) -> u64 {
        self.max
    }

    /// Sum of all samples.
    pub const fn sum(&self) -> u128 {
        self.sum
    }

    /// Arithmetic mean; 0 without samples.
    pub fn mean(&self) -> f64 {
        if self.n == 0 { 0.0 } else { self.sum as f64 / self.n as f64 }
    }

    /// Sample standard deviation (divisor n - 1, as fio); 0 with fewer than two samples.
    pub fn stdev(&self) -> f64 {
        if self.n < 2 {
            return 0.0;
        }
        // Sum of (x - q)^2 with the integer mean q, exactly. The remainder r of the mean is subtracted afterwards. Squaring
        // `sum` itself could overflow and would lose the small differences that matter.
        let n = u128::from(self.n);
        let (q, r) = (self.sum / n, self.sum % n);
        let around_q = self.sum_sq - q * (self.sum + r);
        let squares = around_q as f64 - (r as f64 * r as f64) / self.n as f64;
        (squares.max(0.0) / (self.n - 1) as f64).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_and_stand_for_themselves() {
        for b in 0..BUCKETS {
            assert_eq!(Histogram::bucket_of(Histogram::value_of(b)), b);
        }
        for ns in 0..200_000u64 {
            let step = Histogram::bucket_of(ns + 1) - Histogram::bucket_of(ns);
            assert!(step <= 1, "bucket skipped after {ns}");
        }
        assert_eq!(Histogram::bucket_of(u64::MAX), BUCKETS - 1);
        // Edges of fio's plat table: 29 groups end at 2^34 ns.
        assert_eq!(Histogram::bucket_of((1 << 34) - 1), BUCKETS - 1);
        assert_eq!(Histogram::bucket_of((1 << 34) - (1 << 27) - 1), BUCKETS - 2);
    }

    #[test]
    fn a_bucket_s_value_is_within_one_part_in_128() {
        let mut ns = 1u64;
        while ns < 1 << 34 {
            let v = Histogram::value_of(Histogram::bucket_of(ns));
            assert!(v.abs_diff(ns) * 128 <= ns, "{ns} reads back as {v}");
            ns += 1 + ns / 97;
        }
    }

    #[test]
    fn values_recorded_together_are_those_recorded_singly() {
        let (mut together, mut singly) = (Histogram::new(), Histogram::new());
        let values: Vec<u32> = (0..32).flat_map(|bit| [(1 << bit) - 1, 1 << bit, u32::MAX - bit]).collect();
        together.record_all(&values);
        values.iter().for_each(|&ns| singly.record(u64::from(ns)));
        assert_eq!(together, singly);
    }

    #[test]
    fn percentiles_follow_fio_s_rule() {
        let mut h = Histogram::new();
        (1..=100).for_each(|v| h.record(v));
        assert_eq!(h.percentiles(&[1.0, 50.0, 99.0, 100.0, 50.5]), [1, 50, 99, 100, 51]);
        assert_eq!(Histogram::new().percentile(50.0), 0);
        h.record(90_000_000_000);
        assert_eq!(h.percentile(100.0), 90_000_000_000, "the open bucket reports the maximum");
        assert_eq!((h.min(), h.max(), h.total()), (1, 90_000_000_000, 101));
        assert_eq!(h.bins().map(|(_, n)| n).sum::<u64>(), 101);
    }

    #[test]
    fn running_statistics_are_exact_and_merge() {
        let (mut a, mut b, mut all) = (Running::new(), Running::new(), Running::new());
        for (i, v) in [3_000_000_007u64, 3_000_000_009, 3_000_000_001, 3_000_000_003].into_iter().enumerate() {
            let half = if i % 2 == 0 { &mut a } else { &mut b };
            half.record(v);
            all.record(v);
        }
        a.merge(&b);
        assert_eq!(a, all);
        assert_eq!(all.mean(), 3_000_000_005.0);
        assert!((all.stdev() - (40.0f64 / 3.0).sqrt()).abs() < 1e-9, "{}", all.stdev());
        let samples = [7, u32::MAX, 0, u32::MAX - 1, 1 << 20];
        let (mut together, mut singly) = (Running::new(), Running::new());
        together.record_all(&[]);
        together.record_all(&samples);
        samples.iter().for_each(|&x| singly.record(u64::from(x)));
        assert_eq!(together, singly);
        let mut n = Running::new();
        n.record_n(7, 3);
        n.record_n(9, 0);
        assert_eq!((n.count(), n.max(), n.stdev()), (3, 7, 0.0));
    }
}
