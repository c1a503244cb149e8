// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connected socket that carries requests: sends batches of messages and receives replies, as far as that does not block.
//!
//! Guarantees: one system call for many messages; long payload is not copied between the socket and requests' memory, if the protocol
//! allows that; short payload goes through one receive buffer. A socket that is full is watched until all is sent. If memory is gone in
//! the meantime (a client's client truncated its file, so system calls return EFAULT), only its own request fails, if the protocol allows
//! that. Under TLS ([`tls`](super::tls)) the same holds with one more copy; a stream without TLS pays one comparison per call.
//! Does not know messages; [`Outbox`] and [`Inbox`] do.

use super::tls::Sealed;
use crate::driver::pieces::Pieces;
use crate::mem::Regions;
use crate::net::vectored::{Incoming, Outgoing, is_fault, is_later};
use rustix::event::epoll;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Size of the receive buffer: some dozens of short reads.
pub(crate) const INPUT_BYTES: usize = 256 << 10;
/// Maximum number of bytes received into the buffer while a long read is in flight, so that the rest of that read is received directly
/// into its memory.
pub(crate) const INPUT_BYTES_OF_LARGE: usize = 4 << 10;
/// Minimum payload for which a direct receive into the request's memory pays off ([`Inbox::payload`]).
pub(crate) const DIRECT_BYTES: u32 = 16 << 10;
/// Maximum number of messages of one send.
pub(crate) const SEND_BATCH: usize = 64;
/// Maximum number of receives of one call, if each fills its room.
pub(crate) const MAX_RECEIVES: u32 = 4;

/// Where each message of a batch ends, as an offset from the batch's beginning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    ends: [usize; SEND_BATCH],
    count: usize,
}

impl Ends {
    pub(crate) fn new() -> Ends {
        Ends { ends: [0; SEND_BATCH], count: 0 }
    }

    pub(crate) fn push(&mut self, end: usize) {
        self.ends[self.count] = end;
        self.count += 1;
    }

    /// Returns how many messages lie within the first `bytes`, and where the last of them ends.
    pub(crate) fn within(&self, bytes: usize) -> (usize, usize) {
        let whole = self.ends[..self.count].partition_point(|end| *end <= bytes);
        (whole, if whole > 0 { self.ends[whole - 1] } else { 0 })
    }

    /// Returns the messages that begin within the first `bytes`: their indices in the batch, and where each begins.
    pub(crate) fn begun_within(&self, bytes: usize) -> impl Iterator<Item = (usize, usize)> {
        let starts = std::iter::once(0).chain(self.ends[..self.count].iter().copied());
        starts.take(self.count).take_while(move |start| *start < bytes).enumerate()
    }
}

/// Messages that wait to be sent, oldest first.
pub(crate) trait Outbox {
    /// Why the connection is lost.
    type Lost;

    /// Makes a batch of up to `most` messages (at most [`SEND_BATCH`]), notes where each ends, and passes it to `send`, whose result
    /// it returns; `None` if nothing waits.
    ///
    /// # Errors
    /// A message cannot be made, so the connection is lost.
    fn batch<R>(
        &mut self,
        most: usize,
        ends: &mut Ends,
        send: impl FnOnce(Outgoing<'_>) -> R,
    ) -> Result<Option<R>, Self::Lost>;

    /// Called when the first `messages` messages were sent.
    fn went_out(&mut self, messages: usize);

    /// Called when a send of only the oldest message has failed with EFAULT; `has_begun`: its first bytes were sent before.
    ///
    /// # Errors
    /// The connection is lost because of that.
    fn fault(&mut self, error: io::Error, has_begun: bool) -> Result<(), Self::Lost>;

    /// Whether memory of the unsent message at this index is gone. Called after that memory was copied.
    fn has_gone(&self, index: usize) -> bool;

    /// Returns the loss for a failed send.
    fn failed(error: &io::Error) -> Self::Lost;
}

/// The expected data of a read.
pub(crate) struct ReadPayload<'a> {
    /// The request's memory.
    pub(crate) pieces: &'a Pieces,
    pub(crate) regions: &'a Regions,
    /// The data's offset in the request, and (`left`) its length.
    pub(crate) at: u32,
    pub(crate) left: u32,
}

/// Handles messages from the peer.
pub(crate) trait Inbox {
    /// Why the connection is lost.
    type Lost;

    /// Maximum number of bytes of an incomplete message that may be left in the input.
    const MOST_LEFT: usize;
    /// Name of the peer, for messages.
    const PEER: &'static str;

    /// Called when the peer has sent something.
    fn heard(&mut self) {}

    /// Returns the request memory for the next bytes, if they are data of a read whose memory exists.
    fn payload(&self) -> Option<ReadPayload<'_>>;

    /// Called when `bytes` bytes of [`Inbox::payload`] were received into the request's memory.
    fn placed(&mut self, bytes: u32);

    /// Whether long reads are in flight whose payload may be received directly into their memory.
    fn has_large_reads(&self) -> bool;

    /// Handles these bytes. Returns how many of them were used. `is_sending`: part of the oldest unsent message was sent.
    ///
    /// # Errors
    /// The bytes violate the protocol, so the connection is lost.
    fn take(&mut self, input: &[u8], is_sending: bool) -> Result<usize, Self::Lost>;

    /// Discards the payload of the current read from now on, because its memory has gone. Returns false if that is known.
    fn discard(&mut self) -> bool;

    /// Whether the peer has unanswered requests.
    fn awaits_more(&self) -> bool;

    /// Returns the loss of the connection with this reason, which is text for users.
    fn lost(why: String) -> Self::Lost;
}

/// See the module's text.
pub(crate) struct Stream {
    pub(super) socket: OwnedFd,
    /// The TLS layer, under TLS.
    pub(super) tls: Option<Sealed>,
    pub(crate) input: Box<[u8]>,
    /// Bytes in `input` that were received and not yet handled.
    pub(crate) filled: usize,
    /// Bytes of the oldest unsent message that were sent.
    pub(crate) sent: usize,
    /// The socket is full, and watched until it is writable.
    pub(crate) full: bool,
}

impl Stream {
    /// Takes over a socket that does not block, and registers it with the epoll set `set`.
    ///
    /// # Errors
    /// The socket cannot be waited for; the text is for people.
    pub(crate) fn new(socket: OwnedFd, set: &OwnedFd) -> Result<Stream, String> {
        Stream::with(socket, None, INPUT_BYTES, set)
    }

    /// As [`Stream::new`], with a receive buffer of this size.
    pub(super) fn with(
        socket: OwnedFd,
        tls: Option<Sealed>,
        input_bytes: usize,
        set: &OwnedFd,
    ) -> Result<Stream, String> {
        epoll::add(set, &socket, epoll::EventData::new_u64(1), epoll::EventFlags::IN)
            .map_err(|e| format!("cannot wait for its socket: {}", io::Error::from(e)))?;
        Ok(Stream { socket, tls, input: vec![0; input_bytes].into(), filled: 0, sent: 0, full: false })
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Removes the socket from the epoll set.
    pub(crate) fn unwatch(&self, set: &OwnedFd) {
        let _ = epoll::delete(set, &self.socket);
    }

    /// Whether the socket is full, and is to be watched until it is writable again.
    pub(crate) fn watch_writable(&mut self, full: bool, set: &OwnedFd) {
        if full != self.full {
            self.full = full;
            let out = if full { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
            let _ = epoll::modify(set, &self.socket, epoll::EventData::new_u64(1), epoll::EventFlags::IN | out);
        }
    }

    /// Sends as much as the socket takes.
    pub(crate) fn send<O: Outbox>(&mut self, outbox: &mut O, set: &OwnedFd) -> Result<(), O::Lost> {
        if self.tls.is_some() {
            return self.send_sealed(outbox, set);
        }
        let (mut full, mut most) = (false, SEND_BATCH);
        while !full {
            let (sent, socket, mut ends) = (self.sent, self.socket.as_fd(), Ends::new());
            let send = |mut list: Outgoing<'_>| {
                list.skip(sent);
                (list.bytes(), list.send(socket))
            };
            let Some((asked, result)) = outbox.batch(most, &mut ends, send)? else { break };
            let n = match result {
                Ok(n) => n,
                Err(e) if is_later(&e) => 0,
                // Nothing was sent. Send the messages one by one, to find the one whose memory is gone.
                Err(e) if is_fault(&e) && ends.count > 1 => {
                    most = 1;
                    continue;
                }
                Err(e) if is_fault(&e) => {
                    outbox.fault(e, self.sent > 0)?;
                    most = SEND_BATCH;
                    continue;
                }
                Err(e) => return Err(O::failed(&e)),
            };
            full = n < asked;
            let (whole, end) = ends.within(self.sent + n);
            self.sent = self.sent + n - end;
            outbox.went_out(whole);
        }
        self.watch_writable(full, set);
        Ok(())
    }

    /// Sends a last message, if no other message is partly sent and if that does not block.
    pub(crate) fn leave(&mut self, bye: &[u8]) {
        if self.sent > 0 {
            return;
        }
        if let Some(tls) = &mut self.tls {
            return tls.leave(bye, &self.socket);
        }
        let mut out = Outgoing::new();
        out.push(bye);
        let _ = out.send(self.socket.as_fd());
    }

    /// Receives what the socket has, and handles it.
    pub(crate) fn receive<I: Inbox>(&mut self, inbox: &mut I) -> Result<(), I::Lost> {
        if self.tls.is_some() {
            return self.receive_sealed(inbox);
        }
        for _ in 0..MAX_RECEIVES {
            let (n, asked) = match self.receive_once(inbox) {
                Ok((0, _)) => return Err(I::lost(format!("{} has closed the connection", I::PEER))),
                Ok(n) => n,
                Err(e) if is_later(&e) => return Ok(()),
                Err(e) if is_fault(&e) && inbox.discard() => continue,
                Err(e) => return Err(I::lost(format!("receiving failed: {e}"))),
            };
            inbox.heard();
            self.take(inbox)?;
            // If the room was not filled, the socket most likely has no more.
            if n < asked || !inbox.awaits_more() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Receives once. Returns how many bytes were received, and for how many there was room.
    fn receive_once<I: Inbox>(&mut self, inbox: &mut I) -> io::Result<(usize, usize)> {
        let mut incoming = Incoming::new();
        let direct = match inbox.payload().filter(|p| self.filled == 0 && p.left >= DIRECT_BYTES) {
            Some(p) => p.pieces.push_destination(p.at, p.left, p.regions, &mut incoming) as usize,
            None => 0,
        };
        // Use the larger buffer even after a direct part, because another long read may follow that part.
        let long = inbox.has_large_reads();
        let most = if long { INPUT_BYTES_OF_LARGE.max(self.filled + I::MOST_LEFT) } else { INPUT_BYTES };
        let room = self.input.get_mut(self.filled..most).unwrap_or_default();
        let asked = direct + room.len();
        incoming.push(room);
        let n = incoming.receive(self.socket.as_fd())?;
        let placed = n.min(direct);
        if placed > 0 {
            inbox.placed(placed as u32);
        }
        self.filled += n - placed;
        // The buffer is filled with part of a long read, whose rest is worth another call at once.
        let asked = if long && self.filled == most { n } else { asked };
        Ok((n, asked))
    }

    /// Passes received bytes to `inbox`.
    pub(crate) fn take<I: Inbox>(&mut self, inbox: &mut I) -> Result<(), I::Lost> {
        let input = self.input.get(..self.filled).unwrap_or_default();
        let taken = inbox.take(input, self.sent > 0)?;
        let filled = self.filled;
        self.input.copy_within(taken..filled, 0);
        self.filled = filled - taken;
        Ok(())
    }
}
