// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Submission entries of a ring: what an [`Operation`] is for io_uring.
//!
//! `syscalls` has the same operations as system calls; both must mean the same to the kernel.

use super::slot::{Memory, Operation, Step, ZERO_CHUNK};
use blk::driver::readahead::Range;
use blk::id::SECTOR_SHIFT;
use io_uring::{opcode, squeue, types};

/// The file, registered as number 0 of every ring.
const FILE: types::Fixed = types::Fixed(0);

/// Returns an entry that makes the kernel read a range of a buffered file into the page cache, without a completion on success (Linux
/// 5.17; earlier kernels refuse the entry, so nothing is read ahead).
pub(super) fn read_ahead_entry(range: Range) -> squeue::Entry {
    let len = i64::from(range.nr_sectors) << SECTOR_SHIFT;
    opcode::Fadvise::new(FILE, len, libc::POSIX_FADV_WILLNEED)
        .offset(range.sector.0 << SECTOR_SHIFT)
        .build()
        .flags(squeue::Flags::SKIP_SUCCESS)
}

impl Operation {
    /// Returns the submission entry for the remaining work. `zeroes` is a buffer of [`ZERO_CHUNK`] zero bytes.
    pub(super) fn entry(&self, zeroes: *const u8) -> squeue::Entry {
        let (offset, len) = (self.offset, self.left as u32);
        match self.step {
            Step::Read => match self.memory {
                Memory::One { addr, registered: Some(buffer) } => {
                    opcode::ReadFixed::new(FILE, addr, len, buffer).offset(offset).build()
                }
                Memory::One { addr, registered: None } => opcode::Read::new(FILE, addr, len).offset(offset).build(),
                Memory::Vector { list, count } => opcode::Readv::new(FILE, list, count).offset(offset).build(),
                Memory::None => unreachable!("read without data"),
            },
            Step::Write { fua } => {
                let rw_flags = if fua { libc::RWF_DSYNC } else { 0 };
                match self.memory {
                    Memory::One { addr, registered: Some(buffer) } => {
                        opcode::WriteFixed::new(FILE, addr, len, buffer).offset(offset).rw_flags(rw_flags).build()
                    }
                    Memory::One { addr, registered: None } => {
                        opcode::Write::new(FILE, addr, len).offset(offset).rw_flags(rw_flags).build()
                    }
                    Memory::Vector { list, count } => {
                        opcode::Writev::new(FILE, list, count).offset(offset).rw_flags(rw_flags).build()
                    }
                    Memory::None => unreachable!("write without data"),
                }
            }
            Step::Flush => opcode::Fsync::new(FILE).flags(types::FsyncFlags::DATASYNC).build(),
            Step::PunchHole | Step::ZeroHole { .. } => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                opcode::Fallocate::new(FILE, self.left).offset(offset).mode(mode).build()
            }
            Step::ZeroRange { .. } => {
                let mode = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
                opcode::Fallocate::new(FILE, self.left).offset(offset).mode(mode).build()
            }
            Step::WriteZeroBuffer => {
                let len = self.left.min(ZERO_CHUNK as u64) as u32;
                opcode::Write::new(FILE, zeroes, len).offset(offset).build()
            }
        }
    }
}
