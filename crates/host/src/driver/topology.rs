// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The paths of a disk in their groups, as plain values: what `multipath -ll` prints.

use blk::multipath::GroupState;

/// A multipath disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// The WWID of a SCSI disk. For others the identity by which paths are compared; empty if there is none.
    pub wwid: String,
    /// `vendor` of INQUIRY; empty if unknown.
    pub vendor: String,
    /// `product` of INQUIRY; empty if unknown.
    pub product: String,
    /// `revision` of INQUIRY; empty if unknown.
    pub revision: String,
    /// Size in bytes.
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
    /// Priority of the group.
    pub prio: u32,
    /// Whether it is used.
    pub state: GroupState,
    /// Its paths.
    pub paths: Vec<TopologyPath>,
}

/// A path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyPath {
    /// Name of the path.
    pub name: String,
    /// Priority of the path.
    pub prio: u32,
    /// The path may carry requests.
    pub is_active: bool,
    /// Result of the last check, in multipath's words: `ready`, `faulty`, `ghost` (standby), `i/o pending` (its state is about to change).
    pub check: &'static str,
    /// The path has a driver.
    pub is_running: bool,
    /// How often it failed.
    pub fail_count: u64,
    /// Number of requests in flight on the path.
    pub in_flight: u32,
    /// `path_checker`
    pub checker: String,
    /// Why the path is not used.
    pub trouble: Option<String>,
}
