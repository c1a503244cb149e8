// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the host needs of a driver in addition to `blk::driver::Driver`: a way to wait, and what a device offers beside I/O.

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
    /// Maximum of the hardware queues in [`Driver::start`], read and poll queues included. The default is cut to it.
    fn max_hw_queues(&self) -> u16 {
        u16::MAX
    }

    /// Blocks until `min` requests (at least one) of `hctx` that were in flight at the call may have finished. It also returns
    /// when `timeout` has passed or [`HostDriver::wake`] was called since `seen` was read from [`HostDriver::wakes`], and may
    /// return early for no reason. Poll afterwards. Other threads may queue, poll and wait on the same hctx meanwhile, and what
    /// they queue counts. Then `min` must be 1, for a wake-up may count as one completion only. Returns at once when nothing is
    /// in flight and there is no `timeout`.
    ///
    /// A driver whose requests are finished when they are issued has nothing to wait for: the default returns.
    fn wait_since(&self, _seen: u64, _hctx: HctxId, _min: u32, _timeout: Option<Duration>) {}

    /// [`HostDriver::wait_since`] now: wake-ups before the call do not count.
    fn wait(&self, hctx: HctxId, min: u32, timeout: Option<Duration>) {
        self.wait_since(self.wakes(hctx), hctx, min, timeout);
    }

    /// How often [`HostDriver::wake`] was called for `hctx`, or more. A thread reads it, then publishes that it is going to
    /// wait, then waits since this number. It misses no wake-up by threads that saw the publication.
    fn wakes(&self, _hctx: HctxId) -> u64 {
        0
    }

    /// Makes all threads return that are in a wait for `hctx`, or come to it with an older [`HostDriver::wakes`].
    fn wake(&self, _hctx: HctxId) {}

    /// When the first request of `hctx` will be finished, for a driver that completes by time.
    fn next_due(&self, _hctx: HctxId) -> Option<Instant> {
        None
    }

    /// A descriptor that polls readable when `hctx` has completions, if the driver has such a thing.
    fn ring_fd(&self, _hctx: HctxId) -> Option<RawFd> {
        None
    }

    /// Fewer system calls for a thread that issues alone.
    fn issuer(&self) -> &dyn Issuer {
        &Plain
    }

    /// What is stored, and how much room there is.
    fn space(&self) -> &dyn Space {
        &Plain
    }

    /// The way to the device.
    fn path(&self) -> &dyn DevicePath {
        &Plain
    }

    /// The device as a SCSI logical unit.
    fn scsi(&self) -> &dyn ScsiUnit {
        &Plain
    }
}

/// A device that offers nothing beside I/O.
struct Plain;

impl Issuer for Plain {}
impl Space for Plain {}
impl DevicePath for Plain {}
impl ScsiUnit for Plain {}
