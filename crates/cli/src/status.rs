// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How the program ends: the exit status, and the one message of a failure.

use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

/// A request that was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done; nothing was found.
    Done,
    /// A difference between two sides, an I/O error or bad data was found.
    Found,
    /// A signal broke it off; what was there until then has been reported.
    Interrupted,
}

/// A request that could not be carried out, as one message: rule, value, remedy.
#[derive(Debug)]
pub struct Failure {
    message: String,
    status: u8,
}

impl Failure {
    /// A usage or operating error.
    pub fn new(message: impl Display) -> Failure {
        Failure { message: message.to_string(), status: EXIT_FAILURE }
    }

    /// The user broke it off before there was anything to report.
    pub fn interrupted(message: impl Display) -> Failure {
        Failure { message: message.to_string(), status: EXIT_INTERRUPTED }
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

/// What a subcommand comes to.
pub type Outcome = Result<Status, Failure>;

const EXIT_FOUND: u8 = 1;
const EXIT_FAILURE: u8 = 2;
/// 128 + SIGINT, as shells report a process that a signal ended.
pub const EXIT_INTERRUPTED: u8 = 130;

/// The end of the program. What was broken off may have left I/O behind, and threads of libraries that have it: nothing of theirs is
/// run any more.
pub fn end(outcome: Outcome) -> ExitCode {
    let is_interrupted = matches!(outcome, Ok(Status::Interrupted));
    let code = exit_code(outcome);
    if is_interrupted {
        crate::restore::before_exit();
        // All that was to be said has been, or cannot be.
        let _ = std::io::stdout().flush();
        signal_hook::low_level::exit(i32::from(EXIT_INTERRUPTED));
    }
    code
}

/// The exit status of an outcome; a failure is told on standard error.
fn exit_code(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(Status::Done) => ExitCode::SUCCESS,
        Ok(Status::Found) => ExitCode::from(EXIT_FOUND),
        Ok(Status::Interrupted) => ExitCode::from(EXIT_INTERRUPTED),
        Err(failure) => {
            for line in failure.message.lines() {
                crate::output::tell(&format!("mqblk: {line}"));
            }
            ExitCode::from(failure.status)
        }
    }
}
