// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The driver for a SCSI disk: requests become commands, and outcomes of commands become statuses of requests.
//!
//! Guarantees: a request is sent to the transport only if device, target and host can take it, checked in that order
//! (`scsi_queue_rq`). A request completes with the outcome of its last try. It gets at most [`DiskOptions::retries`]
//! retries, within the time limit of all tries together. A command that fails for good is noted in
//! [`ScsiHost::failures`]. Events that a device reports with a command (QUEUE FULL, a reset, a changed size) reach
//! [`Device`] and [`ScsiDisk::take_news`]. Needs from callers: options that were read from the device. Source:
//! drivers/scsi/scsi_lib.c and sd.c of Linux 6.19.

use super::cdb::{Cdb, unmap_parameters};
use super::device::{Device, DeviceState};
use super::disposition::{About, DeviceEvent, Failfast, Outcome, Verdict, after_help, judge};
use super::eh::{CommandId, Returned};
use super::failure::CommandFailure;
use super::host::ScsiHost;
use super::transport::{AcceptedCommand, Busy, CommandBatch, LunId, Note, Outcomes, Payload, Record};
use crate::bio::{Op, OpFlags};
use crate::driver::{Completions, Driver, InFlight, RqBatch, RqRef, TimedOut, TimeoutAnswer};
use crate::id::{HctxId, SECTOR_SHIFT, Sector};
use crate::limits::Limits;
use crate::status::{BlkStatus, QueueRqStatus};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::time::Instant;
use std::sync::{Arc, OnceLock};

/// Properties and settings of a disk, needed before its first request.
#[derive(Clone, Copy, Debug)]
pub struct DiskOptions {
    /// Size of a block in bytes; a power of two, 512..=65536.
    pub block_size: u32,
    /// Blocks of the medium when the disk is made.
    pub blocks: u64,
    /// Limits of one command, in addition to those of the transport.
    pub limits: Limits,
    /// Discards use UNMAP. Otherwise they use WRITE SAME with the unmap bit, if `limits` allows discards.
    pub has_unmap: bool,
    /// Blocks that WRITE SAME unmaps read as zeroes, so writes of zeroes may use it. Without this it would be a
    /// discard.
    pub unmap_zeroes: bool,
    /// Use only the 16-byte forms of commands.
    pub wide: bool,
    /// Maximum number of retries of a command.
    pub retries: u8,
    /// Failures that are not retried, because another path may be better.
    pub failfast: Failfast,
}

/// `SD_MAX_RETRIES`.
pub const SD_MAX_RETRIES: u8 = 5;

/// What a device has reported since the last [`ScsiDisk::take_news`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitEvents {
    /// Its size has changed.
    pub capacity: bool,
    /// It may be another device.
    pub identity: bool,
    /// It was reset, or its ALUA state has changed.
    pub state: bool,
}

const NEWS_CAPACITY: u32 = 1;
const NEWS_IDENTITY: u32 = 2;
const NEWS_STATE: u32 = 4;
/// A thread handles pending events.
const NEWS_ACTING: u32 = 8;

/// The driver for a SCSI disk. See the module's text.
pub struct ScsiDisk {
    host: Arc<ScsiHost>,
    lun: LunId,
    options: DiskOptions,
    /// Blocks of the medium now.
    blocks: AtomicU64,
    limits: Limits,
    block_shift: u32,
    /// Made by the first start, because only then the number of hardware queues is known.
    device: OnceLock<Arc<Device>>,
    news: AtomicU32,
}

impl ScsiDisk {
    /// Makes the disk at `lun` of a host.
    pub fn new(host: Arc<ScsiHost>, lun: LunId, options: DiskOptions) -> Result<ScsiDisk, String> {
        let block = options.block_size;
        if !block.is_power_of_two() || !(512..=65536).contains(&block) {
            return Err(format!("block size {block} of LUN {}: must be a power of two, 512..=65536", lun.0));
        }
        let carried = host.transport().limits();
        let limits = options.limits;
        let limits = Limits {
            logical_block_size: block,
            physical_block_size: limits.physical_block_size.max(block),
            max_hw_sectors: limits.max_hw_sectors.min(carried.max_sectors),
            max_sectors: limits.max_sectors.min(carried.max_sectors),
            max_segments: limits.max_segments.min(carried.max_segments),
            ..limits
        };
        limits.check().map_err(|why| format!("LUN {}: {why}", lun.0))?;
        Ok(ScsiDisk {
            host,
            lun,
            blocks: AtomicU64::new(options.blocks),
            options,
            limits,
            block_shift: block.trailing_zeros() - SECTOR_SHIFT,
            device: OnceLock::new(),
            news: AtomicU32::new(0),
        })
    }

    /// Returns the number of the LUN at the target.
    #[inline]
    pub fn lun(&self) -> LunId {
        self.lun
    }

    /// Returns the host of the LUN.
    pub fn host(&self) -> &Arc<ScsiHost> {
        &self.host
    }

    /// Returns the device with its state and depth; `None` before the first start.
    pub fn device(&self) -> Option<&Arc<Device>> {
        self.device.get()
    }

    /// Takes over the size of a medium that has grown. Blocks from 2^32 on need no [`DiskOptions::wide`]: their commands have the 16-byte
    /// form anyway.
    pub fn set_blocks(&self, blocks: u64) {
        self.blocks.store(blocks, Ordering::Relaxed);
    }

    fn started(&self) -> &Device {
        self.device.get().expect("a disk is started before its first request")
    }

    /// Whether a report of the device is not handled yet ([`ScsiDisk::take_news`]).
    #[inline]
    pub fn has_news(&self) -> bool {
        // Pairs with: ScsiDisk::hear
        self.news.load(Ordering::Acquire) != 0
    }

    /// Passes the device's reports since the last call to `act`. Only one thread may call this at a time.
    /// [`ScsiDisk::has_news`] stays true until `act` has returned, so other threads that send commands can wait for it.
    pub fn take_news<R>(&self, act: impl FnOnce(UnitEvents) -> R) -> R {
        // Pairs with: ScsiDisk::hear
        let bits = self.news.swap(NEWS_ACTING, Ordering::AcqRel);
        let has = |bit| bits & bit != 0;
        let result =
            act(UnitEvents { capacity: has(NEWS_CAPACITY), identity: has(NEWS_IDENTITY), state: has(NEWS_STATE) });
        // Pairs with: ScsiDisk::has_news
        self.news.fetch_and(!NEWS_ACTING, Ordering::Release);
        result
    }

    #[inline]
    pub(super) fn admit(&self, hctx: HctxId) -> Result<(), QueueRqStatus> {
        let device = self.started();
        self.host.admit(device)?;
        device.admit(hctx)
    }

    #[inline]
    pub(super) fn release(&self, hctx: HctxId) {
        self.started().release(hctx);
    }

    /// Returns the command for a request.
    #[inline]
    pub(super) fn command_of(&self, rq: &RqRef<'_>) -> Result<(Cdb, Payload), BlkStatus> {
        let wide = self.options.wide;
        if rq.op() == Op::Flush {
            return Ok((Cdb::synchronize_cache(wide), Payload::None));
        }
        let (lba, blocks) = (rq.sector().0 >> self.block_shift, rq.nr_sectors() >> self.block_shift);
        let has = |flag| rq.flags().contains(flag);
        Ok(match rq.op() {
            Op::Read => (Cdb::read(lba, blocks, wide), Payload::Read),
            Op::Write => (Cdb::write(lba, blocks, has(OpFlags::FUA), wide), Payload::Write),
            Op::Discard if self.options.has_unmap => (Cdb::unmap(), Payload::Unmap(unmap_parameters(lba, blocks))),
            Op::Discard => (Cdb::write_same_16(lba, blocks, true), Payload::Zeroes(self.options.block_size)),
            // Only the device knows whether WRITE SAME is fast.
            Op::WriteZeroes if has(OpFlags::NOFALLBACK) => return Err(BlkStatus::NotSupp),
            Op::WriteZeroes => {
                let unmap = self.options.unmap_zeroes && !has(OpFlags::NOUNMAP);
                (Cdb::write_same_16(lba, blocks, unmap), Payload::Zeroes(self.options.block_size))
            }
            Op::Flush => unreachable!("done above"),
        })
    }

    /// Handles a command that the transport gave back.
    #[inline]
    pub(super) fn came_back(
        &self,
        hctx: HctxId,
        ticket: AcceptedCommand,
        (outcome, cdb): (&Outcome, Option<&[u8; 16]>),
        done: &mut Completions,
        now: Instant,
    ) {
        let AcceptedCommand { rq, note } = ticket;
        let device = self.started();
        device.release(hctx);
        device.unblock();
        self.host.unblock();
        if outcome.is_good() && !self.host.recovery.is_active() {
            device.went_well(now);
            return done.push(rq, BlkStatus::Ok);
        }
        self.came_back_badly(hctx, (rq, Record { note, cdb: cdb.copied() }), outcome, done, now);
    }

    /// Handles a command that did not succeed, or that was given back during error handling.
    #[cold]
    fn came_back_badly(
        &self,
        hctx: HctxId,
        (rq, record): (InFlight, Record),
        outcome: &Outcome,
        done: &mut Completions,
        now: Instant,
    ) {
        let id = CommandId { lun: self.lun, hctx, tag: rq.tag() };
        let Record { note, cdb } = record;
        let (rq, judged) = match self.host.recovery.came_back(id, rq, record, outcome) {
            Returned::Kept => return,
            Returned::Helped(rq) => (rq, after_help(outcome, &self.about_helped(note, now), self.is_online())),
            Returned::Judge(rq) => (rq, judge(outcome, &self.about(note, now))),
        };
        self.hear(judged.event, now);
        self.settle(rq, judged.verdict, (outcome, cdb), done);
    }

    fn is_online(&self) -> bool {
        matches!(self.state(), DeviceState::Running | DeviceState::Blocked)
    }

    #[cold]
    fn about(&self, note: Note, now: Instant) -> About {
        let retries = self.options.retries;
        let timeout = self.host.transport().limits().timeout;
        let all = crate::time::Duration::from_ns(timeout.as_ns().saturating_mul(u64::from(retries) + 1));
        About {
            is_last: note.retries >= retries,
            is_late: now.since(note.began) >= all,
            is_optional: note.is_optional,
            failfast: self.options.failfast,
            allow_restart: self.host.template().allow_restart,
        }
    }

    /// Like [`ScsiDisk::about`], for a command that recovery released: it is not retried while the host gives up.
    #[cold]
    fn about_helped(&self, note: Note, now: Instant) -> About {
        let about = self.about(note, now);
        About { is_last: about.is_last || self.host.recovery.gives_up(), ..about }
    }

    /// Examines the outcome of a passthrough command, which the transport carried without a request. A device reports a
    /// state once, with the next command, so every outcome has to be examined here. The reports go to
    /// [`ScsiDisk::take_news`].
    #[cold]
    pub fn overhear(&self, outcome: &Outcome, now: Instant) {
        match judge(outcome, &About::default()).event {
            // Only commands of requests change the queue depth.
            DeviceEvent::QueueFull => {}
            event => self.hear(event, now),
        }
    }

    #[cold]
    fn hear(&self, event: DeviceEvent, now: Instant) {
        let bit = match event {
            DeviceEvent::None | DeviceEvent::Good => return,
            DeviceEvent::QueueFull => return self.started().queue_full(now),
            DeviceEvent::CapacityChanged => NEWS_CAPACITY,
            DeviceEvent::Changed => NEWS_IDENTITY,
            DeviceEvent::StateChanged => NEWS_STATE,
        };
        // Pairs with: ScsiDisk::has_news
        self.news.fetch_or(bit, Ordering::Release);
    }
}

impl Driver for ScsiDisk {
    fn name(&self) -> &'static str {
        self.host.transport().name()
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn capacity(&self) -> Sector {
        // Relaxed: a number by itself.
        Sector(self.blocks.load(Ordering::Relaxed) << self.block_shift)
    }

    fn start(&self, nr_hw_queues: u16, queue_depth: u32) -> Result<(), String> {
        self.host.transport().start(self.lun, nr_hw_queues, queue_depth)?;
        let device = self.device.get_or_init(|| {
            let device = Arc::new(self.host.device(nr_hw_queues, queue_depth));
            self.host.recovery.join(self.lun, &device);
            device
        });
        device.use_queues(nr_hw_queues, self.host.tags(nr_hw_queues, queue_depth))
    }

    #[inline]
    fn queue_rqs(&self, batch: &mut RqBatch<'_>, now: Instant) -> QueueRqStatus {
        let mut commands = CommandBatch { batch, disk: self, is_admitted: false, refused: None, now };
        let busy = self.host.transport().queue(&mut commands, now);
        let (refused, left) = (commands.refused, commands.batch.remaining());
        drop(commands);
        match (refused, busy) {
            _ if left == 0 => QueueRqStatus::Queued,
            (Some(status), _) => status,
            (None, Some(Busy::Device)) => self.started().was_busy(),
            (None, Some(Busy::Target)) => self.host.target_was_busy(self.started()),
            (None, Some(Busy::Host)) => self.host.was_busy(self.started()),
            (None, Some(Busy::Hctx)) => self.started().busy_status_at(batch.hctx()),
            (None, None) => self.left_behind(left),
        }
    }

    #[inline]
    fn budget(&self, _hctx: HctxId) -> u32 {
        self.started().budget()
    }

    /// Aborts a late command, unless recovery already has it.
    fn timeout(&self, hctx: HctxId, late: TimedOut, done: &mut Completions, now: Instant) -> TimeoutAnswer {
        self.host.recovery.late(CommandId { lun: self.lun, hctx, tag: late.tag }, late.issued);
        self.help(hctx, done, now);
        // A poll gives the command back in any case. If its abort waits for others, this function is called again.
        TimeoutAnswer::ResetTimer
    }

    #[inline]
    fn poll(&self, hctx: HctxId, done: &mut Completions, now: Instant) {
        self.host.transport().poll(self.lun, hctx, &mut Outcomes { done, disk: self, hctx, now }, now);
        if self.host.recovery.is_active() {
            self.help(hctx, done, now);
        }
    }
}

impl ScsiDisk {
    /// Completes or resends a command that did not succeed at once. Notes its failure if it completes with an error.
    #[cold]
    fn settle(
        &self,
        rq: InFlight,
        verdict: Verdict,
        (outcome, cdb): (&Outcome, Option<[u8; 16]>),
        done: &mut Completions,
    ) {
        match verdict {
            Verdict::End(status) => {
                // A command that the device need not support is done another way.
                if !matches!(status, BlkStatus::Ok | BlkStatus::NotSupp) {
                    let failure = CommandFailure { lun: self.lun.0, cdb, outcome: *outcome, status };
                    self.host.failures.note(failure);
                }
                done.push(rq, status);
            }
            Verdict::Retry => done.retry(rq, None),
            Verdict::Requeue(delay) => done.requeue(rq, delay),
            Verdict::Recover => unreachable!("what waits for recovery is kept"),
        }
    }

    /// Continues error handling, then completes or resends the commands that waited for it.
    #[cold]
    fn help(&self, hctx: HctxId, done: &mut Completions, now: Instant) {
        self.host.recovery.drive(self.host.transport(), now);
        self.host.recovery.tell_heard(self.lun, |event| self.hear(event, now));
        for held in self.host.recovery.take_freed(self.lun, hctx, done.room()) {
            let Record { note, cdb } = held.record;
            let judged = after_help(&held.outcome, &self.about_helped(note, now), self.is_online());
            self.hear(judged.event, now);
            self.settle(held.rq, judged.verdict, (&held.outcome, cdb), done);
        }
    }

    /// Returns when error handling needs a poll although no command has completed.
    pub fn next_due(&self) -> Option<Instant> {
        self.host.recovery.next_due()
    }

    #[cold]
    fn left_behind(&self, left: usize) -> ! {
        panic!("transport '{}', LUN {}: left {left} commands without a status", self.name(), self.lun.0)
    }

    /// The device's state.
    pub fn state(&self) -> DeviceState {
        self.device.get().map_or(DeviceState::Running, |d| d.state())
    }
}
