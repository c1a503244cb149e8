// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A record of requests in flight of packed rings, in memory that the front end keeps.
//!
//! Guarantees, the same as of `inflight` for split rings: a request that was taken but not yet returned to the driver is recorded. It
//! stays recorded from before it is read until after the driver can see that it was returned. The next back end takes exactly the recorded
//! requests again, in the order in which they were first taken. Descriptors are copied into the record, because used descriptors overwrite
//! those in flight. The ring's position is recorded, too, because a packed ring does not hold it.
//!
//! The front end could change the record before the next back end reads it, so the record is checked. While the ring runs, only a private
//! copy of the links is followed.
//!
//! Source: vhost-user protocol, "Inflight I/O tracking"; the layout is that of its `QueueRegionPacked`.

use super::descriptor::MAX_QUEUE_SIZE;
use crate::mem::{Region, Window};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Bytes before the entries of a queue.
const HEAD_BYTES: usize = 32;
/// Bytes of an entry: flag, next, last, number, a counter that gives the order of taking, and the descriptor: id, flags, bytes, address.
const ENTRY_BYTES: usize = 32;
/// Regions of queues start on multiples of this.
const ALIGN: usize = 64;
/// The version of the layout.
const VERSION: u16 = 1;

const AT_VERSION: usize = 8;
const AT_NUMBER: usize = 10;
/// First free entry now, and before the batch that is being returned: two bytes each.
const AT_FREE: usize = 12;
/// Index of the next used descriptor now and before the batch, two bytes each; its wrap counter now and before the batch, one byte each.
/// With the padding these are eight bytes, which are stored at once, so a kill cannot leave half of them.
const AT_USED: usize = 16;

/// Offsets in an entry.
const NEXT: usize = 2;
const LAST: usize = 4;
const NUMBER: usize = 6;
const COUNTER: usize = 8;
const ID: usize = 16;
const ADDR: usize = 24;

/// Returns the bytes of one queue of `size` entries.
pub(super) fn queue_bytes(size: u16) -> usize {
    (HEAD_BYTES + ENTRY_BYTES * usize::from(size)).next_multiple_of(ALIGN)
}

fn entry(index: u16) -> usize {
    HEAD_BYTES + ENTRY_BYTES * usize::from(index)
}

/// An index with its wrap counter.
pub(super) type Used = (u16, bool);

fn used_word(now: Used, before: Used) -> u64 {
    u64::from(now.0) | u64::from(before.0) << 16 | u64::from(now.1) << 32 | u64::from(before.1) << 40
}

/// The record of one queue.
pub(super) struct PackedInflight {
    part: Window,
    size: u16,
    counter: u64,
    /// A private copy of the links between entries, of the free list and of chains.
    next: Box<[u16]>,
    free_head: u16,
    free: u16,
    used: Used,
    /// Chains of the batch that is published next: first entry and number of entries.
    batch: Vec<(u16, u16)>,
}

impl PackedInflight {
    /// Opens the record of queue `index` in memory for queues of `size`; `None` if the memory is too small. `used` is the position of a
    /// queue that was never used.
    pub(super) fn new(region: &Arc<Region>, index: u16, size: u16, used: Used) -> Option<PackedInflight> {
        if size == 0 || size > MAX_QUEUE_SIZE {
            return None;
        }
        let bytes = queue_bytes(size);
        let part = Window::new(region, (bytes * usize::from(index)) as u64, bytes, ALIGN)?;
        if part.load_u16(AT_VERSION, Ordering::Relaxed) == 0 {
            part.store_u64(AT_USED, used_word(used, used), Ordering::Relaxed);
            part.store_u16(AT_NUMBER, size, Ordering::Relaxed);
            // The fields are complete before the version makes the record valid. Pairs with: the next back end, which starts after the end
            // of this one.
            fence(Ordering::Release);
            part.store_u16(AT_VERSION, VERSION, Ordering::Relaxed);
        }
        let next = vec![0; usize::from(size)].into();
        Some(PackedInflight { part, size, counter: 0, next, free_head: 0, free: 0, used, batch: Vec::new() })
    }

    fn is_taken(&self, index: u16) -> bool {
        // The flag is the first byte; the second one is padding.
        self.part.load_u16(entry(index), Ordering::Relaxed) & 0xff != 0
    }

    fn set_taken(&self, index: u16, taken: bool) {
        self.part.store_u16(entry(index), u16::from(taken), Ordering::Relaxed);
    }

    fn field(&self, index: u16, at: usize) -> u16 {
        self.part.load_u16(entry(index) + at, Ordering::Relaxed)
    }

    /// Returns what an earlier back end left: the ring's position, and the chains in flight, oldest first, each as first entry and number
    /// of entries. `is_available` returns whether the descriptor at a position of the ring still belongs to the driver. `None` if the
    /// record is invalid, because another process has written to it.
    pub(super) fn recover(&mut self, is_available: impl FnOnce(Used) -> bool) -> Option<(Used, Vec<(u16, u16)>)> {
        let word = self.part.load_u64(AT_USED, Ordering::Relaxed);
        let (now, before) = ((word as u16, word >> 32 & 0xff != 0), ((word >> 16) as u16, word >> 40 & 0xff != 0));
        if now.0 >= self.size || before.0 >= self.size {
            return None;
        }
        self.used = before;
        if now != before && !is_available(before) {
            // The earlier back end had published its last batch, whose chains are the first of the free list.
            self.used = now;
            self.forget_batch();
        }
        let chains = self.chains()?;
        self.relink(&chains);
        self.part.store_u64(AT_USED, used_word(self.used, self.used), Ordering::Relaxed);
        Some((self.used, chains.into_iter().map(|c| (c[0], c.len() as u16)).collect()))
    }

    fn forget_batch(&self) {
        let word = self.part.load_u32(AT_FREE, Ordering::Relaxed);
        let (mut head, end) = (word as u16, (word >> 16) as u16);
        for _ in 0..self.size {
            if head == end || head >= self.size {
                return;
            }
            self.set_taken(head, false);
            let last = self.field(head, LAST);
            if last >= self.size {
                return;
            }
            head = self.field(last, NEXT);
        }
    }

    /// Returns the entries of each chain in flight, the oldest chain first.
    fn chains(&mut self) -> Option<Vec<Vec<u16>>> {
        let mut claimed = vec![false; usize::from(self.size)];
        let mut all = Vec::new();
        for head in (0..self.size).filter(|i| self.is_taken(*i)) {
            let number = self.field(head, NUMBER);
            if number == 0 || number > self.size {
                return None;
            }
            let (mut chain, mut at) = (Vec::with_capacity(usize::from(number)), head);
            for _ in 0..number {
                let seen = claimed.get_mut(usize::from(at))?;
                if std::mem::replace(seen, true) {
                    return None;
                }
                chain.push(at);
                at = self.field(at, NEXT);
            }
            all.push((self.part.load_u64(entry(head) + COUNTER, Ordering::Relaxed), chain));
        }
        all.sort_unstable();
        self.counter = all.last().map_or(0, |(last, _)| last.wrapping_add(1));
        Some(all.into_iter().map(|(_, chain)| chain).collect())
    }

    /// Links the entries of chains, and makes a new free list of all other entries.
    fn relink(&mut self, chains: &[Vec<u16>]) {
        let mut is_free = vec![true; usize::from(self.size)];
        for chain in chains {
            chain.iter().for_each(|i| is_free[usize::from(*i)] = false);
            chain.windows(2).for_each(|pair| self.next[usize::from(pair[0])] = pair[1]);
        }
        let free: Vec<u16> = (0..self.size).filter(|i| is_free[usize::from(*i)]).collect();
        for pair in free.windows(2) {
            self.next[usize::from(pair[0])] = pair[1];
            self.part.store_u16(entry(pair[0]) + NEXT, pair[1], Ordering::Relaxed);
        }
        self.free = free.len() as u16;
        self.free_head = free.first().copied().unwrap_or(0);
        self.store_free(self.free_head, self.free_head);
    }

    fn store_free(&self, now: u16, before: u16) {
        self.part.store_u32(AT_FREE, u32::from(now) | u32::from(before) << 16, Ordering::Relaxed);
    }

    /// Records that a chain of these descriptors was taken. Returns its first entry; `None` if there are not enough free entries.
    pub(super) fn take(&mut self, descs: &[(u64, u64)]) -> Option<u16> {
        if descs.len() > usize::from(self.free) || descs.is_empty() {
            return None;
        }
        let head = self.free_head;
        let (mut at, mut last) = (head, head);
        for (addr, rest) in descs {
            // In the ring: bytes, id, flags. Here: id, flags, bytes.
            self.part.store_u64(entry(at) + ADDR, *addr, Ordering::Relaxed);
            self.part.store_u64(entry(at) + ID, rest.rotate_left(32), Ordering::Relaxed);
            (last, at) = (at, self.next[usize::from(at)]);
        }
        self.part.store_u16(entry(head) + LAST, last, Ordering::Relaxed);
        self.part.store_u16(entry(head) + NUMBER, descs.len() as u16, Ordering::Relaxed);
        self.part.store_u64(entry(head) + COUNTER, self.counter, Ordering::Relaxed);
        self.counter = self.counter.wrapping_add(1);
        self.free_head = at;
        self.free -= descs.len() as u16;
        self.store_free(at, at);
        // A kill stops this process between two instructions. Another process then sees the stores in program order, if the compiler keeps
        // that order. Pairs with: the next back end, which starts after the end of this one.
        fence(Ordering::Release);
        self.set_taken(head, true);
        // Pairs with: as above.
        fence(Ordering::Release);
        Some(head)
    }

    /// Returns the descriptors of a recovered chain, in the layout of a ring.
    pub(super) fn descs(&self, (head, number): (u16, u16)) -> Vec<(u64, u64)> {
        let mut at = head;
        let one = |_| {
            let addr = self.part.load_u64(entry(at) + ADDR, Ordering::Relaxed);
            let rest = self.part.load_u64(entry(at) + ID, Ordering::Relaxed).rotate_left(32);
            at = self.next[usize::from(at)];
            (addr, rest)
        };
        (0..number).map(one).collect()
    }

    /// Adds the chain of `number` entries at `head` to the batch that is published next.
    pub(super) fn give_back(&mut self, head: u16, number: u16) {
        self.batch.push((head, number));
    }

    /// Records that the batch is about to be published; the ring's position will be `used`.
    pub(super) fn publishing(&mut self, used: Used) {
        let before = self.free_head;
        for (head, number) in self.batch.iter().copied() {
            let last = (1..number).fold(head, |at, _| self.next[usize::from(at)]);
            self.next[usize::from(last)] = self.free_head;
            self.part.store_u16(entry(last) + NEXT, self.free_head, Ordering::Relaxed);
            self.free_head = head;
            self.free += number;
        }
        self.store_free(self.free_head, before);
        // The free list is stored before the index, which makes it valid, and the index before the ring is published. Pairs with: the next
        // back end, as in `take`.
        fence(Ordering::Release);
        self.part.store_u64(AT_USED, used_word(used, self.used), Ordering::Relaxed);
        // Pairs with: as above.
        fence(Ordering::Release);
        self.used = used;
    }

    /// Records that the batch was published.
    pub(super) fn published(&mut self) {
        // Pairs with: the next back end, as in `take`: the ring before the flags, the flags before the rest.
        fence(Ordering::SeqCst);
        for (head, _) in std::mem::take(&mut self.batch) {
            self.set_taken(head, false);
        }
        // Pairs with: as above.
        fence(Ordering::Release);
        self.store_free(self.free_head, self.free_head);
        self.part.store_u64(AT_USED, used_word(self.used, self.used), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Alarm;
    use std::os::fd::AsFd;

    const START: Used = (0, true);

    fn memory(queues: usize) -> Arc<Region> {
        let fd = rustix::fs::memfd_create("inflight", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let bytes = (queue_bytes(8) * queues).next_multiple_of(4096);
        rustix::fs::ftruncate(&fd, bytes as u64).unwrap();
        Arc::new(Region::map_shared(fd.as_fd(), 0, bytes, &Alarm::new().unwrap()).unwrap())
    }

    fn chain(first: u64, number: usize) -> Vec<(u64, u64)> {
        (first..first + number as u64).map(|i| (0x1000 * i, 0x0001_0000_0000_0200 | i << 32)).collect()
    }

    fn open(region: &Arc<Region>) -> PackedInflight {
        PackedInflight::new(region, 0, 8, START).unwrap()
    }

    /// Returns what the next back end finds. `is_available`: whether the ring has a descriptor of the driver at the position that the back
    /// end asks about.
    fn found(region: &Arc<Region>, is_available: bool) -> (Used, Vec<Vec<(u64, u64)>>) {
        let mut notes = open(region);
        let (used, chains) = notes.recover(|_| is_available).unwrap();
        (used, chains.into_iter().map(|c| notes.descs(c)).collect())
    }

    #[test]
    fn the_layout_is_that_of_the_protocol() {
        let region = memory(2);
        let mut notes = open(&region);
        assert_eq!(notes.recover(|_| true).unwrap(), (START, vec![]));
        let head = notes.take(&[(0x1122, 0x8083_0007_0000_0200), (0x3344, 0x8080_0007_0000_0001)]).unwrap();
        let bytes =
            |at: usize, n: usize| -> Vec<u8> { (at..at + n).map(|i| region.load_u8(i, Ordering::Relaxed)).collect() };
        assert_eq!(bytes(8, 16), [1, 0, 8, 0, 2, 0, 2, 0, 0, 0, 0, 0, 1, 1, 0, 0]);
        assert_eq!(bytes(entry(head), 8), [1, 0, 1, 0, 1, 0, 2, 0], "in flight, next, last, number");
        assert_eq!(bytes(entry(head) + 16, 16), [7, 0, 0x83, 0x80, 0, 2, 0, 0, 0x22, 0x11, 0, 0, 0, 0, 0, 0]);
        assert_eq!((queue_bytes(8), queue_bytes(1)), (320, 64));
    }

    #[test]
    fn what_was_not_given_back_is_found_in_its_order() {
        let region = memory(1);
        let mut notes = open(&region);
        notes.recover(|_| true).unwrap();
        let heads: Vec<u16> = [3, 1, 2].iter().map(|n| notes.take(&chain(10 * *n as u64, *n)).unwrap()).collect();
        assert!(notes.take(&chain(0, 3)).is_none(), "two are left");
        notes.give_back(heads[1], 1);
        notes.publishing((1, true));
        notes.published();
        assert_eq!(found(&region, true), ((1, true), vec![chain(30, 3), chain(20, 2)]));
        assert_eq!(found(&region, false), ((1, true), vec![chain(30, 3), chain(20, 2)]), "not asked for");
        let mut next = open(&region);
        next.recover(|_| true).unwrap();
        next.take(&chain(40, 3)).unwrap();
        assert_eq!(found(&region, true).1, [chain(30, 3), chain(20, 2), chain(40, 3)], "the newest is last");
    }

    /// A kill at each step of returning a batch: the whole batch is repeated, or none of it, depending on what the ring shows.
    #[test]
    fn a_batch_is_repeated_only_if_the_ring_does_not_show_it() {
        let all = [chain(0, 2), chain(10, 1), chain(20, 4)];
        for (step, is_available) in [(0, true), (1, true), (1, false), (2, false), (3, false)] {
            let region = memory(1);
            let mut notes = open(&region);
            notes.recover(|_| true).unwrap();
            let heads: Vec<u16> = all.iter().map(|c| notes.take(c).unwrap()).collect();
            notes.give_back(heads[2], 4);
            notes.give_back(heads[0], 2);
            if step >= 1 {
                notes.publishing((6, true));
            }
            if step == 2 {
                // Killed between clearing the flags and the later stores.
                notes.set_taken(heads[2], false);
            }
            if step == 3 {
                notes.published();
            }
            let right = match (step, is_available) {
                (0, _) | (1, true) => (START, all.to_vec()),
                _ => ((6, true), vec![all[1].clone()]),
            };
            assert_eq!(found(&region, is_available), right, "step {step}");
            assert_eq!(found(&region, true), right, "step {step}, once more");
        }
    }

    #[test]
    fn entries_go_round_for_ever() {
        let region = memory(1);
        let mut notes = open(&region);
        notes.recover(|_| true).unwrap();
        let mut out = std::collections::VecDeque::new();
        let mut used = START;
        for i in 0..2000u64 {
            let number = 1 + (i * 7 % 3) as usize;
            match notes.take(&chain(100 * i, number)) {
                Some(head) => out.push_back((head, number as u16, i)),
                None => {
                    // Return a chain, not in the order in which they were taken.
                    let (head, n, _) = if i % 2 == 0 { out.pop_front() } else { out.pop_back() }.unwrap();
                    notes.give_back(head, n);
                    let index = used.0 + n;
                    used = if index >= 8 { (index - 8, !used.1) } else { (index, used.1) };
                    notes.publishing(used);
                    notes.published();
                }
            }
            let right: Vec<_> = out.iter().map(|(_, n, i)| chain(100 * i, usize::from(*n))).collect();
            if i % 100 == 0 {
                assert_eq!(found(&region, true), (used, right), "{i}");
                // The recovered record has a different free list.
                let mut again = open(&region);
                let (_, chains) = again.recover(|_| true).unwrap();
                for (old, new) in out.iter_mut().zip(chains) {
                    assert_eq!((old.0, old.1), new);
                }
                notes = again;
            }
        }
    }

    #[test]
    fn nonsense_is_survived() {
        for fill in [0xffff, 0x0001, 0x0007, 0x0101, 0xfffb] {
            let region = memory(1);
            for at in (0..queue_bytes(8)).step_by(2) {
                region.store_u16(at, fill, Ordering::Relaxed);
            }
            let _ = open(&region).recover(|_| false);
            region.store_u64(AT_USED, 0, Ordering::Relaxed);
            let _ = open(&region).recover(|_| true);
        }
        let region = memory(1);
        assert!(PackedInflight::new(&region, 40, 8, START).is_none());
        assert!(PackedInflight::new(&region, 0, 0, START).is_none());
    }
}
