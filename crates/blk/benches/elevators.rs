// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an elevator costs per request: merge attempt + insert + dispatch + completed, single-threaded, uncontended locks.
//!
//! Goal: the elevator's share of a random 4 KiB request at depth 32 stays below 150 ns. Non-goals: lock contention, the
//! cost of tags and drivers. `cargo bench -p mqblk-blk --bench elevators` measures (a name after `--` measures that elevator
//! alone); under `cargo test --benches` the same code runs once at size "smoke". The digest covers the order of dispatch, so that
//! work cannot be optimised away or change unnoticed between two measurements.

extern crate mqblk_blk as blk;

use blk::bio::{Bio, DataRef};
use blk::elevator::testbed::TestBed;
use blk::elevator::{BioMerge, Elevator, NAMES, NONE, by_name};
use blk::id::{HctxId, Sector};
use blk::limits::Limits;
use blk::request::Rq;
use std::hint::black_box;
use std::time::Instant as Clock;

const HCTX: HctxId = HctxId::new(0);

/// How requests come and go.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    /// Requests in the elevator or at the driver.
    depth: usize,
    /// Requests per insert and per dispatch.
    batch: usize,
    /// Of 100 requests so many are reads.
    read_percent: u64,
    /// The elevator; "none" is the test bed's own work, to be subtracted.
    elevator: &'static str,
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Runs `nr` requests; nanoseconds per request and the digest.
fn run(load: Load, nr: u64) -> (f64, u64) {
    let elevator: Option<Box<dyn Elevator>> =
        by_name::<parking_lot::RawMutex>(load.elevator, 256, 1, 256).expect("a known name");
    let elevator = elevator.as_deref();
    let mut bed = TestBed::new(256, 512, Limits::default());
    let mut rng = Rng(0x5eed_5eed);
    let (mut plug, mut out) = (Vec::with_capacity(256), Vec::with_capacity(256));
    let (mut freed, mut queue) = (Vec::<Rq>::with_capacity(256), Vec::<Rq>::with_capacity(256));
    let (mut done, mut digest, mut queued) = (0, 0u64, 0);
    let mut waited = 0;
    let start = Clock::now();
    while done < nr {
        // One clock reading per batch, as the block layer does it; the value is made up.
        let now = blk::time::Instant::from_ns(1_000_000_000 + done * 400 + waited);
        while queued < load.depth {
            for _ in 0..load.batch {
                let sector = Sector((rng.next() % (1 << 28)) * 8);
                let bio = match rng.next() % 100 < load.read_percent {
                    true => Bio::read(sector, 8, DataRef::NONE),
                    false => Bio::write(sector, 8, DataRef::NONE),
                };
                let bio = bed.bio(bio.with_user_data(sector.0), now);
                if elevator.is_some_and(|e| !matches!(e.bio_merge(&bed.cx(now), bio), BioMerge::No)) {
                    // Random sectors rarely adjoin; when they do, the request is larger and nothing else changes.
                    continue;
                }
                plug.push(bed.request(bio, now));
            }
            queued += plug.len();
            match elevator {
                Some(e) => e.insert(&bed.cx(now), &mut plug, false, &mut freed),
                None => queue.append(&mut plug),
            }
        }
        match elevator {
            Some(e) => e.dispatch(&bed.cx(now), HCTX, load.batch, &mut out),
            None => out.extend(queue.drain(..load.batch.min(queue.len()))),
        }
        if out.is_empty() {
            // It keeps the disk idle for a queue (bfq). In the made-up time that costs nothing.
            let until = elevator.and_then(Elevator::next_run).expect("what is held back is announced");
            waited += until.since(now).as_ns();
        }
        queued -= out.len();
        done += out.len() as u64;
        for rq in out.drain(..) {
            bed.issue(&rq, now);
            if let Some(e) = elevator {
                e.completed(&bed.cx(now), &rq);
            }
            bed.free_with(rq, |sector| digest = digest.rotate_left(5) ^ sector);
        }
    }
    (start.elapsed().as_nanos() as f64 / done as f64, black_box(digest))
}

fn main() {
    // Cargo passes --bench to a bench run and nothing of the kind to a test run.
    let smoke = !std::env::args().any(|a| a == "--bench");
    // Many short rounds and the best of them: a round that was preempted says nothing about the code.
    let (nr, rounds) = if smoke { (2_000, 1) } else { (20_000, 300) };
    let load = |name, depth, batch, read_percent| Load { name, depth, batch, read_percent, elevator: NONE };
    let loads = [
        load("random reads, depth 32, batch 1", 32, 1, 100),
        load("random reads, depth 32, batch 16", 32, 16, 100),
        load("random 70/30, depth 32, batch 16", 32, 16, 70),
        load("random 70/30, depth 192, batch 32", 192, 32, 70),
    ];
    let best = |load| {
        let runs = (0..rounds).map(|_| run(load, nr));
        runs.min_by(|a, b| a.0.total_cmp(&b.0)).expect("at least one round")
    };
    let chosen: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let is_chosen = |name: &str| chosen.is_empty() || chosen.iter().any(|c| c == name);
    for elevator in NAMES.into_iter().filter(|name| *name != NONE && is_chosen(name)) {
        println!("{elevator}");
        for load in loads {
            let (with, digest) = best(Load { elevator, ..load });
            let (without, _) = best(load);
            println!(
                "  {:34} {:6.1} ns/request ({with:.1} with, {without:.1} without elevator), digest {digest:016x}",
                load.name,
                with - without
            );
        }
    }
}
