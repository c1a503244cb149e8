// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Blocks that were changed and not written back, as in a buffer cache.
//!
//! Guarantees: each block is in the set once. A block is returned for writing when the redo of its last change is durable,
//! and not again before that write has completed. The blocks with the oldest changes come first. A block that changes
//! during its write is queued again when that write completes. The set is bounded, and nothing is allocated after the
//! start.
//!
//! Needs from callers: they check for room first. Does not do: keep contents, or cache reads.

/// No entry.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockState {
    Free,
    /// In the queue of blocks to write.
    InLine,
    Writing,
    /// Being written, and changed since then. The number is the record of that change.
    Again(u64),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    block: u64,
    /// The redo record of the last change.
    record: u64,
    state: BlockState,
    /// The next entry in its bucket, or in the free list.
    chain: u32,
    before: u32,
    after: u32,
}

const EMPTY: Entry = Entry { block: 0, record: 0, state: BlockState::Free, chain: NONE, before: NONE, after: NONE };

#[derive(Clone, Debug)]
pub(super) struct Dirty {
    entries: Box<[Entry]>,
    /// First entry of each bucket, by a hash of the block's number.
    buckets: Box<[u32]>,
    free: u32,
    used: u32,
    /// The queue of blocks to write: first and last entry, and length.
    first: u32,
    last: u32,
    in_line: u32,
}

impl Dirty {
    /// Makes a set of at most `most` blocks.
    pub(super) fn new(most: u32) -> Dirty {
        let chain = |i: u32| Entry { chain: if i + 1 < most { i + 1 } else { NONE }, ..EMPTY };
        Dirty {
            entries: (0..most).map(chain).collect(),
            buckets: vec![NONE; (most as usize).next_power_of_two()].into(),
            free: if most > 0 { 0 } else { NONE },
            used: 0,
            first: NONE,
            last: NONE,
            in_line: 0,
        }
    }

    /// Whether there is room for `n` more blocks, even if none of them is in the set already.
    pub(super) fn has_room(&self, n: u32) -> bool {
        self.used + n <= self.entries.len() as u32
    }

    /// Number of blocks in the queue.
    pub(super) fn in_line(&self) -> u32 {
        self.in_line
    }

    /// Records that log record `record` changed a block. Returns whether the change needs no write of its own, because one
    /// was already pending.
    pub(super) fn change(&mut self, block: u64, record: u64) -> bool {
        let bucket = self.bucket(block);
        let mut at = self.buckets[bucket];
        while at != NONE && self.entries[at as usize].block != block {
            at = self.entries[at as usize].chain;
        }
        if at == NONE {
            at = self.free;
            assert!(at != NONE, "a block was changed without room for it");
            self.free = self.entries[at as usize].chain;
            self.used += 1;
            self.entries[at as usize] = Entry { block, chain: self.buckets[bucket], ..EMPTY };
            self.buckets[bucket] = at;
            self.line_up(at, record);
            return false;
        }
        match self.entries[at as usize].state {
            BlockState::InLine => {
                // The block moves to the end, so that the queue stays in the order of the records. Then a record that is not durable delays
                // no durable record.
                self.leave_line(at);
                self.line_up(at, record);
                true
            }
            before => {
                self.entries[at as usize].state = BlockState::Again(record);
                before != BlockState::Writing
            }
        }
    }

    /// Takes the next block to write, if its redo is durable. Returns its entry and its number.
    pub(super) fn next(&mut self, durable: u64) -> Option<(u32, u64)> {
        let at = self.first;
        if !self.is_ready(durable) {
            return None;
        }
        self.leave_line(at);
        let entry = &mut self.entries[at as usize];
        entry.state = BlockState::Writing;
        Some((at, entry.block))
    }

    /// Whether [`Dirty::next`] would return a block.
    pub(super) fn is_ready(&self, durable: u64) -> bool {
        self.first != NONE && self.entries[self.first as usize].record <= durable
    }

    /// Records that the block of an entry was written.
    pub(super) fn written(&mut self, at: u32) {
        match self.entries[at as usize].state {
            BlockState::Again(record) => self.line_up(at, record),
            BlockState::Writing => self.remove(at),
            other => panic!("a block was written that is {other:?}"),
        }
    }

    fn bucket(&self, block: u64) -> usize {
        // Fibonacci hashing: the high bits of the product are mixed best.
        (block.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.buckets.len() - 1)
    }

    fn remove(&mut self, at: u32) {
        let Entry { block, chain, .. } = self.entries[at as usize];
        let bucket = self.bucket(block);
        if self.buckets[bucket] == at {
            self.buckets[bucket] = chain;
        } else {
            let mut before = self.buckets[bucket];
            while self.entries[before as usize].chain != at {
                before = self.entries[before as usize].chain;
            }
            self.entries[before as usize].chain = chain;
        }
        self.entries[at as usize] = Entry { chain: self.free, ..EMPTY };
        self.free = at;
        self.used -= 1;
    }

    fn line_up(&mut self, at: u32, record: u64) {
        let last = self.last;
        let entry = &mut self.entries[at as usize];
        (entry.state, entry.record, entry.before, entry.after) = (BlockState::InLine, record, last, NONE);
        match last {
            NONE => self.first = at,
            last => self.entries[last as usize].after = at,
        }
        self.last = at;
        self.in_line += 1;
    }

    fn leave_line(&mut self, at: u32) {
        let Entry { before, after, .. } = self.entries[at as usize];
        match before {
            NONE => self.first = after,
            before => self.entries[before as usize].after = after,
        }
        match after {
            NONE => self.last = before,
            after => self.entries[after as usize].before = before,
        }
        self.in_line -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Taus88;
    use std::collections::BTreeMap;

    #[test]
    fn a_block_waits_for_its_redo_and_for_those_before_it() {
        let mut dirty = Dirty::new(4);
        assert!(!dirty.change(10, 1) && !dirty.change(20, 1) && !dirty.change(30, 2));
        assert_eq!(dirty.next(0), None, "no redo is durable");
        assert_eq!(dirty.next(1).map(|e| e.1), Some(10));
        assert!(dirty.change(20, 3), "it was here: behind the others now");
        assert_eq!((dirty.next(1), dirty.in_line()), (None, 2));
        assert_eq!(dirty.next(2).map(|e| e.1), Some(30));
        assert_eq!(dirty.next(3).map(|e| e.1), Some(20));
        assert!(dirty.has_room(1) && !dirty.has_room(2), "those that are written need their room");
    }

    #[test]
    fn what_changes_while_it_is_written_is_written_again() {
        let mut dirty = Dirty::new(1);
        dirty.change(5, 1);
        let (at, _) = dirty.next(1).unwrap();
        assert!(!dirty.change(5, 2) && dirty.next(9).is_none(), "not twice at a time");
        assert!(dirty.change(5, 2), "one more write is enough");
        dirty.written(at);
        assert_eq!((dirty.next(1), dirty.in_line()), (None, 1));
        let (at, block) = dirty.next(2).unwrap();
        dirty.written(at);
        assert_eq!((block, dirty.has_room(1), dirty.in_line()), (5, true, 0));
    }

    /// Compares the set with a map from blocks to records, with writes that take time.
    #[test]
    fn it_is_a_map_whatever_comes() {
        for seed in 0..50 {
            let (mut rng, most) = (Taus88::new(seed), 16);
            let (mut dirty, mut model) = (Dirty::new(most), BTreeMap::new());
            let mut out: Vec<(u32, u64)> = Vec::new();
            for record in 1..500u64 {
                let block = u64::from(rng.between(0, 24)) << 33;
                if dirty.has_room(1) {
                    let known = model.insert(block, record).is_some();
                    assert_eq!(dirty.change(block, record), known, "seed {seed}");
                }
                if rng.between(0, 2) == 0
                    && let Some((at, block)) = dirty.next(record - 1)
                {
                    let of = model.remove(&block).unwrap();
                    assert!(of < record, "seed {seed}: written before its redo was durable");
                    assert!(out.iter().all(|o| o.1 != block), "seed {seed}: written twice at a time");
                    out.push((at, block));
                }
                if rng.between(0, 3) == 0 && !out.is_empty() {
                    dirty.written(out.swap_remove(rng.between(0, out.len() as u32 - 1) as usize).0);
                }
            }
            out.into_iter().for_each(|(at, _)| dirty.written(at));
            let mut rest = Vec::new();
            while let Some((at, block)) = dirty.next(u64::MAX) {
                dirty.written(at);
                rest.push(block);
            }
            rest.sort_unstable();
            assert_eq!(rest, model.into_keys().collect::<Vec<_>>(), "seed {seed}");
            assert!(dirty.has_room(most));
        }
    }
}
