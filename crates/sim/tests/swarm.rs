// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A fixed set of cases, and the checks of the simulation on itself: it repeats itself, and finds bugs that are planted.
//!
//! `mqblk sim --seed N` replays a case by hand; `cargo xtask swarm --minutes N` runs new ones.

use sim::fault::Plant;
use sim::swarm::{Report, replay, run_planted, run_seed};

/// Cases of every run. Half of them have no faults that end I/O with an error.
const CASES: u64 = 1200;

fn must_hold(seed: u64) -> Report {
    run_seed(seed).unwrap_or_else(|f| {
        let last = f.trace.len().saturating_sub(40);
        panic!("{f}\nlast events:\n{}\nreplay: mqblk sim --seed {}", f.trace[last..].join("\n"), f.seed)
    })
}

#[test]
fn every_case_holds() {
    let mut total = Report::default();
    (0..CASES).for_each(|seed| total.add(&must_hold(seed)));
    // A swarm that does nothing finds nothing.
    assert!(total.requests > 100 * CASES && total.errors > CASES, "{total:?}");
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..60 {
        let (first, trace) = replay(seed);
        let (second, again) = replay(seed);
        assert_eq!(trace, again, "seed {seed}");
        let (first, second) = (first.expect("holds"), second.expect("holds"));
        assert_eq!(first, second);
        assert_eq!(first, must_hold(seed), "whether the trace is kept changes nothing");
        assert_eq!(first.events, trace.len() as u64);
    }
}

/// Each check finds the bug it is there for within a bounded number of cases; the same cases hold without it (above).
#[test]
fn planted_bugs_are_found() {
    for plant in Plant::ALL {
        let found = (0..CASES).find_map(|seed| {
            let text = run_planted(seed, plant).err()?;
            text.contains(plant.sign()).then_some((seed, text))
        });
        let (seed, text) = found.unwrap_or_else(|| panic!("{plant:?} was not found in {CASES} cases"));
        println!("{plant:?}: seed {seed}: {}", text.lines().next().unwrap_or_default());
    }
}
