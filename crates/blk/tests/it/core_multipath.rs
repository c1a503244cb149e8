// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A multipath disk on paths that break: path choice, retries, waiting and its time limits, and correct contents whatever the
//! paths do.

use crate::ways;

use blk::bio::{Bio, DataRef, Op, OpFlags};
use blk::driver::POLL_BATCH;
use blk::id::Sector;
use blk::limits::Limits;
use blk::multipath::{Features, Multipath, NewGroup, NewPath, PathArgs, PathEvent, PathId, Selector};
use blk::status::{BlkStatus, QueueRqStatus};
use blk::submitter::SubmitError;
use blk::time::Duration;
use sim::Lock;
use sim::contents::{Contents, Held};
use sim::disk::{Answer, Behaviour};
use sim::rng::Rng;
use std::sync::Arc;
use ways::{Does, Stack, config, path, read};

const FAIL: Features =
    Features { queue_if_no_path: false, no_path_timeout: Duration::ZERO, pg_init_retries: 0, pg_init_delay: None };
const QUEUE: Features = Features { queue_if_no_path: true, ..FAIL };

/// A stack that completes by time, with one round-robin group.
fn stack(n: usize, features: Features) -> Stack {
    Stack::new(1, Behaviour::default(), &[(Selector::RoundRobin, n)], features, config("none", 64))
}

fn by_hand(n: usize, features: Features) -> Stack {
    let b = Behaviour { manual: true, ..Behaviour::default() };
    Stack::new(1, b, &[(Selector::RoundRobin, n)], features, config("none", 64))
}

fn id(s: &Stack, n: usize) -> PathId {
    s.mp.path(&format!("252:{n}")).unwrap()
}

fn fail_counts(s: &Stack) -> Vec<u64> {
    s.mp.status().groups.iter().flat_map(|g| g.paths.iter().map(|p| p.fail_count)).collect()
}

#[test]
fn requests_take_turns_and_end_once() {
    let mut s = stack(3, FAIL);
    s.subs[0].start_plug(0);
    (0..30).for_each(|n| s.submit(0, read(n)));
    let t = s.t();
    s.subs[0].finish_plug(t);
    s.run();
    assert_eq!(s.statuses(), [BlkStatus::Ok; 30]);
    assert_eq!(s.sent(), [10, 10, 10]);
    s.check_idle();
}

/// A path's error in each of the ways in which a driver can report it: by rejecting the request, by completing it while
/// it is issued, by completing it later, and from its timeout function.
#[test]
fn what_a_path_fails_another_does() {
    let transport = BlkStatus::Transport;
    for does in [
        Does::Refuses(QueueRqStatus::Error(transport)),
        Does::EndsAtOnce(transport),
        Does::EndsAfter(1000, transport),
        Does::EndsAfter(1000, BlkStatus::IoErr),
        Does::EndsAfter(1000, BlkStatus::Resource),
        Does::Swallows,
    ] {
        for scheduler in ["none", "mq-deadline"] {
            let features = if scheduler == "none" { FAIL } else { QUEUE };
            let groups = [(Selector::RoundRobin, 2)];
            let mut s = Stack::new(1, Behaviour::default(), &groups, features, config(scheduler, 64));
            s.patience_ns = 60_000_000_000;
            s.ways[0].does(does);
            (0..4).for_each(|n| s.submit(0, read(n)));
            s.run();
            assert_eq!(s.statuses(), [BlkStatus::Ok; 4], "{does:?}, {scheduler}");
            assert_eq!((s.sent(), fail_counts(&s)), (vec![0, 4], vec![1, 0]), "{does:?}, {scheduler}: fails once");
            s.check_idle();
        }
    }
}

#[test]
fn an_error_of_the_disk_is_no_error_of_the_path() {
    let mut s = stack(2, QUEUE);
    let medium = BlkStatus::Medium;
    s.disk.script([Answer::Fail(medium), Answer::Refuse(QueueRqStatus::Error(BlkStatus::Target)), Answer::Accept]);
    (0..3).for_each(|n| s.submit(0, read(n)));
    s.run();
    let mut ended = s.done();
    ended.sort_by_key(|d| d.user_data);
    let ended: Vec<_> = ended.iter().map(|d| d.status).collect();
    assert_eq!(ended, [medium, BlkStatus::Target, BlkStatus::Ok]);
    assert_eq!(fail_counts(&s), [0, 0]);
    s.check_idle();
}

#[test]
fn without_a_path_a_request_ends_with_its_own_error() {
    for (does, expected) in [
        (Does::EndsAfter(10, BlkStatus::Transport), BlkStatus::Transport),
        (Does::EndsAtOnce(BlkStatus::Offline), BlkStatus::Offline),
        (Does::Refuses(QueueRqStatus::Error(BlkStatus::Transport)), BlkStatus::Transport),
    ] {
        let mut s = stack(2, FAIL);
        s.ways.iter().for_each(|w| w.does(does));
        s.submit(0, read(0));
        s.run();
        assert_eq!(s.statuses(), [expected], "{does:?}");
        // The next request finds no path at all.
        s.submit(0, read(1));
        s.run();
        assert_eq!(s.statuses(), [BlkStatus::IoErr]);
        assert_eq!(fail_counts(&s), [1, 1]);
        s.check_idle();
    }
}

#[test]
fn requests_wait_for_a_path_and_go_at_once_when_it_is_back() {
    for scheduler in ["none", "mq-deadline", "kyber"] {
        let groups = [(Selector::RoundRobin, 1), (Selector::QueueLength, 1)];
        let mut s = Stack::new(1, Behaviour::default(), &groups, QUEUE, config(scheduler, 8));
        (0..2).for_each(|n| s.mp.fail_path(id(&s, n), s.t()));
        let told = s.take_events();
        assert_eq!(told, [PathEvent::PathFailed(id(&s, 0)), PathEvent::PathFailed(id(&s, 1))]);
        (0..20).for_each(|n| s.submit((n % 2) as usize, read(n)));
        // Retried every 100 ms, not more often.
        let before = s.now;
        for _ in 0..200 {
            assert!(s.step(), "it looks again");
        }
        let hctxs = 2;
        assert!(s.now - before >= 90_000_000 * (200 / hctxs / 2), "{scheduler}: {} ns for 200 looks", s.now - before);
        assert_eq!(s.done(), []);
        let at = s.now;
        s.mp.reinstate_path(id(&s, 1));
        s.patience_ns = 50_000_000;
        s.run();
        assert_eq!(s.statuses(), [BlkStatus::Ok; 20], "{scheduler}");
        assert!(s.now - at < 10_000_000, "{scheduler}: at once");
        assert_eq!(s.sent(), [0, 20]);
        s.check_idle();
    }
}

#[test]
fn queueing_ends_with_its_time_or_when_it_is_told_to() {
    let mut s = stack(1, Features { no_path_timeout: Duration::from_secs(3), ..QUEUE });
    s.ways[0].does(Does::EndsAfter(1000, BlkStatus::Transport));
    s.submit(0, read(0));
    s.run();
    let since = s.now;
    s.patience_ns = 1_000_000_000;
    while s.subs[0].ready() == 0 {
        assert!(s.step());
    }
    let waited = s.now - 1_001_000;
    assert!((3_000_000_000..3_110_000_000).contains(&waited), "{waited} ns, {since}");
    assert_eq!(s.statuses(), [BlkStatus::IoErr]);
    s.check_idle();
    // With `fail_if_no_path`, requests fail at once. After `queue_if_no_path`, they wait again.
    s.mp.queue_if_no_path(s.t());
    s.submit(0, read(1));
    for _ in 0..5 {
        s.step();
    }
    assert_eq!(s.done(), []);
    s.mp.fail_if_no_path(s.t());
    let at = s.now;
    s.run();
    assert_eq!(s.statuses(), [BlkStatus::IoErr]);
    assert!(s.now - at < 200_000_000);
    s.check_idle();
}

/// When a path gives up a request, its device may still execute it, so no other path may get the request.
#[test]
fn what_is_given_up_ends_and_goes_nowhere_else() {
    let mut s = stack(2, QUEUE);
    let transport = BlkStatus::Transport;
    for does in
        [Does::EndsAfter(10, transport), Does::EndsAtOnce(transport), Does::Refuses(QueueRqStatus::Error(transport))]
    {
        s.ways[0].does(does);
        s.mp.reinstate_path(id(&s, 0));
        s.mp.switch_group(0).unwrap();
        s.mp.set_give_up(true, s.t());
        let before = s.sent()[1];
        (0..2).for_each(|n| s.submit(0, read(n)));
        s.run();
        let mut ended = s.statuses();
        ended.sort_by_key(|status| status.is_ok());
        assert_eq!((ended, s.sent()[1] - before), (vec![transport, BlkStatus::Ok], 1), "{does:?}");
        s.mp.set_give_up(false, s.t());
        s.now += 1;
    }
    // No request waits for a path, although queueing is turned on meanwhile.
    s.mp.set_give_up(true, s.t());
    (0..2).for_each(|n| s.mp.fail_path(id(&s, n), s.t()));
    s.mp.queue_if_no_path(s.t());
    s.submit(0, read(0));
    s.run();
    assert_eq!(s.statuses(), [BlkStatus::IoErr]);
    s.mp.set_give_up(false, s.t());
    s.now += 1;
    // Setting the same value again changes nothing.
    s.submit(0, read(1));
    (0..5).for_each(|_| _ = s.step());
    s.mp.set_give_up(false, s.t());
    (0..5).for_each(|_| _ = s.step());
    assert_eq!(s.done(), [], "it waits again");
    s.mp.reinstate_path(id(&s, 1));
    s.run();
    assert_eq!(s.statuses(), [BlkStatus::Ok]);
    s.check_idle();
}

/// An error that is reported after giving up was turned off may be of a request that was given up.
#[test]
fn what_was_given_up_and_is_told_late_goes_nowhere_else() {
    let mut s = stack(2, FAIL);
    s.ways[0].does(Does::EndsAfter(1000, BlkStatus::Transport));
    (0..2).for_each(|n| s.submit(0, read(n)));
    s.mp.set_give_up(true, s.t());
    s.mp.set_give_up(false, s.t());
    s.run();
    let mut ended = s.statuses();
    ended.sort_by_key(|status| status.is_ok());
    assert_eq!((ended, s.sent()), (vec![BlkStatus::Transport, BlkStatus::Ok], vec![0, 1]));
    // Later requests are not affected.
    s.now += 1;
    s.mp.reinstate_path(id(&s, 0));
    (0..2).for_each(|n| s.submit(0, read(n)));
    s.run();
    assert_eq!((s.statuses(), s.sent()), (vec![BlkStatus::Ok; 2], vec![0, 3]));
    s.check_idle();
}

/// A path whose completions always fill a poll does not prevent completions of other paths from being reported.
#[test]
fn a_poll_that_fills_up_gives_the_others_their_turn() {
    let groups = [(Selector::RoundRobin, 2)];
    let mut s = Stack::new(1, Behaviour::default(), &groups, FAIL, config("none", 512));
    // Completions that are due at once; path 0 has more than several polls have room for.
    s.mp.fail_path(id(&s, 1), s.t());
    s.ways.iter().for_each(|way| way.does(Does::EndsAfter(0, BlkStatus::Target)));
    (0..400).for_each(|n| s.submit(0, read(n)));
    s.mp.fail_path(id(&s, 0), s.t());
    s.mp.reinstate_path(id(&s, 1));
    s.submit(0, read(999));
    s.run();
    let order = s.done();
    let at = order.iter().position(|d| d.user_data == 999).unwrap();
    assert!(order.len() == 401 && at < 2 * POLL_BATCH, "it is told as number {at}, behind all that path 0 had");
    s.check_idle();
}

#[test]
fn a_busy_path_is_passed_over_and_all_busy_is_busy() {
    let mut s = by_hand(2, FAIL);
    s.ways[0].does(Does::Refuses(QueueRqStatus::Resource));
    (0..4).for_each(|n| s.submit(0, read(n)));
    assert_eq!(s.sent(), [0, 4]);
    s.ways[1].does(Does::Refuses(QueueRqStatus::DevResource));
    s.submit(0, read(4));
    assert_eq!(s.sent(), [0, 4], "both are busy");
    s.ways[0].does(Does::Refuses(QueueRqStatus::DevResource));
    s.ways[1].does(Does::Works);
    s.disk.release_all();
    s.run();
    s.disk.release_all();
    s.run();
    assert_eq!((s.statuses(), s.sent()), (vec![BlkStatus::Ok; 5], vec![0, 5]));
    assert_eq!(fail_counts(&s), [0, 0]);
    s.check_idle();
}

#[test]
fn groups_are_used_in_order_and_switched_when_told() {
    let groups = [(Selector::ServiceTime, 1), (Selector::RoundRobin, 2)];
    let mut s = Stack::new(1, Behaviour::default(), &groups, FAIL, config("none", 8));
    let go = |s: &mut Stack| {
        let before = s.sent();
        (0..4).for_each(|n| s.submit(0, read(n)));
        s.run();
        assert_eq!(s.statuses(), [BlkStatus::Ok; 4]);
        before.iter().zip(s.sent()).map(|(b, n)| n - b).collect::<Vec<_>>()
    };
    assert_eq!(go(&mut s), [4, 0, 0]);
    s.mp.fail_path(id(&s, 0), s.t());
    assert_eq!(go(&mut s), [0, 2, 2]);
    s.mp.reinstate_path(id(&s, 0));
    assert_eq!(go(&mut s), [0, 2, 2], "failback is for others to say");
    s.mp.switch_group(0).unwrap();
    assert_eq!(go(&mut s), [4, 0, 0]);
    s.mp.disable_group(0).unwrap();
    assert_eq!(go(&mut s), [0, 2, 2]);
    assert_eq!(s.mp.status().to_string(), "2 0 0 0 2 2 D 0 1 2 252:0 A 1 0 1 A 0 2 0 252:1 A 0 252:2 A 0 ");
    s.mp.enable_group(0).unwrap();
    assert_eq!(go(&mut s), [4, 0, 0]);
    let e = s.mp.switch_group(2).unwrap_err();
    assert_eq!(e.to_string(), "group 3: must be 1..=2");
}

/// The lines of oracle/multipath-6.1.txt, after `0 2097152 multipath`.
#[test]
fn paths_are_sorted_into_new_groups_with_requests_out() {
    let groups = [(Selector::QueueLength, 2), (Selector::QueueLength, 1)];
    let b = Behaviour { manual: true, ..Behaviour::default() };
    let mut s = Stack::new(1, b.clone(), &groups, FAIL, config("none", 64));
    (0..4).for_each(|n| s.submit(0, read(n)));
    s.poll();
    assert_eq!(s.sent(), [2, 2, 0]);
    let ids: Vec<PathId> = (0..3).map(|n| id(&s, n)).collect();
    s.mp.regroup(&[vec![ids[2]], vec![ids[0], ids[1]]]).unwrap();
    (4..8).for_each(|n| s.submit(0, read(n)));
    s.poll();
    assert_eq!(s.sent(), [2, 2, 4], "the new best group");
    s.disk.behave(|b| b.manual = false);
    s.disk.release_all();
    s.run();
    assert_eq!(s.statuses(), [BlkStatus::Ok; 8]);
    s.check_idle();
    let before = s.mp.status();
    for (new, why) in [
        (vec![ids.clone(), vec![], vec![]], "3 groups: must be at most 2, as when the disk was created"),
        (vec![ids[..2].to_vec()], "2 paths in new groups: must list every path of the disk exactly once"),
        (vec![ids.clone(), vec![ids[0]]], "4 paths in new groups: must list every path of the disk exactly once"),
    ] {
        assert_eq!(s.mp.regroup(&new).unwrap_err().to_string(), why);
    }
    assert_eq!(s.mp.status(), before, "nothing has changed");
    let groups = [(Selector::QueueLength, 1), (Selector::RoundRobin, 1)];
    let s = Stack::new(1, b, &groups, FAIL, config("none", 8));
    let e = s.mp.regroup(&[vec![id(&s, 1)], vec![id(&s, 0)]]).unwrap_err();
    assert!(e.to_string().contains("needs one selector for all groups"), "{e}");
}

#[test]
fn status_is_printed_as_the_kernels() {
    for (selector, expected) in [
        (Selector::RoundRobin, "2 0 0 0 1 1 A 0 2 0 252:0 A 0 252:1 A 0 "),
        (Selector::QueueLength, "2 0 0 0 1 1 A 0 2 1 252:0 A 0 0 252:1 A 0 0 "),
        (Selector::ServiceTime, "2 0 0 0 1 1 A 0 2 2 252:0 A 0 0 1 252:1 A 0 0 1 "),
    ] {
        let mut s = Stack::new(1, Behaviour::default(), &[(selector, 2)], FAIL, config("none", 8));
        s.submit(0, read(0));
        s.run();
        assert_eq!(s.mp.status().to_string(), expected);
        assert_eq!(s.statuses(), [BlkStatus::Ok]);
    }
    let mut s = stack(2, FAIL);
    s.submit(0, read(0));
    s.run();
    s.mp.fail_path(id(&s, 0), s.t());
    assert_eq!(s.mp.status().to_string(), "2 0 0 0 1 1 A 0 2 0 252:0 F 1 252:1 A 0 ");
    s.mp.reinstate_path(id(&s, 0));
    assert_eq!(s.mp.status().to_string(), "2 0 0 0 1 1 A 0 2 0 252:0 A 1 252:1 A 0 ");
    assert_eq!(s.mp.table().to_string(), "0 0 1 1 round-robin 0 2 1 252:0 1 252:1 1 ");
    s.done();
}

#[test]
fn a_path_goes_when_nothing_of_it_is_in_flight() {
    let mut s = by_hand(2, FAIL);
    (0..2).for_each(|n| s.submit(0, read(n)));
    let gone = id(&s, 0);
    assert_eq!(s.mp.remove_path(gone, s.t()), Ok(false), "it has one");
    assert!(!s.mp.has_gone(gone));
    assert_eq!(s.mp.path("252:0"), None);
    let e = s.mp.remove_path(gone, s.t()).unwrap_err();
    assert_eq!(e.to_string(), "path number 0: does not exist");
    // New requests go to another path; requests in flight complete.
    (2..4).for_each(|n| s.submit(0, read(n)));
    assert_eq!(s.sent(), [1, 3]);
    let third = s.new_way();
    assert_eq!(s.mp.add_path(0, path(&third)).unwrap().index(), 2, "its number is still its");
    s.disk.release_all();
    s.run();
    assert!(s.mp.has_gone(gone));
    assert_eq!(s.statuses(), [BlkStatus::Ok; 4]);
    let back = s.ways[0].clone();
    assert_eq!(s.mp.add_path(0, path(&back)).unwrap(), gone);
    (4..7).for_each(|n| s.submit(0, read(n)));
    assert_eq!(s.sent(), [2, 4, 1]);
    s.disk.release_all();
    s.run();
    for n in 0..3 {
        assert_eq!(s.mp.remove_path(id(&s, n), s.t()), Ok(true));
    }
    s.done();
    s.submit(0, read(9));
    s.run();
    assert_eq!(s.statuses(), [BlkStatus::IoErr], "none is left");
    s.check_idle();
}

#[test]
fn a_path_that_cannot_be_of_this_disk_is_refused() {
    let mut s = stack(1, FAIL);
    let mut refused = |change: &dyn Fn(&mut ways::PathDriver)| {
        let mut way = Arc::into_inner(s.new_way_alone()).unwrap();
        change(&mut way);
        s.mp.add_path(0, path(&Arc::new(way))).unwrap_err().to_string()
    };
    assert_eq!(
        refused(&|w| w.capacity = Sector(4711)),
        "path 252:1: leads to another disk: 4711 sectors, instead of 1048576"
    );
    assert!(refused(&|w| w.limits.logical_block_size = 4096).contains("blocks of 4096 bytes"));
    assert!(refused(&|w| w.limits.write_cache = true).contains("write cache true"));
    assert!(refused(&|w| w.limits.max_sectors = 8).contains("its limits are stricter than the disk's"));
    assert!(refused(&|w| w.limits.chunk_sectors = 128).contains("its limits are stricter"));
    let e = s.mp.add_path(1, path(&s.ways[0].clone())).unwrap_err();
    assert_eq!(e.to_string(), "path 252:0: group 1: must be below 1");
    let e = s.mp.add_path(0, path(&s.ways[0].clone())).unwrap_err();
    assert_eq!(e.to_string(), "path 252:0: already exists; remove it first");
    let by_cpu = Stack::new(1, Behaviour::default(), &[(Selector::IoAffinity, 1)], FAIL, config("none", 64));
    let with_cpus = NewPath { args: PathArgs { cpus: vec![1], ..PathArgs::default() }, ..path(&s.new_way_alone()) };
    let e = by_cpu.mp.add_path(0, with_cpus).unwrap_err();
    assert_eq!(
        e.to_string(),
        "path 252:1: selector io-affinity takes path CPUs only at creation; recreate the disk with this path"
    );
    let none = vec![NewGroup { selector: Selector::RoundRobin, paths: vec![] }];
    let e = Multipath::<Lock>::new(none, FAIL, None, &[], Box::new(|_| {})).err().unwrap();
    assert_eq!(e.to_string(), "0 paths in 1 groups: must be 1..=64 paths, at most 64 groups");
}

#[test]
fn limits_are_the_strictest_and_sixty_four_paths_are_the_most() {
    let strict = |n: usize, l: &mut Limits| {
        l.chunk_sectors = [0, 256, 64][n % 3];
        l.max_segments = 100 - n as u16;
        l.max_discard_sectors = 1000 + n as u32;
    };
    let mut s = stack(1, FAIL);
    let mut make = |n: usize| {
        let mut way = Arc::into_inner(s.new_way_alone()).unwrap();
        strict(n, &mut way.limits);
        blk::multipath::NewPath { name: format!("p{n}"), ..path(&Arc::new(way)) }
    };
    let mut group =
        |n: usize| vec![NewGroup { selector: Selector::QueueLength, paths: (0..n).map(&mut make).collect() }];
    let mp = Multipath::<Lock>::new(group(64), FAIL, None, &[], Box::new(|_| {})).unwrap();
    let l = blk::driver::Driver::limits(&mp);
    assert_eq!((l.chunk_sectors, l.max_segments, l.max_discard_sectors), (64, 37, 1000));
    let e = Multipath::<Lock>::new(group(65), FAIL, None, &[], Box::new(|_| {})).err().unwrap();
    assert!(e.to_string().starts_with("65 paths in 1 groups"), "{e}");
}

/// Areas of memory: one for each bio that may be in flight.
const AREAS: u64 = 64;
/// Sectors of an area.
const LONGEST: u64 = 40;

/// A bio in flight, and the model's data for it.
struct Out {
    bio: Bio,
    held: Option<Held>,
    since: u64,
}

/// The expected content of the disk, and the bios in flight.
struct Load {
    model: Contents,
    out: Vec<Option<Out>>,
    stamp: u64,
    capacity: u64,
    /// When each failed bio failed, ns.
    failed_at: Vec<u64>,
}

impl Load {
    fn submit(&mut self, rng: &mut Rng, s: &mut Stack) {
        let Some(area) = (0..AREAS).find(|a| self.out[*a as usize].is_none()) else { return };
        let op =
            rng.pick(&[Op::Read, Op::Read, Op::Write, Op::Write, Op::Write, Op::Discard, Op::WriteZeroes, Op::Flush]);
        let nr = 1 + rng.below(LONGEST);
        let (sector, base) = (rng.below(self.capacity - nr), area * LONGEST);
        let durable = [OpFlags::NONE, OpFlags::NONE, OpFlags::FUA, OpFlags::PREFLUSH];
        let data = DataRef::new(0, base << 9);
        let bio = match op {
            Op::Flush => Bio::flush(),
            Op::Write => Bio::write(Sector(sector), nr as u32, data).with_flags(rng.pick(&durable)),
            _ => Bio { op, ..Bio::read(Sector(sector), nr as u32, data) },
        };
        let bio = bio.with_user_data(area);
        let held = match op {
            Op::Flush => None,
            _ => match self.model.lock(op, sector, nr as u32) {
                Some(held) => Some(held),
                None => return,
            },
        };
        if op == Op::Write {
            (0..nr).for_each(|i| s.mem.set(base + i, self.stamp + i));
            self.stamp += nr;
        }
        let (t, since) = (s.t(), self.model.flush_point());
        let cpu = rng.below(2) as usize;
        match s.subs[cpu].submit(&bio, t) {
            Ok(()) => self.out[area as usize] = Some(Out { bio, held, since }),
            Err(SubmitError::NoBio) => held.into_iter().for_each(|h| self.model.nothing_happened(h)),
        }
    }

    fn collect(&mut self, s: &mut Stack) {
        for d in s.done() {
            let Out { bio, held, since } = self.out[d.user_data as usize].take().expect("it ends once");
            let (base, mem) = (d.user_data * LONGEST, s.mem.clone());
            let value = |i: u64| if bio.op == Op::Write { mem.get(base + i) } else { 0 };
            if !d.status.is_ok() {
                self.failed_at.push(s.now);
            }
            if d.status.is_ok() && (bio.op == Op::Flush || bio.flags.contains(OpFlags::PREFLUSH)) {
                self.model.was_flushed(since);
            }
            match (held, bio.op, d.status.is_ok()) {
                (None, ..) => {}
                (Some(h), Op::Read, true) => self.model.was_read(h, |i| mem.get(base + i)),
                (Some(h), Op::Read, false) => self.model.nothing_happened(h),
                (Some(h), _, true) => self.model.was_written(h, bio.flags.contains(OpFlags::FUA), value),
                (Some(h), _, false) => self.model.write_failed(h, value),
            }
        }
    }
}

/// What a case guarantees.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Promise {
    /// Requests wait for ever, so none fails.
    Waits,
    /// Requests do not wait, but path 0 never fails, so no request fails.
    OneIsLeft,
    /// Requests wait for 300 ms, so none fails earlier.
    WaitsSoLong,
}

fn behaviour(rng: &mut Rng, promise: Promise) -> Behaviour {
    let mut b = Behaviour {
        capacity: 300 + rng.below(400),
        resource: rng.below(50) as u32,
        dev_resource: rng.below(50) as u32,
        give_back: rng.below(50) as u32,
        at_once: rng.pick(&[0, 300, 1000]),
        lost: if promise == Promise::OneIsLeft { 0 } else { rng.below(20) as u32 },
        record: false,
        ..Behaviour::default()
    };
    b.limits.write_cache = rng.below(2) == 0;
    b.limits.fua = b.limits.write_cache && rng.below(2) == 0;
    b
}

/// Breaks, repairs, fails, reinstates, removes or adds a path, or changes a group.
fn something_happens(rng: &mut Rng, s: &mut Stack, promise: Promise, nr_groups: usize) {
    let first = usize::from(promise == Promise::OneIsLeft) as u64;
    let n = first + rng.below(s.ways.len() as u64 - first);
    let (way, t) = (s.ways[n as usize].clone(), s.t());
    let path_id = s.mp.path(&format!("252:{n}"));
    let group = rng.below(nr_groups as u64) as usize;
    match (rng.below(13), path_id) {
        (0..3, _) => way.does(Does::IsBroken),
        (3, _) => way.does(Does::Refuses(QueueRqStatus::Resource)),
        (4..6, _) => way.does(Does::Works),
        (6, Some(id)) => s.mp.fail_path(id, t),
        (7..9, Some(id)) => s.mp.reinstate_path(id),
        (9, Some(id)) => drop(s.mp.remove_path(id, t).unwrap()),
        (9, None) => drop(s.mp.add_path(group, path(&way))),
        (10, _) => s.mp.switch_group(group).unwrap(),
        (12, _) => {
            let mut new = vec![Vec::new(); nr_groups];
            let paths = s.mp.status().groups.into_iter().flat_map(|g| g.paths);
            paths.for_each(|p| new[rng.below(nr_groups as u64) as usize].push(p.id));
            // Rejected for groups with different selectors.
            let _ = s.mp.regroup(&new);
        }
        _ if rng.below(2) == 0 => s.mp.disable_group(group).unwrap(),
        _ => s.mp.enable_group(group).unwrap(),
    }
}

fn heal(s: &mut Stack, features: Features) {
    s.disk.behave(|b| b.lost = 0);
    for (n, way) in s.ways.clone().iter().enumerate() {
        way.does(Does::Works);
        match s.mp.path(&format!("252:{n}")) {
            Some(id) => s.mp.reinstate_path(id),
            None => drop(s.mp.add_path(0, path(way)).unwrap()),
        }
    }
    if features.queue_if_no_path {
        s.mp.queue_if_no_path(s.t());
    }
}

/// Runs a case. Returns how many bios failed, and how often a path did.
fn run_case(seed: u64) -> (usize, u64) {
    let mut rng = Rng::new(seed);
    let promise = rng.pick(&[Promise::Waits, Promise::OneIsLeft, Promise::WaitsSoLong]);
    let timeout = Duration::from_ms(if promise == Promise::WaitsSoLong { 300 } else { 0 });
    let features = match promise {
        Promise::OneIsLeft => FAIL,
        _ => Features { no_path_timeout: timeout, ..QUEUE },
    };
    let selectors = [
        Selector::RoundRobin,
        Selector::QueueLength,
        Selector::ServiceTime,
        Selector::HistoricalServiceTime { base_weight: 972, threshold_multiplier: 2 },
        Selector::IoAffinity,
    ];
    // Paths change groups only if all groups have one selector.
    let only = (rng.below(2) == 0).then(|| rng.pick(&selectors[..4]));
    let groups: Vec<_> = (0..1 + rng.below(3))
        .map(|_| (only.unwrap_or_else(|| rng.pick(&selectors)), 1 + rng.below(4) as usize))
        .collect();
    let mut config = config(rng.pick(&crate::DRAWN), rng.pick(&[1, 2, 8, 64]));
    (config.io_timeout_ms, config.bios_per_submitter) = (100, rng.pick(&[2, 8, 1024]));
    let behaviour = behaviour(&mut rng, promise);
    let mut load = Load {
        model: Contents::new(behaviour.capacity, behaviour.limits.write_cache),
        out: (0..AREAS).map(|_| None).collect(),
        stamp: 1,
        capacity: behaviour.capacity,
        failed_at: Vec::new(),
    };
    let mut s = Stack::new(seed, behaviour, &groups, features, config);
    for _ in 0..150 {
        if s.ways.len() > 1 && rng.below(4) == 0 {
            something_happens(&mut rng, &mut s, promise, groups.len());
        }
        (0..rng.below(8)).for_each(|_| load.submit(&mut rng, &mut s));
        s.poll();
        (0..rng.below(6)).for_each(|_| _ = s.step());
        load.collect(&mut s);
    }
    let failed = fail_counts(&s).iter().sum();
    // A path checker: a request that the disk lost earlier fails its path when it times out, and that path may be the
    // last one.
    let out = |s: &Stack| s.subs.iter().map(blk::submitter::Submitter::outstanding).sum::<u32>();
    for _ in 0..100 {
        heal(&mut s, features);
        let _ = (0..200).all(|_| s.step());
        load.collect(&mut s);
        if out(&s) == 0 {
            break;
        }
    }
    assert_eq!(out(&s), 0, "bios are stuck at {}: {}", s.now, s.mp.status());
    assert!(load.out.iter().all(Option::is_none) && load.model.is_idle());
    if promise != Promise::WaitsSoLong {
        assert_eq!(load.failed_at, [], "{promise:?}");
    }
    assert!(load.failed_at.iter().all(|at| *at >= 300_000_000), "before their time: {:?}", load.failed_at);
    load.model.check_contents(|sector| s.disk.content(sector));
    s.check_idle();
    s.disk.crash();
    load.model.check_survivors(|sector| s.disk.content(sector), |_| None);
    (load.failed_at.len(), failed)
}

#[test]
fn nothing_is_lost_or_doubled_whatever_the_paths_do() {
    let (mut errors, mut failed) = (0, 0);
    for seed in 0..300 {
        match std::panic::catch_unwind(|| run_case(seed)) {
            Ok((e, f)) => (errors, failed) = (errors + e, failed + f),
            Err(_) => panic!("seed {seed}"),
        }
    }
    assert!(errors > 20 && failed > 500, "the faults are not there: {errors} errors, {failed} failures of paths");
}
