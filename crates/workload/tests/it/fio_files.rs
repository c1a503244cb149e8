// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Jobs with several files, run by fio 3.33 and by [`JobThread`]: the same I/Os to the same files in the same order, files of
//! the same names and sizes.
//!
//! fio reads one job file for each test; its jobs are sections. Random numbers depend on the number of the thread, so the
//! sections of a test cover several of them. Needs fio 3.33; without it the tests print that they skipped.

use crate::common;
use crate::fio_parity::{Data, Step, step_of_line, steps_on};
use common::fio_is_3_33;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use workload::engine::{FileTarget, JobThread, ThreadId};
use workload::job::{FileShare, Job, JobFile, ParseContext};
use workload::stats::JobStats;

/// A directory that is removed with the test.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("fio-files-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("the target directory is writable");
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An I/O and the name of its file.
pub type FileStep = (String, Step);

/// Reads a log of fio.
pub fn steps_of_log(log: &str) -> Vec<FileStep> {
    let name = |line: &str| line.split_whitespace().nth(1).unwrap_or_default().to_owned();
    log.lines().filter_map(|line| Some((name(line), step_of_line(line)?))).collect()
}

/// Returns the I/Os of a thread, with all files as large as the job asks. `bytes_of`: sizes of files that exist.
pub fn our_file_steps(
    job: &Job,
    id: ThreadId,
    bytes_of: impl FnMut(&str) -> u64,
) -> Result<(Vec<FileStep>, JobStats), String> {
    our_file_steps_on(&mut Data::new(), job, id, bytes_of)
}

/// As [`our_file_steps`], on files with this data, which only verified jobs use.
pub fn our_file_steps_on(
    data: &mut Data,
    job: &Job,
    id: ThreadId,
    mut bytes_of: impl FnMut(&str) -> u64,
) -> Result<(Vec<FileStep>, JobStats), String> {
    let names = job.file_names(id.instance, &|_| false);
    let shares = job.file_shares(id.entropy, id.number, |file| bytes_of(&names[file]));
    let mut bytes =
        |(share, name): (FileShare, &String)| job.reach(share, id.instance).unwrap_or(0).max(bytes_of(name));
    let targets: Vec<FileTarget> =
        shares.iter().zip(&names).map(|(&share, name)| FileTarget { bytes: bytes((share, name)), share }).collect();
    let thread = JobThread::with_files(job, id, &targets).map_err(|e| e.to_string())?;
    let (steps, stats) = steps_on(job.verify.is_some().then_some(data), thread);
    Ok((steps.into_iter().map(|(file, step)| (names[file as usize].clone(), step)).collect(), stats))
}

/// Says where two sequences differ.
pub fn first_difference(ours: &[FileStep], theirs: &[FileStep]) -> Option<String> {
    let i = (0..ours.len().max(theirs.len())).find(|&i| ours.get(i) != theirs.get(i))?;
    let around =
        |steps: &[FileStep]| format!("{:?}", &steps[i.saturating_sub(1).min(steps.len())..steps.len().min(i + 4)]);
    Some(format!("I/O {i} of {} (fio: {}): {}\n  fio {}", ours.len(), theirs.len(), around(ours), around(theirs)))
}

/// Runs a job file with fio in `dir`.
pub fn run_fio(dir: &Path, text: &str) -> String {
    try_fio(dir, text).unwrap_or_else(|said| panic!("fio: {said}\n{text}"))
}

/// Runs a job file with fio in `dir`. Returns its results, or what it said if it failed, crashed or did not end within a minute.
pub fn try_fio(dir: &Path, text: &str) -> Result<String, String> {
    std::fs::write(dir.join("jobs.fio"), text).expect("the target directory is writable");
    let command = ["-k", "5", "60", "fio", "--output-format=json", "--output=out", "jobs.fio"];
    let run = Command::new("timeout").current_dir(dir).args(command).output().expect("fio is installed");
    if !run.status.success() {
        let said = String::from_utf8_lossy(&run.stderr).into_owned() + &String::from_utf8_lossy(&run.stdout);
        return Err(format!("{}: {said}", run.status));
    }
    Ok(std::fs::read_to_string(dir.join("out")).expect("fio wrote its results"))
}

/// Compares the sections of a job file, given as options in one line each, on top of `global`.
fn same(name: &str, global: &str, sections: &[&str]) {
    if !fio_is_3_33() {
        return;
    }
    let dir = Scratch::new(name);
    let lines = |options: &str| options.split_whitespace().fold(String::new(), |text, o| text + o + "\n");
    let mut text = format!("[global]\n{}", lines(global));
    for (n, section) in sections.iter().enumerate() {
        write!(text, "[j{n}]\n{}write_iolog=log{n}\n", lines(section)).expect("a String takes all");
    }
    run_fio(&dir.0, &text);
    let ours = text.lines().filter(|line| !line.starts_with("write_iolog")).collect::<Vec<_>>().join("\n");
    let file = JobFile::parse_str(&ours, &ParseContext::bare("jobs.fio"), &[]).expect("a valid job file");
    let mut wrong = Vec::new();
    for (n, job) in file.jobs.iter().enumerate() {
        let log = std::fs::read_to_string(dir.0.join(format!("log{n}"))).expect("fio wrote its log");
        let id = ThreadId { instance: 0, number: n as u32 + 1, entropy: 0 };
        let theirs = steps_of_log(&log);
        assert!(theirs.len() > 2, "{name} {n}: fio did {} I/Os", theirs.len());
        let (ours, _) = our_file_steps(job, id, |_| 0).expect("the job fits");
        if let Some(difference) = first_difference(&ours, &theirs) {
            wrong.push(format!("{}: {difference}", sections[n]));
        }
        let names = job.file_names(0, &|_| false);
        for (share, name) in job.file_shares(0, id.number, |_| 0).into_iter().zip(&names) {
            let asked = job.reach(share, 0).expect("sizes are in bytes");
            let is = std::fs::metadata(dir.0.join(name)).map(|m| m.len());
            if !is.as_ref().is_ok_and(|&is| is == asked) {
                wrong.push(format!("{}: {name} has {is:?} bytes, asked {asked}", sections[n]));
            }
        }
    }
    assert!(wrong.is_empty(), "{name}: {} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Every way to choose a file, with and without a number of I/Os, for sequential and random jobs.
#[test]
fn files_are_chosen_as_by_fio() {
    let services = [
        "roundrobin",
        "roundrobin:3",
        "roundrobin:0",
        "sequential",
        "random",
        "random:5",
        "zipf",
        "zipf:1.3",
        "zipf:1.2:0.5",
        "pareto",
        "pareto:0.9",
        "normal",
        "gauss:30",
        "normal:20:0.75",
    ];
    let global = "ioengine=libaio size=1m bs=4k nrfiles=5 overwrite=1";
    for rw in ["read", "randwrite", "randrw", "rw"] {
        let sections: Vec<String> = services.iter().map(|s| format!("rw={rw} file_service_type={s}")).collect();
        same(&format!("services-{rw}"), global, &sections.iter().map(String::as_str).collect::<Vec<_>>());
    }
}

#[test]
fn depth_does_not_change_the_order_of_files() {
    let sections = [
        "rw=randread iodepth=8 nrfiles=7 size=700k",
        "rw=write iodepth=16 iodepth_batch=4 nrfiles=3 size=1m file_service_type=sequential",
        "rw=randrw iodepth=4 nrfiles=4 size=1m file_service_type=random:2",
        "rw=randwrite iodepth=32 nrfiles=4 size=1m file_service_type=zipf:1.2",
        "rw=randread iodepth=8 nrfiles=3 size=1m bsrange=4k-32k",
    ];
    same("depth", "ioengine=libaio bs=4k", &sections);
}

#[test]
fn open_files_are_the_candidates() {
    let sections = [
        "nrfiles=6 openfiles=2 size=300k",
        "nrfiles=6 openfiles=1 size=300k",
        "nrfiles=6 openfiles=2 size=300k file_service_type=random",
        "nrfiles=6 openfiles=3 size=300k file_service_type=random:4 rw=randread",
        "nrfiles=6 openfiles=2 size=300k file_service_type=sequential",
        "nrfiles=6 openfiles=9 size=300k file_service_type=roundrobin:2",
        "nrfiles=6 openfiles=3 size=300k file_service_type=zipf",
        "nrfiles=6 openfiles=2 size=300k rw=randrw loops=2",
    ];
    same("openfiles", "ioengine=psync bs=4k rw=read", &sections);
}

#[test]
fn size_is_divided_as_by_fio() {
    let sections = [
        "nrfiles=3 size=1m",
        "nrfiles=3 size=1m offset=64k rw=randread",
        "nrfiles=8 size=65540 bs=512 rw=write",
        "nrfiles=900 size=931000 bs=512 rw=randwrite",
        "nrfiles=3 filesize=100k size=150k rw=randwrite",
        "nrfiles=4 filesize=16k-200k rw=write",
        "nrfiles=9 filesize=16k-1m size=2m rw=randread",
        "nrfiles=5 filesize=10k-11k bs=4k rw=write",
        "nrfiles=1 filesize=16k-1m rw=read",
        "filename=a:b:c size=100k rw=write bs=1k,2k",
        "filename=d\\:d:e size=100k rw=randrw norandommap=1 io_size=300k",
        "nrfiles=4 size=1m io_size=100k rw=randread",
        "nrfiles=4 size=200k io_size=700k rw=randread",
        "nrfiles=4 size=200k io_size=50% rw=write",
        "nrfiles=4 size=200k loops=3 rw=randread file_service_type=random",
        "nrfiles=4 size=200k loops=2 rw=randread file_service_type=pareto:0.4 randrepeat=0 randseed=7",
        "nrfiles=4 size=256k rw=randread number_ios=33",
        "nrfiles=3 size=300k rw=randread random_generator=lfsr",
        "nrfiles=3 size=384k rw=randread random_distribution=zipf:1.1",
        "nrfiles=3 size=384k rw=randread random_generator=tausworthe64 file_service_type=random",
        "nrfiles=3 size=300k rw=randread percentage_random=40",
        "nrfiles=3 size=300k rw=randread:4",
        "nrfiles=3 size=300k rw=read:8k",
        "nrfiles=3 size=300k rw=write fsync=5",
        "nrfiles=2 size=300k rw=write fsync=3 file_service_type=random:2",
    ];
    same("sizes", "ioengine=psync bs=4k", &sections);
}

#[test]
fn trims_of_several_files_are_fio_s() {
    let sections = [
        "rw=trim nrfiles=3 size=300k",
        "rw=randtrim nrfiles=3 size=300k file_service_type=random",
        "rw=trimwrite nrfiles=3 size=300k",
        "rw=randtrimwrite nrfiles=3 size=300k file_service_type=roundrobin:2",
        // The first block of the second pass is not marked.
        "rw=randtrim bsrange=65536-131072,2048-16384 size=1088512 loops=2 percentage_random=45 allrandrepeat=0",
    ];
    if !fio_is_3_33() {
        return;
    }
    let dir = Scratch::new("trims");
    for (n, section) in sections.iter().enumerate() {
        let lines = section.split(' ').collect::<Vec<_>>().join("\n");
        let text = format!("[j{n}]\nioengine=null\nbs=4k\n{lines}\n");
        run_fio(&dir.0, &format!("{text}write_iolog=log{n}\n"));
        let job = JobFile::parse_str(&text, &ParseContext::bare("j"), &[]).expect("a valid job").jobs.remove(0);
        let log = std::fs::read_to_string(dir.0.join(format!("log{n}"))).expect("fio wrote its log");
        let (ours, _) = our_file_steps(&job, ThreadId { instance: 0, number: 1, entropy: 0 }, |_| 0).expect("it fits");
        assert!(ours.len() > 2, "{section}");
        if let Some(difference) = first_difference(&ours, &steps_of_log(&log)) {
            panic!("{section}: {difference}");
        }
    }
}
