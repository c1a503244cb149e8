// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Priority groups and the state of paths: which group is current, which paths have failed, which requests wait.
//!
//! Guarantees the rules of dm-multipath. The group of a requested switch is tried first, then the current group; a
//! group is used only if it has a usable path. Otherwise the first group with a usable path becomes current; a bypassed
//! group only if no other has one. With a hardware handler, a group is used only after its paths have been activated.
//! Retries of activations are bounded, and may be delayed. A path fails once, even if its failure is reported several
//! times. Without a usable path, requests wait (`queue_if_no_path`) until a path is reinstated or `no_path_timeout`
//! expires.
//!
//! The state is a plain value: its owner locks it, and carries out the actions that it returns in [`Wanted`]. Does not
//! do: I/O. Source: drivers/md/dm-mpath.c (`choose_pgpath`, `__switch_pg`, `fail_path`, `reinstate_path`,
//! `pg_init_done`).

use super::config::{Features, MAX_PATHS, PathId, PgInit};
use super::selector::{PathArgs, Selector};
use crate::time::{Duration, Instant};

/// `DM_PG_INIT_DELAY_MSECS`.
const PG_INIT_DELAY: Duration = Duration::from_ms(2000);
/// Delay before a request without a usable path is tried again (the kernel's delay of a requeue in dm-rq.c).
const REQUEUE_DELAY: Duration = Duration::from_ms(100);

/// The state of one path.
#[derive(Clone, Debug)]
pub(super) struct Path {
    pub(super) name: String,
    pub(super) group: usize,
    pub(super) args: PathArgs,
    pub(super) is_active: bool,
    pub(super) fail_count: u64,
    /// The path was removed while requests were in flight there.
    pub(super) is_leaving: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) selector: Selector,
    pub(super) bypassed: bool,
}

/// What the owner has to do after a change, with the state unlocked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Paths to be activated by the handler, after this delay.
    pub(super) activate: Vec<PathId>,
    pub(super) after: Duration,
    /// A path that this change has failed.
    pub(super) failed: Option<PathId>,
    /// Waiting requests may be issued now.
    pub(super) run: bool,
}

impl Wanted {
    const RUN: Wanted = Wanted { activate: Vec::new(), after: Duration::ZERO, failed: None, run: true };
}

/// Where a request may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Paths of the current group, as a mask.
    Paths(u64),
    /// To no path now: try again after this time.
    Wait(Duration),
    /// To no path: there is none, and the request must not wait for one.
    Fail,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct GroupsState {
    pub(super) paths: [Option<Path>; MAX_PATHS],
    pub(super) groups: Vec<Group>,
    pub(super) current: Option<usize>,
    pub(super) next: Option<usize>,
    pub(super) features: Features,
    pub(super) has_handler: bool,
    /// Requests wait for activation.
    pub(super) queue_io: bool,
    pub(super) pg_init_count: u32,
    pg_init_required: bool,
    pg_init_running: u32,
    delay_retry: bool,
    /// Since when there has been no path.
    no_path_since: Option<Instant>,
    /// A request fails with its path's error, and no request waits for a path.
    gives_up: bool,
    /// When `gives_up` last changed. A path may have failed a request issued until then because it was told to give up,
    /// and may not have reported it yet.
    gave_up_until: Option<Instant>,
}

impl GroupsState {
    pub(super) fn new(groups: Vec<Group>, features: Features, has_handler: bool) -> GroupsState {
        GroupsState {
            paths: core::array::from_fn(|_| None),
            groups,
            current: None,
            next: None,
            features,
            has_handler,
            queue_io: false,
            pg_init_count: 0,
            pg_init_required: false,
            pg_init_running: 0,
            delay_retry: false,
            no_path_since: None,
            gives_up: false,
            gave_up_until: None,
        }
    }

    /// Paths that are not removed.
    pub(super) fn present(&self) -> impl Iterator<Item = (PathId, &Path)> {
        let known = |(i, p): (usize, &'_ Option<Path>)| p.as_ref().is_some_and(|p| !p.is_leaving).then_some(i);
        self.paths.iter().enumerate().filter_map(known).filter_map(|i| Some((PathId(i as u8), self.paths[i].as_ref()?)))
    }

    fn path(&mut self, id: PathId) -> Option<&mut Path> {
        self.paths.get_mut(id.index())?.as_mut().filter(|p| !p.is_leaving)
    }

    /// Usable paths of a group.
    pub(super) fn active(&self, group: usize) -> u64 {
        self.present().filter(|(_, p)| p.group == group && p.is_active).fold(0, |m, (id, _)| m | 1 << id.0)
    }

    pub(super) fn nr_valid(&self) -> usize {
        self.present().filter(|(_, p)| p.is_active).count()
    }

    /// Returns the usable paths of the current group as a mask; 0 if a group has to be chosen or activated first.
    pub(super) fn open(&self) -> u64 {
        match self.current {
            Some(group) if self.next.is_none() && !self.queue_io && !self.pg_init_required => self.active(group),
            _ => 0,
        }
    }

    /// Returns where a request may go when [`GroupsState::open`] is 0. Chooses another group if necessary.
    pub(super) fn find(&mut self, now: Instant) -> (Found, Wanted) {
        let mut wanted = Wanted::default();
        let Some(group) = self.choose_group() else {
            self.queue_io = false;
            self.current = None;
            return (self.without_path(now), wanted);
        };
        if self.current != Some(group) {
            self.current = Some(group);
            self.queue_io = self.has_handler;
            self.pg_init_required = self.has_handler;
            self.pg_init_count = 0;
        }
        if self.pg_init_required && !self.gives_up {
            wanted = self.init_all();
        }
        match self.open() {
            0 if self.gives_up => (Found::Fail, wanted),
            0 => (Found::Wait(REQUEUE_DELAY), wanted),
            mask => (Found::Paths(mask), wanted),
        }
    }

    fn choose_group(&mut self) -> Option<usize> {
        let usable = |s: &GroupsState, g: usize| s.active(g) != 0;
        let next = self.next.take();
        if let Some(group) = next.into_iter().chain(self.current).find(|g| usable(self, *g)) {
            return Some(group);
        }
        let first = |s: &GroupsState, bypassed| {
            (0..s.groups.len()).find(|g| s.groups[*g].bypassed == bypassed && usable(s, *g))
        };
        first(self, false).or_else(|| {
            let last_resort = first(self, true)?;
            // A bypassed group is activated with a delay, because it was bypassed for a reason.
            self.delay_retry = true;
            Some(last_resort)
        })
    }

    /// Returns how long a request waits while there is no path. Turns `queue_if_no_path` off when `no_path_timeout` has
    /// expired.
    fn without_path(&mut self, now: Instant) -> Found {
        if self.gives_up || !self.features.queue_if_no_path {
            return Found::Fail;
        }
        let since = *self.no_path_since.get_or_insert(now);
        let timeout = self.features.no_path_timeout;
        if timeout == Duration::ZERO {
            return Found::Wait(REQUEUE_DELAY);
        }
        let left = (since + timeout).since(now);
        if left == Duration::ZERO {
            self.features.queue_if_no_path = false;
            return Found::Fail;
        }
        Found::Wait(left.min(REQUEUE_DELAY))
    }

    /// Whether a request that was issued at this time and failed on a path may be issued again.
    pub(super) fn may_retry(&mut self, issued: Instant, now: Instant) -> bool {
        if self.gives_up || self.gave_up_until.is_some_and(|until| issued <= until) {
            return false;
        }
        self.nr_valid() > 0 || matches!(self.without_path(now), Found::Wait(_))
    }

    fn init_all(&mut self) -> Wanted {
        if self.pg_init_running > 0 {
            return Wanted::default();
        }
        self.pg_init_count += 1;
        self.pg_init_required = false;
        let Some(group) = self.current else { return Wanted::default() };
        let after = match (self.delay_retry, self.features.pg_init_delay) {
            (false, _) => Duration::ZERO,
            (true, None) => PG_INIT_DELAY,
            (true, Some(delay)) => delay,
        };
        let mask = self.active(group);
        self.pg_init_running = mask.count_ones();
        let activate = (0..MAX_PATHS as u8).filter(|p| mask >> p & 1 == 1).map(PathId).collect();
        Wanted { activate, after, ..Wanted::default() }
    }

    /// Fails a path. Returns false if it had failed already or does not exist.
    pub(super) fn fail(&mut self, id: PathId, now: Instant) -> bool {
        let Some(path) = self.path(id).filter(|p| p.is_active) else { return false };
        path.is_active = false;
        path.fail_count += 1;
        self.note_no_path(now);
        true
    }

    /// Starts `no_path_timeout` if no usable path is left.
    pub(super) fn note_no_path(&mut self, now: Instant) {
        if self.nr_valid() == 0 {
            self.no_path_since.get_or_insert(now);
        }
    }

    /// Makes a path usable again. Returns `None` if it was usable or does not exist.
    pub(super) fn reinstate(&mut self, id: PathId) -> Option<Wanted> {
        let path = self.path(id).filter(|p| !p.is_active)?;
        path.is_active = true;
        let group = path.group;
        Some(self.came_up(id, group))
    }

    /// Notes that a path of `group` has become usable.
    pub(super) fn came_up(&mut self, id: PathId, group: usize) -> Wanted {
        self.no_path_since = None;
        if self.nr_valid() > 1 && self.has_handler && self.current == Some(group) {
            // The group is current already, so only this path has to be activated.
            self.pg_init_running += 1;
            return Wanted { activate: vec![id], ..Wanted::RUN };
        }
        Wanted::RUN
    }

    /// Sets whether a group is bypassed: such a group is used only when no other has a usable path.
    pub(super) fn bypass(&mut self, group: usize, bypassed: bool) -> Wanted {
        self.groups[group].bypassed = bypassed;
        self.current = None;
        Wanted::RUN
    }

    /// Sends the next request to this group, if it has a usable path. This group and those before it are not bypassed
    /// any more.
    pub(super) fn switch(&mut self, group: usize) -> Wanted {
        self.groups[..=group].iter_mut().for_each(|g| g.bypassed = false);
        self.current = None;
        self.next = Some(group);
        Wanted::RUN
    }

    /// Moves all paths to these groups, as when a table is loaded again. Activations in progress still complete; new
    /// activations begin after them.
    pub(super) fn regroup(&mut self, groups: &[Vec<PathId>]) -> Wanted {
        for (group, paths) in groups.iter().enumerate() {
            for id in paths {
                if let Some(path) = self.path(*id) {
                    path.group = group;
                }
            }
        }
        self.groups.iter_mut().for_each(|g| g.bypassed = false);
        (self.current, self.next) = (None, None);
        (self.pg_init_required, self.queue_io) = (false, false);
        Wanted::RUN
    }

    /// `queue_if_no_path` or `fail_if_no_path`.
    pub(super) fn set_queueing(&mut self, on: bool, now: Instant) -> Wanted {
        self.features.queue_if_no_path = on;
        self.no_path_since = None;
        self.note_no_path(now);
        Wanted::RUN
    }

    /// Turns giving up on or off. `queue_if_no_path` stays as it is, and `no_path_timeout` restarts.
    pub(super) fn set_give_up(&mut self, on: bool, now: Instant) -> Wanted {
        if self.gives_up == on {
            return Wanted::default();
        }
        self.gives_up = on;
        self.gave_up_until = Some(now);
        self.no_path_since = None;
        self.note_no_path(now);
        Wanted::RUN
    }

    /// Takes the result of a path's activation.
    pub(super) fn pg_init_done(&mut self, id: PathId, result: PgInit, now: Instant) -> Wanted {
        let Some(group) = self.path(id).map(|p| p.group) else {
            return self.one_init_less(false);
        };
        let (mut failed, mut delay) = (None, false);
        let mut fail = |s: &mut GroupsState| failed = s.fail(id, now).then_some(id);
        match result {
            PgInit::Done => {}
            PgInit::Busy => {
                self.groups[group].bypassed = true;
                self.current = None;
            }
            PgInit::Retry | PgInit::RetryNow => {
                delay = result == PgInit::Retry;
                if self.pg_init_count <= self.features.pg_init_retries {
                    self.pg_init_required = true;
                } else {
                    fail(self);
                }
            }
            PgInit::Failed => fail(self),
        }
        if result == PgInit::Done && !self.pg_init_required {
            self.groups[group].bypassed = false;
        }
        Wanted { failed, ..self.one_init_less(delay) }
    }

    fn one_init_less(&mut self, delay: bool) -> Wanted {
        self.pg_init_running = self.pg_init_running.saturating_sub(1);
        if self.pg_init_running > 0 {
            return Wanted::default();
        }
        if self.pg_init_required {
            self.delay_retry = delay;
            let again = self.init_all();
            if !again.activate.is_empty() {
                return again;
            }
        }
        self.queue_io = false;
        Wanted::RUN
    }
}

#[cfg(test)]
mod tests;
