// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a tag costs, in nanoseconds, without contention; and what a free costs a submitter when it happens on another
//! CPU.
//!
//! `cargo bench -p mqblk-blk --bench sbitmap` measures. Under `cargo test --benches` the same code runs at smoke size, and only the
//! digest means something. It sums the tags, so that the compiler cannot optimise the work away.
//!
//! Goals, as multiples of the first row (two locked instructions, which no get + put can do without): get + put 1.3, and a
//! batch of 32 taken and put 2. Not a goal: contended figures, which depend on the machine.

extern crate mqblk_blk as blk;

use blk::tags::sbitmap::TagAllocHint;
use blk::tags::sbitmap_queue::SbitmapQueue;
use crossbeam_utils::CachePadded;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

type Queue = SbitmapQueue<parking_lot::RawMutex>;

/// Short samples, so that on a busy machine most of them are not interrupted and the least of them is a figure to trust.
const SAMPLES: usize = 200;

/// Calls `body` `n` times per sample; prints the least, the median and the 90th percentile of the time per call.
fn measure(name: &str, n: u64, digest: &mut u64, mut body: impl FnMut() -> u64) {
    let mut ns: Vec<f64> = (0..SAMPLES)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..n {
                *digest = digest.wrapping_add(black_box(body()));
            }
            start.elapsed().as_nanos() as f64 / n as f64
        })
        .collect();
    ns.sort_by(f64::total_cmp);
    println!("{name:<34} {:7.2} ns  median {:.2}  p90 {:.2}", ns[0], ns[SAMPLES / 2], ns[SAMPLES * 9 / 10]);
}

/// The cheapest pair of locked instructions on two lines: what get + put cannot go below on this machine.
fn floor(n: u64, digest: &mut u64) {
    let lines = [CachePadded::new(AtomicU64::new(0)), CachePadded::new(AtomicU64::new(0))];
    measure("floor: two locked ors", n, digest, || {
        black_box(&lines[0]).fetch_or(1, Ordering::Relaxed);
        black_box(&lines[1]).fetch_or(1, Ordering::Relaxed);
        1
    });
}

fn single(n: u64, depth: u32, digest: &mut u64) {
    let queue = Queue::new(depth, false);
    let mut hint = TagAllocHint::new(0);
    let mut wake = |_| unreachable!("no waiter");
    measure(&format!("get+put, depth {depth}"), n, digest, || {
        let tag = queue.get(&mut hint).expect("free");
        queue.put(tag, Some(&mut hint), &mut wake);
        u64::from(tag)
    });
}

/// As a submitter with `busy` requests under way sees it: the oldest comes back before the next goes out.
fn ring(n: u64, depth: u32, busy: usize, digest: &mut u64) {
    let queue = Queue::new(depth, false);
    let mut hint = TagAllocHint::new(0);
    let mut wake = |_| unreachable!("no waiter");
    let mut held: Vec<u32> = (0..busy).map(|_| queue.get(&mut hint).expect("free")).collect();
    let mut at = 0;
    measure(&format!("get+put, depth {depth}, {busy} busy"), n, digest, || {
        queue.put(held[at], Some(&mut hint), &mut wake);
        held[at] = queue.get(&mut hint).expect("free");
        let tag = held[at];
        at = if at + 1 == busy { 0 } else { at + 1 };
        u64::from(tag)
    });
}

fn batch(n: u64, depth: u32, size: u32, digest: &mut u64) {
    let queue = Queue::new(depth, false);
    let mut hint = TagAllocHint::new(0);
    let mut wake = |_| unreachable!("no waiter");
    measure(&format!("get_batch({size})+put_batch, depth {depth}"), n, digest, || {
        let batch = queue.get_batch(&mut hint, size);
        queue.put_batch(batch.base, batch.mask, &mut wake);
        batch.mask
    });
}

/// One thread takes tags, another frees them; a ring of mailboxes carries them over.
fn across(n: u64, depth: u32, digest: &mut u64) {
    const EMPTY: u32 = u32::MAX;
    let queue = Queue::new(depth, false);
    let boxes: Vec<AtomicU32> = (0..depth).map(|_| EMPTY.into()).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut at = 0;
            loop {
                let stopping = stop.load(Ordering::Acquire);
                let tag = boxes[at].swap(EMPTY, Ordering::Acquire);
                if tag != EMPTY {
                    queue.put(tag, None, &mut |_| unreachable!("no waiter"));
                    at = (at + 1) % boxes.len();
                } else if stopping {
                    return;
                } else {
                    std::thread::yield_now();
                }
            }
        });
        let mut hint = TagAllocHint::new(0);
        let mut at = 0;
        measure(&format!("get here, put there, depth {depth}"), n, digest, || {
            let tag = loop {
                match queue.get(&mut hint) {
                    Some(tag) => break tag,
                    None => std::thread::yield_now(),
                }
            };
            while boxes[at].load(Ordering::Relaxed) != EMPTY {
                std::thread::yield_now();
            }
            boxes[at].store(tag, Ordering::Release);
            at = (at + 1) % boxes.len();
            1
        });
        stop.store(true, Ordering::Release);
    });
    assert_eq!(queue.sb().weight(), 0, "every tag came back");
}

fn main() {
    let n = if std::env::args().any(|arg| arg == "--bench") { 20_000 } else { 50 };
    let mut digest = 0;
    floor(n, &mut digest);
    for depth in [64, 256, 1024] {
        single(n, depth, &mut digest);
    }
    for (depth, busy) in [(64, 32), (256, 128), (1024, 1000)] {
        ring(n, depth, busy, &mut digest);
    }
    for (depth, size) in [(64, 16), (256, 32), (1024, 32)] {
        batch(n, depth, size, &mut digest);
    }
    across(n / 4, 256, &mut digest);
    println!("digest {digest:016x}");
}
