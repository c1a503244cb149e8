// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk discover`: the targets of an iSCSI portal, and their disks. A line per portal of a target, in the form of `iscsiadm -m
//! discovery`; with `--luns` below it what may follow `--target`, one per disk.
//!
//! Guarantees: what can be printed when a target fails is printed, and the failure told behind it.

use crate::args::DiscoverArgs;
use crate::output;
use crate::status::{Failure, Outcome, Status};
use host::driver::iscsi::{self, Found, FoundUnit, IscsiTarget};
use lab::report::num::{self, Scale};
use serde::Serialize;
use std::fmt::Write;

#[derive(Serialize)]
struct Told {
    target: String,
    portals: Vec<Place>,
    #[serde(skip_serializing_if = "Option::is_none")]
    luns: Option<Vec<Unit>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Serialize)]
struct Place {
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

/// Asks, and says what was found.
pub fn main(args: &DiscoverArgs) -> Outcome {
    let portal = iscsi::parse_portal(&args.portal)?;
    let told: Vec<Told> = iscsi::discover(&portal)?.into_iter().map(|t| look(&portal, t, args.luns)).collect();
    if args.json {
        output::print(&output::json(&told))?;
    } else {
        output::print(&told.iter().map(text).collect::<String>())?;
    }
    if told.is_empty() {
        let at = &portal.portal;
        return Err(Failure::new(format!(
            "portal {at} has no target for this host: allow it there (by name or address)"
        )));
    }
    match told.into_iter().find_map(|t| t.error) {
        Some(error) => Err(Failure::new(error)),
        None => Ok(Status::Done),
    }
}

fn look(portal: &IscsiTarget, found: Found, with_luns: bool) -> Told {
    let Found { name, portals } = found;
    let portals = portals.into_iter().map(|p| Place { address: p.address, group: p.group }).collect();
    let asked = with_luns.then(|| iscsi::logical_units(portal, &name));
    let (luns, error) = match asked {
        None => (None, None),
        Some(Ok(units)) => (Some(units.into_iter().map(|u| unit(portal, &name, u)).collect()), None),
        Some(Err(e)) => (None, Some(e.to_string())),
    };
    Told { target: name, portals, luns, error }
}

fn unit(portal: &IscsiTarget, name: &str, found: FoundUnit) -> Unit {
    let user = portal.chap.as_ref().map_or_else(String::new, |chap| format!("{}@", chap.user));
    let url = format!("iscsi://{user}{}/{name}/{}", portal.portal, found.lun.0);
    let FoundUnit { lun, bytes, block_size, identity } = found;
    Unit { lun: lun.0, bytes, block_size, identity, url }
}

fn text(told: &Told) -> String {
    let mut out = String::new();
    for Place { address, group } in &told.portals {
        let group = group.map_or_else(String::new, |g| format!(",{g}"));
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{address}{group} {}", told.target);
    }
    if told.portals.is_empty() {
        // It is where it was asked for.
        let _ = writeln!(out, "- {}", told.target);
    }
    for Unit { bytes, block_size, identity, url, .. } in told.luns.iter().flatten() {
        let _ = writeln!(out, "    {url}  {}, blocks of {block_size}, {identity}", num::bytes(*bytes, Scale::Binary));
    }
    out
}
