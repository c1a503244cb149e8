// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One path: a driver that may be opened later than its disk, and may be disabled.
//!
//! Guarantees: a path whose driver is missing, was not started, or leads to another disk carries no requests. It fails each
//! with a path error, so that another path retries it. A driver is admitted only if its size, blocks, limits and identity
//! match the disk's. Its size may be larger if it has an identity; it then adopts the disk's.
//! A disk starts if one of its paths does. A path that is closed drops its driver, once no thread is inside it. If its disk locks its
//! images, they are locked before the path carries requests, until its driver has been dropped.
//! Does not check whether the path works (`check`), and does not decide when it is reinstated (`watch`).

use super::hctx_waits::HctxWaits;
use crate::driver::host_driver::HostDriver;
use crate::driver::per_hctx::PerHctx;
use crate::error::{Error, ErrorKind};
use crate::image_lock::{ImageLock, SharedLocks};
use blk::driver::{Completions, Driver, RqBatch, TimedOut, TimeoutAnswer};
use blk::id::{HctxId, SECTOR_SHIFT, Sector};
use blk::limits::Limits;
use blk::status::{BlkStatus, QueueRqStatus};
use blk::time::{Duration, Instant};
use parking_lot::{Mutex, RwLock};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The properties that all paths of a disk must share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Common {
    pub(super) limits: Limits,
    pub(super) capacity: Sector,
    /// The logical unit's identity; `None`: paths of this kind have none.
    pub(super) identity: Option<String>,
}

impl Common {
    pub(super) fn of(driver: &dyn HostDriver) -> Common {
        Common { limits: driver.limits(), capacity: driver.capacity(), identity: driver.path().identity() }
    }

    fn bytes(&self) -> u64 {
        self.capacity.0 << SECTOR_SHIFT
    }

    /// Refuses a driver that leads to another disk, with the reason.
    pub(super) fn is_disk_of(&self, driver: &dyn HostDriver) -> Result<(), String> {
        let its = Common::of(driver);
        let name = |c: &Common| c.identity.clone().unwrap_or_else(|| "without a name".into());
        if its.identity != self.identity {
            return Err(format!("it is {}, the disk is {}: it leads to another disk", name(&its), name(self)));
        }
        // A unit that has grown still has its identity.
        let has_grown = self.identity.is_some() && its.capacity > self.capacity;
        if its.capacity != self.capacity && !has_grown {
            let (its, ours) = (its.capacity.0, self.capacity.0);
            return Err(format!("it has {its} sectors, the disk has {ours}: it leads to another disk"));
        }
        let (its, ours) = (its.limits.logical_block_size, self.limits.logical_block_size);
        if its != ours {
            return Err(format!("it has blocks of {its} bytes, the disk of {ours}: it leads to another disk"));
        }
        Ok(())
    }

    /// Refuses a driver that cannot be a path of this disk, with the reason.
    pub(super) fn admit(&self, driver: &dyn HostDriver) -> Result<(), String> {
        self.is_disk_of(driver)?;
        let (a, b) = (&driver.limits(), &self.limits);
        if (a.write_cache, a.read_only) != (b.write_cache, b.read_only) {
            return Err(format!(
                "write cache {}, read-only {}; the disk has {} and {}: its server is configured differently from the \
                 others",
                a.write_cache, a.read_only, b.write_cache, b.read_only
            ));
        }
        let stacked = Limits {
            chunk_sectors: if a.chunk_sectors == 0 { b.chunk_sectors } else { a.chunk_sectors },
            physical_block_size: b.physical_block_size,
            rotational: b.rotational,
            ..Limits::stacked([a, b])
        };
        if stacked != *b {
            return Err("its limits are stricter than the disk's: reopen the disk with this path".into());
        }
        Ok(())
    }
}

/// Returns the limits that fit all of these drivers.
pub(super) fn strictest<'a>(drivers: impl Iterator<Item = &'a Arc<dyn HostDriver>>) -> Limits {
    let all: Vec<Limits> = drivers.map(|d| d.limits()).collect();
    let chunk_sectors = all.iter().map(|l| l.chunk_sectors).filter(|c| *c > 0).min().unwrap_or(0);
    Limits { chunk_sectors, ..Limits::stacked(all.iter()) }
}

/// See the module's text.
pub(super) struct PathDriver {
    /// Its index in the list with which the disk was opened; a path that was added later has a higher one than all before.
    pub(super) number: usize,
    pub(super) name: String,
    inner: Mutex<Inner>,
    common: Mutex<Common>,
    /// Whether the path may carry requests.
    usable: AtomicBool,
    started: Mutex<Option<(u16, u32)>>,
    hctx_waits: Arc<PerHctx<HctxWaits>>,
    trouble: Mutex<Option<String>>,
    /// Checks that passed.
    pub(super) passes: AtomicU64,
    queues: PerHctx<PathQueue>,
    /// The files and block devices that it leads to.
    images: Vec<PathBuf>,
    /// The locks on them. Last, so that they are dropped after all references to the driver.
    locks: Mutex<Vec<Arc<ImageLock>>>,
}

/// The driver of a path.
struct Inner {
    driver: Option<Arc<dyn HostDriver>>,
    /// The path was removed, so it gets no driver any more.
    is_closed: bool,
}

/// What a hardware queue has of a path.
#[derive(Default)]
struct PathQueue {
    /// The started driver. Read-locked while a thread is inside it, so that the path can be closed afterwards.
    driver: RwLock<Option<Arc<dyn HostDriver>>>,
    /// Requests completed.
    ends: AtomicU64,
}

/// Locks those of a path's images that exist, if the disk's images are locked. The path is opened only afterwards, because opening a device
/// for writing has effects outside of this process: udev examines it when it is closed.
///
/// # Errors
/// Those of [`SharedLocks::lock`].
pub(super) fn lock_before_open(
    locks: &OnceLock<Arc<SharedLocks>>,
    images: &[PathBuf],
) -> Result<Vec<Arc<ImageLock>>, Error> {
    let images: Vec<&Path> = images.iter().map(PathBuf::as_path).collect();
    match locks.get().map_or(Ok(Vec::new()), |locks| locks.lock_present(&images)) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        locked => locked,
    }
}

impl PathDriver {
    pub(super) fn new(
        number: usize,
        name: String,
        images: Vec<PathBuf>,
        inner: Option<Arc<dyn HostDriver>>,
        common: Common,
        hctx_waits: Arc<PerHctx<HctxWaits>>,
    ) -> PathDriver {
        if let Some(driver) = &inner {
            driver.space().adopt(common.bytes());
        }
        let (usable, started) = (AtomicBool::new(false), Mutex::new(None));
        PathDriver {
            number,
            name,
            inner: Mutex::new(Inner { driver: inner, is_closed: false }),
            common: Mutex::new(common),
            usable,
            started,
            hctx_waits,
            trouble: Mutex::new(None),
            passes: AtomicU64::new(0),
            queues: PerHctx::new(),
            images,
            locks: Mutex::default(),
        }
    }

    /// Locks the path's images until it is closed.
    ///
    /// # Errors
    /// Those of [`SharedLocks::lock`].
    pub(super) fn lock_images(&self, locks: &SharedLocks) -> Result<(), Error> {
        let taken = self.take_locks(locks)?;
        *self.locks.lock() = taken;
        Ok(())
    }

    /// See [`lock_before_open`].
    pub(super) fn lock_before_open(&self, locks: &OnceLock<Arc<SharedLocks>>) -> Result<Vec<Arc<ImageLock>>, Error> {
        lock_before_open(locks, &self.images)
    }

    fn take_locks(&self, locks: &SharedLocks) -> Result<Vec<Arc<ImageLock>>, Error> {
        self.images.iter().map(|image| locks.lock(image)).collect()
    }

    /// Returns the path's driver, for anything but requests.
    pub(super) fn inner(&self) -> Option<Arc<dyn HostDriver>> {
        self.inner.lock().driver.clone()
    }

    /// Returns what the driver of a path of this disk must have.
    pub(super) fn common(&self) -> Common {
        self.common.lock().clone()
    }

    /// Returns the number of hardware queues and the depth with which the disk was started.
    pub(super) fn started(&self) -> Option<(u16, u32)> {
        *self.started.lock()
    }

    /// Takes over the size of the disk, also in its driver, if it has one.
    pub(super) fn adopt(&self, bytes: u64) {
        // Held until the driver has the size, too: see `revive`.
        let mut common = self.common.lock();
        common.capacity = Sector(bytes >> SECTOR_SHIFT);
        if let Some(driver) = self.inner() {
            driver.space().adopt(bytes);
        }
    }

    #[inline]
    pub(super) fn is_usable(&self) -> bool {
        // Pairs with: PathDriver::bring_up
        self.usable.load(Ordering::Acquire)
    }

    /// Returns why the path is, or was, not used.
    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    pub(super) fn set_trouble(&self, why: Option<String>) {
        *self.trouble.lock() = why;
    }

    /// Starts the path, if it has a driver and its disk was started.
    fn bring_up(&self, started: Option<(u16, u32)>) -> Result<(), String> {
        let Some(driver) = self.inner() else { return Err(self.trouble().unwrap_or_else(|| "is not open".into())) };
        let Some((nr_hw_queues, depth)) = started else { return Ok(()) };
        driver.start(nr_hw_queues, depth)?;
        for i in 0..nr_hw_queues {
            let hctx = HctxId::new(i.into());
            if let Some(fd) = driver.ring_fd(hctx) {
                self.hctx_waits.get(hctx).watch(fd);
            }
        }
        let inner = self.inner.lock();
        if inner.is_closed {
            return Err("was removed".into());
        }
        for i in 0..nr_hw_queues {
            let queue = self.queues.get_or_init(i, PathQueue::default);
            *queue.driver.write() = Some(Arc::clone(&driver));
        }
        // Pairs with: PathDriver::is_usable
        self.usable.store(true, Ordering::Release);
        Ok(())
    }

    /// Drops the driver of a path that was removed; none of its requests is in flight.
    pub(super) fn close(&self) {
        let driver = {
            let mut inner = self.inner.lock();
            inner.is_closed = true;
            inner.driver.take()
        };
        // Pairs with: PathDriver::is_usable
        self.usable.store(false, Ordering::Release);
        for queue in self.queues.iter() {
            *queue.driver.write() = None;
        }
        // The last reference, unless a report of the disk's state has another for a moment. Its connections end here.
        drop(driver);
        self.locks.lock().clear();
    }

    /// Starts a path that could not be started or opened; `driver`: its driver, if it has none. Its images are locked in `locks`.
    ///
    /// # Errors
    /// Why the path cannot be started, or its images cannot be locked.
    pub(super) fn revive(
        &self,
        driver: Option<Arc<dyn HostDriver>>,
        locks: Option<&SharedLocks>,
    ) -> Result<(), String> {
        let taken = locks.filter(|_| driver.is_some()).map(|locks| self.take_locks(locks)).transpose();
        let taken = taken.map_err(|e| e.to_string())?;
        // Held to the end, so that the number of hardware queues stays the one that is compared here.
        let started = self.started.lock();
        if let Some(driver) = driver {
            // A driver that is kept limits the disk, which could then not be started again.
            let most = driver.max_hw_queues();
            if let Some((nr_hw_queues, _)) = *started
                && nr_hw_queues > most
            {
                return Err(format!(
                    "{nr_hw_queues} hardware queues: it has at most {most}; set nr_hw_queues={most}, or give the path more"
                ));
            }
            // Held until `inner` has the driver, so that no change of the size misses it.
            let common = self.common.lock();
            common.admit(driver.as_ref())?;
            driver.space().adopt(common.bytes());
            let mut inner = self.inner.lock();
            if inner.is_closed {
                return Err("was removed".into());
            }
            if let Some(taken) = taken {
                *self.locks.lock() = taken;
            }
            inner.driver.get_or_insert(driver);
        }
        if self.is_usable() { Ok(()) } else { self.bring_up(*started) }
    }

    /// Returns when its next request completes, if the path completes requests by time, or has completed ones.
    pub(super) fn next_due(&self, hctx: HctxId) -> Option<Instant> {
        let queue = self.queues.find(hctx).filter(|_| self.is_usable())?;
        queue.driver.read().as_ref()?.next_due(hctx)
    }

    /// Whether a descriptor signals its completions.
    pub(super) fn has_fd(&self, hctx: HctxId) -> bool {
        let queue = self.queues.find(hctx).filter(|_| self.is_usable());
        queue.is_some_and(|q| q.driver.read().as_ref().is_some_and(|d| d.ring_fd(hctx).is_some()))
    }

    /// Returns a number that changes when a request completes.
    pub(super) fn ends(&self) -> u64 {
        self.queues.iter().fold(0, |sum, queue| sum.wrapping_add(queue.ends.load(Ordering::Relaxed)))
    }

    /// Reads the device's unsolicited reports; the path has no requests in flight.
    pub(super) fn attend(&self, hctx: HctxId) {
        let Some(queue) = self.queues.find(hctx).filter(|_| self.is_usable()) else { return };
        if let Some(driver) = &*queue.driver.read() {
            driver.wait(hctx, 1, Some(Duration::ZERO));
        }
    }
}

impl Driver for PathDriver {
    fn name(&self) -> &'static str {
        self.inner().map_or("path", |d| d.name())
    }

    fn limits(&self) -> Limits {
        self.inner().map_or_else(|| self.common.lock().limits, |d| d.limits())
    }

    fn capacity(&self) -> Sector {
        self.inner().map_or_else(|| self.common.lock().capacity, |d| d.capacity())
    }

    /// A path that cannot be started is disabled, and its disk starts without it.
    fn start(&self, nr_hw_queues: u16, queue_depth: u32) -> Result<(), String> {
        let mut started = self.started.lock();
        *started = Some((nr_hw_queues, queue_depth));
        for i in 0..nr_hw_queues {
            self.queues.get_or_init(i, PathQueue::default);
        }
        self.usable.store(false, Ordering::Relaxed);
        if let Err(why) = self.bring_up(*started) {
            self.set_trouble(Some(why));
        }
        Ok(())
    }

    #[inline]
    fn queue_rqs(&self, batch: &mut RqBatch<'_>, now: Instant) -> QueueRqStatus {
        match &*self.queues.get(batch.hctx()).driver.read() {
            Some(driver) if self.is_usable() => driver.queue_rqs(batch, now),
            _ if batch.remaining() == 0 => QueueRqStatus::Queued,
            _ => QueueRqStatus::Error(BlkStatus::Transport),
        }
    }

    fn timeout(&self, hctx: HctxId, late: TimedOut, done: &mut Completions, now: Instant) -> TimeoutAnswer {
        match &*self.queues.get(hctx).driver.read() {
            Some(driver) => driver.timeout(hctx, late, done, now),
            None => TimeoutAnswer::Done,
        }
    }

    #[inline]
    fn poll(&self, hctx: HctxId, done: &mut Completions, now: Instant) {
        let queue = self.queues.get(hctx);
        if let Some(driver) = &*queue.driver.read() {
            let before = done.room();
            driver.poll(hctx, done, now);
            if done.room() != before {
                // Two threads that poll at the same time may count only one completion, but the number changes.
                queue.ends.store(queue.ends.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
            }
        }
    }
}
