// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `null`: a disk that completes everything and keeps nothing; the template for new drivers.
//!
//! Synopsis: `null[:size=250g,blocksize=512,completion_nsec=0]`
//! Options: `size` of the disk; `blocksize`, its logical block size, 512..=4096; `completion_nsec`, 0 = a request is
//! complete when it is issued (null_blk's `irqmode=0`), otherwise not before this long after its issue (`irqmode=2`).
//! Example: `null:size=16g,completion_nsec=10000`
//! Limits: data is neither read nor written: reads leave the buffer as it is. Completions come in order of issue.
//! Source: the options of Documentation/block/null_blk.rst; there `completion_nsec` is 10000 unless set.
//! Since: 0.1.

use crate::driver::host_driver::HostDriver;
use crate::driver::options::{self, BLOCKSIZE_RANGE, OptionDef, SIZE_RANGE, blocksize, disk_size, set, within};
use crate::driver::per_hctx::PerHctx;
use crate::driver::sleeper::Sleeper;
use crate::driver::space::{Allocation, Space};
use crate::driver::target::{DriverTarget, Needs, OpenTarget};
use crate::error;
use crate::mem::Regions;
use crate::spin::SpinMutex;
use blk::driver::{Completions, Driver, InFlight, RqBatch};
use blk::id::{HctxId, SECTOR_SHIFT, SECTOR_SIZE, Sector};
use blk::limits::Limits;
use blk::status::{BlkStatus, QueueRqStatus};
use blk::time::{Duration, Instant};
use std::collections::VecDeque;
use std::sync::Arc;

/// Options of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NullOptions {
    /// Size in bytes; rounded down to whole blocks.
    pub size_bytes: u64,
    /// Logical block size in bytes; a power of two, 512..=4096.
    pub blocksize: u32,
    /// Minimum time between issue and completion of a request; zero = it completes when it is issued.
    pub completion: Duration,
}

impl Default for NullOptions {
    fn default() -> Self {
        NullOptions { size_bytes: 250 << 30, blocksize: 512, completion: Duration::ZERO }
    }
}

/// The driver.
pub struct Null {
    options: NullOptions,
    hctxs: PerHctx<Hctx>,
}

#[derive(Default)]
struct Hctx {
    ring: SpinMutex<Ring>,
    sleeper: Sleeper,
}

/// Requests in order of issue. Bounded by the number of tags, so nothing here grows after `start`.
#[derive(Default)]
struct Ring {
    rqs: VecDeque<InFlight>,
    /// Requests at the front of `rqs` that are due.
    due: usize,
    /// For the requests after those: when, and how many of them, become due. One entry per batch.
    timed: VecDeque<(Instant, usize)>,
}

impl Ring {
    /// Updates `due`.
    fn count_due(&mut self, now: Instant) {
        while let Some((_, n)) = self.timed.pop_front_if(|(due, _)| *due <= now) {
            self.due += n;
        }
    }
}

impl Null {
    /// Makes a disk as `options` say.
    pub fn new(options: NullOptions) -> Null {
        Null { options, hctxs: PerHctx::new() }
    }
}

impl Driver for Null {
    fn name(&self) -> &'static str {
        "null"
    }

    fn limits(&self) -> Limits {
        Limits {
            logical_block_size: self.options.blocksize,
            physical_block_size: self.options.blocksize,
            max_segment_size: u32::MAX,
            max_discard_sectors: u32::MAX >> SECTOR_SHIFT,
            max_write_zeroes_sectors: u32::MAX >> SECTOR_SHIFT,
            takes_bytes: self.options.blocksize == SECTOR_SIZE,
            ..Limits::with_max_hw_sectors(u32::MAX >> SECTOR_SHIFT)
        }
    }

    fn capacity(&self) -> Sector {
        let block = u64::from(self.options.blocksize);
        Sector((self.options.size_bytes / block * block) >> SECTOR_SHIFT)
    }

    fn start(&self, nr_hw_queues: u16, queue_depth: u32) -> Result<(), String> {
        for i in 0..nr_hw_queues {
            let mut ring = self.hctxs.get_or_init(i, Hctx::default).ring.lock();
            assert!(ring.rqs.is_empty(), "hctx {i} restarted with requests in flight");
            ring.rqs.reserve(queue_depth as usize);
            ring.timed.reserve(queue_depth as usize);
        }
        Ok(())
    }

    #[inline]
    fn queue_rqs(&self, batch: &mut RqBatch<'_>, now: Instant) -> QueueRqStatus {
        if self.options.completion == Duration::ZERO {
            (0..batch.remaining()).for_each(|_| batch.end(BlkStatus::Ok));
            return QueueRqStatus::Queued;
        }
        let hctx = self.hctxs.get(batch.hctx());
        let mut ring = hctx.ring.lock();
        let first = ring.rqs.is_empty();
        let n = batch.remaining();
        for _ in 0..n {
            ring.rqs.push_back(batch.accept());
        }
        ring.timed.push_back((now + self.options.completion, n));
        drop(ring);
        // Requests of another thread may be issued here while that thread sleeps. A request that follows others is due after them.
        if first {
            hctx.sleeper.wake_sleepers();
        }
        QueueRqStatus::Queued
    }

    #[inline]
    fn poll(&self, hctx: HctxId, done: &mut Completions, now: Instant) {
        if self.options.completion == Duration::ZERO {
            return;
        }
        let mut ring = self.hctxs.get(hctx).ring.lock();
        ring.count_due(now);
        let n = ring.due.min(done.room());
        ring.due -= n;
        for _ in 0..n {
            let rq = ring.rqs.pop_front().expect("due requests are in the ring");
            done.push(rq, BlkStatus::Ok);
        }
    }
}

impl HostDriver for Null {
    fn wait_since(&self, seen: u64, hctx: HctxId, _min: u32, timeout: Option<Duration>) {
        self.hctxs.get(hctx).sleeper.sleep_until_due(seen, timeout, || self.next_due(hctx));
    }

    fn next_due(&self, hctx: HctxId) -> Option<Instant> {
        let ring = self.hctxs.get(hctx).ring.lock();
        if ring.due > 0 { Some(Instant::ZERO) } else { ring.timed.front().map(|(due, _)| *due) }
    }

    fn wakes(&self, hctx: HctxId) -> u64 {
        self.hctxs.get(hctx).sleeper.wakes()
    }

    fn wake(&self, hctx: HctxId) {
        self.hctxs.get(hctx).sleeper.wake();
    }

    fn space(&self) -> &dyn Space {
        self
    }
}

impl Space for Null {
    /// No data is ever stored. Reads leave their buffer as it is, so any answer is correct; this one saves clients the reading.
    fn allocation(&self) -> Allocation {
        Allocation::Hole
    }
}

pub(super) const OPTIONS: &[OptionDef<NullOptions>] = &[
    OptionDef { name: "size", range: SIZE_RANGE, set: |o, v| set(&mut o.size_bytes, disk_size(v)) },
    OptionDef { name: "blocksize", range: BLOCKSIZE_RANGE, set: |o, v| set(&mut o.blocksize, blocksize(v)) },
    OptionDef {
        name: "completion_nsec",
        range: "0..=60000000000",
        set: |o, v| set(&mut o.completion, within(v, 0, 60_000_000_000).map(Duration::from_ns)),
    },
];

impl DriverTarget for NullOptions {
    const KIND: &'static str = "null";
    const HELP: &'static str = "
  null[:OPTIONS]       completes at once; size, blocksize, completion_nsec";
    const IS_WORD: bool = true;

    fn parse(_text: &str, rest: &str) -> error::Result<NullOptions> {
        options::read(Self::KIND, rest, OPTIONS)
    }

    fn open(&self, _needs: &Needs, _regions: Arc<Regions>) -> error::Result<OpenTarget> {
        Ok(OpenTarget::plain(Null::new(*self)))
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
}
