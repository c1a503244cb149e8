// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tag sets: the driver tags of one host adapter or device, which several disks use at once.
//!
//! A disk made by [`RequestQueue::new`] has tags of its own. A disk made by [`RequestQueue::with_tag_set`] joins a set and
//! takes over its shape (hardware queues, depth, reserved tags). It leaves the set when it is dropped. As long as a disk
//! is alone in its set, no tags are counted or shared. When a second disk joins, the first must be quiesced for a moment.
//! (The kernel freezes the first disk and waits; here the caller does that, if the disk is busy.) From then on
//!
//! - each disk may use its share of the tags (`share`: the rule; `waiting`: which waiter is woken when a tag is freed);
//! - a hardware queue that finds no tag waits in the wait queue of the tags: the next freed tag may be another disk's.
//!
//! `host_tagset` makes one map of tags serve all hardware queues, so `queue_depth` bounds the whole host and not each of
//! its queues. A tag is then unique in the set, but a request is still known to its driver by hardware queue and tag.
//!
//! Needs from callers: a change of the set ([`TagSet::update`]) needs all its disks frozen and drained. Does not do:
//! dispatch budgets; single-queue mode. Unlike in the kernel, a set becomes unshared only when all disks have left it:
//! the share of a single disk is all tags. Source: block/blk-mq.c (`blk_mq_alloc_tag_set`, `blk_mq_add_queue_tag_set`),
//! block/blk-mq-tag.c.

use crate::driver::Driver;
use crate::id::HctxId;
use crate::lock::Lock;
use crate::queue::request_queue::{Notify, RequestQueue};
use crate::settings::{Mode, QueueConfig, SettingError};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering};
use crate::tags::hctx_tags::{HctxTags, MAX_DISKS, TagClass, Waiter, disk_of};
use crate::tags::sbitmap_queue::WaiterId;
use crate::tags::share::{Share, Usage, may_queue};
use crate::time::{Duration, Instant};
use crossbeam_utils::CachePadded;
use std::sync::{Arc, Weak};

/// The shape of a tag set, and how its disks share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TagSetConfig {
    /// Default-type hardware queues, 1..=4096.
    pub nr_hw_queues: u16,
    /// Hardware queues for plain reads.
    pub nr_read_queues: u16,
    /// Hardware queues for polled I/O.
    pub nr_poll_queues: u16,
    /// Tags per hardware queue, or of all hardware queues together with `host_tagset`; 1..=10240.
    pub queue_depth: u32,
    /// How many of the tags are reserved; below `queue_depth`.
    pub reserved_tags: u32,
    /// One map of tags for all hardware queues.
    pub host_tagset: bool,
    /// Each disk gets its share of the tags. Off: first come, first served.
    pub fair_tag_sharing: bool,
}

impl TagSetConfig {
    /// The shape that a disk with these settings would have; shared fairly.
    pub fn of(config: &QueueConfig) -> TagSetConfig {
        TagSetConfig {
            nr_hw_queues: config.hw_queues(),
            nr_read_queues: config.nr_read_queues,
            nr_poll_queues: config.nr_poll_queues,
            queue_depth: config.queue_depth,
            reserved_tags: config.reserved_tags,
            host_tagset: config.host_tagset,
            fair_tag_sharing: true,
        }
    }

    /// Gives a disk's settings this shape.
    fn apply_to(&self, config: &mut QueueConfig) {
        let TagSetConfig {
            nr_hw_queues,
            nr_read_queues,
            nr_poll_queues,
            queue_depth,
            reserved_tags,
            host_tagset,
            // Not a disk's.
            fair_tag_sharing: _,
        } = *self;
        config.nr_hw_queues = Some(nr_hw_queues);
        config.nr_read_queues = nr_read_queues;
        config.nr_poll_queues = nr_poll_queues;
        config.queue_depth = queue_depth;
        config.reserved_tags = reserved_tags;
        config.host_tagset = host_tagset;
    }

    fn check(&self) -> Result<(), SettingError> {
        let mut config = QueueConfig::default();
        self.apply_to(&mut config);
        // Each disk has its own number of CPUs.
        let most = self.nr_hw_queues.max(self.nr_read_queues).max(self.nr_poll_queues).max(1);
        config.topology = crate::cpumap::CpuTopology::uniform(most);
        if self.nr_hw_queues == 0 {
            return Err(SettingError("nr_hw_queues=0: must be 1..=4096".into()));
        }
        config.check()
    }

    /// Hardware queues of all types.
    fn nr_hctxs(&self) -> usize {
        usize::from(self.nr_hw_queues) + usize::from(self.nr_read_queues) + usize::from(self.nr_poll_queues)
    }

    /// Rejects settings of a disk that differ from this shape; `remedy` says what to do about such a value.
    fn check_disk(&self, disk: &QueueConfig, remedy: &str) -> Result<(), SettingError> {
        if disk.mode == Mode::Sq {
            return Err(SettingError("mode=sq: has no shared tags; use mode=mq, or a disk without a tag set".into()));
        }
        let pairs = TagSetConfig::of(disk).shape().into_iter().zip(self.shape());
        match pairs.into_iter().find(|(disk, set)| disk != set) {
            Some(((name, disk), (_, set))) => {
                Err(SettingError(format!("{name}={disk}: must be the tag set's, which is {set}; {remedy}")))
            }
            None => Ok(()),
        }
    }

    /// The settings that a disk takes over from its set, by name:
    /// [`SettingInfo::is_of_tag_set`](crate::settings::SettingInfo).
    fn shape(&self) -> [(&'static str, u32); 6] {
        let TagSetConfig {
            nr_hw_queues,
            nr_read_queues,
            nr_poll_queues,
            queue_depth,
            reserved_tags,
            host_tagset,
            // Not a setting of a disk: a change takes effect at once.
            fair_tag_sharing: _,
        } = *self;
        [
            ("nr_hw_queues", nr_hw_queues.into()),
            ("nr_read_queues", nr_read_queues.into()),
            ("nr_poll_queues", nr_poll_queues.into()),
            ("queue_depth", queue_depth),
            ("reserved_tags", reserved_tags),
            ("host_tagset", host_tagset.into()),
        ]
    }
}

/// The tags of a set; an update replaces them.
pub(crate) struct SetTags<L: Lock> {
    /// One per hardware queue, or one for all.
    maps: Arc<[HctxTags<L>]>,
    /// Disks that count as active on each map.
    users: Arc<[CachePadded<AtomicU32>]>,
}

impl<L: Lock> SetTags<L> {
    fn new(config: &TagSetConfig) -> Self {
        let n = if config.host_tagset { 1 } else { config.nr_hctxs() };
        SetTags {
            maps: (0..n).map(|_| HctxTags::new(config.queue_depth, config.reserved_tags)).collect(),
            users: (0..n).map(|_| CachePadded::new(AtomicU32::new(0))).collect(),
        }
    }

    fn unused(&self) -> Arc<[CachePadded<Usage>]> {
        self.maps.iter().map(|_| CachePadded::new(Usage::default())).collect()
    }
}

impl<L: Lock> Clone for SetTags<L> {
    fn clone(&self) -> Self {
        SetTags { maps: self.maps.clone(), users: self.users.clone() }
    }
}

struct MemberDisk<L: Lock> {
    queue: Weak<RequestQueue<L>>,
    usage: Arc<[CachePadded<Usage>]>,
}

struct TagSetState<L: Lock> {
    config: TagSetConfig,
    tags: SetTags<L>,
    /// A second disk has joined (`BLK_MQ_F_TAG_QUEUE_SHARED`).
    shared: bool,
    /// Levels of [`TagSet::begin_freeze`].
    frozen: u32,
    disks: Vec<Option<MemberDisk<L>>>,
}

/// The driver tags of one host adapter or device, which several disks share. See the module's text.
pub struct TagSet<L: Lock> {
    /// Held while a disk joins, freezes or updates; taken before every other lock.
    changing: Mutex<L, ()>,
    inner: Mutex<L, TagSetState<L>>,
    fair: AtomicBool,
    /// Idle disks need not be checked before this time, ns.
    look_at: AtomicU64,
}

/// Minimum time between two checks by which one disk looks for other disks that are idle.
const IDLE_GRAIN: Duration = Duration::from_secs(1);

impl<L: Lock> TagSet<L> {
    /// A set without disks. The error names the setting that is out of range.
    pub fn new(config: TagSetConfig) -> Result<Arc<Self>, SettingError> {
        config.check()?;
        Ok(Arc::new(TagSet {
            changing: Mutex::new(()),
            fair: AtomicBool::new(config.fair_tag_sharing),
            look_at: AtomicU64::new(0),
            inner: Mutex::new(TagSetState {
                tags: SetTags::new(&config),
                config,
                shared: false,
                frozen: 0,
                disks: Vec::new(),
            }),
        }))
    }

    /// Returns a copy of the present shape.
    pub fn config(&self) -> TagSetConfig {
        TagSetConfig { fair_tag_sharing: self.is_fair(), ..self.inner.lock().config.clone() }
    }

    /// Whether disks share the set (`TAG_QUEUE_SHARED`): a second disk has joined, and not all disks have left since.
    pub fn is_shared(&self) -> bool {
        self.inner.lock().shared
    }

    /// Number of disks in the set.
    pub fn nr_disks(&self) -> usize {
        self.inner.lock().disks.iter().flatten().count()
    }

    /// Number of active disks among which the tags of a hardware queue are divided (`active_queues`). Panics when the
    /// set has no such hardware queue.
    pub fn active_disks(&self, hctx: HctxId) -> u32 {
        let inner = self.inner.lock();
        let map = if inner.config.host_tagset { 0 } else { hctx.index() };
        inner.tags.users[map].load(Ordering::Relaxed)
    }

    /// Turns fair shares on or off, at once.
    pub fn set_fair_sharing(&self, on: bool) {
        self.fair.store(on, Ordering::Relaxed);
        self.wake_all();
    }

    #[inline]
    pub(crate) fn is_fair(&self) -> bool {
        self.fair.load(Ordering::Relaxed)
    }

    /// Calls [`RequestQueue::begin_freeze`] for every disk. A disk that joins meanwhile is frozen, too.
    pub fn begin_freeze(&self) {
        let _one = self.changing.lock();
        self.inner.lock().frozen += 1;
        self.queues().iter().for_each(|q| q.begin_freeze());
    }

    /// Whether every disk is drained. The caller has frozen all disks.
    pub fn is_drained(&self) -> bool {
        self.queues().iter().all(|q| q.is_drained())
    }

    /// Calls [`RequestQueue::unfreeze`] for every disk. Panics without [`TagSet::begin_freeze`].
    pub fn unfreeze(&self) {
        let _one = self.changing.lock();
        {
            let mut inner = self.inner.lock();
            assert!(inner.frozen > 0, "unfreeze without freeze");
            inner.frozen -= 1;
        }
        self.queues().iter().for_each(|q| q.unfreeze());
    }

    /// Changes the shape for all disks: `change` edits a copy, which takes effect on all of them or on none. Panics unless
    /// every disk is frozen and drained.
    ///
    /// If a disk cannot take the new shape (its driver refuses it, or the disk has too few CPUs), the error says why and
    /// all disks get their old settings back. If a disk refuses even that (the error says so), the disks must stay
    /// frozen.
    pub fn update(
        self: &Arc<Self>,
        change: impl FnOnce(&mut TagSetConfig) -> Result<(), SettingError>,
    ) -> Result<(), SettingError> {
        let _one = self.changing.lock();
        let mut new = self.config();
        change(&mut new)?;
        new.check()?;
        let queues = self.queues();
        assert!(queues.iter().all(|q| q.is_drained()), "an update needs drained disks");
        let (old, old_tags) = {
            let inner = self.inner.lock();
            (inner.config.clone(), inner.tags.clone())
        };
        let before: Vec<QueueConfig> = queues.iter().map(|q| q.config()).collect();
        self.install(new.clone(), SetTags::new(&new));
        if let Err(mut e) = queues.iter().try_for_each(|q| q.rebuild(|c| give(&new, c))) {
            self.install(old, old_tags);
            // Disks that did not change are rebuilt as well: the counters of their tags were replaced.
            for (q, before) in queues.iter().zip(before) {
                if let Err(back) = q.rebuild(|c| put_back(before, c)) {
                    e = SettingError(format!("{e}; the rollback failed, too: {back}"));
                }
            }
            return Err(e);
        }
        self.set_fair_sharing(new.fair_tag_sharing);
        Ok(())
    }

    /// Replaces the shape and the tags. No submitter may use a tag or wait for one.
    fn install(&self, config: TagSetConfig, tags: SetTags<L>) {
        let inner = &mut *self.inner.lock();
        tags.users.iter().for_each(|u| u.store(0, Ordering::Relaxed));
        inner.disks.iter_mut().flatten().for_each(|d| d.usage = tags.unused());
        (inner.config, inner.tags) = (config, tags);
    }

    /// Returns the present disks. Drop them without a lock held: a disk that is dropped takes both locks.
    fn queues(&self) -> Vec<Arc<RequestQueue<L>>> {
        let disks: Vec<_> = self.inner.lock().disks.iter().flatten().map(|d| d.queue.clone()).collect();
        disks.iter().filter_map(Weak::upgrade).collect()
    }

    /// Checks that a change of a member's own settings leaves it in the shape of the set.
    pub(crate) fn check_member(&self, config: &QueueConfig) -> Result<(), SettingError> {
        let remedy = "freeze the tag set and change it for all its disks by TagSet::update";
        self.inner.lock().config.check_disk(config, remedy)
    }

    /// Adds the disk that `make` makes.
    fn join(
        self: &Arc<Self>,
        mut config: QueueConfig,
        make: impl FnOnce(QueueConfig, Member<L>) -> Result<Arc<RequestQueue<L>>, SettingError>,
    ) -> Result<Arc<RequestQueue<L>>, SettingError> {
        let _one = self.changing.lock();
        let set = self.config();
        config.nr_hw_queues = config.nr_hw_queues.or(Some(set.nr_hw_queues));
        set.check_disk(&config, "leave it to the tag set, or create the disk without one")?;
        self.share_with_another()?;
        let slot = {
            let inner = &mut *self.inner.lock();
            let disk = MemberDisk { queue: Weak::new(), usage: inner.tags.unused() };
            let slot = inner.disks.iter().position(Option::is_none).unwrap_or(inner.disks.len());
            if slot >= MAX_DISKS as usize {
                return Err(SettingError(format!("a tag set has at most {MAX_DISKS} disks; make another set")));
            }
            if slot == inner.disks.len() {
                inner.disks.push(Some(disk));
            } else {
                inner.disks[slot] = Some(disk);
            }
            slot
        };
        // From here on dropping the member frees the slot.
        let queue = make(config, Member { set: self.clone(), slot: slot as u32 })?;
        let frozen = {
            let inner = &mut *self.inner.lock();
            inner.disks[slot].as_mut().expect("taken above").queue = Arc::downgrade(&queue);
            inner.frozen
        };
        (0..frozen).for_each(|_| queue.begin_freeze());
        Ok(queue)
    }

    /// Makes the only disk of the set count its tags from now on, because a second disk joins.
    fn share_with_another(&self) -> Result<(), SettingError> {
        let alone = self.queues();
        if alone.is_empty() || self.is_shared() {
            return Ok(());
        }
        self.inner.lock().shared = true;
        for q in &alone {
            q.begin_freeze();
            let done = if q.is_drained() {
                q.rebuild(|_| Ok(()))
            } else {
                let text = "tag set: its first disk must be drained before a second one joins; call \
                            TagSet::begin_freeze and wait for TagSet::is_drained first";
                Err(SettingError(text.into()))
            };
            q.unfreeze();
            if let Err(e) = done {
                self.inner.lock().shared = false;
                return Err(e);
            }
        }
        Ok(())
    }

    fn leave(&self, slot: u32) {
        {
            let inner = &mut *self.inner.lock();
            let Some(disk) = inner.disks[slot as usize].take() else { return };
            for (usage, users) in disk.usage.iter().zip(inner.tags.users.iter()) {
                usage.retire(users);
            }
            inner.shared &= inner.disks.iter().any(Option::is_some);
        }
        // Removes the disk from the wait queues and passes on the wake-ups that it received.
        self.wake_all();
    }

    /// Returns what the state of a disk is built with: the maps, and the share of the disk if the set is shared.
    pub(crate) fn tags_for(self: &Arc<Self>, slot: u32) -> (Arc<[HctxTags<L>]>, Option<Share<L>>) {
        let inner = self.inner.lock();
        let disk = inner.disks[slot as usize].as_ref().expect("a member's place is taken");
        let share = inner.shared.then(|| Share {
            set: self.clone(),
            slot,
            users: inner.tags.users.clone(),
            usage: disk.usage.clone(),
        });
        (inner.tags.maps.clone(), share)
    }

    /// Removes the next waiter that may use a tag of this map from the wait queues of the map.
    pub(crate) fn next_waiter(&self, tags: &HctxTags<L>, map: usize, class: TagClass) -> Option<WaiterId> {
        let inner = self.inner.lock();
        let (fair, depth) = (self.is_fair(), tags.normal_depth());
        tags.take_waiter(class, &|w| {
            class == TagClass::Reserved
                || match (inner.disks.get(disk_of(w) as usize), inner.tags.users.get(map)) {
                    (Some(Some(d)), Some(users)) => may_queue(&d.usage[map], users, depth, fair),
                    // The disk has left, or the tags were replaced: remove the stale entry.
                    _ => true,
                }
        })
    }

    /// Wakes a waiter of any disk. False: that waiter has no use for a tag, and the caller wakes another waiter
    /// instead.
    pub(crate) fn wake(&self, w: WaiterId) -> bool {
        let disk = self.inner.lock().disks.get(disk_of(w) as usize).and_then(|d| d.as_ref().map(|d| d.queue.clone()));
        disk.and_then(|d| d.upgrade()).is_some_and(|q| q.wake_waiter(Waiter::of(w)))
    }

    /// Wakes the waiters for a tag of one of the maps, because the shares change.
    pub(crate) fn wake_all(&self) {
        let maps = self.inner.lock().tags.maps.clone();
        maps.iter().for_each(|tags| {
            tags.wake_all(&mut |w| {
                self.wake(w);
            });
        });
    }

    /// Marks disks as not active if their timer is due and they hold no driver tag: they are idle, but no poll has
    /// noticed yet. Called by a submitter that gets no tag because the share of its disk is used up.
    #[cold]
    pub(crate) fn retire_idle(&self, now: Instant) {
        let at = self.look_at.load(Ordering::Relaxed);
        let next = (now + IDLE_GRAIN).as_ns();
        if now.as_ns() < at || self.look_at.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        let overdue: Vec<_> = self.queues().into_iter().filter(|q| q.timer.is_due(now)).collect();
        let idle: Vec<_> = overdue.iter().filter(|q| q.is_without_driver_tags()).collect();
        idle.iter().for_each(|q| q.retire_tags());
    }
}

fn give(shape: &TagSetConfig, config: &mut QueueConfig) -> Result<(), SettingError> {
    shape.apply_to(config);
    Ok(())
}

/// Restores only the settings that a change of the set may have touched: other threads may have changed live settings
/// since.
fn put_back(before: QueueConfig, config: &mut QueueConfig) -> Result<(), SettingError> {
    TagSetConfig::of(&before).apply_to(config);
    (config.nr_hw_queues, config.nr_requests) = (before.nr_hw_queues, before.nr_requests);
    Ok(())
}

/// A disk's slot in a tag set; dropping it makes the disk leave the set.
pub(crate) struct Member<L: Lock> {
    pub(crate) set: Arc<TagSet<L>>,
    pub(crate) slot: u32,
}

impl<L: Lock> Drop for Member<L> {
    fn drop(&mut self) {
        self.set.leave(self.slot);
    }
}

impl<L: Lock> RequestQueue<L> {
    /// Makes a disk as [`RequestQueue::new`] does, with the tags of a set. `nr_hw_queues`, `nr_read_queues`,
    /// `nr_poll_queues`, `queue_depth`, `reserved_tags` and `host_tagset` must be equal to those of the set;
    /// `nr_hw_queues` may be left out.
    ///
    /// The second disk is rejected while the first is busy; see the module's text.
    pub fn with_tag_set(
        set: &Arc<TagSet<L>>,
        driver: Arc<dyn Driver>,
        config: QueueConfig,
        notify: Box<dyn Notify>,
    ) -> Result<Arc<Self>, SettingError> {
        set.join(config, |config, member| RequestQueue::make(driver, config, notify, Some(member)))
    }

    /// Returns how many normal driver tags of a hardware queue's map this disk uses, as counted for its share (`active` in
    /// the kernel's debugfs); 0 while the set is not shared. Panics when there is no such hardware queue.
    pub fn active_tags(&self, hctx: HctxId) -> u32 {
        let st = self.state();
        assert!(hctx.index() < st.hctxs.len(), "no hctx {hctx}");
        st.share.as_ref().map_or(0, |s| s.active(st.map_of(hctx.index())))
    }

    /// The tag set that the disk has joined.
    pub fn tag_set(&self) -> Option<&Arc<TagSet<L>>> {
        self.member.as_ref().map(|m| &m.set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::SETTINGS;

    #[test]
    fn the_table_of_settings_says_which_are_of_a_tag_set() {
        let of_set: Vec<_> = SETTINGS.iter().filter(|s| s.is_of_tag_set).map(|s| s.name).collect();
        assert_eq!(of_set, TagSetConfig::of(&QueueConfig::default()).shape().map(|(name, _)| name));
    }
}
