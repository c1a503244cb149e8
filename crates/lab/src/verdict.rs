// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The verdict of a comparison, and the rule that gives it.
//!
//! Guarantees: A against A is called different in about [`LEVEL`] of comparisons (2 in 100). From 12 pairs on it is less
//! than 5 in 100, whatever the machine's noise. Measured in tests/it/false_alarms.rs: 0.3 to 2.6 % under Gaussian,
//! heavy-tailed, drifting, autocorrelated and bursty noise, at worst 4.4 % (10 pairs, noise with exactly the period of a
//! block). The level is stricter than the printed 95 % interval on purpose: at 5 %, more than five false alarms in a
//! hundred A/A comparisons would be common. So an interval may just exclude 1 while the verdict is "no difference shown".
//!
//! Only one metric, chosen before the first run, decides the verdict. The others are marked after Holm's correction and
//! have no influence on it.
//!
//! Needs from callers: all planned pairs; otherwise the verdict is [`Verdict::Stopped`]. Does not: say that two sides are
//! equal. It says only that no difference was shown, and how large a difference would have been detected
//! ([`crate::stats::ratio::Ratio::resolution`]).

use serde::{Deserialize, Serialize};

use crate::metric::Metric;
use crate::stats::ratio::Ratio;

/// Significance level of a verdict and of the marks on secondary metrics.
pub const LEVEL: f64 = 0.02;
/// Coverage of printed intervals.
pub const COVERAGE: f64 = 0.95;
/// A change smaller than this fraction is never called a difference, because run times are counted in whole milliseconds.
/// One millisecond is a thousandth of the shortest useful run, so a smaller change may be rounding.
pub const NEGLIGIBLE: f64 = 0.001;
/// At this resolution even a change of this size could not have been detected. If the series is not steady either, the
/// machine is to blame, not the sides.
pub const HOPELESS_RESOLUTION: f64 = 0.20;

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The primary metric is better for B.
    BIsFaster,
    /// The primary metric is worse for B.
    BIsSlower,
    /// The data do not show a difference.
    NoDifferenceShown,
    /// The series drifts or jumps so much that a difference of 20 % could not have been seen.
    NotSteady,
    /// Not all planned pairs were run. A verdict on those that were would raise the false alarm rate.
    Stopped {
        /// Pairs completed.
        done: u32,
        /// Pairs planned.
        planned: u32,
    },
    /// I/Os failed or blocks did not verify on a side, so the measured work is not the requested work.
    Errors,
    /// The primary metric is missing in at least one run (no I/O completed, or not measured).
    NotMeasured,
    /// The sides differ in something that the model of the simulated disk does not have.
    NotModelled,
}

impl Verdict {
    /// Whether a difference was found.
    pub const fn is_difference(self) -> bool {
        matches!(self, Verdict::BIsFaster | Verdict::BIsSlower)
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Verdict::BIsFaster => f.write_str("B is faster"),
            Verdict::BIsSlower => f.write_str("B is slower"),
            Verdict::NoDifferenceShown => f.write_str("no difference shown"),
            Verdict::NotSteady => f.write_str("not steady: no conclusion"),
            Verdict::Stopped { done, planned } => write!(f, "stopped after {done} of {planned} pairs: no verdict"),
            Verdict::Errors => f.write_str("errors in the runs: no verdict"),
            Verdict::NotMeasured => f.write_str("not measured: no conclusion"),
            Verdict::NotModelled => f.write_str("cannot tell: not modelled"),
        }
    }
}

/// All data that the rule uses.
#[derive(Clone, Copy, Debug)]
pub struct Evidence {
    /// The metric chosen beforehand.
    pub primary: Metric,
    /// Its ratio B/A; `None` when it could not be computed.
    pub ratio: Option<Ratio>,
    /// Pairs completed.
    pub done: u32,
    /// Pairs planned.
    pub planned: u32,
    /// Whether both sides' series are steady.
    pub steady: bool,
    /// I/Os that failed, plus blocks that did not verify, over all runs.
    pub errors: u64,
    /// Whether the model of the simulated disk has what the sides differ in.
    pub modelled: bool,
    /// Significance level: [`LEVEL`], or a part of it if several sides are compared with one.
    pub level: f64,
}

/// Applies the rule.
pub fn decide(e: &Evidence) -> Verdict {
    if e.done < e.planned {
        return Verdict::Stopped { done: e.done, planned: e.planned };
    }
    if e.errors > 0 {
        return Verdict::Errors;
    }
    if !e.modelled {
        return Verdict::NotModelled;
    }
    let Some(r) = e.ratio else { return Verdict::NotMeasured };
    if r.p < e.level && (r.ratio - 1.0).abs() > NEGLIGIBLE {
        let better = (r.ratio > 1.0) == e.primary.higher_is_better();
        return if better { Verdict::BIsFaster } else { Verdict::BIsSlower };
    }
    if !e.steady && r.resolution > HOPELESS_RESOLUTION { Verdict::NotSteady } else { Verdict::NoDifferenceShown }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence(ratio: f64, p: f64) -> Evidence {
        let r = Ratio { ratio, low: ratio * 0.99, high: ratio * 1.01, p, resolution: 0.01 };
        Evidence {
            primary: Metric::Iops,
            ratio: Some(r),
            done: 12,
            planned: 12,
            steady: true,
            errors: 0,
            modelled: true,
            level: LEVEL,
        }
    }

    #[test]
    fn direction_follows_the_metric() {
        assert_eq!(decide(&evidence(1.05, 0.001)), Verdict::BIsFaster);
        assert_eq!(decide(&evidence(0.95, 0.001)), Verdict::BIsSlower);
        let latency = |r, p| Evidence { primary: Metric::LatencyMean, ..evidence(r, p) };
        assert_eq!(decide(&latency(0.95, 0.001)), Verdict::BIsFaster);
        assert_eq!(decide(&latency(1.05, 0.001)), Verdict::BIsSlower);
    }

    #[test]
    fn chance_and_rounding_show_nothing() {
        assert_eq!(decide(&evidence(1.05, 0.03)), Verdict::NoDifferenceShown);
        assert_eq!(decide(&evidence(1.0005, 1e-9)), Verdict::NoDifferenceShown);
    }

    #[test]
    fn an_early_stop_gives_no_verdict_however_clear_it_looks() {
        let e = Evidence { done: 10, ..evidence(2.0, 1e-9) };
        assert_eq!(decide(&e).to_string(), "stopped after 10 of 12 pairs: no verdict");
        assert!(!decide(&e).is_difference());
    }

    #[test]
    fn errors_give_no_verdict_however_clear_it_looks() {
        let e = Evidence { errors: 1, ..evidence(2.0, 1e-9) };
        assert_eq!(decide(&e).to_string(), "errors in the runs: no verdict");
        assert!(!decide(&e).is_difference());
    }

    #[test]
    fn unsteady_matters_only_when_nothing_could_be_seen() {
        assert_eq!(decide(&Evidence { steady: false, ..evidence(1.0, 0.5) }), Verdict::NoDifferenceShown);
        let mut wide = evidence(1.0, 0.5);
        wide.ratio = wide.ratio.map(|r| Ratio { resolution: 0.3, ..r });
        assert_eq!(decide(&wide), Verdict::NoDifferenceShown);
        assert_eq!(decide(&Evidence { steady: false, ..wide }), Verdict::NotSteady);
        assert_eq!(decide(&Evidence { ratio: None, ..wide }), Verdict::NotMeasured);
    }
}
