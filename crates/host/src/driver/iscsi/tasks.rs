// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands of one hardware queue that are with the target: where their data lies, how much of it has come, how they end.
//!
//! Guarantees: a task is found by its tag only while it is out; data comes in order, within what was asked for, and each byte of a
//! write is asked for once at most; a read that ends well has all its data, and of a write that does all was asked for or sent. Memory of requests is reached for only for tasks that
//! are out. Does not do: the session's numbers, and what goes over the wire when.

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

/// A read that is worth a receive to where it belongs.
const LARGE: u32 = 32 << 10;
/// Serial numbers of tasks, above the index; tags beyond are the session's own.
const SERIALS: u32 = 0x7fff;
/// What is written over blocks by WRITE SAME.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

#[derive(Debug)]
struct Slot {
    /// There while the task is out.
    ticket: Option<AcceptedCommand>,
    /// Its tag on the wire.
    wire_tag: u32,
    cdb: [u8; 16],
    payload: Payload,
    len: u32,
    /// Bytes that came in, or were asked for or sent without being asked for.
    moved: u32,
    pieces: Pieces,
    /// Its memory has gone.
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
    /// What is out beside requests.
    pub(super) own: Own,
}

impl Tasks {
    /// For tags below `depth`.
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

    /// The same for another depth, while there are none.
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

    /// Whether one is out that may change what is stored, of requests or of users.
    pub(super) fn has_changing(&self) -> bool {
        let changes = |s: &Slot| s.ticket.is_some() && !matches!(s.payload, Payload::None | Payload::Read);
        self.slots.iter().any(changes) || self.own.has_changing()
    }

    /// Those that are out or were not given back.
    pub(super) fn held(&self) -> usize {
        self.in_flight + self.ended.len()
    }

    pub(super) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    pub(super) fn has_large_reads(&self) -> bool {
        self.large_reads > 0
    }

    /// Notes what a command asks for; its tag, for [`Tasks::begin`].
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

    /// What [`Tasks::take`] has noted is out.
    pub(super) fn begin(&mut self, tag: u16, ticket: AcceptedCommand) {
        let slot = &mut self.slots[usize::from(tag)];
        slot.ticket = Some(ticket);
        self.large_reads += usize::from(slot.payload == Payload::Read && slot.len >= LARGE);
        self.in_flight += 1;
    }

    /// What the command is: tag on the wire, descriptor block, direction, bytes.
    pub(super) fn command(&self, tag: u16) -> (u32, &[u8; 16], Direction, u32) {
        let slot = &self.slots[usize::from(tag)];
        let way = match slot.payload {
            Payload::None => Direction::None,
            Payload::Read => Direction::Read,
            Payload::Write | Payload::Unmap(_) | Payload::Zeroes(_) => Direction::Write,
        };
        (slot.wire_tag, &slot.cdb, way, slot.len)
    }

    /// It has this number, and so many bytes of a write go without being asked for.
    pub(super) fn sends_unasked(&mut self, tag: u16, cmd_sn: u32, bytes: u32) {
        let slot = &mut self.slots[usize::from(tag)];
        (slot.cmd_sn, slot.moved) = (cmd_sn, bytes);
    }

    /// Tag on the wire and number of the command that was issued then, if it is out.
    pub(super) fn reference(&self, late: TimedOut) -> Option<(u32, u32)> {
        let slot = self.slots.get(late.tag.index()).filter(|s| s.ticket.is_some() && s.issued == late.issued)?;
        Some((slot.wire_tag, slot.cmd_sn))
    }

    /// The target says that it has aborted this one; false if it has ended meanwhile.
    pub(super) fn aborted(&mut self, index: u16, wire_tag: u32) -> bool {
        let slot = self.slots.get(usize::from(index));
        let is_out = slot.is_some_and(|s| s.ticket.is_some() && s.wire_tag == wire_tag);
        if is_out {
            self.end(usize::from(index), Outcome::host(HostByte::Abort));
        }
        is_out
    }

    /// Commands before this number were ended by a reset: which.
    pub(super) fn reset_before(&mut self, cmd_sn: u32) -> Vec<u16> {
        let was_before = |s: &Slot| s.ticket.is_some() && is_before(s.cmd_sn, cmd_sn);
        let all: Vec<usize> = (0..self.slots.len()).filter(|i| was_before(&self.slots[*i])).collect();
        all.iter().for_each(|index| self.end(*index, Outcome::host(HostByte::Reset)));
        all.into_iter().map(|index| index as u16).collect()
    }

    /// The task that is out under this tag.
    fn find(&self, wire_tag: u32) -> Result<usize, Violation> {
        let index = (wire_tag & 0xffff) as usize;
        let found = self.slots.get(index).is_some_and(|slot| slot.wire_tag == wire_tag && slot.ticket.is_some());
        if found {
            Ok(index)
        } else {
            Err(Violation(format!("a message is about task {wire_tag:#x}, which is not out")))
        }
    }

    /// The target asks for data: the task it is of.
    pub(super) fn asked_for(&mut self, wire_tag: u32, offset: u32, len: u32) -> Result<u16, Violation> {
        let index = self.find(wire_tag)?;
        let slot = &mut self.slots[index];
        let is_write = !matches!(slot.payload, Payload::None | Payload::Read);
        if !is_write || len == 0 || offset != slot.moved || slot.len - slot.moved < len {
            let (moved, all) = (slot.moved, slot.len);
            return Err(Violation(format!(
                "it asks for {len} bytes from {offset} on of a task of {all}, {moved} of them sent"
            )));
        }
        slot.moved += len;
        Ok(index as u16)
    }

    /// Data of a read begins.
    pub(super) fn data_begins(&mut self, data: &DataIn) -> Result<(), Violation> {
        let index = self.find(data.tag)?;
        let slot = &mut self.slots[index];
        if slot.payload != Payload::Read || data.offset != slot.moved || slot.len - slot.moved < data.len {
            let (moved, all, DataIn { offset, len, .. }) = (slot.moved, slot.len, data);
            return Err(Violation(format!(
                "{len} bytes for {offset} of a task of {all} bytes, {moved} of which have come"
            )));
        }
        slot.moved += data.len;
        Ok(())
    }

    /// Data of a read that was told by [`Tasks::data_begins`].
    pub(super) fn put(&mut self, wire_tag: u32, at: u32, bytes: &[u8], regions: &Regions) {
        if let Some(pieces) = self.destination(wire_tag) {
            pieces.put(at, bytes, regions);
        }
    }

    /// Where data of a read belongs; `None` if it is left out.
    pub(super) fn destination(&self, wire_tag: u32) -> Option<&Pieces> {
        let slot = &self.slots[(wire_tag & 0xffff) as usize];
        (!slot.discarded).then_some(&slot.pieces)
    }

    /// The memory of a read has gone. False if that is known.
    pub(super) fn discard(&mut self, wire_tag: u32) -> bool {
        !std::mem::replace(&mut self.slots[(wire_tag & 0xffff) as usize].discarded, true)
    }

    /// Whether memory of it has gone.
    pub(super) fn has_gone(&self, tag: u16, regions: &Regions) -> bool {
        self.slots[usize::from(tag)].pieces.have_gone(regions)
    }

    /// Pieces that data of a write takes at most.
    pub(super) fn pieces(&self, tag: u16) -> usize {
        self.slots[usize::from(tag)].pieces.len().max(1)
    }

    /// Puts data of a write behind what is to be sent.
    pub(super) fn push_data<'a>(&'a self, tag: u16, at: u32, len: u32, regions: &'a Regions, out: &mut Outgoing<'a>) {
        let slot = &self.slots[usize::from(tag)];
        match &slot.payload {
            Payload::Write => slot.pieces.push_source(at, len, regions, out),
            Payload::Unmap(list) => out.push(&list[at as usize..][..len as usize]),
            Payload::Zeroes(_) => out.push(&ZEROES[..len as usize]),
            Payload::None | Payload::Read => {}
        }
    }

    /// A copy of it that stays as it is; `None` if its memory has gone.
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

    /// A command was completed at the target; with what it is to send still being sent, or not.
    pub(super) fn completed(
        &mut self,
        wire_tag: u32,
        status: Status,
        data: &[u8],
        has_unsent: bool,
    ) -> Result<(), Lost> {
        let index = self.find(wire_tag)?;
        let slot = &self.slots[index];
        // Of parameter lists some targets say that they took nothing (tgt of UNMAP); of blocks that is a failure.
        let underflow = match slot.payload {
            Payload::Read | Payload::Write => status.underflow,
            Payload::None | Payload::Unmap(_) | Payload::Zeroes(_) => 0,
        };
        let missing = match slot.payload {
            // Even of a list or a block: what waits to be sent counts as moved already.
            _ if slot.discarded || has_unsent => slot.len,
            // What it would write over the blocks it has not seen.
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

    /// Whether a request was told since the last call that the unit has changed, which has cost its session.
    pub(super) fn take_told(&mut self) -> bool {
        std::mem::take(&mut self.has_told)
    }

    /// A command was not: the target failed.
    pub(super) fn failed(&mut self, wire_tag: u32) -> Result<(), Violation> {
        let index = self.find(wire_tag)?;
        self.end(index, Outcome::host(HostByte::Error));
        Ok(())
    }

    /// The memory of a write has gone: it fails alone, though its session has to be given up.
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

    /// A command that was never out ends so.
    pub(super) fn end_at_once(&mut self, ticket: AcceptedCommand, outcome: Outcome) {
        self.ended.push_back((ticket, outcome));
    }

    /// Ends all that are out; how many.
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

    /// Whether one has been out for `time`.
    pub(super) fn has_older(&self, time: Duration, now: Instant) -> bool {
        self.slots.iter().any(|slot| slot.ticket.is_some() && now.since(slot.issued) >= time)
    }

    /// Hands ended commands over, as many as fit; how many.
    pub(super) fn give_ended(&mut self, to: &mut Outcomes<'_>) -> usize {
        let n = self.ended.len().min(to.room());
        self.ended.drain(..n).for_each(|(ticket, outcome)| to.push(ticket, &outcome));
        n
    }
}

/// As of a device that cannot be helped: no other try, and no other path, would bring the memory back.
const MEMORY_GONE: blk::scsi::sense::Sense =
    blk::scsi::sense::Sense::new(blk::scsi::sense::SenseKey::HardwareError, 0x4b, 0);
