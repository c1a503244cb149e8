// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The way in for clients of this program itself: a run's socket, the control socket, the page of metrics.
//!
//! Guarantees: each client has a thread of its own, no more at once than there are places; who finds none, or no thread, is
//! turned away and the others go on; when the door is dropped it lets nobody in any more, its thread has ended and its socket is gone from
//! the file system, unless it was handed over; what another has put in its place stays. Does not do: wait for those who are in.

use crate::room::Room;
use host::net::socket::{SocketFile, Stop};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// After a client that could not be let in: out of descriptors, most likely.
const PAUSE: Duration = Duration::from_millis(100);

/// Where clients come from.
pub trait Listener: AsFd + Send + 'static {
    /// A client.
    type Client: Send + 'static;

    /// From now on nobody waits for a client who leaves before it is let in.
    ///
    /// # Errors
    /// As of the system.
    fn do_not_block(&self) -> io::Result<()>;

    /// The next one.
    ///
    /// # Errors
    /// `WouldBlock`: it has left. Others as of the system; the next one may do better.
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

/// As of [`host::net::socket::listen`].
pub fn bind(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    host::net::socket::listen(path, None).map_err(|e| match e.kind() {
        io::ErrorKind::AddrInUse => {
            io::Error::new(e.kind(), "somebody listens there, or it is no socket; end it, or choose another path")
        }
        _ => e,
    })
}

/// Lets clients in until it is dropped.
pub struct Door {
    /// The socket in the file system.
    file: Option<SocketFile>,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

impl Door {
    /// Lets clients of `listener`, which has `file` if it is in the file system, in: `serve` has a thread, called `name`, for each, of which there
    /// are at most `places` at a time; `turn_away` is for those who find no place, and must not wait.
    ///
    /// # Errors
    /// There is no thread, or no descriptor, for it.
    pub fn open<L: Listener>(
        name: &'static str,
        (listener, file): (L, Option<SocketFile>),
        places: usize,
        serve: impl Fn(L::Client) + Send + Sync + 'static,
        turn_away: impl Fn(L::Client) + Send + 'static,
    ) -> io::Result<Door> {
        listener.do_not_block()?;
        let stop = Arc::new(Stop::new().map_err(io::Error::other)?);
        let (over, room, serve) = (Arc::clone(&stop), Room::new(places), Arc::new(serve));
        let attend = move || {
            while over.wait(&listener) {
                let client = match listener.next() {
                    Ok(client) => client,
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
                    Err(_) => {
                        thread::sleep(PAUSE);
                        continue;
                    }
                };
                let Some(guest) = room.enter() else {
                    turn_away(client);
                    continue;
                };
                let serve = Arc::clone(&serve);
                let stay = move || {
                    serve(client);
                    drop(guest);
                };
                // Without a thread for it the client is dropped.
                let _ = thread::Builder::new().name(name.into()).spawn(stay);
            }
        };
        let thread = thread::Builder::new().name(format!("{name}-door")).spawn(attend)?;
        Ok(Door { file, stop, thread: Some(thread) })
    }

    /// The socket in the file system, if there is one.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(SocketFile::path)
    }
}

impl Drop for Door {
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
    fn clients_have_places_and_the_door_closes() {
        let path = std::env::temp_dir().join(format!("mqblk-door-{}", std::process::id()));
        let (listener, file) = listen(&path, None).unwrap();
        let (left, leaves) = mpsc::channel();
        let serve = move |mut client: UnixStream| {
            client.write_all(b"in").unwrap();
            // Until it leaves.
            let _ = client.read(&mut [0]);
            left.send(()).unwrap();
        };
        let away = |mut client: UnixStream| client.write_all(b"no").unwrap();
        let door = Door::open("door", (listener, Some(file)), 2, serve, away).unwrap();
        assert_eq!(door.path(), Some(path.as_path()));
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
        // Its place is free a moment after it has left.
        while come().1 != *b"in" {}
        drop(door);
        assert!(!path.exists());
        drop(second);
    }

    #[test]
    fn a_door_at_any_address_closes() {
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let address = listener.local_addr().unwrap();
        let touch = || TcpStream::connect(("127.0.0.1", address.port())).is_ok();
        let door = Door::open("door", (listener, None), 1, drop, drop).unwrap();
        assert!(door.path().is_none() && touch());
        drop(door);
        assert!(!touch());
    }

    /// It went to the other one to wake its own thread, and took the other one's socket away.
    #[test]
    fn what_another_has_put_in_the_place_of_its_socket_stays() {
        let path = std::env::temp_dir().join(format!("mqblk-place-{}", std::process::id()));
        let (listener, file) = listen(&path, None).unwrap();
        let door = Door::open("door", (listener, Some(file)), 1, drop, drop).unwrap();
        std::fs::remove_file(&path).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        drop(door);
        other.set_nonblocking(true).unwrap();
        assert_eq!(other.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock, "nobody came");
        std::fs::remove_file(&path).unwrap();
    }
}
