// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report of a scaling study: why each series has its shape, rates and costs against the scaled quantity, and this host
//! beside it.
//!
//! Guarantees: measured and simulated figures are never in one column or line. The sidecar's data is that of
//! `mqblk sim --study --json`. Needs from callers: the points of the cells, in their order. Does not: simulate or measure.

use serde::Serialize;
use serde_json::{Value, json};

use super::of_scenario::machine;
use super::parts;
use crate::setup::Setup;
use crate::stats::descriptive::median;
use report::chart::{Axis, Lines, Plot, Point as Mark, Scale, Series, Style};
use report::document::{Block, Caveat, Cell, Chart, Document, FORMAT, Kind, Section, Table, Tone, Verdict};
use report::unit::Unit;
use sim::scenario::file::Scenario;
use sim::study::reason::{self, of_them, rate};
use sim::study::{Cell as StudyCell, Load, Point, Study, by_series, efficiency};

/// If the runs of a point differ by more than this share of their median, an error of the simulation is meaningless.
pub const APART: f64 = 0.3;
/// From this ratio of largest to smallest value on, an axis is logarithmic.
const WIDE: f64 = 100.0;
/// If two series differ by less than this at their ends, they end alike.
const ALIKE: f64 = 0.05;

/// A point measured on this host.
#[derive(Clone, Debug, Serialize)]
pub struct HostPoint {
    /// The name of its series.
    pub series: String,
    /// The value of the quantity that the study scales.
    pub x: u32,
    /// Complete runs; at least one.
    pub runs: usize,
    /// Median of the runs, I/Os per second.
    pub measured: f64,
    /// The slowest run.
    pub least: f64,
    /// The fastest run.
    pub most: f64,
    /// The simulated figure for this host.
    pub simulated: f64,
    /// Error of the simulation against the measurement: 0.1 = 10 % above.
    pub error: f64,
}

impl HostPoint {
    /// Makes a point from complete runs, in I/Os per second, and the simulated figure. Returns `None` without a run.
    pub fn of(series: String, x: u32, runs: &[f64], simulated: f64) -> Option<HostPoint> {
        let measured = median(runs)?;
        let (least, most) =
            runs.iter().fold((f64::INFINITY, 0.0f64), |(least, most), run| (least.min(*run), most.max(*run)));
        let error = simulated / measured - 1.0;
        Some(HostPoint { series, x, runs: runs.len(), measured, least, most, simulated, error })
    }
}

/// The results of this host beside a study.
#[derive(Clone, Debug, Serialize)]
pub struct HostResults {
    /// Its CPUs.
    pub cpus: u32,
    /// Requested runs of each point. [`HostPoint::runs`] has the completed ones.
    pub runs: usize,
    /// Measuring was interrupted.
    pub is_interrupted: bool,
    /// The costs are from a machine file, not the built-in ones.
    pub own_costs: bool,
    /// The points that were measured.
    pub points: Vec<HostPoint>,
}

impl HostResults {
    /// Whether runs of a point differ so much that the errors say little.
    pub fn is_apart(&self) -> bool {
        self.points.iter().any(|p| p.most - p.least > APART * p.measured)
    }

    /// Number of complete runs of a point: `5`, or `2 to 3` if points differ.
    pub fn runs_of_a_point(&self) -> String {
        let of = || self.points.iter().map(|p| p.runs);
        match (of().min().unwrap_or(0), of().max().unwrap_or(0)) {
            (few, many) if few == many => many.to_string(),
            (few, many) => format!("{few} to {many}"),
        }
    }
}

/// The data of a study.
pub struct StudyInput<'a> {
    /// The study.
    pub study: Study,
    /// The machine of the study.
    pub machine: &'a Scenario,
    /// Name and text of the machine's file.
    pub file: (&'a str, &'a str),
    /// Its cells.
    pub cells: &'a [StudyCell],
    /// The simulated points of the cells.
    pub points: &'a [Point],
    /// The measured points of this host.
    pub here: Option<&'a HostResults>,
    /// The command line.
    pub command: &'a str,
    /// The seed.
    pub seed: u64,
    /// The machine that ran the simulation.
    pub setup: &'a Setup,
}

/// Returns all figures as data.
pub fn data(input: &StudyInput<'_>) -> Value {
    let (study, machine) = (input.study, input.machine);
    json!({
        "study": study, "scales": study.unit(), "title": study.title(), "machine": machine.machine, "costs": machine.costs,
        "simulated": input.points, "reasons": reason::of(study, input.points), "here": input.here, "seed": input.seed,
    })
}

/// Makes the report.
pub fn document(input: &StudyInput<'_>) -> Document {
    let m = input.machine.machine;
    let all = by_series(input.points, |p| &p.series);
    let unmodelled = reason::unmodelled(input.study, input.points);
    let mut sections = vec![rates(input.study, &all, unmodelled.as_deref())];
    sections.extend(costs(input.study, &all));
    sections.push(figures(input.study, input.points));
    sections.extend(input.here.map(|here| beside(input.study, here, &all)));
    sections.push(settings(input));
    sections.push(machine(input.machine));
    sections.push(cost_table(input.machine));
    sections.push(parts::environment(input.setup));
    sections.push(reproduce(input));
    let title = if input.machine.title.is_empty() { "a machine" } else { &input.machine.title };
    Document {
        format: FORMAT,
        kind: Kind::Study,
        title: format!("Scaling study: {}", input.study.title()),
        subtitle: format!(
            "simulated: {title} \u{b7} {} \u{d7} {} cores \u{d7} {} threads = {} CPUs \u{b7} {}",
            m.sockets,
            m.cores,
            m.threads,
            m.cpus(),
            input.setup.program
        ),
        verdict: verdict(input, &all, unmodelled.as_deref()),
        sections,
        data: data(input),
    }
}

fn verdict(input: &StudyInput<'_>, all: &[(&str, Vec<&Point>)], unmodelled: Option<&str>) -> Verdict {
    if let Some(why) = unmodelled {
        let (word, sentence) = ("Cannot tell".to_owned(), format!("{why}."));
        return Verdict { tone: Tone::Caution, word, sentence, warnings: warnings(input), ..Verdict::default() };
    }
    let ends: Vec<&Point> = all.iter().filter_map(|(_, line)| line.last().copied()).collect();
    let by_rate = |a: &&&Point, b: &&&Point| a.iops.total_cmp(&b.iops);
    let (best, least) = (ends.iter().max_by(by_rate), ends.iter().min_by(by_rate));
    let (word, first) = match (best, least) {
        // Numbers of users are loads, so none of them is better than another.
        (Some(best), Some(_)) if input.study == Study::Iothreads => {
            let of_best = all.iter().find(|(name, _)| *name == best.series);
            let enough = of_best.and_then(|(_, line)| reason::enough(line)).unwrap_or(best);
            (format!("Best for {}: {}", best.series, of_them(input.study, enough.x)), String::new())
        }
        (Some(best), Some(least)) if ends.len() > 1 && best.iops > (1.0 + ALIKE) * least.iops => {
            let (most, few) = (rate(best.iops), rate(least.iops));
            let text = format!(
                "\u{2018}{}\u{2019} has {most} I/Os per second, {:.1} times as many as \u{2018}{}\u{2019} ({few}). ",
                best.series,
                best.iops / least.iops,
                least.series
            );
            (format!("With {} \u{2018}{}\u{2019} has the most", of_them(input.study, best.x), best.series), text)
        }
        (Some(best), Some(_)) if ends.len() > 1 => {
            (format!("No difference with {}", of_them(input.study, best.x)), String::new())
        }
        _ => ("Simulated".to_owned(), String::new()),
    };
    let sentence = first + &reason::of(input.study, input.points).join(" ");
    Verdict { tone: Tone::Neutral, word, sentence, warnings: warnings(input), ..Verdict::default() }
}

fn warnings(input: &StudyInput<'_>) -> Vec<Caveat> {
    let Some(here) = input.here else { return Vec::new() };
    let mut all = Vec::new();
    let mut add = |text: String, advice: &str| all.push(Caveat { text, advice: advice.to_owned() });
    if here.is_interrupted {
        add("measuring this host was interrupted".into(), "points without a complete run are missing");
    }
    if here.is_apart() {
        let text = format!(
            "runs of the same point on this host differ by more than {:.0} %: other programs used the CPUs",
            100.0 * APART
        );
        add(text, "deviations from the simulation mean little; repeat when the machine is idle");
    }
    if !here.own_costs {
        let text = "the simulated costs are the built-in ones, from another machine";
        add(text.into(), "to simulate this host: mqblk calibrate --out FILE, then --machine FILE");
    }
    all
}

/// Returns the scale of an axis with such values.
fn scale_of(values: impl Iterator<Item = f64>) -> Scale {
    let (least, most) = values.fold((f64::INFINITY, 0.0f64), |(least, most), v| (least.min(v), most.max(v)));
    if least > 0.0 && most / least > WIDE { Scale::Log10 } else { Scale::Linear }
}

/// The axis of the scaled quantity. A main loop instead of IOThreads is 0, which has no logarithm.
fn x_axis(study: Study) -> Axis {
    let scale = if study == Study::Iothreads { Scale::Linear } else { Scale::Log2 };
    let label = if study == Study::Depth { "I/Os in flight per thread" } else { study.unit() };
    Axis::new(label, Unit::Count, scale)
}

/// A line per series with the values of `of`; `None` if there is nothing to draw.
fn lines(
    study: Study,
    all: &[(&str, Vec<&Point>)],
    y: (&str, Unit),
    scale: Option<Scale>,
    of: impl Fn(&Point) -> Option<f64>,
) -> Option<Lines> {
    let line = |(i, (name, points)): (usize, &(&str, Vec<&Point>))| Series {
        name: (*name).to_owned(),
        colour: i as u8,
        style: Style::Marked,
        points: points.iter().filter_map(|p| Some(Mark::at(f64::from(p.x), of(p)?))).collect(),
    };
    let series: Vec<Series> = all.iter().enumerate().map(line).collect();
    let scale = scale.unwrap_or_else(|| scale_of(series.iter().flat_map(|s| &s.points).map(|p| p.y)));
    let is_drawn = series.iter().any(|s| s.points.len() > 1);
    is_drawn.then(|| Lines { x: x_axis(study), y: Axis::new(y.0, y.1, scale), series })
}

fn chart(id: &str, title: &str, summary: String, plot: Lines) -> Chart {
    Chart { id: id.into(), title: title.into(), summary, plot: Plot::Lines(plot), table: None }
}

/// Rates of all series together, and of each by itself: beside a series that grows a hundredfold, the fall of another is
/// not visible.
fn rates(study: Study, all: &[(&str, Vec<&Point>)], unmodelled: Option<&str>) -> Section {
    let lead = "Simulated; each line ends with its series' name. Each series also has a separate chart below.";
    let mut section = Section::new("rates", "I/Os per second", lead);
    let iops = |p: &Point| Some(p.iops);
    let ends = all.iter().filter_map(|(name, line)| {
        let p = line.last()?;
        Some(format!("{name}: {} with {}", rate(p.iops), of_them(study, p.x)))
    });
    let summary = ends.collect::<Vec<_>>().join("; ") + ".";
    if all.len() > 1
        && let Some(plot) = lines(study, all, ("I/Os per second", Unit::PerSecond), None, iops)
    {
        section = section.with(chart("iops-chart", "All series", summary, plot));
    }
    for (i, one) in all.iter().enumerate() {
        let why = match unmodelled {
            Some(why) => format!("cannot tell: {why}."),
            None => format!("{}.", reason::of_series(study, &one.1)),
        };
        let Some(mut plot) = lines(study, &all[i..=i], ("I/Os per second", Unit::PerSecond), Some(Scale::Linear), iops)
        else {
            section.blocks.push(Block::Note { text: why });
            continue;
        };
        plot.series.iter_mut().for_each(|s| s.colour = i as u8);
        section = section.with(chart(&format!("series-{i}-chart"), &format!("{} alone", one.0), why, plot));
    }
    section
}

/// Costs of an I/O: its time, its CPU time, and the share of lock waits in that.
fn costs(study: Study, all: &[(&str, Vec<&Point>)]) -> Option<Section> {
    let lead = "Latency as the program sees it; CPU time including lock waits; the share of lock waits in it.";
    let mut section = Section::new("costs", "Latency, CPU time and lock wait", lead);
    let of_users = study == Study::Iothreads;
    let mean = if of_users { "mean time of a transaction" } else { "mean latency" };
    type Of = fn(&Point) -> Option<f64>;
    type Drawn<'a> = (&'a str, &'a str, &'a str, Unit, Option<Scale>, Of);
    let drawn: [Drawn<'_>; 3] = [
        ("latency-chart", "Latency", mean, Unit::Nanoseconds, None, |p| Some(1e3 * p.lat_us)),
        ("cpu-chart", "CPU time of an I/O", "CPU time of an I/O", Unit::Nanoseconds, None, |p| p.cpu_ns),
        ("lock-chart", "Waiting for locks", "share of CPU time", Unit::Percent, Some(Scale::Linear), |p| {
            p.lock_wait.map(|w| 100.0 * w)
        }),
    ];
    for (id, title, axis, unit, scale, of) in drawn {
        let Some(plot) = lines(study, all, (axis, unit), scale, of) else { continue };
        let told = all.iter().filter_map(|(name, line)| {
            let [first, last] = [line.first()?, line.last()?];
            let (from, to) = (unit.text(of(first)?), unit.text(of(last)?));
            Some(format!("{name}: {from} with {}, {to} with {}", of_them(study, first.x), of_them(study, last.x)))
        });
        let summary = told.collect::<Vec<_>>().join("; ") + ".";
        section = section.with(chart(id, title, summary, plot));
    }
    (!section.blocks.is_empty()).then_some(section)
}

/// All figures as a table.
fn figures(study: Study, points: &[Point]) -> Section {
    let heads =
        ["series", "#", "#IOPS", "#per CPU", "#latency", "#CPU per I/O", "#lock wait", "#busy", "#I/Os simulated"];
    let x = format!("#{}", study.unit());
    let heads: Vec<&str> = heads.into_iter().map(|h| if h == "#" { x.as_str() } else { h }).collect();
    let mut table = Table::new("", &heads);
    for p in points {
        let per_cpu = (study != Study::Iothreads).then(|| 100.0 * efficiency(points, p));
        table.row(vec![
            Cell::text(&p.series),
            Cell::number(f64::from(p.x), Unit::Count),
            Cell::number(p.iops, Unit::PerSecond),
            Cell::number(per_cpu, Unit::Percent),
            Cell::number(1e3 * p.lat_us, Unit::Nanoseconds),
            Cell::number(p.cpu_ns, Unit::Nanoseconds),
            Cell::number(p.lock_wait.map(|w| 100.0 * w), Unit::Percent),
            Cell::number(100.0 * p.busy, Unit::Percent),
            Cell::number(p.ios as f64, Unit::Count),
        ]);
    }
    table.note = "Per CPU: I/Os per second of each CPU against the first row of the series.".into();
    Section::new("figures", "Simulated figures", "").with(table)
}

/// This host: measured beside simulated figures.
fn beside(study: Study, here: &HostResults, all: &[(&str, Vec<&Point>)]) -> Section {
    let lead = format!(
        "{} CPUs. Measured on the null device, medians of {} interleaved runs with minimum and maximum; simulated: our \
         block layer in user space, without the costs of a kernel and a device.",
        here.cpus,
        here.runs_of_a_point()
    );
    let mut section = Section::new("here", "This host", lead);
    // Both use the colour that the series has in all charts. Marks are measured points, a line is simulated.
    let pair = |(i, (name, points)): (usize, (&str, Vec<&HostPoint>))| {
        let colour = all.iter().position(|(n, _)| *n == name).unwrap_or(i) as u8;
        let measured = |p: &&HostPoint| Mark { x: f64::from(p.x), y: p.measured, interval: Some((p.least, p.most)) };
        let simulated = |p: &&HostPoint| Mark::at(f64::from(p.x), p.simulated);
        let line = |what: &str, style, points| Series { name: format!("{name}, {what}"), colour, style, points };
        [
            line("measured", Style::Dots, points.iter().map(measured).collect()),
            line("simulated", Style::Line, points.iter().map(simulated).collect()),
        ]
    };
    let series: Vec<Series> = by_series(&here.points, |p| &p.series).into_iter().enumerate().flat_map(pair).collect();
    if series.iter().any(|s| s.points.len() > 1) {
        let y = Axis::new("I/Os per second", Unit::PerSecond, Scale::Linear);
        let worst = here.points.iter().max_by(|a, b| a.error.abs().total_cmp(&b.error.abs()));
        let summary = worst.map_or_else(String::new, |p| {
            let off = Unit::Ratio.text(1.0 + p.error);
            format!("Largest error: {} with {} (simulated against measured: {off}).", p.series, of_them(study, p.x))
        });
        section = section.with(chart(
            "here-chart",
            "Measured (marks) and simulated (lines)",
            summary,
            Lines { x: x_axis(study), y, series },
        ));
    }
    let x = format!("#{}", study.unit());
    let mut table = Table::new("", &["series", &x, "#measured", "#least", "#most", "#simulated", "#error"]);
    for p in &here.points {
        table.row(vec![
            Cell::text(&p.series),
            Cell::number(f64::from(p.x), Unit::Count),
            Cell::number(p.measured, Unit::PerSecond),
            Cell::number(p.least, Unit::PerSecond),
            Cell::number(p.most, Unit::PerSecond),
            Cell::number(p.simulated, Unit::PerSecond),
            Cell::number(1.0 + p.error, Unit::Ratio),
        ]);
    }
    section.with(table)
}

/// The load and the settings of each series. A setting that changes along the series is shown by its first and last value.
fn settings(input: &StudyInput<'_>) -> Section {
    let mut table = Table::new("", &["series", "setting", "value"]);
    for (series, cells) in by_series(input.cells, |c| &c.series) {
        let (Some(cell), Some(last)) = (cells.first(), cells.last()) else { continue };
        let mut add = |setting: &str, from: String, to: String| {
            let value = if from == to { from } else { format!("{from} to {to}") };
            table.row(vec![Cell::text(series), Cell::text(setting), Cell::text(value)]);
        };
        load(cell).into_iter().zip(load(last)).for_each(|((what, from), (_, to))| add(what, from, to));
        for (key, value) in &cell.set {
            let end = last.set.iter().find(|(k, _)| k == key).map_or(value, |(_, v)| v);
            add(key, value.clone(), end.clone());
        }
    }
    for (key, value) in &input.machine.settings {
        table.row(vec![Cell::text("all"), Cell::text(key), Cell::text(value.text())]);
    }
    let lead = match input.study {
        Study::Iothreads => "Users of one virtual machine's database; 0 IOThreads: the main loop serves the disk.",
        _ => "Random 4 KiB reads, one thread per CPU, each I/O submitted singly.",
    };
    Section::new("settings", "Load and settings", lead).with(table)
}

fn load(cell: &StudyCell) -> [(&'static str, String); 2] {
    match cell.load {
        Load::Reads { threads, depth } => [("threads", threads.to_string()), ("iodepth", depth.to_string())],
        Load::Users { users, iothreads } => [("users", users.to_string()), ("iothreads", iothreads.to_string())],
    }
}

/// The CPU costs of work.
fn cost_table(machine: &Scenario) -> Section {
    let mut table = Table::new("", &["cost", "#value"]);
    let costs = serde_json::to_value(machine.costs).unwrap_or_default();
    for (group, all) in costs.as_object().into_iter().flatten() {
        for (name, value) in all.as_object().into_iter().flatten() {
            let cell = match value.as_f64() {
                Some(ns) if name.ends_with("_ns") => Cell::number(ns, Unit::Nanoseconds),
                Some(n) => Cell::number(n, Unit::Count),
                None => Cell::text(value.as_str().map_or_else(|| value.to_string(), str::to_owned)),
            };
            table.row(vec![Cell::text(format!("costs.{group}.{name}")), cell]);
        }
    }
    let lead = "CPU time of each operation; docs/scenarios.md explains them and the sources of their values.";
    Section::new("machine-costs", "CPU costs", lead).with(table)
}

fn reproduce(input: &StudyInput<'_>) -> Section {
    let mut section = parts::reproduce(input.command, None, "", None);
    let text =
        format!("Seed {}: the same command gives the same simulated figures, on any number of CPUs.", input.seed);
    section.blocks.push(Block::Note { text });
    section.blocks.push(parts::machine_file(input.file));
    section
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim::scenario::unmodelled::Traffic;
    use sim::study::{base, cells};

    fn point(series: &str, x: u32, iops: f64) -> Point {
        let (lock_wait, cpu_ns) = (Some(0.5), Some(2000.0));
        Point {
            series: series.into(),
            x,
            cpus: x,
            iops,
            lat_us: 10.0,
            cpu_ns,
            lock_wait,
            busy: 1.0,
            ios: 1000,
            traffic: Traffic::default(),
        }
    }

    fn report(study: Study, points: &[Point], here: Option<&HostResults>) -> Document {
        let machine = base::default_of(study);
        let cells = cells::of(study, &machine, 4);
        document(&StudyInput {
            study,
            machine: &machine,
            file: ("built in", base::text_of(study)),
            cells: &cells,
            points,
            here,
            command: "mqblk sim --study cpus",
            seed: 3,
            setup: &Setup::default(),
        })
    }

    fn charts(d: &Document) -> Vec<(&str, &Lines)> {
        let all = d.sections.iter().flat_map(|s| &s.blocks);
        all.filter_map(|b| match b {
            Block::Chart(Chart { id, plot: Plot::Lines(lines), .. }) => Some((id.as_str(), lines)),
            _ => None,
        })
        .collect()
    }

    #[test]
    fn the_verdict_is_the_reasons_and_each_series_has_its_chart() {
        let points = [point("sq", 1, 4e5), point("sq", 4, 2e5), point("mq", 1, 5e5), point("mq", 4, 2e6)];
        let d = report(Study::Cpus, &points, None);
        assert_eq!(d.verdict.word, "With 4 CPUs \u{2018}mq\u{2019} has the most");
        let start = "\u{2018}mq\u{2019} has 2.00 M I/Os per second, 10.0 times as many as \u{2018}sq\u{2019} (200 k). sq: peaks with 1 \
                     CPU at 400 k, and falls to 50 %";
        assert!(d.verdict.sentence.starts_with(start), "{}", d.verdict.sentence);
        assert!(d.verdict.sentence.contains(" mq: grows 4 times from 1 to 4 CPUs"), "{}", d.verdict.sentence);
        let ids: Vec<&str> = charts(&d).iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, ["iops-chart", "series-0-chart", "series-1-chart", "latency-chart", "cpu-chart", "lock-chart"]);
        assert_eq!(charts(&d)[2].1.series[0].colour, 1, "a series has one colour everywhere");
        assert_eq!(d.data["reasons"].as_array().unwrap().len(), 2);
        let text = d.json();
        for part in ["mode", "scheduler", "noop", "costs.path.irq_ns", "8 sockets of 32 cores", "\"seed\": 3"] {
            assert!(text.contains(part), "{part}");
        }
        let alike = report(Study::Cpus, &[point("sq", 4, 1e6), point("mq", 4, 1.01e6)], None);
        assert_eq!(alike.verdict.word, "No difference with 4 CPUs");
        assert!(charts(&alike).is_empty(), "a single point is no chart");
    }

    #[test]
    fn large_ranges_use_a_log_axis_and_include_the_main_loop() {
        let wide = [point("sq", 1, 1e4), point("sq", 4, 1e4), point("mq", 1, 1e6), point("mq", 4, 1.1e6)];
        let d = report(Study::Cpus, &wide, None);
        let all = charts(&d);
        assert_eq!((all[0].1.y.scale, all[1].1.y.scale), (Scale::Log10, Scale::Linear));
        let users = |x, iops| Point { cpu_ns: None, lock_wait: None, ..point("8 users", x, iops) };
        let flat = [users(0, 1e5), users(1, 2e5), users(2, 2e5), users(4, 2.002e5)];
        let d = report(Study::Iothreads, &flat, None);
        let all = charts(&d);
        assert_eq!(all.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ["series-0-chart", "latency-chart"]);
        assert_eq!((all[0].1.x.scale, all[0].1.series[0].points[0].x), (Scale::Linear, 0.0));
        assert_eq!(d.verdict.word, "Best for 8 users: 1 IOThread", "more of them bring nothing");
        assert!(d.verdict.sentence.contains("grows until 1 IOThread, "), "{}", d.verdict.sentence);
        let d = report(Study::Iothreads, &[&flat[..], &[users(8, 2.5e5), users(16, 1e5)]].concat(), None);
        assert_eq!(d.verdict.word, "Best for 8 users: 8 IOThreads");
    }

    #[test]
    fn host_runs_are_shown_and_a_wide_spread_is_a_warning() {
        let beside = |x, least| HostPoint::of("mq".into(), x, &[1.1e6, least, 1e6], 9e5).unwrap();
        let points = vec![beside(1, 9e5), beside(2, 9.5e5)];
        let mut here = HostResults { cpus: 2, runs: 3, is_interrupted: false, own_costs: true, points };
        let points = [point("sq", 1, 1e6), point("mq", 1, 1e6), point("mq", 2, 2e6)];
        let d = report(Study::Cpus, &points, Some(&here));
        assert!(d.verdict.warnings.is_empty());
        let (id, lines) = *charts(&d).last().unwrap();
        assert_eq!((id, lines.series[0].name.as_str()), ("here-chart", "mq, measured"));
        assert_eq!(lines.series[0].points[0].interval, Some((9e5, 1.1e6)));
        let looks: Vec<_> = lines.series.iter().map(|s| (s.colour, s.style)).collect();
        assert_eq!(looks, [(1, Style::Dots), (1, Style::Line)], "mq's colour, with and without sq beside it");
        here.points[1].least = 5e5;
        here.own_costs = false;
        let d = report(Study::Cpus, &points, Some(&here));
        assert_eq!(d.verdict.warnings.len(), 2);
        assert_eq!(d.data["here"]["points"][1]["least"], 5e5);
    }

    #[test]
    fn a_point_tells_how_many_runs_it_has() {
        assert!(HostPoint::of("mq".into(), 1, &[], 9e5).is_none(), "no whole run, no point");
        let points = vec![
            HostPoint::of("mq".into(), 1, &[1.2e6, 1e6], 1.21e6).unwrap(),
            HostPoint::of("mq".into(), 2, &[2e6], 2e6).unwrap(),
        ];
        assert_eq!((points[0].measured, points[1].measured), (1.1e6, 2e6));
        assert!((points[0].error - 0.1).abs() < 1e-9, "{}", points[0].error);
        let here = HostResults { cpus: 2, runs: 5, is_interrupted: true, own_costs: true, points };
        let d = report(Study::Cpus, &[point("mq", 1, 1e6), point("mq", 2, 2e6)], Some(&here));
        let of_data = &d.data["here"];
        assert_eq!((&of_data["runs"], &of_data["is_interrupted"]), (&json!(5), &json!(true)));
        assert_eq!([&of_data["points"][0]["runs"], &of_data["points"][1]["runs"]], [&json!(2), &json!(1)]);
        let section = d.sections.iter().find(|s| s.id == "here").unwrap();
        assert!(section.lead.contains("medians of 1 to 2 interleaved runs"), "{}", section.lead);
        assert!(d.verdict.warnings[0].text.contains("interrupted"));
    }
}
