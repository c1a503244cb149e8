// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Members of a served disk: one device with its queues, or several that the disk is striped over.
//!
//! Guarantees: counters are sums over all members; reports of allocated blocks are about the disk, not about a member. Does not do: I/O.

use crate::disk::Queue;
use crate::driver::{Allocation, HostDriver, Stretch};
use blk::id::{Sector, SubmitterId};
use blk::stat::{DiskStats, HctxStats};
use blk::stripe::StripeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

/// A device with its block layer.
pub struct Member {
    /// The block layer.
    pub queue: Arc<Queue>,
    /// Its driver.
    pub driver: Arc<dyn HostDriver>,
    /// By submitter: the IOThread's number.
    pub(super) threads: Arc<[AtomicU16]>,
}

impl Member {
    /// Records which IOThread uses a submitter of this member.
    pub(super) fn introduce(&self, submitter: SubmitterId, thread: u16) {
        self.threads[submitter.index()].store(thread, Ordering::Relaxed);
    }
}

/// Returns the sum of all members' counters.
pub(super) fn stats(members: &[Member]) -> DiskStats {
    let mut all = members.iter().map(|m| m.queue.stats());
    let mut total = all.next().unwrap_or_default();
    all.for_each(|s| total.add(&s));
    total
}

/// Returns the counters of the hardware queues of all members, member by member.
pub(super) fn hctx_stats(members: &[Member]) -> Vec<HctxStats> {
    members.iter().flat_map(|m| m.queue.hctx_stats()).collect()
}

/// Answers questions about allocated blocks from the drivers of a disk.
pub(crate) struct Stored {
    drivers: Box<[Arc<dyn HostDriver>]>,
    map: Option<Arc<StripeMap>>,
}

impl Stored {
    pub(super) fn new(drivers: &[Arc<dyn HostDriver>], map: Option<&Arc<StripeMap>>) -> Stored {
        Stored { drivers: drivers.into(), map: map.cloned() }
    }

    /// As [`Space::allocation`](crate::driver::Space::allocation). For a striped disk it is known only if nothing is ever stored, because
    /// a hole of one member lies between chunks of the others.
    pub(crate) fn allocation(&self) -> Allocation {
        match &self.map {
            None => self.drivers[0].space().allocation(),
            Some(_) if self.drivers.iter().all(|d| d.space().allocation() == Allocation::Hole) => Allocation::Hole,
            Some(_) => Allocation::Data,
        }
    }

    /// Returns the bytes that are allocated for the disk's data; `None` if that is not known.
    pub(crate) fn bytes(&self) -> Option<u64> {
        match self.allocation() {
            Allocation::Data => None,
            Allocation::Hole => Some(0),
            Allocation::Survey => self.drivers[0].space().stored_bytes(),
        }
    }

    /// As [`Space::caches`](crate::driver::Space::caches).
    pub(crate) fn caches(&self) -> bool {
        self.drivers.iter().any(|d| d.space().caches())
    }

    /// As [`Space::survey`](crate::driver::Space::survey).
    pub(super) fn survey(&self, sector: Sector, nr_sectors: u64, most: usize) -> Vec<Stretch> {
        match &self.map {
            None => self.drivers[0].space().survey(sector, nr_sectors, most),
            Some(_) => vec![Stretch { nr_sectors, is_hole: self.allocation() == Allocation::Hole }],
        }
    }

    /// As [`Space::prefetch`](crate::driver::Space::prefetch).
    pub(super) fn prefetch(&self, sector: Sector, nr_sectors: u64) {
        match &self.map {
            None => self.drivers[0].space().prefetch(sector, nr_sectors),
            Some(map) => {
                for (stripe, driver) in self.drivers.iter().enumerate() {
                    if let Some((at, len)) = map.range(stripe, sector, nr_sectors) {
                        driver.space().prefetch(at, len);
                    }
                }
            }
        }
    }
}
