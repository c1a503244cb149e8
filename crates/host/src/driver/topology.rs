// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk's paths in their groups, as values: what `multipath -ll` prints of one.

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
    /// `hardware_handler` with the number of its arguments: `0`, `1 alua`.
    pub hardware_handler: String,
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
    /// As multipath calls what its check has found: `ready`, `faulty`, `ghost` (standby), `i/o pending` (its state is about to change).
    pub check: &'static str,
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
