// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where requests go from the plug: to the driver as one batch per hctx, to the elevator as a list, or to a list that
//! a run of the hctx reads.
//!
//! Guarantees: requests that the driver does not accept are put on `hctx->dispatch`, and the hctx is run; the order of the plug
//! is kept for each hctx. Source: block/blk-mq.c (`blk_mq_flush_plug_list`, `blk_mq_try_issue_list_directly`,
//! `blk_mq_request_bypass_insert`).

use crate::lock::Lock;
use crate::request::{RequestId, Rq, rqf};
use crate::status::QueueRqStatus;
use crate::submitter::{Env, Local};
use crate::time::Instant;
use crate::trace::event::EventKind;

impl<L: Lock> Env<L> {
    /// Closes one level of the plug; true when that was the outermost. The requests in it are issued while the plug is
    /// still open, because single-queue mode inserts requests from a plug differently from others.
    #[inline]
    pub(crate) fn close_plug(&self, local: &mut Local, now: Instant) -> bool {
        if local.plug.is_outermost() {
            self.flush_plug(local, now);
        }
        let closed = local.plug.finish();
        if closed {
            self.return_cached_tags(local);
        }
        closed
    }

    /// Issues the requests in the plug: to the driver as one batch per hctx, or to the elevator as one list.
    #[inline]
    pub(crate) fn flush_plug(&self, local: &mut Local, now: Instant) {
        if !local.plug.rqs.is_empty() {
            self.trace_unplug(local, now);
            if self.st.sq.is_some() {
                self.sq_flush_plug(local, now);
            } else if self.st.elevator.is_some() {
                self.flush_plug_to_elevator(local, now);
            } else {
                self.flush_plug_to_driver(local, now);
            }
        }
        if !local.plug.is_open() {
            self.return_cached_tags(local);
        }
    }

    #[inline]
    fn flush_plug_to_driver(&self, local: &mut Local, now: Instant) {
        self.update_io_ticks(local, now, local.plug.rqs.len());
        let mut rqs = core::mem::take(&mut local.plug.rqs);
        let mut ids = core::mem::take(&mut local.scratch.ids);
        let mut hctx = usize::MAX;
        for rq in rqs.drain(..) {
            let r = self.st.slab.get(rq.id());
            let h = usize::from(r.hctx.get());
            if h != hctx && !ids.is_empty() {
                self.issue_directly(local, hctx, &ids, false, now);
                ids.clear();
            }
            hctx = h;
            r.stamp_issue(now);
            ids.push(rq.id());
        }
        self.issue_directly(local, hctx, &ids, false, now);
        ids.clear();
        local.scratch.ids = ids;
        local.plug.rqs = rqs;
    }

    /// Issues requests with driver tags directly to the driver. Requests that it does not accept are put on
    /// `hctx->dispatch`. With dispatch stopped, or with one busy hctx, all go to the ctx list instead, so that they can
    /// be merged there.
    #[inline(always)] // Per batch, or per request at a depth of one.
    pub(super) fn issue_directly(&self, local: &mut Local, hctx: usize, ids: &[RequestId], is_new: bool, now: Instant) {
        let h = &self.st.hctxs[hctx];
        self.hctx_counters(hctx).queued.add(ids.len() as u64);
        let busy = h.dispatch_busy() > 0 && self.st.hctxs.len() == 1;
        if busy || self.q.is_quiesced() {
            return self.insert_ctx(local, hctx, ids, is_new, now);
        }
        let (accepted, status) = self.queue_rqs(local, hctx, ids, is_new, now);
        if accepted < ids.len() {
            self.park(local, hctx, &ids[accepted..], status, now);
        }
    }

    #[cold]
    fn park(&self, local: &mut Local, hctx: usize, ids: &[RequestId], status: QueueRqStatus, now: Instant) {
        debug_assert!(!matches!(status, QueueRqStatus::Queued | QueueRqStatus::Error(_)));
        let h = &self.st.hctxs[hctx];
        h.dispatch.with(|list| list.extend(ids.iter().map(|id| Rq::from_id(*id))));
        self.run_hctx(local, hctx, now);
    }

    #[cold]
    fn insert_ctx(&self, local: &mut Local, hctx: usize, ids: &[RequestId], is_new: bool, now: Instant) {
        let ctx = self.st.ctx(self.cpu, self.st.map.hctx_type(hctx as u16));
        self.trace_ids(local, EventKind::Insert, ids, is_new, now);
        ctx.rqs.with(|list| list.extend(ids.iter().map(|id| Rq::from_id(*id))));
        self.st.hctxs[hctx].ctx_map.set_bit(ctx.index_in_hctx);
        self.run_hctx(local, hctx, now);
    }

    /// Adds a request with a reserved tag to the tail of `hctx->dispatch`, bypassing the elevator.
    pub(super) fn insert_bypass(&self, local: &mut Local, hctx: usize, rq: Rq, now: Instant) {
        self.hctx_counters(hctx).queued.add(1);
        self.st.slab.get(rq.id()).insert_ns.set(now.as_ns());
        self.st.hctxs[hctx].dispatch.with(|list| list.push_back(rq));
        self.run_hctx(local, hctx, now);
    }

    fn flush_plug_to_elevator(&self, local: &mut Local, now: Instant) {
        let elevator = self.st.elevator.as_ref().expect("caller saw an elevator");
        self.update_io_ticks(local, now, local.plug.rqs.len());
        let mut rqs = core::mem::take(&mut local.plug.rqs);
        let mut freed = core::mem::take(&mut local.scratch.freed);
        let mut run = [false; 3];
        for rq in &rqs {
            let r = self.st.slab.get(rq.id());
            r.insert_ns.set(now.as_ns());
            r.set_rqf(rqf::ELV);
            let hctx = usize::from(r.hctx.get());
            self.hctx_counters(hctx).queued.add(1);
            run[self.st.map.hctx_type(hctx as u16) as usize] = true;
        }
        self.trace_insert(local, &rqs, now);
        elevator.insert(&self.elv_cx(now), &mut rqs, false, &mut freed);
        assert!(rqs.is_empty(), "elevator '{}' left requests behind", elevator.name());
        for rq in freed.drain(..) {
            self.account_merge(self.st.slab.get(rq.id()).op());
            self.trace_absorbed(local, &rq, now);
            self.free_absorbed(local, rq, now);
        }
        local.scratch.freed = freed;
        local.plug.rqs = rqs;
        for (ty, _) in run.iter().enumerate().filter(|(_, r)| **r) {
            self.run_hctx(local, usize::from(self.hctx_of[ty]), now);
        }
    }
}
