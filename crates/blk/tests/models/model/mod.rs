// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A small disk for model checkers: the real block layer on a device that is a list, and threads that really sleep.
//!
//! A request is finished once the device has it; the next poll takes it out. A thread sleeps (on the checker's condition
//! variable) when nothing is at the device, it was not notified and no run is owed. A driver's `wait` does the same. No
//! timer ends a sleep: the timer of the request timeout, five seconds ahead, would hide every lost wake-up. So a lost
//! wake-up is a deadlock, which the checker reports with its schedule.

#![allow(dead_code, reason = "each checker uses part of it")]

#[cfg(loom)]
pub mod explore;

use crate::checker::sync::{Condvar, Mutex};
use crate::checker::thread::yield_now;
use blk::bio::{Bio, DataRef};
use blk::cpumap::CpuTopology;
use blk::driver::{Completions, Driver, InFlight, RqBatch, TimedOut, TimeoutAnswer};
use blk::id::{CpuId, HctxId, Sector, SubmitterId};
use blk::limits::Limits;
use blk::queue::{Notify, RequestQueue};
use blk::settings::QueueConfig;
use blk::status::{BlkStatus, QueueRqStatus};
use blk::submitter::Submitter;
use blk::tags::TagSet;
use blk::time::{Duration, Instant};
use std::collections::VecDeque;
use std::sync::Arc;

/// The block layer uses the checker's lock instead of this one.
pub type Lock = parking_lot::RawMutex;

/// Timers further ahead than this are request timeouts.
const SOON: Duration = Duration::from_ms(100);

/// The device of the models: a list of requests.
pub struct Device {
    state: Mutex<State>,
    notifications: Condvar,
    kind: Kind,
    /// The latest time of any thread. Hidden from the checker, because as a tracked atomic it would order memory.
    clock: std::sync::atomic::AtomicU64,
}

/// What a device does with requests.
#[derive(Clone, Copy)]
pub enum Kind {
    /// Finishes all at once.
    Ready,
    /// Completes all requests while they are issued.
    Inline,
    /// Holds one request of any hardware queue, and rejects more with this status.
    Holds1(QueueRqStatus),
    /// Completes no request until it is told to (`speak`).
    Silent,
    /// Finishes all at once, for submitters that move from CPU to CPU.
    Roaming,
}

#[derive(Default)]
struct State {
    flying: Vec<VecDeque<InFlight>>,
    /// Submitters that were notified to poll, one bit each.
    told: u32,
    /// A thread relies on the drained queue: no call may come.
    shut: bool,
    /// A hardware queue whose CPUs are all offline: it may have and get no requests.
    closed: Option<usize>,
    issued: u32,
    /// Maximum number of requests that may be at the device at a time.
    most: Option<usize>,
    /// How many more requests a silent device completes.
    answers: u32,
}

impl Device {
    /// Makes a device without hardware queues.
    pub fn new(kind: Kind) -> Arc<Device> {
        Arc::new(Device { state: Mutex::new(State::default()), notifications: Condvar::new(), kind, clock: 0.into() })
    }

    /// Returns how many requests were accepted so far.
    pub fn issued(&self) -> u32 {
        self.state.lock().unwrap().issued
    }

    /// Sets whether calls with requests are a fault from now on.
    pub fn shut(&self, shut: bool) {
        self.state.lock().unwrap().shut = shut;
    }

    /// Closes a hardware queue, or opens all.
    pub fn close(&self, hctx: Option<usize>) {
        let mut state = self.state.lock().unwrap();
        state.closed = hctx;
        assert!(hctx.is_none_or(|h| state.flying[h].is_empty()), "a request is out on a hardware queue that is gone");
    }

    /// Makes more than this many requests at a time a fault.
    pub fn at_most(&self, requests: usize) {
        self.state.lock().unwrap().most = Some(requests);
    }

    /// Lets a `Silent` device complete this many requests.
    pub fn speak(&self, answers: u32) {
        self.state.lock().unwrap().answers = answers;
        self.notifications.notify_all();
    }

    fn take(&self, state: &mut State, batch: &mut RqBatch<'_>) -> QueueRqStatus {
        assert!(!state.shut, "a request was issued on the drained queue");
        assert_ne!(state.closed, Some(batch.hctx().index()), "a request was issued on a hardware queue that is gone");
        while let Some(rq) = batch.front() {
            // One CPU per hctx or one hctx for all: a submitter that has not noticed a rebuild sends to another one.
            let nr = state.flying.len();
            assert!(
                matches!(self.kind, Kind::Roaming) || rq.sector().0 as usize / 1000 % nr == batch.hctx().index(),
                "sent by the map of before"
            );
            let flying = state.flying.iter().map(VecDeque::len).sum::<usize>();
            match self.kind {
                Kind::Holds1(refusal) if flying > 0 => return refusal,
                Kind::Inline => batch.end(BlkStatus::Ok),
                _ => {
                    let rq = batch.accept();
                    state.flying[batch.hctx().index()].push_back(rq);
                }
            }
            state.issued += 1;
            assert!(state.most.is_none_or(|most| flying < most), "one more than may be at the device");
        }
        QueueRqStatus::Queued
    }

    fn is_silent(&self, state: &State) -> bool {
        matches!(self.kind, Kind::Silent) && state.answers == 0
    }

    /// Sleeps until `submitter` is notified, or one of `hctxs` has a request, or the device has had `issued` requests.
    fn wait_until_told(&self, submitter: SubmitterId, hctxs: &[HctxId], issued: u32) {
        let mut state = self.state.lock().unwrap();
        let bit = 1 << submitter.index();
        // A hardware queue that no longer exists after a rebuild has no request; the submitter is notified for the
        // others.
        let idle = |state: &State, h: HctxId| state.flying.get(h.index()).is_none_or(VecDeque::is_empty);
        while state.told & bit == 0
            && state.issued < issued
            && (self.is_silent(&state) || hctxs.iter().all(|h| idle(&state, *h)))
        {
            state = self.notifications.wait(state).unwrap();
        }
        state.told &= !bit;
    }
}

impl Driver for Device {
    fn name(&self) -> &'static str {
        "list"
    }

    fn limits(&self) -> Limits {
        Limits::default()
    }

    fn capacity(&self) -> Sector {
        Sector(1 << 20)
    }

    fn start(&self, nr_hw_queues: u16, _queue_depth: u32) -> Result<(), String> {
        let mut state = self.state.lock().unwrap();
        assert!(state.flying.iter().all(VecDeque::is_empty), "started anew with requests in flight");
        state.flying = (0..nr_hw_queues).map(|_| VecDeque::new()).collect();
        Ok(())
    }

    fn queue_rqs(&self, batch: &mut RqBatch<'_>, _now: Instant) -> QueueRqStatus {
        let answer = self.take(&mut self.state.lock().unwrap(), batch);
        self.notifications.notify_all();
        answer
    }

    fn timeout(&self, hctx: HctxId, late: TimedOut, done: &mut Completions, _now: Instant) -> TimeoutAnswer {
        let mut state = self.state.lock().unwrap();
        let flying = &mut state.flying[hctx.index()];
        if let Some(at) = flying.iter().position(|rq| rq.tag() == late.tag) {
            done.push(flying.remove(at).expect("found above"), BlkStatus::Ok);
        }
        TimeoutAnswer::Done
    }

    fn poll(&self, hctx: HctxId, done: &mut Completions, _now: Instant) {
        let mut state = self.state.lock().unwrap();
        assert!(!state.shut, "the drained queue was polled");
        while done.room() > 0
            && !self.is_silent(&state)
            && let Some(rq) = state.flying[hctx.index()].pop_front()
        {
            done.push(rq, BlkStatus::Ok);
            state.answers = state.answers.saturating_sub(1);
        }
    }
}

/// Notifies submitters through the device.
struct Notifications(Arc<Device>);

impl Notify for Notifications {
    fn notify(&self, submitter: SubmitterId) {
        self.0.state.lock().unwrap().told |= 1 << submitter.index();
        self.0.notifications.notify_all();
    }
}

/// The smallest settings: no merges, so that each bio is a request, and slots for a handful of bios.
pub fn config(cpus: u16, hctxs: u16, depth: u32, scheduler: &str) -> QueueConfig {
    QueueConfig {
        topology: CpuTopology::uniform(cpus),
        nr_hw_queues: Some(hctxs),
        queue_depth: depth,
        scheduler: Some(scheduler.into()),
        nomerges: 2,
        bios_per_submitter: 4,
        ..QueueConfig::default()
    }
}

/// A disk on `device`.
pub fn disk(device: &Arc<Device>, config: QueueConfig) -> Arc<RequestQueue<Lock>> {
    RequestQueue::new(device.clone(), config, Box::new(Notifications(device.clone()))).expect("good settings")
}

/// A disk on `device` that takes its tags from a set.
pub fn disk_of(set: &Arc<TagSet<Lock>>, device: &Arc<Device>, config: QueueConfig) -> Arc<RequestQueue<Lock>> {
    RequestQueue::with_tag_set(set, device.clone(), config, Box::new(Notifications(device.clone())))
        .expect("good settings")
}

/// One thread: a submitter and its clock.
pub struct Thread {
    /// The submitter.
    pub sub: Submitter<Lock>,
    /// The device at which it sleeps.
    pub device: Arc<Device>,
    /// Its clock.
    pub now: Instant,
    /// What it submits.
    pub bio: fn(Sector) -> Bio,
    submitted: u64,
    done: u64,
}

/// A read that adjoins nothing.
pub fn read(sector: Sector) -> Bio {
    Bio::read(sector, 8, DataRef::NONE)
}

impl Thread {
    /// A submitter on `cpu`, of reads.
    pub fn new(q: &Arc<RequestQueue<Lock>>, device: &Arc<Device>, cpu: u32) -> Thread {
        let sub = q.submitter(CpuId::new(cpu)).expect("a free place");
        Thread { sub, device: device.clone(), now: Instant::from_ns(1), bio: read, submitted: 0, done: 0 }
    }

    /// Submits `n` bios, in one plug if there are several.
    pub fn submit(&mut self, n: u64) {
        let cpu = self.sub.cpu().index() as u64;
        if n > 1 {
            self.sub.start_plug(n as u32);
        }
        for _ in 0..n {
            let sector = Sector(cpu * 1000 + self.submitted * 16);
            self.sub.submit(&(self.bio)(sector), self.now).expect("a free slot");
            self.submitted += 1;
        }
        if n > 1 {
            self.sub.finish_plug(self.now);
        }
    }

    /// Polls once. Returns whether all bios have completed.
    pub fn poll(&mut self) -> bool {
        if cfg!(shuttle) {
            // Many threads that each advance from timer to timer would differ more than real clocks.
            let latest = self.device.clock.fetch_max(self.now.as_ns(), std::sync::atomic::Ordering::Relaxed);
            self.now = self.now.max(Instant::from_ns(latest));
        }
        self.sub.poll(self.now);
        let done = &mut self.done;
        self.sub.reap(|d| {
            assert_eq!(d.status, BlkStatus::Ok);
            *done += 1;
        });
        self.done == self.submitted
    }

    /// Polls and sleeps until all bios have completed and no run is left that is due soon, as every thread must before
    /// it stops polling.
    pub fn finish(&mut self) {
        self.run(None);
    }

    /// As `finish`, but until the device has had `n` requests of all threads; bios of this one need not have completed.
    pub fn run_until_issued(&mut self, n: u32) {
        self.run(Some(n));
    }

    fn run(&mut self, until_issued: Option<u32>) {
        loop {
            let all_done = self.poll();
            self.sub.rest();
            match self.sub.disk().next_timer() {
                Some(at) if at < self.now + SOON => {
                    self.now = self.now.max(at);
                    // The run may stay pending until another thread makes progress.
                    yield_now();
                }
                _ if until_issued.map_or(all_done, |n| self.device.issued() >= n) => return,
                _ => {
                    let hctxs: Vec<HctxId> = self.sub.hctxs().collect();
                    self.device.wait_until_told(self.sub.id(), &hctxs, until_issued.unwrap_or(u32::MAX));
                }
            }
        }
    }
}

/// Checks that the queue is drained at the first check after all threads rest. Otherwise a tag leaked or a submitter is
/// still inside.
pub fn check_drained(q: &RequestQueue<Lock>) {
    q.begin_freeze();
    assert!(q.is_drained(), "a tag is in use or a submitter inside after everything ended");
    q.unfreeze();
}
