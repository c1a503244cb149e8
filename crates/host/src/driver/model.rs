// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `model`: a device of given speed in real time, in front of `null` or `ram`: a capped cloud disk on any machine.
//!
//! Synopsis: `model:[size=,over=null|ram,lat_us=,lat_read_us=,lat_write_us=,jitter_pct=,seed=,iops=,bw=,burst_ms=,parallel=]`
//! Options: `lat_us`, base latency of an I/O in service (or apart for reads and all else); `jitter_pct`, each latency
//! is spread evenly by up to this much either way, by `seed`; `iops` and `bw` (bytes per second), caps as token
//! buckets that hold `burst_ms` worth of them; `parallel`, I/Os in service at once, the rest queue inside the device.
//! Example: `model:iops=18000,bw=750m,lat_us=2000,parallel=64,size=16t,over=null`
//! Limits: an I/O is admitted by the caps in order of issue, waits for a free unit, is served for its latency; it
//! becomes visible to the first poll after that. Data moves at issue. An I/O counts as one against `iops` whatever its
//! size; flush, discard and write zeroes move no bytes against `bw`. The state is one device's, so all hctxs share a
//! lock, once per request: right up to some million I/Os per second.
//! Since: 0.1.

use crate::driver::null::NullOptions;
use crate::driver::ram::{RamDisk, RamOptions};
use crate::driver::{HostDriver, Null, PerHctx, Sleeper};
use crate::error::Result;
use crate::mem::Regions;
use blk::bio::Op;
use blk::driver::{Completions, Driver, InFlight, RqBatch, RqRef};
use blk::id::{HctxId, SECTOR_SHIFT, Sector};
use blk::limits::Limits;
use blk::status::{BlkStatus, QueueRqStatus};
use blk::time::{Duration, Instant};
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

/// What a model stands in front of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelOver {
    /// No data.
    Null,
    /// Data in memory.
    Ram,
}

/// How the device is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelOptions {
    /// Size in bytes; rounded down to whole sectors.
    pub size_bytes: u64,
    /// What keeps the data.
    pub over: ModelOver,
    /// Time a read is in service.
    pub lat_read: Duration,
    /// Time any other I/O is in service.
    pub lat_write: Duration,
    /// Each latency is spread evenly by up to this many percent either way, 0..=100.
    pub jitter_pct: u32,
    /// Seed of the spread.
    pub seed: u64,
    /// Most I/Os per second; 0 = no cap.
    pub iops: u64,
    /// Most bytes per second; 0 = no cap.
    pub bytes_per_sec: u64,
    /// What the caps let through at once after a pause, as time.
    pub burst: Duration,
    /// I/Os in service at once, 1..=65536.
    pub parallel: u32,
}

impl Default for ModelOptions {
    fn default() -> Self {
        ModelOptions {
            size_bytes: 250 << 30,
            over: ModelOver::Null,
            lat_read: Duration::from_us(100),
            lat_write: Duration::from_us(100),
            jitter_pct: 0,
            seed: 1,
            iops: 0,
            bytes_per_sec: 0,
            burst: Duration::from_ms(1),
            parallel: 64,
        }
    }
}

/// A token bucket, kept as the time at which it is full again (GCRA): one number, no refill step.
#[derive(Debug)]
struct TokenBucket {
    per_sec: u64,
    depth_ns: u64,
    full_at_ns: u64,
    /// Fraction of a nanosecond not yet charged, in 1/per_sec: caps hold over any run length.
    rest: u64,
}

impl TokenBucket {
    fn new(per_sec: u64, depth: Duration) -> TokenBucket {
        TokenBucket { per_sec, depth_ns: depth.as_ns(), full_at_ns: 0, rest: 0 }
    }

    /// The earliest time from `now` on at which `tokens` may pass; takes them.
    fn take(&mut self, tokens: u64, now: Instant) -> Instant {
        if self.per_sec == 0 || tokens == 0 {
            return now;
        }
        let cost = u128::from(tokens) * 1_000_000_000 + u128::from(self.rest);
        let cost_ns = (cost / u128::from(self.per_sec)) as u64;
        self.rest = (cost % u128::from(self.per_sec)) as u64;
        let full_at = self.full_at_ns.max(now.as_ns()).saturating_add(cost_ns);
        self.full_at_ns = full_at;
        // What fits into the bucket passes at once; an I/O larger than the bucket waits for the rest of itself.
        Instant::from_ns(full_at.saturating_sub(self.depth_ns.max(cost_ns)).max(now.as_ns()))
    }
}

/// The device: says when an I/O issued now will be done.
#[derive(Debug)]
struct Device {
    iops: TokenBucket,
    bandwidth: TokenBucket,
    /// When each unit is free.
    units: BinaryHeap<Reverse<u64>>,
    jitter_pct: u64,
    random: u64,
}

impl Device {
    fn new(o: &ModelOptions) -> Device {
        Device {
            iops: TokenBucket::new(o.iops, o.burst),
            bandwidth: TokenBucket::new(o.bytes_per_sec, o.burst),
            units: (0..o.parallel).map(|_| Reverse(0)).collect(),
            jitter_pct: u64::from(o.jitter_pct),
            random: o.seed,
        }
    }

    /// When an I/O issued at `now` that moves `bytes` and takes `latency` in service is done.
    fn admit(&mut self, bytes: u64, latency: Duration, now: Instant) -> Instant {
        let admitted = self.iops.take(1, now).max(self.bandwidth.take(bytes, now));
        let latency = self.spread(latency);
        let mut unit = self.units.peek_mut().expect("a device has units");
        let done = Instant::from_ns(unit.0.max(admitted.as_ns())) + latency;
        unit.0 = done.as_ns();
        done
    }

    fn spread(&mut self, latency: Duration) -> Duration {
        let span = latency.as_ns() / 100 * self.jitter_pct;
        if span == 0 {
            return latency;
        }
        let offset = ((u128::from(self.next_random()) * u128::from(2 * span + 1)) >> 64) as u64;
        Duration::from_ns(latency.as_ns() - span + offset)
    }

    /// SplitMix64 (Steele, Lea, Flood 2014).
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

enum Medium {
    Null(Null),
    Ram(RamDisk),
}

/// A request in the device, ordered by when it is done, then by issue.
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

/// The driver.
pub struct Model {
    options: ModelOptions,
    medium: Medium,
    device: Mutex<Device>,
    hctxs: PerHctx<Hctx>,
}

impl Model {
    /// A device as `options` say; data comes from and goes to `regions`.
    pub fn new(options: ModelOptions, regions: Arc<Regions>) -> Result<Model> {
        let size_bytes = options.size_bytes;
        let medium = match options.over {
            ModelOver::Null => Medium::Null(Null::new(NullOptions { size_bytes, ..NullOptions::default() })),
            ModelOver::Ram => Medium::Ram(RamDisk::new(RamOptions { size_bytes, ..RamOptions::default() }, regions)?),
        };
        Ok(Model { options, medium, device: Mutex::new(Device::new(&options)), hctxs: PerHctx::new() })
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
        // Another thread's requests may be issued here while it sleeps.
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

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;

    fn options() -> ModelOptions {
        ModelOptions { parallel: 4, burst: Duration::ZERO, ..ModelOptions::default() }
    }

    /// Issues `n` I/Os of `bytes` at time 0; when each is done, in microseconds.
    fn done_us(o: &ModelOptions, n: usize, bytes: u64) -> Vec<u64> {
        let mut d = Device::new(o);
        (0..n).map(|_| d.admit(bytes, o.lat_read, Instant::from_ns(0)).as_ns() / US).collect()
    }

    #[test]
    fn what_exceeds_the_units_queues_inside() {
        assert_eq!(done_us(&options(), 9, 4096), [100, 100, 100, 100, 200, 200, 200, 200, 300]);
    }

    #[test]
    fn the_iops_cap_spaces_admissions() {
        let o = ModelOptions { iops: 50_000, parallel: 1000, ..options() };
        assert_eq!(done_us(&o, 4, 4096), [100, 120, 140, 160]);
        let burst = ModelOptions { burst: Duration::from_us(40), ..o };
        assert_eq!(done_us(&burst, 5, 4096), [100, 100, 120, 140, 160], "two I/Os fit the bucket");
    }

    #[test]
    fn the_bandwidth_cap_counts_bytes_and_binds_beside_iops() {
        let o = ModelOptions { iops: 1_000_000, bytes_per_sec: 1_000_000_000, parallel: 1000, ..options() };
        assert_eq!(done_us(&o, 3, 50_000), [100, 150, 200]);
        assert_eq!(done_us(&o, 3, 0), [100, 101, 102]);
    }

    #[test]
    fn a_cap_loses_no_fraction_over_a_long_run() {
        let mut b = TokenBucket::new(18_000, Duration::ZERO);
        let last = (0..1_800_000).map(|_| b.take(1, Instant::ZERO)).last().unwrap();
        let expected = 100_000_000_000 - 1_000_000_000 / 18_000;
        assert!(last.as_ns().abs_diff(expected) <= 1, "{}", last.as_ns());
    }

    #[test]
    fn jitter_is_bounded_and_repeats_by_seed() {
        let o = ModelOptions { jitter_pct: 20, parallel: 10_000, ..options() };
        let run = done_us(&o, 1000, 0);
        assert!(run.iter().all(|us| (80..=120).contains(us)));
        assert!(run.iter().any(|us| *us < 90) && run.iter().any(|us| *us > 110));
        assert_eq!(run, done_us(&o, 1000, 0));
        assert_ne!(run, done_us(&ModelOptions { seed: 2, ..o }, 1000, 0));
    }
}
