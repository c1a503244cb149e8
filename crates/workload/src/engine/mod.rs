// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One job thread as a state machine: what to issue next, and how to handle completions.
//!
//! The same machine is driven by real threads and by a simulator. It has no clock and does no I/O; the driver's loop is
//!
//! ```text
//! loop {
//!     match thread.next(now) {
//!         Next::Io(io)          => { if io.fill { thread.fill(io.slot, buffer) }  queue the I/O
//!                                    if io.commit { submit what is queued; thread.submitted(now) } }
//!         everything else first submits what is queued and calls submitted(now), then:
//!         Next::Reap{min, max}  => complete() each of min..=max I/Os; reaped(how many). Of one: complete_one()
//!         Next::Wait(t)         => complete() what ends before t; call next() at t, or earlier after a completion
//!         Next::Spin(t)         => burn processor time until t
//!         Next::Done            => the job is over
//!     }
//! }
//! ```
//!
//! # Guarantees
//! - At most `iodepth` I/Os are in flight at a time; each slot has one owner; every I/O is completed once (asserted).
//! - The semantics of every option are fio's, and so are, with default seeds, the offsets, sizes and directions
//!   (`tests/it/fio_parity.rs`). Random numbers come from the job's seeds only.
//! - Nothing is allocated per I/O, except by verification of jobs that may write a block twice ([`crate::verify::log`]).
//!
//! # Needs from callers
//! - `now` never goes back. One `now` may serve a whole batch.
//! - [`JobThread::submitted`] before the first [`JobThread::complete`] of an I/O; [`JobThread::fill`] before its submission.
//! - Each slot has its own buffer of at least [`JobThread::max_io_bytes`], filled once by [`JobThread::fill_first`].
//!
//! # Differs from fio
//! - A job ahead of its rate does not wait for its I/Os in flight before it sleeps; they are reaped meanwhile.
//! - Two overlapping verified writes are never in flight together (as with fio's `serialize_overlap`).
//! - A verification read compares the whole body, not only the checksum.

mod account;
mod dry_run;
mod exchange;
mod files;
mod flow_turn;
mod gathered;
mod grid;
mod iolog;
mod issue;
mod min_rate;
mod mix;
mod passes;
mod plan;
mod policies;
mod prios;
mod rates;
mod reap;
mod replay;
mod search;
mod think;
mod trims;
mod verify_state;

use crate::buffer::Buffers;
use crate::error::SetupError;
use crate::flow::FlowShare;
use crate::job::{Dir, FileShare, Job, LogKind, LogOptions};
use crate::logs::{IssueLog, LogChunk, Recorder};
use crate::offsets::{Amount, FileOffsets, Offsets};
pub use crate::offsets::{FileTarget, Region};
use crate::rate::Rates;
use crate::replay::Cursor;
use crate::rng::{FioRng, Purpose};
use crate::shaped::Shaped;
use crate::sizes::Sizes;
use crate::slices::Slicer;
use crate::stats::{DIRS, JobStats, LatencyClasses, Percentiles};
use crate::verify::log::{PieceId, WriteLog};
use crate::verify::progress::{Completions, Earlier};
use crate::verify::trims::Trims;
use crate::verify::{Expect, Stamp, Verifier, VerifyError};
use blk::bio::{Bio, DataRef, IoPrio, Margins, Op, OpFlags};
use blk::id::{SECTOR_SHIFT, SECTOR_SIZE, Sector};
use blk::time::Instant;
use flow_turn::FlowTurn;
use gathered::Gathered;
pub use grid::OffGrid;
use min_rate::MinRates;
use mix::Mix;
use plan::Plan;
pub(crate) use plan::prio;
use prios::Prios;
use search::DepthSearch;
use std::sync::Arc;
use think::Think;

/// Identifies a thread of the job file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadId {
    /// Instance of its job, 0-based, below `numjobs`.
    pub instance: u32,
    /// Number over all instances of all jobs of the file, 1-based: fio's thread number, which influences the seeds.
    pub number: u32,
    /// Random number from the host, used if the job has `randrepeat=0` and no seed.
    pub entropy: u64,
}

/// One I/O to issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoReq {
    /// Slot and buffer number, below `iodepth`.
    pub slot: u32,
    /// Length in bytes; 0 for a flush.
    pub len_bytes: u32,
    /// Byte offset in the target; 0 for a flush.
    pub offset_bytes: u64,
    /// Number of its target: the file of a job, 0-based; for a database 0 for data and 1 for redo.
    pub target: u32,
    /// Operation.
    pub op: Op,
    /// [`JobThread::fill`] has to prepare the buffer first.
    pub fill: bool,
    /// The batch is complete: submit all I/Os of it now.
    pub commit: bool,
    /// Flags of the operation.
    pub flags: OpFlags,
    /// Priority.
    pub prio: IoPrio,
}

impl IoReq {
    /// Returns the I/O as a bio with its data at `data`. Its `user_data` is the slot.
    #[inline]
    pub fn bio(&self, data: DataRef) -> Bio {
        let bio = Bio {
            op: self.op,
            flags: self.flags,
            prio: self.prio,
            sector: Sector(self.offset_bytes >> SECTOR_SHIFT),
            nr_sectors: self.len_bytes >> SECTOR_SHIFT,
            margins: Margins::NONE,
            data,
            user_data: u64::from(self.slot),
        };
        if self.flags.contains(OpFlags::BYTES) { bio.at_bytes(self.offset_bytes, self.len_bytes) } else { bio }
    }
}

/// What the driver of a job thread has to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Queue this I/O.
    Io(IoReq),
    /// Complete at least `min` and at most `max` I/Os; with `min` 0, those that have completed.
    Reap {
        /// At least this many, never more than are in flight.
        min: u32,
        /// At most this many.
        max: u32,
    },
    /// Issue nothing before this time.
    Wait(Instant),
    /// Keep the processor busy until this time (`thinktime_spin`).
    Spin(Instant),
    /// Everything is issued, completed and verified.
    Done,
}

/// The result of [`JobThread::complete`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Completed {
    /// The slot stays in use until [`JobThread::verify`] has checked the data.
    pub needs_verify: bool,
}

/// The reason for stopping a job from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The user, or the end of the run, has stopped it.
    Asked,
    /// A failure; the errno becomes the job's error.
    Failed(i32),
}

/// The kind of an I/O in a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Read,
    Write,
    Trim,
    Flush,
    /// Reads back a block that this job wrote.
    ReadBack,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SlotState {
    #[default]
    Free,
    Queued,
    Submitted,
    Verifying,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    start_ns: u64,
    issue_ns: u64,
    /// Due time by the rate; `u64::MAX` without a rate.
    due_ns: u64,
    offset: u64,
    len: u32,
    kind: Kind,
    /// Direction in which it is counted; a flush has none.
    dir: u8,
    state: SlotState,
}

impl Slot {
    fn is_in_use(&self) -> bool {
        self.state != SlotState::Free
    }
}

/// State that only verified I/Os need.
#[derive(Clone, Copy, Debug, Default)]
struct VerifySlot {
    stamp: Stamp,
    /// Of a write: how many came before it in the whole job.
    ordinal: u64,
    piece: Option<PieceId>,
    /// The block that is read back was trimmed.
    trimmed: bool,
    /// The block that is trimmed, and whether it stays to be read back.
    trims: Option<(PieceId, bool)>,
}

/// The phase of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Issuing the I/Os of a pass.
    Io,
    /// All I/Os of the pass are issued; `end_fsync` follows when nothing is in flight.
    EndOfIo,
    /// The flush of `end_fsync` is in flight or done.
    EndSync,
    /// The flush before reading back is in flight or done.
    VerifySync,
    /// Reading back.
    Verify,
    /// All blocks are issued for reading back.
    EndOfVerify,
    /// The job is done.
    Finished,
}

/// The state machine of one thread of a job.
#[derive(Clone, Debug)]
pub struct JobThread {
    // Fields of the shortest path come first.
    fast_left: u64,
    check_at: u64,
    free: Vec<u32>,
    queued: Vec<u32>,
    slots: Vec<Slot>,
    in_flight: u32,
    reap: reap::Reap,
    run: account::LatencyRun,
    gathered: Gathered,
    issued_ios: [u64; DIRS],
    issued_bytes: [u64; DIRS],
    offsets: Offsets,
    stats: JobStats,
    classes: LatencyClasses,
    sampling: account::Sampling,
    slicer: Option<Box<Slicer>>,
    recorder: Option<Box<Recorder>>,
    iolog: Option<Box<IssueLog>>,
    plan: Plan,

    phase: Phase,
    sizes: [Sizes; DIRS],
    mix: Option<Mix>,
    rates: Option<Rates>,
    think: Option<Think>,
    min_rates: Option<Box<MinRates>>,
    prios: Option<Box<Prios>>,
    search: Option<Box<DepthSearch>>,
    flow: Option<FlowTurn>,
    buffers: Buffers,
    verifier: Option<Verifier>,
    verify_seeds: FioRng,
    first_verify_seeds: FioRng,
    verify_slots: Vec<VerifySlot>,
    log: WriteLog,
    trims: Option<Box<Trims>>,
    completions: Option<Box<Completions>>,
    earlier: Option<Box<Earlier>>,
    passes: passes::Passes,
    issuing: issue::IssueState,
    clock: account::Clock,
    logs: LogOptions,
    stop: Option<StopReason>,
    /// Of a job with more than one file.
    files: Option<Box<files::Files>>,
    /// Of a job that replays a trace.
    replay: Option<Box<Cursor>>,
}

/// The measurements of a job before its first I/O.
fn empty_stats(job: &Job, plan: &Plan, is_rated: bool, prios: Option<&Prios>) -> JobStats {
    let is_used = |d: Dir| job.rw.has(d) || plan.reads_back(d) || (d == Dir::Trim && job.trims_verified());
    let dirs: Vec<Dir> = Dir::ALL.into_iter().filter(|d| is_used(*d)).collect();
    let percentiles = Percentiles { slat: job.slat_percentiles, clat: job.clat_percentiles, lat: job.lat_percentiles };
    let mut stats = JobStats::new(&dirs, percentiles, is_rated);
    stats.prio = plan.prio;
    if let Some(prios) = prios {
        prios.prepare(&mut stats.dirs, percentiles.clat || percentiles.lat);
    }
    stats
}

/// Whether written blocks are read back in the order of their writes: a pass writes each of them once, if its sequential streams do.
/// `has_files`: the job has several files.
fn writes_once(job: &Job, sum: Amount, offsets: &Offsets, has_files: bool) -> bool {
    // A pass that moves more than its region holds starts over in the region. So does a time_based pass with a verify_backlog,
    // and one that has gone over all its zones.
    let amount = job.io_size.map_or(0, |s| s.of(sum.regions)).max(sum.size);
    let ends_with_map = offsets.has_map() && !job.time_based;
    let lags = job.time_based && job.verify_backlog > 0;
    let restarts = has_files && job.file_service.restarts_files();
    // Sequential blocks of a random job are not in its map. Blocks of several files are read back by file, as in fio, unless they have
    // a map.
    let mixes = job.rw.random && Dir::ALL.iter().any(|&d| job.percentage_random[d] < 100);
    let covers_once = offsets.has_map() || !(job.rw.random || has_files);
    covers_once && !mixes && (ends_with_map || amount <= sum.regions) && !lags && !restarts && job.strided.is_none()
}

impl JobThread {
    /// Makes the thread `id` of `job` on one target of `target_bytes`, whatever files the job names.
    pub fn new(job: &Job, id: ThreadId, target_bytes: u64) -> Result<JobThread, SetupError> {
        JobThread::with_files(job, id, &[FileTarget { bytes: target_bytes, share: FileShare::of(job) }])
    }

    /// Makes a thread that begins in the file `first`.
    fn on(
        job: &Job,
        id: ThreadId,
        first: FileOffsets,
        others: &[FileOffsets],
        files: Option<Box<files::Files>>,
    ) -> Result<JobThread, SetupError> {
        let seeds = job.seeds(id.entropy, id.number);
        let mut regions = [first.region()].into_iter().chain(others.iter().map(FileOffsets::region));
        let sum = Amount::of(job, regions.clone());
        let in_bytes = regions.any(|region| grid::off_grid(job, region, SECTOR_SIZE.into()).is_some());
        let offsets = Offsets::new(job, first, others, seeds);
        let sizes = Sizes::for_job(job, seeds);
        let verifier = Verifier::new(job, id.number)?;
        let mut plan = Plan::new(job, sum, (in_bytes, files.is_some()), &offsets, &sizes)?;
        let replay = plan.begin_replay(job, id.instance);
        let buffers = Buffers::new(job, seeds, Shaped::new(job, seeds, id.number, sum.size)?);
        plan.fill_writes = plan.verify || buffers.each_write_fills();
        let verify_seeds = seeds.rng(Purpose::Verify);
        let rates = Rates::new(job, seeds).filter(|_| !plan.dry_run);
        let (prios, depth) = (Prios::new(job, seeds), plan.depth);
        let unique = writes_once(job, sum, &offsets, files.is_some()) && plan.unique_sequential();
        let blocks = if plan.logs_writes() { sum.regions / job.min_block_bytes().max(1) } else { 0 };
        Ok(JobThread {
            fast_left: 0,
            check_at: 0,
            free: (0..depth).rev().collect(),
            queued: Vec::with_capacity(depth as usize),
            slots: vec![Slot::default(); depth as usize],
            in_flight: 0,
            reap: reap::Reap::default(),
            run: account::LatencyRun::default(),
            gathered: Gathered::default(),
            issued_ios: [0; DIRS],
            issued_bytes: [0; DIRS],
            stats: empty_stats(job, &plan, rates.is_some(), prios.as_deref()),
            classes: LatencyClasses::default(),
            sampling: account::Sampling::default(),
            slicer: None,
            recorder: None,
            iolog: None,
            phase: if job.create_only { Phase::Finished } else { Phase::Io },
            mix: Mix::new(job, seeds),
            rates,
            think: Think::new(job).filter(|_| !plan.dry_run),
            min_rates: MinRates::new(job).filter(|_| !plan.dry_run),
            prios,
            search: job.latency_goal.filter(|_| !plan.dry_run).map(|g| Box::new(DepthSearch::new(g, job.iodepth))),
            flow: None,
            buffers,
            first_verify_seeds: verify_seeds.clone(),
            verify_seeds,
            verify_slots: if verifier.is_some() { vec![VerifySlot::default(); depth as usize] } else { Vec::new() },
            verifier,
            log: WriteLog::new(unique, blocks),
            trims: Trims::new(job, seeds),
            completions: Completions::new(job, id.number, 1 + others.len()),
            earlier: None,
            passes: passes::Passes::new(&plan),
            issuing: issue::IssueState::default(),
            clock: account::Clock::default(),
            logs: job.logs.clone(),
            stop: None,
            offsets,
            sizes,
            plan,
            files,
            replay,
        })
    }

    /// Makes the job keep its latencies over time ([`JobStats::slices`]). To be called before the first I/O.
    pub fn keep_slices(&mut self) {
        self.slicer = Some(Box::new(Slicer::new(&self.stats.dirs)));
    }

    /// Makes the job keep its logs, if it has any, for [`JobThread::take_log`]. To be called before the first I/O.
    pub fn keep_logs(&mut self) {
        if self.logs.any() {
            self.recorder = Some(Box::new(Recorder::new(&self.logs, &self.stats.dirs)));
        }
        if self.logs.has(LogKind::Iolog) {
            self.begin_iolog();
        }
    }

    /// Hands out what was logged since the last call. While the job runs, it is best called every few milliseconds; the result
    /// is `None` until there is enough. `all` gives the rest, once the job is done. `None` for a job that keeps no logs.
    pub fn take_log(&mut self, all: bool) -> Option<LogChunk> {
        self.recorder.as_mut()?.take(all)
    }

    /// Makes the job wait for its share of the I/Os of a flow. To be called before the first I/O, with the thread's job.
    pub fn join_flow(&mut self, job: &Job, share: Arc<FlowShare>) {
        self.flow = Some(FlowTurn::new(job, share));
    }

    /// Largest I/O in bytes, which is the least size of each slot's buffer.
    pub fn max_io_bytes(&self) -> u32 {
        self.plan.max_io_bytes
    }

    /// Number of slots (`iodepth`).
    pub fn depth(&self) -> u32 {
        self.plan.depth
    }

    /// I/Os that were returned by [`JobThread::next`] and have not completed.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// The part of the target this thread works in; of several files that of the current one.
    pub fn region(&self) -> Region {
        self.offsets.region()
    }

    /// Fills a slot's buffer for the first time. To be called once for each slot, before the first I/O.
    pub fn fill_first(&mut self, buf: &mut [u8]) {
        self.buffers.fill_first(buf);
    }

    /// Prepares the data of a write that has [`IoReq::fill`] set. `buf` is exactly as long as the I/O.
    ///
    /// # Panics
    /// When the slot holds no such write or `buf` has another length.
    pub fn fill(&mut self, slot: u32, buf: &mut [u8]) {
        let s = &self.slots[slot as usize];
        assert!(s.state == SlotState::Queued && s.kind == Kind::Write, "fill of slot {slot}, which is {s:?}");
        assert_eq!(buf.len(), s.len as usize, "buffer of slot {slot} is not as long as its I/O");
        let now = Instant::from_ns(s.start_ns);
        match &self.verifier {
            Some(v) if v.fills() => v.prepare(buf, s.offset, self.verify_slots[slot as usize].stamp, now),
            _ => self.buffers.fill_write(buf, s.offset, now),
        }
    }

    /// Checks the data of a read whose completion had [`Completed::needs_verify`] set, and frees its slot. A mismatch is
    /// counted; with `verify_fatal` it ends the job.
    ///
    /// # Panics
    /// When the slot does not wait for this.
    pub fn verify(&mut self, slot: u32, buf: &[u8]) -> Result<(), VerifyError> {
        let s = self.slots[slot as usize];
        assert!(s.state == SlotState::Verifying, "verify of slot {slot}, which is {s:?}");
        let verifier = self.verifier.as_mut().expect("a verified job has a verifier");
        let expect = match s.kind {
            Kind::ReadBack if self.verify_slots[slot as usize].trimmed => Expect::Zeroes,
            // Which of its writes an earlier run did last is unknown: there may have been more passes, or other seeds.
            Kind::ReadBack if !self.plan.dry_run => Expect::Exactly(self.verify_slots[slot as usize].stamp),
            _ => Expect::Valid,
        };
        let mut checked = verifier.check(&buf[..s.len as usize], s.offset, expect);
        if let (Err(error), Some(files)) = (&mut checked, &self.files) {
            error.file = files.of(slot);
        }
        match &checked {
            Ok(()) => self.stats.verified += 1,
            Err(_) => {
                self.stats.verify_errors += 1;
                self.stats.count_error(EILSEQ);
                if self.plan.verify_fatal {
                    self.stop(StopReason::Failed(EILSEQ));
                }
            }
        }
        if let Some(piece) = self.verify_slots[slot as usize].piece.take() {
            self.log.finish_read(piece);
        }
        self.release(slot);
        checked
    }

    /// Stops the job: nothing new is issued, except `end_fsync` of a job that did not fail. I/Os in flight have to complete.
    pub fn stop(&mut self, why: StopReason) {
        if self.stop.is_none() {
            if let StopReason::Failed(errno) = why
                && self.stats.first_error == 0
            {
                self.stats.first_error = errno;
            }
            self.stop = Some(why);
            self.leave_fast_path();
        }
    }

    /// Stops the job although its I/O in flight never completes. The measurements until `now` are final. Only
    /// [`JobThread::stats`] and [`JobThread::verify_state`] may be called after it.
    pub fn abandon(&mut self, now: Instant) {
        self.stop(StopReason::Asked);
        self.end_timed_phase(now, None);
        self.finish(now);
    }

    /// Whether the job is in its `ramp_time`, whose measurements are discarded at its end.
    pub fn is_ramping(&self) -> bool {
        self.clock.ramping
    }

    /// Bytes the job moves in its own directions if nothing ends it earlier; `None` when only time ends it.
    pub fn planned_bytes(&self) -> Option<u64> {
        (!self.plan.time_based).then(|| self.plan.loop_bytes.saturating_mul(self.plan.loops))
    }

    /// Returns the measurements so far. Counts are current, latencies are those of the last [`JobThread::reaped`]. I/Os that were
    /// [exchanged](JobThread::exchanged) are in the measurements after [`JobThread::settle`]. Run
    /// times, latency classes and rate samples are those of the last window (`bwavgtime`). All are current once the job is done.
    pub fn stats(&self) -> &JobStats {
        &self.stats
    }

    /// The measurements, to which the host adds its own (processor time).
    pub fn stats_mut(&mut self) -> &mut JobStats {
        &mut self.stats
    }

    /// Whether [`Next::Done`] was reached.
    pub fn is_done(&self) -> bool {
        self.phase == Phase::Finished
    }
}

/// What fio reports for a verification failure.
const EILSEQ: i32 = 84;
