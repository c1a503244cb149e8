// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The shortest way around a full queue: one I/O was submitted, and one that has completed makes room for the next.
//!
//! Guarantees: the result is that of [`JobThread::submitted`], of the reap of one I/O that [`JobThread::next`] would then ask for, and of
//! [`JobThread::complete_one`]. Only the counts and latencies of a job with one direction come later, with [`JobThread::settle`]: most of
//! the work on them is done for many I/Os at once.

use super::{Completed, JobThread, SlotState};
use crate::stats::{batch_class, depth_class};
use blk::status::BlkStatus;
use blk::time::Instant;

impl JobThread {
    /// Whether one I/O was returned since the last [`JobThread::submitted`], and the next step after its submission would be to
    /// reap one I/O.
    #[inline(always)] // The loop of a job thread, for each I/O.
    pub fn exchanges(&self, now: Instant) -> bool {
        self.free.is_empty()
            && self.plan.reaps_single
            && self.fast_left > 0
            && self.reap.idle()
            && now.as_ns() < self.check_at
    }

    /// Submits the I/O that was returned last, and completes the one in `slot`, both at `now`. Only where
    /// [`JobThread::exchanges`] holds.
    ///
    /// # Panics
    /// As [`JobThread::complete`].
    #[inline]
    pub fn exchanged(&mut self, slot: u32, status: BlkStatus, now: Instant) -> Completed {
        if self.plan.gathers.is_none() || self.clock.rare_submissions || !status.is_ok() {
            return self.exchanged_rare(slot, status, now);
        }
        let ns = now.as_ns();
        let [submitted] = self.queued[..] else { unreachable!("one I/O was returned since the last submission") };
        let s = &mut self.slots[submitted as usize];
        let slat_ns = ns.saturating_sub(s.start_ns);
        (s.issue_ns, s.state) = (ns, SlotState::Submitted);
        let s = &self.slots[slot as usize];
        let (clat_ns, lat_ns) = (ns.saturating_sub(s.issue_ns), ns.saturating_sub(s.start_ns));
        if slat_ns.max(lat_ns) > u64::from(u32::MAX) {
            return self.exchanged_rare(slot, status, now);
        }
        assert!(s.state == SlotState::Submitted, "completion for slot {slot}, which is {:?}", s.state);
        self.queued.clear();
        self.gathered.push(s.len, slat_ns as u32, clat_ns as u32, lat_ns as u32);
        if ns >= self.sampling.next {
            self.sample(ns, slot);
        } else if self.gathered.is_full() {
            self.settle();
        }
        self.release(slot);
        Completed { needs_verify: false }
    }

    #[inline(never)]
    fn exchanged_rare(&mut self, slot: u32, status: BlkStatus, now: Instant) -> Completed {
        self.submitted(now);
        self.complete_one(slot, status, now)
    }

    /// Counts all I/Os that were exchanged.
    #[inline(never)]
    pub fn settle(&mut self) {
        let Some(dir) = self.plan.gathers else { return };
        let n = self.gathered.count(&mut self.stats.dirs[dir as usize], &mut self.classes);
        // All were submitted to a queue that they filled, and reaped singly.
        self.stats.depth[depth_class(self.plan.depth)] += n;
        self.stats.submit[batch_class(1)] += n;
        self.stats.complete[batch_class(1)] += n;
    }
}
