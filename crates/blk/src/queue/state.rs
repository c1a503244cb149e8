// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of a disk that a rebuild replaces as a whole: map, tags, requests, hardware and software queues, elevator.
//!
//! Guarantees: nothing here changes its size or position while the state is in effect, so submitters may keep indices
//! into it.

use super::hctx::{Ctx, Hctx};
use crate::cpumap::{HctxType, QueueMap};
use crate::elevator::interface::Elevator;
use crate::elevator::registry::NONE;
use crate::id::CpuId;
use crate::lock::Lock;
use crate::relaxed::FieldU32;
use crate::request::{RequestId, RequestSlab};
use crate::sq::sq_queue::SqQueue;
use crate::tags::hctx_tags::HctxTags;
use crate::tags::share::Share;
use std::sync::Arc;

/// The state that is replaced as a whole when the queue is rebuilt.
pub(crate) struct QueueState<L: Lock> {
    pub(crate) map: QueueMap,
    pub(crate) hctxs: Box<[Hctx<L>]>,
    /// Software queues: `cpu * 3 + type`.
    pub(crate) ctxs: Box<[Ctx<L>]>,
    /// Driver tags: one map per hctx, or one for all (`host_tagset`). If the disk has joined a tag set, these are its
    /// maps.
    pub(crate) driver_tags: Arc<[HctxTags<L>]>,
    /// Mask that turns the number of an hctx into the number of its tag map.
    pub(crate) map_mask: usize,
    /// One map serves all hctxs.
    pub(crate) host_tagset: bool,
    /// The disk's share of tags that other disks use, too.
    pub(crate) share: Option<Share<L>>,
    /// Several hctxs or disks use the same driver tags. An hctx that finds no tag then waits in the map's wait queue,
    /// because another hctx or disk may free the next tag. And the map does not show which requests belong to which hctx.
    pub(crate) tags_are_shared: bool,
    /// Scheduler tags, as many maps as there are of driver tags; empty without an elevator.
    pub(crate) sched_tags: Box<[HctxTags<L>]>,
    /// With an elevator: the request that has driver tag `hctx * queue_depth + tag`.
    pub(crate) driver_rqs: Box<[FieldU32]>,
    pub(crate) slab: RequestSlab,
    /// Requests per hctx in the slab, the flush command's included.
    pub(crate) stride: u32,
    pub(crate) queue_depth: u32,
    pub(crate) nr_requests: u32,
    pub(crate) elevator: Option<Box<dyn Elevator>>,
    pub(crate) sq: Option<SqQueue<L>>,
}

impl<L: Lock> QueueState<L> {
    /// Returns the request of an internal tag (scheduler tag with an elevator, driver tag without).
    #[inline]
    pub(crate) fn rq_of_tag(&self, hctx: usize, tag: u32) -> RequestId {
        RequestId::new(hctx as u32 * self.stride + tag)
    }

    /// Returns the internal tag of a request.
    #[inline]
    pub(crate) fn tag_of_rq(&self, id: RequestId, hctx: usize) -> u32 {
        id.index() as u32 - hctx as u32 * self.stride
    }

    /// Returns the request of an hctx's flush command.
    #[inline]
    pub(crate) fn flush_rq(&self, hctx: usize) -> RequestId {
        RequestId::new((hctx as u32 + 1) * self.stride - 1)
    }

    /// Whether some tags are reserved.
    pub(crate) fn has_reserved_tags(&self) -> bool {
        self.driver_tags.first().is_some_and(HctxTags::has_reserved)
    }

    /// Whether driver tags are taken at dispatch (elevator, single-queue) rather than at allocation.
    #[inline]
    pub(crate) fn tags_by_dispatch(&self) -> bool {
        self.elevator.is_some() || self.sq.is_some()
    }

    /// Returns which tag map an hctx uses.
    #[inline]
    pub(crate) fn map_of(&self, hctx: usize) -> usize {
        hctx & self.map_mask
    }

    /// Returns the driver tags of an hctx.
    #[inline]
    pub(crate) fn driver_tags(&self, hctx: usize) -> &HctxTags<L> {
        &self.driver_tags[self.map_of(hctx)]
    }

    /// Returns the tags from which requests of an hctx are allocated.
    #[inline]
    pub(crate) fn alloc_tags(&self, hctx: usize) -> &HctxTags<L> {
        self.alloc_tags_of(self.map_of(hctx))
    }

    /// As [`QueueState::alloc_tags`], by the number of the map.
    #[inline(always)] // One load.
    pub(crate) fn alloc_tags_of(&self, map: usize) -> &HctxTags<L> {
        if self.elevator.is_some() { &self.sched_tags[map] } else { &self.driver_tags[map] }
    }

    /// Returns the share of the disk if internal tags count against it: only without an elevator.
    #[inline]
    pub(crate) fn alloc_share(&self) -> Option<&Share<L>> {
        if self.elevator.is_some() { None } else { self.share.as_ref() }
    }

    #[inline]
    pub(crate) fn ctx_index(&self, cpu: CpuId, ty: HctxType) -> usize {
        cpu.index() * 3 + ty as usize
    }

    #[inline]
    pub(crate) fn ctx(&self, cpu: CpuId, ty: HctxType) -> &Ctx<L> {
        &self.ctxs[self.ctx_index(cpu, ty)]
    }

    /// Returns what the driver was started with: the number of hardware queues and their depth.
    pub(super) fn driver_shape(&self) -> (u16, u32) {
        (self.hctxs.len() as u16, self.queue_depth)
    }

    pub(crate) fn scheduler(&self) -> &'static str {
        match (&self.sq, &self.elevator) {
            (Some(sq), _) => sq.elevator_name(),
            (None, Some(e)) => e.name(),
            (None, None) => NONE,
        }
    }

    /// Returns how many tags of one hctx are in use; if tags are shared, how many requests it has.
    pub(crate) fn hctx_tags_in_use(&self, hctx: usize) -> u32 {
        if self.tags_are_shared {
            return self.hctx_requests(hctx);
        }
        let one = |t: &[HctxTags<L>]| t.get(hctx).map_or(0, HctxTags::in_use);
        one(&self.driver_tags) + one(&self.sched_tags)
    }

    /// Returns how many requests are allocated.
    pub(crate) fn requests_in_use(&self) -> u32 {
        if let Some(sq) = &self.sq {
            return sq.in_use();
        }
        (0..self.hctxs.len()).map(|h| self.hctx_requests(h)).sum()
    }

    pub(super) fn tags_in_use(&self) -> u32 {
        let sum = |t: &[HctxTags<L>]| t.iter().map(HctxTags::in_use).sum::<u32>();
        let driver = self.share.as_ref().map_or_else(|| sum(&self.driver_tags), Share::in_use);
        driver + sum(&self.sched_tags) + self.sq.as_ref().map_or(0, SqQueue::in_use)
    }
}
