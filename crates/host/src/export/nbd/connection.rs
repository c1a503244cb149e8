// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An NBD client after its handshake, on the IOThread that serves it: passes requests from the socket to the block layer, and sends the
//! replies.
//!
//! Guarantees: one call receives as many requests as have arrived, and one call sends as many replies as are ready. Write data that has
//! not arrived with its header is received into the memory that the driver reads. A client has at most [`SLOTS`] requests and 104 MiB of
//! data in flight, including replies that it has not yet received. At that limit nothing more is received from the client. A request for
//! whose data there is no memory fails with `NBD_ENOMEM`, a write after its data was received and discarded; the client stays. When the
//! client leaves or breaks the protocol, its requests complete first. Replies that are ready are sent if the client still receives; then
//! the connection is finished. A write whose data did not arrive completely is not begun.
//! Needs from callers: a non-blocking socket.
//!
//! Source: the NBD protocol, section "Transmission phase".

use super::buffers::{Buffer, Buffers};
use super::handshake::Negotiated;
use super::reply::{HEAD_BYTES, HeadBuf, error_of};
use super::session::{Command, Event, Request, Session};
use super::spec::NbdPlan;
use crate::nbd::wire::{BytesIn, ReplyStyle};
use crate::net::socket::peer;
use crate::net::tls::TlsStream;
use crate::serve::export_spec::ExportSpec;
use crate::serve::helper::HelperAnswers;
use crate::serve::{Port, Source, SourceId, SourceLabel};
use blk::bio::{Bio, DataRef, Op, OpFlags};
use blk::rmw::ByteIo;
use blk::status::BlkStatus;
use blk::submitter::Done;
use blk::time::Instant;
use rustix::event::epoll::EventFlags;
use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

mod ask;
mod io;

/// Maximum number of unanswered requests of a client.
pub const SLOTS: usize = 128;
/// Maximum number of bytes that one call receives, besides the data of a write.
const INPUT_BYTES: usize = 128 << 10;
/// Maximum number of events that one round takes, so that the other sources of the IOThread get their turn.
const ROUND: usize = 256;
/// Maximum number of calls to receive in one round.
const RECEIVES: usize = 4;
/// Bytes of one I/O that discards or zeroes: up to the next multiple of this.
const WALK_BYTES: u64 = 1 << 30;
const SECTOR: u64 = 512;

/// A request in flight, or one whose reply is not yet sent.
#[derive(Clone, Debug)]
struct Slot {
    request: Option<Request>,
    buffer: Option<Buffer>,
    /// References that delay the reply: one per bio in flight, and one until all bios are submitted.
    holds: u32,
    status: BlkStatus,
    /// For a trim or write of zeroes: bytes that were submitted, and (`flushed`) whether the final flush was.
    walked: u64,
    flushed: bool,
    /// The written data must be stable before the reply.
    fua: bool,
    /// No reply is sent.
    silent: bool,
    head: HeadBuf,
    head_bytes: usize,
    data_bytes: usize,
}

impl Slot {
    const EMPTY: Slot = Slot {
        request: None,
        buffer: None,
        holds: 0,
        status: BlkStatus::Ok,
        walked: 0,
        flushed: false,
        fua: false,
        silent: false,
        head: [0; HEAD_BYTES],
        head_bytes: 0,
        data_bytes: 0,
    };

    /// Whether more bios follow when those in flight have completed.
    fn goes_on(&self) -> bool {
        let walks = |r: &Request| matches!(r.command, Command::Trim | Command::WriteZeroes);
        let left = |r: &Request| self.walked < r.length || (self.fua && !self.flushed);
        self.status.is_ok() && !self.silent && self.request.as_ref().is_some_and(|r| walks(r) && left(r))
    }
}

/// Returns the flags for the write-zeroes bios of a request.
fn zero_flags(request: &Request, unmap: bool) -> OpFlags {
    let keep = if unmap && !request.no_hole() { OpFlags::NONE } else { OpFlags::NOUNMAP };
    if request.fast_zero() { keep.union(OpFlags::NOFALLBACK) } else { keep }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionState {
    Open,
    /// Nothing more is received; requests in flight are answered.
    Closing,
    /// The client is gone; nothing is answered.
    Dead,
}

/// See the module's text.
pub struct Connection {
    socket: Arc<OwnedFd>,
    export: String,
    /// TLS on the socket, if the client asked for it.
    tls: Option<Box<TlsStream>>,
    /// Plaintext of one record, gathered from short replies.
    record: Vec<u8>,
    said_goodbye: bool,
    session: Session,
    style: ReplyStyle,
    buffers: Buffers,
    slots: Box<[Slot]>,
    free: Vec<u16>,
    /// Received bytes; `at..end` is not parsed yet.
    input: Box<[u8]>,
    at: usize,
    end: usize,
    /// The write whose data is next, once it has a buffer. If there is no memory for one, the data is discarded.
    writing: Option<u16>,
    /// The read or write that waits for a buffer.
    stalled: Option<u16>,
    /// Trims and writes of zeroes whose next bio is due.
    walking: VecDeque<u16>,
    /// Replies that wait to be sent, and (`sent`) bytes of the first one that were sent.
    out: VecDeque<u16>,
    sent: usize,
    /// Reused for block status.
    scratch: Vec<u8>,
    bios: usize,
    /// Where answers of the disk's helper thread arrive, and (`asked`) how many are outstanding.
    answers: Arc<HelperAnswers>,
    asked: usize,
    /// Every write is stable before it is answered.
    write_through: bool,
    /// Zeroed blocks may release their space.
    unmap: bool,
    /// Smallest unit of the export's offsets and lengths, bytes.
    block: u64,
    state: ConnectionState,
    /// No request is begun, because the connection is about to leave its IOThread.
    paused: bool,
    /// A buffer was returned that a request waits for.
    look_again: bool,
    served: u64,
    /// Dropped last.
    _guard: Box<dyn Any + Send>,
}

impl Connection {
    /// Makes a connection whose requests begin with `rest`. `buffers` are those of [`SLOTS`] requests, at the disk that was negotiated.
    /// `guard` is dropped with the connection, after the socket and the memory.
    pub(super) fn new(
        guard: Box<dyn Any + Send>,
        (socket, tls): (Arc<OwnedFd>, Option<Box<TlsStream>>),
        negotiated: &Negotiated,
        rest: &[u8],
        buffers: Buffers,
    ) -> Connection {
        let session = Session::new(negotiated);
        let mut input = vec![0; INPUT_BYTES.max(rest.len())].into_boxed_slice();
        input[..rest.len()].copy_from_slice(rest);
        Connection {
            socket,
            export: negotiated.export.label.clone(),
            tls,
            record: Vec::new(),
            said_goodbye: false,
            style: session.style(),
            session,
            buffers,
            slots: vec![Slot::EMPTY; SLOTS].into(),
            free: (0..SLOTS as u16).rev().collect(),
            input,
            at: 0,
            end: rest.len(),
            writing: None,
            stalled: None,
            walking: VecDeque::with_capacity(SLOTS),
            out: VecDeque::with_capacity(SLOTS),
            sent: 0,
            scratch: Vec::new(),
            bios: 0,
            answers: Arc::default(),
            asked: 0,
            write_through: negotiated.export.write_through,
            unmap: negotiated.export.trim,
            block: negotiated.export.block.min.into(),
            state: ConnectionState::Open,
            paused: false,
            look_again: false,
            served: 0,
            _guard: guard,
        }
    }

    /// Returns the export's name in reports.
    pub fn export(&self) -> &str {
        &self.export
    }

    /// Whether requests may be taken from what was received.
    #[inline]
    fn can_take(&self) -> bool {
        let room = self.writing.is_some() || !self.free.is_empty();
        self.state == ConnectionState::Open && !self.paused && self.at < self.end && self.stalled.is_none() && room
    }

    #[inline]
    fn wants_input(&self) -> bool {
        let room = self.writing.is_some() || !self.free.is_empty();
        self.state == ConnectionState::Open && !self.paused && self.at == self.end && self.stalled.is_none() && room
    }

    /// Takes requests from the input. Returns whether there were any.
    fn take_requests(&mut self, id: SourceId, port: &mut Port, now: Instant, budget: &mut usize) -> bool {
        if !self.can_take() {
            return false;
        }
        // A client that connected before a resize still assumes the old size; requests beyond the new size are refused.
        self.session.set_size_bytes(port.disk().bytes());
        let input = std::mem::take(&mut self.input);
        let start = self.at;
        let mut window = BytesIn::new(&input[start..self.end]);
        while *budget > 0 && self.can_take() && port.has_capacity() {
            *budget -= 1;
            match self.session.next_event(&mut window) {
                Ok(Event::NeedMore) => {}
                Ok(Event::Request(request)) => self.begin(request, id, port, now),
                Ok(Event::Payload { bytes, left, .. }) => {
                    self.copy_payload(bytes, left);
                    if left == 0 {
                        self.write_arrived(id, port, now);
                    }
                }
                Ok(Event::Refused(refusal)) => {
                    if let Some(slot) = self.free.pop() {
                        let s = &mut self.slots[usize::from(slot)];
                        *s = Slot::EMPTY;
                        s.head_bytes = self.style.error(refusal.reply_to, refusal.error, &mut s.head);
                        self.out.push_back(slot);
                    }
                }
                Ok(Event::Disconnect) => self.close(),
                Err(why) => {
                    log::warn!(export = self.export.as_str(), client = peer(&*self.socket); "a client is dropped: {why}");
                    self.close();
                }
            }
            self.at = start + window.position();
        }
        self.input = input;
        if self.state != ConnectionState::Open {
            (self.at, self.end) = (0, 0);
        }
        self.at > start || self.state != ConnectionState::Open
    }

    #[inline]
    fn begin(&mut self, request: Request, id: SourceId, port: &mut Port, now: Instant) {
        let slot = self.free.pop().expect("a request is taken when there is a slot");
        let s = &mut self.slots[usize::from(slot)];
        // Only commands that write have data to make stable.
        let writes = matches!(request.command, Command::Write | Command::Trim | Command::WriteZeroes);
        let fua = writes && (self.write_through || request.fua());
        *s = Slot { request: Some(request), holds: 1, fua, ..Slot::EMPTY };
        match request.command {
            Command::Read | Command::Write => self.transfer(slot, id, port, now),
            Command::Flush => {
                self.submit(Bio::flush(), slot, id, port, now);
                self.release(slot);
            }
            Command::Trim | Command::WriteZeroes => {
                self.walk(slot, id, port, now);
                self.release(slot);
            }
            Command::Cache => self.prefetch(slot, &request, port),
            Command::BlockStatus => self.tell_extents(slot, &request, port),
        }
    }

    #[inline]
    fn submit(&mut self, bio: Bio, slot: u16, id: SourceId, port: &mut Port, now: Instant) {
        self.slots[usize::from(slot)].holds += 1;
        self.bios += 1;
        port.submit(bio.with_user_data(id.tagged(u32::from(slot))), now);
    }

    /// Submits an I/O of the request in a slot; its user data is set here.
    #[inline]
    fn submit_bytes(&mut self, io: ByteIo, slot: u16, id: SourceId, port: &mut Port, now: Instant) {
        self.slots[usize::from(slot)].holds += 1;
        self.bios += 1;
        port.submit_bytes(ByteIo { user_data: id.tagged(u32::from(slot)), ..io }, now);
    }

    /// Gives a read or write its buffer and begins it. A write begins when its data has arrived. Without memory the request fails: requests
    /// that are in flight do not depend on it.
    #[inline]
    fn transfer(&mut self, slot: u16, id: SourceId, port: &mut Port, now: Instant) {
        let s = &mut self.slots[usize::from(slot)];
        let request = s.request.expect("a transfer has a request");
        match self.buffers.take(slot, request.length as usize) {
            Ok(Some(buffer)) => s.buffer = Some(buffer),
            Ok(None) => {
                self.stalled = Some(slot);
                return;
            }
            Err(e) => {
                s.status = BlkStatus::Resource;
                log::warn!(
                    export = self.export.as_str(), client = peer(&*self.socket);
                    "a request fails for lack of memory: {e}"
                );
            }
        }
        // The reply to a write comes after its data, because a client may not expect it before it has sent everything.
        if request.command == Command::Write {
            self.writing = Some(slot);
        } else {
            self.submit_transfer(slot, Op::Read, id, port, now);
        }
    }

    /// Begins the write whose data has arrived completely, or answers it if there was no memory.
    #[inline]
    fn write_arrived(&mut self, id: SourceId, port: &mut Port, now: Instant) {
        if let Some(slot) = self.writing.take() {
            self.submit_transfer(slot, Op::Write, id, port, now);
        }
    }

    #[inline]
    fn submit_transfer(&mut self, slot: u16, op: Op, id: SourceId, port: &mut Port, now: Instant) {
        let Slot { request, buffer, fua, .. } = &self.slots[usize::from(slot)];
        // There is none if its memory could not be had; its status is set then.
        if let Some(buffer) = buffer {
            let request = request.expect("a transfer has a request");
            let flags = if *fua { OpFlags::FUA } else { OpFlags::NONE };
            // The block layer splits it to fit the disk's limits.
            let io = ByteIo { flags, ..ByteIo::new(op, request.offset, request.length, buffer.data) };
            self.submit_bytes(io, slot, id, port, now);
        }
        self.release(slot);
    }

    fn copy_payload(&mut self, bytes: &[u8], left: u32) {
        let Some(slot) = self.writing else { return };
        if let Slot { request: Some(request), buffer: Some(buffer), .. } = &self.slots[usize::from(slot)] {
            let from = request.length as usize - left as usize - bytes.len();
            self.buffers.span(*buffer, from, bytes.len()).copy_from(bytes);
        }
    }

    /// Submits the next bio of a trim or write of zeroes. With FUA a flush comes last, because these operations have no FUA flag.
    fn walk(&mut self, slot: u16, id: SourceId, port: &mut Port, now: Instant) {
        let s = &mut self.slots[usize::from(slot)];
        let Some(request) = s.request else { return };
        let (from, end) = (request.offset + s.walked, request.offset + request.length);
        if from == end {
            s.flushed = true;
            return self.submit(Bio::flush(), slot, id, port, now);
        }
        let bytes = ((from / WALK_BYTES + 1) * WALK_BYTES).min(end) - from;
        s.walked += bytes;
        let (op, flags) = match request.command {
            Command::Trim => (Op::Discard, OpFlags::NONE),
            _ => (Op::WriteZeroes, zero_flags(&request, self.unmap)),
        };
        let io = ByteIo { flags, ..ByteIo::new(op, from, bytes, DataRef::NONE) };
        self.submit_bytes(io, slot, id, port, now);
    }

    /// Handles completion of a bio of the request in `slot`.
    #[inline]
    pub(crate) fn bio_ended(&mut self, slot: u16, status: BlkStatus) {
        let s = &mut self.slots[usize::from(slot)];
        if !status.is_ok() && s.status.is_ok() {
            s.status = status;
        }
        self.bios -= 1;
        self.release(slot);
    }

    #[inline]
    fn release(&mut self, slot: u16) {
        let s = &mut self.slots[usize::from(slot)];
        assert!(s.holds > 0, "a bio of slot {slot} ended that was not submitted");
        s.holds -= 1;
        if s.holds > 0 {
            return;
        }
        if self.state == ConnectionState::Dead || s.silent {
            self.free_slot(slot);
        } else if s.goes_on() {
            self.walking.push_back(slot);
        } else {
            self.answer(slot);
        }
    }

    #[inline]
    fn answer(&mut self, slot: u16) {
        let s = &mut self.slots[usize::from(slot)];
        let request = s.request.expect("what was submitted is a request");
        let reply_to = request.reply_to();
        s.head_bytes = match error_of(s.status, &request) {
            Some(error) => self.style.error(reply_to, error, &mut s.head),
            None if request.command == Command::Read => {
                s.data_bytes = request.length as usize;
                self.style.data(reply_to, request.offset, request.length as u32, true, &mut s.head)
            }
            None => self.style.success(reply_to, &mut s.head),
        };
        if s.data_bytes == 0
            && let Some(buffer) = s.buffer.take()
        {
            self.look_again |= self.buffers.give_back(buffer);
        }
        self.out.push_back(slot);
    }

    #[inline]
    fn free_slot(&mut self, slot: u16) {
        if let Some(buffer) = self.slots[usize::from(slot)].buffer.take() {
            self.look_again |= self.buffers.give_back(buffer);
        }
        self.free.push(slot);
        self.served += 1;
    }

    /// Stops receiving; requests in flight are answered.
    #[cold]
    fn close(&mut self) {
        if self.state == ConnectionState::Open {
            self.state = ConnectionState::Closing;
        }
        // A write that waits for data, or a request that waits for a buffer, is not begun.
        for slot in [self.writing.take(), self.stalled.take()].into_iter().flatten() {
            self.slots[usize::from(slot)].silent = true;
            self.release(slot);
        }
        self.buffers.stop_waiting();
    }

    /// Handles a client that is gone: requests in flight complete without a reply.
    #[cold]
    pub(crate) fn kill(&mut self) {
        self.state = ConnectionState::Dead;
        self.close();
        self.sent = 0;
        while let Some(slot) = self.out.pop_front().or_else(|| self.walking.pop_front()) {
            self.free_slot(slot);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.bios > 0 {
            self.buffers.abandon();
        }
    }
}

impl Source for Connection {
    fn finish_round(&mut self) {
        self.send_ready();
    }

    /// Receives and submits requests of the client. Returns whether there were any.
    fn serve(&mut self, id: SourceId, port: &mut Port, now: Instant) -> bool {
        let answered = self.asked > 0 && self.take_answers();
        if self.paused {
            return answered;
        }
        self.look_again = false;
        let mut worked = answered || !self.walking.is_empty();
        for _ in 0..self.walking.len() {
            if let Some(slot) = self.walking.pop_front() {
                self.walk(slot, id, port, now);
            }
        }
        if let Some(slot) = self.stalled.take() {
            self.transfer(slot, id, port, now);
            worked |= self.stalled.is_none();
        }
        let mut budget = ROUND;
        for _ in 0..RECEIVES {
            worked |= self.take_requests(id, port, now, &mut budget);
            if budget == 0 || !self.wants_input() || !port.has_capacity() {
                return worked;
            }
            let Some(filled) = self.receive() else { return worked };
            worked = true;
            if self.writing.is_some() && self.session.payload_left() == 0 {
                self.write_arrived(id, port, now);
            }
            if !filled {
                break;
            }
        }
        worked | self.take_requests(id, port, now, &mut budget)
    }

    /// Whether the connection is closed and all its requests have completed.
    #[inline]
    fn is_finished(&self) -> bool {
        match self.state {
            ConnectionState::Open => false,
            ConnectionState::Closing => self.free.len() == SLOTS && !self.tls_wants_write(),
            ConnectionState::Dead => self.free.len() == SLOTS,
        }
    }

    /// Returns whether there is nothing to do until the socket, a completion or a timer signals.
    fn prepare_sleep(&mut self) -> bool {
        let decrypted = self.tls.as_ref().is_some_and(|tls| tls.has_more()) && self.wants_input();
        self.paused || !self.look_again && self.walking.is_empty() && !self.can_take() && !decrypted
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    /// Returns the events that the socket is watched for.
    fn interest(&self) -> EventFlags {
        let mut interest = EventFlags::empty();
        interest.set(EventFlags::IN, self.wants_input());
        interest.set(EventFlags::OUT, !self.out.is_empty() || self.tls_wants_write());
        // epoll always reports a hangup; edge-triggered, only once.
        if interest.is_empty() { EventFlags::ET } else { interest }
    }

    /// Stops or resumes beginning requests; those in flight continue.
    fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// Requests answered so far.
    fn served(&self) -> u64 {
        self.served
    }

    /// Returns the number of bios in flight plus that of outstanding helper requests.
    fn in_flight(&self) -> usize {
        self.bios + self.asked
    }

    #[inline]
    fn ended(&mut self, done: &[Done], _port: &mut Port) {
        for d in done {
            self.bio_ended(SourceId::own(d.user_data) as u16, d.status);
        }
    }

    fn label(&self) -> SourceLabel<'_> {
        SourceLabel { kind: NbdPlan::TYPE, export: self.export(), index: 0 }
    }
}

#[cfg(test)]
mod tests;
