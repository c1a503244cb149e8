// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cargo xtask tidy`: checks the rules of this tree that no compiler and no lint knows.
//!
//! Each finding names the file, the line, what is wrong and what to do. The rules:
//!
//! | module | rule |
//! |---|---|
//! | [`text`] | SPDX line and `//!` header first, ASCII, no work marks without an issue, no machine paths |
//! | [`size`] | files of at most 800 lines, functions of at most 70 with names of at most 60 characters; exceptions only in `tidy.toml` |
//! | [`modules`] | no dead file: every `.rs` is reached by a `mod` line |
//! | [`circles`] | at most five files of a crate import each other in a circle; exceptions only in `tidy.toml` |
//! | [`atomics`] | an ordering above Relaxed names the place it pairs with |
//! | [`confine`] | `unsafe` only in `host` and listed files; no access to the machine in `blk`, `workload`, `sim`; no sleeping in tests |
//! | [`quoted`] | paths and commands in backquotes exist |
//! | [`sentences`] | documents have sentences of at most 35 words, and headings that name a topic |
//! | [`words`] | no persons for threads and clients, no home-made names and verbs, in comments and documents |
//! | [`manuals`] | README, CONTRIBUTING and `.ci/run` agree with the tree |
//! | [`profiles`] | packages for which the release profile saves building time are optimised in the dist profile |
//!
//! Clippy checks that each `unsafe` block has a `// SAFETY:` comment (`undocumented_unsafe_blocks` in the workspace lints), because it
//! sees more than a text scan.

mod atomics;
mod circles;
mod confine;
mod finding;
mod imports;
mod manuals;
mod modules;
mod profiles;
mod prose;
mod quoted;
mod ratchet;
mod sentences;
mod size;
mod source;
mod text;
mod words;

use std::collections::BTreeMap;
use std::path::Path;

use crate::outcome::Outcome;
use crate::project::Project;
use circles::Circles;
use finding::Finding;
use modules::Reach;
use ratchet::{Exceptions, RATCHET};
use source::Source;

/// Checks the whole tree and prints what it found.
///
/// # Errors
/// When a file of the tree cannot be read.
pub fn run(project: &Project) -> Result<Outcome, String> {
    let findings = check(project)?;
    for finding in &findings {
        println!("{finding}");
    }
    if findings.is_empty() {
        return Ok(Outcome::Passed);
    }
    println!("tidy: {} to fix", findings.len());
    Ok(Outcome::Failed)
}

fn check(project: &Project) -> Result<Vec<Finding>, String> {
    let texts = read_tree(&project.root)?;
    let is_rust = |path: &&String| path.ends_with(".rs");
    let reach = Reach::from(&roots(project), &texts);
    let mut findings = dead_files(texts.keys().filter(is_rust), &reach);
    for (path, text) in &texts {
        findings.extend(text::check(path, text));
    }
    let is_test = |path: &String| reach.files.get(path).copied().unwrap_or(false);
    let sources: Vec<Source> = texts
        .iter()
        .filter(|(path, _)| is_rust(path))
        .map(|(path, text)| Source::new(path, text, is_test(path)))
        .collect();
    for source in &sources {
        findings.extend(text::check_marks(source));
        findings.extend(atomics::check(source));
        findings.extend(confine::check(source));
    }
    let crates = circles_of_crates(project, &texts, &sources);
    for Circles { package, circles } in &crates {
        match circles.first() {
            Some(files) => println!("largest circle of {package}: {} files: {}", files.len(), files.join(" ")),
            None => println!("largest circle of {package}: none"),
        }
    }
    match Exceptions::parse(texts.get(RATCHET).map_or("", String::as_str)) {
        Ok(exceptions) => {
            findings.extend(size::check(&sources, &exceptions));
            findings.extend(circles::check(&crates, &exceptions.circles));
        }
        Err(finding) => findings.push(finding),
    }
    findings.extend(manuals::check(project, &texts));
    findings.extend(texts.get("Cargo.toml").into_iter().flat_map(|text| profiles::check(text)));
    findings.extend(quoted::Known::new(&project.root, &texts, crate::subcommands()).check(&texts, &sources));
    findings.extend(sentences::check(&texts));
    findings.extend(words::check(&texts, &sources));
    findings.sort();
    findings.dedup();
    Ok(findings)
}

/// Returns the import circles of each package, without test code.
fn circles_of_crates(project: &Project, texts: &BTreeMap<String, String>, sources: &[Source]) -> Vec<Circles> {
    let by_path: BTreeMap<&str, &Source> = sources.iter().map(|source| (source.path.as_str(), source)).collect();
    let shipped = |target: &&crate::project::Target| {
        target.kind.iter().any(|kind| matches!(kind.as_str(), "lib" | "bin" | "cdylib"))
    };
    let of = |package: &crate::project::Package| {
        let roots = package.targets.iter().filter(shipped).map(|target| project.relative(&target.src_path));
        let trees: Vec<modules::Tree> = roots.map(|root| modules::tree(&root, texts)).collect();
        circles::of_crate(&project.relative(package.manifest_path.parent().unwrap_or(&project.root)), &trees, &by_path)
    };
    project.packages.iter().map(of).collect()
}

fn dead_files<'a>(files: impl Iterator<Item = &'a String>, reach: &Reach) -> Vec<Finding> {
    let dead = files.filter(|path| !reach.files.contains_key(*path));
    dead.map(|path| {
        let message = "no `mod` line reaches this file: declare it or delete it";
        Finding::new(path, 1, message)
    })
    .collect()
}

/// Returns the crate roots, and whether each is built for tests or benches only.
fn roots(project: &Project) -> Vec<(String, bool)> {
    let targets = project.packages.iter().flat_map(|p| &p.targets);
    // The fuzz crate is outside of the workspace, so Cargo does not list its targets.
    let fuzz = project.root.join(FUZZ_TARGETS).read_dir().into_iter().flatten().flatten();
    let fuzz = fuzz.map(|entry| (project.relative(&entry.path()), true));
    targets
        .map(|target| {
            let test = target.kind.iter().any(|k| k == "test" || k == "bench");
            (project.relative(&target.src_path), test)
        })
        .chain(fuzz)
        .collect()
}

/// The folder of the targets of coverage-guided fuzzing.
const FUZZ_TARGETS: &str = "fuzz/fuzz_targets";

/// Reads every text file of the tree, by its relative path, except build products and results.
fn read_tree(root: &Path) -> Result<BTreeMap<String, String>, String> {
    let mut texts = BTreeMap::new();
    let mut directories = vec![root.to_path_buf()];
    while let Some(directory) = directories.pop() {
        let failed = |e| format!("cannot read {}: {e}", directory.display());
        for entry in directory.read_dir().map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let relative = path.strip_prefix(root).unwrap_or(&path);
            let relative = relative.to_string_lossy().into_owned();
            if path.is_dir() {
                if !matches!(relative.as_str(), "target" | ".git" | "results") {
                    directories.push(path);
                }
            } else if text::is_ours(&relative) {
                let bytes = std::fs::read(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
                texts.insert(relative, String::from_utf8_lossy(&bytes).into_owned());
            }
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_read_and_this_file_is_reached() {
        let project = Project::load().unwrap();
        let texts = read_tree(&project.root).unwrap();
        let own = "crates/xtask/src/tidy/mod.rs";
        assert!(texts[own].contains("the_tree_is_read_and_this_file_is_reached"));
        assert!(texts.contains_key("Cargo.toml"));
        assert!(!texts.keys().any(|path| path.starts_with("target/")));
        let reach = Reach::from(&roots(&project), &texts);
        assert_eq!(reach.files.get(own), Some(&false));
    }

    #[test]
    fn an_undeclared_file_is_dead() {
        let mut reach = Reach::default();
        reach.files.insert("a.rs".to_owned(), false);
        let files = ["a.rs".to_owned(), "b.rs".to_owned()];
        let found = dead_files(files.iter(), &reach);
        assert_eq!(found.len(), 1);
        assert!(found[0].to_string().starts_with("b.rs:1: no `mod` line"));
    }
}
