// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waits in tests for conditions that become true by themselves. They sleep between two checks, so other tests have the CPUs.

use std::time::{Duration, Instant};

/// The limit of a wait. It is generous, because a busy machine makes tests slow.
pub const LONG: Duration = Duration::from_secs(300);
/// The time between two checks of a condition.
pub const POLL: Duration = Duration::from_millis(1);

/// Returns once the condition `what` holds. Panics if it does not within [`LONG`].
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LONG, "not within {LONG:?}: {what}");
        std::thread::sleep(POLL);
    }
}
