// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks that the recipes in `docs/recipes/` work.
//!
//! Guarantees: each page begins with the list of files that its diff changes. Each piece of the diff occurs exactly once in its file, at
//! any line. In the deep suite, the page's `cargo` commands succeed after the diff is applied.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Maximum lines of a page: two screens of a diff and its explanation.
const PAGE_LINES: usize = 200;

struct Recipe {
    name: String,
    text: String,
}

/// A file's text after the diff, and before it if the file existed.
struct Change {
    before: Option<String>,
    after: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the tree it was built from")
}

fn recipes() -> Vec<Recipe> {
    let entries = fs::read_dir(root().join("docs/recipes")).expect("docs/recipes").map(|e| e.expect("an entry").path());
    let read = |path: PathBuf| Recipe {
        name: path.file_stem().expect("a name").to_string_lossy().into_owned(),
        text: fs::read_to_string(&path).expect("a page"),
    };
    let mut all: Vec<Recipe> = entries.filter(|p| !p.ends_with("README.md")).map(read).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

impl Recipe {
    /// The code blocks of a language, in order.
    fn blocks(&self, language: &str) -> Vec<&str> {
        let begin = format!("```{language}\n");
        self.text.split(&begin).skip(1).filter_map(|rest| Some(rest.split_once("\n```")?.0)).collect()
    }

    /// The files that the list at the top names.
    fn listed(&self) -> BTreeSet<&str> {
        let list = self.blocks("text").first().copied().unwrap_or_default();
        list.lines().filter_map(|line| line.split_whitespace().nth(1)).collect()
    }

    /// Returns the files that the diff changes in the tree at `root`.
    fn changes(&self, root: &Path) -> BTreeMap<String, Change> {
        let mut changes = BTreeMap::new();
        for file in self
            .blocks("diff")
            .iter()
            .flat_map(|block| format!("\n{block}").split("\n--- ").skip(1).map(str::to_owned).collect::<Vec<_>>())
        {
            let (head, hunks) = file.split_once("\n@@").expect("a file has hunks");
            let (from, path) = head.split_once("\n+++ b/").expect("a file has a new name");
            let before = (from != "/dev/null").then(|| fs::read_to_string(root.join(path)).expect(path));
            let mut after = before.clone().unwrap_or_default();
            for hunk in hunks.split("\n@@") {
                let lines: Vec<&str> = hunk.split('\n').skip(1).collect();
                let side = |other: char| -> String {
                    let ours = lines.iter().filter(|l| !l.starts_with(other));
                    ours.map(|l| format!("{}\n", l.get(1..).unwrap_or_default())).collect()
                };
                let (old, new) = (side('+'), side('-'));
                if before.is_none() {
                    assert!(old.is_empty() && !root.join(path).exists(), "{}: {path} is there already", self.name);
                    after = new;
                    continue;
                }
                let found = after.matches(&old).count();
                assert_eq!(found, 1, "{}: {path} has this piece {found} times; renew the page:\n{old}", self.name);
                after = after.replacen(&old, &new, 1);
            }
            changes.insert(path.to_owned(), Change { before, after });
        }
        changes
    }
}

#[test]
fn recipes_list_their_files_and_apply_to_this_tree() {
    let all = recipes();
    let names: Vec<&str> = all.iter().map(|r| r.name.as_str()).collect();
    assert_eq!(names, ["driver", "elevator", "export", "fio-option", "scenario", "serve-key"]);
    for recipe in &all {
        let changes = recipe.changes(&root());
        let touched: BTreeSet<&str> = changes.keys().map(String::as_str).collect();
        assert_eq!(recipe.listed(), touched, "{}: the list at the top and the diff", recipe.name);
        assert!(recipe.text.lines().count() <= PAGE_LINES, "{}: more than {PAGE_LINES} lines", recipe.name);
        let commands = recipe.blocks("sh");
        assert!(commands.iter().any(|c| c.starts_with("cargo ")), "{}: has no command that checks it", recipe.name);
    }
}

mod deep {
    use super::*;
    use crate::project::{Project, cargo};
    use std::process::Command;

    /// Commands with this prefix run the `mqblk` that was built with the tests, without the recipe's diff. Otherwise Cargo would replace
    /// the program while other tests use it. So only a recipe that adds data may use this prefix.
    const RUN: &str = "cargo run -q -p mqblk -- ";

    /// Copies the tree, always to the same path, so that Cargo's build replaces that of the last run.
    fn copy(target: &Path) -> PathBuf {
        let copy = target.join("tmp").join("recipes");
        match fs::remove_dir_all(&copy) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => panic!("{}: {e}", copy.display()),
            _ => folder(&root(), &copy, &["target", ".git"]),
        }
        copy
    }

    fn folder(from: &Path, to: &Path, without: &[&str]) {
        fs::create_dir_all(to).expect("a folder");
        for entry in fs::read_dir(from).expect("a folder").map(|e| e.expect("an entry")) {
            let (name, kind) = (entry.file_name(), entry.file_type().expect("a kind"));
            if without.iter().any(|n| name == *n) {
                continue;
            }
            if kind.is_dir() {
                folder(&entry.path(), &to.join(&name), &[]);
            } else if kind.is_file() {
                fs::copy(entry.path(), to.join(&name)).expect("a copy");
            }
        }
    }

    #[test]
    fn recipes_compile_and_run() {
        let project = Project::load().expect("the workspace");
        let target = &project.target_directory;
        let tree = &copy(target);
        for recipe in recipes() {
            let changes = recipe.changes(tree);
            for (path, change) in &changes {
                fs::create_dir_all(tree.join(path).parent().expect("a folder")).expect("a folder");
                fs::write(tree.join(path), &change.after).expect("a file");
            }
            for line in recipe.blocks("sh").iter().flat_map(|block| block.lines()) {
                let (mut command, arguments) = match line.strip_prefix(RUN) {
                    Some(arguments) => (Command::new(target.join("debug").join("mqblk")), arguments),
                    None => (cargo(), line.strip_prefix("cargo ").expect("a command of Cargo")),
                };
                command.current_dir(tree).env("CARGO_TARGET_DIR", target).args(arguments.split_whitespace());
                // With a wrapper, Cargo keeps the copy's packages apart from the tree's own, which have the same names.
                command.env("RUSTC_WORKSPACE_WRAPPER", "/usr/bin/env");
                let output = command.output().expect("the command runs");
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{}: {line}\n{said}", recipe.name);
            }
            for (path, change) in &changes {
                match &change.before {
                    Some(text) => fs::write(tree.join(path), text).expect("a file"),
                    None => fs::remove_file(tree.join(path)).expect("a file"),
                }
            }
        }
    }
}
