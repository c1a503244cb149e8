// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks that paths and commands in backquotes exist.
//!
//! Guarantees, in documents and in comments of Rust files: a quoted path must exist if it names a Rust file or begins with a folder of
//! this tree. The path may be complete or begin at any folder. A quoted `cargo xtask WORD` or `mqblk WORD` must name a subcommand. Words
//! in capitals, as in `docs/FILE.md`, are placeholders. Does not check arguments, paths that a user makes, and other projects' documents
//! (`.rst`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::finding::Finding;
use super::prose::{Paragraph, documents, paragraphs};
use super::source::Source;

/// Folders of this tree that a path may begin with.
const FOLDERS: [&str; 8] = ["crates/", "docs/", "examples/", "scenarios/", "fuzz/", "contrib/", "results/", ".ci/"];

/// Where the subcommands of `mqblk` are declared.
const SUBCOMMANDS: &str = "crates/cli/src/command.rs";

/// The files, folders and subcommands that quoted text may name.
pub struct Known<'a> {
    root: &'a Path,
    paths: BTreeSet<&'a str>,
    mqblk: BTreeSet<String>,
    xtask: BTreeSet<String>,
}

impl<'a> Known<'a> {
    /// Collects the names of the tree at `root` with these texts. `xtask` are the subcommands of this program.
    pub fn new(root: &'a Path, texts: &'a BTreeMap<String, String>, xtask: BTreeSet<String>) -> Known<'a> {
        let declared = texts.get(SUBCOMMANDS).map_or("", String::as_str);
        Known { root, paths: texts.keys().map(String::as_str).collect(), mqblk: variants(declared), xtask }
    }

    /// Finds quoted names in documents and comments that do not exist.
    pub fn check(&self, texts: &BTreeMap<String, String>, sources: &[Source]) -> Vec<Finding> {
        let comments = sources.iter().map(|source| (source.path.as_str(), source.comments.as_str()));
        let mut found = Vec::new();
        for (path, text) in documents(texts).chain(comments) {
            for (line, quoted) in paragraphs(text).iter().flat_map(Paragraph::quoted) {
                if let Some(message) = self.wrong(&quoted) {
                    found.push(Finding::new(path, line, message));
                }
            }
        }
        found
    }

    fn wrong(&self, quoted: &str) -> Option<String> {
        let mut words = quoted.split_whitespace();
        let (subcommand, known) = match (words.next()?, words.next()) {
            ("cargo", Some("xtask")) => (words.next(), &self.xtask),
            ("mqblk", second) => (second, &self.mqblk),
            (path, None) => return self.wrong_path(path),
            _ => return None,
        };
        let name = subcommand
            .filter(|word| word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-') && !word.starts_with('-'))?;
        (!known.contains(name)).then(|| format!("`{quoted}`: there is no subcommand `{name}`"))
    }

    fn wrong_path(&self, quoted: &str) -> Option<String> {
        let path = quoted.split("::").next().unwrap_or(quoted).trim_end_matches('/');
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-/".contains(&b);
        let ours = path.ends_with(".rs") && path.len() > 3
            || FOLDERS.iter().any(|folder| quoted.starts_with(folder)) && !path.ends_with(".rst");
        let checked = ours && path.bytes().all(plain) && !path.starts_with("fuzz/corpus");
        let from_some_folder = |known: &&str| known.strip_suffix(path).is_some_and(|rest| rest.ends_with('/'));
        let exists =
            || self.paths.contains(path) || self.root.join(path).exists() || self.paths.iter().any(from_some_folder);
        (checked && !exists()).then(|| format!("`{quoted}`: there is no such file"))
    }
}

/// Returns the variants of the `enum Command` in `text`, as clap names them, and their aliases.
fn variants(text: &str) -> BTreeSet<String> {
    let body = text.split_once("pub enum Command {").map_or("", |(_, rest)| rest);
    let body = body.split_once("\n}").map_or(body, |(body, _)| body);
    let names = body.lines().filter_map(|line| line.trim_start().split_once('(')).map(|(name, _)| name);
    let names = names.filter(|name| {
        name.starts_with(|c: char| c.is_ascii_uppercase()) && name.bytes().all(|b| b.is_ascii_alphabetic())
    });
    let aliases = body.lines().filter_map(|line| line.split_once("alias = \"")?.1.split('"').next());
    names.map(kebab).chain(aliases.map(str::to_owned)).collect()
}

/// Returns `ceph-up` for `CephUp`.
fn kebab(name: &str) -> String {
    let mut out = String::new();
    for (index, c) in name.char_indices() {
        if c.is_ascii_uppercase() && index > 0 {
            out.push('-');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(texts: &BTreeMap<String, String>) -> Known<'_> {
        Known::new(Path::new("/nowhere"), texts, BTreeSet::from(["test".to_owned(), "ceph-up".to_owned()]))
    }

    #[test]
    fn paths_and_subcommands_that_exist_pass() {
        let command = "pub enum Command {\n    /// Run it (soon)\n    Run(RunArgs),\n    SimAll(SimArgs),\n}\n";
        let texts = BTreeMap::from([(SUBCOMMANDS.to_owned(), command.to_owned())]);
        let known = known(&texts);
        let good = [
            "crates/cli/src/command.rs",
            "command.rs",
            "src/command.rs::a_test",
            "crates/cli/src/",
            "mqblk run x",
            "mqblk sim-all",
            "mqblk",
            "mqblk --help",
            "cargo xtask test",
            "cargo xtask ceph-up",
            "docs/NAME.md",
            "block/mq-deadline.c",
            "here.toml",
            ".rs",
            "a::b",
            "mqblk DISK",
        ];
        for quoted in good.into_iter().filter(|quoted| !quoted.ends_with('/')) {
            assert_eq!(known.wrong(quoted), None, "{quoted}");
        }
        let bad = [
            "gone.rs",
            "and.rs",
            "docs/gone.md",
            "crates/blk/tests",
            "mqblk walk",
            "cargo xtask walk --now",
            "src/gone.rs::a_test",
        ];
        for quoted in bad {
            assert!(known.wrong(quoted).is_some(), "{quoted}");
        }
    }

    #[test]
    fn documents_and_comments_are_checked_and_code_is_not() {
        let texts = BTreeMap::from([("docs/a.md".to_owned(), "one\nsee `gone.rs`\n".to_owned())]);
        let source = Source::new("src/b.rs", "const A: &str = \"`no.rs`\"; // `also-gone.rs`", false);
        let found = known(&texts).check(&texts, &[source]);
        let at: Vec<_> = found.iter().map(|f| (f.path.as_str(), f.line)).collect();
        assert_eq!(at, [("docs/a.md", 2), ("src/b.rs", 1)]);
    }
}
