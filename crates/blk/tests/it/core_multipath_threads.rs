// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Real threads on a multipath disk whose paths fail, are reinstated, are removed and are added meanwhile: no request is lost,
//! and a path that is gone gets no more calls. Threads poll all the time, so this does not test wake-ups. Runs with threads are
//! not reproducible.

use blk::bio::{Bio, DataRef};
use blk::cpumap::CpuTopology;
use blk::driver::{Completions, Driver, InFlight, RqBatch};
use blk::id::{CpuId, HctxId, Sector};
use blk::limits::Limits;
use blk::multipath::{BASE_WEIGHT, Features, Multipath, NewGroup, NewPath, PathArgs, Selector};
use blk::queue::{NoNotify, RequestQueue};
use blk::settings::QueueConfig;
use blk::status::{BlkStatus, QueueRqStatus};
use blk::time::Instant;
use sim::Lock;
use sim::rng::Rng;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

const THREADS: u16 = 3;
const BIOS_PER_THREAD: u64 = 6000;
const PATHS: usize = 4;

/// A list per hardware queue.
#[derive(Default)]
struct Line {
    lists: Mutex<Vec<VecDeque<InFlight>>>,
    gone: AtomicBool,
    taken: AtomicU64,
}

impl Driver for Line {
    fn name(&self) -> &'static str {
        "line"
    }

    fn limits(&self) -> Limits {
        Limits::default()
    }

    fn capacity(&self) -> Sector {
        Sector(1 << 20)
    }

    fn start(&self, nr_hw_queues: u16, _queue_depth: u32) -> Result<(), String> {
        self.lists.lock().expect("no panic").resize_with(nr_hw_queues.into(), VecDeque::new);
        Ok(())
    }

    fn queue_rqs(&self, batch: &mut RqBatch<'_>, _now: Instant) -> QueueRqStatus {
        let mut lists = self.lists.lock().expect("no panic");
        assert!(!self.gone.load(Ordering::SeqCst), "a path that has gone was given a request");
        self.taken.fetch_add(batch.remaining() as u64, Ordering::Relaxed);
        let hctx = batch.hctx().index();
        (0..batch.remaining()).for_each(|_| lists[hctx].push_back(batch.accept()));
        QueueRqStatus::Queued
    }

    fn poll(&self, hctx: HctxId, done: &mut Completions, _now: Instant) {
        let mut lists = self.lists.lock().expect("no panic");
        while done.room() > 0
            && let Some(rq) = lists[hctx.index()].pop_front()
        {
            done.push(rq, BlkStatus::Ok);
        }
    }
}

fn path(n: usize, line: &Arc<Line>) -> NewPath {
    NewPath { name: n.to_string(), driver: line.clone(), args: PathArgs::default() }
}

/// How many threads are working, and whether one has panicked, so that no other waits for it.
struct Work {
    running: AtomicUsize,
    failed: AtomicBool,
}

struct Ends<'a>(&'a Work);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
        self.0.failed.fetch_or(thread::panicking(), Ordering::SeqCst);
    }
}

fn submit_all(q: &Arc<RequestQueue<Lock>>, cpu: u16, seed: u64, clock: &AtomicU64, work: &Work) {
    let _ends = Ends(work);
    let mut rng = Rng::new(seed ^ u64::from(cpu));
    let mut sub = q.submitter(CpuId::new(cpu.into())).expect("a free submitter");
    let (mut left, mut ended) = (BIOS_PER_THREAD, 0);
    while ended < BIOS_PER_THREAD {
        assert!(!work.failed.load(Ordering::SeqCst), "another thread has failed");
        let now = Instant::from_ns(clock.fetch_add(1000, Ordering::Relaxed));
        sub.start_plug(0);
        for _ in 0..left.min(1 + rng.below(16)) {
            let bio = Bio::read(Sector(rng.below(1 << 16) << 3), 8, DataRef::new(0, 0));
            left -= u64::from(sub.submit(&bio, now).is_ok());
        }
        sub.finish_plug(now);
        sub.poll(now);
        sub.reap(|d| {
            assert_eq!(d.status, BlkStatus::Ok, "a path was left all the time");
            ended += 1;
        });
        thread::yield_now();
    }
    sub.rest();
}

fn run(selector: Selector, seed: u64) {
    let lines: Vec<Arc<Line>> = (0..PATHS).map(|_| Arc::default()).collect();
    let paths = lines.iter().enumerate().map(|(n, l)| path(n, l)).collect();
    let groups = vec![NewGroup { selector, paths }];
    let mp = Arc::new(Multipath::<Lock>::new(groups, Features::default(), None, &[], Box::new(|_| {})).unwrap());
    let config = QueueConfig {
        topology: CpuTopology::uniform(THREADS),
        nr_hw_queues: Some(2),
        queue_depth: 16,
        scheduler: Some("none".into()),
        ..QueueConfig::default()
    };
    let q = RequestQueue::<Lock>::new(mp.clone(), config, Box::new(NoNotify)).unwrap();
    let clock = AtomicU64::new(1);
    let work = Work { running: AtomicUsize::new(THREADS.into()), failed: AtomicBool::new(false) };
    let mut removed = 0;
    thread::scope(|scope| {
        for cpu in 0..THREADS {
            let (q, clock, work) = (&q, &clock, &work);
            scope.spawn(move || submit_all(q, cpu, seed, clock, work));
        }
        let mut rng = Rng::new(seed);
        while work.running.load(Ordering::SeqCst) > 0 && !work.failed.load(Ordering::SeqCst) {
            let now = Instant::from_ns(clock.load(Ordering::Relaxed));
            // Path 0 stays as it is.
            let n = 1 + rng.below(PATHS as u64 - 1) as usize;
            let id = mp.path(&n.to_string()).expect("it was added again");
            match rng.below(3) {
                0 => mp.fail_path(id, now),
                1 => mp.reinstate_path(id),
                _ => {
                    let mut gone = mp.remove_path(id, now).unwrap();
                    while !gone && !work.failed.load(Ordering::SeqCst) {
                        thread::yield_now();
                        gone = mp.has_gone(id);
                    }
                    lines[n].gone.store(true, Ordering::SeqCst);
                    (0..rng.below(4)).for_each(|_| thread::yield_now());
                    lines[n].gone.store(false, Ordering::SeqCst);
                    mp.add_path(0, path(n, &lines[n])).unwrap();
                    removed += 1;
                }
            }
        }
    });
    assert!(lines.iter().all(|l| l.lists.lock().unwrap().iter().all(VecDeque::is_empty)), "requests are left");
    assert_eq!(q.stats().in_flight, 0);
    let status = mp.status();
    assert!(status.groups[0].paths.iter().all(|p| p.in_flight == 0), "{status}");
    let taken: Vec<u64> = lines.iter().map(|l| l.taken.load(Ordering::Relaxed)).collect();
    println!("{}: {removed} removed, {taken:?}", selector.name());
}

#[test]
fn paths_come_and_go_under_load() {
    for (seed, selector) in [
        Selector::RoundRobin,
        Selector::QueueLength,
        Selector::ServiceTime,
        Selector::HistoricalServiceTime { base_weight: BASE_WEIGHT, threshold_multiplier: 0 },
    ]
    .into_iter()
    .enumerate()
    {
        run(selector, seed as u64);
    }
}
