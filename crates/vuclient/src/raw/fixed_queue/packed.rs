// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A packed ring with constant chains: to submit a request, its chain's descriptors are written at the ring's position.
//!
//! Guarantees: once [`Packed::put`] returns, the device sees the whole chain, and all memory written before. A used buffer that is not in
//! flight is an error. A slot's number is its buffer's id. Source: virtio 1.2, 2.8.10 and 2.8.14 (event suppression), 2.8.20 and 2.8.21
//! (the driver's side of it).

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use super::split::has_passed;
use super::{Piece, not_there};
use crate::error::Error;
use crate::raw::guest::Guest;
use crate::raw::ring::{AVAIL, Ring, USED};

/// Event suppression, flags: always, never, at a descriptor (2.8.10).
const ENABLE: u16 = 0;
const DISABLE: u16 = 1;
const DESC: u16 = 2;

/// A descriptor's fields.
struct RingPosition<'g> {
    addr: &'g AtomicU64,
    len: &'g AtomicU32,
    id: &'g AtomicU16,
    flags: &'g AtomicU16,
}

/// The chain of a slot.
struct Chain {
    pieces: Vec<Piece>,
    is_with_device: bool,
}

pub struct Packed<'g> {
    ring: Vec<RingPosition<'g>>,
    /// Low half: descriptor and wrap bit; high half: flags.
    driver_event: &'g AtomicU32,
    device_event: &'g AtomicU32,
    next_avail: u16,
    avail_wrap: bool,
    /// Descriptors made available since the last [`Packed::show`].
    fresh: u16,
    next_used: u16,
    used_wrap: bool,
    chains: Vec<Chain>,
    has_event_idx: bool,
}

impl<'g> Packed<'g> {
    /// Takes over the unused `ring`, whose slots have these chains.
    pub fn new(
        guest: &'g Guest,
        ring: &Ring,
        chains: Vec<Vec<Piece>>,
        has_event_idx: bool,
    ) -> Result<Packed<'g>, Error> {
        let place = |i: u16| {
            let at = ring.desc + 16 * u64::from(i);
            let (addr, len) = (guest.atomic(at)?, guest.atomic(at + 8)?);
            Ok(RingPosition { addr, len, id: guest.atomic(at + 12)?, flags: guest.atomic(at + 14)? })
        };
        let driver_event: &AtomicU32 = guest.atomic(ring.driver)?;
        driver_event.store(u32::from(DISABLE) << 16, Ordering::Relaxed);
        Ok(Packed {
            ring: (0..ring.size).map(place).collect::<Result<_, Error>>()?,
            driver_event,
            device_event: guest.atomic(ring.device)?,
            next_avail: 0,
            avail_wrap: true,
            fresh: 0,
            next_used: 0,
            used_wrap: true,
            chains: chains.into_iter().map(|pieces| Chain { pieces, is_with_device: false }).collect(),
            has_event_idx,
        })
    }

    /// Makes a slot's chain, which must not be in flight, available.
    #[inline]
    pub fn put(&mut self, slot: usize) {
        let chain = &mut self.chains[slot];
        chain.is_with_device = true;
        let first = (self.next_avail, self.avail_wrap);
        let size = self.ring.len() as u16;
        for (i, piece) in chain.pieces.iter().enumerate() {
            let place = &self.ring[usize::from(self.next_avail)];
            place.addr.store(piece.addr, Ordering::Relaxed);
            place.len.store(piece.len, Ordering::Relaxed);
            place.id.store(slot as u16, Ordering::Relaxed);
            if i > 0 {
                place.flags.store(piece.flags | avail_bits(self.avail_wrap), Ordering::Relaxed);
            }
            self.next_avail += 1;
            if self.next_avail == size {
                self.next_avail = 0;
                self.avail_wrap = !self.avail_wrap;
            }
        }
        self.fresh += chain.pieces.len() as u16;
        // The first descriptor is made available last, so that the device sees the whole chain (2.8.21.1).
        let flags = chain.pieces[0].flags | avail_bits(first.1);
        // Pairs with: the device's acquire of these flags.
        self.ring[usize::from(first.0)].flags.store(flags, Ordering::Release);
    }

    /// Returns whether the device asks for a kick for the chains put since the last call.
    #[inline]
    pub fn show(&mut self) -> bool {
        let fresh = std::mem::take(&mut self.fresh);
        if fresh == 0 {
            return false;
        }
        // Pairs with: the device's barrier between its request for a kick and its last read of the ring (2.8.21.3.1).
        fence(Ordering::SeqCst);
        let event = self.device_event.load(Ordering::Relaxed);
        let (at, flags) = (event as u16, (event >> 16) as u16);
        match flags {
            DISABLE => false,
            DESC if self.has_event_idx => {
                let (new, size) = (self.next_avail, self.ring.len() as u16);
                // The descriptor of another lap lies a ring's size behind or ahead.
                let is_this_lap = (at >> 15 == 1) == self.avail_wrap;
                let event = (at & 0x7fff).wrapping_sub(if is_this_lap { 0 } else { size });
                has_passed(event, new, new.wrapping_sub(fresh))
            }
            _ => true,
        }
    }

    /// Returns the slot of the next completed request, if any.
    #[inline]
    pub fn take(&mut self) -> Result<Option<usize>, Error> {
        let place = &self.ring[usize::from(self.next_used)];
        // Pairs with: the device's release of these flags (2.8.14), which makes id, status and data visible.
        if !is_used(place.flags.load(Ordering::Acquire), self.used_wrap) {
            return Ok(None);
        }
        let id = place.id.load(Ordering::Relaxed);
        let Some(chain) = self.chains.get_mut(usize::from(id)).filter(|chain| chain.is_with_device) else {
            return Err(not_there(u32::from(id)));
        };
        chain.is_with_device = false;
        self.next_used += chain.pieces.len() as u16;
        let size = self.ring.len() as u16;
        if self.next_used >= size {
            self.next_used -= size;
            self.used_wrap = !self.used_wrap;
        }
        Ok(Some(usize::from(id)))
    }

    /// Asks for a call at the next completion. Returns whether a request has already completed, for which there may be no call.
    pub fn ask_for_call(&mut self) -> bool {
        let at = self.next_used | u16::from(self.used_wrap) << 15;
        let flags = if self.has_event_idx { DESC } else { ENABLE };
        // Both halves at once: the device must not see new flags with an old descriptor.
        self.driver_event.store(u32::from(flags) << 16 | u32::from(at), Ordering::Relaxed);
        // Pairs with: the device's barrier between its used descriptor and its read of this request (2.8.14).
        fence(Ordering::SeqCst);
        is_used(self.ring[usize::from(self.next_used)].flags.load(Ordering::Relaxed), self.used_wrap)
    }

    /// Disables calls from here on.
    pub fn refuse_calls(&mut self) {
        self.driver_event.store(u32::from(DISABLE) << 16, Ordering::Relaxed);
    }
}

fn avail_bits(wrap: bool) -> u16 {
    if wrap { AVAIL } else { USED }
}

fn is_used(flags: u16, wrap: bool) -> bool {
    flags & (AVAIL | USED) == if wrap { AVAIL | USED } else { 0 }
}
