// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask dist`: makes a Debian package, a tarball for other distributions, a list of the libraries in them, and checksums.
//!
//! The modules, in the order in which their results are made:
//!
//! - [`release`]: names and places
//! - [`programs`]: the program and fio's engine, linked with the C library of Debian 11
//! - [`components`]: the libraries in them, as a CycloneDX list and as notices
//! - [`tree`]: every file at its place below a prefix
//! - [`archive`]: the tarball, the Debian package, and checksums of all
//! - [`installed`]: installs, uses and removes the package on a clean Debian under systemd
//! - [`fio_versions`]: runs the engine in the fio of Debian 12, 13 and sid
//!
//! Guarantees: the same sources give the same tarball, byte for byte, provided that the compiler's output is the same. lintian reports
//! nothing about the package above "info". Needs Debian, root and a mirror of Debian 11 to 13 and sid.

mod archive;
mod components;
mod fio_versions;
mod installed;
mod programs;
mod release;
mod tree;

use crate::outcome::Outcome;
use crate::packages;
use crate::project::Project;
use release::Release;

/// Flags of `cargo xtask dist`.
#[derive(clap::Args)]
pub struct Options {
    /// Cargo's profile of the programs.
    #[arg(long, default_value = "dist")]
    profile: String,
    /// Then install the package on a clean Debian 12 under systemd, use it, and remove it; and load the engine in the fio of each Debian.
    #[arg(long)]
    check: bool,
}

/// Makes packages.
///
/// # Errors
/// When a tool is missing or fails.
pub fn run(project: &Project, options: &Options) -> Result<Outcome, String> {
    packages::ensure_dist()?;
    let release = Release::new(project, &options.profile)?;
    let programs = programs::build(&release, &options.profile)?;
    let components = components::find(project)?;
    let tree = tree::lay_out(&release, &programs, &components)?;
    let packages = archive::make(&release, &tree)?;
    println!("packages are in {}", project.relative(&release.out));
    if !options.check {
        return Ok(Outcome::Passed);
    }
    installed::check(&release, &programs, &packages)
}
