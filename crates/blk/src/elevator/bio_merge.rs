// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How elevators other than kyber find a request to merge with; the kernel's `elv_merge` and related functions.
//!
//! A bio is tried first against the last merged request (the one-hit cache). Then it is tried against the request that ends
//! where it starts (hash). Last comes the request that starts where it ends (the elevator's own search). After a bio was
//! merged the request is tried against its new neighbour. A request on its way in is tried as a continuation of a queued
//! one.
//!
//! Guarantees: a request joined into another is out of all indices before it is reported as freed. Needs: one lock
//! around each call, and [`MergeCache::forget`] for every request that leaves the elevator. Not here: bios that could
//! meet in the plug or in a ctx list.
//!
//! Source: Linux 6.19 block/elevator.c, block/blk-mq-sched.c, block/blk-merge.c.

use super::interface::{BioMerge, BioRef, ElvCx};
use super::merge_filter::MergeFilter;
use super::merge_hash::MergeHash;
use crate::bio::BioSlot;
use crate::path::merge::{
    MergeKind, attempt_merge_requests, bio_attempt_back_merge, bio_attempt_front_merge, bio_is_mergeable,
    bio_merge_kind, rq_is_mergeable,
};
use crate::request::{Request, RequestId, Rq};
use std::sync::Arc;

/// The request of a slab number.
#[inline]
pub(crate) fn request<'a>(cx: &ElvCx<'a>, rq: u32) -> &'a Request {
    cx.rqs.get(RequestId::new(rq))
}

/// The indices that find merge candidates.
pub(crate) struct MergeCache {
    hash: MergeHash,
    last_merge: Option<u32>,
    /// Start and end sectors of the requests in `hash`, for a check before the lock is taken.
    filter: Arc<MergeFilter>,
    /// Per request in `hash`: the start sector the filter knows.
    starts: Box<[u64]>,
}

impl MergeCache {
    /// For requests 0..`nr_requests`.
    pub(crate) fn new(nr_requests: usize) -> MergeCache {
        MergeCache {
            hash: MergeHash::new(nr_requests),
            last_merge: None,
            filter: Arc::new(MergeFilter::new(nr_requests)),
            starts: vec![0; nr_requests].into_boxed_slice(),
        }
    }

    /// Returns the filter. A bio that, by the filter, no request adjoins need not be offered.
    pub(crate) fn filter(&self) -> &Arc<MergeFilter> {
        &self.filter
    }

    /// A request was queued.
    #[inline]
    pub(crate) fn queued(&mut self, fields: &Request, rq: u32) {
        if rq_is_mergeable(fields) {
            self.link(fields, rq);
            self.last_merge.get_or_insert(rq);
        }
    }

    /// A request leaves the elevator or was joined into another: it is no candidate any more.
    #[inline]
    pub(crate) fn forget(&mut self, rq: u32) {
        self.unlink(rq);
        if self.last_merge == Some(rq) {
            self.last_merge = None;
        }
    }

    /// A request cannot grow any more. It stops being the last merged request, so that the next queued one can take its
    /// place.
    #[cold]
    fn closed(&mut self, rq: u32) {
        if self.last_merge == Some(rq) {
            self.last_merge = None;
        }
    }

    #[inline]
    fn link(&mut self, fields: &Request, rq: u32) {
        let (start, end) = (fields.sector().0, fields.end_sector().0);
        self.hash.insert(rq, end);
        self.starts[rq as usize] = start;
        self.filter.add(start, end);
    }

    #[inline]
    fn unlink(&mut self, rq: u32) {
        if let Some(end) = self.hash.remove(rq) {
            self.filter.remove(self.starts[rq as usize], end);
        }
    }

    /// A request has grown; if it is in the hash, it is found at its new end.
    fn resized(&mut self, fields: &Request, rq: u32) {
        if self.hash.is_linked(rq) {
            self.unlink(rq);
            self.link(fields, rq);
        }
    }

    /// A request starts earlier; its place among those with the same end stays.
    fn moved_front(&mut self, fields: &Request, rq: u32) {
        if self.hash.is_linked(rq) {
            let (start, end) = (fields.sector().0, fields.end_sector().0);
            self.filter.remove(self.starts[rq as usize], end);
            self.filter.add(start, end);
            self.starts[rq as usize] = start;
        }
    }

    /// The newest mergeable request that ends at `sector`. Removes requests from the hash that it finds not mergeable
    /// any more.
    fn find_end(&mut self, cx: &ElvCx<'_>, sector: u64) -> Option<u32> {
        loop {
            let rq = self.hash.find(sector)?;
            if rq_is_mergeable(request(cx, rq)) {
                return Some(rq);
            }
            self.unlink(rq);
        }
    }
}

/// What an elevator adds to the common search: its sorted lists.
pub(crate) trait MergeQueue {
    /// Its merge indices.
    fn cache(&mut self) -> &mut MergeCache;

    /// Whether the present bio or request may be merged into queued request `rq`. An elevator with separate queues
    /// returns false for the requests of other queues.
    fn admits(&self, _rq: u32) -> bool {
        true
    }

    /// A queued request that starts where `bio` ends, if the elevator looks for such.
    fn front_candidate(&self, bio: &BioSlot) -> Option<u32>;

    /// The queued request before `rq` in sector order (or in list order, for an elevator that does not sort).
    fn former(&self, cx: &ElvCx<'_>, rq: u32) -> Option<u32>;

    /// The queued request after `rq`, as [`MergeQueue::former`].
    fn latter(&self, cx: &ElvCx<'_>, rq: u32) -> Option<u32>;

    /// `rq` starts at an earlier sector now.
    fn front_merged(&mut self, cx: &ElvCx<'_>, rq: u32);

    /// `gone` was joined to the end of `kept`: hands the expiry of `gone` over to `kept` and takes `gone` out of the
    /// lists. `gone` may never have been in them.
    fn joined(&mut self, cx: &ElvCx<'_>, kept: u32, gone: u32);
}

/// Tries to merge a bio into a queued request.
pub(crate) fn merge_bio<Q: MergeQueue>(q: &mut Q, cx: &ElvCx<'_>, bio: BioRef) -> BioMerge {
    let slot = cx.bios.bio(bio.0);
    if cx.nomerges >= 2 || !bio_is_mergeable(slot) {
        return BioMerge::No;
    }
    let Some((rq, kind)) = find(q, cx, slot) else {
        return BioMerge::No;
    };
    let fields = request(cx, rq);
    let freed = match kind {
        MergeKind::Back => {
            if !bio_attempt_back_merge(cx, fields, bio.0) {
                q.cache().closed(rq);
                return BioMerge::No;
            }
            let next = q.latter(cx, rq).filter(|&next| join(q, cx, rq, next));
            if next.is_none() {
                q.cache().resized(fields, rq);
            }
            next
        }
        MergeKind::Front => {
            if !bio_attempt_front_merge(cx, fields, bio.0) {
                q.cache().closed(rq);
                return BioMerge::No;
            }
            let prev = q.former(cx, rq).filter(|&prev| join(q, cx, prev, rq));
            if prev.is_none() {
                q.front_merged(cx, rq);
                q.cache().moved_front(fields, rq);
            }
            prev.map(|_| rq)
        }
    };
    if freed.is_none() {
        q.cache().last_merge = Some(rq);
    }
    BioMerge::Merged { freed: freed.map(|id| Rq::from_id(RequestId::new(id))) }
}

/// Finds the request that a bio can be merged into.
fn find<Q: MergeQueue>(q: &mut Q, cx: &ElvCx<'_>, bio: &BioSlot) -> Option<(u32, MergeKind)> {
    if let Some(last) = q.cache().last_merge
        && let Some(kind) = bio_merge_kind(request(cx, last), bio)
        && q.admits(last)
    {
        return Some((last, kind));
    }
    if cx.nomerges >= 1 {
        return None;
    }
    if let Some(rq) = q.cache().find_end(cx, bio.sector.get())
        && bio_merge_kind(request(cx, rq), bio) == Some(MergeKind::Back)
        && q.admits(rq)
    {
        return Some((rq, MergeKind::Back));
    }
    let rq = q.front_candidate(bio)?;
    (bio_merge_kind(request(cx, rq), bio) == Some(MergeKind::Front)).then_some((rq, MergeKind::Front))
}

/// Joins queued or incoming `next` into queued `rq` if they fit, and updates all indices.
fn join<Q: MergeQueue>(q: &mut Q, cx: &ElvCx<'_>, rq: u32, next: u32) -> bool {
    let fields = request(cx, rq);
    if !attempt_merge_requests(cx, fields, request(cx, next)) {
        return false;
    }
    q.joined(cx, rq, next);
    let cache = q.cache();
    cache.forget(next);
    cache.resized(fields, rq);
    cache.last_merge = Some(rq);
    true
}

/// Tries to join a request that is about to be queued to a queued one; on success returns `None`, with all joined
/// requests in `freed`, the incoming one first.
pub(crate) fn insert_merge<Q: MergeQueue>(q: &mut Q, cx: &ElvCx<'_>, rq: Rq, freed: &mut Vec<Rq>) -> Option<Rq> {
    let mut id = rq.id().index() as u32;
    if cx.nomerges >= 2 || !rq_is_mergeable(request(cx, id)) {
        return Some(rq);
    }
    if let Some(last) = q.cache().last_merge
        && q.admits(last)
        && join(q, cx, last, id)
    {
        freed.push(rq);
        return None;
    }
    if cx.nomerges >= 1 {
        return Some(rq);
    }
    let mut incoming = Some(rq);
    // The request that `rq` was joined to may in turn continue another request.
    while let Some(before) = q.cache().find_end(cx, request(cx, id).sector().0)
        && q.admits(before)
        && join(q, cx, before, id)
    {
        freed.push(incoming.take().unwrap_or_else(|| Rq::from_id(RequestId::new(id))));
        id = before;
    }
    incoming
}
