// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A driver's state per hardware queue.

use blk::id::{HctxId, MAX_CPUS};
use std::sync::OnceLock;

/// One `T` per hardware queue, each on separate cache lines, accessed without a lock and made at first use.
pub(crate) struct PerHctx<T> {
    slots: Box<[OnceLock<Box<Padded<T>>>]>,
}

/// 128 bytes: two lines, because the prefetcher of common CPUs fetches pairs.
#[repr(align(128))]
struct Padded<T>(T);

impl<T> PerHctx<T> {
    pub(crate) fn new() -> PerHctx<T> {
        PerHctx { slots: (0..MAX_CPUS).map(|_| OnceLock::new()).collect() }
    }

    /// Returns the state of hardware queue `index`; makes it by `make` at first use.
    pub(crate) fn get_or_init(&self, index: u16, make: impl FnOnce() -> T) -> &T {
        &self.slots[usize::from(index)].get_or_init(|| Box::new(Padded(make()))).0
    }

    /// Iterates over the states that were made.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| Some(&slot.get()?.0))
    }

    /// Returns the state of `hctx`, if it was made.
    pub(crate) fn find(&self, hctx: HctxId) -> Option<&T> {
        Some(&self.slots.get(hctx.index())?.get()?.0)
    }

    /// Returns the state of `hctx`, which `start` must have made.
    #[inline]
    pub(crate) fn get(&self, hctx: HctxId) -> &T {
        &self.slots[hctx.index()].get().expect("hctx used before the driver was started for it").0
    }
}
