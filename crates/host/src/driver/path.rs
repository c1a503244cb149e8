// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a driver reaches its device: connections, checks, and the paths of a disk that has several.

use super::topology::Topology;
use crate::error::Result;
use blk::time::Duration;
use std::ops::Add;
use std::os::fd::OwnedFd;

/// What became of a driver's connections to its device, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// How many there are to be.
    pub wanted: u64,
    /// How many there are.
    pub up: u64,
    /// How often one was lost.
    pub losses: u64,
    /// Requests that were sent again on the next one.
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

/// A device that is reached in ways that may fail, or that says which one it is.
pub trait DevicePath {
    /// How its connections are, if it reaches its device over such.
    fn connections(&self) -> Option<Connections> {
        None
    }

    /// What has happened at the device since it was opened that the ends of requests do not tell, in sentences for people.
    fn troubles(&self) -> Vec<String> {
        Vec::new()
    }

    /// While set, requests fail instead of waiting for a device that is away or has not answered for one second. Clearing it
    /// restores the full wait. Call again to catch requests that became late. False: not supported.
    fn set_give_up(&self, _give_up: bool) -> bool {
        false
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

    /// Its paths, if it has several to one disk.
    fn topology(&self) -> Option<Topology> {
        None
    }
}
