// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sections that several reports share, made from the results of one or several labelled sides.
//!
//! Guarantees: a section with nothing to show is `None` or gives the reason in a sentence; a chart always has more than one
//! point. Needs from callers: sides in their order, which is the order of colours. Does not: judge.

use std::collections::BTreeMap;

use workload::slices::{ROWS, row_range};

use crate::detail::{JobDetail, SliceColumn, SliceTable, TargetDetail};
use crate::results::RawHistogram;
use crate::setup::Setup;
use crate::stage::{HctxCounts, StageFacts, StageTimes};
use crate::warning::Warning;
use report::chart::{Axis, BarRow, Bars, Heat, Lines, Plot, Point, Scale, Series, Style};
use report::document::{Block, Caveat, Cell, Chart, Section, Table, Tone};
use report::unit::Unit;

/// Maximum number of points of a percentile curve.
const CURVE_POINTS: usize = 160;
/// Maximum number of columns of a heat map, and most points of rates over time.
const TIME_COLUMNS: usize = 96;
/// A percentile is shown if at least this many I/Os took longer.
const BEYOND_MIN: u64 = 10;
/// Percentiles of tables.
const PERCENTILES: [f64; 8] = [0.5, 0.9, 0.95, 0.99, 0.999, 0.9999, 0.99999, 0.999999];

/// Marks the name of a setting that differs between sides.
const DIFFERS: char = '\u{2260}';

/// Latencies of several histograms together: (nanoseconds, I/Os), ascending.
pub type Bins = BTreeMap<u64, u64>;

/// Returns the latencies that are judged: from the intended start if the job has a rate, else clat.
pub fn pooled<'a>(histograms: impl Iterator<Item = &'a RawHistogram>, jobs: &[JobDetail]) -> Bins {
    let rated = |job: &str| jobs.iter().any(|j| j.job == job && j.rated);
    let mut bins = Bins::new();
    for h in histograms {
        let wanted = if rated(&h.job) { "intended" } else { "clat" };
        if h.kind == wanted {
            h.bins.iter().for_each(|(ns, n)| *bins.entry(*ns).or_default() += n);
        }
    }
    bins
}

/// Returns the smallest latency that at least a share `q` of all I/Os does not exceed.
pub fn quantile(bins: &Bins, q: f64) -> Option<u64> {
    let want = (q * bins.values().sum::<u64>() as f64).ceil().max(1.0) as u64;
    let mut sum = 0;
    bins.iter().find_map(|(ns, n)| {
        sum += n;
        (sum >= want).then_some(*ns)
    })
}

/// Points of the percentile curve, as far as [`BEYOND_MIN`] I/Os are above it.
fn curve(bins: &Bins) -> Vec<Point> {
    let total: u64 = bins.values().sum();
    if total <= BEYOND_MIN {
        return Vec::new();
    }
    let end = (total as f64 / BEYOND_MIN as f64).log10();
    // The points are evenly spaced along the axis of nines, starting at p1: faster I/Os would only stretch the other axis.
    let begin = -0.99f64.log10();
    let at = |i: usize| 1.0 - 10f64.powf(-begin - (end - begin).max(0.0) * i as f64 / (CURVE_POINTS - 1) as f64);
    let points = (0..CURVE_POINTS).filter_map(|i| Some(Point::at(at(i), quantile(bins, at(i))? as f64)));
    points.filter(|p| p.y > 0.0).collect()
}

/// Latency by percentile, a line per side.
pub fn percentiles(sides: &[(String, Bins)]) -> Option<Section> {
    let sides: Vec<_> =
        sides.iter().enumerate().filter(|(_, (_, bins))| bins.values().sum::<u64>() > BEYOND_MIN).collect();
    if sides.is_empty() {
        return None;
    }
    let lines = sides.iter().map(|(i, (name, bins))| Series {
        name: name.clone(),
        colour: *i as u8,
        style: Style::Line,
        points: curve(bins),
    });
    let plot = Plot::Lines(Lines {
        x: Axis::new("share of I/Os that took no longer", Unit::Quantile, Scale::Nines),
        y: Axis::new("latency", Unit::Nanoseconds, Scale::Log10),
        series: lines.collect(),
    });
    let names: Vec<String> = sides.iter().map(|(_, (name, _))| format!("#{name}")).collect();
    let heads: Vec<&str> = ["percentile"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let mut table = Table::new("Latency by percentile", &heads);
    for q in PERCENTILES {
        let known = |bins: &Bins| bins.values().sum::<u64>() as f64 * (1.0 - q) >= BEYOND_MIN as f64 - 1e-6;
        let of = |bins: &Bins| quantile(bins, q).filter(|_| known(bins)).map(|ns| ns as f64);
        if sides.iter().any(|(_, (_, bins))| known(bins)) {
            let figures = sides.iter().map(|(_, (_, bins))| Cell::number(of(bins), Unit::Nanoseconds));
            let name = Cell { value: Some(q), ..Cell::text(Unit::Quantile.text(q)) };
            table.row([name].into_iter().chain(figures).collect());
        }
    }
    let figures = |f: &dyn Fn(&Bins) -> Option<f64>, unit: Unit| -> Vec<Cell> {
        sides.iter().map(|(_, (_, bins))| Cell::number(f(bins), unit)).collect()
    };
    let longest = |bins: &Bins| bins.keys().next_back().map(|ns| *ns as f64);
    table.row([vec![Cell::text("longest")], figures(&longest, Unit::Nanoseconds)].concat());
    let ios = |bins: &Bins| Some(bins.values().sum::<u64>() as f64);
    table.row([vec![Cell::text("I/Os")], figures(&ios, Unit::Count)].concat());
    let told = sides.iter().map(|(_, (name, bins))| {
        let of = |q: f64| quantile(bins, q).map_or_else(String::new, |ns| Unit::Nanoseconds.text(ns as f64));
        format!("{name}: median {}, p99 {}", of(0.5), of(0.99))
    });
    let lead = format!("Lines end where fewer than {BEYOND_MIN} I/Os took longer: beyond that, values are chance.");
    let summary = told.collect::<Vec<_>>().join("; ") + ".";
    let chart = Chart {
        id: "percentiles-chart".into(),
        title: "Latency by percentile".into(),
        summary,
        plot,
        table: Some(table),
    };
    Some(Section::new("percentiles", "Latency distribution", lead).with(chart))
}

/// Rates and latencies of all jobs over time.
pub fn over_time(sides: &[(String, &SliceTable)]) -> Option<Section> {
    let tables = drawn(sides);
    let lead = format!("In slices of {}. A steady run has a level line and a level band.", width(&tables)?);
    let mut section = Section::new("time", "Over time", lead);
    section
        .blocks
        .extend([&IOPS, &BANDWIDTH].into_iter().filter_map(|f| figure_chart("", f, &tables)).map(Block::from));
    for (i, name, t) in &tables {
        section.blocks.extend(heat_chart(*i, name, t).map(Block::from));
    }
    (!section.blocks.is_empty()).then_some(section)
}

/// Longest name of a job in a legend, and in the head of a table.
const NAME_CHARS: usize = 10;

/// Rates and median latency of each job over time.
pub fn jobs_over_time(jobs: &[(String, SliceTable)]) -> Option<Section> {
    let short = |name: &str| match name.char_indices().nth(NAME_CHARS) {
        Some((end, _)) => format!("{}\u{2026}", &name[..end]),
        None => name.to_owned(),
    };
    let sides: Vec<(String, &SliceTable)> = jobs.iter().map(|(name, t)| (short(name), t)).collect();
    let tables = drawn(&sides);
    let lead = format!("In slices of {} or more, each job from its own beginning.", width(&tables)?);
    let mut section = Section::new("job-time", "Each job over time", lead);
    let charts = [&IOPS, &BANDWIDTH, &MEDIAN].into_iter().filter_map(|f| figure_chart("job-", f, &tables));
    section.blocks.extend(charts.map(Block::from));
    (!section.blocks.is_empty()).then_some(section)
}

/// A table to draw, with its colour and name.
type Drawn<'a> = (usize, &'a str, SliceTable);

fn drawn<'a>(sides: &'a [(String, &SliceTable)]) -> Vec<Drawn<'a>> {
    let sides = sides.iter().enumerate().filter(|(_, (_, t))| t.columns.len() > 1);
    sides.map(|(i, (name, t))| (i, name.as_str(), (*t).clone().at_most(TIME_COLUMNS))).collect()
}

/// Length of the shortest slices.
fn width(tables: &[Drawn<'_>]) -> Option<String> {
    let ns = tables.iter().map(|(.., t)| t.width_ns).min()?;
    Some(Unit::Nanoseconds.text(ns as f64))
}

/// A figure that is drawn over time.
struct Figure {
    id: &'static str,
    title: &'static str,
    /// The axis, and the text behind a figure.
    what: &'static str,
    /// Word of a table's head.
    head: &'static str,
    unit: Unit,
    of: fn(&SliceColumn) -> Option<f64>,
}

const IOPS: Figure = Figure {
    id: "rate-chart",
    title: "Throughput over time",
    what: "I/Os per second",
    head: "IOPS",
    unit: Unit::PerSecond,
    of: |c| Some(1e9 * c.total() as f64 / c.covered_ns as f64),
};

const BANDWIDTH: Figure = Figure {
    id: "bandwidth-chart",
    title: "Bandwidth over time",
    what: "bandwidth",
    head: "bandwidth",
    unit: Unit::BytesPerSecond,
    of: |c| Some(1e9 * c.bytes.iter().sum::<u64>() as f64 / c.covered_ns as f64),
};

const MEDIAN: Figure = Figure {
    id: "median-chart",
    title: "Median latency over time",
    what: "median latency",
    head: "median",
    unit: Unit::Nanoseconds,
    of: |c| quantile(&latencies(c), 0.5).map(|ns| ns as f64),
};

/// The latencies of a slice, each class by its middle.
fn latencies(c: &SliceColumn) -> Bins {
    c.latencies.iter().map(|(row, n)| (middle(*row), *n)).collect()
}

/// Returns the figure of each slice that was measured for at least half as long as the longest one.
fn figures(t: &SliceTable, of: fn(&SliceColumn) -> Option<f64>) -> Vec<Point> {
    let most = t.columns.iter().map(|c| c.covered_ns).max().unwrap_or(0);
    let columns = t.columns.iter().enumerate().filter(|(_, c)| 2 * c.covered_ns >= most && c.covered_ns > 0);
    let width = t.width_ns as f64 / 1e9;
    columns.filter_map(|(i, c)| Some(Point::at(width * (i as f64 + 0.5), of(c)?))).collect()
}

fn figure_chart(prefix: &str, figure: &Figure, tables: &[Drawn<'_>]) -> Option<Chart> {
    let series = tables.iter().map(|(i, name, t)| Series {
        name: (*name).to_owned(),
        colour: *i as u8,
        style: Style::Line,
        points: figures(t, figure.of),
    });
    let series: Vec<Series> = series.filter(|s| s.points.len() > 1).collect();
    let told = series.iter().map(|s| {
        let (low, high) = s.points.iter().fold((f64::INFINITY, 0f64), |(l, h), p| (l.min(p.y), h.max(p.y)));
        format!("{}: {} to {} {}", s.name, figure.unit.text(low), figure.unit.text(high), figure.what)
    });
    let summary = told.collect::<Vec<_>>().join("; ") + ".";
    // With many jobs there is no room for more than their names.
    let head = if prefix.is_empty() { format!(" {}", figure.head) } else { String::new() };
    let names: Vec<String> = series.iter().map(|s| format!("#{}{head}", s.name)).collect();
    let heads: Vec<&str> = ["#seconds"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let mut table = Table::new(format!("{} over time", figure.what), &heads);
    let longest = series.iter().max_by_key(|s| s.points.len())?;
    for p in &longest.points {
        let at = |s: &Series| s.points.iter().find(|q| (q.x - p.x).abs() < 1e-9).map(|q| q.y);
        let cells = series.iter().map(|s| Cell::number(at(s), figure.unit));
        table.row([Cell::number(p.x, Unit::Seconds)].into_iter().chain(cells).collect());
    }
    let plot = Plot::Lines(Lines {
        x: Axis::new("seconds since measuring began", Unit::Seconds, Scale::Linear),
        y: Axis::new(figure.what, figure.unit, Scale::Linear),
        series,
    });
    Some(Chart { id: format!("{prefix}{}", figure.id), title: figure.title.into(), summary, plot, table: Some(table) })
}

fn heat_chart(index: usize, name: &str, t: &SliceTable) -> Option<Chart> {
    let cells: Vec<(u32, u32, u64)> = t
        .columns
        .iter()
        .enumerate()
        .flat_map(|(i, c)| c.latencies.iter().map(move |(row, n)| (i as u32, *row, *n)))
        .filter(|(_, row, n)| *n > 0 && (*row as usize) < ROWS)
        .collect();
    let (low, high) = (cells.iter().map(|c| c.1).min()?, cells.iter().map(|c| c.1).max()?);
    let mut edges: Vec<f64> = (0..ROWS).map(|row| row_range(row).0 as f64).collect();
    edges.push(row_range(ROWS - 1).1 as f64);
    let range = |row: u32| row_range(row as usize);
    let summary = format!(
        "{} I/Os from {} to {}; a stronger shade means more I/Os in that slice of time and class of latency.",
        Unit::Count.text(cells.iter().map(|c| c.2).sum::<u64>() as f64),
        Unit::Nanoseconds.text(range(low).0 as f64),
        Unit::Nanoseconds.text(range(high).1 as f64)
    );
    let mut table = Table::new("Latency over time", &["#seconds", "#I/Os", "#median", "#p99", "#longest class"]);
    for (i, c) in t.columns.iter().enumerate() {
        let bins = latencies(c);
        let of = |q: f64| quantile(&bins, q).filter(|_| c.total() > 0).map(|ns| ns as f64);
        table.row(vec![
            Cell::number(t.width_ns as f64 / 1e9 * i as f64, Unit::Seconds),
            Cell::number(c.total() as f64, Unit::Count),
            Cell::number(of(0.5), Unit::Nanoseconds),
            Cell::number(of(0.99), Unit::Nanoseconds),
            Cell::number(of(1.0), Unit::Nanoseconds),
        ]);
    }
    let plot = Plot::Heat(Heat {
        x: Axis::new("seconds since measuring began", Unit::Seconds, Scale::Linear),
        y: Axis::new("latency", Unit::Nanoseconds, Scale::Log10),
        column: t.width_ns as f64 / 1e9,
        columns: t.columns.len() as u32,
        edges,
        cells,
    });
    let title = if name.is_empty() { "Latency over time".to_owned() } else { format!("Latency over time: {name}") };
    Some(Chart { id: format!("heat-{index}"), title, summary, plot, table: Some(table) })
}

/// The middle of a class of latency.
fn middle(row: u32) -> u64 {
    let (low, high) = row_range((row as usize).min(ROWS - 1));
    u64::midpoint(low, high - 1)
}

/// Where the time of a request goes: a bar per side.
pub fn stages(sides: &[(String, &StageFacts)]) -> Option<Section> {
    let sides: Vec<_> = sides.iter().filter(|(_, f)| f.times.n > 0).collect();
    if sides.is_empty() {
        return None;
    }
    let rows = sides.iter().map(|(name, f)| BarRow { label: name.clone(), values: f.times.means().to_vec() });
    let plot = Plot::Bars(Bars {
        axis: Axis::new("mean time of a request", Unit::Nanoseconds, Scale::Linear),
        parts: StageTimes::NAMES.map(str::to_owned).to_vec(),
        stacked: true,
        rows: rows.collect(),
    });
    let names: Vec<String> = sides.iter().flat_map(|(name, _)| [format!("#{name}"), "#share".to_owned()]).collect();
    let heads: Vec<&str> = ["stage"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let mut table = Table::new("Mean time per request by stage", &heads);
    for (i, stage) in StageTimes::NAMES.iter().enumerate() {
        let figures = sides.iter().flat_map(|(_, f)| {
            let share = f.times.shares()[i].map(|s| 100.0 * s);
            [Cell::number(f.times.means()[i], Unit::Nanoseconds), Cell::number(share, Unit::Percent)]
        });
        table.row([Cell::text(*stage)].into_iter().chain(figures).collect());
    }
    let total = |f: &StageFacts| f.times.means().iter().flatten().sum::<f64>();
    let sums = sides.iter().flat_map(|(_, f)| {
        let share = Cell::number(100.0, Unit::Percent);
        [Cell::number(total(f), Unit::Nanoseconds).strong(true), share]
    });
    table.row([Cell::text("all").strong(true)].into_iter().chain(sums).collect());
    let largest = sides.iter().filter_map(|(name, f)| {
        let shares = f.times.shares();
        let (i, share) = shares.iter().enumerate().max_by(|a, b| a.1.unwrap_or(0.0).total_cmp(&b.1.unwrap_or(0.0)))?;
        let (stage, share) = (StageTimes::NAMES[i], Unit::Percent.text(100.0 * share.unwrap_or(0.0)));
        Some(format!("{}{stage} has {share}", if name.is_empty() { String::new() } else { format!("{name}: ") }))
    });
    let summary = largest.collect::<Vec<_>>().join("; ") + ".";
    let chart = Chart { id: "stages-chart".into(), title: "Where the time goes".into(), summary, plot, table: None };
    Some(Section::new("stages", "Where the time goes", "").with(chart).with(table).with(costs(&sides)))
}

/// Where the time of a transaction goes, of databases in simulated virtual machines: a bar per side.
pub fn transactions(sides: &[(String, &StageFacts)]) -> Option<Section> {
    let sides: Vec<_> = sides.iter().filter(|(_, f)| !f.parts.is_empty()).collect();
    let (_, first) = sides.first()?;
    let mean = |f: &StageFacts, name: &str| f.parts.iter().find(|p| p.name == name)?.mean_ns();
    let means = |f: &StageFacts| first.parts.iter().map(|p| mean(f, &p.name)).collect::<Vec<_>>();
    // The chart leaves out the first part, computing. Computing takes most of the time, and nearly the same on all sides. The other parts
    // would be too small beside it.
    let rows = sides.iter().map(|(name, f)| BarRow { label: name.clone(), values: means(f).split_off(1) });
    let plot = Plot::Bars(Bars {
        axis: Axis::new("mean time of a transaction beyond computing", Unit::Nanoseconds, Scale::Linear),
        parts: first.parts.iter().skip(1).map(|p| p.name.clone()).collect(),
        stacked: true,
        rows: rows.collect(),
    });
    let names: Vec<String> = sides.iter().map(|(name, _)| format!("#{name}")).collect();
    let heads: Vec<&str> =
        ["part"].into_iter().chain(names.iter().map(String::as_str)).chain(["what it is spent on"]).collect();
    let mut table = Table::new("Mean time of a transaction by part", &heads);
    for part in &first.parts {
        let figures = sides.iter().map(|(_, f)| Cell::number(mean(f, &part.name), Unit::Nanoseconds));
        table.row([Cell::text(&part.name)].into_iter().chain(figures).chain([Cell::text(&part.means)]).collect());
    }
    let total = |f: &StageFacts| means(f).iter().flatten().sum::<f64>();
    let sums = sides.iter().map(|(_, f)| Cell::number(total(f), Unit::Nanoseconds).strong(true));
    table.row([Cell::text("all").strong(true)].into_iter().chain(sums).chain([Cell::text("")]).collect());
    let told = sides.iter().map(|(name, f)| format!("{name}: {} in all", Unit::Nanoseconds.text(total(f))));
    let summary = told.collect::<Vec<_>>().join("; ") + ".";
    let chart =
        Chart { id: "transactions-chart".into(), title: "Where the time goes".into(), summary, plot, table: None };
    Some(Section::new("transactions", "Where the time of a transaction goes", "").with(chart).with(table))
}

/// Merges, CPU time and context switches.
fn costs(sides: &[&(String, &StageFacts)]) -> Table {
    let names: Vec<String> = sides.iter().map(|(name, _)| format!("#{name}")).collect();
    let heads: Vec<&str> = ["cost"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let mut table = Table::new("Costs", &heads);
    let mut add = |name: &str, unit: Unit, of: &dyn Fn(&StageFacts) -> Option<f64>| {
        let cells: Vec<Cell> = sides.iter().map(|(_, f)| Cell::number(of(f), unit)).collect();
        if cells.iter().any(|c| c.value.is_some()) {
            table.row([vec![Cell::text(name)], cells].concat());
        }
    };
    add("requests", Unit::Count, &|f| Some(f.times.n as f64));
    add("bios merged into another request", Unit::Percent, &|f| {
        Some(100.0 * f.merges as f64 / (f.merges + f.times.n).max(1) as f64)
    });
    add("CPU time per I/O", Unit::Nanoseconds, &|f| f.cpu_per_io_ns().filter(|ns| *ns > 0.0));
    add("context switches per I/O", Unit::Count, &StageFacts::context_switches_per_io);
    table
}

/// How evenly hardware queues were used.
pub fn balance(sides: &[(String, &StageFacts)]) -> Option<Section> {
    let most = sides.iter().map(|(_, f)| f.hctx.len()).max().filter(|n| *n > 0)?;
    let of = |f: &StageFacts, i: usize| f.hctx.get(i).copied();
    let heads = ["hctx", "#queued", "#run", "#dispatched", "#driver calls", "#per call", "#requeues"];
    let mut section = Section::new("hctx", "Hardware queues", "");
    if most > 1 {
        let rows = (0..most).map(|i| BarRow {
            label: format!("hctx {i}"),
            values: sides.iter().map(|(_, f)| of(f, i).map(|h| h.dispatched as f64)).collect(),
        });
        let plot = Plot::Bars(Bars {
            axis: Axis::new("requests dispatched", Unit::Count, Scale::Linear),
            parts: sides.iter().map(|(name, _)| name.clone()).collect(),
            stacked: false,
            rows: rows.collect(),
        });
        let summary = sides.iter().map(|(name, f)| spread(name, &f.hctx)).collect::<Vec<_>>().join("; ") + ".";
        let title = "Requests by hardware queue".to_owned();
        section = section.with(Chart { id: "hctx-chart".into(), title, summary, plot, table: None });
    }
    for (name, f) in sides {
        let mut table = Table::new(name.clone(), &heads);
        for (i, h) in f.hctx.iter().enumerate() {
            let count = |n: u64| Cell::number(n as f64, Unit::Count);
            let per_call = (h.batches > 0).then(|| h.dispatched as f64 / h.batches as f64);
            table.row(vec![
                Cell::text(format!("hctx {i}")),
                count(h.queued),
                count(h.run),
                count(h.dispatched),
                count(h.batches),
                Cell::number(per_call, Unit::Count),
                count(h.requeues),
            ]);
        }
        section = section.with(table);
    }
    Some(section)
}

/// Returns the count of the busiest hardware queue over the mean.
fn spread(name: &str, hctx: &[HctxCounts]) -> String {
    let sum: u64 = hctx.iter().map(|h| h.dispatched).sum();
    let most = hctx.iter().map(|h| h.dispatched).max().unwrap_or(0);
    let times = most as f64 * hctx.len() as f64 / sum.max(1) as f64;
    let begin = if name.is_empty() { String::new() } else { format!("{name}: ") };
    format!("{begin}the busiest of {} has {times:.2} times the mean", hctx.len())
}

/// Little's law: whether the figures agree with each other.
pub fn little(sides: &[(String, &StageFacts)]) -> Section {
    let lead = "The number in flight was sampled; rate times latency is computed from other counters. If they differ \
                by more than 10 %, some waiting is not measured.";
    let mut section = Section::new("little", "Little\u{2019}s law", lead);
    let mut table = Table::new(
        "",
        &["side", "#in flight, sampled", "#rate", "#mean latency", "#rate \u{d7} latency", "#error", "agrees"],
    );
    let mut missing = Vec::new();
    for (name, f) in sides {
        let Some(l) = &f.little else {
            missing.push(name.as_str());
            continue;
        };
        let (tone, word) = if l.holds() { (Tone::Good, "yes") } else { (Tone::Bad, "no") };
        let error = 100.0 * l.error();
        table.row(vec![
            Cell::text(if name.is_empty() { "run" } else { name }),
            Cell::number(l.in_flight, Unit::Count),
            Cell::number(l.iops, Unit::PerSecond),
            Cell::number(l.latency_ns, Unit::Nanoseconds),
            Cell::number(l.expected(), Unit::Count),
            Cell { text: report::unit::signed_percent(error), value: Some(error), ..Cell::default() },
            Cell::text(word).toned(tone),
        ]);
    }
    if !table.rows.is_empty() {
        section = section.with(table);
    }
    if !missing.is_empty() {
        let of = missing.join(", ");
        let of = if of.is_empty() { String::new() } else { format!(" of {of}") };
        let text = format!(
            "The number in flight{of} was not sampled often enough to be compared: the run was too short or too uneven."
        );
        section.blocks.push(Block::Note { text });
    }
    section
}

/// Settings in effect. Settings that the user set are marked, and settings that differ between sides come first.
pub fn settings(sides: &[(String, &[TargetDetail])]) -> Option<Section> {
    let known: Vec<_> = sides.iter().filter(|(_, t)| !t.is_empty()).collect();
    let targets = known.iter().map(|(_, t)| t.len()).max()?;
    let lead = match known.len() {
        1 => "Settings in bold were set by the user; the others are defaults.",
        _ => "Settings in bold were set by the user; settings that differ come first and have a \u{2260}.",
    };
    let mut section = Section::new("settings", "Settings", lead);
    for i in 0..targets {
        let of: Vec<(&str, &TargetDetail)> =
            known.iter().filter_map(|(name, t)| Some((name.as_str(), t.get(i)?))).collect();
        section = section.with(settings_table(&of));
    }
    Some(section)
}

fn settings_table(sides: &[(&str, &TargetDetail)]) -> Table {
    let mut names: Vec<&str> = Vec::new();
    for s in sides.iter().flat_map(|(_, t)| &t.settings) {
        if !names.contains(&s.name.as_str()) {
            names.push(&s.name);
        }
    }
    let find = |t: &'_ TargetDetail, name: &str| t.settings.iter().find(|s| s.name == name).cloned();
    let differs = |name: &&str| {
        let values: Vec<_> = sides.iter().map(|(_, t)| find(t, name).map(|s| s.value)).collect();
        values.iter().any(|v| *v != values[0])
    };
    let (first, rest): (Vec<&str>, Vec<&str>) = names.iter().partition(|n| differs(n));
    let heads: Vec<&str> = ["setting"]
        .into_iter()
        .chain(sides.iter().map(|(n, _)| if n.is_empty() { "value" } else { n }))
        .chain(["what it does"])
        .collect();
    let mut targets: Vec<&str> = sides.iter().map(|(_, t)| t.name.as_str()).collect();
    targets.dedup();
    let mut table = Table::new(format!("Target {}", targets.join(" against ")), &heads);
    for (name, marked) in first.iter().map(|n| (n, true)).chain(rest.iter().map(|n| (n, false))) {
        let found: Vec<_> = sides.iter().map(|(_, t)| find(t, name)).collect();
        let help = found.iter().flatten().map(|s| s.help.clone()).next().unwrap_or_default();
        let asked = found.iter().flatten().any(|s| !s.default);
        let values = found.iter().map(|s| match s {
            Some(s) => {
                Cell::text(&s.value).strong(!s.default).toned(if marked { Tone::Caution } else { Tone::Neutral })
            }
            None => Cell::text("\u{2013}"),
        });
        let label = if marked { format!("{name} {DIFFERS}") } else { (*name).to_owned() };
        let label = Cell::text(label).strong(asked || marked);
        table.row([label].into_iter().chain(values).chain([Cell::text(help)]).collect());
    }
    table
}

/// The machine.
pub fn environment(setup: &Setup) -> Section {
    let mut table = Table::new("", &["what", "value"]);
    let unknown = || "unknown".to_owned();
    let mut add = |name: &str, value: String| table.row(vec![Cell::text(name), Cell::text(value)]);
    let commit =
        setup.commit.as_deref().map_or_else(|| "commit not recorded at build".to_owned(), |c| format!("commit {c}"));
    add("program", format!("{} ({commit})", setup.program));
    setup.simulated.iter().for_each(|machine| add("ran on", machine.clone()));
    add("kernel", setup.kernel.clone().unwrap_or_else(unknown));
    add("CPU", setup.cpu_model.clone().unwrap_or_else(unknown));
    add("CPUs this process may use", setup.cpus.to_string());
    add("memory", setup.memory_bytes.map_or_else(unknown, |b| Unit::Bytes.text(b as f64)));
    add("frequency governor", setup.governor.clone().unwrap_or_else(|| "none shown by the kernel".to_owned()));
    add("clock source", setup.clocksource.clone().unwrap_or_else(unknown));
    for (device, settings) in &setup.devices {
        let all: Vec<String> = settings.iter().map(|(k, v)| format!("{k}={v}")).collect();
        add(&format!("device {device}"), all.join(", "));
    }
    Section::new("environment", "Environment", "").with(table)
}

/// The command that reproduces these figures.
pub fn reproduce(command: &str, seed: Option<u64>, job: &str, results: Option<&str>) -> Section {
    let mut section = Section::new("reproduce", "How to reproduce", "");
    section.blocks.push(Block::Code { caption: "Command".into(), text: command.to_owned() });
    if let Some(seed) = seed {
        let text = format!("Order of the runs from seed {seed}; both runs of a pair have the same random numbers.");
        section.blocks.push(Block::Note { text });
    }
    if !job.is_empty() {
        section.blocks.push(Block::Code { caption: "Job file".into(), text: job.to_owned() });
    }
    if let Some(results) = results {
        let text = format!("Raw results, from which this page can be made again: {results}");
        section.blocks.push(Block::Note { text });
    }
    section
}

/// The text of a machine file.
pub fn machine_file((name, text): (&str, &str)) -> Block {
    Block::Code { caption: format!("Machine file {name}"), text: text.to_owned() }
}

/// The jobs with their results.
pub fn jobs(jobs: &[JobDetail]) -> Option<Section> {
    if jobs.is_empty() {
        return None;
    }
    let heads =
        ["job", "does", "#threads", "#iodepth", "#IOPS", "#bandwidth", "#mean", "#p50", "#p99", "#p99.9", "#max"];
    let mut table = Table::new("", &heads);
    for j in jobs {
        let sizes = match j.bytes {
            (low, high) if low == high => Unit::Bytes.tick(low as f64),
            (low, high) => format!("{}\u{2013}{}", Unit::Bytes.tick(low as f64), Unit::Bytes.tick(high as f64)),
        };
        let does = if j.bytes.1 == 0 { j.rw.clone() } else { format!("{} {sizes}", j.rw) };
        let (m, ns) = (&j.metrics, Unit::Nanoseconds);
        table.row(vec![
            Cell::text(&j.job),
            Cell::text(does),
            Cell::number(f64::from(j.threads), Unit::Count),
            Cell::number(f64::from(j.iodepth), Unit::Count),
            Cell::number(m.iops, Unit::PerSecond),
            Cell::number(m.bytes_per_second, Unit::BytesPerSecond),
            Cell::number(m.latency_mean_ns, ns),
            Cell::number(m.latency_p50_ns, ns),
            Cell::number(m.latency_p99_ns, ns),
            Cell::number(m.latency_p999_ns, ns),
            Cell::number(m.latency_max_ns, ns),
        ]);
    }
    if jobs.iter().any(|j| j.rated) {
        table.note = "Latencies of jobs with a rate count from the intended start of each I/O.".into();
    }
    Some(Section::new("jobs", "Jobs", "").with(table))
}

/// A warning as a caveat.
pub fn caveat(w: &Warning) -> Caveat {
    Caveat { text: w.to_string(), advice: w.advice().to_owned() }
}
