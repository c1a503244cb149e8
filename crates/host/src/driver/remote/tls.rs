// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A [`Stream`] under TLS: as without TLS, with an extra buffer between the socket and requests' memory.
//!
//! Guarantees: memory is bounded: that of [`TlsStream`], one record of plaintext that is gathered, and the beginning of a message. Data is
//! copied once between requests' memory and TLS. A call decrypts and handles everything that was received, except an incomplete record;
//! the rest of that record makes the socket readable again. The end of the stream is a lost connection, with or without a close_notify. A
//! message whose memory is gone while it is copied is not sent.
//! Needs from protocols: they send when a receive has left data to send ([`Stream::owes`]).

use super::stream::{Ends, Inbox, MAX_RECEIVES, Outbox, SEND_BATCH, Stream};
use crate::net::tls::{RECORD_BYTES, Received, TlsStream};
use crate::net::vectored::{Outgoing, is_later};
use rustls::ClientConnection;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// The TLS part of a stream.
pub(super) struct Sealed {
    stream: Box<TlsStream<ClientConnection>>,
    /// Plaintext of one record.
    record: Box<[u8]>,
}

impl Sealed {
    /// Sends waiting ciphertext. Returns whether all of it was sent.
    fn flush(&mut self, socket: &OwnedFd) -> io::Result<bool> {
        match self.stream.flush(socket.as_fd()) {
            Err(e) if is_later(&e) => Ok(false),
            flushed => flushed,
        }
    }

    /// Encrypts waiting messages, up to one record and at most `most` messages.
    fn encrypt<O: Outbox>(&mut self, sent: &mut usize, outbox: &mut O, most: usize) -> Result<Encrypted, O::Lost> {
        let (record, mut ends) = (&mut self.record, Ends::new());
        let copy = |mut list: Outgoing<'_>| {
            list.skip(*sent);
            list.copy_to(record)
        };
        let Some(copied) = outbox.batch(most, &mut ends, copy)? else { return Ok(Encrypted::Nothing) };
        // Checked right after the copy, so that no garbage is sent.
        let gone = ends.begun_within(*sent + copied).find(|(index, _)| outbox.has_gone(*index));
        let asked = gone.map_or(copied, |(_, start)| start.saturating_sub(*sent));
        let n = self.stream.write(&self.record[..asked]).map_err(|e| O::failed(&e))?;
        let (whole, end) = ends.within(*sent + n);
        *sent = *sent + n - end;
        outbox.went_out(whole);
        if n < asked {
            return Ok(Encrypted::Full);
        }
        if gone.is_some() {
            outbox.fault(io::Error::from_raw_os_error(libc::EFAULT), *sent > 0)?;
        }
        Ok(Encrypted::Record(whole))
    }

    /// Sends this last message, and ends TLS.
    pub(super) fn leave(&mut self, bye: &[u8], socket: &OwnedFd) {
        if self.stream.write(bye).is_ok_and(|n| n == bye.len()) {
            self.stream.close();
            let _ = self.flush(socket);
        }
    }
}

/// The result of encrypting messages.
enum Encrypted {
    /// No message waits.
    Nothing,
    /// This many messages were encrypted completely, and perhaps a part of the next.
    Record(usize),
    /// There was not enough room for all.
    Full,
}

impl Stream {
    /// Takes over a socket with TLS established. `most_left` is [`Inbox::MOST_LEFT`].
    ///
    /// # Errors
    /// The errors of [`Stream::new`].
    pub(crate) fn sealed(
        socket: OwnedFd,
        tls: Box<TlsStream<ClientConnection>>,
        most_left: usize,
        set: &OwnedFd,
    ) -> Result<Stream, String> {
        let sealed = Sealed { stream: tls, record: vec![0; RECORD_BYTES].into() };
        // The TLS stream has another buffer, so this one can be small.
        Stream::with(socket, Some(sealed), 2 * most_left, set)
    }

    /// Whether the stream is under TLS. TLS sends messages of its own (changed keys, tickets), so such a stream is read even
    /// when no reply is awaited: unread messages keep the socket readable.
    pub(crate) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether TLS has something to send, or a full socket has kept something from being sent. Only a send handles both: a
    /// bare flush would stop watching the socket although messages wait for it.
    pub(crate) fn owes(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| self.full || tls.stream.wants_write())
    }

    /// As [`Stream::send`].
    pub(super) fn send_sealed<O: Outbox>(&mut self, outbox: &mut O, set: &OwnedFd) -> Result<(), O::Lost> {
        let Stream { socket, tls: Some(tls), sent, .. } = self else { return Ok(()) };
        let failed = |e| O::failed(&e);
        let (mut full, mut is_done, mut most) = (!tls.flush(socket).map_err(failed)?, false, SEND_BATCH);
        while !full && !is_done {
            // Encrypted as far as there is room, sent as far as the socket takes it.
            loop {
                match tls.encrypt(sent, outbox, most)? {
                    Encrypted::Record(whole) => most = (whole + 2).min(SEND_BATCH),
                    Encrypted::Full => break,
                    Encrypted::Nothing => {
                        is_done = true;
                        break;
                    }
                }
            }
            full = !tls.flush(socket).map_err(failed)?;
        }
        self.watch_writable(full, set);
        Ok(())
    }

    /// As [`Stream::receive`].
    pub(super) fn receive_sealed<I: Inbox>(&mut self, inbox: &mut I) -> Result<(), I::Lost> {
        let Stream { socket, input, filled, tls: Some(tls), sent, .. } = self else { return Ok(()) };
        let (is_sending, mut lost) = (*sent > 0, None);
        for _ in 0..MAX_RECEIVES {
            let received = tls.stream.receive(socket.as_fd(), |piece| {
                inbox.heard();
                let mut left = piece;
                while !left.is_empty() && lost.is_none() {
                    // If the beginning of a message was left over, it is completed first; the rest is handled in place.
                    let held = *filled;
                    let n = if held > 0 { left.len().min(I::MOST_LEFT) } else { 0 };
                    let (now, behind) = left.split_at(n);
                    input[held..held + n].copy_from_slice(now);
                    let bytes = if held > 0 { &input[..held + n] } else { left };
                    let taken = match inbox.take(bytes, is_sending) {
                        Ok(taken) => taken,
                        Err(why) => {
                            lost = Some(why);
                            break;
                        }
                    };
                    *filled = bytes.len() - taken;
                    if held > 0 {
                        input.copy_within(taken..held + n, 0);
                        left = behind;
                    } else {
                        input[..*filled].copy_from_slice(&left[taken..]);
                        left = &[];
                    }
                }
                piece.len()
            });
            if let Some(lost) = lost {
                return Err(lost);
            }
            match received.map_err(|e| I::lost(broken(&e, I::PEER)))? {
                Received::End => return Err(I::lost(format!("{} has closed the connection", I::PEER))),
                Received::Nothing | Received::Data if !tls.stream.has_more() => break,
                Received::Nothing | Received::Data => {}
            }
        }
        Ok(())
    }
}

fn broken(e: &io::Error, peer: &str) -> String {
    match e.kind() {
        io::ErrorKind::InvalidData => format!("{peer}, or a proxy in between, violates TLS: {e}"),
        _ => format!("receiving failed: {e}"),
    }
}
