// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Interval and p-value of a ratio B/A from independent logarithms of ratios.
//!
//! Guarantees: the interval of the geometric mean ratio has the requested level, by Student's t on the logarithms. Swapping
//! A and B gives exactly the reciprocal interval and the same p-value. Needs from callers: values that are independent, or
//! whose signs are independent (see `compare`: each block's orientation is drawn at random, which makes the signs
//! independent for any noise of the machine). Does not: decide anything; `verdict` does.
//!
//! Logarithms are used because run results are positive and their noise is proportional, and because "twice as fast" and
//! "half as fast" must be equally far from 1. The bootstrap is not used: with 5 to 10 blocks, which is a realistic number,
//! the percentile bootstrap is too narrow (tests/it/false_alarms.rs measures its false alarms beside ours).

use serde::{Deserialize, Serialize};

use super::{descriptive, student_t};

/// A ratio B/A with its uncertainty.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Geometric mean of B/A.
    pub ratio: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Two-sided p-value of "the ratio is 1".
    pub p: f64,
    /// Smallest change (as a fraction: 0.05 is 5 %) that would have been significant at the tested level.
    pub resolution: f64,
}

impl Ratio {
    /// B/A as a change in percent: +4.1 for a ratio of 1.041.
    pub fn percent(&self) -> f64 {
        (self.ratio - 1.0) * 100.0
    }

    /// The interval as changes in percent.
    pub fn percent_interval(&self) -> (f64, f64) {
        ((self.low - 1.0) * 100.0, (self.high - 1.0) * 100.0)
    }
}

/// Estimates the ratio from one natural logarithm of B/A per independent unit.
///
/// `coverage` is that of the interval (0.95). `level` is the significance level for `resolution`. Returns `None` for fewer
/// than two units, or if a value is not finite (a result of zero has no logarithm).
///
/// # Panics
/// When `coverage` or `level` is outside (0, 1).
pub fn estimate(log_ratios: &[f64], coverage: f64, level: f64) -> Option<Ratio> {
    if !log_ratios.iter().all(|x| x.is_finite()) {
        return None;
    }
    let mean = descriptive::mean(log_ratios)?;
    let se = descriptive::stddev(log_ratios)? / (log_ratios.len() as f64).sqrt();
    let df = u32::try_from(log_ratios.len() - 1).ok()?;
    let half = student_t::critical(1.0 - coverage, df) * se;
    let p = match (mean == 0.0, se == 0.0) {
        (true, _) => 1.0,
        // Units that agree to the last bit (a simulated device) are certain, and 0/0 must not become NaN.
        (false, true) => 0.0,
        (false, false) => student_t::two_sided_p(mean / se, df),
    };
    Some(Ratio {
        ratio: mean.exp(),
        low: (mean - half).exp(),
        high: (mean + half).exp(),
        p,
        resolution: (student_t::critical(level, df) * se).exp_m1(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hand_computed_interval() {
        // mean 0.1, sd 0.1, n 4, se 0.05, t(0.975; 3) = 3.18245
        let (x, s) = (0.1, 0.1 * (3.0f64 / 4.0).sqrt());
        let r = estimate(&[x - s, x - s, x + s, x + s], 0.95, 0.02).unwrap();
        assert!((r.ratio - 0.1f64.exp()).abs() < 1e-12);
        assert!((r.low.ln() - (0.1 - 3.182_446 * 0.05)).abs() < 1e-6);
        assert!((r.high.ln() - (0.1 + 3.182_446 * 0.05)).abs() < 1e-6);
        assert!((r.p - 0.139_3).abs() < 1e-3, "{}", r.p);
        // t(0.99; 3) = 4.54070
        assert!((r.resolution - (4.540_70f64 * 0.05).exp_m1()).abs() < 1e-5);
    }

    #[test]
    fn identical_units_are_certain_and_identical_sides_are_equal() {
        let same = estimate(&[0.0; 5], 0.95, 0.02).unwrap();
        assert_eq!((same.ratio, same.low, same.high, same.p, same.resolution), (1.0, 1.0, 1.0, 1.0, 0.0));
        assert!(estimate(&[0.125; 4], 0.95, 0.02).unwrap().p < 1e-9);
    }

    #[test]
    fn too_little_or_unusable_data_is_none() {
        assert_eq!(estimate(&[], 0.95, 0.02), None);
        assert_eq!(estimate(&[0.1], 0.95, 0.02), None);
        assert_eq!(estimate(&[0.1, f64::NEG_INFINITY, 0.2], 0.95, 0.02), None);
    }

    proptest! {
        #[test]
        fn swapping_the_sides_gives_the_reciprocal(xs in prop::collection::vec(-0.5f64..0.5, 2..30)) {
            let ys: Vec<f64> = xs.iter().map(|x| -x).collect();
            let (ab, ba) = (estimate(&xs, 0.95, 0.02).unwrap(), estimate(&ys, 0.95, 0.02).unwrap());
            prop_assert!((ab.ratio * ba.ratio - 1.0).abs() < 1e-12);
            prop_assert!((ab.low * ba.high - 1.0).abs() < 1e-9);
            prop_assert!((ab.p - ba.p).abs() < 1e-12);
        }

        #[test]
        fn interval_excludes_one_exactly_when_p_is_below_five_percent(xs in prop::collection::vec(-0.1f64..0.2, 3..20)) {
            let r = estimate(&xs, 0.95, 0.02).unwrap();
            prop_assume!((r.p - 0.05).abs() > 1e-6);
            prop_assert_eq!(r.p < 0.05, r.low > 1.0 || r.high < 1.0);
            prop_assert!(r.low <= r.ratio && r.ratio <= r.high);
        }
    }
}
