// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The path checkers: one thread per path that checks the path, reinstates it, and fails it when it does not answer.
//!
//! Guarantees: a path is reinstated only after a check has passed that began after the path had failed; the check includes that it is
//! still the same disk. A path that stays up is checked less and less often, a failed one every `polling_interval`. A checker that has
//! never passed fails no path, because the fault may be the checker's own connection. The exception is a path that has completed none of
//! its requests for `checker_timeout`. A path whose connections are up, but whose checker has never had a connection, is reinstated like a
//! path without a checker. A slow check delays no other path's by more than a second. The threads end soon after the disk; a thread that
//! has sent a command to activate a path ends when that command has completed or is late (10 s). The thread of a path that is removed
//! ends its check, and then closes the path.
//! Source of the rules: multipath-tools, multipathd/main.c (`check_path`), multipath.conf(5).

use super::activate;
use super::check::{Checker, Found};
use crate::clock;
use crate::driver::multipath::disk::{Core, Watched};
use crate::driver::multipath::options::{Failback, HardwareHandler};
use crate::error::{Error, ErrorKind, Result};
use crate::event;
use crate::panics;
use blk::multipath::{GroupStatus, PathEvent, PathId};
use blk::time::{Duration, Instant};
use parking_lot::{Condvar, Mutex};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

/// The shortest time between two checks of a path, whatever reports a change, and the time after which a path in
/// transition is checked again: a tick of multipathd.
const TICK: Duration = Duration::from_secs(1);

/// Whether a retry is useless: the request for a path is wrong, or cannot be met.
pub(super) fn is_for_good(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Usage | ErrorKind::Denied | ErrorKind::NoSpace)
}

/// The signals that the threads wait for. They are set from inside I/O.
pub(super) struct WatchSignals {
    signs: Mutex<SignalState>,
    changed: Condvar,
    /// Readable when the disk ends: threads that wait in a check return.
    over: OwnedFd,
}

#[derive(Default)]
struct SignalState {
    is_over: bool,
    /// Failed paths whose threads have not noticed it yet.
    failed: u64,
    /// Paths whose priority may have changed.
    told: u64,
    /// When to switch to the better group.
    failback_at: Option<Instant>,
    /// Paths that are to be activated, and when.
    wishes: Vec<(PathId, Instant)>,
}

impl WatchSignals {
    pub(super) fn new() -> Result<WatchSignals> {
        Ok(WatchSignals { signs: Mutex::default(), changed: Condvar::new(), over: event::new()? })
    }

    /// Handles an event of the core. `RunQueue` needs no action, because the core reissues waiting requests within 100 ms.
    pub(super) fn hear(&self, event: PathEvent) {
        if let PathEvent::PathFailed(id) = event {
            self.signs.lock().failed |= 1 << id.index();
            self.changed.notify_all();
        }
    }

    /// Asks for an early check of a path.
    pub(super) fn tell(&self, path: PathId) {
        self.signs.lock().told |= 1 << path.index();
        self.changed.notify_all();
    }

    /// Asks for an early check of all paths.
    pub(super) fn tell_all(&self) {
        self.signs.lock().told = u64::MAX;
        self.changed.notify_all();
    }

    /// Asks for the activation of a path at this time.
    pub(super) fn wish(&self, path: PathId, at: Instant) {
        self.signs.lock().wishes.push((path, at));
        self.changed.notify_all();
    }

    /// Sleeps until a path is to be activated, and returns the path. `None`: the disk ends.
    pub(super) fn next_wish(&self) -> Option<PathId> {
        let mut signs = self.signs.lock();
        loop {
            if signs.is_over {
                return None;
            }
            let now = clock::now();
            if let Some(at) = signs.wishes.iter().position(|(_, when)| *when <= now) {
                return Some(signs.wishes.swap_remove(at).0);
            }
            match signs.wishes.iter().map(|(_, when)| when.since(now)).min() {
                Some(left) => drop(self.changed.wait_for(&mut signs, std::time::Duration::from_nanos(left.as_ns()))),
                None => self.changed.wait(&mut signs),
            }
        }
    }

    /// Sleeps for this time, or until the disk ends. Returns whether the disk ends.
    pub(super) fn is_over_within(&self, time: Duration) -> bool {
        let until = clock::now() + time;
        let mut signs = self.signs.lock();
        loop {
            let left = until.since(clock::now());
            if signs.is_over || left == Duration::ZERO {
                return signs.is_over;
            }
            self.changed.wait_for(&mut signs, std::time::Duration::from_nanos(left.as_ns()));
        }
    }

    pub(super) fn over(&self) -> &OwnedFd {
        &self.over
    }

    pub(super) fn is_over(&self) -> bool {
        self.signs.lock().is_over
    }

    fn end(&self) {
        self.signs.lock().is_over = true;
        event::signal(&self.over);
        self.changed.notify_all();
    }

    /// Tells the threads of paths that are being removed, and commands that wait for the removal, that it has progressed.
    pub(super) fn tell_removal(&self) {
        // Lock once: after that, each thread either sleeps already, or sees the change before it sleeps.
        drop(self.signs.lock());
        self.changed.notify_all();
    }

    /// Sleeps until something is done that [`WatchSignals::tell_removal`] tells, or until a time or the end of the disk. Returns whether
    /// it is done. `is_done` takes no lock.
    pub(super) fn wait_until(&self, until: Instant, is_done: impl Fn() -> bool) -> bool {
        let mut signs = self.signs.lock();
        loop {
            if is_done() {
                return true;
            }
            let left = until.since(clock::now());
            if signs.is_over || left == Duration::ZERO {
                return false;
            }
            self.changed.wait_for(&mut signs, std::time::Duration::from_nanos(left.as_ns()));
        }
    }

    /// Sleeps until a check of this path is due, the path fails, or a failback is due. Returns which; `None`: the disk ends, or the path
    /// is being removed.
    fn sleep(&self, watched: &Watched, next: Instant) -> Option<Woken> {
        let path = watched.id.index();
        let mut signs = self.signs.lock();
        loop {
            // First, because the path's number may be another path's.
            if signs.is_over || watched.is_leaving() {
                return None;
            }
            if signs.failed >> path & 1 == 1 {
                signs.failed &= !(1 << path);
                return Some(Woken::Failed);
            }
            if signs.told >> path & 1 == 1 {
                signs.told &= !(1 << path);
                return Some(Woken::Told);
            }
            let now = clock::now();
            if signs.failback_at.is_some_and(|at| at <= now) {
                signs.failback_at = None;
                return Some(Woken::Failback);
            }
            if next <= now {
                return Some(Woken::Check);
            }
            let until = signs.failback_at.map_or(next, |at| at.min(next));
            let left = std::time::Duration::from_nanos(until.since(now).as_ns());
            self.changed.wait_for(&mut signs, left);
        }
    }

    pub(super) fn set_failback(&self, at: Instant) {
        self.signs.lock().failback_at.get_or_insert(at);
        self.changed.notify_all();
    }
}

enum Woken {
    Check,
    Failed,
    Told,
    Failback,
}

/// The threads.
pub(super) struct Watcher {
    core: Arc<Core>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Watcher {
    pub(super) fn start(core: &Arc<Core>) -> Result<Watcher> {
        let watcher = Watcher { core: Arc::clone(core), threads: Mutex::default() };
        core.paths.present().into_iter().try_for_each(|path| watcher.watch(path))?;
        if core.options.hardware_handler == HardwareHandler::Alua {
            let core = Arc::clone(core);
            let thread = std::thread::Builder::new().name("multipath-init".into()).spawn(move || activate::run(&core));
            let thread = thread.map_err(|e| Error::os(e, "cannot start a thread for the hardware handler"))?;
            watcher.threads.lock().push(thread);
        }
        Ok(watcher)
    }

    /// Checks another path from now on, until it is removed.
    pub(super) fn watch(&self, path: Arc<Watched>) -> Result<()> {
        let core = Arc::clone(&self.core);
        let thread = std::thread::Builder::new().name("multipath-check".into()).spawn(move || run(&core, &path));
        let thread = thread.map_err(|e| Error::os(e, "cannot start a thread for a path's checks"))?;
        let mut threads = self.threads.lock();
        // Join the ended threads of removed paths.
        let (ended, running): (Vec<_>, Vec<_>) = threads.drain(..).partition(JoinHandle::is_finished);
        ended.into_iter().for_each(join);
        *threads = running;
        threads.push(thread);
        Ok(())
    }
}

fn join(thread: JoinHandle<()>) {
    if thread.join().is_err() && !std::thread::panicking() {
        panic!("a path's checker has panicked");
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.core.signals.end();
        self.core.paths.each(|path| event::signal(&path.stop));
        self.threads.get_mut().drain(..).for_each(join);
        // A thread that still opens a path has a reference to it, and must not keep its image locked.
        self.core.paths.each(|path| path.driver.close());
    }
}

fn run(core: &Core, path: &Watched) {
    // Only a check brings a failed path back, and requests may wait for one.
    panics::end_process("thread that checks a path");
    let shortest = core.options.polling_interval;
    let mut checker = Checker::new(path);
    let mut interval = shortest;
    // The first check is at once, because only a path that has passed a check counts.
    let mut next = clock::now();
    let mut last = next;
    while let Some(woken) = core.signals.sleep(path, next) {
        match woken {
            Woken::Failed => {
                interval = shortest;
                next = next.min(clock::now() + interval);
            }
            Woken::Told => next = next.min(clock::now().max(last + TICK)),
            Woken::Failback => core.fail_back(),
            // As in multipathd, the checks of a path that was failed by hand are suspended.
            Woken::Check if *path.is_held.lock() => next = clock::now() + shortest,
            Woken::Check => {
                let was_active = core.is_active(path);
                let found = checker.check(core, path);
                last = clock::now();
                // Before the path is reinstated, so that the better group is chosen by current priorities.
                if checker.take_changed() || found.brings_back(was_active) {
                    core.sort_anew(path);
                }
                interval = match core.judge(path, found, was_active, &checker) {
                    Judged::Stays => Duration::from_ns(interval.as_ns() * 2).min(core.options.longest_interval()),
                    Judged::Changes => shortest,
                    Judged::Soon => shortest.min(TICK),
                };
                next = clock::now() + interval;
            }
        }
    }
    // Its own connection ends with the path's.
    drop(checker);
    core.close_when_idle(path);
}

/// Whether a path is still up.
enum Judged {
    Stays,
    Changes,
    /// Its state is about to change.
    Soon,
}

impl Core {
    fn is_active(&self, path: &Watched) -> bool {
        self.disk.status().groups.iter().flat_map(|g| &g.paths).any(|p| p.id == path.id && p.is_active)
    }

    /// Applies a check's result to its path; `was_active`: the path was active when the check began.
    fn judge(&self, path: &Watched, found: Found, was_active: bool, checker: &Checker) -> Judged {
        let status = self.disk.status();
        let is_active = self.is_active(path);
        let is_stalled = checker.is_stalled(self.options.checker_timeout);
        let counts = checker.has_passed() || is_stalled || matches!(found, Found::Barred(_));
        let is_held = path.is_held.lock();
        if *is_held || path.is_leaving() {
            return Judged::Changes;
        }
        let (is_up, trouble) = match found {
            Found::Up => {
                path.driver.passes.fetch_add(1, Ordering::Relaxed);
                (true, None)
            }
            Found::NoWay(why) => (!is_stalled, Some(why)),
            Found::Down(why) => (false, Some(why)),
            Found::Barred(why) => (false, Some(why)),
            Found::Pending(why) => {
                path.driver.set_trouble(Some(why));
                return Judged::Soon;
            }
        };
        let has_passed = trouble.is_none();
        path.driver.set_trouble(trouble);
        match (is_up, is_active) {
            (true, true) => {
                // The time of `no_path_retry` may have run out before an administrator reinstated a path manually.
                if !status.features.queue_if_no_path {
                    self.allow_queueing();
                }
                if has_passed {
                    return Judged::Stays;
                }
            }
            // The path failed during the check, which is the newer information.
            (true, false) if was_active => {}
            (true, false) => {
                self.disk.reinstate_path(path.id);
                self.allow_queueing();
                self.came_back(path, &status.groups);
            }
            (false, true) if counts => self.disk.fail_path(path.id, clock::now()),
            (false, _) => {}
        }
        Judged::Changes
    }

    /// Reinstates a path; `before`: the groups without it.
    pub(super) fn came_back(&self, path: &Watched, before: &[GroupStatus]) {
        let had_none =
            before.iter().any(|g| g.paths.iter().any(|p| p.id == path.id) && g.paths.iter().all(|p| !p.is_active));
        match self.options.failback {
            Failback::Manual => {}
            Failback::Immediate => self.fail_back(),
            Failback::Followover if had_none => self.fail_back(),
            Failback::Followover => {}
            Failback::After(time) if self.better().is_some() => self.signals.set_failback(clock::now() + time),
            Failback::After(_) => {}
        }
    }
}
