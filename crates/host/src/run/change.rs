// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes settings of a disk under I/O.
//!
//! Guarantees: several settings given together take effect as a whole or not at all. No I/O is lost, repeated or failed by the change. A
//! setting that can change without a freeze does not stop the disk. Every other one freezes the disk: new I/O waits until the I/O in
//! flight has completed, then the queues are built anew. A setting of a tag set changes for all disks that share the tags.

use super::settings::RUN_SETTINGS;
use crate::clock;
use crate::disk::{Disk, Queue, limit_hw_queues};
use crate::driver::HostDriver;
use crate::error::{Error, Result};
use blk::id::CpuId;
use blk::settings::{Mode, QueueConfig, SETTINGS, SettingError, SettingInfo};
use blk::tags::{TagSet, TagSetConfig};
use blk::time::Duration;
use parking_lot::RawMutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Longest time a change waits for I/O in flight to end.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest time without new I/O because a CPU went offline or came online.
const CPU_PATIENCE: Duration = Duration::from_secs(1);
/// Interval at which a waiting change checks for I/O in flight.
const LOOK: std::time::Duration = std::time::Duration::from_micros(50);

type Settings<'a> = &'a [(String, String)];

impl Disk {
    /// Changes settings, given as `(name, value)` under the names that a run takes. Returns how long no I/O could begin, or `None` if I/O
    /// was not stopped. The error names the first setting that does not fit; then nothing has changed. The same holds if I/O in flight
    /// has not completed after 30 s.
    pub fn change(&self, settings: Settings<'_>) -> Result<Option<Duration>> {
        let (of_set, own): (Vec<_>, Vec<_>) = settings.iter().cloned().partition(|(name, _)| self.shares(name));
        if let Some((name, value)) = settings.iter().find(|(name, _)| RUN_SETTINGS.iter().any(|s| s.name == name))
            && !self.shares(name)
        {
            return Err(Error::usage(format!("{name}={value}: tag sharing cannot change during a run")));
        }
        match self.queue.tag_set() {
            Some(set) if !of_set.is_empty() && own.is_empty() => self.change_set(set, &of_set),
            Some(_) if !of_set.is_empty() => Err(Error::usage(format!(
                "{}: applies to the tag set of several disks and must be changed alone; change {} separately",
                of_set[0].0, own[0].0
            ))),
            _ => self.change_disk(settings),
        }
    }

    /// Takes CPUs offline or online until the disk has those for which `online` is true. Returns which CPUs changed. The last one stays.
    pub(super) fn follow_cpus(&self, online: &dyn Fn(CpuId) -> bool) -> Result<Vec<(CpuId, bool)>> {
        let cpus = (0..self.queue.config().topology.nr_cpus).map(|cpu| CpuId::new(u32::from(cpu)));
        let mut other: Vec<_> = cpus.map(|cpu| (cpu, online(cpu))).collect();
        other.retain(|(cpu, online)| self.queue.is_online(*cpu) != *online);
        // CPUs that come online are first, so that one is always online.
        other.sort_by_key(|(_, online)| !online);
        if other.is_empty() {
            return Ok(other);
        }
        self.freezer().call(&self.queue, CPU_PATIENCE, || {
            other.retain(|(cpu, online)| match online {
                true => {
                    self.queue.online(*cpu);
                    true
                }
                // In a drained queue a CPU is offline at once.
                false => self.queue.begin_offline(*cpu).is_ok() && self.queue.is_offline(*cpu),
            });
            Ok(())
        })?;
        Ok(other)
    }

    /// Whether these settings belong to the disk's tag set, so that a change applies to all its disks.
    pub fn is_of_set(&self, settings: Settings<'_>) -> bool {
        settings.iter().any(|(name, _)| self.shares(name))
    }

    fn shares(&self, name: &str) -> bool {
        let mut all = SETTINGS.iter().chain(RUN_SETTINGS);
        self.queue.tag_set().is_some() && all.any(|s| s.name == name && s.is_of_tag_set)
    }

    fn change_disk(&self, settings: Settings<'_>) -> Result<Option<Duration>> {
        let polled = self.polled.load(Ordering::Relaxed);
        change_settings(&self.queue, settings, polled, &self.freezer())
    }

    fn freezer(&self) -> Frozen<'_> {
        Frozen { waiter_lock: &self.waiter_lock, driver: self.driver.as_ref() }
    }

    fn change_set(&self, set: &Arc<TagSet<RawMutex>>, settings: Settings<'_>) -> Result<Option<Duration>> {
        if let [(name, value)] = settings
            && name == "fair_tag_sharing"
        {
            set.set_fair_sharing(super::settings::switch(name, value)?);
            return Ok(None);
        }
        let config = self.queue.config();
        let mut new = set.config();
        apply_to_set(settings, config.clone(), &mut new).map_err(usage)?;
        if config.nr_poll_queues > 0 && new.nr_poll_queues == 0 {
            return Err(Error::usage(
                "nr_poll_queues=0: must be at least 1, because a job of some disk may poll (hipri)",
            ));
        }
        self.freezer().call(set, PATIENCE, || set.update(|c| apply_to_set(settings, config, c))).map(Some)
    }
}

/// Changes settings of a disk that shares its tags with no other; see [`Disk::change`].
pub(crate) fn change_settings(
    queue: &Arc<Queue>,
    settings: Settings<'_>,
    polled: bool,
    frozen: &Frozen<'_>,
) -> Result<Option<Duration>> {
    let mut config = queue.config();
    apply(settings, &mut config).map_err(usage)?;
    if settings.iter().all(|(name, _)| SettingInfo::is_live(name)) {
        let borrowed: Vec<_> = settings.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        return queue.set_live(&borrowed).map(|()| None).map_err(usage);
    }
    if let [(name, _)] = settings
        && let Some(tunable) = name.strip_prefix("iosched.")
        && let Some((_, value)) = config.iosched.iter().find(|(name, _)| name == tunable)
    {
        return queue.set_iosched(tunable, *value).map(|()| None).map_err(usage);
    }
    let has_poll_queue = config.mode == Mode::Mq && config.nr_poll_queues > 0;
    if polled && !has_poll_queue {
        return Err(Error::usage(match config.mode {
            Mode::Mq => "nr_poll_queues=0: must be at least 1, because a job of the run polls (hipri)",
            Mode::Sq => "mode=sq: must be mq, because a job of the run polls (hipri), and sq has no poll queues",
        }));
    }
    let froze = frozen.call(queue, PATIENCE, || queue.rebuild(|c| apply(settings, c)))?;
    Ok(Some(froze))
}

/// Replaces all settings of a disk that shares its tags with no other: what is not in `config` gets its default. The CPUs stay. Returns
/// how long no I/O could begin.
pub(crate) fn replace_settings(queue: &Arc<Queue>, config: &QueueConfig, frozen: &Frozen<'_>) -> Result<Duration> {
    let replace = |present: &mut QueueConfig| {
        let QueueConfig { ref topology, no_sched_by_default, .. } = *present;
        let mut replaced = QueueConfig { topology: topology.clone(), no_sched_by_default, ..config.clone() };
        limit_hw_queues(frozen.driver, &mut replaced);
        *present = replaced;
        present.check()
    };
    frozen.call(queue, PATIENCE, || queue.rebuild(replace))
}

/// Waits until nothing of a disk is in flight, and keeps it so until [`Queue::unfreeze`]. Returns how long that took.
pub(crate) fn drain(queue: &Arc<Queue>) -> Result<Duration> {
    let began = clock::now();
    queue.begin_freeze();
    let drained = wait_drained(queue, PATIENCE);
    if drained.is_err() {
        queue.unfreeze();
    }
    drained.map(|()| clock::now().since(began))
}

/// Waits until `has_ended` says that some I/O has ended, as long as [`drain`] does. Returns how long that took.
pub(crate) fn wait_ended(has_ended: impl Fn() -> bool) -> Result<Duration> {
    let began = clock::now();
    wait_until(&has_ended, PATIENCE).map(|()| clock::now().since(began))
}

/// Waits until nothing is in flight in `what`, which was frozen before.
fn wait_drained(what: &dyn Freeze, patience: Duration) -> Result<()> {
    wait_until(&|| what.is_drained(), patience)
}

fn wait_until(has_ended: &dyn Fn() -> bool, patience: Duration) -> Result<()> {
    let began = clock::now();
    while !has_ended() {
        if clock::now().since(began) > patience {
            return Err(Error::usage(format!(
                "I/O in flight has not ended after {} s: nothing was changed; try again when the device answers",
                patience.as_ms() / 1000
            )));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// What stops while queues are built anew.
pub(crate) struct Frozen<'a> {
    /// Held by a thread that takes a place to wait.
    pub(crate) waiter_lock: &'a parking_lot::Mutex<()>,
    pub(crate) driver: &'a dyn HostDriver,
}

impl Frozen<'_> {
    /// Calls `rebuild` when nothing is in flight. Returns how long that took, waiting included.
    fn call(
        &self,
        what: &dyn Freeze,
        patience: Duration,
        rebuild: impl FnOnce() -> std::result::Result<(), SettingError>,
    ) -> Result<Duration> {
        let began = clock::now();
        // Before the freeze: no thread creates a waiter until the freeze ends.
        let _no_new_waiters = self.waiter_lock.lock();
        what.begin();
        let _thaw = Thaw(what);
        wait_drained(what, patience)?;
        // A driver that was once started with a shape can go back to that shape, so after an error the disk continues.
        rebuild().map_err(usage)?;
        // A thread that was alone on its hardware queue may not be alone now. A thread that is alone notices at its next wait.
        self.driver.issuer().unclaim();
        Ok(clock::now().since(began))
    }
}

/// A disk, or the disks of a tag set.
trait Freeze {
    fn begin(&self);
    fn is_drained(&self) -> bool;
    fn end(&self);
}

impl Freeze for Arc<Queue> {
    fn begin(&self) {
        self.begin_freeze();
    }

    fn is_drained(&self) -> bool {
        Queue::is_drained(self)
    }

    fn end(&self) {
        self.unfreeze();
    }
}

impl Freeze for Arc<TagSet<RawMutex>> {
    fn begin(&self) {
        self.begin_freeze();
    }

    fn is_drained(&self) -> bool {
        TagSet::is_drained(self)
    }

    fn end(&self) {
        self.unfreeze();
    }
}

/// Lets I/O continue, whatever happens.
struct Thaw<'a>(&'a dyn Freeze);

impl Drop for Thaw<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

fn usage(e: SettingError) -> Error {
    Error::usage(e.to_string())
}

fn apply(settings: Settings<'_>, config: &mut QueueConfig) -> std::result::Result<(), SettingError> {
    let mode = config.mode;
    settings.iter().try_for_each(|(name, value)| config.set(name, value))?;
    if (mode, config.mode) == (Mode::Mq, Mode::Sq) {
        forget_queues(settings, config);
    }
    config.check()
}

/// Drops what the single queue has not: it was set for multi-queue, and cannot be left out of a change.
fn forget_queues(settings: Settings<'_>, config: &mut QueueConfig) {
    let default = QueueConfig::default();
    let asked = |name: &str| settings.iter().any(|(key, _)| key == name);
    let mut keep = |name: &str, forget: fn(&mut QueueConfig, &QueueConfig)| {
        if !asked(name) {
            forget(config, &default);
        }
    };
    keep("nr_hw_queues", |c, d| c.nr_hw_queues = d.nr_hw_queues);
    keep("nr_read_queues", |c, d| c.nr_read_queues = d.nr_read_queues);
    keep("nr_poll_queues", |c, d| c.nr_poll_queues = d.nr_poll_queues);
    keep("reserved_tags", |c, d| c.reserved_tags = d.reserved_tags);
    keep("host_tagset", |c, d| c.host_tagset = d.host_tagset);
    keep("wbt_lat_usec", |c, d| c.wbt_lat_usec = d.wbt_lat_usec);
}

/// By way of a disk's settings, which have the set's shape and know names and ranges.
fn apply_to_set(
    settings: Settings<'_>,
    mut config: QueueConfig,
    set: &mut TagSetConfig,
) -> std::result::Result<(), SettingError> {
    let mut fair = set.fair_tag_sharing;
    for (name, value) in settings {
        match name.as_str() {
            "fair_tag_sharing" => {
                fair = super::settings::switch(name, value).map_err(|e| SettingError(e.to_string()))?;
            }
            _ => config.set(name, value)?,
        }
    }
    *set = TagSetConfig { fair_tag_sharing: fair, ..TagSetConfig::of(&config) };
    Ok(())
}
