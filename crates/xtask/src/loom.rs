// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask loom`: loom explores the models of every hand-over between threads. shuttle runs a whole disk with more threads under
//! random schedules.
//!
//! Guarantees: only the packages of the workspace are built for a checker, beside their usual build. A run without any model counts as
//! failed. Models are in `crates/blk/tests/models`, and next to the code that they check in modules called `models`. Each has
//! a bound of its own that keeps it well within a minute.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::outcome::Outcome;
use crate::project::{Project, cargo};
use crate::step::{Found, run_counted};

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
    let mut sum = Found::of(Outcome::Passed);
    for (checker, what) in RUNS {
        let mut command = cargo();
        command.current_dir(&project.root).args(["test", "--no-fail-fast"]).args(what);
        command.args(UNUSED.map(|package| format!("--config=profile.dev.package.{package}.opt-level=0")));
        let mut found = run_counted(under(checker, &mut command, project, options.preemptions)?)?;
        if found.counts.passed + found.counts.failed == 0 {
            eprintln!("xtask: no model ran in {}: see crates/xtask/src/loom.rs for where they stand", what.join(" "));
        }
        found.ok &= found.counts.passed > 0;
        sum.add(found);
    }
    Ok(sum.outcome())
}

/// The checkers and the models that each runs. Other tests make no sense under a checker.
const RUNS: [(&str, &[&str]); 3] = [
    ("loom", &["--workspace", "--test", "models"]),
    ("loom", &["--package", "mqblk-blk", "--package", "mqblk-host", "--lib", "models::"]),
    ("shuttle", &["--workspace", "--test", "models"]),
];

/// Packages that are built only because other tests need them. No model runs their code, so they are not optimised.
const UNUSED: [&str; 2] = ["mqblk-sim", "mqblk-workload"];

/// Gives `--cfg CHECKER` to the compiler for the packages of the workspace only. Their dependencies are those that the tests have built.
fn under<'a>(
    checker: &str,
    command: &'a mut Command,
    project: &Project,
    preemptions: Option<u32>,
) -> Result<&'a mut Command, String> {
    let compiler = project.target_directory.join(format!("rustc-{checker}"));
    let script = format!("#!/bin/sh\nexec \"$@\" --cfg {checker}\n");
    fs::write(&compiler, script)
        .and_then(|()| fs::set_permissions(&compiler, Permissions::from_mode(0o755)))
        .map_err(|e| format!("{}: {e}", compiler.display()))?;
    command.env("RUSTC_WORKSPACE_WRAPPER", compiler).env_remove("LOOM_MAX_PREEMPTIONS");
    if let Some(n) = preemptions {
        command.env("LOOM_MAX_PREEMPTIONS", n.to_string());
    }
    Ok(command)
}
