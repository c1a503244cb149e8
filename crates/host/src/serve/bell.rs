// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waking an IOThread.
//!
//! Guarantees: a ring that comes before the thread sleeps keeps it from sleeping, one that comes while it sleeps wakes it.
//! Whoever rings has put what it rings for where the thread looks. A ring for a thread that is awake costs one locked
//! instruction. The same protocol as [`WakeTable`](crate::disk::WakeTable), with a descriptor instead of a driver.

use crate::error::Result;
use crate::event;
use crate::sync::{AtomicU32, Ordering};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

const AWAKE: u32 = 0;
/// Rung since it last looked.
const RUNG: u32 = 1;
const ASLEEP: u32 = 2;

/// Most IOThreads of a daemon.
pub(super) const MAX_BELLS: usize = 4096;

/// The bells of IOThreads by number. One that was made stays, also when its thread goes.
pub(super) struct Bells(Box<[OnceLock<Bell>]>);

impl Bells {
    pub(super) fn new() -> Bells {
        Bells((0..MAX_BELLS).map(|_| OnceLock::new()).collect())
    }

    /// Makes sure that there is one.
    pub(super) fn make(&self, thread: u16) -> Result<()> {
        let place = &self.0[usize::from(thread)];
        if place.get().is_none() {
            let bell = Bell::new()?;
            let _ = place.set(bell);
        }
        Ok(())
    }

    pub(super) fn get(&self, thread: u16) -> &Bell {
        self.0[usize::from(thread)].get().expect("an IOThread has a bell")
    }

    /// Rings for a thread; one that has gone does not hear it.
    pub(super) fn ring(&self, thread: u16) {
        self.get(thread).ring();
    }
}

pub(super) struct Bell {
    state: AtomicU32,
    fd: OwnedFd,
}

impl Bell {
    pub(super) fn new() -> Result<Bell> {
        Ok(Bell { state: AtomicU32::new(AWAKE), fd: event::new()? })
    }

    /// Wakes the thread, or keeps it awake for one more round.
    pub(super) fn ring(&self) {
        // It always writes: a load could be answered from before the thread looked last. Pairs with: Bell::doze
        if self.state.swap(RUNG, Ordering::AcqRel) == ASLEEP {
            event::signal(&self.fd);
        }
    }

    /// The thread is going to sleep on [`Bell::fd`]: says so, unless it was rung. False: look again first.
    pub(super) fn doze(&self) -> bool {
        // Pairs with: Bell::ring
        let dozes = self.state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if !dozes {
            self.wake_up();
        }
        dozes
    }

    /// The thread is awake and will look at everything.
    pub(super) fn wake_up(&self) {
        // Pairs with: Bell::ring
        self.state.swap(AWAKE, Ordering::AcqRel);
    }

    /// The descriptor was readable. A ring may write it late, so it is emptied whenever that is seen, not when it was rung.
    pub(super) fn drain(&self) {
        event::drain(&self.fd);
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
