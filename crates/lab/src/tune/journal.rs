// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes every run of a tuning to disk as soon as it completes, and resumes a tuning from there.
//!
//! JSON lines: the subject of the tuning, then one line per run (its request and its result), and at the end the result.
//!
//! Guarantees: a search sees only the data of a run that the file has. So a resumed tuning requests the same runs in the
//! same order, takes recorded runs from the file, and reaches the result that it would have reached without the
//! interruption. The file of a different tuning is rejected, at the latest at the first run that does not match. A last
//! line that was cut off is ignored and overwritten.
//!
//! Does not: call fsync, for the reason given in [`crate::results`].

use std::collections::{BTreeMap, VecDeque};
use std::io::Write;

use serde::{Deserialize, Serialize};

use super::bench::{Ask, Bench, BenchError, Length, Reading};
use super::no_effect::LeftOut;
use super::objective::{Goal, Keep, MetricId};
use super::outcome::TuneResult;
use super::point::{Knob, Point};
use crate::setup::Setup;

/// Version of the line format; a reader refuses others.
pub const FORMAT: u32 = 1;

/// The subject of a tuning; the same for a tuning and its continuation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TunePlan {
    /// The goal.
    pub goal: Goal,
    /// The limits.
    pub keeps: Vec<Keep>,
    /// The knobs.
    pub knobs: Vec<Knob>,
    /// Knobs of the target that cannot matter for the load, with the reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without_effect: LeftOut,
    /// The target's settings in effect today, searched or not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub today: Vec<(String, String)>,
    /// The rules of thumb to beat, each with its usual wording.
    pub rules: Vec<(String, Point)>,
    /// Settings of every run.
    pub base: Vec<(String, String)>,
    /// The target.
    pub target: String,
    /// The identity of the target's device or machine, from [`World::behind`](crate::world::World::behind).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<String>,
    /// Seed of all random orders.
    pub seed: u64,
    /// Seconds of all runs together.
    pub budget_seconds: f64,
    /// The smallest gain worth finding, as a fraction.
    pub detect: f64,
    /// Seconds of a short and a full run, if the jobs end by time.
    pub run_seconds: Option<(f64, f64)>,
    /// The job file's text.
    pub job: String,
}

impl TunePlan {
    /// Returns the metrics that every run has to measure.
    pub fn wanted(&self) -> Vec<MetricId> {
        let mut wanted = vec![self.goal.metric.clone()];
        wanted.extend(self.keeps.iter().map(|k| k.metric.clone()));
        wanted.sort();
        wanted.dedup();
        wanted
    }

    /// Names the first difference.
    fn differs(&self, other: &TunePlan) -> Option<&'static str> {
        let parts = [
            ("the job file", self.job == other.job),
            ("the goal (--maximize, --minimize)", self.goal == other.goal),
            ("the list of limits (--keep)", self.keeps == other.keeps),
            ("the target or --set and --fix", self.base == other.base && self.target == other.target),
            ("the disk or machine file behind the target", self.behind == other.behind),
            (
                "the list of knobs (--knob, --free, or another machine)",
                self.knobs == other.knobs && self.rules == other.rules,
            ),
            ("the seed (--seed)", self.seed == other.seed),
            ("the length of the runs (--runtime)", self.run_seconds == other.run_seconds),
            ("--detect", self.detect == other.detect),
            ("--budget", self.budget_seconds == other.budget_seconds),
        ];
        parts.into_iter().find(|(_, same)| !same).map(|(what, _)| what)
    }
}

/// First line of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// [`FORMAT`].
    pub format: u32,
    /// The machine.
    pub setup: Setup,
    /// The command that repeats the tuning.
    pub command: String,
    /// What is tuned.
    pub plan: TunePlan,
    /// Wall clock at the start, milliseconds since 1970.
    pub started_unix_ms: u64,
}

/// A run and its result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunLine {
    /// Its number, from 0.
    pub index: u32,
    /// The purpose of the run.
    pub phase: String,
    /// The request.
    pub ask: Ask,
    /// The result.
    pub tried: Tried,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tried {
    /// The point was measured.
    Read(Box<Reading>),
    /// The target rejects this point; the text gives the reason.
    Refused(String),
}

impl Tried {
    /// Returns the reading, if there is one without errors.
    pub fn good(&self) -> Option<&Reading> {
        match self {
            Tried::Read(reading) if reading.errors == 0 => Some(reading),
            _ => None,
        }
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum LineRef<'a> {
    Tune(&'a Header),
    Run(&'a RunLine),
    Result(&'a TuneResult),
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Line {
    Tune(Box<Header>),
    Run(Box<RunLine>),
    Result(Box<TuneResult>),
}

/// A file read back.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedRuns {
    /// Its first line.
    pub header: Header,
    /// Its runs in order.
    pub runs: Vec<RunLine>,
    /// The result, if the tuning completed.
    pub result: Option<TuneResult>,
    /// Length in bytes of the whole lines; the rest was cut off.
    pub whole_bytes: usize,
}

/// Reads the text of a file; `path` names it in errors.
pub fn read(text: &str, path: &str) -> Result<RecordedRuns, String> {
    let bad = |line: usize, reason: String| {
        format!("{path}, line {line}: {reason}; is it a file that mqblk tune wrote, format {FORMAT}?")
    };
    let (mut header, mut runs, mut result, mut whole_bytes) = (None, Vec::new(), None, 0);
    for (i, line) in text.split_inclusive('\n').enumerate() {
        if !line.ends_with('\n') {
            break;
        }
        match serde_json::from_str::<Line>(line).map_err(|e| bad(i + 1, e.to_string()))? {
            Line::Tune(h) if i == 0 && h.format == FORMAT => header = Some(*h),
            Line::Tune(h) => return Err(bad(i + 1, format!("unexpected first line of format {}", h.format))),
            _ if header.is_none() => return Err(bad(1, "does not say what is tuned".to_owned())),
            Line::Run(run) if run.index as usize == runs.len() => runs.push(*run),
            Line::Run(run) => return Err(bad(i + 1, format!("run {} where {} is expected", run.index, runs.len()))),
            Line::Result(r) => result = Some(*r),
        }
        whole_bytes += line.len();
    }
    let header = header.ok_or_else(|| bad(1, "there is no complete line".to_owned()))?;
    Ok(RecordedRuns { header, runs, result, whole_bytes })
}

impl RecordedRuns {
    /// Rejects the continuation of a different tuning.
    pub fn fits(&self, plan: &TunePlan, path: &str) -> Result<(), String> {
        match self.header.plan.differs(plan) {
            None => Ok(()),
            Some(what) => Err(format!(
                "--resume {path}: belongs to another tuning: {what} differs; the file's command: {}",
                self.header.command
            )),
        }
    }
}

/// The reason why a tuning did not complete.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Halt {
    /// The tuning was interrupted; it can be resumed.
    #[error("interrupted")]
    Stopped,
    /// The tuning cannot continue.
    #[error("{0}")]
    Failed(String),
}

/// The progress of a tuning.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// The purpose of the next run.
    pub phase: String,
    /// Runs so far.
    pub runs: u32,
    /// Seconds of runs so far.
    pub spent: f64,
    /// Seconds of the budget.
    pub budget: f64,
    /// The best point so far.
    pub best: Point,
    /// Its gain over the default as screened (a logarithm), which is not confirmed.
    pub gain: Option<f64>,
}

/// Receives the progress of a tuning.
pub trait Watch {
    /// Called before every run that is not taken from the file.
    fn run(&mut self, _status: &Status, _next: &Ask) {}
}

/// Ignores the progress.
#[derive(Clone, Copy, Debug)]
pub struct NoWatch;

impl Watch for NoWatch {}

/// Runs requests, or finds their results in the file.
pub struct Recorder<'a> {
    bench: &'a mut dyn Bench,
    watch: &'a mut dyn Watch,
    out: &'a mut dyn Write,
    past: VecDeque<RunLine>,
    wanted: Vec<MetricId>,
    index: u32,
    /// The first run of the default.
    default: Option<Box<Reading>>,
    /// Points of which nothing can be told, because the model of the simulated disk does not have what they change. Each with
    /// the reason.
    pub unmodelled: BTreeMap<String, String>,
    /// The progress.
    pub status: Status,
}

impl<'a> Recorder<'a> {
    /// `past` are the runs that are in the file already; new ones are appended to `out`.
    pub fn new(
        bench: &'a mut dyn Bench,
        watch: &'a mut dyn Watch,
        out: &'a mut dyn Write,
        past: Vec<RunLine>,
        plan: &TunePlan,
    ) -> Recorder<'a> {
        let status = Status { budget: plan.budget_seconds, ..Status::default() };
        let (past, wanted) = (past.into(), plan.wanted());
        Recorder { bench, watch, out, past, wanted, index: 0, default: None, unmodelled: BTreeMap::new(), status }
    }

    /// Writes the first line.
    pub fn begin(out: &mut dyn Write, header: &Header) -> Result<(), Halt> {
        write_line(out, &LineRef::Tune(header))
    }

    /// Rejects an invalid point without running it.
    pub fn check(&self, point: &Point) -> Result<(), String> {
        self.bench.check(point)
    }

    /// Runs a request, or finds its result in the file. A point of which nothing can be told counts as rejected while
    /// screening; the verdict of a confirmation says so by itself.
    pub fn measure(&mut self, ask: Ask) -> Result<Tried, Halt> {
        let (point, length) = (ask.point.clone(), ask.length);
        let tried = self.look_up_or_run(ask)?;
        let Tried::Read(reading) = &tried else { return Ok(tried) };
        let default = self.default.get_or_insert_with(|| reading.clone());
        let facts = default.stages.as_ref().zip(reading.stages.as_ref()).filter(|_| length == Length::Short);
        match facts.and_then(|(a, b)| a.unmodelled(b, ["the default", &point.to_string()])) {
            Some(why) if !point.is_empty() => {
                self.unmodelled.insert(point.to_string(), why.clone());
                Ok(Tried::Refused(why))
            }
            _ => Ok(tried),
        }
    }

    fn look_up_or_run(&mut self, ask: Ask) -> Result<Tried, Halt> {
        let index = self.index;
        let tried = match self.past.pop_front() {
            Some(line) if line.ask == ask => line.tried,
            Some(line) => {
                return Err(Halt::Failed(format!(
                    "run {index} of the file is {} ({}), where {} ({}) is expected: the file is from another version \
                     or machine; start again",
                    line.ask.point, line.phase, ask.point, self.status.phase
                )));
            }
            None => {
                self.watch.run(&self.status, &ask);
                let tried = match self.bench.run(&ask, &self.wanted) {
                    Ok(reading) => Tried::Read(Box::new(reading)),
                    Err(BenchError::Refused(why)) => Tried::Refused(why),
                    Err(BenchError::Stopped) => return Err(Halt::Stopped),
                    Err(BenchError::Failed(why)) => return Err(Halt::Failed(why)),
                };
                let line = RunLine { index, phase: self.status.phase.clone(), ask, tried };
                write_line(self.out, &LineRef::Run(&line))?;
                // The result passes through its text, so that a resumed tuning sees the same data.
                let text = serde_json::to_string(&line.tried).expect("plain data serialises");
                serde_json::from_str(&text).expect("reads back what it wrote")
            }
        };
        self.index += 1;
        self.status.runs = self.index;
        if let Tried::Read(reading) = &tried {
            self.status.spent += reading.seconds;
        }
        Ok(tried)
    }

    /// Writes the result of the tuning.
    pub fn finish(&mut self, result: &TuneResult) -> Result<(), Halt> {
        write_line(self.out, &LineRef::Result(result))
    }
}

/// One write call per line.
fn write_line(out: &mut dyn Write, line: &LineRef<'_>) -> Result<(), Halt> {
    let mut text = serde_json::to_vec(line).expect("plain data serialises");
    text.push(b'\n');
    let written = out.write_all(&text).and_then(|()| out.flush());
    written.map_err(|e| Halt::Failed(format!("results cannot be written: {e}; the runs written so far are intact")))
}
