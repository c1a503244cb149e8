// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The traits of a driver in addition to `blk::driver::Driver`: how to wait for completions, and what a device offers besides I/O.

use super::aio::Aio;
use super::issuer::Issuer;
use super::path::DevicePath;
use super::scsi::ScsiUnit;
use super::space::Space;
use blk::driver::Driver;
use blk::id::HctxId;
use blk::time::{Duration, Instant};
use std::os::fd::RawFd;

/// A driver whose completions a thread can wait for without spinning.
pub trait HostDriver: Driver {
    /// Returns the maximum number of hardware queues that [`Driver::start`] accepts, including read and poll queues. A larger
    /// default is reduced to it.
    fn max_hw_queues(&self) -> u16 {
        u16::MAX
    }

    /// Blocks until `min` requests (at least one) of `hctx` that were in flight at the call may have finished. Also returns when `timeout`
    /// has passed or [`HostDriver::wake`] was called since `seen` was read from [`HostDriver::wakes`], and may return early for no reason.
    /// Poll afterwards. Other threads may queue, poll and wait on the same hctx meanwhile, and their requests count, too. In that case
    /// `min` must be 1, because a wake-up may count as one completion only. Returns at once when nothing is in flight and there is no
    /// `timeout`.
    ///
    /// The default returns at once. It is for drivers whose requests are complete when they are issued.
    fn wait_since(&self, _seen: u64, _hctx: HctxId, _min: u32, _timeout: Option<Duration>) {}

    /// As [`HostDriver::wait_since`], but wake-ups before the call do not count.
    fn wait(&self, hctx: HctxId, min: u32, timeout: Option<Duration>) {
        self.wait_since(self.wakes(hctx), hctx, min, timeout);
    }

    /// Returns a count that grows with each [`HostDriver::wake`] for `hctx`. A thread reads the count, then publishes that it is going to
    /// wait, then passes the count to [`HostDriver::wait_since`]. So it misses no wake-up by threads that saw the publication.
    fn wakes(&self, _hctx: HctxId) -> u64 {
        0
    }

    /// Ends all waits for `hctx`: those in progress, and later ones with an older [`HostDriver::wakes`].
    fn wake(&self, _hctx: HctxId) {}

    /// Returns when `hctx` must be polled at the latest, for a driver that completes requests by time or has to repeat something.
    fn next_due(&self, _hctx: HctxId) -> Option<Instant> {
        None
    }

    /// Returns a descriptor that is readable when `hctx` has completions, if the driver has one.
    fn ring_fd(&self, _hctx: HctxId) -> Option<RawFd> {
        None
    }

    /// Returns whether I/O bypasses the page cache of this host; `None`: it is no file or block device of this host. A file whose file
    /// system lacks direct I/O is opened without it.
    fn is_direct(&self) -> Option<bool> {
        None
    }

    /// Returns how the I/O of files is issued, for a driver that does such I/O.
    fn aio(&self) -> Option<Aio> {
        None
    }

    /// Returns the interface that saves system calls for a thread that alone issues requests.
    fn issuer(&self) -> &dyn Issuer {
        &Plain
    }

    /// Returns the interface to allocated blocks and free space.
    fn space(&self) -> &dyn Space {
        &Plain
    }

    /// Returns the interface to the connections of the device.
    fn path(&self) -> &dyn DevicePath {
        &Plain
    }

    /// Returns the interface to the device as a SCSI logical unit.
    fn scsi(&self) -> &dyn ScsiUnit {
        &Plain
    }
}

/// A device that offers nothing besides I/O.
struct Plain;

impl Issuer for Plain {}
impl Space for Plain {}
impl DevicePath for Plain {}
impl ScsiUnit for Plain {}
