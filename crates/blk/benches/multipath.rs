// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What multipath costs per I/O: random reads on a disk that keeps nothing, plain and over 1, 2 and 16 paths with each
//! selector, one at a time and in batches of 32.
//!
//! `now`: requests end while they are issued, as `mqblk`'s null driver does it; `poll`: at the next poll, through a ring under
//! a lock, as a device would. Goal: SCSI and multipath together add less than 150 ns. Arguments pick rows by a part of their
//! name; `ios=N` makes each that long, so that two runs under an instruction counter give (I(2N) - I(N)) / N. Smoke-sized
//! under `cargo test --benches`.

extern crate mqblk_blk as blk;

use blk::bio::{Bio, DataRef};
use blk::driver::{Completions, Driver, InFlight, RqBatch};
use blk::id::{CpuId, HctxId, Sector};
use blk::limits::Limits;
use blk::multipath::{BASE_WEIGHT, Features, Multipath, NewGroup, NewPath, PathArgs, Selector};
use blk::queue::{NoNotify, RequestQueue};
use blk::settings::QueueConfig;
use blk::status::{BlkStatus, QueueRqStatus};
use blk::time::Instant;
use parking_lot::{Mutex, RawMutex};
use std::collections::VecDeque;
use std::sync::Arc;

/// Keeps nothing; completes what it gets on the spot, or when it is polled.
struct Null {
    ring: Option<Mutex<VecDeque<InFlight>>>,
}

impl Driver for Null {
    fn name(&self) -> &'static str {
        "null"
    }

    fn limits(&self) -> Limits {
        Limits::with_max_hw_sectors(1024)
    }

    fn capacity(&self) -> Sector {
        Sector(1 << 30)
    }

    fn start(&self, _nr_hw_queues: u16, queue_depth: u32) -> Result<(), String> {
        self.ring.iter().for_each(|r| r.lock().reserve(queue_depth as usize));
        Ok(())
    }

    fn queue_rqs(&self, batch: &mut RqBatch<'_>, _now: Instant) -> QueueRqStatus {
        match &self.ring {
            None => (0..batch.remaining()).for_each(|_| batch.end(BlkStatus::Ok)),
            Some(ring) => {
                let mut ring = ring.lock();
                (0..batch.remaining()).for_each(|_| ring.push_back(batch.accept()));
            }
        }
        QueueRqStatus::Queued
    }

    fn poll(&self, _hctx: HctxId, done: &mut Completions, _now: Instant) {
        let Some(ring) = &self.ring else { return };
        let mut ring = ring.lock();
        while done.room() > 0
            && let Some(rq) = ring.pop_front()
        {
            done.push(rq, BlkStatus::Ok);
        }
    }
}

fn null(polled: bool) -> Arc<dyn Driver> {
    Arc::new(Null { ring: polled.then(Mutex::default) })
}

fn multipath(selector: Selector, n: usize, polled: bool) -> Arc<dyn Driver> {
    let path = |i| NewPath { name: format!("p{i}"), driver: null(polled), args: PathArgs::default() };
    let groups = vec![NewGroup { selector, paths: (0..n).map(path).collect() }];
    let disk = Multipath::<RawMutex>::new(groups, Features::default(), None, &[], Box::new(|_| {}));
    Arc::new(disk.expect("paths of one disk"))
}

fn ns_per_io(driver: Arc<dyn Driver>, depth: u32, total: u64) -> f64 {
    let mut config = QueueConfig::default();
    config.set("scheduler", "none").expect("a setting");
    config.set("nr_hw_queues", "1").expect("a setting");
    let disk = RequestQueue::<RawMutex>::new(driver, config, Box::new(NoNotify)).expect("good settings");
    let mut sub = disk.submitter(CpuId::new(0)).expect("a free submitter");
    let begin = std::time::Instant::now();
    let (mut x, mut done, mut now) = (0x9e37_79b9_7f4a_7c15u64, 0, Instant::ZERO);
    while done < total {
        if depth > 1 {
            sub.start_plug(depth);
        }
        for _ in 0..depth {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let sector = Sector((x >> 40) << 3);
            sub.submit(&Bio::read(sector, 8, DataRef::NONE), now).expect("a free bio slot");
        }
        if depth > 1 {
            sub.finish_plug(now);
        }
        now = Instant::from_ns(begin.elapsed().as_nanos() as u64);
        sub.poll(now);
        sub.reap(|d| {
            done += 1;
            assert!(d.status.is_ok());
        });
    }
    begin.elapsed().as_nanos() as f64 / total as f64
}

fn main() {
    let smoke = !std::env::args().any(|a| a == "--bench");
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let ios = args.iter().find_map(|a| a.strip_prefix("ios=")).map(|n| n.parse().expect("a number of I/Os"));
    let only: Vec<&String> = args.iter().filter(|a| !a.contains('=')).collect();
    let total = ios.unwrap_or(if smoke { 2_000 } else { 5_000_000 });
    let selectors = [
        Selector::RoundRobin,
        Selector::QueueLength,
        Selector::ServiceTime,
        Selector::HistoricalServiceTime { base_weight: BASE_WEIGHT, threshold_multiplier: 0 },
        Selector::IoAffinity,
    ];
    for polled in [false, true] {
        for depth in [1, 32] {
            let when = format!("{} qd{depth}", if polled { "poll" } else { "now" });
            let row = |name: String, make: &dyn Fn() -> Arc<dyn Driver>| {
                if !only.iter().all(|part| name.contains(part.as_str())) {
                    return None;
                }
                // The best of five: what disturbs a run makes it longer only.
                let rounds = if smoke || ios.is_some() { 1 } else { 5 };
                Some((name, (0..rounds).map(|_| ns_per_io(make(), depth, total)).fold(f64::MAX, f64::min)))
            };
            let plain = row(format!("{when} plain"), &|| null(polled));
            if let Some((name, ns)) = &plain {
                println!("{name}: {ns:.1} ns");
            }
            for n in [1, 2, 16] {
                for selector in selectors {
                    let name = format!("{when} {n} paths {}", selector.name());
                    if n == 1 && selector != Selector::RoundRobin {
                        continue;
                    }
                    let Some((name, ns)) = row(name, &|| multipath(selector, n, polled)) else { continue };
                    let more = plain.as_ref().map_or(String::new(), |(_, p)| format!(", {:+.1} to plain", ns - p));
                    println!("{name}: {ns:.1} ns{more}");
                }
            }
        }
    }
}
