// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The requests of one hardware queue: the operation of each, where its data is, whether it was sent, and how it completed.
//!
//! Guarantees: nothing here depends on a connection, so requests survive its loss: [`Requests::recall`] queues every request that was sent
//! for another send, with a new cookie. [`Calls`] holds exactly the requests that the server may be answering. Memory of requests is named
//! by region and offset and checked again at each access.

use super::replies::{Calls, cookie};
use crate::driver::pieces::Pieces;
use crate::mem::Regions;
use crate::nbd::wire::{NbdError, REQUEST_BYTES, RequestHeader, command, command_flag};
use crate::net::vectored::Outgoing;
use blk::bio::{Op, OpFlags};
use blk::driver::{Completions, InFlight, RqRef};
use blk::id::{SECTOR_SHIFT, Tag};
use blk::status::BlkStatus;
use blk::time::{Duration, Instant};
use std::collections::VecDeque;

#[derive(Debug)]
struct Slot {
    /// Present until the request completes.
    rq: Option<InFlight>,
    command: u16,
    flags: u16,
    offset: u64,
    len: u32,
    pieces: Pieces,
    /// Its memory is gone: data for it is discarded, and the request fails.
    discarded: bool,
    cookie: u64,
    /// Number that gives the order in which requests began.
    order: u64,
    issued: Instant,
    /// When it was first queued for the current connection.
    since: Instant,
}

impl Slot {
    fn new() -> Slot {
        Slot {
            rq: None,
            command: command::FLUSH,
            flags: 0,
            offset: 0,
            len: 0,
            pieces: Pieces::new(),
            discarded: false,
            cookie: 0,
            order: 0,
            issued: Instant::ZERO,
            since: Instant::ZERO,
        }
    }
}

/// The error of a request whose memory has gone: no other path would restore it.
const MEMORY_GONE: BlkStatus = BlkStatus::Target;

/// See the module's text.
pub(super) struct Requests {
    slots: Box<[Slot]>,
    calls: Calls,
    /// Tags, oldest first.
    unsent: VecDeque<u16>,
    ended: VecDeque<(InFlight, BlkStatus)>,
    /// Number of requests in flight.
    in_flight: usize,
    serial: u64,
    begun: u64,
}

impl Requests {
    /// For tags below `depth`.
    pub(super) fn new(depth: usize) -> Requests {
        Requests {
            slots: (0..depth).map(|_| Slot::new()).collect(),
            calls: Calls::new(depth),
            unsent: VecDeque::with_capacity(depth),
            ended: VecDeque::with_capacity(depth),
            in_flight: 0,
            serial: 0,
            begun: 0,
        }
    }

    /// Makes room for another depth; no request is in flight.
    pub(super) fn resize(&mut self, depth: usize) {
        assert!(self.in_flight == 0 && self.ended.is_empty(), "the depth changes with requests in flight");
        if depth != self.slots.len() {
            let serial = self.serial;
            *self = Requests::new(depth);
            self.serial = serial;
        }
    }

    /// Returns how many requests are in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns how many of them were not sent, or not completely.
    pub(super) fn unsent(&self) -> usize {
        self.unsent.len()
    }

    /// Returns how many of them were sent and not answered.
    pub(super) fn sent(&self) -> usize {
        self.in_flight - self.unsent.len()
    }

    /// Whether completed requests were not handed over yet.
    pub(super) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    pub(super) fn calls(&self) -> &Calls {
        &self.calls
    }

    pub(super) fn calls_mut(&mut self) -> &mut Calls {
        &mut self.calls
    }

    /// Notes what a request asks for. With `write_through`, what it writes is durable when it completes. Returns its tag, for
    /// [`Requests::begin`].
    pub(super) fn take(
        &mut self,
        rq: &RqRef<'_>,
        write_through: bool,
        regions: &Regions,
        now: Instant,
    ) -> Result<u16, BlkStatus> {
        let tag = rq.tag().index();
        let slot = &mut self.slots[tag];
        assert!(slot.rq.is_none(), "tag {tag} is in flight already");
        slot.command = match rq.op() {
            Op::Read => command::READ,
            Op::Write => command::WRITE,
            Op::Flush => command::FLUSH,
            Op::Discard => command::TRIM,
            Op::WriteZeroes => command::WRITE_ZEROES,
        };
        let has = |op: Op, flag: OpFlags| rq.op() == op && rq.flags().contains(flag);
        if has(Op::WriteZeroes, OpFlags::NOFALLBACK) {
            // Only the server knows whether zeroing is fast there.
            return Err(BlkStatus::NotSupp);
        }
        // A TRIM, too: one that a server carries out late would remove a newer write by another server.
        let is_durable = match rq.op() {
            Op::Write => write_through || rq.flags().contains(OpFlags::FUA),
            Op::WriteZeroes | Op::Discard => write_through,
            Op::Read | Op::Flush => false,
        };
        slot.flags = if is_durable { command_flag::FUA } else { 0 };
        slot.flags |= if has(Op::WriteZeroes, OpFlags::NOUNMAP) { command_flag::NO_HOLE } else { 0 };
        let is_flush = rq.op() == Op::Flush;
        slot.offset = if is_flush { 0 } else { rq.sector().0 << SECTOR_SHIFT };
        slot.len = if is_flush { 0 } else { rq.nr_sectors() << SECTOR_SHIFT };
        (slot.issued, slot.since) = (now, now);
        slot.discarded = false;
        slot.pieces.clear();
        for segment in rq.segments() {
            regions.resolve(segment.data, segment.len_bytes as usize)?;
            slot.pieces.push(segment.data, segment.len_bytes);
        }
        Ok(tag as u16)
    }

    /// Queues the request that [`Requests::take`] has noted.
    pub(super) fn begin(&mut self, tag: u16, rq: InFlight) {
        self.begun += 1;
        let slot = &mut self.slots[usize::from(tag)];
        (slot.rq, slot.order) = (Some(rq), self.begun);
        self.in_flight += 1;
        self.enqueue(tag);
    }

    fn enqueue(&mut self, tag: u16) {
        self.serial += 1;
        self.slots[usize::from(tag)].cookie = cookie(tag, self.serial);
        self.unsent.push_back(tag);
    }

    fn unsent_slot(&self, index: usize) -> &Slot {
        &self.slots[usize::from(self.unsent[index])]
    }

    /// Copies the headers of the oldest unsent requests. Returns how many there are.
    pub(super) fn headers(&self, into: &mut [[u8; REQUEST_BYTES]]) -> usize {
        let n = into.len().min(self.unsent.len());
        for (i, header) in into[..n].iter_mut().enumerate() {
            let slot = self.unsent_slot(i);
            let Slot { command: kind, flags, cookie, offset, .. } = *slot;
            let fields = RequestHeader { flags, kind, cookie, offset, length: u64::from(slot.len) };
            *header = fields.to_compact().expect("lengths have 32 bits");
        }
        n
    }

    /// Returns the number of payload pieces of the unsent request at this index.
    pub(super) fn pieces_to_send(&self, index: usize) -> usize {
        let slot = self.unsent_slot(index);
        if slot.command == command::WRITE { slot.pieces.len() } else { 0 }
    }

    /// Appends the payload of the unsent request at this index to `out`. Returns the number of bytes.
    pub(super) fn push_payload<'a>(&self, index: usize, regions: &'a Regions, out: &mut Outgoing<'a>) -> usize {
        let slot = self.unsent_slot(index);
        if slot.command != command::WRITE {
            return 0;
        }
        slot.pieces.push_source(0, slot.len, regions, out);
        slot.len as usize
    }

    /// Whether payload memory of the unsent request at this index is gone.
    pub(super) fn has_gone(&self, index: usize, regions: &Regions) -> bool {
        let slot = self.unsent_slot(index);
        slot.command == command::WRITE && slot.pieces.have_gone(regions)
    }

    /// Marks the oldest `n` unsent requests as sent.
    pub(super) fn went_out(&mut self, n: usize) {
        for tag in self.unsent.drain(..n) {
            let slot = &self.slots[usize::from(tag)];
            self.calls.begin(slot.cookie, slot.command == command::READ, slot.offset, slot.len);
        }
    }

    /// Fails the oldest unsent request, because its memory is gone.
    pub(super) fn fail_unsent(&mut self) {
        if let Some(tag) = self.unsent.pop_front() {
            self.end(usize::from(tag), MEMORY_GONE);
        }
    }

    /// Discards a read's data from now on, because its memory is gone. Returns false if it was already being discarded.
    pub(super) fn discard(&mut self, tag: u16) -> bool {
        !std::mem::replace(&mut self.slots[usize::from(tag)].discarded, true)
    }

    /// Returns the memory for a read's data; `None` if the data is discarded.
    pub(super) fn destination(&self, tag: u16) -> Option<&Pieces> {
        let slot = &self.slots[usize::from(tag)];
        (!slot.discarded).then_some(&slot.pieces)
    }

    /// Stores data of a read.
    pub(super) fn put(&mut self, tag: u16, at: u32, bytes: &[u8], regions: &Regions) {
        if let Some(pieces) = self.destination(tag) {
            pieces.put(at, bytes, regions);
        }
    }

    /// Stores zeroes of a read.
    pub(super) fn zero(&mut self, tag: u16, at: u32, len: u32, regions: &Regions) {
        self.slots[usize::from(tag)].pieces.walk(at, len, regions, |span| {
            span.zero();
            true
        });
    }

    /// Completes a request that the server has answered.
    pub(super) fn answered(&mut self, tag: u16, error: Option<NbdError>) {
        let slot = &self.slots[usize::from(tag)];
        let status = error.map_or(BlkStatus::Ok, |error| status_of(error, slot.command == command::FLUSH));
        let lacks = status == BlkStatus::Ok && slot.discarded;
        self.end(usize::from(tag), if lacks { MEMORY_GONE } else { status });
    }

    fn end(&mut self, tag: usize, status: BlkStatus) {
        let rq = self.slots[tag].rq.take().expect("only what is out is answered");
        self.in_flight -= 1;
        self.ended.push_back((rq, status));
    }

    /// The connection is lost: queues all sent requests again, oldest first. Returns how many had been sent.
    pub(super) fn recall(&mut self) -> usize {
        let sent = self.sent();
        self.calls.clear();
        self.unsent.clear();
        let out = |tag: &u16| self.slots[usize::from(*tag)].rq.is_some();
        let mut tags: Vec<u16> = (0..self.slots.len() as u16).filter(out).collect();
        tags.sort_unstable_by_key(|tag| self.slots[usize::from(*tag)].order);
        tags.into_iter().for_each(|tag| self.enqueue(tag));
        sent
    }

    /// Restarts the requests' timeouts, because a new connection begins now.
    pub(super) fn rewind(&mut self, now: Instant) {
        for tag in &self.unsent {
            self.slots[usize::from(*tag)].since = now;
        }
    }

    /// Fails all requests. The connection is gone.
    pub(super) fn fail_all(&mut self, status: BlkStatus) {
        self.calls.clear();
        self.unsent.clear();
        for tag in 0..self.slots.len() {
            if self.slots[tag].rq.is_some() {
                self.end(tag, status);
            }
        }
    }

    /// Whether a request has waited on the current connection for `timeout`.
    pub(super) fn has_older(&self, timeout: Duration, now: Instant) -> bool {
        self.slots.iter().any(|slot| slot.rq.is_some() && now.since(slot.since) >= timeout)
    }

    /// Fails the requests that have waited on the current connection for `timeout`. The connection has to be dropped, because the server
    /// may still answer them.
    pub(super) fn fail_older(&mut self, timeout: Duration, now: Instant) {
        self.unsent.clear();
        for tag in 0..self.slots.len() {
            let slot = &self.slots[tag];
            if slot.rq.is_some() && now.since(slot.since) >= timeout {
                self.end(tag, BlkStatus::Timeout);
            }
        }
    }

    /// Whether the request with this tag and issue time is still in flight.
    pub(super) fn is_out(&self, tag: Tag, issued: Instant) -> bool {
        self.slots.get(tag.index()).is_some_and(|s| s.rq.is_some() && s.issued == issued)
    }

    /// Returns when the request with this tag was queued for the current connection.
    pub(super) fn sent_since(&self, tag: Tag) -> Instant {
        self.slots[tag.index()].since
    }

    /// Returns completed requests, as many as fit.
    pub(super) fn give_ended(&mut self, done: &mut Completions) {
        let n = self.ended.len().min(done.room());
        self.ended.drain(..n).for_each(|(rq, status)| done.push(rq, status));
    }
}

fn status_of(error: NbdError, is_flush: bool) -> BlkStatus {
    match error {
        // QEMU answers EINVAL for every errno that NBD does not have.
        NbdError::Io | NbdError::Inval | NbdError::NoMem | NbdError::Perm | NbdError::Overflow if is_flush => {
            BlkStatus::Target
        }
        NbdError::NoSpc => BlkStatus::NoSpc,
        NbdError::NoMem => BlkStatus::Resource,
        NbdError::Inval => BlkStatus::Inval,
        NbdError::NotSup => BlkStatus::NotSupp,
        NbdError::Perm | NbdError::Io | NbdError::Overflow | NbdError::Shutdown => BlkStatus::IoErr,
    }
}
