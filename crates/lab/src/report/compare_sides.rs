// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A comparison of several sides as text: a row for each side, with the best one marked and described.
//!
//! Guarantees: every ratio is to side A, with its interval. The best side is the one with the best ratio in the primary
//! metric, and the headline says whether it was shown to differ from A. Does not: rank the other sides, or test the best
//! against the second best, because the results would choose that pair.

use std::fmt::Write;

use super::compare_text::{level_text, others_table, p_value, ratio, value, warning};
use crate::compare::{Comparison, Row};
use crate::metric::Metric;
use crate::plan::Side;
use crate::verdict::{LEVEL, Verdict};

/// Comparisons of A with each other side, at least one.
#[derive(Clone, Copy, Debug)]
pub struct SidesReport<'a> {
    /// The comparisons of B, C and so on with A.
    pub comparisons: &'a [Comparison],
}

/// Metrics that have a column in addition to the primary one.
const BESIDE: [Metric; 3] = [Metric::LatencyMean, Metric::LatencyP99, Metric::CpuPerIo];

impl<'a> SidesReport<'a> {
    fn first(&self) -> &'a Comparison {
        self.comparisons.first().expect("there is a side beside A")
    }

    /// Labels of all sides, A's first.
    pub fn labels(&self) -> impl Iterator<Item = &'a str> {
        let a = self.first().a.label.as_str();
        std::iter::once(a).chain(self.comparisons.iter().map(|c| c.b.label.as_str()))
    }

    /// Returns the side with the best primary metric, by its ratio to A. Returns `None` if the metric is missing in a run
    /// of a side.
    pub fn best(&self) -> Option<Side> {
        let primary = self.first().primary;
        let told = self.comparisons.iter().filter(|c| c.verdict != Verdict::NotModelled);
        let others = told.map(|c| Some((c.row(primary)?.ratio?.ratio, c.side)));
        let all: Vec<(f64, Side)> = std::iter::once(Some((1.0, Side::A))).chain(others).collect::<Option<_>>()?;
        let worth = |ratio: f64| if primary.higher_is_better() { ratio } else { -ratio };
        all.into_iter().max_by(|x, y| worth(x.0).total_cmp(&worth(y.0)).then(y.1.cmp(&x.1))).map(|(_, side)| side)
    }

    /// Whether a side was shown to differ from A.
    pub fn is_difference(&self) -> bool {
        self.comparisons.iter().any(|c| c.verdict.is_difference())
    }

    /// `best: C kyber: IOPS +4.1% [+1.2%, +7.0%] over A, 12 rounds, p = 0.004`.
    pub fn headline(&self) -> String {
        let first = self.first();
        if let Some(c) =
            self.comparisons.iter().find(|c| matches!(c.verdict, Verdict::Errors | Verdict::Stopped { .. }))
        {
            return c.verdict.to_string();
        }
        let rounds = first.pairs_done;
        let Some(best) = self.best() else { return "not measured: no conclusion".to_owned() };
        let Some(c) = self.comparisons.iter().find(|c| c.side == best) else {
            let all_slower = self.comparisons.iter().all(|c| c.verdict == Verdict::BIsSlower);
            let others = if all_slower { "all others are slower" } else { "no side is shown to be faster" };
            return format!("best: A {}; {others}, {rounds} rounds", name(&first.a.label));
        };
        let figure = c.row(c.primary).and_then(|row| row.ratio).map_or_else(String::new, |r| {
            let (low, high) = r.percent_interval();
            let figure = format!("{} {:+.1}% [{low:+.1}%, {high:+.1}%] over A", c.primary.name(), r.percent());
            format!(" {figure}, {rounds} rounds, p {}", p_value(r.p))
        });
        let doubt = match c.verdict {
            Verdict::BIsFaster => String::new(),
            Verdict::NotSteady => "; not steady: no conclusion".to_owned(),
            _ => format!("; no difference from A shown (needs p < {})", level_text(c)),
        };
        format!("best: {:?} {}:{figure}{doubt}", c.side, name(&c.b.label))
    }
}

/// Returns the whole report. `replay` is the command that repeats the comparison.
pub fn report(s: &SidesReport<'_>, replay: &str) -> String {
    // Writing to a String cannot fail, so the results of write! are dropped throughout.
    let mut out = format!("{}\n\n", s.headline());
    for (side, label) in (0..).map(Side::at).zip(s.labels()) {
        let _ = writeln!(out, "  {side:?}: {label}");
    }
    let first = s.first();
    let beside: Vec<Metric> = BESIDE.into_iter().filter(|m| *m != first.primary && first.row(*m).is_some()).collect();
    let _ = write!(out, "\n  {:<16}{:>12}   {:<24}", "side", first.primary.name(), "ratio to A [95%]");
    for metric in &beside {
        let _ = write!(out, "{:>14}", metric.name());
    }
    out.push_str("  verdict\n");
    let best = s.best();
    let mut line = |side: Side, label: &str, median: &dyn Fn(Metric) -> Option<f64>, row: Option<&Row>, word: &str| {
        let shown = |metric| value(metric, median(metric));
        let ratio = row.map_or_else(String::new, ratio);
        let mark = if best == Some(side) { "*" } else { " " };
        let name: String = name(label).chars().take(13).collect();
        let _ = write!(out, "{mark} {side:?} {name:<14}{:>12}   {ratio:<24}", shown(first.primary));
        for metric in &beside {
            let _ = write!(out, "{:>14}", shown(*metric));
        }
        let _ = writeln!(out, "{}", if word.is_empty() { String::new() } else { format!("  {word}") });
    };
    line(Side::A, &first.a.label, &|m| first.row(m)?.a_median, None, "");
    for c in s.comparisons {
        let word = match c.verdict {
            Verdict::BIsFaster => "faster than A".to_owned(),
            Verdict::BIsSlower => "slower than A".to_owned(),
            Verdict::NoDifferenceShown => {
                let seen = c.row(c.primary).and_then(|row| row.ratio).map_or(f64::NAN, |r| 100.0 * r.resolution);
                format!("no difference shown (would detect {seen:.1}%)")
            }
            other => other.to_string(),
        };
        line(c.side, &c.b.label, &|m| c.row(m)?.b_median, c.row(c.primary), &word);
    }
    let (level, others) = (level_text(first), s.comparisons.len());
    let _ = writeln!(out, "  (* best; each verdict needs p < {level}: {LEVEL} divided by {others} comparisons)");
    for c in s.comparisons {
        if let Some(d) = c.detected.filter(|d| d.pairs > d.asked.most) {
            let (percent, most) = (100.0 * d.asked.change, d.asked.most);
            let _ = writeln!(
                out,
                "  {:?}: detecting {percent:.1}% takes {} rounds here, more than --max-pairs={most}",
                c.side, d.pairs
            );
        }
    }
    for c in s.comparisons.iter().filter(|c| !c.others.is_empty()) {
        let _ = write!(out, "\n  A and {:?}", c.side);
        others_table(&mut out, c);
    }
    out.push('\n');
    let mut told = Vec::new();
    for w in s.comparisons.iter().flat_map(|c| &c.warnings) {
        if !told.contains(&w) {
            warning(&mut out, w);
            told.push(w);
        }
    }
    let _ = writeln!(out, "{}repeat: {replay}", if told.is_empty() { "" } else { "\n" });
    out
}

/// The name of a side: its label up to the first colon.
fn name(label: &str) -> &str {
    label.split(':').next().unwrap_or(label)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{PairResult, SideTotals};
    use crate::metric::RunMetrics;
    use crate::plan::Plan;

    fn compared(ratios: &[f64]) -> Vec<Comparison> {
        let plan = Plan::new(12, 0, 1).unwrap().of_sides(ratios.len() + 1).unwrap();
        let run = |iops: f64, i: u32| RunMetrics {
            iops: Some(iops * (1.0 + f64::from(i % 3) / 500.0)),
            ..RunMetrics::default()
        };
        let label = |text: &str| SideTotals { label: text.into(), ..SideTotals::default() };
        let of = |(i, ratio): (usize, &f64)| {
            let pairs: Vec<_> =
                (0..12).map(|n| PairResult { a: run(1e5, n), b: run(1e5 * ratio, n * 2 + 1) }).collect();
            let b = label(&format!("side{i}:x={i}"));
            Comparison::evaluate_side(plan, Metric::Iops, &pairs, label("base:default"), Side::at(i + 1), b)
        };
        ratios.iter().enumerate().map(of).collect()
    }

    #[test]
    fn the_best_side_is_marked() {
        let all = compared(&[0.8, 1.2]);
        let text = report(&SidesReport { comparisons: &all }, "mqblk compare j");
        assert!(text.starts_with("best: C side1: IOPS +20."), "{text}");
        assert!(text.contains("\n* C side1") && text.contains("faster than A\n"), "{text}");
        assert!(text.contains("\n  B side0") && text.contains("slower than A\n"), "{text}");
        assert!(text.contains("\n  A base"), "{text}");
    }

    #[test]
    fn the_baseline_can_be_the_best() {
        let slower = compared(&[0.8, 0.9]);
        let s = SidesReport { comparisons: &slower };
        assert_eq!((s.best(), s.is_difference()), (Some(Side::A), true));
        assert_eq!(s.headline(), "best: A base; all others are slower, 12 rounds");
        let same = compared(&[1.0, 1.0]);
        assert!(SidesReport { comparisons: &same }.headline().contains("no "), "{:?}", same[0].verdict);
    }
}
