// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a submitter's events are kept: few bytes per event, and the same events again when they are asked for.
//!
//! Guarantees: what [`Log::for_each`] gives out is exactly what was added, in that order, whichever way it was stored.
//! Needs from callers: nothing. Does not: allocate after it was made.
//!
//! A trace costs instructions per event and memory that is written once and not read soon. So:
//! - The steps of one bio or request that have one time share a record ([`Log::add`]). They come in a fixed order and differ
//!   in nothing but the step. All that an event tells is compared, so it does not matter whose event it was.
//! - Nothing happens when a bio becomes a request: it is told of with the next event ([`Log::catch_up`]), from the times
//!   in the request; one that goes straight to the driver with its issue ([`Log::tell`]).
//! - A batch that is issued as it left the plug, or completed in that order, is one record. It names the records of its
//!   requests ([`Log::add_run`]).
//! - What a driver ends inside the call that issued it, and is told of next, is known by its number or tag alone
//!   ([`Log::end_at_once`]): no other thread can have had the request in between.
//! - The paths that a plain read or write takes write their record in place and call nothing; whatever is unusual (no room,
//!   a wait, a piece of a bio) is left to one that goes step by step.

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

/// Steps as bits of a record, in the order in which one time may have them.
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
    /// Not a step: the tag was taken for the issue, steps before it have none.
    pub(super) const LATE_TAG: u16 = 1 << 13;
    /// Not a step: nothing is added to the record any more.
    pub(super) const SEALED: u16 = 1 << 14;
    /// Not a step: this one was made by several requests, which other records tell of.
    pub(super) const OF_RUN: u16 = 1 << 15;
    /// Those that a plug makes, not a bio or request.
    pub(super) const OF_PLUG: u16 = PLUG | UNPLUG;
    pub(super) const ALL: u16 = (1 << 13) - 1;
    /// Those of a bio by itself: no hctx, no tag.
    pub(super) const OF_BIO: u16 = QUEUE | SPLIT | BACK_MERGE | FRONT_MERGE;

    /// The step of an event.
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

/// One or several events. Of a run, `sector` is the first of the records that tell of it, `nr_sectors` how many.
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
    /// Of the completion.
    status: BlkStatus,
    cpu: u16,
}

const _: () = assert!(size_of::<Record>() == 32);

impl Record {
    /// A step of a plug; `count` is that of an unplug.
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

    /// A request that was just made from a bio that was just queued.
    fn of_new(steps: u16, rq: &Request) -> Record {
        Record::of_rq(steps, rq, rq.nr_sectors(), BlkStatus::Ok, Instant::from_ns(rq.alloc_ns.get()))
    }

    /// Becomes [`Record::of_new`], field by field: built elsewhere and copied it takes more registers than there are.
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

    /// Whether both tell of the same extent and operation.
    #[inline]
    fn is_alike(&self, other: &Record) -> bool {
        self.sector == other.sector
            && self.nr_sectors == other.nr_sectors
            && self.flags == other.flags
            && self.op == other.op
    }

    /// Takes over the only step of `next`, if that is later in the order and otherwise tells what this record does.
    #[inline]
    fn take_over(&mut self, next: &Record) -> bool {
        if self.steps & !step::LATE_TAG >= next.steps || self.time != next.time {
            return false;
        }
        if next.steps & step::OF_PLUG != 0 {
            // The number of requests that left the plug is in a record of its own, unless it was one.
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

    /// Whether an event of this request now would tell what this record does.
    #[inline]
    fn tells_of(&self, rq: &Request) -> bool {
        let other = Record::of_rq(0, rq, rq.nr_sectors(), BlkStatus::Ok, self.time);
        self.is_alike(&other) && self.hctx == other.hctx && self.tag == other.tag && self.steps & step::OF_RUN == 0
    }

    /// Whether the newest step is a request's on its way into an elevator, at this time.
    fn is_inserted(&self, now: Instant) -> bool {
        let inserted = step::INSERT | step::JOIN;
        let later = step::ALL & !(step::INSERT | (step::INSERT - 1) | step::JOIN);
        self.time == now && self.steps & inserted != 0 && self.steps & (later | step::OF_RUN) == 0
    }

    /// The event of one step of this record.
    fn event(&self, bit: u16, kind: EventKind) -> Event {
        let plain = Event::plain(kind, self.cpu, self.time);
        if bit & step::OF_PLUG != 0 {
            // That of a record that is nothing else.
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

/// Whether a new request's bio was queued at the same time and neither has been told of.
#[inline(always)] // Into loops.
fn is_usual(rq: &Request) -> bool {
    !rq.has_rqf(rqf::LATE | rqf::TOLD) && rq.start_ns.get() == rq.alloc_ns.get()
}

/// The tracing half of a submitter: one word, so that the data path's fields stay together.
#[derive(Debug, Default)]
pub(crate) struct Tracer {
    /// `None` while off: the only thing read then.
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

/// The events of one submitter, up to a number that is set when it is made.
#[derive(Debug)]
pub(super) struct Log {
    cpu: u16,
    /// The bio of the next request that is told of has been told of: it had to look for a tag.
    queue_told: bool,
    /// The bio of which the next piece has been told of, but is not a request yet.
    pub(super) split_waits: Option<u32>,
    /// Records in use.
    len: usize,
    /// Events there is room for.
    room: usize,
    dropped: u64,
    /// The request whose issue is the newest step of the newest record.
    at_driver: Option<RequestId>,
    /// How many of the plug's requests have been told of, and in which record that began.
    plugged: usize,
    plugged_at: usize,
    /// Records of what left the plug, until the next step of any of it.
    unplugged: Range<usize>,
    /// Records of the newest batch that was issued as a run, as far as it has not completed.
    issued: Range<usize>,
    /// As many as there may be events: then every record fits. The length is that of the allocation.
    records: Box<[Record]>,
}

impl Log {
    /// `plugged` requests are in the plug already.
    pub(super) fn new(cpu: CpuId, capacity: usize, plugged: usize) -> Box<Log> {
        // No record is all zero bytes, so this writes the memory and no page of it is new to the data path.
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

    /// What comes is of this CPU.
    pub(super) fn set_cpu(&mut self, cpu: CpuId) {
        self.cpu = cpu.index() as u16;
        self.at_driver = None;
        if let Some(newest) = self.records[..self.len].last_mut() {
            newest.steps |= step::SEALED;
        }
    }

    /// Adds the one step of a record.
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

    /// Tells of a request that was just made from a bio, and of that bio unless it has been told of; `more` are further
    /// steps of the same time.
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

    /// As [`Log::tell`] of a request that goes straight to the driver. False: that is not all there is to it, nothing was
    /// added.
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

    /// The driver ended a request inside the call that was to issue it, and there is nothing newer. False: it is not the
    /// one that was told of last, or there is no room.
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
        // Not one record: what leaves the plug with it is no run.
        self.plugged_at = usize::MAX;
    }

    /// Says whether the bio of the next request has been told of.
    pub(super) fn queue_is_told(&mut self, told: bool) {
        self.queue_told = told;
    }

    /// Whether requests went into the plug since the last event.
    #[inline(always)] // As `add`.
    fn is_behind(&self, plug: &Plug) -> bool {
        self.plugged < plug.rqs.len()
    }

    /// Tells of the requests that went into the plug since the last event. Before any other event, and before they change.
    #[inline(always)] // As `add`.
    pub(super) fn catch_up(&mut self, plug: &Plug, slab: &RequestSlab) {
        if self.is_behind(plug) {
            self.tell_plugged(plug, slab);
        }
    }

    #[inline(never)]
    fn tell_plugged(&mut self, plug: &Plug, slab: &RequestSlab) {
        // The first opens it. A request that no plug holds back passes through as well, without an event.
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

    /// The plug is emptied at `now`.
    pub(super) fn unplug(&mut self, plug: &Plug, now: Instant) {
        let n = core::mem::take(&mut self.plugged);
        self.unplugged =
            if self.len.checked_sub(self.plugged_at) == Some(n) { self.plugged_at..self.len } else { 0..0 };
        if plug.is_open() {
            self.add(|| Record::of_plug(step::UNPLUG, n as u32, now));
        }
    }

    /// What left the plug last does not go to the driver as it is.
    pub(super) fn forget_unplugged(&mut self) {
        self.unplugged = 0..0;
    }

    /// `n` requests are issued. True: they are all that left the plug last, in that order, as that is what comes next for
    /// them; so they are told of. False: nothing was added.
    pub(super) fn add_issue_run(&mut self, n: usize, now: Instant) -> bool {
        let unplugged = core::mem::replace(&mut self.unplugged, 0..0);
        if n < 2 || n != unplugged.len() || self.room < n {
            return false;
        }
        self.issued = unplugged;
        self.add_run(step::ISSUE, n, now);
        true
    }

    /// Several requests completed. True: they are the first of those that were issued last, so they are told of.
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

    /// The driver ended several requests inside the call that was to issue them. True: they are the first of those, and
    /// all ended well, so they are told of.
    #[inline(always)] // As `add`.
    pub(super) fn end_run_at_once(&mut self, items: &[Ended], now: Instant) -> bool {
        let (first, n) = (self.issued.start, items.len());
        let Some(records) = self.records.get(first..first + n) else { return false };
        // Not told of last, it may be the run of an earlier call.
        let is_newest = self.len > 0 && self.records[self.len - 1].steps == step::OF_RUN | step::ISSUE;
        let is_run = is_newest && n <= self.issued.len() && self.room >= n;
        if !is_run || !items.iter().zip(records).all(|((tag, ok), r)| ok.is_ok() && tag.index() as u16 == r.tag) {
            return false;
        }
        self.add_run(step::COMPLETE, n, now);
        self.issued.start += n;
        true
    }

    /// A step of the `n` requests that were issued last.
    fn add_run(&mut self, bit: u16, n: usize, now: Instant) {
        self.room -= n;
        let run = Record::of_plug(step::OF_RUN | bit, n as u32, now);
        self.push(Record { sector: self.issued.start as u64, ..run });
    }

    /// Takes back the newest `n` events, which are issues.
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

    /// A request that is on its way in was joined to another instead, if it is found.
    pub(super) fn join(&mut self, rq: &Request, now: Instant) -> bool {
        for r in self.records[..self.len].iter_mut().rev().take_while(|r| r.is_inserted(now)) {
            if r.steps & step::INSERT != 0 && r.sector == rq.sector.get() && r.op == rq.op.get() {
                r.steps = r.steps & !step::INSERT | step::JOIN;
                return true;
            }
            if r.steps & step::ALL & !(step::INSERT | step::JOIN) != 0 {
                // It came alone.
                break;
            }
        }
        false
    }

    /// All events, oldest first.
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

    /// `n` events are about to come. True: there is no room for any, so they are counted as dropped.
    #[inline(always)] // As `add`.
    pub(super) fn drops(&mut self, n: usize) -> bool {
        let is_full = self.room == 0;
        if is_full {
            self.dropped += n as u64;
        }
        is_full
    }

    /// How many events it has.
    pub(super) fn nr_events(&self) -> usize {
        self.records.len() - self.room
    }

    /// Empties it. How many events were dropped since it was empty last.
    pub(super) fn clear(&mut self) -> u64 {
        (self.len, self.room) = (0, self.records.len());
        (self.unplugged, self.issued, self.at_driver) = (0..0, 0..0, None);
        // What is in the plug now and later has no record to begin at.
        self.plugged_at = usize::MAX;
        core::mem::take(&mut self.dropped)
    }
}

#[cfg(test)]
mod tests;
