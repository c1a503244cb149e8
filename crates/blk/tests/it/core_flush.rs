// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Flush and FUA as the driver sees them: PREFLUSH, then DATA, then POSTFLUSH, each after the one before has completed.

use blk::bio::{Bio, DataRef, Op, OpFlags};
use blk::cpumap::CpuTopology;
use blk::id::Sector;
use blk::settings::{Mode, QueueConfig};
use blk::status::{BlkStatus, QueueRqStatus};
use sim::disk::{Answer, Behaviour};
use sim::harness::Harness;

/// Every path a flush can take: tags at allocation, tags at dispatch, single-queue.
const STACKS: [(&str, Mode); 4] =
    [("none", Mode::Mq), ("mq-deadline", Mode::Mq), ("kyber", Mode::Mq), ("deadline", Mode::Sq)];

fn harness(seed: u64, (scheduler, mode): (&str, Mode), depth: u32, (cache, fua): (bool, bool)) -> Harness {
    let mut b = Behaviour { manual: true, ..Behaviour::default() };
    (b.limits.write_cache, b.limits.fua) = (cache, fua);
    let config = QueueConfig {
        mode,
        topology: CpuTopology::uniform(2),
        nr_hw_queues: Some(1),
        queue_depth: depth,
        scheduler: Some(scheduler.into()),
        ..QueueConfig::default()
    };
    Harness::new(seed, b, config, &[0, 1])
}

fn write(sector: u64) -> Bio {
    Bio::write(Sector(sector), 8, DataRef::new(0, sector << 9)).with_user_data(sector)
}

/// Returns the operations and flags of the requests that the disk got since the last call.
fn seen(harness: &Harness, from: &mut usize) -> Vec<(Op, bool)> {
    let all = harness.disk.issues();
    let new = all[*from..].iter().map(|i| (i.op, i.flags.contains(OpFlags::FUA))).collect();
    *from = all.len();
    new
}

fn complete_one(harness: &mut Harness) {
    assert_eq!(harness.disk.release_all(), 1, "one step at a time\n{}", harness.describe());
    harness.run(20);
}

const FLUSH: (Op, bool) = (Op::Flush, false);
const WRITE: (Op, bool) = (Op::Write, false);
const WRITE_FUA: (Op, bool) = (Op::Write, true);

#[test]
fn flush_steps_are_issued_in_order_and_only_if_needed() {
    let both = OpFlags::PREFLUSH.union(OpFlags::FUA);
    let cases: [(_, _, &[(Op, bool)]); 8] = [
        (both, (true, false), &[FLUSH, WRITE, FLUSH]),
        (both, (true, true), &[FLUSH, WRITE_FUA]),
        (OpFlags::PREFLUSH, (true, false), &[FLUSH, WRITE]),
        (OpFlags::PREFLUSH, (true, true), &[FLUSH, WRITE]),
        (OpFlags::FUA, (true, false), &[WRITE, FLUSH]),
        (OpFlags::FUA, (true, true), &[WRITE_FUA]),
        (both, (false, false), &[WRITE]),
        (OpFlags::NONE, (true, true), &[WRITE]),
    ];
    for stack in STACKS {
        for depth in [1, 4] {
            for (flags, features, expect) in cases {
                let mut harness = harness(1, stack, depth, features);
                let mut from = 0;
                harness.submit(0, write(80).with_flags(flags));
                harness.run(20);
                for (n, step) in expect.iter().enumerate() {
                    assert_eq!(seen(&harness, &mut from), [*step], "{stack:?} {flags:?} {features:?} step {n}");
                    assert_eq!(harness.take_done(0).len(), 0);
                    complete_one(&mut harness);
                }
                assert_eq!(harness.take_done(0)[0].status, BlkStatus::Ok);
                assert_eq!(harness.disk.issues().len(), expect.len());
                let s = harness.q.stats();
                let flushes = expect.iter().filter(|s| **s == FLUSH).count() as u64;
                assert_eq!((s.op(Op::Write).ios, s.op(Op::Flush).ios), (1, flushes), "{stack:?} {flags:?}");
                harness.check_idle();
            }
        }
    }
}

#[test]
fn an_empty_flush_needs_a_cache() {
    for stack in STACKS {
        let mut without = harness(2, stack, 4, (false, false));
        without.submit(0, Bio::flush().with_user_data(7));
        without.run_dry(10);
        assert_eq!((without.take_done(0)[0].status, without.disk.issues().len()), (BlkStatus::Ok, 0));
        without.check_idle();
        let mut with = harness(2, stack, 4, (true, false));
        with.submit(0, Bio::flush().with_user_data(7));
        with.run(10);
        assert_eq!(with.disk.issues().len(), 1);
        complete_one(&mut with);
        assert_eq!(with.take_done(0)[0].status, BlkStatus::Ok);
        assert_eq!(with.q.stats().op(Op::Flush).ios, 1, "counted once");
        with.check_idle();
    }
}

#[test]
fn flushes_that_wait_together_share_one_command() {
    for stack in STACKS {
        let mut harness = harness(3, stack, 16, (true, false));
        harness.submit(0, Bio::flush().with_user_data(0));
        harness.run(10);
        // The first flush command is at the driver. These flushes came too late for it, and all share the next one.
        (1..4).for_each(|n| harness.submit(0, Bio::flush().with_user_data(n)));
        harness.submit(1, Bio::flush().with_user_data(4));
        harness.submit(1, write(80).with_flags(OpFlags::PREFLUSH).with_user_data(5));
        harness.run(10);
        assert_eq!(harness.disk.issues().len(), 1, "{stack:?}");
        complete_one(&mut harness);
        assert_eq!(harness.take_done(0).len(), 1, "{stack:?}: only waiters that were there when it was issued");
        assert_eq!(harness.disk.issues().len(), 2, "{stack:?}");
        complete_one(&mut harness);
        assert_eq!((harness.take_done(0).len(), harness.take_done(1).len()), (3, 1), "{stack:?}");
        assert_eq!(harness.disk.issues().last().expect("the data step").op, Op::Write, "{stack:?}");
        complete_one(&mut harness);
        assert_eq!(harness.take_done(1)[0].user_data, 5);
        assert_eq!(harness.q.stats().op(Op::Flush).ios, 2, "{stack:?}");
        harness.check_idle();
    }
}

#[test]
fn an_error_before_the_data_ends_the_request_without_it() {
    for stack in STACKS {
        for answer in [Answer::Fail(BlkStatus::Target), Answer::Refuse(QueueRqStatus::Error(BlkStatus::Target))] {
            let mut harness = harness(4, stack, 4, (true, false));
            harness.disk.script([answer]);
            harness.submit(0, write(80).with_flags(OpFlags::PREFLUSH.union(OpFlags::FUA)));
            harness.run(10);
            harness.disk.release_all();
            harness.run_dry(20);
            assert_eq!(harness.take_done(0)[0].status, BlkStatus::Target, "{stack:?} {answer:?}");
            assert!(harness.disk.issues().iter().all(|i| i.op == Op::Flush), "{stack:?} {answer:?}");
            harness.check_idle();
        }
    }
}

/// Statuses after each of which every later flush and durable write must fail.
const LOST: [BlkStatus; 4] = [BlkStatus::NoSpc, BlkStatus::Target, BlkStatus::Medium, BlkStatus::Protection];

#[test]
fn a_failed_flush_is_not_forgotten() {
    for (stack, lost) in STACKS.iter().flat_map(|s| LOST.map(|l| (*s, l))) {
        for features in [(true, false), (true, true)] {
            let mut harness = harness(5, stack, 4, features);
            harness.disk.behave(|b| b.manual = false);
            harness.disk.script([Answer::Fail(lost)]);
            harness.submit(0, Bio::flush());
            harness.run_dry(20);
            let durable = [OpFlags::PREFLUSH, OpFlags::FUA, OpFlags::PREFLUSH.union(OpFlags::FUA)];
            let all = durable.map(|flags| write(80).with_flags(flags)).into_iter().chain([Bio::flush()]);
            all.enumerate().for_each(|(n, bio)| harness.submit(n % 2, bio));
            harness.run_dry(40);
            let done: Vec<_> = [0, 1].iter().flat_map(|cpu| harness.take_done(*cpu)).collect();
            assert!(done.len() == 5 && done.iter().all(|d| d.status == lost), "{stack:?} {features:?} {done:?}");
            assert_eq!((harness.disk.issues().len(), harness.q.failed_flush()), (1, Some(lost)), "{stack:?}");
            harness.submit(0, write(160));
            harness.submit(1, Bio::read(Sector(80), 8, DataRef::new(0, 0)));
            harness.run_dry(20);
            assert!([0, 1].iter().all(|cpu| harness.take_done(*cpu)[0].status.is_ok()), "{stack:?}: others go on");
            harness.check_idle();
        }
    }
}

#[test]
fn flushes_that_wait_for_the_next_command_fail_with_the_first() {
    for stack in STACKS {
        let mut harness = harness(5, stack, 16, (true, false));
        harness.disk.script([Answer::Fail(BlkStatus::NoSpc), Answer::Accept, Answer::Fail(BlkStatus::Medium)]);
        harness.submit(0, Bio::flush());
        harness.run(10);
        harness.submit(0, Bio::flush());
        harness.submit(1, write(80).with_flags(OpFlags::PREFLUSH));
        harness.run(10);
        // The second command succeeds, because the device has reported its error.
        (0..2).for_each(|_| complete_one(&mut harness));
        let done: Vec<_> = [0, 1].iter().flat_map(|cpu| harness.take_done(*cpu)).map(|d| d.status).collect();
        assert_eq!(done, [BlkStatus::NoSpc; 3], "{stack:?}");
        assert!(harness.disk.issues().iter().all(|i| i.op == Op::Flush), "{stack:?}: no data after the error");
        harness.check_idle();
    }
}

#[test]
fn a_flush_that_did_not_reach_the_device_may_be_repeated() {
    use BlkStatus::{IoErr, NotSupp, Offline, Resource, Timeout, Transport};
    for (stack, status) in
        STACKS.iter().flat_map(|s| [IoErr, NotSupp, Offline, Resource, Timeout, Transport].map(|l| (*s, l)))
    {
        let mut harness = harness(5, stack, 4, (true, false));
        harness.disk.behave(|b| b.manual = false);
        harness.disk.script([Answer::Fail(status)]);
        (0..2).for_each(|_| {
            harness.submit(0, Bio::flush());
            harness.run_dry(20);
        });
        let done: Vec<_> = harness.take_done(0).iter().map(|d| d.status).collect();
        assert_eq!((done, harness.q.failed_flush()), (vec![status, BlkStatus::Ok], None), "{stack:?}");
    }
}

#[test]
fn an_error_in_the_data_or_after_it_is_reported() {
    for stack in STACKS {
        for bad_step in 0..2 {
            let mut harness = harness(5, stack, 4, (true, false));
            let good = [Answer::Accept; 1];
            harness.disk.script(good.into_iter().take(bad_step).chain([Answer::Fail(BlkStatus::Medium)]));
            harness.submit(0, write(80).with_flags(OpFlags::FUA));
            harness.run(10);
            for _ in 0..=bad_step {
                complete_one(&mut harness);
            }
            assert_eq!(harness.take_done(0)[0].status, BlkStatus::Medium, "{stack:?} step {bad_step}");
            assert_eq!(harness.disk.issues().len(), bad_step + 1, "{stack:?}: nothing after the error");
            harness.check_idle();
        }
    }
}

#[test]
fn a_busy_driver_does_not_break_the_sequence() {
    let flags = OpFlags::PREFLUSH.union(OpFlags::FUA);
    for stack in STACKS {
        let mut harness = harness(6, stack, 2, (true, false));
        harness.disk.behave(|b| (b.manual, b.resource, b.device_cap) = (false, 500, 1));
        for n in 0..10 {
            harness.submit((n % 2) as usize, write(n * 80).with_flags(flags));
            harness.submit((n % 2) as usize, Bio::flush().with_user_data(1000 + n));
        }
        harness.run_dry(10_000);
        assert_eq!(harness.done.iter().map(Vec::len).sum::<usize>(), 20);
        let ops: Vec<Op> = harness.disk.issues().iter().map(|i| i.op).collect();
        assert_eq!((ops[0], *ops.last().expect("some")), (Op::Flush, Op::Flush), "{stack:?} {ops:?}");
        harness.check_idle();
        harness.disk.crash();
        for n in 0..10u64 {
            let kept = (0..8).all(|i| harness.disk.content(n * 80 + i) == harness.mem.get(n * 80 + i));
            assert!(kept, "{stack:?}: acknowledged data is gone");
        }
    }
}

#[test]
fn hardware_queues_flush_independently() {
    let mut b = Behaviour { manual: true, ..Behaviour::default() };
    b.limits.write_cache = true;
    let config =
        QueueConfig { topology: CpuTopology::uniform(2), scheduler: Some("none".into()), ..QueueConfig::default() };
    let mut harness = Harness::new(7, b, config, &[0, 1]);
    harness.submit(0, Bio::flush());
    harness.submit(1, Bio::flush());
    let hctxs: Vec<usize> = harness.disk.issues().iter().map(|i| i.hctx).collect();
    assert_eq!(hctxs, [0, 1], "two flush commands at once, one per hctx");
    harness.disk.release_all();
    harness.run_dry(20);
    harness.check_idle();
}
