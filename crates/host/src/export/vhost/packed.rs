// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The packed virtqueue: one ring of descriptors that driver and device overwrite in turn.
//!
//! Source: virtio 1.3, section 2.8.

use super::descriptor::{
    DESC_BYTES, Desc, F_INDIRECT, F_NEXT, F_WRITE, Head, MAX_CHAIN, RingAddress, RingError, RingFeatures, View,
    is_passed, read_desc, read_indirect,
};
use super::inflight_packed::PackedInflight;
use super::log::RingLog;
use super::memory::GuestMemory;
use crate::mem::Window;
use std::sync::atomic::{Ordering, fence};

/// `VIRTQ_DESC_F_AVAIL`
const F_AVAIL: u16 = 1 << 7;
/// `VIRTQ_DESC_F_USED`
const F_USED: u16 = 1 << 15;
/// `RING_EVENT_FLAGS_ENABLE`, `_DISABLE`, `_DESC`
const EVENTS_ON: u16 = 0;
const EVENTS_OFF: u16 = 1;
const EVENTS_AT: u16 = 2;

/// A position in the ring, with its wrap counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RingPosition {
    index: u16,
    wrap: bool,
}

impl RingPosition {
    fn of(bits: u32) -> RingPosition {
        RingPosition { index: (bits & 0x7fff) as u16, wrap: bits & 0x8000 != 0 }
    }

    fn bits(self) -> u32 {
        u32::from(self.index) | u32::from(self.wrap) << 15
    }

    #[inline]
    fn advanced(self, by: u16, size: u16) -> RingPosition {
        let index = u32::from(self.index) + u32::from(by);
        match index.checked_sub(u32::from(size)) {
            Some(over) => RingPosition { index: over as u16, wrap: !self.wrap },
            None => RingPosition { index: index as u16, wrap: self.wrap },
        }
    }
}

pub(super) struct PackedRing {
    size: u16,
    features: RingFeatures,
    desc: Window,
    /// The driver's event suppression.
    driver: Window,
    /// The device's event suppression.
    device: Window,
    next_avail: RingPosition,
    next_used: RingPosition,
    /// The first descriptor that was added but not published: writing its flags last publishes all of them.
    first: Option<(RingPosition, u16)>,
    signalled: RingPosition,
    pub(super) log: Option<RingLog>,
    inflight: Option<PackedInflight>,
    /// Chains that an earlier back end left in flight, the oldest last.
    again: Vec<(u16, u16)>,
    /// Descriptors of the chain that is being taken, for the record of requests in flight.
    taken: Vec<(u64, u64)>,
}

impl PackedRing {
    /// Makes a ring of `size` with its positions in `base` (available in the low half, used in the high half). Returns `None` if the ring
    /// is not in the guest's memory or a position is not in the ring.
    pub(super) fn new(
        memory: &GuestMemory,
        address: RingAddress,
        size: u16,
        base: u32,
        features: RingFeatures,
    ) -> Option<PackedRing> {
        let (next_avail, next_used) = (RingPosition::of(base), RingPosition::of(base >> 16));
        if next_avail.index >= size || next_used.index >= size {
            return None;
        }
        Some(PackedRing {
            size,
            features,
            desc: memory.window(address.desc, DESC_BYTES * usize::from(size), 16)?,
            driver: memory.window(address.avail, 4, 4)?,
            device: memory.window(address.used, 4, 4)?,
            next_avail,
            next_used,
            first: None,
            signalled: next_used,
            log: None,
            inflight: None,
            again: Vec::new(),
            taken: Vec::new(),
        })
    }

    /// Returns the used position, for a new record of requests in flight.
    pub(super) fn used(&self) -> (u16, bool) {
        (self.next_used.index, self.next_used.wrap)
    }

    /// Records requests in flight from now on, and takes the requests again that an earlier back end left. Returns `None` if the record
    /// does not fit the ring.
    pub(super) fn track(&mut self, mut inflight: PackedInflight) -> Option<()> {
        let at = |(index, wrap)| RingPosition { index, wrap };
        let (used, mut again) = inflight.recover(|used| used.0 < self.size && self.is_available(at(used)))?;
        let count: u32 = again.iter().map(|(_, number)| u32::from(*number)).sum();
        if used.0 >= self.size || count > u32::from(self.size) {
            return None;
        }
        // Only the record has the ring's position; the position from the front end is ignored.
        self.next_used = at(used);
        self.signalled = self.next_used;
        self.next_avail = self.next_used.advanced(count as u16, self.size);
        again.reverse();
        self.again = again;
        self.inflight = Some(inflight);
        Some(())
    }

    #[inline]
    fn flags_at(&self, index: u16) -> u16 {
        // The rest of the descriptor is read after its flags, which make it available. Pairs with: the driver's barrier before them.
        self.desc.load_u16(DESC_BYTES * usize::from(index) + 14, Ordering::Acquire)
    }

    #[inline]
    fn is_available(&self, place: RingPosition) -> bool {
        let flags = self.flags_at(place.index);
        (flags & F_AVAIL != 0) == place.wrap && (flags & F_USED != 0) != place.wrap
    }

    #[inline]
    pub(super) fn has_more(&mut self) -> Result<bool, RingError> {
        Ok(!self.again.is_empty() || self.is_available(self.next_avail))
    }

    /// See [`Ring::prefetch`](super::ring::Ring::prefetch). Descriptors are sequential here, so the processor prefetches them itself.
    #[inline]
    pub(super) fn prefetch(&mut self, memory: &GuestMemory, most: usize, hint: &mut usize) {
        let (mut place, mut starts, mut chains) = (self.next_avail, true, 0);
        for _ in 0..self.size {
            if chains == most || !self.is_available(place) {
                return;
            }
            let (addr, rest) = read_desc(&self.desc, DESC_BYTES * usize::from(place.index));
            if starts {
                memory.prefetch(addr, hint);
                chains += 1;
            }
            starts = (rest >> 48) as u16 & F_NEXT == 0;
            place = place.advanced(1, self.size);
        }
    }

    /// Adds one descriptor to a chain. Returns whether another one follows.
    #[inline]
    fn take_desc(
        &self,
        view: &View,
        chain: &mut Vec<Desc>,
        (addr, rest): (u64, u64),
        is_first: bool,
    ) -> Result<bool, RingError> {
        let (len, flags) = (rest as u32, (rest >> 48) as u16);
        if flags & F_INDIRECT != 0 {
            if flags & F_NEXT != 0 || !is_first {
                return Err(RingError::BadIndirect { flags });
            }
            read_indirect(view, addr, len, self.features, chain, true)?;
        } else {
            chain.push(Desc { addr, len, write: flags & F_WRITE != 0 });
        }
        Ok(flags & F_NEXT != 0)
    }

    /// Takes the oldest chain that an earlier back end left, from the record: the ring may no longer hold it.
    #[cold]
    fn next_again(
        &mut self,
        view: &View,
        chain: &mut Vec<Desc>,
        (note, entries): (u16, u16),
    ) -> Result<Head, RingError> {
        let descs = self.inflight.as_ref().map(|i| i.descs((note, entries))).unwrap_or_default();
        for (i, desc) in descs.iter().enumerate() {
            self.take_desc(view, chain, *desc, i == 0)?;
        }
        let id = descs.last().map_or(0, |(_, rest)| (rest >> 32) as u16);
        Ok(Head { id, entries, note })
    }

    #[inline]
    pub(super) fn next(&mut self, view: &View, chain: &mut Vec<Desc>) -> Result<Option<Head>, RingError> {
        if let Some(old) = self.again.pop() {
            return self.next_again(view, chain, old).map(Some);
        }
        let mut place = self.next_avail;
        if !self.is_available(place) {
            return Ok(None);
        }
        let is_noted = self.inflight.is_some();
        self.taken.clear();
        let most = usize::from(self.size).min(MAX_CHAIN);
        for entries in 1..=most as u16 {
            // The driver makes the first descriptor of a chain available last, so the others must be available.
            if entries > 1 && !self.is_available(place) {
                return Err(RingError::Unfinished);
            }
            let desc = read_desc(&self.desc, DESC_BYTES * usize::from(place.index));
            place = place.advanced(1, self.size);
            if is_noted {
                self.taken.push(desc);
            }
            if !self.take_desc(view, chain, desc, entries == 1)? {
                let note = match &mut self.inflight {
                    Some(notes) => notes.take(&self.taken).ok_or(RingError::TooManyInUse)?,
                    None => 0,
                };
                self.next_avail = place;
                return Ok(Some(Head { id: (desc.1 >> 32) as u16, entries, note }));
            }
        }
        Err(RingError::Loop { most })
    }

    #[inline]
    pub(super) fn add_used(&mut self, head: Head, written: u32) {
        if let Some(notes) = &mut self.inflight {
            notes.give_back(head.note, head.entries);
        }
        let place = self.next_used;
        let at = DESC_BYTES * usize::from(place.index);
        let flags = if place.wrap { F_AVAIL | F_USED } else { 0 } | if written > 0 { F_WRITE } else { 0 };
        self.desc.store_u32(at + 8, written, Ordering::Relaxed);
        self.desc.store_u16(at + 12, head.id, Ordering::Relaxed);
        if self.first.is_none() {
            self.first = Some((place, flags));
        } else {
            // Pairs with: the driver's read barrier.
            self.desc.store_u16(at + 14, flags, Ordering::Release);
        }
        if let Some(log) = &self.log {
            log.desc(at + 8, 8);
        }
        self.next_used = place.advanced(head.entries, self.size);
    }

    #[inline]
    pub(super) fn publish(&mut self) {
        if let Some((place, flags)) = self.first.take() {
            if let Some(notes) = &mut self.inflight {
                notes.publishing((self.next_used.index, self.next_used.wrap));
            }
            // All later descriptors were written before this one. Pairs with: the driver's read barrier.
            let at = DESC_BYTES * usize::from(place.index);
            self.desc.store_u16(at + 14, flags, Ordering::Release);
            if let Some(log) = &self.log {
                log.desc(at + 14, 2);
            }
            if let Some(notes) = &mut self.inflight {
                notes.published();
            }
        }
    }

    #[inline]
    pub(super) fn wants_signal(&mut self) -> bool {
        let (new, old) = (self.next_used, self.signalled);
        if new == old {
            return false;
        }
        self.signalled = new;
        // Descriptors are published before this read of the suppression; the driver writes the suppression, then reads the descriptor.
        // Pairs with: the driver's barrier between the two.
        fence(Ordering::SeqCst);
        let word = self.driver.load_u32(0, Ordering::Relaxed);
        let (event, flags) = (RingPosition::of(word & 0xffff), (word >> 16) as u16 & 3);
        match flags {
            EVENTS_OFF => false,
            EVENTS_AT if self.features.event_idx => {
                // Computes as if indices did not wrap at the size: `old` may be from the previous round.
                let line = |p: RingPosition| if p.wrap == new.wrap { p.index } else { p.index.wrapping_sub(self.size) };
                is_passed(line(event), new.index, line(old))
            }
            _ => true,
        }
    }

    pub(super) fn set_kicks(&mut self, on: bool) {
        self.device.store_u16(2, if on { EVENTS_ON } else { EVENTS_OFF }, Ordering::Relaxed);
        if let Some(log) = &self.log {
            log.used(2, 2);
        }
        // First this function requests kicks, then the caller checks the ring again. Pairs with: the driver's barrier between making a
        // descriptor available and reading this request.
        fence(Ordering::SeqCst);
    }

    pub(super) fn base(&self) -> u32 {
        self.next_avail.bits() | self.next_used.bits() << 16
    }
}
