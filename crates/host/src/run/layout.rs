// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The files of a run's targets: locked, created, extended, checked.
//!
//! Guarantees: only files that the user named are made or touched, and a mounted device is not written to unless the job allows it.

use super::prepare::{Target, redo_bytes};
use crate::create::{self, Layout};
use crate::driver::HostDriver;
use crate::driver::file::FileWarning;
use crate::error::{Error, ErrorKind, Result};
use crate::image_lock::ImageLocks;
use crate::target::{Needs, TargetSpec};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use workload::job::{Dir, Job};

fn file_of(spec: &TargetSpec) -> Option<&PathBuf> {
    match spec {
        TargetSpec::File(path) => Some(path),
        _ => None,
    }
}

/// The files of a target, and how many bytes each must have so that the whole has `bytes`.
fn files(spec: &TargetSpec, bytes: u64) -> (Vec<&PathBuf>, u64) {
    match spec {
        TargetSpec::File(path) => (vec![path], bytes),
        TargetSpec::Stripe(stripe) => (stripe.members.iter().filter_map(file_of).collect(), stripe.member_bytes(bytes)),
        _ => (Vec::new(), 0),
    }
}

/// Locks the target's files, and creates or extends those that are too small.
pub(super) fn make_files(
    jobs: &[Job],
    target: &Target,
    needs: &Needs,
    locks: &mut ImageLocks,
    laying_out: &mut dyn FnMut(&Path, u64, u64) -> ControlFlow<()>,
) -> Result<()> {
    lock_files(target, needs, locks)?;
    let data = || target.users.iter().filter(|u| u.volume == 0).map(|u| &jobs[u.instance.job]);
    let users = || target.users.iter().map(|u| &jobs[u.instance.job]);
    let filesize = data().filter_map(|j| j.filesize_bytes).max().unwrap_or(0);
    let (paths, size) = files(&target.spec, needs.min_bytes.max(filesize));
    // A redo log is not read.
    let written = data().any(|j| j.rw.has(Dir::Read) || j.overwrite);
    let layout = if written { Layout::WriteOut } else { Layout::Allocate };
    for path in paths {
        if !path.exists() {
            if let Some(job) = users().find(|j| !j.allow_file_create) {
                let text =
                    format!("'{}' does not exist and job '{}' says allow_file_create=0", path.display(), job.name);
                return Err(Error::usage(text));
            }
            if size == 0 {
                let (name, line) = users().map(|j| (&j.name, j.line)).next().expect("a target has a user");
                let (option, value) = if data().next().is_some() { ("size", "1g") } else { ("redo_size", "64m") };
                let text = format!(
                    "job '{name}' (line {line}): '{}' does not exist and the job gives no {option}; add e.g. {option}={value}",
                    path.display()
                );
                return Err(Error::usage(text));
            }
        }
        if size > 0 {
            create::create(path, size, layout, &mut |done, all| laying_out(path, done, all))?;
        }
    }
    // Those that were created just now.
    lock_files(target, needs, locks)
}

/// Locks the target's files that exist, unless its jobs only read, or allow that the content is destroyed. Then no `mqblk serve` and no
/// QEMU has them, or opens them before the run ends.
fn lock_files(target: &Target, needs: &Needs, locks: &mut ImageLocks) -> Result<()> {
    if !needs.write || needs.in_use {
        return Ok(());
    }
    locks.add(&target.spec.files()).map_err(|e| may_be_allowed(&e))
}

/// Hands the locks over to drivers that open some of the target's files later, which are then locked by the same rule.
pub(super) fn share_locks(drivers: &[Arc<dyn HostDriver>], needs: &Needs, locks: &ImageLocks) -> Result<()> {
    if !needs.write || needs.in_use {
        return Ok(());
    }
    for driver in drivers {
        driver.path().share_locks(locks.shared()).map_err(|e| may_be_allowed(&e))?;
    }
    Ok(())
}

fn may_be_allowed(e: &Error) -> Error {
    let allow = match e.kind() {
        ErrorKind::Denied => ", or set allow_mounted_write=1 if its content may be destroyed",
        _ => "",
    };
    Error::new(e.kind(), format!("{e}{allow}"))
}

/// Refuses to write to a mounted block device unless the job allows it; drops cached pages of buffered files.
pub(super) fn guard_files(jobs: &[Job], target: &Target, needs: &Needs) -> Result<()> {
    let used = || target.users.iter().map(|u| &jobs[u.instance.job]);
    for path in files(&target.spec, 0).0 {
        if needs.write
            && let Some(job) = used().find(|j| !j.allow_mounted_write)
            && let Some(at) = create::mounted_at(path)?
        {
            return Err(Error::usage(format!(
                "'{}' is mounted at '{at}' and job '{}' would write to it: unmount it, or set allow_mounted_write=1 if its \
                 content may be destroyed",
                path.display(),
                job.name
            )));
        }
        if !needs.direct && used().any(|j| j.invalidate) {
            create::drop_cached_pages(path)?;
        }
    }
    Ok(())
}

/// The warnings that reads may not reach the device.
pub(super) fn holes(jobs: &[Job], target: &Target) -> Result<Vec<FileWarning>> {
    let reads = target.users.iter().any(|u| u.volume == 0 && jobs[u.instance.job].rw.has(Dir::Read));
    let mut found = Vec::new();
    for path in files(&target.spec, 0).0.into_iter().filter(|_| reads) {
        if create::has_holes(path)? {
            found.push(FileWarning::Holes { path: path.clone() });
        }
    }
    Ok(found)
}

/// What the users of a target will do with it.
pub(super) fn needs(jobs: &[Job], target: &Target, read_ahead_kb: Option<u32>) -> Needs {
    let used = || target.users.iter().map(|u| &jobs[u.instance.job]);
    let reach = |u: &super::prepare::User| {
        let job = &jobs[u.instance.job];
        if u.volume == 0 { super::prepare::reach(job, u.instance.instance) } else { redo_bytes(job) }
    };
    Needs {
        write: used().any(|j| j.rw.has(Dir::Write) || j.rw.has(Dir::Trim)),
        direct: used().any(|j| j.direct),
        min_bytes: target.users.iter().filter_map(reach).max().unwrap_or(0),
        in_use: used().all(|j| j.allow_mounted_write),
        read_ahead_kb,
        aio: None,
    }
}
