// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The calls of write-back throttling for a request: before it takes a tag, when it is issued, when it completes.
//!
//! Guarantees: a token travels with the bio (in its slot) until there is a request, then with the request (a mark). The
//! token is given back when the bio or request completes or is merged into another request. Each submitter counts on cache
//! lines of its own, so reads pay no shared write. With throttling off: one relaxed load per request and per completion.
//! Source: block/blk-wbt.c (`wbt_wait`, `wbt_track`, `wbt_issue`, `wbt_done`, `wbt_cleanup`).

use super::state::{NR_FIFOS, active};
use super::wbt::{Class, Params, Sample, WbtState};
use super::wbt_shared::NEVER;
use crate::bio::{BioSlot, Op, OpFlags};
use crate::id::{MAX_SUBMITTERS, SubmitterId};
use crate::lock::Lock;
use crate::queue::request_queue::RequestQueue;
use crate::request::{Request, RequestId, rqf};
use crate::submitter::{Env, Local};
use crate::sync::Ordering;
use crate::time::{Duration, Instant};

/// Maximum number of windows that are judged late in one call; the rest are skipped.
const MAX_MISSED: u32 = 64;

impl<L: Lock> RequestQueue<L> {
    /// Sets new parameters and notifies submitters that may continue.
    pub(crate) fn set_wbt(&self, params: Params) {
        let wbt = &self.qos.wbt;
        let mut t = wbt.throttle.lock();
        if params != t.params() {
            // The watched read may have completed unnoticed while throttling was off.
            wbt.watched.store(0, Ordering::Relaxed);
        }
        t.set(params, MAX_SUBMITTERS as usize, &mut |submitter, kind| self.grant_token(submitter, kind));
        self.qos.mark(active::WBT, t.is_on());
        wbt.window_changed(&t);
    }

    /// The state of write-back throttling.
    pub fn wbt(&self) -> WbtState {
        self.qos.wbt.throttle.lock().state()
    }

    /// The read latency that write-back throttling aims at, microseconds; 0 while it is off.
    pub fn wbt_lat_usec(&self) -> u64 {
        self.qos.wbt.throttle.lock().params().target.as_ns() / 1000
    }

    /// Takes a token for a write. False: there is none, and the write may not become a request; `submitter` gets a
    /// token later.
    pub(crate) fn take_token(&self, class: Class, submitter: Option<SubmitterId>, now: Instant) -> bool {
        let wbt = &self.qos.wbt;
        let close_io = wbt.close_io(now);
        let mut t = wbt.throttle.lock();
        let go = t.start(class, submitter, close_io, now);
        wbt.window_changed(&t);
        go
    }

    #[cold]
    pub(crate) fn put_token(&self, kind: usize, now: Instant) {
        let close_io = self.qos.wbt.close_io(now);
        let grant = &mut |submitter, kind| self.grant_token(submitter, kind);
        self.qos.wbt.throttle.lock().release(kind, close_io, grant);
    }

    fn grant_token(&self, submitter: SubmitterId, kind: usize) {
        self.submitter_shared(submitter.index()).granted.give(NR_FIFOS + kind);
        self.notify.notify(submitter);
    }
}

impl<L: Lock> Env<L> {
    #[inline]
    pub(crate) fn wbt_is_on(&self) -> bool {
        self.q.qos.active() & active::WBT != 0
    }

    /// Takes a token, if it needs one, for a bio that is about to become a request. False: the bio has to wait for a
    /// token; the caller holds it ([`HeldBios::throttled`](super::held_bios::HeldBios) says of which kind).
    #[cold]
    pub(crate) fn wbt_wait(&self, local: &mut Local, slot: &BioSlot, op: Op, flags: OpFlags, now: Instant) -> bool {
        self.wbt_tick(now);
        let Some(class) = Class::of(op, flags) else {
            if op == Op::Read {
                self.q.qos.wbt.note_other(now);
            }
            return true;
        };
        if slot.wbt.get() != 0 {
            return true;
        }
        let kind = class.kind();
        let submitter = (!flags.contains(OpFlags::NOWAIT)).then_some(self.id);
        // The bio queues after this submitter's bios that wait already; the first of them has asked for a token.
        if local.held.is_throttled(kind) || !self.q.take_token(class, submitter, now) {
            local.held.throttled = Some(kind);
            // A waiting submitter holds back no requests, because other submitters, or this one, may wait for them.
            self.flush_plug(local, now);
            return false;
        }
        slot.wbt.set(kind as u8 + 1);
        true
    }

    /// Moves the bio's token to the request.
    #[inline]
    pub(crate) fn wbt_track(&self, slot: &BioSlot, rq: &Request) {
        let kind = slot.wbt.get();
        if kind != 0 {
            slot.wbt.set(0);
            rq.set_rqf(if kind == 1 { rqf::WBT_WRITE } else { rqf::WBT_DISCARD });
        }
    }

    /// Gives the bio's token back.
    #[inline]
    pub(crate) fn wbt_cleanup(&self, slot: &BioSlot, now: Instant) {
        let kind = slot.wbt.get();
        if kind != 0 {
            slot.wbt.set(0);
            self.q.put_token(usize::from(kind) - 1, now);
        }
    }

    /// Starts to watch a read among requests that are about to be issued, unless a read is watched already.
    #[cold]
    pub(crate) fn wbt_issue(&self, ids: &[RequestId]) {
        let watched = &self.q.qos.wbt.watched;
        if watched.load(Ordering::Relaxed) == 0
            && let Some(id) = ids.iter().find(|id| self.st.slab.get(**id).op() == Op::Read)
        {
            let _ = watched.compare_exchange(0, id.index() as u32 + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Stops watching a request that the driver gave back unfinished.
    #[inline]
    pub(crate) fn wbt_requeue(&self, id: RequestId) {
        self.q.qos.wbt.unwatch(id);
    }

    /// Accounts a completed request, while throttling is on or the request has a token.
    #[cold]
    pub(crate) fn wbt_done(&self, id: RequestId, rq: &Request, now: Instant) {
        if self.wbt_is_on() {
            self.wbt_tick(now);
            let (wbt, op) = (&self.q.qos.wbt, rq.op());
            wbt.unwatch(id);
            if op == Op::Read {
                wbt.note_other(now);
            }
            if wbt.due_ns() != NEVER && op != Op::Flush {
                let ns = now.as_ns().saturating_sub(rq.issue_ns.get());
                self.shared.samples.add(wbt.window.load(Ordering::Relaxed), op == Op::Read, ns);
            }
        }
        self.wbt_drop(rq, now);
    }

    /// Gives the token of a request back, because the request completes or is merged into another one.
    #[inline]
    pub(crate) fn wbt_drop(&self, rq: &Request, now: Instant) {
        if rq.has_rqf(rqf::WBT_WRITE | rqf::WBT_DISCARD) {
            let kind = usize::from(rq.has_rqf(rqf::WBT_DISCARD));
            rq.clear_rqf(rqf::WBT_WRITE | rqf::WBT_DISCARD);
            self.q.put_token(kind, now);
        }
    }

    /// Ends the windows that are over, before anything later is counted.
    #[inline]
    pub(crate) fn wbt_tick(&self, now: Instant) {
        if now.as_ns() >= self.q.qos.wbt.due_ns() {
            self.end_windows(now);
        }
    }

    #[cold]
    fn end_windows(&self, now: Instant) {
        let wbt = &self.q.qos.wbt;
        let mut t = wbt.throttle.lock();
        for missed in 0.. {
            let Some(end) = t.window_end().filter(|end| *end <= now) else { break };
            if missed == MAX_MISSED {
                t.arm(now);
                break;
            }
            let mut sample = Sample { min_read_ns: u64::MAX, ..Sample::default() };
            let window = wbt.window.fetch_add(1, Ordering::Relaxed);
            self.q.each_submitter(|s| {
                s.samples.add_to(window, &mut sample);
                true
            });
            let grant = &mut |submitter, kind| self.q.grant_token(submitter, kind);
            t.end_window(&sample, self.oldest_read(end), end, wbt.close_io(end), grant);
        }
        wbt.window_changed(&t);
    }

    /// How long the watched read has been at the driver.
    fn oldest_read(&self, at: Instant) -> Duration {
        match self.q.qos.wbt.watched.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            // During a rebuild this may be a number from before it for a moment. No request is at the driver then.
            id if id as usize > self.st.slab.len() => Duration::ZERO,
            id => at.since(Instant::from_ns(self.st.slab.get(RequestId::new(id - 1)).issue_ns.get())),
        }
    }
}
