// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Priorities of paths as their targets report them (`prio alua`), and regrouping when they change.
//!
//! Guarantees: priorities are those of multipath-tools. A path that cannot be asked keeps its last priority, and so does one whose state
//! is about to change. Before paths are regrouped all active ones are asked, so that no group is chosen by an outdated state. `failback`
//! decides when the better group is used: `immediate` at once, a number after that many seconds, `manual` and `followover` not while the
//! group in use has a path. Does not ask a path itself: `check` does. Source: multipathd/main.c (`update_prio`, `need_switch_pathgroup`),
//! libmultipath/prioritizers/alua.c.

use super::groups::{self, Member};
use crate::clock;
use crate::driver::multipath::disk::{Core, Watched};
use crate::driver::multipath::options::{Failback, HardwareHandler, PathGroupingPolicy, Prioritizer};
use blk::multipath::{GroupState, PathId, Status};
use blk::scsi::alua::{Access, AccessState, TRANSITION_TIME};
use blk::time::Duration;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Time limit for the other paths to report their priority when one path's has changed. A silent path keeps its priority,
/// and delays no other for longer.
const ASKING_TIME: Duration = Duration::from_secs(1);

/// How a path may be used, given the state of its target's ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PathUse {
    /// Any use: the checker decides.
    Open,
    /// No use as it is, but the hardware handler can activate it (`PATH_GHOST`).
    Ghost,
    /// No use; contains the reason.
    Barred(String),
    /// The use it had, until the transition is over: it is checked again soon (`PATH_PENDING`).
    Pending(String),
}

/// Judges a state that has been `Transitioning` for so long.
pub(super) fn standing(access: Option<&Access>, handler: HardwareHandler, in_transition: Duration) -> PathUse {
    let Some(Access { support, group, transition }) = access else { return PathUse::Open };
    let can_order = handler == HardwareHandler::Alua && support.explicit;
    let why = || format!("its target port group {} is {}", group.group, group.state);
    match group.state {
        AccessState::Optimized | AccessState::NonOptimized | AccessState::LbaDependent => PathUse::Open,
        AccessState::Transitioning if in_transition < transition.unwrap_or(TRANSITION_TIME) => PathUse::Pending(why()),
        // A transition that takes too long counts as standby (`alua_rtpg`).
        AccessState::Standby | AccessState::Transitioning if can_order => PathUse::Ghost,
        _ => PathUse::Barred(why()),
    }
}

impl Core {
    /// Notes what a path's target reports. Returns whether the path may belong in another group.
    pub(super) fn note_access(&self, path: &Watched, mut access: Option<Access>) -> bool {
        let before = path.prio.load(Ordering::Relaxed);
        let now = match (&access, self.options.prio) {
            (_, Prioritizer::Const) => before,
            (Some(a), _) if a.group.state == AccessState::Transitioning => before,
            (Some(a), Prioritizer::Alua) => a.group.priority(self.options.exclusive_pref_bit),
            (None, Prioritizer::Alua) => 0,
        };
        let tpg = |access: &Option<Access>| access.as_ref().map(|a| a.group.group);
        let by_tpg = self.options.path_grouping_policy == PathGroupingPolicy::GroupByTpg;
        let mut known = path.access.lock();
        let has_moved = by_tpg && tpg(&known) != tpg(&access);
        if let (Some(new), Some(old)) = (&mut access, &*known) {
            // A target in transition may report only the transition.
            new.transition = new.transition.or(old.transition);
        }
        *known = access;
        path.prio.store(now, Ordering::Relaxed);
        now != before || has_moved
    }

    /// Regroups the paths after a path's priority has changed or before it is reinstated. All other active paths are asked
    /// first, at once.
    pub(super) fn sort_anew(&self, but: &Watched) {
        if self.options.prio == Prioritizer::Const {
            return;
        }
        let _one = self.sorting.lock();
        let limit = self.options.checker_timeout.min(ASKING_TIME);
        let used = self.by_status().into_iter().filter(|(p, s)| p.id != but.id && s.is_active);
        std::thread::scope(|s| {
            for (path, _) in used {
                s.spawn(move || {
                    let answer = path.driver.inner()?.scsi().check_access(limit, self.signals.over());
                    self.note_access(&path, answer?.ok()?.access);
                    Some(())
                });
            }
        });
        self.sort(false, Some(but.id));
    }

    /// Regroups by the present priorities; the path `coming` counts as active. With `leaves` the group in use may be left
    /// whatever `failback` says.
    pub(super) fn sort(&self, leaves: bool, coming: Option<PathId>) {
        let _listed = self.listing.lock();
        let wanted = self.groups_wanted(coming);
        let status = self.disk.status();
        let ids = |paths: &[blk::multipath::PathStatus]| paths.iter().map(|p| p.id).collect::<Vec<PathId>>();
        let are: Vec<_> = status.groups.iter().map(|g| ids(&g.paths)).filter(|g| !g.is_empty()).collect();
        if wanted == are {
            return;
        }
        let is_used =
            |g: &blk::multipath::GroupStatus| g.state == GroupState::Active && g.paths.iter().any(|p| p.is_active);
        if !leaves && status.groups.iter().any(is_used) {
            match self.options.failback {
                Failback::Immediate => {}
                Failback::After(time) => return self.signals.set_failback(clock::now() + time),
                Failback::Manual | Failback::Followover => return,
            }
        }
        let sorted = self.disk.regroup(&wanted);
        assert!(sorted.is_ok(), "the paths of this disk, which has a group for each: {sorted:?}");
    }

    fn groups_wanted(&self, coming: Option<PathId>) -> Vec<Vec<PathId>> {
        let order = self.in_order();
        let members = self.members(&order, coming);
        let groups = groups::grouped(self.options.path_grouping_policy, &members);
        let ids = |members: Vec<usize>| {
            let mut ids: Vec<PathId> = members.into_iter().map(|n| order[n].id).collect();
            ids.sort_unstable();
            ids
        };
        groups.into_iter().map(ids).collect()
    }

    /// Returns the paths in the order of the targets. Those that were added are the last.
    pub(super) fn in_order(&self) -> Vec<Arc<Watched>> {
        let mut order = self.paths.present();
        order.sort_by_key(|p| p.driver.number);
        order
    }

    /// Returns what decides the groups of these paths; the path `coming` counts as active.
    pub(super) fn members(&self, paths: &[Arc<Watched>], coming: Option<PathId>) -> Vec<Member> {
        let used: Vec<PathId> = self.by_status().iter().filter(|(_, s)| s.is_active).map(|(p, _)| p.id).collect();
        let member = |p: &Arc<Watched>| Member {
            prio: p.prio.load(Ordering::Relaxed),
            tpg: p.access.lock().as_ref().map(|a| a.group.group),
            is_used: used.contains(&p.id) || coming == Some(p.id),
        };
        paths.iter().map(member).collect()
    }

    /// Switches to the best group, after regrouping by the present priorities.
    pub(super) fn fail_back(&self) {
        // One at a time: otherwise a checker could switch to the group that was the best before another path came back.
        let _one = self.sorting.lock();
        if self.options.prio != Prioritizer::Const {
            self.sort(true, None);
        }
        if let Some(group) = self.better() {
            let switched = self.disk.switch_group(group);
            assert!(switched.is_ok(), "a group of this disk: {switched:?}");
        }
    }

    /// Returns the best group that has a path, if another group is in use or comes next.
    pub(super) fn better(&self) -> Option<usize> {
        let Status { group, groups, .. } = self.disk.status();
        let best = groups.iter().position(|g| g.paths.iter().any(|p| p.is_active))?;
        // The group that the next request uses: after a switch no group is in use until then.
        (best + 1 < group).then_some(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blk::scsi::alua::{PortGroup, Support};

    #[test]
    fn a_path_is_used_as_its_ports_state_and_its_handler_let_it() {
        let of = |state, explicit, handler, seconds| {
            let group = PortGroup { group: 2, state, preferred: false, ports: Vec::new() };
            let access = Access { support: Support { implicit: true, explicit }, group, transition: None };
            match standing(Some(&access), handler, Duration::from_secs(seconds)) {
                PathUse::Open => "open".to_owned(),
                PathUse::Ghost => "ghost".to_owned(),
                PathUse::Barred(why) => format!("barred: {why}"),
                PathUse::Pending(why) => format!("pending: {why}"),
            }
        };
        let (none, alua) = (HardwareHandler::None, HardwareHandler::Alua);
        for state in [AccessState::Optimized, AccessState::NonOptimized, AccessState::LbaDependent] {
            assert_eq!(of(state, true, none, 0), "open");
        }
        assert_eq!(of(AccessState::Standby, true, alua, 0), "ghost");
        assert_eq!(of(AccessState::Standby, true, none, 0), "barred: its target port group 2 is standby");
        assert_eq!(of(AccessState::Standby, false, alua, 0), "barred: its target port group 2 is standby");
        assert_eq!(of(AccessState::Unavailable, true, alua, 0), "barred: its target port group 2 is unavailable");
        assert_eq!(of(AccessState::Offline, true, alua, 0), "barred: its target port group 2 is offline");
        assert_eq!(of(AccessState::Transitioning, true, alua, 59), "pending: its target port group 2 is transitioning");
        assert_eq!(of(AccessState::Transitioning, true, alua, 60), "ghost");
        assert_eq!(of(AccessState::Transitioning, true, none, 60), "barred: its target port group 2 is transitioning");
        assert_eq!(standing(None, alua, Duration::ZERO), PathUse::Open);
    }
}
