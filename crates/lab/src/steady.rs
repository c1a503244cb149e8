// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks whether repeated results of the same measurement are stable over time.
//!
//! Guarantees: computes the two figures of fio's `steadystate` option over the whole series, as fractions of its mean: the
//! least-squares slope and the largest deviation from the mean. A slope counts as drift only if it is also significant
//! against the scatter (p < 0.01); otherwise a few noisy points would always "drift". Needs from callers: results in the
//! order they were measured. Does not: change a verdict by itself. Interleaving cancels drift. An unsteady series is a
//! warning that the level of both sides may be different tomorrow.

use serde::{Deserialize, Serialize};

use crate::stats::{descriptive, student_t};

/// A larger change over the whole series, relative to its mean, is called drift.
pub const DRIFT_LIMIT: f64 = 0.10;
/// A larger deviation of one result from the mean, relative to the mean, is called a jump.
pub const DEVIATION_LIMIT: f64 = 0.20;
/// Significance level of drift: how often pure scatter is called drift.
const DRIFT_LEVEL: f64 = 0.01;

/// Stability of a series.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Steadiness {
    /// Fitted change from the first to the last result, as a fraction of the mean.
    pub drift: f64,
    /// Two-sided p-value of "no drift".
    pub drift_p: f64,
    /// Largest distance of a result from the mean, as a fraction of the mean.
    pub deviation: f64,
}

impl Steadiness {
    /// Measures a series; `None` for fewer than three results or a mean of zero.
    pub fn of(series: &[f64]) -> Option<Steadiness> {
        let trend = descriptive::trend(series)?;
        let mean = descriptive::mean(series).filter(|m| *m != 0.0)?;
        let df = u32::try_from(series.len() - 2).ok()?;
        let drift_p = match (trend.slope == 0.0, trend.slope_se == 0.0) {
            (true, _) => 1.0,
            (false, true) => 0.0,
            (false, false) => student_t::two_sided_p(trend.slope / trend.slope_se, df),
        };
        let deviation = series.iter().map(|x| (x - mean).abs()).fold(0.0, f64::max) / mean.abs();
        Some(Steadiness { drift: trend.slope * (series.len() - 1) as f64 / mean, drift_p, deviation })
    }

    /// Whether the level moves over the series.
    pub fn drifts(&self) -> bool {
        self.drift.abs() > DRIFT_LIMIT && self.drift_p < DRIFT_LEVEL
    }

    /// Whether single results are far from the mean.
    pub fn jumps(&self) -> bool {
        self.deviation > DEVIATION_LIMIT
    }

    /// Whether the series neither drifts nor jumps.
    pub fn is_steady(&self) -> bool {
        !self.drifts() && !self.jumps()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flat_series_is_steady() {
        let s = Steadiness::of(&[100.0, 101.0, 99.0, 100.5, 99.5, 100.0]).unwrap();
        assert!(s.is_steady() && s.deviation < 0.011 && s.drift.abs() < 0.02, "{s:?}");
        let exact = Steadiness::of(&[7.0; 5]).unwrap();
        assert_eq!((exact.drift, exact.drift_p, exact.deviation), (0.0, 1.0, 0.0));
    }

    #[test]
    fn a_slope_out_of_the_scatter_drifts() {
        let s = Steadiness::of(&[100.0, 104.0, 107.0, 112.0, 116.0, 119.0]).unwrap();
        assert!(s.drifts() && !s.jumps() && !s.is_steady(), "{s:?}");
        assert!((s.drift - 0.176).abs() < 0.01, "{s:?}");
    }

    #[test]
    fn a_slope_inside_the_scatter_does_not() {
        let s = Steadiness::of(&[90.0, 112.0, 91.0, 111.0, 95.0, 115.0]).unwrap();
        assert!(s.drift > DRIFT_LIMIT && !s.drifts(), "{s:?}");
    }

    #[test]
    fn one_outlier_is_a_jump() {
        let s = Steadiness::of(&[100.0, 100.0, 100.0, 60.0, 100.0, 100.0]).unwrap();
        assert!(s.jumps() && !s.drifts(), "{s:?}");
    }

    #[test]
    fn too_short_or_zero_is_none() {
        assert_eq!(Steadiness::of(&[1.0, 2.0]), None);
        assert_eq!(Steadiness::of(&[0.0, 0.0, 0.0]), None);
    }
}
