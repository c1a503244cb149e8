// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk sim --seed`: simulated cases by their seeds. The cases of one seed are shown event by event; those of many
//! seeds are only counted.
//!
//! Each seed has a case of each kind. Without `--kind`, only the kinds that are due for the seed are run.
//!
//! Cases share nothing, so all CPUs work on them; the output does not depend on the number of CPUs.

use crate::args::{SimArgs, SimKind};
use crate::output;
use crate::progress::Line;
use crate::status::{Failure, Outcome, Status};
use sim::kind::Kind;
use sim::swarm::{self, Report};
use std::fmt::Write;
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Last events printed of a case that failed.
const LAST_EVENTS: usize = 60;

/// What the letters of a timeline stand for.
const LETTERS: [&str; 4] = [
    "time in microseconds, then what happened:",
    "  Q bio submitted   I inserted   D issued to the device   C completed by it   E bio ended",
    "  B device busy     R requeued   T timeout expired         F injected fault  H CPU hotplug",
    "  X settings        S phase      (a submission is listed when its call returns, after the events it caused)",
];

/// Runs the cases that `args` select.
pub fn main(args: &SimArgs) -> Outcome {
    let Some(end) = args.seed.checked_add(args.count) else {
        return Err(Failure::new(format!("--count {}: seeds end at {}; lower it", args.count, u64::MAX)));
    };
    // A violation is reported once, with its trace, and not as a panic of this program.
    std::panic::set_hook(Box::new(|_| {}));
    if args.count == 1 { show(args.seed, args.kind) } else { count(args, end) }
}

/// Returns the kinds of case that run for a seed.
fn kinds_of(seed: u64, chosen: SimKind) -> impl Iterator<Item = Kind> {
    Kind::ALL.into_iter().filter(move |kind| chosen.takes(*kind, seed))
}

/// Shows the cases of one seed, event by event.
fn show(seed: u64, chosen: SimKind) -> Outcome {
    let mut out = LETTERS.join("\n") + "\n";
    for kind in kinds_of(seed, chosen) {
        let (result, lines) = swarm::replay(kind, seed, None);
        let _ = writeln!(out, "\n{} case of seed {seed}", kind.name());
        lines.iter().for_each(|line| {
            out += line;
            out.push('\n');
        });
        match result {
            Ok(report) => {
                let mut total = Totals::default();
                total.add(kind, &report);
                let _ = write!(out, "\n{}", total.text(1));
            }
            Err(failure) => {
                out += &violation(&failure);
                output::print(&out)?;
                return Ok(Status::Found);
            }
        }
    }
    output::print(&out)?;
    Ok(Status::Done)
}

/// What the cases of each kind counted.
#[derive(Default)]
struct Totals([(u64, Report); Kind::ALL.len()]);

impl Totals {
    fn add(&mut self, kind: Kind, report: &Report) {
        let (cases, sum) = &mut self.0[kind as usize];
        *cases += 1;
        sum.add(report);
    }

    fn requests(&self) -> u64 {
        self.0.iter().map(|(_, sum)| sum.requests + sum.pressed).sum()
    }

    /// Returns a paragraph for each kind of case that ran.
    fn text(&self, seeds: u64) -> String {
        let mut out = String::new();
        for (kind, (cases, sum)) in Kind::ALL.iter().zip(&self.0).filter(|(_, (cases, _))| *cases > 0) {
            if !out.is_empty() {
                out.push('\n');
            }
            let of = if seeds > 1 { format!(" of {seeds} seeds") } else { String::new() };
            let s = if *cases == 1 { "" } else { "s" };
            let _ = writeln!(out, "{cases} {} case{s}{of}", kind.name());
            summary(&mut out, *kind, sum);
        }
        out
    }
}

/// Runs the cases of many seeds, until one fails.
fn count(args: &SimArgs, end: u64) -> Outcome {
    let (first, chosen) = (args.seed, args.kind);
    let next = AtomicU64::new(first);
    let total = Mutex::new((Totals::default(), None::<Box<swarm::Failure>>, Line::new(args.eta)));
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|s| {
        for _ in 0..threads {
            s.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    for kind in kinds_of(seed, chosen) {
                        let result = swarm::run_case(kind, seed);
                        let mut total = total.lock().expect("no thread panics with it");
                        match result {
                            Ok(report) => {
                                total.0.add(kind, &report);
                                let requests = total.0.requests();
                                total
                                    .2
                                    .show(|| format!("{} of {} seeds, {requests} requests", seed - first, end - first));
                            }
                            Err(failure) => {
                                // Of several failures, keep the one with the lowest seed, whichever thread was first.
                                if total.1.as_ref().is_none_or(|f| failure.seed < f.seed) {
                                    total.1 = Some(failure);
                                }
                                next.store(end, Ordering::Relaxed);
                                return;
                            }
                        }
                    }
                }
            });
        }
    });
    let (totals, failure, mut line) = total.into_inner().expect("no thread panics with it");
    line.clear();
    let Some(failure) = failure else {
        output::print(&totals.text(end - first))?;
        return Ok(Status::Done);
    };
    output::print(&(cut_short(&failure) + &violation(&failure)))?;
    Ok(Status::Found)
}

/// Returns the settings and phases of a failed case, and its last events.
fn cut_short(failure: &swarm::Failure) -> String {
    let trace = &failure.trace;
    let from = trace.len().saturating_sub(LAST_EVENTS);
    let mut out = LETTERS.join("\n") + "\n";
    let _ = writeln!(out, "\n{} case of seed {}", failure.kind.name(), failure.seed);
    // Keep all settings and phases; of the other events keep only the last ones.
    let is_setting = |line: &&String| matches!(line.as_bytes().get(17), Some(b'X' | b'S'));
    let (head, last) = trace.split_at(from);
    let kept: Vec<&String> = head.iter().filter(is_setting).collect();
    kept.iter().for_each(|line| out += &format!("{line}\n"));
    let _ = writeln!(out, "{:>19}{} earlier events omitted, except settings and phases", "", head.len() - kept.len());
    last.iter().for_each(|line| out += &format!("{line}\n"));
    out
}

/// Returns the violated rule, the state at that time, and the command that replays the case.
fn violation(failure: &swarm::Failure) -> String {
    let (what, state) = failure.message.split_once('\n').unwrap_or((&failure.message, ""));
    let (kind, seed) = (failure.kind.name(), failure.seed);
    let mut out = format!("\nviolation: {what}\n");
    if !state.trim().is_empty() {
        let _ = writeln!(out, "\nstate at that time\n{}", state.trim_end());
    }
    let _ = writeln!(out, "\nreplay: mqblk sim --kind {kind} --seed {seed}");
    out
}

fn summary(out: &mut String, kind: Kind, r: &Report) {
    let seconds = |ns: u64| ns as f64 / 1e9;
    let mut fact = |name: &str, fact: String| {
        let _ = writeln!(out, "  {name:10}{fact}");
    };
    if kind != Kind::Pressure {
        fact("bios", format!("{} in {} requests, {} ended with an error", r.bios, r.requests, r.errors));
        fact("safety", format!("{:.3} s of virtual time, no rule violated", seconds(r.safety_ns)));
        let (n, s) = (r.outstanding, seconds(r.liveness_ns));
        fact("liveness", format!("without new faults the last {n} bios ended in {s:.3} s of virtual time"));
    }
    if r.pressed > 0 {
        fact("pressure", format!("{} requests, none starved, shares and limits as promised", r.pressed));
    }
    fact("trace", format!("{:016x}, of {} events", r.hash, r.events));
}
