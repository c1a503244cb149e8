// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the pairs of a comparison in the order of its plan.
//!
//! Guarantees: all sides are checked before the first run. Each run starts from a fresh stack on the same files, and all
//! runs of a pair get the same random numbers. A pair is on disk before the next one begins. When the comparison is
//! stopped, an incomplete pair is left out. Does not: retry, or drop a run that looks odd.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use host::error::{Error, ErrorKind};
use workload::job::JobFile;

use crate::compare::{Comparison, Detect};
use crate::metric::Metric;
use crate::plan::{Plan, Side, Step};
use crate::results::{self, ResultsError, ResultsWriter, RunRecord};
use crate::run::{Observer, Run, RunSpec};
use crate::world::{self, execute};

/// One side of a comparison.
#[derive(Clone, Debug)]
pub struct SideSpec {
    /// The side as the user wrote it.
    pub label: String,
    /// The target of every job, instead of its `filename`.
    pub target: Option<String>,
    /// Settings of every disk.
    pub settings: Vec<(String, String)>,
    /// The identity of the device or machine of the target, from [`World::behind`](crate::world::World::behind). If the
    /// identity changes, the comparison ends.
    pub behind: Option<String>,
}

/// A comparison to run.
pub struct CompareSpec<'a> {
    /// The jobs of all sides.
    pub file: &'a JobFile,
    /// The sides: A, with which the others are compared, then B and so on. Their number is that of the plan.
    pub sides: Vec<SideSpec>,
    /// The name of the jobs that the verdict covers; `None`: all jobs.
    pub judge: Option<&'a str>,
    /// The number and the order of the runs.
    pub plan: Plan,
    /// Random number for jobs without a fixed seed (`randrepeat=0`).
    pub entropy: u64,
    /// Ends the comparison early when set.
    pub stop: Arc<AtomicBool>,
    /// The difference to detect. The plan is then the first part, and more pairs follow if needed.
    pub detect: Option<Detect>,
    /// Complete pairs from an earlier process, in plan order.
    pub past: &'a [RunRecord],
    /// As [`RunSpec::force`].
    pub force: bool,
    /// As [`RunSpec::slices`].
    pub slices: bool,
}

/// A comparison that could not continue.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// A side cannot run.
    #[error("{side:?} ({label}): {source}")]
    Side {
        /// The side.
        side: Side,
        /// Its settings as written.
        label: String,
        /// The reason.
        source: host::error::Error,
    },
    /// A side is the same as A on this target; the text gives the reason.
    #[error("no effect: {0}")]
    NoEffect(String),
    /// The results cannot be written.
    #[error(transparent)]
    Results(#[from] ResultsError),
}

impl CompareSpec<'_> {
    /// The metric of the verdict.
    pub fn primary(&self) -> Metric {
        let rated = |limits: [Option<u64>; 3]| limits.iter().any(Option::is_some);
        let judged = |name: &str| self.judge.is_none_or(|judge| judge == name);
        let mut jobs = self.file.jobs.iter().filter(|j| judged(&j.name)).peekable();
        if jobs.peek().is_some() && jobs.all(|j| j.oltp.is_some()) {
            return Metric::Transactions;
        }
        let any = self.file.jobs.iter().filter(|j| judged(&j.name)).any(|j| {
            let dirs = workload::job::Dir::ALL;
            rated(dirs.map(|d| j.rate_bytes_per_s[d])) || rated(dirs.map(|d| j.rate_iops[d]))
        });
        Metric::primary(any)
    }

    fn side(&self, side: Side) -> &SideSpec {
        &self.sides[side.index()]
    }

    /// Rejects invalid settings and targets, before anything runs or is written.
    pub fn check(&self) -> Result<(), CompareError> {
        for side in (0..self.sides.len()).map(Side::at) {
            let spec = self.side(side);
            let target = spec.target.as_deref();
            world::of(self.file, target).check(target, &spec.settings).map_err(|e| self.failed(side, e))?;
        }
        self.no_effect().map_or(Ok(()), |why| Err(CompareError::NoEffect(why)))
    }

    /// Returns the reason if the sides are all the same on this target.
    fn no_effect(&self) -> Option<String> {
        let (a, others) = self.sides.split_first()?;
        let same = |b: &SideSpec| {
            let target = a.target.as_deref().filter(|_| a.target == b.target);
            world::of(self.file, target).same(target, &a.settings, &b.settings)
        };
        let named = |(b, side): (&SideSpec, Side)| {
            let why = same(b)?;
            Some(if others.len() == 1 { why } else { format!("{side:?} ({}) is the same as A: {why}", b.label) })
        };
        others.iter().zip((1..).map(Side::at)).find_map(named)
    }

    fn failed(&self, side: Side, source: host::error::Error) -> CompareError {
        CompareError::Side { side, label: self.side(side).label.clone(), source }
    }

    fn run(&self, step: Step, observer: &mut dyn Observer) -> Result<Run<'_>, CompareError> {
        let side = self.side(step.side);
        let spec = RunSpec {
            file: self.file,
            target: side.target.as_deref(),
            settings: &side.settings,
            entropy: self.entropy.wrapping_add(step.pair.map_or(0, |p| u64::from(p) + 1)),
            stop: Arc::clone(&self.stop),
            trace_events: 0,
            force: self.force,
            slices: self.slices,
            files: None,
        };
        let run = execute(&spec, observer).map_err(|e| self.failed(step.side, e))?;
        let behind = world::of(self.file, spec.target).behind(self.file, spec.target);
        if behind.map_err(|e| self.failed(step.side, e))? == side.behind {
            return Ok(run);
        }
        let text = "the target changed during the comparison (another disk, or an edited machine file); start a new \
                    comparison, or restore it and resume";
        Err(self.failed(step.side, Error::usage(text)))
    }
}

/// Runs the plan and evaluates the results. `open` makes the results file. It is called after the first run, which shows
/// that the jobs can run. The comparison is written to the file at the end.
pub fn compare<W: Write>(
    spec: &CompareSpec<'_>,
    open: impl FnOnce() -> Result<ResultsWriter<W>, ResultsError>,
    observer: &mut dyn Observer,
) -> Result<Vec<Comparison>, CompareError> {
    assert_eq!(spec.sides.len(), spec.plan.sides(), "the plan is for these sides");
    spec.check()?;
    let (mut open, mut out) = (Some(open), None);
    let mut records: Vec<RunRecord> = spec.past.to_vec();
    if run_pairs(spec, spec.plan, &mut records, &mut open, &mut out, observer)? {
        let detected = spec.detect.and_then(|d| results::detected(d, spec.plan, spec.primary(), &records));
        if let Some((extended, _)) = detected {
            run_pairs(spec, extended, &mut records, &mut open, &mut out, observer)?;
        }
    }
    // All pairs were in the file, and only the last line was missing.
    if let Some(open) = open.take().filter(|_| !records.is_empty()) {
        out = Some(open()?);
    }
    let labels: Vec<String> = spec.sides.iter().map(|side| side.label.clone()).collect();
    let comparisons = results::evaluate(spec.plan, spec.detect, spec.primary(), &labels, &records);
    if let Some(out) = out {
        out.finish(&comparisons)?;
    }
    Ok(comparisons)
}

/// Runs the pairs of `plan` that are not among `records`, after warm-ups. Returns whether the plan is complete.
fn run_pairs<W: Write>(
    spec: &CompareSpec<'_>,
    plan: Plan,
    records: &mut Vec<RunRecord>,
    open: &mut Option<impl FnOnce() -> Result<ResultsWriter<W>, ResultsError>>,
    out: &mut Option<ResultsWriter<W>>,
    observer: &mut dyn Observer,
) -> Result<bool, CompareError> {
    let there = (records.len() / plan.sides()) as u32;
    // Warm-ups run again after a break, but not in the middle of a comparison.
    let warm = out.is_none() && there < plan.pairs();
    let mut round: Vec<RunRecord> = Vec::new();
    for (index, step) in (0..).zip(plan.steps()) {
        if step.pair.map_or(!warm, |pair| pair < there) {
            continue;
        }
        observer.step(index, plan.runs(), step);
        let run = match spec.run(step, observer) {
            // Interrupted while a file was being created.
            Err(CompareError::Side { source, .. }) if source.kind() == ErrorKind::Interrupted => return Ok(false),
            run => run?,
        };
        if run.outcome.stopped {
            return Ok(false);
        }
        if let Some(open) = open.take() {
            *out = Some(open()?);
        }
        let Some(pair) = step.pair else { continue };
        round.push(run.record(pair, step.side, round.is_empty(), spec.judge));
        if round.len() == plan.sides() {
            out.as_mut().expect("opened after the first run").pair(&round)?;
            records.append(&mut round);
        }
    }
    Ok(true)
}
