// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Accepts clients of mqblk's own sockets: that of a run, the control socket, the page of metrics.
//!
//! Guarantees: each client has a thread of its own, up to the connection limit. A client beyond the limit, or for which no
//! thread can start, is rejected; the others are still served. The threads that accept and serve are in the sandbox's role
//! that the socket has. Dropping the acceptor ends its thread and removes its socket file, unless the socket was handed over
//! or another process has replaced it. Does not do: wait for connected clients.

use crate::connection_limit::ConnectionLimit;
use host::net::socket::{SocketFile, Stop};
use host::sandbox::{self, Role};
use host::served_path::ServedPath;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// A socket that clients connect to.
pub trait Listener: AsFd + Send + 'static {
    /// A client.
    type Client: Send + 'static;

    /// Makes [`Listener::next`] return at once when a client has disconnected before it was accepted.
    ///
    /// # Errors
    /// The error of the system.
    fn do_not_block(&self) -> io::Result<()>;

    /// Accepts the next client.
    ///
    /// # Errors
    /// `WouldBlock`: the client has disconnected. Otherwise the error of the system; the next call may succeed.
    fn next(&self) -> io::Result<Self::Client>;
}

impl Listener for UnixListener {
    type Client = UnixStream;

    fn do_not_block(&self) -> io::Result<()> {
        self.set_nonblocking(true)
    }

    fn next(&self) -> io::Result<UnixStream> {
        self.accept().map(|(client, _)| client)
    }
}

impl Listener for TcpListener {
    type Client = TcpStream;

    fn do_not_block(&self) -> io::Result<()> {
        self.set_nonblocking(true)
    }

    fn next(&self) -> io::Result<TcpStream> {
        self.accept().map(|(client, _)| client)
    }
}

/// As [`host::net::socket::listen`].
pub fn bind(path: &Path, mode: Option<u32>) -> io::Result<(UnixListener, SocketFile)> {
    host::net::socket::listen(path, mode).map_err(|e| match e.kind() {
        io::ErrorKind::AddrInUse => io::Error::new(
            e.kind(),
            "another process listens there, or the file is not a socket; stop that process, or choose another path",
        ),
        _ => e,
    })
}

/// Accepts clients until it is dropped.
pub struct Acceptor {
    /// The socket in the file system.
    file: Option<SocketFile>,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    /// Accepts clients of `listener`, whose `file` is its path if it has one. `serve` runs in a thread called `name` for each of at
    /// most `max` clients at a time; `reject` gets the others, and must not block. Both run in `role`; `None`: they may do what the
    /// caller may.
    ///
    /// # Errors
    /// If no thread can start, or there is no file descriptor left.
    pub fn open<L: Listener>(
        name: &'static str,
        role: Option<Role>,
        (listener, file): (L, Option<SocketFile>),
        max: usize,
        serve: impl Fn(L::Client) + Send + Sync + 'static,
        reject: impl Fn(L::Client) + Send + 'static,
    ) -> io::Result<Acceptor> {
        listener.do_not_block()?;
        let stop = Arc::new(Stop::new().map_err(io::Error::other)?);
        let (stopped, limit, serve) = (Arc::clone(&stop), ConnectionLimit::new(max), Arc::new(serve));
        let accept = move || {
            // Threads that it starts for clients inherit it.
            if let Some(role) = role {
                sandbox::enter(role);
            }
            while stopped.wait(&listener) {
                let Some(client) = stopped.accepted(listener.next(), name) else { continue };
                let Some(connection) = limit.connect() else {
                    reject(client);
                    continue;
                };
                let serve = Arc::clone(&serve);
                let run = move || {
                    serve(client);
                    drop(connection);
                };
                host::net::socket::spawn_for_client(name, name, run);
            }
        };
        let thread = thread::Builder::new().name(format!("{name}-acceptor")).spawn(accept)?;
        Ok(Acceptor { file, stop, thread: Some(thread) })
    }

    /// The check of whether the socket's path still names the socket, if it has one.
    pub fn served(&self) -> Option<&Arc<ServedPath>> {
        self.file.as_ref()?.served()
    }

    /// The socket in the file system, if there is one.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(SocketFile::path)
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        drop(self.file.take());
        self.stop.set();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::net::socket::listen;
    use std::io::{Read, Write};
    use std::sync::mpsc;

    #[test]
    fn clients_over_the_limit_are_rejected() {
        let path = std::env::temp_dir().join(format!("mqblk-acceptor-{}", std::process::id()));
        let (listener, file) = listen(&path, None).unwrap();
        let (left, leaves) = mpsc::channel();
        let serve = move |mut client: UnixStream| {
            client.write_all(b"in").unwrap();
            // Until the client disconnects.
            let _ = client.read(&mut [0]);
            left.send(()).unwrap();
        };
        let away = |mut client: UnixStream| client.write_all(b"no").unwrap();
        let acceptor = Acceptor::open("acceptor", None, (listener, Some(file)), 2, serve, away).unwrap();
        assert_eq!(acceptor.path(), Some(path.as_path()));
        let come = || {
            let mut client = UnixStream::connect(&path).unwrap();
            let mut said = [0; 2];
            client.read_exact(&mut said).unwrap();
            (client, said)
        };
        let (first, second) = (come(), come());
        assert_eq!([first.1, second.1, come().1, come().1], [*b"in", *b"in", *b"no", *b"no"]);
        drop(first);
        leaves.recv().unwrap();
        // A client counts until shortly after it has disconnected.
        while come().1 != *b"in" {}
        drop(acceptor);
        assert!(!path.exists());
        drop(second);
    }

    #[test]
    fn an_acceptor_at_any_address_stops() {
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let address = listener.local_addr().unwrap();
        let touch = || TcpStream::connect(("127.0.0.1", address.port())).is_ok();
        let acceptor = Acceptor::open("acceptor", None, (listener, None), 1, drop, drop).unwrap();
        assert!(acceptor.path().is_none() && touch());
        drop(acceptor);
        assert!(!touch());
    }

    /// Regression: the acceptor connected to the other socket to wake its own thread, and removed that socket.
    #[test]
    fn a_socket_that_replaced_its_own_is_left_alone() {
        let path = std::env::temp_dir().join(format!("mqblk-place-{}", std::process::id()));
        let (listener, file) = listen(&path, None).unwrap();
        let acceptor = Acceptor::open("acceptor", None, (listener, Some(file)), 1, drop, drop).unwrap();
        std::fs::remove_file(&path).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        drop(acceptor);
        other.set_nonblocking(true).unwrap();
        assert_eq!(other.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock, "no client came");
        std::fs::remove_file(&path).unwrap();
    }
}
