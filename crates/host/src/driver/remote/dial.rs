// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sockets for handshakes: connecting, waiting and sending take bounded time, and end at a stop request.
//!
//! Guarantees: a socket does not block, and small messages are sent at once. No call takes longer than its deadline, or continues after
//! `stop` has become readable.

use crate::error::{Error, ErrorKind, Result};
use crate::net::socket::wait;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Characters of a peer's text that are shown.
const SHOWN: usize = 200;

/// A time limit that a stop request cuts short.
#[derive(Clone, Copy)]
pub(crate) struct Deadline<'a> {
    /// The original time limit, for messages.
    pub(crate) within: Duration,
    pub(crate) until: Instant,
    /// Readable: no time is left.
    pub(crate) stop: &'a OwnedFd,
}

impl<'a> Deadline<'a> {
    /// Makes a deadline that begins now.
    pub(crate) fn new(within: Duration, stop: &'a OwnedFd) -> Deadline<'a> {
        Deadline { within, until: Instant::now() + within, stop }
    }

    /// Returns a deadline with an equal share of the remaining time.
    fn share(&self, parts: usize) -> Deadline<'a> {
        let left = self.until.saturating_duration_since(Instant::now());
        Deadline::new(left / parts.max(1) as u32, self.stop)
    }

    /// Waits until the socket is ready for `what`.
    ///
    /// # Errors
    /// Io: the socket was not ready in time.
    pub(crate) fn wait(&self, socket: &OwnedFd, what: PollFlags, doing: &str) -> Result<()> {
        if wait(socket, what, self.stop, Some(self.until)) { Ok(()) } else { Err(self.passed(doing)) }
    }

    /// Checks the deadline, for loops that may never wait.
    ///
    /// # Errors
    /// Io: no time is left.
    pub(crate) fn check(&self, doing: &str) -> Result<()> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut stop = [PollFd::new(self.stop, PollFlags::IN)];
        let is_stopped = poll(&mut stop, Some(&now)).is_ok_and(|n| n > 0);
        if is_stopped || Instant::now() >= self.until { Err(self.passed(doing)) } else { Ok(()) }
    }

    /// Returns the error for a deadline that has passed.
    pub(crate) fn passed(&self, doing: &str) -> Error {
        let text = format!(
            "{doing} took longer than {:.0} s, or was interrupted; check that the server is reachable",
            self.within.as_secs_f64()
        );
        Error::new(ErrorKind::Io, text)
    }

    /// Returns a socket that is connected to this address.
    ///
    /// # Errors
    /// Os: the system's error. Io: the time limit has passed.
    fn connect_tcp(&self, address: &SocketAddr) -> Result<OwnedFd> {
        let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
        self.connect(family, |socket| {
            // A socket without these options is only slower.
            let _ = sockopt::set_tcp_nodelay(socket, true);
            let _ = sockopt::set_socket_keepalive(socket, true);
            rustix::net::connect(socket, address)
        })
    }

    /// Returns a socket that is connected to a host. Each of the host's addresses gets a share of the remaining time, so that a silent one
    /// does not block the others.
    ///
    /// # Errors
    /// Os: its name cannot be looked up. NotFound: it has no address. Otherwise the error of [`Deadline::connect_tcp`] for
    /// the last address.
    pub(crate) fn connect_host(&self, host: &str, port: u16) -> Result<OwnedFd> {
        let found = (host, port).to_socket_addrs().map_err(|e| Error::os(e, "cannot look up its name"))?;
        self.connect_to_one(&found.collect::<Vec<_>>())
    }

    fn connect_to_one(&self, addresses: &[SocketAddr]) -> Result<OwnedFd> {
        let mut last = Error::new(ErrorKind::NotFound, "its name has no address");
        for (i, address) in addresses.iter().enumerate() {
            match self.share(addresses.len() - i).connect_tcp(address) {
                Ok(socket) => return Ok(socket),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    /// Returns a socket of this family that `connect` has connected.
    ///
    /// # Errors
    /// The errors of [`Deadline::connect_tcp`].
    pub(crate) fn connect(
        &self,
        family: AddressFamily,
        connect: impl Fn(&OwnedFd) -> rustix::io::Result<()>,
    ) -> Result<OwnedFd> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)
            .map_err(|e| failed(e, "cannot make a socket"))?;
        match connect(&socket) {
            Ok(()) => return Ok(socket),
            Err(Errno::INPROGRESS) => self.wait(&socket, PollFlags::OUT, "connecting")?,
            // A Unix socket whose queue of clients is full.
            Err(Errno::AGAIN) => return Err(Error::new(ErrorKind::Io, "its backlog of connections is full")),
            Err(e) => return Err(failed(e, "cannot connect")),
        }
        match sockopt::socket_error(&socket) {
            Ok(Ok(())) => Ok(socket),
            Ok(Err(e)) | Err(e) => Err(failed(e, "cannot connect")),
        }
    }

    /// Sends all of `bytes`. `doing` describes the activity for a timeout, `broke_off` for other errors.
    ///
    /// # Errors
    /// Os: the system's error. Io: the time limit has passed.
    pub(crate) fn send(&self, socket: &OwnedFd, mut bytes: &[u8], doing: &str, broke_off: &str) -> Result<()> {
        while !bytes.is_empty() {
            match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL) {
                Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
                Err(Errno::AGAIN) => self.wait(socket, PollFlags::OUT, doing)?,
                Err(Errno::INTR) => {}
                Err(e) => return Err(failed(e, broke_off)),
            }
        }
        Ok(())
    }
}

/// Returns the error of a socket operation.
pub(crate) fn failed(e: Errno, what: &str) -> Error {
    Error::os(io::Error::from(e), what)
}

/// Returns the beginning of a peer's text, without terminal control characters.
pub(crate) fn printable(text: impl AsRef<[u8]>) -> String {
    let text = String::from_utf8_lossy(text.as_ref());
    text.chars().take(SHOWN).map(|c| if c.is_control() { ' ' } else { c }).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketType};
    use std::net::TcpListener;

    /// Returns a listener with a backlog of one connection, which is used up: further connections are not answered.
    fn silent() -> (OwnedFd, OwnedFd, SocketAddr) {
        let bind = || rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let listener = bind();
        rustix::net::bind(&listener, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let address = SocketAddr::try_from(rustix::net::getsockname(&listener).unwrap()).unwrap();
        let only = bind();
        rustix::net::connect(&only, &address).unwrap();
        (listener, only, address)
    }

    #[test]
    fn a_silent_address_does_not_block_the_next() {
        let stop = crate::event::new().unwrap();
        let (_listener, _only, silent) = silent();
        let good = TcpListener::bind("127.0.0.1:0").unwrap();
        let within = |ms| Deadline::new(Duration::from_millis(ms), &stop);
        assert!(within(4000).connect_to_one(&[silent, good.local_addr().unwrap()]).is_ok());
        let refused = within(200).connect_to_one(&[silent]).unwrap_err();
        assert!(refused.to_string().contains("connecting took longer"), "{refused}");
        crate::event::signal(&stop);
        assert!(within(600_000).connect_to_one(&[silent, silent]).is_err(), "it is interrupted at once");
    }
}
