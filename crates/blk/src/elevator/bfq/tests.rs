// SPDX-License-Identifier: Apache-2.0 OR MIT
//! bfq's rules one by one, through the trait. Shares over time are in `shares`; what a real kernel did is in
//! `tests/it/oracle_bfq.rs`.

mod random;
mod shares;

use super::*;
use crate::bio::{Bio, DataRef, IoPrio, IoPrioClass};
use crate::elevator::testbed::TestBed;
use crate::elevator::testutil;
use crate::id::Sector;
use crate::limits::Limits;
use crate::time::Duration;

const HCTX: HctxId = HctxId::new(0);

type Fixture = testutil::Fixture<Bfq<parking_lot::RawMutex>>;

impl Fixture {
    fn of_limits(limits: Limits, nr_submitters: u32) -> Fixture {
        Fixture::on(TestBed::with_submitters(nr_submitters, 256, 256, limits), Bfq::new(256, 256))
    }

    /// A disk without head, `low_latency` off unless it is set.
    fn new(nr_submitters: u32) -> Fixture {
        Fixture::of_limits(Limits::default(), nr_submitters).with(&[("low_latency", 0)])
    }

    fn rotational(nr_submitters: u32) -> Fixture {
        let limits = Limits { rotational: true, ..Limits::default() };
        Fixture::of_limits(limits, nr_submitters).with(&[("low_latency", 0)])
    }

    /// Inserts bios of a submitter as one batch, by which no requests are joined.
    fn insert(&mut self, submitter: u32, bios: &[Bio]) {
        assert!(self.insert_of(submitter, bios).is_empty());
    }

    /// Offers a bio for merging. Returns `None` if it was not merged, else how many requests were joined by that.
    fn offer(&mut self, submitter: u32, bio: Bio) -> Option<usize> {
        let BioMerge::Merged { freed } = self.offer_of(submitter, bio) else { return None };
        let joined = usize::from(freed.is_some());
        freed.into_iter().for_each(|rq| self.bed.free_absorbed(rq));
        Some(joined)
    }

    fn sector(&self, rq: &Rq) -> u64 {
        self.bed.get(rq).sector().0
    }

    /// Dispatches up to `max` requests without completing them. Returns them and their sectors.
    fn give(&mut self, max: usize) -> (Vec<Rq>, Vec<u64>) {
        let rqs = self.dispatch(max);
        let sectors = self.sectors(&rqs);
        (rqs, sectors)
    }

    /// Dispatches and completes requests one by one until none comes. Returns their sectors.
    fn drain(&mut self) -> Vec<u64> {
        let mut order = Vec::new();
        while let Some(rq) = self.dispatch(1).pop() {
            order.push(self.sector(&rq));
            self.complete(rq);
        }
        order
    }

    /// Time until the retry time, if anything is held back.
    fn held_ms(&self) -> Option<u64> {
        self.e.next_run().map(|at| at.since(self.now).as_ms())
    }
}

fn read(sector: u64) -> Bio {
    Bio::read(Sector(sector), 8, DataRef::NONE).with_user_data(sector)
}

fn write(sector: u64) -> Bio {
    Bio::write(Sector(sector), 8, DataRef::NONE).with_user_data(sector)
}

fn prio(class: IoPrioClass, level: u8, bio: Bio) -> Bio {
    Bio { prio: IoPrio::new(class, level), ..bio }
}

/// `n` reads in a row from `sector`.
fn run(sector: u64, n: u64) -> Vec<Bio> {
    // A gap of one sector keeps them from being merged.
    (0..n).map(|i| read(sector + 9 * i)).collect()
}

fn sectors(bios: &[Bio]) -> Vec<u64> {
    bios.iter().map(|b| b.sector.0).collect()
}

#[test]
fn a_queue_is_served_in_sector_order() {
    let mut f = Fixture::new(1);
    f.insert(0, &[500, 100, 90_000, 300, 200].map(read));
    assert_eq!(f.drain(), [100, 200, 300, 500, 90_000]);
    // The head is after 90000: 40000 is farther back than 16 MiB, 80000 is not.
    f.insert(0, &[40_000, 80_000, 200_000].map(read));
    assert_eq!(f.drain(), [80_000, 200_000, 40_000]);
}

#[test]
fn an_old_request_is_served_before_its_neighbours() {
    let mut f = Fixture::new(1);
    f.insert(0, &[read(500_000)]);
    let (first, _) = f.give(1);
    f.insert(0, &[read(0)]);
    f.pass_ms(124);
    f.insert(0, &[600_000, 600_100, 600_200].map(read));
    f.pass_ms(1);
    assert_eq!(f.drain(), [600_000, 0, 600_100, 600_200], "sector 0 has waited 125 ms");
    f.complete_all(first);
}

#[test]
fn a_budget_is_used_up_and_grows() {
    let mut f = Fixture::new(2).with(&[("max_budget", 64), ("slice_idle", 0)]);
    let (a, b) = (run(0, 20), run(1_000_000, 20));
    f.insert(0, &a);
    f.insert(1, &b);
    // The first budget is two thirds of 64: five requests of 8. Both used it up, so it becomes 64: eight requests.
    let (a, b) = (sectors(&a), sectors(&b));
    let expected = [&a[..5], &b[..5], &a[5..13], &b[5..13], &a[13..], &b[13..]].concat();
    assert_eq!(f.drain(), expected);
}

#[test]
fn one_hold_of_the_lock_serves_several_turns_in_order() {
    let mut f = Fixture::new(2).with(&[("max_budget", 64), ("slice_idle", 0)]);
    let (a, b) = (run(0, 20), run(1_000_000, 20));
    f.insert(0, &a);
    f.insert(1, &b);
    let (rqs, order) = f.give(12);
    assert_eq!(order, [&sectors(&a)[..5], &sectors(&b)[..5], &sectors(&a)[5..7]].concat());
    f.complete_all(rqs);
}

#[test]
fn a_turn_ends_after_timeout_sync() {
    let mut f = Fixture::new(2);
    f.insert(0, &run(0, 4));
    let (rqs, _) = f.give(1);
    f.insert(1, &run(1_000_000, 2));
    f.pass_ms(124);
    let (more, order) = f.give(1);
    assert_eq!(order, [9], "still its turn");
    f.pass_ms(1);
    let (last, order) = f.give(1);
    assert_eq!(order, [1_000_000]);
    f.complete_all(rqs.into_iter().chain(more).chain(last));
}

#[test]
fn disk_idles_for_a_sequential_queue_at_most_slice_idle() {
    let mut f = Fixture::rotational(2);
    f.insert(0, &run(0, 2));
    let (rqs, _) = f.give(2);
    f.insert(1, &[read(5_000_000)]);
    // The queue's requests are at the disk, so the wait lasts until its turn is over.
    assert!(f.dispatch(1).is_empty());
    assert_eq!(f.held_ms(), Some(125));
    f.pass_ms(40);
    f.complete_all(rqs);
    assert_eq!(f.held_ms(), Some(8), "known as soon as the last one completed");
    f.pass_ms(7);
    assert!(f.dispatch(1).is_empty());
    // The request that the disk waits for comes.
    f.insert(0, &[read(18)]);
    assert_eq!(f.drain(), [18]);
    assert_eq!(f.held_ms(), Some(8));
    f.pass_ms(8);
    assert_eq!(f.drain(), [5_000_000]);
    assert_eq!(f.held_ms(), None);
}

#[test]
fn an_unwatched_wait_ends_at_its_time() {
    let mut f = Fixture::rotational(2);
    f.insert(0, &[read(0)]);
    assert_eq!(f.drain(), [0]);
    let waited_for = |f: &Fixture| f.e.state.lock().wf2q.in_service();
    f.pass_ms(7);
    f.insert(1, &[read(5_000_000)]);
    assert_eq!(waited_for(&f), Some(0));
    f.pass_ms(1);
    f.insert(1, &[read(6_000_000)]);
    assert_eq!(waited_for(&f), None, "the turn is over before the request is looked at");
    assert_eq!(f.dispatch(1).pop().map(|rq| f.sector(&rq)), Some(5_000_000));
}

#[test]
fn a_seeky_queue_is_not_waited_for() {
    let mut f = Fixture::rotational(2);
    let far: Vec<Bio> = (0..32).map(|i| read(i * 100_000)).collect();
    f.insert(0, &far);
    assert_eq!(f.drain().len(), 32);
    f.insert(0, &[read(0)]);
    f.insert(1, &[read(5_000_000)]);
    assert_eq!(f.drain().len(), 2);
    assert_eq!(f.held_ms(), None);
}

#[test]
fn equal_queues_on_a_disk_without_head_are_not_waited_for() {
    let mut f = Fixture::new(2);
    f.insert(0, &run(0, 2));
    f.insert(1, &[read(5_000_000)]);
    assert_eq!(f.drain(), [0, 9, 5_000_000]);
}

#[test]
fn another_weight_is_a_reason_to_wait() {
    let mut f = Fixture::new(2);
    f.bed.set_weight(0, 100);
    f.insert(0, &[read(0)]);
    f.insert(1, &[read(5_000_000)]);
    assert_eq!(f.drain(), [0]);
    assert_eq!(f.held_ms(), Some(8));
    f.pass_ms(8);
    assert_eq!(f.drain(), [5_000_000]);
}

#[test]
fn strict_guarantees_mean_one_at_a_time() {
    let mut f = Fixture::new(2).with(&[("strict_guarantees", 1)]);
    f.insert(0, &run(0, 2));
    let (rqs, _) = f.give(4);
    assert_eq!(rqs.len(), 1);
    assert_eq!(f.e.next_run(), Some(Instant::MAX), "only a completion ends this");
    f.complete_all(rqs);
    assert_eq!(f.held_ms(), Some(0), "now");
    assert_eq!(f.drain(), [9]);
    f.insert(1, &[read(5_000_000)]);
    assert_eq!((f.drain().len(), f.held_ms()), (0, Some(8)), "and always idle");
}

#[test]
fn real_time_goes_first_and_preempts() {
    let mut f = Fixture::new(2);
    f.insert(0, &run(0, 3));
    let (rqs, order) = f.give(1);
    assert_eq!(order, [0]);
    f.insert(1, &[prio(IoPrioClass::Idle, 0, read(7_000_000))]);
    f.insert(1, &[prio(IoPrioClass::Rt, 0, read(5_000_000))]);
    let (more, order) = f.give(1);
    assert_eq!(order, [5_000_000]);
    // Its class makes it worth waiting for; then the rest of queue 0, and IDLE last.
    f.pass_ms(1);
    f.complete_all(more.into_iter().chain(rqs));
    f.pass_ms(8);
    assert_eq!(f.drain(), [9, 18]);
    f.pass_ms(8);
    assert_eq!(f.drain(), [7_000_000]);
}

#[test]
fn an_idle_queue_is_served_one_request_at_a_time_beside_others() {
    let mut f = Fixture::new(3);
    let of_idle = |sector| prio(IoPrioClass::Idle, 0, read(sector));
    f.insert(1, &[of_idle(1_000_000), of_idle(1_000_009), of_idle(1_000_018)]);
    f.insert(2, &[of_idle(2_000_000), of_idle(2_000_009)]);
    assert_eq!(f.give(2).1, [1_000_000, 2_000_000], "also beside queues of their class");
    f.insert(0, &run(0, 40));
    f.pass_ms(200);
    let (_, order) = f.give(4);
    assert!(order[0] > 1_000_000, "200 ms without a turn: {order:?}");
    assert_eq!(order[1..], [0, 9, 18], "one request");
    f.pass_ms(199);
    assert!(f.give(36).1.iter().all(|sector| *sector < 1000));
}

#[test]
fn bios_merge_inside_a_queue_only() {
    let mut f = Fixture::new(2);
    f.insert(0, &[read(100), read(116)]);
    assert_eq!(f.offer(1, read(108)), None, "another submitter's, without a queue");
    f.insert(1, &[read(9000)]);
    assert_eq!(f.offer(1, read(108)), None, "with one");
    assert_eq!(f.offer(0, write(108)), None);
    assert_eq!(f.offer(0, prio(IoPrioClass::Rt, 4, read(108))), None);
    assert_eq!(f.offer(0, read(92)), Some(0), "in front");
    assert_eq!(f.offer(0, read(108)), Some(1), "it joins both its neighbours");
    let rqs = f.dispatch(4);
    let extents: Vec<_> = rqs.iter().map(|rq| (f.sector(rq), f.bed.get(rq).nr_sectors())).collect();
    assert_eq!(extents, [(92, 32), (9000, 8)]);
    assert!(!f.e.has_work(HCTX));
    f.complete_all(rqs);
}

#[test]
fn what_the_driver_gave_back_goes_first() {
    let mut f = Fixture::new(2);
    f.insert(0, &run(0, 3));
    let (mut rqs, _) = f.give(2);
    f.e.insert(&f.bed.cx(f.now), &mut rqs, true, &mut Vec::new());
    assert!(f.e.has_work(HCTX));
    assert_eq!(f.drain(), [0, 9, 18]);
    let st = f.e.state.lock();
    assert_eq!((st.device.nr_out, st.queues[0].nr_out, st.nr_queued), (0, 0, 0));
}

#[test]
fn a_new_queue_is_helped_to_a_start_but_not_one_of_many() {
    // A hog with a full budget of 16384 sectors, and a queue that becomes busy.
    let served_before = |burst: u32| {
        let mut f = Fixture::new(20).with(&[("low_latency", 1), ("slice_idle", 0)]);
        f.bed.set_weight(0, 41);
        for s in 1..=burst {
            f.insert(s, &[read(u64::from(s) * 1_000_000)]);
            assert_eq!(f.drain().len(), 1);
        }
        f.pass_ms(1);
        f.insert(0, &run(0, 100));
        let (rqs, _) = f.give(1);
        f.insert(burst, &[read(90_000_000)]);
        if burst == 0 {
            f.insert(19, &[read(90_000_000)]);
        }
        let order = f.drain();
        f.complete_all(rqs);
        order.iter().position(|s| *s == 90_000_000).expect("it is served")
    };
    assert_eq!(served_before(0), 0, "at once");
    assert_eq!(served_before(6), 0, "seven with the hog are not many");
    assert_eq!(served_before(7), 99, "when the hog has nothing more");
}

#[test]
fn writes_leave_tags_to_others() {
    let f = Fixture::new(1);
    let limit = |f: &Fixture, op, flags| f.e.limit_depth(op, flags);
    assert_eq!(limit(&f, Op::Read, OpFlags::NONE), None);
    assert_eq!(limit(&f, Op::Write, OpFlags::NONE), Some(128));
    assert_eq!(limit(&f, Op::Write, OpFlags::SYNC), Some(192));
    let mut f = Fixture::new(1).with(&[("low_latency", 1)]);
    f.insert(0, &[read(0)]);
    assert_eq!(limit(&f, Op::Write, OpFlags::NONE), Some(48), "a raised queue is busy");
    assert_eq!(limit(&f, Op::Write, OpFlags::SYNC), Some(96));
    assert_eq!(Bfq::<parking_lot::RawMutex>::new(4, 1).limit_depth(Op::Write, OpFlags::NONE), Some(1));
}

#[test]
fn weights_come_from_the_setting_or_the_priority() {
    let mut f = Fixture::new(4);
    f.bed.set_weight(1, 1000);
    f.insert(0, &[read(0)]);
    f.insert(1, &[prio(IoPrioClass::Be, 0, read(1000))]);
    f.insert(2, &[prio(IoPrioClass::Be, 0, read(2000))]);
    f.insert(3, &[prio(IoPrioClass::Be, 7, read(3000))]);
    let weights: Vec<u32> = f.e.state.lock().queues.iter().map(|q| q.weight).collect();
    assert_eq!(weights, [40, 1000, 80, 10]);
}
