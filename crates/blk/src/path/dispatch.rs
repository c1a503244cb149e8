// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The dispatch loop: from `hctx->dispatch`, the elevator or the ctx lists to the driver.
//!
//! Guarantees: a request that cannot be sent now is on `hctx->dispatch`, and something runs the hctx again. That is the
//! next freed tag (SCHED_RESTART), a completion of the device (DEV_RESOURCE) or a delayed run (RESOURCE, or a delay
//! that the driver returns). Several threads may run one hctx at once; only the lists are locked. Sources:
//! block/blk-mq-sched.c, `blk_mq_dispatch_rq_list`.

use crate::driver::{DiskHctx, RqBatch};
use crate::elevator::interface::HctxRunner;
use crate::id::HctxId;
use crate::lock::Lock;
use crate::queue::hctx::{Hctx, state};
use crate::request::{NO_TAG, RequestId, Rq, rqf};
use crate::status::QueueRqStatus;
use crate::submitter::{Env, Local};
use crate::sync::{Ordering, fence};
use crate::tags::hctx_tags::TagClass;
use crate::tags::sbitmap::TagAllocHint;
use crate::time::{Duration, Instant};
use crate::trace::event::EventKind;

/// `BLK_MQ_RESOURCE_DELAY`, `BLK_MQ_BUDGET_DELAY`: retry time when there is no completion to wait for.
pub(crate) const BLK_MQ_RESOURCE_DELAY: Duration = Duration::from_ms(3);

/// Returns after what time the core retries by itself; `None` for statuses without a retry time.
pub(crate) fn run_again_after(status: QueueRqStatus) -> Option<Duration> {
    match status {
        QueueRqStatus::Resource => Some(BLK_MQ_RESOURCE_DELAY),
        QueueRqStatus::DelayMs(ms) => Some(Duration::from_ms(ms.into())),
        QueueRqStatus::Queued | QueueRqStatus::DevResource | QueueRqStatus::Error(_) => None,
    }
}

/// Maximum number of passes of one run. The rest is left to the next poll, so that one submitter's call is bounded. (The kernel yields
/// after a second or when rescheduling is due.)
const MAX_PASSES: u32 = 64;

impl<L: Lock> Env<L> {
    /// Issues requests that hold driver tags. Returns how many of `ids` the driver accepted or failed and, when that is
    /// not all of them, why it stopped. `is_new`: the requests were made just now and were not in the plug.
    #[inline(always)] // Nearly always one call of the driver and nothing else.
    pub(crate) fn queue_rqs(
        &self,
        local: &mut Local,
        hctx: usize,
        ids: &[RequestId],
        is_new: bool,
        now: Instant,
    ) -> (usize, QueueRqStatus) {
        let (accepted, status) = self.call_driver(local, hctx, ids, is_new, now);
        match status {
            QueueRqStatus::Queued => (accepted, status),
            refused => self.queue_refused(local, hctx, ids, accepted, refused, now),
        }
    }

    /// Offers one batch to the driver. Returns how many requests it accepted: all of them if the status is `Queued`.
    #[inline(always)] // As its caller.
    fn call_driver(
        &self,
        local: &mut Local,
        hctx: usize,
        ids: &[RequestId],
        is_new: bool,
        now: Instant,
    ) -> (usize, QueueRqStatus) {
        local.issued = true;
        if !self.q.timer.is_armed() {
            self.q.arm_timeout(now);
        }
        self.trace_ids(local, EventKind::Issue, ids, is_new, now);
        if self.wbt_is_on() {
            self.wbt_issue(ids);
        }
        let (slab, bios) = (&self.st.slab, &self.q.bios);
        let ended = &mut local.scratch.ended_inline;
        let place = DiskHctx { disk: self.q.serial, hctx: self.st.hctxs[hctx].id };
        let driver = self.q.driver.as_ref();
        let mut batch = RqBatch { driver, place, ids, slab, bios, accepted: 0, ended };
        let status = driver.queue_rqs(&mut batch, now);
        let accepted = batch.accepted;
        let counters = self.hctx_counters(hctx);
        counters.dispatched.add(accepted as u64);
        counters.batches.add(1);
        let all = accepted == ids.len();
        if all != (status == QueueRqStatus::Queued) {
            self.answered_wrongly(hctx, ids, accepted, status);
        }
        if !all {
            ids[accepted..].iter().for_each(|id| self.wbt_requeue(*id));
            self.trace_refused(local, &ids[accepted..], status, now);
        }
        if !local.scratch.ended_inline.is_empty() {
            self.complete_ended(local, hctx, now);
        }
        (accepted, status)
    }

    #[cold]
    fn answered_wrongly(&self, hctx: usize, ids: &[RequestId], accepted: usize, status: QueueRqStatus) -> ! {
        let (name, n) = (self.q.driver.name(), ids.len());
        let Some(id) = ids.get(accepted) else {
            panic!(
                "driver '{name}', hctx {hctx}: accepted all {n} requests and returned {status:?}; must return Queued"
            );
        };
        let tag = self.st.slab.get(*id).driver_tag.get();
        panic!(
            "driver '{name}', hctx {hctx}, tag {tag}: returned Queued without accepting this request, number \
             {accepted} of {n}"
        )
    }

    /// Continues after the driver refused the request at `from` with `status`: a request that failed is completed, and
    /// the rest is offered again until the driver is busy.
    #[cold]
    fn queue_refused(
        &self,
        local: &mut Local,
        hctx: usize,
        ids: &[RequestId],
        mut from: usize,
        mut status: QueueRqStatus,
        now: Instant,
    ) -> (usize, QueueRqStatus) {
        loop {
            match status {
                QueueRqStatus::Queued => return (from, status),
                QueueRqStatus::Error(s) => {
                    // This completion may free a tag that an hctx waits for. The run of that hctx is left pending
                    // instead of made from inside this run, or a driver that fails every request would cause recursion.
                    let nested = core::mem::replace(&mut local.in_driver, true);
                    self.end_unissued(local, hctx, ids[from], s, now);
                    local.in_driver = nested;
                    from += 1;
                    if from == ids.len() {
                        return (from, QueueRqStatus::Queued);
                    }
                }
                busy => {
                    self.hctx_counters(hctx).requeues.add(1);
                    return (from, busy);
                }
            }
            let (accepted, next) = self.call_driver(local, hctx, &ids[from..], false, now);
            from += accepted;
            status = next;
        }
    }

    /// Runs an hctx once (`blk_mq_sched_dispatch_requests`).
    pub(crate) fn run_hctx(&self, local: &mut Local, hctx: usize, now: Instant) {
        if self.st.sq.is_some() {
            return self.sq_run(local, now);
        }
        let h = &self.st.hctxs[hctx];
        if local.in_driver || local.in_interrupt {
            local.owes |= local.in_driver;
            return self.owe_run(h);
        }
        if self.q.is_quiesced() || !self.has_pending(h) {
            return;
        }
        self.hctx_counters(hctx).run.add(1);
        let mut rqs = core::mem::take(&mut local.scratch.rqs);
        let mut one_by_one = h.dispatch_busy() > 0;
        if !h.dispatch.is_empty() {
            h.dispatch.with(|list| rqs.extend(list.drain(..)));
            h.set_flag(state::SCHED_RESTART);
            if !self.dispatch_list(local, hctx, &mut rqs, now) {
                local.scratch.rqs = rqs;
                return;
            }
            one_by_one = true;
        }
        if self.st.elevator.is_some() {
            self.dispatch_elevator(local, hctx, &mut rqs, now);
        } else if one_by_one {
            self.dispatch_ctx_one_by_one(local, h, &mut rqs, now);
        } else {
            self.take_ctx_lists(h, &mut rqs);
            stamp_dispatch(self, &rqs, now);
            self.dispatch_list(local, hctx, &mut rqs, now);
        }
        local.scratch.rqs = rqs;
    }

    fn has_pending(&self, h: &Hctx<L>) -> bool {
        !h.dispatch.is_empty() || h.ctx_map.any_bit_set() || self.st.elevator.as_ref().is_some_and(|e| e.has_work(h.id))
    }

    /// Takes requests from the elevator until it returns none or the hctx has no tag left.
    fn dispatch_elevator(&self, local: &mut Local, hctx: usize, rqs: &mut Vec<Rq>, now: Instant) {
        let elevator = self.st.elevator.as_ref().expect("caller saw an elevator");
        let h = &self.st.hctxs[hctx];
        for pass in 0.. {
            if self.q.is_quiesced() || !elevator.has_work(h.id) {
                return;
            }
            if !h.dispatch.is_empty() || pass == MAX_PASSES {
                return self.owe_run(h);
            }
            let Some(budget) = self.budget_of(h) else { return };
            let busy = h.dispatch_busy() > 0;
            let max = if busy { 1 } else { self.st.nr_requests.min(budget) };
            // One more than there are tags: the last request waits on hctx->dispatch for the next tag. The kernel does
            // the same, because it chooses a request before it asks for its tag.
            let free = self.free_driver_tags();
            elevator.dispatch(&self.elv_cx(now), h.id, max.min(free + 1) as usize, rqs);
            if rqs.is_empty() {
                return h.due.arm(&self.q.delayed, elevator.next_run().unwrap_or(now + BLK_MQ_RESOURCE_DELAY));
            }
            stamp_dispatch(self, rqs, now);
            if !self.dispatch_by_hctx(local, rqs, now) {
                return;
            }
        }
    }

    /// After completions: runs the hctx if the elevator held requests back until these completions. If the elevator
    /// names a later time for them, arms a delayed run.
    #[cold]
    pub(crate) fn after_hold(&self, local: &mut Local, hctx: usize, now: Instant) {
        let Some(at) = self.st.elevator.as_ref().and_then(|e| e.next_run()) else { return };
        if at <= now {
            self.run_hctx(local, hctx, now);
        } else {
            self.st.hctxs[hctx].due.arm(&self.q.delayed, at);
        }
    }

    /// Sends requests of several hctxs, for each hctx in the elevator's order. True when all were sent.
    fn dispatch_by_hctx(&self, local: &mut Local, rqs: &mut Vec<Rq>, now: Instant) -> bool {
        let hctx_of = |rq: &Rq| usize::from(self.st.slab.get(rq.id()).hctx.get());
        let mut all_sent = true;
        while let Some(first) = rqs.first() {
            let hctx = hctx_of(first);
            if rqs.iter().all(|rq| hctx_of(rq) == hctx) {
                return self.dispatch_list(local, hctx, rqs, now) && all_sent;
            }
            let mut group = core::mem::take(&mut local.scratch.flushed);
            group.extend(rqs.extract_if(.., |rq| hctx_of(rq) == hctx));
            all_sent &= self.dispatch_list(local, hctx, &mut group, now);
            local.scratch.flushed = group;
        }
        all_sent
    }

    fn take_ctx_lists(&self, h: &Hctx<L>, rqs: &mut Vec<Rq>) {
        let ty = self.st.map.hctx_type(h.id.index() as u16);
        h.ctx_map.for_each_set(0, |bit| {
            let ctx = self.st.ctx(h.cpus[bit as usize], ty);
            // The bit is cleared under the list's lock, so an insertion after the drain sets it again.
            ctx.rqs.with(|list| {
                h.ctx_map.clear_bit(bit);
                rqs.extend(list.drain(..));
            });
            true
        });
    }

    /// Dispatches one request at a time, round robin over the ctxs. The driver is busy, so the other requests stay in
    /// the ctx lists, where they can be merged.
    fn dispatch_ctx_one_by_one(&self, local: &mut Local, h: &Hctx<L>, rqs: &mut Vec<Rq>, now: Instant) {
        let ty = self.st.map.hctx_type(h.id.index() as u16);
        for _ in 0..self.st.nr_requests {
            if self.q.is_quiesced() {
                return;
            }
            if !h.dispatch.is_empty() {
                return self.owe_run(h);
            }
            if self.budget_of(h).is_none() {
                return;
            }
            let start = h.dispatch_from.load(Ordering::Relaxed);
            let mut taken = None;
            h.ctx_map.for_each_set(start, |bit| {
                let ctx = self.st.ctx(h.cpus[bit as usize], ty);
                taken = ctx.rqs.with(|list| {
                    let rq = list.pop_front();
                    if list.is_empty() {
                        h.ctx_map.clear_bit(bit);
                    }
                    rq.map(|rq| (rq, bit))
                });
                taken.is_none()
            });
            let Some((rq, bit)) = taken else { return };
            h.dispatch_from.store((bit + 1) % h.cpus.len() as u32, Ordering::Relaxed);
            rqs.push(rq);
            stamp_dispatch(self, rqs, now);
            if !self.dispatch_list(local, h.id.index(), rqs, now) {
                return;
            }
        }
        self.owe_run(h);
    }

    /// Sends a list of one hctx, oldest first; takes driver tags for those that have none. What cannot be sent is put on
    /// `hctx->dispatch`. True when all were sent. `rqs` is empty afterwards.
    pub(crate) fn dispatch_list(&self, local: &mut Local, hctx: usize, rqs: &mut Vec<Rq>, now: Instant) -> bool {
        if rqs.is_empty() {
            return true;
        }
        let h = &self.st.hctxs[hctx];
        let mut ids = core::mem::take(&mut local.scratch.ids);
        debug_assert!(ids.is_empty());
        let now_ns = now.as_ns();
        for rq in rqs.iter() {
            let r = self.st.slab.get(rq.id());
            if r.driver_tag.get() == NO_TAG && !self.get_driver_tag(h, rq.id(), now) {
                break;
            }
            r.issue_ns.set(now_ns);
            ids.push(rq.id());
        }
        let no_tag = ids.len() < rqs.len();
        let (sent, status) =
            if ids.is_empty() { (0, QueueRqStatus::Queued) } else { self.queue_rqs(local, hctx, &ids, false, now) };
        if sent < ids.len() && self.st.tags_are_shared {
            self.leave_line(h);
        }
        for id in &ids[sent..] {
            self.release_driver_tag(hctx, *id);
        }
        ids.clear();
        local.scratch.ids = ids;
        let all = sent == rqs.len();
        // The sent requests belong to the driver now, or were completed.
        if all {
            rqs.clear();
        } else {
            rqs.drain(..sent);
            self.leave_over(h, rqs, status, no_tag && status == QueueRqStatus::Queued, now);
        }
        h.update_dispatch_busy(!all);
        all
    }

    /// Puts the requests that could not be sent on `hctx->dispatch` and makes sure that the hctx is run again.
    fn leave_over(&self, h: &Hctx<L>, rqs: &mut Vec<Rq>, status: QueueRqStatus, no_tag: bool, now: Instant) {
        let unseen = no_tag && self.st.tags_are_shared;
        let class = rqs.first().map(|rq| self.driver_tag_class(rq.id()));
        h.dispatch.with(|list| list.extend(rqs.drain(..)));
        // The list is filled, then the mark is checked; a thread that frees a tag takes the mark, then checks the list.
        // Pairs with: Env::after_free, QueueState::mark_woken
        fence(Ordering::SeqCst);
        if unseen && class.is_some_and(|class| !self.waits_for_driver_tag(h, class)) {
            // A wake-up for the tag has arrived since, while this list was still empty.
            self.owe_run(h);
        } else if !h.has_flag(state::SCHED_RESTART) {
            // A thread that has freed a tag since the mark was set has taken the mark while this list was still empty.
            self.owe_run(h);
        } else if no_tag {
            // The next tag of this hctx that is freed runs it.
        } else if let Some(delay) = run_again_after(status) {
            h.due.arm(&self.q.delayed, now + delay);
        } else if !self.q.mark_device_busy() {
            // The driver expects the completion of a request in flight, perhaps of another hctx. That request may have
            // completed before the mark was set. So the hctx is run once more with the mark set.
            self.owe_run(h);
        }
    }

    /// A request of the device completed: marks the hctxs for which the device was busy to be run.
    #[cold]
    pub(crate) fn device_not_busy(&self) {
        for h in &self.st.hctxs {
            if h.take_flag(state::WANTS_BUDGET) | !h.dispatch.is_empty() {
                h.set_flag(state::RUN_PENDING);
            }
        }
        self.q.owe_work();
    }

    /// Returns how many requests the device takes (`get_budget`). The caller asks before it takes a request from the list where
    /// it can be merged and sorted. `None`: the device takes none now, and the hctx is run when a request of the device
    /// completes.
    fn budget_of(&self, h: &Hctx<L>) -> Option<u32> {
        let budget = self.q.driver.budget(h.id);
        if budget == 0 {
            self.wait_for_room(h);
        }
        (budget > 0).then_some(budget)
    }

    #[cold]
    fn wait_for_room(&self, h: &Hctx<L>) {
        h.set_flag(state::WANTS_BUDGET);
        self.q.mark_device_busy();
        // The request whose completion it waits for may have completed before the marks were set. So ask again with the
        // marks set.
        if self.q.driver.budget(h.id) > 0 {
            self.owe_run(h);
        }
    }

    pub(crate) fn owe_run(&self, h: &Hctx<L>) {
        h.set_flag(state::RUN_PENDING);
        self.q.owe_work();
    }

    /// Takes a driver tag for a request that has a scheduler tag. On failure SCHED_RESTART is set before the last try,
    /// so the next tag that is freed runs this hctx.
    ///
    /// If hctxs or disks share tags, another hctx or disk may free the next tag. So this hctx is registered as a waiter
    /// as well.
    fn get_driver_tag(&self, h: &Hctx<L>, id: RequestId, now: Instant) -> bool {
        let (rq, class, hctx) = (self.st.slab.get(id), self.driver_tag_class(id), h.id.index());
        // The search starts where the scheduler tag points, so two CPUs sharing the hctx seldom meet in one word.
        let mut hint = TagAllocHint::new(id.index() as u32);
        if self.st.share.is_some() && self.waits_for_driver_tag(h, class) {
            return false; // Others are before it in the line.
        }
        let tag = self.get_driver_tag_of(hctx, class, &mut hint, now).or_else(|| {
            h.set_flag(state::SCHED_RESTART);
            if self.st.tags_are_shared {
                self.wait_for_driver_tag(h, class);
            }
            // The mark is set, then the words are read again; a thread that frees a tag writes the word, then reads the
            // mark.
            // Pairs with: Env::after_free
            fence(Ordering::SeqCst);
            self.get_driver_tag_of(hctx, class, &mut hint, now)
        });
        let Some(tag) = tag else { return false };
        if self.st.tags_are_shared {
            self.settle_tag_taken(h, class);
        }
        rq.driver_tag.set(tag as u16);
        let slot = hctx * self.st.queue_depth as usize + tag as usize;
        self.st.driver_rqs[slot].set(id.index() as u32);
        true
    }

    fn driver_tag_class(&self, id: RequestId) -> TagClass {
        if self.st.slab.get(id).has_rqf(rqf::RESERVED) { TagClass::Reserved } else { TagClass::Normal }
    }

    /// Gives back a driver tag that was not used. Without an elevator the request keeps its tag, which identifies it.
    pub(crate) fn release_driver_tag(&self, hctx: usize, id: RequestId) {
        if self.st.sq.is_some() {
            return self.sq_release_driver_tag(id);
        }
        if self.st.elevator.is_none() {
            return;
        }
        let rq = self.st.slab.get(id);
        let tag = u32::from(rq.driver_tag.get());
        rq.driver_tag.set(NO_TAG);
        self.put_driver_tag(hctx, tag);
    }

    /// Does the work that was left to the next poll: pending runs, and delayed runs that are due.
    #[cold]
    pub(crate) fn serve_pending(&self, local: &mut Local, now: Instant) {
        // Pairs with: RequestQueue::owe_work
        self.q.work_pending.swap(false, Ordering::AcqRel);
        self.q.delayed.begin(now);
        let mut left = None;
        // The first hctx to run takes most of a small budget, so a different hctx runs first each time.
        let (n, first) = (self.st.hctxs.len(), self.q.first_to_run.load(Ordering::Relaxed) as usize);
        let mut ran = None;
        for i in (0..n).map(|k| (first + k) % n) {
            let h = &self.st.hctxs[i];
            let due = h.due.take(now);
            if due {
                self.insert_requeued(local, i, now);
            }
            if h.take_flag(state::RUN_PENDING) | due {
                ran = ran.or(Some(i));
                self.run_hctx(local, i, now);
                if self.st.tags_are_shared {
                    self.settle_woken(h);
                }
            }
            left = left.into_iter().chain(h.due.get()).min();
        }
        if let Some(i) = ran {
            self.q.first_to_run.store((i + 1) as u32, Ordering::Relaxed);
        }
        if let Some(at) = left {
            self.q.delayed.put_back(at);
        }
    }
}

impl<L: Lock> HctxRunner for Env<L> {
    fn run_soon(&self, hctx: HctxId) {
        self.owe_run(&self.st.hctxs[hctx.index()]);
    }
}

/// Stamps the end of the requests' time in the elevator or ctx list.
fn stamp_dispatch<L: Lock>(env: &Env<L>, rqs: &[Rq], now: Instant) {
    for rq in rqs {
        let r = env.st.slab.get(rq.id());
        r.dispatch_ns.set(now.as_ns());
    }
}
