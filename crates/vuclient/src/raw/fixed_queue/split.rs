// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A split ring whose chains stay where they were written: a request is a head in the available ring.
//!
//! Guarantees: the device sees heads only when [`Split::show`] is called, and all memory written before; an id that is not
//! with the device, or a used index that cannot be, is an error. Needs chains in the descriptor table at the heads it is
//! given. Source: virtio 1.2, 2.7.7 (calls), 2.7.8 (used), 2.7.10 (kicks), 2.7.13 (the driver's side of it).

use std::sync::atomic::{AtomicU16, AtomicU32, Ordering, fence};

use crate::error::Error;
use crate::raw::guest::Guest;
use crate::raw::ring::Ring;

/// The device wants no kicks (VIRTQ_USED_F_NO_NOTIFY).
const NO_NOTIFY: u16 = 1;
/// The driver wants no calls (VIRTQ_AVAIL_F_NO_INTERRUPT).
const NO_INTERRUPT: u16 = 1;

pub struct Split<'g> {
    avail: Vec<&'g AtomicU16>,
    avail_flags: &'g AtomicU16,
    avail_index: &'g AtomicU16,
    used_event: &'g AtomicU16,
    /// Of each used element the id; the length is the device's affair.
    used: Vec<&'g AtomicU32>,
    used_flags: &'g AtomicU16,
    used_index: &'g AtomicU16,
    avail_event: &'g AtomicU16,
    /// Next entry of the available ring, and the index as the device was shown it.
    next_avail: u16,
    shown: u16,
    /// Next entry of the used ring, and its index as it was last seen.
    next_used: u16,
    seen: u16,
    /// By slot.
    heads: Vec<u16>,
    /// By descriptor: one more than the slot whose chain begins there and is with the device.
    with_device: Vec<u16>,
    has_event_idx: bool,
}

impl<'g> Split<'g> {
    /// The fresh `ring`, whose slots have their chains at `heads`.
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

    /// Puts a slot's chain, which is not with the device, into the available ring.
    #[inline]
    pub fn put(&mut self, slot: usize) {
        let head = self.heads[slot];
        self.with_device[usize::from(head)] = slot as u16 + 1;
        let at = usize::from(self.next_avail) & (self.avail.len() - 1);
        self.avail[at].store(head, Ordering::Relaxed);
        self.next_avail = self.next_avail.wrapping_add(1);
    }

    /// Shows the device what is new; whether it wants a kick for it.
    #[inline]
    pub fn show(&mut self) -> bool {
        let (old, new) = (self.shown, self.next_avail);
        if old == new {
            return false;
        }
        self.shown = new;
        // Pairs with: the device's acquire of the available index (2.7.13.3).
        self.avail_index.store(new, Ordering::Release);
        // The index must be out before the device's request for a kick is read, or both sides may miss each other (2.7.13.4.1).
        // Pairs with: the device's barrier between its request for a kick and its last read of the index.
        fence(Ordering::SeqCst);
        if self.has_event_idx {
            has_passed(self.avail_event.load(Ordering::Relaxed), new, old)
        } else {
            self.used_flags.load(Ordering::Relaxed) & NO_NOTIFY == 0
        }
    }

    /// Looks how far the device is.
    #[inline]
    pub fn look(&mut self) -> Result<(), Error> {
        // Pairs with: the device's release of the used index (2.7.8.2): status and data are there.
        self.seen = self.used_index.load(Ordering::Acquire);
        let (ended, out) = (self.seen.wrapping_sub(self.next_used), self.shown.wrapping_sub(self.next_used));
        if ended > out {
            let (index, before) = (self.seen, self.next_used);
            return Err(Error::Server(format!("used index {index} after {before}: must be at most {out} on")));
        }
        Ok(())
    }

    /// The next slot that had ended at the last look.
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

    /// Asks for a call at the next that ends; whether something has ended meanwhile, for which there may be no call.
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

    /// Wants no calls from here on. With EVENT_IDX there is nothing to do: the index that was asked for lies behind, and a
    /// call when the index has gone round costs a wake-up in 65536 requests.
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
