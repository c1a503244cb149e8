// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The files of verified jobs: states that say how far the writes got, and bad blocks.
//!
//! Guarantees: as with fio, each thread that writes and verifies leaves a state when it has ended, whatever ended it; a job that never
//! starts leaves none. What cannot be written is reported at the end, and stops no job. Does not do: the content
//! ([`workload::verify::state`], [`workload::verify::dump`]).

use super::checkpoint::ThreadEnd;
use crate::error::{Error, Result};
use crate::secrets::without_secrets;
use crate::target::has_kind;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use workload::job::Job;
use workload::schedule::Instance;
use workload::verify::dump::BadBlock;
use workload::verify::state::VerifyState;

/// The files of the threads of a run.
pub(super) struct VerifyFiles {
    dir: PathBuf,
    states: Vec<State>,
}

/// The state of a thread.
struct State {
    name: String,
    /// Number of the thread, 0-based.
    index: u64,
    /// The job would leave a state, and it is too large.
    too_large: bool,
}

impl VerifyFiles {
    /// Of these instances of jobs, in the directory `dir`; an empty one is the working directory.
    pub(super) fn of(jobs: &[Job], instances: &[Instance], dir: &Path) -> VerifyFiles {
        let state = |i: &Instance| {
            let job = &jobs[i.job];
            let too_large = job.leaves_verify_state() && !VerifyState::fits(job.iodepth, job.nr_files());
            State { name: VerifyState::file_name(&job.name, i.number), index: u64::from(i.number) - 1, too_large }
        };
        VerifyFiles { dir: dir.to_owned(), states: instances.iter().map(state).collect() }
    }

    /// Reads the state for the thread `thread`, if its job verifies by one.
    pub(super) fn load(&self, thread: usize, job: &Job) -> Result<Option<VerifyState>> {
        if !job.verify_state_load {
            return Ok(None);
        }
        let State { name, index, .. } = &self.states[thread];
        let path = self.dir.join(name);
        let at =
            |text: &dyn std::fmt::Display| format!("verify_state_load ({}): '{}' {text}", job.place(), path.display());
        let bytes = fs::read(&path).map_err(|e| {
            Error::os(e, at(&"cannot be read; it is written by a job of the same name and place in the job file"))
        })?;
        let state = VerifyState::decode(&bytes).map_err(|e| Error::usage(at(&e)))?;
        let own = [("index", state.index, *index), ("files", u64::from(state.files), job.nr_files() as u64)];
        match own.into_iter().find(|(_, found, own)| found != own) {
            None => Ok(Some(state)),
            Some((what, found, own)) => {
                let remedy = "verify with the name, place and options of the job that wrote";
                Err(Error::usage(at(&format!("has {what} {found}, and this job has {own}; {remedy}"))))
            }
        }
    }

    /// Writes the state of the thread `thread`. Returns what could not be done.
    pub(super) fn save(&self, thread: usize, end: &ThreadEnd) -> Option<String> {
        let State { name, too_large, .. } = &self.states[thread];
        let path = self.dir.join(name);
        let failed = |why: &dyn std::fmt::Display, remedy| {
            format!("verify state '{}' is not written: {why}; {remedy}, or set verify_state_save=0", path.display())
        };
        match &end.verify_state {
            Some(state) => write_through(&path, state).err().map(|e| failed(&e, "choose a directory by --aux-path")),
            None => too_large.then(|| failed(&"iodepth times files is above 2^20", "lower iodepth or nrfiles")),
        }
    }
}

/// Replaces a file. The state must survive a crash of the host.
fn write_through(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_added_extension("tmp");
    let mut file = File::create(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    File::open(dir.unwrap_or(Path::new(".")))?.sync_all()
}

/// The files of bad blocks of one thread (`verify_dump`).
pub(super) struct Dumps {
    dir: PathBuf,
    /// Names of the job's files, without directories.
    files: Vec<String>,
    /// The first failure.
    pub(super) failed: Option<String>,
}

impl Dumps {
    /// Of an instance of `job`, in the directory `dir`; an empty one is the working directory. `target` stands for the job's files.
    pub(super) fn of(job: &Job, instance: &Instance, dir: &Path, target: Option<&str>) -> Option<Dumps> {
        let base = |name: String| name.rsplit('/').next().map(str::to_owned).unwrap_or_default();
        let own = |file| job.file_name(instance.instance, file, &has_kind);
        let name = |file| base(target.map_or_else(|| own(file), without_secrets));
        job.verify_dump.then(|| Dumps {
            dir: dir.to_owned(),
            files: (0..job.nr_files()).map(name).collect(),
            failed: None,
        })
    }

    /// Writes a bad block of the file `file`.
    pub(super) fn write(&mut self, file: u32, bad: &BadBlock) {
        for (part, bytes) in bad.parts() {
            let path = self.dir.join(format!("{}.{}.{part}", self.files[file as usize], bad.offset));
            if let Err(e) = fs::write(&path, bytes) {
                let path = path.display();
                let text = format!(
                    "bad block '{path}' is not written: {e}; choose a directory by --aux-path, or set verify_dump=0"
                );
                self.failed.get_or_insert(text);
            }
        }
    }
}
