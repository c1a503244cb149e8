// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The steps of an I/O that is not whole blocks, or that may share its blocks with no other write.
//!
//! An I/O is done piece by piece, at most a buffer each:
//!
//! ```text
//! read           whole blocks into the buffer; copy the part
//! write          lock the blocks; wait for writes that are inside; read the first and the last block;
//!                copy the data over them; write the blocks; unlock
//! write zeroes   the first and the last block as a write; the whole blocks between as they are
//! ```
//!
//! Guarantees: bytes outside the I/O are written only with what was read under the lock, so no neighbour's byte changes. A
//! write that has ended is below, with the flags of its I/O. An I/O holds the lock of one piece at a time, takes its buffer
//! before the lock, and so waits for no other lock while it has one.

use super::BUFFER_BYTES;
use super::locks::TicketId;
use crate::bio::{Bio, DataRef, IoPrio, Margins, Op, OpFlags};
use crate::id::{SECTOR_SHIFT, Sector};
use crate::status::BlkStatus;
use std::ops::Range;

/// An I/O in bytes.
#[derive(Clone, Copy, Debug)]
pub struct ByteIo {
    /// The operation; not [`Op::Flush`].
    pub op: Op,
    /// Modifiers of the operation.
    pub flags: OpFlags,
    /// First byte.
    pub offset: u64,
    /// Length in bytes, at least 1.
    pub bytes: u64,
    /// The data, `bytes` contiguous bytes, for operations that carry some.
    pub data: DataRef,
    /// Returned when the I/O completes.
    pub user_data: u64,
    /// No other write to its blocks may be inside at the same time.
    pub exclusive: bool,
}

impl ByteIo {
    /// Makes an I/O without modifiers.
    pub const fn new(op: Op, offset: u64, bytes: u64, data: DataRef) -> ByteIo {
        ByteIo { op, flags: OpFlags::NONE, offset, bytes, data, user_data: 0, exclusive: false }
    }

    /// Returns it as a bio, if it is whole blocks of `block` bytes and short enough.
    #[inline]
    pub(super) fn whole(&self, block: u64) -> Option<Bio> {
        let is_whole = (self.offset | self.bytes) & (block - 1) == 0 && self.bytes <= MAX_BYTES;
        (is_whole && !self.exclusive).then(|| self.bio(self.offset..self.offset + self.bytes, self.data))
    }

    pub(super) fn bio(&self, range: Range<u64>, data: DataRef) -> Bio {
        Bio {
            op: self.op,
            flags: self.flags,
            prio: IoPrio::default(),
            sector: Sector(range.start >> SECTOR_SHIFT),
            nr_sectors: ((range.end - range.start) >> SECTOR_SHIFT) as u32,
            margins: Margins::NONE,
            data,
            user_data: self.user_data,
        }
    }
}

/// Maximum number of bytes of one bio; a bio counts sectors in 32 bits.
const MAX_BYTES: u64 = 2 << 30;

/// What an I/O does or waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Its next piece is chosen, or it ends.
    Next,
    /// It waits for a buffer.
    Buffer,
    /// It waits for the lock of its blocks.
    Lock,
    /// It has the lock and waits for writes that were inside before.
    Clear,
    /// The blocks are read: those of a read, or the first and the last of a write.
    Load,
    /// The blocks are written.
    Store,
    /// Whole blocks go past the buffer.
    Pass,
}

/// See the module's text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Partial {
    /// What is left of it.
    pub(super) io: ByteIo,
    pub(super) step: Step,
    /// Bytes of the present piece.
    pub(super) piece: u64,
    pub(super) buffer: Option<(u32, DataRef)>,
    /// The ticket of the piece's lock, from the first attempt to lock its blocks.
    pub(super) lock: Option<TicketId>,
    /// Bios in flight.
    pub(super) bios: u32,
    pub(super) status: BlkStatus,
}

impl Partial {
    pub(super) fn new(io: ByteIo) -> Partial {
        Partial { io, step: Step::Next, piece: 0, buffer: None, lock: None, bios: 0, status: BlkStatus::Ok }
    }

    /// Chooses the next piece, and returns what it begins with; `None` if the I/O ends.
    pub(super) fn choose(&mut self, block: u64) -> Option<Step> {
        let ByteIo { op, offset, bytes: left, exclusive, .. } = self.io;
        if left == 0 || !self.status.is_ok() {
            return None;
        }
        let (start, end) = (offset / block * block, offset + left);
        let is_whole = offset == start && left >= block;
        let (until, step) = match op {
            Op::WriteZeroes | Op::Discard if is_whole => ((end / block * block).min(offset + MAX_BYTES), Step::Pass),
            Op::WriteZeroes | Op::Discard => (start + block, Step::Buffer),
            _ if exclusive && is_whole && end.is_multiple_of(block) => (end.min(offset + MAX_BYTES), Step::Lock),
            _ => (start + BUFFER_BYTES, Step::Buffer),
        };
        self.piece = until.min(end) - offset;
        Some(step)
    }

    /// Returns the whole blocks that the piece touches, in bytes.
    pub(super) fn cover(&self, block: u64) -> Range<u64> {
        let ByteIo { offset, .. } = self.io;
        offset / block * block..(offset + self.piece).next_multiple_of(block)
    }

    /// Returns what has to be read before the write of the piece: the blocks that it changes in part.
    pub(super) fn loads(&self, block: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        let (cover, start) = (self.cover(block), self.io.offset);
        let end = start + self.piece;
        let first = cover.start..cover.start + block;
        let last = cover.end - block..cover.end;
        let is_first = start > first.start || end < first.end;
        let is_last = end < last.end && last.start > first.start;
        is_first.then_some(first).into_iter().chain(is_last.then_some(last))
    }

    /// The piece is done: the rest begins after it.
    pub(super) fn advance(&mut self) {
        let piece = std::mem::take(&mut self.piece);
        self.io.offset += piece;
        self.io.bytes -= piece;
        if self.io.op.has_data() && self.io.bytes > 0 {
            self.io.data = self.io.data.advance(piece);
        }
        self.step = Step::Next;
    }
}

/// Returns the byte range of `io` without the parts of blocks at its ends; `None` if nothing is left.
pub(super) fn inner(io: &ByteIo, block: u64) -> Option<ByteIo> {
    let start = io.offset.next_multiple_of(block);
    let end = (io.offset + io.bytes) / block * block;
    (start < end).then(|| ByteIo { offset: start, bytes: end - start, ..*io })
}
