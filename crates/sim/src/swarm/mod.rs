// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cases drawn from seeds: run one, get what it counted or how it failed.
//!
//! Guarantees: the same seed gives the same [`Report`], trace hash included, on every machine; a violation anywhere (the
//! core's own assertions included) comes back as a [`Failure`] with everything that led to it. Needs from callers: nothing;
//! cases share nothing, so threads may run as many at a time as they like.

mod case;
mod limits;
mod load;
mod multipath;
mod progress;
mod set;
mod stack;

use crate::fault::Plant;
use crate::pressure::{self, Pressed, Unfair};
use crate::rng::Rng;
use crate::trace::Trace;
use case::Case;
use multipath::PathsCase;
use set::SetCase;
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Sectors of a simulated disk.
const CAPACITY: u64 = 4096;

/// Wake-ups in which a case must come to its end once there are no new faults. A lost request of a high class takes up to
/// a minute to be noticed, in which mq-deadline has each hctx with work look every 3 ms.
const MOST_STEPS: usize = 1_000_000;

/// Virtual time in which everything has to end where windows of write-back throttling go on by themselves. The slowest
/// limit lets the at most 64 MiB in flight go in 67 s; a lost request is asked about every 30 s, and each time one answer
/// in two is that it will be waited for on.
const MOST_LIVENESS_NS: u64 = 3600 * 1_000_000_000;

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
    /// Nothing counted.
    fn of(seed: u64) -> Report {
        Report { seed, ..Report::default() }
    }

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
    /// The kind of case.
    pub kind: Kind,
    /// The seed that replays it.
    pub seed: u64,
    /// What did not hold.
    pub message: String,
    /// The trace up to there.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} case, seed {}: {}", self.kind.name(), self.seed, self.message)
    }
}

/// What a case is made of. A seed has one of each kind; they share nothing but the seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A disk with tags of its own, under faults; for one seed in four an elevator under pressure after that.
    Disk,
    /// Two to five disks on one tag set.
    Set,
    /// A promise held against a load that never ends: elevators, hardware queues, limits.
    Pressure,
    /// A disk that several paths lead to, which break and come back.
    Multipath,
}

impl Kind {
    /// Every one.
    pub const ALL: [Kind; 4] = [Kind::Disk, Kind::Set, Kind::Pressure, Kind::Multipath];

    /// Its name, of one word.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Disk => "disk",
            Kind::Set => "set",
            Kind::Pressure => "pressure",
            Kind::Multipath => "multipath",
        }
    }

    /// Whether it is run for a seed when nobody asks for a kind: always for [`Kind::Disk`], and one seed in so many for
    /// the others, as a stream of its own says.
    pub fn is_due(self, seed: u64) -> bool {
        match self {
            Kind::Disk => true,
            Kind::Set => Rng::new(seed ^ 0x5e7).below(SETS) == 0,
            Kind::Pressure => Rng::new(seed ^ 0x9e).below(PRESSED) == 1,
            Kind::Multipath => Rng::new(seed ^ 0x3a7).below(MULTIPATHS) == 0,
        }
    }
}

/// Runs the case of a kind and a seed.
pub fn run_case(kind: Kind, seed: u64) -> Result<Report, Box<Failure>> {
    run(kind, seed, None, &Trace::new(false)).map_err(|_| {
        // The same once more, this time with its trace: cases are short, and nearly all hold.
        let trace = Trace::new(true);
        let message = run(kind, seed, None, &trace)
            .err()
            .unwrap_or_else(|| "it did not fail again: the run is not deterministic".into());
        Box::new(Failure { kind, seed, message, trace: trace.lines() })
    })
}

/// Runs the case of a seed with a bug planted in it, of the kind it belongs to; what did not hold, if that was noticed.
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

/// As [`press`], with unfairness planted; what did not hold, if that was noticed.
pub fn press_unfairly(seed: u64, unfair: Unfair) -> Result<Pressed, String> {
    press_with(seed, Some(unfair), &Trace::new(false))
}

fn press_with(seed: u64, unfair: Option<Unfair>, trace: &Trace) -> Result<Pressed, String> {
    caught(|| pressure::run(seed, unfair, trace))
}

/// One seed in so many has its elevator pressed after its disk case, and another one is due for [`Kind::Pressure`].
const PRESSED: u64 = 4;
/// One seed in so many is due for [`Kind::Set`].
const SETS: u64 = 4;
/// One seed in so many is due for [`Kind::Multipath`].
const MULTIPATHS: u64 = 32;

fn run(kind: Kind, seed: u64, plant: Option<Plant>, trace: &Trace) -> Result<Report, String> {
    let press = || press_with(seed, None, trace).map(|p| p.requests);
    let told = |pressed| Report { pressed, events: trace.events(), hash: trace.hash(), ..Report::of(seed) };
    match kind {
        Kind::Disk => {
            let mut report = caught(|| Case::new(seed, plant, trace.clone()).run())?;
            if plant.is_none() && Rng::new(seed ^ 0x9e).below(PRESSED) == 0 {
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

/// What a panic says is what did not hold. What a case owns is dropped with it, so nothing is left in a broken state for
/// others to see.
fn caught<R>(f: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|panic| text_of(panic.as_ref()))
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message").to_string()
}
