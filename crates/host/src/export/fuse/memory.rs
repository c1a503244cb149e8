// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory for the data of a channel's requests, in regions that the disk's driver can access.
//!
//! Guarantees: each request slot has [`SMALL_BYTES`] of its own. Up to [`LARGES`] larger pieces of [`LARGE_BYTES`] are taken from the disk
//! when first needed. All memory goes back to the disk for the next export. Each piece has one owner.
//!
//! Needs from callers: no I/O uses a piece when it is given back, or any of the memory when [`Memory::return_all`] is called.

use super::wire::MAX_DATA;
use crate::error::Result;
use crate::mem::Span;
use crate::serve::ServedDisk;
use blk::bio::DataRef;
use std::sync::Arc;

/// Bytes of a slot's own memory; only longer data needs a larger piece.
pub(super) const SMALL_BYTES: usize = 64 << 10;
/// Bytes of a larger piece: the longest request.
pub(super) const LARGE_BYTES: usize = MAX_DATA;
/// Maximum number of larger pieces of a channel.
const LARGES: usize = 8;

/// A larger piece, by the number of its region.
#[derive(Debug)]
pub(super) struct Large(u16);

impl Large {
    /// Returns a reference to the first byte.
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
    /// Makes the memory of `slots` request slots.
    pub(super) fn new(disk: &Arc<ServedDisk>, slots: usize) -> Result<Memory> {
        let small = disk.take_client_buffers(slots * SMALL_BYTES, None)?;
        Ok(Memory { disk: Arc::clone(disk), slots, small, free: Vec::with_capacity(LARGES), taken: 0 })
    }

    /// Returns the memory of a slot.
    #[inline]
    pub(super) fn small(&self, slot: u16) -> DataRef {
        DataRef::new(self.small, u64::from(slot) * SMALL_BYTES as u64)
    }

    /// Returns a larger piece; `None` if [`LARGES`] are in use or there is no memory: then one must be given back first.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Large> {
        if self.free.is_empty() && self.taken < LARGES { self.take_new().ok() } else { self.free.pop() }
    }

    /// Takes one more piece from the disk.
    #[cold]
    pub(super) fn take_new(&mut self) -> Result<Large> {
        let region = self.disk.take_client_buffers(LARGE_BYTES, None)?;
        self.taken += 1;
        Ok(Large(region))
    }

    /// Gives a piece back.
    #[inline]
    pub(super) fn give_back(&mut self, large: Large) {
        self.free.push(large);
    }

    /// Returns `len` bytes from `data` on, which must be in this memory.
    #[inline]
    pub(super) fn span(&self, data: DataRef, len: usize) -> Span<'_> {
        self.disk.regions.resolve(data, len).expect("memory of a channel lies in its region")
    }

    /// Returns all memory to the disk. No I/O may be in flight.
    pub(super) fn return_all(&mut self) {
        self.disk.give_client_buffers_back(self.slots * SMALL_BYTES, self.small, None);
        for Large(region) in self.free.drain(..) {
            self.disk.give_client_buffers_back(LARGE_BYTES, region, None);
        }
    }
}
