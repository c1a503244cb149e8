// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits circles of files that import each other: at most five files of a crate, or as many as an exception lists.
//!
//! Guarantees: a circle is a set of files in which each file reaches every other by imports ([`imports`](super::imports)). Every circle is
//! judged. An exception names the crate (for its largest circle) or the first file of another circle. Its size can only shrink.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::Finding;
use super::imports::{Imports, imports};
use super::modules::Tree;
use super::ratchet::{Exception, Measure, judge};
use super::source::Source;

const CIRCLE_FILES: usize = 5;

/// The circles of a crate.
pub struct Circles {
    /// The folder of its package.
    pub package: String,
    /// The files of each, sorted; the largest circle first.
    pub circles: Vec<Vec<String>>,
}

/// Returns the circles of the crate at `package`, whose roots have these module trees.
pub fn of_crate(package: &str, trees: &[Tree], sources: &BTreeMap<&str, &Source>) -> Circles {
    let mut circles: Vec<Vec<String>> = trees.iter().flat_map(|tree| circles(&imports(tree, sources))).collect();
    circles.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
    circles.dedup();
    Circles { package: package.to_owned(), circles }
}

/// Judges the circles against the limit and the exceptions.
pub fn check(crates: &[Circles], exceptions: &BTreeMap<String, Exception>) -> Vec<Finding> {
    let mut measured = BTreeMap::new();
    for Circles { package, circles } in crates {
        for (index, files) in circles.iter().enumerate() {
            let key = if index == 0 { package } else { &files[0] };
            measured.insert(key.clone(), Measure { line: 1, size: files.len() });
        }
    }
    judge(&measured, exceptions, CIRCLE_FILES, "the import circle of", "files")
}

/// Returns the sets of two or more files that reach each other.
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
    fn every_circle_past_the_limit_is_found() {
        let files = |name: &str, count: u32| (0..count).map(|i| format!("{name}{i}.rs")).collect::<Vec<_>>();
        let crates =
            [Circles { package: "crates/x".into(), circles: vec![files("a", 7), files("b", 6), files("c", 5)] }];
        let found =
            |exceptions| check(&crates, &exceptions).iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        let all = found(BTreeMap::new());
        assert!(all.contains("the import circle of crates/x has 7 files, at most 5"), "{all}");
        assert!(all.contains("the import circle of b0.rs has 6 files, at most 5"), "{all}");
        let rest = found(BTreeMap::from([("crates/x".to_owned(), Exception { size: 7, at: 1 })]));
        assert!(!rest.contains("crates/x has"), "{rest}");
        assert!(rest.contains("b0.rs") && !rest.contains("c0.rs"), "{rest}");
    }
}
