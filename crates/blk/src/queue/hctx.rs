// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hardware queues (hctx) and software queues (ctx): the lists on which requests wait, and the marks for pending and
//! restarted runs.
//!
//! A ctx belongs to one CPU and one queue type; submitters of other CPUs never touch it. An hctx is shared by the CPUs
//! mapped to it; with one hctx per CPU nothing here is written by two CPUs. Sources: block/blk-mq.h, blk-mq.c.

use crate::id::{CpuId, HctxId};
use crate::lock::Lock;
use crate::path::flush::FlushQueue;
use crate::queue::delayed::DueTime;
use crate::request::Rq;
use crate::sync::{AtomicU32, Mutex, Ordering};
use crate::tags::sbitmap::Sbitmap;
use crossbeam_utils::CachePadded;
use std::collections::VecDeque;

/// `hctx->state` bits.
pub(crate) mod state {
    /// The thread that frees a request of this hctx runs the hctx.
    pub(crate) const SCHED_RESTART: u32 = 1 << 2;
    /// The hctx is in a wait queue for driver tags: for normal tags, for reserved tags.
    pub(crate) const TAG_WAIT: [u32; 2] = [1 << 3, 1 << 4];
    /// The hctx was woken for such a tag and has taken no tag since.
    pub(crate) const TAG_WOKEN: [u32; 2] = [1 << 5, 1 << 6];
    /// The next thread that serves the disk's pending work runs the hctx.
    pub(crate) const RUN_PENDING: u32 = 1 << 8;
    /// The device had no budget for requests in the elevator or the ctx lists.
    pub(crate) const WANTS_BUDGET: u32 = 1 << 9;
}

/// A list of requests whose length can be read without the list's lock.
pub(crate) struct RqList<L: Lock> {
    list: Mutex<L, VecDeque<Rq>>,
    len: AtomicU32,
}

impl<L: Lock> RqList<L> {
    pub(crate) fn new(capacity: usize) -> Self {
        RqList { list: Mutex::new(VecDeque::with_capacity(capacity)), len: AtomicU32::new(0) }
    }

    /// Whether the list was empty a moment ago. The thread that adds a request runs the hctx afterwards, so a stale
    /// result delays no request.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        // Pairs with: RqList::with
        self.len.load(Ordering::Acquire) == 0
    }

    /// Works on the list under its lock.
    #[inline]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut VecDeque<Rq>) -> R) -> R {
        let mut list = self.list.lock();
        let r = f(&mut list);
        // Pairs with: RqList::is_empty
        self.len.store(list.len() as u32, Ordering::Release);
        r
    }
}

/// A software queue: requests of one CPU on their way to one hctx, used when they cannot be issued at once.
pub(crate) struct Ctx<L: Lock> {
    pub(crate) rqs: RqList<L>,
    /// Bit of this ctx in its hctx's `ctx_map`.
    pub(crate) index_in_hctx: u32,
}

/// A hardware queue.
pub(crate) struct Hctx<L: Lock> {
    pub(crate) id: HctxId,
    /// CPUs mapped here, ascending: bit `i` of `ctx_map` is `cpus[i]`.
    pub(crate) cpus: Vec<CpuId>,
    /// Requests that were refused by the driver or bypass the elevator; dispatched before everything else.
    pub(crate) dispatch: RqList<L>,
    /// Marks the CPUs of `cpus` that have requests in their ctx.
    pub(crate) ctx_map: Sbitmap,
    pub(crate) flags: CachePadded<AtomicU32>,
    /// Where the round robin over ctxs continues.
    pub(crate) dispatch_from: AtomicU32,
    /// Moving average of how often the driver was busy, 0..=15.
    dispatch_busy: AtomicU32,
    /// When a delayed run is due.
    pub(crate) due: DueTime,
    pub(crate) flush: Mutex<L, FlushQueue>,
    /// Requests that the driver gave back and that are not inserted again yet; each is inserted at its `requeue_at_ns`.
    pub(crate) requeue: Mutex<L, Vec<Rq>>,
}

impl<L: Lock> Hctx<L> {
    pub(crate) fn new(id: HctxId, cpus: Vec<CpuId>, nr_requests: usize) -> Self {
        let nr_ctx = (cpus.len() as u32).max(1);
        Hctx {
            id,
            cpus,
            dispatch: RqList::new(nr_requests + 1),
            ctx_map: Sbitmap::with_shift(nr_ctx, 3, false),
            flags: CachePadded::new(AtomicU32::new(0)),
            dispatch_from: AtomicU32::new(0),
            dispatch_busy: AtomicU32::new(0),
            due: DueTime::new(),
            flush: Mutex::new(FlushQueue::new(nr_requests)),
            requeue: Mutex::new(Vec::with_capacity(nr_requests)),
        }
    }

    #[inline]
    pub(crate) fn has_flag(&self, bit: u32) -> bool {
        // Pairs with: Hctx::set_flag
        self.flags.load(Ordering::Acquire) & bit != 0
    }

    /// Sets a mark. Sequentially consistent, because SCHED_RESTART relies on the order: one thread sets the mark and
    /// then tries again to get a tag, while the other frees a tag and then checks the mark.
    pub(crate) fn set_flag(&self, bit: u32) {
        // Pairs with: Hctx::take_flag, Hctx::has_flag
        self.flags.fetch_or(bit, Ordering::SeqCst);
    }

    /// Sets a mark; true for the one caller that set it.
    pub(crate) fn set_flag_once(&self, bit: u32) -> bool {
        // Pairs with: Hctx::take_flag, Hctx::has_flag
        self.flags.fetch_or(bit, Ordering::SeqCst) & bit == 0
    }

    /// Clears a mark; true for the one caller that cleared it.
    #[inline]
    pub(crate) fn take_flag(&self, bit: u32) -> bool {
        // Pairs with: Hctx::set_flag
        self.flags.load(Ordering::SeqCst) & bit != 0 && self.flags.fetch_and(!bit, Ordering::SeqCst) & bit != 0
    }

    /// new = (old x 7 + (busy ? 16 : 0)) / 8.
    #[inline]
    pub(crate) fn update_dispatch_busy(&self, busy: bool) {
        let old = self.dispatch_busy.load(Ordering::Relaxed);
        if old == 0 && !busy {
            return;
        }
        self.dispatch_busy.store((old * 7 + if busy { 16 } else { 0 }) / 8, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn dispatch_busy(&self) -> u32 {
        self.dispatch_busy.load(Ordering::Relaxed)
    }
}
