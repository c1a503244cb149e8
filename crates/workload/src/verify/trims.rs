// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which verified blocks are trimmed, and when: `trim_percentage`, `trim_backlog`, `trim_backlog_batch`.
//!
//! Each write may be drawn to be trimmed later. Whenever `trim_backlog` more blocks wait to be read back, a batch of those that were drawn is
//! due, oldest first. Guarantees: draws and order are those of fio 3.33.

use super::Stamp;
use super::log::{PieceId, Trimmable, WriteLog};
use crate::job::Job;
use crate::rng::{FioRng, Purpose, Seeds};
use std::collections::VecDeque;

/// The blocks of a job that are to be trimmed.
#[derive(Clone, Debug)]
pub struct Trims {
    percent: u32,
    backlog: u64,
    batch: u64,
    /// Trimmed blocks are read back.
    keeps: bool,
    /// Trims that are still due in this round.
    left: u64,
    rng: FioRng,
    first_rng: FioRng,
    /// Blocks to trim, oldest first. Some may be read back or overwritten already.
    due: VecDeque<(PieceId, Stamp)>,
}

impl Trims {
    /// `None` for a job that trims no verified blocks.
    pub fn new(job: &Job, seeds: Seeds) -> Option<Box<Trims>> {
        let rng = seeds.rng(Purpose::Trim);
        job.trims_verified().then(|| {
            Box::new(Trims {
                percent: job.trim_pct,
                backlog: job.trim_backlog,
                batch: if job.trim_backlog_batch > 0 { job.trim_backlog_batch } else { job.trim_backlog },
                keeps: job.trim_verify_zero,
                left: 0,
                first_rng: rng.clone(),
                rng,
                due: VecDeque::new(),
            })
        })
    }

    /// Draws whether a block that is written now is trimmed later.
    pub fn written(&mut self, id: PieceId, stamp: Stamp) {
        let (drawn, max) = self.rng.raw();
        if drawn <= max / 100 * u64::from(self.percent) {
            self.due.push_back((id, stamp));
        }
    }

    /// Begins a pass.
    pub fn start_pass(&mut self, reseed: bool) {
        self.due.clear();
        if reseed {
            self.rng = self.first_rng.clone();
        }
    }

    /// Returns the next block to trim, if a trim is due. `after_read`: the last I/O to complete was a read.
    pub fn next(&mut self, log: &WriteLog, after_read: bool) -> Option<(PieceId, Trimmable)> {
        while let Some(&(id, stamp)) = self.due.front() {
            let can_be = log.trimmable(id, stamp);
            if can_be != Trimmable::No {
                let begins = (log.len() as u64).is_multiple_of(self.backlog) && !after_read;
                return (self.left > 0 || begins).then_some((id, can_be));
            }
            self.due.pop_front();
        }
        None
    }

    /// The block that was returned last is trimmed.
    pub fn taken(&mut self) {
        // The first trim of a round does not count, as with fio.
        self.left = if self.left == 0 { self.batch } else { self.left - 1 };
        self.due.pop_front();
    }

    /// Whether trimmed blocks are read back.
    pub fn keeps(&self) -> bool {
        self.keeps
    }
}
