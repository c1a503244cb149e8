// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Completion: which CPU runs it (`rq_affinity`), the order of reaped bios, and the legacy mode's request batching.

use blk::bio::{Bio, DataRef, Op, OpFlags};
use blk::cpumap::CpuTopology;
use blk::id::Sector;
use blk::settings::{Mode, QueueConfig};
use sim::disk::Behaviour;
use sim::harness::Harness;

fn manual() -> Behaviour {
    Behaviour { manual: true, ..Behaviour::default() }
}

/// Four CPUs on one hctx; 0 and 1 share a cache, 2 and 3 another.
fn config(rq_affinity: u8) -> QueueConfig {
    let mut topology = CpuTopology::uniform(4);
    topology.cache_group_of = vec![0, 0, 1, 1];
    QueueConfig {
        topology,
        nr_hw_queues: Some(1),
        scheduler: Some("none".into()),
        rq_affinity,
        nomerges: 2,
        ..QueueConfig::default()
    }
}

fn read(n: u64) -> Bio {
    Bio::read(Sector(n * 100), 8, DataRef::new(0, n << 12)).with_user_data(n)
}

/// Returns whether the tag of CPU 0's request is free after `finder` polled its completion. Then the whole completion
/// ran on `finder`, except for the completion of the bio.
fn completed_by(finder: usize, rq_affinity: u8) -> bool {
    let mut harness = Harness::new(1, manual(), QueueConfig { queue_depth: 1, ..config(rq_affinity) }, &[0, 1, 2]);
    harness.submit(0, read(1));
    harness.disk.release_all();
    harness.poll(finder);
    if finder != 0 {
        assert!(harness.notifications.order().contains(&0), "its submitter is told");
        assert_eq!(
            (harness.take_done(0).len(), harness.take_done(finder).len()),
            (0, 0),
            "not before its submitter polls"
        );
    }
    harness.submit(finder, read(2));
    let freed = harness.disk.issues().len() == 2;
    harness.poll(0);
    assert_eq!(harness.take_done(0).len(), 1);
    harness.disk.release_all();
    harness.run(20);
    harness.disk.release_all();
    harness.run_dry(20);
    harness.check_idle();
    freed
}

#[test]
fn rq_affinity_says_where_a_completion_runs() {
    // (finder, rq_affinity, whether the request completes on the finder).
    for (finder, affinity, here) in [
        (0, 0, true),
        (1, 0, true),
        (2, 0, true),
        (0, 1, true),
        (1, 1, true),  // shares the cache
        (2, 1, false), // does not
        (0, 2, true),
        (1, 2, false), // exactly the submitting CPU
        (2, 2, false),
    ] {
        assert_eq!(completed_by(finder, affinity), here, "found by {finder}, rq_affinity={affinity}");
    }
}

#[test]
fn a_request_of_two_submitters_ends_each_bio_at_its_own() {
    for affinity in 0..3 {
        for (scheduler, mode) in [("mq-deadline", Mode::Mq), ("deadline", Mode::Sq)] {
            let c = QueueConfig { mode, scheduler: Some(scheduler.into()), nomerges: 0, ..config(affinity) };
            let mut harness = Harness::new(2, manual(), c, &[0, 2, 3]);
            let write = |s: u64| Bio::write(Sector(s), 8, DataRef::new(0, s << 9)).with_user_data(s);
            harness.q.quiesce();
            harness.submit(1, write(108));
            harness.submit(0, write(100));
            harness.q.unquiesce();
            harness.run(10);
            assert_eq!(harness.disk.issues().len(), 1, "{scheduler}: merged");
            harness.disk.release_all();
            // A third submitter finds the completion.
            harness.poll(2);
            harness.run_dry(10);
            let ended: Vec<Vec<u64>> = harness.done.iter().map(|d| d.iter().map(|d| d.user_data).collect()).collect();
            assert_eq!(ended, [vec![100], vec![108], vec![]], "{scheduler}, rq_affinity={affinity}");
            assert_eq!(harness.q.stats().op(Op::Write).merges, 1);
            harness.check_idle();
        }
    }
}

#[test]
fn submitter_numbers_are_used_again_and_counters_go_on() {
    let mut harness = Harness::new(3, Behaviour::default(), config(1), &[0, 1]);
    let id = harness.subs[1].id();
    harness.submit(1, read(1));
    harness.run_dry(100);
    drop(harness.subs.pop());
    harness.subs.push(harness.q.submitter(blk::id::CpuId::new(3)).expect("a free place"));
    assert_eq!(harness.subs[1].id(), id);
    harness.submit(1, read(2));
    harness.run_dry(100);
    assert_eq!(harness.done[1].iter().map(|d| d.user_data).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(harness.q.stats().op(Op::Read).ios, 2);
    harness.check_idle();
}

#[test]
#[should_panic(expected = "dropped with 1 bios outstanding")]
fn a_submitter_with_bios_under_way_cannot_be_dropped() {
    let mut harness = Harness::new(4, manual(), config(1), &[0]);
    harness.submit(0, read(1));
    drop(harness.subs.pop());
}

fn sq(nr_requests: u32, depth: u32) -> QueueConfig {
    QueueConfig {
        mode: Mode::Sq,
        nr_requests: Some(nr_requests),
        queue_depth: depth,
        scheduler: Some("noop".into()),
        ..config(1)
    }
}

#[test]
fn full_request_list_admits_one_batch_then_all_wait() {
    let mut harness = Harness::new(5, manual(), sq(8, 1), &[0, 1]);
    // The submitter that fills the list may batch, up to 1.5 times `nr_requests`.
    (0..20).for_each(|n| harness.submit(0, read(n)));
    assert_eq!(harness.subs[0].waiting(), 20 - 12);
    harness.submit(1, read(50));
    assert_eq!(harness.subs[1].waiting(), 1, "none passes one and a half");
    // Writes have a list of their own.
    let write = Bio { op: Op::Write, ..read(60) };
    let mut other = harness.q.submitter(blk::id::CpuId::new(2)).expect("a free place");
    other.submit(&write, harness.t()).expect("a slot");
    assert_eq!(other.waiting(), 0);
    harness.subs.push(other);
    harness.done.push(Vec::new());
    harness.disk.behave(|b| b.manual = false);
    harness.disk.release_all();
    harness.now += 1_000_000;
    harness.run_dry(1000);
    harness.check_idle();
}

#[test]
fn a_waiter_of_a_full_list_is_woken_in_turn_and_takes_a_batch() {
    let mut harness = Harness::new(6, manual(), sq(4, 1), &[0, 1, 2]);
    (0..6).for_each(|n| harness.submit(0, read(n)));
    (10..20).for_each(|n| harness.submit(1, read(n)));
    harness.submit(2, read(30));
    assert_eq!([0, 1, 2].map(|s| harness.subs[s].waiting()), [0, 10, 1]);
    // It was not woken, so a poll gives it no request from the full list: 5 of 4 are in use.
    harness.disk.release_all();
    harness.poll(0);
    harness.poll(2);
    assert_eq!((harness.notifications.order(), harness.subs[2].waiting()), (vec![], 1), "5 in use");
    for _ in 0..2 {
        harness.disk.release_all();
        harness.poll(0);
    }
    // 3 in use: the first waiter is woken, and takes a batch: up to 6 may be in use.
    assert_eq!(harness.notifications.order(), [1]);
    harness.poll(1);
    assert_eq!(harness.subs[1].waiting(), 10 - 3);
    harness.disk.behave(|b| b.manual = false);
    harness.disk.release_all();
    harness.now += 1_000_000;
    harness.run_dry(1000);
    harness.check_idle();
}

#[test]
fn no_waiter_is_lost_when_another_stops_waiting() {
    // 1 waits for a request for a read, then its only bio is rejected; 2, which waits behind it, must be woken.
    let mut harness = Harness::new(7, manual(), sq(4, 1), &[0, 1, 2]);
    (0..6).for_each(|n| harness.submit(0, read(n)));
    harness.submit(1, read(10).with_flags(OpFlags::NOWAIT));
    harness.submit(2, read(20));
    assert_eq!((harness.take_done(1).len(), harness.subs[2].waiting()), (1, 1));
    harness.disk.behave(|b| b.manual = false);
    harness.disk.release_all();
    harness.now += 1_000_000;
    harness.run_dry(1000);
    assert_eq!(harness.done[2].len(), 1);
    harness.check_idle();
}
