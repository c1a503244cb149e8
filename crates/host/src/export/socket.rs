// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the listeners of all exports share: Unix sockets in place of stale ones, and waiting that can be broken off.

use crate::error::{Error, ErrorKind, Result};
use crate::handed;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Instant;

/// A listening socket at `path`: the one that this process was handed, or a new one, in place of one that nobody listens at any more.
///
/// # Errors
/// `AddrInUse`: somebody listens there, or it is no socket. Others: as of the system.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    if let Some(handed) = handed::unix(path) {
        return handed;
    }
    match UnixListener::bind(path) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse && is_left_behind(path) => {}
        other => return other,
    }
    fs::remove_file(path)?;
    UnixListener::bind(path)
}

/// The same for an export.
pub(super) fn bind(path: &Path) -> Result<UnixListener> {
    listen(path).map_err(|e| match e.kind() {
        io::ErrorKind::AddrInUse => {
            let text = format!("socket '{}' is in use: stop its server, or choose another path", path.display());
            Error::new(ErrorKind::Usage, text)
        }
        _ => Error::os(e, format!("cannot listen at '{}'", path.display())),
    })
}

/// Whether there is a socket that nobody listens at any more: nothing else may be removed to make room.
fn is_left_behind(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    is_socket && UnixStream::connect(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
}

/// Waits until `fd` is ready for `what`; false when `stop` is readable, `until` has come, or waiting is impossible.
pub(crate) fn wait(fd: impl AsFd, what: PollFlags, stop: &OwnedFd, until: Option<Instant>) -> bool {
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let limit = left.map(|d| Timespec { tv_sec: d.as_secs() as i64, tv_nsec: i64::from(d.subsec_nanos()) });
        let mut fds = [PollFd::new(&fd, what), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) if !fds[1].revents().is_empty() => return false,
            Ok(_) if !fds[0].revents().is_empty() => return true,
            Ok(0) if until.is_some_and(|until| Instant::now() >= until) => return false,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// Who is at the other end, for people: a process of this machine, or an address.
pub(super) fn peer(socket: impl AsFd) -> String {
    if let Ok(address) = rustix::net::getpeername(&socket)
        && let Some(Ok(address)) = address.map(SocketAddr::try_from)
    {
        return address.to_string();
    }
    match rustix::net::sockopt::socket_peercred(&socket) {
        Ok(process) => format!("pid {} uid {}", process.pid.as_raw_nonzero(), process.uid.as_raw()),
        Err(_) => "unknown".to_owned(),
    }
}

/// Sets the permissions of a socket of this process.
pub(super) fn set_mode(path: &Path, mode: u32) -> Result<()> {
    if handed::has_unix(path) {
        return Ok(());
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(|e| Error::os(e, format!("cannot set the permissions of '{}'", path.display())))
}
