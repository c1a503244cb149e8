// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands of one hardware queue that are in flight: where their data is, how much of it has arrived, and how they
//! complete.
//!
//! Guarantees: a tag finds its task only while the task is in flight. Data comes in order and within what was asked for; the
//! target asks for each byte of a write at most once. A read that succeeds has all its data; of a write that succeeds all
//! data was asked for or sent. Requests' memory is accessed only for tasks in flight. Does not know the session's numbers,
//! or what is sent when.

use super::dial::sense_of;
use super::link::Lost;
use super::own::{Own, is_of_another, unheard};
use super::pdu::{DataIn, Direction, Status, Violation, is_before};
use crate::driver::pieces::Pieces;
use crate::mem::Regions;
use crate::net::vectored::Outgoing;
use blk::driver::TimedOut;
use blk::id::SECTOR_SHIFT;
use blk::scsi::disposition::{HostByte, Outcome, sam};
use blk::scsi::transport::{AcceptedCommand, Command, Outcomes, Payload};
use blk::status::BlkStatus;
use blk::time::{Duration, Instant};
use std::collections::VecDeque;

/// Minimum length of a read that is received directly into its memory.
const LARGE: u32 = 32 << 10;
/// Serial numbers of tasks, above the index; tags beyond are the session's own.
const SERIALS: u32 = 0x7fff;
/// Data that WRITE SAME writes over the blocks.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

#[derive(Debug)]
struct Slot {
    /// Present while the task is in flight.
    ticket: Option<AcceptedCommand>,
    /// Its tag on the wire.
    wire_tag: u32,
    cdb: [u8; 16],
    payload: Payload,
    len: u32,
    /// Bytes received, or asked for by the target, or sent unsolicited.
    moved: u32,
    pieces: Pieces,
    /// Its memory is gone.
    discarded: bool,
    issued: Instant,
    cmd_sn: u32,
}

/// See the module's text.
pub(super) struct Tasks {
    slots: Box<[Slot]>,
    ended: VecDeque<(AcceptedCommand, Outcome)>,
    in_flight: usize,
    large_reads: usize,
    serial: u32,
    /// See [`Tasks::take_told`].
    has_told: bool,
    /// Commands of our own and management functions.
    pub(super) own: Own,
}

impl Tasks {
    /// Makes room for tags below `depth`.
    pub(super) fn new(depth: usize) -> Tasks {
        let slot = || Slot {
            ticket: None,
            wire_tag: 0,
            cdb: [0; 16],
            payload: Payload::None,
            len: 0,
            moved: 0,
            pieces: Pieces::new(),
            discarded: false,
            issued: Instant::ZERO,
            cmd_sn: 0,
        };
        Tasks {
            slots: (0..depth).map(|_| slot()).collect(),
            ended: VecDeque::with_capacity(depth),
            in_flight: 0,
            large_reads: 0,
            serial: 0,
            has_told: false,
            own: Own::default(),
        }
    }

    /// Changes the number of tags; no task may be in flight.
    pub(super) fn resize(&mut self, depth: usize) {
        assert!(self.in_flight == 0 && self.ended.is_empty(), "the depth changes with commands in flight");
        if depth != self.slots.len() {
            let own = std::mem::take(&mut self.own);
            *self = Tasks { serial: self.serial, own, ..Tasks::new(depth) };
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether a request or user command is in flight that may change data.
    pub(super) fn has_changing(&self) -> bool {
        let changes = |s: &Slot| s.ticket.is_some() && !matches!(s.payload, Payload::None | Payload::Read);
        self.slots.iter().any(changes) || self.own.has_changing()
    }

    /// Returns how many tasks are in flight or were not handed over yet.
    pub(super) fn held(&self) -> usize {
        self.in_flight + self.ended.len()
    }

    pub(super) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    pub(super) fn has_large_reads(&self) -> bool {
        self.large_reads > 0
    }

    /// Notes what a command asks for. Returns its tag, for [`Tasks::begin`].
    pub(super) fn take(&mut self, command: &Command<'_>, regions: &Regions, now: Instant) -> Result<u16, BlkStatus> {
        let index = command.rq.tag().index();
        let slot = &mut self.slots[index];
        assert!(slot.ticket.is_none(), "tag {index} is in flight already");
        slot.pieces.clear();
        slot.len = match command.payload {
            Payload::None => 0,
            Payload::Read | Payload::Write => command.rq.nr_sectors() << SECTOR_SHIFT,
            Payload::Unmap(list) => list.len() as u32,
            Payload::Zeroes(n) => n,
        };
        if matches!(command.payload, Payload::Read | Payload::Write) {
            for segment in command.rq.segments() {
                regions.resolve(segment.data, segment.len_bytes as usize)?;
                slot.pieces.push(segment.data, segment.len_bytes);
            }
        }
        (slot.cdb, slot.payload) = (*command.cdb.padded(), command.payload);
        (slot.moved, slot.discarded, slot.issued) = (0, false, now);
        self.serial = (self.serial + 1) % SERIALS;
        slot.wire_tag = self.serial << 16 | index as u32;
        Ok(index as u16)
    }

    /// Puts the command that [`Tasks::take`] has noted in flight.
    pub(super) fn begin(&mut self, tag: u16, ticket: AcceptedCommand) {
        let slot = &mut self.slots[usize::from(tag)];
        slot.ticket = Some(ticket);
        self.large_reads += usize::from(slot.payload == Payload::Read && slot.len >= LARGE);
        self.in_flight += 1;
    }

    /// Returns a command: tag on the wire, descriptor block, direction, bytes.
    pub(super) fn command(&self, tag: u16) -> (u32, &[u8; 16], Direction, u32) {
        let slot = &self.slots[usize::from(tag)];
        let way = match slot.payload {
            Payload::None => Direction::None,
            Payload::Read => Direction::Read,
            Payload::Write | Payload::Unmap(_) | Payload::Zeroes(_) => Direction::Write,
        };
        (slot.wire_tag, &slot.cdb, way, slot.len)
    }

    /// Notes the command's number, and how many bytes of a write are sent unsolicited.
    pub(super) fn sends_unasked(&mut self, tag: u16, cmd_sn: u32, bytes: u32) {
        let slot = &mut self.slots[usize::from(tag)];
        (slot.cmd_sn, slot.moved) = (cmd_sn, bytes);
    }

    /// Returns tag on the wire and number of the command that was issued then, if it is in flight.
    pub(super) fn reference(&self, late: TimedOut) -> Option<(u32, u32)> {
        let slot = self.slots.get(late.tag.index()).filter(|s| s.ticket.is_some() && s.issued == late.issued)?;
        Some((slot.wire_tag, slot.cmd_sn))
    }

    /// Completes a task that the target has aborted. Returns false if it has completed meanwhile.
    pub(super) fn aborted(&mut self, index: u16, wire_tag: u32) -> bool {
        let slot = self.slots.get(usize::from(index));
        let is_out = slot.is_some_and(|s| s.ticket.is_some() && s.wire_tag == wire_tag);
        if is_out {
            self.end(usize::from(index), Outcome::host(HostByte::Abort));
        }
        is_out
    }

    /// Completes the commands before this number, because a reset has ended them. Returns their tags.
    pub(super) fn reset_before(&mut self, cmd_sn: u32) -> Vec<u16> {
        let was_before = |s: &Slot| s.ticket.is_some() && is_before(s.cmd_sn, cmd_sn);
        let all: Vec<usize> = (0..self.slots.len()).filter(|i| was_before(&self.slots[*i])).collect();
        all.iter().for_each(|index| self.end(*index, Outcome::host(HostByte::Reset)));
        all.into_iter().map(|index| index as u16).collect()
    }

    /// Returns the task in flight with this tag.
    fn find(&self, wire_tag: u32) -> Result<usize, Violation> {
        let index = (wire_tag & 0xffff) as usize;
        let found = self.slots.get(index).is_some_and(|slot| slot.wire_tag == wire_tag && slot.ticket.is_some());
        if found {
            Ok(index)
        } else {
            Err(Violation(format!("a PDU for task {wire_tag:#x}, which is not outstanding")))
        }
    }

    /// Returns the task for which the target asks for data.
    pub(super) fn asked_for(&mut self, wire_tag: u32, offset: u32, len: u32) -> Result<u16, Violation> {
        let index = self.find(wire_tag)?;
        let slot = &mut self.slots[index];
        let is_write = !matches!(slot.payload, Payload::None | Payload::Read);
        if !is_write || len == 0 || offset != slot.moved || slot.len - slot.moved < len {
            let (moved, all) = (slot.moved, slot.len);
            return Err(Violation(format!(
                "an R2T for {len} bytes at offset {offset} of a task of {all} bytes, {moved} of them sent"
            )));
        }
        slot.moved += len;
        Ok(index as u16)
    }

    /// Records that data of a read begins.
    pub(super) fn data_begins(&mut self, data: &DataIn) -> Result<(), Violation> {
        let index = self.find(data.tag)?;
        let slot = &mut self.slots[index];
        if slot.payload != Payload::Read || data.offset != slot.moved || slot.len - slot.moved < data.len {
            let (moved, all, DataIn { offset, len, .. }) = (slot.moved, slot.len, data);
            return Err(Violation(format!(
                "{len} bytes at offset {offset} of a task of {all} bytes, {moved} of them received"
            )));
        }
        slot.moved += data.len;
        Ok(())
    }

    /// Stores data of a read that [`Tasks::data_begins`] has announced.
    pub(super) fn put(&mut self, wire_tag: u32, at: u32, bytes: &[u8], regions: &Regions) {
        if let Some(pieces) = self.destination(wire_tag) {
            pieces.put(at, bytes, regions);
        }
    }

    /// Returns the memory for a read's data; `None` if the data is discarded.
    pub(super) fn destination(&self, wire_tag: u32) -> Option<&Pieces> {
        let slot = &self.slots[(wire_tag & 0xffff) as usize];
        (!slot.discarded).then_some(&slot.pieces)
    }

    /// Discards a read's data from now on, because its memory is gone. Returns false if it was already being discarded.
    pub(super) fn discard(&mut self, wire_tag: u32) -> bool {
        !std::mem::replace(&mut self.slots[(wire_tag & 0xffff) as usize].discarded, true)
    }

    /// Whether any of a task's memory has gone.
    pub(super) fn has_gone(&self, tag: u16, regions: &Regions) -> bool {
        self.slots[usize::from(tag)].pieces.have_gone(regions)
    }

    /// Returns the maximum number of pieces that data of a write takes.
    pub(super) fn pieces(&self, tag: u16) -> usize {
        self.slots[usize::from(tag)].pieces.len().max(1)
    }

    /// Appends data of a write to `out`.
    pub(super) fn push_data<'a>(&'a self, tag: u16, at: u32, len: u32, regions: &'a Regions, out: &mut Outgoing<'a>) {
        let slot = &self.slots[usize::from(tag)];
        match &slot.payload {
            Payload::Write => slot.pieces.push_source(at, len, regions, out),
            Payload::Unmap(list) => out.push(&list[at as usize..][..len as usize]),
            Payload::Zeroes(_) => out.push(&ZEROES[..len as usize]),
            Payload::None | Payload::Read => {}
        }
    }

    /// Returns a copy of a write's data; `None` if its memory has gone.
    pub(super) fn copy_data(&self, tag: u16, at: u32, len: u32, regions: &Regions) -> Option<Vec<u8>> {
        let slot = &self.slots[usize::from(tag)];
        let mut copy = vec![0; len as usize];
        match &slot.payload {
            Payload::Write => {
                let mut filled = 0;
                slot.pieces.walk(at, len, regions, |span| {
                    span.copy_to_slice(&mut copy[filled..filled + span.len()]);
                    filled += span.len();
                    true
                });
            }
            Payload::Unmap(list) => copy.copy_from_slice(&list[at as usize..][..len as usize]),
            Payload::Zeroes(_) | Payload::None | Payload::Read => {}
        }
        (!slot.pieces.have_gone(regions)).then_some(copy)
    }

    /// Completes a command that the target has answered; `has_unsent`: some of its data was still to be sent.
    pub(super) fn completed(
        &mut self,
        wire_tag: u32,
        status: Status,
        data: &[u8],
        has_unsent: bool,
    ) -> Result<(), Lost> {
        let index = self.find(wire_tag)?;
        let slot = &self.slots[index];
        // Some targets report that they took nothing of a parameter list (tgt for UNMAP); that is ignored. For data blocks an underflow is
        // a failure.
        let underflow = match slot.payload {
            Payload::Read | Payload::Write => status.underflow,
            Payload::None | Payload::Unmap(_) | Payload::Zeroes(_) => 0,
        };
        let missing = match slot.payload {
            // This includes a parameter list or a block of zeroes, because data that waits to be sent already counts as moved.
            _ if slot.discarded || has_unsent => slot.len,
            // This part of the data was not transferred.
            Payload::Read | Payload::Write | Payload::Zeroes(_) => slot.len - slot.moved,
            Payload::None | Payload::Unmap(_) => 0,
        };
        let sense = if status.status == sam::CHECK_CONDITION { sense_of(data) } else { None };
        let outcome = Outcome { status: status.status, sense, residual: missing.max(underflow), ..Outcome::GOOD };
        self.end(index, outcome);
        if is_of_another(&outcome) {
            self.has_told = true;
            return Err(unheard());
        }
        Ok(())
    }

    /// Returns whether, since the last call, a request or a command of our own has received a report that the unit has
    /// changed.
    pub(super) fn take_told(&mut self) -> bool {
        self.own.take_told() | std::mem::take(&mut self.has_told)
    }

    /// Whether a request or a user's command is in flight.
    pub(super) fn has_user_command(&self) -> bool {
        self.in_flight > 0 || self.own.has_user_command()
    }

    /// Completes a command that was not carried out: the target failed.
    pub(super) fn failed(&mut self, wire_tag: u32) -> Result<(), Violation> {
        let index = self.find(wire_tag)?;
        self.end(index, Outcome::host(HostByte::Error));
        Ok(())
    }

    /// Fails a write whose memory has gone. Other tasks are not failed, though the session has to be dropped.
    pub(super) fn fail_one(&mut self, tag: u16) {
        if self.slots[usize::from(tag)].ticket.is_some() {
            self.end(usize::from(tag), Outcome::check(MEMORY_GONE));
        }
    }

    fn end(&mut self, index: usize, outcome: Outcome) {
        let slot = &mut self.slots[index];
        let ticket = slot.ticket.take().expect("only what is out ends");
        self.large_reads -= usize::from(slot.payload == Payload::Read && slot.len >= LARGE);
        self.in_flight -= 1;
        self.ended.push_back((ticket, outcome));
    }

    /// Completes a command that was never in flight.
    pub(super) fn end_at_once(&mut self, ticket: AcceptedCommand, cdb: [u8; 16], outcome: Outcome) {
        self.slots[ticket.tag().index()].cdb = cdb;
        self.ended.push_back((ticket, outcome));
    }

    /// Completes all tasks in flight. Returns how many.
    pub(super) fn end_all(&mut self, host: HostByte) -> usize {
        let before = self.in_flight;
        for index in 0..self.slots.len() {
            if self.slots[index].ticket.is_some() {
                self.end(index, Outcome::host(host));
            }
        }
        self.own.end_all(host);
        self.own.forget_managed();
        before
    }

    /// Whether a task has been in flight for `time`.
    pub(super) fn has_older(&self, time: Duration, now: Instant) -> bool {
        self.slots.iter().any(|slot| slot.ticket.is_some() && now.since(slot.issued) >= time)
    }

    /// Returns completed commands, as many as fit, and how many these are.
    pub(super) fn give_ended(&mut self, to: &mut Outcomes<'_>) -> usize {
        let n = self.ended.len().min(to.room());
        for (ticket, outcome) in self.ended.drain(..n) {
            // A tag is used again only after its command was handed over.
            let slot = &self.slots[ticket.tag().index()];
            to.push(ticket, &outcome, Some(&slot.cdb));
        }
        n
    }
}

/// The error of a failed device: no retry, and no other path, would restore the memory.
const MEMORY_GONE: blk::scsi::sense::Sense =
    blk::scsi::sense::Sense::new(blk::scsi::sense::SenseKey::HardwareError, 0x4b, 0);
