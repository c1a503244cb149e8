// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The blocks that a random job has touched in this pass: fio's random map.
//!
//! A bitmap with summary levels above it: a summary bit is set when the whole word below is. So finding the next untouched
//! block reads a handful of words even when the map is nearly full. Memory is one bit per block and 1/63 more, allocated once;
//! [`MAX_BLOCKS`] bounds it to about 1 GiB. Blocks are found in the order of fio's `axmap`: the block itself, else the next
//! free one above, else the first one from the start.

use std::collections::TryReserveError;

/// Largest map, in blocks.
pub const MAX_BLOCKS: u64 = 1 << 33;

/// The touched blocks among `0..len`.
#[derive(Clone, Debug)]
pub struct BlockMap {
    /// `levels[0]` has one bit per block; bits past the end are set, so that they are never found.
    levels: Vec<Vec<u64>>,
    len: u64,
}

impl BlockMap {
    /// An empty map of `len` blocks.
    ///
    /// # Errors
    /// The memory cannot be allocated.
    ///
    /// # Panics
    /// When `len` is 0 or above [`MAX_BLOCKS`].
    pub fn new(len: u64) -> Result<BlockMap, TryReserveError> {
        assert!((1..=MAX_BLOCKS).contains(&len), "random map of {len} blocks");
        let mut levels = Vec::new();
        let mut bits = len;
        loop {
            let words = bits.div_ceil(64);
            let mut level = Vec::new();
            level.try_reserve_exact(words as usize)?;
            level.resize(words as usize, 0u64);
            levels.push(level);
            if words == 1 {
                break;
            }
            bits = words;
        }
        let mut map = BlockMap { levels, len };
        map.clear();
        Ok(map)
    }

    /// Marks all blocks as untouched.
    pub fn clear(&mut self) {
        let mut bits = self.len;
        for level in &mut self.levels {
            level.fill(0);
            let rest = bits % 64;
            if rest != 0 {
                *level.last_mut().expect("a level has a word") = !0 << rest;
            }
            bits = bits.div_ceil(64);
        }
    }

    /// Whether `block` was touched; blocks past the end count as touched.
    #[inline]
    pub fn contains(&self, block: u64) -> bool {
        block >= self.len || self.levels[0][(block / 64) as usize] >> (block % 64) & 1 != 0
    }

    /// Returns the untouched block to use for a random draw of `block`: the block itself, else the next one above, else the
    /// first one. Returns `None` when all are touched.
    #[inline]
    pub fn pick(&self, block: u64) -> Option<u64> {
        if !self.contains(block) {
            return Some(block);
        }
        self.first_from(block + 1).or_else(|| self.first_from(0))
    }

    /// First untouched block at or above `block`.
    fn first_from(&self, block: u64) -> Option<u64> {
        let mut at = block;
        for (up, level) in self.levels.iter().enumerate() {
            let word = (at / 64) as usize;
            if word >= level.len() {
                return None;
            }
            let free = !level[word] & (!0 << (at % 64));
            if free != 0 {
                return Some(self.descend(up, word as u64 * 64 + u64::from(free.trailing_zeros())));
            }
            at = word as u64 + 1;
        }
        None
    }

    /// First untouched block below the clear bit `index` of level `level`.
    fn descend(&self, level: usize, mut index: u64) -> u64 {
        for lower in self.levels[..level].iter().rev() {
            let free = !lower[index as usize];
            debug_assert!(free != 0, "summary bit clear over a full word");
            index = index * 64 + u64::from(free.trailing_zeros());
        }
        index
    }

    /// Touches up to `count` blocks from the untouched `block` on, stopping before the first one that is already touched.
    /// Returns how many it touched, at least 1. Blocks past the end count up to a multiple of 64, as in fio: the last I/O of a
    /// region that does not end on a block is not shortened.
    ///
    /// # Panics
    /// When `block` was touched before or `count` is 0.
    #[inline]
    pub fn touch(&mut self, block: u64, count: u64) -> u64 {
        assert!(count > 0 && !self.contains(block), "block {block} touched twice in a pass");
        let mut done = 0;
        while done < count && !self.contains(block + done) {
            self.set(block + done);
            done += 1;
        }
        let end = self.len.next_multiple_of(64);
        if block + done == self.len { count.min(end - block) } else { done }
    }

    #[inline]
    fn set(&mut self, block: u64) {
        let mut index = block;
        for level in &mut self.levels {
            let word = &mut level[(index / 64) as usize];
            *word |= 1 << (index % 64);
            if *word != !0 {
                break;
            }
            index /= 64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Taus88;

    #[test]
    fn every_block_is_found_exactly_once() {
        for len in [1, 2, 63, 64, 65, 4096, 4097, 300_001] {
            let mut map = BlockMap::new(len).unwrap();
            let mut seen = vec![false; len as usize];
            let mut rng = Taus88::new(len as u32);
            for _ in 0..len {
                let b = map.pick(u64::from(rng.next_u32()) % len).expect("blocks are left");
                assert_eq!(map.touch(b, 1), 1);
                assert!(!std::mem::replace(&mut seen[b as usize], true), "block {b} of {len} twice");
            }
            assert_eq!(map.pick(0), None);
            map.clear();
            assert_eq!(map.pick(len - 1), Some(len - 1));
        }
    }

    #[test]
    fn picks_the_same_block_as_a_linear_search() {
        let len = 1000u64;
        let mut map = BlockMap::new(len).unwrap();
        let mut rng = Taus88::new(7);
        for _ in 0..len {
            let draw = u64::from(rng.next_u32()) % len;
            let plain = (0..len).map(|i| (draw + i) % len).find(|&b| !map.contains(b));
            assert_eq!(map.pick(draw), plain);
            map.touch(plain.unwrap(), 1);
        }
    }

    #[test]
    fn a_long_touch_stops_at_a_touched_block() {
        let mut map = BlockMap::new(130).unwrap();
        map.touch(70, 1);
        assert_eq!(map.touch(64, 32), 6);
        assert_eq!(map.touch(128, 32), 32, "past the end of the map");
        map.clear();
        assert_eq!((map.touch(129, 100), map.pick(129)), (63, Some(0)), "no further than a multiple of 64");
        map.clear();
        map.touch(70, 1);
        map.touch(64, 6);
        assert_eq!(map.pick(64), Some(71));
    }
}
