// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Seeds that once found something hold: `regressions.txt` has them, with what they found. A violation that the swarm finds
//! anywhere gets its line there with the commit that mends it.

use sim::swarm::{press, run_seed};

const KEPT: &str = include_str!("regressions.txt");

#[test]
fn kept_seeds_hold() {
    let mut seen = Vec::new();
    for line in KEPT.lines().filter(|l| !l.starts_with('#')) {
        let mut words = line.splitn(3, ' ');
        let mut word =
            || words.next().unwrap_or_else(|| panic!("'{line}': must be a seed, main or press, what it found"));
        let seed: u64 = word().parse().unwrap_or_else(|e| panic!("'{line}': seed: {e}"));
        let kind = word();
        let found = word();
        let failure = match kind {
            "main" => run_seed(seed).err(),
            "press" => press(seed).err(),
            _ => panic!("'{line}': {kind}: must be main or press"),
        };
        if let Some(f) = failure {
            panic!("{f}\nonce it found: {found}\nreplay: mqblk sim --seed {seed}");
        }
        assert!(!seen.contains(&(seed, kind)), "'{line}': twice in the list");
        seen.push((seed, kind));
    }
    assert!(seen.len() >= 5, "the list is not read: {seen:?}");
}
