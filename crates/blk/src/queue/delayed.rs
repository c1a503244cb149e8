// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Delayed runs of hardware queues. The due time of the earliest one is kept, so that a poll need not check all.
//!
//! Guarantees: one caller of [`DueTime::take`] takes a due time that was armed. Until then it is visible in [`FirstDue`], at
//! its time or an earlier one, once the serving thread is through. The thread that takes it sees what was left for the run
//! before it was armed. While a thread serves, what it has taken from [`FirstDue`] is not visible there. That thread is
//! awake, and puts back what it does not serve.
//!
//! Needs from callers: serving goes in the order [`FirstDue::begin`], [`DueTime::take`] of every hctx,
//! [`FirstDue::put_back`] with the first due time that was left. Source: `blk_mq_delay_run_hw_queue`, whose timers do this
//! in the kernel.

use crate::sync::{AtomicU64, Ordering};
use crate::time::Instant;

/// "No run is owed."
const NEVER: u64 = u64::MAX;

/// When one hctx is owed a run.
pub(crate) struct DueTime(AtomicU64);

impl DueTime {
    pub(crate) fn new() -> DueTime {
        DueTime(AtomicU64::new(NEVER))
    }

    /// Owes a run at `at`, unless an earlier one is owed already: then the thread that owed that one writes it to
    /// `first`.
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

    /// Takes the run that is due at `now`; true for one caller.
    pub(crate) fn take(&self, now: Instant) -> bool {
        let at = self.0.load(Ordering::Relaxed);
        // Pairs with: DueTime::arm
        at <= now.as_ns() && self.0.compare_exchange(at, NEVER, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}

/// When the first hctx of a disk is owed a run, or earlier.
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

    /// The caller is about to check every hctx. What is not due stays visible to a thread that is about to sleep.
    pub(crate) fn begin(&self, now: Instant) {
        if self.is_due(now) {
            // Pairs with: FirstDue::put_back
            self.0.swap(NEVER, Ordering::AcqRel);
        }
    }

    /// An hctx is owed a run at `at`.
    pub(crate) fn put_back(&self, at: Instant) {
        // Pairs with: FirstDue::begin. Written whatever it holds: the next thread to check the hctxs sees this one's
        // time.
        self.0.fetch_min(at.as_ns(), Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod models;
