// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk that is served: a driver with the block layer on top, or several of these that it is striped over; and which
//! IOThread each of its submitters is.

use super::helper::HelperThread;
use super::lock::ImageLock;
use super::members::{self, Member, Stored};
use super::rewrite::Rewrites;
use super::wakeup::Wakeups;
use crate::disk::IoPath;
use crate::disk::limit_hw_queues;
use crate::driver::{Connections, HostDriver};
use crate::error::{Error, Result};
use crate::mem::{Region, Regions};
use crate::run::{Frozen, change_settings, drain, replace_settings};
use blk::cpumap::CpuTopology;
use blk::driver::Driver;
use blk::id::{CpuId, MAX_SUBMITTERS, SECTOR_SHIFT, Sector, SubmitterId};
use blk::limits::Limits;
use blk::qos::rates::LIMIT_NAMES;
use blk::queue::{Notify, RequestQueue};
use blk::settings::QueueConfig;
use blk::stat::{DiskStats, HctxStats};
use blk::stripe::{StripeMap, Striped};
use blk::time::Duration;
use parking_lot::{Mutex, MutexGuard};
use std::ops::Add;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, OnceLock};

/// One disk, ready for ports. Its owner keeps its drivers open, and its images locked: fields are dropped in this
/// order.
pub struct ServedDisk {
    /// The disk's name for clients.
    pub name: String,
    members: Box<[Member]>,
    /// Which of them has what, if there are several.
    map: Option<Arc<StripeMap>>,
    limits: Limits,
    /// Memory that I/O goes to and comes from; all members know it by the same numbers.
    pub regions: Arc<Regions>,
    wakeups: Arc<Wakeups>,
    /// Answers what may take long.
    pub(crate) helper: HelperThread,
    /// Blocks that are read, changed and written, and the writers that keep off them.
    pub(crate) rewrites: Rewrites,
    /// Held while settings change.
    changing: Mutex<()>,
    /// No I/O begins, by [`ServedDisk::drain`].
    drained: Mutex<bool>,
    /// The same for readers: the lock is held as long as I/O takes. Stored under it.
    is_drained: AtomicBool,
    /// Writes that find no space are held, unless they are given up.
    holds_on_enospc: AtomicBool,
    /// Regions of buffers whose user is gone, and their sizes: a region with a fixed place in drivers is not given up.
    spare_buffers: Mutex<Vec<(usize, u16)>>,
    /// Set by its owner, if it has one.
    kept: OnceLock<DiskResources>,
}

/// What ends with a disk, after its drivers. Fields are dropped in this order.
struct DiskResources {
    _locks: Vec<ImageLock>,
    /// Nothing is sent: it hangs up.
    _gone: Sender<()>,
}

/// What a disk is made of.
pub(super) enum Parts {
    Plain(Arc<dyn HostDriver>),
    /// As many as the map has stripes.
    Striped(Arc<StripeMap>, Vec<Arc<dyn HostDriver>>),
}

/// Wakes an IOThread that is to check all its sources, from any thread.
#[derive(Clone)]
pub(crate) struct Waker {
    wakeups: Arc<Wakeups>,
    thread: u16,
}

impl PartialEq for Waker {
    fn eq(&self, other: &Waker) -> bool {
        self.thread == other.thread && Arc::ptr_eq(&self.wakeups, &other.wakeups)
    }
}

impl Waker {
    #[cfg(test)]
    pub(super) fn new(wakeups: &Arc<Wakeups>, thread: u16) -> Waker {
        Waker { wakeups: Arc::clone(wakeups), thread }
    }

    /// What it is woken for is in its place already.
    pub(crate) fn wake(&self) {
        self.wakeups.wake(self.thread);
    }
}

/// Rings for the IOThread of a submitter.
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

impl ServedDisk {
    /// Starts the block layer on open drivers whose data is in `regions`. Each has `cpus` CPUs, one per IOThread there is
    /// now, and a hardware queue of its own for each unless `config` says otherwise; IOThreads that come later share them. Nor
    /// is there an elevator unless `config` names one.
    pub(super) fn new(
        name: String,
        parts: Parts,
        regions: Arc<Regions>,
        config: QueueConfig,
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
        // The client schedules above this, and the host's kernel below; the kernel's drivers in such a place (loop) do the same.
        let config = QueueConfig { topology: CpuTopology::uniform(cpus), no_sched_by_default: true, ..config };
        let members = drivers.into_iter().map(|driver| member(driver, config.clone(), wakeups));
        let members: Box<[Member]> = members.collect::<Result<_>>()?;
        let limits = match map {
            None => *members[0].queue.limits(),
            Some(_) => Limits::stacked(members.iter().map(|m| m.queue.limits())),
        };
        Ok(ServedDisk {
            name,
            members,
            map,
            limits,
            regions,
            wakeups: Arc::clone(wakeups),
            helper,
            rewrites: Rewrites::default(),
            changing: Mutex::default(),
            drained: Mutex::default(),
            is_drained: AtomicBool::new(false),
            holds_on_enospc: AtomicBool::new(false),
            spare_buffers: Mutex::default(),
            kept: OnceLock::new(),
        })
    }

    /// Keeps the locks of the disk's images until its last owner drops it. The returned receiver disconnects when the disk is gone: its
    /// drivers are closed then, and the locks are free.
    ///
    /// # Panics
    /// The second time.
    pub(super) fn keep(&self, locks: Vec<ImageLock>) -> Receiver<()> {
        let (gone, ends) = mpsc::channel();
        assert!(
            self.kept.set(DiskResources { _locks: locks, _gone: gone }).is_ok(),
            "disk '{}' has its locks",
            self.name
        );
        ends
    }

    /// The devices it is made of: one, or those it is striped over in their order.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Where sectors lie, if it is striped.
    pub fn stripe(&self) -> Option<&StripeMap> {
        self.map.as_deref()
    }

    /// Returns the disk's limits; for several members the strictest of each.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Its size.
    #[inline]
    pub fn capacity(&self) -> Sector {
        match &self.map {
            None => self.members[0].queue.capacity(),
            Some(map) => map.capacity(),
        }
    }

    /// Returns the disk's counters; for several members the sums.
    pub fn stats(&self) -> DiskStats {
        members::stats(&self.members)
    }

    /// Returns the counters of the hardware queues; for several members one after the other.
    pub fn hctx_stats(&self) -> Vec<HctxStats> {
        members::hctx_stats(&self.members)
    }

    /// As of [`Space::held_on_enospc`](crate::driver::Space::held_on_enospc).
    pub fn held_on_enospc(&self) -> u64 {
        self.members.iter().map(|m| m.driver.space().held_on_enospc()).sum()
    }

    /// As of [`DevicePath::connections`](crate::driver::DevicePath::connections), of all targets together; `None` if there are none.
    pub fn connections(&self) -> Option<Connections> {
        let all = self.members.iter().filter_map(|m| m.driver.path().connections());
        all.reduce(Add::add)
    }

    /// As of [`DevicePath::troubles`](crate::driver::DevicePath::troubles), of all targets.
    pub fn troubles(&self) -> Vec<String> {
        self.members.iter().flat_map(|m| m.driver.path().troubles()).collect()
    }

    /// As [`DevicePath::set_give_up`](crate::driver::DevicePath::set_give_up), for all targets; writes are not held for want of space
    /// meanwhile. Returns whether each target can give up, or holds writes.
    pub(super) fn set_give_up(&self, give_up: bool) -> bool {
        // Relaxed: changed by one thread at a time, which changes the daemon.
        let holds = self.holds_on_enospc.load(Ordering::Relaxed);
        let give_up_one = |m: &Member| {
            let gives_up = m.driver.path().set_give_up(give_up);
            gives_up | (holds && m.driver.space().set_hold_on_enospc(!give_up))
        };
        self.members.iter().map(give_up_one).fold(true, |all, one| all & one)
    }

    /// As [`Space::set_hold_on_enospc`](crate::driver::Space::set_hold_on_enospc), for each target. Returns the numbers of the targets
    /// that have no such mode.
    pub fn set_hold_on_enospc(&self, hold: bool) -> Vec<usize> {
        self.holds_on_enospc.store(hold, Ordering::Relaxed);
        let without = |(i, m): (usize, &Member)| (!m.driver.space().set_hold_on_enospc(hold)).then_some(i);
        self.members.iter().enumerate().filter_map(without).collect()
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
    /// As of [`ServedDisk::change`].
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

    /// Changes one member after the other; if one cannot be changed, those before it go back to what they had. The times
    /// of all members together: I/O that goes to all of them may wait for each.
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

    /// Gives the disk another size, or with `None` finds out the size that its image has now. I/O continues, except that a disk that
    /// becomes smaller is drained first, because the data beyond the new end is lost. Returns the size in bytes.
    ///
    /// # Errors
    /// Usage: it is striped, and where its data lies depends on its size's being what it was. As of [`Space::resize`](crate::driver::Space::resize) and
    /// [`ServedDisk::change`].
    pub fn resize(&self, bytes: Option<u64>) -> Result<u64> {
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
        let smaller = bytes.is_some_and(|bytes| bytes < queue.capacity().0 << SECTOR_SHIFT);
        if smaller {
            drain(queue)?;
        }
        let keeps =
            || Err(Error::usage(format!("a disk of driver '{}' keeps the size it was made with", driver.name())));
        let resized = driver.space().resize(bytes).unwrap_or_else(keeps);
        let resized = resized.inspect(|capacity| queue.set_capacity(*capacity));
        if smaller {
            queue.unfreeze();
        }
        Ok(resized?.0 << SECTOR_SHIFT)
    }

    /// Waits until nothing is in flight, and lets nothing begin until [`ServedDisk::resume`]; clients wait. Returns how long that took.
    /// Does nothing if the disk is drained.
    ///
    /// # Errors
    /// Usage: I/O in flight has not ended after 30 s. New I/O begins again then.
    pub fn drain(&self) -> Result<Duration> {
        let mut drained = self.drained.lock();
        if *drained {
            return Ok(Duration::ZERO);
        }
        let took = self.drain_members()?;
        *drained = true;
        // Relaxed: nothing is read because of it.
        self.is_drained.store(true, Ordering::Relaxed);
        Ok(took)
    }

    /// All members, or none.
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

    /// An export comes that reads, changes and writes blocks: from when this returns, [`Rewrites`] knows or counts all writes to the disk.
    /// No I/O waits. `meet` is [`IoThreads::meet`](super::IoThreads::meet).
    pub(crate) fn expect_rewrites(&self, meet: impl FnOnce()) {
        self.rewrites.expect();
        meet();
    }

    /// It is gone.
    pub(crate) fn unexpect_rewrites(&self) {
        self.rewrites.unexpect();
    }

    /// No other thread drains it, resumes it or changes it meanwhile.
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

    /// Wakes the IOThread with this number.
    pub(super) fn waker(&self, thread: u16) -> Waker {
        Waker { wakeups: Arc::clone(&self.wakeups), thread }
    }

    /// Of whichever thread has number 0.
    #[cfg(test)]
    pub(crate) fn any_waker(&self) -> Waker {
        self.waker(0)
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

/// Why a striped disk cannot have these settings, if it cannot: each target would be limited by itself, and count what a
/// client sees as one I/O as several.
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

    /// A list of disks waited as long as a drain of one.
    #[test]
    fn asking_whether_it_is_drained_does_not_wait_for_a_drain() {
        let option = ThreadOptions { name: "io".into(), cpus: Vec::new(), polling: Polling::default() };
        let threads = IoThreads::start(&[option]).unwrap();
        let regions = Arc::new(Regions::new());
        let needs = Needs { write: true, direct: false, min_bytes: 0, in_use: false, read_ahead_kb: None };
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
