// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fields of requests and bios: memory with one owner at a time, shared without `unsafe`.
//!
//! A request or bio slot always has exactly one owner: the submitter, a list under its lock, or the driver. The slot
//! changes hands through a lock, the tag bitmap or the driver's completion, and each of those orders memory. So the
//! fields need no ordering of their own: relaxed loads and stores, which compile to plain moves. A bug in the transfer
//! causes a wrong value that an assertion catches, never undefined behaviour.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

macro_rules! relaxed {
    ($name:ident, $atomic:ident, $int:ty) => {
        #[doc = concat!("A `", stringify!($int), "` field with one owner at a time.")]
        #[derive(Debug, Default)]
        pub(crate) struct $name($atomic);

        impl $name {
            #[inline(always)]
            pub(crate) fn get(&self) -> $int {
                self.0.load(Ordering::Relaxed)
            }

            #[inline(always)]
            pub(crate) fn set(&self, v: $int) {
                self.0.store(v, Ordering::Relaxed);
            }
        }
    };
}

relaxed!(FieldU8, AtomicU8, u8);
relaxed!(FieldU16, AtomicU16, u16);
relaxed!(FieldU32, AtomicU32, u32);
relaxed!(FieldU64, AtomicU64, u64);

impl FieldU64 {
    /// Adds to a counter that only its owner writes; other readers see a recent value.
    #[inline(always)]
    pub(crate) fn add(&self, n: u64) {
        self.set(self.get().wrapping_add(n));
    }

    /// Subtracts from a gauge that only its owner writes.
    #[inline(always)]
    pub(crate) fn sub(&self, n: u64) {
        self.set(self.get().wrapping_sub(n));
    }
}
