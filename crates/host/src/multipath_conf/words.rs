// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Splits a line of multipath.conf(5) into words.
//!
//! Guarantees: outside of quotes, each brace is a word of its own, `#` and `!` end the line, and a character that is not ASCII is a space.
//! That is as in multipath-tools (`alloc_strvec`). Inside of quotes, `""` is one quote. A quoted value is one word and keeps its spaces.

/// A word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word<'a> {
    /// A word without quotes.
    Plain(&'a str),
    /// Quoted text.
    Quoted(String),
    /// `{`
    Open,
    /// `}`
    Close,
}

impl Word<'_> {
    /// Returns the word's text, for messages.
    pub(super) fn text(&self) -> &str {
        match self {
            Word::Plain(text) => text,
            Word::Quoted(text) => text,
            Word::Open => "{",
            Word::Close => "}",
        }
    }
}

/// A quote that is not closed, with the text after it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unclosed<'a>(pub(super) &'a str);

fn is_space(c: char) -> bool {
    c.is_ascii_whitespace() || c == '\u{b}' || !c.is_ascii()
}

/// Returns the words of a line; none for an empty line or a comment.
pub(super) fn split(line: &str) -> Result<Vec<Word<'_>>, Unclosed<'_>> {
    let mut words = Vec::new();
    let mut rest = line.trim_start_matches(is_space);
    while let Some(c) = rest.chars().next() {
        let length = match c {
            '#' | '!' => break,
            '{' | '}' => {
                words.push(if c == '{' { Word::Open } else { Word::Close });
                1
            }
            '"' => {
                let (text, length) = quoted(&rest[1..])?;
                words.push(Word::Quoted(text));
                1 + length
            }
            _ => {
                let ends = |c: char| is_space(c) || matches!(c, '!' | '#' | '{' | '}' | '"');
                let length = rest.find(ends).unwrap_or(rest.len());
                words.push(Word::Plain(&rest[..length]));
                length
            }
        };
        rest = rest[length..].trim_start_matches(is_space);
    }
    Ok(words)
}

/// Returns the text before the closing quote, and the length of both in the line.
fn quoted(rest: &str) -> Result<(String, usize), Unclosed<'_>> {
    let mut text = String::new();
    let mut at = 0;
    while let Some(length) = rest[at..].find('"') {
        text.push_str(&rest[at..at + length]);
        at += length + 1;
        if !rest[at..].starts_with('"') {
            return Ok((text, at));
        }
        text.push('"');
        at += 1;
    }
    Err(Unclosed(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(line: &str) -> Vec<String> {
        split(line).unwrap().iter().map(|w| w.text().to_owned()).collect()
    }

    #[test]
    fn lines_are_taken_apart_as_multipath_does() {
        assert_eq!(texts("\tpath_selector  \"service-time 0\" # comment"), ["path_selector", "service-time 0"]);
        assert_eq!(texts("defaults{"), ["defaults", "{"]);
        assert_eq!(texts("! all of it"), [""; 0]);
        assert_eq!(texts("vendor HP#2"), ["vendor", "HP"]);
        assert_eq!(texts("devnode \"!^sd # {\""), ["devnode", "!^sd # {"]);
        assert_eq!(texts("product \"2.5\"\" SSD\""), ["product", "2.5\" SSD"]);
        assert_eq!(texts("product \"\""), ["product", ""]);
        assert_eq!(texts("product \"\"\"\""), ["product", "\""]);
        assert_eq!(texts("\u{feff}prio\u{a0}alua\u{b}x"), ["prio", "alua", "x"]);
        assert_eq!(split("product \"a\"\"").unwrap_err(), Unclosed("a\"\""));
        assert_eq!(split("\""), Err(Unclosed("")));
        assert_eq!(split("a\"b\"c").unwrap(), [Word::Plain("a"), Word::Quoted("b".into()), Word::Plain("c")]);
    }
}
