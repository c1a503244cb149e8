// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The order in which a comparison runs its sides, fixed before the first run.
//!
//! Guarantees: pairs come in blocks of two. A block is ABBA or BAAB, each with probability one half, drawn from a seed that
//! is printed. With more than two sides a pair is a round of all sides in a drawn order, and the second round of a block
//! runs backwards. Inside a block all sides have the same mean position, so a linear drift (a disk filling up, a CPU
//! warming) cancels exactly. Because the orientation is drawn at random, a block's difference has a random sign when A and
//! B do not differ. This holds for any correlation and distribution of the machine's noise, even if a periodic disturbance
//! beats with the runs. It bounds the false alarm rate.
//!
//! The number of pairs is fixed. Testing in between, and running more until a difference shows, would raise that rate.
//!
//! Needs from callers: runs executed in exactly this order, none dropped or repeated. Does not: run anything.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A side of a comparison: A, by convention today's setting, or one that is compared with it: B, C, ...
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Side(u8);

impl Side {
    /// The first side.
    pub const A: Side = Side(0);
    /// The second side.
    pub const B: Side = Side(1);
    /// Maximum number of sides of a comparison.
    pub const MAX: usize = 16;

    /// The side at `index`, A being 0.
    ///
    /// # Panics
    /// `index` is not below [`Side::MAX`].
    pub const fn at(index: usize) -> Side {
        assert!(index < Side::MAX, "no such side");
        Side(index as u8)
    }

    /// Its index among the sides, A being 0.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Its name in tables.
    pub const fn letter(self) -> char {
        (b'A' + self.0) as char
    }
}

impl fmt::Debug for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.letter())
    }
}

impl Serialize for Side {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_char(self.letter())
    }
}

impl<'de> Deserialize<'de> for Side {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Side, D::Error> {
        let letter = char::deserialize(d)?;
        let index = (letter as usize).wrapping_sub('A' as usize);
        if index < Side::MAX {
            Ok(Side::at(index))
        } else {
            Err(D::Error::custom(format!("there is no side {letter}")))
        }
    }
}

/// One run of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The side to run.
    pub side: Side,
    /// Index, from 0, of the pair or round that this run belongs to. `None` for a warm-up, whose result is discarded.
    pub pair: Option<u32>,
}

/// The number of pairs, and their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawPlan")]
pub struct Plan {
    #[serde(skip_serializing_if = "is_two")]
    sides: u8,
    pairs: u32,
    warmups: u32,
    seed: u64,
}

/// A plan as a file stores it. Files of earlier versions have two sides.
#[derive(Deserialize)]
struct RawPlan {
    #[serde(default = "two")]
    sides: usize,
    pairs: u32,
    warmups: u32,
    seed: u64,
}

impl TryFrom<RawPlan> for Plan {
    type Error = PlanError;

    fn try_from(raw: RawPlan) -> Result<Plan, PlanError> {
        Plan::new(raw.pairs, raw.warmups, raw.seed)?.of_sides(raw.sides)
    }
}

const fn two() -> usize {
    2
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_two(sides: &u8) -> bool {
    *sides == 2
}

/// A plan that cannot give a verdict.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Odd, too small or too large number of pairs.
    #[error("pairs={0}: must be even and in {min}..={max} (runs go ABBA, two pairs at a time); {default} is a good start", min = Plan::MIN_PAIRS, max = Plan::MAX_PAIRS, default = Plan::DEFAULT_PAIRS)]
    Pairs(u32),
    /// The number of warm-up runs is too large.
    #[error("warmup={0}: must be in 0..={max} runs of each side", max = Plan::MAX_WARMUPS)]
    Warmups(u32),
    /// One side, or too many.
    #[error("side is given {0} times: must be 2..={max} times; the others are compared with the first", max = Side::MAX)]
    Sides(usize),
}

impl Plan {
    /// Five blocks. With three blocks, noise that beats with the blocks gave 14 % false alarms (tests/it/false_alarms.rs,
    /// `Periodic`).
    pub const MIN_PAIRS: u32 = 10;
    /// Six blocks, so that no noise can give 5 % false alarms. It is the smallest number for which this holds even if all
    /// blocks differ by the same amount, with random signs. They then agree by chance in less than 5 % (1 in 32).
    pub const DEFAULT_PAIRS: u32 = 12;
    /// A larger number is a typing error: it would run for days.
    pub const MAX_PAIRS: u32 = 10_000;
    /// Maximum number of warm-up runs.
    pub const MAX_WARMUPS: u32 = 100;

    /// Makes a plan of `pairs` pairs after `warmups` discarded runs of each side.
    pub fn new(pairs: u32, warmups: u32, seed: u64) -> Result<Plan, PlanError> {
        if !pairs.is_multiple_of(2) || !(Self::MIN_PAIRS..=Self::MAX_PAIRS).contains(&pairs) {
            return Err(PlanError::Pairs(pairs));
        }
        if warmups > Self::MAX_WARMUPS {
            return Err(PlanError::Warmups(warmups));
        }
        Ok(Plan { sides: 2, pairs, warmups, seed })
    }

    /// Returns the default number of pairs. It is the least number for which blocks that all differ by the same amount,
    /// with random signs, agree by chance in less than 5 % for any comparison with A. That is [`Plan::DEFAULT_PAIRS`] for
    /// two sides, 14 for three and four, and 20 for sixteen.
    pub fn default_pairs(sides: usize) -> u32 {
        let agree = |blocks: u32| (sides - 1) as f64 * 0.5f64.powi(blocks as i32 - 1);
        2 * (1..).find(|blocks| agree(*blocks) < 0.05).expect("it halves with each block")
    }

    /// The same plan for `sides` sides.
    pub fn of_sides(self, sides: usize) -> Result<Plan, PlanError> {
        match sides {
            2..=Side::MAX => Ok(Plan { sides: sides as u8, ..self }),
            _ => Err(PlanError::Sides(sides)),
        }
    }

    /// Number of sides.
    pub const fn sides(&self) -> usize {
        self.sides as usize
    }

    /// The same plan with more pairs after those it has. The order of earlier runs stays the same.
    #[must_use]
    pub fn extended_to(self, pairs: u32) -> Plan {
        Plan { pairs: pairs.next_multiple_of(2).clamp(self.pairs, Self::MAX_PAIRS), ..self }
    }

    /// Number of pairs.
    pub const fn pairs(&self) -> u32 {
        self.pairs
    }

    /// Number of discarded runs of each side.
    pub const fn warmups(&self) -> u32 {
        self.warmups
    }

    /// Seed of the block orientations.
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// Number of runs, warm-ups included.
    pub const fn runs(&self) -> u32 {
        self.sides as u32 * (self.pairs + self.warmups)
    }

    /// The order of the sides in a pair.
    pub fn order(&self, pair: u32) -> Vec<Side> {
        let mut order: Vec<Side> = (0..self.sides()).map(Side::at).collect();
        let draws = self.sides() as u64 - 1;
        for last in (1..order.len()).rev() {
            let draw = splitmix64(self.seed, u64::from(pair / 2) * draws + (draws - last as u64));
            let chosen = (u128::from(draw) * (last as u128 + 1)) >> 64;
            order.swap(last, last - chosen as usize);
        }
        if !pair.is_multiple_of(2) {
            order.reverse();
        }
        order
    }

    /// All runs in order.
    pub fn steps(&self) -> impl Iterator<Item = Step> + '_ {
        let sides = self.sides();
        let warm = (0..self.warmups).flat_map(move |_| (0..sides).map(|i| Step { side: Side::at(i), pair: None }));
        let measured = (0..self.pairs)
            .flat_map(|pair| self.order(pair).into_iter().map(move |side| Step { side, pair: Some(pair) }));
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
    fn two_sides_run_as_they_always_have() {
        // The order must not change, because results files depend on it.
        let plan = Plan::new(10, 0, 1).unwrap();
        let expected = |pair: u32| {
            let is_a = (splitmix64(1, u64::from(pair / 2)) >> 63 == 0) == pair.is_multiple_of(2);
            if is_a { [Side::A, Side::B] } else { [Side::B, Side::A] }
        };
        (0..10).for_each(|pair| assert_eq!(plan.order(pair), expected(pair)));
        assert_eq!(serde_json::to_string(&plan).unwrap(), "{\"pairs\":10,\"warmups\":0,\"seed\":1}");
    }

    #[test]
    fn every_order_of_three_sides_is_as_likely() {
        let plan = Plan::new(Plan::MAX_PAIRS, 0, 7).unwrap().of_sides(3).unwrap();
        let mut seen = std::collections::BTreeMap::new();
        (0..plan.pairs()).step_by(2).for_each(|pair| *seen.entry(plan.order(pair)).or_insert(0) += 1);
        assert!(seen.len() == 6 && seen.values().all(|n| (733..=933).contains(n)), "{seen:?}");
        assert!(plan.of_sides(1).is_err() && plan.of_sides(17).is_err());
        let text = |sides: u32| format!("{{\"sides\":{sides},\"pairs\":10,\"warmups\":0,\"seed\":1}}");
        let read = |text: &str| serde_json::from_str::<Plan>(text).map_err(|e| e.to_string());
        assert_eq!(read(&text(3)), Ok(Plan::new(10, 0, 1).unwrap().of_sides(3).unwrap()));
        for bad in [text(0), text(1), text(17), text(2).replace("10", "20000")] {
            assert!(read(&bad).unwrap_err().contains("must be "), "{bad}");
        }
    }

    #[test]
    fn more_sides_take_more_pairs() {
        let pairs = [2, 3, 4, 5, 8, 16].map(Plan::default_pairs);
        assert_eq!(pairs, [Plan::DEFAULT_PAIRS, 14, 14, 16, 18, 20]);
    }

    #[test]
    fn orientation_is_fair() {
        let plan = Plan::new(Plan::MAX_PAIRS, 0, 42).unwrap();
        let a_first = (0..plan.pairs()).step_by(2).filter(|&p| plan.order(p)[0] == Side::A).count();
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
                let [a, b] = [Side::A, Side::B];
                prop_assert!(sides == [a, b, b, a] || sides == [b, a, a, b], "{:?}", sides);
                prop_assert_eq!(&plan.order(p)[..], &sides[..2]);
            }
        }

        #[test]
        fn every_side_has_the_same_mean_place_in_a_block(seed: u64, sides in 2usize..=Side::MAX) {
            let plan = Plan::new(10, 1, seed).unwrap().of_sides(sides).unwrap();
            prop_assert_eq!(plan.steps().count(), plan.runs() as usize);
            let measured: Vec<Side> = plan.steps().filter(|s| s.pair.is_some()).map(|s| s.side).collect();
            for block in measured.chunks(2 * sides) {
                for side in (0..sides).map(Side::at) {
                    let places: Vec<usize> = (0..block.len()).filter(|i| block[*i] == side).collect();
                    prop_assert_eq!(places.iter().sum::<usize>(), 2 * sides - 1, "{:?} {:?}", side, block);
                    prop_assert_eq!(places.len(), 2);
                }
            }
        }
    }
}
