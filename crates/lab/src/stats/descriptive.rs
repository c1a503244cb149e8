// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mean, spread, median and trend of a short series of results.
//!
//! Guarantees: two-pass sums (no cancellation for large means), no allocation except in [`median`], `None` instead of NaN when
//! the series is too short. Needs from callers: finite numbers. Does not: weight, trim or drop any value; an outlier is a result.

/// Arithmetic mean; `None` for an empty series.
pub fn mean(xs: &[f64]) -> Option<f64> {
    if xs.is_empty() { None } else { Some(xs.iter().sum::<f64>() / xs.len() as f64) }
}

/// Sample standard deviation (divisor n - 1); `None` for fewer than two values.
pub fn stddev(xs: &[f64]) -> Option<f64> {
    if xs.len() < 2 {
        return None;
    }
    let m = mean(xs)?;
    let ss: f64 = xs.iter().map(|x| (x - m) * (x - m)).sum();
    Some((ss / (xs.len() - 1) as f64).sqrt())
}

/// Median (mean of the two middle values for an even count); `None` for an empty series.
pub fn median(xs: &[f64]) -> Option<f64> {
    if xs.is_empty() {
        return None;
    }
    let mut v = xs.to_vec();
    v.sort_by(f64::total_cmp);
    let mid = v.len() / 2;
    Some(if v.len() % 2 == 1 { v[mid] } else { 0.5 * (v[mid - 1] + v[mid]) })
}

/// A least-squares line through a series whose points are one step apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trend {
    /// Change per step, in the unit of the values.
    pub slope: f64,
    /// Standard error of `slope`, from the residuals; 0 for a perfect line.
    pub slope_se: f64,
}

/// Fits [`Trend`]; `None` for fewer than three values (no residual degree of freedom is left).
pub fn trend(xs: &[f64]) -> Option<Trend> {
    if xs.len() < 3 {
        return None;
    }
    let n = xs.len() as f64;
    let (mx, mt) = (mean(xs)?, (n - 1.0) / 2.0);
    let (mut stt, mut stx) = (0.0, 0.0);
    for (i, x) in xs.iter().enumerate() {
        let dt = i as f64 - mt;
        stt += dt * dt;
        stx += dt * (x - mx);
    }
    let slope = stx / stt;
    let residual: f64 = xs.iter().enumerate().map(|(i, x)| x - mx - slope * (i as f64 - mt)).map(|r| r * r).sum();
    Some(Trend { slope, slope_se: (residual / (n - 2.0) / stt).sqrt() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn short_series_give_none_not_nan() {
        assert_eq!(mean(&[]), None);
        assert_eq!(stddev(&[1.0]), None);
        assert_eq!(median(&[]), None);
        assert_eq!(trend(&[1.0, 2.0]), None);
    }

    #[test]
    fn known_values() {
        let xs = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        assert_eq!(mean(&xs), Some(5.0));
        assert!((stddev(&xs).unwrap() - (32.0f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!(median(&xs), Some(4.5));
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
    }

    #[test]
    fn trend_of_a_line_is_exact_and_of_a_symmetric_series_is_zero() {
        let line: Vec<f64> = (0..9).map(|i| 10.0 + 0.5 * f64::from(i)).collect();
        let t = trend(&line).unwrap();
        assert!((t.slope - 0.5).abs() < 1e-12 && t.slope_se < 1e-12);
        let tent = trend(&[1.0, 2.0, 3.0, 2.0, 1.0]).unwrap();
        assert!(tent.slope.abs() < 1e-12 && tent.slope_se > 0.1);
    }

    #[test]
    fn a_large_mean_does_not_cancel_the_spread() {
        let xs: Vec<f64> = [1.0, 2.0, 3.0].iter().map(|x| x + 1e12).collect();
        assert!((stddev(&xs).unwrap() - 1.0).abs() < 1e-3);
    }

    proptest! {
        #[test]
        fn shift_and_scale(xs in prop::collection::vec(-1e3f64..1e3, 3..40), shift in -1e3f64..1e3, scale in 0.1f64..10.0) {
            let ys: Vec<f64> = xs.iter().map(|x| shift + scale * x).collect();
            prop_assert!((mean(&ys).unwrap() - (shift + scale * mean(&xs).unwrap())).abs() < 1e-6);
            prop_assert!((stddev(&ys).unwrap() - scale * stddev(&xs).unwrap()).abs() < 1e-6);
            prop_assert!((median(&ys).unwrap() - (shift + scale * median(&xs).unwrap())).abs() < 1e-6);
            prop_assert!((trend(&ys).unwrap().slope - scale * trend(&xs).unwrap().slope).abs() < 1e-6);
        }

        #[test]
        fn median_splits_the_series(xs in prop::collection::vec(-1e3f64..1e3, 1..40)) {
            let m = median(&xs).unwrap();
            let below = xs.iter().filter(|x| **x < m).count();
            let above = xs.iter().filter(|x| **x > m).count();
            prop_assert!(below <= xs.len() / 2 && above <= xs.len() / 2);
        }
    }
}
