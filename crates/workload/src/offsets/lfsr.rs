// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every block once in a random order, without a map: fio's `random_generator=lfsr`.
//!
//! A linear feedback shift register of n bits goes through 2^n - 1 numbers before it repeats one. Numbers at or above the
//! number of blocks are skipped. Guarantees: [`Lfsr::next_block`] returns each block once between two resets, then
//! `None`. The order is fio's, whose registers take their bits from the right and have XNOR feedback at the positions of
//! [`TAPS`], so that all ones is the state that never occurs. Cost: fewer than two steps a block on average.

/// The positions of feedback other than n for registers of 3 to 63 bits; they give the longest period.
#[rustfmt::skip] // A table.
const TAPS: [&[u8]; 61] = [
    &[2], &[3], &[3], &[5], &[6], &[6, 5, 4], &[5], &[7], &[9], &[6, 4, 1], &[4, 3, 1], &[5, 3, 1], &[14],
    &[15, 13, 4], &[14], &[11], &[6, 2, 1], &[17], &[19], &[21], &[18], &[23, 22, 17], &[22], &[6, 2, 1],
    &[5, 2, 1], &[25], &[27], &[6, 4, 1], &[28], &[31, 29, 1], &[20], &[27, 2, 1], &[33], &[25], &[5, 4, 3, 2, 1],
    &[6, 5, 1], &[35], &[38, 21, 19], &[38], &[41, 20, 19], &[42, 38, 37], &[43, 18, 17], &[44, 42, 41],
    &[45, 26, 25], &[42], &[47, 21, 20], &[40], &[49, 24, 23], &[50, 36, 35], &[49], &[52, 38, 37], &[53, 18, 17],
    &[31], &[55, 35, 34], &[50], &[39], &[58, 38, 37], &[59], &[60, 46, 45], &[61, 6, 5], &[62],
];
/// Bits of the first entry of [`TAPS`].
const LEAST_BITS: usize = 3;

/// The blocks `0..blocks` in the order of a register.
#[derive(Clone, Debug)]
pub struct Lfsr {
    value: u64,
    seed: u64,
    blocks: u64,
    drawn: u64,
    top: u64,
    feedback: u64,
    /// fio steps twice for the first number, but not after a reset during the run.
    skip: bool,
}

impl Lfsr {
    /// A register for `blocks` blocks, at most 2^62.
    ///
    /// # Panics
    /// When there are more blocks.
    pub fn new(blocks: u64, seed: u64) -> Lfsr {
        let bits = (LEAST_BITS..LEAST_BITS + TAPS.len()).find(|&bits| 1 << bits > blocks).expect("at most 2^62 blocks");
        let top = 1 << (bits - 1);
        let feedback = TAPS[bits - LEAST_BITS].iter().fold(top, |mask, &tap| mask | 1 << (tap - 1));
        let mut lfsr = Lfsr { value: 0, seed, blocks, drawn: 0, top, feedback, skip: true };
        lfsr.reset();
        lfsr
    }

    /// Starts over with the same order.
    pub fn reset(&mut self) {
        let all_ones = self.top * 2 - 1;
        // A register with all ones would stay there; fio rejects such a seed.
        self.value = Some(self.seed & all_ones).filter(|&v| v != all_ones).unwrap_or(0);
        self.drawn = 0;
    }

    /// The next block; `None` when each was returned.
    #[inline]
    pub fn next_block(&mut self) -> Option<u64> {
        if self.drawn == self.blocks {
            return None;
        }
        self.drawn += 1;
        if std::mem::take(&mut self.skip) {
            self.step();
        }
        self.step();
        while self.value >= self.blocks {
            self.step();
        }
        Some(self.value)
    }

    fn step(&mut self) {
        let low = self.value & 1;
        self.value = (self.value >> 1 | self.top) ^ if low == 0 { self.feedback } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_is_returned_once() {
        for (seed, blocks) in [(0, 1), (5, 2), (7, 7), (9, 8), (1, 1000), (0xb189_9bed, 65_536), (3, 300_001)] {
            let mut lfsr = Lfsr::new(blocks, seed);
            for _pass in 0..2 {
                let mut seen = vec![false; blocks as usize];
                while let Some(block) = lfsr.next_block() {
                    assert!(!std::mem::replace(&mut seen[block as usize], true), "block {block} of {blocks} twice");
                }
                assert!(seen.iter().all(|&s| s), "{blocks} blocks, seed {seed}");
                lfsr.reset();
            }
        }
    }

    #[test]
    fn registers_up_to_22_bits_have_the_longest_period() {
        for bits in LEAST_BITS..=22 {
            let mut lfsr = Lfsr::new((1 << bits) - 1, 1);
            let first = lfsr.value;
            lfsr.step();
            let steps = 1 + std::iter::from_fn(|| (lfsr.value != first).then(|| lfsr.step())).count();
            assert_eq!(steps, (1 << bits) - 1, "{bits} bits");
        }
    }
}
