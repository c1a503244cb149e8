// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Executes control commands on a daemon, one change at a time.
//!
//! Guarantees: every change of the plan follows the same steps. The running plan is copied and edited, the edited plan is checked as a
//! whole, then only the differences are applied. A change is answered only after it is complete.

use super::message::{Answer, Mapped, Question};
use super::{inject, stats, topology};
use crate::serve::args::ServeArgs;
use crate::serve::config;
use crate::serve::confinement;
use crate::serve::defaults::Defaults;
use crate::serve::exposure;
use crate::serve::metrics;
use crate::serve::request::{Request, disk, flags_over_added};
use crate::serve::show::count;
use crate::status::Failure;
use host::driver::PathCommand;
use host::driver::multipath::MultipathTarget;
use host::error::Error;
use host::handed;
use host::privileges::Account;
use host::secrets::without_secrets;
use host::serve::check::{CheckedPlan, Export, HostFacts};
use host::serve::daemon::{Changes, Daemon};
use host::serve::mapping::{Mapping, MappingEntry};
use host::serve::plan::{ServePlan, TargetPlan};
use host::serve::view::View;
use host::serve::{Balance, ServedDisk};
use host::served_path::ServedPath;
use host::service::Manager;
use host::target::TargetSpec;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Executes control commands; see the module.
pub struct Operator {
    /// The daemon; `None` after its end. Locked during a change, which may have to wait for I/O.
    daemon: Mutex<Option<Daemon>>,
    /// For read-only commands, which do not wait for the lock above.
    view: Mutex<Option<Arc<View>>>,
    /// The arguments that the daemon was started with.
    args: ServeArgs,
    /// The service manager, which gets the daemon's status.
    manager: Manager,
    /// The status that the service manager last got.
    told: Mutex<String>,
    shutdown: Box<dyn Fn() + Send + Sync>,
}

/// How long the daemon may take to end before it logs the reason.
const END_TIME: Duration = Duration::from_secs(10);
const ENDING: &str = "the daemon is ending";

/// The changes made, or the first failure with the changes made before it.
type Done = Result<Value, Refused>;

struct Refused {
    message: String,
    done: Vec<String>,
}

impl<E: std::fmt::Display> From<E> for Refused {
    fn from(e: E) -> Refused {
        Refused { message: e.to_string(), done: Vec::new() }
    }
}

impl Operator {
    /// Makes the operator of a daemon that was started with `args`. `manager` is notified when the status changes; `shutdown` ends the
    /// program.
    pub fn new(
        daemon: Daemon,
        args: ServeArgs,
        manager: Manager,
        shutdown: impl Fn() + Send + Sync + 'static,
    ) -> Operator {
        let view = Mutex::new(Some(Arc::new(daemon.view())));
        let told = Mutex::new(status(&daemon));
        Operator { daemon: Mutex::new(Some(daemon)), view, args, manager, told, shutdown: Box::new(shutdown) }
    }

    /// Disconnects all clients and ends all exports and disks, after I/O in flight has completed. After `END_TIME`, logs which disks still
    /// have I/O in flight, and what to do.
    pub fn end(&self) {
        let daemon = self.lock().take();
        self.show(None);
        let served = daemon.as_ref().map(Daemon::open_disks_now).unwrap_or_default();
        let disks: Vec<Weak<ServedDisk>> = served.iter().map(Arc::downgrade).collect();
        let (ended, waits) = mpsc::channel::<()>();
        let look = move || {
            if waits.recv_timeout(END_TIME) == Err(RecvTimeoutError::Timeout) {
                disks.iter().filter_map(Weak::upgrade).for_each(|disk| say_in_flight(&disk));
            }
        };
        // If the thread cannot start, nothing is logged.
        let _ = std::thread::Builder::new().name("mqblk-ending".into()).spawn(look);
        // Release held I/O, because clients cannot be disconnected before it completes.
        for disk in served {
            disk.set_hold_on_enospc(false);
            disk.resume();
        }
        drop(daemon);
        drop(ended);
    }

    /// Returns what the daemon serves, as text; empty after its end.
    pub fn status(&self) -> String {
        self.lock().as_ref().map(status).unwrap_or_default()
    }

    /// Notifies the service manager that the daemon is ready, and of its status. The same status is not sent again until it changes.
    pub fn ready(&self) {
        let now = self.status();
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        self.manager.ready(&now);
        *told = now;
    }

    /// Returns the daemon's counters for Prometheus; empty after its end.
    pub fn metrics(&self) -> String {
        self.view().map(|view| metrics::page(&view)).unwrap_or_default()
    }

    fn view(&self) -> Option<Arc<View>> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Publishes a changed daemon: its state to read-only commands, its status to the service manager.
    fn show(&self, daemon: Option<&Daemon>) {
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = daemon.map(|d| Arc::new(d.view()));
        let Some(now) = daemon.map(status) else { return };
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        // A status that could not be sent is sent with the next change.
        if *told != now && self.manager.status(&now) {
            *told = now;
        }
    }

    /// Makes this process run as `user` from now on. That user becomes the owner of the sockets of exports and of `others`.
    ///
    /// # Errors
    /// If the switch failed: the process must end then.
    pub fn assume(&self, user: &Account, others: &[&Path]) -> Result<(), Failure> {
        let daemon = self.lock();
        let exports = daemon.as_ref().map(Daemon::sockets).unwrap_or_default();
        let others = others.iter().copied().filter(|path| !handed::has_unix(path));
        let sockets: Vec<&Path> = exports.into_iter().chain(others).collect();
        sockets.iter().try_for_each(|path| user.give(path))?;
        user.assume()?;
        if let Some(daemon) = daemon.as_ref() {
            confinement::protect_secrets(&self.args, daemon.plan().plan())?;
        }
        for path in sockets {
            if !host::privileges::may_remove(path) {
                let socket = path.display().to_string();
                log::warn!(socket; "user '{}' cannot remove this socket at shutdown: give that user write access to \
                                    its directory", user.name);
            }
        }
        log::info!(user = user.name.as_str(); "dropped root privileges");
        Ok(())
    }

    /// Checks the load of IOThreads, and moves a virtqueue if that is worth it. Returns false after the end of the daemon.
    pub fn balance(&self, balance: &mut Balance) -> bool {
        let mut daemon = self.lock();
        let Some(daemon) = daemon.as_mut() else { return false };
        if let Ok(Some(what)) = daemon.balance(balance) {
            log::info!("balance: {what}");
            self.show(Some(daemon));
        }
        true
    }

    /// Checks from now on whether the path of a socket still names it, and logs if it does not.
    pub fn watch_path(&self, socket: Option<&Arc<ServedPath>>) {
        if let (Some(daemon), Some(socket)) = (self.lock().as_ref(), socket) {
            daemon.watch_path(socket);
        }
    }

    /// Reads the configuration again and applies its differences from the running plan. Then checks the paths of images and sockets, and
    /// listens again where a socket was removed. Returns the changes made, and what does not work.
    ///
    /// # Errors
    /// The errors of the configuration; nothing was changed then.
    pub fn reload(&self) -> Result<Vec<String>, Failure> {
        let mut daemon = self.lock();
        let Some(daemon) = daemon.as_mut() else { return Ok(Vec::new()) };
        undrained(daemon).map_err(|e| Failure::new(e.message))?;
        let mut exposed = Vec::new();
        let changed = Request::read(&self.args, |plan| {
            if let Err(e) = confinement::protect_secrets(&self.args, plan.plan()) {
                log::error!("secrets may be in a core dump: {e}");
            }
            exposed = exposure::of_new_exports(daemon.plan().plan(), plan.plan());
            daemon.change(plan, false)
        });
        let paths = if changed.is_ok() { daemon.check_paths() } else { Vec::new() };
        self.show(Some(daemon));
        let (changes, mut lines) = changed?;
        lines.extend(told(&changes));
        lines.extend(exposed.iter().map(|warning| format!("warning: {warning}")));
        lines.extend(changes.failed.iter().map(|e| format!("failed: {e}")));
        lines.extend(daemon.renew_certificates());
        lines.extend(paths);
        if lines.is_empty() {
            lines.push("nothing has changed".to_owned());
        }
        Ok(lines)
    }

    /// Ends the program. Call it after the client has its answer, because the client might never get it afterwards.
    pub fn shut_down(&self) {
        (self.shutdown)();
    }

    /// Executes a command. For a shutdown, the caller calls [`Operator::shut_down`] after sending the answer.
    pub fn answer(&self, question: Question) -> Answer {
        match self.try_answer(question) {
            Ok(value) => Answer::Ok(value),
            Err(Refused { message, done }) => {
                let mut message = without_secrets(&message);
                if let Some(user) = self.args.user.as_ref().filter(|_| message.contains("Permission denied")) {
                    message += &format!(" (since --user the daemon runs as '{user}', which needs this permission)");
                }
                Answer::Error { message, done }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Daemon>> {
        self.daemon.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_answer(&self, question: Question) -> Done {
        match question {
            Question::Reload {} => return self.reload().map(Value::from).map_err(Refused::from),
            Question::Shutdown {} => return Ok(json!(["ending"])),
            Question::List {} => return Ok(stats::list(&*self.view().ok_or(ENDING)?)),
            Question::Stats {} => return Ok(stats::stats(&*self.view().ok_or(ENDING)?)),
            Question::Multipath {} => return Ok(topology::maps(&*self.view().ok_or(ENDING)?)),
            Question::Injections { disk } => return injections(&*self.view().ok_or(ENDING)?, &disk),
            _ => {}
        }
        let mut daemon = self.lock();
        let daemon = daemon.as_mut().ok_or(ENDING)?;
        let done = self.act(daemon, question);
        self.show(Some(daemon));
        done
    }

    fn act(&self, daemon: &mut Daemon, question: Question) -> Done {
        match question {
            Question::Add { disk, config, read_only } => {
                self.add(daemon, disk.as_deref(), config.as_deref(), read_only)
            }
            Question::Remove { name, force } => remove(daemon, &name, force),
            Question::Resize { disk, bytes, force } => resize(daemon, &disk, bytes, force),
            Question::Set { disk, settings } => set(daemon, &disk, settings),
            Question::Drain { disk } => on_disks(daemon, disk.as_deref(), |name, disk| {
                let took = disk.drain()?;
                Ok(format!("disk '{name}' is drained; that took {} us", took.as_ns() / 1000))
            }),
            Question::Resume { disk } => on_disks(daemon, disk.as_deref(), |name, disk| {
                let was = disk.resume();
                Ok(format!("disk '{name}' {}", if was { "resumed" } else { "was not drained" }))
            }),
            Question::FailPath { disk, path } => on_paths(daemon, &disk, &PathCommand::FailPath(path)),
            Question::ReinstatePath { disk, path } => on_paths(daemon, &disk, &PathCommand::ReinstatePath(path)),
            Question::SwitchGroup { disk, group } => on_paths(daemon, &disk, &PathCommand::SwitchGroup(group)),
            Question::AddPath { disk, target, prio } => {
                self.repath(daemon, &disk, false, |of| of.with_path(&target, prio))
            }
            Question::RemovePath { disk, path, force } => {
                self.repath(daemon, &disk, force, |of| of.without_path(&path))
            }
            Question::Inject { disk, rule } => {
                on_disk(daemon, &disk, |disk| inject::add(disk, &rule).map(|line| vec![line]))
            }
            Question::RemoveInjection { disk, id } => on_disk(daemon, &disk, |disk| inject::remove(disk, id)),
            Question::Move { export, virtqueue, iothread } => move_one(daemon, &export, virtqueue, iothread),
            Question::Map { export, iothreads } => map(daemon, &export, iothreads),
            Question::Reload {}
            | Question::Shutdown {}
            | Question::List {}
            | Question::Stats {}
            | Question::Multipath {}
            | Question::Injections { .. } => {
                unreachable!("answered above")
            }
        }
    }

    fn add(&self, daemon: &mut Daemon, target: Option<&str>, config: Option<&str>, read_only: bool) -> Done {
        let defaults = Defaults::new(&self.args, &HostFacts::read());
        let mut more = match (target, config) {
            (Some(target), None) => disk(Path::new(target), &defaults)?,
            (None, Some(text)) => config::read("added configuration", text, &defaults)?.plan,
            _ => return Err("name a disk to be added, or give a configuration".into()),
        };
        flags_over_added(&mut more, &self.args);
        more.disks.iter_mut().for_each(|d| d.read_only |= read_only);
        let mut plan = daemon.plan().plan().clone();
        plan.iothreads.append(&mut more.iothreads);
        plan.disks.append(&mut more.disks);
        plan.exports.append(&mut more.exports);
        confinement::protect_secrets(&self.args, &plan)?;
        change(daemon, plan, false)
    }

    /// Gives a multipath disk other paths. A multipath disk in a stripe is named `DISK/NUMBER`.
    fn repath(
        &self,
        daemon: &mut Daemon,
        name: &str,
        force: bool,
        edit: impl Fn(&MultipathTarget) -> Result<MultipathTarget, Error>,
    ) -> Done {
        let (disk, member) = member_of(daemon, name)?;
        let mut plan = daemon.plan().plan().clone();
        let target = &mut plan.disks[disk].targets[member];
        let TargetSpec::Multipath(of) = &target.spec else {
            return Err(format!("disk '{name}': is not a multipath disk, so it has no paths").into());
        };
        let edited = edit(of).map_err(|e| format!("disk '{name}': {e}"))?;
        *target = TargetPlan { text: edited.masked(), spec: TargetSpec::Multipath(Box::new(edited)) };
        confinement::protect_secrets(&self.args, &plan)?;
        change(daemon, plan, force)
    }
}

/// Returns what a daemon serves, as text.
fn status(daemon: &Daemon) -> String {
    let plan = daemon.plan();
    format!(
        "serving on {} and {}: {}, {}",
        count(daemon.listeners(), "socket"),
        count(daemon.mounts(), "mount"),
        count(plan.disks().len(), "disk"),
        count(plan.exports().count(), "export")
    )
}

/// Logs that the ending daemon waits for a disk's I/O, if it does.
fn say_in_flight(disk: &ServedDisk) {
    let n = disk.stats().in_flight;
    if n == 0 {
        return;
    }
    let (name, why) = (disk.name.as_str(), disk.troubles().join("; "));
    let requests = if n == 1 { "request" } else { "requests" };
    let and = if why.is_empty() { "" } else { ": " };
    log::warn!(
        disk = name;
        "shutdown waits for {n} {requests} in flight at disk '{name}'{and}{why}; another SIGTERM exits without their \
         completions"
    );
}

fn told(changes: &Changes) -> impl Iterator<Item = String> {
    changes.done.iter().cloned().chain(changes.warnings.iter().map(|w| format!("warning: {w}")))
}

/// Rejects changes while a disk is drained: the daemon would wait for the held I/O, and no client could resume the disk.
fn undrained(daemon: &Daemon) -> Result<(), Refused> {
    let drained = |name: &&String| daemon.disk(name).is_some_and(|d| d.is_drained());
    match daemon.plan().disks().iter().map(|d| &d.name).find(drained) {
        Some(name) => Err(format!("disk '{name}' is drained: resume it first").into()),
        None => Ok(()),
    }
}

/// Checks an edited plan and applies its differences.
fn change(daemon: &mut Daemon, plan: ServePlan, by_force: bool) -> Done {
    undrained(daemon)?;
    let plan = plan.check_running(&HostFacts::read())?;
    let exposed = exposure::of_new_exports(daemon.plan().plan(), plan.plan());
    let changes = daemon.change(plan, by_force)?;
    let done: Vec<_> = told(&changes).chain(exposed.iter().map(|warning| format!("warning: {warning}"))).collect();
    match changes.failed.first() {
        None => Ok(Value::from(done)),
        Some(e) => Err(Refused { message: e.to_string(), done }),
    }
}

fn export<'a>(plan: &'a CheckedPlan, name: &str) -> Result<(usize, Export<'a>), Refused> {
    let found = plan.exports().enumerate().find(|(_, e)| e.plan.name == name);
    found.ok_or_else(|| {
        let hint = blk::suggest::did_you_mean(name, plan.exports().map(|e| e.plan.name.as_str()));
        Refused::from(format!("there is no export '{name}'; {hint}see mqblk ctl list"))
    })
}

fn disk_index(plan: &CheckedPlan, name: &str) -> Result<usize, Refused> {
    plan.disks().iter().position(|d| d.name == name).ok_or_else(|| {
        let hint = blk::suggest::did_you_mean(name, plan.disks().iter().map(|d| d.name.as_str()));
        Refused::from(format!("there is no disk '{name}'; {hint}see mqblk ctl list"))
    })
}

fn remove(daemon: &mut Daemon, name: &str, force: bool) -> Done {
    let plan = daemon.plan();
    let is_disk = disk_index(plan, name).is_ok();
    if !is_disk && let Err(unknown) = export(plan, name) {
        let ended = daemon.finish(name, force)?;
        return if ended { Ok(json!([format!("ended '{name}'")])) } else { Err(unknown) };
    }
    let ends = |e: &Export<'_>| e.plan.name == name || is_disk && e.plan.disk == name;
    let used: Vec<_> = plan.exports().filter(|e| ends(e) && daemon.clients(e) > 0).map(|e| &e.plan.name).collect();
    if let (false, Some(first)) = (force, used.first()) {
        let text =
            format!("export '{first}' has clients: stop them first, or use force (--force), which disconnects them");
        return Err(text.into());
    }
    let mut plan = plan.plan().clone();
    plan.exports.retain(|e| !(e.name == name || is_disk && e.disk == name));
    if is_disk {
        plan.disks.retain(|d| d.name != name);
    }
    // An object of this name that was removed before may not have ended yet.
    let before = if force { daemon.finish(name, true) } else { Ok(false) };
    let mut done = change(daemon, plan, force)?;
    let lines = done.as_array_mut();
    match before {
        Ok(false) => Ok(done),
        Ok(true) => {
            lines.into_iter().for_each(|lines| {
                lines.insert(0, json!(format!("ended the earlier '{name}': its removal had not completed")));
            });
            Ok(done)
        }
        Err(e) => {
            let lines = lines.into_iter().flatten().filter_map(|line| line.as_str().map(str::to_owned));
            Err(Refused { done: lines.collect(), message: e.to_string() })
        }
    }
}

fn resize(daemon: &mut Daemon, name: &str, bytes: Option<u64>, force: bool) -> Done {
    disk_index(daemon.plan(), name)?;
    let had = daemon.disk(name).map_or(0, |d| d.bytes());
    let (now, keep) = daemon.resize(name, bytes, force)?;
    let mut done = vec![match now == had {
        true => format!("disk '{name}' keeps its size of {now} bytes"),
        false => format!("resized disk '{name}' from {had} to {now} bytes"),
    }];
    done.extend(keep);
    Ok(json!(done))
}

fn set(daemon: &mut Daemon, name: &str, settings: BTreeMap<String, String>) -> Done {
    let index = disk_index(daemon.plan(), name)?;
    let mut plan = daemon.plan().plan().clone();
    let all = &mut plan.disks[index].settings;
    all.retain(|(key, _)| !settings.contains_key(key));
    all.extend(settings);
    change(daemon, plan, false)
}

fn on_disks(
    daemon: &Daemon,
    only: Option<&str>,
    act: impl Fn(&str, &ServedDisk) -> Result<String, host::error::Error>,
) -> Done {
    if let Some(name) = only {
        disk_index(daemon.plan(), name)?;
    }
    let mut done = Vec::new();
    for plan in daemon.plan().disks().iter().filter(|d| only.is_none_or(|o| o == d.name)) {
        let Some(disk) = daemon.disk(&plan.name) else { continue };
        match act(&plan.name, disk) {
            Ok(line) => done.push(line),
            Err(e) => return Err(Refused { message: format!("disk '{}': {e}", plan.name), done }),
        }
    }
    Ok(Value::from(done))
}

/// Carries out a command on a disk, which returns a line for each step.
fn on_disk(daemon: &Daemon, name: &str, act: impl Fn(&ServedDisk) -> Result<Vec<String>, String>) -> Done {
    disk_index(daemon.plan(), name)?;
    let lines = daemon.disk(name).map_or(Ok(Vec::new()), |disk| act(disk));
    Ok(Value::from(lines.map_err(|e| format!("disk '{name}': {e}"))?))
}

fn injections(daemon: &View, name: &str) -> Done {
    disk_index(daemon.plan(), name)?;
    Ok(json!({ "injections": daemon.disk(name).map(|disk| inject::rules(&disk)) }))
}

/// Carries out a command on the paths of a disk. A multipath disk in a stripe is named `DISK/NUMBER`, as `multipath` names it.
fn on_paths(daemon: &Daemon, name: &str, command: &PathCommand) -> Done {
    let (disk, at) = member_of(daemon, name)?;
    let members = daemon.disk(&daemon.plan().disks()[disk].name).map(|d| d.members()).unwrap_or_default();
    let Some(member) = members.get(at) else { return Ok(json!([])) };
    let done = member.driver.path().command(command).map_err(|e| format!("disk '{name}': {e}"))?.done;
    Ok(json!([format!("disk '{name}': {done}")]))
}

/// Returns the indices of a disk in the plan and of its member of this name: `DISK`, or `DISK/NUMBER` in a stripe.
fn member_of(daemon: &Daemon, name: &str) -> Result<(usize, usize), Refused> {
    let in_stripe = name.rsplit_once('/').and_then(|(disk, at)| Some((disk, at.parse::<usize>().ok()?)));
    let in_stripe = in_stripe.filter(|(disk, _)| daemon.disk(disk).is_some());
    let disk = in_stripe.map_or(name, |(disk, _)| disk);
    let index = disk_index(daemon.plan(), disk)?;
    let n = daemon.plan().disks()[index].targets.len();
    let at = in_stripe.map_or(0, |(_, at)| at);
    if at >= n || in_stripe.is_none() && n > 1 {
        let last = n.saturating_sub(1);
        return Err(format!("disk '{name}': is striped over {n} targets; name one, {disk}/0 to {disk}/{last}").into());
    }
    Ok((index, at))
}

/// Moves one virtqueue, by a mapping that names the IOThread of each virtqueue.
fn move_one(daemon: &mut Daemon, name: &str, virtqueue: u16, iothread: String) -> Done {
    let plan = daemon.plan();
    let (_, export) = export(plan, name)?;
    let Some(n) = export.plan.kind.num_queues().filter(|n| virtqueue < *n) else {
        let has = export.plan.kind.num_queues().map_or("none".to_owned(), |n| format!("0..={}", n - 1));
        return Err(format!("export '{name}' has no virtqueue {virtqueue}; it has {has}").into());
    };
    let of = |vq: u16| plan.iothreads()[export.iothreads[usize::from(vq)]].name.clone();
    let mut lists: BTreeMap<String, Vec<u16>> = BTreeMap::new();
    for vq in 0..n {
        let thread = if vq == virtqueue { iothread.clone() } else { of(vq) };
        lists.entry(thread).or_default().push(vq);
    }
    let entries = lists.into_iter().map(|(name, vqs)| Mapped { name, virtqueues: Some(vqs) });
    map(daemon, name, entries.collect())
}

fn map(daemon: &mut Daemon, name: &str, iothreads: Vec<Mapped>) -> Done {
    let (index, _) = export(daemon.plan(), name)?;
    let mut plan = daemon.plan().plan().clone();
    let entries = iothreads.into_iter().map(|m| MappingEntry { iothread: m.name, vqs: m.virtqueues });
    plan.exports[index].mapping = Mapping { entries: entries.collect() };
    change(daemon, plan, false)
}
