// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Interleavings of two threads that real threads seldom meet, made by hand: one submitter is in the driver's
//! `queue_rqs`, and before it sees the answer another submitter does something that the answer depended on.

use blk::bio::{Bio, DataRef};
use blk::cpumap::CpuTopology;
use blk::id::Sector;
use blk::settings::{Mode, QueueConfig};
use blk::status::QueueRqStatus;
use blk::time::Instant;
use sim::disk::{Answer, Behaviour};
use sim::rig::Rig;
use std::sync::{Arc, Mutex};

fn rig(mode: Mode, scheduler: &str, hw: u16, depth: u32) -> Rig {
    let config = QueueConfig {
        mode,
        topology: CpuTopology::uniform(2),
        nr_hw_queues: (mode == Mode::Mq).then_some(hw),
        queue_depth: depth,
        scheduler: Some(scheduler.into()),
        nomerges: 2,
        ..QueueConfig::default()
    };
    Rig::new(1, Behaviour { manual: true, ..Behaviour::default() }, config, &[0, 1])
}

fn read(n: u64) -> Bio {
    Bio::read(Sector(n * 100), 8, DataRef::new(0, n << 12)).with_user_data(n)
}

/// Submitter 1 has request 0 at the driver, finished. It polls that out at the end of the driver call after `skip` more;
/// meanwhile `act` does what submitter 0 does. Afterwards submitter 1 is back in the rig.
fn while_the_other_completes(rig: &mut Rig, skip: usize, act: impl FnOnce(&mut Rig)) {
    rig.submit(1, read(0));
    rig.disk.release_all();
    let other = Arc::new(Mutex::new(rig.subs.pop()));
    let (there, now) = (other.clone(), rig.now);
    rig.disk.interleave(skip, move || {
        let mut other = there.lock().expect("no test panics here");
        other.as_mut().expect("not back yet").poll(Instant::from_ns(now));
    });
    act(rig);
    assert_eq!(Arc::strong_count(&other), 1, "the driver call to interleave with never came");
    let back = other.lock().expect("no test panics here").take();
    rig.subs.push(back.expect("put there above"));
}

fn finish(rig: &mut Rig) {
    for _ in 0..8 {
        rig.run(50);
        rig.disk.release_all();
    }
    rig.run_dry(50);
    rig.check_idle();
}

#[test]
fn a_tag_freed_after_the_mark_was_set_and_before_the_request_was_put_back() {
    let mut rig = rig(Mode::Mq, "mq-deadline", 1, 2);
    // Of requests 1 and 2 only 1 gets a driver tag. While it is handed over, the tag of 0 is freed: whoever frees it
    // takes the restart mark, and finds request 2 nowhere yet.
    while_the_other_completes(&mut rig, 0, |rig| {
        rig.plug(0, 2);
        rig.submit(0, read(1));
        rig.submit(0, read(2));
        rig.unplug(0);
    });
    rig.run(50);
    assert_eq!(rig.disk.issues().len(), 3, "request 2 waits though a tag is free\n{}", rig.describe());
    finish(&mut rig);
}

#[test]
fn the_last_request_of_the_device_completes_after_dev_resource_was_answered() {
    // On one hctx only as many calls as come before submitter 0 polls: it would find the completion itself.
    for (hw, scheduler, calls) in [(1, "none", 2), (2, "none", 3), (1, "mq-deadline", 1), (2, "mq-deadline", 3)] {
        for skip in 0..calls {
            let mut rig = rig(Mode::Mq, scheduler, hw, 8);
            while_the_other_completes(&mut rig, skip, |rig| {
                rig.disk.script((0..=skip).map(|_| Answer::Refuse(QueueRqStatus::DevResource)));
                rig.submit(0, read(1));
                // Owed runs, until the call to interleave with has come.
                rig.run(50);
            });
            rig.run(50);
            assert_eq!(rig.disk.issues().len(), 2, "{scheduler}, {hw} hctx, call {skip}\n{}", rig.describe());
            finish(&mut rig);
        }
    }
}

#[test]
fn single_queue_the_last_request_completes_after_dev_resource_was_answered() {
    let mut rig = rig(Mode::Sq, "deadline", 1, 8);
    while_the_other_completes(&mut rig, 0, |rig| {
        rig.disk.script([Answer::Refuse(QueueRqStatus::DevResource)]);
        rig.submit(0, read(1));
    });
    rig.run(50);
    assert_eq!(rig.disk.issues().len(), 2, "{}", rig.describe());
    finish(&mut rig);
}

#[test]
fn a_freeze_that_begins_in_the_driver_waits_for_what_was_accepted() {
    let mut rig = rig(Mode::Mq, "none", 2, 8);
    let q = rig.q.clone();
    rig.disk.interleave(0, move || {
        q.begin_freeze();
        assert!(!q.is_drained(), "a submitter is inside");
    });
    rig.plug(0, 2);
    rig.submit(0, read(1));
    rig.submit(0, read(2));
    rig.unplug(0);
    rig.submit(0, read(3));
    assert_eq!((rig.disk.issues().len(), rig.subs[0].waiting()), (2, 1));
    rig.disk.release_all();
    rig.drain();
    rig.q.unfreeze();
    finish(&mut rig);
}
