// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Interleavings of two threads that are rare with real threads, made by hand: one submitter is in the driver's
//! `queue_rqs`, and before it sees the returned status, another submitter changes something on which that status
//! depended.

use blk::bio::{Bio, DataRef};
use blk::cpumap::CpuTopology;
use blk::id::Sector;
use blk::settings::{Mode, QueueConfig};
use blk::status::QueueRqStatus;
use blk::time::Instant;
use sim::disk::{Answer, Behaviour};
use sim::harness::Harness;
use std::sync::{Arc, Mutex};

fn harness(mode: Mode, scheduler: &str, hw: u16, depth: u32) -> Harness {
    let config = QueueConfig {
        mode,
        topology: CpuTopology::uniform(2),
        nr_hw_queues: (mode == Mode::Mq).then_some(hw),
        queue_depth: depth,
        scheduler: Some(scheduler.into()),
        nomerges: 2,
        ..QueueConfig::default()
    };
    Harness::new(1, Behaviour { manual: true, ..Behaviour::default() }, config, &[0, 1])
}

fn read(n: u64) -> Bio {
    Bio::read(Sector(n * 100), 8, DataRef::new(0, n << 12)).with_user_data(n)
}

/// Submitter 1 has request 0 at the driver, which is finished. It polls the completion at the end of a later driver
/// call, after `skip` others; `act` does what submitter 0 does meanwhile. Afterwards submitter 1 is back in the harness.
fn while_the_other_completes(harness: &mut Harness, skip: usize, act: impl FnOnce(&mut Harness)) {
    harness.submit(1, read(0));
    harness.disk.release_all();
    let other = Arc::new(Mutex::new(harness.subs.pop()));
    let (there, now) = (other.clone(), harness.now);
    harness.disk.interleave(skip, move || {
        let mut other = there.lock().expect("no test panics here");
        other.as_mut().expect("not back yet").poll(Instant::from_ns(now));
    });
    act(harness);
    assert_eq!(Arc::strong_count(&other), 1, "the driver call to interleave with never came");
    let back = other.lock().expect("no test panics here").take();
    harness.subs.push(back.expect("put there above"));
}

fn finish(harness: &mut Harness) {
    for _ in 0..8 {
        harness.run(50);
        harness.disk.release_all();
    }
    harness.run_dry(50);
    harness.check_idle();
}

#[test]
fn tag_freed_between_the_mark_and_the_requeue() {
    let mut harness = harness(Mode::Mq, "mq-deadline", 1, 2);
    // Of requests 1 and 2 only 1 gets a driver tag. While it is passed to the driver, the tag of 0 is freed: the thread
    // that frees it takes the restart mark, and does not find request 2 on any list yet.
    while_the_other_completes(&mut harness, 0, |harness| {
        harness.plug(0, 2);
        harness.submit(0, read(1));
        harness.submit(0, read(2));
        harness.unplug(0);
    });
    harness.run(50);
    assert_eq!(harness.disk.issues().len(), 3, "request 2 waits though a tag is free\n{}", harness.describe());
    finish(&mut harness);
}

#[test]
fn last_request_completes_after_dev_resource() {
    // With one hctx, only the calls before submitter 0 polls, because its poll would find the completion itself.
    for (hw, scheduler, calls) in [(1, "none", 2), (2, "none", 3), (1, "mq-deadline", 1), (2, "mq-deadline", 3)] {
        for skip in 0..calls {
            let mut harness = harness(Mode::Mq, scheduler, hw, 8);
            while_the_other_completes(&mut harness, skip, |harness| {
                harness.disk.script((0..=skip).map(|_| Answer::Refuse(QueueRqStatus::DevResource)));
                harness.submit(0, read(1));
                // Pending runs, until the call to interleave with has happened.
                harness.run(50);
            });
            harness.run(50);
            assert_eq!(harness.disk.issues().len(), 2, "{scheduler}, {hw} hctx, call {skip}\n{}", harness.describe());
            finish(&mut harness);
        }
    }
}

#[test]
fn single_queue_last_request_completes_after_dev_resource() {
    let mut harness = harness(Mode::Sq, "deadline", 1, 8);
    while_the_other_completes(&mut harness, 0, |harness| {
        harness.disk.script([Answer::Refuse(QueueRqStatus::DevResource)]);
        harness.submit(0, read(1));
    });
    harness.run(50);
    assert_eq!(harness.disk.issues().len(), 2, "{}", harness.describe());
    finish(&mut harness);
}

#[test]
fn freeze_begun_inside_the_driver_waits_for_accepted_requests() {
    let mut harness = harness(Mode::Mq, "none", 2, 8);
    let q = harness.q.clone();
    harness.disk.interleave(0, move || {
        q.begin_freeze();
        assert!(!q.is_drained(), "a submitter is inside");
    });
    harness.plug(0, 2);
    harness.submit(0, read(1));
    harness.submit(0, read(2));
    harness.unplug(0);
    harness.submit(0, read(3));
    assert_eq!((harness.disk.issues().len(), harness.subs[0].waiting()), (2, 1));
    harness.disk.release_all();
    harness.drain();
    harness.q.unfreeze();
    finish(&mut harness);
}
