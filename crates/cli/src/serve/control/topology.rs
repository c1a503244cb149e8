// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Multipath disks of a daemon, with the keys of `multipathd show maps json`, so that programs that read the output of
//! multipathd can read this, too; keys that multipathd does not have come after its own.
//!
//! Differences: `uuid` of a disk that is no SCSI disk is the identity by which its paths are compared, or empty; `sysfs` and `dev_t` are
//! numbers of this daemon, because there are no kernel devices. `failback` and `queueing` are the values of the options `failback` and
//! `no_path_retry`; multipathd prints `on`, `off` and the time that is left. Keys about Fibre Channel, marginal paths and the kernel's map are
//! left out.

use blk::multipath::GroupState;
use host::driver::{Topology, TopologyGroup, TopologyPath};
use host::serve::view::View;
use serde_json::{Value, json};

/// Returns all multipath disks, in the order of the plan.
pub fn maps(daemon: &View) -> Value {
    let mut maps = Vec::new();
    for plan in daemon.plan().disks() {
        let Some(disk) = daemon.disk(&plan.name) else { continue };
        let members = disk.members();
        for (i, member) in members.iter().enumerate() {
            let Some(topology) = member.driver.path().topology() else { continue };
            maps.push(map(&disk.member_name(i), maps.len(), plan.read_only, &topology));
        }
    }
    json!({ "major_version": 0, "minor_version": 1, "maps": maps })
}

/// Returns one disk, as number `number` of the list.
pub fn map(name: &str, number: usize, read_only: bool, t: &Topology) -> Value {
    let paths = || t.groups.iter().flat_map(|g| &g.paths);
    json!({
        "name": name,
        "uuid": t.wwid,
        "sysfs": format!("dm-{number}"),
        "failback": t.failback,
        "queueing": t.queueing,
        "paths": paths().filter(|p| p.is_active).count(),
        "write_prot": if read_only { "ro" } else { "rw" },
        "dm_st": "active",
        "features": t.features,
        "hwhandler": t.hardware_handler,
        "path_faults": paths().map(|p| p.fail_count).sum::<u64>(),
        "vend": t.vendor,
        "prod": t.product,
        "rev": t.revision,
        "path_groups": t.groups.iter().enumerate().map(|(i, g)| group(i, g)).collect::<Vec<_>>(),
        "bytes": t.bytes,
    })
}

fn group(index: usize, g: &TopologyGroup) -> Value {
    json!({
        "selector": g.selector,
        "pri": g.prio,
        "dm_st": match g.state {
            GroupState::Active => "active",
            GroupState::Enabled => "enabled",
            GroupState::Disabled => "disabled",
        },
        "group": index + 1,
        "paths": g.paths.iter().map(path).collect::<Vec<_>>(),
    })
}

fn path(p: &TopologyPath) -> Value {
    let mut all = json!({
        "dev": p.name,
        "dev_t": "0:0",
        "dm_st": if p.is_active { "active" } else { "failed" },
        "dev_st": if p.is_running { "running" } else { "offline" },
        "chk_st": p.check,
        "checker": p.checker,
        "pri": p.prio,
        "fail_count": p.fail_count,
        "in_flight": p.in_flight,
    });
    if let Some(why) = &p.trouble {
        all["trouble"] = json!(why);
    }
    all
}
