// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How the program ends: the exit status, a failure's message, and settings of kernel devices put back.

use crate::output;
use crate::status::{Outcome, Status};
use std::io::Write;
use std::process::ExitCode;

const EXIT_FOUND: u8 = 1;
const EXIT_FAILURE: u8 = 2;
/// 128 + SIGINT, as shells report a process that a signal ended.
const EXIT_INTERRUPTED: u8 = 130;

/// The end of the program. An interrupted run may have left I/O behind, and threads of libraries that have it: none of
/// their code runs any more.
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

/// Ends the process at once, as an interrupted one; settings of kernel devices are put back first.
pub fn exit_interrupted() -> ! {
    put_back();
    signal_hook::low_level::exit(i32::from(EXIT_INTERRUPTED))
}

/// Puts back the settings of kernel devices that this process has changed; what cannot be put back is reported.
fn put_back() {
    for problem in host::kernel::put_back_all() {
        output::tell(&format!("mqblk: {problem}"));
    }
}

/// The exit status of an outcome; a failure is told on standard error.
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
