// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The comparison as text: verdict, table, where the time went, warnings, and how to repeat it.
//!
//! Guarantees: the first line is the verdict with its figure. Every ratio has its interval and the number of pairs. A
//! verdict of "no difference shown" says how large a difference would have been detected. Does not: colour or wrap.

use std::fmt::Write;

use super::num;
use super::stages;
use crate::compare::{Comparison, Mark, Row, SideTotals, level};
use crate::metric::Metric;
use crate::stage::StageTimes;
use crate::verdict::{COVERAGE, NEGLIGIBLE, Verdict};
use crate::warning::Warning;

/// Returns the whole report. `replay` is the command that repeats the comparison.
pub fn report(c: &Comparison, replay: &str) -> String {
    // Writing to a String cannot fail, so the results of write! are dropped throughout.
    let mut out = format!("{}\n\n", headline(c));
    let _ = writeln!(out, "  A: {}\n  B: {}\n", c.a.label, c.b.label);
    table(&mut out, c);
    others_table(&mut out, c);
    stage_table(&mut out, &c.a, &c.b);
    if !c.warnings.is_empty() {
        out.push('\n');
    }
    c.warnings.iter().for_each(|w| warning(&mut out, w));
    let _ = writeln!(out, "\nrepeat: {replay}");
    out
}

/// Prints a warning, and below it what to do.
pub(super) fn warning(out: &mut String, w: &Warning) {
    let _ = writeln!(out, "warning: {w}\n         {}", w.advice());
}

/// `B is faster: IOPS +4.1% [+1.2%, +7.0%], 12 pairs, p = 0.004`.
pub fn headline(c: &Comparison) -> String {
    let verdict = verdict(c);
    let Some(r) = c.row(c.primary).and_then(|row| row.ratio) else { return verdict };
    let (low, high) = r.percent_interval();
    let figure = format!("{} {:+.1}% [{low:+.1}%, {high:+.1}%]", c.primary.name(), r.percent());
    let basis = format!("{} pairs, p {}", c.pairs_done, p_value(r.p));
    if let Some(d) = c.detected.filter(|d| d.pairs > d.asked.most && c.verdict == Verdict::NoDifferenceShown) {
        let percent = 100.0 * d.asked.change;
        return format!(
            "{verdict}: {figure}, {basis}; detecting {percent:.1}% takes {} pairs here, more than --max-pairs={}",
            d.pairs, d.asked.most
        );
    }
    match c.verdict {
        Verdict::Errors | Verdict::NotModelled => verdict,
        Verdict::NoDifferenceShown if r.p < 1.0 - COVERAGE && (r.ratio - 1.0).abs() <= NEGLIGIBLE => {
            format!("{verdict}: {figure}, {basis}; up to {:.1}% counts as no difference", 100.0 * NEGLIGIBLE)
        }
        Verdict::NoDifferenceShown if r.p < 1.0 - COVERAGE => {
            let level = level_text(c);
            format!("{verdict}: {figure}, {basis}; a verdict needs p < {level}: run more pairs to decide")
        }
        Verdict::NoDifferenceShown => {
            format!("{verdict}: {figure}, {basis}; a difference of {:.1}% would have been seen", 100.0 * r.resolution)
        }
        _ => format!("{verdict}: {figure}, {basis}"),
    }
}

pub(super) fn p_value(p: f64) -> String {
    match p {
        p if p < 0.0001 => "< 0.0001".to_owned(),
        p if p < 0.01 => format!("= {p:.4}"),
        p => format!("= {p:.2}"),
    }
}

fn table(out: &mut String, c: &Comparison) {
    let _ =
        writeln!(out, "  {:<15}{:>12}{:>12}   {:<30}verdict", "metric", "A median", "B median", "B/A [95% interval]");
    for row in &c.rows {
        let _ = writeln!(out, "{}{}", figures(row), word(c, row));
    }
    let asks_why = |r: &Row| r.mark != Mark::None || !word(c, r).is_empty() && excludes_one(r);
    if c.rows.iter().any(|r| r.metric != c.primary && asks_why(r)) {
        let _ = writeln!(
            out,
            "  (the verdict rests on {}; the other metrics are marked after Holm's correction)",
            c.primary.name()
        );
    }
}

/// Whether the interval excludes 1. If such a row has no mark, the report has to explain that.
fn excludes_one(row: &Row) -> bool {
    row.ratio.is_some_and(|r| r.low > 1.0 || r.high < 1.0)
}

/// Prints the results of the jobs that the verdict does not cover.
pub(super) fn others_table(out: &mut String, c: &Comparison) {
    const SHOWN: [Metric; 6] = [
        Metric::Iops,
        Metric::BytesPerSecond,
        Metric::LatencyMean,
        Metric::LatencyP99,
        Metric::Transactions,
        Metric::TransactionMean,
    ];
    for other in &c.others {
        let _ = writeln!(out, "\n  other job: {}", other.job);
        for row in other.rows.iter().filter(|r| SHOWN.contains(&r.metric)) {
            let _ = writeln!(out, "{}", figures(row).trim_end());
        }
    }
}

/// Name, medians and ratio of a row.
fn figures(row: &Row) -> String {
    let (a, b) = (value(row.metric, row.a_median), value(row.metric, row.b_median));
    format!("  {:<15}{a:>12}{b:>12}   {:<30}", row.metric.name(), ratio(row))
}

/// The ratio with its interval; empty if there is none.
pub(super) fn ratio(row: &Row) -> String {
    row.ratio.map_or_else(String::new, |r| format!("{:.3} [{:.3}, {:.3}]", r.ratio, r.low, r.high))
}

/// A value in its unit, or a dash.
pub(super) fn value(metric: Metric, value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| metric_value(metric, value))
}

/// The verdict sentence, about the side that is compared with A.
pub(super) fn verdict(c: &Comparison) -> String {
    let text = c.verdict.to_string();
    match text.strip_prefix("B is") {
        Some(rest) => format!("{:?} is{rest}", c.side),
        None => text,
    }
}

/// The significance level of the verdict, without trailing zeros.
pub(super) fn level_text(c: &Comparison) -> String {
    format!("{:.4}", level(c.plan)).trim_end_matches('0').to_owned()
}

fn word(c: &Comparison, row: &Row) -> &'static str {
    match (row.mark, row.ratio, c.verdict) {
        (_, None, _) => "not measured in every run",
        (_, _, Verdict::Stopped { .. } | Verdict::Errors) => "",
        (_, _, Verdict::NotModelled) => "cannot tell",
        (Mark::Better, ..) => "B is better",
        (Mark::Worse, ..) => "B is worse",
        _ if !row.metric.can_be_marked() => "not judged",
        (Mark::None, ..) => "no difference shown",
    }
}

fn metric_value(metric: Metric, value: f64) -> String {
    match metric {
        Metric::Iops | Metric::Transactions if value < 100.0 => format!("{value:.1}"),
        Metric::Iops | Metric::Transactions => {
            num::short(value.round() as u64, num::RATE_DIGITS, num::Scale::Decimal, "")
        }
        Metric::BytesPerSecond => num::bytes_per_second(value.round() as u64, num::Scale::Binary),
        _ => num::latency(value),
    }
}

/// Prints the mean time per request in each stage, side by side, and the costs.
fn stage_table(out: &mut String, a: &SideTotals, b: &SideTotals) {
    let (Some(a), Some(b)) = (&a.stages, &b.stages) else { return };
    if a.times.n == 0 || b.times.n == 0 {
        return;
    }
    let _ = writeln!(out, "\n  {:<15}{:>12}{:>12}   difference (mean per request)", "where time went", "A", "B");
    for (i, name) in StageTimes::NAMES.iter().enumerate() {
        if let (Some(x), Some(y)) = (a.times.means()[i], b.times.means()[i]) {
            let (sign, gap) = if y < x { ('-', x - y) } else { ('+', y - x) };
            let (shown_a, shown_b) = (num::latency(x), num::latency(y));
            let _ = writeln!(out, "  {name:<15}{shown_a:>12}{shown_b:>12}   {sign}{}", num::latency(gap));
        }
    }
    let percent = |merges: u64, n: u64| format!("{:.1}%", 100.0 * merges as f64 / (merges + n) as f64);
    let (ma, mb) = (percent(a.merges, a.times.n), percent(b.merges, b.times.n));
    let _ = writeln!(out, "  {:<15}{ma:>12}{mb:>12}", "merged bios");
    if let (Some(x), Some(y)) = (a.context_switches_per_io(), b.context_switches_per_io()) {
        let _ = writeln!(out, "  {:<15}{x:>12.4}{y:>12.4}", "switches per IO");
    }
    for (side, facts) in [("A", a), ("B", b)] {
        if let Some(l) = &facts.little {
            let _ = writeln!(out, "  Little's law, {side}: {}", stages::little(l));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::PairResult;
    use crate::metric::RunMetrics;
    use crate::plan::Plan;
    use crate::stage::StageFacts;

    fn pairs(n: u32, ratio: f64, noise: f64) -> Vec<PairResult> {
        let run = |iops: f64| RunMetrics {
            iops: Some(iops),
            bytes_per_second: Some(iops * 4096.0),
            latency_mean_ns: Some(32e9 / iops),
            ..RunMetrics::default()
        };
        let wobble = |i: u32, k: u32| 1.0 + noise * (f64::from((i * 7 + k * 3) % 11) / 10.0 - 0.5);
        (0..n)
            .map(|i| PairResult { a: run(200_000.0 * wobble(i, 1)), b: run(200_000.0 * ratio * wobble(i, 2)) })
            .collect()
    }

    fn side(label: &str, scheduler_ns: u64) -> SideTotals {
        let times = StageTimes { ctx_ns: 4_000, scheduler_ns, device_ns: 90_000, n: 100, ..StageTimes::default() };
        let stages = StageFacts { times, ios: 100, merges: 0, ..StageFacts::default() };
        SideTotals { label: label.into(), stages: Some(stages), job_cpu_percent: Some(40.0), ..SideTotals::default() }
    }

    fn compare(pairs: &[PairResult]) -> Comparison {
        let plan = Plan::new(12, 1, 3).unwrap();
        Comparison::evaluate(
            plan,
            Metric::Iops,
            pairs,
            side("scheduler=mq-deadline", 60_000),
            side("scheduler=none", 0),
        )
    }

    #[test]
    fn a_difference() {
        let text = report(&compare(&pairs(12, 1.2, 0.01)), "mqblk compare x.fio");
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("B is faster: IOPS +20."), "{text}");
        assert!(lines[0].ends_with("%], 12 pairs, p < 0.0001"), "{text}");
        assert_eq!(&lines[2..4], ["  A: scheduler=mq-deadline", "  B: scheduler=none"]);
        for needle in [
            "  IOPS                   200k        240k   1.20",
            "B is better\n",
            "  scheduler             600ns         0ns   -600ns\n",
            "  device                900ns       900ns   +0ns\n",
            "marked after Holm's correction",
            "\nrepeat: mqblk compare x.fio\n",
        ] {
            assert!(text.contains(needle), "{needle:?} in\n{text}");
        }
        assert!(!text.contains("completion") && !text.contains("warning"), "{text}");
    }

    #[test]
    fn no_difference_says_what_would_have_been_seen() {
        let text = headline(&compare(&pairs(12, 1.0, 0.05)));
        assert!(text.starts_with("no difference shown: IOPS ") && text.ends_with("% would have been seen"), "{text}");
    }

    #[test]
    fn a_near_miss_says_what_is_needed() {
        // Block values with mean 0.01 and a standard error that gives p between 2 and 5 %.
        let values = [0.013, 0.023, 0.003, 0.018, 0.002, 0.002];
        let run = |iops: f64| RunMetrics { iops: Some(iops), ..RunMetrics::default() };
        let pairs: Vec<PairResult> =
            values.iter().flat_map(|v: &f64| [PairResult { a: run(1000.0), b: run(1000.0 * v.exp()) }; 2]).collect();
        let c = compare(&pairs);
        let p = c.row(Metric::Iops).unwrap().ratio.unwrap().p;
        assert!((0.02..0.05).contains(&p), "{p}");
        assert!(headline(&c).ends_with("a verdict needs p < 0.02: run more pairs to decide"), "{}", headline(&c));
        assert!(!c.verdict.is_difference());
    }

    #[test]
    fn a_negligible_difference_asks_for_no_more_pairs() {
        let run = |iops: f64| RunMetrics { iops: Some(iops), ..RunMetrics::default() };
        let pair = |i: u32| PairResult { a: run(1000.0), b: run(1000.5 + 0.01 * f64::from(i % 3)) };
        let c = compare(&(0..12).map(pair).collect::<Vec<_>>());
        assert!(!c.verdict.is_difference() && c.row(Metric::Iops).unwrap().ratio.unwrap().p < 0.001);
        assert!(headline(&c).ends_with("; up to 0.1% counts as no difference"), "{}", headline(&c));
    }

    #[test]
    fn an_interval_without_a_mark_is_explained() {
        // As in `a_near_miss_says_what_is_needed`, in a metric that does not decide the verdict.
        let values = [0.013, 0.023, 0.003, 0.018, 0.002, 0.002];
        let run = |x: f64| RunMetrics { iops: Some(1000.0), bytes_per_second: Some(x), ..RunMetrics::default() };
        let pairs: Vec<PairResult> =
            values.iter().flat_map(|v: &f64| [PairResult { a: run(1000.0), b: run(1000.0 * v.exp()) }; 2]).collect();
        let c = compare(&pairs);
        let row = c.row(Metric::BytesPerSecond).unwrap();
        assert!(row.mark == Mark::None && excludes_one(row), "{row:?}");
        assert!(report(&c, "x").contains("marked after Holm's correction"));
        assert!(!report(&compare(&pairs[..4]), "x").contains("Holm"), "a stopped comparison marks nothing");
    }

    #[test]
    fn a_stopped_comparison_shows_figures_and_warnings_with_advice() {
        let text = report(&compare(&pairs(4, 1.2, 0.01)), "x");
        assert!(text.starts_with("stopped after 4 of 12 pairs: no verdict: IOPS +"), "{text}");
        assert!(!text.contains("B is better"), "{text}");
        assert!(text.contains("warning: only 4 pairs\n         run 12 pairs or more"), "{text}");
        assert_eq!(headline(&compare(&[])), "stopped after 0 of 12 pairs: no verdict");
    }

    #[test]
    fn small_and_missing_values() {
        assert_eq!(metric_value(Metric::Iops, 17.3), "17.3");
        assert_eq!(metric_value(Metric::BytesPerSecond, 10_485_760.0), "10.0MiB/s");
        let mut p = pairs(12, 1.0, 0.0);
        p[5].a.latency_mean_ns = None;
        assert!(report(&compare(&p), "x").contains("  mean latency              -           -"));
        assert!(report(&compare(&p), "x").contains("not measured in every run"));
    }
}
