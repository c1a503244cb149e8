// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where threads wait for a hardware queue of a multipath disk: one epoll set of the paths' own descriptors, and an eventfd
//! for events that those do not signal.
//!
//! Guarantees: a completion on any path, a wake-up, or a completed request that waits to be returned ends the sleep of all threads, also
//! of those that are about to sleep. While no thread sleeps and nothing was signalled, this costs I/O one load.
//!
//! Needs from callers: paths without a descriptor complete requests by time, and the next such time limits the sleep.

use crate::driver::waits::{Waiting, Waits};
use crate::error::Result;
use blk::time::Duration;
use parking_lot::Mutex;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// See the module's text.
pub(super) struct HctxWaits {
    waits: Waits,
    waiting: Mutex<Waiting>,
    /// A thread sleeps, or the eventfd must still be cleared.
    stirred: AtomicBool,
    /// Consecutive polls and sleeps without a result.
    in_vain: AtomicU32,
}

impl HctxWaits {
    pub(super) fn new() -> Result<HctxWaits> {
        let waits = Waits::new()?;
        let (waiting, stirred, in_vain) = (Mutex::default(), AtomicBool::new(false), AtomicU32::new(0));
        Ok(HctxWaits { waits, waiting, stirred, in_vain })
    }

    /// Makes this descriptor of a path end sleeps while it is readable, too. Has no effect if it is already watched.
    pub(super) fn watch(&self, fd: RawFd) {
        // SAFETY: it is the path's own, which lives at least as long as this call.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let _ = self.waits.watch(fd);
    }

    pub(super) fn fd(&self) -> RawFd {
        self.waits.fd()
    }

    pub(super) fn wakes(&self) -> u64 {
        self.waits.wakes()
    }

    pub(super) fn wake(&self) {
        let mut waiting = self.waiting.lock();
        self.waits.wake(&mut waiting);
        self.note(&waiting);
    }

    /// Sleeps until there is an event. `limit` is called once other threads can see the sleeper; `None`: there is no reason
    /// to sleep. `is_ready`: a request waits to be returned.
    pub(super) fn sleep(&self, seen: u64, is_ready: impl Fn() -> bool, limit: impl FnOnce() -> Option<Duration>) {
        let mut waiting = self.waiting.lock();
        // This thread sets the flag, then checks the requests in flight. A thread that changes those requests then checks the flag.
        // Pairs with: HctxWaits::is_stirred
        self.stirred.store(true, Ordering::SeqCst);
        if self.waits.wakes() == seen
            && !is_ready()
            && let Some(limit) = limit()
            && limit > Duration::ZERO
        {
            self.waits.sleep(&mut waiting, |w| w, limit);
        }
        self.waits.calm(&mut waiting, is_ready());
        self.note(&waiting);
    }

    fn note(&self, waiting: &Waiting) {
        // Pairs with: HctxWaits::is_stirred
        self.stirred.store(waiting.is_stirred(), Ordering::SeqCst);
    }

    /// Whether [`HctxWaits::polled`] or [`HctxWaits::tell`] has something to do.
    #[inline]
    pub(super) fn is_stirred(&self) -> bool {
        // Pairs with: HctxWaits::sleep
        self.stirred.load(Ordering::SeqCst)
    }

    /// As [`Waits::polled`]; called after a poll.
    #[cold]
    pub(super) fn polled(&self, is_ready: bool, found_last: bool) {
        let mut waiting = self.waiting.lock();
        self.waits.polled(&mut waiting, is_ready, found_last);
        self.note(&waiting);
    }

    /// Signals an event that no path's descriptor signals.
    #[cold]
    pub(super) fn tell(&self) {
        let mut waiting = self.waiting.lock();
        self.waits.signal(&mut waiting);
        self.note(&waiting);
    }

    /// Counts a poll or sleep without a result. Returns whether it was the `most`th in a row.
    pub(super) fn in_vain(&self, most: u32) -> bool {
        let n = self.in_vain.load(Ordering::Relaxed) + 1;
        self.in_vain.store(if n >= most { 0 } else { n }, Ordering::Relaxed);
        n >= most
    }

    pub(super) fn not_in_vain(&self) {
        if self.in_vain.load(Ordering::Relaxed) > 0 {
            self.in_vain.store(0, Ordering::Relaxed);
        }
    }
}
