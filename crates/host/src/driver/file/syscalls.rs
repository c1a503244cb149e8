// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operations of requests as system calls that block: what an [`Operation`] is without io_uring.
//!
//! `sqe` has the same operations for io_uring; both must mean the same to the kernel. Results have io_uring's form: bytes, or a negative
//! errno.
//!
//! Source: preadv2(2), fdatasync(2), fallocate(2), posix_fadvise(2).

use super::slot::{Memory, Operation, Step, ZERO_CHUNK};
use blk::driver::readahead::Range;
use blk::id::SECTOR_SHIFT;
use libc::{c_int, iovec, off_t};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

impl Operation {
    /// Does the remaining work, or a part of it. `zeroes` is a buffer of [`ZERO_CHUNK`] zero bytes.
    ///
    /// # Safety
    /// Until the call returns, `memory` and `zeroes` stay valid, and no other thread changes the list of pieces.
    pub(super) unsafe fn run(&self, file: BorrowedFd<'_>, zeroes: *const u8) -> i32 {
        let (fd, offset) = (file.as_raw_fd(), self.offset as off_t);
        match self.step {
            Step::Read => {
                let (first, list, count) = self.list();
                let list = if list.is_null() { &raw const first } else { list };
                // SAFETY: the list has `count` entries, and the caller keeps the list and the memory that the entries refer to.
                result(unsafe { libc::preadv2(fd, list, count, offset, 0) })
            }
            Step::Write { fua } => {
                let (first, list, count) = self.list();
                let list = if list.is_null() { &raw const first } else { list };
                let flags = if fua { libc::RWF_DSYNC } else { 0 };
                // SAFETY: as for a read.
                result(unsafe { libc::pwritev2(fd, list, count, offset, flags) })
            }
            // SAFETY: no memory is involved.
            Step::Flush => result(unsafe { libc::fdatasync(fd) } as isize),
            Step::PunchHole | Step::ZeroHole { .. } => self.fallocate(fd, libc::FALLOC_FL_PUNCH_HOLE),
            Step::ZeroRange { .. } => self.fallocate(fd, libc::FALLOC_FL_ZERO_RANGE),
            Step::WriteZeroBuffer => {
                let list = piece(zeroes, self.left.min(ZERO_CHUNK as u64));
                // SAFETY: `zeroes` has that many bytes, and the caller keeps it.
                result(unsafe { libc::pwritev2(fd, &raw const list, 1, offset, 0) })
            }
        }
    }

    /// Returns the only piece of the data, or a list of several; the list is null if there is one piece. Also returns how many.
    fn list(&self) -> (iovec, *const iovec, c_int) {
        match self.memory {
            Memory::One { addr, .. } => (piece(addr, self.left), std::ptr::null(), 1),
            Memory::Vector { list, count } => (piece(std::ptr::null(), 0), list, count as c_int),
            Memory::None => unreachable!("read or write without data"),
        }
    }

    fn fallocate(&self, fd: c_int, mode: c_int) -> i32 {
        // SAFETY: no memory is involved.
        let done =
            unsafe { libc::fallocate(fd, mode | libc::FALLOC_FL_KEEP_SIZE, self.offset as off_t, self.left as off_t) };
        result(done as isize)
    }
}

/// Has the kernel read a range of a buffered file into the page cache. A failure only means that nothing is read ahead.
pub(super) fn read_ahead(file: BorrowedFd<'_>, range: Range) {
    let (offset, len) = (range.sector.0 << SECTOR_SHIFT, i64::from(range.nr_sectors) << SECTOR_SHIFT);
    // SAFETY: no memory is involved.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), offset as off_t, len, libc::POSIX_FADV_WILLNEED) };
}

fn piece(addr: *const u8, len: u64) -> iovec {
    iovec { iov_base: addr.cast_mut().cast(), iov_len: len as usize }
}

/// Returns what a system call has returned in io_uring's form.
fn result(returned: isize) -> i32 {
    if returned >= 0 { returned as i32 } else { -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) }
}
