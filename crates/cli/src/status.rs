// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The outcome of a subcommand: a status, or the one message of a failure.

use host::secrets::without_secrets;
use std::fmt::Display;

/// A request that was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done; nothing was found.
    Done,
    /// An I/O error, bad data, or a difference that was asked for by `--exit-code` was found.
    Found,
    /// A signal interrupted the request; results up to then have been reported.
    Interrupted,
}

/// A request that could not be carried out, as one message: rule, value, remedy. The message has no password or key of a target.
#[derive(Debug)]
pub struct Failure {
    message: String,
    is_interrupted: bool,
}

impl Failure {
    /// A usage or operating error.
    pub fn new(message: impl Display) -> Failure {
        Failure { message: without_secrets(&message.to_string()), is_interrupted: false }
    }

    /// Makes a failure of a request that the user interrupted.
    pub fn interrupted(message: impl Display) -> Failure {
        Failure { message: without_secrets(&message.to_string()), is_interrupted: true }
    }

    /// Whether the user interrupted the request.
    pub fn is_interrupted(&self) -> bool {
        self.is_interrupted
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<host::error::Error> for Failure {
    fn from(e: host::error::Error) -> Failure {
        match e.kind() {
            host::error::ErrorKind::Interrupted => Failure::interrupted(e),
            _ => Failure::new(e),
        }
    }
}

/// The outcome of a subcommand.
pub type Outcome = Result<Status, Failure>;
