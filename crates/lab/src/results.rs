// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Raw results on disk: JSON lines, written after every pair, from which a comparison can be computed again.
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

use crate::compare::{Comparison, Detect, PairResult, SideTotals};
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
    /// Settings of A and B as written.
    pub labels: [String; 2],
    /// The job file's text, so that the results are complete by themselves.
    pub job: String,
    /// Wall clock at the start, milliseconds since 1970.
    pub started_unix_ms: u64,
    /// The difference that is to be found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detect: Option<Detect>,
    /// Targets and settings of A and B, resolved: a comparison is resumed only where they are the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sides: Vec<String>,
}

impl Header {
    /// Refuses to continue with another comparison; names what differs.
    pub fn fits(&self, other: &Header) -> Result<(), String> {
        let parts = [
            ("the job file", self.job == other.job),
            (
                "a side (--a, --b, --set, --target, or what is behind the target)",
                self.labels == other.labels && self.sides == other.sides,
            ),
            ("the plan (--pairs, --warmup, --seed)", self.plan == other.plan),
            ("--detect or --max-pairs", self.detect == other.detect),
            ("the metric of the verdict", self.primary == other.primary),
        ];
        match parts.into_iter().find(|(_, same)| !same) {
            None => Ok(()),
            Some((what, _)) => {
                Err(format!("belongs to another comparison: {what} differs; it was begun by: {}", self.command))
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
    /// What was run.
    pub side: Side,
    /// Whether it ran before its partner.
    pub first: bool,
    /// The metrics compared.
    pub metrics: RunMetrics,
    /// Where the comparison is about one job: those of the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<JobMetrics>,
    /// Where the time went, where measured.
    pub stages: Option<StageFacts>,
    /// CPU time of the job threads in percent of one CPU each.
    pub job_cpu_percent: Option<f64>,
    /// I/Os that failed and blocks that did not verify.
    pub errors: u64,
    /// Those of `errors` that are blocks that did not verify.
    #[serde(default)]
    pub verify_errors: u64,
    /// Raw latencies.
    pub histograms: Vec<RawHistogram>,
    /// What a report shows beside them; files of earlier versions have none.
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
        /// Why.
        source: io::Error,
    },
    /// A line is not what this version writes.
    #[error("results file {path}, line {line}: {reason}; is it a results file of mqblk, format {FORMAT}?")]
    Line {
        /// The file.
        path: String,
        /// Line number from 1.
        line: usize,
        /// What is wrong.
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
    /// Appends to what is in `out` already.
    pub const fn behind(out: W, path: String) -> ResultsWriter<W> {
        ResultsWriter { out, path }
    }

    /// Writes the header to `out`; `path` names it in errors.
    pub fn new(out: W, path: String, header: &Header) -> Result<ResultsWriter<W>, ResultsError> {
        let mut writer = ResultsWriter { out, path };
        writer.lines(&[LineRef::Setup(header)])?;
        Ok(writer)
    }

    /// Writes both runs of a pair, in the order they ran, at once.
    pub fn pair(&mut self, runs: &[RunRecord; 2]) -> Result<(), ResultsError> {
        self.lines(&[LineRef::Run(&runs[0]), LineRef::Run(&runs[1])])
    }

    /// Writes the comparison.
    pub fn finish(mut self, comparison: &Comparison) -> Result<W, ResultsError> {
        self.lines(&[LineRef::Comparison(comparison)])?;
        Ok(self.out)
    }

    /// One write call, so that a reader never sees half a pair unless the disk is full.
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
    /// The comparison, when it ran to its end.
    pub comparison: Option<Comparison>,
    /// Whether the last line was cut off and left out.
    pub cut_off: bool,
}

impl Results {
    /// Computes the comparison from the runs, without the machine's warnings.
    pub fn evaluate(&self) -> Comparison {
        let h = &self.header;
        let totals = |side, i: usize| totals(&self.runs, side, h.labels[i].clone());
        let pairs = pairs(&self.runs);
        let detected = h.detect.and_then(|d| d.plan(h.plan, h.primary, &pairs));
        let plan = detected.map_or(h.plan, |(plan, _)| plan);
        let mut comparison = Comparison::evaluate(plan, h.primary, &pairs, totals(Side::A, 0), totals(Side::B, 1))
            .with_others(&others(&self.runs));
        comparison.detected = detected.map(|(_, detected)| detected);
        comparison
    }
}

/// The complete pairs among `runs`, which must be in plan order; an unpaired last run is left out.
pub fn pairs(runs: &[RunRecord]) -> Vec<PairResult> {
    let of = |two: &[RunRecord]| match two[0].side {
        Side::A => PairResult { a: two[0].metrics, b: two[1].metrics },
        Side::B => PairResult { a: two[1].metrics, b: two[0].metrics },
    };
    runs.chunks_exact(2).map(of).collect()
}

/// As [`pairs`], for each job that the comparison is not about.
pub fn others(runs: &[RunRecord]) -> Vec<(String, Vec<PairResult>)> {
    let names = runs.first().map_or(&[][..], |run| &run.others);
    let of = |run: &RunRecord, i: usize| run.others.get(i).map(|o| o.metrics).unwrap_or_default();
    let of_job = |i: usize| {
        let of_job: Vec<RunRecord> =
            runs.iter().map(|r| RunRecord { metrics: of(r, i), others: Vec::new(), ..r.clone() }).collect();
        pairs(&of_job)
    };
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
    let (mut header, mut runs, mut comparison, mut cut_off) = (None, Vec::new(), None, false);
    for (i, text) in lines.iter().enumerate() {
        match serde_json::from_str::<Line>(text) {
            Ok(Line::Setup(h)) if i == 0 && h.format == FORMAT => header = Some(*h),
            Ok(Line::Setup(h)) => return Err(bad(i + 1, format!("unexpected setup line of format {}", h.format))),
            Ok(_) if header.is_none() => return Err(bad(1, "the first line is not a setup line".to_owned())),
            Ok(Line::Run(r)) => runs.push(*r),
            Ok(Line::Comparison(c)) => comparison = Some(*c),
            Err(e) if e.is_eof() && i + 1 == lines.len() && i > 0 => cut_off = true,
            Err(e) => return Err(bad(i + 1, e.to_string())),
        }
    }
    let header = header.ok_or_else(|| bad(1, "the file is empty".to_owned()))?;
    let most = if header.detect.is_some() { Plan::MAX_PAIRS } else { 0 };
    check_order(&header.plan.extended_to(most), &runs).map_err(|(run, reason)| bad(run + 2, reason))?;
    Ok(Results { header, runs, comparison, cut_off })
}

/// An interrupted comparison, to be resumed.
#[derive(Clone, Debug, PartialEq)]
pub struct Interrupted {
    /// What is there: whole pairs, and the comparison if it came to its end.
    pub results: Results,
    /// Bytes of the file that are kept: the header and the whole pairs.
    pub kept_bytes: usize,
}

/// Reads a results file to continue with it: what follows the last whole pair is not kept, except the comparison of a finished one.
pub fn interrupted(text: &str, path: &str) -> Result<Interrupted, ResultsError> {
    // A line without its end was being written.
    let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
    let mut results = read(whole.as_bytes(), path)?;
    results.runs.truncate(results.runs.len() / 2 * 2);
    let finished = |c: &Comparison| !matches!(c.verdict, crate::verdict::Verdict::Stopped { .. });
    results.comparison = results.comparison.filter(finished);
    let kept_bytes = whole.split_inclusive('\n').take(1 + results.runs.len()).map(str::len).sum();
    Ok(Interrupted { results, kept_bytes })
}

/// Runs must be those of the plan, in its order: figures from other orders would not hold what `compare` promises.
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

/// A command line that a POSIX shell reads back as exactly these arguments.
pub fn replay_command<S: AsRef<str>>(args: &[S]) -> String {
    args.iter().map(|a| host::shell::quoted(a.as_ref())).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
#[path = "results_tests.rs"]
mod tests;
