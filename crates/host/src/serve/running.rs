// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A running export as the daemon sees it.
//!
//! When it is dropped, an export disconnects its clients and waits for their I/O.

use crate::error::Result;
use crate::served_path::ServedPath;
use blk::time::Duration;
use std::sync::Arc;

/// Returns how many clients an export has, without waiting.
pub(crate) type Clients = Box<dyn Fn() -> usize + Send + Sync>;

/// Returns the problem of an export, if it has one, without waiting.
pub(crate) type HealthCheck = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// Where clients find an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExportPlace {
    /// A listening socket.
    Socket,
    /// A mounted file.
    Mount,
    /// A device of this host.
    Device,
}

/// An export with a socket, mount or device of its own; NBD exports share servers instead.
pub(crate) trait RunningExport: Send {
    /// Returns where clients find the export.
    fn place(&self) -> ExportPlace;

    /// Returns a function that counts the clients.
    fn clients(&self) -> Clients;

    /// Returns a check of why clients no longer reach the export, for exports that can be undone from outside.
    fn gone(&self) -> Option<HealthCheck> {
        socket_gone(self.socket())
    }

    /// Returns the path of its listening socket, if it has one.
    fn socket(&self) -> Option<&Arc<ServedPath>> {
        None
    }

    /// Makes its listening socket anew, at the same path. Connected clients stay.
    ///
    /// # Errors
    /// The errors of a new export, which keeps its old socket then.
    fn listen_again(&mut self) -> Result<()> {
        Ok(())
    }

    /// Returns the path of its block device, if it is one.
    fn block_device(&self) -> Option<String> {
        None
    }

    /// Notifies clients that the disk has this many sectors now.
    ///
    /// # Errors
    /// The export keeps its old size; the text says why, and what to do.
    fn resized(&self, sectors: u64) -> Result<()>;

    /// Moves the export to these IOThreads, round robin or queue by queue. Returns the longest time in which a queue was not served.
    ///
    /// # Errors
    /// Usage: the export cannot be moved at all, or not to these IOThreads.
    fn remap(&self, iothreads: &[usize]) -> Result<Duration>;

    /// Returns the IOThread of each queue, if its queues are mapped one by one.
    fn mapping(&self) -> Option<Vec<usize>> {
        None
    }
}

/// Returns a check of why clients do not reach a socket.
pub(crate) fn socket_gone(socket: Option<&Arc<ServedPath>>) -> Option<HealthCheck> {
    let socket = Arc::downgrade(socket?);
    Some(Box::new(move || socket.upgrade()?.trouble()))
}
