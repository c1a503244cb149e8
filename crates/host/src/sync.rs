// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Atomics, lock and condition variable of data that threads share and models check: real ones, or loom's under
//! `--cfg loom`, so that the models explore the code that ships.
//!
//! Under loom a sleep is never ended by time: what only a timeout would hide is a deadlock there.

#[cfg(not(loom))]
pub(crate) use parking_lot::{Condvar, Mutex};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

#[cfg(loom)]
pub(crate) use self::checked::{Condvar, Mutex};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// A `Relaxed` store beside read-modify-writes of other threads.
///
/// All changes of one atomic are in one order, and a read-modify-write reads the one before it. Of a plain store loom does
/// not know that: it lets a later read-modify-write read past it. So there it is one, too.
#[inline(always)]
pub(crate) fn store_relaxed(atomic: &AtomicU32, value: u32) {
    #[cfg(not(loom))]
    atomic.store(value, Ordering::Relaxed);
    #[cfg(loom)]
    atomic.swap(value, Ordering::Relaxed);
}

#[cfg(loom)]
mod checked {
    use std::ops::{Deref, DerefMut};
    use std::sync::PoisonError;

    /// Loom's lock as parking_lot's is called.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    pub(crate) struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().expect("there but for the time of a wait")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("there but for the time of a wait")
        }
    }

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
        }
    }

    /// Loom's condition variable as parking_lot's is called.
    #[derive(Default)]
    pub(crate) struct Condvar(loom::sync::Condvar);

    /// Never.
    pub(crate) struct TimedOut;

    impl TimedOut {
        pub(crate) fn timed_out(&self) -> bool {
            false
        }
    }

    impl Condvar {
        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let inner = guard.0.take().expect("taken only here, for the time of the wait");
            guard.0 = Some(self.0.wait(inner).unwrap_or_else(PoisonError::into_inner));
        }

        pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _until: std::time::Instant) -> TimedOut {
            self.wait(guard);
            TimedOut
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}
