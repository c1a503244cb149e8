// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every interleaving (of up to two preemptions) of bios that a limit or write-back throttling holds back, explored by loom.
//!
//! The world of `loom_stack`. A turn or a token that is given and not told of, or told of and not given, is a deadlock; so is
//! a held bio that nobody looks at again after the settings changed. Each bio ends once, and at the end no token is out.
//!
//! Run with `cargo xtask loom`; `LOOM_MAX_PREEMPTIONS` overrides the bound.
#![cfg(loom)]

mod model;

use blk::bio::{Bio, DataRef, OpFlags};
use blk::id::Sector;
use blk::queue::RequestQueue;
use blk::settings::QueueConfig;
use loom as checker;
use loom::thread;
use model::explore::{explore, one};
use model::{Device, Kind, Lock, Thread, check_drained, config, disk};
use std::sync::Arc;

type Queue = Arc<RequestQueue<Lock>>;

/// Write-back in no hurry: of a device that takes one request, one may be in flight.
fn background(sector: Sector) -> Bio {
    Bio { flags: OpFlags::BACKGROUND, ..Bio::write(sector, 8, DataRef::NONE) }
}

/// A disk with one of these settings.
fn with(setting: (&str, &str)) -> QueueConfig {
    let mut c = config(2, 1, 2, "none");
    c.set(setting.0, setting.1).expect("a setting");
    c
}

/// One I/O per millisecond, so a sleeper looks at the time itself.
const SOON: (&str, &str) = ("iops_total", "1000");
/// One I/O per second: no sleeper waits for that time to come.
const LATE: (&str, &str) = ("iops_total", "1");
/// One token for background writes. The window is longer than anybody sleeps by time.
const WBT: (&str, &str) = ("wbt_lat_usec", "2000");

fn check_done(q: &Queue) {
    check_drained(q);
    assert_eq!(q.wbt().inflight, [0, 0], "a token is out after everything ended");
}

/// Two submitters of which the first has used up what there is, one more bio for each.
fn two_wait(setting: (&str, &str), bio: Option<fn(Sector) -> Bio>) {
    let device = Device::new(Kind::Ready);
    let q = disk(&device, with(setting));
    let (mut a, mut b) = (Thread::new(&q, &device, 0), Thread::new(&q, &device, 1));
    if let Some(bio) = bio {
        (a.bio, b.bio) = (bio, bio);
    }
    a.submit(1);
    let other = thread::spawn(move || one(&mut b));
    a.finish();
    other.join().unwrap();
    drop(a);
    check_done(&q);
}

/// Catches: a turn that is given and its submitter not told; a time that is later than the first turn's.
#[test]
fn a_turn_reaches_who_waits_for_it() {
    explore(|| two_wait(SOON, None));
}

/// Catches: a token that comes back and is given to nobody, or to somebody who is not told.
#[test]
fn a_token_reaches_who_waits_for_it() {
    explore(|| two_wait(WBT, Some(background)));
}

/// `change` while a thread has one bio under way and another that is held for longer than it will wait; both orders of
/// starting.
fn explore_change(setting: (&'static str, &'static str), bio: Option<fn(Sector) -> Bio>, change: fn(&Queue, &Device)) {
    for change_first in [true, false] {
        explore(move || {
            let kind = if bio.is_some() { Kind::Silent } else { Kind::Ready };
            let device = Device::new(kind);
            let q = disk(&device, with(setting));
            let mut a = Thread::new(&q, &device, 0);
            a.bio = bio.unwrap_or(a.bio);
            a.submit(1);
            let wait = |mut a: Thread| {
                a.submit(1);
                a.run_until_issued(2);
                a
            };
            let mut a = if change_first {
                let worker = thread::spawn(move || wait(a));
                change(&q, &device);
                worker.join().unwrap()
            } else {
                let (q, device) = (q.clone(), device.clone());
                let changer = thread::spawn(move || change(&q, &device));
                let a = wait(a);
                changer.join().unwrap();
                a
            };
            device.speak(u32::MAX);
            a.finish();
            drop(a);
            check_done(&q);
        });
    }
}

/// Catches: limits that are gone and whose turns nobody gives out.
#[test]
fn a_limit_that_is_lifted_lets_who_is_held_go() {
    explore_change(LATE, None, |q, _| q.set_live(&[("iops_total", "0")]).expect("live"));
}

/// Catches: throttling that is turned off and leaves its waiters behind; a token that is put by who never took it.
#[test]
fn throttling_that_is_turned_off_lets_who_is_held_go() {
    explore_change(WBT, Some(background), |q, _| q.set_live(&[("wbt_lat_usec", "0")]).expect("live"));
}

/// Freezes once, with a look and a rebuild if the queue is drained, as a thread that changes settings does; then sets `lift`.
fn freeze(q: &Queue, device: &Device, lift: (&str, &str)) {
    q.begin_freeze();
    if q.is_drained() {
        device.shut(true);
        q.rebuild(|c| c.set(lift.0, lift.1)).expect("good settings");
        device.shut(false);
    }
    q.unfreeze();
}

/// A bio that is held is outside, so a freeze does not wait for it, nor does it go during one. Catches: a held bio that goes
/// into the frozen queue; one that is given a turn while frozen and is not looked at again afterwards.
#[test]
fn a_held_bio_waits_for_its_turn_and_for_the_end_of_a_freeze() {
    for starts_held in [true, false] {
        explore(move || {
            let device = Device::new(Kind::Ready);
            let q = disk(&device, with(SOON));
            let mut t = Thread::new(&q, &device, 0);
            t.submit(1);
            if starts_held {
                t.submit(1);
            }
            let worker = thread::spawn(move || {
                if !starts_held {
                    t.submit(1);
                }
                t.finish();
            });
            freeze(&q, &device, SOON);
            worker.join().unwrap();
            check_done(&q);
        });
    }
}

/// Catches: a token that stays with a bio whose disk throttles no more, or is put twice; a bio that keeps one over a rebuild.
#[test]
fn tokens_survive_a_freeze_and_a_rebuild() {
    for lift in [WBT, ("wbt_lat_usec", "0")] {
        explore(move || {
            let device = Device::new(Kind::Ready);
            let q = disk(&device, with(WBT));
            let mut t = Thread::new(&q, &device, 0);
            t.bio = background;
            t.submit(1);
            let worker = thread::spawn(move || {
                t.submit(1);
                t.finish();
            });
            freeze(&q, &device, lift);
            worker.join().unwrap();
            check_done(&q);
        });
    }
}
