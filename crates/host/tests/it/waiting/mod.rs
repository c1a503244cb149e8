// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waiting in tests for what comes by itself.

use std::time::{Duration, Instant};

/// Comes back once it is so; a minute is the limit.
#[track_caller]
pub fn until(mut what: impl FnMut() -> bool) {
    let began = Instant::now();
    while !what() {
        assert!(began.elapsed() < Duration::from_secs(60), "it does not come to it");
        std::thread::yield_now();
    }
}
