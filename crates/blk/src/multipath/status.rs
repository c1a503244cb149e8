// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Status of a multipath disk, for people and programs.
//!
//! Guarantees: paths and groups are shown in one consistent state. Counts of requests in flight are read separately
//! and may be older. The printed form is what `dmsetup status` shows after the target's name. Source:
//! drivers/md/dm-mpath.c (`multipath_status`).

use super::config::{Features, PathId};
use super::disk::Multipath;
use super::table::{GroupTable, PathTable, Table};
use crate::lock::Lock;
use core::fmt;

/// State of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupState {
    /// In use.
    Active,
    /// Usable, but not current.
    Enabled,
    /// Bypassed.
    Disabled,
}

/// A path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathStatus {
    /// Its number.
    pub id: PathId,
    /// Its name.
    pub name: String,
    /// Whether the path may be used.
    pub is_active: bool,
    /// How often it failed.
    pub fail_count: u64,
    /// Requests in flight at the path.
    pub in_flight: u32,
    /// The selector's numbers, each followed by a space.
    pub info: String,
}

/// A priority group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    /// State of the group.
    pub state: GroupState,
    /// Its selector's name.
    pub selector: &'static str,
    /// How many numbers are in [`PathStatus::info`].
    pub nr_info: usize,
    /// Arguments of the selector as `dmsetup status` shows them.
    pub selector_args: Vec<u16>,
    /// Its paths, by number.
    pub paths: Vec<PathStatus>,
}

/// Status of the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Whether requests wait for an activation.
    pub queue_io: bool,
    /// Number of activations of the current group.
    pub pg_init_count: u32,
    /// The features in effect (`no_path_timeout` may have turned `queue_if_no_path` off).
    pub features: Features,
    /// The group that is used next, counted from 1; 0 = none.
    pub group: usize,
    /// All groups.
    pub groups: Vec<GroupStatus>,
}

impl<L: Lock> Multipath<L> {
    /// Returns the status of the disk.
    pub fn status(&self) -> Status {
        let mut state = self.state.lock();
        self.forget_removed(&mut state);
        let mut groups = Vec::new();
        for (g, group) in state.groups.iter().enumerate() {
            let policy = &self.policies[g];
            let paths = state.present().filter(|(_, p)| p.group == g).map(|(id, p)| PathStatus {
                id,
                name: p.name.clone(),
                is_active: p.is_active,
                fail_count: p.fail_count,
                in_flight: self.in_flight(id.index()),
                info: self.selectors.info(policy, id.index(), &p.args.cpus),
            });
            groups.push(GroupStatus {
                state: match (group.bypassed, state.current == Some(g)) {
                    (true, _) => GroupState::Disabled,
                    (false, true) => GroupState::Active,
                    (false, false) => GroupState::Enabled,
                },
                selector: group.selector.name(),
                nr_info: policy.nr_info(),
                selector_args: group.selector.args(),
                paths: paths.collect(),
            });
        }
        Status {
            queue_io: state.queue_io,
            pg_init_count: state.pg_init_count,
            features: state.features,
            group: state.next.or(state.current).map_or(usize::from(!groups.is_empty()), |g| g + 1),
            groups,
        }
    }

    /// Returns the arguments of the disk's table line in its present state.
    pub fn table(&self) -> Table {
        let state = self.state.lock();
        let groups = state.groups.iter().enumerate().map(|(g, group)| GroupTable {
            selector: group.selector,
            paths: (state.present().filter(|(_, p)| p.group == g))
                .map(|(_, p)| PathTable { name: p.name.clone(), args: p.args.clone() })
                .collect(),
        });
        let handler = self.handler.as_ref().map(|h| vec![h.name().to_owned()]).unwrap_or_default();
        let first_group = state.next.or(state.current).map_or(1, |g| g + 1);
        Table {
            features: state.features,
            retain_attached_handler: false,
            handler,
            first_group,
            groups: groups.collect(),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "2 {} {} 0 {} {} ", u8::from(self.queue_io), self.pg_init_count, self.groups.len(), self.group)?;
        for group in &self.groups {
            let state = match group.state {
                GroupState::Active => 'A',
                GroupState::Enabled => 'E',
                GroupState::Disabled => 'D',
            };
            write!(f, "{state} {} ", group.selector_args.len())?;
            group.selector_args.iter().try_for_each(|a| write!(f, "{a} "))?;
            write!(f, "{} {} ", group.paths.len(), group.nr_info)?;
            for path in &group.paths {
                let state = if path.is_active { 'A' } else { 'F' };
                write!(f, "{} {state} {} {}", path.name, path.fail_count, path.info)?;
            }
        }
        Ok(())
    }
}
