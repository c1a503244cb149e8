// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests in flight, recorded in memory that the front end keeps, so that the next back end finds them after a crash.
//!
//! Guarantees, for split rings: a request that was taken and not given back is recorded. The record lasts from before the request is read
//! until after the driver can see that it was given back. The next back end takes all recorded requests again, in the order in which they
//! were first taken, and no other. So no request is lost, and one is repeated only if it was not given back. A write may then be done
//! twice with the same data, before anything that was submitted after its completion.
//!
//! Packed rings are in `inflight_packed`.
//!
//! Source: vhost-user protocol, "Inflight I/O tracking"; the layout is that of its `QueueRegionSplit`.

use super::descriptor::MAX_QUEUE_SIZE;
use crate::mem::{Region, Window};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Bytes before the entries of a queue: features, version, number, head of the last batch, used index.
const HEAD_BYTES: usize = 16;
/// Bytes of an entry: a flag, room, the next one of the batch, when it was taken.
const ENTRY_BYTES: usize = 16;
/// Regions of queues start on multiples of this.
const ALIGN: usize = 64;
/// What is written here.
const VERSION: u16 = 1;

const AT_VERSION: usize = 8;
const AT_NUMBER: usize = 10;
const AT_LAST_BATCH: usize = 12;
const AT_USED: usize = 14;

/// Bytes of one queue of `size` entries.
pub(super) fn queue_bytes(size: u16) -> usize {
    (HEAD_BYTES + ENTRY_BYTES * usize::from(size)).next_multiple_of(ALIGN)
}

/// Whether the first queue was used by some back end; the version is at the same place for both kinds of ring.
pub(super) fn was_used(region: &Region) -> bool {
    region.len() >= HEAD_BYTES && region.load_u16(AT_VERSION, Ordering::Relaxed) != 0
}

/// Where one queue's requests are written down.
pub(super) struct Inflight {
    part: Window,
    size: u16,
    counter: u64,
}

fn entry(head: u16) -> usize {
    HEAD_BYTES + ENTRY_BYTES * usize::from(head)
}

impl Inflight {
    /// The part of queue number `index` in memory for queues of `size`; `None` when it is not all there. Of a queue that was
    /// never used nothing is in flight.
    pub(super) fn new(region: &Arc<Region>, index: u16, size: u16) -> Option<Inflight> {
        if size == 0 || size > MAX_QUEUE_SIZE {
            return None;
        }
        let bytes = queue_bytes(size);
        let part = Window::new(region, (bytes * usize::from(index)) as u64, bytes, ALIGN)?;
        if part.load_u16(AT_VERSION, Ordering::Relaxed) == 0 {
            part.store_u16(AT_NUMBER, size, Ordering::Relaxed);
            part.store_u16(AT_VERSION, VERSION, Ordering::Relaxed);
        }
        Some(Inflight { part, size, counter: 0 })
    }

    fn is_taken(&self, head: u16) -> bool {
        // The flag is the first byte, the rest of the word is room.
        self.part.load_u16(entry(head), Ordering::Relaxed) & 0xff != 0
    }

    fn set_taken(&self, head: u16, taken: bool) {
        self.part.store_u16(entry(head), u16::from(taken), Ordering::Relaxed);
    }

    /// What a back end before this one has left, oldest first; `used` is the index of the used ring.
    pub(super) fn recover(&mut self, used: u16) -> Vec<u16> {
        let behind = used.wrapping_sub(self.part.load_u16(AT_USED, Ordering::Relaxed));
        // It came as far as the used ring with its last batch.
        let mut head = self.part.load_u16(AT_LAST_BATCH, Ordering::Relaxed);
        for _ in 0..behind.min(self.size) {
            if head >= self.size {
                break;
            }
            self.set_taken(head, false);
            head = self.part.load_u16(entry(head) + 6, Ordering::Relaxed);
        }
        self.part.store_u16(AT_USED, used, Ordering::Relaxed);
        let taken = (0..self.size).filter(|h| self.is_taken(*h));
        let mut all: Vec<_> = taken.map(|h| (self.part.load_u64(entry(h) + 8, Ordering::Relaxed), h)).collect();
        all.sort_unstable();
        self.counter = all.last().map_or(0, |(last, _)| last.wrapping_add(1));
        all.into_iter().map(|(_, head)| head).collect()
    }

    /// The chain at `head` was taken.
    #[inline]
    pub(super) fn take(&mut self, head: u16) {
        self.part.store_u64(entry(head) + 8, self.counter, Ordering::Relaxed);
        self.counter = self.counter.wrapping_add(1);
        self.set_taken(head, true);
        // A kill stops this process between two instructions: what another process finds is in their order, if the compiler
        // keeps it. Pairs with: the next back end, which starts after the end of this one.
        fence(Ordering::Release);
    }

    /// The chain at `head` will be published with the next batch.
    #[inline]
    pub(super) fn give_back(&mut self, head: u16) {
        let last = self.part.load_u16(AT_LAST_BATCH, Ordering::Relaxed);
        self.part.store_u16(entry(head) + 6, last, Ordering::Relaxed);
        self.part.store_u16(AT_LAST_BATCH, head, Ordering::Relaxed);
    }

    /// A batch of `count` was published; the used index is `used`.
    #[inline]
    pub(super) fn published(&mut self, count: u16, used: u16) {
        // Pairs with: the next back end, as in `take`: the used ring before the flags, the flags before the index.
        fence(Ordering::SeqCst);
        let mut head = self.part.load_u16(AT_LAST_BATCH, Ordering::Relaxed);
        for _ in 0..count {
            if head >= self.size {
                break; // The front end has written into it.
            }
            self.set_taken(head, false);
            head = self.part.load_u16(entry(head) + 6, Ordering::Relaxed);
        }
        // Pairs with: the next back end.
        fence(Ordering::Release);
        self.part.store_u16(AT_USED, used, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn memory(queues: usize) -> Arc<Region> {
        let fd = rustix::fs::memfd_create("inflight", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let bytes = (queue_bytes(8) * queues).next_multiple_of(4096);
        rustix::fs::ftruncate(&fd, bytes as u64).unwrap();
        Arc::new(Region::map_shared(fd.as_fd(), 0, bytes, &crate::mem::Alarm::new().unwrap()).unwrap())
    }

    #[test]
    fn what_was_not_given_back_is_found_in_its_order() {
        let region = memory(2);
        let mut before = Inflight::new(&region, 1, 8).unwrap();
        assert_eq!(before.recover(5), [0u16; 0]);
        [3, 1, 7, 0].into_iter().for_each(|h| before.take(h));
        before.give_back(1);
        before.published(1, 6);
        let mut after = Inflight::new(&region, 1, 8).unwrap();
        assert_eq!(after.recover(6), [3, 7, 0]);
        after.take(1);
        assert_eq!(Inflight::new(&region, 1, 8).unwrap().recover(6), [3, 7, 0, 1], "the newest is last");
        assert_eq!(Inflight::new(&region, 0, 8).unwrap().recover(0), [0u16; 0], "another queue");
    }

    #[test]
    fn a_batch_that_reached_the_used_ring_is_not_repeated() {
        let region = memory(1);
        let mut before = Inflight::new(&region, 0, 8).unwrap();
        before.recover(0xffff);
        [2, 4, 6].into_iter().for_each(|h| before.take(h));
        before.give_back(6);
        before.give_back(2);
        // Killed between the used ring's index and the flags.
        assert_eq!(Inflight::new(&region, 0, 8).unwrap().recover(1), [4]);
        assert_eq!(Inflight::new(&region, 0, 8).unwrap().recover(1), [4], "once more");
    }

    #[test]
    fn a_batch_that_did_not_reach_it_is() {
        let region = memory(1);
        let mut before = Inflight::new(&region, 0, 8).unwrap();
        before.recover(0);
        [2, 4].into_iter().for_each(|h| before.take(h));
        before.give_back(4);
        assert_eq!(Inflight::new(&region, 0, 8).unwrap().recover(0), [2, 4]);
    }

    #[test]
    fn nonsense_is_survived() {
        let region = memory(1);
        for at in (0..queue_bytes(8)).step_by(2) {
            region.store_u16(at, 0xfffb, Ordering::Relaxed);
        }
        let mut inflight = Inflight::new(&region, 0, 8).unwrap();
        assert_eq!(inflight.recover(3).len(), 8);
        inflight.published(8, 9);
        assert!(Inflight::new(&region, 40, 8).is_none() && Inflight::new(&region, 0, 0).is_none());
    }
}
