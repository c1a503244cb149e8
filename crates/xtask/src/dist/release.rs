// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Names and places of one run of `cargo xtask dist`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::project::Project;
use crate::tool;

/// What is packed, and where.
pub struct Release<'a> {
    pub project: &'a Project,
    /// The directory in which everything is made.
    pub dir: PathBuf,
    /// Where packages are written: `out`, or `out-PROFILE` for programs that are not to be published.
    pub out: PathBuf,
    /// Version of the program.
    pub version: String,
    /// Time of the last commit in seconds since 1970. Every file in the tarball gets this time.
    pub epoch: String,
}

impl<'a> Release<'a> {
    /// Makes the names for the tree as it is.
    ///
    /// # Errors
    /// The tree is no git repository.
    pub fn new(project: &'a Project, profile: &str) -> Result<Release<'a>, String> {
        let mut git = Command::new("git");
        let epoch = tool::output(git.args(["log", "-1", "--format=%ct"]).current_dir(&project.root))?;
        let dir = project.target_directory.join("packages");
        make_directory(&dir)?;
        let (version, epoch) = (env!("CARGO_PKG_VERSION").to_owned(), epoch.trim().to_owned());
        let out = dir.join(if profile == "dist" { "out".to_owned() } else { format!("out-{profile}") });
        Ok(Release { project, dir, out, version, epoch })
    }

    /// Returns the time of the last commit in the form of RFC 3339.
    ///
    /// # Errors
    /// `date` fails.
    pub fn time(&self) -> Result<String, String> {
        let at = format!("@{}", self.epoch);
        let time = tool::output(Command::new("date").args(["--utc", "+%Y-%m-%dT%H:%M:%SZ", "--date", &at]))?;
        Ok(time.trim().to_owned())
    }
}

/// Makes a directory and those above it.
///
/// # Errors
/// It cannot be made.
pub fn make_directory(path: &Path) -> Result<(), String> {
    fs::create_dir_all(path).map_err(|e| format!("{}: {e}", path.display()))
}
