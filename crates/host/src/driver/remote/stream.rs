// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connected socket that carries requests: sends batches of messages and receives replies, as far as that does not block.
//!
//! Guarantees: one system call for many messages; payload goes from and to requests' memory without a copy where the protocol
//! lets it, through one receive buffer where it is short. A socket that is full is watched until all is sent. Memory that
//! has gone meanwhile (a client of a client made its file shorter: the system calls say EFAULT) fails its own request alone, as far
//! as the protocol lets it.
//! Under TLS ([`tls`](super::tls)) all of that holds with one copy more; a stream without it pays one comparison per call.
//! Does not do: know messages. That is [`Outbox`]'s and [`Inbox`]'s.

use super::tls::Sealed;
use crate::driver::pieces::Pieces;
use crate::mem::Regions;
use crate::net::vectored::{Incoming, Outgoing, is_fault, is_later};
use rustix::event::epoll;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes received at once: some dozens of short reads.
pub(crate) const INPUT_BYTES: usize = 256 << 10;
/// The same while a long read is out: the rest of it goes straight to where it belongs.
pub(crate) const INPUT_BYTES_OF_LARGE: usize = 4 << 10;
/// Payload that is worth a receive to where it belongs ([`Inbox::payload`]).
pub(crate) const DIRECT_BYTES: u32 = 16 << 10;
/// Messages of one send.
pub(crate) const SEND_BATCH: usize = 64;
/// Receives of one call, when each brought as much as there was room for.
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

    /// Messages that lie within the first `bytes`, and where the last of them ends.
    pub(crate) fn within(&self, bytes: usize) -> (usize, usize) {
        let whole = self.ends[..self.count].partition_point(|end| *end <= bytes);
        (whole, if whole > 0 { self.ends[whole - 1] } else { 0 })
    }

    /// Messages that begin within the first `bytes`: their places in the batch, and where each begins.
    pub(crate) fn begun_within(&self, bytes: usize) -> impl Iterator<Item = (usize, usize)> {
        let starts = std::iter::once(0).chain(self.ends[..self.count].iter().copied());
        starts.take(self.count).take_while(move |start| *start < bytes).enumerate()
    }
}

/// Messages that wait to be sent, oldest first.
pub(crate) trait Outbox {
    /// Why the connection is of no use any more.
    type Lost;

    /// Makes a batch of up to `most` messages (at most [`SEND_BATCH`]), notes where each ends, and passes it to `send`, whose result
    /// it returns; `None` if nothing waits.
    ///
    /// # Errors
    /// A message cannot be made, and the connection is lost by that.
    fn batch<R>(
        &mut self,
        most: usize,
        ends: &mut Ends,
        send: impl FnOnce(Outgoing<'_>) -> R,
    ) -> Result<Option<R>, Self::Lost>;

    /// The first messages were sent.
    fn went_out(&mut self, messages: usize);

    /// A send of the oldest message alone has failed with EFAULT; `has_begun`: its first bytes were sent before.
    ///
    /// # Errors
    /// The connection is lost by that.
    fn fault(&mut self, error: io::Error, has_begun: bool) -> Result<(), Self::Lost>;

    /// Whether memory of the unsent message at this place in the line has gone. It is asked after that memory was copied.
    fn has_gone(&self, index: usize) -> bool;

    /// A send has failed.
    fn failed(error: &io::Error) -> Self::Lost;
}

/// Data of a read that is to come.
pub(crate) struct ReadPayload<'a> {
    /// The request's memory.
    pub(crate) pieces: &'a Pieces,
    pub(crate) regions: &'a Regions,
    /// From which of its bytes on, and how many.
    pub(crate) at: u32,
    pub(crate) left: u32,
}

/// What the peer says.
pub(crate) trait Inbox {
    /// Why the connection is of no use any more.
    type Lost;

    /// Bytes of an incomplete message that may be left in the input at most.
    const MOST_LEFT: usize;
    /// The peer, in words for people.
    const PEER: &'static str;

    /// The peer has sent something.
    fn heard(&mut self) {}

    /// What the next bytes are, if they are data of a request whose memory is there.
    fn payload(&self) -> Option<ReadPayload<'_>>;

    /// So many bytes of [`Inbox::payload`] have come to where they belong.
    fn placed(&mut self, bytes: u32);

    /// Whether long reads are out whose payload may go to where it belongs.
    fn has_large_reads(&self) -> bool;

    /// Handles these bytes. Returns how many of them were used. `is_sending`: part of the oldest unsent message was sent.
    ///
    /// # Errors
    /// The connection is lost by what it says.
    fn take(&mut self, input: &[u8], is_sending: bool) -> Result<usize, Self::Lost>;

    /// Discards the payload of the current read from now on, because its memory has gone. Returns false if that is known.
    fn discard(&mut self) -> bool;

    /// Whether the peer has requests to answer.
    fn awaits_more(&self) -> bool;

    /// Why the connection is lost, in words for people.
    fn lost(why: String) -> Self::Lost;
}

/// See the module's text.
pub(crate) struct Stream {
    pub(super) socket: OwnedFd,
    /// What is between the socket and the rest under TLS.
    pub(super) tls: Option<Sealed>,
    pub(crate) input: Box<[u8]>,
    /// Received and not yet taken.
    pub(crate) filled: usize,
    /// Bytes of the oldest unsent message that were sent.
    pub(crate) sent: usize,
    /// The socket is full: it is watched until it is writable.
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

    /// The same with a receive buffer of this size.
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
                // Nothing was sent. Whose memory it is shows when they are sent one by one.
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

    /// Sends a last message if no other is sent in part and that does not block.
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
            // What did not fill all the room was all there is, most likely.
            if n < asked || !inbox.awaits_more() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Receives once. Returns how many bytes came, and for how many there was room.
    fn receive_once<I: Inbox>(&mut self, inbox: &mut I) -> io::Result<(usize, usize)> {
        let mut incoming = Incoming::new();
        let direct = match inbox.payload().filter(|p| self.filled == 0 && p.left >= DIRECT_BYTES) {
            Some(p) => p.pieces.push_destination(p.at, p.left, p.regions, &mut incoming) as usize,
            None => 0,
        };
        // Also behind a direct part: what follows it may be another long read.
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
        // A long read has told its length: the rest of it is worth another call at once.
        let asked = if long && self.filled == most { n } else { asked };
        Ok((n, asked))
    }

    /// Has what was received taken.
    pub(crate) fn take<I: Inbox>(&mut self, inbox: &mut I) -> Result<(), I::Lost> {
        let input = self.input.get(..self.filled).unwrap_or_default();
        let taken = inbox.take(input, self.sent > 0)?;
        let filled = self.filled;
        self.input.copy_within(taken..filled, 0);
        self.filled = filled - taken;
        Ok(())
    }
}
