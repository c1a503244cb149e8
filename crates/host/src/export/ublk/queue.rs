// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One hardware queue of a ublk device, on the IOThread that serves it.
//!
//! Guarantees: each request that the kernel hands over is answered once, be it with an error. The exception is a queue that is paused and
//! dropped: the kernel has its requests again. One system call sends a round's answers and waits for the next requests. Needs from
//! callers: [`Queue::fetch_all`] is called on the IOThread, once, and the queue stays there. The kernel takes commands for a tag only from
//! the thread that first waited for it.

use super::device::{Descs, Device};
use super::wire::{self, Rules, Work};
use crate::error::{Error, Result};
use crate::export::nbd::buffers::{Buffer, Buffers};
use crate::serve::{Port, ServedDisk, Source, SourceId, SourceLabel};
use blk::bio::{Bio, DataRef, Op};
use blk::id::Sector;
use blk::status::BlkStatus;
use blk::submitter::Done;
use blk::time::Instant;
use io_uring::{IoUring, opcode, types};
use rustix::event::epoll::EventFlags;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

/// A request in flight.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    bytes: u32,
    is_read: bool,
    /// A flush follows before the request is answered.
    flush: bool,
    buffer: Option<Buffer>,
}

/// See the module's text.
pub struct Queue {
    export: String,
    index: u16,
    // Declared, and so dropped, before the device: closing the ring cancels the commands that wait at the device.
    ring: IoUring,
    descs: Descs,
    device: Arc<Device>,
    buffers: Buffers,
    slots: Box<[Slot]>,
    /// Requests that wait for a buffer, oldest first.
    stalled: VecDeque<u16>,
    /// Answers of this round.
    answers: Vec<(u16, i32)>,
    /// Requests that lack only a flush.
    flushes: VecDeque<u16>,
    rules: Rules,
    bios: usize,
    paused: bool,
    /// A buffer was returned that a stalled request waits for, or a flush is due.
    look_again: bool,
    served: u64,
}

impl Queue {
    /// Queue `index` of the device, `depth` requests deep.
    ///
    /// # Errors
    /// No memory, or no io_uring.
    pub(super) fn new(
        export: &str,
        index: u16,
        depth: u16,
        device: &Arc<Device>,
        disk: &Arc<ServedDisk>,
        rules: Rules,
    ) -> Result<Queue> {
        let ring = IoUring::new(u32::from(depth).next_power_of_two())
            .map_err(|e| Error::os(e, format!("no io_uring for queue {index}")))?;
        Ok(Queue {
            export: export.to_owned(),
            index,
            ring,
            descs: Descs::map(device, index, depth)?,
            device: Arc::clone(device),
            buffers: Buffers::new(disk, usize::from(depth), None)?,
            slots: vec![Slot::default(); usize::from(depth)].into(),
            stalled: VecDeque::with_capacity(usize::from(depth)),
            answers: Vec::with_capacity(usize::from(depth)),
            flushes: VecDeque::with_capacity(usize::from(depth)),
            rules,
            bios: 0,
            paused: false,
            look_again: false,
            served: 0,
        })
    }

    /// Waits for requests of all tags.
    ///
    /// # Errors
    /// The kernel refuses the commands.
    pub(super) fn fetch_all(&mut self) -> Result<()> {
        for tag in 0..self.slots.len() as u16 {
            self.push(wire::FETCH_REQ, tag, 0);
        }
        let failed =
            |e| Error::os(e, format!("queue {} of a ublk device: cannot fetch requests from the kernel", self.index));
        self.ring.submit().map_err(failed)?;
        // There are no requests yet, so a command that has completed was refused.
        match self.ring.completion().next() {
            Some(end) => Err(failed(io::Error::from_raw_os_error(-end.result()))),
            None => Ok(()),
        }
    }

    fn push(&mut self, op: u32, tag: u16, result: i32) {
        let command = opcode::UringCmd16::new(types::Fd(self.device.fd()), op)
            .cmd(wire::io_cmd(self.index, tag, result))
            .build()
            .user_data(u64::from(tag));
        // SAFETY: the command names no memory of this process.
        unsafe { self.ring.submission().push(&command) }.expect("the ring has an entry per tag");
    }

    /// Name of its export.
    pub fn export(&self) -> &str {
        &self.export
    }

    /// Its number in the device.
    pub fn index(&self) -> u16 {
        self.index
    }

    fn begin(&mut self, tag: u16, id: SourceId, port: &mut Port, now: Instant) {
        let desc = self.descs.read(tag);
        let Work { op, flags, flush } = match desc.work(self.rules) {
            Ok(work) => work,
            Err(errno) => return self.answer(tag, -errno),
        };
        let mut slot = Slot { flush, ..Slot::default() };
        let mut data = DataRef::NONE;
        if op.has_data() {
            slot.bytes = desc.nr_sectors.saturating_mul(512);
            slot.is_read = op == Op::Read;
            if slot.bytes == 0 || slot.bytes > wire::MAX_IO_BYTES {
                return self.answer(tag, -libc::EINVAL);
            }
            let buffer = match self.buffers.take(tag, slot.bytes as usize) {
                Ok(Some(buffer)) => buffer,
                Ok(None) => return self.stalled.push_back(tag),
                Err(_) => return self.answer(tag, -libc::ENOMEM),
            };
            slot.buffer = Some(buffer);
            data = buffer.data;
            if op == Op::Write
                && let Err(e) = self.device.read(self.index, tag, self.buffers.span(buffer, 0, slot.bytes as usize))
            {
                self.give_back(buffer);
                return self.answer(tag, -e.raw_os_error().unwrap_or(libc::EIO));
            }
        }
        let bio = match op {
            Op::Flush => Bio::flush(),
            _ => Bio { op, flags, ..Bio::read(Sector(desc.sector), desc.nr_sectors, data) },
        };
        self.slots[usize::from(tag)] = slot;
        self.submit_bio(bio, tag, id, port, now);
    }

    fn submit_bio(&mut self, bio: Bio, tag: u16, id: SourceId, port: &mut Port, now: Instant) {
        self.bios += 1;
        port.submit(bio.with_user_data(id.tagged(u32::from(tag))), now);
    }

    /// Handles completion of a bio of the request under `tag`.
    pub(crate) fn bio_ended(&mut self, tag: u16, status: BlkStatus) {
        self.bios -= 1;
        let slot = &mut self.slots[usize::from(tag)];
        if std::mem::take(&mut slot.flush) && status.is_ok() {
            self.flushes.push_back(tag);
            self.look_again = true;
            return;
        }
        let slot = std::mem::take(slot);
        let mut result = if status.is_ok() { slot.bytes as i32 } else { -status.errno() };
        if let Some(buffer) = slot.buffer {
            if slot.is_read
                && result > 0
                && let Err(e) = self.device.write(self.index, tag, self.buffers.span(buffer, 0, slot.bytes as usize))
            {
                result = -e.raw_os_error().unwrap_or(libc::EIO);
            }
            self.give_back(buffer);
        }
        self.answer(tag, result);
    }

    fn give_back(&mut self, buffer: Buffer) {
        self.look_again |= self.buffers.give_back(buffer) && !self.stalled.is_empty();
    }

    fn answer(&mut self, tag: u16, result: i32) {
        self.answers.push((tag, result));
    }

    fn submit(&mut self) {
        while let Err(e) = self.ring.submit() {
            // The kernel lacks memory at the moment. There is nothing to do for these requests but to retry.
            let again = matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::EINTR));
            assert!(again, "cannot complete ublk requests: {e}");
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.bios > 0 {
            self.buffers.abandon();
        }
    }
}

impl Source for Queue {
    /// Submits the requests that the kernel has handed over. Returns whether there were any.
    fn serve(&mut self, id: SourceId, port: &mut Port, now: Instant) -> bool {
        let mut worked = std::mem::take(&mut self.look_again);
        while let Some(tag) = self.flushes.pop_front() {
            self.submit_bio(Bio::flush(), tag, id, port, now);
        }
        if self.paused {
            return false;
        }
        for _ in 0..self.stalled.len() {
            if let Some(tag) = self.stalled.pop_front() {
                self.begin(tag, id, port, now);
            }
        }
        for _ in 0..self.slots.len() {
            if !port.has_capacity() {
                break;
            }
            let Some(end) = self.ring.completion().next() else { break };
            worked = true;
            // Any other result means that the device is stopping: no request will come under this tag.
            if end.result() == 0 {
                self.begin(end.user_data() as u16, id, port, now);
            }
        }
        worked
    }

    /// Gives the kernel the answers, and waits for new requests under the same tags.
    #[inline]
    fn finish_round(&mut self) {
        if self.answers.is_empty() {
            return;
        }
        let answers = std::mem::take(&mut self.answers);
        self.served += answers.len() as u64;
        for (tag, result) in &answers {
            self.push(wire::COMMIT_AND_FETCH_REQ, *tag, *result);
        }
        self.answers = answers;
        self.answers.clear();
        self.submit();
    }

    /// Returns whether there is nothing to do until the kernel or a disk signals.
    fn prepare_sleep(&mut self) -> bool {
        !self.look_again && (self.paused || self.ring.completion().is_empty())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the ring is open as long as it lives, and the result borrows it.
        Some(unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) })
    }

    /// Stops or resumes taking requests.
    fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// Requests answered so far.
    fn served(&self) -> u64 {
        self.served
    }

    /// Returns the number of bios in flight and of flushes that are due.
    fn in_flight(&self) -> usize {
        self.bios + self.flushes.len()
    }

    #[inline]
    fn ended(&mut self, done: &[Done], _port: &mut Port) {
        for d in done {
            self.bio_ended(SourceId::own(d.user_data) as u16, d.status);
        }
    }

    fn interest(&self) -> EventFlags {
        if self.paused { EventFlags::empty() } else { EventFlags::IN }
    }

    fn can_move(&self) -> bool {
        false
    }

    fn label(&self) -> SourceLabel<'_> {
        SourceLabel { kind: "ublk", export: self.export(), index: u32::from(self.index) }
    }
}
