// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The split virtqueue: a table of descriptors, a ring of available heads, and a ring of used heads.
//!
//! Source: virtio 1.3, section 2.7.

use super::descriptor::{
    DESC_BYTES, Desc, F_INDIRECT, F_NEXT, F_WRITE, Head, MAX_CHAIN, RingAddress, RingError, RingFeatures, View,
    is_passed, read_desc, read_indirect,
};
use super::inflight::Inflight;
use super::log::RingLog;
use super::memory::GuestMemory;
use crate::mem::Window;
use std::sync::atomic::{Ordering, fence};

/// `VIRTQ_AVAIL_F_NO_INTERRUPT`
const NO_INTERRUPT: u16 = 1;
/// `VIRTQ_USED_F_NO_NOTIFY`
const NO_NOTIFY: u16 = 1;

pub(super) struct SplitRing {
    size: u16,
    features: RingFeatures,
    desc: Window,
    avail: Window,
    used: Window,
    /// Next entry of the available ring.
    next_avail: u16,
    /// The driver's index, as it was when last read.
    avail_idx: u16,
    /// The entry of the available ring up to which descriptors were prefetched.
    prefetched: u16,
    /// Next entry of the used ring.
    next_used: u16,
    /// Entries of the used ring that the driver can see.
    published: u16,
    /// The used index at the last check of whether the driver wants a notification.
    signalled: u16,
    inflight: Option<Inflight>,
    pub(super) log: Option<RingLog>,
    /// Heads that an earlier back end left in flight, the oldest last.
    again: Vec<u16>,
}

impl SplitRing {
    /// Makes a ring of `size` (a power of two) whose next available entry is `base`. Returns `None` if the ring is not in the guest's
    /// memory.
    pub(super) fn new(
        memory: &GuestMemory,
        address: RingAddress,
        size: u16,
        base: u16,
        features: RingFeatures,
    ) -> Option<SplitRing> {
        let entries = usize::from(size);
        let used = memory.window(address.used, 6 + 8 * entries, 4)?;
        // The used ring still holds what was published before.
        let next_used = used.load_u16(2, Ordering::Relaxed);
        if features.event_idx {
            // With event indices the driver does not read the flags, and they must be 0 (2.7.10.2).
            used.store_u16(0, 0, Ordering::Relaxed);
        }
        Some(SplitRing {
            size,
            features,
            desc: memory.window(address.desc, DESC_BYTES * entries, 16)?,
            avail: memory.window(address.avail, 6 + 2 * entries, 2)?,
            used,
            next_avail: base,
            avail_idx: base,
            prefetched: base,
            next_used,
            published: next_used,
            signalled: next_used,
            inflight: None,
            log: None,
            again: Vec::new(),
        })
    }

    /// Records requests in flight from now on, and takes the requests again that an earlier back end left.
    pub(super) fn track(&mut self, mut inflight: Inflight) {
        self.again = inflight.recover(self.next_used);
        self.again.reverse();
        // The earlier back end had taken these heads and returned all before them, so the position from the front end is ignored.
        self.next_avail = self.next_used.wrapping_add(self.again.len() as u16);
        (self.avail_idx, self.prefetched) = (self.next_avail, self.next_avail);
        self.inflight = Some(inflight);
    }

    #[inline]
    pub(super) fn has_more(&mut self) -> Result<bool, RingError> {
        if self.next_avail != self.avail_idx || !self.again.is_empty() {
            return Ok(true);
        }
        self.read_index()?;
        Ok(self.waiting() > 0)
    }

    /// Finds out how many entries the driver has made available.
    #[inline]
    fn read_index(&mut self) -> Result<(), RingError> {
        // Entries are read after the index, which makes them available. Pairs with: the driver's barrier before it writes the index.
        let index = self.avail.load_u16(2, Ordering::Acquire);
        let (next, size) = (self.next_avail, self.size);
        if index.wrapping_sub(next) > size {
            return Err(RingError::TooManyAvailable { index, next, size });
        }
        self.avail_idx = index;
        Ok(())
    }

    #[inline]
    pub(super) fn next(&mut self, view: &View, chain: &mut Vec<Desc>) -> Result<Option<Head>, RingError> {
        if !self.has_more()? {
            return Ok(None);
        }
        if let Some(id) = self.again.pop() {
            self.read_chain(id, view, chain)?;
            return Ok(Some(Head { id, entries: 1, note: 0 }));
        }
        let slot = usize::from(self.next_avail & (self.size - 1));
        let id = self.avail.load_u16(4 + 2 * slot, Ordering::Relaxed);
        self.read_chain(id, view, chain)?;
        self.next_avail = self.next_avail.wrapping_add(1);
        if let Some(inflight) = &mut self.inflight {
            inflight.take(id);
        }
        Ok(Some(Head { id, entries: 1, note: 0 }))
    }

    /// See [`Ring::waiting`](super::ring::Ring::waiting).
    #[inline]
    pub(super) fn waiting(&self) -> u16 {
        self.avail_idx.wrapping_sub(self.next_avail)
    }

    /// See [`Ring::prefetch`](super::ring::Ring::prefetch).
    #[inline]
    pub(super) fn prefetch(&mut self, memory: &GuestMemory, most: usize, hint: &mut usize) {
        // A ring that breaks a rule is reported when chains are taken from it.
        if self.read_index().is_err() {
            return;
        }
        let (waiting, most) = (self.waiting(), most as u16);
        let head = |i: u16| {
            let slot = usize::from(self.next_avail.wrapping_add(i) & (self.size - 1));
            self.avail.load_u16(4 + 2 * slot, Ordering::Relaxed)
        };
        // Those of the next round, too, so that they have arrived when it begins.
        let until = waiting.min(2 * most);
        let done = self.prefetched.wrapping_sub(self.next_avail);
        for id in (if done <= until { done } else { 0 }..until).map(head) {
            self.desc.prefetch(DESC_BYTES * usize::from(id));
            // The third descriptor of a chain, which may be in the next cache line.
            self.desc.prefetch(DESC_BYTES * (usize::from(id) + 2));
        }
        self.prefetched = self.next_avail.wrapping_add(until);
        for id in (0..waiting.min(most)).map(head).filter(|id| *id < self.size) {
            memory.prefetch(read_desc(&self.desc, DESC_BYTES * usize::from(id)).0, hint);
        }
    }

    /// Reads the chain that starts with descriptor `id`.
    #[inline]
    pub(super) fn read_chain(&self, id: u16, view: &View, chain: &mut Vec<Desc>) -> Result<(), RingError> {
        let mut index = id;
        let most = usize::from(self.size).min(MAX_CHAIN);
        for _ in 0..most {
            if index >= self.size {
                return Err(RingError::OutsideTable { index, size: self.size });
            }
            let (addr, rest) = read_desc(&self.desc, DESC_BYTES * usize::from(index));
            let (len, flags) = (rest as u32, (rest >> 32) as u16);
            if flags & F_INDIRECT != 0 {
                // An indirect table may only be the last descriptor of a chain; its WRITE flag is ignored.
                if flags & F_NEXT != 0 {
                    return Err(RingError::BadIndirect { flags });
                }
                return read_indirect(view, addr, len, self.features, chain, false);
            }
            chain.push(Desc { addr, len, write: flags & F_WRITE != 0 });
            if flags & F_NEXT == 0 {
                return Ok(());
            }
            index = (rest >> 48) as u16;
        }
        Err(RingError::Loop { most })
    }

    #[inline]
    pub(super) fn add_used(&mut self, head: Head, written: u32) {
        if let Some(inflight) = &mut self.inflight {
            inflight.give_back(head.id);
        }
        let slot = usize::from(self.next_used & (self.size - 1));
        self.used.store_u32(4 + 8 * slot, u32::from(head.id), Ordering::Relaxed);
        self.used.store_u32(8 + 8 * slot, written, Ordering::Relaxed);
        if let Some(log) = &self.log {
            log.used(4 + 8 * slot, 8);
        }
        self.next_used = self.next_used.wrapping_add(1);
    }

    #[inline]
    pub(super) fn publish(&mut self) {
        if self.published != self.next_used {
            // The driver reads entries, and data, after the index. Pairs with: its read barrier.
            self.used.store_u16(2, self.next_used, Ordering::Release);
            if let Some(log) = &self.log {
                log.used(2, 2);
            }
            if let Some(inflight) = &mut self.inflight {
                inflight.published(self.next_used.wrapping_sub(self.published), self.next_used);
            }
            self.published = self.next_used;
        }
    }

    #[inline]
    pub(super) fn wants_signal(&mut self) -> bool {
        let (new, old) = (self.published, self.signalled);
        if new == old {
            return false;
        }
        self.signalled = new;
        // The index is published before this read of the event; the driver writes the event, then reads the index. Pairs with: the
        // driver's barrier between the two.
        fence(Ordering::SeqCst);
        if self.features.event_idx {
            let event = self.avail.load_u16(4 + 2 * usize::from(self.size), Ordering::Relaxed);
            is_passed(event, new, old)
        } else {
            self.avail.load_u16(0, Ordering::Relaxed) & NO_INTERRUPT == 0
        }
    }

    pub(super) fn set_kicks(&mut self, on: bool) {
        if self.features.event_idx {
            // To disable kicks the old event index is kept, which costs one kick in 65536. There is no other way.
            if on {
                self.used.store_u16(4 + 8 * usize::from(self.size), self.next_avail, Ordering::Relaxed);
            }
        } else {
            self.used.store_u16(0, if on { 0 } else { NO_NOTIFY }, Ordering::Relaxed);
        }
        if let Some(log) = &self.log {
            log.used(0, 2);
            log.used(4 + 8 * usize::from(self.size), 2);
        }
        // First this function requests kicks, then the caller checks the index again. Pairs with: the driver's barrier between making an
        // entry available and reading this request.
        fence(Ordering::SeqCst);
    }

    pub(super) fn base(&self) -> u32 {
        u32::from(self.next_avail)
    }
}
