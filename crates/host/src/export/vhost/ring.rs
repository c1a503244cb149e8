// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A virtqueue's ring, split or packed: chains of descriptors come out, used ones go back.
//!
//! Guarantees: a descriptor is read once, so what was checked is what is used; a chain has at most as many descriptors as the
//! queue or its indirect table; a ring that breaks a rule is an error and is not read again by its owner. What follows
//! in memory from an address is checked by the translation.
//!
//! Source: virtio 1.3, sections 2.6, 2.7, 2.8.

use super::memory::GuestMemory;
use super::packed::PackedRing;
use super::split::SplitRing;
use crate::mem::{Regions, Window};
use std::sync::Arc;

/// `VIRTQ_DESC_F_NEXT`
pub(super) const F_NEXT: u16 = 1;
/// `VIRTQ_DESC_F_WRITE`
pub(super) const F_WRITE: u16 = 2;
/// `VIRTQ_DESC_F_INDIRECT`
pub(super) const F_INDIRECT: u16 = 4;
/// Bytes of a descriptor.
pub(super) const DESC_BYTES: usize = 16;
/// Largest queue taken, as QEMU's (`VIRTQUEUE_MAX_SIZE`); virtio allows 32768.
pub const MAX_QUEUE_SIZE: u16 = 1024;
/// Most descriptors of one chain: more than `seg_max` asks for and enough for any driver.
pub(super) const MAX_CHAIN: usize = 1024 + 2;

/// One descriptor of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Desc {
    /// Guest address.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// The device writes it.
    pub write: bool,
}

/// What has to go back for a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Index of its first descriptor, or the buffer's number in a packed ring.
    pub id: u16,
    /// Entries it takes in a packed ring.
    pub entries: u16,
    /// Where a packed ring's notes of requests in flight have it.
    pub note: u16,
}

/// A rule that the driver broke. The queue cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum RingError {
    #[error("available index {index} is more than {size} ahead of {next}: the driver added more than the queue holds")]
    TooManyAvailable { index: u16, next: u16, size: u16 },
    #[error("descriptor {index} is outside the table of {size}")]
    OutsideTable { index: u16, size: u16 },
    #[error("a chain has more than {most} descriptors: a loop")]
    Loop { most: usize },
    #[error("an indirect descriptor has the flags {flags:#x}: indirect tables do not nest and do not go on")]
    BadIndirect { flags: u16 },
    #[error("an indirect table of {len} bytes: must be a multiple of 16, 16 to {most}")]
    IndirectLength { len: u32, most: usize },
    #[error("an indirect table at {addr:#x} is not in the guest's memory")]
    IndirectAddress { addr: u64 },
    #[error("a packed chain goes on behind what the driver has made available")]
    Unfinished,
    #[error("a descriptor with the indirect flag, which was not negotiated")]
    IndirectNotNegotiated,
    #[error("more descriptors are in use than the queue has")]
    TooManyInUse,
}

/// Guest memory as rings see it.
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) memory: Arc<GuestMemory>,
    pub(crate) regions: Arc<Regions>,
}

/// Features that rings go by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingFeatures {
    /// `VIRTIO_F_RING_EVENT_IDX`
    pub event_idx: bool,
    /// `VIRTIO_F_INDIRECT_DESC`
    pub indirect: bool,
}

/// Either kind.
pub(super) enum Ring {
    Split(SplitRing),
    Packed(PackedRing),
}

macro_rules! either {
    ($self:ident, $ring:ident => $call:expr) => {
        match $self {
            Ring::Split($ring) => $call,
            Ring::Packed($ring) => $call,
        }
    };
}

impl Ring {
    /// Whether the driver has made something available that was not taken.
    #[inline]
    pub(super) fn has_more(&mut self) -> Result<bool, RingError> {
        either!(self, r => r.has_more())
    }

    /// Has the processor fetch what the next chains, `most` at most, begin with: their descriptors, and where the first of each leads.
    /// Another processor has just written it, and one line after the other would be waited for.
    #[inline]
    pub(super) fn prefetch(&mut self, memory: &GuestMemory, most: usize, hint: &mut usize) {
        either!(self, r => r.prefetch(memory, most, hint));
    }

    /// Takes the next chain: its descriptors into `chain`, what was there being dropped.
    #[inline]
    pub(super) fn next(&mut self, view: &View, chain: &mut Vec<Desc>) -> Result<Option<Head>, RingError> {
        chain.clear();
        either!(self, r => r.next(view, chain))
    }

    /// Gives a chain back, into which `written` bytes were written. The driver sees it after [`Ring::publish`].
    #[inline]
    pub(super) fn add_used(&mut self, head: Head, written: u32) {
        either!(self, r => r.add_used(head, written));
    }

    /// Shows the driver all that was given back.
    #[inline]
    pub(super) fn publish(&mut self) {
        either!(self, r => r.publish());
    }

    /// Whether the driver wants to be told of what was published since the last call.
    #[inline]
    pub(super) fn wants_signal(&mut self) -> bool {
        either!(self, r => r.wants_signal())
    }

    /// Asks the driver for a notification of the next chain. A thread that sleeps after this checks again first.
    pub(super) fn enable_kicks(&mut self) {
        either!(self, r => r.set_kicks(true));
    }

    /// Tells the driver that it need not kick: the ring is polled anyway.
    pub(super) fn disable_kicks(&mut self) {
        either!(self, r => r.set_kicks(false));
    }

    /// The ring's position, as GET_VRING_BASE returns it.
    pub(super) fn base(&self) -> u32 {
        either!(self, r => r.base())
    }
}

/// Addresses of a ring in the front end's address space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingAddress {
    /// Descriptors.
    pub desc: u64,
    /// Available ring, or the driver's event suppression.
    pub avail: u64,
    /// Used ring, or the device's event suppression.
    pub used: u64,
}

/// An indirect table, read into `chain`.
#[cold]
pub(super) fn read_indirect(
    view: &View,
    addr: u64,
    len: u32,
    features: RingFeatures,
    chain: &mut Vec<Desc>,
    packed: bool,
) -> Result<(), RingError> {
    if !features.indirect {
        return Err(RingError::IndirectNotNegotiated);
    }
    let most = MAX_CHAIN * DESC_BYTES;
    let count = len as usize / DESC_BYTES;
    if len == 0 || !(len as usize).is_multiple_of(DESC_BYTES) || len as usize > most {
        return Err(RingError::IndirectLength { len, most });
    }
    let mut hint = 0;
    // A descriptor may lie across two slots of memory, but no driver does that: it would have to be put together.
    let at = |i: usize, hint: &mut usize| {
        let addr = addr.checked_add((i * DESC_BYTES) as u64).ok_or(RingError::IndirectAddress { addr })?;
        let (data, here) =
            view.memory.translate(addr, DESC_BYTES as u32, hint).ok_or(RingError::IndirectAddress { addr })?;
        let region = view.regions.get(data.region()).filter(|_| here as usize == DESC_BYTES);
        let region = region.ok_or(RingError::IndirectAddress { addr })?;
        let offset = data.offset() as usize;
        Ok((region.read_u64(offset), region.read_u64(offset + 8)))
    };
    let mut index = 0;
    // In a packed ring the whole table is the chain, in a split one it is linked.
    for _ in 0..count {
        let (addr, rest) = at(index, &mut hint)?;
        let (len, flags, next) = (rest as u32, (rest >> 32) as u16, (rest >> 48) as u16);
        // In packed descriptors the id comes before the flags.
        let (flags, next) = if packed { (next, flags) } else { (flags, next) };
        if flags & F_INDIRECT != 0 {
            return Err(RingError::BadIndirect { flags });
        }
        chain.push(Desc { addr, len, write: flags & F_WRITE != 0 });
        if packed {
            index += 1;
            continue;
        }
        if flags & F_NEXT == 0 {
            return Ok(());
        }
        index = usize::from(next);
        if index >= count {
            return Err(RingError::OutsideTable { index: next, size: count as u16 });
        }
    }
    if packed { Ok(()) } else { Err(RingError::Loop { most: count }) }
}

/// Two halves of the descriptor at byte `at` of a table.
#[inline]
pub(super) fn read_desc(table: &Window, at: usize) -> (u64, u64) {
    use std::sync::atomic::Ordering::Relaxed;
    (table.load_u64(at, Relaxed), table.load_u64(at + 8, Relaxed))
}

/// `vring_need_event`: whether `event` was passed on the way from `old` to `new`.
#[inline]
pub(super) fn is_passed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
