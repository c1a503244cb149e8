// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The errors and warnings of a job file, in messages that say what to do.
//!
//! Guarantees: every error and warning carries place, option, value, rule and remedy and prints as one line. Does not do:
//! decide anything; `parse` and `resolve` make these values.

use std::fmt::{self, Write as _};
use std::sync::Arc;

/// Longest part of a file that a message quotes.
const QUOTE_CHARS_MAX: usize = 80;

/// Quotes a part of a file for a message: shortened, and safe to print.
pub(super) fn quote(text: &str) -> String {
    match text.char_indices().nth(QUOTE_CHARS_MAX) {
        Some((end, _)) => format!("{}...", Printable(&text[..end])),
        None => Printable(text).to_string(),
    }
}

/// Text without control characters, which a job file could use to disturb a terminal.
struct Printable<'a>(&'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if c.is_control() { write!(f, "{}", c.escape_default())? } else { f.write_char(c)? }
        }
        Ok(())
    }
}

/// Where an option was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A line (1-based) of a job file or an included file; line 0 = the file as a whole.
    Line {
        /// Name as the caller or `include` gave it.
        file: Arc<str>,
        /// Line number.
        line: u32,
    },
    /// A flag of the command line.
    Flag(&'static str),
    /// A job option of the command line.
    CommandLine,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Line { file, line: 0 } => write!(f, "{}", Printable(file)),
            Origin::Line { file, line } => write!(f, "{}:{line}", Printable(file)),
            Origin::Flag(flag) => f.write_str(flag),
            Origin::CommandLine => f.write_str("command line"),
        }
    }
}

/// The kind of rule that was broken, for callers that handle kinds differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The file's form: text outside a section, a bad header, an include that fails.
    Syntax,
    /// No such option in fio.
    UnknownOption,
    /// fio has it, mqblk does not.
    Unsupported,
    /// The value does not parse or is out of range.
    BadValue,
    /// Options that contradict each other, or one that needs another.
    Conflict,
}

/// One error in a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobError {
    /// The place.
    pub origin: Origin,
    /// The section it concerns (`global` for a global section); `None` outside of sections.
    pub job: Option<String>,
    /// The text as typed: `iodepth=0`, or a part of the line.
    pub typed: String,
    /// Kind of rule.
    pub kind: ErrorKind,
    /// The rule: `must be 1..=65536`.
    pub rule: String,
    /// What to do; may be empty if the rule says it.
    pub remedy: String,
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.origin, Printable(&self.typed), Printable(&self.rule))?;
        if let Some(job) = &self.job {
            write!(f, " (job '{}')", quote(job))?;
        }
        if !self.remedy.is_empty() {
            write!(f, "; {}", Printable(&self.remedy))?;
        }
        Ok(())
    }
}

impl std::error::Error for JobError {}

/// Maximum number of errors reported for one file. A file of a wrong type (such as a disk image) has one on every line.
pub(super) const ERRORS_MAX: usize = 100;

/// All errors of a job file: the first error of each line, in file order. Never empty, and at most 101: after a hundred,
/// one more says that others follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobErrors {
    /// The errors.
    pub errors: Vec<JobError>,
}

impl fmt::Display for JobErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.errors.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for JobErrors {}

/// An accepted option that has no effect here, or a different one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The place.
    pub origin: Origin,
    /// The section it concerns.
    pub job: Option<String>,
    /// The text as typed.
    pub typed: String,
    /// What mqblk does instead. Also says why that is harmless, or what to do.
    pub advice: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.origin, Printable(&self.typed), Printable(&self.advice))?;
        if let Some(job) = &self.job {
            write!(f, " (job '{}')", quote(job))?;
        }
        Ok(())
    }
}

/// The reason for rejecting a value. The caller knows the place and the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reject {
    /// As [`JobError::kind`].
    pub kind: ErrorKind,
    /// As [`JobError::rule`].
    pub rule: String,
    /// As [`JobError::remedy`].
    pub remedy: String,
}

impl Reject {
    /// A value that does not parse or is out of range.
    pub(super) fn new(rule: &str, remedy: &str) -> Self {
        Reject { kind: ErrorKind::BadValue, rule: rule.to_owned(), remedy: remedy.to_owned() }
    }

    /// An option that fio has and mqblk does not.
    pub(super) fn unsupported(rule: &str, remedy: &str) -> Self {
        Reject { kind: ErrorKind::Unsupported, ..Reject::new(rule, remedy) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found by fuzzing: an included file's name reached the terminal as typed.
    #[test]
    fn no_part_of_a_message_carries_control_characters() {
        let bad = "\u{1b}[31m\u{9b}x\n";
        let error = JobError {
            origin: Origin::Line { file: bad.into(), line: 1 },
            job: Some(bad.to_owned()),
            typed: bad.to_owned(),
            kind: ErrorKind::Syntax,
            rule: bad.to_owned(),
            remedy: bad.to_owned(),
        };
        let JobError { origin, job, typed, .. } = error.clone();
        let warning = Warning { origin, job, typed, advice: bad.to_owned() };
        for message in [error.to_string(), warning.to_string()] {
            assert!(!message.chars().any(char::is_control), "{message:?}");
            assert!(message.contains("\\u{1b}[31m"), "shown, not dropped: {message}");
        }
    }

    #[test]
    fn quotes_are_short() {
        assert_eq!(quote("a=b"), "a=b");
        assert_eq!(quote(&"\u{e9}".repeat(100)).chars().count(), QUOTE_CHARS_MAX + 3);
    }
}
