// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Confirmation: a comparison of two points in fresh, interleaved, full runs.
//!
//! Guarantees: the order is that of [`crate::plan`], the interval that of [`crate::stats::ratio`] over its blocks and the
//! verdict that of [`crate::verdict`]. No measurement of the screening is part of it. The first part has a fixed number of
//! pairs. Its spread determines how many more are needed for a difference of the requested size ([`sample_size`]). The
//! difference seen in the first part has no influence.
//!
//! Does not: decide the consequences of a verdict.

use serde::{Deserialize, Serialize};

use super::bench::{Ask, Length, Reading};
use super::journal::{Halt, Recorder, Tried, TunePlan};
use super::objective::{Bound, Goal, Keep};
use super::point::Point;
use crate::compare::{SideTotals, block_log_ratios};
use crate::metric::Metric;
use crate::plan::{Plan, Side};
use crate::results::RawHistogram;
use crate::stats::ratio::{self, Ratio};
use crate::stats::{descriptive, sample_size};
use crate::steady::Steadiness;
use crate::verdict::{self, COVERAGE, Evidence, LEVEL, Verdict};

/// The parameters of a confirmation.
#[derive(Clone, Debug)]
pub struct DuelSpec<'a> {
    /// What is tuned.
    pub plan: &'a TunePlan,
    /// The point to beat.
    pub a: &'a Point,
    /// The name of the point to beat.
    pub against: &'a str,
    /// The point that is to beat it.
    pub b: &'a Point,
    /// Pairs of the first part.
    pub first: u32,
    /// Maximum number of pairs in total.
    pub most: u32,
    /// The difference to detect, as a logarithm.
    pub effect: f64,
    /// Distinguishes the confirmations of a tuning.
    pub salt: u64,
}

/// The result of a limit in a confirmation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitResult {
    /// The limit as typed.
    pub text: String,
    /// The metric of the limit.
    pub metric: String,
    /// Median over B's runs.
    pub value: Option<f64>,
    /// The value with its unit.
    pub shown: String,
    /// B/A of the metric.
    pub ratio: Option<Ratio>,
    /// Whether the figure keeps the limit.
    pub kept: bool,
    /// Whether the whole interval keeps the limit.
    pub surely: bool,
}

/// A finished confirmation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Duel {
    /// The name of the point to beat.
    pub against: String,
    /// The settings of that point.
    pub a: Point,
    /// The settings of the point that was to beat it.
    pub b: Point,
    /// The verdict about B.
    pub verdict: Verdict,
    /// B/A of the goal, in the metric's unit.
    pub ratio: Option<Ratio>,
    /// Pairs run.
    pub pairs: u32,
    /// Pairs that a difference of the requested size needs.
    pub pairs_asked: u32,
    /// Median over A's runs.
    pub a_median: Option<f64>,
    /// Median over B's runs.
    pub b_median: Option<f64>,
    /// The results of the limits.
    pub keeps: Vec<LimitResult>,
    /// Stages, CPU and errors of A.
    pub a_totals: SideTotals,
    /// The same of B.
    pub b_totals: SideTotals,
    /// Latencies of B over all its runs, per job, direction and kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub b_histograms: Vec<RawHistogram>,
}

impl Duel {
    /// Returns why nothing can be told, if the verdict is [`Verdict::NotModelled`].
    pub fn unmodelled(&self) -> Option<String> {
        self.a_totals.unmodelled(&self.b_totals, [&self.against, &self.b.to_string()])
    }

    /// Whether the whole interval is below a gain of `worth`, a fraction.
    pub fn gains_less_than(&self, goal: &Goal, worth: f64) -> bool {
        self.ratio.is_some_and(|r| goal.gain(1.0, r.low).max(goal.gain(1.0, r.high)) < worth.ln_1p())
    }

    /// Whether all limits are kept.
    pub fn keeps_all(&self) -> bool {
        self.keeps.iter().all(|k| k.kept)
    }
}

/// Readings of one pair.
struct Pair {
    a: Reading,
    b: Reading,
}

/// Runs a confirmation.
pub fn duel(rec: &mut Recorder<'_>, spec: &DuelSpec<'_>) -> Result<Duel, Halt> {
    let seed = super::shuffle::splitmix64(spec.plan.seed, spec.salt);
    let mut plan = Plan::new(spec.first, 1, seed).map_err(|e| Halt::Failed(e.to_string()))?;
    let mut pairs: Vec<Pair> = Vec::new();
    run_pairs(rec, spec, &plan, &mut pairs)?;
    let asked = sample_size::pairs_for(&goal_blocks(spec, &pairs), spec.effect, LEVEL).unwrap_or(plan.pairs());
    plan = plan.extended_to(asked.min(spec.most));
    run_pairs(rec, spec, &plan, &mut pairs)?;
    Ok(evaluate(spec, &pairs, asked))
}

/// Runs the pairs of the plan that have not run yet; the warm-ups run only before the first pair.
fn run_pairs(rec: &mut Recorder<'_>, spec: &DuelSpec<'_>, plan: &Plan, pairs: &mut Vec<Pair>) -> Result<(), Halt> {
    let there = pairs.len() as u32;
    let mut half: Option<Reading> = None;
    for step in plan.steps() {
        if step.pair.map_or(there > 0, |pair| pair < there) {
            continue;
        }
        let point = if step.side == Side::A { spec.a } else { spec.b };
        let entropy = plan.seed().wrapping_add(step.pair.map_or(0, |p| u64::from(p) + 1));
        let tried = rec.measure(Ask { point: point.clone(), length: Length::Full, load: None, entropy })?;
        let reading = match tried {
            Tried::Read(reading) => *reading,
            Tried::Refused(why) => return Err(Halt::Failed(format!("{point}: ran before and is now rejected: {why}"))),
        };
        if step.pair.is_none() {
            continue;
        }
        match half.take() {
            None => half = Some(reading),
            Some(first) if step.side == Side::B => pairs.push(Pair { a: first, b: reading }),
            Some(first) => pairs.push(Pair { a: reading, b: first }),
        }
    }
    Ok(())
}

/// Values of a metric on both sides; `None` unless every run has it.
fn series(pairs: &[Pair], of: impl Fn(&Reading) -> Option<f64>) -> Option<(Vec<f64>, Vec<f64>)> {
    pairs.iter().map(|p| Some((of(&p.a)?, of(&p.b)?))).collect()
}

fn goal_blocks(spec: &DuelSpec<'_>, pairs: &[Pair]) -> Vec<f64> {
    series(pairs, |r| r.get(&spec.plan.goal.metric)).map_or_else(Vec::new, |(a, b)| block_log_ratios(&a, &b))
}

fn evaluate(spec: &DuelSpec<'_>, pairs: &[Pair], asked: u32) -> Duel {
    let metric = &spec.plan.goal.metric;
    let both = series(pairs, |r| r.get(metric));
    let ratio = ratio::estimate(&goal_blocks(spec, pairs), COVERAGE, LEVEL);
    let steady =
        both.as_ref().is_none_or(|(a, b)| [a, b].iter().all(|s| Steadiness::of(s).is_none_or(|s| s.is_steady())));
    let totals = |side: Side| totals(pairs, side, if side == Side::A { spec.a } else { spec.b });
    let (a_totals, b_totals) = (totals(Side::A), totals(Side::B));
    // The rule uses a metric only to know which direction is better.
    let primary = if metric.quantity.higher_is_better() { Metric::Iops } else { Metric::LatencyMean };
    let done = pairs.len() as u32;
    let errors = a_totals.errors + b_totals.errors;
    let modelled = a_totals.unmodelled(&b_totals, ["A", "B"]).is_none();
    let evidence = Evidence { primary, ratio, done, planned: done, steady, errors, modelled, level: LEVEL };
    let verdict = verdict::decide(&evidence);
    let medians = both.map(|(a, b)| (descriptive::median(&a), descriptive::median(&b))).unwrap_or_default();
    Duel {
        against: spec.against.to_owned(),
        a: spec.a.clone(),
        b: spec.b.clone(),
        verdict,
        ratio,
        pairs: done,
        pairs_asked: asked,
        a_median: medians.0,
        b_median: medians.1,
        keeps: spec.plan.keeps.iter().map(|k| kept(k, pairs, spec.a.is_empty())).collect(),
        a_totals,
        b_totals,
        b_histograms: histograms(pairs),
    }
}

/// Returns the result of a limit. Relative limits are known only if A is the default.
fn kept(keep: &Keep, pairs: &[Pair], against_default: bool) -> LimitResult {
    let both = series(pairs, |r| r.get(&keep.metric));
    let ratio = both.as_ref().and_then(|(a, b)| ratio::estimate(&block_log_ratios(a, b), COVERAGE, LEVEL));
    let value = both.as_ref().and_then(|(_, b)| descriptive::median(b));
    let margins = match (keep.bound, ratio, &both) {
        (Bound::OfDefault(_), Some(r), _) if against_default => {
            let of = |ratio: f64| keep.margin(1.0, ratio);
            Some((of(r.ratio), of(r.low).min(of(r.high))))
        }
        (Bound::Absolute(_), _, Some((_, b))) => {
            let logs: Vec<f64> = b.iter().map(|v| v.ln()).collect();
            let level = ratio::estimate(&logs, COVERAGE, LEVEL);
            level.map(|l| (keep.margin(1.0, l.ratio), keep.margin(1.0, l.low).min(keep.margin(1.0, l.high))))
        }
        _ => None,
    };
    LimitResult {
        text: keep.text.clone(),
        metric: keep.metric.to_string(),
        value,
        shown: value.map_or_else(|| "not measured".to_owned(), |v| keep.metric.quantity.show(v)),
        ratio,
        kept: margins.map_or(!against_default, |(margin, _)| margin >= 0.0),
        surely: margins.is_some_and(|(_, worst)| worst >= 0.0),
    }
}

fn totals(pairs: &[Pair], side: Side, point: &Point) -> SideTotals {
    let mut t = SideTotals { label: point.to_string(), ..SideTotals::default() };
    let mut cpu = Vec::new();
    for r in pairs.iter().map(|p| if side == Side::A { &p.a } else { &p.b }) {
        t.errors += r.errors;
        cpu.extend(r.job_cpu_percent);
        match (&mut t.stages, &r.stages) {
            (Some(sum), Some(s)) => sum.merge(s),
            (none, Some(s)) => *none = Some(s.clone()),
            (_, None) => {}
        }
    }
    t.job_cpu_percent = descriptive::mean(&cpu);
    t
}

/// Returns B's latencies, added up over its runs.
fn histograms(pairs: &[Pair]) -> Vec<RawHistogram> {
    let mut sums: Vec<RawHistogram> = Vec::new();
    for h in pairs.iter().flat_map(|p| &p.b.histograms) {
        match sums.iter_mut().find(|s| s.job == h.job && s.dir == h.dir && s.kind == h.kind) {
            Some(sum) => {
                let mut bins: std::collections::BTreeMap<u64, u64> = sum.bins.iter().copied().collect();
                h.bins.iter().for_each(|(ns, n)| *bins.entry(*ns).or_default() += n);
                sum.bins = bins.into_iter().collect();
            }
            None => sums.push(h.clone()),
        }
    }
    sums
}
