// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Support for stacked drivers: the upper driver (the lender) lends its requests to lower drivers and sees the results
//! before the core does.
//!
//! Guarantees: a lower driver gets the request itself (its tag, its data), not a copy. Requests that it accepts count as
//! accepted from the lender's batch; requests that it completes arrive in the lender's completions. The lender is called
//! before the core sees a result. It lets the request complete, with this status or another, or takes the request back to
//! issue it again. If a lower driver breaks a rule, the panic names that driver. Plain drivers have no extra cost: their
//! batches and completions do not change.
//!
//! Needs from callers: every lower driver is started with the lender's hardware queues, and its timeout function is called
//! only for requests that were lent to it. Does not do: count requests, or remember which driver has which request. The
//! kernel's request-based device mapper makes a clone with a tag of the lower queue instead (drivers/md/dm-rq.c). For the
//! reason why this code does not, see `docs/decisions/030-multipath-is-a-driver-over-drivers.md`.

use super::{Completions, Driver, Ended, InFlight, Requeued, RqBatch, RqRef, TimedOut, TimeoutAnswer, Tries};
use crate::bio::BioPools;
use crate::id::Tag;
use crate::request::{RequestId, RequestSlab};
use crate::status::{BlkStatus, QueueRqStatus};
use crate::time::{Duration, Instant};

/// A lender's decision about a request that a lower driver has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request completes with this status.
    Ends(BlkStatus),
    /// The request is issued again, after this delay if there is one.
    Again(Option<Duration>),
}

/// The result of [`RqBatch::lend`] for the offered requests.
#[derive(Clone, Copy, Debug)]
#[must_use = "what was ended on the spot goes to the core unseen"]
pub struct Lent {
    /// How many were accepted or completed, counted from the first.
    pub taken: usize,
    /// The status of the first request that was not accepted; [`QueueRqStatus::Queued`] if there is none.
    pub status: QueueRqStatus,
    /// Index of the first request that completed while it was being issued.
    first_ended: usize,
}

impl<'a> RqBatch<'a> {
    /// Returns the request `n` places after the [front](RqBatch::front).
    #[inline]
    pub fn peek(&self, n: usize) -> Option<RqRef<'a>> {
        let id = self.ids.get(self.accepted + n)?;
        Some(RqRef { rq: self.slab.get(*id), bios: self.bios })
    }

    /// Offers the first `n` requests that are not yet accepted to a lower driver. Requests that the lower driver
    /// accepts or completes leave this batch.
    ///
    /// Panics when fewer than `n` remain, and when the lower driver breaks a rule of [`Driver::queue_rqs`].
    #[inline]
    pub fn lend(&mut self, n: usize, to: &dyn Driver, now: Instant) -> Lent {
        assert!(n <= self.remaining(), "lends {n} requests of {}", self.remaining());
        let ids = &self.ids[self.accepted..self.accepted + n];
        let (slab, bios): (&RequestSlab, &BioPools) = (self.slab, self.bios);
        let first_ended = self.ended.len();
        let mut below = RqBatch { driver: to, place: self.place, ids, slab, bios, accepted: 0, ended: self.ended };
        let status = to.queue_rqs(&mut below, now);
        let taken = below.accepted;
        if (taken == n) != (status == QueueRqStatus::Queued) {
            self.answered_wrongly_below(to, ids, taken, status);
        }
        self.accepted += taken;
        Lent { taken, status, first_ended }
    }

    #[cold]
    fn answered_wrongly_below(&self, to: &dyn Driver, ids: &[RequestId], taken: usize, status: QueueRqStatus) -> ! {
        let (name, hctx, n) = (to.name(), self.place.hctx, ids.len());
        let Some(id) = ids.get(taken) else {
            panic!(
                "driver '{name}', hctx {hctx}: accepted all {n} requests and returned {status:?}; must return Queued"
            );
        };
        let tag = self.slab.get(*id).driver_tag.get();
        panic!(
            "driver '{name}', hctx {hctx}, tag {tag}: returned Queued without accepting this request, number {taken} \
             of {n}"
        )
    }

    /// Calls `look` for each request that the lower driver completed while it was being issued. If `look` returns
    /// [`Verdict::Again`], the request stays in flight for the core, and `keep` gets it with the delay. The lender must
    /// [give it back](Completions::requeue) in a coming poll.
    #[inline]
    pub fn review_ended(
        &mut self,
        lent: &Lent,
        mut look: impl FnMut(Tag, BlkStatus) -> Verdict,
        mut keep: impl FnMut(InFlight, Option<Duration>),
    ) {
        let mut at = lent.first_ended;
        while let Some(&(tag, status)) = self.ended.get(at) {
            match look(tag, status) {
                Verdict::Ends(status) => {
                    self.ended[at].1 = status;
                    at += 1;
                }
                Verdict::Again(delay) => {
                    self.ended.remove(at);
                    keep(InFlight { tag, place: self.place }, delay);
                }
            }
        }
    }
}

/// How many completions and requeues there were before a lower driver was called.
struct Mark {
    items: usize,
    requeues: usize,
}

impl Completions {
    /// Polls a lower driver for the hardware queue that is being polled. Calls `look` with the status of each request that
    /// the lower driver completed, and with `None` for each request that the lower driver gave back. For the latter, the
    /// verdict is ignored: the request is issued again as the lower driver requested.
    ///
    /// Panics when the lower driver breaks a rule.
    #[inline]
    pub fn poll_below(
        &mut self,
        lower: &dyn Driver,
        now: Instant,
        look: impl FnMut(Tag, Option<BlkStatus>) -> Verdict,
    ) {
        let mark = self.mark();
        let lender = core::mem::replace(&mut self.driver, lower.name());
        lower.poll(self.place.hctx, self, now);
        self.driver = lender;
        self.review(&mark, look);
    }

    /// Calls a lower driver's timeout function for a late request that was lent to it; otherwise as
    /// [`Completions::poll_below`].
    pub fn timeout_below(
        &mut self,
        lower: &dyn Driver,
        late: TimedOut,
        now: Instant,
        look: impl FnMut(Tag, Option<BlkStatus>) -> Verdict,
    ) -> TimeoutAnswer {
        let mark = self.mark();
        let lender = core::mem::replace(&mut self.driver, lower.name());
        let answer = lower.timeout(self.place.hctx, late, self, now);
        self.driver = lender;
        self.review(&mark, look);
        answer
    }

    #[inline]
    fn mark(&self) -> Mark {
        Mark { items: self.items.len(), requeues: self.requeues.len() }
    }

    #[inline]
    fn review(&mut self, mark: &Mark, mut look: impl FnMut(Tag, Option<BlkStatus>) -> Verdict) {
        for requeued in &self.requeues[mark.requeues..] {
            let _ = look(requeued.tag, None);
        }
        let mut at = mark.items;
        while let Some(&(tag, status)) = self.items.get(at) {
            match look(tag, Some(status)) {
                Verdict::Ends(status) => {
                    self.items[at].1 = status;
                    at += 1;
                }
                Verdict::Again(delay) => {
                    let (tag, _): Ended = self.items.remove(at);
                    // The driver that gets the request next has not tried it yet.
                    self.requeues.push(Requeued { tag, delay, tries: Tries::Afresh });
                }
            }
        }
    }
}
