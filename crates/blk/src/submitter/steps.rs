// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The parts of a poll, for callers that run them separately. Such a caller models a machine in which the device's
//! interrupt, the worker that runs the queue and the waiting process are separate.
//!
//! Guarantees: the next [`Submitter::poll`] does the work that a part leaves.
//! [`RequestQueue::next_timer`](crate::queue::RequestQueue::next_timer) reports pending runs. It does not report
//! waiting bios: a caller that lets submitters sleep has to wake them. Not for programs that do I/O.

use super::Submitter;
use crate::lock::Lock;
use crate::time::Instant;

impl<L: Lock> Submitter<L> {
    /// As [`Submitter::poll`], but bios that wait for a tag keep waiting, because their process has not woken up yet.
    pub fn poll_asleep(&mut self, now: Instant) {
        self.poll_and(false, now);
    }

    /// Only collects completions, so that tags are freed and the elevator is notified. Hardware queues that have to run
    /// now, and bios that wait for a tag, are left to the next poll.
    pub fn poll_interrupt(&mut self, now: Instant) {
        self.return_kept_tag();
        if self.enter_to_poll(now) {
            self.local.in_interrupt = true;
            self.env.poll_hctxs(&mut self.local, now);
            self.local.in_interrupt = false;
        }
    }

    /// Tries bios that wait for a tag or a slot again, oldest first.
    #[cold]
    pub(super) fn retry_waiting(&mut self, now: Instant) {
        if self.env.q.is_frozen() {
            return self.env.stop_waiting(&mut self.local);
        }
        self.env.note_wake_up(&mut self.local);
        if self.local.tag_wait.is_some() && self.local.blocked_on_tag && self.env.st.alloc_share().is_some() {
            return; // Others are before it in the line for a tag.
        }
        self.local.blocked_on_tag = false;
        if let Some((hctx, _)) = self.local.woken {
            // A woken submitter runs the queue before it asks for a tag, because the requests there are older.
            self.env.run_hctx(&mut self.local, hctx, now);
        }
        // Several bios go in one plug; a single one goes as in a normal submit.
        let together = self.local.waiting.len() > 1;
        if together {
            self.local.plug.start(self.local.waiting.len() as u32);
        }
        while let Some(index) = self.local.waiting.pop_front() {
            let bio = self.env.pool().slot(index as usize).bio();
            if !self.env.queue_bio(&mut self.local, index, &bio, false, now)
                && !self.local.held.hold_throttled(self.env.pool(), index)
            {
                self.local.waiting.push_front(index);
                break;
            }
        }
        if together {
            self.env.close_plug(&mut self.local, now);
        } else if self.local.plug.is_due() {
            self.env.flush_plug(&mut self.local, now);
        }
        self.env.settle_tag_wait(&mut self.local);
    }
}
