// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One hardware queue: its commands, its session, and who waits for it.
//!
//! Guarantees: a command ends once; when a session is lost those that were out end with
//! [`TransportDisrupted`](HostByte::TransportDisrupted), so the midlayer brings them again, and is told
//! [`Busy::Hctx`] until there is another one; once requests have waited for as long as they may,
//! [`TransportFailfast`](HostByte::TransportFailfast). With [`Patience::fences`] what was out when a session was lost ends only when it is
//! known, as far as it can be, that the target will not carry it out any more: see there. Requests' memory is touched only under the lock, and not after the request
//! has ended. A wake-up ends the sleep of all who were asleep, or on their way to it.
//! Needs from callers: somebody ([`crate::driver::keeper`]) who brings a session when there is none, and looks after one that nobody polls.
//!
//! One lock for all: the calls under it do not wait. The eventfd says that there is something that no socket would tell of.

use super::dial::Line;
use super::link::{Link, Lost};
use super::own::{Answer, Who, unheard};
use super::pdu::Function;
use super::tasks::Tasks;
use crate::clock;
use crate::driver::keeper::Watch;
use crate::driver::waits::{MAX_SLEEP, Waiting, Waits};
use crate::error::{Error, ErrorKind, Result};
use crate::mem::Regions;
use crate::net::vectored::abandon;
use blk::driver::TimedOut;
use blk::scsi::disposition::{HostByte, Outcome};
use blk::scsi::transport::{Abort, Busy, CommandBatch, Help, LunId, Outcomes};
use blk::time::{Duration, Instant};
use parking_lot::Mutex;
use rustix::event::epoll;
use std::os::fd::RawFd;
use std::sync::Arc;

/// How long commands and targets may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// How long requests wait for another session.
    pub(super) recovery_timeout: Duration,
    /// After so long a silence the target is asked whether it is there.
    pub(super) noop_interval: Option<Duration>,
    /// How long its answer may take.
    pub(super) noop_timeout: Duration,
    /// Commands of a lost session may go elsewhere when they have ended, so they are kept until there is another session of the same
    /// nexus (the target has dropped the old one then, RFC 7143, 6.3.5), which takes the same portal group, or `recovery_timeout` is
    /// over. Otherwise they end at once, and go again by another session of this queue; which is of the same nexus for as long, too: by
    /// another one they might be carried out twice, the first time last, over what was written next.
    pub(super) fences: bool,
}

/// What has happened to a queue's sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueStatus {
    /// There is to be a session.
    pub used: bool,
    /// There is one now.
    pub connected: bool,
    /// Sessions lost so far.
    pub losses: u64,
    /// Commands that were out when a session was lost.
    pub disrupted: u64,
    /// Why the last one was lost.
    pub last_loss: Option<String>,
}

pub(super) struct Queue {
    patience: Patience,
    lun: LunId,
    state: Mutex<State>,
    waits: Waits,
    keeper: Arc<Watch>,
}

struct State {
    link: Place,
    tasks: Tasks,
    waiting: Waiting,
    lazy_below: usize,
    status: QueueStatus,
    /// When the present or last session was made, and how many in a row did not last.
    attached: Instant,
    short_lives: u32,
    /// Commands do not wait for a session.
    gives_up: bool,
    /// Of the present or last session.
    portal_group: Option<u16>,
    /// Commands that change what is stored were out when it was lost: until then another nexus is not used.
    cut_until: Option<Instant>,
}

/// Where commands go.
enum Place {
    /// The queue is not in use.
    Nowhere,
    Up(Box<Link>),
    /// There was a session. Requests wait for the next one until then.
    Lost(Instant),
}

/// Whether a queue can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// It has its session, or is to have none.
    Whole,
    /// Requests wait for another session.
    Awaited,
    /// They do no more.
    GivenUp,
}

impl Queue {
    pub(super) fn new(patience: Patience, lun: LunId, keeper: Arc<Watch>) -> Result<Queue> {
        let waits = Waits::new()?;
        let state = State {
            link: Place::Nowhere,
            tasks: Tasks::new(0),
            waiting: Waiting::default(),
            lazy_below: 0,
            status: QueueStatus::default(),
            attached: Instant::ZERO,
            short_lives: 0,
            gives_up: false,
            portal_group: None,
            cut_until: None,
        };
        Ok(Queue { patience, lun, state: Mutex::new(state), waits, keeper })
    }

    /// Makes it ready for tags below `depth`; whether it has, or once had, a session.
    pub(super) fn start(&self, depth: u32) -> bool {
        let mut state = self.state.lock();
        state.tasks.resize(depth as usize);
        state.lazy_below = 0;
        !matches!(state.link, Place::Nowhere)
    }

    /// No commands will come until the next start.
    pub(super) fn stop(&self, regions: &Regions) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if let Place::Up(link) = std::mem::replace(&mut state.link, Place::Nowhere) {
            link.disconnect(&state.tasks, regions, self.waits.set());
        }
        state.tasks.own.end_all(HostByte::NoConnect);
        state.tasks.own.forget_managed();
        state.status.connected = false;
    }

    /// Uses a session: the first one since a start, or one in place of one that was lost.
    ///
    /// # Errors
    /// Commands of the lost one wait to be fenced, and this is another nexus.
    pub(super) fn attach(&self, line: Line<'_>, is_first: bool) -> Result<()> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let is_needed = match state.link {
            Place::Nowhere => is_first,
            Place::Up(_) => false,
            Place::Lost(_) => !is_first,
        };
        if !is_needed {
            return Ok(());
        }
        let (group, lost_group) = (line.params.portal_group, state.portal_group);
        let is_lost = matches!(state.link, Place::Lost(_));
        let cut_until = state.cut_until.filter(|until| is_lost && clock::now() < *until && !state.gives_up);
        let is_other = if self.patience.fences {
            state.tasks.in_flight() > 0 && (group.is_none() || group != lost_group)
        } else {
            cut_until.is_some() && group != lost_group
        };
        if is_other {
            if let (Place::Lost(until), Some(cut_until), false) = (&mut state.link, cut_until, self.patience.fences) {
                // There is a way: once this one may be used, requests still wait for the login to it.
                *until = (*until).max(cut_until + REMAKE_TIME);
            }
            drop(guard);
            line.log_out();
            let limit = if self.patience.fences { "fast_io_fail_tmo" } else { "recovery_timeout" };
            let (now, before) = (group_text(group), group_text(lost_group));
            return Err(Error::new(
                ErrorKind::Io,
                format!(
                    "the new session is in {now}, the lost one was in {before}: its commands may still be carried out, and wait \
                     until {limit} is over"
                ),
            ));
        }
        state.cut_until = None;
        state.portal_group = group;
        let now = clock::now();
        state.attached = now;
        // The target has forgotten what the one before had.
        self.end_kept(state, HostByte::TransportDisrupted);
        match Link::new(line, self.lun.to_wire(), self.waits.set(), now) {
            Ok(link) => {
                // A peer that leaves while nobody polls is noticed by the keeper; if not by this, a little later.
                let rdhup = epoll::EventFlags::RDHUP;
                let _ = epoll::add(self.keeper.set(), link.as_fd(), epoll::EventData::new_u64(0), rdhup);
                state.link = Place::Up(Box::new(link));
                state.status.connected = true;
            }
            Err(why) => self.lose(state, why),
        }
        self.tell_ends(state);
        Ok(())
    }

    /// Ends commands that a lost session has left.
    fn end_kept(&self, state: &mut State, host: HostByte) {
        state.status.disrupted += state.tasks.end_all(host) as u64;
    }

    /// Commands that were kept have waited for another session for as long as they may.
    fn end_late(&self, state: &mut State, now: Instant) {
        if let Place::Lost(until) = state.link
            && (now >= until || state.gives_up)
            && state.tasks.in_flight() > 0
        {
            self.end_kept(state, HostByte::TransportFailfast);
        }
    }

    /// From when on there is to be another session; none if there need not be.
    pub(super) fn wants_session(&self) -> Option<Instant> {
        let state = self.state.lock();
        match state.link {
            Place::Lost(_) => Some(state.attached + pause_after(state.short_lives)),
            Place::Nowhere | Place::Up(_) => None,
        }
    }

    /// Whether it can be used now.
    pub(super) fn way(&self, now: Instant) -> Way {
        let state = self.state.lock();
        match state.link {
            Place::Nowhere | Place::Up(_) => Way::Whole,
            Place::Lost(until) if now < until && !state.gives_up => Way::Awaited,
            Place::Lost(_) => Way::GivenUp,
        }
    }

    /// Commands that the target takes now; none without a session.
    pub(super) fn window(&self) -> Option<u64> {
        let state = self.state.lock();
        if let Place::Up(link) = &state.link { Some(link.window() + state.tasks.in_flight() as u64) } else { None }
    }

    pub(super) fn status(&self) -> QueueStatus {
        let state = self.state.lock();
        QueueStatus { used: !matches!(state.link, Place::Nowhere), ..state.status.clone() }
    }

    /// See [`Transport::queue`](blk::scsi::transport::Transport::queue).
    pub(super) fn queue(&self, batch: &mut CommandBatch<'_, '_>, regions: &Regions, now: Instant) -> Option<Busy> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let mut busy = None;
        while let Some(command) = batch.front() {
            let link = match &mut state.link {
                Place::Up(link) => link,
                Place::Lost(until) if now < *until && !state.gives_up => {
                    busy = Some(Busy::Hctx);
                    break;
                }
                Place::Lost(_) | Place::Nowhere => {
                    let ticket = batch.accept();
                    state.tasks.end_at_once(ticket, Outcome::host(HostByte::TransportFailfast));
                    continue;
                }
            };
            if !link.is_open() {
                busy = Some(Busy::Hctx);
                break;
            }
            let tag = match state.tasks.take(&command, regions, now) {
                Ok(tag) => tag,
                Err(status) => {
                    batch.refuse(status);
                    break;
                }
            };
            state.tasks.begin(tag, batch.accept());
            if let Err(lost) = link.command(tag, &mut state.tasks, regions) {
                self.lose(state, lost);
            }
        }
        let unsent = if let Place::Up(link) = &state.link { link.unsent() } else { 0 };
        if unsent >= state.lazy_below.max(1) {
            self.transmit(state, regions);
        }
        self.tell_ends(state);
        busy
    }

    /// Sends what waits to be sent.
    fn transmit(&self, state: &mut State, regions: &Regions) {
        let Place::Up(link) = &mut state.link else { return };
        if (link.unsent() > 0 || state.tasks.own.has_unsent())
            && let Err(lost) = link.transmit(&mut state.tasks, regions, self.waits.set())
        {
            self.lose(state, lost);
        }
    }

    /// Takes what the target has said, and sends what it has asked for.
    fn receive(&self, state: &mut State, regions: &Regions, now: Instant) {
        let Place::Up(link) = &mut state.link else { return };
        match link.receive(&mut state.tasks, regions, now) {
            Ok(()) => self.transmit(state, regions),
            Err(lost) => self.lose(state, lost),
        }
    }

    /// The session is of no use any more.
    #[cold]
    fn lose(&self, state: &mut State, lost: Lost) {
        if let Place::Up(link) = &state.link {
            link.unwatch(self.waits.set());
            abandon(link.as_fd());
        }
        let now = clock::now();
        let patience = if state.gives_up { Duration::ZERO } else { self.patience.recovery_timeout };
        if state.tasks.has_changing() {
            state.cut_until = Some(now + self.patience.recovery_timeout);
        }
        state.link = Place::Lost(now + patience);
        let is_short = now.since(state.attached) < LONG_LIFE;
        state.short_lives = if is_short { state.short_lives + 1 } else { 0 };
        state.status.connected = false;
        state.status.losses += 1;
        state.status.last_loss = Some(lost.0);
        match (patience, self.patience.fences) {
            (Duration::ZERO, _) => self.end_kept(state, HostByte::TransportFailfast),
            // Requests are kept, for their data may still be written; our own questions end, and what was asked for is forgotten.
            (_, true) => {
                state.tasks.own.end_all(HostByte::TransportDisrupted);
                state.tasks.own.forget_managed();
            }
            (_, false) => self.end_kept(state, HostByte::TransportDisrupted),
        }
        self.keeper.ring();
    }

    /// The session is given up, because of `why`.
    pub(super) fn drop_session(&self, why: &str) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if matches!(state.link, Place::Up(_)) {
            self.lose(state, Lost(why.to_owned()));
            self.tell_ends(state);
        }
    }

    /// The unit has said that it has changed, to a request of any session: who uses this one has to ask it again. One that has told of it
    /// itself was lost by that, and what is there now has asked.
    pub(super) fn doubt(&self) {
        if !self.state.lock().tasks.take_told() {
            self.drop_session(&unheard().0);
        }
    }

    /// Gives the session up if it has nothing to do. Whether there is none now.
    pub(super) fn leave_if_idle(&self, why: &str) -> bool {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if matches!(state.link, Place::Up(_)) && state.tasks.in_flight() == 0 {
            self.lose(state, Lost(why.to_owned()));
        }
        !matches!(state.link, Place::Up(_))
    }

    /// Has requests fail that wait for a session, now and until it is taken back; and those that a target has not answered for
    /// [`LATE`], with their session.
    pub(super) fn set_give_up(&self, give_up: bool) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if let Place::Lost(until) = &mut state.link
            && state.gives_up
            && !give_up
        {
            // Others go on with it: they wait for a session as long as if nothing had been.
            *until = (*until).max(clock::now() + self.patience.recovery_timeout);
        }
        state.gives_up = give_up;
        let is_up = matches!(state.link, Place::Up(_));
        if give_up && is_up && state.tasks.has_older(LATE, clock::now()) {
            self.lose(state, Lost("requests that it had were given up by an operator".into()));
        }
        self.end_late(state, clock::now());
        self.tell_ends(state);
    }

    /// Ends that no socket tells of are told by the eventfd.
    fn tell_ends(&self, state: &mut State) {
        if state.tasks.has_ended() {
            self.waits.signal(&mut state.waiting);
        }
    }

    /// See [`Transport::poll`](blk::scsi::transport::Transport::poll).
    pub(super) fn poll(&self, ended: &mut Outcomes<'_>, regions: &Regions, now: Instant) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.tasks.in_flight() > 0 {
            self.transmit(state, regions);
            self.receive(state, regions, now);
            self.end_late(state, now);
        }
        let given = state.tasks.give_ended(ended);
        let found_last = given > 0 && state.tasks.in_flight() == 0;
        self.waits.polled(&mut state.waiting, state.tasks.has_ended(), found_last);
    }

    /// See [`HostDriver::wait_since`](crate::driver::host_driver::HostDriver::wait_since).
    pub(super) fn wait(&self, seen: u64, timeout: Option<Duration>, regions: &Regions) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        self.transmit(state, regions);
        if state.tasks.held() == 0 {
            // Nobody polls then: what the target says unasked would keep its socket readable.
            self.receive(state, regions, clock::now());
        }
        let idle = state.tasks.held() == 0 && timeout.is_none();
        if idle || state.tasks.has_ended() || self.waits.wakes() != seen {
            return self.waits.calm(&mut state.waiting, state.tasks.has_ended());
        }
        self.waits.sleep(&mut guard, |state| &mut state.waiting, timeout.unwrap_or(MAX_SLEEP));
        let state = &mut *guard;
        self.waits.calm(&mut state.waiting, state.tasks.has_ended());
    }

    pub(super) fn wakes(&self) -> u64 {
        self.waits.wakes()
    }

    pub(super) fn wake(&self) {
        self.waits.wake(&mut self.state.lock().waiting);
    }

    pub(super) fn set_lazy_commit(&self, fewer_than: u32) {
        self.state.lock().lazy_below = fewer_than as usize;
    }

    pub(super) fn ring_fd(&self) -> RawFd {
        self.waits.fd()
    }

    /// When a poll has something to do without a word from the target.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let state = self.state.lock();
        match state.link {
            _ if state.tasks.has_ended() => Some(Instant::ZERO),
            Place::Lost(until) if state.tasks.in_flight() > 0 => Some(until),
            _ => None,
        }
    }

    /// See [`Transport::abort`](blk::scsi::transport::Transport::abort).
    pub(super) fn abort(&self, late: TimedOut, regions: &Regions, now: Instant) -> Abort {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        // It may have been answered.
        self.receive(state, regions, now);
        self.tell_ends(state);
        let Some((wire_tag, cmd_sn)) = state.tasks.reference(late) else { return Abort::Gone };
        let task = (late.tag.index() as u16, wire_tag);
        match state.tasks.own.managed(Function::AbortTask, Some(task)) {
            Some(None) => Abort::Begun,
            // One that was done has ended the command.
            Some(Some(_)) => Abort::Failed,
            None if state.tasks.own.is_aborting() => Abort::Waits,
            None => {
                let Place::Up(link) = &mut state.link else { return Abort::Gone };
                if !link.manage(Function::AbortTask, Some((task.0, wire_tag, cmd_sn)), &mut state.tasks) {
                    return Abort::Failed;
                }
                self.transmit(state, regions);
                self.tell_ends(state);
                Abort::Begun
            }
        }
    }

    /// Sends a function for all tasks, or says how far it is; `None` if there is no session.
    pub(super) fn manage(&self, function: Function, regions: &Regions, now: Instant) -> Option<Help> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        self.receive(state, regions, now);
        let Place::Up(link) = &mut state.link else {
            self.tell_ends(state);
            return None;
        };
        let help = match state.tasks.own.managed(function, None) {
            Some(None) => Help::Begun,
            Some(Some(true)) => Help::Done,
            Some(Some(false)) => Help::Failed,
            None if link.manage(function, None, &mut state.tasks) => {
                self.transmit(state, regions);
                Help::Begun
            }
            None => Help::Failed,
        };
        self.tell_ends(state);
        Some(help)
    }

    /// Nobody waits any more for a function that was sent.
    pub(super) fn drop_managed(&self, function: Function) {
        self.state.lock().tasks.own.drop_managed(function);
    }

    /// Sends a command of our own with this data, or for up to `most` bytes; false if it cannot.
    pub(super) fn begin_own(&self, who: Who, cdb: [u8; 16], out: &[u8], most: u32, regions: &Regions) -> bool {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let begun = matches!(state.link, Place::Up(_)) && state.tasks.own.begin(who, cdb, out.to_vec(), most);
        if begun {
            self.transmit(state, regions);
            self.tell_ends(state);
        }
        begun
    }

    /// The answer to it, once it is there.
    pub(super) fn own_answer(&self, who: Who, regions: &Regions, now: Instant) -> Option<Answer> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.tasks.own.has(who) {
            self.transmit(state, regions);
            self.receive(state, regions, now);
            self.tell_ends(state);
        }
        state.tasks.own.take_answer(who)
    }

    /// Nobody waits for it any more.
    pub(super) fn drop_own(&self, who: Who) {
        if self.state.lock().tasks.own.drop_one(who) {
            self.drop_session(&unheard().0);
        }
    }

    /// Sleeps until the socket has something, or for so long.
    pub(super) fn pause(&self, limit: Duration) {
        let mut guard = self.state.lock();
        self.waits.sleep(&mut guard, |state| &mut state.waiting, limit);
        let state = &mut *guard;
        self.waits.calm(&mut state.waiting, state.tasks.has_ended());
    }

    /// Sees whether the session has gone, or the target says something unasked, though nobody polls; and whether it is there.
    pub(super) fn look_after(&self, regions: &Regions) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let now = clock::now();
        self.receive(state, regions, now);
        if let Place::Up(link) = &mut state.link {
            match link.keep_alive(self.patience.noop_interval, self.patience.noop_timeout, now) {
                Ok(()) => self.transmit(state, regions),
                Err(lost) => self.lose(state, lost),
            }
        }
        self.end_late(state, now);
        self.tell_ends(state);
    }
}

fn group_text(group: Option<u16>) -> String {
    group.map_or_else(|| "a portal group that was not said".to_owned(), |group| format!("portal group {group}"))
}

/// How long after its making another session is made for one that did not last.
fn pause_after(short_lives: u32) -> Duration {
    if short_lives == 0 { Duration::ZERO } else { Duration::from_ms(10 << short_lives.min(10)).min(LONG_LIFE) }
}

/// A request that was not answered for this long is given up when that is asked for.
const LATE: Duration = Duration::from_secs(1);
/// How long requests wait for another session when it could have been made before, and had to wait itself.
const REMAKE_TIME: Duration = Duration::from_secs(5);
/// A session that lasted this long was a good one.
const LONG_LIFE: Duration = Duration::from_secs(1);
