// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tag sets: the driver tags of one host adapter or device, which several disks use at once.
//!
//! A disk made by [`RequestQueue::new`] has tags of its own. One made by [`RequestQueue::with_tag_set`] joins a set, whose
//! shape (hardware queues, depth, reserved tags) is then the disk's; it leaves when it is dropped. As long as a disk is
//! alone in its set nothing is counted and nothing is shared. When a second one joins, the first must be at rest for a
//! moment (the kernel freezes it and waits; here the caller does, if the disk is busy), and from then on
//!
//! - each disk may use its share of the tags (`share`: the rule, and which waiter is woken when a tag is freed);
//! - a hardware queue that finds no tag waits in the wait queue of the tags: the next freed tag may be another disk's.
//!
//! `host_tagset` makes one map of tags serve all hardware queues, so `queue_depth` bounds the whole host and not each of
//! its queues. A tag is then unique in the set, but a request is still known to its driver by hardware queue and tag.
//!
//! Needs from callers: a change of the set ([`TagSet::update`]) needs all its disks frozen and drained.
//! Does not do: dispatch budgets; single-queue mode. Unlike the kernel's, a set goes back to being unshared only when
//! all disks have left it: a share among one is the whole. Source: block/blk-mq.c (`blk_mq_alloc_tag_set`,
//! `blk_mq_add_queue_tag_set`), block/blk-mq-tag.c.

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
    /// Tags per hardware queue, with `host_tagset` in all; 1..=10240.
    pub queue_depth: u32,
    /// How many of them are reserved; below `queue_depth`.
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
        // How many CPUs there are is each disk's affair.
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

    /// Refuses what is not this shape; `remedy` says what to do about a value other than the set's.
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

    /// The settings of a disk that are the set's, by name: [`SettingInfo::is_of_tag_set`](crate::settings::SettingInfo).
    fn shape(&self) -> [(&'static str, u32); 6] {
        let TagSetConfig {
            nr_hw_queues,
            nr_read_queues,
            nr_poll_queues,
            queue_depth,
            reserved_tags,
            host_tagset,
            // Not a disk's: changes at once.
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

/// The tags of a set as they are between two updates.
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

/// See the module's text.
pub struct TagSet<L: Lock> {
    /// Held while a disk joins, freezes or updates; taken before every other lock.
    changing: Mutex<L, ()>,
    inner: Mutex<L, TagSetState<L>>,
    fair: AtomicBool,
    /// Idle disks need not be checked before this time, ns.
    look_at: AtomicU64,
}

/// Looks for idle disks by others than themselves are at least this far apart.
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

    /// A copy of its present shape.
    pub fn config(&self) -> TagSetConfig {
        TagSetConfig { fair_tag_sharing: self.is_fair(), ..self.inner.lock().config.clone() }
    }

    /// Whether disks share it (`TAG_QUEUE_SHARED`): a second one has joined, and not all have left since.
    pub fn is_shared(&self) -> bool {
        self.inner.lock().shared
    }

    /// Disks that have joined.
    pub fn nr_disks(&self) -> usize {
        self.inner.lock().disks.iter().flatten().count()
    }

    /// Disks that count when the tags of a hardware queue are shared out (`active_queues`). Panics when the set has no
    /// such hardware queue.
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

    /// [`RequestQueue::begin_freeze`] of every disk; one that joins meanwhile is frozen, too.
    pub fn begin_freeze(&self) {
        let _one = self.changing.lock();
        self.inner.lock().frozen += 1;
        self.queues().iter().for_each(|q| q.begin_freeze());
    }

    /// Whether every disk is drained. All have to be frozen.
    pub fn is_drained(&self) -> bool {
        self.queues().iter().all(|q| q.is_drained())
    }

    /// [`RequestQueue::unfreeze`] of every disk. Panics without [`TagSet::begin_freeze`].
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
    /// If a disk cannot follow (its driver refuses, its CPUs are too few), the error names it and all disks get their old
    /// settings back. If a disk refuses even that (the error says so), the disks must stay frozen.
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
            // Those that did not change as well: what they count their tags on was replaced.
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

    /// No submitter uses or waits for a tag.
    fn install(&self, config: TagSetConfig, tags: SetTags<L>) {
        let inner = &mut *self.inner.lock();
        tags.users.iter().for_each(|u| u.store(0, Ordering::Relaxed));
        inner.disks.iter_mut().flatten().for_each(|d| d.usage = tags.unused());
        (inner.config, inner.tags) = (config, tags);
    }

    /// The disks now. Not to be dropped with a lock held: a disk that goes away takes them.
    fn queues(&self) -> Vec<Arc<RequestQueue<L>>> {
        let disks: Vec<_> = self.inner.lock().disks.iter().flatten().map(|d| d.queue.clone()).collect();
        disks.iter().filter_map(Weak::upgrade).collect()
    }

    /// What a member's settings must agree with after a change of its own.
    pub(crate) fn check_member(&self, config: &QueueConfig) -> Result<(), SettingError> {
        let remedy = "freeze the tag set and change it for all its disks by TagSet::update";
        self.inner.lock().config.check_disk(config, remedy)
    }

    /// Takes in the disk that `make` makes.
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
        // From here on dropping the member gives the place back.
        let queue = make(config, Member { set: self.clone(), slot: slot as u32 })?;
        let frozen = {
            let inner = &mut *self.inner.lock();
            inner.disks[slot].as_mut().expect("taken above").queue = Arc::downgrade(&queue);
            inner.frozen
        };
        (0..frozen).for_each(|_| queue.begin_freeze());
        Ok(queue)
    }

    /// Makes the only disk count its tags from now on, because a second one comes.
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
        // Its places in the wait queues, and the wake-ups that were spent on it.
        self.wake_all();
    }

    /// What the state of a disk is built with: the maps, and its share if there are others.
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

    /// Takes the next waiter that may use a tag of this map out of its wait queues.
    pub(crate) fn next_waiter(&self, tags: &HctxTags<L>, map: usize, class: TagClass) -> Option<WaiterId> {
        let inner = self.inner.lock();
        let (fair, depth) = (self.is_fair(), tags.normal_depth());
        tags.take_waiter(class, &|w| {
            class == TagClass::Reserved
                || match (inner.disks.get(disk_of(w) as usize), inner.tags.users.get(map)) {
                    (Some(Some(d)), Some(users)) => may_queue(&d.usage[map], users, depth, fair),
                    // It has left, or the tags were replaced: to be cleared away.
                    _ => true,
                }
        })
    }

    /// Wakes a waiter of whatever disk. False: it has nothing to do with a tag, and the wake-up is another's.
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

    /// Takes the share of disks whose timer is due and that hold no driver tag: they are idle, but no poll has found that
    /// out. Called by a submitter that is refused for its share.
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

/// The settings of a disk that a change of the set may have touched; what is live may have been changed since by others.
fn put_back(before: QueueConfig, config: &mut QueueConfig) -> Result<(), SettingError> {
    TagSetConfig::of(&before).apply_to(config);
    (config.nr_hw_queues, config.nr_requests) = (before.nr_hw_queues, before.nr_requests);
    Ok(())
}

/// A disk's place in a tag set; given back when it is dropped.
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
    /// A disk as [`RequestQueue::new`] makes it, with the tags of a set. The settings that are the set's (`nr_hw_queues`,
    /// `nr_read_queues`, `nr_poll_queues`, `queue_depth`, `reserved_tags`, `host_tagset`) must be the same; `nr_hw_queues`
    /// may be left out.
    ///
    /// The second disk to join is refused while the first is busy; see the module's text.
    pub fn with_tag_set(
        set: &Arc<TagSet<L>>,
        driver: Arc<dyn Driver>,
        config: QueueConfig,
        notify: Box<dyn Notify>,
    ) -> Result<Arc<Self>, SettingError> {
        set.join(config, |config, member| RequestQueue::make(driver, config, notify, Some(member)))
    }

    /// Normal driver tags this disk has of those a hardware queue uses, as counted for its share (`active` in the kernel's
    /// debugfs); 0 while no other disk uses them. Panics when there is no such hardware queue.
    pub fn active_tags(&self, hctx: HctxId) -> u32 {
        let st = self.state();
        assert!(hctx.index() < st.hctxs.len(), "no hctx {hctx}");
        st.share.as_ref().map_or(0, |s| s.active(st.map_of(hctx.index())))
    }

    /// The tag set it has joined.
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
