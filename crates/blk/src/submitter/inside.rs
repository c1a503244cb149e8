// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Entering and leaving the block layer. A freeze waits for submitters that are inside.
//!
//! Guarantees: no submitter enters to make requests while the queue is frozen, nor to poll while it is drained. A
//! submitter that enters has the state of the last rebuild, and stays inside for as long as it has bios there.

use super::Submitter;
use crate::bio::BioId;
use crate::lock::Lock;
use crate::queue::freeze::Gate;
use crate::queue::request_queue::RequestQueue;
use crate::sync::Ordering;
use crate::time::Instant;
use std::sync::Arc;

impl<L: Lock> Submitter<L> {
    /// Enters the block layer to make requests: from here to [`Submitter::leave`] a freeze waits for this submitter.
    /// False while frozen.
    ///
    /// A submitter stays inside between calls for as long as it has bios there. So the locked instruction is paid once per
    /// busy period, not once per call.
    #[inline]
    pub(crate) fn enter(&mut self, now: Instant) -> bool {
        if self.inside {
            let gate = self.env.q.gate();
            return gate.is_open() || self.enter_at(gate, now);
        }
        self.mark_inside(RequestQueue::is_frozen, now)
    }

    #[cold]
    fn enter_at(&mut self, gate: Gate, now: Instant) -> bool {
        if gate.is_leaving() {
            self.follow_cpu(now);
        }
        !gate.is_frozen()
    }

    /// Enters to handle existing requests. Returns false when the queue is drained and about to be rebuilt: then there
    /// are no requests, and the hardware queues must not be accessed.
    #[inline]
    pub(super) fn enter_to_poll(&mut self, now: Instant) -> bool {
        self.inside || self.mark_inside(RequestQueue::is_sealed, now)
    }

    #[inline]
    fn mark_inside(&mut self, is_shut: impl Fn(&RequestQueue<L>) -> bool, now: Instant) -> bool {
        // A swap instead of a store, because all threads must see one order: this thread marks itself inside and then
        // checks for a freeze, while another freezes and then checks which submitters are inside. Pairs with:
        // SubmitterShared::is_inside
        self.env.shared.inside.swap(1, Ordering::SeqCst);
        if is_shut(&self.env.q) {
            self.env.shared.inside.store(0, Ordering::Release); // Pairs with: SubmitterShared::is_inside
            return false;
        }
        self.inside = true;
        if self.env.q.generation() != self.generation {
            self.refresh(now);
        }
        true
    }

    /// Leaves when this submitter has no bio inside, or when a freeze waits for it to leave (the tags of its requests
    /// still show that they exist).
    #[inline]
    pub(super) fn leave_if_idle(&mut self) {
        let idle = self.env.in_flight() as usize == self.local.waiting.len() + self.local.held.len();
        if self.inside && !self.local.plug.is_open() && (idle || self.env.q.is_frozen()) {
            self.leave();
        }
    }

    #[inline]
    pub(super) fn leave(&mut self) {
        if self.inside {
            self.env.return_cached_tags(&mut self.local);
            self.inside = false;
            // Pairs with: SubmitterShared::is_inside
            self.env.shared.inside.store(0, Ordering::Release);
        }
    }

    /// Adopts the rebuilt queue's state and the submitter's present CPU. Checks waiting bios again, because they may
    /// need features that the new state does not have.
    #[cold]
    fn refresh(&mut self, now: Instant) {
        // In this order, for the reason given in `RequestQueue::submitter`.
        self.generation = self.env.q.generation();
        let st = self.env.q.state();
        if Arc::ptr_eq(&st, &self.env.st) {
            return self.follow_cpu(now);
        }
        self.env.st = st;
        // These are registrations in wait queues of the old state; all their wake-ups were sent.
        self.local.tag_wait = None;
        self.local.woken = None;
        self.local.sq_wait = None;
        // No requests are left in former hctxs, because the queue was drained.
        self.local.left_behind.clear();
        self.env.remap();
        self.follow_cpu(now);
        self.local.reserve(self.env.st.stride as usize);
        for _ in 0..self.local.waiting.len() {
            let index = self.local.waiting.pop_front().expect("counted");
            let slot = self.env.pool().slot(index as usize);
            let refused = self.env.check_features(slot.op(), slot.flags());
            if refused.is_err() || !self.env.wbt_is_on() {
                self.env.wbt_cleanup(slot, now);
            }
            match refused {
                Ok(()) => self.local.waiting.push_back(index),
                Err(status) => self.env.end_bio(&mut self.local, BioId::new(self.env.id, index), status),
            }
        }
    }
}
