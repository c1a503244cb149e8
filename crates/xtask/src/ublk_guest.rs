// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask ublk`: ublk devices of mqblk under a real kernel, in a guest; and the kernel's own clients of NBD and FUSE exports.
//!
//! Guarantees: passes only if every script of `crates/xtask/ublk` ran to its end in the guest and found no error. The scripts cover
//! verified I/O on one, two and four queues, ext4, and restarts after kill -9 under load; and block devices on NBD and FUSE exports, made by
//! the commands that mqblk prints. Needs x86-64, the packages of
//! [`crate::packages::ensure_guest`] (installed automatically for root), and a Debian mirror for the kernel. Needs neither KVM
//! nor ublk on this host.

use std::path::PathBuf;
use std::process::Command;

use clap::Args;

use crate::oracle::KERNEL;
use crate::outcome::Outcome;
use crate::packages;
use crate::project::{Project, debug_program};

/// Options of `cargo xtask ublk`.
#[derive(Args)]
pub struct Options {
    /// Debian package of the guest's kernel.
    #[arg(long, default_value = KERNEL)]
    kernel: String,
    /// CPUs of the guest; there are up to four queues.
    #[arg(long, default_value_t = 4)]
    cpus: u8,
    /// Only the scripts whose name contains this.
    #[arg(long)]
    only: Option<String>,
}

/// Builds mqblk and runs the scripts.
///
/// # Errors
/// When this machine cannot run a guest.
pub fn run(project: &Project, options: &Options) -> Result<Outcome, String> {
    if !cfg!(target_arch = "x86_64") {
        return Err("the guest is an x86-64 machine and so must this one be".into());
    }
    packages::ensure_guest()?;
    let mqblk = debug_program(project, "mqblk")?;
    let own = project.root.join("crates/xtask/ublk");
    let scripts = scripts(&own, options.only.as_deref())?;
    let mut command = Command::new("bash");
    command.arg(own.join("guest.sh")).arg(project.target_directory.join("oracle")).arg(&options.kernel);
    command.arg(mqblk).arg(options.cpus.to_string());
    command.arg(own.join("lib.sh")).args(&scripts);
    println!("{} scripts on {} with {} CPUs", scripts.len(), options.kernel, options.cpus);
    let status = command.status().map_err(|e| format!("cannot run bash: {e}"))?;
    Ok(if status.success() { Outcome::Passed } else { Outcome::Failed })
}

/// The scripts that run in the guest, in their order.
fn scripts(own: &std::path::Path, only: Option<&str>) -> Result<Vec<PathBuf>, String> {
    let entries = own.read_dir().map_err(|e| format!("cannot read {}: {e}", own.display()))?;
    let name = |p: &PathBuf| p.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let wanted = |n: &str| n.starts_with(|c: char| c.is_ascii_digit()) && only.is_none_or(|o| n.contains(o));
    let mut found: Vec<_> = entries.flatten().map(|e| e.path()).filter(|p| wanted(&name(p))).collect();
    found.sort();
    if found.is_empty() { Err(format!("no script in {} is called so", own.display())) } else { Ok(found) }
}
