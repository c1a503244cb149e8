// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The running daemon: carries out a plan (IOThreads run, disks are open and locked, exports listen), and changes to another plan.
//!
//! Guarantees: the daemon starts completely or not at all. A change to another plan does not disturb what is the same in both.
//! [`Daemon::plan`] is what actually runs, also after a change that failed in part. Images stay locked as long as they are served. When a
//! disk or the daemon ends, its clients are dropped first. Then its I/O in flight completes, then the disk is closed, so nothing that was
//! acknowledged is lost.

mod paths;

use super::balance::{Balance, Move};
use super::begin::{self, OpenDisk};
use super::check::{CheckedPlan, Export, PlanErrors};
use super::ending::{END_TIME, Ending};
use super::path_watch::PathWatch;
use super::plan::{NbdListen, serves_connections};
use super::preflight::preflight_added;
use super::reload::{Reload, reload};
use super::repath::Repathed;
use super::running::{Clients, ExportPlace, RunningExport, socket_gone};
use super::view::View;
use super::watch::DiskWatch;
use super::{IoThreads, ServedDisk, ThreadReport};
use crate::error::{Error, ErrorKind, Result};
use crate::export::nbd::{ClientDrain, NbdDisk, NbdExport};
use crate::net::certificates::{OLD_ONES, Renewal};
use crate::target::{TargetWarning, add_new};
use blk::id::SECTOR_SHIFT;
use blk::time::{Duration, Instant};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

/// The running daemon. See the module's text. Fields are dropped in this order.
pub struct Daemon {
    /// By name.
    exports: HashMap<String, Box<dyn RunningExport>>,
    servers: Vec<Server>,
    disks: HashMap<String, OpenDisk>,
    threads: Arc<IoThreads>,
    /// Numbers of IOThreads by name.
    numbers: HashMap<String, usize>,
    plan: CheckedPlan,
    /// Exports that have disconnected their clients and wait for their I/O.
    endings: Vec<Ending>,
    watch: DiskWatch,
    paths: PathWatch,
    began: Instant,
}

/// Exports that share a socket.
struct Server {
    listen: NbdListen,
    nbd: NbdExport,
}

/// What a change did.
#[derive(Debug, Default)]
pub struct Changes {
    /// What was changed, as text for a person, one line each.
    pub done: Vec<String>,
    /// Warnings for the user: where the result differs from the request.
    pub warnings: Vec<TargetWarning>,
    /// Changes that failed; they are not in the running plan.
    pub failed: Vec<Error>,
}

/// What a line of [`Changes`] is about.
#[derive(Clone, Copy)]
enum About<'a> {
    Disk(&'a str),
    Export(&'a str),
    IoThread(&'a str),
}

impl Changes {
    fn note(&mut self, about: About<'_>, what: String) {
        match about {
            About::Disk(disk) => log::info!(disk; "{what}"),
            About::Export(export) => log::info!(export; "{what}"),
            About::IoThread(iothread) => log::info!(iothread; "{what}"),
        }
        self.done.push(what);
    }

    /// Notes a failure of the daemon as a whole.
    fn fail(&mut self, e: Error) {
        log::error!("{e}");
        self.failed.push(e);
    }

    /// Notes a failure of one of many.
    fn fail_of(&mut self, about: About<'_>, e: Error) {
        let within = |kind, name| e.within(&format!("{kind} '{name}'"));
        let e = match about {
            About::Disk(disk) => within("disk", disk),
            About::Export(export) => within("export", export),
            About::IoThread(iothread) => within("IOThread", iothread),
        };
        match about {
            About::Disk(disk) => log::error!(disk; "{e}"),
            About::Export(export) => log::error!(export; "{e}"),
            About::IoThread(iothread) => log::error!(iothread; "{e}"),
        }
        self.failed.push(e);
    }
}

impl Daemon {
    /// Starts everything in a plan. Also returns warnings where the result differs from the plan.
    pub fn start(plan: CheckedPlan) -> Result<(Daemon, Vec<TargetWarning>)> {
        let steps = Reload::all(&plan);
        let mut daemon = Daemon {
            exports: HashMap::new(),
            servers: Vec::new(),
            disks: HashMap::new(),
            threads: Arc::new(IoThreads::start(&[])?),
            numbers: HashMap::new(),
            plan: plan.clone(),
            endings: Vec::new(),
            watch: DiskWatch::start()?,
            paths: PathWatch::start()?,
            began: crate::clock::now(),
        };
        let changes = daemon.carry_out(plan, &steps, ChangeMode { all_or_nothing: true, by_force: false });
        match changes.failed.into_iter().next() {
            Some(e) => Err(e),
            None => Ok((daemon, changes.warnings)),
        }
    }

    /// Returns how long the daemon has run.
    pub fn uptime(&self) -> Duration {
        crate::clock::now().since(self.began)
    }

    /// Returns the running plan.
    pub fn plan(&self) -> &CheckedPlan {
        &self.plan
    }

    /// Returns the disk of this name.
    pub fn disk(&self, name: &str) -> Option<&Arc<ServedDisk>> {
        self.disks.get(name).map(|d| &d.served)
    }

    /// Returns all open disks, including those that left the plan and still wait for their I/O.
    pub fn open_disks_now(&self) -> Vec<Arc<ServedDisk>> {
        let served = self.disks.values().map(|d| Arc::clone(&d.served));
        let mut all: Vec<_> = served.chain(self.endings.iter().flat_map(Ending::disks)).collect();
        all.sort_unstable_by_key(Arc::as_ptr);
        all.dedup_by(|a, b| Arc::ptr_eq(a, b));
        all
    }

    /// Returns the paths of Unix sockets that were made for exports.
    pub fn sockets(&self) -> Vec<&Path> {
        let mut all: Vec<&Path> = self
            .plan
            .exports()
            .filter_map(|e| e.plan.kind.unix_socket())
            .filter(|path| !crate::handed::has_unix(path))
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Returns the number of listening sockets.
    pub fn listeners(&self) -> usize {
        self.count_at(ExportPlace::Socket) + self.servers.len()
    }

    /// Returns the number of mounted files.
    pub fn mounts(&self) -> usize {
        self.count_at(ExportPlace::Mount)
    }

    fn count_at(&self, place: ExportPlace) -> usize {
        self.exports.values().filter(|e| e.place() == place).count()
    }

    /// Returns reports of the IOThreads. Sleeping threads are woken for it.
    pub fn report(&self) -> Vec<ThreadReport> {
        self.threads.report()
    }

    /// Returns the IOThreads.
    pub fn threads(&self) -> &Arc<IoThreads> {
        &self.threads
    }

    /// Returns the number of clients of an export.
    pub fn clients(&self, export: &Export<'_>) -> usize {
        self.count(export).map_or(0, |count| count())
    }

    fn count(&self, export: &Export<'_>) -> Option<Clients> {
        match export.plan.nbd() {
            Some(nbd) => Some(self.server(&nbd.listen)?.nbd.clients_of(&nbd.name)),
            None => Some(self.exports.get(&export.plan.name)?.clients()),
        }
    }

    /// Checks whether certificates were renewed. Returns a line for each server whose certificates were, or could not be.
    pub fn renew_certificates(&self) -> Vec<String> {
        let look = |s: &Server| match s.nbd.tls()?.renew() {
            Renewal::Same => None,
            Renewal::Renewed => Some(format!("renewed the certificates of the NBD server at {}", s.listen)),
            Renewal::Failed(problem) => Some(format!("failed: NBD server at {}: {problem}; {OLD_ONES}", s.listen)),
        };
        self.servers.iter().filter_map(look).collect()
    }

    /// Returns the block device of this host for an export that is one.
    pub fn block_device(&self, export: &str) -> Option<String> {
        self.exports.get(export)?.block_device()
    }

    /// Returns a view of the daemon as it is now, which can be read while the daemon is being changed.
    pub fn view(&self) -> View {
        let disks = self.disks.iter().map(|(name, d)| (name.clone(), Arc::downgrade(&d.served)));
        let certificates = |export: &Export<'_>| self.server(&export.plan.nbd()?.listen)?.nbd.certificates();
        let gone = |export: &Export<'_>| match export.plan.nbd() {
            Some(nbd) => socket_gone(self.server(&nbd.listen)?.nbd.socket()),
            None => self.exports.get(&export.plan.name)?.gone(),
        };
        View {
            plan: self.plan.clone(),
            began: self.began,
            threads: Arc::clone(&self.threads),
            disks: disks.collect(),
            images: self.disks.iter().map(|(name, disk)| (name.clone(), disk.images.clone())).collect(),
            clients: self.by_export(|e| self.count(e)),
            certificates: self.by_export(certificates),
            gone: self.by_export(gone),
        }
    }

    fn by_export<T>(&self, of: impl Fn(&Export<'_>) -> Option<T>) -> HashMap<String, T> {
        self.plan.exports().filter_map(|e| Some((e.plan.name.clone(), of(&e)?))).collect()
    }

    /// Changes the running plan to another one; what is the same in both is not touched. An export that ends disconnects its clients when
    /// their requests have completed. If that takes longer than 10 s, the end continues in the background and counts as failed. With
    /// `by_force` the I/O fails instead, which all users of the disk see.
    ///
    /// # Errors
    /// What prevents the change, as far as that can be known in advance; nothing has changed then.
    pub fn change(&mut self, mut new: CheckedPlan, by_force: bool) -> std::result::Result<Changes, PlanErrors> {
        let steps = reload(&self.plan, &mut new);
        preflight_added(&new, &steps)?;
        Ok(self.carry_out(new, &steps, ChangeMode { all_or_nothing: false, by_force }))
    }

    /// Whether an export or disk that left the plan still waits for its I/O. With `by_force` that I/O fails now, as in
    /// [`Daemon::change`].
    ///
    /// # Errors
    /// The export or disk has not ended yet; the text says why, and what to do.
    pub fn finish(&mut self, name: &str, by_force: bool) -> Result<bool> {
        self.endings.retain(|e| !e.wait(std::time::Instant::now()));
        // There may be several, if the name was reused.
        let (named, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.endings).into_iter().partition(|e| e.is_of(name));
        self.endings = others;
        let (any, mut stuck) = (!named.is_empty(), None);
        for ending in named {
            if !(by_force && ending.give_up()) {
                stuck.get_or_insert_with(|| ending.stuck());
                self.endings.push(ending);
            }
        }
        stuck.map_or(Ok(any), Err)
    }

    /// As [`ServedDisk::resize`]; clients are notified. Also returns, in sentences, which clients keep the old size.
    pub fn resize(&self, disk: &str, bytes: Option<u64>, shrink: bool) -> Result<(u64, Vec<String>)> {
        let served = self.disk(disk).ok_or_else(|| Error::usage(format!("there is no disk '{disk}'")))?;
        let exports = self.plan.exports().filter(|e| e.plan.disk == disk);
        let block = exports.filter_map(|e| e.plan.geometry.logical).max();
        let now = served.resize(bytes, shrink, block)?;
        // A client that cannot be notified is no reason not to notify the others.
        let mut untold = Vec::new();
        for server in &self.servers {
            if let Err(e) = server.nbd.resized() {
                untold.push(format!("the NBD server at {} keeps the old size: {e}", server.listen));
            }
        }
        let mut keep = Vec::new();
        for export in self.plan.exports().filter(|e| e.plan.disk == disk) {
            if let Some(running) = self.exports.get(&export.plan.name)
                && let Err(e) = running.resized(now >> SECTOR_SHIFT)
            {
                let export = export.plan.name.as_str();
                log::warn!(export, disk; "{e}");
                keep.push(format!("export '{export}': {e}"));
            }
        }
        if untold.is_empty() {
            return Ok((now, keep));
        }
        untold.append(&mut keep);
        let text = format!("disk '{disk}' has {now} bytes now, but {}", untold.join("; "));
        Err(Error::new(ErrorKind::Io, text))
    }

    /// Checks the load of IOThreads, and moves a virtqueue or client if that is worth it. Returns what it did. Virtqueues that a mapping
    /// lists stay; those that were distributed over named IOThreads move only among these.
    ///
    /// # Errors
    /// The move was not possible; nothing has changed.
    pub fn balance(&mut self, balance: &mut Balance) -> Result<Option<String>> {
        // With one IOThread there is no target for a move, so no thread is woken for a report.
        if self.numbers.len() < 2 {
            return Ok(None);
        }
        let wanted = balance.look(&self.threads.report(), |kind, name, index| self.may_be(kind, name, index));
        let Some(Move { handle, kind, export, index, from, to, loads }) = wanted else { return Ok(None) };
        let name = |number: usize| self.numbers.iter().find(|(_, n)| **n == number).map_or("?", |(name, _)| name);
        let (share, there) = (loads.0 * 100.0, loads.1 * 100.0);
        let what = format!(
            "moved queue {index} of {kind} export '{export}' from IOThread '{}' ({share:.0} % busy) to '{}' ({there:.0} %)",
            name(from),
            name(to)
        );
        match self.exports.get(&export).and_then(|running| Some((running, running.mapping()?))) {
            Some((running, mut mapping)) => {
                // An export that is still ending may have had more queues than its successor of the same name.
                let Some(thread) = mapping.get_mut(index as usize) else { return Ok(None) };
                *thread = to;
                running.remap(&mapping)?;
                let iothreads = self.places(&self.plan, &mapping);
                let place = self.plan.exports().position(|e| e.plan.name == export);
                self.plan.keep_mapping(place.expect("what runs is in the plan"), iothreads);
            }
            None => drop(self.threads.move_to(&handle, to)?),
        }
        Ok(Some(what))
    }

    /// Returns the IOThreads that may serve a queue; `None` if the queue must stay where it is.
    fn may_be(&self, kind: &str, name: &str, index: u32) -> Option<Vec<usize>> {
        let export = self.plan.exports().find(|e| e.plan.kind.name() == kind && e.plan.name == name)?;
        let entries = &export.plan.mapping.entries;
        // Requests that are held back do not complete, so their queue could not move.
        let is_away = |d: &ServedDisk| d.connections().is_some_and(|c| c.up < c.wanted);
        let holds = |d: &ServedDisk| d.is_drained() || d.held_on_enospc() > 0 || d.injection().has_delays();
        let held = self.disk(&export.plan.disk).is_none_or(|d| holds(d) || is_away(d));
        let here = !held && export.plan.kind.num_queues().is_none_or(|n| index < u32::from(n));
        if !here || entries.iter().any(|e| e.vqs.is_some()) {
            return None;
        }
        let named = |name: &String| entries.is_empty() || entries.iter().any(|e| e.iothread == *name);
        Some(self.plan.iothreads().iter().filter(|t| named(&t.name)).map(|t| self.numbers[&t.name]).collect())
    }

    fn server(&self, listen: &NbdListen) -> Option<&Server> {
        self.servers.iter().find(|s| s.listen.is_same(listen))
    }

    /// Returns the numbers of the IOThreads of an export.
    fn numbers(&self, plan: &CheckedPlan, export: &Export<'_>) -> Vec<usize> {
        export.iothreads.iter().map(|i| self.numbers[&plan.iothreads()[*i].name]).collect()
    }

    /// Returns the indices of the IOThreads of these numbers in a plan.
    fn places(&self, plan: &CheckedPlan, numbers: &[usize]) -> Vec<usize> {
        let at = |n: &usize| plan.iothreads().iter().position(|t| self.numbers[&t.name] == *n).unwrap_or(0);
        numbers.iter().map(at).collect()
    }

    /// Carries out the steps. If an IOThread is missing, nothing else is done; with `all_or_nothing`, the same applies if a disk cannot be
    /// opened.
    fn carry_out(&mut self, mut new: CheckedPlan, steps: &Reload, mode: ChangeMode) -> Changes {
        let mut changes = Changes::default();
        self.iothreads(&new, steps, &mut changes);
        if new.iothreads().iter().any(|t| !self.numbers.contains_key(&t.name)) {
            return changes;
        }
        let mut lost = Lost::default();
        self.end(steps, mode.by_force, &mut lost, &mut changes);
        self.open_disks(&new, steps, &mut lost, &mut changes);
        if mode.all_or_nothing && !changes.failed.is_empty() {
            return changes;
        }
        self.reset_disks(&mut new, steps, &mut changes);
        self.repath_disks(&mut new, steps, mode.by_force, &mut changes);
        self.begin_exports(&new, steps, &mut lost, &mut changes);
        self.remap_exports(&mut new, steps, &mut changes);
        new.remove(&lost.disks, &lost.exports);
        for name in &steps.stop_iothreads {
            match self.threads.stop_one(self.numbers[name]) {
                Ok(()) => {
                    self.numbers.remove(name);
                    changes.note(About::IoThread(name), format!("stopped IOThread '{name}'"));
                }
                Err(e) => changes.fail(e),
            }
        }
        self.plan = new;
        changes
    }

    fn iothreads(&mut self, new: &CheckedPlan, steps: &Reload, changes: &mut Changes) {
        for plan in steps.start_iothreads.iter().map(|i| &new.iothreads()[*i]) {
            // The IOThread may be left from an earlier change that could not stop it.
            if self.numbers.contains_key(&plan.name) {
                continue;
            }
            match self.threads.start_one(&begin::thread_options(plan)) {
                Ok(number) => {
                    self.numbers.insert(plan.name.clone(), number);
                    changes.note(About::IoThread(&plan.name), format!("started IOThread '{}'", plan.name));
                }
                Err(e) => changes.fail(e),
            }
        }
        for plan in steps.retune_iothreads.iter().map(|i| &new.iothreads()[*i]) {
            let options = begin::thread_options(plan);
            match self.threads.retune(self.numbers[&plan.name], options.polling, &options.cpus) {
                Ok(()) => changes
                    .note(About::IoThread(&plan.name), format!("applied polling and CPUs to IOThread '{}'", plan.name)),
                Err(e) => changes.fail_of(About::IoThread(&plan.name), e),
            }
        }
    }

    /// Ends exports, and then closes disks that no export uses any more.
    fn end(&mut self, steps: &Reload, by_force: bool, lost: &mut Lost, changes: &mut Changes) {
        self.endings.retain(|e| !e.wait(std::time::Instant::now()));
        // First, because exports wait for their delayed requests.
        let closing = steps.close_disks.iter().filter_map(|name| self.disks.get(name));
        closing.for_each(|disk| disk.served.end_injection());
        let mut endings = self.end_servers(steps, lost, changes);
        let mut closed: HashMap<&String, Arc<OpenDisk>> = HashMap::new();
        for name in &steps.close_disks {
            closed.extend(self.disks.remove(name).map(|disk| (name, Arc::new(disk))));
        }
        // The ending export keeps the disk open, and its image locked, until then.
        let used = |name: &String| (closed.get(name).cloned(), self.disks.get(name).map(|d| &d.served));
        let plan = &self.plan;
        let disks_of = |exports: &[String]| {
            let mut names: Vec<_> =
                plan.exports().filter(|e| exports.contains(&e.plan.name)).map(|e| &e.plan.disk).collect();
            names.sort_unstable();
            names.dedup();
            names.into_iter().map(used).collect::<Vec<_>>()
        };
        let served = |(open, served): &(Option<Arc<OpenDisk>>, Option<&Arc<ServedDisk>>)| {
            open.as_ref().map(|o| &o.served).or(*served).cloned()
        };
        let mut all = Vec::new();
        for name in &steps.end_exports {
            if let Some(running) = self.exports.remove(name) {
                endings.push((vec![name.clone()], Box::new(running)));
            }
        }
        for (names, what) in endings {
            let disks = disks_of(&names);
            let (served, open): (Vec<_>, Vec<_>) =
                (disks.iter().filter_map(served).collect(), disks.into_iter().filter_map(|(open, _)| open).collect());
            // Dropped in this order.
            all.push(Ending::begin(names, &served, (what, open)));
        }
        let until = std::time::Instant::now() + END_TIME;
        for ending in all {
            if ending.wait(until) || by_force && ending.give_up() {
                for name in ending.names() {
                    changes.note(About::Export(name), format!("ended export '{name}'"));
                }
            } else {
                changes.fail(ending.stuck());
                self.endings.push(ending);
            }
        }
        for (name, open) in closed {
            // None: an export that is still ending keeps the disk open.
            match Arc::into_inner(open).map(OpenDisk::close) {
                Some(Ok(())) => changes.note(About::Disk(name), format!("closed disk '{name}'")),
                Some(Err(e)) => changes.fail(e),
                None => {}
            }
        }
    }

    /// Returns what must be dropped of NBD servers, each with the names of its exports. A server without remaining exports is dropped. A
    /// server that cannot continue with the remaining exports is dropped, too, and these count as lost until they have begun again.
    fn end_servers(
        &mut self,
        steps: &Reload,
        lost: &mut Lost,
        changes: &mut Changes,
    ) -> Vec<(Vec<String>, Box<dyn Send>)> {
        let mut endings: Vec<(Vec<String>, Box<dyn Send>)> = Vec::new();
        for server in std::mem::take(&mut self.servers) {
            let here = self.plan.exports().filter(|e| begin::listens_at(e, &server.listen));
            let (ended, kept): (Vec<_>, Vec<_>) = here.partition(|e| steps.end_exports.contains(&e.plan.name));
            if !ended.is_empty() {
                let disk = |e: &Export<'_>| begin::nbd_disk(&self.plan, e, &self.disks, self.numbers(&self.plan, e));
                let disks: Vec<_> = kept.iter().map(disk).collect();
                let mut names: Vec<_> = ended.iter().map(|e| e.plan.name.clone()).collect();
                if disks.is_empty() {
                    endings.push((names, Box::new(server)));
                    continue;
                }
                let most = begin::most_connections(&self.plan, &server.listen);
                match update(&server.nbd, disks, most) {
                    Ok(departure) => endings.push((names, Box::new(departure))),
                    Err(e) => {
                        // Otherwise the server would continue to serve disks that are closed.
                        changes.fail(e.within(&format!("NBD server at {}", server.listen)));
                        lost.exports.extend(kept.iter().map(|e| e.plan.name.clone()));
                        names.extend(kept.iter().map(|e| e.plan.name.clone()));
                        endings.push((names, Box::new(server)));
                        continue;
                    }
                }
            }
            self.servers.push(server);
        }
        endings
    }

    fn open_disks(&mut self, new: &CheckedPlan, steps: &Reload, lost: &mut Lost, changes: &mut Changes) {
        for plan in steps.open_disks.iter().map(|i| &new.disks()[*i]) {
            match OpenDisk::open(&self.threads, plan) {
                Ok((disk, warnings)) => {
                    add_new(&mut changes.warnings, warnings);
                    changes.note(About::Disk(&plan.name), format!("opened disk '{}'", plan.name));
                    self.watch.add(&disk.served);
                    disk.images.iter().for_each(|image| self.paths.add(image));
                    self.disks.insert(plan.name.clone(), disk);
                }
                Err(e) => {
                    lost.disks.insert(plan.name.clone());
                    changes.fail_of(About::Disk(&plan.name), e);
                }
            }
        }
    }

    fn reset_disks(&mut self, new: &mut CheckedPlan, steps: &Reload, changes: &mut Changes) {
        for index in &steps.reset_disks {
            let plan = &new.disks()[*index];
            let (name, settings) = (plan.name.clone(), plan.settings.clone());
            let disk = self.disks.get_mut(&name).expect("a disk that is reset is open");
            match disk.reset(settings) {
                Ok(None) => changes.note(About::Disk(&name), format!("changed settings of disk '{name}'")),
                Ok(Some(froze)) => {
                    let us = froze.as_ns() / 1000;
                    let text = format!("changed settings of disk '{name}'; new I/O was held for {us} us");
                    changes.note(About::Disk(&name), text);
                }
                Err(e) => {
                    new.keep_settings(*index, disk.settings.clone());
                    changes.fail_of(About::Disk(&name), e);
                }
            }
        }
    }

    /// Adds and removes paths of multipath disks.
    fn repath_disks(&mut self, new: &mut CheckedPlan, steps: &Reload, by_force: bool, changes: &mut Changes) {
        for index in &steps.repath_disks {
            let wanted = new.disks()[*index].clone();
            let name = wanted.name.as_str();
            let was =
                self.plan.disks().iter().find(|d| d.name == name).expect("a disk whose paths change is in the plan");
            let disk = self.disks.get_mut(name).expect("a disk whose paths change is open");
            let Repathed { targets, done, warnings, failed } = disk.repath(was, &wanted, by_force);
            disk.images.iter().for_each(|image| self.paths.add(image));
            new.keep_targets(*index, targets);
            done.into_iter().for_each(|line| changes.note(About::Disk(name), line));
            add_new(&mut changes.warnings, warnings);
            failed.into_iter().for_each(|e| changes.fail_of(About::Disk(name), e));
        }
    }

    fn begin_exports(&mut self, new: &CheckedPlan, steps: &Reload, lost: &mut Lost, changes: &mut Changes) {
        for index in &steps.begin_exports {
            let export = new.exports().nth(*index).expect("steps are of this plan");
            let name = &export.plan.name;
            let Some(disk) = self.disks.get(&export.plan.disk) else { continue };
            match begin::begin(&self.threads, disk, new, &export, self.numbers(new, &export)) {
                Ok(Some(running)) => {
                    running.socket().into_iter().for_each(|socket| self.paths.add(socket));
                    self.exports.insert(name.clone(), running);
                    changes.note(About::Export(name), format!("began export '{name}'"));
                }
                Ok(None) => {}
                Err(e) => {
                    lost.exports.insert(name.clone());
                    changes.fail_of(About::Export(name), e);
                }
            }
        }
        self.begin_servers(new, steps, lost, changes);
    }

    /// Starts or updates the NBD servers of the new plan; exports that share a socket share a server.
    fn begin_servers(&mut self, new: &CheckedPlan, steps: &Reload, lost: &mut Lost, changes: &mut Changes) {
        let all: Vec<_> = new.exports().collect();
        for server in new.nbd_servers() {
            let again: Vec<_> =
                server.exports.iter().filter(|i| lost.exports.contains(&all[**i].plan.name)).copied().collect();
            let is_new = |i: &usize| steps.begin_exports.contains(i) || again.contains(i);
            if !server.exports.iter().any(|i| is_new(i) || steps.remap_exports.contains(i)) {
                continue;
            }
            let here = server.exports.iter().filter(|i| self.disks.contains_key(&all[**i].plan.disk));
            let disks: Vec<NbdDisk> =
                here.map(|i| begin::nbd_disk(new, &all[*i], &self.disks, self.numbers(new, &all[*i]))).collect();
            if disks.is_empty() {
                continue;
            }
            let most = begin::most_connections(new, server.listen);
            let begun = match self.server(server.listen) {
                // Clients that had to be disconnected are already gone.
                Some(running) => update(&running.nbd, disks, most).map(drop),
                None => begin::nbd_server(&self.threads, new, &server, disks).map(|nbd| {
                    nbd.socket().into_iter().for_each(|socket| self.paths.add(socket));
                    self.servers.push(Server { listen: server.listen.clone(), nbd });
                }),
            };
            for index in server.exports.iter().filter(|i| is_new(i)) {
                let name = &all[*index].plan.name;
                match &begun {
                    Ok(()) => {
                        lost.exports.remove(name);
                        changes.note(About::Export(name), format!("began export '{name}'"));
                    }
                    Err(_) => drop(lost.exports.insert(name.clone())),
                }
            }
            if let Err(e) = begun {
                changes.fail(e.within(&format!("NBD server at {}", server.listen)));
            }
        }
    }

    fn remap_exports(&mut self, new: &mut CheckedPlan, steps: &Reload, changes: &mut Changes) {
        for index in &steps.remap_exports {
            let export = new.exports().nth(*index).expect("steps are of this plan");
            let (name, numbers) = (export.plan.name.clone(), self.numbers(new, &export));
            let moved = match self.exports.get(&name) {
                Some(running) => running.remap(&numbers),
                None if serves_connections(export.plan.kind.name()) => {
                    self.move_clients(export.plan.kind.name(), &name, &numbers)
                }
                None => continue,
            };
            match moved {
                Ok(longest) => {
                    let us = longest.as_ns() / 1000;
                    let text = format!(
                        "moved export '{name}' to other IOThreads; no queue or connection paused for more than {us} us"
                    );
                    changes.note(About::Export(&name), text);
                }
                Err(e) => {
                    if let Some(mapping) = self.exports.get(&name).and_then(|running| running.mapping()) {
                        let iothreads = self.places(new, &mapping);
                        new.keep_mapping(*index, iothreads);
                    }
                    changes.fail_of(About::Export(&name), e);
                }
            }
        }
    }

    /// Moves the clients of an export without queues to these IOThreads. Returns the longest time in which a client was not served.
    ///
    /// # Errors
    /// Io: the requests of one client do not complete; the clients after it were not moved.
    fn move_clients(&self, kind: &str, export: &str, numbers: &[usize]) -> Result<Duration> {
        let mut longest = Duration::ZERO;
        let mut to = numbers.iter().cycle();
        for report in self.threads.report().iter().filter(|r| !numbers.contains(&r.number)) {
            for source in report.sources.iter().filter(|s| s.kind == kind && s.export == export) {
                let Some(to) = to.next() else { return Ok(longest) };
                match self.threads.move_to(&source.handle, *to) {
                    Ok(took) => longest = longest.max(took),
                    Err(e) if e.kind() == ErrorKind::Io => return Err(e),
                    // A client that has left in the meantime need not be moved.
                    Err(_) => {}
                }
            }
        }
        Ok(longest)
    }
}

impl Drop for Daemon {
    /// Leaves no socket, device or mount behind; also waits for exports that ended earlier and still wait for their I/O.
    fn drop(&mut self) {
        self.disks.values().for_each(|disk| disk.served.end_injection());
        self.exports.clear();
        self.servers.clear();
        self.disks.clear();
        self.endings.iter().for_each(Ending::wait_for_it);
    }
}

/// How a change is made.
#[derive(Clone, Copy)]
struct ChangeMode {
    /// If a disk cannot be opened, no export is begun.
    all_or_nothing: bool,
    /// Exports that do not end are forced to, by failing their I/O.
    by_force: bool,
}

/// Disks and exports of the new plan that could not be opened or begun.
#[derive(Default)]
struct Lost {
    disks: HashSet<String>,
    exports: HashSet<String>,
}

fn update(server: &NbdExport, disks: Vec<NbdDisk>, most: usize) -> Result<ClientDrain> {
    let default = disks.first().map(|d| d.name.clone());
    server.update(disks, default.as_deref(), most)
}
