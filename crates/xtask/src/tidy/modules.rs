// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the files that a crate root reaches through `mod`, `#[path]` and `include!`.
//!
//! Guarantees: follows the module rules of the Rust reference (a file or a folder with a `mod.rs`, inline modules as directories). A file
//! that is reached only below `cfg(test)` counts as test code.
//! Does not see a `mod` line that a macro writes.

use std::collections::BTreeMap;

use super::source::{Source, after_closing, leading_name, statement_start, words};

/// The files of a crate by their modules, each a path from the crate's root.
pub type Tree = BTreeMap<Vec<String>, String>;

/// Returns the modules of the crate with this root file that are compiled outside of tests.
pub fn tree(root: &str, texts: &BTreeMap<String, String>) -> Tree {
    let mut tree = Tree::new();
    let mut next = vec![(Vec::new(), root.to_owned(), true)];
    while let Some((module, path, owns_directory)) = next.pop() {
        let Some(text) = texts.get(&path) else { continue };
        let source = Source::new(&path, text, false);
        for reference in references(&source, owns_directory).into_iter().filter(|r| !r.in_test && !r.module.is_empty())
        {
            if let Some(child) = reference.candidates.iter().find(|c| texts.contains_key(*c)) {
                let module = module.iter().cloned().chain(reference.module).collect();
                next.push((module, child.clone(), child.ends_with("/mod.rs")));
            }
        }
        tree.insert(module, path);
    }
    tree
}

/// A `mod name;` or `include!` found in a file.
struct Reference {
    /// The module below the file's own; empty for `include!`.
    module: Vec<String>,
    /// The files that it may refer to, in the order in which rustc tries them.
    candidates: Vec<String>,
    in_test: bool,
}

/// The files that the crate roots reach.
#[derive(Default)]
pub struct Reach {
    /// Every file reached, and whether it is test code only.
    pub files: BTreeMap<String, bool>,
}

impl Reach {
    /// Follows `roots` (path, and whether the root is a test or bench) over `texts`.
    pub fn from(roots: &[(String, bool)], texts: &BTreeMap<String, String>) -> Reach {
        let mut reach = Reach::default();
        for (path, is_test) in roots {
            reach.visit(path, true, *is_test, texts);
        }
        reach
    }

    fn visit(&mut self, path: &str, root: bool, test: bool, texts: &BTreeMap<String, String>) {
        let Some(text) = texts.get(path) else {
            return;
        };
        // A file that is reached both ways counts as shipped code.
        match self.files.get(path) {
            Some(known) if !*known || test => return,
            _ => self.files.insert(path.to_owned(), test),
        };
        let source = Source::new(path, text, test);
        for reference in references(&source, root) {
            let found = reference.candidates.iter().find(|c| texts.contains_key(*c));
            if let Some(child) = found {
                let owns_directory = child.ends_with("/mod.rs");
                self.visit(child, owns_directory, reference.in_test, texts);
            }
        }
    }
}

fn references(source: &Source, root: bool) -> Vec<Reference> {
    let mut found = Vec::new();
    for at in words(&source.code, "mod") {
        let name = leading_name(&source.code[at + 3..]);
        let after = source.code[at + 3..].trim_start();
        let after = after.strip_prefix("r#").unwrap_or(after);
        if name.is_empty() || !after[name.len()..].trim_start().starts_with(';') {
            continue;
        }
        let module = enclosing_modules(&source.code, at).into_iter().chain([name.to_owned()]).collect();
        found.push(Reference { module, candidates: candidates(source, root, at, name), in_test: source.in_test(at) });
    }
    for at in words(&source.code, "include") {
        let rest = &source.text[at..];
        if let Some(path) = rest.strip_prefix("include!(").and_then(literal) {
            found.push(Reference {
                module: Vec::new(),
                candidates: vec![join(directory(&source.path), path)],
                in_test: source.in_test(at),
            });
        }
    }
    found
}

fn candidates(source: &Source, root: bool, at: usize, name: &str) -> Vec<String> {
    let mut base = directory(&source.path).to_owned();
    let start = statement_start(&source.code, at);
    let attributes = &source.text[start..at];
    if let Some(path) = attributes.split_once("#[path = ").and_then(|(_, rest)| literal(rest)) {
        return vec![join(&base, path)];
    }
    let stem = source.path.rsplit('/').next().unwrap_or_default();
    if !root && stem != "mod.rs" {
        base = join(&base, stem.trim_end_matches(".rs"));
    }
    for outer in enclosing_modules(&source.code, at) {
        base = join(&base, &outer);
    }
    vec![join(&base, &format!("{name}.rs")), join(&base, &format!("{name}/mod.rs"))]
}

/// Returns the inline modules around `at`, outermost first.
fn enclosing_modules(code: &str, at: usize) -> Vec<String> {
    let mut names = Vec::new();
    for outer in words(&code[..at], "mod") {
        let name = leading_name(&code[outer + 3..]);
        let Some(open) = code[outer..at].find(['{', ';']).map(|i| outer + i) else {
            continue;
        };
        if code.as_bytes()[open] == b'{' && after_closing(code, open) > at {
            names.push(name.to_owned());
        }
    }
    names
}

/// Returns the content of the string literal at the start of `text`.
fn literal(text: &str) -> Option<&str> {
    let inside = text.trim_start().strip_prefix('"')?;
    inside.split_once('"').map(|(value, _)| value)
}

fn directory(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(directory, _)| directory)
}

/// Returns `base/relative` with `..` and `.` resolved.
fn join(base: &str, relative: &str) -> String {
    let mut parts: Vec<&str> = base.split('/').filter(|p| !p.is_empty()).collect();
    for part in relative.split('/') {
        match part {
            ".." => {
                parts.pop();
            }
            "." | "" => {}
            other => parts.push(other),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(roots: &[(&str, bool)], files: &[(&str, &str)]) -> BTreeMap<String, bool> {
        let owned = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        let texts = files.iter().map(owned).collect();
        let roots: Vec<(String, bool)> = roots.iter().map(|(p, t)| ((*p).into(), *t)).collect();
        Reach::from(&roots, &texts).files
    }

    #[test]
    fn modules_are_found_where_rustc_finds_them() {
        let files = [
            ("s/lib.rs", "mod a;\npub mod b { mod c; }\n#[path = \"odd.rs\"]\nmod d;"),
            ("s/a.rs", "pub(crate) mod x;"),
            ("s/a/x.rs", ""),
            ("s/b/c/mod.rs", "mod y; include!(\"../z.rs\");"),
            ("s/b/c/y.rs", ""),
            ("s/b/z.rs", ""),
            ("s/odd.rs", ""),
            ("s/x.rs", "not reached"),
        ];
        let found = reach(&[("s/lib.rs", false)], &files);
        let dead: Vec<&str> = files.iter().map(|f| f.0).filter(|p| !found.contains_key(*p)).collect();
        assert_eq!(dead, ["s/x.rs"]);
    }

    #[test]
    fn a_file_below_cfg_test_is_test_code_unless_shipped_too() {
        let files = [
            ("lib.rs", "#[cfg(test)]\nmod tests;\nmod both;"),
            ("tests.rs", "mod inner;"),
            ("tests/inner.rs", ""),
            ("both.rs", ""),
            ("it.rs", "#[path = \"both.rs\"] mod both;"),
        ];
        let found = reach(&[("it.rs", true), ("lib.rs", false)], &files);
        let want = [("both.rs", false), ("it.rs", true), ("lib.rs", false)];
        for (path, test) in want.into_iter().chain([("tests/inner.rs", true)]) {
            assert_eq!(found.get(path), Some(&test), "{path}");
        }
    }

    #[test]
    fn mod_in_a_comment_or_string_reaches_nothing() {
        let files = [("lib.rs", "// mod a;\nconst S: &str = \"mod a;\";"), ("a.rs", "")];
        assert!(!reach(&[("lib.rs", false)], &files).contains_key("a.rs"));
    }
}
