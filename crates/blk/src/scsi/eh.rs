// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SCSI error handling: the escalation from abort to taking a device offline.
//!
//! A late command is aborted and retried. If the abort fails, the host takes no new commands until all commands in
//! flight have completed or are late as well. Then recovery goes up level by level. After each level TEST UNIT READY
//! (`eh_timeout`) shows whether the device works again. The levels and their timeouts:
//!
//! - REQUEST SENSE if sense data is missing: `eh_timeout`;
//! - abort of each command: `eh_timeout`. An abort that waits for others has up to three times that. Its time is not
//!   extended once the host recovers or gives up, because an earlier abort may have failed;
//! - START UNIT if the sense data asks for it: `eh_timeout`;
//! - reset of the LUN: `eh_timeout`;
//! - reset of the target: `eh_timeout`;
//! - reset of the host: `host_reset` of its transport. When recovery has taken `eh_deadline`, it skips to this level;
//! - offline: devices that still do not work. While the host gives up (`set_give_up`), recovery skips to this level
//!   after one second.
//!
//! Guarantees: a command in recovery completes only after its transport has given it back *and* its device has answered
//! again or is offline. Each command is released once. Every wait has a time limit. A reset or probe that recovery no
//! longer polls is dropped, so its result is never mistaken for the result of a later one.
//!
//! Needs from callers: calls of `EhLadder::next` while `EhLadder::is_calm` is false, at the latest at
//! `EhLadder::next_due`. The caller does the returned action at once and passes its result to `EhLadder::result`.
//! Only one caller at a time.
//!
//! The ladder is a plain value: its owner (`super::recovery`) locks it, and calls the transport with the ladder
//! unlocked. Source: drivers/scsi/scsi_error.c (`scmd_eh_abort_handler`, `scsi_unjam_host`, `scsi_eh_ready_devs`,
//! `scsi_eh_flush_done_q`) of Linux 6.19. The kernel recovers one device after the other; this code recovers all
//! devices of a level together.

use super::disposition::{About, DeviceEvent, HostByte, Judged, Outcome, Verdict, judge};
use super::sense::{Sense, SenseKey};
use super::transport::{Abort, Help, LunId, Probed, Record, Reset};
use crate::driver::InFlight;
use crate::id::{HctxId, Tag};
use crate::time::{Duration, Instant};

/// `SCSI_DEFAULT_EH_TIMEOUT`.
pub(crate) const EH_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which an action in progress is polled.
const LOOK: Duration = Duration::from_ms(10);
/// How long recovery may take from its start while it gives up.
pub(super) const GIVE_UP: Duration = Duration::from_secs(1);
/// An abort that waits for other aborts fails after this many times `eh_timeout`.
const MOST_WAITS: u64 = 3;
/// How often the test of a device is repeated after a retryable status (`scsi_eh_tur`).
const MORE_TESTS: u8 = 1;

/// Timeouts and options of a host's recovery.
#[derive(Clone, Copy, Debug)]
pub(super) struct EhOptions {
    pub(super) eh_timeout: Duration,
    pub(super) eh_deadline: Option<Duration>,
    pub(super) host_reset: Duration,
    pub(super) allow_restart: bool,
}

/// Identifies a command: at most one command with this identifier is outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CommandId {
    pub(super) lun: LunId,
    pub(super) hctx: HctxId,
    pub(super) tag: Tag,
}

/// The kind of a probe, which is a command that the midlayer itself sends to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeKind {
    Sense,
    StartUnit,
    Ready,
}

/// An action that the owner has to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EhAction {
    /// Abort the command that was issued at this time, or poll that abort.
    Abort(CommandId, Instant),
    /// Begin a reset, or poll it.
    Reset(Reset, LunId),
    Probe(LunId, ProbeKind),
    /// Poll the answer to the device's probe.
    Probed(LunId),
    /// Drop a probe: its answer is not polled any more.
    DropProbe(LunId),
    /// Drop a reset that was begun: its result is not polled any more.
    DropReset(Reset, LunId),
    /// Take the device offline, and have the transport give back all its commands.
    Offline(LunId),
}

/// The result of an [`EhAction`].
#[derive(Debug)]
pub(super) enum EhResult {
    Abort(Abort),
    Reset(Help),
    /// Whether the probe was sent.
    Sent(bool),
    Answer(Option<Probed>),
    Done,
}

/// A command that the transport gave back and that waits for its device to recover.
#[derive(Debug)]
pub(super) struct HeldCommand {
    pub(super) rq: InFlight,
    pub(super) record: Record,
    pub(super) outcome: Outcome,
}

#[derive(Debug)]
struct LateCommand {
    id: CommandId,
    issued: Instant,
    step: RecoveryStep,
    /// When its abort was first requested; `waits`: whether the abort waits for others since the last request.
    asked: Option<Instant>,
    waits: bool,
    held: Option<HeldCommand>,
    /// An abort gave it back during recovery.
    was_aborted: bool,
}

impl LateCommand {
    fn is_out(&self) -> bool {
        self.held.is_none()
    }

    fn lacks_sense(&self) -> bool {
        self.held.as_ref().is_some_and(|h| h.outcome.lacks_sense())
    }

    fn wants_start(&self) -> bool {
        let sense = self.held.as_ref().and_then(|h| h.outcome.sense);
        sense.is_some_and(|s| s.wants_start())
    }
}

/// Progress of one recovery action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecoveryStep {
    Todo,
    /// Begun; time of the last check.
    Begun {
        until: Instant,
        asked: Instant,
    },
    /// The action has worked; commands still in flight must be given back by this time.
    Settling(Instant),
    /// The device has to be tested with TEST UNIT READY, and again this many times after a retryable status.
    Test(u8),
    Testing {
        until: Instant,
        asked: Instant,
        tries: u8,
    },
    /// The action did not help, or this level has no action for the unit.
    Failed,
    Over,
    /// A command that the transport has not given back although its device went offline. It completes when it is
    /// given back.
    Orphan,
}

impl RecoveryStep {
    /// Whether it is due to be checked; if so, notes `now` as the time of the check.
    fn look(&mut self, now: Instant) -> bool {
        match self {
            RecoveryStep::Begun { asked, .. } | RecoveryStep::Testing { asked, .. } if *asked < now => {
                *asked = now;
                true
            }
            _ => false,
        }
    }

    fn is_past(self, now: Instant) -> bool {
        match self {
            RecoveryStep::Begun { until, .. } | RecoveryStep::Testing { until, .. } | RecoveryStep::Settling(until) => {
                now >= until
            }
            _ => false,
        }
    }
}

/// What is in progress for a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Pending {
    #[default]
    Nothing,
    /// The answer to a probe.
    Answer,
    /// A reset of this LUN alone.
    Reset,
}

/// A device whose commands wait for recovery.
#[derive(Debug)]
struct UnitRecovery {
    lun: LunId,
    step: RecoveryStep,
    owed: Pending,
}

impl UnitRecovery {
    /// Drops the probe or reset in progress. Returns the action for that.
    fn drop_owed(&mut self) -> Option<EhAction> {
        match std::mem::take(&mut self.owed) {
            Pending::Nothing => None,
            Pending::Answer => Some(EhAction::DropProbe(self.lun)),
            Pending::Reset => Some(EhAction::DropReset(Reset::Lun, self.lun)),
        }
    }
}

/// The level that recovery has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EhLevel {
    Sense,
    Abort,
    StartUnit,
    Lun,
    Target,
    Host,
    Offline,
}

const EH_LEVELS: [EhLevel; 7] = [
    EhLevel::Sense,
    EhLevel::Abort,
    EhLevel::StartUnit,
    EhLevel::Lun,
    EhLevel::Target,
    EhLevel::Host,
    EhLevel::Offline,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EhStage {
    /// No recovery; single commands may be aborted.
    Calm,
    /// No new commands: recovery waits until those in flight have completed or are late.
    Gather,
    Climb(EhLevel),
}

/// Counters of error handling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EhStats {
    /// Commands that were late.
    pub late: u64,
    /// Of those, given back by an abort.
    pub aborted: u64,
    /// Times the host stopped for recovery.
    pub recoveries: u64,
    /// Resets that were begun: of a LUN, of a target, of the host.
    pub resets: [u64; 3],
    /// Times a device went offline.
    pub offline: u64,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct EhLadder {
    options: EhOptions,
    lates: Vec<LateCommand>,
    freed: Vec<(CommandId, HeldCommand)>,
    /// Events that devices reported in their answers to probes, each once.
    heard: Vec<(LunId, DeviceEvent)>,
    units: Vec<UnitRecovery>,
    stage: EhStage,
    /// Progress of the single reset that the target and host levels do for all units.
    whole: RecoveryStep,
    /// That reset, while it is in progress.
    whole_owed: Option<(Reset, LunId)>,
    gives_up: bool,
    /// When recovery began.
    since: Instant,
    looked: Instant,
    stats: EhStats,
}

/// How a command that was given back during error handling is handled.
#[derive(Debug)]
pub(super) enum Returned {
    /// As usual: its outcome decides.
    Judge(InFlight),
    /// Recovery has finished with it: it is retried if that is allowed.
    Helped(InFlight),
    /// It is held until its device has recovered.
    Kept,
}

impl EhLadder {
    pub(super) fn new(options: EhOptions) -> EhLadder {
        EhLadder {
            options,
            lates: Vec::new(),
            freed: Vec::new(),
            heard: Vec::new(),
            units: Vec::new(),
            stage: EhStage::Calm,
            whole: RecoveryStep::Todo,
            whole_owed: None,
            gives_up: false,
            since: Instant::ZERO,
            looked: Instant::ZERO,
            stats: EhStats::default(),
        }
    }

    pub(super) fn stats(&self) -> EhStats {
        self.stats
    }

    /// Whether error handling has nothing to do and holds no command.
    pub(super) fn is_calm(&self) -> bool {
        self.lates.is_empty() && self.freed.is_empty() && self.heard.is_empty() && self.stage == EhStage::Calm
    }

    /// Whether the host takes no new commands.
    pub(super) fn is_recovering(&self) -> bool {
        self.stage != EhStage::Calm
    }

    /// Whether the host takes no new commands: during recovery, and until a device's report is handled while commands
    /// of that device are to be released.
    pub(super) fn stops_commands(&self) -> bool {
        let waits = |lun: LunId| self.freed.iter().any(|(id, _)| id.lun == lun);
        self.is_recovering() || self.heard.iter().any(|(lun, _)| waits(*lun))
    }

    /// Turns giving up on or off: while it is on, recovery takes one second at most.
    pub(super) fn set_give_up(&mut self, give_up: bool) {
        self.gives_up = give_up;
    }

    pub(super) fn gives_up(&self) -> bool {
        self.gives_up
    }

    /// Returns when [`EhLadder::next`] has to be called again although no command has completed.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let waits = self.stage != EhStage::Calm || self.lates.iter().any(|l| l.step != RecoveryStep::Orphan);
        if self.freed.is_empty() { waits.then(|| self.looked + LOOK) } else { Some(self.looked) }
    }

    /// Notes a command that is late.
    pub(super) fn late(&mut self, id: CommandId, issued: Instant) {
        if let Some(known) = self.lates.iter_mut().find(|l| l.id == id) {
            // The known command was an earlier one with this tag, which completed meanwhile.
            if known.issued != issued && known.is_out() {
                (known.issued, known.step, known.asked) = (issued, RecoveryStep::Todo, None);
                known.waits = false;
            }
            return;
        }
        self.stats.late += 1;
        self.lates.push(LateCommand {
            id,
            issued,
            step: RecoveryStep::Todo,
            asked: None,
            waits: false,
            held: None,
            was_aborted: false,
        });
    }

    /// Handles a command that the transport gave back.
    pub(super) fn came_back(&mut self, id: CommandId, rq: InFlight, record: Record, outcome: &Outcome) -> Returned {
        let found = self.lates.iter().position(|l| l.id == id && l.is_out());
        let about = About { allow_restart: self.options.allow_restart, ..About::default() };
        let needs_help = judge(outcome, &about).verdict == Verdict::Recover;
        let was_helped = matches!(outcome.host, HostByte::Abort | HostByte::Reset);
        let Some(index) = found else {
            if !needs_help {
                return Returned::Judge(rq);
            }
            let held = Some(HeldCommand { rq, record, outcome: *outcome });
            let (issued, step) = (Instant::ZERO, RecoveryStep::Failed);
            self.lates.push(LateCommand { id, issued, step, asked: None, waits: false, held, was_aborted: false });
            return Returned::Kept;
        };
        let is_orphan = self.lates[index].step == RecoveryStep::Orphan;
        if !is_orphan && (needs_help || self.is_recovering() && outcome.host != HostByte::Ok) {
            let late = &mut self.lates[index];
            late.was_aborted = matches!(late.step, RecoveryStep::Begun { .. } | RecoveryStep::Over) && was_helped;
            self.stats.aborted += u64::from(late.was_aborted);
            (late.step, late.held) = (RecoveryStep::Failed, Some(HeldCommand { rq, record, outcome: *outcome }));
            return Returned::Kept;
        }
        self.stats.aborted += u64::from(outcome.host == HostByte::Abort);
        // The other commands keep their order, because aborts are done one after the other.
        self.lates.remove(index);
        if was_helped || is_orphan { Returned::Helped(rq) } else { Returned::Judge(rq) }
    }

    /// Returns the next action while `in_flight` commands of the host are in flight. `None`: nothing to do until a
    /// command has completed, or until [`EhLadder::next_due`].
    pub(super) fn next(&mut self, now: Instant, in_flight: u32) -> Option<EhAction> {
        self.looked = now;
        loop {
            if let Some(action) = self.next_abort(now) {
                return Some(action);
            }
            match self.stage {
                EhStage::Calm if self.lates.iter().any(|l| l.step == RecoveryStep::Failed) => {
                    (self.stage, self.since) = (EhStage::Gather, now);
                    self.stats.recoveries += 1;
                }
                EhStage::Calm => return None,
                EhStage::Gather => {
                    let pending = |l: &LateCommand| {
                        l.is_out() && matches!(l.step, RecoveryStep::Begun { .. } | RecoveryStep::Over)
                    };
                    let out = self.lates.iter().filter(|l| l.is_out()).count();
                    let must_wait = in_flight as usize > out || self.lates.iter().any(pending);
                    if must_wait && self.shortcut(now) != Some(EhLevel::Offline) {
                        return None;
                    }
                    self.begin_climb();
                }
                EhStage::Climb(level) => {
                    if let Some(to) = self.shortcut(now).filter(|to| level < *to) {
                        if let Some(action) = self.leave_level(to) {
                            return Some(action);
                        }
                        continue;
                    }
                    if let Some(action) = self.climb(level, now) {
                        return Some(action);
                    }
                    if self.units.iter().all(|u| u.step == RecoveryStep::Over) {
                        if let Some(action) = self.drop_whole() {
                            return Some(action);
                        }
                        self.finish();
                    } else if self.units.iter().any(|u| !matches!(u.step, RecoveryStep::Failed | RecoveryStep::Over)) {
                        return None;
                    } else if let Some(above) = EH_LEVELS.into_iter().find(|r| *r > level) {
                        self.enter(above);
                    }
                }
            }
        }
    }

    /// Returns the level to skip to when the time for the lower levels is over.
    fn shortcut(&self, now: Instant) -> Option<EhLevel> {
        let spent = now.since(self.since);
        if self.gives_up && spent >= GIVE_UP {
            return Some(EhLevel::Offline);
        }
        self.options.eh_deadline.is_some_and(|most| spent >= most).then_some(EhLevel::Host)
    }

    /// Returns the next command whose abort is to be begun or polled.
    fn next_abort(&mut self, now: Instant) -> Option<EhAction> {
        let begins = matches!(self.stage, EhStage::Calm | EhStage::Climb(EhLevel::Abort));
        for late in self.lates.iter_mut().filter(|l| l.is_out()) {
            if late.step.is_past(now) {
                late.step = RecoveryStep::Failed;
            } else if begins && late.step == RecoveryStep::Todo || late.step.look(now) {
                return Some(EhAction::Abort(late.id, late.issued));
            }
        }
        None
    }

    fn begin_climb(&mut self) {
        for late in self.lates.iter().filter(|l| l.step != RecoveryStep::Orphan) {
            let lun = late.id.lun;
            if !self.units.iter().any(|u| u.lun == lun) {
                self.units.push(UnitRecovery { lun, step: RecoveryStep::Todo, owed: Pending::Nothing });
            }
        }
        self.enter(EhLevel::Sense);
    }

    fn enter(&mut self, level: EhLevel) {
        assert!(self.whole_owed.is_none(), "a reset is neither asked about any more nor dropped");
        self.stage = EhStage::Climb(level);
        self.whole = RecoveryStep::Todo;
        self.units.iter_mut().filter(|u| u.step != RecoveryStep::Over).for_each(|u| u.step = RecoveryStep::Todo);
    }

    /// Drops the reset for all units.
    fn drop_whole(&mut self) -> Option<EhAction> {
        self.whole_owed.take().map(|(what, lun)| EhAction::DropReset(what, lun))
    }

    /// Drops what is in progress at this level, one action a call, and enters another level.
    fn leave_level(&mut self, to: EhLevel) -> Option<EhAction> {
        if let Some(action) = self.units.iter_mut().find_map(UnitRecovery::drop_owed).or_else(|| self.drop_whole()) {
            return Some(action);
        }
        for late in self.lates.iter_mut().filter(|l| l.is_out() && l.step != RecoveryStep::Orphan) {
            late.step = RecoveryStep::Failed;
        }
        self.enter(to);
        None
    }

    /// Returns the next action of a level.
    fn climb(&mut self, level: EhLevel, now: Instant) -> Option<EhAction> {
        let until = now + self.options.eh_timeout;
        if matches!(level, EhLevel::Target | EhLevel::Host)
            && let Some(action) = self.climb_together(level, now)
        {
            return Some(action);
        }
        let EhLadder { units, lates, stats, .. } = self;
        for unit in units {
            let lun = unit.lun;
            let mut of_unit = lates.iter().filter(|l| l.id.lun == lun && l.step != RecoveryStep::Orphan);
            if unit.step == RecoveryStep::Over {
                continue;
            }
            // All its commands have completed by themselves, or the action has settled them.
            let is_settled = of_unit.clone().next().is_none() && unit.owed != Pending::Answer;
            if is_settled || unit.step.is_past(now) {
                // A device that went offline does not hold up the others.
                unit.step =
                    if is_settled || level == EhLevel::Offline { RecoveryStep::Over } else { RecoveryStep::Failed };
                if let Some(action) = unit.drop_owed() {
                    return Some(action);
                }
                continue;
            }
            match unit.step {
                RecoveryStep::Todo => {
                    let action = match begin(level, lun, of_unit) {
                        FirstAction::Later => continue,
                        FirstAction::Nothing => {
                            unit.step = RecoveryStep::Failed;
                            continue;
                        }
                        FirstAction::Test => {
                            (unit.step, unit.owed) = (RecoveryStep::Test(MORE_TESTS), Pending::Answer);
                            return Some(EhAction::Probe(lun, ProbeKind::Ready));
                        }
                        FirstAction::Do(action) => action,
                    };
                    unit.owed = match action {
                        EhAction::Probe(..) => Pending::Answer,
                        EhAction::Reset(..) => Pending::Reset,
                        _ => Pending::Nothing,
                    };
                    stats.resets[Reset::Lun as usize] += u64::from(level == EhLevel::Lun);
                    unit.step = RecoveryStep::Begun { until, asked: now };
                    return Some(action);
                }
                RecoveryStep::Settling(_) if of_unit.any(LateCommand::is_out) => {}
                RecoveryStep::Settling(_) if level == EhLevel::Offline => unit.step = RecoveryStep::Over,
                RecoveryStep::Settling(_) | RecoveryStep::Test(_) => {
                    let tries = if let RecoveryStep::Test(tries) = unit.step { tries } else { MORE_TESTS };
                    (unit.step, unit.owed) = (RecoveryStep::Test(tries), Pending::Answer);
                    return Some(EhAction::Probe(lun, ProbeKind::Ready));
                }
                RecoveryStep::Begun { .. } | RecoveryStep::Testing { .. } => {
                    if unit.step.look(now) {
                        let is_asked = unit.owed == Pending::Answer;
                        return Some(if is_asked { EhAction::Probed(lun) } else { EhAction::Reset(Reset::Lun, lun) });
                    }
                }
                RecoveryStep::Failed | RecoveryStep::Over | RecoveryStep::Orphan => {}
            }
        }
        None
    }

    /// Returns the next step at a level of error handling whose reset covers all units (target or host reset).
    fn climb_together(&mut self, level: EhLevel, now: Instant) -> Option<EhAction> {
        let (what, time) = match level {
            EhLevel::Target => (Reset::Target, self.options.eh_timeout),
            _ => (Reset::Host, self.options.host_reset),
        };
        if self.whole == RecoveryStep::Todo {
            let lun = self.units.iter().find(|u| u.step != RecoveryStep::Over)?.lun;
            self.whole = RecoveryStep::Begun { until: now + time, asked: now };
            self.whole_owed = Some((what, lun));
            self.stats.resets[what as usize] += 1;
        } else if self.whole.is_past(now) {
            let dropped = self.drop_whole();
            self.reset_ended(false, now);
            return dropped;
        } else if !self.whole.look(now) {
            return None;
        }
        self.whole_owed.map(|(what, lun)| EhAction::Reset(what, lun))
    }

    /// Notes the result of the reset for all units.
    fn reset_ended(&mut self, well: bool, now: Instant) {
        let until = now + self.options.eh_timeout;
        (self.whole, self.whole_owed) = (RecoveryStep::Over, None);
        for unit in self.units.iter_mut().filter(|u| u.step == RecoveryStep::Todo) {
            unit.step = if well { RecoveryStep::Settling(until) } else { RecoveryStep::Failed };
        }
    }

    /// Ends recovery when all units are decided, and releases the held commands.
    fn finish(&mut self) {
        let units = std::mem::take(&mut self.units);
        let mut left = Vec::new();
        for mut late in self.lates.drain(..) {
            let is_of_unit = units.iter().any(|u| u.lun == late.id.lun);
            match late.held.take() {
                Some(held) => self.freed.push((late.id, held)),
                None => {
                    // Of the recovered units, only an offline unit still has commands in flight. All other commands
                    // here became late during the recovery.
                    if is_of_unit && late.step == RecoveryStep::Failed {
                        late.step = RecoveryStep::Orphan;
                    }
                    left.push(late);
                }
            }
        }
        self.lates = left;
        self.stage = EhStage::Calm;
    }

    /// Takes the result of an action.
    pub(super) fn result(&mut self, action: &EhAction, result: EhResult, now: Instant) {
        match (*action, result) {
            (EhAction::Abort(id, issued), EhResult::Abort(how)) => self.abort_said(id, issued, how, now),
            (EhAction::Reset(Reset::Lun, lun), EhResult::Reset(how)) => {
                let until = now + self.options.eh_timeout;
                let Some(unit) = self.units.iter_mut().find(|u| u.lun == lun) else { return };
                (unit.step, unit.owed) = match how {
                    Help::Begun => return,
                    Help::Done => (RecoveryStep::Settling(until), Pending::Nothing),
                    Help::Failed => (RecoveryStep::Failed, Pending::Nothing),
                };
            }
            (EhAction::Reset(..), EhResult::Reset(Help::Begun)) => {}
            (EhAction::Reset(..), EhResult::Reset(how)) => self.reset_ended(how == Help::Done, now),
            (EhAction::Probe(lun, question), EhResult::Sent(is_sent)) => self.sent(lun, question, is_sent, now),
            (EhAction::Probed(lun), EhResult::Answer(Some(answer))) => self.answered(lun, &answer, now),
            (EhAction::Offline(lun), EhResult::Done) => {
                self.stats.offline += 1;
                let until = now + self.options.eh_timeout;
                if let Some(unit) = self.units.iter_mut().find(|u| u.lun == lun) {
                    unit.step = RecoveryStep::Settling(until);
                }
            }
            _ => {}
        }
    }

    fn abort_said(&mut self, id: CommandId, issued: Instant, how: Abort, now: Instant) {
        let until = now + self.options.eh_timeout;
        let Some(index) = self.lates.iter().position(|l| l.id == id && l.issued == issued && l.is_out()) else {
            return;
        };
        let late = &mut self.lates[index];
        let first = *late.asked.get_or_insert(now);
        let most = first + Duration::from_ns(self.options.eh_timeout.as_ns().saturating_mul(MOST_WAITS));
        let has_waited = std::mem::replace(&mut late.waits, how == Abort::Waits);
        match (how, late.step) {
            (Abort::Begun | Abort::Waits, RecoveryStep::Todo) => late.step = RecoveryStep::Begun { until, asked: now },
            (Abort::Begun, RecoveryStep::Begun { .. }) if has_waited => {
                late.step = RecoveryStep::Begun { until, asked: now }
            }
            // The timeout of this abort restarts while the abort waits. During recovery it does not restart: an earlier
            // abort has failed, and this abort's turn may never come.
            (Abort::Waits, RecoveryStep::Begun { .. }) if self.stage == EhStage::Calm && !self.gives_up => {
                late.step = RecoveryStep::Begun { until: until.min(most), asked: now }
            }
            // The command completed before the abort began: it was given back, or will be, like any other command.
            (Abort::Gone, RecoveryStep::Todo) => {
                self.lates.remove(index);
            }
            // The transport still has the command, and a poll gives it back.
            (Abort::Gone, RecoveryStep::Begun { .. }) => late.step = RecoveryStep::Over,
            (Abort::Failed, _) => late.step = RecoveryStep::Failed,
            _ => {}
        }
    }

    fn sent(&mut self, lun: LunId, question: ProbeKind, is_sent: bool, now: Instant) {
        let until = now + self.options.eh_timeout;
        let Some(unit) = self.units.iter_mut().find(|u| u.lun == lun) else { return };
        if !is_sent {
            (unit.owed, unit.step) = (Pending::Nothing, RecoveryStep::Failed);
        } else if question == ProbeKind::Ready {
            let tries = if let RecoveryStep::Test(tries) = unit.step { tries } else { 0 };
            unit.step = RecoveryStep::Testing { until, asked: now, tries };
        }
    }

    /// Takes a device's answer to a probe.
    fn answered(&mut self, lun: LunId, answer: &Probed, now: Instant) {
        let EhLadder { units, lates, stage, options, .. } = self;
        let Some(unit) = units.iter_mut().find(|u| u.lun == lun) else { return };
        unit.owed = Pending::Nothing;
        let Judged { verdict, event } = judge(&answer.outcome, &About::default());
        if matches!(event, DeviceEvent::CapacityChanged | DeviceEvent::Changed | DeviceEvent::StateChanged)
            && !self.heard.contains(&(lun, event))
        {
            self.heard.push((lun, event));
        }
        let is_good = answer.outcome.is_good();
        unit.step = match (unit.step, *stage) {
            (RecoveryStep::Testing { tries, .. }, _) => match verdict {
                // The device reported a one-time status, so it is tested once more.
                Verdict::Retry | Verdict::Requeue(_) if tries > 0 && answer.outcome.host == HostByte::Ok => {
                    RecoveryStep::Test(tries - 1)
                }
                // Any answer shows that the device responds (`scsi_eh_tur`).
                Verdict::End(_) | Verdict::Retry | Verdict::Requeue(_) if answer.outcome.host == HostByte::Ok => {
                    RecoveryStep::Over
                }
                _ => RecoveryStep::Failed,
            },
            (_, EhStage::Climb(EhLevel::Sense)) => {
                let sense = Sense::parse(&answer.data).filter(|s| is_good && s.key != SenseKey::NoSense);
                let lacking = lates.iter_mut().find(|l| l.id.lun == lun && l.lacks_sense());
                match (sense, lacking.and_then(|l| l.held.as_mut())) {
                    (Some(sense), Some(held)) => {
                        held.outcome.sense = Some(sense);
                        RecoveryStep::Todo
                    }
                    _ => RecoveryStep::Failed,
                }
            }
            (_, EhStage::Climb(EhLevel::StartUnit)) if is_good => RecoveryStep::Settling(now + options.eh_timeout),
            _ => RecoveryStep::Failed,
        };
        if *stage == EhStage::Climb(EhLevel::Sense) {
            self.free_explained(lun);
        }
    }

    /// Releases the commands that need no recovery any more, because their missing sense data has arrived.
    fn free_explained(&mut self, lun: LunId) {
        let explained = |l: &mut LateCommand| {
            let of_unit = l.id.lun == lun;
            let verdict =
                |h: &HeldCommand| judge(&h.outcome, &About { allow_restart: true, ..About::default() }).verdict;
            of_unit && l.held.as_ref().is_some_and(|h| h.outcome.sense.is_some() && verdict(h) != Verdict::Recover)
        };
        for mut late in self.lates.extract_if(.., explained) {
            let held = late.held.take().expect("it is held");
            self.freed.push((late.id, held));
        }
    }

    /// Returns the events that a LUN reported during recovery, once no more probes are sent. After that the caller may
    /// release the resources that probes need.
    pub(super) fn take_heard(&mut self, lun: LunId) -> Vec<DeviceEvent> {
        if self.stage != EhStage::Calm {
            return Vec::new();
        }
        self.heard.extract_if(.., |(of, _)| *of == lun).map(|(_, event)| event).collect()
    }

    /// Returns up to `most` released commands of a LUN and hardware queue.
    pub(super) fn take_freed(&mut self, lun: LunId, hctx: HctxId, most: usize) -> Vec<HeldCommand> {
        let is_of = |(id, _): &mut (CommandId, HeldCommand)| id.lun == lun && id.hctx == hctx;
        self.freed.extract_if(.., is_of).take(most).map(|(_, held)| held).collect()
    }
}

/// The first step of a level for a unit.
enum FirstAction {
    Do(EhAction),
    /// Its commands have been aborted: test whether the device works again.
    Test,
    /// Nothing to do at this level.
    Nothing,
    /// Wait: another action comes first.
    Later,
}

/// Returns what a level does first for a unit with these commands.
fn begin<'a>(level: EhLevel, lun: LunId, mut of_unit: impl Iterator<Item = &'a LateCommand> + Clone) -> FirstAction {
    let question = |is_of_use: bool, what| {
        if is_of_use { FirstAction::Do(EhAction::Probe(lun, what)) } else { FirstAction::Nothing }
    };
    match level {
        EhLevel::Sense => question(of_unit.any(LateCommand::lacks_sense), ProbeKind::Sense),
        EhLevel::StartUnit => question(of_unit.any(LateCommand::wants_start), ProbeKind::StartUnit),
        EhLevel::Lun => FirstAction::Do(EhAction::Reset(Reset::Lun, lun)),
        EhLevel::Offline => FirstAction::Do(EhAction::Offline(lun)),
        EhLevel::Abort if of_unit.clone().any(|l| l.is_out() && l.step != RecoveryStep::Failed) => FirstAction::Later,
        EhLevel::Abort if of_unit.clone().any(|l| l.was_aborted) && of_unit.all(|l| !l.is_out()) => FirstAction::Test,
        EhLevel::Abort => FirstAction::Nothing,
        EhLevel::Target | EhLevel::Host => FirstAction::Later,
    }
}

#[cfg(test)]
#[path = "eh_tests.rs"]
mod tests;
