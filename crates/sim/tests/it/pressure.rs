// SPDX-License-Identifier: Apache-2.0 OR MIT
//! No request starves and shares follow the weights, for every elevator; planted unfairness is found.

use blk::elevator::NAMES;
use sim::pressure::Unfair;
use sim::swarm::{press, press_unfairly};
use sim::trace::Trace;
use std::collections::BTreeMap;

/// Cases of every run: some ninety of each blk-mq elevator, and fewer of each other subject.
const CASES: u64 = 600;

#[test]
fn every_bound_holds() {
    let (mut requests, mut closest) = (0, BTreeMap::new());
    for seed in 0..CASES {
        let pressed = press(seed).unwrap_or_else(|f| {
            let last = f.trace.len().saturating_sub(20);
            panic!("{f}\n{}\n{}", f.trace[..8.min(last)].join("\n"), f.trace[last..].join("\n"))
        });
        requests += pressed.requests;
        let (cases, most) = closest.entry(pressed.elevator).or_insert((0, 0));
        (*cases, *most) = (*cases + 1, pressed.closest.max(*most));
    }
    println!("{requests} requests; cases and the most of a bound that was reached, of a thousand: {closest:?}");
    assert!(requests > 400 * CASES, "{requests}");
    // A bound that nothing comes near proves nothing.
    assert!(closest.len() == 9 && closest.values().all(|(cases, most)| *cases > 25 && *most > 700), "{closest:?}");
}

/// A withheld request is noticed in every elevator, and exchanged weights in the elevators that have weights.
#[test]
fn planted_unfairness_is_found() {
    for (unfair, elevators) in [
        (Unfair::Starves, &NAMES[1..]),
        (Unfair::WrongWeights, &["bfq: shares"][..]),
        (Unfair::GrantsTooMuch, &["above the limit"]),
        (Unfair::GrantsTooLittle, &["below the limit"]),
        (Unfair::LongBatches, &["deadline: direction", "deadline: a "]),
        (Unfair::DeviceWideCap, &["its hardware queue uses"]),
    ] {
        for elevator in elevators {
            let found = (0..60).find_map(|seed| {
                let text = press_unfairly(seed, unfair).err()?;
                text.contains(elevator).then_some((seed, text))
            });
            let (seed, text) = found.unwrap_or_else(|| panic!("{unfair:?} was not found in {elevator}"));
            println!("{unfair:?}: seed {seed}: {}", text.lines().next().unwrap_or_default());
        }
    }
}

/// The same seed gives the same trace, for every elevator.
#[test]
fn the_same_seed_is_the_same_pressure() {
    let mut elevators = BTreeMap::new();
    for seed in 0..80 {
        let (first, second) = (Trace::new(true), Trace::new(true));
        let pressed = [&first, &second].map(|t| sim::pressure::run(seed, None, t));
        assert_eq!(pressed[0], pressed[1], "seed {seed}");
        assert_eq!(first.lines(), second.lines(), "seed {seed}");
        *elevators.entry(pressed[0].elevator).or_insert(0) += 1;
    }
    assert_eq!(elevators.len(), 9, "{elevators:?}");
}
