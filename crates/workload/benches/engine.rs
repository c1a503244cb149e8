// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cost of the job thread's state machine per I/O, and of the histogram alone.
//!
//! Goal: at most 15 ns per I/O for `next` + `submitted` + `complete` of random reads without a map, with one `now` per
//! batch of 32, and at most 2 ns per histogram record. Not a goal: anything with a device. `cargo test --benches` runs the benchmark
//! at a size that only shows that it works; `cargo bench -p mqblk-workload` measures. A digest of all offsets is printed,
//! so that nothing can be optimised away and two versions can be compared.

extern crate mqblk_workload as workload;

use blk::status::BlkStatus;
use blk::time::{Duration, Instant};
use std::time::Instant as WallClock;
use workload::engine::{JobThread, Next, ThreadId};
use workload::hist::{Histogram, Running};
use workload::job::{Extent, Job, Rw, RwMode};

const SMOKE_IOS: u64 = 20_000;
/// Many short rounds: on a shared machine some rounds run undisturbed, and those show the cost.
const FULL_IOS: u64 = 200_000;
const ROUNDS: u32 = 100;

fn job(depth: u32, set: impl FnOnce(&mut Job)) -> Job {
    let mut job = Job::new("bench");
    job.rw = Rw { mode: RwMode::Read, random: true };
    job.size = Some(Extent::Bytes(1 << 30));
    job.norandommap = true;
    (job.iodepth, job.iodepth_low, job.iodepth_batch_submit) = (depth, depth, depth);
    (job.iodepth_batch_complete_min, job.iodepth_batch_complete_max) = (depth, depth);
    job.time_based = true;
    job.runtime_ns = Some(u64::MAX / 2);
    set(&mut job);
    job
}

/// Drives `ios` I/Os; returns nanoseconds per I/O and the digest.
fn drive(job: &Job, ios: u64) -> (f64, u64) {
    let id = ThreadId { instance: 0, number: 1, entropy: 0 };
    let mut thread = JobThread::new(job, id, 1 << 30).expect("the job fits its target");
    let mut out: Vec<u32> = Vec::with_capacity(thread.depth() as usize);
    let (mut now, mut digest, mut done) = (Instant::ZERO, 0u64, 0u64);
    let start = WallClock::now();
    while done < ios {
        match thread.next(now) {
            Next::Io(io) => {
                digest = digest.wrapping_mul(31).wrapping_add(io.offset_bytes);
                out.push(io.slot);
                if io.commit {
                    now = now + Duration::from_ns(200);
                    thread.submitted(now);
                }
            }
            Next::Reap { .. } => {
                now = now + Duration::from_ns(40_000 + (digest & 0xffff));
                done += out.len() as u64;
                thread.reaped(out.len() as u32);
                for slot in out.drain(..) {
                    assert!(!thread.complete(slot, BlkStatus::Ok, now).needs_verify);
                }
            }
            other => panic!("{other:?}"),
        }
    }
    let ns = start.elapsed().as_nanos() as f64;
    assert_eq!(thread.stats().total_ios(), done);
    (ns / done as f64, digest)
}

fn best(name: &str, rounds: u32, mut run: impl FnMut() -> (f64, u64)) {
    let mut filters = std::env::args().skip(1).filter(|a| !a.starts_with('-')).peekable();
    if filters.peek().is_some() && !filters.any(|f| name.contains(&f)) {
        return;
    }
    let (mut all, mut digest) = (Vec::new(), 0);
    for _ in 0..rounds {
        let (ns, d) = run();
        all.push(ns);
        digest = d;
    }
    all.sort_by(f64::total_cmp);
    let at = |part: usize| all[(all.len() - 1) * part / 100];
    println!(
        "{name:<34} best {:7.2} ns, quartiles {:.2} {:.2} {:.2}  digest {digest:016x}",
        at(0),
        at(25),
        at(50),
        at(75)
    );
}

fn main() {
    let full = std::env::args().any(|a| a == "--bench");
    let (ios, rounds) = if full { (FULL_IOS, ROUNDS) } else { (SMOKE_IOS, 1) };
    for depth in [1, 32, 128] {
        best(&format!("randread, no map, depth {depth}"), rounds, || drive(&job(depth, |_| ()), ios));
    }
    best("randread, random map, depth 32", rounds, || drive(&job(32, |j| j.norandommap = false), ios));
    best("sequential read, depth 32", rounds, || drive(&job(32, |j| j.rw.random = false), ios));
    best("randrw 70/30, depth 32", rounds, || {
        drive(&job(32, |j| (j.rw.mode, j.rwmixread_pct) = (RwMode::ReadWrite, 70)), ios)
    });
    best("histogram record", rounds, || {
        let (mut hist, mut x) = (Histogram::new(), 1u64);
        let start = WallClock::now();
        for _ in 0..ios {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            hist.record(x >> 44);
        }
        (start.elapsed().as_nanos() as f64 / ios as f64, hist.percentile(50.0))
    });
    best("running statistics record", rounds, || {
        let (mut run, mut x) = (Running::new(), 1u64);
        let start = WallClock::now();
        for _ in 0..ios {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            run.record(x >> 44);
        }
        (start.elapsed().as_nanos() as f64 / ios as f64, run.max())
    });
}
