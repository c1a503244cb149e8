// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Spreading of CPUs: properties that hold for every topology, and examples worked out by hand from the rules.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

#[test]
fn two_nodes_with_smt() {
    // Node 0: CPUs 0-3 and their siblings 8-11; node 1: 4-7 and 12-15.
    let topo = CpuTopology::symmetric(2, 4, 2);
    let node0 = [0, 1, 2, 3, 8, 9, 10, 11];
    let node1 = [4, 5, 6, 7, 12, 13, 14, 15];
    assert_eq!(group_cpus_evenly(1, &topo), [Vec::from_iter(0..16)]);
    assert_eq!(group_cpus_evenly(2, &topo), [node0, node1]);
    assert_eq!(group_cpus_evenly(4, &topo), [[0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]]);
    let cores: Vec<[u16; 2]> = (0..8).map(|c| [c, c + 8]).collect();
    assert_eq!(group_cpus_evenly(8, &topo), cores);
    // Groups of one have no room for a sibling, and each group begins at the lowest CPU left in the node.
    let each: Vec<[u16; 1]> = [node0, node1].concat().into_iter().map(|c| [c]).collect();
    assert_eq!(group_cpus_evenly(16, &topo), each);
    assert_eq!(group_cpus_evenly(17, &topo), each, "no more groups than CPUs");
}

#[test]
fn odd_sizes_go_to_the_first_groups_of_a_node() {
    let topo = CpuTopology::symmetric(2, 4, 2);
    // Three groups: 3 x 8 / 16 = 1 for node 0, then 2 x 8 / 8 = 2 for node 1.
    let node0 = vec![0, 1, 2, 3, 8, 9, 10, 11];
    assert_eq!(group_cpus_evenly(3, &topo), [node0, vec![4, 5, 12, 13], vec![6, 7, 14, 15]]);
    // Five on one node of eight with SMT: sizes 2, 2, 2, 1, 1.
    let one = CpuTopology::symmetric(1, 4, 2);
    assert_eq!(group_cpus_evenly(5, &one), [vec![0, 4], vec![1, 5], vec![2, 6], vec![3], vec![7]]);
    // Three: sizes 3, 3, 2; the first group takes core 0 and half of core 1, the second begins with the other half only
    // after the lowest CPU left, which is 2.
    assert_eq!(group_cpus_evenly(3, &one), [vec![0, 1, 4], vec![2, 3, 6], vec![5, 7]]);
}

#[test]
fn the_smallest_node_is_dealt_first() {
    // Node 0 has six CPUs, node 1 two: of four groups node 1 gets 4 x 2 / 8 = 1, and comes first.
    let topo = CpuTopology::new(vec![0, 0, 0, 0, 0, 0, 1, 1], (0..8).collect(), vec![0; 8], vec![true; 8]).unwrap();
    assert_eq!(group_cpus_evenly(4, &topo), [[6, 7], [0, 1], [2, 3], [4, 5]]);
    // Of three, node 1 would get 3 x 2 / 8 = 0: it gets one.
    assert_eq!(group_cpus_evenly(3, &topo), [vec![6, 7], vec![0, 1, 2], vec![3, 4, 5]]);
}

#[test]
fn more_nodes_than_groups_share_groups() {
    let topo = CpuTopology::symmetric(3, 2, 1);
    assert_eq!(group_cpus_evenly(2, &topo), [vec![0, 1, 4, 5], vec![2, 3]]);
}

#[test]
fn absent_cpus_start_after_the_groups_in_use() {
    let mut topo = CpuTopology::uniform(8);
    topo.present = (0..8).map(|cpu| cpu < 4).collect();
    // Present: one CPU each in groups 0-3; absent: groups 4, 5, then round to 0, 1.
    assert_eq!(group_cpus_evenly(6, &topo), [vec![0, 6], vec![1, 7], vec![2], vec![3], vec![4], vec![5]]);
    // All groups in use: the absent ones start at 0 again, two each.
    assert_eq!(group_cpus_evenly(2, &topo), [[0, 1, 4, 5], [2, 3, 6, 7]]);
}

prop_compose! {
    /// Cores of one to four threads, spread over nodes without any order; some CPUs absent.
    fn topology()(cores in prop::collection::vec((0u16..6, 1usize..=4), 1..24))
        (order in Just(cores.iter().enumerate().flat_map(|(c, (node, threads))| vec![(*node, c as u16); *threads])
            .collect::<Vec<_>>()).prop_shuffle(), seed in any::<u128>()) -> CpuTopology {
        let (node_of, core_of): (Vec<u16>, Vec<u16>) = order.into_iter().unzip();
        let present = (0..node_of.len()).map(|cpu| seed >> cpu & 1 == 1).collect();
        CpuTopology::new(node_of.clone(), core_of, node_of, present).expect("lists of one length")
    }
}

proptest! {
    #[test]
    fn every_cpu_is_in_one_group_and_none_is_empty(topo in topology(), numgrps in 1u16..120) {
        let groups = group_cpus_evenly(numgrps, &topo);
        prop_assert_eq!(groups.len(), usize::from(numgrps.min(topo.nr_cpus)));
        prop_assert!(groups.iter().all(|g| !g.is_empty() && g.is_sorted()));
        let mut all: Vec<u16> = groups.concat();
        all.sort_unstable();
        prop_assert_eq!(all, (0..topo.nr_cpus).collect::<Vec<_>>());
    }

    #[test]
    fn within_a_node_sizes_differ_by_one_at_most(mut topo in topology(), numgrps in 1u16..120) {
        topo.present.fill(true);
        let groups = group_cpus_evenly(numgrps, &topo);
        let nodes: BTreeSet<u16> = topo.node_of.iter().copied().collect();
        prop_assume!(groups.len() > nodes.len());
        for node in nodes {
            let on_node = |g: &&CpuGroup| topo.node_of[usize::from(g[0])] == node;
            let here: Vec<&CpuGroup> = groups.iter().filter(on_node).collect();
            prop_assert!(here.iter().all(|g| g.iter().all(|cpu| topo.node_of[usize::from(*cpu)] == node)));
            let sizes = here.iter().map(|g| g.len());
            let (min, max) = (sizes.clone().min(), sizes.max());
            prop_assert!(max.unwrap_or(0) - min.unwrap_or(0) <= 1, "node {} sizes {:?}..{:?}", node, min, max);
        }
    }

    #[test]
    fn siblings_stay_together_if_groups_are_made_of_whole_cores(cores in 1u16..40, threads in 1u16..=4, nodes in 1u16..4) {
        let topo = CpuTopology::symmetric(nodes, cores, threads);
        let groups = group_cpus_evenly(nodes * cores, &topo);
        for group in groups {
            let cores: BTreeSet<u16> = group.iter().map(|cpu| topo.core_of[usize::from(*cpu)]).collect();
            prop_assert_eq!((cores.len(), group.len()), (1, usize::from(threads)));
        }
    }
}
