// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A bfq queue: the synchronous or the asynchronous requests of one submitter in one class, and what is known of their
//! source.
//!
//! Guarantees: a request is in the sector tree and in the FIFO of its queue, or in neither; [`Queue::next`] is the
//! request to serve next: the nearest to the head when it was chosen, or the oldest if it has expired. Expiry is
//! checked once per turn. Needs: one lock around all calls; [`Queue::insert`] and [`Queue::unlink`] for every change.
//! Not here: when a queue is served (wf2q), what it may use up (budget), whether it is waited for (idling).

use super::choose::is_better;
use super::io_pattern::IoPattern;
use super::tunables::Rules;
use super::weight_raising::WeightRaising;
use crate::bio::{IoPrio, IoPrioClass};
use crate::elevator::bio_merge::request;
use crate::elevator::deadline_lists::SortNodes;
use crate::elevator::fifo::Fifo;
use crate::elevator::interface::ElvCx;
use crate::elevator::rbtree::RbTree;
use crate::time::Instant;

use super::wf2q::{BE, IDLE, RT};

/// Level of requests that have no priority of their own.
const DEFAULT_LEVEL: u8 = 4;
/// Weight per priority level.
const WEIGHT_PER_LEVEL: u32 = 10;

/// One queue.
pub(crate) struct Queue {
    pub(crate) sync: bool,
    /// From the submitter's setting or the level of its requests; 1..=1000.
    pub(crate) weight: u32,
    sort: RbTree,
    fifo: Fifo,
    next: Option<u32>,
    /// Requests in the tree.
    pub(crate) nr_queued: u32,
    /// Requests dispatched and not completed.
    pub(crate) nr_out: u32,
    /// Budget of its next turn, in sectors; adjusted by feedback.
    pub(crate) max_budget: u32,
    /// Its oldest request was checked in this turn.
    fifo_checked: bool,
    /// It is counted as raised, as of when it became busy or was last queued again.
    pub(crate) counted_raised: bool,
    /// Its last turn ended because it had no request, not because its time or budget was used up. If it comes back
    /// soon, it continues where it stopped.
    pub(crate) may_resume: bool,
    /// When a request of it last completed.
    pub(crate) last_completion: Instant,
    pub(crate) io_pattern: IoPattern,
    pub(crate) raising: WeightRaising,
}

/// The class of a priority, as a tree's number.
pub(crate) fn class_of(prio: IoPrio) -> u8 {
    match prio.class() {
        IoPrioClass::Rt => RT,
        IoPrioClass::None | IoPrioClass::Be => BE,
        IoPrioClass::Idle => IDLE,
    }
}

/// The weight a priority stands for: (8 - level) x 10.
pub(crate) fn weight_of(prio: IoPrio) -> u32 {
    let level = if prio.class() == IoPrioClass::None { DEFAULT_LEVEL } else { prio.level() };
    (8 - u32::from(level)) * WEIGHT_PER_LEVEL
}

impl Queue {
    /// Empty, over `nodes`.
    pub(crate) fn new(nodes: &SortNodes, sync: bool, max_budget: u32, now: Instant) -> Queue {
        Queue {
            sync,
            weight: weight_of(IoPrio::default()),
            sort: RbTree::new(&nodes.rb),
            fifo: Fifo::new(),
            next: None,
            nr_queued: 0,
            nr_out: 0,
            max_budget,
            fifo_checked: false,
            counted_raised: false,
            may_resume: false,
            last_completion: now,
            io_pattern: IoPattern::new(now),
            raising: WeightRaising::new(now),
        }
    }

    /// The request to serve next.
    #[inline]
    pub(crate) fn next(&self) -> Option<u32> {
        self.next
    }

    /// The weight to be scheduled with from the next turn on.
    #[inline]
    pub(crate) fn effective_weight(&self) -> u32 {
        self.weight * self.raising.coefficient()
    }

    /// Queues a request. `head` is where the disk's head is thought to be.
    #[inline]
    pub(crate) fn insert(&mut self, n: &mut SortNodes, cx: &ElvCx<'_>, rq: u32, head: u64, rules: &Rules) {
        let fields = request(cx, rq);
        self.sort.insert(&mut n.rb, rq, fields.sector().0);
        n.fifo.set_expires(rq, rules.now + rules.fifo_expire[usize::from(self.sync)]);
        self.fifo.push_back(&mut n.fifo, rq);
        self.nr_queued += 1;
        self.prefer(cx, rq, head, rules);
    }

    /// Makes `rq` the next request if it is better than the present one.
    fn prefer(&mut self, cx: &ElvCx<'_>, rq: u32, head: u64, rules: &Rules) {
        match self.next {
            Some(next) if !is_better(request(cx, rq), request(cx, next), head, rules) => {}
            _ => self.next = Some(rq),
        }
    }

    /// Takes a request out for the disk, and chooses the one that follows it.
    #[inline]
    pub(crate) fn take_next(&mut self, n: &mut SortNodes, cx: &ElvCx<'_>, rules: &Rules) -> Option<u32> {
        let rq = self.next?;
        let follower = self.follower(n, cx, rq, rules);
        self.unlink(n, rq);
        self.next = follower;
        Some(rq)
    }

    fn unlink(&mut self, n: &mut SortNodes, rq: u32) {
        self.sort.remove(&mut n.rb, rq);
        self.fifo.remove(&mut n.fifo, rq);
        self.nr_queued -= 1;
    }

    /// Returns the best request after `rq`, which is still queued: the oldest if it has expired and expiry was not yet
    /// checked in this turn, else a neighbour of `rq`.
    fn follower(&mut self, n: &SortNodes, cx: &ElvCx<'_>, rq: u32, rules: &Rules) -> Option<u32> {
        if let Some(oldest) = self.expired(n, rules)
            && oldest != rq
        {
            return Some(oldest);
        }
        let former = n.rb.former(rq);
        let latter = n.rb.latter(rq).or_else(|| self.sort.first_at_or_after(&n.rb, 0).filter(|first| *first != rq));
        let head = request(cx, rq).sector().0;
        match (former, latter) {
            (Some(f), Some(l)) if is_better(request(cx, f), request(cx, l), head, rules) => Some(f),
            (former, None) => former,
            (_, latter) => latter,
        }
    }

    fn expired(&mut self, n: &SortNodes, rules: &Rules) -> Option<u32> {
        if core::mem::replace(&mut self.fifo_checked, true) {
            return None;
        }
        self.fifo.front().filter(|rq| n.fifo.expires(*rq) <= rules.now)
    }

    /// A turn begins: the oldest request may be checked once more.
    pub(crate) fn begin_turn(&mut self) {
        self.fifo_checked = false;
    }

    /// Sorts a request again after its first sector changed.
    pub(crate) fn reposition(&mut self, n: &mut SortNodes, cx: &ElvCx<'_>, rq: u32, head: u64, rules: &Rules) {
        self.sort.remove(&mut n.rb, rq);
        self.sort.insert(&mut n.rb, rq, request(cx, rq).sector().0);
        self.prefer(cx, rq, head, rules);
    }

    /// `gone` was joined to the end of `kept`, which is queued here, too. `kept` gets the position of `gone` in the
    /// FIFO if that is earlier, and is next if `gone` was.
    pub(crate) fn absorb(&mut self, n: &mut SortNodes, kept: u32, gone: u32) {
        self.fifo.keep_earlier(&mut n.fifo, kept, gone);
        if self.next == Some(gone) {
            self.next = Some(kept);
        }
        self.unlink(n, gone);
    }

    /// A request that starts at `sector`.
    pub(crate) fn starting_at(&self, n: &SortNodes, sector: u64) -> Option<u32> {
        self.sort.find(&n.rb, sector)
    }
}
