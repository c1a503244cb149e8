// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks that sentences are short and that headings name a topic.
//!
//! Guarantees: checks documents, without code blocks and the change log. A semicolon or a colon also ends a sentence. Text in backquotes
//! counts as one word. Does not check comments.

use std::collections::BTreeMap;

use super::finding::Finding;
use super::prose::{Paragraph, documents, paragraphs};

/// Maximum words of a sentence.
const SENTENCE_WORDS: usize = 35;
/// Maximum words of a heading.
const HEADING_WORDS: usize = 12;

/// Finds sentences and headings that are too long.
pub fn check(texts: &BTreeMap<String, String>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in documents(texts) {
        for paragraph in paragraphs(text) {
            found.extend(problems(&paragraph).into_iter().map(|(line, what)| Finding::new(path, line, what)));
        }
    }
    found
}

fn problems(paragraph: &Paragraph) -> Vec<(usize, String)> {
    let prose = paragraph.unquoted();
    if let Some(heading) = prose.strip_prefix('#') {
        let is_sentence = heading.ends_with(['.', '!', '?']);
        let is_long = count(heading) > HEADING_WORDS;
        let what = format!("a heading names a topic, in at most {HEADING_WORDS} words and without a full stop");
        return if is_sentence || is_long { vec![(paragraph.line_of(0), what)] } else { Vec::new() };
    }
    let long = sentences(&prose).map(|(at, sentence)| (at, count(sentence))).filter(|(_, n)| *n > SENTENCE_WORDS);
    let what = |n: usize| format!("a sentence of {n} words: split it, at most {SENTENCE_WORDS}");
    long.map(|(at, n)| (paragraph.line_of(at), what(n))).collect()
}

/// Splits text into sentences and table cells, each with the offset where it begins.
fn sentences(prose: &str) -> impl Iterator<Item = (usize, &str)> {
    let ends = |(at, c): (usize, char)| {
        let next = prose[at + c.len_utf8()..].chars().find(|c| !matches!(c, ')' | '"' | '*'));
        (c == '|' || matches!(c, '.' | '!' | '?' | ':' | ';') && next.is_none_or(char::is_whitespace)).then_some(at + 1)
    };
    let mut begin = 0;
    let ends = prose.char_indices().filter_map(ends).chain([prose.len()]).collect::<Vec<_>>();
    ends.into_iter().map(move |end| {
        let sentence = prose[std::mem::replace(&mut begin, end)..end].trim_start();
        (end - sentence.len(), sentence)
    })
}

fn count(sentence: &str) -> usize {
    sentence.split_whitespace().filter(|word| word.contains(|c: char| c.is_ascii_alphabetic() || c == '`')).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let texts = BTreeMap::from([("docs/a.md".to_owned(), text.to_owned())]);
        check(&texts).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn long_sentences_are_found_where_they_begin() {
        let long = "word ".repeat(SENTENCE_WORDS);
        assert_eq!(found(&format!("One.\nTwo.\n{long}more.\n")).len(), 1);
        assert!(found(&format!("One.\nTwo.\nThree {long}.\n"))[0].starts_with("docs/a.md:3: a sentence of 36 words"));
        assert_eq!(found(&format!("{long}; {long}: {long}.\n| {long} | {long} |\n")), Vec::<String>::new());
        assert_eq!(found(&format!("{}`a b c`.\n", "word ".repeat(SENTENCE_WORDS - 1))), Vec::<String>::new());
    }

    #[test]
    fn a_heading_is_no_sentence() {
        assert_eq!(found("# Stale writes after failover\n"), Vec::<String>::new());
        assert_eq!(found("# It fails over.\n").len(), 1);
        assert_eq!(found(&format!("## {}\n", "word ".repeat(HEADING_WORDS + 1))).len(), 1);
    }
}
