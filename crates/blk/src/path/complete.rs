// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From the driver's completion to the completion of the bio: completion on the submitting CPU, flush steps,
//! statistics, freeing of tags, restarts.
//!
//! Guarantees: each bio of a completed request is put on its submitter's list exactly once, before the request's tag can
//! be taken again. Freeing a tag runs an hctx that waited for it. Source: block/blk-mq.c, blk-flush.c.

use crate::bio::{BioId, BioSlot, Op};
use crate::driver::{Ended, POLL_BATCH};
use crate::id::{HctxId, SubmitterId, Tag};
use crate::lock::Lock;
use crate::path::flush;
use crate::queue::hctx::state;
use crate::request::{NO_TAG, Request, RequestId, Rq, RqState, rqf};
use crate::status::BlkStatus;
use crate::submitter::shared::Remote;
use crate::submitter::{Env, Local};
use crate::sync::{Ordering, fence};
use crate::tags::hctx_tags::PutBatch;
use crate::tags::sbitmap::TagAllocHint;
use crate::time::Instant;

impl<L: Lock> Env<L> {
    /// Polls every hctx that this submitter's requests go to, and handles the completions.
    #[inline]
    pub(crate) fn poll_hctxs(&self, local: &mut Local, now: Instant) {
        for hctx in self.polled() {
            self.poll_hctx(local, usize::from(*hctx), now);
        }
    }

    #[inline]
    pub(crate) fn poll_hctx(&self, local: &mut Local, hctx: usize, now: Instant) {
        local.completions.place.hctx = HctxId::new(hctx as u32);
        loop {
            self.q.driver.poll(HctxId::new(hctx as u32), &mut local.completions, now);
            if self.take_polled(local, hctx, now) < POLL_BATCH {
                return;
            }
        }
    }

    /// Completes the requests that the driver put into the completions. Returns how many they were.
    #[inline(always)] // Once per poll, which is one request at a depth of one.
    pub(crate) fn take_polled(&self, local: &mut Local, hctx: usize, now: Instant) -> usize {
        let n = local.completions.items.len();
        if n > 0 && self.lack_space(&local.completions.items) {
            self.hold_for_space(local, hctx);
        }
        if !local.completions.requeues.is_empty() {
            self.take_requeues(local, hctx, now);
        }
        if local.completions.items.is_empty() {
            return n;
        }
        if let [ended] = local.completions.items[..] {
            local.completions.items.clear();
            self.complete_one(local, hctx, ended, now);
            return n;
        }
        let mut items = core::mem::take(&mut local.completions.items);
        self.complete_batch(local, hctx, &items, now);
        items.clear();
        local.completions.items = items;
        n
    }

    /// Completes the requests that the driver completed while they were being issued. Hctx runs that become necessary
    /// are left pending, because they would call the driver from inside a call of the driver.
    #[inline(always)] // Part of a call of the driver.
    pub(crate) fn complete_ended(&self, local: &mut Local, hctx: usize, now: Instant) {
        let nested = core::mem::replace(&mut local.in_driver, true);
        if let [ended] = local.scratch.ended_inline[..] {
            local.scratch.ended_inline.clear();
            self.complete_one(local, hctx, ended, now);
        } else {
            let mut items = core::mem::take(&mut local.scratch.ended_inline);
            self.complete_batch(local, hctx, &items, now);
            items.clear();
            local.scratch.ended_inline = items;
        }
        local.in_driver = nested;
        // The elevator may have released requests that another hctx waited for.
        let marked = self.st.elevator.is_some() && self.q.work_pending.load(Ordering::Relaxed);
        local.owes |= marked || !local.waiting.is_empty();
    }

    /// Completes a batch of one request, which is every batch at a queue depth of one.
    fn complete_one(&self, local: &mut Local, hctx: usize, ended: Ended, now: Instant) {
        let (id, rq) = self.ended_rq(hctx, ended);
        self.trace_ended_one(local, id, ended.1, now);
        self.update_io_ticks(local, now, 0);
        if self.take_back(local, hctx, id, rq, ended, now) {
            let (tags, tag) = (self.st.alloc_tags(hctx), self.st.tag_of_rq(id, hctx));
            if !(self.direct && local.plug.keep_tag(hctx, tag, tags)) {
                self.put_alloc_tag(local, hctx, tag);
                if !local.plug.is_open() {
                    // The tag was kept for another hctx than the current one, or other submitters wait for a tag now.
                    self.return_cached_tags(local);
                }
            }
        }
        self.after_finish(local, hctx, now);
    }

    #[inline(never)] // Inlined, it makes every poll save and load the variables of the loops around it.
    fn complete_batch(&self, local: &mut Local, hctx: usize, items: &[Ended], now: Instant) {
        self.trace_ended(local, hctx, items, now);
        let mut put = PutBatch::default();
        // Single-queue mode has no tags of its own to free here.
        let tags = self.st.sq.is_none().then(|| self.st.alloc_tags(hctx));
        self.update_io_ticks(local, now, 0);
        for &ended in items {
            let (id, rq) = self.ended_rq(hctx, ended);
            if !self.take_back(local, hctx, id, rq, ended, now) {
                continue;
            }
            let Some(tags) = tags else { continue };
            let tag = self.st.tag_of_rq(id, hctx);
            if self.st.elevator.is_some() || self.st.alloc_share().is_some() {
                // Tag by tag, as the kernel frees scheduler tags: this decides which tags a search with a limited depth
                // finds free.
                self.put_alloc_tag(local, hctx, tag);
            } else {
                self.st.note_ended(hctx, tag);
                tags.put_later(tag, &mut put, &mut |w| self.wake(w));
            }
        }
        if let Some(tags) = tags {
            tags.put_now(&mut put, &mut |w| self.wake(w));
        }
        self.after_finish(local, hctx, now);
    }

    /// Returns the request that holds a driver tag.
    #[inline(always)] // Into the loop over a batch.
    fn ended_rq(&self, hctx: usize, (tag, _): Ended) -> (RequestId, &Request) {
        let id = self.rq_of_driver_tag(hctx, tag.index());
        (id, self.st.slab.get(id))
    }

    /// Completes a request. True: the caller frees its internal tag.
    #[inline(always)] // As `ended_rq`.
    fn take_back(
        &self,
        local: &mut Local,
        hctx: usize,
        id: RequestId,
        rq: &Request,
        (tag, status): Ended,
        now: Instant,
    ) -> bool {
        if rq.state.get() != RqState::InFlight as u8 {
            self.not_in_flight(hctx, tag, "completed");
        }
        rq.state.set(RqState::Idle as u8);
        if rq.cpu.get() != self.cpu.index() as u16 && self.steer(rq, hctx, id, status) {
            return false;
        }
        self.finish_rq(local, hctx, id, rq, status, now)
    }

    /// Panics with a message about a driver that used `unsafe` code to break a rule which the types enforce otherwise.
    #[cold]
    pub(crate) fn not_in_flight(&self, hctx: usize, tag: Tag, what: &str) -> ! {
        let name = self.q.driver.name();
        panic!("driver '{name}', hctx {hctx}, tag {tag}: {what}, but no request of that tag is in flight")
    }

    #[inline]
    pub(crate) fn rq_of_driver_tag(&self, hctx: usize, tag: usize) -> RequestId {
        if self.st.tags_by_dispatch() {
            return RequestId::new(self.st.driver_rqs[hctx * self.st.queue_depth as usize + tag].get());
        }
        let id = self.st.rq_of_tag(hctx, tag as u32);
        if self.st.slab.get(id).has_rqf(rqf::TAG_LENT) { self.st.flush_rq(hctx) } else { id }
    }

    /// Whether the completion was passed on to the CPU that submitted (`rq_affinity` 1: unless this CPU shares its
    /// cache).
    #[cold]
    fn steer(&self, rq: &Request, hctx: usize, id: RequestId, status: BlkStatus) -> bool {
        let affinity = self.q.live.rq_affinity.load(Ordering::Relaxed);
        if affinity == 0 {
            return false;
        }
        let head = rq.bio_head();
        if rq.has_rqf(rqf::FLUSH_RQ) || head == BioId::NONE || head.submitter() == self.id.index() {
            return false;
        }
        if affinity == 1 && self.q.online.shares_cache(self.cpu, rq.cpu()) {
            return false;
        }
        let target = head.submitter();
        self.q.submitter_shared(target).push_remote(Remote::Complete(HctxId::new(hctx as u32), id, status));
        self.q.notify.notify(SubmitterId::new(target as u32));
        true
    }

    /// Completes a request outside a batch: another CPU passed its completion on, or the request was never issued.
    #[cold]
    pub(crate) fn complete_rq(&self, local: &mut Local, hctx: usize, id: RequestId, status: BlkStatus, now: Instant) {
        if self.finish_rq(local, hctx, id, self.st.slab.get(id), status, now) {
            self.put_alloc_tag(local, hctx, self.st.tag_of_rq(id, hctx));
        }
        self.after_finish(local, hctx, now);
    }

    /// Completes a request that the driver refused with an error.
    #[cold]
    pub(crate) fn end_unissued(&self, local: &mut Local, hctx: usize, id: RequestId, status: BlkStatus, now: Instant) {
        self.trace_unissued(local, id, status, now);
        self.complete_rq(local, hctx, id, status, now);
    }

    /// Finishes a completed request. True: the caller frees its internal tag. False: the tag is freed later, as always in
    /// single-queue mode.
    #[inline(always)] // Into the loop over a batch.
    fn finish_rq(
        &self,
        local: &mut Local,
        hctx: usize,
        id: RequestId,
        rq: &Request,
        status: BlkStatus,
        now: Instant,
    ) -> bool {
        if rq.has_rqf(rqf::FLUSH_SEQ | rqf::FLUSH_RQ) {
            self.flush_completed(local, hctx, id, status, now);
            return false;
        }
        self.end_rq(local, id, rq, status, now);
        if self.direct {
            return true;
        }
        if self.st.sq.is_some() {
            local.scratch.ended.push(id);
            return false;
        }
        if let Some(e) = &self.st.elevator {
            if rq.has_rqf(rqf::ELV) {
                e.completed(&self.elv_cx(now), &Rq::from_id(id));
            }
            self.release_driver_tag(hctx, id);
        }
        true
    }

    /// The step after the tags of completed requests were freed: runs the hctx if a request waited there for a tag. In
    /// single-queue mode, frees the requests instead.
    #[inline]
    fn after_finish(&self, local: &mut Local, hctx: usize, now: Instant) {
        if self.st.sq.is_some() {
            return self.sq_free_batch(local, now);
        }
        self.after_free(local, hctx, now);
        if self.may_hold {
            self.after_hold(local, hctx, now);
        }
    }

    /// Returns the hint that a freed tag of this hctx updates. Only with an elevator, as in the kernel, because the
    /// start of a search decides which tags a search with a limited depth leaves free. Without an elevator the choice
    /// of a tag does not matter.
    #[inline]
    pub(crate) fn hint_after_free<'a>(&self, local: &'a mut Local, hctx: usize) -> Option<&'a mut TagAllocHint> {
        self.st.elevator.as_ref()?;
        Some(&mut local.hints[self.st.map.hctx_type(hctx as u16) as usize])
    }

    /// Frees a request outside a batch.
    fn free_rq(&self, local: &mut Local, hctx: usize, id: RequestId, now: Instant) {
        if self.st.sq.is_some() {
            local.scratch.ended.push(id);
            return self.sq_free_batch(local, now);
        }
        self.put_alloc_tag(local, hctx, self.st.tag_of_rq(id, hctx));
        self.after_free(local, hctx, now);
    }

    /// Updates the statistics, then completes every bio of the chain.
    #[inline(always)] // As `finish_rq`.
    fn end_rq(&self, local: &mut Local, id: RequestId, rq: &Request, status: BlkStatus, now: Instant) {
        if self.wbt_is_on() || rq.has_rqf(rqf::WBT_WRITE | rqf::WBT_DISCARD) {
            self.wbt_done(id, rq, now);
        }
        self.account_done(rq, status, now);
        self.end_bios_only(local, rq, status);
    }

    /// Counts a bio or request that was merged into another request.
    #[inline]
    pub(crate) fn account_merge(&self, op: Op) {
        if self.q.live.iostats.load(Ordering::Relaxed) {
            self.shared.counters.account_merge(op);
        }
    }

    #[inline(always)] // As `finish_rq`.
    fn account_done(&self, rq: &Request, status: BlkStatus, now: Instant) {
        if self.q.live.iostats.load(Ordering::Relaxed) {
            self.shared.counters.account_done(rq, now.as_ns(), status.is_ok());
        }
    }

    /// Completes a bio at its submitter. A piece of a split bio counts towards its parent.
    #[inline]
    pub(crate) fn end_bio(&self, local: &mut Local, id: BioId, status: BlkStatus) {
        if id.submitter() != self.id.index() {
            return self.end_foreign_bio(id, status);
        }
        self.end_own_bio(local, id.index() as u32, self.pool().slot(id.index()), status);
    }

    #[inline(always)] // As `finish_rq`.
    fn end_own_bio(&self, local: &mut Local, index: u32, slot: &BioSlot, status: BlkStatus) {
        let parent_index = slot.parent.get();
        let parent = if parent_index == index { slot } else { self.pool().slot(parent_index as usize) };
        if !status.is_ok() {
            parent.status.set(status.as_u8());
        }
        if parent_index != index {
            local.free_piece(index, self.nr_bios());
        }
        let remaining = parent.remaining.get() - 1;
        parent.remaining.set(remaining);
        if remaining == 0 {
            self.shared.counters.in_flight.sub(1);
            local.done.push_back(parent_index);
        }
    }

    #[cold]
    fn end_foreign_bio(&self, id: BioId, status: BlkStatus) {
        self.q.submitter_shared(id.submitter()).push_remote(Remote::BioEnd(id.index() as u32, status));
        self.q.notify.notify(SubmitterId::new(id.submitter() as u32));
    }

    /// Updates the busy time of the disk, at most once a millisecond.
    #[inline]
    pub(crate) fn update_io_ticks(&self, local: &mut Local, now: Instant, starting: usize) {
        if now >= local.next_tick {
            local.next_tick = self.q.update_io_ticks(now, starting as u64);
        }
    }

    /// Runs the hctx if requests wait there for a tag.
    #[inline]
    pub(crate) fn after_free(&self, local: &mut Local, hctx: usize, now: Instant) {
        // Other hctxs may have waited longer for the device than the hctx of the completed request.
        let by_turns = self.q.take_device_busy();
        if self.st.hctxs[hctx].take_flag(state::SCHED_RESTART) {
            fence(Ordering::SeqCst); // Pairs with: Env::leave_over
            if by_turns {
                local.owes |= local.in_driver;
                self.owe_run(&self.st.hctxs[hctx]);
            } else {
                self.run_hctx(local, hctx, now);
            }
        }
        if by_turns {
            local.owes |= local.in_driver;
            self.device_not_busy();
        }
    }

    /// Frees a request whose bios now belong to a neighbour it was merged into.
    pub(crate) fn free_absorbed(&self, local: &mut Local, rq: Rq, now: Instant) {
        self.wbt_drop(self.st.slab.get(rq.id()), now);
        let hctx = usize::from(self.st.slab.get(rq.id()).hctx.get());
        self.put_alloc_tag(local, hctx, self.st.tag_of_rq(rq.id(), hctx));
    }

    /// Handles the completion of a flush command, or of the data step of a flush sequence.
    #[cold]
    fn flush_completed(&self, local: &mut Local, hctx: usize, id: RequestId, status: BlkStatus, now: Instant) {
        let h = &self.st.hctxs[hctx];
        let rq = self.st.slab.get(id);
        self.release_driver_tag(hctx, id);
        if rq.has_rqf(rqf::FLUSH_RQ) {
            self.account_done(rq, status, now);
            let status = self.q.flush_latch.completed(status);
            let mut waiters = core::mem::take(&mut local.scratch.flushed);
            debug_assert!(waiters.is_empty());
            h.flush.lock().flush_done(&mut waiters);
            if !self.st.tags_by_dispatch() {
                let lender = waiters.first().expect("a flush has at least one waiter");
                self.st.slab.get(lender.id()).clear_rqf(rqf::TAG_LENT);
            }
            for w in waiters.drain(..) {
                let step = flush::next_step(self.st.slab.get(w.id()).flush_seq.get());
                self.flush_step_done(local, hctx, w, step, status, now);
            }
            local.scratch.flushed = waiters;
        } else {
            h.flush.lock().data_done();
            self.flush_step_done(local, hctx, Rq::from_id(id), flush::DATA, status, now);
        }
        self.kick_flush(local, hctx, now);
    }

    /// Marks one step of a flush sequence as done, and starts the next step or completes the request.
    pub(crate) fn flush_step_done(
        &self,
        local: &mut Local,
        hctx: usize,
        rq: Rq,
        step: u8,
        status: BlkStatus,
        now: Instant,
    ) {
        let h = &self.st.hctxs[hctx];
        let r = self.st.slab.get(rq.id());
        r.flush_seq.set(r.flush_seq.get() | step);
        let next = if status.is_ok() { flush::next_step(r.flush_seq.get()) } else { flush::DONE };
        match next {
            flush::DATA => {
                h.flush.lock().data_started();
                h.dispatch.with(|list| list.push_back(rq));
                self.owe_run(h);
            }
            flush::DONE => {
                r.clear_rqf(rqf::FLUSH_SEQ);
                self.trace_sequence_end(local, r, status, now);
                if r.op() == Op::Flush {
                    self.end_bios_only(local, r, status);
                } else {
                    self.end_rq(local, rq.id(), r, status, now);
                }
                self.free_rq(local, hctx, rq.id(), now);
            }
            _ => h.flush.lock().wait_for_flush(rq, now),
        }
    }

    /// Completes every bio of the chain. An empty flush needs nothing else: the statistics count its flush command.
    #[inline(always)] // As `finish_rq`.
    fn end_bios_only(&self, local: &mut Local, rq: &Request, status: BlkStatus) {
        let mut next = rq.bio_head();
        while next != BioId::NONE {
            let id = next;
            // A slot must not be read after its bio has completed.
            if id.submitter() == self.id.index() {
                let slot = self.pool().slot(id.index());
                next = BioId::from_bits(slot.next.get());
                self.end_own_bio(local, id.index() as u32, slot, status);
            } else {
                next = BioId::from_bits(self.q.bios.bio(id).next.get());
                self.end_foreign_bio(id, status);
            }
        }
    }

    /// Issues the flush command if it is time.
    pub(crate) fn kick_flush(&self, local: &mut Local, hctx: usize, now: Instant) {
        let h = &self.st.hctxs[hctx];
        let id = self.st.flush_rq(hctx);
        {
            let mut fq = h.flush.lock();
            let Some(first) = fq.kick(now) else {
                drop(fq);
                return self.run_hctx(local, hctx, now);
            };
            let lender = self.st.slab.get(first.id());
            let rq = self.st.slab.get(id);
            rq.op.set(Op::Flush as u8);
            rq.flags.set(0);
            rq.prio.set(0);
            rq.sector.set(0);
            rq.nr_sectors.set(0);
            rq.nr_segments.set(0);
            rq.bio_head.set(BioId::NONE.bits());
            rq.bio_tail.set(BioId::NONE.bits());
            rq.rqf.set(rqf::FLUSH_RQ | rqf::NOMERGE);
            rq.cpu.set(lender.cpu.get());
            rq.hctx.set(hctx as u16);
            rq.start_ns.set(now.as_ns());
            rq.alloc_ns.set(now.as_ns());
            rq.retries.set(0);
            rq.insert_ns.set(now.as_ns());
            rq.dispatch_ns.set(now.as_ns());
            rq.driver_tag.set(if self.st.tags_by_dispatch() {
                NO_TAG
            } else {
                lender.set_rqf(rqf::TAG_LENT);
                lender.driver_tag.get()
            });
        }
        h.dispatch.with(|list| list.push_front(Rq::from_id(id)));
        self.run_hctx(local, hctx, now);
    }
}
