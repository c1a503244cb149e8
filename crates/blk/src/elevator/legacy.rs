// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Elevators of the legacy single-queue mode: what they share.
//!
//! A legacy elevator runs under the single queue_lock, so its calls take `&mut self` and it has no lock of its own. It
//! is a policy (noop, deadline) with the merge indices that all elevators have. A request can be merged with until it
//! is dispatched.
//!
//! Guarantees: no allocation after construction. Not here: cfq; write barriers (flushes do not enter an elevator);
//! requeued requests and the sorting of a plug before insertion, which the single-queue core handles.
//!
//! The kernel moves requests from the policy to a list (`queue_head`) with a one-way sort before the driver fetches
//! them. It does so one request at a time, when the list is empty, so the sort never has two requests to compare. The
//! list and the sort are left out here.
//!
//! Source: Linux 4.19 block/elevator.c.

use super::bio_merge::{MergeCache, MergeQueue, insert_merge, merge_bio};
use super::deadline_lists::SortNodes;
use super::interface::{BioMerge, BioRef, ElvCx, Tunable};
use crate::bio::BioSlot;
use crate::request::{RequestId, Rq};

/// How a request enters (`ELEVATOR_INSERT_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LegacyInsert {
    /// From a submitter that had no plug: the bio found nothing to merge with a moment ago.
    Sort,
    /// From a plug: a request that it continues may have come meanwhile.
    SortMerge,
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

    /// Whether `next` would return `None`.
    fn is_empty(&self) -> bool;

    /// All tunables with their present values.
    fn tunables(&self) -> Vec<Tunable>;

    /// Sets a tunable; errors as in [`Elevator::set_tunable`](super::Elevator::set_tunable).
    fn set_tunable(&mut self, name: &str, value: u64) -> Result<(), String>;
}

/// What differs between legacy elevators. [`Legacy`] owns the nodes of the lists.
pub(crate) trait Policy: Send + Sized {
    const NAME: &'static str;

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

/// A policy with its merge indices.
pub(crate) struct Legacy<P> {
    policy: P,
    nodes: SortNodes,
    cache: MergeCache,
}

impl<P: Policy> Legacy<P> {
    /// For requests 0..`nr_requests`.
    pub(crate) fn new(nr_requests: usize) -> Legacy<P> {
        let nodes = SortNodes::new(nr_requests);
        Legacy { policy: P::new(&nodes), nodes, cache: MergeCache::new(nr_requests) }
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
        let rq = self.policy.pick(cx, &mut self.nodes)?;
        self.cache.forget(rq);
        Some(Rq::from_id(RequestId::new(rq)))
    }

    fn is_empty(&self) -> bool {
        self.policy.is_empty()
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

#[cfg(test)]
mod tests;
