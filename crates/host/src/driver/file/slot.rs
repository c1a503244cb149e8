// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of one request in an engine (a ring or a pool of threads): its remaining work, and the meaning of the kernel's answer. This
//! module makes no system calls; it decides about short transfers, retries and fallbacks, the same for all engines.

use blk::driver::InFlight;
use blk::id::{SECTOR_SHIFT, Sector};
use blk::status::BlkStatus;
use libc::iovec;

/// Maximum number of retries of an I/O after EAGAIN or EINTR before the error is reported.
const MAX_RETRIES: u8 = 8;
/// Maximum number of bytes of one write of zeroes, for ranges that cannot be zeroed in another way.
pub(super) const ZERO_CHUNK: usize = 1 << 20;

/// The next step of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Read,
    Write {
        fua: bool,
    },
    Flush,
    PunchHole,
    /// Zero the range by punching a hole; if that is refused and `slow` is set, the request continues with `ZeroRange`.
    ZeroHole {
        slow: bool,
    },
    /// Zero the range without freeing its space; if that is refused and `slow` is set, the request continues with `WriteZeroBuffer`.
    ZeroRange {
        slow: bool,
    },
    /// Write zeroes from a buffer, one chunk at a time.
    WriteZeroBuffer,
}

/// Where the data of a read or write is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Memory {
    None,
    /// One piece, and its registered buffer if it is in one.
    One {
        addr: *mut u8,
        registered: Option<u16>,
    },
    /// Several pieces: a list that stays in place until the request is done.
    Vector {
        list: *mut iovec,
        count: u32,
    },
}

/// What to do after an answer of the kernel.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done(BlkStatus),
    /// There is more to do: queue the slot's entry again.
    Again,
}

/// What an engine passes to the kernel next for a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub(super) step: Step,
    /// Remaining work: byte offset and (`left`) length in the file.
    pub(super) offset: u64,
    pub(super) left: u64,
    pub(super) memory: Memory,
}

/// A request in an engine, or room for one.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) rq: Option<InFlight>,
    pub(super) op: Operation,
    retries: u8,
}

impl Slot {
    pub(super) fn empty() -> Slot {
        let op = Operation { step: Step::Flush, offset: 0, left: 0, memory: Memory::None };
        Slot { rq: None, op, retries: 0 }
    }

    /// Prepares the slot for a new request.
    pub(super) fn begin(&mut self, rq: InFlight, op: Operation) {
        *self = Slot { rq: Some(rq), op, retries: 0 };
    }

    /// Returns the first sector in the file and the number of sectors of a read that has just begun. A read that ends within a sector
    /// leaves that sector to the next one.
    #[inline]
    pub(super) fn read_range(&self) -> Option<(Sector, u32)> {
        let (start, end) = (self.op.offset >> SECTOR_SHIFT, (self.op.offset + self.op.left) >> SECTOR_SHIFT);
        (self.op.step == Step::Read).then_some((Sector(start), (end - start) as u32))
    }

    /// Handles the kernel's answer (bytes, or a negative errno) to the last entry.
    pub(super) fn answer(&mut self, result: i32) -> Outcome {
        if result < 0 {
            return self.failed(-result);
        }
        match self.op.step {
            Step::Flush | Step::PunchHole | Step::ZeroHole { .. } | Step::ZeroRange { .. } => {
                Outcome::Done(BlkStatus::Ok)
            }
            Step::Read | Step::Write { .. } | Step::WriteZeroBuffer => self.transferred(result as u64),
        }
    }

    fn failed(&mut self, errno: i32) -> Outcome {
        match errno {
            // A failed flush ends here with any errno, because the kernel reports the failure only once.
            _ if self.op.step == Step::Flush => Outcome::Done(flush_status(errno)),
            libc::EAGAIN | libc::EINTR if self.retries < MAX_RETRIES => {
                self.retries += 1;
                Outcome::Again
            }
            libc::EOPNOTSUPP | libc::EINVAL => self.refused(errno),
            libc::EDQUOT | libc::EFBIG => Outcome::Done(BlkStatus::NoSpc),
            _ => Outcome::Done(status_of(errno)),
        }
    }

    /// Handles an errno that means that the file does not support the operation.
    fn refused(&mut self, errno: i32) -> Outcome {
        self.op.step = match self.op.step {
            Step::ZeroHole { slow: true } => Step::ZeroRange { slow: true },
            Step::ZeroRange { slow: true } => Step::WriteZeroBuffer,
            Step::ZeroHole { slow: false } | Step::ZeroRange { slow: false } => {
                return Outcome::Done(BlkStatus::NotSupp);
            }
            _ => return Outcome::Done(status_of(errno)),
        };
        Outcome::Again
    }

    fn transferred(&mut self, bytes: u64) -> Outcome {
        if bytes == self.op.left {
            return Outcome::Done(BlkStatus::Ok);
        }
        // No byte was transferred: the file ends before its capacity, because it was truncated.
        if bytes == 0 || bytes > self.op.left {
            return Outcome::Done(BlkStatus::IoErr);
        }
        self.op.offset += bytes;
        self.op.left -= bytes;
        self.op.memory = self.op.memory.behind(bytes as usize);
        self.retries = 0;
        Outcome::Again
    }
}

impl Memory {
    /// Returns what is left after the first `bytes`.
    fn behind(self, mut bytes: usize) -> Memory {
        match self {
            Memory::None => Memory::None,
            Memory::One { addr, registered } => Memory::One { addr: addr.wrapping_add(bytes), registered },
            Memory::Vector { mut list, mut count } => {
                while bytes > 0 {
                    assert!(count > 0, "more bytes transferred than asked for");
                    // SAFETY: `list` points to `count` >= 1 entries that the engine keeps until the request is done.
                    let first = unsafe { &mut *list };
                    if bytes < first.iov_len {
                        first.iov_base = first.iov_base.wrapping_byte_add(bytes);
                        first.iov_len -= bytes;
                        break;
                    }
                    bytes -= first.iov_len;
                    list = list.wrapping_add(1);
                    count -= 1;
                }
                Memory::Vector { list, count }
            }
        }
    }
}

/// Returns the status of a flush that the file has failed. None of these means that another path may work.
fn flush_status(errno: i32) -> BlkStatus {
    match errno {
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => BlkStatus::NoSpc,
        libc::EOPNOTSUPP | libc::EINVAL => BlkStatus::NotSupp,
        _ => BlkStatus::Target,
    }
}

/// Returns the status for an errno. Memory that has gone is a target error, because no other path would restore it.
fn status_of(errno: i32) -> BlkStatus {
    if errno == libc::EFAULT { BlkStatus::Target } else { BlkStatus::from_errno(errno) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(step: Step, len: u64) -> Slot {
        let memory = Memory::One { addr: std::ptr::without_provenance_mut(4096), registered: None };
        Slot { op: Operation { step, offset: 0, left: len, memory }, ..Slot::empty() }
    }

    #[test]
    fn a_short_transfer_goes_on_where_it_stopped() {
        let mut s = slot(Step::Read, 8192);
        assert_eq!(s.answer(512), Outcome::Again);
        assert_eq!((s.op.offset, s.op.left), (512, 7680));
        assert!(matches!(s.op.memory, Memory::One { addr, .. } if addr.addr() == 4608));
        assert_eq!(s.answer(7680), Outcome::Done(BlkStatus::Ok));
    }

    #[test]
    fn the_end_of_the_file_inside_its_capacity_is_an_io_error() {
        assert_eq!(slot(Step::Read, 8192).answer(0), Outcome::Done(BlkStatus::IoErr));
        assert_eq!(slot(Step::Write { fua: false }, 512).answer(0), Outcome::Done(BlkStatus::IoErr));
    }

    #[test]
    fn a_short_vector_keeps_its_unread_pieces() {
        let piece = |addr: usize, iov_len| iovec { iov_base: std::ptr::without_provenance_mut(addr), iov_len };
        let mut list = [piece(4096, 512), piece(8192, 1024), piece(16384, 512)];
        let mut s = slot(Step::Read, 2048);
        s.op.memory = Memory::Vector { list: list.as_mut_ptr(), count: 3 };
        assert_eq!(s.answer(512 + 512), Outcome::Again);
        let Memory::Vector { list: rest, count } = s.op.memory else { panic!("still a vector") };
        assert_eq!(count, 2);
        // SAFETY: `rest` points into `list`, which lives.
        let first = unsafe { &*rest };
        assert_eq!((first.iov_base.addr(), first.iov_len), (8192 + 512, 512));
    }

    #[test]
    fn zero_range_falls_back_to_writing_zeroes_in_chunks() {
        for step in [Step::ZeroHole { slow: false }, Step::ZeroRange { slow: false }] {
            assert_eq!(slot(step, 512).answer(-libc::EOPNOTSUPP), Outcome::Done(BlkStatus::NotSupp));
        }
        let mut s = slot(Step::ZeroHole { slow: true }, ZERO_CHUNK as u64 + 512);
        assert_eq!(s.answer(-libc::EOPNOTSUPP), Outcome::Again);
        assert_eq!(s.op.step, Step::ZeroRange { slow: true });
        assert_eq!(s.answer(-libc::EOPNOTSUPP), Outcome::Again);
        assert_eq!(s.op.step, Step::WriteZeroBuffer);
        assert_eq!(s.answer(ZERO_CHUNK as i32), Outcome::Again);
        assert_eq!((s.op.offset, s.op.left), (ZERO_CHUNK as u64, 512));
        assert_eq!(s.answer(512), Outcome::Done(BlkStatus::Ok));
    }

    #[test]
    fn errors_keep_their_meaning_and_retries_are_bounded() {
        let of = |errno: i32| slot(Step::Write { fua: true }, 512).answer(-errno);
        assert_eq!(of(libc::ENOSPC), Outcome::Done(BlkStatus::NoSpc));
        assert_eq!(of(libc::EDQUOT), Outcome::Done(BlkStatus::NoSpc));
        assert_eq!(of(libc::EIO), Outcome::Done(BlkStatus::IoErr));
        assert_eq!(of(libc::EINVAL), Outcome::Done(BlkStatus::Inval));
        // The page cache keeps the errno of the device or server below, such as a path's or a server's.
        for errno in [libc::EIO, libc::ETIMEDOUT, libc::ENOLINK, libc::ENOMEM, libc::ENODEV, libc::EAGAIN, libc::EINTR]
        {
            assert_eq!(slot(Step::Flush, 0).answer(-errno), Outcome::Done(BlkStatus::Target), "{errno}");
        }
        assert_eq!(slot(Step::Flush, 0).answer(-libc::ENOSPC), Outcome::Done(BlkStatus::NoSpc));
        assert_eq!(slot(Step::Flush, 0).answer(-libc::EINVAL), Outcome::Done(BlkStatus::NotSupp));
        assert!(!status_of(libc::EFAULT).is_path_error());
        assert_eq!(slot(Step::PunchHole, 512).answer(-libc::EOPNOTSUPP), Outcome::Done(BlkStatus::NotSupp));
        let mut s = slot(Step::Read, 512);
        for _ in 0..MAX_RETRIES {
            assert_eq!(s.answer(-libc::EAGAIN), Outcome::Again);
        }
        assert_eq!(s.answer(-libc::EAGAIN), Outcome::Done(BlkStatus::Again));
    }
}
