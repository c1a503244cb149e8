// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds words that this project does not use: persons for threads and clients, and home-made names and verbs.
//!
//! Guarantees: they are found in comments of Rust files and in documents, in upper and lower case, outside of backquotes and code
//! blocks. Does not check names in code, strings (Unix has a user `nobody`) and the change log, which is history.

use std::collections::BTreeMap;

use super::finding::Finding;
use super::prose::{documents, paragraphs};
use super::source::{Source, words};

/// Words to avoid, and what to write instead.
const WORDS: [(&str, &str); 28] = [
    ("whoever", PERSON),
    ("whom", PERSON),
    ("nobody", PERSON),
    ("somebody", PERSON),
    ("anybody", PERSON),
    ("someone", PERSON),
    ("everybody", PERSON),
    ("clerk", "write helper thread"),
    ("inlet", "write listener or entry"),
    ("keeper", "write owner"),
    ("errand", "write request"),
    ("notebook", "write log"),
    ("rig", "write fixture"),
    ("mend", "write fix"),
    ("mends", "write fixes"),
    ("mended", "write fixed"),
    ("turn away", "write reject"),
    ("turns away", "write rejects"),
    ("turned away", "write rejected"),
    ("left aside", "write ignored"),
    ("break off", "write interrupt"),
    ("breaks off", "write interrupts"),
    ("broken off", "write interrupted"),
    ("goes on with", "write continues with"),
    ("gone on", "write continued"),
    ("looked at", "write checked or read"),
    ("stands in line", "write is queued"),
    ("stands still", "write hangs or is stopped"),
];

const PERSON: &str = "name the thread, client or request";

/// Words for people, after which `who` is allowed.
const PEOPLE: [&str; 6] = ["user", "users", "reader", "readers", "operator", "person"];

/// Finds these words in documents and comments.
pub fn check(texts: &BTreeMap<String, String>, sources: &[Source]) -> Vec<Finding> {
    let documents = documents(texts).flat_map(|(path, text)| in_text(path, text));
    // This file names the words.
    let comments = sources.iter().filter(|source| !source.path.ends_with("tidy/words.rs"));
    documents.chain(comments.flat_map(|source| in_text(&source.path, &source.comments))).collect()
}

fn in_text(path: &str, text: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    for paragraph in paragraphs(text) {
        let prose = paragraph.unquoted();
        let mut report = |at: usize, word: &str, remedy: &str| {
            found.push(Finding::new(path, paragraph.line_of(at), format!("`{word}`: {remedy}")));
        };
        for (word, remedy) in WORDS {
            words(&prose, word).for_each(|at| report(at, word, remedy));
        }
        let of_people = |at: &usize| {
            let before = prose[..*at].split_whitespace().next_back();
            before.is_some_and(|word| PEOPLE.contains(&word))
        };
        words(&prose, "who").filter(|at| !of_people(at)).for_each(|at| report(at, "who", PERSON));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(comment: &str) -> Vec<String> {
        let source = Source::new("a.rs", comment, false);
        check(&BTreeMap::new(), &[source]).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn persons_and_home_made_words_are_found() {
        assert_eq!(found("// Nobody waits.\n"), ["a.rs:1: `nobody`: name the thread, client or request"]);
        assert_eq!(found("//! One.\n//! Wakes who sleeps.\n"), ["a.rs:2: `who`: name the thread, client or request"]);
        assert_eq!(found("fn f() {} // the list is looked at\n"), ["a.rs:1: `looked at`: write checked or read"]);
        assert_eq!(found("/// It is broken\n/// off.\n"), ["a.rs:1: `broken off`: write interrupted"]);
        let guide = BTreeMap::from([("docs/a.md".to_owned(), "It turns away clients.\n".to_owned())]);
        assert_eq!(check(&guide, &[])[0].to_string(), "docs/a.md:1: `turns away`: write rejects");
    }

    #[test]
    fn people_names_strings_and_quotes_are_allowed() {
        for good in [
            "/// A user who types.\n",
            "let nobody = \"nobody\"; // the user `nobody`\n",
            "/// ```text\n/// nobody\n/// ```\n",
            "/// Recommended.\n",
        ] {
            assert_eq!(found(good), [""; 0], "{good}");
        }
    }
}
