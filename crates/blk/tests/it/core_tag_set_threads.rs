// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Real threads on several disks of one tag set. Every thread sleeps when it has nothing to do. It is woken only by
//! [`Notify`], by a completion on its disk, or by its disk's timer as it was set when the thread went to sleep. A further
//! thread turns fair sharing on and off and freezes disks, which wakes sleepers, too. So a lost wake-up makes this test
//! slow and seldom stops it; the loom models find lost wake-ups. If the test stops, the watchdog prints the state. Runs
//! with threads are not reproducible; `MQBLK_SEED=n` draws other I/O.

use crate::threads;

use blk::bio::{Bio, DataRef};
use blk::cpumap::CpuTopology;
use blk::id::{CpuId, Sector};
use blk::queue::RequestQueue;
use blk::settings::QueueConfig;
use blk::submitter::Submitter;
use blk::tags::{TagSet, TagSetConfig};
use blk::time::Instant;
use sim::Lock;
use sim::disk::{Behaviour, SimDisk};
use sim::mem::Mem;
use sim::rng::Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use threads::{Parker, Waker, Watchdog};

const THREADS_PER_DISK: usize = 2;
const BIOS_PER_THREAD: u64 = 4000;

struct Disk {
    q: Arc<RequestQueue<Lock>>,
    sim: Arc<SimDisk>,
    parkers: Arc<[Parker]>,
    /// The time that `next_timer` returned to the last thread that went to sleep, ns.
    timer: AtomicU64,
}

struct World {
    set: Arc<TagSet<Lock>>,
    disks: Vec<Disk>,
    clock: AtomicU64,
    /// Where the devices sleep while they have nothing to complete.
    device: Parker,
    running: AtomicUsize,
    stop: AtomicBool,
    failed: AtomicBool,
}

impl World {
    fn new(config: &QueueConfig, schedulers: &[&str]) -> Arc<World> {
        let set = TagSet::new(TagSetConfig::of(config)).expect("good settings");
        let mem = Arc::new(Mem::new(64));
        let disk = |scheduler: &&str| {
            let behaviour = Behaviour { manual: true, record: false, ..Behaviour::default() };
            let sim = SimDisk::new(behaviour, mem.clone(), 1);
            let parkers = threads::parkers(THREADS_PER_DISK);
            let config = QueueConfig { scheduler: Some((*scheduler).into()), ..config.clone() };
            let q = RequestQueue::with_tag_set(&set, sim.clone(), config, Box::new(Waker(parkers.clone())));
            Disk { q: q.expect("good settings"), sim, parkers, timer: AtomicU64::new(u64::MAX) }
        };
        let disks: Vec<Disk> = schedulers.iter().map(disk).collect();
        let running = AtomicUsize::new(disks.len() * THREADS_PER_DISK);
        Arc::new(World {
            set,
            disks,
            clock: AtomicU64::new(1),
            device: Parker::default(),
            running,
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        })
    }

    fn now(&self) -> Instant {
        Instant::from_ns(self.clock.load(Ordering::Relaxed))
    }

    /// The devices: complete, interrupt, keep time. They sleep instead of yielding, so that they do their work in time on a
    /// busy machine.
    fn devices(&self, seed: u64) {
        let mut rng = Rng::new(seed ^ 0xde);
        while !self.stop.load(Ordering::Acquire) {
            let (mut busy, mut hits, mut has_more) = (false, 0, false);
            for d in &self.disks {
                let keep = rng.below(4);
                let hit = d.sim.release(|_| {
                    let go = rng.below(4) >= keep;
                    has_more |= !go;
                    go
                });
                hits += hit;
                busy |= hit > 0 || d.sim.in_flight() > 0;
                if hit > 0 {
                    d.parkers.iter().for_each(Parker::unpark);
                }
            }
            self.clock.fetch_add(1000, Ordering::Relaxed);
            if !busy {
                self.idle();
            }
            // One release for each poll, so that a poll finds some requests of a device completed and some not.
            if hits > 0 || !has_more {
                self.device.park();
            }
        }
    }

    /// No request is in flight: advances the time to the next timer that a sleeping thread knows.
    fn idle(&self) {
        let timer = |d: &Disk| d.timer.load(Ordering::SeqCst);
        let Some(d) = self.disks.iter().min_by_key(|d| timer(d)) else { return };
        if timer(d) != u64::MAX {
            self.clock.fetch_max(timer(d), Ordering::Relaxed);
            d.timer.store(u64::MAX, Ordering::SeqCst);
            d.parkers.iter().for_each(Parker::unpark);
        }
    }

    /// Turns fair sharing on and off and freezes one disk or another.
    fn disturb(&self, seed: u64) {
        let mut rng = Rng::new(seed ^ 0xd1);
        while !self.stop.load(Ordering::Acquire) {
            self.set.set_fair_sharing(rng.below(3) > 0);
            let q = &self.disks[rng.below(self.disks.len() as u64) as usize].q;
            q.begin_freeze();
            for _ in 0..rng.below(200) {
                q.is_drained();
                std::thread::yield_now();
            }
            q.unfreeze();
            (0..rng.below(500)).for_each(|_| std::thread::yield_now());
        }
    }

    fn worker(&self, d: usize, t: usize, mut sub: Submitter<Lock>, seed: u64) {
        let _flag = threads::FailFlag(&self.failed);
        let mut rng = Rng::new(seed ^ ((d * 16 + t) as u64) << 20);
        let disk = &self.disks[d];
        let (mut submitted, mut done) = (0, 0);
        while done < BIOS_PER_THREAD {
            let now = self.now();
            let n = rng.below(12);
            let plug = rng.below(3) == 0;
            if plug {
                sub.start_plug(n as u32);
            }
            for _ in 0..n {
                if submitted < BIOS_PER_THREAD && sub.outstanding() < 24 {
                    let sector = Sector(rng.below(10_000) * 8);
                    sub.submit(&Bio::read(sector, 8, DataRef::new(0, 0)), now).expect("a free bio slot");
                    submitted += 1;
                }
            }
            if plug {
                sub.finish_plug(now);
            }
            sub.poll(self.now());
            let before = done;
            sub.reap(|r| {
                assert!(r.status.is_ok(), "{:?}", r.status);
                done += 1;
            });
            if done == before && (submitted == BIOS_PER_THREAD || sub.outstanding() >= 24) {
                self.doze(disk, t, &mut sub);
            }
        }
        drop(sub);
        // No other thread notifies the devices of requests that this thread issued for others before it ended.
        self.device.unpark();
        self.running.fetch_sub(1, Ordering::AcqRel);
    }

    fn doze(&self, disk: &Disk, t: usize, sub: &mut Submitter<Lock>) {
        sub.rest();
        let timer = disk.q.next_timer();
        if timer.is_some_and(|t| t <= self.now()) {
            return;
        }
        disk.timer.fetch_min(timer.map_or(u64::MAX, Instant::as_ns), Ordering::SeqCst);
        self.device.unpark();
        disk.parkers[t].park();
    }

    fn dump(&self) -> String {
        let mut text = format!("clock {:?}, {:?}\n", self.now(), self.set.config());
        for d in &self.disks {
            let (scheduler, in_flight, timer) = (d.q.scheduler(), d.q.stats().in_flight, d.q.next_timer());
            text += &format!("'{scheduler}': {in_flight} bios, next timer {timer:?}, tags of queue 0: ");
            text += &format!("{}\n{:?}\n", d.q.active_tags(blk::id::HctxId::new(0)), d.q.hctx_stats());
        }
        text
    }
}

fn run(name: &str, config: &QueueConfig, schedulers: &[&str]) {
    let seed = std::env::var("MQBLK_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    threads::loud_panics();
    let w = World::new(config, schedulers);
    let (progress, dump) = (w.clone(), w.clone());
    let _watchdog = Watchdog::new(
        format!("{name}: seed {seed}"),
        move || {
            let all = progress.disks.iter().map(|d| threads::ended(&d.q)).sum();
            (!progress.failed.load(Ordering::Acquire)).then_some(all)
        },
        move || dump.dump(),
    );
    std::thread::scope(|s| {
        for d in 0..w.disks.len() {
            for t in 0..THREADS_PER_DISK {
                let cpu = CpuId::new((t as u32) % u32::from(w.disks[d].q.config().topology.nr_cpus));
                let sub = w.disks[d].q.submitter(cpu).expect("a free submitter");
                let w = &w;
                s.spawn(move || w.worker(d, t, sub, seed));
            }
        }
        s.spawn(|| w.devices(seed));
        s.spawn(|| w.disturb(seed));
        while w.running.load(Ordering::Acquire) > 0 {
            std::thread::sleep(threads::POLL);
        }
        w.stop.store(true, Ordering::Release);
        w.device.unpark();
    });
    w.set.begin_freeze();
    assert!(w.set.is_drained(), "{name}: seed {seed}\n{}", w.dump());
}

fn config(hw: u16, depth: u32, host_tagset: bool) -> QueueConfig {
    QueueConfig {
        topology: CpuTopology::uniform(2),
        nr_hw_queues: Some(hw),
        queue_depth: depth,
        host_tagset,
        ..QueueConfig::default()
    }
}

#[test]
fn submitters_wait_for_each_others_tags() {
    run("none", &config(1, 8, false), &["none", "none", "none"]);
}

#[test]
fn hardware_queues_wait_for_each_others_tags() {
    run("mq-deadline", &config(2, 5, false), &["mq-deadline", "mq-deadline", "kyber"]);
}

#[test]
fn submitters_and_hctxs_wait_together_for_host_wide_tags() {
    run("mixed", &config(2, 6, true), &["none", "mq-deadline", "kyber", "none"]);
}

#[test]
fn one_tag_for_three_disks() {
    run("one tag", &config(1, 1, false), &["none", "mq-deadline", "none"]);
}
