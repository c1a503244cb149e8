// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Optimizations for a thread that alone issues the requests of a hardware queue.

use blk::id::HctxId;

/// A driver that issues requests in fewer system calls if it knows which thread issues them.
pub trait Issuer {
    /// While fewer than `fewer_than` requests are queued for `hctx`, `queue_rqs` may leave their submission to the device to the next
    /// [`HostDriver::wait`](super::HostDriver::wait) or `poll`. A thread that submits the rest of a batch and then waits makes one system
    /// call instead of two. With 0 or 1 nothing is deferred. A caller that sets more must call one of the two soon after every submission.
    fn set_lazy_commit(&self, _hctx: HctxId, _fewer_than: u32) {}

    /// Returns the smallest useful `fewer_than` of [`Issuer::set_lazy_commit`] for a thread that waits soon after submitting; 0 if more
    /// than a batch gains nothing.
    fn lazy_hint(&self) -> u32 {
        0
    }

    /// Makes the calling thread the owner of `hctx` until it calls [`Issuer::release`]: a driver may be faster if one thread submits,
    /// polls and waits. Other threads may still do all of that, but slower. Their requests may have to wait until the owner submits, polls
    /// or waits, so the owner must keep doing so while they have requests in flight. While this call or `release` runs, no other thread
    /// may be in a call for this hctx or have a request there, because that request could be lost. Refused while requests are in flight.
    /// Returns whether the claim makes a difference. If the owner exits without `release`, the I/O of all other threads on the hctx stops.
    fn claim(&self, _hctx: HctxId) -> bool {
        false
    }

    /// Ends a [`Issuer::claim`]. Called by the owner, with no request in flight.
    fn release(&self, _hctx: HctxId) {}

    /// Undoes all claims and all settings of [`Issuer::set_lazy_commit`], so that all threads may use every hctx alike. Requires that no
    /// request is in flight, and that no thread queues or polls meanwhile. A thread that had claimed an hctx still calls
    /// [`Issuer::release`].
    fn unclaim(&self) {}
}
