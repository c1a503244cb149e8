// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A binary heap of queue numbers by virtual time, from the middle of which a queue can be taken.
//!
//! Guarantees: [`Heap::first`] is the earliest, of equal times the one that came first; insertion and removal O(log n).
//! Allocates only when there are more queues than it was made for ([`Heap::make_room`]). A queue is in a heap at most
//! once.

use super::vtime::VTime;

#[derive(Clone, Copy)]
struct Entry {
    key: VTime,
    /// Order of arrival, to decide between equal times.
    seq: u64,
    id: u32,
}

/// Not in the heap.
const ABSENT: u32 = u32::MAX;

/// The heap. Queue numbers must be below the last argument of [`Heap::make_room`].
pub(crate) struct Heap {
    entries: Vec<Entry>,
    /// Per queue: its index in `entries`.
    position: Vec<u32>,
    next_seq: u64,
}

impl Entry {
    #[inline]
    fn is_before(&self, other: &Entry) -> bool {
        if self.key == other.key { self.seq < other.seq } else { other.key.is_after(self.key) }
    }
}

impl Heap {
    /// Empty, with memory for `nr` queues.
    pub(crate) fn with_capacity(nr: usize) -> Heap {
        Heap { entries: Vec::with_capacity(nr), position: Vec::with_capacity(nr), next_seq: 0 }
    }

    /// Makes room for queues 0..`nr`.
    pub(crate) fn make_room(&mut self, nr: usize) {
        self.position.resize(nr, ABSENT);
        self.entries.reserve(nr - self.entries.len());
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The earliest queue and its time.
    #[inline]
    pub(crate) fn first(&self) -> Option<(u32, VTime)> {
        self.entries.first().map(|e| (e.id, e.key))
    }

    /// The queues whose time is the earliest, in any order. Looks at all queues.
    pub(crate) fn all_first(&self) -> impl Iterator<Item = u32> {
        let first = self.entries.first().map(|e| e.key);
        self.entries.iter().filter(move |e| Some(e.key) == first).map(|e| e.id)
    }

    /// Adds a queue. Panics if it is in the heap already.
    #[inline]
    pub(crate) fn insert(&mut self, id: u32, key: VTime) {
        assert!(self.position[id as usize] == ABSENT, "queue {id} is in the heap already");
        let entry = Entry { key, seq: self.next_seq, id };
        self.next_seq += 1;
        self.entries.push(entry);
        self.sift_up(self.entries.len() - 1, entry);
    }

    /// Takes a queue out. Returns whether it was in the heap.
    #[inline]
    pub(crate) fn remove(&mut self, id: u32) -> bool {
        let at = self.position[id as usize];
        if at == ABSENT {
            return false;
        }
        self.position[id as usize] = ABSENT;
        let last = self.entries.pop().expect("the heap has the queue");
        let at = at as usize;
        if at < self.entries.len() {
            if at > 0 && last.is_before(&self.entries[(at - 1) / 2]) {
                self.sift_up(at, last);
            } else {
                self.sift_down(at, last);
            }
        }
        true
    }

    #[inline]
    fn put(&mut self, at: usize, entry: Entry) {
        self.entries[at] = entry;
        self.position[entry.id as usize] = at as u32;
    }

    fn sift_up(&mut self, mut at: usize, entry: Entry) {
        while at > 0 {
            let parent = (at - 1) / 2;
            if !entry.is_before(&self.entries[parent]) {
                break;
            }
            self.put(at, self.entries[parent]);
            at = parent;
        }
        self.put(at, entry);
    }

    fn sift_down(&mut self, mut at: usize, entry: Entry) {
        loop {
            let mut child = 2 * at + 1;
            if child >= self.entries.len() {
                break;
            }
            if child + 1 < self.entries.len() && self.entries[child + 1].is_before(&self.entries[child]) {
                child += 1;
            }
            if !self.entries[child].is_before(&entry) {
                break;
            }
            self.put(at, self.entries[child]);
            at = child;
        }
        self.put(at, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim::rng::Rng;

    #[test]
    fn behaves_like_a_sorted_list() {
        for seed in 0..40 {
            let mut rng = Rng::new(seed);
            let nr = 1 + rng.below(40);
            let mut heap = Heap::with_capacity(1);
            heap.make_room(nr as usize);
            // Key and order of arrival of each queue that is in.
            let mut model: Vec<Option<(u64, u64)>> = vec![None; nr as usize];
            for step in 0..2000 {
                let id = rng.below(nr) as u32;
                let was_in = model[id as usize].take().is_some();
                assert_eq!(heap.remove(id), was_in, "seed {seed} step {step}");
                if rng.below(3) > 0 {
                    let key = rng.below(12);
                    heap.insert(id, VTime::near_wrap().after_service(key * 20, 1));
                    model[id as usize] = Some((key, step));
                }
                let first = (0..nr as u32).filter(|i| model[*i as usize].is_some()).min_by_key(|i| model[*i as usize]);
                assert_eq!(heap.first().map(|(id, _)| id), first, "seed {seed} step {step}");
                assert_eq!(heap.is_empty(), first.is_none());
            }
        }
    }

    #[test]
    #[should_panic(expected = "in the heap already")]
    fn a_queue_is_in_a_heap_once() {
        let mut heap = Heap::with_capacity(1);
        heap.make_room(1);
        heap.insert(0, VTime::ZERO);
        heap.insert(0, VTime::ZERO);
    }
}
