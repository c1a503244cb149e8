// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk serve`: disks for VMs and hosts.
//!
//! What was typed becomes a checked plan ([`request`], from [`config`] or [`libvirt`]), which [`show`] prints together with
//! the commands of clients ([`hints`]); then it is served until a signal comes.

pub mod args;
mod config;
mod hints;
mod libvirt;
mod reader;
mod request;
mod show;

use crate::status::{Outcome, Status};
use crate::{interrupt, output};
use args::ServeArgs;
use host::serve::daemon::Daemon;
use request::Request;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a signal may go unseen.
const LOOK: Duration = Duration::from_millis(200);

/// Checks what was asked for, prints it, and serves it until a signal comes.
pub fn main(args: &ServeArgs) -> Outcome {
    let request = Request::resolve(args)?;
    for warning in &request.warnings {
        eprintln!("warning: {warning}");
    }
    let text = if args.json { show::json(&request.plan) } else { show::text(&request.plan) };
    output::print(&text)?;
    if args.dry_run {
        return Ok(Status::Done);
    }
    let stop = interrupt::stop_flag()?;
    let daemon = Daemon::start(&request.plan)?;
    for warning in &daemon.warnings {
        eprintln!("warning: {warning}");
    }
    eprintln!("serving on {} sockets and {} mounts; Ctrl-C or SIGTERM ends it", daemon.listeners(), daemon.mounts());
    while !stop.load(Ordering::Relaxed) {
        std::thread::park_timeout(LOOK);
    }
    drop(daemon);
    Ok(Status::Done)
}
