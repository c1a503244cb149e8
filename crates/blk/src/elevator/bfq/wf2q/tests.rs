// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rules of virtual time, with numbers worked out by hand, and the bounds they promise.

use super::*;
use sim::rng::Rng;

const T0: Instant = Instant::ZERO;

/// Queues of class BE with these weights, all backlogged with `budget`.
fn backlogged(weights: &[u32], budget: u32) -> Wf2q {
    let mut s = Wf2q::with_capacity(1);
    for w in weights {
        let id = s.add(BE);
        s.activate(id, *w, budget, None, T0);
    }
    s
}

/// One slot of the next queue, used up in full; returns that queue.
fn turn(s: &mut Wf2q) -> u32 {
    let id = s.select(T0).expect("a queue is backlogged");
    let (weight, budget) = (s.get(id).weight(), s.get(id).budget);
    s.serve(id, budget);
    s.expire(id, Some((weight, budget)));
    id
}

fn vtime(s: &Wf2q) -> f64 {
    s.trees[usize::from(BE)].vtime.since(VTime::ZERO)
}

fn times(s: &Wf2q, id: u32) -> (f64, f64) {
    let e = s.get(id);
    (e.start.since(VTime::ZERO), e.finish.since(VTime::ZERO))
}

#[test]
fn starts_finishes_and_virtual_time_by_hand() {
    // Weights 1 and 3, budgets 12: F = 12 and F = 4.
    let mut s = backlogged(&[1, 3], 12);
    assert_eq!((times(&s, 0), times(&s, 1)), ((0.0, 12.0), (0.0, 4.0)));
    assert_eq!(turn(&mut s), 1);
    // 12 sectors over the weights' sum of 4.
    assert_eq!(vtime(&s), 3.0);
    // Queue 1 starts at 4 > 3: not eligible, although its finish of 8 comes before 12.
    assert_eq!(times(&s, 1), (4.0, 8.0));
    assert_eq!(turn(&mut s), 0);
    assert_eq!((vtime(&s), times(&s, 0)), (6.0, (12.0, 24.0)));
    assert_eq!([turn(&mut s), turn(&mut s)], [1, 1], "F 8, then 12");
    // 12 + 12 + 12 + 12 sectors: all four quarters of one round.
    assert_eq!((vtime(&s), times(&s, 1)), (12.0, (12.0, 16.0)));
}

#[test]
fn equal_queues_take_turns_in_order_of_arrival() {
    let mut s = backlogged(&[10, 10, 10], 100);
    assert_eq!((0..7).map(|_| turn(&mut s)).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2, 0]);
}

#[test]
fn a_turn_that_ends_early_pays_only_for_its_service() {
    let mut s = backlogged(&[1, 1], 100);
    assert_eq!(s.select(T0), Some(0));
    s.serve(0, 30);
    s.expire(0, Some((1, 100)));
    assert_eq!((vtime(&s), times(&s, 0)), (15.0, (30.0, 130.0)));
    // A larger charge than the budget moves the start as well.
    assert_eq!(s.select(T0), Some(1));
    s.serve(1, 250);
    s.expire(1, Some((1, 100)));
    assert_eq!(times(&s, 1), (250.0, 350.0));
}

#[test]
fn virtual_time_jumps_to_the_first_start() {
    let mut s = backlogged(&[1, 1], 100);
    assert_eq!(turn(&mut s), 0);
    let id = s.select(T0).expect("queue 1");
    s.expire(id, None);
    // Only queue 0 is left; it starts at 100, and V is at 50.
    assert_eq!((vtime(&s), times(&s, 0).0), (50.0, 100.0));
    assert_eq!(s.select(T0), Some(0));
    assert_eq!(vtime(&s), 100.0);
}

#[test]
fn leaving_and_coming_back_earns_nothing() {
    let mut s = backlogged(&[1, 1, 2], 40);
    // Queue 2 has F = 20. It is served 40, leaves at once and is remembered: 20 > V = 10.
    assert_eq!(s.select(T0), Some(2));
    s.serve(2, 40);
    s.expire(2, None);
    assert_eq!((s.get(2).state, s.trees[usize::from(BE)].weights), (EntityState::Remembered, 4));
    s.activate(2, 2, 40, None, T0);
    assert_eq!(times(&s, 2), (20.0, 40.0), "from its last finish, not from V");
    assert_eq!([turn(&mut s), turn(&mut s), turn(&mut s)], [0, 1, 2]);
    // Queue 0 leaves unserved when V is 50: it is forgotten at once, for its start is not ahead.
    assert_eq!(turn(&mut s), 2);
    assert_eq!((vtime(&s), times(&s, 0).0), (50.0, 40.0));
    assert_eq!(s.select(T0), Some(0));
    s.expire(0, None);
    assert_eq!((s.get(0).state, s.trees[usize::from(BE)].weights), (EntityState::Forgotten, 3));
}

#[test]
fn a_queue_back_in_time_continues_where_it_stopped() {
    let mut s = backlogged(&[1, 1], 100);
    assert_eq!(s.select(T0), Some(0));
    s.serve(0, 10);
    s.expire(0, None);
    assert_eq!(s.select(T0), Some(1));
    s.serve(1, 100);
    s.expire(1, Some((1, 100)));
    // 110 sectors over two weights (queue 0 was remembered meanwhile); it stopped at 10 and has 90 left.
    assert_eq!(vtime(&s), 55.0);
    s.activate(0, 1, 90, Some(1), T0);
    assert_eq!(times(&s, 0), (10.0, 100.0));
    assert_eq!(s.peek(T0), Some(0));
}

/// Such queues were served alone for as long as they had lagged before: 48 s in a simulation.
#[test]
fn a_queue_back_in_time_does_not_lag_behind_for_ever() {
    for (coefficient, lag) in [(1, 0.0), (30, 130.5)] {
        let mut s = backlogged(&[1, 1], 100);
        assert_eq!(s.select(T0), Some(0));
        s.serve(0, 10);
        s.expire(0, None);
        (0..2).for_each(|_| assert_eq!(turn(&mut s), 1));
        // Queue 0 stopped at 10. V went to 55, by 110 sectors over two weights, then to the start of queue 1, and then by 100.
        assert_eq!(vtime(&s), 200.0);
        s.activate(0, 1, 55, Some(coefficient), T0);
        let (start, finish) = times(&s, 0);
        assert!((vtime(&s) - finish - lag).abs() < 1e-5, "{coefficient}: {finish}");
        assert!((finish - start - 55.0).abs() < 1e-5, "{coefficient}: {start}");
    }
}

#[test]
fn looking_for_a_preemption_does_not_move_v() {
    let mut s = backlogged(&[1, 1], 100);
    assert_eq!(turn(&mut s), 0);
    assert_eq!(s.select(T0), Some(1));
    s.serve(1, 10);
    // Queue 0 has S = 100, V is 55. Queue 1 is eligible, although it waits in no heap.
    assert_eq!((vtime(&s), s.peek(T0)), (55.0, Some(0)));
    assert_eq!(vtime(&s), 55.0);
    s.expire(1, None);
    assert_eq!((s.select(T0), vtime(&s)), (Some(0), 100.0));
}

#[test]
fn looking_for_a_preemption_finds_what_is_selected_then() {
    let mut s = backlogged(&[1, 1, 1], 100);
    for (id, budget) in [(0, 70), (1, 40)] {
        assert_eq!(s.select(T0), Some(id));
        s.serve(id, 100);
        s.expire(id, Some((1, budget)));
    }
    assert_eq!(s.select(T0), Some(2));
    assert_eq!((times(&s, 0), times(&s, 1)), ((100.0, 170.0), (100.0, 140.0)));
    assert_eq!(s.peek(T0), Some(1), "of equal starts the first finish");
    s.serve(2, 10);
    s.expire(2, None);
    assert_eq!(s.select(T0), Some(1));
}

#[test]
fn a_quiet_class_is_forgotten() {
    let mut s = backlogged(&[1, 5], 1000);
    for _ in 0..2 {
        let id = s.select(T0).expect("backlogged");
        s.serve(id, 1000);
        s.expire(id, None);
    }
    assert_eq!(s.trees[usize::from(BE)].weights, 0);
    s.activate(0, 1, 10, None, T0);
    s.activate(1, 5, 10, None, T0);
    assert_eq!(times(&s, 0).0, times(&s, 1).0, "both start anew");
}

#[test]
fn a_new_weight_counts_from_the_next_turn_on() {
    let mut s = backlogged(&[10, 10], 100);
    assert_eq!(s.select(T0), Some(0));
    s.serve(0, 100);
    s.expire(0, Some((50, 100)));
    assert_eq!(times(&s, 0), (10.0, 12.0));
    assert_eq!(s.trees[usize::from(BE)].weights, 60);
}

#[test]
fn classes_go_by_rank_but_idle_is_not_forgotten() {
    let mut s = Wf2q::with_capacity(1);
    let ids = [IDLE, BE, RT].map(|class| s.add(class));
    for id in ids {
        s.activate(id, 40, 10, None, T0);
    }
    let at = |ms: u64| Instant::from_ns(ms * 1_000_000);
    assert_eq!(s.peek(at(0)), Some(ids[2]));
    assert_eq!(s.peek(at(199)), Some(ids[2]));
    assert_eq!(s.select(at(200)), Some(ids[0]), "after 200 ms without a turn");
    s.serve(ids[0], 10);
    s.expire(ids[0], Some((40, 10)));
    assert_eq!(s.peek(at(201)), Some(ids[2]));
    assert_eq!(s.select(at(201)), Some(ids[2]));
    s.expire(ids[2], None);
    assert_eq!(s.select(at(202)), Some(ids[1]));
    s.expire(ids[1], None);
    assert_eq!(s.peek(at(203)), Some(ids[0]));
}

/// For always backlogged queues i and j: |W_i / w_i - W_j / w_j| <= B_i / w_i + B_j / w_j at any turn's end.
#[test]
fn shares_of_backlogged_queues_stay_within_a_budget_of_each() {
    for seed in 0..30 {
        let mut rng = Rng::new(seed);
        let nr = 2 + rng.below(10) as usize;
        let weights: Vec<u32> = (0..nr).map(|_| 1 + rng.below(1000) as u32).collect();
        let largest = 1 + rng.below(5000) as u32;
        let mut s = backlogged(&weights, largest);
        let mut served = vec![0u64; nr];
        for step in 0..4000 {
            let id = s.select(T0).expect("all are backlogged");
            let used = rng.below(u64::from(s.get(id).budget) + 1) as u32;
            s.serve(id, used);
            served[id as usize] += u64::from(used);
            let budget = 1 + rng.below(u64::from(largest)) as u32;
            s.expire(id, Some((weights[id as usize], budget)));
            let share = |i: usize| served[i] as f64 / f64::from(weights[i]);
            let slack = |i: usize| f64::from(largest) / f64::from(weights[i]);
            for i in 0..nr {
                for j in 0..i {
                    let (apart, bound) = ((share(i) - share(j)).abs(), slack(i) + slack(j));
                    assert!(apart <= bound + 1e-3, "seed {seed} step {step}: {i} and {j} are {apart} > {bound} apart");
                }
            }
        }
    }
}

/// After a queue becomes backlogged, its budget is served by the time it would be in the fluid system, plus the largest
/// budget.
#[test]
fn a_light_queue_is_served_when_its_share_is_due() {
    for seed in 0..30 {
        let mut rng = Rng::new(100 + seed);
        let heavy = 1 + rng.below(8) as usize;
        let mut weights = vec![1000; heavy];
        weights.push(1 + rng.below(10) as u32);
        let mut s = backlogged(&weights[..heavy], 500);
        (0..rng.below(50)).for_each(|_| {
            turn(&mut s);
        });
        let light = s.add(BE);
        let budget = 1 + rng.below(500) as u32;
        s.activate(light, weights[heavy], budget, None, T0);
        let total: u64 = weights.iter().map(|w| u64::from(*w)).sum();
        // Sectors the disk serves until V has passed F, and one turn that is under way then for each that may be ahead.
        let due = u64::from(budget) * total / u64::from(weights[heavy]) + 500 * heavy as u64;
        let mut served = 0;
        loop {
            let id = s.select(T0).expect("backlogged");
            let b = s.get(id).budget;
            s.serve(id, b);
            served += u64::from(b);
            if id == light {
                break;
            }
            let w = s.get(id).weight();
            s.expire(id, Some((w, b)));
        }
        assert!(served <= due + u64::from(budget), "seed {seed}: served after {served} sectors, due after {due}");
    }
}
