// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waits in tests for conditions that become true by themselves. They sleep between two checks, so programs and other tests have the CPUs.
#![allow(dead_code, reason = "each test program uses its part")]

use std::time::{Duration, Instant};

/// The limit of a wait. It is generous, because a busy machine makes tests slow.
pub const LONG: Duration = Duration::from_secs(300);
/// The time between two checks of a condition.
pub const POLL: Duration = Duration::from_millis(1);
/// As [`POLL`], for checks that start a program.
pub const PROGRAM_POLL: Duration = Duration::from_millis(50);

/// Returns once the condition `what` holds. Panics if it does not within [`LONG`].
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LONG, "not within {LONG:?}: {what}");
        std::thread::sleep(POLL);
    }
}

/// As [`until`], for a check that starts a program.
#[track_caller]
pub fn until_reported(what: &str, mut holds: impl FnMut() -> bool) {
    until(what, || {
        let is_so = holds();
        if !is_so {
            std::thread::sleep(PROGRAM_POLL);
        }
        is_so
    });
}
