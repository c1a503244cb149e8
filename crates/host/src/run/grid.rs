// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Refuses a job whose I/O is not whole blocks of its target, unless the target takes any bytes.

use crate::error::{Error, Result};
use workload::engine::{FileTarget, OffGrid};
use workload::job::Job;

/// What a target allows.
#[derive(Clone, Copy)]
pub(super) struct Grid {
    /// Logical block, bytes.
    pub(super) block: u32,
    /// Reads and writes may begin and end within a sector.
    pub(super) takes_bytes: bool,
    /// It would, if it did not bypass the page cache.
    pub(super) is_direct: bool,
}

impl Grid {
    /// Checks an instance of `job` on one of its files.
    ///
    /// # Errors
    /// The option that makes I/O end within a block, with the nearest values that do not.
    pub(super) fn check(self, job: &Job, instance: u32, file: FileTarget) -> Result<()> {
        let Grid { block, takes_bytes, is_direct } = self;
        match OffGrid::of(job, instance, file, block) {
            None => Ok(()),
            // Discards are for whole blocks everywhere.
            Some(_) if takes_bytes && !job.trims() => Ok(()),
            Some(OffGrid { option, value }) => {
                let remedy = if is_direct && !job.trims() { ", or direct=0" } else { "" };
                check_block(job, option, value, block).map_err(|e| Error::usage(format!("{e}{remedy}")))
            }
        }
    }
}

/// Refuses a value of `option`, in bytes, that is not whole blocks of a target.
pub(super) fn check_block(job: &Job, option: &str, bytes: u64, block: u32) -> Result<()> {
    if bytes.is_multiple_of(u64::from(block)) {
        return Ok(());
    }
    let down = bytes / u64::from(block) * u64::from(block);
    let up = down.saturating_add(block.into());
    let nearest = if down == 0 { up.to_string() } else { format!("{down} or {up}") };
    Err(Error::usage(format!(
        "{option}={bytes} ({}): must be a multiple of the target's logical block size {block}; use {nearest}",
        job.place()
    )))
}
