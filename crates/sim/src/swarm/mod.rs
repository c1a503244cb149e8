// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cases drawn from seeds: runs a case, and returns its counts or its failure.
//!
//! Guarantees: the same seed gives the same [`Report`], trace hash included, on every machine. A violation anywhere (the
//! core's own assertions included) is returned as a [`Failure`] with the trace that led to it. Needs from callers: nothing.
//! Cases share no state, so any number of threads may run cases at a time.

mod case;
mod limits;
mod load;
mod multipath;
mod progress;
mod report;
mod set;
mod stack;

use crate::fault::Plant;
use crate::kind::{self, Kind};
use crate::pressure::{self, Pressed, Unfair};
use crate::trace::Trace;
use case::Case;
use multipath::PathsCase;
pub use report::Report;
use set::SetCase;
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A case in which a check failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The kind of case.
    pub kind: Kind,
    /// The seed that replays it.
    pub seed: u64,
    /// The check that failed.
    pub message: String,
    /// The trace up to the failure.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} case, seed {}: {}", self.kind.name(), self.seed, self.message)
    }
}

/// Runs the case of a kind and a seed.
pub fn run_case(kind: Kind, seed: u64) -> Result<Report, Box<Failure>> {
    run(kind, seed, None, &Trace::new(false)).map_err(|_| {
        // Runs the case once more with its trace: cases are short, and nearly all hold.
        let trace = Trace::new(true);
        let message = run(kind, seed, None, &trace)
            .err()
            .unwrap_or_else(|| "it did not fail again: the run is not deterministic".into());
        Box::new(Failure { kind, seed, message, trace: trace.lines() })
    })
}

/// Runs the case of a seed with a planted bug, of the kind the bug belongs to. An error says which check noticed the bug.
pub fn run_planted(seed: u64, plant: Plant) -> Result<Report, String> {
    run(plant.kind(), seed, Some(plant), &Trace::new(false))
}

/// Runs the case of a kind and a seed, with a bug planted in it if so asked, and keeps its trace.
pub fn replay(kind: Kind, seed: u64, plant: Option<Plant>) -> (Result<Report, Box<Failure>>, Vec<String>) {
    let trace = Trace::new(true);
    let result = run(kind, seed, plant, &trace);
    let lines = trace.lines();
    (result.map_err(|message| Box::new(Failure { kind, seed, message, trace: lines.clone() })), lines)
}

/// Runs only the pressure case of a seed: every seed has one.
pub fn press(seed: u64) -> Result<Pressed, Box<Failure>> {
    press_with(seed, None, &Trace::new(false)).map_err(|message| {
        let trace = Trace::new(true);
        let again = press_with(seed, None, &trace).err();
        assert_eq!(again.as_ref(), Some(&message), "the run is not deterministic");
        Box::new(Failure { kind: Kind::Pressure, seed, message, trace: trace.lines() })
    })
}

/// As [`press`], with planted unfairness. An error says which check noticed it.
pub fn press_unfairly(seed: u64, unfair: Unfair) -> Result<Pressed, String> {
    press_with(seed, Some(unfair), &Trace::new(false))
}

fn press_with(seed: u64, unfair: Option<Unfair>, trace: &Trace) -> Result<Pressed, String> {
    caught(|| pressure::run(seed, unfair, trace))
}

fn run(kind: Kind, seed: u64, plant: Option<Plant>, trace: &Trace) -> Result<Report, String> {
    let press = || press_with(seed, None, trace).map(|p| p.requests);
    let told = |pressed| Report { pressed, events: trace.events(), hash: trace.hash(), ..Report::of(seed) };
    match kind {
        Kind::Disk => {
            let mut report = caught(|| Case::new(seed, plant, trace.clone()).run())?;
            if plant.is_none() && kind::is_pressed_as_well(seed) {
                report.pressed = press()?;
                (report.events, report.hash) = (trace.events(), trace.hash());
            }
            Ok(report)
        }
        Kind::Set => caught(|| SetCase::new(seed, plant, trace.clone()).run()),
        Kind::Pressure => press().map(told),
        Kind::Multipath => caught(|| PathsCase::new(seed, plant, trace.clone()).run()),
    }
}

/// Runs `f` and returns the message of a panic as the error. A case owns all its state, so a panic leaves nothing in a
/// broken state for others.
fn caught<R>(f: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|panic| text_of(panic.as_ref()))
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message").to_string()
}
