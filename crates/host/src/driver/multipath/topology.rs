// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A multipath disk, its groups and paths as plain values: what `multipath -ll` prints.
//!
//! Guarantees: the states of paths and groups are from one moment. A group's priority is the mean priority of its usable paths, 0 if it
//! has none, as in multipath-tools (`path_group_prio_update`).

use super::changes::{PathState, PathStates};
use crate::driver::host_driver::HostDriver;
use crate::driver::multipath::disk::{Multipath, Watched};
use crate::driver::path::DiskNames;
use crate::driver::topology::{Topology, TopologyGroup, TopologyPath};
use blk::driver::Driver;
use blk::id::SECTOR_SHIFT;
use blk::multipath::{Features, GroupState};
use blk::scsi::alua::AccessState;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Multipath {
    pub(super) fn describe(&self) -> Topology {
        let (core, status) = (&self.core, self.status());
        let present = core.paths.present();
        let queues = status.features.queue_if_no_path;
        let groups = status.groups.into_iter().map(|group| {
            let path = |s: blk::multipath::PathStatus| {
                let path = present.iter().find(|p| p.id == s.id)?;
                Some(TopologyPath {
                    name: s.name,
                    prio: path.prio.load(Ordering::Relaxed),
                    check: check(path, s.is_active),
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
        let DiskNames { wwid, vendor, product, revision } = self.path().names().unwrap_or_default();
        Topology {
            wwid: wwid.or_else(|| self.path().identity()).unwrap_or_default(),
            vendor,
            product,
            revision,
            bytes: self.capacity().0 << SECTOR_SHIFT,
            features: features(queues, &status.features),
            failback: core.options.failback.to_string(),
            queueing: core.options.no_path_retry.to_string(),
            hardware_handler: core.options.hardware_handler.to_string(),
            // Empty groups are reserved for paths whose priorities change, and for paths that are added.
            groups: groups.filter(|g| !g.paths.is_empty()).collect(),
        }
    }
}

impl Multipath {
    /// Returns the states of its paths, by number, for the log.
    pub(super) fn states(&self) -> PathStates {
        let status = self.status();
        let ids = |g: &blk::multipath::GroupStatus| g.paths.iter().map(|p| p.id.index()).collect();
        // Groups without paths are not shown, and have no number.
        let mut shown = status.groups.iter().filter(|g| !g.paths.is_empty()).enumerate();
        let group = shown.find(|(_, g)| g.state == GroupState::Active).map(|(at, g)| (at + 1, ids(g)));
        let all = || status.groups.iter().flat_map(|g| &g.paths);
        let of = |path: &Arc<Watched>| {
            let status = all().find(|p| p.id == path.id)?;
            let (name, fail_count) = (path.driver.name.clone(), status.fail_count);
            let (trouble, failure) = (path.driver.trouble(), trouble_of_driver(path));
            Some(PathState { name, is_active: status.is_active, fail_count, trouble, failure })
        };
        let paths = self.core.paths.present().iter().filter_map(of).collect();
        PathStates { paths, queues: status.features.queue_if_no_path, group }
    }
}

/// Returns why requests on this path have failed, as far as its driver knows: its lost connections while some are down,
/// otherwise its last failed command.
fn trouble_of_driver(path: &Watched) -> Option<String> {
    let driver = path.driver.inner()?;
    let is_down = driver.path().connections().is_some_and(|c| c.up < c.wanted);
    let mut troubles = driver.path().troubles();
    if is_down { (!troubles.is_empty()).then(|| troubles.swap_remove(0)) } else { troubles.pop() }
}

fn check(path: &Watched, is_active: bool) -> &'static str {
    // An older state is meaningless for a target that is gone.
    let access = path.access.lock().as_ref().map(|a| a.group.state);
    match access.filter(|_| path.was_asked.load(Ordering::Relaxed)) {
        Some(AccessState::Standby) => "ghost",
        Some(AccessState::Transitioning) => "i/o pending",
        _ if is_active => "ready",
        _ => "faulty",
    }
}

/// As in the kernel's table.
fn features(queues: bool, f: &Features) -> String {
    let mut words = Vec::new();
    if queues {
        words.push("queue_if_no_path".to_owned());
    }
    if f.pg_init_retries > 0 {
        words.extend(["pg_init_retries".to_owned(), f.pg_init_retries.to_string()]);
    }
    if let Some(delay) = f.pg_init_delay {
        words.extend(["pg_init_delay_msecs".to_owned(), delay.as_ms().to_string()]);
    }
    let count = words.len().to_string();
    [&[count][..], &words].concat().join(" ")
}

fn mean(prios: impl Iterator<Item = u32>) -> u32 {
    let (sum, n) = prios.fold((0, 0), |(sum, n), prio| (sum + u64::from(prio), n + 1));
    // The mean fits, because it is at most the largest priority.
    sum.checked_div(n).map_or(0, |mean| mean as u32)
}
