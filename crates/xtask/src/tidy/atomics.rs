// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every memory ordering above `Relaxed` has a comment that names the place it pairs with.
//!
//! Guarantees: each `Ordering::{Acquire,Release,AcqRel,SeqCst}` in shipped code has a `Pairs with:` comment in its statement, in the three
//! lines above it or in the comment block there. Orderings must be written out, because this rule sees only text. Test code is exempt.

use super::finding::Finding;
use super::source::{Source, words};

const STRONG: [&str; 4] = ["Acquire", "Release", "AcqRel", "SeqCst"];

/// How far above its statement the comment may be.
const ABOVE: usize = 3;

/// How many lines of a long statement count. A comment anywhere in a long `match` would be too far away.
const STATEMENT: usize = 8;

/// The findings in one file.
pub fn check(source: &Source) -> Vec<Finding> {
    let comments: Vec<&str> = source.comments.lines().collect();
    let mut found = Vec::new();
    for at in words(&source.code, "Ordering").filter(|at| !source.in_test(*at)) {
        let rest = &source.code[at + "Ordering".len()..];
        let Some(rest) = rest.strip_prefix("::") else {
            continue;
        };
        let line = source.line(at);
        if rest.starts_with(['{', '*']) {
            let message = "name orderings in full where they are used, so that tidy sees them";
            found.push(Finding::new(&source.path, line, message));
            continue;
        }
        let strong = STRONG.iter().find(|name| words(rest, name).next() == Some(0));
        let Some(name) = strong else { continue };
        let first = source.statement_line(at).max(line.saturating_sub(STATEMENT));
        if !says_pair(&comments, first, line) {
            let message = format!("Ordering::{name} must say `// Pairs with: FUNCTION` beside or above it");
            found.push(Finding::new(&source.path, line, message));
        }
    }
    found
}

/// Whether lines `first..=last` (counted from 1), the lines just above or the comment there name a pair.
fn says_pair(comments: &[&str], first: usize, last: usize) -> bool {
    let is_comment = |line: usize| comments[line - 1].trim_start().starts_with("//");
    let mut top = first.saturating_sub(ABOVE).max(1);
    while top > 1 && is_comment(top) && is_comment(top - 1) {
        top -= 1;
    }
    comments[top - 1..last].iter().any(|line| line.contains("Pairs with:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        let found = check(&Source::new("a.rs", text, false));
        found.iter().map(|f| f.line).collect()
    }

    #[test]
    fn a_pair_beside_or_above_is_enough() {
        assert!(lines("a.load(Ordering::Acquire); // Pairs with: put\n").is_empty());
        assert!(lines("// Pairs with: put\n\n\na.load(Ordering::Acquire);\n").is_empty());
        let long = "// Pairs with: put\n// 2\n// 3\n// 4\n// 5\na.load(Ordering::SeqCst);\n";
        assert!(lines(long).is_empty());
        let spread = "// Pairs with: get\na.b\n  .swap(\n    c,\n    d,\n    e,\n    Ordering::AcqRel,\n\
                      Ordering::Acquire);\n";
        assert!(lines(spread).is_empty());
    }

    #[test]
    fn a_missing_or_distant_pair_is_found() {
        assert_eq!(lines("a.load(Ordering::Acquire);\n"), [1]);
        let far = "// Pairs with: put\na();\nb();\nc();\nd();\nx.store(1, Ordering::Release);\n";
        assert_eq!(lines(far), [6]);
        let text = "let s = \"Pairs with: x\"; fence(std::sync::atomic::Ordering::SeqCst);";
        assert_eq!(lines(text), [1]);
    }

    #[test]
    fn weak_orderings_comparisons_and_tests_are_free() {
        assert!(lines("a.load(Ordering::Relaxed); b == Ordering::Less;").is_empty());
        assert!(lines("#[cfg(test)]\nmod t { fn f() { a.load(Ordering::SeqCst); } }").is_empty());
    }

    #[test]
    fn orderings_may_not_be_imported_by_variant() {
        assert_eq!(lines("use std::sync::atomic::Ordering::{Acquire, Release};"), [1]);
        assert_eq!(lines("use std::sync::atomic::Ordering::*;"), [1]);
        assert!(lines("use std::sync::atomic::Ordering;").is_empty());
    }
}
