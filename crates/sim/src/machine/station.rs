// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests while a device works on them: when each completes, and when the machine has to poll.
//!
//! Guarantees: completions are returned at or after their times, in the order of times. Each non-empty hardware queue has
//! announced the time of its first completion. A request costs the running CPU time as the path's costs say.

use super::costs::PathCosts;
use super::kernel::driver::DriverLocks;
use super::meter;
use super::service::{Job, Service};
use blk::bio::Op;
use blk::time::Instant;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, Ordering};

/// How a machine learns when to poll a device.
pub trait Interrupts: Send + Sync {
    /// Calls `f` with each hardware queue that is to be checked, and when.
    fn take_news(&self, f: &mut dyn FnMut(u16, u64));

    /// Whether a poll that was announced for `at` is still due. If so, that poll then counts as done.
    fn is_wanted(&self, hctx: u16, at: u64) -> bool;

    /// Announces the next poll after a poll, if requests are still in flight.
    fn rearm(&self, hctx: u16);

    /// Returns when the first request of a hardware queue completes, on a device without interrupts.
    fn next_due(&self, _hctx: u16) -> Option<u64> {
        None
    }

    /// Where requests spent their time so far.
    fn seen(&self) -> OpTimes;
}

/// Where requests of one kind spent their time, sums in nanoseconds, and where they went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Requests.
    pub requests: u64,
    /// From the request's creation, with a tag, to the device.
    pub before_ns: u64,
    /// At the device.
    pub device_ns: u64,
    /// From completion at the device until collection.
    pub back_ns: u64,
    /// The requests that reached the device.
    pub sent: Sums,
}

/// Requests with data that reached a device, sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sums {
    /// Requests.
    pub requests: u64,
    /// Their sectors.
    pub sectors: u64,
    /// Sectors between the end of the request before and the beginning of each.
    pub distance: u64,
}

impl Sums {
    /// Adds the requests of `other`.
    pub fn add(&mut self, other: &Sums) {
        self.requests += other.requests;
        self.sectors += other.sectors;
        self.distance += other.distance;
    }
}

/// [`Spent`] for each operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpTimes([Spent; Op::COUNT]);

impl OpTimes {
    /// Times of one operation.
    pub fn of(&self, op: Op) -> &Spent {
        &self.0[op as usize]
    }

    /// Adds `other` to these sums.
    pub fn add(&mut self, other: &OpTimes) {
        for (a, b) in self.0.iter_mut().zip(&other.0) {
            a.requests += b.requests;
            a.before_ns += b.before_ns;
            a.device_ns += b.device_ns;
            a.back_ns += b.back_ns;
            a.sent.add(&b.sent);
        }
    }
}

/// A request in flight.
struct Outstanding<T> {
    request: T,
    op: Op,
    begun_ns: u64,
}

/// Requests of one hardware queue.
struct Hctx<T> {
    /// Completion time and tag of each request.
    due: BinaryHeap<Reverse<(u64, u32)>>,
    requests: Vec<Option<Outstanding<T>>>,
    /// When the machine will poll next; `u64::MAX`: not at all.
    armed: u64,
    /// Without interrupts: a new request completes before all earlier ones.
    is_ahead: bool,
}

struct Inner<T> {
    service: Box<dyn Service>,
    hctxs: Vec<Hctx<T>>,
    locks: DriverLocks,
    /// Hardware queues that have to be polled earlier than announced.
    news: Vec<(u16, u64)>,
    /// Requests that the device has queued and not chosen yet.
    undecided: u32,
    /// The sector behind the last request.
    end: u64,
    seen: OpTimes,
}

/// See the module's text. `T` is the duty to complete a request.
pub struct Station<T> {
    path: PathCosts,
    /// There are no interrupts: a waiting thread polls by itself.
    is_polled: bool,
    /// Whether the machine has news to take. It checks after each piece of work, and mostly there are none.
    has_news: AtomicBool,
    inner: Mutex<Inner<T>>,
}

/// One hardware queue of a [`Station`], for several requests in a row.
pub struct Queue<'a, T> {
    station: &'a Station<T>,
    hctx: usize,
    inner: MutexGuard<'a, Inner<T>>,
}

impl<T> Station<T> {
    /// Makes an empty station for a device with the times of `service`.
    pub fn new(path: PathCosts, service: Box<dyn Service>) -> Station<T> {
        Station::with_locks(path, service, DriverLocks::default())
    }

    /// The same for a driver with locks.
    pub fn with_locks(path: PathCosts, service: Box<dyn Service>, locks: DriverLocks) -> Station<T> {
        Station {
            path,
            is_polled: false,
            has_news: AtomicBool::new(false),
            inner: Mutex::new(Inner {
                service,
                hctxs: Vec::new(),
                locks,
                news: Vec::new(),
                undecided: 0,
                end: 0,
                seen: OpTimes::default(),
            }),
        }
    }

    /// The same for a device without interrupts: it announces only a request that completes before all earlier ones.
    pub fn polled(path: PathCosts, service: Box<dyn Service>) -> Station<T> {
        Station { is_polled: true, ..Station::new(path, service) }
    }

    /// Restarts with this many hardware queues. Panics when a request is in flight.
    pub fn start(&self, nr_hw_queues: u16, queue_depth: u32) {
        let hctx = || Hctx {
            due: BinaryHeap::with_capacity(queue_depth as usize),
            requests: (0..queue_depth).map(|_| None).collect(),
            armed: u64::MAX,
            is_ahead: false,
        };
        let mut inner = self.inner.lock();
        assert!(inner.hctxs.iter().all(|h| h.due.is_empty()), "started with requests out");
        inner.hctxs = (0..nr_hw_queues).map(|_| hctx()).collect();
        inner.locks.start(nr_hw_queues.into());
    }

    /// Locks the station for one hardware queue, until the result is dropped.
    #[inline]
    pub fn queue(&self, hctx: usize) -> Queue<'_, T> {
        Queue { station: self, hctx, inner: self.inner.lock() }
    }

    /// Whether the machine has news to take.
    #[inline]
    fn tell(&self, inner: &Inner<T>) {
        // Only a hint: the lock guards the news themselves.
        self.has_news.store(!inner.news.is_empty(), Ordering::Relaxed);
    }
}

impl<T> Queue<'_, T> {
    /// Starts a request of the running CPU; the request was created at `made`.
    #[inline]
    pub fn begin(&mut self, job: &Job, made: Instant, request: T) {
        meter::charge(self.station.path.dispatch_ns);
        let (hctx, inner) = (self.hctx, &mut *self.inner);
        inner.locks.submitted(hctx);
        let begun_ns = meter::now();
        inner.learn(begun_ns);
        let seen = &mut inner.seen.0[job.op as usize];
        seen.before_ns += begun_ns.saturating_sub(made.as_ns());
        if job.op.has_data() {
            let distance = job.sector.abs_diff(inner.end);
            seen.sent.add(&Sums { requests: 1, sectors: job.nr_sectors.into(), distance });
            inner.end = job.sector + u64::from(job.nr_sectors);
        }
        let slot = &mut inner.hctxs[hctx].requests[job.tag as usize];
        assert!(slot.is_none(), "tag {} of hctx {hctx} is with the device already", job.tag);
        *slot = Some(Outstanding { request, op: job.op, begun_ns });
        match inner.service.done_at(job, Instant::from_ns(begun_ns)) {
            Some(at) => inner.decided(job, begun_ns, at.as_ns()),
            None => {
                inner.undecided += 1;
                inner.await_choice();
            }
        }
    }

    /// Issues and completes a request that takes no time.
    pub fn end_at_once(&mut self, op: Op, made: Instant) {
        let path = &self.station.path;
        meter::charge(path.dispatch_ns + path.complete_ns);
        let seen = &mut self.inner.seen.0[op as usize];
        seen.before_ns += meter::now().saturating_sub(made.as_ns());
        seen.requests += 1;
    }

    /// Rings the doorbell after all requests of a batch have begun.
    #[inline]
    pub fn ring(mut self) {
        self.inner.locks.rings(self.hctx);
        meter::charge(self.station.path.doorbell_ns);
        let (hctx, inner) = (self.hctx, &mut *self.inner);
        if !self.station.is_polled {
            inner.arm(hctx);
        } else if std::mem::take(&mut inner.hctxs[hctx].is_ahead) {
            let now = meter::now();
            inner.news.push((hctx as u16, now));
            meter::expect(now);
        }
        self.station.tell(inner);
    }

    /// Takes the next request that has completed by now.
    #[inline]
    pub fn end_one(&mut self) -> Option<T> {
        let inner = &mut *self.inner;
        let now = meter::now();
        if inner.learn(now) {
            self.station.tell(inner);
        }
        let h = &mut inner.hctxs[self.hctx];
        let Reverse((at, tag)) = *h.due.peek()?;
        if at > now {
            return None;
        }
        h.due.pop();
        inner.locks.completed(self.hctx);
        meter::charge(self.station.path.complete_ns);
        let Outstanding { request, op, .. } = h.requests[tag as usize].take().expect("what is due is out");
        let seen = &mut inner.seen.0[op as usize];
        seen.requests += 1;
        seen.back_ns += now - at;
        Some(request)
    }
}

impl<T> Inner<T> {
    /// Takes note of when a request completes that began at `begun_ns`.
    #[inline]
    fn decided(&mut self, job: &Job, begun_ns: u64, at: u64) {
        let h = &mut self.hctxs[usize::from(job.hctx)];
        self.seen.0[job.op as usize].device_ns += at - begun_ns;
        h.is_ahead |= h.due.peek().is_none_or(|Reverse((first, _))| at < *first);
        h.due.push(Reverse((at, job.tag)));
    }

    /// Learns what the device has chosen by now. Returns whether there is news.
    #[inline]
    fn learn(&mut self, now: u64) -> bool {
        if self.undecided == 0 {
            return false;
        }
        while let Some((job, at)) = self.service.chosen(Instant::from_ns(now)) {
            self.undecided -= 1;
            let request = self.hctxs[usize::from(job.hctx)].requests[job.tag as usize].as_ref();
            let begun_ns = request.expect("it is with the device").begun_ns;
            self.decided(&job, begun_ns, at.as_ns());
            self.arm(usize::from(job.hctx));
        }
        self.await_choice();
        true
    }

    /// Announces the time at which the device chooses next.
    fn await_choice(&mut self) {
        if let Some((hctx, at)) = self.service.next_choice() {
            self.arm_at(usize::from(hctx), at.as_ns());
        }
    }

    fn arm(&mut self, hctx: usize) {
        if let Some(Reverse((at, _))) = self.hctxs[hctx].due.peek() {
            self.arm_at(hctx, *at);
        }
    }

    fn arm_at(&mut self, hctx: usize, at: u64) {
        let h = &mut self.hctxs[hctx];
        if at < h.armed {
            h.armed = at;
            self.news.push((hctx as u16, at));
            meter::expect(at);
        }
    }
}

impl<T: Send> Interrupts for Station<T> {
    #[inline]
    fn take_news(&self, f: &mut dyn FnMut(u16, u64)) {
        if !self.has_news.load(Ordering::Relaxed) {
            return;
        }
        let mut inner = self.inner.lock();
        inner.news.drain(..).for_each(|(hctx, at)| f(hctx, at));
        self.tell(&inner);
    }

    #[inline]
    fn is_wanted(&self, hctx: u16, at: u64) -> bool {
        let mut inner = self.inner.lock();
        let h = &mut inner.hctxs[usize::from(hctx)];
        let is = h.armed == at;
        if is {
            h.armed = u64::MAX;
        }
        is
    }

    #[inline]
    fn rearm(&self, hctx: u16) {
        debug_assert!(!self.is_polled, "there are no interrupts");
        let mut inner = self.inner.lock();
        inner.arm(usize::from(hctx));
        self.tell(&inner);
    }

    fn next_due(&self, hctx: u16) -> Option<u64> {
        self.inner.lock().hctxs[usize::from(hctx)].due.peek().map(|Reverse((at, _))| *at)
    }

    fn seen(&self) -> OpTimes {
        self.inner.lock().seen
    }
}
