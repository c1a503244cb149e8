// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which paths make a priority group, and which group is the best: `path_grouping_policy`.
//!
//! Guarantees: every path is in one group; better groups come first, equal ones in the order of their paths. A group's priority is
//! that of its paths. Source: multipath-tools, libmultipath/pgpolicies.c.

use super::options::PathGroupingPolicy;

/// Numbers of paths by group, for the priorities of the paths.
pub(super) fn grouped(policy: PathGroupingPolicy, prios: &[u32]) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..prios.len()).collect();
    order.sort_by_key(|p| std::cmp::Reverse(prios[*p]));
    match policy {
        PathGroupingPolicy::Failover => order.into_iter().map(|p| vec![p]).collect(),
        PathGroupingPolicy::Multibus => vec![(0..prios.len()).collect()],
        PathGroupingPolicy::GroupByPrio => {
            order.chunk_by(|a, b| prios[*a] == prios[*b]).map(<[usize]>::to_vec).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_groups_come_first_and_equals_stay_in_order() {
        let prios = [10, 50, 10, 50, 20];
        assert_eq!(grouped(PathGroupingPolicy::Multibus, &prios), [vec![0, 1, 2, 3, 4]]);
        assert_eq!(grouped(PathGroupingPolicy::GroupByPrio, &prios), [vec![1, 3], vec![4], vec![0, 2]]);
        assert_eq!(grouped(PathGroupingPolicy::Failover, &prios), [[1], [3], [4], [0], [2]]);
    }
}
