// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a submitter's events are kept: few bytes per event, and the same events again when they are asked for.
//!
//! Guarantees: what [`Log::for_each`] gives out is exactly what was added, in that order, whichever way it was stored.
//! Needs from callers: nothing. Does not: allocate after it was made.
//!
//! Memory that is written once and not read soon is what a trace costs, more than the instructions that fill it. So
//! the steps of one bio or request that have one time share a record ([`Log::add`]): they come in a fixed order and
//! differ in nothing but the step. And a batch that is issued or completed in the order of the records its requests
//! have already is one record that names those ([`Log::add_run`]). Both compare everything that an event tells, so it
//! does not matter whose event it was.

use super::{Event, EventKind, NO_HCTX};
use crate::bio::{Bio, Op, OpFlags};
use crate::id::CpuId;
use crate::request::{NO_TAG, Request};
use crate::status::BlkStatus;
use crate::time::Instant;
use core::ops::Range;

/// Steps as bits of a record, in the order in which one time may have them.
pub(super) mod step {
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
    /// Those of a bio by itself: no hctx, no tag.
    pub(super) const OF_BIO: u16 = QUEUE | SPLIT | BACK_MERGE | FRONT_MERGE;
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
    op: Op,
    /// Of the completion.
    status: BlkStatus,
    /// The tag was taken for the issue: steps before it have none.
    late_tag: bool,
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
            op: Op::Read,
            status: BlkStatus::Ok,
            late_tag: false,
        }
    }

    #[inline]
    pub(super) fn of_bio(steps: u16, bio: &Bio, status: BlkStatus, time: Instant) -> Record {
        let (sector, nr_sectors, flags, op) = (bio.sector.0, bio.nr_sectors, bio.flags, bio.op);
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
            op: rq.op(),
            status,
            late_tag: false,
        }
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
        if self.steps >= next.steps || self.time != next.time {
            return false;
        }
        if next.steps & step::OF_PLUG != 0 {
            // How many left the plug stands in a record of its own, or it was one.
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
            (self.tag, self.late_tag) = (next.tag, true);
        }
        self.steps |= next.steps;
        self.status = next.status;
        true
    }

    /// Whether an event of this request now would tell what this record tells of its last step.
    #[inline]
    fn tells_of(&self, rq: &Request) -> bool {
        self.steps & step::OF_RUN == 0
            && self.hctx == rq.hctx.get()
            && self.tag == rq.driver_tag.get()
            && self.is_alike(&Record::of_rq(0, rq, rq.nr_sectors(), BlkStatus::Ok, self.time))
    }

    /// Whether the newest step is a request's on its way into an elevator, at this time.
    fn is_inserted(&self, now: Instant) -> bool {
        let newest = 1 << self.steps.checked_ilog2().expect("a record has a step");
        self.time == now && matches!(newest, step::INSERT | step::JOIN)
    }

    /// The event of one step of this record.
    fn event(&self, bit: u16, kind: EventKind, cpu: u16) -> Event {
        let plain = Event::plain(kind, cpu, self.time);
        if bit & step::OF_PLUG != 0 {
            // That of a record that is nothing else.
            let nr_sectors = if self.steps == step::UNPLUG { self.nr_sectors } else { u32::from(bit == step::UNPLUG) };
            return Event { nr_sectors, ..plain };
        }
        let of_bio = bit & step::OF_BIO != 0;
        let status = if bit == step::COMPLETE { self.status } else { BlkStatus::Ok };
        Event {
            sector: self.sector,
            nr_sectors: self.nr_sectors,
            flags: self.flags,
            op: self.op,
            hctx: if of_bio { NO_HCTX } else { self.hctx },
            tag: if of_bio || self.late_tag && bit < step::ISSUE { NO_TAG } else { self.tag },
            status,
            ..plain
        }
    }
}

/// The events of one submitter, up to a number that is set when it is made.
#[derive(Debug)]
pub(super) struct Log {
    cpu: u16,
    /// Records in use.
    len: usize,
    /// Events there is room for.
    room: usize,
    dropped: u64,
    /// Records of the newest batch that was issued as a run, as far as it has not completed.
    issued: Range<usize>,
    /// As many as there may be events: then every record fits. The length is that of the allocation.
    records: Box<[Record]>,
}

impl Log {
    pub(super) fn new(cpu: CpuId, capacity: usize) -> Box<Log> {
        // No record is all zero bytes, so this writes the memory and no page of it is new to the data path.
        let records = vec![Record::of_plug(step::PLUG, 0, Instant::ZERO); capacity].into_boxed_slice();
        Box::new(Log { cpu: cpu.index() as u16, len: 0, room: capacity, dropped: 0, issued: 0..0, records })
    }

    /// Adds the one step of `next`.
    #[inline(always)] // Into each hook, where the step and so much of this is constant.
    pub(super) fn add(&mut self, next: Record) {
        if self.room == 0 {
            self.dropped += 1;
            return;
        }
        self.room -= 1;
        if let Some(newest) = self.len.checked_sub(1).and_then(|i| self.records.get_mut(i))
            && newest.take_over(&next)
        {
            return;
        }
        self.records[self.len] = next;
        self.len += 1;
    }

    /// Adds a step of all of `rqs` as one record, if the newest records tell of them in this order, but for that of the
    /// plug that held them. False: they do not, or there is no room; nothing was added.
    #[inline]
    pub(super) fn add_issue_run<'a>(&mut self, rqs: impl ExactSizeIterator<Item = &'a Request>, now: Instant) -> bool {
        let unplugged = self.records[..self.len].last().is_some_and(|r| r.steps == step::UNPLUG);
        let end = self.len - usize::from(unplugged);
        let n = rqs.len();
        let Some(first) = end.checked_sub(n) else { return false };
        self.issued = first..end;
        self.add_run(step::ISSUE, rqs, now)
    }

    /// The same of the first of those that were issued last.
    #[inline]
    pub(super) fn add_complete_run<'a>(
        &mut self,
        rqs: impl ExactSizeIterator<Item = &'a Request>,
        now: Instant,
    ) -> bool {
        let n = rqs.len();
        let added = n <= self.issued.len() && self.add_run(step::COMPLETE, rqs, now);
        self.issued.start += if added { n } else { 0 };
        added
    }

    #[inline]
    fn add_run<'a>(&mut self, bit: u16, rqs: impl ExactSizeIterator<Item = &'a Request>, now: Instant) -> bool {
        let (first, n) = (self.issued.start, rqs.len());
        let records = &self.records[first..first + n];
        if self.room < n || !records.iter().zip(rqs).all(|(record, rq)| record.tells_of(rq)) {
            self.issued = 0..0;
            return false;
        }
        self.room -= n;
        let run = Record::of_plug(step::OF_RUN | bit, n as u32, now);
        self.records[self.len] = Record { sector: first as u64, ..run };
        self.len += 1;
        true
    }

    /// Takes back the newest `n` events, which are issues.
    pub(super) fn take_back_issues(&mut self, n: usize) {
        self.issued = 0..0;
        let lost = self.dropped.min(n as u64);
        self.dropped -= lost;
        let n = n - lost as usize;
        self.room += n;
        for _ in 0..n {
            let newest = &mut self.records[self.len - 1];
            if newest.steps & step::OF_RUN != 0 {
                newest.nr_sectors -= 1;
            } else {
                newest.steps &= !step::ISSUE;
                newest.tag = if core::mem::take(&mut newest.late_tag) { NO_TAG } else { newest.tag };
            }
            if newest.steps == 0 || newest.steps & step::OF_RUN != 0 && newest.nr_sectors == 0 {
                self.len -= 1;
            }
        }
    }

    /// A request that is on its way in was joined to another instead, if it is found.
    pub(super) fn join(&mut self, rq: &Request, now: Instant) -> bool {
        for r in self.records[..self.len].iter_mut().rev().take_while(|r| r.is_inserted(now)) {
            if r.steps & step::INSERT != 0 && r.sector == rq.sector.get() && r.op == rq.op() {
                r.steps = r.steps & !step::INSERT | step::JOIN;
                return true;
            }
            if r.steps & !(step::INSERT | step::JOIN) != 0 {
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
            while steps != 0 {
                let i = steps.trailing_zeros();
                f(&r.event(1 << i, KINDS[i as usize], self.cpu));
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
                each(&Record { time: r.time, status: r.status, ..*of }, r.steps & !step::OF_RUN);
            }
        }
    }

    /// How many events it has.
    pub(super) fn nr_events(&self) -> usize {
        self.records.len() - self.room
    }

    /// Empties it. How many events were dropped since it was empty last.
    pub(super) fn clear(&mut self) -> u64 {
        (self.len, self.room, self.issued) = (0, self.records.len(), 0..0);
        core::mem::take(&mut self.dropped)
    }
}

#[cfg(test)]
mod tests;
