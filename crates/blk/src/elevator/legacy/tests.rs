// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rules of noop and deadline, and properties of both under random workloads.

use super::*;
use crate::bio::{Bio, DataRef, Op};
use crate::elevator::registry::{LEGACY_NAMES, legacy_by_name};
use crate::elevator::testbed::TestBed;
use crate::id::Sector;
use crate::limits::Limits;
use crate::time::{Duration, Instant};
use sim::rng::Rng;
use std::collections::BTreeSet;

struct Fixture {
    bed: TestBed,
    e: Box<dyn LegacyElevator>,
    now: Instant,
}

impl Fixture {
    fn new(name: &str) -> Fixture {
        Fixture {
            bed: TestBed::new(64, 256, Limits::default()),
            e: legacy_by_name(name, 64).expect("a legacy elevator"),
            now: Instant::from_ns(1_000_000_000_000),
        }
    }

    fn with(mut self, tunables: &[(&str, u64)]) -> Fixture {
        for (name, value) in tunables {
            self.e.set_tunable(name, *value).expect("test tunables are valid");
        }
        self
    }

    fn add(&mut self, bio: Bio, how: LegacyInsert) -> Vec<Rq> {
        let bio = self.bed.bio(bio, self.now);
        let rq = self.bed.request(bio, self.now);
        let mut freed = Vec::new();
        self.e.add(&self.bed.cx(self.now), rq, how, &mut freed);
        freed
    }

    fn queue(&mut self, bios: &[Bio]) {
        for bio in bios {
            assert!(self.add(*bio, LegacyInsert::Sort).is_empty());
        }
    }

    fn offer(&mut self, bio: Bio) -> BioMerge {
        let bio = self.bed.bio(bio, self.now);
        let merge = self.e.bio_merge(&self.bed.cx(self.now), BioRef(bio.0));
        if matches!(merge, BioMerge::No) {
            self.bed.free_bio(bio);
        }
        merge
    }

    fn next(&mut self) -> Option<Rq> {
        self.e.next(&self.bed.cx(self.now))
    }

    fn take(&mut self, n: usize) -> Vec<u64> {
        let mut order = Vec::new();
        while order.len() < n {
            let Some(rq) = self.next() else { break };
            order.push(self.bed.get(&rq).sector().0);
            let _ = self.bed.free(rq);
        }
        order
    }

    fn drain(&mut self) -> Vec<u64> {
        let order = self.take(usize::MAX);
        assert!(self.e.is_empty());
        order
    }
}

fn read(sector: u64) -> Bio {
    Bio::read(Sector(sector), 8, DataRef::NONE).with_user_data(sector)
}

fn write(sector: u64) -> Bio {
    Bio::write(Sector(sector), 8, DataRef::NONE).with_user_data(sector)
}

#[test]
fn noop_is_first_come_first_served() {
    let mut f = Fixture::new("noop");
    f.queue(&[read(500), write(100), read(300)]);
    assert_eq!(f.drain(), [500, 100, 300]);
}

#[test]
fn noop_merges_behind_and_joins_only_what_came_together() {
    let mut f = Fixture::new("noop");
    f.queue(&[write(100), write(116), write(500), write(524)]);
    // 100..108 and 116..124 came one after the other: closing the gap makes them one.
    assert!(matches!(f.offer(write(108)), BioMerge::Merged { freed: Some(_) }));
    assert!(matches!(f.offer(write(508)), BioMerge::Merged { freed: None }));
    assert!(
        matches!(f.offer(write(492)), BioMerge::Merged { freed: None }),
        "508 was the last merged: its front is tried"
    );
    assert!(matches!(f.offer(write(92)), BioMerge::No), "no search for front merges");
    assert_eq!(f.drain(), [100, 492, 524]);
}

#[test]
fn deadline_goes_on_from_the_request_that_followed() {
    let mut f = Fixture::new("deadline");
    f.queue(&[read(100), read(300), read(500)]);
    // The first choice is the oldest request; after it 300 is next, whatever arrives in between.
    assert_eq!(f.take(1), [100]);
    f.queue(&[read(200), read(400)]);
    assert_eq!(f.take(3), [300, 400, 500]);
    assert_eq!(f.drain(), [200]);
}

#[test]
fn deadline_passes_writes_over_and_turns_back_to_the_oldest() {
    let mut f = Fixture::new("deadline").with(&[("fifo_batch", 2), ("writes_starved", 1)]);
    f.queue(&[write(900), write(10), write(910)]);
    f.queue(&[read(500), read(100), read(200), read(300), read(50)]);
    // Reads from the oldest; the sweep ends at 500. Then writes are due: the oldest one, and the one that follows it.
    assert_eq!(f.take(3), [500, 900, 910]);
    assert_eq!(f.take(2), [100, 200], "a change of direction forgets the position");
    assert_eq!(f.drain(), [10, 300, 50]);
}

#[test]
fn deadline_serves_an_expired_request_when_the_batch_is_over() {
    let mut f = Fixture::new("deadline").with(&[("fifo_batch", 2), ("read_expire", 100)]);
    f.queue(&[read(200)]);
    f.queue(&[read(100), read(300), read(400), read(500)]);
    assert_eq!(f.take(1), [200]);
    f.now = f.now + Duration::from_ms(100);
    assert_eq!(f.drain(), [300, 100, 300 + 100, 500]);
}

#[test]
fn deadline_front_merges_and_joins_its_neighbour() {
    let mut f = Fixture::new("deadline");
    f.queue(&[read(100), read(200), read(216), read(300)]);
    assert_eq!(f.take(1), [100]);
    // 200 is next, but is joined into a request that starts before it. So 216 and 300 remain of the sweep.
    f.queue(&[read(184)]);
    match f.offer(read(192)) {
        BioMerge::Merged { freed: Some(gone) } => assert_eq!(f.bed.free(gone), [0u64; 0]),
        other => panic!("{other:?}"),
    }
    assert!(matches!(f.offer(read(292)), BioMerge::Merged { freed: None }), "front merge by tree");
    assert_eq!(f.drain(), [216, 292, 184]);
    let mut f = Fixture::new("deadline").with(&[("front_merges", 0)]);
    f.queue(&[read(100), read(300)]);
    assert!(matches!(f.offer(read(292)), BioMerge::No));
    f.drain();
}

#[test]
fn a_plug_joins_what_it_continues() {
    for name in LEGACY_NAMES {
        let mut f = Fixture::new(name);
        f.queue(&[write(100), write(500)]);
        let freed = f.add(write(508), LegacyInsert::SortMerge);
        assert_eq!(freed.len(), 1, "{name}");
        for gone in freed {
            assert_eq!(f.bed.free(gone), [0u64; 0]);
        }
        assert_eq!(f.drain(), [100, 500], "{name}");
    }
}

#[test]
fn tunables_have_the_kernels_names() {
    let mut f = Fixture::new("deadline");
    let names: Vec<_> = f.e.tunables().iter().map(|t| (t.name, t.value)).collect();
    let expected =
        [("read_expire", 500), ("write_expire", 5000), ("writes_starved", 2), ("fifo_batch", 16), ("front_merges", 1)];
    assert_eq!(names, expected);
    assert!(f.e.set_tunable("async_depth", 1).unwrap_err().contains("no tunable of deadline"));
    let mut f = Fixture::new("noop");
    assert!(f.e.tunables().is_empty());
    assert_eq!(f.e.set_tunable("quantum", 1).unwrap_err(), "quantum: noop has no tunables");
}

#[test]
fn nothing_is_lost_or_given_out_twice() {
    for seed in 0..100 {
        let mut rng = Rng::new(seed);
        let name = LEGACY_NAMES[(seed % 2) as usize];
        let mut f = Fixture::new(name);
        if name == "deadline" {
            f = f.with(&[
                ("fifo_batch", rng.below(8)),
                ("writes_starved", rng.below(3)),
                ("read_expire", rng.below(40)),
            ]);
        }
        let (mut owed, mut next_user_data) = (BTreeSet::new(), 0);
        for _ in 0..1500 {
            f.now = f.now + Duration::from_ms(rng.below(5));
            match rng.below(5) {
                0..=2 if owed.len() < 60 => {
                    let op = [Op::Read, Op::Write][rng.below(2) as usize];
                    let bio = Bio { op, nr_sectors: 8 * (1 + rng.below(3) as u32), ..read(8 * rng.below(50)) };
                    next_user_data += 1;
                    owed.insert(next_user_data);
                    let bio = bio.with_user_data(next_user_data);
                    let freed = match f.offer(bio) {
                        BioMerge::Merged { freed } => freed.into_iter().collect(),
                        BioMerge::No if rng.below(2) == 0 => f.add(bio, LegacyInsert::Sort),
                        BioMerge::No => f.add(bio, LegacyInsert::SortMerge),
                    };
                    for gone in freed {
                        assert_eq!(f.bed.free(gone), [0u64; 0], "a joined request has no bios left");
                    }
                }
                _ => {
                    let Some(rq) = f.next() else { continue };
                    for user_data in f.bed.free(rq) {
                        assert!(owed.remove(&user_data), "seed {seed}: bio {user_data} ended twice");
                    }
                }
            }
        }
        while let Some(rq) = f.next() {
            f.bed.free_with(rq, |u| assert!(owed.remove(&u), "seed {seed}: bio {u} ended twice"));
        }
        assert!(owed.is_empty() && f.e.is_empty(), "seed {seed} {name}: lost {owed:?}");
    }
}
