// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Paths of an open multipath disk that are added and removed because its plan has changed.
//!
//! Guarantees: new paths are added first. If one of them cannot be, no path of its target is removed. The paths that the disk has then
//! are returned, in the order in which they became paths, which is that of their numbers. Does not do: decide whether the disk can stay
//! open (`reload` does), or lock images (each path does).

use super::begin::{OpenDisk, images_of};
use super::plan::{DiskPlan, TargetPlan};
use crate::driver::multipath::{MultipathTarget, PathTarget};
use crate::driver::{CommandOutcome, PathCommand};
use crate::error::{Error, Result};
use crate::target::{TargetSpec, TargetWarning, add_new};

/// What a change of paths did.
pub(super) struct Repathed {
    /// The targets of the disk with the paths that they have now.
    pub(super) targets: Vec<TargetPlan>,
    /// What was changed, as text for a person, one line each.
    pub(super) done: Vec<String>,
    /// Warnings about paths that were added.
    pub(super) warnings: Vec<TargetWarning>,
    /// The first failure of each target.
    pub(super) failed: Vec<Error>,
}

impl OpenDisk {
    /// Gives the disk the paths of another plan. `by_force`: also if requests cannot use any path then.
    pub(super) fn repath(&mut self, old: &DiskPlan, new: &DiskPlan, by_force: bool) -> Repathed {
        let targets = new.targets.clone();
        let mut all = Repathed { targets, done: Vec::new(), warnings: Vec::new(), failed: Vec::new() };
        for (at, (was, wanted)) in old.targets.iter().zip(&new.targets).enumerate() {
            let (TargetSpec::Multipath(was), TargetSpec::Multipath(wanted)) = (&was.spec, &wanted.spec) else {
                continue;
            };
            let mut paths = was.paths.clone();
            let both = (was.as_ref(), wanted.as_ref());
            let changed = self.change_paths(at, both, &mut paths, by_force, &mut all);
            all.failed.extend(changed.err());
            if !wanted.has_paths(&paths) {
                let is = was.with_paths(paths);
                let text = is.masked();
                all.targets[at] = TargetPlan { spec: TargetSpec::Multipath(Box::new(is)), text };
            }
        }
        let images = all.targets.iter().zip(self.served.members());
        self.images = images.flat_map(|(t, m)| images_of(&self.served.name, t, m.driver.as_ref())).collect();
        all
    }

    /// Changes the paths of one target; `paths` are those that it has, also after a failure.
    fn change_paths(
        &self,
        member: usize,
        (was, wanted): (&MultipathTarget, &MultipathTarget),
        paths: &mut Vec<PathTarget>,
        by_force: bool,
        all: &mut Repathed,
    ) -> Result<()> {
        let Some(difference) = was.path_difference(wanted) else { return Ok(()) };
        let name = self.served.member_name(member);
        for path in difference.added {
            let command = PathCommand::AddPath { name: path.name.clone(), target: path.text.clone(), prio: path.prio };
            let CommandOutcome { done, warnings } = self.served.members()[member].driver.path().command(&command)?;
            all.done.push(format!("disk '{name}': {done}"));
            add_new(&mut all.warnings, warnings.iter().map(TargetWarning::new));
            paths.push(path);
        }
        for path in difference.removed {
            let command = PathCommand::RemovePath { path: path.clone(), force: by_force };
            let done = self.served.members()[member].driver.path().command(&command)?.done;
            all.done.push(format!("disk '{name}': {done}"));
            paths.retain(|p| p.name != path);
        }
        Ok(())
    }
}
