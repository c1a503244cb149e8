// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random job files, each run by fio with an engine of its own and with ours: the same I/Os in the same order, and the same
//! totals in fio's JSON.
//!
//! The generator is that of the workload's tests (`random_jobs.rs`). A failure prints the job and its seed. All of its options take
//! part, but not all of its jobs. Left out are:
//!
//! - jobs in bytes, because a disk takes whole sectors
//! - on the null driver, jobs with several files: fio divides `size` in its own way, and each target has one size
//! - on the null driver, verification: it keeps no data
//! - on the file driver, trims of several passes, and I/O backwards in several files ([`Driver::takes`])
//!
//! fio's own engine is the one that ends I/Os where ours does: a pass of `loops` or `io_size` ends by bytes only if its I/Os do not
//! end while they are queued.

use crate::common::{Dir, engine};
use crate::random_jobs::{Case, earlier_run, totals};
use std::fmt::Write as _;
use std::fs;

const JOBS_PER_FILE: usize = 20;

/// What the engine's disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Driver {
    Null,
    File,
}

/// The value of an option.
fn number(case: &Case, option: &str) -> Option<u64> {
    let value = case.text.lines().find_map(|line| line.strip_prefix(option)?.strip_prefix('='));
    value.map(|value| value.parse().unwrap())
}

/// What fio did for a job.
struct Ran {
    /// Operation, file, offset and length of each I/O.
    steps: Vec<String>,
    totals: [(u64, u64); 3],
}

impl Driver {
    /// Whether the driver can have this job. Only fio's null engine trims here, and it ends I/Os while they are queued. A trim of
    /// a file ends later, so that the job may only end with its region.
    fn takes(self, case: &Case) -> bool {
        let ends_by_bytes = ["trimwrite", "loops=", "io_size="].iter().any(|option| case.text.contains(option));
        match self {
            Driver::Null => case.files == 1 && !case.text.contains("verify="),
            // Backwards from the end of a file that is no multiple of a sector, no I/O is whole sectors.
            Driver::File if case.files > 1 && case.text.contains(":-") => false,
            Driver::File => case.engine != "null" || !ends_by_bytes,
        }
    }

    /// Returns the names of a job's files, in the form of `filename`.
    fn filename(self, n: usize, case: &Case) -> String {
        match self {
            Driver::File => case.file_names(n).join(":"),
            Driver::Null => {
                format!("null\\:size={}", number(case, "size").unwrap() + number(case, "offset").unwrap_or(0))
            }
        }
    }

    /// The engine of fio whose I/Os end where ours do.
    fn reference(self, case: &Case) -> &'static str {
        match self {
            // An I/O on the null driver ends while it is queued, unless it waits for others of its batch.
            Driver::Null if case.engine != "null" && number(case, "iodepth_batch").unwrap_or(1) == 1 => "psync",
            _ => case.engine,
        }
    }
}

fn run(dir: &Dir, driver: Driver, cases: &[Case], engine: impl Fn(&Case) -> String) -> Vec<Ran> {
    // As a process, a job on which fio hangs would outlive the time limit, and fill the disk with its log.
    let mut text = "[global]\nthread=1\n".to_owned();
    for (n, case) in cases.iter().enumerate() {
        let (name, engine) = (driver.filename(n, case), engine(case));
        let options = format!("{}{}", case.text, case.fio_only());
        write!(text, "[j{n}]\nfilename={name}\nioengine={engine}\n{options}write_iolog=log{n}\n").unwrap();
    }
    // fio appends to a log that is there, so each run has a new directory.
    for text in earlier_run(&text).iter().chain([&text]) {
        fs::write(dir.path("jobs.fio"), text).unwrap();
        let done = dir.program("fio", &[], &["--output-format=json", "--output=out", "jobs.fio"]);
        assert!(done.ok, "{}{}\n{text}", done.out, done.err);
    }
    let json = fs::read_to_string(dir.path("out")).unwrap();
    (0..cases.len())
        .map(|n| {
            let log = fs::read_to_string(dir.path(&format!("log{n}"))).unwrap();
            // Each line begins with a time; files are opened and closed when the engine likes.
            let io = |line: &str| {
                Some(line.split_once(' ')?.1.to_owned()).filter(|io| !io.ends_with("open") && !io.ends_with("close"))
            };
            Ran { steps: log.lines().skip(1).filter_map(io).collect(), totals: totals(&json, n) }
        })
        .collect()
}

/// Says where two runs of a job differ.
fn difference(theirs: &Ran, ours: &Ran) -> Option<String> {
    let most = theirs.steps.len().max(ours.steps.len());
    if let Some(at) = (0..most).find(|&i| theirs.steps.get(i) != ours.steps.get(i)) {
        let around = |steps: &[String]| steps.iter().skip(at.saturating_sub(1)).take(4).cloned().collect::<Vec<_>>();
        let (a, b) = (around(&ours.steps), around(&theirs.steps));
        return Some(format!("I/O {at} of {} (fio: {}): {a:?}\n  fio {b:?}", ours.steps.len(), theirs.steps.len()));
    }
    (theirs.totals != ours.totals).then(|| format!("totals {:?}, fio {:?}", ours.totals, theirs.totals))
}

/// Compares `count` random jobs, starting with the seed `seed`.
fn compare(driver: Driver, count: usize, seed: u64) {
    let mut seeds = seed..;
    let (mut differences, mut ios) = (Vec::new(), 0);
    for first in (0..count).step_by(JOBS_PER_FILE) {
        let drawn = seeds.by_ref().map(|seed| (seed, Case::new(seed, false))).filter(|(_, case)| driver.takes(case));
        let (seeds, cases): (Vec<u64>, Vec<Case>) = drawn.take(JOBS_PER_FILE.min(count - first)).unzip();
        let theirs = run(&Dir::new("theirs"), driver, &cases, |case| driver.reference(case).to_owned());
        let ours = run(&Dir::new("ours"), driver, &cases, |_| engine());
        for (n, (theirs, ours)) in theirs.iter().zip(&ours).enumerate() {
            ios += theirs.steps.len();
            if let Some(difference) = difference(theirs, ours) {
                let (seed, text) = (seeds[n], cases[n].section(n));
                differences.push(format!("seed {seed}, thread {}: {difference}\n{text}", n + 1));
            }
        }
    }
    assert!(ios > 10 * count, "only {ios} I/Os in {count} jobs");
    assert!(differences.is_empty(), "{} of {count} jobs differ:\n{}", differences.len(), differences.join("\n"));
}

#[test]
fn random_jobs_on_null_are_fio_s() {
    compare(Driver::Null, 60, 1);
}

#[test]
fn random_jobs_on_files_are_fio_s() {
    compare(Driver::File, 60, 1);
}

/// Run by `cargo xtask test --deep`.
mod deep {
    use super::{Driver, compare};
    use crate::random_jobs::{deep_count, deep_seed};

    #[test]
    fn many_random_jobs_on_null_are_fio_s() {
        compare(Driver::Null, deep_count(200), deep_seed());
    }

    #[test]
    fn many_random_jobs_on_files_are_fio_s() {
        compare(Driver::File, deep_count(200), deep_seed());
    }
}
