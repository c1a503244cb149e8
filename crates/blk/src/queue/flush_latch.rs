// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Remembers that a flush has failed.
//!
//! Guarantees: after a device has failed to write its cache, no flush of this disk succeeds, and no write with FUA or PREFLUSH is
//! accepted. Data that was acknowledged before may be lost, and a device that has reported this once forgets it: a second fdatasync of
//! a file returns success, without the data. Reads and other writes continue. To clear this, open the device again as a new disk.
//!
//! Needs from drivers: the device's own answer to a flush is one of the statuses of [`loses_data`], since a status that means "another path
//! may work" does not count. A lost connection and a timeout do not count either, because it is unknown whether the device has flushed.
//!
//! The kernel has no such memory: it reports the error once to each open file, and file systems stop themselves. Source: the same rule in
//! QEMU, `page_cache_inconsistent` in block/file-posix.c.

use crate::status::BlkStatus;
use crate::sync::{AtomicU8, Ordering};

/// See the module's text.
pub(crate) struct FlushLatch(AtomicU8);

impl FlushLatch {
    pub(crate) fn new() -> FlushLatch {
        FlushLatch(AtomicU8::new(BlkStatus::Ok.as_u8()))
    }

    /// Returns the status of the first flush that failed.
    pub(crate) fn failed(&self) -> Option<BlkStatus> {
        // Pairs with: FlushLatch::completed
        let status = BlkStatus::from_u8(self.0.load(Ordering::Acquire));
        (!status.is_ok()).then_some(status)
    }

    /// Takes the status with which the driver completed a flush command. Returns the status for the requests that waited for it.
    pub(crate) fn completed(&self, status: BlkStatus) -> BlkStatus {
        if loses_data(status) {
            let ok = BlkStatus::Ok.as_u8();
            // Pairs with: FlushLatch::failed. If another flush failed before, its status stays.
            let _ = self.0.compare_exchange(ok, status.as_u8(), Ordering::AcqRel, Ordering::Relaxed);
        }
        self.failed().unwrap_or(status)
    }
}

/// Whether the device itself failed to flush. The other statuses say that it was not reached, or does not flush.
fn loses_data(status: BlkStatus) -> bool {
    matches!(status, BlkStatus::NoSpc | BlkStatus::Target | BlkStatus::Medium | BlkStatus::Protection)
}
