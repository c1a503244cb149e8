// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Splits documents and comments into paragraphs, so that a phrase or quote may continue on the next line.
//!
//! Guarantees: code blocks are left out. Each phrase and quote comes with the line where it begins. A list item, a table row or an empty
//! line ends the paragraph before it. A heading is a paragraph.

use std::collections::BTreeMap;

/// Returns the documents that rules of prose apply to, by path: all but the change log, which is history.
pub fn documents(texts: &BTreeMap<String, String>) -> impl Iterator<Item = (&str, &str)> {
    let is_document = |path: &str| path.ends_with(".md") && !path.starts_with("CHANGELOG");
    texts.iter().map(|(path, text)| (path.as_str(), text.as_str())).filter(move |(path, _)| is_document(path))
}

/// A paragraph of prose.
pub struct Paragraph {
    /// The number of its first line.
    first_line: usize,
    /// Its text without comment markers.
    text: String,
}

/// The paragraphs of a document, or of the comments of a Rust file.
pub fn paragraphs(text: &str) -> Vec<Paragraph> {
    let mut found: Vec<Paragraph> = Vec::new();
    let (mut is_code, mut is_open) = (false, false);
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start_matches(['/', '!', ' ']).trim_end();
        let is_fence = line.starts_with("```");
        is_code ^= is_fence;
        if is_code || is_fence || line.is_empty() {
            is_open = false;
            continue;
        }
        match found.last_mut().filter(|_| is_open && !begins_item(line)) {
            Some(paragraph) => {
                paragraph.text.push('\n');
                paragraph.text.push_str(line);
            }
            None => found.push(Paragraph { first_line: index + 1, text: line.to_owned() }),
        }
        is_open = !line.starts_with('#');
    }
    found
}

fn begins_item(line: &str) -> bool {
    let after_number = line.trim_start_matches(|c: char| c.is_ascii_digit());
    line.starts_with(['|', '#']) || line.starts_with("- ") || after_number != line && after_number.starts_with(". ")
}

impl Paragraph {
    /// Returns each text between backquotes with the number of the line where it begins. A line break in it becomes a blank.
    pub fn quoted(&self) -> Vec<(usize, String)> {
        let mut line = self.first_line;
        let mut found = Vec::new();
        for (index, piece) in self.text.split('`').enumerate() {
            if index % 2 == 1 {
                found.push((line, piece.replace('\n', " ")));
            }
            line += piece.matches('\n').count();
        }
        found
    }

    /// Returns the text outside of backquotes, in lower case. Line breaks become blanks; [`Paragraph::line_of`] finds an offset's line.
    pub fn unquoted(&self) -> String {
        self.outside().replace('\n', " ").to_ascii_lowercase()
    }

    /// Returns the line number of byte `at` of [`Paragraph::unquoted`].
    pub fn line_of(&self, at: usize) -> usize {
        self.first_line + self.outside()[..at].matches('\n').count()
    }

    fn outside(&self) -> String {
        let blank = |quoted: &str| "\n".repeat(quoted.matches('\n').count());
        let pieces = self.text.split('`').enumerate();
        let pieces =
            pieces.map(|(index, piece)| if index % 2 == 0 { piece.to_owned() } else { format!("`{}`", blank(piece)) });
        pieces.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_and_phrases_continue_on_the_next_line() {
        let text = "# Title\nRun `cargo\nxtask` to be\nbroken off.\n- item `a`\n\n```sh\n`code`\n```\n1. `b`\n2. c\n";
        let found = paragraphs(text);
        let quoted: Vec<_> = found.iter().flat_map(Paragraph::quoted).collect();
        assert_eq!(quoted, [(2, "cargo xtask".to_owned()), (5, "a".to_owned()), (10, "b".to_owned())]);
        let prose = found[1].unquoted();
        assert_eq!(found[1].line_of(prose.find("broken off").unwrap()), 4);
        assert_eq!(found[1].line_of(prose.find("to be broken").unwrap()), 3);
        assert_eq!(found.len(), 5);
    }

    #[test]
    fn comments_are_read_without_their_marks() {
        let found = paragraphs("//! One `two\n//! three` four.\n    /// Five.\n");
        assert_eq!(found[0].quoted(), [(1, "two three".to_owned())]);
    }
}
