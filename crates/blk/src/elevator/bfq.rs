// SPDX-License-Identifier: Apache-2.0 OR MIT
//! bfq: every submitter gets its share of the disk's service, and its waiting requests are served soon.
//!
//! # Synopsis
//! Requests wait in queues: per submitter one for synchronous I/O (reads and writes that a thread waits for) and one for the
//! rest. Each priority class has queues of its own. The disk serves one queue at a time, in sector order, until it is empty
//! or has used up its time or its budget (sectors). Then B-WF2Q+ chooses the next queue, so that service is in proportion to
//! weights whatever the sizes of requests and budgets. RT goes before BE before IDLE.
//!
//! When the queue in service runs empty, the disk may idle for a moment and wait for that queue's next request. It does
//! so if waiting is good for throughput or needed for the shares. With `low_latency`, queues that behave like
//! interactive or soft real-time applications get a much larger weight for a while.
//!
//! A submitter's weight is (8 - priority level) x 10, or what
//! [`Submitter::set_weight`](crate::submitter::Submitter::set_weight) says (1..=1000).
//!
//! # Options
//! `slice_idle` (ms, 8) or `slice_idle_us`, `fifo_expire_sync` (ms, 125), `fifo_expire_async` (ms, 250), `back_seek_max`
//! (KiB, 16384), `back_seek_penalty` (2), `max_budget` (sectors, 0 = measured), `timeout_sync` (ms, 125; 30 times that while
//! raised as interactive), `strict_guarantees` (0 or 1, 0), `low_latency` (0 or 1, 1).
//!
//! # Limits
//! One lock for the whole disk. It is taken once per inserted or dispatched batch, once per completion and once per bio
//! that may adjoin a request. Shares hold while queues are backlogged. Memory for 256 queues is allocated at the start. A disk that
//! gets more queues allocates more memory as they are added, never per request.
//!
//! How long a queue of weight w waits: let T be the largest budget plus three times the largest request. Each other queue
//! of its class gets at most 2 (2 W T / w + T) sectors before it, where W is that queue's weight with its raising, and
//! the turn in service comes first. RT can starve BE for as long as it has requests, and gets at most two turns of lower classes
//! before it. Beside other queues, IDLE gets one request every 200 ms, when a turn ends.
//!
//! # Differences from the kernel
//! See docs/kernel-differences.md: no cgroups, no merging of cooperating queues, no injection, no actuators;
//! asynchronous queues are per submitter; the priority class is that of the bio.
//!
//! # Since
//! Behaviour of Linux 6.12 block/bfq-iosched.c; algorithm of Valente and Checconi, "High Throughput Disk Scheduling with
//! Fair Bandwidth Distribution", IEEE Transactions on Computers 59 (2010).

mod budget;
mod burst;
mod choose;
mod device;
mod io_pattern;
mod heap;
mod idling;
mod population;
mod queue;
mod weight_raising;
mod state;
mod tunables;
mod service;
mod vtime;
mod wf2q;

#[cfg(test)]
mod tests;

pub use self::budget::DEFAULT_MAX_BUDGET;
pub use self::burst::LARGE_BURST;
pub use self::device::MAX_SECTORS_PER_US;
pub use self::weight_raising::{MAX_INTERACTIVE_SERVICE, MAX_RAISING, SOFT_RT_TIME};
pub use self::wf2q::IDLE_CLASS_TIMEOUT;

use self::state::{BfqState, Merging, NONE};
use self::tunables::BfqTunables;
use super::bio_merge::{insert_merge, merge_bio};
use super::interface::{BioMerge, BioRef, Elevator, ElvCx, Tunable};
use super::merge_filter::MergeFilter;
use crate::bio::{Op, OpFlags};
use crate::id::HctxId;
use crate::request::{RequestId, Rq};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering};
use crate::time::Instant;
use crossbeam_utils::CachePadded;
use lock_api::RawMutex;
use std::sync::Arc;

/// The name in `queue/scheduler`.
pub const NAME: &str = "bfq";

/// In `held_until`: nothing is held back. ([`Instant::MAX`] has a meaning of its own.)
const NOT_HELD: u64 = u64::MAX - 1;

/// The elevator of one disk; `L` is the lock around its state.
pub struct Bfq<L: RawMutex> {
    tunables: BfqTunables,
    nr_requests: u32,
    published: CachePadded<Published>,
    merge_filter: Arc<MergeFilter>,
    state: CachePadded<Mutex<L, BfqState>>,
}

/// State that is read without the lock and written under it.
struct Published {
    /// Requests that `dispatch` could return.
    nr_queued: AtomicU32,
    /// [`Elevator::next_run`], in ns.
    held_until: AtomicU64,
    /// Some busy queue is raised.
    raised: AtomicBool,
}

impl<L: RawMutex> Bfq<L> {
    /// For a disk with `nr_slab_requests` requests in all and `nr_requests` scheduler tags per hardware queue.
    pub fn new(nr_slab_requests: usize, nr_requests: u32) -> Bfq<L> {
        let state = BfqState::new(nr_slab_requests);
        Bfq {
            tunables: BfqTunables::new(),
            nr_requests,
            published: CachePadded::new(Published {
                nr_queued: AtomicU32::new(0),
                held_until: AtomicU64::new(NOT_HELD),
                raised: AtomicBool::new(false),
            }),
            merge_filter: state.cache.filter().clone(),
            state: CachePadded::new(Mutex::new(state)),
        }
    }

    /// Publishes the state for readers without the lock. Relaxed: a caller that must not miss work puts a fence of its
    /// own between inserting and checking whether another thread runs the queue. Such a caller reads `next_run` after
    /// its own call under the lock.
    #[inline]
    fn publish(&self, st: &BfqState) {
        self.published.nr_queued.store(st.nr_queued, Ordering::Relaxed);
        self.published.raised.store(st.nr_raised > 0, Ordering::Relaxed);
        let held = st.held_until.map_or(NOT_HELD, |at| if at.as_ns() == NOT_HELD { u64::MAX } else { at.as_ns() });
        self.published.held_until.store(held, Ordering::Relaxed);
    }
}

impl<L: RawMutex + Send + Sync> Elevator for Bfq<L> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn bio_merge(&self, cx: &ElvCx<'_>, bio: BioRef) -> BioMerge {
        let slot = cx.bios.bio(bio.0);
        if !self.merge_filter.may_adjoin(slot) {
            return BioMerge::No;
        }
        let rules = self.tunables.rules(cx);
        let mut st = self.state.lock();
        let queue = st.queue_of_bio(bio.0.submitter(), slot);
        if queue == NONE {
            return BioMerge::No;
        }
        let merge = merge_bio(&mut Merging { st: &mut st, queue, rules }, cx, bio);
        if let BioMerge::Merged { freed: Some(gone) } = &merge {
            st.gone(cx, gone.id().index() as u32, &rules);
            self.publish(&st);
        }
        merge
    }

    fn insert(&self, cx: &ElvCx<'_>, rqs: &mut Vec<Rq>, at_head: bool, freed: &mut Vec<Rq>) {
        let rules = self.tunables.rules(cx);
        let already_freed = freed.len();
        let mut st = self.state.lock();
        if at_head {
            rqs.drain(..).rev().for_each(|rq| st.insert_at_head(&rq));
        } else {
            for rq in rqs.drain(..) {
                let queue = st.admit(cx, rq.id().index() as u32, &rules);
                if let Some(rq) = insert_merge(&mut Merging { st: &mut st, queue, rules }, cx, rq, freed) {
                    st.insert(cx, &rq, &rules);
                }
            }
        }
        for gone in &freed[already_freed..] {
            st.gone(cx, gone.id().index() as u32, &rules);
        }
        self.publish(&st);
    }

    fn dispatch(&self, cx: &ElvCx<'_>, _hctx: HctxId, max: usize, out: &mut Vec<Rq>) {
        if self.published.nr_queued.load(Ordering::Relaxed) == 0 {
            return;
        }
        let rules = self.tunables.rules(cx);
        let mut st = self.state.lock();
        for _ in 0..max {
            let Some(rq) = st.dispatch(cx, &rules) else {
                break;
            };
            out.push(Rq::from_id(RequestId::new(rq)));
        }
        self.publish(&st);
    }

    #[inline]
    fn has_work(&self, _hctx: HctxId) -> bool {
        self.published.nr_queued.load(Ordering::Relaxed) != 0
    }

    #[inline]
    fn next_run(&self) -> Option<Instant> {
        let at = self.published.held_until.load(Ordering::Relaxed);
        (at != NOT_HELD).then(|| Instant::from_ns(at))
    }

    fn may_hold(&self) -> bool {
        true
    }

    fn completed(&self, cx: &ElvCx<'_>, rq: &Rq) {
        let rules = self.tunables.rules(cx);
        let mut st = self.state.lock();
        st.gone(cx, rq.id().index() as u32, &rules);
        self.publish(&st);
    }

    /// Writes may not use all tags, so that reads find free ones. Asynchronous writes may use a half, synchronous
    /// writes three quarters. While a raised queue is busy these limits are 3/16 and 6/16.
    fn limit_depth(&self, op: Op, flags: OpFlags) -> Option<u32> {
        if !op.is_write() {
            return None;
        }
        let raised = self.published.raised.load(Ordering::Relaxed);
        let sixteenths = match (flags.contains(OpFlags::SYNC), raised) {
            (false, false) => 8,
            (true, false) => 12,
            (false, true) => 3,
            (true, true) => 6,
        };
        Some((self.nr_requests * sixteenths / 16).max(1))
    }

    fn tunables(&self) -> Vec<Tunable> {
        self.tunables.list()
    }

    fn set_tunable(&self, name: &str, value: u64) -> Result<(), String> {
        self.tunables.set(NAME, name, value)
    }
}
