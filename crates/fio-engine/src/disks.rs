// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The disks that are open in this process, and the jobs that fio has announced before it started the first one.
//!
//! Guarantees: jobs of one process that name the same target in the same way (`direct` included) get the same disk. It stays open until
//! the process ends, so the next job finds the data of a RAM disk. A forked job opens disks of its own, because it cannot use rings and
//! maps of another process. Nothing here starts a thread, so fio may fork after any call.

use crate::name::Named;
use host::disk::Disk;
use host::error::{Error, ErrorKind, Result};
use host::image_lock::ImageLocks;
use host::mem::Regions;
use host::target::{Needs, TargetSpec};
use std::collections::{HashMap, HashSet};
use std::os::unix::fs::FileTypeExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An open disk, with the information that its jobs need.
pub struct OpenDisk {
    pub disk: Arc<Disk>,
    pub named: Named,
    pub direct: bool,
    /// The reason why the disk was opened read-only although writing was requested.
    pub read_only: Option<String>,
    writes: bool,
}

/// Size of a target, as it is reported to fio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// A file, which fio may create or extend.
    File(u64),
    /// A target of fixed size.
    Device(u64),
}

/// A job that fio has announced: its `thread_data`, and the file whose size fio queried.
type Shown = (usize, String);

struct EngineState {
    /// The process that this state belongs to.
    pid: u32,
    disks: Vec<Arc<OpenDisk>>,
    regions: Arc<Regions>,
    /// The jobs, in the order in which fio set them up before it started any.
    shown: Vec<Shown>,
    /// The process that set them up.
    parent: u32,
    said: HashSet<String>,
    /// Locks on the images that jobs write. Jobs that fio forks share them, and they end with fio.
    locks: ImageLocks,
    names: HashMap<String, Named>,
}

static STATE: Mutex<Option<EngineState>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<EngineState>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with<R>(f: impl FnOnce(&mut EngineState) -> R) -> R {
    let mut guard = lock();
    let pid = std::process::id();
    let state = guard.get_or_insert_with(|| EngineState {
        pid,
        disks: Vec::new(),
        regions: Arc::new(Regions::new()),
        shown: Vec::new(),
        parent: pid,
        said: HashSet::new(),
        locks: ImageLocks::default(),
        names: HashMap::new(),
    });
    if state.pid != pid {
        // After a fork, the open disks belong to the other process. They are neither used nor closed here.
        std::mem::forget(std::mem::take(&mut state.disks));
        std::mem::forget(std::mem::replace(&mut state.regions, Arc::new(Regions::new())));
        state.pid = pid;
    }
    f(state)
}

/// Prints a line for the user, once per process and text.
pub fn say(text: &str) {
    if with(|s| s.said.insert(text.to_owned())) {
        eprintln!("mqblk: {text}");
    }
}

/// Reads a name with this process's environment, and keeps the result. fio asks the first time before a job's affinity has restricted
/// the CPUs, and the disk is to have all CPUs even so.
pub fn read_name(text: &str) -> Result<Named> {
    if let Some(named) = with(|s| s.names.get(text).cloned()) {
        return Ok(named);
    }
    let environment = std::env::var("MQBLK_SET").ok();
    let named = Named::read(text, environment.as_deref())?;
    with(|s| s.names.insert(text.to_owned(), named.clone()));
    Ok(named)
}

/// Records that the job `td` will use this file.
pub fn show(td: usize, text: &str) {
    with(|s| {
        if s.pid == s.parent && !s.shown.iter().any(|(t, n)| *t == td && n == text) {
            s.shown.push((td, text.to_owned()));
        }
    });
}

/// Returns the memory regions that all disks of the process read and write.
pub fn regions() -> Arc<Regions> {
    with(|s| Arc::clone(&s.regions))
}

/// A job's number among all announced jobs, and the numbers of the other jobs in its process; `None` if these are not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobPlace {
    pub number: u32,
    /// Numbers of the jobs that share the disks of this process.
    pub others: Option<Vec<u32>>,
    /// The job runs in a process of its own.
    pub forked: bool,
}

/// Returns the place of the job `td`, which runs on this thread.
pub fn place(td: usize) -> JobPlace {
    with(|s| {
        let mut jobs: Vec<usize> = Vec::new();
        for (td, _) in &s.shown {
            if !jobs.contains(td) {
                jobs.push(*td);
            }
        }
        let forked = s.pid != s.parent;
        let number = jobs.iter().position(|t| *t == td).map(|n| n as u32);
        let others = match number {
            _ if forked => Some(Vec::new()),
            Some(mine) => Some((0..jobs.len() as u32).filter(|n| *n != mine).collect()),
            None => None,
        };
        JobPlace { number: number.unwrap_or(0), others, forked }
    })
}

/// Locks the images of a target that a job writes, before fio forks. Not locked are files that fio creates later, and those that only forked
/// jobs set up (create_serialize=0).
///
/// # Errors
/// Another program has an image.
pub fn lock_images(named: &Named) -> Result<()> {
    with(|s| if s.pid == s.parent { s.locks.add(&named.target.files()) } else { Ok(()) })
}

/// Returns how many jobs will use this file.
fn users(text: &str) -> usize {
    with(|s| s.shown.iter().filter(|(_, n)| n == text).count())
}

/// Returns the size that fio is to see for a target, without keeping the target open.
///
/// # Errors
/// The target cannot be opened.
pub fn size(named: &Named) -> Result<Size> {
    if let Some(bytes) = named.target.size_bytes() {
        return Ok(Size::Device(bytes));
    }
    if let TargetSpec::File(path) = &named.target {
        match std::fs::metadata(path) {
            Ok(m) if m.is_file() => return Ok(Size::File(m.len())),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && *named.text == *path.to_string_lossy() => {
                return Ok(Size::File(0));
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let text = format!(
                    "'{}': '{}' does not exist, and fio creates a file only if 'filename' is just its path: create it \
                     (truncate, fallocate), or give the settings in MQBLK_SET",
                    named.text,
                    path.display()
                );
                return Err(Error::new(ErrorKind::NotFound, text));
            }
            Ok(m) if m.file_type().is_block_device() => {}
            // The driver reports the error when it opens the target.
            Ok(_) | Err(_) => {}
        }
    }
    let needs = Needs { write: false, direct: false, min_bytes: 0, in_use: false, read_ahead_kb: None, aio: None };
    let open = named.target.open(&needs, Arc::new(Regions::new()))?;
    Ok(Size::Device(open.driver.capacity().0 << 9))
}

/// Returns the disk of this name. Opens it unless it is open.
///
/// # Errors
/// The disk cannot be opened, or not with these settings.
pub fn open(text: &str, writes: bool, direct: bool, depth: u32) -> Result<Arc<OpenDisk>> {
    let named = read_name(text)?;
    let direct = named.direct.unwrap_or(direct);
    let private = !named.is_shared();
    let is_it = |d: &OpenDisk| d.named.text == text && (private || d.direct == direct);
    let enough = |d: &OpenDisk| d.writes || !writes || private;
    if let Some(found) = with(|s| s.disks.iter().find(|d| is_it(d) && enough(d)).cloned()) {
        return Ok(found);
    }
    let opened = Arc::new(open_new(named, writes, direct, depth)?);
    if opened.named.is_memory() && with(|s| s.pid != s.parent) && users(text) > 1 {
        say(&format!(
            "'{text}' is process memory, and fio has forked: each job has its own disk (thread=1 makes them share it)"
        ));
    }
    // If another thread has opened the disk meanwhile, that one is used.
    Ok(with(|s| match s.disks.iter().find(|d| is_it(d) && enough(d)) {
        Some(first) => Arc::clone(first),
        None => {
            s.disks.push(Arc::clone(&opened));
            opened
        }
    }))
}

fn open_new(named: Named, writes: bool, direct: bool, depth: u32) -> Result<OpenDisk> {
    let mut config = named.config.clone();
    let writes = writes || !named.is_shared();
    let read_ahead_kb = config.read_ahead_kb;
    let mut needs = Needs { write: writes, direct, min_bytes: 0, in_use: false, read_ahead_kb, aio: None };
    let mut read_only = None;
    let target = match named.target.open(&needs, regions()) {
        Err(e) if writes && e.kind() == ErrorKind::Denied => {
            read_only = Some(e.to_string());
            needs.write = false;
            named.target.open(&needs, regions()).map_err(|_| e)?
        }
        target => target?,
    };
    for warning in &target.warnings {
        say(&warning.to_string());
    }
    // Enough bios for a job's depth and for the parts into which large I/Os are split.
    config.bios_per_submitter = config.bios_per_submitter.max(depth.saturating_mul(2).min(1 << 20));
    let disk = Arc::new(Disk::new(target.driver, config, None).map_err(|e| e.within(&named.text))?);
    Ok(OpenDisk { disk, named, direct, read_only, writes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_name_the_same_target_share_its_disk() {
        let open = |text: &str, direct| open(text, true, direct, 1).unwrap();
        let (a, b) = (open("ram:size=1m", false), open("ram:size=1m", true));
        assert!(Arc::ptr_eq(&a, &b), "memory knows no direct");
        assert!(!Arc::ptr_eq(&a, &open("ram:size=2m", false)));
    }

    #[test]
    fn a_job_knows_which_jobs_share_its_disks() {
        show(0x1000, "null:size=1g?nr_requests=64");
        show(0x2000, "null:size=1g?nr_requests=64");
        show(0x1000, "null:size=1g?nr_requests=65");
        let (first, second) = (place(0x1000), place(0x2000));
        assert!(!first.forked && first.number != second.number);
        assert!(first.others.unwrap().contains(&second.number));
        assert_eq!(place(0x3000).others, None, "nothing is known of what was not shown");
    }

    #[test]
    fn fio_makes_files_and_nothing_else() {
        let size = |text: &str| size(&read_name(text).unwrap());
        assert_eq!(size("null:size=1m").unwrap(), Size::Device(1 << 20));
        assert_eq!(size("/nonexistent/a").unwrap(), Size::File(0));
        let e = size("/nonexistent/a?queue_depth=8").unwrap_err().to_string();
        assert!(e.contains("create it (truncate, fallocate), or give the settings in MQBLK_SET"), "{e}");
        assert!(size("/dev/null").is_err());
    }
}
