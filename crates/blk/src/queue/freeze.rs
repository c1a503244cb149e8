// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Freezing and quiescing. A freeze keeps new requests out and waits until all requests have completed. A quiesce stops
//! dispatch: requests in the block layer are not issued to the driver.
//!
//! Guarantees: a queue that was found to be drained stays drained until it is unfrozen, although submitters continue
//! polling. Needs from callers: submitters poll, or the queue does not drain. Source: block/blk-mq.c
//! (`blk_freeze_queue_start`, `blk_mq_freeze_queue_wait`, `blk_mq_unfreeze_queue`, `blk_mq_quiesce_queue_nowait`).

use super::request_queue::RequestQueue;
use crate::id::MAX_CPUS;
use crate::lock::Lock;
use crate::queue::hctx::state;
use crate::sync::{Ordering, fence};

/// The frozen queue is drained: no submitter may enter until it is unfrozen.
const SEALED: u32 = 1 << 31;
/// One CPU that is leaving; the bits from here up to [`SEALED`] count them.
const ONE_LEAVING: u32 = 1 << 16;
const LEAVING: u32 = SEALED - ONE_LEAVING;
/// The bits that count the freezes in effect.
const FREEZES: u32 = ONE_LEAVING - 1;
const _: () = assert!(LEAVING / ONE_LEAVING >= MAX_CPUS);

/// The gate's value as a submitter reads it when it enters and leaves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gate(u32);

impl Gate {
    /// Whether no freeze is in effect and no CPU is leaving.
    #[inline]
    pub(crate) fn is_open(self) -> bool {
        self.0 == 0
    }

    /// Whether new requests are kept out.
    #[inline]
    pub(crate) fn is_frozen(self) -> bool {
        self.0 & FREEZES != 0
    }

    /// Whether a CPU is leaving.
    pub(crate) fn is_leaving(self) -> bool {
        self.0 & LEAVING != 0
    }
}

impl<L: Lock> RequestQueue<L> {
    #[inline]
    pub(crate) fn gate(&self) -> Gate {
        // Pairs with: RequestQueue::begin_freeze, RequestQueue::begin_leaving
        Gate(self.gate.load(Ordering::SeqCst))
    }

    #[inline]
    pub(crate) fn is_frozen(&self) -> bool {
        self.gate().is_frozen()
    }

    /// Makes submitters inside the block layer check whether their CPU is leaving, until [`RequestQueue::end_leaving`].
    pub(crate) fn begin_leaving(&self) {
        // Pairs with: RequestQueue::gate
        self.gate.fetch_add(ONE_LEAVING, Ordering::SeqCst);
    }

    pub(crate) fn end_leaving(&self) {
        // Pairs with: RequestQueue::gate
        self.gate.fetch_sub(ONE_LEAVING, Ordering::SeqCst);
    }

    /// Whether the queue is known to be drained: then no submitter enters, not even to poll.
    #[inline]
    pub(crate) fn is_sealed(&self) -> bool {
        // Pairs with: RequestQueue::is_drained
        self.gate.load(Ordering::SeqCst) & SEALED != 0
    }

    #[inline]
    pub(crate) fn is_quiesced(&self) -> bool {
        // Pairs with: RequestQueue::quiesce
        self.quiesce_depth.load(Ordering::Acquire) != 0 && self.is_quiesced_still()
    }

    /// Checks again, after the caller has put requests where a run finds them, and before it leaves them there. Either
    /// the caller sees here that the queue is not quiesced any more, or the run that [`RequestQueue::unquiesce`]
    /// schedules sees the requests.
    #[cold]
    fn is_quiesced_still(&self) -> bool {
        fence(Ordering::SeqCst); // Pairs with: RequestQueue::unquiesce
        self.quiesce_depth.load(Ordering::Acquire) != 0
    }

    /// Keeps new requests out; submitted bios wait at their submitters. Nests. The queue is frozen once
    /// [`RequestQueue::is_drained`] is true. Every submitter is notified, because it has to poll to leave the block
    /// layer.
    pub fn begin_freeze(&self) {
        // Pairs with: RequestQueue::gate
        self.gate.fetch_add(1, Ordering::SeqCst);
        self.notify_all();
    }

    /// Whether no submitter is inside the block layer and no tag is in use. Submitters have to continue polling for this
    /// to become true; then it stays true until the last [`RequestQueue::unfreeze`], and polls return without effect.
    pub fn is_drained(&self) -> bool {
        assert!(self.is_frozen(), "is_drained means nothing unless the queue is being frozen");
        let _one = self.sealing.lock();
        if self.is_sealed() {
            return true;
        }
        if !self.is_quiet() {
            return false;
        }
        // A submitter may have entered to poll since, so check once more. A submitter that enters after this sees the
        // seal and leaves.
        // Pairs with: RequestQueue::is_sealed
        self.gate.fetch_or(SEALED, Ordering::SeqCst);
        let quiet = self.is_quiet();
        if !quiet {
            self.gate.fetch_and(!SEALED, Ordering::SeqCst); // Pairs with: RequestQueue::is_sealed
        }
        quiet
    }

    fn is_quiet(&self) -> bool {
        self.each_submitter(|s| !s.is_inside()) && self.state().tags_in_use() == 0
    }

    /// Lets requests in again (one level of [`RequestQueue::begin_freeze`]).
    pub fn unfreeze(&self) {
        let one = self.sealing.lock();
        // Pairs with: RequestQueue::gate
        let old = self.gate.fetch_sub(1, Ordering::SeqCst) & FREEZES;
        assert!(old > 0, "unfreeze without freeze");
        if old == 1 {
            self.gate.fetch_and(!SEALED, Ordering::SeqCst); // Pairs with: RequestQueue::is_sealed
            drop(one);
            self.notify_all();
        }
    }

    /// Stops dispatch to the driver. Nests. This only sets a mark. A thread that checked the mark before may still
    /// start one more `queue_rqs` after this returns, and a `queue_rqs` in progress may still be running. A driver
    /// that must not be called any more needs a freeze. (The kernel waits here until every dispatcher has left its
    /// RCU read section. To do that here, each submitter would count its driver calls, and quiescing would wait for
    /// the counts as freezing does.)
    pub fn quiesce(&self) {
        // Pairs with: RequestQueue::is_quiesced
        self.quiesce_depth.fetch_add(1, Ordering::SeqCst);
    }

    /// Starts dispatch again and schedules a run of every hctx.
    pub fn unquiesce(&self) {
        // Pairs with: RequestQueue::is_quiesced
        let old = self.quiesce_depth.fetch_sub(1, Ordering::SeqCst);
        assert!(old > 0, "unquiesce without quiesce");
        if old == 1 {
            fence(Ordering::SeqCst); // Pairs with: RequestQueue::is_quiesced_still
            for h in &self.state().hctxs {
                h.set_flag(state::RUN_PENDING);
            }
            self.owe_work();
            self.notify_all();
        }
    }
}
