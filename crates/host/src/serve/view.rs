// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A view of a daemon that can be read while the daemon is being changed.
//!
//! Guarantees: nothing here waits for a change, or for I/O. A view prevents no disk and no export from ending. A disk that a caller got
//! from it stays open, and the disk's end waits for that caller, so drop it soon. The plan is that of the moment when the view was made
//! ([`Daemon::view`](super::daemon::Daemon::view)); counters are current.

use super::check::{CheckedPlan, Export};
use super::running::{Clients, HealthCheck};
use super::{IoThreads, ServedDisk, ThreadReport};
use blk::time::{Duration, Instant};
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// See the module's text.
pub struct View {
    pub(super) plan: CheckedPlan,
    pub(super) began: Instant,
    pub(super) threads: Arc<IoThreads>,
    /// By name.
    pub(super) disks: HashMap<String, Weak<ServedDisk>>,
    /// By name of the export.
    pub(super) clients: HashMap<String, Clients>,
    /// By name of the export, of those whose clients may speak TLS.
    pub(super) certificates: HashMap<String, HealthCheck>,
    /// By name of the export, of those that can be undone by others.
    pub(super) gone: HashMap<String, HealthCheck>,
}

impl View {
    /// What ran when it was made.
    pub fn plan(&self) -> &CheckedPlan {
        &self.plan
    }

    /// A disk, if it is still there. Its end waits until the caller lets go of it.
    pub fn disk(&self, name: &str) -> Option<Arc<ServedDisk>> {
        self.disks.get(name)?.upgrade()
    }

    /// Clients that an export has now.
    pub fn clients(&self, export: &Export<'_>) -> usize {
        self.clients.get(&export.plan.name).map_or(0, |count| count())
    }

    /// Whether clients of an export may speak TLS.
    pub fn has_certificates(&self, export: &Export<'_>) -> bool {
        self.certificates.contains_key(&export.plan.name)
    }

    /// Why an export's clients are shown older certificates than those in the files.
    pub fn certificate_problem(&self, export: &Export<'_>) -> Option<String> {
        self.certificates.get(&export.plan.name)?()
    }

    /// Why an export is of no use any more, if it is: a mount that was undone from outside.
    pub fn gone(&self, export: &Export<'_>) -> Option<String> {
        self.gone.get(&export.plan.name)?()
    }

    /// What the IOThreads do. Those that sleep are woken for it.
    pub fn report(&self) -> Vec<ThreadReport> {
        self.threads.report()
    }

    /// How long the daemon has been there.
    pub fn uptime(&self) -> Duration {
        crate::clock::now().since(self.began)
    }
}
