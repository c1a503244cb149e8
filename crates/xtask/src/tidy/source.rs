// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A Rust file as the rules see it: its code and its comments are separated, without a full parser.
//!
//! Guarantees: `code` and `comments` are as long as `text` and keep its line breaks, so a byte offset is the same place in all three.
//! Literals are in neither. Works inside macro bodies, too, which a syntax tree does not cover.
//! Needs: a file that rustc accepts. Does not expand macros and does not resolve names.

use std::ops::Range;

/// One Rust file and its views.
pub struct Source {
    /// The path relative to the workspace, with `/`.
    pub path: String,
    /// The file.
    pub text: String,
    /// The file with comments and literals blanked.
    pub code: String,
    /// The file with everything but comments blanked.
    pub comments: String,
    line_starts: Vec<usize>,
    test_items: Vec<Range<usize>>,
}

impl Source {
    /// Separates the code and the comments of a file. `is_test`: nothing in the file is part of a shipped program.
    pub fn new(path: &str, text: &str, is_test: bool) -> Source {
        let (code, comments) = split(text);
        let breaks = text.bytes().enumerate().filter(|(_, b)| *b == b'\n');
        let line_starts = std::iter::once(0).chain(breaks.map(|(i, _)| i + 1));
        let test_items = if is_test { std::iter::once(0..text.len()).collect() } else { test_items(&code) };
        Source {
            path: path.to_owned(),
            text: text.to_owned(),
            line_starts: line_starts.collect(),
            test_items,
            code,
            comments,
        }
    }

    /// Returns the line, counted from 1, that contains byte `offset`.
    pub fn line(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= offset)
    }

    /// Whether byte `offset` is compiled for tests only.
    pub fn in_test(&self, offset: usize) -> bool {
        self.test_items.iter().any(|item| item.contains(&offset))
    }

    /// Returns the first line of the statement or item around `offset`.
    pub fn statement_line(&self, offset: usize) -> usize {
        self.line(statement_start(&self.code, offset))
    }
}

/// Returns the offset of the first byte, except white space, after the `;`, `{` or `}` before `offset`.
pub fn statement_start(code: &str, offset: usize) -> usize {
    let before = &code[..offset];
    let from = before.rfind([';', '{', '}']).map_or(0, |i| i + 1);
    let blank = code[from..].len() - code[from..].trim_start().len();
    (from + blank).min(offset)
}

/// Returns the offsets of `word` in `code` where it is not part of a longer name.
pub fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word).filter_map(move |(at, _)| {
        let before = code[..at].bytes().next_back();
        let after = code.as_bytes().get(at + word.len()).copied();
        let apart = |byte: Option<u8>| byte.is_none_or(|b| !is_name(b));
        (apart(before) && apart(after)).then_some(at)
    })
}

/// Whether a byte may be part of a Rust name.
pub fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Returns the name that starts at the first non-blank byte of `code`, or an empty text if none does.
pub fn leading_name(code: &str) -> &str {
    let code = code.trim_start();
    let code = code.strip_prefix("r#").unwrap_or(code);
    let end = code.bytes().position(|b| !is_name(b));
    &code[..end.unwrap_or(code.len())]
}

/// Returns the offset just after the bracket that closes the one at `open`, or the end of `code`.
pub fn after_closing(code: &str, open: usize) -> usize {
    let mut depth = 0usize;
    for (i, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return i + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

/// Returns the items under a `cfg` that requires `test`, including the attribute.
fn test_items(code: &str) -> Vec<Range<usize>> {
    let mut items = Vec::new();
    for (at, found) in code.match_indices("#[cfg(").chain(code.match_indices("#![cfg(")) {
        let end = after_closing(code, at + found.len() - 1);
        let condition = &code[at..end];
        let refused = words(condition, "not").map(|not| not..after_closing(condition, not));
        let refused: Vec<Range<usize>> = refused.collect();
        let asks = words(condition, "test").any(|test| !refused.iter().any(|not| not.contains(&test)));
        if !asks {
            continue;
        }
        if found.starts_with("#!") {
            return std::iter::once(0..code.len()).collect();
        }
        items.push(at..item_end(code, end + 1));
    }
    items
}

/// Returns where the item at `from` ends, after any further attributes.
fn item_end(code: &str, from: usize) -> usize {
    let mut at = from;
    while code[at.min(code.len())..].trim_start().starts_with("#[") {
        let open = at + code[at..].find('[').unwrap_or(0);
        at = after_closing(code, open);
    }
    while let Some(byte) = code.as_bytes().get(at) {
        match byte {
            b';' => return at + 1,
            b'{' => return after_closing(code, at),
            b'(' | b'[' => at = after_closing(code, at),
            _ => at += 1,
        }
    }
    code.len()
}

/// What a part of the text belongs to.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Code,
    Comment,
    Literal,
}

/// Returns the code and the comments of `text`, each with the rest blanked.
fn split(text: &str) -> (String, String) {
    let bytes = text.as_bytes();
    let mut code = String::with_capacity(text.len());
    let mut comments = String::with_capacity(text.len());
    let mut at = 0;
    while at < bytes.len() {
        let (part, length) = next_part(bytes, at);
        let end = (at + length).min(bytes.len());
        for byte in &bytes[at..end] {
            let shown = match byte {
                b'\n' => '\n',
                b if b.is_ascii() => char::from(*b),
                _ => '_',
            };
            let keep = |wanted: Part| part == wanted || shown == '\n';
            code.push(if keep(Part::Code) { shown } else { ' ' });
            comments.push(if keep(Part::Comment) { shown } else { ' ' });
        }
        at = end;
    }
    (code, comments)
}

/// Returns the kind and the length of the part that starts at `at`.
fn next_part(bytes: &[u8], at: usize) -> (Part, usize) {
    let rest = &bytes[at..];
    if rest.starts_with(b"//") {
        let end = rest.iter().position(|b| *b == b'\n');
        return (Part::Comment, end.unwrap_or(rest.len()));
    }
    if rest.starts_with(b"/*") {
        return (Part::Comment, block_comment(rest));
    }
    if rest[0] == b'"' {
        return (Part::Literal, string(rest));
    }
    if rest[0] == b'\'' {
        let length = character(rest);
        let part = if length == 1 { Part::Code } else { Part::Literal };
        return (part, length);
    }
    let starts_name = at == 0 || !is_name(bytes[at - 1]);
    if starts_name && matches!(rest[0], b'r' | b'b' | b'c') {
        let prefix = rest.iter().take_while(|b| matches!(b, b'r' | b'b' | b'c'));
        let prefix = prefix.count();
        let hashes = rest[prefix..].iter().take_while(|b| **b == b'#').count();
        let raw = rest[..prefix].contains(&b'r');
        if raw && prefix <= 2 && rest.get(prefix + hashes) == Some(&b'"') {
            return (Part::Literal, raw_string(rest, prefix, hashes));
        }
    }
    (Part::Code, 1)
}

fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0usize, 0usize);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest[at..].starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                break;
            }
        } else {
            at += 1;
        }
    }
    at
}

fn string(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

fn raw_string(rest: &[u8], prefix: usize, hashes: usize) -> usize {
    let start = prefix + hashes + 1;
    let mut end = vec![b'"'];
    end.resize(hashes + 1, b'#');
    let found = rest[start..].windows(end.len()).position(|w| w == end);
    found.map_or(rest.len(), |at| start + at + end.len())
}

/// Returns a character literal's length, or 1 for the quote of a lifetime or label.
fn character(rest: &[u8]) -> usize {
    if rest.get(1) == Some(&b'\\') {
        let end = rest.iter().skip(3).position(|b| *b == b'\'');
        return end.map_or(rest.len(), |at| at + 4);
    }
    // A literal holds one character of at most four bytes; a lifetime has no quote after it.
    let first = rest.get(1).copied().unwrap_or(b' ');
    let width = first.leading_ones().clamp(1, 4) as usize;
    if rest.get(1 + width) == Some(&b'\'') {
        return width + 2;
    }
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source::new("a.rs", text, false)
    }

    #[test]
    fn literals_and_comments_leave_the_code() {
        let text = "let a = \"x // y\"; // note\nlet b = 'c'; /* d /* e */ f */ g";
        let s = source(text);
        assert_eq!(s.code.len(), text.len());
        assert_eq!(s.comments.len(), text.len());
        assert!(s.code.contains("let b ="));
        assert!(s.code.trim_end().ends_with('g'));
        for gone in ["x", "y", "note", "'c'", "d", "f"] {
            assert!(!s.code.contains(gone), "{gone} in {:?}", s.code);
        }
        assert!(s.comments.contains("// note"));
        assert!(!s.comments.contains("let"));
    }

    #[test]
    fn raw_strings_lifetimes_and_escapes_are_told_apart() {
        let s = source(r##"fn f<'a>(x: &'a str) { g(r#"q " unsafe"#, '\'', b"\"", '\u{7f}', h) }"##);
        assert!(s.code.contains("fn f<'a>(x: &'a str)"), "{}", s.code);
        assert!(s.code.contains(", h) }"), "{}", s.code);
        assert!(!s.code.contains("unsafe"));
        let s = source("let r#type = 'loop_: loop { break 'loop_ };");
        assert!(s.code.contains("break 'loop_ }"), "{}", s.code);
    }

    #[test]
    fn lines_count_from_one() {
        let s = source("a\nb\n\nc");
        let lines: Vec<usize> = [0, 1, 2, 5].iter().map(|o| s.line(*o)).collect();
        assert_eq!(lines, [1, 1, 2, 4]);
    }

    #[test]
    fn items_under_cfg_test_are_test_code() {
        let text = "fn a() {}\n#[cfg(test)]\n#[allow(x)]\nmod t { fn b() { } }\nfn c() {}\n\
                    #[cfg(all(test, loom))]\nmod out;\n#[cfg(all(test, not(loom)))]\nmod also;\n#[cfg(not(test))]\nfn d() {}";
        let s = source(text);
        let at = |what: &str| s.in_test(text.find(what).unwrap());
        assert!(at("fn b") && at("mod out") && at("mod also"));
        assert!(!at("fn a") && !at("fn c") && !at("fn d"));
        let whole = "#![cfg(test)]\nfn a() {}";
        assert!(source(whole).in_test(whole.len() - 1));
    }

    #[test]
    fn statements_start_after_the_last_separator() {
        let s = source("{ a();\n  b(\n    c,\n    d)\n}");
        let at = s.code.find('d').unwrap();
        assert_eq!((s.line(at), s.statement_line(at)), (4, 2));
    }

    #[test]
    fn words_are_whole_names() {
        let found: Vec<usize> = words("unsafe unsafe_code my_unsafe unsafe{", "unsafe").collect();
        assert_eq!(found, [0, 29]);
    }
}
