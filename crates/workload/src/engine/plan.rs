// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Everything of a job that can be decided before its first I/O.

use crate::error::SetupError;
use crate::job::{Dir, IODEPTH_MAX, Job, PrioClass, RwMode, Submit, SyncMode};
use crate::offsets::{Amount, Offsets};
use crate::replay::Cursor;
use crate::sizes::Sizes;
use crate::stats::DIRS;
use blk::bio::{IoPrio, IoPrioClass, OpFlags};
use std::sync::Arc;

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
    /// A full queue submits one I/O and reaps one, in turn.
    pub reaps_single: bool,
    /// I/Os that are [exchanged](super::exchange) are counted together: all have this direction, and need only counting.
    pub gathers: Option<Dir>,
    pub max_io_bytes: u32,
    pub flags: [OpFlags; DIRS],
    pub prio: IoPrio,
    pub fill_writes: bool,
    pub sizes_by_order: bool,
    /// Flush after every n writes: the smaller of fsync and fdatasync, because both are the same flush for a block device.
    pub fsync_every: u64,
    pub fdatasync_every: u64,
    pub end_fsync: bool,
    pub writes: bool,

    /// Bytes over all directions after which a pass ends.
    pub pass_bytes: u64,
    /// Bytes that one loop moves: `io_size`, or the region.
    pub loop_bytes: u64,
    /// Passes follow until `loop_bytes` are moved. Without, a pass that ends early is the last one. fio forgets which files are done as
    /// it begins to read back.
    pub repeats_if_short: bool,
    pub loops: u64,
    pub number_ios: Option<u64>,
    pub time_based: bool,
    pub runtime_ns: Option<u64>,
    pub ramp_ns: u64,
    /// Windows of bandwidth and of IOPS, nanoseconds.
    pub rate_windows_ns: [u64; 2],
    /// Largest block over all directions, used or not: a pass follows only if this much is left to move.
    pub max_block: u64,
    pub reseed_each_pass: bool,

    /// Completions need more than counting: verification, latency limits, statistics per priority.
    pub inspects: bool,
    /// `max_latency`; `u64::MAX` without.
    pub max_latency_ns: [u64; DIRS],
    pub verify: bool,
    pub read_back: bool,
    /// Nothing is issued before the reading back; see [`super::dry_run`].
    pub dry_run: bool,
    pub verify_fatal: bool,
    pub backlog: u64,
    pub backlog_batch: u64,
    holes_or_steps: bool,
}

impl Plan {
    /// `in_bytes`: some I/O is not whole sectors. `has_files`: the job has several files.
    pub fn new(
        job: &Job,
        sum: Amount,
        (in_bytes, has_files): (bool, bool),
        offsets: &Offsets,
        sizes: &[Sizes; DIRS],
    ) -> Result<Plan, SetupError> {
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
        let dry_run = writes && job.verify_only;
        let loop_bytes = job.io_size.map_or(sum.size, |s| s.of(sum.regions));
        let max_latency_ns = Dir::ALL.map(|d| job.limits.max_latency_ns[d].unwrap_or(u64::MAX));
        let mut plan = Plan {
            mode: job.rw.mode,
            fast: None,
            depth: job.iodepth,
            low: job.iodepth_low.clamp(1, job.iodepth),
            batch: job.iodepth_batch_submit.clamp(1, job.iodepth),
            reap_min: job.iodepth_batch_complete_min.min(job.iodepth),
            reap_max: job.iodepth_batch_complete_max.clamp(1, job.iodepth),
            reaps_single: false,
            gathers: None,
            max_io_bytes: max_block as u32,
            flags: flags(job, in_bytes),
            prio: prio(job),
            fill_writes: false,
            sizes_by_order: job.bs_is_seq_rand,
            fsync_every: u64::from(job.fsync_every),
            fdatasync_every: u64::from(job.fdatasync_every),
            end_fsync: job.end_fsync && writes && !dry_run,
            writes,
            pass_bytes: pass_bytes(job, sum.size, loop_bytes),
            loop_bytes,
            repeats_if_short: job.io_size.is_some() || (verify && job.do_verify),
            loops: job.loops.max(1),
            number_ios: number_ios(job),
            time_based: job.time_based,
            runtime_ns: job.runtime_ns,
            ramp_ns: job.ramp_time_ns,
            rate_windows_ns: [&job.logs.bw, &job.logs.iops].map(|r| r.interval_ms.max(1).saturating_mul(1_000_000)),
            max_block: Dir::ALL.into_iter().map(|d| job.block_sizes[d].max_bytes()).max().unwrap_or(0),
            reseed_each_pass: job.repeats(),
            inspects: verify
                || job.cmdprio.is_used()
                || job.latency_goal.is_some()
                || max_latency_ns.iter().any(|&ns| ns < u64::MAX),
            max_latency_ns,
            verify,
            read_back: verify && job.do_verify && writes,
            dry_run,
            verify_fatal: job.verify_fatal,
            backlog: if writes && verify && job.do_verify && !dry_run { job.verify_backlog } else { 0 },
            backlog_batch: if job.verify_backlog_batch > 0 { job.verify_backlog_batch } else { job.verify_backlog },
            holes_or_steps: job.seq_offset_add_bytes != 0 || job.rand_offset_every > 1,
        };
        plan.find_shortcuts(job, has_files, offsets, sizes);
        Ok(plan)
    }

    fn find_shortcuts(&mut self, job: &Job, has_files: bool, offsets: &Offsets, sizes: &[Sizes; DIRS]) {
        let [batch, min, max] = [self.batch, self.reap_min, self.reap_max];
        self.reaps_single = batch == 1 && min == 1 && max == 1 && self.low + 1 >= self.depth;
        self.fast = self.find_fast(job, offsets, sizes).filter(|_| !has_files && job.replay.is_none());
        self.gathers = self.only_dir().filter(|_| self.fast.is_some() && !self.inspects);
    }

    fn find_fast(&self, job: &Job, offsets: &Offsets, sizes: &[Sizes; DIRS]) -> Option<Fast> {
        let limited = Dir::ALL.iter().any(|&d| job.rate_bytes_per_s[d].is_some() || job.rate_iops[d].is_some());
        let quiet =
            self.fsync_every == 0 && self.fdatasync_every == 0 && !self.verify && !self.dry_run && self.reap_min > 0;
        let fixed = Dir::ALL.iter().all(|&d| !job.rw.has(d) || sizes[d as usize].fixed().is_some());
        let limited = limited || job.limits.has_min_rate() || job.cmdprio.is_used();
        let limited = limited || job.latency_goal.is_some() || job.flow.is_some();
        if limited || !quiet || !fixed || job.bs_is_seq_rand || job.thinktime_ns > 0 {
            return None;
        }
        let plain = Fast::Plain { max_len: self.max_io_bytes };
        let Some(dir) = self.only_dir() else { return (self.mode == RwMode::ReadWrite).then_some(plain) };
        let len = self.max_io_bytes;
        let on_grid = job.blockalign_bytes[dir].is_none_or(|a| a == u64::from(len));
        let uniform = offsets.is_plain_uniform(dir) && on_grid;
        Some(if uniform { Fast::Uniform { dir, len } } else { plain })
    }

    /// The direction of all I/O, if there is only one.
    fn only_dir(&self) -> Option<Dir> {
        match self.mode {
            RwMode::Read => Some(Dir::Read),
            RwMode::Write => Some(Dir::Write),
            RwMode::Trim => Some(Dir::Trim),
            RwMode::ReadWrite | RwMode::TrimWrite | RwMode::Replay { .. } => None,
        }
    }

    /// Begins the replay of a job that has one, and follows it.
    pub fn begin_replay(&mut self, job: &Job, instance: u32) -> Option<Box<Cursor>> {
        let replay = Arc::clone(job.replay.as_ref()?);
        // fio counts the instances after the first backwards.
        let trace = if instance == 0 { 0 } else { job.numjobs.saturating_sub(instance) };
        let cursor = Cursor::new(replay, trace);
        self.loop_bytes = cursor.bytes();
        Some(Box::new(cursor))
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
/// page cache. Reads always count as waited for. `in_bytes`: I/O is not whole
/// sectors, which is marked in all directions.
fn flags(job: &Job, in_bytes: bool) -> [OpFlags; DIRS] {
    let mut all = if job.hipri { OpFlags::POLLED } else { OpFlags::NONE };
    if in_bytes {
        all = all.union(OpFlags::BYTES);
    }
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
    match (job.prioclass, job.prio) {
        (PrioClass::None, None) => IoPrio::default(),
        (class, level) => io_prio(class, level.unwrap_or(0).min(7)),
    }
}

/// A priority of an option. As in fio, no class means best effort.
pub(super) fn io_prio(class: PrioClass, level: u8) -> IoPrio {
    let class = match class {
        PrioClass::None | PrioClass::BestEffort => IoPrioClass::Be,
        PrioClass::RealTime => IoPrioClass::Rt,
        PrioClass::Idle => IoPrioClass::Idle,
    };
    IoPrio::new(class, level)
}

/// Applies fio's rules for how much one pass issues before it ends.
fn pass_bytes(job: &Job, size: u64, loop_bytes: u64) -> u64 {
    // fio does not count the bytes of engines whose I/Os end where they are issued. Their passes end with their offsets.
    // Verified jobs that only time ends would then never read back.
    let at_once = job.ioengine.submit() == Submit::Sync || (job.ioengine.submit() == Submit::Null && job.iodepth == 1);
    if at_once && !(job.time_based && job.verify.is_some()) {
        return u64::MAX;
    }
    // Nor has `verify_only` such a limit.
    if job.verify_only && job.rw.has(Dir::Write) {
        return u64::MAX;
    }
    let mut bytes = size;
    if job.rw.has(Dir::Write) && job.rw.random && job.has_no_map() {
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
