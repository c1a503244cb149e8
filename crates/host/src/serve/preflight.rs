// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks on this machine whether a plan can be carried out, without changing anything.
//!
//! Guarantees: nothing is created, written, locked or connected to (a TCP port is bound and released). Each problem is reported with its
//! item in the plan. The checks are: images exist, are accessible as requested, have whole blocks and are not locked; the directory of a
//! socket exists, no process listens there, and no other file is in the way; mountpoints exist; certificates are usable now; the
//! multipath.conf of a disk has no errors. Does not promise that this stays so; opening and binding check again.

use super::check::{CheckedPlan, PlanError, PlanErrors, PlanItem};
use super::format;
use super::plan::{DiskPlan, TargetPlan};
use super::reload::Reload;
use crate::driver::aio::{self, Aio};
use crate::driver::file::whole_blocks;
use crate::image_lock::{ImageLock, image_identity};
use crate::target::TargetSpec;
use std::collections::{HashMap, HashSet};
use std::fs::{self, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Checks every file and socket of the plan.
///
/// # Errors
/// Everything that would prevent the plan, in the order disks, exports.
pub fn preflight(plan: &CheckedPlan) -> Result<(), PlanErrors> {
    let found = look(plan, &|_| true, &|_| true);
    found.into_result()
}

/// As [`preflight`], for a daemon that starts. Disks with images that are not raw are left out, with their exports: a guest that writes the
/// beginning of such a format to its disk must not keep the other disks from being served. Returns the rest of the plan, and why disks are
/// left out.
///
/// # Errors
/// The errors of [`preflight`]. Images that are not raw count only if no disk would be left.
pub fn preflight_start(mut plan: CheckedPlan) -> Result<(CheckedPlan, Vec<PlanError>), PlanErrors> {
    let found = look(&plan, &|_| true, &|_| true);
    let name = |e: &PlanError| match e.place {
        PlanItem::Disk(index) => Some(plan.disks()[index].name.clone()),
        _ => None,
    };
    let left_out: HashSet<String> = found.not_raw.iter().filter_map(name).collect();
    if !found.errors.is_empty() || left_out.len() == plan.disks().len() {
        return found.into_result().map(|()| (plan, Vec::new()));
    }
    plan.remove(&left_out, &HashSet::new());
    Ok((plan, found.not_raw))
}

/// As [`preflight`], but only for what a reload opens and begins; this daemon already uses the rest of the plan. A disk that is closed and
/// opened anew, or an export that is ended and begun anew, is not checked, because the old one would be reported as in the way.
///
/// # Errors
/// The errors of [`preflight`].
pub fn preflight_added(plan: &CheckedPlan, steps: &Reload) -> Result<(), PlanErrors> {
    let names: Vec<&str> = plan.exports().map(|e| e.plan.name.as_str()).collect();
    let disk =
        |i: usize| steps.open_disks.contains(&i) && !steps.close_disks.iter().any(|name| *name == plan.disks()[i].name);
    let export = |i: usize| steps.begin_exports.contains(&i) && !steps.end_exports.iter().any(|name| name == names[i]);
    look(plan, &disk, &export).into_result()
}

/// What was found.
struct Found {
    errors: Vec<PlanError>,
    /// Images that are not raw.
    not_raw: Vec<PlanError>,
}

impl Found {
    fn into_result(self) -> Result<(), PlanErrors> {
        let all: Vec<PlanError> = self.not_raw.into_iter().chain(self.errors).collect();
        if all.is_empty() { Ok(()) } else { Err(PlanErrors(all)) }
    }
}

fn look(plan: &CheckedPlan, of_disk: &dyn Fn(usize) -> bool, of_export: &dyn Fn(usize) -> bool) -> Found {
    let (mut errors, mut not_raw) = (Vec::new(), Vec::new());
    let mut images = Images::new();
    for (index, disk) in plan.disks().iter().enumerate() {
        if of_disk(index) && disk.aio == Some(Aio::IoUring) && disk.paths().next().is_some() {
            errors.extend(aio::check_io_uring().err().map(|e| PlanError {
                place: PlanItem::Disk(index),
                key: "aio".to_owned(),
                text: e.to_string(),
                of: format!("disk '{}'", disk.name),
            }));
        }
        // An export that is added later is checked when it begins.
        let mut exports = plan.exports().filter(|e| e.disk == index);
        let any_size = disk.is_one_file() && exports.all(|e| e.plan.kind.serves_any_size());
        for target in disk.targets.iter().filter(|_| of_disk(index)) {
            if let TargetSpec::Multipath(several) = &target.spec
                && let Err(e) = several.read_conf()
            {
                // Report each line of the message separately.
                errors.extend(e.to_string().trim_start_matches("conf: ").lines().map(|line| PlanError {
                    place: PlanItem::Disk(index),
                    key: "conf".to_owned(),
                    text: format!("conf: {line}"),
                    of: format!("disk '{}'", disk.name),
                }));
            }
            let problem = |text: String| PlanError {
                place: PlanItem::Disk(index),
                key: disk.targets_key().to_owned(),
                text: format!("target={}: {text}", target.text),
                of: format!("disk '{}'", disk.name),
            };
            match format::of_target(disk, target) {
                Some(text) => not_raw.push(problem(text)),
                None => errors.extend(images_of(disk, target, any_size, &mut images).map(problem)),
            }
        }
    }
    let kinds: Vec<_> = plan.exports().map(|e| &e.plan.kind).collect();
    for (index, export) in plan.exports().enumerate().filter(|(index, _)| of_export(*index)) {
        // Exports of one server share its socket; if one of them is already running, so is the server.
        let with = |other: &usize| kinds[*other].shares_server(kinds[index]);
        if (0..index).any(|i| with(&i)) || (index..kinds.len()).filter(with).any(|i| !of_export(i)) {
            continue;
        }
        let of = format!("export '{}'", export.plan.name);
        export.plan.kind.preflight(&mut |key, text| {
            errors.push(PlanError { place: PlanItem::Export(index), key: key.to_owned(), text, of: of.clone() });
        });
    }
    Found { errors, not_raw }
}

/// The disk and target that each image belongs to, by identity.
type Images<'a> = HashMap<(u64, u64), (&'a DiskPlan, &'a TargetPlan)>;

/// Returns the problem of a target's images, if there is one. A target has one image, or one per path; a missing path may appear later.
fn images_of<'a>(
    disk: &'a DiskPlan,
    target: &'a TargetPlan,
    any_size: bool,
    images: &mut Images<'a>,
) -> Option<String> {
    let paths = target.paths();
    let is_there = |path: &Path| !matches!(fs::metadata(path), Err(e) if e.kind() == io::ErrorKind::NotFound);
    let some_are_there = paths.iter().any(|path| is_there(path));
    let mut own: Vec<(&Path, (u64, u64))> = Vec::new();
    for path in paths.iter().filter(|path| !some_are_there || is_there(path)) {
        let of_path = |text| match &target.spec {
            TargetSpec::Multipath(_) => format!("path {}: {text}", path.display()),
            _ => text,
        };
        let meta = match image(path, disk, any_size) {
            Ok(meta) => meta,
            Err(text) => return Some(of_path(text)),
        };
        let identity = image_identity(&meta);
        if own.iter().any(|(_, known)| *known == identity) {
            continue;
        }
        // Two block devices may be two paths to one disk; the driver checks that.
        if let Some((first, _)) = own.first().filter(|_| meta.is_file()) {
            return Some(of_path(format!("is a different file from {}; paths must lead to one disk", first.display())));
        }
        own.push((path, identity));
        let problem = match images.insert(identity, (disk, target)) {
            Some((same, other)) if same.name == disk.name => {
                Some(format!("is the same image as '{}' of this disk; each must be different", other.text))
            }
            Some((owner, other)) if !(owner.read_only && disk.read_only) => Some(format!(
                "is the same image as '{}' of disk '{}', and only one disk may write to it; give that disk two exports \
                 instead",
                other.text, owner.name
            )),
            _ => too_small(&meta, disk),
        };
        if let Some(text) = problem {
            return Some(of_path(text));
        }
    }
    None
}

/// Returns a problem if a file of a striped disk is smaller than one chunk. The size of a block device is checked when it is opened.
fn too_small(meta: &Metadata, disk: &DiskPlan) -> Option<String> {
    let stripe = disk.stripe.filter(|s| meta.is_file() && meta.len() < s.chunk_bytes)?;
    let (has, chunk) = (meta.len(), stripe.chunk_text());
    Some(format!("has {has} bytes: must be at least one chunk ({chunk}); make it larger or the chunk smaller"))
}

/// Checks that the disk will show all bytes of a file; with `any_size`, it may end within a sector. Of a target of a stripe, bytes behind the
/// last whole chunk are not used anyway.
pub(super) fn shows_all(path: &Path, meta: &Metadata, disk: &DiskPlan, any_size: bool) -> Result<(), String> {
    whole_blocks(path, disk.part, meta.len(), disk.direct && disk.stripe.is_none(), any_size)
}

/// Checks an image. Returns its metadata, or its problem.
fn image(path: &Path, disk: &DiskPlan, any_size: bool) -> Result<Metadata, String> {
    let write = !disk.read_only;
    let meta = fs::metadata(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => "the image does not exist; create it first (truncate -s 10G FILE)".to_owned(),
        _ => e.to_string(),
    })?;
    let kind = meta.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        let is = if kind.is_dir() { "a directory" } else { "a special file" };
        return Err(format!("is {is}: a disk must be a regular file or a block device"));
    }
    if kind.is_file() {
        // A block device is not opened for writing here, because that triggers udev events; the daemon finds out later.
        OpenOptions::new().read(true).write(write).open(path).map_err(|e| {
            let remedy = if write { "; make it writable or serve it read_only" } else { "" };
            format!("{e}{remedy}")
        })?;
        if meta.len() == 0 {
            return Err("is empty; give it a size (truncate -s 10G FILE)".to_owned());
        }
        shows_all(path, &meta, disk, any_size)?;
    }
    ImageLock::probe(path, write).map_err(|e| e.to_string())?;
    Ok(meta)
}

#[cfg(test)]
mod tests;
