// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rules of mq-deadline one by one, and properties under random use. What a real kernel did is in
//! `tests/it/oracle_mq_deadline.rs`.

use super::*;
use crate::bio::{Bio, DataRef};
use crate::elevator::testbed::TestBed;
use crate::elevator::testutil::{self, Churn};
use crate::id::Sector;
use crate::limits::Limits;
use sim::rng::Rng;

const HCTX: HctxId = HctxId::new(0);
const RT0: IoPrio = IoPrio::new(IoPrioClass::Rt, 0);
const BE0: IoPrio = IoPrio::new(IoPrioClass::Be, 0);
const IDLE0: IoPrio = IoPrio::new(IoPrioClass::Idle, 0);

type Fixture = testutil::Fixture<MqDeadline<parking_lot::RawMutex>>;

impl Fixture {
    fn new(nr_requests: u32) -> Fixture {
        let bed = TestBed::new(nr_requests, 4 * nr_requests, Limits::default());
        Fixture::on(bed, MqDeadline::new(nr_requests as usize, nr_requests))
    }

    fn insert(&mut self, bios: &[Bio]) -> Vec<Rq> {
        self.insert_of(0, bios)
    }

    fn offer(&mut self, bio: Bio) -> BioMerge {
        self.offer_of(0, bio)
    }

    /// Dispatches requests one by one until none comes, and completes each at once. Returns (sector, sectors) of each.
    fn drain(&mut self) -> Vec<(u64, u32)> {
        let mut order = Vec::new();
        while let Some(rq) = self.dispatch(1).pop() {
            order.push((self.bed.get(&rq).sector().0, self.bed.get(&rq).nr_sectors()));
            self.complete(rq);
        }
        assert!(!self.e.has_work(HCTX));
        order
    }

    fn drain_sectors(&mut self) -> Vec<u64> {
        self.drain().into_iter().map(|(sector, _)| sector).collect()
    }
}

fn read(sector: u64) -> Bio {
    Bio::read(Sector(sector), 8, DataRef::NONE).with_user_data(sector)
}

fn write(sector: u64) -> Bio {
    Bio::write(Sector(sector), 8, DataRef::NONE).with_user_data(sector)
}

fn with_prio(prio: IoPrio, bio: Bio) -> Bio {
    Bio { prio, ..bio }
}

#[test]
fn a_sweep_goes_up_and_starts_again_at_the_oldest() {
    let mut f = Fixture::new(16);
    f.insert(&[read(500), read(100), read(900), read(300)]);
    let first = f.dispatch(2);
    assert_eq!(first.iter().map(|rq| f.bed.get(rq).sector().0).collect::<Vec<_>>(), [100, 300]);
    // A request below the position is not in this sweep. A request at the position still is.
    f.insert(&[read(200), read(300)]);
    for rq in first {
        f.complete(rq);
    }
    assert_eq!(f.drain_sectors(), [300, 500, 900, 200]);
}

#[test]
fn read_batches_pass_writes_over_writes_starved_times() {
    let mut f = Fixture::new(64).with(&[("fifo_batch", 3), ("writes_starved", 2)]);
    let reads: Vec<_> = (0..15).map(|i| read(1000 + 16 * i)).collect();
    let writes: Vec<_> = (0..6).map(|i| write(16 * i)).collect();
    f.insert(&writes);
    f.insert(&reads);
    let dirs: String = f.drain_sectors().iter().map(|s| if *s >= 1000 { 'r' } else { 'w' }).collect();
    // The very first batch continues from sector 0 without a choice, so it does not count as passing the writes over.
    assert_eq!(dirs, "rrrrrrrrrwwwrrrrrrwww");
}

#[test]
fn an_expired_request_starts_the_next_batch_of_its_direction() {
    let mut f = Fixture::new(16).with(&[("fifo_batch", 2), ("read_expire", 100)]);
    f.insert(&[read(900)]);
    f.pass_ms(50);
    f.insert(&[read(100), read(200), read(300), read(400)]);
    let early = f.dispatch(2);
    assert_eq!(f.bed.get(&early[0]).sector().0, 100);
    f.pass_ms(50);
    for rq in early {
        f.complete(rq);
    }
    // 900 has waited 100 ms. No request lies ahead of it, so the next batch starts at the oldest.
    assert_eq!(f.drain_sectors(), [900, 300, 400]);
}

#[test]
fn a_lower_class_waits_for_a_higher_one_to_complete() {
    let mut f = Fixture::new(16);
    f.insert(&[with_prio(IDLE0, read(1)), with_prio(BE0, read(10)), with_prio(RT0, read(900)), write(800)]);
    let rt = f.dispatch(16);
    assert_eq!(rt.len(), 1, "the others wait while the RT request is at the disk");
    assert_eq!(f.bed.get(&rt[0]).sector().0, 900);
    assert!(f.e.has_work(HCTX) && f.dispatch(16).is_empty());
    for rq in rt {
        f.complete(rq);
    }
    // The class `None` counts as best effort.
    assert_eq!(f.drain_sectors(), [10, 800, 1]);
}

#[test]
fn a_request_of_a_lower_class_ages() {
    let mut f = Fixture::new(16).with(&[("prio_aging_expire", 1000)]);
    f.insert(&[with_prio(BE0, read(10)), with_prio(IDLE0, read(20))]);
    f.pass_ms(999);
    f.insert(&[with_prio(RT0, read(900)), with_prio(RT0, read(910))]);
    let young = f.dispatch(1);
    assert_eq!(f.bed.get(&young[0]).sector().0, 900);
    f.pass_ms(1);
    let aged = f.dispatch(16);
    let sectors: Vec<_> = aged.iter().map(|rq| f.bed.get(rq).sector().0).collect();
    assert_eq!(sectors, [10, 20, 910], "aged best effort, then aged idle, then the class order again");
    for rq in young.into_iter().chain(aged) {
        f.complete(rq);
    }
}

#[test]
fn a_lone_class_does_not_age() {
    let mut f = Fixture::new(16).with(&[("prio_aging_expire", 0), ("fifo_batch", 1), ("read_expire", 1000)]);
    f.insert(&[with_prio(BE0, read(20)), with_prio(BE0, read(10))]);
    assert_eq!(f.drain_sectors(), [10, 20]);
}

/// In the kernel a probe for aged requests chooses a direction, counts passed-over writes and ends the batch before it
/// finds the request too young.
#[test]
fn a_failed_ageing_probe_changes_the_batch() {
    let sectors_of = |probing: bool| {
        let mut f = Fixture::new(32).with(&[("fifo_batch", 4), ("writes_starved", 0)]);
        let mut bios: Vec<_> = (0..8).map(|i| with_prio(RT0, read(1000 + 16 * i))).collect();
        bios.extend((0..4).map(|i| with_prio(RT0, write(16 * i))));
        if probing {
            bios.push(with_prio(IDLE0, read(5000)));
        }
        f.insert(&bios);
        let mut order = f.drain_sectors();
        order.retain(|s| *s < 5000);
        order
    };
    let plain = sectors_of(false);
    assert_eq!(plain[..4], [1000, 1016, 1032, 1048], "one batch of reads");
    assert_eq!(plain[4], 0, "then writes");
    let probed = sectors_of(true);
    let reads_then_writes = (0..8).map(|i| 1000 + 16 * i).chain((0..4).map(|i| 16 * i));
    // Each time the batch is full, the probe starts a new one of reads, the only direction the idle class has.
    assert!(probed.into_iter().eq(reads_then_writes));
}

#[test]
fn requests_put_back_go_first_in_their_order_and_count_once() {
    let mut f = Fixture::new(16);
    f.insert(&[read(100), read(200), read(300), with_prio(RT0, read(400))]);
    let rt = f.dispatch(1);
    f.put_back(rt);
    let rt = f.dispatch(16);
    assert_eq!(rt.len(), 1);
    for rq in rt {
        f.complete(rq);
    }
    // Counted twice, the RT class would now look busy for ever.
    let two = f.dispatch(2);
    assert_eq!(two.len(), 2);
    f.put_back(two);
    assert!(matches!(f.offer(read(108)), BioMerge::No), "what has been at the driver is not merged");
    assert_eq!(f.drain_sectors(), [100, 200, 300]);
}

#[test]
fn bios_merge_behind_before_and_between() {
    let mut f = Fixture::new(16);
    f.insert(&[write(100), write(116), write(500)]);
    assert!(matches!(f.offer(write(508)), BioMerge::Merged { freed: None }), "behind, by hash");
    assert!(matches!(f.offer(write(92)), BioMerge::Merged { freed: None }), "before, by tree");
    match f.offer(write(108)) {
        BioMerge::Merged { freed: Some(gone) } => assert_eq!(f.bed.free(gone), [0u64; 0]),
        other => panic!("{other:?}"),
    }
    assert!(matches!(f.offer(read(124)), BioMerge::No), "another operation");
    assert!(matches!(f.offer(with_prio(RT0, write(124))), BioMerge::No), "another priority");
    assert_eq!(f.drain(), [(92, 32), (500, 16)]);
}

#[test]
fn a_front_merge_that_closes_a_gap_joins_with_the_former() {
    let mut f = Fixture::new(16);
    f.insert(&[write(500), write(516)]);
    assert!(matches!(f.offer(write(524)), BioMerge::Merged { freed: None }));
    // 516 was merged last: the bio is merged in front of it and closes the gap, and the earlier request stays.
    match f.offer(write(508)) {
        BioMerge::Merged { freed: Some(gone) } => assert_eq!(f.bed.free(gone), [0u64; 0]),
        other => panic!("{other:?}"),
    }
    assert_eq!(f.drain(), [(500, 32)]);
}

#[test]
fn without_front_merges_only_the_cached_request_grows_forward() {
    let mut f = Fixture::new(16).with(&[("front_merges", 0)]);
    f.insert(&[write(100), write(200)]);
    assert!(matches!(f.offer(write(192)), BioMerge::No));
    assert!(matches!(f.offer(write(92)), BioMerge::Merged { .. }), "the one-hit cache holds the first queued");
    assert_eq!(f.drain(), [(92, 16), (200, 8)]);
}

#[test]
fn nomerges_switches_off_the_search_and_then_everything() {
    for (nomerges, one_hit, searched) in [(0, true, true), (1, true, false), (2, false, false)] {
        let mut f = Fixture::new(16);
        f.bed = TestBed::new(16, 16, Limits::default()).with_nomerges(nomerges);
        f.insert(&[write(100), write(200)]);
        assert_eq!(matches!(f.offer(write(108)), BioMerge::Merged { .. }), one_hit, "nomerges={nomerges}");
        assert_eq!(matches!(f.offer(write(208)), BioMerge::Merged { .. }), searched, "nomerges={nomerges}");
        f.drain();
    }
}

#[test]
fn the_request_that_absorbed_another_is_the_last_merged() {
    let mut f = Fixture::new(16);
    f.bed = TestBed::new(16, 16, Limits::default()).with_nomerges(1);
    f.insert(&[write(116), write(100)]);
    // In front of 116, the first queued; then 100 absorbs it. Only the one-hit cache can find 100 for the last bio.
    for sector in [108, 124] {
        match f.offer(write(sector)) {
            BioMerge::Merged { freed } => drop(freed.map(|gone| f.bed.free(gone))),
            BioMerge::No => panic!("{sector} found nothing"),
        }
    }
    assert_eq!(f.drain(), [(100, 32)]);
}

#[test]
fn a_joined_request_keeps_the_earlier_expiry() {
    let mut f = Fixture::new(16).with(&[("fifo_batch", 1), ("read_expire", 100)]);
    f.insert(&[read(908)]);
    f.pass_ms(90);
    f.insert(&[read(892), read(100), read(200)]);
    // Closes the gap: 892 stays, with the expiry of 908.
    match f.offer(read(900)) {
        BioMerge::Merged { freed: Some(gone) } => drop(f.bed.free(gone)),
        other => panic!("{other:?}"),
    }
    f.pass_ms(10);
    assert_eq!(f.drain_sectors(), [100, 892, 200], "the batch that is due first, then the expired one");
}

#[test]
fn requests_on_their_way_in_join_what_they_continue_and_so_on() {
    let mut f = Fixture::new(16);
    f.bed = TestBed::new(16, 16, Limits::default()).with_nomerges(2);
    f.insert(&[write(76), write(84)]);
    f.bed = core::mem::replace(&mut f.bed, TestBed::new(1, 1, Limits::default())).with_nomerges(0);
    let freed = f.insert(&[write(92)]);
    assert_eq!(freed.len(), 2, "92 joins 84, and the two join 76");
    for gone in freed {
        assert_eq!(f.bed.free(gone), [0u64; 0]);
    }
    assert_eq!(f.drain(), [(76, 24)]);
    // Freed requests do not keep their class busy.
    f.insert(&[with_prio(IDLE0, read(1))]);
    assert_eq!(f.drain_sectors(), [1]);
}

#[test]
fn a_full_request_gives_the_one_hit_to_the_next() {
    let mut f = Fixture::new(16);
    f.bed = TestBed::new(16, 16, Limits::with_max_hw_sectors(16)).with_nomerges(1);
    f.insert(&[write(100)]);
    assert!(matches!(f.offer(write(108)), BioMerge::Merged { .. }));
    assert!(matches!(f.offer(write(116)), BioMerge::No), "16 sectors are all it may have");
    f.insert(&[write(116)]);
    assert!(matches!(f.offer(write(124)), BioMerge::Merged { .. }), "to what was queued since");
    assert_eq!(f.drain(), [(100, 16), (116, 16)]);
}

#[test]
fn writes_have_async_depth_and_reads_all_tags() {
    let f = Fixture::new(64);
    assert_eq!(f.e.limit_depth(Op::Write, OpFlags::NONE), None, "at first writes may use all too");
    f.e.set_tunable("async_depth", 48).expect("valid");
    for op in [Op::Write, Op::Discard, Op::WriteZeroes] {
        assert_eq!(f.e.limit_depth(op, OpFlags::SYNC), Some(48));
    }
    assert_eq!(f.e.limit_depth(Op::Read, OpFlags::RAHEAD), None);
    f.e.set_tunable("async_depth", 64).expect("valid");
    assert_eq!(f.e.limit_depth(Op::Write, OpFlags::NONE), None);
    assert!(f.e.set_tunable("async_depth", 0).unwrap_err().contains("must be 1..="));
}

fn churn(seed: u64) -> Churn<MqDeadline<parking_lot::RawMutex>> {
    let mut rng = Rng::new(seed);
    let f = Fixture::new(64).with(&[
        ("fifo_batch", rng.below(20)),
        ("writes_starved", rng.below(4)),
        ("front_merges", rng.below(2)),
        ("read_expire", rng.below(50)),
        ("prio_aging_expire", rng.below(200)),
    ]);
    Churn::new(f, rng, 1, |rng| {
        let op = [Op::Read, Op::Write, Op::Read, Op::Write, Op::WriteZeroes][rng.below(5) as usize];
        let prio = [IoPrio::default(), BE0, RT0, IDLE0][rng.below(4) as usize];
        let nr_sectors = 8 * (1 + rng.below(4) as u32);
        Bio { op, prio, nr_sectors, ..read(0) }.at(Sector(8 * rng.below(60)))
    })
}

#[test]
fn nothing_is_lost_or_given_out_twice() {
    for seed in 0..150 {
        let mut c = churn(seed);
        for _ in 0..600 {
            c.step();
        }
        // Liveness: as long as requests complete, all requests are dispatched.
        while c.f.e.has_work(HCTX) || !c.in_flight.is_empty() {
            let out = c.f.dispatch(64);
            assert!(!out.is_empty() || !c.in_flight.is_empty(), "seed {seed}: stuck with work");
            c.in_flight.extend(out);
            c.complete_one();
        }
        assert!(c.owed.is_empty(), "seed {seed}: lost {:?}", c.owed);
        assert!(c.f.e.state.lock().nr_queued == 0);
    }
}

/// For any load: while a write waits, reads get no more than the rest of their batch and `writes_starved` further
/// batches.
#[test]
fn a_waiting_write_is_passed_over_by_a_bounded_number_of_reads() {
    for seed in 0..100 {
        let mut rng = Rng::new(seed);
        let (fifo_batch, writes_starved) = (1 + rng.below(8), rng.below(4));
        let mut f = Fixture::new(64).with(&[("fifo_batch", fifo_batch), ("writes_starved", writes_starved)]);
        let (mut queued, mut writes_queued, mut reads_in_a_row) = (0, 0, 0);
        for _ in 0..1500 {
            if queued < 40 && rng.below(2) == 0 {
                let is_write = rng.below(4) == 0;
                let sector = 16 * rng.below(1 << 20);
                f.insert(&[if is_write { write(sector) } else { read(sector) }]);
                queued += 1;
                writes_queued += u64::from(is_write);
            } else if let Some(rq) = f.dispatch(1).pop() {
                let is_write = f.bed.get(&rq).op().is_write();
                f.complete(rq);
                queued -= 1;
                writes_queued -= u64::from(is_write);
                reads_in_a_row = if is_write || writes_queued == 0 { 0 } else { reads_in_a_row + 1 };
                let bound = fifo_batch * (writes_starved + 1);
                assert!(reads_in_a_row <= bound, "seed {seed}: {reads_in_a_row} reads passed a write, bound {bound}");
            }
        }
    }
}

/// For any fixed set of requests: inside a batch the direction stays the same and sectors do not descend.
#[test]
fn a_batch_ascends_in_one_direction() {
    for seed in 0..100 {
        let mut rng = Rng::new(seed);
        let fifo_batch = 1 + rng.below(16);
        let mut f = Fixture::new(64).with(&[("fifo_batch", fifo_batch)]);
        let bios: Vec<_> = (0..60)
            .map(|_| if rng.below(2) == 0 { read(16 * rng.below(5000)) } else { write(16 * rng.below(5000)) })
            .collect();
        f.insert(&bios);
        let mut last = None;
        while let Some(rq) = f.dispatch(1).pop() {
            let (dir, sector) = (Dir::of(f.bed.get(&rq).op()), f.bed.get(&rq).sector());
            f.complete(rq);
            let batching = f.e.state.lock().batching;
            assert!(batching <= fifo_batch);
            if batching > 1 {
                let (last_dir, last_sector) = last.expect("a batch has a first request");
                assert_eq!(dir, last_dir, "seed {seed}");
                assert!(sector >= last_sector, "seed {seed}: {sector} after {last_sector}");
            }
            last = Some((dir, sector));
        }
    }
}

impl Bio {
    fn at(self, sector: Sector) -> Bio {
        Bio { sector, ..self }
    }
}
