// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A virtqueue's ring, split or packed: provides available chains of descriptors, and returns used ones.
//!
//! Guarantees: a violation of the ring's rules is returned as an error; the owner then does not read the ring again.
//!
//! Source: virtio 1.3, sections 2.7 and 2.8.

use super::descriptor::{Desc, Head, RingError, View};
use super::memory::GuestMemory;
use super::packed::PackedRing;
use super::split::SplitRing;

/// A ring of either kind.
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

    /// Returns how many chains are available, as of the last [`Ring::prefetch`]. A packed ring does not count them: always 0.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        match self {
            Ring::Split(ring) => usize::from(ring.waiting()),
            Ring::Packed(_) => 0,
        }
    }

    /// Prefetches the memory that the first descriptors of up to `most` next chains point to, and in a split ring the descriptors of
    /// twice as many. Another processor has just written these cache lines, so without prefetching each would stall in turn.
    #[inline]
    pub(super) fn prefetch(&mut self, memory: &GuestMemory, most: usize, hint: &mut usize) {
        either!(self, r => r.prefetch(memory, most, hint));
    }

    /// Takes the next chain and replaces the content of `chain` by its descriptors.
    #[inline]
    pub(super) fn next(&mut self, view: &View, chain: &mut Vec<Desc>) -> Result<Option<Head>, RingError> {
        chain.clear();
        either!(self, r => r.next(view, chain))
    }

    /// Returns a chain into which `written` bytes were written to the driver. The driver sees it after [`Ring::publish`].
    #[inline]
    pub(super) fn add_used(&mut self, head: Head, written: u32) {
        either!(self, r => r.add_used(head, written));
    }

    /// Publishes all returned chains to the driver.
    #[inline]
    pub(super) fn publish(&mut self) {
        either!(self, r => r.publish());
    }

    /// Whether the driver wants a notification of chains that were published since the last call.
    #[inline]
    pub(super) fn wants_signal(&mut self) -> bool {
        either!(self, r => r.wants_signal())
    }

    /// Asks the driver for a notification of the next chain. A thread that is about to sleep must check the ring again after this.
    pub(super) fn enable_kicks(&mut self) {
        either!(self, r => r.set_kicks(true));
    }

    /// Tells the driver that it need not kick: the ring is polled anyway.
    pub(super) fn disable_kicks(&mut self) {
        either!(self, r => r.set_kicks(false));
    }

    /// Returns the ring's position in the form of GET_VRING_BASE.
    pub(super) fn base(&self) -> u32 {
        either!(self, r => r.base())
    }
}
