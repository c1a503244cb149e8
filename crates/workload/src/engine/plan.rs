// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Everything of a job that can be decided before its first I/O.

use crate::error::SetupError;
use crate::job::{Dir, IODEPTH_MAX, Job, PrioClass, RwMode, SyncMode};
use crate::offsets::{Offsets, Region};
use crate::sizes::Sizes;
use crate::stats::DIRS;
use blk::bio::{IoPrio, IoPrioClass, OpFlags};

/// Largest I/O: the limit of a slot's length field and of a buffer.
const MAX_IO_BYTES: u64 = 1 << 30;

/// The shortcut to the next I/O, for jobs without any checks between two I/Os: fixed sizes, no rate, no pauses, no flushes,
/// no verification.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fast {
    /// Only a uniform offset has to be chosen.
    Uniform { dir: Dir, len: u32 },
    /// Direction and offset are chosen as usual; no I/O is longer than this.
    Plain { max_len: u32 },
}

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub mode: RwMode,
    pub fast: Option<Fast>,
    pub depth: u32,
    pub low: u32,
    pub batch: u32,
    pub reap_min: u32,
    pub reap_max: u32,
    pub max_io_bytes: u32,
    pub flags: [OpFlags; DIRS],
    pub prio: IoPrio,
    pub fill_writes: bool,
    /// Flush after every n writes: the smaller of fsync and fdatasync, because both are the same flush for a block device.
    pub fsync_every: u64,
    pub fdatasync_every: u64,
    pub end_fsync: bool,
    pub writes: bool,

    /// Bytes over all directions after which a pass ends.
    pub pass_bytes: u64,
    /// Bytes that one loop moves: `io_size`, or the region.
    pub loop_bytes: u64,
    pub has_io_size: bool,
    pub loops: u64,
    pub number_ios: Option<u64>,
    pub time_based: bool,
    pub runtime_ns: Option<u64>,
    pub ramp_ns: u64,
    pub max_block: u64,
    pub reseed_each_pass: bool,

    pub verify: bool,
    pub read_back: bool,
    pub verify_fatal: bool,
    pub backlog: u64,
    pub backlog_batch: u64,
    holes_or_steps: bool,
}

impl Plan {
    pub fn new(job: &Job, region: Region, offsets: &Offsets, sizes: &[Sizes; DIRS]) -> Result<Plan, SetupError> {
        let refuse =
            |option, value: u64, rule: &str, remedy: &str| Err(SetupError::new(&job.name, option, value, rule, remedy));
        let max_block = job.max_block_bytes();
        if max_block > MAX_IO_BYTES {
            return refuse("bs", max_block, "at most 1 GiB", "lower bs");
        }
        if job.min_block_bytes() == 0 {
            return refuse("bs", 0, "must be at least 1", "raise bs");
        }
        if !(1..=IODEPTH_MAX).contains(&job.iodepth) {
            return refuse("iodepth", u64::from(job.iodepth), "must be 1..=65536", "change iodepth");
        }
        let writes = job.rw.has(Dir::Write);
        let verify = job.verify.is_some();
        let loop_bytes = job.io_size.map_or(region.size(job), |s| s.of(region.len));
        let mut plan = Plan {
            mode: job.rw.mode,
            fast: None,
            depth: job.iodepth,
            low: job.iodepth_low.clamp(1, job.iodepth),
            batch: job.iodepth_batch_submit.clamp(1, job.iodepth),
            reap_min: job.iodepth_batch_complete_min.min(job.iodepth),
            reap_max: job.iodepth_batch_complete_max.clamp(1, job.iodepth),
            max_io_bytes: max_block as u32,
            flags: flags(job),
            prio: prio(job),
            fill_writes: false,
            fsync_every: u64::from(job.fsync_every),
            fdatasync_every: u64::from(job.fdatasync_every),
            end_fsync: job.end_fsync && writes,
            writes,
            pass_bytes: pass_bytes(job, region, loop_bytes),
            loop_bytes,
            has_io_size: job.io_size.is_some(),
            loops: job.loops.max(1),
            number_ios: number_ios(job),
            time_based: job.time_based,
            runtime_ns: job.runtime_ns,
            ramp_ns: job.ramp_time_ns,
            max_block,
            reseed_each_pass: job.randrepeat,
            verify,
            read_back: verify && job.do_verify && writes,
            verify_fatal: job.verify_fatal,
            backlog: if writes && verify && job.do_verify { job.verify_backlog } else { 0 },
            backlog_batch: if job.verify_backlog_batch > 0 { job.verify_backlog_batch } else { job.verify_backlog },
            holes_or_steps: job.seq_offset_add_bytes != 0 || job.rand_offset_every > 1,
        };
        plan.fast = plan.find_fast(job, offsets, sizes);
        Ok(plan)
    }

    fn find_fast(&self, job: &Job, offsets: &Offsets, sizes: &[Sizes; DIRS]) -> Option<Fast> {
        let limited = Dir::ALL.iter().any(|&d| job.rate_bytes_per_s[d].is_some() || job.rate_iops[d].is_some());
        let quiet = self.fsync_every == 0 && self.fdatasync_every == 0 && !self.verify && self.reap_min > 0;
        let fixed = Dir::ALL.iter().all(|&d| !job.rw.has(d) || sizes[d as usize].fixed().is_some());
        if limited || !quiet || !fixed || job.thinktime_ns > 0 {
            return None;
        }
        let plain = Fast::Plain { max_len: self.max_io_bytes };
        let dir = match job.rw.mode {
            RwMode::Read => Dir::Read,
            RwMode::Write => Dir::Write,
            RwMode::Trim => Dir::Trim,
            RwMode::ReadWrite => return Some(plain),
            RwMode::TrimWrite => return None,
        };
        let len = self.max_io_bytes;
        let on_grid = job.blockalign_bytes[dir].is_none_or(|a| a == u64::from(len));
        let uniform = offsets.is_plain_uniform(dir) && on_grid;
        Some(if uniform { Fast::Uniform { dir, len } } else { plain })
    }

    /// Whether the job reads back what it wrote. `dir` then has measurements although the job may not use that direction itself.
    pub fn reads_back(&self, dir: Dir) -> bool {
        self.logs_writes() && dir == Dir::Read
    }

    /// Whether writes are recorded for reading back.
    pub fn logs_writes(&self) -> bool {
        self.read_back
    }

    /// Whether a sequential stream touches each block once.
    pub fn unique_sequential(&self) -> bool {
        !self.holes_or_steps
    }
}

/// Returns the modifiers per direction. A process waits for a direct or synchronous write, which the kernel marks with
/// REQ_SYNC. REQ_IDLE marks the direct write (write-back throttling exempts it). No process waits for the write-back of the
/// page cache. Reads always count as waited for.
fn flags(job: &Job) -> [OpFlags; DIRS] {
    let all = if job.hipri { OpFlags::POLLED } else { OpFlags::NONE };
    let mut write = all;
    if job.sync != SyncMode::None {
        write = write.union(OpFlags::FUA);
    }
    if job.direct || job.sync != SyncMode::None {
        write = write.union(OpFlags::SYNC);
    }
    if job.direct {
        write = write.union(OpFlags::IDLE);
    }
    [all, write, all]
}

pub(crate) fn prio(job: &Job) -> IoPrio {
    let class = match job.prioclass {
        PrioClass::None if job.prio.is_none() => return IoPrio::default(),
        // A level without a class means best effort, as in fio.
        PrioClass::None | PrioClass::BestEffort => IoPrioClass::Be,
        PrioClass::RealTime => IoPrioClass::Rt,
        PrioClass::Idle => IoPrioClass::Idle,
    };
    IoPrio::new(class, job.prio.unwrap_or(0).min(7))
}

/// Applies fio's rules for how much one pass issues before it ends.
fn pass_bytes(job: &Job, region: Region, loop_bytes: u64) -> u64 {
    let size = region.size(job);
    let mut bytes = size;
    let mixed_stream = job.rw.mode == RwMode::ReadWrite && !job.rw.random && job.verify.is_none();
    let overwriting = job.rw.has(Dir::Write) && job.rw.random && job.norandommap;
    if mixed_stream || overwriting {
        bytes = bytes.max(loop_bytes);
    }
    if job.verify.is_some() && job.rw.has(Dir::Write) && job.verify_backlog > 0 {
        bytes = bytes.saturating_add(size);
    }
    if job.rw.mode == RwMode::TrimWrite {
        bytes = bytes.saturating_add(loop_bytes);
    }
    bytes
}

fn number_ios(job: &Job) -> Option<u64> {
    let per_block = if job.rw.mode == RwMode::TrimWrite { 2 } else { 1 };
    job.number_ios.filter(|&n| n > 0).map(|n| n.saturating_mul(per_block).saturating_mul(job.loops.max(1)))
}
