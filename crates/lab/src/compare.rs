// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the results of interleaved pairs to a table, a verdict and warnings.
//!
//! Guarantees: the unit of evidence is the block of two pairs (ABBA or BAAB, see [`crate::plan`]). Its value is the mean of
//! ln(B/A) of its two pairs. Student's t over the blocks gives the interval and the p-value. Blocks are the unit because
//! the two pairs of a block share the noise of the two runs in its middle. A burst that hits both runs moves both pairs the
//! same way. So pairs are not independent, and their intervals would be too short. With blocks of random orientation the
//! signs of the values are independent under "no difference" for any noise, and linear drift cancels inside each block. The
//! price is half the degrees of freedom: at 10 pairs the interval is 23 % wider.
//!
//! Needs from callers: results of a [`Plan`] in its order; a primary metric chosen before the first run.
//! Does not: drop outliers, stop early, or let the results choose what is tested. A [`Detect`] reads only the spread of the
//! results.

use serde::{Deserialize, Serialize};

use crate::metric::{Metric, RunMetrics};
use crate::plan::{Plan, Side};
use crate::stage::StageFacts;
use crate::stats::ratio::{self, Ratio};
use crate::stats::{descriptive, holm, sample_size};
use crate::steady::Steadiness;
use crate::verdict::{self, COVERAGE, Evidence, LEVEL, NEGLIGIBLE, Verdict};
use crate::warning::Warning;

/// Results of one pair of runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairResult {
    /// Metrics of A's run.
    pub a: RunMetrics,
    /// Metrics of B's run.
    pub b: RunMetrics,
}

/// Totals of one side over all its runs, in addition to the metrics.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SideTotals {
    /// Settings of the side as the user wrote them.
    pub label: String,
    /// Stage times, merges, hctx counts and costs summed over the runs, where measured.
    pub stages: Option<StageFacts>,
    /// CPU time of the job threads in percent of one CPU each, mean over the runs.
    pub job_cpu_percent: Option<f64>,
    /// I/Os that failed, plus blocks that did not verify.
    pub errors: u64,
    /// How many of `errors` are blocks that did not verify.
    #[serde(default)]
    pub verify_errors: u64,
}

impl SideTotals {
    /// As [`StageFacts::unmodelled`].
    pub fn unmodelled(&self, other: &SideTotals, names: [&str; 2]) -> Option<String> {
        self.stages.as_ref()?.unmodelled(other.stages.as_ref()?, names)
    }
}

/// A change that remains significant after the correction for testing several metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// B is better in this metric.
    Better,
    /// B is worse in this metric.
    Worse,
    /// No difference shown.
    None,
}

/// One metric of the table.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The metric.
    pub metric: Metric,
    /// Median over A's runs, in the metric's unit; `None` when a run does not have it.
    pub a_median: Option<f64>,
    /// Median over B's runs.
    pub b_median: Option<f64>,
    /// B/A with its interval; `None` when a run does not have the metric or fewer than two blocks are complete.
    pub ratio: Option<Ratio>,
    /// p-value after the correction (for the primary metric: the plain one).
    pub adjusted_p: Option<f64>,
    /// Whether the difference is significant, and in which direction.
    pub mark: Mark,
}

/// A job that the verdict does not cover.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OtherJob {
    /// Its name.
    pub job: String,
    /// As [`Comparison::rows`], unmarked.
    pub rows: Vec<Row>,
}

/// A difference to detect. Its size determines the number of pairs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Detect {
    /// The size as a fraction (0.03: 3 %).
    pub change: f64,
    /// Maximum number of pairs that may be run.
    pub most: u32,
}

/// The result of a [`Detect`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Detected {
    /// The difference to detect.
    pub asked: Detect,
    /// Pairs that are needed to detect it, given the spread of the first part.
    pub pairs: u32,
}

impl Detect {
    /// Extends `first` to the pairs that the spread of its results requires, and returns that number as well. The
    /// difference seen so far is not used, so this is no peeking. If more than `most` pairs are required, the plan stays as
    /// it is, because running only some of them would find the difference by luck. Returns `None` while the first part is
    /// not complete or the metric was not measured.
    pub fn plan(&self, first: Plan, primary: Metric, pairs: &[PairResult]) -> Option<(Plan, Detected)> {
        let part = pairs.get(..first.pairs() as usize)?;
        let (a, b) = series(primary, part)?;
        let needed = sample_size::pairs_for(&block_log_ratios(&a, &b), self.change.ln_1p(), level(first))?;
        let plan = if needed <= self.most { first.extended_to(needed) } else { first };
        Some((plan, Detected { asked: *self, pairs: needed }))
    }
}

/// A finished (or stopped) comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The plan that was followed.
    pub plan: Plan,
    /// Pairs completed.
    pub pairs_done: u32,
    /// Metric of the verdict.
    pub primary: Metric,
    /// The verdict.
    pub verdict: Verdict,
    /// One row per metric, in the order of [`Metric::ALL`]. Metrics without any value are left out.
    pub rows: Vec<Row>,
    /// The jobs that the verdict does not cover, if it covers only some. A better verdict may be at their expense.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<OtherJob>,
    /// The result of the difference to detect, if one was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detected: Option<Detected>,
    /// The side that is compared with A: B, or another of several sides.
    #[serde(default = "b", skip_serializing_if = "is_b")]
    pub side: Side,
    /// Side A.
    pub a: SideTotals,
    /// The other side.
    pub b: SideTotals,
    /// What to consider before trusting the verdict. Callers append the warnings about the machine ([`Warning::of_setup`]).
    pub warnings: Vec<Warning>,
}

const fn b() -> Side {
    Side::B
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_b(side: &Side) -> bool {
    *side == Side::B
}

impl Comparison {
    /// Evaluates `pairs` of A and B (in plan order, possibly fewer than planned).
    ///
    /// # Panics
    /// When there are more pairs than planned.
    pub fn evaluate(plan: Plan, primary: Metric, pairs: &[PairResult], a: SideTotals, b: SideTotals) -> Comparison {
        Comparison::evaluate_side(plan, primary, pairs, a, Side::B, b)
    }

    /// As [`Comparison::evaluate`], for A and `side`.
    pub fn evaluate_side(
        plan: Plan,
        primary: Metric,
        pairs: &[PairResult],
        a: SideTotals,
        side: Side,
        b: SideTotals,
    ) -> Comparison {
        let level = level(plan);
        let done = u32::try_from(pairs.len()).expect("bounded by the plan");
        assert!(done <= plan.pairs(), "more pairs than planned");
        let mut rows: Vec<Row> = Metric::ALL.iter().filter_map(|&m| row(m, pairs, level)).collect();
        let (steady, mut warnings) = steadiness(primary, pairs, side);
        let ratio = rows.iter().find(|r| r.metric == primary).and_then(|r| r.ratio);
        let errors = a.errors + b.errors;
        let unmodelled = a.unmodelled(&b, ["A", &format!("{side:?}")]);
        let modelled = unmodelled.is_none();
        let planned = plan.pairs();
        let verdict = verdict::decide(&Evidence { primary, ratio, done, planned, steady, errors, modelled, level });
        warnings.extend(unmodelled.map(|reason| Warning::NotModelled { reason }));
        mark_rows(&mut rows, primary, verdict, level);
        // With fewer pairs, the false alarm rate depends on the kind of noise.
        if done < Plan::default_pairs(plan.sides()) {
            warnings.push(Warning::FewPairs { pairs: done });
        }
        for (side, t) in [(Side::A, &a), (side, &b)] {
            warnings.extend(Warning::of_side(side, t.stages.as_ref(), t.job_cpu_percent));
            warnings.extend(Warning::of_errors(side, t.errors, t.verify_errors));
        }
        Comparison {
            plan,
            pairs_done: done,
            primary,
            verdict,
            rows,
            others: Vec::new(),
            detected: None,
            side,
            a,
            b,
            warnings,
        }
    }

    /// Adds the results of the jobs that the verdict does not cover. Their rows have intervals and no marks, because no
    /// question about them was fixed beforehand.
    #[must_use]
    pub fn with_others(mut self, others: &[(String, Vec<PairResult>)]) -> Comparison {
        self.others = others
            .iter()
            .map(|(job, pairs)| OtherJob {
                job: job.clone(),
                rows: Metric::ALL.iter().filter_map(|&m| row(m, pairs, level(self.plan))).collect(),
            })
            .collect();
        self
    }

    /// The row of a metric, if any run had it.
    pub fn row(&self, metric: Metric) -> Option<&Row> {
        self.rows.iter().find(|r| r.metric == metric)
    }
}

/// Returns the significance level of each comparison with A. With equal sides, the chance of any false alarm is at most
/// [`LEVEL`] (Bonferroni).
pub fn level(plan: Plan) -> f64 {
    LEVEL / (plan.sides() - 1) as f64
}

/// Values of one metric on both sides; `None` unless every run has it.
fn series(metric: Metric, pairs: &[PairResult]) -> Option<(Vec<f64>, Vec<f64>)> {
    pairs.iter().map(|p| Some((p.a.get(metric)?, p.b.get(metric)?))).collect()
}

/// One value per complete block: the mean of ln(B/A) of its two pairs.
pub(crate) fn block_log_ratios(a: &[f64], b: &[f64]) -> Vec<f64> {
    let pair_logs: Vec<f64> = a.iter().zip(b).map(|(a, b)| (b / a).ln()).collect();
    pair_logs.chunks_exact(2).map(|block| 0.5 * (block[0] + block[1])).collect()
}

fn row(metric: Metric, pairs: &[PairResult], level: f64) -> Option<Row> {
    let both = series(metric, pairs);
    if !pairs.iter().any(|p| p.a.get(metric).or(p.b.get(metric)).is_some()) {
        return None;
    }
    let ratio = both.as_ref().and_then(|(a, b)| ratio::estimate(&block_log_ratios(a, b), COVERAGE, level));
    let medians = both.map(|(a, b)| (descriptive::median(&a), descriptive::median(&b))).unwrap_or_default();
    let (a_median, b_median) = medians;
    Some(Row {
        metric,
        a_median,
        b_median,
        ratio,
        adjusted_p: ratio.filter(|_| metric.can_be_marked()).map(|r| r.p),
        mark: Mark::None,
    })
}

/// Whether two rows are the same number in other units, such as IOPS and bandwidth of one block size.
fn is_same_number(a: &Row, b: &Row) -> bool {
    let (Some(ra), Some(rb)) = (a.ratio, b.ratio) else { return false };
    let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs().max(b.abs());
    a.metric.higher_is_better() == b.metric.higher_is_better()
        && near(ra.ratio, rb.ratio)
        && near(ra.low, rb.low)
        && near(ra.high, rb.high)
}

/// Marks the primary row according to the verdict, and the others after Holm's correction among themselves. Rows that are the same number
/// are one, with one mark. Without a verdict no row is marked.
fn mark_rows(rows: &mut [Row], primary: Metric, verdict: Verdict, level: f64) {
    let first = rows.iter().position(|row| row.metric == primary);
    // Each row stands for itself, or for the primary or an earlier row that it is the same number as.
    let stands_for: Vec<usize> = (0..rows.len())
        .map(|i| first.into_iter().chain(0..i).find(|&of| is_same_number(&rows[of], &rows[i])).unwrap_or(i))
        .collect();
    let secondary: Vec<usize> =
        (0..rows.len()).filter(|&i| Some(i) != first && stands_for[i] == i && rows[i].adjusted_p.is_some()).collect();
    let p: Vec<f64> = secondary.iter().filter_map(|&i| rows[i].adjusted_p).collect();
    for (&i, adjusted) in secondary.iter().zip(holm::adjust(&p)) {
        rows[i].adjusted_p = Some(adjusted);
    }
    for i in 0..rows.len() {
        rows[i].adjusted_p = rows[i].adjusted_p.and(rows[stands_for[i]].adjusted_p);
    }
    if matches!(verdict, Verdict::Stopped { .. } | Verdict::Errors | Verdict::NotModelled) {
        return;
    }
    for (i, row) in rows.iter_mut().enumerate() {
        let Some(r) = row.ratio else { continue };
        let stands = if Some(stands_for[i]) == first {
            verdict.is_difference()
        } else {
            row.adjusted_p.is_some_and(|p| p < level) && (r.ratio - 1.0).abs() > NEGLIGIBLE
        };
        row.mark = match (stands, (r.ratio > 1.0) == row.metric.higher_is_better()) {
            (false, _) => Mark::None,
            (true, true) => Mark::Better,
            (true, false) => Mark::Worse,
        };
    }
}

/// Whether both sides are steady in the primary metric, and a warning for each that is not.
fn steadiness(primary: Metric, pairs: &[PairResult], side: Side) -> (bool, Vec<Warning>) {
    let Some((a, b)) = series(primary, pairs) else { return (true, Vec::new()) };
    let warnings: Vec<Warning> = [(Side::A, a), (side, b)]
        .into_iter()
        .filter_map(|(side, xs)| Some((side, Steadiness::of(&xs)?)))
        .filter(|(_, s)| !s.is_steady())
        .map(|(side, steadiness)| Warning::NotSteady { side, steadiness })
        .collect();
    (warnings.is_empty(), warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(a: f64, b: f64) -> PairResult {
        let m = |iops: f64| RunMetrics { iops: Some(iops), latency_mean_ns: Some(1e9 / iops), ..RunMetrics::default() };
        PairResult { a: m(a), b: m(b) }
    }

    fn evaluate(planned: u32, pairs: &[PairResult]) -> Comparison {
        let plan = Plan::new(planned, 1, 1).unwrap();
        Comparison::evaluate(plan, Metric::Iops, pairs, SideTotals::default(), SideTotals::default())
    }

    #[test]
    fn a_clear_difference() {
        let pairs: Vec<_> = (0..12).map(|i| pair(1000.0 + f64::from(i % 3), 1100.0 - f64::from(i % 5))).collect();
        let c = evaluate(12, &pairs);
        assert_eq!(c.verdict, Verdict::BIsFaster);
        let iops = c.row(Metric::Iops).unwrap();
        assert!((iops.ratio.unwrap().percent() - 9.7).abs() < 0.2, "{iops:?}");
        assert_eq!((iops.mark, c.row(Metric::LatencyMean).unwrap().mark), (Mark::Better, Mark::Better));
        assert!(c.row(Metric::LatencyP99).is_none() && c.warnings.is_empty());
    }

    #[test]
    fn the_same_number_in_other_units_has_the_same_mark() {
        let noisy = |i: u32, by: f64| 1000.0 + by * f64::from(i * 7 % 5);
        let pairs: Vec<_> = (0..12)
            .map(|i| {
                let mut pair = pair(noisy(i, 3.0), noisy(i + 2, 3.0) * 1.006);
                for (side, n) in [(&mut pair.a, i), (&mut pair.b, i + 3)] {
                    side.bytes_per_second = side.iops.map(|iops| iops * 4096.0);
                    // Three that say nothing.
                    (side.latency_p50_ns, side.latency_p99_ns) = (Some(noisy(n, 90.0)), Some(noisy(n + 1, 90.0)));
                    side.cpu_per_io_ns = Some(noisy(n, 60.0));
                }
                pair
            })
            .collect();
        let c = evaluate(12, &pairs);
        let [iops, bytes] = [Metric::Iops, Metric::BytesPerSecond].map(|m| *c.row(m).unwrap());
        assert_eq!((iops.mark, iops.adjusted_p), (bytes.mark, bytes.adjusted_p));
        assert_eq!(iops.mark, Mark::Better);
        // As the primary metric is another one, each of the two was corrected for the other before.
        let plan = Plan::new(12, 1, 1).unwrap();
        let c = Comparison::evaluate(plan, Metric::LatencyP50, &pairs, SideTotals::default(), SideTotals::default());
        let [iops, bytes] = [Metric::Iops, Metric::BytesPerSecond].map(|m| *c.row(m).unwrap());
        let secondary =
            c.rows.iter().filter(|row| row.metric != Metric::LatencyP50 && row.adjusted_p.is_some()).count();
        assert_eq!((iops.mark, iops.adjusted_p), (bytes.mark, bytes.adjusted_p));
        assert!((iops.adjusted_p.unwrap() - iops.ratio.unwrap().p * (secondary - 1) as f64).abs() < 1e-12);
    }

    #[test]
    fn linear_drift_cancels_exactly_in_every_block() {
        // Values in the order of the runs, each 1 % above the last: A and B have the same mean position in each block.
        let plan = Plan::new(10, 0, 7).unwrap();
        let mut pairs = vec![pair(1.0, 1.0); 10];
        for (i, step) in plan.steps().enumerate() {
            let value = 1000.0 * (0.01 * i as f64).exp();
            let side = &mut pairs[step.pair.unwrap() as usize];
            match step.side {
                Side::A => side.a.iops = Some(value),
                _ => side.b.iops = Some(value),
            }
        }
        let c = evaluate(10, &pairs);
        let r = c.row(Metric::Iops).unwrap().ratio.unwrap();
        assert!((r.ratio - 1.0).abs() < 1e-12 && r.resolution < 1e-9, "{r:?}");
        assert_eq!(c.verdict, Verdict::NoDifferenceShown);
        assert!(c.warnings.iter().any(|w| matches!(w, Warning::NotSteady { .. })), "{:?}", c.warnings);
    }

    #[test]
    fn a_stopped_comparison_has_figures_but_no_marks() {
        let pairs = vec![
            pair(1000.0, 1500.0),
            pair(1001.0, 1501.0),
            pair(1002.0, 1502.0),
            pair(1000.0, 1500.0),
            pair(1.0, 9.0),
        ];
        let c = evaluate(12, &pairs);
        assert_eq!(c.verdict, Verdict::Stopped { done: 5, planned: 12 });
        let r = c.row(Metric::Iops).unwrap();
        assert!((r.ratio.unwrap().ratio - 1.5).abs() < 0.01, "only complete blocks count: {r:?}");
        assert_eq!(r.mark, Mark::None);
        assert!(c.warnings.contains(&Warning::FewPairs { pairs: 5 }));
    }

    #[test]
    fn a_missing_metric_is_not_compared() {
        let mut pairs = vec![pair(1000.0, 1100.0); 10];
        pairs[3].b.latency_mean_ns = None;
        pairs[0].a.cpu_per_io_ns = Some(5.0);
        let c = evaluate(10, &pairs);
        assert_eq!(c.row(Metric::LatencyMean).unwrap().ratio, None);
        assert_eq!(c.row(Metric::CpuPerIo).unwrap().a_median, None);
        pairs[2].a.iops = None;
        assert_eq!(evaluate(10, &pairs).verdict, Verdict::NotMeasured);
        assert_eq!(evaluate(10, &vec![PairResult { a: RunMetrics::default(), b: RunMetrics::default() }; 10]).rows, []);
    }

    #[test]
    fn stopped_before_the_first_pair() {
        let c = evaluate(10, &[]);
        assert_eq!((c.verdict, c.rows.len()), (Verdict::Stopped { done: 0, planned: 10 }, 0));
    }
}
