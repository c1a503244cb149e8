// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loom's atomics and lock, adapted to protocols that load before they write.
//!
//! This module adds two properties that loom does not have.
//!
//! *Every access conflicts with every other one.* Loom runs two conflicting accesses in both orders, but remembers only the
//! last access of an atomic. Most protocols here load an atomic just before the same thread's read-modify-write. That load
//! hides the other thread's earlier load, so loom never tries the other order. So every access begins with a `Relaxed`
//! read-modify-write of `turn`, which conflicts with every other thread's and orders no other memory.
//!
//! *`SeqCst` accesses are in one order.* Loom treats them as `AcqRel` and supports only `SeqCst` fences. So two threads
//! that each write and then load would fail falsely. Here a `SeqCst` load is preceded by a fence. Because of the fence,
//! loom does not find a write that is weaker than `SeqCst`, for which the language does not guarantee the order.

use core::marker::PhantomData;
use loom::sync::atomic::{Ordering, fence};

macro_rules! competing_atomic {
    ($name:ident, $int:ty) => {
        pub(crate) struct $name {
            turn: loom::sync::atomic::AtomicU8,
            value: loom::sync::atomic::$name,
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new(<$int>::default())
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                self.value.fmt(f)
            }
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
                // Pairs with: load, in the other thread of a "mark, then look".
                if matches!(order, Ordering::SeqCst) {
                    fence(Ordering::SeqCst);
                }
                self.value().load(order)
            }

            pub(crate) fn store(&self, value: $int, order: Ordering) {
                self.value().store(value, order)
            }

            pub(crate) fn swap(&self, value: $int, order: Ordering) -> $int {
                self.value().swap(value, order)
            }

            pub(crate) fn compare_exchange(
                &self,
                current: $int,
                new: $int,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                self.value().compare_exchange(current, new, success, failure)
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

macro_rules! competing_number {
    ($name:ident, $int:ty) => {
        competing_atomic!($name, $int);

        #[allow(dead_code, reason = "each width uses part of it")]
        impl $name {
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

            pub(crate) fn fetch_max(&self, value: $int, order: Ordering) -> $int {
                self.value().fetch_max(value, order)
            }
        }
    };
}

competing_atomic!(AtomicBool, bool);
competing_number!(AtomicU8, u8);
competing_number!(AtomicU16, u16);
competing_number!(AtomicU32, u32);
competing_number!(AtomicU64, u64);

/// Loom's lock instead of the caller's lock, which loom cannot track.
pub(crate) struct Mutex<L, T>(loom::sync::Mutex<T>, PhantomData<fn() -> L>);

impl<L: lock_api::RawMutex, T> Mutex<L, T> {
    pub(crate) fn new(value: T) -> Self {
        Mutex(loom::sync::Mutex::new(value), PhantomData)
    }

    pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        // Poisoned only if a thread of the same loom model panicked, which has failed the model already.
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
