// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random job files, each run by fio 3.33 and by [`JobThread`]: the same I/Os in the same order, and the same totals as in
//! fio's JSON.
//!
//! A file of jobs is one run of fio, so that the thread number varies, too. A failure prints the job and its seed.

use crate::common;
use crate::fio_files::{FileStep, Scratch, first_difference, our_file_steps_on, steps_of_log, try_fio};
use crate::fio_parity::Data;
use crate::random_jobs::{Case, earlier_run, totals};

use common::fio_is_3_33;
use std::fmt::Write as _;
use std::panic::catch_unwind;
use std::path::Path;
use workload::engine::ThreadId;
use workload::job::{Job, JobFile, ParseContext};

const JOBS_PER_FILE: usize = 20;

/// What fio did for one job.
struct Theirs {
    steps: Vec<FileStep>,
    /// `total_ios` and `io_bytes` of read, write and trim.
    totals: [(u64, u64); 3],
    /// It ended with an error.
    failed: bool,
}

/// Whether the job `j{n}` ended with an error, by fio's JSON.
fn failed(json: &str, n: usize) -> bool {
    let results = json.split_once(&format!("\"jobname\" : \"j{n}\"")).expect("the job is in the results").1;
    let error = results.split_once("\"error\" : ").expect("the key is listed").1;
    !error.starts_with("0,")
}

/// Runs jobs with fio. Fails if fio does.
fn run_jobs(dir: &Path, cases: &[Case]) -> Result<Vec<Theirs>, String> {
    // As a process, a job on which fio hangs would outlive the time limit of `run_fio`, and fill the disk with its log.
    let mut text = "[global]\nthread=1\n".to_owned();
    for (n, case) in cases.iter().enumerate() {
        writeln!(text, "{}{}write_iolog=log{n}", case.section(n), case.fio_only()).expect("a String takes all");
    }
    if let Some(first) = earlier_run(&text) {
        try_fio(dir, &first)?;
    }
    let json = try_fio(dir, &text)?;
    let theirs = (0..cases.len())
        .map(|n| {
            let log = std::fs::read_to_string(dir.join(format!("log{n}"))).expect("fio wrote its log");
            Theirs { steps: steps_of_log(&log), totals: totals(&json, n), failed: failed(&json, n) }
        })
        .collect();
    Ok(theirs)
}

/// Whether fio 3.33 may mark blocks behind the last word of a random map, in memory of something else: I/Os may pass the last block
/// of the map, and that is the last one of a word.
fn overruns_the_map(job: &Job, number: u32) -> bool {
    let shares = job.file_shares(0, number, |_| 0);
    let sizes = shares.iter().map(|share| share.filesize_bytes.unwrap_or(share.size.map_or(0, |size| size.of(0))));
    let has_full_words = |bytes: u64| (bytes / job.min_bs()).is_multiple_of(64);
    let may_pass = |bytes: u64| !bytes.is_multiple_of(job.min_bs());
    job.rw.random
        && !job.has_no_map()
        && match job.strided {
            Some(zones) => has_full_words(zones.range_bytes),
            None => sizes.into_iter().any(|bytes| may_pass(bytes) && has_full_words(bytes)),
        }
}

/// Returns what differs between fio's run of a job and ours.
fn difference(text: &str, number: u32, theirs: &Theirs) -> Option<String> {
    let mut data = Data::new();
    let mut run = |text: &str| {
        let file = JobFile::parse_str(text, &ParseContext::bare("jobs.fio"), &[]).map_err(|e| e.to_string())?;
        let id = ThreadId { instance: 0, number, entropy: 0 };
        let done = our_file_steps_on(&mut data, &file.jobs[0], id, |_| 0)?;
        Ok::<_, String>((done, overruns_the_map(&file.jobs[0], number)))
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
    // With verify_only, another pass may follow that the earlier run did not write.
    if stats.verify_errors > 0 && !theirs.failed {
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
    let (mut differences, mut crashes) = (Vec::new(), Vec::new());
    for first in (0..count).step_by(JOBS_PER_FILE) {
        // fio appends to a log that is there, so each run has a new directory.
        let dir = Scratch::new(&format!("random-{name}"));
        let seeds: Vec<u64> = (first..count.min(first + JOBS_PER_FILE)).map(|n| seed + n as u64).collect();
        let cases: Vec<Case> = seeds.iter().map(|&seed| Case::new(seed, bytes)).collect();
        let theirs = match run_jobs(&dir.0, &cases) {
            Ok(theirs) => theirs,
            Err(said) => {
                crashes.push(format!("seeds from {}: {said}", seeds[0]));
                continue;
            }
        };
        for (n, theirs) in theirs.iter().enumerate() {
            let text = cases[n].section(n);
            let difference = catch_unwind(|| difference(&text, n as u32 + 1, theirs));
            if let Some(difference) = difference.unwrap_or_else(|_| Some("panic".into())) {
                differences.push(format!("seed {}, thread {}: {difference}\n{text}", seeds[n], n + 1));
            }
        }
    }
    // fio 3.33 itself crashes or hangs on few of the jobs.
    let runs = count.div_ceil(JOBS_PER_FILE);
    assert!(50 * crashes.len() <= runs, "fio failed in {} of {runs} runs:\n{}", crashes.len(), crashes.join("\n"));
    crashes.iter().for_each(|crash| println!("not compared, because fio failed: {crash}"));
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
