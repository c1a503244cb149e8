// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The checker `directio`: a read of the first block, through a second driver for the same path.
//!
//! Guarantees: the checker has a descriptor, connection or session of its own, memory of its own, and tags of a block layer
//! of its own. They are kept from one check to the next. A read that does not complete is never given up, because a driver
//! may still write to its memory: the next check waits for it.

use super::path::Common;
use crate::clock;
use crate::disk::{Disk, Submitter};
use crate::driver::host_driver::HostDriver;
use crate::mem::{BufferPool, Regions};
use blk::bio::{Bio, DataRef};
use blk::id::{CpuId, Sector};
use blk::settings::QueueConfig;
use blk::status::BlkStatus;
use blk::time::{Duration, Instant};
use std::sync::Arc;

/// Longest time that a sleep may delay the end of the path.
const LOOK: Duration = Duration::from_ms(50);
/// Longest wait for a read in flight when its path ends.
const FAREWELL: Duration = Duration::from_secs(1);

/// See the module's text.
pub(super) struct Probe {
    /// Present until the probe is dropped.
    inner: Option<Box<Inner>>,
    is_out: bool,
}

/// Dropped in this order.
struct Inner {
    sub: Submitter,
    disk: Disk,
    _buffers: BufferPool,
    data: DataRef,
    sectors: u32,
}

impl Probe {
    /// Makes a probe from another driver for the path, with data in these regions. Refuses a driver that leads to another disk than
    /// `path`.
    pub(super) fn new(
        driver: Arc<dyn HostDriver>,
        regions: &Arc<Regions>,
        path: &dyn HostDriver,
    ) -> Result<Probe, String> {
        Common::of(path).is_disk_of(driver.as_ref())?;
        let mut config = QueueConfig { queue_depth: 1, ..QueueConfig::default() };
        config.set("scheduler", "none").map_err(|e| e.to_string())?;
        let block = driver.limits().logical_block_size;
        let mut buffers = BufferPool::new(regions, 1, block as usize, false).map_err(|e| e.to_string())?;
        let data = buffers.lend(0);
        let disk = Disk::new(driver, config, None).map_err(|e| e.to_string())?;
        let sub = disk.queue.submitter(CpuId::new(0)).ok_or("no submitter is left")?;
        let inner = Inner { sub, disk, _buffers: buffers, data, sectors: block >> 9 };
        Ok(Probe { inner: Some(Box::new(inner)), is_out: false })
    }

    /// Whether a read is still in flight.
    pub(super) fn is_out(&self) -> bool {
        self.is_out
    }

    /// Reads the first block, or waits for the read in flight, until `is_over`.
    pub(super) fn read(&mut self, limit: Duration, is_over: impl Fn() -> bool) -> Result<(), String> {
        let began = clock::now();
        if !self.is_out {
            let Inner { sub, data, sectors, .. } = self.inner();
            sub.submit(&Bio::read(Sector(0), *sectors, *data), began).map_err(|e| format!("{e:?}"))?;
            self.is_out = true;
        }
        match self.wait(began + limit, is_over) {
            Some(BlkStatus::Ok) => Ok(()),
            Some(status) => Err(format!("a read of its first block failed: {status:?}")),
            None => Err(format!("a read of its first block takes longer than {} s", limit.as_ns() / 1_000_000_000)),
        }
    }

    fn inner(&mut self) -> &mut Inner {
        self.inner.as_mut().expect("there until it is dropped")
    }

    fn wait(&mut self, until: Instant, is_over: impl Fn() -> bool) -> Option<BlkStatus> {
        let Inner { sub, disk, .. } = self.inner();
        let mut status = None;
        while clock::now() < until && !is_over() {
            sub.poll(clock::now());
            sub.reap(|done| status = Some(done.status));
            if status.is_some() {
                break;
            }
            for hctx in sub.hctxs().collect::<Vec<_>>() {
                disk.driver.wait(hctx, 1, Some(LOOK));
            }
        }
        // No thread polls until the next check.
        sub.rest();
        self.is_out = status.is_none();
        status
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if self.is_out {
            self.inner().disk.driver.path().set_give_up(true);
            self.wait(clock::now() + FAREWELL, || false);
        }
        if self.is_out {
            // The driver may still write to the memory, so the memory is never freed.
            std::mem::forget(self.inner.take());
        }
    }
}
