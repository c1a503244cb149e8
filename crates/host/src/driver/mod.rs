// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Drivers that run on this machine, and what the host needs of them beyond `blk::driver::Driver`: a way to wait.
//!
//! A driver is one file; `null` is the template. Its state per hardware queue lives in a [`PerHctx`].

pub mod null;
pub mod ram;
pub mod model;
pub mod file;

pub use file::File;
pub use model::Model;
pub use null::Null;
pub use ram::Ram;

use crate::clock;
use blk::driver::Driver;
use blk::id::{HctxId, MAX_CPUS};
use blk::time::Duration;
use parking_lot::{Condvar, Mutex};
use std::os::fd::RawFd;
use std::sync::OnceLock;

/// A driver whose completions a thread can wait for without spinning.
pub trait HostDriver: Driver {
    /// Blocks until `min` requests of `hctx` that were in flight at the call may have finished (at least one), `timeout`
    /// has passed, or [`HostDriver::wake`] is called; may return early for no reason. Poll afterwards. Other threads may
    /// queue, poll and wait on the same hctx meanwhile. Returns at once when nothing is in flight and there is no
    /// `timeout`.
    ///
    /// A driver whose requests are finished when they are issued has nothing to wait for: the default returns.
    fn wait(&self, _hctx: HctxId, _min: u32, _timeout: Option<Duration>) {}

    /// Makes a thread that is in [`HostDriver::wait`] for `hctx`, or the next one to call it, return.
    fn wake(&self, _hctx: HctxId) {}

    /// Whether `queue_rqs` for `hctx` may leave it to the next [`HostDriver::wait`] or `poll` to make the device see
    /// its requests: one system call instead of two for a thread that waits right after it has submitted. Whoever
    /// turns it on must call one of the two soon after every submission.
    fn set_lazy_commit(&self, _hctx: HctxId, _lazy: bool) {}

    /// A descriptor that polls readable when `hctx` has completions, if the driver has such a thing.
    fn ring_fd(&self, _hctx: HctxId) -> Option<RawFd> {
        None
    }
}

/// One `T` per hardware queue, each on cache lines of its own, found without a lock and made when first needed.
pub(crate) struct PerHctx<T> {
    slots: Box<[OnceLock<Box<Padded<T>>>]>,
}

/// 128 bytes: two lines, because the prefetcher of common CPUs fetches pairs.
#[repr(align(128))]
struct Padded<T>(T);

impl<T> PerHctx<T> {
    pub(crate) fn new() -> PerHctx<T> {
        PerHctx { slots: (0..MAX_CPUS).map(|_| OnceLock::new()).collect() }
    }

    /// The state of hardware queue `index`, made by `make` if it is the first time.
    pub(crate) fn get_or_init(&self, index: u16, make: impl FnOnce() -> T) -> &T {
        &self.slots[usize::from(index)].get_or_init(|| Box::new(Padded(make()))).0
    }

    /// The state of `hctx`, which `start` must have made.
    #[inline]
    pub(crate) fn get(&self, hctx: HctxId) -> &T {
        &self.slots[hctx.index()].get().expect("hctx used before the driver was started for it").0
    }
}

/// Where a thread sleeps until a moment or a wake-up: [`HostDriver::wait`] of drivers that complete by time.
#[derive(Default)]
pub(crate) struct Sleeper {
    woken: Mutex<bool>,
    condvar: Condvar,
}

impl Sleeper {
    /// Sleeps until a request is due, `due_in` from now if there is one, at most for `timeout` if there is one; not at
    /// all when there is neither.
    pub(crate) fn sleep_until_due(&self, due_in: Option<Duration>, timeout: Option<Duration>) {
        let sleep = due_in.into_iter().chain(timeout).min();
        if sleep.is_some_and(|sleep| sleep > Duration::ZERO) {
            self.sleep(sleep);
        }
    }

    /// Sleeps for `timeout`, or forever without, unless or until woken; a wake-up counts once.
    fn sleep(&self, timeout: Option<Duration>) {
        let until =
            timeout.and_then(|t| std::time::Instant::now().checked_add(std::time::Duration::from_nanos(t.as_ns())));
        clock::sleep_precisely();
        let mut woken = self.woken.lock();
        while !*woken {
            match until {
                None => self.condvar.wait(&mut woken),
                Some(until) if self.condvar.wait_until(&mut woken, until).timed_out() => break,
                Some(_) => {}
            }
        }
        *woken = false;
    }

    /// Ends the sleep of one thread, or the next one before it begins.
    pub(crate) fn wake(&self) {
        *self.woken.lock() = true;
        self.condvar.notify_one();
    }
}
