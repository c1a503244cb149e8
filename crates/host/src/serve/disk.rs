// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk that is served: a driver with the block layer on top, and which IOThread each of its submitters is.

use super::bell::Bells;
use crate::driver::HostDriver;
use crate::error::{Error, Result};
use crate::mem::{Region, Regions};
use crate::run::Queue;
use blk::cpumap::CpuTopology;
use blk::driver::Driver;
use blk::id::{MAX_SUBMITTERS, SubmitterId};
use blk::queue::{Notify, RequestQueue};
use blk::settings::QueueConfig;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

/// One disk, ready for ports.
pub struct ServedDisk {
    /// What clients know it by.
    pub name: String,
    /// The block layer.
    pub queue: Arc<Queue>,
    /// Its driver, for waiting.
    pub driver: Arc<dyn HostDriver>,
    /// Memory that I/O goes to and comes from.
    pub regions: Arc<Regions>,
    /// By submitter: the IOThread's number.
    threads: Arc<[AtomicU16]>,
    bells: Arc<Bells>,
    /// Regions of buffers whose user is gone, and their sizes: a region with a fixed place in drivers is not given up.
    spare_buffers: Mutex<Vec<(usize, u16)>>,
}

/// Wakes an IOThread that is to look at all its sources, from any thread.
pub(crate) struct Waker {
    bells: Arc<Bells>,
    thread: u16,
}

impl Waker {
    /// What it is woken for is in its place already.
    pub(crate) fn wake(&self) {
        self.bells.ring(self.thread);
    }
}

/// Rings for the IOThread of a submitter.
struct Ring {
    threads: Arc<[AtomicU16]>,
    bells: Arc<Bells>,
}

impl Notify for Ring {
    fn notify(&self, submitter: SubmitterId) {
        // Relaxed: written before the submitter was used, which orders it.
        let thread = self.threads[submitter.index()].load(Ordering::Relaxed);
        self.bells.ring(thread);
    }
}

impl ServedDisk {
    /// Starts the block layer on an open driver whose data is in `regions`. It has `cpus` CPUs, one per IOThread there is
    /// now, each with a hardware queue of its own unless `config` says otherwise; IOThreads that come later share them.
    pub(super) fn new(
        name: String,
        driver: Arc<dyn HostDriver>,
        regions: Arc<Regions>,
        config: QueueConfig,
        cpus: u16,
        bells: &Arc<Bells>,
    ) -> Result<ServedDisk> {
        let threads: Arc<[AtomicU16]> = (0..MAX_SUBMITTERS).map(|_| AtomicU16::new(0)).collect();
        let core: Arc<dyn Driver> = driver.clone();
        let notify = Box::new(Ring { threads: Arc::clone(&threads), bells: Arc::clone(bells) });
        let config = QueueConfig { topology: CpuTopology::uniform(cpus), ..config };
        let queue = RequestQueue::new(core, config, notify).map_err(|e| Error::usage(e.to_string()))?;
        Ok(ServedDisk {
            name,
            queue,
            driver,
            regions,
            threads,
            bells: Arc::clone(bells),
            spare_buffers: Mutex::default(),
        })
    }

    /// The number of a region of `bytes` for the buffers of a port or a connection.
    pub(crate) fn take_buffers(&self, bytes: usize) -> Result<u16> {
        let mut spare = self.spare_buffers.lock();
        if let Some(at) = spare.iter().position(|(size, _)| *size == bytes) {
            return Ok(spare.swap_remove(at).1);
        }
        drop(spare);
        self.regions.add(Arc::new(Region::new(bytes, false)?))
    }

    /// No I/O to the region of `bytes` is left.
    pub(crate) fn give_buffers_back(&self, bytes: usize, number: u16) {
        self.spare_buffers.lock().push((bytes, number));
    }

    /// Wakes the IOThread of a submitter.
    pub(super) fn waker(&self, submitter: SubmitterId) -> Waker {
        Waker { bells: Arc::clone(&self.bells), thread: self.threads[submitter.index()].load(Ordering::Relaxed) }
    }

    /// A submitter of this disk is the IOThread with this number.
    pub(super) fn introduce(&self, submitter: SubmitterId, thread: u16) {
        self.threads[submitter.index()].store(thread, Ordering::Relaxed);
    }
}
