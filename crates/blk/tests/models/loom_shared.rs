// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loom explores every interleaving with up to two preemptions of two threads on disks that share their driver tags.
//!
//! The setup is that of `loom_stack`, with a device and a condition variable per disk: a thread is notified only for
//! its own disk. So it is a deadlock if a freed tag of one disk does not wake another disk's waiter. It is also a
//! deadlock if a waiter does not notice that its share grew, because then its device is silent, and only the other disk
//! can end the wait.
//!
//! Run with `cargo xtask loom`; `LOOM_MAX_PREEMPTIONS` overrides the bound.

use crate::model;

use blk::id::HctxId;
use blk::queue::RequestQueue;
use blk::settings::QueueConfig;
use blk::tags::{TagSet, TagSetConfig};
use model::explore::{explore, in_parallel, one, one_each, spawn};
use model::{Device, Kind, Lock, Thread, check_drained, config, disk_of};
use std::sync::Arc;

type Queue = Arc<RequestQueue<Lock>>;

/// Two disks of one set, without I/O in flight.
struct World {
    set: Arc<TagSet<Lock>>,
    devices: [Arc<Device>; 2],
    disks: Vec<Queue>,
}

impl World {
    /// `depth` tags, two CPUs, and an elevator for each disk.
    fn new(kind: Kind, depth: u32, schedulers: [&str; 2]) -> World {
        let configs = schedulers.map(|s| QueueConfig { bios_per_submitter: 8, ..config(2, 1, depth, s) });
        let set = TagSet::new(TagSetConfig::of(&configs[0])).expect("a good shape");
        let devices = [kind, Kind::Ready].map(Device::new);
        let [first, second] = configs;
        let disks = vec![disk_of(&set, &devices[0], first), disk_of(&set, &devices[1], second)];
        World { set, devices, disks }
    }

    /// The submitter of a disk.
    fn thread(&self, disk: usize) -> Thread {
        Thread::new(&self.disks[disk], &self.devices[disk], 0)
    }

    fn check_drained(&self) {
        self.disks.iter().for_each(|q| check_drained(q));
    }

    /// Returns the number of active disks, as counted for the tags.
    fn users(&self) -> u32 {
        self.set.active_disks(HctxId::new(0))
    }
}

/// One bio for each disk. The first disk's bio has the only tag when the second thread starts; in both orders of starting.
fn explore_second(schedulers: [&'static str; 2]) {
    for first_starts in [true, false] {
        explore(move || {
            let world = World::new(Kind::Ready, 1, schedulers);
            one_each(world.thread(0), world.thread(1), first_starts);
            world.check_drained();
        });
    }
}

/// Catches: a put that does not check for another disk's waiter, or wakes it before the tag is free.
#[test]
fn submitters_of_two_disks_share_one_tag() {
    explore(|| {
        let world = World::new(Kind::Ready, 1, ["none", "none"]);
        in_parallel(world.thread(0), world.thread(1), one);
        world.check_drained();
    });
}

#[test]
fn a_submitter_waits_for_the_tag_of_another_disk() {
    explore_second(["none", "none"]);
}

/// Catches: a wake-up that finds the list of waiting requests empty and is neither passed on nor left as a pending run;
/// TAG_WAIT that is not cleared.
#[test]
fn a_hardware_queue_waits_for_the_tag_of_another_disk() {
    explore_second(["mq-deadline", "mq-deadline"]);
}

#[test]
fn a_hardware_queue_and_a_submitter_wait_for_the_same_tag() {
    explore_second(["mq-deadline", "none"]);
    explore_second(["none", "mq-deadline"]);
}

/// The first disk uses all of its share, four tags, at a silent device, and a fifth bio waits. The other disk's thread
/// makes the share larger meanwhile; nothing else can end the wait. In both orders of starting.
fn explore_growing(scheduler: &'static str, grow: fn(&mut World, Thread)) {
    for waits_first in [true, false] {
        explore(move || growing(scheduler, grow, waits_first));
    }
}

fn growing(scheduler: &str, grow: fn(&mut World, Thread), waits_first: bool) {
    let mut world = World::new(Kind::Silent, 5, [scheduler, "none"]);
    let device = world.devices[0].clone();
    let (mut a, mut b) = (world.thread(0), world.thread(1));
    one(&mut b);
    a.submit(4);
    assert_eq!((device.issued(), world.users()), (4, 2), "all of its share");
    let wait = |mut a: Thread| {
        a.submit(1);
        a.run_until_issued(5);
        a
    };
    let a = if waits_first {
        let other = spawn(move || {
            grow(&mut world, b);
            world
        });
        let a = wait(a);
        world = other.join().unwrap();
        a
    } else {
        let other = spawn(move || wait(a));
        grow(&mut world, b);
        other.join().unwrap()
    };
    device.speak(u32::MAX);
    let mut a = a;
    a.finish();
    drop(a);
    world.check_drained();
}

/// Catches: a disk that leaves its set without waking waiters whose share grows.
#[test]
fn a_disk_that_leaves_gives_its_share_to_waiters() {
    for scheduler in ["none", "mq-deadline"] {
        explore_growing(scheduler, |world, b| {
            drop(b);
            world.disks.truncate(1);
            assert_eq!(world.users(), 1, "it counts no more");
        });
    }
}

/// Catches: a disk that becomes inactive without waking waiters whose share grows.
#[test]
fn a_disk_that_falls_idle_gives_its_share_to_waiters() {
    for scheduler in ["none", "mq-deadline"] {
        explore_growing(scheduler, |world, mut b| {
            b.now = world.disks[1].next_timer().expect("armed by its request");
            b.poll();
            b.sub.rest();
            assert_eq!(world.users(), 1, "it counts no more");
        });
    }
}

/// Catches: a check of the rule, or of the waiters, before the change.
#[test]
fn fair_sharing_that_is_turned_off_wakes_waiters() {
    for scheduler in ["none", "mq-deadline"] {
        explore_growing(scheduler, |world, _| world.set.set_fair_sharing(false));
    }
}

/// One disk uses all of its share, and frees a tag while another of its threads waits for the share, not for a tag.
/// Catches: a put whose disk is still at its share when the put looks for a waiter.
#[test]
fn a_tag_that_comes_back_makes_room_in_its_disks_share() {
    explore(|| {
        let world = World::new(Kind::Silent, 5, ["none", "none"]);
        let device = world.devices[0].clone();
        let (mut a, mut c) = (world.thread(0), world.thread(0));
        one(&mut world.thread(1));
        a.submit(4);
        let waiter = spawn(move || {
            c.submit(1);
            c.run_until_issued(5);
            c
        });
        device.speak(1);
        a.run_until_issued(4);
        let mut c = waiter.join().unwrap();
        device.speak(u32::MAX);
        a.finish();
        c.finish();
        drop((a, c));
        world.check_drained();
    });
}

/// The first waiter for the only tag is of a disk that is frozen when the tag is freed, or a moment later. The next waiter
/// gets the tag, although the first disk stays frozen. Catches: a wake-up that a frozen disk keeps.
#[test]
fn a_wake_up_for_a_frozen_disk_is_handed_on() {
    for drained in [false, true] {
        explore(move || frozen(drained));
    }
}

fn frozen(drained: bool) {
    let world = World::new(Kind::Ready, 1, ["none", "none"]);
    let (mut holder, mut next) = (world.thread(1), world.thread(1));
    let mut first = world.thread(0);
    holder.submit(1);
    first.submit(1);
    next.submit(1);
    [&mut holder, &mut first, &mut next].iter_mut().for_each(|t| t.sub.rest());
    let giver = spawn(move || {
        holder.poll();
        holder.sub.rest();
        holder
    });
    world.disks[0].begin_freeze();
    if drained {
        assert!(world.disks[0].is_drained(), "it waits outside");
    }
    first.poll();
    first.sub.rest();
    let mut holder = giver.join().unwrap();
    // Polled once more, as it is if the wake-up came after its poll.
    first.poll();
    first.sub.rest();
    next.finish();
    holder.finish();
    world.disks[0].unfreeze();
    first.finish();
    drop((holder, first, next));
    world.check_drained();
}

/// Runs `meanwhile` on the second disk while the first disk, which wants its share, finds it idle.
fn explore_users(meanwhile: fn(&mut Thread)) {
    explore(move || {
        let mut world = World::new(Kind::Silent, 5, ["none", "none"]);
        let device = world.devices[0].clone();
        let (mut a, mut b) = (world.thread(0), world.thread(1));
        one(&mut b);
        a.submit(4);
        a.now = world.disks[1].next_timer().expect("armed by its request").max(a.now);
        b.now = a.now;
        let other = spawn(move || {
            meanwhile(&mut b);
            b
        });
        a.submit(1);
        let mut b = other.join().unwrap();
        assert!((1..=2).contains(&world.users()), "{} disks of two count", world.users());
        device.speak(u32::MAX);
        a.finish();
        b.finish();
        drop((a, b));
        world.check_drained();
        world.disks.clear();
        assert_eq!(world.users(), 0, "a disk counts that is gone");
    });
}

/// Catches: a disk that is counted out twice, by itself and by the other, or is not counted in again when it submits.
/// Shares would then stay wrong.
#[test]
fn users_are_counted_once_however_they_come_and_go() {
    explore_users(|b| b.submit(1));
    explore_users(|b| {
        b.poll();
        b.sub.rest();
    });
}
