// SPDX-License-Identifier: Apache-2.0 OR MIT
//! I/O that does not complete when a run is told to stop: its device is away, or does not answer.
//!
//! Guarantees: a device has [`PATIENCE`] to complete what is in flight. Then its driver gives up late requests, as far as it can
//! ([`DevicePath::set_give_up`](crate::driver::DevicePath::set_give_up)). It does so repeatedly, because requests that waited in the
//! block layer reach it later. A driver may be unable to give up a request because a library has its memory (librbd for a read). After
//! [`LAST`] more, such a request is left out: the job threads end without it, and its memory stays mapped until the process ends.
//! Needs from callers: [`GiveUp::look`] every few milliseconds. Does not: leave out the I/O of a driver that gives nothing up, such as a
//! file. Such I/O completes, or the kernel holds the thread anyway.

use crate::disk::Disk;
use blk::id::HctxId;
use blk::time::{Duration, Instant};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How long the I/O of a run that is told to stop may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long giving up I/O may take. It takes at least one second, because a driver gives up only requests that are that old.
const LAST: Duration = Duration::from_secs(3);
/// How often what has come meanwhile is given up.
const AGAIN: Duration = Duration::from_ms(50);

/// A disk whose I/O did not end when its run was told to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenUp {
    /// The target as the user named it.
    pub disk: String,
    /// I/Os that were out when giving them up began.
    pub ios: u64,
    /// Those of them that the driver could not give up.
    pub left: u64,
}

impl fmt::Display for GivenUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GivenUp { disk, ios, left } = self;
        let seconds = PATIENCE.as_ns() / 1_000_000_000;
        write!(
            f,
            "{disk} had not completed {ios} I/Os {seconds} s after the request to stop the run: they were given up; \
             their writes may still reach the disk"
        )?;
        match left {
            0 => Ok(()),
            n => write!(f, "; {n} of the I/Os are still in flight"),
        }
    }
}

/// What is done about it, and when.
pub(super) struct GiveUp<'a> {
    disks: &'a [(String, Arc<Disk>)],
    stopped: Option<Instant>,
    next: Instant,
    given_up: Vec<GivenUp>,
}

impl<'a> GiveUp<'a> {
    pub(super) fn new(disks: &'a [(String, Arc<Disk>)]) -> GiveUp<'a> {
        GiveUp { disks, stopped: None, next: Instant::ZERO, given_up: Vec::new() }
    }

    /// Checks a run that was told to stop and still has threads.
    pub(super) fn look(&mut self, now: Instant) {
        let waited = now.since(*self.stopped.get_or_insert(now));
        if waited < PATIENCE || now < self.next {
            return;
        }
        self.next = now + AGAIN;
        for (name, disk) in self.disks {
            let ios = disk.queue.stats().in_flight;
            if ios == 0 || !disk.driver.path().set_give_up(true) {
                continue;
            }
            let known = self.given_up.iter().position(|g| g.disk == *name);
            let at = known.unwrap_or_else(|| {
                self.given_up.push(GivenUp { disk: name.clone(), ios, left: 0 });
                self.given_up.len() - 1
            });
            if waited >= PATIENCE + LAST {
                self.given_up[at].left = ios;
                // Relaxed: the wake-up orders it, and a thread that misses it is woken again.
                disk.leave.store(true, Ordering::Relaxed);
                (0..disk.queue.hctx_stats().len()).for_each(|i| disk.driver.wake(HctxId::new(i as u32)));
            }
        }
    }

    /// What was given up.
    pub(super) fn ends(self) -> Vec<GivenUp> {
        self.given_up
    }
}
