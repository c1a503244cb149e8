// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Queued requests, hashed by the sector after their last one: finds the request that a bio continues.
//!
//! Guarantees: no allocation after construction; insertion and removal O(1), a search O(1) on average. Of several
//! requests that end at the same sector the newest is found, as in the kernel's `elv_rqhash_find`. The table says
//! nothing about operation, direction or class: the caller that finds a request checks that it fits. Needs: all calls under one
//! lock; a request whose end moves is taken out before and put in again after.

#[derive(Clone, Copy)]
struct Node {
    end_sector: u64,
    prev: u32,
    next: u32,
}

/// End of a chain.
const NIL: u32 = u32::MAX;
/// In `prev`: not in the table.
const UNLINKED: u32 = u32::MAX - 1;

/// Hash table over the requests of a disk.
pub(crate) struct MergeHash {
    nodes: Box<[Node]>,
    buckets: Box<[u32]>,
    /// 64 minus the number of bits of a bucket number.
    shift: u32,
}

/// 2^64 divided by the golden ratio: spreads consecutive sectors over the upper bits.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

impl MergeHash {
    /// For requests 0..`nr_requests`; about one bucket each.
    pub(crate) fn new(nr_requests: usize) -> MergeHash {
        assert!(nr_requests < UNLINKED as usize);
        let nr_buckets = nr_requests.next_power_of_two().max(2);
        MergeHash {
            nodes: vec![Node { end_sector: 0, prev: UNLINKED, next: NIL }; nr_requests].into_boxed_slice(),
            buckets: vec![NIL; nr_buckets].into_boxed_slice(),
            shift: 64 - nr_buckets.trailing_zeros(),
        }
    }

    #[inline]
    fn bucket(&self, end_sector: u64) -> usize {
        (end_sector.wrapping_mul(MULTIPLIER) >> self.shift) as usize
    }

    /// Whether `rq` is in the table.
    #[inline]
    pub(crate) fn is_linked(&self, rq: u32) -> bool {
        self.nodes[rq as usize].prev != UNLINKED
    }

    /// Adds a request that ends before `end_sector`.
    #[inline]
    pub(crate) fn insert(&mut self, rq: u32, end_sector: u64) {
        assert!(!self.is_linked(rq), "request {rq} is in the merge hash already");
        let bucket = self.bucket(end_sector);
        let next = self.buckets[bucket];
        self.nodes[rq as usize] = Node { end_sector, prev: NIL, next };
        if next != NIL {
            self.nodes[next as usize].prev = rq;
        }
        self.buckets[bucket] = rq;
    }

    /// Takes a request out. Returns the end sector it was stored under; `None` if it was not in the table.
    #[inline]
    pub(crate) fn remove(&mut self, rq: u32) -> Option<u64> {
        let Node { end_sector, prev, next } = self.nodes[rq as usize];
        match prev {
            UNLINKED => return None,
            NIL => {
                let bucket = self.bucket(end_sector);
                self.buckets[bucket] = next;
            }
            _ => self.nodes[prev as usize].next = next,
        }
        if next != NIL {
            self.nodes[next as usize].prev = prev;
        }
        self.nodes[rq as usize].prev = UNLINKED;
        Some(end_sector)
    }

    /// The newest request that ends where `sector` starts.
    #[inline]
    pub(crate) fn find(&self, sector: u64) -> Option<u32> {
        let mut rq = self.buckets[self.bucket(sector)];
        while rq != NIL {
            let node = &self.nodes[rq as usize];
            if node.end_sector == sector {
                return Some(rq);
            }
            rq = node.next;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim::rng::Rng;
    use std::collections::HashMap;

    #[test]
    fn behaves_like_a_map_to_stacks() {
        for seed in 0..40 {
            let mut rng = Rng::new(seed);
            let size = 1 + rng.below(100);
            let mut hash = MergeHash::new(size as usize);
            let mut model: HashMap<u64, Vec<u32>> = HashMap::new();
            let mut end_of = vec![None; size as usize];
            for step in 0..3000 {
                let rq = rng.below(size) as u32;
                let end = 8 * rng.below(60);
                let old = end_of[rq as usize].take();
                if let Some(old) = old {
                    model.get_mut(&old).expect("known").retain(|&x| x != rq);
                }
                assert_eq!(hash.remove(rq), old);
                if rng.below(3) != 0 {
                    hash.insert(rq, end);
                    end_of[rq as usize] = Some(end);
                }
                if let Some(end) = end_of[rq as usize] {
                    model.entry(end).or_default().push(rq);
                }
                assert_eq!(hash.is_linked(rq), end_of[rq as usize].is_some());
                let probe = 8 * rng.below(60);
                let expected = model.get(&probe).and_then(|v| v.last().copied());
                assert_eq!(hash.find(probe), expected, "seed {seed} step {step}");
            }
        }
    }

    #[test]
    fn one_request_is_enough_for_a_table() {
        let mut hash = MergeHash::new(1);
        hash.insert(0, u64::MAX);
        assert_eq!(hash.find(u64::MAX), Some(0));
        assert_eq!(hash.remove(0), Some(u64::MAX));
        assert_eq!(hash.find(u64::MAX), None);
    }
}
