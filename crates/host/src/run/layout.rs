// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The files of a run's targets: locked, created, extended, checked.
//!
//! Guarantees: only files that the user named are made or touched, and a mounted device is not written to unless the job allows it.

use super::grid::Grid;
use super::prepare::{Content, Target};
use crate::create::{self, Layout, Space};
use crate::driver::HostDriver;
use crate::driver::file::FileWarning;
use crate::error::{Error, ErrorKind, Result};
use crate::image_lock::ImageLocks;
use crate::target::{Needs, TargetSpec, TargetWarning, add_new};
use blk::id::{SECTOR_SHIFT, SECTOR_SIZE};
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use workload::engine::FileTarget;
use workload::job::{Dir, Extent, Fallocate, Job};

fn file_of(spec: &TargetSpec) -> Option<&PathBuf> {
    match spec {
        TargetSpec::File(path) => Some(path),
        _ => None,
    }
}

/// Refuses jobs whose direct I/O is not whole sectors. No file takes it, so none is made.
fn check_direct(jobs: &[Job], target: &Target, needs: &Needs) -> Result<()> {
    if !needs.direct || file_of(&target.spec).is_none() {
        return Ok(());
    }
    let grid = Grid { block: SECTOR_SIZE, takes_bytes: false, is_direct: true };
    let bytes = asked_bytes(jobs, target);
    target.users.iter().try_for_each(|user| match user.content {
        Content::Data(share) => {
            grid.check(&jobs[user.instance.job], user.instance.instance, FileTarget { bytes, share })
        }
        Content::Redo => Ok(()),
    })
}

/// The files of a target, and how many bytes each must have so that the whole has `bytes`.
fn files(spec: &TargetSpec, bytes: u64) -> (Vec<&PathBuf>, u64) {
    match spec {
        TargetSpec::File(path) => (vec![path], bytes),
        TargetSpec::Stripe(stripe) => (stripe.members.iter().filter_map(file_of).collect(), stripe.member_bytes(bytes)),
        _ => (Vec::new(), 0),
    }
}

/// Makes a percentage in `offset` 0 where a file does not exist yet, as fio does, with a warning. A `filesize` says what it is a part of.
pub(super) fn begin_new_files(jobs: &mut [Job], targets: &[Target], warnings: &mut Vec<TargetWarning>) {
    let new = targets.iter().filter(|target| file_of(&target.spec).is_some_and(|path| !path.exists()));
    for (target, user) in new.flat_map(|target| target.users.iter().map(move |user| (target, user))) {
        let job = &mut jobs[user.instance.job];
        let (Content::Data(share), Some(Extent::Bytes(_))) = (user.content, job.size) else { continue };
        let is_part = |e: Extent| matches!(e, Extent::Percent(1..));
        if share.filesize_bytes.is_none() && (is_part(job.offset) || is_part(job.offset_increment)) {
            (job.offset, job.offset_increment) = (Extent::Bytes(0), Extent::Bytes(0));
            let text = format!(
                "offset ({}): '{}' does not exist yet, so a percentage of it is 0 in this run, as in fio; give filesize, or bytes",
                job.place(),
                target.text
            );
            add_new(warnings, vec![TargetWarning::new(text)]);
        }
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
    check_direct(jobs, target, needs)?;
    lock_files(target, needs, locks)?;
    let data = || target.users.iter().filter(|u| u.has_data()).map(|u| &jobs[u.instance.job]);
    let users = || target.users.iter().map(|u| &jobs[u.instance.job]);
    let (paths, size) = files(&target.spec, asked_bytes(jobs, target));
    // A redo log is not read.
    let written = data().any(|j| j.rw.has(Dir::Read) || j.overwrite);
    let layout = layout(users(), written);
    // As with fio, a trace without writes makes no file.
    let only_reads = users().all(|j| j.replay.is_some() && !j.rw.has(Dir::Write));
    for path in paths {
        if !path.exists() {
            if only_reads {
                let place = users().map(Job::place).next().expect("a target has a user");
                let text = format!(
                    "read_iolog ({place}): the trace reads '{}', which does not exist; make it, or set replay_redirect",
                    path.display()
                );
                return Err(Error::usage(text));
            }
            if let Some(job) = users().find(|j| !j.allow_file_create) {
                let text =
                    format!("'{}' does not exist and job '{}' says allow_file_create=0", path.display(), job.name);
                return Err(Error::usage(text));
            }
            if size == 0 {
                let place = users().map(Job::place).next().expect("a target has a user");
                let missing = format!("{place}: '{}' does not exist", path.display());
                let text = match data().next() {
                    None => format!("{missing} and the job gives no redo_size; add e.g. redo_size=64m"),
                    Some(job) if matches!(job.size, Some(Extent::Percent(_))) => {
                        format!("{missing}, so size cannot be a percentage of it; add e.g. filesize=1g")
                    }
                    Some(_) => format!("{missing} and the job gives no size; add e.g. size=1g"),
                };
                return Err(Error::usage(text));
            }
        }
        if size > 0 && !only_reads {
            if let Some(dir) = path.parent().filter(|_| target.makes_directories && !path.exists()) {
                let failed = |e| Error::os(e, format!("cannot create the directory '{}'", dir.display()));
                fs::create_dir_all(dir).map_err(failed)?;
            }
            create::create(path, size, layout, &mut |done, all| laying_out(path, done, all))?;
        }
    }
    // Those that were created just now.
    lock_files(target, needs, locks)
}

/// How the files of these jobs are made. Jobs that share a file may ask for different ways; the first of them decides.
fn layout<'a>(mut users: impl Iterator<Item = &'a Job>, is_written: bool) -> Layout {
    let Some(first) = users.next() else { return Layout::ALLOCATE };
    let space = match first.fallocate {
        Fallocate::None | Fallocate::Truncate => Space::None,
        Fallocate::Native | Fallocate::Posix => Space::Allocated,
        Fallocate::Keep => Space::AllocatedFirst,
    };
    Layout { space, is_written, is_synced: first.create_fsync }
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
        // What bypasses the page cache finds nothing in it.
        if needs.direct {
            continue;
        }
        if used().any(|j| j.pre_read) {
            let all = asked_bytes(jobs, target);
            create::fill_page_cache(path, if all == 0 { u64::MAX } else { all })?;
        } else if used().any(|j| j.invalidate) {
            create::drop_cached_pages(path)?;
        }
    }
    Ok(())
}

/// The regular files of a target that its jobs want removed after the run.
pub(super) fn to_remove<'a>(jobs: &[Job], target: &'a Target) -> Vec<&'a PathBuf> {
    let removes = target.users.iter().any(|u| jobs[u.instance.job].unlink);
    let (paths, _) = files(&target.spec, 0);
    paths.into_iter().filter(|path| removes && path.is_file()).collect()
}

/// The warnings that reads may not reach the device.
pub(super) fn holes(jobs: &[Job], target: &Target) -> Result<Vec<FileWarning>> {
    let reads = target.users.iter().any(|u| u.has_data() && jobs[u.instance.job].rw.has(Dir::Read));
    let mut found = Vec::new();
    for path in files(&target.spec, 0).0.into_iter().filter(|_| reads) {
        if create::has_holes(path)? {
            found.push(FileWarning::Holes { path: path.clone() });
        }
    }
    Ok(found)
}

/// Returns the bytes that a target needs for its jobs; 0 if none gives a size.
fn asked_bytes(jobs: &[Job], target: &Target) -> u64 {
    target.bytes_planned(jobs).unwrap_or(0)
}

/// Whether a file may end within a sector. A transaction loop lays its volumes out in whole sectors.
pub(super) fn any_size(jobs: &[Job], target: &Target, needs: &Needs) -> bool {
    !needs.direct && target.users.iter().all(|u| jobs[u.instance.job].oltp.is_none())
}

fn is_block_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device())
}

/// What the users of a target will do with it.
pub(super) fn needs(jobs: &[Job], target: &Target, read_ahead_kb: Option<u32>) -> Needs {
    let used = || target.users.iter().map(|u| &jobs[u.instance.job]);
    // As with fio, jobs on a smaller device use all of it.
    let is_device = matches!(&target.spec, TargetSpec::File(path) if is_block_device(path));
    // The replay says what does not fit.
    let is_replay = used().all(|j| j.replay.is_some());
    let whole_sectors = asked_bytes(jobs, target) >> SECTOR_SHIFT << SECTOR_SHIFT;
    Needs {
        write: used().any(|j| j.rw.has(Dir::Write) || j.rw.has(Dir::Trim)),
        direct: used().any(|j| j.direct),
        min_bytes: if is_device || is_replay { 0 } else { whole_sectors },
        in_use: used().all(|j| j.allow_mounted_write),
        read_ahead_kb,
        aio: None,
    }
}
