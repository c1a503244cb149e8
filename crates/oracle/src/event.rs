// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The vocabulary in which the kernel's trace and ours are compared.

use std::fmt;

/// First sector, length and direction: how a trace names a bio or a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// A write.
    pub write: bool,
    /// First sector.
    pub sector: u64,
    /// Sectors.
    pub len: u32,
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}+{}", if self.write { 'W' } else { 'R' }, self.sector, self.len)
    }
}

/// What happened. The kernel's `rq_merge` (two requests become one) is a [`Kind::BackMerge`], as in blkparse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A bio was submitted (`bio_queue`).
    Queue,
    /// A request was allocated (`getrq`).
    GetRq,
    /// A request went to the elevator or a software queue (`rq_insert`).
    Insert,
    /// A bio was appended, or a request joined to the one before it (`bio_backmerge`, `rq_merge`).
    BackMerge,
    /// A bio was put in front (`bio_frontmerge`).
    FrontMerge,
    /// A bio was too large; the extent is that of the piece in front (`split`).
    Split,
    /// A request was handed to the driver (`rq_issue`).
    Issue,
    /// The driver requeued a request (`rq_requeue`).
    Requeue,
    /// The driver completed a request (`rq_complete`).
    Complete,
    /// A plug was emptied of so many requests (`unplug`).
    Unplug(u32),
}

impl Kind {
    /// The letter of blkparse.
    pub fn letter(self) -> char {
        match self {
            Kind::Queue => 'Q',
            Kind::GetRq => 'G',
            Kind::Insert => 'I',
            Kind::BackMerge => 'M',
            Kind::FrontMerge => 'F',
            Kind::Split => 'X',
            Kind::Issue => 'D',
            Kind::Requeue => 'R',
            Kind::Complete => 'C',
            Kind::Unplug(_) => 'U',
        }
    }
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Microseconds from the origin of the trace's clock.
    pub us: u64,
    /// What.
    pub kind: Kind,
    /// The extent; it has no meaning for [`Kind::Unplug`].
    pub extent: Extent,
    /// On which CPU.
    pub cpu: u16,
    /// Done by a worker of the kernel: not by the process, nor in an interrupt.
    pub by_worker: bool,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Unplug(n) => write!(f, "U {n}"),
            kind => write!(f, "{} {}", kind.letter(), self.extent),
        }
    }
}
