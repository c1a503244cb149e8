// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report of a tuning.
//!
//! Guarantees: the report depends only on the results file. The sentence at its top is that of the text report. Results of
//! screening are kept apart from confirmed ones, and are marked as no claim. Needs from callers: a file with a result. Does
//! not: decide anything.

use std::collections::BTreeMap;

use serde_json::json;

use super::of_run::subtitle;
use super::parts;
use crate::stage::StageFacts;
use crate::stats::descriptive;
use crate::tune::bench::Length;
use crate::tune::confirm::{Duel, LimitResult};
use crate::tune::forms::Form;
use crate::tune::guest_forms::render;
use crate::tune::journal::{RecordedRuns, RunLine, TunePlan};
use crate::tune::objective::Quantity;
use crate::tune::outcome::{TuneResult, TuneVerdict};
use crate::tune::point::{Knob, Point};
use crate::tune::{explain, report};
use crate::verdict::Verdict as Word;
use ::report::chart::{Axis, IntervalRow, Intervals, Lines, Plot, Point as At, Scale, Series, Style, ratio_scale};
use ::report::document::{Block, Caveat, Cell, Chart, Document, FORMAT, Kind, Section, Table, Tone, Verdict};
use ::report::unit::Unit;

/// Makes the report. `file` names the results.
///
/// # Errors
/// The tuning has not completed.
pub fn document(past: &RecordedRuns, file: Option<&str>) -> Result<Document, String> {
    let (plan, header) = (&past.header.plan, &past.header);
    let Some(r) = &past.result else {
        let name = file.unwrap_or("the results");
        return Err(format!("{name}: the tuning has not ended; resume with: {} --resume {name}", header.command));
    };
    let shown = r.against_default.as_ref();
    let sides = shown.map_or_else(Vec::new, |d| vec![("default", &d.a_totals), (tried(r), &d.b_totals)]);
    let facts: Vec<(String, &StageFacts)> =
        sides.into_iter().filter_map(|(name, t)| Some((name.to_owned(), t.stages.as_ref()?))).collect();
    let mut sections = vec![choice(plan, r)];
    sections.extend(confirmed(plan, r));
    sections.extend(limits(r));
    sections.extend(shown.filter(|_| !r.winner.is_empty()).map(why));
    sections.extend(search(past));
    sections.extend(one_by_one(past));
    if let Some(duel) = shown {
        let bins = parts::pooled(duel.b_histograms.iter(), &[]);
        sections.extend(parts::percentiles(&[(tried(r).to_owned(), bins)]));
    }
    sections.extend(parts::transactions(&facts));
    sections.extend(parts::stages(&facts));
    sections.extend(parts::balance(&facts));
    if facts.iter().any(|(_, f)| f.times.n > 0) {
        sections.push(parts::little(&facts));
    }
    sections.extend(forms(plan, r));
    sections.push(parts::environment(&header.setup));
    sections.push(parts::reproduce(&header.command, Some(plan.seed), &plan.job, file));
    Ok(Document {
        format: FORMAT,
        kind: Kind::Tuning,
        title: format!("Tuning of {} on {}", plan.goal.metric, plan.target),
        subtitle: subtitle(&header.setup, header.started_unix_ms),
        verdict: verdict(plan, r),
        sections,
        data: json!({ "header": header, "runs": past.runs, "result": r }),
    })
}

/// The name of the point that charts compare with the default.
fn tried(r: &TuneResult) -> &'static str {
    if r.winner.is_empty() { "most promising" } else { "recommended" }
}

const fn unit(q: Quantity) -> Unit {
    match q {
        Quantity::Iops | Quantity::Transactions => Unit::PerSecond,
        Quantity::TransactionsPerMinute => Unit::Count,
        Quantity::Bandwidth => Unit::BytesPerSecond,
        Quantity::LatencyMean
        | Quantity::Percentile(_)
        | Quantity::CpuPerIo
        | Quantity::TransactionMean
        | Quantity::TransactionP99
        | Quantity::CommitMean => Unit::Nanoseconds,
    }
}

fn verdict(plan: &TunePlan, r: &TuneResult) -> Verdict {
    let (tone, word) = match r.verdict {
        TuneVerdict::Better => (Tone::Good, "Better settings"),
        TuneVerdict::LimitKept => (Tone::Good, "Limits kept"),
        TuneVerdict::NoBetter => (Tone::Neutral, "Nothing better"),
        TuneVerdict::NotWorth => (Tone::Neutral, "Not worth it"),
        TuneVerdict::CannotKeep => (Tone::Bad, "Cannot be kept"),
        TuneVerdict::Errors => (Tone::Bad, "Errors"),
    };
    let mut warnings: Vec<Caveat> =
        r.findings.iter().map(|f| Caveat { text: f.to_string(), advice: f.advice() }).collect();
    if r.cut_short {
        let (text, advice) = ("the search used up its budget", "a longer --budget tries more settings");
        warnings.push(Caveat { text: text.into(), advice: advice.into() });
    }
    Verdict {
        tone,
        word: word.to_owned(),
        sentence: format!("{}.", report::headline(plan, r)),
        warnings,
        ..Verdict::default()
    }
}

/// Every knob with its default and its recommended value.
fn choice(plan: &TunePlan, r: &TuneResult) -> Section {
    let lead = format!(
        "{} settings were tried in {} runs, {} of runs. From run to run {} varies by {} with the default settings.",
        r.points,
        r.runs,
        Unit::Seconds.text(r.seconds),
        plan.goal.metric,
        Unit::Percent.text(100.0 * r.noise)
    );
    let mut table = Table::new("", &["setting", "default", tried(r), "values that were searched"]);
    for knob in &plan.knobs {
        let value = r.winner.get(&knob.name);
        table.row(vec![
            Cell::text(&knob.name).strong(value.is_some()),
            Cell::text(&knob.default),
            Cell::text(value.unwrap_or(&knob.default)).strong(value.is_some()),
            Cell::text(knob.values.join(", ")),
        ]);
    }
    let mut notes = Vec::new();
    if !r.unneeded.is_empty() {
        notes.push(format!("Not needed (no worse without them): {}.", r.unneeded.join(", ")));
    }
    if let Some((_, why)) = r.unmodelled.first() {
        let names: Vec<&str> = r.unmodelled.iter().map(|(point, _)| point.as_str()).collect();
        notes.push(format!("Cannot tell: {}: {why}.", names.join("; ")));
    }
    let left_out = report::without_effect(plan);
    notes.extend(left_out.into_iter().map(|(names, why)| format!("Not searched: {names}: {why}.")));
    table.note = notes.join(" ");
    Section::new("choice", "What to set", lead).with(table)
}

fn better(duel: &Duel) -> (Tone, &'static str) {
    match duel.verdict {
        Word::BIsFaster => (Tone::Good, "better"),
        Word::BIsSlower => (Tone::Bad, "worse"),
        Word::Errors => (Tone::Bad, "I/Os failed"),
        Word::NotModelled => (Tone::Caution, "cannot tell"),
        _ => (Tone::Neutral, "no difference shown"),
    }
}

/// The confirmations, and what each was against.
fn confirmed(plan: &TunePlan, r: &TuneResult) -> Option<Section> {
    let duels: Vec<(String, &Duel)> = r
        .against_default
        .iter()
        .map(|d| ("the default".to_owned(), d))
        .chain(r.against_rules.iter().map(|d| (d.against.clone(), d)))
        .collect();
    if duels.is_empty() {
        return None;
    }
    let u = unit(plan.goal.metric.quantity);
    let lead = "New runs in pairs, ABBA or BAAB; these figures contain no run of the search. Intervals are at 95 %.";
    let mut section = Section::new("confirmed", "What was confirmed", lead);
    section.blocks.extend(confirmed_chart(plan, &duels).map(Block::from));
    let heads = [
        "against",
        "its settings",
        "tried",
        "#its median",
        "#median",
        "#change",
        "#95 % interval",
        "#pairs",
        "verdict",
    ];
    let mut table = Table::new("", &heads);
    for (name, d) in &duels {
        let interval = d.ratio.map_or_else(
            || "\u{2013}".to_owned(),
            |x| format!("[{}, {}]", Unit::Ratio.text(x.low), Unit::Ratio.text(x.high)),
        );
        let (tone, word) = better(d);
        table.row(vec![
            Cell::text(name),
            Cell::text(d.a.to_string()),
            Cell::text(d.b.to_string()),
            Cell::number(d.a_median, u),
            Cell::number(d.b_median, u),
            Cell::number(d.ratio.map(|x| x.ratio), Unit::Ratio),
            Cell::text(interval),
            Cell::number(f64::from(d.pairs), Unit::Count),
            Cell::text(word).toned(tone),
        ]);
    }
    let left: Vec<String> =
        r.rules_left_out.iter().map(|(rule, why)| format!("\u{2018}{rule}\u{2019}: {why}")).collect();
    if !left.is_empty() {
        table.note = format!("Not run: {}.", left.join("; "));
    }
    Some(section.with(table))
}

/// Changes of the goal, on an axis around "no change".
fn confirmed_chart(plan: &TunePlan, duels: &[(String, &Duel)]) -> Option<Chart> {
    let rows: Vec<IntervalRow> = duels
        .iter()
        .filter_map(|(name, d)| {
            let ratio = d.ratio?;
            let label = format!("against {name}");
            Some(IntervalRow { label, mid: ratio.ratio, low: ratio.low, high: ratio.high, tone: better(d).0 })
        })
        .collect();
    if rows.is_empty() {
        return None;
    }
    let told = rows.iter().take(3).map(|r| format!("{} {}", r.label, Unit::Ratio.text(r.mid)));
    let summary = told.collect::<Vec<_>>().join(", ") + ".";
    let plot = Plot::Intervals(Intervals {
        axis: Axis::new(
            &format!("change of {}, with 95 % interval", plan.goal.metric),
            Unit::Ratio,
            ratio_scale(&rows),
        ),
        reference: 1.0,
        sides: ("less".into(), "more".into()),
        rows,
    });
    let title = format!("Change of {}", plan.goal.metric);
    Some(Chart { id: "confirmed-chart".into(), title, summary, plot, table: None })
}

/// The results of the limits.
fn limits(r: &TuneResult) -> Option<Section> {
    let duel = r.impossible.as_ref().map(|i| &i.duel).or(r.against_default.as_ref()).filter(|d| !d.keeps.is_empty())?;
    let mut table = Table::new("", &["limit", "figure", "#of the default\u{2019}s", "kept"]);
    let word = |k: &LimitResult| match (k.kept, k.surely) {
        (true, true) => ("kept", Tone::Good),
        (true, false) => ("limit kept, but not proven: the interval crosses it", Tone::Caution),
        (false, _) => ("not kept", Tone::Bad),
    };
    for k in &duel.keeps {
        let (word, tone) = word(k);
        table.row(vec![
            Cell::text(&k.text),
            Cell::text(&k.shown),
            Cell::number(k.ratio.map(|x| 100.0 * x.ratio), Unit::Percent),
            Cell::text(word).toned(tone),
        ]);
    }
    let lead = match &r.impossible {
        Some(i) => format!("No setting keeps {}. These are the figures of the nearest setting, {}.", i.text, i.best),
        None => format!("With {}.", duel.b),
    };
    Some(Section::new("limits", "Limits", lead).with(table))
}

fn why(duel: &Duel) -> Section {
    let lead = "Mean times per stage in the confirmation runs, default first.";
    let mut section = Section::new("why", "Why", lead);
    section.blocks.extend(explain::sentences(duel).into_iter().map(|text| Block::Note { text }));
    section
}

/// The value of the goal in a run of the jobs.
fn figure(run: &RunLine, plan: &TunePlan) -> Option<f64> {
    if run.ask.load.is_some() {
        return None;
    }
    run.tried.good()?.get(&plan.goal.metric)
}

/// Every run, in order.
fn search(past: &RecordedRuns) -> Option<Section> {
    let plan = &past.header.plan;
    let metric = &plan.goal.metric;
    let u = unit(metric.quantity);
    let mut table = Table::new("Every run", &["#run", "for", "settings", "#seconds", "#figure"]);
    let (mut default, mut others) = (Vec::new(), Vec::new());
    for run in &past.runs {
        let Some(value) = figure(run, plan) else { continue };
        let at = f64::from(run.index) + 1.0;
        if run.ask.point.is_empty() { &mut default } else { &mut others }.push(At::at(at, value));
        table.row(vec![
            Cell::number(at, Unit::Count),
            Cell::text(&run.phase),
            Cell::text(run.ask.point.to_string()),
            Cell::number(run.tried.good().map(|t| t.seconds), Unit::Seconds),
            Cell::number(value, u),
        ]);
    }
    if default.len() + others.len() < 3 {
        return None;
    }
    let best = |points: &[At]| {
        let higher = metric.quantity.higher_is_better();
        points.iter().map(|p| p.y).reduce(|a, b| if (a > b) == higher { a } else { b })
    };
    let told = [("default", &default), ("other settings", &others)]
        .into_iter()
        .filter_map(|(name, points)| Some(format!("{name}: at best {}", u.text(best(points)?))));
    let summary = told.collect::<Vec<_>>().join("; ") + ".";
    let series = |name: &str, colour, points| Series { name: name.into(), colour, style: Style::Dots, points };
    let plot = Plot::Lines(Lines {
        x: Axis::new("run, in the order they were made", Unit::Count, Scale::Linear),
        y: Axis::new(&metric.to_string(), u, Scale::Near),
        series: [series("default", 0, default), series("other settings", 1, others)]
            .into_iter()
            .filter(|s| !s.points.is_empty())
            .collect(),
    });
    let title = format!("{metric} of every run");
    let chart = Chart { id: "search-chart".into(), title, summary, plot, table: Some(table) };
    let lead = "Short runs find candidates, long runs confirm them. The best of many short runs is partly chance and \
                proves nothing.";
    Some(Section::new("search", "The search, run by run", lead).with(chart))
}

/// The effect of single knobs while screening: medians of short runs, and lines where the values are numbers.
fn one_by_one(past: &RecordedRuns) -> Option<Section> {
    let plan = &past.header.plan;
    let u = unit(plan.goal.metric.quantity);
    let mut short: BTreeMap<&Point, Vec<f64>> = BTreeMap::new();
    for run in past.runs.iter().filter(|r| r.ask.length == Length::Short) {
        if let Some(value) = figure(run, plan) {
            short.entry(&run.ask.point).or_default().push(value);
        }
    }
    let base = short.get(&Point::default()).and_then(|v| descriptive::median(v))?;
    let lead = "One setting at a time, the others at their defaults: medians of short runs. They guide the search and \
                prove nothing.";
    let mut section = Section::new("knobs", "What single settings did", lead);
    let mut table = Table::new("", &["setting", "value", "#runs", "#median", "#against the default"]);
    for (number, knob) in plan.knobs.iter().enumerate() {
        let mut points: Vec<(&str, usize, f64)> = knob
            .values
            .iter()
            .filter(|v| **v != knob.default)
            .filter_map(|v| {
                let runs = short.get(&Point::default().with(knob, v))?;
                Some((v.as_str(), runs.len(), descriptive::median(runs)?))
            })
            .collect();
        for (value, runs, median) in &points {
            table.row(vec![
                Cell::text(&knob.name),
                Cell::text(*value),
                Cell::number(*runs as f64, Unit::Count),
                Cell::number(*median, u),
                Cell::number(median / base, Unit::Ratio),
            ]);
        }
        points.push((&knob.default, 1, base));
        section.blocks.extend(knob_chart(number, knob, &points, plan).map(Block::from));
    }
    if table.rows.is_empty() {
        return None;
    }
    Some(section.with(table))
}

/// The goal against a knob with numeric values, if there are three points or more.
fn knob_chart(number: usize, knob: &Knob, points: &[(&str, usize, f64)], plan: &TunePlan) -> Option<Chart> {
    let u = unit(plan.goal.metric.quantity);
    let mut points: Vec<At> = points
        .iter()
        .map(|(value, _, y)| Some(At::at(value.parse().ok().filter(|x| *x > 0.0)?, *y)))
        .collect::<Option<_>>()?;
    if points.len() < 3 {
        return None;
    }
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    let (low, high) = points.iter().fold((f64::INFINITY, 0f64), |(l, h), p| (l.min(p.y), h.max(p.y)));
    let summary = format!("{} to {} over {} values of {}.", u.text(low), u.text(high), points.len(), knob.name);
    let name = plan.goal.metric.to_string();
    let plot = Plot::Lines(Lines {
        x: Axis::new(&knob.name, Unit::Count, Scale::Log2),
        y: Axis::new(&name, u, Scale::Linear),
        series: vec![Series { name: name.clone(), colour: 0, style: Style::Marked, points }],
    });
    let title = format!("{name} against {}", knob.name);
    Some(Chart { id: format!("knob-{number}"), title, summary, plot, table: None })
}

/// The recommendation in every configuration form.
fn forms(plan: &TunePlan, r: &TuneResult) -> Option<Section> {
    if r.winner.is_empty() {
        return None;
    }
    let lead = "The same settings in the format of each system; a comment names those that a format lacks.";
    let mut section = Section::new("forms", "How to set it", lead);
    for (name, form) in Form::ALL {
        let text = render(form, &r.winner, plan);
        section.blocks.push(Block::Code { caption: name.to_owned(), text });
    }
    Some(section)
}
