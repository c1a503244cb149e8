// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TLS between a peer's socket and the layer that reads and writes messages, for servers and clients.
//!
//! Guarantees: memory per connection is bounded. Received ciphertext that is not yet decrypted is at most [`RECEIVE_BYTES`] plus one
//! record. Plaintext that the layer above has not taken is at most one record; the next record is decrypted only after that. Unsent
//! ciphertext is at most [`SEND_BYTES`] plus one record. One call to the kernel receives many records and one sends many. Data for a
//! disk's memory is decrypted into that memory with one copy.
//!
//! Needs from callers: a non-blocking socket. Callers call [`TlsStream::receive`] again while [`TlsStream::has_more`] is true, and
//! [`TlsStream::flush`] while [`TlsStream::wants_write`] is true. They do not use a stream after an error.
//! Does not do: resumption, early data (rustls refuses renegotiation and bounds the work that a peer can cause).
//!
//! Source: RFC 8446, RFC 5246.

use crate::error::{Error, ErrorKind, Result};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ConnectionCommon, ServerConfig, ServerConnection};
use std::fmt;
use std::io::{self, BufRead, IoSlice, Write};
use std::ops::DerefMut;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Maximum number of bytes that one call receives.
const RECEIVE_BYTES: usize = 64 << 10;
/// Limit of unsent ciphertext, in bytes; beyond it nothing is encrypted.
const SEND_BYTES: usize = 256 << 10;
/// Maximum plaintext of one record. Source: RFC 8446, 5.1.
pub(crate) const RECORD_BYTES: usize = 16 << 10;

/// The result of a call to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// Plaintext was taken.
    Data,
    /// There is no plaintext now.
    Nothing,
    /// There will be no more plaintext. A missing close_notify makes no difference, because messages carry their own length.
    End,
}

/// The server side or the client side of a TLS connection. See the module's text.
pub struct TlsStream<C = ServerConnection> {
    tls: C,
    /// Ciphertext that TLS has not taken: `at..end`.
    received: Box<[u8]>,
    at: usize,
    end: usize,
    has_more: bool,
}

impl<C> fmt::Debug for TlsStream<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsStream")
    }
}

impl TlsStream {
    /// Makes a connection before its handshake. `first` is the part of the client's handshake that was already received.
    ///
    /// # Errors
    /// TLS cannot be started (no randomness, no memory).
    pub(crate) fn new(config: &Arc<ServerConfig>, first: &[u8]) -> Result<TlsStream> {
        let tls = ServerConnection::new(Arc::clone(config)).map_err(cannot_begin)?;
        Ok(TlsStream::with(tls, first))
    }
}

impl TlsStream<ClientConnection> {
    /// Makes a connection to the server of this name before its handshake. No bytes for TLS may have been received before.
    ///
    /// # Errors
    /// The errors of [`TlsStream::new`].
    pub(crate) fn to(config: Arc<ClientConfig>, name: ServerName<'static>) -> Result<TlsStream<ClientConnection>> {
        let tls = ClientConnection::new(config, name).map_err(cannot_begin)?;
        Ok(TlsStream::with(tls, &[]))
    }
}

fn cannot_begin(e: rustls::Error) -> Error {
    Error::new(ErrorKind::Resource, format!("cannot begin TLS: {e}"))
}

impl<C, D> TlsStream<C>
where
    C: DerefMut<Target = ConnectionCommon<D>>,
{
    fn with(mut tls: C, first: &[u8]) -> TlsStream<C> {
        tls.set_buffer_limit(Some(SEND_BYTES));
        let mut received = vec![0; RECEIVE_BYTES.max(first.len())].into_boxed_slice();
        received[..first.len()].copy_from_slice(first);
        TlsStream { tls, received, at: 0, end: first.len(), has_more: !first.is_empty() }
    }

    /// Whether the handshake is in progress; the layer above cannot send or receive until it is complete.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// Whether [`TlsStream::receive`] may return data though the socket has none.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        self.has_more
    }

    /// Whether ciphertext waits to be sent.
    #[inline]
    pub(crate) fn wants_write(&self) -> bool {
        self.tls.wants_write()
    }

    /// Passes plaintext to `take` piece by piece; `take` returns how many bytes it took. Stops when `take` leaves some or there is no
    /// more. Makes at most one call to the kernel.
    ///
    /// # Errors
    /// The socket fails, or the peer violates TLS (`InvalidData`, which holds the error of rustls). In that case an alert was sent to the
    /// peer, if possible.
    pub(crate) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        mut take: impl FnMut(&[u8]) -> usize,
    ) -> io::Result<Received> {
        let mut any = Received::Nothing;
        let mut asked = false;
        self.has_more = true;
        loop {
            match self.drain(&mut take)? {
                Drained::Left { taken } => return Ok(if taken { Received::Data } else { any }),
                Drained::All { taken } if taken => any = Received::Data,
                Drained::All { .. } => {}
                Drained::End => return Ok(if any == Received::Data { any } else { Received::End }),
            }
            if self.at == self.end {
                // If the buffer was filled, the socket may have more.
                if asked {
                    self.has_more = self.end == self.received.len();
                    return Ok(any);
                }
                asked = true;
                match rustix::io::read(socket, &mut self.received[..]) {
                    Ok(0) if any == Received::Nothing => return Ok(Received::End),
                    Ok(0) => return Ok(any),
                    Ok(n) => (self.at, self.end) = (0, n),
                    Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                        self.has_more = false;
                        return Ok(any);
                    }
                    Err(e) => return Err(e.into()),
                }
            }
            let mut window = self.received.get(self.at..self.end).unwrap_or_default();
            let taken = self.tls.read_tls(&mut window)?;
            self.at += taken;
            if let Err(e) = self.tls.process_new_packets() {
                // Sends an alert with the reason, without waiting.
                let _ = self.flush(socket);
                return Err(io::Error::new(io::ErrorKind::InvalidData, e));
            }
            if taken == 0 {
                // TLS takes nothing after the peer's close_notify.
                return Ok(if any == Received::Data { any } else { Received::End });
            }
        }
    }

    /// Passes decrypted plaintext to `take`.
    fn drain(&mut self, take: &mut impl FnMut(&[u8]) -> usize) -> io::Result<Drained> {
        let mut reader = self.tls.reader();
        let mut taken = false;
        loop {
            let piece = match reader.fill_buf() {
                Ok([]) => return Ok(if taken { Drained::All { taken } } else { Drained::End }),
                Ok(piece) => piece,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Drained::All { taken }),
                Err(e) => return Err(e),
            };
            let (n, whole) = (take(piece), piece.len());
            reader.consume(n);
            taken |= n > 0;
            if n < whole {
                return Ok(Drained::Left { taken });
            }
        }
    }

    /// Encrypts `plaintext` for the next [`TlsStream::flush`]. Returns how many bytes of it fitted.
    pub(crate) fn write(&mut self, plaintext: &[u8]) -> io::Result<usize> {
        self.tls.writer().write(plaintext)
    }

    /// Sends waiting ciphertext. Returns whether all of it was sent.
    ///
    /// # Errors
    /// The errors of the socket.
    pub(crate) fn flush(&mut self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut Sending(socket)) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// Queues a close_notify, which tells the peer that no more data follows.
    pub(crate) fn close(&mut self) {
        self.tls.send_close_notify();
    }
}

enum Drained {
    /// `take` left some plaintext.
    Left { taken: bool },
    /// There is no more plaintext now.
    All { taken: bool },
    /// There will be no more plaintext.
    End,
}

/// A socket to which data is sent without SIGPIPE.
struct Sending<'a>(BorrowedFd<'a>);

impl Write for Sending<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(self.0, bytes, rustix::net::SendFlags::NOSIGNAL)?)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut nothing = rustix::net::SendAncillaryBuffer::default();
        Ok(rustix::net::sendmsg(self.0, pieces, &mut nothing, rustix::net::SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
