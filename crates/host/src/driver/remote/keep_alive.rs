// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Decides when a silent peer is probed, and when it counts as gone.

use blk::time::{Duration, Instant};

/// The times of the last message from a peer and of the last probe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeepAlive {
    /// When the peer last sent something.
    heard: Instant,
    /// When the peer was probed since then.
    asked: Option<Instant>,
}

impl KeepAlive {
    /// Makes the state of a peer that has just sent something.
    pub(crate) fn new(now: Instant) -> KeepAlive {
        KeepAlive { heard: now, asked: None }
    }

    /// Records that the peer has sent something.
    pub(crate) fn heard(&mut self, now: Instant) {
        *self = KeepAlive::new(now);
    }

    /// Whether the peer must be probed now: it has been silent for `after`, and was not probed since.
    ///
    /// # Errors
    /// The peer was probed and has not answered within `within`; holds how long it has been silent.
    pub(crate) fn is_due(&mut self, after: Duration, within: Duration, now: Instant) -> Result<bool, Duration> {
        match self.asked {
            Some(when) if now.since(when) >= within => Err(now.since(self.heard)),
            None if now.since(self.heard) >= after => {
                self.asked = Some(now);
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}
