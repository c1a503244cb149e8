// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk inspect`: the settings of a stack and its CPU -> hctx map, what this host's kernel has set
//! for its disks, or the state of a run that is going on.

mod stack;
mod sysfs;
mod host_text;

use crate::args::InspectArgs;
use crate::live;
use crate::output;
use crate::status::{Failure, Outcome, Status};
use serde::Serialize;
use std::path::Path;

/// Prints what was asked for.
pub fn main(args: &InspectArgs) -> Outcome {
    if let Some(pid) = args.live {
        return live::inspect(Some(pid).filter(|p| *p != 0), &args.path, args.json);
    }
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

pub fn json(facts: &impl Serialize) -> String {
    let text = serde_json::to_string_pretty(facts).expect("plain data serialises");
    format!("{text}\n")
}
