// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests that a driver gives back after it had accepted them, to be issued again at once or after a delay.
//!
//! Guarantees that such a request goes before the queued requests: it is put at the head
//!
//! - of the elevator that it came from (requests that wait on `hctx->dispatch` still precede it);
//! - of `hctx->dispatch` if it had bypassed the elevator, or without an elevator;
//! - of the requeued list in single-queue mode.
//!
//! While it waits it holds no driver tag if tags are taken at dispatch. Without an elevator it keeps its tag, which
//! identifies it. A freeze waits for it as for any request. Delayed requests wait on a list of their hctx. The delayed run
//! for the earliest of them reinserts them; [`RequestQueue::next_timer`](crate::queue::RequestQueue::next_timer) reports
//! its time.
//!
//! Not here: a limit on the number of requeues, which is up to the driver. Source: block/blk-mq.c
//! (`blk_mq_requeue_request`, `blk_mq_requeue_work`).

use crate::driver::{Requeued, Tries};
use crate::lock::Lock;
use crate::queue::hctx::Hctx;
use crate::request::{Rq, RqState, rqf};
use crate::submitter::{Env, Local};
use crate::time::Instant;
use crate::trace::event::EventKind;

impl<L: Lock> Env<L> {
    /// Takes back the requests that the driver returned in the last poll of an hctx, and runs the hctx.
    #[cold]
    pub(crate) fn take_requeues(&self, local: &mut Local, hctx: usize, now: Instant) {
        let mut requeues = core::mem::take(&mut local.completions.requeues);
        let h = &self.st.hctxs[hctx];
        for Requeued { tag, delay, tries } in requeues.drain(..) {
            let id = self.rq_of_driver_tag(hctx, tag.index());
            let rq = self.st.slab.get(id);
            if rq.state.get() != RqState::InFlight as u8 {
                self.not_in_flight(hctx, tag, "given back");
            }
            rq.state.set(RqState::Idle as u8);
            if !rq.has_rqf(rqf::TRIED) {
                rq.first_issue_ns.set(rq.issue_ns.get());
                rq.set_rqf(rqf::TRIED);
            }
            match tries {
                Tries::Same => {}
                Tries::OneMore => rq.retries.set(rq.retries.get().saturating_add(1)),
                Tries::Afresh => {
                    rq.retries.set(0);
                    rq.clear_rqf(rqf::TRIED);
                }
            }
            self.wbt_requeue(id);
            self.hctx_counters(hctx).requeues.add(1);
            self.trace_rq(local, EventKind::Requeue, rq, now);
            self.release_driver_tag(hctx, id);
            if let Some(elevator) = &self.st.elevator
                && rq.has_rqf(rqf::ELV)
            {
                elevator.requeued(&self.elv_cx(now), &Rq::from_id(id));
            }
            rq.requeue_at_ns.set(delay.map_or(now, |d| now + d).as_ns());
            h.requeue.lock().push(Rq::from_id(id));
        }
        local.completions.requeues = requeues;
        self.insert_requeued(local, hctx, now);
        if self.st.sq.is_none() {
            // Do the same as after a completion: a driver tag may be free, and the device has one request fewer.
            self.after_free(local, hctx, now);
        }
        self.run_hctx(local, hctx, now);
    }

    /// Inserts requeued requests that are due, so that the next run finds them, and arms the delayed run for the
    /// others.
    pub(crate) fn insert_requeued(&self, local: &mut Local, hctx: usize, now: Instant) {
        let h = &self.st.hctxs[hctx];
        let mut rqs = core::mem::take(&mut local.scratch.rqs);
        {
            let mut list = h.requeue.lock();
            let at = |rq: &Rq| Instant::from_ns(self.st.slab.get(rq.id()).requeue_at_ns.get());
            rqs.extend(list.extract_if(.., |rq| at(rq) <= now));
            if let Some(next) = list.iter().map(at).min() {
                h.due.arm(&self.q.delayed, next);
            }
        }
        if !rqs.is_empty() {
            self.insert_at_head(local, h, &mut rqs, now);
        }
        local.scratch.rqs = rqs;
    }

    /// Inserts requests at the head, oldest first; `rqs` is empty afterwards.
    fn insert_at_head(&self, local: &mut Local, h: &Hctx<L>, rqs: &mut Vec<Rq>, now: Instant) {
        if self.st.sq.is_some() {
            return self.sq_insert_requeued(rqs);
        }
        let from_elevator = |rq: &mut Rq| self.st.slab.get(rq.id()).has_rqf(rqf::ELV);
        if let Some(elevator) = &self.st.elevator {
            let mut theirs = core::mem::take(&mut local.scratch.requeued);
            theirs.extend(rqs.extract_if(.., from_elevator));
            let mut freed = core::mem::take(&mut local.scratch.freed);
            self.trace_insert(local, &theirs, now);
            elevator.insert(&self.elv_cx(now), &mut theirs, true, &mut freed);
            assert!(theirs.is_empty() && freed.is_empty(), "elevator '{}' merged at its head", elevator.name());
            local.scratch.freed = freed;
            local.scratch.requeued = theirs;
        }
        h.dispatch.with(|list| rqs.drain(..).rev().for_each(|rq| list.push_front(rq)));
    }
}
