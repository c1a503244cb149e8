// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Calls programs that must succeed for a step to continue.
//!
//! Guarantees: no program reads our standard input. An error contains the command, its exit status and its error output.

use std::process::{Command, Stdio};

/// Runs a command without showing what it prints.
///
/// # Errors
/// The command cannot be started or fails.
pub fn run(command: &mut Command) -> Result<(), String> {
    output(command).map(|_| ())
}

/// Runs a command. Returns what it prints, if it succeeds.
///
/// # Errors
/// The errors of [`run`].
pub fn output(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|e| format!("cannot run {command:?}: {e}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?}: {}: {}", output.status, said.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
