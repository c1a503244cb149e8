// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Buffers of a port, in a region that the disk's drivers can access.
//!
//! Guarantees: they are made when the first is needed, use memory only after they were first written, and go back to the disk with the
//! port. A port has one set for requests of clients and one for blocks that are rewritten, so I/O that has a buffer never waits for I/O
//! that has none.

use super::disk::ServedDisk;
use crate::error::Result;
use blk::bio::DataRef;
use blk::rmw::{BUFFER_BYTES, Memory, NoBuffer};
use std::sync::Arc;

/// Number of buffers of a set.
const BUFFERS: u32 = 16;

/// A set of buffers of `BYTES` each.
pub(super) struct PortBuffers<const BYTES: usize> {
    disk: Arc<ServedDisk>,
    /// Their region, and those that are free.
    made: Option<(u16, Vec<u32>)>,
}

/// The set for blocks that are read, changed in part and written back.
pub(super) type BlockBuffers = PortBuffers<{ BUFFER_BYTES as usize }>;

impl<const BYTES: usize> PortBuffers<BYTES> {
    const REGION: usize = BYTES * BUFFERS as usize;

    pub(super) fn new(disk: &Arc<ServedDisk>) -> PortBuffers<BYTES> {
        PortBuffers { disk: Arc::clone(disk), made: None }
    }

    /// Returns a free buffer and its number; `None` if all are in use, so that one will come back.
    ///
    /// # Errors
    /// Resource: there is no memory for any.
    pub(super) fn take(&mut self) -> Result<Option<(u32, DataRef)>> {
        let (region, free) = match &mut self.made {
            Some(made) => made,
            none => none.insert((self.disk.take_buffers(Self::REGION)?, (0..BUFFERS).collect())),
        };
        let data = |buffer| DataRef::new(*region, u64::from(buffer) * BYTES as u64);
        Ok(free.pop().map(|buffer| (buffer, data(buffer))))
    }

    /// Takes a buffer back. No I/O to it may be in flight.
    pub(super) fn give_back(&mut self, buffer: u32) {
        let (_, free) = self.made.as_mut().expect("a buffer came from there");
        assert!(buffer < BUFFERS && !free.contains(&buffer), "buffer {buffer} given back twice");
        free.push(buffer);
    }
}

impl<const BYTES: usize> Drop for PortBuffers<BYTES> {
    fn drop(&mut self) {
        if let Some((region, free)) = &self.made
            && free.len() == BUFFERS as usize
        {
            self.disk.give_buffers_back(Self::REGION, *region);
        }
    }
}

impl Memory for BlockBuffers {
    fn take(&mut self) -> std::result::Result<(u32, DataRef), NoBuffer> {
        PortBuffers::take(self).map_err(|_| NoBuffer::NoMemory)?.ok_or(NoBuffer::Busy)
    }

    fn give_back(&mut self, buffer: u32) {
        PortBuffers::give_back(self, buffer);
    }

    fn copy(&mut self, from: DataRef, to: DataRef, bytes: u64) -> bool {
        let span = |at| self.disk.regions.resolve(at, bytes as usize);
        let (Ok(from), Ok(to)) = (span(from), span(to)) else { return false };
        from.copy_to(to);
        true
    }

    fn zero(&mut self, to: DataRef, bytes: u64) {
        self.disk.regions.resolve(to, bytes as usize).expect("a buffer lies in its region").zero();
    }
}
