// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Atomics and the lock for all data that threads share: from `core` and the caller, or from a model checker.
//!
//! Guarantees: code written against this module is the code that ships, the code that loom explores (`--cfg loom`: all
//! interleavings of a few threads, weak memory included) and the code that shuttle schedules (`--cfg shuttle`: random
//! interleavings of a whole disk with many threads). Needs from callers: all communication between threads uses these
//! types; counters that are only read for display may use the types of `core`. Does not do: any ordering decision, except
//! [`full_barrier_after_rmw`].

#[cfg(loom)]
mod checked;

#[cfg(loom)]
pub(crate) use self::checked::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Mutex};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{Ordering, fence};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

/// Orders an earlier `SeqCst` read-modify-write before later `SeqCst` loads, as a `fence(SeqCst)` at this place would.
///
/// C++20, and so Rust, guarantees this order without a fence: both operations are in the single total order. On x86-64
/// the locked instruction is the barrier already and a real fence would double the cost of a put. Loom treats `SeqCst`
/// accesses as `AcqRel` and supports only `SeqCst` fences, so there the fence is explicit. (Linux:
/// `smp_mb__after_atomic`.)
#[inline(always)]
pub(crate) fn full_barrier_after_rmw() {
    #[cfg(loom)]
    fence(Ordering::SeqCst); // Pairs with: SbitmapQueue::add_waiter
}

/// The caller's lock.
#[cfg(not(any(loom, shuttle)))]
pub(crate) struct Mutex<L, T>(lock_api::Mutex<L, T>);

#[cfg(not(any(loom, shuttle)))]
impl<L: lock_api::RawMutex, T> Mutex<L, T> {
    #[inline]
    pub(crate) fn new(value: T) -> Self {
        Mutex(lock_api::Mutex::new(value))
    }

    #[inline(always)] // A forward.
    pub(crate) fn lock(&self) -> lock_api::MutexGuard<'_, L, T> {
        self.0.lock()
    }
}

/// Shuttle's lock instead of the caller's lock, which shuttle cannot track.
#[cfg(shuttle)]
pub(crate) struct Mutex<L, T>(shuttle::sync::Mutex<T>, core::marker::PhantomData<fn() -> L>);

#[cfg(shuttle)]
impl<L: lock_api::RawMutex, T> Mutex<L, T> {
    pub(crate) fn new(value: T) -> Self {
        Mutex(shuttle::sync::Mutex::new(value), core::marker::PhantomData)
    }

    pub(crate) fn lock(&self) -> shuttle::sync::MutexGuard<'_, T> {
        // Poisoned only if a thread of the same run panicked, which has failed the run already.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
