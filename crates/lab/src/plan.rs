// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The order in which a comparison runs its two sides, fixed before the first run.
//!
//! Guarantees: pairs come in blocks of two; a block is ABBA or BAAB, each with probability one half from a seed that is
//! printed. Inside a block A and B have the same mean position, so a linear drift (a disk filling up, a CPU warming) cancels
//! exactly. Because the orientation is drawn at random, a block's difference has a random sign when A and B do not differ. This
//! holds however the machine's noise is correlated or distributed, even if something periodic beats with the runs. It is what
//! bounds the false alarm rate.
//!
//! The number of pairs is fixed; testing in between and running more until something shows would raise that rate.
//!
//! Needs from callers: runs executed in exactly this order, none dropped or repeated. Does not: run anything.

use serde::{Deserialize, Serialize};

/// Which of the two things is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Side {
    /// The first, by convention today's setting.
    A,
    /// The second, the proposed setting.
    B,
}

impl Side {
    /// The other one.
    pub const fn other(self) -> Side {
        match self {
            Side::A => Side::B,
            Side::B => Side::A,
        }
    }
}

/// One run of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// What to run.
    pub side: Side,
    /// Index of the pair this run belongs to, from 0; `None` for a warm-up, whose result is thrown away.
    pub pair: Option<u32>,
}

/// How many pairs, in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pairs: u32,
    warmups: u32,
    seed: u64,
}

/// A plan that cannot give a verdict.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Odd, too small or too large number of pairs.
    #[error("pairs={0}: must be even and in {min}..={max} (runs go ABBA, two pairs at a time); {default} is a good start", min = Plan::MIN_PAIRS, max = Plan::MAX_PAIRS, default = Plan::DEFAULT_PAIRS)]
    Pairs(u32),
    /// Too many warm-up runs.
    #[error("warmup={0}: must be in 0..={max} runs of each side", max = Plan::MAX_WARMUPS)]
    Warmups(u32),
}

impl Plan {
    /// Five blocks. With three, noise that beats with the blocks gave 14 % false alarms (tests/it/false_alarms.rs, `Periodic`).
    pub const MIN_PAIRS: u32 = 10;
    /// Six blocks, so that no noise whatever can give 5 % false alarms. It is the smallest number for which this holds even if
    /// all blocks differ by the same amount, with random signs: they then agree by chance in less than 5 % (1 in 32).
    pub const DEFAULT_PAIRS: u32 = 12;
    /// More than this is a slip of the hand: days of running.
    pub const MAX_PAIRS: u32 = 10_000;
    /// Bound on warm-up runs.
    pub const MAX_WARMUPS: u32 = 100;

    /// A plan of `pairs` pairs after `warmups` thrown-away runs of each side.
    pub fn new(pairs: u32, warmups: u32, seed: u64) -> Result<Plan, PlanError> {
        if !pairs.is_multiple_of(2) || !(Self::MIN_PAIRS..=Self::MAX_PAIRS).contains(&pairs) {
            return Err(PlanError::Pairs(pairs));
        }
        if warmups > Self::MAX_WARMUPS {
            return Err(PlanError::Warmups(warmups));
        }
        Ok(Plan { pairs, warmups, seed })
    }

    /// The same plan with more pairs behind those it has: the order of what has run stays.
    #[must_use]
    pub fn extended_to(self, pairs: u32) -> Plan {
        Plan { pairs: pairs.next_multiple_of(2).clamp(self.pairs, Self::MAX_PAIRS), ..self }
    }

    /// Number of pairs.
    pub const fn pairs(&self) -> u32 {
        self.pairs
    }

    /// Number of thrown-away runs of each side.
    pub const fn warmups(&self) -> u32 {
        self.warmups
    }

    /// Seed of the block orientations.
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// Number of runs, warm-ups included.
    pub const fn runs(&self) -> u32 {
        2 * (self.pairs + self.warmups)
    }

    /// The side that runs first in a pair.
    pub fn first_of_pair(&self, pair: u32) -> Side {
        let block = u64::from(pair / 2);
        let first = if splitmix64(self.seed, block) >> 63 == 0 { Side::A } else { Side::B };
        if pair.is_multiple_of(2) { first } else { first.other() }
    }

    /// All runs in order.
    pub fn steps(&self) -> impl Iterator<Item = Step> + '_ {
        let warm = (0..2 * self.warmups).map(|i| Step { side: if i % 2 == 0 { Side::A } else { Side::B }, pair: None });
        let measured = (0..self.pairs).flat_map(|pair| {
            let first = self.first_of_pair(pair);
            [first, first.other()].map(|side| Step { side, pair: Some(pair) })
        });
        warm.chain(measured)
    }
}

/// The `index`-th output of the SplitMix64 generator started at `seed` (Steele, Lea, Flood 2014).
pub(crate) fn splitmix64(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn refusals_name_rule_value_and_remedy() {
        for pairs in [0, 2, 8, 11, Plan::MAX_PAIRS + 2] {
            let text = Plan::new(pairs, 1, 1).unwrap_err().to_string();
            assert!(text.contains(&format!("pairs={pairs}")) && text.contains("even and in 10..=10000"), "{text}");
        }
        assert!(Plan::new(10, 101, 1).unwrap_err().to_string().contains("warmup=101"));
    }

    #[test]
    fn splitmix_reference_output() {
        // First outputs of the published generator for seed 1234567.
        assert_eq!(splitmix64(1_234_567, 0), 6_457_827_717_110_365_317);
        assert_eq!(splitmix64(1_234_567, 1), 3_203_168_211_198_807_973);
    }

    #[test]
    fn orientation_is_fair() {
        let plan = Plan::new(Plan::MAX_PAIRS, 0, 42).unwrap();
        let a_first = (0..plan.pairs()).step_by(2).filter(|&p| plan.first_of_pair(p) == Side::A).count();
        assert!((2350..=2650).contains(&a_first), "{a_first} of 5000");
    }

    proptest! {
        #[test]
        fn blocks_are_abba_or_baab(seed: u64, blocks in 5u32..50, warmups in 0u32..4) {
            let plan = Plan::new(2 * blocks, warmups, seed).unwrap();
            let steps: Vec<Step> = plan.steps().collect();
            prop_assert_eq!(steps.len(), plan.runs() as usize);
            prop_assert!(steps[..2 * warmups as usize].iter().all(|s| s.pair.is_none()));
            for (i, block) in steps[2 * warmups as usize..].chunks(4).enumerate() {
                let pairs: Vec<u32> = block.iter().filter_map(|s| s.pair).collect();
                let p = 2 * i as u32;
                prop_assert_eq!(pairs, vec![p, p, p + 1, p + 1]);
                let sides: Vec<Side> = block.iter().map(|s| s.side).collect();
                let (f, o) = (sides[0], sides[0].other());
                prop_assert_eq!(sides, vec![f, o, o, f]);
                prop_assert_eq!(plan.first_of_pair(p), f);
            }
        }
    }
}
