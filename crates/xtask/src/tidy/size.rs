// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits sizes: files have at most 800 lines, functions at most 70 lines and names of at most 60 characters. The only exceptions are
//! those in the [`ratchet`](super::ratchet).
//!
//! The length of a function counts from the line of `fn` to the closing brace, with inner items. Functions in macro bodies count, too.

use std::collections::BTreeMap;

use super::finding::Finding;
use super::ratchet::{Exceptions, Measure, judge};
use super::source::{Source, after_closing, leading_name, words};

const FILE_LINES: usize = 800;
const FUNCTION_LINES: usize = 70;
/// Maximum length of a name, so that a list of tests with their modules stays readable.
const NAME_CHARACTERS: usize = 60;

/// Checks every file and function against the limits and the exceptions.
pub fn check(sources: &[Source], exceptions: &Exceptions) -> Vec<Finding> {
    let mut files = BTreeMap::new();
    let mut functions = BTreeMap::new();
    let mut found = Vec::new();
    for source in sources {
        let lines = source.text.lines().count();
        files.insert(source.path.clone(), Measure { line: 1, size: lines });
        for (name, measure) in self::functions(source) {
            if name.len() > NAME_CHARACTERS {
                let message = format!("function {name} has {} characters, at most {NAME_CHARACTERS}", name.len());
                found.push(Finding::new(&source.path, measure.line, message));
            }
            let longest = functions.entry(format!("{}::{name}", source.path));
            let longest = longest.or_insert(measure);
            if measure.size > longest.size {
                *longest = measure;
            }
        }
    }
    found.extend(judge(&files, &exceptions.files, FILE_LINES, "file", "lines"));
    found.extend(judge(&functions, &exceptions.functions, FUNCTION_LINES, "function", "lines"));
    found
}

fn functions(source: &Source) -> Vec<(String, Measure)> {
    let code = &source.code;
    let mut found = Vec::new();
    for at in words(code, "fn") {
        let name = leading_name(&code[at + 2..]);
        if name.is_empty() {
            continue;
        }
        if let Some(open) = body(code, at) {
            let line = source.line(at);
            let lines = source.line(after_closing(code, open) - 1) - line + 1;
            found.push((name.to_owned(), Measure { line, size: lines }));
        }
    }
    found
}

/// Returns where the body of the function at `at` opens; `None` for a declaration.
fn body(code: &str, at: usize) -> Option<usize> {
    let mut i = at;
    while let Some(byte) = code.as_bytes().get(i) {
        match byte {
            b'{' => return Some(i),
            b';' => return None,
            b'(' | b'[' => i = after_closing(code, i),
            _ => i += 1,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function_of(lines: usize) -> Source {
        let body = "    g();\n".repeat(lines - 2);
        Source::new("a.rs", &format!("\nfn f() {{\n{body}}}\n"), false)
    }

    fn messages(source: Source, ratchet: &str) -> Vec<String> {
        let found = check(&[source], &Exceptions::parse(ratchet).unwrap());
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_limits_themselves_pass_and_one_line_more_fails() {
        assert!(messages(function_of(70), "").is_empty());
        let found = messages(function_of(71), "");
        assert_eq!(found, ["a.rs:2: function f has 71 lines, at most 70: split it"]);
        let file = |lines| Source::new("b.rs", &"//\n".repeat(lines), false);
        assert!(messages(file(800), "").is_empty());
        assert!(messages(file(801), "")[0].contains("801 lines, at most 800"));
    }

    #[test]
    fn names_have_at_most_sixty_characters() {
        let named = |length| Source::new("a.rs", &format!("fn {}() {{\n}}\n", "a".repeat(length)), false);
        assert!(messages(named(60), "").is_empty());
        assert!(messages(named(61), "")[0].ends_with("has 61 characters, at most 60"));
    }

    #[test]
    fn declarations_types_and_macros_are_measured_rightly() {
        let text = "trait T { fn a(&self, x: [u8; 4]) -> u8; }\ntype F = fn(u8) -> u8;\n\
                    m! { fn b(\n) -> [u8; 2]\nwhere u8: Copy {\n } }";
        let source = Source::new("a.rs", text, false);
        let want = ("b".to_owned(), Measure { line: 3, size: 4 });
        assert_eq!(functions(&source), [want]);
    }

    #[test]
    fn an_exception_holds_only_for_its_exact_size() {
        let list = |lines| format!("# why\n[function-lines]\n\"a.rs::f\" = {lines}\n");
        assert!(messages(function_of(90), &list(90)).is_empty());
        assert!(messages(function_of(91), &list(90))[0].contains("91 lines, at most 90"));
        let found = messages(function_of(89), &list(90));
        assert!(found[0].starts_with("crates/xtask/tidy.toml:3:"), "{found:?}");
        assert!(found[0].contains("lower the entry to 89"), "{found:?}");
        assert!(messages(function_of(70), &list(90))[0].contains("delete the entry"));
        let gone = list(90).replace("::f", "::gone");
        assert!(messages(function_of(9), &gone)[0].contains("delete the entry"));
    }
}
