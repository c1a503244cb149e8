// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection in the transmission phase: requests out, replies in, as much as goes without waiting.
//!
//! Guarantees: data goes from and to requests' memory without a copy of ours where it is long, through one receive buffer
//! where it is short (one system call for many replies). Whatever breaks is a [`Lost`]. A request whose memory has gone (a client
//! of a client made its file shorter: the system calls say EFAULT) fails alone: its payload is read away, or never sent; only
//! where half of it was sent already the connection is of no use any more. Under TLS all of that is in [`tls`], at the cost of one
//! question per call to a connection without it.

mod tls;

use super::dial::Dialed;
use super::replies::{LARGE, MOST_LEFT, Replies, Said};
use super::requests::Requests;
use crate::mem::Regions;
use crate::nbd::wire::{BytesIn, NbdError, REQUEST_BYTES, RequestHeader, command};
use crate::net::vectored::{Incoming, Outgoing, is_fault, is_later};
use rustix::event::epoll;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use tls::Sealed;

/// Bytes received at once: some dozens of short reads.
const INPUT_BYTES: usize = 256 << 10;
/// The same while a long read is out: the rest of it goes straight to where it belongs.
const INPUT_BYTES_OF_LARGE: usize = 4 << 10;
/// Payload that is worth a receive to where it belongs.
const DIRECT_BYTES: u32 = 16 << 10;
/// Requests of one send.
const SEND_BATCH: usize = 64;
/// Receives of one call, when each brought as much as there was room for.
const MAX_RECEIVES: u32 = 4;

/// The connection is of no use.
#[derive(Debug)]
pub(super) enum Lost {
    /// The server or the way to it is to blame; why, in words for people.
    Broken(String),
    /// The server is well, but waits for the rest of a request whose memory has gone. That request has ended.
    HalfSent,
    /// Nobody waits any more for what the server has not answered.
    GivenUp,
}

impl Lost {
    fn broken(why: impl Into<String>) -> Lost {
        Lost::Broken(why.into())
    }
}

/// See the module's text.
pub(super) struct Link {
    socket: OwnedFd,
    /// What is between the socket and the rest under TLS.
    tls: Option<Sealed>,
    replies: Replies,
    input: Box<[u8]>,
    /// Received and not yet taken: fewer than [`MOST_LEFT`] bytes between two calls.
    filled: usize,
    /// Bytes of the oldest unsent request that were sent.
    sent: usize,
    /// The socket is full: it is watched for room.
    full: bool,
}

impl Link {
    /// Takes a socket over that does not block, and has `set` tell of what arrives.
    pub(super) fn new(dialed: Dialed, set: &OwnedFd) -> Result<Link, String> {
        let Dialed { socket, tls, style, .. } = dialed;
        epoll::add(set, &socket, epoll::EventData::new_u64(1), epoll::EventFlags::IN)
            .map_err(|e| format!("cannot wait for its socket: {}", io::Error::from(e)))?;
        // Under TLS there is another buffer before it.
        let input = vec![0; if tls.is_some() { 2 * MOST_LEFT } else { INPUT_BYTES }].into();
        let (tls, replies) = (tls.map(Sealed::new), Replies::new(style));
        Ok(Link { socket, tls, replies, input, filled: 0, sent: 0, full: false })
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// The set has nothing to tell any more.
    pub(super) fn unwatch(&self, set: &OwnedFd) {
        let _ = epoll::delete(set, &self.socket);
    }

    /// Leaves, in good manners as far as that goes without waiting.
    pub(super) fn disconnect(self) {
        if self.tls.is_some() {
            return self.disconnect_tls();
        }
        if self.sent == 0
            && let Some(bye) =
                (RequestHeader { flags: 0, kind: command::DISC, cookie: 0, offset: 0, length: 0 }).to_compact()
        {
            let mut out = Outgoing::new();
            out.push(&bye);
            let _ = out.send(self.as_fd());
        }
    }

    /// Sends what the socket takes.
    pub(super) fn transmit(&mut self, requests: &mut Requests, regions: &Regions, set: &OwnedFd) -> Result<(), Lost> {
        if self.tls.is_some() {
            return self.transmit_tls(requests, regions, set);
        }
        let (mut full, mut most) = (false, SEND_BATCH);
        while requests.unsent() > 0 && !full {
            let mut headers = [[0; REQUEST_BYTES]; SEND_BATCH];
            let batch = requests.headers(&mut headers[..most]);
            let mut out = Outgoing::new();
            let mut ends = [0; SEND_BATCH];
            let mut taken = 0;
            let mut bytes = 0;
            for (i, header) in headers[..batch].iter().enumerate() {
                if out.room() < 1 + requests.pieces_to_send(i) {
                    break;
                }
                out.push(header);
                bytes += header.len() + requests.push_payload(i, regions, &mut out);
                (ends[i], taken) = (bytes, i + 1);
            }
            out.skip(self.sent);
            let asked = out.bytes();
            let n = match out.send(self.socket.as_fd()) {
                Ok(n) => n,
                Err(e) if is_later(&e) => 0,
                // Nothing was sent. Whose memory it is shows when they are sent one by one.
                Err(e) if is_fault(&e) && taken > 1 => {
                    most = 1;
                    continue;
                }
                Err(e) if is_fault(&e) => {
                    requests.fail_unsent();
                    if self.sent > 0 {
                        return Err(Lost::HalfSent);
                    }
                    most = SEND_BATCH;
                    continue;
                }
                Err(e) => return Err(Lost::Broken(format!("sending failed: {e}"))),
            };
            full = n < asked;
            let through = self.sent + n;
            let gone = ends[..taken].partition_point(|end| *end <= through);
            self.sent = through - if gone > 0 { ends[gone - 1] } else { 0 };
            requests.went_out(gone);
        }
        self.watch_room(full, set);
        Ok(())
    }

    /// Whether the socket is full, and is to be watched for room.
    fn watch_room(&mut self, full: bool, set: &OwnedFd) {
        if full != self.full {
            self.full = full;
            let out = if full { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
            let _ = epoll::modify(set, &self.socket, epoll::EventData::new_u64(1), epoll::EventFlags::IN | out);
        }
    }

    /// Receives what is there and ends the requests that are answered. A request that is answered with "shutting down" stays,
    /// and the connection is lost, if `keep_on_shutdown`.
    pub(super) fn receive(
        &mut self,
        requests: &mut Requests,
        regions: &Regions,
        keep_on_shutdown: bool,
        set: &OwnedFd,
    ) -> Result<(), Lost> {
        if self.tls.is_some() {
            return self.receive_tls(requests, regions, keep_on_shutdown, set);
        }
        for _ in 0..MAX_RECEIVES {
            let (n, asked) = match self.receive_once(requests, regions) {
                Ok((0, _)) => return Err(Lost::broken("the server has closed the connection")),
                Ok(n) => n,
                Err(e) if is_later(&e) => return Ok(()),
                Err(e) if is_fault(&e) && self.gone(requests) => continue,
                Err(e) => return Err(Lost::Broken(format!("receiving failed: {e}"))),
            };
            self.take(requests, regions, keep_on_shutdown)?;
            // What did not fill all the room was all there is, most likely.
            if n < asked || requests.sent() == 0 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The memory of the read whose data comes has gone: the data is read away from now on. Whether that is something new.
    fn gone(&self, requests: &mut Requests) -> bool {
        self.replies.payload_left().is_some_and(|(tag, ..)| requests.discard(tag))
    }

    /// One receive: bytes there were, and that there was room for.
    fn receive_once(&mut self, requests: &Requests, regions: &Regions) -> io::Result<(usize, usize)> {
        let mut incoming = Incoming::new();
        let mut direct = 0;
        if let Some((tag, at, left)) = self.replies.payload_left()
            && left >= DIRECT_BYTES
            && self.filled == 0
            && !requests.is_discarded(tag)
        {
            direct = requests.push_destination(tag, at, left, regions, &mut incoming) as usize;
        }
        // Also behind a direct part: what follows it may be another long read.
        let long = requests.calls().has_large_reads();
        let most = if long { INPUT_BYTES_OF_LARGE.max(self.filled + MOST_LEFT) } else { INPUT_BYTES };
        let room = self.input.get_mut(self.filled..most).unwrap_or_default();
        let asked = direct + room.len();
        incoming.push(room);
        let n = incoming.receive(self.socket.as_fd())?;
        let placed = n.min(direct);
        if placed > 0 {
            self.replies.payload_received(placed as u32);
        }
        self.filled += n - placed;
        // A long read has told its length: the rest of it is worth another call at once.
        let asked = if long && self.filled == most { n } else { asked };
        Ok((n, asked))
    }

    /// Takes what the input says.
    fn take(&mut self, requests: &mut Requests, regions: &Regions, keep_on_shutdown: bool) -> Result<(), Lost> {
        let input = self.input.get(..self.filled).unwrap_or_default();
        let taken = take(&mut self.replies, input, requests, regions, keep_on_shutdown)?;
        let filled = self.filled;
        self.input.copy_within(taken..filled, 0);
        self.filled = filled - taken;
        Ok(())
    }
}

/// Takes what these bytes say; how many of them it was.
fn take(
    replies: &mut Replies,
    bytes: &[u8],
    requests: &mut Requests,
    regions: &Regions,
    keep_on_shutdown: bool,
) -> Result<usize, Lost> {
    let mut input = BytesIn::new(bytes);
    loop {
        match replies.next(&mut input, requests.calls_mut()) {
            Ok(Said::NeedMore) => return Ok(input.position()),
            Ok(Said::Data { tag, at, bytes }) => requests.put(tag, at, bytes, regions),
            Ok(Said::Zeroes { tag, at, len }) => requests.zero(tag, at, len, regions),
            Ok(Said::End { error: Some(NbdError::Shutdown), .. }) if keep_on_shutdown => {
                return Err(Lost::broken("the server is shutting down"));
            }
            Ok(Said::End { tag, error }) => requests.answered(tag, error),
            Err(violation) => return Err(Lost::Broken(format!("the server breaks the protocol: {violation}"))),
        }
    }
}

const _: () = assert!(LARGE >= DIRECT_BYTES && INPUT_BYTES_OF_LARGE > 2 * MOST_LEFT);
