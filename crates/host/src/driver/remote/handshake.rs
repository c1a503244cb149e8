// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connected socket during the handshake, which sends and receives alternately; under TLS once the protocol starts TLS.
//!
//! Guarantees: TLS begins, or the call fails. Before TLS begins, no more bytes are received than requested, so plain text after them goes
//! to TLS, which rejects it. No call outlasts the deadline, even if the peer sends endlessly.

use super::credentials::Credentials;
use super::dial::{Deadline, failed};
use crate::error::{Error, ErrorKind, Result};
use crate::net::tls::{Received, TlsStream};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustls::ClientConnection;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// The activity that the error for an exceeded deadline names.
const DOING: &str = "the handshake";

/// See the module's text.
pub(crate) struct HandshakeSocket<'a> {
    deadline: Deadline<'a>,
    socket: OwnedFd,
    credentials: Option<&'a Credentials>,
    /// The TLS stream, once TLS has begun.
    tls: Option<Box<TlsStream<ClientConnection>>>,
}

impl<'a> HandshakeSocket<'a> {
    /// `credentials`: for TLS, if TLS may begin.
    pub(crate) fn new(
        socket: OwnedFd,
        deadline: Deadline<'a>,
        credentials: Option<&'a Credentials>,
    ) -> HandshakeSocket<'a> {
        HandshakeSocket { deadline, socket, credentials, tls: None }
    }

    /// Returns socket and TLS stream after the handshake.
    pub(crate) fn into_parts(self) -> (OwnedFd, Option<Box<TlsStream<ClientConnection>>>) {
        (self.socket, self.tls)
    }

    fn wait(&self, what: PollFlags, doing: &str) -> Result<()> {
        self.deadline.wait(&self.socket, what, doing)
    }

    /// Begins TLS.
    ///
    /// # Panics
    /// Without credentials.
    pub(crate) fn start_tls(&mut self) -> Result<()> {
        const DOING: &str = "beginning TLS";
        let credentials = self.credentials.expect("TLS is not begun without credentials");
        let mut tls = Box::new(TlsStream::to(credentials.config(), credentials.name())?);
        loop {
            self.deadline.check(DOING)?;
            self.flush(&mut tls)?;
            if !tls.is_handshaking() {
                break;
            }
            match tls.receive(self.socket.as_fd(), |_| 0).map_err(|e| credentials.explain(&e))? {
                Received::End => return Err(left(&credentials.hint())),
                Received::Nothing if tls.is_handshaking() && !tls.has_more() && !tls.wants_write() => {
                    self.wait(PollFlags::IN, DOING)?;
                }
                Received::Nothing | Received::Data => {}
            }
        }
        self.tls = Some(tls);
        Ok(())
    }

    /// Fills `bytes` with received bytes.
    pub(crate) fn receive(&mut self, mut bytes: &mut [u8]) -> Result<()> {
        // If the peer keeps sending, there is no wait that would check the deadline.
        self.deadline.check(DOING)?;
        if let Some(mut tls) = self.tls.take() {
            let received = self.receive_tls(&mut tls, bytes);
            self.tls = Some(tls);
            let hint = || self.credentials.map(Credentials::hint).unwrap_or_default();
            return received.and_then(|all| if all { Ok(()) } else { Err(left(&hint())) });
        }
        while !bytes.is_empty() {
            match rustix::net::recv(&self.socket, &mut *bytes, RecvFlags::empty()) {
                Ok((0, _)) => return Err(left("")),
                Ok((n, _)) => bytes = bytes.get_mut(n..).unwrap_or_default(),
                Err(Errno::AGAIN) => self.wait(PollFlags::IN, DOING)?,
                Err(Errno::INTR) => {}
                Err(e) => return Err(failed(e, "the handshake ended early")),
            }
        }
        Ok(())
    }

    /// As [`HandshakeSocket::receive`], under TLS. Returns whether all bytes came before the end of the stream.
    fn receive_tls(&self, tls: &mut TlsStream<ClientConnection>, bytes: &mut [u8]) -> Result<bool> {
        let mut filled = 0;
        while filled < bytes.len() {
            // Records without data never block the receive, so the deadline is checked here, too.
            self.deadline.check(DOING)?;
            let received = tls.receive(self.socket.as_fd(), |piece| {
                let room = bytes.get_mut(filled..).unwrap_or_default();
                let n = piece.len().min(room.len());
                room.iter_mut().zip(piece).for_each(|(to, from)| *to = *from);
                filled += n;
                n
            });
            let received = received.map_err(|e| self.explain(&e))?;
            self.flush(tls)?;
            match received {
                Received::End => return Ok(false),
                Received::Nothing if !tls.has_more() => self.wait(PollFlags::IN, DOING)?,
                Received::Nothing | Received::Data => {}
            }
        }
        Ok(true)
    }

    /// Sends all bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<()> {
        if let Some(mut tls) = self.tls.take() {
            let sent = self.send_tls(&mut tls, bytes);
            // Put the stream back even after an error: the next message must not be sent without TLS.
            self.tls = Some(tls);
            return sent;
        }
        self.deadline.send(&self.socket, bytes, DOING, "the handshake ended early")
    }

    /// As [`HandshakeSocket::send`], under TLS.
    fn send_tls(&self, tls: &mut TlsStream<ClientConnection>, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let n = tls.write(bytes).map_err(|e| self.explain(&e))?;
            bytes = bytes.get(n..).unwrap_or_default();
            self.flush(tls)?;
        }
        Ok(())
    }

    /// Sends all that TLS has to send. If the socket fails, the reason that the peer has sent takes precedence over the socket's error.
    fn flush(&self, tls: &mut TlsStream<ClientConnection>) -> Result<()> {
        loop {
            match tls.flush(self.socket.as_fd()) {
                Ok(true) => return Ok(()),
                Ok(false) => self.wait(PollFlags::OUT, DOING)?,
                Err(e) => {
                    let said = tls.receive(self.socket.as_fd(), |_| 0);
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
    Error::new(ErrorKind::Io, format!("the server closed the connection during the handshake{hint}"))
}

#[cfg(test)]
mod tests {
    use super::super::credentials::TargetTls;
    use super::*;
    use crate::event;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    /// The deadline and the stop request used to be checked only when there was nothing to receive.
    #[test]
    fn a_server_that_has_always_more_to_say_does_not_hold_it_up() {
        let tls = TargetTls { verify_peer: false, ..TargetTls::default() };
        let credentials = Credentials::load(&tls, None).unwrap();
        for is_stopped in [false, true] {
            let (stop, now) = (event::new().unwrap(), Instant::now());
            if is_stopped {
                event::signal(&stop);
            }
            let within = Duration::from_secs(10);
            let until = if is_stopped { now + within } else { now };
            let deadline = Deadline { until, ..Deadline::new(within, &stop) };
            let line = || {
                let (client, mut server) = UnixStream::pair().unwrap();
                client.set_nonblocking(true).unwrap();
                // The client rejects these bytes, because they are not valid TLS.
                server.write_all(&[1; 4096]).unwrap();
                (HandshakeSocket::new(client.into(), deadline, Some(&credentials)), server)
            };
            let (mut beginning, _server) = line();
            let (receiving, _other) = line();
            let mut tls = TlsStream::to(credentials.config(), credentials.name()).unwrap();
            let received = receiving.receive_tls(&mut tls, &mut [0; 16]).map(drop);
            for result in [beginning.start_tls(), received] {
                let e = result.unwrap_err().to_string();
                assert!(e.contains("took longer than 10 s, or was interrupted"), "{e}");
            }
        }
    }

    #[test]
    fn a_failed_send_keeps_tls() {
        let tls = TargetTls { verify_peer: false, ..TargetTls::default() };
        let credentials = Credentials::load(&tls, None).unwrap();
        let stop = event::new().unwrap();
        let (client, server) = UnixStream::pair().unwrap();
        client.set_nonblocking(true).unwrap();
        drop(server);
        let deadline = Deadline::new(Duration::from_secs(10), &stop);
        let mut line = HandshakeSocket::new(client.into(), deadline, Some(&credentials));
        line.tls = Some(Box::new(TlsStream::to(credentials.config(), credentials.name()).unwrap()));
        assert!(line.send(&[0; 16]).is_err() && line.tls.is_some());
    }
}
