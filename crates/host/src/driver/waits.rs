// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where threads wait for a hardware queue whose descriptors signal completions: an epoll set of those, and an eventfd for
//! events that they do not signal.
//!
//! Guarantees: a wake-up, or a completion found outside a poll, ends the sleep of all threads that sleep or are about to.
//! The eventfd stays readable until no sleeping thread could have missed it.
//! Needs from callers: one lock around a queue's [`Waiting`] and all that is checked before a sleep.

use crate::error::{Error, Result};
use crate::event;
use crate::readable::poll_fds;
use blk::time::Duration;
use parking_lot::MutexGuard;
use rustix::event::epoll;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Longest sleep. Events end sleeps, so the limit only avoids an overflow.
pub(super) const MAX_SLEEP: Duration = Duration::from_secs(3600);

/// See the module's text.
pub(super) struct Waits {
    epoll: OwnedFd,
    event: OwnedFd,
    wakes: AtomicU64,
}

/// Sleeping threads, and whether they were notified; under the queue's lock.
#[derive(Default)]
pub(super) struct Waiting {
    threads: u32,
    /// The eventfd is readable.
    signalled: bool,
}

impl Waiting {
    /// A thread sleeps, or the eventfd is readable.
    pub(super) fn is_stirred(&self) -> bool {
        self.signalled || self.threads > 0
    }
}

impl Waits {
    pub(super) fn new() -> Result<Waits> {
        let event = event::new()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let waits = Waits { epoll, event, wakes: AtomicU64::new(0) };
        waits.watch(&waits.event)?;
        Ok(waits)
    }

    /// Adds `fd` to the set: sleeps end while it is readable.
    pub(super) fn watch(&self, fd: impl AsFd) -> Result<()> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN).map_err(failed)
    }

    /// Returns the epoll set.
    pub(super) fn set(&self) -> &OwnedFd {
        &self.epoll
    }

    /// Returns the set's descriptor, for other sets.
    pub(super) fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Signals an event that no descriptor signals.
    pub(super) fn signal(&self, waiting: &mut Waiting) {
        if !waiting.signalled {
            waiting.signalled = true;
            event::signal(&self.event);
        }
    }

    /// Clears the eventfd once no thread is left that could miss it.
    pub(super) fn calm(&self, waiting: &mut Waiting, has_ended: bool) {
        if waiting.signalled && waiting.threads == 0 && !has_ended {
            waiting.signalled = false;
            event::drain(&self.event);
        }
    }

    /// Called after a poll. `has_ended`: completions are left; `found_last`: the poll returned some and nothing is in flight
    /// now.
    pub(super) fn polled(&self, waiting: &mut Waiting, has_ended: bool, found_last: bool) {
        if has_ended {
            self.signal(waiting);
        }
        self.calm(waiting, has_ended);
        // If this poll found the last completion in flight, a thread that sleeps for it would sleep in vain.
        if waiting.threads > 0 && found_last {
            self.signal(waiting);
        }
    }

    /// Sleeps without the lock until there is something, for `limit` at most.
    pub(super) fn sleep<S>(
        &self,
        state: &mut MutexGuard<'_, S>,
        waiting: impl Fn(&mut S) -> &mut Waiting,
        limit: Duration,
    ) {
        waiting(state).threads += 1;
        MutexGuard::unlocked(state, || {
            poll_fds(&mut [libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 }], limit);
        });
        waiting(state).threads -= 1;
    }

    /// Wake-ups so far.
    pub(super) fn wakes(&self) -> u64 {
        // Acquire: not read after the caller has published that it is going to wait. Pairs with: Waits::wake
        self.wakes.load(Ordering::Acquire)
    }

    /// Ends all sleeps.
    pub(super) fn wake(&self, waiting: &mut Waiting) {
        // Pairs with: Waits::wakes
        self.wakes.fetch_add(1, Ordering::Release);
        self.signal(waiting);
    }
}

fn failed(e: rustix::io::Errno) -> Error {
    Error::os(e.into(), "cannot make an epoll descriptor")
}
