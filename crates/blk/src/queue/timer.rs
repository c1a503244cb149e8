// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When a disk's requests have to be checked for timeouts; `path::timeout` checks them.
//!
//! Guarantees: a thread that checks requests disarms the timer first. So a submitter that saw the timer armed may issue a
//! request that becomes visible only after the check. That submitter finds the timer unarmed when it polls, or at the
//! latest when it is about to sleep ([`Timer::rearm_at_once`]).

use crate::sync::{AtomicU64, Ordering, fence};
use crate::time::Instant;

const NOT_ARMED: u64 = u64::MAX;

/// When the requests have to be checked, in nanoseconds.
pub(crate) struct Timer(AtomicU64);

impl Timer {
    pub(crate) fn new() -> Timer {
        Timer(AtomicU64::new(NOT_ARMED))
    }

    #[inline]
    pub(crate) fn is_armed(&self) -> bool {
        self.0.load(Ordering::Relaxed) != NOT_ARMED
    }

    /// Returns when the timer is due; `None` while it is not armed.
    pub(crate) fn due(&self) -> Option<Instant> {
        let at = self.0.load(Ordering::Relaxed);
        (at != NOT_ARMED).then(|| Instant::from_ns(at))
    }

    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now.as_ns() >= self.0.load(Ordering::Relaxed)
    }

    /// Disarms the timer if it is due. Returns true to one caller only, which then checks the requests.
    pub(crate) fn take(&self, now: Instant) -> bool {
        let at = self.0.load(Ordering::Relaxed);
        let taken =
            now.as_ns() >= at && self.0.compare_exchange(at, NOT_ARMED, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        // This thread disarms the timer, then checks the requests; a submitter issues requests, then checks the timer
        // before it sleeps.
        // Pairs with: Timer::rearm_at_once
        fence(Ordering::SeqCst);
        taken
    }

    /// Called before a submitter sleeps with requests in flight. If the timer is unarmed, a check may have missed these
    /// requests, so arms the timer for the next poll.
    pub(crate) fn rearm_at_once(&self) {
        fence(Ordering::SeqCst); // Pairs with: Timer::take
        if !self.is_armed() {
            self.arm(Instant::ZERO);
        }
    }

    pub(crate) fn arm(&self, at: Instant) {
        self.0.fetch_min(at.as_ns(), Ordering::Relaxed);
    }
}
