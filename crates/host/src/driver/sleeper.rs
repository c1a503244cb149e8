// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sleeping until a request is due, for drivers that complete requests by time.

use crate::clock;
use crate::sync::{AtomicU32, AtomicU64, Condvar, Mutex, Ordering};
use blk::time::{Duration, Instant};

/// Where threads sleep until a moment or a wake-up: [`HostDriver::wait_since`](crate::driver::HostDriver::wait_since) of drivers that complete by time.
#[derive(Default)]
pub(crate) struct Sleeper {
    /// Wake-ups so far; changed under the lock, so that no sleeper misses one between its check and its sleep.
    wakes: AtomicU64,
    /// Threads in [`Sleeper::sleep_until_due`].
    sleepers: AtomicU32,
    lock: Mutex<()>,
    condvar: Condvar,
}

impl Sleeper {
    /// Sleeps until a request is due (`next_due` returns the first time), for at most `timeout` if there is one. Does not sleep if there
    /// is neither, or if there were wake-ups after `seen`.
    pub(crate) fn sleep_until_due(
        &self,
        seen: u64,
        timeout: Option<Duration>,
        next_due: impl FnOnce() -> Option<Instant>,
    ) {
        // Counted before the check of the requests: see `wake_sleepers`.
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        let due_in = next_due().map(|due| due.since(clock::now()));
        if let Some(sleep) = due_in.into_iter().chain(timeout).min()
            && sleep > Duration::ZERO
        {
            self.sleep(seen, sleep);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    fn sleep(&self, seen: u64, at_most: Duration) {
        let until = std::time::Instant::now().checked_add(std::time::Duration::from_nanos(at_most.as_ns()));
        clock::sleep_precisely();
        let mut lock = self.lock.lock();
        // Relaxed: the lock orders it.
        while self.wakes.load(Ordering::Relaxed) == seen {
            match until {
                None => self.condvar.wait(&mut lock),
                Some(until) if self.condvar.wait_until(&mut lock, until).timed_out() => break,
                Some(_) => {}
            }
        }
    }

    /// Returns the number of wake-ups so far.
    pub(crate) fn wakes(&self) -> u64 {
        // Acquire: not read after the caller has published that it is going to wait. Pairs with: Sleeper::wake
        self.wakes.load(Ordering::Acquire)
    }

    /// Ends the sleep of all threads, also of those that are about to sleep.
    pub(crate) fn wake(&self) {
        let lock = self.lock.lock();
        // Pairs with: Sleeper::wakes
        self.wakes.fetch_add(1, Ordering::Release);
        drop(lock);
        self.condvar.notify_all();
    }

    /// Wakes the sleepers because the first due time is now earlier, so that they check again. Call after the request was added under the
    /// lock that `next_due` of a sleeper takes. A thread that checked before that is counted here; one that checks later sees it.
    #[inline]
    pub(crate) fn wake_sleepers(&self) {
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            self.wake();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const LONG: Option<Duration> = Some(Duration::from_secs(3600));

    #[test]
    fn a_wake_up_before_the_sleep_is_not_lost_to_another_sleeper() {
        let sleeper = Sleeper::default();
        let seen = sleeper.wakes();
        sleeper.wake();
        // Two threads were about to sleep: both return, in any order.
        sleeper.sleep_until_due(seen, LONG, || None);
        sleeper.sleep_until_due(seen, LONG, || None);
    }

    #[test]
    fn one_wake_up_ends_all_sleeps() {
        let sleeper = Sleeper::default();
        let seen = sleeper.wakes();
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| sleeper.sleep_until_due(seen, LONG, || None));
            }
            sleeper.wake();
        });
        assert_eq!(sleeper.sleepers.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_request_added_by_another_thread_ends_the_sleep() {
        let (sleeper, first_due) = (Sleeper::default(), Mutex::new(None));
        std::thread::scope(|s| {
            s.spawn(|| {
                while first_due.lock().is_none() {
                    sleeper.sleep_until_due(sleeper.wakes(), LONG, || *first_due.lock());
                }
            });
            *first_due.lock() = Some(Instant::ZERO);
            sleeper.wake_sleepers();
        });
    }

    #[test]
    fn nothing_due_and_no_timeout_is_no_sleep() {
        let sleeper = Sleeper::default();
        sleeper.sleep_until_due(sleeper.wakes(), None, || None);
    }
}
