// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Holm's step-down correction: which of several p-values are significant when all are tested together.
//!
//! Guarantees: the chance that any true "no difference" is marked is at most the level. This holds however the metrics depend
//! on each other, as latency percentiles of one run do. Needs from callers: p-values in [0, 1]. Does not: reorder or drop
//! anything. Source: S. Holm, "A simple sequentially rejective multiple test procedure", 1979.

/// For each p-value, the smallest level at which it would be significant (adjusted p-value), in the order given.
///
/// # Panics
/// When a p-value is outside [0, 1] or NaN.
pub fn adjust(p: &[f64]) -> Vec<f64> {
    assert!(p.iter().all(|p| (0.0..=1.0).contains(p)), "a p-value is outside [0, 1]");
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&i, &j| p[i].total_cmp(&p[j]));
    let mut adjusted = vec![0.0; p.len()];
    let mut floor: f64 = 0.0;
    for (rank, &i) in order.iter().enumerate() {
        floor = floor.max(p[i] * (p.len() - rank) as f64).min(1.0);
        adjusted[i] = floor;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn published_example() {
        let got = adjust(&[0.01, 0.04, 0.03, 0.005]);
        for (g, want) in got.iter().zip([0.03, 0.06, 0.06, 0.02]) {
            assert!((g - want).abs() < 1e-12, "{got:?}");
        }
    }

    #[test]
    fn none_and_one() {
        assert!(adjust(&[]).is_empty());
        assert_eq!(adjust(&[0.03]), vec![0.03]);
    }

    proptest! {
        #[test]
        fn between_raw_and_bonferroni_and_order_preserving(p in prop::collection::vec(0.0f64..=1.0, 1..12)) {
            let a = adjust(&p);
            for i in 0..p.len() {
                prop_assert!(a[i] >= p[i] && a[i] <= (p[i] * p.len() as f64).min(1.0) + 1e-12);
                for j in 0..p.len() {
                    if p[i] < p[j] {
                        prop_assert!(a[i] <= a[j]);
                    }
                }
            }
            // The smallest p-value always pays the full Bonferroni price.
            let min = p.iter().copied().fold(1.0, f64::min);
            let amin = a.iter().copied().fold(1.0, f64::min);
            prop_assert!((amin - (min * p.len() as f64).min(1.0)).abs() < 1e-12);
        }
    }
}
