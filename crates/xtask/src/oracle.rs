// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask oracle`: the real kernel's recorded decisions against ours.
//!
//! Guarantees: the replays are those of crate `oracle`, which is built and run here as a program of its own, so that
//! xtask works in a tree whose core does not compile.

use std::process::Command;

use crate::Outcome;
use crate::project::{Project, cargo};
use crate::step::Counts;

/// What to compare.
#[derive(clap::Args)]
pub struct Options {
    /// Arguments of the replay: `--case FOLDER/NAME`, `--cases FOLDER`, `--events` (see `--help` behind `--`).
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    replay: Vec<String>,
}

/// Replays cases and prints the table.
///
/// # Errors
/// When the replay cannot be built or started, or a case is broken.
pub fn run(project: &Project, options: &Options) -> Result<Outcome, String> {
    judged(program(project).args(&options.replay))
}

/// All cases of the project, as a step of `ci`.
///
/// # Errors
/// As [`run`].
pub fn check(project: &Project) -> Result<(bool, Counts), String> {
    Ok((judged(&mut program(project))? == Outcome::Passed, Counts::default()))
}

fn program(project: &Project) -> Command {
    let mut command = cargo();
    command.args(["run", "--quiet", "--package", "oracle", "--manifest-path"]);
    command.arg(project.root.join("Cargo.toml")).arg("--");
    command
}

fn judged(command: &mut Command) -> Result<Outcome, String> {
    let status = command.status().map_err(|e| format!("cannot run cargo: {e}"))?;
    match status.code() {
        Some(0) => Ok(Outcome::Passed),
        Some(1) => Ok(Outcome::Failed),
        _ => Err("the replay did not come to a verdict; its message is above".into()),
    }
}
