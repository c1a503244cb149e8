// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Code that split and packed rings share: descriptors, chains, addresses, and the errors that a driver can cause.
//!
//! Guarantees: a descriptor is read once, so the values that were checked are used; a chain has at most as many descriptors as the queue
//! or its indirect table. Memory is checked when an address is translated.
//!
//! Source: virtio 1.3, sections 2.6, 2.7, 2.8.

use super::memory::GuestMemory;
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
/// Largest queue that is accepted, the same as in QEMU (`VIRTQUEUE_MAX_SIZE`); virtio allows 32768.
pub const MAX_QUEUE_SIZE: u16 = 1024;
/// Maximum number of descriptors of one chain: more than `seg_max` allows, and enough for any driver.
pub(super) const MAX_CHAIN: usize = 1024 + 2;

/// One descriptor of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Desc {
    /// Guest address.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// The device writes the memory; otherwise it reads it.
    pub write: bool,
}

/// What identifies a chain when it is returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Index of its first descriptor, or the buffer's number in a packed ring.
    pub id: u16,
    /// Number of entries that the chain takes in a packed ring.
    pub entries: u16,
    /// First entry of the chain in a packed ring's record of requests in flight.
    pub note: u16,
}

/// A rule that the driver broke, so the queue cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum RingError {
    #[error("available index {index} is more than {size} ahead of {next}: the driver added more than the queue holds")]
    TooManyAvailable { index: u16, next: u16, size: u16 },
    #[error("descriptor {index} is outside the table of {size}")]
    OutsideTable { index: u16, size: u16 },
    #[error("a chain has more than {most} descriptors: a loop")]
    Loop { most: usize },
    #[error(
        "an indirect descriptor has the flags {flags:#x}: must not have NEXT, must not be inside an indirect table, and in a packed ring must be the only one of its chain"
    )]
    BadIndirect { flags: u16 },
    #[error("an indirect table of {len} bytes: must be a multiple of 16, 16 to {most}")]
    IndirectLength { len: u32, most: usize },
    #[error("an indirect table at {addr:#x} is not in the guest's memory")]
    IndirectAddress { addr: u64 },
    #[error("a packed chain continues past the descriptors that the driver made available")]
    Unfinished,
    #[error("a descriptor with the indirect flag, which was not negotiated")]
    IndirectNotNegotiated,
    #[error("more descriptors are in use than the queue has")]
    TooManyInUse,
}

/// The guest's memory, with the table of its regions.
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) memory: Arc<GuestMemory>,
    pub(crate) regions: Arc<Regions>,
}

/// Features that rings depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingFeatures {
    /// `VIRTIO_F_RING_EVENT_IDX`
    pub event_idx: bool,
    /// `VIRTIO_F_INDIRECT_DESC`
    pub indirect: bool,
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

/// Appends the descriptors of an indirect table to `chain`.
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
    // A descriptor that lies across two slots of memory is not supported; no driver makes one.
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
    // In a packed ring the whole table is the chain; in a split ring its descriptors are linked.
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

/// Reads the two halves of the descriptor at byte `at` of a table.
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
