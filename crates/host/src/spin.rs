// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A lock for sections of a few dozen instructions, such as a driver's ring of finished requests.
//!
//! Taking it is one locked instruction and giving it back none. That is half of what a lock that can put threads to sleep
//! costs; at a queue depth of one this is a measurable part of an I/O. A thread that finds it taken spins for a moment and then
//! yields. So a holder that lost its CPU delays others but is not kept from running. Not for sections with a system call.

use lock_api::{GuardSend, RawMutex};
use std::sync::atomic::{AtomicBool, Ordering};

/// Turns of spinning before the CPU is given up.
const SPINS: u32 = 100;

/// The raw lock; use [`SpinMutex`].
pub struct RawSpin(AtomicBool);

/// A mutex on [`RawSpin`].
pub type SpinMutex<T> = lock_api::Mutex<RawSpin, T>;

// SAFETY: `lock` and `try_lock` return (true) only after changing the flag from false to true, which one thread can do
// until `unlock` changes it back: at most one holder at a time.
unsafe impl RawMutex for RawSpin {
    #[allow(clippy::declare_interior_mutable_const, reason = "lock_api's way to make a lock")]
    const INIT: RawSpin = RawSpin(AtomicBool::new(false));
    type GuardMarker = GuardSend;

    #[inline]
    fn lock(&self) {
        if !self.try_lock() {
            self.lock_slow();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        // Pairs with: RawSpin::unlock
        !self.0.swap(true, Ordering::Acquire)
    }

    #[inline]
    unsafe fn unlock(&self) {
        // Pairs with: RawSpin::try_lock
        self.0.store(false, Ordering::Release);
    }
}

impl RawSpin {
    #[cold]
    fn lock_slow(&self) {
        let mut spins = 0;
        while self.0.load(Ordering::Relaxed) || !self.try_lock() {
            spins += 1;
            if spins % SPINS == 0 {
                std::thread::yield_now();
            }
            core::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_excludes() {
        let counter = SpinMutex::new(0u64);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| (0..20_000).for_each(|_| *counter.lock() += 1));
            }
        });
        assert_eq!(counter.into_inner(), 80_000);
    }

    #[test]
    fn a_taken_lock_is_not_taken_again() {
        let lock = SpinMutex::new(());
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(guard);
        assert!(lock.try_lock().is_some());
    }
}
