// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Dispatch step by step, on a disk that the test controls: waiters for a tag and their wake-ups, restart marks,
//! one-by-one dispatch while the driver is busy, RESOURCE and DEV_RESOURCE.

use blk::bio::{Bio, DataRef, Op, OpFlags};
use blk::cpumap::CpuTopology;
use blk::id::Sector;
use blk::settings::{Mode, QueueConfig};
use blk::status::{BlkStatus, QueueRqStatus};
use blk::time::Instant;
use sim::disk::{Answer, Behaviour};
use sim::harness::Harness;

const MS: u64 = 1_000_000;

fn manual() -> Behaviour {
    Behaviour { manual: true, ..Behaviour::default() }
}

fn config(cpus: u16, hw: u16, depth: u32, scheduler: &str) -> QueueConfig {
    QueueConfig {
        topology: CpuTopology::uniform(cpus),
        nr_hw_queues: Some(hw),
        queue_depth: depth,
        scheduler: Some(scheduler.into()),
        nomerges: 2,
        ..QueueConfig::default()
    }
}

/// A read of 8 sectors at `n * 100`, so that nothing adjoins.
fn read(n: u64) -> Bio {
    Bio::read(Sector(n * 100), 8, DataRef::new(0, n << 12)).with_user_data(n)
}

fn sectors(harness: &Harness) -> Vec<u64> {
    harness.disk.issues().iter().map(|i| i.sector / 100).collect()
}

fn ended(harness: &mut Harness, s: usize) -> Vec<u64> {
    harness.take_done(s).iter().map(|d| d.user_data).collect()
}

#[test]
fn bios_without_a_tag_wait_in_order_for_a_freed_one() {
    let mut harness = Harness::new(1, manual(), config(1, 1, 2, "none"), &[0]);
    (0..5).for_each(|n| harness.submit(0, read(n)));
    assert_eq!(sectors(&harness), [0, 1]);
    assert_eq!((harness.subs[0].outstanding(), harness.subs[0].waiting()), (5, 3));
    harness.disk.release(|i| i.sector == 100);
    harness.poll(0);
    assert_eq!((ended(&mut harness, 0), sectors(&harness)), (vec![1], vec![0, 1, 2]));
    harness.disk.behave(|b| b.manual = false);
    harness.now += MS;
    harness.run_dry(100);
    assert_eq!(sectors(&harness), [0, 1, 2, 3, 4]);
    harness.check_idle();
}

#[test]
fn a_freed_tag_wakes_the_submitter_that_waited_longest() {
    let mut harness = Harness::new(2, manual(), config(4, 1, 1, "none"), &[0, 1, 2, 3]);
    (0..4).for_each(|s| harness.submit(s, read(s as u64)));
    assert_eq!(sectors(&harness), [0]);
    for next in 1..4 {
        harness.disk.release_all();
        let before = harness.notifications.order().len();
        // The owner of the tag polls; the woken submitter polls next and gets the tag.
        harness.poll(next - 1);
        assert_eq!(harness.notifications.order()[before..], [next], "the longest waiter, and no other");
        harness.poll(next);
        assert_eq!(sectors(&harness).last(), Some(&(next as u64)));
    }
    harness.disk.release_all();
    harness.poll(3);
    harness.check_idle();
}

#[test]
fn a_request_that_ends_while_it_is_issued_needs_no_poll() {
    let at_once = Behaviour { at_once: 1000, ..Behaviour::default() };
    for scheduler in ["none", "mq-deadline", "kyber"] {
        let mut harness = Harness::new(5, at_once.clone(), config(4, 1, 1, scheduler), &[0, 1]);
        (0..3).for_each(|n| harness.submit(0, read(n)));
        assert_eq!(sectors(&harness), [0, 1, 2], "{scheduler}: one tag serves them all");
        let ended: Vec<u64> = harness.take_done(0).iter().map(|d| d.user_data).collect();
        assert_eq!(ended, [0, 1, 2], "{scheduler}");
        // In a plug they complete when the plug is closed.
        harness.plug(0, 0);
        harness.submit(0, read(3));
        assert_eq!(harness.take_done(0).len(), 0);
        harness.unplug(0);
        assert_eq!(harness.take_done(0).len(), 1);
        assert_eq!((harness.disk.polls(), harness.notifications.order()), (0, vec![]), "{scheduler}");
        harness.check_idle();
    }
}

#[test]
fn a_rest_or_a_poll_releases_a_kept_tag() {
    for rests in [true, false] {
        let mut harness = Harness::new(6, manual(), config(4, 1, 1, "none"), &[0, 1]);
        harness.submit(0, read(0));
        harness.disk.release_all();
        harness.poll(0);
        // 0 keeps the only tag for its next request; 1 finds none.
        harness.submit(1, read(1));
        assert_eq!((sectors(&harness), harness.subs[1].waiting()), (vec![0], 1), "the tag is kept");
        if rests {
            harness.subs[0].rest();
        } else {
            harness.poll(0);
        }
        assert_eq!(harness.notifications.order(), [1], "and given up, with a wake-up");
        harness.poll(1);
        assert_eq!(sectors(&harness), [0, 1]);
        // With a waiter, the tag is not kept at all.
        harness.submit(0, read(2));
        assert_eq!(harness.subs[0].waiting(), 1);
        harness.disk.release_all();
        harness.poll(1);
        assert_eq!(harness.notifications.order(), [1, 0]);
        harness.disk.release_all();
        harness.poll(0);
        harness.disk.release_all();
        harness.run_dry(10);
        harness.check_idle();
    }
}

#[test]
fn a_kept_tag_of_another_hctx_is_given_up_too() {
    let c = QueueConfig { nr_read_queues: 1, ..config(2, 1, 1, "none") };
    let mut harness = Harness::new(7, Behaviour { at_once: 1000, ..Behaviour::default() }, c, &[0, 1]);
    harness.submit(0, read(0));
    harness.submit(1, read(1));
    assert_eq!(harness.subs[1].waiting(), 1, "0 keeps the tag of the read queue");
    harness.submit(0, Bio { op: Op::Write, ..read(2) });
    assert_eq!(harness.notifications.order(), [1]);
    harness.poll(1);
    assert_eq!(harness.take_done(1).len(), 1);
    harness.check_idle();
}

#[test]
fn a_submitter_that_stops_waiting_passes_its_wake_up_on() {
    // 1 tries without waiting and 3 waits behind it: the freed tag must not wake 1.
    let mut harness = Harness::new(3, manual(), config(4, 1, 1, "none"), &[0, 1, 3]);
    harness.submit(0, read(0));
    harness.submit(1, read(1).with_flags(OpFlags::NOWAIT));
    assert_eq!(harness.take_done(1)[0].status, BlkStatus::Again);
    harness.submit(2, read(2));
    harness.disk.release_all();
    harness.poll(0);
    assert_eq!(harness.notifications.order(), [2]);
    harness.poll(2);
    harness.disk.release_all();
    harness.poll(2);
    harness.check_idle();
}

#[test]
fn a_waiter_that_finds_a_tag_by_itself_leaves_the_wait_queue() {
    let mut harness = Harness::new(4, manual(), config(4, 1, 1, "none"), &[0, 1, 2]);
    (0..3).for_each(|s| harness.submit(s, read(s as u64)));
    harness.disk.release_all();
    harness.poll(0);
    // 1 was woken; before it runs, 2 takes the tag. 2 is no waiter any more, so the completion of its request must wake
    // 1 again.
    assert_eq!(harness.notifications.order(), [1]);
    harness.poll(2);
    harness.poll(1);
    assert_eq!(sectors(&harness), [0, 2]);
    harness.disk.release_all();
    harness.poll(2);
    assert_eq!(harness.notifications.order(), [1, 1]);
    harness.poll(1);
    assert_eq!(sectors(&harness), [0, 2, 1]);
    harness.disk.release_all();
    harness.poll(1);
    harness.check_idle();
}

#[test]
fn nowait_is_refused_also_behind_others_and_while_frozen() {
    let mut harness = Harness::new(5, manual(), config(1, 1, 1, "none"), &[0]);
    harness.submit(0, read(0));
    harness.submit(0, read(1));
    harness.submit(0, read(2).with_flags(OpFlags::NOWAIT));
    let done = harness.take_done(0);
    assert_eq!((done.len(), done[0].user_data, done[0].status), (1, 2, BlkStatus::Again));
    harness.disk.behave(|b| b.manual = false);
    harness.now += MS;
    harness.run_dry(100);
    harness.q.begin_freeze();
    harness.take_done(0);
    harness.submit(0, read(3).with_flags(OpFlags::NOWAIT));
    assert_eq!(harness.take_done(0)[0].status, BlkStatus::Again);
    harness.q.unfreeze();
}

#[test]
fn resource_is_tried_again_after_three_milliseconds() {
    let mut harness = Harness::new(6, manual(), config(1, 1, 4, "none"), &[0]);
    // Direct issue; at once from hctx->dispatch; then the delayed run.
    harness.disk.script([Answer::Refuse(QueueRqStatus::Resource), Answer::Refuse(QueueRqStatus::Resource)]);
    harness.submit(0, read(0));
    assert_eq!(harness.disk.calls().len(), 2);
    while harness.next_timer().is_some_and(|t| t.as_ns() <= harness.now) {
        harness.disk.script([Answer::Refuse(QueueRqStatus::Resource)]);
        harness.poll(0);
        assert!(harness.disk.calls().len() < 5, "the core does not wait");
    }
    assert_eq!(harness.next_timer(), Some(Instant::from_ns(harness.now + 3 * MS)));
    let calls = harness.disk.calls().len();
    harness.now += 3 * MS - 1;
    harness.poll(0);
    assert_eq!(harness.disk.calls().len(), calls, "too early");
    harness.now += 1;
    harness.poll(0);
    assert_eq!((harness.disk.calls().len(), sectors(&harness)), (calls + 1, vec![0]));
    harness.disk.release_all();
    harness.poll(0);
    harness.check_idle();
    assert_eq!(harness.next_timer(), None);
}

#[test]
fn dev_resource_is_retried_at_the_next_completion_only() {
    let mut harness = Harness::new(7, manual(), config(1, 1, 8, "none"), &[0]);
    harness.submit(0, read(0));
    harness.disk.behave(|b| b.device_cap = 1);
    harness.submit(0, read(1));
    harness.run(20);
    let calls = harness.disk.calls().len();
    assert_eq!(sectors(&harness), [0]);
    harness.now += 100 * MS;
    harness.poll(0);
    assert_eq!((harness.disk.calls().len(), harness.next_timer()), (calls, None), "nothing to try before a completion");
    harness.disk.release_all();
    harness.poll(0);
    assert_eq!(sectors(&harness), [0, 1]);
    harness.disk.release_all();
    harness.poll(0);
    harness.check_idle();
}

#[test]
fn dev_resource_is_retried_when_another_hctx_completes() {
    let mut harness = Harness::new(8, manual(), config(2, 2, 8, "none"), &[0, 1]);
    harness.disk.behave(|b| b.device_cap = 1);
    harness.submit(0, read(0));
    harness.submit(1, read(1));
    harness.run(20);
    assert_eq!(sectors(&harness), [0]);
    harness.disk.release_all();
    // The harness polls only submitters with a reason, so the run has to be pending.
    harness.run(20);
    assert_eq!(sectors(&harness), [0, 1]);
    harness.disk.release_all();
    harness.run_dry(20);
    harness.check_idle();
}

#[test]
fn an_error_answer_ends_one_request_and_the_rest_goes_on() {
    for scheduler in ["none", "mq-deadline", "kyber"] {
        let mut harness = Harness::new(9, manual(), config(1, 1, 8, scheduler), &[0]);
        let error = Answer::Refuse(QueueRqStatus::Error(BlkStatus::NoSpc));
        harness.disk.script([Answer::Accept, error, Answer::Accept]);
        harness.plug(0, 3);
        (0..3).for_each(|n| harness.submit(0, read(n)));
        harness.unplug(0);
        let done = harness.take_done(0);
        assert_eq!((done.len(), done[0].user_data, done[0].status), (1, 1, BlkStatus::NoSpc));
        assert_eq!(sectors(&harness), [0, 2]);
        harness.disk.release_all();
        harness.run_dry(20);
        assert_eq!(harness.q.stats().errors, 1);
        harness.check_idle();
    }
}

#[test]
fn a_driver_that_fails_everything_is_not_answered_by_recursion() {
    // On a small stack, several hundred nested runs would not fit.
    let small = std::thread::Builder::new().stack_size(256 << 10);
    let run = || {
        for (scheduler, sq) in [("mq-deadline", false), ("kyber", false), ("deadline", true)] {
            let mut c = config(1, 1, 1, scheduler);
            c.nr_requests = Some(1024);
            c.bios_per_submitter = 2048;
            if sq {
                c.mode = blk::settings::Mode::Sq;
            }
            let mut harness = Harness::new(10, Behaviour { issue_error: 1000, ..Behaviour::default() }, c, &[0]);
            harness.q.quiesce();
            (0..1000).for_each(|n| harness.submit(0, read(n)));
            harness.q.unquiesce();
            harness.run_dry(5000);
            assert_eq!(harness.done[0].len(), 1000);
            assert!(harness.done[0].iter().all(|d| d.status == BlkStatus::Medium));
            harness.check_idle();
        }
    };
    small.spawn(run).expect("a thread").join().expect("no overflow");
}

#[test]
fn freed_driver_tag_restarts_the_hctx_of_an_elevator() {
    let mut harness = Harness::new(11, manual(), config(1, 1, 2, "mq-deadline"), &[0]);
    assert_eq!(harness.q.nr_requests(), 4, "2 x depth");
    (0..4).for_each(|n| harness.submit(0, read(n)));
    harness.run(20);
    assert_eq!(
        (sectors(&harness), harness.subs[0].waiting()),
        (vec![0, 1], 0),
        "four have scheduler tags, two driver tags"
    );
    let before = harness.disk.calls().len();
    harness.disk.release(|i| i.sector == 0);
    harness.poll(0);
    assert_eq!((sectors(&harness), harness.disk.calls().len()), (vec![0, 1, 2], before + 1));
    harness.disk.release_all();
    harness.run(20);
    harness.disk.release_all();
    harness.run_dry(20);
    harness.check_idle();
}

#[test]
fn a_busy_driver_is_given_one_request_at_a_time() {
    let mut harness = Harness::new(12, manual(), config(2, 1, 64, "none"), &[0, 1]);
    harness.submit(0, read(0));
    harness.disk.behave(|b| b.device_cap = 1);
    harness.submit(0, read(1));
    harness.run(20);
    // The only hctx is busy, so new requests stay in the ctx lists, where they could be merged.
    let calls = harness.disk.calls().len();
    (2..6).for_each(|n| harness.submit(0, read(n)));
    (6..9).for_each(|n| harness.submit(1, read(n)));
    harness.disk.behave(|b| b.device_cap = 4);
    assert!(harness.disk.calls().len() <= calls + 14, "inserted, not issued");
    harness.disk.release_all();
    harness.run(20);
    let late: Vec<_> = harness.disk.issues().into_iter().skip(1).collect();
    assert!(late.windows(2).all(|w| w[0].batch < w[1].batch), "one request per call: {late:?}");
    harness.disk.behave(|b| (b.device_cap, b.manual) = (usize::MAX, false));
    harness.now += MS;
    harness.disk.release_all();
    harness.run_dry(100);
    // Round robin over the two contexts while both have requests.
    let from: Vec<u64> = sectors(&harness).into_iter().filter(|n| *n >= 2).map(|n| u64::from(n >= 6)).collect();
    assert_eq!(from[..6], [0, 1, 0, 1, 0, 1], "{:?}", sectors(&harness));
    harness.check_idle();
}

#[test]
fn quiesce_stops_driver_calls_and_unquiesce_runs_hctxs() {
    for scheduler in ["none", "mq-deadline", "kyber"] {
        let mut harness = Harness::new(13, manual(), config(2, 2, 8, scheduler), &[0, 1]);
        harness.q.quiesce();
        harness.q.quiesce();
        (0..2).for_each(|s| harness.submit(s, read(s as u64)));
        harness.run(20);
        harness.q.unquiesce();
        harness.run(20);
        assert_eq!(harness.disk.calls().len(), 0, "nested");
        harness.q.unquiesce();
        harness.run(20);
        assert_eq!(harness.disk.issues().len(), 2);
        harness.disk.release_all();
        harness.run_dry(20);
        harness.check_idle();
    }
}

#[test]
fn reserved_requests_find_a_tag_when_normal_ones_do_not() {
    for scheduler in ["none", "mq-deadline", "kyber"] {
        let c = QueueConfig { reserved_tags: 1, ..config(1, 1, 2, scheduler) };
        let mut harness = Harness::new(14, manual(), c, &[0, 0]);
        (0..2).for_each(|n| harness.submit(0, read(n)));
        harness.run(20);
        assert_eq!(sectors(&harness), [0], "{scheduler}");
        harness.submit(1, read(7).with_flags(OpFlags::RESERVED));
        harness.run(20);
        assert_eq!((harness.subs[0].outstanding(), harness.subs[1].waiting()), (2, 0), "it got its tag at once");
        if scheduler != "none" {
            // The elevator has dispatched request 1, which waits at the front until there is a driver tag.
            harness.disk.release_all();
            harness.run(20);
        }
        let last = harness.disk.issues().pop().expect("issued");
        assert_eq!((last.sector, last.tag), (700, 0), "{scheduler}: reserved tags are the lowest");
        harness.disk.release_all();
        harness.run(20);
        harness.disk.release_all();
        harness.run_dry(20);
        harness.check_idle();
    }
}

fn requeue_configs() -> [QueueConfig; 4] {
    let sq = QueueConfig { mode: Mode::Sq, nr_hw_queues: None, ..config(1, 1, 2, "noop") };
    [config(1, 1, 2, "none"), config(1, 1, 2, "mq-deadline"), config(1, 1, 2, "kyber"), sq]
}

#[test]
fn a_request_given_back_is_issued_again_before_what_is_queued() {
    for c in requeue_configs() {
        let name = format!("{} {:?}", c.mode, c.scheduler);
        let mut harness = Harness::new(31, manual(), c, &[0]);
        harness.disk.script([Answer::GiveBack(None)]);
        (0..4).for_each(|n| harness.submit(0, read(n)));
        assert_eq!(sectors(&harness), [0, 1], "{name}");
        harness.disk.release(|i| i.sector == 0);
        harness.poll(0);
        // An elevator has dispatched 2 already, which waits on hctx->dispatch, so only 3 is overtaken.
        let order =
            if name.contains("mq-deadline") || name.contains("kyber") { [0, 1, 2, 0, 3] } else { [0, 1, 0, 2, 3] };
        assert_eq!(sectors(&harness), order[..3], "{name}");
        assert_eq!((harness.take_done(0).len(), harness.q.hctx_stats()[0].requeues), (0, 1), "{name}");
        harness.disk.behave(|b| b.manual = false);
        harness.now += MS;
        harness.run_dry(1000);
        assert_eq!(sectors(&harness), order, "{name}");
        assert_eq!(harness.done[0].len(), 4);
        harness.check_idle();
    }
}

#[test]
fn delayed_requeue_is_issued_when_due_and_holds_up_a_freeze() {
    for c in requeue_configs() {
        let name = format!("{} {:?}", c.mode, c.scheduler);
        let mut harness = Harness::new(32, manual(), c, &[0]);
        harness.disk.script([Answer::GiveBack(Some(5 * MS)), Answer::GiveBack(Some(2 * MS))]);
        (0..2).for_each(|n| harness.submit(0, read(n)));
        harness.disk.release_all();
        harness.poll(0);
        let start = harness.now;
        assert_eq!((harness.disk.in_flight(), sectors(&harness)), (0, vec![0, 1]), "{name}");
        assert_eq!(harness.next_timer(), Some(Instant::from_ns(start + 2 * MS)), "{name}");
        harness.now = start + 2 * MS - 1;
        harness.poll(0);
        assert_eq!(sectors(&harness), [0, 1], "{name}: too early");
        harness.now += 1;
        harness.poll(0);
        assert_eq!(sectors(&harness), [0, 1, 1], "{name}");
        assert_eq!(harness.next_timer(), Some(Instant::from_ns(start + 5 * MS)), "{name}");
        harness.q.begin_freeze();
        harness.disk.release_all();
        harness.poll(0);
        assert!(!harness.q.is_drained(), "{name}: one is still waiting");
        harness.disk.behave(|b| b.manual = false);
        harness.drain();
        assert!(harness.now >= start + 5 * MS, "{name}");
        harness.q.unfreeze();
        assert_eq!(sectors(&harness), [0, 1, 1, 0], "{name}");
        harness.run_dry(100);
        harness.check_idle();
    }
}

/// Writes are issued again once a second, as long as that is set. Other operations fail.
#[test]
fn a_write_that_finds_no_space_is_held() {
    for c in requeue_configs() {
        let name = format!("{} {:?}", c.mode, c.scheduler);
        let mut harness = Harness::new(34, manual(), c, &[0]);
        harness.q.set_hold_on_enospc(true);
        harness.disk.script(vec![Answer::Fail(BlkStatus::NoSpc); 4]);
        harness.submit(0, Bio { op: Op::Write, ..read(0) });
        for held in 1..=2 {
            harness.disk.release_all();
            harness.poll(0);
            assert_eq!((harness.take_done(0).len(), harness.q.held_on_enospc()), (0, held), "{name}");
            harness.now += 1000 * MS - 1;
            harness.poll(0);
            assert_eq!(harness.disk.in_flight(), 0, "{name}: too early");
            harness.now += 1;
            harness.poll(0);
            assert_eq!(sectors(&harness), vec![0; 1 + held as usize], "{name}");
        }
        harness.q.set_hold_on_enospc(false);
        harness.disk.release_all();
        harness.poll(0);
        assert_eq!(harness.take_done(0)[0].status, BlkStatus::NoSpc, "{name}");
        harness.q.set_hold_on_enospc(true);
        harness.submit(0, read(1));
        harness.disk.release_all();
        harness.poll(0);
        assert_eq!(harness.take_done(0)[0].status, BlkStatus::NoSpc, "{name}: a read");
        assert_eq!(harness.q.held_on_enospc(), 2);
        harness.check_idle();
    }
}

#[test]
fn steps_of_a_flush_and_reserved_requests_may_be_given_back() {
    for scheduler in ["none", "mq-deadline", "kyber"] {
        let mut behaviour = Behaviour::default();
        behaviour.limits.write_cache = true;
        let mut harness =
            Harness::new(33, behaviour, QueueConfig { reserved_tags: 1, ..config(1, 1, 4, scheduler) }, &[0]);
        harness.disk.script([Answer::GiveBack(None), Answer::Accept, Answer::GiveBack(Some(MS)), Answer::Accept]);
        let both = OpFlags::PREFLUSH.union(OpFlags::FUA);
        harness.submit(0, Bio { op: blk::bio::Op::Write, ..read(7) }.with_flags(both));
        harness.run_dry(1000);
        assert_eq!(harness.disk.issues().len(), 5, "flush twice, data twice, flush: {scheduler}");
        harness.disk.script([Answer::GiveBack(None)]);
        harness.submit(0, read(9).with_flags(OpFlags::RESERVED));
        harness.run_dry(1000);
        assert_eq!(sectors(&harness)[5..], [9, 9], "{scheduler}");
        assert!(harness.done[0].iter().all(|d| d.status.is_ok()));
        harness.check_idle();
    }
}
