// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Seeds that once found a violation hold now. `regressions.txt` lists them with what they found. The commit that fixes a
//! violation found by the swarm adds its line there.

use sim::kind::Kind;
use sim::swarm::run_case;

const KEPT: &str = include_str!("regressions.txt");

#[test]
fn kept_seeds_hold() {
    let mut seen = Vec::new();
    for line in KEPT.lines().filter(|l| !l.starts_with('#')) {
        let mut words = line.splitn(3, ' ');
        let mut word = || words.next().unwrap_or_else(|| panic!("'{line}': must be a seed, a kind, what it found"));
        let seed: u64 = word().parse().unwrap_or_else(|e| panic!("'{line}': seed: {e}"));
        let name = word();
        let found = word();
        let names = Kind::ALL.map(Kind::name);
        let kind = Kind::ALL.into_iter().find(|k| k.name() == name);
        let kind = kind.unwrap_or_else(|| panic!("'{line}': {name}: must be one of {names:?}"));
        if let Err(f) = run_case(kind, seed) {
            panic!("{f}\nonce it found: {found}\nreplay: mqblk sim --kind {name} --seed {seed}");
        }
        assert!(!seen.contains(&(seed, kind)), "'{line}': twice in the list");
        seen.push((seed, kind));
    }
    assert!(seen.len() >= 5, "the list is not read: {seen:?}");
}
