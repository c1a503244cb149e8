// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How long a simulated device takes: when a request that is issued now will complete.
//!
//! Guarantees: deterministic for a seed; a device with one unit completes nothing faster than its units can work; a capped
//! disk never exceeds its caps over any time longer than its burst. Does not do: data (`media`), faults (`disk`).
//! Sources of the shapes: the model driver of the host crate (caps); a seek grows with the root of its distance (Ruemmler
//! and Wilkes, An Introduction to Disk Drive Modeling, 1994).

use crate::rng::Rng;
use blk::bio::Op;

/// A kind of device.
#[derive(Clone, Debug)]
pub enum Service {
    /// Any time from 1 to `max_ns`, one in sixteen up to 50 times longer: latency spikes, and every order of completion.
    Any {
        /// Longest time that is not a spike.
        max_ns: u64,
    },
    /// Every request takes the same time, however many there are.
    Ideal {
        /// The time of a request.
        ns: u64,
    },
    /// Flash: an address belongs to one of several units, each of which serves one request at a time.
    Ssd {
        /// Units that work in parallel.
        units: u32,
        /// Time of a read.
        read_ns: u64,
        /// Time of a write, a discard or a flush.
        write_ns: u64,
    },
    /// A rotating disk: one head.
    Hdd {
        /// Time of a seek over the whole disk. A shorter seek takes the square root of its share of the distance.
        full_seek_ns: u64,
        /// Time of one turn. The wait for the sector is a random part of it.
        rotation_ns: u64,
        /// Time to transfer one sector.
        sector_ns: u64,
    },
    /// A provisioned cloud disk: a fixed latency behind caps.
    Capped {
        /// Latency of a request that no cap holds back.
        latency_ns: u64,
        /// Requests per second.
        iops: u64,
        /// Sectors per second.
        sectors_per_sec: u64,
    },
    /// An array with a cache in front of spindles.
    Array {
        /// Reads of a thousand that hit the cache; all writes go to the cache.
        hit_per_mille: u32,
        /// Time of a hit.
        hit_ns: u64,
        /// Spindles, each serving one request at a time.
        spindles: u32,
        /// Time of a miss.
        miss_ns: u64,
    },
}

/// The state of a device: what it is busy with.
#[derive(Clone, Debug)]
pub struct Device {
    service: Service,
    /// When each unit (or spindle, or the head) is free.
    free_at: Vec<u64>,
    head: u64,
    /// When the caps admit the next request.
    next_io: u64,
    next_sector: u64,
}

/// Consecutive sectors of one flash unit or spindle.
const STRIPE_SECTORS: u64 = 8;

impl Device {
    /// An idle device.
    pub fn new(service: Service) -> Device {
        let units = match &service {
            Service::Ssd { units, .. } => *units,
            Service::Array { spindles, .. } => *spindles,
            _ => 1,
        };
        assert!(units > 0, "a device needs a unit");
        Device { service, free_at: vec![0; units as usize], head: 0, next_io: 0, next_sector: 0 }
    }

    /// The kind of device.
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// Returns when a request issued at `now` completes: always after `now`.
    pub fn done_at(&mut self, rng: &mut Rng, capacity: u64, now: u64, op: Op, sector: u64, nr: u32) -> u64 {
        match self.service.clone() {
            Service::Any { max_ns } => {
                let d = 1 + rng.below(max_ns);
                now + if rng.below(16) == 0 { d * (1 + rng.below(50)) } else { d }
            }
            Service::Ideal { ns } => now + ns.max(1),
            Service::Ssd { read_ns, write_ns, .. } => {
                let unit = (sector / STRIPE_SECTORS) as usize % self.free_at.len();
                self.occupy(unit, now, if op == Op::Read { read_ns } else { write_ns })
            }
            Service::Hdd { full_seek_ns, rotation_ns, sector_ns } => {
                let far = self.head.abs_diff(sector);
                let seek =
                    (full_seek_ns as u128 * u128::from((far * 1_000_000 / capacity.max(1)).isqrt()) / 1000) as u64;
                // The sector directly after the last one is under the head without a wait.
                let turn = if far == 0 { 0 } else { rng.below(rotation_ns.max(1)) };
                self.head = sector + u64::from(nr);
                self.occupy(0, now, seek + turn + sector_ns * u64::from(nr))
            }
            Service::Capped { latency_ns, iops, sectors_per_sec } => {
                let start = now.max(self.next_io).max(self.next_sector);
                self.next_io = start + 1_000_000_000 / iops.max(1);
                self.next_sector = start + u64::from(nr) * 1_000_000_000 / sectors_per_sec.max(1);
                start + latency_ns.max(1)
            }
            Service::Array { hit_per_mille, hit_ns, miss_ns, .. } => {
                if op != Op::Read || rng.per_mille(hit_per_mille) {
                    return now + hit_ns.max(1);
                }
                let spindle = (sector / STRIPE_SECTORS) as usize % self.free_at.len();
                self.occupy(spindle, now, miss_ns)
            }
        }
    }

    fn occupy(&mut self, unit: usize, now: u64, ns: u64) -> u64 {
        let done = now.max(self.free_at[unit]) + ns.max(1);
        self.free_at[unit] = done;
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    fn reads(service: Service, at: &[(u64, u64)]) -> Vec<u64> {
        let (mut device, mut rng) = (Device::new(service), Rng::new(1));
        at.iter().map(|(now, sector)| device.done_at(&mut rng, 1 << 20, *now, Op::Read, *sector, 8)).collect()
    }

    #[test]
    fn a_flash_unit_serves_one_request_at_a_time() {
        let ssd = Service::Ssd { units: 2, read_ns: 80 * US, write_ns: 20 * US };
        assert_eq!(reads(ssd, &[(0, 0), (0, 8), (0, 16), (200 * US, 0)]), [80 * US, 80 * US, 160 * US, 280 * US]);
    }

    #[test]
    fn seek_time_grows_with_distance_and_is_zero_sequentially() {
        let hdd = Service::Hdd { full_seek_ns: 16_000 * US, rotation_ns: 1, sector_ns: US };
        let done = reads(hdd, &[(0, 0), (0, 8), (0, 8 + 8 + (1 << 18))]);
        assert_eq!(done[0], 8 * US);
        assert_eq!(done[1] - done[0], 8 * US, "the next sector");
        assert_eq!(done[2] - done[1], 8_000 * US + 8 * US, "a quarter of the way takes half the time of all of it");
    }

    #[test]
    fn caps_space_what_they_admit() {
        let disk = |iops, sectors_per_sec| Service::Capped { latency_ns: 100 * US, iops, sectors_per_sec };
        assert_eq!(reads(disk(50_000, 1 << 40), &[(0, 0); 3]), [100 * US, 120 * US, 140 * US]);
        assert_eq!(reads(disk(1_000_000, 80_000), &[(0, 0); 3]), [100 * US, 200 * US, 300 * US]);
    }

    #[test]
    fn a_cache_answers_its_part_of_the_reads_and_every_write() {
        let array = Service::Array { hit_per_mille: 700, hit_ns: 1, spindles: 1000, miss_ns: 5_000_000 };
        let (mut device, mut rng) = (Device::new(array), Rng::new(7));
        let hits = (0..10_000u64).filter(|i| {
            let now = i * 10_000_000;
            device.done_at(&mut rng, 1 << 20, now, Op::Read, i * 8, 8) == now + 1
        });
        let hits = hits.count();
        assert!((6_850..=7_150).contains(&hits), "{hits} of 10000");
        assert_eq!(device.done_at(&mut rng, 1 << 20, 5, Op::Write, 0, 8), 6);
    }
}
