// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Programs that a step calls and needs the success of.
//!
//! Guarantees: none of them reads our standard input; an error has the command, how it ended, and what it said.

use std::process::{Command, Stdio};

/// Runs a command without showing what it prints.
///
/// # Errors
/// It cannot be started or fails.
pub fn run(command: &mut Command) -> Result<(), String> {
    output(command).map(|_| ())
}

/// What a command prints, if it succeeds.
///
/// # Errors
/// As [`run`].
pub fn output(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|e| format!("cannot run {command:?}: {e}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?}: {}: {}", output.status, said.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
