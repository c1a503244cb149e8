// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the SCSI midlayer and multipath cost together, and how they scale. The disk is multipath over two paths, each a LUN
//! of its own SCSI host, whose transport does nothing. The other disk has a driver that does nothing.
//!
//! The two run by turns, so that a drift of the machine affects both; the figures are medians of the differences. Scaling
//! compares two threads, each on a LUN of its own, with one thread alone. `--json` prints the figures for
//! `cargo xtask bench`. Under `cargo test --benches` the same code runs at smoke size.
//!
//! Goals: together under 150 ns per I/O; 1.9 times as much on two CPUs.

extern crate mqblk_blk as blk;

use blk::bio::{Bio, DataRef};
use blk::cpumap::CpuTopology;
use blk::driver::{Completions, Driver, InFlight, RqBatch};
use blk::id::{CpuId, HctxId, Sector};
use blk::limits::Limits;
use blk::multipath::{Features, Multipath, NewGroup, NewPath, PathArgs, Selector};
use blk::queue::{NoNotify, RequestQueue};
use blk::scsi::disk::{DiskOptions, SD_MAX_RETRIES, ScsiDisk};
use blk::scsi::disposition::{Failfast, Outcome};
use blk::scsi::host::{HostTemplate, ScsiHost};
use blk::scsi::transport::{AcceptedCommand, Busy, CommandBatch, LunId, Outcomes, Transport, TransportLimits};
use blk::settings::QueueConfig;
use blk::status::{BlkStatus, QueueRqStatus};
use blk::submitter::Submitter;
use blk::time::{Duration, Instant};
use parking_lot::{Mutex, RawMutex};
use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::{Arc, Barrier};

const DEPTH: u32 = 64;
const BLOCKS: u64 = 1 << 30;
const CPUS: usize = 2;

fn limits() -> Limits {
    Limits::with_max_hw_sectors(1 << 16)
}

/// What waits for a poll, a line of memory per queue.
#[repr(align(128))]
struct Ring<T>(Mutex<VecDeque<T>>);

fn rings<T>(n: usize) -> Vec<Ring<T>> {
    (0..n).map(|_| Ring(Mutex::new(VecDeque::with_capacity(DEPTH as usize)))).collect()
}

/// Keeps requests until it is polled.
struct Plain(Vec<Ring<InFlight>>);

impl Driver for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn limits(&self) -> Limits {
        limits()
    }

    fn capacity(&self) -> Sector {
        Sector(BLOCKS)
    }

    fn start(&self, _: u16, _: u32) -> Result<(), String> {
        Ok(())
    }

    fn queue_rqs(&self, batch: &mut RqBatch<'_>, _: Instant) -> QueueRqStatus {
        let mut kept = self.0[batch.hctx().index()].0.lock();
        (0..batch.remaining()).for_each(|_| kept.push_back(batch.accept()));
        QueueRqStatus::Queued
    }

    fn poll(&self, hctx: HctxId, done: &mut Completions, _: Instant) {
        let mut kept = self.0[hctx.index()].0.lock();
        while done.room() > 0
            && let Some(rq) = kept.pop_front()
        {
            done.push(rq, BlkStatus::Ok);
        }
    }
}

/// Keeps commands until it is polled, those of each LUN and hardware queue apart.
struct Nothing(Vec<Ring<AcceptedCommand>>);

impl Nothing {
    fn ring(&self, lun: LunId, hctx: HctxId) -> &Mutex<VecDeque<AcceptedCommand>> {
        &self.0[usize::from(lun.0) * CPUS + hctx.index()].0
    }
}

impl Transport for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }

    fn limits(&self) -> TransportLimits {
        let (timeout, host_reset) = (Duration::from_secs(30), Duration::from_secs(30));
        TransportLimits { max_sectors: 1 << 16, max_segments: 128, timeout, host_reset }
    }

    fn start(&self, _: LunId, _: u16, _: u32) -> Result<(), String> {
        Ok(())
    }

    fn queue(&self, batch: &mut CommandBatch<'_, '_>, _: Instant) -> Option<Busy> {
        let mut kept = self.ring(batch.lun(), batch.hctx()).lock();
        while let Some(command) = batch.front() {
            black_box(command.cdb);
            kept.push_back(batch.accept());
        }
        None
    }

    fn poll(&self, lun: LunId, hctx: HctxId, ended: &mut Outcomes<'_>, _: Instant) {
        let mut kept = self.ring(lun, hctx).lock();
        while ended.room() > 0
            && let Some(ticket) = kept.pop_front()
        {
            ended.push(ticket, &Outcome::GOOD, None);
        }
    }
}

fn host() -> Arc<ScsiHost> {
    let template =
        HostTemplate { can_queue: DEPTH, cmd_per_lun: DEPTH, nr_hw_queues: CPUS as u16, ..HostTemplate::default() };
    ScsiHost::new::<RawMutex>(template, Arc::new(Nothing(rings(CPUS * CPUS))))
}

/// A LUN over two paths.
fn lun(hosts: &[Arc<ScsiHost>; 2], lun: u16) -> Arc<dyn Driver> {
    let options = DiskOptions {
        block_size: 512,
        blocks: BLOCKS,
        limits: limits(),
        has_unmap: false,
        unmap_zeroes: false,
        wide: false,
        retries: SD_MAX_RETRIES,
        failfast: Failfast::default(),
    };
    let path = |(i, host): (usize, &Arc<ScsiHost>)| {
        let disk = ScsiDisk::new(Arc::clone(host), LunId(lun), options).expect("a disk");
        NewPath { name: format!("p{i}"), driver: Arc::new(disk), args: PathArgs::default() }
    };
    let paths = hosts.iter().enumerate().map(path).collect();
    let groups = vec![NewGroup { selector: Selector::RoundRobin, paths }];
    let disk = Multipath::<RawMutex>::new(groups, Features::default(), None, &[], Box::new(|_| {}));
    Arc::new(disk.expect("paths of one disk"))
}

struct Disk {
    queue: Arc<RequestQueue<RawMutex>>,
    submitter: Submitter<RawMutex>,
}

impl Disk {
    fn of(driver: Arc<dyn Driver>, cpu: usize) -> Disk {
        let config = QueueConfig {
            topology: CpuTopology::uniform(CPUS as u16),
            nr_hw_queues: Some(CPUS as u16),
            queue_depth: DEPTH,
            scheduler: Some("none".into()),
            ..QueueConfig::default()
        };
        let queue = RequestQueue::<RawMutex>::new(driver, config, Box::new(NoNotify)).expect("a disk");
        let submitter = queue.submitter(CpuId::new(cpu as u32)).expect("a submitter");
        Disk { queue, submitter }
    }

    /// `rounds` times `batch` reads and their ends; nanoseconds per read.
    fn run(&mut self, rounds: u64, batch: u64) -> f64 {
        let begun = std::time::Instant::now();
        for round in 0..rounds {
            let now = Instant::from_ns(1 + round);
            if batch > 1 {
                self.submitter.start_plug(batch as u32);
            }
            for i in 0..batch {
                let sector = (round * batch + i).wrapping_mul(0x9e37_79b9) % (BLOCKS / 8) * 8;
                self.submitter.submit(&Bio::read(Sector(sector), 8, DataRef::new(0, 0)), now).expect("room");
            }
            if batch > 1 {
                self.submitter.finish_plug(now);
            }
            self.submitter.poll(now);
            let mut ended = 0;
            self.submitter.reap(|done| ended += u64::from(done.status.is_ok()));
            assert_eq!(ended, batch);
        }
        begun.elapsed().as_nanos() as f64 / (rounds * batch) as f64
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Nanoseconds of a read: over the plain driver, and what more over the layers.
fn added(samples: usize, rounds: u64, batch: u64) -> (f64, f64) {
    let mut plain = Disk::of(Arc::new(Plain(rings(CPUS))), 0);
    let mut layers = Disk::of(lun(&[host(), host()], 0), 0);
    let (mut alone, mut more) = (Vec::new(), Vec::new());
    for i in 0..samples {
        let (a, b);
        if i % 2 == 0 {
            a = plain.run(rounds, batch);
            b = layers.run(rounds, batch);
        } else {
            b = layers.run(rounds, batch);
            a = plain.run(rounds, batch);
        }
        alone.push(a);
        more.push(b - a);
    }
    assert_eq!(plain.queue.stats().in_flight + layers.queue.stats().in_flight, 0);
    (median(alone), median(more))
}

/// What two threads do together, on a disk each, in terms of one of them alone.
fn scaling(samples: usize, rounds: u64, drivers: [Arc<dyn Driver>; CPUS]) -> f64 {
    let barrier = Barrier::new(CPUS);
    let times: Vec<Vec<(f64, f64)>> = std::thread::scope(|scope| {
        let threads: Vec<_> = drivers
            .into_iter()
            .enumerate()
            .map(|(cpu, driver)| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let mut disk = Disk::of(driver, cpu);
                    let mut times = Vec::new();
                    for _ in 0..samples {
                        let mut alone = 0.0;
                        for turn in 0..CPUS {
                            barrier.wait();
                            if turn == cpu {
                                alone = disk.run(rounds, 1);
                            }
                        }
                        barrier.wait();
                        times.push((alone, disk.run(rounds, 1)));
                    }
                    times
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().expect("a thread that ends")).collect()
    });
    let ratio = |i: usize| times.iter().map(|t| t[i].0 / t[i].1).sum();
    median((0..samples).map(ratio).collect())
}

fn main() {
    let is_bench = std::env::args().any(|a| a == "--bench");
    let is_json = std::env::args().any(|a| a == "--json");
    let (samples, rounds) = if is_bench { (201, 2_000) } else { (3, 3) };
    let [one, batch] = [1, 32].map(|batch| added(samples, rounds / batch + 1, batch));
    let hosts = [host(), host()];
    let layers = scaling(samples, rounds * 10, [lun(&hosts, 0), lun(&hosts, 1)]);
    let plain = || -> Arc<dyn Driver> { Arc::new(Plain(rings(CPUS))) };
    let plain = scaling(samples, rounds * 10, [plain(), plain()]);
    if is_json {
        println!(
            "{{\"plain_ns\": {:.2}, \"added_ns\": {:.2}, \"plain_ns_32\": {:.2}, \"added_ns_32\": {:.2}, \"scaling\": {layers:.3}, \
             \"plain_scaling\": {plain:.3}}}",
            one.0, one.1, batch.0, batch.1
        );
        return;
    }
    for (name, (plain, more)) in [("depth 1", one), ("batches of 32", batch)] {
        println!("{name:<14} plain {plain:6.1} ns, SCSI and multipath {more:+6.1} ns");
    }
    println!("two threads on a LUN each: {layers:.2} times one alone; on a plain disk each: {plain:.2}");
}
