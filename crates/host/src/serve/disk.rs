// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk that is served: a driver with the block layer on top, or several of these if it is striped. It also records which IOThread uses
//! each submitter.

use super::client_memory;
use super::geometry::{Geometry, whole_blocks};
use super::helper::HelperThread;
use super::inject::{FaultRule, Injection, RuleStatus};
use super::members::{self, Member, Stored};
use super::wakeup::Wakeups;
use crate::disk::IoPath;
use crate::disk::limit_hw_queues;
use crate::driver::{Connections, FailureReport, HostDriver, PathMessage};
use crate::error::{Error, Result};
use crate::image_lock::ImageLock;
use crate::mem::{Region, Regions};
use crate::net::owner::Owner;
use crate::run::{Frozen, change_settings, drain, replace_settings, wait_ended};
use blk::cpumap::CpuTopology;
use blk::driver::Driver;
use blk::id::{CpuId, MAX_SUBMITTERS, SECTOR_SHIFT, SECTOR_SIZE, Sector, SubmitterId};
use blk::limits::Limits;
use blk::qos::rates::LIMIT_NAMES;
use blk::queue::{Notify, RequestQueue};
use blk::rmw::{BlockLocks, Wake};
use blk::settings::QueueConfig;
use blk::stat::{DiskStats, HctxStats};
use blk::status::BlkStatus;
use blk::stripe::{StripeMap, Striped};
use blk::time::Duration;
use parking_lot::{Mutex, MutexGuard, RawMutex};
use std::ops::Add;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};

/// One disk, ready for ports. While it exists, its drivers are open and its images locked. Fields are dropped in this order.
pub struct ServedDisk {
    /// The disk's name for clients.
    pub name: String,
    members: Box<[Member]>,
    /// Where sectors lie on the members, if there are several.
    map: Option<Arc<StripeMap>>,
    /// Limits as clients see them.
    limits: Limits,
    /// Bytes of the largest logical block of the members.
    block_size: u32,
    /// Its driver has the exact size, and the capacity is that, rounded up to sectors.
    has_any_size: bool,
    /// Memory for the data of I/O; region numbers are the same for all members.
    pub regions: Arc<Regions>,
    wakeups: Arc<Wakeups>,
    /// Handles requests that may take long.
    pub(crate) helper: HelperThread,
    /// Blocks that are being rewritten (read, changed, written back), and the writes that wait for that.
    pub(crate) locks: Arc<BlockLocks<RawMutex, Waker>>,
    /// Held while settings change.
    changing: Mutex<()>,
    /// Whether [`ServedDisk::drain`] prevents new I/O.
    drained: Mutex<bool>,
    /// A copy of `drained` that can be read without its lock, which may be held as long as I/O takes. Stored under that lock.
    is_drained: AtomicBool,
    /// Writes that fail for lack of space are held and retried, unless they are given up.
    holds_on_enospc: AtomicBool,
    /// A failed flush has been logged.
    is_flush_logged: AtomicBool,
    /// Faults that requests of clients get on purpose.
    injection: Injection,
    /// Sizes and numbers of unused buffer regions, for reuse; their pages went back to the system.
    spare_buffers: Mutex<Vec<(usize, u16)>>,
    /// Set by [`ServedDisk::keep`].
    kept: OnceLock<DiskResources>,
}

/// Resources that are released after the disk's drivers. Fields are dropped in this order.
struct DiskResources {
    _locks: Vec<Arc<ImageLock>>,
    /// Nothing is sent; dropping it disconnects the receiver.
    _gone: Sender<()>,
}

/// The drivers of a disk.
pub(super) enum Parts {
    Plain(Arc<dyn HostDriver>),
    /// As many as the map has stripes.
    Striped(Arc<StripeMap>, Vec<Arc<dyn HostDriver>>),
}

/// Wakes an IOThread from any thread, so that it checks all its sources.
#[derive(Clone)]
pub(crate) struct Waker {
    wakeups: Arc<Wakeups>,
    thread: u16,
}

impl Wake for Waker {
    fn wake(&self) {
        self.wakeups.wake(self.thread);
    }
}

/// Wakes the IOThread of a submitter.
struct Ring {
    threads: Arc<[AtomicU16]>,
    wakeups: Arc<Wakeups>,
}

impl Notify for Ring {
    fn notify(&self, submitter: SubmitterId) {
        // Relaxed: written before the submitter was used, which orders it.
        let thread = self.threads[submitter.index()].load(Ordering::Relaxed);
        self.wakeups.wake(thread);
    }
}

impl Drop for ServedDisk {
    fn drop(&mut self) {
        self.log_failed_flush();
    }
}

impl ServedDisk {
    /// Starts the block layer on open drivers whose data is in `regions`. Each gets `cpus` CPUs, one per current IOThread. Unless `config`
    /// says otherwise, each CPU has a hardware queue of its own, and there is no elevator. IOThreads that are added later share these
    /// queues.
    pub(super) fn new(
        name: String,
        parts: Parts,
        regions: Arc<Regions>,
        config: QueueConfig,
        geometry: Geometry,
        cpus: u16,
        wakeups: &Arc<Wakeups>,
    ) -> Result<ServedDisk> {
        let (drivers, map) = match parts {
            Parts::Plain(driver) => (vec![driver], None),
            Parts::Striped(map, drivers) => {
                assert_eq!(drivers.len(), map.nr_stripes(), "a driver for each stripe");
                (drivers, Some(map))
            }
        };
        let helper = HelperThread::new(Stored::new(&drivers, map.as_ref()));
        // The client schedules above this layer and the host's kernel below, so there is no scheduler by default, as in the kernel's loop
        // driver.
        let config = QueueConfig { topology: CpuTopology::uniform(cpus), no_sched_by_default: true, ..config };
        let members = drivers.into_iter().map(|driver| member(driver, config.clone(), wakeups));
        let members: Box<[Member]> = members.collect::<Result<_>>()?;
        let (below, capacity) = match &map {
            None => (*members[0].queue.limits(), members[0].queue.capacity()),
            Some(map) => (Limits::stacked(members.iter().map(|m| m.queue.limits())), map.capacity()),
        };
        let exact = if map.is_none() { members[0].driver.space().exact_bytes() } else { None };
        let limits = geometry.shown(&below, exact.unwrap_or(capacity.0 << SECTOR_SHIFT)).map_err(Error::usage)?;
        Ok(ServedDisk {
            name,
            members,
            map,
            limits,
            block_size: below.logical_block_size,
            has_any_size: exact.is_some(),
            regions,
            wakeups: Arc::clone(wakeups),
            helper,
            locks: Arc::default(),
            changing: Mutex::default(),
            drained: Mutex::default(),
            is_drained: AtomicBool::new(false),
            holds_on_enospc: AtomicBool::new(false),
            is_flush_logged: AtomicBool::new(false),
            injection: Injection::default(),
            spare_buffers: Mutex::default(),
            kept: OnceLock::new(),
        })
    }

    /// Keeps locks of the disk's images until its last owner drops it. The returned receiver disconnects when the disk is gone: its
    /// drivers are closed then, and the locks are free.
    ///
    /// # Panics
    /// If it is called twice.
    pub(super) fn keep(&self, locks: Vec<Arc<ImageLock>>) -> Receiver<()> {
        let (gone, ends) = mpsc::channel();
        let resources = DiskResources { _locks: locks, _gone: gone };
        assert!(self.kept.set(resources).is_ok(), "disk '{}' has its locks", self.name);
        ends
    }

    /// Returns the devices of the disk: one, or those that it is striped over, in order.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Returns the name of a member: the disk's, or `DISK/NUMBER` of several, counted from 0.
    pub fn member_name(&self, number: usize) -> String {
        if self.members.len() > 1 { format!("{}/{number}", self.name) } else { self.name.clone() }
    }

    /// Returns whether I/O to all its images bypasses the page cache; `None`: it has no image.
    pub fn is_direct(&self) -> Option<bool> {
        self.members.iter().filter_map(|m| m.driver.is_direct()).reduce(|all, is| all && is)
    }

    /// Returns the stripe map; `None` if the disk is not striped.
    pub fn stripe(&self) -> Option<&StripeMap> {
        self.map.as_deref()
    }

    /// Returns the disk's limits as clients see them; for several members the strictest of each.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the limits as clients of an export with these block sizes see them.
    ///
    /// # Errors
    /// Usage: the disk does not consist of whole blocks of that size. A last sector that the disk has in part is no whole block for an
    /// export that sets a size.
    pub fn shown(&self, geometry: Geometry) -> Result<Limits> {
        let bytes = self.bytes();
        if let Some(block) = geometry.logical {
            whole_blocks(block, bytes).map_err(Error::usage)?;
        }
        geometry.shown(&self.limits, bytes).map_err(Error::usage)
    }

    /// Returns the bytes of a block of its targets. I/O and memory of whole blocks is fast; all other I/O is done by rewriting blocks.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Returns the disk's size in bytes, which for an image may be any number.
    #[inline]
    pub fn bytes(&self) -> u64 {
        let exact = if self.has_any_size { self.members[0].driver.space().exact_bytes() } else { None };
        exact.unwrap_or_else(|| self.capacity().0 << SECTOR_SHIFT)
    }

    /// Whether the disk ended within a sector when it was opened. Then it may have any size, and only exports with their own end serve it.
    pub(super) fn has_any_size(&self) -> bool {
        self.has_any_size
    }

    /// Returns the disk's size in sectors. The last one may end beyond the disk.
    #[inline]
    pub fn capacity(&self) -> Sector {
        match &self.map {
            None => self.members[0].queue.capacity(),
            Some(map) => map.capacity(),
        }
    }

    /// Returns the disk's counters; for several members the sums. I/Os that fault injection delays are in flight, too.
    pub fn stats(&self) -> DiskStats {
        let mut all = members::stats(&self.members);
        all.in_flight += self.injection.delayed();
        all
    }

    /// Returns the counters of the hardware queues; for several members one after the other.
    pub fn hctx_stats(&self) -> Vec<HctxStats> {
        members::hctx_stats(&self.members)
    }

    /// Returns how often a write was held because there was no space, over all targets.
    pub fn held_on_enospc(&self) -> u64 {
        self.members.iter().map(|m| m.queue.held_on_enospc()).sum()
    }

    /// Returns the sum of [`DevicePath::connections`](crate::driver::DevicePath::connections) over all targets; `None` if no target has
    /// connections.
    pub fn connections(&self) -> Option<Connections> {
        let all = self.members.iter().filter_map(|m| m.driver.path().connections());
        all.reduce(Add::add)
    }

    /// Returns the [`DevicePath::troubles`](crate::driver::DevicePath::troubles) of all targets.
    pub fn troubles(&self) -> Vec<String> {
        self.members.iter().flat_map(|m| m.driver.path().troubles()).collect()
    }

    /// Returns the [`DevicePath::take_messages`](crate::driver::DevicePath::take_messages) of each target, with its name.
    pub(super) fn take_messages(&self) -> impl Iterator<Item = (String, Vec<PathMessage>)> {
        let names = (0..).map(|number| self.member_name(number));
        names.zip(self.members.iter().map(|m| m.driver.path().take_messages()))
    }

    /// Returns the [`DevicePath::take_failures`](crate::driver::DevicePath::take_failures) of all targets.
    pub(super) fn take_failures(&self) -> Vec<FailureReport> {
        self.members.iter().flat_map(|m| m.driver.path().take_failures()).collect()
    }

    /// Describes a failed flush, with the remedy.
    pub fn flush_trouble(&self) -> Option<String> {
        let status = self.failed_flush()?;
        Some(format!(
            "a flush failed ({status}): data that was acknowledged before may be lost, so every flush fails until the image is opened \
             again; compare the data with a copy, then remove the disk and add it again, or restart the daemon"
        ))
    }

    /// Logs a failed flush, once.
    pub(super) fn log_failed_flush(&self) {
        if let Some(text) = self.flush_trouble()
            && !self.is_flush_logged.swap(true, Ordering::Relaxed)
        {
            log::error!(disk = self.name.as_str(); "{text}");
        }
    }

    /// Returns the rules of fault injection.
    #[inline]
    pub fn injection(&self) -> &Injection {
        &self.injection
    }

    /// Gives requests of clients a fault from now on. Returns the number of the rule.
    ///
    /// # Errors
    /// Usage: the rule does not fit the disk, or the disk has too many.
    pub fn inject(&self, rule: FaultRule) -> Result<u32> {
        rule.check(self.capacity()).and_then(|()| self.injection.add(rule)).map_err(Error::usage)
    }

    /// Removes the rule of fault injection with this number, or with `None` all of them. Requests that it delays continue. Returns what
    /// was removed.
    ///
    /// # Errors
    /// Usage: there is no rule with this number.
    pub fn remove_injection(&self, id: Option<u32>) -> Result<Vec<RuleStatus>> {
        let removed = self.injection.remove(id);
        self.wakeups.wake_all();
        match id {
            Some(id) if removed.is_empty() => {
                let text = format!("there is no rule {id}; 'mqblk ctl inject {} --list' shows the rules", self.name);
                Err(Error::usage(text))
            }
            _ => Ok(removed),
        }
    }

    /// Ends fault injection, because the disk ends.
    pub(super) fn end_injection(&self) {
        let removed = self.injection.remove(None);
        if !removed.is_empty() {
            self.wakeups.wake_all();
        }
        for rule in removed {
            log::info!(disk = self.name.as_str(); "fault injection ends with the disk: {rule}");
        }
    }

    /// Describes the faults that are injected, with the remedy.
    pub fn injection_trouble(&self) -> Option<String> {
        let rules: Vec<String> = self.injection.rules().iter().map(RuleStatus::to_string).collect();
        let remedy = || format!("'mqblk ctl inject {} --remove all' ends that", self.name);
        (!rules.is_empty()).then(|| format!("faults are injected: {}; {}", rules.join("; "), remedy()))
    }

    /// Returns the status of the first flush that a target failed, as [`RequestQueue::failed_flush`](blk::queue::RequestQueue).
    pub fn failed_flush(&self) -> Option<BlkStatus> {
        self.members.iter().find_map(|m| m.queue.failed_flush())
    }

    /// As [`DevicePath::set_give_up`](crate::driver::DevicePath::set_give_up), for all targets; meanwhile, writes are not held for lack of
    /// space, and fault injection delays no request. Returns whether each target can give up, or holds writes, or requests are delayed.
    pub(super) fn set_give_up(&self, give_up: bool) -> bool {
        let delays = self.injection.delayed() > 0;
        self.injection.set_give_up(give_up);
        if give_up && delays {
            self.wakeups.wake_all();
        }
        // Relaxed: changed by one thread at a time, which changes the daemon.
        let holds = self.holds_on_enospc.load(Ordering::Relaxed);
        let give_up_one = |m: &Member| {
            m.queue.set_hold_on_enospc(holds && !give_up);
            m.driver.path().set_give_up(give_up) | holds | delays
        };
        self.members.iter().map(give_up_one).fold(true, |all, one| all & one)
    }

    /// Sets whether writes that fail for lack of space are issued again once a second, on all targets.
    pub fn set_hold_on_enospc(&self, hold: bool) {
        self.holds_on_enospc.store(hold, Ordering::Relaxed);
        self.members.iter().for_each(|m| m.queue.set_hold_on_enospc(hold));
    }

    /// Makes an entry to the disk for the IOThread with this number.
    pub(super) fn io_path(&self, thread: u16) -> Result<IoPath> {
        let submitter = |m: &Member| {
            let cpus = m.queue.config().topology.nr_cpus;
            let sub = m.queue.submitter(CpuId::new(u32::from(thread % cpus)));
            let sub = sub.ok_or_else(|| Error::usage(format!("disk '{}': too many IOThreads", self.name)))?;
            m.introduce(sub.id(), thread);
            Ok(sub)
        };
        Ok(match &self.map {
            None => IoPath::Plain(submitter(&self.members[0])?),
            Some(map) => {
                let below = self.members.iter().map(submitter).collect::<Result<_>>()?;
                IoPath::Striped(Box::new(Striped::new(Arc::clone(map), below)))
            }
        })
    }

    /// Changes settings of all members, `(name, value)` each, under I/O. Returns how long no I/O could begin, `None` if it was not stopped.
    ///
    /// # Errors
    /// Usage: the first setting that does not fit, or I/O in flight that has not ended after 30 s; nothing has changed.
    pub fn change(&self, settings: &[(String, String)]) -> Result<Option<Duration>> {
        let _held = self.unheld()?;
        self.check_limits(settings)?;
        self.all_or_none(|m| change_settings(&m.queue, settings, false, &self.frozen(m)))
    }

    /// Replaces all settings, under I/O. Returns how long no I/O could begin.
    ///
    /// # Errors
    /// The errors of [`ServedDisk::change`].
    pub fn replace_settings(&self, settings: &[(String, String)]) -> Result<Duration> {
        let _held = self.unheld()?;
        self.check_limits(settings)?;
        let mut config = QueueConfig::default();
        settings.iter().try_for_each(|(k, v)| config.set(k, v)).map_err(|e| Error::usage(e.to_string()))?;
        let froze = self.all_or_none(|m| replace_settings(&m.queue, &config, &self.frozen(m)).map(Some))?;
        Ok(froze.unwrap_or_default())
    }

    fn check_limits(&self, settings: &[(String, String)]) -> Result<()> {
        match limit_of_stripe(settings) {
            Some(text) if self.map.is_some() => Err(Error::usage(text)),
            _ => Ok(()),
        }
    }

    /// Changes one member after the other; if one fails, the members before it get their old settings back. Returns the sum of the
    /// members' times, because I/O that goes to all members may wait for each.
    fn all_or_none(&self, change: impl Fn(&Member) -> Result<Option<Duration>>) -> Result<Option<Duration>> {
        let before: Vec<QueueConfig> = self.members.iter().map(|m| m.queue.config()).collect();
        let mut froze = None;
        for (index, member) in self.members.iter().enumerate() {
            match change(member) {
                Ok(None) => {}
                Ok(Some(time)) => froze = Some(froze.unwrap_or_default() + time),
                Err(e) => {
                    for (member, config) in self.members.iter().zip(&before).take(index) {
                        if let Err(e) = replace_settings(&member.queue, config, &self.frozen(member)) {
                            let disk = self.name.as_str();
                            log::error!(disk; "rolling back the settings of a stripe member failed, so they differ \
                                               from the others': {e}");
                        }
                    }
                    return Err(e);
                }
            }
        }
        Ok(froze)
    }

    /// Resizes the disk, or with `None` adopts the current size of its image. I/O continues, except that a disk that may `shrink` is
    /// drained first, because the data beyond the new end is lost. `block` is the largest logical block that an export sets: the size must
    /// be a multiple of it, also if the disk may end within a sector. Returns the size in bytes.
    ///
    /// # Errors
    /// Usage: the disk is striped, so the location of its data depends on its size; or the size is not whole blocks. Also the errors of
    /// [`Space::resize`](crate::driver::Space::resize) and [`ServedDisk::change`].
    pub fn resize(&self, bytes: Option<u64>, shrink: bool, block: Option<u32>) -> Result<u64> {
        let _held = self.unheld()?;
        let ([Member { queue, driver, .. }], None) = (&*self.members, &self.map) else {
            let text = format!(
                "disk '{}' is striped over {} targets and keeps its size; to enlarge it, remove it, enlarge each \
                 target by the same amount, and add it again",
                self.name,
                self.members.len()
            );
            return Err(Error::usage(text));
        };
        let (own, set) = (u64::from(self.limits.logical_block_size), block.map_or(1, u64::from));
        let unit = if self.has_any_size() { u64::from(SECTOR_SIZE) } else { 1 };
        let is_whole_here = |bytes: u64| bytes.checked_next_multiple_of(unit).is_some_and(|b| b.is_multiple_of(own));
        let is_whole = |bytes: u64| bytes.is_multiple_of(set) && is_whole_here(bytes);
        let block = own.max(set);
        let whole = |bytes: u64| match is_whole(bytes) {
            true => Ok(()),
            false => Err(Error::usage(format!(
                "size={bytes}: must be a multiple of {block}, the largest logical_block_size of the disk and its exports; the disk keeps \
                 its size"
            ))),
        };
        bytes.map_or(Ok(()), whole)?;
        if shrink {
            drain(queue)?;
        }
        let keeps = || Err(Error::usage(format!("a disk of driver '{}' cannot be resized", driver.name())));
        let resized = driver.space().resize(bytes, shrink).unwrap_or_else(keeps);
        let resized = resized.map_err(|e| e.within(&format!("disk '{}'", self.name)));
        let resized = resized.and_then(|bytes| whole(bytes).map(|()| bytes));
        let resized = resized.inspect(|bytes| {
            driver.space().adopt(*bytes);
            queue.set_capacity(driver.capacity());
        });
        if shrink {
            queue.unfreeze();
        }
        resized.map(|_| self.bytes())
    }

    /// Waits until no I/O is in flight, and prevents new I/O until [`ServedDisk::resume`]; clients wait. Then no block is between its read
    /// and its write either, so the image may be changed. Returns how long that took. Does nothing if the disk is drained.
    ///
    /// # Errors
    /// Usage: blocks that are rewritten, or after them other I/O in flight, have not ended after 30 s. New I/O begins again then.
    pub fn drain(&self) -> Result<Duration> {
        let mut drained = self.drained.lock();
        if *drained {
            return Ok(Duration::ZERO);
        }
        // Close the locks before the freeze, because the freeze would keep a rewrite from writing a block that it has read. While the disk
        // is drained, a rewrite begins with a read, which waits.
        self.locks.close();
        let rewritten = wait_ended(|| self.locks.is_free());
        let took = rewritten.and_then(|took| Ok(took + self.drain_members()?));
        self.locks.open();
        let took = took?;
        *drained = true;
        // Relaxed: no other data depends on it.
        self.is_drained.store(true, Ordering::Relaxed);
        Ok(took)
    }

    /// Drains all members, or none.
    fn drain_members(&self) -> Result<Duration> {
        let mut took = Duration::ZERO;
        for (index, member) in self.members.iter().enumerate() {
            match drain(&member.queue) {
                Ok(time) => took = took + time,
                Err(e) => {
                    self.members[..index].iter().for_each(|m| m.queue.unfreeze());
                    return Err(e);
                }
            }
        }
        Ok(took)
    }

    /// Ends a [`ServedDisk::drain`]. Returns whether there was one.
    pub fn resume(&self) -> bool {
        let mut drained = self.drained.lock();
        let was = std::mem::replace(&mut *drained, false);
        self.is_drained.store(false, Ordering::Relaxed);
        drop(drained);
        if was {
            self.members.iter().for_each(|m| m.queue.unfreeze());
        }
        was
    }

    /// Whether it is drained. Does not wait for a thread that drains, resumes or changes it.
    pub fn is_drained(&self) -> bool {
        self.is_drained.load(Ordering::Relaxed)
    }

    /// Returns a guard that keeps other threads from draining, resuming or changing the disk. Fails if the disk is drained.
    fn unheld(&self) -> Result<MutexGuard<'_, bool>> {
        let drained = self.drained.lock();
        if *drained {
            return Err(Error::usage(format!("disk '{}' is drained: resume it first", self.name)));
        }
        Ok(drained)
    }

    fn frozen<'a>(&'a self, member: &'a Member) -> Frozen<'a> {
        Frozen { waiter_lock: &self.changing, driver: member.driver.as_ref() }
    }

    /// As [`ServedDisk::take_buffers`], for a client of `owner`. [`client_memory`] limits what all clients have, and what those of an owner
    /// have.
    ///
    /// # Errors
    /// Resource: there is no memory for it, or clients have too much.
    pub(crate) fn take_client_buffers(&self, bytes: usize, owner: Option<Owner>) -> Result<u16> {
        client_memory::take(bytes, owner)?;
        self.take_buffers(bytes).inspect_err(|_| client_memory::give_back(bytes, owner))
    }

    /// As [`ServedDisk::give_buffers_back`], for what [`ServedDisk::take_client_buffers`] returned for this owner.
    pub(crate) fn give_client_buffers_back(&self, bytes: usize, number: u16, owner: Option<Owner>) {
        self.give_buffers_back(bytes, number);
        client_memory::give_back(bytes, owner);
    }

    /// Returns the number of a region of `bytes` for the buffers of a port.
    ///
    /// # Errors
    /// Resource: there is no memory for it.
    pub(crate) fn take_buffers(&self, bytes: usize) -> Result<u16> {
        let mut spare = self.spare_buffers.lock();
        if let Some(at) = spare.iter().position(|(size, _)| *size == bytes) {
            return Ok(spare.swap_remove(at).1);
        }
        drop(spare);
        self.regions.add(Arc::new(Region::for_clients(bytes)?))
    }

    /// Returns a region of `bytes` for reuse; its pages go back to the system. No I/O to it may be in flight.
    pub(crate) fn give_buffers_back(&self, bytes: usize, number: u16) {
        let whole = self.regions.get(number).expect("a region that was taken is there");
        whole.discard(0, whole.len()).expect("all of it is inside");
        self.spare_buffers.lock().push((bytes, number));
    }

    /// Returns a waker for the IOThread with this number.
    pub(super) fn waker(&self, thread: u16) -> Waker {
        Waker { wakeups: Arc::clone(&self.wakeups), thread }
    }
}

/// Starts the block layer on a driver.
fn member(driver: Arc<dyn HostDriver>, mut config: QueueConfig, wakeups: &Arc<Wakeups>) -> Result<Member> {
    let threads: Arc<[AtomicU16]> = (0..MAX_SUBMITTERS).map(|_| AtomicU16::new(0)).collect();
    let core: Arc<dyn Driver> = driver.clone();
    let notify = Box::new(Ring { threads: Arc::clone(&threads), wakeups: Arc::clone(wakeups) });
    limit_hw_queues(driver.as_ref(), &mut config);
    let queue = RequestQueue::new(core, config, notify).map_err(|e| Error::usage(e.to_string()))?;
    Ok(Member { queue, driver, threads })
}

/// Returns why a striped disk cannot have these settings, if it cannot. Each target would be limited separately, and one I/O of a client
/// would count as several.
pub(super) fn limit_of_stripe(settings: &[(String, String)]) -> Option<String> {
    let (name, value) = settings.iter().find(|(name, _)| LIMIT_NAMES.contains(&name.as_str()))?;
    Some(format!("{name}={value}: limits are not supported for a striped disk; leave it out, or limit its clients"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::{IoThreads, Polling, ThreadOptions};
    use crate::target::{Needs, TargetSpec};
    use std::sync::mpsc;

    /// Listing disks used to wait as long as the drain of one of them.
    #[test]
    fn asking_whether_it_is_drained_does_not_wait_for_a_drain() {
        let option = ThreadOptions { name: "io".into(), cpus: Vec::new(), polling: Polling::default() };
        let threads = IoThreads::start(&[option]).unwrap();
        let regions = Arc::new(Regions::new());
        let needs = Needs { write: true, direct: false, min_bytes: 0, in_use: false, read_ahead_kb: None, aio: None };
        let driver = TargetSpec::parse("ram:size=1m").unwrap().open(&needs, Arc::clone(&regions)).unwrap().driver;
        let disk = threads.disk("d", driver, regions, QueueConfig::default()).unwrap();
        let (said, is_drained) = mpsc::channel();
        let asked = Arc::clone(&disk);
        let caller = || {
            std::thread::spawn(move || said.send(asked.is_drained()));
            let answer = is_drained.recv_timeout(std::time::Duration::from_secs(30));
            assert_eq!(answer, Ok(false), "it waits");
        };
        let held = disk.unheld().unwrap();
        caller();
        drop(held);
        disk.drain().unwrap();
        assert!(disk.is_drained() && disk.resume() && !disk.is_drained());
    }
}
