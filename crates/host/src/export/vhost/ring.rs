// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A virtqueue's ring, split or packed: chains of descriptors come out, used ones go back.
//!
//! Guarantees: a ring that breaks a rule is an error, and its owner does not read it again.
//!
//! Source: virtio 1.3, sections 2.7 and 2.8.

use super::descriptor::{Desc, Head, RingError, View};
use super::memory::GuestMemory;
use super::packed::PackedRing;
use super::split::SplitRing;

/// Either kind.
pub(super) enum Ring {
    Split(SplitRing),
    Packed(PackedRing),
}

macro_rules! either {
    ($self:ident, $ring:ident => $call:expr) => {
        match $self {
            Ring::Split($ring) => $call,
            Ring::Packed($ring) => $call,
        }
    };
}

impl Ring {
    /// Whether the driver has made something available that was not taken.
    #[inline]
    pub(super) fn has_more(&mut self) -> Result<bool, RingError> {
        either!(self, r => r.has_more())
    }

    /// Has the processor fetch what the next chains, `most` at most, begin with: their descriptors, and where the first of each leads.
    /// Another processor has just written it, and one line after the other would be waited for.
    #[inline]
    pub(super) fn prefetch(&mut self, memory: &GuestMemory, most: usize, hint: &mut usize) {
        either!(self, r => r.prefetch(memory, most, hint));
    }

    /// Takes the next chain: its descriptors into `chain`, what was there being dropped.
    #[inline]
    pub(super) fn next(&mut self, view: &View, chain: &mut Vec<Desc>) -> Result<Option<Head>, RingError> {
        chain.clear();
        either!(self, r => r.next(view, chain))
    }

    /// Gives a chain back, into which `written` bytes were written. The driver sees it after [`Ring::publish`].
    #[inline]
    pub(super) fn add_used(&mut self, head: Head, written: u32) {
        either!(self, r => r.add_used(head, written));
    }

    /// Shows the driver all that was given back.
    #[inline]
    pub(super) fn publish(&mut self) {
        either!(self, r => r.publish());
    }

    /// Whether the driver wants to be told of what was published since the last call.
    #[inline]
    pub(super) fn wants_signal(&mut self) -> bool {
        either!(self, r => r.wants_signal())
    }

    /// Asks the driver for a notification of the next chain. A thread that sleeps after this checks again first.
    pub(super) fn enable_kicks(&mut self) {
        either!(self, r => r.set_kicks(true));
    }

    /// Tells the driver that it need not kick: the ring is polled anyway.
    pub(super) fn disable_kicks(&mut self) {
        either!(self, r => r.set_kicks(false));
    }

    /// The ring's position, as GET_VRING_BASE returns it.
    pub(super) fn base(&self) -> u32 {
        either!(self, r => r.base())
    }
}
