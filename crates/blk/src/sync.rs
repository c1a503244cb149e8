// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Atomics and the lock of wait lists, from `core` or from loom.
//!
//! Guarantees: code written against this module is the code that loom explores (`--cfg loom`) and the code that ships.
//! Needs from callers: nothing. Does not do: any ordering decision, except [`full_barrier_after_rmw`].

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{Ordering, fence};

/// A loom atomic each access of which competes with every other one.
///
/// Loom runs two accesses in both orders if they conflict, but of one atomic it remembers only the last access. A load by
/// the same thread just before its read-modify-write (our loops all begin so) hides the other thread's earlier load, and
/// that order is never tried. Here every access begins with a `Relaxed` read-modify-write of `turn`, which conflicts with
/// that of every other thread and orders no other memory.
#[cfg(loom)]
macro_rules! competing_atomic {
    ($name:ident, $int:ty) => {
        pub(crate) struct $name {
            turn: loom::sync::atomic::AtomicU8,
            value: loom::sync::atomic::$name,
        }

        #[allow(dead_code, reason = "each width uses part of it")]
        impl $name {
            pub(crate) fn new(value: $int) -> Self {
                $name { turn: loom::sync::atomic::AtomicU8::new(0), value: loom::sync::atomic::$name::new(value) }
            }

            fn value(&self) -> &loom::sync::atomic::$name {
                self.turn.fetch_add(1, Ordering::Relaxed);
                &self.value
            }

            pub(crate) fn load(&self, order: Ordering) -> $int {
                self.value().load(order)
            }

            pub(crate) fn store(&self, value: $int, order: Ordering) {
                self.value().store(value, order)
            }

            pub(crate) fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                self.value().fetch_add(value, order)
            }

            pub(crate) fn fetch_sub(&self, value: $int, order: Ordering) -> $int {
                self.value().fetch_sub(value, order)
            }

            pub(crate) fn fetch_or(&self, value: $int, order: Ordering) -> $int {
                self.value().fetch_or(value, order)
            }

            pub(crate) fn fetch_and(&self, value: $int, order: Ordering) -> $int {
                self.value().fetch_and(value, order)
            }

            pub(crate) fn fetch_min(&self, value: $int, order: Ordering) -> $int {
                self.value().fetch_min(value, order)
            }

            pub(crate) fn compare_exchange_weak(
                &self,
                current: $int,
                new: $int,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                self.value().compare_exchange_weak(current, new, success, failure)
            }
        }
    };
}

#[cfg(loom)]
competing_atomic!(AtomicU32, u32);
#[cfg(loom)]
competing_atomic!(AtomicU64, u64);

/// Orders an earlier `SeqCst` read-modify-write before later `SeqCst` loads, as a `fence(SeqCst)` at this place would.
///
/// C++20 (and so Rust) gives this order for nothing: both operations are in the single total order. On x86-64 the locked
/// instruction is the barrier already and a real fence would double the cost of a put. Loom treats `SeqCst` accesses as
/// `AcqRel` and knows only `SeqCst` fences, so there the fence is written out. (Linux: `smp_mb__after_atomic`.)
#[inline(always)]
pub(crate) fn full_barrier_after_rmw() {
    #[cfg(loom)]
    fence(Ordering::SeqCst); // Pairs with: SbitmapQueue::add_waiter
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
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
