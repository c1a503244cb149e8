// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the time of a database's transactions goes in a virtual machine, and which thread serves which virtqueue.
//!
//! Guarantees: the parts of a transaction do not overlap. They add up to the transaction, except for I/Os in flight when
//! counting begins or ends. Does not: simulate; [`super::guest`] reports the times.

use serde::Deserialize;
use std::sync::atomic::{AtomicU64, Ordering};

/// How virtqueues are assigned to IOThreads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mapping {
    /// Virtqueue i to IOThread i modulo their number: QEMU's iothread-vq-mapping without lists of virtqueues.
    #[default]
    RoundRobin,
    /// Neighbours together: the first virtqueues to the first IOThread, and so on. The shares differ by at most one (lists of
    /// virtqueues in iothread-vq-mapping).
    Blocks,
}

impl Mapping {
    /// All mappings, with their names in a scenario file.
    pub const ALL: [(&'static str, Mapping); 2] = [("round-robin", Mapping::RoundRobin), ("blocks", Mapping::Blocks)];

    /// The thread, from 0, that serves a virtqueue; `threads` is 1 or more, `queue` below `queues`.
    pub fn thread_of(self, queue: usize, queues: usize, threads: usize) -> usize {
        match self {
            Mapping::RoundRobin => queue % threads,
            Mapping::Blocks => queue * threads.min(queues) / queues,
        }
    }
}

/// A part of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its name.
    pub name: &'static str,
    /// What the time is spent on.
    pub means: &'static str,
}

const fn part(name: &'static str, means: &'static str) -> Part {
    Part { name, means }
}

/// The parts, in the order a transaction meets them.
pub const PARTS: [Part; 9] = [
    part("computing", "the database computes; more users at once slow it down"),
    part("lock", "spinning for a database lock, and holding it; one user at a time"),
    part("CPU wait", "ready to compute, but others use the vCPU or the host's cores"),
    part("guest", "in the guest's block layer, and from the interrupt back to the database"),
    part("turn", "waiting until the thread that serves the virtqueue has finished other requests"),
    part("wake-up", "VM exits, and wake-ups of sleeping hypervisor threads"),
    part("serving", "the hypervisor thread processes the request"),
    part("storage", "at the host's storage, and queued there until the log is durable"),
    part("interrupt", "from the hypervisor thread to the guest's interrupt"),
];

/// Index in [`PARTS`] of the first part that the hypervisor's threads measure.
const SERVED: usize = 4;

/// Time of transactions by part.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TransactionTimes {
    /// Nanoseconds summed over all transactions, in the order of [`PARTS`].
    pub sums_ns: [u64; PARTS.len()],
    /// Number of transactions.
    pub transactions: u64,
}

impl TransactionTimes {
    /// Mean nanoseconds of a transaction; 0 without transactions.
    pub fn mean_ns(&self, part: usize) -> f64 {
        self.sums_ns[part] as f64 / self.transactions.max(1) as f64
    }
}

/// What the hypervisor's threads did, summed over requests.
#[derive(Debug, Default)]
pub(super) struct Served {
    requests: AtomicU64,
    parts: [AtomicU64; PARTS.len() - SERVED],
}

impl Served {
    /// Adds a request: turn, wake-up, serving, storage, interrupt.
    pub(super) fn add(&self, ns: [u64; PARTS.len() - SERVED]) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.parts.iter().zip(ns).for_each(|(sum, ns)| {
            sum.fetch_add(ns, Ordering::Relaxed);
        });
    }

    fn mean(&self, i: usize) -> f64 {
        self.parts[i].load(Ordering::Relaxed) as f64 / self.requests.load(Ordering::Relaxed).max(1) as f64
    }
}

/// Sums of what the users measured.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TransactionTotals {
    /// Number of transactions.
    pub(super) transactions: u64,
    /// Their computing time as planned. Time beyond the plan is `cpu_wait_ns`.
    pub(super) compute_ns: u64,
    /// Spinning for the lock, and holding it.
    pub(super) lock_ns: u64,
    pub(super) cpu_wait_ns: u64,
    /// Their I/Os; `io_ns` is the time from before submission until the data was there.
    pub(super) ios: u64,
    pub(super) io_ns: u64,
}

impl TransactionTotals {
    pub(super) fn add(&mut self, other: &TransactionTotals) {
        self.transactions += other.transactions;
        self.compute_ns += other.compute_ns;
        self.lock_ns += other.lock_ns;
        self.cpu_wait_ns += other.cpu_wait_ns;
        self.ios += other.ios;
        self.io_ns += other.io_ns;
    }

    /// Splits the I/O time by the hypervisor's mean share of each I/O.
    pub(super) fn with(&self, served: &Served) -> TransactionTimes {
        let mut sums_ns = [0; PARTS.len()];
        sums_ns[0] = self.compute_ns;
        sums_ns[1] = self.lock_ns;
        sums_ns[2] = self.cpu_wait_ns;
        for (i, sum_ns) in sums_ns[SERVED..].iter_mut().enumerate() {
            *sum_ns = (served.mean(i) * self.ios as f64) as u64;
        }
        sums_ns[SERVED - 1] = self.io_ns.saturating_sub(sums_ns[SERVED..].iter().sum());
        TransactionTimes { sums_ns, transactions: self.transactions }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_virtqueue_has_one_thread_and_shares_are_even() {
        for (queues, threads) in [(1, 1), (1, 4), (7, 3), (96, 4), (96, 5), (4, 4), (3, 8)] {
            for (name, mapping) in Mapping::ALL {
                let mut of = vec![0; threads];
                (0..queues).for_each(|q| of[mapping.thread_of(q, queues, threads)] += 1);
                let used: Vec<usize> = of.iter().copied().filter(|n| *n > 0).collect();
                assert_eq!(used.len(), threads.min(queues), "{name} {queues} {threads}: {of:?}");
                let (least, most) = (used.iter().min().unwrap(), used.iter().max().unwrap());
                assert!(most - least <= 1, "{name} {queues} {threads}: {of:?}");
            }
        }
        let of = |m: Mapping| (0..8).map(|q| m.thread_of(q, 8, 4)).collect::<Vec<_>>();
        assert_eq!(of(Mapping::RoundRobin), [0, 1, 2, 3, 0, 1, 2, 3]);
        assert_eq!(of(Mapping::Blocks), [0, 0, 1, 1, 2, 2, 3, 3]);
    }

    #[test]
    fn parts_add_up_to_what_was_lived() {
        let served = Served::default();
        served.add([10, 20, 5, 60, 4]);
        served.add([30, 0, 5, 60, 4]);
        let lived = TransactionTotals {
            transactions: 2,
            compute_ns: 1000,
            lock_ns: 30,
            cpu_wait_ns: 40,
            ios: 4,
            io_ns: 4 * 120,
        };
        let times = lived.with(&served);
        assert_eq!(times.sums_ns, [1000, 30, 40, 480 - 4 * 99, 80, 40, 20, 240, 16]);
        assert_eq!(times.sums_ns.iter().sum::<u64>(), 1000 + 30 + 40 + 480);
        assert_eq!((times.mean_ns(0), TransactionTimes::default().mean_ns(0)), (500.0, 0.0));
    }
}
