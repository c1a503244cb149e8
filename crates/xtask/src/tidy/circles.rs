// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files of one crate that import each other in a circle: at most five, and the list of exceptions.
//!
//! Guarantees: a circle is a set of files each of which reaches every other by imports ([`imports`](super::imports)); the largest of each
//! crate is judged. Exceptions can only shrink.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::Finding;
use super::imports::{Imports, imports};
use super::modules::Tree;
use super::ratchet::{Exception, Measure, judge};
use super::source::Source;

const CIRCLE_FILES: usize = 5;

/// The largest circle of a crate, by its package's folder.
pub struct Circle {
    /// Where the package is.
    pub package: String,
    /// Its files, sorted; empty if no file imports back.
    pub files: Vec<String>,
}

/// The largest circle of the crate at `package`, whose roots have these module trees.
pub fn largest(package: &str, trees: &[Tree], sources: &BTreeMap<&str, &Source>) -> Circle {
    let largest = trees.iter().flat_map(|tree| circles(&imports(tree, sources))).max_by_key(Vec::len);
    Circle { package: package.to_owned(), files: largest.unwrap_or_default() }
}

/// Judges the circles against the limit and the exceptions.
pub fn check(circles: &[Circle], exceptions: &BTreeMap<String, Exception>) -> Vec<Finding> {
    let measured = circles.iter().map(|circle| (circle.package.clone(), Measure { line: 1, size: circle.files.len() }));
    judge(&measured.collect(), exceptions, CIRCLE_FILES, "the largest import circle of", "files")
}

/// The sets of two files and more that reach each other.
fn circles(imports: &Imports<'_>) -> Vec<Vec<String>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> = imports.keys().map(|file| (*file, reach(file, imports))).collect();
    let mut found = BTreeSet::new();
    for (file, targets) in &reached {
        let circle: Vec<String> =
            targets.iter().filter(|other| reached[*other].contains(file)).map(|other| (*other).to_owned()).collect();
        if circle.len() > 1 {
            found.insert(circle);
        }
    }
    found.into_iter().collect()
}

fn reach<'a>(from: &str, imports: &Imports<'a>) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut next: Vec<&str> = imports[from].iter().copied().collect();
    while let Some(file) = next.pop() {
        if found.insert(file) {
            next.extend(&imports[file]);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles_are_files_that_reach_each_other() {
        let arrows = [("a", "b"), ("b", "c"), ("c", "b"), ("d", "e"), ("e", "f"), ("f", "d"), ("c", "d")];
        let mut imports: Imports<'_> =
            "abcdef".split("").filter(|f| !f.is_empty()).map(|f| (f, BTreeSet::new())).collect();
        for (from, to) in arrows {
            imports.get_mut(from).unwrap().insert(to);
        }
        assert_eq!(circles(&imports), [vec!["b", "c"], vec!["d", "e", "f"]]);
    }

    #[test]
    fn a_circle_past_the_limit_is_found() {
        let files: Vec<String> = (0..6).map(|i| format!("{i}.rs")).collect();
        let circle = [Circle { package: "crates/x".into(), files }];
        let found = check(&circle, &BTreeMap::new());
        assert_eq!(found.len(), 1);
        assert!(
            found[0].to_string().contains("the largest import circle of crates/x has 6 files, at most 5"),
            "{}",
            found[0]
        );
        let exception = BTreeMap::from([("crates/x".to_owned(), Exception { size: 6, at: 1 })]);
        assert!(check(&circle, &exception).is_empty());
    }
}
