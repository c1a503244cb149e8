// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The result of a tuning, as data.

use serde::{Deserialize, Serialize};

use super::confirm::Duel;
use super::detect::Finding;
use super::objective::MetricId;
use super::point::Point;

/// The word at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TuneVerdict {
    /// The recommendation is better than the default, confirmed.
    Better,
    /// Nothing was found that is.
    NoBetter,
    /// The default does not keep a limit; the recommendation does, without being better.
    LimitKept,
    /// No setting keeps a limit.
    CannotKeep,
    /// I/Os failed with the default settings.
    Errors,
}

/// A finished tuning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TuneResult {
    /// What was to become better.
    pub goal: MetricId,
    /// The word.
    pub verdict: TuneVerdict,
    /// What is recommended; the default when nothing is.
    pub winner: Point,
    /// The confirmation against the default, of whatever looked best.
    pub against_default: Option<Duel>,
    /// Confirmations of the winner against rules of thumb.
    pub against_rules: Vec<Duel>,
    /// Rules of thumb that are the default or the winner, or that this target cannot have, each with the reason.
    pub rules_left_out: Vec<(String, String)>,
    /// Settings that looked good beside others and are not needed.
    pub unneeded: Vec<String>,
    /// The limit that cannot be kept.
    pub impossible: Option<Impossible>,
    /// The default's figure while screening, median.
    pub default_value: Option<f64>,
    /// Standard deviation of ln(goal) from run to run with the default.
    pub noise: f64,
    /// Different points tried.
    pub points: u32,
    /// Runs in all.
    pub runs: u32,
    /// Seconds of runs.
    pub seconds: f64,
    /// Whether the budget ended the search.
    pub cut_short: bool,
    /// What was noticed about the machine.
    pub findings: Vec<Finding>,
}

/// A limit that cannot be kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Impossible {
    /// As typed.
    pub text: String,
    /// The nearest that was found.
    pub best: Point,
    /// The confirmation of that against the default, about the limit's metric.
    pub duel: Duel,
}
