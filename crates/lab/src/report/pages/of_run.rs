// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report of one run.
//!
//! Guarantees: the sentence at its top has the rate, with an interval from the variation within the run, and says that the
//! interval covers nothing else. A run with errors, or an interrupted run, says so first. Jobs that ran one after the other
//! at several depths give the chart of rate against depth. Needs from callers: the run as a record with detail. Does not:
//! compare.

use serde_json::{Value, json};

use super::parts;
use crate::detail::{JobDetail, RunDetail, SliceTable};
use crate::plan::Side;
use crate::report::num;
use crate::results::RunRecord;
use crate::setup::Setup;
use crate::stage::StageFacts;
use crate::stats::{descriptive, student_t};
use crate::verdict::COVERAGE;
use crate::warning::Warning;
use report::chart::{DepthPoint, depth_charts};
use report::document::{Block, Caveat, Document, FORMAT, Kind, Section, Tone, Verdict};
use report::unit::Unit;

/// The data of a run.
pub struct RunInput<'a> {
    /// Its figures.
    pub record: &'a RunRecord,
    /// The machine.
    pub setup: &'a Setup,
    /// The command line.
    pub command: &'a str,
    /// Name of the job file.
    pub name: &'a str,
    /// Text of the job file.
    pub job: &'a str,
    /// Wall clock at its start, milliseconds since 1970.
    pub started_unix_ms: u64,
    /// Deviations from what was requested.
    pub warnings: &'a [String],
    /// Rates and latencies of each job over time, if several ran.
    pub job_slices: &'a [(String, SliceTable)],
    /// The run was interrupted.
    pub stopped: bool,
    /// fio's JSON of the run, for the sidecar.
    pub fio: Value,
}

/// Makes the report.
pub fn document(input: &RunInput<'_>) -> Document {
    let r = input.record;
    let none = RunDetail::default();
    let detail = r.detail.as_deref().unwrap_or(&none);
    let facts = r.stages.clone().unwrap_or_default();
    let sides = [(String::new(), &facts)];
    let named = [("all jobs".to_owned(), parts::pooled(r.histograms.iter(), &detail.jobs))];
    let mut sections: Vec<Section> = Vec::new();
    sections.extend(parts::jobs(&detail.jobs));
    sections.extend(depth_section(&run_points(&detail.jobs)));
    sections.extend(parts::percentiles(&named));
    sections.extend(detail.slices.as_ref().and_then(|t| parts::over_time(&[("all jobs".to_owned(), t)])));
    sections.extend(parts::jobs_over_time(input.job_slices));
    sections.extend(parts::stages(&[("run".to_owned(), &facts)]));
    sections.extend(parts::balance(&sides));
    sections.push(parts::little(&sides));
    sections.extend(parts::settings(&[(String::new(), &detail.targets)]));
    sections.push(parts::environment(input.setup));
    sections.push(parts::reproduce(input.command, None, input.job, None));
    Document {
        format: FORMAT,
        kind: Kind::Run,
        title: format!("Run of {}", input.name),
        subtitle: subtitle(input.setup, input.started_unix_ms),
        verdict: verdict(input, detail, &facts),
        sections,
        data: json!({ "record": r, "setup": input.setup, "command": input.command, "fio": input.fio }),
    }
}

/// Program, machine and time.
pub fn subtitle(setup: &Setup, unix_ms: u64) -> String {
    let kernel = setup.kernel.as_deref().map(|k| format!("Linux {k}"));
    let time = format!("{} UTC", num::ctime(unix_ms / 1000));
    let all = [Some(setup.program.clone()), kernel, setup.cpu_model.clone(), Some(time)];
    all.into_iter().flatten().filter(|s| !s.is_empty()).collect::<Vec<_>>().join(" \u{b7} ")
}

fn verdict(input: &RunInput<'_>, detail: &RunDetail, facts: &StageFacts) -> Verdict {
    let r = input.record;
    let busy = busiest(&detail.jobs);
    let own = Warning::of_side(Side::A, Some(facts), r.job_cpu_percent).into_iter();
    let machine = Warning::of_setup(input.setup, busy);
    let mut warnings: Vec<Caveat> = own.map(|w| parts::caveat(&w)).collect();
    // A run has only one side, which has no letter.
    warnings.iter_mut().for_each(|w| w.text = w.text.trim_start_matches("A: ").to_owned());
    warnings.extend(machine.iter().map(parts::caveat));
    warnings.extend(input.warnings.iter().map(|text| Caveat { text: text.clone(), advice: String::new() }));
    let (tone, word) = match (r.errors, input.stopped) {
        (1.., _) => (Tone::Bad, "Errors"),
        (0, true) => (Tone::Caution, "Interrupted"),
        (0, false) if facts.ios == 0 => (Tone::Caution, "No I/O"),
        (0, false) if !warnings.is_empty() => (Tone::Caution, "Measured, with reservations"),
        (0, false) => (Tone::Good, "Measured"),
    };
    Verdict { tone, word: word.to_owned(), sentence: sentence(r, detail, facts), warnings, ..Verdict::default() }
}

fn sentence(r: &RunRecord, detail: &RunDetail, facts: &StageFacts) -> String {
    let m = &r.metrics;
    let together = detail.jobs.iter().all(|j| j.wave == 0);
    let interval = detail.slices.as_ref().filter(|_| together).and_then(rate_interval);
    let rate = m.iops.map(|iops| {
        let interval = interval.map_or_else(String::new, |(low, high, _)| {
            format!(" [{}, {}]", Unit::PerSecond.text(low), Unit::PerSecond.text(high))
        });
        format!("{}{interval} I/Os per second", Unit::PerSecond.text(iops))
    });
    let tps = m.tps.map(|t| format!("{} transactions per second", Unit::PerSecond.text(t)));
    let latency = |what: &str, ns: Option<f64>| ns.map(|ns| format!("{what} {}", Unit::Nanoseconds.text(ns)));
    let figures = [tps, rate, latency("mean latency", m.latency_mean_ns), latency("p99", m.latency_p99_ns)];
    let figures: Vec<String> = figures.into_iter().flatten().collect();
    let failed = r.errors.saturating_sub(r.verify_errors);
    let errors = match (failed, r.verify_errors) {
        (0, 0) => "none failed".to_owned(),
        (n, 0) => format!("{n} failed"),
        (n, bad) => format!("{n} failed, {bad} blocks do not hold what was written"),
    };
    let seconds = Unit::Seconds.text(detail.measured_ns as f64 / 1e9);
    let ios = Unit::Count.text(facts.ios as f64);
    let what = if figures.is_empty() { "nothing was measured".to_owned() } else { figures.join(", ") };
    let note = interval.map_or_else(String::new, |(.., n)| {
        format!(" The 95 % interval covers variation within this run ({n} parts): another run may differ by more.")
    });
    format!("{what}; one run of {seconds}, {ios} I/Os, {errors}.{note}")
}

/// Maximum number of threads that ran at the same time.
pub fn busiest(jobs: &[JobDetail]) -> u32 {
    let of = |wave: u32| jobs.iter().filter(|j| j.wave == wave).map(|j| j.threads).sum();
    jobs.iter().map(|j| of(j.wave)).max().unwrap_or(0)
}

/// Number of parts of a run that the interval is computed from.
const PARTS: usize = 20;
/// With fewer parts there is no interval.
const PARTS_MIN: usize = 8;

/// Returns the interval of the rate from the means of equal parts of the run, and the number of parts. Neighbouring slices
/// are correlated, longer parts less.
fn rate_interval(t: &SliceTable) -> Option<(f64, f64, usize)> {
    let whole: Vec<f64> = t
        .columns
        .iter()
        .filter(|c| 2 * c.covered_ns > t.width_ns)
        .map(|c| 1e9 * c.total() as f64 / c.covered_ns as f64)
        .collect();
    let per_part = whole.len().div_ceil(PARTS).max(1);
    let means: Vec<f64> = whole.chunks_exact(per_part).filter_map(descriptive::mean).collect();
    if means.len() < PARTS_MIN {
        return None;
    }
    let n = means.len();
    let (mean, deviation) = (descriptive::mean(&means)?, descriptive::stddev(&means)?);
    let half = student_t::critical(1.0 - COVERAGE, u32::try_from(n - 1).ok()?) * deviation / (n as f64).sqrt();
    Some(((mean - half).max(0.0), mean + half, n))
}

/// Jobs that had the device to themselves, as points against depth.
pub fn run_points(jobs: &[JobDetail]) -> Vec<DepthPoint> {
    let alone = |j: &&JobDetail| jobs.iter().filter(|o| o.wave == j.wave).count() == 1 && j.rw != "oltp" && !j.rated;
    let points = jobs.iter().filter(alone).filter_map(|j| {
        let size = Unit::Bytes.tick(j.bytes.1 as f64);
        let threads = if j.threads == 1 { "1 thread".to_owned() } else { format!("{} threads", j.threads) };
        Some(DepthPoint {
            series: format!("{} {size}, {threads}", j.rw),
            depth: f64::from(j.iodepth) * f64::from(j.threads),
            iops: j.metrics.iops?,
            iops_interval: None,
            latency_mean_ns: j.metrics.latency_mean_ns?,
            latency_p99_ns: j.metrics.latency_p99_ns,
        })
    });
    points.collect()
}

/// The section of [`depth_charts`], when there is something to draw.
pub fn depth_section(points: &[DepthPoint]) -> Option<Section> {
    let charts = depth_charts("depth", &shortened(points));
    let lead = "Where I/Os per second no longer grow, more I/Os in flight only raise the latency.";
    let mut section = Section::new("depth", "Throughput and latency against depth", lead);
    section.blocks.extend(charts.into_iter().map(Block::from));
    (!section.blocks.is_empty()).then_some(section)
}

/// Removes the words that all series have in common: `randread 4 KiB` of `randread 4 KiB, 1 thread`.
fn shortened(points: &[DepthPoint]) -> Vec<DepthPoint> {
    let mut points = points.to_vec();
    let head = |p: &DepthPoint| p.series.split_once(", ").map(|(head, _)| head.to_owned());
    let common = points.first().and_then(head);
    let rest = |p: &DepthPoint| Some(p.series.strip_prefix(common.as_deref()?)?.strip_prefix(", ")?.to_owned());
    if let Some(names) = points.iter().map(rest).collect::<Option<Vec<String>>>() {
        points.iter_mut().zip(names).for_each(|(p, name)| p.series = name);
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detail::SliceColumn;

    fn job(name: &str, wave: u32, iodepth: u32) -> JobDetail {
        let mut j = JobDetail {
            job: name.into(),
            wave,
            threads: 2,
            iodepth,
            rw: "randread".into(),
            bytes: (4096, 4096),
            ..JobDetail::default()
        };
        (j.metrics.iops, j.metrics.latency_mean_ns) = (Some(1e4 * f64::from(iodepth)), Some(2e5));
        j
    }

    #[test]
    fn jobs_in_turn_are_points_and_jobs_together_are_not() {
        let points = run_points(&[job("a", 0, 1), job("b", 1, 4), job("c", 2, 8), job("d", 2, 8)]);
        assert_eq!(points.iter().map(|p| p.depth).collect::<Vec<_>>(), [2.0, 8.0]);
        assert_eq!(points[0].series, "randread 4\u{a0}KiB, 2 threads");
        assert!(depth_section(&points).is_some() && depth_section(&points[..1]).is_none());
        assert_eq!(busiest(&[job("a", 0, 1), job("c", 2, 8), job("d", 2, 8)]), 4);
    }

    #[test]
    fn the_interval_is_that_of_the_parts_means() {
        let column = |n: u64| SliceColumn { covered_ns: 1_000_000, ios: [n, 0, 0], ..SliceColumn::default() };
        let even = SliceTable { width_ns: 1_000_000, columns: vec![column(50); 40] };
        assert_eq!(rate_interval(&even), Some((50_000.0, 50_000.0, 20)));
        let swings =
            SliceTable { width_ns: 1_000_000, columns: (0..40).map(|i| column(40 + 20 * (i / 2 % 2))).collect() };
        let (low, high, n) = rate_interval(&swings).unwrap();
        // 20 means of 40 and 60 thousand: half = 2.093 * 10.26 / sqrt(20).
        assert!((low - 45_198.0).abs() < 20.0 && (high - 54_802.0).abs() < 20.0 && n == 20, "{low} {high} {n}");
        assert_eq!(rate_interval(&SliceTable { columns: even.columns[..7].to_vec(), ..even }), None);
    }
}
