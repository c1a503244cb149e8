// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A striped disk on simulated disks: which parts reach which disk, when a bio completes and with which status, and correct
//! contents whatever the lower disks do.

use blk::bio::{Bio, DataRef, Op, OpFlags};
use blk::cpumap::CpuTopology;
use blk::id::{CpuId, Sector, SubmitterId};
use blk::queue::{Notify, RequestQueue};
use blk::settings::QueueConfig;
use blk::status::BlkStatus;
use blk::stripe::{Stripe, StripeMap, Striped};
use blk::submitter::{Done, SubmitError};
use blk::time::Instant;
use sim::Lock;
use sim::contents::{Contents, Held};
use sim::disk::{Answer, Behaviour, Issue, SimDisk};
use sim::mem::Mem;
use sim::rng::Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Sectors of memory.
const MEM: usize = 1 << 14;

struct Ring(Arc<AtomicBool>);

impl Notify for Ring {
    fn notify(&self, _: SubmitterId) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Disks, the stripe over them, and one thread that polls only when it has a reason to.
struct Stack {
    map: Arc<StripeMap>,
    disks: Vec<Arc<SimDisk>>,
    queues: Vec<Arc<RequestQueue<Lock>>>,
    notifications: Arc<AtomicBool>,
    mem: Arc<Mem>,
    s: Striped<Lock>,
    now: u64,
}

impl Stack {
    fn new(seed: u64, chunk: u64, behaviours: Vec<Behaviour>, config: &QueueConfig) -> Stack {
        let (mem, notifications) = (Arc::new(Mem::new(MEM)), Arc::<AtomicBool>::default());
        let stripes: Vec<_> = behaviours.iter().map(|b| Stripe { start: Sector(0), nr_sectors: b.capacity }).collect();
        let map = Arc::new(StripeMap::new(chunk << 9, 512, &stripes).unwrap());
        let disks: Vec<_> =
            behaviours.into_iter().zip(seed..).map(|(b, seed)| SimDisk::new(b, mem.clone(), seed)).collect();
        let queue = |d: &Arc<SimDisk>| {
            RequestQueue::<Lock>::new(d.clone(), config.clone(), Box::new(Ring(notifications.clone()))).unwrap()
        };
        let queues: Vec<_> = disks.iter().map(queue).collect();
        let below = queues.iter().map(|q| q.submitter(CpuId::new(0)).unwrap()).collect();
        Stack { s: Striped::new(map.clone(), below), map, disks, queues, notifications, mem, now: 1_000_000 }
    }

    fn t(&self) -> Instant {
        Instant::from_ns(self.now)
    }

    fn submit(&mut self, bio: Bio) {
        let t = self.t();
        self.s.submit(&bio, t).unwrap();
    }

    fn poll(&mut self) {
        let t = self.t();
        self.s.poll(t);
    }

    fn done(&mut self) -> Vec<Done> {
        let mut done = Vec::new();
        self.s.reap(|d| done.push(d));
        done
    }

    /// Polls if there is a reason, now or later. False: there is none, ever.
    fn step(&mut self) -> bool {
        self.s.rest();
        let timer = self.queues.iter().filter_map(|q| q.next_timer()).map(Instant::as_ns).min();
        let ready = |(stripe, hctx): (usize, blk::id::HctxId)| self.disks[stripe].is_ready(hctx.index(), self.now);
        if !self.notifications.swap(false, Ordering::Relaxed)
            && timer.is_none_or(|t| t > self.now)
            && !self.s.hctxs().any(ready)
        {
            let next = self.disks.iter().filter_map(|d| d.next_due()).chain(timer).min();
            match next.filter(|t| *t < self.now + 1_000_000_000) {
                Some(t) => self.now = self.now.max(t),
                None => return false,
            }
        }
        self.poll();
        true
    }

    /// Runs until no submitter has a reason to poll.
    fn run(&mut self) {
        for _ in 0..100_000 {
            if !self.step() {
                return;
            }
        }
        panic!("goes round in circles, {} out", self.s.outstanding());
    }

    fn issues(&self) -> Vec<Vec<(Op, u64, u32)>> {
        let issue = |i: &Issue| (i.op, i.sector, i.nr_sectors);
        self.disks.iter().map(|d| d.issues().iter().map(issue).collect()).collect()
    }

    fn release(&mut self, disk: usize) {
        assert!(self.disks[disk].release_all() > 0, "disk {disk} has nothing to complete");
        self.run();
    }

    fn check_idle(&mut self) {
        assert_eq!(self.s.outstanding(), 0);
        for (i, q) in self.queues.iter().enumerate() {
            q.begin_freeze();
            let t = Instant::from_ns(self.now);
            self.s.poll(t);
            assert!(q.is_drained(), "disk {i} has a tag in use");
            q.unfreeze();
            assert_eq!((q.stats().in_flight, self.disks[i].in_flight()), (0, 0));
        }
    }
}

fn config(scheduler: &str, depth: u32, bios: u32) -> QueueConfig {
    QueueConfig {
        topology: CpuTopology::uniform(1),
        queue_depth: depth,
        scheduler: Some(scheduler.into()),
        bios_per_submitter: bios,
        ..QueueConfig::default()
    }
}

/// Makes `n` disks that complete on request, with chunks of 8 sectors.
fn by_hand(n: usize, cache: bool) -> Stack {
    let mut b = Behaviour { manual: true, capacity: 1024, ..Behaviour::default() };
    b.limits.write_cache = cache;
    Stack::new(1, 8, vec![b; n], &config("none", 64, 64))
}

fn write(sector: u64, nr: u32) -> Bio {
    Bio::write(Sector(sector), nr, DataRef::new(0, sector << 9)).with_user_data(sector)
}

fn ended(user_data: u64, op: Op, status: BlkStatus) -> Done {
    Done { user_data, op, status }
}

#[test]
fn a_bio_in_a_chunk_is_one_and_a_longer_one_is_one_per_disk() {
    let mut stack = by_hand(2, false);
    stack.submit(write(9, 7));
    stack.run();
    assert_eq!(stack.issues(), [vec![], vec![(Op::Write, 1, 7)]]);
    stack.release(1);
    assert_eq!(stack.done(), [ended(9, Op::Write, BlkStatus::Ok)]);
    // Four rows without their ends: each disk has one contiguous range, which it merges from chunks.
    stack.submit(write(4, 56));
    stack.run();
    let more: Vec<_> = stack.issues().iter().map(|i| i.last().copied().unwrap()).collect();
    assert_eq!(more, [(Op::Write, 4, 28), (Op::Write, 0, 28)]);
    stack.release(0);
    assert_eq!(stack.done(), [], "half of it is not all");
    stack.release(1);
    assert_eq!(stack.done(), [ended(4, Op::Write, BlkStatus::Ok)]);
    stack.check_idle();
}

#[test]
fn a_discard_is_one_range_per_disk_however_many_chunks_it_has() {
    let mut stack = by_hand(3, false);
    for (n, op) in [Op::Discard, Op::WriteZeroes].into_iter().enumerate() {
        stack.submit(Bio { op, data: DataRef::NONE, ..write(12, 3000) });
        stack.run();
        let all: Vec<_> = stack.issues().iter().map(|i| i[n]).collect();
        // From the middle of chunk 1 to the middle of chunk 376, both on disk 1.
        assert_eq!(all, [(op, 8, 1000), (op, 4, 1000), (op, 0, 1000)]);
        (0..3).for_each(|d| stack.release(d));
        assert_eq!(stack.done(), [ended(12, op, BlkStatus::Ok)]);
    }
    stack.submit(Bio { op: Op::Discard, data: DataRef::NONE, ..write(17, 4) });
    stack.run();
    assert_eq!(stack.issues().iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 3], "the others have no part in it");
    stack.release(2);
    assert_eq!(stack.done(), [ended(17, Op::Discard, BlkStatus::Ok)]);
    stack.check_idle();
}

#[test]
fn a_flush_is_over_when_every_disk_is_flushed() {
    let mut stack = by_hand(3, true);
    stack.submit(Bio::flush().with_user_data(7));
    stack.run();
    assert!(stack.issues().iter().all(|i| *i == [(Op::Flush, 0, 0)]));
    for disk in [2, 0] {
        stack.release(disk);
        assert_eq!(stack.done(), []);
    }
    stack.release(1);
    assert_eq!(stack.done(), [ended(7, Op::Flush, BlkStatus::Ok)]);
    assert!(stack.queues.iter().all(|q| q.stats().op(Op::Flush).ios == 1));
    stack.check_idle();
}

#[test]
fn preflushed_data_waits_for_all_disks_and_fails_with_one() {
    let both = OpFlags::PREFLUSH.union(OpFlags::FUA);
    let mut stack = by_hand(2, true);
    stack.submit(write(8, 8).with_flags(both));
    stack.run();
    stack.release(1);
    assert!(stack.issues().iter().all(|i| *i == [(Op::Flush, 0, 0)]), "no data before all are flushed");
    stack.release(0);
    assert_eq!(stack.issues()[1][1..], [(Op::Write, 0, 8)]);
    assert_eq!(stack.issues()[0].len(), 1, "of the data it has none");
    stack.release(1);
    // FUA on a disk without FUA support: a flush of that disk alone.
    assert_eq!(stack.issues()[1][2..], [(Op::Flush, 0, 0)]);
    assert_eq!(stack.done(), []);
    stack.release(1);
    assert_eq!(stack.done(), [ended(8, Op::Write, BlkStatus::Ok)]);

    stack.disks[0].script([Answer::Fail(BlkStatus::Medium)]);
    stack.submit(write(8, 8).with_flags(both));
    stack.run();
    stack.release(0);
    assert_eq!(stack.done(), [], "the other disk is still at it");
    stack.release(1);
    assert_eq!(stack.done(), [ended(8, Op::Write, BlkStatus::Medium)]);
    assert_eq!(stack.issues().iter().flatten().filter(|i| i.0 == Op::Write).count(), 1, "not written");
    stack.check_idle();
}

#[test]
fn the_first_error_is_the_bios_and_it_ends_with_the_last_part() {
    let mut stack = by_hand(3, false);
    stack.disks[1].script([Answer::Fail(BlkStatus::Target)]);
    stack.disks[2].script([Answer::Fail(BlkStatus::Medium)]);
    stack.submit(write(0, 24));
    stack.run();
    for disk in [2, 1] {
        stack.release(disk);
        assert_eq!(stack.done(), []);
    }
    stack.release(0);
    assert_eq!(stack.done(), [ended(0, Op::Write, BlkStatus::Medium)]);
    stack.check_idle();
}

#[test]
fn what_the_disk_cannot_do_reaches_none_below() {
    let mut b = vec![Behaviour { capacity: 1024, ..Behaviour::default() }; 2];
    b[1].limits.max_discard_sectors = 0;
    let mut stack = Stack::new(1, 8, b, &config("none", 4, 16));
    let bio = |op, sector, nr| Bio { op, data: DataRef::NONE, ..write(sector, nr) };
    let nowait = |b: Bio| b.with_flags(OpFlags::NOWAIT);
    let cases = [
        (bio(Op::Discard, 0, 8), BlkStatus::NotSupp),
        (write(2047, 2), BlkStatus::IoErr),
        (Bio { sector: Sector(u64::MAX), ..write(0, 2) }, BlkStatus::IoErr),
        (write(0, 0), BlkStatus::IoErr),
        (bio(Op::WriteZeroes, 0, 16).with_flags(OpFlags::FUA), BlkStatus::IoErr),
        (Bio { nr_sectors: 8, ..Bio::flush() }, BlkStatus::Inval),
        (nowait(write(4, 8)), BlkStatus::Again),
        (nowait(Bio::flush()), BlkStatus::Again),
    ];
    for (bio, status) in cases {
        stack.submit(bio);
        let done = stack.done();
        assert_eq!(done.iter().map(|d| d.status).collect::<Vec<_>>(), [status], "{bio:?}");
    }
    assert!(stack.disks.iter().all(|d| d.issued() == 0));
    stack.submit(nowait(write(8, 8)));
    stack.run();
    assert_eq!(stack.done()[0].status, BlkStatus::Ok);
    stack.check_idle();
}

#[test]
fn bio_with_more_parts_than_slots_enters_in_steps_and_order() {
    let mut b = Behaviour { manual: true, capacity: 4096, ..Behaviour::default() };
    b.limits.max_sectors = 8;
    b.limits.max_hw_sectors = 8;
    let mut stack = Stack::new(1, 8, vec![b; 2], &config("none", 2, 3));
    // 64 parts for each of two disks with 3 slots and 2 tags.
    stack.submit(write(0, 1024));
    stack.submit(write(1024, 8));
    stack.submit(Bio::flush().with_user_data(5));
    assert_eq!(stack.s.submit(&write(2048, 8), Instant::from_ns(1)), Err(SubmitError::NoBio));
    let mut done = Vec::new();
    for _ in 0..1000 {
        stack.run();
        done.extend(stack.done());
        if stack.disks.iter().map(|d| d.release_all()).sum::<usize>() == 0 {
            break;
        }
    }
    let order: Vec<u64> = done.iter().map(|d| d.user_data).collect();
    assert_eq!(order.len(), 3);
    assert_eq!(stack.disks[0].issues().last().unwrap().sector, 512, "the one behind comes after all of the first");
    stack.check_idle();
}

/// One bio in flight.
struct Out {
    bio: Bio,
    held: Option<Held>,
    since: u64,
}

/// Sectors of the longest bio.
const LONGEST: u64 = 100;
/// Seeds of the random test.
const CASES: u64 = 120;
/// Bios at once.
const AREAS: u64 = 40;

struct Load {
    model: Contents,
    out: Vec<Option<Out>>,
    /// Next content.
    stamp: u64,
    capacity: u64,
    errors: u32,
}

impl Load {
    fn submit(&mut self, rng: &mut Rng, stack: &mut Stack) {
        let Some(area) = (0..AREAS).find(|a| self.out[*a as usize].is_none()) else { return };
        let op =
            rng.pick(&[Op::Read, Op::Read, Op::Write, Op::Write, Op::Write, Op::Discard, Op::WriteZeroes, Op::Flush]);
        let nr = 1 + rng.below(LONGEST);
        let sector = rng.below(self.capacity - nr);
        let base = area * LONGEST;
        let durable =
            [OpFlags::NONE, OpFlags::NONE, OpFlags::FUA, OpFlags::PREFLUSH, OpFlags::FUA.union(OpFlags::PREFLUSH)];
        let bio = match op {
            Op::Flush => Bio::flush(),
            Op::Write => write(sector, nr as u32).with_flags(rng.pick(&durable)),
            _ => Bio { op, ..write(sector, nr as u32) },
        };
        let bio = Bio { data: DataRef::new(0, base << 9), ..bio }.with_user_data(area);
        let held = match op {
            Op::Flush => None,
            _ => match self.model.lock(op, sector, nr as u32) {
                Some(held) => Some(held),
                None => return,
            },
        };
        if op == Op::Write {
            (0..nr).for_each(|i| stack.mem.set(base + i, self.stamp + i));
            self.stamp += nr;
        }
        let (t, since) = (stack.t(), self.model.flush_point());
        match stack.s.submit(&bio, t) {
            Ok(()) => self.out[area as usize] = Some(Out { bio, held, since }),
            Err(SubmitError::NoBio) => held.into_iter().for_each(|h| self.model.nothing_happened(h)),
        }
    }

    fn collect(&mut self, stack: &mut Stack) {
        for d in stack.done() {
            let Out { bio, held, since } = self.out[d.user_data as usize].take().expect("it ends once");
            let base = d.user_data * LONGEST;
            let mem = &stack.mem;
            let value = |i: u64| if bio.op == Op::Write { mem.get(base + i) } else { 0 };
            let flushes = bio.op == Op::Flush || bio.flags.contains(OpFlags::PREFLUSH);
            self.errors += u32::from(!d.status.is_ok());
            if d.status.is_ok() && flushes {
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

fn behaviour(rng: &mut Rng, faults: bool, cache: bool) -> Behaviour {
    let some = |rng: &mut Rng, most: u64| if faults && rng.below(2) == 0 { rng.below(most) as u32 } else { 0 };
    let mut b = Behaviour {
        capacity: 300 + rng.below(200),
        issue_error: some(rng, 30),
        complete_error: some(rng, 30),
        resource: rng.below(100) as u32,
        dev_resource: rng.below(100) as u32,
        give_back: rng.below(100) as u32,
        at_once: rng.pick(&[0, 300, 1000]),
        record: false,
        ..Behaviour::default()
    };
    b.limits.write_cache = cache;
    b.limits.fua = cache && rng.below(2) == 0;
    let sectors = rng.pick(&[8, 24, 1024]);
    (b.limits.max_sectors, b.limits.max_hw_sectors) = (sectors, sectors);
    b
}

/// An administrator's changes to the lower disks.
struct Operator {
    /// How often this test has frozen each disk.
    frozen: Vec<u32>,
    rebuilt: u32,
}

impl Operator {
    fn act(&mut self, rng: &mut Rng, stack: &Stack) {
        let (all, one) = (0..stack.queues.len(), rng.below(stack.queues.len() as u64) as usize);
        // The striped disk is frozen disk by disk, as by a change of its settings.
        let whose = if rng.below(3) == 0 { all } else { one..one + 1 };
        let what = rng.below(8);
        let live = rng.pick(&[
            ("nomerges", "0"),
            ("nomerges", "2"),
            ("iops_total", "20000"),
            ("iops_write", "5000"),
            ("bps_total", "100000000"),
            ("wbt_lat_usec", "100"),
            ("wbt_lat_usec", "0"),
            ("iostats", "0"),
        ]);
        let limits = [("iops_total", "0"), ("iops_write", "0"), ("bps_total", "0")];
        let settings = [
            ("scheduler", rng.pick(&crate::DRAWN)),
            ("queue_depth", rng.pick(&["1", "3", "16", "64"])),
            ("nr_requests", rng.pick(&["1", "4", "32"])),
        ];
        let setting = rng.pick(&settings);
        for i in whose {
            let queue = &stack.queues[i];
            match what {
                0 | 1 => {
                    queue.begin_freeze();
                    self.frozen[i] += 1;
                }
                2..=4 => self.thaw(i, queue),
                5 => queue.set_live(&[live]).unwrap(),
                6 => queue.set_live(&limits).unwrap(),
                _ if self.frozen[i] > 0 && queue.is_drained() => {
                    // Settings that contradict each other are rejected, and then nothing has changed.
                    self.rebuilt += u32::from(queue.rebuild(|config| config.set(setting.0, setting.1)).is_ok());
                }
                _ => {}
            }
        }
    }

    fn thaw(&mut self, i: usize, queue: &RequestQueue<Lock>) {
        if self.frozen[i] > 0 {
            self.frozen[i] -= 1;
            queue.unfreeze();
        }
    }
}

/// The result of a case.
#[derive(Default)]
struct Seen {
    errors: u32,
    rebuilt: u32,
    /// Bios that were in flight while some disks were frozen and others were not.
    held_up: u32,
}

fn run_case(seed: u64) -> Seen {
    let mut rng = Rng::new(seed);
    let (n, chunk) = (2 + rng.below(5) as usize, 1 << rng.below(7));
    let (faults, cache) = (seed % 2 == 1, rng.below(3) > 0);
    let scheduler = rng.pick(&crate::DRAWN);
    let config = config(scheduler, rng.pick(&[1, 2, 8, 64]), rng.pick(&[1, 2, 8, 1024]));
    let behaviours = (0..n).map(|_| behaviour(&mut rng, faults, cache)).collect();
    let mut stack = Stack::new(seed, chunk, behaviours, &config);
    let capacity = stack.map.capacity().0;
    let mut load = Load {
        model: Contents::new(capacity, cache),
        out: (0..AREAS).map(|_| None).collect(),
        stamp: 1,
        capacity,
        errors: 0,
    };
    // Not in every case: a frozen disk leaves little time for other things.
    let operated = rng.below(2) == 0;
    let mut operator = Operator { frozen: vec![0; n], rebuilt: 0 };
    let mut seen = Seen::default();
    for _ in 0..300 {
        if operated && rng.below(6) == 0 {
            operator.act(&mut rng, &stack);
            let frozen = operator.frozen.iter().filter(|n| **n > 0).count();
            seen.held_up += u32::from((1..n).contains(&frozen) && stack.s.outstanding() > 0);
        }
        let plug = rng.below(2) == 0;
        if plug {
            stack.s.start_plug(0);
        }
        for _ in 0..rng.below(8) {
            load.submit(&mut rng, &mut stack);
        }
        if plug {
            let t = stack.t();
            stack.s.finish_plug(t);
        }
        stack.poll();
        for _ in 0..rng.below(6) {
            stack.step();
        }
        load.collect(&mut stack);
    }
    for (i, queue) in stack.queues.iter().enumerate() {
        while operator.frozen[i] > 0 {
            operator.thaw(i, queue);
        }
    }
    for _ in 0..100_000 {
        load.collect(&mut stack);
        if load.out.iter().all(Option::is_none) || !stack.step() {
            break;
        }
    }
    assert_eq!(stack.s.outstanding(), 0, "bios are stuck");
    // With a device that takes two or three requests, windows never end, as in the kernel.
    stack.queues.iter().for_each(|q| q.set_live(&[("wbt_lat_usec", "0")]).unwrap());
    stack.run();
    assert!(load.out.iter().all(Option::is_none) && load.model.is_idle());
    let at = |stack: &Stack, sector| {
        let (stripe, sector) = stack.map.locate(Sector(sector));
        stack.disks[stripe].content(sector.0)
    };
    load.model.check_contents(|s| at(&stack, s));
    stack.check_idle();
    stack.disks.iter().for_each(|d| d.crash());
    load.model.check_survivors(|s| at(&stack, s), |_| None);
    Seen { errors: load.errors, rebuilt: operator.rebuilt, ..seen }
}

#[test]
fn contents_are_right_and_all_ends_once_whatever_the_disks_do() {
    let mut all = Seen::default();
    for seed in 0..CASES {
        let Ok(seen) = std::panic::catch_unwind(|| run_case(seed)) else { panic!("seed {seed}") };
        all.errors += seen.errors;
        all.rebuilt += seen.rebuilt;
        all.held_up += seen.held_up;
    }
    let Seen { errors, rebuilt, held_up } = all;
    assert!(errors > 100, "the faults are not there: {errors} errors");
    assert!(rebuilt > 100 && held_up > 500, "{rebuilt} changes of settings, {held_up} times some disks were frozen");
}
