// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A view of a daemon that can be read while the daemon is being changed.
//!
//! Guarantees: no function here waits for a change, or for I/O. A view does not keep disks or exports alive. A disk that a caller got from
//! it stays open, and closing the disk waits for that caller, so drop it soon. The plan is that of the moment when the view was made
//! ([`Daemon::view`](super::daemon::Daemon::view)); counters are current.

use super::check::{CheckedPlan, Export};
use super::running::{Clients, HealthCheck};
use super::{IoThreads, ServedDisk, ThreadReport};
use crate::served_path::ServedPath;
use blk::time::{Duration, Instant};
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// A view of a daemon that can be read during changes. See the module's text.
pub struct View {
    pub(super) plan: CheckedPlan,
    pub(super) began: Instant,
    pub(super) threads: Arc<IoThreads>,
    /// By name.
    pub(super) disks: HashMap<String, Weak<ServedDisk>>,
    /// By name of the disk.
    pub(super) images: HashMap<String, Vec<Arc<ServedPath>>>,
    /// By name of the export.
    pub(super) clients: HashMap<String, Clients>,
    /// By name of the export, for exports with TLS.
    pub(super) certificates: HashMap<String, HealthCheck>,
    /// By name of the export, for exports that can be undone from outside.
    pub(super) gone: HashMap<String, HealthCheck>,
}

impl View {
    /// Returns the plan that was running when the view was made.
    pub fn plan(&self) -> &CheckedPlan {
        &self.plan
    }

    /// Returns a disk, if it still exists. Closing the disk waits until the caller drops it.
    pub fn disk(&self, name: &str) -> Option<Arc<ServedDisk>> {
        self.disks.get(name)?.upgrade()
    }

    /// Returns which paths of a disk's images no longer name what is open, in sentences. May be a second old.
    pub fn image_troubles(&self, disk: &str) -> Vec<String> {
        self.images.get(disk).into_iter().flatten().filter_map(|image| image.trouble()).collect()
    }

    /// Returns the number of clients of an export.
    pub fn clients(&self, export: &Export<'_>) -> usize {
        self.clients.get(&export.plan.name).map_or(0, |count| count())
    }

    /// Whether an export has TLS.
    pub fn has_certificates(&self, export: &Export<'_>) -> bool {
        self.certificates.contains_key(&export.plan.name)
    }

    /// Returns why an export uses older certificates than those in the files, if it does.
    pub fn certificate_problem(&self, export: &Export<'_>) -> Option<String> {
        self.certificates.get(&export.plan.name)?()
    }

    /// Whether an export can be undone from outside.
    pub fn can_be_gone(&self, export: &Export<'_>) -> bool {
        self.gone.contains_key(&export.plan.name)
    }

    /// Returns why clients no longer reach an export, if so: its mount was undone or its socket removed from outside. May be a second
    /// old.
    pub fn gone(&self, export: &Export<'_>) -> Option<String> {
        self.gone.get(&export.plan.name)?()
    }

    /// Returns reports of the IOThreads. Sleeping threads are woken for it.
    pub fn report(&self) -> Vec<ThreadReport> {
        self.threads.report()
    }

    /// Returns how long the daemon has run.
    pub fn uptime(&self) -> Duration {
        crate::clock::now().since(self.began)
    }
}
