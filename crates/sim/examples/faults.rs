// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two submitters write a disk that fails and loses power, in virtual time: `cargo run -p mqblk-sim --example faults`.
//!
//! It is the program of the example `threads` of `mqblk-host` without its threads. The seed chooses every fault, every
//! service time and the order in which submitters run, so a run can be repeated exactly.

use mqblk_sim::blk::{Bio, DataRef, Limits, QueueConfig, Sector};
use mqblk_sim::{Behaviour, Harness, Service, Trace};
use std::error::Error;

const SUBMITTERS: u64 = 2;
const BLOCKS: u64 = 256;
const BLOCK_SECTORS: u64 = 8;
const DEPTH: u64 = 8;

/// Submitter `s` writes the blocks after those of submitter `s - 1`, on the disk and in memory.
fn write(s: usize, block: u64) -> Bio {
    let sector = (s as u64 * BLOCKS + block) * BLOCK_SECTORS;
    Bio::write(Sector(sector), BLOCK_SECTORS as u32, DataRef::new(0, sector * 512)).with_user_data(block)
}

fn run(seed: u64) -> Result<String, Box<dyn Error>> {
    let behaviour = Behaviour {
        limits: Limits { write_cache: true, ..Behaviour::default().limits },
        // Per thousand requests: how many find the device busy, are given back, or fail.
        dev_resource: 50,
        give_back: 30,
        complete_error: 20,
        service: Service::Any { max_ns: 100_000 },
        ..Behaviour::default()
    };
    let mut config = QueueConfig::default();
    config.set("nr_cpus", &SUBMITTERS.to_string())?;
    let mut world = Harness::try_new(seed, behaviour, config, &[0, 1])?;
    let trace = Trace::new(false);
    world.disk.trace_to(trace.clone());
    let sectors = SUBMITTERS * BLOCKS * BLOCK_SECTORS;
    // One word of the simulated memory stands for one sector of data.
    (0..sectors).for_each(|sector| world.mem.set(sector, sector + 1));

    let mut next = [DEPTH; SUBMITTERS as usize];
    for s in 0..SUBMITTERS as usize {
        (0..DEPTH).try_for_each(|block| world.try_submit(s, write(s, block)))?;
    }
    let mut failed = 0;
    while world.step() {
        for (s, next) in next.iter_mut().enumerate() {
            for done in world.take_done(s) {
                if !done.status.is_ok() {
                    failed += 1;
                    world.try_submit(s, write(s, done.user_data))?;
                } else if *next < BLOCKS {
                    world.try_submit(s, write(s, *next))?;
                    *next += 1;
                }
            }
        }
    }
    world.disk.behave(|behaviour| behaviour.complete_error = 0);
    world.try_submit(0, Bio::flush())?;
    world.run_dry(1000);
    world.disk.crash();
    let survived = (0..sectors).filter(|sector| world.disk.content(*sector) == sector + 1).count();
    let (ms, events, hash) = (world.now as f64 / 1e6, trace.events(), trace.hash());
    Ok(format!(
        "seed {seed}: {ms:.1} ms of virtual time, {failed} writes failed and were repeated\n\
         seed {seed}: {survived} of {sectors} sectors are there after a flush and a power cut\n\
         seed {seed}: {events} events, hash {hash:016x}\n"
    ))
}

fn main() -> Result<(), Box<dyn Error>> {
    for seed in [1, 1, 2] {
        print!("{}", run(seed)?);
    }
    Ok(())
}

#[test]
fn acknowledged_blocks_survive_and_a_seed_repeats_its_run() {
    let first = run(1).unwrap();
    assert!(first.contains("4096 of 4096 sectors are there after a flush"), "{first}");
    assert!(!first.contains(" 0 writes failed"), "{first}");
    assert_eq!(first, run(1).unwrap());
    assert_ne!(first.replace("seed 1", ""), run(2).unwrap().replace("seed 2", ""));
}
