// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk sim MACHINE.toml --jobs JOB --what-if KEY=VALUE`: what would change, with an interval, and why.
//!
//! Runs share nothing, so all CPUs work on them; the output does not depend on the number of CPUs.

use crate::args::SimArgs;
use crate::machine_file;
use crate::output;
use crate::progress::Line;
use crate::replay::command;
use crate::report;
use crate::status::{Failure, Outcome, Status};
use lab::report::pages::of_whatif::{self, WhatIfInput};
use lab::setup::Setup;
use sim::scenario::file::split_figure;
use sim::scenario::outcome::RowOutcome;
use sim::scenario::why;
use sim::whatif::judge::{Answer, Answers, FigureAnswer, Interval, Verdict};
use sim::whatif::{Plan, Question};
use std::fmt::Write;
use std::num::NonZero;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Largest job file that is read.
const JOB_BYTES_MAX: u64 = 16 << 20;

/// Simulates the questions, and prints the answers.
pub fn main(file: &Path, args: &SimArgs) -> Outcome {
    let name = file.display().to_string();
    let (_, machine) = machine_file::read(file)?;
    let jobs = match &args.jobs {
        None => None,
        Some(path) => Some((path.display().to_string(), machine_file::read_text("job file", path, JOB_BYTES_MAX)?)),
    };
    let plan = Plan::new(&Question {
        machine_file: &name,
        machine: &machine,
        jobs: jobs.as_ref().map(|(name, text)| (name.as_str(), text.as_str())),
        changes: &args.what_if,
        members: args.members,
        ios: args.ios,
        seed: args.seed,
    })
    .map_err(Failure::new)?;
    let mut page = report::asked(args.report.as_ref(), &[Some(file), args.jobs.as_deref()])?;
    let answers = plan.judge(&simulate(&plan, args)?);
    match args.json {
        true => output::print(&output::json(&answers))?,
        false => output::print(&render(&name, &plan, &answers))?,
    }
    if let Some(page) = &mut page {
        page.write(&of_whatif::document(&WhatIfInput {
            answers: &answers,
            machine: (&name, &machine),
            shape: plan.variants[0].scenario.machine,
            unknown: &plan.draws.names,
            jobs: jobs.as_ref().map(|(_, text)| text.as_str()),
            command: &command(),
            seed: args.seed,
            setup: &Setup::read(&[]),
        }))?;
    }
    Ok(Status::Done)
}

/// Completed runs.
struct Done {
    /// The outcomes, by the numbers of the runs.
    outcomes: Vec<Option<RowOutcome>>,
    /// The first that failed, and why.
    failed: Option<(usize, String)>,
    line: Line,
}

/// Simulates all runs, on all CPUs.
fn simulate(plan: &Plan, args: &SimArgs) -> Result<Vec<RowOutcome>, Failure> {
    let next = AtomicUsize::new(0);
    let all = plan.runs();
    let done = Mutex::new(Done { outcomes: (0..all).map(|_| None).collect(), failed: None, line: Line::new(args.eta) });
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|s| {
        for _ in 0..threads {
            s.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= all {
                        return;
                    }
                    let run = plan.run(n);
                    let mut done = done.lock().expect("no thread panics with it");
                    match run {
                        Ok(outcome) => done.outcomes[n] = Some(outcome),
                        Err(e) => {
                            // Of several failures, keep the one with the lowest number, whichever thread was first.
                            if done.failed.as_ref().is_none_or(|(at, _)| n < *at) {
                                done.failed = Some((n, e));
                            }
                            next.store(all, Ordering::Relaxed);
                            return;
                        }
                    }
                    done.line.show(|| format!("{n} of {all} runs"));
                }
            });
        }
    });
    let Done { outcomes, failed, mut line } = done.into_inner().expect("no thread panics with it");
    line.clear();
    match failed {
        Some((_, e)) => Err(Failure::new(e)),
        None => Ok(outcomes.into_iter().map(|o| o.expect("all were run")).collect()),
    }
}

fn render(name: &str, plan: &Plan, a: &Answers) -> String {
    let m = plan.variants[0].scenario.machine;
    let mut out = format!("{name}: {} x {} cores x {} threads = {} CPUs\n", m.sockets, m.cores, m.threads, m.cpus());
    if a.as_it_is.is_empty() {
        for (i, answer) in a.answers.iter().enumerate() {
            let _ = writeln!(out, "{}what if {}", if i > 0 { "\n" } else { "" }, answer.what_if);
            cannot(&mut out, answer);
        }
        return out;
    }
    let _ = writeln!(
        out,
        "{} possible machines, over {} uncertain constants; {}\n",
        a.members,
        plan.draws.names.len(),
        match a.describes {
            Some(true) => format!("{} of them match the measurement, and are used", a.kept),
            Some(false) => format!("{} of them match the measurement", a.kept),
            None => "without a measurement of these jobs, all of them are used".into(),
        }
    );
    let widest = a.as_it_is.iter().map(|f| f.figure.len()).max().unwrap_or(0).max(8);
    let _ = writeln!(out, "{:widest$}  {:>12}  {:>12}  {:>8}  interval", "as it is", "measured", "simulated", "error");
    for f in &a.as_it_is {
        let measured = f.measured.map_or("-".into(), |m| value(&f.figure, m));
        let error = f.error().map_or(String::new(), |e| format!("{:+.1} %", 100.0 * e));
        let simulated = value(&f.figure, f.simulated.median);
        let _ = writeln!(
            out,
            "{:widest$}  {measured:>12}  {simulated:>12}  {error:>8}  {}",
            f.figure,
            interval(&f.figure, &f.simulated)
        );
    }
    if a.describes == Some(false) {
        // One reason holds for all questions.
        let why = a.answers.iter().flat_map(|q| &q.cannot).find(|c| c.starts_with(NOT_THIS_MACHINE));
        let _ = writeln!(out, "\n{}", why.map_or(NOT_THIS_MACHINE, String::as_str));
    }
    a.answers.iter().for_each(|answer| question(&mut out, answer, a.describes));
    out
}

/// Beginning of the reason that holds for all questions.
const NOT_THIS_MACHINE: &str = "the model does not describe this machine";

fn question(out: &mut String, a: &Answer, describes: Option<bool>) {
    let _ = writeln!(out, "\nwhat if {}", a.what_if);
    if describes == Some(false) {
        let own = a.cannot.iter().find(|c| !c.starts_with(NOT_THIS_MACHINE));
        let _ = writeln!(out, "  cannot tell: {}", own.map_or(NOT_THIS_MACHINE, String::as_str));
        return;
    }
    let widest = a.figures.iter().map(|f| f.figure.len()).max().unwrap_or(0);
    for f in &a.figures {
        let FigureAnswer { figure, base, changed, text, .. } = f;
        let (from, to) = (value(figure, base.median), value(figure, changed.median));
        let _ = writeln!(out, "  {figure:widest$}  {from:>10} -> {to:>10} {:24}  {text}", interval(figure, changed));
    }
    a.no_effect.iter().for_each(|t| {
        let _ = writeln!(out, "  {t}");
    });
    if a.figures.iter().any(|f| f.verdict != Verdict::NoEffect) {
        a.reasons.iter().for_each(|r| {
            let _ = writeln!(out, "  why: {r}.");
        });
    }
    cannot(out, a);
}

fn cannot(out: &mut String, a: &Answer) {
    a.cannot.iter().for_each(|c| {
        let _ = writeln!(out, "  cannot tell: {c}");
    });
}

fn interval(figure: &str, i: &Interval) -> String {
    format!("[{}, {}]", value(figure, i.low), value(figure, i.high))
}

/// A figure with its unit.
fn value(figure: &str, v: f64) -> String {
    match split_figure(figure).map_or("", |(_, m)| m) {
        "bw" => format!("{:.0} MB/s", v / 1e6),
        m if m.ends_with("_us") => why::time(v),
        _ => format!("{v:.0}"),
    }
}
