// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a verified job keeps of its writes for its state, and what the state of an earlier job tells of a block.
//!
//! Guarantees: known to be written are all writes of the state but the last `iodepth` ones, and of these the listed ones. A state counts
//! no more writes than that, so that an old write which failed or never completed is among its last ones. Needs from callers: blocks are judged
//! in the order in which they were written.

use super::state::VerifyState;
use crate::job::Job;

/// The last writes of a job to complete.
#[derive(Clone, Debug)]
pub struct Completions {
    job: String,
    index: u64,
    depth: usize,
    /// Of each file, a ring of offsets.
    files: Vec<Ring>,
    issued: u64,
    completed: u64,
    /// Ordinal of the oldest write that failed.
    failed: Option<u64>,
}

#[derive(Clone, Debug)]
struct Ring {
    offsets: Vec<u64>,
    next: usize,
}

impl Completions {
    /// Of a job that keeps a state; `number` is 1-based.
    pub fn new(job: &Job, number: u32, files: usize) -> Option<Box<Completions>> {
        let depth = job.iodepth as usize;
        (job.leaves_verify_state() && VerifyState::fits(job.iodepth, files)).then(|| {
            let ring = Ring { offsets: vec![0; depth], next: 0 };
            let (job, index, files) = (job.name.clone(), u64::from(number) - 1, vec![ring; files]);
            Box::new(Completions { job, index, depth, files, issued: 0, completed: 0, failed: None })
        })
    }

    /// A write is issued. Returns its ordinal.
    pub fn issued(&mut self) -> u64 {
        self.issued += 1;
        self.issued - 1
    }

    /// The write with this ordinal has failed.
    pub fn failed(&mut self, ordinal: u64) {
        self.failed = Some(self.failed.map_or(ordinal, |oldest| oldest.min(ordinal)));
    }

    /// A write has completed.
    pub fn completed(&mut self, file: u32, offset: u64) {
        let ring = &mut self.files[file as usize];
        ring.offsets[ring.next] = offset;
        ring.next = (ring.next + 1) % self.depth;
        self.completed += 1;
    }

    /// The state of the job. `out`: ordinal of the oldest write that has not completed.
    pub fn state(&self, out: Option<u64>) -> VerifyState {
        let oldest = out.into_iter().chain(self.failed).min();
        VerifyState {
            job: self.job.clone(),
            index: self.index,
            depth: self.depth as u32,
            files: self.files.len() as u32,
            writes: oldest.map_or(self.issued, |n| self.issued.min(n + self.depth as u64)),
            completed: self.last(self.completed),
        }
    }

    /// Of each file, the last writes of the job's last `n`, newest first. As with fio, a file with fewer than that lists offset 0
    /// for the others.
    fn last(&self, n: u64) -> Vec<(u64, u64)> {
        let n = n.min(self.depth as u64) as usize;
        let of = |(file, ring): (usize, &Ring)| {
            let newest = ring.next + self.depth - 1;
            let offsets: Vec<u64> = (0..n).map(|back| ring.offsets[(newest - back) % self.depth]).collect();
            offsets.into_iter().map(move |offset| (file as u64, offset)).collect::<Vec<_>>()
        };
        self.files.iter().enumerate().flat_map(of).collect()
    }
}

/// The state of an earlier job whose data this job verifies.
#[derive(Clone, Debug)]
pub struct Earlier {
    state: VerifyState,
    /// Blocks judged so far.
    seen: u64,
}

/// What is known of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Its write has completed.
    Written,
    /// Its write was issued, and may not have completed.
    InDoubt,
    /// Its write was never issued.
    NeverWritten,
}

impl Earlier {
    /// Nothing is judged yet.
    pub fn new(state: VerifyState) -> Earlier {
        Earlier { state, seen: 0 }
    }

    /// Judges the next block in the order of writes.
    pub fn judge(&mut self, file: u32, offset: u64) -> Known {
        let n = self.seen;
        self.seen += 1;
        let listed = || self.state.completed.contains(&(u64::from(file), offset));
        match n {
            n if n >= self.state.writes => Known::NeverWritten,
            n if n + u64::from(self.state.depth) < self.state.writes || listed() => Known::Written,
            _ => Known::InDoubt,
        }
    }
}
