// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The check of one path: whether it is reachable, works, and still leads to the same disk.
//!
//! Guarantees: opening a path late, or again for its check, does not delay its removal or the end of the disk. No check uses a tag, a slot
//! or a connection of the requests. A path whose driver has lost connections does not pass. Does not decide what follows
//! (`watch`). Source of the kinds: multipath-tools, libmultipath/checkers.

use super::apart::apart;
use super::prio::{PathUse, standing};
use super::probe::Probe;
use crate::clock;
use crate::driver::host_driver::HostDriver;
use crate::driver::multipath::disk::{Core, Watched};
use crate::driver::multipath::options::PathChecker;
use crate::driver::scsi::Checked;
use crate::mem::Regions;
use blk::scsi::alua::AccessState;
use blk::time::{Duration, Instant};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The result of a check.
pub(super) enum Found {
    Up,
    /// The path does not work; contains the reason.
    Down(String),
    /// The path's connections are up, but the checker has no connection of its own and never had one; contains the reason.
    NoWay(String),
    /// The target does not serve the disk on this path; contains the reason. The path fails even if it has never passed.
    Barred(String),
    /// The target is about to change the path's state; until then the path stays as it is.
    Pending(String),
}

impl Found {
    /// Whether this result reinstates a path; `was_active`: the path was active.
    pub(super) fn brings_back(&self, was_active: bool) -> bool {
        matches!(self, Found::Up | Found::NoWay(_)) && !was_active
    }
}

/// The state of a path's checker between checks.
pub(super) struct Checker {
    kind: PathChecker,
    probe: Option<Probe>,
    has_passed: bool,
    stall: Stall,
    /// The checker is notified when its path's state may have changed.
    hears: bool,
    /// The path's priority has changed since the last [`Checker::take_changed`].
    has_changed: bool,
    changing_since: Option<Instant>,
}

/// Why a check did not pass.
enum CheckFailure {
    Down(String),
    NoWay(String),
    Barred(String),
    Pending(String),
}

impl From<String> for CheckFailure {
    fn from(why: String) -> CheckFailure {
        CheckFailure::Down(why)
    }
}

/// Since when a path with requests in flight has completed none of them.
#[derive(Default)]
struct Stall {
    ends: u64,
    since: Option<Instant>,
}

impl Stall {
    fn look(&mut self, in_flight: u32, ends: u64, now: Instant) {
        if in_flight == 0 || ends != self.ends {
            self.since = None;
        }
        self.ends = ends;
        if in_flight > 0 {
            self.since.get_or_insert(now);
        }
    }
}

impl Checker {
    pub(super) fn new(path: &Watched) -> Checker {
        Checker {
            kind: path.checker,
            probe: None,
            has_passed: false,
            stall: Stall::default(),
            hears: false,
            has_changed: false,
            changing_since: None,
        }
    }

    /// Returns whether the path's priority has changed since the last call.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// Whether a check has ever passed.
    pub(super) fn has_passed(&self) -> bool {
        self.has_passed
    }

    /// Whether the path has had requests for this long, and has completed none of them.
    pub(super) fn is_stalled(&self, limit: Duration) -> bool {
        self.stall.since.is_some_and(|since| clock::now().since(since) >= limit)
    }

    pub(super) fn check(&mut self, core: &Core, path: &Watched) -> Found {
        self.look(core, path);
        let result = self.try_check(core, path);
        path.was_asked.store(!matches!(result, Err(CheckFailure::Down(_) | CheckFailure::NoWay(_))), Ordering::Relaxed);
        self.look(core, path);
        match result {
            Ok(()) => {
                self.has_passed = true;
                Found::Up
            }
            Err(CheckFailure::Barred(why)) => Found::Barred(why),
            Err(CheckFailure::Pending(why)) => Found::Pending(why),
            Err(CheckFailure::NoWay(why)) if !self.has_passed => Found::NoWay(why),
            Err(CheckFailure::Down(why) | CheckFailure::NoWay(why)) => Found::Down(why),
        }
    }

    fn look(&mut self, core: &Core, path: &Watched) {
        let groups = core.disk.status().groups;
        let in_flight = groups.iter().flat_map(|g| &g.paths).find(|p| p.id == path.id).map_or(0, |p| p.in_flight);
        self.stall.look(in_flight, path.driver.ends(), clock::now());
    }

    fn try_check(&mut self, core: &Core, path: &Watched) -> Result<(), CheckFailure> {
        if path.driver.inner().is_none() || !path.driver.is_usable() {
            let (driver, open, signals) = (Arc::clone(&path.driver), Arc::clone(&path.open), Arc::clone(&core.signals));
            let locks = Arc::clone(&core.locks);
            apart(
                || core.ends(path),
                move || {
                    let (_locks, inner) = if driver.inner().is_none() {
                        let locked = driver.lock_before_open(&locks).map_err(|e| e.to_string())?;
                        (locked, Some(open().map_err(|e| e.to_string())?))
                    } else {
                        (Vec::new(), None)
                    };
                    if signals.is_over() {
                        return Err("its disk is being closed".into());
                    }
                    // Looked up after the path was opened: see `share_locks`.
                    driver.revive(inner, locks.get().map(Arc::as_ref))
                },
            )?;
        }
        let Some(driver) = path.driver.inner() else { return Err(CheckFailure::Down("is not open".into())) };
        has_all_connections(driver.as_ref())?;
        let limit = core.options.checker_timeout;
        let mut ready = None;
        if core.options.asks_access() {
            ready = match self.ask_access(core, path, driver.as_ref())? {
                Some(ready) => Some(ready),
                None => return Ok(()),
            };
        }
        match self.kind {
            PathChecker::Tur if ready.is_some() => ready.unwrap_or(Ok(())).map_err(CheckFailure::Down),
            PathChecker::None | PathChecker::Auto => Ok(()),
            PathChecker::Tur => match driver.path().check(limit, &path.stop) {
                Some(result) => result.map_err(|e| CheckFailure::Down(e.to_string())),
                None => Err(CheckFailure::Down(
                    "path_checker=tur: this kind of path does not support TEST UNIT READY; use directio".into(),
                )),
            },
            PathChecker::Directio => self.read(core, path, driver.as_ref()),
        }
    }

    /// Asks for the path's ALUA state, and returns whether the unit is ready. `None`: the path has to be activated first.
    fn ask_access(
        &mut self,
        core: &Core,
        path: &Watched,
        driver: &dyn HostDriver,
    ) -> Result<Option<Result<(), String>>, CheckFailure> {
        if !std::mem::replace(&mut self.hears, true) {
            let (signals, id) = (Arc::clone(&core.signals), path.id);
            driver.scsi().on_access_change(Box::new(move || signals.tell(id)));
        }
        let Some(checked) = driver.scsi().check_access(core.options.checker_timeout, &path.stop) else {
            return Err(CheckFailure::Down("this kind of path has no port groups".into()));
        };
        let Checked { access, ready } = checked.map_err(|e| CheckFailure::Down(e.to_string()))?;
        let is_changing = access.as_ref().is_some_and(|a| a.group.state == AccessState::Transitioning);
        let now = clock::now();
        self.changing_since = is_changing.then(|| self.changing_since.unwrap_or(now));
        let in_transition = self.changing_since.map_or(Duration::ZERO, |since| now.since(since));
        self.has_changed |= core.note_access(path, access);
        let standing = standing(path.access.lock().as_ref(), core.options.hardware_handler, in_transition);
        let ready = ready.map_err(|e| e.to_string());
        match standing {
            PathUse::Open => Ok(Some(ready)),
            PathUse::Ghost => ready.map(|()| None).map_err(CheckFailure::Down),
            PathUse::Barred(why) => Err(CheckFailure::Barred(why)),
            PathUse::Pending(why) => Err(CheckFailure::Pending(why)),
        }
    }

    fn read(&mut self, core: &Core, path: &Watched, driver: &dyn HostDriver) -> Result<(), CheckFailure> {
        let Some(open) = &path.probe else {
            return Err(CheckFailure::Down(
                "path_checker=directio: this kind of path cannot be opened twice; use none".into(),
            ));
        };
        let probe = match &mut self.probe {
            Some(probe) => probe,
            none => {
                let (open, regions) = (Arc::clone(open), Arc::new(Regions::new()));
                let of = Arc::clone(&regions);
                let another = apart(|| core.ends(path), move || open(of).map_err(|e| e.to_string()));
                // Only a driver that reports its connections as up shows that the path itself works.
                let has_connections = driver.path().connections().is_some();
                let missed = |why| if has_connections { CheckFailure::NoWay(why) } else { CheckFailure::Down(why) };
                none.insert(Probe::new(another.map_err(missed)?, &regions, driver)?)
            }
        };
        let result = probe.read(core.options.checker_timeout, || core.ends(path));
        // A failed probe is made anew, unless its read is still in flight.
        if result.is_err() && !probe.is_out() {
            self.probe = None;
        }
        Ok(result?)
    }
}

impl Core {
    /// Whether a check of the path is no longer of use.
    fn ends(&self, path: &Watched) -> bool {
        self.signals.is_over() || path.is_leaving()
    }
}

/// A path with missing sessions or connections cannot carry requests, even if the checker's own connection works.
fn has_all_connections(driver: &dyn HostDriver) -> Result<(), String> {
    match driver.path().connections() {
        Some(c) if c.up < c.wanted => {
            let why = driver.path().troubles().into_iter().next().map_or_else(String::new, |why| format!(": {why}"));
            Err(format!("{} of its {} connections are up{why}", c.up, c.wanted))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stalls_when_it_has_requests_and_ends_none() {
        let at = |s| Instant::ZERO + Duration::from_secs(s);
        let mut stall = Stall::default();
        let mut seen = |in_flight, ends, s| {
            stall.look(in_flight, ends, at(s));
            stall.since
        };
        assert_eq!(seen(0, 0, 0), None);
        assert_eq!(seen(3, 0, 1), Some(at(1)));
        assert_eq!(seen(5, 0, 2), Some(at(1)));
        assert_eq!(seen(5, 1, 3), Some(at(3)), "one has ended");
        assert_eq!(seen(0, 6, 4), None);
        assert_eq!(seen(1, 6, 9), Some(at(9)), "it was idle meanwhile");
    }
}
