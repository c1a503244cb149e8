// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several paths to one simulated disk, each of which can break, be busy or lose completions; and a multipath disk on
//! top of them, which is polled only for a reason.

use blk::bio::{Bio, DataRef};
use blk::cpumap::CpuTopology;
use blk::driver::{Completions, Driver, InFlight, RqBatch, TimedOut, TimeoutAnswer, Verdict};
use blk::id::{CpuId, HctxId, Sector, SubmitterId};
use blk::limits::Limits;
use blk::multipath::{Features, Listener, Multipath, NewGroup, NewPath, PathArgs, PathEvent, Selector};
use blk::queue::{Notify, RequestQueue};
use blk::settings::QueueConfig;
use blk::status::{BlkStatus, QueueRqStatus};
use blk::submitter::{Done, Submitter};
use blk::time::Instant;
use sim::Lock;
use sim::disk::{Behaviour, SimDisk};
use sim::mem::Mem;
use sim::rng::Rng;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a path does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// Passes it on.
    Works,
    /// Rejects it.
    Refuses(QueueRqStatus),
    /// Completes it while it is issued.
    EndsAtOnce(BlkStatus),
    /// Accepts it and completes it with this status after this many ns.
    EndsAfter(u64, BlkStatus),
    /// Accepts it and does not complete it before its timeout function is called.
    Swallows,
    /// Any of the faults, with status Transport.
    IsBroken,
}

struct HeldRequest {
    hctx: HctxId,
    rq: InFlight,
    issued: u64,
    due: u64,
    status: BlkStatus,
}

struct Inner {
    does: Does,
    rng: Rng,
    kept: Vec<HeldRequest>,
    started: bool,
    sent: usize,
}

/// The path of each request at the disk.
type Owners = Arc<Mutex<HashMap<(usize, usize), usize>>>;

/// A driver that leads to the disk.
pub struct PathDriver {
    n: usize,
    disk: Arc<SimDisk>,
    owners: Owners,
    broken: Arc<Mutex<Vec<bool>>>,
    pub limits: Limits,
    pub capacity: Sector,
    inner: Mutex<Inner>,
}

fn locked<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PathDriver {
    pub fn does(&self, does: Does) {
        locked(&self.inner).does = does;
        locked(&self.broken)[self.n] = does == Does::IsBroken;
    }

    /// Returns how many requests it passed on.
    pub fn sent(&self) -> usize {
        locked(&self.inner).sent
    }

    fn next_due(&self) -> Option<u64> {
        locked(&self.inner).kept.iter().map(|k| k.due).filter(|d| *d != u64::MAX).min()
    }

    fn is_ready(&self, hctx: HctxId, now: u64) -> bool {
        locked(&self.inner).kept.iter().any(|k| k.hctx == hctx && k.due <= now)
    }

    /// Returns what the path reports for a request that the disk has completed; on a broken path this may be wrong.
    fn judge(&self, hctx: HctxId, tag: usize, status: Option<BlkStatus>) -> Verdict {
        let owner = locked(&self.owners).remove(&(hctx.index(), tag)).expect("sent by one of them");
        let lost = locked(&self.broken)[owner] && locked(&self.inner).rng.below(2) == 0;
        match status {
            Some(_) if lost => Verdict::Ends(BlkStatus::Transport),
            Some(status) => Verdict::Ends(status),
            None => Verdict::Again(None),
        }
    }
}

impl Driver for PathDriver {
    fn name(&self) -> &'static str {
        "way"
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn capacity(&self) -> Sector {
        self.capacity
    }

    fn start(&self, nr_hw_queues: u16, queue_depth: u32) -> Result<(), String> {
        let first = !std::mem::replace(&mut locked(&self.inner).started, true);
        // There is one disk, which the first of the initial paths starts.
        if first && self.n == 0 { self.disk.start(nr_hw_queues, queue_depth) } else { Ok(()) }
    }

    fn queue_rqs(&self, batch: &mut RqBatch<'_>, now: Instant) -> QueueRqStatus {
        let hctx = batch.hctx();
        while let Some(rq) = batch.front() {
            let mut i = locked(&self.inner);
            let does = match i.does {
                Does::IsBroken => match i.rng.below(4) {
                    0 => Does::Refuses(QueueRqStatus::Error(BlkStatus::Transport)),
                    1 => Does::EndsAtOnce(BlkStatus::Transport),
                    2 => Does::EndsAfter(i.rng.below(5_000_000), BlkStatus::Transport),
                    _ => Does::Swallows,
                },
                other => other,
            };
            let (after, status) = match does {
                Does::Refuses(status) => return status,
                Does::EndsAtOnce(status) => {
                    batch.end(status);
                    continue;
                }
                Does::EndsAfter(after, status) => (after, status),
                Does::Swallows | Does::IsBroken => (u64::MAX, BlkStatus::Timeout),
                Does::Works => {
                    i.sent += 1;
                    drop(i);
                    let key = (hctx.index(), rq.tag().index());
                    locked(&self.owners).insert(key, self.n);
                    let lent = batch.lend(1, self.disk.as_ref(), now);
                    batch.review_ended(&lent, |tag, s| self.judge(hctx, tag.index(), Some(s)), |_, _| unreachable!());
                    if lent.taken == 0 {
                        locked(&self.owners).remove(&key);
                        locked(&self.inner).sent -= 1;
                        return lent.status;
                    }
                    continue;
                }
            };
            let due = now.as_ns().saturating_add(after);
            i.kept.push(HeldRequest { hctx, rq: batch.accept(), issued: now.as_ns(), due, status });
        }
        QueueRqStatus::Queued
    }

    fn timeout(&self, hctx: HctxId, late: TimedOut, done: &mut Completions, now: Instant) -> TimeoutAnswer {
        let mut i = locked(&self.inner);
        let asked = |k: &HeldRequest| k.hctx == hctx && k.rq.tag() == late.tag && k.issued == late.issued.as_ns();
        if let Some(at) = i.kept.iter().position(asked) {
            let HeldRequest { rq, status, .. } = i.kept.remove(at);
            done.push(rq, status);
            return TimeoutAnswer::Done;
        }
        drop(i);
        done.timeout_below(self.disk.as_ref(), late, now, |tag, s| self.judge(hctx, tag.index(), s))
    }

    fn poll(&self, hctx: HctxId, done: &mut Completions, now: Instant) {
        let mut i = locked(&self.inner);
        while done.room() > 0
            && let Some(at) = i.kept.iter().position(|k| k.hctx == hctx && k.due <= now.as_ns())
        {
            let HeldRequest { rq, status, .. } = i.kept.remove(at);
            done.push(rq, status);
        }
        drop(i);
        done.poll_below(self.disk.as_ref(), now, |tag, s| self.judge(hctx, tag.index(), s));
    }
}

struct Ring(Arc<AtomicBool>);

impl Notify for Ring {
    fn notify(&self, _: SubmitterId) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// See the module's text.
pub struct Stack {
    pub disk: Arc<SimDisk>,
    pub ways: Vec<Arc<PathDriver>>,
    pub mp: Arc<Multipath<Lock>>,
    pub q: Arc<RequestQueue<Lock>>,
    pub subs: Vec<Submitter<Lock>>,
    pub mem: Arc<Mem>,
    pub now: u64,
    pub events: Arc<Mutex<Vec<PathEvent>>>,
    notifications: Arc<AtomicBool>,
    owners: Owners,
    broken: Arc<Mutex<Vec<bool>>>,
    /// Time does not advance by itself to events that are further ahead than this.
    pub patience_ns: u64,
}

pub fn config(scheduler: &str, depth: u32) -> QueueConfig {
    QueueConfig {
        topology: CpuTopology::uniform(2),
        queue_depth: depth,
        scheduler: Some(scheduler.into()),
        ..QueueConfig::default()
    }
}

impl Stack {
    /// Makes groups with these numbers of paths, and submitters on two CPUs.
    pub fn new(
        seed: u64,
        behaviour: Behaviour,
        groups: &[(Selector, usize)],
        f: Features,
        config: QueueConfig,
    ) -> Stack {
        let mem = Arc::new(Mem::new(1 << 14));
        let disk = SimDisk::new(behaviour, mem.clone(), seed);
        let (owners, broken) = (Owners::default(), Arc::<Mutex<Vec<bool>>>::default());
        let n = groups.iter().map(|(_, n)| n).sum();
        let ways: Vec<_> = (0..n).map(|i| way(i, seed, &disk, &owners, &broken)).collect();
        let mut left = ways.iter();
        let groups = groups
            .iter()
            .map(|(selector, n)| NewGroup { selector: *selector, paths: left.by_ref().take(*n).map(path).collect() });
        let (events, notifications) = (Arc::<Mutex<Vec<PathEvent>>>::default(), Arc::<AtomicBool>::default());
        let heard = events.clone();
        let listener: Listener = Box::new(move |e| locked(&heard).push(e));
        let mp = Arc::new(Multipath::new(groups.collect(), f, None, &[], listener).unwrap());
        let q = RequestQueue::<Lock>::new(mp.clone(), config, Box::new(Ring(notifications.clone()))).unwrap();
        let subs = (0..2).map(|cpu| q.submitter(CpuId::new(cpu)).unwrap()).collect();
        let (now, patience_ns) = (1_000_000, 1_000_000_000);
        Stack { disk, ways, mp, q, subs, mem, now, events, notifications, owners, broken, patience_ns }
    }

    /// Makes one more path to the disk.
    pub fn new_way(&mut self) -> Arc<PathDriver> {
        let way = way(self.ways.len(), 1, &self.disk, &self.owners, &self.broken);
        self.ways.push(way.clone());
        way
    }

    /// As [`Stack::new_way`], kept by the caller.
    pub fn new_way_alone(&mut self) -> Arc<PathDriver> {
        let way = self.new_way();
        self.ways.pop();
        way
    }

    pub fn t(&self) -> Instant {
        Instant::from_ns(self.now)
    }

    pub fn submit(&mut self, s: usize, bio: Bio) {
        let t = self.t();
        self.subs[s].submit(&bio, t).unwrap();
    }

    pub fn poll(&mut self) {
        let t = self.t();
        self.notifications.store(false, Ordering::Relaxed);
        if self.take_events().contains(&PathEvent::RunQueue) {
            self.q.quiesce();
            self.q.unquiesce();
        }
        self.subs.iter_mut().for_each(|s| s.poll(t));
    }

    /// Returns the events, except for those that [`Stack::poll`] took.
    pub fn take_events(&self) -> Vec<PathEvent> {
        std::mem::take(&mut *locked(&self.events))
    }

    pub fn done(&mut self) -> Vec<Done> {
        let mut done = Vec::new();
        self.subs.iter_mut().for_each(|s| s.reap(|d| done.push(d)));
        done
    }

    /// Polls if there is a reason, now or later. False: there is none that is not too far ahead.
    pub fn step(&mut self) -> bool {
        self.subs.iter_mut().for_each(Submitter::rest);
        let timer = self.q.next_timer().map(Instant::as_ns);
        let ready = |h: HctxId| {
            let (i, now) = (h.index(), self.now);
            self.mp.is_ready(h) || self.disk.is_ready(i, now) || self.ways.iter().any(|w| w.is_ready(h, now))
        };
        let told = locked(&self.events).contains(&PathEvent::RunQueue);
        let wanted = told || self.notifications.load(Ordering::Relaxed) || timer.is_some_and(|t| t <= self.now);
        if !wanted && !self.subs.iter().any(|s| s.hctxs().any(ready)) {
            let dues = self.ways.iter().filter_map(|w| w.next_due());
            let next = dues.chain(self.disk.next_due()).chain(timer).min();
            match next.filter(|t| *t < self.now + self.patience_ns) {
                Some(t) => self.now = self.now.max(t),
                None => return false,
            }
        }
        self.poll();
        true
    }

    /// Runs until no submitter has a reason to poll.
    pub fn run(&mut self) {
        for _ in 0..200_000 {
            if !self.step() {
                return;
            }
        }
        panic!("goes round in circles at {}:\n{}", self.now, self.mp.status());
    }

    pub fn statuses(&mut self) -> Vec<BlkStatus> {
        self.done().iter().map(|d| d.status).collect()
    }

    pub fn sent(&self) -> Vec<usize> {
        self.ways.iter().map(|w| w.sent()).collect()
    }

    pub fn check_idle(&mut self) {
        self.q.begin_freeze();
        self.poll();
        assert!(self.q.is_drained(), "a tag is in use\n{}", self.mp.status());
        self.q.unfreeze();
        assert_eq!((self.q.stats().in_flight, self.disk.in_flight()), (0, 0));
        let status = self.mp.status();
        assert!(status.groups.iter().flat_map(|g| &g.paths).all(|p| p.in_flight == 0), "{status}");
        assert!(locked(&self.owners).is_empty());
    }
}

fn way(n: usize, seed: u64, disk: &Arc<SimDisk>, owners: &Owners, broken: &Arc<Mutex<Vec<bool>>>) -> Arc<PathDriver> {
    locked(broken).push(false);
    let rng = Rng::new(seed ^ (n as u64) << 32);
    let inner = Inner { does: Does::Works, rng, kept: Vec::new(), started: false, sent: 0 };
    Arc::new(PathDriver {
        n,
        disk: disk.clone(),
        owners: owners.clone(),
        broken: broken.clone(),
        limits: disk.limits(),
        capacity: disk.capacity(),
        inner: Mutex::new(inner),
    })
}

/// Returns the path under the name of a null_blk device.
pub fn path(way: &Arc<PathDriver>) -> NewPath {
    NewPath { name: format!("252:{}", way.n), driver: way.clone(), args: PathArgs::default() }
}

pub fn read(n: u64) -> Bio {
    Bio::read(Sector(n * 100), 8, DataRef::new(0, (n % 100) << 12)).with_user_data(n)
}
