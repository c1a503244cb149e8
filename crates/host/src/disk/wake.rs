// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waking a thread that waits in a driver because the block layer has something for its submitter.
//!
//! Guarantees that a notification is never lost: one that comes before the thread waits keeps it from waiting, one that
//! comes while it waits ends the wait. A notification for a thread that is awake costs one locked instruction.

use super::leader::Leadership;
use crate::driver::host_driver::HostDriver;
use crate::driver::per_hctx::PerHctx;
use crate::readable::poll_fds;
use crate::sync::{AtomicU32, Condvar, Mutex, Ordering};
use blk::id::{HctxId, MAX_SUBMITTERS, SubmitterId};
use blk::queue::Notify;
use blk::time::Duration;
use crossbeam_utils::CachePadded;
use std::sync::Arc;

/// The thread runs and will poll before it waits.
const AWAKE: u32 = 0;
/// It was notified since its last poll.
const NOTIFIED: u32 = 1;
/// It sleeps as a follower.
const FOLLOWS: u32 = 2;
/// It was promoted from follower to leader.
const PROMOTED: u32 = 3;
/// It waits in the driver for hctx `state - WAITING`.
const WAITING: u32 = 4;

/// Waiting threads and where they wait, for all submitters of one disk.
pub struct WakeTable {
    driver: Arc<dyn HostDriver>,
    waits: Box<[CachePadded<SubmitterWait>]>,
    leaders: PerHctx<Leadership>,
}

/// How a submitter's thread waits.
#[derive(Default)]
struct SubmitterWait {
    state: AtomicU32,
    /// Taken between a change of the state from `FOLLOWS` and the call of `condvar`.
    lock: Mutex<()>,
    /// The thread sleeps here while it is `FOLLOWS`.
    condvar: Condvar,
}

impl SubmitterWait {
    /// Sleeps until the state is no longer `FOLLOWS`, or `timeout` has passed.
    fn sleep(&self, timeout: Duration) {
        let until = std::time::Instant::now() + std::time::Duration::from_nanos(timeout.as_ns());
        let mut lock = self.lock.lock();
        // Relaxed: the lock orders it.
        while self.state.load(Ordering::Relaxed) == FOLLOWS {
            if self.condvar.wait_until(&mut lock, until).timed_out() {
                break;
            }
        }
    }

    /// Ends a sleep whose reason is gone.
    fn end_sleep(&self) {
        drop(self.lock.lock());
        self.condvar.notify_all();
    }
}

impl WakeTable {
    /// No thread waits.
    pub fn new(driver: Arc<dyn HostDriver>) -> WakeTable {
        let waits = (0..MAX_SUBMITTERS).map(|_| CachePadded::new(SubmitterWait::default())).collect();
        WakeTable { driver, waits, leaders: PerHctx::new() }
    }

    /// Waits in the driver for completions of `hctx` on behalf of `submitter`, unless something came for it meanwhile.
    pub fn wait(&self, submitter: SubmitterId, hctx: HctxId, min: u32, timeout: Option<Duration>) {
        self.wait_by(submitter, hctx, |seen| self.driver.wait_since(seen, hctx, min, timeout));
    }

    /// As [`WakeTable::wait`] for one completion, beside other threads at the same hctx. One of them, the leader, waits in the driver, for
    /// `in_driver` at most. The others sleep until the leader has found something for them, or until they are promoted, for `timeout` at
    /// most.
    pub fn wait_or_follow(&self, submitter: SubmitterId, hctx: HctxId, in_driver: Duration, timeout: Duration) {
        let leadership = self.leaders.get_or_init(hctx.index() as u16, Leadership::default);
        let own = &self.waits[submitter.index()];
        // Pairs with: Waker::notify
        let follows = || own.state.compare_exchange(AWAKE, FOLLOWS, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if !leadership.lead_or_follow(submitter, follows) {
            own.sleep(timeout);
            // Pairs with: Waker::notify
            let state = own.state.swap(AWAKE, Ordering::AcqRel);
            if !leadership.end_following(submitter) {
                return;
            }
            if state != PROMOTED {
                return self.resign(leadership);
            }
        }
        self.wait(submitter, hctx, 1, Some(in_driver));
        self.resign(leadership);
    }

    /// The leader no longer leads.
    fn resign(&self, leadership: &Leadership) {
        let Some(next) = leadership.resign() else { return };
        let next = &self.waits[next.index()];
        // If the thread was notified, it is about to find that it was promoted.
        // Pairs with: WakeTable::wait_or_follow
        if next.state.compare_exchange(FOLLOWS, PROMOTED, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            next.end_sleep();
        }
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
        // Pairs with: Waker::notify
        let began = self.waits[submitter.index()]
            .state
            .compare_exchange(AWAKE, waiting, Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
        began.then_some(seen)
    }

    /// `submitter` is awake.
    pub(crate) fn end(&self, submitter: SubmitterId) {
        // Pairs with: Waker::notify. A poll follows every wait, and sees the work that was notified.
        self.waits[submitter.index()].state.swap(AWAKE, Ordering::AcqRel);
    }
}

/// The table as the block layer's way to reach it.
pub struct Waker(pub Arc<WakeTable>);

impl Notify for Waker {
    fn notify(&self, submitter: SubmitterId) {
        let wait = &self.0.waits[submitter.index()];
        // Write the state even if it is `NOTIFIED` already. A load could return the state from before the thread's last
        // check, while the work that the caller left for the thread is still on its way to memory.
        // Pairs with: WakeTable::begin, WakeTable::wait_or_follow
        match wait.state.swap(NOTIFIED, Ordering::AcqRel) {
            AWAKE | NOTIFIED | PROMOTED => {}
            FOLLOWS => wait.end_sleep(),
            waiting => self.0.driver.wake(HctxId::new(waiting - WAITING)),
        }
    }
}

#[cfg(all(test, loom))]
mod models;
