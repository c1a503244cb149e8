// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Paths that are added and removed while the disk is used: multipathd's `add path` and `del path`.
//!
//! Guarantees: a path is added only if it is open and passes the same checks as one that the disk is opened with: identity, size, blocks
//! and limits. Its group is what `path_grouping_policy` gives it; with fixed priorities, paths are regrouped if the group ranks between
//! others. A removed path gets no more requests, and its connections, also its checker's, end when its requests have completed. Requests
//! see no error while another path is left. A disk keeps one path at least.
//! Does not do: add paths with CPUs (`io-affinity`), or remember a path that cannot be opened now.
//! Source: multipathd/cli_handlers.c (`cli_add_path`, `cli_del_path`), multipathd/main.c (`ev_add_path`, `ev_remove_path`).

use super::edit::only_path;
use super::groups::{self, Member};
use super::path::{PathDriver, lock_before_open};
use crate::clock;
use crate::driver::multipath::disk::{Core, Multipath, Path, Warnings, Watched, first_prio, port_groups};
use crate::driver::multipath::options::{NoPathRetry, Prioritizer};
use crate::driver::path::CommandOutcome;
use crate::error::{Error, ErrorKind, Result};
use crate::event;
use blk::driver::Driver;
use blk::multipath::{MAX_GROUPS, NewPath, PathId, Selector};
use blk::time::Duration;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How long a command waits for the requests in flight on a path that it removes. `fast_io_fail_tmo` is shorter.
const REMOVAL_TIME: Duration = Duration::from_secs(10);
/// Interval between two looks whether they have completed.
const LOOK: Duration = Duration::from_ms(10);
/// The same when no command waits any more.
const LATE_LOOK: Duration = Duration::from_secs(1);

impl Multipath {
    /// Opens another path, checks it, and adds it.
    ///
    /// # Errors
    /// Usage: the disk cannot have such a path. Denied: the path leads to another disk, or does not fit this one. Others: it cannot be
    /// opened or started.
    pub(super) fn add_path(&self, name: &str, target: &str, prio: u32) -> Result<CommandOutcome> {
        let core = &self.core;
        let within = |e: Error| e.within(&format!("path {name}"));
        let usage = |text: &str| Err(within(Error::usage(text)));
        let Some(maker) = &self.maker else {
            return usage("the program that opened this disk does not support adding paths");
        };
        if core.options.path_selector == Selector::IoAffinity {
            return usage("path_selector=io-affinity: takes the CPUs of its paths only when the disk is opened");
        }
        let mut known = core.paths.present().into_iter().chain(core.paths.leaving());
        if let Some(same) = known.find(|p| p.driver.name == name) {
            return usage(match same.is_leaving() {
                true => "is still being removed: its requests have not completed",
                false => "is a path of this disk already",
            });
        }
        let warnings: Warnings = Arc::new(Mutex::new(Some(Vec::new())));
        let new = maker(name, target, prio, &warnings)?;
        let added = core.open_and_add(new)?;
        if let Err(e) = self.watcher.watch(Arc::clone(&added)) {
            core.take_out(&added);
            core.close_when_idle(&added);
            return Err(within(e));
        }
        {
            let _one = core.sorting.lock();
            // The operator wants this group now. A target's priorities are followed as `failback` says.
            core.sort(core.options.prio == Prioritizer::Const, None);
        }
        core.allow_queueing();
        core.came_back(&added, &[]);
        let done = format!("added path '{name}' in group {}", core.shown_group(&added));
        let warnings = warnings.lock().take().unwrap_or_default();
        Ok(CommandOutcome { done, warnings: warnings.iter().map(ToString::to_string).collect() })
    }
}

impl Core {
    /// Opens a path, and adds it if it fits the disk.
    fn open_and_add(&self, new: Path) -> Result<Arc<Watched>> {
        let Path { name, prio, args, open, probe, checker, images } = new;
        let about = format!("path {name}");
        let within = |e: Error| e.within(&about);
        let _locks = lock_before_open(&self.locks, &images).map_err(within)?;
        let inner = open().map_err(within)?;
        let paths = self.in_order();
        let Some(common) = paths.first().map(|p| p.driver.common()) else {
            return Err(within(Error::usage("its disk has no path to compare it with")));
        };
        let denied = |why: String| within(Error::new(ErrorKind::Denied, why));
        common.admit(inner.as_ref()).map_err(denied)?;
        let (its, ours) = (inner.capacity().0, common.capacity.0);
        if its != ours {
            let text = format!(
                "it has {its} sectors, the disk uses {ours}: resize the disk first (mqblk ctl resize), then add the path"
            );
            return Err(denied(text));
        }
        let trouble = port_groups(&self.options, &name, inner.as_ref())?;
        let access = inner.scsi().access();
        let prio = first_prio(&self.options, prio, access.as_ref());
        let number = paths.iter().map(|p| p.driver.number + 1).max().unwrap_or(0);
        let waits = Arc::clone(&self.hctx_waits);
        let driver = Arc::new(PathDriver::new(number, name.clone(), images, Some(inner), common, waits));
        if let Some(locks) = self.locks.get() {
            driver.lock_images(locks).map_err(within)?;
        }
        // Start the driver here: it may log in, and that must not delay the regrouping of other paths. Starting it again later costs
        // nothing.
        if let Some((nr_hw_queues, depth)) = paths.first().and_then(|p| p.driver.started()) {
            let started = driver.start(nr_hw_queues, depth).is_ok() && driver.is_usable();
            if !started {
                let why = driver.trouble().unwrap_or_else(|| "cannot be started".to_owned());
                return Err(within(Error::new(ErrorKind::Io, why)));
            }
        }
        driver.set_trouble(trouble);
        let member = Member { prio, tpg: access.as_ref().map(|a| a.group.group), is_used: true };
        let stop = event::new().map_err(within)?;
        let _listed = self.listing.lock();
        let group = self.group_for(member).map_err(within)?;
        let id = self.disk.add_path(group, NewPath { name, driver: Arc::clone(&driver) as Arc<dyn Driver>, args });
        let id = id.map_err(|e| Error::new(ErrorKind::Denied, e.to_string()))?;
        let added = Arc::new(Watched::new((id, prio, access), driver, open, probe, checker, stop));
        self.paths.add(Arc::clone(&added));
        Ok(added)
    }

    /// Returns the group for a new path: that of the paths which it belongs with by `path_grouping_policy`, or an empty one, if possible
    /// behind those that have paths.
    fn group_for(&self, new: Member) -> Result<usize> {
        let order = self.in_order();
        let mut members = self.members(&order, None);
        members.push(new);
        let number = order.len();
        let wanted = groups::grouped(self.options.path_grouping_policy, &members);
        let peers = wanted.into_iter().find(|group| group.contains(&number)).unwrap_or_default();
        let peer = peers.into_iter().find_map(|n| order.get(n));
        let groups = self.disk.status().groups;
        if let Some(at) = peer.and_then(|peer| groups.iter().position(|g| g.paths.iter().any(|p| p.id == peer.id))) {
            return Ok(at);
        }
        let behind = groups.iter().rposition(|g| !g.paths.is_empty()).map_or(0, |last| last + 1);
        let empty = || groups.iter().position(|g| g.paths.is_empty());
        let group = if behind < groups.len() { Some(behind) } else { empty() };
        group.ok_or_else(|| Error::usage(format!("the disk has {MAX_GROUPS} groups already, which is the maximum")))
    }

    /// Returns the number of a path's group as it is shown, counted from 1.
    fn shown_group(&self, path: &Watched) -> usize {
        let groups = self.disk.status().groups;
        let mut shown = groups.iter().filter(|g| !g.paths.is_empty());
        shown.position(|g| g.paths.iter().any(|p| p.id == path.id)).map_or(0, |at| at + 1)
    }

    /// Removes a path. Waits until none of its requests is in flight, for a limited time. Returns what was done.
    ///
    /// # Errors
    /// Usage: there is no such path, it is the only one, or, without `force`, the last that requests can use, and they would fail then, if
    /// only after a time.
    pub(super) fn remove_path(&self, path: &str, force: bool) -> Result<String> {
        let path = self.named(path)?;
        let name = &path.driver.name;
        let status = self.by_status();
        if status.len() < 2 {
            return Err(only_path(name));
        }
        let used: Vec<PathId> = status.iter().filter(|(_, s)| s.is_active).map(|(p, _)| p.id).collect();
        let is_last = used == [path.id];
        // With a number, they fail after a time.
        let waits = self.options.no_path_retry == NoPathRetry::Queue && self.disk.status().features.queue_if_no_path;
        if is_last && !force && !waits {
            return Err(Error::usage(format!(
                "path '{name}' is the last usable path, so requests would fail (no_path_retry={}); add or reinstate another path \
                 first, or use force (--force)",
                self.options.no_path_retry
            )));
        }
        self.take_out(&path);
        if self.signals.wait_until(clock::now() + REMOVAL_TIME, || path.is_closed()) {
            return Ok(format!("removed path '{name}'"));
        }
        Ok(format!(
            "path '{name}' gets no more requests, but still has requests or a check in flight after {} s; it is closed once these have completed",
            REMOVAL_TIME.as_ns() / 1_000_000_000
        ))
    }

    /// Keeps requests and checks away from a path.
    fn take_out(&self, path: &Watched) {
        {
            // No check fails or reinstates the path after this, because its number may be another path's then.
            let _held = path.is_held.lock();
            let _listed = self.listing.lock();
            path.leaving.store(true, Ordering::Relaxed);
            let removed = self.disk.remove_path(path.id, clock::now());
            assert!(removed.is_ok(), "a path of this disk: {removed:?}");
            self.paths.leave(path);
        }
        event::signal(&path.stop);
        self.signals.tell_removal();
    }

    /// Closes a path that is being removed as soon as none of its requests is in flight, or returns when the disk ends. Called by the
    /// path's checker, whose own connection has ended.
    pub(super) fn close_when_idle(&self, path: &Watched) {
        let late = clock::now() + REMOVAL_TIME;
        while path.is_leaving() {
            if self.disk.has_gone(path.id) {
                path.driver.close();
                self.paths.forget(path);
                // Pairs with: Watched::is_closed
                path.closed.store(true, Ordering::Release);
                self.signals.tell_removal();
                return;
            }
            let pause = if clock::now() < late { LOOK } else { LATE_LOOK };
            if self.signals.is_over_within(pause) {
                return;
            }
        }
    }
}
