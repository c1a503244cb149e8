// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask swarm`: new cases of the simulation for a given number of minutes.
//!
//! Guarantees: seeds count up from one that is printed, so a later session can continue where this one stopped. The first violation
//! ends the run and prints the command that replays it.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::outcome::Outcome;
use crate::project::{Project, cargo};

/// Seeds per call of the simulator. A call takes half a minute or less.
const CHUNK: u64 = 2000;

/// How long, and from where.
#[derive(clap::Args)]
pub struct Options {
    /// Minutes to run.
    #[arg(long, default_value_t = 3)]
    minutes: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1_000_000)]
    seed: u64,
}

/// Runs cases until the time is over.
///
/// # Errors
/// When the simulator cannot be built or started.
pub fn run(project: &Project, options: &Options) -> Result<Outcome, String> {
    let built = cargo().current_dir(&project.root).args(["build", "--release", "--package", "mqblk"]).status();
    if !built.map_err(|e| format!("cannot run cargo: {e}"))?.success() {
        return Ok(Outcome::Failed);
    }
    let program = project.target_directory.join("release").join("mqblk");
    let until = Instant::now() + Duration::from_secs(60 * options.minutes);
    let mut seed = options.seed;
    while Instant::now() < until {
        println!("seeds from {seed}:");
        let mut sim = Command::new(&program);
        sim.args(["sim", "--seed", &seed.to_string(), "--count", &CHUNK.to_string()]);
        let status = sim.status().map_err(|e| format!("cannot run {}: {e}", program.display()))?;
        if !status.success() {
            return Ok(Outcome::Failed);
        }
        seed += CHUNK;
    }
    println!("to continue: cargo xtask swarm --seed {seed}");
    Ok(Outcome::Passed)
}
