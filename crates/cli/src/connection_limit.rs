// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A limit on the clients of a socket that are served at once, each by a thread of its own.
//!
//! Guarantees: at most so many [`Connection`]s exist; a connection ends when it is dropped, however its thread ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts the connections of a socket.
pub struct ConnectionLimit {
    max: usize,
    open: AtomicUsize,
}

/// A connection within the limit.
pub struct Connection(Arc<ConnectionLimit>);

impl ConnectionLimit {
    /// A limit of `max` connections.
    pub fn new(max: usize) -> Arc<ConnectionLimit> {
        Arc::new(ConnectionLimit { max, open: AtomicUsize::new(0) })
    }

    /// Counts one more connection; `None` at the limit.
    pub fn connect(self: &Arc<ConnectionLimit>) -> Option<Connection> {
        // Relaxed: only a count.
        let is_allowed = self.open.fetch_add(1, Ordering::Relaxed) < self.max;
        // If it is dropped here, it no longer counts.
        let connection = Connection(Arc::clone(self));
        is_allowed.then_some(connection)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_stop_at_the_limit_until_one_is_dropped() {
        let limit = ConnectionLimit::new(2);
        let (first, second) = (limit.connect(), limit.connect());
        assert!(first.is_some() && second.is_some() && limit.connect().is_none() && limit.connect().is_none());
        drop(first);
        assert!(limit.connect().is_some(), "a rejected connection does not count");
    }
}
