// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random interleavings of a whole disk with more threads and more I/O than loom can explore, scheduled by shuttle.
//!
//! The same world as `loom_stack`: a lost wake-up is a deadlock. Four threads, every elevator, full devices, and somebody who
//! freezes and rebuilds the queue meanwhile. Atomics are sequentially consistent here, so this finds orders of steps, not
//! orders of memory; that is loom's. Run with `cargo xtask loom`; `MQBLK_SEED=n` draws other schedules, `MQBLK_SCHEDULES=n`
//! more of them. A failure prints the schedule.
#![cfg(shuttle)]

mod model;

use blk::settings::{Mode, QueueConfig};
use blk::status::QueueRqStatus;
use model::{Device, Kind, Thread, check_drained, config, disk};
use shuttle as checker;
use shuttle::scheduler::RandomScheduler;
use shuttle::{Config, Runner, thread};

const THREADS: u32 = 4;
const BIOS: u64 = 5;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |v| v.parse().expect("a number"))
}

fn explore(model: impl Fn() + Send + Sync + 'static) {
    let seed = number("MQBLK_SEED", 1);
    println!("MQBLK_SEED={seed}");
    let scheduler = RandomScheduler::new_from_seed(seed, number("MQBLK_SCHEDULES", 100) as usize);
    let mut limits = Config::new();
    limits.stack_size = 1 << 20;
    Runner::new(scheduler, limits).run(model);
}

/// Some alone, some in a plug, with other I/O of the thread still out.
fn work(t: &mut Thread) {
    let mut left = BIOS;
    while left > 0 {
        let n = (t.sub.id().index() as u64 + left) % 3 + 1;
        let n = n.min(left);
        t.submit(n);
        left -= n;
        if left % 2 == 0 {
            t.poll();
        } else {
            t.finish();
        }
    }
    t.finish();
}

/// Four threads on two CPUs; `change` is what the freezer does each time.
fn run(kind: Kind, config: QueueConfig, change: Option<fn(u32, &mut QueueConfig)>) {
    let device = Device::new(kind);
    let q = disk(&device, QueueConfig { bios_per_submitter: 16, ..config });
    let threads = (0..THREADS).map(|n| Thread::new(&q, &device, n % 2));
    let threads: Vec<_> = threads.collect();
    let handles: Vec<_> = threads.into_iter().map(|mut t| thread::spawn(move || work(&mut t))).collect();
    if let Some(change) = change {
        for round in 0..3 {
            q.begin_freeze();
            while !q.is_drained() {
                thread::yield_now();
            }
            device.shut(true);
            q.rebuild(|c| {
                change(round, c);
                Ok(())
            })
            .expect("good settings");
            device.shut(false);
            q.unfreeze();
        }
    }
    handles.into_iter().for_each(|h| h.join().unwrap());
    assert_eq!(u64::from(device.issued()), u64::from(THREADS) * BIOS);
    check_drained(&q);
}

const KINDS: [Kind; 4] =
    [Kind::Ready, Kind::Inline, Kind::Holds1(QueueRqStatus::DevResource), Kind::Holds1(QueueRqStatus::Resource)];

fn with_elevator(scheduler: &'static str) {
    for kind in KINDS {
        for (hctxs, depth) in [(1, 1), (1, 3), (2, 2)] {
            explore(move || run(kind, config(2, hctxs, depth, scheduler), None));
        }
    }
}

#[test]
fn none() {
    with_elevator("none");
}

#[test]
fn mq_deadline() {
    with_elevator("mq-deadline");
}

#[test]
fn kyber() {
    with_elevator("kyber");
}

#[test]
fn bfq() {
    with_elevator("bfq");
}

#[test]
fn k2() {
    with_elevator("k2");
}

#[test]
fn single_queue() {
    for kind in KINDS {
        let sq = || QueueConfig { mode: Mode::Sq, nr_hw_queues: None, ..config(2, 1, 2, "deadline") };
        explore(move || run(kind, sq(), None));
    }
}

#[test]
fn completions_are_steered() {
    for rq_affinity in [0, 2] {
        explore(move || run(Kind::Ready, QueueConfig { rq_affinity, ..config(2, 1, 2, "none") }, None));
    }
}

/// Catches a rebuild that somebody does not wait for or does not notice, with I/O of every kind under way.
#[test]
fn settings_change_under_load() {
    for kind in KINDS {
        explore(move || {
            let change = |round: u32, c: &mut QueueConfig| {
                c.nr_hw_queues = Some(2 - (round % 2) as u16);
                c.queue_depth = 1 + round;
                c.scheduler = Some(["mq-deadline", "none", "kyber"][round as usize].into());
            };
            run(kind, config(2, 1, 2, "none"), Some(change));
        });
    }
}
