// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tracepoints: the functions that the data path calls at each step, and those that turn tracing on and read
//! events.
//!
//! Guarantees: while tracing is off, each tracepoint costs one branch. Needs from callers: they call in the order of the
//! events.

use super::event::{Event, EventKind, TraceLog};
use super::log::{Log, Record, step};
use crate::bio::BioSlot;
use crate::driver::Ended;
use crate::id::{CpuId, Tag};
use crate::lock::Lock;
use crate::path::flush;
use crate::request::{Request, RequestId, Rq, rqf};
use crate::status::{BlkStatus, QueueRqStatus};
use crate::submitter::{Env, Local, Submitter};
use crate::time::Instant;

/// The interface of a submitter: turning tracing on and off, and reading events.
impl<L: Lock> Submitter<L> {
    /// Starts tracing, with room for `capacity` events (32 bytes each, allocated now) between two calls of
    /// [`Submitter::drain_trace`]. Discards the events of an earlier trace.
    pub fn start_trace(&mut self, capacity: usize) {
        self.local.trace.log = Some(Log::new(self.env.cpu, capacity, self.local.plug.rqs.len()));
    }

    /// Calls `f` for all events so far, oldest first, and makes room for others. Returns how many events were dropped
    /// since the last call because the log was full; these were later than the stored ones.
    pub fn drain_trace(&mut self, f: impl FnMut(&Event)) -> u64 {
        self.env.trace_plugged(&mut self.local);
        let Some(log) = &mut self.local.trace.log else { return 0 };
        log.for_each(f);
        log.clear()
    }

    /// Stops tracing. Returns the events that were not drained.
    pub fn stop_trace(&mut self) -> TraceLog {
        self.env.trace_plugged(&mut self.local);
        let Some(mut log) = self.local.trace.log.take() else { return TraceLog::default() };
        let mut events = Vec::with_capacity(log.nr_events());
        log.for_each(|e| events.push(*e));
        TraceLog { events, dropped: log.clear() }
    }
}

/// Adds to the log, if there is one, after recording the requests that went into the plug.
macro_rules! traced {
    ($env:expr, $local:expr, |$log:ident| $tell:expr) => {
        if let Some($log) = &mut $local.trace.log {
            $log.catch_up(&$local.plug, &$env.st.slab);
            $tell
        }
    };
}

/// The kernel's tracepoints. While tracing is off, each is a branch (`is_on`); the code after it is out of line and marked
/// cold.
impl<L: Lock> Env<L> {
    /// Traces an event of a bio, with the content of its slot.
    #[inline(always)] // The branch.
    pub(crate) fn trace_bio(&self, local: &mut Local, kind: EventKind, slot: &BioSlot, now: Instant) {
        if local.trace.is_on() {
            self.tell_bio(local, step::of(kind), slot, BlkStatus::Ok, now);
        }
    }

    #[inline(never)]
    fn tell_bio(&self, local: &mut Local, steps: u16, slot: &BioSlot, status: BlkStatus, now: Instant) {
        traced!(self, local, |log| log.add(|| Record::of_bio(steps, &slot.bio(), status, now)));
    }

    /// Traces that a bio is queued, and has to wait or retry for a tag before it becomes a request.
    #[cold]
    pub(crate) fn trace_bio_waits(&self, local: &mut Local, slot: &BioSlot, now: Instant) {
        self.trace_bio(local, EventKind::Queue, slot, now);
        traced!(self, local, |log| log.queue_is_told(true));
    }

    /// Notes that the bio found no tag, so the next request belongs to another bio.
    #[cold]
    pub(crate) fn trace_bio_found_no_tag(&self, local: &mut Local) {
        traced!(self, local, |log| log.queue_is_told(false));
    }

    /// Traces that a piece was split off the bio in slot `index`.
    #[cold]
    pub(crate) fn trace_split(&self, local: &mut Local, index: u32, piece: &BioSlot, now: Instant) {
        traced!(self, local, |log| if log.split_waits.take() != Some(index) {
            log.add(|| Record::of_bio(step::SPLIT, &piece.bio(), BlkStatus::Ok, now));
        });
    }

    /// Notes that the piece found no tag, so it will be split off again.
    #[cold]
    pub(crate) fn trace_split_waits(&self, local: &mut Local, index: u32) {
        traced!(self, local, |log| log.split_waits = Some(index));
    }

    /// Traces that a bio was merged into an existing request; `is_new`: the bio was queued just now.
    #[inline(always)] // As `trace_bio`.
    pub(crate) fn trace_merged(&self, local: &mut Local, slot: &BioSlot, is_new: bool, now: Instant) {
        if local.trace.is_on() {
            self.tell_merged(local, slot, is_new, now);
        }
    }

    #[inline(never)]
    fn tell_merged(&self, local: &mut Local, slot: &BioSlot, is_new: bool, now: Instant) {
        if is_new {
            self.tell_bio(local, step::QUEUE, slot, BlkStatus::Ok, now);
        }
        let side = if slot.front_merged.get() != 0 { step::FRONT_MERGE } else { step::BACK_MERGE };
        self.tell_bio(local, side, slot, BlkStatus::Ok, now);
    }

    /// Traces that a bio that may not wait completes without a request.
    #[cold]
    pub(crate) fn trace_ended_bio(&self, local: &mut Local, slot: &BioSlot, status: BlkStatus, now: Instant) {
        self.tell_bio(local, step::COMPLETE, slot, status, now);
    }

    /// Records the requests in the plug, because they are about to change.
    #[inline(always)] // As `trace_bio`.
    pub(crate) fn trace_plugged(&self, local: &mut Local) {
        if local.trace.is_on() {
            self.tell_plugged(local);
        }
    }

    #[inline(never)]
    fn tell_plugged(&self, local: &mut Local) {
        traced!(self, local, |_log| ());
    }

    /// Traces that the plug is about to be emptied.
    #[inline(always)] // As `trace_bio`.
    pub(crate) fn trace_unplug(&self, local: &mut Local, now: Instant) {
        if local.trace.is_on() {
            self.tell_unplugged(local, now);
        }
    }

    #[inline(never)]
    fn tell_unplugged(&self, local: &mut Local, now: Instant) {
        traced!(self, local, |log| log.unplug(&local.plug, now));
    }

    /// Traces an event of a request.
    #[inline(always)] // As `trace_bio`.
    pub(crate) fn trace_rq(&self, local: &mut Local, kind: EventKind, rq: &Request, now: Instant) {
        if local.trace.is_on() {
            self.tell_rq(local, step::of(kind), rq, BlkStatus::Ok, now);
        }
    }

    #[inline(never)]
    fn tell_rq(&self, local: &mut Local, steps: u16, rq: &Request, status: BlkStatus, now: Instant) {
        traced!(self, local, |log| log.add(|| Record::of_rq(steps, rq, rq.nr_sectors(), status, now)));
    }

    /// Traces a request that was made from a bio that was queued just now, and that does not go into the plug or changes
    /// before it does.
    #[cold]
    pub(crate) fn trace_new_rq(&self, local: &mut Local, rq: &Request) {
        traced!(self, local, |log| {
            log.tell(rq, 0);
            rq.set_rqf(rqf::TOLD);
        });
    }

    /// Traces the same event of several requests. `is_new`: they were made just now and were not put into the plug.
    #[inline(always)] // As `trace_bio`.
    pub(crate) fn trace_ids(&self, local: &mut Local, kind: EventKind, ids: &[RequestId], is_new: bool, now: Instant) {
        if local.trace.is_on() {
            if is_new && kind == EventKind::Issue {
                ids.iter().for_each(|id| self.tell_issue(local, *id));
            } else if is_new {
                ids.iter().for_each(|id| self.tell_new(local, step::of(kind), *id));
            } else {
                self.tell_ids(local, step::of(kind), ids, now);
            }
        }
    }

    /// Calls nothing but in tail position, so that it has no registers to save.
    #[inline(never)]
    fn tell_issue(&self, local: &mut Local, id: RequestId) {
        let Some(log) = &mut local.trace.log else { return };
        if !log.tell_issue(id, self.st.slab.get(id), &local.plug) {
            self.tell_new(local, step::ISSUE, id);
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_new(&self, local: &mut Local, steps: u16, id: RequestId) {
        traced!(self, local, |log| log.tell(self.st.slab.get(id), steps));
    }

    #[inline(never)]
    fn tell_ids(&self, local: &mut Local, steps: u16, ids: &[RequestId], now: Instant) {
        traced!(self, local, |log| {
            if steps != step::ISSUE {
                log.forget_unplugged();
            } else if log.add_issue_run(ids.len(), now) {
                return;
            }
            if log.drops(ids.len()) {
                return;
            }
            for rq in ids.iter().map(|id| self.st.slab.get(*id)) {
                log.add(|| Record::of_rq(steps, rq, rq.nr_sectors(), BlkStatus::Ok, now));
            }
        });
    }

    /// Traces completions from the driver. Called before any of them is processed further. So the trace of the CPU that
    /// found a completion has it, even if the completion is passed on to another CPU.
    #[inline(always)] // As `trace_bio`.
    pub(crate) fn trace_ended(&self, local: &mut Local, hctx: usize, items: &[Ended], now: Instant) {
        if local.trace.is_on() {
            self.tell_ended(local, hctx, items, now);
        }
    }

    /// As `tell_issue`.
    #[inline(never)]
    fn tell_ended(&self, local: &mut Local, hctx: usize, items: &[Ended], now: Instant) {
        let Some(log) = &mut local.trace.log else { return };
        if !(local.in_driver && log.end_run_at_once(items, now)) {
            self.tell_ended_later(local, hctx, items, now);
        }
    }

    #[inline(never)]
    fn tell_ended_later(&self, local: &mut Local, hctx: usize, items: &[Ended], now: Instant) {
        let rq = |tag: Tag| self.st.slab.get(self.rq_of_driver_tag(hctx, tag.index()));
        traced!(self, local, |log| {
            if log.drops(items.len()) {
                return;
            }
            let ok = items.iter().all(|(_, status)| status.is_ok());
            if ok && log.add_complete_run(items.iter().map(|(tag, _)| rq(*tag)), now) {
                return;
            }
            for (rq, status) in items.iter().map(|(tag, status)| (rq(*tag), *status)) {
                log.add(|| Record::of_rq(step::COMPLETE, rq, rq.nr_sectors(), status, now));
            }
        });
    }

    /// As `trace_ended`, for a single request.
    #[inline(always)] // As `trace_bio`.
    pub(crate) fn trace_ended_one(&self, local: &mut Local, id: RequestId, status: BlkStatus, now: Instant) {
        if local.trace.is_on() {
            self.tell_rq_ended(local, id, status, now);
        }
    }

    /// As `tell_issue`.
    #[inline(never)]
    fn tell_rq_ended(&self, local: &mut Local, id: RequestId, status: BlkStatus, now: Instant) {
        let Some(log) = &mut local.trace.log else { return };
        if !(local.in_driver && log.end_at_once(id, status)) {
            self.tell_rq_ended_later(local, id, status, now);
        }
    }

    #[inline(never)]
    fn tell_rq_ended_later(&self, local: &mut Local, id: RequestId, status: BlkStatus, now: Instant) {
        traced!(self, local, |log| if !log.drops(1) {
            let rq = self.st.slab.get(id);
            log.add(|| Record::of_rq(step::COMPLETE, rq, rq.nr_sectors(), status, now));
        });
    }

    /// Traces a request that the driver rejected with an error.
    #[cold]
    pub(crate) fn trace_unissued(&self, local: &mut Local, id: RequestId, status: BlkStatus, now: Instant) {
        self.tell_rq(local, step::COMPLETE, self.st.slab.get(id), status, now);
    }

    /// Traces the insertion of requests into an elevator. Called before they are inserted: afterwards any thread may
    /// own them.
    #[inline(always)] // As `trace_bio`.
    pub(crate) fn trace_insert(&self, local: &mut Local, rqs: &[Rq], now: Instant) {
        if local.trace.is_on() {
            self.tell_inserted(local, rqs, now);
        }
    }

    #[inline(never)]
    fn tell_inserted(&self, local: &mut Local, rqs: &[Rq], now: Instant) {
        traced!(self, local, |log| {
            log.forget_unplugged();
            for rq in rqs.iter().map(|rq| self.st.slab.get(rq.id())) {
                log.add(|| Record::of_rq(step::INSERT, rq, rq.nr_sectors(), BlkStatus::Ok, now));
            }
        });
    }

    /// Traces that a request was joined to the one before it. If this happened while it was being inserted, its
    /// insertion event is removed.
    #[inline(always)] // As `trace_bio`.
    pub(crate) fn trace_absorbed(&self, local: &mut Local, rq: &Rq, now: Instant) {
        if local.trace.is_on() {
            self.tell_absorbed(local, self.st.slab.get(rq.id()), now);
        }
    }

    #[inline(never)]
    fn tell_absorbed(&self, local: &mut Local, rq: &Request, now: Instant) {
        traced!(self, local, |log| if !log.join(rq, now) {
            log.add(|| Record::of_rq(step::JOIN, rq, rq.nr_sectors(), BlkStatus::Ok, now));
        });
    }

    /// Corrects the trace when the driver did not accept all requests that were traced as issued: it rejected the first
    /// of the rest, and the others were not offered.
    #[cold]
    pub(crate) fn trace_refused(&self, local: &mut Local, rest: &[RequestId], status: QueueRqStatus, now: Instant) {
        let [first, others @ ..] = rest else { return };
        traced!(self, local, |log| log.take_back_issues(others.len()));
        if !matches!(status, QueueRqStatus::Queued | QueueRqStatus::Error(_)) {
            self.tell_rq(local, step::REQUEUE, self.st.slab.get(*first), BlkStatus::Ok, now);
        }
    }

    /// Traces the completion of a flush sequence's request. Its data, if it had any, has completed before.
    #[cold]
    pub(crate) fn trace_sequence_end(&self, local: &mut Local, rq: &Request, status: BlkStatus, now: Instant) {
        let nr_sectors = if rq.flush_seq.get() & flush::DATA != 0 { 0 } else { rq.nr_sectors() };
        traced!(self, local, |log| log.add(|| Record::of_rq(step::COMPLETE, rq, nr_sectors, status, now)));
    }

    /// Sets the CPU of later events.
    #[cold]
    pub(crate) fn trace_cpu(&self, local: &mut Local, cpu: CpuId) {
        traced!(self, local, |log| log.set_cpu(cpu));
    }
}
