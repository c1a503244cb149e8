// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk sim`: cases of the simulation by their seeds. One is shown event by event, many are only counted.
//!
//! Cases share nothing, so all CPUs work on them; what is printed does not depend on how many there are.

use crate::args::{Eta, SimArgs};
use crate::output;
use crate::progress::Line;
use crate::status::{Failure, Outcome, Status};
use sim::swarm::{self, Report};
use std::fmt::Write;
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Last events printed of a case that failed.
const LAST_EVENTS: usize = 60;

/// Runs what was asked for.
pub fn main(args: &SimArgs) -> Outcome {
    let Some(end) = args.seed.checked_add(args.count) else {
        return Err(Failure::new(format!("--count {}: seeds end at {}; lower it", args.count, u64::MAX)));
    };
    // A violation is told once, with its trace, and not as a crash of this program.
    std::panic::set_hook(Box::new(|_| {}));
    if args.count == 1 { show(args.seed) } else { count(args.seed, end, args.eta) }
}

/// One case, event by event.
fn show(seed: u64) -> Outcome {
    let (result, lines) = swarm::replay(seed);
    let mut out = String::from(
        "  microseconds event (Q submitted, I inserted, D issued, C completed, E ended, B busy, R given back, T late, F fault, \
         H CPU, X settings, S phase)\n",
    );
    lines.iter().for_each(|line| {
        out += line;
        out.push('\n');
    });
    match result {
        Ok(report) => {
            out += &summary(&report, 1);
            output::print(&out)?;
            Ok(Status::Done)
        }
        Err(failure) => {
            let _ = writeln!(out, "violation: {failure}");
            output::print(&out)?;
            Ok(Status::Found)
        }
    }
}

/// Many cases, until one fails.
fn count(first: u64, end: u64, eta: Eta) -> Outcome {
    let next = AtomicU64::new(first);
    let total = Mutex::new((Report::default(), None::<Box<swarm::Failure>>, Line::new(eta)));
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|s| {
        for _ in 0..threads {
            s.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    let result = swarm::run_seed(seed);
                    let mut total = total.lock().expect("nobody panics with it");
                    match result {
                        Ok(report) => {
                            total.0.add(&report);
                            let requests = total.0.requests;
                            total.2.show(|| format!("{} of {} cases, {requests} requests", seed - first, end - first));
                        }
                        Err(failure) => {
                            // The least of those that fail, whichever thread was first.
                            if total.1.as_ref().is_none_or(|f| failure.seed < f.seed) {
                                total.1 = Some(failure);
                            }
                            next.store(end, Ordering::Relaxed);
                            return;
                        }
                    }
                }
            });
        }
    });
    let (report, failure, mut line) = total.into_inner().expect("nobody panics with it");
    line.clear();
    let Some(failure) = failure else {
        output::print(&summary(&report, end - first))?;
        return Ok(Status::Done);
    };
    let from = failure.trace.len().saturating_sub(LAST_EVENTS);
    let mut out = format!("last {} of {} events\n", failure.trace.len() - from, failure.trace.len());
    failure.trace[from..].iter().for_each(|event| {
        out += event;
        out.push('\n');
    });
    let _ = writeln!(out, "violation: {failure}\nreplay: mqblk sim --seed {}", failure.seed);
    output::print(&out)?;
    Ok(Status::Found)
}

fn summary(r: &Report, cases: u64) -> String {
    let s = if cases == 1 { "" } else { "s" };
    let seconds = |ns: u64| ns as f64 / 1e9;
    let mut out =
        format!("{cases} case{s}: {} bios in {} requests, {} ended with an error\n", r.bios, r.requests, r.errors);
    let _ = writeln!(out, "safety phase: {:.3} s of virtual time, nothing forbidden happened", seconds(r.safety_ns));
    let _ = writeln!(
        out,
        "liveness phase: without new faults the last {} bios ended in {:.3} s of virtual time",
        r.outstanding,
        seconds(r.liveness_ns)
    );
    if r.pressed > 0 {
        let _ =
            writeln!(out, "pressure: {} requests through elevators, none starved, shares as the weights", r.pressed);
    }
    let _ = writeln!(out, "{} events, trace {:016x}", r.events, r.hash);
    out
}
