// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random numbers of the simulation: SplitMix64, which gives the same numbers for the same seed for ever. A library update
//! could change what a kept seed means, so the generator is our own. Tests of other crates use it, too.

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// The next 64 bits.
    #[allow(clippy::should_implement_trait, reason = "no iterator: it has no end")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`. Panics when `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "a number below 0");
        self.next() % n
    }

    /// The next `n` bytes.
    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).take(n).collect()
    }

    /// True for `n` of a thousand calls; draws nothing when `n` is 0.
    pub fn per_mille(&mut self, n: u32) -> bool {
        n > 0 && self.below(1000) < u64::from(n)
    }

    /// Picks one of `from`. Panics when `from` is empty.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}
