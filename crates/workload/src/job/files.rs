// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The files of a job: their names, and what the job asks of each.
//!
//! Guarantees: names, shares of `size` and random sizes are fio's (`tests/it/fio_files.rs`). Does not do: look at files; the
//! caller says how large those are that exist.

use super::spec::Job;
use super::values::Extent;
use crate::replay::ReplayedFile;
use crate::rng::Purpose;

/// What each instance of a job asks of one of its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileShare {
    /// Its part of `size`; a percentage is one of the file.
    pub size: Option<Extent>,
    /// Its size by `filesize`.
    pub filesize_bytes: Option<u64>,
}

impl FileShare {
    /// The share of the only file of a job, whose `filesize` is no range.
    pub fn of(job: &Job) -> FileShare {
        FileShare { size: job.size, filesize_bytes: job.filesize_bytes }
    }
}

impl Job {
    /// Number of files of each instance, at least 1.
    pub fn nr_files(&self) -> usize {
        if self.filename.is_empty() { self.nrfiles as usize } else { self.filename.len() }
    }

    /// Returns the name of file `file` (0-based) of instance `jobnum` (0-based, counted over `numjobs`), by fio's rules. All
    /// instances share named files (in the first `directory`). Otherwise `filename_format` names the files of each instance;
    /// the instances use the directories by round robin. A directory goes before absolute names too. A name for which
    /// `is_target` holds (such as `null:`) is returned as typed; any other has `\:` unescaped.
    pub fn file_name(&self, jobnum: u32, file: usize, is_target: &dyn Fn(&str) -> bool) -> String {
        let name = match self.filename.get(file) {
            Some(typed) if is_target(typed) => return typed.clone(),
            Some(typed) => typed.replace("\\:", ":"),
            None => self
                .filename_format
                .replace("$jobname", &self.name)
                .replace("$jobnum", &jobnum.to_string())
                .replace("$filenum", &file.to_string()),
        };
        if self.directory.is_empty() {
            return name;
        }
        let nth = if self.filename.is_empty() { jobnum as usize % self.directory.len() } else { 0 };
        let dir = &self.directory[nth];
        format!("{}/{}", dir.trim_end_matches('/'), name.trim_start_matches('/'))
    }

    /// Returns the names of all files of instance `jobnum`, as [`Job::file_name`].
    pub fn file_names(&self, jobnum: u32, is_target: &dyn Fn(&str) -> bool) -> Vec<String> {
        (0..self.nr_files()).map(|file| self.file_name(jobnum, file, is_target)).collect()
    }

    /// Returns the target of the redo of instance `jobnum`, if redo has a target of its own. The rules are those of
    /// [`Job::file_name`] for a `filename`.
    pub fn redo_file_name(&self, jobnum: u32, is_target: &dyn Fn(&str) -> bool) -> Option<String> {
        let filename = vec![self.oltp.as_ref()?.redo_filename.clone()?];
        Some(Job { filename, ..self.clone() }.file_name(jobnum, 0, is_target))
    }

    /// Returns the end of the bytes that an instance touches in a file, if the job gives it in bytes.
    pub fn reach(&self, share: FileShare, instance: u32) -> Option<u64> {
        let bytes = |e: &Extent| if let Extent::Bytes(b) = e { Some(*b) } else { None };
        // With `filesize`, random offsets reach to the end of the file, also if `size` is smaller.
        if share.filesize_bytes.is_some() {
            return share.filesize_bytes;
        }
        let shift = bytes(&self.offset_increment)?.saturating_mul(u64::from(instance));
        let start = bytes(&self.offset)?.saturating_add(shift);
        Some(start.saturating_add(bytes(share.size.as_ref()?)?))
    }

    /// Returns what thread `number` (1-based over the job file) asks of each of its files. `bytes_of` returns the size of
    /// a file as it is now, 0 if it does not exist; it is called in the order of the files, and only for a `filesize` range.
    /// `entropy` takes effect if the job is not to repeat itself.
    pub fn file_shares(&self, entropy: u64, number: u32, mut bytes_of: impl FnMut(usize) -> u64) -> Vec<FileShare> {
        if let Some(replay) = &self.replay {
            // A file that is only flushed is not empty either.
            let least = self.min_block_bytes().max(512);
            let size = |reach: u64| Some(Extent::Bytes(reach.max(least)));
            let share = |f: &ReplayedFile| FileShare { size: size(f.reach), filesize_bytes: None };
            return replay.files.iter().map(share).collect();
        }
        let n = self.nr_files() as u64;
        let unit = self.min_bs().max(1);
        let mut rng = self.seeds(entropy, number).rng(Purpose::FileSize);
        // What does not divide evenly goes to the first files, in whole blocks.
        let mut longer = match self.size {
            Some(Extent::Bytes(size)) => size % n / unit,
            _ => 0,
        };
        let share = |file: u64| {
            let filesize_bytes = match self.filesize_range {
                None => self.filesize_bytes,
                Some((low, high)) => match bytes_of(file as usize) {
                    // A file that is in the range stays as it is.
                    bytes if (low..=high).contains(&bytes) => Some(bytes),
                    _ => Some(low + rng.below(high - low)).map(|bytes| bytes - bytes % unit),
                },
            };
            let size = match self.size {
                Some(Extent::Bytes(size)) if filesize_bytes.is_none() => {
                    let more = if longer > 0 { unit } else { 0 };
                    longer = longer.saturating_sub(1);
                    // A share of nothing is all of the file.
                    Some(size / n + more).filter(|&s| s > 0).map(Extent::Bytes)
                }
                other => other,
            };
            FileShare { size, filesize_bytes }
        };
        (0..n).map(share).collect()
    }
}
