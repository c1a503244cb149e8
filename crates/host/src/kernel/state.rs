// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The settings that a disk had before they were changed, in a file that outlives the program.
//!
//! Guarantees: [`StateFile::save`] returns when the state is on disk, whole or not at all. [`StateFile::load`] never returns the state of
//! another boot or another disk. While a [`StateFile`] lives, no other process has one of the same disk. Only its user can access the
//! directory: /run/mqblk of root, $XDG_RUNTIME_DIR/mqblk of others. Where /run is in memory, the file does not outlive the boot, as the
//! settings do not. Elsewhere the boot's identifier is in the file.

use super::device::KernelDevice;
use super::sysfs::Values;
use crate::error::{Error, ErrorKind, Result};
use rustix::fs::{FlockOperation, flock};
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// First line of a file.
const FORMAT: &str = "mqblk kernel settings 1";
/// Maximum number of bytes that are read of one.
const MOST_BYTES: u64 = 1 << 20;

/// What is to be put back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SavedState {
    /// Process that changed it.
    pub(super) pid: u32,
    /// All settings as they were.
    pub(super) before: Values,
    /// Those that were changed, or changed with them; `None` while that is not known: all that differ.
    pub(super) changed: Option<Vec<String>>,
}

/// The state file of a disk, locked.
#[derive(Debug)]
pub(super) struct StateFile {
    path: PathBuf,
    _lock: DiskLock,
    /// Boot and disk.
    belongs: String,
}

/// The lock of a disk's state, on an open file of its own.
#[derive(Debug)]
struct DiskLock(File);

impl DiskLock {
    /// Takes the lock; `None` while another process has it.
    fn take(path: &Path) -> io::Result<Option<DiskLock>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(DiskLock(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}

impl Drop for DiskLock {
    /// Unlocks explicitly, as images are unlocked: a child that another thread has just forked keeps the open file until exec.
    fn drop(&mut self) {
        // If unlocking fails, the lock ends with the last descriptor.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Where state files are.
pub(super) fn directory() -> Result<PathBuf> {
    let base = match rustix::process::geteuid().as_raw() {
        0 => PathBuf::from("/run"),
        _ => std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).ok_or_else(|| {
            let text = "settings of a kernel device: their previous values are kept in $XDG_RUNTIME_DIR, which is not \
                        set; set it, or run as root";
            Error::usage(text)
        })?,
    };
    Ok(base.join("mqblk"))
}

/// Makes the directory, for its user alone.
fn make_directory() -> Result<PathBuf> {
    let dir = directory()?;
    let shown = dir.display();
    match DirBuilder::new().mode(0o700).create(&dir) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(Error::os(e, format!("cannot make {shown}, where the settings to put back are kept"))),
    }
    let meta = fs::symlink_metadata(&dir).map_err(|e| Error::os(e, format!("{shown}")))?;
    if !meta.is_dir() || meta.uid() != rustix::process::geteuid().as_raw() || meta.mode() & 0o022 != 0 {
        let text = format!(
            "{shown}: must be a directory that only you can write to, as the settings to put back are kept there"
        );
        return Err(Error::new(ErrorKind::Denied, text));
    }
    Ok(dir)
}

/// Names of the disks whose settings a process has changed, or left changed.
pub(super) fn disks() -> Result<Vec<String>> {
    let Ok(entries) = fs::read_dir(directory()?) else { return Ok(Vec::new()) };
    let names = entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned());
    let mut disks: Vec<String> = names.filter_map(|n| n.strip_suffix(".settings").map(str::to_owned)).collect();
    disks.sort();
    Ok(disks)
}

/// Takes away the state of a disk that is no more.
pub(super) fn forget(disk: &str) {
    if let Ok(dir) = directory() {
        // Best effort: it is of no use.
        let _ = fs::remove_file(dir.join(format!("{disk}.settings")));
    }
}

impl StateFile {
    /// The file of this disk. `Ok(Err(pid))`: another process has it.
    pub(super) fn lock(device: &KernelDevice) -> Result<std::result::Result<StateFile, Option<u32>>> {
        let dir = make_directory()?;
        let path = dir.join(format!("{}.settings", device.disk));
        let lock = dir.join(format!("{}.lock", device.disk));
        let failed = |e: io::Error| Error::os(e, format!("cannot lock {}", lock.display()));
        let Some(taken) = DiskLock::take(&lock).map_err(failed)? else {
            return Ok(Err(read(&path).ok().flatten().and_then(|text| pid_in(&text))));
        };
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let belongs = format!("boot {}\ndisk {}\n", boot.trim(), device.fingerprint());
        Ok(Ok(StateFile { path, _lock: taken, belongs }))
    }

    /// What a process that ended before it could has left to be put back; `None`: nothing. One of another boot, or of another
    /// disk, is taken away: those settings are gone.
    pub(super) fn load(&self) -> Result<Option<SavedState>> {
        let read = read(&self.path).map_err(|e| Error::os(e, format!("{}: cannot be read", self.path.display())))?;
        let Some(text) = read else { return Ok(None) };
        let Some((state, belongs)) = parse(&text) else {
            let path = self.path.display();
            let text = format!("{path} cannot be parsed; restore the disk's settings from it by hand, then remove it");
            return Err(Error::usage(text));
        };
        if belongs != self.belongs {
            self.remove()?;
            return Ok(None);
        }
        Ok(Some(state))
    }

    /// Keeps the state; it is on disk when this returns.
    pub(super) fn save(&self, state: &SavedState) -> Result<()> {
        let failed = |e: io::Error| {
            let path = self.path.display();
            Error::os(e, format!("cannot write {path}, without which no setting is changed; free space"))
        };
        let part = self.path.with_extension("part");
        let written = || -> io::Result<()> {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
            let mut file = options.open(&part)?;
            file.write_all(text_of(state, &self.belongs).as_bytes())?;
            file.sync_all()?;
            fs::rename(&part, &self.path)?;
            File::open(self.path.parent().unwrap_or(Path::new("/")))?.sync_all()
        };
        written().map_err(failed)
    }

    /// Takes the state away: everything is as it was.
    pub(super) fn remove(&self) -> Result<()> {
        match fs::remove_file(&self.path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(Error::os(e, format!("cannot remove {}", self.path.display())))
            }
            _ => Ok(()),
        }
    }

    /// Its name, for messages.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// The text of a file; `None`: there is no such file.
fn read(path: &Path) -> std::io::Result<Option<String>> {
    let file = match OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut text = String::new();
    file.take(MOST_BYTES).read_to_string(&mut text)?;
    Ok(Some(text))
}

fn text_of(state: &SavedState, belongs: &str) -> String {
    let mut text = format!("{FORMAT}\n{belongs}pid {}\n", state.pid);
    for (name, value) in &state.before {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "before {name} {value}");
    }
    match &state.changed {
        None => text.push_str("all\n"),
        Some(changed) => changed.iter().for_each(|name| {
            let _ = writeln!(text, "changed {name}");
        }),
    }
    text.push_str("end\n");
    text
}

/// The state, and the lines that say whose it is. A file without its last line is none of ours.
fn parse(text: &str) -> Option<(SavedState, String)> {
    let mut lines = text.lines();
    if lines.next()? != FORMAT || text.lines().last()? != "end" {
        return None;
    }
    let (mut state, mut belongs, mut all) = (SavedState::default(), String::new(), false);
    let mut changed = Vec::new();
    for line in lines {
        let (what, rest) = line.split_once(' ').unwrap_or((line, ""));
        match what {
            "boot" | "disk" => {
                belongs.push_str(line);
                belongs.push('\n');
            }
            "pid" => state.pid = rest.parse().ok()?,
            "before" => {
                let (name, value) = rest.split_once(' ')?;
                state.before.insert(name.to_owned(), value.to_owned());
            }
            "changed" => changed.push(rest.to_owned()),
            "all" => all = true,
            "end" => {}
            _ => return None,
        }
    }
    state.changed = (!all).then_some(changed);
    Some((state, belongs))
}

fn pid_in(text: &str) -> Option<u32> {
    text.lines().find_map(|l| l.strip_prefix("pid ")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let before: Values =
            [("scheduler", "none"), ("write_cache", "write back")].map(|(k, v)| (k.into(), v.into())).into();
        for changed in [None, Some(vec![]), Some(vec!["scheduler".to_owned()])] {
            let state = SavedState { pid: 77, before: before.clone(), changed };
            let text = text_of(&state, "boot x\ndisk /sys/y\n");
            assert_eq!(parse(&text), Some((state, "boot x\ndisk /sys/y\n".to_owned())));
            assert_eq!(pid_in(&text), Some(77));
        }
    }

    /// A child that another thread forks has a duplicate of the open file until its `exec`.
    #[test]
    fn the_lock_ends_though_a_child_has_its_file() {
        let path = std::env::temp_dir().join(format!("mqblk-state-{}.lock", std::process::id()));
        let lock = DiskLock::take(&path).unwrap().unwrap();
        let _of_the_child = lock.0.try_clone().unwrap();
        assert!(DiskLock::take(&path).unwrap().is_none());
        drop(lock);
        assert!(DiskLock::take(&path).unwrap().is_some());
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_is_cut_off_or_foreign_is_not_taken() {
        let text = text_of(&SavedState::default(), "boot x\ndisk y\n");
        for end in 0..text.len() - 1 {
            assert_eq!(parse(&text[..end]), None, "{end} bytes");
        }
        assert_eq!(parse("something else\nend\n"), None);
    }
}
