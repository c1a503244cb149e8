// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which paths make a priority group, and which group is the best: `path_grouping_policy`.
//!
//! Guarantees: every path is in one group; better groups come first, equal ones in the order of their paths. A group's
//! priority is that of its paths. For a port group it is the mean over the active paths, so that an outdated priority of a
//! failed path does not count. Paths without a known port group form one group. Source: multipath-tools,
//! libmultipath/pgpolicies.c (`group_by_match`, `sort_pathgroups`).

use super::options::PathGroupingPolicy;
use std::cmp::Reverse;

/// The properties of a path that decide its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) prio: u32,
    /// The group of its target's ports.
    pub(super) tpg: Option<u16>,
    pub(super) is_used: bool,
}

/// Numbers of paths by group.
pub(super) fn grouped(policy: PathGroupingPolicy, paths: &[Member]) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..paths.len()).collect();
    let better = |p: &usize| Reverse(paths[*p].prio);
    match policy {
        PathGroupingPolicy::Failover => {
            order.sort_by_key(better);
            order.into_iter().map(|p| vec![p]).collect()
        }
        PathGroupingPolicy::Multibus => vec![order],
        PathGroupingPolicy::GroupByPrio => {
            order.sort_by_key(better);
            order.chunk_by(|a, b| paths[*a].prio == paths[*b].prio).map(<[usize]>::to_vec).collect()
        }
        PathGroupingPolicy::GroupByTpg => {
            order.sort_by_key(|p| paths[*p].tpg);
            let mut groups: Vec<_> =
                order.chunk_by(|a, b| paths[*a].tpg == paths[*b].tpg).map(<[usize]>::to_vec).collect();
            groups.sort_by_key(|group| (Reverse(worth(paths, group)), group[0]));
            groups
        }
    }
}

/// Returns the mean priority of the active paths; if none is active, that of all paths as it was last.
fn worth(paths: &[Member], group: &[usize]) -> u64 {
    let is_any_used = group.iter().any(|p| paths[*p].is_used);
    let counted = group.iter().map(|p| paths[*p]).filter(|p| p.is_used || !is_any_used);
    let (sum, n) = counted.fold((0, 0), |(sum, n), p| (sum + u64::from(p.prio), n + 1));
    sum.checked_div(n).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_groups_come_first_and_equals_stay_in_order() {
        let paths = [10, 50, 10, 50, 20].map(|prio| Member { prio, tpg: None, is_used: true });
        assert_eq!(grouped(PathGroupingPolicy::Multibus, &paths), [vec![0, 1, 2, 3, 4]]);
        assert_eq!(grouped(PathGroupingPolicy::GroupByPrio, &paths), [vec![1, 3], vec![4], vec![0, 2]]);
        assert_eq!(grouped(PathGroupingPolicy::Failover, &paths), [[1], [3], [4], [0], [2]]);
    }

    #[test]
    fn groups_of_ports_stay_together_without_gone_paths() {
        let of = |all: &[(u32, u16, bool)]| {
            let paths: Vec<_> = all
                .iter()
                .map(|(prio, tpg, is_used)| Member { prio: *prio, tpg: (*tpg > 0).then_some(*tpg), is_used: *is_used })
                .collect();
            grouped(PathGroupingPolicy::GroupByTpg, &paths)
        };
        let used = true;
        // Of one priority, and two groups all the same.
        assert_eq!(of(&[(50, 2, used), (50, 1, used), (50, 2, used), (50, 1, used)]), [[0, 2], [1, 3]]);
        assert_eq!(of(&[(10, 1, used), (50, 2, used), (10, 1, used)]), [vec![1], vec![0, 2]]);
        // The failed paths had other priorities before the array changed them.
        assert_eq!(of(&[(10, 1, used), (50, 1, false), (50, 2, used), (10, 2, false)]), [[2, 3], [0, 1]]);
        assert_eq!(of(&[(0, 0, false), (10, 1, used), (0, 0, false)]), [vec![1], vec![0, 2]]);
    }
}
