// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `ram`: a disk in memory, with real data.
//!
//! Synopsis: `ram[:size=1g,blocksize=512]`
//! Options: `size` of the disk; `blocksize`, its logical block size, 512..=4096.
//! Example: `ram:size=4g`
//! Limits: a request is executed when it is issued, by the issuing thread, and complete when polled for. Memory is allocated page by page
//! on the first write and freed by discard; a range that was never written or was discarded reads as zeroes. Requests that overlap while
//! both are in flight may mix, as on any disk. The data is gone with the driver.
//! Since: 0.1.

use crate::driver::host_driver::HostDriver;
use crate::driver::options::{self, BLOCKSIZE_RANGE, OptionDef, SIZE_RANGE, blocksize, disk_size, set};
use crate::driver::per_hctx::PerHctx;
use crate::driver::target::{DriverTarget, Needs, OpenTarget};
use crate::error::Result;
use crate::mem::{Region, Regions};
use blk::bio::Op;
use blk::driver::{Completions, Driver, InFlight, RqBatch, RqRef};
use blk::id::{HctxId, SECTOR_SHIFT, SECTOR_SIZE, Sector};
use blk::limits::Limits;
use blk::status::{BlkStatus, QueueRqStatus};
use blk::time::Instant;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Options of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RamOptions {
    /// Size in bytes; rounded down to whole blocks.
    pub size_bytes: u64,
    /// Logical block size in bytes; a power of two, 512..=4096.
    pub blocksize: u32,
}

impl Default for RamOptions {
    fn default() -> Self {
        RamOptions { size_bytes: 1 << 30, blocksize: 512 }
    }
}

/// The storage on which `ram`, and `model` in front of it, execute requests.
pub(crate) struct RamDisk {
    disk: Region,
    options: RamOptions,
    regions: Arc<Regions>,
}

impl RamDisk {
    pub(crate) fn new(options: RamOptions, regions: Arc<Regions>) -> Result<RamDisk> {
        let disk = Region::new(options.size_bytes.try_into().unwrap_or(usize::MAX), false)
            .map_err(|e| e.within("ram disk (option size)"))?;
        Ok(RamDisk { disk, options, regions })
    }

    pub(crate) fn capacity(&self) -> Sector {
        let block = u64::from(self.options.blocksize);
        Sector((self.options.size_bytes / block * block) >> SECTOR_SHIFT)
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            logical_block_size: self.options.blocksize,
            physical_block_size: self.options.blocksize.max(4096),
            max_segment_size: u32::MAX,
            max_discard_sectors: u32::MAX >> SECTOR_SHIFT,
            max_write_zeroes_sectors: u32::MAX >> SECTOR_SHIFT,
            takes_bytes: self.options.blocksize == SECTOR_SIZE,
            ..Limits::with_max_hw_sectors(u32::MAX >> SECTOR_SHIFT)
        }
    }

    /// Executes a request at once.
    pub(crate) fn execute(&self, rq: &RqRef<'_>) -> BlkStatus {
        let Range { start: offset, end } = rq.bytes();
        let len = (end - offset) as usize;
        if rq.sector().0 + u64::from(rq.nr_sectors()) > self.capacity().0 {
            return BlkStatus::IoErr;
        }
        let result = match rq.op() {
            Op::Flush => Ok(()),
            Op::Discard | Op::WriteZeroes => self.disk.discard(offset, len),
            Op::Read | Op::Write => self.transfer(rq, offset, len),
        };
        result.err().unwrap_or(BlkStatus::Ok)
    }

    fn transfer(&self, rq: &RqRef<'_>, offset: u64, len: usize) -> std::result::Result<(), BlkStatus> {
        let mut disk = self.disk.span(offset, len)?;
        for segment in rq.segments() {
            let memory = self.regions.resolve(segment.data, segment.len_bytes as usize)?;
            let here = disk.part(0, memory.len());
            disk = disk.part(memory.len(), disk.len() - memory.len());
            if rq.op() == Op::Read { here.copy_to(memory) } else { memory.copy_to(here) }
        }
        assert!(disk.is_empty(), "a request's segments are shorter than the request");
        Ok(())
    }
}

/// The RAM driver: a disk in memory.
pub struct Ram {
    disk: RamDisk,
    hctxs: PerHctx<Mutex<VecDeque<(InFlight, BlkStatus)>>>,
}

impl Ram {
    /// Makes a disk as `options` say. The data of requests is in `regions`.
    pub fn new(options: RamOptions, regions: Arc<Regions>) -> Result<Ram> {
        Ok(Ram { disk: RamDisk::new(options, regions)?, hctxs: PerHctx::new() })
    }
}

impl Driver for Ram {
    fn name(&self) -> &'static str {
        "ram"
    }

    fn limits(&self) -> Limits {
        self.disk.limits()
    }

    fn capacity(&self) -> Sector {
        self.disk.capacity()
    }

    fn start(&self, nr_hw_queues: u16, queue_depth: u32) -> std::result::Result<(), String> {
        for i in 0..nr_hw_queues {
            let mut finished = self.hctxs.get_or_init(i, Mutex::default).lock();
            assert!(finished.is_empty(), "hctx {i} restarted with requests in flight");
            finished.reserve(queue_depth as usize);
        }
        Ok(())
    }

    fn queue_rqs(&self, batch: &mut RqBatch<'_>, _now: Instant) -> QueueRqStatus {
        let finished = self.hctxs.get(batch.hctx());
        while let Some(rq) = batch.front() {
            let status = self.disk.execute(&rq);
            // The lock is not held while data is copied: another thread may poll or issue meanwhile.
            finished.lock().push_back((batch.accept(), status));
        }
        QueueRqStatus::Queued
    }

    fn poll(&self, hctx: HctxId, done: &mut Completions, _now: Instant) {
        let mut finished = self.hctxs.get(hctx).lock();
        let n = finished.len().min(done.room());
        finished.drain(..n).for_each(|(rq, status)| done.push(rq, status));
    }
}

impl HostDriver for Ram {}

pub(super) const OPTIONS: &[OptionDef<RamOptions>] = &[
    OptionDef { name: "size", range: SIZE_RANGE, set: |o, v| set(&mut o.size_bytes, disk_size(v)) },
    OptionDef { name: "blocksize", range: BLOCKSIZE_RANGE, set: |o, v| set(&mut o.blocksize, blocksize(v)) },
];

impl DriverTarget for RamOptions {
    const KIND: &'static str = "ram";
    const HELP: &'static str = "
  ram[:OPTIONS]        keeps data in memory; size, blocksize";
    const IS_WORD: bool = true;

    fn parse(_text: &str, rest: &str) -> Result<RamOptions> {
        options::read(Self::KIND, rest, OPTIONS)
    }

    fn open(&self, _needs: &Needs, regions: Arc<Regions>) -> Result<OpenTarget> {
        Ok(OpenTarget::plain(Ram::new(*self, regions)?))
    }

    fn is_same_data(&self, _other: &Self) -> bool {
        false
    }

    fn size_bytes(&self) -> Option<u64> {
        Some(self.size_bytes)
    }

    fn is_private(&self) -> bool {
        true
    }

    fn is_memory(&self) -> bool {
        true
    }
}
