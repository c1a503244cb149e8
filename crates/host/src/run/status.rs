// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The measurements of a run in progress, on request.
//!
//! Guarantees: a thread answers with a copy of its measurements at its next look-around, a few milliseconds later, and a waiting thread
//! within the time of its waits. The copies of several threads are that far apart. A thread that does not answer for
//! [`PATIENCE`] is reported as it last answered.

use super::checkpoint::ThreadEnd;
use super::watch::Watched;
use super::{Progress, RunOutcome};
use blk::time::{Duration, Instant};
use std::sync::atomic::Ordering;

/// How long the watcher waits for the answers of threads.
const PATIENCE: Duration = Duration::from_secs(2);

/// Observes a run in progress.
pub trait Observe {
    /// Called every few milliseconds.
    fn progress(&mut self, progress: &Progress);

    /// Whether [`Observe::status`] is to be called soon. Asked after each progress; a new request is ignored while one is open.
    fn wants_status(&mut self) -> bool {
        false
    }

    /// The measurements so far, for a request. Those of a thread that has not started are empty.
    fn status(&mut self, _so_far: RunOutcome) {}
}

/// An observer that only wants to know of the progress.
pub(super) struct OnlyProgress<'a>(pub(super) &'a mut dyn FnMut(&Progress));

impl Observe for OnlyProgress<'_> {
    fn progress(&mut self, progress: &Progress) {
        (self.0)(progress);
    }
}

/// The watcher's request, if one is open.
#[derive(Default)]
pub(super) struct Request {
    since: Option<Instant>,
}

impl Request {
    /// Opens a request if the observer wants one. Returns whether the open one is answered.
    pub(super) fn is_answered(&mut self, now: Instant, threads: &[Watched], observe: &mut dyn Observe) -> bool {
        let running = || threads.iter().filter(|t| t.started.is_some() && !t.live.done.load(Ordering::Relaxed));
        match self.since {
            None if observe.wants_status() => {
                running().for_each(|t| t.live.answer.ask());
                self.since = Some(now);
                false
            }
            None => false,
            Some(since) => {
                let answered = running().all(|t| t.live.answer.is_given()) || now.since(since) > PATIENCE;
                if answered {
                    self.since = None;
                }
                answered
            }
        }
    }
}

/// What each thread has measured: at its end, or as it answered last. One that has not started has measured nothing.
pub(super) fn so_far(ends: &[Option<ThreadEnd>], threads: &[Watched]) -> Vec<Option<ThreadEnd>> {
    let of = |(end, watched): (&Option<ThreadEnd>, &Watched)| {
        let stats = match end {
            Some(end) => end.stats.clone(),
            None => watched.live.answer.last(),
        };
        Some(ThreadEnd { stats, verify_errors: Vec::new(), traces: Vec::new(), verify_state: None, not_dumped: None })
    };
    ends.iter().zip(threads).map(of).collect()
}
