// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report of a comparison.
//!
//! Guarantees: the report depends only on the results file, so it is the same whenever it is made. The sentence at its top
//! is that of the text report. Needs from callers: the comparisons of these results, with the warnings that were reported
//! with them. Does not: decide anything.

use serde_json::{Value, json};

use super::of_run::{busiest, depth_section, run_points, subtitle};
use super::parts;
use crate::compare::{Comparison, Mark, Row};
use crate::detail::{JobDetail, SliceTable, TargetDetail};
use crate::metric::Metric;
use crate::plan::Side;
use crate::report::compare_sides::SidesReport;
use crate::report::{compare_json, compare_text};
use crate::results::{RawHistogram, Results, RunRecord};
use crate::stage::StageFacts;
use crate::stats::{descriptive, student_t};
use crate::verdict::{COVERAGE, Verdict as Word};
use crate::warning::Warning;
use report::chart::{Axis, DepthPoint, IntervalRow, Intervals, Lines, Plot, Point, Scale, Series, Style, ratio_scale};
use report::document::{Cell, Chart, Document, FORMAT, Kind, Section, Table, Tone, Verdict};
use report::unit::Unit;

/// How several runs of a side are combined in one chart.
const LAID_OVER: &str = "the runs of a side are overlaid, aligned at their start.";

/// Returns the comparisons in `results`, or evaluates them from the runs, each with the warnings about the machine.
pub fn evaluated(results: &Results) -> Vec<Comparison> {
    let mut all = results.comparisons.clone();
    if all.is_empty() {
        all = results.evaluate();
    }
    let jobs = results.runs.first().and_then(|r| r.detail.as_ref()).map_or(&[][..], |d| &d.jobs);
    for w in Warning::of_setup(&results.header.setup, busiest(jobs)) {
        for c in all.iter_mut().filter(|c| !c.warnings.contains(&w)) {
            c.warnings.push(w.clone());
        }
    }
    all
}

/// Makes the report of comparisons of A with each other side, at least one. `file` names the results.
pub fn document(results: &Results, all: &[Comparison], file: Option<&str>) -> Document {
    let several = SidesReport { comparisons: all };
    let h = &results.header;
    let of = |side: Side| results.runs.iter().filter(move |r| r.side == side);
    let name = |side: Side| side.letter().to_string();
    let jobs: &[JobDetail] = results.runs.first().and_then(|r| r.detail.as_ref()).map_or(&[][..], |d| &d.jobs);
    let sides = || (0..h.plan.sides()).map(Side::at);
    let bins: Vec<_> = sides().map(|s| (name(s), parts::pooled(of(s).flat_map(judged), jobs))).collect();
    let slices: Vec<_> = sides().map(|s| (name(s), sum_of_slices(of(s)))).collect();
    let slices: Vec<(String, &SliceTable)> =
        slices.iter().filter_map(|(n, t)| Some((n.clone(), t.as_ref()?))).collect();
    let targets: Vec<_> = sides().map(|s| (name(s), targets_of(of(s)))).collect();
    let totals = all.first().map(|c| (Side::A, &c.a)).into_iter().chain(all.iter().map(|c| (c.side, &c.b)));
    let facts: Vec<(String, &StageFacts)> = totals.filter_map(|(s, t)| Some((name(s), t.stages.as_ref()?))).collect();

    let mut sections = Vec::new();
    let title = match all {
        [c] => {
            sections.push(metrics(c));
            format!("A: {} against B: {}", h.labels[0], h.labels[1])
        }
        all => {
            sections.push(side_by_side(all));
            sections.extend(all.iter().map(metrics));
            format!("A: {} against {} others", h.labels[0], all.len())
        }
    };
    sections.extend(depth_section(&depth_points(results)));
    sections.extend(runs(results));
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
    let told = match all {
        [c] => compare_json::render(c, &h.setup, file, &h.command),
        _ => compare_json::render_sides(&several, &h.setup, file, &h.command),
    };
    let told: Value = serde_json::from_str(&told).unwrap_or_default();
    Document {
        format: FORMAT,
        kind: Kind::Comparison,
        title,
        subtitle: subtitle(&h.setup, h.started_unix_ms),
        verdict: match all {
            [c] => verdict(c),
            _ => verdict_of_sides(&several),
        },
        sections,
        data: json!({ "comparison": told, "header": h, "runs": results.runs }),
    }
}

const fn tone_of(verdict: Word) -> Tone {
    match verdict {
        Word::BIsFaster => Tone::Good,
        Word::BIsSlower | Word::Errors => Tone::Bad,
        Word::NoDifferenceShown => Tone::Neutral,
        Word::NotSteady | Word::Stopped { .. } | Word::NotMeasured | Word::NotModelled => Tone::Caution,
    }
}

fn verdict(c: &Comparison) -> Verdict {
    let tone = tone_of(c.verdict);
    let (word, headline) = (c.verdict.to_string(), compare_text::headline(c));
    let sentence = headline.strip_prefix(&word).unwrap_or(&headline).trim_start_matches(": ").to_owned();
    let sentence = match sentence.is_empty() {
        true => format!("{} of {} pairs were run.", c.pairs_done, c.plan.pairs()),
        false => format!("{sentence}."),
    };
    Verdict {
        tone,
        word: capital(&word),
        sentence,
        warnings: c.warnings.iter().map(parts::caveat).collect(),
        ..Verdict::default()
    }
}

/// The best side, and the verdict of each comparison.
fn verdict_of_sides(s: &SidesReport<'_>) -> Verdict {
    let headline = s.headline();
    let (word, sentence) = headline.split_once(": ").unwrap_or((&headline, ""));
    let shown = s.comparisons.iter().any(|c| Some(c.side) == s.best() && c.verdict == Word::BIsFaster);
    let point = |c: &Comparison| format!("{:?} {}: {}", c.side, c.b.label, compare_text::headline(c));
    let tone = if s.comparisons.iter().any(|c| c.verdict == Word::Errors) {
        Tone::Bad
    } else if s.comparisons.iter().any(|c| tone_of(c.verdict) == Tone::Caution) {
        Tone::Caution
    } else if shown {
        Tone::Good
    } else {
        Tone::Neutral
    };
    let mut warnings: Vec<&Warning> = Vec::new();
    for w in s.comparisons.iter().flat_map(|c| &c.warnings) {
        if !warnings.contains(&w) {
            warnings.push(w);
        }
    }
    Verdict {
        tone,
        word: capital(word),
        sentence: if sentence.is_empty() { String::new() } else { format!("{sentence}.") },
        points: s.comparisons.iter().map(point).collect(),
        warnings: warnings.into_iter().map(parts::caveat).collect(),
    }
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |c| c.to_uppercase().collect::<String>() + letters.as_str())
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

/// A row's ratio in a chart of ratios; `None` if it was not measured in every run.
fn interval_row(label: String, row: &Row) -> Option<IntervalRow> {
    let ratio = row.ratio?;
    Some(IntervalRow { label, mid: ratio.ratio, low: ratio.low, high: ratio.high, tone: tone(row.mark) })
}

/// The primary metric of each side, compared with A.
fn side_by_side(all: &[Comparison]) -> Section {
    let primary = all[0].primary;
    let rows = all.iter().filter_map(|c| interval_row(format!("{:?} {}", c.side, c.b.label), c.row(primary)?));
    let rows: Vec<IntervalRow> = rows.collect();
    let lead = "Each side is compared with A. The significance level is divided by the number of comparisons.";
    let section = Section::new("sides", &format!("{} of each side", primary.name()), lead);
    if rows.is_empty() {
        return section;
    }
    let told: Vec<String> = rows.iter().map(|r| format!("{} {}", r.label, Unit::Ratio.text(r.mid))).collect();
    let plot = Plot::Intervals(Intervals {
        axis: Axis::new("compared with A, with 95 % interval", Unit::Ratio, ratio_scale(&rows)),
        reference: 1.0,
        sides: ("less than A".into(), "more than A".into()),
        rows,
    });
    let (title, summary) = ("Change from A".to_owned(), format!("{}.", told.join(", ")));
    section.with(Chart { id: "sides-chart".into(), title, summary, plot, table: None })
}

/// Medians, ratios and their intervals of one side and A.
fn metrics(c: &Comparison) -> Section {
    let letter = c.side.letter();
    let lead = format!(
        "The verdict rests on {} alone, chosen before the first run; the others are marked after Holm's correction. \
         Intervals are at 95 %, over {} pairs.",
        c.primary.name(),
        c.pairs_done
    );
    let id = match c.side {
        Side::B => "metrics".to_owned(),
        _ => format!("metrics-{letter}"),
    };
    let mut section = Section::new(&id, &format!("Differences of {letter} and A"), lead);
    let rows = c.rows.iter().filter_map(|r| interval_row(r.metric.name().to_owned(), r));
    let rows: Vec<IntervalRow> = rows.collect();
    if !rows.is_empty() {
        let told = rows.iter().take(3).map(|r| format!("{} {}", r.label, Unit::Ratio.text(r.mid)));
        let summary =
            told.collect::<Vec<_>>().join(", ") + ". Colour: a significant difference (blue better, orange worse).";
        let plot = Plot::Intervals(Intervals {
            axis: Axis::new(&format!("{letter} compared with A, with 95 % interval"), Unit::Ratio, ratio_scale(&rows)),
            reference: 1.0,
            sides: (format!("{letter} has less"), format!("{letter} has more")),
            rows,
        });
        let title = format!("Change from A to {letter}");
        section = section.with(Chart { id: format!("{id}-chart"), title, summary, plot, table: None });
    }
    section = section.with(metric_table("", c.side, &c.rows, c.verdict != Word::NotModelled));
    for other in &c.others {
        section = section.with(metric_table(&format!("Other job: {}", other.job), c.side, &other.rows, false));
    }
    section
}

fn metric_table(caption: &str, side: Side, rows: &[Row], judged: bool) -> Table {
    let (letter, median) = (side.letter(), format!("#{} median", side.letter()));
    let mut table =
        Table::new(caption, &["metric", "#A median", &median, "#change", "#95 % interval", "#p", "verdict"]);
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
            (_, _, None) => "not in every run".to_owned(),
            (false, ..) => "not judged".to_owned(),
            _ if !r.metric.can_be_marked() => "not judged".to_owned(),
            (_, Mark::Better, _) => format!("{letter} is better"),
            (_, Mark::Worse, _) => format!("{letter} is worse"),
            (_, Mark::None, _) => "no difference shown".to_owned(),
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

/// The primary metric of every run, in the order of the runs.
fn runs(results: &Results) -> Option<Section> {
    let (metric, sides) = (results.header.primary, results.header.plan.sides());
    let u = unit(metric);
    let of = |side: Side| -> Vec<Point> {
        let all = results.runs.iter().enumerate().filter(|(_, r)| r.side == side);
        all.filter_map(|(i, r)| Some(Point::at(i as f64 + 1.0, r.metrics.get(metric)?))).collect()
    };
    let points: Vec<(Side, Vec<Point>)> = (0..sides).map(Side::at).map(|side| (side, of(side))).collect();
    if points.iter().map(|(_, points)| points.len()).sum::<usize>() < 3 {
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
    let told: Vec<String> = points.iter().map(|(side, points)| format!("{side:?}: {}", range(points))).collect();
    let summary = told.join("; ") + ".";
    let series = points.into_iter().map(|(side, points)| Series {
        name: side.letter().to_string(),
        colour: side.index() as u8,
        style: Style::Dots,
        points,
    });
    let plot = Plot::Lines(Lines {
        x: Axis::new("run, in the order they were made", Unit::Count, Scale::Linear),
        y: Axis::new(metric.name(), u, Scale::Near),
        series: series.collect(),
    });
    let lead = match sides {
        2 => "Each point is a run. Runs go ABBA or BAAB, so slow drift affects both sides equally.",
        _ => {
            "Each point is a run. Each round has every side once; the next round runs in reverse order, so slow drift affects all sides equally."
        }
    };
    let chart = Chart {
        id: "runs-chart".into(),
        title: format!("{} of every run", metric.name()),
        summary,
        plot,
        table: Some(table),
    };
    Some(Section::new("runs", "Run by run", lead).with(chart))
}

/// Histograms of the jobs that the comparison covers.
fn judged(run: &RunRecord) -> impl Iterator<Item = &RawHistogram> {
    run.histograms.iter().filter(|h| run.others.iter().all(|o| o.job != h.job))
}

/// Adds the slices of several runs.
fn sum_of_slices<'a>(runs: impl Iterator<Item = &'a RunRecord>) -> Option<SliceTable> {
    let mut sum: Option<SliceTable> = None;
    for t in runs.filter_map(|r| r.detail.as_ref()?.slices.as_ref()) {
        sum.get_or_insert_default().add(t);
    }
    sum
}

/// The targets of the first run that has them.
fn targets_of<'a>(mut runs: impl Iterator<Item = &'a RunRecord>) -> &'a [TargetDetail] {
    runs.find_map(|r| r.detail.as_deref().map(|d| &d.targets[..]).filter(|t| !t.is_empty())).unwrap_or(&[])
}

/// Jobs that ran one after the other at several depths: means over the runs of a side, with their interval.
fn depth_points(results: &Results) -> Vec<DepthPoint> {
    let mut points = Vec::new();
    for side in (0..results.header.plan.sides()).map(Side::at) {
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
