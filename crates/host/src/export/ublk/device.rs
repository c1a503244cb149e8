// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `/dev/ublkcN`: descriptors and data of requests.
//!
//! Guarantees: a descriptor is copied once and used only as that copy. Data is copied between the kernel's request and the memory of a
//! region.

use super::wire::{self, Desc};
use crate::error::{Error, Result};
use crate::mem::Span;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

/// Longest time that udev may take to make the device file.
const PATIENCE: Duration = Duration::from_secs(5);

/// An open device.
pub(super) struct Device {
    file: File,
}

impl Device {
    /// Opens the device of this number, which was just added.
    ///
    /// # Errors
    /// The device file does not exist after some seconds, or another process has it open.
    pub(super) fn open(id: u32) -> Result<Device> {
        let path = format!("/dev/ublkc{id}");
        let since = Instant::now();
        loop {
            match OpenOptions::new().read(true).write(true).open(&path) {
                Ok(file) => return Ok(Device { file }),
                Err(e)
                    if since.elapsed() < PATIENCE && matches!(e.raw_os_error(), Some(libc::ENOENT | libc::EBUSY)) =>
                {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(e) => return Err(Error::os(e, format!("'{path}' cannot be opened"))),
            }
        }
    }

    pub(super) fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Copies the data of a write into `to`.
    pub(super) fn read(&self, queue: u16, tag: u16, to: Span<'_>) -> io::Result<()> {
        // SAFETY: the descriptor is open, and the span is part of a region, to which no reference exists.
        self.copy(queue, tag, to, |at, len, offset| unsafe { libc::pread(self.fd(), at, len, offset) })
    }

    /// Copies the data of a read from `from` to the kernel.
    pub(super) fn write(&self, queue: u16, tag: u16, from: Span<'_>) -> io::Result<()> {
        // SAFETY: as in `read`.
        self.copy(queue, tag, from, |at, len, offset| unsafe { libc::pwrite(self.fd(), at, len, offset) })
    }

    fn copy(
        &self,
        queue: u16,
        tag: u16,
        span: Span<'_>,
        call: impl Fn(*mut libc::c_void, usize, i64) -> isize,
    ) -> io::Result<()> {
        let mut done = 0;
        while done < span.len() {
            let part = span.part(done, span.len() - done);
            match call(part.as_ptr().cast(), part.len(), wire::data_offset(queue, tag) + done as i64) {
                n if n > 0 => done += n as usize,
                0 => return Err(io::Error::from_raw_os_error(libc::EIO)),
                _ => match io::Error::last_os_error() {
                    e if e.kind() == io::ErrorKind::Interrupted => {}
                    e => return Err(e),
                },
            }
        }
        Ok(())
    }
}

/// The descriptors of one queue, which the kernel writes.
pub(super) struct Descs {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: this value owns the address range, and only copies of its content are read.
unsafe impl Send for Descs {}

impl Descs {
    pub(super) fn map(device: &Device, queue: u16, depth: u16) -> Result<Descs> {
        let len = wire::descs_bytes(depth);
        let offset = wire::descs_offset(queue) as libc::off_t;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                device.fd(),
                offset,
            )
        };
        match NonNull::new(base.cast::<u8>()).filter(|p| p.as_ptr().cast() != libc::MAP_FAILED) {
            Some(base) => Ok(Descs { base, len }),
            None => Err(Error::last_os(format!("cannot map the requests of queue {queue}"))),
        }
    }

    /// Returns the request that the kernel has handed over under this tag.
    #[inline]
    pub(super) fn read(&self, tag: u16) -> Desc {
        let at = wire::desc_at(tag);
        assert!(at + 24 <= self.len, "tag {tag} beyond the queue");
        let word = |i: usize| {
            // SAFETY: inside the mapping and aligned. The kernel wrote it before it handed the tag over, and will not write
            // it again before it gets the tag back.
            unsafe { self.base.as_ptr().add(at + 4 * i).cast::<u32>().read_volatile() }
        };
        Desc { op_flags: word(0), nr_sectors: word(1), sector: u64::from(word(2)) | u64::from(word(3)) << 32 }
    }
}

impl Drop for Descs {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nothing refers to it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
