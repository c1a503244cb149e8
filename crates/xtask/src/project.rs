// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The packages, targets and dependencies of this workspace, as Cargo reports them.
//!
//! Guarantees: targets and direct dependencies are those that Cargo sees, so no rule guesses from file names. This includes
//! auto-discovered targets and renamed or target-specific dependencies.
//! Needs: the tree that xtask was built from, at the same path. Does not resolve dependencies, so it works without a network.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

/// The workspace: its root and its packages.
#[derive(Debug)]
pub struct Project {
    /// The directory that holds the workspace's `Cargo.toml`.
    pub root: PathBuf,
    /// Where Cargo puts what it builds.
    pub target_directory: PathBuf,
    /// The members, in Cargo's order.
    pub packages: Vec<Package>,
}

/// One workspace member.
#[derive(Debug, Deserialize)]
pub struct Package {
    /// Its name in Cargo.toml.
    pub name: String,
    /// Its `Cargo.toml`, absolute.
    pub manifest_path: PathBuf,
    /// Its libraries, programs, tests, benches, examples and build script.
    pub targets: Vec<Target>,
    /// Its direct dependencies of every kind and platform.
    pub dependencies: Vec<Dependency>,
}

/// One crate Cargo compiles.
#[derive(Debug, Deserialize)]
pub struct Target {
    /// `lib`, `bin`, `test`, `bench`, `example` or `custom-build`.
    pub kind: Vec<String>,
    /// Its root file, absolute.
    pub src_path: PathBuf,
}

/// One line of a dependency table.
#[derive(Debug, Deserialize)]
pub struct Dependency {
    /// The package's name in the registry, also when Cargo.toml renames it.
    pub name: String,
    /// The package's folder, if it is a member of this workspace.
    pub path: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_root: PathBuf,
    target_directory: PathBuf,
}

impl Project {
    /// Asks `cargo metadata` for the workspace that this program belongs to.
    ///
    /// # Errors
    /// When Cargo cannot be run or rejects a manifest. The message contains Cargo's error.
    pub fn load() -> Result<Project, String> {
        let output = cargo()
            .args(["metadata", "--no-deps", "--format-version=1"])
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
            .output()
            .map_err(|e| format!("cannot run cargo metadata: {e}"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("cargo metadata failed:\n{said}"));
        }
        let metadata: Metadata = serde_json::from_slice(&output.stdout)
            .map_err(|e| format!("cargo metadata printed what xtask cannot read: {e}"))?;
        Ok(Project {
            root: metadata.workspace_root,
            target_directory: metadata.target_directory,
            packages: metadata.packages,
        })
    }

    /// `path` as it is written in messages: relative to the root, with `/`.
    pub fn relative(&self, path: &Path) -> String {
        let short = path.strip_prefix(&self.root).unwrap_or(path);
        short.to_string_lossy().into_owned()
    }
}

/// Returns the cargo that started xtask, so that a pinned or overridden toolchain stays the same. Cargo's variables about this package
/// are removed, because some build scripts read them (ring's does). If their values differed from those in a shell, cargo would rebuild
/// everything that depends on such a script.
pub fn cargo() -> Command {
    clean(Command::new(program()))
}

/// The arguments that build or run tests with the same features as `cargo test --workspace`. With `--package` instead, cargo unifies
/// the dev-dependencies of fewer members. ring and rustls would then get other features, and everything that depends on them would be
/// rebuilt.
pub const LIKE_ALL_TESTS: [&str; 2] = ["test", "--workspace"];

/// Returns [`cargo`] with a time limit in seconds, after which it and all processes that it started are ended.
pub fn cargo_within(limit_s: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "10", limit_s]).arg(program());
    clean(command)
}

fn program() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

fn clean(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|n| n.starts_with("CARGO_PKG_") || n.starts_with("CARGO_MANIFEST_")) {
            command.env_remove(name);
        }
    }
    command
}

/// Builds our programs and fio's engine as `cargo test` does, along with the integration tests that use them. Returns the path of `name`,
/// which is relative to Cargo's directory of debug builds.
///
/// # Errors
/// When cargo cannot be run, or a program does not build.
pub fn debug_program(project: &Project, name: &str) -> Result<PathBuf, String> {
    let mut command = cargo();
    command.current_dir(&project.root).args(LIKE_ALL_TESTS).args(["--quiet", "--no-run", "--test", "it"]);
    // Cargo prints what it built on standard error.
    let status = command.status().map_err(|e| format!("cannot run cargo: {e}"))?;
    if !status.success() {
        return Err(format!("{name} does not build"));
    }
    let path = project.target_directory.join("debug").join(name);
    if path.exists() { Ok(path) } else { Err(format!("{} was not built with the tests", path.display())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_tells_our_own_package_and_its_dependencies() {
        let project = Project::load().unwrap();
        let own = project.packages.iter().find(|p| p.name == "xtask").unwrap();
        assert!(own.dependencies.iter().any(|d| d.name == "serde_json"));
        let main = own.targets.iter().find(|t| t.kind == ["bin"]).unwrap();
        assert_eq!(project.relative(&main.src_path), "crates/xtask/src/main.rs");
    }
}
