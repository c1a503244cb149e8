// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A record of requests in flight in memory that the front end keeps, so that the next back end finds them after a crash.
//!
//! Guarantees, for split rings: a request that was taken but not yet returned to the driver is recorded. It stays recorded from before it
//! is read until after the driver can see that it was returned. The next back end takes exactly the recorded requests again, in the order
//! in which they were first taken. So no request is lost, and a request is repeated only if it was not returned. A write may then be
//! executed twice with the same data, before any request that the driver submits after the write's completion.
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
/// Bytes of an entry: a flag, padding, the next entry of the batch, a counter that gives the order of taking.
const ENTRY_BYTES: usize = 16;
/// Regions of queues start on multiples of this.
const ALIGN: usize = 64;
/// The version of the layout.
const VERSION: u16 = 1;

const AT_VERSION: usize = 8;
const AT_NUMBER: usize = 10;
const AT_LAST_BATCH: usize = 12;
const AT_USED: usize = 14;

/// Returns the bytes of one queue of `size` entries.
pub(super) fn queue_bytes(size: u16) -> usize {
    (HEAD_BYTES + ENTRY_BYTES * usize::from(size)).next_multiple_of(ALIGN)
}

/// Whether a back end has used the first queue. The version is at the same offset for both kinds of ring.
pub(super) fn was_used(region: &Region) -> bool {
    region.len() >= HEAD_BYTES && region.load_u16(AT_VERSION, Ordering::Relaxed) != 0
}

/// The record of one queue.
pub(super) struct Inflight {
    part: Window,
    size: u16,
    counter: u64,
}

fn entry(head: u16) -> usize {
    HEAD_BYTES + ENTRY_BYTES * usize::from(head)
}

impl Inflight {
    /// Opens the record of queue `index` in memory for queues of `size`; `None` if the memory is too small. A queue that was never used
    /// has no requests in flight.
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
        // The flag is the first byte; the rest of the word is padding.
        self.part.load_u16(entry(head), Ordering::Relaxed) & 0xff != 0
    }

    fn set_taken(&self, head: u16, taken: bool) {
        self.part.store_u16(entry(head), u16::from(taken), Ordering::Relaxed);
    }

    /// Returns the requests that an earlier back end left in flight, oldest first; `used` is the index of the used ring.
    pub(super) fn recover(&mut self, used: u16) -> Vec<u16> {
        let behind = used.wrapping_sub(self.part.load_u16(AT_USED, Ordering::Relaxed));
        // If the index is behind the ring, the earlier back end had published its last batch but not yet cleared the flags.
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

    /// Records that the chain at `head` was taken.
    #[inline]
    pub(super) fn take(&mut self, head: u16) {
        self.part.store_u64(entry(head) + 8, self.counter, Ordering::Relaxed);
        self.counter = self.counter.wrapping_add(1);
        self.set_taken(head, true);
        // A kill stops this process between two instructions. Another process then sees the stores in program order, if the compiler keeps
        // that order. Pairs with: the next back end, which starts after the end of this one.
        fence(Ordering::Release);
    }

    /// Adds the chain at `head` to the batch that is published next.
    #[inline]
    pub(super) fn give_back(&mut self, head: u16) {
        let last = self.part.load_u16(AT_LAST_BATCH, Ordering::Relaxed);
        self.part.store_u16(entry(head) + 6, last, Ordering::Relaxed);
        self.part.store_u16(AT_LAST_BATCH, head, Ordering::Relaxed);
    }

    /// Records that a batch of `count` was published; the used index is now `used`.
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
