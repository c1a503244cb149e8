// SPDX-License-Identifier: Apache-2.0 OR MIT
//! null_blk as a driver: it takes what it has tags for and finishes each request a fixed time later.
//!
//! Guarantees: completions are reported in the order in which they became due, each on the hctx it was issued on.
//! Requests finished by [`NullDisk::finish`] complete in the order of these calls. The driver accepts every request, as
//! null_blk's queue_rq does. It has no data. Source: drivers/block/null_blk/main.c of Linux 6.12 (`irqmode=2`: a timer
//! per request).

use crate::event::Extent;
use crate::settings::Settings;
use blk::bio::Op;
use blk::driver::{Completions, Driver, InFlight, RqBatch};
use blk::id::{HctxId, Sector};
use blk::limits::Limits;
use blk::status::{BlkStatus, QueueRqStatus};
use blk::time::Instant;
use parking_lot::Mutex;
use std::sync::Arc;

struct Pending {
    rq: InFlight,
    extent: Extent,
    /// Nanoseconds; `None`: the request is done when [`NullDisk::finish`] says so.
    due: Option<u64>,
    /// Sequence number of the call of [`NullDisk::finish`] that finished it.
    told: Option<u64>,
}

struct Inner {
    pending: Vec<Vec<Pending>>,
    told: u64,
}

/// The disk. See the module's text.
pub struct NullDisk {
    limits: Limits,
    sectors: u64,
    /// `None`: requests are done when [`NullDisk::finish`] says so.
    service_ns: Option<u64>,
    inner: Mutex<Inner>,
}

impl NullDisk {
    /// Makes a disk that takes `service_ns` for each request; with `None`, until [`NullDisk::finish`] says so.
    pub fn new(settings: &Settings, service_ns: Option<u64>) -> Arc<NullDisk> {
        let inner = Mutex::new(Inner { pending: Vec::new(), told: 0 });
        Arc::new(NullDisk { limits: settings.limits(), sectors: settings.disk.sectors, service_ns, inner })
    }

    /// Finishes the oldest request of this extent. Returns false if none is in flight.
    pub fn finish(&self, extent: Extent) -> bool {
        let mut inner = self.inner.lock();
        let told = inner.told;
        let found = inner.pending.iter_mut().flatten().find(|p| p.told.is_none() && p.extent == extent);
        let Some(p) = found else { return false };
        p.told = Some(told);
        inner.told += 1;
        true
    }

    /// Finishes the first unfinished request, in order of hardware queue and then of issue. Returns false if there is
    /// none.
    pub fn finish_oldest(&self) -> bool {
        let oldest = self.inner.lock().pending.iter().flatten().find(|p| p.told.is_none()).map(|p| p.extent);
        oldest.is_some_and(|extent| self.finish(extent))
    }

    /// Finishes all requests in flight. Returns how many these were.
    pub fn finish_all(&self) -> usize {
        let extents: Vec<Extent> = self.inner.lock().pending.iter().flatten().map(|p| p.extent).collect();
        extents.into_iter().filter(|e| self.finish(*e)).count()
    }

    /// Number of requests in flight.
    pub fn in_flight(&self) -> usize {
        self.inner.lock().pending.iter().map(Vec::len).sum()
    }

    /// Returns when the next request is done by itself, in nanoseconds.
    pub fn next_due(&self) -> Option<u64> {
        self.inner.lock().pending.iter().flatten().filter_map(|p| p.due).min()
    }
}

impl Driver for NullDisk {
    fn name(&self) -> &'static str {
        "null_blk"
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn capacity(&self) -> Sector {
        Sector(self.sectors)
    }

    fn start(&self, nr_hw_queues: u16, _queue_depth: u32) -> Result<(), String> {
        self.inner.lock().pending = (0..nr_hw_queues).map(|_| Vec::new()).collect();
        Ok(())
    }

    fn queue_rqs(&self, batch: &mut RqBatch<'_>, now: Instant) -> QueueRqStatus {
        let mut inner = self.inner.lock();
        let list = &mut inner.pending[batch.hctx().index()];
        while let Some(rq) = batch.front() {
            let extent = Extent { write: rq.op() == Op::Write, sector: rq.sector().0, len: rq.nr_sectors() };
            let due = self.service_ns.map(|ns| now.as_ns() + ns);
            list.push(Pending { rq: batch.accept(), extent, due, told: None });
        }
        QueueRqStatus::Queued
    }

    fn poll(&self, hctx: HctxId, done: &mut Completions, now: Instant) {
        let mut inner = self.inner.lock();
        let list = &mut inner.pending[hctx.index()];
        while done.room() > 0 {
            let is_done = |p: &&Pending| p.told.is_some() || p.due.is_some_and(|due| due <= now.as_ns());
            // Requests with a due time were issued in the order of the list.
            let Some(first) = list.iter().filter(is_done).map(|p| p.told.or(p.due)).min() else { return };
            let at = list.iter().position(|p| is_done(&p) && p.told.or(p.due) == first).expect("found above");
            done.push(list.remove(at).rq, BlkStatus::Ok);
        }
    }
}
