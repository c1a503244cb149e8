// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a driver of a SCSI device offers beside reads and writes.

use crate::error::Result;
use blk::scsi::alua::Access;
use blk::scsi::disposition::HostByte;
use blk::status::BlkStatus;
use blk::time::Duration;

/// What a check brought that also asked how the target serves the unit by this way.
#[derive(Debug)]
pub struct Checked {
    /// That; `None`: it has no port groups.
    pub access: Option<Access>,
    /// Whether it is the one that was opened and, if it is served there at all, ready.
    pub ready: Result<()>,
}

/// Who is told of something from inside I/O, and may not call back from there.
pub type Tell = Box<dyn Fn() + Send + Sync>;

/// What bounds the commands of a logical unit: `nr_hw_queues` multiplies tags, which the device need not have room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScsiDepth {
    /// Commands of a hardware queue (of all, with `host_tagset`).
    pub can_queue: u32,
    /// Commands the unit may have at first.
    pub cmd_per_lun: u32,
    /// Commands it may have now.
    pub queue_depth: u32,
    /// Hardware queues.
    pub nr_hw_queues: u16,
    /// Commands that the target takes over all its sessions together before it has answered any, as far as is known.
    pub window: Option<u64>,
}

/// A command to send.
#[derive(Clone, Copy, Debug)]
pub struct RawCommand<'a> {
    /// Descriptor block of 6, 10, 12 or 16 bytes, operation code first.
    pub cdb: &'a [u8],
    /// Data for the device.
    pub data_out: &'a [u8],
    /// Most bytes of data from the device; not with `data_out`.
    pub data_in: usize,
    /// How long it may take.
    pub timeout: Duration,
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawAnswer {
    /// What the session says; if not [`HostByte::Ok`] the rest means nothing.
    pub host: HostByte,
    /// The device's status (SAM-5, table 26).
    pub status: u8,
    /// Why, in the device's format; empty if all is well.
    pub sense: Vec<u8>,
    /// Data from the device.
    pub data: Vec<u8>,
    /// Bytes that were asked for or offered, and not transferred.
    pub residual: u32,
    /// What a request would end with.
    pub blk_status: BlkStatus,
}
