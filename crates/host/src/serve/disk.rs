// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk that is served: a driver with the block layer on top, and which IOThread each of its submitters is.

use super::bell::Bells;
use super::clerk::Clerk;
use crate::driver::HostDriver;
use crate::error::{Error, Result};
use crate::mem::{Region, Regions};
use crate::run::{Frozen, Queue, change_settings, drain, limit_hw_queues, replace_settings};
use blk::cpumap::CpuTopology;
use blk::driver::Driver;
use blk::id::{MAX_SUBMITTERS, SECTOR_SHIFT, SubmitterId};
use blk::queue::{Notify, RequestQueue};
use blk::settings::QueueConfig;
use blk::time::Duration;
use parking_lot::{Mutex, MutexGuard};
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
    /// Answers what may take long.
    pub(crate) clerk: Clerk,
    /// Held while settings change.
    changing: Mutex<()>,
    /// Nobody's I/O begins, by [`ServedDisk::drain`].
    drained: Mutex<bool>,
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
        let clerk = Clerk::new(&driver);
        let notify = Box::new(Ring { threads: Arc::clone(&threads), bells: Arc::clone(bells) });
        let mut config = QueueConfig { topology: CpuTopology::uniform(cpus), ..config };
        limit_hw_queues(driver.as_ref(), &mut config);
        let queue = RequestQueue::new(core, config, notify).map_err(|e| Error::usage(e.to_string()))?;
        Ok(ServedDisk {
            name,
            queue,
            driver,
            regions,
            threads,
            bells: Arc::clone(bells),
            clerk,
            changing: Mutex::default(),
            drained: Mutex::default(),
            spare_buffers: Mutex::default(),
        })
    }

    /// Changes settings, `(name, value)` each, under I/O. How long no I/O could begin, or `None` if it went on.
    ///
    /// # Errors
    /// Usage: the first setting that does not fit, or I/O in flight that has not ended after 30 s; nothing has changed.
    pub fn change(&self, settings: &[(String, String)]) -> Result<Option<Duration>> {
        let _held = self.unheld()?;
        change_settings(&self.queue, settings, false, &self.frozen())
    }

    /// Has these settings instead of all it had, under I/O; how long no I/O could begin.
    ///
    /// # Errors
    /// As of [`ServedDisk::change`].
    pub fn replace_settings(&self, settings: &[(String, String)]) -> Result<Duration> {
        let _held = self.unheld()?;
        let mut config = QueueConfig::default();
        settings.iter().try_for_each(|(k, v)| config.set(k, v)).map_err(|e| Error::usage(e.to_string()))?;
        replace_settings(&self.queue, &config, &self.frozen())
    }

    /// Gives the disk another size, or with `None` finds out what size its image has now. I/O goes on, except that
    /// a disk that becomes smaller is drained first: what lies beyond the new end is gone. The size in bytes.
    ///
    /// # Errors
    /// As of [`HostDriver::resize`] and [`ServedDisk::change`].
    pub fn resize(&self, bytes: Option<u64>) -> Result<u64> {
        let _held = self.unheld()?;
        let smaller = bytes.is_some_and(|bytes| bytes < self.queue.capacity().0 << SECTOR_SHIFT);
        if smaller {
            drain(&self.queue)?;
        }
        let resized = self.driver.resize(bytes).inspect(|capacity| self.queue.set_capacity(*capacity));
        if smaller {
            self.queue.unfreeze();
        }
        Ok(resized?.0 << SECTOR_SHIFT)
    }

    /// Waits until nothing is in flight, and lets nothing begin until [`ServedDisk::resume`]; clients wait. How long that
    /// took. Nothing happens if it is drained.
    ///
    /// # Errors
    /// Usage: I/O in flight has not ended after 30 s; then it goes on.
    pub fn drain(&self) -> Result<Duration> {
        let mut drained = self.drained.lock();
        if *drained {
            return Ok(Duration::ZERO);
        }
        let took = drain(&self.queue)?;
        *drained = true;
        Ok(took)
    }

    /// Ends a [`ServedDisk::drain`]; whether there was one.
    pub fn resume(&self) -> bool {
        let was = std::mem::replace(&mut *self.drained.lock(), false);
        if was {
            self.queue.unfreeze();
        }
        was
    }

    /// Whether it is drained.
    pub fn is_drained(&self) -> bool {
        *self.drained.lock()
    }

    /// Nobody drains it, resumes it or changes it meanwhile.
    fn unheld(&self) -> Result<MutexGuard<'_, bool>> {
        let drained = self.drained.lock();
        if *drained {
            return Err(Error::usage(format!("disk '{}' is drained: resume it first", self.name)));
        }
        Ok(drained)
    }

    fn frozen(&self) -> Frozen<'_> {
        Frozen { seats: &self.changing, driver: self.driver.as_ref() }
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
