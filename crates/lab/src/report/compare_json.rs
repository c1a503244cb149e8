// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The comparison for scripts: one JSON object with the sentences of the text report and all figures they are based on.
//!
//! Guarantees: `verdict` is a word from a fixed list, in which `b` stands for the side named in `side`. `difference` is a
//! boolean, ratios are B over A, and latencies are in nanoseconds. Keys are only added, never renamed, while `format` stays
//! the same. Does not: contain raw results; they are in the results file.

use serde::Serialize;

use super::compare_sides::SidesReport;
use super::compare_text;
use crate::compare::{Comparison, Detected, Mark, Row, SideTotals, level};
use crate::metric::Metric;
use crate::plan::{Plan, Side};
use crate::setup::Setup;
use crate::stats::ratio::Ratio;
use crate::verdict::{COVERAGE, Verdict};
use crate::warning::Warning;

/// Version of the layout.
pub const FORMAT: u32 = 1;

#[derive(Serialize)]
struct Top<'a> {
    format: u32,
    headline: String,
    #[serde(flatten)]
    verdict: Word<'a>,
    difference: bool,
    primary: Metric,
    level: f64,
    interval_coverage: f64,
    pairs_done: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    detected: Option<Detected>,
    /// The side that is compared with A.
    side: Side,
    plan: &'a Plan,
    metrics: Vec<MetricRow>,
    /// The jobs that the verdict does not cover.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    others: Vec<Other<'a>>,
    a: &'a SideTotals,
    b: &'a SideTotals,
    warnings: Vec<WarningText<'a>>,
    setup: &'a Setup,
    /// Name of the file with the raw results; `null` when none was written.
    results: Option<&'a str>,
    command: &'a str,
}

/// A verdict as a plain word, so that scripts need not know which verdicts carry numbers.
struct Word<'a>(&'a Verdict);

impl Serialize for Word<'_> {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let word = match self.0 {
            Verdict::BIsFaster => "b_is_faster",
            Verdict::BIsSlower => "b_is_slower",
            Verdict::NoDifferenceShown => "no_difference_shown",
            Verdict::NotSteady => "not_steady",
            Verdict::Stopped { .. } => "stopped",
            Verdict::Errors => "errors",
            Verdict::NotMeasured => "not_measured",
            Verdict::NotModelled => "not_modelled",
        };
        s.collect_map([("verdict", word)])
    }
}

#[derive(Serialize)]
struct MetricRow {
    metric: Metric,
    name: &'static str,
    higher_is_better: bool,
    a_median: Option<f64>,
    b_median: Option<f64>,
    #[serde(flatten)]
    ratio: Option<Ratio>,
    adjusted_p: Option<f64>,
    mark: Mark,
}

#[derive(Serialize)]
struct WarningText<'a> {
    #[serde(flatten)]
    warning: &'a Warning,
    text: String,
    advice: &'static str,
}

#[derive(Serialize)]
struct Other<'a> {
    job: &'a str,
    metrics: Vec<MetricRow>,
}

impl MetricRow {
    fn of(r: &Row) -> MetricRow {
        MetricRow {
            metric: r.metric,
            name: r.metric.name(),
            higher_is_better: r.metric.higher_is_better(),
            a_median: r.a_median,
            b_median: r.b_median,
            ratio: r.ratio,
            adjusted_p: r.adjusted_p,
            mark: r.mark,
        }
    }
}

/// Returns the JSON text of a comparison of two sides, with a newline at its end. `results` names the file with the raw
/// results, if there is one.
pub fn render(c: &Comparison, setup: &Setup, results: Option<&str>, command: &str) -> String {
    pretty(&top(c, setup, results, command))
}

/// As [`render`], for several sides: `comparisons` has an object of that form for each side but A.
pub fn render_sides(s: &SidesReport<'_>, setup: &Setup, results: Option<&str>, command: &str) -> String {
    #[derive(Serialize)]
    struct OfSides<'a> {
        format: u32,
        headline: String,
        sides: Vec<OfSide<'a>>,
        best: Option<Side>,
        difference: bool,
        comparisons: Vec<Top<'a>>,
    }
    #[derive(Serialize)]
    struct OfSide<'a> {
        side: Side,
        label: &'a str,
    }
    let labels = (0..).map(Side::at).zip(s.labels());
    pretty(&OfSides {
        format: FORMAT,
        headline: s.headline(),
        sides: labels.map(|(side, label)| OfSide { side, label }).collect(),
        best: s.best(),
        difference: s.is_difference(),
        comparisons: s.comparisons.iter().map(|c| top(c, setup, results, command)).collect(),
    })
}

fn pretty(facts: &impl Serialize) -> String {
    serde_json::to_string_pretty(facts).expect("plain data serialises") + "\n"
}

fn top<'a>(c: &'a Comparison, setup: &'a Setup, results: Option<&'a str>, command: &'a str) -> Top<'a> {
    let rows = |rows: &[Row]| rows.iter().map(MetricRow::of).collect();
    let others = c.others.iter().map(|o| Other { job: &o.job, metrics: rows(&o.rows) }).collect();
    let warnings = c.warnings.iter().map(|w| WarningText { warning: w, text: w.to_string(), advice: w.advice() });
    Top {
        format: FORMAT,
        headline: compare_text::headline(c),
        verdict: Word(&c.verdict),
        difference: c.verdict.is_difference(),
        primary: c.primary,
        level: level(c.plan),
        interval_coverage: COVERAGE,
        pairs_done: c.pairs_done,
        detected: c.detected,
        side: c.side,
        plan: &c.plan,
        metrics: rows(&c.rows),
        others,
        a: &c.a,
        b: &c.b,
        warnings: warnings.collect(),
        setup,
        results,
        command,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::PairResult;
    use crate::metric::RunMetrics;
    use serde_json::{Value, json};

    fn comparison(done: usize) -> Comparison {
        let run = |iops: f64| RunMetrics { iops: Some(iops), cpu_per_io_ns: Some(100.0), ..RunMetrics::default() };
        let mut pairs = vec![PairResult { a: run(1000.0), b: run(800.0) }; done];
        if let Some(p) = pairs.first_mut() {
            p.a.cpu_per_io_ns = None;
        }
        let side = |label: &str| SideTotals { label: label.into(), ..SideTotals::default() };
        Comparison::evaluate(Plan::new(10, 1, 5).unwrap(), Metric::Iops, &pairs, side("x=1"), side("x=2"))
    }

    #[test]
    fn a_script_reads_verdict_ratio_and_warnings() {
        let text = render(&comparison(10), &Setup::default(), Some("r.jsonl"), "mqblk compare j.fio");
        let v: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(v["results"], "r.jsonl");
        assert_eq!((&v["verdict"], &v["difference"], &v["format"]), (&json!("b_is_slower"), &json!(true), &json!(1)));
        let iops = &v["metrics"][0];
        assert_eq!((&iops["metric"], &iops["mark"], &iops["name"]), (&json!("iops"), &json!("worse"), &json!("IOPS")));
        assert!((iops["ratio"].as_f64().unwrap() - 0.8).abs() < 1e-9 && iops["low"].as_f64().unwrap() <= 0.8 + 1e-9);
        assert_eq!((&v["metrics"][1]["metric"], v["metrics"][1].get("ratio")), (&json!("cpu_per_io"), None));
        assert_eq!(v["warnings"][0]["warning"], "few_pairs");
        assert!(v["warnings"][0]["advice"].as_str().unwrap().contains("12 pairs"));
        assert_eq!(
            (&v["a"]["label"], &v["plan"]["seed"], &v["command"]),
            (&json!("x=1"), &json!(5), &json!("mqblk compare j.fio"))
        );
    }

    #[test]
    fn a_stopped_comparison_is_no_difference() {
        let v: Value = serde_json::from_str(&render(&comparison(4), &Setup::default(), None, "")).unwrap();
        assert_eq!((&v["verdict"], &v["difference"], &v["pairs_done"]), (&json!("stopped"), &json!(false), &json!(4)));
    }
}
