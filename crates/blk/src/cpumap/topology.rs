// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The machine's topology for the spreading of CPUs: NUMA nodes, cores, shared caches, and which CPUs are present.
//!
//! Guarantees: a topology made by a constructor is consistent. Needs from callers: code that builds one field by field
//! keeps all lists `nr_cpus` long. Does not do: reading a machine's topology.

use thiserror::Error;

/// The CPUs 0..`nr_cpus` that are possible, and how they are related. Each list has one entry per CPU.
///
/// Node, core and cache numbers are only identifiers: CPUs with equal numbers share the node, core or cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuTopology {
    /// Number of possible CPUs, 1 or more.
    pub nr_cpus: u16,
    /// NUMA node of each CPU. Lower numbers are served first.
    pub node_of: Vec<u16>,
    /// Core of each CPU: CPUs with the same core are SMT siblings. The number is unique over the whole machine, not just
    /// within a package.
    pub core_of: Vec<u16>,
    /// Last-level cache of each CPU, for completion steering; not used in spreading.
    pub cache_group_of: Vec<u16>,
    /// Whether the CPU is present. Other CPUs may be plugged in later.
    pub present: Vec<bool>,
}

/// Why a topology was rejected.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TopologyError {
    /// No CPU at all.
    #[error("number of CPUs is 0: must be 1..=65535; give at least one CPU")]
    NoCpus,
    /// More CPUs than a 16-bit number can count.
    #[error("number of CPUs is {0}: must be 1..=65535; leave CPUs out or split the machine")]
    TooManyCpus(usize),
    /// A list is not as long as the list of nodes.
    #[error("{list} has {len} entries: must be {nr_cpus}, one per CPU; add or remove entries")]
    Length {
        /// Name of the list.
        list: &'static str,
        /// Its length.
        len: usize,
        /// The length of `node_of`.
        nr_cpus: usize,
    },
}

impl CpuTopology {
    /// Makes `nr_cpus` present CPUs in one NUMA node, each a core of its own, sharing one cache.
    ///
    /// # Panics
    /// If `nr_cpus` is 0.
    pub fn uniform(nr_cpus: u16) -> CpuTopology {
        CpuTopology::symmetric(1, nr_cpus, 1)
    }

    /// Makes `nodes` NUMA nodes of `cores` cores with `threads` SMT threads each, all present, one cache per node.
    ///
    /// CPUs are numbered as mostly by the firmware of x86-64 servers: thread 0 of every core, node by node, then thread
    /// 1 of every core. With 2 nodes, 2 cores and 2 threads, node 0 has CPUs 0, 1, 4, 5, and CPU 4 is the sibling of
    /// CPU 0.
    ///
    /// # Panics
    /// If one of the numbers is 0, or there would be more than 65535 CPUs.
    pub fn symmetric(nodes: u16, cores: u16, threads: u16) -> CpuTopology {
        let all_cores = u32::from(nodes) * u32::from(cores);
        let nr_cpus = u64::from(all_cores) * u64::from(threads);
        assert!((1..=u64::from(u16::MAX)).contains(&nr_cpus), "{nr_cpus} CPUs: must be 1..=65535");
        let core_of: Vec<u16> = (0..nr_cpus as u32).map(|cpu| (cpu % all_cores) as u16).collect();
        let node_of: Vec<u16> = core_of.iter().map(|core| core / cores).collect();
        CpuTopology {
            nr_cpus: nr_cpus as u16,
            cache_group_of: node_of.clone(),
            present: vec![true; node_of.len()],
            node_of,
            core_of,
        }
    }

    /// Makes a topology from its lists, with one entry per possible CPU.
    ///
    /// # Errors
    /// If there is no CPU, there are more than 65535, or the lists differ in length.
    pub fn new(
        node_of: Vec<u16>,
        core_of: Vec<u16>,
        cache_group_of: Vec<u16>,
        present: Vec<bool>,
    ) -> Result<CpuTopology, TopologyError> {
        let n = node_of.len();
        if n == 0 {
            return Err(TopologyError::NoCpus);
        }
        let nr_cpus = u16::try_from(n).map_err(|_| TopologyError::TooManyCpus(n))?;
        let lists = [("core_of", core_of.len()), ("cache_group_of", cache_group_of.len()), ("present", present.len())];
        for (list, len) in lists {
            if len != n {
                return Err(TopologyError::Length { list, len, nr_cpus: n });
            }
        }
        Ok(CpuTopology { nr_cpus, node_of, core_of, cache_group_of, present })
    }

    pub(super) fn assert_consistent(&self) {
        let n = usize::from(self.nr_cpus);
        assert!(n > 0, "a topology has at least one CPU");
        let lengths = [self.node_of.len(), self.core_of.len(), self.cache_group_of.len(), self.present.len()];
        assert!(lengths == [n; 4], "lists of lengths {lengths:?} for {n} CPUs");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symmetric_numbers_threads_last() {
        let topo = CpuTopology::symmetric(2, 2, 2);
        assert_eq!(topo.nr_cpus, 8);
        assert_eq!(topo.core_of, [0, 1, 2, 3, 0, 1, 2, 3]);
        assert_eq!(topo.node_of, [0, 0, 1, 1, 0, 0, 1, 1]);
        let group = &topo.cache_group_of;
        assert!(group[0] == group[5] && group[0] != group[2]);
        topo.assert_consistent();
    }

    #[test]
    fn lists_of_different_length_are_refused() {
        let err = CpuTopology::new(vec![0, 0], vec![0, 1], vec![0], vec![true, true]).unwrap_err();
        assert_eq!(err.to_string(), "cache_group_of has 1 entries: must be 2, one per CPU; add or remove entries");
        assert_eq!(CpuTopology::new(vec![], vec![], vec![], vec![]), Err(TopologyError::NoCpus));
    }
}
