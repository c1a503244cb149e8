// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Joining a bio to a request, and a request to its neighbour: when it is allowed and what it does to the fields.
//!
//! Guarantees: a merged request stays inside the disk's limits, its bios are in sector order, and its start time is
//! that of its earliest part. Bios of different submitters may share a request. Needs from callers: they own the
//! request(s) and the bio, and update their own indices (sector tree, merge hash, FIFO) after the merge.
//!
//! Not here: *finding* a candidate (plug, ctx list and elevators each do it differently), and joining discards of
//! separate ranges into one request (the kernel's `max_discard_segments` above 1); discards of adjoining ranges do
//! merge. Two rules are stricter than the kernel's: polled and unpolled I/O do not share a request, because they
//! complete on different hardware queues; and data segments are counted per bio, never coalesced across bios, as in the
//! kernel's fast path.
//!
//! Source: Linux 6.19 block/blk-merge.c.

use crate::bio::{BioId, BioSlot, Op, OpFlags};
use crate::elevator::interface::ElvCx;
use crate::limits::Limits;
use crate::request::{Request, rqf};

/// On which side of a request a bio continues it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MergeKind {
    /// The bio starts where the request ends.
    Back,
    /// The bio ends where the request starts.
    Front,
}

/// Flags that forbid merging (`REQ_NOMERGE_FLAGS`). Reserved I/O has its own tags so that it makes progress when no
/// other I/O does. Merged into another request, it would wait as long as that request.
const NOMERGE_FLAGS: OpFlags = OpFlags::NOMERGE.union(OpFlags::PREFLUSH).union(OpFlags::FUA).union(OpFlags::RESERVED);
/// Marks of a request that is never merged (`RQF_NOMERGE_FLAGS`).
const NOMERGE_RQF: u16 = rqf::NOMERGE | rqf::FLUSH_SEQ | rqf::FLUSH_RQ;

/// Whether this operation can be merged at all: flushes have no address, and the kernel keeps write zeroes apart.
#[inline]
const fn op_is_mergeable(op: Op) -> bool {
    matches!(op, Op::Read | Op::Write | Op::Discard)
}

/// Whether anything may still be merged into (or with) `rq`.
#[inline]
pub(crate) fn rq_is_mergeable(rq: &Request) -> bool {
    op_is_mergeable(rq.op()) && !rq.flags().intersects(NOMERGE_FLAGS) && !rq.has_rqf(NOMERGE_RQF)
}

/// Whether `bio` may be merged into any request; a cheap check before a search.
#[inline]
pub(crate) fn bio_is_mergeable(bio: &BioSlot) -> bool {
    op_is_mergeable(bio.op()) && !bio.flags().intersects(NOMERGE_FLAGS)
}

/// Returns on which side `bio` adjoins `rq`, if they are of the same kind. Does not check sizes: the merge attempt
/// does.
#[inline]
pub(crate) fn bio_merge_kind(rq: &Request, bio: &BioSlot) -> Option<MergeKind> {
    let kind = if rq.end_sector().0 == bio.sector.get() {
        MergeKind::Back
    } else if bio.end_sector() == rq.sector.get() {
        MergeKind::Front
    } else {
        return None;
    };
    bio_is_compatible(rq, bio).then_some(kind)
}

/// Everything about [`bio_merge_kind`] except the position.
fn bio_is_compatible(rq: &Request, bio: &BioSlot) -> bool {
    rq.op.get() == bio.op.get()
        && rq.prio.get() == bio.prio.get()
        && same_polling(rq.flags(), bio.flags())
        && rq_is_mergeable(rq)
        && bio_is_mergeable(bio)
}

#[inline]
fn same_polling(a: OpFlags, b: OpFlags) -> bool {
    a.contains(OpFlags::POLLED) == b.contains(OpFlags::POLLED)
}

/// Maximum number of sectors of a request of kind `op` (`max_sectors`, or the operation's own limit).
#[inline]
pub(crate) fn max_sectors_of(limits: &Limits, op: Op) -> u32 {
    match op {
        Op::Read | Op::Write | Op::Flush => limits.max_sectors,
        Op::Discard => limits.max_discard_sectors,
        Op::WriteZeroes => limits.max_write_zeroes_sectors,
    }
}

/// Sectors from `sector` to the next chunk boundary; `u32::MAX` without one.
#[inline]
pub(crate) fn sectors_to_boundary(limits: &Limits, sector: u64) -> u32 {
    match limits.chunk_sectors {
        0 => u32::MAX,
        chunk => chunk - (sector & u64::from(chunk - 1)) as u32,
    }
}

/// Maximum number of sectors of a request that starts at `sector`. Discards may cross chunk boundaries, as in the kernel.
#[inline]
fn max_sectors_at(limits: &Limits, op: Op, sector: u64) -> u32 {
    let max = max_sectors_of(limits, op);
    if op == Op::Discard { max } else { max.min(sectors_to_boundary(limits, sector)) }
}

/// Whether `rq` would be within limits if it grew by `sectors` and `segments` and started at `start`.
#[inline]
fn fits(limits: &Limits, rq: &Request, start: u64, sectors: u32, segments: u32) -> bool {
    let total = u64::from(rq.nr_sectors()) + u64::from(sectors);
    total <= u64::from(max_sectors_at(limits, rq.op(), start))
        && u32::from(rq.nr_segments()) + segments <= u32::from(limits.max_segments)
}

/// Appends a bio for which [`bio_merge_kind`] returned `Back`. False: a limit forbids it; the request is then never
/// offered for a merge again (`NOMERGE`), because it cannot become smaller.
pub(crate) fn bio_attempt_back_merge(cx: &ElvCx<'_>, rq: &Request, bio_id: BioId) -> bool {
    let bio = cx.bios.bio(bio_id);
    let segments = bio.segments(cx.limits.max_segment_size);
    if !fits(cx.limits, rq, rq.sector.get(), bio.nr_sectors.get(), segments) {
        rq.set_rqf(rqf::NOMERGE);
        return false;
    }
    bio.next.set(BioId::NONE.bits());
    bio.front_merged.set(0);
    cx.bios.bio(rq.bio_tail()).next.set(bio_id.bits());
    rq.bio_tail.set(bio_id.bits());
    grow(rq, bio, segments);
    true
}

/// Prepends a bio for which [`bio_merge_kind`] returned `Front`; otherwise as [`bio_attempt_back_merge`]. The request's
/// first sector changes: a list sorted by it has to put the request in its new place.
pub(crate) fn bio_attempt_front_merge(cx: &ElvCx<'_>, rq: &Request, bio_id: BioId) -> bool {
    let bio = cx.bios.bio(bio_id);
    let segments = bio.segments(cx.limits.max_segment_size);
    if !fits(cx.limits, rq, bio.sector.get(), bio.nr_sectors.get(), segments) {
        rq.set_rqf(rqf::NOMERGE);
        return false;
    }
    bio.next.set(rq.bio_head.get());
    bio.front_merged.set(1);
    rq.bio_head.set(bio_id.bits());
    rq.sector.set(bio.sector.get());
    grow(rq, bio, segments);
    true
}

/// Adds the sizes of the merged bio to the request.
#[inline]
fn grow(rq: &Request, bio: &BioSlot, segments: u32) {
    rq.nr_sectors.set(rq.nr_sectors.get() + bio.nr_sectors.get());
    rq.nr_segments.set(rq.nr_segments.get() + segments as u16);
    // Submitters' clock reads may be a little out of order; the request started when its first part did.
    rq.start_ns.set(rq.start_ns.get().min(bio.submit_ns.get()));
}

/// Joins `next` to the end of `rq` if `next` starts where `rq` ends, is of its kind, and the sum is within limits. On
/// success `next` has no bios any more and its owner frees it. A neighbour that does not fit leaves `rq` open for
/// smaller bios, unlike a bio that does not fit.
pub(crate) fn attempt_merge_requests(cx: &ElvCx<'_>, rq: &Request, next: &Request) -> bool {
    if rq.end_sector() != next.sector()
        || rq.op.get() != next.op.get()
        || rq.prio.get() != next.prio.get()
        || !same_polling(rq.flags(), next.flags())
        || !rq_is_mergeable(rq)
        || !rq_is_mergeable(next)
        || !fits(cx.limits, rq, rq.sector.get(), next.nr_sectors(), u32::from(next.nr_segments()))
    {
        return false;
    }
    assert!(next.bio_head() != BioId::NONE, "a mergeable request has bios");
    cx.bios.bio(rq.bio_tail()).next.set(next.bio_head.get());
    rq.bio_tail.set(next.bio_tail.get());
    rq.nr_sectors.set(rq.nr_sectors.get() + next.nr_sectors.get());
    rq.nr_segments.set(rq.nr_segments.get() + next.nr_segments.get());
    if next.start_ns.get() < rq.start_ns.get() {
        // Both times must come from the same request: their difference is reported as the wait for a tag.
        rq.start_ns.set(next.start_ns.get());
        rq.alloc_ns.set(next.alloc_ns.get());
    }
    next.bio_head.set(BioId::NONE.bits());
    next.bio_tail.set(BioId::NONE.bits());
    next.nr_segments.set(0);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bio::{Bio, DataRef, IoPrio, IoPrioClass};
    use crate::elevator::testbed::TestBed;
    use crate::id::Sector;
    use crate::request::Rq;
    use crate::time::Instant;

    const T0: Instant = Instant::from_ns(1000);
    const T1: Instant = Instant::from_ns(2000);

    fn bed(limits: Limits) -> TestBed {
        TestBed::new(8, 32, limits)
    }

    fn write(sector: u64, nr: u32) -> Bio {
        Bio::write(Sector(sector), nr, DataRef::new(0, sector << 9)).with_user_data(sector)
    }

    fn request(bed: &mut TestBed, bio: Bio, now: Instant) -> Rq {
        let bio = bed.bio(bio, now);
        bed.request(bio, now)
    }

    /// Offers `bio` to `rq` as an elevator does.
    fn offer(bed: &mut TestBed, rq: &Rq, bio: Bio, now: Instant) -> Option<(MergeKind, bool)> {
        let id = bed.bio(bio, now).0;
        let cx = bed.cx(now);
        let rq = bed.get(rq);
        let kind = bio_merge_kind(rq, cx.bios.bio(id))?;
        let done = match kind {
            MergeKind::Back => bio_attempt_back_merge(&cx, rq, id),
            MergeKind::Front => bio_attempt_front_merge(&cx, rq, id),
        };
        Some((kind, done))
    }

    #[test]
    fn merges_keep_sector_order_and_the_earliest_start() {
        let mut bed = bed(Limits::default());
        let rq = request(&mut bed, write(100, 8), T1);
        assert_eq!(offer(&mut bed, &rq, write(108, 4), T1), Some((MergeKind::Back, true)));
        assert_eq!(offer(&mut bed, &rq, write(92, 8), T0), Some((MergeKind::Front, true)));
        let r = bed.get(&rq);
        assert_eq!((r.sector().0, r.nr_sectors(), r.nr_segments(), r.start_time()), (92, 20, 3, T0));
        assert_eq!(bed.free(rq), [92, 100, 108]);
    }

    #[test]
    fn only_like_is_merged_with_like() {
        let mut bed = bed(Limits::default());
        let rq = request(&mut bed, write(100, 8), T0);
        let rt = IoPrio::new(IoPrioClass::Rt, 0);
        let unlike = [
            Bio::read(Sector(108), 8, DataRef::NONE),
            Bio { prio: rt, ..write(108, 8) },
            write(108, 8).with_flags(OpFlags::NOMERGE),
            write(108, 8).with_flags(OpFlags::PREFLUSH),
            write(108, 8).with_flags(OpFlags::FUA),
            write(108, 8).with_flags(OpFlags::POLLED),
            Bio { op: Op::WriteZeroes, ..write(108, 8) },
            write(109, 8),
            write(96, 8),
        ];
        for bio in unlike {
            assert_eq!(offer(&mut bed, &rq, bio, T0), None, "{bio:?}");
        }
        // A synchronous write may join an asynchronous one.
        let sync = write(108, 8).with_flags(OpFlags::SYNC);
        assert_eq!(offer(&mut bed, &rq, sync, T0), Some((MergeKind::Back, true)));
        bed.get(&rq).set_rqf(rqf::FLUSH_SEQ);
        assert_eq!(offer(&mut bed, &rq, write(116, 8), T0), None);
        let zeroes = request(&mut bed, Bio { op: Op::WriteZeroes, ..write(0, 8) }, T0);
        assert_eq!(offer(&mut bed, &zeroes, Bio { op: Op::WriteZeroes, ..write(8, 8) }, T0), None);
        let _ = (bed.free(rq), bed.free(zeroes));
    }

    #[test]
    fn a_bio_that_does_not_fit_closes_the_request() {
        let cases = [
            (Limits { max_sectors: 16, ..Limits::default() }, write(108, 9)),
            (Limits { max_sectors: 16, ..Limits::default() }, write(91, 9)),
            (Limits { max_segments: 1, ..Limits::default() }, write(108, 8)),
            (Limits { max_segments: 2, max_segment_size: 4096, ..Limits::default() }, write(84, 16)),
            (Limits { chunk_sectors: 4, ..Limits::default() }, write(108, 8)),
        ];
        for (limits, bio) in cases {
            let mut bed = bed(limits);
            let rq = request(&mut bed, write(100, 8), T0);
            let (_, merged) = offer(&mut bed, &rq, bio, T0).expect("adjoins");
            assert!(!merged, "{limits:?}");
            let r = bed.get(&rq);
            assert_eq!((r.sector().0, r.nr_sectors(), r.is_mergeable()), (100, 8, false));
            assert_eq!(bed.free(rq), [100], "the refused bio is not on the chain");
        }
    }

    #[test]
    fn the_chunk_is_that_of_the_new_first_sector() {
        let mut bed = bed(Limits { chunk_sectors: 128, ..Limits::default() });
        let rq = request(&mut bed, write(128, 8), T0);
        assert_eq!(offer(&mut bed, &rq, write(120, 8), T0), Some((MergeKind::Front, false)));
        let rq2 = request(&mut bed, write(8, 8), T0);
        assert_eq!(offer(&mut bed, &rq2, write(0, 8), T0), Some((MergeKind::Front, true)));
        let _ = (bed.free(rq), bed.free(rq2));
    }

    #[test]
    fn discards_merge_up_to_their_limit_and_across_chunks() {
        let limits = Limits { max_discard_sectors: 1 << 20, chunk_sectors: 64, ..Limits::default() };
        let mut bed = bed(limits);
        let discard = |s, n| Bio { op: Op::Discard, data: DataRef::NONE, ..write(s, n) };
        let rq = request(&mut bed, discard(0, 1 << 19), T0);
        assert_eq!(offer(&mut bed, &rq, discard(1 << 19, 1 << 19), T0), Some((MergeKind::Back, true)));
        assert_eq!(bed.get(&rq).nr_segments(), 0);
        assert_eq!(offer(&mut bed, &rq, discard(1 << 20, 8), T0), Some((MergeKind::Back, false)));
        let _ = bed.free(rq);
    }

    #[test]
    fn neighbours_join_and_a_misfit_leaves_both_open() {
        let mut bed = bed(Limits { max_sectors: 24, ..Limits::default() });
        let a = request(&mut bed, write(100, 8), T1);
        let b = request(&mut bed, write(108, 8), T0);
        assert!(attempt_merge_requests(&bed.cx(T1), bed.get(&a), bed.get(&b)));
        assert_eq!(bed.get(&a).start_time(), T0);
        assert_eq!((bed.get(&a).nr_sectors(), bed.get(&a).nr_segments()), (16, 2));
        assert_eq!(bed.free(b), [0u64; 0], "the joined request has no bios left");
        let c = request(&mut bed, write(116, 16), T1);
        assert!(!attempt_merge_requests(&bed.cx(T1), bed.get(&a), bed.get(&c)));
        assert!(!attempt_merge_requests(&bed.cx(T1), bed.get(&c), bed.get(&a)), "order matters");
        assert!(bed.get(&a).is_mergeable() && bed.get(&c).is_mergeable());
        assert_eq!(bed.free(a), [100, 108]);
        assert_eq!(bed.free(c), [116]);
    }
}
