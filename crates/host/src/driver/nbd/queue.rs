// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One hardware queue: its requests, its connection, and who waits for it.
//!
//! Guarantees: a request ends once, by its reply, by its age, or because the connection was away for too long; a connection
//! that is lost takes none of them with it, they are sent again on the next one, in their order. Requests' memory is touched
//! only under the lock, and not after the request has ended. A wake-up ends the sleep of all who were asleep, or on their
//! way to it.
//! Needs from callers: somebody ([`crate::driver::keeper`]) who brings a connection when there is none ([`Queue::wants_connection`]),
//! and who looks after one that nobody polls ([`Queue::look_after`]).
//!
//! One lock for all: the calls under it do not wait. The eventfd says that there is something that no socket would tell of:
//! ends that were found outside of a poll, or a wake-up. It stays readable until nobody sleeps who could have missed it.

use super::conn::{Link, Lost};
use super::dial::Dialed;
use super::requests::Requests;
use crate::clock;
use crate::driver::keeper::Watch;
use crate::driver::waits::{MAX_SLEEP, Waiting, Waits};
use crate::error::Result;
use crate::mem::Regions;
use crate::net::vectored::abandon;
use blk::driver::{Completions, RqBatch, TimedOut, TimeoutAnswer};
use blk::status::{BlkStatus, QueueRqStatus};
use blk::time::{Duration, Instant};
use parking_lot::Mutex;
use rustix::event::epoll;
use std::os::fd::RawFd;
use std::sync::Arc;

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
    /// There is to be a connection.
    pub used: bool,
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
    waits: Waits,
    keeper: Arc<Watch>,
}

struct State {
    link: Place,
    requests: Requests,
    waiting: Waiting,
    lazy_below: usize,
    status: QueueStatus,
    /// When the present or last connection was made, and how many in a row before it did not last.
    attached: Instant,
    short_lives: u32,
    /// Requests do not wait for a connection.
    gives_up: bool,
    /// While it gives up: a connection was given up for its silence, and requests wait for the one in its place until then.
    spared_until: Option<Instant>,
}

/// Where requests go.
enum Place {
    /// The queue is not in use.
    Nowhere,
    Up(Link),
    /// There was a connection. Requests wait for the next one until then, see [`State::waits_until`].
    Lost(Instant),
}

impl Place {
    fn is_tls(&self) -> bool {
        matches!(self, Place::Up(link) if link.is_tls())
    }
}

impl State {
    /// Without a connection: how long requests wait for one.
    fn waits_until(&self) -> Option<Instant> {
        match self.link {
            Place::Lost(until) if self.gives_up => Some(until.min(self.spared_until.unwrap_or(Instant::ZERO))),
            Place::Lost(until) => Some(until),
            Place::Nowhere | Place::Up(_) => None,
        }
    }
}

impl Queue {
    pub(super) fn new(patience: Patience, keeper: Arc<Watch>) -> Result<Queue> {
        let waits = Waits::new()?;
        let state = State {
            link: Place::Nowhere,
            requests: Requests::new(0),
            waiting: Waiting::default(),
            lazy_below: 0,
            status: QueueStatus::default(),
            attached: Instant::ZERO,
            short_lives: 0,
            gives_up: false,
            spared_until: None,
        };
        Ok(Queue { patience, state: Mutex::new(state), waits, keeper })
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
    pub(super) fn attach(&self, dialed: Dialed, regions: &Regions, is_first: bool) {
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
        match Link::new(dialed, self.waits.set()) {
            Ok(link) => {
                // A peer that leaves while nobody polls is noticed by the keeper; if not by this, a little later.
                let rdhup = epoll::EventFlags::RDHUP;
                let _ = epoll::add(self.keeper.set(), link.as_fd(), epoll::EventData::new_u64(0), rdhup);
                state.link = Place::Up(link);
                state.status.connected = true;
                state.requests.rewind(now);
                self.transmit(&mut state, regions);
            }
            Err(why) => self.lose(&mut state, Lost::Broken(why)),
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
        let state = self.state.lock();
        QueueStatus { used: !matches!(state.link, Place::Nowhere), ..state.status.clone() }
    }

    pub(super) fn queue_rqs(&self, batch: &mut RqBatch<'_>, regions: &Regions, now: Instant) -> QueueRqStatus {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.waits_until().is_some_and(|until| now >= until) {
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
        if let Err(lost) = link.transmit(&mut state.requests, regions, self.waits.set()) {
            self.lose(state, lost);
        }
    }

    /// Takes what the server has said.
    fn receive(&self, state: &mut State, regions: &Regions) {
        let Place::Up(link) = &mut state.link else { return };
        // A server that is told to stop by its owner answers with this; the next one will do it.
        let keep_on_shutdown = self.patience.reconnect_delay > Duration::ZERO;
        if let Err(lost) = link.receive(&mut state.requests, regions, keep_on_shutdown, self.waits.set()) {
            self.lose(state, lost);
        }
    }

    /// The connection is of no use any more.
    #[cold]
    fn lose(&self, state: &mut State, lost: Lost) {
        if let Place::Up(link) = &state.link {
            link.unwatch(self.waits.set());
            abandon(link.as_fd());
        }
        let now = clock::now();
        // Where the server is well others' requests wait for another connection in any case. An operator has it at once; a client
        // that has connections made anew one after the other has them made ever later, as a server that does.
        let (why, delay, is_hasty) = match lost {
            Lost::Broken(why) => (why, self.patience.reconnect_delay, true),
            Lost::HalfSent => (HALF_SENT.to_owned(), self.patience.reconnect_delay.max(REMAKE_TIME), true),
            Lost::GivenUp => (GIVEN_UP.to_owned(), self.patience.reconnect_delay.max(LATE), false),
        };
        state.link = Place::Lost(now + delay);
        let is_short = is_hasty && now.since(state.attached) < LONG_LIFE;
        state.short_lives = if is_short { state.short_lives + 1 } else { 0 };
        state.status.connected = false;
        state.status.losses += 1;
        state.status.last_loss = Some(why);
        if state.waits_until().is_none_or(|until| now >= until) {
            state.requests.fail_all(BlkStatus::IoErr);
        } else {
            state.status.replayed += state.requests.recall() as u64;
        }
        self.keeper.ring();
    }

    /// Has requests fail that wait for a connection, now and until it is taken back; and those that a server has not answered for
    /// [`LATE`], whose connection is given up with them, once: others are sent again on the next one, if it comes as soon. To be
    /// called again for those that become late.
    pub(super) fn set_give_up(&self, give_up: bool) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let now = clock::now();
        state.gives_up = give_up;
        if !give_up {
            state.spared_until = None;
        }
        let is_up = matches!(state.link, Place::Up(_));
        if give_up && is_up && state.spared_until.is_none() && state.requests.has_older(LATE, now) {
            state.spared_until = Some(now + LATE);
            state.requests.fail_older(LATE, now);
            // As of a server that is well: whether it is, the next connection shows.
            self.lose(state, Lost::GivenUp);
        }
        self.expire(state, now);
        self.tell_ends(state);
    }

    /// Ends what has waited for a connection for too long.
    fn expire(&self, state: &mut State, now: Instant) {
        if state.waits_until().is_some_and(|until| now >= until) {
            state.requests.fail_all(BlkStatus::IoErr);
        }
    }

    /// Ends that no socket tells of are told by the eventfd.
    fn tell_ends(&self, state: &mut State) {
        if state.requests.has_ended() {
            self.waits.signal(&mut state.waiting);
        }
    }

    pub(super) fn poll(&self, done: &mut Completions, regions: &Regions, now: Instant) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let is_busy = state.requests.in_flight() > 0;
        if is_busy && state.requests.unsent() > 0 {
            self.transmit(state, regions);
        }
        // TLS speaks also of itself (changed keys, tickets), unasked: as long as that is not taken nobody can sleep.
        if state.link.is_tls() || is_busy && state.requests.sent() > 0 {
            self.receive(state, regions);
        }
        if is_busy {
            self.expire(state, now);
        }
        let before = done.room();
        state.requests.give_ended(done);
        let found_last = done.room() != before && state.requests.in_flight() == 0;
        self.waits.polled(&mut state.waiting, state.requests.has_ended(), found_last);
    }

    /// See [`HostDriver::wait_since`](crate::driver::host_driver::HostDriver::wait_since).
    pub(super) fn wait(&self, seen: u64, timeout: Option<Duration>, regions: &Regions) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.requests.unsent() > 0 {
            self.transmit(state, regions);
        }
        let idle = state.requests.in_flight() == 0 && timeout.is_none();
        if idle || state.requests.has_ended() || self.waits.wakes() != seen {
            return self.waits.calm(&mut state.waiting, state.requests.has_ended());
        }
        let mut limit = timeout.unwrap_or(MAX_SLEEP);
        if let Some(until) = state.waits_until()
            && state.requests.in_flight() > 0
        {
            limit = limit.min(until.since(clock::now()));
        }
        self.waits.sleep(&mut guard, |state| &mut state.waiting, limit);
        let state = &mut *guard;
        self.waits.calm(&mut state.waiting, state.requests.has_ended());
    }

    pub(super) fn wakes(&self) -> u64 {
        self.waits.wakes()
    }

    pub(super) fn wake(&self) {
        self.waits.wake(&mut self.state.lock().waiting);
    }

    pub(super) fn set_lazy_commit(&self, fewer_than: u32) {
        self.state.lock().lazy_below = fewer_than as usize;
    }

    pub(super) fn ring_fd(&self) -> RawFd {
        self.waits.fd()
    }

    /// When a poll has something to do without a word from the server.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let state = self.state.lock();
        if state.requests.has_ended() {
            return Some(Instant::ZERO);
        }
        state.waits_until().filter(|_| state.requests.in_flight() > 0)
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
        self.lose(state, Lost::Broken(why));
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

/// A request that was not answered for this long is given up when that is asked for.
const LATE: Duration = Duration::from_secs(1);
/// Why a connection to a server that is well is given up.
const HALF_SENT: &str = "a client took the memory of its write away while it was sent";
/// Why one to a server that does not answer is.
const GIVEN_UP: &str = "requests that it had were given up by an operator";
/// How long requests wait at least for the connection in place of such a one: the longest pause before an attempt, and what that
/// may take.
const REMAKE_TIME: Duration = Duration::from_secs(1 + super::dial::DIAL_TIME.as_secs());
/// A connection that lasted this long was a good one.
const LONG_LIFE: Duration = Duration::from_secs(1);
const _: () = assert!(REMAKE_TIME.as_ns() >= LONG_LIFE.as_ns() + super::dial::DIAL_TIME.as_nanos() as u64);

#[cfg(test)]
mod tests {
    use super::super::handshake::Served;
    use super::*;
    use crate::nbd::wire::ReplyStyle;
    use std::os::unix::net::UnixStream;

    /// A client that breaks one connection after the other has each made later than the one before, from its making; whoever breaks
    /// one now and then, or has one given up, has another at once.
    #[test]
    fn connections_that_do_not_last_are_made_ever_later() {
        let patience = Patience { reconnect_delay: Duration::ZERO, timeout: None };
        let queue = Queue::new(patience, Arc::new(Watch::new().unwrap())).unwrap();
        let regions = Regions::new();
        let mut servers = Vec::new();
        let mut attach = |is_first| {
            let (client, server) = UnixStream::pair().unwrap();
            servers.push(server);
            let served = Served { size_bytes: 4096, flags: 1, min_block: 512, preferred_block: 512, max_payload: 4096 };
            let dialed = Dialed { socket: client.into(), tls: None, served, style: ReplyStyle::Simple };
            queue.attach(dialed, &regions, is_first);
            assert_eq!((queue.wants_connection(), queue.status().connected), (None, true));
        };
        // As if it had been made then; what the time is now is all the same.
        let lose = |attached, lost| {
            let mut state = queue.state.lock();
            state.attached = attached;
            queue.lose(&mut state, lost);
            drop(state);
            queue.wants_connection()
        };
        attach(true);
        let late = clock::now() + Duration::from_secs(3600);
        for pause in [20, 40, 80, 160, 320, 640, 1000, 1000, 1000] {
            assert_eq!(lose(late, Lost::HalfSent), Some(late + Duration::from_ms(pause)));
            attach(false);
        }
        assert_eq!(lose(late, Lost::Broken(String::new())), Some(late + Duration::from_ms(1000)));
        attach(false);
        assert_eq!(lose(Instant::ZERO, Lost::HalfSent), Some(Instant::ZERO), "it has lasted");
        attach(false);
        assert_eq!(lose(late, Lost::HalfSent), Some(late + Duration::from_ms(20)));
        attach(false);
        assert_eq!(lose(late, Lost::GivenUp), Some(Instant::ZERO));
        assert_eq!(queue.status().losses, 13);
        assert_eq!(pause_after(u32::MAX), LONG_LIFE);
    }
}
