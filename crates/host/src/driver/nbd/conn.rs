// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection in the transmission phase: requests out, replies in, as much as goes without waiting.
//!
//! Guarantees: data goes from and to requests' memory without a copy of ours where it is long, through one receive buffer
//! where it is short (one system call for many replies). Whatever breaks is a [`Lost`].

use super::replies::{LARGE, MOST_LEFT, Replies, Said};
use super::requests::Requests;
use super::socket::{Incoming, Outgoing};
use crate::export::nbd::wire::{BytesIn, NbdError, REQUEST_BYTES, ReplyStyle, RequestHeader, command};
use crate::mem::Regions;
use rustix::event::epoll;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

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

/// The connection is of no use, and why, in words for people.
#[derive(Debug)]
pub(super) struct Lost(pub(super) String);

/// See the module's text.
pub(super) struct Link {
    socket: OwnedFd,
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
    pub(super) fn new(socket: OwnedFd, style: ReplyStyle, set: &OwnedFd) -> Result<Link, String> {
        epoll::add(set, &socket, epoll::EventData::new_u64(1), epoll::EventFlags::IN)
            .map_err(|e| format!("cannot wait for its socket: {}", io::Error::from(e)))?;
        let input = vec![0; INPUT_BYTES].into();
        Ok(Link { socket, replies: Replies::new(style), input, filled: 0, sent: 0, full: false })
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The set has nothing to tell any more.
    pub(super) fn unwatch(&self, set: &OwnedFd) {
        let _ = epoll::delete(set, &self.socket);
    }

    /// Leaves, in good manners as far as that goes without waiting.
    pub(super) fn disconnect(self) {
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
        let mut full = false;
        while requests.unsent() > 0 && !full {
            let mut headers = [[0; REQUEST_BYTES]; SEND_BATCH];
            let batch = requests.headers(&mut headers);
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
                Err(e) => return Err(Lost(format!("sending failed: {e}"))),
            };
            full = n < asked;
            let through = self.sent + n;
            let gone = ends[..taken].partition_point(|end| *end <= through);
            self.sent = through - if gone > 0 { ends[gone - 1] } else { 0 };
            requests.went_out(gone);
        }
        if full != self.full {
            self.full = full;
            let out = if full { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
            let _ = epoll::modify(set, &self.socket, epoll::EventData::new_u64(1), epoll::EventFlags::IN | out);
        }
        Ok(())
    }

    /// Receives what is there and ends the requests that are answered. A request that is answered with "shutting down" stays,
    /// and the connection is lost, if `keep_on_shutdown`.
    pub(super) fn receive(
        &mut self,
        requests: &mut Requests,
        regions: &Regions,
        keep_on_shutdown: bool,
    ) -> Result<(), Lost> {
        for _ in 0..MAX_RECEIVES {
            let (n, asked) = match self.receive_once(requests, regions) {
                Ok((0, _)) => return Err(Lost("the server has closed the connection".into())),
                Ok(n) => n,
                Err(e) if is_later(&e) => return Ok(()),
                Err(e) => return Err(Lost(format!("receiving failed: {e}"))),
            };
            self.take(requests, regions, keep_on_shutdown)?;
            // What did not fill all the room was all there is, most likely.
            if n < asked || requests.sent() == 0 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// One receive: bytes there were, and that there was room for.
    fn receive_once(&mut self, requests: &Requests, regions: &Regions) -> io::Result<(usize, usize)> {
        let mut incoming = Incoming::new();
        let mut direct = 0;
        if let Some((tag, at, left)) = self.replies.payload_left()
            && left >= DIRECT_BYTES
            && self.filled == 0
        {
            direct = requests.push_destination(tag, at, left, regions, &mut incoming) as usize;
        }
        let long = direct == 0 && requests.calls().has_large_reads();
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
        let mut input = BytesIn::new(self.input.get(..self.filled).unwrap_or_default());
        loop {
            match self.replies.next(&mut input, requests.calls_mut()) {
                Ok(Said::NeedMore) => break,
                Ok(Said::Data { tag, at, bytes }) => requests.put(tag, at, bytes, regions),
                Ok(Said::Zeroes { tag, at, len }) => requests.zero(tag, at, len, regions),
                Ok(Said::End { error: Some(NbdError::Shutdown), .. }) if keep_on_shutdown => {
                    return Err(Lost("the server is shutting down".into()));
                }
                Ok(Said::End { tag, error }) => requests.answered(tag, error),
                Err(violation) => return Err(Lost(format!("the server breaks the protocol: {violation}"))),
            }
        }
        let (taken, filled) = (input.position(), self.filled);
        self.input.copy_within(taken..filled, 0);
        self.filled = filled - taken;
        Ok(())
    }
}

/// Errors that say "not now".
fn is_later(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
        || e.raw_os_error() == Some(libc::ENOBUFS)
}

const _: () = assert!(LARGE >= DIRECT_BYTES && INPUT_BYTES_OF_LARGE > 2 * MOST_LEFT);
