// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An error in a file from which a profile was to be made.

use thiserror::Error;

/// The file, the place in the file, the broken rule with the value, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{file}{place}: {text}")]
pub struct ProfileError {
    /// The file.
    pub file: String,
    /// `:7` for a line, ` at byte 96` for a record; empty for the whole file.
    pub place: String,
    /// The rule, the value, and what to do.
    pub text: String,
}

impl ProfileError {
    /// An error of a whole file.
    pub fn new(file: &str, text: impl Into<String>) -> ProfileError {
        // The text contains words from the file, which must not move a terminal's cursor.
        let text = text.into().replace(char::is_control, "?");
        ProfileError { file: file.into(), place: String::new(), text }
    }

    /// An error in a line, counted from 1.
    pub fn line(file: &str, line: usize, text: impl Into<String>) -> ProfileError {
        ProfileError { place: format!(":{line}"), ..ProfileError::new(file, text) }
    }

    /// An error at a byte.
    pub fn byte(file: &str, byte: u64, text: impl Into<String>) -> ProfileError {
        ProfileError { place: format!(" at byte {byte}"), ..ProfileError::new(file, text) }
    }
}
