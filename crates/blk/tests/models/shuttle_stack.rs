// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random interleavings of a whole disk with more threads and more I/O than loom can explore, scheduled by shuttle.
//!
//! The setup is that of `loom_stack`: a lost wake-up is a deadlock. It has four threads, every elevator, full devices, disks
//! that share tags, and bios that are held back. Meanwhile a thread freezes and rebuilds the queue or takes CPUs offline.
//! Atomics are sequentially consistent here, so this finds faults in the order of steps; loom finds faults in memory
//! ordering. Run with `cargo xtask loom`; `MQBLK_SEED=n` draws other schedules, `MQBLK_SCHEDULES=n` more of them. A failure
//! prints the schedule.

use crate::model;

use blk::bio::{Bio, DataRef, OpFlags};
use blk::id::{CpuId, HctxId, Sector};
use blk::queue::RequestQueue;
use blk::settings::{Mode, QueueConfig};
use blk::status::QueueRqStatus;
use blk::tags::{TagSet, TagSetConfig};
use model::{Device, Kind, Lock, Thread, check_drained, config, disk, disk_of};
use shuttle::scheduler::RandomScheduler;
use shuttle::{Config, Runner, thread};
use std::sync::Arc;

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

/// Submits some bios alone and some in a plug, with other I/O of the thread still in flight.
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

/// Runs four threads on two CPUs; the thread that freezes applies `change` each time.
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

/// Catches: a rebuild that a thread does not wait for or does not notice, with I/O of every kind in flight.
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

/// Runs `change` while four threads work on one disk; then all I/O has completed and the queue is drained.
fn run_beside(
    device: &Arc<Device>,
    q: &Arc<RequestQueue<Lock>>,
    cpus: u32,
    bio: fn(Sector) -> Bio,
    change: impl FnOnce(),
) {
    let threads: Vec<_> = (0..THREADS)
        .map(|n| {
            let mut t = Thread::new(q, device, n % cpus);
            t.bio = bio;
            thread::spawn(move || work(&mut t))
        })
        .collect();
    change();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(u64::from(device.issued()), u64::from(THREADS) * BIOS);
    check_drained(q);
}

fn bios16(config: QueueConfig) -> QueueConfig {
    QueueConfig { bios_per_submitter: 16, ..config }
}

/// Two of three CPUs leave, one after the other or at once, and come back, the first perhaps before it is gone. Catches: a
/// submitter that moves to a CPU that leaves as well; a request on a hardware queue whose CPU is offline.
#[test]
fn cpus_come_and_go() {
    for (hctxs, depth, scheduler) in [(3, 1, "none"), (3, 2, "mq-deadline"), (1, 2, "none"), (2, 2, "kyber")] {
        explore(move || {
            let device = Device::new(Kind::Roaming);
            let q = disk(&device, bios16(config(3, hctxs, depth, scheduler)));
            run_beside(&device, &q, 3, model::read, || {
                for (first, second) in [(1, 2), (2, 0), (0, 1)] {
                    let cpus = [CpuId::new(first), CpuId::new(second)];
                    q.begin_offline(cpus[0]).expect("two are left");
                    q.begin_offline(cpus[1]).expect("one is left");
                    while !q.is_offline(cpus[1]) {
                        thread::yield_now();
                    }
                    if hctxs == 3 {
                        device.close(Some(second as usize));
                    }
                    q.online(cpus[0]);
                    thread::yield_now();
                    device.close(None);
                    q.online(cpus[1]);
                }
            });
        });
    }
}

/// Catches: a held bio that is not tried again when limits change, a token that leaks, and combinations of such faults.
#[test]
fn what_holds_bios_back_changes_under_load() {
    let mixed = |sector: Sector| match sector.0 / 16 % 3 {
        0 => model::read(sector),
        1 => Bio { flags: OpFlags::BACKGROUND, ..Bio::write(sector, 8, DataRef::NONE) },
        _ => Bio::write(sector, 8, DataRef::NONE),
    };
    let settings = [("iops_total", "1000"), ("wbt_lat_usec", "2000"), ("iops_write", "500"), ("iops_total", "0")];
    for (scheduler, rebuild) in [("none", false), ("mq-deadline", false), ("none", true)] {
        explore(move || {
            let device = Device::new(Kind::Ready);
            let mut c = bios16(config(2, 1, 2, scheduler));
            c.set("iops_read", "2000").expect("a setting");
            let q = disk(&device, c);
            run_beside(&device, &q, 2, mixed, || {
                for setting in settings {
                    thread::yield_now();
                    if !rebuild {
                        q.set_live(&[setting]).expect("live");
                        continue;
                    }
                    q.begin_freeze();
                    while !q.is_drained() {
                        thread::yield_now();
                    }
                    q.rebuild(|c| c.set(setting.0, setting.1)).expect("good settings");
                    q.unfreeze();
                }
            });
            assert_eq!(q.wbt().inflight, [0, 0], "a token is out after everything ended");
        });
    }
}

/// Two disks of one set with two threads each. A further thread turns fair sharing on and off and adds and removes a third
/// disk. Catches: a tag of one disk that the other waits for without a notification; a wake-up that two waiters pass to each
/// other for ever.
#[test]
fn disks_share_their_tags() {
    for schedulers in [["none", "none"], ["none", "mq-deadline"], ["kyber", "mq-deadline"]] {
        for (kind, hctxs, depth) in [(0, 1, 1), (0, 1, 5), (2, 1, 2), (3, 2, 3)] {
            explore(move || share(KINDS[kind], schedulers, hctxs, depth));
        }
    }
}

fn share(kind: Kind, schedulers: [&str; 2], hctxs: u16, depth: u32) {
    let host = hctxs > 1;
    let configs = schedulers.map(|s| QueueConfig { host_tagset: host, ..bios16(config(2, hctxs, depth, s)) });
    let set = TagSet::new(TagSetConfig::of(&configs[0])).expect("a good shape");
    let devices = [kind, Kind::Ready, Kind::Ready].map(Device::new);
    let third = configs[0].clone();
    let [first, second] = configs;
    let disks = [disk_of(&set, &devices[0], first), disk_of(&set, &devices[1], second)];
    let threads: Vec<_> = (0..THREADS)
        .map(|n| {
            let at = n as usize / 2;
            let mut t = Thread::new(&disks[at], &devices[at], n % 2);
            thread::spawn(move || work(&mut t))
        })
        .collect();
    for fair in [false, true] {
        let guest = disk_of(&set, &devices[2], third.clone());
        let mut t = Thread::new(&guest, &devices[2], 0);
        t.submit(1);
        set.set_fair_sharing(fair);
        t.finish();
        drop((t, guest));
    }
    threads.into_iter().for_each(|t| t.join().unwrap());
    disks.iter().for_each(|q| check_drained(q));
    drop(disks);
    assert_eq!(set.active_disks(HctxId::new(0)), 0, "a disk counts that is gone");
}
