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

/// Where completions of one I/O path appear.
struct WaitPath {
    points: Vec<WaitPoint>,
    /// What the settings were when the descriptors were collected; `None`: they were not.
    generation: Option<u64>,
    fds: Vec<libc::pollfd>,
    /// Some hardware queue has no descriptor. Then another thread may take a completion there, and cannot notify one that
    /// sleeps on descriptors.
    is_blind: bool,
}

/// See the module's text.
#[derive(Default)]
pub(super) struct WaitSet {
    /// Of each I/O path, in their order.
    all: Vec<WaitPath>,
    /// Scratch: descriptors of the paths of a wait.
    fds: Vec<libc::pollfd>,
    /// Scratch: wake-ups at each point before the wait.
    seen: Vec<u64>,
}

impl WaitPath {
    /// Finds the hardware queues again after settings have changed.
    fn follow(&mut self, io_path: &IoPath) {
        let generation = io_path.state_generation();
        if self.generation == Some(generation) {
            return;
        }
        self.generation = Some(generation);
        self.fds.clear();
        self.is_blind = false;
        self.points.iter_mut().for_each(|p| p.hctxs.clear());
        for (member, hctx) in io_path.hctxs() {
            let point = &mut self.points[member];
            point.hctxs.push(hctx);
            match point.disk.driver.ring_fd(hctx) {
                Some(fd) => self.fds.push(libc::pollfd { fd, events: libc::POLLIN, revents: 0 }),
                None => self.is_blind = true,
            }
        }
    }
}

impl WaitSet {
    /// Of another I/O path, which leads to these disks in this order.
    pub(super) fn add(&mut self, disks: impl Iterator<Item = Arc<Disk>>, io_path: &IoPath) {
        let of = |(disk, submitter)| WaitPoint { disk, submitter, hctxs: Vec::new() };
        let points = disks.zip(io_path.submitter_ids()).map(of).collect();
        self.all.push(WaitPath { points, generation: None, fds: Vec::new(), is_blind: false });
    }

    /// Whether something is out at a device that cannot end it, in a run that is told to stop. `active`: the paths with I/O out.
    pub(super) fn has_left(&self, io_paths: &[IoPath], active: &[usize]) -> bool {
        let has_left = |&path: &usize| {
            let mut points = self.all[path].points.iter().zip(io_paths[path].submitters());
            points.any(|(p, sub)| p.disk.leave.load(Ordering::Relaxed) && sub.outstanding() > 0)
        };
        active.iter().any(has_left)
    }

    /// Waits until something may have ended at the paths `active`, which are all that have I/O out, at most for `timeout`.
    pub(super) fn wait(&mut self, io_paths: &mut [IoPath], active: &[usize], timeout: Option<Duration>) {
        self.fds.clear();
        let mut is_blind = false;
        for &path in active {
            io_paths[path].rest();
            self.all[path].follow(&io_paths[path]);
            self.fds.extend(&self.all[path].fds);
            is_blind |= self.all[path].is_blind;
        }
        let now = clock::now();
        let due_in = |p: &WaitPoint| {
            let due = p.hctxs.iter().filter_map(|h| p.disk.driver.next_due(*h)).min();
            due.into_iter().chain(p.disk.queue.next_timer()).min().map(|t| t.since(now))
        };
        let points = || active.iter().flat_map(|&path| &self.all[path].points);
        let due = points().filter_map(due_in).min();
        let blind = is_blind.then_some(BLIND);
        let timeout = timeout.into_iter().chain(due).chain(blind).fold(STOP_CHECK, Duration::min);
        // All are registered before the first check, so that no notification is missed.
        self.seen.clear();
        let mut quiet = true;
        for p in points() {
            let seen = p.disk.waker.begin(p.submitter, p.hctxs[0]);
            quiet &= seen.is_some();
            self.seen.push(seen.unwrap_or_default());
        }
        quiet &= points().zip(&self.seen).all(|(p, seen)| p.disk.driver.wakes(p.hctxs[0]) == *seen);
        if quiet && timeout > Duration::ZERO {
            poll_fds(&mut self.fds, timeout);
        }
        points().for_each(|p| p.disk.waker.end(p.submitter));
    }
}
