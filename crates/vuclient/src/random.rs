// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SplitMix64: the seeded numbers of patterns, offsets and plans.
//!
//! Guarantees: the same seed gives the same numbers on every machine. Not for secrets.
//! Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014).

/// A stream of 64-bit numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

/// One scrambling of `value`; a bijection.
pub fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl Random {
    /// Makes stream number `stream` of `seed`; streams of different numbers are unrelated.
    pub fn new(seed: u64, stream: u64) -> Random {
        Random(mix(seed).wrapping_add(mix(stream.wrapping_add(0x5851_f42d_4c95_7f2d))))
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number in `0..below`; 0 for `below == 0`. The bias is below 2^-32 for the ranges used here.
    pub fn below(&mut self, below: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(below)) >> 64) as u64
    }

    /// Returns true with a probability of `percent` percent.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_one_seed_differ_and_repeat() {
        let take = |seed, stream| {
            let mut random = Random::new(seed, stream);
            [random.next(), random.next(), random.next()]
        };
        assert_eq!(take(1, 0), take(1, 0));
        assert_ne!(take(1, 0), take(1, 1));
        assert_ne!(take(1, 0), take(2, 0));
    }

    #[test]
    fn below_stays_below_and_reaches_both_ends() {
        let mut random = Random::new(3, 0);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[random.below(5) as usize] = true;
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(random.below(0), 0);
    }
}
