// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A submitter's trace: what happened to its bios and requests, as typed events at the places of the kernel's tracepoints.
//!
//! Guarantees: events are in the order in which the submitter made them, and their times are those the core was called
//! with. The log belongs to the submitter and is allocated and touched when tracing is turned on, so nothing is shared and
//! nothing is allocated per event (how few bytes an event takes is told there); when it is full further events are
//! counted, not stored. Off, each place costs one branch on a plain field of the submitter; all that is behind the branch
//! is out of line and said to be rare, so that the compiler lays out the data path as if it were not there. Needs from
//! callers: to drain it ([`Submitter::drain_trace`]) before it is full.
//!
//! What one submitter completes or dispatches for another is in its own log, so a request's life may be in several; sorted
//! by time they are the disk's trace. A bio that is refused before it reaches a queue has no events, as in the kernel.
//! An issue that the driver turns down for lack of resources is an [`Issue`](EventKind::Issue) and a
//! [`Requeue`](EventKind::Requeue), as of drivers that start the request first.
//!
//! Source: include/trace/events/block.h and kernel/trace/blktrace.c of Linux 6.19 (which event at which step).

use crate::bio::{BioSlot, Op, OpFlags};
use crate::driver::Ended;
use crate::id::{CpuId, HctxId, Sector, Tag};
use crate::lock::Lock;
use crate::path::flush;
use crate::request::{NO_TAG, Request, RequestId, Rq, rqf};
use crate::status::{BlkStatus, QueueRqStatus};
use crate::submitter::{Env, Local, Submitter};
use crate::time::Instant;
use core::hint::cold_path;
use log::{Log, Record, step};

mod log;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EventKind {
    /// Q: a bio was handed in.
    Queue,
    /// G: a request was allocated for it.
    GetRq,
    /// I: a request went to the elevator or a ctx list. One that goes to the driver directly has no such event.
    Insert,
    /// D: a request was handed to the driver.
    Issue,
    /// C: the driver (or, of a bio that was not to wait for a tag, the core) ended it.
    Complete,
    /// M: a bio was appended to a request, or a request joined to the one before it.
    BackMerge,
    /// F: a bio was put in front of a request.
    FrontMerge,
    /// P: the first request went into an open plug.
    Plug,
    /// U: the plug was emptied; [`Event::count`] says of how many requests.
    Unplug,
    /// m: the driver was asked about a request that is late. blktrace has no letter for it, so this is a message there.
    Timeout,
    /// R: a driver gave a request back.
    Requeue,
    /// X: a bio was cut; the event has the extent of the piece in front.
    Split,
}

impl EventKind {
    /// The letter of blkparse.
    pub const fn letter(self) -> char {
        match self {
            EventKind::Queue => 'Q',
            EventKind::GetRq => 'G',
            EventKind::Insert => 'I',
            EventKind::Issue => 'D',
            EventKind::Complete => 'C',
            EventKind::BackMerge => 'M',
            EventKind::FrontMerge => 'F',
            EventKind::Plug => 'P',
            EventKind::Unplug => 'U',
            EventKind::Timeout => 'm',
            EventKind::Requeue => 'R',
            EventKind::Split => 'X',
        }
    }

    const fn step(self) -> u16 {
        match self {
            EventKind::Queue => step::QUEUE,
            EventKind::GetRq => step::GET_RQ,
            EventKind::Insert => step::INSERT,
            EventKind::Issue => step::ISSUE,
            EventKind::Complete => step::COMPLETE,
            EventKind::BackMerge => step::BACK_MERGE,
            EventKind::FrontMerge => step::FRONT_MERGE,
            EventKind::Plug => step::PLUG,
            EventKind::Unplug => step::UNPLUG,
            EventKind::Timeout => step::TIMEOUT,
            EventKind::Requeue => step::REQUEUE,
            EventKind::Split => step::SPLIT,
        }
    }
}

/// No hctx is known yet.
const NO_HCTX: u16 = u16::MAX;

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub time: Instant,
    sector: u64,
    nr_sectors: u32,
    flags: OpFlags,
    cpu: u16,
    hctx: u16,
    tag: u16,
    op: Op,
    /// What.
    pub kind: EventKind,
    status: BlkStatus,
}

const _: () = assert!(size_of::<Event>() == 32);

impl Event {
    /// The CPU of the submitter that did it.
    pub fn cpu(&self) -> CpuId {
        CpuId::new(u32::from(self.cpu))
    }

    /// The hardware queue of the request; of a bio's events and plug events there is none.
    pub fn hctx(&self) -> Option<HctxId> {
        (self.hctx != NO_HCTX).then(|| HctxId::new(u32::from(self.hctx)))
    }

    /// The driver tag, once the request has one.
    pub fn tag(&self) -> Option<Tag> {
        (self.tag != NO_TAG).then(|| Tag::new(u32::from(self.tag)))
    }

    /// The operation; that of plug events means nothing.
    pub fn op(&self) -> Op {
        self.op
    }

    /// Its modifiers.
    pub fn flags(&self) -> OpFlags {
        self.flags
    }

    /// First sector; 0 of plug events.
    pub fn sector(&self) -> Sector {
        Sector(self.sector)
    }

    /// Length in sectors; 0 of plug events and of flushes.
    pub fn nr_sectors(&self) -> u32 {
        if self.kind == EventKind::Unplug { 0 } else { self.nr_sectors }
    }

    /// Requests that left the plug ([`EventKind::Unplug`]); 0 of all others.
    pub fn count(&self) -> u32 {
        if self.kind == EventKind::Unplug { self.nr_sectors } else { 0 }
    }

    /// How it ended ([`EventKind::Complete`]); `Ok` of all others.
    pub fn status(&self) -> BlkStatus {
        self.status
    }

    fn plain(kind: EventKind, cpu: u16, now: Instant) -> Event {
        Event {
            time: now,
            sector: 0,
            nr_sectors: 0,
            flags: OpFlags::NONE,
            cpu,
            hctx: NO_HCTX,
            tag: NO_TAG,
            op: Op::Read,
            kind,
            status: BlkStatus::Ok,
        }
    }
}

/// What was traced until tracing ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceLog {
    /// In the submitter's order.
    pub events: Vec<Event>,
    /// Events that came when the log was full.
    pub dropped: u64,
}

/// The tracing half of a submitter: one word, so that the data path's fields stay together.
#[derive(Debug, Default)]
pub(crate) struct Tracer {
    /// `None` while off: the only thing looked at then.
    log: Option<Box<Log>>,
}

/// The submitter's side: turning it on, and getting at what it recorded.
impl<L: Lock> Submitter<L> {
    /// Traces from here on, up to `capacity` events (32 bytes each, allocated now) between two calls of
    /// [`Submitter::drain_trace`]. What an earlier trace holds is thrown away.
    pub fn start_trace(&mut self, capacity: usize) {
        self.local.trace.log = Some(Log::new(self.env.cpu, capacity, self.local.plug.rqs.len()));
    }

    /// Gives out all events so far, oldest first, and makes room for others. Returns how many were dropped since the last
    /// call for lack of room: those that came last.
    pub fn drain_trace(&mut self, f: impl FnMut(&Event)) -> u64 {
        self.env.trace_plugged(&mut self.local);
        let Some(log) = &mut self.local.trace.log else { return 0 };
        log.for_each(f);
        log.clear()
    }

    /// Ends tracing. What was not drained is in the answer.
    pub fn stop_trace(&mut self) -> TraceLog {
        self.env.trace_plugged(&mut self.local);
        let Some(mut log) = self.local.trace.log.take() else { return TraceLog::default() };
        let mut events = Vec::with_capacity(log.nr_events());
        log.for_each(|e| events.push(*e));
        TraceLog { events, dropped: log.clear() }
    }
}

/// Tells the log something, if there is one; what went into the plug comes first.
macro_rules! traced {
    ($env:expr, $local:expr, |$log:ident| $tell:expr) => {
        if let Some($log) = &mut $local.trace.log {
            $log.catch_up(&$local.plug, &$env.st.slab);
            $tell
        }
    };
}

/// The places of the kernel's tracepoints. Off, each is a branch (`is_on`); what is behind it is out of line and marked as
/// rare.
impl<L: Lock> Env<L> {
    /// An event of a bio by itself: of what its slot holds.
    #[inline(always)] // The branch.
    pub(crate) fn trace_bio(&self, local: &mut Local, kind: EventKind, slot: &BioSlot, now: Instant) {
        if local.trace.is_on() {
            self.tell_bio(local, kind.step(), slot, BlkStatus::Ok, now);
        }
    }

    #[inline(never)]
    fn tell_bio(&self, local: &mut Local, steps: u16, slot: &BioSlot, status: BlkStatus, now: Instant) {
        traced!(self, local, |log| log.add(|| Record::of_bio(steps, &slot.bio(), status, now)));
    }

    /// A bio is queued, and has to look for a tag before it is a request, which then has its other events.
    #[cold]
    pub(crate) fn trace_bio_waits(&self, local: &mut Local, slot: &BioSlot, now: Instant) {
        self.trace_bio(local, EventKind::Queue, slot, now);
        traced!(self, local, |log| log.queue_is_told(true));
    }

    /// It found none: the next request is another's.
    #[cold]
    pub(crate) fn trace_bio_found_no_tag(&self, local: &mut Local) {
        traced!(self, local, |log| log.queue_is_told(false));
    }

    /// A piece was cut off the bio in slot `index`.
    #[cold]
    pub(crate) fn trace_split(&self, local: &mut Local, index: u32, piece: &BioSlot, now: Instant) {
        traced!(self, local, |log| if log.split_waits.take() != Some(index) {
            log.add(|| Record::of_bio(step::SPLIT, &piece.bio(), BlkStatus::Ok, now));
        });
    }

    /// It found no tag: it will be cut off again.
    #[cold]
    pub(crate) fn trace_split_waits(&self, local: &mut Local, index: u32) {
        traced!(self, local, |log| log.split_waits = Some(index));
    }

    /// A bio became part of a request that was there; `is_new`: it was queued for that just now.
    #[inline(always)] // As `trace_bio`.
    pub(crate) fn trace_merged(&self, local: &mut Local, slot: &BioSlot, is_new: bool, now: Instant) {
        if local.trace.is_on() {
            self.tell_merged(local, slot, is_new, now);
        }
    }

    #[inline(never)]
    fn tell_merged(&self, local: &mut Local, slot: &BioSlot, is_new: bool, now: Instant) {
        if is_new {
            self.tell_bio(local, step::QUEUE, slot, BlkStatus::Ok, now);
        }
        self.tell_bio(local, slot.merged_as().step(), slot, BlkStatus::Ok, now);
    }

    /// A bio that was not to wait ends without a request.
    #[cold]
    pub(crate) fn trace_ended_bio(&self, local: &mut Local, slot: &BioSlot, status: BlkStatus, now: Instant) {
        self.tell_bio(local, step::COMPLETE, slot, status, now);
    }

    /// What is in the plug is told of, because it is about to change.
    #[inline(always)] // As `trace_bio`.
    pub(crate) fn trace_plugged(&self, local: &mut Local) {
        if local.trace.is_on() {
            self.tell_plugged(local);
        }
    }

    #[inline(never)]
    fn tell_plugged(&self, local: &mut Local) {
        traced!(self, local, |_log| ());
    }

    /// The plug is about to be emptied.
    #[inline(always)] // As `trace_bio`.
    pub(crate) fn trace_unplug(&self, local: &mut Local, now: Instant) {
        if local.trace.is_on() {
            self.tell_unplugged(local, now);
        }
    }

    #[inline(never)]
    fn tell_unplugged(&self, local: &mut Local, now: Instant) {
        traced!(self, local, |log| log.unplug(&local.plug, now));
    }

    /// An event of a request.
    #[inline(always)] // As `trace_bio`.
    pub(crate) fn trace_rq(&self, local: &mut Local, kind: EventKind, rq: &Request, now: Instant) {
        if local.trace.is_on() {
            self.tell_rq(local, kind.step(), rq, BlkStatus::Ok, now);
        }
    }

    #[inline(never)]
    fn tell_rq(&self, local: &mut Local, steps: u16, rq: &Request, status: BlkStatus, now: Instant) {
        traced!(self, local, |log| log.add(|| Record::of_rq(steps, rq, rq.nr_sectors(), status, now)));
    }

    /// A request that does not go into the plug, or changes before it does, was made from a bio that was queued just now.
    #[cold]
    pub(crate) fn trace_new_rq(&self, local: &mut Local, rq: &Request) {
        traced!(self, local, |log| {
            log.tell(rq, 0);
            rq.set_rqf(rqf::TOLD);
        });
    }

    /// The same event of several requests. `is_new`: they were made just now, and not put into the plug.
    #[inline(always)] // As `trace_bio`.
    pub(crate) fn trace_ids(&self, local: &mut Local, kind: EventKind, ids: &[RequestId], is_new: bool, now: Instant) {
        if local.trace.is_on() {
            if is_new && kind == EventKind::Issue {
                ids.iter().for_each(|id| self.tell_issue(local, *id));
            } else if is_new {
                ids.iter().for_each(|id| self.tell_new(local, kind.step(), *id));
            } else {
                self.tell_ids(local, kind.step(), ids, now);
            }
        }
    }

    /// Calls nothing but in tail position, so that it has no registers to save.
    #[inline(never)]
    fn tell_issue(&self, local: &mut Local, id: RequestId) {
        let Some(log) = &mut local.trace.log else { return };
        if !log.tell_issue(id, self.st.slab.get(id), &local.plug) {
            self.tell_new(local, step::ISSUE, id);
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_new(&self, local: &mut Local, steps: u16, id: RequestId) {
        traced!(self, local, |log| log.tell(self.st.slab.get(id), steps));
    }

    #[inline(never)]
    fn tell_ids(&self, local: &mut Local, steps: u16, ids: &[RequestId], now: Instant) {
        traced!(self, local, |log| {
            if steps != step::ISSUE {
                log.forget_unplugged();
            } else if log.add_issue_run(ids.len(), now) {
                return;
            }
            if log.drops(ids.len()) {
                return;
            }
            for rq in ids.iter().map(|id| self.st.slab.get(*id)) {
                log.add(|| Record::of_rq(steps, rq, rq.nr_sectors(), BlkStatus::Ok, now));
            }
        });
    }

    /// What a driver ended. Asked before any of it is looked at further, so a request whose completion is passed on to
    /// another CPU is in the trace of the one that found it.
    #[inline(always)] // As `trace_bio`.
    pub(crate) fn trace_ended(&self, local: &mut Local, hctx: usize, items: &[Ended], now: Instant) {
        if local.trace.is_on() {
            self.tell_ended(local, hctx, items, now);
        }
    }

    /// As `tell_issue`.
    #[inline(never)]
    fn tell_ended(&self, local: &mut Local, hctx: usize, items: &[Ended], now: Instant) {
        let Some(log) = &mut local.trace.log else { return };
        if !(local.in_driver && log.end_run_at_once(items, now)) {
            self.tell_ended_later(local, hctx, items, now);
        }
    }

    #[inline(never)]
    fn tell_ended_later(&self, local: &mut Local, hctx: usize, items: &[Ended], now: Instant) {
        let rq = |tag: Tag| self.st.slab.get(self.rq_of_driver_tag(hctx, tag.index()));
        traced!(self, local, |log| {
            if log.drops(items.len()) {
                return;
            }
            let ok = items.iter().all(|(_, status)| status.is_ok());
            if ok && log.add_complete_run(items.iter().map(|(tag, _)| rq(*tag)), now) {
                return;
            }
            for (rq, status) in items.iter().map(|(tag, status)| (rq(*tag), *status)) {
                log.add(|| Record::of_rq(step::COMPLETE, rq, rq.nr_sectors(), status, now));
            }
        });
    }

    /// The same of a single request.
    #[inline(always)] // As `trace_bio`.
    pub(crate) fn trace_ended_one(&self, local: &mut Local, id: RequestId, status: BlkStatus, now: Instant) {
        if local.trace.is_on() {
            self.tell_rq_ended(local, id, status, now);
        }
    }

    /// As `tell_issue`.
    #[inline(never)]
    fn tell_rq_ended(&self, local: &mut Local, id: RequestId, status: BlkStatus, now: Instant) {
        let Some(log) = &mut local.trace.log else { return };
        if !(local.in_driver && log.end_at_once(id, status)) {
            self.tell_rq_ended_later(local, id, status, now);
        }
    }

    #[inline(never)]
    fn tell_rq_ended_later(&self, local: &mut Local, id: RequestId, status: BlkStatus, now: Instant) {
        traced!(self, local, |log| if !log.drops(1) {
            let rq = self.st.slab.get(id);
            log.add(|| Record::of_rq(step::COMPLETE, rq, rq.nr_sectors(), status, now));
        });
    }

    /// A request that the driver answered with an error at once.
    #[cold]
    pub(crate) fn trace_unissued(&self, local: &mut Local, id: RequestId, status: BlkStatus, now: Instant) {
        self.tell_rq(local, step::COMPLETE, self.st.slab.get(id), status, now);
    }

    /// Requests on their way into an elevator. Asked before they are there: afterwards they are anybody's.
    #[inline(always)] // As `trace_bio`.
    pub(crate) fn trace_insert(&self, local: &mut Local, rqs: &[Rq], now: Instant) {
        if local.trace.is_on() {
            self.tell_inserted(local, rqs, now);
        }
    }

    #[inline(never)]
    fn tell_inserted(&self, local: &mut Local, rqs: &[Rq], now: Instant) {
        traced!(self, local, |log| {
            log.forget_unplugged();
            for rq in rqs.iter().map(|rq| self.st.slab.get(rq.id())) {
                log.add(|| Record::of_rq(step::INSERT, rq, rq.nr_sectors(), BlkStatus::Ok, now));
            }
        });
    }

    /// A request was joined to the one before it. If that was on its way in, it has not been inserted after all.
    #[inline(always)] // As `trace_bio`.
    pub(crate) fn trace_absorbed(&self, local: &mut Local, rq: &Rq, now: Instant) {
        if local.trace.is_on() {
            self.tell_absorbed(local, self.st.slab.get(rq.id()), now);
        }
    }

    #[inline(never)]
    fn tell_absorbed(&self, local: &mut Local, rq: &Request, now: Instant) {
        traced!(self, local, |log| if !log.join(rq, now) {
            log.add(|| Record::of_rq(step::JOIN, rq, rq.nr_sectors(), BlkStatus::Ok, now));
        });
    }

    /// The driver did not take all of the requests that were said to be issued: the first of the rest was turned down,
    /// the others not offered.
    #[cold]
    pub(crate) fn trace_refused(&self, local: &mut Local, rest: &[RequestId], status: QueueRqStatus, now: Instant) {
        let [first, others @ ..] = rest else { return };
        traced!(self, local, |log| log.take_back_issues(others.len()));
        if !matches!(status, QueueRqStatus::Queued | QueueRqStatus::Error(_)) {
            self.tell_rq(local, step::REQUEUE, self.st.slab.get(*first), BlkStatus::Ok, now);
        }
    }

    /// The last step of a flush sequence: the request ends. Its data, if it had any, has ended before.
    #[cold]
    pub(crate) fn trace_sequence_end(&self, local: &mut Local, rq: &Request, status: BlkStatus, now: Instant) {
        let nr_sectors = if rq.flush_seq.get() & flush::DATA != 0 { 0 } else { rq.nr_sectors() };
        traced!(self, local, |log| log.add(|| Record::of_rq(step::COMPLETE, rq, nr_sectors, status, now)));
    }

    /// Events from now on are of another CPU.
    #[cold]
    pub(crate) fn trace_cpu(&self, local: &mut Local, cpu: CpuId) {
        traced!(self, local, |log| log.set_cpu(cpu));
    }
}

impl Tracer {
    #[inline(always)] // The branch of each place.
    fn is_on(&self) -> bool {
        if self.log.is_some() {
            cold_path();
            return true;
        }
        false
    }
}
