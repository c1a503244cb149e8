// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A submitter's trace: what happened to its bios and requests, as typed events at the places of the kernel's tracepoints.
//!
//! Guarantees: events are in the order in which the submitter made them, and their times are those the core was called
//! with. The log belongs to the submitter and is allocated and touched when tracing is turned on, so nothing is shared and
//! nothing is allocated per event; when it is full further events are counted, not stored. Off, each place costs one branch
//! on a plain field of the submitter. Needs from callers: to drain it ([`Submitter::drain_trace`]) before it is full.
//!
//! What one submitter completes or dispatches for another is in its own log, so a request's life may be in several; sorted
//! by time they are the disk's trace. A bio that is refused before it reaches a queue has no events, as in the kernel.
//! An issue that the driver turns down for lack of resources is an [`Issue`](EventKind::Issue) and a
//! [`Requeue`](EventKind::Requeue), as of drivers that start the request first.
//!
//! Source: include/trace/events/block.h and kernel/trace/blktrace.c of Linux 6.19 (which event at which step).

use crate::bio::{Bio, BioSlot, Op, OpFlags};
use crate::driver::Ended;
use crate::flush;
use crate::id::{CpuId, HctxId, Sector, Tag};
use crate::lock::Lock;
use crate::plug::Plug;
use crate::request::{NO_TAG, Request, RequestId, Rq};
use crate::status::{BlkStatus, QueueRqStatus};
use crate::submitter::{Env, Local, Submitter};
use crate::time::Instant;

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
            EventKind::Requeue => 'R',
            EventKind::Split => 'X',
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

/// Where events go. Its length is that of the allocation, so that a push never allocates.
#[derive(Debug)]
struct Log {
    cpu: u16,
    len: usize,
    dropped: u64,
    events: Box<[Event]>,
}

impl Log {
    fn new(cpu: CpuId, capacity: usize) -> Box<Log> {
        let cpu = cpu.index() as u16;
        // No event is all zero bytes, so this writes the memory and no page of it is new to the data path.
        let events = vec![Event::plain(EventKind::Split, cpu, Instant::ZERO); capacity].into_boxed_slice();
        Box::new(Log { cpu, len: 0, dropped: 0, events })
    }

    #[inline]
    fn push(&mut self, event: Event) {
        match self.events.get_mut(self.len) {
            Some(place) => {
                *place = event;
                self.len += 1;
            }
            None => self.dropped += 1,
        }
    }

    /// Takes back the newest `n` events.
    fn take_back(&mut self, n: usize) {
        let lost = self.dropped.min(n as u64);
        self.dropped -= lost;
        self.len -= n - lost as usize;
    }

    #[inline(never)]
    fn bio(&mut self, kind: EventKind, bio: &Bio, status: BlkStatus, now: Instant) {
        let (sector, nr_sectors, flags, op) = (bio.sector.0, bio.nr_sectors, bio.flags, bio.op);
        self.push(Event { sector, nr_sectors, flags, op, status, ..Event::plain(kind, self.cpu, now) });
    }

    /// The first request opens it. A request that no plug holds back passes through as well, without an event.
    #[inline(never)]
    fn plugged(&mut self, plug: &Plug, now: Instant) {
        if plug.is_open() && plug.rqs.is_empty() {
            self.push(Event::plain(EventKind::Plug, self.cpu, now));
        }
    }

    #[inline(never)]
    fn unplugged(&mut self, plug: &Plug, now: Instant) {
        if plug.is_open() {
            let nr_sectors = plug.rqs.len() as u32;
            self.push(Event { nr_sectors, ..Event::plain(EventKind::Unplug, self.cpu, now) });
        }
    }

    fn rq(&mut self, kind: EventKind, rq: &Request, status: BlkStatus, now: Instant) {
        self.rq_of_length(kind, rq, rq.nr_sectors(), status, now);
    }

    #[inline]
    fn rq_of_length(&mut self, kind: EventKind, rq: &Request, nr_sectors: u32, status: BlkStatus, now: Instant) {
        self.push(Event {
            time: now,
            sector: rq.sector.get(),
            nr_sectors,
            flags: rq.flags(),
            cpu: self.cpu,
            hctx: rq.hctx.get(),
            tag: rq.driver_tag.get(),
            op: rq.op(),
            kind,
            status,
        });
    }
}

impl Tracer {
    /// Events from now on are of this CPU.
    pub(crate) fn set_cpu(&mut self, cpu: CpuId) {
        if let Some(log) = &mut self.log {
            log.cpu = cpu.index() as u16;
        }
    }

    /// An event of a bio by itself.
    #[inline(always)] // The branch; the rest is out of line.
    pub(crate) fn bio(&mut self, kind: EventKind, bio: &Bio, now: Instant) {
        if let Some(log) = &mut self.log {
            log.bio(kind, bio, BlkStatus::Ok, now);
        }
    }

    /// A bio became part of a request that was there.
    #[inline(always)] // As `bio`.
    pub(crate) fn merged(&mut self, slot: &BioSlot, now: Instant) {
        if let Some(log) = &mut self.log {
            log.bio(slot.merged_as(), &slot.bio(), BlkStatus::Ok, now);
        }
    }

    /// A bio that was not to wait ends without a request.
    #[cold]
    pub(crate) fn ended_bio(&mut self, slot: &BioSlot, status: BlkStatus, now: Instant) {
        if let Some(log) = &mut self.log {
            log.bio(EventKind::Complete, &slot.bio(), status, now);
        }
    }

    /// An event of a request.
    #[inline(always)] // As `bio`.
    pub(crate) fn rq(&mut self, kind: EventKind, rq: &Request, now: Instant) {
        if let Some(log) = &mut self.log {
            log.rq(kind, rq, BlkStatus::Ok, now);
        }
    }
}

impl Local {
    /// A request goes into the plug.
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
        log.events[..core::mem::take(&mut log.len)].iter().for_each(f);
        core::mem::take(&mut log.dropped)
    }

    /// Ends tracing. What was not drained is in the answer.
    pub fn stop_trace(&mut self) -> TraceLog {
        let Some(log) = self.local.trace.log.take() else { return TraceLog::default() };
        let Log { len, dropped, events, .. } = *log;
        let mut events = events.into_vec();
        events.truncate(len);
        TraceLog { events, dropped }
    }
}

impl<L: Lock> Env<L> {
    /// The same event of several requests.
    #[inline(always)] // As `Tracer::bio`.
    pub(crate) fn trace_ids(&self, local: &mut Local, kind: EventKind, ids: &[RequestId], now: Instant) {
        if let Some(log) = &mut local.trace.log {
            self.push_ids(log, kind, ids, now);
        }
    }

    #[inline(never)]
    fn push_ids(&self, log: &mut Log, kind: EventKind, ids: &[RequestId], now: Instant) {
        for id in ids {
            log.rq(kind, self.st.slab.get(*id), BlkStatus::Ok, now);
        }
    }

    /// What a driver ended. Asked before any of it is looked at further, so a request whose completion is passed on to
    /// another CPU is in the trace of the one that found it.
    #[inline(always)] // As `Tracer::bio`.
    pub(crate) fn trace_ended(&self, local: &mut Local, hctx: usize, items: &[Ended], now: Instant) {
        if let Some(log) = &mut local.trace.log {
            self.push_ended(log, hctx, items, now);
        }
    }

    #[inline(never)]
    fn push_ended(&self, log: &mut Log, hctx: usize, items: &[Ended], now: Instant) {
        for (tag, status) in items {
            let id = self.rq_of_driver_tag(hctx, tag.index());
            log.rq(EventKind::Complete, self.st.slab.get(id), *status, now);
        }
    }

    /// A request that the driver answered with an error at once.
    #[cold]
    pub(crate) fn trace_unissued(&self, local: &mut Local, id: RequestId, status: BlkStatus, now: Instant) {
        if let Some(log) = &mut local.trace.log {
            log.rq(EventKind::Complete, self.st.slab.get(id), status, now);
        }
    }

    /// Requests on their way into an elevator. Asked before they are there: afterwards they are anybody's.
    #[inline]
    pub(crate) fn trace_insert(&self, local: &mut Local, rqs: &[Rq], now: Instant) {
        if let Some(log) = &mut local.trace.log {
            for rq in rqs {
                log.rq(EventKind::Insert, self.st.slab.get(rq.id()), BlkStatus::Ok, now);
            }
        }
    }

    /// A request was joined to the one before it. If that was on its way in, it has not been inserted after all.
    #[inline]
    pub(crate) fn trace_absorbed(&self, local: &mut Local, rq: &Rq, now: Instant) {
        let Some(log) = &mut local.trace.log else { return };
        let r = self.st.slab.get(rq.id());
        let newest = log.events[..log.len]
            .iter_mut()
            .rev()
            .take_while(|e| e.time == now && matches!(e.kind, EventKind::Insert | EventKind::BackMerge));
        match newest.into_iter().find(|e| e.kind == EventKind::Insert && e.sector == r.sector.get() && e.op == r.op()) {
            Some(event) => event.kind = EventKind::BackMerge,
            None => log.rq(EventKind::BackMerge, r, BlkStatus::Ok, now),
        }
    }

    /// The driver did not take all of the requests that were said to be issued: the first of the rest was turned down,
    /// the others not offered.
    #[cold]
    pub(crate) fn trace_refused(&self, local: &mut Local, rest: &[RequestId], status: QueueRqStatus, now: Instant) {
        if let (Some(log), [first, others @ ..]) = (&mut local.trace.log, rest) {
            log.take_back(others.len());
            if matches!(status, QueueRqStatus::Resource | QueueRqStatus::DevResource) {
                log.rq(EventKind::Requeue, self.st.slab.get(*first), BlkStatus::Ok, now);
            }
        }
    }

    /// The last step of a flush sequence: the request ends. Its data, if it had any, has ended before.
    #[cold]
    pub(crate) fn trace_sequence_end(&self, local: &mut Local, rq: &Request, status: BlkStatus, now: Instant) {
        if let Some(log) = &mut local.trace.log {
            let nr_sectors = if rq.flush_seq.get() & flush::DATA != 0 { 0 } else { rq.nr_sectors() };
            log.rq_of_length(EventKind::Complete, rq, nr_sectors, status, now);
        }
    }
}
