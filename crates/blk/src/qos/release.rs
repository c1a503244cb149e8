// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A submitter's bios that are held back, and how they are released.
//!
//! A bio passes the limits first, and then queues behind the bios that wait for a tag, if any do. A bio that waits for
//! a tag has been charged already. With common limits only, all bios of a submitter are in one queue and keep their
//! order. When reads or writes have a limit of their own, each direction has a queue. So a held write holds back no
//! read of the same submitter. Unlike in the kernel, a submitter is not a task that sleeps in one I/O, but a queue with
//! a depth. After a change between one queue and two, the existing queues drain by themselves.
//!
//! A write needs a token of write-back throttling only after it found nothing to merge with. So it waits for the token in a
//! queue of its own: one for writes, one for discards, each first in first out. It keeps the token while it waits for a tag.
//!
//! Held bios are outside the block layer, so a freeze does not wait for them. Settings may change before a bio is
//! released, so it is checked against the disk's features again then.

use super::limits::{Dir, WaitEntry};
use super::state::{NR_FIFOS, active};
use super::wbt::{Class, KINDS};
use crate::bio::{Bio, BioId, Op, OpFlags};
use crate::lock::Lock;
use crate::submitter::Submitter;
use crate::time::Instant;

impl<L: Lock> Submitter<L> {
    /// Whether a new bio has to go through [`Submitter::submit_limited`], because limits are set or bios are held.
    #[inline]
    pub(crate) fn may_be_held(&self) -> bool {
        self.env.q.qos.active() & active::LIMITS != 0 || self.local.held.len() > 0
    }

    /// Submits a bio to a disk with limits, or after bios that are held.
    #[cold]
    pub(crate) fn submit_limited(&mut self, index: u32, bio: &Bio, now: Instant) {
        let limited =
            self.env.q.qos.active() & active::LIMITS != 0 || self.local.held.fifos.iter().any(|l| !l.is_empty());
        if bio.op == Op::Flush || !limited {
            return self.go_on(index, now);
        }
        let dir = dir_of(bio.op);
        let split = self.env.q.qos.active() & active::DIRECTIONS != 0;
        let fifo = if split { dir as usize } else { 0 };
        if bio.flags.contains(OpFlags::NOWAIT) {
            let wait_entry = self.wait_entry(fifo, index);
            if self.local.held.fifos[fifo].is_empty() && self.env.q.try_admit(wait_entry, true, now) {
                return self.go_on(index, now);
            }
            return self.wait_in_line(bio.flags, index, now);
        }
        self.local.held.fifos[fifo].push_back(self.env.pool(), index);
        self.local.held.nr += 1;
        if self.local.held.fifos[fifo].len() == 1 {
            self.run_fifo(fifo, now);
        }
    }

    /// The part of a poll that gives turns and releases the held bios that may continue.
    #[cold]
    pub(crate) fn serve_qos(&mut self, now: Instant) {
        if self.env.q.qos.is_due(now) {
            self.env.q.serve_turns(now);
            self.env.wbt_tick(now);
        }
        if self.local.held.len() == 0 || self.env.q.is_frozen() {
            return;
        }
        self.local.plug.start(0);
        (0..NR_FIFOS).for_each(|fifo| self.run_fifo(fifo, now));
        (0..KINDS).for_each(|kind| self.run_throttled(kind, now));
        self.env.close_plug(&mut self.local, now);
    }

    /// Releases the bios of a queue that have a turn.
    fn run_fifo(&mut self, fifo: usize, now: Instant) {
        while let Some(index) = self.local.held.fifos[fifo].front() {
            if self.local.held.is_queued[fifo] {
                if !self.env.shared.granted.take(fifo) {
                    return;
                }
                self.local.held.is_queued[fifo] = false;
            } else if !self.env.q.try_admit(self.wait_entry(fifo, index), false, now) {
                self.local.held.is_queued[fifo] = true;
                return;
            }
            self.local.held.fifos[fifo].pop_front(self.env.pool());
            self.local.held.nr -= 1;
            self.go_on(index, now);
        }
    }

    /// Releases the bios of a queue that get a token.
    fn run_throttled(&mut self, kind: usize, now: Instant) {
        let mut go = self.local.held.is_throttled(kind) && self.env.shared.granted.take(NR_FIFOS + kind);
        while go {
            let pool = self.env.pool();
            let index = self.local.held.tokens[kind].pop_front(pool).expect("the first has asked");
            self.local.held.nr -= 1;
            pool.slot(index as usize).wbt.set(kind as u8 + 1);
            // The next bio asks before this one is released, so that no other submitter gets in between.
            go = self.local.held.tokens[kind].front().is_some_and(|next| {
                let slot = pool.slot(next as usize);
                let class = Class::of(slot.op(), slot.flags()).expect("only what is throttled waits here");
                self.env.q.take_token(class, Some(self.env.id), now)
            });
            self.go_on(index, now);
        }
    }

    fn wait_entry(&self, fifo: usize, index: u32) -> WaitEntry {
        let slot = self.env.pool().slot(index as usize);
        let op = slot.op();
        WaitEntry {
            submitter: self.env.id,
            fifo,
            dir: dir_of(op),
            bytes: if op.has_data() { u64::from(slot.nr_sectors.get()) << 9 } else { 0 },
            since: Instant::from_ns(slot.submit_ns.get()),
        }
    }

    /// Moves a released bio into the block layer, or to the bios that wait for a tag.
    fn go_on(&mut self, index: u32, now: Instant) {
        let slot = self.env.pool().slot(index as usize);
        let bio = slot.bio();
        if !self.env.wbt_is_on() {
            self.env.wbt_cleanup(slot, now);
        }
        let entered = self.local.waiting.is_empty() && self.enter(now);
        // Checked also for a bio that is to wait for a tag: the waiting bios were checked when the state changed, and
        // not since.
        if let Err(status) = self.env.check_features(bio.op, bio.flags) {
            self.env.wbt_cleanup(self.env.pool().slot(index as usize), now);
            return self.env.end_bio(&mut self.local, BioId::new(self.env.id, index), status);
        }
        if entered && self.env.queue_bio(&mut self.local, index, &bio, false, now) {
            return;
        }
        self.wait_in_line(bio.flags, index, now);
    }
}

fn dir_of(op: Op) -> Dir {
    if op.is_write() { Dir::Write } else { Dir::Read }
}
