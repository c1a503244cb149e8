// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a thread waits that has I/O at several devices: for the first of them that has something.
//!
//! Guarantees: a completion, a notification and a due time of any of them ends the wait. Where the driver has a descriptor, the
//! wait ends at once. Elsewhere it ends when the first request is due, or 100 us later. No thread waits longer than
//! [`STOP_CHECK`]. Needs from callers: a poll of all paths after each wait. Does not do: spin.

use super::waiter::STOP_CHECK;
use crate::clock;
use crate::disk::Disk;
use crate::disk::IoPath;
use crate::readable::poll_fds;
use blk::id::{HctxId, SubmitterId};
use blk::time::Duration;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How often a thread that cannot be notified polls.
const BLIND: Duration = Duration::from_us(100);

/// A device, the thread's submitter there, and where its completions appear.
struct WaitPoint {
    disk: Arc<Disk>,
    submitter: SubmitterId,
    hctxs: Vec<HctxId>,
}

/// See the module's text.
#[derive(Default)]
pub(super) struct WaitSet {
    /// Of each I/O path, in their order.
    all: Vec<Vec<WaitPoint>>,
    /// What the settings were when the descriptors were collected; `None`: they were not.
    generation: Option<u64>,
    fds: Vec<libc::pollfd>,
    /// Of each I/O path: some hardware queue has no descriptor. Then another thread may take a completion there, and
    /// cannot notify one that sleeps on descriptors.
    blind: Vec<bool>,
    /// Scratch: wake-ups at each point before the wait.
    seen: Vec<u64>,
}

impl WaitSet {
    /// Of another I/O path, which leads to these disks in this order.
    pub(super) fn add(&mut self, disks: impl Iterator<Item = Arc<Disk>>, io_path: &IoPath) {
        let of = |(disk, submitter)| WaitPoint { disk, submitter, hctxs: Vec::new() };
        self.all.push(disks.zip(io_path.submitter_ids()).map(of).collect());
    }

    /// Whether something is out at a device that cannot end it, in a run that is told to stop.
    pub(super) fn has_left(&self, io_paths: &[IoPath]) -> bool {
        let submitters = io_paths.iter().flat_map(IoPath::submitters);
        let mut all = self.all.iter().flatten().zip(submitters);
        all.any(|(p, sub)| p.disk.leave.load(Ordering::Relaxed) && sub.outstanding() > 0)
    }

    /// Finds the hardware queues again after settings have changed.
    fn follow(&mut self, io_paths: &[IoPath]) {
        let generation = io_paths.iter().fold(0, |sum: u64, i| sum.wrapping_add(i.state_generation()));
        if self.generation == Some(generation) {
            return;
        }
        self.generation = Some(generation);
        self.fds.clear();
        self.blind.clear();
        for (points, io_path) in self.all.iter_mut().zip(io_paths) {
            let mut blind = false;
            points.iter_mut().for_each(|p| p.hctxs.clear());
            for (member, hctx) in io_path.hctxs() {
                let point = &mut points[member];
                point.hctxs.push(hctx);
                match point.disk.driver.ring_fd(hctx) {
                    Some(fd) => self.fds.push(libc::pollfd { fd, events: libc::POLLIN, revents: 0 }),
                    None => blind = true,
                }
            }
            self.blind.push(blind);
        }
    }

    /// Waits until something may have ended, at most for `timeout`.
    pub(super) fn wait(&mut self, io_paths: &mut [IoPath], timeout: Option<Duration>) {
        io_paths.iter_mut().for_each(IoPath::rest);
        self.follow(io_paths);
        let now = clock::now();
        let due_in = |p: &WaitPoint| {
            let due = p.hctxs.iter().filter_map(|h| p.disk.driver.next_due(*h)).min();
            due.into_iter().chain(p.disk.queue.next_timer()).min().map(|t| t.since(now))
        };
        let due = self.all.iter().flatten().filter_map(due_in).min();
        let blind = io_paths.iter().zip(&self.blind).any(|(i, blind)| *blind && i.outstanding() > 0).then_some(BLIND);
        let timeout = timeout.into_iter().chain(due).chain(blind).fold(STOP_CHECK, Duration::min);
        // All are registered before the first check, so that no notification is missed.
        self.seen.clear();
        let mut quiet = true;
        for p in self.all.iter().flatten() {
            let seen = p.disk.waker.begin(p.submitter, p.hctxs[0]);
            quiet &= seen.is_some();
            self.seen.push(seen.unwrap_or_default());
        }
        let mut all = self.all.iter().flatten().zip(&self.seen);
        quiet &= all.all(|(p, seen)| p.disk.driver.wakes(p.hctxs[0]) == *seen);
        if quiet && timeout > Duration::ZERO {
            poll_fds(&mut self.fds, timeout);
        }
        self.all.iter().flatten().for_each(|p| p.disk.waker.end(p.submitter));
    }
}
