// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `iscsi://`: a logical unit of an iSCSI target, with a built-in initiator, over several sessions, with recovery.
//!
//! Synopsis: `iscsi://[USER[%PASSWORD]@]HOST[:PORT]/IQN/LUN[?OPTIONS]`, as libiscsi and QEMU have it (quote the `&` in a shell).
//! Options: `sessions`, 1..=64, default 4: maximum number of sessions, and so of hardware queues. `initiator`: our name;
//! default: the name in `/etc/iscsi/initiatorname.iscsi`, else a name made of the host's name. `header_digest`,
//! `data_digest`: `none` (default) or `crc32c`. `recovery_timeout`: seconds for which requests wait for a target that is
//! gone, default 120 (open-iscsi's `replacement_timeout`); then they fail with a transport error. `noop_interval`: seconds
//! of silence after which the driver sends the target a NOP-Out, default 5, 0 = never. `noop_timeout`: seconds to wait for
//! the answer, default 5; then the session counts as lost. `target_user`: the target must prove this identity (mutual CHAP).
//! Passwords: the environment variables `LIBISCSI_CHAP_PASSWORD` and, for the target, `LIBISCSI_CHAP_TARGET_PASSWORD`. All
//! users can read a command line.
//! Example: `iscsi://10.0.0.5/iqn.2026-11.com.example:disks/1?sessions=2`
//! What becomes of a request: READ, WRITE with FUA, SYNCHRONIZE CACHE, UNMAP or WRITE SAME for discards, WRITE SAME for
//! zeroes. The SCSI midlayer (`blk::scsi`) makes these commands and retries them. One hardware queue is one session of one
//! connection. Each session has its own sequence numbers and command window, so CPUs share none. Requests that are issued
//! together are sent together. Long data is not copied between the socket and the requests' memory, unless data digests are
//! on.
//! Recovery: a lost session is logged in again in the background, without a limit on attempts, with pauses of 20 ms to 1 s.
//! The new session is of the same nexus, so the target drops the tasks of the old one. Before a session carries requests,
//! the driver asks the logical unit for its identity and size; it asks again when the unit reports a change. A unit with
//! another identity counts as gone: no request is sent to it any more. A unit that has grown counts as the same. It keeps its
//! old size until [`Space::adopt`]; a smaller unit counts as gone. A unit without an identifier (no VPD
//! page 0x83 or 0x80) that is open for writing counts as gone when any session is lost. A command that is late (`io_timeout`) is aborted (ABORT TASK). If that does not help, the logical unit
//! is reset, then the target (warm); then all sessions are made anew. A unit that does not answer even then is offline until
//! a new session reads its identity and size.
//! [`Iscsi::execute`] sends passthrough commands, for example persistent reservations.
//! Limits: error recovery level 0, no multiple connections of a session, CHAP with MD5 only, no discovery by iSNS.
//! Source: RFC 7143; the URL of libiscsi; drivers/scsi/libiscsi.c of Linux 6.19 (recovery, no-ops).
//! Since: 0.1.

mod access;
mod attach;
mod changes;
mod chap;
mod dial;
mod discover;
mod ending;
mod initiator;
mod inquire;
mod link;
pub mod login;
mod own;
pub mod pdu;
mod queue;
mod raw;
pub mod reader;
mod resize;
mod tasks;
mod uri;

use crate::driver::remote::queue::QueueStatus;
pub use discover::{FoundUnit, discover, logical_units};
pub use inquire::{InquiryData, inquire};
pub use login::{Found, FoundPortal};
pub use raw::MAX_RAW_BYTES;
pub use uri::{DEFAULT_PORT, IscsiTarget, MAX_SESSIONS, Portal, is_scheme, parse, parse_portal};

use crate::clock;
use crate::driver::failures::{self, FailureReport};
use crate::driver::host_driver::HostDriver;
use crate::driver::issuer::Issuer;
use crate::driver::path::{Connections, DevicePath, DiskNames};
use crate::driver::path_log::{PathLog, PathMessage};
use crate::driver::per_hctx::PerHctx;
use crate::driver::remote::queue::{losses_of, sum_of};
use crate::driver::remote::reconnect::{Reconnect, Reconnector, Watch};
use crate::driver::scsi::{Checked, NotifyFn, RawAnswer, RawCommand, ScsiDepth, ScsiUnit};
use crate::driver::space::Space;
use crate::driver::target::{DriverTarget, Needs, OpenTarget};
use crate::error::{Error, ErrorKind, Result};
use crate::mem::Regions;
use attach::{Unit, attach, identify, is_ready};
use blk::driver::{Completions, Driver, RqBatch, TimedOut, TimeoutAnswer};
use blk::id::{HctxId, Sector};
use blk::limits::Limits;
use blk::scsi::alua;
use blk::scsi::cdb::{Cdb, opcode};
use blk::scsi::device::{Device, DeviceState};
use blk::scsi::disk::ScsiDisk;
use blk::scsi::disposition::Outcome;
use blk::scsi::host::{HostTemplate, ScsiHost};
use blk::scsi::transport::{
    Abort, Busy, CommandBatch, Help, LunId, Outcomes, Probed, Reset, Transport, TransportLimits,
};
use blk::status::{BlkStatus, QueueRqStatus};
use blk::time::{Duration, Instant};
use changes::UnitChanges;
use dial::{Line, dial, dial_within};
use initiator::Initiator;
use own::{Answer, TaskOwner};
use pdu::Function;
use queue::{Queue, SessionHealth, Timeouts};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Default number of sessions of a disk.
pub const DEFAULT_SESSIONS: u16 = 4;
/// While fewer requests than this are unsent, they may wait for those that are submitted right after them, to share one send.
const LAZY: u32 = 32;
/// Commands a session may have; the target's window may be smaller.
const CAN_QUEUE: u32 = 1024;
/// Maximum number of memory segments of one request. One system call may send those of several requests.
const MAX_SEGMENTS: u16 = 128;
/// Time limit of a command (`SD_TIMEOUT`).
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);
/// The session number that path checks use; hardware queues have lower numbers.
const CHECK_SESSION: u16 = u16::MAX;
/// Time limit of a login once the target is reachable.
const LOGIN_TIME: Duration = Duration::from_secs(15);

/// The iSCSI driver: a logical unit of an iSCSI target.
pub struct Iscsi {
    // First: it is dropped before the rest.
    _reconnector: Reconnector<Shared>,
    disk: ScsiDisk,
    shared: Arc<Shared>,
    sessions: u16,
    /// Held while reports of the unit are handled; other threads wait for this.
    acting: parking_lot::Mutex<()>,
}

/// The transport, and what reconnecting needs.
struct Shared {
    target: IscsiTarget,
    initiator: Initiator,
    /// As it was opened, or its size was adopted.
    unit: parking_lot::RwLock<Unit>,
    /// Blocks of the unit when its identity and size were last read.
    seen_blocks: AtomicU64,
    queues: PerHctx<Queue>,
    regions: Arc<Regions>,
    watch: Arc<Watch>,
    changes: Arc<UnitChanges>,
    /// The target's asynchronous messages.
    log: Arc<PathLog>,
    /// The logical unit is not the one that was opened, or can no longer be recognized.
    gone: AtomicBool,
    /// The disk is open for writing, and the unit has no identifier by which to recognize it.
    is_nameless: bool,
    /// The disk is one path of a multipath disk.
    is_path: bool,
    /// Sessions that have answered the reset in progress, as bits.
    reset_done: AtomicU64,
    /// All sessions are being made anew, because a command did not complete.
    is_resetting: AtomicBool,
    /// Set when the disk is started.
    device: OnceLock<Arc<Device>>,
    /// The unit's ALUA state by this path when it was opened, if that was asked.
    first_access: Option<alua::Access>,
    /// Called when that state may have changed.
    tell_access: OnceLock<NotifyFn>,
    /// Held by a check: a second login to the same session would make the target end the first.
    checking: parking_lot::Mutex<()>,
}

impl Shared {
    /// Opens another session for hardware queue `number`, if the logical unit is still the same. Also returns the count of
    /// changes that its identity check covers.
    fn dial(&self, number: u16) -> Result<(Line<'_>, u64)> {
        let verified = self.changes.count();
        let wanted = self.initiator.wanted(&self.target, Some(&self.target.name), number)?;
        let mut line = dial(&self.target.portal, &wanted, self.watch.over())?;
        let (unit, _) = identify(&mut line, self.target.lun).map_err(|e| e.within(&self.target.to_string()))?;
        if let Some(how) = self.change_to(&unit) {
            return Err(self.is_another(&how));
        }
        // The unit is back, and no old session is left; see `wants`.
        if self.is_path {
            self.gone.store(false, Ordering::Relaxed);
        }
        Ok((line, verified))
    }

    /// Opens a session in place of a lost one.
    fn dial_again(&self, number: u16) -> Result<(Line<'_>, u64)> {
        if self.is_nameless {
            return Err(self.is_another("has no identity (VPD page 0x83 or 0x80) to verify after a reconnect"));
        }
        self.dial(number)
    }

    /// Marks the unit as gone and drops all sessions: no request is sent or waits for an answer any more. Returns the error.
    fn is_another(&self, how: &str) -> Error {
        self.changes.note();
        // Relaxed: a thread that reads the old value finds no session to send on.
        self.gone.store(true, Ordering::Relaxed);
        self.queues.iter().for_each(|q| q.drop_session("the logical unit was replaced"));
        let retries = self.is_path && !self.is_nameless;
        let remedy = if retries { "retrying until the original is back" } else { "reopen the disk" };
        let text = format!("{} {how}; no requests are sent, because this may be another disk: {remedy}", self.target);
        Error::new(ErrorKind::Denied, text)
    }

    /// Checks, in a session of its own, that the logical unit is ready and still the same.
    fn test_unit_ready(&self, limit: Duration, stop: &OwnedFd) -> Result<()> {
        let _alone = self.alone_to_check(limit)?;
        let mut line = self.dial_to_check(limit, stop)?;
        self.is_still_there(&mut line)?;
        is_ready(&mut line, self.target.lun)?;
        line.log_out();
        Ok(())
    }

    /// Checks a path that may be in an ALUA state that takes no requests. Asks for that state first, and sends TEST UNIT
    /// READY only if the state takes requests.
    fn check_access(&self, limit: Duration, stop: &OwnedFd) -> Result<Checked> {
        let _alone = self.alone_to_check(limit)?;
        let mut line = self.dial_to_check(limit, stop)?;
        let access = access::access(&mut line, self.target.lun)?;
        let serves = access
            .as_ref()
            .is_none_or(|a| a.group.state.takes_requests() && a.group.state != alua::AccessState::Transitioning);
        let ready = self.is_still_there(&mut line);
        let ready = ready.and_then(|_| if serves { is_ready(&mut line, self.target.lun) } else { Ok(()) });
        line.log_out();
        Ok(Checked { access, ready: ready.map_err(|e| e.within(&self.target.to_string())) })
    }

    fn alone_to_check(&self, limit: Duration) -> Result<parking_lot::MutexGuard<'_, ()>> {
        let limit = std::time::Duration::from_nanos(limit.as_ns());
        let busy =
            || Error::new(ErrorKind::Io, format!("{}: an earlier check of this path is still running", self.target));
        self.checking.try_lock_for(limit).ok_or_else(busy)
    }

    fn dial_to_check<'a>(&self, limit: Duration, stop: &'a OwnedFd) -> Result<Line<'a>> {
        let wanted = self.initiator.wanted(&self.target, Some(&self.target.name), CHECK_SESSION)?;
        let limit = std::time::Duration::from_nanos(limit.as_ns());
        dial_within(limit, &self.target.portal, &wanted, stop)
    }

    /// Reads identity and size of the unit, and refuses another unit.
    fn is_still_there(&self, line: &mut Line<'_>) -> Result<Unit> {
        let (unit, _) = identify(line, self.target.lun)?;
        if let Some(how) = self.change_to(&unit) {
            // The sessions of the requests may not know it yet.
            self.changes.note();
            return Err(Error::new(ErrorKind::Denied, format!("it {how}")));
        }
        Ok(unit)
    }

    /// Returns how `now`, as it was just read, differs, if it is not the same unit.
    fn change_to(&self, now: &Unit) -> Option<String> {
        // Relaxed: `adopt` reads it after it has had the lock of `unit`, which is taken below.
        self.seen_blocks.store(now.blocks, Ordering::Relaxed);
        let unit = self.unit.read();
        (!unit.is_still(now)).then(|| unit.change_to(now))
    }

    /// Forgets a reset: no thread waits for its outcome any more.
    fn forget_reset(&self, function: Function) {
        self.reset_done.store(0, Ordering::Relaxed);
        self.queues.iter().for_each(|q| q.drop_managed(function));
    }

    /// Drops all sessions, and the target forgets their tasks. Done once every queue has a new session. Failed once no queue
    /// waits for a session and some have none.
    fn reset_host(&self, now: Instant) -> Help {
        if !self.is_resetting.swap(true, Ordering::Relaxed) {
            let why = "a command did not complete, and abort and reset failed";
            self.queues.iter().for_each(|q| q.drop_session(why));
            return Help::Begun;
        }
        // After the unit was replaced, the driver searches for it again only if this disk is a path of a multipath disk.
        let is_over = self.is_gone() && !self.is_path;
        let health: Vec<SessionHealth> = self.queues.iter().map(|q| q.health(now)).collect();
        if health.contains(&SessionHealth::Recovering) && !is_over {
            return Help::Begun;
        }
        self.is_resetting.store(false, Ordering::Relaxed);
        if health.iter().all(|health| *health == SessionHealth::Up) { Help::Done } else { Help::Failed }
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    #[inline]
    fn queue(&self, hctx: HctxId) -> &Queue {
        self.queues.get(hctx)
    }
}

impl Reconnect for Shared {
    const THREAD: &'static str = "iscsi-reconnect";
    const LINKS: &'static str = "iSCSI sessions";

    fn watch(&self) -> &Watch {
        &self.watch
    }

    fn look_after(&self) {
        self.queues.iter().for_each(|q| q.look_after(&self.regions));
    }

    /// Wants no session once the logical unit is another one. A path is an exception: it is retried once no old session is
    /// left, so a unit that comes back is identified on a new session.
    fn wants(&self) -> Vec<(Instant, usize)> {
        let wanted = self.queues.iter().enumerate().filter_map(|(i, q)| Some((q.wants_session()?, i)));
        if !self.is_gone() {
            return wanted.collect();
        }
        let why = "another session found that the logical unit was replaced";
        let is_left = |q: &Queue| !q.leave_if_idle(why);
        let is_asked = self.is_path && self.queues.iter().filter(|q| is_left(q)).count() == 0;
        if is_asked { wanted.collect() } else { Vec::new() }
    }

    fn attempt(&self, number: usize) -> Result<()> {
        let Some(queue) = self.queues.iter().nth(number) else { return Ok(()) };
        let (line, verified) = self.dial_again(number as u16)?;
        queue.attach(line, verified, false).map_err(|e| e.within(&self.target.to_string()))?;
        // The device went offline when recovery failed; it has now reported its identity and size.
        if let Some(device) = self.device.get().filter(|d| d.state() == DeviceState::Offline) {
            device.set_state(DeviceState::Running);
        }
        Ok(())
    }
}

impl Iscsi {
    /// Logs in and opens the logical unit; data comes from and goes to `regions`. With `write`, a read-only disk is refused.
    ///
    /// # Errors
    /// Denied: wrong credentials, or no disk of a kind that can be used. NotFound: no such portal, target or LUN. Others:
    /// the target cannot be reached. The text says which, and what to do.
    pub fn open(target: &IscsiTarget, write: bool, regions: Arc<Regions>) -> Result<Iscsi> {
        Iscsi::open_as(target, write, regions, None)
    }

    /// Opens the disk as one path of several. Commands that were in flight when a session was lost complete only when the
    /// target has dropped them, or after `recovery_timeout`. Only a new session of the same nexus shows that the target has
    /// dropped them. A refused connection shows nothing: something in between may refuse it while the target is alive. These
    /// commands then fail with a transport error, or are retried on any path. After `recovery_timeout`, or when the path was
    /// [given up](DevicePath::set_give_up), their outcome is unknown: a target that was silent for so long may still carry
    /// them out. With `asks_access`, the driver also asks for the path's ALUA state ([`ScsiUnit::access`]).
    ///
    /// # Errors
    /// The errors of [`Iscsi::open`].
    pub fn open_path(target: &IscsiTarget, write: bool, regions: Arc<Regions>, asks_access: bool) -> Result<Iscsi> {
        Iscsi::open_as(target, write, regions, Some(asks_access))
    }

    /// `path`: `None`: the disk is not a path of a multipath disk. Otherwise: whether its ALUA state is asked.
    fn open_as(target: &IscsiTarget, write: bool, regions: Arc<Regions>, path: Option<bool>) -> Result<Iscsi> {
        let is_path = path.is_some();
        let (watch, initiator) = (Arc::new(Watch::new()?), Initiator::of(target)?);
        let wanted = initiator.wanted(target, Some(&target.name), 0)?;
        let within = |e: Error| e.within(&target.to_string());
        let (unit, options, first_access) = {
            let mut line = dial(&target.portal, &wanted, watch.over()).map_err(within)?;
            let (unit, options) = attach(&mut line, target.lun).map_err(within)?;
            let first = if path == Some(true) { access::access(&mut line, target.lun).map_err(within)? } else { None };
            (unit, options, first)
        };
        if options.limits.read_only && write {
            let text = "is write-protected: use another disk for writes".to_owned();
            return Err(Error::new(ErrorKind::Denied, format!("{target} {text}")));
        }
        let (queues, gone) = (PerHctx::new(), AtomicBool::new(false));
        let (reset_done, is_resetting, device) = (AtomicU64::new(0), AtomicBool::new(false), OnceLock::new());
        let (target_of, is_nameless) = (target.clone(), write && !unit.identity.is_known());
        let shared = Arc::new(Shared {
            target: target_of,
            initiator,
            seen_blocks: AtomicU64::new(unit.blocks),
            unit: parking_lot::RwLock::new(unit),
            queues,
            regions,
            watch,
            changes: Arc::default(),
            log: Arc::default(),
            gone,
            is_nameless,
            is_path,
            reset_done,
            is_resetting,
            device,
            first_access,
            tell_access: OnceLock::new(),
            checking: parking_lot::Mutex::new(()),
        });
        let template = HostTemplate { can_queue: CAN_QUEUE, cmd_per_lun: CAN_QUEUE, ..HostTemplate::default() };
        let host = ScsiHost::new::<parking_lot::RawMutex>(template, shared.clone());
        let disk = ScsiDisk::new(host, target.lun, options);
        let disk = disk.map_err(|why| within(Error::new(ErrorKind::Denied, why)))?;
        let reconnector = Reconnector::start(&shared)?;
        let sessions = target.sessions.unwrap_or(DEFAULT_SESSIONS);
        Ok(Iscsi { _reconnector: reconnector, disk, shared, sessions, acting: parking_lot::Mutex::new(()) })
    }

    /// Returns the state of each hardware queue's sessions, and why no session can be made, if none can.
    pub fn status(&self) -> (Vec<QueueStatus>, Option<String>) {
        (self.shared.queues.iter().map(|q| q.core.status()).collect(), self.shared.watch.refusal())
    }

    /// Describes the lost sessions, if there are any.
    fn lost_sessions(&self) -> Option<String> {
        let (queues, refusal) = self.status();
        let (times, last) = losses_of(&queues)?;
        let disrupted: u64 = queues.iter().map(|q| q.replayed).sum();
        let target = &self.shared.target;
        let mut text = format!("{target}: sessions were lost {times} ({last}); {disrupted} commands were interrupted");
        if let Some(refusal) = refusal {
            text += &format!("; reconnecting failed: {refusal}");
        }
        Some(text)
    }

    /// Returns the logical unit's identity as text for people.
    pub fn identity(&self) -> String {
        self.shared.unit.read().identity.to_string()
    }

    /// Handles what the unit has reported about itself. Requests that are sent after this call take the report into account.
    #[inline]
    fn take_news(&self) {
        if self.disk.has_news() {
            self.act_on_news();
        }
    }

    #[cold]
    fn act_on_news(&self) {
        let _one = self.acting.lock();
        self.disk.take_news(|news| {
            if news.identity || news.capacity {
                self.shared.queues.iter().for_each(Queue::drop_if_stale);
            }
            if news.state
                && let Some(tell) = self.shared.tell_access.get()
            {
                tell();
            }
        });
    }
}

impl Transport for Shared {
    fn name(&self) -> &'static str {
        "iscsi"
    }

    fn limits(&self) -> TransportLimits {
        TransportLimits {
            max_sectors: attach::MAX_SECTORS,
            max_segments: MAX_SEGMENTS,
            timeout: COMMAND_TIMEOUT,
            host_reset: self.target.recovery_timeout + LOGIN_TIME,
        }
    }

    fn start(&self, lun: LunId, nr_hw_queues: u16, queue_depth: u32) -> std::result::Result<(), String> {
        assert_eq!(lun, self.target.lun, "not the logical unit of the sessions");
        let Shared { target, watch, changes, log, queues, .. } = self;
        let IscsiTarget { recovery_timeout, noop_interval, noop_timeout, .. } = *target;
        let timeouts = Timeouts { recovery_timeout, noop_interval, noop_timeout, fences: self.is_path };
        for i in 0..nr_hw_queues {
            // Made before other threads can see it.
            let fresh = Queue::new(timeouts, lun, Arc::clone(changes), Arc::clone(log), Arc::clone(watch));
            let fresh = fresh.map_err(|e| e.to_string())?;
            let queue = queues.get_or_init(i, || fresh);
            if !queue.core.start(queue_depth) {
                let (line, verified) = self.dial(i).map_err(|e| format!("session {} of {nr_hw_queues}: {e}", i + 1))?;
                queue.attach(line, verified, true).map_err(|e| e.to_string())?;
            }
        }
        queues.iter().skip(usize::from(nr_hw_queues)).for_each(|q| q.stop(&self.regions));
        Ok(())
    }

    fn queue(&self, batch: &mut CommandBatch<'_, '_>, now: Instant) -> Option<Busy> {
        let queue = Shared::queue(self, batch.hctx());
        queue.queue(batch, &self.regions, now)
    }

    fn poll(&self, _lun: LunId, hctx: HctxId, ended: &mut Outcomes<'_>, now: Instant) {
        Shared::queue(self, hctx).poll(ended, &self.regions, now);
    }

    fn abort(&self, _lun: LunId, hctx: HctxId, late: TimedOut, now: Instant) -> Abort {
        Shared::queue(self, hctx).abort(late, &self.regions, now)
    }

    /// Resets a LUN or target over each session, because each session has its own tasks and its answer follows theirs. A
    /// target is not reset cold, because that would end the sessions of other initiators. A host reset makes all sessions
    /// anew.
    fn reset(&self, what: Reset, _lun: LunId, now: Instant) -> Help {
        let function = match what {
            Reset::Lun => Function::LogicalUnitReset,
            Reset::Target => Function::TargetWarmReset,
            Reset::Host => return self.reset_host(now),
        };
        // Relaxed: one thread at a time asks for help.
        let done = self.reset_done.load(Ordering::Relaxed);
        let (mut now_done, mut waits) = (done, false);
        for (i, queue) in self.queues.iter().enumerate().filter(|(i, _)| done & 1 << i == 0) {
            match queue.manage(function, &self.regions, now) {
                // A lost session has no tasks.
                Some(Help::Done) | None => now_done |= 1 << i,
                Some(Help::Begun) => waits = true,
                Some(Help::Failed) => {
                    self.forget_reset(function);
                    return Help::Failed;
                }
            }
        }
        if !waits {
            self.forget_reset(function);
            return Help::Done;
        }
        self.reset_done.store(now_done, Ordering::Relaxed);
        Help::Begun
    }

    fn drop_reset(&self, what: Reset, _lun: LunId) {
        match what {
            Reset::Lun => self.forget_reset(Function::LogicalUnitReset),
            Reset::Target => self.forget_reset(Function::TargetWarmReset),
            Reset::Host => self.is_resetting.store(false, Ordering::Relaxed),
        }
    }

    fn probe(&self, _lun: LunId, cdb: &Cdb, _now: Instant) -> bool {
        let most = if cdb.opcode() == opcode::REQUEST_SENSE { u32::from(cdb.as_bytes()[4]) } else { 0 };
        self.queues.iter().any(|q| q.begin_own(TaskOwner::Midlayer, *cdb.padded(), &[], most, &self.regions))
    }

    fn probed(&self, _lun: LunId, now: Instant) -> Option<Probed> {
        let Answer { outcome, data, .. } =
            self.queues.iter().find_map(|q| q.own_answer(TaskOwner::Midlayer, &self.regions, now))?;
        // For a probe, an answer that is shorter than the buffer is not a failure.
        Some(Probed { outcome: Outcome { residual: 0, ..outcome }, data })
    }

    fn drop_probe(&self, _lun: LunId) {
        self.queues.iter().for_each(|q| q.drop_own(TaskOwner::Midlayer));
    }

    fn abandon(&self, _lun: LunId, _now: Instant) {
        self.queues.iter().for_each(|q| q.drop_session("error handling could not recover its commands"));
    }
}

impl Driver for Iscsi {
    fn name(&self) -> &'static str {
        "iscsi"
    }

    fn limits(&self) -> Limits {
        self.disk.limits()
    }

    fn capacity(&self) -> Sector {
        self.disk.capacity()
    }

    #[inline]
    fn budget(&self, hctx: HctxId) -> u32 {
        self.disk.budget(hctx)
    }

    fn start(&self, nr_hw_queues: u16, queue_depth: u32) -> std::result::Result<(), String> {
        if nr_hw_queues > self.sessions {
            let (n, target) = (self.sessions, &self.shared.target);
            return Err(format!(
                "{nr_hw_queues} hardware queues: {target} is used over at most {n} sessions; set nr_hw_queues={n}, or \
                 sessions={nr_hw_queues} in the target"
            ));
        }
        self.disk.start(nr_hw_queues, queue_depth)?;
        if let Some(device) = self.disk.device() {
            let _ = self.shared.device.set(Arc::clone(device));
        }
        Ok(())
    }

    fn queue_rqs(&self, batch: &mut RqBatch<'_>, now: Instant) -> QueueRqStatus {
        self.take_news();
        if self.shared.is_gone() && batch.remaining() > 0 {
            return QueueRqStatus::Error(BlkStatus::Offline);
        }
        self.disk.queue_rqs(batch, now)
    }

    fn timeout(&self, hctx: HctxId, late: TimedOut, done: &mut Completions, now: Instant) -> TimeoutAnswer {
        let answer = self.disk.timeout(hctx, late, done, now);
        self.take_news();
        answer
    }

    fn poll(&self, hctx: HctxId, done: &mut Completions, now: Instant) {
        self.disk.poll(hctx, done, now);
        self.take_news();
    }
}

impl HostDriver for Iscsi {
    fn max_hw_queues(&self) -> u16 {
        self.sessions
    }

    fn wait_since(&self, seen: u64, hctx: HctxId, _min: u32, timeout: Option<Duration>) {
        // Error handling has deadlines that no socket signals.
        let due = self.disk.next_due().map(|at| at.since(clock::now()));
        let timeout = timeout.into_iter().chain(due).min();
        self.shared.queue(hctx).wait(seen, timeout, &self.shared.regions);
    }

    fn wakes(&self, hctx: HctxId) -> u64 {
        self.shared.queue(hctx).core.wakes()
    }

    fn wake(&self, hctx: HctxId) {
        self.shared.queue(hctx).core.wake();
    }

    fn next_due(&self, hctx: HctxId) -> Option<Instant> {
        self.shared.queue(hctx).next_due().into_iter().chain(self.disk.next_due()).min()
    }

    fn ring_fd(&self, hctx: HctxId) -> Option<RawFd> {
        Some(self.shared.queue(hctx).core.ring_fd())
    }

    fn scsi(&self) -> &dyn ScsiUnit {
        self
    }

    fn space(&self) -> &dyn Space {
        self
    }

    fn path(&self) -> &dyn DevicePath {
        self
    }

    fn issuer(&self) -> &dyn Issuer {
        self
    }
}

impl ScsiUnit for Iscsi {
    fn access(&self) -> Option<alua::Access> {
        self.shared.first_access.clone()
    }

    fn check_access(&self, limit: Duration, stop: &OwnedFd) -> Option<Result<Checked>> {
        Some(self.shared.check_access(limit, stop).map_err(|e| e.within(&self.shared.target.to_string())))
    }

    fn on_access_change(&self, tell: NotifyFn) {
        let _ = self.shared.tell_access.set(tell);
    }

    fn command(&self, hctx: HctxId, command: &RawCommand<'_>) -> Option<Result<RawAnswer>> {
        Some(self.execute(hctx, command))
    }

    fn depth(&self) -> Option<ScsiDepth> {
        let device = self.disk.device()?;
        let template = self.disk.host().template();
        let queues = self.shared.queues.iter().filter(|q| q.core.status().used);
        let windows: Vec<u64> = self.shared.queues.iter().filter_map(Queue::window).collect();
        Some(ScsiDepth {
            can_queue: template.can_queue,
            cmd_per_lun: template.cmd_per_lun,
            queue_depth: device.queue_depth(),
            nr_hw_queues: queues.count() as u16,
            window: (!windows.is_empty()).then(|| windows.iter().sum()),
        })
    }
}

impl DevicePath for Iscsi {
    fn connections(&self) -> Option<Connections> {
        Some(sum_of(self.shared.queues.iter().map(|q| q.core.status())))
    }

    fn troubles(&self) -> Vec<String> {
        let failed = failures::trouble(&self.shared.target.to_string(), self.disk.host().failures());
        self.lost_sessions().into_iter().chain(failed).collect()
    }

    fn take_messages(&self) -> Vec<PathMessage> {
        let path = self.shared.target.to_string();
        let named = |message| PathMessage { path: Some(path.clone()), ..message };
        self.shared.log.take().into_iter().map(named).collect()
    }

    fn take_failures(&self) -> Vec<FailureReport> {
        failures::reports(&self.shared.target.to_string(), self.disk.host().failures())
    }

    fn set_give_up(&self, give_up: bool) -> bool {
        self.shared.queues.iter().for_each(|q| q.set_give_up(give_up));
        self.disk.host().set_give_up(give_up);
        true
    }

    /// Empty: the unit does not report an identity.
    fn identity(&self) -> Option<String> {
        Some(self.shared.unit.read().identity.in_full())
    }

    fn names(&self) -> Option<DiskNames> {
        Some(self.shared.unit.read().names.clone())
    }

    /// Sends TEST UNIT READY in a session of its own.
    fn check(&self, limit: Duration, stop: &OwnedFd) -> Option<Result<()>> {
        Some(self.shared.test_unit_ready(limit, stop).map_err(|e| e.within(&self.shared.target.to_string())))
    }
}

impl Issuer for Iscsi {
    fn set_lazy_commit(&self, hctx: HctxId, fewer_than: u32) {
        self.shared.queue(hctx).core.set_lazy_commit(fewer_than);
    }

    /// A send costs as much for ten requests as for one.
    fn lazy_hint(&self) -> u32 {
        LAZY
    }

    fn unclaim(&self) {
        self.shared.queues.iter().for_each(|q| q.core.set_lazy_commit(0));
    }
}

impl Drop for Iscsi {
    fn drop(&mut self) {
        self.shared.queues.iter().for_each(|q| q.stop(&self.shared.regions));
    }
}

impl DriverTarget for IscsiTarget {
    const KIND: &'static str = "iscsi";
    const HELP: &'static str = "
  iscsi://[USER@]HOST[:PORT]/IQN/LUN
                       a logical unit of an iSCSI target; &sessions=4, &recovery_timeout=SECONDS,
                       &header_digest=crc32c, &data_digest=crc32c after a '?'; USER's password is in the
                       environment: LIBISCSI_CHAP_PASSWORD";
    const IS_URL: bool = true;

    fn is_kind(word: &str) -> bool {
        is_scheme(word)
    }

    fn parse(text: &str, _rest: &str) -> Result<IscsiTarget> {
        parse(text)
    }

    fn open(&self, needs: &Needs, regions: Arc<Regions>) -> Result<OpenTarget> {
        OpenTarget::sized(Iscsi::open(self, needs.write, regions)?, needs, self, "")
    }

    fn is_same_data(&self, other: &Self) -> bool {
        (&self.name, self.lun) == (&other.name, other.lun)
    }
}
