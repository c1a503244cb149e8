// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When a run prints its results so far: every `--status-interval`, and at each SIGUSR1.
//!
//! As with fio, a status has the form of the final results, in each requested format. The intervals count from the start of the run, and
//! a status that is late moves no later one.

use crate::status::Failure;
use signal_hook::consts::SIGUSR1;
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// See the module's text.
pub struct StatusTimes {
    interval: Option<Duration>,
    next: Instant,
    signalled: Arc<AtomicBool>,
}

impl StatusTimes {
    /// Begins the first interval, and catches SIGUSR1.
    pub fn start(interval: Option<Duration>) -> Result<StatusTimes, Failure> {
        let signalled = Arc::new(AtomicBool::new(false));
        flag::register(SIGUSR1, Arc::clone(&signalled))
            .map_err(|e| Failure::new(format!("cannot catch signal {SIGUSR1}: {e}")))?;
        Ok(StatusTimes { interval, next: Instant::now() + interval.unwrap_or_default(), signalled })
    }

    /// The run begins only now; preparing it took its time.
    pub fn restart(&mut self) {
        self.next = Instant::now() + self.interval.unwrap_or_default();
    }

    /// Whether a status is due; true once for each.
    pub fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let mut due = self.signalled.swap(false, Ordering::Relaxed);
        if let Some(interval) = self.interval.filter(|_| now >= self.next) {
            due = true;
            while self.next <= now {
                self.next += interval;
            }
        }
        due
    }
}
