// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ending exports. An export ends when its clients' I/O has completed, which may never happen. So each end has a thread of its own.
//!
//! Guarantees: the export is dropped, whatever happens to its [`Ending`]; a caller chooses how long to wait for that. By force
//! ([`Ending::give_up`]) the I/O of its disks fails, if their drivers support that; nothing else of a driver is changed. Writes that are
//! held because space ran out fail, too. Requests that fault injection delays reach their disks. Does not do: cancel an end, because the
//! clients were disconnected already.

use super::disk::ServedDisk;
use crate::error::{Error, ErrorKind};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Longest wait for an export to end or a source to move.
pub(super) const END_TIME: Duration = Duration::from_secs(10);

/// Interval at which requests that arrived in the meantime are given up.
const AGAIN: Duration = Duration::from_millis(50);

/// See the module's text.
pub(super) struct Ending {
    /// Names of the exports.
    names: Vec<String>,
    disks: Vec<Weak<ServedDisk>>,
    /// Nothing is sent; it disconnects at the end.
    ended: Receiver<()>,
}

impl Ending {
    /// Drops `what`, which are exports of these names and disks.
    pub(super) fn begin(names: Vec<String>, disks: &[Arc<ServedDisk>], what: impl Send + 'static) -> Ending {
        let (done, ended) = mpsc::channel();
        let work = move || {
            drop(what);
            drop(done);
        };
        // If no thread can be started, the export is dropped here.
        let _ = std::thread::Builder::new().name("mqblk-end".into()).spawn(work);
        Ending { names, disks: disks.iter().map(Arc::downgrade).collect(), ended }
    }

    /// Names of the exports.
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether an export of this name is part of it, or the disk of this name.
    pub(super) fn is_of(&self, name: &str) -> bool {
        self.names.iter().any(|n| n == name) || self.disks().any(|d| d.name == name)
    }

    /// Returns those disks that still exist.
    pub(super) fn disks(&self) -> impl Iterator<Item = Arc<ServedDisk>> {
        self.disks.iter().filter_map(Weak::upgrade)
    }

    /// Waits for the end until `until`. Returns whether it has ended.
    pub(super) fn wait(&self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        matches!(self.ended.recv_timeout(left), Err(RecvTimeoutError::Disconnected))
    }

    /// Waits for it as long as it takes.
    pub(super) fn wait_for_it(&self) {
        let _ = self.ended.recv();
    }

    /// Makes the I/O of its disks fail, and waits for the end again. Returns whether it has ended.
    pub(super) fn give_up(&self) -> bool {
        let until = Instant::now() + END_TIME;
        let mut ended = false;
        while !ended && Instant::now() < until {
            // Requests that are held above the driver reach it when there is room, and delayed ones at once; then they are given up, too. No
            // reference to a disk is kept here, because closing the disk is part of the end.
            self.disks().for_each(|d| _ = d.set_give_up(true));
            ended = self.wait(until.min(Instant::now() + AGAIN));
        }
        // Other exports of these disks may continue.
        self.disks().for_each(|d| _ = d.set_give_up(false));
        ended
    }

    /// Returns why the export has not ended, and what to do.
    pub(super) fn stuck(&self) -> Error {
        let names = self.names.join("', '");
        let mut text = format!(
            "export '{names}' has disconnected its clients, but has not ended after {} s: {}; it ends when these \
             complete",
            END_TIME.as_secs(),
            self.disks().map(|d| in_flight(&d)).collect::<Vec<_>>().join(", ")
        );
        // `false` changes nothing; it only asks whether the drivers support giving up.
        if self.disks().all(|d| d.set_give_up(false)) {
            let name = self.names.first().map_or("NAME", String::as_str);
            text +=
                &format!(", or now by 'mqblk ctl remove --force {name}', which fails requests that cannot complete");
        }
        Error::new(ErrorKind::Io, text)
    }
}

/// Describes the requests in flight of a disk.
pub(super) fn in_flight(disk: &ServedDisk) -> String {
    let n = disk.stats().in_flight;
    let mut text = format!("{n} request{} of disk '{}' in flight", if n == 1 { "" } else { "s" }, disk.name);
    let delays = disk.injection_trouble().filter(|_| disk.injection().delayed() > 0);
    for trouble in disk.troubles().into_iter().chain(delays) {
        text += &format!(" ({trouble})");
    }
    text
}
