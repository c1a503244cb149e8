// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loom explores every interleaving with up to two preemptions of bios that a limit or write-back throttling holds back.
//!
//! The setup is that of `loom_stack`. It is a deadlock if a turn or token is granted without a notification, or
//! notified without a grant, or if a held bio is not checked again after the settings changed. Each bio completes once,
//! and at the end no token is in use.
//!
//! Run with `cargo xtask loom`; `LOOM_MAX_PREEMPTIONS` overrides the bound.

use crate::model;

use blk::bio::{Bio, DataRef, OpFlags};
use blk::id::Sector;
use blk::queue::RequestQueue;
use blk::settings::QueueConfig;
use blk::time::Duration;
use model::explore::{explore, one, spawn};
use model::{Device, Kind, Lock, Thread, check_drained, config, disk};
use std::sync::Arc;

type Queue = Arc<RequestQueue<Lock>>;

/// Makes a background write; on a device that takes one request, one such write may be in flight.
fn background(sector: Sector) -> Bio {
    Bio { flags: OpFlags::BACKGROUND, ..Bio::write(sector, 8, DataRef::NONE) }
}

/// A disk with one of these settings.
fn with(setting: (&str, &str)) -> QueueConfig {
    let mut c = config(2, 1, 2, "none");
    c.set(setting.0, setting.1).expect("a setting");
    c
}

/// One I/O per millisecond: a waiting thread advances its clock to its turn by itself.
const SOON: (&str, &str) = ("iops_total", "1000");
/// One I/O per second: no sleeping thread waits that long.
const LATE: (&str, &str) = ("iops_total", "1");
/// One token for background writes. The window is longer than any sleep.
const WBT: (&str, &str) = ("wbt_lat_usec", "2000");

fn check_done(q: &Queue) {
    check_drained(q);
    assert_eq!(q.wbt().inflight, [0, 0], "a token is out after everything ended");
}

/// A device, and two submitters of such bios.
fn two_threads(kind: Kind, setting: (&str, &str), bio: fn(Sector) -> Bio) -> (Arc<Device>, Queue, [Thread; 2]) {
    let device = Device::new(kind);
    let q = disk(&device, with(setting));
    let threads = [0, 1].map(|cpu| {
        let mut t = Thread::new(&q, &device, cpu);
        t.bio = bio;
        t
    });
    (device, q, threads)
}

/// One thread polls when the other's turn is due; the other sleeps without a timer. Catches: a turn that is given without a
/// notification, or after the notification.
#[test]
fn the_waiter_is_notified_of_its_turn() {
    explore(|| {
        let (_, q, [mut a, mut b]) = two_threads(Kind::Ready, LATE, model::read);
        one(&mut a);
        b.submit(1);
        assert_eq!(b.sub.held(), 1);
        a.now = q.next_timer().expect("a turn");
        let sleeper = spawn(move || b.finish());
        a.poll();
        a.sub.rest();
        sleeper.join().unwrap();
        drop(a);
        check_done(&q);
    });
}

/// One thread gets its turn while another asks for one and then watches the time itself. Catches: a stale due time that
/// is written; a turn that is used twice.
#[test]
fn turns_are_given_while_another_asks() {
    explore(|| {
        let (_, q, [mut a, mut b]) = two_threads(Kind::Ready, SOON, model::read);
        (0..2).for_each(|_| a.submit(1));
        assert_eq!(a.sub.held(), 1);
        a.now = q.next_timer().expect("a turn");
        let asker = spawn(move || {
            b.submit(1);
            b
        });
        a.poll();
        a.sub.rest();
        let mut b = asker.join().unwrap();
        b.finish();
        a.finish();
        let last = a.now.max(b.now);
        assert!(last.as_ns() > 2_000_000, "three bios within {last:?}");
        drop((a, b));
        check_done(&q);
    });
}

/// One of two writers has the only token, and the other needs it, too. Catches: a freed token that is given to no
/// waiter, or to a waiter that is not notified; a writer that continues without a token.
#[test]
fn a_token_reaches_its_waiter() {
    explore(|| {
        let (device, q, [mut a, mut b]) = two_threads(Kind::Silent, WBT, background);
        device.at_most(1);
        a.submit(1);
        let other = spawn(move || one(&mut b));
        device.speak(u32::MAX);
        a.finish();
        other.join().unwrap();
        drop(a);
        check_done(&q);
    });
}

/// Runs `change` while a thread has one bio in flight and another that is held for longer than the thread waits; in
/// both orders of starting.
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
                let worker = spawn(move || wait(a));
                change(&q, &device);
                worker.join().unwrap()
            } else {
                let (q, device) = (q.clone(), device.clone());
                let changer = spawn(move || change(&q, &device));
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

/// Catches: limits that were removed while their turns are never granted.
#[test]
fn a_lifted_limit_releases_held_bios() {
    explore_change(LATE, None, |q, _| q.set_live(&[("iops_total", "0")]).expect("live"));
}

/// Catches: throttling that is turned off and leaves its waiters behind; a token put by a submitter that never took it.
#[test]
fn throttling_turned_off_releases_held_bios() {
    explore_change(WBT, Some(background), |q, _| q.set_live(&[("wbt_lat_usec", "0")]).expect("live"));
}

/// Freezes, checks once, and rebuilds if the queue is drained, like a thread that changes settings; then sets `lift`.
fn freeze(q: &Queue, device: &Device, lift: (&str, &str)) {
    q.begin_freeze();
    if q.is_drained() {
        device.shut(true);
        q.rebuild(|c| c.set(lift.0, lift.1)).expect("good settings");
        device.shut(false);
    }
    q.unfreeze();
}

/// Where the second bio of a thread is when a freeze begins.
#[derive(Clone, Copy)]
enum Second {
    /// Held.
    Held,
    /// Being submitted, and will be held.
    Asks,
    /// Being submitted, and its turn is due.
    MayGo,
}

/// A held bio is outside the block layer, so a freeze does not wait for it, and it does not enter during a freeze. Catches:
/// a held bio that enters the frozen queue; a bio that gets its turn during a freeze and is not tried again afterwards.
#[test]
fn a_held_bio_waits_for_its_turn_and_for_the_end_of_a_freeze() {
    for second in [Second::Held, Second::Asks, Second::MayGo] {
        explore(move || {
            let device = Device::new(Kind::Ready);
            let q = disk(&device, with(SOON));
            let mut t = Thread::new(&q, &device, 0);
            one(&mut t);
            match second {
                Second::Held => t.submit(1),
                Second::Asks => {}
                Second::MayGo => t.now = t.now + Duration::from_ms(2),
            }
            let worker = spawn(move || {
                if !matches!(second, Second::Held) {
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

/// Catches: a token that stays with a bio whose disk no longer throttles, or is put twice; a bio that keeps a token over a
/// rebuild.
#[test]
fn tokens_survive_a_freeze_and_a_rebuild() {
    for lift in [WBT, ("wbt_lat_usec", "0")] {
        explore(move || {
            let device = Device::new(Kind::Ready);
            let q = disk(&device, with(WBT));
            let mut t = Thread::new(&q, &device, 0);
            t.bio = background;
            t.submit(1);
            let worker = spawn(move || {
                t.submit(1);
                t.finish();
            });
            freeze(&q, &device, lift);
            worker.join().unwrap();
            check_done(&q);
        });
    }
}
