// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When a disk's requests have to be checked for timeouts; `path::timeout` checks them.
//!
//! Guarantees: a checking thread disarms the timer first. So a submitter that saw it armed may issue a request that becomes
//! visible only after the check. That submitter finds the timer unarmed when it polls, and at the latest when it rests
//! before it sleeps ([`Timer::rearm_at_once`]).

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

    /// When it is due; `None` while it is not armed.
    pub(crate) fn due(&self) -> Option<Instant> {
        let at = self.0.load(Ordering::Relaxed);
        (at != NOT_ARMED).then(|| Instant::from_ns(at))
    }

    #[inline]
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now.as_ns() >= self.0.load(Ordering::Relaxed)
    }

    /// Disarms it if it is due; one caller at a time gets true, and checks the requests then.
    pub(crate) fn take(&self, now: Instant) -> bool {
        let at = self.0.load(Ordering::Relaxed);
        let taken =
            now.as_ns() >= at && self.0.compare_exchange(at, NOT_ARMED, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        // Disarmed, then the requests are checked; a submitter that rests has issued, then checks the timer.
        // Pairs with: Timer::rearm_at_once
        fence(Ordering::SeqCst);
        taken
    }

    /// The caller goes to sleep with requests out: if it issued them unseen by a look that disarmed the timer, the next
    /// poll has to look again.
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
