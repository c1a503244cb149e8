// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Delayed runs of hardware queues. The earliest due time is kept separately, so that a poll need not check every hctx.
//!
//! Guarantees: exactly one caller of [`DueTime::take`] takes an armed due time. Until then, [`FirstDue`] has this time or an
//! earlier one, except while a thread serves: that thread has taken the time out of [`FirstDue`]. It is awake, and puts back
//! the earliest due time that it does not serve. The thread that takes a due time sees the work that was left for the run
//! before the time was armed.
//!
//! Needs from callers: serving goes in the order [`FirstDue::begin`], [`DueTime::take`] of every hctx,
//! [`FirstDue::put_back`] with the first due time that was left. Source: `blk_mq_delay_run_hw_queue`, whose timers do this
//! in the kernel.

use crate::sync::{AtomicU64, Ordering};
use crate::time::Instant;

/// No run is scheduled.
const NEVER: u64 = u64::MAX;

/// When the delayed run of one hctx is due.
pub(crate) struct DueTime(AtomicU64);

impl DueTime {
    pub(crate) fn new() -> DueTime {
        DueTime(AtomicU64::new(NEVER))
    }

    /// Schedules a run at `at`, unless an earlier one is scheduled already; the thread that scheduled the earlier one
    /// writes its time to `first`.
    pub(crate) fn arm(&self, first: &FirstDue, at: Instant) {
        // Pairs with: DueTime::take
        if at.as_ns() < self.0.fetch_min(at.as_ns(), Ordering::Release) {
            first.put_back(at);
        }
    }

    pub(crate) fn get(&self) -> Option<Instant> {
        match self.0.load(Ordering::Relaxed) {
            NEVER => None,
            ns => Some(Instant::from_ns(ns)),
        }
    }

    /// Takes the run if it is due at `now`. Returns true to one caller only.
    pub(crate) fn take(&self, now: Instant) -> bool {
        let at = self.0.load(Ordering::Relaxed);
        // Pairs with: DueTime::arm
        at <= now.as_ns() && self.0.compare_exchange(at, NEVER, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

/// When the first delayed run of a disk is due, or an earlier time.
pub(crate) struct FirstDue(AtomicU64);

impl FirstDue {
    pub(crate) fn new() -> FirstDue {
        FirstDue(AtomicU64::new(NEVER))
    }

    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.0.load(Ordering::Relaxed) <= now.as_ns()
    }

    pub(crate) fn get(&self) -> Option<Instant> {
        Some(self.0.load(Ordering::Relaxed)).filter(|ns| *ns != NEVER).map(Instant::from_ns)
    }

    /// Called before the caller checks every hctx. A time that is not yet due stays visible to threads that are about
    /// to sleep.
    pub(crate) fn begin(&self, now: Instant) {
        if self.is_due(now) {
            // Pairs with: FirstDue::put_back
            self.0.swap(NEVER, Ordering::AcqRel);
        }
    }

    /// Notes that a run of an hctx is due at `at`.
    pub(crate) fn put_back(&self, at: Instant) {
        // Pairs with: FirstDue::begin. This writes even if the stored time is earlier already, so that the next thread
        // that checks the hctxs sees this hctx's time.
        self.0.fetch_min(at.as_ns(), Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod models;
