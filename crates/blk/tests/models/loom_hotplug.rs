// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loom explores every interleaving with up to two preemptions of a CPU that goes offline and a thread that submits
//! from it.
//!
//! The setup is that of `loom_stack`, with a device that closes the hardware queue of an offline CPU. From then on a
//! request that arrives there, or is still there, fails the model. A bio that is left in a queue that no thread polls is a
//! deadlock.
//!
//! The whole disk is modelled. So in each model only a single step of each side runs concurrently (a submission or a poll;
//! the CPU going offline with one check). Before and after that there is one thread. `shuttle_stack` has more of
//! everything.
//!
//! Run with `cargo xtask loom`; `LOOM_MAX_PREEMPTIONS` overrides the bound.

use crate::model;

use blk::id::CpuId;
use blk::queue::RequestQueue;
use model::explore::{explore, one, spawn, two};
use model::{Device, Kind, Lock, Thread, check_drained, config, disk};
use std::sync::Arc;

type Queue = Arc<RequestQueue<Lock>>;

/// The CPU that goes offline; it has a hardware queue of its own if there are two.
const LEAVES: u32 = 1;

/// Takes the CPU offline, and checks once whether it is; if so, no request may come to its hardware queue until it is
/// back.
fn leave_once(q: &Queue, device: &Device) -> bool {
    q.begin_offline(CpuId::new(LEAVES)).expect("another is left");
    let gone = q.is_offline(CpuId::new(LEAVES));
    if gone {
        device.close(Some(LEAVES as usize));
    }
    gone
}

fn come_back(q: &Queue, device: &Device) {
    device.close(None);
    q.online(CpuId::new(LEAVES));
}

/// A thread of the CPU does `step` while the CPU leaves, in both orders of starting; then all I/O completes and the CPU is
/// offline.
fn explore_step(before: fn(&mut Thread), step: fn(&mut Thread)) {
    for step_first in [true, false] {
        explore(move || {
            let device = Device::new(Kind::Roaming);
            let q = disk(&device, config(2, 2, 1, "none"));
            let mut t = Thread::new(&q, &device, LEAVES);
            before(&mut t);
            let mut t = if step_first {
                let (q, device) = (q.clone(), device.clone());
                let leaver = spawn(move || leave_once(&q, &device));
                step(&mut t);
                leaver.join().unwrap();
                t
            } else {
                let stepper = spawn(move || {
                    step(&mut t);
                    t
                });
                leave_once(&q, &device);
                stepper.join().unwrap()
            };
            t.finish();
            assert_eq!(t.sub.cpu(), CpuId::new(0), "still on a CPU that leaves");
            assert!(q.is_offline(CpuId::new(LEAVES)), "nothing of it is left and it is not gone");
            come_back(&q, &device);
            t.submit(1);
            t.finish();
            t.submit(1);
            assert_eq!(t.sub.cpu(), CpuId::new(LEAVES), "home again");
            t.finish();
            drop(t);
            check_drained(&q);
        });
    }
}

/// Catches: a submitter that enters with stale data about CPUs.
#[test]
fn an_entering_submitter_moves_to_an_online_cpu() {
    explore_step(|_| (), |t| t.submit(1));
    // The second bio goes to another hardware queue, while the first is still in flight.
    explore_step(
        |_| (),
        |t| {
            t.submit(1);
            t.submit(1);
        },
    );
}

/// Catches: a submitter that is inside and does not check the gate, or moves before its requests there are known.
#[test]
fn a_submitter_inside_moves_to_an_online_cpu() {
    explore_step(|t| t.submit(1), |t| t.submit(1));
}

/// Catches: completions that no thread reaps after the move; a CPU that is offline with requests in flight.
#[test]
fn what_is_out_ends_wherever_its_submitter_is() {
    explore_step(|t| t.submit(1), |t| t.finish());
    explore_step(|_| (), one);
}

/// The second bio waits for the one tag of the CPU's hardware queue. Catches: a submitter that stays in that wait
/// queue, or takes another waiter's wake-up along.
#[test]
fn a_tag_waiter_of_an_offline_cpu_gets_one_elsewhere() {
    explore_step(|t| t.submit(2), |t| t.finish());
    explore_step(|_| (), two);
}

/// Both CPUs have one hardware queue, whose lists are filled and taken while one of them leaves. Catches: requests that are
/// left in the list of an offline CPU, or are taken twice.
#[test]
fn the_list_of_a_cpu_that_is_gone_is_taken_over() {
    for step_first in [true, false] {
        explore(move || {
            let device = Device::new(Kind::Roaming);
            let q = disk(&device, config(2, 1, 2, "none"));
            q.quiesce();
            let (mut t, mut u) = (Thread::new(&q, &device, LEAVES), Thread::new(&q, &device, 0));
            t.submit(1);
            q.begin_offline(CpuId::new(LEAVES)).expect("another is left");
            t.poll();
            assert_eq!(t.sub.cpu(), CpuId::new(0), "it has left its list behind");
            let disk = q.clone();
            let look = move || assert!(disk.is_offline(CpuId::new(LEAVES)), "the hardware queue need not drain");
            let disk = q.clone();
            let mut run = move || {
                disk.unquiesce();
                u.poll();
                u.sub.rest();
            };
            if step_first {
                let looker = spawn(look);
                run();
                looker.join().unwrap();
            } else {
                let runner = spawn(run);
                look();
                runner.join().unwrap();
            }
            t.finish();
            drop(t);
            check_drained(&q);
        });
    }
}

/// Catches: a submitter that moves home in the middle of its move away and leaves requests behind; a CPU that cannot leave
/// again.
#[test]
fn a_cpu_comes_back_before_it_is_gone() {
    explore(|| {
        let device = Device::new(Kind::Roaming);
        let q = disk(&device, config(2, 2, 1, "none"));
        let mut t = Thread::new(&q, &device, LEAVES);
        t.submit(1);
        let stepper = spawn(move || {
            one(&mut t);
            t
        });
        leave_once(&q, &device);
        come_back(&q, &device);
        let mut t = stepper.join().unwrap();
        one(&mut t);
        one(&mut t);
        assert_eq!(t.sub.cpu(), CpuId::new(LEAVES), "home again");
        drop(t);
        check_drained(&q);
        q.begin_offline(CpuId::new(LEAVES)).expect("another is left");
        assert!(q.is_offline(CpuId::new(LEAVES)), "none is there");
    });
}
