// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sockets for handshakes: connected, waited for and sent to in bounded time, and until a stop request.
//!
//! Guarantees: a socket does not block, and small messages leave it at once. No call takes longer than its deadline, or continues
//! after `stop` has become readable.

use crate::error::{Error, ErrorKind, Result};
use crate::net::socket::wait;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// By when, and what breaks it off before.
#[derive(Clone, Copy)]
pub(crate) struct Deadline<'a> {
    /// The time that was given, for messages.
    pub(crate) within: Duration,
    pub(crate) until: Instant,
    /// Readable: no time is left.
    pub(crate) stop: &'a OwnedFd,
}

impl<'a> Deadline<'a> {
    /// From now on.
    pub(crate) fn new(within: Duration, stop: &'a OwnedFd) -> Deadline<'a> {
        Deadline { within, until: Instant::now() + within, stop }
    }

    /// An even part of the time that is left.
    pub(crate) fn share(&self, parts: usize) -> Deadline<'a> {
        let left = self.until.saturating_duration_since(Instant::now());
        Deadline::new(left / parts.max(1) as u32, self.stop)
    }

    /// Waits until the socket is ready for `what`.
    ///
    /// # Errors
    /// Io: it was not in time.
    pub(crate) fn wait(&self, socket: &OwnedFd, what: PollFlags, doing: &str) -> Result<()> {
        if wait(socket, what, self.stop, Some(self.until)) { Ok(()) } else { Err(self.passed(doing)) }
    }

    /// What is reported when it has passed.
    pub(crate) fn passed(&self, doing: &str) -> Error {
        let text = format!("{doing} took longer than {:.0} s, or was interrupted", self.within.as_secs_f64());
        Error::new(ErrorKind::Io, text)
    }

    /// A socket connected to this address.
    ///
    /// # Errors
    /// Os: as of the system. Io: not in time.
    pub(crate) fn connect_tcp(&self, address: &SocketAddr) -> Result<OwnedFd> {
        let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
        self.connect(family, |socket| {
            // A socket that does not know it is slower, no worse.
            let _ = sockopt::set_tcp_nodelay(socket, true);
            let _ = sockopt::set_socket_keepalive(socket, true);
            rustix::net::connect(socket, address)
        })
    }

    /// A socket of this family that `connect` connects.
    ///
    /// # Errors
    /// As of [`Deadline::connect_tcp`].
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
            Err(Errno::AGAIN) => return Err(Error::new(ErrorKind::Io, "it takes no more clients now")),
            Err(e) => return Err(failed(e, "cannot connect")),
        }
        match sockopt::socket_error(&socket) {
            Ok(Ok(())) => Ok(socket),
            Ok(Err(e)) | Err(e) => Err(failed(e, "cannot connect")),
        }
    }

    /// Sends all of `bytes`. `doing` is what takes too long if it does, `broke_off` what is reported of other errors.
    ///
    /// # Errors
    /// Os: as of the system. Io: not in time.
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

/// An error of a socket.
pub(crate) fn failed(e: Errno, what: &str) -> Error {
    Error::os(io::Error::from(e), what)
}
