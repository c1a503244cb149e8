// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rules of k2 one by one, and properties under random use. The controller has a file of its own, with disks to control.

use super::*;
use crate::bio::{Bio, DataRef, IoPrio, IoPrioClass};
use crate::elevator::testbed::TestBed;
use crate::elevator::testutil::{self, Churn};
use crate::id::Sector;
use crate::limits::Limits;
use sim::rng::Rng;

mod disks;

const HCTX: HctxId = HctxId::new(0);
const RT0: IoPrio = IoPrio::new(IoPrioClass::Rt, 0);
const BE0: IoPrio = IoPrio::new(IoPrioClass::Be, 0);
const IDLE0: IoPrio = IoPrio::new(IoPrioClass::Idle, 0);
const NR_SUBMITTERS: u32 = 4;
/// Submitters of the directed tests: one with few requests, one with many.
const FEW: u32 = 0;
const MANY: u32 = 1;

type Fixture = testutil::Fixture<K2<parking_lot::RawMutex>>;

impl Fixture {
    /// With no more than `max_inflight` bulk requests at the disk.
    fn new(max_inflight: u64) -> Fixture {
        let bed = TestBed::with_submitters(NR_SUBMITTERS, 64, 64, Limits::default());
        Fixture::on(bed, K2::new(64, 64)).with(&[("max_inflight", max_inflight)])
    }

    /// Submits bulk requests of another submitter that fill the disk and queue for it, from sector 1000 on, 16 apart.
    fn crowd(&mut self) -> Vec<Rq> {
        let bios: Vec<_> = (0..10).map(|i| read(1000 + 16 * i)).collect();
        self.insert_of(MANY, &bios);
        let at_disk = self.dispatch(64);
        assert_eq!(self.sectors(&at_disk), [1000, 1016]);
        at_disk
    }

    /// Whether a bio of `submitter` is dispatched before the queued requests of the crowd.
    fn overtakes(&mut self, submitter: u32, bio: Bio) -> bool {
        let at_disk = self.crowd();
        self.insert_of(submitter, &[bio]);
        let out = self.dispatch(64);
        let overtakes = self.sectors(&out) == [bio.sector.0];
        assert!(overtakes || out.is_empty());
        self.complete_all(at_disk);
        self.complete_all(out);
        self.drain();
        self.pass_ms(1000);
        overtakes
    }

    fn drain(&mut self) {
        while self.e.has_work(HCTX) {
            let out = self.dispatch(64);
            assert!(!out.is_empty(), "stuck with work");
            self.complete_all(out);
        }
    }
}

fn read(sector: u64) -> Bio {
    Bio::read(Sector(sector), 8, DataRef::NONE).with_user_data(sector)
}

fn write(sector: u64) -> Bio {
    Bio::write(Sector(sector), 8, DataRef::NONE).with_user_data(sector)
}

fn prio(prio: IoPrio, bio: Bio) -> Bio {
    Bio { prio, ..bio }
}

#[test]
fn awaited_requests_overtake() {
    let mut f = Fixture::new(2);
    assert!(f.overtakes(FEW, read(0)));
    assert!(f.overtakes(FEW, write(0).with_flags(OpFlags::SYNC)));
    assert!(f.overtakes(FEW, write(0).with_flags(OpFlags::FUA)));
    assert!(f.overtakes(FEW, prio(BE0, read(0))));
    assert!(!f.overtakes(FEW, write(0)), "written back without a waiter");
    assert!(!f.overtakes(FEW, read(0).with_flags(OpFlags::RAHEAD)), "not asked for yet");
    assert!(!f.overtakes(FEW, prio(IDLE0, read(0))));
    assert!(!f.overtakes(FEW, Bio { op: Op::WriteZeroes, ..read(0) }));
    assert!(!f.overtakes(MANY, read(0)), "one of many");
    assert!(f.overtakes(MANY, prio(RT0, read(0))), "from any submitter");
    assert!(f.overtakes(FEW, Bio { nr_sectors: 256, ..read(0) }));
    assert!(!f.overtakes(FEW, Bio { nr_sectors: 264, ..read(0) }), "latency_kb=128");
    let mut f = f.with(&[("latency_kb", 0)]);
    assert!(!f.overtakes(FEW, read(0)), "only priorities count");
    assert!(f.overtakes(FEW, prio(RT0, read(0))));
}

#[test]
fn a_submitter_is_deep_while_it_has_many_and_a_while_after() {
    let mut f = Fixture::new(1);
    let five: Vec<_> = (0..5).map(|i| read(16 * i)).collect();
    // Four at once count as a shallow queue; a fifth makes all five bulk requests, the first included.
    f.insert_of(FEW, &five[..4]);
    let out = f.dispatch(64);
    assert_eq!(out.len(), 4);
    f.complete_all(out);
    f.insert_of(FEW, &five);
    let out = f.dispatch(64);
    assert_eq!(f.sectors(&out), [0], "bulk, one at a time");
    f.complete_all(out);
    f.drain();
    // The last moment with five was when the first completed.
    f.pass_ms(99);
    assert!(matches!(f.e.limit_depth_of(SubmitterId::new(FEW), Op::Read, OpFlags::NONE), Some(48)));
    f.insert_of(FEW, &five[..2]);
    let out = f.dispatch(64);
    assert_eq!(out.len(), 1);
    f.complete_all(out);
    f.drain();
    f.pass_ms(1);
    f.insert_of(FEW, &five[..2]);
    assert_eq!(f.e.limit_depth_of(SubmitterId::new(FEW), Op::Read, OpFlags::NONE), None);
    let out = f.dispatch(64);
    assert_eq!(out.len(), 2);
    f.complete_all(out);
}

#[test]
fn bulk_is_bound_and_says_when_it_may_go_on() {
    let mut f = Fixture::new(2);
    assert_eq!(f.e.next_run(), None);
    let mut at_disk = f.crowd();
    assert_eq!(f.e.next_run(), Some(Instant::MAX), "not before a completion");
    let first = at_disk.remove(0);
    f.complete(first);
    assert_eq!(f.e.next_run(), Some(Instant::ZERO), "now");
    let out = f.dispatch(64);
    assert_eq!(f.sectors(&out), [1032]);
    assert_eq!(f.e.next_run(), Some(Instant::MAX));
    f.insert_of(FEW, &[read(0)]);
    let latency = f.dispatch(1);
    assert_eq!(f.sectors(&latency), [0], "not counted against bulk");
    assert_eq!(f.e.state.lock().in_flight(), 2);
    assert_eq!(f.e.next_run(), None, "what ends when the caller has enough is not held back");
    for rq in latency.into_iter().chain(at_disk).chain(out) {
        f.complete(rq);
    }
    f.drain();
    assert_eq!(f.e.next_run(), None);
}

#[test]
fn bulk_gets_its_part_however_many_latency_requests_there_are() {
    let mut f = Fixture::new(64).with(&[("latency_batch", 3)]);
    f.insert_of(MANY, &(0..6).map(|i| read(1000 + 16 * i)).collect::<Vec<_>>());
    f.insert_of(FEW, &(0..10).map(|i| prio(RT0, read(16 * i))).collect::<Vec<_>>());
    let out = f.dispatch(64);
    let classes: String = f.sectors(&out).iter().map(|s| if *s < 1000 { 'l' } else { 'b' }).collect();
    assert_eq!(classes, "lllblllblllblbbb");
    f.complete_all(out);
}

#[test]
fn requests_put_back_go_first_and_are_counted_once() {
    let mut f = Fixture::new(2);
    let at_disk = f.crowd();
    f.put_back(at_disk);
    f.insert_of(FEW, &[read(0)]);
    assert_eq!(f.e.state.lock().in_flight(), 0);
    let out = f.dispatch(64);
    assert_eq!(f.sectors(&out), [1000, 1016, 0]);
    assert_eq!(f.e.state.lock().in_flight(), 2);
    f.complete_all(out);
    f.drain();
    // Counted twice, it would be deep for ever.
    f.pass_ms(1000);
    f.insert_of(MANY, &[read(5000)]);
    let out = f.dispatch(64);
    assert_eq!(f.e.state.lock().in_flight(), 0, "a latency request");
    f.complete_all(out);
}

#[test]
fn neighbours_merge_inside_their_class() {
    let mut f = Fixture::new(2);
    let at_disk = f.crowd();
    assert!(matches!(f.offer_of(MANY, read(1008)), BioMerge::No), "its neighbours are at the disk");
    assert!(matches!(f.offer_of(MANY, read(1048 + 8)), BioMerge::Merged { freed: Some(_) }), "closes the gap to 1064");
    assert!(matches!(f.offer_of(FEW, read(1152)), BioMerge::No), "it would be held back");
    let freed = f.insert_of(MANY, &[read(1152)]);
    assert_eq!(freed.len(), 1, "continues 1144");
    for gone in freed {
        f.bed.free(gone);
    }
    f.complete_all(at_disk);
    let out = f.dispatch(64);
    assert_eq!(f.sectors(&out), [1032, 1048]);
    assert_eq!(f.bed.get(&out[1]).nr_sectors(), 24);
    f.complete_all(out);
    f.drain();
}

#[test]
fn tunables_are_checked() {
    let f = Fixture::new(0);
    assert_eq!(f.e.tunables().len(), 6);
    assert!(f.e.set_tunable("throughput_pct", 49).unwrap_err().contains("must be 50..=100"));
    assert!(f.e.set_tunable("max_inflght", 1).unwrap_err().contains("did you mean 'max_inflight'?"));
    assert_eq!(f.e.limit_depth(Op::Write, OpFlags::NONE), Some(48));
    assert_eq!(f.e.limit_depth(Op::Write, OpFlags::SYNC), None);
}

fn churn(seed: u64) -> Churn<K2<parking_lot::RawMutex>> {
    let mut rng = Rng::new(seed);
    let f = Fixture::new(rng.below(3) * rng.below(8)).with(&[
        ("latency_depth", rng.below(6)),
        ("latency_batch", 1 + rng.below(4)),
        ("guard_ms", 1 + rng.below(200)),
    ]);
    Churn::new(f, rng, NR_SUBMITTERS, |rng| {
        let op = [Op::Read, Op::Write, Op::Read, Op::Write, Op::WriteZeroes][rng.below(5) as usize];
        let class = [IoPrio::default(), IoPrio::default(), BE0, RT0, IDLE0][rng.below(5) as usize];
        let nr_sectors = 8 * (1 + rng.below(4) as u32);
        let flags = if rng.below(2) == 0 { OpFlags::SYNC } else { OpFlags::NONE };
        Bio { op, nr_sectors, ..prio(class, read(8 * rng.below(60))) }.with_flags(flags)
    })
}

#[test]
fn random_use_loses_nothing_and_completions_release_held() {
    for seed in 0..150 {
        let mut c = churn(seed);
        for _ in 0..600 {
            c.step();
        }
        while c.f.e.has_work(HCTX) || !c.in_flight.is_empty() {
            let out = c.f.dispatch(64);
            if out.is_empty() && c.f.e.has_work(HCTX) {
                assert_eq!(c.f.e.next_run(), Some(Instant::MAX), "seed {seed}");
                assert!(!c.in_flight.is_empty(), "seed {seed}: held back with nothing at the disk");
            }
            c.in_flight.extend(out);
            c.complete_one();
        }
        assert!(c.owed.is_empty(), "seed {seed}: lost {:?}", c.owed);
        let st = c.f.e.state.lock();
        assert!(st.nr_queued == 0 && st.in_flight() == 0, "seed {seed}");
        assert!((0..NR_SUBMITTERS).all(|s| st.submitters.outstanding(s as usize) == 0), "seed {seed}");
    }
}
