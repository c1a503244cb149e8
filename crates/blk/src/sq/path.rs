// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The path of a request through the single queue: merge, allocation, elevator, dispatch and completion under one lock.
//!
//! Source: block/blk-core.c of Linux 4.19.

use super::sq_queue::{SqInner, SqQueue};
use crate::bio::{BioId, BioSlot, Op, OpFlags};
use crate::elevator::interface::{BioMerge, BioRef};
use crate::elevator::legacy::LegacyInsert;
use crate::lock::Lock;
use crate::path::dispatch::run_again_after;
use crate::path::merge;
use crate::request::{NO_TAG, Request, RequestId, Rq, rqf};
use crate::status::QueueRqStatus;
use crate::submitter::{Env, Local};
use crate::tags::sbitmap_queue::WaiterId;
use crate::time::Instant;
use std::collections::VecDeque;

/// Maximum number of requests in one call of the driver, during which the lock is dropped.
const SQ_DISPATCH_BATCH: usize = 32;

impl<L: Lock> Env<L> {
    fn sq(&self) -> &SqQueue<L> {
        self.st.sq.as_ref().expect("single-queue path in single-queue mode")
    }

    /// `blk_queue_bio`: plug merge without the lock; then, under it, elevator merge and request allocation.
    #[inline]
    pub(crate) fn sq_queue_bio(&self, local: &mut Local, id: BioId, slot: &BioSlot, now: Instant) -> bool {
        let (op, flags) = (slot.op(), slot.flags());
        let mergeable = self.nomerges() < 2 && merge::bio_is_mergeable(slot);
        self.trace_plugged(local);
        if mergeable && self.sq_plug_merge(local, id, slot, now) {
            self.account_merge(op);
            self.trace_merged(local, slot, false, now);
            return true;
        }
        let sync = flags.is_sync(op);
        let mut inner = self.sq().inner.lock();
        if mergeable && let BioMerge::Merged { freed } = inner.elevator.bio_merge(&self.elv_cx(now), BioRef(id)) {
            self.trace_merged(local, slot, false, now);
            if let Some(rq) = &freed {
                self.account_merge(op);
                self.trace_absorbed(local, rq, now);
            }
            let woken = freed.and_then(|rq| self.sq_free_locked(&mut inner, rq.id()));
            drop(inner);
            woken.into_iter().for_each(|w| self.wake(w));
            self.account_merge(op);
            return true;
        }
        if local.sq_wait == Some(sync) && !inner.lists[usize::from(sync)].is_waiting(self.waiter()) {
            // The submitter was woken, so it may allocate a batch of requests.
            local.sq_wait = None;
            local.sq_batching.start(now);
        }
        if !inner.lists[usize::from(sync)].take(&mut local.sq_batching, now) {
            drop(inner);
            return self.sq_wait(local, sync, now) && self.sq_queue_bio(local, id, slot, now);
        }
        let rq_id = inner.free.pop().expect("the request lists bound the requests in use");
        drop(inner);
        let rq = self.st.slab.get(rq_id);
        self.init_rq(rq, slot, &slot.bio(), id, 0, now);
        rq.driver_tag.set(NO_TAG);
        // The caller has traced the bio.
        rq.set_rqf(rqf::LATE);
        if sync {
            rq.set_rqf(rqf::RL_SYNC);
        }
        let needs_flush = op == Op::Flush || flags.intersects(OpFlags::FUA.union(OpFlags::PREFLUSH));
        if needs_flush {
            self.trace_new_rq(local, rq);
        }
        if needs_flush && self.insert_flush(local, 0, Rq::from_id(rq_id), now) {
            return true;
        }
        self.plug_rq(local, Rq::from_id(rq_id), rq, now);
        true
    }

    /// `blk_attempt_plug_merge`: every request of the plug is checked, the latest first.
    fn sq_plug_merge(&self, local: &Local, id: BioId, slot: &BioSlot, now: Instant) -> bool {
        local.plug.rqs.iter().rev().any(|rq| self.merge_into(self.st.slab.get(rq.id()), id, slot, now))
    }

    /// Flushes the plug, because no request is free in this direction. True: try once more. False: the submitter waits
    /// for a request.
    #[cold]
    fn sq_wait(&self, local: &mut Local, sync: bool, now: Instant) -> bool {
        self.flush_plug(local, now);
        if local.sq_wait.is_some_and(|other| other != sync) {
            self.sq_stop_waiting(local);
        }
        let mut inner = self.sq().inner.lock();
        let list = &mut inner.lists[usize::from(sync)];
        if list.may_take(&local.sq_batching, now) {
            return true;
        }
        list.wait(self.waiter());
        local.sq_wait = Some(sync);
        local.blocked_on_tag = true;
        false
    }

    /// Removes the submitter from the waiters, because it needs no request any more.
    pub(crate) fn sq_stop_waiting(&self, local: &mut Local) {
        if let Some(sync) = local.sq_wait.take() {
            let next = self.sq().inner.lock().lists[usize::from(sync)].stop_waiting(self.waiter());
            next.into_iter().for_each(|w| self.wake(w));
        }
    }

    /// `blk_flush_plug_list`: sorted, inserted under one hold of the lock, then the queue runs.
    pub(crate) fn sq_flush_plug(&self, local: &mut Local, now: Instant) {
        self.update_io_ticks(local, now, local.plug.rqs.len());
        let mut rqs = core::mem::take(&mut local.plug.rqs);
        rqs.sort_unstable_by_key(|rq| self.st.slab.get(rq.id()).sector.get());
        self.hctx_counters(0).queued.add(rqs.len() as u64);
        let mut freed = core::mem::take(&mut local.scratch.freed);
        let how = if local.plug.is_open() { LegacyInsert::SortMerge } else { LegacyInsert::Sort };
        self.trace_insert(local, &rqs, now);
        let mut inner = self.sq().inner.lock();
        for rq in rqs.drain(..) {
            self.st.slab.get(rq.id()).insert_ns.set(now.as_ns());
            inner.elevator.add(&self.elv_cx(now), rq, how, &mut freed);
        }
        for rq in freed.drain(..) {
            self.account_merge(self.st.slab.get(rq.id()).op());
            self.trace_absorbed(local, &rq, now);
            local.scratch.woken.extend(self.sq_free_locked(&mut inner, rq.id()));
        }
        drop(inner);
        self.sq_wake(local);
        local.scratch.freed = freed;
        local.plug.rqs = rqs;
        self.sq_run(local, now);
    }

    /// The request function: issues as many requests as the driver can take, in batches. The lock is released while a batch is issued.
    pub(crate) fn sq_run(&self, local: &mut Local, now: Instant) {
        if local.in_driver || local.in_interrupt {
            local.owes |= local.in_driver;
            return self.owe_run(&self.st.hctxs[0]);
        }
        if self.q.is_quiesced() {
            return;
        }
        self.hctx_counters(0).run.add(1);
        let mut ids = core::mem::take(&mut local.scratch.ids);
        while !self.q.is_quiesced() {
            ids.clear();
            let mut inner = self.sq().inner.lock();
            // Set `busy` before the check, so that a completion in between sees it.
            inner.busy = true;
            let budget = self.q.driver.budget(self.st.hctxs[0].id) as usize;
            if budget == 0 {
                break;
            }
            inner.busy = false;
            while ids.len() < SQ_DISPATCH_BATCH.min(budget) {
                let Some(rq) = self.sq_next(&mut inner, now) else { break };
                ids.push(rq.id());
            }
            drop(inner);
            if ids.is_empty() {
                break;
            }
            let (sent, status) = self.queue_rqs(local, 0, &ids, false, now);
            if sent < ids.len() {
                self.sq_requeue(&ids[sent..], status, now);
                break;
            }
        }
        ids.clear();
        local.scratch.ids = ids;
    }

    /// Returns the next request to issue, with a driver tag; `None` when there is no tag or no request.
    fn sq_next(&self, inner: &mut SqInner, now: Instant) -> Option<Rq> {
        let tag = *inner.tags.last()?;
        let bypass = &self.st.hctxs[0].dispatch;
        let next = if bypass.is_empty() { None } else { bypass.with(VecDeque::pop_front) };
        let rq = next.or_else(|| inner.requeued.pop_front()).or_else(|| {
            let rq = inner.elevator.next(&self.elv_cx(now))?;
            self.st.slab.get(rq.id()).dispatch_ns.set(now.as_ns());
            Some(rq)
        })?;
        inner.tags.pop();
        let r = self.st.slab.get(rq.id());
        r.driver_tag.set(tag);
        r.issue_ns.set(now.as_ns());
        self.st.driver_rqs[usize::from(tag)].set(rq.id().index() as u32);
        Some(rq)
    }

    #[cold]
    fn sq_requeue(&self, ids: &[RequestId], status: QueueRqStatus, now: Instant) {
        let mut inner = self.sq().inner.lock();
        inner.busy = true;
        for id in ids.iter().rev() {
            let r = self.st.slab.get(*id);
            inner.tags.push(r.driver_tag.get());
            r.driver_tag.set(NO_TAG);
            inner.requeued.push_front(Rq::from_id(*id));
        }
        // Every request in flight holds a driver tag. If all tags are free, the requests that kept the driver busy have
        // completed since, and no later completion will run the queue.
        let nothing_in_flight = inner.tags.len() == self.st.queue_depth as usize;
        drop(inner);
        if let Some(delay) = run_again_after(status) {
            self.st.hctxs[0].due.arm(&self.q.delayed, now + delay);
        } else if nothing_in_flight {
            self.owe_run(&self.st.hctxs[0]);
        }
    }

    /// Puts requests that the driver gave back before all others.
    pub(crate) fn sq_insert_requeued(&self, rqs: &mut Vec<Rq>) {
        let mut inner = self.sq().inner.lock();
        rqs.drain(..).rev().for_each(|rq| inner.requeued.push_front(rq));
    }

    /// Frees the requests of a batch of completions, then runs the queue, with the lock taken once for the whole batch.
    pub(crate) fn sq_free_batch(&self, local: &mut Local, now: Instant) {
        let mut ended = core::mem::take(&mut local.scratch.ended);
        if ended.is_empty() {
            local.scratch.ended = ended;
            return;
        }
        let mut inner = self.sq().inner.lock();
        for id in ended.drain(..) {
            local.scratch.woken.extend(self.sq_free_locked(&mut inner, id));
        }
        let run = !inner.elevator.is_empty() || inner.busy || !inner.requeued.is_empty();
        drop(inner);
        self.sq_wake(local);
        local.scratch.ended = ended;
        if run || !self.st.hctxs[0].dispatch.is_empty() {
            self.sq_run(local, now);
        }
    }

    /// Wakes the waiter that was found under the lock, after the lock is dropped, because a wake-up may be a system
    /// call.
    fn sq_wake(&self, local: &mut Local) {
        local.scratch.woken.drain(..).for_each(|w| self.wake(w));
    }

    /// Gives request and driver tag back. Returns the waiter to wake, which may take the request next.
    fn sq_free_locked(&self, inner: &mut SqInner, id: RequestId) -> Option<WaiterId> {
        let r = self.st.slab.get(id);
        self.sq_put_driver_tag(inner, r);
        inner.free.push(id);
        inner.lists[usize::from(r.has_rqf(rqf::RL_SYNC))].put()
    }

    fn sq_put_driver_tag(&self, inner: &mut SqInner, r: &Request) {
        if r.driver_tag.get() != NO_TAG {
            inner.tags.push(r.driver_tag.get());
            r.driver_tag.set(NO_TAG);
        }
    }

    /// Gives back only the driver tag, because a step of a flush sequence completed.
    pub(crate) fn sq_release_driver_tag(&self, id: RequestId) {
        let mut inner = self.sq().inner.lock();
        self.sq_put_driver_tag(&mut inner, self.st.slab.get(id));
    }
}
