// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `io-affinity`: the path assigned to the submitting CPU, else one assigned to a CPU of its NUMA node, else any.
//!
//! Guarantees: a CPU belongs to the first path whose mask names it; a path is taken only if it is usable. Needs from callers:
//! masks of CPUs below [`MAX_CPUS`]. Source: drivers/md/dm-ps-io-affinity.c.

use crate::id::{CpuId, MAX_CPUS};

/// The assignment of paths to CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Affinity {
    /// By CPU: the path of that CPU (one at most) and the paths of its node, as masks.
    by_cpu: Vec<(u64, u64)>,
}

impl Affinity {
    /// Makes the assignment from the CPUs of each path, by path number. `node_of` has the node of each CPU; it is empty
    /// if all CPUs are of one node.
    pub(super) fn new(cpus: &[(u8, Vec<u16>)], node_of: &[u16]) -> Affinity {
        let n = cpus.iter().flat_map(|(_, c)| c).map(|c| usize::from(*c) + 1).max().unwrap_or(0).max(node_of.len());
        let mut by_cpu = vec![(0u64, 0u64); n.min(MAX_CPUS as usize)];
        for (path, list) in cpus {
            for cpu in list {
                if let Some((own, _)) = by_cpu.get_mut(usize::from(*cpu))
                    && *own == 0
                {
                    *own = 1 << path;
                }
            }
        }
        let node = |cpu: usize| node_of.get(cpu).copied().unwrap_or(0);
        let owns: Vec<u64> = by_cpu.iter().map(|(own, _)| *own).collect();
        for (cpu, (_, near)) in by_cpu.iter_mut().enumerate() {
            *near = owns.iter().enumerate().filter(|(c, _)| node(*c) == node(cpu)).fold(0, |m, (_, own)| m | own);
        }
        Affinity { by_cpu }
    }

    /// Returns the paths of `usable` that are preferred for `cpu`; not empty if `usable` is not.
    #[inline]
    pub(super) fn preferred(&self, usable: u64, cpu: CpuId) -> u64 {
        let (own, near) = self.by_cpu.get(cpu.index()).copied().unwrap_or((0, 0));
        [own & usable, near & usable].into_iter().find(|m| *m != 0).unwrap_or(usable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_then_near_then_any() {
        // Paths 0 and 1 on node 0 (CPUs 0 to 3), path 2 on node 1 (CPUs 4 and 5); CPU 3 has none.
        let a = Affinity::new(&[(0, vec![0, 1]), (1, vec![2, 1]), (2, vec![4])], &[0, 0, 0, 0, 1, 1]);
        for (cpu, usable, expected) in [
            (0, 0b111, 0b001),
            (1, 0b111, 0b001), // Named twice: the first has it.
            (2, 0b111, 0b010),
            (2, 0b101, 0b001), // Its own has failed: one of its node.
            (3, 0b110, 0b010),
            (5, 0b111, 0b100),
            (5, 0b011, 0b011), // Nothing near: any.
            (99, 0b110, 0b110),
        ] {
            assert_eq!(a.preferred(usable, CpuId::new(cpu)), expected, "CPU {cpu} of {usable:03b}");
        }
        assert_eq!(Affinity::default().preferred(0b10, CpuId::new(0)), 0b10);
    }
}
