// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Places for handshakes: how many clients may negotiate at once, and which of them has to leave when there are more.
//!
//! Guarantees: a new client gets a place without waiting for the time limit of others. When all places are taken, the owner that has most of
//! them loses the place of its oldest silent client, or of its oldest client if all have sent something. So silent clients keep neither
//! other owners nor other clients of their own owner away. A client that was admitted to its export has no place any more: it does not
//! have to leave, however long it takes to receive the confirmation. Owners are those of [`crate::net::owner`].

use crate::net::owner::Owner;
use crate::net::socket::Peer;
use parking_lot::{Condvar, Mutex};
use rustix::net::Shutdown;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Maximum number of handshakes at the same time.
const MAX_HANDSHAKES: usize = 32;

/// A handshake that goes on.
struct Taken {
    number: u64,
    owner: Owner,
    socket: Weak<OwnedFd>,
    has_spoken: Arc<AtomicBool>,
    /// It was told to leave.
    leaves: bool,
    /// It was admitted to its export. So it may not be told to leave, and it needs no place: it counts as a connected client.
    is_admitted: bool,
}

#[derive(Default)]
struct PlacesState {
    /// Oldest first.
    taken: Vec<Taken>,
    next_number: u64,
    stopped: bool,
}

/// The places of a server.
#[derive(Default)]
pub(super) struct Places {
    state: Mutex<PlacesState>,
    /// Signalled when a handshake has ended, or the server stops.
    changed: Condvar,
}

/// A place, until it is dropped.
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
    /// Of the client.
    pub(super) owner: Owner,
    /// Set when the client has sent something.
    pub(super) has_spoken: Arc<AtomicBool>,
}

impl Place {
    /// Keeps the client, which was admitted to its export: from here on it may be told that it was.
    pub(super) fn keep(&self) {
        let mut state = self.places.state.lock();
        state.taken.iter_mut().filter(|t| t.number == self.number).for_each(|t| t.is_admitted = true);
        self.places.changed.notify_all();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.state.lock().taken.retain(|t| t.number != self.number);
        self.places.changed.notify_all();
    }
}

impl Places {
    /// Returns a place for the client; another may have to leave for it. `None`: the server stops.
    pub(super) fn take(self: &Arc<Places>, socket: &Arc<OwnedFd>) -> Option<Place> {
        let owner = Peer::of(&**socket).owner();
        let mut state = self.state.lock();
        while state.handshakes() >= MAX_HANDSHAKES && !state.stopped {
            if !state.taken.iter().any(|t| t.leaves) {
                state.evict();
            }
            self.changed.wait(&mut state);
        }
        if state.stopped {
            return None;
        }
        let number = state.next_number;
        state.next_number += 1;
        let has_spoken = Arc::<AtomicBool>::default();
        let socket = Arc::downgrade(socket);
        state.taken.push(Taken {
            number,
            owner,
            socket,
            has_spoken: Arc::clone(&has_spoken),
            leaves: false,
            is_admitted: false,
        });
        Some(Place { places: Arc::clone(self), number, owner, has_spoken })
    }

    /// Gives out no more places.
    pub(super) fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }

    /// Waits until no place is taken.
    pub(super) fn wait_empty(&self) {
        let mut state = self.state.lock();
        while !state.taken.is_empty() {
            self.changed.wait(&mut state);
        }
    }
}

impl PlacesState {
    /// Returns how many clients have a place.
    fn handshakes(&self) -> usize {
        self.taken.iter().filter(|t| !t.is_admitted).count()
    }

    /// Ends the connection of the client that has to leave; its thread gives the place back.
    fn evict(&mut self) {
        // Relaxed: a client that speaks at this moment may be counted either way.
        let mut may_leave: Vec<_> = self.taken.iter_mut().filter(|t| !t.is_admitted).collect();
        let all: Vec<_> = may_leave.iter().map(|t| (t.owner, t.has_spoken.load(Ordering::Relaxed))).collect();
        let Some(taken) = victim(&all).and_then(|at| may_leave.get_mut(at)) else { return };
        taken.leaves = true;
        if let Some(socket) = taken.socket.upgrade() {
            let _ = rustix::net::shutdown(&*socket, Shutdown::Both);
        }
    }
}

/// Returns which client has to leave, of these: whose it is, and whether it has spoken, oldest first.
fn victim(all: &[(Owner, bool)]) -> Option<usize> {
    let of = |owner: &Owner| all.iter().filter(|(other, _)| other == owner).count();
    let most = all.iter().map(|(owner, _)| of(owner)).max()?;
    let mut theirs = all.iter().enumerate().filter(|(_, (owner, _))| of(owner) == most);
    let first = theirs.clone().next().map(|(at, _)| at);
    theirs.find(|(_, (_, has_spoken))| !has_spoken).map(|(at, _)| at).or(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_peer_with_most_places_loses_its_oldest_silent_client() {
        let (a, b, c) = (Owner::User(1), Owner::User(2), Owner::Unknown);
        for (all, expected) in [
            (&[(a, true), (b, false), (b, true), (b, false)][..], 1),
            (&[(a, false), (b, true), (b, true)], 1),
            (&[(a, true), (b, true), (c, false)], 2),
            (&[(a, true), (b, true)], 0),
        ] {
            assert_eq!(victim(all), Some(expected), "{all:?}");
        }
        assert_eq!(victim(&[]), None);
    }

    #[test]
    fn the_owner_of_a_process_is_its_user() {
        let (socket, _other) = UnixStream::pair().unwrap();
        assert!(matches!(Peer::of(&socket).owner(), Owner::User(_)));
    }

    /// Clients that never say anything take all places; each new one gets a place at once.
    #[test]
    fn a_new_client_does_not_wait_for_silent_ones() {
        let places = Arc::<Places>::default();
        std::thread::scope(|scope| {
            let mut others = Vec::new();
            for _ in 0..3 * MAX_HANDSHAKES {
                let (socket, other) = UnixStream::pair().unwrap();
                let socket = Arc::new(OwnedFd::from(socket));
                let place = places.take(&socket).unwrap();
                others.push(other);
                // As a handshake's thread does: it ends when its client is shut down.
                scope.spawn(move || {
                    assert_eq!(rustix::io::read(&*socket, &mut [0; 1]), Ok(0));
                    drop((place, socket));
                });
            }
            assert_eq!(places.state.lock().taken.len(), MAX_HANDSHAKES);
            drop(others);
        });
        places.wait_empty();
        places.stop();
        let (socket, _other) = UnixStream::pair().unwrap();
        assert!(places.take(&Arc::new(socket.into())).is_none());
    }

    /// A client used to be dropped for another one after its export was confirmed.
    #[test]
    fn an_admitted_client_neither_leaves_nor_needs_a_place() {
        let places = Arc::<Places>::default();
        let take = || {
            let (socket, other) = UnixStream::pair().unwrap();
            let socket = Arc::new(OwnedFd::from(socket));
            (places.take(&socket).unwrap(), socket, other)
        };
        let first = take();
        first.0.keep();
        let others: Vec<_> = (0..MAX_HANDSHAKES).map(|_| take()).collect();
        let mut state = places.state.lock();
        assert!(state.taken.iter().all(|t| !t.leaves));
        assert_eq!((state.taken.len(), state.handshakes()), (MAX_HANDSHAKES + 1, MAX_HANDSHAKES));
        state.evict();
        assert_eq!(state.taken.iter().position(|t| t.leaves), Some(1), "the oldest one leaves that was not admitted");
        drop(state);
        drop((first, others));
    }
}
