// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An array with a cache: hits and cached writes take the time of the cache; misses go on to the back end, and destaging
//! limits writes once the write cache is full.
//!
//! Guarantees: with the same times, a larger share of hits never gives fewer I/Os. The share holds over a run; which reads
//! hit follows from the seed. Does not do: know which blocks are cached, so a job that reads few blocks again and again has
//! the hits of any other; misses and destaging do not compete for the back end.

use super::{Job, Modelled, Service};
use crate::rng::Rng;
use blk::bio::Op;
use blk::driver::model::{Device, Speed, TokenBucket};
use blk::time::{Duration, Instant};
use serde::Deserialize;

/// What is behind the cache of an array.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArraySpec {
    /// Share of the reads that the cache serves, percent.
    pub read_hit_pct: f64,
    /// Time of a miss in the back end, in addition to the time of a hit, microseconds.
    pub miss_us: f64,
    /// Misses per second that the back end serves at most; 0 = no cap.
    #[serde(default)]
    pub backend_iops: u64,
    /// Misses that the back end serves at once.
    #[serde(default = "backend_parallel")]
    pub backend_parallel: u32,
    /// Writes that the cache holds, millions of bytes.
    #[serde(default)]
    pub write_cache_mb: f64,
    /// Rate at which cached writes go to the back end, millions of bytes per second; 0 = as fast as they come.
    #[serde(default)]
    pub destage_mb: f64,
}

const fn backend_parallel() -> u32 {
    65_536
}

impl ArraySpec {
    /// Checks the figures. The error is the name of the field that breaks a rule, and the rule.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let fractions = [
            ("read_hit_pct", self.read_hit_pct, 100.0),
            ("miss_us", self.miss_us, 1e9),
            ("write_cache_mb", self.write_cache_mb, 1e9),
            ("destage_mb", self.destage_mb, 1e9),
        ];
        for (name, value, most) in fractions {
            if !(0.0..=most).contains(&value) {
                return Err((name, format!("{name} = {value}: must be 0..={most}")));
            }
        }
        let parallel = self.backend_parallel;
        if parallel == 0 || parallel > backend_parallel() {
            return Err(("backend_parallel", format!("backend_parallel = {parallel}: must be 1..=65536")));
        }
        if self.destage_mb == 0.0 && self.write_cache_mb > 0.0 {
            let text = "write_cache_mb: a cache that is emptied at once is never full; set destage_mb, too";
            return Err(("write_cache_mb", text.into()));
        }
        Ok(())
    }

    /// The share of one of `luns` LUNs.
    #[must_use]
    pub fn shared(&self, luns: u64) -> ArraySpec {
        ArraySpec {
            backend_iops: self.backend_iops.div_ceil(luns),
            write_cache_mb: self.write_cache_mb / luns as f64,
            destage_mb: self.destage_mb / luns as f64,
            ..*self
        }
    }
}

/// See the module's text.
pub struct Array {
    /// The cache and the controller: serves hits and takes writes.
    cache: Modelled,
    backend: Device,
    miss: Duration,
    /// Bytes of cached writes, which leave the cache at the rate of destaging.
    destage: TokenBucket,
    read_hit_pct: f64,
    rng: Rng,
}

impl Array {
    /// An array whose cache has the times and caps of `cache`. The figures have been checked.
    pub fn new(spec: &ArraySpec, cache: Modelled, jitter_pct: u32, seed: u64) -> Array {
        let us = |us: f64| Duration::from_ns((us * 1e3) as u64);
        let (iops, parallel) = (spec.backend_iops, spec.backend_parallel);
        let speed = Speed { jitter_pct, seed, iops, parallel, ..Speed::default() };
        // The cache is full after as many bytes as destaging moves in this time.
        let full_us = if spec.destage_mb > 0.0 { 1e6 * spec.write_cache_mb / spec.destage_mb } else { 0.0 };
        Array {
            cache,
            backend: Device::new(&speed),
            miss: us(spec.miss_us),
            destage: TokenBucket::new((spec.destage_mb * 1e6) as u64, us(full_us)),
            read_hit_pct: spec.read_hit_pct,
            rng: Rng::new(seed),
        }
    }

    fn is_hit(&mut self) -> bool {
        const PARTS: u64 = 1 << 32;
        (self.rng.below(PARTS) as f64) < self.read_hit_pct / 100.0 * PARTS as f64
    }
}

impl Service for Array {
    fn done_at(&mut self, io: &Job, now: Instant) -> Option<Instant> {
        Some(match io.op {
            Op::Read if self.is_hit() => self.cache.admit(io, now),
            Op::Read => {
                let looked_up = self.cache.admit(io, now);
                self.backend.admit(0, self.miss, looked_up)
            }
            Op::Write => {
                let has_room = self.destage.take(u64::from(io.nr_sectors) << 9, now);
                self.cache.admit(io, has_room)
            }
            _ => self.cache.admit(io, now),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: ArraySpec = ArraySpec {
        read_hit_pct: 50.0,
        miss_us: 5000.0,
        backend_iops: 2000,
        backend_parallel: 65_536,
        write_cache_mb: 100.0,
        destage_mb: 50.0,
    };

    fn array(spec: &ArraySpec) -> Array {
        spec.check().expect("good figures");
        let us = Duration::from_us(200);
        Array::new(spec, Modelled::new(&Speed::default(), us, us), 0, 1)
    }

    /// Keeps `depth` I/Os in flight for `ms`. Returns the times of their completions.
    fn run(spec: &ArraySpec, op: Op, depth: u32, sectors: u32, ms: u64) -> Vec<u64> {
        let mut array = array(spec);
        let mut due = std::collections::BinaryHeap::new();
        let job = |tag| Job { hctx: 0, tag, op, sector: 0, nr_sectors: sectors };
        let mut submit =
            |tag, now| array.done_at(&job(tag), Instant::from_ns(now)).expect("arrays know at once").as_ns();
        (0..depth).for_each(|tag| due.push(std::cmp::Reverse((submit(tag, 0), tag))));
        let mut done = Vec::new();
        while let Some(std::cmp::Reverse((at, tag))) =
            due.pop().filter(|std::cmp::Reverse((at, _))| *at < ms * 1_000_000)
        {
            done.push(at);
            due.push(std::cmp::Reverse((submit(tag, at), tag)));
        }
        done
    }

    #[test]
    fn more_hits_give_more_iops_at_the_same_times() {
        let iops = |pct: f64| run(&ArraySpec { read_hit_pct: pct, ..SPEC }, Op::Read, 64, 16, 2000).len() as f64 / 2.0;
        let all = [0.0, 50.0, 90.0, 99.0, 100.0].map(iops);
        assert!(all.is_sorted(), "{all:?}");
        // The back end serves 2000 misses a second: so many I/Os with no hits, and twice or ten times as many.
        for (got, want) in all.into_iter().zip([2000.0, 4000.0, 20_000.0]) {
            assert!((got / want - 1.0).abs() < 0.06, "{got} for {want}");
        }
        assert!((all[4] / (64.0 / 200e-6) - 1.0).abs() < 0.02, "hits alone are limited by the cache: {all:?}");
    }

    #[test]
    fn a_full_write_cache_is_as_slow_as_destaging() {
        let done = run(&SPEC, Op::Write, 64, 128, 10_000);
        let mb = |from: u64, to: u64| {
            let n = done.iter().filter(|at| (from..to).contains(&(**at / 1_000_000))).count();
            n as f64 * 65_536.0 / 1e3 / (to - from) as f64
        };
        assert!(mb(0, 5) > 5000.0, "the cache takes writes at its own rate: {} MB/s", mb(0, 5));
        assert!((mb(1000, 10_000) / 50.0 - 1.0).abs() < 0.02, "{} MB/s", mb(1000, 10_000));
        let all = done.len() as f64 * 0.065_536;
        assert!((all - (100.0 + 500.0)).abs() < 10.0, "{all} MB: a full cache, and ten seconds of destaging");
    }

    #[test]
    fn broken_rules_name_the_field() {
        let e = |spec: ArraySpec| spec.check().unwrap_err();
        assert_eq!(e(ArraySpec { read_hit_pct: 101.0, ..SPEC }).1, "read_hit_pct = 101: must be 0..=100");
        assert_eq!(e(ArraySpec { destage_mb: 0.0, ..SPEC }).0, "write_cache_mb");
        assert_eq!(e(ArraySpec { backend_parallel: 0, ..SPEC }).1, "backend_parallel = 0: must be 1..=65536");
    }
}
