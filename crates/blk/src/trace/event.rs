// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The events of a trace, as a reader gets them.
//!
//! Guarantees: an event tells of one step of one bio, request or plug, in 32 bytes. Source: include/trace/events/block.h of
//! Linux 6.19; letters: blkparse(1).

use crate::bio::{Op, OpFlags};
use crate::id::{CpuId, HctxId, Sector, Tag};
use crate::request::NO_TAG;
use crate::status::BlkStatus;
use crate::time::Instant;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EventKind {
    /// Q: a bio was handed in.
    Queue,
    /// G: a request was allocated for it.
    GetRq,
    /// I: a request went to the elevator or a ctx list. One that goes to the driver directly has no such event.
    Insert,
    /// D: a request was handed to the driver.
    Issue,
    /// C: the driver (or, of a bio that was not to wait for a tag, the core) ended it.
    Complete,
    /// M: a bio was appended to a request, or a request joined to the one before it.
    BackMerge,
    /// F: a bio was put in front of a request.
    FrontMerge,
    /// P: the first request went into an open plug.
    Plug,
    /// U: the plug was emptied; [`Event::count`] says of how many requests.
    Unplug,
    /// m: the driver was asked about a request that is late. blktrace has no letter for it, so this is a message there.
    Timeout,
    /// R: a driver gave a request back.
    Requeue,
    /// X: a bio was cut; the event has the extent of the piece in front.
    Split,
}

impl EventKind {
    /// The letter of blkparse.
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

/// No hctx is known yet.
pub(super) const NO_HCTX: u16 = u16::MAX;

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub time: Instant,
    pub(super) sector: u64,
    pub(super) nr_sectors: u32,
    pub(super) flags: OpFlags,
    pub(super) cpu: u16,
    pub(super) hctx: u16,
    pub(super) tag: u16,
    pub(super) op: Op,
    /// What.
    pub kind: EventKind,
    pub(super) status: BlkStatus,
}

const _: () = assert!(size_of::<Event>() == 32);

impl Event {
    /// The CPU of the submitter that did it.
    pub fn cpu(&self) -> CpuId {
        CpuId::new(u32::from(self.cpu))
    }

    /// The hardware queue of the request; of a bio's events and plug events there is none.
    pub fn hctx(&self) -> Option<HctxId> {
        (self.hctx != NO_HCTX).then(|| HctxId::new(u32::from(self.hctx)))
    }

    /// The driver tag, once the request has one.
    pub fn tag(&self) -> Option<Tag> {
        (self.tag != NO_TAG).then(|| Tag::new(u32::from(self.tag)))
    }

    /// The operation; that of plug events means nothing.
    pub fn op(&self) -> Op {
        self.op
    }

    /// Its modifiers.
    pub fn flags(&self) -> OpFlags {
        self.flags
    }

    /// First sector; 0 of plug events.
    pub fn sector(&self) -> Sector {
        Sector(self.sector)
    }

    /// Length in sectors; 0 of plug events and of flushes.
    pub fn nr_sectors(&self) -> u32 {
        if self.kind == EventKind::Unplug { 0 } else { self.nr_sectors }
    }

    /// Requests that left the plug ([`EventKind::Unplug`]); 0 of all others.
    pub fn count(&self) -> u32 {
        if self.kind == EventKind::Unplug { self.nr_sectors } else { 0 }
    }

    /// How it ended ([`EventKind::Complete`]); `Ok` of all others.
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

/// What was traced until tracing ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceLog {
    /// In the submitter's order.
    pub events: Vec<Event>,
    /// Events that came when the log was full.
    pub dropped: u64,
}
