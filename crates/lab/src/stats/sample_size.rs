// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many units of evidence show a difference of a given size.
//!
//! Guarantees: a true difference of `effect` is found at `level` with at least probability `power`, although the spread is
//! known only from a first part of the units. This is Stein's two-stage rule: the quantiles are those of the first part's
//! degrees of freedom, which accounts for the unknown spread. The number depends on the spread alone, never on the
//! difference seen so far, so computing it is no peeking.
//!
//! Does not: promise anything if later units have a different spread.
//! Source: C. Stein, "A two-sample test for a linear hypothesis whose power is independent of the variance", 1945.

use super::{descriptive, student_t};

/// Probability of finding a difference of the requested size.
pub const POWER: f64 = 0.90;
/// A larger result is limited to this number of units.
const UNITS_MAX: f64 = 1e6;

/// Returns the number of units that are needed in total, including the first part. `sd` is the standard deviation of their
/// logarithms, estimated from `df` + 1 units. `effect` is the difference, also a logarithm.
///
/// # Panics
/// When `df` is 0, `effect` not positive, or `level` or `power` not inside (0, 1).
pub fn units_for(sd: f64, df: u32, effect: f64, level: f64, power: f64) -> u32 {
    assert!(effect > 0.0, "an effect of {effect} cannot be found");
    assert!(power > 0.5 && power < 1.0, "power {power} is not inside (0.5, 1)");
    let quantiles = student_t::critical(level, df) + student_t::critical(2.0 * (1.0 - power), df);
    (quantiles * sd / effect).powi(2).ceil().clamp(2.0, UNITS_MAX) as u32
}

/// Returns the pairs of runs, two to a unit, that are needed to find a difference of `effect`. `units` are those of the
/// first part. Returns `None` if they are too few to estimate a spread.
pub fn pairs_for(units: &[f64], effect: f64, level: f64) -> Option<u32> {
    let df = u32::try_from(units.len().checked_sub(1)?).ok().filter(|df| *df > 0)?;
    let sd = descriptive::stddev(units).filter(|sd| sd.is_finite())?;
    Some(2 * units_for(sd, df, effect, level, POWER))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn textbook_case() {
        // Many degrees of freedom: z(0.975) + z(0.90) = 1.960 + 1.2816; squared, times (sd / effect)^2 = 4.
        assert_eq!(units_for(0.02, 1_000_000, 0.01, 0.05, 0.90), 43);
        // t(0.99; 5) = 3.36493, t(0.90; 5) = 1.47588: 4.84081^2 * (2/3)^2 = 10.4.
        assert_eq!(units_for(0.02, 5, 0.03, 0.02, 0.90), 11);
        assert_eq!(units_for(0.0, 5, 0.03, 0.02, 0.90), 2);
        assert_eq!(units_for(1e9, 5, 0.03, 0.02, 0.90), 1_000_000);
    }

    proptest! {
        #[test]
        fn smaller_differences_and_more_noise_take_more(sd in 0.001f64..0.2, effect in 0.005f64..0.5, df in 3u32..40) {
            let n = |sd, effect| units_for(sd, df, effect, 0.02, POWER);
            prop_assert!(n(sd, effect) <= n(sd * 1.5, effect) && n(sd, effect) <= n(sd, effect / 1.5));
        }
    }
}
