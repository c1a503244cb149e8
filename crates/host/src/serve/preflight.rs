// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Asks the machine whether a plan can be carried out, without touching anything.
//!
//! Guarantees: nothing is created, written, locked or connected to (a TCP port is bound and let go); what is found is reported with its place in the plan.
//! Images: there, usable as asked, whole blocks, not locked. Sockets: their directory is there, no process listens, no other
//! file is in the way. Mountpoints: there. Certificates:
//! usable now. A multipath.conf of a disk: without mistakes. Does not do: promise that it stays so; opening and binding checks
//! again.

use super::check::{CheckedPlan, PlanError, PlanErrors, PlanItem};
use super::lock::{ImageLock, image_identity};
use super::plan::{DiskPlan, TargetPlan};
use super::reload::Reload;
use crate::target::TargetSpec;
use std::collections::HashMap;
use std::fs::{self, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Logical blocks of a file: its size must be whole ones.
const BLOCK: u64 = 512;

/// Checks every file and socket of the plan.
///
/// # Errors
/// All that would stop it, in the order disks, exports.
pub fn preflight(plan: &CheckedPlan) -> Result<(), PlanErrors> {
    look(plan, &|_| true, &|_| true)
}

/// The same for what a reload opens and begins; the rest of the plan is in use by this daemon itself. What it still closes
/// and ends is in its own way: a disk that is opened anew, and the socket of an export that is made anew, are not checked.
///
/// # Errors
/// As of [`preflight`].
pub fn preflight_added(plan: &CheckedPlan, steps: &Reload) -> Result<(), PlanErrors> {
    let names: Vec<&str> = plan.exports().map(|e| e.plan.name.as_str()).collect();
    let disk =
        |i: usize| steps.open_disks.contains(&i) && !steps.close_disks.iter().any(|name| *name == plan.disks()[i].name);
    let export = |i: usize| steps.begin_exports.contains(&i) && !steps.end_exports.iter().any(|name| name == names[i]);
    look(plan, &disk, &export)
}

fn look(
    plan: &CheckedPlan,
    of_disk: &dyn Fn(usize) -> bool,
    of_export: &dyn Fn(usize) -> bool,
) -> Result<(), PlanErrors> {
    let mut errors = Vec::new();
    let mut images = Images::new();
    for (index, disk) in plan.disks().iter().enumerate() {
        for target in disk.targets.iter().filter(|_| of_disk(index)) {
            if let TargetSpec::Multipath(several) = &target.spec
                && let Err(e) = several.read_conf()
            {
                // Each of its lines by itself.
                errors.extend(e.to_string().trim_start_matches("conf: ").lines().map(|line| PlanError {
                    place: PlanItem::Disk(index),
                    key: "conf".to_owned(),
                    text: format!("conf: {line}"),
                    of: format!("disk '{}'", disk.name),
                }));
            }
            let problem = images_of(disk, target, &mut images);
            if let Some(text) = problem {
                let of = format!("disk '{}'", disk.name);
                let text = format!("target={}: {text}", target.text);
                errors.push(PlanError { place: PlanItem::Disk(index), key: disk.targets_key().to_owned(), text, of });
            }
        }
    }
    let kinds: Vec<_> = plan.exports().map(|e| &e.plan.kind).collect();
    for (index, export) in plan.exports().enumerate().filter(|(index, _)| of_export(*index)) {
        // Exports of one server share its socket; where one of them runs already, so does the server.
        let with = |other: &usize| kinds[*other].shares_server(kinds[index]);
        if (0..index).any(|i| with(&i)) || (index..kinds.len()).filter(with).any(|i| !of_export(i)) {
            continue;
        }
        let of = format!("export '{}'", export.plan.name);
        export.plan.kind.preflight(&mut |key, text| {
            errors.push(PlanError { place: PlanItem::Export(index), key: key.to_owned(), text, of: of.clone() });
        });
    }
    if errors.is_empty() { Ok(()) } else { Err(PlanErrors(errors)) }
}

/// Whose an image is already.
type Images<'a> = HashMap<(u64, u64), (&'a DiskPlan, &'a TargetPlan)>;

/// What is wrong with the images of a target: one, or one for each of its paths, of which those that are not there may come later.
fn images_of<'a>(disk: &'a DiskPlan, target: &'a TargetPlan, images: &mut Images<'a>) -> Option<String> {
    let paths = target.paths();
    let is_there = |path: &Path| !matches!(fs::metadata(path), Err(e) if e.kind() == io::ErrorKind::NotFound);
    let some_are_there = paths.iter().any(|path| is_there(path));
    let mut own: Vec<(&Path, (u64, u64))> = Vec::new();
    for path in paths.iter().filter(|path| !some_are_there || is_there(path)) {
        let of_path = |text| match &target.spec {
            TargetSpec::Multipath(_) => format!("path {}: {text}", path.display()),
            _ => text,
        };
        let meta = match image(path, !disk.read_only) {
            Ok(meta) => meta,
            Err(text) => return Some(of_path(text)),
        };
        let identity = image_identity(&meta);
        if own.iter().any(|(_, known)| *known == identity) {
            continue;
        }
        // Two block devices may be two ways to one: the driver looks.
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

/// Of a file in a stripe: it has not one chunk. The size of a block device is found out when it is opened.
fn too_small(meta: &Metadata, disk: &DiskPlan) -> Option<String> {
    let stripe = disk.stripe.filter(|s| meta.is_file() && meta.len() < s.chunk_bytes)?;
    let (has, chunk) = (meta.len(), stripe.chunk_text());
    Some(format!("has {has} bytes: must be at least one chunk ({chunk}); make it larger or the chunk smaller"))
}

/// What is wrong with an image.
fn image(path: &Path, write: bool) -> Result<Metadata, String> {
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
        // Opening a block device for writing is an event for others (udev); the daemon will see what it may.
        OpenOptions::new().read(true).write(write).open(path).map_err(|e| {
            let remedy = if write { "; make it writable or serve it read_only" } else { "" };
            format!("{e}{remedy}")
        })?;
        let (size, rest) = (meta.len(), meta.len() % BLOCK);
        if size == 0 {
            return Err("is empty; give it a size (truncate -s 10G FILE)".to_owned());
        }
        if rest != 0 {
            let up = size.saturating_add(BLOCK - rest);
            return Err(format!(
                "has {size} bytes, which is not whole blocks of {BLOCK}; is it a raw image? To pad it: truncate -s {up} FILE"
            ));
        }
    }
    ImageLock::probe(path, write).map_err(|e| e.to_string())?;
    Ok(meta)
}

#[cfg(test)]
mod tests;
