// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask oracle`: compares the real kernel's decisions with ours.
//!
//! | command | what it does |
//! |---|---|
//! | `cargo xtask oracle` | replays all recorded cases and prints the table; exit status 1 if any differs |
//! | `--case FOLDER/NAME` | judges that case (NAME.io, NAME.env, NAME.trace), wherever it comes from |
//! | `--record FOLDER/NAME [--smp N]` | records NAME.io under NAME.env in a guest, then judges it |
//! | `--record-tags` | records disks that share tags, then judges the recording |
//! | `--generate SEED` | writes a random case, to be recorded |
//! | `--simulate FOLDER/NAME` | prints our decisions for the case, without a recorded trace |
//! | `--loop` | runs the same I/O on a loop device of this host and on our stack, and compares requests, merges and sectors |
//!
//! Guarantees: crate `oracle` does the replays. xtask builds it and runs it as a separate program, so xtask works in a tree whose core
//! does not compile.

pub mod loop_device;
mod record;

pub use record::KERNEL;

use std::path::PathBuf;
use std::process::Command;

use crate::outcome::Outcome;
use crate::project::{Project, cargo};
use crate::step::Found;

/// What to compare.
#[derive(clap::Args)]
pub struct Options {
    /// Judge only this case (repeatable).
    #[arg(long, value_name = "FOLDER/NAME")]
    case: Vec<PathBuf>,
    /// Judge all cases of this folder instead of the project's own.
    #[arg(long, value_name = "FOLDER")]
    cases: Option<PathBuf>,
    /// Print both sides' events as well.
    #[arg(long)]
    events: bool,
    /// Print what we would do with this script, at nominal times, without a trace.
    #[arg(long, value_name = "FOLDER/NAME")]
    simulate: Option<PathBuf>,
    /// Record this case in a guest, then judge it (repeatable). A bare NAME is one of the project's own.
    #[arg(long, value_name = "FOLDER/NAME")]
    record: Vec<PathBuf>,
    /// Record in a guest how many requests disks that share tags have in flight, then judge that.
    #[arg(long)]
    record_tags: bool,
    /// CPUs of the recording guest; orders repeat only with one.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16), requires = "record")]
    smp: u8,
    /// Debian package of the recording guest's kernel.
    #[arg(long, default_value = record::KERNEL)]
    kernel: String,
    /// Compare with a loop device of this host's kernel (root).
    #[arg(long = "loop")]
    loop_device: bool,
    /// Write a random case with this seed to the folder of --into.
    #[arg(long, value_name = "SEED", requires = "into")]
    generate: Option<u64>,
    /// Where --generate writes: FOLDER/NAME.
    #[arg(long, value_name = "FOLDER/NAME")]
    into: Option<PathBuf>,
    /// Of which elevator; otherwise it follows from the seed.
    #[arg(long, requires = "generate")]
    scheduler: Option<String>,
}

/// Replays, records or generates cases, as the options say.
///
/// # Errors
/// When the replay cannot be built or started, a case is broken, or a recording fails.
pub fn run(project: &Project, options: &Options) -> Result<Outcome, String> {
    if options.loop_device {
        return loop_device::run(project);
    }
    let mut command = program(project);
    if let (Some(seed), Some(into)) = (options.generate, &options.into) {
        if let Some(scheduler) = &options.scheduler {
            command.args(["--scheduler", scheduler]);
        }
        return judged(command.args(["--generate", &seed.to_string(), "--into"]).arg(into));
    }
    if let Some(stem) = &options.simulate {
        return judged(command.arg("--simulate").arg(stem));
    }
    let mut cases = options.case.clone();
    if !options.record.is_empty() {
        cases.extend(record::run(project, &options.record, &options.kernel, options.smp)?);
    }
    if options.record_tags {
        cases.extend(record::run_tags(project, &options.kernel)?);
    }
    if let Some(folder) = &options.cases {
        command.arg("--cases").arg(folder);
    }
    if options.events {
        command.arg("--events");
    }
    for case in &cases {
        command.arg("--case").arg(case);
    }
    judged(&mut command)
}

/// Replays all cases of the project, as a step of `ci`.
///
/// # Errors
/// The errors of [`run`].
pub fn check(project: &Project) -> Result<Found, String> {
    judged(&mut program(project)).map(Found::of)
}

fn program(project: &Project) -> Command {
    let mut command = cargo();
    command.args(["run", "--quiet", "--package", "mqblk-oracle", "--manifest-path"]);
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
