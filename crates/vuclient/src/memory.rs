// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory shared with the server: a memfd mapped through vm-memory.
//!
//! Guarantees: every access is checked against the mapping's length and copies with volatile accesses. So a server that writes at the wrong
//! time causes wrong data, not undefined behaviour. The mapping lives as long as any clone of [`Memory`]. Does not register the memory with
//! the server.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use vm_memory::volatile_memory::{VolatileMemory, VolatileSlice};
use vm_memory::{AtomicInteger, FileOffset, MmapRegion};

use crate::error::Error;

/// One shared mapping.
#[derive(Clone)]
pub struct Memory(Arc<MmapRegion<()>>);

impl Memory {
    /// Maps `len` bytes of zeroed memory, rounded up to whole pages.
    ///
    /// # Errors
    /// When the system gives no memfd or no mapping.
    pub fn new(len: usize) -> Result<Memory, Error> {
        let len = len.max(1).next_multiple_of(4096);
        let file = memfd("vuclient", len)?;
        let region = MmapRegion::from_file(FileOffset::new(file, 0), len)
            .map_err(|e| Error::Usage(format!("cannot map {len} bytes of shared memory: {e}")))?;
        Ok(Memory(Arc::new(region)))
    }

    /// Bytes of the mapping.
    pub fn len(&self) -> usize {
        self.0.size()
    }

    /// Returns the address of the first byte in this process. With blkio it is also the guest address.
    pub fn address(&self) -> usize {
        self.0.as_ptr() as usize
    }

    /// Returns the memory as a region for blkio.
    pub fn region(&self) -> blkio::MemoryRegion {
        let fd = self.fd().as_raw_fd();
        blkio::MemoryRegion { addr: self.address(), iova: 0, len: self.len(), fd, fd_offset: 0, flags: 0 }
    }

    /// Returns the memfd of the mapping.
    ///
    /// # Panics
    /// Never: every [`Memory`] is made from a file.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.file_offset().expect("made from a file").file().as_fd()
    }

    /// Returns the number at `offset`; `None` if it is not completely inside, or not aligned.
    pub fn atomic<T: AtomicInteger>(&self, offset: usize) -> Option<&T> {
        self.0.get_atomic_ref(offset).ok()
    }

    /// Returns the `len` bytes from `offset` on.
    ///
    /// # Panics
    /// If they are not completely inside. Offsets come from this client, never from the server.
    pub fn slice(&self, offset: usize, len: usize) -> VolatileSlice<'_> {
        let slice = self.0.get_slice(offset, len);
        slice.unwrap_or_else(|e| panic!("{offset} + {len} of {} bytes: {e}", self.len()))
    }
}

/// Makes an anonymous file of `len` bytes.
///
/// # Errors
/// When the system refuses.
pub fn memfd(name: &str, len: usize) -> Result<File, Error> {
    let fd = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).map_err(Error::io("memfd_create"))?;
    let file = File::from(fd);
    file.set_len(len as u64).map_err(Error::io(format!("cannot give a memfd {len} bytes")))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_through_the_file_as_well() {
        use std::os::unix::fs::FileExt;
        let memory = Memory::new(5000).unwrap();
        assert_eq!(memory.len(), 8192);
        memory.slice(4999, 3).copy_from(b"abc");
        let mut there = [0u8; 3];
        memory.0.file_offset().unwrap().file().read_exact_at(&mut there, 4999).unwrap();
        assert_eq!(&there, b"abc");
    }

    #[test]
    #[should_panic(expected = "of 4096 bytes")]
    fn nothing_beyond_the_end() {
        Memory::new(1).unwrap().slice(4090, 7);
    }
}
