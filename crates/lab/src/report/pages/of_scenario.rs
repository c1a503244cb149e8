// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report of a scenario: published and simulated figures of a machine that is not available.
//!
//! Guarantees: a fitted figure is marked wherever it is shown, and no verdict uses it. Needs from callers: the rows in the
//! order of the file. Does not: simulate.

use serde_json::json;

use super::parts;
use crate::setup::Setup;
use report::chart::{Axis, BarRow, Bars, IntervalRow, Intervals, Plot, Scale, ratio_scale};
use report::document::{Block, Cell, Chart, Document, FORMAT, Kind, Section, Table, Tone, Verdict};
use report::unit::Unit;
use sim::scenario::file::{Row, Scenario, split_figure};
use sim::scenario::outcome::{Figure, RowOutcome};
use sim::scenario::over_rows::{OverRows, over_rows};
use sim::scenario::why;

/// Largest relative error of a prediction that counts as near.
const NEAR: f64 = 0.15;

/// The data of a simulated scenario.
pub struct ScenarioInput<'a> {
    /// The file's content.
    pub scenario: &'a Scenario,
    /// Its rows, simulated.
    pub rows: &'a [RowOutcome],
    /// Name of the file.
    pub file: &'a str,
    /// Text of the job file, if there is one.
    pub jobs: Option<&'a str>,
    /// The command line.
    pub command: &'a str,
    /// The seed.
    pub seed: u64,
    /// The machine that ran the simulation.
    pub setup: &'a Setup,
}

/// Makes the report.
pub fn document(input: &ScenarioInput<'_>) -> Document {
    let (s, rows) = (input.scenario, input.rows);
    let over_rows = over_rows(s, rows);
    let m = s.machine;
    let mut sections = vec![figures(rows)];
    sections.extend(changes(input));
    sections.extend(over(&over_rows));
    sections.extend(stages(rows));
    sections.extend(cpus(rows));
    sections.push(machine(s));
    sections.extend(settings(s));
    sections.extend(fitted(s));
    if !s.beside.is_empty() {
        let mut beside = Section::new("beside", "Also published, but not figures of this disk", "");
        beside.blocks.extend(s.beside.iter().map(|text| Block::Note { text: text.clone() }));
        sections.push(beside);
    }
    sections.push(parts::environment(input.setup));
    sections.push(parts::reproduce(input.command, None, input.jobs.unwrap_or_default(), Some(input.file)));
    let cpus = m.cpus();
    Document {
        format: FORMAT,
        kind: Kind::Scenario,
        title: s.title.clone(),
        subtitle: format!(
            "simulated machine of {} \u{d7} {} cores \u{d7} {} threads = {cpus} CPUs \u{b7} {} \u{b7} published by: {}",
            m.sockets, m.cores, m.threads, input.setup.program, s.source
        ),
        verdict: verdict(rows),
        sections,
        data: json!({
            "file": input.file, "seed": input.seed, "rows": rows, "over_rows": over_rows,
        }),
    }
}

/// Predicted figures that were published, each with its error.
fn predicted(rows: &[RowOutcome]) -> impl Iterator<Item = (&RowOutcome, &Figure, f64)> {
    let all = rows.iter().flat_map(|r| r.figures.iter().map(move |f| (r, f)));
    all.filter(|(_, f)| !f.fitted).filter_map(|(r, f)| Some((r, f, f.error()?)))
}

fn verdict(rows: &[RowOutcome]) -> Verdict {
    let all = predicted(rows).count();
    let near = predicted(rows).filter(|(.., e)| e.abs() <= NEAR).count();
    let worst = predicted(rows).max_by(|a, b| a.2.abs().total_cmp(&b.2.abs()));
    let fitted = rows.iter().flat_map(|r| &r.figures).filter(|f| f.fitted).count();
    let (tone, word) = match (all, near) {
        (0, _) => (Tone::Neutral, "Simulated"),
        (all, near) if all == near => (Tone::Good, "As published"),
        (_, 0) => (Tone::Bad, "Not as published"),
        _ => (Tone::Caution, "Partly as published"),
    };
    let percent = Unit::Percent.text(100.0 * NEAR);
    let sentence = match worst {
        None => format!("none of the published figures is a prediction; {fitted} were used to choose constants."),
        Some((row, f, e)) => format!(
            "{near} of {all} predicted figures are within {percent} of what was published; the largest error is {} of \
             \u{2018}{}\u{2019}, by {}. {fitted} more were used to choose constants, and are not predictions.",
            f.name,
            row.name,
            Unit::Ratio.text(1.0 + e)
        ),
    };
    Verdict { tone, word: word.to_owned(), sentence, ..Verdict::default() }
}

/// A figure with its unit.
pub(super) fn cell(name: &str, value: impl Into<Option<f64>>) -> Cell {
    let (scale, unit) = match split_figure(name).map_or("", |(_, metric)| metric) {
        // In the unit in which it is published.
        "bw" => {
            let value = value.into();
            let text = value.map_or_else(|| "\u{2013}".to_owned(), |v| format!("{:.0}\u{a0}MB/s", v / 1e6));
            return Cell { text, value, ..Cell::default() };
        }
        m if m.ends_with("_us") => (1e3, Unit::Nanoseconds),
        "idle_pct" => (1.0, Unit::Percent),
        "tpm" => (1.0, Unit::Count),
        _ => (1.0, Unit::PerSecond),
    };
    Cell::number(value.into().map(|v| v * scale), unit)
}

/// The published figures beside the simulated ones.
fn figures(rows: &[RowOutcome]) -> Section {
    let lead = "Fitted figures were used to choose a constant of the scenario; predicted figures were not.";
    let mut section = Section::new("figures", "Published and simulated", lead);
    let tone = |e: f64| if e.abs() <= NEAR { Tone::Good } else { Tone::Bad };
    let points: Vec<IntervalRow> = predicted(rows)
        .map(|(r, f, e)| {
            let (label, mid) = (format!("{}: {}", r.name, f.name), 1.0 + e);
            IntervalRow { label, mid, low: mid, high: mid, tone: tone(e) }
        })
        .collect();
    if points.len() > 1 {
        let near = points.iter().filter(|p| (p.mid - 1.0).abs() <= NEAR).count();
        let summary = format!(
            "{near} of {} predicted figures within {} of the published ones.",
            points.len(),
            Unit::Percent.text(100.0 * NEAR)
        );
        let plot = Plot::Intervals(Intervals {
            axis: Axis::new("simulated against published", Unit::Ratio, ratio_scale(&points)),
            reference: 1.0,
            sides: ("simulated less".into(), "simulated more".into()),
            rows: points,
        });
        let title = "Prediction errors".into();
        section = section.with(Chart { id: "figures-chart".into(), title, summary, plot, table: None });
    }
    let mut table = Table::new("", &["row", "figure", "#published", "#simulated", "#error", "kind"]);
    for r in rows {
        for f in &r.figures {
            let (kind, tone) = match (f.error(), f.fitted) {
                (None, _) => ("not published", Tone::Neutral),
                (Some(_), true) => ("fitted", Tone::Neutral),
                (Some(e), false) if e.abs() <= NEAR => ("predicted, near", tone(e)),
                (Some(e), false) => ("predicted, off", tone(e)),
            };
            table.row(vec![
                Cell::text(&r.name),
                Cell::text(&f.name),
                cell(&f.name, f.published),
                cell(&f.name, f.simulated),
                Cell::number(f.error().map(|e| 1.0 + e), Unit::Ratio),
                Cell::text(kind).toned(tone),
            ]);
        }
    }
    section.with(table)
}

/// The changes from row to row, with reasons.
fn changes(input: &ScenarioInput<'_>) -> Option<Section> {
    let rows = input.rows;
    if rows.len() < 2 {
        return None;
    }
    let lead = "Reasons are derived from the time per stage in both rows.";
    let mut section = Section::new("changes", "What changes, and why", lead);
    for (i, row) in rows.iter().enumerate().skip(1) {
        let Some(base) = base(input.scenario, rows, i) else { continue };
        let caption = format!("\u{2018}{}\u{2019} against \u{2018}{}\u{2019}", row.name, base.name);
        let mut table = Table::new(caption, &["figure", "#published", "#simulated"]);
        for f in &row.figures {
            let Some(b) = base.figures.iter().find(|b| b.name == f.name) else { continue };
            let published = b.published.zip(f.published).map(|(b, f)| f / b);
            table.row(vec![
                Cell::text(&f.name),
                Cell::number(published, Unit::Ratio),
                Cell::number(f.simulated / b.simulated, Unit::Ratio),
            ]);
        }
        section = section.with(table);
        let reasons = why::reasons(base, row).into_iter().map(|reason| format!("Why: {reason}."));
        let none = row.no_effect.iter().map(|why| format!("Without effect: {why}."));
        section.blocks.extend(reasons.chain(none).map(|text| Block::Note { text }));
    }
    Some(section)
}

/// Changes that were published without their load.
fn over(all: &[OverRows]) -> Option<Section> {
    if all.is_empty() {
        return None;
    }
    let lead = "Changes that were published without their load, and the simulated range over all rows.";
    let heads = ["figure", "#published", "#simulated, least", "in", "#simulated, most", "in", "published is"];
    let mut table = Table::new("", &heads);
    for o in all {
        let (word, tone) = if o.is_within() { ("within", Tone::Good) } else { ("outside", Tone::Bad) };
        table.row(vec![
            Cell::text(&o.name),
            Cell::number(o.published, Unit::Ratio),
            Cell::number(o.least.ratio, Unit::Ratio),
            Cell::text(&o.least.row),
            Cell::number(o.most.ratio, Unit::Ratio),
            Cell::text(&o.most.row),
            Cell::text(word).toned(tone),
        ]);
    }
    Some(Section::new("over-rows", "Published without a load", lead).with(table))
}

/// Returns the row that row `i` is compared with: the one it names, or the first one. With `[over_rows]` it is only the one
/// it names.
pub fn base<'r>(scenario: &Scenario, rows: &'r [RowOutcome], i: usize) -> Option<&'r RowOutcome> {
    match &scenario.row[i].against {
        Some(name) => rows.iter().find(|r| r.name == *name),
        None => rows.first().filter(|_| i > 0 && scenario.over_rows.is_empty()),
    }
}

/// Where the time goes, by row and job.
fn stages(rows: &[RowOutcome]) -> Option<Section> {
    const PARTS: [&str; 5] = ["tag wait", "scheduler", "device", "CPU wait", "rest"];
    let all: Vec<(String, [f64; 5])> = rows
        .iter()
        .flat_map(|r| {
            r.stages.iter().map(|s| {
                let us = [s.tag_wait_us, s.scheduler_us, s.device_us, s.cpu_wait_us, s.rest_us];
                (format!("{}: {}", r.name, s.job), us.map(|us| us * 1e3))
            })
        })
        .collect();
    if all.is_empty() {
        return None;
    }
    let plot = Plot::Bars(Bars {
        axis: Axis::new("mean time of an I/O", Unit::Nanoseconds, Scale::Linear),
        parts: PARTS.map(str::to_owned).to_vec(),
        stacked: true,
        rows: all.iter().map(|(label, ns)| BarRow { label: label.clone(), values: ns.map(Some).to_vec() }).collect(),
    });
    let columns = ["row and job", "#tag wait", "#scheduler", "#device", "#CPU wait", "#rest", "#all"];
    let mut table = Table::new("Mean time of an I/O", &columns);
    for (label, ns) in &all {
        let sum = ns.iter().sum::<f64>();
        let figures = ns.iter().chain([&sum]).map(|ns| Cell::number(*ns, Unit::Nanoseconds));
        table.row([Cell::text(label)].into_iter().chain(figures).collect());
    }
    let slowest = all.iter().max_by(|a, b| a.1.iter().sum::<f64>().total_cmp(&b.1.iter().sum()))?;
    let summary = format!("Longest: {}, {}.", slowest.0, Unit::Nanoseconds.text(slowest.1.iter().sum()));
    let chart =
        Chart { id: "stages-chart".into(), title: "Where the time goes".into(), summary, plot, table: Some(table) };
    let lead = "Waiting for a tag; with a tag, until the device has the I/O; at the device; completed, while the \
                thread waits for a CPU; all other time until the program has the result.";
    Some(Section::new("stages", "Where the time goes", lead).with(chart))
}

/// How the CPUs spent their time.
fn cpus(rows: &[RowOutcome]) -> Option<Section> {
    if rows.iter().all(|r| r.busy == 0.0) {
        return None;
    }
    let mut table = Table::new("", &["row", "#busy", "#waiting for locks", "#I/Os simulated"]);
    for r in rows {
        table.row(vec![
            Cell::text(&r.name),
            Cell::number(100.0 * r.busy, Unit::Percent),
            Cell::number(100.0 * r.spin, Unit::Percent),
            Cell::number(r.ios as f64, Unit::Count),
        ]);
    }
    Some(Section::new("cpus", "CPUs", "Shares of the time of all CPUs.").with(table))
}

/// The disk of a machine.
pub(super) fn machine(s: &Scenario) -> Section {
    let d = &s.disk;
    let mut table = Table::new("", &["what", "value"]);
    let mut add = |what: &str, value: String| table.row(vec![Cell::text(what), Cell::text(value)]);
    let attach = format!("{:?}", d.attach).to_lowercase();
    add("disk", format!("{} \u{d7} {} GiB, {attach}", d.luns, d.size_gib));
    let ns = |us: f64| Unit::Nanoseconds.text(us * 1e3);
    match &d.hdd {
        Some(h) => {
            let (seek, mb) = (ns(h.seek_avg_us), |mb: f64| Unit::BytesPerSecond.text(mb * 1e6));
            let cache = if h.write_cache { "with" } else { "without" };
            add("hard disk", format!("{} rpm, average seek {seek}, {} commands sorted", h.rpm, h.ncq));
            add("sustained rate", format!("{} outermost, {} innermost", mb(h.outer_mb), mb(h.inner_mb)));
            add("buffer", format!("{}, {cache} write cache", Unit::Bytes.text(h.cache_mb as f64 * 1e6)));
        }
        None => add(
            "in service",
            format!(
                "read {}, write {}, \u{b1} {} %, {} at once",
                ns(d.read_us),
                ns(d.write_us),
                d.jitter_pct,
                d.parallel
            ),
        ),
    }
    if let Some(a) = &d.array {
        add("cache", format!("{} % of the reads hit; a miss takes {} longer", a.read_hit_pct, ns(a.miss_us)));
    }
    let cap = |value: f64, unit: Unit| if value > 0.0 { unit.text(value) } else { "none".to_owned() };
    add("cap of I/Os per second", cap(d.iops as f64, Unit::PerSecond));
    add("cap of bandwidth", cap(d.bw_mb * 1e6, Unit::BytesPerSecond));
    add("queue_depth", d.queue_depth.to_string());
    if let Some(depth) = d.lun_queue_depth {
        add("LUN queue depth", depth.to_string());
    }
    Section::new("machine", "The simulated disk", "").with(table)
}

/// Settings of all rows, and of each row.
fn settings(s: &Scenario) -> Option<Section> {
    let mut table = Table::new("", &["row", "setting", "value"]);
    let mut add = |row: &str, name: &str, value: String| {
        table.row(vec![Cell::text(row), Cell::text(name), Cell::text(value)]);
    };
    s.settings.iter().for_each(|(name, value)| add("all", name, value.text()));
    for Row { name: row, set, job, vms, iothreads, .. } in &s.row {
        set.iter().chain(job).for_each(|(name, value)| add(row, name, value.text()));
        for (name, n) in [("vms", vms), ("iothreads", iothreads)] {
            if let Some(n) = n {
                add(row, name, n.to_string());
            }
        }
    }
    (!table.rows.is_empty()).then(|| Section::new("settings", "Settings", "").with(table))
}

fn fitted(s: &Scenario) -> Option<Section> {
    if s.fitted.is_empty() {
        return None;
    }
    let mut table = Table::new("", &["constant", "#value", "#plausible from", "#to", "chosen by", "what it is"]);
    for f in &s.fitted {
        let plain = |v: f64| Cell { text: v.to_string(), value: Some(v), ..Cell::default() };
        table.row(vec![
            Cell::text(&f.constant),
            s.constant(&f.constant).map_or_else(Cell::default, plain),
            plain(f.range[0]),
            plain(f.range[1]),
            Cell::text(format!("{} of \u{2018}{}\u{2019}", f.figure, f.row)),
            Cell::text(&f.meaning),
        ]);
    }
    let lead = "Constants that were chosen to match a published figure.";
    Some(Section::new("fitted", "Fitted constants", lead).with(table))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_has_the_unit_of_its_metric() {
        let shown = |name: &str, value: f64| {
            let cell = cell(name, value);
            (cell.text, cell.value.unwrap())
        };
        assert_eq!(shown("cpu.idle_pct", 84.0), ("84.0%".to_owned(), 84.0), "a share of time is no rate");
        assert_eq!(shown("a.iops", 1500.0), ("1.50k".to_owned(), 1500.0));
        assert_eq!(shown("a.lat_us", 20.0), ("20.0\u{a0}\u{b5}s".to_owned(), 20_000.0));
        assert_eq!(shown("a.bw", 763e6), ("763\u{a0}MB/s".to_owned(), 763e6));
        assert_eq!(shown("users10.tpm", 502_275.0), ("502\u{202f}275".to_owned(), 502_275.0));
    }
}
