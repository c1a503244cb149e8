// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Paths of an open multipath disk that are added and removed because its plan has changed.
//!
//! Guarantees: new paths are added first. If one of them cannot be, no path of its target is removed. The paths that the disk has then
//! are returned, in the order in which they became paths, which is that of their numbers. A file or block device is locked before it
//! becomes a path. Does not do: decide whether the disk can stay open (`reload` does).

use super::begin::OpenDisk;
use super::plan::{DiskPlan, TargetPlan};
use crate::driver::PathCommand;
use crate::driver::multipath::{MultipathTarget, PathTarget};
use crate::error::{Error, Result};
use crate::image_lock::{ImageLock, image_identity};
use crate::served_path::ServedPath;
use crate::target::TargetSpec;
use std::path::Path;
use std::sync::Arc;

/// What a change of paths did.
pub(super) struct Repathed {
    /// The targets of the disk with the paths that they have now.
    pub(super) targets: Vec<TargetPlan>,
    /// What was changed, as text for a person, one line each.
    pub(super) done: Vec<String>,
    /// The first failure of each target.
    pub(super) failed: Vec<Error>,
}

impl OpenDisk {
    /// Gives the disk the paths of another plan. `by_force`: also if requests cannot use any path then.
    pub(super) fn repath(&mut self, old: &DiskPlan, new: &DiskPlan, by_force: bool) -> Repathed {
        let mut all = Repathed { targets: new.targets.clone(), done: Vec::new(), failed: Vec::new() };
        for (at, (was, wanted)) in old.targets.iter().zip(&new.targets).enumerate() {
            let (TargetSpec::Multipath(was), TargetSpec::Multipath(wanted)) = (&was.spec, &wanted.spec) else {
                continue;
            };
            let mut paths = was.paths.clone();
            let both = (was.as_ref(), wanted.as_ref());
            let changed = self.change_paths(at, both, &mut paths, !new.read_only, by_force, &mut all.done);
            all.failed.extend(changed.err());
            if paths != wanted.paths {
                let is = was.with_paths(paths);
                let text = is.masked();
                all.targets[at] = TargetPlan { spec: TargetSpec::Multipath(Box::new(is)), text };
            }
        }
        self.name_images(&all.targets);
        all
    }

    /// Changes the paths of one target; `paths` are those that it has, also after a failure.
    fn change_paths(
        &mut self,
        member: usize,
        (was, wanted): (&MultipathTarget, &MultipathTarget),
        paths: &mut Vec<PathTarget>,
        write: bool,
        by_force: bool,
        done: &mut Vec<String>,
    ) -> Result<()> {
        let Some(difference) = was.path_difference(wanted) else { return Ok(()) };
        let name = self.served.member_name(member);
        for path in difference.added {
            let known: Vec<&Path> = paths.iter().flat_map(|p| p.spec.files()).collect();
            let locks = lock(&path.spec.files(), &known, write)?;
            let command = PathCommand::AddPath { name: path.name.clone(), target: path.text.clone(), prio: path.prio };
            let line = self.served.members()[member].driver.path().command(&command)?;
            self.locks.extend(locks);
            done.push(format!("disk '{name}': {line}"));
            paths.push(path);
        }
        for path in difference.removed {
            let command = PathCommand::RemovePath { path: path.clone(), force: by_force };
            let line = self.served.members()[member].driver.path().command(&command)?;
            done.push(format!("disk '{name}': {line}"));
            paths.retain(|p| p.name != path);
        }
        Ok(())
    }

    /// Notes the paths of the disk's images.
    fn name_images(&mut self, targets: &[TargetPlan]) {
        let mut images = Vec::new();
        for (target, member) in targets.iter().zip(self.served.members()) {
            let Some(identity) = member.driver.path().identity() else { continue };
            let image = |path| Arc::new(ServedPath::image(&self.served.name, path, identity.clone()));
            images.extend(target.paths().into_iter().map(image));
        }
        self.images = images;
    }
}

/// Locks the images of a path, unless the disk has them under other names.
fn lock(images: &[&Path], known: &[&Path], write: bool) -> Result<Vec<ImageLock>> {
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|meta| image_identity(&meta));
    let is_new = |path: &&&Path| {
        let image = identity(path);
        image.is_none() || known.iter().all(|other| identity(other) != image)
    };
    images.iter().filter(is_new).map(|path| ImageLock::take(path, write)).collect()
}
