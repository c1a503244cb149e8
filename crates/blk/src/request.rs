// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A request: the unit of dispatch, made of one bio or several merged bios; and the slab that has all requests of a
//! disk.
//!
//! The slab is allocated when tags are; a request is found by its number ([`RequestId`]). The handle [`Rq`] is the
//! right to access a request. It is neither `Clone` nor `Copy`, so a request is on one list, in one elevator or at the
//! driver, never in two places.

use crate::bio::{BioId, BioPools, DataRef, IoPrio, Op, OpFlags};
use crate::id::{CpuId, HctxId, Sector, SubmitterId};
use crate::relaxed::{FieldU8, FieldU16, FieldU32, FieldU64};
use crate::time::Instant;

/// Number of a request in its disk's slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(u32);

impl RequestId {
    /// Returns the number as an index into tables with one entry per request.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    #[inline]
    pub(crate) const fn new(n: u32) -> RequestId {
        RequestId(n)
    }
}

/// The right to access one request. It is made when the request's tag is allocated, and when a list that stores numbers
/// returns the request. It ends when the driver accepts the request or the tag is freed.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a request that is dropped is never completed and its tag never freed"]
pub struct Rq(RequestId);

impl Rq {
    /// Returns the number of the request.
    #[inline]
    pub fn id(&self) -> RequestId {
        self.0
    }

    /// Makes the handle for `id`. The caller must hold the only right to `id`: it is the tag allocator, or an elevator
    /// that returns a request.
    #[inline]
    pub(crate) fn from_id(id: RequestId) -> Rq {
        Rq(id)
    }
}

/// Whether the driver owns the request. Asserted when a request is filled (with debug assertions), when the driver
/// accepts it, and when the driver returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RqState {
    Idle = 0,
    InFlight = 1,
}

/// Marks on a request (`RQF_*`).
pub(crate) mod rqf {
    /// Part of a flush sequence: its completion goes to the flush machine first.
    pub(crate) const FLUSH_SEQ: u16 = 1 << 0;
    /// May not be merged any more.
    pub(crate) const NOMERGE: u16 = 1 << 1;
    /// Went through the elevator, whose `completed` must be called.
    pub(crate) const ELV: u16 = 1 << 2;
    /// Came from the reserved tags.
    pub(crate) const RESERVED: u16 = 1 << 3;
    /// The flush machine's own flush command, which has no tag of its own.
    pub(crate) const FLUSH_RQ: u16 = 1 << 4;
    /// The flush command uses its driver tag until that command completes.
    pub(crate) const TAG_LENT: u16 = 1 << 5;
    /// Single-queue mode: counted in the list of synchronous requests.
    pub(crate) const RL_SYNC: u16 = 1 << 6;
    /// Allocated and not completed. Valid only if several hctxs or disks share tags.
    pub(crate) const LIVE: u16 = 1 << 7;
    /// Its bio was queued before, because it is a piece of a split bio or had to wait.
    pub(crate) const LATE: u16 = 1 << 8;
    /// The trace has the first event of this request.
    pub(crate) const TOLD: u16 = 1 << 9;
    /// Has a token of write-back throttling, for writes.
    pub(crate) const WBT_WRITE: u16 = 1 << 10;
    /// As `WBT_WRITE`, for discards.
    pub(crate) const WBT_DISCARD: u16 = 1 << 11;
    /// The driver has given it back to be issued again. `first_issue_ns` is the time of the first try, on any path.
    pub(crate) const TRIED: u16 = 1 << 12;
}

/// No driver tag.
pub(crate) const NO_TAG: u16 = u16::MAX;

/// A request's fields. Two cache lines: the first is all that submission, merging and dispatch touch.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Request {
    pub(crate) sector: FieldU64,
    pub(crate) nr_sectors: FieldU32,
    pub(crate) bio_head: FieldU32,
    pub(crate) bio_tail: FieldU32,
    pub(crate) nr_segments: FieldU16,
    pub(crate) flags: FieldU16,
    pub(crate) prio: FieldU16,
    pub(crate) rqf: FieldU16,
    pub(crate) driver_tag: FieldU16,
    pub(crate) cpu: FieldU16,
    pub(crate) hctx: FieldU16,
    pub(crate) op: FieldU8,
    pub(crate) state: FieldU8,
    /// How often the driver gave it back for a retry, saturating.
    pub(crate) retries: FieldU8,
    /// Steps of the flush sequence that are done (see the flush module).
    pub(crate) flush_seq: FieldU8,
    /// When the first bio was submitted (a merge keeps the earlier time).
    pub(crate) start_ns: FieldU64,
    /// When the request was allocated: `alloc - start` is the wait for a tag.
    pub(crate) alloc_ns: FieldU64,
    /// When it was passed to the elevator, the ctx list or the driver: `insert - alloc` is its time in plug and ctx.
    pub(crate) insert_ns: FieldU64,
    /// When it left the elevator or list: `dispatch - insert` is the elevator's time.
    pub(crate) dispatch_ns: FieldU64,
    /// When the driver accepted it: `issue - dispatch` is the wait for a driver tag, budget and the driver.
    pub(crate) issue_ns: FieldU64,
    /// With [`rqf::TRIED`]: `issue_ns` of the first try.
    pub(crate) first_issue_ns: FieldU64,
    /// The deadline after the driver has asked for more time. Only `path::timeout` uses this field and the next.
    pub(crate) deadline_ns: FieldU64,
    /// `issue_ns` of the request when `Driver::timeout` returned that it has completed.
    pub(crate) ended_by_timeout_ns: FieldU64,
    /// While it is on the requeue list of its hctx: when it may be issued again.
    pub(crate) requeue_at_ns: FieldU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Request>() == 128);

impl Request {
    /// Returns the operation.
    #[inline]
    pub fn op(&self) -> Op {
        Op::from_u8(self.op.get())
    }

    /// Returns the flags of the operation.
    #[inline]
    pub fn flags(&self) -> OpFlags {
        OpFlags::from_bits(self.flags.get())
    }

    /// First sector.
    #[inline]
    pub fn sector(&self) -> Sector {
        Sector(self.sector.get())
    }

    /// Length in sectors.
    #[inline]
    pub fn nr_sectors(&self) -> u32 {
        self.nr_sectors.get()
    }

    /// Returns the first sector after the request.
    #[inline]
    pub fn end_sector(&self) -> Sector {
        Sector(self.sector.get() + u64::from(self.nr_sectors.get()))
    }

    /// Priority.
    #[inline]
    pub fn prio(&self) -> IoPrio {
        IoPrio::from_bits(self.prio.get())
    }

    /// The CPU that submitted it.
    #[inline]
    pub fn cpu(&self) -> CpuId {
        CpuId::new(u32::from(self.cpu.get()))
    }

    /// Returns the hardware queue of the request.
    #[inline]
    pub fn hctx(&self) -> HctxId {
        HctxId::new(u32::from(self.hctx.get()))
    }

    /// The submitter of its first bio.
    #[inline]
    pub fn submitter(&self) -> SubmitterId {
        SubmitterId::new(self.bio_head().submitter() as u32)
    }

    /// Number of data segments.
    #[inline]
    pub fn nr_segments(&self) -> u16 {
        self.nr_segments.get()
    }

    /// When its first bio was submitted.
    #[inline]
    pub fn start_time(&self) -> Instant {
        Instant::from_ns(self.start_ns.get())
    }

    /// Whether a neighbour may still be merged into the request.
    #[inline]
    pub fn is_mergeable(&self) -> bool {
        self.rqf.get() & rqf::NOMERGE == 0
    }

    /// Sets the times of a request that goes from the submitter to the driver at once, without a list or elevator.
    #[inline]
    pub(crate) fn stamp_issue(&self, now: Instant) {
        self.insert_ns.set(now.as_ns());
        self.dispatch_ns.set(now.as_ns());
        self.issue_ns.set(now.as_ns());
    }

    #[inline]
    pub(crate) fn has_rqf(&self, bit: u16) -> bool {
        self.rqf.get() & bit != 0
    }

    #[inline]
    pub(crate) fn set_rqf(&self, bit: u16) {
        self.rqf.set(self.rqf.get() | bit);
    }

    #[inline]
    pub(crate) fn clear_rqf(&self, bit: u16) {
        self.rqf.set(self.rqf.get() & !bit);
    }

    #[inline]
    pub(crate) fn bio_head(&self) -> BioId {
        BioId::from_bits(self.bio_head.get())
    }

    #[inline]
    pub(crate) fn bio_tail(&self) -> BioId {
        BioId::from_bits(self.bio_tail.get())
    }
}

/// All requests of a disk, allocated with the tags.
#[derive(Debug)]
pub struct RequestSlab {
    requests: Box<[Request]>,
}

impl RequestSlab {
    pub(crate) fn new(nr_requests: usize) -> RequestSlab {
        RequestSlab { requests: (0..nr_requests).map(|_| Request::default()).collect() }
    }

    /// Number of requests: the bound of [`RequestId::index`].
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether the slab has no request at all.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Returns the request with this number.
    #[inline]
    pub fn get(&self, id: RequestId) -> &Request {
        &self.requests[id.index()]
    }
}

/// One contiguous piece of a request's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Start of the segment.
    pub data: DataRef,
    /// Its length in bytes.
    pub len_bytes: u32,
}

/// Iterator over a request's data segments in sector order; one per bio of the chain.
pub struct Segments<'a> {
    pub(crate) bios: &'a BioPools,
    pub(crate) next: BioId,
}

impl Iterator for Segments<'_> {
    type Item = Segment;

    #[inline]
    fn next(&mut self) -> Option<Segment> {
        if self.next == BioId::NONE {
            return None;
        }
        let bio = self.bios.bio(self.next);
        self.next = BioId::from_bits(bio.next.get());
        let margins = bio.margins();
        let len_bytes = (bio.nr_sectors.get() << 9) - margins.head() - margins.tail();
        Some(Segment { data: DataRef::from_bits(bio.data.get()), len_bytes })
    }
}
