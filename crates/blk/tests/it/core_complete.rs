// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Completion: who runs it (`rq_affinity`), order of what is reaped, and the legacy mode's request batching.

use blk::bio::{Bio, DataRef, Op, OpFlags};
use blk::cpumap::CpuTopology;
use blk::id::Sector;
use blk::settings::{Mode, QueueConfig};
use sim::disk::Behaviour;
use sim::rig::Rig;

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

/// Whether the tag of a request that CPU 0 submitted is free again after `finder` polled it out: the whole completion
/// ran there, the end of the bio excepted.
fn completed_by(finder: usize, rq_affinity: u8) -> bool {
    let mut rig = Rig::new(1, manual(), QueueConfig { queue_depth: 1, ..config(rq_affinity) }, &[0, 1, 2]);
    rig.submit(0, read(1));
    rig.disk.release_all();
    rig.poll(finder);
    if finder != 0 {
        assert!(rig.bell.order().contains(&0), "its submitter is told");
        assert_eq!((rig.take_done(0).len(), rig.take_done(finder).len()), (0, 0), "not before its submitter polls");
    }
    rig.submit(finder, read(2));
    let freed = rig.disk.issues().len() == 2;
    rig.poll(0);
    assert_eq!(rig.take_done(0).len(), 1);
    rig.disk.release_all();
    rig.run(20);
    rig.disk.release_all();
    rig.run_dry(20);
    rig.check_idle();
    freed
}

#[test]
fn rq_affinity_says_where_a_completion_runs() {
    // (finder, rq_affinity): does it complete where it was found?
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
            let mut rig = Rig::new(2, manual(), c, &[0, 2, 3]);
            let write = |s: u64| Bio::write(Sector(s), 8, DataRef::new(0, s << 9)).with_user_data(s);
            rig.q.quiesce();
            rig.submit(1, write(108));
            rig.submit(0, write(100));
            rig.q.unquiesce();
            rig.run(10);
            assert_eq!(rig.disk.issues().len(), 1, "{scheduler}: merged");
            rig.disk.release_all();
            // A third one finds it.
            rig.poll(2);
            rig.run_dry(10);
            let ended: Vec<Vec<u64>> = rig.done.iter().map(|d| d.iter().map(|d| d.user_data).collect()).collect();
            assert_eq!(ended, [vec![100], vec![108], vec![]], "{scheduler}, rq_affinity={affinity}");
            assert_eq!(rig.q.stats().op(Op::Write).merges, 1);
            rig.check_idle();
        }
    }
}

#[test]
fn submitter_numbers_are_used_again_and_counters_go_on() {
    let mut rig = Rig::new(3, Behaviour::default(), config(1), &[0, 1]);
    let id = rig.subs[1].id();
    rig.submit(1, read(1));
    rig.run_dry(100);
    drop(rig.subs.pop());
    rig.subs.push(rig.q.submitter(blk::id::CpuId::new(3)).expect("a free place"));
    assert_eq!(rig.subs[1].id(), id);
    rig.submit(1, read(2));
    rig.run_dry(100);
    assert_eq!(rig.done[1].iter().map(|d| d.user_data).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(rig.q.stats().op(Op::Read).ios, 2);
    rig.check_idle();
}

#[test]
#[should_panic(expected = "dropped with 1 bios outstanding")]
fn a_submitter_with_bios_under_way_cannot_be_dropped() {
    let mut rig = Rig::new(4, manual(), config(1), &[0]);
    rig.submit(0, read(1));
    drop(rig.subs.pop());
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
fn a_full_request_list_lets_a_batch_through_and_then_makes_all_wait() {
    let mut rig = Rig::new(5, manual(), sq(8, 1), &[0, 1]);
    // The one that fills the list becomes a batcher, up to half as many again.
    (0..20).for_each(|n| rig.submit(0, read(n)));
    assert_eq!(rig.subs[0].waiting(), 20 - 12);
    rig.submit(1, read(50));
    assert_eq!(rig.subs[1].waiting(), 1, "nobody passes one and a half");
    // Writes have a list of their own.
    let write = Bio { op: Op::Write, ..read(60) };
    let mut other = rig.q.submitter(blk::id::CpuId::new(2)).expect("a free place");
    other.submit(&write, rig.t()).expect("a slot");
    assert_eq!(other.waiting(), 0);
    rig.subs.push(other);
    rig.done.push(Vec::new());
    rig.disk.behave(|b| b.manual = false);
    rig.disk.release_all();
    rig.now += 1_000_000;
    rig.run_dry(1000);
    rig.check_idle();
}

#[test]
fn a_waiter_of_a_full_list_is_woken_in_turn_and_takes_a_batch() {
    let mut rig = Rig::new(6, manual(), sq(4, 1), &[0, 1, 2]);
    (0..6).for_each(|n| rig.submit(0, read(n)));
    (10..20).for_each(|n| rig.submit(1, read(n)));
    rig.submit(2, read(30));
    assert_eq!([0, 1, 2].map(|s| rig.subs[s].waiting()), [0, 10, 1]);
    // Not woken, a poll does not get it past the full list: 5 of 4 are in use.
    rig.disk.release_all();
    rig.poll(0);
    rig.poll(2);
    assert_eq!((rig.bell.order(), rig.subs[2].waiting()), (vec![], 1), "5 in use");
    for _ in 0..2 {
        rig.disk.release_all();
        rig.poll(0);
    }
    // 3 in use: the first waiter is woken, and goes on to one and a half times as many.
    assert_eq!(rig.bell.order(), [1]);
    rig.poll(1);
    assert_eq!(rig.subs[1].waiting(), 10 - 3);
    rig.disk.behave(|b| b.manual = false);
    rig.disk.release_all();
    rig.now += 1_000_000;
    rig.run_dry(1000);
    rig.check_idle();
}

#[test]
fn nobody_is_forgotten_in_line_when_a_waiter_no_longer_wants() {
    // 1 stands in line for a read, then its only bio is refused; 2 behind it must be woken.
    let mut rig = Rig::new(7, manual(), sq(4, 1), &[0, 1, 2]);
    (0..6).for_each(|n| rig.submit(0, read(n)));
    rig.submit(1, read(10).with_flags(OpFlags::NOWAIT));
    rig.submit(2, read(20));
    assert_eq!((rig.take_done(1).len(), rig.subs[2].waiting()), (1, 1));
    rig.disk.behave(|b| b.manual = false);
    rig.disk.release_all();
    rig.now += 1_000_000;
    rig.run_dry(1000);
    assert_eq!(rig.done[2].len(), 1);
    rig.check_idle();
}
