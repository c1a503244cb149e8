// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk inspect`: the settings of a stack with its CPU -> hctx map, the kernel's settings of this host's disks, or the state
//! of a running job.

mod stack;
mod sysfs;
mod host_text;
pub mod export;

use crate::args::InspectArgs;
use crate::live;
use crate::machine_file;
use crate::output;
use crate::status::{Failure, Outcome, Status};
use std::path::Path;

/// Prints the settings, the host or the run that `args` select.
pub fn main(args: &InspectArgs) -> Outcome {
    if let Some(pid) = args.live {
        return live::inspect(Some(pid).filter(|p| *p != 0), &args.path, args.json);
    }
    let host = args.device.as_ref().or(args.host.as_ref());
    if let Some(file) = &args.export {
        let costs = args.costs.as_deref().map(machine_file::costs_of).transpose()?;
        let text = host_machine(host.map(String::as_str), costs.as_deref())?;
        machine_file::write("--export", file, &text, args.force)?;
        output::print(&format!(
            "wrote {}; 'mqblk profile --machine' adds the disk's times from a workload\n",
            file.display()
        ))?;
        return Ok(Status::Done);
    }
    let text = match host {
        Some(device) => {
            let device = Some(device.as_str()).filter(|d| !d.is_empty());
            let facts = sysfs::read(Path::new("/"), device).map_err(Failure::new)?;
            if args.json { output::json(&facts) } else { host_text::text(&facts) }
        }
        None => {
            let facts = stack::describe(&args.target, &args.settings)?;
            if args.json { output::json(&facts) } else { stack::text(&facts) }
        }
    };
    output::print(&text)?;
    Ok(Status::Done)
}

/// The machine file of this host, with a disk.
pub fn host_machine(device: Option<&str>, costs: Option<&str>) -> Result<String, Failure> {
    let root = Path::new("/");
    let facts = sysfs::read(root, device.filter(|d| !d.is_empty())).map_err(Failure::new)?;
    let disk = facts.devices.first().filter(|_| device.is_some_and(|d| !d.is_empty()));
    Ok(export::text(root, facts.kernel.as_deref(), disk, costs))
}
