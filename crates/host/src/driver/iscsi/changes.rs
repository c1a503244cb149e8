// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts the reports that a disk's logical unit may be another one. All sessions of the disk share the count.
//!
//! Guarantees: a session sends requests only while the count is the one from before its identity check. After
//! [`UnitChanges::note`] has returned, no session starts to send, in any thread that knows of the change: each session must
//! be made anew and read the identity first. Does not know whether the unit is another one: the new sessions find out.
//! Needs from callers: [`UnitChanges::count`] is read before the identity, and again under the session's lock before each send.

use std::sync::atomic::{AtomicU64, Ordering};

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct UnitChanges(AtomicU64);

impl UnitChanges {
    /// Notes a report that the unit may have changed, a check that found another unit, or a size that the driver has not read.
    #[cold]
    pub(super) fn note(&self) {
        // Relaxed: it orders no other data. A thread learns of the change under the lock of the session that noticed it, and
        // reads the new count from then on.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many there were so far.
    #[inline]
    pub(super) fn count(&self) -> u64 {
        // Relaxed: as for `note`.
        self.0.load(Ordering::Relaxed)
    }
}
