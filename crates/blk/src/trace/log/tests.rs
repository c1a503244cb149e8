// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The log returns the events that were added, however steps share records.

use super::*;
use crate::bio::DataRef;
use crate::id::{Sector, Tag};
use crate::request::Rq;

/// Pseudo-random numbers below a bound, the same in every run.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % bound
    }
}

/// Makes a step with one of few extents, tags and times, so that many steps could share a record and many must not.
fn any(draw: &mut Draw, time: Instant) -> Record {
    let bit = 1u16 << draw.below(13);
    if bit & step::OF_PLUG != 0 {
        let count = if bit == step::UNPLUG { 1 + draw.below(3) as u32 } else { 0 };
        return Record::of_plug(bit, count, time);
    }
    let (sector, nr) = (8 * draw.below(2), 8 + 8 * draw.below(2) as u32);
    let flags = if draw.below(4) == 0 { OpFlags::SYNC } else { OpFlags::NONE };
    let bio = Bio::write(Sector(sector), nr, DataRef::new(0, 0)).with_flags(flags);
    let of_bio = Record::of_bio(bit, &bio, BlkStatus::Ok, time);
    if bit & step::OF_BIO != 0 {
        return of_bio;
    }
    let tag = if draw.below(3) == 0 { NO_TAG } else { draw.below(2) as u16 };
    let status = if bit == step::COMPLETE && draw.below(2) == 0 { BlkStatus::IoErr } else { BlkStatus::Ok };
    Record { hctx: draw.below(2) as u16, tag, status, ..of_bio }
}

fn alone(r: &Record, cpu: u16) -> Event {
    Record { cpu, ..*r }.event(r.steps, KINDS[r.steps.trailing_zeros() as usize])
}

fn events(log: &Log) -> Vec<Event> {
    let mut events = Vec::new();
    log.for_each(|e| events.push(*e));
    events
}

#[test]
fn shared_records_give_out_the_events_that_were_added() {
    let mut shared = 0;
    for seed in 0..200 {
        let mut draw = Draw(seed);
        let mut log = Log::new(CpuId::new(3), 1000, 0);
        let (mut now, mut cpu, mut added) = (0, 3, Vec::new());
        for _ in 0..1000 {
            now += if draw.below(8) == 0 { 1 } else { 0 };
            if draw.below(50) == 0 {
                cpu = draw.below(4) as u16;
                log.set_cpu(CpuId::new(u32::from(cpu)));
            }
            let r = any(&mut draw, Instant::from_ns(now));
            added.push(alone(&r, cpu));
            log.add(|| r);
        }
        for (i, (out, added)) in events(&log).iter().zip(&added).enumerate() {
            assert_eq!(out, added, "seed {seed}, event {i}");
        }
        assert_eq!(events(&log).len(), added.len());
        assert_eq!((log.nr_events(), log.dropped), (1000, 0));
        shared += 1000 - log.len;
    }
    assert!(shared > 10_000, "{shared} of 200000 steps shared a record");
}

#[test]
fn the_order_of_the_steps_is_that_of_a_request_s_life() {
    let mut log = Log::new(CpuId::new(0), 100, 0);
    let bio = Bio::write(Sector(8), 8, DataRef::new(0, 0));
    for bit in [step::QUEUE, step::GET_RQ, step::PLUG, step::UNPLUG, step::INSERT, step::ISSUE, step::COMPLETE] {
        let of_bio = Record::of_bio(bit, &bio, BlkStatus::Ok, Instant::ZERO);
        let tag = if bit < step::ISSUE { NO_TAG } else { 5 };
        log.add(|| match bit {
            step::QUEUE => of_bio,
            step::PLUG | step::UNPLUG => Record::of_plug(bit, u32::from(bit == step::UNPLUG), Instant::ZERO),
            _ => Record { hctx: 0, tag, ..of_bio },
        });
    }
    assert_eq!(log.len, 1, "one record");
    let letters: String = events(&log).iter().map(|e| e.kind.letter()).collect();
    assert_eq!(letters, "QGPUIDC");
    assert!(events(&log).iter().all(|e| e.tag().is_some() == matches!(e.kind.letter(), 'D' | 'C')));
    // A second time none of them is later than what the record has.
    log.add(|| Record { hctx: 0, tag: 5, ..Record::of_bio(step::ISSUE, &bio, BlkStatus::Ok, Instant::ZERO) });
    assert_eq!(log.len, 2);
    log.take_back_issues(1);
    assert_eq!((log.len, log.nr_events()), (1, 7));
}

#[test]
fn full_log_counts_drops_and_is_empty_after_a_drain() {
    let mut log = Log::new(CpuId::new(0), 2, 0);
    let bio = Bio::write(Sector(8), 8, DataRef::new(0, 0));
    let one = Record::of_bio(step::QUEUE, &bio, BlkStatus::Ok, Instant::ZERO);
    (0..5).for_each(|_| log.add(|| one));
    assert_eq!((events(&log).len(), log.clear()), (2, 3));
    assert_eq!((events(&log).len(), log.clear()), (0, 0));
}

/// Makes new requests of 8 sectors each; the tag is the request's number.
fn new_requests(n: u32, now: u64) -> RequestSlab {
    let slab = RequestSlab::new(n as usize);
    for i in 0..n {
        let rq = slab.get(RequestId::new(i));
        rq.sector.set(8 * u64::from(i));
        rq.nr_sectors.set(8);
        rq.driver_tag.set(i as u16);
        rq.hctx.set(1);
        rq.start_ns.set(now);
        rq.alloc_ns.set(now);
    }
    slab
}

fn letters(log: &Log) -> String {
    events(log).iter().map(|e| e.kind.letter()).collect()
}

#[test]
fn an_end_by_number_tells_what_an_end_by_comparison_does() {
    let (slab, plug, now) = (new_requests(2, 7), Plug::new(0), Instant::from_ns(7));
    let [a, b] = [0, 1].map(RequestId::new);
    for status in [BlkStatus::Ok, BlkStatus::IoErr] {
        let (mut quick, mut slow) = (Log::new(CpuId::new(2), 8, 0), Log::new(CpuId::new(2), 8, 0));
        for id in [a, b] {
            let rq = slab.get(id);
            assert!(quick.tell_issue(id, rq, &plug) && quick.end_at_once(id, status), "{id:?}");
            slow.tell(rq, step::ISSUE);
            slow.add(|| Record::of_rq(step::COMPLETE, rq, rq.nr_sectors(), status, now));
        }
        assert_eq!((letters(&quick).as_str(), quick.len, slow.len), ("QGDCQGDC", 2, 2));
        assert_eq!(events(&quick), events(&slow));
    }
}

#[test]
fn an_end_by_number_is_that_of_the_newest_issue_only() {
    let (slab, plug, now) = (new_requests(2, 7), Plug::new(0), Instant::from_ns(7));
    let [a, b] = [0, 1].map(RequestId::new);
    let rq = slab.get(a);
    let issued = |capacity| {
        let mut log = Log::new(CpuId::new(0), capacity, 0);
        assert!(log.tell_issue(a, rq, &plug));
        log
    };
    assert!(!issued(9).end_at_once(b, BlkStatus::Ok), "another's");
    assert!(!issued(3).end_at_once(a, BlkStatus::Ok), "no room");
    let of_rq = |bit| Record::of_rq(bit, rq, rq.nr_sectors(), BlkStatus::Ok, now);
    type Happens<'a> = &'a dyn Fn(&mut Log);
    let between: [(&str, Happens<'_>); 5] = [
        ("its end", &|log| assert!(log.end_at_once(a, BlkStatus::Ok))),
        ("its return", &|log| log.add(|| of_rq(step::REQUEUE))),
        ("refused", &|log| log.take_back_issues(0)),
        ("a new CPU", &|log| log.set_cpu(CpuId::new(1))),
        ("another's issue", &|log| assert!(log.tell_issue(b, slab.get(b), &plug))),
    ];
    for (what, happens) in between {
        let mut log = issued(9);
        happens(&mut log);
        assert!(!log.end_at_once(a, BlkStatus::Ok), "{what} came in between");
    }
    rq.set_rqf(rqf::LATE);
    assert!(!Log::new(CpuId::new(0), 9, 0).tell_issue(a, rq, &plug), "its bio was told of when it came");
}

#[test]
fn a_run_ends_at_once_if_it_is_told_of_last_and_in_order() {
    let (slab, now) = (new_requests(4, 7), Instant::from_ns(9));
    let issued = |capacity| {
        let (mut plug, mut log) = (Plug::new(4), Log::new(CpuId::new(0), capacity, 0));
        plug.start(4);
        plug.rqs.extend((0..4).map(|i| Rq::from_id(RequestId::new(i))));
        log.catch_up(&plug, &slab);
        log.unplug(&plug, now);
        assert!(log.add_issue_run(4, now));
        log
    };
    let items = |tags: &[u32]| tags.iter().map(|t| (Tag::new(*t), BlkStatus::Ok)).collect::<Vec<_>>();
    let mut log = issued(18);
    assert!(log.end_run_at_once(&items(&[0, 1, 2, 3]), now));
    assert_eq!((letters(&log).as_str(), log.len), ("QGPQGQGQGUDDDDCCCC", 7));
    let sectors: Vec<u64> = events(&log)[14..].iter().map(|e| e.sector().0).collect();
    assert_eq!(sectors, [0, 8, 16, 24]);
    assert!(!issued(17).end_run_at_once(&items(&[0, 1, 2, 3]), now), "no room");
    assert!(!issued(99).end_run_at_once(&items(&[1, 0, 2, 3]), now), "another order");
    assert!(!issued(99).end_run_at_once(&[(Tag::new(0), BlkStatus::IoErr)], now), "an error");
    let mut log = issued(99);
    log.add(|| Record::of_plug(step::PLUG, 0, now));
    assert!(!log.end_run_at_once(&items(&[0, 1, 2, 3]), now), "something came in between");
}
