// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a multipath disk does around its I/O, so that no thread sleeps although its event has already happened.
//!
//! Guarantees: a thread that sleeps at a hardware queue is woken by the completions of any path. A path without a descriptor wakes it at
//! the time of its next completion. A path that reports something without a request in flight is read, so that it does not wake threads
//! again and again.

use crate::clock;
use crate::driver::multipath::disk::{Core, Watched};
use blk::id::HctxId;
use blk::multipath::PathStatus;
use blk::time::{Duration, Instant};
use std::sync::Arc;

/// Longest sleep: the core may have requests that wait for a time.
const LOOK: Duration = Duration::from_ms(100);
/// Consecutive sleeps, or polls, without a result after which idle paths are read.
const SLEEPS_IN_VAIN: u32 = 4;
const POLLS_IN_VAIN: u32 = 256;

impl Core {
    /// Calls `look` for each path of a mask, also for those that are being removed. A path that is just being added may be missing, so
    /// no sleep may depend on it for longer than `LOOK`.
    fn of_mask(&self, mask: u64, mut look: impl FnMut(&Watched)) {
        if mask != 0 {
            self.paths.each(|p| {
                if mask >> p.id.index() & 1 == 1 {
                    look(p);
                }
            });
        }
    }

    /// Returns the paths with their status, without those that are being removed.
    pub(super) fn by_status(&self) -> Vec<(Arc<Watched>, PathStatus)> {
        let status = self.disk.status();
        let present = self.paths.present();
        let of = |s: PathStatus| Some((Arc::clone(present.iter().find(|p| p.id == s.id)?), s));
        status.groups.into_iter().flat_map(|g| g.paths).filter_map(of).collect()
    }

    pub(super) fn next_due(&self, hctx: HctxId) -> Option<Instant> {
        if self.disk.is_ready(hctx) {
            return Some(Instant::ZERO);
        }
        let mut first: Option<Instant> = None;
        self.of_mask(self.disk.busy_paths(hctx), |p| {
            let due = p.driver.next_due(hctx);
            first = first.into_iter().chain(due).min();
        });
        first
    }

    /// See [`HostDriver::wait_since`](crate::driver::host_driver::HostDriver::wait_since).
    pub(super) fn wait(&self, seen: u64, hctx: HctxId, timeout: Option<Duration>) {
        let waits = self.hctx_waits.get(hctx);
        let limit = || {
            let is_idle = self.disk.busy_paths(hctx) == 0;
            let due = self.next_due(hctx).map(|due| due.since(clock::now()));
            if due.is_some() {
                clock::sleep_precisely();
            }
            (!is_idle || timeout.is_some())
                .then(|| due.into_iter().chain(timeout).fold(LOOK.max(timeout.unwrap_or(LOOK)), Duration::min))
        };
        waits.sleep(seen, || self.disk.is_ready(hctx), limit);
        if waits.in_vain(SLEEPS_IN_VAIN) {
            self.attend_idle(hctx);
        }
    }

    /// Called after requests were queued.
    #[inline]
    pub(super) fn queued(&self, hctx: HctxId) {
        let waits = self.hctx_waits.get(hctx);
        if waits.is_stirred() || self.disk.is_ready(hctx) {
            self.tell_of_timed(hctx);
        }
    }

    /// Wakes sleepers if there is an event that no descriptor signals.
    #[cold]
    fn tell_of_timed(&self, hctx: HctxId) {
        let mut is_timed = false;
        self.of_mask(self.disk.busy_paths(hctx), |p| {
            is_timed |= !p.driver.has_fd(hctx) && p.driver.next_due(hctx).is_some();
        });
        if self.disk.is_ready(hctx) || is_timed {
            self.hctx_waits.get(hctx).tell();
        }
    }

    /// Called after a poll that returned `given` completions.
    #[inline]
    pub(super) fn polled(&self, hctx: HctxId, given: usize) {
        let waits = self.hctx_waits.get(hctx);
        if given > 0 {
            waits.not_in_vain();
        } else if waits.in_vain(POLLS_IN_VAIN) {
            self.attend_idle(hctx);
        }
        if waits.is_stirred() {
            waits.polled(self.disk.is_ready(hctx), self.disk.busy_paths(hctx) == 0);
        }
    }

    /// Reads paths without requests in flight, because they are not polled.
    #[cold]
    fn attend_idle(&self, hctx: HctxId) {
        self.of_mask(!self.disk.busy_paths(hctx), |p| p.driver.attend(hctx));
    }
}
