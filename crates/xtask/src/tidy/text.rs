// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks lines as plain text: a licence line and a `//!` header at the beginning, ASCII only, no work marks, no machine paths.
//!
//! Guarantees: the rules apply to every text file of the tree ([`is_ours`]). Work marks are searched in the comments of Rust files, so a
//! string may name them, and in all of the other files.

use super::finding::Finding;
use super::source::Source;

/// The first line of every Rust and shell file (after `#!`).
const SPDX: &str = "SPDX-License-Identifier: Apache-2.0 OR MIT";

/// Marks of unfinished work. They are split here, because this file is checked, too.
const MARKS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// Directories that exist only on one machine.
const MACHINE: [&str; 3] = [concat!("/ro", "ot"), concat!("/ho", "me"), concat!("/wo", "rk")];

/// Whether a file, named relative to the root, is a text of ours.
pub fn is_ours(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let extension = name.rsplit_once('.').map_or("", |(_, e)| e);
    matches!(extension, "rs" | "md" | "toml" | "sh" | "fio" | "yml") || name.starts_with("LICENSE") || path == ".ci/run"
}

fn is_script(path: &str) -> bool {
    path.ends_with(".sh") || path == ".ci/run"
}

/// Checks the rules that need only the text.
pub fn check(path: &str, text: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    if path.ends_with(".rs") || is_script(path) {
        found.extend(first_lines(path, text));
    }
    for (index, line) in text.lines().enumerate() {
        let at = index + 1;
        if let Some(odd) = line.chars().find(|c| !c.is_ascii()) {
            let message = format!("{odd:?} is not ASCII: spell it or write \\u{{..}}");
            found.push(Finding::new(path, at, message));
        }
        if let Some(place) = machine_path(line) {
            let message = format!("`{place}` exists on one machine: take the path as an argument");
            found.push(Finding::new(path, at, message));
        }
        // Licence texts contain such words, and a manual may explain this rule in backticks.
        if (path.ends_with(".toml") || is_script(path)) && mark(line).is_some() {
            found.push(unfinished(path, at, line));
        }
    }
    found
}

/// Work marks in the comments of a Rust file.
pub fn check_marks(source: &Source) -> Vec<Finding> {
    let lines = source.comments.lines().enumerate();
    lines
        .filter(|(_, line)| mark(line).is_some())
        .map(|(index, line)| unfinished(&source.path, index + 1, line))
        .collect()
}

fn unfinished(path: &str, line: usize, text: &str) -> Finding {
    let word = mark(text).unwrap_or_default();
    let message = format!("{word} without an issue: do it now or write {word}(#number)");
    Finding::new(path, line, message)
}

/// Returns a mark in `line` that no `(#number)` follows.
fn mark(line: &str) -> Option<&'static str> {
    MARKS.into_iter().find(|mark| {
        super::source::words(line, mark).any(|at| {
            let rest = &line[at + mark.len()..];
            let number = rest.strip_prefix("(#").and_then(|r| r.split_once(')'));
            !number.is_some_and(|(n, _)| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        })
    })
}

fn machine_path(line: &str) -> Option<&'static str> {
    MACHINE.into_iter().find(|place| {
        line.match_indices(place).any(|(at, _)| {
            let before = line[..at].bytes().next_back();
            let inside = before.is_some_and(|b| b.is_ascii_alphanumeric() || b"._-}*".contains(&b));
            let mut after = line[at + place.len()..].bytes();
            let below = after.next() == Some(b'/') && after.next().is_some_and(|b| b > b' ');
            !inside && below
        })
    })
}

fn first_lines(path: &str, text: &str) -> Option<Finding> {
    let (comment, header) = if path.ends_with(".rs") { ("// ", Some("//!")) } else { ("# ", None) };
    let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    let mut line = lines.next()?;
    if line.1.starts_with("#!/") {
        line = lines.next()?;
    }
    if line.1.strip_prefix(comment) != Some(SPDX) {
        let message = format!("the first line must be `{comment}{SPDX}`");
        return Some(Finding::new(path, line.0, message));
    }
    let header = header?;
    let next = lines.find(|(_, line)| !line.trim().is_empty());
    if next.is_some_and(|(_, line)| line.starts_with(header)) {
        return None;
    }
    let message = "a `//!` header must follow: what the file guarantees, needs and does not do";
    Some(Finding::new(path, line.0 + 1, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "// SPDX-License-Identifier: Apache-2.0 OR MIT\n//! Does a thing.\n";

    fn messages(path: &str, text: &str) -> Vec<String> {
        check(path, text).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_licence_line_and_a_header_come_first() {
        assert!(messages("a.rs", HEAD).is_empty());
        assert!(messages("a.rs", "//! Does a thing.\n")[0].contains("first line must be"));
        let bare = "// SPDX-License-Identifier: Apache-2.0 OR MIT\n\nfn main() {}\n";
        assert!(messages("a.rs", bare)[0].contains("`//!` header"));
        let script = "#!/usr/bin/env bash\n# SPDX-License-Identifier: Apache-2.0 OR MIT\n";
        assert!(messages(".ci/run", script).is_empty());
        assert!(messages("a.sh", "#!/bin/sh\necho\n")[0].starts_with("a.sh:2:"));
    }

    #[test]
    fn only_ascii() {
        let text = format!("{HEAD}// na\u{ef}ve\n");
        assert!(messages("a.rs", &text)[0].starts_with("a.rs:3: '\u{ef}' is not ASCII"));
    }

    #[test]
    fn machine_paths_are_found_and_others_are_not() {
        for bad in ["ls /ro\u{6f}t/x", "a=\"/ho\u{6d}e/a/b\"", "see /wo\u{72}k/main"] {
            assert_eq!(messages("a.md", bad).len(), 1, "{bad}");
        }
        for good in ["a /work", "sys/devices/root/a", "$PWD/work/x", "net/work/y", "/homes/x"] {
            assert!(messages("a.md", good).is_empty(), "{good}");
        }
    }

    #[test]
    fn unfinished_work_names_an_issue() {
        let word = MARKS[0];
        let sample = |comment: &str| Source::new("a.rs", comment, false);
        let bad = format!("// {word}: later\n/* {} (12) */", MARKS[1]);
        assert_eq!(check_marks(&sample(&bad)).len(), 2);
        let good = format!("// {word}(#12): later\nlet s = \"{word}\"; // {word}S\n");
        assert_eq!(check_marks(&sample(&good)), []);
        let manifest = format!("# {word} pin it\n");
        assert!(messages("Cargo.toml", &manifest)[0].contains("without an issue"));
    }

    #[test]
    fn build_products_and_pictures_are_not_ours() {
        for ours in ["a/b.rs", "LICENSE-MIT", ".ci/run", "README.md"] {
            assert!(is_ours(ours), "{ours}");
        }
        for other in ["a.png", "Cargo.lock", "run", "a.json"] {
            assert!(!is_ours(other), "{other}");
        }
    }
}
