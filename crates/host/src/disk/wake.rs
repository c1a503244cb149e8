// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waking a thread that waits in a driver because the block layer has something for its submitter.
//!
//! Guarantees that a notification is never lost: one that comes before the thread waits keeps it from waiting, one that
//! comes while it waits makes the driver's wait return. A notification for a thread that is awake costs
//! one locked instruction.

use crate::driver::host_driver::HostDriver;
use crate::readable::poll_fds;
use crate::sync::{AtomicU32, Ordering};
use blk::id::{HctxId, MAX_SUBMITTERS, SubmitterId};
use blk::queue::Notify;
use blk::time::Duration;
use crossbeam_utils::CachePadded;
use std::sync::Arc;

/// The thread runs and will poll before it waits.
const AWAKE: u32 = 0;
/// It was notified since its last poll.
const NOTIFIED: u32 = 1;
/// It waits in the driver for hctx `state - WAITING`.
const WAITING: u32 = 2;

/// Waiting threads and where they wait, for all submitters of one disk.
pub struct WakeTable {
    driver: Arc<dyn HostDriver>,
    states: Box<[CachePadded<AtomicU32>]>,
}

impl WakeTable {
    /// No thread waits.
    pub fn new(driver: Arc<dyn HostDriver>) -> WakeTable {
        let states = (0..MAX_SUBMITTERS).map(|_| CachePadded::new(AtomicU32::new(AWAKE))).collect();
        WakeTable { driver, states }
    }

    /// Waits in the driver for completions of `hctx` on behalf of `submitter`, unless something came for it meanwhile.
    pub fn wait(&self, submitter: SubmitterId, hctx: HctxId, min: u32, timeout: Option<Duration>) {
        self.wait_by(submitter, hctx, |seen| self.driver.wait_since(seen, hctx, min, timeout));
    }

    /// Waits until one of `fds`, the drivers' descriptors of a thread's hctxs with `hctx` the first, has completions.
    pub fn wait_any(&self, submitter: SubmitterId, hctx: HctxId, fds: &mut [libc::pollfd], timeout: Duration) {
        self.wait_by(submitter, hctx, |seen| {
            // A wake-up is a mark in the first ring, which another thread may have taken out already.
            if self.driver.wakes(hctx) == seen {
                poll_fds(fds, timeout);
            }
        });
    }

    fn wait_by(&self, submitter: SubmitterId, hctx: HctxId, wait: impl FnOnce(u64)) {
        if let Some(seen) = self.begin(submitter, hctx) {
            wait(seen);
        }
        self.end(submitter);
    }

    /// Marks `submitter` as about to wait; from then on a notification wakes `hctx`. Returns [`HostDriver::wakes`] of before the mark, or
    /// `None` if the submitter was notified already. The caller calls [`WakeTable::end`] in either case.
    pub(crate) fn begin(&self, submitter: SubmitterId, hctx: HctxId) -> Option<u64> {
        let waiting = WAITING + hctx.index() as u32;
        // Read this before other threads can see that this thread waits, so that every wake-up from then on is newer.
        let seen = self.driver.wakes(hctx);
        // Pairs with: WakeTable::notify
        let began = self.states[submitter.index()]
            .compare_exchange(AWAKE, waiting, Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
        began.then_some(seen)
    }

    /// `submitter` is awake.
    pub(crate) fn end(&self, submitter: SubmitterId) {
        // Pairs with: WakeTable::notify. A poll follows every wait, and sees the work that was notified.
        self.states[submitter.index()].swap(AWAKE, Ordering::AcqRel);
    }
}

/// The table as the block layer's way to reach it.
pub struct Waker(pub Arc<WakeTable>);

impl Notify for Waker {
    fn notify(&self, submitter: SubmitterId) {
        let state = &self.0.states[submitter.index()];
        // Write the state even if it is `NOTIFIED` already. A load could return the state from before the thread's last
        // check, while the work that the caller left for the thread is still on its way to memory.
        // Pairs with: WakeTable::wait
        let before = state.swap(NOTIFIED, Ordering::AcqRel);
        if before >= WAITING {
            self.0.driver.wake(HctxId::new(before - WAITING));
        }
    }
}

#[cfg(all(test, loom))]
mod models;
