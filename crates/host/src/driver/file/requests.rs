// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The requests of one hctx in an engine, by tag: what a request becomes, where its data is, and how its result ends it.
//!
//! An engine (`ring`, `pool`) passes each [`Operation`] to the kernel and returns its result here, so requests are treated the same in all
//! engines.
//!
//! Guarantees: everything an operation points to outlives the request. Data is in regions, which the engine keeps; lists of pieces are kept
//! here. Needs from callers: a lock around all calls; a region is resolved only through the table that is passed here.

use super::open::Opened;
use super::slot::{Memory, Operation, Outcome, Slot, Step};
use crate::mem::Regions;
use blk::bio::{Op, OpFlags};
use blk::driver::readahead::{Range, ReadAhead};
use blk::driver::{Completions, InFlight, RqRef};
use blk::id::SECTOR_SIZE;
use blk::status::BlkStatus;
use libc::iovec;
use std::collections::VecDeque;
use std::mem::MaybeUninit;

/// Maximum number of pieces of one request: the driver's `max_segments`.
pub(super) const MAX_PIECES: usize = 128;

/// See the module's text.
pub(super) struct Requests {
    /// By tag.
    slots: Box<[Slot]>,
    /// [`MAX_PIECES`] per tag; only the entries of a list in use are ever written.
    pieces: Box<[MaybeUninit<iovec>]>,
    /// Requests that failed before they reached the kernel.
    failed: VecDeque<(InFlight, BlkStatus)>,
    /// Requests that were begun and have not ended.
    in_flight: u32,
    /// In sectors of the file.
    read_ahead: ReadAhead,
}

// SAFETY: the raw pointers in slots and pieces are addresses for the kernel. The memory outlives their use, on any thread (see the module's
// text). This process dereferences them only in `Memory::behind`, under the lock.
unsafe impl Send for Requests {}

impl Requests {
    /// Makes room for requests with tags below `depth`.
    pub(super) fn new(depth: u32, file: &Opened) -> Requests {
        Requests {
            slots: (0..depth).map(|_| Slot::empty()).collect(),
            pieces: Box::new_uninit_slice(depth as usize * MAX_PIECES),
            failed: VecDeque::with_capacity(depth as usize),
            in_flight: 0,
            read_ahead: ReadAhead::new(file.read_ahead_kb, file.end()),
        }
    }

    /// Begins a request, and returns whether it has an operation for the kernel now; otherwise it has failed and is taken by
    /// [`Requests::take_failed`]. `buffer` returns the registered buffer for a region's number, if the engine has one.
    #[inline]
    pub(super) fn begin(
        &mut self,
        (file, regions): (&Opened, &Regions),
        rq: &RqRef<'_>,
        tag: InFlight,
        buffer: impl FnOnce(u16) -> Option<u16>,
    ) -> bool {
        let index = tag.tag().index();
        match self.operation((file, regions), rq, index, buffer) {
            Ok(op) => {
                self.slots[index].begin(tag, op);
                self.in_flight += 1;
                true
            }
            Err(status) => {
                self.failed.push_back((tag, status));
                false
            }
        }
    }

    #[inline]
    fn operation(
        &mut self,
        (file, regions): (&Opened, &Regions),
        rq: &RqRef<'_>,
        index: usize,
        buffer: impl FnOnce(u16) -> Option<u16>,
    ) -> Result<Operation, BlkStatus> {
        let step = match rq.op() {
            Op::Read => Step::Read,
            Op::Write => Step::Write { fua: rq.flags().contains(OpFlags::FUA) },
            Op::Flush => Step::Flush,
            Op::Discard => Step::PunchHole,
            Op::WriteZeroes => zeroes(rq.flags(), file).ok_or(BlkStatus::NotSupp)?,
        };
        let range = rq.bytes();
        let beyond = range.end.saturating_sub(file.bytes());
        // The request was accepted before the file was shrunk; a write would extend the file again.
        if beyond >= u64::from(SECTOR_SIZE) {
            return Err(BlkStatus::IoErr);
        }
        let memory = self.gather(regions, rq, index, beyond as usize, buffer)?;
        let left = (range.end - range.start).saturating_sub(beyond);
        Ok(Operation { step, offset: file.part.offset + range.start, left, memory })
    }

    /// Returns where a request's data is; adjacent pieces are merged. The last `beyond` bytes, less than a sector, lie behind the end of the
    /// disk: they are left out, and those of a read are zeroed.
    fn gather(
        &mut self,
        regions: &Regions,
        rq: &RqRef<'_>,
        index: usize,
        beyond: usize,
        buffer: impl FnOnce(u16) -> Option<u16>,
    ) -> Result<Memory, BlkStatus> {
        let mut segments = rq.segments();
        let Some(first) = segments.next() else { return Ok(Memory::None) };
        let mut span = regions.resolve(first.data, first.len_bytes as usize)?;
        let number = first.data.region();
        let mut piece = iovec { iov_base: span.as_ptr().cast(), iov_len: span.len() };
        let list = &mut self.pieces[index * MAX_PIECES..][..MAX_PIECES];
        let (mut count, mut last) = (0, number);
        for segment in segments {
            span = regions.resolve(segment.data, segment.len_bytes as usize)?;
            let adjoins = piece.iov_base.wrapping_byte_add(piece.iov_len) == span.as_ptr().cast();
            if adjoins && segment.data.region() == last {
                piece.iov_len += span.len();
                continue;
            }
            last = segment.data.region();
            list[count].write(piece);
            count += 1;
            piece = iovec { iov_base: span.as_ptr().cast(), iov_len: span.len() };
        }
        if beyond > 0 {
            piece.iov_len -= beyond;
            if rq.op() == Op::Read {
                span.part(span.len() - beyond, beyond).zero();
            }
        }
        if count > 0 {
            list[count].write(piece);
            return Ok(Memory::Vector { list: list.as_mut_ptr().cast(), count: count as u32 + 1 });
        }
        Ok(Memory::One { addr: piece.iov_base.cast(), registered: buffer(number) })
    }

    /// Returns what the kernel is to do next for a request in flight.
    #[inline]
    pub(super) fn next(&self, index: usize) -> &Operation {
        &self.slots[index].op
    }

    /// Returns what to read ahead, after a read has begun.
    #[inline]
    pub(super) fn read_ahead(&mut self, index: usize) -> Option<Range> {
        let (sector, nr_sectors) = self.slots[index].read_range()?;
        self.read_ahead.read(sector, nr_sectors)
    }

    /// Takes the kernel's result (bytes, or a negative errno) of a request's operation. Returns whether the request has another one.
    /// Otherwise it has ended, and is in `done`, which has room for it.
    #[inline(always)] // Once per completion, from one place of each engine.
    pub(super) fn complete(&mut self, index: usize, result: i32, done: &mut Completions) -> bool {
        let slot = &mut self.slots[index];
        assert!(slot.rq.is_some(), "completion for tag {index}, which is not in flight");
        let Outcome::Done(status) = slot.answer(result) else { return true };
        let rq = slot.rq.take().expect("checked above");
        self.in_flight -= 1;
        done.push(rq, status);
        false
    }

    /// Moves requests that never reached the kernel to `done`, as far as there is room.
    #[inline]
    pub(super) fn take_failed(&mut self, done: &mut Completions) {
        while done.room() > 0
            && let Some((rq, status)) = self.failed.pop_front()
        {
            done.push(rq, status);
        }
    }

    /// Whether [`Requests::take_failed`] has something to take.
    pub(super) fn have_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Returns the number of requests that the kernel has, or will get.
    #[inline]
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Leaks what the kernel may still read, because its requests cannot be waited for.
    pub(super) fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.pieces));
    }
}

/// Returns how zeroes are written; `None` if that would not be cheap.
fn zeroes(flags: OpFlags, file: &Opened) -> Option<Step> {
    let slow = !flags.contains(OpFlags::NOFALLBACK);
    match flags.contains(OpFlags::NOUNMAP) {
        // For a device without a write-zeroes command, the kernel writes the zeroes itself.
        true if !slow && !file.zeroes_are_cheap => None,
        true => Some(Step::ZeroRange { slow }),
        false => Some(Step::ZeroHole { slow }),
    }
}
