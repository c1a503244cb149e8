// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The content of a block (a pattern of seed, block number and generation, or zeroes), and the set of contents that are valid.
//!
//! Guarantees: two different (seed, block, generation) give different contents in the first words. The rest of the block follows from them,
//! so a block tells where it came from. A [`BlockState`] is the set of contents that are valid. It grows when a write is issued, and
//! shrinks when that write completes.

use crate::random::mix;

/// The write that filled a block: [`ANY`], [`ZERO`], or a number from [`FIRST`] on.
pub type Generation = u32;

/// Nothing is known of the content.
pub const ANY: Generation = 0;
/// All bytes are zero.
pub const ZERO: Generation = 1;
/// The first write's number.
pub const FIRST: Generation = 2;

/// The one or two contents that are valid for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockState([Generation; 2]);

impl BlockState {
    /// The content is unknown.
    pub const UNKNOWN: BlockState = BlockState([ANY, ANY]);

    /// Only `generation` is valid.
    pub fn exactly(generation: Generation) -> BlockState {
        BlockState([generation, generation])
    }

    /// Adds `generation` to the valid contents. More than two become "unknown".
    pub fn or(self, generation: Generation) -> BlockState {
        let BlockState([a, b]) = self;
        if a == ANY || a == generation || b == generation {
            self
        } else if a == b {
            BlockState([a, generation])
        } else {
            BlockState::UNKNOWN
        }
    }

    /// Whether there is anything to check.
    pub fn is_known(self) -> bool {
        self.0[0] != ANY
    }
}

/// Fills `block` as generation `generation` of block number `number`.
pub fn fill(seed: u64, number: u64, generation: Generation, block: &mut [u8]) {
    if generation == ZERO {
        block.fill(0);
        return;
    }
    for (i, word) in block.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&word_at(seed, number, generation, i).to_le_bytes());
    }
}

fn word_at(seed: u64, number: u64, generation: Generation, index: usize) -> u64 {
    match index {
        0 => seed,
        1 => number,
        2 => u64::from(generation),
        _ => mix(mix(seed ^ number.rotate_left(32)).wrapping_add(u64::from(generation) << 16 | index as u64)),
    }
}

/// Checks that `block`, read from block number `number`, is one of `state`.
///
/// # Errors
/// The expected content and the content found.
pub fn check(seed: u64, number: u64, state: BlockState, block: &[u8]) -> Result<(), String> {
    if !state.is_known() {
        return Ok(());
    }
    let BlockState([a, b]) = state;
    let (Err(with_a), Err(with_b)) = (compare(seed, number, a, block), compare(seed, number, b, block)) else {
        return Ok(());
    };
    // Of two valid contents, the one that matches further is the likelier.
    let at = with_a.max(with_b);
    let expected = if a == b { name(a) } else { format!("{} or {}", name(a), name(b)) };
    Err(format!("block {number}: expected {expected}, found {} (first difference at byte {at})", found(seed, block)))
}

fn compare(seed: u64, number: u64, generation: Generation, block: &[u8]) -> Result<(), usize> {
    if generation == ZERO {
        return block.iter().position(|&byte| byte != 0).map_or(Ok(()), Err);
    }
    for (i, word) in block.chunks_exact(8).enumerate() {
        let right = word_at(seed, number, generation, i).to_le_bytes();
        if word != right {
            let within = word.iter().zip(right).position(|(&is, should)| is != should);
            return Err(i * 8 + within.unwrap_or(0));
        }
    }
    Ok(())
}

fn name(generation: Generation) -> String {
    match generation {
        ANY => "anything".into(),
        ZERO => "zeroes".into(),
        number => format!("generation {number}"),
    }
}

fn found(seed: u64, block: &[u8]) -> String {
    if block.iter().all(|&byte| byte == 0) {
        return "zeroes".into();
    }
    let mut words = block.chunks_exact(8).filter_map(|word| word.try_into().ok().map(u64::from_le_bytes));
    match (words.next(), words.next(), words.next()) {
        (Some(s), Some(number), Some(generation)) if s == seed => {
            format!("the beginning of block {number} generation {generation}")
        }
        (Some(word), ..) => format!("foreign bytes beginning {word:#018x}"),
        _ => "nothing".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(number: u64, generation: Generation) -> Vec<u8> {
        let mut block = vec![0xffu8; 512];
        fill(7, number, generation, &mut block);
        block
    }

    #[test]
    fn each_changed_byte_is_found() {
        let good = block(3, 9);
        assert_eq!(check(7, 3, BlockState::exactly(9), &good), Ok(()));
        for at in 0..512 {
            let mut bad = good.clone();
            bad[at] ^= 1;
            let text = check(7, 3, BlockState::exactly(9), &bad).unwrap_err();
            assert!(text.contains(&format!("byte {at})")), "{text}");
        }
    }

    #[test]
    fn a_block_says_where_it_came_from() {
        let text = check(7, 3, BlockState::exactly(9), &block(4, 8)).unwrap_err();
        assert!(text.contains("expected generation 9, found the beginning of block 4 generation 8"), "{text}");
        let text = check(7, 3, BlockState::exactly(ZERO), &block(3, 8)).unwrap_err();
        assert!(text.contains("expected zeroes"), "{text}");
        let text = check(7, 3, BlockState::exactly(5), &[0; 512]).unwrap_err();
        assert!(text.contains("found zeroes"), "{text}");
    }

    #[test]
    fn a_write_under_way_may_or_may_not_be_there() {
        let state = BlockState::exactly(4).or(5);
        assert_eq!(check(7, 0, state, &block(0, 4)), Ok(()));
        assert_eq!(check(7, 0, state, &block(0, 5)), Ok(()));
        let text = check(7, 0, state, &block(0, 6)).unwrap_err();
        assert!(text.contains("generation 4 or generation 5"), "{text}");
        assert_eq!(state.or(5), state);
        assert_eq!(state.or(6), BlockState::UNKNOWN);
        assert_eq!(BlockState::UNKNOWN.or(6), BlockState::UNKNOWN);
    }
}
