// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `mqblk serve`: disks for VMs and hosts.
//!
//! The command line becomes a checked plan ([`request`], from [`config`] or [`libvirt`]), which [`show`] prints together with the commands
//! of clients; then the daemon serves the plan until a signal arrives.

pub mod args;
mod config;
mod confinement;
pub mod control;
mod defaults;
mod exposure;
mod libvirt;
pub mod log;
pub mod metrics;
mod pidfile;
mod request;
mod servers;
mod show;
mod stack;
pub mod top;

use crate::status::{Failure, Outcome, Status};
use crate::{interrupt, output};
use args::ServeArgs;
use control::Operator;
use host::handed;
use host::privileges::Account;
use host::serve::Balance;
use host::serve::check::CheckedPlan;
use host::serve::client_memory;
use host::serve::daemon::Daemon;
use host::serve::plan::ExportKind;
use host::service::Manager;
use pidfile::Prepared;
use request::Request;
use servers::Servers;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::Arc;
use std::time::Duration;

/// Checks command line and configuration, prints the plan, and serves the disks until a signal arrives. SIGHUP makes the daemon
/// read its configuration again.
pub fn main(args: &ServeArgs) -> Outcome {
    let user = args.user.as_deref().map(account).transpose()?;
    let problems = handed::take();
    let mut request = Request::resolve(args)?;
    if !args.dry_run {
        request.warnings.extend(confinement::begin(args, request.plan.plan())?);
    }
    // From here on, messages go to the log; an error in the request was printed as by any other command.
    let _logging = (!args.dry_run).then(|| log::start(args.log_format, args.log_level));
    if let (Some(_), Some(kind)) = (&user, needs_root(&request.plan)) {
        let text = format!(
            "--user: exports of type={kind} need root again when they are removed or the daemon ends; serve them by a separate daemon"
        );
        return Err(Failure::new(text));
    }
    problems.iter().for_each(|p| ::log::warn!("{p}"));
    if args.dry_run {
        request.warnings.iter().for_each(|w| output::tell(&format!("warning: {w}")));
    }
    request.warnings.iter().for_each(|w| ::log::warn!("{w}"));
    let text = if args.json { show::json(&request.plan) } else { show::text(&request.plan) };
    let printed = output::print(&text);
    if args.dry_run {
        return printed.map(|()| Status::Done);
    }
    if let Err(e) = printed {
        ::log::warn!("the plan is not printed: {e}");
    }
    serve(args, request, user.as_ref())
}

/// Returns the kind of the first export that only root can end, if any.
fn needs_root(plan: &CheckedPlan) -> Option<&'static str> {
    let kinds = plan.exports().map(|e| &e.plan.kind);
    kinds.filter(|k| k.needs_root()).map(ExportKind::name).next()
}

fn serve(args: &ServeArgs, request: Request, user: Option<&Account>) -> Outcome {
    let failed = |e: std::io::Error| Failure::new(format!("cannot watch for signals: {e}"));
    // Registered before anything is served, so that no signal is missed. SIGHUP may come any number of times.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
    interrupt::exit_at_second(&[SIGINT, SIGTERM])?;
    let manager = Manager::of_environment()?;
    client_memory::set_limit(args.max_client_memory.unwrap_or_else(client_memory::default_limit));
    let pidfile = args.pidfile.as_deref().map(Prepared::new).transpose()?;
    // A daemon that could not be controlled begins no export.
    let control = control::Socket::bind(args.control.as_deref(), user)?;
    let (daemon, warnings) = Daemon::start(request.plan)?;
    warnings.iter().for_each(|w| ::log::warn!("{w}"));
    for export in daemon.plan().exports() {
        let name = export.plan.name.as_str();
        if let Some(device) = daemon.block_device(name) {
            ::log::info!(export = name; "export '{name}' is {device}");
        }
    }
    for text in request::unused_sockets(daemon.plan(), args.control.as_deref(), &[control::NAME, metrics::NAME]) {
        ::log::warn!("{text}");
    }
    let closing = signals.handle();
    let watchdog = manager.watch(daemon.threads())?;
    let shut_down = move || {
        interrupt::count_as_first();
        closing.close();
    };
    let operator = Arc::new(Operator::new(daemon, args.clone(), manager.clone(), shut_down));
    let mut servers = Servers::start(&operator, args, control)?;
    let pidfile = pidfile.map(Prepared::put).transpose()?;
    if let Some(user) = user {
        operator.assume(user, &servers.paths())?;
    }
    let control = servers.control().display().to_string();
    ::log::info!(pid = std::process::id(), control; "{}; Ctrl-C or SIGTERM ends it, SIGHUP reads the configuration again", operator.status());
    keep_balanced(&operator, args.balance)?;
    operator.ready();
    for _ in signals.forever().take_while(|signal| *signal == SIGHUP) {
        manager.reloading();
        match operator.reload() {
            Ok(lines) => ::log::info!("reload: done: {}", lines.join("; ")),
            Err(e) => ::log::error!("reload failed, nothing was changed: {e}"),
        }
        servers.listen_again();
        operator.ready();
    }
    manager.stopping();
    drop(watchdog);
    ::log::info!("shutting down: disconnecting clients");
    // Accept no more commands. A command in progress completes first, because `end` waits for the operator's lock.
    drop(servers);
    operator.end();
    drop(pidfile);
    ::log::info!("ended");
    Ok(Status::Done)
}

fn account(text: &str) -> Result<Account, Failure> {
    let account = Account::find(text)?;
    account.check_permitted()?;
    Ok(account)
}

/// Starts a thread that checks the load every `seconds`, until the daemon ends.
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
    started.map(drop).map_err(|e| Failure::new(format!("cannot start the load-balancing thread: {e}")))
}
