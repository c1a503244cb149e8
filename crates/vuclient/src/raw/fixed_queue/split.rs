// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A split ring whose chains stay in the descriptor table: to submit a request, its chain's head is put into the available ring.
//!
//! Guarantees: the device sees heads only after [`Split::show`], together with all memory written before. A used id that is not in flight,
//! or an impossible used index, is an error. Needs the chains to be in the descriptor table at the given heads. Source: virtio 1.2, 2.7.7
//! (calls), 2.7.8 (used), 2.7.10 (kicks), 2.7.13 (the driver's side of it).

use std::sync::atomic::{AtomicU16, AtomicU32, Ordering, fence};

use crate::error::Error;
use crate::raw::guest::Guest;
use crate::raw::ring::Ring;

/// Flag: the device asks for no kicks (VIRTQ_USED_F_NO_NOTIFY).
const NO_NOTIFY: u16 = 1;
/// Flag: the driver asks for no calls (VIRTQ_AVAIL_F_NO_INTERRUPT).
const NO_INTERRUPT: u16 = 1;

pub struct Split<'g> {
    avail: Vec<&'g AtomicU16>,
    avail_flags: &'g AtomicU16,
    avail_index: &'g AtomicU16,
    used_event: &'g AtomicU16,
    /// The id of each used element; the length is not read.
    used: Vec<&'g AtomicU32>,
    used_flags: &'g AtomicU16,
    used_index: &'g AtomicU16,
    avail_event: &'g AtomicU16,
    /// Next entry of the available ring, and the index last published to the device.
    next_avail: u16,
    shown: u16,
    /// Next entry of the used ring, and its index as last read.
    next_used: u16,
    seen: u16,
    /// Head of each slot's chain.
    heads: Vec<u16>,
    /// For each descriptor: the slot whose chain begins there and is in flight, plus one; otherwise 0.
    with_device: Vec<u16>,
    has_event_idx: bool,
}

impl<'g> Split<'g> {
    /// Takes over the unused `ring`, whose slots have their chains at `heads`.
    pub fn new(guest: &'g Guest, ring: &Ring, heads: Vec<u16>, has_event_idx: bool) -> Result<Split<'g>, Error> {
        let size = u64::from(ring.size);
        if !ring.size.is_power_of_two() {
            return Err(Error::Usage(format!("a split ring of {size}: must be a power of two (virtio 1.2, 2.7)")));
        }
        Ok(Split {
            avail: (0..size).map(|i| guest.atomic(ring.driver + 4 + 2 * i)).collect::<Result<_, _>>()?,
            avail_flags: guest.atomic(ring.driver)?,
            avail_index: guest.atomic(ring.driver + 2)?,
            used_event: guest.atomic(ring.driver + 4 + 2 * size)?,
            used: (0..size).map(|i| guest.atomic(ring.device + 4 + 8 * i)).collect::<Result<_, _>>()?,
            used_flags: guest.atomic(ring.device)?,
            used_index: guest.atomic(ring.device + 2)?,
            avail_event: guest.atomic(ring.device + 4 + 8 * size)?,
            next_avail: 0,
            shown: 0,
            next_used: 0,
            seen: 0,
            heads,
            with_device: vec![0; usize::from(ring.size)],
            has_event_idx,
        })
    }

    /// Puts a slot's chain, which must not be in flight, into the available ring.
    #[inline]
    pub fn put(&mut self, slot: usize) {
        let head = self.heads[slot];
        self.with_device[usize::from(head)] = slot as u16 + 1;
        let at = usize::from(self.next_avail) & (self.avail.len() - 1);
        self.avail[at].store(head, Ordering::Relaxed);
        self.next_avail = self.next_avail.wrapping_add(1);
    }

    /// Publishes new heads to the device. Returns whether the device asks for a kick.
    #[inline]
    pub fn show(&mut self) -> bool {
        let (old, new) = (self.shown, self.next_avail);
        if old == new {
            return false;
        }
        self.shown = new;
        // Pairs with: the device's acquire of the available index (2.7.13.3).
        self.avail_index.store(new, Ordering::Release);
        // The index must be visible before the device's request for a kick is read; otherwise the device may sleep without a kick
        // (2.7.13.4.1).
        // Pairs with: the device's barrier between its request for a kick and its last read of the index.
        fence(Ordering::SeqCst);
        if self.has_event_idx {
            has_passed(self.avail_event.load(Ordering::Relaxed), new, old)
        } else {
            self.used_flags.load(Ordering::Relaxed) & NO_NOTIFY == 0
        }
    }

    /// Reads the device's used index.
    #[inline]
    pub fn look(&mut self) -> Result<(), Error> {
        // Pairs with: the device's release of the used index (2.7.8.2), which makes status and data visible.
        self.seen = self.used_index.load(Ordering::Acquire);
        let (ended, out) = (self.seen.wrapping_sub(self.next_used), self.shown.wrapping_sub(self.next_used));
        if ended > out {
            let (index, before) = (self.seen, self.next_used);
            return Err(Error::Server(format!("used index {index} after {before}: must advance by at most {out}")));
        }
        Ok(())
    }

    /// Returns the slot of the next request that had completed at the last [`Split::look`], if any.
    #[inline]
    pub fn take(&mut self) -> Result<Option<usize>, Error> {
        if self.next_used == self.seen {
            return Ok(None);
        }
        let id = self.used[usize::from(self.next_used) & (self.used.len() - 1)].load(Ordering::Relaxed);
        self.next_used = self.next_used.wrapping_add(1);
        match self.with_device.get_mut(id as usize).map_or(0, std::mem::take) {
            0 => Err(super::not_there(id)),
            slot => Ok(Some(usize::from(slot) - 1)),
        }
    }

    /// Asks for a call at the next completion. Returns whether a request has already completed, for which there may be no call.
    pub fn ask_for_call(&mut self) -> bool {
        if self.has_event_idx {
            self.used_event.store(self.next_used, Ordering::Relaxed);
        } else {
            self.avail_flags.store(0, Ordering::Relaxed);
        }
        // Pairs with: the device's barrier between its used index and its read of this request (2.7.7.2, 2.7.8.2).
        fence(Ordering::SeqCst);
        self.used_index.load(Ordering::Relaxed) != self.next_used
    }

    /// Disables calls from here on. With EVENT_IDX there is nothing to do: the requested index has passed. After the index wraps round, it
    /// causes one unneeded wake-up per 65536 requests.
    pub fn refuse_calls(&mut self) {
        if !self.has_event_idx {
            self.avail_flags.store(NO_INTERRUPT, Ordering::Relaxed);
        }
    }
}

/// Whether an index that went from `old` to `new` has passed `event` (2.7.7.1, 2.7.10.1).
pub fn has_passed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
