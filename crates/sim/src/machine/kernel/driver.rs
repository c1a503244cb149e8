// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The locks of the kernel's drivers, one for each hardware queue.
//!
//! Guarantees: a driver without locks, and a machine with mqblk's layer, cost nothing here.

use super::lock::KernelLock;
use super::sites::{self, DriverSites};
use serde::Deserialize;

/// The driver of a disk that is attached directly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DriverKind {
    /// A driver whose locks are not known, or that has none.
    #[default]
    Other,
    /// null_blk: completes a request while the request is being issued, if the device takes no time.
    NullBlk,
    /// NVMe over PCI.
    Nvme,
    /// virtio-blk.
    VirtioBlk,
}

impl DriverKind {
    /// The kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            DriverKind::Other => "other",
            DriverKind::NullBlk => "null_blk",
            DriverKind::Nvme => "nvme",
            DriverKind::VirtioBlk => "virtio_blk",
        }
    }
}

/// The locks of the hardware queues of a disk.
#[derive(Default)]
pub(crate) struct DriverLocks {
    sites: Option<&'static DriverSites>,
    queues: Vec<KernelLock>,
}

impl DriverLocks {
    /// The locks of a driver.
    pub fn of(driver: DriverKind) -> DriverLocks {
        let sites = match driver {
            DriverKind::Other | DriverKind::NullBlk => None,
            DriverKind::Nvme => Some(&sites::NVME),
            DriverKind::VirtioBlk => Some(&sites::VIRTIO_BLK),
        };
        DriverLocks { sites, queues: Vec::new() }
    }

    /// Makes the locks of `n` hardware queues.
    pub fn start(&mut self, n: usize) {
        let n = if self.sites.is_some() { n } else { 0 };
        self.queues.resize_with(n, KernelLock::default);
    }

    /// Accounts for the submission of a request.
    #[inline]
    pub fn submitted(&self, hctx: usize) {
        if let Some(site) = self.sites.and_then(|s| s.each.as_ref()) {
            self.queues[hctx].take(site);
        }
    }

    /// Accounts for the end of a batch, before the doorbell.
    #[inline]
    pub fn rings(&self, hctx: usize) {
        if let Some(site) = self.sites.and_then(|s| s.batch.as_ref()) {
            self.queues[hctx].take(site);
        }
    }

    /// Accounts for the completion of a request.
    #[inline]
    pub fn completed(&self, hctx: usize) {
        if let Some(site) = self.sites.and_then(|s| s.complete.as_ref()) {
            self.queues[hctx].take(site);
        }
    }
}
