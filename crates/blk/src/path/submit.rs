// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From bio to request: check, split, merge, take a tag (`tag`), fill the request, put it into the plug. `unplug` issues it from there.
//!
//! Guarantees: if the result is `true`, the bio is part of exactly one request, or has completed. If it is `false`, the
//! bio is unchanged, and its submitter is registered for a wake-up when a tag is freed. Source: block/blk-mq.c
//! (`blk_mq_submit_bio`, `blk_mq_get_new_requests`).

use crate::bio::{Bio, BioId, BioSlot, DataRef, Op, OpFlags};
use crate::cpumap::HctxType;
use crate::elevator::interface::{BioMerge, BioRef, ElvCx};
use crate::id::Sector;
use crate::limits::Limits;
use crate::lock::Lock;
use crate::path::flush;
use crate::path::merge::{self, MergeKind};
use crate::path::plug::{BLK_MAX_REQUEST_COUNT, BLK_PLUG_FLUSH_SECTORS};
use crate::path::split::bio_split_sectors;
use crate::request::{NO_TAG, Request, RequestId, Rq, RqState, rqf};
use crate::status::BlkStatus;
use crate::submitter::{Env, HctxRoute, Local};
use crate::sync::Ordering;
use crate::time::Instant;
use crate::trace::event::EventKind;

/// Maximum number of requests of a ctx list, youngest first, that are checked for a merge with a bio (`BLK_MQ_CTX_MERGE_DEPTH`).
const CTX_MERGE_DEPTH: usize = 8;

/// Checks that a bio lies within a disk of this size and consists of whole blocks.
#[inline]
pub(crate) fn check_range(limits: &Limits, capacity: Sector, bio: &Bio) -> Result<(), BlkStatus> {
    if bio.op == Op::Flush {
        return if bio.nr_sectors == 0 { Ok(()) } else { Err(BlkStatus::Inval) };
    }
    let lbs = u64::from(limits.logical_block_sectors());
    let end = bio.sector.0.checked_add(u64::from(bio.nr_sectors));
    if bio.nr_sectors == 0
        || (bio.sector.0 | u64::from(bio.nr_sectors)) & (lbs - 1) != 0
        || end.is_none_or(|e| e > capacity.0)
    {
        return Err(BlkStatus::IoErr);
    }
    // A split advances the reference, which must still refer to the same region afterwards.
    if bio.op.has_data() && u64::from(bio.nr_sectors) << 9 > DataRef::MAX_OFFSET + 1 - bio.data.offset() {
        return Err(BlkStatus::Inval);
    }
    Ok(())
}

/// Checks that a disk with these limits supports the operation and its flags.
pub(crate) fn check_op(limits: &Limits, op: Op, flags: OpFlags) -> Result<(), BlkStatus> {
    let durable = flags.intersects(OpFlags::FUA.union(OpFlags::PREFLUSH));
    if durable && !matches!(op, Op::Write | Op::Flush) {
        return Err(BlkStatus::IoErr);
    }
    let unsupported = match op {
        Op::Discard => limits.max_discard_sectors == 0,
        Op::WriteZeroes => limits.max_write_zeroes_sectors == 0,
        _ => false,
    } || (flags.contains(OpFlags::BYTES) && !(limits.takes_bytes && op.has_data()));
    match () {
        () if unsupported => Err(BlkStatus::NotSupp),
        () if op.is_write() && limits.read_only => Err(BlkStatus::IoErr),
        () => Ok(()),
    }
}

impl<L: Lock> Env<L> {
    /// Checks a bio against the disk: range, operation and flags.
    #[inline]
    pub(crate) fn check_bio(&self, bio: &Bio) -> Result<(), BlkStatus> {
        check_range(&self.q.limits, self.q.capacity(), bio)?;
        if bio.op == Op::Read && bio.flags == OpFlags::NONE { Ok(()) } else { self.check_features(bio.op, bio.flags) }
    }

    /// Checks that the disk, with its present settings, supports the operation and its flags.
    pub(crate) fn check_features(&self, op: Op, flags: OpFlags) -> Result<(), BlkStatus> {
        let durable = flags.intersects(OpFlags::FUA.union(OpFlags::PREFLUSH));
        if flags.contains(OpFlags::RESERVED) && (!self.st.has_reserved_tags() || durable || op == Op::Flush) {
            return Err(BlkStatus::Inval);
        }
        check_op(&self.q.limits, op, flags)?;
        if (durable || op == Op::Flush)
            && let Some(status) = self.q.flush_latch.failed()
        {
            return Err(status);
        }
        if flags.contains(OpFlags::POLLED) && self.st.map.nr_queues(HctxType::Poll) == 0 {
            return Err(BlkStatus::NotSupp);
        }
        Ok(())
    }

    /// Moves the bio in slot `index` into the block layer. False: no tag, no token, or no slot for a piece of a split
    /// is free, and the rest of the bio is unchanged. `is_new`: the bio has not been tried before.
    #[inline(always)] // One call less per bio; the work is in `queue_one`.
    pub(crate) fn queue_bio(&self, local: &mut Local, index: u32, bio: &Bio, is_new: bool, now: Instant) -> bool {
        let split =
            bio.op != Op::Flush && bio_split_sectors(&self.q.limits, bio.op, bio.sector.0, bio.nr_sectors).is_some();
        if !split {
            return self.queue_one(local, index, self.pool().slot(index as usize), bio, is_new, now);
        }
        if self.st.elevator.is_some() {
            // One by one, as in the kernel: the elevator may dispatch the first piece before the others exist.
            return self.queue_split(local, index, is_new, now);
        }
        // The pieces go to the driver together.
        local.plug.start(0);
        let queued = self.queue_split(local, index, is_new, now);
        self.close_plug(local, now);
        queued
    }

    /// Takes pieces off the front, each with a slot of its own, until the rest fits. The rest stays in the bio's slot,
    /// so an interrupted split continues where it stopped.
    #[cold]
    fn queue_split(&self, local: &mut Local, index: u32, is_new: bool, now: Instant) -> bool {
        let parent = self.pool().slot(index as usize);
        let op = parent.op();
        if is_new {
            self.trace_bio(local, EventKind::Queue, parent, now);
        }
        if parent.flags().contains(OpFlags::NOWAIT) {
            self.trace_ended_bio(local, parent, BlkStatus::Again, now);
            self.end_bio(local, BioId::new(self.id, index), BlkStatus::Again);
            return true;
        }
        while let Some(front) = bio_split_sectors(&self.q.limits, op, parent.sector.get(), parent.nr_sectors.get()) {
            let Some(piece_index) = self.take_piece(local).or_else(|| {
                // The pieces before this one hold the slots. Issue them; they may complete at once.
                self.flush_plug(local, now);
                self.take_piece(local)
            }) else {
                return false;
            };
            let piece = self.pool().slot(piece_index as usize);
            piece.copy_front(parent, front, index);
            // A token of write-back throttling goes to the next request.
            parent.move_token_to(piece);
            // Counted before the piece is queued: it may have completed when `queue_one` returns.
            parent.remaining.set(parent.remaining.get() + 1);
            self.trace_split(local, index, piece, now);
            if !self.queue_one(local, piece_index, piece, &piece.bio(), false, now) {
                parent.remaining.set(parent.remaining.get() - 1);
                piece.move_token_to(parent);
                self.trace_split_waits(local, index);
                local.free_piece(piece_index, self.nr_bios());
                return false;
            }
            if local.plug.is_due() {
                self.flush_plug(local, now);
            }
            parent.drop_front(front);
        }
        self.queue_one(local, index, parent, &parent.bio(), false, now)
    }

    fn take_piece(&self, local: &mut Local) -> Option<u32> {
        local.free_pieces.pop().or_else(|| local.free_bios.pop())
    }

    /// Queues a bio that fits into one request. `bio` is the content of its slot, which the fast path has in registers.
    #[inline(always)] // Its common caller is `queue_bio`.
    fn queue_one(&self, local: &mut Local, index: u32, slot: &BioSlot, bio: &Bio, is_new: bool, now: Instant) -> bool {
        let id = BioId::new(self.id, index);
        if self.st.sq.is_some() {
            if is_new {
                self.trace_bio(local, EventKind::Queue, slot, now);
            }
            return self.sq_queue_bio(local, id, slot, now);
        }
        let (op, flags) = (bio.op, bio.flags);
        let route = &self.routes[HctxType::of(op, flags) as usize];
        if self.may_merge(local, slot, route) && self.try_merge(local, id, slot, route, is_new, now) {
            self.wbt_cleanup(slot, now);
            return true;
        }
        if self.wbt_is_on() && !self.wbt_wait(local, slot, op, flags, now) {
            if is_new {
                self.trace_bio(local, EventKind::Queue, slot, now);
            }
            return false;
        }
        let hctx = route.hctx;
        let class = self.tag_class(op, flags);
        let new = is_new.then_some(slot);
        let Some(tag) = self.get_tag(local, route, class, new, now) else { return false };
        local.woken = None;
        let rq_id = self.st.rq_of_tag(hctx, tag);
        let rq = self.st.slab.get(rq_id);
        self.init_rq(rq, slot, bio, id, hctx, now);
        rq.driver_tag.set(if self.st.elevator.is_some() { NO_TAG } else { tag as u16 });
        self.wbt_track(slot, rq);
        if !is_new {
            rq.set_rqf(rqf::LATE);
        }
        if op == Op::Flush || flags.intersects(OpFlags::FUA.union(OpFlags::PREFLUSH)) {
            self.trace_new_rq(local, rq);
            if self.insert_flush(local, hctx, Rq::from_id(rq_id), now) {
                return true;
            }
        } else if flags.contains(OpFlags::RESERVED) {
            self.trace_new_rq(local, rq);
            rq.set_rqf(rqf::RESERVED);
            self.insert_bypass(local, hctx, Rq::from_id(rq_id), now);
            return true;
        }
        if self.direct && !local.plug.is_open() && local.plug.rqs.is_empty() {
            self.issue_one(local, hctx, rq_id, rq, now);
        } else {
            self.plug_rq(local, Rq::from_id(rq_id), rq, now);
        }
        true
    }

    /// Issues a request directly to the driver, when no plug is open and there is no elevator.
    #[inline(always)] // Part of `queue_one`.
    fn issue_one(&self, local: &mut Local, hctx: usize, id: RequestId, rq: &Request, now: Instant) {
        self.update_io_ticks(local, now, 1);
        self.note_nomerge(rq);
        rq.stamp_issue(now);
        self.issue_directly(local, hctx, &[id], true, now);
    }

    #[inline]
    fn note_nomerge(&self, rq: &Request) {
        if rq.flags().contains(OpFlags::NOMERGE) {
            rq.set_rqf(rqf::NOMERGE);
        }
    }

    #[inline]
    pub(crate) fn init_rq(&self, rq: &Request, slot: &BioSlot, bio: &Bio, id: BioId, hctx: usize, now: Instant) {
        debug_assert_eq!(rq.state.get(), RqState::Idle as u8);
        rq.op.set(bio.op as u8);
        rq.flags.set(bio.flags.bits());
        rq.prio.set(bio.prio.bits());
        rq.sector.set(bio.sector.0);
        rq.nr_sectors.set(bio.nr_sectors);
        rq.bio_head.set(id.bits());
        rq.bio_tail.set(id.bits());
        rq.nr_segments.set(bio.segments(self.q.limits.max_segment_size) as u16);
        rq.rqf.set(rqf::LIVE);
        rq.cpu.set(self.cpu.index() as u16);
        rq.hctx.set(hctx as u16);
        rq.start_ns.set(slot.submit_ns.get());
        rq.alloc_ns.set(now.as_ns());
        rq.retries.set(0);
    }

    /// Adds a request to the plug; flushes the plug first when it is full or its last request is large.
    #[inline(always)] // As `issue_one`.
    pub(crate) fn plug_rq(&self, local: &mut Local, rq: Rq, r: &Request, now: Instant) {
        let plug = &local.plug;
        if let Some(last) = plug.rqs.last() {
            let large = self.st.slab.get(last.id()).nr_sectors.get() >= BLK_PLUG_FLUSH_SECTORS;
            if plug.rqs.len() >= BLK_MAX_REQUEST_COUNT || large && self.nomerges() < 2 {
                self.flush_plug(local, now);
            }
        }
        self.note_nomerge(r);
        local.plug.nr_ios = local.plug.nr_ios.saturating_sub(1);
        local.plug.rqs.push(rq);
    }

    #[inline]
    pub(crate) fn nomerges(&self) -> u8 {
        self.q.live.nomerges.load(Ordering::Relaxed)
    }

    pub(crate) fn elv_cx(&self, now: Instant) -> ElvCx<'_> {
        ElvCx {
            rqs: &self.st.slab,
            bios: &self.q.bios,
            limits: &self.q.limits,
            nomerges: self.nomerges(),
            now,
            cpu: self.cpu,
            core: self,
        }
    }

    /// Whether a merge is possible: the last request in the plug adjoins the bio in slot `slot`, or requests are queued.
    #[inline(always)] // As `issue_one`.
    fn may_merge(&self, local: &Local, slot: &BioSlot, route: &HctxRoute) -> bool {
        let last = local.plug.rqs.last();
        last.is_some_and(|rq| merge::bio_merge_kind(self.st.slab.get(rq.id()), slot).is_some())
            || self.st.elevator.is_some()
            || !self.st.ctxs[route.ctx].rqs.is_empty()
    }

    /// Tries to merge a bio: in the plug first, then in the elevator or, without an elevator, in the submitting CPU's
    /// ctx list.
    fn try_merge(
        &self,
        local: &mut Local,
        id: BioId,
        slot: &BioSlot,
        route: &HctxRoute,
        is_new: bool,
        now: Instant,
    ) -> bool {
        if self.nomerges() == 2 || !merge::bio_is_mergeable(slot) {
            return false;
        }
        if !self.plug_merge(local, id, slot, now) {
            match &self.st.elevator {
                Some(_) => return self.elevator_merge(local, id, slot, is_new, now),
                None if !self.ctx_merge(id, slot, route, now) => return false,
                None => {}
            }
        }
        self.account_merge(slot.op());
        self.trace_merged(local, slot, is_new, now);
        true
    }

    #[inline]
    fn plug_merge(&self, local: &mut Local, id: BioId, slot: &BioSlot, now: Instant) -> bool {
        let Some(last) = local.plug.rqs.last() else { return false };
        let rq = self.st.slab.get(last.id());
        if merge::bio_merge_kind(rq, slot).is_none() {
            return false;
        }
        self.trace_plugged(local);
        self.merge_into(rq, id, slot, now)
    }

    #[inline]
    pub(crate) fn merge_into(&self, rq: &Request, id: BioId, slot: &BioSlot, now: Instant) -> bool {
        match merge::bio_merge_kind(rq, slot) {
            None => false,
            Some(MergeKind::Back) => merge::bio_attempt_back_merge(&self.elv_cx(now), rq, id),
            Some(MergeKind::Front) => merge::bio_attempt_front_merge(&self.elv_cx(now), rq, id),
        }
    }

    fn elevator_merge(&self, local: &mut Local, id: BioId, slot: &BioSlot, is_new: bool, now: Instant) -> bool {
        let elevator = self.st.elevator.as_ref().expect("caller saw an elevator");
        let BioMerge::Merged { freed } = elevator.bio_merge(&self.elv_cx(now), BioRef(id)) else { return false };
        self.account_merge(slot.op());
        self.trace_merged(local, slot, is_new, now);
        if let Some(rq) = freed {
            self.account_merge(self.st.slab.get(rq.id()).op());
            self.trace_absorbed(local, &rq, now);
            self.free_absorbed(local, rq, now);
        }
        true
    }

    #[inline]
    fn ctx_merge(&self, id: BioId, slot: &BioSlot, route: &HctxRoute, now: Instant) -> bool {
        let ctx = &self.st.ctxs[route.ctx];
        if ctx.rqs.is_empty() {
            return false;
        }
        ctx.rqs.with(|list| {
            let mut candidates = list.iter().rev().take(CTX_MERGE_DEPTH);
            candidates.any(|rq| self.merge_into(self.st.slab.get(rq.id()), id, slot, now))
        })
    }

    /// Starts the flush sequence of a request. False: the request needs none, and the caller queues it normally.
    #[cold]
    pub(crate) fn insert_flush(&self, local: &mut Local, hctx: usize, rq: Rq, now: Instant) -> bool {
        let r = self.st.slab.get(rq.id());
        let limits = &self.q.limits;
        let steps = flush::policy(limits, r.op(), r.flags(), r.nr_sectors());
        let mut strip = OpFlags::PREFLUSH;
        if !limits.fua {
            strip = strip.union(OpFlags::FUA);
        }
        r.flags.set(r.flags().without(strip).bits());
        r.set_rqf(rqf::NOMERGE);
        if steps == flush::DATA {
            return false;
        }
        r.insert_ns.set(now.as_ns());
        r.dispatch_ns.set(now.as_ns());
        r.issue_ns.set(now.as_ns());
        self.hctx_counters(hctx).queued.add(1);
        r.set_rqf(rqf::FLUSH_SEQ);
        r.flush_seq.set(!steps & (flush::PREFLUSH | flush::DATA | flush::POSTFLUSH));
        self.flush_step_done(local, hctx, rq, 0, BlkStatus::Ok, now);
        self.kick_flush(local, hctx, now);
        true
    }
}
