// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a job thread leaves a copy of its measurements when the watcher of the run asks for it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use workload::stats::JobStats;

/// Where a thread answers.
#[derive(Debug, Default)]
pub(super) struct Answer {
    wanted: AtomicBool,
    stats: Mutex<Option<Box<JobStats>>>,
}

impl Answer {
    /// Asks the job thread. Called by the watcher.
    pub(super) fn ask(&self) {
        self.wanted.store(true, Ordering::Relaxed);
    }

    /// Answers, if that is wanted. Called by the job thread.
    #[inline]
    pub(super) fn give(&self, stats: impl FnOnce() -> JobStats) {
        if self.wanted.load(Ordering::Relaxed) {
            *self.stats.lock().expect("no thread panics with it") = Some(Box::new(stats()));
            // Pairs with: Answer::is_given
            self.wanted.store(false, Ordering::Release);
        }
    }

    /// Whether nothing is wanted, or was since given.
    pub(super) fn is_given(&self) -> bool {
        // Pairs with: Answer::give
        !self.wanted.load(Ordering::Acquire)
    }

    /// The last answer; empty before the first.
    pub(super) fn last(&self) -> JobStats {
        self.stats.lock().expect("no thread panics with it").as_deref().cloned().unwrap_or_default()
    }
}
