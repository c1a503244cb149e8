// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One hardware queue: its commands, its session, and its waiting threads.
//!
//! Guarantees: a command completes once. When a session is lost, the commands in flight fail with
//! [`TransportDisrupted`](HostByte::TransportDisrupted), so the midlayer retries them. The midlayer gets [`Busy::Hctx`]
//! until there is another session. Requests that have waited for their whole time limit fail with
//! [`TransportFailfast`](HostByte::TransportFailfast). With [`Timeouts::fences`] the commands of a lost session fail later:
//! when it is known, as far as possible, that the target will not carry them out any more. A successful Logout that the
//! target has requested shows that.
//!
//! A session whose identity check is older than the last [report of a change](UnitChanges) sends no requests and no data of
//! requests: it is dropped instead. It may still carry probes of the midlayer.
//!
//! Needs from callers: the thread of [`crate::driver::remote::reconnect`]. It makes a session when there is none, and checks
//! a session that no thread polls.
//!
//! The lock, the connection and the threads that wait are those of [`crate::driver::remote::queue`].

use super::changes::UnitChanges;
use super::dial::Line;
use super::link::{Link, Lost};
use super::own::{Answer, TaskOwner};
use super::pdu::Function;
use super::tasks::Tasks;
use crate::clock;
use crate::driver::path_log::PathLog;
use crate::driver::remote::queue::{self as remote, LATE, LinkState, Protocol, QueueState};
use crate::driver::remote::reconnect::Watch;
use crate::driver::remote::stream::Stream;
use crate::driver::waits::MAX_SLEEP;
use crate::error::{Error, ErrorKind, Result};
use crate::mem::Regions;
use blk::driver::TimedOut;
use blk::scsi::disposition::{HostByte, Outcome};
use blk::scsi::transport::{Abort, Busy, CommandBatch, Help, LunId, Outcomes};
use blk::time::{Duration, Instant};
use std::sync::Arc;

/// Time limits of commands and targets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    /// How long requests wait for another session.
    pub(super) recovery_timeout: Duration,
    /// Silence of the target after which a NOP-Out is sent.
    pub(super) noop_interval: Option<Duration>,
    /// How long the answer to a NOP-Out may take.
    pub(super) noop_timeout: Duration,
    /// Commands of a lost session may be retried elsewhere once they have failed. So they are kept until there is a new
    /// session of the same nexus, which includes the same portal group: then the target has dropped the old session (RFC
    /// 7143, 6.3.5). At the latest they fail when `recovery_timeout` has passed. Without this flag they fail at once, and
    /// are retried on the queue's next session. That session must be of the same nexus: on another one the target could
    /// execute the old copy after a newer write.
    pub(super) fences: bool,
}

/// iSCSI as a queue needs it.
pub(super) struct Iscsi;

impl Protocol for Iscsi {
    type Link = Box<Link>;
    type Requests = Tasks;
    type ProtocolState = ProtocolState;
}

impl remote::Link for Box<Link> {
    fn stream(&self) -> &Stream {
        &self.stream
    }
}

impl remote::Requests for Tasks {
    fn resize(&mut self, depth: usize) {
        self.resize(depth);
    }

    fn has_ended(&self) -> bool {
        self.has_ended()
    }
}

/// Other state of a queue.
#[derive(Default)]
pub(super) struct ProtocolState {
    /// Portal group of the current or last session.
    portal_group: Option<u16>,
    /// Commands that change data were in flight when the session was lost: no session of another nexus is used before this
    /// time.
    cut_until: Option<Instant>,
    /// [`UnitChanges::count`] from before the identity check of the current or last session.
    verified: u64,
    /// Earliest time for the next login, as the target has requested (Time2Wait).
    not_before: Option<Instant>,
}

type State = QueueState<Iscsi>;

pub(super) struct Queue {
    timeouts: Timeouts,
    lun: LunId,
    changes: Arc<UnitChanges>,
    log: Arc<PathLog>,
    pub(super) core: remote::Queue<Iscsi>,
}

/// Whether a queue can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionHealth {
    /// The queue has its session, or is not in use.
    Up,
    /// Requests wait for another session.
    Recovering,
    /// Requests do not wait any more; they fail.
    Failed,
}

impl Queue {
    /// `changes` and `log` are those of the disk.
    pub(super) fn new(
        timeouts: Timeouts,
        lun: LunId,
        changes: Arc<UnitChanges>,
        log: Arc<PathLog>,
        watch: Arc<Watch>,
    ) -> Result<Queue> {
        Ok(Queue { timeouts, lun, changes, log, core: remote::Queue::new(Tasks::new(0), watch)? })
    }

    /// Earliest time for the next session; `None` if the queue needs none.
    pub(super) fn wants_session(&self) -> Option<Instant> {
        let from = self.core.wants_connection()?;
        Some(self.core.lock().protocol.not_before.map_or(from, |at| at.max(from)))
    }

    /// Takes the queue out of use until the next start.
    pub(super) fn stop(&self, regions: &Regions) {
        let mut guard = self.core.lock();
        let state = &mut *guard;
        if let Some(link) = state.end() {
            link.disconnect(&state.requests, regions, self.core.waits.set());
        }
        state.requests.own.end_all(HostByte::NoConnect);
        state.requests.own.forget_managed();
    }

    /// Uses a session: the first one since a start, or one in place of one that was lost. `verified`: the count of changes
    /// from before the session has read the unit's identity.
    ///
    /// # Errors
    /// Commands of the lost session wait to be fenced, and the new session is of another nexus.
    pub(super) fn attach(&self, line: Line<'_>, verified: u64, is_first: bool) -> Result<()> {
        let mut guard = self.core.lock();
        let state = &mut *guard;
        if !state.needs_connection(is_first) {
            return Ok(());
        }
        let (group, lost_group) = (line.params.portal_group, state.protocol.portal_group);
        let is_lost = matches!(state.link, LinkState::Lost(_));
        let cut_until = state.protocol.cut_until.filter(|until| is_lost && clock::now() < *until && !state.gives_up);
        let is_other = if self.timeouts.fences {
            state.requests.in_flight() > 0 && (group.is_none() || group != lost_group)
        } else {
            cut_until.is_some() && group != lost_group
        };
        if is_other {
            if let (LinkState::Lost(until), Some(cut_until), false) = (&mut state.link, cut_until, self.timeouts.fences)
            {
                // There is a usable portal, so requests wait for the login that follows `cut_until`.
                *until = (*until).max(cut_until + REMAKE_TIME);
            }
            drop(guard);
            line.log_out();
            let limit = if self.timeouts.fences { "fast_io_fail_tmo" } else { "recovery_timeout" };
            let (now, before) = (group_text(group), group_text(lost_group));
            return Err(Error::new(
                ErrorKind::Io,
                format!(
                    "the new session is in {now}, the lost one was in {before}: the old target port may still \
                     execute the lost session's commands, so they are not resent until {limit} has passed"
                ),
            ));
        }
        state.protocol.cut_until = None;
        state.protocol.portal_group = group;
        state.protocol.verified = verified;
        state.protocol.not_before = None;
        let now = clock::now();
        state.attached = now;
        // The target has dropped the tasks of the session before.
        self.end_kept(state, HostByte::TransportDisrupted);
        match Link::new(line, self.lun.to_wire(), self.core.waits.set(), &self.log, now) {
            Ok(link) => self.core.use_link(state, Box::new(link)),
            Err(why) => self.lose(state, Lost(why)),
        }
        self.core.tell_ends(state);
        Ok(())
    }

    /// Fails the commands that a lost session has left.
    fn end_kept(&self, state: &mut State, host: HostByte) {
        state.status.replayed += state.requests.end_all(host) as u64;
    }

    /// Fails kept commands that have waited for another session for as long as they may.
    fn end_late(&self, state: &mut State, now: Instant) {
        if let LinkState::Lost(until) = state.link
            && (now >= until || state.gives_up)
            && state.requests.in_flight() > 0
        {
            self.end_kept(state, HostByte::TransportFailfast);
        }
    }

    /// Returns whether the queue can be used now.
    pub(super) fn health(&self, now: Instant) -> SessionHealth {
        let state = self.core.lock();
        match state.link {
            LinkState::Unused | LinkState::Up(_) => SessionHealth::Up,
            LinkState::Lost(until) if now < until && !state.gives_up => SessionHealth::Recovering,
            LinkState::Lost(_) => SessionHealth::Failed,
        }
    }

    /// Returns how many commands the target takes now; `None` without a session.
    pub(super) fn window(&self) -> Option<u64> {
        let state = self.core.lock();
        if let LinkState::Up(link) = &state.link {
            Some(link.session.window() + state.requests.in_flight() as u64)
        } else {
            None
        }
    }

    /// See [`Transport::queue`](blk::scsi::transport::Transport::queue).
    pub(super) fn queue(&self, batch: &mut CommandBatch<'_, '_>, regions: &Regions, now: Instant) -> Option<Busy> {
        let mut guard = self.core.lock();
        let state = &mut *guard;
        let mut busy = None;
        // Before it takes commands: one that is given back loses a retry.
        if self.is_stale(state) {
            self.lose(state, stale());
        }
        while let Some(command) = batch.front() {
            let link = match &mut state.link {
                LinkState::Up(link) => link,
                LinkState::Lost(until) if now < *until && !state.gives_up => {
                    busy = Some(Busy::Hctx);
                    break;
                }
                LinkState::Lost(_) | LinkState::Unused => {
                    let cdb = *command.cdb.padded();
                    let outcome = Outcome::host(HostByte::TransportFailfast);
                    state.requests.end_at_once(batch.accept(), cdb, outcome);
                    continue;
                }
            };
            if !link.session.is_open() {
                busy = Some(Busy::Hctx);
                break;
            }
            let tag = match state.requests.take(&command, regions, now) {
                Ok(tag) => tag,
                Err(status) => {
                    batch.refuse(status);
                    break;
                }
            };
            state.requests.begin(tag, batch.accept());
            if let Err(lost) = link.session.command(tag, &mut state.requests, regions) {
                self.lose(state, lost);
            }
        }
        let unsent = if let LinkState::Up(link) = &state.link { link.session.unsent() } else { 0 };
        if unsent >= state.lazy_below.max(1) {
            self.transmit(state, regions);
        }
        self.core.tell_ends(state);
        busy
    }

    /// Whether the identity check of the session is older than the last report of a change.
    #[inline]
    fn is_stale(&self, state: &State) -> bool {
        state.protocol.verified != self.changes.count() && state.is_up()
    }

    /// Drops a stale session with requests: it must not send their data. The midlayer's probes may still use a stale session.
    #[inline]
    fn stop_if_stale(&self, state: &mut State) {
        if self.is_stale(state) && state.requests.has_user_command() {
            self.lose(state, stale());
        }
    }

    /// Sends what waits to be sent.
    fn transmit(&self, state: &mut State, regions: &Regions) {
        self.stop_if_stale(state);
        let LinkState::Up(link) = &mut state.link else { return };
        if (link.session.unsent() > 0 || state.requests.own.has_unsent())
            && let Err(lost) = link.transmit(&mut state.requests, regions, self.core.waits.set())
        {
            self.lose(state, lost);
        }
    }

    /// Receives from the target, and sends what it has asked for.
    fn receive(&self, state: &mut State, regions: &Regions, now: Instant) {
        self.stop_if_stale(state);
        let LinkState::Up(link) = &mut state.link else { return };
        let received = link.receive(&mut state.requests, regions, now);
        if state.requests.take_told() {
            self.changes.note();
        }
        match received {
            Ok(()) => self.transmit(state, regions),
            Err(lost) => self.lose(state, lost),
        }
    }

    /// Drops the session after a failure.
    #[cold]
    fn lose(&self, state: &mut State, lost: Lost) {
        let now = clock::now();
        let patience = if state.gives_up { Duration::ZERO } else { self.timeouts.recovery_timeout };
        let (wait, has_ended_tasks) = match &state.link {
            LinkState::Up(link) => (link.session.ending.wait, link.session.ending.has_ended_tasks),
            LinkState::Lost(_) | LinkState::Unused => (Duration::ZERO, false),
        };
        state.protocol.not_before = Some(now + wait);
        if state.requests.has_changing() && !has_ended_tasks {
            state.protocol.cut_until = Some(now + self.timeouts.recovery_timeout);
        }
        self.core.link_lost(state, lost.0, now, now + patience, true);
        match (patience, self.timeouts.fences) {
            (Duration::ZERO, _) => self.end_kept(state, HostByte::TransportFailfast),
            // Commands are kept, because the target may still write their data. Our own commands fail, and management
            // functions are forgotten.
            (_, true) if !has_ended_tasks => {
                state.requests.own.end_all(HostByte::TransportDisrupted);
                state.requests.own.forget_managed();
            }
            _ => self.end_kept(state, HostByte::TransportDisrupted),
        }
    }

    /// Drops the session because of `why`.
    pub(super) fn drop_session(&self, why: &str) {
        let mut guard = self.core.lock();
        let state = &mut *guard;
        if state.is_up() {
            self.lose(state, Lost(why.to_owned()));
            self.core.tell_ends(state);
        }
    }

    /// Drops the session if its identity check is older than the last report of a change.
    pub(super) fn drop_if_stale(&self) {
        let mut guard = self.core.lock();
        let state = &mut *guard;
        if self.is_stale(state) {
            self.lose(state, stale());
            self.core.tell_ends(state);
        }
    }

    /// Drops the session if it has nothing in flight. Returns whether there is no session now.
    pub(super) fn leave_if_idle(&self, why: &str) -> bool {
        let mut guard = self.core.lock();
        let state = &mut *guard;
        if state.is_up() && state.requests.in_flight() == 0 {
            self.lose(state, Lost(why.to_owned()));
        }
        !state.is_up()
    }

    /// While set, requests that wait for a session fail. Requests that the target has not answered for [`LATE`] fail too,
    /// together with their session.
    pub(super) fn set_give_up(&self, give_up: bool) {
        let mut guard = self.core.lock();
        let state = &mut *guard;
        if let LinkState::Lost(until) = &mut state.link
            && state.gives_up
            && !give_up
        {
            // Requests of other users wait for a session for the full time, as if nothing had been given up.
            *until = (*until).max(clock::now() + self.timeouts.recovery_timeout);
        }
        state.gives_up = give_up;
        let is_up = state.is_up();
        if give_up && is_up && state.requests.has_older(LATE, clock::now()) {
            self.lose(state, Lost("an operator gave up its requests".into()));
        }
        self.end_late(state, clock::now());
        self.core.tell_ends(state);
    }

    /// See [`Transport::poll`](blk::scsi::transport::Transport::poll).
    pub(super) fn poll(&self, ended: &mut Outcomes<'_>, regions: &Regions, now: Instant) {
        let mut guard = self.core.lock();
        let state = &mut *guard;
        if state.requests.in_flight() > 0 {
            self.transmit(state, regions);
            self.receive(state, regions, now);
            self.end_late(state, now);
        }
        let given = state.requests.give_ended(ended);
        let found_last = given > 0 && state.requests.in_flight() == 0;
        self.core.waits.polled(&mut state.waiting, state.requests.has_ended(), found_last);
    }

    /// See [`HostDriver::wait_since`](crate::driver::host_driver::HostDriver::wait_since).
    pub(super) fn wait(&self, seen: u64, timeout: Option<Duration>, regions: &Regions) {
        let mut guard = self.core.lock();
        let state = &mut *guard;
        self.transmit(state, regions);
        if state.requests.held() == 0 {
            // No thread polls then: unsolicited PDUs of the target would keep its socket readable.
            self.receive(state, regions, clock::now());
        }
        let idle = state.requests.held() == 0 && timeout.is_none();
        if idle || state.requests.has_ended() || self.core.waits.wakes() != seen {
            return self.core.calm(state);
        }
        self.core.sleep(&mut guard, timeout.unwrap_or(MAX_SLEEP));
    }

    /// Returns when a poll has something to do although the target has sent nothing.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let state = self.core.lock();
        match state.link {
            _ if state.requests.has_ended() => Some(Instant::ZERO),
            LinkState::Lost(until) if state.requests.in_flight() > 0 => Some(until),
            _ => None,
        }
    }

    /// See [`Transport::abort`](blk::scsi::transport::Transport::abort).
    pub(super) fn abort(&self, late: TimedOut, regions: &Regions, now: Instant) -> Abort {
        let mut guard = self.core.lock();
        let state = &mut *guard;
        // The command may have been answered.
        self.receive(state, regions, now);
        self.core.tell_ends(state);
        let Some((wire_tag, cmd_sn)) = state.requests.reference(late) else { return Abort::Gone };
        let task = (late.tag.index() as u16, wire_tag);
        match state.requests.own.managed(Function::AbortTask, Some(task)) {
            Some(None) => Abort::Begun,
            // A successful abort has completed the command.
            Some(Some(_)) => Abort::Failed,
            None if state.requests.own.is_aborting() => Abort::Waits,
            None => {
                let LinkState::Up(link) = &mut state.link else { return Abort::Gone };
                // The session ends soon, and its commands with it.
                if link.session.ending.is_logging_out() {
                    return Abort::Waits;
                }
                if !link.session.manage(Function::AbortTask, Some((task.0, wire_tag, cmd_sn)), &mut state.requests) {
                    return Abort::Failed;
                }
                self.transmit(state, regions);
                self.core.tell_ends(state);
                Abort::Begun
            }
        }
    }

    /// Sends a function for all tasks, or returns its progress if it was sent before; `None` if there is no session.
    pub(super) fn manage(&self, function: Function, regions: &Regions, now: Instant) -> Option<Help> {
        let mut guard = self.core.lock();
        let state = &mut *guard;
        self.receive(state, regions, now);
        let LinkState::Up(link) = &mut state.link else {
            self.core.tell_ends(state);
            return None;
        };
        let help = match state.requests.own.managed(function, None) {
            Some(None) => Help::Begun,
            Some(Some(true)) => Help::Done,
            Some(Some(false)) => Help::Failed,
            None if link.session.ending.is_logging_out() => Help::Begun,
            None if link.session.manage(function, None, &mut state.requests) => {
                self.transmit(state, regions);
                Help::Begun
            }
            None => Help::Failed,
        };
        self.core.tell_ends(state);
        Some(help)
    }

    /// Forgets a function that was sent: no thread waits for it any more.
    pub(super) fn drop_managed(&self, function: Function) {
        self.core.lock().requests.own.drop_managed(function);
    }

    /// Sends a command of our own, with this data or for up to `most` bytes. Returns false if it cannot be sent.
    pub(super) fn begin_own(&self, owner: TaskOwner, cdb: [u8; 16], out: &[u8], most: u32, regions: &Regions) -> bool {
        let mut guard = self.core.lock();
        let state = &mut *guard;
        if owner == TaskOwner::User && self.is_stale(state) {
            self.lose(state, stale());
            self.core.tell_ends(state);
        }
        let begun = state.is_up() && state.requests.own.begin(owner, cdb, out.to_vec(), most);
        if begun {
            self.transmit(state, regions);
            self.core.tell_ends(state);
        }
        begun
    }

    /// Returns the answer to that command, once there is one.
    pub(super) fn own_answer(&self, owner: TaskOwner, regions: &Regions, now: Instant) -> Option<Answer> {
        let mut guard = self.core.lock();
        let state = &mut *guard;
        if state.requests.own.has(owner) {
            self.transmit(state, regions);
            self.receive(state, regions, now);
            self.core.tell_ends(state);
        }
        state.requests.own.take_answer(owner)
    }

    /// Forgets that command, because no thread waits for it any more.
    pub(super) fn drop_own(&self, owner: TaskOwner) {
        self.core.lock().requests.own.drop_one(owner);
    }

    /// Sleeps until the socket is readable, or `limit` has passed.
    pub(super) fn pause(&self, limit: Duration) {
        self.core.sleep(&mut self.core.lock(), limit);
    }

    /// Without a poll, notices a lost session, reads unsolicited messages, and keeps the session alive.
    pub(super) fn look_after(&self, regions: &Regions) {
        let mut guard = self.core.lock();
        let state = &mut *guard;
        let now = clock::now();
        self.receive(state, regions, now);
        if let LinkState::Up(link) = &mut state.link {
            match link.session.keep_alive(self.timeouts.noop_interval, self.timeouts.noop_timeout, now) {
                Ok(()) => self.transmit(state, regions),
                Err(lost) => self.lose(state, lost),
            }
        }
        self.end_late(state, now);
        self.core.tell_ends(state);
    }
}

fn group_text(group: Option<u16>) -> String {
    group.map_or_else(|| "an unknown portal group".to_owned(), |group| format!("portal group {group}"))
}

/// The loss of a stale session.
fn stale() -> Lost {
    Lost("the target told another session of the disk that the logical unit may have changed".into())
}

/// Time allowed for the login that `cut_until` has delayed.
const REMAKE_TIME: Duration = Duration::from_secs(5);
