// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The directory of a user's sockets, which only that user can enter.

use host::privileges::Account;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Returns the directory of sockets: `$XDG_RUNTIME_DIR/mqblk`, or `mqblk-UID` in the directory for temporary files.
/// Makes it if needed. `None` if it cannot be made, or if other users could enter it.
pub fn directory() -> Option<PathBuf> {
    let uid = fs::metadata("/proc/self").ok()?.uid();
    let dir = match std::env::var_os("XDG_RUNTIME_DIR").filter(|d| Path::new(d).is_absolute()) {
        Some(run) => Path::new(&run).join("mqblk"),
        None => std::env::temp_dir().join(format!("mqblk-{uid}")),
    };
    // The directory may already exist; its owner and mode are checked below.
    let _ = DirBuilder::new().mode(0o700).create(&dir);
    let meta = fs::symlink_metadata(&dir).ok()?;
    (meta.is_dir() && meta.uid() == uid && meta.mode() & 0o077 == 0).then_some(dir)
}

/// Returns the default directory of another user; only root can make it.
pub fn directory_of(account: &Account) -> Option<PathBuf> {
    let dir = std::env::temp_dir().join(format!("mqblk-{}", account.uid));
    if DirBuilder::new().mode(0o700).create(&dir).is_ok() {
        account.give(&dir).ok()?;
    }
    let meta = fs::symlink_metadata(&dir).ok()?;
    (meta.is_dir() && meta.uid() == account.uid && meta.mode() & 0o077 == 0).then_some(dir)
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
