// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loom explores every interleaving with up to two preemptions of two threads in the whole block layer.
//!
//! The code under test is the shipped code: submitters, tags, dispatch, completion, freeze and timer, on a device that is a
//! list. Fields of requests and bios are loom atomics too, so a transfer that does not order memory causes a wrong value.
//! Threads sleep on loom's condition variable, and nothing but a completion or a notification ends a sleep: a lost wake-up
//! is a deadlock.
//!
//! Run with `cargo xtask loom`; `LOOM_MAX_PREEMPTIONS` overrides the bound. docs/concurrency.md lists the faults that
//! were inserted to see these models fail, and the faults that no model finds.

use crate::model;

use blk::queue::RequestQueue;
use blk::settings::{Mode, QueueConfig};
use blk::status::QueueRqStatus;
use blk::time::Duration;
use model::explore::{explore, in_parallel, one, one_each, spawn, two};
use model::{Device, Kind, Lock, Thread, check_drained, config, disk};

/// Two submitters that do the same `work` on a fresh disk.
fn explore_two(kind: Kind, config: impl Fn() -> QueueConfig + Send + Sync + 'static, work: fn(&mut Thread)) {
    explore(move || {
        let device = Device::new(kind);
        let q = disk(&device, config());
        in_parallel(Thread::new(&q, &device, 0), Thread::new(&q, &device, 1), work);
        check_drained(&q);
    });
}

/// Two submitters with one bio each; the first bio is at the device when the second thread starts.
fn explore_second(kind: Kind, config: impl Fn() -> QueueConfig + Send + Sync + Copy + 'static) {
    explore(move || second(kind, config(), true));
    explore(move || second(kind, config(), false));
}

fn second(kind: Kind, config: QueueConfig, first_starts: bool) {
    let device = Device::new(kind);
    let q = disk(&device, config);
    one_each(Thread::new(&q, &device, 0), Thread::new(&q, &device, 1), first_starts);
    check_drained(&q);
}

#[test]
fn two_submitters_share_one_tag() {
    explore_two(Kind::Ready, || config(2, 1, 1, "none"), one);
}

#[test]
fn a_plug_takes_the_tags_of_both() {
    explore_two(Kind::Ready, || config(2, 1, 2, "none"), two);
}

#[test]
fn the_next_driver_tag_restarts_the_hctx() {
    explore_second(Kind::Ready, || config(2, 1, 1, "mq-deadline"));
}

#[test]
fn a_busy_device_is_asked_again_by_the_next_completion() {
    explore_second(Kind::Holds1(QueueRqStatus::DevResource), || config(2, 2, 2, "none"));
}

#[test]
fn a_busy_device_under_an_elevator() {
    explore_second(Kind::Holds1(QueueRqStatus::DevResource), || config(2, 1, 2, "mq-deadline"));
}

#[test]
fn a_driver_without_resources_is_asked_again_after_a_time() {
    explore_two(Kind::Holds1(QueueRqStatus::Resource), || config(2, 1, 2, "none"), one);
}

#[test]
fn an_end_inside_the_driver_serves_waiters() {
    explore_two(Kind::Inline, || config(2, 1, 1, "none"), one);
}

#[test]
fn a_completion_goes_to_its_submitter() {
    for rq_affinity in [0, 2] {
        explore_two(Kind::Ready, move || QueueConfig { rq_affinity, ..config(2, 1, 2, "none") }, one);
    }
}

#[test]
fn bfq_says_when_to_look_again() {
    explore(|| second(Kind::Ready, config(2, 1, 1, "bfq"), true));
}

#[test]
fn k2_is_run_by_the_next_completion() {
    explore(|| second(Kind::Ready, config(2, 1, 2, "k2"), true));
}

#[test]
fn kyber_is_run_by_the_next_driver_tag() {
    explore(|| second(Kind::Ready, config(2, 1, 1, "kyber"), false));
}

#[test]
fn the_single_queue() {
    let sq = || QueueConfig { mode: Mode::Sq, nr_hw_queues: None, ..config(2, 1, 1, "deadline") };
    explore_two(Kind::Ready, sq, one);
}

/// Freezes and checks once; when the queue is drained, no request may come until it is unfrozen.
fn freeze_once(q: &RequestQueue<Lock>, device: &Device, then: impl FnOnce()) {
    q.begin_freeze();
    if q.is_drained() {
        device.shut(true);
        then();
        device.shut(false);
    }
    q.unfreeze();
}

#[test]
fn no_submitter_enters_a_drained_queue() {
    explore(|| {
        let device = Device::new(Kind::Ready);
        let q = disk(&device, config(2, 1, 2, "none"));
        let mut t = Thread::new(&q, &device, 1);
        let worker = spawn(move || one(&mut t));
        freeze_once(&q, &device, || ());
        worker.join().unwrap();
        check_drained(&q);
    });
}

#[test]
fn a_rebuilt_queue_is_entered_with_its_new_state() {
    explore(|| {
        let device = Device::new(Kind::Ready);
        let q = disk(&device, config(2, 1, 2, "none"));
        let mut t = Thread::new(&q, &device, 1);
        let worker = spawn(move || one(&mut t));
        freeze_once(&q, &device, || {
            q.rebuild(|c| {
                c.nr_hw_queues = Some(2);
                Ok(())
            })
            .expect("good settings");
        });
        worker.join().unwrap();
        check_drained(&q);
    });
}

#[test]
fn an_unquiesced_queue_is_run() {
    for scheduler in ["none", "mq-deadline"] {
        explore(move || {
            let device = Device::new(Kind::Ready);
            let q = disk(&device, config(2, 1, 2, scheduler));
            q.quiesce();
            let mut t = Thread::new(&q, &device, 0);
            let worker = spawn(move || one(&mut t));
            q.unquiesce();
            worker.join().unwrap();
            check_drained(&q);
        });
    }
}

/// The lists of two CPUs under one hctx, filled while it is stopped and taken by the thread that runs it.
#[test]
fn a_ctx_list_filled_during_a_run_is_found() {
    explore(move || {
        let device = Device::new(Kind::Ready);
        let q = disk(&device, config(2, 1, 2, "none"));
        q.quiesce();
        let (mut a, mut b) = (Thread::new(&q, &device, 0), Thread::new(&q, &device, 1));
        let worker = spawn(move || one(&mut a));
        b.submit(1);
        q.unquiesce();
        b.finish();
        worker.join().unwrap();
        drop(b);
        check_drained(&q);
    });
}

/// One thread puts its second request into its list while another takes the first out. The inserter checks the list's bit
/// itself afterwards, so a bit cleared too late shows only with three preemptions.
#[test]
fn a_ctx_list_filled_while_it_is_taken_keeps_its_bit() {
    explore(|| {
        let device = Device::new(Kind::Ready);
        let q = disk(&device, config(2, 1, 2, "none"));
        q.quiesce();
        let (mut a, mut b) = (Thread::new(&q, &device, 0), Thread::new(&q, &device, 1));
        a.submit(1);
        let disk = q.clone();
        let runner = spawn(move || {
            disk.unquiesce();
            b.finish();
        });
        one(&mut a);
        runner.join().unwrap();
        drop(a);
        check_drained(&q);
    });
}

/// One thread checks all requests when the timer is due and finds none, while another issues a request after it saw the
/// timer armed. That request has to be watched, too. Catches: a submitter that rests without checking the timer, or a
/// missing fence.
#[test]
fn a_request_issued_during_a_look_is_watched() {
    explore(|| {
        let device = Device::new(Kind::Silent);
        let q = disk(&device, QueueConfig { io_timeout_ms: 1000, ..config(2, 2, 2, "none") });
        let (mut a, mut b) = (Thread::new(&q, &device, 0), Thread::new(&q, &device, 1));
        a.submit(1);
        a.sub.rest();
        a.now = q.next_timer().expect("armed by the first request");
        assert!(a.poll(), "a request that is late is asked about");
        a.sub.rest();
        let due = q.next_timer().expect("another look, though nothing will be found");
        (a.now, b.now) = (due, due);
        let looker = spawn(move || {
            a.poll();
            a.sub.rest();
        });
        b.submit(1);
        b.sub.rest();
        looker.join().unwrap();
        let mut polls = 0;
        while !b.poll() {
            polls += 1;
            assert!(polls < 4, "never found late");
            b.sub.rest();
            b.now = b.now.max(q.next_timer().expect("a request at the driver is not watched"));
        }
        assert!(b.now <= due + Duration::from_secs(6), "found late only at {:?}", b.now);
        b.sub.rest();
        drop(b);
        check_drained(&q);
    });
}
