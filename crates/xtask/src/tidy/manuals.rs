// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks that README, CONTRIBUTING and `.ci/run` agree with the tree.
//!
//! Guarantees: the README names [`TEST_COMMAND`], and `.ci/run` ends with that command and `--deep`. Every fenced block of the README and
//! under `docs/` names its language, so that a test can run those for the shell. Every direct dependency has a row with a reason in
//! CONTRIBUTING's table, and every row is about a dependency. Every test that a text under `docs/` names, as `FILE.rs::NAME`, exists.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::Finding;
use crate::project::Project;

/// The command with which a new user runs all tests.
const TEST_COMMAND: &str = "cargo xtask test";

/// Returns the findings in the manuals among `texts`.
pub fn check(project: &Project, texts: &BTreeMap<String, String>) -> Vec<Finding> {
    let mut found = Vec::new();
    let text_of = |path: &str| texts.get(path).map_or("", String::as_str);
    found.extend(readme(text_of("README.md")));
    found.extend(ci_run(text_of(".ci/run")));
    let mut users = BTreeMap::new();
    for package in &project.packages {
        let foreign = package.dependencies.iter().filter(|d| d.path.is_none());
        users.extend(foreign.map(|d| (d.name.as_str(), package.name.as_str())));
    }
    found.extend(reasons(&users, text_of("CONTRIBUTING.md")));
    let documents = texts.iter().filter(|(path, _)| path.starts_with("docs/") && path.ends_with(".md"));
    for (path, text) in documents {
        found.extend(fences(path, text));
        found.extend(named_tests(path, text, texts));
    }
    found
}

/// Finds names of tests, in backquotes, that do not exist.
fn named_tests(path: &str, text: &str, texts: &BTreeMap<String, String>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for quoted in line.split('`').skip(1).step_by(2) {
            let Some((file, name)) = quoted.split_once(".rs::") else { continue };
            let file = format!("{file}.rs");
            let is_there = texts.get(&file).is_some_and(|text| text.contains(&format!("fn {name}(")));
            if file.contains('/') && !is_there {
                let message = format!("{file} has no test `{name}`: name one that it has");
                found.push(Finding::new(path, index + 1, message));
            }
        }
    }
    found
}

/// Finds fenced blocks that name no language.
fn fences(path: &str, text: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut is_inside = false;
    for (index, line) in text.lines().enumerate() {
        let Some(tag) = line.trim_start().strip_prefix("```") else { continue };
        if !is_inside && tag.is_empty() {
            let message = "a fenced block must say what it holds: ```sh, ```text, ...";
            found.push(Finding::new(path, index + 1, message));
        }
        is_inside = !is_inside;
    }
    found
}

fn readme(text: &str) -> Vec<Finding> {
    let mut found = fences("README.md", text);
    let blocks = text.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let is_told = blocks.flat_map(str::lines).any(|line| line.trim() == TEST_COMMAND);
    if !is_told {
        let message = format!("must tell `{TEST_COMMAND}` on a line of an ```sh block");
        found.push(Finding::new("README.md", 1, message));
    }
    found
}

fn ci_run(text: &str) -> Option<Finding> {
    let line = text.lines().rfind(|line| !line.trim().is_empty());
    let line = line.unwrap_or_default();
    if line.trim_start_matches("exec ").strip_suffix(" --deep") == Some(TEST_COMMAND) {
        return None;
    }
    let message = format!("must end with the README's test command and its deep part, `{TEST_COMMAND} --deep`");
    Some(Finding::new(".ci/run", text.lines().count().max(1), message))
}

/// Compares the rows `| `name` | .. | reason |` with the dependencies; `users` maps each to a member that names it.
fn reasons(users: &BTreeMap<&str, &str>, contributing: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut rows = BTreeSet::new();
    for (index, line) in contributing.lines().enumerate() {
        let Some(name) = explained(line) else { continue };
        rows.insert(name);
        if !users.contains_key(name) {
            let message = format!("no member depends on `{name}`: delete its row");
            found.push(Finding::new("CONTRIBUTING.md", index + 1, message));
        }
    }
    for (name, user) in users.iter().filter(|(name, _)| !rows.contains(**name)) {
        let message = format!("`{name}`, used by {user}, has no row with its reason");
        found.push(Finding::new("CONTRIBUTING.md", 1, message));
    }
    found
}

/// Returns the crate that a table row is about, if its last cell has a reason. Tables about commands are ignored.
fn explained(line: &str) -> Option<&str> {
    let row = line.trim().strip_prefix("| `")?.strip_suffix('|')?;
    let (name, rest) = row.split_once("` |")?;
    let reason = rest.rsplit('|').next()?.trim();
    (!reason.is_empty() && !name.contains(' ')).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_test_must_be_there() {
        let texts = BTreeMap::from([("crates/a/b.rs".to_owned(), "#[test]\nfn good() {}".to_owned())]);
        let text = "| `crates/a/b.rs::good`, `crates/a/b.rs::goo`\n`crates/a/c.rs::good` and `b.rs::other`, `x::y`";
        let lines: Vec<usize> = named_tests("docs/x.md", text, &texts).iter().map(|f| f.line).collect();
        assert_eq!(lines, [1, 2]);
    }

    #[test]
    fn the_readme_tells_the_test_command() {
        let good = "# x\n\n```sh\ncargo xtask test\n```\n\n```text\nout\n```\n";
        assert_eq!(readme(good), []);
        let found = readme("run `cargo xtask test`\n```text\ncargo xtask test\n```\n");
        assert!(found[0].message.contains("must tell"), "{found:?}");
        let found = readme(&format!("{good}\n```\nuntagged\n```\n"));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].line, 11);
    }

    #[test]
    fn ci_calls_what_the_readme_tells() {
        assert_eq!(ci_run("set -e\nexec cargo xtask test --deep\n\n"), None);
        assert_eq!(ci_run("cargo xtask test --deep"), None);
        assert!(ci_run("cargo xtask test").is_some());
        assert!(ci_run("cargo xtask test --fast\n").is_some());
        assert!(ci_run("").is_some());
    }

    #[test]
    fn every_dependency_has_a_reason() {
        let names = BTreeMap::from([("serde", "lab"), ("loom", "blk")]);
        let row = "| `cargo fmt --check` | format |\n| `serde` | lab | results as JSON |\n";
        let found = reasons(&names, row);
        assert_eq!(found.len(), 1);
        assert!(found[0].message.contains("`loom`, used by blk"));
        let empty = format!("{row}| `loom` | blk |  |\n");
        assert_eq!(reasons(&names, &empty).len(), 1);
        let both = format!("{row}| `loom` | blk | models |\n");
        assert_eq!(reasons(&names, &both), []);
        let stale = reasons(&names, &format!("{both}| `rand` | blk | numbers |\n"));
        assert_eq!(stale.len(), 1);
        assert!(stale[0].to_string().contains(":4: no member depends on `rand`"), "{stale:?}");
    }
}
