// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask guest`: boots a Linux guest under QEMU's emulation, with a vhost-user-blk disk of `mqblk serve`.
//!
//! Runs the tests of `crates/cli/tests/it/guest.rs` one after the other and shows the guest's output. `cargo xtask test --deep` runs
//! them, too. With a flag, all combinations of queues, rings and caches are tested. Needs x86-64, the packages of
//! [`crate::packages::ensure_guest`] (installed automatically for root), and a Debian mirror for the kernel the first time.

use crate::outcome::Outcome;
use crate::packages;
use crate::project::{Project, cargo};
use crate::step::run_named;

/// Flags of `cargo xtask guest`.
#[derive(clap::Args)]
pub struct Options {
    /// All combinations, some minutes.
    #[arg(long)]
    full: bool,
    /// Only tests whose name with its module contains this.
    filter: Option<String>,
}

/// Runs the guest's tests.
///
/// # Errors
/// When a package is missing, Cargo cannot be run, or no test has such a name.
pub fn run(project: &Project, options: &Options) -> Result<Outcome, String> {
    packages::ensure_guest()?;
    let mut command = cargo();
    command.current_dir(&project.root).args(["test", "-p", "mqblk", "--test", "it", "--"]);
    let name = options.filter.as_deref().unwrap_or("guest::");
    command.args(["--nocapture", "--test-threads", "1", name]);
    if options.full {
        command.env("MQBLK_GUEST_FULL", "1");
    }
    Ok(run_named(&mut command, name)?.outcome())
}
