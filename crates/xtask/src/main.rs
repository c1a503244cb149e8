// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask`: the developer's single entry point. CI calls nothing else.
//!
//! In the order in which they apply to a change:
//!
//! - [`tidy`]: rules a compiler does not check
//! - [`ci`]: every check, with one closing count
//! - [`suite`]: the test programs, several at a time
//! - [`loom`] and [`sanitize`]: checkers of threads and memory, which run separately
//! - [`packages`]: the Debian packages that commands need, and their installation
//! - [`mod@bench`]: our figures compared with fio's, in the same run
//! - [`swarm`]: millions of simulated cases
//! - [`oracle`]: the real kernel's decisions compared with ours
//! - [`fuzz`] and [`seeds`]: coverage-guided fuzzing, and its initial inputs
//! - [`guest`]: a Linux guest on `mqblk serve`
//! - [`dist`]: packages, and their installation on a clean Debian
//! - [`ublk_guest`]: block devices of a kernel that has ublk
//! - [`mod@ceph`]: a Ceph cluster on this host
//!
//! Exit codes are those of `mqblk`: 0 ok, 1 a check failed or a goal was missed, 2 usage or
//! operating error.

mod bench;
mod ceph;
mod ci;
mod dist;
#[cfg(test)]
mod figures;
mod fuzz;
mod guest;
mod loom;
mod oracle;
mod outcome;
mod packages;
mod project;
#[cfg(test)]
mod recipes;
mod sanitize;
mod seeds;
mod step;
mod suite;
mod swarm;
mod tidy;
mod tool;
mod ublk_guest;

use std::collections::BTreeSet;
use std::process::ExitCode;

use ci::Extent;
use clap::{Args, CommandFactory, Parser, Subcommand};
use outcome::Outcome;

/// The developer's entry point of mqblk.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run every check, as `test --deep` does; with --fast, those to run before every commit.
    Ci(CiArgs),
    /// Install the Debian packages the tests need, then check format and rules of the tree and run all tests.
    Test(TestArgs),
    /// Check the rules of this tree that no compiler knows.
    Tidy,
    /// Measure mqblk and fio side by side and keep the raw figures under results/.
    Bench(bench::Options),
    /// Explore the models of hand-overs between threads, to a bound of choice.
    Loom(loom::Options),
    /// Run the threaded tests under ThreadSanitizer and AddressSanitizer, the unsafe code under Miri.
    Sanitize(sanitize::Options),
    /// Write the outputs that README.md and the guides quote anew, from the commands above them.
    Bless,
    /// Run the targets of coverage-guided fuzzing, each for some time.
    Fuzz(fuzz::Options),
    /// Write the seeds of coverage-guided fuzzing.
    Seeds(seeds::Options),
    /// Make packages: Debian's, and a tarball for distributions since glibc 2.31.
    Dist(dist::Options),
    /// Run new cases of the simulation for some minutes.
    Swarm(swarm::Options),
    /// Compare recorded decisions of the real kernel with ours.
    Oracle(oracle::Options),
    /// Run a Linux guest under emulation on `mqblk serve`.
    Guest(guest::Options),
    /// Serve ublk devices in a guest whose kernel has ublk, and check them there.
    Ublk(ublk_guest::Options),
    /// Start a Ceph cluster of one monitor and one OSD on loopback.
    CephUp(ceph::Options),
    /// End it.
    CephDown(ceph::Options),
    /// Run the tests of the RBD driver on a Ceph cluster of their own.
    Ceph,
}

#[derive(Args)]
struct CiArgs {
    /// Format, tidy, clippy and tests only: before every commit.
    #[arg(long)]
    fast: bool,
}

#[derive(Args)]
struct TestArgs {
    /// Then run everything else, as CI does: suites at full size, benches at smoke size, clippy, the kernel's recorded decisions,
    /// loom models, fuzzing, ublk devices, RBD images, documentation, packages and their installation.
    #[arg(long)]
    deep: bool,
}

/// Runs the tests that check the quoted outputs, in the mode in which they write them.
fn bless(project: &project::Project) -> Result<Outcome, String> {
    let mut command = project::cargo();
    command.current_dir(&project.root).args(["test", "--release", "-p", "mqblk", "--test", "it", "--"]);
    let name = "every_command_runs_and_prints";
    command.args([name, "--nocapture"]).env("MQBLK_BLESS", "1");
    Ok(step::run_named(&mut command, name)?.outcome())
}

/// The names of the subcommands.
fn subcommands() -> BTreeSet<String> {
    Cli::command().get_subcommands().map(|command| command.get_name().to_owned()).collect()
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(Outcome::Passed) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => ExitCode::from(1),
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::from(2)
        }
    }
}

fn run(command: Command) -> Result<Outcome, String> {
    let project = project::Project::load()?;
    let runs_tests =
        matches!(command, Command::Ci(_) | Command::Test(_) | Command::Sanitize(_) | Command::Bless | Command::Ceph);
    if runs_tests {
        packages::ensure()?;
    }
    match command {
        Command::Ci(args) => Ok(ci::run(&project, if args.fast { Extent::Fast } else { Extent::Deep })),
        Command::Test(args) => Ok(ci::run(&project, if args.deep { Extent::Deep } else { Extent::Test })),
        Command::Tidy => tidy::run(&project),
        Command::Bench(options) => bench::run(&project, &options),
        Command::Loom(options) => loom::run(&project, &options),
        Command::Sanitize(options) => Ok(sanitize::run(&project, &options)),
        Command::Bless => bless(&project),
        Command::Fuzz(options) => fuzz::run(&project, &options),
        Command::Seeds(options) => seeds::run(&project, &options),
        Command::Dist(options) => dist::run(&project, &options),
        Command::Swarm(options) => swarm::run(&project, &options),
        Command::Oracle(options) => oracle::run(&project, &options),
        Command::Guest(options) => guest::run(&project, &options),
        Command::Ublk(options) => ublk_guest::run(&project, &options),
        Command::CephUp(options) => ceph::up(&project, &options),
        Command::CephDown(options) => ceph::down(&project, &options),
        Command::Ceph => Ok(ceph::check(&project)?.outcome()),
    }
}
