// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several disks in one virtual time, their submitters polled only when they have a reason to be: `sim::rig` for many.
//!
//! A submitter is polled when it was notified, when its disk's hardware queues have a completion for it, or when its own
//! disk's timer is due, as that was when the last submitter of the disk went to sleep: what other disks do to it later must
//! be told. So a tag of one disk that nobody tells another disk's waiter of is a run that stands still.

#![allow(dead_code, reason = "each test uses part of it")]

use blk::bio::{Bio, DataRef};
use blk::id::{CpuId, Sector, SubmitterId};
use blk::queue::{Notify, RequestQueue};
use blk::settings::{QueueConfig, SettingError};
use blk::submitter::{Done, SubmitError, Submitter};
use blk::tag_set::{TagSet, TagSetConfig};
use blk::time::Instant;
use sim::Lock;
use sim::disk::{Behaviour, SimDisk};
use sim::mem::Mem;
use sim::rig::{MEM_SECTORS, START_NS};
use sim::rng::Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Who was notified and not polled since.
#[derive(Clone)]
struct Bell(Arc<Vec<AtomicBool>>);

impl Notify for Bell {
    fn notify(&self, submitter: SubmitterId) {
        self.0[submitter.index()].store(true, Ordering::Relaxed);
    }
}

/// One disk of the world.
pub struct Disk {
    pub q: Arc<RequestQueue<Lock>>,
    pub disk: Arc<SimDisk>,
    pub subs: Vec<Submitter<Lock>>,
    pub done: Vec<Vec<Done>>,
    bell: Bell,
    /// [`RequestQueue::next_timer`] when a submitter of this disk was last awake.
    timer: Option<Instant>,
}

impl Disk {
    /// A submitter of it goes back to sleep, after whatever it did.
    pub fn doze(&mut self) {
        self.subs.iter_mut().for_each(Submitter::rest);
        self.timer = self.q.next_timer();
    }
}

/// See the module's text.
pub struct World {
    pub set: Arc<TagSet<Lock>>,
    pub disks: Vec<Disk>,
    pub now: u64,
    /// As `sim::rig::Rig::patience_ns`.
    pub patience_ns: u64,
    mem: Arc<Mem>,
    rng: Rng,
    seed: u64,
}

impl World {
    /// A set of the shape of these settings, without disks.
    pub fn new(seed: u64, config: &QueueConfig) -> World {
        World {
            set: TagSet::new(TagSetConfig::of(config)).unwrap_or_else(|e| panic!("seed {seed}: {e}")),
            disks: Vec::new(),
            now: START_NS,
            patience_ns: 1_000_000_000,
            mem: Arc::new(Mem::new(MEM_SECTORS)),
            rng: Rng::new(seed ^ 0x3417),
            seed,
        }
    }

    /// A disk with submitters on `cpus` joins the set.
    pub fn try_join(&mut self, behaviour: Behaviour, config: QueueConfig, cpus: &[u16]) -> Result<(), SettingError> {
        let disk = SimDisk::new(behaviour, self.mem.clone(), self.seed ^ (self.disks.len() as u64) << 8);
        let bell = Bell(Arc::new((0..64).map(|_| AtomicBool::new(false)).collect()));
        let q = RequestQueue::with_tag_set(&self.set, disk.clone(), config, Box::new(bell.clone()))?;
        let subs = cpus.iter().map(|c| q.submitter(CpuId::new(u32::from(*c))).expect("a free submitter")).collect();
        self.disks.push(Disk { q, disk, subs, done: cpus.iter().map(|_| Vec::new()).collect(), bell, timer: None });
        Ok(())
    }

    /// As [`World::try_join`], of settings that are right.
    pub fn join(&mut self, behaviour: Behaviour, config: QueueConfig, cpus: &[u16]) {
        let seed = self.seed;
        self.try_join(behaviour, config, cpus).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }

    pub fn t(&self) -> Instant {
        Instant::from_ns(self.now)
    }

    pub fn try_submit(&mut self, d: usize, s: usize, bio: Bio) -> Result<(), SubmitError> {
        let t = self.t();
        let r = self.disks[d].subs[s].submit(&bio, t);
        self.disks[d].doze();
        r
    }

    pub fn submit(&mut self, d: usize, s: usize, bio: Bio) {
        self.try_submit(d, s, bio).expect("a free bio slot");
    }

    /// Reads that adjoin nothing.
    pub fn submit_reads(&mut self, d: usize, s: usize, n: u64) {
        for i in 0..n {
            let k = i + ((d as u64) << 8) + ((s as u64) << 12);
            self.submit(d, s, Bio::read(Sector(k * 16), 8, DataRef::new(0, (k % 1024) << 12)).with_user_data(k));
        }
    }

    pub fn poll(&mut self, d: usize, s: usize) {
        let t = self.t();
        let disk = &mut self.disks[d];
        disk.bell.0[disk.subs[s].id().index()].store(false, Ordering::Relaxed);
        disk.subs[s].poll(t);
        let done = &mut disk.done[s];
        disk.subs[s].reap(|d| done.push(d));
        disk.doze();
    }

    fn has_reason(&self, d: usize, s: usize) -> bool {
        let disk = &self.disks[d];
        let sub = &disk.subs[s];
        disk.bell.0[sub.id().index()].load(Ordering::Relaxed)
            || sub.hctxs().any(|h| disk.disk.is_ready(h.index(), self.now))
            || disk.timer.is_some_and(|t| t.as_ns() <= self.now)
    }

    /// Polls one submitter that has a reason to be. False: nobody has one, at this time.
    pub fn step_now(&mut self) -> bool {
        let all: Vec<(usize, usize)> =
            self.disks.iter().enumerate().flat_map(|(d, disk)| (0..disk.subs.len()).map(move |s| (d, s))).collect();
        let first = self.rng.below(all.len() as u64) as usize;
        let found = (0..all.len()).map(|i| all[(first + i) % all.len()]).find(|(d, s)| self.has_reason(*d, *s));
        let Some((d, s)) = found else { return false };
        self.poll(d, s);
        true
    }

    /// As [`World::step_now`]; with no reason now, time goes on to the next one. False: there is none at all.
    pub fn step(&mut self) -> bool {
        if self.step_now() {
            return true;
        }
        let patience = self.now.saturating_add(self.patience_ns);
        let polled = self.disks.iter().filter(|d| !d.subs.is_empty());
        let timers = polled.clone().filter_map(|d| d.timer).map(Instant::as_ns).filter(|t| *t <= patience);
        match timers.chain(polled.filter_map(|d| d.disk.next_due())).min() {
            Some(t) if t > self.now => {
                self.now = t;
                self.step_now()
            }
            _ => false,
        }
    }

    /// Steps at the present time until nobody has a reason left.
    pub fn settle(&mut self) {
        for _ in 0..100_000 {
            if !self.step_now() {
                return;
            }
        }
        panic!("no rest\n{}", self.describe());
    }

    /// Steps until nobody has a reason left.
    pub fn run(&mut self, limit: usize) {
        for _ in 0..limit {
            if !self.step() {
                return self.reap();
            }
        }
        panic!("no rest after {limit} steps\n{}", self.describe());
    }

    /// What ended at its own submission has rung no bell.
    pub fn reap(&mut self) {
        for d in &mut self.disks {
            for (s, done) in d.subs.iter_mut().zip(&mut d.done) {
                s.reap(|d| done.push(d));
            }
        }
    }

    /// As [`World::run`], then everything must have ended.
    pub fn run_dry(&mut self, limit: usize) {
        self.run(limit);
        assert_eq!(self.outstanding(), 0, "bios are stuck\n{}", self.describe());
    }

    pub fn outstanding(&self) -> u32 {
        self.disks.iter().flat_map(|d| &d.subs).map(Submitter::outstanding).sum()
    }

    /// Requests at each disk.
    pub fn in_flight(&self) -> Vec<usize> {
        self.disks.iter().map(|d| d.disk.in_flight()).collect()
    }

    /// Nothing is left anywhere: every disk drains by itself, and no gauge is above zero.
    pub fn check_idle(&mut self) {
        self.set.begin_freeze();
        for d in 0..self.disks.len() {
            (0..self.disks[d].subs.len()).for_each(|s| self.poll(d, s));
        }
        assert!(self.set.is_drained(), "idle but not drained\n{}", self.describe());
        self.set.unfreeze();
        for d in &self.disks {
            assert_eq!((d.q.stats().in_flight, d.disk.in_flight()), (0, 0), "{}", self.describe());
        }
    }

    pub fn describe(&self) -> String {
        let mut text = format!("seed {}, now {}, {:?}\n", self.seed, self.now, self.set.config());
        for (n, d) in self.disks.iter().enumerate() {
            text += &format!("disk {n} '{}', next_timer {:?}\n", d.q.scheduler(), d.q.next_timer());
            for s in &d.subs {
                let (o, w, r) = (s.outstanding(), s.waiting(), s.ready());
                text += &format!("  submitter {} cpu {}: outstanding {o}, waiting {w}, ready {r}\n", s.id(), s.cpu());
            }
            text += &format!("  {:?}\n  {}", d.q.hctx_stats(), d.disk.describe());
        }
        text
    }
}
