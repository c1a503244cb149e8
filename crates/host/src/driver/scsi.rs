// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The interface to a SCSI device besides reads and writes.

use crate::error::Result;
use blk::id::HctxId;
use blk::scsi::alua::Access;
use blk::scsi::disposition::HostByte;
use blk::status::BlkStatus;
use blk::time::Duration;
use std::os::fd::OwnedFd;

/// The result of a check that also asked for the unit's ALUA state on this path.
#[derive(Debug)]
pub struct Checked {
    /// The ALUA state; `None`: the unit has no port groups.
    pub access: Option<Access>,
    /// Whether the unit is the one that was opened and, if it is served on this path at all, ready.
    pub ready: Result<()>,
}

/// A callback from inside I/O; it may not call back into the driver.
pub type NotifyFn = Box<dyn Fn() + Send + Sync>;

/// Limits of the commands of a logical unit. Each hardware queue has `can_queue` tags, so all queues together may have more than the
/// device can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScsiDepth {
    /// Commands of a hardware queue (of all, with `host_tagset`).
    pub can_queue: u32,
    /// Maximum number of commands of the unit at the start.
    pub cmd_per_lun: u32,
    /// Maximum number of commands of the unit now.
    pub queue_depth: u32,
    /// Hardware queues.
    pub nr_hw_queues: u16,
    /// Commands that the target's windows allow over all sessions, as far as known.
    pub window: Option<u64>,
}

/// A command to send.
#[derive(Clone, Copy, Debug)]
pub struct RawCommand<'a> {
    /// Descriptor block of 6, 10, 12 or 16 bytes, operation code first.
    pub cdb: &'a [u8],
    /// Data for the device.
    pub data_out: &'a [u8],
    /// Maximum number of bytes of data from the device; not with `data_out`.
    pub data_in: usize,
    /// Time limit.
    pub timeout: Duration,
}

/// How a command completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawAnswer {
    /// The result of the transport. If it is not [`HostByte::Ok`], the other fields are meaningless.
    pub host: HostByte,
    /// The device's status (SAM-5, table 26).
    pub status: u8,
    /// Sense data, in the device's format; empty without an error.
    pub sense: Vec<u8>,
    /// Data from the device.
    pub data: Vec<u8>,
    /// Bytes that were asked for or offered, and not transferred.
    pub residual: u32,
    /// The status that a block request would complete with.
    pub blk_status: BlkStatus,
}

/// A SCSI device: its port groups (ALUA), passthrough commands, and queue depths.
pub trait ScsiUnit {
    /// Returns the ALUA state of this path at its opening. `None`: the state was not requested, or the target has no port groups.
    fn access(&self) -> Option<Access> {
        None
    }

    /// As [`DevicePath::check`](super::path::DevicePath::check), but also asks for this path's ALUA state. `None`: the
    /// driver cannot.
    fn check_access(&self, _limit: Duration, _stop: &OwnedFd) -> Option<Result<Checked>> {
        None
    }

    /// Sets a callback that is called, from inside I/O, when the device reports that its ALUA state may have changed. Only the first
    /// callback is kept.
    fn on_access_change(&self, _tell: NotifyFn) {}

    /// Sends a passthrough command and waits for its completion. `None`: the device is no SCSI device.
    fn command(&self, _hctx: HctxId, _command: &RawCommand<'_>) -> Option<Result<RawAnswer>> {
        None
    }

    /// Returns how many commands can be in flight, for a driver that sends SCSI commands.
    fn depth(&self) -> Option<ScsiDepth> {
        None
    }
}
