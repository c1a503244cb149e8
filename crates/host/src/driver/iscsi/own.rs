// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a session has in flight besides requests: the driver's own commands, with data in its own memory, and task management.
//!
//! Guarantees: an answer is accepted only if it matches a command or function in flight, and its data only if it is within the requested
//! range; everything else is a [`Violation`]. Each command gets one answer, also when the session is lost. At most [`MAX_OUT`] of each
//! kind are in flight, and one abort.
//! Source: RFC 7143, 4.2.2.1 (immediate commands), 11.5, 11.6 and 11.17 (what is rejected).

use super::dial::sense_of;
use super::link::Lost;
use super::pdu::{DataIn, Direction, Function, Status, Violation, is_before};
use blk::scsi::cdb::opcode;
use blk::scsi::disposition::{About, DeviceEvent, HostByte, Outcome, judge, sam};
use blk::scsi::sense::Sense;

/// Tags of our own messages: above those of tasks, below that of our NOP-Out.
const TAGS: u32 = 0xfffd;
/// Maximum number of commands of our own, and most management functions, in flight.
const MAX_OUT: usize = 1024;

/// With so many management functions kept, those that no longer matter are dropped.
const MANY: usize = 64;

/// Whether a tag on the wire is one of ours.
pub(super) fn is_own(wire_tag: u32) -> bool {
    wire_tag >> 16 == TAGS
}

/// The unit reports a change once, with the next command. The session is dropped after such a report, so that no later command reaches the
/// changed unit before the report is handled. [`UnitChanges`](super::changes::UnitChanges) stops the disk's other sessions.
const UNHEARD: &str = "the logical unit reported a change (unit attention)";

/// Returns the loss of the session for such a report.
pub(super) fn unheard() -> Lost {
    Lost(UNHEARD.into())
}

/// Whether the unit reports that it may be another one.
pub(super) fn is_of_another(outcome: &Outcome) -> bool {
    outcome.sense.is_some()
        && matches!(judge(outcome, &About::default()).event, DeviceEvent::CapacityChanged | DeviceEvent::Changed)
}

/// The owner of a command; at most one command each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskOwner {
    Midlayer,
    User,
    /// No thread waits for the answer any more.
    Abandoned,
}

/// How a command of our own completed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) outcome: Outcome,
    pub(super) data: Vec<u8>,
    /// Sense data as received.
    pub(super) sense: Vec<u8>,
}

#[derive(Debug)]
struct Job {
    owner: TaskOwner,
    /// It is a probe of the midlayer, about the unit's state.
    is_question: bool,
    wire_tag: u32,
    cdb: [u8; 16],
    out: Vec<u8>,
    /// Bytes of `out` that were sent.
    sent: u32,
    most: u32,
    /// Bytes that the target has announced.
    begun: u32,
    is_sent: bool,
    cmd_sn: u32,
    answer: Option<Answer>,
    data: Vec<u8>,
}

impl Job {
    /// Whether it is a REQUEST SENSE that succeeded, and its data reports a change of the unit.
    fn has_read_report(&self, outcome: &Outcome) -> bool {
        let sense = Sense::parse(&self.data).filter(|_| self.cdb[0] == opcode::REQUEST_SENSE);
        outcome.status == sam::GOOD && sense.is_some_and(|sense| is_of_another(&Outcome::check(sense)))
    }
}

/// A management function that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Managed {
    pub(super) function: Function,
    /// The task that it is about.
    pub(super) task: Option<(u16, u32)>,
    /// It affects commands before this number.
    pub(super) cmd_sn: u32,
    wire_tag: u32,
    /// Whether the target carried it out, once that is known.
    is_done: Option<bool>,
    is_dropped: bool,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Own {
    jobs: Vec<Job>,
    managed: Vec<Managed>,
    serial: u16,
    /// See [`Own::take_told`].
    has_told: bool,
}

/// A command that is to be sent.
pub(super) struct ToSend<'a> {
    pub(super) wire_tag: u32,
    pub(super) cdb: [u8; 16],
    pub(super) way: Direction,
    pub(super) len: u32,
    pub(super) out: &'a [u8],
    pub(super) sent: &'a mut u32,
    pub(super) cmd_sn: &'a mut u32,
}

impl Own {
    fn next_tag(&mut self) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        TAGS << 16 | u32::from(self.serial)
    }

    pub(super) fn has(&self, owner: TaskOwner) -> bool {
        self.jobs.iter().any(|j| j.owner == owner)
    }

    /// Queues a command, with this data or for up to `most` bytes. Returns false if the owner has one already.
    pub(super) fn begin(&mut self, owner: TaskOwner, cdb: [u8; 16], out: Vec<u8>, most: u32) -> bool {
        if self.has(owner) || self.jobs.len() >= MAX_OUT {
            return false;
        }
        let wire_tag = self.next_tag();
        self.jobs.push(Job {
            owner,
            is_question: owner == TaskOwner::Midlayer,
            wire_tag,
            cdb,
            out,
            sent: 0,
            most,
            begun: 0,
            is_sent: false,
            cmd_sn: 0,
            answer: None,
            data: Vec::new(),
        });
        true
    }

    /// Whether a command is in flight that may change data: one of a user, not a probe.
    pub(super) fn has_changing(&self) -> bool {
        self.jobs.iter().any(|j| !j.is_question && j.is_sent && j.answer.is_none() && j.most == 0)
    }

    /// Whether a command of a user waits for its answer, also if its user does not wait any more.
    pub(super) fn has_user_command(&self) -> bool {
        self.jobs.iter().any(|j| !j.is_question && j.answer.is_none())
    }

    pub(super) fn has_unsent(&self) -> bool {
        self.jobs.iter().any(|j| !j.is_sent)
    }

    /// Returns a command that is to be sent, and marks it as sent.
    pub(super) fn next_to_send(&mut self) -> Option<ToSend<'_>> {
        let job = self.jobs.iter_mut().find(|j| !j.is_sent)?;
        job.is_sent = true;
        let (way, len) = match (job.out.len() as u32, job.most) {
            (0, 0) => (Direction::None, 0),
            (0, most) => (Direction::Read, most),
            (len, _) => (Direction::Write, len),
        };
        Some(ToSend {
            wire_tag: job.wire_tag,
            cdb: job.cdb,
            way,
            len,
            out: &job.out,
            sent: &mut job.sent,
            cmd_sn: &mut job.cmd_sn,
        })
    }

    fn find(&mut self, wire_tag: u32) -> Result<&mut Job, Violation> {
        let found = self.jobs.iter_mut().find(|j| j.wire_tag == wire_tag && j.is_sent && j.answer.is_none());
        found.ok_or_else(|| Violation(format!("a PDU for task {wire_tag:#x}, which is not outstanding")))
    }

    pub(super) fn data_begins(&mut self, data: &DataIn) -> Result<(), Violation> {
        let job = self.find(data.tag)?;
        if data.offset != job.begun || job.most - job.begun < data.len {
            let (most, begun, DataIn { offset, len, .. }) = (job.most, job.begun, data);
            return Err(Violation(format!(
                "{len} bytes at offset {offset} of a task of {most} bytes, {begun} of them received"
            )));
        }
        job.begun += data.len;
        Ok(())
    }

    /// Stores data that [`Own::data_begins`] has announced.
    pub(super) fn put(&mut self, wire_tag: u32, bytes: &[u8]) {
        if let Ok(job) = self.find(wire_tag) {
            job.data.extend_from_slice(bytes);
        }
    }

    /// Returns data that the target asks for.
    pub(super) fn asked_for(&mut self, wire_tag: u32, offset: u32, len: u32) -> Result<Vec<u8>, Violation> {
        let job = self.find(wire_tag)?;
        let all = job.out.len() as u32;
        if len == 0 || offset != job.sent || all - job.sent < len {
            let sent = job.sent;
            return Err(Violation(format!(
                "an R2T for {len} bytes at offset {offset} of a task of {all} bytes, {sent} of them sent"
            )));
        }
        job.sent += len;
        Ok(job.out[offset as usize..][..len as usize].to_vec())
    }

    /// Completes a command with the data of its response. `status` is `None` if the target failed.
    pub(super) fn completed(&mut self, wire_tag: u32, status: Option<Status>, data: &[u8]) -> Result<(), Lost> {
        let job = self.find(wire_tag)?;
        let (outcome, sense) = match status {
            None => (Outcome::host(HostByte::Error), Vec::new()),
            // The target reports success without having asked for all data: the outcome is unknown.
            Some(Status { status: sam::GOOD, .. }) if (job.sent as usize) < job.out.len() => {
                (Outcome::host(HostByte::Error), Vec::new())
            }
            Some(Status { status, underflow, .. }) => {
                let is_check = status == sam::CHECK_CONDITION;
                let told = data.first_chunk().map_or(0, |n| usize::from(u16::from_be_bytes(*n)));
                let sense = data.get(2..).filter(|_| is_check).unwrap_or_default();
                let outcome = Outcome { status, sense: sense_of(data).filter(|_| is_check), ..Outcome::GOOD };
                (Outcome { residual: underflow, ..outcome }, sense.get(..told).unwrap_or(sense).to_vec())
            }
        };
        let has_told = is_of_another(&outcome) || job.has_read_report(&outcome);
        // The midlayer may need the session for its next probe. Requests do not use it any more.
        let costs_session = job.owner != TaskOwner::Midlayer && has_told;
        job.answer = Some(Answer { outcome, data: std::mem::take(&mut job.data), sense });
        self.has_told |= has_told;
        self.jobs.retain(|j| j.owner != TaskOwner::Abandoned || j.answer.is_none());
        if costs_session { Err(unheard()) } else { Ok(()) }
    }

    pub(super) fn take_answer(&mut self, owner: TaskOwner) -> Option<Answer> {
        let at = self.jobs.iter().position(|j| j.owner == owner && j.answer.is_some())?;
        self.jobs.swap_remove(at).answer
    }

    /// Returns whether, since the last call, an answer has reported that the unit has changed.
    pub(super) fn take_told(&mut self) -> bool {
        std::mem::take(&mut self.has_told)
    }

    /// No thread waits for it any more.
    pub(super) fn drop_one(&mut self, owner: TaskOwner) {
        self.jobs.retain(|j| j.owner != owner || (j.is_sent && j.answer.is_none()));
        self.jobs.iter_mut().filter(|j| j.owner == owner).for_each(|j| j.owner = TaskOwner::Abandoned);
    }

    /// Fails all commands, because the session is lost.
    pub(super) fn end_all(&mut self, host: HostByte) {
        self.end(host, |_| true);
    }

    /// Completes the commands before this number, because a reset has ended them.
    pub(super) fn reset_before(&mut self, cmd_sn: u32) {
        self.end(HostByte::Reset, |job| job.is_sent && is_before(job.cmd_sn, cmd_sn));
    }

    fn end(&mut self, host: HostByte, which: impl Fn(&Job) -> bool) {
        for job in self.jobs.iter_mut().filter(|j| j.answer.is_none() && which(j)) {
            job.answer = Some(Answer { outcome: Outcome::host(host), ..Answer::default() });
        }
        self.jobs.retain(|j| j.owner != TaskOwner::Abandoned || j.answer.is_none());
    }

    /// Forgets the management functions, because the session is lost.
    pub(super) fn forget_managed(&mut self) {
        self.managed.clear();
    }

    /// Notes a function that is to be sent. Returns its tag; `None` if too many are in flight.
    pub(super) fn manage(&mut self, function: Function, task: Option<(u16, u32)>, cmd_sn: u32) -> Option<u32> {
        if self.managed.len() >= MANY {
            // Drop functions that have completed but whose outcome no thread has fetched.
            self.managed.retain(|m| m.is_done.is_none());
        }
        if self.managed.len() >= MAX_OUT {
            return None;
        }
        let wire_tag = self.next_tag();
        self.managed.push(Managed { function, task, cmd_sn, wire_tag, is_done: None, is_dropped: false });
        Some(wire_tag)
    }

    /// Whether an abort is in flight: then another one waits. A target must accept only one immediate function at a time,
    /// and open-iscsi sends one.
    pub(super) fn is_aborting(&self) -> bool {
        self.managed.iter().any(|m| m.function == Function::AbortTask && m.is_done.is_none() && !m.is_dropped)
    }

    /// Returns whether there is such a function, and its outcome once that is known; an outcome is returned once.
    pub(super) fn managed(&mut self, function: Function, task: Option<(u16, u32)>) -> Option<Option<bool>> {
        let at = self.managed.iter().position(|m| m.function == function && m.task == task && !m.is_dropped)?;
        let is_done = self.managed[at].is_done;
        if is_done.is_some() {
            self.managed.swap_remove(at);
        }
        Some(is_done)
    }

    /// Forgets functions of this kind: no thread waits for them any more.
    pub(super) fn drop_managed(&mut self, function: Function) {
        self.managed.retain(|m| m.function != function || m.is_done.is_none());
        self.managed.iter_mut().filter(|m| m.function == function).for_each(|m| m.is_dropped = true);
    }

    /// Handles an answer to a function. Returns the function, and whether the target carried it out.
    pub(super) fn function_ended(&mut self, wire_tag: u32, response: u8) -> Result<(Managed, bool), Violation> {
        let at = self.find_managed(wire_tag, "answers")?;
        let is_done = match response {
            0 => true,
            // Task does not exist, LUN does not exist, task still allegiant, reassignment or function not supported, not authorized,
            // rejected.
            1..=6 | 255 => false,
            other => return Err(Violation(format!("unknown task management response {other}"))),
        };
        Ok((self.end_managed(at, is_done), is_done))
    }

    /// The target has no room for a function or does not know it: marks the function as not carried out.
    pub(super) fn function_rejected(&mut self, wire_tag: u32) -> Result<(), Violation> {
        let at = self.find_managed(wire_tag, "rejects")?;
        self.end_managed(at, false);
        Ok(())
    }

    fn find_managed(&self, wire_tag: u32, how: &str) -> Result<usize, Violation> {
        let found = self.managed.iter().position(|m| m.wire_tag == wire_tag && m.is_done.is_none());
        found.ok_or_else(|| Violation(format!("it {how} task management {wire_tag:#x}, which is not outstanding")))
    }

    fn end_managed(&mut self, at: usize, is_done: bool) -> Managed {
        let managed = &mut self.managed[at];
        managed.is_done = Some(is_done);
        let managed = *managed;
        // The outcome of an aborted task is the task's own.
        if managed.is_dropped || (is_done && managed.task.is_some()) {
            self.managed.swap_remove(at);
        }
        if is_done && managed.task.is_none() {
            // The reset has ended the tasks that the aborts were about: no thread waits for the aborts.
            self.drop_managed(Function::AbortTask);
        }
        managed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(own: &mut Own, owner: TaskOwner, out: &[u8], most: u32) -> u32 {
        assert!(own.begin(owner, [0; 16], out.to_vec(), most));
        own.next_to_send().unwrap().wire_tag
    }

    #[test]
    fn only_what_is_out_is_answered_and_within_what_was_asked_for() {
        let mut own = Own::default();
        let tag = sent(&mut own, TaskOwner::User, &[], 8);
        assert!(!own.begin(TaskOwner::User, [0; 16], Vec::new(), 0), "one at a time");
        let data = |offset, len| DataIn { tag, offset, len, status: None };
        assert!(own.data_begins(&data(0, 9)).is_err() && own.data_begins(&data(1, 1)).is_err());
        own.data_begins(&data(0, 3)).unwrap();
        own.put(tag, b"abc");
        assert!(own.asked_for(tag, 0, 1).is_err(), "there is nothing to send");
        assert!(own.completed(tag + 1, None, &[]).is_err());
        let good = Status { status: 0, underflow: 5, overflow: false };
        own.completed(tag, Some(good), &[]).unwrap();
        assert!(own.completed(tag, Some(good), &[]).is_err(), "it has ended");
        let answer = own.take_answer(TaskOwner::User).unwrap();
        assert_eq!((answer.data.as_slice(), answer.outcome.residual), (&b"abc"[..], 5));
        assert!(own.take_answer(TaskOwner::User).is_none());
    }

    #[test]
    fn an_abandoned_command_is_still_known_when_it_ends() {
        let mut own = Own::default();
        let tag = sent(&mut own, TaskOwner::Midlayer, &[], 0);
        own.drop_one(TaskOwner::Midlayer);
        let other = sent(&mut own, TaskOwner::Midlayer, b"xyz", 0);
        assert_eq!(own.asked_for(other, 0, 2).unwrap(), b"xy");
        assert!(own.asked_for(other, 0, 2).is_err() && own.asked_for(other, 2, 2).is_err());
        own.completed(tag, None, &[]).unwrap();
        assert!(own.take_answer(TaskOwner::Midlayer).is_none());
        own.end_all(HostByte::TransportDisrupted);
        assert_eq!(own.take_answer(TaskOwner::Midlayer).unwrap().outcome.host, HostByte::TransportDisrupted);
    }

    #[test]
    fn a_change_costs_the_session() {
        // 3f/0e in fixed format, behind its length.
        let changed = [&[0, 18, 0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x3f, 0x0e][..], &[0; 4]].concat();
        let reset = [&changed[..14], &[0x29, 0x00], &changed[16..]].concat();
        let status = Some(Status { status: sam::CHECK_CONDITION, underflow: 0, overflow: false });
        for (data, is_none) in [(&changed, false), (&reset, true)] {
            let mut own = Own::default();
            let tag = sent(&mut own, TaskOwner::Midlayer, &[], 0);
            own.drop_one(TaskOwner::Midlayer);
            assert_eq!(own.completed(tag, status, data).is_ok(), is_none, "though no thread waits for it");
            assert_eq!([own.take_told(), own.take_told()], [!is_none, false], "told once");
            // The midlayer keeps the session for its probes.
            let tag = sent(&mut own, TaskOwner::Midlayer, &[], 0);
            own.completed(tag, status, data).unwrap();
            assert_eq!(own.take_told(), !is_none);
            // A user still gets the answer.
            let tag = sent(&mut own, TaskOwner::User, &[], 0);
            assert!(own.has_user_command());
            assert_eq!(own.completed(tag, status, data).is_ok(), is_none);
            assert!(!own.has_user_command() && own.take_told() != is_none);
            own.end_all(HostByte::TransportDisrupted);
            assert_eq!(own.take_answer(TaskOwner::User).unwrap().outcome.status, sam::CHECK_CONDITION);
        }
    }

    #[test]
    fn change_reported_by_request_sense_counts() {
        let mut own = Own::default();
        let good = Some(Status { status: sam::GOOD, underflow: 0, overflow: false });
        for (code, is_change) in [(opcode::REQUEST_SENSE, true), (opcode::INQUIRY, false)] {
            let mut cdb = [0; 16];
            cdb[0] = code;
            assert!(own.begin(TaskOwner::Midlayer, cdb, Vec::new(), 18));
            let tag = own.next_to_send().unwrap().wire_tag;
            own.data_begins(&DataIn { tag, offset: 0, len: 18, status: None }).unwrap();
            own.put(tag, &[0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x3f, 0x0e, 0, 0, 0, 0]);
            own.completed(tag, good, &[]).unwrap();
            assert_eq!(own.take_told(), is_change);
            assert!(own.take_answer(TaskOwner::Midlayer).is_some());
        }
    }

    #[test]
    fn answers_to_task_management_are_judged() {
        let mut own = Own::default();
        let task = Some((3, 0x1_0003));
        let tag = own.manage(Function::AbortTask, task, 7).unwrap();
        assert_eq!(own.managed(Function::AbortTask, task), Some(None));
        assert!(own.function_ended(tag ^ 1, 0).is_err() && own.function_ended(tag, 7).is_err());
        assert!(!own.function_ended(tag, 1).unwrap().1);
        assert!(own.function_ended(tag, 0).is_err(), "a second answer");
        assert_eq!(own.managed(Function::AbortTask, task), Some(Some(false)));
        assert_eq!(own.managed(Function::AbortTask, task), None, "told once");
        let rejected = own.manage(Function::AbortTask, task, 7).unwrap();
        assert!(own.function_rejected(rejected ^ 1).is_err());
        own.function_rejected(rejected).unwrap();
        assert!(own.function_rejected(rejected).is_err() && own.function_ended(rejected, 0).is_err(), "once");
        assert_eq!(own.managed(Function::AbortTask, task), Some(Some(false)));
    }

    #[test]
    fn unanswered_abort_blocks_others_until_a_reset() {
        let mut own = Own::default();
        let abort = own.manage(Function::AbortTask, Some((3, 0x1_0003)), 7).unwrap();
        let reset = own.manage(Function::LogicalUnitReset, None, 7).unwrap();
        assert!(own.is_aborting());
        own.function_ended(reset, 0).unwrap();
        assert!(!own.is_aborting());
        // Its answer may still arrive.
        own.function_ended(abort, 1).unwrap();
        assert!(own.function_ended(abort, 1).is_err());
    }
}
