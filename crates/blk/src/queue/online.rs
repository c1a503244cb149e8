// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which CPUs are online, and which CPU replaces an offline one.

use crate::cpumap::CpuTopology;
use crate::id::CpuId;
use crate::sync::{AtomicU8, Ordering};

pub(super) const ONLINE: u8 = 0;
pub(super) const LEAVING: u8 = 1;
pub(super) const OFFLINE: u8 = 2;

/// Which CPUs are online, and which CPUs replace the others.
pub(crate) struct OnlineMask {
    state: Box<[AtomicU8]>,
    node_of: Box<[u16]>,
    cache_of: Box<[u16]>,
}

impl OnlineMask {
    pub(crate) fn new(topology: &CpuTopology) -> OnlineMask {
        OnlineMask {
            state: (0..topology.nr_cpus).map(|_| AtomicU8::new(ONLINE)).collect(),
            node_of: topology.node_of.clone().into(),
            cache_of: topology.cache_group_of.clone().into(),
        }
    }

    /// Returns the number of CPUs of the stack.
    pub(super) fn nr_cpus(&self) -> usize {
        self.state.len()
    }

    pub(super) fn get(&self, cpu: usize) -> u8 {
        // Pairs with: OnlineMask::set
        self.state[cpu].load(Ordering::SeqCst)
    }

    pub(super) fn set(&self, cpu: usize, state: u8) {
        // Pairs with: OnlineMask::get
        self.state[cpu].store(state, Ordering::SeqCst);
    }

    /// Whether two CPUs share a cache (`cpus_share_cache`).
    pub(crate) fn shares_cache(&self, a: CpuId, b: CpuId) -> bool {
        self.cache_of[a.index()] == self.cache_of[b.index()]
    }

    /// Returns `home` if it is online, else the nearest online CPU: one that shares its cache, else one of its node,
    /// else any. Among equally near CPUs it returns the lowest.
    pub(crate) fn stand_in(&self, home: CpuId) -> CpuId {
        let home = home.index();
        let distance = |cpu: &usize| match *cpu {
            c if c == home => 0,
            c if self.cache_of[c] == self.cache_of[home] => 1,
            c if self.node_of[c] == self.node_of[home] => 2,
            _ => 3,
        };
        let online = (0..self.state.len()).filter(|c| self.get(*c) == ONLINE);
        // All CPUs may seem to be offline while one comes online and another goes offline during this search.
        CpuId::new(online.min_by_key(distance).unwrap_or(home) as u32)
    }
}
