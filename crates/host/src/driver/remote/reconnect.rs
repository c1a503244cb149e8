// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The thread that maintains a disk's links, one per hardware queue: connections to an NBD server, sessions with an iSCSI
//! target. It replaces lost links, and notices the loss of links that are not in use at the moment.
//!
//! Guarantees: a peer that comes back is found within [`LONGEST_PAUSE`] and the time of one attempt; a peer that stays away
//! is tried less and less often. Due queues take turns, so one refused link does not starve the others. The thread ends with
//! its handle. Does not check whether the peer is still the same: [`Reconnect::attempt`] does.

use crate::clock;
use crate::error::{Error, Result};
use crate::event;
use crate::panics;
use blk::time::Instant;
use parking_lot::Mutex;
use rustix::event::epoll;
use rustix::time::Timespec;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between the first attempts to connect.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The pauses double up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How often links are checked without a notification.
const LOOK: Duration = Duration::from_secs(1);
/// What its threads are in the message of a panic.
const KIND: &str = "reconnect thread";
/// The event number of the wake-up; other events have numbers of hardware queues.
const WAKEUP: u64 = u64::MAX;

/// Links that are replaced when they are lost.
pub(crate) trait Reconnect: Send + Sync + 'static {
    /// The thread's name.
    const THREAD: &'static str;
    /// The name of its links in messages.
    const LINKS: &'static str;

    /// Returns what the thread waits for.
    fn watch(&self) -> &Watch;

    /// Without a poll, notices links that were lost.
    fn look_after(&self);

    /// Queues that need a link, each with the earliest time for an attempt.
    fn wants(&self) -> Vec<(Instant, usize)>;

    /// Makes a new link for a hardware queue.
    ///
    /// # Errors
    /// No link can be made now.
    fn attempt(&self, number: usize) -> Result<()>;
}

/// See the module's text.
pub(crate) struct Reconnector<K: Reconnect> {
    thread: Option<JoinHandle<()>>,
    links: Arc<K>,
}

/// What the thread waits for, and its last error.
pub(crate) struct Watch {
    set: OwnedFd,
    /// A link was lost.
    wakeup: OwnedFd,
    /// The driver ends.
    over: OwnedFd,
    is_over: AtomicBool,
    refusal: Mutex<Option<String>>,
}

impl Watch {
    pub(crate) fn new() -> Result<Watch> {
        let failed = |e: rustix::io::Errno| Error::os(e.into(), "cannot make an epoll descriptor");
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let (wakeup, over) = (event::new()?, event::new()?);
        for fd in [&wakeup, &over] {
            epoll::add(&set, fd, epoll::EventData::new_u64(WAKEUP), epoll::EventFlags::IN).map_err(failed)?;
        }
        Ok(Watch { set, wakeup, over, is_over: AtomicBool::new(false), refusal: Mutex::new(None) })
    }

    /// A link was lost.
    pub(crate) fn wake(&self) {
        event::signal(&self.wakeup);
    }

    /// Readable when the driver ends.
    pub(crate) fn over(&self) -> &OwnedFd {
        &self.over
    }

    /// Returns the epoll set that links are added to, so that a disconnect of their peers is noticed.
    pub(crate) fn set(&self) -> &OwnedFd {
        &self.set
    }

    /// Returns why there is no other link, if the last attempt has failed.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.refusal.lock().clone()
    }

    fn end(&self) {
        // Pairs with: Watch::is_over
        self.is_over.store(true, Ordering::Release);
        event::signal(&self.over);
    }

    fn is_over(&self) -> bool {
        // Pairs with: Watch::end
        self.is_over.load(Ordering::Acquire)
    }

    fn wait(&self, at_most: Duration) {
        let limit = Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: i64::from(at_most.subsec_nanos()) };
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 1];
        // The reason is not used, because all links are checked anyway.
        let _ = epoll::wait(&self.set, &mut events[..], Some(&limit));
        event::drain(&self.wakeup);
    }
}

impl<K: Reconnect> Reconnector<K> {
    pub(crate) fn start(links: &Arc<K>) -> Result<Reconnector<K>> {
        let own = Arc::clone(links);
        let thread = std::thread::Builder::new().name(K::THREAD.into()).spawn(move || run(&*own));
        let thread = thread.map_err(|e| Error::os(e, format!("cannot start a thread for {}", K::LINKS)))?;
        Ok(Reconnector { thread: Some(thread), links: Arc::clone(links) })
    }
}

impl<K: Reconnect> Drop for Reconnector<K> {
    fn drop(&mut self) {
        self.links.watch().end();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the thread for {} has panicked", K::LINKS);
        }
    }
}

fn run(links: &impl Reconnect) {
    panics::end_process(KIND);
    let mut pause = Pause { long: FIRST_PAUSE, until: clock::now() };
    let watch = links.watch();
    let mut last = 0;
    while !watch.is_over() {
        links.look_after();
        let wanted = links.wants();
        let now = clock::now();
        match next(&wanted, last, now) {
            None => watch.wait(LOOK),
            Some((from, number)) if from.max(pause.until) <= now => {
                last = number;
                attempt(links, number, &mut pause);
            }
            // Further losses do not shorten the pause.
            Some((from, _)) => {
                let left = Duration::from_nanos(from.max(pause.until).since(now).as_ns());
                watch.wait(left.min(LOOK));
            }
        }
    }
}

/// Returns the next attempt: round robin after `last` among those that are due, otherwise the earliest.
fn next(wanted: &[(Instant, usize)], last: usize, now: Instant) -> Option<(Instant, usize)> {
    let due = wanted.iter().filter(|(from, _)| *from <= now);
    let in_turn = due.min_by_key(|(_, number)| (*number <= last, *number));
    in_turn.or_else(|| wanted.iter().min()).copied()
}

/// The pause before the next attempt, after one that failed.
struct Pause {
    long: Duration,
    until: Instant,
}

fn attempt(links: &impl Reconnect, number: usize, pause: &mut Pause) {
    let result = attempt_beside(links, number);
    *links.watch().refusal.lock() = result.as_ref().err().map(ToString::to_string);
    if result.is_ok() {
        pause.long = FIRST_PAUSE;
    } else {
        pause.until = clock::now() + blk::time::Duration::from_ns(pause.long.as_nanos() as u64);
        pause.long = (pause.long * 2).min(LONGEST_PAUSE);
    }
}

/// Makes the attempt, and checks the other links meanwhile: a silent peer may take all the time of an attempt.
fn attempt_beside<K: Reconnect>(links: &K, number: usize) -> Result<()> {
    let (watch, is_done) = (links.watch(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let attempt = || {
            panics::end_process(KIND);
            let result = links.attempt(number);
            // Pairs with: the load below
            is_done.store(true, Ordering::Release);
            watch.wake();
            result
        };
        let thread = std::thread::Builder::new().name(K::THREAD.into()).spawn_scoped(scope, attempt);
        let thread = thread.map_err(|e| Error::os(e, format!("cannot start a thread for {}", K::LINKS)))?;
        // Pairs with: the store above
        while !is_done.load(Ordering::Acquire) && !thread.is_finished() && !watch.is_over() {
            watch.wait(LOOK);
            links.look_after();
        }
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waiting::{POLL, until};
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn links_whose_time_has_come_have_their_turns() {
        let at = Instant::from_ns;
        let wanted = [(at(5), 0), (at(1), 2), (at(9), 3), (at(3), 4)];
        assert_eq!([0, 2, 3, 4].map(|last| next(&wanted, last, at(5)).unwrap().1), [2, 4, 4, 0]);
        assert_eq!(next(&wanted, 4, at(9)).unwrap().1, 0);
        assert_eq!(next(&wanted, 2, at(0)), Some((at(1), 2)), "none is due: the first that will be");
        assert_eq!(next(&wanted[..1], 0, at(7)), Some((at(5), 0)), "the only one again");
        assert_eq!(next(&[], 0, at(7)), None);
    }

    const LIMIT: blk::time::Duration = blk::time::Duration::from_secs(60);

    /// Its attempt succeeds only if the other links are checked meanwhile.
    struct Patient {
        watch: Watch,
        looks: AtomicUsize,
        is_linked: AtomicBool,
    }

    impl Reconnect for Patient {
        const THREAD: &'static str = "test-reconnect";
        const LINKS: &'static str = "tests";

        fn watch(&self) -> &Watch {
            &self.watch
        }

        fn look_after(&self) {
            self.looks.fetch_add(1, Ordering::Relaxed);
        }

        fn wants(&self) -> Vec<(Instant, usize)> {
            if self.is_linked.load(Ordering::Relaxed) { Vec::new() } else { vec![(Instant::ZERO, 0)] }
        }

        fn attempt(&self, _: usize) -> Result<()> {
            let (before, until) = (self.looks.load(Ordering::Relaxed), clock::now() + LIMIT);
            while self.looks.load(Ordering::Relaxed) == before && clock::now() < until {
                // A link that is lost meanwhile wakes the thread in the same way.
                self.watch.wake();
                std::thread::sleep(POLL);
            }
            self.is_linked.store(true, Ordering::Relaxed);
            let is_seen = self.looks.load(Ordering::Relaxed) > before;
            if is_seen { Ok(()) } else { Err(Error::usage("no poll")) }
        }
    }

    #[test]
    fn other_links_are_looked_after_while_one_is_made() {
        let links =
            Patient { watch: Watch::new().unwrap(), looks: AtomicUsize::new(0), is_linked: AtomicBool::new(false) };
        let links = Arc::new(links);
        let reconnector = Reconnector::start(&links).unwrap();
        until("the link is made", || links.is_linked.load(Ordering::Relaxed));
        drop(reconnector);
        assert!(links.watch.refusal().is_none());
    }
}
