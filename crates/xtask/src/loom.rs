// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask loom`: loom explores the models of every hand-over between threads. shuttle runs a whole disk with more threads under
//! random schedules.
//!
//! Guarantees: models have their own build directory, because loom replaces the atomics of the whole build. A run without any model
//! counts as failed. Models are in `crates/blk/tests/models`, and next to the code that they check in modules called `models`. Each has
//! a bound of its own that keeps it well within a minute.

use std::process::Command;

use crate::ci::appended;
use crate::outcome::Outcome;
use crate::project::{Project, cargo};
use crate::step::run_counted;

/// How far to look.
#[derive(clap::Args)]
pub struct Options {
    /// Preemptions per schedule for all models, instead of the bound each has (2 for a whole disk, 3 for parts). One more
    /// costs about ten times the time.
    #[arg(long)]
    preemptions: Option<u32>,
}

/// Explores all models.
///
/// # Errors
/// When Cargo cannot be started.
pub fn run(project: &Project, options: &Options) -> Result<Outcome, String> {
    let mut all_ok = true;
    for (checker, what) in RUNS {
        let mut command = cargo();
        command.current_dir(&project.root).args(["test", "--no-fail-fast"]).args(what);
        command
            .args([CHECKERS, SMALL_FRAMES])
            .args(UNUSED.map(|package| format!("--config=profile.dev.package.{package}.opt-level=0")));
        let (ok, ran) = run_counted(under(checker, &mut command, project, options.preemptions))?;
        if ran.passed + ran.failed == 0 {
            eprintln!("xtask: no model ran in {}: see crates/xtask/src/loom.rs for where they stand", what.join(" "));
        }
        all_ok &= ok && ran.passed > 0;
    }
    Ok(if all_ok { Outcome::Passed } else { Outcome::Failed })
}

/// The checkers and the models that each runs. Other tests make no sense under a checker. Both loom runs name the same two packages, so
/// Cargo builds dependencies once, with the same features.
const RUNS: [(&str, &[&str]); 3] = [
    ("loom", &["--package", "mqblk-blk", "--package", "mqblk-host", "--test", "models"]),
    ("loom", &["--package", "mqblk-blk", "--package", "mqblk-host", "--lib", "models::"]),
    ("shuttle", &["--package", "mqblk-blk", "--test", "models"]),
];

/// Optimises the checkers, because they do the exploring. As dependencies, they would be built without optimisation.
const CHECKERS: &str = "--config=profile.dev.package.\"*\".opt-level=1";

/// Optimises the block layer more: at level 1 its frames do not fit into loom's short stacks.
const SMALL_FRAMES: &str = "--config=profile.dev.package.mqblk-blk.opt-level=2";

/// Packages that are built only because other tests need them. No model runs their code, so they are not optimised.
const UNUSED: [&str; 2] = ["mqblk-sim", "mqblk-workload"];

fn under<'a>(checker: &str, command: &'a mut Command, project: &Project, preemptions: Option<u32>) -> &'a mut Command {
    command
        .env("RUSTFLAGS", appended("RUSTFLAGS", &format!("--cfg {checker}")))
        .env("CARGO_TARGET_DIR", project.target_directory.join(checker))
        // loom's stacks are short: non-incremental builds inline more and overflow them.
        .env("CARGO_INCREMENTAL", "1")
        .env_remove("LOOM_MAX_PREEMPTIONS");
    if let Some(n) = preemptions {
        command.env("LOOM_MAX_PREEMPTIONS", n.to_string());
    }
    command
}
