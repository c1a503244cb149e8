// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the histogram and the running statistics with independent implementations.

use hdrhistogram::Histogram as Hdr;
use proptest::prelude::*;
use workload::hist::{Histogram, Running};

/// Latencies of all magnitudes, not mostly large ones.
fn latency() -> impl Strategy<Value = u64> {
    (0u32..34, any::<u64>()).prop_map(|(bits, v)| v & ((1 << bits) | ((1 << bits) - 1)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn percentiles_agree_with_hdrhistogram(values in prop::collection::vec(latency(), 1..2000)) {
        let mut ours = Histogram::new();
        let mut theirs = Hdr::<u64>::new_with_bounds(1, 1 << 40, 3).unwrap();
        for &v in &values {
            ours.record(v);
            theirs.record(v).unwrap();
        }
        prop_assert_eq!(ours.total(), values.len() as u64);
        for p in [1.0, 10.0, 50.0, 90.0, 99.0, 99.9, 100.0] {
            let (a, b) = (ours.percentile(p), theirs.value_at_quantile(p / 100.0));
            // Half a bucket of our histogram plus one of the other (three significant digits).
            let slack = b / 128 + b / 1000 + 1;
            prop_assert!(a.abs_diff(b) <= slack, "p{}: {} against {}", p, a, b);
        }
    }

    #[test]
    fn percentiles_follow_the_sorted_values(values in prop::collection::vec(latency(), 1..500), p in 0.01f64..100.0) {
        let mut h = Histogram::new();
        values.iter().for_each(|&v| h.record(v));
        let mut sorted = values.clone();
        sorted.sort_unstable();
        let rank = ((p / 100.0 * sorted.len() as f64).ceil() as usize).clamp(1, sorted.len());
        let exact = sorted[rank - 1];
        prop_assert_eq!(Histogram::bucket_of(h.percentile(p)), Histogram::bucket_of(exact));
    }

    #[test]
    fn merging_is_recording_everything_in_one(
        a in prop::collection::vec(any::<u64>(), 0..200),
        b in prop::collection::vec(any::<u64>(), 0..200),
    ) {
        let fill = |values: &[u64]| {
            let (mut h, mut r) = (Histogram::new(), Running::new());
            values.iter().for_each(|&v| (h.record(v), r.record(v >> 4)).0);
            (h, r)
        };
        let ((mut h, mut r), (h2, r2)) = (fill(&a), fill(&b));
        h.merge(&h2);
        r.merge(&r2);
        let (all_h, all_r) = fill(&[a, b].concat());
        prop_assert!(h == all_h);
        prop_assert_eq!(r, all_r);
    }

    #[test]
    fn deviation_agrees_with_two_passes(
        base in 0u64..1 << 40,
        values in prop::collection::vec(0u64..1_000_000, 2..300),
    ) {
        let mut r = Running::new();
        values.iter().for_each(|&v| r.record(base + v));
        let n = values.len() as f64;
        let mean = values.iter().map(|&v| v as f64).sum::<f64>() / n;
        let var = values.iter().map(|&v| (v as f64 - mean).powi(2)).sum::<f64>() / (n - 1.0);
        prop_assert!((r.stdev() - var.sqrt()).abs() <= 1e-6 * (1.0 + var.sqrt()), "{} against {}", r.stdev(), var.sqrt());
        prop_assert_eq!(r.min(), base + values.iter().min().unwrap());
        prop_assert_eq!(r.max(), base + values.iter().max().unwrap());
    }
}
