// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs tests that change or count process-wide state (environment, working directory, descriptors), or end the process, in a separate
//! process each.

use std::process::{Command, Output};

/// Environment variable that is set in a process with only one test.
const INSIDE: &str = "MQBLK_TEST_OWN_PROCESS";

/// Runs the calling test (`name` with its modules) in a new process with `environment` set; `None`: this is that process.
pub fn in_own_process(name: &str, environment: &[(&str, &str)]) -> Option<Output> {
    if std::env::var_os(INSIDE).is_some() {
        return None;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name]).env(INSIDE, "1").envs(environment.iter().copied());
    Some(command.output().unwrap())
}

/// Returns true if the calling test (`name` with its modules) is alone in this process. If not, runs the test in a new process with
/// `environment` set and passes on its failure.
pub fn is_alone(name: &str, environment: &[(&str, &str)]) -> bool {
    let Some(out) = in_own_process(name, environment) else { return true };
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&out.stderr));
    false
}
