// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The dirty pages that a migration sees: pages of guest memory that changed between two snapshots, and pages that the server has logged.
//!
//! Guarantees: [`DirtyLog::take`] returns each logged page once; [`MemorySnapshot::changed`] compares every byte. Source: QEMU's
//! `docs/interop/vhost-user.rst`, "Migration".

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;

use super::guest::Guest;
use crate::error::Error;
use crate::memory::Memory;

/// Bytes of a page of the log.
pub const PAGE: usize = 4096;

/// Shared memory with one bit per page of guest memory.
pub struct DirtyLog {
    memory: Memory,
    bytes: usize,
}

impl DirtyLog {
    pub(super) fn new(pages: usize) -> Result<DirtyLog, Error> {
        let bytes = pages.div_ceil(8).max(1);
        Ok(DirtyLog { memory: Memory::new(bytes)?, bytes })
    }

    /// Returns the size of the log in bytes, as the server gets it.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.memory.fd()
    }

    /// Returns the numbers of the pages logged since the last call. Pages logged during the call may be lost, so the device must be
    /// quiesced.
    pub fn take(&self) -> BTreeSet<u64> {
        let mut bits = vec![0u8; self.memory.len()];
        let all = self.memory.slice(0, bits.len());
        all.copy_to(&mut bits[..]);
        all.copy_from(&vec![0u8; bits.len()][..]);
        let pages = bits
            .iter()
            .enumerate()
            .flat_map(|(at, byte)| (0..8).filter(move |bit| byte & 1 << bit != 0).map(move |bit| at as u64 * 8 + bit));
        pages.collect()
    }
}

/// A copy of all memory of a guest.
pub struct MemorySnapshot {
    regions: Vec<(u64, Vec<u8>)>,
}

impl MemorySnapshot {
    /// Copies the memory of `guest`.
    pub fn new(guest: &Guest) -> MemorySnapshot {
        let copy = |memory: &Memory, len| {
            let mut bytes = vec![0u8; len];
            memory.slice(0, len).copy_to(&mut bytes[..]);
            bytes
        };
        MemorySnapshot { regions: guest.regions().map(|r| (r.guest, copy(&r.memory, r.len))).collect() }
    }

    /// Returns the numbers of the pages that differ in `later`, a snapshot of the same regions.
    pub fn changed(&self, later: &MemorySnapshot) -> BTreeSet<u64> {
        let pairs = self.regions.iter().zip(&later.regions);
        let pages = pairs.flat_map(|((address, before), (_, after))| {
            let pages = before.chunks(PAGE).zip(after.chunks(PAGE)).enumerate();
            pages.filter(|(_, (a, b))| a != b).map(move |(i, _)| address / PAGE as u64 + i as u64)
        });
        pages.collect()
    }
}
