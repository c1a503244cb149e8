// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A simulated device as a driver of the block layer: takes requests, asks the [`Service`] how long they take, and has them
//! ready when that time has come.
//!
//! Guarantees: a request is seen by the first poll at or after its time, in the order of times. Each request and each doorbell
//! costs the CPU that runs what the path's costs say. Does not do: data.

use super::costs::PathCosts;
use super::meter;
use super::service::{Job, Service};
use blk::driver::{Completions, Driver, InFlight, RqBatch};
use blk::id::{HctxId, Sector};
use blk::limits::Limits;
use blk::status::{BlkStatus, QueueRqStatus};
use blk::time::Instant;
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What a device is, apart from its speed.
#[derive(Clone, Debug)]
pub struct DeviceSpec {
    /// Size.
    pub sectors: u64,
    /// Limits and features.
    pub limits: Limits,
}

/// Requests of one hardware queue.
#[derive(Default)]
struct Hctx {
    /// When each is done, and where it is.
    due: BinaryHeap<Reverse<(u64, u32)>>,
    requests: Vec<Option<InFlight>>,
    /// When the machine will look; `u64::MAX`: not at all.
    armed: u64,
}

struct Inner {
    service: Box<dyn Service>,
    hctxs: Vec<Hctx>,
    /// Hardware queues that are to be looked at earlier than was said before.
    news: Vec<(u16, u64)>,
    /// Requests given back so far.
    completed: u64,
}

/// See the module's text.
pub struct SimDevice {
    spec: DeviceSpec,
    path: PathCosts,
    inner: Mutex<Inner>,
}

impl SimDevice {
    /// A device that takes the time `service` says.
    pub fn new(spec: DeviceSpec, path: PathCosts, service: Box<dyn Service>) -> SimDevice {
        let inner = Inner { service, hctxs: Vec::new(), news: Vec::new(), completed: 0 };
        SimDevice { spec, path, inner: Mutex::new(inner) }
    }

    /// Calls `f` with each hardware queue that is to be looked at, and when.
    #[inline]
    pub fn take_news(&self, f: impl FnMut((u16, u64))) {
        self.inner.lock().news.drain(..).for_each(f);
    }

    /// Whether a look that was announced for `at` is still to be made; it counts as made then.
    #[inline]
    pub fn is_wanted(&self, hctx: u16, at: u64) -> bool {
        let mut inner = self.inner.lock();
        let h = &mut inner.hctxs[usize::from(hctx)];
        let is = h.armed == at;
        if is {
            h.armed = u64::MAX;
        }
        is
    }

    /// After a look: announces the next one, if something is still out.
    #[inline]
    pub fn rearm(&self, hctx: u16) {
        self.inner.lock().arm(hctx);
    }

    /// Requests given back so far.
    #[inline]
    pub fn completed(&self) -> u64 {
        self.inner.lock().completed
    }
}

impl Inner {
    fn arm(&mut self, hctx: u16) {
        let h = &mut self.hctxs[usize::from(hctx)];
        if let Some(Reverse((at, _))) = h.due.peek()
            && *at < h.armed
        {
            h.armed = *at;
            self.news.push((hctx, *at));
            meter::expect(*at);
        }
    }
}

impl Driver for SimDevice {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn limits(&self) -> Limits {
        self.spec.limits.clone()
    }

    fn capacity(&self) -> Sector {
        Sector(self.spec.sectors)
    }

    fn start(&self, nr_hw_queues: u16, queue_depth: u32) -> Result<(), String> {
        let hctx = || Hctx {
            due: BinaryHeap::with_capacity(queue_depth as usize),
            requests: (0..queue_depth).map(|_| None).collect(),
            armed: u64::MAX,
        };
        self.inner.lock().hctxs = (0..nr_hw_queues).map(|_| hctx()).collect();
        Ok(())
    }

    fn queue_rqs(&self, batch: &mut RqBatch<'_>, _now: Instant) -> QueueRqStatus {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let hctx = batch.hctx().index() as u16;
        while let Some(rq) = batch.front() {
            meter::charge(self.path.dispatch_ns);
            let job = Job { op: rq.op(), sector: rq.sector().0, nr_sectors: rq.nr_sectors() };
            let at = inner.service.done_at(&job, Instant::from_ns(meter::now()));
            let h = &mut inner.hctxs[usize::from(hctx)];
            let tag = rq.tag().index();
            h.requests[tag] = Some(batch.accept());
            h.due.push(Reverse((at.as_ns(), tag as u32)));
        }
        meter::charge(self.path.doorbell_ns);
        inner.arm(hctx);
        QueueRqStatus::Queued
    }

    fn poll(&self, hctx: HctxId, done: &mut Completions, _now: Instant) {
        let now = meter::now();
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let h = &mut inner.hctxs[hctx.index()];
        while done.room() > 0
            && let Some(Reverse((at, tag))) = h.due.peek().copied()
            && at <= now
        {
            h.due.pop();
            let rq = h.requests[tag as usize].take().expect("a request that is due is out");
            inner.completed += 1;
            meter::charge(self.path.complete_ns);
            done.push(rq, BlkStatus::Ok);
        }
    }
}
