// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shared code of all exports' listeners: Unix sockets that replace stale ones, and waiting that can be interrupted.
//!
//! Guarantees: a socket that a program has open, even one that does not listen yet, is not replaced. Only a socket that was made here is
//! removed at the end. The process's umask does not change. Needs /proc to make a socket with permissions other than those of the umask.
//!
//! Source: unix(7), "Pathname socket ownership and permissions"; umask(2); Linux, net/unix/af_unix.c.

use crate::error::{Error, ErrorKind, Result};
use crate::event;
use crate::handed;
use crate::net::owner::Owner;
use crate::served_path::{Found, ServedPath};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use rustix::time::Timespec;
use std::fs::{self, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pause after an accept that failed: for lack of descriptors, most likely.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of clients that wait to be accepted; the system may limit them further.
const BACKLOG: i32 = 4096;

/// Returns a listening socket at `path`: the socket that this process was handed, or a new one, which replaces a stale one. If two
/// programs replace the same stale socket at the same moment, one may remove the other's new socket. A process that `mode` (or without
/// `mode` the umask) excludes can never connect to a new socket.
///
/// `bind` applies the umask: the socket file first has the permissions that both `mode` and the umask allow, and then gets the rest of
/// `mode`. It listens only after that. Until then a client is refused, as at a stale socket.
///
/// # Errors
/// `AddrInUse`: another process has the socket open, or the path is not a socket. Others: system errors.
pub fn listen(path: &Path, mode: Option<u32>) -> io::Result<(UnixListener, SocketFile)> {
    if let Some(handed) = handed::unix(path) {
        // If its file cannot be opened, the socket works, but a problem of its path is not noticed.
        return Ok((handed?, SocketFile { path: path.to_owned(), served: open_file(path, true).ok() }));
    }
    match bind_new(path, mode) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse && is_left_behind(path) => {}
        other => return other,
    }
    fs::remove_file(path)?;
    bind_new(path, mode)
}

/// Checks that a listening socket can be made at `path`; the error says what is in the way. A stale socket of a daemon that was killed is
/// not in the way.
pub(crate) fn check_listen(path: &Path) -> std::result::Result<(), String> {
    if handed::has_unix(path) {
        return Ok(());
    }
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    match fs::metadata(directory) {
        Ok(meta) if meta.is_dir() => {}
        Ok(_) => return Err(format!("'{}' is no directory", directory.display())),
        Err(e) => return Err(format!("directory '{}': {e}; create it first", directory.display())),
    }
    let kind = match fs::symlink_metadata(path) {
        Ok(meta) => meta.file_type(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e.to_string()),
    };
    if !kind.is_socket() {
        return Err("a file of that name exists that is not a socket; remove it or choose another path".to_owned());
    }
    match is_bound(path) {
        Ok(false) => Ok(()),
        Ok(true) => Err("another program listens there already; end that program or choose another path".to_owned()),
        Err(e) => Err(e.to_string()),
    }
}

fn bind_new(path: &Path, mode: Option<u32>) -> io::Result<(UnixListener, SocketFile)> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    if let Some(mode) = mode {
        // The file at the path gets the permissions of the socket, minus those that the umask removes.
        rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode))?;
    }
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    let file = SocketFile::at(path).inspect_err(|_| drop(fs::remove_file(path)))?;
    if let Some(mode) = mode {
        file.allow(mode)?;
    }
    rustix::net::listen(&socket, BACKLOG)?;
    Ok((socket.into(), file))
}

/// The file of a listening socket. It is removed on drop, unless the socket was handed to this process or another file has its name by
/// then.
pub struct SocketFile {
    path: PathBuf,
    /// The file that was made or handed over. `None`: the path did not name the socket that was handed over.
    served: Option<Arc<ServedPath>>,
}

/// Opens the file of a socket.
fn open_file(path: &Path, handed: bool) -> io::Result<Arc<ServedPath>> {
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    Ok(Arc::new(ServedPath::socket(path, file, handed)))
}

impl SocketFile {
    /// Opens the file that was just made at `path`.
    fn at(path: &Path) -> io::Result<SocketFile> {
        Ok(SocketFile { path: path.to_owned(), served: Some(open_file(path, false)?) })
    }

    /// Returns the check of whether the path still names the socket.
    pub fn served(&self) -> Option<&Arc<ServedPath>> {
        self.served.as_ref()
    }

    /// Returns the file that was made here.
    fn own(&self) -> Option<&ServedPath> {
        self.served.as_deref().filter(|served| served.can_listen_again())
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets the permissions of the file that was made, not of a file that has replaced it.
    fn allow(&self, mode: u32) -> io::Result<()> {
        let Some(own) = self.own().and_then(ServedPath::socket_file) else { return Ok(()) };
        let is = rustix::fs::fstat(own)?;
        let made_here = is.st_nlink == 1 && is.st_uid == rustix::process::geteuid().as_raw();
        if !made_here || FileType::from_raw_mode(is.st_mode) != FileType::Socket {
            return Err(io::Error::other(
                "the file is not the socket that was created there, or its owner differs; use a local directory that \
                 others cannot write to",
            ));
        }
        // No other way changes the file without its name.
        fs::set_permissions(format!("/proc/self/fd/{}", own.as_raw_fd()), Permissions::from_mode(mode))
    }

    fn is_there(&self) -> io::Result<bool> {
        self.own().map_or(Ok(false), |own| Ok(own.find()? == Found::Same))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let removed = self.is_there().and_then(|there| if there { fs::remove_file(&self.path) } else { Ok(()) });
        if let Err(e) = removed {
            log::warn!(socket = self.path.display().to_string(); "cannot remove the socket: {e}");
        }
    }
}

/// Makes a listening socket refuse clients, and wakes a thread that waits for them: it gets an error from its next accept.
pub(crate) fn refuse_clients(listener: impl AsFd) {
    let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
}

/// As [`listen`], with errors of an export.
pub(crate) fn bind(path: &Path, mode: Option<u32>) -> Result<(UnixListener, SocketFile)> {
    listen(path, mode).map_err(|e| match e.kind() {
        io::ErrorKind::AddrInUse => {
            let text = format!("socket '{}' is in use: stop its server, or choose another path", path.display());
            Error::new(ErrorKind::Usage, text)
        }
        _ => Error::os(e, format!("cannot listen at '{}'", path.display())),
    })
}

/// Whether there is a stale socket at `path`. Nothing else may be removed to make room.
fn is_left_behind(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    is_socket && is_bound(path).is_ok_and(|bound| !bound)
}

/// Whether a program has a socket bound at `path`, even if it does not listen yet. The program does not notice: a datagram socket cannot
/// connect to a stream socket, and the kernel looks for the bound socket before it reports that.
fn is_bound(path: &Path) -> io::Result<bool> {
    let Err(e) = UnixDatagram::unbound()?.connect(path) else { return Ok(true) };
    match e.raw_os_error() {
        Some(libc::ECONNREFUSED) => Ok(false),
        Some(libc::EPROTOTYPE) => Ok(true),
        _ => Err(e),
    }
}

/// Waits until `fd` is ready for `what`. Returns false when `stop` is readable, at the time `until`, or when waiting is impossible.
pub(crate) fn wait(fd: impl AsFd, what: PollFlags, stop: &OwnedFd, until: Option<Instant>) -> bool {
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let limit = left.map(|d| Timespec { tv_sec: d.as_secs() as i64, tv_nsec: i64::from(d.subsec_nanos()) });
        let mut fds = [PollFd::new(&fd, what), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) if !fds[1].revents().is_empty() => return false,
            // Checked first, because a peer that always sends would otherwise never time out.
            Ok(_) if until.is_some_and(|until| Instant::now() >= until) => return false,
            Ok(_) if !fds[0].revents().is_empty() => return true,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// Returns the client that an accept for `server` has returned, if there is one. After an error the call waits for 100 ms or `stop`,
/// because the next accept would fail at once. A lack of descriptors or memory is logged: clients wait as long as it lasts.
pub(crate) fn accepted<C>(client: io::Result<C>, server: &str, stop: &OwnedFd) -> Option<C> {
    let e = match client {
        Ok(client) => return Some(client),
        // The client left before it was accepted.
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return None,
        Err(e) => e,
    };
    if let Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) = e.raw_os_error() {
        let remedy = if e.raw_os_error() == Some(libc::EMFILE) {
            "; raise the limit of open files (LimitNOFILE=, ulimit -n)"
        } else {
            ""
        };
        log::error!("new clients of {server} wait, because it cannot accept them: {e}{remedy}");
    }
    wait(stop, PollFlags::IN, stop, Some(Instant::now() + ACCEPT_PAUSE));
    None
}

/// Starts a thread that serves a client of `server`. If no thread can start, `serve` is dropped, and the log says so.
pub fn spawn_for_client(name: &str, server: &str, serve: impl FnOnce() + Send + 'static) {
    if let Err(e) = std::thread::Builder::new().name(name.into()).spawn(serve) {
        log::error!("a client of {server} is dropped: cannot start its thread: {e}");
    }
}

/// Stops a thread that waits for a descriptor.
pub struct Stop(OwnedFd);

impl Stop {
    /// Makes one that is not set.
    ///
    /// # Errors
    /// Os: there is no free descriptor.
    pub fn new() -> Result<Stop> {
        event::new().map(Stop)
    }

    /// Makes all waits return, now and from now on.
    pub fn set(&self) {
        event::signal(&self.0);
    }

    /// Waits until `fd` is readable. Returns false when stopped, or when waiting is impossible.
    pub fn wait(&self, fd: impl AsFd) -> bool {
        wait(fd, PollFlags::IN, &self.0, None)
    }

    /// Returns the client that an accept for `server` has returned, if there is one. After an error the call waits for 100 ms or until
    /// this is set. A lack of descriptors or memory is logged.
    pub fn accepted<C>(&self, client: io::Result<C>, server: &str) -> Option<C> {
        accepted(client, server, &self.0)
    }
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// An address.
    Address(SocketAddr),
    /// A process of this machine, and its user. The process is 0 if it is in another PID namespace.
    Process(i32, u32),
    /// The system does not tell, as for a TCP client that has reset its connection.
    Unknown,
}

impl Peer {
    pub(crate) fn of(socket: impl AsFd) -> Peer {
        if let Ok(address) = rustix::net::getpeername(&socket)
            && let Some(Ok(address)) = address.map(SocketAddr::try_from)
        {
            return Peer::Address(address);
        }
        credentials(socket).map_or(Peer::Unknown, |process| Peer::Process(process.pid, process.uid))
    }

    /// Returns the owner of the client.
    pub(crate) fn owner(self) -> Owner {
        match self {
            Peer::Address(address) => Owner::of_address(address.ip()),
            Peer::Process(_, uid) => Owner::User(uid),
            Peer::Unknown => Owner::Unknown,
        }
    }
}

/// Returns the credentials of the process at the other end of a Unix socket. Other sockets also have some, which mean nothing.
///
/// Source: unix(7), `SO_PEERCRED`.
#[allow(unsafe_code, reason = "getsockopt: the process may be 0, which the type of rustix excludes")]
fn credentials(socket: impl AsFd) -> Option<libc::ucred> {
    if sockopt::socket_domain(&socket) != Ok(AddressFamily::UNIX) {
        return None;
    }
    let mut process = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (fd, to) = (socket.as_fd().as_raw_fd(), (&raw mut process).cast());
    // SAFETY: `to` is valid for `len` bytes, and any bytes are a valid value.
    let ret = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, to, &raw mut len) };
    (ret == 0).then_some(process)
}

/// Returns the peer's name for messages: a process of this machine, or an address.
pub(crate) fn peer(socket: impl AsFd) -> String {
    match Peer::of(socket) {
        Peer::Address(address) => address.to_string(),
        Peer::Process(0, uid) => format!("uid {uid}"),
        Peer::Process(pid, uid) => format!("pid {pid} uid {uid}"),
        Peer::Unknown => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Stops a thread that polls this flag, also when a test fails.
    struct StopOnDrop<'a>(&'a AtomicBool);

    impl Drop for StopOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn time_is_over_though_there_is_more_to_read() {
        let ((mut far, near), (_signal, stop)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        io::Write::write_all(&mut far, &[0]).unwrap();
        let (now, stop) = (Instant::now(), OwnedFd::from(stop));
        assert!(wait(&near, PollFlags::IN, &stop, Some(now + std::time::Duration::from_secs(3600))));
        assert!(!wait(&near, PollFlags::IN, &stop, Some(now)));
    }

    /// Once, a TCP socket whose client has reset the connection was asked for the credentials of a process. The answer was not a valid
    /// value of the type that it was read as.
    #[test]
    fn a_client_that_resets_its_connection_is_unknown() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut socket, from) = listener.accept().unwrap();
        assert_eq!(Peer::of(&socket), Peer::Address(from));
        sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        drop(client);
        let reset = io::Read::read(&mut socket, &mut [0]).unwrap_err();
        assert_eq!(reset.kind(), io::ErrorKind::ConnectionReset);
        assert_eq!((Peer::of(&socket), Peer::of(&socket).owner()), (Peer::Unknown, Owner::Unknown));
        assert_eq!(peer(&socket), "unknown");
    }

    #[test]
    fn the_peer_of_a_unix_socket_is_a_process() {
        let (socket, _other) = UnixStream::pair().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        assert_eq!(Peer::of(&socket), Peer::Process(std::process::id() as i32, uid));
        assert_eq!(peer(&socket), format!("pid {} uid {uid}", std::process::id()));
    }

    /// Permissions used to be set by path after the socket listened. For a moment any user could connect, and a user with write access to
    /// the directory could redirect the change to another file.
    #[test]
    fn a_socket_never_has_more_than_its_permissions() {
        let directory = std::env::temp_dir().join(format!("mqblk-modes-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory).unwrap();
        for mode in [0o600, 0o660, 0o666, 0o777, 0o000] {
            let (path, over) = (directory.join(format!("{mode:o}")), AtomicBool::new(false));
            std::thread::scope(|scope| {
                let watch = scope.spawn(|| {
                    let mut seen = BTreeSet::new();
                    while !over.load(Ordering::Relaxed) {
                        seen.extend(fs::metadata(&path).ok().map(|m| m.permissions().mode() & 0o7777));
                    }
                    seen
                });
                let end = StopOnDrop(&over);
                for _ in 0..100 {
                    let _listener = listen(&path, Some(mode)).unwrap();
                    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, mode, "{mode:o}");
                    if mode & 0o200 != 0 {
                        UnixStream::connect(&path).unwrap();
                    }
                }
                drop(end);
                assert!(watch.join().unwrap().iter().all(|seen| seen & !mode == 0), "{mode:o}");
            });
        }
        // The umask of this process is as before.
        let plain = directory.join("plain");
        fs::write(&plain, "").unwrap();
        let umask = rustix::process::umask(Mode::from_raw_mode(0o022));
        rustix::process::umask(umask);
        assert_eq!(fs::metadata(&plain).unwrap().permissions().mode() & 0o777, 0o666 & !umask.as_raw_mode());
        fs::remove_dir_all(&directory).unwrap();
    }

    /// A process that started between bind and listen used to replace the socket of another process.
    #[test]
    fn a_socket_that_does_not_listen_yet_is_not_left_behind() {
        let path = std::env::temp_dir().join(format!("mqblk-bound-{}", std::process::id()));
        let cloexec = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, cloexec, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        assert_eq!(UnixStream::connect(&path).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(listen(&path, None).err().unwrap().kind(), io::ErrorKind::AddrInUse);
        drop(socket);
        let (listener, file) = listen(&path, None).unwrap();
        assert!(listener.local_addr().unwrap().as_pathname() == Some(path.as_path()) && file.path() == path);
        drop((listener, file));
        assert!(!path.exists());
    }

    /// The file used to be removed by its name alone.
    #[test]
    fn what_another_has_put_in_the_place_of_a_socket_stays() {
        let path = std::env::temp_dir().join(format!("mqblk-other-{}", std::process::id()));
        // More than once, because a free inode number may be reused.
        for _ in 0..20 {
            let (listener, file) = listen(&path, Some(0o600)).unwrap();
            fs::remove_file(&path).unwrap();
            drop(listener);
            let other = UnixListener::bind(&path).unwrap();
            drop(file);
            assert!(path.exists());
            drop(other);
            fs::remove_file(&path).unwrap();
        }
        // A missing file is no error either.
        let (_listener, file) = listen(&path, None).unwrap();
        fs::remove_file(&path).unwrap();
        drop(file);
    }

    /// A symbolic link is not followed, and its target does not change.
    #[test]
    fn a_link_in_the_place_of_a_socket_is_left_alone() {
        let directory = std::env::temp_dir().join(format!("mqblk-links-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let (file, link) = (directory.join("file"), directory.join("link"));
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(listen(&link, Some(0o666)).err().unwrap().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o640);
        fs::remove_dir_all(&directory).unwrap();
    }
}
