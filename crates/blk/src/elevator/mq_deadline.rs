// SPDX-License-Identifier: Apache-2.0 OR MIT
//! mq-deadline: requests in sector order, in batches of one direction, and none waits much longer than its expiry time.
//!
//! # Synopsis
//! Within a priority class requests are dispatched in batches of up to `fifo_batch` reads or writes by ascending sector. A
//! new batch is one of reads, unless writes have been passed over `writes_starved` times. It starts where the last batch of
//! its direction ended, or at the oldest request if that has waited for its direction's expiry. RT goes before BE before
//! IDLE: a lower class waits while a higher one has requests queued or at the disk. Requests that have waited for
//! `prio_aging_expire` are exempt.
//!
//! # Options
//! `read_expire` (ms, 500), `write_expire` (ms, 5000), `writes_starved` (2), `fifo_batch` (requests, 16), `front_merges`
//! (0 or 1, 1), `prio_aging_expire` (ms, 10000), `async_depth` (scheduler tags that writes may use, `nr_requests`).
//!
//! # Limits
//! One lock for the whole disk, taken once per inserted or dispatched batch and once per bio that may adjoin a request.
//! The position, `starved` and the batch count are kept per disk, not per hardware queue, so `dispatch` for one hctx
//! may return requests of another. A search for aged requests chooses a direction and ends the batch, even if the
//! oldest request of the class turns out to be too young. The kernel does the same, as recorded traces show. No zoned disks.
//!
//! # Differences from the kernel
//! Requests inserted at the head in one call keep their order (the kernel reverses it). Expiry is
//! compared in nanoseconds, not in ticks.
//!
//! # Since
//! Behaviour of Linux 6.19 block/mq-deadline.c; the search for the next request by position is that of 6.4 and later.

use super::bio_merge::{MergeCache, MergeQueue, insert_merge, merge_bio, request};
use super::deadline_lists::{Dir, SortNodes, choose_direction};
use super::fifo::Fifo;
use super::interface::{BioMerge, BioRef, Elevator, ElvCx, Tunable};
use super::merge_filter::MergeFilter;
use super::sweep::Sweep;
use super::tunables::{INT_MAX, TunableDef, TunableSet};
use crate::bio::{BioSlot, IoPrio, IoPrioClass, Op, OpFlags};
use crate::elevator::interface::DebugAttr;
use crate::id::HctxId;
use crate::relaxed::FieldU8;
use crate::request::{RequestId, Rq};
use crate::sync::{AtomicU32, Mutex, Ordering};
use crate::time::{Duration, Instant};
use crossbeam_utils::CachePadded;
use lock_api::RawMutex;
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// The name in `queue/scheduler`.
pub const NAME: &str = "mq-deadline";

static TUNABLES: [TunableDef; 7] = [
    TunableDef { name: "read_expire", default: 500, min: 0, max: INT_MAX, unit: "ms" },
    TunableDef { name: "write_expire", default: 5000, min: 0, max: INT_MAX, unit: "ms" },
    TunableDef { name: "writes_starved", default: 2, min: 0, max: INT_MAX, unit: "" },
    TunableDef { name: "fifo_batch", default: 16, min: 0, max: INT_MAX, unit: "requests" },
    TunableDef { name: "front_merges", default: 1, min: 0, max: 1, unit: "" },
    TunableDef { name: "prio_aging_expire", default: 10_000, min: 0, max: INT_MAX, unit: "ms" },
    TunableDef { name: "async_depth", default: 1, min: 1, max: INT_MAX, unit: "requests" },
];
const READ_EXPIRE: usize = 0;
const WRITE_EXPIRE: usize = 1;
const WRITES_STARVED: usize = 2;
const FIFO_BATCH: usize = 3;
const FRONT_MERGES: usize = 4;
const PRIO_AGING_EXPIRE: usize = 5;
const ASYNC_DEPTH: usize = 6;

/// Priority classes in the order they are served.
const NR_CLASSES: usize = 3;
const RT: usize = 0;
const BE: usize = 1;
const IDLE: usize = 2;
/// In the class table: this request is not counted in any class.
const NOT_COUNTED: u8 = u8::MAX;

#[inline]
fn class_of(prio: IoPrio) -> usize {
    match prio.class() {
        IoPrioClass::Rt => RT,
        IoPrioClass::None | IoPrioClass::Be => BE,
        IoPrioClass::Idle => IDLE,
    }
}

/// The elevator of one disk; `L` is the lock around its state.
pub struct MqDeadline<L: RawMutex> {
    tunables: TunableSet<7>,
    nr_requests: u32,
    /// Requests that `dispatch` could return.
    nr_queued: CachePadded<AtomicU32>,
    /// Per class: requests that have left, by completion or by being joined to another.
    completed: CachePadded<[AtomicU32; NR_CLASSES]>,
    /// Per request: the class it is counted in, from its first insertion to its completion. A field belongs to the
    /// owner of the request, so completion needs no lock.
    class: Box<[FieldU8]>,
    merge_filter: Arc<MergeFilter>,
    state: CachePadded<Mutex<L, DeadlineState>>,
}

/// What the lock protects.
struct DeadlineState {
    nodes: SortNodes,
    cache: MergeCache,
    /// Requests to be dispatched before all others.
    at_head: Fifo,
    classes: [Class; NR_CLASSES],
    last_dir: Dir,
    /// Requests dispatched in the present batch.
    batching: u64,
    /// Batches of reads started while writes waited.
    starved: u64,
    nr_queued: u32,
}

/// The state as the search for merge candidates sees it.
struct Merging<'a> {
    st: &'a mut DeadlineState,
    front_merges: bool,
}

/// Queued requests of one priority class.
struct Class {
    dirs: [Sweep; 2],
    /// Requests ever inserted.
    inserted: u32,
}

/// The tunables that one call uses.
#[derive(Clone, Copy)]
struct Rules {
    now: Instant,
    expire: [Duration; 2],
    writes_starved: u64,
    fifo_batch: u64,
    prio_aging_expire: Duration,
}

impl<L: RawMutex> MqDeadline<L> {
    /// For a disk with `nr_slab_requests` requests in all and `nr_requests` scheduler tags per hardware queue.
    pub fn new(nr_slab_requests: usize, nr_requests: u32) -> MqDeadline<L> {
        let nodes = SortNodes::new(nr_slab_requests);
        let class = || Class { dirs: [Sweep::new(&nodes), Sweep::new(&nodes)], inserted: 0 };
        let state = DeadlineState {
            classes: [class(), class(), class()],
            nodes,
            cache: MergeCache::new(nr_slab_requests),
            at_head: Fifo::new(),
            last_dir: Dir::Read,
            batching: 0,
            starved: 0,
            nr_queued: 0,
        };
        let not_counted = || {
            let class = FieldU8::default();
            class.set(NOT_COUNTED);
            class
        };
        let elevator = MqDeadline {
            tunables: TunableSet::new(&TUNABLES),
            nr_requests,
            nr_queued: CachePadded::new(AtomicU32::new(0)),
            completed: CachePadded::new(core::array::from_fn(|_| AtomicU32::new(0))),
            class: (0..nr_slab_requests).map(|_| not_counted()).collect(),
            merge_filter: state.cache.filter().clone(),
            state: CachePadded::new(Mutex::new(state)),
        };
        elevator.tunables.put(ASYNC_DEPTH, u64::from(nr_requests.max(1)));
        elevator
    }

    fn rules(&self, now: Instant) -> Rules {
        let ms = |i| Duration::from_ms(self.tunables.get(i));
        Rules {
            now,
            expire: [ms(READ_EXPIRE), ms(WRITE_EXPIRE)],
            writes_starved: self.tunables.get(WRITES_STARVED),
            fifo_batch: self.tunables.get(FIFO_BATCH),
            prio_aging_expire: ms(PRIO_AGING_EXPIRE),
        }
    }

    /// Counts a request as completed in its class, because it will not return.
    #[inline]
    fn uncount(&self, rq: &Rq) {
        let field = &self.class[rq.id().index()];
        let class = field.get();
        if class != NOT_COUNTED {
            field.set(NOT_COUNTED);
            self.completed[usize::from(class)].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns for each class whether it has requests queued or at the disk.
    #[inline]
    fn pending(&self, st: &DeadlineState) -> [bool; NR_CLASSES] {
        let mut pending = [false; NR_CLASSES];
        for (class, pending) in pending.iter_mut().enumerate() {
            // For a class that was never used, the first comparison is enough: it saves reading a counter that
            // completions write.
            let inserted = st.classes[class].inserted;
            *pending = inserted != 0 && inserted != self.completed[class].load(Ordering::Relaxed);
        }
        pending
    }

    /// Lets `has_work` see the number of queued requests. Relaxed: a caller that must not miss work puts a fence of its
    /// own between inserting and checking whether another thread runs the queue.
    #[inline]
    fn publish(&self, st: &DeadlineState) {
        self.nr_queued.store(st.nr_queued, Ordering::Relaxed);
    }
}

impl<L: RawMutex + Send + Sync> Elevator for MqDeadline<L> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn bio_merge(&self, cx: &ElvCx<'_>, bio: BioRef) -> BioMerge {
        if !self.merge_filter.may_adjoin(cx.bios.bio(bio.0)) {
            return BioMerge::No;
        }
        let front_merges = self.tunables.get(FRONT_MERGES) != 0;
        let mut st = self.state.lock();
        let merge = merge_bio(&mut Merging { st: &mut st, front_merges }, cx, bio);
        if let BioMerge::Merged { freed: Some(gone) } = &merge {
            self.uncount(gone);
            self.publish(&st);
        }
        merge
    }

    fn insert(&self, cx: &ElvCx<'_>, rqs: &mut Vec<Rq>, at_head: bool, freed: &mut Vec<Rq>) {
        let rules = self.rules(cx.now);
        let already_freed = freed.len();
        let mut st = self.state.lock();
        if at_head {
            for rq in rqs.drain(..).rev() {
                self.count(cx, &mut st, &rq);
                st.insert_at_head(&rq);
            }
        } else {
            for rq in rqs.drain(..) {
                self.count(cx, &mut st, &rq);
                let merging = &mut Merging { st: &mut st, front_merges: false };
                if let Some(rq) = insert_merge(merging, cx, rq, freed) {
                    st.insert(cx, &rq, &rules);
                }
            }
        }
        for gone in &freed[already_freed..] {
            self.uncount(gone);
        }
        self.publish(&st);
    }

    fn dispatch(&self, cx: &ElvCx<'_>, _hctx: HctxId, max: usize, out: &mut Vec<Rq>) {
        if self.nr_queued.load(Ordering::Relaxed) == 0 {
            return;
        }
        let rules = self.rules(cx.now);
        let mut st = self.state.lock();
        let pending = self.pending(&st);
        for _ in 0..max {
            let Some(rq) = st.dispatch(cx, &rules, pending) else {
                break;
            };
            out.push(Rq::from_id(RequestId::new(rq)));
        }
        self.publish(&st);
    }

    #[inline]
    fn has_work(&self, _hctx: HctxId) -> bool {
        self.nr_queued.load(Ordering::Relaxed) != 0
    }

    fn completed(&self, _cx: &ElvCx<'_>, rq: &Rq) {
        self.uncount(rq);
    }

    fn limit_depth(&self, op: Op, _flags: OpFlags) -> Option<u32> {
        // A thread waits for each read; flushes do not pass through here.
        if !op.is_write() {
            return None;
        }
        let async_depth = self.tunables.get(ASYNC_DEPTH) as u32;
        (async_depth < self.nr_requests).then_some(async_depth)
    }

    fn debug(&self) -> Vec<DebugAttr> {
        let st = self.state.lock();
        let per_class = |f: &dyn Fn(usize) -> u32| format!("{} {} {}", f(RT), f(BE), f(IDLE));
        let gone = |class: usize| self.completed[class].load(Ordering::Relaxed);
        let queued = |class: usize| st.classes[class].inserted.wrapping_sub(gone(class));
        let in_lists = |class: usize| {
            st.classes[class].dirs.iter().map(|d| d.lists().by_age(&st.nodes).count() as u32).sum::<u32>()
        };
        let mut files = vec![
            DebugAttr::value("async_depth", self.tunables.get(ASYNC_DEPTH)),
            DebugAttr::value("batching", st.batching),
            DebugAttr::list("dispatch", st.at_head.iter(&st.nodes.fifo)),
            DebugAttr::value("owned_by_driver", per_class(&|c| queued(c).saturating_sub(in_lists(c)))),
            DebugAttr::value("queued", per_class(&queued)),
        ];
        for (dir, name) in ["read", "write"].into_iter().enumerate() {
            for (class, c) in st.classes.iter().enumerate() {
                let sweep = &c.dirs[dir];
                files.push(DebugAttr::list(format!("{name}{class}_fifo_list"), sweep.lists().by_age(&st.nodes)));
                files.push(DebugAttr::list(format!("{name}{class}_next_rq"), sweep.ahead().into_iter()));
            }
        }
        files.push(DebugAttr::value("starved", st.starved));
        files
    }

    fn tunables(&self) -> Vec<Tunable> {
        self.tunables.list()
    }

    fn set_tunable(&self, name: &str, value: u64) -> Result<(), String> {
        self.tunables.set(NAME, name, value)
    }
}

impl<L: RawMutex> MqDeadline<L> {
    /// Counts a request in its class, only once even if the core requeues it several times.
    #[inline]
    fn count(&self, cx: &ElvCx<'_>, st: &mut DeadlineState, rq: &Rq) {
        let field = &self.class[rq.id().index()];
        if field.get() == NOT_COUNTED {
            let class = class_of(cx.rqs.get(rq.id()).prio());
            field.set(class as u8);
            st.classes[class].inserted = st.classes[class].inserted.wrapping_add(1);
        }
    }
}

impl DeadlineState {
    #[inline]
    fn insert(&mut self, cx: &ElvCx<'_>, rq: &Rq, rules: &Rules) {
        let fields = cx.rqs.get(rq.id());
        let (id, dir) = (rq.id().index() as u32, Dir::of(fields.op()));
        let class = &mut self.classes[class_of(fields.prio())];
        class.dirs[dir as usize].insert(&mut self.nodes, id, fields.sector().0, rules.now + rules.expire[dir as usize]);
        self.cache.queued(fields, id);
        self.nr_queued += 1;
    }

    /// Queues a request before all others. Such a request has been at the driver, so it is not merged any more.
    fn insert_at_head(&mut self, rq: &Rq) {
        self.at_head.push_front(&mut self.nodes.fifo, rq.id().index() as u32);
        self.nr_queued += 1;
    }

    /// Takes the next request for the disk out of all lists.
    #[inline]
    fn dispatch(&mut self, cx: &ElvCx<'_>, rules: &Rules, pending: [bool; NR_CLASSES]) -> Option<u32> {
        let rq = match self.at_head.pop_front(&mut self.nodes.fifo) {
            Some(rq) => {
                let fields = request(cx, rq);
                let class = &mut self.classes[class_of(fields.prio())];
                class.dirs[Dir::of(fields.op()) as usize].move_to(&self.nodes, fields.sector().0);
                rq
            }
            None => self.choose(rules, pending)?,
        };
        self.nr_queued -= 1;
        Some(rq)
    }

    /// Takes the next of the sorted requests out of its lists.
    #[inline]
    fn choose(&mut self, rules: &Rules, pending: [bool; NR_CLASSES]) -> Option<u32> {
        if pending.iter().filter(|p| **p).count() >= 2 {
            let born_before = rules.now - rules.prio_aging_expire;
            if let Some(rq) = [BE, IDLE].into_iter().find_map(|class| self.choose_in(class, rules, Some(born_before))) {
                return Some(rq);
            }
        }
        for (class, pending) in pending.into_iter().enumerate() {
            let rq = self.choose_in(class, rules, None);
            if rq.is_some() || pending {
                return rq;
            }
        }
        None
    }

    /// Takes the next request of a class out, with `born_before` only if it was queued by then. The choice of direction
    /// and the end of the batch take effect even if the request was queued later.
    #[inline]
    fn choose_in(&mut self, class: usize, rules: &Rules, born_before: Option<Instant>) -> Option<u32> {
        let (n, c) = (&mut self.nodes, &mut self.classes[class]);
        let rq = match c.dirs[self.last_dir as usize].ahead() {
            Some(next) if self.batching < rules.fifo_batch => next,
            _ => {
                let (reads, writes) = (!c.dirs[0].lists().is_empty(), !c.dirs[1].lists().is_empty());
                let dir = choose_direction(reads, writes, &mut self.starved, rules.writes_starved)?;
                self.last_dir = dir;
                self.batching = 0;
                let sweep = &c.dirs[dir as usize];
                match sweep.ahead() {
                    Some(next) if !sweep.lists().has_expired(n, rules.now) => next,
                    _ => sweep.lists().oldest().expect("the direction has requests"),
                }
            }
        };
        let dir = self.last_dir as usize;
        if born_before.is_some_and(|limit| n.fifo.expires(rq) - rules.expire[dir] > limit) {
            return None;
        }
        self.batching += 1;
        c.dirs[dir].take(n, rq);
        self.cache.forget(rq);
        Some(rq)
    }
}

impl MergeQueue for Merging<'_> {
    fn cache(&mut self) -> &mut MergeCache {
        &mut self.st.cache
    }

    fn front_candidate(&self, bio: &BioSlot) -> Option<u32> {
        if !self.front_merges {
            return None;
        }
        let class = class_of(IoPrio::from_bits(bio.prio.get()));
        self.st.classes[class].dirs[Dir::of(bio.op()) as usize].lists().starting_at(&self.st.nodes, bio.end_sector())
    }

    fn former(&self, _cx: &ElvCx<'_>, rq: u32) -> Option<u32> {
        self.st.nodes.rb.former(rq)
    }

    fn latter(&self, _cx: &ElvCx<'_>, rq: u32) -> Option<u32> {
        self.st.nodes.rb.latter(rq)
    }

    fn front_merged(&mut self, cx: &ElvCx<'_>, rq: u32) {
        let fields = request(cx, rq);
        let class = &mut self.st.classes[class_of(fields.prio())];
        class.dirs[Dir::of(fields.op()) as usize].reposition(&mut self.st.nodes, rq, fields.sector().0);
    }

    fn joined(&mut self, cx: &ElvCx<'_>, kept: u32, gone: u32) {
        if !self.st.nodes.fifo.is_linked(gone) {
            return;
        }
        let fields = request(cx, kept);
        let class = &mut self.st.classes[class_of(fields.prio())];
        class.dirs[Dir::of(fields.op()) as usize].absorb(&mut self.st.nodes, kept, gone);
        self.st.nr_queued -= 1;
    }
}
