// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A hardware queue over a connection: its requests, its connection, and the threads that wait for it.
//!
//! Guarantees: a wake-up ends the sleep of all threads that sleep or are about to; a lost connection wakes the [reconnecting
//! thread](super::reconnect). Requests' memory is accessed only under the lock, and not after the request has completed.
//! Needs from protocols: calls under the lock do not wait. The protocol decides what happens to requests when a connection
//! is lost.
//!
//! One lock protects everything. Two events reach no socket: a completion that a thread found outside its poll, and a wake-up. The eventfd
//! signals both. It stays readable until every thread that may have slept through the event is awake.

use super::reconnect::Watch;
use super::stream::Stream;
use crate::driver::path::Connections;
use crate::driver::waits::{Waiting, Waits};
use crate::error::Result;
use crate::net::vectored::abandon;
use blk::time::{Duration, Instant};
use parking_lot::{Mutex, MutexGuard};
use rustix::event::epoll;
use std::ops::Add;
use std::os::fd::RawFd;
use std::sync::Arc;

/// With give-up set, requests unanswered for this long fail.
pub(crate) const LATE: Duration = Duration::from_secs(1);
/// A connection that lasted at least this long does not count as short-lived.
pub(crate) const LONG_LIFE: Duration = Duration::from_secs(1);

/// What has happened to a queue's connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueStatus {
    /// The queue is in use, so there should be a connection.
    pub used: bool,
    /// There is a connection now.
    pub connected: bool,
    /// Connections lost so far.
    pub losses: u64,
    /// Requests so far that were in flight when a connection was lost, and were sent again or failed.
    pub replayed: u64,
    /// Why the last connection was lost.
    pub last_loss: Option<String>,
}

/// Sums the connections of all queues.
pub(crate) fn sum_of(queues: impl Iterator<Item = QueueStatus>) -> Connections {
    let one = |q: QueueStatus| Connections {
        wanted: u64::from(q.used),
        up: u64::from(q.connected),
        losses: q.losses,
        replayed: q.replayed,
    };
    queues.map(one).fold(Connections::default(), Add::add)
}

/// Returns how often connections were lost, and why the last one was; `None` if none was.
pub(crate) fn losses_of(queues: &[QueueStatus]) -> Option<(String, &str)> {
    let last = queues.iter().filter_map(|q| q.last_loss.as_deref()).next_back()?;
    let losses: u64 = queues.iter().map(|q| q.losses).sum();
    Some((if losses == 1 { "once".to_owned() } else { format!("{losses} times") }, last))
}

/// A protocol as a queue needs it.
pub(crate) trait Protocol {
    /// A live connection.
    type Link: Link;
    /// The queue's requests.
    type Requests: Requests;
    /// Other state of the protocol per queue.
    type ProtocolState: Default;
}

/// A live connection.
pub(crate) trait Link {
    /// Its socket.
    fn stream(&self) -> &Stream;
}

/// Requests of a queue.
pub(crate) trait Requests {
    /// Makes room for tags below `depth`.
    fn resize(&mut self, depth: usize);

    /// Whether completed requests wait to be polled.
    fn has_ended(&self) -> bool;
}

/// Where requests go.
pub(crate) enum LinkState<L> {
    /// The queue is not in use.
    Unused,
    Up(L),
    /// The connection was lost. Requests wait for the next one until this time.
    Lost(Instant),
}

/// A queue's state, under its lock.
pub(crate) struct QueueState<P: Protocol> {
    pub(crate) link: LinkState<P::Link>,
    pub(crate) requests: P::Requests,
    pub(crate) protocol: P::ProtocolState,
    pub(crate) waiting: Waiting,
    pub(crate) lazy_below: usize,
    pub(crate) status: QueueStatus,
    /// When the current or last connection was made, and (`short_lives`) how many consecutive connections before it were short-lived.
    pub(crate) attached: Instant,
    short_lives: u32,
    /// Requests fail instead of waiting for a connection.
    pub(crate) gives_up: bool,
}

impl<P: Protocol> QueueState<P> {
    pub(crate) fn is_up(&self) -> bool {
        matches!(self.link, LinkState::Up(_))
    }

    /// Whether a connection can be used: the first one since a start, or one in place of a lost one.
    pub(crate) fn needs_connection(&self, is_first: bool) -> bool {
        match self.link {
            LinkState::Unused => is_first,
            LinkState::Up(_) => false,
            LinkState::Lost(_) => !is_first,
        }
    }

    /// Takes the queue out of use. Returns its connection, if it had one.
    pub(crate) fn end(&mut self) -> Option<P::Link> {
        self.status.connected = false;
        match std::mem::replace(&mut self.link, LinkState::Unused) {
            LinkState::Up(link) => Some(link),
            LinkState::Unused | LinkState::Lost(_) => None,
        }
    }
}

/// See the module's text.
pub(crate) struct Queue<P: Protocol> {
    state: Mutex<QueueState<P>>,
    pub(crate) waits: Waits,
    watch: Arc<Watch>,
}

impl<P: Protocol> Queue<P> {
    pub(crate) fn new(requests: P::Requests, watch: Arc<Watch>) -> Result<Queue<P>> {
        let waits = Waits::new()?;
        let state = QueueState {
            link: LinkState::Unused,
            requests,
            protocol: P::ProtocolState::default(),
            waiting: Waiting::default(),
            lazy_below: 0,
            status: QueueStatus::default(),
            attached: Instant::ZERO,
            short_lives: 0,
            gives_up: false,
        };
        Ok(Queue { state: Mutex::new(state), waits, watch })
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, QueueState<P>> {
        self.state.lock()
    }

    /// Makes room for tags below `depth`. Returns whether the queue has, or once had, a connection.
    pub(crate) fn start(&self, depth: u32) -> bool {
        let mut state = self.lock();
        state.requests.resize(depth as usize);
        state.lazy_below = 0;
        !matches!(state.link, LinkState::Unused)
    }

    /// Uses this connection from now on.
    pub(crate) fn use_link(&self, state: &mut QueueState<P>, link: P::Link) {
        // If the peer disconnects while no thread polls, this event wakes the reconnect thread. Without the event, that
        // thread notices it a little later.
        let rdhup = epoll::EventFlags::RDHUP;
        let _ = epoll::add(self.watch.set(), link.stream().as_fd(), epoll::EventData::new_u64(0), rdhup);
        state.link = LinkState::Up(link);
        state.status.connected = true;
    }

    /// Drops the connection because of `why`; requests wait for the next one until `until`. `is_hasty`: if the connection was
    /// short-lived, the next one is delayed.
    #[cold]
    pub(crate) fn link_lost(
        &self,
        state: &mut QueueState<P>,
        why: String,
        now: Instant,
        until: Instant,
        is_hasty: bool,
    ) {
        if let LinkState::Up(link) = &state.link {
            link.stream().unwatch(self.waits.set());
            abandon(link.stream().as_fd());
        }
        state.link = LinkState::Lost(until);
        let is_short = is_hasty && now.since(state.attached) < LONG_LIFE;
        state.short_lives = if is_short { state.short_lives + 1 } else { 0 };
        state.status.connected = false;
        state.status.losses += 1;
        state.status.last_loss = Some(why);
        self.watch.wake();
    }

    /// Earliest time for the next connection; `None` if the queue needs none.
    pub(crate) fn wants_connection(&self) -> Option<Instant> {
        let state = self.lock();
        match state.link {
            LinkState::Lost(_) if state.short_lives == 0 => Some(Instant::ZERO),
            LinkState::Lost(_) => Some(state.attached + pause_after(state.short_lives)),
            LinkState::Unused | LinkState::Up(_) => None,
        }
    }

    pub(crate) fn status(&self) -> QueueStatus {
        let state = self.lock();
        QueueStatus { used: !matches!(state.link, LinkState::Unused), ..state.status.clone() }
    }

    /// Signals, by the eventfd, completions that no socket signals.
    #[inline]
    pub(crate) fn tell_ends(&self, state: &mut QueueState<P>) {
        if state.requests.has_ended() {
            self.waits.signal(&mut state.waiting);
        }
    }

    /// Clears the eventfd once no thread is left that could miss it.
    pub(crate) fn calm(&self, state: &mut QueueState<P>) {
        self.waits.calm(&mut state.waiting, state.requests.has_ended());
    }

    /// Sleeps without the lock until there is an event, for `limit` at most.
    pub(crate) fn sleep(&self, guard: &mut MutexGuard<'_, QueueState<P>>, limit: Duration) {
        self.waits.sleep(guard, |state| &mut state.waiting, limit);
        self.calm(guard);
    }

    pub(crate) fn wakes(&self) -> u64 {
        self.waits.wakes()
    }

    pub(crate) fn wake(&self) {
        self.waits.wake(&mut self.lock().waiting);
    }

    pub(crate) fn set_lazy_commit(&self, fewer_than: u32) {
        self.lock().lazy_below = fewer_than as usize;
    }

    pub(crate) fn ring_fd(&self) -> RawFd {
        self.waits.fd()
    }
}

/// Minimum time between two short-lived connections.
fn pause_after(short_lives: u32) -> Duration {
    Duration::from_ms(10 << short_lives.min(10)).min(LONG_LIFE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_between_short_lived_connections_is_bounded() {
        assert_eq!(pause_after(u32::MAX), LONG_LIFE);
    }
}
