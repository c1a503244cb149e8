// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A place to run an elevator without the rest of the block layer: requests, bios and limits, and nothing else.
//!
//! Unit tests of elevators, replays of recorded decisions and benches use it. It makes requests from bios, gives them
//! out as the [`Rq`]s an elevator takes, and takes them back. It does not split, does not limit tags and does not time
//! anything. There is no driver, so no data is transferred.

use super::interface::{BioRef, ElvCx, HctxRunner};
use crate::bio::{Bio, BioId, BioPools, MAX_BIOS_PER_SUBMITTER};
use crate::id::{CpuId, HctxId, SubmitterId};
use crate::limits::Limits;
use crate::request::{NO_TAG, Request, RequestId, RequestSlab, Rq, RqState};
use crate::time::Instant;
use core::sync::atomic::{AtomicU64, Ordering};

/// Requests and bios of one imaginary disk.
pub struct TestBed {
    rqs: RequestSlab,
    bios: BioPools,
    limits: Limits,
    nomerges: u8,
    free_rqs: Vec<RequestId>,
    /// Per submitter.
    free_bios: Vec<Vec<u32>>,
    runs: Runs,
}

/// Hardware queues that the elevator asked to have run: one bit each.
#[derive(Default)]
struct Runs(AtomicU64);

impl HctxRunner for Runs {
    fn run_soon(&self, hctx: HctxId) {
        assert!(hctx.index() < 64, "a test bed has 64 hardware queues at most");
        self.0.fetch_or(1 << hctx.index(), Ordering::Relaxed);
    }
}

impl TestBed {
    /// `nr_requests` requests, `nr_bios` bios, under `limits`. Panics when there are more bios than a submitter may
    /// have.
    pub fn new(nr_requests: u32, nr_bios: u32, limits: Limits) -> TestBed {
        TestBed::with_submitters(1, nr_requests, nr_bios, limits)
    }

    /// As [`TestBed::new`], with several submitters of `nr_bios` bios each. Panics also when there are more submitters
    /// than a disk may have.
    pub fn with_submitters(nr_submitters: u32, nr_requests: u32, nr_bios: u32, limits: Limits) -> TestBed {
        assert!(nr_bios <= MAX_BIOS_PER_SUBMITTER);
        let bios = BioPools::new(nr_bios);
        for i in 0..nr_submitters {
            bios.pool_or_init(SubmitterId::new(i));
        }
        TestBed {
            rqs: RequestSlab::new(nr_requests as usize),
            bios,
            limits,
            nomerges: 0,
            free_rqs: (0..nr_requests).rev().map(RequestId::new).collect(),
            free_bios: (0..nr_submitters).map(|_| (0..nr_bios).rev().collect()).collect(),
            runs: Runs::default(),
        }
    }

    /// Sets `nomerges`, as in sysfs: 0, 1 or 2.
    pub fn with_nomerges(mut self, nomerges: u8) -> TestBed {
        self.nomerges = nomerges;
        self
    }

    /// Sets a submitter's weight as [`Submitter::set_weight`](crate::submitter::Submitter::set_weight) does; 0 = none.
    pub fn set_weight(&mut self, submitter: u32, weight: u16) {
        self.bios.set_weight(SubmitterId::new(submitter), weight);
    }

    /// Returns the context of an elevator call at `now` on CPU 0.
    #[inline]
    pub fn cx(&self, now: Instant) -> ElvCx<'_> {
        self.cx_on(CpuId::new(0), now)
    }

    /// Returns the context of an elevator call at `now` on `cpu`.
    #[inline]
    pub fn cx_on(&self, cpu: CpuId, now: Instant) -> ElvCx<'_> {
        let TestBed { rqs, bios, limits, nomerges, runs, .. } = self;
        ElvCx { rqs, bios, limits, nomerges: *nomerges, now, cpu, core: runs }
    }

    /// Takes a hardware queue that the elevator asked to have run, the lowest number first; `None` if there is none.
    pub fn take_run(&self) -> Option<HctxId> {
        let runs = self.runs.0.load(Ordering::Relaxed);
        let first = (runs != 0).then(|| runs.trailing_zeros())?;
        self.runs.0.fetch_and(!(1 << first), Ordering::Relaxed);
        Some(HctxId::new(first))
    }

    /// The fields of a request.
    #[inline]
    pub fn get(&self, rq: &Rq) -> &Request {
        self.rqs.get(rq.id())
    }

    /// Puts a bio into a slot. Panics when none is free.
    pub fn bio(&mut self, bio: Bio, now: Instant) -> BioRef {
        self.bio_of(0, bio, now)
    }

    /// Puts a bio into a slot of a submitter. Panics when none is free.
    pub fn bio_of(&mut self, submitter: u32, bio: Bio, now: Instant) -> BioRef {
        let index = self.free_bios[submitter as usize].pop().expect("the test bed has a free bio");
        let id = BioId::new(SubmitterId::new(submitter), index);
        self.bios.bio(id).fill(&bio, index, now);
        BioRef(id)
    }

    /// Makes a request of a bio, submitted on CPU 0 for hardware queue 0. Panics when none is free.
    pub fn request(&mut self, bio: BioRef, now: Instant) -> Rq {
        self.request_on(CpuId::new(0), HctxId::new(0), bio, now)
    }

    /// Records that a request is issued to the driver at `now`, for elevators that time the device.
    #[inline]
    pub fn issue(&self, rq: &Rq, now: Instant) {
        self.get(rq).issue_ns.set(now.as_ns());
    }

    /// Makes a request of a bio, submitted on `cpu` for `hctx`. Panics when none is free.
    pub fn request_on(&mut self, cpu: CpuId, hctx: HctxId, bio: BioRef, now: Instant) -> Rq {
        let id = self.free_rqs.pop().expect("the test bed has a free request");
        let (rq, slot) = (self.rqs.get(id), self.bios.bio(bio.0));
        rq.sector.set(slot.sector.get());
        rq.nr_sectors.set(slot.nr_sectors.get());
        rq.bio_head.set(bio.0.bits());
        rq.bio_tail.set(bio.0.bits());
        rq.nr_segments.set(slot.segments(self.limits.max_segment_size) as u16);
        rq.flags.set(slot.flags.get());
        rq.prio.set(slot.prio.get());
        rq.rqf.set(0);
        rq.driver_tag.set(NO_TAG);
        rq.cpu.set(cpu.index() as u16);
        rq.hctx.set(hctx.index() as u16);
        rq.op.set(slot.op.get());
        rq.state.set(RqState::Idle as u8);
        rq.start_ns.set(slot.submit_ns.get());
        rq.alloc_ns.set(now.as_ns());
        rq.insert_ns.set(now.as_ns());
        Rq::from_id(id)
    }

    /// Takes a request and its bios back; returns the bios' `user_data` in sector order.
    pub fn free(&mut self, rq: Rq) -> Vec<u64> {
        let mut user_data = Vec::new();
        self.free_with(rq, |u| user_data.push(u));
        user_data
    }

    /// As [`TestBed::free`], but passes each bio's `user_data` to `each`.
    pub fn free_with(&mut self, rq: Rq, mut each: impl FnMut(u64)) {
        let mut next = self.rqs.get(rq.id()).bio_head();
        while next != BioId::NONE {
            let slot = self.bios.bio(next);
            each(slot.user_data.get());
            self.free_bios[next.submitter()].push(next.index() as u32);
            next = BioId::from_bits(slot.next.get());
        }
        self.free_rqs.push(rq.id());
    }

    /// Takes back a request that was joined to another, which has its bios now.
    #[cfg(test)]
    pub(crate) fn free_absorbed(&mut self, rq: Rq) {
        self.free_rqs.push(rq.id());
    }

    /// Takes back a bio that was neither merged nor made a request.
    #[cfg(test)]
    pub(crate) fn free_bio(&mut self, bio: BioRef) {
        self.free_bios[bio.0.submitter()].push(bio.0.index() as u32);
    }
}
