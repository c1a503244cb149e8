// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The thread that sees to a disk's connections: brings another one for each that was lost, and notices the loss of those
//! that nobody uses at the moment.
//!
//! Guarantees: a server that comes back is found within [`LONGEST_PAUSE`] and the time of one attempt; one that does not is
//! asked less and less often. A server whose export is not the same any more is not used. The thread ends with its handle.

use super::Shared;
use super::dial::{Dialed, dial};
use super::handshake::Served;
use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::event;
use blk::time::Instant;
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
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How often connections are looked at that nobody has told of.
const LOOK: Duration = Duration::from_secs(1);
/// The bell, among numbers of hardware queues.
const BELL: u64 = u64::MAX;

/// See the module's text.
pub(super) struct Keeper {
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

/// What the thread waits at.
pub(super) struct Watch {
    set: OwnedFd,
    /// A connection was lost.
    bell: OwnedFd,
    /// The driver ends.
    over: OwnedFd,
    is_over: AtomicBool,
}

impl Watch {
    pub(super) fn new() -> Result<Watch> {
        let failed = |e: rustix::io::Errno| Error::os(e.into(), "cannot make an epoll descriptor");
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let (bell, over) = (event::new()?, event::new()?);
        for fd in [&bell, &over] {
            epoll::add(&set, fd, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN).map_err(failed)?;
        }
        Ok(Watch { set, bell, over, is_over: AtomicBool::new(false) })
    }

    /// A connection was lost.
    pub(super) fn ring(&self) {
        event::signal(&self.bell);
    }

    /// Readable when the driver ends.
    pub(super) fn over(&self) -> &OwnedFd {
        &self.over
    }

    /// What connections are added to, so that the leaving of their peers is noticed.
    pub(super) fn set(&self) -> &OwnedFd {
        &self.set
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
        // What it was is looked for anyway.
        let _ = epoll::wait(&self.set, &mut events[..], Some(&limit));
        event::drain(&self.bell);
    }
}

impl Keeper {
    pub(super) fn start(shared: &Arc<Shared>) -> Result<Keeper> {
        let own = Arc::clone(shared);
        let thread = std::thread::Builder::new().name("nbd-keeper".into()).spawn(move || run(&own));
        let thread = thread.map_err(|e| Error::os(e, "cannot start a thread for NBD connections"))?;
        Ok(Keeper { thread: Some(thread), shared: Arc::clone(shared) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.shared.watch.end();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the thread for NBD connections has panicked");
        }
    }
}

fn run(shared: &Shared) {
    let mut pause = Pause { long: FIRST_PAUSE, until: clock::now() };
    while !shared.watch.is_over() {
        shared.queues.iter().for_each(|q| q.look_after(&shared.regions));
        let wanted = shared.queues.iter().enumerate().filter_map(|(i, q)| Some((q.wants_connection()?, i)));
        let now = clock::now();
        match wanted.min() {
            None => shared.watch.wait(LOOK),
            Some((from, number)) if from.max(pause.until) <= now => attempt(shared, number, &mut pause),
            // Further losses are no reason to hurry.
            Some((from, _)) => {
                let left = Duration::from_nanos(from.max(pause.until).since(now).as_ns());
                shared.watch.wait(left.min(LOOK));
            }
        }
    }
}

/// When to try again after an attempt that failed.
struct Pause {
    long: Duration,
    until: Instant,
}

fn attempt(shared: &Shared, number: usize, pause: &mut Pause) {
    let Some(queue) = shared.queues.iter().nth(number) else { return };
    match dial(&shared.target.address, &shared.target.export, shared.watch.over()).and_then(|d| same(shared, d)) {
        Ok(dialed) => {
            queue.attach(dialed.socket, dialed.style, &shared.regions, false);
            *shared.refusal.lock() = None;
            pause.long = FIRST_PAUSE;
        }
        Err(e) => {
            *shared.refusal.lock() = Some(e.to_string());
            pause.until = clock::now() + blk::time::Duration::from_ns(pause.long.as_nanos() as u64);
            pause.long = (pause.long * 2).min(LONGEST_PAUSE);
        }
    }
}

/// Refuses an export that is another one than before.
pub(super) fn same(shared: &Shared, dialed: Dialed) -> Result<Dialed> {
    let (was, is) = (&shared.served, &dialed.served);
    if is == was {
        return Ok(dialed);
    }
    let text = format!(
        "NBD server at {}: export '{}' has changed from {} to {}; requests are not sent to another disk: open it anew",
        shared.target.address,
        shared.target.export,
        described(was),
        described(is)
    );
    Err(Error::new(ErrorKind::Denied, text))
}

fn described(served: &Served) -> String {
    let Served { size_bytes, flags, min_block, max_payload, .. } = served;
    format!("{size_bytes} bytes (flags {flags:#x}, blocks of {min_block}, at most {max_payload})")
}
