// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Raw results on disk: JSON lines, written after every pair, from which the comparison can be computed again.
//!
//! Line 1 is the setup (machine, command, plan, primary metric). One line per run follows, with its metrics, stages and raw
//! latency histograms; the comparison comes last. Guarantees: after [`ResultsWriter::pair`] returns, both runs of the pair
//! survive the death of the process. An existing file is never overwritten. [`read`] accepts a file cut off in the middle of
//! its last line (and says so).
//!
//! Needs from callers: pairs in plan order. Does not: call fsync, which would disturb the device under test; a power cut may
//! lose lines.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::compare::{Comparison, Detect, Detected, PairResult, SideTotals};
use crate::detail::RunDetail;
use crate::metric::{JobMetrics, Metric, RunMetrics};
use crate::plan::{Plan, Side};
use crate::setup::Setup;
use crate::stage::StageFacts;

/// Version of the line format; a reader refuses others.
pub const FORMAT: u32 = 1;

/// First line of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// [`FORMAT`].
    pub format: u32,
    /// The machine.
    pub setup: Setup,
    /// The command that repeats the comparison (see [`replay_command`]).
    pub command: String,
    /// Pairs, warm-ups and seed.
    pub plan: Plan,
    /// Metric of the verdict.
    pub primary: Metric,
    /// Settings of the sides as the user wrote them, A's first.
    pub labels: Vec<String>,
    /// The job file's text, so that the results are complete by themselves.
    pub job: String,
    /// Wall clock at the start, milliseconds since 1970.
    pub started_unix_ms: u64,
    /// The difference to detect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detect: Option<Detect>,
    /// Targets and settings of the sides, resolved. A comparison is resumed only if they are the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sides: Vec<String>,
}

impl Header {
    /// Rejects the continuation of a different comparison. The error names the difference.
    pub fn fits(&self, other: &Header) -> Result<(), String> {
        let parts = [
            ("the job file", self.job == other.job),
            (
                "a side (--a, --b, --side, --set, --target, or the disk or machine file behind the target)",
                self.labels == other.labels && self.sides == other.sides,
            ),
            ("the plan (--pairs, --warmup, --seed)", self.plan == other.plan),
            ("--detect or --max-pairs", self.detect == other.detect),
            ("the metric of the verdict", self.primary == other.primary),
        ];
        match parts.into_iter().find(|(_, same)| !same) {
            None => Ok(()),
            Some((what, _)) => {
                Err(format!("belongs to another comparison: {what} differs; the file's command: {}", self.command))
            }
        }
    }
}

/// Raw latencies of one job and direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RawHistogram {
    /// Job name.
    pub job: String,
    /// `read`, `write`, `trim` or `sync`.
    pub dir: String,
    /// `slat`, `clat`, `lat` or `intended`.
    pub kind: String,
    /// (nanoseconds the bucket stands for, count), ascending.
    pub bins: Vec<(u64, u64)>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Pair it belongs to, from 0.
    pub pair: u32,
    /// The side.
    pub side: Side,
    /// Whether it ran before its partner.
    pub first: bool,
    /// The metrics of the jobs that the verdict covers.
    pub metrics: RunMetrics,
    /// If the verdict covers only some jobs: the metrics of the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<JobMetrics>,
    /// Where the time went, where measured.
    pub stages: Option<StageFacts>,
    /// CPU time of the job threads in percent of one CPU each.
    pub job_cpu_percent: Option<f64>,
    /// I/Os that failed, plus blocks that did not verify.
    pub errors: u64,
    /// How many of `errors` are blocks that did not verify.
    #[serde(default)]
    pub verify_errors: u64,
    /// Raw latencies.
    pub histograms: Vec<RawHistogram>,
    /// Further data for reports; files of earlier versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Box<RunDetail>>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum LineRef<'a> {
    Setup(&'a Header),
    Run(&'a RunRecord),
    Comparison(&'a Comparison),
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Line {
    Setup(Box<Header>),
    Run(Box<RunRecord>),
    Comparison(Box<Comparison>),
}

/// A results file that cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// Creating, writing or reading failed.
    #[error("results file {path}: {source}{}", hint(.source))]
    Io {
        /// The file.
        path: String,
        /// The reason.
        source: io::Error,
    },
    /// A line does not have the format of this version.
    #[error("results file {path}, line {line}: {reason}; is it a results file of mqblk, format {FORMAT}?")]
    Line {
        /// The file.
        path: String,
        /// Line number from 1.
        line: usize,
        /// The error in the line.
        reason: String,
    },
}

fn hint(e: &io::Error) -> &'static str {
    match e.kind() {
        io::ErrorKind::AlreadyExists => {
            " (results are never overwritten: choose another name or move the old file away)"
        }
        io::ErrorKind::StorageFull => " (free some space; the pairs written so far are intact)",
        _ => "",
    }
}

/// Writes a results file line by line.
#[derive(Debug)]
pub struct ResultsWriter<W: Write> {
    out: W,
    path: String,
}

impl ResultsWriter<File> {
    /// Creates `path`, which must not exist, and writes the header.
    pub fn create(path: &Path, header: &Header) -> Result<ResultsWriter<File>, ResultsError> {
        let name = path.display().to_string();
        let file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .open(path)
            .map_err(|source| ResultsError::Io { path: name.clone(), source })?;
        ResultsWriter::new(file, name, header)
    }
}

impl<W: Write> ResultsWriter<W> {
    /// Makes a writer that appends to the contents of `out`.
    pub const fn behind(out: W, path: String) -> ResultsWriter<W> {
        ResultsWriter { out, path }
    }

    /// Writes the header to `out`; `path` names it in errors.
    pub fn new(out: W, path: String, header: &Header) -> Result<ResultsWriter<W>, ResultsError> {
        let mut writer = ResultsWriter { out, path };
        writer.lines(&[LineRef::Setup(header)])?;
        Ok(writer)
    }

    /// Writes all runs of a pair at once, in the order in which they ran.
    pub fn pair(&mut self, runs: &[RunRecord]) -> Result<(), ResultsError> {
        self.lines(&runs.iter().map(LineRef::Run).collect::<Vec<_>>())
    }

    /// Writes the comparisons of A with each other side.
    pub fn finish(mut self, comparisons: &[Comparison]) -> Result<W, ResultsError> {
        self.lines(&comparisons.iter().map(LineRef::Comparison).collect::<Vec<_>>())?;
        Ok(self.out)
    }

    /// Writes all lines in one call, so that a reader never sees half a pair unless the disk is full.
    fn lines(&mut self, lines: &[LineRef<'_>]) -> Result<(), ResultsError> {
        let mut text = Vec::new();
        for line in lines {
            serde_json::to_writer(&mut text, line).expect("plain data serialises");
            text.push(b'\n');
        }
        let written = self.out.write_all(&text).and_then(|()| self.out.flush());
        written.map_err(|source| ResultsError::Io { path: self.path.clone(), source })
    }
}

/// A results file read back.
#[derive(Clone, Debug, PartialEq)]
pub struct Results {
    /// Its first line.
    pub header: Header,
    /// Its runs in order.
    pub runs: Vec<RunRecord>,
    /// The comparisons of A with each other side, if all pairs were run.
    pub comparisons: Vec<Comparison>,
    /// Whether the last line was cut off and ignored.
    pub cut_off: bool,
}

impl Results {
    /// Computes the comparisons from the runs, without the machine's warnings.
    pub fn evaluate(&self) -> Vec<Comparison> {
        let h = &self.header;
        evaluate(h.plan, h.detect, h.primary, &h.labels, &self.runs)
    }
}

/// Extends `first` to enough pairs for each side, by the spread of its runs. Returns `None` while `first` is not complete.
pub fn detected(detect: Detect, first: Plan, primary: Metric, runs: &[RunRecord]) -> Option<(Plan, Vec<Detected>)> {
    let of_side = |i: usize| detect.plan(first, primary, &pairs(runs, first.sides(), [Side::A, Side::at(i)]));
    let all: Vec<(Plan, Detected)> = (1..first.sides()).map(of_side).collect::<Option<_>>()?;
    let longest = all.iter().map(|(plan, _)| *plan).max_by_key(Plan::pairs)?;
    Some((longest, all.into_iter().map(|(_, detected)| detected).collect()))
}

/// Computes the comparisons of A with each other side, from runs in the order of `plan`.
pub fn evaluate(
    plan: Plan,
    detect: Option<Detect>,
    primary: Metric,
    labels: &[String],
    runs: &[RunRecord],
) -> Vec<Comparison> {
    let detected = detect.and_then(|d| detected(d, plan, primary, runs));
    let plan = detected.as_ref().map_or(plan, |(plan, _)| *plan);
    let totals = |side: Side| totals(runs, side, labels[side.index()].clone());
    let of_side = |i: usize| {
        let side = Side::at(i);
        let pairs = pairs(runs, plan.sides(), [Side::A, side]);
        let others = others(runs, plan.sides(), [Side::A, side]);
        let c = Comparison::evaluate_side(plan, primary, &pairs, totals(Side::A), side, totals(side));
        Comparison { detected: detected.as_ref().map(|(_, all)| all[i - 1]), ..c.with_others(&others) }
    };
    (1..plan.sides()).map(of_side).collect()
}

/// Returns the results of two sides in the complete pairs, or rounds, among `runs`, which must be in plan order. Runs of an
/// incomplete pair are left out.
pub fn pairs(runs: &[RunRecord], sides: usize, [a, b]: [Side; 2]) -> Vec<PairResult> {
    pairs_of(runs, sides, [a, b], |run| run.metrics)
}

fn pairs_of(
    runs: &[RunRecord],
    sides: usize,
    [a, b]: [Side; 2],
    metrics: impl Fn(&RunRecord) -> RunMetrics,
) -> Vec<PairResult> {
    let of = |round: &[RunRecord]| {
        let of_side = |side: Side| round.iter().find(|run| run.side == side).map(&metrics);
        Some(PairResult { a: of_side(a)?, b: of_side(b)? })
    };
    runs.chunks_exact(sides).map(|round| of(round).expect("a round has every side")).collect()
}

/// As [`pairs`], for each job that the verdict does not cover.
pub fn others(runs: &[RunRecord], sides: usize, both: [Side; 2]) -> Vec<(String, Vec<PairResult>)> {
    let names = runs.first().map_or(&[][..], |run| &run.others);
    let of = |run: &RunRecord, i: usize| run.others.get(i).map(|o| o.metrics).unwrap_or_default();
    let of_job = |i: usize| pairs_of(runs, sides, both, |run| of(run, i));
    names.iter().enumerate().map(|(i, o)| (o.job.clone(), of_job(i))).collect()
}

/// Totals of one side over its runs.
pub fn totals(runs: &[RunRecord], side: Side, label: String) -> SideTotals {
    let mut t = SideTotals { label, ..SideTotals::default() };
    let (mut cpu_sum, mut cpu_n) = (0.0, 0.0);
    for run in runs.iter().filter(|r| r.side == side) {
        t.errors += run.errors;
        t.verify_errors += run.verify_errors;
        if let Some(cpu) = run.job_cpu_percent {
            (cpu_sum, cpu_n) = (cpu_sum + cpu, cpu_n + 1.0);
        }
        match (&mut t.stages, &run.stages) {
            (Some(sum), Some(s)) => sum.merge(s),
            (none, Some(s)) => *none = Some(s.clone()),
            (_, None) => {}
        }
    }
    t.job_cpu_percent = (cpu_n > 0.0).then(|| cpu_sum / cpu_n);
    t
}

/// Reads a results file; `path` names it in errors.
pub fn read(input: impl BufRead, path: &str) -> Result<Results, ResultsError> {
    let bad = |line: usize, reason: String| ResultsError::Line { path: path.to_owned(), line, reason };
    let lines: Vec<String> = input
        .lines()
        .collect::<io::Result<_>>()
        .map_err(|source| ResultsError::Io { path: path.to_owned(), source })?;
    let (mut header, mut runs, mut comparisons, mut cut_off) = (None, Vec::new(), Vec::new(), false);
    for (i, text) in lines.iter().enumerate() {
        match serde_json::from_str::<Line>(text) {
            Ok(Line::Setup(h)) if i == 0 && h.format == FORMAT => header = Some(*h),
            Ok(Line::Setup(h)) => return Err(bad(i + 1, format!("unexpected setup line of format {}", h.format))),
            Ok(_) if header.is_none() => return Err(bad(1, "the first line is not a setup line".to_owned())),
            Ok(Line::Run(r)) => runs.push(*r),
            Ok(Line::Comparison(c)) => comparisons.push(*c),
            Err(e) if e.is_eof() && i + 1 == lines.len() && i > 0 => cut_off = true,
            Err(e) => return Err(bad(i + 1, e.to_string())),
        }
    }
    let header: Header = header.ok_or_else(|| bad(1, "the file is empty".to_owned()))?;
    let (sides, labels) = (header.plan.sides(), header.labels.len());
    if sides != labels || comparisons.len() >= labels {
        let reason = format!("{sides} sides with {labels} labels and {} comparisons", comparisons.len());
        return Err(bad(1, reason));
    }
    // The file was cut off among its last lines.
    if comparisons.len() + 1 < labels {
        comparisons.clear();
    }
    let most = if header.detect.is_some() { Plan::MAX_PAIRS } else { 0 };
    check_order(&header.plan.extended_to(most), &runs).map_err(|(run, reason)| bad(run + 2, reason))?;
    Ok(Results { header, runs, comparisons, cut_off })
}

/// A results file of an interrupted comparison, which can be resumed.
#[derive(Clone, Debug, PartialEq)]
pub struct Interrupted {
    /// Its complete pairs, and the comparisons if all pairs were run.
    pub results: Results,
    /// Bytes of the file that are kept: the header and the whole pairs.
    pub kept_bytes: usize,
}

/// Reads a results file in order to continue it. Lines after the last complete pair are dropped, except the comparisons of
/// a completed run.
pub fn interrupted(text: &str, path: &str) -> Result<Interrupted, ResultsError> {
    // A line without a newline was still being written.
    let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
    let mut results = read(whole.as_bytes(), path)?;
    let sides = results.header.plan.sides();
    results.runs.truncate(results.runs.len() / sides * sides);
    results.comparisons.retain(|c| !matches!(c.verdict, crate::verdict::Verdict::Stopped { .. }));
    let kept_bytes = whole.split_inclusive('\n').take(1 + results.runs.len()).map(str::len).sum();
    Ok(Interrupted { results, kept_bytes })
}

/// Checks that runs are those of the plan, in its order. Figures from other orders would not have the guarantees of `compare`.
fn check_order(plan: &Plan, runs: &[RunRecord]) -> Result<(), (usize, String)> {
    let mut steps = plan.steps().filter(|s| s.pair.is_some());
    for (i, run) in runs.iter().enumerate() {
        match steps.next() {
            Some(s) if s.side == run.side && s.pair == Some(run.pair) => {}
            Some(s) => {
                return Err((
                    i,
                    format!(
                        "run of {:?} in pair {} where the plan has {:?} in {:?}",
                        run.side, run.pair, s.side, s.pair
                    ),
                ));
            }
            None => return Err((i, format!("more runs than the plan's {} pairs", plan.pairs()))),
        }
    }
    Ok(())
}

/// Returns a command line that a POSIX shell splits into exactly these arguments.
pub fn replay_command<S: AsRef<str>>(args: &[S]) -> String {
    args.iter().map(|a| host::shell::quoted(a.as_ref())).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
#[path = "results_tests.rs"]
mod tests;
