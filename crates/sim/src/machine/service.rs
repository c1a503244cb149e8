// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long devices take: a provisioned cloud disk, flash; in [`array`](mod@array), an array with a cache; in [`hdd`], a hard
//! disk. All of it is arithmetic on times.

pub mod array;
pub mod hdd;

use blk::bio::Op;
use blk::driver::model::{Device, Speed};
use blk::time::{Duration, Instant};

/// One I/O as a device sees it.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// The hardware queue by which it arrived.
    pub hctx: u16,
    /// Its tag there. The I/O has it until it completes.
    pub tag: u32,
    /// The operation.
    pub op: Op,
    /// The first sector.
    pub sector: u64,
    /// The length in sectors.
    pub nr_sectors: u32,
}

/// A device as a source of completion times. The same calls give the same answers. `now` may go back from call to call, by
/// at most the difference between the clocks of CPUs.
pub trait Service: Send {
    /// Returns when an I/O that reaches the device at `now` completes. `None` if that depends on I/O that may still arrive:
    /// the device queues it, and [`Service::chosen`] returns it later.
    fn done_at(&mut self, io: &Job, now: Instant) -> Option<Instant>;

    /// Returns a queued I/O that the device has chosen by `now`, and when it completes. Call it until it returns `None`.
    fn chosen(&mut self, _now: Instant) -> Option<(Job, Instant)> {
        None
    }

    /// Returns when the device chooses among its queued I/Os next, if no I/O completes at that time, and a hardware queue
    /// that has one of them.
    fn next_choice(&self) -> Option<(u16, Instant)> {
        None
    }
}

/// Caps, latency and units: `blk`'s arithmetic, which the real-time driver `model` uses as well.
pub struct Modelled {
    device: Device,
    read: Duration,
    write: Duration,
}

impl Modelled {
    /// A device of the given speed; a read takes `read`, any other I/O `write`.
    pub fn new(speed: &Speed, read: Duration, write: Duration) -> Modelled {
        Modelled { device: Device::new(speed), read, write }
    }

    /// Returns when an I/O that is issued at `now` completes.
    pub fn admit(&mut self, io: &Job, now: Instant) -> Instant {
        let bytes = if io.op.has_data() { u64::from(io.nr_sectors) << 9 } else { 0 };
        let latency = if io.op == Op::Read { self.read } else { self.write };
        self.device.admit(bytes, latency, now)
    }
}

impl Service for Modelled {
    fn done_at(&mut self, io: &Job, now: Instant) -> Option<Instant> {
        Some(self.admit(io, now))
    }
}

/// Separate service of reads and writes: a cache serves reads in front of the storage that takes writes.
pub struct Split {
    /// The device that serves reads.
    pub read: Modelled,
    /// The device that serves all other I/O.
    pub write: Modelled,
}

impl Service for Split {
    fn done_at(&mut self, io: &Job, now: Instant) -> Option<Instant> {
        if io.op == Op::Read { self.read.done_at(io, now) } else { self.write.done_at(io, now) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_modelled_device_keeps_its_caps() {
        let speed = Speed { iops: 1000, burst: Duration::ZERO, parallel: 100, ..Speed::default() };
        let mut d = Modelled::new(&speed, Duration::from_us(100), Duration::from_us(200));
        let read = Job { hctx: 0, tag: 0, op: Op::Read, sector: 0, nr_sectors: 8 };
        let first = d.admit(&read, Instant::ZERO);
        assert_eq!(first.as_ns(), 100_000);
        let last = (0..1000).map(|_| d.admit(&read, Instant::ZERO)).last().unwrap();
        assert_eq!(last.since(first).as_ns(), 1_000_000_000);
    }
}
