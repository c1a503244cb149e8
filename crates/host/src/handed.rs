// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Listening sockets made by another process and passed to this one: socket activation.
//!
//! Guarantees: descriptors are taken once, and only those that are meant for this process, are open and listen. A caller that asks for a
//! socket at an address gets a copy, so an export may end and begin again at the same socket. None of the sockets is ever removed from
//! the file system. Needs from callers: [`take`] is called before this process opens anything that could get one of these descriptor
//! numbers. Does not do: ask systemd for anything.
//!
//! Source: sd_listen_fds(3): `LISTEN_PID`, `LISTEN_FDS`, `LISTEN_FDNAMES`, descriptors from 3 on.

use rustix::net::sockopt;
use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The first descriptor that is handed over.
const FIRST: RawFd = 3;
/// More are not checked.
const MOST: RawFd = 4096;

/// Where a socket listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// A path, as its maker gave it.
    Unix(PathBuf),
    /// An address of IP.
    Tcp(SocketAddr),
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Unix(path) => write!(f, "{}", path.display()),
            At::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// One socket.
#[derive(Debug)]
pub struct Socket {
    /// From `LISTEN_FDNAMES` (`FileDescriptorName=` of the unit); empty if there is none.
    pub name: String,
    /// Where it listens.
    pub at: At,
    fd: OwnedFd,
}

static SOCKETS: OnceLock<Vec<Socket>> = OnceLock::new();

/// Takes over what is meant for this process; the first call counts.
///
/// # Errors
/// A descriptor that cannot be used, and why; it is left alone, and the others are not.
pub fn take() -> Vec<String> {
    let mut problems = Vec::new();
    SOCKETS.get_or_init(|| {
        let var = |name: &str| std::env::var(name).unwrap_or_default();
        if var("LISTEN_PID").parse() != Ok(std::process::id()) {
            return Vec::new();
        }
        let (text, names) = (var("LISTEN_FDS"), var("LISTEN_FDNAMES"));
        let Some(count) = text.parse::<RawFd>().ok().filter(|n| (0..=MOST).contains(n)) else {
            problems.push(format!("LISTEN_FDS={text}: must be a number in 0..={MOST}"));
            return Vec::new();
        };
        let mut names = names.split(':');
        let mut all = Vec::new();
        for number in FIRST..FIRST + count {
            let name = names.next().unwrap_or_default().to_owned();
            match adopt(number, name) {
                Ok(socket) => all.push(socket),
                Err(why) => problems.push(format!("descriptor {number} of LISTEN_FDS: {why}")),
            }
        }
        all
    });
    problems
}

fn adopt(number: RawFd, name: String) -> Result<Socket, String> {
    // SAFETY: only for this question, which a number that is not open answers with an error.
    let asked = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_getfd(asked).map_err(|_| "is not open".to_owned())?;
    // SAFETY: it is open, and the environment says that it is this process's to keep. This runs once, before anything else of
    // this process could have been given the number.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    match listens_at(&fd) {
        Ok(at) => {
            let flags = rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC);
            flags.map_err(|e| e.to_string())?;
            Ok(Socket { name, at, fd })
        }
        Err(why) => {
            // This process does not own the descriptor, so it must not close it.
            std::mem::forget(fd);
            Err(why)
        }
    }
}

fn listens_at(fd: &OwnedFd) -> Result<At, String> {
    let stream = sockopt::socket_type(fd).map_err(|_| "is not a socket".to_owned())? == rustix::net::SocketType::STREAM;
    if !stream || !sockopt::socket_acceptconn(fd).unwrap_or(false) {
        return Err("is not a listening stream socket; use ListenStream= with Accept=no".to_owned());
    }
    let address = rustix::net::getsockname(fd).map_err(|e| e.to_string())?;
    if let Ok(ip) = SocketAddr::try_from(address.clone()) {
        return Ok(At::Tcp(ip));
    }
    let unix =
        rustix::net::SocketAddrUnix::try_from(address).map_err(|_| "is neither a Unix nor an IP socket".to_owned())?;
    let path = unix.path().ok_or("has no path: abstract sockets are not served")?;
    Ok(At::Unix(std::ffi::OsStr::new(path.to_str().map_err(|e| e.to_string())?).into()))
}

/// All that were handed over.
pub fn all() -> &'static [Socket] {
    SOCKETS.get().map_or(&[], Vec::as_slice)
}

/// Whether the socket at this path was handed over: it is not this process's to make or remove.
pub fn has_unix(path: &Path) -> bool {
    find_unix(path).is_some()
}

/// The same for an address of IP.
pub fn has_tcp(at: &SocketAddr) -> bool {
    find_tcp(at).is_some()
}

/// Whether a place is this path, which may be relative.
pub fn is_at(at: &At, path: &Path) -> bool {
    matches!((at, std::path::absolute(path)), (At::Unix(at), Ok(path)) if *at == path)
}

fn find_unix(path: &Path) -> Option<&'static Socket> {
    all().iter().find(|s| is_at(&s.at, path))
}

fn find_tcp(at: &SocketAddr) -> Option<&'static Socket> {
    all().iter().find(|s| s.at == At::Tcp(*at))
}

/// The socket at this path, if it was handed over.
pub fn unix(path: &Path) -> Option<std::io::Result<UnixListener>> {
    find_unix(path).map(|s| s.fd.as_fd().try_clone_to_owned().map(UnixListener::from))
}

/// The socket at this address, if it was handed over.
pub fn tcp(at: &SocketAddr) -> Option<std::io::Result<TcpListener>> {
    find_tcp(at).map(|s| s.fd.as_fd().try_clone_to_owned().map(TcpListener::from))
}
