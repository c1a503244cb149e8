// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bitmap against a set of numbers, and the rules of word size, hint and shallow depth one by one.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn take_all(sb: &Sbitmap, hint: &mut TagAllocHint) -> Vec<u32> {
    std::iter::from_fn(|| sb.get(hint)).collect()
}

#[test]
fn words_halve_until_there_are_four() {
    let bits_per_word = |depth| 1u32 << Sbitmap::new(depth, false).shift;
    let expected =
        [(1, 64), (3, 64), (4, 1), (7, 1), (8, 2), (63, 8), (64, 16), (128, 32), (255, 32), (256, 64), (10_240, 64)];
    for (depth, bits) in expected {
        assert_eq!(bits_per_word(depth), bits, "depth {depth}");
    }
}

#[test]
#[should_panic(expected = "at least one bit")]
fn depth_zero_panics() {
    Sbitmap::new(0, false);
}

#[test]
fn a_full_map_was_handed_out_once_each() {
    for depth in [1, 2, 3, 4, 5, 63, 64, 65, 100, 127, 130, 256, 1000] {
        for round_robin in [false, true] {
            for seed in [0, 1, depth / 2, depth - 1, depth, u32::MAX] {
                let sb = Sbitmap::new(depth, round_robin);
                let mut got = take_all(&sb, &mut TagAllocHint::new(seed));
                got.sort_unstable();
                assert_eq!(got, (0..depth).collect::<Vec<_>>(), "depth {depth} seed {seed}");
                assert_eq!(sb.weight(), depth);
            }
        }
    }
}

#[test]
fn the_hint_follows_an_allocation_at_the_hint_only() {
    let sb = Sbitmap::new(64, false);
    let mut hint = TagAllocHint::new(0);
    assert_eq!(sb.get(&mut hint), Some(0));
    assert_eq!(hint, TagAllocHint(1));
    assert_eq!(sb.get(&mut hint), Some(1));
    hint.note_freed(40);
    assert_eq!(sb.get(&mut hint), Some(32), "lowest bit of the hinted word");
    assert_eq!(hint, TagAllocHint(40), "not at the hint, so it stays");
    let mut last = TagAllocHint::new(62);
    for bit in 48..62 {
        assert_eq!(sb.get(&mut last), Some(bit));
    }
    assert_eq!(sb.get(&mut last), Some(62));
    assert_eq!(last, TagAllocHint(0), "62 + 1 reaches depth - 1");
    take_all(&sb, &mut last);
    hint.note_freed(40);
    assert_eq!(sb.get(&mut hint), None);
    assert_eq!(hint, TagAllocHint(0), "a full map resets it");
}

#[test]
fn round_robin_goes_on_where_it_was() {
    let sb = Sbitmap::new(16, true);
    let mut hint = TagAllocHint::new(0);
    let order: Vec<u32> = (0..30)
        .map(|_| {
            let bit = sb.get(&mut hint).unwrap();
            sb.clear_deferred(bit);
            bit
        })
        .collect();
    // The hint wraps at depth - 1, so 15 is left over. In the second round, bit 15 is the only free bit in the `word` half
    // of its word. The deferred clears of that word are not collected while `word` has a free bit.
    let expected: Vec<u32> = (0..15).chain(0..12).chain([15, 0, 1]).collect();
    assert_eq!(order, expected);
}

#[test]
fn round_robin_finds_a_bit_below_its_hint_in_the_only_word() {
    let sb = Sbitmap::with_shift(8, 6, true);
    let mut hint = TagAllocHint::new(0);
    assert_eq!(take_all(&sb, &mut hint).len(), 8);
    sb.clear_deferred(2);
    assert_eq!(sb.get(&mut TagAllocHint::new(5)), Some(2));
}

#[test]
fn a_batch_is_one_word_and_clears_at_once() {
    let sb = Sbitmap::new(64, false);
    let mut hint = TagAllocHint::new(20);
    let batch = sb.get_batch(&mut hint, 4);
    assert_eq!(batch, TagBatch { base: 16, mask: 0b1111 });
    let rest = sb.get_batch(&mut hint, 32);
    assert_eq!((rest.base, rest.len()), (16, 12));
    assert_eq!(batch.clone().collect::<Vec<_>>(), [16, 17, 18, 19]);
    sb.clear_batch(rest.base, rest.mask);
    assert_eq!(sb.weight(), 4);
    sb.clear_batch(batch.base, 0b0110);
    sb.clear_deferred(19);
    let mut around = sb.get_batch(&mut TagAllocHint::new(16), 15);
    assert_eq!(around.mask, 0xfffe, "14 bits of the word and one that was given back");
    assert_eq!(around.pop(), Some(17));
}

#[test]
fn a_batch_has_no_place_in_a_round_robin_map() {
    let sb = Sbitmap::new(64, true);
    assert!(sb.get_batch(&mut TagAllocHint::new(0), 8).is_empty());
    assert_eq!(sb.weight(), 0);
}

#[test]
fn shallow_parts_add_up() {
    for (depth, shift) in [(64, 4), (256, 6), (128, 5), (12, 2)] {
        let sb = Sbitmap::with_shift(depth, shift, false);
        for shallow in 0..=depth + 1 {
            let sum: u32 = (0..sb.words.len()).map(|i| sb.usable(i, shallow).count_ones()).sum();
            assert_eq!(sum, shallow.min(depth), "depth {depth} shallow {shallow}");
        }
    }
    // 16 bits in four words, 6 allowed: one each, and the two left over go to the first two words.
    let sb = Sbitmap::with_shift(16, 2, false);
    let parts: Vec<u32> = (0..4).map(|i| sb.usable(i, 6).count_ones()).collect();
    assert_eq!(parts, [2, 2, 1, 1]);
}

#[test]
fn a_shallow_user_leaves_the_rest_alone() {
    let sb = Sbitmap::new(64, false);
    let mut hint = TagAllocHint::new(33);
    let got: Vec<u32> = std::iter::from_fn(|| sb.get_shallow(&mut hint, 10)).collect();
    assert_eq!(got.len(), 10);
    assert_eq!(take_all(&sb, &mut hint).len(), 54);
    // A bit outside the shallow part does not help the shallow user; one inside does.
    sb.clear_deferred(15);
    assert_eq!(sb.get_shallow(&mut hint, 10), None);
    sb.clear_deferred(0);
    assert_eq!(sb.get_shallow(&mut hint, 10), Some(0));
    assert_eq!(sb.get(&mut hint), Some(15));
}

#[test]
fn word_of_splits_a_bit() {
    let sb = Sbitmap::new(64, false);
    assert_eq!(sb.word_of(0), (0, 0));
    assert_eq!(sb.word_of(37), (32, 5));
    assert_eq!(sb.word_of(63), (48, 15));
}

#[test]
fn flags_are_visited_from_the_start_round_to_below_it() {
    let sb = Sbitmap::with_shift(20, 3, false);
    for bit in [0, 3, 7, 8, 18, 19] {
        sb.set_bit(bit);
    }
    sb.set_bit(12);
    sb.clear_bit(12);
    assert!(sb.test_bit(18) && !sb.test_bit(12));
    let visit = |start, limit: usize| {
        let mut seen = Vec::new();
        sb.for_each_set(start, |bit| {
            seen.push(bit);
            seen.len() < limit
        });
        seen
    };
    assert_eq!(visit(0, 99), [0, 3, 7, 8, 18, 19]);
    assert_eq!(visit(3, 99), [3, 7, 8, 18, 19, 0]);
    assert_eq!(visit(19, 99), [19, 0, 3, 7, 8, 18]);
    assert_eq!(visit(20, 99), [0, 3, 7, 8, 18, 19]);
    assert_eq!(visit(4, 3), [7, 8, 18]);
    assert!(sb.any_bit_set());
}

#[test]
#[should_panic(expected = "out of range")]
fn a_bit_of_the_last_word_beyond_the_depth_is_out_of_range() {
    Sbitmap::new(65, false).clear_deferred(65);
}

#[test]
#[should_panic(expected = "out of range")]
fn a_batch_beyond_the_depth_is_out_of_range() {
    Sbitmap::with_shift(5, 2, false).clear_batch(4, 0b11);
}

#[test]
#[should_panic(expected = "starts at a word")]
fn a_batch_must_start_at_a_word() {
    Sbitmap::new(64, false).clear_batch(8, 1);
}

#[derive(Clone, Debug)]
enum Op {
    Get,
    GetShallow(u32),
    GetBatch(u32),
    PutDeferred(prop::sample::Index),
    PutWord(prop::sample::Index, u64),
    Rehint(u32),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => Just(Op::Get),
        2 => (0u32..300).prop_map(Op::GetShallow),
        2 => (0u32..70).prop_map(Op::GetBatch),
        4 => any::<prop::sample::Index>().prop_map(Op::PutDeferred),
        2 => (any::<prop::sample::Index>(), any::<u64>()).prop_map(|(i, m)| Op::PutWord(i, m)),
        1 => any::<u32>().prop_map(Op::Rehint),
    ]
}

/// Bits of `taken` in the word of `bit`.
fn word_mask(sb: &Sbitmap, taken: &BTreeSet<u32>, bit: u32) -> (u32, u64) {
    let (base, _) = sb.word_of(bit);
    let mask = taken.range(base..base + (1 << sb.shift)).fold(0, |m, b| m | 1 << (b - base));
    (base, mask)
}

fn apply(sb: &Sbitmap, hint: &mut TagAllocHint, taken: &mut BTreeSet<u32>, op: Op) -> Result<(), TestCaseError> {
    let pick = |i: prop::sample::Index, taken: &BTreeSet<u32>| {
        (!taken.is_empty()).then(|| *taken.iter().nth(i.index(taken.len())).expect("in range"))
    };
    match op {
        Op::Get => match sb.get(hint) {
            Some(bit) => prop_assert!(bit < sb.depth && taken.insert(bit)),
            None => prop_assert_eq!(taken.len() as u32, sb.depth),
        },
        Op::GetShallow(shallow) => {
            let may_use = |bit: u32| {
                let (_, within) = sb.word_of(bit);
                sb.usable((bit >> sb.shift) as usize, shallow) >> within & 1 == 1
            };
            match sb.get_shallow(hint, shallow) {
                Some(bit) => prop_assert!(may_use(bit) && taken.insert(bit)),
                None => prop_assert!((0..sb.depth).all(|b| !may_use(b) || taken.contains(&b))),
            }
        }
        Op::GetBatch(n) => {
            let batch = sb.get_batch(hint, n);
            prop_assert!(batch.len() <= n);
            if batch.is_empty() && n > 0 && !sb.round_robin {
                prop_assert_eq!(taken.len() as u32, sb.depth);
            }
            for bit in batch {
                prop_assert!(bit < sb.depth && taken.insert(bit));
            }
        }
        Op::PutDeferred(i) => {
            if let Some(bit) = pick(i, taken) {
                sb.clear_deferred(bit);
                taken.remove(&bit);
            }
        }
        Op::PutWord(i, keep) => {
            if let Some(bit) = pick(i, taken) {
                let (base, mask) = word_mask(sb, taken, bit);
                sb.clear_batch(base, mask & keep);
                taken.retain(|b| *b < base || *b >= base + (1 << sb.shift) || keep >> (b - base) & 1 == 0);
            }
        }
        Op::Rehint(seed) => *hint = TagAllocHint::new(seed),
    }
    Ok(())
}

proptest! {
    #[test]
    fn behaves_as_a_set(
        depth in 1u32..300,
        shift in prop::option::of(0u32..=6),
        round_robin: bool,
        ops in prop::collection::vec(op(), 1..400),
    ) {
        let sb = match shift {
            Some(shift) => Sbitmap::with_shift(depth, shift, round_robin),
            None => Sbitmap::new(depth, round_robin),
        };
        let mut hint = TagAllocHint::new(0);
        let mut taken = BTreeSet::new();
        for op in ops {
            apply(&sb, &mut hint, &mut taken, op)?;
            prop_assert_eq!(sb.weight() as usize, taken.len());
            prop_assert_eq!(sb.any_bit_set(), !taken.is_empty());
        }
        let mut seen = Vec::new();
        sb.for_each_set(0, |bit| { seen.push(bit); true });
        prop_assert_eq!(seen, taken.iter().copied().collect::<Vec<_>>());
    }
}
