// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Real threads on one disk, with tag waits, restarts, cross-thread merges and changes of settings.
//!
//! Each thread owns every n-th block, so neighbours in a merged request belong to different threads, and checks all it
//! reads. Some threads spin; others sleep and are woken only by [`Notify`] or by a completion on one of their hardware
//! queues. A device thread completes requests in random order and, when it has none left, advances the clock to the next
//! timer. If all threads stop, the watchdog prints the state and aborts. (One lost wake-up seldom stops all threads here,
//! because the next completion on a shared hardware queue wakes the thread. The loom and shuttle models find lost
//! wake-ups.) Runs with threads are not reproducible, but `MQBLK_SEED=n` draws other I/O.

use crate::threads;

use blk::bio::{Bio, DataRef, Op, OpFlags};
use blk::cpumap::CpuTopology;
use blk::elevator::NAMES;
use blk::id::{CpuId, Sector};
use blk::limits::Limits;
use blk::queue::RequestQueue;
use blk::settings::{Mode, QueueConfig};
use blk::status::BlkStatus;
use blk::submitter::{Done, Submitter};
use blk::time::Instant;
use sim::Lock;
use sim::disk::{Behaviour, SimDisk};
use sim::mem::Mem;
use sim::rng::Rng;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use threads::{Parker, Waker, Watchdog};

/// Sectors of one block, which is the most that one bio covers.
const BLOCK: u64 = 8;
const BLOCKS_PER_THREAD: u64 = 24;
/// Delays and windows are shorter than this, the timer of late requests is longer.
const SOON_NS: u64 = 500_000_000;
/// More than `io_timeout`.
const LATE_NS: u64 = 31_000_000_000;

/// What the threads of one test share.
struct World {
    q: Arc<RequestQueue<Lock>>,
    disk: Arc<SimDisk>,
    mem: Arc<Mem>,
    clock: AtomicU64,
    parkers: Arc<[Parker]>,
    /// Where the device sleeps while it has nothing to complete.
    device: Parker,
    /// The hardware queues that each thread polls.
    hctxs: Vec<Mutex<Vec<usize>>>,
    running: AtomicUsize,
    /// Number of changes of settings that must still happen; threads work until then.
    changes_owed: AtomicU64,
    failed: AtomicBool,
    /// Bios that completed with a timeout.
    timed_out: AtomicU64,
    stop: AtomicBool,
    /// The disk fails requests, and its timeout function fails some of the late ones.
    faults: bool,
    /// (outstanding, waiting, asleep) of each thread, for the dump.
    state: Vec<Mutex<(u32, usize, bool, u64)>>,
}

impl World {
    fn new(seed: u64, behaviour: Behaviour, config: QueueConfig, threads: usize) -> Arc<World> {
        let faults = behaviour.complete_error > 0;
        let mem = Arc::new(Mem::new(threads * (BLOCKS_PER_THREAD * BLOCK) as usize));
        let disk = SimDisk::new(Behaviour { manual: true, record: false, ..behaviour }, mem.clone(), seed);
        let parkers = threads::parkers(threads);
        let q = RequestQueue::new(disk.clone(), config, Box::new(Waker(parkers.clone()))).expect("good settings");
        Arc::new(World {
            q,
            disk,
            mem,
            clock: AtomicU64::new(1),
            parkers,
            device: Parker::default(),
            hctxs: (0..threads).map(|_| Mutex::default()).collect(),
            running: AtomicUsize::new(threads),
            changes_owed: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            timed_out: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            faults,
            state: (0..threads).map(|_| Mutex::default()).collect(),
        })
    }

    fn now(&self) -> Instant {
        Instant::from_ns(self.clock.load(Ordering::Relaxed))
    }

    /// The device: completes, interrupts, keeps time. It sleeps instead of yielding, so that it does its work in time
    /// on a busy machine.
    fn device(&self, seed: u64) {
        let mut rng = Rng::new(seed ^ 0xde);
        while !self.stop.load(Ordering::Acquire) {
            let keep = rng.below(4);
            let mut hit = Vec::new();
            let mut has_more = false;
            self.disk.release(|i| {
                let go = rng.below(4) >= keep;
                if go {
                    hit.push(i.hctx);
                }
                has_more |= !go;
                go
            });
            // Sometimes all requests in flight are late at once, including requests that are about to be issued.
            let pause = if self.faults && rng.below(64) == 0 { LATE_NS } else { 1000 };
            self.clock.fetch_add(pause, Ordering::Relaxed);
            for (t, parker) in self.parkers.iter().enumerate() {
                let of = self.hctxs[t].lock().expect("not poisoned");
                if of.iter().any(|h| hit.contains(h)) {
                    parker.unpark();
                }
            }
            if hit.is_empty() && self.disk.in_flight() == 0 {
                self.idle();
            }
            // One release for each poll, so that a poll finds some requests of the device completed and some not.
            if !hit.is_empty() || !has_more {
                self.device.park();
            }
        }
    }

    /// No request is in flight: the last thread that goes to sleep advances to the next timer. It does not wait for the
    /// request timeout, because no request can be late, and this timer would hide lost wake-ups.
    fn idle(&self) {
        if let Some(t) = self.q.next_timer().filter(|t| t.as_ns() < self.now().as_ns() + SOON_NS) {
            self.clock.fetch_max(t.as_ns(), Ordering::Relaxed);
            self.parkers.iter().for_each(Parker::unpark);
        }
    }

    fn dump(&self) -> String {
        let mut text = format!("clock {:?}, next timer {:?}\n", self.now(), self.q.next_timer());
        for (t, s) in self.state.iter().enumerate() {
            let (outstanding, waiting, asleep, done) = *s.lock().expect("not poisoned");
            text +=
                &format!("  thread {t}: outstanding {outstanding}, waiting {waiting}, asleep {asleep}, {done} done\n");
        }
        for f in self.q.debugfs().iter().filter(|f| !f.text.trim().is_empty()) {
            text += &format!("-- {}\n{}", f.path, f.text);
        }
        text + &format!("{:?}\n{:?}\n{}", self.q.config(), self.q.hctx_stats(), self.disk.describe())
    }
}

/// One thread's work.
struct Worker {
    w: Arc<World>,
    t: usize,
    threads: u64,
    sub: Submitter<Lock>,
    rng: Rng,
    /// Content of each own sector; `None` after a failed write.
    expect: Vec<Option<u64>>,
    /// Own blocks with a bio in flight, and that bio.
    busy: Vec<Option<Bio>>,
    stamp: u64,
    sleeps: bool,
    submitted: u64,
    done: u64,
    flushes: u64,
}

impl Worker {
    fn new(w: Arc<World>, t: usize, sub: Submitter<Lock>, seed: u64) -> Worker {
        let threads = w.parkers.len() as u64;
        let rng = Rng::new(seed ^ (t as u64) << 20);
        Worker {
            t,
            threads,
            sub,
            rng,
            expect: vec![Some(0); (BLOCKS_PER_THREAD * BLOCK) as usize],
            busy: vec![None; BLOCKS_PER_THREAD as usize],
            stamp: (t as u64 + 1) << 48,
            // At least one of each kind.
            sleeps: t.is_multiple_of(2),
            submitted: 0,
            done: 0,
            flushes: 0,
            w,
        }
    }

    fn mem_base(&self, block: u64) -> u64 {
        (self.t as u64 * BLOCKS_PER_THREAD + block) * BLOCK
    }

    fn submit_some(&mut self) {
        let n = 1 + self.rng.below(8);
        let plug = self.rng.below(2) == 0;
        if plug {
            let nr = if self.rng.below(2) == 0 { n as u32 } else { 0 };
            self.sub.start_plug(nr);
        }
        let first = self.rng.below(BLOCKS_PER_THREAD);
        for i in 0..n {
            self.submit_one((first + i) % BLOCKS_PER_THREAD);
        }
        if plug {
            self.sub.finish_plug(self.w.now());
        }
    }

    fn submit_one(&mut self, block: u64) {
        if self.busy[block as usize].is_some() {
            return;
        }
        if self.flushes == 0 && self.rng.below(32) == 0 {
            let bio = Bio::flush().with_user_data(BLOCKS_PER_THREAD);
            if self.sub.submit(&bio, self.w.now()).is_ok() {
                self.flushes += 1;
                self.submitted += 1;
            }
            return;
        }
        let data = DataRef::new(0, self.mem_base(block) << 9);
        let sector = Sector((block * self.threads + self.t as u64) * BLOCK);
        let mut bio = Bio::write(sector, BLOCK as u32, data).with_user_data(block);
        // A disk that supports write zeroes gets many.
        bio.op = if self.sub.disk().limits().max_write_zeroes_sectors > 0 && self.rng.below(8) > 0 {
            Op::WriteZeroes
        } else {
            self.rng.pick(&[Op::Read, Op::Read, Op::Write, Op::Write, Op::Write, Op::Discard])
        };
        match bio.op {
            Op::Write => {
                self.stamp += 1;
                (0..BLOCK).for_each(|i| self.w.mem.set(self.mem_base(block) + i, self.stamp << 4 | i));
                bio.flags =
                    self.rng.pick(&[OpFlags::NONE, OpFlags::NONE, OpFlags::NONE, OpFlags::FUA, OpFlags::PREFLUSH]);
            }
            Op::Discard | Op::WriteZeroes => bio.data = DataRef::NONE,
            _ => {}
        }
        if self.rng.below(16) == 0 {
            bio.flags = bio.flags.union(OpFlags::NOWAIT);
        }
        if self.sub.submit(&bio, self.w.now()).is_ok() {
            self.busy[block as usize] = Some(bio);
            self.submitted += 1;
        }
    }

    fn check(&mut self, d: Done) {
        self.done += 1;
        if d.op == Op::Flush {
            self.flushes -= 1;
            return;
        }
        let block = d.user_data;
        let bio = self.busy[block as usize].take().unwrap_or_else(|| panic!("{d:?} ended twice"));
        assert_eq!(bio.op, d.op);
        let base = self.mem_base(block);
        for i in 0..BLOCK {
            let (got, cell) = (self.w.mem.get(base + i), &mut self.expect[(block * BLOCK + i) as usize]);
            match (d.status, d.op) {
                (BlkStatus::Again, _) => assert!(bio.flags.contains(OpFlags::NOWAIT), "{bio:?} did not ask for Again"),
                (BlkStatus::Ok, Op::Read) => {
                    let want = cell.unwrap_or(got);
                    assert_eq!(got, want, "thread {} block {block} sector {i}: read", self.t);
                    *cell = Some(got);
                }
                (BlkStatus::Ok, Op::Write) => *cell = Some(got),
                (BlkStatus::Ok, _) => *cell = Some(0),
                (BlkStatus::Medium | BlkStatus::Target | BlkStatus::Timeout, op) if self.w.faults => {
                    if d.status == BlkStatus::Timeout && i == 0 {
                        self.w.timed_out.fetch_add(1, Ordering::Relaxed);
                    }
                    if op != Op::Read {
                        *cell = None;
                    }
                }
                (status, _) => panic!("{bio:?} ended with {status:?}"),
            }
        }
    }

    fn poll(&mut self) -> bool {
        self.sub.poll(self.w.now());
        let mut ended = Vec::new();
        self.sub.reap(|d| ended.push(d));
        let any = !ended.is_empty();
        ended.into_iter().for_each(|d| self.check(d));
        any
    }

    fn note(&self, asleep: bool) {
        let state = (self.sub.outstanding(), self.sub.waiting(), asleep, self.done);
        *self.w.state[self.t].lock().expect("not poisoned") = state;
    }

    fn rest(&mut self) {
        *self.w.hctxs[self.t].lock().expect("not poisoned") = self.sub.hctxs().map(blk::id::HctxId::index).collect();
        // Once more, now that the device knows this thread's hardware queues.
        if self.poll() {
            return;
        }
        self.note(self.sleeps);
        self.w.device.unpark();
        if self.sleeps {
            self.w.parkers[self.t].park();
        } else {
            std::thread::yield_now();
        }
    }

    fn run(mut self, bios: u64) {
        while self.submitted < bios || self.w.changes_owed.load(Ordering::Relaxed) > 0 {
            self.submit_some();
            // Sometimes at a high depth, sometimes one by one.
            let target = self.rng.below(16) as u32;
            while self.sub.outstanding() > target {
                if !self.poll() {
                    self.rest();
                }
            }
        }
        while self.sub.outstanding() > 0 {
            if !self.poll() {
                self.rest();
            }
        }
        self.note(false);
        assert_eq!(self.done, self.submitted);
        // It still is a submitter, so others may depend on its polls until all are done.
        self.w.running.fetch_sub(1, Ordering::AcqRel);
        while !self.w.stop.load(Ordering::Acquire) {
            self.poll();
            self.rest();
        }
    }
}

fn behaviour(faults: bool, cap: usize) -> Behaviour {
    let limits =
        Limits { max_discard_sectors: 64, max_hw_sectors: 64, max_sectors: 64, write_cache: true, ..Limits::default() };
    Behaviour {
        limits,
        capacity: 1 << 14,
        resource: 20,
        dev_resource: 50,
        issue_error: if faults { 20 } else { 0 },
        complete_error: if faults { 20 } else { 0 },
        // Lost until the driver's timeout function is called, or until the device thread releases the request.
        lost: if faults { 500 } else { 0 },
        give_back: if faults { 50 } else { 0 },
        at_once: 200,
        device_cap: cap,
        ..Behaviour::default()
    }
}

/// Minimum number of changes in every disturbed run, even if this thread is slow: a run without changes would test nothing.
const CHANGES: u64 = 5;

/// Changes settings under load until the workers are done.
fn disturb(w: &World, mut change: impl FnMut(u64, &mut QueueConfig)) {
    for round in 0.. {
        if w.running.load(Ordering::Acquire) == 0 {
            return;
        }
        if round % 3 == 2 {
            w.q.quiesce();
            std::thread::yield_now();
            w.q.unquiesce();
        }
        take_cpus_away(w, round);
        if w.q.config().io_limits.get("iops_read") > Some(0) {
            let limit = ["0", "30000", "3000000"][round as usize % 3];
            w.q.set_live(&[("iops_total", limit)]).expect("live");
            std::thread::yield_now();
        }
        w.q.begin_freeze();
        while !w.q.is_drained() {
            std::thread::yield_now();
        }
        w.q.rebuild(|c| {
            change(round, c);
            Ok(())
        })
        .expect("good settings");
        w.q.unfreeze();
        w.changes_owed.store(CHANGES.saturating_sub(round + 1), Ordering::Relaxed);
        for _ in 0..200 {
            std::thread::yield_now();
        }
    }
}

/// Takes one or two CPUs offline, and those of the round before back online.
fn take_cpus_away(w: &World, round: u64) {
    let cpus = u64::from(w.q.config().topology.nr_cpus);
    let gone: Vec<_> = (0..1 + round % 2).map(|i| CpuId::new(((round + i) % cpus) as u32)).collect();
    (0..cpus).map(|c| CpuId::new(c as u32)).filter(|c| !gone.contains(c)).for_each(|c| w.q.online(c));
    let gone: Vec<_> = gone.into_iter().filter(|c| w.q.begin_offline(*c).is_ok()).collect();
    while !gone.iter().all(|c| w.q.is_offline(*c)) {
        std::thread::yield_now();
    }
}

/// Runs `threads` workers on CPUs `t % nr_cpus`; `change` is applied between freezes, if given.
fn stress(
    name: &str,
    seed: u64,
    (threads, bios): (usize, u64),
    config: QueueConfig,
    behaviour: Behaviour,
    change: Option<fn(u64, &mut QueueConfig)>,
) {
    let seed = seed + 1000 * std::env::var("MQBLK_SEED").map_or(0, |s| s.parse().expect("MQBLK_SEED is a number"));
    threads::loud_panics();
    println!("{name}: seed {seed}");
    let nr_cpus = config.topology.nr_cpus as usize;
    let w = World::new(seed, behaviour, config, threads);
    let subs: Vec<_> =
        (0..threads).map(|t| w.q.submitter(CpuId::new((t % nr_cpus) as u32)).expect("a free submitter")).collect();
    w.changes_owed.store(if change.is_some() { CHANGES } else { 0 }, Ordering::Relaxed);
    let (progress, dump) = (w.clone(), w.clone());
    let _watchdog = Watchdog::new(
        format!("{name}, seed {seed}"),
        move || (!progress.failed.load(Ordering::Acquire)).then(|| threads::ended(&progress.q)),
        move || dump.dump(),
    );
    std::thread::scope(|s| {
        let device = s.spawn(|| w.device(seed));
        let workers: Vec<_> = subs
            .into_iter()
            .enumerate()
            .map(|(t, sub)| {
                let worker = Worker::new(w.clone(), t, sub, seed);
                let failed = &w.failed;
                s.spawn(move || {
                    let _flag = threads::FailFlag(failed);
                    worker.run(bios);
                })
            })
            .collect();
        if let Some(change) = change {
            disturb(&w, change);
        }
        while w.running.load(Ordering::Acquire) > 0 && !workers.iter().any(std::thread::ScopedJoinHandle::is_finished) {
            std::thread::sleep(threads::POLL);
        }
        w.stop.store(true, Ordering::Release);
        w.parkers.iter().chain([&w.device]).for_each(Parker::unpark);
        let failed = workers.into_iter().filter_map(|h| h.join().err()).next();
        device.join().expect("the device thread");
        if let Some(e) = failed {
            std::panic::resume_unwind(e);
        }
    });
    assert_eq!(w.q.stats().in_flight, 0);
    let timed_out = w.timed_out.load(Ordering::Relaxed);
    println!("{name}: {timed_out} timed out");
    // With one tag, the tag is mostly free when the clock jumps, so a timeout is a matter of chance.
    assert!(timed_out > 0 || change.is_none(), "{name}: no bio timed out: the clock does not jump, or no thread asks");
    w.q.begin_freeze();
    assert!(w.q.is_drained(), "a tag is still in use\n{}", w.dump());
}

fn config(cpus: u16, hw: u16, depth: u32, scheduler: &str) -> QueueConfig {
    QueueConfig {
        topology: CpuTopology::uniform(cpus),
        nr_hw_queues: Some(hw),
        queue_depth: depth,
        scheduler: Some(scheduler.into()),
        bios_per_submitter: 32,
        ..QueueConfig::default()
    }
}

fn sq(depth: u32, nr_requests: u32, scheduler: &str) -> QueueConfig {
    QueueConfig { mode: Mode::Sq, nr_hw_queues: None, nr_requests: Some(nr_requests), ..config(4, 1, depth, scheduler) }
}

const LOAD: (usize, u64) = (4, 2500);

#[test]
fn one_tag_for_four_threads() {
    stress("none, 1 hctx, depth 1", 1, LOAD, config(4, 1, 1, "none"), behaviour(false, usize::MAX), None);
}

#[test]
fn few_tags_and_a_busy_device() {
    let steered = QueueConfig { rq_affinity: 2, ..config(4, 1, 3, "none") };
    stress("none, 1 hctx, depth 3", 2, LOAD, steered, behaviour(true, 2), None);
}

#[test]
fn a_device_limit_across_hardware_queues() {
    stress("none, 4 hctx", 3, LOAD, config(4, 4, 4, "none"), behaviour(false, 1), None);
}

#[test]
fn mq_deadline_on_one_and_on_four_hardware_queues() {
    stress("mq-deadline, 1 hctx", 4, LOAD, config(4, 1, 1, "mq-deadline"), behaviour(true, usize::MAX), None);
    stress("mq-deadline, 4 hctx", 5, LOAD, config(4, 4, 2, "mq-deadline"), behaviour(true, 3), None);
}

#[test]
fn kyber_on_one_and_on_four_hardware_queues() {
    stress("kyber, 1 hctx", 10, LOAD, config(4, 1, 1, "kyber"), behaviour(true, usize::MAX), None);
    stress("kyber, 4 hctx", 11, LOAD, config(4, 4, 2, "kyber"), behaviour(true, 3), None);
}

#[test]
fn kyber_with_more_write_zeroes_than_it_has_tokens_for() {
    let mut zeroes = behaviour(true, usize::MAX);
    zeroes.limits.max_write_zeroes_sectors = 64;
    stress("kyber, 4 hctx, write zeroes", 12, (6, 1500), config(4, 4, 32, "kyber"), zeroes, None);
}

#[test]
fn bfq_on_one_and_on_four_hardware_queues() {
    stress("bfq, 1 hctx", 13, LOAD, config(4, 1, 1, "bfq"), behaviour(true, usize::MAX), None);
    stress("bfq, 4 hctx", 14, LOAD, config(4, 4, 2, "bfq"), behaviour(true, 3), None);
}

/// Returns settings with limits and write-back throttling. `round` chooses the target.
fn held(mut c: QueueConfig, round: u64) -> QueueConfig {
    c.wbt_lat_usec = [Some(1), None, Some(0), Some(1_000_000)][(round % 4) as usize];
    for (name, value) in [("iops_read", "700000"), ("iops_total", "400000"), ("bps_write", "900000000")] {
        c.set(name, value).expect("in range");
    }
    c
}

#[test]
fn limits_and_write_back_throttling() {
    stress("held, none", 15, LOAD, held(config(4, 4, 4, "none"), 0), behaviour(true, 3), None);
    stress("held, kyber", 16, (6, 1000), held(config(4, 1, 16, "kyber"), 3), behaviour(true, usize::MAX), None);
    let change = |round: u64, c: &mut QueueConfig| {
        *c = held(c.clone(), round);
        c.queue_depth = 1 + (round % 5) as u32;
        c.scheduler = Some(["none", "mq-deadline", "bfq"][(round / 2 % 3) as usize].into());
    };
    stress("held, changes", 17, (4, 4000), held(config(4, 2, 2, "none"), 0), behaviour(true, 3), Some(change));
}

#[test]
fn k2_on_one_and_on_four_hardware_queues() {
    let bound = |queues, depth| {
        let mut c = config(4, queues, depth, "k2");
        c.iosched.push(("max_inflight".into(), 2));
        c
    };
    stress("k2, 1 hctx", 15, LOAD, bound(1, 1), behaviour(true, usize::MAX), None);
    stress("k2, 4 hctx", 16, LOAD, bound(4, 2), behaviour(true, 3), None);
    stress("k2, 4 hctx, bound found", 17, LOAD, config(4, 4, 16, "k2"), behaviour(true, usize::MAX), None);
}

#[test]
fn single_queue_with_hardly_any_requests() {
    stress("sq noop", 6, LOAD, sq(1, 4, "noop"), behaviour(true, usize::MAX), None);
    stress("sq deadline", 7, LOAD, sq(3, 4, "deadline"), behaviour(false, 2), None);
}

#[test]
fn more_threads_than_cpus_share_contexts() {
    stress("none, 2 cpus, 6 threads", 8, (6, 1500), config(2, 2, 2, "none"), behaviour(true, 3), None);
}

#[test]
fn everything_changes_under_load() {
    let change = |round: u64, c: &mut QueueConfig| {
        c.mode = if round % 5 == 4 { Mode::Sq } else { Mode::Mq };
        let sq = c.mode == Mode::Sq;
        c.nr_hw_queues = if sq { None } else { Some(1 + (round % 4) as u16) };
        c.scheduler = Some(if sq { "deadline" } else { NAMES[(round / 2) as usize % NAMES.len()] }.into());
        c.nr_requests = if sq { Some(4) } else { None };
        c.queue_depth = 1 + (round % 3) as u32;
        c.rq_affinity = (round % 3) as u8;
        c.nomerges = (round / 3 % 3) as u8;
    };
    stress("changes", 9, (4, 6000), config(4, 2, 2, "none"), behaviour(true, 3), Some(change));
}
