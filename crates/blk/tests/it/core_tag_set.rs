// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tag sets: shares of disks that use the same tags, host-wide tags, wake-ups across disks, and changes of a set in
//! use.

use blk::bio::{Bio, OpFlags};
use blk::cpumap::CpuTopology;
use blk::elevator::{NAMES, bfq};
use blk::id::{CpuId, HctxId};
use blk::queue::{NoNotify, RequestQueue};
use blk::settings::{Mode, QueueConfig};
use blk::tags::{TagSet, TagSetConfig};
use sim::Lock;
use sim::disk::{Behaviour, SimDisk};
use sim::harness::Harness;
use sim::mem::Mem;
use sim::set_harness::SetHarness;
use std::sync::{Arc, Mutex};

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
        iosched: if scheduler == bfq::NAME { vec![("slice_idle".into(), 0)] } else { Vec::new() },
        ..QueueConfig::default()
    }
}

fn host_wide(cpus: u16, depth: u32, scheduler: &str) -> QueueConfig {
    QueueConfig { host_tagset: true, ..config(cpus, cpus, depth, scheduler) }
}

/// Two disks on one hardware queue of 16 tags.
fn two_disks(scheduler: &str) -> SetHarness {
    let c = config(1, 1, 16, scheduler);
    let mut w = SetHarness::new(1, &c);
    (0..2).for_each(|_| w.join(manual(), c.clone(), &[0]));
    assert!(w.set.is_shared());
    w
}

fn finish(mut w: SetHarness) {
    for d in &w.disks {
        d.disk.behave(|b| b.manual = false);
        d.disk.release_all();
    }
    w.now += MS;
    w.run_dry(10_000);
    w.check_idle();
}

#[test]
fn two_loaded_disks_get_half_of_the_tags_each() {
    for scheduler in NAMES {
        let mut w = two_disks(scheduler);
        w.submit_reads(0, 0, 4);
        w.submit_reads(1, 0, 32);
        assert_eq!(w.in_flight(), [4, 8], "{scheduler}");
        w.submit_reads(0, 0, 28);
        assert_eq!(w.in_flight(), [8, 8], "{scheduler}");
        assert_eq!(w.set.active_disks(HctxId::new(0)), 2);
        for d in [0, 1, 1, 0, 1] {
            w.disks[d].disk.release(|_| true);
            w.settle();
            assert_eq!(w.in_flight(), [8, 8].map(|n: usize| n), "{scheduler}: a share is filled again at once");
        }
        finish(w);
    }
}

#[test]
fn active_disk_keeps_its_share_until_timeout_finds_it_idle() {
    for scheduler in NAMES {
        let mut w = two_disks(scheduler);
        w.submit_reads(1, 0, 1);
        w.disks[1].disk.release_all();
        w.settle();
        w.submit_reads(0, 0, 32);
        assert_eq!(w.in_flight(), [8, 0], "{scheduler}: the other is idle and still counts");
        assert_eq!(w.set.active_disks(HctxId::new(0)), 2);
        w.now += 4990 * MS;
        w.settle();
        assert_eq!(w.in_flight(), [8, 0], "{scheduler}");
        w.now += 10 * MS;
        w.settle();
        assert_eq!(w.in_flight(), [16, 0], "{scheduler}: found idle, and the waiter was told");
        assert_eq!(w.set.active_disks(HctxId::new(0)), 1);
        // The disk is active again from its next request on.
        w.submit_reads(1, 0, 1);
        assert_eq!((w.in_flight(), w.set.active_disks(HctxId::new(0))), (vec![16, 0], 2), "{scheduler}");
        w.disks[0].disk.release_all();
        w.settle();
        assert_eq!(w.in_flight(), [8, 1], "{scheduler}");
        finish(w);
    }
}

#[test]
fn the_grace_of_an_idle_disk_is_its_io_timeout_if_that_is_short() {
    let c = QueueConfig { io_timeout_ms: 100, ..config(1, 1, 16, "none") };
    let mut w = SetHarness::new(2, &c);
    (0..2).for_each(|_| w.join(manual(), c.clone(), &[0]));
    w.submit_reads(1, 0, 1);
    w.disks[1].disk.release_all();
    w.settle();
    w.submit_reads(0, 0, 32);
    w.now += 100 * MS;
    w.settle();
    assert_eq!(w.in_flight(), [16, 0]);
    finish(w);
}

#[test]
fn a_disk_without_polls_loses_its_share() {
    for scheduler in NAMES {
        let mut w = two_disks(scheduler);
        w.submit_reads(1, 0, 1);
        w.disks[1].disk.release_all();
        w.settle();
        w.disks[1].subs.clear();
        w.disks[1].done.clear();
        w.submit_reads(0, 0, 40);
        w.now += 5000 * MS;
        w.disks[0].disk.release(|i| i.n == 0);
        w.settle();
        assert_eq!(w.in_flight(), [16, 0], "{scheduler}");
        finish(w);
    }
}

#[test]
fn a_disk_that_is_dropped_leaves_its_tags_to_the_others() {
    for scheduler in NAMES {
        let mut w = two_disks(scheduler);
        w.submit_reads(1, 0, 1);
        w.disks[1].disk.release_all();
        w.settle();
        w.submit_reads(0, 0, 32);
        assert_eq!((w.in_flight(), w.set.nr_disks()), (vec![8, 0], 2));
        drop(w.disks.pop());
        assert_eq!((w.set.active_disks(HctxId::new(0)), w.set.nr_disks()), (1, 1));
        w.settle();
        assert_eq!(w.in_flight(), [16], "{scheduler}");
        finish(w);
    }
}

#[test]
fn without_fair_sharing_first_come_is_first_served() {
    for scheduler in NAMES {
        let mut w = two_disks(scheduler);
        w.submit_reads(1, 0, 1);
        w.submit_reads(0, 0, 32);
        assert_eq!(w.in_flight(), [8, 1]);
        w.set.set_fair_sharing(false);
        assert!(!w.set.config().fair_tag_sharing);
        w.settle();
        assert_eq!(w.in_flight(), [15, 1], "{scheduler}: waiters were notified");
        w.submit_reads(1, 0, 20);
        w.set.set_fair_sharing(true);
        w.disks[0].disk.release(|i| i.n < 10);
        w.settle();
        assert_eq!(w.in_flight(), [8, 8], "{scheduler}");
        finish(w);
    }
}

#[test]
fn every_disk_has_four_tags_and_one_tag_is_not_divided() {
    let c = config(1, 1, 16, "none");
    let mut w = SetHarness::new(3, &c);
    (0..6).for_each(|_| w.join(manual(), c.clone(), &[0]));
    (0..6).for_each(|d| w.submit_reads(d, 0, 1));
    (0..6).for_each(|d| w.submit_reads(d, 0, 10));
    assert_eq!(w.in_flight(), [4, 4, 4, 2, 1, 1]);
    finish(w);
    let c = config(1, 1, 1, "mq-deadline");
    let mut w = SetHarness::new(4, &c);
    (0..3).for_each(|_| w.join(manual(), c.clone(), &[0]));
    (0..3).for_each(|d| w.submit_reads(d, 0, 5));
    for ended in 1..=15 {
        assert_eq!(w.in_flight().iter().sum::<usize>(), 1);
        for d in &w.disks {
            d.disk.release_all();
        }
        w.settle();
        let done: usize = w.disks.iter().map(|d| d.done[0].len()).sum();
        assert_eq!(done, ended, "{}", w.describe());
        let of: Vec<usize> = w.disks.iter().map(|d| d.done[0].len()).collect();
        assert!(of.iter().max() <= Some(&(of.iter().min().expect("three") + 2)), "in turn: {of:?}");
    }
    finish(w);
}

#[test]
fn reserved_tags_are_not_shared_out() {
    for scheduler in NAMES {
        let c = QueueConfig { reserved_tags: 2, ..config(1, 1, 10, scheduler) };
        let mut w = SetHarness::new(5, &c);
        (0..2).for_each(|_| w.join(manual(), c.clone(), &[0, 0]));
        w.submit_reads(0, 0, 1);
        w.submit_reads(1, 0, 4);
        assert_eq!(w.in_flight(), [1, 4], "{scheduler}: half of eight");
        let reserved = |n| Bio::read(blk::id::Sector(n), 1, blk::bio::DataRef::new(0, 0)).with_flags(OpFlags::RESERVED);
        (0..3).for_each(|n| w.submit(1, 1, reserved(1000 + n * 50)));
        assert_eq!(w.in_flight(), [1, 6], "{scheduler}: both reserved tags");
        w.submit(0, 1, reserved(5000));
        assert_eq!(w.in_flight(), [1, 6], "{scheduler}: none left");
        w.disks[1].disk.release(|i| i.flags.contains(OpFlags::RESERVED));
        w.settle();
        assert_eq!(w.in_flight(), [2, 5], "{scheduler}: one each\n{}", w.describe());
        w.submit_reads(1, 0, 4);
        assert_eq!(w.in_flight(), [2, 5], "{scheduler}: it has its four normal ones");
        finish(w);
    }
}

#[test]
fn host_wide_tags_bound_all_hardware_queues_together() {
    for scheduler in NAMES {
        let mut harness = Harness::new(6, manual(), host_wide(4, 16, scheduler), &[0, 1, 2, 3]);
        let read = |n: u64| Bio::read(blk::id::Sector(n * 16), 8, blk::bio::DataRef::new(0, n << 12));
        for s in 0..4 {
            (0..20).for_each(|n| harness.submit(s, read(s as u64 * 20 + n)));
        }
        harness.run(1000);
        assert_eq!(harness.disk.in_flight(), 16, "{scheduler}");
        let mut tags: Vec<usize> = harness.disk.pending().iter().map(|i| i.tag).collect();
        tags.sort_unstable();
        assert_eq!(tags, (0..16).collect::<Vec<_>>(), "{scheduler}: each tag once, whatever the queue");
        for _ in 0..80 {
            let left = harness.subs.iter().map(|s| s.outstanding() as usize).sum::<usize>();
            // Sixteen tags and eight wait queues: every second put of a tag wakes two waiters.
            let busy = harness.disk.in_flight();
            assert!(
                busy == left.min(16) || busy + 1 == left.min(16),
                "{scheduler}: {busy} of {left}\n{}",
                harness.describe()
            );
            let oldest = harness.disk.pending().first().map(|i| i.n);
            harness.disk.release(|i| Some(i.n) == oldest);
            while harness.step_now() {}
            (0..4).for_each(|s| drop(harness.take_done(s)));
        }
        let of_hctx = |h| harness.disk.issues().iter().filter(|i| i.hctx == h).count();
        assert_eq!([0, 1, 2, 3].map(of_hctx), [20; 4], "{scheduler}");
        harness.run_dry(100);
        harness.check_idle();
    }
}

#[test]
fn disks_share_host_wide_tags_by_disk_not_by_hardware_queue() {
    for scheduler in NAMES {
        let c = host_wide(4, 16, scheduler);
        let mut w = SetHarness::new(7, &c);
        (0..2).for_each(|_| w.join(manual(), c.clone(), &[0, 1, 2, 3]));
        w.submit_reads(1, 2, 1);
        (0..4).for_each(|s| w.submit_reads(0, s, 10));
        w.settle();
        assert_eq!(w.in_flight(), [8, 1], "{scheduler}");
        (0..4).for_each(|s| w.submit_reads(1, s, 10));
        w.settle();
        assert_eq!(w.in_flight(), [8, 8], "{scheduler}");
        finish(w);
    }
}

#[test]
fn the_defaults_of_host_wide_tags_are_the_kernels() {
    let c = QueueConfig { scheduler: None, ..host_wide(4, 16, "none") };
    let harness = Harness::new(8, manual(), c, &[0]);
    assert_eq!((harness.q.scheduler().as_str(), harness.q.nr_requests()), ("mq-deadline", 32));
    let mut c = QueueConfig::default();
    c.set("host_tagset", "1").expect("a setting");
    assert!(c.host_tagset);
    assert_eq!(c.set("host_tagset", "2").unwrap_err().0, "host_tagset=2: must be 0..=1");
    c.mode = Mode::Sq;
    assert!(c.check().unwrap_err().0.starts_with("host_tagset=1: mode=sq"));
}

#[test]
fn scheduler_tags_of_a_host_tagset_are_per_disk() {
    let mut harness = Harness::new(9, manual(), host_wide(2, 4, "mq-deadline"), &[0, 1]);
    assert_eq!(harness.q.nr_requests(), 8);
    let read = |n: u64| Bio::read(blk::id::Sector(n * 16), 8, blk::bio::DataRef::new(0, n << 12));
    (0..6).for_each(|n| harness.submit(0, read(n)));
    (6..12).for_each(|n| harness.submit(1, read(n)));
    assert_eq!((harness.subs[0].waiting(), harness.subs[1].waiting()), (0, 4), "eight in all");
    harness.disk.behave(|b| b.manual = false);
    harness.disk.release_all();
    harness.now += MS;
    harness.run_dry(1000);
    harness.check_idle();
}

#[test]
fn a_disk_must_have_the_shape_of_its_set() {
    let c = config(4, 2, 16, "none");
    let mut w = SetHarness::new(10, &c);
    let mut refused = |change: fn(&mut QueueConfig)| {
        let mut c = c.clone();
        change(&mut c);
        w.try_join(manual(), c, &[0]).expect_err("another shape").0
    };
    let e = refused(|c| c.queue_depth = 32);
    assert_eq!(
        e,
        "queue_depth=32: must be the tag set's, which is 16; leave it to the tag set, or create the disk without one"
    );
    assert!(refused(|c| c.nr_hw_queues = Some(4)).starts_with("nr_hw_queues=4: must be the tag set's, which is 2"));
    assert!(refused(|c| c.reserved_tags = 1).starts_with("reserved_tags=1"));
    assert!(refused(|c| c.host_tagset = true).starts_with("host_tagset=1"));
    assert!(refused(|c| c.nr_poll_queues = 1).starts_with("nr_poll_queues=1"));
    assert!(refused(|c| (c.mode, c.nr_hw_queues) = (Mode::Sq, None)).starts_with("mode=sq"));
    assert!(refused(|c| c.nr_requests = Some(8)).starts_with("nr_requests=8: must be the tag set's queue_depth=16"));
    assert!(refused(|c| c.scheduler = Some("cfq".into())).contains("cfq"));
    assert_eq!(w.set.nr_disks(), 0, "places of those refused are free again");
    w.join(manual(), QueueConfig { nr_hw_queues: None, ..c.clone() }, &[0]);
    assert_eq!(w.disks[0].q.map().nr_hw_queues(), 2, "left to the set");
    let bad = TagSetConfig { queue_depth: 0, ..TagSetConfig::of(&c) };
    assert!(TagSet::<Lock>::new(bad).err().expect("no tags").0.contains("queue_depth=0"));
}

#[test]
fn a_busy_disk_refuses_company_until_it_is_frozen() {
    let c = config(1, 1, 16, "none");
    let mut w = SetHarness::new(11, &c);
    w.join(manual(), c.clone(), &[0]);
    assert!(!w.set.is_shared());
    w.submit_reads(0, 0, 20);
    assert_eq!(w.in_flight(), [16], "alone: all of them");
    let e = w.try_join(manual(), c.clone(), &[0]).expect_err("busy").0;
    assert!(e.contains("must be drained") && e.contains("TagSet::begin_freeze"), "{e}");
    assert!(!w.set.is_shared());
    w.set.begin_freeze();
    w.disks[0].disk.release_all();
    w.settle();
    assert!(w.set.is_drained());
    w.join(manual(), c, &[0]);
    w.submit_reads(1, 0, 1);
    assert_eq!(w.in_flight(), [0, 0], "a disk that joins a frozen set is frozen, too");
    w.set.unfreeze();
    w.settle();
    assert_eq!(w.in_flight(), [4, 1]);
    w.submit_reads(0, 0, 20);
    assert_eq!(w.in_flight(), [8, 1]);
    finish(w);
}

#[test]
fn a_freeze_of_one_disk_waits_for_its_own_tags_only() {
    for scheduler in NAMES {
        let mut w = two_disks(scheduler);
        w.submit_reads(1, 0, 1);
        w.submit_reads(0, 0, 20);
        w.submit_reads(1, 0, 19);
        assert_eq!(w.in_flight(), [8, 8]);
        w.disks[1].q.begin_freeze();
        w.disks[1].disk.behave(|b| b.manual = false);
        w.now += MS;
        w.run(1000);
        assert!(w.disks[1].q.is_drained(), "{scheduler}\n{}", w.describe());
        assert!(w.in_flight()[0] >= 8, "{scheduler}: the other goes on");
        // A disk may change its own settings; the tags can be changed only through the set.
        let e = w.disks[1].q.rebuild(|c| {
            c.queue_depth = 4;
            Ok(())
        });
        assert!(e.expect_err("the set's").0.contains("TagSet::update"));
        w.disks[1]
            .q
            .rebuild(|c| {
                c.scheduler = Some("kyber".into());
                Ok(())
            })
            .expect("its own");
        w.disks[1].q.unfreeze();
        finish(w);
    }
}

#[test]
fn a_frozen_or_quiesced_disk_passes_a_wake_up_on() {
    for scheduler in NAMES {
        let c = config(1, 1, 8, scheduler);
        let mut w = SetHarness::new(12, &c);
        (0..3).for_each(|_| w.join(manual(), c.clone(), &[0]));
        w.set.set_fair_sharing(false);
        w.submit_reads(0, 0, 8);
        w.submit_reads(1, 0, 1);
        w.submit_reads(2, 0, 1);
        assert_eq!(w.in_flight(), [8, 0, 0]);
        // Disk 1 is first in the wait queue and cannot use the tag for which it is woken.
        if scheduler == "none" {
            w.disks[1].q.begin_freeze();
        } else {
            w.disks[1].q.quiesce();
        }
        w.disks[0].disk.release(|i| i.n == 0);
        w.settle();
        assert_eq!(w.in_flight(), [7, 0, 1], "{scheduler}\n{}", w.describe());
        if scheduler == "none" {
            w.disks[1].q.unfreeze();
        } else {
            w.disks[1].q.unquiesce();
        }
        finish(w);
    }
}

#[test]
fn frozen_submitter_passes_its_wake_up_on() {
    for sealed in [false, true] {
        let c = config(1, 1, 8, "none");
        let mut w = SetHarness::new(17, &c);
        (0..3).for_each(|_| w.join(manual(), c.clone(), &[0]));
        w.set.set_fair_sharing(false);
        w.submit_reads(0, 0, 8);
        w.submit_reads(1, 0, 1);
        w.submit_reads(2, 0, 1);
        w.disks[0].disk.release(|i| i.n == 0);
        w.poll(0, 0);
        // Disk 1 was notified, and is frozen before it can take the tag.
        w.disks[1].q.begin_freeze();
        assert!(!sealed || w.disks[1].q.is_drained());
        w.settle();
        assert_eq!(w.in_flight(), [7, 0, 1], "sealed {sealed}\n{}", w.describe());
        w.disks[1].q.unfreeze();
        finish(w);
    }
}

#[test]
fn a_disk_at_its_share_passes_the_wake_up_on() {
    let c = config(1, 1, 16, "none");
    let mut w = SetHarness::new(18, &c);
    for cpus in [&[0u16, 0][..], &[0], &[0]] {
        w.join(manual(), c.clone(), cpus);
    }
    (0..3).for_each(|d| w.submit_reads(d, 0, 1));
    w.submit_reads(0, 0, 4);
    w.submit_reads(2, 0, 4);
    w.submit_reads(1, 0, 5);
    assert_eq!(w.in_flight(), [5, 6, 5], "none is left; of six each, disks 0 and 2 might have one more");
    w.submit_reads(0, 0, 1);
    w.submit_reads(0, 1, 1);
    w.submit_reads(2, 0, 1);
    // Two tags, for which both submitters of disk 0 are first in the wait queue.
    w.disks[1].disk.release(|i| i.n < 2);
    w.settle();
    assert_eq!(w.in_flight(), [6, 4, 6], "{}", w.describe());
    finish(w);
}

#[test]
fn a_wake_up_between_finding_no_tag_and_the_list_is_not_lost() {
    let c = config(1, 1, 2, "mq-deadline");
    let mut w = SetHarness::new(19, &c);
    (0..2).for_each(|_| w.join(manual(), c.clone(), &[0]));
    w.submit_reads(1, 0, 1);
    w.disks[1].disk.release_all();
    let other = Arc::new(Mutex::new(w.disks[1].subs.pop()));
    let (there, now) = (other.clone(), w.t());
    // Request 0 of disk 0 gets the other tag, request 1 none. While request 0 is passed to the driver, the tag of disk 1
    // is freed, and the hardware queue that waits for that tag has no request on its list yet.
    w.disks[0].disk.interleave(0, move || {
        let mut other = there.lock().expect("no test panics here");
        other.as_mut().expect("not back yet").poll(now);
    });
    w.disks[0].subs[0].start_plug(2);
    w.submit_reads(0, 0, 2);
    w.with(0, |harness| harness.unplug(0));
    w.disks[1].subs.push(other.lock().expect("no test panics here").take().expect("put there above"));
    w.settle();
    assert_eq!(w.in_flight(), [2, 0], "{}", w.describe());
    finish(w);
}

#[test]
fn a_set_is_changed_for_all_its_disks_or_for_none() {
    let c = config(4, 4, 16, "mq-deadline");
    let mut w = SetHarness::new(13, &c);
    (0..3).for_each(|_| w.join(Behaviour::default(), c.clone(), &[0, 1, 2, 3]));
    (0..3).for_each(|d| w.submit_reads(d, 3, 30));
    w.set.begin_freeze();
    w.run(10_000);
    assert!(w.set.is_drained());
    let to = |hw: u16, depth: u32| {
        move |c: &mut TagSetConfig| {
            (c.nr_hw_queues, c.queue_depth) = (hw, depth);
            Ok(())
        }
    };
    w.disks[2].disk.refuse_starts(1);
    let e = w.set.update(to(2, 8)).expect_err("one driver refuses").0;
    assert_eq!(e, "driver 'sim' could not start 2 queues of depth 8: no vectors left");
    for d in &w.disks {
        assert_eq!((d.q.map().nr_hw_queues(), d.q.config().queue_depth), (4, 16));
    }
    assert!(w.set.update(to(5, 8)).expect_err("too few CPUs").0.contains("nr_hw_queues=5"));
    assert!(w.set.update(to(2, 0)).expect_err("no tags").0.contains("queue_depth=0"));
    assert_eq!((w.set.config().nr_hw_queues, w.set.config().queue_depth), (4, 16));
    w.set.update(to(1, 6)).expect("good settings");
    w.set.unfreeze();
    w.disks.iter().for_each(|d| d.disk.behave(|b| b.manual = true));
    (0..3).for_each(|d| w.submit_reads(d, 1, 1));
    (0..3).for_each(|d| w.submit_reads(d, 0, 10));
    w.settle();
    assert_eq!(w.in_flight().iter().sum::<usize>(), 6, "{}", w.describe());
    assert!(w.in_flight().iter().all(|n| *n <= 4), "{:?}", w.in_flight());
    finish(w);
}

#[test]
fn a_set_that_could_not_be_changed_shares_its_tags_as_before() {
    for refuses in 0..3 {
        for scheduler in ["none", "mq-deadline"] {
            let mut c = config(1, 1, 16, scheduler);
            c.nr_requests = (scheduler != "none").then_some(24);
            let mut w = SetHarness::new(15, &c);
            (0..3).for_each(|_| w.join(Behaviour::default(), c.clone(), &[0]));
            (0..3).for_each(|d| w.submit_reads(d, 0, 4));
            w.set.begin_freeze();
            w.run(10_000);
            assert!(w.set.is_drained());
            w.disks[refuses].disk.refuse_starts(1);
            let smaller = |c: &mut TagSetConfig| {
                c.queue_depth = 8;
                Ok(())
            };
            w.set.update(smaller).expect_err("one driver refuses");
            w.set.unfreeze();
            w.disks.iter().for_each(|d| d.disk.behave(|b| b.manual = true));
            (0..3).for_each(|d| w.submit_reads(d, 0, 1));
            (0..3).for_each(|d| w.submit_reads(d, 0, 20));
            w.settle();
            assert_eq!(w.set.active_disks(HctxId::new(0)), 3, "{scheduler}, {refuses} refuses");
            assert_eq!(w.in_flight(), [6, 6, 4], "{scheduler}, {refuses} refuses: {}", w.describe());
            assert!(w.disks.iter().all(|d| d.q.config().nr_requests == c.nr_requests));
            finish(w);
        }
    }
}

#[test]
#[should_panic(expected = "an update needs drained disks")]
fn a_set_in_use_is_not_changed() {
    let c = config(1, 1, 16, "none");
    let mut w = SetHarness::new(14, &c);
    w.join(manual(), c, &[0]);
    w.submit_reads(0, 0, 1);
    w.set.begin_freeze();
    let _ = w.set.update(|_| Ok(()));
}

#[test]
fn a_late_request_is_asked_about_once_beside_other_disks() {
    for scheduler in NAMES {
        let c = QueueConfig { io_timeout_ms: 20, ..config(1, 1, 16, scheduler) };
        let mut w = SetHarness::new(15, &c);
        (0..2).for_each(|_| w.join(manual(), c.clone(), &[0]));
        // Each disk has had each tag.
        for d in [0, 1, 0] {
            w.submit_reads(d, 0, 6);
            w.disks[d].disk.release_all();
            w.settle();
        }
        w.submit_reads(0, 0, 3);
        w.submit_reads(1, 0, 5);
        let before: u64 = w.disks[0].q.hctx_stats().iter().map(|h| h.timeouts).sum();
        w.now += 40 * MS;
        w.settle();
        let of = |d: usize| w.disks[d].q.hctx_stats().iter().map(|h| h.timeouts).sum::<u64>();
        assert_eq!((before, of(0), of(1)), (0, 3, 5), "{scheduler}");
        finish(w);
    }
}

/// What the kernel reported of its own sets (`tests/it/oracle/tags-6.1.txt`): tags per queue, nr_requests, default scheduler and
/// flags of each disk.
#[test]
fn shape_and_defaults_are_those_recorded() {
    let text = include_str!("oracle/tags-6.1.txt");
    let mut compared = 0;
    let mut sections = text.split("== ").skip(1);
    for section in sections.by_ref() {
        let (title, disks) = section.split_once('\n').expect("a title and disks");
        let disks: Vec<&str> = disks.lines().filter(|l| l.contains("nr_requests")).collect();
        // null_blk sets NO_SCHED_BY_DEFAULT; the SCSI layer takes the default scheduler.
        let scheduler = title.starts_with("null_blk").then(|| "none".to_string());
        let parse = |line: &str| -> (Vec<u32>, u32, String, bool, bool) {
            let (head, flags) = line.split_once("flags").expect("flags");
            let words: Vec<&str> = head.split_whitespace().collect();
            let at = words.iter().position(|w| *w == "nr_requests").expect("nr_requests");
            // The last of these is the list of all CPUs, which the script printed with the queues.
            let queues: Vec<u32> =
                words[1..at].iter().map(|q| q.split('/').next().expect("tags").parse().expect("a number")).collect();
            let sched = head.split(['[', ']']).nth(1).expect("the one in effect").to_string();
            let nr_requests = words[at + 1].parse().expect("a number");
            (queues, nr_requests, sched, flags.contains("TAG_QUEUE_SHARED"), flags.contains("TAG_HCTX_SHARED"))
        };
        let (queues, _, _, _, host) = parse(disks[0]);
        // null_blk lists its polled map's queue behind the others, of all CPUs; the set has `submit_queues`.
        let hw = if title.contains("4 queues") || title.contains("submit_queues=4") { 4 } else { 1 };
        let c = QueueConfig { host_tagset: host, scheduler, ..config(4, hw, queues[0], "none") };
        let mut w = SetHarness::new(16, &c);
        disks.iter().for_each(|_| w.join(manual(), c.clone(), &[0]));
        for (line, d) in disks.iter().zip(&w.disks) {
            let (queues, nr_requests, sched, shared, host) = parse(line);
            assert!(queues.iter().all(|tags| *tags == d.q.config().queue_depth), "{line}");
            assert_eq!((d.q.nr_requests(), d.q.scheduler()), (nr_requests, sched), "{line}");
            assert_eq!((w.set.is_shared(), w.set.config().host_tagset), (shared, host), "{line}");
            let files = d.q.debugfs();
            let flags = &files.iter().find(|f| f.path == "hctx0/flags").expect("flags").text;
            assert_eq!(flags.contains("TAG_QUEUE_SHARED"), shared, "{flags}");
            assert_eq!(flags.contains("TAG_HCTX_SHARED"), host, "{flags}");
            compared += 1;
        }
    }
    assert_eq!(compared, 5);
}

#[test]
fn cpu_goes_offline_while_other_hctxs_hold_tags_of_its_map() {
    for scheduler in ["none", "mq-deadline"] {
        let c = host_wide(2, 16, scheduler);
        let mut w = SetHarness::new(20, &c);
        (0..2).for_each(|_| w.join(manual(), c.clone(), &[0, 1]));
        for d in 0..2 {
            w.submit_reads(d, 0, 3);
            w.submit_reads(d, 1, 3);
        }
        assert_eq!(w.in_flight(), [6, 6]);
        let cpu = CpuId::new(1);
        w.disks[0].q.begin_offline(cpu).expect("another is left");
        w.settle();
        assert!(!w.disks[0].q.is_offline(cpu), "its hardware queue has three requests");
        assert_eq!(w.disks[0].q.in_progress(), 6, "of this disk");
        w.disks[0].disk.release(|i| i.hctx == 1);
        w.settle();
        assert!(w.disks[0].q.is_offline(cpu), "{scheduler}\n{}", w.describe());
        assert_eq!(w.in_flight(), [3, 6]);
        w.disks[0].q.online(cpu);
        finish(w);
    }
}

#[test]
fn a_set_outlives_its_disks_and_takes_new_ones() {
    let c = config(1, 1, 16, "none");
    let mut w = two_disks("none");
    w.submit_reads(0, 0, 2);
    w.disks[0].disk.release_all();
    w.settle();
    w.disks.clear();
    assert_eq!((w.set.nr_disks(), w.set.is_shared(), w.set.active_disks(HctxId::new(0))), (0, false, 0));
    w.join(manual(), c, &[0]);
    w.submit_reads(0, 0, 20);
    assert_eq!(w.in_flight(), [16]);
    finish(w);
    let alone = SimDisk::new(manual(), Arc::new(Mem::new(64)), 0);
    let q = RequestQueue::<Lock>::new(alone, config(1, 1, 4, "none"), Box::new(NoNotify)).expect("good settings");
    assert!(q.tag_set().is_none());
}
