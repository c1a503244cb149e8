// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the SCSI midlayer adds to an I/O: a disk over a transport that does nothing, against a driver that does nothing.
//!
//! `cargo bench -p mqblk-blk --bench scsi` measures, by turns; under `cargo test --benches` the same code runs at smoke size.
//!
//! Goal: midlayer and multipath together under 150 ns per I/O.

extern crate mqblk_blk as blk;

use blk::bio::{Bio, DataRef};
use blk::cpumap::CpuTopology;
use blk::driver::{Completions, Driver, InFlight, RqBatch};
use blk::id::{CpuId, HctxId, Sector, SubmitterId};
use blk::limits::Limits;
use blk::queue::{Notify, RequestQueue};
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
use std::sync::Arc;

const DEPTH: u32 = 64;
const BLOCKS: u64 = 1 << 30;

struct NoopNotify;

impl Notify for NoopNotify {
    fn notify(&self, _: SubmitterId) {}
}

fn limits() -> Limits {
    Limits::with_max_hw_sectors(1 << 16)
}

/// Keeps requests until it is polled.
#[derive(Default)]
struct Plain(Mutex<VecDeque<InFlight>>);

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

    fn start(&self, _: u16, depth: u32) -> Result<(), String> {
        self.0.lock().reserve(depth as usize);
        Ok(())
    }

    fn queue_rqs(&self, batch: &mut RqBatch<'_>, _: Instant) -> QueueRqStatus {
        let mut kept = self.0.lock();
        (0..batch.remaining()).for_each(|_| kept.push_back(batch.accept()));
        QueueRqStatus::Queued
    }

    fn poll(&self, _: HctxId, done: &mut Completions, _: Instant) {
        let mut kept = self.0.lock();
        while done.room() > 0
            && let Some(rq) = kept.pop_front()
        {
            done.push(rq, BlkStatus::Ok);
        }
    }
}

/// Keeps commands until it is polled.
#[derive(Default)]
struct Nothing(Mutex<VecDeque<AcceptedCommand>>);

impl Transport for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }

    fn limits(&self) -> TransportLimits {
        let (timeout, host_reset) = (Duration::from_secs(30), Duration::from_secs(30));
        TransportLimits { max_sectors: 1 << 16, max_segments: 128, timeout, host_reset }
    }

    fn start(&self, _: LunId, _: u16, depth: u32) -> Result<(), String> {
        self.0.lock().reserve(depth as usize);
        Ok(())
    }

    fn queue(&self, batch: &mut CommandBatch<'_, '_>, _: Instant) -> Option<Busy> {
        let mut kept = self.0.lock();
        while let Some(command) = batch.front() {
            black_box(command.cdb);
            kept.push_back(batch.accept());
        }
        None
    }

    fn poll(&self, _: LunId, _: HctxId, ended: &mut Outcomes<'_>, _: Instant) {
        let mut kept = self.0.lock();
        while ended.room() > 0
            && let Some(ticket) = kept.pop_front()
        {
            ended.push(ticket, &Outcome::GOOD, None);
        }
    }
}

struct Disk(Arc<RequestQueue<RawMutex>>, Submitter<RawMutex>);

impl Disk {
    fn of(driver: Arc<dyn Driver>) -> Disk {
        let config = QueueConfig {
            topology: CpuTopology::uniform(1),
            queue_depth: DEPTH,
            scheduler: Some("none".into()),
            ..QueueConfig::default()
        };
        let queue = RequestQueue::<RawMutex>::new(driver, config, Box::new(NoopNotify)).expect("a disk");
        let submitter = queue.submitter(CpuId::new(0)).expect("a submitter");
        Disk(queue, submitter)
    }

    /// `rounds` times `batch` reads and their ends; nanoseconds per read.
    fn run(&mut self, rounds: u64, batch: u64) -> f64 {
        let begun = std::time::Instant::now();
        for round in 0..rounds {
            let now = Instant::from_ns(1 + round);
            for i in 0..batch {
                let sector = (round * batch + i).wrapping_mul(0x9e37_79b9) % (BLOCKS / 8) * 8;
                self.1.submit(&Bio::read(Sector(sector), 8, DataRef::new(0, 0)), now).expect("room");
            }
            self.1.poll(now);
            let mut ended = 0;
            self.1.reap(|done| ended += u64::from(done.status.is_ok()));
            assert_eq!(ended, batch);
        }
        begun.elapsed().as_nanos() as f64 / (rounds * batch) as f64
    }
}

fn scsi(cmd_per_lun: u32) -> Disk {
    let template = HostTemplate { can_queue: DEPTH, cmd_per_lun, nr_hw_queues: 1, ..HostTemplate::default() };
    let host = ScsiHost::new::<RawMutex>(template, Arc::new(Nothing::default()));
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
    Disk::of(Arc::new(ScsiDisk::new(host, LunId(0), options).expect("a disk")))
}

fn main() {
    let is_bench = std::env::args().any(|a| a == "--bench");
    let (samples, rounds) = if is_bench { (201, 200) } else { (3, 3) };
    for batch in [1, 32] {
        let mut disks = [
            ("plain driver", Disk::of(Arc::new(Plain::default()))),
            ("scsi", scsi(DEPTH)),
            ("scsi, depth counted", scsi(32)),
        ];
        let mut ns = vec![Vec::new(); disks.len()];
        for _ in 0..samples {
            for ((_, disk), ns) in disks.iter_mut().zip(&mut ns) {
                ns.push(disk.run(rounds, batch));
            }
        }
        for ((name, disk), ns) in disks.iter().zip(&mut ns) {
            ns.sort_by(f64::total_cmp);
            let median = ns[samples / 2];
            println!(
                "batch {batch:>2}, {name:<20} {:7.1} ns  median {median:.1}  p90 {:.1}",
                ns[0],
                ns[samples * 9 / 10]
            );
            assert_eq!(disk.0.stats().in_flight, 0);
        }
    }
}
