// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The map from (CPU, type of request) to hardware queue, and from a hardware queue to its CPUs.
//!
//! Guarantees: each (CPU, type) has one hardware queue; the queues of a type are numbered without gaps, Default first, then
//! Read, then Poll; a type without queues uses those of Default. Lookups are one load each.
//!
//! Does not do: maps that follow a device's interrupt vectors; changing a map (make a new one while the queue is frozen).
//!
//! Source: Linux block/blk-mq-cpumap.c (blk_mq_map_queues), include/linux/blk-mq.h (struct blk_mq_queue_map).

use super::spread::group_cpus_evenly;
use super::topology::CpuTopology;
use crate::bio::{Op, OpFlags};
use thiserror::Error;

/// Types of hardware queue.
const NR_TYPES: usize = 3;

/// The type of a hardware queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum HctxType {
    /// Requests of all types that have no queues of their own.
    Default = 0,
    /// Plain reads.
    Read = 1,
    /// Requests whose submitter polls for completion.
    Poll = 2,
}

impl HctxType {
    /// All types, in the order of their queues.
    pub const ALL: [HctxType; NR_TYPES] = [HctxType::Default, HctxType::Read, HctxType::Poll];

    /// Returns the queue type of a request: polled I/O, plain reads, everything else. Source: `blk_mq_get_hctx_type`.
    #[inline]
    pub(crate) fn of(op: Op, flags: OpFlags) -> HctxType {
        if flags.contains(OpFlags::POLLED) {
            HctxType::Poll
        } else if op == Op::Read {
            HctxType::Read
        } else {
            HctxType::Default
        }
    }

    /// Returns the lower-case name, as debugfs prints it.
    pub fn name(self) -> &'static str {
        match self {
            HctxType::Default => "default",
            HctxType::Read => "read",
            HctxType::Poll => "poll",
        }
    }
}

/// Why a queue map was rejected.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MapError {
    /// No default queue.
    #[error("default queues=0: must be 1..={nr_cpus} (one per CPU at most); ask for at least one")]
    NoDefaultQueue {
        /// CPUs of the topology.
        nr_cpus: u16,
    },
    /// More queues of one type than CPUs: some would never be used.
    #[error("{} queues={nr_queues}: must be at most {nr_cpus}, the number of CPUs; ask for fewer", .ty.name())]
    TooManyQueues {
        /// The requested type.
        ty: HctxType,
        /// The requested number of queues.
        nr_queues: u16,
        /// CPUs of the topology.
        nr_cpus: u16,
    },
    /// All types together have more queues than a 16-bit number can count.
    #[error("hardware queues of all types together: {0}, must be at most 65535; configure fewer")]
    TooManyInAll(u32),
}

/// See the module header.
#[derive(Clone, Debug)]
pub struct QueueMap {
    nr_cpus: u16,
    nr_queues: [u16; NR_TYPES],
    queue_offset: [u16; NR_TYPES],
    /// Hardware queue of (type, CPU), at type x `nr_cpus` + CPU.
    hctx_of: Box<[u16]>,
    /// CPUs of all hardware queues, one queue after the other.
    cpus: Box<[u16]>,
    /// Where in `cpus` each hardware queue starts, and the end of the last one.
    cpus_at: Box<[u32]>,
}

impl QueueMap {
    /// Spreads the CPUs of `topo` over the queues of each type by `group_cpus_evenly`. `nr_read` and `nr_poll` may be 0.
    ///
    /// # Errors
    /// If `nr_default` is 0, a number is above that of the CPUs, or the sum is above 65535.
    ///
    /// # Panics
    /// If `topo` is not consistent.
    pub fn new(topo: &CpuTopology, nr_default: u16, nr_read: u16, nr_poll: u16) -> Result<QueueMap, MapError> {
        let nr_cpus = topo.nr_cpus;
        let nr_queues = [nr_default, nr_read, nr_poll];
        let queue_offset = check_counts(nr_cpus, nr_queues)?;
        let mut hctx_of = vec![0; NR_TYPES * usize::from(nr_cpus)];
        let mut cpus = Vec::new();
        let mut cpus_at = vec![0];
        for (ty, own) in hctx_of.chunks_exact_mut(usize::from(nr_cpus)).enumerate() {
            // A type without queues makes the same map as Default does, without adding queues.
            let source = if nr_queues[ty] == 0 { HctxType::Default as usize } else { ty };
            for (group, hctx) in group_cpus_evenly(nr_queues[source], topo).iter().zip(queue_offset[source]..) {
                for cpu in group {
                    own[usize::from(*cpu)] = hctx;
                }
                if source == ty {
                    cpus.extend_from_slice(group);
                    cpus_at.push(cpus.len() as u32);
                }
            }
        }
        Ok(QueueMap {
            nr_cpus,
            nr_queues,
            queue_offset,
            hctx_of: hctx_of.into(),
            cpus: cpus.into(),
            cpus_at: cpus_at.into(),
        })
    }

    /// Returns the hardware queue for requests of type `ty` that are submitted on `cpu`.
    ///
    /// # Panics
    /// If `cpu` is not below the number of CPUs.
    #[inline]
    pub fn hctx(&self, cpu: u16, ty: HctxType) -> u16 {
        assert!(cpu < self.nr_cpus, "CPU out of range");
        self.hctx_of[ty as usize * usize::from(self.nr_cpus) + usize::from(cpu)]
    }

    /// Returns the number of hardware queues of all types.
    #[inline]
    pub fn nr_hw_queues(&self) -> u16 {
        self.nr_queues.iter().sum()
    }

    /// Returns the number of hardware queues of one type; 0 if it uses those of Default.
    #[inline]
    pub fn nr_queues(&self, ty: HctxType) -> u16 {
        self.nr_queues[ty as usize]
    }

    /// Returns the number of the first hardware queue of one type, if it has queues of its own.
    #[inline]
    pub(crate) fn queue_offset(&self, ty: HctxType) -> u16 {
        self.queue_offset[ty as usize]
    }

    /// Returns the number of CPUs.
    #[inline]
    pub fn nr_cpus(&self) -> u16 {
        self.nr_cpus
    }

    /// Returns the CPUs that submit to `hctx`, in rising order; never empty.
    ///
    /// # Panics
    /// If `hctx` is not below the number of hardware queues.
    #[inline]
    pub fn cpus_of(&self, hctx: u16) -> &[u16] {
        let hctx = usize::from(hctx);
        &self.cpus[self.cpus_at[hctx] as usize..self.cpus_at[hctx + 1] as usize]
    }

    /// Returns the type of `hctx`.
    ///
    /// # Panics
    /// If `hctx` is not below the number of hardware queues.
    pub fn hctx_type(&self, hctx: u16) -> HctxType {
        assert!(hctx < self.nr_hw_queues(), "hardware queue out of range");
        let owns = |ty: &HctxType| self.nr_queues(*ty) > 0 && hctx >= self.queue_offset(*ty);
        *HctxType::ALL.iter().rfind(|ty| owns(ty)).expect("Default has queues from 0 on")
    }
}

/// Returns the offsets of the types' queues, if the numbers are valid.
fn check_counts(nr_cpus: u16, nr_queues: [u16; NR_TYPES]) -> Result<[u16; NR_TYPES], MapError> {
    if nr_queues[HctxType::Default as usize] == 0 {
        return Err(MapError::NoDefaultQueue { nr_cpus });
    }
    for ty in HctxType::ALL {
        let nr_queues = nr_queues[ty as usize];
        if nr_queues > nr_cpus {
            return Err(MapError::TooManyQueues { ty, nr_queues, nr_cpus });
        }
    }
    let sum = nr_queues.iter().map(|n| u32::from(*n)).sum();
    if sum > u32::from(u16::MAX) {
        return Err(MapError::TooManyInAll(sum));
    }
    Ok([0, nr_queues[0], nr_queues[0] + nr_queues[1]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_queue_takes_all() {
        let map = QueueMap::new(&CpuTopology::uniform(3), 1, 0, 0).unwrap();
        assert_eq!(map.nr_hw_queues(), 1);
        assert_eq!(map.cpus_of(0), [0, 1, 2]);
        for ty in HctxType::ALL {
            assert_eq!((0..3).map(|cpu| map.hctx(cpu, ty)).collect::<Vec<_>>(), [0, 0, 0]);
        }
    }

    #[test]
    fn types_follow_each_other_and_fall_back() {
        let map = QueueMap::new(&CpuTopology::uniform(4), 4, 0, 2).unwrap();
        assert_eq!(map.nr_hw_queues(), 6);
        let row = |ty| (0..4).map(|cpu| map.hctx(cpu, ty)).collect::<Vec<_>>();
        assert_eq!(row(HctxType::Default), [0, 1, 2, 3]);
        assert_eq!(row(HctxType::Read), [0, 1, 2, 3]);
        assert_eq!(row(HctxType::Poll), [4, 4, 5, 5]);
        assert_eq!(map.cpus_of(5), [2, 3]);
        let types: Vec<_> = (0..6).map(|h| map.hctx_type(h)).collect();
        assert_eq!(types[..4], [HctxType::Default; 4]);
        assert_eq!(types[4..], [HctxType::Poll; 2]);
    }

    #[test]
    fn bad_counts_are_refused_with_a_remedy() {
        let topo = CpuTopology::uniform(4);
        let err = QueueMap::new(&topo, 0, 1, 0).unwrap_err();
        assert_eq!(err.to_string(), "default queues=0: must be 1..=4 (one per CPU at most); ask for at least one");
        let err = QueueMap::new(&topo, 4, 5, 0).unwrap_err();
        assert_eq!(err.to_string(), "read queues=5: must be at most 4, the number of CPUs; ask for fewer");
        let many = CpuTopology::uniform(40_000);
        assert_eq!(QueueMap::new(&many, 40_000, 40_000, 0).unwrap_err(), MapError::TooManyInAll(80_000));
    }

    proptest! {
        #[test]
        fn both_directions_agree(nodes in 1u16..5, cores in 1u16..9, threads in 1u16..4, counts: [prop::sample::Index; 3]) {
            let topo = CpuTopology::symmetric(nodes, cores, threads);
            let count = |i: usize| counts[i].index(usize::from(topo.nr_cpus) + 1) as u16;
            let (nr_default, nr_read, nr_poll) = (count(0).max(1), count(1), count(2));
            let map = QueueMap::new(&topo, nr_default, nr_read, nr_poll).unwrap();
            prop_assert_eq!(map.nr_hw_queues(), nr_default + nr_read + nr_poll);
            for hctx in 0..map.nr_hw_queues() {
                prop_assert!(!map.cpus_of(hctx).is_empty());
                for cpu in map.cpus_of(hctx) {
                    prop_assert_eq!(map.hctx(*cpu, map.hctx_type(hctx)), hctx);
                }
            }
            for ty in HctxType::ALL {
                for cpu in 0..topo.nr_cpus {
                    let hctx = map.hctx(cpu, ty);
                    prop_assert!(map.cpus_of(hctx).contains(&cpu));
                    let expected = if map.nr_queues(ty) == 0 { HctxType::Default } else { ty };
                    prop_assert_eq!(map.hctx_type(hctx), expected);
                }
            }
        }
    }
}
