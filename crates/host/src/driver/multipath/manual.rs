// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Paths and groups by hand: multipathd's `fail path`, `reinstate path` and `switch multipath MAP group N`. `add_remove` has the others.
//!
//! Guarantees: a path that was failed by hand stays failed, whatever its checks find, until it is reinstated by hand. A path
//! that is reinstated by hand is used at once, as `failback` says. It is checked as before, and fails again if it does not work.
//! Requests see no error while another path is left. Does not do: keep the group in use; `failback` and the loss of its last path change it.
//! Source: multipathd/cli_handlers.c (`cli_fail`, which suspends the path's checks, `cli_reinstate`, `cli_switch_group`).

use super::edit;
use crate::clock;
use crate::driver::multipath::disk::{Core, Watched};
use crate::error::{Error, ErrorKind, Result};
use std::sync::Arc;

impl Core {
    /// Finds a path by its name, or by its number in the list of targets, counted from 1.
    pub(super) fn named(&self, path: &str) -> Result<Arc<Watched>> {
        let mut all = self.in_order();
        let names: Vec<&str> = all.iter().map(|p| p.driver.name.as_str()).collect();
        let at = edit::position(&names, path)?;
        Ok(all.swap_remove(at))
    }

    pub(super) fn fail_by_hand(&self, path: &str) -> Result<String> {
        let path = self.named(path)?;
        let mut is_held = path.is_held.lock();
        *is_held = true;
        path.driver.set_trouble(Some("was failed by hand; reinstate-path reinstates it".to_owned()));
        self.disk.fail_path(path.id, clock::now());
        Ok(format!("failed path '{}'; its checks are suspended", path.driver.name))
    }

    pub(super) fn reinstate_by_hand(&self, path: &str) -> Result<String> {
        let path = self.named(path)?;
        let mut is_held = path.is_held.lock();
        let name = &path.driver.name;
        let was_held = std::mem::replace(&mut *is_held, false);
        self.signals.tell(path.id);
        if !path.driver.is_usable() {
            let text = format!("path '{name}' is not open yet: it is retried, and used once its check passes");
            if was_held {
                path.driver.set_trouble(Some("was reinstated by hand but is not open yet; it is retried".to_owned()));
            }
            return Err(Error::new(ErrorKind::Io, text));
        }
        if was_held {
            path.driver.set_trouble(None);
        }
        let before = self.disk.status().groups;
        self.disk.reinstate_path(path.id);
        self.allow_queueing();
        self.came_back(&path, &before);
        Ok(format!("reinstated path '{name}'"))
    }

    pub(super) fn switch_by_hand(&self, number: usize) -> Result<String> {
        let groups = self.disk.status().groups;
        // Groups without paths are not shown, and have no number.
        let used: Vec<usize> = (0..groups.len()).filter(|at| !groups[*at].paths.is_empty()).collect();
        let Some(at) = number.checked_sub(1).and_then(|n| used.get(n)).copied() else {
            return Err(Error::usage(format!("group {number}: must be 1..={}", used.len())));
        };
        if !groups[at].paths.iter().any(|p| p.is_active) {
            return Err(Error::new(ErrorKind::Io, format!("group {number} has no usable path; reinstate one first")));
        }
        self.disk.switch_group(at).map_err(|e| Error::usage(e.to_string()))?;
        Ok(format!("switched to group {number}"))
    }
}
