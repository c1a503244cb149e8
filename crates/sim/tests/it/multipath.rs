// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cases of a disk with several paths beyond those that are due in `swarm.rs`, and the two bugs planted in them.

use sim::fault::Plant;
use sim::kind::Kind;
use sim::swarm::{Report, run_case, run_planted};

/// Seeds of a deep run.
const SEEDS: u64 = 200;

fn nothing_is_lost(seeds: u64) {
    let mut total = Report::default();
    for seed in 0..seeds {
        let report = run_case(Kind::Multipath, seed).unwrap_or_else(|f| {
            let last = f.trace.len().saturating_sub(40);
            panic!("{f}\n{}\nreplay: mqblk sim --kind multipath --seed {seed}", f.trace[last..].join("\n"))
        });
        total.add(&report);
    }
    println!("{total:?}");
    // Cases that do nothing find nothing. Bios fail only where no path was left.
    assert!(total.requests > 200 * seeds && total.errors > seeds / 4 && total.outstanding > seeds, "{total:?}");
}

#[test]
fn paths_come_and_go_and_nothing_is_lost() {
    nothing_is_lost(30);
}

/// Slow tests, run by `cargo xtask test --deep`.
mod deep {
    use super::*;

    #[test]
    fn paths_come_and_go_and_nothing_is_lost() {
        nothing_is_lost(SEEDS);
    }

    /// Stale data reveals a path that lets a failed write happen later. A wrong error, which another path should have
    /// handled, reveals a path that reports a medium error.
    #[test]
    fn what_a_path_must_not_do_is_found() {
        for plant in [Plant::LatePath, Plant::WrongError] {
            let found = (0..SEEDS).find_map(|seed| {
                let text = run_planted(seed, plant).err()?;
                text.contains(plant.sign()).then_some((seed, text))
            });
            let (seed, text) = found.unwrap_or_else(|| panic!("{plant:?} was not found in {SEEDS} cases"));
            println!("{plant:?}: seed {seed}: {}", text.lines().next().unwrap_or_default());
        }
    }
}
