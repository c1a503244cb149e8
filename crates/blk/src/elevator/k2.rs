// SPDX-License-Identifier: Apache-2.0 OR MIT
//! k2: a single request that a thread waits for does not wait behind a hundred others. Not in the kernel, and never a
//! default.
//!
//! # Synopsis
//! Two classes. *Latency*: requests of priority class RT, and small reads and synchronous writes of a shallow submitter.
//! Small is up to `latency_kb`; shallow is no more than `latency_depth` requests outstanding (a journal, a page fault, a
//! database's commit). *Bulk*: all else.
//!
//! Latency requests go to the disk at once. Of bulk at most `max_inflight` requests are at the disk, so that a latency
//! request finds a short queue there. No scheduler can let a request overtake those already at the disk. With
//! `max_inflight=0` the scheduler searches for the bound: the least depth at which the disk delivers `throughput_pct`
//! percent of its rate with a deep queue. Bulk is first come, first served, with merging, and uses three quarters of
//! the scheduler tags at most.
//!
//! Without latency requests for `guard_ms` there is no bound. Of every `latency_batch` + 1 dispatches that bulk could
//! use, it gets at least one.
//!
//! # Options
//! `max_inflight` (requests, 0 = searched for), `throughput_pct` (97), `latency_depth` (requests, 4), `latency_kb`
//! (128), `latency_batch` (64), `guard_ms` (1000).
//!
//! # Example
//! `mqblk compare examples/cloud-journal.fio --a scheduler=mq-deadline --b scheduler=k2`
//!
//! # Limits
//! One lock for the whole disk, taken once per inserted or dispatched batch, per completion and per bio that may adjoin a
//! request. Requests are not sorted: on a disk that seeks, mq-deadline is better for bulk. A bound that is right on average
//! is wrong for a disk whose speed changes within tens of milliseconds. If many submitters are all shallow, all their
//! requests are latency, and none is held back. See docs/beyond-the-kernel.md for where it loses.
//!
//! # Since
//! 0.1. After K2: Miemietz et al., "K2: Work-Constraining Scheduling of NVMe-Attached Storage", RTSS 2019, where the
//! classes are priorities and the bound is set by hand.

mod bound;
mod state;
mod submitters;
mod window;

#[cfg(test)]
mod tests;

use super::bio_merge::{insert_merge, merge_bio};
use super::interface::{BioMerge, BioRef, Elevator, ElvCx, Tunable};
use super::merge_filter::MergeFilter;
use super::tunables::{INT_MAX, TunableDef, TunableSet};
use crate::bio::{Op, OpFlags};
use crate::elevator::interface::DebugAttr;
use crate::id::{HctxId, SubmitterId};
use crate::request::{RequestId, Rq};
use crate::sync::{AtomicU8, AtomicU32, Mutex, Ordering};
use crate::time::{Duration, Instant};
use bound::{Goal, NO_LIMIT};
use crossbeam_utils::CachePadded;
use lock_api::RawMutex;
use state::{Io, K2State, Merging, Rules};
use std::sync::Arc;
use submitters::Deep;

/// The name in `queue/scheduler`.
pub const NAME: &str = "k2";

static TUNABLES: [TunableDef; 6] = [
    TunableDef { name: "max_inflight", default: 0, min: 0, max: 65_536, unit: "requests" },
    TunableDef { name: "throughput_pct", default: 97, min: 50, max: 100, unit: "%" },
    TunableDef { name: "latency_depth", default: 4, min: 0, max: 1024, unit: "requests" },
    TunableDef { name: "latency_kb", default: 128, min: 0, max: 1 << 20, unit: "KiB" },
    TunableDef { name: "latency_batch", default: 64, min: 1, max: INT_MAX, unit: "requests" },
    TunableDef { name: "guard_ms", default: 1000, min: 1, max: INT_MAX, unit: "ms" },
];
const MAX_INFLIGHT: usize = 0;
const THROUGHPUT_PCT: usize = 1;
const LATENCY_DEPTH: usize = 2;
const LATENCY_KB: usize = 3;
const LATENCY_BATCH: usize = 4;
const GUARD_MS: usize = 5;

/// Share of the scheduler tags that bulk may use.
const BULK_PERCENT: u32 = 75;

/// In `hold`: nothing is held back.
const FREE: u8 = 0;
/// Requests are held back until a bulk request completes.
const HELD: u8 = 1;
/// Requests that were held back may be dispatched now.
const GO: u8 = 2;

/// The elevator of one disk; `L` is the lock around its state.
pub struct K2<L: RawMutex> {
    tunables: TunableSet<6>,
    bulk_tags: u32,
    /// Requests that `dispatch` could return if there were no bound.
    nr_queued: CachePadded<AtomicU32>,
    /// One of `FREE`, `HELD`, `GO`.
    hold: AtomicU8,
    deep: Arc<Deep>,
    merge_filter: Arc<MergeFilter>,
    state: CachePadded<Mutex<L, K2State>>,
}

impl<L: RawMutex> K2<L> {
    /// For a disk with `nr_slab_requests` requests in all and `nr_requests` scheduler tags per hardware queue.
    pub fn new(nr_slab_requests: usize, nr_requests: u32) -> K2<L> {
        let state = K2State::new(nr_slab_requests);
        K2 {
            tunables: TunableSet::new(&TUNABLES),
            bulk_tags: (nr_requests * BULK_PERCENT / 100).max(1),
            nr_queued: CachePadded::new(AtomicU32::new(0)),
            hold: AtomicU8::new(FREE),
            deep: state.submitters.deep().clone(),
            merge_filter: state.cache.filter().clone(),
            state: CachePadded::new(Mutex::new(state)),
        }
    }

    fn rules(&self, now: Instant) -> Rules {
        let get = |i| self.tunables.get(i);
        Rules {
            now,
            max_inflight: get(MAX_INFLIGHT) as u32,
            latency_depth: get(LATENCY_DEPTH) as u32,
            latency_sectors: get(LATENCY_KB) as u32 * 2,
            latency_batch: get(LATENCY_BATCH) as u32,
            goal: Goal { keep: get(THROUGHPUT_PCT) as f64 / 100.0, guard: Duration::from_ms(get(GUARD_MS)) },
        }
    }

    /// Publishes the state for readers without the lock. Relaxed: a caller that must not miss work puts a fence of its
    /// own between inserting and checking whether another thread runs the queue. Such a caller reads `next_run` after
    /// its own call under the lock.
    #[inline]
    fn publish(&self, st: &K2State, rules: &Rules) {
        self.nr_queued.store(st.nr_queued, Ordering::Relaxed);
        let hold = match st.held {
            false => FREE,
            true if st.can_dispatch(rules) => GO,
            true => HELD,
        };
        self.hold.store(hold, Ordering::Relaxed);
    }
}

impl<L: RawMutex + Send + Sync> Elevator for K2<L> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn bio_merge(&self, cx: &ElvCx<'_>, bio: BioRef) -> BioMerge {
        let slot = cx.bios.bio(bio.0);
        if !self.merge_filter.may_adjoin(slot) {
            return BioMerge::No;
        }
        let rules = self.rules(cx.now);
        let mut st = self.state.lock();
        let class = st.class(bio.0.submitter(), &Io::of_bio(slot), &rules);
        let merge = merge_bio(&mut Merging { st: &mut st, class }, cx, bio);
        if let BioMerge::Merged { freed: Some(gone) } = &merge {
            st.gone(gone.id().index() as u32, 0, &rules);
            self.publish(&st, &rules);
        }
        merge
    }

    fn insert(&self, cx: &ElvCx<'_>, rqs: &mut Vec<Rq>, at_head: bool, freed: &mut Vec<Rq>) {
        let rules = self.rules(cx.now);
        let already_freed = freed.len();
        let mut st = self.state.lock();
        if at_head {
            rqs.drain(..).rev().for_each(|rq| st.insert_at_head(cx, rq.id().index() as u32, &rules));
        } else {
            // All are counted before the first is classified.
            rqs.iter().for_each(|rq| st.count(cx, rq.id().index() as u32, &rules));
            for rq in rqs.drain(..) {
                let class = st.classify(cx, rq.id().index() as u32, &rules);
                if let Some(rq) = insert_merge(&mut Merging { st: &mut st, class }, cx, rq, freed) {
                    st.insert(cx, rq.id().index() as u32, &rules);
                }
            }
        }
        for gone in &freed[already_freed..] {
            st.gone(gone.id().index() as u32, 0, &rules);
        }
        self.publish(&st, &rules);
    }

    fn dispatch(&self, cx: &ElvCx<'_>, _hctx: HctxId, max: usize, out: &mut Vec<Rq>) {
        if self.nr_queued.load(Ordering::Relaxed) == 0 {
            return;
        }
        let rules = self.rules(cx.now);
        let mut st = self.state.lock();
        st.held = false;
        for _ in 0..max {
            let Some(rq) = st.dispatch(&rules) else {
                st.held = st.nr_queued > 0;
                break;
            };
            out.push(Rq::from_id(RequestId::new(rq)));
        }
        self.publish(&st, &rules);
    }

    #[inline]
    fn has_work(&self, _hctx: HctxId) -> bool {
        self.nr_queued.load(Ordering::Relaxed) != 0
    }

    #[inline]
    fn may_hold(&self) -> bool {
        true
    }

    /// Requests are held back only while the bound is reached. It is at least one, so a completion always follows.
    #[inline]
    fn next_run(&self) -> Option<Instant> {
        match self.hold.load(Ordering::Relaxed) {
            FREE => None,
            HELD => Some(Instant::MAX),
            _ => Some(Instant::ZERO),
        }
    }

    fn completed(&self, cx: &ElvCx<'_>, rq: &Rq) {
        let rules = self.rules(cx.now);
        let nr_sectors = cx.rqs.get(rq.id()).nr_sectors();
        let mut st = self.state.lock();
        st.gone(rq.id().index() as u32, nr_sectors, &rules);
        self.publish(&st, &rules);
    }

    /// While the request waits to be dispatched again, another request may take its place at the disk.
    fn requeued(&self, cx: &ElvCx<'_>, rq: &Rq) {
        let rules = self.rules(cx.now);
        let mut st = self.state.lock();
        st.left_disk(rq.id().index() as u32);
        self.publish(&st, &rules);
    }

    /// Requests that no thread waits for may not use all tags, so that other requests find free ones.
    fn limit_depth(&self, op: Op, flags: OpFlags) -> Option<u32> {
        (!flags.is_sync(op)).then_some(self.bulk_tags)
    }

    /// Deep submitters may not use all tags either: otherwise a shallow submitter's only request would wait for a tag.
    fn limit_depth_of(&self, submitter: SubmitterId, op: Op, flags: OpFlags) -> Option<u32> {
        if self.deep.was_deep(submitter.index()) { Some(self.bulk_tags) } else { self.limit_depth(op, flags) }
    }

    fn debug(&self) -> Vec<DebugAttr> {
        let st = self.state.lock();
        let rules = self.rules(Instant::ZERO);
        let limit = match st.limit(&rules) {
            NO_LIMIT => "none".to_owned(),
            limit => limit.to_string(),
        };
        vec![
            DebugAttr::value("bulk_limit", limit),
            DebugAttr::value("bulk_inflight", st.in_flight()),
            DebugAttr::value("bulk_limit_found", st.found().unwrap_or(0)),
            DebugAttr::value("queued", st.nr_queued),
        ]
    }

    fn tunables(&self) -> Vec<Tunable> {
        self.tunables.list()
    }

    fn set_tunable(&self, name: &str, value: u64) -> Result<(), String> {
        self.tunables.set(NAME, name, value)
    }
}
