// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Elevators of the legacy single-queue mode: what they share.
//!
//! A legacy elevator lives inside the one queue_lock, so its calls take `&mut self` and it has no lock of its own. It
//! consists of a policy (noop, deadline) and of the request_queue's `queue_head`: the short list of requests that the
//! policy has let go and the driver has not fetched yet. A request is merged with only while the policy holds it.
//!
//! Guarantees: no allocation after construction. Not here: cfq, write barriers (flushes do not enter an elevator), and
//! the sorting of a plug before insertion, which is the plug's.
//!
//! Source: Linux 4.19 block/elevator.c.

use super::bio_merge::{MergeCache, MergeQueue, insert_merge, merge_bio, request};
use super::deadline_lists::SortNodes;
use super::fifo::{Fifo, FifoNodes};
use super::{BioMerge, BioRef, ElevatorError, ElvCx, Tunable, deadline, noop, unknown};
use crate::bio::BioSlot;
use crate::request::{RequestId, Rq};

/// Names of the legacy elevators, the default first.
pub const LEGACY_NAMES: [&str; 2] = [deadline::NAME, noop::NAME];

/// How a request enters (`ELEVATOR_INSERT_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LegacyInsert {
    /// From a submitter that had no plug: the bio found nothing to merge with a moment ago.
    Sort,
    /// From a plug: meanwhile something may have come that it continues.
    SortMerge,
    /// Back from the driver: it is the next one.
    Front,
}

/// A legacy elevator as the single-queue core sees it. All calls under queue_lock.
pub(crate) trait LegacyElevator: Send {
    /// The name in `queue/scheduler`.
    fn name(&self) -> &'static str;

    /// Tries to merge a bio into a request that the policy holds.
    fn bio_merge(&mut self, cx: &ElvCx<'_>, bio: BioRef) -> BioMerge;

    /// Takes over a request. Those joined to others because of it are added to `freed`.
    fn add(&mut self, cx: &ElvCx<'_>, rq: Rq, how: LegacyInsert, freed: &mut Vec<Rq>);

    /// The next request for the driver.
    fn next(&mut self, cx: &ElvCx<'_>) -> Option<Rq>;

    /// Whether `next` would give out nothing.
    fn is_empty(&self) -> bool;

    /// Makes the policy let go of everything, in its order, before an elevator switch; merging ends for these requests.
    fn drain(&mut self, cx: &ElvCx<'_>);

    /// All tunables with their present values.
    fn tunables(&self) -> Vec<Tunable>;

    /// Sets a tunable; errors as in [`super::Elevator::set_tunable`].
    fn set_tunable(&mut self, name: &str, value: u64) -> Result<(), String>;
}

/// The legacy elevator called `name`, for a disk with `nr_requests` requests.
pub(crate) fn legacy_by_name(name: &str, nr_requests: usize) -> Result<Box<dyn LegacyElevator>, ElevatorError> {
    match name {
        noop::NAME => Ok(Box::new(Legacy::<noop::Noop>::new(nr_requests))),
        deadline::NAME => Ok(Box::new(Legacy::<deadline::Deadline>::new(nr_requests))),
        _ => Err(unknown(name, &LEGACY_NAMES)),
    }
}

/// What tells one legacy elevator from another. The nodes of its lists are the shell's.
pub(crate) trait Policy: Send + Sized {
    const NAME: &'static str;

    /// How its requests enter `queue_head`: sorted one way, or as they come.
    const DISPATCH_SORTS: bool;

    /// With empty lists over `nodes`.
    fn new(nodes: &SortNodes) -> Self;

    /// Queues a request.
    fn insert(&mut self, cx: &ElvCx<'_>, n: &mut SortNodes, rq: u32);

    /// Takes the next request out of its lists.
    fn pick(&mut self, cx: &ElvCx<'_>, n: &mut SortNodes) -> Option<u32>;

    fn is_empty(&self) -> bool;

    /// As the calls of [`MergeQueue`] with the same names.
    fn front_candidate(&self, n: &SortNodes, bio: &BioSlot) -> Option<u32>;
    fn former(&self, n: &SortNodes, rq: u32) -> Option<u32>;
    fn latter(&self, n: &SortNodes, rq: u32) -> Option<u32>;
    fn front_merged(&mut self, cx: &ElvCx<'_>, n: &mut SortNodes, rq: u32);
    fn joined(&mut self, cx: &ElvCx<'_>, n: &mut SortNodes, kept: u32, gone: u32);

    fn tunables(&self) -> Vec<Tunable>;
    fn set_tunable(&mut self, name: &str, value: u64) -> Result<(), String>;
}

/// A policy with its merge indices and `queue_head`.
pub(crate) struct Legacy<P> {
    policy: P,
    nodes: SortNodes,
    cache: MergeCache,
    queue_head: QueueHead,
}

impl<P: Policy> Legacy<P> {
    /// For requests 0..`nr_requests`.
    pub(crate) fn new(nr_requests: usize) -> Legacy<P> {
        let nodes = SortNodes::new(nr_requests);
        Legacy { policy: P::new(&nodes), nodes, cache: MergeCache::new(nr_requests), queue_head: QueueHead::new() }
    }

    /// Moves one request from the policy to `queue_head`; `false` when the policy has none.
    fn let_go(&mut self, cx: &ElvCx<'_>) -> bool {
        let Some(rq) = self.policy.pick(cx, &mut self.nodes) else {
            return false;
        };
        self.cache.forget(rq);
        if P::DISPATCH_SORTS {
            self.queue_head.add_sorted(cx, &mut self.nodes.fifo, rq);
        } else {
            self.queue_head.add_tail(cx, &mut self.nodes.fifo, rq);
        }
        true
    }
}

impl<P: Policy> LegacyElevator for Legacy<P> {
    fn name(&self) -> &'static str {
        P::NAME
    }

    fn bio_merge(&mut self, cx: &ElvCx<'_>, bio: BioRef) -> BioMerge {
        if !self.cache.filter().may_adjoin(cx.bios.bio(bio.0)) {
            return BioMerge::No;
        }
        merge_bio(self, cx, bio)
    }

    fn add(&mut self, cx: &ElvCx<'_>, rq: Rq, how: LegacyInsert, freed: &mut Vec<Rq>) {
        let rq = match how {
            LegacyInsert::Front => {
                self.queue_head.add_front(&mut self.nodes.fifo, rq.id().index() as u32);
                return;
            }
            LegacyInsert::Sort => rq,
            LegacyInsert::SortMerge => match insert_merge(self, cx, rq, freed) {
                Some(rq) => rq,
                None => return,
            },
        };
        let id = rq.id().index() as u32;
        self.cache.queued(cx.rqs.get(rq.id()), id);
        self.policy.insert(cx, &mut self.nodes, id);
    }

    fn next(&mut self, cx: &ElvCx<'_>) -> Option<Rq> {
        if self.queue_head.list.is_empty() {
            self.let_go(cx);
        }
        let rq = self.queue_head.fetch(cx, &mut self.nodes.fifo)?;
        Some(Rq::from_id(RequestId::new(rq)))
    }

    fn is_empty(&self) -> bool {
        self.queue_head.list.is_empty() && self.policy.is_empty()
    }

    fn drain(&mut self, cx: &ElvCx<'_>) {
        while self.let_go(cx) {}
    }

    fn tunables(&self) -> Vec<Tunable> {
        self.policy.tunables()
    }

    fn set_tunable(&mut self, name: &str, value: u64) -> Result<(), String> {
        self.policy.set_tunable(name, value)
    }
}

impl<P: Policy> MergeQueue for Legacy<P> {
    fn cache(&mut self) -> &mut MergeCache {
        &mut self.cache
    }

    fn front_candidate(&self, bio: &BioSlot) -> Option<u32> {
        self.policy.front_candidate(&self.nodes, bio)
    }

    fn former(&self, _cx: &ElvCx<'_>, rq: u32) -> Option<u32> {
        self.policy.former(&self.nodes, rq)
    }

    fn latter(&self, _cx: &ElvCx<'_>, rq: u32) -> Option<u32> {
        self.policy.latter(&self.nodes, rq)
    }

    fn front_merged(&mut self, cx: &ElvCx<'_>, rq: u32) {
        self.policy.front_merged(cx, &mut self.nodes, rq);
    }

    fn joined(&mut self, cx: &ElvCx<'_>, kept: u32, gone: u32) {
        if self.nodes.fifo.is_linked(gone) {
            self.policy.joined(cx, &mut self.nodes, kept, gone);
        }
    }
}

/// Requests on their way from the policy to the driver.
struct QueueHead {
    list: Fifo,
    /// The last of the requests that came back from the driver: nothing is sorted before it.
    barrier: Option<u32>,
    /// Where the head of the disk is taken to be: sorting is upwards from here, then from sector 0.
    end_sector: u64,
    /// While a request that was added unsorted is on its way, the position is its end and stays.
    boundary_rq: Option<u32>,
}

impl QueueHead {
    const fn new() -> QueueHead {
        QueueHead { list: Fifo::new(), barrier: None, end_sector: 0, boundary_rq: None }
    }

    fn add_front(&mut self, n: &mut FifoNodes, rq: u32) {
        self.list.push_front(n, rq);
        self.barrier.get_or_insert(rq);
    }

    /// The policy's order is kept (`elv_dispatch_add_tail`).
    fn add_tail(&mut self, cx: &ElvCx<'_>, n: &mut FifoNodes, rq: u32) {
        self.end_sector = request(cx, rq).end_sector().0;
        self.boundary_rq = Some(rq);
        self.list.push_back(n, rq);
    }

    /// One-way sort: behind the last request that the disk's head meets before it (`elv_dispatch_sort`). Requests of
    /// another operation are not passed.
    fn add_sorted(&mut self, cx: &ElvCx<'_>, n: &mut FifoNodes, rq: u32) {
        let new = request(cx, rq);
        // Distance upwards from the head, with sectors below it behind all those above.
        let way = |sector: u64| (sector < self.end_sector, sector);
        let mut at = self.list.back();
        while let Some(other) = at {
            let fields = request(cx, other);
            if self.barrier == Some(other) || fields.op() != new.op() || way(fields.sector().0) <= way(new.sector().0) {
                break;
            }
            at = n.former(other);
        }
        match at {
            Some(before) => self.list.insert_after(n, rq, before),
            None => self.list.push_front(n, rq),
        }
    }

    /// What the driver gets.
    fn fetch(&mut self, cx: &ElvCx<'_>, n: &mut FifoNodes) -> Option<u32> {
        let rq = self.list.pop_front(n)?;
        if self.barrier == Some(rq) {
            self.barrier = None;
        }
        if self.boundary_rq.is_none_or(|b| b == rq) {
            self.end_sector = request(cx, rq).end_sector().0;
            self.boundary_rq = None;
        }
        Some(rq)
    }
}

#[cfg(test)]
mod tests;
