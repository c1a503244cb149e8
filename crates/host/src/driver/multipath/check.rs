// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One path's check: whether it is there, works, and is still the same disk.
//!
//! Guarantees: no check uses a tag, a slot or a connection of the requests. A path whose driver has lost connections has not passed.
//! Does not do: decide what follows (`watch`). Source of the kinds: multipath-tools, libmultipath/checkers.

use super::probe::Probe;
use super::{Core, PathChecker, Watched};
use crate::driver::HostDriver;

/// What a check has found.
pub(super) enum Found {
    Up,
    /// It does not work, and why.
    Down(String),
}

/// What is kept from one check of a path to the next.
pub(super) struct Checker {
    kind: PathChecker,
    probe: Option<Probe>,
    has_passed: bool,
}

impl Checker {
    pub(super) fn new(path: &Watched) -> Checker {
        Checker { kind: path.checker, probe: None, has_passed: false }
    }

    /// Whether it ever passed.
    pub(super) fn has_passed(&self) -> bool {
        self.has_passed
    }

    pub(super) fn check(&mut self, core: &Core, path: &Watched) -> Found {
        match self.try_check(core, path) {
            Ok(()) => {
                self.has_passed = true;
                Found::Up
            }
            Err(why) => Found::Down(why),
        }
    }

    fn try_check(&mut self, core: &Core, path: &Watched) -> Result<(), String> {
        if path.driver.inner().is_none() {
            let driver = (path.open)().map_err(|e| e.to_string())?;
            path.driver.revive(Some(driver))?;
        } else if !path.driver.is_usable() {
            path.driver.revive(None)?;
        }
        let Some(driver) = path.driver.inner() else { return Err("is not open".into()) };
        has_all_connections(driver.as_ref())?;
        let limit = core.options.checker_timeout;
        match self.kind {
            PathChecker::None | PathChecker::Auto => Ok(()),
            PathChecker::Tur => match driver.check(limit, core.board.over()) {
                Some(result) => result.map_err(|e| e.to_string()),
                None => Err("path_checker=tur: this kind of path knows no TEST UNIT READY; use directio".into()),
            },
            PathChecker::Directio => self.read(core, path, driver.as_ref()),
        }
    }

    fn read(&mut self, core: &Core, path: &Watched, driver: &dyn HostDriver) -> Result<(), String> {
        let Some(open) = &path.probe else {
            return Err("path_checker=directio: this kind of path cannot be opened twice; use none".into());
        };
        let probe = match &mut self.probe {
            Some(probe) => probe,
            none => none.insert(Probe::open(open, driver)?),
        };
        let result = probe.read(core.options.checker_timeout, &core.board);
        // One that has failed is made anew, unless its read is still out.
        if result.is_err() && !probe.is_out() {
            self.probe = None;
        }
        result
    }
}

/// A path whose sessions or connections are not there cannot carry requests, whatever another one says.
fn has_all_connections(driver: &dyn HostDriver) -> Result<(), String> {
    match driver.connections() {
        Some(c) if c.up < c.wanted => {
            let why = driver.troubles().pop().map_or_else(String::new, |why| format!(": {why}"));
            Err(format!("{} of its {} connections are there{why}", c.up, c.wanted))
        }
        _ => Ok(()),
    }
}
