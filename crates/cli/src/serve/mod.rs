// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk serve`: disks for VMs and hosts.
//!
//! What was typed becomes a checked plan ([`request`], from [`config`] or [`libvirt`]), which [`show`] prints together with
//! the commands of clients ([`hints`]); then it is served until a signal comes.

pub mod args;
mod config;
pub mod control;
mod hints;
mod libvirt;
mod reader;
mod request;
mod show;

use crate::status::{Failure, Outcome, Status};
use crate::{interrupt, output};
use args::ServeArgs;
use control::{Operator, Server};
use host::serve::Balance;
use host::serve::daemon::Daemon;
use request::Request;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::Arc;
use std::time::Duration;

/// Checks what was asked for, prints it, and serves it until a signal comes. SIGHUP has it read again.
pub fn main(args: &ServeArgs) -> Outcome {
    let request = Request::resolve(args)?;
    warn(&request.warnings);
    let text = if args.json { show::json(&request.plan) } else { show::text(&request.plan) };
    output::print(&text)?;
    if args.dry_run {
        return Ok(Status::Done);
    }
    let failed = |e: std::io::Error| Failure::new(format!("cannot watch for signals: {e}"));
    // Before anything is served, so that nobody's signal is missed; the flag is for who signals twice.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
    interrupt::stop_flag()?;
    let (daemon, warnings) = Daemon::start(request.plan)?;
    warn(&warnings);
    let (sockets, mounts) = (daemon.listeners(), daemon.mounts());
    for export in daemon.plan().exports() {
        if let Some(device) = daemon.block_device(&export.plan.name) {
            eprintln!("export '{}' is {device}", export.plan.name);
        }
    }
    let closing = signals.handle();
    let operator = Arc::new(Operator::new(daemon, args.clone(), move || closing.close()));
    let server = Server::start(&operator, args.control.as_deref())?;
    eprintln!(
        "serving on {sockets} sockets and {mounts} mounts; Ctrl-C or SIGTERM ends it, SIGHUP reads the configuration again"
    );
    keep_balanced(&operator, args.balance)?;
    for signal in signals.forever() {
        if signal != SIGHUP {
            break;
        }
        match operator.reload() {
            Ok(lines) => lines.iter().for_each(|line| eprintln!("reload: {line}")),
            Err(e) => eprintln!("reload: nothing was done: {e}"),
        }
    }
    // Who asks meanwhile is answered before anything ends.
    drop(server);
    operator.end();
    Ok(Status::Done)
}

/// Has a thread look at the load every so often, until the daemon ends.
fn keep_balanced(operator: &Arc<Operator>, seconds: f64) -> Result<(), Failure> {
    if seconds == 0.0 {
        return Ok(());
    }
    let (operator, pause) = (Arc::downgrade(operator), Duration::from_secs_f64(seconds));
    let look = move || {
        let mut balance = Balance::default();
        loop {
            std::thread::sleep(pause);
            let goes_on = operator.upgrade().is_some_and(|operator| operator.balance(&mut balance));
            if !goes_on {
                return;
            }
        }
    };
    let started = std::thread::Builder::new().name("mqblk-balance".into()).spawn(look);
    started.map(drop).map_err(|e| Failure::new(format!("cannot start the thread that looks at the load: {e}")))
}

fn warn<T: std::fmt::Display>(warnings: &[T]) {
    for warning in warnings {
        eprintln!("warning: {warning}");
    }
}
