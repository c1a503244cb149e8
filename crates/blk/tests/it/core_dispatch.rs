// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Dispatch step by step, on a disk that does what the test says: who waits for a tag and who is woken, restart marks,
//! one-by-one dispatch while the driver is busy, RESOURCE and DEV_RESOURCE.

use blk::bio::{Bio, DataRef, Op, OpFlags};
use blk::cpumap::CpuTopology;
use blk::id::Sector;
use blk::settings::{Mode, QueueConfig};
use blk::status::{BlkStatus, QueueRqStatus};
use blk::time::Instant;
use sim::disk::{Answer, Behaviour};
use sim::rig::Rig;

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

fn sectors(rig: &Rig) -> Vec<u64> {
    rig.disk.issues().iter().map(|i| i.sector / 100).collect()
}

fn ended(rig: &mut Rig, s: usize) -> Vec<u64> {
    rig.take_done(s).iter().map(|d| d.user_data).collect()
}

#[test]
fn a_bio_without_a_tag_waits_in_order_and_goes_when_a_tag_is_freed() {
    let mut rig = Rig::new(1, manual(), config(1, 1, 2, "none"), &[0]);
    (0..5).for_each(|n| rig.submit(0, read(n)));
    assert_eq!(sectors(&rig), [0, 1]);
    assert_eq!((rig.subs[0].outstanding(), rig.subs[0].waiting()), (5, 3));
    rig.disk.release(|i| i.sector == 100);
    rig.poll(0);
    assert_eq!((ended(&mut rig, 0), sectors(&rig)), (vec![1], vec![0, 1, 2]));
    rig.disk.behave(|b| b.manual = false);
    rig.now += MS;
    rig.run_dry(100);
    assert_eq!(sectors(&rig), [0, 1, 2, 3, 4]);
    rig.check_idle();
}

#[test]
fn a_freed_tag_wakes_the_submitter_that_waited_longest() {
    let mut rig = Rig::new(2, manual(), config(4, 1, 1, "none"), &[0, 1, 2, 3]);
    (0..4).for_each(|s| rig.submit(s, read(s as u64)));
    assert_eq!(sectors(&rig), [0]);
    for next in 1..4 {
        rig.disk.release_all();
        let before = rig.bell.order().len();
        // The owner of the tag polls; who is woken polls next and gets the tag.
        rig.poll(next - 1);
        assert_eq!(rig.bell.order()[before..], [next], "who waited longest, and nobody else");
        rig.poll(next);
        assert_eq!(sectors(&rig).last(), Some(&(next as u64)));
    }
    rig.disk.release_all();
    rig.poll(3);
    rig.check_idle();
}

#[test]
fn a_request_that_ends_while_it_is_issued_needs_no_poll() {
    let at_once = Behaviour { at_once: 1000, ..Behaviour::default() };
    for scheduler in ["none", "mq-deadline", "kyber"] {
        let mut rig = Rig::new(5, at_once.clone(), config(4, 1, 1, scheduler), &[0, 1]);
        (0..3).for_each(|n| rig.submit(0, read(n)));
        assert_eq!(sectors(&rig), [0, 1, 2], "{scheduler}: one tag serves them all");
        let ended: Vec<u64> = rig.take_done(0).iter().map(|d| d.user_data).collect();
        assert_eq!(ended, [0, 1, 2], "{scheduler}");
        // In a plug they end when it is closed.
        rig.plug(0, 0);
        rig.submit(0, read(3));
        assert_eq!(rig.take_done(0).len(), 0);
        rig.unplug(0);
        assert_eq!(rig.take_done(0).len(), 1);
        assert_eq!((rig.disk.polls(), rig.bell.order()), (0, vec![]), "{scheduler}");
        rig.check_idle();
    }
}

#[test]
fn a_kept_tag_is_given_up_by_who_rests_or_polls() {
    for rests in [true, false] {
        let mut rig = Rig::new(6, manual(), config(4, 1, 1, "none"), &[0, 1]);
        rig.submit(0, read(0));
        rig.disk.release_all();
        rig.poll(0);
        // 0 keeps the only tag for its next request; 1 finds none.
        rig.submit(1, read(1));
        assert_eq!((sectors(&rig), rig.subs[1].waiting()), (vec![0], 1), "the tag is kept");
        if rests {
            rig.subs[0].rest();
        } else {
            rig.poll(0);
        }
        assert_eq!(rig.bell.order(), [1], "and given up, with a wake-up");
        rig.poll(1);
        assert_eq!(sectors(&rig), [0, 1]);
        // With somebody waiting it is not kept at all.
        rig.submit(0, read(2));
        assert_eq!(rig.subs[0].waiting(), 1);
        rig.disk.release_all();
        rig.poll(1);
        assert_eq!(rig.bell.order(), [1, 0]);
        rig.disk.release_all();
        rig.poll(0);
        rig.disk.release_all();
        rig.run_dry(10);
        rig.check_idle();
    }
}

#[test]
fn a_kept_tag_of_another_hctx_is_given_up_too() {
    let c = QueueConfig { nr_read_queues: 1, ..config(2, 1, 1, "none") };
    let mut rig = Rig::new(7, Behaviour { at_once: 1000, ..Behaviour::default() }, c, &[0, 1]);
    rig.submit(0, read(0));
    rig.submit(1, read(1));
    assert_eq!(rig.subs[1].waiting(), 1, "0 keeps the tag of the read queue");
    rig.submit(0, Bio { op: Op::Write, ..read(2) });
    assert_eq!(rig.bell.order(), [1]);
    rig.poll(1);
    assert_eq!(rig.take_done(1).len(), 1);
    rig.check_idle();
}

#[test]
fn who_stops_waiting_passes_the_wake_up_on() {
    // 1 tries without waiting and 3 waits behind it: the tag that comes free must not be announced to 1.
    let mut rig = Rig::new(3, manual(), config(4, 1, 1, "none"), &[0, 1, 3]);
    rig.submit(0, read(0));
    rig.submit(1, read(1).with_flags(OpFlags::NOWAIT));
    assert_eq!(rig.take_done(1)[0].status, BlkStatus::Again);
    rig.submit(2, read(2));
    rig.disk.release_all();
    rig.poll(0);
    assert_eq!(rig.bell.order(), [2]);
    rig.poll(2);
    rig.disk.release_all();
    rig.poll(2);
    rig.check_idle();
}

#[test]
fn a_waiter_that_finds_a_tag_by_itself_leaves_the_wait_queue() {
    let mut rig = Rig::new(4, manual(), config(4, 1, 1, "none"), &[0, 1, 2]);
    (0..3).for_each(|s| rig.submit(s, read(s as u64)));
    rig.disk.release_all();
    rig.poll(0);
    // 1 was woken; before it runs, 2 takes the tag. 2 is no waiter any more: its own end must wake 1 again.
    assert_eq!(rig.bell.order(), [1]);
    rig.poll(2);
    rig.poll(1);
    assert_eq!(sectors(&rig), [0, 2]);
    rig.disk.release_all();
    rig.poll(2);
    assert_eq!(rig.bell.order(), [1, 1]);
    rig.poll(1);
    assert_eq!(sectors(&rig), [0, 2, 1]);
    rig.disk.release_all();
    rig.poll(1);
    rig.check_idle();
}

#[test]
fn nowait_is_refused_also_behind_others_and_while_frozen() {
    let mut rig = Rig::new(5, manual(), config(1, 1, 1, "none"), &[0]);
    rig.submit(0, read(0));
    rig.submit(0, read(1));
    rig.submit(0, read(2).with_flags(OpFlags::NOWAIT));
    let done = rig.take_done(0);
    assert_eq!((done.len(), done[0].user_data, done[0].status), (1, 2, BlkStatus::Again));
    rig.disk.behave(|b| b.manual = false);
    rig.now += MS;
    rig.run_dry(100);
    rig.q.begin_freeze();
    rig.take_done(0);
    rig.submit(0, read(3).with_flags(OpFlags::NOWAIT));
    assert_eq!(rig.take_done(0)[0].status, BlkStatus::Again);
    rig.q.unfreeze();
}

#[test]
fn resource_is_tried_again_after_three_milliseconds() {
    let mut rig = Rig::new(6, manual(), config(1, 1, 4, "none"), &[0]);
    // Direct issue; at once from hctx->dispatch; then the delayed run.
    rig.disk.script([Answer::Refuse(QueueRqStatus::Resource), Answer::Refuse(QueueRqStatus::Resource)]);
    rig.submit(0, read(0));
    assert_eq!(rig.disk.calls().len(), 2);
    while rig.next_timer().is_some_and(|t| t.as_ns() <= rig.now) {
        rig.disk.script([Answer::Refuse(QueueRqStatus::Resource)]);
        rig.poll(0);
        assert!(rig.disk.calls().len() < 5, "the core does not wait");
    }
    assert_eq!(rig.next_timer(), Some(Instant::from_ns(rig.now + 3 * MS)));
    let calls = rig.disk.calls().len();
    rig.now += 3 * MS - 1;
    rig.poll(0);
    assert_eq!(rig.disk.calls().len(), calls, "too early");
    rig.now += 1;
    rig.poll(0);
    assert_eq!((rig.disk.calls().len(), sectors(&rig)), (calls + 1, vec![0]));
    rig.disk.release_all();
    rig.poll(0);
    rig.check_idle();
    assert_eq!(rig.next_timer(), None);
}

#[test]
fn dev_resource_is_tried_again_at_the_next_completion_and_not_before() {
    let mut rig = Rig::new(7, manual(), config(1, 1, 8, "none"), &[0]);
    rig.submit(0, read(0));
    rig.disk.behave(|b| b.device_cap = 1);
    rig.submit(0, read(1));
    rig.run(20);
    let calls = rig.disk.calls().len();
    assert_eq!(sectors(&rig), [0]);
    rig.now += 100 * MS;
    rig.poll(0);
    assert_eq!((rig.disk.calls().len(), rig.next_timer()), (calls, None), "nothing to try before a completion");
    rig.disk.release_all();
    rig.poll(0);
    assert_eq!(sectors(&rig), [0, 1]);
    rig.disk.release_all();
    rig.poll(0);
    rig.check_idle();
}

#[test]
fn dev_resource_on_one_hctx_is_tried_again_when_another_hctx_completes() {
    let mut rig = Rig::new(8, manual(), config(2, 2, 8, "none"), &[0, 1]);
    rig.disk.behave(|b| b.device_cap = 1);
    rig.submit(0, read(0));
    rig.submit(1, read(1));
    rig.run(20);
    assert_eq!(sectors(&rig), [0]);
    rig.disk.release_all();
    // Only somebody with a reason is polled: the run has to be owed.
    rig.run(20);
    assert_eq!(sectors(&rig), [0, 1]);
    rig.disk.release_all();
    rig.run_dry(20);
    rig.check_idle();
}

#[test]
fn an_error_answer_ends_one_request_and_the_rest_goes_on() {
    for scheduler in ["none", "mq-deadline", "kyber"] {
        let mut rig = Rig::new(9, manual(), config(1, 1, 8, scheduler), &[0]);
        let error = Answer::Refuse(QueueRqStatus::Error(BlkStatus::NoSpc));
        rig.disk.script([Answer::Accept, error, Answer::Accept]);
        rig.plug(0, 3);
        (0..3).for_each(|n| rig.submit(0, read(n)));
        rig.unplug(0);
        let done = rig.take_done(0);
        assert_eq!((done.len(), done[0].user_data, done[0].status), (1, 1, BlkStatus::NoSpc));
        assert_eq!(sectors(&rig), [0, 2]);
        rig.disk.release_all();
        rig.run_dry(20);
        assert_eq!(rig.q.stats().errors, 1);
        rig.check_idle();
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
            let mut rig = Rig::new(10, Behaviour { issue_error: 1000, ..Behaviour::default() }, c, &[0]);
            rig.q.quiesce();
            (0..1000).for_each(|n| rig.submit(0, read(n)));
            rig.q.unquiesce();
            rig.run_dry(5000);
            assert_eq!(rig.done[0].len(), 1000);
            assert!(rig.done[0].iter().all(|d| d.status == BlkStatus::Medium));
            rig.check_idle();
        }
    };
    small.spawn(run).expect("a thread").join().expect("no overflow");
}

#[test]
fn with_an_elevator_a_missing_driver_tag_restarts_the_hctx_when_one_is_freed() {
    let mut rig = Rig::new(11, manual(), config(1, 1, 2, "mq-deadline"), &[0]);
    assert_eq!(rig.q.nr_requests(), 4, "2 x depth");
    (0..4).for_each(|n| rig.submit(0, read(n)));
    rig.run(20);
    assert_eq!((sectors(&rig), rig.subs[0].waiting()), (vec![0, 1], 0), "four have scheduler tags, two driver tags");
    let before = rig.disk.calls().len();
    rig.disk.release(|i| i.sector == 0);
    rig.poll(0);
    assert_eq!((sectors(&rig), rig.disk.calls().len()), (vec![0, 1, 2], before + 1));
    rig.disk.release_all();
    rig.run(20);
    rig.disk.release_all();
    rig.run_dry(20);
    rig.check_idle();
}

#[test]
fn a_busy_driver_is_given_one_request_at_a_time() {
    let mut rig = Rig::new(12, manual(), config(2, 1, 64, "none"), &[0, 1]);
    rig.submit(0, read(0));
    rig.disk.behave(|b| b.device_cap = 1);
    rig.submit(0, read(1));
    rig.run(20);
    // The hctx is busy and the only one: what comes now stays in the ctx lists, where it could be merged.
    let calls = rig.disk.calls().len();
    (2..6).for_each(|n| rig.submit(0, read(n)));
    (6..9).for_each(|n| rig.submit(1, read(n)));
    rig.disk.behave(|b| b.device_cap = 4);
    assert!(rig.disk.calls().len() <= calls + 14, "inserted, not issued");
    rig.disk.release_all();
    rig.run(20);
    let late: Vec<_> = rig.disk.issues().into_iter().skip(1).collect();
    assert!(late.windows(2).all(|w| w[0].batch < w[1].batch), "one request per call: {late:?}");
    rig.disk.behave(|b| (b.device_cap, b.manual) = (usize::MAX, false));
    rig.now += MS;
    rig.disk.release_all();
    rig.run_dry(100);
    // Round robin over the two contexts while both had some.
    let from: Vec<u64> = sectors(&rig).into_iter().filter(|n| *n >= 2).map(|n| u64::from(n >= 6)).collect();
    assert_eq!(from[..6], [0, 1, 0, 1, 0, 1], "{:?}", sectors(&rig));
    rig.check_idle();
}

#[test]
fn quiesced_means_no_call_of_the_driver_and_unquiesce_owes_the_run() {
    for scheduler in ["none", "mq-deadline", "kyber"] {
        let mut rig = Rig::new(13, manual(), config(2, 2, 8, scheduler), &[0, 1]);
        rig.q.quiesce();
        rig.q.quiesce();
        (0..2).for_each(|s| rig.submit(s, read(s as u64)));
        rig.run(20);
        rig.q.unquiesce();
        rig.run(20);
        assert_eq!(rig.disk.calls().len(), 0, "nested");
        rig.q.unquiesce();
        rig.run(20);
        assert_eq!(rig.disk.issues().len(), 2);
        rig.disk.release_all();
        rig.run_dry(20);
        rig.check_idle();
    }
}

#[test]
fn reserved_requests_find_a_tag_when_normal_ones_do_not() {
    for scheduler in ["none", "mq-deadline", "kyber"] {
        let c = QueueConfig { reserved_tags: 1, ..config(1, 1, 2, scheduler) };
        let mut rig = Rig::new(14, manual(), c, &[0, 0]);
        (0..2).for_each(|n| rig.submit(0, read(n)));
        rig.run(20);
        assert_eq!(sectors(&rig), [0], "{scheduler}");
        rig.submit(1, read(7).with_flags(OpFlags::RESERVED));
        rig.run(20);
        assert_eq!((rig.subs[0].outstanding(), rig.subs[1].waiting()), (2, 0), "it got its tag at once");
        if scheduler != "none" {
            // The elevator has handed out request 1, which holds the place in front until there is a driver tag.
            rig.disk.release_all();
            rig.run(20);
        }
        let last = rig.disk.issues().pop().expect("issued");
        assert_eq!((last.sector, last.tag), (700, 0), "{scheduler}: reserved tags are the lowest");
        rig.disk.release_all();
        rig.run(20);
        rig.disk.release_all();
        rig.run_dry(20);
        rig.check_idle();
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
        let mut rig = Rig::new(31, manual(), c, &[0]);
        rig.disk.script([Answer::GiveBack(None)]);
        (0..4).for_each(|n| rig.submit(0, read(n)));
        assert_eq!(sectors(&rig), [0, 1], "{name}");
        rig.disk.release(|i| i.sector == 0);
        rig.poll(0);
        // An elevator had given out 2 already, which waits on hctx->dispatch: only 3 is overtaken.
        let order =
            if name.contains("mq-deadline") || name.contains("kyber") { [0, 1, 2, 0, 3] } else { [0, 1, 0, 2, 3] };
        assert_eq!(sectors(&rig), order[..3], "{name}");
        assert_eq!((rig.take_done(0).len(), rig.q.hctx_stats()[0].requeues), (0, 1), "{name}");
        rig.disk.behave(|b| b.manual = false);
        rig.now += MS;
        rig.run_dry(1000);
        assert_eq!(sectors(&rig), order, "{name}");
        assert_eq!(rig.done[0].len(), 4);
        rig.check_idle();
    }
}

#[test]
fn a_delayed_requeue_is_issued_when_it_is_due_and_a_freeze_waits_for_it() {
    for c in requeue_configs() {
        let name = format!("{} {:?}", c.mode, c.scheduler);
        let mut rig = Rig::new(32, manual(), c, &[0]);
        rig.disk.script([Answer::GiveBack(Some(5 * MS)), Answer::GiveBack(Some(2 * MS))]);
        (0..2).for_each(|n| rig.submit(0, read(n)));
        rig.disk.release_all();
        rig.poll(0);
        let start = rig.now;
        assert_eq!((rig.disk.in_flight(), sectors(&rig)), (0, vec![0, 1]), "{name}");
        assert_eq!(rig.next_timer(), Some(Instant::from_ns(start + 2 * MS)), "{name}");
        rig.now = start + 2 * MS - 1;
        rig.poll(0);
        assert_eq!(sectors(&rig), [0, 1], "{name}: too early");
        rig.now += 1;
        rig.poll(0);
        assert_eq!(sectors(&rig), [0, 1, 1], "{name}");
        assert_eq!(rig.next_timer(), Some(Instant::from_ns(start + 5 * MS)), "{name}");
        rig.q.begin_freeze();
        rig.disk.release_all();
        rig.poll(0);
        assert!(!rig.q.is_drained(), "{name}: one is still waiting");
        rig.disk.behave(|b| b.manual = false);
        rig.drain();
        assert!(rig.now >= start + 5 * MS, "{name}");
        rig.q.unfreeze();
        assert_eq!(sectors(&rig), [0, 1, 1, 0], "{name}");
        rig.run_dry(100);
        rig.check_idle();
    }
}

#[test]
fn steps_of_a_flush_and_reserved_requests_may_be_given_back() {
    for scheduler in ["none", "mq-deadline", "kyber"] {
        let mut behaviour = Behaviour::default();
        behaviour.limits.write_cache = true;
        let mut rig = Rig::new(33, behaviour, QueueConfig { reserved_tags: 1, ..config(1, 1, 4, scheduler) }, &[0]);
        rig.disk.script([Answer::GiveBack(None), Answer::Accept, Answer::GiveBack(Some(MS)), Answer::Accept]);
        let both = OpFlags::PREFLUSH.union(OpFlags::FUA);
        rig.submit(0, Bio { op: blk::bio::Op::Write, ..read(7) }.with_flags(both));
        rig.run_dry(1000);
        assert_eq!(rig.disk.issues().len(), 5, "flush twice, data twice, flush: {scheduler}");
        rig.disk.script([Answer::GiveBack(None)]);
        rig.submit(0, read(9).with_flags(OpFlags::RESERVED));
        rig.run_dry(1000);
        assert_eq!(sectors(&rig)[5..], [9, 9], "{scheduler}");
        assert!(rig.done[0].iter().all(|d| d.status.is_ok()));
        rig.check_idle();
    }
}
