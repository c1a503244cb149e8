// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The typed, resolved job: the meaning of a job file, independent of how it was written.
//!
//! Guarantees: a [`Job`] from [`super::JobFile::parse_str`] passed every check that needs no device (ranges, options that
//! contradict each other). Every field acts as fio's option of that name does, or the job was rejected. Needs from callers:
//! checks that depend on the target (size against the target, percentages, alignment to the logical block). Does not do:
//! `numjobs` expansion (functions that depend on the instance take its number), targets (`filename` is kept as typed).
//! Source: fio HOWTO 3.33.

use super::error::Warning;
use super::logs::LogOptions;
use super::oltp::OltpJob;
use super::policy::{CmdPrio, DataShape, ExitRules, Flow, JobCommands, JobLimits, LatencyGoal, Steady, Strided};
use super::values::{
    BlockSizes, BufferFill, CpusPolicy, Dir, Distribution, Extent, Fallocate, FileService, IoEngine, Pattern, PerDir,
    PrioClass, RandomGenerator, RateProcess, Rw, RwMode, RwSequencer, SyncMode, ThinktimeBlocks, VerifyKind,
};
use crate::replay::Replay;
use crate::rng::{Seeding, Seeds};
use std::sync::Arc;

/// fio's default `percentile_list`.
pub const DEFAULT_PERCENTILES: [f64; 17] =
    [1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99];
/// Largest `iodepth` accepted. Requests are allocated at start, so an absurd depth is a typing error, not a workload.
pub const IODEPTH_MAX: u32 = 65_536;
/// Largest `numjobs` accepted, and most instances in one file, because each is a submitter of its own.
pub const NUMJOBS_MAX: u32 = blk::id::MAX_SUBMITTERS;
/// Most files of an instance: each has a block layer of its own.
pub const FILES_MAX: u32 = 65_536;
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
    /// The files that `filename=` and `opendir=` name, one string each, as typed (`\:` still escaped); empty = `nrfiles` made
    /// from `filename_format`. See [`Job::file_name`].
    pub filename: Vec<String>,
    /// `nrfiles=`, >= 1: the number of files of each instance if none is named.
    pub nrfiles: u32,
    /// `openfiles=`: this many files are open at a time; 0 = all.
    pub openfiles: u32,
    /// `file_service_type=`.
    pub file_service: FileService,
    /// The N of `file_service_type=roundrobin:N`: so many I/Os before the next file; 0 = to the end of the file.
    pub file_service_ios: u32,
    /// `directory=` entries in order; instance n uses entry n modulo the length. Empty = current directory.
    pub directory: Vec<String>,
    /// `filename_format=`; `$jobname`, `$jobnum`, `$filenum` are replaced.
    pub filename_format: String,
    /// `size=`: the region that each instance works in; `None` = the whole target after `offset`.
    pub size: Option<Extent>,
    /// `io_size=`: bytes to move per loop; `None` = as many as `size`.
    pub io_size: Option<Extent>,
    /// `filesize=`: size of each file; `None` = `offset` + its share of `size`.
    pub filesize_bytes: Option<u64>,
    /// `filesize=LOW-HIGH`: each file has a random size of this range. Never together with `filesize_bytes`.
    pub filesize_range: Option<(u64, u64)>,
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
    /// `fallocate=`.
    pub fallocate: Fallocate,
    /// `create_fsync=`: a new file is on stable media before the run. Default true.
    pub create_fsync: bool,
    /// `create_only=`: make the files, and issue no I/O.
    pub create_only: bool,
    /// `pre_read=`: read buffered files into the page cache before the run.
    pub pre_read: bool,
    /// `unlink=`: remove the files after the run.
    pub unlink: bool,
    /// `allow_file_create=`: whether a missing file may be created. Default true.
    pub allow_file_create: bool,
    /// `allow_mounted_write=`: whether a mounted block device may be written. Default false.
    pub allow_mounted_write: bool,

    // ---- what
    /// `workload=oltp` and its options. The job is then a transaction loop, and `rw` only says that it reads and writes.
    pub oltp: Option<OltpJob>,
    /// `read_iolog=` and the `replay_*` options: the traces. `rw`, files, `size` and block sizes are then those of the traces.
    pub replay: Option<Arc<Replay>>,
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
    /// `bs_unaligned`: sizes of a `bsrange` need not be multiples of its minimum.
    pub bs_unaligned: bool,
    /// `bs_is_seq_rand`: sequential I/Os have the sizes of reads, random ones those of writes.
    pub bs_is_seq_rand: bool,
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
    /// `thinktime_iotime=`: pause after this much time of I/O; 0 = off. Without a `thinktime_blocks` that alone decides.
    pub thinktime_iotime_ns: u64,
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
    /// `random_generator=`.
    pub random_generator: RandomGenerator,
    /// `randseed=`, unless it is fio's default with `randrepeat=1`.
    pub randseed: Option<u64>,
    /// `randrepeat=`: same sequence in every run. False = the host supplies a fresh seed. Default true.
    pub randrepeat: bool,
    /// `allrandrepeat=`: sizes, mixes and data repeat whatever the seeds are.
    pub allrandrepeat: bool,

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
    /// `verify_interval=`: bytes between headers; `None` = the smallest block of writes.
    pub verify_interval: Option<u64>,
    /// `verify_offset=`: where the header is in its block; `None` = in front.
    pub verify_offset: Option<u64>,
    /// `verify_only`: read back what an earlier run of this job wrote, and write nothing.
    pub verify_only: bool,
    /// `verify_state_save=`: leave a file that says how far the writes got. Default true; only in a job that writes and verifies.
    pub verify_state_save: bool,
    /// `verify_state_load=`: verify only what an earlier run wrote, as its file says. Only in a job that verifies and does not write.
    pub verify_state_load: bool,
    /// `verify_dump=`: leave bad blocks in files.
    pub verify_dump: bool,
    /// `verify_write_sequence=`: check the number of the write in headers. Default true.
    pub verify_write_sequence: bool,
    /// `verify_header_seed=`: check the seed in headers, and so the whole data. Default true.
    pub verify_header_seed: bool,
    /// `trim_percentage=`: percent of the verified blocks that are trimmed after they were written; only with `trim_backlog`.
    pub trim_pct: u32,
    /// `trim_verify_zero=`: trimmed blocks must read back as zeroes. Default true. False = they are not read back.
    pub trim_verify_zero: bool,
    /// `trim_backlog=`: trim after every n written blocks; 0 = never.
    pub trim_backlog: u64,
    /// `trim_backlog_batch=`: trim this many then; 0 = `trim_backlog`.
    pub trim_backlog_batch: u64,
    /// `verify_pattern=`; always set with [`VerifyKind::Pattern`].
    pub verify_pattern: Option<Pattern>,
    /// `buffer_pattern=`, `zero_buffers`.
    pub buffer_fill: BufferFill,
    /// `refill_buffers`: fresh contents for every write.
    pub refill_buffers: bool,
    /// `dedupe_percentage=`, `buffer_compress_percentage=`. The data of such a job is not scrambled.
    pub shape: Option<DataShape>,
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

    // ---- policies
    /// `zonemode=strided`.
    pub strided: Option<Strided>,
    /// What ends the job with an error.
    pub limits: JobLimits,
    /// How its end ends other jobs.
    pub exit: ExitRules,
    /// `exec_prerun=` and `exec_postrun=`.
    pub commands: JobCommands,
    /// `latency_target=`.
    pub latency_goal: Option<LatencyGoal>,
    /// `steadystate=` with a duration.
    pub steady: Option<Steady>,
    /// `flow=`.
    pub flow: Option<Flow>,
    /// Priorities of single I/Os.
    pub cmdprio: CmdPrio,

    // ---- report
    /// `clat_percentiles=`. Default true.
    pub clat_percentiles: bool,
    /// `lat_percentiles=`. Default false.
    pub lat_percentiles: bool,
    /// `slat_percentiles=`. Default false.
    pub slat_percentiles: bool,
    /// `percentile_list=`: ascending, each in (0, 100], at most 20.
    pub percentile_list: Vec<f64>,
    /// Per-interval logs.
    pub logs: LogOptions,
}

impl Job {
    /// A job with fio's defaults: 4 KiB sequential reads, psync, depth 1, over the whole target.
    #[rustfmt::skip] // Seventy lines of defaults are easier to compare when they stand together.
    pub fn new(name: &str) -> Self {
        Job {
            name: name.to_owned(), line: 0, description: None, options: Vec::new(), filename: Vec::new(), nrfiles: 1,
            openfiles: 0, file_service: FileService::RoundRobin, file_service_ios: 1,
            directory: Vec::new(), filename_format: "$jobname.$jobnum.$filenum".to_owned(),
            size: None, io_size: None, filesize_bytes: None, filesize_range: None, offset: Extent::Bytes(0),
            offset_align_bytes: 0, offset_increment: Extent::Bytes(0), direct: false,
            invalidate: true, overwrite: false, fallocate: Fallocate::Native, create_fsync: true,
            create_only: false, pre_read: false, unlink: false, allow_file_create: true, allow_mounted_write: false,
            oltp: None, replay: None, rw: Rw { mode: RwMode::Read, random: false }, seq_offset_add_bytes: 0,
            rand_offset_every: 1, rw_sequencer: RwSequencer::Sequential, rwmixread_pct: 50,
            block_sizes: PerDir::all(BlockSizes::Fixed(4096)), bs_unaligned: false, bs_is_seq_rand: false,
            blockalign_bytes: PerDir::all(None), number_ios: None, loops: 1,
            ioengine: IoEngine::Psync, iodepth: 1, iodepth_low: 1, iodepth_batch_submit: 1,
            iodepth_batch_complete_min: 1, iodepth_batch_complete_max: 1, hipri: false,
            sync: SyncMode::None, fsync_every: 0, fdatasync_every: 0, end_fsync: false, prio: None,
            prioclass: PrioClass::None, weight: None, runtime_ns: None, time_based: false, ramp_time_ns: 0,
            startdelay_min_ns: 0, startdelay_max_ns: 0, rate_bytes_per_s: PerDir::all(None),
            rate_iops: PerDir::all(None), rate_process: RateProcess::Linear, thinktime_ns: 0,
            thinktime_spin_ns: 0, thinktime_iotime_ns: 0, thinktime_blocks: 1,
            thinktime_blocks_type: ThinktimeBlocks::Complete,
            random_distribution: PerDir::all(Distribution::Random),
            percentage_random: PerDir::all(100), norandommap: false,
            random_generator: RandomGenerator::Tausworthe, randseed: None, randrepeat: true,
            allrandrepeat: false, verify: None, do_verify: true, verify_fatal: false, verify_backlog: 0,
            verify_backlog_batch: 0, verify_interval: None, verify_offset: None, verify_only: false, verify_state_save: true,
            verify_state_load: false, verify_dump: false,
            verify_write_sequence: true, verify_header_seed: true, trim_pct: 0, trim_verify_zero: true, trim_backlog: 0, trim_backlog_batch: 0,
            verify_pattern: None, buffer_fill: BufferFill::Random,
            refill_buffers: false, shape: None, scramble_buffers: true, numjobs: 1, group_reporting: false,
            new_group: false, stonewall: false, wait_for: None, cpus_allowed: None,
            cpus_allowed_policy: CpusPolicy::Shared, strided: None, limits: JobLimits::default(), exit: ExitRules::default(),
            commands: JobCommands::default(), latency_goal: None, steady: None, flow: None, cmdprio: CmdPrio::default(),
            clat_percentiles: true, lat_percentiles: false,
            slat_percentiles: false, percentile_list: DEFAULT_PERCENTILES.to_vec(),
            logs: LogOptions::default(),
        }
    }

    /// The seeds of thread `number` (1-based over the file); `entropy` takes effect if the job is not to repeat itself.
    pub fn seeds(&self, entropy: u64, number: u32) -> Seeds {
        let seeding = match self.randseed {
            Some(seed) => Seeding::Given(seed),
            None if self.randrepeat => Seeding::Repeat,
            None => Seeding::Entropy(entropy),
        };
        Seeds::new(seeding, self.allrandrepeat, self.random_generator == RandomGenerator::Tausworthe64, number)
    }

    /// Whether each pass repeats the random numbers of the first one.
    pub fn repeats(&self) -> bool {
        self.randrepeat && self.randseed.is_none()
    }

    /// Whether a random job keeps no random map: asked for, or implied by a distribution or by a grid of its own.
    pub fn has_no_map(&self) -> bool {
        let own_grid = |d: Dir| self.grid_bytes(d) != self.block_sizes[d].min_bytes();
        self.norandommap || Dir::ALL.iter().any(|&d| own_grid(d) || self.random_distribution[d] != Distribution::Random)
    }

    /// Whether verified blocks are trimmed.
    pub fn trims_verified(&self) -> bool {
        let reads_back = self.verify.is_some() && self.do_verify && self.rw.has(Dir::Write);
        reads_back && !self.verify_only && self.trim_pct > 0 && self.trim_backlog > 0
    }

    /// Whether the job leaves a verify state. `verify_only` writes nothing, so the state of the writes stays.
    pub fn leaves_verify_state(&self) -> bool {
        self.verify.is_some() && self.verify_state_save && self.rw.has(Dir::Write) && !self.verify_only
    }

    /// Whether the job trims anything.
    pub fn trims(&self) -> bool {
        self.rw.has(Dir::Trim) || self.trims_verified()
    }

    /// Random offsets of a direction are multiples of this: `ba`, or else its smallest block.
    pub fn grid_bytes(&self, dir: Dir) -> u64 {
        self.blockalign_bytes[dir].unwrap_or(self.block_sizes[dir].min_bytes())
    }

    /// Smallest block over all directions, used or not: fio's unit for maps and percentages.
    pub fn min_bs(&self) -> u64 {
        Dir::ALL.iter().map(|&d| self.block_sizes[d].min_bytes()).min().unwrap_or(0)
    }

    /// Smallest block that this job issues.
    pub fn min_block_bytes(&self) -> u64 {
        self.sizes_in_use().map(BlockSizes::min_bytes).min().unwrap_or(0)
    }

    /// Largest block that this job issues.
    pub fn max_block_bytes(&self) -> u64 {
        self.sizes_in_use().map(BlockSizes::max_bytes).max().unwrap_or(0)
    }

    /// Sizes of the directions that some I/O takes its size from.
    pub(crate) fn sizes_in_use(&self) -> impl Iterator<Item = &BlockSizes> {
        let in_use = |d: Dir| self.rw.has(d) || (self.bs_is_seq_rand && d != Dir::Trim);
        Dir::ALL.into_iter().filter(move |d| in_use(*d)).map(|d| &self.block_sizes[d])
    }

    /// `job 'NAME', line N`, for messages; a job of a command line has no line.
    pub fn place(&self) -> String {
        match self.line {
            0 => format!("job '{}'", self.name),
            line => format!("job '{}', line {line}", self.name),
        }
    }
}
