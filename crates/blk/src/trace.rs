// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A submitter's trace: what happened to its bios and requests, as typed events at the places of the kernel's tracepoints.
//!
//! Guarantees: events are in the order in which the submitter made them, and their times are those the core was called
//! with. The log belongs to the submitter and is allocated and touched when tracing is turned on, so nothing is shared and
//! nothing is allocated per event (how few bytes an event takes is told there); when it is full further events are
//! counted, not stored. Off, each place costs one branch on a plain field of the submitter; all that is behind the branch
//! is out of line and marked as rare, so that the compiler lays out the data path as if it were not there. Needs from callers: to drain it ([`Submitter::drain_trace`]) before it is full.
//!
//! What one submitter completes or dispatches for another is in its own log, so a request's life may be in several; sorted
//! by time they are the disk's trace. A bio that is refused before it reaches a queue has no events, as in the kernel.
//! An issue that the driver turns down for lack of resources is an [`Issue`](EventKind::Issue) and a
//! [`Requeue`](EventKind::Requeue), as of drivers that start the request first.
//!
//! Source: include/trace/events/block.h and kernel/trace/blktrace.c of Linux 6.19 (which event at which step).

use crate::bio::{BioSlot, Op, OpFlags};
use crate::driver::Ended;
use crate::flush;
use crate::id::{CpuId, HctxId, Sector, Tag};
use crate::lock::Lock;
use crate::plug::Plug;
use crate::request::{NO_TAG, Request, RequestId, Rq};
use crate::status::{BlkStatus, QueueRqStatus};
use crate::submitter::{Env, Local, Submitter};
use crate::time::Instant;
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

impl Log {
    #[cold]
    #[inline(never)]
    fn bio(&mut self, steps: u16, slot: &BioSlot, status: BlkStatus, now: Instant) {
        self.add(Record::of_bio(steps, &slot.bio(), status, now));
    }

    #[cold]
    #[inline(never)]
    fn merged(&mut self, slot: &BioSlot, now: Instant) {
        self.add(Record::of_bio(slot.merged_as().step(), &slot.bio(), BlkStatus::Ok, now));
    }

    /// The first request opens it. A request that no plug holds back passes through as well, without an event.
    #[cold]
    #[inline(never)]
    fn plugged(&mut self, plug: &Plug, now: Instant) {
        if plug.is_open() {
            self.add(Record::of_plug(step::PLUG, 0, now));
        }
    }

    #[cold]
    #[inline(never)]
    fn unplugged(&mut self, plug: &Plug, now: Instant) {
        if plug.is_open() {
            self.add(Record::of_plug(step::UNPLUG, plug.rqs.len() as u32, now));
        }
    }

    #[cold]
    #[inline(never)]
    fn absorbed(&mut self, rq: &Request, now: Instant) {
        if !self.join(rq, now) {
            self.add_rq(step::JOIN, rq, BlkStatus::Ok, now);
        }
    }

    #[cold]
    #[inline(never)]
    fn rq(&mut self, steps: u16, rq: &Request, status: BlkStatus, now: Instant) {
        self.add_rq(steps, rq, status, now);
    }

    #[inline(always)] // Into loops.
    fn add_rq(&mut self, steps: u16, rq: &Request, status: BlkStatus, now: Instant) {
        self.add(Record::of_rq(steps, rq, rq.nr_sectors(), status, now));
    }
}

impl Tracer {
    /// Events from now on are of this CPU.
    pub(crate) fn set_cpu(&mut self, cpu: CpuId) {
        if let Some(log) = &mut self.log {
            log.set_cpu(cpu);
        }
    }

    /// An event of a bio by itself: of what its slot holds.
    #[inline(always)] // The branch; the rest is out of line.
    pub(crate) fn bio(&mut self, kind: EventKind, slot: &BioSlot, now: Instant) {
        if let Some(log) = &mut self.log {
            log.bio(kind.step(), slot, BlkStatus::Ok, now);
        }
    }

    /// A bio became part of a request that was there.
    #[inline(always)] // As `bio`.
    pub(crate) fn merged(&mut self, slot: &BioSlot, now: Instant) {
        if let Some(log) = &mut self.log {
            log.merged(slot, now);
        }
    }

    /// A bio that was not to wait ends without a request.
    #[cold]
    pub(crate) fn ended_bio(&mut self, slot: &BioSlot, status: BlkStatus, now: Instant) {
        if let Some(log) = &mut self.log {
            log.bio(step::COMPLETE, slot, status, now);
        }
    }

    /// An event of a request.
    #[inline(always)] // As `bio`.
    pub(crate) fn rq(&mut self, kind: EventKind, rq: &Request, now: Instant) {
        if let Some(log) = &mut self.log {
            log.rq(kind.step(), rq, BlkStatus::Ok, now);
        }
    }
}

impl Local {
    /// A request goes into the plug, which is empty.
    #[inline(always)] // As `Tracer::bio`.
    pub(crate) fn trace_plug(&mut self, now: Instant) {
        if let Some(log) = &mut self.trace.log {
            log.plugged(&self.plug, now);
        }
    }

    /// The plug is about to be emptied.
    #[inline(always)] // As `Tracer::bio`.
    pub(crate) fn trace_unplug(&mut self, now: Instant) {
        if let Some(log) = &mut self.trace.log {
            log.unplugged(&self.plug, now);
        }
    }
}

/// The submitter's side: turning it on, and getting at what it recorded.
impl<L: Lock> Submitter<L> {
    /// Traces from here on, up to `capacity` events (32 bytes each, allocated now) between two calls of
    /// [`Submitter::drain_trace`]. What an earlier trace holds is thrown away.
    pub fn start_trace(&mut self, capacity: usize) {
        self.local.trace.log = Some(Log::new(self.env.cpu, capacity));
    }

    /// Gives out all events so far, oldest first, and makes room for others. Returns how many were dropped since the last
    /// call for lack of room: those that came last.
    pub fn drain_trace(&mut self, f: impl FnMut(&Event)) -> u64 {
        let Some(log) = &mut self.local.trace.log else { return 0 };
        log.for_each(f);
        log.clear()
    }

    /// Ends tracing. What was not drained is in the answer.
    pub fn stop_trace(&mut self) -> TraceLog {
        let Some(mut log) = self.local.trace.log.take() else { return TraceLog::default() };
        let mut events = Vec::with_capacity(log.nr_events());
        log.for_each(|e| events.push(*e));
        TraceLog { events, dropped: log.clear() }
    }
}

impl<L: Lock> Env<L> {
    /// The same event of several requests.
    #[inline(always)] // As `Tracer::bio`.
    pub(crate) fn trace_ids(&self, local: &mut Local, kind: EventKind, ids: &[RequestId], now: Instant) {
        if let Some(log) = &mut local.trace.log {
            self.push_ids(log, kind.step(), ids, now);
        }
    }

    #[cold]
    #[inline(never)]
    fn push_ids(&self, log: &mut Log, steps: u16, ids: &[RequestId], now: Instant) {
        let rqs = ids.iter().map(|id| self.st.slab.get(*id));
        if steps == step::ISSUE && ids.len() > 1 && log.add_issue_run(rqs.clone(), now) {
            return;
        }
        rqs.for_each(|rq| log.add_rq(steps, rq, BlkStatus::Ok, now));
    }

    /// What a driver ended. Asked before any of it is looked at further, so a request whose completion is passed on to
    /// another CPU is in the trace of the one that found it.
    #[inline(always)] // As `Tracer::bio`.
    pub(crate) fn trace_ended(&self, local: &mut Local, hctx: usize, items: &[Ended], now: Instant) {
        if let Some(log) = &mut local.trace.log {
            self.push_ended(log, hctx, items, now);
        }
    }

    #[cold]
    #[inline(never)]
    fn push_ended(&self, log: &mut Log, hctx: usize, items: &[Ended], now: Instant) {
        let rq = |tag: Tag| self.st.slab.get(self.rq_of_driver_tag(hctx, tag.index()));
        let ok = items.len() > 1 && items.iter().all(|(_, status)| status.is_ok());
        if !(ok && log.add_complete_run(items.iter().map(|(tag, _)| rq(*tag)), now)) {
            items.iter().for_each(|(tag, status)| log.add_rq(step::COMPLETE, rq(*tag), *status, now));
        }
    }

    /// A request that the driver answered with an error at once.
    #[cold]
    pub(crate) fn trace_unissued(&self, local: &mut Local, id: RequestId, status: BlkStatus, now: Instant) {
        if let Some(log) = &mut local.trace.log {
            log.rq(step::COMPLETE, self.st.slab.get(id), status, now);
        }
    }

    /// Requests on their way into an elevator. Asked before they are there: afterwards they are anybody's.
    #[inline(always)] // As `Tracer::bio`.
    pub(crate) fn trace_insert(&self, local: &mut Local, rqs: &[Rq], now: Instant) {
        if let Some(log) = &mut local.trace.log {
            self.push_inserted(log, rqs, now);
        }
    }

    #[cold]
    #[inline(never)]
    fn push_inserted(&self, log: &mut Log, rqs: &[Rq], now: Instant) {
        rqs.iter().for_each(|rq| log.add_rq(step::INSERT, self.st.slab.get(rq.id()), BlkStatus::Ok, now));
    }

    /// A request was joined to the one before it. If that was on its way in, it has not been inserted after all.
    #[inline(always)] // As `Tracer::bio`.
    pub(crate) fn trace_absorbed(&self, local: &mut Local, rq: &Rq, now: Instant) {
        if let Some(log) = &mut local.trace.log {
            log.absorbed(self.st.slab.get(rq.id()), now);
        }
    }

    /// The driver did not take all of the requests that were said to be issued: the first of the rest was turned down,
    /// the others not offered.
    #[cold]
    pub(crate) fn trace_refused(&self, local: &mut Local, rest: &[RequestId], status: QueueRqStatus, now: Instant) {
        if let (Some(log), [first, others @ ..]) = (&mut local.trace.log, rest) {
            log.take_back_issues(others.len());
            if matches!(status, QueueRqStatus::Resource | QueueRqStatus::DevResource) {
                log.rq(step::REQUEUE, self.st.slab.get(*first), BlkStatus::Ok, now);
            }
        }
    }

    /// The last step of a flush sequence: the request ends. Its data, if it had any, has ended before.
    #[cold]
    pub(crate) fn trace_sequence_end(&self, local: &mut Local, rq: &Request, status: BlkStatus, now: Instant) {
        if let Some(log) = &mut local.trace.log {
            let nr_sectors = if rq.flush_seq.get() & flush::DATA != 0 { 0 } else { rq.nr_sectors() };
            log.add(Record::of_rq(step::COMPLETE, rq, nr_sectors, status, now));
        }
    }
}
