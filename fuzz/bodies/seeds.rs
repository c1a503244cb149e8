// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Seeds of coverage-guided fuzzing: small inputs that a target understands, and others beside them that it does not quite.
//!
//! Guarantees: [`check`] runs a target's body on all of them, so that they stay in step with the formats: each good
//! input gets as far as it should. With `MQBLK_SEEDS=DIR` (see `cargo xtask seeds`) they are written to `DIR/TARGET`, too.

use std::env;
use std::fs;
use std::path::Path;

/// Longest input that a run of `cargo fuzz` makes.
const MOST: usize = 4096;

/// An input that is understood: its name, its bytes, and how far it gets, as its body counts.
pub struct Seed {
    pub name: &'static str,
    pub bytes: Vec<u8>,
    pub reach: usize,
}

/// Inputs beside a good one: cut short, with a bit turned over, with one part twice.
fn near(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for part in 1..4 {
        let at = bytes.len() * part / 4;
        all.push((format!("cut{part}"), bytes[..at].to_vec()));
        let mut turned = bytes.to_vec();
        if let Some(byte) = turned.get_mut(at) {
            *byte ^= 1 << part;
        }
        all.push((format!("turned{part}"), turned));
    }
    // The first two bytes choose how the rest is taken.
    let twice = [bytes, bytes.get(2..).unwrap_or_default()].concat();
    all.push(("twice".to_owned(), twice));
    all.retain(|(_, bytes)| bytes.len() <= MOST);
    all
}

/// Runs the body of `target` on the seeds and what is beside them.
#[track_caller]
pub fn check(target: &str, seeds: &[Seed], run: impl Fn(&[u8]) -> usize) {
    assert!(!seeds.is_empty());
    let into = env::var_os("MQBLK_SEEDS").map(|dir| Path::new(&dir).join(target));
    if let Some(into) = &into {
        fs::create_dir_all(into).unwrap();
    }
    let keep = |name: &str, bytes: &[u8]| {
        if let Some(into) = &into {
            fs::write(into.join(name), bytes).unwrap();
        }
    };
    let mut others = Vec::new();
    for Seed { name, bytes, reach } in seeds {
        assert!(bytes.len() <= MOST, "{target}/{name}: {} bytes are too many", bytes.len());
        keep(name, bytes);
        println!("{target}/{name}");
        let reached = run(bytes);
        if reached != *reach {
            others.push(format!("{name} gets to {reached}, not to {reach}"));
        }
        for (kind, bytes) in near(bytes) {
            println!("{target}/{name}-{kind}");
            keep(&format!("{name}-{kind}"), &bytes);
            run(&bytes);
        }
    }
    assert_eq!(others, [""; 0], "{target}");
}
