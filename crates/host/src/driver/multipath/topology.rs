// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A multipath disk, its groups and paths as values: what `multipath -ll` prints of one.
//!
//! Guarantees: states of paths and groups are of one moment. A group's priority is the mean of those of its usable
//! paths, 0 without one, as in multipath-tools (`path_group_prio_update`).

use super::{Multipath, Watched};
use crate::driver::HostDriver;
use blk::driver::Driver;
use blk::id::SECTOR_SHIFT;
use blk::multipath::GroupState;

/// A disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// By what it is known; empty if it does not say.
    pub wwid: String,
    /// Size.
    pub bytes: u64,
    /// As in the kernel's table: `1 queue_if_no_path`.
    pub features: String,
    /// `failback`
    pub failback: String,
    /// `no_path_retry`
    pub queueing: String,
    /// In order of preference.
    pub groups: Vec<TopologyGroup>,
}

/// A priority group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyGroup {
    /// With the number of its arguments: `service-time 0`.
    pub selector: String,
    /// See the module's text.
    pub prio: u32,
    /// Whether it is used.
    pub state: GroupState,
    /// Its paths.
    pub paths: Vec<TopologyPath>,
}

/// A path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyPath {
    /// What it is called.
    pub name: String,
    /// Its own priority.
    pub prio: u32,
    /// Requests may go there.
    pub is_active: bool,
    /// Its driver is there.
    pub is_running: bool,
    /// How often it failed.
    pub fail_count: u64,
    /// Requests at it.
    pub in_flight: u32,
    /// `path_checker`
    pub checker: String,
    /// Why it is not used.
    pub trouble: Option<String>,
}

impl Multipath {
    pub(super) fn describe(&self) -> Topology {
        let (core, status) = (&self.core, self.status());
        let queues = status.features.queue_if_no_path;
        let groups = status.groups.into_iter().map(|group| {
            let watched = |id| core.paths.iter().find(|p: &&Watched| p.id == id);
            let path = |s: blk::multipath::PathStatus| {
                let path = watched(s.id)?;
                Some(TopologyPath {
                    name: s.name,
                    prio: path.prio,
                    is_active: s.is_active,
                    is_running: path.driver.is_usable(),
                    fail_count: s.fail_count,
                    in_flight: s.in_flight,
                    checker: path.checker.to_string(),
                    trouble: path.driver.trouble().filter(|_| !s.is_active),
                })
            };
            let paths: Vec<TopologyPath> = group.paths.into_iter().filter_map(path).collect();
            let args: Vec<_> = group.selector_args.iter().map(|a| format!(" {a}")).collect();
            TopologyGroup {
                selector: format!("{} {}{}", group.selector, args.len(), args.concat()),
                prio: mean(paths.iter().filter(|p| p.is_active).map(|p| p.prio)),
                state: group.state,
                paths,
            }
        });
        Topology {
            wwid: self.identity().unwrap_or_default(),
            bytes: self.capacity().0 << SECTOR_SHIFT,
            features: if queues { "1 queue_if_no_path" } else { "0" }.to_owned(),
            failback: core.options.failback.to_string(),
            queueing: core.options.no_path_retry.to_string(),
            groups: groups.collect(),
        }
    }
}

fn mean(prios: impl Iterator<Item = u32>) -> u32 {
    let (sum, n) = prios.fold((0, 0), |(sum, n), prio| (sum + u64::from(prio), n + 1));
    // At most the largest.
    sum.checked_div(n).map_or(0, |mean| mean as u32)
}
