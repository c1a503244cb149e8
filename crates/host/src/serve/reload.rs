// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The steps of a reload: the smallest change from the running plan to the new one.
//!
//! Guarantees: an item that is the same in both plans (by name and by value) is not touched, and keeps its IOThreads. Settings of a disk,
//! paths of a multipath disk that keeps one of them, the mapping of an export, and CPUs and polling of an IOThread are changed while I/O
//! continues. Other changes remove the item and make it anew. In the order of the fields every step is possible: no export refers to a
//! disk or IOThread that does not exist. Does not do: carry it out ([`super::daemon`] does), or check the machine (see
//! [`super::preflight::preflight_added`]).

use super::check::CheckedPlan;
use super::plan::{DiskPlan, ExportPlan, IoThreadPlan, TargetPlan};
use crate::driver::multipath::PathDifference;
use crate::target::TargetSpec;
use std::collections::{HashMap, HashSet};

/// The steps of a reload, in their order. Names refer to the running plan, indices to the new one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reload {
    /// IOThreads to start.
    pub start_iothreads: Vec<usize>,
    /// IOThreads whose CPUs or polling change.
    pub retune_iothreads: Vec<usize>,
    /// Exports to end: gone, or to be made anew.
    pub end_exports: Vec<String>,
    /// Disks to close: gone, or to be opened anew.
    pub close_disks: Vec<String>,
    /// Disks to open.
    pub open_disks: Vec<usize>,
    /// Open disks whose settings change.
    pub reset_disks: Vec<usize>,
    /// Open disks that get or lose paths, or whose paths are listed in another order.
    pub repath_disks: Vec<usize>,
    /// Exports to begin.
    pub begin_exports: Vec<usize>,
    /// Exports of which only the IOThreads change.
    pub remap_exports: Vec<usize>,
    /// IOThreads to stop, because they are not in the new plan.
    pub stop_iothreads: Vec<String>,
}

impl Reload {
    /// Returns the steps from an empty plan to `plan`.
    pub fn all(plan: &CheckedPlan) -> Reload {
        Reload {
            start_iothreads: (0..plan.iothreads().len()).collect(),
            open_disks: (0..plan.disks().len()).collect(),
            begin_exports: (0..plan.exports().len()).collect(),
            ..Reload::default()
        }
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        *self == Reload::default()
    }
}

/// Returns the steps from `old` to `new`. In `new`, exports without a mapping keep the IOThreads that they were assigned in `old`, if
/// these still exist, because adding or removing another export must not move them.
pub fn reload(old: &CheckedPlan, new: &mut CheckedPlan) -> Reload {
    new.keep_dealt(old);
    let new = &*new;
    let mut steps = Reload::default();
    let threads: HashMap<&str, &IoThreadPlan> = old.iothreads().iter().map(|t| (t.name.as_str(), t)).collect();
    for (index, thread) in new.iothreads().iter().enumerate() {
        match threads.get(thread.name.as_str()) {
            None => steps.start_iothreads.push(index),
            Some(running) if *running != thread => steps.retune_iothreads.push(index),
            Some(_) => {}
        }
    }
    let kept: HashSet<&str> = new.iothreads().iter().map(|t| t.name.as_str()).collect();
    let gone = old.iothreads().iter().filter(|t| !kept.contains(t.name.as_str()));
    steps.stop_iothreads = gone.map(|t| t.name.clone()).collect();
    let reopened = disks(old, new, &mut steps);
    exports(old, new, &reopened, &mut steps);
    steps
}

/// Adds the steps of disks. Returns the names of disks that are closed.
fn disks<'a>(old: &'a CheckedPlan, new: &CheckedPlan, steps: &mut Reload) -> HashSet<&'a str> {
    let wanted: HashMap<&str, (usize, &DiskPlan)> =
        new.disks().iter().enumerate().map(|(i, d)| (d.name.as_str(), (i, d))).collect();
    let mut closed = HashSet::new();
    for disk in old.disks() {
        match wanted.get(disk.name.as_str()) {
            Some((index, other)) if stays_open(disk, other) => {
                if disk.settings != other.settings {
                    steps.reset_disks.push(*index);
                }
                if disk.targets.iter().zip(&other.targets).any(|(old, new)| has_other_paths(old, new) == Some(true)) {
                    steps.repath_disks.push(*index);
                }
            }
            _ => {
                steps.close_disks.push(disk.name.clone());
                closed.insert(disk.name.as_str());
            }
        }
    }
    let open: HashSet<&str> = old.disks().iter().map(|d| d.name.as_str()).filter(|d| !closed.contains(d)).collect();
    let missing = new.disks().iter().enumerate().filter(|(_, d)| !open.contains(d.name.as_str()));
    steps.open_disks = missing.map(|(index, _)| index).collect();
    closed
}

/// Whether a disk can become that of another plan while it is open.
fn stays_open(old: &DiskPlan, new: &DiskPlan) -> bool {
    let (settings, targets) = (old.settings.clone(), old.targets.clone());
    // `format` matters only when an image is opened.
    let but = DiskPlan { settings, targets, is_raw: old.is_raw, ..new.clone() };
    let mut both = old.targets.iter().zip(&new.targets);
    but == *old && old.targets.len() == new.targets.len() && both.all(|(old, new)| has_other_paths(old, new).is_some())
}

/// Whether a target gets or loses paths, or only its list has another order; `None`: it becomes another target.
fn has_other_paths(old: &TargetPlan, new: &TargetPlan) -> Option<bool> {
    match (&old.spec, &new.spec) {
        _ if old == new => Some(false),
        (TargetSpec::Multipath(old), TargetSpec::Multipath(new)) => {
            let difference = old.path_difference(new)?;
            Some(difference != PathDifference::default() || !old.has_paths(&new.paths))
        }
        _ => None,
    }
}

fn exports(old: &CheckedPlan, new: &CheckedPlan, closed: &HashSet<&str>, steps: &mut Reload) {
    let names_of = |plan: &CheckedPlan, iothreads: &[usize]| -> Vec<String> {
        iothreads.iter().map(|i| plan.iothreads()[*i].name.clone()).collect()
    };
    let running: HashMap<&str, (&ExportPlan, Vec<String>)> =
        old.exports().map(|e| (e.plan.name.as_str(), (e.plan, names_of(old, e.iothreads)))).collect();
    let mut stay = HashSet::new();
    for (index, export) in new.exports().enumerate() {
        let name = export.plan.name.as_str();
        let before = running.get(name).filter(|(plan, _)| {
            let unmapped = ExportPlan { mapping: plan.mapping.clone(), ..export.plan.clone() };
            unmapped == **plan && !closed.contains(plan.disk.as_str())
        });
        match before {
            None => steps.begin_exports.push(index),
            Some((_, iothreads)) => {
                stay.insert(name);
                if *iothreads != names_of(new, export.iothreads) {
                    steps.remap_exports.push(index);
                }
            }
        }
    }
    let gone = old.exports().map(|e| e.plan.name.as_str()).filter(|name| !stay.contains(name));
    steps.end_exports = gone.map(str::to_owned).collect();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::check::HostFacts;
    use crate::serve::geometry::Geometry;
    use crate::serve::mapping::Mapping;
    use crate::serve::plan::{ExportKind, PollPlan, QUEUE_SIZE, ServePlan, VhostUserPlan};

    fn plan(threads: &[&str], disks: &[(&str, &str)], exports: &[(&str, &str, u16)]) -> ServePlan {
        let disk = |(name, target): &(&str, &str)| DiskPlan::new(*name, TargetSpec::parse(target).unwrap(), *target);
        let export = |(name, disk, num_queues): &(&str, &str, u16)| ExportPlan {
            name: (*name).to_owned(),
            disk: (*disk).to_owned(),
            read_only: false,
            geometry: Geometry::default(),
            mapping: Mapping::default(),
            kind: ExportKind::VhostUserBlk(VhostUserPlan {
                socket: format!("{name}.sock").into(),
                socket_mode: None,
                num_queues: *num_queues,
                queue_size: QUEUE_SIZE,
                allow_file_memory: false,
            }),
        };
        ServePlan {
            iothreads: threads.iter().map(|t| IoThreadPlan::new(*t)).collect(),
            disks: disks.iter().map(disk).collect(),
            exports: exports.iter().map(export).collect(),
        }
    }

    fn checked(plan: ServePlan) -> CheckedPlan {
        plan.check(&HostFacts { cpus: (0..4).collect() }).unwrap()
    }

    fn two() -> ServePlan {
        plan(&["x", "y"], &[("a", "null"), ("b", "ram")], &[("ea", "a", 1), ("eb", "b", 1)])
    }

    #[test]
    fn the_same_plan_is_nothing_to_do() {
        assert!(reload(&checked(two()), &mut checked(two())).is_empty());
        let mut other_order = two();
        other_order.disks.reverse();
        other_order.exports.reverse();
        assert!(reload(&checked(two()), &mut checked(other_order)).is_empty(), "names count, not places");
    }

    /// Otherwise the second export would move to the IOThread of the first.
    #[test]
    fn an_export_keeps_its_iothreads_when_others_come_and_go() {
        let mut less = checked(plan(&["x", "y"], &[("b", "ram")], &[("eb", "b", 1)]));
        assert_eq!(less.exports().next().unwrap().iothreads, [0]);
        let steps = reload(&checked(two()), &mut less);
        let expected = Reload { end_exports: vec!["ea".into()], close_disks: vec!["a".into()], ..Reload::default() };
        assert_eq!(steps, expected);
        assert_eq!(less.exports().next().unwrap().iothreads, [1]);
        let mut more = checked(two());
        let steps = reload(&less, &mut more);
        assert_eq!(steps, Reload { open_disks: vec![0], begin_exports: vec![0], ..Reload::default() });
    }

    #[test]
    fn what_can_change_under_io_is_told_apart() {
        let mut new = two();
        new.iothreads[1].poll = PollPlan { max_ns: Some(0), ..PollPlan::default() };
        new.disks[0].settings.push(("nomerges".into(), "2".into()));
        new.exports[0].mapping = Mapping::round_robin(["y"]);
        let expected =
            Reload { retune_iothreads: vec![1], reset_disks: vec![0], remap_exports: vec![0], ..Reload::default() };
        assert_eq!(reload(&checked(two()), &mut checked(new)), expected);
    }

    /// Once, a disk was opened anew, and its clients were disconnected, when a path was added.
    #[test]
    fn disk_that_keeps_a_path_stays_open() {
        let disk = |target: &str| plan(&["x"], &[("a", target)], &[("ea", "a", 1)]);
        let steps = |old: &str, new: ServePlan| reload(&checked(disk(old)), &mut checked(new));
        let repath = Reload { repath_disks: vec![0], ..Reload::default() };
        assert_eq!(steps("multipath:/a+/b", disk("multipath:/a+/b+/c")), repath);
        assert_eq!(steps("multipath:/a+/b", disk("multipath:/b")), repath);
        assert_eq!(steps("multipath:/a+/b", disk("multipath:/b+/a")), repath, "the plan keeps the order");
        let mut new = disk("multipath:prio=1+1+5:/a+/b+/c");
        new.disks[0].settings.push(("nomerges".into(), "2".into()));
        assert_eq!(steps("multipath:/a+/b", new), Reload { reset_disks: vec![0], ..repath });
        // Written in another way.
        assert!(steps("multipath:/a+/b", disk("multipath:prio=1+1:/a+/b")).is_empty());
        let iscsi = |host: &str| format!("multipath:iscsi://{host}/iqn.2026-11.x:y/1");
        assert!(steps(&iscsi("a:3260"), disk(&iscsi("a"))).is_empty(), "another text of the same path");
        for other in ["multipath:/c+/d", "multipath:failback=immediate:/a+/b", "/a"] {
            assert_eq!(steps("multipath:/a+/b", disk(other)).close_disks, ["a"], "{other}");
        }
    }

    #[test]
    fn a_mapping_that_says_what_was_dealt_changes_nothing() {
        let mut new = two();
        new.exports[1].mapping = Mapping::round_robin(["y"]);
        assert!(reload(&checked(two()), &mut checked(new)).is_empty());
    }

    #[test]
    fn a_disk_that_is_opened_anew_takes_its_exports_with_it() {
        let mut new = two();
        new.disks[0].read_only = true;
        let expected = Reload {
            end_exports: vec!["ea".into()],
            close_disks: vec!["a".into()],
            open_disks: vec![0],
            begin_exports: vec![0],
            ..Reload::default()
        };
        assert_eq!(reload(&checked(two()), &mut checked(new)), expected);
    }

    #[test]
    fn iothreads_that_go_are_left_by_their_exports_first() {
        let mut new = checked(plan(&["z", "x"], &[("a", "null"), ("b", "ram")], &[("ea", "a", 1), ("eb", "b", 1)]));
        let steps = reload(&checked(two()), &mut new);
        let expected = Reload {
            start_iothreads: vec![0],
            remap_exports: vec![1],
            stop_iothreads: vec!["y".into()],
            ..Reload::default()
        };
        assert_eq!(steps, expected, "'ea' stays on 'x', 'eb' has lost 'y'");
        let names: Vec<_> = new.exports().map(|e| new.iothreads()[e.iothreads[0]].name.clone()).collect();
        assert_eq!(names, ["x", "x"]);
    }

    #[test]
    fn an_export_that_changes_is_made_anew() {
        let mut new = two();
        if let ExportKind::VhostUserBlk(v) = &mut new.exports[1].kind {
            v.num_queues = 2;
        }
        let steps = reload(&checked(two()), &mut checked(new));
        let expected = Reload { end_exports: vec!["eb".into()], begin_exports: vec![1], ..Reload::default() };
        assert_eq!(steps, expected);
    }
}
