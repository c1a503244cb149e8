// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is done about commands that do not end: the error-handling ladder, from an abort to giving a device up.
//!
//! A late command is aborted, and tried again. If that does not work its host takes no new commands until those that are out
//! have ended or are late as well, and then goes up rung by rung: ask for sense that is missing, abort each, START UNIT where the
//! device wants it, reset of the LUN, the target, the host; what no rung has helped is offline. After each rung TEST UNIT READY
//! says whether it has helped.
//!
//! Guarantees: a command that this has to do with ends no earlier than its transport has given it back *and* its device has
//! answered again, or is offline; each of them is released once. Nothing waits without a limit: abort, reset of LUN or target
//! and each question have `eh_timeout`, an abort behind others three times that, unless the host is
//! recovering by then: those before it may have failed; a reset of the host what its transport says; past `eh_deadline` only the host
//! is reset. A reset or question that is not asked about to its end is dropped, so that no later one is told of it. While it is to give up,
//! recovery has one second, and then its devices are offline.
//! Needs from callers: `Ladder::next` now and then while `Ladder::is_calm` is false, at the latest when
//! `Ladder::next_due` says; what it asks for is done at once and its answer `Ladder::said`, by one caller at a time.
//!
//! A plain value: its owner (`super::recovery`) locks it, and speaks to the transport with it unlocked. Source:
//! drivers/scsi/scsi_error.c (`scmd_eh_abort_handler`, `scsi_unjam_host`, `scsi_eh_ready_devs`, `scsi_eh_flush_done_q`) of Linux
//! 6.19; the kernel goes through devices one after the other, this does all of a rung together.

use super::disposition::{About, Event, HostByte, Judged, Outcome, Verdict, judge};
use super::sense::{Sense, SenseKey};
use super::transport::{Abort, Help, LunId, Note, Probed, Reset};
use crate::driver::InFlight;
use crate::id::{HctxId, Tag};
use crate::time::{Duration, Instant};

/// `SCSI_DEFAULT_EH_TIMEOUT`.
pub const EH_TIMEOUT: Duration = Duration::from_secs(10);
/// How often progress is looked at that nobody tells of.
const LOOK: Duration = Duration::from_ms(10);
/// How long recovery goes on while it is to give up.
pub(super) const GIVE_UP: Duration = Duration::from_secs(1);
/// An abort that waits for others has so many times the time of one; then it has failed.
const MOST_WAITS: u64 = 3;
/// A device that has something else to tell first is asked this often more (`scsi_eh_tur`).
const MORE_TESTS: u8 = 1;

/// What a host spends on help.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) eh_timeout: Duration,
    pub(super) eh_deadline: Option<Duration>,
    pub(super) host_reset: Duration,
    pub(super) allow_restart: bool,
}

/// Which command: one at a time has this place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) lun: LunId,
    pub(super) hctx: HctxId,
    pub(super) tag: Tag,
}

/// What a device is asked with a command of the midlayer's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    Sense,
    StartUnit,
    Ready,
}

/// What the owner is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    /// Abort the command that was issued then, or see how far that is.
    Abort(Place, Instant),
    /// Begin a reset, or see how far it is.
    Reset(Reset, LunId),
    Probe(LunId, Question),
    /// See whether the device has answered.
    Probed(LunId),
    /// Nobody waits for the answer any more.
    DropProbe(LunId),
    /// Nobody asks any more about a reset that was begun.
    DropReset(Reset, LunId),
    /// Give the device up, and have all its commands brought back.
    Offline(LunId),
}

/// How that went.
#[derive(Debug)]
pub(super) enum Said {
    Abort(Abort),
    Reset(Help),
    /// Whether the question is on its way.
    Sent(bool),
    Answer(Option<Probed>),
    Done,
}

/// A command that has come back and waits for its device.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) rq: InFlight,
    pub(super) note: Note,
    pub(super) outcome: Outcome,
}

#[derive(Debug)]
struct Late {
    place: Place,
    issued: Instant,
    step: Step,
    /// When its abort was first asked for, and whether it waits for others since.
    asked: Option<Instant>,
    waits: bool,
    held: Option<Held>,
    /// It was brought back by an abort during recovery.
    was_aborted: bool,
}

impl Late {
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
enum Step {
    Todo,
    /// Begun; looked at last.
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

impl Step {
    /// Whether it is to be looked at; then it was.
    fn look(&mut self, now: Instant) -> bool {
        match self {
            Step::Begun { asked, .. } | Step::Testing { asked, .. } if *asked < now => {
                *asked = now;
                true
            }
            _ => false,
        }
    }

    fn is_past(self, now: Instant) -> bool {
        match self {
            Step::Begun { until, .. } | Step::Testing { until, .. } | Step::Settling(until) => now >= until,
            _ => false,
        }
    }
}

/// What is under way for a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Owed {
    #[default]
    Nothing,
    /// The answer to a question.
    Answer,
    /// A reset of it alone.
    Reset,
}

/// A device whose commands wait for help.
#[derive(Debug)]
struct Unit {
    lun: LunId,
    step: Step,
    owed: Owed,
}

impl Unit {
    /// What is under way is not waited for any more.
    fn drop_owed(&mut self) -> Option<Ask> {
        match std::mem::take(&mut self.owed) {
            Owed::Nothing => None,
            Owed::Answer => Some(Ask::DropProbe(self.lun)),
            Owed::Reset => Some(Ask::DropReset(Reset::Lun, self.lun)),
        }
    }
}

/// How high up it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rung {
    Sense,
    Abort,
    StartUnit,
    Lun,
    Target,
    Host,
    Offline,
}

const RUNGS: [Rung; 7] =
    [Rung::Sense, Rung::Abort, Rung::StartUnit, Rung::Lun, Rung::Target, Rung::Host, Rung::Offline];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Single commands are aborted at most.
    Calm,
    /// No new commands: those that are out end or are late.
    Gather,
    Climb(Rung),
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
pub(super) struct Ladder {
    patience: Patience,
    lates: Vec<Late>,
    freed: Vec<(Place, Held)>,
    /// What units have said of themselves with answers to questions, each thing once.
    heard: Vec<(LunId, Event)>,
    units: Vec<Unit>,
    stage: Stage,
    /// The one reset for all units of the rung.
    whole: Step,
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
pub(super) enum Back {
    /// What its outcome says.
    Judge(InFlight),
    /// It was brought back by help: it is tried again if it may be.
    Helped(InFlight),
    /// It waits.
    Kept,
}

impl Ladder {
    pub(super) fn new(patience: Patience) -> Ladder {
        Ladder {
            patience,
            lates: Vec::new(),
            freed: Vec::new(),
            heard: Vec::new(),
            units: Vec::new(),
            stage: Stage::Calm,
            whole: Step::Todo,
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

    /// There is nothing to do, and nobody waits.
    pub(super) fn is_calm(&self) -> bool {
        self.lates.is_empty() && self.freed.is_empty() && self.heard.is_empty() && self.stage == Stage::Calm
    }

    /// The host takes no new commands.
    pub(super) fn is_recovering(&self) -> bool {
        self.stage != Stage::Calm
    }

    /// The same, and for as long as a device has said something of itself that is to be heard before its commands go again.
    pub(super) fn stops_commands(&self) -> bool {
        let waits = |lun: LunId| self.freed.iter().any(|(place, _)| place.lun == lun);
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
        let waits = self.stage != Stage::Calm || self.lates.iter().any(|l| l.step != Step::Orphan);
        if self.freed.is_empty() { waits.then(|| self.looked + LOOK) } else { Some(self.looked) }
    }

    /// A command is late.
    pub(super) fn late(&mut self, place: Place, issued: Instant) {
        if let Some(known) = self.lates.iter_mut().find(|l| l.place == place) {
            // It was another one before, which ended while it was asked about.
            if known.issued != issued && known.is_out() {
                (known.issued, known.step, known.asked) = (issued, Step::Todo, None);
                known.waits = false;
            }
            return;
        }
        self.stats.late += 1;
        self.lates.push(Late {
            place,
            issued,
            step: Step::Todo,
            asked: None,
            waits: false,
            held: None,
            was_aborted: false,
        });
    }

    /// A command has come back.
    pub(super) fn came_back(&mut self, place: Place, rq: InFlight, note: Note, outcome: &Outcome) -> Back {
        let found = self.lates.iter().position(|l| l.place == place && l.is_out());
        let about = About { allow_restart: self.patience.allow_restart, ..About::default() };
        let needs_help = judge(outcome, &about).verdict == Verdict::Recover;
        let was_helped = matches!(outcome.host, HostByte::Abort | HostByte::Reset);
        let Some(index) = found else {
            if !needs_help {
                return Back::Judge(rq);
            }
            let held = Some(Held { rq, note, outcome: *outcome });
            let (issued, step) = (Instant::ZERO, Step::Failed);
            self.lates.push(Late { place, issued, step, asked: None, waits: false, held, was_aborted: false });
            return Back::Kept;
        };
        let is_orphan = self.lates[index].step == Step::Orphan;
        if !is_orphan && (needs_help || self.is_recovering() && outcome.host != HostByte::Ok) {
            let late = &mut self.lates[index];
            late.was_aborted = matches!(late.step, Step::Begun { .. } | Step::Over) && was_helped;
            self.stats.aborted += u64::from(late.was_aborted);
            (late.step, late.held) = (Step::Failed, Some(Held { rq, note, outcome: *outcome }));
            return Back::Kept;
        }
        self.stats.aborted += u64::from(outcome.host == HostByte::Abort);
        // The others keep their order: aborts go one after the other.
        self.lates.remove(index);
        if was_helped || is_orphan { Back::Helped(rq) } else { Back::Judge(rq) }
    }

    /// What is to be done next, with so many commands of the host out; nothing until something has ended, or
    /// [`Ladder::next_due`].
    pub(super) fn next(&mut self, now: Instant, in_flight: u32) -> Option<Ask> {
        self.looked = now;
        loop {
            if let Some(ask) = self.next_abort(now) {
                return Some(ask);
            }
            match self.stage {
                Stage::Calm if self.lates.iter().any(|l| l.step == Step::Failed) => {
                    (self.stage, self.since) = (Stage::Gather, now);
                    self.stats.recoveries += 1;
                }
                Stage::Calm => return None,
                Stage::Gather => {
                    let pending = |l: &Late| l.is_out() && matches!(l.step, Step::Begun { .. } | Step::Over);
                    let out = self.lates.iter().filter(|l| l.is_out()).count();
                    let must_wait = in_flight as usize > out || self.lates.iter().any(pending);
                    if must_wait && self.shortcut(now) != Some(Rung::Offline) {
                        return None;
                    }
                    self.begin_climb();
                }
                Stage::Climb(rung) => {
                    if let Some(to) = self.shortcut(now).filter(|to| rung < *to) {
                        if let Some(ask) = self.leave_rung(to) {
                            return Some(ask);
                        }
                        continue;
                    }
                    if let Some(ask) = self.climb(rung, now) {
                        return Some(ask);
                    }
                    if self.units.iter().all(|u| u.step == Step::Over) {
                        if let Some(ask) = self.drop_whole() {
                            return Some(ask);
                        }
                        self.finish();
                    } else if self.units.iter().any(|u| !matches!(u.step, Step::Failed | Step::Over)) {
                        return None;
                    } else if let Some(above) = RUNGS.into_iter().find(|r| *r > rung) {
                        self.enter(above);
                    }
                }
            }
        }
    }

    /// The rung to go to at once, because there is no more time for those below.
    fn shortcut(&self, now: Instant) -> Option<Rung> {
        let spent = now.since(self.since);
        if self.gives_up && spent >= GIVE_UP {
            return Some(Rung::Offline);
        }
        self.patience.eh_deadline.is_some_and(|most| spent >= most).then_some(Rung::Host)
    }

    /// Commands whose abort is to be begun or looked at.
    fn next_abort(&mut self, now: Instant) -> Option<Ask> {
        let begins = matches!(self.stage, Stage::Calm | Stage::Climb(Rung::Abort));
        for late in self.lates.iter_mut().filter(|l| l.is_out()) {
            if late.step.is_past(now) {
                late.step = Step::Failed;
            } else if begins && late.step == Step::Todo || late.step.look(now) {
                return Some(Ask::Abort(late.place, late.issued));
            }
        }
        None
    }

    fn begin_climb(&mut self) {
        for late in self.lates.iter().filter(|l| l.step != Step::Orphan) {
            let lun = late.place.lun;
            if !self.units.iter().any(|u| u.lun == lun) {
                self.units.push(Unit { lun, step: Step::Todo, owed: Owed::Nothing });
            }
        }
        self.enter(Rung::Sense);
    }

    fn enter(&mut self, rung: Rung) {
        assert!(self.whole_owed.is_none(), "a reset is neither asked about any more nor dropped");
        self.stage = Stage::Climb(rung);
        self.whole = Step::Todo;
        self.units.iter_mut().filter(|u| u.step != Step::Over).for_each(|u| u.step = Step::Todo);
    }

    /// The reset for all units is not asked about any more.
    fn drop_whole(&mut self) -> Option<Ask> {
        self.whole_owed.take().map(|(what, lun)| Ask::DropReset(what, lun))
    }

    /// Breaks off what is under way at this rung, one thing a call, and goes to another.
    fn leave_rung(&mut self, to: Rung) -> Option<Ask> {
        if let Some(ask) = self.units.iter_mut().find_map(Unit::drop_owed).or_else(|| self.drop_whole()) {
            return Some(ask);
        }
        for late in self.lates.iter_mut().filter(|l| l.is_out() && l.step != Step::Orphan) {
            late.step = Step::Failed;
        }
        self.enter(to);
        None
    }

    /// The next thing to do at a rung.
    fn climb(&mut self, rung: Rung, now: Instant) -> Option<Ask> {
        let until = now + self.patience.eh_timeout;
        if matches!(rung, Rung::Target | Rung::Host)
            && let Some(ask) = self.climb_together(rung, now)
        {
            return Some(ask);
        }
        let Ladder { units, lates, stats, .. } = self;
        for unit in units {
            let lun = unit.lun;
            let mut of_unit = lates.iter().filter(|l| l.place.lun == lun && l.step != Step::Orphan);
            if unit.step == Step::Over {
                continue;
            }
            // All of it has ended by itself, or what was asked for has settled it.
            let is_settled = of_unit.clone().next().is_none() && unit.owed != Owed::Answer;
            if is_settled || unit.step.is_past(now) {
                // A device that was given up does not hold up the others.
                unit.step = if is_settled || rung == Rung::Offline { Step::Over } else { Step::Failed };
                if let Some(ask) = unit.drop_owed() {
                    return Some(ask);
                }
                continue;
            }
            match unit.step {
                Step::Todo => {
                    let ask = match begin(rung, lun, of_unit) {
                        Begin::Later => continue,
                        Begin::Nothing => {
                            unit.step = Step::Failed;
                            continue;
                        }
                        Begin::Test => {
                            (unit.step, unit.owed) = (Step::Test(MORE_TESTS), Owed::Answer);
                            return Some(Ask::Probe(lun, Question::Ready));
                        }
                        Begin::Ask(ask) => ask,
                    };
                    unit.owed = match ask {
                        Ask::Probe(..) => Owed::Answer,
                        Ask::Reset(..) => Owed::Reset,
                        _ => Owed::Nothing,
                    };
                    stats.resets[Reset::Lun as usize] += u64::from(rung == Rung::Lun);
                    unit.step = Step::Begun { until, asked: now };
                    return Some(ask);
                }
                Step::Settling(_) if of_unit.any(Late::is_out) => {}
                Step::Settling(_) if rung == Rung::Offline => unit.step = Step::Over,
                Step::Settling(_) | Step::Test(_) => {
                    let tries = if let Step::Test(tries) = unit.step { tries } else { MORE_TESTS };
                    (unit.step, unit.owed) = (Step::Test(tries), Owed::Answer);
                    return Some(Ask::Probe(lun, Question::Ready));
                }
                Step::Begun { .. } | Step::Testing { .. } => {
                    if unit.step.look(now) {
                        let is_asked = unit.owed == Owed::Answer;
                        return Some(if is_asked { Ask::Probed(lun) } else { Ask::Reset(Reset::Lun, lun) });
                    }
                }
                Step::Failed | Step::Over | Step::Orphan => {}
            }
        }
        None
    }

    /// The one thing that a rung does for all units.
    fn climb_together(&mut self, rung: Rung, now: Instant) -> Option<Ask> {
        let (what, time) = match rung {
            Rung::Target => (Reset::Target, self.patience.eh_timeout),
            _ => (Reset::Host, self.patience.host_reset),
        };
        if self.whole == Step::Todo {
            let lun = self.units.iter().find(|u| u.step != Step::Over)?.lun;
            self.whole = Step::Begun { until: now + time, asked: now };
            self.whole_owed = Some((what, lun));
            self.stats.resets[what as usize] += 1;
        } else if self.whole.is_past(now) {
            let dropped = self.drop_whole();
            self.reset_ended(false, now);
            return dropped;
        } else if !self.whole.look(now) {
            return None;
        }
        self.whole_owed.map(|(what, lun)| Ask::Reset(what, lun))
    }

    /// The one reset has ended.
    fn reset_ended(&mut self, well: bool, now: Instant) {
        let until = now + self.patience.eh_timeout;
        (self.whole, self.whole_owed) = (Step::Over, None);
        for unit in self.units.iter_mut().filter(|u| u.step == Step::Todo) {
            unit.step = if well { Step::Settling(until) } else { Step::Failed };
        }
    }

    /// All units have been decided on: what was held is released.
    fn finish(&mut self) {
        let units = std::mem::take(&mut self.units);
        let mut left = Vec::new();
        for mut late in self.lates.drain(..) {
            let is_of_unit = units.iter().any(|u| u.lun == late.place.lun);
            match late.held.take() {
                Some(held) => self.freed.push((late.place, held)),
                None => {
                    // Of a unit that is over only an offline one has commands out; others were late meanwhile.
                    if is_of_unit && late.step == Step::Failed {
                        late.step = Step::Orphan;
                    }
                    left.push(late);
                }
            }
        }
        self.lates = left;
        self.stage = Stage::Calm;
    }

    /// How what was asked for went.
    pub(super) fn said(&mut self, ask: &Ask, said: Said, now: Instant) {
        match (*ask, said) {
            (Ask::Abort(place, issued), Said::Abort(how)) => self.abort_said(place, issued, how, now),
            (Ask::Reset(Reset::Lun, lun), Said::Reset(how)) => {
                let until = now + self.patience.eh_timeout;
                let Some(unit) = self.units.iter_mut().find(|u| u.lun == lun) else { return };
                (unit.step, unit.owed) = match how {
                    Help::Begun => return,
                    Help::Done => (Step::Settling(until), Owed::Nothing),
                    Help::Failed => (Step::Failed, Owed::Nothing),
                };
            }
            (Ask::Reset(..), Said::Reset(Help::Begun)) => {}
            (Ask::Reset(..), Said::Reset(how)) => self.reset_ended(how == Help::Done, now),
            (Ask::Probe(lun, question), Said::Sent(is_sent)) => self.sent(lun, question, is_sent, now),
            (Ask::Probed(lun), Said::Answer(Some(answer))) => self.answered(lun, &answer, now),
            (Ask::Offline(lun), Said::Done) => {
                self.stats.offline += 1;
                let until = now + self.patience.eh_timeout;
                if let Some(unit) = self.units.iter_mut().find(|u| u.lun == lun) {
                    unit.step = Step::Settling(until);
                }
            }
            _ => {}
        }
    }

    fn abort_said(&mut self, place: Place, issued: Instant, how: Abort, now: Instant) {
        let until = now + self.patience.eh_timeout;
        let Some(index) = self.lates.iter().position(|l| l.place == place && l.issued == issued && l.is_out()) else {
            return;
        };
        let late = &mut self.lates[index];
        let first = *late.asked.get_or_insert(now);
        let most = first + Duration::from_ns(self.patience.eh_timeout.as_ns().saturating_mul(MOST_WAITS));
        let has_waited = std::mem::replace(&mut late.waits, how == Abort::Waits);
        match (how, late.step) {
            (Abort::Begun | Abort::Waits, Step::Todo) => late.step = Step::Begun { until, asked: now },
            (Abort::Begun, Step::Begun { .. }) if has_waited => late.step = Step::Begun { until, asked: now },
            // Its time begins with its turn; unless one of those before it has failed, for then there may be no more turns.
            (Abort::Waits, Step::Begun { .. }) if self.stage == Stage::Calm && !self.gives_up => {
                late.step = Step::Begun { until: until.min(most), asked: now }
            }
            // It ended before anything was done about it: it was given back, or will be, as any other.
            (Abort::Gone, Step::Todo) => {
                self.lates.remove(index);
            }
            // It is with the transport still, and comes with a poll.
            (Abort::Gone, Step::Begun { .. }) => late.step = Step::Over,
            (Abort::Failed, _) => late.step = Step::Failed,
            _ => {}
        }
    }

    fn sent(&mut self, lun: LunId, question: Question, is_sent: bool, now: Instant) {
        let until = now + self.patience.eh_timeout;
        let Some(unit) = self.units.iter_mut().find(|u| u.lun == lun) else { return };
        if !is_sent {
            (unit.owed, unit.step) = (Owed::Nothing, Step::Failed);
        } else if question == Question::Ready {
            let tries = if let Step::Test(tries) = unit.step { tries } else { 0 };
            unit.step = Step::Testing { until, asked: now, tries };
        }
    }

    /// A device has answered.
    fn answered(&mut self, lun: LunId, answer: &Probed, now: Instant) {
        let Ladder { units, lates, stage, patience, .. } = self;
        let Some(unit) = units.iter_mut().find(|u| u.lun == lun) else { return };
        unit.owed = Owed::Nothing;
        let Judged { verdict, event } = judge(&answer.outcome, &About::default());
        if matches!(event, Event::CapacityChanged | Event::Changed | Event::StateChanged)
            && !self.heard.contains(&(lun, event))
        {
            self.heard.push((lun, event));
        }
        let is_good = answer.outcome.is_good();
        unit.step = match (unit.step, *stage) {
            (Step::Testing { tries, .. }, _) => match verdict {
                // It says something that is told once: now it may say how it is.
                Verdict::Retry | Verdict::Requeue(_) if tries > 0 && answer.outcome.host == HostByte::Ok => {
                    Step::Test(tries - 1)
                }
                // Whatever it says, it says something (`scsi_eh_tur`).
                Verdict::End(_) | Verdict::Retry | Verdict::Requeue(_) if answer.outcome.host == HostByte::Ok => {
                    Step::Over
                }
                _ => Step::Failed,
            },
            (_, Stage::Climb(Rung::Sense)) => {
                let sense = Sense::parse(&answer.data).filter(|s| is_good && s.key != SenseKey::NoSense);
                let lacking = lates.iter_mut().find(|l| l.place.lun == lun && l.lacks_sense());
                match (sense, lacking.and_then(|l| l.held.as_mut())) {
                    (Some(sense), Some(held)) => {
                        held.outcome.sense = Some(sense);
                        Step::Todo
                    }
                    _ => Step::Failed,
                }
            }
            (_, Stage::Climb(Rung::StartUnit)) if is_good => Step::Settling(now + patience.eh_timeout),
            _ => Step::Failed,
        };
        if *stage == Stage::Climb(Rung::Sense) {
            self.free_explained(lun);
        }
    }

    /// Commands that only lacked a reason have one.
    fn free_explained(&mut self, lun: LunId) {
        let explained = |l: &mut Late| {
            let of_unit = l.place.lun == lun;
            let verdict = |h: &Held| judge(&h.outcome, &About { allow_restart: true, ..About::default() }).verdict;
            of_unit && l.held.as_ref().is_some_and(|h| h.outcome.sense.is_some() && verdict(h) != Verdict::Recover)
        };
        for mut late in self.lates.extract_if(.., explained) {
            let held = late.held.take().expect("it is held");
            self.freed.push((late.place, held));
        }
    }

    /// What a LUN has said of itself when it was asked how it is, once it is asked no more: who hears that may drop what a
    /// question needs.
    pub(super) fn take_heard(&mut self, lun: LunId) -> Vec<Event> {
        if self.stage != Stage::Calm {
            return Vec::new();
        }
        self.heard.extract_if(.., |(of, _)| *of == lun).map(|(_, event)| event).collect()
    }

    /// Commands of a LUN and hardware queue that wait no longer, up to `most`.
    pub(super) fn take_freed(&mut self, lun: LunId, hctx: HctxId, most: usize) -> Vec<Held> {
        let is_of = |(place, _): &mut (Place, Held)| place.lun == lun && place.hctx == hctx;
        self.freed.extract_if(.., is_of).take(most).map(|(_, held)| held).collect()
    }
}

/// How a rung begins for a unit.
enum Begin {
    Ask(Ask),
    /// What it does for commands has been done: it is to be seen whether that has helped.
    Test,
    /// It has to do nothing here.
    Nothing,
    /// Something else comes first.
    Later,
}

/// What a rung is to do first for a unit with these commands.
fn begin<'a>(rung: Rung, lun: LunId, mut of_unit: impl Iterator<Item = &'a Late> + Clone) -> Begin {
    let question = |is_of_use: bool, what| if is_of_use { Begin::Ask(Ask::Probe(lun, what)) } else { Begin::Nothing };
    match rung {
        Rung::Sense => question(of_unit.any(Late::lacks_sense), Question::Sense),
        Rung::StartUnit => question(of_unit.any(Late::wants_start), Question::StartUnit),
        Rung::Lun => Begin::Ask(Ask::Reset(Reset::Lun, lun)),
        Rung::Offline => Begin::Ask(Ask::Offline(lun)),
        Rung::Abort if of_unit.clone().any(|l| l.is_out() && l.step != Step::Failed) => Begin::Later,
        Rung::Abort if of_unit.clone().any(|l| l.was_aborted) && of_unit.all(|l| !l.is_out()) => Begin::Test,
        Rung::Abort => Begin::Nothing,
        Rung::Target | Rung::Host => Begin::Later,
    }
}

#[cfg(test)]
#[path = "eh_tests.rs"]
mod tests;
