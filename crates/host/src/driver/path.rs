// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a driver reaches its device: connections, checks, and the paths of a disk that has several.

use super::failures::FailureReport;
use super::path_log::PathMessage;
use super::topology::Topology;
use crate::error::{Error, Result};
use crate::image_lock::SharedLocks;
use crate::secrets::Unmasked;
use blk::time::Duration;
use std::ops::Add;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Counts of a driver's connections to its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// Number of connections that there should be.
    pub wanted: u64,
    /// Connections that are up.
    pub up: u64,
    /// Connections lost so far.
    pub losses: u64,
    /// Number of requests that were sent again on a new connection.
    pub replayed: u64,
}

impl Add for Connections {
    type Output = Connections;

    fn add(self, other: Connections) -> Connections {
        Connections {
            wanted: self.wanted + other.wanted,
            up: self.up + other.up,
            losses: self.losses + other.losses,
            replayed: self.replayed + other.replayed,
        }
    }
}

/// An operator's command about the paths of a disk; the names are those of dm-mpath's messages, or of multipathd's commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathCommand {
    /// Fails a path, which is named, or numbered from 1. It stays failed until it is reinstated by a command.
    FailPath(String),
    /// Reinstates a path, which is named, or numbered from 1.
    ReinstatePath(String),
    /// Sends the next requests to this group, counted from 1.
    SwitchGroup(usize),
    /// Opens a further path, and uses it once it has proved to lead to this disk.
    AddPath {
        /// Its name; no other path of the disk has it.
        name: String,
        /// Its target, of the same kind as the other paths'.
        target: Unmasked,
        /// Its priority, the higher the better; not used with `prio=alua`.
        prio: u32,
    },
    /// Removes a path, which gets no more requests and is closed when none is in flight there.
    RemovePath {
        /// Its name, or its number, from 1.
        path: String,
        /// Also the last path that requests can use.
        force: bool,
    },
}

/// What an operator's command did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandOutcome {
    /// What was done, as a sentence for users.
    pub done: String,
    /// Warnings for users about a path that was added, without passwords and keys.
    pub warnings: Vec<String>,
}

impl From<String> for CommandOutcome {
    fn from(done: String) -> CommandOutcome {
        CommandOutcome { done, warnings: Vec::new() }
    }
}

/// The names of a SCSI disk, as multipath shows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskNames {
    /// The WWID in the form of udev and multipath; `None`: the disk has none.
    pub wwid: Option<String>,
    /// `vendor` of INQUIRY, without trailing spaces; may be empty.
    pub vendor: String,
    /// `product` of INQUIRY, likewise.
    pub product: String,
    /// `revision` of INQUIRY, likewise.
    pub revision: String,
}

/// A device whose connections may fail, or that reports an identity.
pub trait DevicePath {
    /// Returns the state of its connections, if the driver has any.
    fn connections(&self) -> Option<Connections> {
        None
    }

    /// Returns problems since the device was opened that the results of requests do not show, as sentences for users.
    fn troubles(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the commands that have failed since the last call, for the log.
    fn take_failures(&self) -> Vec<FailureReport> {
        Vec::new()
    }

    /// Returns what has happened to its paths since the last call, in order, for the log.
    fn take_messages(&self) -> Vec<PathMessage> {
        Vec::new()
    }

    /// While set, requests fail instead of waiting for a device that is unreachable or has not answered for one second. Clearing it
    /// restores the full wait. Call again to fail requests that became late since. Returns false if not supported.
    fn set_give_up(&self, _give_up: bool) -> bool {
        false
    }

    /// Returns the disk's identity, if it reports one: two devices with the same identity are one disk.
    fn identity(&self) -> Option<String> {
        None
    }

    /// Returns the names of a SCSI disk. `None`: the disk is none, or the driver did not ask for them.
    fn names(&self) -> Option<DiskNames> {
        None
    }

    /// Checks, on a separate connection, that the disk is reachable, ready, and the same that was opened. Takes at most about `limit`,
    /// less when `stop` becomes readable. `None`: the driver has no such check.
    fn check(&self, _limit: Duration, _stop: &OwnedFd) -> Option<Result<()>> {
        None
    }

    /// Hands the locks on its images over to a driver that opens and closes some of them while it is used. From then on, the driver itself
    /// has a lock on each image that it has open. Called before the first request. Returns false if the images stay open as long as the
    /// driver: the caller then keeps their locks.
    ///
    /// # Errors
    /// Those of [`SharedLocks::lock`].
    fn share_locks(&self, _locks: &Arc<SharedLocks>) -> Result<bool> {
        Ok(false)
    }

    /// Carries out an operator's command about its paths.
    ///
    /// # Errors
    /// The disk has no such path or group, or the path or group cannot be used now.
    fn command(&self, _command: &PathCommand) -> Result<CommandOutcome> {
        Err(Error::usage("is not a multipath disk, so it has no paths"))
    }

    /// Returns the paths of a multipath disk.
    fn topology(&self) -> Option<Topology> {
        None
    }
}
