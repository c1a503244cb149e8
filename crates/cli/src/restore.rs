// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk restore`: puts back settings of kernel devices that a killed run has left changed.

use crate::args::RestoreArgs;
use crate::output;
use crate::status::{Failure, Outcome, Status};
use host::kernel::{KernelDevice, put_back_left};
use std::path::Path;

/// Puts settings back, and prints which.
pub fn main(args: &RestoreArgs) -> Outcome {
    let mut devices = Vec::new();
    for name in &args.devices {
        let found = if name.contains('/') { KernelDevice::find(Path::new(name)) } else { KernelDevice::of_disk(name) };
        devices.push(found?);
    }
    let (mut said, mut whole) = (Vec::new(), true);
    if devices.is_empty() {
        (said, whole) = put_back_left(None)?;
    }
    for device in &devices {
        let (more, all) = put_back_left(Some(device))?;
        said.extend(more);
        whole &= all;
    }
    if !whole {
        return Err(Failure::new(said.join("\n")));
    }
    if args.json {
        output::print(&output::json(&serde_json::json!({ "restored": said })))?;
        return Ok(Status::Done);
    }
    let said = if said.is_empty() { vec!["nothing to restore".to_owned()] } else { said };
    output::print(&(said.join("\n") + "\n"))?;
    Ok(Status::Done)
}
