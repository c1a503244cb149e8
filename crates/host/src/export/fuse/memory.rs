// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory for the data of a channel's requests, where the disk's driver reaches it.
//!
//! Guarantees: each request slot has [`SMALL_BYTES`] of its own. Up to [`LARGES`] larger pieces of [`LARGE_BYTES`] are taken from the
//! disk when first needed. All memory goes back to the disk for the next export. A piece has one owner.
//!
//! Needs from callers: no I/O is left to a piece when it is given back, or to any memory here when this is dropped.

use super::wire::MAX_DATA;
use crate::error::Result;
use crate::mem::Span;
use crate::serve::ServedDisk;
use blk::bio::DataRef;
use std::sync::Arc;

/// Data up to this length is in the memory of its slot.
pub(super) const SMALL_BYTES: usize = 64 << 10;
/// The longest request, with a block before and one behind it.
pub(super) const LARGE_BYTES: usize = MAX_DATA + 2 * MAX_BLOCK;
/// Largest logical block that requests are widened to.
pub(super) const MAX_BLOCK: usize = 32 << 10;
/// Larger pieces of a channel.
const LARGES: usize = 8;

/// A larger piece: the number of its region.
#[derive(Debug)]
pub(super) struct Large(u16);

impl Large {
    /// Its first byte.
    #[inline]
    pub(super) fn data(&self) -> DataRef {
        DataRef::new(self.0, 0)
    }
}

/// See the module's text.
pub(super) struct Memory {
    disk: Arc<ServedDisk>,
    slots: usize,
    small: u16,
    free: Vec<Large>,
    taken: usize,
}

impl Memory {
    /// For `slots` requests at a time.
    pub(super) fn new(disk: &Arc<ServedDisk>, slots: usize) -> Result<Memory> {
        let small = disk.take_buffers(slots * SMALL_BYTES)?;
        Ok(Memory { disk: Arc::clone(disk), slots, small, free: Vec::with_capacity(LARGES), taken: 0 })
    }

    /// The memory of a slot.
    #[inline]
    pub(super) fn small(&self, slot: u16) -> DataRef {
        DataRef::new(self.small, u64::from(slot) * SMALL_BYTES as u64)
    }

    /// A larger piece; none if others have to be given back first, for want of memory too.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Large> {
        if self.free.is_empty() && self.taken < LARGES { self.take_new().ok() } else { self.free.pop() }
    }

    /// A piece more than there were.
    #[cold]
    pub(super) fn take_new(&mut self) -> Result<Large> {
        let region = self.disk.take_buffers(LARGE_BYTES)?;
        self.taken += 1;
        Ok(Large(region))
    }

    /// Gives a piece back.
    #[inline]
    pub(super) fn give_back(&mut self, large: Large) {
        self.free.push(large);
    }

    /// `len` bytes from `data` on, which is of this memory.
    #[inline]
    pub(super) fn span(&self, data: DataRef, len: usize) -> Span<'_> {
        self.disk.regions.resolve(data, len).expect("memory of a channel lies in its region")
    }

    /// No I/O is left: all goes back to the disk.
    pub(super) fn return_all(&mut self) {
        self.disk.give_buffers_back(self.slots * SMALL_BYTES, self.small);
        for Large(region) in self.free.drain(..) {
            self.disk.give_buffers_back(LARGE_BYTES, region);
        }
    }
}
