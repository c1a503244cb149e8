// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files of at most 800 lines, functions of at most 70, and the list of exceptions.
//!
//! Guarantees: the list in [`RATCHET`] can only shrink: an entry that is larger than the truth, or
//! no longer needed, is as wrong as one that is too small. Functions are measured from the line of
//! `fn` to the closing brace, inner items included, in macro bodies too.

use std::collections::BTreeMap;

use super::Finding;
use super::source::{Source, after_closing, leading_name, words};

/// The file of exceptions: sections `[file-lines]` and `[function-lines]`, lines `"key" = number`
/// with keys `path` and `path::function`.
pub const RATCHET: &str = "crates/xtask/tidy.toml";

const FILE_LINES: usize = 800;
const FUNCTION_LINES: usize = 70;

/// Checks every file and function against the limits and the exceptions in `ratchet`.
pub fn check(sources: &[Source], ratchet: &str) -> Vec<Finding> {
    let exceptions = match parse(ratchet) {
        Ok(exceptions) => exceptions,
        Err(finding) => return vec![finding],
    };
    let mut files = BTreeMap::new();
    let mut functions = BTreeMap::new();
    for source in sources {
        let lines = source.text.lines().count();
        files.insert(source.path.clone(), Measure { line: 1, lines });
        for (name, measure) in self::functions(source) {
            let longest = functions.entry(format!("{}::{name}", source.path));
            let longest = longest.or_insert(measure);
            if measure.lines > longest.lines {
                *longest = measure;
            }
        }
    }
    let mut found = judge(&files, &exceptions.files, FILE_LINES, "file");
    found.extend(judge(&functions, &exceptions.functions, FUNCTION_LINES, "function"));
    found
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Measure {
    line: usize,
    lines: usize,
}

#[derive(Default)]
struct Exceptions {
    files: BTreeMap<String, Exception>,
    functions: BTreeMap<String, Exception>,
}

struct Exception {
    lines: usize,
    at: usize,
}

fn judge(
    measured: &BTreeMap<String, Measure>,
    exceptions: &BTreeMap<String, Exception>,
    limit: usize,
    what: &str,
) -> Vec<Finding> {
    let mut found = Vec::new();
    for (key, Measure { line, lines }) in measured {
        let allowed = exceptions.get(key).map_or(limit, |e| e.lines.max(limit));
        if *lines > allowed {
            let path = key.split("::").next().unwrap_or(key);
            let name = key.rsplit("::").next().unwrap_or(key);
            let message = format!("{what} {name} has {lines} lines, at most {allowed}: split it");
            found.push(Finding::new(path, *line, message));
        }
    }
    for (key, exception) in exceptions {
        let lines = measured.get(key).map_or(0, |m| m.lines);
        let message = if lines <= limit {
            format!("{key} needs no exception (any more): delete the entry")
        } else if lines < exception.lines {
            format!("{key} has shrunk to {lines} lines: lower the entry to {lines}")
        } else {
            continue;
        };
        found.push(Finding::new(RATCHET, exception.at, message));
    }
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
            found.push((name.to_owned(), Measure { line, lines }));
        }
    }
    found
}

/// Where the body of the function at `at` opens; `None` for a declaration.
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

fn parse(text: &str) -> Result<Exceptions, Finding> {
    let mut exceptions = Exceptions::default();
    let mut section = "";
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let wrong = |why: &str| Finding::new(RATCHET, index + 1, format!("`{line}`: {why}"));
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line.starts_with('[') {
            section = line;
            continue;
        }
        let entry = line.strip_prefix('"').and_then(|l| l.split_once("\" = "));
        let entry = entry.and_then(|(key, lines)| Some((key, lines.parse().ok()?)));
        let (key, lines) = entry.ok_or_else(|| wrong("must read `\"key\" = lines`"))?;
        let table = match section {
            "[file-lines]" => &mut exceptions.files,
            "[function-lines]" => &mut exceptions.functions,
            _ => return Err(wrong("must stand under [file-lines] or [function-lines]")),
        };
        let exception = Exception { lines, at: index + 1 };
        if table.insert(key.to_owned(), exception).is_some() {
            return Err(wrong("stands here twice: keep one"));
        }
    }
    Ok(exceptions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function_of(lines: usize) -> Source {
        let body = "    g();\n".repeat(lines - 2);
        Source::new("a.rs", &format!("\nfn f() {{\n{body}}}\n"), false)
    }

    fn messages(source: Source, ratchet: &str) -> Vec<String> {
        let found = check(&[source], ratchet);
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
    fn declarations_types_and_macros_are_measured_rightly() {
        let text = "trait T { fn a(&self, x: [u8; 4]) -> u8; }\ntype F = fn(u8) -> u8;\n\
                    m! { fn b(\n) -> [u8; 2]\nwhere u8: Copy {\n } }";
        let source = Source::new("a.rs", text, false);
        let want = ("b".to_owned(), Measure { line: 3, lines: 4 });
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

    #[test]
    fn a_list_that_cannot_be_read_is_a_finding() {
        for bad in ["\"a.rs\" = 900", "[file-lines]\na.rs = 900", "[other]\n\"a\" = 1"] {
            assert_eq!(messages(function_of(5), bad).len(), 1, "{bad}");
        }
        let twice = "[file-lines]\n\"a\" = 900\n\"a\" = 901\n";
        assert!(messages(function_of(5), twice)[0].contains("twice"));
    }
}
