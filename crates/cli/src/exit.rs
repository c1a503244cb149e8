// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The end of the program: the exit status, the message of a failure, and the restored settings of kernel devices.

use crate::output;
use crate::status::{Outcome, Status};
use std::io::Write;
use std::process::ExitCode;

const EXIT_FOUND: u8 = 1;
const EXIT_FAILURE: u8 = 2;
/// 128 + SIGINT, as shells report a process that a signal ended.
const EXIT_INTERRUPTED: u8 = 130;

/// Returns the exit code of an outcome. After an interrupted run it exits at once instead: library threads may still
/// have I/O in flight, and none of their code must run any more.
pub fn end(outcome: Outcome) -> ExitCode {
    let is_interrupted = matches!(outcome, Ok(Status::Interrupted));
    let code = exit_code(outcome);
    if is_interrupted {
        put_back();
        // The output is complete, or cannot be written.
        let _ = std::io::stdout().flush();
        signal_hook::low_level::exit(i32::from(EXIT_INTERRUPTED));
    }
    code
}

/// Restores settings of kernel devices, then exits with status 130.
pub fn exit_interrupted() -> ! {
    put_back();
    signal_hook::low_level::exit(i32::from(EXIT_INTERRUPTED))
}

/// Restores the settings of kernel devices that this process has changed. Reports those that it cannot restore.
fn put_back() {
    for problem in host::kernel::put_back_all() {
        output::tell(&format!("mqblk: {problem}"));
    }
}

/// Returns the exit status of an outcome; prints a failure on standard error.
fn exit_code(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(Status::Done) => ExitCode::SUCCESS,
        Ok(Status::Found) => ExitCode::from(EXIT_FOUND),
        Ok(Status::Interrupted) => ExitCode::from(EXIT_INTERRUPTED),
        Err(failure) => {
            for line in failure.to_string().lines() {
                output::tell(&format!("mqblk: {line}"));
            }
            ExitCode::from(if failure.is_interrupted() { EXIT_INTERRUPTED } else { EXIT_FAILURE })
        }
    }
}
