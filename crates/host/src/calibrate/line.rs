// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cache lines: an atomic operation on a local line, and one on a line that moves between two CPUs.
//!
//! Guarantees: the two CPUs of a pair are as far apart as the topology says. Does not do: distinguish lines that were written from lines
//! that were only read; a lock's line is always written.

use super::{CostKind, Probe, per_op};
use crate::clock;
use crate::process::pin_thread;
use blk::cpumap::CpuTopology;
use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// For each distance two CPUs that have it, the first CPU of the process being one of them where that can be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pairs {
    pub core: Option<(u32, u32)>,
    pub socket: Option<(u32, u32)>,
    pub remote: Option<(u32, u32)>,
    cpus: usize,
}

impl Pairs {
    /// Why there is no probe for `what`.
    pub fn why_not(&self, what: CostKind) -> String {
        match what {
            _ if self.cpus < 2 => "this process has one CPU; two are needed".into(),
            CostKind::LineCore => "no two CPUs of this process are threads of one core".into(),
            CostKind::LineSocket => "no two CPUs of this process are cores of one node".into(),
            CostKind::LineRemote => "all CPUs of this process are on one node".into(),
            _ => "it is not measured here".into(),
        }
    }
}

/// The pairs among `cpus`.
pub(super) fn pairs(topology: &CpuTopology, cpus: &[u32]) -> Pairs {
    let mut p = Pairs { cpus: cpus.len(), ..Pairs::default() };
    let known = |cpu: u32| cpu < u32::from(topology.nr_cpus);
    for (i, &a) in cpus.iter().enumerate() {
        for &b in cpus[i + 1..].iter().filter(|b| known(a) && known(**b)) {
            let same = |of: &[u16]| of[a as usize] == of[b as usize];
            let pair = match (same(&topology.core_of), same(&topology.node_of)) {
                (true, _) => &mut p.core,
                (_, true) => &mut p.socket,
                _ => &mut p.remote,
            };
            pair.get_or_insert((a, b));
        }
        if p.core.is_some() && p.socket.is_some() && p.remote.is_some() {
            break;
        }
    }
    p
}

pub(super) fn probes(first: u32, pairs: &Pairs) -> Vec<Probe> {
    let mut all = vec![Probe {
        gives: vec![CostKind::Atomic],
        cpus: vec![first],
        run: Box::new(|samples| {
            let word = CachePadded::new(AtomicU32::new(0));
            let one = || {
                // Pairs with: probes, itself: the operation is what is measured
                std::hint::black_box(&*word).fetch_add(1, Ordering::AcqRel);
            };
            samples(CostKind::Atomic, per_op(50_000, one));
            Ok(())
        }),
    }];
    let each =
        [(CostKind::LineCore, pairs.core), (CostKind::LineSocket, pairs.socket), (CostKind::LineRemote, pairs.remote)];
    for (what, pair) in each {
        let Some((a, b)) = pair else { continue };
        all.push(Probe {
            gives: vec![what],
            cpus: vec![a, b],
            run: Box::new(move |samples| {
                if let Some(ns) = ping_pong(a, b)? {
                    samples(what, ns);
                }
                Ok(())
            }),
        });
    }
    all
}

/// Times that a line goes to and fro in a sample.
const TRIPS: u32 = 1_000;

/// Time for a line to get from one CPU to the other, nanoseconds; `None`: another process had the CPUs.
fn ping_pong(a: u32, b: u32) -> Result<Option<f64>, String> {
    let turns = PingPong::new();
    let side = |cpu: u32, parity: u32| {
        let pinned = pin_thread(&[cpu]).map_err(|e| e.to_string());
        let mut begun = clock::now();
        for n in (parity..2 * TRIPS).step_by(2) {
            if !turns.wait(n) {
                return pinned.map(|()| None);
            }
            if n < 4 {
                // The other one is there when it answers for the first time.
                begun = clock::now();
            }
            turns.give(n + 1);
        }
        let ns = clock::now().since(begun).as_ns() as f64 / f64::from(2 * (TRIPS - 2));
        pinned.map(|()| Some(ns))
    };
    std::thread::scope(|s| {
        let (me, other) = (s.spawn(|| side(a, 0)), s.spawn(|| side(b, 1)));
        other.join().expect("it counts only")?;
        me.join().expect("it counts only")
    })
}

/// Spins between two checks whether it takes too long.
const SPINS: u32 = 1_000;
/// A sample of two threads takes no longer: one that does was not alone on its CPUs.
pub(super) const LIMIT_NS: u64 = 20_000_000;

/// Whose turn it is, of two threads that count; until one of them has waited too long.
pub(super) struct PingPong {
    word: CachePadded<AtomicU32>,
    is_over: CachePadded<AtomicBool>,
    until_ns: u64,
}

impl PingPong {
    pub fn new() -> PingPong {
        let until_ns = clock::now().as_ns() + LIMIT_NS;
        PingPong { word: CachePadded::default(), is_over: CachePadded::default(), until_ns }
    }

    /// Waits for turn `n`; false: it will not come any more.
    #[inline]
    pub fn wait(&self, n: u32) -> bool {
        let mut spins = 0;
        // Pairs with: PingPong::give
        while self.word.load(Ordering::Acquire) != n {
            spins += 1;
            if spins % SPINS == 0 {
                // Pairs with: PingPong::end
                if self.is_over.load(Ordering::Acquire) || clock::now().as_ns() > self.until_ns {
                    self.end();
                    return false;
                }
                // The other thread may need the CPU.
                std::thread::yield_now();
            }
            core::hint::spin_loop();
        }
        true
    }

    /// It is turn `n` now.
    #[inline]
    pub fn give(&self, n: u32) {
        // Pairs with: PingPong::wait
        self.word.store(n, Ordering::Release);
    }

    /// No thread is to wait any more.
    pub fn end(&self) {
        // Pairs with: PingPong::is_over
        self.is_over.store(true, Ordering::Release);
    }

    pub fn is_over(&self) -> bool {
        // Pairs with: PingPong::end
        self.is_over.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_found_at_each_distance() {
        let p = pairs(&CpuTopology::symmetric(2, 2, 2), &[0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!((p.core, p.socket, p.remote), (Some((0, 4)), Some((0, 1)), Some((0, 2))));
        let one_node = pairs(&CpuTopology::symmetric(1, 2, 1), &[0, 1]);
        assert_eq!((one_node.core, one_node.socket, one_node.remote), (None, Some((0, 1)), None));
        assert!(one_node.why_not(CostKind::LineRemote).contains("one node"));
        let outside = pairs(&CpuTopology::symmetric(1, 2, 1), &[5, 6]);
        assert_eq!(outside.socket, None, "CPUs that the topology does not have");
    }
}
