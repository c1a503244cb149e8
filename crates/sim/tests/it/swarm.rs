// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A fixed set of cases, and checks of the simulation itself: runs are repeatable, and planted bugs are found.
//!
//! `mqblk sim --seed N` replays the cases of a seed. `cargo xtask swarm --minutes N` runs new ones.

use sim::fault::Plant;
use sim::kind::Kind;
use sim::swarm::{Report, replay, run_case, run_planted};
use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Seeds of a quick run. Each has its disk case. One in four has the set case, one in four the pressure case, one in
/// thirty-two the multipath case, as [`Kind::is_due`] determines. `cargo xtask swarm --seed 0` runs these seeds first, and
/// then any number of others.
const SEEDS: u64 = 300;

/// Cases in which each planted bug has to be found.
const PLANTED: u64 = 6000;

/// Calls `f` with each number below `end` on several threads. Each thread takes the next number.
fn each(end: u64, f: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|s| {
        for _ in 0..threads {
            s.spawn(|| {
                while let n = next.fetch_add(1, Ordering::Relaxed)
                    && n < end
                {
                    f(n);
                }
            });
        }
    });
}

fn must_hold(kind: Kind, seed: u64) -> Report {
    run_case(kind, seed).unwrap_or_else(|f| {
        let last = f.trace.len().saturating_sub(40);
        let replay = format!("mqblk sim --kind {} --seed {seed}", kind.name());
        panic!("{f}\nlast events:\n{}\nreplay: {replay}", f.trace[last..].join("\n"))
    })
}

fn cases_hold(seeds: u64) {
    let totals = Mutex::new([Report::default(); Kind::ALL.len()]);
    each(seeds, |seed| {
        for kind in Kind::ALL.into_iter().filter(|kind| kind.is_due(seed)) {
            let report = must_hold(kind, seed);
            totals.lock().expect("no thread panics with it")[kind as usize].add(&report);
        }
    });
    let totals = totals.into_inner().expect("no thread panics with it");
    println!("{totals:?}");
    // A swarm that does nothing finds nothing.
    let [disk, set, pressure, multipath] = totals;
    assert!(disk.requests > 100 * seeds && disk.errors > seeds && disk.pressed > 100 * seeds, "{disk:?}");
    assert!(set.requests > 1000 * seeds && set.errors > seeds, "{set:?}");
    assert!(pressure.pressed > 100 * seeds, "{pressure:?}");
    assert!(multipath.requests > 10 * seeds && multipath.errors > seeds / 2, "{multipath:?}");
}

#[test]
fn every_case_holds() {
    cases_hold(SEEDS);
}

/// In few cases, the check of each elevator notices that it lets a request starve. The same seeds hold without that (above).
#[test]
fn starvation_is_found_in_every_elevator() {
    for plant in Plant::ALL {
        let Plant::Starves(name) = plant else { continue };
        let starves = |text: &String| text.starts_with(name) && text.contains(plant.sign());
        let found = (0..40).filter(|seed| run_planted(*seed, plant).err().as_ref().is_some_and(starves)).count();
        assert!(found >= 2, "{name}: starvation was noticed in {found} of 40 cases");
        println!("{name}: noticed in {found} of 40 cases");
    }
}

fn seeds_repeat_themselves(seeds: u64) {
    each(seeds, |seed| {
        for kind in Kind::ALL {
            let (first, trace) = replay(kind, seed, None);
            let (second, again) = replay(kind, seed, None);
            assert_eq!(trace, again, "{kind:?}, seed {seed}");
            let (first, second) = (first.expect("holds"), second.expect("holds"));
            assert_eq!(first, second);
            assert_eq!(first, must_hold(kind, seed), "whether the trace is kept changes nothing");
            assert_eq!(first.events, trace.len() as u64);
        }
    });
}

#[test]
fn the_same_seed_is_the_same_run() {
    seeds_repeat_themselves(12);
}

/// Slow tests, run by `cargo xtask test --deep`.
mod deep {
    use super::*;

    #[test]
    fn every_case_holds() {
        cases_hold(2000);
    }

    #[test]
    fn the_same_seed_is_the_same_run() {
        seeds_repeat_themselves(60);
    }

    /// Each check finds its planted bug within a bounded number of cases. The same cases hold without the bug (above).
    #[test]
    fn planted_bugs_are_found() {
        each(Plant::ALL.len() as u64, |n| {
            let plant = Plant::ALL[n as usize];
            let found = (0..PLANTED).find_map(|seed| {
                let text = run_planted(seed, plant).err()?;
                text.contains(plant.sign()).then_some((seed, text))
            });
            let (seed, text) = found.unwrap_or_else(|| panic!("{plant:?} was not found in {PLANTED} cases"));
            println!(
                "{plant:?}: {} case, seed {seed}: {}",
                plant.kind().name(),
                text.lines().next().unwrap_or_default()
            );
        });
    }
}
