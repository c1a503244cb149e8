// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A simulated device as a driver of the block layer, such as flash or virtio. Each hardware queue has its own device queue.

use super::costs::PathCosts;
use super::kernel::driver::{DriverKind, DriverLocks};
use super::service::{Job, Service};
use super::station::Station;
use blk::driver::{Completions, Driver, InFlight, RqBatch};
use blk::id::{HctxId, Sector};
use blk::limits::Limits;
use blk::status::{BlkStatus, QueueRqStatus};
use blk::time::Instant;
use std::sync::Arc;

/// What a device is, apart from its speed.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSpec {
    /// Size in sectors.
    pub sectors: u64,
    /// Limits and features.
    pub limits: Limits,
}

/// See the module's text.
pub(crate) struct SimDevice {
    spec: DeviceSpec,
    station: Arc<Station<InFlight>>,
    /// A request completes while it is being issued.
    ends_at_once: bool,
}

impl SimDevice {
    /// A device with interrupts whose service times come from `service`, with the locks of its driver. null_blk has no
    /// interrupts, and its service times do not count.
    pub fn new(spec: DeviceSpec, path: PathCosts, service: Box<dyn Service>, driver: DriverKind) -> SimDevice {
        let station = Arc::new(Station::with_locks(path, service, DriverLocks::of(driver)));
        SimDevice { spec, station, ends_at_once: driver == DriverKind::NullBlk }
    }

    /// The same without interrupts: a waiting thread sleeps until something may be done, and collects it.
    pub fn polled(spec: DeviceSpec, path: PathCosts, service: Box<dyn Service>) -> SimDevice {
        SimDevice { spec, station: Arc::new(Station::polled(path, service)), ends_at_once: false }
    }

    /// The station of this device, which the machine polls.
    pub fn station(&self) -> Arc<Station<InFlight>> {
        self.station.clone()
    }
}

impl Driver for SimDevice {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn limits(&self) -> Limits {
        self.spec.limits
    }

    fn capacity(&self) -> Sector {
        Sector(self.spec.sectors)
    }

    fn start(&self, nr_hw_queues: u16, queue_depth: u32) -> Result<(), String> {
        self.station.start(nr_hw_queues, queue_depth);
        Ok(())
    }

    fn queue_rqs(&self, batch: &mut RqBatch<'_>, _now: Instant) -> QueueRqStatus {
        let hctx = batch.hctx().index();
        let mut queue = self.station.queue(hctx);
        while let Some(rq) = batch.front() {
            if self.ends_at_once {
                queue.end_at_once(rq.op(), rq.made());
                batch.end(BlkStatus::Ok);
                continue;
            }
            let (sector, nr_sectors, tag) = (rq.sector().0, rq.nr_sectors(), rq.tag().index());
            let job = Job { hctx: hctx as u16, tag: tag as u32, op: rq.op(), sector, nr_sectors };
            queue.begin(&job, rq.made(), batch.accept());
        }
        queue.ring();
        QueueRqStatus::Queued
    }

    fn poll(&self, hctx: HctxId, done: &mut Completions, _now: Instant) {
        let mut queue = self.station.queue(hctx.index());
        while done.room() > 0
            && let Some(rq) = queue.end_one()
        {
            done.push(rq, BlkStatus::Ok);
        }
    }
}
