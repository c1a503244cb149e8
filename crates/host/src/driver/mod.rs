// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Drivers that run on this machine, and the traits that the host needs besides `blk::driver::Driver`, such as waiting for completions.
//!
//! `null` is the template of a driver; network drivers are folders over `remote`. State per hardware queue lives in a `PerHctx`. A
//! [`DriverTarget`](crate::target::DriverTarget) defines how a driver's targets are written and opened.

pub(crate) mod failures;
pub mod aio;
pub(crate) mod host_driver;
pub(crate) mod issuer;
pub(crate) mod options;
pub(crate) mod path;
pub(crate) mod path_log;
pub(crate) mod per_hctx;
pub(crate) mod scsi;
pub(crate) mod sleeper;
pub(crate) mod space;
pub(crate) mod target;
pub(crate) mod topology;
pub mod null;
pub mod ram;
pub mod model;
pub mod file;
pub mod nbd;
pub mod rbd;
pub mod iscsi;
pub mod multipath;
mod pieces;
mod remote;
mod waits;

pub use aio::Aio;
pub use failures::FailureReport;
pub use file::File;
pub use host_driver::HostDriver;
pub use iscsi::Iscsi;
pub use issuer::Issuer;
pub use model::Model;
pub use multipath::Multipath;
pub use nbd::Nbd;
pub use null::Null;
pub use path::{CommandOutcome, Connections, DevicePath, DiskNames, PathCommand};
pub use path_log::PathMessage;
pub use ram::Ram;
pub use rbd::Rbd;
pub use scsi::{Checked, NotifyFn, RawAnswer, RawCommand, ScsiDepth, ScsiUnit};
pub use space::{Allocation, Space, Stretch};
pub use topology::{Topology, TopologyGroup, TopologyPath};
