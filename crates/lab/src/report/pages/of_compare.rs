// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report of a comparison.
//!
//! Guarantees: made from a results file alone, so that it is the same whether made at once or a year later; the sentence at its top is the
//! text report's. Needs from callers: the comparison of these results, with the warnings it was told with. Does not: decide anything.

use serde_json::{Value, json};

use super::of_run::{busiest, depth_section, run_points, subtitle};
use super::parts;
use crate::compare::{Comparison, Mark, Row};
use crate::detail::{JobDetail, SliceTable, TargetDetail};
use crate::metric::Metric;
use crate::plan::Side;
use crate::report::{compare_json, compare_text};
use crate::results::{RawHistogram, Results, RunRecord};
use crate::stage::StageFacts;
use crate::stats::{descriptive, student_t};
use crate::verdict::{COVERAGE, Verdict as Word};
use crate::warning::Warning;
use report::chart::{Axis, DepthPoint, IntervalRow, Intervals, Lines, Plot, Point, Scale, Series, Style, ratio_scale};
use report::document::{Cell, Chart, Document, FORMAT, Kind, Section, Table, Tone, Verdict};
use report::unit::Unit;

/// How runs of a side come to one picture.
const LAID_OVER: &str = "the runs of a side are laid over each other, beginning to beginning.";

/// The comparison of the two sides of `results`, as they hold it or else evaluated from their runs, with the machine's warnings.
pub fn evaluated(results: &Results) -> Comparison {
    let first = results.comparisons.first().cloned();
    let mut c = first.unwrap_or_else(|| results.evaluate().remove(0));
    let jobs = results.runs.first().and_then(|r| r.detail.as_ref()).map_or(&[][..], |d| &d.jobs);
    for w in Warning::of_setup(&results.header.setup, busiest(jobs)) {
        if !c.warnings.contains(&w) {
            c.warnings.push(w);
        }
    }
    c
}

/// The report; `file` names the results.
pub fn document(results: &Results, c: &Comparison, file: Option<&str>) -> Document {
    let h = &results.header;
    let of = |side: Side| results.runs.iter().filter(move |r| r.side == side);
    let name = |side: Side| side.letter().to_string();
    let jobs: &[JobDetail] = results.runs.first().and_then(|r| r.detail.as_ref()).map_or(&[][..], |d| &d.jobs);
    let bins = [Side::A, Side::B].map(|s| (name(s), parts::pooled(of(s).flat_map(judged), jobs)));
    let slices = [Side::A, Side::B].map(|s| (name(s), sum_of_slices(of(s))));
    let slices: Vec<(String, &SliceTable)> =
        slices.iter().filter_map(|(n, t)| Some((n.clone(), t.as_ref()?))).collect();
    let targets = [Side::A, Side::B].map(|s| (name(s), targets_of(of(s))));
    let facts: Vec<(String, &StageFacts)> = [(Side::A, &c.a), (Side::B, &c.b)]
        .into_iter()
        .filter_map(|(s, t)| Some((name(s), t.stages.as_ref()?)))
        .collect();

    let mut sections = vec![metrics(c)];
    sections.extend(depth_section(&depth_points(results)));
    sections.extend(runs(results, c));
    sections.extend(parts::percentiles(&bins));
    let whose = match results.runs.first().is_some_and(|r| !r.others.is_empty()) {
        true => "The judged job alone",
        false => "All jobs together",
    };
    let time = parts::over_time(&slices);
    sections.extend(time.map(|s| Section { lead: format!("{} {whose}; {LAID_OVER}", s.lead), ..s }));
    sections.extend(parts::stages(&facts));
    sections.extend(parts::balance(&facts));
    sections.push(parts::little(&facts));
    sections.extend(parts::settings(&targets));
    sections.push(parts::environment(&h.setup));
    sections.push(parts::reproduce(&h.command, Some(h.plan.seed()), &h.job, file));
    let told: Value = serde_json::from_str(&compare_json::render(c, &h.setup, file, &h.command)).unwrap_or_default();
    Document {
        format: FORMAT,
        kind: Kind::Comparison,
        title: format!("A: {} against B: {}", h.labels[0], h.labels[1]),
        subtitle: subtitle(&h.setup, h.started_unix_ms),
        verdict: verdict(c),
        sections,
        data: json!({ "comparison": told, "header": h, "runs": results.runs }),
    }
}

fn verdict(c: &Comparison) -> Verdict {
    let tone = match c.verdict {
        Word::BIsFaster => Tone::Good,
        Word::BIsSlower | Word::Errors => Tone::Bad,
        Word::NoDifferenceShown => Tone::Neutral,
        Word::NotSteady | Word::Stopped { .. } | Word::NotMeasured => Tone::Caution,
    };
    let (word, headline) = (c.verdict.to_string(), compare_text::headline(c));
    let sentence = headline.strip_prefix(&word).unwrap_or(&headline).trim_start_matches(": ").to_owned();
    let sentence = match sentence.is_empty() {
        true => format!("{} of {} pairs were run.", c.pairs_done, c.plan.pairs()),
        false => format!("{sentence}."),
    };
    let mut letters = word.chars();
    let first = letters.next().map_or_else(String::new, |c| c.to_uppercase().collect());
    let word = first + letters.as_str();
    Verdict { tone, word, sentence, warnings: c.warnings.iter().map(parts::caveat).collect(), ..Verdict::default() }
}

const fn unit(metric: Metric) -> Unit {
    match metric {
        Metric::Iops | Metric::Transactions => Unit::PerSecond,
        Metric::BytesPerSecond => Unit::BytesPerSecond,
        _ => Unit::Nanoseconds,
    }
}

const fn tone(mark: Mark) -> Tone {
    match mark {
        Mark::Better => Tone::Good,
        Mark::Worse => Tone::Bad,
        Mark::None => Tone::Neutral,
    }
}

/// Medians, ratios and their intervals.
fn metrics(c: &Comparison) -> Section {
    let lead = format!(
        "The verdict rests on {} alone, chosen before the first run; the others are marked after a correction for their number. Intervals are \
         at 95 %, over {} pairs.",
        c.primary.name(),
        c.pairs_done
    );
    let mut section = Section::new("metrics", "Differences", lead);
    let rows = c.rows.iter().filter_map(|r| {
        let ratio = r.ratio?;
        let label = r.metric.name().to_owned();
        Some(IntervalRow { label, mid: ratio.ratio, low: ratio.low, high: ratio.high, tone: tone(r.mark) })
    });
    let rows: Vec<IntervalRow> = rows.collect();
    if !rows.is_empty() {
        let told = rows.iter().take(3).map(|r| format!("{} {}", r.label, Unit::Ratio.text(r.mid)));
        let summary =
            told.collect::<Vec<_>>().join(", ") + ". Colour: a difference that stands (blue better, orange worse).";
        let plot = Plot::Intervals(Intervals {
            axis: Axis::new("B compared with A, with 95 % interval", Unit::Ratio, ratio_scale(&rows)),
            reference: 1.0,
            sides: ("B has less".into(), "B has more".into()),
            rows,
        });
        let title = "Change from A to B".to_owned();
        section = section.with(Chart { id: "metrics-chart".into(), title, summary, plot, table: None });
    }
    section = section.with(metric_table("", &c.rows, true));
    for other in &c.others {
        section = section.with(metric_table(&format!("Beside it: {}", other.job), &other.rows, false));
    }
    section
}

fn metric_table(caption: &str, rows: &[Row], judged: bool) -> Table {
    let mut table =
        Table::new(caption, &["metric", "#A median", "#B median", "#change", "#95 % interval", "#p", "verdict"]);
    for r in rows {
        let u = unit(r.metric);
        let change = r.ratio.map(|x| x.ratio);
        let interval = r.ratio.map_or_else(
            || "\u{2013}".to_owned(),
            |x| format!("[{}, {}]", Unit::Ratio.text(x.low), Unit::Ratio.text(x.high)),
        );
        let p = r.adjusted_p.map_or_else(
            || "\u{2013}".to_owned(),
            |p| match p {
                p if p < 0.0001 => "< 0.0001".to_owned(),
                p if p < 0.01 => format!("{p:.4}"),
                p => format!("{p:.2}"),
            },
        );
        let word = match (judged, r.mark, r.ratio) {
            (_, _, None) => "not in every run",
            (false, ..) => "not judged",
            (_, Mark::Better, _) => "B is better",
            (_, Mark::Worse, _) => "B is worse",
            (_, Mark::None, _) => "no difference shown",
        };
        table.row(vec![
            Cell::text(r.metric.name()),
            Cell::number(r.a_median, u),
            Cell::number(r.b_median, u),
            Cell::number(change, Unit::Ratio),
            Cell::text(interval),
            Cell { text: p, value: r.adjusted_p, ..Cell::default() },
            Cell::text(word).toned(if judged { tone(r.mark) } else { Tone::Neutral }),
        ]);
    }
    table
}

/// The primary metric of every run, in the order they were made.
fn runs(results: &Results, c: &Comparison) -> Option<Section> {
    let (metric, u) = (c.primary, unit(c.primary));
    let of = |side: Side| -> Vec<Point> {
        let all = results.runs.iter().enumerate().filter(|(_, r)| r.side == side);
        all.filter_map(|(i, r)| Some(Point::at(i as f64 + 1.0, r.metrics.get(metric)?))).collect()
    };
    let (a, b) = (of(Side::A), of(Side::B));
    if a.len() + b.len() < 3 {
        return None;
    }
    let mut table = Table::new(format!("{} of every run", metric.name()), &["#run", "#pair", "side", "#value"]);
    for (i, r) in results.runs.iter().enumerate() {
        table.row(vec![
            Cell::number(i as f64 + 1.0, Unit::Count),
            Cell::number(f64::from(r.pair) + 1.0, Unit::Count),
            Cell::text(r.side.letter()),
            Cell::number(r.metrics.get(metric), u),
        ]);
    }
    let range = |points: &[Point]| {
        let (low, high) = points.iter().fold((f64::INFINITY, 0f64), |(l, h), p| (l.min(p.y), h.max(p.y)));
        if points.is_empty() { "no run".to_owned() } else { format!("{} to {}", u.text(low), u.text(high)) }
    };
    let summary = format!("A: {}; B: {}.", range(&a), range(&b));
    let series =
        |name: &str, colour: u8, points: Vec<Point>| Series { name: name.into(), colour, style: Style::Dots, points };
    let plot = Plot::Lines(Lines {
        x: Axis::new("run, in the order they were made", Unit::Count, Scale::Linear),
        y: Axis::new(metric.name(), u, Scale::Near),
        series: vec![series("A", 0, a), series("B", 1, b)],
    });
    let lead = "Each point is a run. Runs go ABBA or BAAB, so that what drifts slowly meets both sides alike.";
    let chart = Chart {
        id: "runs-chart".into(),
        title: format!("{} of every run", metric.name()),
        summary,
        plot,
        table: Some(table),
    };
    Some(Section::new("runs", "Run by run", lead).with(chart))
}

/// Histograms of the jobs that the comparison is about.
fn judged(run: &RunRecord) -> impl Iterator<Item = &RawHistogram> {
    run.histograms.iter().filter(|h| run.others.iter().all(|o| o.job != h.job))
}

/// Runs over each other.
fn sum_of_slices<'a>(runs: impl Iterator<Item = &'a RunRecord>) -> Option<SliceTable> {
    let mut sum: Option<SliceTable> = None;
    for t in runs.filter_map(|r| r.detail.as_ref()?.slices.as_ref()) {
        sum.get_or_insert_default().add(t);
    }
    sum
}

/// Those of the first run that has them.
fn targets_of<'a>(mut runs: impl Iterator<Item = &'a RunRecord>) -> &'a [TargetDetail] {
    runs.find_map(|r| r.detail.as_deref().map(|d| &d.targets[..]).filter(|t| !t.is_empty())).unwrap_or(&[])
}

/// Jobs that ran in turn at several depths: means over the runs of a side, with their interval.
fn depth_points(results: &Results) -> Vec<DepthPoint> {
    let mut points = Vec::new();
    for side in [Side::A, Side::B] {
        let letter = side.letter();
        let all: Vec<Vec<DepthPoint>> = results
            .runs
            .iter()
            .filter(|r| r.side == side)
            .filter_map(|r| Some(run_points(&r.detail.as_ref()?.jobs)))
            .collect();
        let Some(first) = all.first() else { continue };
        for (i, p) in first.iter().enumerate() {
            let same: Vec<&DepthPoint> = all
                .iter()
                .filter_map(|run| run.get(i))
                .filter(|q| q.depth == p.depth && q.series == p.series)
                .collect();
            let mean = |f: fn(&DepthPoint) -> f64| descriptive::mean(&same.iter().map(|q| f(q)).collect::<Vec<_>>());
            let p99: Option<Vec<f64>> = same.iter().map(|q| q.latency_p99_ns).collect();
            points.push(DepthPoint {
                series: format!("{}, {letter}", p.series),
                depth: p.depth,
                iops: mean(|q| q.iops).unwrap_or(p.iops),
                iops_interval: interval(&same.iter().map(|q| q.iops).collect::<Vec<_>>()),
                latency_mean_ns: mean(|q| q.latency_mean_ns).unwrap_or(p.latency_mean_ns),
                latency_p99_ns: p99.and_then(|all| descriptive::median(&all)),
            });
        }
    }
    points
}

/// 95 % interval of the mean.
fn interval(xs: &[f64]) -> Option<(f64, f64)> {
    let (mean, deviation) = (descriptive::mean(xs)?, descriptive::stddev(xs)?);
    let df = u32::try_from(xs.len().checked_sub(1)?).ok().filter(|n| *n > 0)?;
    let half = student_t::critical(1.0 - COVERAGE, df) * deviation / (xs.len() as f64).sqrt();
    Some((mean - half, mean + half))
}
