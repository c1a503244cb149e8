// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What tests of elevators share: an elevator with a clock, and a random workload for it.

use super::interface::{BioMerge, Elevator};
use super::testbed::TestBed;
use crate::bio::Bio;
use crate::id::HctxId;
use crate::request::Rq;
use crate::time::{Duration, Instant};
use sim::rng::Rng;
use std::collections::BTreeSet;

const HCTX: HctxId = HctxId::new(0);

/// An elevator on a test bed of one hardware queue, and a clock. Tests of an elevator add what is its own.
pub(crate) struct Fixture<E> {
    pub(crate) bed: TestBed,
    pub(crate) e: E,
    pub(crate) now: Instant,
}

impl<E: Elevator> Fixture<E> {
    /// Starts at a time that has room for earlier ones.
    pub(crate) fn on(bed: TestBed, e: E) -> Fixture<E> {
        Fixture { bed, e, now: Instant::from_ns(1_000_000_000_000) }
    }

    pub(crate) fn with(self, tunables: &[(&str, u64)]) -> Fixture<E> {
        for (name, value) in tunables {
            self.e.set_tunable(name, *value).expect("test tunables are valid");
        }
        self
    }

    pub(crate) fn pass_ms(&mut self, ms: u64) {
        self.now = self.now + Duration::from_ms(ms);
    }

    /// Inserts bios of a submitter as one batch. Returns the requests that were joined to others.
    pub(crate) fn insert_of(&mut self, submitter: u32, bios: &[Bio]) -> Vec<Rq> {
        let mut rqs = Vec::new();
        for bio in bios {
            let bio = self.bed.bio_of(submitter, *bio, self.now);
            rqs.push(self.bed.request(bio, self.now));
        }
        let mut freed = Vec::new();
        self.e.insert(&self.bed.cx(self.now), &mut rqs, false, &mut freed);
        assert!(rqs.is_empty());
        freed
    }

    /// Requeues requests as the driver does.
    pub(crate) fn put_back(&mut self, mut rqs: Vec<Rq>) {
        rqs.iter().for_each(|rq| self.e.requeued(&self.bed.cx(self.now), rq));
        self.e.insert(&self.bed.cx(self.now), &mut rqs, true, &mut Vec::new());
    }

    /// Offers a bio of a submitter for merging.
    pub(crate) fn offer_of(&mut self, submitter: u32, bio: Bio) -> BioMerge {
        let bio = self.bed.bio_of(submitter, bio, self.now);
        let merge = self.e.bio_merge(&self.bed.cx(self.now), bio);
        if matches!(merge, BioMerge::No) {
            self.bed.free_bio(bio);
        }
        merge
    }

    pub(crate) fn dispatch(&mut self, max: usize) -> Vec<Rq> {
        let mut out = Vec::new();
        self.e.dispatch(&self.bed.cx(self.now), HCTX, max, &mut out);
        out
    }

    /// Completes a request. Returns the user data of its bios.
    pub(crate) fn complete(&mut self, rq: Rq) -> Vec<u64> {
        self.e.completed(&self.bed.cx(self.now), &rq);
        self.bed.free(rq)
    }

    pub(crate) fn complete_all(&mut self, rqs: impl IntoIterator<Item = Rq>) {
        for rq in rqs {
            self.complete(rq);
        }
    }

    pub(crate) fn sectors(&self, rqs: &[Rq]) -> Vec<u64> {
        rqs.iter().map(|rq| self.bed.get(rq).sector().0).collect()
    }
}

/// A random workload: bios that `draw` makes, in plugs, with requeues, and with completions in any order.
pub(crate) struct Churn<E> {
    pub(crate) f: Fixture<E>,
    rng: Rng,
    nr_submitters: u64,
    draw: fn(&mut Rng) -> Bio,
    pub(crate) in_flight: Vec<Rq>,
    /// Bios in the elevator or the driver.
    pub(crate) owed: BTreeSet<u64>,
    next_user_data: u64,
}

impl<E: Elevator> Churn<E> {
    pub(crate) fn new(f: Fixture<E>, rng: Rng, nr_submitters: u32, draw: fn(&mut Rng) -> Bio) -> Churn<E> {
        let nr_submitters = u64::from(nr_submitters);
        Churn { f, rng, nr_submitters, draw, in_flight: Vec::new(), owed: BTreeSet::new(), next_user_data: 0 }
    }

    fn submit(&mut self) {
        let submitter = self.rng.below(self.nr_submitters) as u32;
        let mut plug = Vec::new();
        for _ in 0..1 + self.rng.below(6) {
            if self.owed.len() >= 60 {
                break;
            }
            self.next_user_data += 1;
            let bio = (self.draw)(&mut self.rng).with_user_data(self.next_user_data);
            self.owed.insert(bio.user_data);
            match self.f.offer_of(submitter, bio) {
                BioMerge::Merged { freed } => self.free_empty(freed),
                BioMerge::No => plug.push(bio),
            }
        }
        let freed = self.f.insert_of(submitter, &plug);
        self.free_empty(freed);
    }

    fn free_empty(&mut self, freed: impl IntoIterator<Item = Rq>) {
        for gone in freed {
            assert_eq!(self.f.bed.free(gone), [0u64; 0], "a joined request has no bios left");
        }
    }

    pub(crate) fn step(&mut self) {
        self.f.pass_ms(self.rng.below(10));
        match self.rng.below(8) {
            0..=3 => self.submit(),
            4 | 5 => {
                let max = 1 + self.rng.below(8) as usize;
                let out = self.f.dispatch(max);
                assert!(out.len() <= max);
                self.in_flight.extend(out);
            }
            6 if !self.in_flight.is_empty() => {
                let n = self.rng.below(1 + self.in_flight.len().min(3) as u64) as usize;
                let back = self.in_flight.drain(..n).collect();
                self.f.put_back(back);
            }
            _ => self.complete_one(),
        }
    }

    pub(crate) fn complete_one(&mut self) {
        if self.in_flight.is_empty() {
            return;
        }
        let i = self.rng.below(self.in_flight.len() as u64) as usize;
        let rq = self.in_flight.swap_remove(i);
        for user_data in self.f.complete(rq) {
            assert!(self.owed.remove(&user_data), "bio {user_data} ended twice");
        }
    }
}
