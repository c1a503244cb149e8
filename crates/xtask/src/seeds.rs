// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask seeds`: writes the seeds of coverage-guided fuzzing as files, for `cargo xtask fuzz` and `cargo fuzz run TARGET`.
//!
//! The tests called `seeds_of_TARGET` make them; `cargo test` runs these without writing anything. Guarantees: a target without such a
//! test is an error, also when seeds of earlier runs exist. Exactly the inputs that the test ran are written. Inputs that fuzzing has added
//! stay.

use crate::outcome::Outcome;
use crate::project::{LIKE_ALL_TESTS, Project, cargo};
use std::fs;
use std::path::{Path, PathBuf};

/// Flags of `cargo xtask seeds`.
#[derive(clap::Args)]
pub struct Options {
    /// Where a directory for each target is made.
    #[arg(long, default_value = "fuzz/corpus")]
    pub into: PathBuf,
}

/// Writes the seeds.
///
/// # Errors
/// When Cargo cannot be run, or a target has no seeds.
pub fn run(project: &Project, options: &Options) -> Result<Outcome, String> {
    let into = project.root.join(&options.into);
    // Into an empty directory: next to old seeds, a seed that is no longer written would not be noticed.
    let fresh = project.target_directory.join("seeds");
    empty(&fresh)?;
    let mut command = cargo();
    command.current_dir(&project.root).args(LIKE_ALL_TESTS).args(["--lib", "--test", "it"]);
    let status = command.args(["--", "seeds_of_"]).env("MQBLK_SEEDS", &fresh).status();
    if !status.map_err(|e| format!("cannot run cargo: {e}"))?.success() {
        return Ok(Outcome::Failed);
    }
    for target in targets(project)? {
        let count = hand_over(&fresh.join(&target), &into.join(&target))?;
        if count == 0 {
            return Err(format!("fuzz target '{target}' has no seeds: write a test seeds_of_{target}"));
        }
        println!("{target}: {count} seeds in {}", into.join(&target).display());
    }
    Ok(Outcome::Passed)
}

/// Makes an empty directory.
///
/// # Errors
/// When it cannot be emptied or made.
pub fn empty(directory: &Path) -> Result<(), String> {
    let failed = |e| format!("{}: {e}", directory.display());
    if directory.exists() {
        fs::remove_dir_all(directory).map_err(failed)?;
    }
    fs::create_dir_all(directory).map_err(failed)
}

/// Copies the seeds of a fuzz target from `fresh`, where they were just written, to `into`. Returns how many it copied.
fn hand_over(fresh: &Path, into: &Path) -> Result<usize, String> {
    if !fresh.exists() {
        return Ok(0);
    }
    fs::create_dir_all(into).map_err(|e| format!("{}: {e}", into.display()))?;
    let mut count = 0;
    for entry in fresh.read_dir().map_err(|e| format!("{}: {e}", fresh.display()))? {
        let copied = entry.and_then(|e| fs::copy(e.path(), into.join(e.file_name())));
        copied.map_err(|e| format!("{}: {e}", into.display()))?;
        count += 1;
    }
    Ok(count)
}

/// Returns the names of the targets, sorted.
///
/// # Errors
/// Their folder cannot be read.
pub fn targets(project: &Project) -> Result<Vec<String>, String> {
    let directory = project.root.join("fuzz/fuzz_targets");
    let entries = directory.read_dir().map_err(|e| format!("{}: {e}", directory.display()))?;
    let name = |e: std::io::Result<std::fs::DirEntry>| Some(e.ok()?.path().file_stem()?.to_str()?.to_owned());
    let mut names: Vec<String> = entries.filter_map(name).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seeds of earlier runs used to be counted as written, so a target without any new seeds was not noticed.
    #[test]
    fn old_seeds_do_not_stand_for_new_ones() {
        let place = std::env::temp_dir().join(format!("mqblk-seeds-{}", std::process::id()));
        let (fresh, into) = (place.join("fresh"), place.join("into"));
        empty(&fresh).unwrap();
        for target in ["has", "had"] {
            fs::create_dir_all(into.join(target)).unwrap();
            fs::write(into.join(target).join("old"), "1").unwrap();
        }
        fs::create_dir_all(fresh.join("has")).unwrap();
        ["a", "b"].iter().for_each(|name| fs::write(fresh.join("has").join(name), "2").unwrap());
        assert_eq!(hand_over(&fresh.join("has"), &into.join("has")), Ok(2));
        assert_eq!(hand_over(&fresh.join("had"), &into.join("had")), Ok(0));
        let mut all: Vec<_> = into.join("has").read_dir().unwrap().map(|e| e.unwrap().file_name()).collect();
        all.sort();
        assert_eq!(all, ["a", "b", "old"], "what fuzzing has found stays");
        // The next run begins with an empty directory.
        empty(&fresh).unwrap();
        assert_eq!(fresh.read_dir().unwrap().count(), 0);
        fs::remove_dir_all(&place).unwrap();
    }
}
