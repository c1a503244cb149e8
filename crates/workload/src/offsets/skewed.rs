// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Skewed random blocks: zipf, pareto and normal, as fio defines them.
//!
//! Each draws a rank (0 is the hottest block, or for `normal` a position on the bell curve) and then maps it to a block. A
//! multiplicative hash scatters the ranks over the range, so that hot blocks are not neighbours. A given centre moves the
//! scattered blocks; despite its name it gathers nothing. The scatter is not a permutation: a few blocks share a position
//! and others are never hit. All this is fio's definition, and so is the order of the blocks. Blocks may repeat, because
//! neither fio nor this crate keeps a random map for these distributions. The sequence continues from pass to pass.
//!
//! Cost: two to three calls of `pow` per draw for zipf and one for pareto; zipf sums its normalisation once at the start,
//! over at most [`ZIPF_TERMS`] terms (about 0.2 s), like fio.

use crate::job::Distribution;
use crate::rng::Taus88;

/// Maximum number of terms of zipf's normalisation that are summed.
pub const ZIPF_TERMS: u64 = 10_000_000;
/// Number of uniform draws that are averaged for one point of the bell curve.
const BELL_DRAWS: u64 = 12;
/// 2^64 divided by the golden ratio, odd: Knuth's multiplicative hash.
const GOLDEN_RATIO: u64 = 0x61C8_8646_80B5_83EB;
const U32_MAX: f64 = u32::MAX as f64;

/// A skewed distribution over `0..blocks`.
#[derive(Clone, Debug)]
pub struct Skewed {
    rng: Taus88,
    blocks: u64,
    shape: Shape,
    /// Added to the hash of a rank.
    shift: u64,
}

#[derive(Clone, Debug)]
enum Shape {
    Zipf { zetan: f64, eta: f64, alpha: f64, second: f64 },
    Pareto { power: f64 },
    Normal { spread: u64 },
}

impl Skewed {
    /// The distribution over `blocks` >= 1 blocks; `None` when `dist` is not a skewed one.
    pub fn new(dist: &Distribution, blocks: u64, seed: u32) -> Option<Skewed> {
        let mut rng = Taus88::new(seed);
        let of_ranks = |rng: &mut Taus88, center: Option<f64>| {
            let drawn = u64::from(rng.next_u32());
            center.map_or(drawn, |c| (blocks as f64 * c) as u64)
        };
        let (shape, shift) = match *dist {
            Distribution::Zipf { theta, center } => (zipf(theta, blocks), of_ranks(&mut rng, center)),
            Distribution::Pareto { h, center } => {
                (Shape::Pareto { power: h.ln() / (1.0 - h).ln() }, of_ranks(&mut rng, center))
            }
            Distribution::Normal { dev_pct, center } => {
                let spread = ((blocks as f64 * dev_pct / 100.0).ceil() as u64).min(blocks / 2);
                // fio keeps the low 32 bits of a shift to the left.
                let shift = center.map_or(0, |c| (blocks as f64 * (c - 0.5)) as i64 as u32);
                (Shape::Normal { spread }, u64::from(shift))
            }
            Distribution::Random | Distribution::Zoned(_) => return None,
        };
        Some(Skewed { rng, blocks, shape, shift })
    }

    /// The next block.
    #[inline]
    pub fn next_block(&mut self) -> u64 {
        let rank = self.next_rank();
        self.place(rank)
    }

    /// The next block, with the hot ones side by side.
    pub fn next_unscattered(&mut self) -> u64 {
        self.next_rank().wrapping_add(self.shift) % self.blocks
    }

    /// Returns the block of a rank.
    #[inline]
    pub fn place(&self, rank: u64) -> u64 {
        rank.wrapping_mul(GOLDEN_RATIO).wrapping_add(self.shift) % self.blocks
    }

    /// Returns the next rank, not yet mapped to a block; 0 is the most frequent one for zipf and pareto.
    #[inline]
    pub fn next_rank(&mut self) -> u64 {
        let n = self.blocks;
        match self.shape {
            Shape::Zipf { zetan, eta, alpha, second } => {
                let uniform = f64::from(self.rng.next_u32()) / U32_MAX;
                let z = uniform * zetan;
                if z < 1.0 {
                    0
                } else if z < second {
                    1
                } else {
                    (n as f64 * (eta * uniform - eta + 1.0).powf(alpha)) as u64
                }
            }
            Shape::Pareto { power } => {
                let uniform = f64::from(self.rng.next_u32()) / U32_MAX;
                ((n - 1) as f64 * uniform.powf(power)) as u64
            }
            Shape::Normal { spread } => self.bell(spread),
        }
    }

    fn bell(&mut self, spread: u64) -> u64 {
        let n = self.blocks;
        let sum: u64 = (0..BELL_DRAWS).map(|_| u64::from(self.rng.next_u32()) % (n + 1)).sum();
        let mid = sum.div_ceil(BELL_DRAWS) as i64;
        if spread == 0 {
            return mid as u64;
        }
        let unit = f64::from(self.rng.next_u32()) / (U32_MAX + 1.0);
        let mut dev = (spread as f64 * unit) as i64 - (spread / 2) as i64;
        // Halve a deviation that would leave the range; a block at the very end keeps its position.
        while !(0..n as i64).contains(&(mid + dev)) && dev != 0 {
            dev /= 2;
        }
        (mid + dev) as u64
    }
}

/// Gray et al., "Quickly Generating Billion-Record Synthetic Databases" (SIGMOD 1994).
fn zipf(theta: f64, blocks: u64) -> Shape {
    let n = blocks as f64;
    let second = 1.0 + 0.5f64.powf(theta);
    let zetan: f64 = (1..=blocks.min(ZIPF_TERMS)).map(|i| (1.0 / i as f64).powf(theta)).sum();
    let eta = if blocks > 2 { (1.0 - (2.0 / n).powf(1.0 - theta)) / (1.0 - second / zetan) } else { 1.0 };
    Shape::Zipf { zetan, eta, alpha: 1.0 / (1.0 - theta), second }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(dist: &Distribution, blocks: u64, draws: u64) -> Vec<u64> {
        let mut s = Skewed::new(dist, blocks, 1).unwrap();
        let mut count = vec![0u64; blocks as usize + 1];
        (0..draws).for_each(|_| count[s.next_rank().min(blocks) as usize] += 1);
        count
    }

    #[test]
    fn zipf_ranks_have_the_expected_shares() {
        for theta in [0.5, 0.9, 1.2] {
            let (blocks, draws) = (1000u64, 400_000u64);
            let count = ranks(&Distribution::Zipf { theta, center: None }, blocks, draws);
            let zetan: f64 = (1..=blocks).map(|i| (1.0 / i as f64).powf(theta)).sum();
            for rank in [0usize, 1] {
                let want = draws as f64 * (1.0 / (rank + 1) as f64).powf(theta) / zetan;
                assert!(
                    (count[rank] as f64 / want - 1.0).abs() < 0.03,
                    "theta {theta} rank {rank}: {} want {want:.0}",
                    count[rank]
                );
            }
            // The tail is a continuous approximation in this method: compare whole decades of ranks.
            for (lo, hi) in [(9usize, 100), (100, 1000)] {
                let got: u64 = count[lo..hi].iter().sum();
                let want: f64 = (lo..hi).map(|r| (1.0 / (r + 1) as f64).powf(theta) / zetan * draws as f64).sum();
                assert!((got as f64 / want - 1.0).abs() < 0.08, "theta {theta} ranks {lo}..{hi}: {got} want {want:.0}");
            }
        }
    }

    #[test]
    fn pareto_0_2_puts_80_percent_on_20_percent() {
        let count = ranks(&Distribution::Pareto { h: 0.2, center: None }, 1000, 100_000);
        let hot: u64 = count[..200].iter().sum();
        assert!((79_000..81_000).contains(&hot), "{hot} of 100000 on the first fifth");
    }

    #[test]
    fn normal_has_its_middle_and_deviation() {
        let blocks = 100_000u64;
        let mut s = Skewed::new(&Distribution::Normal { dev_pct: 10.0, center: None }, blocks, 3).unwrap();
        let drawn: Vec<f64> = (0..50_000).map(|_| s.next_rank() as f64).collect();
        let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
        let sd = (drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / drawn.len() as f64).sqrt();
        // Twelve uniform draws have a deviation of n/12; the spread of 10 % adds a uniform part of n/10.
        let want = blocks as f64 * (1.0 / 144.0 + 0.01 / 12.0f64).sqrt();
        assert!((mean / 50_000.0 - 1.0).abs() < 0.02, "mean {mean}");
        assert!((sd / want - 1.0).abs() < 0.03, "deviation {sd}, want {want}");
    }

    #[test]
    fn all_blocks_are_in_range_and_repeat_with_the_seed() {
        let all = [
            Distribution::Zipf { theta: 1.2, center: None },
            Distribution::Zipf { theta: 0.3, center: Some(1.0) },
            Distribution::Pareto { h: 0.9, center: None },
            Distribution::Normal { dev_pct: 100.0, center: None },
            Distribution::Normal { dev_pct: 1.0, center: Some(0.0) },
        ];
        for dist in &all {
            for blocks in [1, 2, 3, 77, 1 << 20] {
                let mut s = Skewed::new(dist, blocks, 9).unwrap();
                let first: Vec<u64> = (0..500).map(|_| s.next_block()).collect();
                assert!(first.iter().all(|&b| b < blocks), "{dist:?} over {blocks}");
                let mut again = Skewed::new(dist, blocks, 9).unwrap();
                assert!((0..500).map(|_| again.next_block()).eq(first), "{dist:?} repeats");
            }
        }
        assert!(Skewed::new(&Distribution::Random, 8, 1).is_none());
    }

    #[test]
    fn a_centre_moves_the_hot_block_and_scatters_the_others() {
        let s = Skewed::new(&Distribution::Zipf { theta: 1.1, center: Some(0.5) }, 1000, 1).unwrap();
        assert_eq!((s.place(0), s.place(1)), (500, 500 + (GOLDEN_RATIO % 1000)));
        let normal = Skewed::new(&Distribution::Normal { dev_pct: 10.0, center: Some(0.75) }, 1000, 1).unwrap();
        assert_eq!(normal.place(0), 250);
    }
}
