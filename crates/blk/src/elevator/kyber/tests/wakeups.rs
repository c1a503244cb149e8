// SPDX-License-Identifier: Apache-2.0 OR MIT
//! No hardware queue that waits for a token is forgotten. Here a hardware queue is run only after an insertion and when
//! the elevator asks for it. So a lost wake-up leaves requests queued for ever, which the tests detect.

use super::*;
use crate::elevator::interface::HctxRunner;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use sim::rng::Rng;
use std::collections::VecDeque;
use std::sync::Mutex;

const NR_HCTX: u16 = 5;

/// Runs a hardware queue as the core does: until it dispatches nothing more.
fn run(f: &mut Fixture, hctx: HctxId, at_disk: &mut Vec<Rq>, rng: &mut Rng) {
    loop {
        let out = f.dispatch(hctx.index() as u32, 1 + rng.below(4) as usize);
        if out.is_empty() {
            return;
        }
        at_disk.extend(out);
    }
}

fn run_all_told(f: &mut Fixture, at_disk: &mut Vec<Rq>, rng: &mut Rng) {
    while let Some(hctx) = f.bed.take_run() {
        run(f, hctx, at_disk, rng);
    }
}

/// Random loads with depths that change: every inserted request is dispatched in the end.
#[test]
fn every_queue_that_waits_is_told() {
    for seed in 0..150 {
        let mut rng = Rng::new(seed);
        let mut f = Fixture::new(NR_HCTX);
        let mut at_disk: Vec<Rq> = Vec::new();
        let (mut inserted, mut completed, mut waited) = (0, 0, 0);
        let resize = |f: &Fixture, rng: &mut Rng| {
            let depth = 1 + rng.below(6);
            f.e.tokens[rng.below(4) as usize].resize(depth);
        };
        (0..8).for_each(|_| resize(&f, &mut rng));
        for _ in 0..600 {
            f.now = f.now + Duration::from_us(rng.below(3000));
            match rng.below(10) {
                0..4 if inserted - completed < 200 => {
                    let (cpu, op) = (rng.below(2 * u64::from(NR_HCTX)) as u32, OPS[rng.below(4) as usize]);
                    let n = 1 + rng.below(6);
                    f.fill(cpu, op, n as usize);
                    inserted += n;
                    let hctx = HctxId::new(u32::from(f.map.hctx(cpu as u16, HctxType::of(op, OpFlags::NONE))));
                    run(&mut f, hctx, &mut at_disk, &mut rng);
                    waited += u64::from(f.e.has_work(hctx));
                }
                4 if !at_disk.is_empty() => {
                    // The driver requeues the request; the core runs the hardware queue after that.
                    let rq = at_disk.swap_remove(rng.below(at_disk.len() as u64) as usize);
                    let hctx = f.bed.get(&rq).hctx();
                    f.put_in(vec![rq], true);
                    run(&mut f, hctx, &mut at_disk, &mut rng);
                }
                5 => resize(&f, &mut rng),
                6..9 if !at_disk.is_empty() => {
                    let rq = at_disk.swap_remove(rng.below(at_disk.len() as u64) as usize);
                    f.complete(vec![rq]);
                    completed += 1;
                    if rng.below(2) == 0 {
                        run_all_told(&mut f, &mut at_disk, &mut rng);
                    }
                }
                _ => run_all_told(&mut f, &mut at_disk, &mut rng),
            }
        }
        assert!(waited > 20, "seed {seed}: queues waited only {waited} times, nothing was tested");
        run_all_told(&mut f, &mut at_disk, &mut rng);
        while let Some(rq) = at_disk.pop() {
            f.complete(vec![rq]);
            completed += 1;
            run_all_told(&mut f, &mut at_disk, &mut rng);
        }
        assert_eq!(completed, inserted, "seed {seed}: requests of queues that were not told to run");
        assert_eq!(f.e.tokens_in_use(), [0; NR_DOMAINS], "seed {seed}: tokens left");
    }
}

/// Tokens are handed on in the order in which the hardware queues asked.
#[test]
fn a_busy_queue_does_not_keep_the_tokens_from_the_others() {
    let mut f = Fixture::new(4);
    f.e.tokens[3].resize(1);
    f.fill(0, Op::WriteZeroes, 100);
    let mut at_disk = VecDeque::from(f.dispatch(0, 1));
    assert!(f.dispatch(0, 1).is_empty(), "the busy one waits in front");
    for cpu in [2, 4, 6] {
        f.fill(cpu, Op::WriteZeroes, 1);
        assert!(f.dispatch(cpu / 2, 1).is_empty());
    }
    let mut served = Vec::new();
    while served.len() < 5 {
        let rq = at_disk.pop_front().expect("one is at the disk");
        f.complete(vec![rq]);
        let hctx = f.bed.take_run().expect("a queue is told to run");
        served.push(hctx.index());
        at_disk.extend(f.dispatch(hctx.index() as u32, 10));
        assert_eq!((at_disk.len(), f.bed.take_run()), (1, None));
    }
    assert_eq!(served, [0, 1, 2, 3, 0]);
}

/// Marks as the core keeps them.
struct Marks([AtomicBool; NR_HCTX as usize]);

impl HctxRunner for Marks {
    fn run_soon(&self, hctx: HctxId) {
        // Pairs with: worker
        self.0[hctx.index()].store(true, Ordering::Release);
    }
}

struct Shared {
    bed: TestBed,
    e: Kyber<Lock>,
    marks: Marks,
    left: AtomicUsize,
    /// Requests at the disk: the next thread that polls completes the oldest.
    disk: Mutex<VecDeque<Rq>>,
    now: Instant,
}

/// One thread. It inserts its requests and runs its hardware queue, then runs it again only when it is marked. It
/// completes requests of any thread.
fn worker(s: &Shared, hctx: HctxId, mut mine: Vec<Rq>) {
    let cpu = CpuId::new(2 * hctx.index() as u32);
    let cx = ElvCx { core: &s.marks, ..s.bed.cx_on(cpu, s.now) };
    s.e.insert(&cx, &mut mine, false, &mut Vec::new());
    let mut run = true;
    let mut rounds_in_vain = 0u32;
    // Pairs with: worker
    while s.left.load(Ordering::Acquire) > 0 {
        // Pairs with: Marks::run_soon
        run |= s.marks.0[hctx.index()].swap(false, Ordering::AcqRel);
        let mut out = Vec::new();
        if core::mem::take(&mut run) {
            s.e.dispatch(&cx, hctx, 64, &mut out);
        }
        let done = {
            let mut disk = s.disk.lock().expect("no panic with it held");
            disk.extend(out);
            disk.pop_front()
        };
        if let Some(rq) = done {
            s.e.completed(&cx, &rq);
            s.left.fetch_sub(1, Ordering::AcqRel); // Pairs with: worker
            rounds_in_vain = 0;
        } else {
            rounds_in_vain += 1;
            assert!(rounds_in_vain < 20_000_000, "{} requests wait for ever", s.left.load(Ordering::Relaxed));
            std::thread::yield_now();
        }
    }
}

#[test]
fn no_wake_up_is_lost_between_threads() {
    const PER_THREAD: usize = 180;
    for round in 0..12u32 {
        let mut f = Fixture::new(NR_HCTX);
        // From the very first request on, all but a few have to wait.
        (0..NR_DOMAINS).for_each(|d| f.e.tokens[d].resize(1 + u64::from(round) % 3));
        let lists: Vec<Vec<Rq>> = (0..u32::from(NR_HCTX))
            .map(|h| {
                (0..PER_THREAD)
                    .map(|i| f.request(2 * h, bio(OPS[i % 4 * (round as usize % 2)], 16 * i as u64)))
                    .collect()
            })
            .collect();
        let s = Shared {
            left: AtomicUsize::new(PER_THREAD * usize::from(NR_HCTX)),
            marks: Marks(Default::default()),
            disk: Mutex::default(),
            now: f.now,
            bed: f.bed,
            e: f.e,
        };
        std::thread::scope(|scope| {
            for (h, mine) in lists.into_iter().enumerate() {
                let s = &s;
                scope.spawn(move || worker(s, HctxId::new(h as u32), mine));
            }
        });
        assert_eq!(s.e.tokens_in_use(), [0; NR_DOMAINS], "round {round}");
    }
}
