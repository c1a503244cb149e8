// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The typed, resolved job: the meaning of a job file, independent of how it was written.
//!
//! Guarantees: a [`Job`] from [`super::JobFile::parse_str`] passed every check that needs no device (ranges, options that
//! contradict each other). Every field acts as fio's option of that name does, or the job was rejected. Needs from callers:
//! checks that depend on the target (size against the target, percentages, alignment to the logical block). Does not do:
//! `numjobs` expansion (functions that depend on the instance take its number), targets (`filename` is kept as typed).
//! Source: fio HOWTO 3.33.

use super::error::Warning;
use super::oltp::OltpJob;
use super::values::{
    BlockSizes, BufferFill, CpusPolicy, Dir, Distribution, Extent, IoEngine, Pattern, PerDir, PrioClass, RateProcess,
    Rw, RwMode, RwSequencer, SyncMode, ThinktimeBlocks, VerifyKind,
};

/// fio's default `randseed`.
pub const DEFAULT_RANDSEED: u64 = crate::rng::FIO_RANDSEED;
/// fio's default `percentile_list`.
pub const DEFAULT_PERCENTILES: [f64; 17] =
    [1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99];
/// Largest `iodepth` accepted. Requests are allocated at start, so an absurd depth is a typing error, not a workload.
pub const IODEPTH_MAX: u32 = 65_536;
/// Largest `numjobs` accepted, and most instances in one file, because each is a submitter of its own.
pub const NUMJOBS_MAX: u32 = blk::id::MAX_SUBMITTERS;
/// Largest block size accepted, 1 GiB: buffers for the whole queue depth are allocated at start.
pub const BLOCK_BYTES_MAX: u64 = 1 << 30;

/// A whole job file, resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct JobFile {
    /// The jobs in file order; `[global]` sections are already folded in. Never empty.
    pub jobs: Vec<Job>,
    /// Options of the `[global]` sections and the overrides, as [`Job::options`].
    pub global_options: Vec<(String, String)>,
    /// Options that were accepted but have no effect here, in file order.
    pub warnings: Vec<Warning>,
}

/// One job section. `numjobs` instances of it run.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    // ---- identity
    /// Section name, or `name=`.
    pub name: String,
    /// Line of the section header in the main file, 1-based; 0 when not from a file.
    pub line: u32,
    /// `description=`, printed with the results.
    pub description: Option<String>,
    /// The section's own options with a value, by canonical name, variables replaced, in the order of the file. fio's JSON
    /// repeats them as `job options`.
    pub options: Vec<(String, String)>,

    // ---- where
    /// `filename=` as typed (`\:` still escaped); `None` = made from `filename_format`. See [`Job::file_name`].
    pub filename: Option<String>,
    /// `directory=` entries in order; instance n uses entry n modulo the length. Empty = current directory.
    pub directory: Vec<String>,
    /// `filename_format=`; `$jobname`, `$jobnum`, `$filenum` are replaced.
    pub filename_format: String,
    /// `size=`: the region that each instance works in; `None` = the whole target after `offset`.
    pub size: Option<Extent>,
    /// `io_size=`: bytes to move per loop; `None` = as many as `size`.
    pub io_size: Option<Extent>,
    /// `filesize=`: size the file is created with; `None` = `offset` + `size`.
    pub filesize_bytes: Option<u64>,
    /// `offset=`: where the region starts.
    pub offset: Extent,
    /// `offset_align=`: if `offset` is a percentage, it is rounded up to a multiple of this; 0 = the smallest block size.
    pub offset_align_bytes: u64,
    /// `offset_increment=`: instance n starts at `offset` + n times this.
    pub offset_increment: Extent,
    /// `direct=`: O_DIRECT; `buffered=` is its negation.
    pub direct: bool,
    /// `invalidate=`: drop cached pages of a buffered file before the run. Default true.
    pub invalidate: bool,
    /// `overwrite=`: create the whole file before writing to it.
    pub overwrite: bool,
    /// `allow_file_create=`: whether a missing file may be created. Default true.
    pub allow_file_create: bool,
    /// `allow_mounted_write=`: whether a mounted block device may be written. Default false.
    pub allow_mounted_write: bool,

    // ---- what
    /// `workload=oltp` and its options. The job is then a transaction loop, and `rw` only says that it reads and writes.
    pub oltp: Option<OltpJob>,
    /// `rw=`.
    pub rw: Rw,
    /// `rw=read:8k`: bytes added to the offset after each sequential I/O; may be negative (`rw=read:-8k` goes backwards).
    pub seq_offset_add_bytes: i64,
    /// `rw=randread:8`: a fresh random offset every n I/Os, >= 1.
    pub rand_offset_every: u32,
    /// `rw_sequencer=`: the offsets between fresh random offsets.
    pub rw_sequencer: RwSequencer,
    /// `rwmixread=` (or 100 - `rwmixwrite`): percent of a mixed job that is reads, 0..=100.
    pub rwmixread_pct: u32,
    /// `bs=`, `bsrange=`, `bssplit=`.
    pub block_sizes: PerDir<BlockSizes>,
    /// `bs_unaligned`: sizes of a `bsrange` need not be multiples of its minimum. No job file sets it, because the block
    /// layer moves whole sectors; other users of this crate may.
    pub bs_unaligned: bool,
    /// `blockalign=`: grid of random offsets; `None` = smallest block size of the direction.
    pub blockalign_bytes: PerDir<Option<u64>>,
    /// `number_ios=`: stop after this many I/Os; `None` = no limit.
    pub number_ios: Option<u64>,
    /// `loops=`, >= 1.
    pub loops: u64,

    // ---- how
    /// `ioengine=`; see [`IoEngine::submit`].
    pub ioengine: IoEngine,
    /// `iodepth=`, 1..=[`IODEPTH_MAX`]; 1 for engines that submit one at a time.
    pub iodepth: u32,
    /// `iodepth_low=`: refill only when this few are in flight, 1..=iodepth; default `iodepth`.
    pub iodepth_low: u32,
    /// `iodepth_batch=`: submit this many at once, 1..=iodepth; default 1. (fio's 0 is resolved to `iodepth`.)
    pub iodepth_batch_submit: u32,
    /// `iodepth_batch_complete_min=`: reap at least this many, 0..=iodepth (0 = poll without waiting); default 1.
    pub iodepth_batch_complete_min: u32,
    /// `iodepth_batch_complete_max=`: reap at most this many, max(1, min)..=iodepth; default as the minimum.
    pub iodepth_batch_complete_max: u32,
    /// `hipri`: polled completions.
    pub hipri: bool,
    /// `sync=`.
    pub sync: SyncMode,
    /// `fsync=`: flush after every n writes; 0 = never.
    pub fsync_every: u32,
    /// `fdatasync=`: as `fsync`, data only; 0 = never.
    pub fdatasync_every: u32,
    /// `end_fsync=`: flush when a write job ends.
    pub end_fsync: bool,
    /// `prio=`, 0 (highest)..=7; `None` = not given.
    pub prio: Option<u8>,
    /// `prioclass=`.
    pub prioclass: PrioClass,
    /// `cgroup_weight=`: share of the disk against other jobs, 1..=1000, for schedulers that share by weight; `None` = by
    /// priority.
    pub weight: Option<u16>,

    // ---- when
    /// `runtime=`; `None` = until all bytes are moved.
    pub runtime_ns: Option<u64>,
    /// `time_based`: start over until `runtime_ns` has passed. Implies `runtime_ns` is set.
    pub time_based: bool,
    /// `ramp_time=`: run this long before measuring.
    pub ramp_time_ns: u64,
    /// `startdelay=`: start this long after the group.
    pub startdelay_min_ns: u64,
    /// Upper bound when `startdelay=a-b` was given (uniform per instance); else equal to the minimum.
    pub startdelay_max_ns: u64,
    /// `rate=`: bytes/s; `None` = no limit. Never together with `rate_iops`.
    pub rate_bytes_per_s: PerDir<Option<u64>>,
    /// `rate_iops=`: I/Os per second; `None` = no limit.
    pub rate_iops: PerDir<Option<u64>>,
    /// `rate_process=`.
    pub rate_process: RateProcess,
    /// `thinktime=`: pause after every `thinktime_blocks`; 0 = none. Covers `thinktime_spin_ns`.
    pub thinktime_ns: u64,
    /// `thinktime_spin=`: this part of the pause burns CPU, <= `thinktime_ns`.
    pub thinktime_spin_ns: u64,
    /// `thinktime_blocks=`, >= 1.
    pub thinktime_blocks: u64,
    /// `thinktime_blocks_type=`.
    pub thinktime_blocks_type: ThinktimeBlocks,

    // ---- random
    /// `random_distribution=`.
    pub random_distribution: PerDir<Distribution>,
    /// `percentage_random=`: percent of a random job's I/Os that are random, the others are sequential; 0..=100.
    pub percentage_random: PerDir<u32>,
    /// `norandommap`: blocks may repeat before all were touched.
    pub norandommap: bool,
    /// `randseed=`.
    pub randseed: u64,
    /// `randrepeat=` / `allrandrepeat=`: same sequence in every run. False = the host supplies a fresh seed. Default true.
    pub randrepeat: bool,

    // ---- data
    /// `verify=`.
    pub verify: Option<VerifyKind>,
    /// `do_verify=`: read back and check after writing. Default true; only with `verify`.
    pub do_verify: bool,
    /// `verify_fatal=`: stop the job at the first bad block.
    pub verify_fatal: bool,
    /// `verify_backlog=`: check after every n written blocks; 0 = at the end only.
    pub verify_backlog: u64,
    /// `verify_backlog_batch=`: check this many then; default `verify_backlog`.
    pub verify_backlog_batch: u64,
    /// `verify_pattern=`; always set with [`VerifyKind::Pattern`].
    pub verify_pattern: Option<Pattern>,
    /// `buffer_pattern=`, `zero_buffers`.
    pub buffer_fill: BufferFill,
    /// `refill_buffers`: fresh contents for every write.
    pub refill_buffers: bool,
    /// `scramble_buffers`: cheap change of a reused random buffer so that equal blocks differ. Default true.
    pub scramble_buffers: bool,

    // ---- together
    /// `numjobs=`, 1..=[`NUMJOBS_MAX`].
    pub numjobs: u32,
    /// `group_reporting`: sum the instances (and following jobs of the group) into one result.
    pub group_reporting: bool,
    /// `new_group`: start a new reporting group here.
    pub new_group: bool,
    /// `stonewall`: wait for all jobs above before starting; starts a new group.
    pub stonewall: bool,
    /// `wait_for=`: start when the named job (which is above) has ended.
    pub wait_for: Option<String>,
    /// `cpus_allowed=` / `cpumask=`: CPU numbers, ascending, without repeats; `None` = all.
    pub cpus_allowed: Option<Vec<u32>>,
    /// `cpus_allowed_policy=`.
    pub cpus_allowed_policy: CpusPolicy,

    // ---- report
    /// `clat_percentiles=`. Default true.
    pub clat_percentiles: bool,
    /// `lat_percentiles=`. Default false.
    pub lat_percentiles: bool,
    /// `slat_percentiles=`. Default false.
    pub slat_percentiles: bool,
    /// `percentile_list=`: ascending, each in (0, 100], at most 20.
    pub percentile_list: Vec<f64>,
}

impl Job {
    /// A job with fio's defaults: 4 KiB sequential reads, psync, depth 1, over the whole target.
    #[rustfmt::skip] // Seventy lines of defaults are easier to compare when they stand together.
    pub fn new(name: &str) -> Self {
        Job {
            name: name.to_owned(), line: 0, description: None, options: Vec::new(), filename: None,
            directory: Vec::new(), filename_format: "$jobname.$jobnum.$filenum".to_owned(),
            size: None, io_size: None, filesize_bytes: None, offset: Extent::Bytes(0),
            offset_align_bytes: 0, offset_increment: Extent::Bytes(0), direct: false,
            invalidate: true, overwrite: false, allow_file_create: true, allow_mounted_write: false,
            oltp: None, rw: Rw { mode: RwMode::Read, random: false }, seq_offset_add_bytes: 0,
            rand_offset_every: 1, rw_sequencer: RwSequencer::Sequential, rwmixread_pct: 50,
            block_sizes: PerDir::all(BlockSizes::Fixed(4096)), bs_unaligned: false,
            blockalign_bytes: PerDir::all(None), number_ios: None, loops: 1,
            ioengine: IoEngine::Psync, iodepth: 1, iodepth_low: 1, iodepth_batch_submit: 1,
            iodepth_batch_complete_min: 1, iodepth_batch_complete_max: 1, hipri: false,
            sync: SyncMode::None, fsync_every: 0, fdatasync_every: 0, end_fsync: false, prio: None,
            prioclass: PrioClass::None, weight: None, runtime_ns: None, time_based: false, ramp_time_ns: 0,
            startdelay_min_ns: 0, startdelay_max_ns: 0, rate_bytes_per_s: PerDir::all(None),
            rate_iops: PerDir::all(None), rate_process: RateProcess::Linear, thinktime_ns: 0,
            thinktime_spin_ns: 0, thinktime_blocks: 1,
            thinktime_blocks_type: ThinktimeBlocks::Complete,
            random_distribution: PerDir::all(Distribution::Random),
            percentage_random: PerDir::all(100), norandommap: false, randseed: DEFAULT_RANDSEED,
            randrepeat: true, verify: None, do_verify: true, verify_fatal: false, verify_backlog: 0,
            verify_backlog_batch: 0, verify_pattern: None, buffer_fill: BufferFill::Random,
            refill_buffers: false, scramble_buffers: true, numjobs: 1, group_reporting: false,
            new_group: false, stonewall: false, wait_for: None, cpus_allowed: None,
            cpus_allowed_policy: CpusPolicy::Shared, clat_percentiles: true, lat_percentiles: false,
            slat_percentiles: false, percentile_list: DEFAULT_PERCENTILES.to_vec(),
        }
    }

    /// Returns the file that instance `jobnum` (0-based, counted over `numjobs`) works on, by fio's rules. All instances
    /// share `filename` (in the first `directory`). Otherwise `filename_format` names one file per instance; the instances
    /// use the directories by round robin. A directory goes before absolute names too. A name for which `is_target` holds
    /// (such as `null:`) is returned as typed; any other has `\:` unescaped.
    pub fn file_name(&self, jobnum: u32, is_target: &dyn Fn(&str) -> bool) -> String {
        let name = match &self.filename {
            Some(typed) if is_target(typed) => return typed.clone(),
            Some(typed) => typed.replace("\\:", ":"),
            None => self
                .filename_format
                .replace("$jobname", &self.name)
                .replace("$jobnum", &jobnum.to_string())
                .replace("$filenum", "0"),
        };
        if self.directory.is_empty() {
            return name;
        }
        let nth = if self.filename.is_some() { 0 } else { jobnum as usize % self.directory.len() };
        let dir = &self.directory[nth];
        format!("{}/{}", dir.trim_end_matches('/'), name.trim_start_matches('/'))
    }

    /// Returns the target of the redo of instance `jobnum`, if redo has a target of its own. The rules are those of
    /// [`Job::file_name`] for a `filename`.
    pub fn redo_file_name(&self, jobnum: u32, is_target: &dyn Fn(&str) -> bool) -> Option<String> {
        let filename = self.oltp.as_ref()?.redo_filename.clone()?;
        Some(Job { filename: Some(filename), ..self.clone() }.file_name(jobnum, is_target))
    }

    /// Smallest block over the directions this job issues.
    pub fn min_block_bytes(&self) -> u64 {
        let used = Dir::ALL.iter().filter(|d| self.rw.has(**d));
        used.map(|d| self.block_sizes[*d].min_bytes()).min().unwrap_or(0)
    }

    /// Largest block over the directions this job issues.
    pub fn max_block_bytes(&self) -> u64 {
        let used = Dir::ALL.iter().filter(|d| self.rw.has(**d));
        used.map(|d| self.block_sizes[*d].max_bytes()).max().unwrap_or(0)
    }
}
