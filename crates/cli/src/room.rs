// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many clients of a socket are served at once, each by a thread of its own.
//!
//! Guarantees: no more than the room has places; a place is free again when its [`Guest`] is dropped, however its thread ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Places for clients.
pub struct Room {
    places: usize,
    taken: AtomicUsize,
}

/// A place that is taken.
pub struct Guest(Arc<Room>);

impl Room {
    /// A room with this many places.
    pub fn new(places: usize) -> Arc<Room> {
        Arc::new(Room { places, taken: AtomicUsize::new(0) })
    }

    /// A place, if there is one.
    pub fn enter(self: &Arc<Room>) -> Option<Guest> {
        // Relaxed: only a count.
        let guest = self.taken.fetch_add(1, Ordering::Relaxed) < self.places;
        let place = Guest(Arc::clone(self));
        guest.then_some(place)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_places_as_said_and_they_come_free() {
        let room = Room::new(2);
        let (first, second) = (room.enter(), room.enter());
        assert!(first.is_some() && second.is_some() && room.enter().is_none() && room.enter().is_none());
        drop(first);
        assert!(room.enter().is_some(), "who was turned away took no place");
    }
}
