// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One hardware queue: its requests, its connection, and its waiting threads.
//!
//! Guarantees: a request completes once: by its reply, by its timeout, or because there was no connection for too long. A
//! lost connection fails no requests: they are sent again on the next connection, in their order.
//! Needs from callers: the thread of [`crate::driver::remote::reconnect`]. It makes a connection when there is none, and
//! checks a connection that no thread polls ([`Queue::look_after`]).
//!
//! The lock, the connection and the threads that wait are those of [`crate::driver::remote::queue`].

use super::conn::{Link, Lost};
use super::dial::Dialed;
use super::requests::Requests;
use crate::clock;
use crate::driver::remote::queue::{self as remote, LATE, LONG_LIFE, LinkState, Protocol, QueueState};
use crate::driver::remote::reconnect::Watch;
use crate::driver::remote::stream::Stream;
use crate::driver::waits::MAX_SLEEP;
use crate::error::Result;
use crate::mem::Regions;
use blk::driver::{Completions, RqBatch, TimedOut, TimeoutAnswer};
use blk::status::{BlkStatus, QueueRqStatus};
use blk::time::{Duration, Instant};
use std::sync::Arc;

/// Time limits of requests without an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    /// How long they wait for another connection.
    pub(super) reconnect_delay: Duration,
    /// How long one waits for its reply on a live connection.
    pub(super) timeout: Option<Duration>,
}

/// NBD as a queue needs it.
pub(super) struct Nbd;

impl Protocol for Nbd {
    type Link = Link;
    type Requests = Requests;
    type ProtocolState = ProtocolState;
}

impl remote::Link for Link {
    fn stream(&self) -> &Stream {
        &self.stream
    }
}

impl remote::Requests for Requests {
    fn resize(&mut self, depth: usize) {
        assert!(self.in_flight() == 0, "restarted with requests in flight");
        self.resize(depth);
    }

    fn has_ended(&self) -> bool {
        self.has_ended()
    }
}

/// Other state of a queue.
#[derive(Default)]
pub(super) struct ProtocolState {
    /// With give-up set: a connection was dropped because the server was silent, and requests wait for the next one until this time.
    spared_until: Option<Instant>,
}

type State = QueueState<Nbd>;

pub(super) struct Queue {
    timeouts: Timeouts,
    /// All writes carry FUA.
    write_through: bool,
    pub(super) core: remote::Queue<Nbd>,
}

/// Returns until when requests wait for a connection, if there is none.
fn waits_until(state: &State) -> Option<Instant> {
    match state.link {
        LinkState::Lost(until) if state.gives_up => {
            Some(until.min(state.protocol.spared_until.unwrap_or(Instant::ZERO)))
        }
        LinkState::Lost(until) => Some(until),
        LinkState::Unused | LinkState::Up(_) => None,
    }
}

impl Queue {
    pub(super) fn new(timeouts: Timeouts, write_through: bool, watch: Arc<Watch>) -> Result<Queue> {
        Ok(Queue { timeouts, write_through, core: remote::Queue::new(Requests::new(0), watch)? })
    }

    /// Takes the queue out of use until the next start.
    pub(super) fn stop(&self) {
        if let Some(link) = self.core.lock().end() {
            link.disconnect();
        }
    }

    /// Uses a connection: the first one since a start, or one in place of a lost one. Sends the requests that wait.
    pub(super) fn attach(&self, dialed: Dialed, regions: &Regions, is_first: bool) {
        let mut state = self.core.lock();
        if !state.needs_connection(is_first) {
            return;
        }
        let now = clock::now();
        // Some may have waited for too long without a poll to notice it.
        self.expire(&mut state, now);
        state.attached = now;
        match Link::new(dialed, self.core.waits.set()) {
            Ok(link) => {
                self.core.use_link(&mut state, link);
                state.requests.rewind(now);
                self.transmit(&mut state, regions);
            }
            Err(why) => self.lose(&mut state, Lost::Broken(why)),
        }
        self.core.tell_ends(&mut state);
    }

    pub(super) fn queue_rqs(&self, batch: &mut RqBatch<'_>, regions: &Regions, now: Instant) -> QueueRqStatus {
        let mut guard = self.core.lock();
        let state = &mut *guard;
        if waits_until(state).is_some_and(|until| now >= until) {
            (0..batch.remaining()).for_each(|_| batch.end(BlkStatus::IoErr));
            return QueueRqStatus::Queued;
        }
        while let Some(rq) = batch.front() {
            match state.requests.take(&rq, self.write_through, regions, now) {
                Ok(tag) => state.requests.begin(tag, batch.accept()),
                Err(status) => batch.end(status),
            }
        }
        if state.requests.unsent() >= state.lazy_below.max(1) {
            self.transmit(state, regions);
            self.core.tell_ends(state);
        }
        QueueRqStatus::Queued
    }

    /// Sends as much as the socket takes.
    fn transmit(&self, state: &mut State, regions: &Regions) {
        let LinkState::Up(link) = &mut state.link else { return };
        if let Err(lost) = link.transmit(&mut state.requests, regions, self.core.waits.set()) {
            self.lose(state, lost);
        }
    }

    /// Receives what the socket has.
    fn receive(&self, state: &mut State, regions: &Regions) {
        let LinkState::Up(link) = &mut state.link else { return };
        // A server that is being stopped answers with this error, and a later server executes the request.
        let keep_on_shutdown = self.timeouts.reconnect_delay > Duration::ZERO;
        if let Err(lost) = link.receive(&mut state.requests, regions, keep_on_shutdown, self.core.waits.set()) {
            self.lose(state, lost);
        }
    }

    /// Drops the connection after a failure.
    #[cold]
    fn lose(&self, state: &mut State, lost: Lost) {
        let now = clock::now();
        // If the server works, other requests wait for a new connection in any case. After a give-up by an operator it is made at once. A
        // client, or a server, that breaks one connection after the other gets each new one later.
        let (why, delay, is_hasty) = match lost {
            Lost::Broken(why) => (why, self.timeouts.reconnect_delay, true),
            Lost::HalfSent => (HALF_SENT.to_owned(), self.timeouts.reconnect_delay.max(REMAKE_TIME), true),
            Lost::GivenUp => (GIVEN_UP.to_owned(), self.timeouts.reconnect_delay.max(LATE), false),
        };
        self.core.link_lost(state, why, now, now + delay, is_hasty);
        if waits_until(state).is_none_or(|until| now >= until) {
            state.requests.fail_all(BlkStatus::IoErr);
        } else {
            state.status.replayed += state.requests.recall() as u64;
        }
    }

    /// While set, requests that wait for a connection fail. Requests unanswered for [`LATE`] fail too and their connection is
    /// dropped, once; its other requests are sent again if a new connection comes within [`LATE`]. Call again to catch requests that
    /// became late.
    pub(super) fn set_give_up(&self, give_up: bool) {
        let mut guard = self.core.lock();
        let state = &mut *guard;
        let now = clock::now();
        state.gives_up = give_up;
        if !give_up {
            state.protocol.spared_until = None;
        }
        let is_up = state.is_up();
        if give_up && is_up && state.protocol.spared_until.is_none() && state.requests.has_older(LATE, now) {
            state.protocol.spared_until = Some(now + LATE);
            state.requests.fail_older(LATE, now);
            // Treated as a working server; the next connection shows whether it is one.
            self.lose(state, Lost::GivenUp);
        }
        self.expire(state, now);
        self.core.tell_ends(state);
    }

    /// Fails requests that have waited for a connection for too long.
    fn expire(&self, state: &mut State, now: Instant) {
        if waits_until(state).is_some_and(|until| now >= until) {
            state.requests.fail_all(BlkStatus::IoErr);
        }
    }

    pub(super) fn poll(&self, done: &mut Completions, regions: &Regions, now: Instant) {
        let mut guard = self.core.lock();
        let state = &mut *guard;
        let is_busy = state.requests.in_flight() > 0;
        if is_busy && state.requests.unsent() > 0 {
            self.transmit(state, regions);
        }
        // TLS also sends messages of its own (changed keys, tickets): until they are read no thread can sleep.
        if matches!(&state.link, LinkState::Up(link) if link.stream.is_tls()) || is_busy && state.requests.sent() > 0 {
            self.receive(state, regions);
        }
        if is_busy {
            self.expire(state, now);
        }
        let before = done.room();
        state.requests.give_ended(done);
        let found_last = done.room() != before && state.requests.in_flight() == 0;
        self.core.waits.polled(&mut state.waiting, state.requests.has_ended(), found_last);
    }

    /// See [`HostDriver::wait_since`](crate::driver::host_driver::HostDriver::wait_since).
    pub(super) fn wait(&self, seen: u64, timeout: Option<Duration>, regions: &Regions) {
        let mut guard = self.core.lock();
        let state = &mut *guard;
        if state.requests.unsent() > 0 {
            self.transmit(state, regions);
        }
        let idle = state.requests.in_flight() == 0 && timeout.is_none();
        if idle || state.requests.has_ended() || self.core.waits.wakes() != seen {
            return self.core.calm(state);
        }
        let mut limit = timeout.unwrap_or(MAX_SLEEP);
        if let Some(until) = waits_until(state)
            && state.requests.in_flight() > 0
        {
            limit = limit.min(until.since(clock::now()));
        }
        self.core.sleep(&mut guard, limit);
    }

    /// Returns when a poll has something to do although the server has sent nothing.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let state = self.core.lock();
        if state.requests.has_ended() {
            return Some(Instant::ZERO);
        }
        waits_until(&state).filter(|_| state.requests.in_flight() > 0)
    }

    /// Handles a late request. If its connection has had its time, the request and all others that have waited as long fail,
    /// and the connection is dropped, so a later reply matches no request.
    pub(super) fn timeout(&self, late: TimedOut, now: Instant) -> TimeoutAnswer {
        let mut guard = self.core.lock();
        let state = &mut *guard;
        if !state.requests.is_out(late.tag, late.issued) {
            return TimeoutAnswer::Done;
        }
        let Some(timeout) = self.timeouts.timeout else { return TimeoutAnswer::ResetTimer };
        let up = state.is_up();
        if !up || now.since(state.requests.sent_since(late.tag)) < timeout {
            return TimeoutAnswer::ResetTimer;
        }
        state.requests.fail_older(timeout, now);
        let why = format!("no reply for {} s", timeout.as_ns() / 1_000_000_000);
        self.lose(state, Lost::Broken(why));
        self.core.tell_ends(state);
        TimeoutAnswer::Done
    }

    /// Without a poll, notices a lost connection and reads unsolicited messages.
    pub(super) fn look_after(&self, regions: &Regions) {
        let mut guard = self.core.lock();
        let state = &mut *guard;
        self.receive(state, regions);
        self.expire(state, clock::now());
        self.core.tell_ends(state);
    }
}

/// Why a connection to a working server is dropped.
const HALF_SENT: &str =
    "the memory of a write's data was unmapped, or its memory file truncated, while the write was sent";
/// Why a connection to a silent server is dropped.
const GIVEN_UP: &str = "an operator gave up its requests";
/// How long requests wait at least for the connection after one to a silent server: the longest pause before an attempt, and
/// the time of an attempt.
const REMAKE_TIME: Duration = Duration::from_secs(1 + super::dial::DIAL_TIME.as_secs());
const _: () = assert!(REMAKE_TIME.as_ns() >= LONG_LIFE.as_ns() + super::dial::DIAL_TIME.as_nanos() as u64);

#[cfg(test)]
mod tests {
    use super::super::handshake::Served;
    use super::*;
    use crate::nbd::wire::ReplyStyle;
    use std::os::unix::net::UnixStream;

    /// If a client breaks one connection after the other, the pause between connections grows. After an occasional loss, or a give-up, a
    /// new connection is made at once.
    #[test]
    fn connections_that_do_not_last_are_made_ever_later() {
        let timeouts = Timeouts { reconnect_delay: Duration::ZERO, timeout: None };
        let queue = Queue::new(timeouts, false, Arc::new(Watch::new().unwrap())).unwrap();
        let regions = Regions::new();
        let mut servers = Vec::new();
        let mut attach = |is_first| {
            let (client, server) = UnixStream::pair().unwrap();
            servers.push(server);
            let served = Served { size_bytes: 4096, flags: 1, min_block: 512, preferred_block: 512, max_payload: 4096 };
            let dialed = Dialed { socket: client.into(), tls: None, served, style: ReplyStyle::Simple };
            queue.attach(dialed, &regions, is_first);
            assert_eq!((queue.core.wants_connection(), queue.core.status().connected), (None, true));
        };
        // Loses the connection at `lost`, as if it had been made at `attached`; the current time does not matter.
        let lose = |attached, lost| {
            let mut state = queue.core.lock();
            state.attached = attached;
            queue.lose(&mut state, lost);
            drop(state);
            queue.core.wants_connection()
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
        assert_eq!(queue.core.status().losses, 13);
    }
}
