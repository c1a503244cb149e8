// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From an address to a socket that is ready for requests: connect and handshake, with TLS in it, in bounded time, and to be broken
//! off.
//!
//! Guarantees: a client that asks for TLS gets it or an error. Nothing is received beyond the answer to
//! `NBD_OPT_STARTTLS` before TLS begins. So plain text injected behind it comes to TLS, which rejects it. Returns
//! within [`DIAL_TIME`], plus what looking
//! up the host's name takes, and soon after `stop` is readable, also if the server sends without an end.
//! The socket does not block, and small messages leave it at once.

use super::credentials::Credentials;
use super::handshake::{Handshake, Served};
use super::uri::NbdAddress;
use super::uri::NbdTarget;
use crate::driver::remote::dial::{Deadline, failed};
use crate::error::{Error, ErrorKind, Result};
use crate::nbd::wire::ReplyStyle;
use crate::net::tls::{Received, TlsStream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix};
use rustls::ClientConnection;
use std::io;
use std::net::ToSocketAddrs;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long connecting and the handshake may take together.
pub(super) const DIAL_TIME: Duration = Duration::from_secs(10);

/// A connection that may carry requests.
#[derive(Debug)]
pub(super) struct Dialed {
    pub(super) socket: OwnedFd,
    pub(super) tls: Option<Box<TlsStream<ClientConnection>>>,
    pub(super) served: Served,
    pub(super) style: ReplyStyle,
}

/// Connects to the server and chooses the export; under TLS where there are credentials for it.
pub(super) fn dial(target: &NbdTarget, credentials: Option<&Credentials>, stop: &OwnedFd) -> Result<Dialed> {
    let mut line = Line { deadline: Deadline::new(DIAL_TIME, stop), credentials, tls: None };
    let within = |e: Error| e.within(&format!("NBD server at {}", target.address));
    let socket = line.connect(&target.address).map_err(within)?;
    let (served, style) = line.shake_hands(&socket, &target.export).map_err(within)?;
    Ok(Dialed { socket, tls: line.tls, served, style })
}

struct Line<'a> {
    deadline: Deadline<'a>,
    credentials: Option<&'a Credentials>,
    /// Once it has begun.
    tls: Option<Box<TlsStream<ClientConnection>>>,
}

impl Line<'_> {
    fn wait(&self, socket: &OwnedFd, what: PollFlags, doing: &str) -> Result<()> {
        self.deadline.wait(socket, what, doing)
    }

    /// Whether it may continue, for a loop that always finds something to do and does not wait.
    fn in_time(&self, doing: &str) -> Result<()> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut stop = [PollFd::new(self.deadline.stop, PollFlags::IN)];
        let is_stopped = poll(&mut stop, Some(&now)).is_ok_and(|n| n > 0);
        let in_time = Instant::now() < self.deadline.until && !is_stopped;
        if in_time { Ok(()) } else { Err(self.deadline.passed(doing)) }
    }

    fn connect(&self, address: &NbdAddress) -> Result<OwnedFd> {
        let (host, port) = match address {
            NbdAddress::Unix(path) => {
                let address = SocketAddrUnix::new(path.as_path()).map_err(|e| failed(e, "cannot connect"))?;
                return self.deadline.connect(AddressFamily::UNIX, |s| rustix::net::connect(s, &address));
            }
            NbdAddress::Tcp(host, port) => (host.as_str(), *port),
        };
        let found = (host, port).to_socket_addrs().map_err(|e| Error::os(e, "cannot look up its name"))?;
        let mut last = Error::new(ErrorKind::NotFound, "its name has no address");
        for address in found {
            match self.deadline.connect_tcp(&address) {
                Ok(socket) => return Ok(socket),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    fn shake_hands(&mut self, socket: &OwnedFd, export: &str) -> Result<(Served, ReplyStyle)> {
        let mut handshake = Handshake::new(export, self.credentials.is_some());
        let (mut input, mut out) = (Vec::new(), Vec::new());
        loop {
            self.in_time("the handshake")?;
            if handshake.wants_tls() {
                self.start_tls(socket)?;
            }
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

    /// Shakes hands once more, for TLS.
    fn start_tls(&mut self, socket: &OwnedFd) -> Result<()> {
        let credentials = self.credentials.expect("TLS only if it was asked for");
        let mut tls = Box::new(TlsStream::to(credentials.config(), credentials.name())?);
        loop {
            self.in_time("beginning TLS")?;
            self.flush(&mut tls, socket)?;
            if !tls.is_handshaking() {
                break;
            }
            match tls.receive(socket.as_fd(), |_| 0).map_err(|e| credentials.explain(&e))? {
                Received::End => return Err(left(&credentials.hint())),
                Received::Nothing if tls.is_handshaking() && !tls.has_more() && !tls.wants_write() => {
                    self.wait(socket, PollFlags::IN, "beginning TLS")?;
                }
                Received::Nothing | Received::Data => {}
            }
        }
        self.tls = Some(tls);
        Ok(())
    }

    /// What may be behind it when a server leaves in the middle of TLS.
    fn hint(&self) -> String {
        self.credentials.map(Credentials::hint).unwrap_or_default()
    }

    fn receive(&mut self, socket: &OwnedFd, mut bytes: &mut [u8]) -> Result<()> {
        if let Some(mut tls) = self.tls.take() {
            let received = self.receive_tls(&mut tls, socket, bytes);
            self.tls = Some(tls);
            return received.and_then(|all| if all { Ok(()) } else { Err(left(&self.hint())) });
        }
        while !bytes.is_empty() {
            match rustix::net::recv(socket, &mut *bytes, RecvFlags::empty()) {
                Ok((0, _)) => return Err(left("")),
                Ok((n, _)) => bytes = bytes.get_mut(n..).unwrap_or_default(),
                Err(Errno::AGAIN) => self.wait(socket, PollFlags::IN, "the handshake")?,
                Err(Errno::INTR) => {}
                Err(e) => return Err(failed(e, "the handshake ended early")),
            }
        }
        Ok(())
    }

    /// The same under TLS; whether all of them came before the end.
    fn receive_tls(&self, tls: &mut TlsStream<ClientConnection>, socket: &OwnedFd, bytes: &mut [u8]) -> Result<bool> {
        let mut filled = 0;
        while filled < bytes.len() {
            // Records without data, which come as fast as they are taken, are nothing to wait for.
            self.in_time("the handshake")?;
            let received = tls.receive(socket.as_fd(), |piece| {
                let room = bytes.get_mut(filled..).unwrap_or_default();
                let n = piece.len().min(room.len());
                room.iter_mut().zip(piece).for_each(|(to, from)| *to = *from);
                filled += n;
                n
            });
            let received = received.map_err(|e| self.explain(&e))?;
            self.flush(tls, socket)?;
            match received {
                Received::End => return Ok(false),
                Received::Nothing if !tls.has_more() => self.wait(socket, PollFlags::IN, "the handshake")?,
                Received::Nothing | Received::Data => {}
            }
        }
        Ok(true)
    }

    fn send(&mut self, socket: &OwnedFd, mut bytes: &[u8]) -> Result<()> {
        if let Some(mut tls) = self.tls.take() {
            while !bytes.is_empty() {
                let n = tls.write(bytes).map_err(|e| self.explain(&e))?;
                bytes = bytes.get(n..).unwrap_or_default();
                self.flush(&mut tls, socket)?;
            }
            self.tls = Some(tls);
            return Ok(());
        }
        self.deadline.send(socket, bytes, "the handshake", "the handshake ended early")
    }

    /// Sends all that TLS has to send. An error of the socket is not the last word if the server has reported why it left.
    fn flush(&self, tls: &mut TlsStream<ClientConnection>, socket: &OwnedFd) -> Result<()> {
        loop {
            match tls.flush(socket.as_fd()) {
                Ok(true) => return Ok(()),
                Ok(false) => self.wait(socket, PollFlags::OUT, "the handshake")?,
                Err(e) => {
                    let said = tls.receive(socket.as_fd(), |_| 0);
                    return Err(self.explain(said.as_ref().err().unwrap_or(&e)));
                }
            }
        }
    }

    fn explain(&self, e: &io::Error) -> Error {
        match self.credentials {
            Some(credentials) => credentials.explain(e),
            None => Error::new(ErrorKind::Io, format!("the handshake ended early: {e}")),
        }
    }
}

fn left(hint: &str) -> Error {
    Error::new(ErrorKind::Io, format!("the server left during the handshake{hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    /// The time and the stop request were only checked when there was nothing to be received.
    #[test]
    fn a_server_that_has_always_more_to_say_does_not_hold_it_up() {
        let target = super::super::parse("nbds+unix:///?socket=/nowhere&tls-verify-peer=0").unwrap();
        let credentials = Credentials::load(&target).unwrap().unwrap();
        for is_stopped in [false, true] {
            let (stop, now) = (event::new().unwrap(), Instant::now());
            if is_stopped {
                event::signal(&stop);
            }
            let until = if is_stopped { now + DIAL_TIME } else { now };
            let socket = || {
                let (client, mut server) = UnixStream::pair().unwrap();
                client.set_nonblocking(true).unwrap();
                // TLS rejects it as no TLS.
                server.write_all(&[1; 4096]).unwrap();
                (OwnedFd::from(client), server)
            };
            let deadline = Deadline { until, ..Deadline::new(DIAL_TIME, &stop) };
            let mut line = Line { deadline, credentials: Some(&credentials), tls: None };
            let (client, _server) = socket();
            let began = line.start_tls(&client);
            let mut tls = TlsStream::to(credentials.config(), credentials.name()).unwrap();
            let (client, _server) = socket();
            let received = line.receive_tls(&mut tls, &client, &mut [0; 16]).map(drop);
            for result in [began, received] {
                let e = result.unwrap_err().to_string();
                assert!(e.contains("took longer than 10 s, or was interrupted"), "{e}");
            }
        }
    }
}
