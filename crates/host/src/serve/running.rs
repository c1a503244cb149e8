// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A running export as the daemon sees it.
//!
//! When it is dropped, an export disconnects its clients, waits for their I/O, and ends.

use crate::error::Result;
use blk::time::Duration;

/// Says how many clients an export has, without waiting.
pub(crate) type Clients = Box<dyn Fn() -> usize + Send + Sync>;

/// Says what is wrong with an export, if anything is, without waiting.
pub(crate) type HealthCheck = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// Where clients find an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExportPlace {
    /// A socket that is listened on.
    Socket,
    /// A mounted file.
    Mount,
    /// A device of this host.
    Device,
}

/// An export with a place of its own; NBD exports share servers instead.
pub(crate) trait RunningExport: Send {
    /// Where clients find it.
    fn place(&self) -> ExportPlace;

    /// Says how many clients it has, without waiting.
    fn clients(&self) -> Clients;

    /// Says why it is of no use any more, if it can be undone by others.
    fn gone(&self) -> Option<HealthCheck> {
        None
    }

    /// The block device that it is.
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

    /// The IOThread of each queue, if its queues are mapped one by one.
    fn mapping(&self) -> Option<Vec<usize>> {
        None
    }
}
