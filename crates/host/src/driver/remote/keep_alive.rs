// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When to ask a silent peer whether it is there, and when it is taken for gone.

use blk::time::{Duration, Instant};

/// What was heard of a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeepAlive {
    /// When it was last heard.
    heard: Instant,
    /// When it was asked since.
    asked: Option<Instant>,
}

impl KeepAlive {
    /// A peer that has just been heard.
    pub(crate) fn new(now: Instant) -> KeepAlive {
        KeepAlive { heard: now, asked: None }
    }

    /// The peer has sent something.
    pub(crate) fn heard(&mut self, now: Instant) {
        *self = KeepAlive::new(now);
    }

    /// Whether it is to be asked now: it has been silent for `after`, and was not asked.
    ///
    /// # Errors
    /// It was asked and has not answered within `within`: how long it has been silent.
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
