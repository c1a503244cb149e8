// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Support for tests with real threads: sleeping, wake-ups, and a watchdog.

use blk::id::SubmitterId;
use blk::queue::{Notify, RequestQueue};
use sim::Lock;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// A test hangs if no request completed during this many checks of the watchdog, one per second. A busy machine makes a
/// test slow, but does not stop it; a suspended machine stops the checks, too.
const STILL: u32 = 120;

/// The time between two checks of a thread that only waits, and so takes no CPU from those that work.
pub const POLL: Duration = Duration::from_millis(1);

/// A place to sleep with a token, as in thread parking.
#[derive(Default)]
pub struct Parker {
    token: Mutex<bool>,
    notifications: Condvar,
}

impl Parker {
    pub fn unpark(&self) {
        *self.token.lock().expect("not poisoned") = true;
        self.notifications.notify_one();
    }

    pub fn park(&self) {
        let mut token = self.token.lock().expect("not poisoned");
        while !*token {
            token = self.notifications.wait(token).expect("not poisoned");
        }
        *token = false;
    }
}

/// Wakes the thread of a submitter: submitters are numbered in order of creation, which is the order of threads.
pub struct Waker(pub Arc<[Parker]>);

impl Notify for Waker {
    fn notify(&self, submitter: SubmitterId) {
        if let Some(parker) = self.0.get(submitter.index()) {
            parker.unpark();
        }
    }
}

/// Makes one for each of this many threads.
pub fn parkers(threads: usize) -> Arc<[Parker]> {
    (0..threads).map(|_| Parker::default()).collect()
}

/// Sets the flag when the thread that owns it panics.
pub struct FailFlag<'a>(pub &'a AtomicBool);

impl Drop for FailFlag<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Release);
        }
    }
}

/// Returns how many requests of a disk have completed.
pub fn ended(q: &RequestQueue<Lock>) -> u64 {
    q.stats().ops.iter().map(|op| op.ios).sum()
}

/// Aborts the process, with a dump, when a test makes no progress. Dropped at the end of the test.
pub struct Watchdog(Option<(mpsc::Sender<()>, JoinHandle<()>)>);

impl Watchdog {
    /// `progress` counts completed work. It is `None` after a thread has failed: the thread's message is printed, and the
    /// others may wait for that thread for ever.
    pub fn new(
        what: String,
        progress: impl Fn() -> Option<u64> + Send + 'static,
        dump: impl Fn() -> String + Send + 'static,
    ) -> Watchdog {
        let (over, watch) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let (mut last, mut still) = (0, 0);
            while watch.recv_timeout(Duration::from_secs(1)) == Err(mpsc::RecvTimeoutError::Timeout) {
                match progress() {
                    Some(now) if now != last => (last, still) = (now, 0),
                    Some(_) if still < STILL => still += 1,
                    now => {
                        let why = if now.is_some() { "hung" } else { "failed" };
                        last_words(&format!("{what}: {why}\n{}", dump()));
                        std::process::abort();
                    }
                }
            }
        });
        Watchdog(Some((over, thread)))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let (over, thread) = self.0.take().expect("dropped once");
        drop(over);
        thread.join().expect("the watchdog does not panic");
    }
}

/// Prints a text before the process is aborted. The test harness captures, and then loses, the output of the usual macros.
pub fn last_words(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Makes panics of all threads print their message and place, for the same reason.
pub fn loud_panics() {
    std::panic::set_hook(Box::new(|panic| last_words(&panic.to_string())));
}
