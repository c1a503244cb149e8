// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A fixed set of cases, and the checks of the simulation on itself: it repeats itself, and finds bugs that are planted.
//!
//! `mqblk sim --seed N` replays a case by hand; `cargo xtask swarm --minutes N` runs new ones.

use sim::fault::Plant;
use sim::swarm::{Report, replay, run_planted, run_seed};
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Cases of every run. Three in four have no faults that end I/O with an error, one in four puts an elevator under pressure
/// besides. Some 30 s of CPU time; `cargo xtask swarm` runs as many as one likes.
const CASES: u64 = 6000;

/// Cases in which each planted bug has to be found.
const PLANTED: u64 = 6000;

fn must_hold(seed: u64) -> Report {
    run_seed(seed).unwrap_or_else(|f| {
        let last = f.trace.len().saturating_sub(40);
        panic!("{f}\nlast events:\n{}\nreplay: mqblk sim --seed {}", f.trace[last..].join("\n"), f.seed)
    })
}

#[test]
fn every_case_holds() {
    // Cases share nothing: each CPU takes the next one.
    let (next, total) = (AtomicU64::new(0), Mutex::new(Report::default()));
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|s| {
        for _ in 0..threads {
            s.spawn(|| {
                while let seed = next.fetch_add(1, Ordering::Relaxed)
                    && seed < CASES
                {
                    let report = must_hold(seed);
                    total.lock().expect("nobody panics with it").add(&report);
                }
            });
        }
    });
    let total = total.into_inner().expect("nobody panics with it");
    println!("{total:?}");
    // A swarm that does nothing finds nothing.
    assert!(total.requests > 100 * CASES && total.errors > CASES && total.pressed > 100 * CASES, "{total:?}");
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
        let found = (0..PLANTED).find_map(|seed| {
            let text = run_planted(seed, plant).err()?;
            text.contains(plant.sign()).then_some((seed, text))
        });
        let (seed, text) = found.unwrap_or_else(|| panic!("{plant:?} was not found in {PLANTED} cases"));
        println!("{plant:?}: seed {seed}: {}", text.lines().next().unwrap_or_default());
    }
}
