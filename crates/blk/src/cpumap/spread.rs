// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Spreads CPUs over groups of about the same size; keeps CPUs of a node and of a core together. Source: Linux
//! lib/group_cpus.c.

use super::topology::CpuTopology;
use std::collections::BTreeMap;

/// CPUs of one group, in rising order.
pub(crate) type CpuGroup = Vec<u16>;

/// Spreads all CPUs over `numgrps` groups: first those present, then the rest of the possible ones, starting at the group
/// after the last one used.
///
/// CPUs of one NUMA node share groups with another node only if there are more nodes than groups; SMT siblings land in the
/// same group where its size allows; within a node the sizes differ by at most one per round. Returns fewer groups than
/// requested if there are fewer CPUs.
///
/// # Panics
/// If `numgrps` is 0 or `topo` is not consistent (see [`CpuTopology`]).
pub(crate) fn group_cpus_evenly(numgrps: u16, topo: &CpuTopology) -> Vec<CpuGroup> {
    assert!(numgrps > 0, "CPUs cannot be spread over 0 groups");
    topo.assert_consistent();
    let numgrps = usize::from(numgrps);
    let mut groups = vec![CpuGroup::new(); numgrps];
    let cpus =
        |present: bool| (0..topo.nr_cpus).filter(|c| topo.present[usize::from(*c)] == present).collect::<Vec<_>>();
    let first = spread(&mut groups, 0, topo, &cpus(true));
    let next = if first >= numgrps { 0 } else { first };
    let second = spread(&mut groups, next, topo, &cpus(false));
    groups.truncate(first + second);
    for group in &mut groups {
        group.sort_unstable();
    }
    groups
}

/// One round: spreads `cpus` (rising) over the groups from `start` on, wrapping round. Returns the number of groups used.
fn spread(groups: &mut [CpuGroup], start: usize, topo: &CpuTopology, cpus: &[u16]) -> usize {
    let numgrps = groups.len();
    let nodes = by_node(topo, cpus);
    if nodes.is_empty() {
        return 0;
    }
    if numgrps <= nodes.len() {
        for (i, node) in nodes.iter().enumerate() {
            groups[(start + i) % numgrps].extend(node);
        }
        return numgrps;
    }
    let mut used = 0;
    for (mut node, node_groups) in deal_groups(nodes, numgrps.min(cpus.len())) {
        let (size, larger) = (node.len() / node_groups, node.len() % node_groups);
        for g in 0..node_groups {
            let size = size + usize::from(g < larger);
            take_with_siblings(&mut groups[(start + used) % numgrps], &mut node, size, topo);
            used += 1;
        }
    }
    used
}

/// `cpus` by NUMA node, in the order of node numbers.
fn by_node(topo: &CpuTopology, cpus: &[u16]) -> Vec<Vec<u16>> {
    let mut nodes = BTreeMap::<u16, Vec<u16>>::new();
    for cpu in cpus {
        nodes.entry(topo.node_of[usize::from(*cpu)]).or_default().push(*cpu);
    }
    nodes.into_values().collect()
}

/// Distributes `groups_left` groups to the nodes in proportion to their CPUs, the smallest node first. So groups that
/// rounding down takes from a small node go to a larger one, and every node gets a group.
fn deal_groups(mut nodes: Vec<Vec<u16>>, mut groups_left: usize) -> Vec<(Vec<u16>, usize)> {
    nodes.sort_by_key(Vec::len);
    let mut cpus_left: usize = nodes.iter().map(Vec::len).sum();
    let deal = |node: Vec<u16>| {
        let groups = (groups_left * node.len() / cpus_left).max(1);
        groups_left -= groups;
        cpus_left -= node.len();
        (node, groups)
    };
    nodes.into_iter().map(deal).collect()
}

/// Moves `size` CPUs from `node` to `group`: the lowest one, then its SMT siblings, then the next lowest.
fn take_with_siblings(group: &mut CpuGroup, node: &mut Vec<u16>, size: usize, topo: &CpuTopology) {
    let full = group.len() + size;
    while group.len() < full {
        let core = topo.core_of[usize::from(node[0])];
        let mut i = 0;
        while i < node.len() && group.len() < full {
            if topo.core_of[usize::from(node[i])] == core {
                group.push(node.remove(i));
            } else {
                i += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
