// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the host needs of a driver beyond `blk::driver::Driver`: a way to wait, and what a device offers beside I/O.

use super::connections::Connections;
use super::scsi::{Checked, RawAnswer, RawCommand, ScsiDepth, Tell};
use super::space::{Allocation, Stretch};
use super::topology::Topology;
use crate::error::{Error, Result};
use blk::driver::Driver;
use blk::id::{HctxId, Sector};
use blk::scsi::alua::Access;
use blk::time::{Duration, Instant};
use std::os::fd::{OwnedFd, RawFd};

/// A driver whose completions a thread can wait for without spinning.
pub trait HostDriver: Driver {
    /// Most hardware queues that [`Driver::start`] may be asked for: what a disk has that names no number, and no CPU for each.
    fn max_hw_queues(&self) -> u16 {
        u16::MAX
    }

    /// Blocks until `min` requests of `hctx` that were in flight at the call may have finished (at least one), `timeout`
    /// has passed, or [`HostDriver::wake`] was called since the moment `seen` was read from [`HostDriver::wakes`]; may
    /// return early for no reason. Poll afterwards. Other threads may queue, poll and wait on the same hctx meanwhile,
    /// and what they queue counts; then `min` must be 1, for a wake-up may count as one completion only. Returns at once
    /// when nothing is in flight and there is no `timeout`.
    ///
    /// A driver whose requests are finished when they are issued has nothing to wait for: the default returns.
    fn wait_since(&self, _seen: u64, _hctx: HctxId, _min: u32, _timeout: Option<Duration>) {}

    /// [`HostDriver::wait_since`] now: wake-ups before the call do not count.
    fn wait(&self, hctx: HctxId, min: u32, timeout: Option<Duration>) {
        self.wait_since(self.wakes(hctx), hctx, min, timeout);
    }

    /// How often [`HostDriver::wake`] was called for `hctx`, or more. Whoever reads it, then makes known that it is going
    /// to wait, then waits since this number, misses no wake-up by those who know.
    fn wakes(&self, _hctx: HctxId) -> u64 {
        0
    }

    /// Makes all threads return that are in a wait for `hctx`, or come to it with an older [`HostDriver::wakes`].
    fn wake(&self, _hctx: HctxId) {}

    /// When the first request of `hctx` will be finished, for a driver that completes by time.
    fn next_due(&self, _hctx: HctxId) -> Option<Instant> {
        None
    }

    /// `queue_rqs` for `hctx` may leave it to the next [`HostDriver::wait`] or `poll` to make the device see its requests
    /// as long as there are fewer than `fewer_than`: one system call instead of two for a thread that waits right after
    /// it has submitted what is left of a batch. 0 and 1 leave nothing. Whoever sets more must call one of the two
    /// soon after every submission.
    fn set_lazy_commit(&self, _hctx: HctxId, _fewer_than: u32) {}

    /// As how many requests, at least, [`HostDriver::set_lazy_commit`] is best told by who waits soon after it has submitted:
    /// 0 if nothing is gained by more than a batch.
    fn lazy_hint(&self) -> u32 {
        0
    }

    /// The calling thread is from now on the one that submits to `hctx`, polls it and waits for it, until it calls
    /// [`HostDriver::release`]; a driver may be faster for it. Others still may do all of that, slower: what they queue
    /// may have to wait until this thread submits, polls or waits, so it goes on doing so while they have anything in
    /// flight. Nobody else may be in a call for this hctx, or have a request there, while this call or `release` runs: what
    /// they queued could be lost. Refused when something is in flight already. Says whether it makes a difference.
    /// A thread that ends without `release` ends the I/O of all others on the hctx.
    fn claim(&self, _hctx: HctxId) -> bool {
        false
    }

    /// Ends a [`HostDriver::claim`]; by the thread that made it, with nothing in flight.
    fn release(&self, _hctx: HctxId) {}

    /// Undoes all claims and what [`HostDriver::set_lazy_commit`] has set: every thread may use every hctx like any other from
    /// now on. Nothing is in flight, and nobody is in a call that queues or polls, or comes to one meanwhile. Who had
    /// claimed an hctx still calls [`HostDriver::release`].
    fn unclaim(&self) {}

    /// Gives the device `bytes`, or with `None` finds out what size it has now; what that is in sectors. What lay beyond
    /// a smaller size is gone.
    ///
    /// # Errors
    /// Usage: it cannot be resized, or not to this size. Others: the system refused.
    fn resize(&self, _bytes: Option<u64>) -> Result<Sector> {
        Err(Error::usage(format!("a disk of driver '{}' keeps the size it was made with", self.name())))
    }

    /// How it can be found out what of the disk is stored.
    fn allocation(&self) -> Allocation {
        Allocation::Data
    }

    /// What of the range is stored, from its beginning on: up to `most` stretches that lie within it one behind the other, at least
    /// one, of whole logical blocks. What was written by requests that had ended before the call is data; what is told as a hole reads
    /// as zeroes until it is written. May wait for the device, so not on a thread that serves others. Only for
    /// [`Allocation::Survey`].
    fn survey(&self, _sector: Sector, nr_sectors: u64, _most: usize) -> Vec<Stretch> {
        vec![Stretch { nr_sectors, is_hole: false }]
    }

    /// Bytes that are set aside for what is stored, as far as the system has them at hand: it does not wait. Only for
    /// [`Allocation::Survey`].
    fn stored_bytes(&self) -> Option<u64> {
        None
    }

    /// Whether [`HostDriver::prefetch`] does anything.
    fn caches(&self) -> bool {
        false
    }

    /// The range, or as much of it as is reasonable, will be read soon. May wait, as [`HostDriver::survey`].
    fn prefetch(&self, _sector: Sector, _nr_sectors: u64) {}

    /// Whether writes that find no space are tried again once a second instead of failed. False: it has no such mode.
    fn set_hold_on_enospc(&self, _hold: bool) -> bool {
        false
    }

    /// How often a write found no space and was kept to be tried again.
    fn held_on_enospc(&self) -> u64 {
        0
    }

    /// What has happened at the device since it was opened that the ends of requests do not tell, in sentences for people.
    fn troubles(&self) -> Vec<String> {
        Vec::new()
    }

    /// While it is to give up, what is in flight or comes ends with an error instead of waiting for a device that is away, or that
    /// has not answered it for a second: somebody wants to be rid of it. What a device answers sooner is not touched; when it is taken
    /// back, what waits may wait as long as if nothing had been. May be called again to look for what has become late
    /// meanwhile. False: the driver can do no such thing.
    fn set_give_up(&self, _give_up: bool) -> bool {
        false
    }

    /// How its connections are, if it reaches its device over such.
    fn connections(&self) -> Option<Connections> {
        None
    }

    /// What its disk is known by, if the disk says such a thing of itself: two with the same name are one.
    fn identity(&self) -> Option<String> {
        None
    }

    /// Asks the disk, on a way of its own and beside the requests, whether it is there, ready, and the one that was opened. Takes at most
    /// about `limit`, less when `stop` becomes readable. `None`: it has no such way.
    fn check(&self, _limit: Duration, _stop: &OwnedFd) -> Option<Result<()>> {
        None
    }

    /// How its target served it by this way when it was opened. `None`: that was not asked, or the target has no port groups.
    fn access(&self) -> Option<Access> {
        None
    }

    /// As [`HostDriver::check`], and how its target serves it by this way. `None`: it has no such way.
    fn check_access(&self, _limit: Duration, _stop: &OwnedFd) -> Option<Result<Checked>> {
        None
    }

    /// Has `tell` called, from inside I/O, when the device says that it may be served otherwise now. The first who asks for it is
    /// told.
    fn on_access_change(&self, _tell: Tell) {}

    /// Sends a command past the block layer and waits for its end. `None`: it is no SCSI device.
    fn scsi_command(&self, _hctx: HctxId, _command: &RawCommand<'_>) -> Option<Result<RawAnswer>> {
        None
    }

    /// Its paths, if it has several to one disk.
    fn topology(&self) -> Option<Topology> {
        None
    }

    /// How many commands can be out, of a driver that sends SCSI commands.
    fn scsi_depth(&self) -> Option<ScsiDepth> {
        None
    }

    /// A descriptor that polls readable when `hctx` has completions, if the driver has such a thing.
    fn ring_fd(&self, _hctx: HctxId) -> Option<RawFd> {
        None
    }
}
