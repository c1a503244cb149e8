// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of a comparison for spreadsheets and documents.
//!
//! Guarantees: a row for each metric and side but A. Values in CSV are in the metric's unit: per second, bytes per second, nanoseconds.

use std::fmt::Write;

use super::compare_text::{p_value, ratio, value};
use crate::compare::{Comparison, Mark, Row};
use crate::verdict::Verdict;

const COLUMNS: [&str; 11] =
    ["metric", "side", "label", "a_median", "median", "ratio", "low", "high", "p", "verdict", "a_label"];

/// Comma-separated values with a header line (RFC 4180).
pub fn csv(comparisons: &[Comparison]) -> String {
    let mut out = COLUMNS.join(",") + "\n";
    for c in comparisons {
        for row in &c.rows {
            let number = |v: Option<f64>| v.map_or_else(String::new, |v| v.to_string());
            let r = row.ratio;
            let cells = [
                field(row.metric.name()),
                format!("{:?}", c.side),
                field(&c.b.label),
                number(row.a_median),
                number(row.b_median),
                number(r.map(|r| r.ratio)),
                number(r.map(|r| r.low)),
                number(r.map(|r| r.high)),
                number(row.adjusted_p),
                word(c, row).to_owned(),
                field(&c.a.label),
            ];
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{}", cells.join(","));
        }
    }
    out
}

/// A Markdown table.
pub fn markdown(comparisons: &[Comparison]) -> String {
    let mut out = String::from("| metric | side | A median | median | ratio to A [95 % interval] | p | verdict |\n");
    out.push_str("|---|---|---:|---:|---|---|---|\n");
    for c in comparisons {
        for row in &c.rows {
            let p = row.adjusted_p.map_or_else(String::new, p_value);
            let side = format!("{:?} {}", c.side, c.b.label).replace('|', "\\|");
            let (a, b) = (value(row.metric, row.a_median), value(row.metric, row.b_median));
            let (metric, ratio) = (row.metric.name(), ratio(row));
            let _ = writeln!(out, "| {metric} | {side} | {a} | {b} | {ratio} | {p} | {} |", word(c, row));
        }
    }
    out
}

fn word(c: &Comparison, row: &Row) -> &'static str {
    match (row.mark, c.verdict) {
        _ if row.ratio.is_none() => "not measured",
        (_, Verdict::Stopped { .. }) => "stopped",
        (_, Verdict::Errors) => "errors",
        (_, Verdict::NotModelled) => "cannot tell",
        (_, Verdict::NotSteady) if row.metric == c.primary => "not steady",
        (Mark::Better, _) => "better",
        (Mark::Worse, _) => "worse",
        _ if !row.metric.can_be_marked() => "not judged",
        (Mark::None, _) => "no difference shown",
    }
}

fn field(text: &str) -> String {
    if text.contains([',', '"', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{PairResult, SideTotals};
    use crate::metric::{Metric, RunMetrics};
    use crate::plan::Plan;

    #[test]
    fn a_row_for_each_metric_and_side() {
        let run = |iops: f64| RunMetrics { iops: Some(iops), ..RunMetrics::default() };
        let pairs = vec![PairResult { a: run(1000.0), b: run(1250.0) }; 10];
        let side = |label: &str| SideTotals { label: label.into(), ..SideTotals::default() };
        let plan = Plan::new(10, 0, 1).unwrap();
        let c = Comparison::evaluate(plan, Metric::Iops, &pairs, side("mode=sq"), side("mode=mq,nr_hw_queues=2"));
        let csv = csv(std::slice::from_ref(&c));
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines[0].split(',').count(), COLUMNS.len());
        assert!(lines[1].starts_with("IOPS,B,\"mode=mq,nr_hw_queues=2\",1000,1250,1.25"), "{csv}");
        assert!(lines[1].ends_with(",better,mode=sq") && lines.len() == 2, "{csv}");
        let stopped = Comparison::evaluate(plan, Metric::Iops, &pairs[..4], side("a"), side("b"));
        assert!(super::csv(&[stopped]).contains(",stopped,a\n"));
        let text = markdown(&[c]);
        assert!(text.contains("\n| IOPS | B mode=mq,nr_hw_queues=2 | 1000 | 1250 | 1.250 ["), "{text}");
    }
}
