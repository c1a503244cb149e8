// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory of this process that this crate did not make: buffers of a program that loaded this library.
//!
//! Guarantees: [`ForeignBuffers::data`] names bytes inside the range it was made for and no others. Needs from callers: see
//! [`ForeignBuffers::new`]. Does not: keep slots apart as a [`BufferPool`](super::BufferPool) does, because only the program knows which
//! of its buffers it has submitted. Does not register the memory with io_uring, because the memory goes away with its job.

use super::{Region, Regions};
use crate::error::{Error, Result};
use blk::bio::DataRef;
use std::ptr::NonNull;
use std::sync::Arc;

/// A range of foreign memory, a region as long as this lives.
#[derive(Debug)]
pub struct ForeignBuffers {
    regions: Arc<Regions>,
    number: u16,
    start: usize,
    len: usize,
}

impl ForeignBuffers {
    /// Makes `len` bytes from `start` on a region of `regions`. Fails when there are too many regions.
    ///
    /// # Safety
    /// All of the range is mapped, readable and writable, until this is dropped, and it is not unmapped before. While I/O
    /// to or from a part of it is in flight no `&` or `&mut` of Rust to that part is used. This is dropped only when every
    /// bio with a [`DataRef`] of it has ended, and no more will be submitted.
    pub unsafe fn new(regions: &Arc<Regions>, start: NonNull<u8>, len: usize) -> Result<ForeignBuffers> {
        let from = start.as_ptr().addr();
        if len == 0 || from.checked_add(len).is_none() || len as u64 > DataRef::MAX_OFFSET {
            return Err(Error::usage(format!("buffers of {len} bytes: must be 1..=2^48 - 1")));
        }
        let region = Region { base: start, len, slots: None, shared: None, is_foreign: true, is_for_clients: false };
        let number = regions.add(Arc::new(region))?;
        Ok(ForeignBuffers { regions: Arc::clone(regions), number, start: from, len })
    }

    /// The `len` bytes at address `at`; `None` when they are not all inside.
    #[inline]
    pub fn data(&self, at: usize, len: usize) -> Option<DataRef> {
        let offset = at.checked_sub(self.start)?;
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.len);
        fits.then(|| DataRef::new(self.number, offset as u64))
    }
}

impl Drop for ForeignBuffers {
    fn drop(&mut self) {
        // SAFETY: by the promise made to `new` no bio with a reference to it is left, and none will come.
        unsafe { self.regions.remove(self.number) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_reach_the_range_and_nothing_else_and_end_with_it() {
        let regions = Arc::new(Regions::new());
        let mut memory = vec![7u8; 1024];
        let start = NonNull::new(memory.as_mut_ptr()).unwrap();
        // SAFETY: `memory` outlives `buffers`, and is not accessed until that is gone.
        let buffers = unsafe { ForeignBuffers::new(&regions, start, 1024) }.unwrap();
        let at = start.as_ptr().addr();
        let data = buffers.data(at + 512, 512).unwrap();
        regions.resolve(data, 512).unwrap().zero();
        assert!(buffers.data(at + 513, 512).is_none() && buffers.data(at - 1, 1).is_none());
        assert!(buffers.data(usize::MAX, 2).is_none() && buffers.data(at, usize::MAX).is_none());
        drop(buffers);
        assert!(regions.resolve(data, 512).is_err());
        assert_eq!((memory[511], memory[512], memory[1023]), (7, 0, 0));
    }
}
