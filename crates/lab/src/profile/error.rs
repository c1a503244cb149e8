// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is wrong with a file that a profile was to be made of.

use thiserror::Error;

/// The file, the place in it, the rule with the value, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{file}{place}: {text}")]
pub struct ProfileError {
    /// The file.
    pub file: String,
    /// `:7` for a line, ` at byte 96` for a record; empty for the whole.
    pub place: String,
    /// The rest.
    pub text: String,
}

impl ProfileError {
    /// Of a whole file.
    pub fn new(file: &str, text: impl Into<String>) -> ProfileError {
        ProfileError { file: file.into(), place: String::new(), text: text.into() }
    }

    /// Of a line, from 1.
    pub fn line(file: &str, line: usize, text: impl Into<String>) -> ProfileError {
        ProfileError { place: format!(":{line}"), ..ProfileError::new(file, text) }
    }

    /// Of a byte.
    pub fn byte(file: &str, byte: u64, text: impl Into<String>) -> ProfileError {
        ProfileError { place: format!(" at byte {byte}"), ..ProfileError::new(file, text) }
    }
}
