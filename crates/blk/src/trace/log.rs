// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The event log of a submitter: it stores events in few bytes and returns exactly the same events.
//!
//! Guarantees: [`Log::for_each`] returns exactly the events that were added, in that order, however they were stored.
//! Needs from callers: nothing. Does not: allocate after it was made.
//!
//! A trace costs instructions per event and memory that is written once and not read soon. So:
//! - The steps of one bio or request at the same time share a record ([`Log::add`]). They come in a fixed order and differ
//!   only in the step. All fields of an event are compared, so it does not matter to which bio or request an event belongs.
//! - Nothing is recorded when a bio becomes a request. The next event records that step, too, from the times in the
//!   request ([`Log::catch_up`]). For a request that goes directly to the driver, that event is its issue
//!   ([`Log::tell_issue`]).
//! - A batch that is issued as it left the plug, or completed in that order, is one record (a run). It refers to the
//!   records of its requests ([`Log::add_run`]).
//! - If a driver completes a request inside the call that issued it, and that is the next event, then number or tag are
//!   enough to identify the request ([`Log::end_at_once`]): no other thread can have had it in between.
//! - The paths of a plain read or write write their record in place and call no function. All unusual cases (no room, a
//!   wait, a piece of a bio) are left to a path that records step by step.

use super::event::{Event, EventKind, NO_HCTX};
use crate::bio::{Bio, Op, OpFlags};
use crate::driver::Ended;
use crate::id::CpuId;
use crate::path::plug::Plug;
use crate::request::{NO_TAG, Request, RequestId, RequestSlab, rqf};
use crate::status::BlkStatus;
use crate::time::Instant;
use core::hint::cold_path;
use core::ops::Range;

/// Steps as bits of a record, in the order in which they may occur at one time.
pub(super) mod step {
    use super::EventKind;

    pub(crate) const QUEUE: u16 = 1 << 0;
    pub(crate) const SPLIT: u16 = 1 << 1;
    pub(crate) const BACK_MERGE: u16 = 1 << 2;
    pub(crate) const FRONT_MERGE: u16 = 1 << 3;
    pub(crate) const GET_RQ: u16 = 1 << 4;
    pub(crate) const PLUG: u16 = 1 << 5;
    pub(crate) const UNPLUG: u16 = 1 << 6;
    pub(crate) const INSERT: u16 = 1 << 7;
    /// A request was joined to another instead of being inserted, or after it was.
    pub(crate) const JOIN: u16 = 1 << 8;
    pub(crate) const ISSUE: u16 = 1 << 9;
    pub(crate) const TIMEOUT: u16 = 1 << 10;
    pub(crate) const REQUEUE: u16 = 1 << 11;
    pub(crate) const COMPLETE: u16 = 1 << 12;
    /// Not a step: the tag was taken for the issue, so earlier steps have no tag.
    pub(super) const LATE_TAG: u16 = 1 << 13;
    /// Not a step: nothing is added to the record any more.
    pub(super) const SEALED: u16 = 1 << 14;
    /// Not a step: the record is a run, whose step several requests made; other records describe these requests.
    pub(super) const OF_RUN: u16 = 1 << 15;
    /// Steps of a plug, not of a bio or request.
    pub(super) const OF_PLUG: u16 = PLUG | UNPLUG;
    pub(super) const ALL: u16 = (1 << 13) - 1;
    /// Steps of a bio alone: without hctx and tag.
    pub(super) const OF_BIO: u16 = QUEUE | SPLIT | BACK_MERGE | FRONT_MERGE;

    /// Returns the step of an event kind.
    pub(crate) const fn of(kind: EventKind) -> u16 {
        match kind {
            EventKind::Queue => QUEUE,
            EventKind::GetRq => GET_RQ,
            EventKind::Insert => INSERT,
            EventKind::Issue => ISSUE,
            EventKind::Complete => COMPLETE,
            EventKind::BackMerge => BACK_MERGE,
            EventKind::FrontMerge => FRONT_MERGE,
            EventKind::Plug => PLUG,
            EventKind::Unplug => UNPLUG,
            EventKind::Timeout => TIMEOUT,
            EventKind::Requeue => REQUEUE,
            EventKind::Split => SPLIT,
        }
    }
}

/// The kinds of the steps, by bit.
const KINDS: [EventKind; 13] = [
    EventKind::Queue,
    EventKind::Split,
    EventKind::BackMerge,
    EventKind::FrontMerge,
    EventKind::GetRq,
    EventKind::Plug,
    EventKind::Unplug,
    EventKind::Insert,
    EventKind::BackMerge,
    EventKind::Issue,
    EventKind::Timeout,
    EventKind::Requeue,
    EventKind::Complete,
];

/// One or several events. For a run, `sector` is the index of the first record of its requests, and `nr_sectors` their
/// number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    time: Instant,
    sector: u64,
    nr_sectors: u32,
    flags: OpFlags,
    hctx: u16,
    tag: u16,
    steps: u16,
    /// An [`Op`].
    op: u8,
    /// Status of the completion.
    status: BlkStatus,
    cpu: u16,
}

const _: () = assert!(size_of::<Record>() == 32);

impl Record {
    /// Makes a record of a step of a plug; `count` is the number of requests of an unplug.
    #[inline]
    pub(super) fn of_plug(steps: u16, count: u32, time: Instant) -> Record {
        Record {
            time,
            sector: 0,
            nr_sectors: count,
            flags: OpFlags::NONE,
            hctx: NO_HCTX,
            tag: NO_TAG,
            steps,
            op: Op::Read as u8,
            status: BlkStatus::Ok,
            cpu: 0,
        }
    }

    #[inline]
    pub(super) fn of_bio(steps: u16, bio: &Bio, status: BlkStatus, time: Instant) -> Record {
        let (sector, nr_sectors, flags, op) = (bio.sector.0, bio.nr_sectors, bio.flags, bio.op as u8);
        Record { sector, flags, op, status, ..Record::of_plug(steps, nr_sectors, time) }
    }

    #[inline]
    pub(super) fn of_rq(steps: u16, rq: &Request, nr_sectors: u32, status: BlkStatus, time: Instant) -> Record {
        Record {
            time,
            sector: rq.sector.get(),
            nr_sectors,
            flags: rq.flags(),
            hctx: rq.hctx.get(),
            tag: rq.driver_tag.get(),
            steps,
            op: rq.op.get(),
            status,
            cpu: 0,
        }
    }

    /// Makes a record of a request that was just made from a bio that was just queued.
    fn of_new(steps: u16, rq: &Request) -> Record {
        Record::of_rq(steps, rq, rq.nr_sectors(), BlkStatus::Ok, Instant::from_ns(rq.alloc_ns.get()))
    }

    /// Sets this record to [`Record::of_new`], field by field, because building it elsewhere and copying it takes too
    /// many registers.
    #[inline(always)] // Into loops.
    fn fill_new(&mut self, steps: u16, rq: &Request, cpu: u16) {
        self.time = Instant::from_ns(rq.alloc_ns.get());
        self.sector = rq.sector.get();
        self.nr_sectors = rq.nr_sectors();
        self.flags = rq.flags();
        self.hctx = rq.hctx.get();
        self.tag = rq.driver_tag.get();
        self.steps = steps;
        self.op = rq.op.get();
        self.status = BlkStatus::Ok;
        self.cpu = cpu;
    }

    /// Whether both records have the same sectors and operation.
    #[inline]
    fn is_alike(&self, other: &Record) -> bool {
        self.sector == other.sector
            && self.nr_sectors == other.nr_sectors
            && self.flags == other.flags
            && self.op == other.op
    }

    /// Adds the only step of `next` to this record, if that step is later in the order and the other fields agree.
    /// Returns whether it did.
    #[inline]
    fn take_over(&mut self, next: &Record) -> bool {
        if self.steps & !step::LATE_TAG >= next.steps || self.time != next.time {
            return false;
        }
        if next.steps & step::OF_PLUG != 0 {
            // An unplug needs a record of its own for the number of requests, unless it was one request.
            if next.steps == step::UNPLUG && next.nr_sectors != 1 {
                return false;
            }
        } else if self.steps & !step::OF_PLUG == 0 || !self.is_alike(next) {
            return false;
        } else if self.hctx == NO_HCTX {
            (self.hctx, self.tag) = (next.hctx, next.tag);
        } else if self.hctx != next.hctx {
            return false;
        } else if self.tag != next.tag {
            if self.tag != NO_TAG || next.steps != step::ISSUE {
                return false;
            }
            self.tag = next.tag;
            self.steps |= step::LATE_TAG;
        }
        self.steps |= next.steps;
        self.status = next.status;
        true
    }

    /// Whether an event of this request would now have the same fields as this record.
    #[inline]
    fn tells_of(&self, rq: &Request) -> bool {
        let other = Record::of_rq(0, rq, rq.nr_sectors(), BlkStatus::Ok, self.time);
        self.is_alike(&other) && self.hctx == other.hctx && self.tag == other.tag && self.steps & step::OF_RUN == 0
    }

    /// Whether the newest step is the insertion of a request into an elevator at this time.
    fn is_inserted(&self, now: Instant) -> bool {
        let inserted = step::INSERT | step::JOIN;
        let later = step::ALL & !(step::INSERT | (step::INSERT - 1) | step::JOIN);
        self.time == now && self.steps & inserted != 0 && self.steps & (later | step::OF_RUN) == 0
    }

    /// Returns the event of one step of this record.
    fn event(&self, bit: u16, kind: EventKind) -> Event {
        let plain = Event::plain(kind, self.cpu, self.time);
        if bit & step::OF_PLUG != 0 {
            // The count is that of a record with no other step.
            let alone = self.steps & step::ALL == step::UNPLUG;
            let nr_sectors = if alone { self.nr_sectors } else { u32::from(bit == step::UNPLUG) };
            return Event { nr_sectors, ..plain };
        }
        let of_bio = bit & step::OF_BIO != 0;
        let status = if bit == step::COMPLETE { self.status } else { BlkStatus::Ok };
        Event {
            sector: self.sector,
            nr_sectors: self.nr_sectors,
            flags: self.flags,
            op: Op::from_u8(self.op),
            hctx: if of_bio { NO_HCTX } else { self.hctx },
            tag: if of_bio || self.steps & step::LATE_TAG != 0 && bit < step::ISSUE { NO_TAG } else { self.tag },
            status,
            ..plain
        }
    }
}

/// Whether a new request's bio was queued at the same time as the request was made, and neither is recorded yet.
#[inline(always)] // Into loops.
fn is_usual(rq: &Request) -> bool {
    !rq.has_rqf(rqf::LATE | rqf::TOLD) && rq.start_ns.get() == rq.alloc_ns.get()
}

/// The trace state of a submitter: one word, so that the data path's fields stay together.
#[derive(Debug, Default)]
pub(crate) struct Tracer {
    /// `None` while tracing is off; then only this field is read.
    pub(super) log: Option<Box<Log>>,
}

impl Tracer {
    #[inline(always)] // The branch of each place.
    pub(super) fn is_on(&self) -> bool {
        if self.log.is_some() {
            cold_path();
            return true;
        }
        false
    }
}

/// The events of one submitter, up to a number that is set when the log is made.
#[derive(Debug)]
pub(super) struct Log {
    cpu: u16,
    /// The bio of the next request to be recorded is recorded already, because it had to look for a tag.
    queue_told: bool,
    /// The bio whose next piece is recorded, but is not a request yet.
    pub(super) split_waits: Option<u32>,
    /// Records in use.
    len: usize,
    /// Number of events for which there is room.
    room: usize,
    dropped: u64,
    /// The request whose issue is the newest step of the newest record.
    at_driver: Option<RequestId>,
    /// How many of the plug's requests are recorded, and the index of the first of their records.
    plugged: usize,
    plugged_at: usize,
    /// Records of the requests that left the plug last, until the next step of any of them.
    unplugged: Range<usize>,
    /// Records of the newest batch that was issued as a run, except for the completed ones.
    issued: Range<usize>,
    /// As many records as there may be events, so that every record fits. The length is that of the allocation.
    records: Box<[Record]>,
}

impl Log {
    /// Makes a log; `plugged` is the number of requests that are in the plug already.
    pub(super) fn new(cpu: CpuId, capacity: usize, plugged: usize) -> Box<Log> {
        // No record consists only of zero bytes, so this writes the memory, and the data path causes no page faults.
        let records = vec![Record::of_plug(step::PLUG, 0, Instant::ZERO); capacity].into_boxed_slice();
        Box::new(Log {
            cpu: cpu.index() as u16,
            queue_told: false,
            split_waits: None,
            len: 0,
            room: capacity,
            dropped: 0,
            at_driver: None,
            plugged,
            plugged_at: 0,
            unplugged: 0..0,
            issued: 0..0,
            records,
        })
    }

    /// Sets the CPU of later events.
    pub(super) fn set_cpu(&mut self, cpu: CpuId) {
        self.cpu = cpu.index() as u16;
        self.at_driver = None;
        if let Some(newest) = self.records[..self.len].last_mut() {
            newest.steps |= step::SEALED;
        }
    }

    /// Adds a record with one step.
    #[inline(always)] // Into each hook, where the step and so much of this is constant.
    pub(super) fn add(&mut self, next: impl FnOnce() -> Record) {
        if self.room == 0 {
            self.dropped += 1;
            return;
        }
        let next = next();
        self.room -= 1;
        self.at_driver = None;
        if let Some(newest) = self.len.checked_sub(1).and_then(|i| self.records.get_mut(i))
            && newest.take_over(&next)
        {
            return;
        }
        self.push(next);
    }

    #[inline(always)] // As `add`.
    fn push(&mut self, record: Record) {
        self.at_driver = None;
        self.records[self.len] = Record { cpu: self.cpu, ..record };
        self.len += 1;
    }

    /// Records a request that was just made from a bio, and the bio unless it is recorded already. `more` are further
    /// steps at the same time.
    #[inline(never)]
    pub(super) fn tell(&mut self, rq: &Request, more: u16) {
        let n = 2 + usize::from(more != 0);
        if self.queue_told || !is_usual(rq) || self.room < n && self.room > 0 {
            return self.tell_one_by_one(rq, more);
        }
        if self.room == 0 {
            self.dropped += n as u64;
            return;
        }
        self.room -= n;
        self.push(Record::of_new(step::QUEUE | step::GET_RQ | more, rq));
    }

    /// As [`Log::tell`], for a request that goes directly to the driver. False: the case is not a usual one, and nothing
    /// was added.
    #[inline(always)] // The hook of each I/O at a depth of one.
    pub(super) fn tell_issue(&mut self, id: RequestId, rq: &Request, plug: &Plug) -> bool {
        let is_usual = self.room >= 3 && !self.queue_told && is_usual(rq) && !self.is_behind(plug);
        if is_usual && let Some(record) = self.records.get_mut(self.len) {
            record.fill_new(step::QUEUE | step::GET_RQ | step::ISSUE, rq, self.cpu);
            self.room -= 3;
            self.len += 1;
            self.at_driver = Some(id);
            return true;
        }
        false
    }

    /// Records that the driver completed a request inside the call that issued it. False: the newest event is not the
    /// issue of this request, or there is no room.
    #[inline(always)] // As `tell_issue`.
    pub(super) fn end_at_once(&mut self, id: RequestId, status: BlkStatus) -> bool {
        if self.at_driver != Some(id) || self.room == 0 {
            return false;
        }
        let Some(newest) = self.len.checked_sub(1).and_then(|i| self.records.get_mut(i)) else { return false };
        newest.steps |= step::COMPLETE;
        newest.status = status;
        self.room -= 1;
        self.at_driver = None;
        true
    }

    #[cold]
    fn tell_one_by_one(&mut self, rq: &Request, more: u16) {
        let queue_told = core::mem::take(&mut self.queue_told) || rq.has_rqf(rqf::LATE);
        let begin = match (rq.has_rqf(rqf::TOLD), queue_told) {
            (true, _) => 0,
            (false, true) => step::GET_RQ,
            (false, false) => step::QUEUE | step::GET_RQ,
        };
        let mut steps = begin | more;
        while steps != 0 {
            let bit = 1 << steps.trailing_zeros();
            steps &= steps - 1;
            let time = if bit == step::QUEUE { rq.start_ns.get() } else { rq.alloc_ns.get() };
            let whole = Record::of_rq(bit, rq, rq.nr_sectors(), BlkStatus::Ok, Instant::from_ns(time));
            self.add(|| match bit {
                step::QUEUE => Record { hctx: NO_HCTX, tag: NO_TAG, ..whole },
                step::PLUG => Record::of_plug(bit, 0, whole.time),
                _ => whole,
            });
        }
        // The request may have several records, so the batch that leaves the plug with it is not a run.
        self.plugged_at = usize::MAX;
    }

    /// Sets whether the bio of the next request is recorded.
    pub(super) fn queue_is_told(&mut self, told: bool) {
        self.queue_told = told;
    }

    /// Whether requests went into the plug since the last event.
    #[inline(always)] // As `add`.
    fn is_behind(&self, plug: &Plug) -> bool {
        self.plugged < plug.rqs.len()
    }

    /// Records the requests that went into the plug since the last event. Called before any other event, and before these
    /// requests change.
    #[inline(always)] // As `add`.
    pub(super) fn catch_up(&mut self, plug: &Plug, slab: &RequestSlab) {
        if self.is_behind(plug) {
            self.tell_plugged(plug, slab);
        }
    }

    #[inline(never)]
    fn tell_plugged(&mut self, plug: &Plug, slab: &RequestSlab) {
        // The first request of an open plug causes a plug event. A request that no plug holds back also passes here,
        // without that event.
        let opens = self.plugged == 0 && plug.is_open();
        if self.plugged == 0 {
            self.plugged_at = self.len;
        }
        let untold = &plug.rqs[self.plugged..];
        self.plugged = plug.rqs.len();
        self.at_driver = None;
        let mut told = 0;
        if !self.queue_told
            && self.room > 2 * untold.len()
            && let Some(records) = self.records.get_mut(self.len..self.len + untold.len())
        {
            for (record, rq) in records.iter_mut().zip(untold) {
                let rq = slab.get(rq.id());
                if !is_usual(rq) {
                    break;
                }
                record.fill_new(step::QUEUE | step::GET_RQ, rq, self.cpu);
                told += 1;
            }
            if opens && told > 0 {
                records[0].steps |= step::PLUG;
                self.room -= 1;
            }
            self.len += told;
            self.room -= 2 * told;
        }
        for (i, rq) in untold.iter().enumerate().skip(told) {
            self.tell(slab.get(rq.id()), if opens && i == 0 { step::PLUG } else { 0 });
        }
    }

    /// Records that the plug is emptied at `now`.
    pub(super) fn unplug(&mut self, plug: &Plug, now: Instant) {
        let n = core::mem::take(&mut self.plugged);
        self.unplugged =
            if self.len.checked_sub(self.plugged_at) == Some(n) { self.plugged_at..self.len } else { 0..0 };
        if plug.is_open() {
            self.add(|| Record::of_plug(step::UNPLUG, n as u32, now));
        }
    }

    /// Forgets the requests that left the plug last, because they do not go to the driver as one batch.
    pub(super) fn forget_unplugged(&mut self) {
        self.unplugged = 0..0;
    }

    /// Records the issue of `n` requests as a run. True: these are all requests that left the plug last, in that order,
    /// because their issue is their next step. False: nothing was added.
    pub(super) fn add_issue_run(&mut self, n: usize, now: Instant) -> bool {
        let unplugged = core::mem::replace(&mut self.unplugged, 0..0);
        if n < 2 || n != unplugged.len() || self.room < n {
            return false;
        }
        self.issued = unplugged;
        self.add_run(step::ISSUE, n, now);
        true
    }

    /// Records the completion of several requests as a run, if they are the first of the requests that were issued
    /// last. Returns whether it did.
    #[inline(always)] // As `add`.
    pub(super) fn add_complete_run<'a>(
        &mut self,
        mut rqs: impl ExactSizeIterator<Item = &'a Request>,
        now: Instant,
    ) -> bool {
        let (first, n) = (self.issued.start, rqs.len());
        let records = &self.records[first..first + n.min(self.issued.len())];
        if records.len() < n || self.room < n || !records.iter().all(|r| rqs.next().is_some_and(|rq| r.tells_of(rq))) {
            self.issued = 0..0;
            return false;
        }
        self.add_run(step::COMPLETE, n, now);
        self.issued.start += n;
        true
    }

    /// Records that the driver completed several requests inside the call that issued them. True: they are the first
    /// requests of that call, and all succeeded. False: nothing was added.
    #[inline(always)] // As `add`.
    pub(super) fn end_run_at_once(&mut self, items: &[Ended], now: Instant) -> bool {
        let (first, n) = (self.issued.start, items.len());
        let Some(records) = self.records.get(first..first + n) else { return false };
        // If the issue is not the newest record, it may be the run of an earlier call.
        let is_newest = self.len > 0 && self.records[self.len - 1].steps == step::OF_RUN | step::ISSUE;
        let is_run = is_newest && n <= self.issued.len() && self.room >= n;
        if !is_run || !items.iter().zip(records).all(|((tag, ok), r)| ok.is_ok() && tag.index() as u16 == r.tag) {
            return false;
        }
        self.add_run(step::COMPLETE, n, now);
        self.issued.start += n;
        true
    }

    /// Adds a run: a step of the first `n` requests in `issued`.
    fn add_run(&mut self, bit: u16, n: usize, now: Instant) {
        self.room -= n;
        let run = Record::of_plug(step::OF_RUN | bit, n as u32, now);
        self.push(Record { sector: self.issued.start as u64, ..run });
    }

    /// Removes the newest `n` events, which are issues.
    pub(super) fn take_back_issues(&mut self, n: usize) {
        self.issued = 0..0;
        self.at_driver = None;
        let lost = self.dropped.min(n as u64);
        self.dropped -= lost;
        let n = n - lost as usize;
        self.room += n;
        for _ in 0..n {
            let newest = &mut self.records[self.len - 1];
            if newest.steps & step::OF_RUN != 0 {
                newest.nr_sectors -= 1;
            } else {
                newest.tag = if newest.steps & step::LATE_TAG == 0 { newest.tag } else { NO_TAG };
                newest.steps &= !(step::ISSUE | step::LATE_TAG);
            }
            if newest.steps & step::ALL == 0 || newest.steps & step::OF_RUN != 0 && newest.nr_sectors == 0 {
                self.len -= 1;
            }
        }
    }

    /// Records that a request was joined to another instead of being inserted. Returns whether its insertion was found.
    pub(super) fn join(&mut self, rq: &Request, now: Instant) -> bool {
        for r in self.records[..self.len].iter_mut().rev().take_while(|r| r.is_inserted(now)) {
            if r.steps & step::INSERT != 0 && r.sector == rq.sector.get() && r.op == rq.op.get() {
                r.steps = r.steps & !step::INSERT | step::JOIN;
                return true;
            }
            if r.steps & step::ALL & !(step::INSERT | step::JOIN) != 0 {
                // The request was inserted alone.
                break;
            }
        }
        false
    }

    /// Calls `f` for all events, oldest first.
    pub(super) fn for_each(&self, mut f: impl FnMut(&Event)) {
        let records = &self.records[..self.len];
        let mut each = |r: &Record, mut steps: u16| {
            steps &= step::ALL;
            while steps != 0 {
                let i = steps.trailing_zeros();
                f(&r.event(1 << i, KINDS[i as usize]));
                steps &= steps - 1;
            }
        };
        for r in records {
            if r.steps & step::OF_RUN == 0 {
                each(r, r.steps);
                continue;
            }
            let first = r.sector as usize;
            for of in &records[first..first + r.nr_sectors as usize] {
                each(&Record { time: r.time, status: r.status, cpu: r.cpu, ..*of }, r.steps);
            }
        }
    }

    /// Called before `n` events. True: there is no room for any of them, and they were counted as dropped.
    #[inline(always)] // As `add`.
    pub(super) fn drops(&mut self, n: usize) -> bool {
        let is_full = self.room == 0;
        if is_full {
            self.dropped += n as u64;
        }
        is_full
    }

    /// Returns the number of stored events.
    pub(super) fn nr_events(&self) -> usize {
        self.records.len() - self.room
    }

    /// Empties the log. Returns how many events were dropped since it was emptied last.
    pub(super) fn clear(&mut self) -> u64 {
        (self.len, self.room) = (0, self.records.len());
        (self.unplugged, self.issued, self.at_driver) = (0..0, 0..0, None);
        // Requests in the plug have no first record any more.
        self.plugged_at = usize::MAX;
        core::mem::take(&mut self.dropped)
    }
}

#[cfg(test)]
mod tests;
