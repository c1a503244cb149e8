// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report of a what-if: the machine as it is and as changed, with intervals over its unknown constants.
//!
//! Guarantees: a figure without an answer is shown as such, with the reason, and never as a change. If the model does not
//! describe the machine, no change is shown. Needs from callers: answers of the plan that is passed with them. Does not:
//! simulate or judge.

use serde_json::json;

use super::of_scenario::cell;
use super::parts;
use crate::setup::Setup;
use report::chart::{Axis, IntervalRow, Intervals, Plot, Scale, ratio_scale};
use report::document::{Block, Cell, Chart, Document, FORMAT, Kind, Section, Table, Tone, Verdict};
use report::unit::Unit;
use sim::machine::costs::Shape;
use sim::whatif::judge::{Answer, Answers, BaselineFigure, FigureAnswer, Interval, Verdict as Word};

/// The data of a what-if.
pub struct WhatIfInput<'a> {
    /// The answers.
    pub answers: &'a Answers,
    /// Name of the machine file, and its text.
    pub machine: (&'a str, &'a str),
    /// The machine's CPUs.
    pub shape: Shape,
    /// Constants that are known only as ranges.
    pub unknown: &'a [String],
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
pub fn document(input: &WhatIfInput<'_>) -> Document {
    let a = input.answers;
    let (file, _) = input.machine;
    let Shape { sockets, cores, threads } = input.shape;
    let mut sections: Vec<Section> =
        a.answers.iter().enumerate().map(|(i, answer)| question(i, answer, a.describes)).collect();
    sections.extend(as_it_is(a));
    sections.extend(unknown(input));
    sections.push(parts::environment(input.setup));
    let mut reproduce = parts::reproduce(input.command, None, input.jobs.unwrap_or_default(), None);
    reproduce.blocks.push(parts::machine_file(input.machine));
    sections.push(reproduce);
    Document {
        format: FORMAT,
        kind: Kind::WhatIf,
        title: format!("What-if questions about {file}"),
        subtitle: format!(
            "simulated machine of {sockets} \u{d7} {cores} cores \u{d7} {threads} threads = {} CPUs \u{b7} {}",
            input.shape.cpus(),
            input.setup.program
        ),
        verdict: verdict(a),
        sections,
        data: json!({ "file": file, "seed": input.seed, "unknown": input.unknown, "answers": a }),
    }
}

fn word(w: Word) -> (Tone, &'static str) {
    match w {
        Word::Better => (Tone::Good, "better"),
        Word::Worse => (Tone::Bad, "worse"),
        Word::NoEffect => (Tone::Neutral, "no effect"),
        Word::CannotTell => (Tone::Caution, "cannot tell"),
    }
}

/// Returns the verdict on a question if all of its figures that change agree on it, else `None`.
fn of_question(answer: &Answer) -> Option<Word> {
    if !answer.cannot.is_empty() || answer.figures.is_empty() {
        return Some(Word::CannotTell);
    }
    let mut changed = answer.figures.iter().map(|f| f.verdict).filter(|w| *w != Word::NoEffect);
    let Some(first) = changed.next() else { return Some(Word::NoEffect) };
    changed.all(|w| w == first).then_some(first)
}

fn verdict(a: &Answers) -> Verdict {
    let told = |answer: &Answer| {
        let said = |f: &FigureAnswer| format!("{} {}", f.figure, f.text);
        let changed: Vec<String> = answer.figures.iter().filter(|f| f.verdict != Word::NoEffect).map(said).collect();
        let what = match (answer.cannot.first(), answer.figures.first()) {
            (Some(why), _) => format!("cannot tell: {why}"),
            (None, Some(f)) if changed.is_empty() => said(f),
            (None, Some(_)) => changed.join(", "),
            (None, None) => "nothing was simulated".to_owned(),
        };
        format!("{}: {what}", answer.what_if)
    };
    let members = format!("{} possible machines, {} of which are used", a.members, used(a));
    let (tone, head) = match (&a.answers[..], a.describes) {
        (_, Some(false)) => (Tone::Caution, "Cannot tell".to_owned()),
        ([one], _) => match of_question(one).map(word) {
            Some((tone, word)) => (tone, word[..1].to_uppercase() + &word[1..]),
            None => (Tone::Neutral, "It depends".to_owned()),
        },
        ([], _) => (Tone::Neutral, "As it is".to_owned()),
        (all, _) if all.iter().all(|q| of_question(q) == Some(Word::CannotTell)) => {
            (Tone::Caution, "Cannot tell".to_owned())
        }
        (all, _) => (Tone::Neutral, format!("{} questions", all.len())),
    };
    let answers: Vec<String> = a.answers.iter().map(told).collect();
    let (sentence, points) = match answers.len() {
        1 => (format!("{}. {members}.", answers[0]), Vec::new()),
        _ => (format!("{members}."), answers),
    };
    Verdict { tone, word: head, sentence, points, ..Verdict::default() }
}

fn used(a: &Answers) -> usize {
    if a.describes == Some(false) { 0 } else { a.kept }
}

/// One question: the figures before and after, the change with its interval, and the reason.
fn question(number: usize, answer: &Answer, describes: Option<bool>) -> Section {
    let mut section = Section::new(&format!("question-{number}"), &format!("What if {}", answer.what_if), "");
    let shown: &[FigureAnswer] = if describes == Some(false) { &[] } else { &answer.figures };
    if !shown.is_empty() {
        section.lead = "Median of the possible machines that are used, with minimum and maximum.".into();
        section.blocks.extend(changes(number, shown).map(Block::from));
        let heads = ["figure", "#as it is", "#as it would be", "#least", "#most", "#change", "between", "answer"];
        let mut table = Table::new("", &heads);
        for f in shown {
            let (tone, word) = word(f.verdict);
            let between =
                format!("{} and {}", Unit::Ratio.text(1.0 + f.change.low), Unit::Ratio.text(1.0 + f.change.high));
            let change = match f.verdict {
                // Its median could be mistaken for an answer.
                Word::CannotTell => Cell::text("\u{2013}"),
                _ => Cell::number(1.0 + f.change.median, Unit::Ratio),
            };
            table.row(vec![
                Cell::text(&f.figure),
                cell(&f.figure, f.base.median),
                cell(&f.figure, f.changed.median),
                cell(&f.figure, f.changed.low),
                cell(&f.figure, f.changed.high),
                change,
                Cell::text(between),
                Cell::text(word).toned(tone),
            ]);
        }
        section.blocks.push(table.into());
        let decides = shown.iter().filter_map(|f| Some((f, f.decides.as_ref()?)));
        section.blocks.extend(decides.map(|(f, constant)| Block::Note {
            text: format!("{}: it depends on {constant}, which is not known well enough.", f.figure),
        }));
    }
    let notes = answer.cannot.iter().map(|c| format!("Cannot tell: {c}."));
    let notes = notes.chain(answer.no_effect.iter().map(|t| format!("{t}.")));
    let reasons = answer.reasons.iter().filter(|_| shown.iter().any(|f| f.verdict != Word::NoEffect));
    section.blocks.extend(notes.chain(reasons.map(|r| format!("Why: {r}."))).map(|text| Block::Note { text }));
    section
}

/// Changes, on an axis around "no change". Figures without an answer are left out, because a dot could be mistaken for one.
fn changes(number: usize, figures: &[FigureAnswer]) -> Option<Chart> {
    let rows: Vec<IntervalRow> = figures
        .iter()
        .filter(|f| f.verdict != Word::CannotTell)
        .filter_map(|f| {
            row(&f.figure, f.change.low + 1.0, f.change.median + 1.0, f.change.high + 1.0, word(f.verdict).0)
        })
        .collect();
    if rows.is_empty() {
        return None;
    }
    let summary = figures.iter().map(|f| format!("{} {}", f.figure, f.text)).collect::<Vec<_>>().join("; ") + ".";
    let plot = Plot::Intervals(Intervals {
        axis: Axis::new("change, range over the simulated machines", Unit::Ratio, ratio_scale(&rows)),
        reference: 1.0,
        sides: ("less".into(), "more".into()),
        rows,
    });
    Some(Chart { id: format!("question-{number}-chart"), title: "Change".into(), summary, plot, table: None })
}

/// A row in a chart of ratios; `None` if a value has no place on the axis.
fn row(label: &str, low: f64, mid: f64, high: f64, tone: Tone) -> Option<IntervalRow> {
    let is_shown = [low, mid, high].iter().all(|v| v.is_finite() && *v > 0.0);
    is_shown.then(|| IntervalRow { label: label.to_owned(), mid, low, high, tone })
}

/// The machine as it is, beside the measured figures.
fn as_it_is(a: &Answers) -> Option<Section> {
    if a.as_it_is.is_empty() {
        return None;
    }
    let (members, kept) = (a.members, a.kept);
    let lead = match a.describes {
        Some(true) => format!("{kept} of {members} possible machines match the measurement; only these are used."),
        Some(false) => format!(
            "{kept} of {members} possible machines match the measurement: the model does not describe this machine."
        ),
        None => format!("These jobs were not measured, so all {members} possible machines are used."),
    };
    let mut section = Section::new("as-it-is", "As it is", lead);
    let of = |f: &BaselineFigure| -> Option<IntervalRow> {
        let (m, Interval { low, median, high }) = (f.measured?, f.simulated);
        let tone = if a.describes == Some(true) { Tone::Good } else { Tone::Bad };
        row(&f.figure, low / m, median / m, high / m, tone)
    };
    let rows: Vec<IntervalRow> = a.as_it_is.iter().filter_map(of).collect();
    if !rows.is_empty() {
        let told = rows.iter().map(|r| format!("{} {}", r.label, Unit::Ratio.text(r.mid)));
        let summary = told.collect::<Vec<_>>().join(", ") + ".";
        let scale: Scale = ratio_scale(&rows);
        let plot = Plot::Intervals(Intervals {
            axis: Axis::new("simulated against measured", Unit::Ratio, scale),
            reference: 1.0,
            sides: ("too low".into(), "too high".into()),
            rows,
        });
        let title = "Simulated against measured".to_owned();
        section = section.with(Chart { id: "as-it-is-chart".into(), title, summary, plot, table: None });
    }
    let mut table = Table::new("", &["figure", "#measured", "#simulated", "#error", "#least", "#most"]);
    for f in &a.as_it_is {
        table.row(vec![
            Cell::text(&f.figure),
            cell(&f.figure, f.measured),
            cell(&f.figure, f.simulated.median),
            Cell::number(f.error().map(|e| 1.0 + e), Unit::Ratio),
            cell(&f.figure, f.simulated.low),
            cell(&f.figure, f.simulated.high),
        ]);
    }
    Some(section.with(table))
}

fn unknown(input: &WhatIfInput<'_>) -> Option<Section> {
    if input.unknown.is_empty() {
        return None;
    }
    let lead = "Each possible machine has a random value of these constants within their known range; the machine \
                file has the other constants.";
    let mut section = Section::new("unknown", "Uncertain constants", lead);
    section.blocks.push(Block::Note { text: input.unknown.join(", ") });
    Some(section)
}

#[cfg(test)]
mod tests {
    use super::*;
    use report::page;

    fn interval(low: f64, median: f64, high: f64) -> Interval {
        Interval { low, median, high }
    }

    fn figure(name: &str, change: Interval, verdict: Word, text: &str) -> FigureAnswer {
        FigureAnswer {
            figure: name.into(),
            measured: Some(1000.0),
            base: interval(900.0, 1000.0, 1100.0),
            changed: interval(1100.0, 1200.0, 1300.0),
            change,
            verdict,
            text: text.into(),
            decides: (verdict == Word::CannotTell).then(|| "disk.parallel".to_owned()),
        }
    }

    fn answer(what_if: &str, figures: Vec<FigureAnswer>, cannot: &[&str]) -> Answer {
        let cannot = cannot.iter().map(|c| (*c).to_owned()).collect();
        Answer { what_if: what_if.into(), figures, reasons: vec!["it waits".into()], cannot, no_effect: Vec::new() }
    }

    fn report(answers: Vec<Answer>, describes: Option<bool>) -> Document {
        let as_it_is = vec![BaselineFigure {
            figure: "db.iops".into(),
            measured: Some(1000.0),
            simulated: interval(900.0, 1000.0, 1100.0),
        }];
        let answers = Answers { members: 16, kept: 12, describes, as_it_is, answers };
        document(&WhatIfInput {
            answers: &answers,
            machine: ("m.toml", "[machine]\n"),
            shape: Shape { sockets: 1, cores: 2, threads: 1 },
            unknown: &["disk.parallel".into()],
            jobs: Some("[db]\n"),
            command: "mqblk sim m.toml",
            seed: 0,
            setup: &Setup::default(),
        })
    }

    #[test]
    fn what_cannot_be_told_is_no_change() {
        let faster = figure("db.iops", interval(0.1, 0.2, 0.3), Word::Better, "better by 20.0 % [10.0, 30.0]");
        let unsure =
            figure("db.iops", interval(-0.5, 0.1, 0.9), Word::CannotTell, "cannot tell: between -50 % and +90 %");
        let d = report(
            vec![
                answer("disk.read_us=80", vec![faster.clone()], &[]),
                answer("job.iodepth=16", vec![unsure], &[]),
                answer("iothreads=4", Vec::new(), &["iothreads: there are no virtual machines"]),
            ],
            Some(true),
        );
        assert_eq!((d.kind, d.verdict.word.as_str()), (Kind::WhatIf, "3 questions"));
        let points = &d.verdict.points;
        assert!(points[0].starts_with("disk.read_us=80: db.iops better by 20.0 %"), "{points:?}");
        assert!(points[2].starts_with("iothreads=4: cannot tell: iothreads: there are"), "{points:?}");
        let table = |i: usize| {
            d.sections[i].blocks.iter().find_map(|b| if let Block::Table(t) = b { Some(t) } else { None }).unwrap()
        };
        assert_eq!((table(0).rows[0][5].text.as_str(), table(0).rows[0][7].text.as_str()), ("+20.0%", "better"));
        let row = &table(1).rows[0];
        assert_eq!((row[5].value, row[7].text.as_str(), row[7].tone), (None, "cannot tell", Tone::Caution));
        assert!(
            matches!(&d.sections[2].blocks[..], [Block::Note { text }] if text.starts_with("Cannot tell: iothreads"))
        );
        assert!(page::render(&d).contains("it depends on disk.parallel, which is not known well enough."));
        let one = report(vec![answer("disk.read_us=80", vec![faster], &[])], None);
        assert_eq!((one.verdict.tone, one.verdict.word.as_str()), (Tone::Good, "Better"));
    }

    #[test]
    fn of_another_machine_no_change_is_shown() {
        let faster = figure("db.iops", interval(0.1, 0.2, 0.3), Word::Better, "better by 20.0 %");
        let d = report(
            vec![answer("disk.read_us=80", vec![faster], &["the model does not describe this machine"])],
            Some(false),
        );
        assert_eq!((d.verdict.tone, d.verdict.word.as_str()), (Tone::Caution, "Cannot tell"));
        let text = page::render(&d);
        assert!(!text.contains("better by") && !text.contains("question-0-chart"), "no change");
    }
}
