// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A port's buffers for blocks that are read, changed in part and written back.
//!
//! Guarantees: none of them is used for anything else, so I/O that has a buffer never waits for I/O that has none. They are made when the
//! first is needed, use memory only after they were first written, and go back to the disk with the port.

use super::disk::ServedDisk;
use blk::bio::DataRef;
use blk::rmw::{BUFFER_BYTES, Memory, NoBuffer};
use std::sync::Arc;

/// Number of buffers of a port.
const BUFFERS: u32 = 16;
const BYTES: usize = BUFFER_BYTES as usize * BUFFERS as usize;

/// See the module's text.
pub(super) struct BlockBuffers {
    disk: Arc<ServedDisk>,
    /// Their region, and those that are free.
    made: Option<(u16, Vec<u32>)>,
}

impl BlockBuffers {
    pub(super) fn new(disk: &Arc<ServedDisk>) -> BlockBuffers {
        BlockBuffers { disk: Arc::clone(disk), made: None }
    }
}

impl Memory for BlockBuffers {
    fn take(&mut self) -> Result<(u32, DataRef), NoBuffer> {
        if self.made.is_none() {
            let region = self.disk.take_buffers(BYTES).map_err(|_| NoBuffer::NoMemory)?;
            self.made = Some((region, (0..BUFFERS).collect()));
        }
        let (region, free) = self.made.as_mut().ok_or(NoBuffer::NoMemory)?;
        let buffer = free.pop().ok_or(NoBuffer::Busy)?;
        Ok((buffer, DataRef::new(*region, u64::from(buffer) * BUFFER_BYTES)))
    }

    fn give_back(&mut self, buffer: u32) {
        let (_, free) = self.made.as_mut().expect("a buffer came from there");
        assert!(buffer < BUFFERS && !free.contains(&buffer), "buffer {buffer} given back twice");
        free.push(buffer);
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

impl Drop for BlockBuffers {
    fn drop(&mut self) {
        if let Some((region, free)) = &self.made
            && free.len() == BUFFERS as usize
        {
            self.disk.give_buffers_back(BYTES, *region);
        }
    }
}
