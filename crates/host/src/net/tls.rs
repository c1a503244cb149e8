// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TLS between a peer's socket and the layer that reads and writes messages, at a server's end and at a client's.
//!
//! Guarantees: memory for a connection is bounded. Received ciphertext that is not decrypted has at most [`RECEIVE_BYTES`] and one record
//! more. Plaintext that was not taken has at most one record; the next record is decrypted only after that. Ciphertext that was not sent
//! has at most [`SEND_BYTES`] and one record more. One call to the kernel receives many records and one sends many. Data for a disk's
//! memory is decrypted into that memory with one copy.
//!
//! Needs from callers: a socket that does not block; [`TlsStream::receive`] again as long as [`TlsStream::has_more`] says so;
//! [`TlsStream::flush`] as long as [`TlsStream::wants_write`] says so. A failed stream is not used any more.
//! Does not do: resumption, early data (rustls refuses renegotiation and limits what costs it work).
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

/// Bytes received by one call.
const RECEIVE_BYTES: usize = 64 << 10;
/// Bytes of ciphertext that wait to be sent, beyond which nothing is encrypted.
const SEND_BYTES: usize = 256 << 10;
/// Plaintext of one record at most. Source: RFC 8446, 5.1.
pub(crate) const RECORD_BYTES: usize = 16 << 10;

/// What became of a call to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// Plaintext was taken.
    Data,
    /// There is none now.
    Nothing,
    /// There will be none any more. Whether the peer has said so itself is all the same: messages say how much is to come.
    End,
}

/// One end of a connection under TLS: a server's, or a client's. See the module's text.
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
    /// A connection that is about to shake hands; `first` is what the client has sent for that already.
    ///
    /// # Errors
    /// TLS cannot be had (no randomness, no memory).
    pub(crate) fn new(config: &Arc<ServerConfig>, first: &[u8]) -> Result<TlsStream> {
        let tls = ServerConnection::new(Arc::clone(config)).map_err(cannot_begin)?;
        Ok(TlsStream::with(tls, first))
    }
}

impl TlsStream<ClientConnection> {
    /// A connection to the server of this name that is about to shake hands. What was received before is not for TLS and must
    /// not be there.
    ///
    /// # Errors
    /// As of a server's end.
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

    /// Whether TLS still shakes hands: nothing can be sent or received by the layer above.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// Whether receiving may give something though the socket has nothing.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        self.has_more
    }

    /// Whether something waits to be sent.
    #[inline]
    pub(crate) fn wants_write(&self) -> bool {
        self.tls.wants_write()
    }

    /// Has `take` take plaintext piece by piece, of which it says how much it took, until it leaves something or there is
    /// nothing more. At most one call to the kernel.
    ///
    /// # Errors
    /// The socket fails, or the peer breaks TLS (`InvalidData`, with what rustls says in it): what is to be told it was sent, if
    /// it could be.
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
                // What filled the buffer may not be all.
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
                // An alert that gives the reason; it is not waited for.
                let _ = self.flush(socket);
                return Err(io::Error::new(io::ErrorKind::InvalidData, e));
            }
            if taken == 0 {
                // After the end that the peer declared nothing is taken.
                return Ok(if any == Received::Data { any } else { Received::End });
            }
        }
    }

    /// Gives away what was decrypted.
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

    /// Encrypts `plaintext` for the next [`TlsStream::flush`]; how much of it there was room for.
    pub(crate) fn write(&mut self, plaintext: &[u8]) -> io::Result<usize> {
        self.tls.writer().write(plaintext)
    }

    /// Sends what waits; whether all of it.
    ///
    /// # Errors
    /// The socket's.
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

    /// The peer will hear that nothing comes any more.
    pub(crate) fn close(&mut self) {
        self.tls.send_close_notify();
    }
}

enum Drained {
    /// The taker has enough.
    Left { taken: bool },
    /// There is no more now.
    All { taken: bool },
    /// There will be no more.
    End,
}

/// A socket to send to, without the signal.
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
