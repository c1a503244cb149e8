// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stops servers without closing their connections.

use crate::waiting::until;
use std::fs;
use std::process::Command;

/// Sends a process a signal.
#[track_caller]
pub fn signal(pid: u32, what: &str) {
    let done = Command::new("kill").args([what, &pid.to_string()]).status().unwrap();
    assert!(done.success(), "kill {what} {pid}: {done}");
}

/// Stops a process, and returns when it is stopped. Just after the signal, its threads might still answer one more request.
#[track_caller]
pub fn stop(pid: u32) {
    signal(pid, "-STOP");
    until(&format!("process {pid} stops"), || stands_still(pid));
}

/// Whether all of its threads are stopped, from the state in proc_pid_stat(5), which follows the name.
fn stands_still(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    threads.map(|thread| fs::read_to_string(thread.unwrap().path().join("stat")).unwrap_or_default()).all(|stat| {
        let behind = stat.rsplit_once(") ").map(|(_, rest)| rest);
        behind.is_some_and(|rest| rest.starts_with('T'))
    })
}
