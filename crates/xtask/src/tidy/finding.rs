// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A violation of a rule: file, line, what is wrong and what to do.

use std::fmt;

/// A violation of a rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// The file, relative to the workspace.
    pub path: String,
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong and what to do.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { path, line, message } = self;
        write!(f, "{path}:{line}: {message}")
    }
}

impl Finding {
    /// Makes a finding. `line` counts from 1; the message says what is wrong and what to do.
    pub fn new(path: &str, line: usize, message: impl Into<String>) -> Finding {
        Finding { path: path.to_owned(), line, message: message.into() }
    }
}
