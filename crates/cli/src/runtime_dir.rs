// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The directory of a user's sockets, which only that user can enter.
//!
//! Guarantees: other users can neither make the directory first nor replace it, because only its user and root can write to the directory
//! above: /run for root, `$XDG_RUNTIME_DIR` for others, or `$MQBLK_RUNTIME_DIR`. There is no fallback to a directory for temporary files:
//! any user could make the name there. Root does not use `$XDG_RUNTIME_DIR`, because it ends with the session, and daemons do not.

use crate::status::Failure;
use host::privileges::{Account, uid};
use std::fmt::Display;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Names the directory above, for every user.
const RUNTIME_DIR: &str = "MQBLK_RUNTIME_DIR";
/// That of a user's session.
const SESSION_DIR: &str = "XDG_RUNTIME_DIR";

/// Returns the directory of this user's sockets, and makes it if needed.
///
/// # Errors
/// There is no directory above, or other users could replace the directory.
pub fn directory() -> Result<PathBuf, Failure> {
    let uid = uid();
    private(above(uid)?.join("mqblk"), uid, |_| Ok(()))
}

/// Returns the directory of the sockets of daemons that root starts for another user (`--user`). Only root can make it.
///
/// # Errors
/// As [`directory`].
pub fn directory_of(account: &Account) -> Result<PathBuf, Failure> {
    let dir = above(uid())?.join(format!("mqblk-uid-{}", account.uid));
    private(dir, account.uid, |dir| Ok(account.give(dir)?))
}

/// Returns the directories in which daemons of this user have sockets.
///
/// # Errors
/// As [`directory`].
pub fn directories() -> Result<Vec<PathBuf>, Failure> {
    let uid = uid();
    let of_root = set(RUNTIME_DIR).unwrap_or_else(|| PathBuf::from("/run"));
    let of_root = checked(of_root.join(format!("mqblk-uid-{uid}")), uid).ok();
    match (directory(), of_root) {
        (Err(e), None) => Err(e),
        (own, of_root) => Ok(own.ok().into_iter().chain(of_root).collect()),
    }
}

/// Returns the directory that a variable names. A relative one counts as none.
fn set(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).filter(|dir| dir.is_absolute())
}

/// Returns the directory above that of the sockets.
fn above(uid: u32) -> Result<PathBuf, Failure> {
    let dir = match set(RUNTIME_DIR) {
        Some(dir) => dir,
        None if uid == 0 => PathBuf::from("/run"),
        None => set(SESSION_DIR).ok_or_else(|| {
            Failure::new(format!(
                "no directory for the control socket: set ${SESSION_DIR}, or name a socket by --control"
            ))
        })?,
    };
    let meta = fs::metadata(&dir).map_err(|e| failed(&dir, &e))?;
    if !meta.is_dir() || ![0, uid].contains(&meta.uid()) || meta.mode() & 0o022 != 0 {
        let rule = "must belong to this user or root, and others must not be able to write to it";
        return Err(failed(&dir, &format!("{rule}; name a socket by --control")));
    }
    Ok(dir)
}

/// Makes a directory for one user, unless it exists. `made` changes a new one. Then checks it.
fn private(dir: PathBuf, uid: u32, made: impl FnOnce(&Path) -> Result<(), Failure>) -> Result<PathBuf, Failure> {
    match DirBuilder::new().mode(0o700).create(&dir) {
        Ok(()) => made(&dir)?,
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(failed(&dir, &e)),
    }
    checked(dir, uid)
}

/// Checks that only one user can enter a directory.
fn checked(dir: PathBuf, uid: u32) -> Result<PathBuf, Failure> {
    let meta = fs::symlink_metadata(&dir).map_err(|e| failed(&dir, &e))?;
    if meta.is_dir() && meta.uid() == uid && meta.mode() & 0o077 == 0 {
        return Ok(dir);
    }
    let rule = format!("must belong to user {uid}, and no other user may enter it (mode 0700)");
    Err(failed(&dir, &format!("{rule}; change that, or name a socket by --control")))
}

fn failed(dir: &Path, why: &dyn Display) -> Failure {
    Failure::new(format!("directory '{}' for the control socket: {why}", dir.display()))
}

/// Returns the control sockets of running daemons, sorted. Removes those of killed daemons from the directory.
pub fn sweep(dir: &Path) -> Vec<PathBuf> {
    let mut alive = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let middle = name.to_str().and_then(|n| n.strip_prefix("serve-")?.strip_suffix(".sock"));
        let Some(pid) = middle.and_then(|pid| pid.parse::<u32>().ok()) else { continue };
        if connect(&entry.path(), pid).is_ok() {
            alive.push(entry.path());
        }
    }
    alive.sort();
    alive
}

/// Connects to a socket of the process `pid`. A socket that a killed process left behind is removed.
pub fn connect(path: &Path, pid: u32) -> io::Result<UnixStream> {
    UnixStream::connect(path).inspect_err(|e| {
        // Keep the socket while the process exists: a starting process binds its socket before it listens.
        if e.kind() == io::ErrorKind::ConnectionRefused && !Path::new(&format!("/proc/{pid}")).exists() {
            let _ = fs::remove_file(path);
        }
    })
}
