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

/// Returns the only job of a job file.
fn job_of(text: &str) -> Result<Job, String> {
    let file = JobFile::parse_str(text, &ParseContext::bare("jobs.fio"), &[]).map_err(|e| e.to_string())?;
    Ok(file.jobs.into_iter().next().expect("a job"))
}

/// Whether fio 3.33 may mark blocks behind the memory of a random map. It does if an I/O can pass the last block of the map, and the map
/// ends with a whole word of 64 blocks.
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
        let job = job_of(text)?;
        let id = ThreadId { instance: 0, number, entropy: 0 };
        our_file_steps_on(&mut data, &job, id, |_| 0)
    };
    if let Some(first) = earlier_run(text)
        && let Err(error) = run(&first)
    {
        return Some(format!("refused: {error}"));
    }
    let (mut ours, stats) = match run(text) {
        Ok(ours) => ours,
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

/// Compares the jobs of these seeds, in one run of fio. Adds to `skipped` how many were not compared. Fails if fio does.
fn compare_run(name: &str, seeds: &[u64], bytes: bool, skipped: &mut usize) -> Result<Vec<String>, String> {
    // fio appends to a log that is there, so each run has a new directory.
    let dir = Scratch::new(&format!("random-{name}"));
    let cases: Vec<Case> = seeds.iter().map(|&seed| Case::new(seed, bytes)).collect();
    let mut differences = Vec::new();
    for (n, theirs) in run_jobs(&dir.0, &cases)?.iter().enumerate() {
        let (text, number) = (cases[n].section(n), n as u32 + 1);
        if job_of(&text).is_ok_and(|job| overruns_the_map(&job, number)) {
            *skipped += 1;
            continue;
        }
        let difference = catch_unwind(|| difference(&text, number, theirs));
        if let Some(difference) = difference.unwrap_or_else(|_| Some("panic".into())) {
            differences.push(format!("seed {}, thread {number}: {difference}\n{text}", seeds[n]));
        }
    }
    Ok(differences)
}

/// Compares `count` random jobs, starting with the seed `seed`. With `bytes` they are not in whole sectors.
fn compare(name: &str, count: usize, seed: u64, bytes: bool) {
    if !fio_is_3_33() {
        return;
    }
    let (mut differences, mut crashes, mut skipped) = (Vec::new(), Vec::new(), 0);
    let seeds: Vec<u64> = (0..count as u64).map(|n| seed + n).collect();
    for seeds in seeds.chunks(JOBS_PER_FILE) {
        if let Ok(found) = compare_run(name, seeds, bytes, &mut skipped) {
            differences.extend(found);
            continue;
        }
        for seed in seeds {
            match compare_run(name, &[*seed], bytes, &mut skipped) {
                Ok(found) => differences.extend(found),
                Err(said) => crashes.push(format!("seed {seed}: {said}")),
            }
        }
    }
    // fio 3.33 itself crashes or hangs on a few jobs.
    assert!(
        crashes.len() <= 1 + count / 500,
        "fio failed on {} of {count} jobs:\n{}",
        crashes.len(),
        crashes.join("\n")
    );
    assert!(skipped <= 2 + count / 20, "{skipped} of {count} jobs were not compared");
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
