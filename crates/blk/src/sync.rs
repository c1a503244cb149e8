// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Atomics and the lock of wait lists, from `core` or from loom.
//!
//! Guarantees: code written against this module is the code that loom explores (`--cfg loom`) and the code that ships.
//! Needs from callers: nothing. Does not do: any ordering decision, except [`full_barrier_after_rmw`].

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Orders an earlier `SeqCst` read-modify-write before later `SeqCst` loads, as a `fence(SeqCst)` at this place would.
///
/// C++20 (and so Rust) gives this order for nothing: both operations are in the single total order. On x86-64 the locked
/// instruction is the barrier already and a real fence would double the cost of a put. Loom treats `SeqCst` accesses as
/// `AcqRel` and knows only `SeqCst` fences, so there the fence is written out. (Linux: `smp_mb__after_atomic`.)
#[inline(always)]
pub(crate) fn full_barrier_after_rmw() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}

/// The lock the caller chose, or loom's under loom (whose objects cannot be built in a `const`, as `RawMutex` demands).
#[cfg(not(loom))]
pub(crate) struct Mutex<L, T>(lock_api::Mutex<L, T>);

#[cfg(not(loom))]
impl<L: lock_api::RawMutex, T> Mutex<L, T> {
    pub(crate) fn new(value: T) -> Self {
        Mutex(lock_api::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> lock_api::MutexGuard<'_, L, T> {
        self.0.lock()
    }
}

#[cfg(loom)]
pub(crate) struct Mutex<L, T>(loom::sync::Mutex<T>, core::marker::PhantomData<fn() -> L>);

#[cfg(loom)]
impl<L: lock_api::RawMutex, T> Mutex<L, T> {
    pub(crate) fn new(value: T) -> Self {
        Mutex(loom::sync::Mutex::new(value), core::marker::PhantomData)
    }

    pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        // Poisoned only if a thread of the same loom model panicked, which has failed the model already.
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}
