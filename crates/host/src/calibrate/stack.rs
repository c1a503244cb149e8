// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What our own block layer and job engine cost per I/O on the null device: the code without its locks, and the locks.
//!
//! Guarantees: the block layer is that of a run. Its lock reads the clock when it is taken and released; the cost of these readings is
//! subtracted. Does not do: caches that another program fills. A program with much data of its own pays more.

use super::{CostKind, Probe, line, per_op};
use crate::clock;
use crate::driver::null::{Null, NullOptions};
use crate::process::pin_thread;
use blk::bio::{Bio, DataRef};
use blk::id::{CpuId, Sector};
use blk::lock::Lock;
use blk::queue::{NoNotify, RequestQueue};
use blk::settings::QueueConfig;
use blk::status::BlkStatus;
use blk::submitter::Submitter;
use lock_api::GuardSend;
use parking_lot::RawMutex;
use std::cell::Cell;
use std::sync::Arc;
use workload::engine::{JobThread, Next, ThreadId};
use workload::job::{JobFile, ParseContext};

pub(super) fn probes(first: u32, other: Option<(u32, u32)>) -> Vec<Probe> {
    let mut all = vec![
        Probe {
            gives: vec![CostKind::Submit, CostKind::Dispatch, CostKind::Complete],
            cpus: vec![first],
            run: Box::new(|samples| {
                let hold = hold_ns()?;
                let [submit, dispatch, complete] = phases_ns(hold)?;
                samples(CostKind::Submit, submit);
                samples(CostKind::Dispatch, dispatch);
                samples(CostKind::Complete, complete);
                Ok(())
            }),
        },
        Probe::one(CostKind::Hold, first, hold_ns),
        Probe::one(CostKind::App, first, engine_ns),
    ];
    let Some((a, b)) = other else { return all };
    all.push(Probe {
        gives: vec![CostKind::HandOver],
        cpus: vec![a, b],
        run: Box::new(move |samples| {
            if let (Some(two), Some(one)) = (by_turns_ns(a, b)?, by_turns_ns(a, a)?) {
                samples(CostKind::HandOver, (two - one).max(1.0));
            }
            Ok(())
        }),
    });
    all
}

thread_local! {
    static TAKEN: Cell<u64> = const { Cell::new(0) };
    static HELD_NS: Cell<u64> = const { Cell::new(0) };
    static SINCE_NS: Cell<u64> = const { Cell::new(0) };
}

/// The lock of a run, with the number of times it was taken on this thread, and for how long.
struct Timed(RawMutex);

// SAFETY: the lock inside provides the exclusion. This type only adds counters of the calling thread.
unsafe impl lock_api::RawMutex for Timed {
    #[allow(clippy::declare_interior_mutable_const, reason = "the trait's way of making a lock")]
    const INIT: Timed = Timed(RawMutex::INIT);
    type GuardMarker = GuardSend;

    fn lock(&self) {
        self.0.lock();
        taken();
    }

    fn try_lock(&self) -> bool {
        let got = self.0.try_lock();
        if got {
            taken();
        }
        got
    }

    unsafe fn unlock(&self) {
        HELD_NS.set(HELD_NS.get() + clock::now().as_ns().saturating_sub(SINCE_NS.get()));
        // SAFETY: the caller holds the lock, says the trait.
        unsafe { self.0.unlock() }
    }
}

fn taken() {
    TAKEN.set(TAKEN.get() + 1);
    SINCE_NS.set(clock::now().as_ns());
}

/// Locks that were taken on this thread meanwhile, and nanoseconds that they were held.
fn locks_of(work: impl FnOnce() -> Result<(), String>) -> Result<(u64, u64), String> {
    let before = (TAKEN.get(), HELD_NS.get());
    work()?;
    Ok((TAKEN.get() - before.0, HELD_NS.get() - before.1))
}

fn disk<L: Lock>(settings: &[(&str, &str)]) -> Result<Arc<RequestQueue<L>>, String> {
    let mut config = QueueConfig::default();
    for (name, value) in settings {
        config.set(name, value).map_err(|e| e.to_string())?;
    }
    let null = Arc::new(Null::new(NullOptions::default()));
    RequestQueue::new(null, config, Box::new(NoNotify)).map_err(|e| e.to_string())
}

const MULTI_QUEUE: [(&str, &str); 3] = [("mode", "mq"), ("nr_hw_queues", "1"), ("scheduler", "none")];
const SINGLE_QUEUE: [(&str, &str); 2] = [("mode", "sq"), ("scheduler", "noop")];

/// I/Os that are out at a time, and batches of a sample.
const DEPTH: u32 = 32;
const BATCHES: u32 = 60;

/// Random places of blocks of 4 KiB, the same every time.
struct RandomBlocks {
    x: u64,
    blocks: u64,
}

impl RandomBlocks {
    fn of(bytes: u64) -> RandomBlocks {
        RandomBlocks { x: 0x9e37_79b9_7f4a_7c15, blocks: bytes >> 12 }
    }

    fn next(&mut self) -> Bio {
        self.x ^= self.x << 13;
        self.x ^= self.x >> 7;
        self.x ^= self.x << 17;
        let block = ((u128::from(self.x) * u128::from(self.blocks)) >> 64) as u64;
        Bio::read(Sector(block << 3), 8, DataRef::NONE)
    }
}

fn submit<L: Lock>(sub: &mut Submitter<L>, bio: &Bio) -> Result<(), String> {
    sub.submit(bio, clock::now()).map_err(|e| e.to_string())
}

fn clock_ns() -> f64 {
    per_op(2_000, || {
        std::hint::black_box(clock::now());
    })
}

/// How long a lock is held: the single queue's, one I/O after the other, which is the lock that is shared most.
fn hold_ns() -> Result<f64, String> {
    let q = disk::<Timed>(&SINGLE_QUEUE)?;
    let mut sub = q.submitter(CpuId::new(0)).ok_or("no submitter")?;
    let mut places = RandomBlocks::of(250 << 30);
    let mut round = |n: u32| -> Result<(), String> {
        for _ in 0..n {
            for _ in 0..DEPTH {
                submit(&mut sub, &places.next())?;
            }
            sub.poll(clock::now());
            sub.reap(|_| {});
        }
        Ok(())
    };
    round(5)?;
    let (taken, held) = locks_of(|| round(BATCHES / 2))?;
    Ok((held as f64 / taken.max(1) as f64 - clock_ns()).max(1.0))
}

/// Submitting, issuing and completing an I/O without locks, a batch at a time.
fn phases_ns(hold_ns: f64) -> Result<[f64; 3], String> {
    let q = disk::<Timed>(&MULTI_QUEUE)?;
    let mut sub = q.submitter(CpuId::new(0)).ok_or("no submitter")?;
    let mut places = RandomBlocks::of(250 << 30);
    let (mut ns, mut locks) = ([0u64; 3], [0u64; 3]);
    for batch in 0..BATCHES + 5 {
        if batch == 5 {
            // The caches are warm now: discard the figures of the batches so far.
            (ns, locks) = ([0; 3], [0; 3]);
        }
        let mut bios = [Bio::read(Sector(0), 8, DataRef::NONE); DEPTH as usize];
        bios.iter_mut().for_each(|b| *b = places.next());
        let now = clock::now();
        let mut ends = [now; 4];
        let mut seen = [TAKEN.get(); 4];
        sub.start_plug(DEPTH);
        for bio in &bios {
            sub.submit(bio, now).map_err(|e| e.to_string())?;
        }
        (ends[1], seen[1]) = (clock::now(), TAKEN.get());
        sub.finish_plug(ends[1]);
        (ends[2], seen[2]) = (clock::now(), TAKEN.get());
        sub.poll(ends[2]);
        sub.reap(|_| {});
        (ends[3], seen[3]) = (clock::now(), TAKEN.get());
        for i in 0..3 {
            ns[i] += ends[i + 1].since(ends[i]).as_ns();
            locks[i] += seen[i + 1] - seen[i];
        }
    }
    let ios = f64::from(BATCHES * DEPTH);
    // A lock that is timed reads the clock twice.
    let lock_ns = hold_ns + 2.0 * clock_ns();
    Ok([0, 1, 2].map(|i| ((ns[i] as f64 - locks[i] as f64 * lock_ns) / ios).max(1.0)))
}

/// The job engine's own work: random reads, that end as soon as they are asked for.
fn engine_ns() -> Result<f64, String> {
    let text = format!("[c]\nrw=randread\nbs=4k\nioengine=libaio\niodepth={DEPTH}\nsize=1g\ntime_based\nruntime=1d\n");
    let file = JobFile::parse_str(&text, &ParseContext::bare("calibrate"), &[]).map_err(|e| e.to_string())?;
    let id = ThreadId { instance: 0, number: 1, entropy: 0 };
    let mut job = JobThread::new(&file.jobs[0], id, 1 << 30).map_err(|e| e.to_string())?;
    let mut out: Vec<u32> = Vec::new();
    let mut now = clock::now();
    let (mut n, mut begun) = (0u32, now);
    while n < 5 * DEPTH + BATCHES * DEPTH {
        match job.next(now) {
            Next::Io(io) => {
                out.push(io.slot);
                if io.commit {
                    now = clock::now();
                    job.submitted(now);
                }
            }
            Next::Reap { max, .. } => {
                now = clock::now();
                let some = out.len().min(max as usize);
                for slot in out.drain(..some) {
                    let ended = job.complete(slot, BlkStatus::Ok, now);
                    debug_assert!(!ended.needs_verify);
                }
                job.reaped(some as u32);
                if n < 5 * DEPTH {
                    begun = now;
                }
                n += some as u32;
            }
            other => return Err(format!("the job engine answers {other:?} where it should go on")),
        }
    }
    Ok(clock::now().since(begun).as_ns() as f64 / f64::from(BATCHES * DEPTH))
}

/// Turns of a sample at the single queue.
const TURNS: u32 = 600;

/// The time of an I/O on the single queue, measured with two threads that alternate on two CPUs, or with one thread on one CPU.
/// `None` if another process used the CPUs.
fn by_turns_ns(a: u32, b: u32) -> Result<Option<f64>, String> {
    let q = disk::<RawMutex>(&SINGLE_QUEUE)?;
    let turns = line::PingPong::new();
    let both = a != b;
    let side = |cpu: u32, parity: u32| -> Result<Option<f64>, String> {
        let pinned = pin_thread(&[cpu]).map_err(|e| e.to_string());
        let mut sub = q.submitter(CpuId::new(0)).ok_or("no submitter")?;
        let mut places = RandomBlocks::of(250 << 30);
        let mut begun = clock::now();
        let mut wrong = None;
        for n in 0..TURNS {
            if both && !turns.wait(2 * n + parity) {
                return pinned.map(|()| None);
            }
            if n == TURNS / 10 {
                begun = clock::now();
            }
            // The other thread waits for this turn to end, so the loop continues after an error.
            wrong = wrong.or(submit(&mut sub, &places.next()).err());
            sub.poll(clock::now());
            sub.reap(|_| {});
            if both {
                turns.give(2 * n + parity + 1);
            }
        }
        let ns = clock::now().since(begun).as_ns() as f64;
        wrong.map_or(pinned, Err)?;
        Ok(Some(ns / f64::from(TURNS - TURNS / 10)))
    };
    std::thread::scope(|s| {
        let one = s.spawn(|| side(a, 0));
        let two = both.then(|| s.spawn(|| side(b, 1)));
        let one = one.join().expect("it submits only")?;
        // A round of two threads has two turns.
        match two {
            Some(two) => two.join().expect("it submits only").map(|two| one.and(two).and(one).map(|ns| ns / 2.0)),
            None => Ok(one),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_single_queue_takes_locks_and_gives_them_back() {
        clock::start();
        let q = disk::<Timed>(&SINGLE_QUEUE).unwrap();
        let mut sub = q.submitter(CpuId::new(0)).unwrap();
        let bio = RandomBlocks::of(1 << 30).next();
        let (taken, _) = locks_of(|| submit(&mut sub, &bio)).unwrap();
        assert!(taken >= 1, "{taken}");
        sub.poll(clock::now());
        let mut ended = 0;
        sub.reap(|_| ended += 1);
        assert_eq!(ended, 1);
        assert!(hold_ns().unwrap() >= 1.0);
    }
}
