// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Path selectors: which of a group's usable paths gets the next request.
//!
//! Guarantees: the kernel's rules and arguments, one file each. Among equally good paths, a hardware queue takes the
//! one that it chose longest ago. (The kernel moves the chosen path to the tail of its list.) There is no lock. All
//! CPUs share the load counter and the latency history of each path; the order of choices belongs to the hardware
//! queue. A reader of the counter may miss the last request. [Starting](Selectors::started) a request adds to the
//! counter, and [ending](Selectors::ended) it subtracts the same.
//!
//! Does not do: know which paths are usable. Sources: drivers/md/dm-ps-*.c (see the files).

mod historical_service_time;
mod io_affinity;
mod queue_length;
mod round_robin;
mod service_time;

pub use historical_service_time::{BASE_WEIGHT, MAX_WEIGHT};
pub use service_time::MAX_THROUGHPUT;

use super::config::MAX_PATHS;
use super::cpu_mask::format_cpu_mask;
use crate::id::CpuId;
use crate::relaxed::FieldU64;
use crate::sync::{AtomicU64, Ordering};
use core::cmp;
use historical_service_time::Weights;
use io_affinity::Affinity;

/// A selector and its arguments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Selector {
    /// Each path in turn.
    RoundRobin,
    /// Fewest requests in flight.
    QueueLength,
    /// Least bytes in flight relative to throughput; the default, as in multipath-tools.
    #[default]
    ServiceTime,
    /// Least expected service time, from the service times of earlier requests.
    HistoricalServiceTime {
        /// Weight of the past, in 1024ths; 0..=[`MAX_WEIGHT`], default [`BASE_WEIGHT`].
        base_weight: u16,
        /// Paths whose averages differ by at most this factor count as equally fast; 0 (the default) turns this rule
        /// off.
        threshold_multiplier: u16,
    },
    /// The path assigned to the submitting CPU.
    IoAffinity,
}

impl Selector {
    /// Returns the kernel's name of the selector.
    pub fn name(&self) -> &'static str {
        match self {
            Selector::RoundRobin => "round-robin",
            Selector::QueueLength => "queue-length",
            Selector::ServiceTime => "service-time",
            Selector::HistoricalServiceTime { .. } => "historical-service-time",
            Selector::IoAffinity => "io-affinity",
        }
    }

    /// Returns the selector's arguments, as in the table.
    pub fn args(&self) -> Vec<u16> {
        match *self {
            Selector::HistoricalServiceTime { base_weight, threshold_multiplier } => {
                vec![base_weight, threshold_multiplier]
            }
            _ => Vec::new(),
        }
    }
}

/// A selector's arguments for one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathArgs {
    /// service-time: relative throughput, 0..=[`MAX_THROUGHPUT`], default 1.
    pub throughput: u8,
    /// io-affinity: the CPUs assigned to the path.
    pub cpus: Vec<u16>,
}

impl Default for PathArgs {
    fn default() -> Self {
        PathArgs { throughput: 1, cpus: Vec::new() }
    }
}

/// The order in which one hardware queue has chosen paths.
#[derive(Debug)]
pub(super) struct Turns {
    last: FieldU64,
    clock: FieldU64,
    /// When each path was chosen, by `clock`.
    chosen: [FieldU64; MAX_PATHS],
}

impl Default for Turns {
    fn default() -> Self {
        let turns = Turns {
            last: FieldU64::default(),
            clock: FieldU64::default(),
            chosen: core::array::from_fn(|_| FieldU64::default()),
        };
        // Path 0 is chosen first.
        turns.last.set(MAX_PATHS as u64 - 1);
        turns
    }
}

/// The data of a disk's selectors about its paths, by path number.
pub(super) struct Selectors {
    /// Requests in flight, or bytes in flight for service-time.
    loads: [AtomicU64; MAX_PATHS],
    /// service-time.
    throughput: [FieldU64; MAX_PATHS],
    /// For historical-service-time, in ns; the average in fixed point.
    average: [FieldU64; MAX_PATHS],
    last_finish: [FieldU64; MAX_PATHS],
    stale_after: [FieldU64; MAX_PATHS],
}

/// A group's selector, ready for use.
#[derive(Clone, Debug)]
pub(super) enum Policy {
    RoundRobin,
    QueueLength,
    ServiceTime,
    HistoricalServiceTime { weights: Box<Weights>, threshold: u16 },
    IoAffinity(Affinity),
}

impl Policy {
    pub(super) fn new(selector: Selector, paths: &[(u8, Vec<u16>)], node_of: &[u16]) -> Policy {
        match selector {
            Selector::RoundRobin => Policy::RoundRobin,
            Selector::QueueLength => Policy::QueueLength,
            Selector::ServiceTime => Policy::ServiceTime,
            Selector::HistoricalServiceTime { base_weight, threshold_multiplier } => Policy::HistoricalServiceTime {
                weights: Box::new(Weights::new(base_weight.min(MAX_WEIGHT))),
                threshold: threshold_multiplier,
            },
            Selector::IoAffinity => Policy::IoAffinity(Affinity::new(paths, node_of)),
        }
    }
}

fn fields() -> [FieldU64; MAX_PATHS] {
    core::array::from_fn(|_| FieldU64::default())
}

impl Selectors {
    pub(super) fn new() -> Selectors {
        Selectors {
            loads: core::array::from_fn(|_| AtomicU64::new(0)),
            throughput: fields(),
            average: fields(),
            last_finish: fields(),
            stale_after: fields(),
        }
    }

    /// Adds a path at an unused number. Its statistics start anew.
    pub(super) fn add(&self, path: usize, throughput: u8) {
        self.throughput[path].set(throughput.min(MAX_THROUGHPUT).into());
        self.average[path].set(historical_service_time::FIRST_AVERAGE);
        self.last_finish[path].set(0);
        self.stale_after[path].set(0);
    }

    #[inline(always)]
    fn load(&self, path: usize) -> u64 {
        self.loads[path].load(Ordering::Relaxed)
    }

    /// Chooses a path of `usable`, which is not empty, for a request of this many bytes.
    #[inline]
    pub(super) fn select(
        &self,
        policy: &Policy,
        usable: u64,
        turns: &Turns,
        bytes: u32,
        cpu: CpuId,
        now: u64,
    ) -> usize {
        if usable.is_power_of_two() {
            return usable.trailing_zeros() as usize;
        }
        match policy {
            Policy::RoundRobin => {
                let next = round_robin::next(usable, turns.last.get() as u32 & 63);
                turns.last.set(next.into());
                next as usize
            }
            Policy::QueueLength => turns.best(usable, |a, b| queue_length::compare(*a, *b), |p| self.load(p)),
            Policy::ServiceTime => {
                let path = |p: usize| service_time::PathLoad {
                    bytes: self.load(p),
                    throughput: self.throughput[p].get() as u8,
                };
                turns.best(usable, |a, b| service_time::compare(*a, *b, bytes.into()), path)
            }
            Policy::HistoricalServiceTime { threshold, .. } => {
                let path = |p: usize| historical_service_time::PathHistory {
                    average: self.average[p].get(),
                    stale_after: self.stale_after[p].get(),
                    outstanding: self.load(p),
                };
                turns.best(usable, |a, b| historical_service_time::compare(*a, *b, now, *threshold), path)
            }
            Policy::IoAffinity(affinity) => affinity.preferred(usable, cpu).trailing_zeros() as usize,
        }
    }

    /// Adds a request of this many bytes to the load of a path.
    #[inline(always)]
    pub(super) fn started(&self, policy: &Policy, path: usize, bytes: u32) {
        let n = policy.weight(bytes);
        if n > 0 {
            self.loads[path].fetch_add(n, Ordering::Relaxed);
        }
    }

    /// Undoes [`Selectors::started`] for a request that the path did not accept.
    #[inline(always)]
    pub(super) fn undone(&self, policy: &Policy, path: usize, bytes: u32) {
        let n = policy.weight(bytes);
        if n > 0 {
            self.loads[path].fetch_sub(n, Ordering::Relaxed);
        }
    }

    /// Subtracts a request that the path has completed, and updates the history. `valid`: number of usable paths of its
    /// group.
    #[inline(always)]
    pub(super) fn ended(&self, policy: &Policy, path: usize, bytes: u32, start: u64, now: u64, valid: u8) {
        self.undone(policy, path, bytes);
        if let Policy::HistoricalServiceTime { weights, .. } = policy {
            // If two CPUs do this at the same time, one sample may be lost.
            let sample = now.saturating_sub(start.max(self.last_finish[path].get()));
            let average = weights.averaged(self.average[path].get(), sample);
            self.average[path].set(average);
            self.last_finish[path].set(now);
            self.stale_after[path].set(historical_service_time::stale_after(now, average, valid));
        }
    }

    /// Returns the numbers that `dmsetup status` shows after a path's fail count, each followed by a space.
    pub(super) fn info(&self, policy: &Policy, path: usize, cpus: &[u16]) -> String {
        match policy {
            Policy::RoundRobin => String::new(),
            Policy::QueueLength => format!("{} ", self.load(path)),
            Policy::ServiceTime => format!("{} {} ", self.load(path), self.throughput[path].get()),
            Policy::HistoricalServiceTime { .. } => {
                format!("{} {} {} ", self.average[path].get(), self.load(path), self.stale_after[path].get())
            }
            Policy::IoAffinity(_) => format!("{} ", format_cpu_mask(cpus)),
        }
    }
}

impl Policy {
    #[inline(always)]
    fn weight(&self, bytes: u32) -> u64 {
        match self {
            Policy::QueueLength | Policy::HistoricalServiceTime { .. } => 1,
            Policy::ServiceTime => bytes.into(),
            Policy::RoundRobin | Policy::IoAffinity(_) => 0,
        }
    }

    /// How many numbers [`Selectors::info`] returns.
    pub(super) fn nr_info(&self) -> usize {
        match self {
            Policy::RoundRobin => 0,
            Policy::QueueLength | Policy::IoAffinity(_) => 1,
            Policy::ServiceTime => 2,
            Policy::HistoricalServiceTime { .. } => 3,
        }
    }
}

impl Turns {
    /// Returns the best path of `usable`; among equal paths, the one chosen longest ago. Records the path as chosen
    /// last.
    #[inline(always)]
    fn best<T>(&self, mut usable: u64, compare: impl Fn(&T, &T) -> cmp::Ordering, of: impl Fn(usize) -> T) -> usize {
        let mut best = usable.trailing_zeros() as usize;
        let mut best_is = of(best);
        usable &= usable - 1;
        while usable != 0 {
            let p = usable.trailing_zeros() as usize;
            usable &= usable - 1;
            let is = of(p);
            let wins = match compare(&is, &best_is) {
                cmp::Ordering::Less => true,
                cmp::Ordering::Equal => self.chosen[p].get() < self.chosen[best].get(),
                cmp::Ordering::Greater => false,
            };
            if wins {
                (best, best_is) = (p, is);
            }
        }
        self.clock.add(1);
        self.chosen[best].set(self.clock.get());
        best
    }
}

#[cfg(test)]
mod tests;
