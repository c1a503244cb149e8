// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random job files, each run by fio 3.33 and by [`JobThread`]: the same I/Os in the same order, and the same totals as in
//! fio's JSON.
//!
//! A file of jobs is one run of fio, so that the thread number varies, too. A failure prints the job and its seed.

use crate::common;
use crate::fio_files::{FileStep, Scratch, first_difference, our_file_steps_on, run_fio, steps_of_log};
use crate::fio_parity::Data;
use crate::random_jobs::{Case, earlier_run, totals};

use common::fio_is_3_33;
use std::fmt::Write as _;
use std::path::Path;
use workload::engine::ThreadId;
use workload::job::{Job, JobFile, ParseContext};

const JOBS_PER_FILE: usize = 20;

/// What fio did for one job.
struct Theirs {
    steps: Vec<FileStep>,
    /// `total_ios` and `io_bytes` of read, write and trim.
    totals: [(u64, u64); 3],
}

fn run_jobs(dir: &Path, cases: &[Case]) -> Vec<Theirs> {
    // As a process, a job on which fio hangs would outlive the time limit of `run_fio`, and fill the disk with its log.
    let mut text = "[global]\nthread=1\n".to_owned();
    for (n, case) in cases.iter().enumerate() {
        writeln!(text, "{}{}write_iolog=log{n}", case.section(n), case.fio_only()).expect("a String takes all");
    }
    if let Some(first) = earlier_run(&text) {
        run_fio(dir, &first);
    }
    let json = run_fio(dir, &text);
    (0..cases.len())
        .map(|n| {
            let log = std::fs::read_to_string(dir.join(format!("log{n}"))).expect("fio wrote its log");
            Theirs { steps: steps_of_log(&log), totals: totals(&json, n) }
        })
        .collect()
}

/// Whether fio 3.33 marks blocks behind the last word of its random map, in memory of something else.
fn overruns_the_map(job: &Job) -> bool {
    let blocks = job.strided.map(|zones| zones.range_bytes / job.min_bs());
    job.rw.random && !job.has_no_map() && blocks.is_some_and(|n| n.is_multiple_of(64))
}

/// Returns what differs between fio's run of a job and ours.
fn difference(text: &str, number: u32, theirs: &Theirs) -> Option<String> {
    let mut data = Data::new();
    let mut run = |text: &str| {
        let file = JobFile::parse_str(text, &ParseContext::bare("jobs.fio"), &[]).map_err(|e| e.to_string())?;
        let id = ThreadId { instance: 0, number, entropy: 0 };
        let done = our_file_steps_on(&mut data, &file.jobs[0], id, |_| 0)?;
        Ok::<_, String>((done, overruns_the_map(&file.jobs[0])))
    };
    if let Some(first) = earlier_run(text)
        && let Err(error) = run(&first)
    {
        return Some(format!("refused: {error}"));
    }
    let (mut ours, stats) = match run(text) {
        Ok((_, true)) => return None,
        Ok((ours, false)) => ours,
        Err(error) => return Some(format!("refused: {error}")),
    };
    if text.contains("verify=") {
        ours.retain(|(_, step)| step.0 != "sync");
    }
    // fio 3.33 refuses a register of ones as a seed, which depends on the number of the thread.
    if text.contains("random_generator=lfsr") && theirs.steps.is_empty() {
        return None;
    }
    if let Some(difference) = first_difference(&ours, &theirs.steps) {
        return Some(difference);
    }
    if stats.verify_errors > 0 {
        return Some(format!("{} verify errors", stats.verify_errors));
    }
    let totals: Vec<(u64, u64)> = stats.dirs.iter().map(|d| (d.ios, d.bytes)).collect();
    (totals != theirs.totals).then(|| format!("totals {totals:?}, fio {:?}", theirs.totals))
}

/// Compares `count` random jobs, starting with the seed `seed`. With `bytes` they are not in whole sectors.
fn compare(name: &str, count: usize, seed: u64, bytes: bool) {
    if !fio_is_3_33() {
        return;
    }
    let mut differences = Vec::new();
    for first in (0..count).step_by(JOBS_PER_FILE) {
        // fio appends to a log that is there, so each run has a new directory.
        let dir = Scratch::new(&format!("random-{name}"));
        let seeds: Vec<u64> = (first..count.min(first + JOBS_PER_FILE)).map(|n| seed + n as u64).collect();
        let cases: Vec<Case> = seeds.iter().map(|&seed| Case::new(seed, bytes)).collect();
        for (n, theirs) in run_jobs(&dir.0, &cases).iter().enumerate() {
            let text = cases[n].section(n);
            if let Some(difference) = difference(&text, n as u32 + 1, theirs) {
                differences.push(format!("seed {}, thread {}: {difference}\n{text}", seeds[n], n + 1));
            }
        }
    }
    assert!(differences.is_empty(), "{} of {count} jobs differ:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn random_jobs_are_fio_s() {
    compare("few", 60, 1, false);
}

#[test]
fn random_jobs_in_bytes_are_fio_s() {
    compare("bytes", 60, 1, true);
}

/// Run by `cargo xtask test --deep`.
mod deep {
    use crate::random_jobs::{deep_count, deep_seed};

    #[test]
    fn many_random_jobs_are_fio_s() {
        super::compare("many", deep_count(500), deep_seed(), false);
    }

    #[test]
    fn many_random_jobs_in_bytes_are_fio_s() {
        super::compare("many-bytes", deep_count(500), deep_seed(), true);
    }
}
