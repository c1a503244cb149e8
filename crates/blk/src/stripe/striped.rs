// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A submitter of a striped disk, for one thread: it maps bios and submits them to the submitters of the stripes.
//!
//! Guarantees: every accepted bio is returned once by [`Striped::reap`], when all its parts have completed, with the first
//! error among them. A bio inside one chunk becomes one lower bio. A longer bio becomes one per chunk, which the lower
//! disks may merge; a discard or write of zeroes becomes one per stripe. A flush goes to all stripes. A write with PREFLUSH
//! is written after all stripes are flushed, and not at all if a flush failed; each part has the FUA flag of its bio. Parts
//! that find no slot below wait here, and later bios wait behind them. Nothing is allocated after the start.
//!
//! Needs from callers: as for [`Submitter`], except that only [`Striped::poll`] finds completed bios. Does not do: split a
//! bio that may not wait (`NOWAIT`); it fails with `Again`, as on other disks. A bio that failed may have been executed in
//! part.
//!
//! Source: drivers/md/dm.c (`__send_empty_flush`, `dm_io_complete`: the data of a flush is submitted after the flush
//! has completed), dm-stripe.c (`stripe_map`, `stripe_map_range`).

use super::map::StripeMap;
use crate::bio::{Bio, DataRef, Op, OpFlags};
use crate::id::{HctxId, Sector};
use crate::limits::Limits;
use crate::lock::Lock;
use crate::path::submit::{check_op, check_range};
use crate::status::BlkStatus;
use crate::submitter::{Done, SubmitError, Submitter};
use crate::time::Instant;
use std::collections::VecDeque;
use std::sync::Arc;

/// The parts of a bio that still have to be submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BioPhase {
    /// Flushes of stripes from this one on; nothing after them.
    Flush(u16),
    /// Flushes of stripes from this one on, then its data.
    FlushBefore(u16),
    /// All stripes are being flushed; its data is submitted after all flushes have completed.
    Flushing,
    /// The rest of its data, chunk by chunk.
    Data,
    /// The parts of stripes from this one on.
    Range(u16),
    /// None: the bio completes with its last part.
    Entered,
}

/// A bio that was accepted.
#[derive(Clone, Copy, Debug)]
struct Parent {
    /// The bio; for data, the rest that is not submitted yet.
    bio: Bio,
    step: BioPhase,
    /// Number of lower bios that have not completed.
    parts: u32,
    /// The first error of the parts.
    status: BlkStatus,
}

const NOBODY: Parent =
    Parent { bio: Bio::read(Sector(0), 0, DataRef::NONE), step: BioPhase::Entered, parts: 0, status: BlkStatus::Ok };

/// A thread's submitter of a striped disk. See the module's text.
pub struct Striped<L: Lock> {
    map: Arc<StripeMap>,
    limits: Limits,
    below: Box<[Submitter<L>]>,
    parents: Box<[Parent]>,
    free: Vec<u32>,
    /// Bios of which parts still have to be submitted, oldest first.
    entering: VecDeque<u32>,
    done: VecDeque<u32>,
}

impl<L: Lock> Striped<L> {
    /// Makes a submitter on top of one submitter per stripe, in the order of the stripes, all of one thread. It has as
    /// many bio slots as the first of them. Panics when their number differs from the number of stripes.
    pub fn new(map: Arc<StripeMap>, below: Vec<Submitter<L>>) -> Striped<L> {
        assert_eq!(below.len(), map.nr_stripes(), "one submitter per stripe");
        let n = below[0].env.nr_bios();
        Striped {
            limits: Limits::stacked(below.iter().map(|s| s.disk().limits())),
            map,
            below: below.into(),
            parents: vec![NOBODY; n as usize].into(),
            free: (0..n).rev().collect(),
            entering: VecDeque::with_capacity(n as usize),
            done: VecDeque::with_capacity(n as usize),
        }
    }

    /// Submits a bio; as [`Submitter::submit`].
    #[inline]
    pub fn submit(&mut self, bio: &Bio, now: Instant) -> Result<(), SubmitError> {
        let index = self.free.pop().ok_or(SubmitError::NoBio)?;
        let checked = check_range(&self.limits, self.map.capacity(), bio)
            .and_then(|()| check_op(&self.limits, bio.op, bio.flags));
        let parent = &mut self.parents[index as usize];
        *parent = Parent { bio: *bio, step: BioPhase::Entered, parts: 0, status: BlkStatus::Ok };
        if let Err(status) = checked {
            parent.status = status;
            self.done.push_back(index);
            return Ok(());
        }
        let whole = bio.op.has_data()
            && self.map.sectors_to_chunk_end(bio.sector) >= u64::from(bio.nr_sectors)
            && !bio.flags.contains(OpFlags::PREFLUSH);
        if whole && self.entering.is_empty() {
            parent.parts = 1;
            let (stripe, sector) = self.map.locate(bio.sector);
            let part = Bio { sector, user_data: index.into(), ..*bio };
            if self.below[stripe].submit(&part, now).is_ok() {
                return Ok(());
            }
            self.parents[index as usize].parts = 0;
        }
        self.enter_later(index, now);
        Ok(())
    }

    /// Queues a bio that has several parts, or cannot be submitted at once.
    #[cold]
    fn enter_later(&mut self, index: u32, now: Instant) {
        let parent = &mut self.parents[index as usize];
        let Bio { op, flags, .. } = parent.bio;
        if flags.contains(OpFlags::NOWAIT) {
            parent.status = BlkStatus::Again;
            return self.done.push_back(index);
        }
        parent.step = match op {
            Op::Flush => BioPhase::Flush(0),
            _ if flags.contains(OpFlags::PREFLUSH) => BioPhase::FlushBefore(0),
            Op::Read | Op::Write => BioPhase::Data,
            Op::Discard | Op::WriteZeroes => BioPhase::Range(0),
        };
        self.entering.push_back(index);
        self.let_in(now);
    }

    /// Submits waiting parts, oldest first, as long as there are slots below. Returns whether any was submitted.
    fn let_in(&mut self, now: Instant) -> bool {
        if self.entering.is_empty() {
            return false;
        }
        // Parts of one bio, or of several, are gathered into batches.
        self.below.iter_mut().for_each(|s| s.start_plug(0));
        let mut any = false;
        while let Some(index) = self.entering.front() {
            let index = *index;
            let before = self.parents[index as usize].parts;
            let entered = self.enter(index, now);
            any |= self.parents[index as usize].parts > before;
            if !entered {
                break;
            }
            self.entering.pop_front();
        }
        self.below.iter_mut().for_each(|s| s.finish_plug(now));
        any
    }

    /// Submits the remaining parts of a bio's step. False: there was no slot below for the next part.
    fn enter(&mut self, index: u32, now: Instant) -> bool {
        let Striped { map, below, parents, .. } = self;
        let parent = &mut parents[index as usize];
        loop {
            let (stripe, part, next) = match parent.step {
                BioPhase::Flush(n) | BioPhase::FlushBefore(n) if usize::from(n) < below.len() => {
                    let after = match parent.step {
                        BioPhase::Flush(_) => BioPhase::Flush(n + 1),
                        _ => BioPhase::FlushBefore(n + 1),
                    };
                    (usize::from(n), Bio { prio: parent.bio.prio, ..Bio::flush() }, after)
                }
                BioPhase::Range(n) if usize::from(n) < below.len() => {
                    let Bio { sector, nr_sectors, .. } = parent.bio;
                    let Some((at, len)) = map.range(n.into(), sector, nr_sectors.into()) else {
                        parent.step = BioPhase::Range(n + 1);
                        continue;
                    };
                    // The part is no longer than the bio, whose length has 32 bits.
                    (n.into(), Bio { sector: at, nr_sectors: len as u32, ..parent.bio }, BioPhase::Range(n + 1))
                }
                BioPhase::Data if parent.bio.nr_sectors > 0 => {
                    let (stripe, sector) = map.locate(parent.bio.sector);
                    let nr_sectors =
                        map.sectors_to_chunk_end(parent.bio.sector).min(parent.bio.nr_sectors.into()) as u32;
                    (stripe, Bio { sector, nr_sectors, ..parent.bio }, BioPhase::Data)
                }
                BioPhase::FlushBefore(_) => {
                    parent.step = BioPhase::Flushing;
                    return true;
                }
                BioPhase::Flush(_) | BioPhase::Range(_) | BioPhase::Data | BioPhase::Flushing | BioPhase::Entered => {
                    parent.step = BioPhase::Entered;
                    return true;
                }
            };
            // Parts do not use poll queues, like the pieces of a split bio.
            let part = Bio { flags: part.flags.without(OpFlags::POLLED), user_data: index.into(), ..part };
            if below[stripe].submit(&part, now).is_err() {
                return false;
            }
            parent.parts += 1;
            parent.step = next;
            if next == BioPhase::Data {
                parent.drop_front(part.nr_sectors);
            }
        }
    }

    /// Collects the lower bios that have completed.
    fn collect(&mut self) {
        for stripe in 0..self.below.len() {
            while let Some(done) = self.below[stripe].reap_one() {
                self.part_ended(done);
            }
        }
    }

    fn part_ended(&mut self, done: Done) {
        let index = done.user_data as u32;
        let parent = &mut self.parents[index as usize];
        assert!(parent.parts > 0, "a part of a striped bio ended twice");
        parent.parts -= 1;
        if parent.status.is_ok() {
            parent.status = done.status;
        }
        match parent.step {
            BioPhase::Entered if parent.parts == 0 => self.done.push_back(index),
            BioPhase::Flushing if parent.parts == 0 => {
                if parent.status.is_ok() {
                    parent.bio.flags = parent.bio.flags.without(OpFlags::PREFLUSH);
                    parent.step = BioPhase::Data;
                    self.entering.push_back(index);
                } else {
                    self.done.push_back(index);
                }
            }
            // More parts are in flight, or will be submitted.
            _ => {}
        }
    }

    /// Collects completions of all stripes, and submits parts that had to wait. Otherwise as [`Submitter::poll`].
    pub fn poll(&mut self, now: Instant) {
        self.below.iter_mut().for_each(|s| s.poll(now));
        self.collect();
        // Parts that are submitted here may complete at once and free slots, and no later completion would retry the
        // rest.
        while self.let_in(now) {
            self.collect();
        }
    }

    /// Calls `f` for each completed bio, oldest first, and frees its slot.
    #[inline]
    pub fn reap(&mut self, mut f: impl FnMut(Done)) {
        while let Some(index) = self.done.pop_front() {
            self.free.push(index);
            let Parent { bio, status, .. } = &self.parents[index as usize];
            f(Done { user_data: bio.user_data, op: bio.op, status: *status });
        }
    }

    /// As [`Submitter::start_plug`].
    #[inline]
    pub fn start_plug(&mut self, nr_ios: u32) {
        self.below.iter_mut().for_each(|s| s.start_plug(nr_ios));
    }

    /// As [`Submitter::finish_plug`].
    #[inline]
    pub fn finish_plug(&mut self, now: Instant) {
        self.below.iter_mut().for_each(|s| s.finish_plug(now));
    }

    /// As [`Submitter::rest`].
    pub fn rest(&mut self) {
        self.below.iter_mut().for_each(Submitter::rest);
    }

    /// Returns how many bios are accepted and not yet reaped.
    #[inline]
    pub fn outstanding(&self) -> u32 {
        (self.parents.len() - self.free.len()) as u32
    }

    /// Returns the submitters of the stripes' disks.
    pub fn below(&self) -> &[Submitter<L>] {
        &self.below
    }

    /// As [`Striped::below`], to trace them or set their weights. Submit I/O only through [`Striped::submit`].
    pub fn below_mut(&mut self) -> &mut [Submitter<L>] {
        &mut self.below
    }

    /// Returns a number that changes when a lower submitter adopts other settings of its disk.
    #[inline]
    pub fn state_generation(&self) -> u64 {
        // The generation of a submitter never decreases.
        self.below.iter().fold(0, |sum, s| sum.wrapping_add(s.state_generation()))
    }

    /// Returns the hardware queues in which completions of this submitter appear, with their stripes.
    pub fn hctxs(&self) -> impl Iterator<Item = (usize, HctxId)> + '_ {
        self.below.iter().enumerate().flat_map(|(stripe, s)| s.hctxs().map(move |h| (stripe, h)))
    }
}

impl Parent {
    /// Removes the first `nr_sectors` of the data, because they were submitted.
    fn drop_front(&mut self, nr_sectors: u32) {
        self.bio.nr_sectors -= nr_sectors;
        if self.bio.nr_sectors > 0 {
            self.bio.sector.0 += u64::from(nr_sectors);
            self.bio.data = self.bio.data.advance(u64::from(nr_sectors) << 9);
        }
    }
}
