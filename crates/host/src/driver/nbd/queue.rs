// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One hardware queue: its requests, its connection, and who waits for it.
//!
//! Guarantees: a request ends once, by its reply, by its age, or because the connection was away for too long; a connection
//! that is lost takes none of them with it, they are sent again on the next one, in their order. Requests' memory is touched
//! only under the lock, and not after the request has ended. A wake-up ends the sleep of all who were asleep, or on their
//! way to it.
//! Needs from callers: somebody ([`super::keeper`]) who brings a connection when there is none ([`Queue::wants_connection`]),
//! and who looks after one that nobody polls ([`Queue::look_after`]).
//!
//! One lock for all: the calls under it do not wait. The eventfd says that there is something that no socket would tell of:
//! ends that were found outside of a poll, or a wake-up. It stays readable until nobody sleeps who could have missed it.

use super::conn::{Link, Lost};
use super::keeper::Watch;
use super::requests::Requests;
use crate::clock;
use crate::error::{Error, Result};
use crate::event;
use crate::export::nbd::wire::ReplyStyle;
use crate::mem::Regions;
use crate::readable::poll_fds;
use blk::driver::{Completions, RqBatch, TimedOut, TimeoutAnswer};
use blk::status::{BlkStatus, QueueRqStatus};
use blk::time::{Duration, Instant};
use parking_lot::Mutex;
use rustix::event::epoll;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What becomes of requests without an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// How long they wait for another connection.
    pub(super) reconnect_delay: Duration,
    /// How long one waits for its reply on a connection that stands.
    pub(super) timeout: Option<Duration>,
}

/// What has happened to a queue's connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueStatus {
    /// There is a connection now.
    pub connected: bool,
    /// Connections lost so far.
    pub losses: u64,
    /// Requests that were sent again so far.
    pub replayed: u64,
    /// Why the last one was lost.
    pub last_loss: Option<String>,
}

pub(super) struct Queue {
    patience: Patience,
    state: Mutex<State>,
    epoll: OwnedFd,
    event: OwnedFd,
    wakes: AtomicU64,
    keeper: Arc<Watch>,
}

struct State {
    link: Place,
    requests: Requests,
    /// Threads in [`Queue::wait`].
    waiting: u32,
    /// The eventfd is readable.
    signalled: bool,
    lazy_below: usize,
    status: QueueStatus,
    /// When the present or last connection was made, and how many in a row before it did not last.
    attached: Instant,
    short_lives: u32,
}

/// Where requests go.
enum Place {
    /// The queue is not in use.
    Nowhere,
    Up(Link),
    /// There was a connection. Requests wait for the next one until then.
    Lost(Instant),
}

impl Queue {
    pub(super) fn new(patience: Patience, keeper: Arc<Watch>) -> Result<Queue> {
        let event = event::new()?;
        let failed = |e: rustix::io::Errno| Error::os(e.into(), "cannot make an epoll descriptor");
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        epoll::add(&epoll, &event, epoll::EventData::new_u64(0), epoll::EventFlags::IN).map_err(failed)?;
        let state = State {
            link: Place::Nowhere,
            requests: Requests::new(0),
            waiting: 0,
            signalled: false,
            lazy_below: 0,
            status: QueueStatus::default(),
            attached: Instant::ZERO,
            short_lives: 0,
        };
        Ok(Queue { patience, state: Mutex::new(state), epoll, event, wakes: AtomicU64::new(0), keeper })
    }

    /// Makes it ready for tags below `depth`; whether it has, or once had, a connection.
    pub(super) fn start(&self, depth: u32) -> bool {
        let mut state = self.state.lock();
        assert!(state.requests.in_flight() == 0, "restarted with requests in flight");
        state.requests.resize(depth as usize);
        state.lazy_below = 0;
        !matches!(state.link, Place::Nowhere)
    }

    /// No requests will come until the next start.
    pub(super) fn stop(&self) {
        let mut state = self.state.lock();
        if let Place::Up(link) = std::mem::replace(&mut state.link, Place::Nowhere) {
            link.disconnect();
        }
        state.status.connected = false;
    }

    /// Uses a connection: the first one since a start, or one in place of one that was lost. What waited goes out.
    pub(super) fn attach(&self, socket: OwnedFd, style: ReplyStyle, regions: &Regions, is_first: bool) {
        let mut state = self.state.lock();
        let is_needed = match state.link {
            Place::Nowhere => is_first,
            Place::Up(_) => false,
            Place::Lost(_) => !is_first,
        };
        if !is_needed {
            return;
        }
        let now = clock::now();
        // Those that waited longer than they may have ended; nobody has looked yet.
        self.expire(&mut state, now);
        state.attached = now;
        match Link::new(socket, style, &self.epoll) {
            Ok(link) => {
                // A peer that leaves while nobody polls is noticed by the keeper; if not by this, a little later.
                let rdhup = epoll::EventFlags::RDHUP;
                let _ = epoll::add(self.keeper.set(), link.as_fd(), epoll::EventData::new_u64(0), rdhup);
                state.link = Place::Up(link);
                state.status.connected = true;
                state.requests.rewind(now);
                self.transmit(&mut state, regions);
            }
            Err(why) => self.lose(&mut state, Lost(why)),
        }
        self.tell_ends(&mut state);
    }

    /// From when on there is to be another connection; none if there need not be.
    pub(super) fn wants_connection(&self) -> Option<Instant> {
        let state = self.state.lock();
        match state.link {
            Place::Lost(_) if state.short_lives == 0 => Some(Instant::ZERO),
            Place::Lost(_) => Some(state.attached + pause_after(state.short_lives)),
            _ => None,
        }
    }

    pub(super) fn status(&self) -> QueueStatus {
        self.state.lock().status.clone()
    }

    pub(super) fn queue_rqs(&self, batch: &mut RqBatch<'_>, regions: &Regions, now: Instant) -> QueueRqStatus {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if matches!(state.link, Place::Lost(until) if now >= until) {
            (0..batch.remaining()).for_each(|_| batch.end(BlkStatus::IoErr));
            return QueueRqStatus::Queued;
        }
        while let Some(rq) = batch.front() {
            match state.requests.take(&rq, regions, now) {
                Ok(tag) => state.requests.begin(tag, batch.accept()),
                Err(status) => batch.end(status),
            }
        }
        if state.requests.unsent() >= state.lazy_below.max(1) {
            self.transmit(state, regions);
            self.tell_ends(state);
        }
        QueueRqStatus::Queued
    }

    /// Sends what waits to be sent.
    fn transmit(&self, state: &mut State, regions: &Regions) {
        let Place::Up(link) = &mut state.link else { return };
        if let Err(lost) = link.transmit(&mut state.requests, regions, &self.epoll) {
            self.lose(state, lost);
        }
    }

    /// Takes what the server has said.
    fn receive(&self, state: &mut State, regions: &Regions) {
        let Place::Up(link) = &mut state.link else { return };
        // A server that is told to stop by its owner answers with this; the next one will do it.
        let keep_on_shutdown = self.patience.reconnect_delay > Duration::ZERO;
        if let Err(lost) = link.receive(&mut state.requests, regions, keep_on_shutdown) {
            self.lose(state, lost);
        }
    }

    /// The connection is of no use any more.
    #[cold]
    fn lose(&self, state: &mut State, Lost(why): Lost) {
        if let Place::Up(link) = &state.link {
            link.unwatch(&self.epoll);
        }
        let now = clock::now();
        state.link = Place::Lost(now + self.patience.reconnect_delay);
        state.short_lives = if now.since(state.attached) < LONG_LIFE { state.short_lives + 1 } else { 0 };
        state.status = QueueStatus {
            connected: false,
            losses: state.status.losses + 1,
            last_loss: Some(why),
            replayed: state.status.replayed,
        };
        if self.patience.reconnect_delay == Duration::ZERO {
            state.requests.fail_all(BlkStatus::IoErr);
        } else {
            state.status.replayed += state.requests.recall() as u64;
        }
        self.keeper.ring();
    }

    /// Ends what has waited for a connection for too long.
    fn expire(&self, state: &mut State, now: Instant) {
        if matches!(state.link, Place::Lost(until) if now >= until) {
            state.requests.fail_all(BlkStatus::IoErr);
        }
    }

    /// Ends that no socket tells of are told by the eventfd.
    fn tell_ends(&self, state: &mut State) {
        if state.requests.has_ended() {
            self.signal(state);
        }
    }

    fn signal(&self, state: &mut State) {
        if !state.signalled {
            state.signalled = true;
            event::signal(&self.event);
        }
    }

    pub(super) fn poll(&self, done: &mut Completions, regions: &Regions, now: Instant) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.requests.in_flight() > 0 {
            if state.requests.unsent() > 0 {
                self.transmit(state, regions);
            }
            if state.requests.sent() > 0 {
                self.receive(state, regions);
            }
            self.expire(state, now);
        }
        let before = done.room();
        state.requests.give_ended(done);
        self.tell_ends(state);
        self.calm(state);
        // Who sleeps for what was found here would sleep for nothing if it was the last.
        if state.waiting > 0 && done.room() != before && state.requests.in_flight() == 0 {
            self.signal(state);
        }
    }

    /// See [`HostDriver::wait_since`](crate::driver::HostDriver::wait_since).
    pub(super) fn wait(&self, seen: u64, timeout: Option<Duration>, regions: &Regions) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.requests.unsent() > 0 {
            self.transmit(state, regions);
        }
        let idle = state.requests.in_flight() == 0 && timeout.is_none();
        // Relaxed: the lock orders it.
        if idle || state.requests.has_ended() || self.wakes.load(Ordering::Relaxed) != seen {
            return self.calm(state);
        }
        let mut limit = timeout.unwrap_or(MAX_SLEEP);
        if let Place::Lost(until) = state.link
            && state.requests.in_flight() > 0
        {
            limit = limit.min(until.since(clock::now()));
        }
        state.waiting += 1;
        drop(guard);
        poll_fds(&mut [libc::pollfd { fd: self.epoll.as_raw_fd(), events: libc::POLLIN, revents: 0 }], limit);
        let mut state = self.state.lock();
        state.waiting -= 1;
        self.calm(&mut state);
    }

    /// Takes a signal back once nobody is left who could miss it.
    fn calm(&self, state: &mut State) {
        if state.signalled && state.waiting == 0 && !state.requests.has_ended() {
            state.signalled = false;
            event::drain(&self.event);
        }
    }

    pub(super) fn wakes(&self) -> u64 {
        // Acquire: not read after the caller has said that it is going to wait. Pairs with: Queue::wake
        self.wakes.load(Ordering::Acquire)
    }

    pub(super) fn wake(&self) {
        let mut state = self.state.lock();
        // Pairs with: Queue::wakes
        self.wakes.fetch_add(1, Ordering::Release);
        self.signal(&mut state);
    }

    pub(super) fn set_lazy_commit(&self, fewer_than: u32) {
        self.state.lock().lazy_below = fewer_than as usize;
    }

    pub(super) fn ring_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// When a poll has something to do without a word from the server.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let state = self.state.lock();
        match state.link {
            _ if state.requests.has_ended() => Some(Instant::ZERO),
            Place::Lost(until) if state.requests.in_flight() > 0 => Some(until),
            _ => None,
        }
    }

    /// A request is late. If its connection has had its time, it and all others that have waited as long end here, and the
    /// connection with them: a reply that comes after that finds nobody.
    pub(super) fn timeout(&self, late: TimedOut, now: Instant) -> TimeoutAnswer {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if !state.requests.is_out(late.tag, late.issued) {
            return TimeoutAnswer::Done;
        }
        let Some(timeout) = self.patience.timeout else { return TimeoutAnswer::ResetTimer };
        let up = matches!(state.link, Place::Up(_));
        if !up || now.since(state.requests.sent_since(late.tag)) < timeout {
            return TimeoutAnswer::ResetTimer;
        }
        state.requests.fail_older(timeout, now);
        let why = format!("no reply for {} s", timeout.as_ns() / 1_000_000_000);
        self.lose(state, Lost(why));
        self.tell_ends(state);
        TimeoutAnswer::Done
    }

    /// Sees whether the connection has gone, or says something unasked, though nobody polls.
    pub(super) fn look_after(&self, regions: &Regions) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        self.receive(state, regions);
        self.expire(state, clock::now());
        self.tell_ends(state);
    }
}

/// How long after its making another connection is made for one that did not last.
fn pause_after(short_lives: u32) -> Duration {
    Duration::from_ms(10 << short_lives.min(10)).min(LONG_LIFE)
}

/// A connection that lasted this long was a good one.
const LONG_LIFE: Duration = Duration::from_secs(1);
/// Longest sleep: others wake the sleeper when there is something, so this is only to be on the safe side of overflow.
const MAX_SLEEP: Duration = Duration::from_secs(3600);
