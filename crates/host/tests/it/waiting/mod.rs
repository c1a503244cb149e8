// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waits in tests for conditions that become true by themselves.

use std::time::{Duration, Instant};

/// Returns once the condition holds. The limit is a minute.
#[track_caller]
pub fn until(mut what: impl FnMut() -> bool) {
    let began = Instant::now();
    while !what() {
        assert!(began.elapsed() < Duration::from_secs(60), "it does not come to it");
        std::thread::yield_now();
    }
}
