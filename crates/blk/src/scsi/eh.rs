// SPDX-License-Identifier: Apache-2.0 OR MIT
//! SCSI error handling: the escalation from abort to taking a device offline.
//!
//! A late command is aborted and retried. If that does not work, its host takes no new commands until all commands in flight
//! have ended or are late as well. Then recovery goes up level by level. After each level TEST UNIT READY (`eh_timeout`)
//! shows whether it has helped. The levels and their timeouts:
//!
//! - ask for sense that is missing: `eh_timeout`;
//! - abort each command: `eh_timeout`. An abort behind others has three times that, unless the host is recovering by then or is
//!   to give up: those before it may have failed;
//! - START UNIT where the device wants it: `eh_timeout`;
//! - reset of the LUN: `eh_timeout`;
//! - reset of the target: `eh_timeout`;
//! - reset of the host: what its transport says (`host_reset`). Past `eh_deadline` recovery goes to this level at once;
//! - offline, what no level has helped. While recovery is to give up, it gets here after one second.
//!
//! Guarantees: a command in recovery ends only after its transport has given it back *and* its device has answered again or
//! is offline. Each of them is released once. Nothing waits without a limit. A reset or probe that recovery no longer polls
//! is dropped, so its result cannot be taken for a later one's.
//!
//! Needs from callers: a call of `EhLadder::next` now and then while `EhLadder::is_calm` is false, at the latest when
//! `EhLadder::next_due` says. The caller does at once what it asks for, and passes the answer to `EhLadder::result`. Only
//! one caller at a time.
//!
//! A plain value: its owner (`super::recovery`) locks it, and speaks to the transport with it unlocked. Source:
//! drivers/scsi/scsi_error.c (`scmd_eh_abort_handler`, `scsi_unjam_host`, `scsi_eh_ready_devs`, `scsi_eh_flush_done_q`) of Linux
//! 6.19; the kernel goes through devices one after the other, this does all of a level together.

use super::disposition::{About, DeviceEvent, HostByte, Judged, Outcome, Verdict, judge};
use super::sense::{Sense, SenseKey};
use super::transport::{Abort, Help, LunId, Note, Probed, Reset};
use crate::driver::InFlight;
use crate::id::{HctxId, Tag};
use crate::time::{Duration, Instant};

/// `SCSI_DEFAULT_EH_TIMEOUT`.
pub(crate) const EH_TIMEOUT: Duration = Duration::from_secs(10);
/// How often unannounced progress is polled.
const LOOK: Duration = Duration::from_ms(10);
/// How long recovery may take, from its start, once it is to give up.
pub(super) const GIVE_UP: Duration = Duration::from_secs(1);
/// An abort that waits for others has so many times the time of one; then it has failed.
const MOST_WAITS: u64 = 3;
/// A device that has something else to tell first is asked this often more (`scsi_eh_tur`).
const MORE_TESTS: u8 = 1;

/// What a host spends on help.
#[derive(Clone, Copy, Debug)]
pub(super) struct EhOptions {
    pub(super) eh_timeout: Duration,
    pub(super) eh_deadline: Option<Duration>,
    pub(super) host_reset: Duration,
    pub(super) allow_restart: bool,
}

/// Which command: at most one is outstanding under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CommandId {
    pub(super) lun: LunId,
    pub(super) hctx: HctxId,
    pub(super) tag: Tag,
}

/// What a device is asked with a command of the midlayer's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeKind {
    Sense,
    StartUnit,
    Ready,
}

/// What the owner is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EhAction {
    /// Abort the command that was issued then, or see how far that is.
    Abort(CommandId, Instant),
    /// Begin a reset, or see how far it is.
    Reset(Reset, LunId),
    Probe(LunId, ProbeKind),
    /// See whether the device has answered.
    Probed(LunId),
    /// No thread waits for the answer any more.
    DropProbe(LunId),
    /// No thread asks any more about a reset that was begun.
    DropReset(Reset, LunId),
    /// Give the device up, and have all its commands brought back.
    Offline(LunId),
}

/// How that went.
#[derive(Debug)]
pub(super) enum EhResult {
    Abort(Abort),
    Reset(Help),
    /// Whether the question is on its way.
    Sent(bool),
    Answer(Option<Probed>),
    Done,
}

/// A command that has come back and waits for its device.
#[derive(Debug)]
pub(super) struct HeldCommand {
    pub(super) rq: InFlight,
    pub(super) note: Note,
    pub(super) outcome: Outcome,
}

#[derive(Debug)]
struct LateCommand {
    id: CommandId,
    issued: Instant,
    step: RecoveryStep,
    /// When its abort was first asked for, and whether it waits for others since.
    asked: Option<Instant>,
    waits: bool,
    held: Option<HeldCommand>,
    /// It was brought back by an abort during recovery.
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

/// How far something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecoveryStep {
    Todo,
    /// Begun; time of the last check.
    Begun {
        until: Instant,
        asked: Instant,
    },
    /// Help has come; now what was out has to come back.
    Settling(Instant),
    /// To be asked whether it is ready, and so often once more.
    Test(u8),
    Testing {
        until: Instant,
        asked: Instant,
        tries: u8,
    },
    /// It has not helped, or there was nothing to be done here.
    Failed,
    Over,
    /// A command that was not given back though its device was given up: it ends when it is.
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

/// What is under way for a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Pending {
    #[default]
    Nothing,
    /// The answer to a question.
    Answer,
    /// A reset of it alone.
    Reset,
}

/// A device whose commands wait for help.
#[derive(Debug)]
struct UnitRecovery {
    lun: LunId,
    step: RecoveryStep,
    owed: Pending,
}

impl UnitRecovery {
    /// What is under way is not waited for any more.
    fn drop_owed(&mut self) -> Option<EhAction> {
        match std::mem::take(&mut self.owed) {
            Pending::Nothing => None,
            Pending::Answer => Some(EhAction::DropProbe(self.lun)),
            Pending::Reset => Some(EhAction::DropReset(Reset::Lun, self.lun)),
        }
    }
}

/// How high up it is.
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
    /// Single commands are aborted at most.
    Calm,
    /// No new commands: those that are out end or are late.
    Gather,
    Climb(EhLevel),
}

/// What was done so far, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EhStats {
    /// Commands that were late.
    pub late: u64,
    /// Of those, brought back by an abort.
    pub aborted: u64,
    /// Times the host stopped for recovery.
    pub recoveries: u64,
    /// Resets that were begun: of a LUN, of a target, of the host.
    pub resets: [u64; 3],
    /// Devices that were given up.
    pub offline: u64,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct EhLadder {
    options: EhOptions,
    lates: Vec<LateCommand>,
    freed: Vec<(CommandId, HeldCommand)>,
    /// What units have reported with their answers to commands of recovery, each event once.
    heard: Vec<(LunId, DeviceEvent)>,
    units: Vec<UnitRecovery>,
    stage: EhStage,
    /// The one reset for all units of the level.
    whole: RecoveryStep,
    /// Which that is, while it is under way.
    whole_owed: Option<(Reset, LunId)>,
    gives_up: bool,
    /// When recovery began.
    since: Instant,
    looked: Instant,
    stats: EhStats,
}

/// What becomes of a command that has come back while something was wrong.
#[derive(Debug)]
pub(super) enum Returned {
    /// What its outcome says.
    Judge(InFlight),
    /// It was brought back by help: it is tried again if it may be.
    Helped(InFlight),
    /// It waits.
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

    /// There is nothing to do, and no thread waits.
    pub(super) fn is_calm(&self) -> bool {
        self.lates.is_empty() && self.freed.is_empty() && self.heard.is_empty() && self.stage == EhStage::Calm
    }

    /// The host takes no new commands.
    pub(super) fn is_recovering(&self) -> bool {
        self.stage != EhStage::Calm
    }

    /// The same, and also while a device's report waits that has to be handled before its commands go again.
    pub(super) fn stops_commands(&self) -> bool {
        let waits = |lun: LunId| self.freed.iter().any(|(id, _)| id.lun == lun);
        self.is_recovering() || self.heard.iter().any(|(lun, _)| waits(*lun))
    }

    /// Has recovery end soon from now on, or no more.
    pub(super) fn set_give_up(&mut self, give_up: bool) {
        self.gives_up = give_up;
    }

    pub(super) fn gives_up(&self) -> bool {
        self.gives_up
    }

    /// When to come again though nothing has ended.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let waits = self.stage != EhStage::Calm || self.lates.iter().any(|l| l.step != RecoveryStep::Orphan);
        if self.freed.is_empty() { waits.then(|| self.looked + LOOK) } else { Some(self.looked) }
    }

    /// A command is late.
    pub(super) fn late(&mut self, id: CommandId, issued: Instant) {
        if let Some(known) = self.lates.iter_mut().find(|l| l.id == id) {
            // It was another one before, which ended while it was asked about.
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

    /// A command has come back.
    pub(super) fn came_back(&mut self, id: CommandId, rq: InFlight, note: Note, outcome: &Outcome) -> Returned {
        let found = self.lates.iter().position(|l| l.id == id && l.is_out());
        let about = About { allow_restart: self.options.allow_restart, ..About::default() };
        let needs_help = judge(outcome, &about).verdict == Verdict::Recover;
        let was_helped = matches!(outcome.host, HostByte::Abort | HostByte::Reset);
        let Some(index) = found else {
            if !needs_help {
                return Returned::Judge(rq);
            }
            let held = Some(HeldCommand { rq, note, outcome: *outcome });
            let (issued, step) = (Instant::ZERO, RecoveryStep::Failed);
            self.lates.push(LateCommand { id, issued, step, asked: None, waits: false, held, was_aborted: false });
            return Returned::Kept;
        };
        let is_orphan = self.lates[index].step == RecoveryStep::Orphan;
        if !is_orphan && (needs_help || self.is_recovering() && outcome.host != HostByte::Ok) {
            let late = &mut self.lates[index];
            late.was_aborted = matches!(late.step, RecoveryStep::Begun { .. } | RecoveryStep::Over) && was_helped;
            self.stats.aborted += u64::from(late.was_aborted);
            (late.step, late.held) = (RecoveryStep::Failed, Some(HeldCommand { rq, note, outcome: *outcome }));
            return Returned::Kept;
        }
        self.stats.aborted += u64::from(outcome.host == HostByte::Abort);
        // The others keep their order: aborts go one after the other.
        self.lates.remove(index);
        if was_helped || is_orphan { Returned::Helped(rq) } else { Returned::Judge(rq) }
    }

    /// What is to be done next, with so many commands of the host out; nothing until something has ended, or
    /// [`EhLadder::next_due`].
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

    /// The level to go to at once, because there is no more time for those below.
    fn shortcut(&self, now: Instant) -> Option<EhLevel> {
        let spent = now.since(self.since);
        if self.gives_up && spent >= GIVE_UP {
            return Some(EhLevel::Offline);
        }
        self.options.eh_deadline.is_some_and(|most| spent >= most).then_some(EhLevel::Host)
    }

    /// Commands whose abort is to be begun or checked.
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

    /// The reset for all units is not asked about any more.
    fn drop_whole(&mut self) -> Option<EhAction> {
        self.whole_owed.take().map(|(what, lun)| EhAction::DropReset(what, lun))
    }

    /// Cancels what is under way at this level, one thing a call, and moves to another.
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

    /// The next thing to do at a level.
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
            // All of it has ended by itself, or what was asked for has settled it.
            let is_settled = of_unit.clone().next().is_none() && unit.owed != Pending::Answer;
            if is_settled || unit.step.is_past(now) {
                // A device that was given up does not hold up the others.
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

    /// The one thing that a level does for all units.
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

    /// The one reset has ended.
    fn reset_ended(&mut self, well: bool, now: Instant) {
        let until = now + self.options.eh_timeout;
        (self.whole, self.whole_owed) = (RecoveryStep::Over, None);
        for unit in self.units.iter_mut().filter(|u| u.step == RecoveryStep::Todo) {
            unit.step = if well { RecoveryStep::Settling(until) } else { RecoveryStep::Failed };
        }
    }

    /// All units have been decided on: what was held is released.
    fn finish(&mut self) {
        let units = std::mem::take(&mut self.units);
        let mut left = Vec::new();
        for mut late in self.lates.drain(..) {
            let is_of_unit = units.iter().any(|u| u.lun == late.id.lun);
            match late.held.take() {
                Some(held) => self.freed.push((late.id, held)),
                None => {
                    // Of a unit that is over only an offline one has commands out; others were late meanwhile.
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

    /// How what was asked for went.
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
            // Its time begins with its turn; unless one of those before it has failed, for then there may be no more turns.
            (Abort::Waits, RecoveryStep::Begun { .. }) if self.stage == EhStage::Calm && !self.gives_up => {
                late.step = RecoveryStep::Begun { until: until.min(most), asked: now }
            }
            // It ended before anything was done about it: it was given back, or will be, as any other.
            (Abort::Gone, RecoveryStep::Todo) => {
                self.lates.remove(index);
            }
            // It is with the transport still, and comes with a poll.
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

    /// A device has answered.
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
                // It says something that is told once: now it may say how it is.
                Verdict::Retry | Verdict::Requeue(_) if tries > 0 && answer.outcome.host == HostByte::Ok => {
                    RecoveryStep::Test(tries - 1)
                }
                // Whatever it says, it says something (`scsi_eh_tur`).
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

    /// Commands that only lacked a reason have one.
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

    /// What a LUN answered to its test command, once no more are sent: the receiver may then drop what a test needs.
    pub(super) fn take_heard(&mut self, lun: LunId) -> Vec<DeviceEvent> {
        if self.stage != EhStage::Calm {
            return Vec::new();
        }
        self.heard.extract_if(.., |(of, _)| *of == lun).map(|(_, event)| event).collect()
    }

    /// Commands of a LUN and hardware queue that wait no longer, up to `most`.
    pub(super) fn take_freed(&mut self, lun: LunId, hctx: HctxId, most: usize) -> Vec<HeldCommand> {
        let is_of = |(id, _): &mut (CommandId, HeldCommand)| id.lun == lun && id.hctx == hctx;
        self.freed.extract_if(.., is_of).take(most).map(|(_, held)| held).collect()
    }
}

/// How a level begins for a unit.
enum FirstAction {
    Do(EhAction),
    /// What it does for commands has been done: it is to be seen whether that has helped.
    Test,
    /// It has to do nothing here.
    Nothing,
    /// Something else comes first.
    Later,
}

/// What a level is to do first for a unit with these commands.
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
