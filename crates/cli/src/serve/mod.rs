// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk serve`: disks for VMs and hosts.
//!
//! What was typed becomes a checked plan ([`request`], from [`config`] or [`libvirt`]), which [`show`] prints together with
//! the commands of clients ([`hints`]). Who serves takes the same [`request::Request`] and starts its `plan`.

pub mod args;
mod config;
mod hints;
mod libvirt;
mod reader;
mod request;
mod show;

use crate::output;
use crate::status::{Outcome, Status};
use args::ServeArgs;
use request::Request;

/// Checks what was asked for and prints it.
pub fn main(args: &ServeArgs) -> Outcome {
    let request = Request::resolve(args)?;
    for warning in &request.warnings {
        eprintln!("warning: {warning}");
    }
    let text = if args.json { show::json(&request.plan) } else { show::text(&request.plan) };
    output::print(&text)?;
    Ok(Status::Done)
}
