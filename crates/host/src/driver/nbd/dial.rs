// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From an address to a socket that is ready for requests: connect and handshake, in bounded time, and to be broken off.
//!
//! Guarantees: returns within [`DIAL_TIME`], plus what looking up the host's name takes, and soon after `stop` is readable.
//! The socket does not block, and small messages leave it at once.

use super::handshake::{Handshake, Served};
use super::uri::NbdAddress;
use crate::error::{Error, ErrorKind, Result};
use crate::export::nbd::wire::ReplyStyle;
use crate::export::socket::wait;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How long connecting and the handshake may take together.
pub(super) const DIAL_TIME: Duration = Duration::from_secs(10);

/// A connection that may carry requests.
#[derive(Debug)]
pub(super) struct Dialed {
    pub(super) socket: OwnedFd,
    pub(super) served: Served,
    pub(super) style: ReplyStyle,
}

/// Connects to the server and chooses the export.
pub(super) fn dial(address: &NbdAddress, export: &str, stop: &OwnedFd) -> Result<Dialed> {
    let line = Line { until: Instant::now() + DIAL_TIME, stop };
    let within = |e: Error| e.within(&format!("NBD server at {address}"));
    let socket = line.connect(address).map_err(within)?;
    let (served, style) = line.shake_hands(&socket, export).map_err(within)?;
    Ok(Dialed { socket, served, style })
}

struct Line<'a> {
    until: Instant,
    stop: &'a OwnedFd,
}

impl Line<'_> {
    fn wait(&self, socket: &OwnedFd, what: PollFlags, doing: &str) -> Result<()> {
        if wait(socket, what, self.stop, Some(self.until)) {
            return Ok(());
        }
        let text = format!("{doing} took longer than {} s, or was broken off", DIAL_TIME.as_secs());
        Err(Error::new(ErrorKind::Io, text))
    }

    fn connect(&self, address: &NbdAddress) -> Result<OwnedFd> {
        let (host, port) = match address {
            NbdAddress::Unix(path) => {
                let address = SocketAddrUnix::new(path.as_path()).map_err(|e| failed(e, "cannot connect"))?;
                return self.connect_to(AddressFamily::UNIX, |s| rustix::net::connect(s, &address));
            }
            NbdAddress::Tcp(host, port) => (host.as_str(), *port),
        };
        let found = (host, port).to_socket_addrs().map_err(|e| Error::os(e, "cannot look up its name"))?;
        let mut last = Error::new(ErrorKind::NotFound, "its name has no address");
        for address in found {
            let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
            match self.connect_to(family, |s| connect_tcp(s, &address)) {
                Ok(socket) => {
                    // A socket that does not know it is slower, no worse.
                    let _ = sockopt::set_tcp_nodelay(&socket, true);
                    let _ = sockopt::set_socket_keepalive(&socket, true);
                    return Ok(socket);
                }
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    fn connect_to(
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

    fn shake_hands(&self, socket: &OwnedFd, export: &str) -> Result<(Served, ReplyStyle)> {
        let mut handshake = Handshake::new(export);
        let (mut input, mut out) = (Vec::new(), Vec::new());
        loop {
            input.resize(handshake.want(), 0);
            self.receive(socket, &mut input)?;
            let agreed = handshake.feed(&input, &mut out)?;
            self.send(socket, &out)?;
            out.clear();
            if let Some(agreed) = agreed {
                return Ok(agreed);
            }
        }
    }

    fn receive(&self, socket: &OwnedFd, mut bytes: &mut [u8]) -> Result<()> {
        while !bytes.is_empty() {
            match rustix::net::recv(socket, &mut *bytes, RecvFlags::empty()) {
                Ok((0, _)) => return Err(Error::new(ErrorKind::Io, "the server left during the handshake")),
                Ok((n, _)) => bytes = bytes.get_mut(n..).unwrap_or_default(),
                Err(Errno::AGAIN) => self.wait(socket, PollFlags::IN, "the handshake")?,
                Err(Errno::INTR) => {}
                Err(e) => return Err(failed(e, "the handshake broke off")),
            }
        }
        Ok(())
    }

    fn send(&self, socket: &OwnedFd, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            match rustix::net::send(socket, bytes, SendFlags::NOSIGNAL) {
                Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
                Err(Errno::AGAIN) => self.wait(socket, PollFlags::OUT, "the handshake")?,
                Err(Errno::INTR) => {}
                Err(e) => return Err(failed(e, "the handshake broke off")),
            }
        }
        Ok(())
    }
}

fn connect_tcp(socket: &OwnedFd, address: &SocketAddr) -> rustix::io::Result<()> {
    rustix::net::connect(socket, address)
}

fn failed(e: Errno, what: &str) -> Error {
    Error::os(io::Error::from(e), what)
}
