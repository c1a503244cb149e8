// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk inspect`: the settings of a stack and its CPU -> hctx map, or what this host's kernel has set for its disks.

mod stack;
mod sysfs;
mod host_text;

use crate::args::InspectArgs;
use crate::output;
use crate::status::{Failure, Outcome, Status};
use serde::Serialize;
use std::path::Path;

/// Prints what was asked for.
pub fn main(args: &InspectArgs) -> Outcome {
    let text = match &args.host {
        Some(device) => {
            let device = Some(device.as_str()).filter(|d| !d.is_empty());
            let facts = sysfs::read(Path::new("/"), device).map_err(Failure::new)?;
            if args.json { json(&facts) } else { host_text::text(&facts) }
        }
        None => {
            let facts = stack::describe(&args.target, &args.settings)?;
            if args.json { json(&facts) } else { stack::text(&facts) }
        }
    };
    output::print(&text)?;
    Ok(Status::Done)
}

fn json(facts: &impl Serialize) -> String {
    let text = serde_json::to_string_pretty(facts).expect("plain data serialises");
    format!("{text}\n")
}
