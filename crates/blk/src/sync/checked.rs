// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loom's atomics and lock, made fit for protocols that look before they leap.
//!
//! Two things that loom does not do by itself are done here.
//!
//! *Every access competes with every other one.* Loom runs two accesses in both orders if they conflict, but of one atomic
//! it remembers only the last access. Most protocols here begin with a load just before the same thread's read-modify-write.
//! That load hides the other thread's earlier load, and that order is never tried. So every access begins with a `Relaxed`
//! read-modify-write of `turn`, which conflicts with that of every other thread and orders no other memory.
//!
//! *`SeqCst` accesses are in one order.* Loom takes them for `AcqRel` and knows only `SeqCst` fences, so "mark, then look"
//! against "mark, then look" would fail falsely. Here a `SeqCst` load is preceded by a fence. What that cannot show: a mark
//! made with less than `SeqCst`, for which the language promises nothing and the fence does.

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

/// Loom's lock in place of the caller's, of which loom knows nothing.
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
