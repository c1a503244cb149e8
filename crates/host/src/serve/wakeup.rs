// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waking an IOThread.
//!
//! Guarantees: a wake-up before the thread sleeps keeps it from sleeping; a wake-up while it sleeps ends the sleep. A wake-up of a thread
//! that is awake costs one locked instruction. Needs from callers: they store the work where the thread will look for it, then wake the
//! thread. The same protocol as [`WakeTable`](crate::disk::WakeTable), with a descriptor instead of a driver.

use crate::error::Result;
use crate::event;
use crate::sync::{AtomicU32, Ordering};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

const AWAKE: u32 = 0;
/// Woken since it last checked its sources.
const WOKEN: u32 = 1;
const ASLEEP: u32 = 2;

/// Maximum number of IOThreads of a daemon.
pub(super) const MAX_IOTHREADS: usize = 4096;

/// The wake-ups of IOThreads by number. A wake-up is kept when its thread ends.
pub(super) struct Wakeups(Box<[OnceLock<Wakeup>]>);

impl Wakeups {
    pub(super) fn new() -> Wakeups {
        Wakeups((0..MAX_IOTHREADS).map(|_| OnceLock::new()).collect())
    }

    /// Makes the wake-up of a thread, unless it exists.
    pub(super) fn make(&self, thread: u16) -> Result<()> {
        let place = &self.0[usize::from(thread)];
        if place.get().is_none() {
            let wakeup = Wakeup::new()?;
            let _ = place.set(wakeup);
        }
        Ok(())
    }

    pub(super) fn get(&self, thread: u16) -> &Wakeup {
        self.0[usize::from(thread)].get().expect("an IOThread has a wake-up")
    }

    /// Wakes a thread. Harmless if the thread has ended.
    pub(super) fn wake(&self, thread: u16) {
        self.get(thread).wake();
    }

    /// Wakes all threads.
    pub(super) fn wake_all(&self) {
        self.0.iter().filter_map(OnceLock::get).for_each(Wakeup::wake);
    }
}

pub(super) struct Wakeup {
    state: AtomicU32,
    fd: OwnedFd,
}

impl Wakeup {
    pub(super) fn new() -> Result<Wakeup> {
        Ok(Wakeup { state: AtomicU32::new(AWAKE), fd: event::new()? })
    }

    /// Wakes the thread, or keeps it awake for one more round.
    pub(super) fn wake(&self) {
        // The swap always writes: a load could see the state from before the thread's last check. Pairs with: Wakeup::doze
        if self.state.swap(WOKEN, Ordering::AcqRel) == ASLEEP {
            event::signal(&self.fd);
        }
    }

    /// Marks the thread as asleep, before it waits on [`Wakeup::fd`]. Returns false if it was woken: it must check its sources again.
    pub(super) fn doze(&self) -> bool {
        // Pairs with: Wakeup::wake
        let dozes = self.state.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if !dozes {
            self.wake_up();
        }
        dozes
    }

    /// Marks the thread as awake; it then checks all its sources.
    pub(super) fn wake_up(&self) {
        // Pairs with: Wakeup::wake
        self.state.swap(AWAKE, Ordering::AcqRel);
    }

    /// Drains the descriptor. A waker may signal it late, so it is drained whenever it is readable.
    pub(super) fn drain(&self) {
        event::drain(&self.fd);
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
