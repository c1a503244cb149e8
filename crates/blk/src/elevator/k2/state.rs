// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What k2's lock protects: the two lists, the requests of each submitter at the disk, and the choice of the next
//! request.
//!
//! A submitter's count of requests includes each one from its insertion until it completes or is joined to another. A class
//! counts its requests while they are at the disk. Requests that the driver gave back go before all others, whatever the
//! bound.

use super::bound::{Bound, Goal};
use super::submitters::Submitters;
use super::window::Completed;
use crate::bio::{BioSlot, IoPrio, IoPrioClass, Op, OpFlags};
use crate::elevator::bio_merge::{MergeCache, MergeQueue, request};
use crate::elevator::fifo::{Fifo, FifoNodes};
use crate::elevator::interface::ElvCx;
use crate::time::Instant;

/// Class of a request. *Latency*: a thread waits for this request alone. *Bulk*: it is one of many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Latency = 0,
    Bulk = 1,
}

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RqStage {
    /// Not in the elevator.
    Away,
    Queued,
    AtDisk,
}

#[derive(Clone, Copy)]
struct Info {
    submitter: u16,
    class: Class,
    stage: RqStage,
}

/// The tunables that one call uses.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    pub(super) now: Instant,
    /// 0 = found by the controller.
    pub(super) max_inflight: u32,
    pub(super) latency_depth: u32,
    pub(super) latency_sectors: u32,
    pub(super) latency_batch: u32,
    pub(super) goal: Goal,
}

pub(super) struct K2State {
    fifo: FifoNodes,
    pub(super) cache: MergeCache,
    at_head: Fifo,
    lists: [Fifo; 2],
    info: Box<[Info]>,
    pub(super) submitters: Submitters,
    bound: Bound,
    /// Bulk requests at the disk.
    in_flight: u32,
    pub(super) nr_queued: u32,
    /// Latency requests dispatched in a row while a bulk request could have been.
    passed_over: u32,
    /// The last dispatch ended because the bound held back what was left.
    pub(super) held: bool,
}

/// The state as the search for merge candidates sees it, for a bio or request of `class`.
pub(super) struct Merging<'a> {
    pub(super) st: &'a mut K2State,
    pub(super) class: Class,
}

impl K2State {
    /// For requests 0..`nr_requests`.
    pub(super) fn new(nr_requests: usize) -> K2State {
        K2State {
            fifo: FifoNodes::new(nr_requests),
            cache: MergeCache::new(nr_requests),
            at_head: Fifo::new(),
            lists: [Fifo::new(), Fifo::new()],
            info: vec![Info { submitter: 0, class: Class::Bulk, stage: RqStage::Away }; nr_requests].into_boxed_slice(),
            submitters: Submitters::new(),
            bound: Bound::new(),
            in_flight: 0,
            nr_queued: 0,
            passed_over: 0,
            held: false,
        }
    }

    /// Bulk requests that may be at the disk.
    pub(super) fn limit(&self, rules: &Rules) -> u32 {
        if rules.max_inflight > 0 { rules.max_inflight } else { self.bound.limit() }
    }

    /// What the controller found last.
    pub(super) fn found(&self) -> Option<u32> {
        self.bound.found()
    }

    /// Bulk requests at the disk.
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Returns the class of a submitter's I/O, which depends on how deep the submitter queues now.
    pub(super) fn class(&self, submitter: usize, io: &Io, rules: &Rules) -> Class {
        let waited_for = io.op == Op::Read && !io.flags.contains(OpFlags::RAHEAD)
            || io.op == Op::Write && io.flags.intersects(OpFlags::SYNC.union(OpFlags::FUA));
        let is_latency = match io.prio.class() {
            IoPrioClass::Rt => true,
            IoPrioClass::Idle => false,
            IoPrioClass::None | IoPrioClass::Be => {
                waited_for
                    && io.nr_sectors <= rules.latency_sectors
                    && !self.submitters.deep().is_deep(submitter, rules.now)
            }
        };
        if is_latency { Class::Latency } else { Class::Bulk }
    }

    /// Counts a new request. A request that comes back from the driver is not counted again.
    pub(super) fn count(&mut self, cx: &ElvCx<'_>, rq: u32, rules: &Rules) {
        let info = &mut self.info[rq as usize];
        if info.stage == RqStage::Away {
            let submitter = request(cx, rq).bio_head().submitter();
            *info = Info { submitter: submitter as u16, class: Class::Bulk, stage: RqStage::Queued };
            self.submitters.add(submitter, rules.latency_depth, rules.now);
        }
    }

    /// Sets and returns the class of a request that was counted. The request keeps this class until it is gone.
    pub(super) fn classify(&mut self, cx: &ElvCx<'_>, rq: u32, rules: &Rules) -> Class {
        let fields = request(cx, rq);
        let io = Io { op: fields.op(), flags: fields.flags(), prio: fields.prio(), nr_sectors: fields.nr_sectors() };
        let class = self.class(usize::from(self.info[rq as usize].submitter), &io, rules);
        self.info[rq as usize].class = class;
        class
    }

    /// Queues a request that was classified.
    pub(super) fn insert(&mut self, cx: &ElvCx<'_>, rq: u32, rules: &Rules) {
        let class = self.info[rq as usize].class;
        self.lists[class as usize].push_back(&mut self.fifo, rq);
        self.cache.queued(request(cx, rq), rq);
        self.nr_queued += 1;
        if class == Class::Latency {
            self.bound.protect(rules.now);
        }
    }

    /// Queues a request before all others. It is not merged any more.
    pub(super) fn insert_at_head(&mut self, cx: &ElvCx<'_>, rq: u32, rules: &Rules) {
        self.count(cx, rq, rules);
        self.left_disk(rq);
        self.at_head.push_front(&mut self.fifo, rq);
        self.nr_queued += 1;
    }

    /// Marks a request as not at the disk any more. Returns its class if it was at the disk.
    pub(super) fn left_disk(&mut self, rq: u32) -> Option<Class> {
        let info = &mut self.info[rq as usize];
        let class = (info.stage == RqStage::AtDisk).then_some(info.class);
        info.stage = RqStage::Queued;
        self.in_flight -= u32::from(class == Some(Class::Bulk));
        class
    }

    /// A request completed, failed, or was joined to another.
    pub(super) fn gone(&mut self, rq: u32, nr_sectors: u32, rules: &Rules) {
        if self.info[rq as usize].stage == RqStage::Away {
            return;
        }
        match self.left_disk(rq) {
            Some(Class::Bulk) => {
                let backlog = !self.lists[Class::Bulk as usize].is_empty();
                let done = Completed { now: rules.now, nr_sectors, in_flight: self.in_flight, backlog };
                self.bound.completed(&done, &rules.goal);
            }
            Some(Class::Latency) => self.bound.completed_latency(nr_sectors),
            None => {}
        }
        let info = &mut self.info[rq as usize];
        info.stage = RqStage::Away;
        self.submitters.remove(usize::from(info.submitter), rules.latency_depth, rules.now);
    }

    /// Takes the next request for the disk. Latency requests go first, but after `latency_batch` of them one bulk
    /// request goes if the bound allows it. `None`: nothing is queued, or the bound holds back what is queued.
    pub(super) fn dispatch(&mut self, rules: &Rules) -> Option<u32> {
        let rq = match self.at_head.pop_front(&mut self.fifo) {
            Some(rq) => rq,
            None => self.choose(rules)?,
        };
        self.nr_queued -= 1;
        let info = &mut self.info[rq as usize];
        info.stage = RqStage::AtDisk;
        if info.class == Class::Bulk {
            if self.in_flight == 0 {
                self.bound.resume(rules.now);
            }
            self.in_flight += 1;
        }
        Some(rq)
    }

    fn choose(&mut self, rules: &Rules) -> Option<u32> {
        let [latency, bulk] = self.lists.each_ref().map(|list| !list.is_empty());
        let bulk = bulk && self.in_flight < self.limit(rules);
        let class = match (latency, bulk) {
            (true, true) if self.passed_over < rules.latency_batch => {
                self.passed_over += 1;
                Class::Latency
            }
            (true, false) => Class::Latency,
            (_, true) => {
                self.passed_over = 0;
                Class::Bulk
            }
            (false, false) => return None,
        };
        let rq = self.lists[class as usize].pop_front(&mut self.fifo)?;
        self.cache.forget(rq);
        Some(rq)
    }

    /// Whether `dispatch` would return a request.
    pub(super) fn can_dispatch(&self, rules: &Rules) -> bool {
        let [latency, bulk] = self.lists.each_ref().map(|list| !list.is_empty());
        !self.at_head.is_empty() || latency || bulk && self.in_flight < self.limit(rules)
    }
}

/// What, beside its submitter, determines the class of an I/O.
pub(super) struct Io {
    pub(super) op: Op,
    pub(super) flags: OpFlags,
    pub(super) prio: IoPrio,
    pub(super) nr_sectors: u32,
}

impl Io {
    pub(super) fn of_bio(bio: &BioSlot) -> Io {
        let prio = IoPrio::from_bits(bio.prio.get());
        Io { op: bio.op(), flags: bio.flags(), prio, nr_sectors: bio.nr_sectors.get() }
    }
}

impl MergeQueue for Merging<'_> {
    fn cache(&mut self) -> &mut MergeCache {
        &mut self.st.cache
    }

    /// A request that a thread waits for is not merged into one that is held back.
    fn admits(&self, rq: u32) -> bool {
        self.st.info[rq as usize].class == self.class
    }

    fn front_candidate(&self, _bio: &BioSlot) -> Option<u32> {
        None
    }

    fn former(&self, _cx: &ElvCx<'_>, rq: u32) -> Option<u32> {
        self.st.fifo.former(rq)
    }

    fn latter(&self, _cx: &ElvCx<'_>, rq: u32) -> Option<u32> {
        self.st.fifo.latter(rq)
    }

    fn front_merged(&mut self, _cx: &ElvCx<'_>, _rq: u32) {}

    fn joined(&mut self, _cx: &ElvCx<'_>, _kept: u32, gone: u32) {
        if self.st.fifo.is_linked(gone) {
            let class = self.st.info[gone as usize].class;
            self.st.lists[class as usize].remove(&mut self.st.fifo, gone);
            self.st.nr_queued -= 1;
        }
    }
}
