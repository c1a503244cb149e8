// SPDX-License-Identifier: Apache-2.0 OR MIT
//! bfq's tunables, and a copy of them that stays the same for one call into the elevator.
//!
//! Guarantees: `slice_idle` (ms) and `slice_idle_us` are one value in two units; whichever is set last counts. Names,
//! units and defaults are the kernel's (Documentation/block/bfq-iosched.rst); values out of range are refused.

use crate::elevator::interface::{ElvCx, Tunable};
use crate::elevator::tunables::{INT_MAX, TunableDef, TunableSet};
use crate::time::{Duration, Instant};

static TUNABLES: [TunableDef; 10] = [
    TunableDef { name: "slice_idle", default: 8, min: 0, max: INT_MAX / 1000, unit: "ms" },
    TunableDef { name: "slice_idle_us", default: 8000, min: 0, max: INT_MAX, unit: "us" },
    TunableDef { name: "fifo_expire_sync", default: 125, min: 0, max: INT_MAX, unit: "ms" },
    TunableDef { name: "fifo_expire_async", default: 250, min: 0, max: INT_MAX, unit: "ms" },
    TunableDef { name: "back_seek_max", default: 16 * 1024, min: 0, max: INT_MAX, unit: "KiB" },
    TunableDef { name: "back_seek_penalty", default: 2, min: 1, max: INT_MAX, unit: "" },
    TunableDef { name: "max_budget", default: 0, min: 0, max: INT_MAX, unit: "sectors" },
    TunableDef { name: "timeout_sync", default: 125, min: 1, max: INT_MAX, unit: "ms" },
    TunableDef { name: "strict_guarantees", default: 0, min: 0, max: 1, unit: "" },
    TunableDef { name: "low_latency", default: 1, min: 0, max: 1, unit: "" },
];
const SLICE_IDLE: usize = 0;
const SLICE_IDLE_US: usize = 1;
const FIFO_EXPIRE_SYNC: usize = 2;
const FIFO_EXPIRE_ASYNC: usize = 3;
const BACK_SEEK_MAX: usize = 4;
const BACK_SEEK_PENALTY: usize = 5;
const MAX_BUDGET: usize = 6;
const TIMEOUT_SYNC: usize = 7;
const STRICT_GUARANTEES: usize = 8;
const LOW_LATENCY: usize = 9;

/// The values in effect.
pub(crate) struct BfqTunables(TunableSet<10>);

/// The values that one call uses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) now: Instant,
    /// How long the disk waits for the next request of the queue in service.
    pub(crate) slice_idle: Duration,
    /// Age at which a request is served before its neighbours: async, sync.
    pub(crate) fifo_expire: [Duration; 2],
    /// Longest backward seek in sectors; requests farther back wait for the next sweep.
    pub(crate) back_seek_max: u64,
    /// A sector backwards costs as much as so many forwards.
    pub(crate) back_seek_penalty: u64,
    /// Largest budget in sectors; 0 = from the measured rate.
    pub(crate) max_budget: u32,
    /// Longest turn of a queue.
    pub(crate) timeout: Duration,
    /// One request at the disk at a time, and always wait for the queue in service: fairness at any price.
    pub(crate) strict_guarantees: bool,
    pub(crate) low_latency: bool,
    /// The disk has a head to move.
    pub(crate) rotational: bool,
}

impl BfqTunables {
    pub(crate) fn new() -> BfqTunables {
        BfqTunables(TunableSet::new(&TUNABLES))
    }

    #[inline]
    pub(crate) fn rules(&self, cx: &ElvCx<'_>) -> Rules {
        let get = |i| self.0.get(i);
        Rules {
            now: cx.now,
            slice_idle: Duration::from_us(get(SLICE_IDLE_US)),
            fifo_expire: [Duration::from_ms(get(FIFO_EXPIRE_ASYNC)), Duration::from_ms(get(FIFO_EXPIRE_SYNC))],
            back_seek_max: get(BACK_SEEK_MAX) * 2,
            back_seek_penalty: get(BACK_SEEK_PENALTY),
            max_budget: get(MAX_BUDGET) as u32,
            timeout: Duration::from_ms(get(TIMEOUT_SYNC)),
            strict_guarantees: get(STRICT_GUARANTEES) != 0,
            low_latency: get(LOW_LATENCY) != 0,
            rotational: cx.limits.rotational,
        }
    }

    pub(crate) fn list(&self) -> Vec<Tunable> {
        self.0.list()
    }

    pub(crate) fn set(&self, elevator: &str, name: &str, value: u64) -> Result<(), String> {
        self.0.set(elevator, name, value)?;
        match name {
            "slice_idle" => self.0.put(SLICE_IDLE_US, value * 1000),
            "slice_idle_us" => self.0.put(SLICE_IDLE, value / 1000),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(t: &BfqTunables, name: &str) -> u64 {
        t.list().iter().find(|t| t.name == name).expect("a tunable").value
    }

    #[test]
    fn the_idle_slice_has_two_names() {
        let t = BfqTunables::new();
        assert_eq!((value(&t, "slice_idle"), value(&t, "slice_idle_us")), (8, 8000));
        t.set("bfq", "slice_idle_us", 2500).expect("in range");
        assert_eq!((value(&t, "slice_idle"), value(&t, "slice_idle_us")), (2, 2500));
        t.set("bfq", "slice_idle", 3).expect("in range");
        assert_eq!(value(&t, "slice_idle_us"), 3000);
        let e = t.set("bfq", "slice_idle", INT_MAX).expect_err("microseconds would overflow");
        assert!(e.starts_with("iosched.slice_idle=2147483647: must be 0..=2147483 ms"), "{e}");
        assert_eq!(
            t.set("bfq", "timeout_sync", 0).unwrap_err(),
            "iosched.timeout_sync=0: must be 1..=2147483647 ms (bfq)"
        );
    }
}
