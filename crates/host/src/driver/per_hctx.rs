// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A driver's state per hardware queue.

use blk::id::{HctxId, MAX_CPUS};
use std::sync::OnceLock;

/// One `T` per hardware queue, each on cache lines of its own, found without a lock and made when first needed.
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

    /// The state of hardware queue `index`, made by `make` if it is the first time.
    pub(crate) fn get_or_init(&self, index: u16, make: impl FnOnce() -> T) -> &T {
        &self.slots[usize::from(index)].get_or_init(|| Box::new(Padded(make()))).0
    }

    /// Those that were ever needed.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| Some(&slot.get()?.0))
    }

    /// The state of `hctx`, which `start` must have made.
    #[inline]
    pub(crate) fn get(&self, hctx: HctxId) -> &T {
        &self.slots[hctx.index()].get().expect("hctx used before the driver was started for it").0
    }
}
