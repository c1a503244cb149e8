// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Submitters on virtual CPUs, polled only when there is a reason to.
//!
//! A submitter is polled when it was notified or when one of its hardware queues has a completion. When
//! [`RequestQueue::next_timer`] is due, any submitter is polled. None spins. Before a submitter sleeps it calls `rest`, as
//! the core requires. If the core loses a wake-up, the run hangs with bios outstanding and the test fails.

use crate::Lock;
use crate::describe;
use crate::disk::{Behaviour, SimDisk};
use crate::liveness::Offers;
use crate::mem::Mem;
use crate::paths::Paths;
use crate::rng::Rng;
use crate::trace::clock;
use blk::bio::Bio;
use blk::driver::Driver;
use blk::id::{CpuId, HctxId, SubmitterId};
use blk::queue::{Notify, RequestQueue};
use blk::settings::{QueueConfig, SettingError};
use blk::submitter::{Done, SubmitError, Submitter};
use blk::tags::TagSet;
use blk::time::Instant;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Remembers which submitters were notified.
pub struct Notifications {
    pending: Vec<AtomicU64>,
    order: Mutex<Vec<usize>>,
    /// Every n-th notification is lost; 0 = none.
    loses: AtomicU64,
}

impl Notifications {
    /// No submitter was notified.
    pub fn new() -> Arc<Notifications> {
        Arc::new(Notifications {
            pending: (0..1024).map(|_| AtomicU64::new(0)).collect(),
            order: Mutex::default(),
            loses: AtomicU64::new(0),
        })
    }

    /// Returns how often `id` was notified since the last call.
    pub fn take(&self, id: SubmitterId) -> u64 {
        self.pending[id.index()].swap(0, Ordering::Relaxed)
    }

    /// Loses every `nth` notification from now on: a planted bug.
    pub(crate) fn lose_every(&self, nth: u64) {
        self.loses.store(nth, Ordering::Relaxed);
    }

    /// Whether `id` was notified since [`Notifications::take`].
    pub fn is_pending(&self, id: SubmitterId) -> bool {
        self.pending[id.index()].load(Ordering::Relaxed) > 0
    }

    /// All notifications so far, in order.
    pub fn order(&self) -> Vec<usize> {
        self.order.lock().expect("no test panics here").clone()
    }
}

struct Notifier(Arc<Notifications>);

impl Notify for Notifier {
    fn notify(&self, submitter: SubmitterId) {
        let mut order = self.0.order.lock().expect("no test panics here");
        order.push(submitter.index());
        let loses = self.0.loses.load(Ordering::Relaxed);
        if loses == 0 || !(order.len() as u64).is_multiple_of(loses) {
            self.0.pending[submitter.index()].fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// See the module's text.
pub struct Harness {
    /// The disk under test.
    pub q: Arc<RequestQueue<Lock>>,
    /// The disk's device.
    pub disk: Arc<SimDisk>,
    /// The paths to it, unless it has one path that always works.
    pub(crate) paths: Option<Arc<Paths>>,
    /// What the driver is offered.
    pub(crate) offers: Arc<Offers>,
    /// Where data comes from and goes to.
    pub mem: Arc<Mem>,
    /// The submitters that were notified.
    pub notifications: Arc<Notifications>,
    /// The submitters.
    pub subs: Vec<Submitter<Lock>>,
    /// What each submitter has reaped, in order.
    pub done: Vec<Vec<Done>>,
    /// Virtual time in nanoseconds.
    pub now: u64,
    /// Time does not advance by itself to a timer that is further ahead than this. Less than `io_timeout` unless a test
    /// changes it, so that a disk with manual completion does not run into timeouts.
    pub patience_ns: u64,
    rng: Rng,
}

/// The time at which a harness starts.
pub const START_NS: u64 = 1_000_000;

/// Sectors of test memory.
pub const MEM_SECTORS: usize = 1 << 17;

impl Harness {
    /// Makes a disk with submitters on `cpus`.
    pub fn try_new(
        seed: u64,
        behaviour: Behaviour,
        config: QueueConfig,
        cpus: &[u16],
    ) -> Result<Harness, SettingError> {
        Harness::on(None, seed, behaviour, config, cpus)
    }

    /// As [`Harness::try_new`], with the tags of a set if one is given.
    pub fn on(
        set: Option<&Arc<TagSet<Lock>>>,
        seed: u64,
        behaviour: Behaviour,
        config: QueueConfig,
        cpus: &[u16],
    ) -> Result<Harness, SettingError> {
        let mem = Arc::new(Mem::new(MEM_SECTORS));
        let disk = SimDisk::new(behaviour, mem.clone(), seed);
        Harness::assemble(set, seed, mem, disk, None, config, cpus)
    }

    /// Makes a disk with several paths; `paths` makes the paths.
    pub(crate) fn over_paths(
        seed: u64,
        behaviour: Behaviour,
        paths: impl FnOnce(&Arc<SimDisk>) -> Arc<Paths>,
        config: QueueConfig,
        cpus: &[u16],
    ) -> Harness {
        let mem = Arc::new(Mem::new(MEM_SECTORS));
        let disk = SimDisk::new(behaviour, mem.clone(), seed);
        let paths = paths(&disk);
        let harness = Harness::assemble(None, seed, mem, disk, Some(paths), config, cpus);
        harness.unwrap_or_else(|e| panic!("seed {seed}: {e}"))
    }

    fn assemble(
        set: Option<&Arc<TagSet<Lock>>>,
        seed: u64,
        mem: Arc<Mem>,
        disk: Arc<SimDisk>,
        paths: Option<Arc<Paths>>,
        config: QueueConfig,
        cpus: &[u16],
    ) -> Result<Harness, SettingError> {
        let notifications = Notifications::new();
        let notifier = Box::new(Notifier(notifications.clone()));
        let driver: Arc<dyn Driver> = match &paths {
            None => disk.clone(),
            Some(paths) => paths.mp.clone(),
        };
        let offers = Offers::to(driver);
        let driver: Arc<dyn Driver> = offers.clone();
        let q = match set {
            None => RequestQueue::<Lock>::new(driver, config, notifier)?,
            Some(set) => RequestQueue::with_tag_set(set, driver, config, notifier)?,
        };
        let subs = cpus.iter().map(|c| q.submitter(CpuId::new(u32::from(*c))).expect("a free submitter")).collect();
        let done = cpus.iter().map(|_| Vec::new()).collect();
        Ok(Harness {
            q,
            disk,
            paths,
            offers,
            mem,
            notifications,
            subs,
            done,
            now: START_NS,
            patience_ns: 1_000_000_000,
            rng: Rng::new(seed ^ 0x816),
        })
    }

    /// As [`Harness::try_new`], for settings that are valid. Panics if they are not.
    pub fn new(seed: u64, behaviour: Behaviour, config: QueueConfig, cpus: &[u16]) -> Harness {
        Harness::try_new(seed, behaviour, config, cpus).unwrap_or_else(|e| panic!("seed {seed}: {e}"))
    }

    /// Virtual time in the core's type.
    pub fn t(&self) -> Instant {
        Instant::from_ns(self.now)
    }

    /// Submits through submitter `s`. Panics when it has no free bio slot.
    pub fn submit(&mut self, s: usize, bio: Bio) {
        self.try_submit(s, bio).expect("a free bio slot");
    }

    /// As [`Harness::submit`], but returns its error.
    pub fn try_submit(&mut self, s: usize, bio: Bio) -> Result<(), SubmitError> {
        let t = self.t();
        self.subs[s].submit(&bio, t)
    }

    /// Opens the plug of a submitter.
    pub fn plug(&mut self, s: usize, nr_ios: u32) {
        self.subs[s].start_plug(nr_ios);
    }

    /// Closes the plug of a submitter.
    pub fn unplug(&mut self, s: usize) {
        let t = self.t();
        self.subs[s].finish_plug(t);
    }

    /// Polls and reaps one submitter, even if it has no reason to be polled.
    pub fn poll(&mut self, s: usize) {
        let t = self.t();
        self.notifications.take(self.subs[s].id());
        self.subs[s].poll(t);
        let done = &mut self.done[s];
        self.subs[s].reap(|d| done.push(d));
    }

    /// Takes what submitter `s` has reaped so far.
    pub fn take_done(&mut self, s: usize) -> Vec<Done> {
        let done = &mut self.done[s];
        self.subs[s].reap(|d| done.push(d));
        std::mem::take(done)
    }

    /// The core's next timer, if it is not beyond the harness's patience.
    pub fn next_timer(&self) -> Option<Instant> {
        let patience = self.now.saturating_add(self.patience_ns);
        self.q.next_timer().filter(|t| t.as_ns() <= patience)
    }

    /// Whether submitter `s` was notified, or polls a hardware queue that has a completion.
    pub(crate) fn is_wanted_at(&self, s: usize, now: u64) -> bool {
        let sub = &self.subs[s];
        let by_a_path = |h| self.paths.as_ref().is_some_and(|p| p.is_ready(h, now));
        // A path without requests is not polled: a repeated completion there belongs to no request.
        let is_looked_at = |h: HctxId| self.paths.is_none() || self.disk.has_requests(h.index());
        let at_disk = |h: HctxId| self.disk.is_ready(h.index(), now) && is_looked_at(h);
        self.notifications.is_pending(sub.id()) || sub.hctxs().any(|h| at_disk(h) || by_a_path(h))
    }

    /// Polls a submitter that has a reason to be polled. Returns false if no submitter has a reason at this time.
    pub fn step_now(&mut self) -> bool {
        if self.paths.as_ref().is_some_and(|p| p.take_run()) {
            self.q.quiesce();
            self.q.unquiesce();
        }
        self.subs.iter_mut().for_each(Submitter::rest);
        let timer = self.q.next_timer().is_some_and(|t| t.as_ns() <= self.now);
        let n = self.subs.len();
        let first = self.rng.below(n as u64) as usize;
        let reason = |s: &usize| timer || self.is_wanted_at(*s, self.now);
        let Some(s) = (0..n).map(|i| (first + i) % n).find(reason) else { return false };
        self.poll(s);
        true
    }

    /// As [`Harness::step_now`]; if none has a reason now, time advances to the next one. Returns false if there is none at all.
    pub fn step(&mut self) -> bool {
        self.step_with(|_| {})
    }

    /// As [`Harness::step`]; `quiet` checks the harness when no submitter has a reason now, before time advances.
    pub(crate) fn step_with(&mut self, quiet: impl FnOnce(&Harness)) -> bool {
        if self.step_now() {
            return true;
        }
        quiet(self);
        let timer = self.next_timer().map(Instant::as_ns);
        let by_a_path = self.paths.as_ref().and_then(|p| p.next_due());
        match timer.into_iter().chain(self.disk.next_due()).chain(by_a_path).min() {
            // A completion on an hctx that no submitter of the harness polls would never be found.
            Some(t) if t > self.now => {
                self.now = t;
                self.step_now()
            }
            _ => false,
        }
    }

    /// Steps until no submitter has a reason left. Panics after `limit` steps, because then the core makes no progress.
    pub fn run(&mut self, limit: usize) {
        for _ in 0..limit {
            if !self.step() {
                return self.reap();
            }
        }
        panic!("no rest after {limit} steps\n{}", self.describe());
    }

    /// Reaps all submitters without polling them first, because a bio that completes during its submission notifies no submitter.
    pub(crate) fn reap(&mut self) {
        for (s, done) in self.subs.iter_mut().zip(&mut self.done) {
            s.reap(|d| done.push(d));
        }
    }

    /// Number of bios that have not been reaped, over all submitters.
    pub fn outstanding(&self) -> u32 {
        self.subs.iter().map(Submitter::outstanding).sum()
    }

    /// As [`Harness::run`]; then asserts that every bio has completed.
    pub fn run_dry(&mut self, limit: usize) {
        self.run(limit);
        assert_eq!(self.outstanding(), 0, "bios are stuck\n{}", self.describe());
    }

    /// Freezes and drains the queue, changes the settings, unfreezes.
    pub fn rebuild(
        &mut self,
        change: impl FnOnce(&mut QueueConfig) -> Result<(), SettingError>,
    ) -> Result<(), SettingError> {
        self.q.begin_freeze();
        self.drain();
        let r = self.q.rebuild(change);
        self.q.unfreeze();
        r
    }

    /// Steps until the frozen queue is drained.
    pub fn drain(&mut self) {
        for _ in 0..1_000_000 {
            if self.q.is_drained() {
                return;
            }
            assert!(self.step() || self.q.is_drained(), "the frozen queue does not drain\n{}", self.describe());
        }
        panic!("the frozen queue does not drain in a million steps\n{}", self.describe());
    }

    /// Steps until a CPU that is going offline is offline. Panics if it never is.
    pub fn until_offline(&mut self, cpu: CpuId) {
        for _ in 0..1_000_000 {
            if self.q.is_offline(cpu) {
                return;
            }
            // A step without a reason to poll has called `rest` for all submitters, so kept tags are returned.
            let goes_on = self.step() || self.q.is_offline(cpu);
            assert!(goes_on, "{cpu} is not drained\n{}", self.describe());
        }
        panic!("{cpu} is not drained in a million steps\n{}", self.describe());
    }

    /// Asserts that nothing is left: no tag in use, nothing in flight, gauges at zero.
    pub fn check_idle(&mut self) {
        self.q.begin_freeze();
        // A submitter leaves its queue during a poll.
        (0..self.subs.len()).for_each(|s| self.poll(s));
        let tags = self.q.in_progress();
        assert!(tags == 0, "{tags} tags of an idle disk are in use without an owner\n{}", self.describe());
        assert!(self.q.is_drained(), "idle but not drained\n{}", self.describe());
        self.q.unfreeze();
        assert_eq!(self.q.stats().in_flight, 0, "in_flight of an idle disk\n{}", self.describe());
        assert_eq!(self.disk.in_flight(), 0);
    }

    /// The state of everything, for a failure.
    pub fn describe(&self) -> String {
        let at = |t: Option<Instant>| t.map_or("none".into(), |t| clock(t.as_ns()));
        let mut text = format!("at {}, next timer {}\n", clock(self.now), at(self.q.next_timer()));
        for s in &self.subs {
            let (o, w, h, r) = (s.outstanding(), s.waiting(), s.held(), s.ready());
            let is = format!("{o} bios in flight: {w} wait for a tag, {h} are held back, {r} not reaped");
            text += &format!("  submitter {} on CPU {}: {is}\n", s.id(), s.cpu());
        }
        text += &format!("  {}\n", describe::settings(&self.q.config()).replace('\n', "\n  "));
        let paths = self.paths.as_ref().map_or_else(String::new, |p| p.describe(self.now));
        text + &describe::hctxs(&self.q.hctx_stats()) + &self.disk.describe() + &paths
    }
}
