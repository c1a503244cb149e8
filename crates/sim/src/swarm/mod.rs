// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cases drawn from seeds: run one, get what it counted or how it failed.
//!
//! Guarantees: the same seed gives the same [`Report`], trace hash included, on every machine; a violation anywhere (the
//! core's own assertions included) comes back as a [`Failure`] with everything that led to it. Needs from callers: nothing;
//! cases share nothing, so threads may run as many at a time as they like.

mod case;
mod limits;
mod stack;

use crate::fault::Plant;
use crate::pressure::{self, Pressed, Unfair};
use crate::rng::Rng;
use crate::trace::Trace;
use case::Case;
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Sectors of a simulated disk.
const CAPACITY: u64 = 4096;

/// What a case that held everything counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Its seed; of a sum, the greatest.
    pub seed: u64,
    /// Bios accepted; each ended once.
    pub bios: u64,
    /// Requests that reached the device.
    pub requests: u64,
    /// Bios that ended with an error, as they may with faults.
    pub errors: u64,
    /// Nanoseconds of virtual time in the safety phase.
    pub safety_ns: u64,
    /// Bios that had not ended when it did.
    pub outstanding: u64,
    /// Nanoseconds of virtual time in the liveness phase: until everything had ended.
    pub liveness_ns: u64,
    /// Requests that went through an elevator under pressure.
    pub pressed: u64,
    /// Events of the trace.
    pub events: u64,
    /// What stands for the whole trace.
    pub hash: u64,
}

impl Report {
    /// Adds what another case counted.
    pub fn add(&mut self, other: &Report) {
        self.seed = self.seed.max(other.seed);
        self.bios += other.bios;
        self.requests += other.requests;
        self.errors += other.errors;
        self.safety_ns += other.safety_ns;
        self.outstanding += other.outstanding;
        self.liveness_ns += other.liveness_ns;
        self.pressed += other.pressed;
        self.events += other.events;
        // The same whatever order cases ran in.
        self.hash = self.hash.wrapping_add(other.hash);
    }
}

/// A case in which something did not hold.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed that replays it.
    pub seed: u64,
    /// What did not hold.
    pub message: String,
    /// The trace up to there.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: {}", self.seed, self.message)
    }
}

/// Runs the case of a seed.
pub fn run_seed(seed: u64) -> Result<Report, Box<Failure>> {
    run(seed, None, &Trace::new(false)).map_err(|_| {
        // The same once more, this time with its trace: cases are short, and nearly all hold.
        let trace = Trace::new(true);
        let message = run(seed, None, &trace)
            .err()
            .unwrap_or_else(|| "it did not fail again: the run is not deterministic".into());
        Box::new(Failure { seed, message, trace: trace.lines() })
    })
}

/// Runs the case of a seed with a bug planted in it; what did not hold, if that was noticed.
pub fn run_planted(seed: u64, plant: Plant) -> Result<Report, String> {
    run(seed, Some(plant), &Trace::new(false))
}

/// Runs the case of a seed and keeps its trace.
pub fn replay(seed: u64) -> (Result<Report, Box<Failure>>, Vec<String>) {
    let trace = Trace::new(true);
    let result = run(seed, None, &trace);
    let lines = trace.lines();
    (result.map_err(|message| Box::new(Failure { seed, message, trace: lines.clone() })), lines)
}

/// Runs only the pressure case of a seed: every seed has one.
pub fn press(seed: u64) -> Result<Pressed, Box<Failure>> {
    press_with(seed, None, &Trace::new(false)).map_err(|message| {
        let trace = Trace::new(true);
        let again = press_with(seed, None, &trace).err();
        assert_eq!(again.as_ref(), Some(&message), "the run is not deterministic");
        Box::new(Failure { seed, message, trace: trace.lines() })
    })
}

/// As [`press`], with unfairness planted; what did not hold, if that was noticed.
pub fn press_unfairly(seed: u64, unfair: Unfair) -> Result<Pressed, String> {
    press_with(seed, Some(unfair), &Trace::new(false))
}

fn press_with(seed: u64, unfair: Option<Unfair>, trace: &Trace) -> Result<Pressed, String> {
    catch_unwind(AssertUnwindSafe(|| pressure::run(seed, unfair, trace))).map_err(|panic| text_of(panic.as_ref()))
}

/// One seed in so many has its pressure case run after its main case.
const PRESSED: u64 = 4;

fn run(seed: u64, plant: Option<Plant>, trace: &Trace) -> Result<Report, String> {
    // What a case owns is dropped with it, so nothing is left in a broken state for others to see.
    let case = AssertUnwindSafe(|| Case::new(seed, plant, trace.clone()).run());
    let mut report = catch_unwind(case).map_err(|panic| text_of(panic.as_ref()))?;
    if plant.is_none() && Rng::new(seed ^ 0x9e).below(PRESSED) == 0 {
        report.pressed = press_with(seed, None, trace)?.requests;
        (report.events, report.hash) = (trace.events(), trace.hash());
    }
    Ok(report)
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message").to_string()
}
