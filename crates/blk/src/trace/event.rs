// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The events of a trace.
//!
//! Guarantees: an event describes one step of one bio, request or plug, in 32 bytes. Source: include/trace/events/block.h
//! of Linux 6.19; letters: blkparse(1).

use crate::bio::{Op, OpFlags};
use crate::id::{CpuId, HctxId, Sector, Tag};
use crate::request::NO_TAG;
use crate::status::BlkStatus;
use crate::time::Instant;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EventKind {
    /// Q: a bio was submitted.
    Queue,
    /// G: a request was allocated for it.
    GetRq,
    /// I: a request was inserted into the elevator or a ctx list. A request that goes to the driver directly has no
    /// such event.
    Insert,
    /// D: a request was issued to the driver.
    Issue,
    /// C: the driver completed a request, or the core failed a bio that may not wait for a tag.
    Complete,
    /// M: a bio was appended to a request, or a request joined to the one before it.
    BackMerge,
    /// F: a bio was put in front of a request.
    FrontMerge,
    /// P: the first request went into an open plug.
    Plug,
    /// U: the plug was emptied; [`Event::count`] is the number of its requests.
    Unplug,
    /// m: a request timed out, and the driver's timeout function was called. blktrace has no letter for this; there it
    /// is a message.
    Timeout,
    /// R: a driver gave a request back.
    Requeue,
    /// X: a bio was split; the event has the sectors of the front piece.
    Split,
}

impl EventKind {
    /// Returns blkparse's letter.
    pub const fn letter(self) -> char {
        match self {
            EventKind::Queue => 'Q',
            EventKind::GetRq => 'G',
            EventKind::Insert => 'I',
            EventKind::Issue => 'D',
            EventKind::Complete => 'C',
            EventKind::BackMerge => 'M',
            EventKind::FrontMerge => 'F',
            EventKind::Plug => 'P',
            EventKind::Unplug => 'U',
            EventKind::Timeout => 'm',
            EventKind::Requeue => 'R',
            EventKind::Split => 'X',
        }
    }
}

/// The event has no hctx yet.
pub(super) const NO_HCTX: u16 = u16::MAX;

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When it happened.
    pub time: Instant,
    pub(super) sector: u64,
    pub(super) nr_sectors: u32,
    pub(super) flags: OpFlags,
    pub(super) cpu: u16,
    pub(super) hctx: u16,
    pub(super) tag: u16,
    pub(super) op: Op,
    /// What happened.
    pub kind: EventKind,
    pub(super) status: BlkStatus,
}

const _: () = assert!(size_of::<Event>() == 32);

impl Event {
    /// Returns the CPU of the submitter that did the step.
    pub fn cpu(&self) -> CpuId {
        CpuId::new(u32::from(self.cpu))
    }

    /// Returns the hardware queue of the request; `None` for events of bios and plugs.
    pub fn hctx(&self) -> Option<HctxId> {
        (self.hctx != NO_HCTX).then(|| HctxId::new(u32::from(self.hctx)))
    }

    /// Returns the driver tag, if the request has one.
    pub fn tag(&self) -> Option<Tag> {
        (self.tag != NO_TAG).then(|| Tag::new(u32::from(self.tag)))
    }

    /// Returns the operation; it has no meaning for plug events.
    pub fn op(&self) -> Op {
        self.op
    }

    /// Returns the operation's modifiers.
    pub fn flags(&self) -> OpFlags {
        self.flags
    }

    /// Returns the first sector; 0 for plug events.
    pub fn sector(&self) -> Sector {
        Sector(self.sector)
    }

    /// Returns the length in sectors; 0 for plug events and flushes.
    pub fn nr_sectors(&self) -> u32 {
        if self.kind == EventKind::Unplug { 0 } else { self.nr_sectors }
    }

    /// Returns how many requests left the plug ([`EventKind::Unplug`]); 0 for all others.
    pub fn count(&self) -> u32 {
        if self.kind == EventKind::Unplug { self.nr_sectors } else { 0 }
    }

    /// Returns the outcome ([`EventKind::Complete`]); `Ok` for all others.
    pub fn status(&self) -> BlkStatus {
        self.status
    }

    pub(super) fn plain(kind: EventKind, cpu: u16, now: Instant) -> Event {
        Event {
            time: now,
            sector: 0,
            nr_sectors: 0,
            flags: OpFlags::NONE,
            cpu,
            hctx: NO_HCTX,
            tag: NO_TAG,
            op: Op::Read,
            kind,
            status: BlkStatus::Ok,
        }
    }
}

/// The events that were not drained when tracing was turned off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceLog {
    /// Events in the submitter's order.
    pub events: Vec<Event>,
    /// Number of events that were dropped because the log was full.
    pub dropped: u64,
}
