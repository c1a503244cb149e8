// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `model`: a device of given speed in real time, in front of `null` or `ram`: a capped cloud disk on any machine.
//!
//! Synopsis: `model:[size=,over=null|ram,lat_us=,lat_read_us=,lat_write_us=,jitter_pct=,seed=,iops=,bw=,burst_ms=,parallel=]`
//! Options: `lat_us`, base latency of an I/O in service (or apart for reads and all else); `jitter_pct`, each latency
//! is spread evenly by up to this much either way, by `seed`; `iops` and `bw` (bytes per second), caps as token
//! buckets that hold `burst_ms` worth of them; `parallel`, I/Os in service at once, the rest queue inside the device.
//! Example: `model:iops=18000,bw=750m,lat_us=2000,parallel=64,size=16t,over=null`
//! Limits: an I/O is admitted by the caps in order of issue, waits for a free unit, is served for its latency; it becomes visible to the
//! first poll after that. Data moves at issue. An I/O counts as one against `iops` whatever its size; flush, discard and write zeroes move
//! no bytes against `bw`. All hctxs share the state of one device under one lock, taken once per request; that is sufficient up to some
//! million I/Os per second.
//! Since: 0.1.

use crate::driver::host_driver::HostDriver;
use crate::driver::null::Null;
use crate::driver::null::NullOptions;
use crate::driver::options::{self, OptionDef, SIZE_RANGE, bytes, disk_size, set, within};
use crate::driver::per_hctx::PerHctx;
use crate::driver::ram::{RamDisk, RamOptions};
use crate::driver::sleeper::Sleeper;
use crate::driver::target::{DriverTarget, Needs, OpenTarget};
use crate::error::Result;
use crate::mem::Regions;
use blk::bio::Op;
use blk::driver::model::{Device, Speed};
use blk::driver::{Completions, Driver, InFlight, RqBatch, RqRef};
use blk::id::{HctxId, SECTOR_SHIFT, Sector};
use blk::limits::Limits;
use blk::status::{BlkStatus, QueueRqStatus};
use blk::time::{Duration, Instant};
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// The storage behind a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelOver {
    /// No data.
    Null,
    /// Data in memory.
    Ram,
}

/// Options of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelOptions {
    /// Size in bytes; rounded down to whole sectors.
    pub size_bytes: u64,
    /// Storage for the data.
    pub over: ModelOver,
    /// Time a read is in service.
    pub lat_read: Duration,
    /// Time any other I/O is in service.
    pub lat_write: Duration,
    /// Caps, spread and units.
    pub speed: Speed,
}

impl Default for ModelOptions {
    fn default() -> Self {
        ModelOptions {
            size_bytes: 250 << 30,
            over: ModelOver::Null,
            lat_read: Duration::from_us(100),
            lat_write: Duration::from_us(100),
            speed: Speed::default(),
        }
    }
}

enum Medium {
    Null(Null),
    Ram(RamDisk),
}

/// A request in the device, ordered by completion time, then by issue.
struct Pending {
    due: Instant,
    seq: u64,
    rq: InFlight,
    status: BlkStatus,
}

impl PartialEq for Pending {
    fn eq(&self, other: &Self) -> bool {
        (self.due, self.seq) == (other.due, other.seq)
    }
}

impl Eq for Pending {}

impl PartialOrd for Pending {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Pending {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.seq).cmp(&(other.due, other.seq))
    }
}

/// Requests of one hctx inside the device. Bounded by the number of tags.
#[derive(Default)]
struct Queue {
    pending: BinaryHeap<Reverse<Pending>>,
    issued: u64,
}

#[derive(Default)]
struct Hctx {
    queue: Mutex<Queue>,
    sleeper: Sleeper,
}

/// The model driver: a disk with the speed of a given device.
pub struct Model {
    options: ModelOptions,
    medium: Medium,
    device: Mutex<Device>,
    hctxs: PerHctx<Hctx>,
}

impl Model {
    /// Makes a device as `options` say. The data of requests is in `regions`.
    pub fn new(options: ModelOptions, regions: Arc<Regions>) -> Result<Model> {
        let size_bytes = options.size_bytes;
        let medium = match options.over {
            ModelOver::Null => Medium::Null(Null::new(NullOptions { size_bytes, ..NullOptions::default() })),
            ModelOver::Ram => Medium::Ram(RamDisk::new(RamOptions { size_bytes, ..RamOptions::default() }, regions)?),
        };
        Ok(Model { options, medium, device: Mutex::new(Device::new(&options.speed)), hctxs: PerHctx::new() })
    }

    fn admit(&self, device: &mut Device, rq: &RqRef<'_>, now: Instant) -> Instant {
        let bytes = if rq.op().has_data() { u64::from(rq.nr_sectors()) << SECTOR_SHIFT } else { 0 };
        let latency = if rq.op() == Op::Read { self.options.lat_read } else { self.options.lat_write };
        device.admit(bytes, latency, now)
    }
}

impl Driver for Model {
    fn name(&self) -> &'static str {
        "model"
    }

    fn limits(&self) -> Limits {
        match &self.medium {
            Medium::Null(null) => null.limits(),
            Medium::Ram(ram) => ram.limits(),
        }
    }

    fn capacity(&self) -> Sector {
        match &self.medium {
            Medium::Null(null) => null.capacity(),
            Medium::Ram(ram) => ram.capacity(),
        }
    }

    fn start(&self, nr_hw_queues: u16, queue_depth: u32) -> std::result::Result<(), String> {
        for i in 0..nr_hw_queues {
            let mut queue = self.hctxs.get_or_init(i, Hctx::default).queue.lock();
            assert!(queue.pending.is_empty(), "hctx {i} restarted with requests in flight");
            queue.pending.reserve(queue_depth as usize);
        }
        Ok(())
    }

    fn queue_rqs(&self, batch: &mut RqBatch<'_>, now: Instant) -> QueueRqStatus {
        let hctx = self.hctxs.get(batch.hctx());
        let mut ahead = false;
        while let Some(rq) = batch.front() {
            let status = match &self.medium {
                Medium::Null(_) => BlkStatus::Ok,
                Medium::Ram(ram) => ram.execute(&rq),
            };
            let due = self.admit(&mut self.device.lock(), &rq, now);
            let mut queue = hctx.queue.lock();
            queue.issued += 1;
            let seq = queue.issued;
            ahead |= queue.pending.peek().is_none_or(|Reverse(first)| due < first.due);
            queue.pending.push(Reverse(Pending { due, seq, rq: batch.accept(), status }));
        }
        // Requests of another thread may be issued here while that thread sleeps.
        if ahead {
            hctx.sleeper.wake_sleepers();
        }
        QueueRqStatus::Queued
    }

    fn poll(&self, hctx: HctxId, done: &mut Completions, now: Instant) {
        let mut queue = self.hctxs.get(hctx).queue.lock();
        while done.room() > 0 && queue.pending.peek().is_some_and(|Reverse(p)| p.due <= now) {
            let Some(Reverse(p)) = queue.pending.pop() else { break };
            done.push(p.rq, p.status);
        }
    }
}

impl HostDriver for Model {
    fn wait_since(&self, seen: u64, hctx: HctxId, _min: u32, timeout: Option<Duration>) {
        self.hctxs.get(hctx).sleeper.sleep_until_due(seen, timeout, || self.next_due(hctx));
    }

    fn next_due(&self, hctx: HctxId) -> Option<Instant> {
        self.hctxs.get(hctx).queue.lock().pending.peek().map(|Reverse(p)| p.due)
    }

    fn wakes(&self, hctx: HctxId) -> u64 {
        self.hctxs.get(hctx).sleeper.wakes()
    }

    fn wake(&self, hctx: HctxId) {
        self.hctxs.get(hctx).sleeper.wake();
    }
}

const US_RANGE: &str = "0..=60000000 microseconds";

pub(super) const OPTIONS: &[OptionDef<ModelOptions>] = &[
    OptionDef { name: "size", range: SIZE_RANGE, set: |o, v| set(&mut o.size_bytes, disk_size(v)) },
    OptionDef {
        name: "over",
        range: "null or ram",
        set: |o, v| {
            let over = match v {
                "null" => Some(ModelOver::Null),
                "ram" => Some(ModelOver::Ram),
                _ => None,
            };
            set(&mut o.over, over)
        },
    },
    OptionDef {
        name: "lat_us",
        range: US_RANGE,
        set: |o, v| {
            o.lat_write = micros(v)?;
            set(&mut o.lat_read, micros(v))
        },
    },
    OptionDef { name: "lat_read_us", range: US_RANGE, set: |o, v| set(&mut o.lat_read, micros(v)) },
    OptionDef { name: "lat_write_us", range: US_RANGE, set: |o, v| set(&mut o.lat_write, micros(v)) },
    OptionDef {
        name: "jitter_pct",
        range: "0..=100",
        set: |o, v| set(&mut o.speed.jitter_pct, within(v, 0, 100).map(|n| n as u32)),
    },
    OptionDef { name: "seed", range: "a whole number", set: |o, v| set(&mut o.speed.seed, v.parse().ok()) },
    OptionDef {
        name: "iops",
        range: "1..=1000000000",
        set: |o, v| set(&mut o.speed.iops, within(v, 1, 1_000_000_000)),
    },
    OptionDef {
        name: "bw",
        range: "4096..=1p bytes per second, such as 750m",
        set: |o, v| set(&mut o.speed.bytes_per_sec, bytes(v).filter(|n| (4096..=1 << 50).contains(n))),
    },
    OptionDef {
        name: "burst_ms",
        range: "0..=60000",
        set: |o, v| set(&mut o.speed.burst, within(v, 0, 60_000).map(Duration::from_ms)),
    },
    OptionDef {
        name: "parallel",
        range: "1..=65536",
        set: |o, v| set(&mut o.speed.parallel, within(v, 1, 65536).map(|n| n as u32)),
    },
];

fn micros(v: &str) -> Option<Duration> {
    within(v, 0, 60_000_000).map(Duration::from_us)
}

impl DriverTarget for ModelOptions {
    const KIND: &'static str = "model";
    const HELP: &'static str = "
  model[:OPTIONS]      a device with latency and caps: size, lat_us, lat_read_us, lat_write_us, jitter_pct,
                       iops, bw, burst_ms, parallel, seed, over=null|ram";
    const IS_WORD: bool = true;

    fn parse(_text: &str, rest: &str) -> Result<ModelOptions> {
        options::read(Self::KIND, rest, OPTIONS)
    }

    fn open(&self, _needs: &Needs, regions: Arc<Regions>) -> Result<OpenTarget> {
        Ok(OpenTarget::plain(Model::new(*self, regions)?))
    }

    fn is_same_data(&self, _other: &Self) -> bool {
        false
    }

    fn size_bytes(&self) -> Option<u64> {
        Some(self.size_bytes)
    }

    fn is_private(&self) -> bool {
        true
    }

    fn is_memory(&self) -> bool {
        self.over == ModelOver::Ram
    }
}
