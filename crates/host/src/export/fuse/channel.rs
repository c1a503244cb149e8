// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A descriptor of `/dev/fuse` on the IOThread that serves it: passes the kernel's requests to the block layer, and replies to the kernel.
//!
//! Guarantees: a write's data is received into the memory that the driver reads, a read's data is sent from the memory that the driver
//! filled. At most [`SLOTS`] requests are in flight; more wait in the kernel, for this or another descriptor of the same mount. A received
//! request is answered once, whatever happens. The exception is a mount that is gone, which is logged once. Reads, writes, and zeroes may
//! be any bytes. Nothing is allocated per request.
//!
//! Needs from callers: a non-blocking descriptor, after INIT.
//!
//! Source: Linux fs/fuse/dev.c (one read is one request, one write one reply; a reader must have room for the longest write).

mod seek;

use super::memory::{Large, Memory, SMALL_BYTES};
use super::session::{self, Action, Disk, FileAttrs};
use super::wire::{self, MAX_DATA, MAX_HEAD, Malformed, OUT_HEADER, WRITE_HEAD};
use crate::error::Result;
use crate::serve::helper::HelperAnswers;
use crate::serve::{Port, ServedDisk, Source, SourceId, SourceLabel};
use blk::bio::{Bio, DataRef, Op, OpFlags};
use blk::rmw::ByteIo;
use blk::status::BlkStatus;
use blk::submitter::Done;
use blk::time::Instant;
use rustix::event::epoll::EventFlags;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Maximum number of unanswered requests of a channel.
pub const SLOTS: usize = 64;
/// Maximum number of requests that one round takes, so that other sources and channels get their turn.
const ROUND: usize = 16;
/// Bytes of one write-zeroes I/O: up to the next multiple of this.
const WALK_BYTES: u64 = 1 << 30;
const SECTOR: u64 = 512;
/// Maximum number of tries to send a reply while the kernel has no memory for it.
const TRIES: usize = 1000;

/// What the channels of one mount share.
pub(super) struct Shared {
    /// The export's name.
    pub(super) name: String,
    pub(super) disk: Arc<ServedDisk>,
    pub(super) attrs: FileAttrs,
    /// Why the mount is gone, if it is.
    pub(super) gone: OnceLock<String>,
    /// The export is being removed, so the mount will be gone.
    pub(super) ends: AtomicBool,
}

impl Shared {
    /// Returns the properties of the disk that requests are checked against, as of now.
    fn facts(&self) -> Disk {
        let limits = self.disk.limits();
        let (size, block) = (self.disk.bytes(), limits.logical_block_size);
        Disk { size, block, zeroes: limits.max_write_zeroes_sectors > 0, stored: None }
    }

    /// Records and logs that `call` on `/dev/fuse` failed: the mount is gone.
    #[cold]
    fn lost(&self, call: &str, e: &std::io::Error) {
        let why = match e.raw_os_error() {
            Some(libc::ENODEV) => "it was unmounted",
            Some(libc::ECONNABORTED) => "its connection was aborted",
            _ => "the FUSE connection failed",
        };
        let why = format!("{why} ({call} of /dev/fuse: {e})");
        // Relaxed: only for the log.
        if self.gone.set(why.clone()).is_ok() && !self.ends.load(Ordering::Relaxed) {
            let (export, disk) = (self.name.as_str(), self.disk.name.as_str());
            log::error!(export, disk; "the mount is gone: {why}; clients cannot reach the disk through it: remove the \
                                       export and add it again");
        }
    }
}

/// The current step of a request in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Flush,
    Zero,
    SeekData,
    SeekHole,
}

/// A request in flight.
#[derive(Debug)]
struct Slot {
    unique: u64,
    kind: Kind,
    offset: u64,
    bytes: u64,
    stable: bool,
    /// Zeroed blocks keep their space.
    keep: bool,
    /// Number of references: one per bio in flight, and one while bios are submitted. The FUSE request continues at 0.
    holds: u32,
    status: BlkStatus,
    /// Bytes of zeroes that were submitted. For a seek: bytes from the offset on that are not of the kind that is sought.
    walked: u64,
    /// The flush after the zeroes was submitted, or none is needed.
    flushed: bool,
    /// The data of a write after its first [`SMALL_BYTES`]; the memory of a long read.
    large: Option<Large>,
    /// No other write to its blocks may be in flight.
    alone: bool,
}

impl Slot {
    fn new(unique: u64, kind: Kind, offset: u64, bytes: u64) -> Slot {
        Slot {
            unique,
            kind,
            offset,
            bytes,
            stable: false,
            keep: false,
            holds: 0,
            status: BlkStatus::Ok,
            walked: 0,
            flushed: false,
            large: None,
            alone: false,
        }
    }
}

/// See the module's text.
pub struct Channel {
    fd: Arc<OwnedFd>,
    index: u32,
    shared: Arc<Shared>,
    memory: Memory,
    slots: Box<[Option<Slot>]>,
    free: Vec<u16>,
    /// Receives what does not fit into the slot's memory of the next request's data.
    landing: Option<Large>,
    /// The last request that was received, if it waits for memory that other requests of this channel use.
    stalled: Option<u16>,
    /// Requests whose next step is due.
    going_on: VecDeque<u16>,
    bios: usize,
    /// Where answers of the disk's helper thread arrive, and (`asked`) how many are outstanding.
    answers: Arc<HelperAnswers>,
    asked: usize,
    /// Maximum number of requests that the next round takes: a read that finds none delays the requests before it.
    batch: usize,
    /// No requests are taken at the moment.
    paused: bool,
    /// The mount is gone: nothing is taken or answered.
    gone: bool,
    served: u64,
}

impl Channel {
    /// A channel of a mount.
    ///
    /// # Errors
    /// There is no memory for the channel's data.
    pub(super) fn new(fd: Arc<OwnedFd>, index: u32, shared: &Arc<Shared>) -> Result<Channel> {
        let memory = Memory::new(&shared.disk, SLOTS)?;
        let mut channel = Channel {
            fd,
            index,
            shared: Arc::clone(shared),
            memory,
            slots: (0..SLOTS).map(|_| None).collect(),
            free: (0..SLOTS as u16).rev().collect(),
            landing: None,
            stalled: None,
            going_on: VecDeque::with_capacity(SLOTS),
            bios: 0,
            answers: Arc::default(),
            asked: 0,
            batch: 1,
            paused: false,
            gone: false,
            served: 0,
        };
        // One piece always exists, even if memory is short later.
        channel.landing = Some(channel.memory.take_new()?);
        Ok(channel)
    }

    /// Returns the export's name.
    pub fn export(&self) -> &str {
        &self.shared.name
    }

    /// Returns the channel's number in the export.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Receives one request. Returns false when there is none, or no slot or memory for it.
    fn receive(&mut self, id: SourceId, port: &mut Port, now: Instant) -> bool {
        let Some(slot) = self.free.last().copied() else { return false };
        if self.landing.is_none() {
            self.landing = self.memory.take();
        }
        let Some(landing) = &self.landing else { return false };
        let mut head = [0; MAX_HEAD];
        let small = self.memory.span(self.memory.small(slot), SMALL_BYTES);
        let rest = self.memory.span(landing.data(), MAX_DATA - SMALL_BYTES);
        let list = [
            libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: WRITE_HEAD },
            libc::iovec { iov_base: small.as_ptr().cast(), iov_len: small.len() },
            libc::iovec { iov_base: rest.as_ptr().cast(), iov_len: rest.len() },
        ];
        // SAFETY: the entries name a local array and parts of regions, which live as long as their table and to whose bytes no
        // reference exists.
        let n = unsafe { libc::readv(self.fd.as_raw_fd(), list.as_ptr(), list.len() as i32) };
        if n < 0 {
            let e = std::io::Error::last_os_error();
            return match e.raw_os_error() {
                // The request was aborted before this call received it.
                Some(libc::ENOENT | libc::EINTR) => true,
                Some(libc::EAGAIN) => false,
                _ => {
                    self.gone = true;
                    self.shared.lost("readv", &e);
                    false
                }
            };
        }
        let n = n as usize;
        let known = n.min(MAX_HEAD);
        let is_write = wire::is_write(&head);
        if known > WRITE_HEAD && !is_write {
            small.part(0, known - WRITE_HEAD).copy_to_slice(&mut head[WRITE_HEAD..known]);
        }
        self.take(&head[..if is_write { n.min(WRITE_HEAD) } else { known }], n, id, port, now);
        true
    }

    /// Handles a request of `total` bytes. The data of a write is already in the memory of the next slot.
    #[inline]
    fn take(&mut self, head: &[u8], total: usize, id: SourceId, port: &mut Port, now: Instant) {
        let (header, request) = match wire::parse(head, total) {
            Ok(parsed) => parsed,
            Err(Malformed::Body(header)) => return self.reply(header.unique, libc::EINVAL, &[]),
            Err(Malformed::NoHeader) => return,
        };
        let unique = header.unique;
        let mut facts = self.shared.facts();
        if session::asks_for_attributes(&request) {
            facts.stored = self.shared.disk.helper.stored().bytes();
        }
        let slot = match session::action(&header, &request, &self.shared.attrs, facts) {
            Action::Reply(body) => return self.reply(unique, 0, body.as_bytes()),
            Action::Refuse(error) => return self.reply(unique, error, &[]),
            Action::Silent => return,
            Action::Read { offset, bytes } => Slot::new(unique, Kind::Read, offset, u64::from(bytes)),
            Action::Write { offset, bytes, stable, alone } => {
                let mut slot = Slot::new(unique, Kind::Write, offset, u64::from(bytes));
                slot.stable = stable;
                slot.alone = alone;
                if bytes as usize > SMALL_BYTES {
                    slot.large = self.landing.take();
                }
                slot
            }
            Action::Flush => Slot::new(unique, Kind::Flush, 0, 0),
            Action::Zero { offset, bytes, keep } => {
                let mut slot = Slot::new(unique, Kind::Zero, offset, bytes);
                slot.keep = keep;
                slot.flushed = !self.shared.attrs.write_through;
                slot
            }
            Action::Seek { offset, hole } => return self.seek(unique, offset, hole, facts.size, port),
        };
        let number = self.free.pop().expect("a request is received when there is a slot");
        self.slots[usize::from(number)] = Some(slot);
        self.begin(number, id, port, now);
    }

    fn slot(&mut self, number: u16) -> &mut Slot {
        self.slots[usize::from(number)].as_mut().expect("a number has a slot")
    }

    /// Begins a request, or has it wait.
    #[inline]
    fn begin(&mut self, number: u16, id: SourceId, port: &mut Port, now: Instant) {
        let slot = self.slots[usize::from(number)].as_mut().expect("a number has a slot");
        if slot.kind == Kind::Read && slot.bytes > SMALL_BYTES as u64 {
            slot.large = self.memory.take().or_else(|| self.landing.take());
            if slot.large.is_none() {
                self.stalled = Some(number);
                return;
            }
        }
        self.slot(number).holds = 1;
        match self.slot(number).kind {
            Kind::Read => self.submit_read(number, id, port, now),
            Kind::Write => self.submit_write(number, id, port, now),
            Kind::Flush => self.submit_flush(number, id, port, now),
            Kind::Zero => self.walk(number, id, port, now),
            Kind::SeekData | Kind::SeekHole => unreachable!("they do not begin here"),
        }
        self.release(number);
    }

    #[inline]
    fn submit_flush(&mut self, number: u16, id: SourceId, port: &mut Port, now: Instant) {
        self.slot(number).holds += 1;
        self.bios += 1;
        port.submit(Bio::flush().with_user_data(id.tagged(u32::from(number))), now);
    }

    /// Submits an I/O of the request in a slot; its user data is set here.
    #[inline]
    fn submit(&mut self, io: ByteIo, number: u16, id: SourceId, port: &mut Port, now: Instant) {
        self.slot(number).holds += 1;
        self.bios += 1;
        port.submit_bytes(ByteIo { user_data: id.tagged(u32::from(number)), ..io }, now);
    }

    #[inline]
    fn submit_read(&mut self, number: u16, id: SourceId, port: &mut Port, now: Instant) {
        let small = self.memory.small(number);
        let Slot { offset, bytes, large, .. } = self.slot(number);
        let data = large.as_ref().map_or(small, Large::data);
        let io = ByteIo::new(Op::Read, *offset, *bytes, data);
        self.submit(io, number, id, port, now);
    }

    /// Submits a write from the memory of the slot and its large piece.
    #[inline]
    fn submit_write(&mut self, number: u16, id: SourceId, port: &mut Port, now: Instant) {
        let small = self.memory.small(number);
        let Slot { offset, bytes, stable, large, alone, .. } = self.slot(number);
        let flags = if *stable { OpFlags::FUA } else { OpFlags::NONE };
        let first = (*bytes).min(SMALL_BYTES as u64);
        let io = |from, bytes, data| ByteIo { flags, exclusive: *alone, ..ByteIo::new(Op::Write, from, bytes, data) };
        let rest = large.as_ref().map(|large| io(*offset + first, *bytes - first, large.data()));
        let io = io(*offset, first, small);
        self.submit(io, number, id, port, now);
        if let Some(rest) = rest {
            self.submit(rest, number, id, port, now);
        }
    }

    /// Submits the next write of zeroes. With write-through a flush comes last, because write zeroes has no FUA flag.
    fn walk(&mut self, number: u16, id: SourceId, port: &mut Port, now: Instant) {
        let slot = self.slot(number);
        let (from, end) = (slot.offset + slot.walked, slot.offset + slot.bytes);
        if from == end {
            slot.flushed = true;
            return self.submit_flush(number, id, port, now);
        }
        let bytes = ((from / WALK_BYTES + 1) * WALK_BYTES).min(end) - from;
        slot.walked += bytes;
        let flags = if slot.keep { OpFlags::NOUNMAP } else { OpFlags::NONE };
        let io = ByteIo { flags, ..ByteIo::new(Op::WriteZeroes, from, bytes, DataRef::NONE) };
        self.submit(io, number, id, port, now);
    }

    /// Handles completion of a bio of the request in this slot.
    #[inline]
    pub(crate) fn bio_ended(&mut self, number: u16, status: BlkStatus) {
        self.bios -= 1;
        let slot = self.slot(number);
        if slot.status.is_ok() {
            slot.status = status;
        }
        self.release(number);
    }

    #[inline]
    fn release(&mut self, number: u16) {
        let slot = self.slot(number);
        assert!(slot.holds > 0, "a bio of slot {number} ended, but none was submitted");
        slot.holds -= 1;
        if slot.holds > 0 {
            return;
        }
        let walks = slot.kind == Kind::Zero && (slot.walked < slot.bytes || !slot.flushed);
        if walks && slot.status.is_ok() {
            self.going_on.push_back(number);
        } else {
            self.answer(number);
        }
    }

    #[inline]
    fn answer(&mut self, number: u16) {
        let slot = self.slots[usize::from(number)].take().expect("a number has a slot");
        match (errno_of(slot.status), slot.kind) {
            (Some(error), _) => self.reply(slot.unique, error, &[]),
            (None, Kind::Read) => self.reply_data(number, &slot),
            (None, Kind::Write) => self.reply(slot.unique, 0, wire::write_out(slot.bytes as u32).as_bytes()),
            (None, Kind::Flush | Kind::Zero) => self.reply(slot.unique, 0, &[]),
            (None, Kind::SeekData | Kind::SeekHole) => unreachable!("they hold no bios"),
        }
        if let Some(large) = slot.large {
            self.memory.give_back(large);
        }
        self.free.push(number);
    }

    #[inline]
    fn reply_data(&mut self, number: u16, slot: &Slot) {
        let data = slot.large.as_ref().map_or(self.memory.small(number), Large::data);
        let bytes = slot.bytes as usize;
        let span = self.memory.span(data, bytes);
        let header = wire::out_header(slot.unique, 0, bytes);
        let list = [
            libc::iovec { iov_base: header.as_ptr().cast_mut().cast(), iov_len: OUT_HEADER },
            libc::iovec { iov_base: span.as_ptr().cast(), iov_len: bytes },
        ];
        self.send(&list);
    }

    #[inline]
    fn reply(&mut self, unique: u64, error: i32, body: &[u8]) {
        let header = wire::out_header(unique, error, body.len());
        let list = [
            libc::iovec { iov_base: header.as_ptr().cast_mut().cast(), iov_len: OUT_HEADER },
            libc::iovec { iov_base: body.as_ptr().cast_mut().cast(), iov_len: body.len() },
        ];
        self.send(&list);
    }

    #[inline]
    fn send(&mut self, list: &[libc::iovec; 2]) {
        self.served += 1;
        let mut last = None;
        for _ in 0..TRIES {
            // SAFETY: the entries name a header and a body of the caller, and part of a region, which lives as long as its
            // table; all are only read.
            let n = unsafe { libc::writev(self.fd.as_raw_fd(), list.as_ptr(), list.len() as i32) };
            if n >= 0 {
                return;
            }
            let e = std::io::Error::last_os_error();
            let kind = e.raw_os_error();
            last = Some(e);
            match kind {
                Some(libc::EINTR | libc::EAGAIN | libc::ENOMEM) => {}
                // ENOENT: the caller was killed and no longer waits.
                Some(libc::ENOENT | libc::EINVAL) => return,
                _ => break,
            }
        }
        self.gone = true;
        if let Some(e) = last {
            self.shared.lost("writev", &e);
        }
    }
}

/// Marks the calling thread as an I/O flusher. The kernel may wait for writes that this thread serves in order to free memory, so memory
/// that this thread allocates must not wait for such writes. Without CAP_SYS_RESOURCE nothing changes.
/// Source: prctl(2), PR_SET_IO_FLUSHER.
fn become_io_flusher() {
    const PR_SET_IO_FLUSHER: libc::c_int = 57;
    let zero: libc::c_ulong = 0;
    // SAFETY: numbers only; it changes how the kernel finds memory for this thread.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, zero + 1, zero, zero, zero) };
}

/// Returns the errno that a client gets for an I/O's status; `None` for success.
fn errno_of(status: BlkStatus) -> Option<i32> {
    Some(match status {
        BlkStatus::Ok => return None,
        BlkStatus::NotSupp => libc::EOPNOTSUPP,
        BlkStatus::NoSpc => libc::ENOSPC,
        BlkStatus::Inval => libc::EINVAL,
        BlkStatus::Resource => libc::ENOMEM,
        _ => libc::EIO,
    })
}

impl Drop for Channel {
    fn drop(&mut self) {
        if let Some(landing) = self.landing.take() {
            self.memory.give_back(landing);
        }
        if self.bios == 0 {
            self.memory.return_all();
        }
    }
}

impl Source for Channel {
    /// Receives requests of the kernel and submits them. Returns whether anything was done.
    fn serve(&mut self, id: SourceId, port: &mut Port, now: Instant) -> bool {
        let mut worked = self.asked > 0 && self.take_answers(port);
        worked |= !self.going_on.is_empty();
        for _ in 0..self.going_on.len() {
            if let Some(slot) = self.going_on.pop_front() {
                self.walk(slot, id, port, now);
            }
        }
        if let Some(slot) = self.stalled.take() {
            self.begin(slot, id, port, now);
            worked |= self.stalled.is_none();
        }
        let mut taken = 0;
        while taken < self.batch && !self.paused && !self.gone && self.stalled.is_none() && port.has_capacity() {
            if !self.receive(id, port, now) {
                break;
            }
            taken += 1;
        }
        self.batch = if taken == self.batch { ROUND.min(2 * taken) } else { taken.max(1) };
        worked | (taken > 0)
    }

    /// Returns whether there is nothing to do until a signal: of the descriptor, a completion or a timer.
    fn prepare_sleep(&mut self) -> bool {
        self.going_on.is_empty()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    /// Edge-triggered and exclusive: each request wakes one sleeping thread, because all channels take from the same requests. Before a
    /// thread sleeps it has taken all requests, or it waits for completions of its own and reads again after them.
    fn interest(&self) -> EventFlags {
        EventFlags::IN | EventFlags::ET | EventFlags::EXCLUSIVE
    }

    /// Stops or resumes taking requests; those that were taken continue. The channel is resumed on the thread that will serve it.
    fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
        if !paused {
            become_io_flusher();
        }
    }

    /// Requests answered so far.
    fn served(&self) -> u64 {
        self.served
    }

    /// Returns the number of bios in flight plus that of unanswered requests.
    fn in_flight(&self) -> usize {
        self.bios + SLOTS - self.free.len()
    }

    #[inline]
    fn ended(&mut self, done: &[Done], _port: &mut Port) {
        for d in done {
            self.bio_ended(SourceId::own(d.user_data) as u16, d.status);
        }
    }

    fn label(&self) -> SourceLabel<'_> {
        SourceLabel { kind: "fuse", export: self.export(), index: self.index }
    }
}
