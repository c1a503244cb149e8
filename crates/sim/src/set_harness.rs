// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several disks on one tag set, in one virtual time: [`Harness`] for several disks.
//!
//! A submitter is polled when it was notified or when its disk's hardware queues have a completion for it. It is also polled
//! when its own disk's timer is due. That timer is read when the last submitter of the disk goes to sleep, so later effects
//! of other disks must arrive as notifications. If a waiter on another disk is not notified of a freed tag, the run hangs.

use crate::Lock;
use crate::describe;
use crate::disk::Behaviour;
use crate::harness::{Harness, START_NS};
use crate::rng::Rng;
use crate::trace::clock;
use blk::bio::{Bio, DataRef};
use blk::id::Sector;
use blk::settings::{QueueConfig, SettingError};
use blk::submitter::{SubmitError, Submitter};
use blk::tags::{TagSet, TagSetConfig};
use blk::time::Instant;
use std::sync::Arc;

/// One of the disks.
pub struct Member {
    /// How many disks joined before it.
    pub number: u64,
    /// The disk, its submitters and what they reaped. Its clock is set to the common time for each action on it.
    pub harness: Harness,
    /// [`next_timer`](blk::queue::RequestQueue::next_timer) when a submitter of this disk was last awake.
    timer: Option<Instant>,
}

impl std::ops::Deref for Member {
    type Target = Harness;

    fn deref(&self) -> &Harness {
        &self.harness
    }
}

impl std::ops::DerefMut for Member {
    fn deref_mut(&mut self) -> &mut Harness {
        &mut self.harness
    }
}

/// See the module's text.
pub struct SetHarness {
    /// The shared tag set.
    pub set: Arc<TagSet<Lock>>,
    /// The disks that have joined; the order may change.
    pub disks: Vec<Member>,
    /// Virtual time in nanoseconds.
    pub now: u64,
    /// As [`Harness::patience_ns`].
    pub patience_ns: u64,
    /// A planted bug: this disk is notified only of its own actions.
    pub deaf: Option<usize>,
    joined: u64,
    rng: Rng,
    seed: u64,
}

impl SetHarness {
    /// Makes a set with the shape of these settings, without disks.
    pub fn new(seed: u64, config: &QueueConfig) -> SetHarness {
        SetHarness {
            set: TagSet::new(TagSetConfig::of(config)).unwrap_or_else(|e| panic!("seed {seed}: {e}")),
            disks: Vec::new(),
            now: START_NS,
            patience_ns: 1_000_000_000,
            deaf: None,
            joined: 0,
            rng: Rng::new(seed ^ 0x3417),
            seed,
        }
    }

    /// Adds a disk with submitters on `cpus` to the set.
    pub fn try_join(&mut self, behaviour: Behaviour, config: QueueConfig, cpus: &[u16]) -> Result<(), SettingError> {
        let set = self.set.clone();
        self.add(Some(&set), behaviour, config, cpus)
    }

    /// As [`SetHarness::try_join`], for settings that are valid. Panics if they are not.
    pub fn join(&mut self, behaviour: Behaviour, config: QueueConfig, cpus: &[u16]) {
        let seed = self.seed;
        self.try_join(behaviour, config, cpus).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }

    /// Adds a disk that should be on the set but has tags of its own, with the same numbers: a planted bug.
    pub fn join_beside(&mut self, behaviour: Behaviour, config: QueueConfig, cpus: &[u16]) {
        let seed = self.seed;
        self.add(None, behaviour, config, cpus).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }

    fn add(
        &mut self,
        set: Option<&Arc<TagSet<Lock>>>,
        behaviour: Behaviour,
        config: QueueConfig,
        cpus: &[u16],
    ) -> Result<(), SettingError> {
        let harness = Harness::on(set, self.seed ^ self.joined << 8, behaviour, config, cpus)?;
        self.disks.push(Member { number: self.joined, harness, timer: None });
        self.joined += 1;
        Ok(())
    }

    /// Virtual time in the core's type.
    pub fn t(&self) -> Instant {
        Instant::from_ns(self.now)
    }

    /// Acts on a disk as one of its submitters; then all its submitters go to sleep.
    pub fn with<R>(&mut self, d: usize, f: impl FnOnce(&mut Harness) -> R) -> R {
        if let Some(deaf) = self.deaf {
            self.disks[deaf].notifications.lose_every(u64::from(deaf != d));
        }
        let disk = &mut self.disks[d];
        disk.harness.now = self.now;
        let r = f(&mut disk.harness);
        assert_eq!(disk.harness.now, self.now, "time goes on for all disks or none");
        disk.harness.subs.iter_mut().for_each(Submitter::rest);
        disk.timer = disk.harness.q.next_timer();
        r
    }

    /// Submits through submitter `s` of disk `d`.
    pub fn try_submit(&mut self, d: usize, s: usize, bio: Bio) -> Result<(), SubmitError> {
        self.with(d, |harness| harness.try_submit(s, bio))
    }

    /// As [`SetHarness::try_submit`]. Panics when the submitter has no free bio slot.
    pub fn submit(&mut self, d: usize, s: usize, bio: Bio) {
        self.try_submit(d, s, bio).expect("a free bio slot");
    }

    /// Submits `n` reads, none of which is adjacent to another.
    pub fn submit_reads(&mut self, d: usize, s: usize, n: u64) {
        for i in 0..n {
            let k = i + ((d as u64) << 8) + ((s as u64) << 12);
            self.submit(d, s, Bio::read(Sector(k * 16), 8, DataRef::new(0, (k % 1024) << 12)).with_user_data(k));
        }
    }

    /// Polls and reaps a submitter, even if it has no reason to be polled.
    pub fn poll(&mut self, d: usize, s: usize) {
        self.with(d, |harness| harness.poll(s));
    }

    fn has_reason(&self, d: usize, s: usize) -> bool {
        let disk = &self.disks[d];
        // A drained disk is not polled: a repeated completion there belongs to no request.
        let may_look =
            disk.harness.disk.in_flight() > 0 || disk.harness.notifications.is_pending(disk.harness.subs[s].id());
        may_look && disk.harness.is_wanted_at(s, self.now) || disk.timer.is_some_and(|t| t.as_ns() <= self.now)
    }

    /// Whether a submitter of disk `d` has a reason to be polled now.
    pub fn is_told(&self, d: usize) -> bool {
        (0..self.disks[d].harness.subs.len()).any(|s| self.has_reason(d, s))
    }

    /// Whether disk `d` retries by itself within `ns`, because its elevator or driver asked for a delay.
    pub fn looks_within(&self, d: usize, ns: u64) -> bool {
        self.disks[d].timer.is_some_and(|t| t.as_ns() <= self.now.saturating_add(ns))
    }

    /// Polls one submitter that has a reason to be polled. Returns its disk. Returns `None` if none has a reason at this time.
    pub fn step_now(&mut self) -> Option<usize> {
        let all: usize = self.disks.iter().map(|d| d.harness.subs.len()).sum();
        let first = self.rng.below(all as u64) as usize;
        let each =
            || self.disks.iter().enumerate().flat_map(|(d, disk)| (0..disk.harness.subs.len()).map(move |s| (d, s)));
        let found = each().cycle().skip(first).take(all).find(|(d, s)| self.has_reason(*d, *s));
        let (d, s) = found?;
        self.poll(d, s);
        Some(d)
    }

    /// As [`SetHarness::step_now`]; if none has a reason now, time advances to the next one. Returns false if there is none at all.
    pub fn step(&mut self) -> bool {
        if self.step_now().is_some() {
            return true;
        }
        let patience = self.now.saturating_add(self.patience_ns);
        let polled = self.disks.iter().filter(|d| !d.harness.subs.is_empty());
        let timers = polled.clone().filter_map(|d| d.timer).map(Instant::as_ns).filter(|t| *t <= patience);
        match timers.chain(polled.filter_map(|d| d.harness.disk.next_due())).min() {
            Some(t) if t > self.now => {
                self.now = t;
                self.step_now().is_some()
            }
            _ => false,
        }
    }

    /// Steps at the present time until no submitter has a reason left.
    pub fn settle(&mut self) {
        for _ in 0..100_000 {
            if self.step_now().is_none() {
                return;
            }
        }
        panic!("no rest\n{}", self.describe());
    }

    /// Steps until no submitter has a reason left.
    pub fn run(&mut self, limit: usize) {
        for _ in 0..limit {
            if !self.step() {
                return self.disks.iter_mut().for_each(|d| d.harness.reap());
            }
        }
        panic!("no rest after {limit} steps\n{}", self.describe());
    }

    /// As [`SetHarness::run`]; then asserts that every bio has completed.
    pub fn run_dry(&mut self, limit: usize) {
        self.run(limit);
        assert_eq!(self.outstanding(), 0, "bios are stuck\n{}", self.describe());
    }

    /// Bios of all disks that have not been reaped.
    pub fn outstanding(&self) -> u32 {
        self.disks.iter().map(|d| d.harness.outstanding()).sum()
    }

    /// Requests at each disk.
    pub fn in_flight(&self) -> Vec<usize> {
        self.disks.iter().map(|d| d.harness.disk.in_flight()).collect()
    }

    /// Asserts that nothing is left: every disk drains by itself, no tag is in use, and no gauge is above zero.
    pub fn check_idle(&mut self) {
        self.set.begin_freeze();
        for d in 0..self.disks.len() {
            // A submitter leaves its queue during a poll.
            (0..self.disks[d].harness.subs.len()).for_each(|s| self.poll(d, s));
        }
        assert!(self.set.is_drained(), "idle but not drained\n{}", self.describe());
        self.set.unfreeze();
        for d in &mut self.disks {
            d.harness.now = self.now;
            d.harness.check_idle();
        }
    }

    /// The state of everything, for a failure.
    pub fn describe(&self) -> String {
        let mut text = describe::tag_set(&self.set.config());
        for d in &self.disks {
            let until = d.timer.map_or("told".into(), |t| clock(t.as_ns()));
            text += &format!("disk {}, asleep until {until}, {}", d.number, d.harness.describe());
        }
        text
    }
}
