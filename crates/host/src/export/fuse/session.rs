// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Decides what to do for a request, given the disk: reply, refuse, or I/O within the disk's bounds.
//!
//! Guarantees: no I/O is done here. The I/O that [`action`] returns lies inside the disk, has a length above 0, and writes nothing to a
//! read-only disk.
//!
//! Rules: a read that begins at or after the end of the disk returns 0 bytes; one that crosses the end is cut. A write that crosses the
//! end is cut, too; a write that begins at or after the end fails with ENOSPC, as on a block device. The size is the disk's and cannot be
//! changed (EPERM). Reads, writes, holes and zeroes may be any bytes, whatever the disk's block size is. FALLOCATE punches holes and writes
//! zeroes; its other modes fail with EOPNOTSUPP. LSEEK knows SEEK_DATA and SEEK_HOLE (others: EINVAL); an offset at or after the end of the disk fails with
//! ENXIO.

use super::wire::{self, Attr, Body, Header, InitIn, InitOut, MAX_DATA, Request, fattr, fopen, init};
use std::sync::atomic::{AtomicU32, Ordering};

const KIND: u32 = libc::S_IFREG;
const PERMISSIONS: u32 = 0o777;
const WRITABLE: u32 = 0o222;

/// The attributes of the file as clients see it.
#[derive(Debug)]
pub struct FileAttrs {
    /// Time of the mount, in seconds since 1970.
    pub time: u64,
    /// The file is read-only.
    pub read_only: bool,
    /// Punched holes release their space.
    pub discard: bool,
    /// Writes are stable when they complete.
    pub write_through: bool,
    pub(super) mode: AtomicU32,
    pub(super) uid: AtomicU32,
    pub(super) gid: AtomicU32,
}

impl FileAttrs {
    /// Makes the attributes of a file of this owner and these permissions.
    pub fn new(mode: u32, uid: u32, gid: u32, time: u64) -> FileAttrs {
        let (mode, uid, gid) = (AtomicU32::new(mode & PERMISSIONS), AtomicU32::new(uid), AtomicU32::new(gid));
        FileAttrs { time, read_only: false, discard: false, write_through: false, mode, uid, gid }
    }

    fn attr(&self, disk: Disk) -> Attr {
        // Relaxed: the three values are independent.
        let get = |value: &AtomicU32| value.load(Ordering::Relaxed);
        let mode = if self.read_only { get(&self.mode) & !WRITABLE } else { get(&self.mode) };
        let (uid, gid) = (get(&self.uid), get(&self.gid));
        // A file system may allocate more than a file's size, but programs that search for holes compare the two.
        let stored = disk.stored.map_or(disk.size, |bytes| bytes.min(disk.size));
        Attr { size: disk.size, stored, time: self.time, mode: KIND | mode, uid, gid, block: disk.block.max(4096) }
    }
}

/// The properties of a disk that requests are checked against. The size may change between requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Bytes.
    pub size: u64,
    /// Logical block, bytes; a power of two.
    pub block: u32,
    /// The disk supports write zeroes.
    pub zeroes: bool,
    /// Bytes that are stored, without holes; `None` if that is not known. Only used by requests that [`asks_for_attributes`] selects.
    pub stored: Option<u64>,
}

/// Returns whether the reply to a request contains the file's attributes.
#[inline]
pub fn asks_for_attributes(request: &Request) -> bool {
    matches!(request, Request::GetAttr | Request::SetAttr { .. })
}

/// What to do for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Answered at once.
    Reply(Body),
    /// Refused with this errno.
    Refuse(i32),
    /// No answer is expected.
    Silent,
    /// Read these bytes.
    Read {
        /// First byte.
        offset: u64,
        /// At most [`MAX_DATA`].
        bytes: u32,
    },
    /// Write the first `bytes` bytes of the request's data.
    Write {
        /// First byte.
        offset: u64,
        /// At most [`MAX_DATA`].
        bytes: u32,
        /// The write is stable when it completes.
        stable: bool,
        /// The write comes from the page cache: no other write to its blocks may be in flight.
        alone: bool,
    },
    /// Make all completed writes stable.
    Flush,
    /// Zero these bytes.
    Zero {
        /// First byte.
        offset: u64,
        /// Any number.
        bytes: u64,
        /// The blocks keep their space.
        keep: bool,
    },
    /// Find the next data or the next hole.
    Seek {
        /// From this byte on.
        offset: u64,
        /// A hole is wanted; else data.
        hole: bool,
    },
}

/// Returns what to do for a request.
#[inline]
pub fn action(header: &Header, request: &Request, attrs: &FileAttrs, disk: Disk) -> Action {
    if header.node != wire::ROOT && !matches!(request, Request::Silent | Request::StatFs | Request::Unknown) {
        // INIT and DESTROY name no inode.
        return match request {
            Request::Destroy => Action::Reply(Body::EMPTY),
            Request::Init(_) => Action::Refuse(libc::EPROTO),
            _ => Action::Refuse(libc::ESTALE),
        };
    }
    match *request {
        Request::Read { offset, size } => match u64::from(size).min(disk.size.saturating_sub(offset)) {
            0 => Action::Reply(Body::EMPTY),
            bytes => Action::Read { offset, bytes: bytes as u32 },
        },
        Request::Write { offset, size, write_flags, flags } => write(offset, size, write_flags, flags, attrs, disk),
        Request::Fallocate { offset, length, mode } => fallocate(offset, length, mode, attrs, disk),
        Request::Seek { offset, whence } => seek(offset, whence, disk),
        // A read-only file has nothing to flush, and a read-only disk may refuse a flush.
        Request::Fsync | Request::Flush if attrs.read_only => Action::Reply(Body::EMPTY),
        Request::Fsync | Request::Flush => Action::Flush,
        Request::GetAttr => Action::Reply(wire::attr_out(&attrs.attr(disk))),
        Request::SetAttr { valid, size, mode, uid, gid } => {
            if valid & fattr::SIZE != 0 && size != disk.size {
                return Action::Refuse(libc::EPERM);
            }
            let values = [
                (fattr::MODE, &attrs.mode, mode & PERMISSIONS),
                (fattr::UID, &attrs.uid, uid),
                (fattr::GID, &attrs.gid, gid),
            ];
            for (bit, value, to) in values {
                if valid & bit != 0 {
                    value.store(to, Ordering::Relaxed);
                }
            }
            Action::Reply(wire::attr_out(&attrs.attr(disk)))
        }
        Request::Open { flags } => open(flags, attrs),
        Request::StatFs => Action::Reply(wire::statfs_out(disk.size, disk.block.max(512))),
        Request::Release | Request::Access | Request::Destroy => Action::Reply(Body::EMPTY),
        Request::Silent => Action::Silent,
        Request::Init(_) => Action::Refuse(libc::EPROTO),
        Request::Unknown => Action::Refuse(libc::ENOSYS),
    }
}

fn open(flags: u32, attrs: &FileAttrs) -> Action {
    if attrs.read_only && flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32 {
        return Action::Refuse(libc::EROFS);
    }
    // With these flags direct I/O bypasses the page cache, and direct writes are not serialized.
    let direct = flags & libc::O_DIRECT as u32 != 0;
    Action::Reply(wire::open_out(if direct { fopen::DIRECT_IO | fopen::PARALLEL_DIRECT_WRITES } else { 0 }))
}

#[inline]
fn write(offset: u64, size: u32, write_flags: u32, flags: u32, attrs: &FileAttrs, disk: Disk) -> Action {
    if attrs.read_only {
        return Action::Refuse(libc::EROFS);
    }
    let bytes = u64::from(size).min(disk.size.saturating_sub(offset)) as u32;
    match bytes {
        0 if size > 0 => Action::Refuse(libc::ENOSPC),
        0 => Action::Reply(wire::write_out(0)),
        _ => Action::Write {
            offset,
            bytes,
            stable: attrs.write_through || flags & libc::O_DSYNC as u32 != 0,
            alone: write_flags & wire::WRITE_CACHE != 0,
        },
    }
}

fn fallocate(offset: u64, length: u64, mode: u32, attrs: &FileAttrs, disk: Disk) -> Action {
    const KEEP: u32 = libc::FALLOC_FL_KEEP_SIZE as u32;
    const PUNCH: u32 = libc::FALLOC_FL_PUNCH_HOLE as u32 | KEEP;
    const ZERO: u32 = libc::FALLOC_FL_ZERO_RANGE as u32;
    const ZERO_KEEP: u32 = ZERO | KEEP;
    if attrs.read_only {
        return Action::Refuse(libc::EROFS);
    }
    if !matches!(mode, PUNCH | ZERO | ZERO_KEEP) {
        return Action::Refuse(libc::EOPNOTSUPP);
    }
    let Some(end) = offset.checked_add(length).filter(|_| length > 0) else { return Action::Refuse(libc::EINVAL) };
    if mode == ZERO && end > disk.size {
        return Action::Refuse(libc::ENOSPC);
    }
    let end = end.min(disk.size);
    if offset >= end {
        // The range lies after the end of the file, and the size does not change.
        return Action::Reply(Body::EMPTY);
    }
    if !disk.zeroes {
        return Action::Refuse(libc::EOPNOTSUPP);
    }
    // This must not be a discard: a loop device implements write zeroes by this call, so the blocks must read as zeroes.
    Action::Zero { offset, bytes: end - offset, keep: mode != PUNCH || !attrs.discard }
}

fn seek(offset: u64, whence: u32, disk: Disk) -> Action {
    let hole = match whence as i32 {
        libc::SEEK_DATA => false,
        libc::SEEK_HOLE => true,
        // The kernel handles all others itself.
        _ => return Action::Refuse(libc::EINVAL),
    };
    if offset >= disk.size { Action::Refuse(libc::ENXIO) } else { Action::Seek { offset, hole } }
}

/// Returns the answer to an INIT of the kernel. `Ok(None)`: the kernel's major version is newer. The reply must name ours, and the kernel
/// then sends another INIT.
///
/// # Errors
/// The kernel is too old; the error holds its version.
pub fn init(offered: &InitIn, requests_out: usize) -> Result<Option<InitOut>, (u32, u32)> {
    match offered.major {
        major if major > wire::MAJOR => return Ok(None),
        wire::MAJOR if offered.minor >= wire::OLDEST_MINOR => {}
        major => return Err((major, offered.minor)),
    }
    let wanted = init::ASYNC_READ
        | init::BIG_WRITES
        | init::ASYNC_DIO
        | init::MAX_PAGES
        | init::INIT_EXT
        | init::DIRECT_IO_ALLOW_MMAP;
    Ok(Some(InitOut {
        minor: offered.minor.min(wire::NEWEST_MINOR),
        max_readahead: offered.max_readahead.min(MAX_DATA as u32),
        flags: offered.flags & wanted,
        max_background: requests_out.min(usize::from(u16::MAX)) as u16,
    }))
}
