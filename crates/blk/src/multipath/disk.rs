// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The disk: its paths and groups, which paths are usable, and the owner's calls and events.
//!
//! Guarantees: I/O reads usable paths and their drivers without a lock, also while they change. Source:
//! drivers/md/dm-mpath.c.

use super::config::{Features, MAX_GROUPS, MAX_PATHS, PathId, PgInit};
use super::group::{Group, GroupsState, Path, Wanted};
use super::hctx::MultipathHctx;
use super::selector::{PathArgs, Policy, Selector, Selectors};
use crate::driver::Driver;
use crate::id::{MAX_CPUS, Sector};
use crate::limits::Limits;
use crate::lock::Lock;
use crate::relaxed::FieldU8;
use crate::sync::{AtomicU16, AtomicU64, Mutex, Ordering};
use crate::time::{Duration, Instant};
use crossbeam_utils::CachePadded;
use std::sync::{Arc, OnceLock};

/// Number of different drivers that a disk keeps in its lifetime. Drivers of removed paths are kept; adding the same
/// driver again does not count again.
pub(crate) const MAX_LIVES: usize = 1024;

/// Flag in [`Multipath::at`]: the path is being removed and gets no more requests.
pub(super) const LEAVING: u16 = 1 << 15;
const NO_DRIVER: u16 = LEAVING | (LEAVING - 1);

/// A path to be added: name, driver, and arguments for the selector.
pub struct NewPath {
    /// Its name in messages: `8:16`, `sdb`, an address.
    pub name: String,
    /// The driver that reaches the disk by this path.
    pub driver: Arc<dyn Driver>,
    /// Arguments for the group's selector.
    pub args: PathArgs,
}

/// A priority group to be made.
pub struct NewGroup {
    /// How it spreads requests over its paths.
    pub selector: Selector,
    /// Its paths; may be empty.
    pub paths: Vec<NewPath>,
}

/// A hardware handler: makes the controller behind a path serve it (ALUA, or a vendor's method) before I/O goes
/// there.
pub trait Handler: Send + Sync {
    /// Name as in the table: "alua".
    fn name(&self) -> &str;

    /// Starts the activation of this path after the time `after`, and does not block. The handler calls
    /// [`Multipath::pg_init_done`] once when the activation is done. Called without a lock held, also from inside I/O.
    fn activate(&self, path: PathId, after: Duration);
}

/// Events of a disk. The receiver may not call the disk or its queue from the callback: it runs inside I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathEvent {
    /// A path failed.
    PathFailed(PathId),
    /// A path is usable again, or new.
    PathReinstated(PathId),
    /// Waiting requests may be issued: run the queue ([`quiesce`](crate::queue::RequestQueue::quiesce), then
    /// `unquiesce`).
    RunQueue,
}

/// Why a path or change was rejected; the text names rule, value and remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MultipathError(String);

fn refused<T>(text: String) -> Result<T, MultipathError> {
    Err(MultipathError(text))
}

/// Receiver of events.
pub type Listener = Box<dyn Fn(PathEvent) + Send + Sync>;

/// A hardware queue that was started once is never removed.
type HctxPlace<L> = OnceLock<Box<CachePadded<MultipathHctx<L>>>>;

/// A multipath disk: its paths and groups. See the module's text.
pub struct Multipath<L: Lock> {
    /// Usable paths of the current group as a mask. 0 = a group has to be chosen or activated: ask [`GroupsState`].
    pub(super) open: CachePadded<AtomicU64>,
    /// By path number: the path's group.
    pub(super) group_of: [FieldU8; MAX_PATHS],
    /// Number of usable paths of each group.
    pub(super) valid: [FieldU8; MAX_GROUPS],
    /// Path numbers in use as a mask, including paths that are being removed.
    pub(super) known: AtomicU64,
    /// By path number: index in `drivers`, and the flag [`LEAVING`].
    pub(super) at: [AtomicU16; MAX_PATHS],
    /// Never removed, so that I/O uses them without a lock.
    pub(super) drivers: Box<[OnceLock<Arc<dyn Driver>>]>,
    pub(super) policies: Vec<Policy>,
    pub(super) selectors: Selectors,
    pub(super) hctxs: Box<[HctxPlace<L>]>,
    pub(super) limits: Limits,
    /// In sectors.
    pub(super) capacity: AtomicU64,
    pub(super) handler: Option<Box<dyn Handler>>,
    pub(super) listener: Listener,
    pub(super) state: Mutex<L, GroupsState>,
    /// Hardware queues and depth, once started.
    pub(super) started: Mutex<L, Option<(u16, u32)>>,
}

/// Returns the strictest of all limits. A chunk boundary stays in force, because requests are not split again here.
fn stacked<'a>(all: impl Iterator<Item = &'a Limits> + Clone) -> Limits {
    let chunk = all.clone().map(|l| l.chunk_sectors).filter(|c| *c > 0).min().unwrap_or(0);
    Limits { chunk_sectors: chunk, ..Limits::stacked(all) }
}

impl<L: Lock> Multipath<L> {
    /// Makes a disk of these groups; the first has the highest priority. `node_of` has the NUMA node of each CPU, for
    /// io-affinity; it is empty if all CPUs are of one node.
    ///
    /// # Errors
    /// There is no path, there are too many paths or groups, two paths have one name, or paths cannot lead to the same
    /// disk.
    pub fn new(
        groups: Vec<NewGroup>,
        features: Features,
        handler: Option<Box<dyn Handler>>,
        node_of: &[u16],
        listener: Listener,
    ) -> Result<Multipath<L>, MultipathError> {
        let all: Vec<&NewPath> = groups.iter().flat_map(|g| &g.paths).collect();
        if all.is_empty() || all.len() > MAX_PATHS || groups.len() > MAX_GROUPS {
            let (n, g) = (all.len(), groups.len());
            return refused(format!(
                "{n} paths in {g} groups: must be 1..={MAX_PATHS} paths, at most {MAX_GROUPS} groups"
            ));
        }
        let limits: Vec<Limits> = all.iter().map(|p| p.driver.limits()).collect();
        let (limits, capacity) = (stacked(limits.iter()), all[0].driver.capacity());
        let ids = |group: &NewGroup, first: usize| -> Vec<(u8, Vec<u16>)> {
            group.paths.iter().enumerate().map(|(i, p)| ((first + i) as u8, p.args.cpus.clone())).collect()
        };
        let mut first = 0;
        let mut policies = Vec::new();
        for group in &groups {
            policies.push(Policy::new(group.selector, &ids(group, first), node_of));
            first += group.paths.len();
        }
        let state = GroupsState::new(
            groups.iter().map(|g| Group { selector: g.selector, bypassed: false }).collect(),
            features,
            handler.is_some(),
        );
        let disk = Multipath {
            open: CachePadded::new(AtomicU64::new(0)),
            group_of: core::array::from_fn(|_| FieldU8::default()),
            valid: core::array::from_fn(|_| FieldU8::default()),
            known: AtomicU64::new(0),
            at: core::array::from_fn(|_| AtomicU16::new(NO_DRIVER)),
            drivers: (0..MAX_LIVES).map(|_| OnceLock::new()).collect(),
            policies,
            selectors: Selectors::new(),
            hctxs: (0..MAX_CPUS).map(|_| OnceLock::new()).collect(),
            limits,
            capacity: AtomicU64::new(capacity.0),
            handler,
            listener: Box::new(|_| {}),
            state: Mutex::new(state),
            started: Mutex::new(None),
        };
        for (group, new) in groups.into_iter().enumerate() {
            for path in new.paths {
                disk.add(group, path)?;
            }
        }
        Ok(Multipath { listener, ..disk })
    }

    /// Takes over the size of a disk all of whose paths have grown. Paths that are added later must have it.
    pub fn set_capacity(&self, capacity: Sector) {
        self.capacity.store(capacity.0, Ordering::Relaxed);
    }

    /// Adds a path to a group; it is usable at once.
    ///
    /// # Errors
    /// The group does not exist, no path number is free, or the name is in use. The driver differs from the disk in
    /// capacity or blocks, has stricter limits, or cannot be started. With io-affinity, CPUs are rejected as well,
    /// because that selector keeps the CPUs of each path number from the start.
    pub fn add_path(&self, group: usize, new: NewPath) -> Result<PathId, MultipathError> {
        if matches!(self.policies.get(group), Some(Policy::IoAffinity(_))) && !new.args.cpus.is_empty() {
            return refused(format!(
                "path {}: selector io-affinity takes path CPUs only at creation; recreate the disk with this path",
                new.name
            ));
        }
        self.add(group, new)
    }

    fn add(&self, group: usize, new: NewPath) -> Result<PathId, MultipathError> {
        self.check_path(group, &new)?;
        let started = self.started.lock();
        if let Some((nr_hw_queues, depth)) = *started
            && let Err(e) = new.driver.start(nr_hw_queues, depth)
        {
            return refused(format!("path {}: {e}", new.name));
        }
        let mut state = self.state.lock();
        self.forget_removed(&mut state);
        if state.present().any(|(_, p)| p.name == new.name) {
            return refused(format!("path {}: already exists; remove it first", new.name));
        }
        let Some(free) = state.paths.iter().position(Option::is_none) else {
            return refused(format!(
                "path {}: the disk already has the maximum of {MAX_PATHS} paths; remove one first",
                new.name
            ));
        };
        let Some(index) = self.keep_driver(&new.driver) else {
            return refused(format!(
                "path {}: the limit of {MAX_LIVES} path additions is reached; recreate the disk",
                new.name
            ));
        };
        let id = PathId(free as u8);
        self.selectors.add(free, new.args.throughput);
        self.group_of[free].set(group as u8);
        let NewPath { name, args, .. } = new;
        state.paths[free] = Some(Path { name, group, args, is_active: true, fail_count: 0, is_leaving: false });
        self.at[free].store(index, Ordering::SeqCst); // Pairs with: Multipath::choose
        self.known.fetch_or(1 << free, Ordering::Relaxed);
        let wanted = state.came_up(id, group);
        self.publish(&state);
        drop((state, started));
        (self.listener)(PathEvent::PathReinstated(id));
        self.see_to(wanted);
        Ok(id)
    }

    fn check_path(&self, group: usize, new: &NewPath) -> Result<(), MultipathError> {
        let name = &new.name;
        let (n, capacity, limits) = (self.policies.len(), new.driver.capacity(), new.driver.limits());
        if group >= n {
            return refused(format!("path {name}: group {group}: must be below {n}"));
        }
        let ours = self.capacity.load(Ordering::Relaxed);
        if capacity.0 != ours {
            let its = capacity.0;
            return refused(format!("path {name}: leads to another disk: {its} sectors, instead of {ours}"));
        }
        if limits.logical_block_size != self.limits.logical_block_size || limits.write_cache != self.limits.write_cache
        {
            return refused(format!(
                "path {name}: leads to another disk: blocks of {} bytes and write cache {}, instead of {} and {}",
                limits.logical_block_size, limits.write_cache, self.limits.logical_block_size, self.limits.write_cache
            ));
        }
        let both = stacked([&self.limits, &limits].into_iter());
        let comparable = Limits { physical_block_size: self.limits.physical_block_size, ..both };
        if comparable != self.limits {
            return refused(format!(
                "path {name}: its limits are stricter than the disk's; recreate the disk with this path"
            ));
        }
        Ok(())
    }

    fn keep_driver(&self, driver: &Arc<dyn Driver>) -> Option<u16> {
        let is_it = |d: &OnceLock<Arc<dyn Driver>>| d.get().is_none_or(|d| Arc::ptr_eq(d, driver));
        let index = self.drivers.iter().position(is_it)?;
        self.drivers[index].get_or_init(|| driver.clone());
        Some(index as u16)
    }

    /// Removes a path. The path gets no more requests, and is gone when none of its requests is in flight. Returns
    /// whether it is gone already; if not, ask [`Multipath::has_gone`]. The disk keeps the path's driver, unused, until
    /// it is dropped.
    ///
    /// # Errors
    /// The path does not exist.
    pub fn remove_path(&self, id: PathId, now: Instant) -> Result<bool, MultipathError> {
        let mut state = self.state.lock();
        let Some(path) = state.paths.get_mut(id.index()).and_then(Option::as_mut).filter(|p| !p.is_leaving) else {
            return refused(format!("path number {}: does not exist", id.0));
        };
        path.is_leaving = true;
        // Marked, then in-flight requests are checked; an issuing thread counts, then checks the mark.
        self.at[id.index()].fetch_or(LEAVING, Ordering::SeqCst); // Pairs with: Multipath::choose
        state.note_no_path(now);
        self.publish(&state);
        self.forget_removed(&mut state);
        Ok(state.paths[id.index()].is_none())
    }

    /// Whether a removed path is gone. Also true for a path that never existed, and when another path has got its
    /// number.
    pub fn has_gone(&self, id: PathId) -> bool {
        let mut state = self.state.lock();
        self.forget_removed(&mut state);
        state.paths[id.index()].as_ref().is_none_or(|p| !p.is_leaving)
    }

    /// Frees the numbers of removed paths that have nothing in flight.
    pub(super) fn forget_removed(&self, state: &mut GroupsState) {
        for (i, path) in state.paths.iter_mut().enumerate() {
            if path.as_ref().is_some_and(|p| p.is_leaving) && self.in_flight(i) == 0 {
                *path = None;
                self.known.fetch_and(!(1 << i), Ordering::Relaxed);
            }
        }
    }

    /// Requests in flight at a path.
    pub(super) fn in_flight(&self, path: usize) -> u32 {
        // Pairs with: Multipath::choose
        let of = |h: &HctxPlace<L>| h.get().map_or(0, |h| h.in_flight[path].load(Ordering::SeqCst));
        self.hctxs.iter().map(of).sum()
    }

    /// Returns the number of the path with this name.
    pub fn path(&self, name: &str) -> Option<PathId> {
        self.state.lock().present().find(|(_, p)| p.name == name).map(|(id, _)| id)
    }

    /// `fail_path`: the path gets no more requests; those in flight there may still complete. Does nothing if the
    /// path has failed already.
    pub fn fail_path(&self, id: PathId, now: Instant) {
        let mut state = self.state.lock();
        let failed = state.fail(id, now);
        self.publish(&state);
        drop(state);
        if failed {
            (self.listener)(PathEvent::PathFailed(id));
        }
    }

    /// `reinstate_path`: the path may be used again.
    pub fn reinstate_path(&self, id: PathId) {
        let mut state = self.state.lock();
        let Some(wanted) = state.reinstate(id) else { return };
        self.publish(&state);
        drop(state);
        (self.listener)(PathEvent::PathReinstated(id));
        self.see_to(wanted);
    }

    /// `switch_group`: the next request goes to this group, numbered from 0.
    ///
    /// # Errors
    /// The group does not exist. [`Multipath::disable_group`] and [`Multipath::enable_group`] fail for the same reason.
    pub fn switch_group(&self, group: usize) -> Result<(), MultipathError> {
        self.change_group(group, |state| state.switch(group))
    }

    /// `disable_group`: the group is used only if no other has a usable path.
    pub fn disable_group(&self, group: usize) -> Result<(), MultipathError> {
        self.change_group(group, |state| state.bypass(group, true))
    }

    /// `enable_group`: the group is not bypassed any more.
    pub fn enable_group(&self, group: usize) -> Result<(), MultipathError> {
        self.change_group(group, |state| state.bypass(group, false))
    }

    fn change_group(&self, group: usize, f: impl FnOnce(&mut GroupsState) -> Wanted) -> Result<(), MultipathError> {
        let n = self.policies.len();
        if group >= n {
            return refused(format!("group {}: must be 1..={n}", group + 1));
        }
        self.change(f);
        Ok(())
    }

    /// Sorts all paths into new groups, best first, as when a table is loaded again. It takes effect at once, also
    /// with requests in flight. No group is current or bypassed then, so the next request takes the first group that
    /// has a usable path. If there is a handler, it activates that group's paths. The disk's other groups become
    /// empty.
    ///
    /// # Errors
    /// There are more groups than the disk has. A path is missing, named twice or unknown. The groups have different
    /// selectors, or io-affinity, which keeps its paths. Nothing has changed then.
    pub fn regroup(&self, groups: &[Vec<PathId>]) -> Result<(), MultipathError> {
        let mut state = self.state.lock();
        let n = state.groups.len();
        if groups.len() > n {
            return refused(format!("{} groups: must be at most {n}, as when the disk was created", groups.len()));
        }
        let first = state.groups.first().map(|g| g.selector);
        if state.groups.iter().any(|g| Some(g.selector) != first || g.selector == Selector::IoAffinity) {
            return refused("regrouping paths needs one selector for all groups, other than io-affinity".into());
        }
        let mut named: Vec<PathId> = groups.concat();
        named.sort_unstable();
        if !named.iter().copied().eq(state.present().map(|(id, _)| id)) {
            return refused(format!(
                "{} paths in new groups: must list every path of the disk exactly once",
                named.len()
            ));
        }
        for (group, path) in groups.iter().enumerate().flat_map(|(g, paths)| paths.iter().map(move |p| (g, *p))) {
            // The load in flight is counted per path, in the unit of the selector that both groups have.
            self.group_of[path.index()].set(group as u8);
        }
        let wanted = state.regroup(groups);
        self.publish(&state);
        drop(state);
        self.see_to(wanted);
        Ok(())
    }

    /// `queue_if_no_path`: requests wait while there is no path. `no_path_timeout` restarts.
    pub fn queue_if_no_path(&self, now: Instant) {
        self.change(|state| state.set_queueing(true, now));
    }

    /// `fail_if_no_path`: while there is no usable path, waiting and new requests fail.
    pub fn fail_if_no_path(&self, now: Instant) {
        self.change(|state| state.set_queueing(false, now));
    }

    /// Turns giving up on or off. While it is on, a request fails with its path's error even if other paths are left,
    /// and no request waits for a path. Use it while the paths' drivers may fail requests that they could not stop. So
    /// turn it on before the drivers are told to fail requests, and off after they are told to stop doing so. A request
    /// issued before giving up is turned off also fails with its path's error.
    pub fn set_give_up(&self, on: bool, now: Instant) {
        self.change(|state| state.set_give_up(on, now));
    }

    /// Takes the result of an activation that [`Handler::activate`] started.
    pub fn pg_init_done(&self, path: PathId, result: PgInit, now: Instant) {
        self.change(|state| state.pg_init_done(path, result, now));
    }

    fn change(&self, f: impl FnOnce(&mut GroupsState) -> Wanted) {
        let mut state = self.state.lock();
        let wanted = f(&mut state);
        self.publish(&state);
        drop(state);
        self.see_to(wanted);
    }

    /// Makes a change visible to I/O. The caller holds the lock of the state, so that changes are published in order.
    pub(super) fn publish(&self, state: &GroupsState) {
        let mut valid = [0; MAX_GROUPS];
        state.present().filter(|(_, p)| p.is_active).for_each(|(_, p)| valid[p.group] += 1);
        self.valid.iter().zip(valid).for_each(|(group, n)| group.set(n));
        // Pairs with: Multipath::choose
        self.open.store(state.open(), Ordering::Release);
    }

    pub(super) fn see_to(&self, wanted: Wanted) {
        if let Some(path) = wanted.failed {
            (self.listener)(PathEvent::PathFailed(path));
        }
        if let Some(handler) = &self.handler {
            wanted.activate.iter().for_each(|path| handler.activate(*path, wanted.after));
        }
        if wanted.run {
            (self.listener)(PathEvent::RunQueue);
        }
    }
}
