// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the one thread that issues requests of a hardware queue can have made cheaper.

use blk::id::HctxId;

/// A driver that issues requests in fewer system calls if it knows which thread issues them.
pub trait Issuer {
    /// While there are fewer than `fewer_than` requests, `queue_rqs` for `hctx` may leave showing them to the device to the
    /// next [`HostDriver::wait`](super::HostDriver::wait) or `poll`. A thread that submits the rest of a batch and waits right
    /// after it then makes one system call instead of two. 0 and 1 leave nothing. A caller that sets more must call one of the
    /// two soon after every submission.
    fn set_lazy_commit(&self, _hctx: HctxId, _fewer_than: u32) {}

    /// Smallest useful `fewer_than` of [`Issuer::set_lazy_commit`] for a thread that waits soon after submitting; 0 if more than a
    /// batch gains nothing.
    fn lazy_hint(&self) -> u32 {
        0
    }

    /// The calling thread is from now on the one that submits to `hctx`, polls it and waits for it, until it calls
    /// [`Issuer::release`]; a driver may be faster for it. Other threads may still do all of that, but slower. What they queue
    /// may have to wait until this thread submits, polls or waits. So it must keep doing so while they have anything in flight.
    /// While this call or `release` runs, no other thread may be in a call for this hctx, or have a request there: what they
    /// queued could be lost. Refused when something is in flight already. Returns whether it makes a difference. A thread that
    /// ends without `release` ends the I/O of all others on the hctx.
    fn claim(&self, _hctx: HctxId) -> bool {
        false
    }

    /// Ends a [`Issuer::claim`]; by the thread that made it, with nothing in flight.
    fn release(&self, _hctx: HctxId) {}

    /// Undoes all claims and what [`Issuer::set_lazy_commit`] has set: every thread may use every hctx like any other from
    /// now on. Nothing is in flight, and no thread is in a call that queues or polls, or comes to one meanwhile. A thread that had
    /// claimed an hctx still calls [`Issuer::release`].
    fn unclaim(&self) {}
}
