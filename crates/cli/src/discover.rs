// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk discover`: the targets of an iSCSI portal, and their disks. Prints a line per portal of a target, in the form of
//! `iscsiadm -m discovery`. With `--luns`, a line per disk follows, with the argument for `--target`.
//!
//! Guarantees: if a target fails, all other results are still printed; the failure is reported after them.

use crate::args::DiscoverArgs;
use crate::output;
use crate::status::{Failure, Outcome, Status};
use host::driver::iscsi::{self, Found, FoundUnit, IscsiTarget};
use lab::report::num::{self, Scale};
use serde::Serialize;
use std::fmt::Write;

#[derive(Serialize)]
struct Discovered {
    target: String,
    portals: Vec<Portal>,
    #[serde(skip_serializing_if = "Option::is_none")]
    luns: Option<Vec<Unit>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Serialize)]
struct Portal {
    address: String,
    group: Option<u16>,
}

#[derive(Serialize)]
struct Unit {
    lun: u16,
    bytes: u64,
    block_size: u32,
    identity: String,
    url: String,
}

/// Queries the portal, and prints what it finds.
pub fn main(args: &DiscoverArgs) -> Outcome {
    let portal = iscsi::parse_portal(&args.portal)?;
    let discovered: Vec<Discovered> =
        iscsi::discover(&portal)?.into_iter().map(|t| look(&portal, t, args.luns)).collect();
    if args.json {
        output::print(&output::json(&serde_json::json!({ "targets": discovered })))?;
    } else {
        output::print(&discovered.iter().map(text).collect::<String>())?;
    }
    if discovered.is_empty() {
        let at = &portal.portal;
        return Err(Failure::new(format!(
            "portal {at} has no target for this host: allow this host at the target (by initiator name or address)"
        )));
    }
    match discovered.into_iter().find_map(|t| t.error) {
        Some(error) => Err(Failure::new(error)),
        None => Ok(Status::Done),
    }
}

fn look(portal: &IscsiTarget, found: Found, with_luns: bool) -> Discovered {
    let Found { name, portals } = found;
    let portals = portals.into_iter().map(|p| Portal { address: p.address, group: p.group }).collect();
    let asked = with_luns.then(|| iscsi::logical_units(portal, &name));
    let (luns, error) = match asked {
        None => (None, None),
        Some(Ok((units, failed))) => {
            (Some(units.into_iter().map(|u| unit(portal, &name, u)).collect()), failed.map(|e| e.to_string()))
        }
        Some(Err(e)) => (None, Some(e.to_string())),
    };
    Discovered { target: name, portals, luns, error }
}

fn unit(portal: &IscsiTarget, name: &str, found: FoundUnit) -> Unit {
    let user = portal.chap.as_ref().map_or_else(String::new, |chap| format!("{}@", chap.user));
    let url = format!("iscsi://{user}{}/{name}/{}", portal.portal, found.lun.0);
    let FoundUnit { lun, bytes, block_size, identity } = found;
    Unit { lun: lun.0, bytes, block_size, identity, url }
}

fn text(discovered: &Discovered) -> String {
    let mut out = String::new();
    for Portal { address, group } in &discovered.portals {
        let group = group.map_or_else(String::new, |g| format!(",{g}"));
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{address}{group} {}", discovered.target);
    }
    if discovered.portals.is_empty() {
        // A target without portals of its own is at the portal that was queried.
        let _ = writeln!(out, "- {}", discovered.target);
    }
    for Unit { bytes, block_size, identity, url, .. } in discovered.luns.iter().flatten() {
        let _ = writeln!(out, "    {url}  {}, blocks of {block_size}, {identity}", num::bytes(*bytes, Scale::Binary));
    }
    out
}
