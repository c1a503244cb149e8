// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The result of a tuning, as data.

use serde::{Deserialize, Serialize};

use super::confirm::Duel;
use super::detect::Finding;
use super::objective::MetricId;
use super::point::Point;

/// The verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TuneVerdict {
    /// The recommendation is better than the default, and this is confirmed.
    Better,
    /// No better setting was found.
    NoBetter,
    /// The most promising setting gains less than what is worth a change: its whole interval is below `--detect`.
    NotWorth,
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
    /// The metric that was to improve.
    pub goal: MetricId,
    /// The verdict.
    pub verdict: TuneVerdict,
    /// The recommended point; the default if nothing is recommended.
    pub winner: Point,
    /// The confirmation of the most promising point against the default.
    pub against_default: Option<Duel>,
    /// Confirmations of the winner against rules of thumb.
    pub against_rules: Vec<Duel>,
    /// Rules of thumb that were not compared, each with the reason: it is the default or the winner, or the target rejects it.
    pub rules_left_out: Vec<(String, String)>,
    /// Settings that seemed good beside others, but are not needed.
    pub unneeded: Vec<String>,
    /// Settings of which nothing can be told, because the model of the simulated disk does not have what they change; each
    /// with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unmodelled: Vec<(String, String)>,
    /// The limit that cannot be kept.
    pub impossible: Option<Impossible>,
    /// Median figure of the default while screening.
    pub default_value: Option<f64>,
    /// Standard deviation of ln(goal) from run to run with the default settings.
    pub noise: f64,
    /// Number of different points tried.
    pub points: u32,
    /// Number of runs.
    pub runs: u32,
    /// Duration of all runs, seconds.
    pub seconds: f64,
    /// Whether the budget ended the search.
    pub cut_short: bool,
    /// Findings about the machine.
    pub findings: Vec<Finding>,
}

/// A limit that cannot be kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Impossible {
    /// The limit as typed.
    pub text: String,
    /// The point that came nearest to the limit.
    pub best: Point,
    /// The confirmation of that point against the default, in the metric of the limit.
    pub duel: Duel,
}
