// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection in the transmission phase: requests out, replies in, as much as goes without waiting.
//!
//! Guarantees: long data goes from and to requests' memory without a copy of ours. Short data goes through one receive buffer,
//! so one system call receives many replies. Whatever breaks is a [`Lost`]. A request whose memory has gone fails alone (a
//! client of a client made its file shorter: the system calls return EFAULT). Its payload is read and dropped, or never sent.
//! Only where half of it was sent already, the connection is of no use any more. The socket, under TLS or not, is [`Stream`]'s.

use super::dial::Dialed;
use super::replies::{LARGE, MOST_LEFT, Replies, ReplyEvent};
use super::requests::Requests;
use crate::driver::remote::stream::{
    DIRECT_BYTES, Ends, INPUT_BYTES_OF_LARGE, Inbox, Outbox, ReadPayload, SEND_BATCH, Stream,
};
use crate::mem::Regions;
use crate::nbd::wire::{BytesIn, NbdError, REQUEST_BYTES, RequestHeader, command};
use crate::net::vectored::Outgoing;
use std::io;
use std::os::fd::OwnedFd;

/// The connection is of no use.
#[derive(Debug)]
pub(super) enum Lost {
    /// The server or the way to it is to blame; why, in words for people.
    Broken(String),
    /// The server is well, but waits for the rest of a request whose memory has gone. That request has ended.
    HalfSent,
    /// No request waits any more for what the server has not answered.
    GivenUp,
}

impl Lost {
    fn broken(why: impl Into<String>) -> Lost {
        Lost::Broken(why.into())
    }
}

/// See the module's text.
pub(super) struct Link {
    pub(super) stream: Stream,
    replies: Replies,
}

impl Link {
    /// Takes a socket over that does not block, and has `set` tell of what arrives.
    pub(super) fn new(dialed: Dialed, set: &OwnedFd) -> Result<Link, String> {
        let Dialed { socket, tls, style, .. } = dialed;
        let stream = match tls {
            Some(tls) => Stream::sealed(socket, tls, MOST_LEFT, set)?,
            None => Stream::new(socket, set)?,
        };
        Ok(Link { stream, replies: Replies::new(style) })
    }

    /// Leaves, in good manners as far as that goes without waiting.
    pub(super) fn disconnect(mut self) {
        let bye = RequestHeader { flags: 0, kind: command::DISC, cookie: 0, offset: 0, length: 0 };
        if let Some(bye) = bye.to_compact() {
            self.stream.leave(&bye);
        }
    }

    /// Sends what the socket takes.
    pub(super) fn transmit(&mut self, requests: &mut Requests, regions: &Regions, set: &OwnedFd) -> Result<(), Lost> {
        self.stream.send(&mut Unsent { requests, regions }, set)
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
        let Link { stream, replies } = self;
        stream.receive(&mut Received { replies, requests, regions, keep_on_shutdown })?;
        if stream.owes() { self.transmit(requests, regions, set) } else { Ok(()) }
    }
}

/// Requests that wait to be sent.
struct Unsent<'a> {
    requests: &'a mut Requests,
    regions: &'a Regions,
}

impl Outbox for Unsent<'_> {
    type Lost = Lost;

    fn batch<R>(
        &mut self,
        most: usize,
        ends: &mut Ends,
        send: impl FnOnce(Outgoing<'_>) -> R,
    ) -> Result<Option<R>, Lost> {
        if self.requests.unsent() == 0 {
            return Ok(None);
        }
        let mut headers = [[0; REQUEST_BYTES]; SEND_BATCH];
        let count = self.requests.headers(&mut headers[..most]);
        let (mut out, mut bytes) = (Outgoing::new(), 0);
        for (i, header) in headers[..count].iter().enumerate() {
            if out.capacity() < 1 + self.requests.pieces_to_send(i) {
                break;
            }
            out.push(header);
            bytes += header.len() + self.requests.push_payload(i, self.regions, &mut out);
            ends.push(bytes);
        }
        Ok(Some(send(out)))
    }

    fn went_out(&mut self, messages: usize) {
        self.requests.went_out(messages);
    }

    fn fault(&mut self, _error: io::Error, has_begun: bool) -> Result<(), Lost> {
        self.requests.fail_unsent();
        if has_begun { Err(Lost::HalfSent) } else { Ok(()) }
    }

    fn has_gone(&self, index: usize) -> bool {
        self.requests.has_gone(index, self.regions)
    }

    fn failed(error: &io::Error) -> Lost {
        Lost::Broken(format!("sending failed: {error}"))
    }
}

/// Replies to requests.
struct Received<'a> {
    replies: &'a mut Replies,
    requests: &'a mut Requests,
    regions: &'a Regions,
    keep_on_shutdown: bool,
}

impl Inbox for Received<'_> {
    type Lost = Lost;

    const MOST_LEFT: usize = MOST_LEFT;
    const PEER: &'static str = "the server";

    fn payload(&self) -> Option<ReadPayload<'_>> {
        let (tag, at, left) = self.replies.payload_left()?;
        Some(ReadPayload { pieces: self.requests.destination(tag)?, regions: self.regions, at, left })
    }

    fn placed(&mut self, bytes: u32) {
        self.replies.payload_received(bytes);
    }

    fn has_large_reads(&self) -> bool {
        self.requests.calls().has_large_reads()
    }

    fn take(&mut self, input: &[u8], _is_sending: bool) -> Result<usize, Lost> {
        take(self.replies, input, self.requests, self.regions, self.keep_on_shutdown)
    }

    fn discard(&mut self) -> bool {
        self.replies.payload_left().is_some_and(|(tag, ..)| self.requests.discard(tag))
    }

    fn awaits_more(&self) -> bool {
        self.requests.sent() > 0
    }

    fn lost(why: String) -> Lost {
        Lost::Broken(why)
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
            Ok(ReplyEvent::NeedMore) => return Ok(input.position()),
            Ok(ReplyEvent::Data { tag, at, bytes }) => requests.put(tag, at, bytes, regions),
            Ok(ReplyEvent::Zeroes { tag, at, len }) => requests.zero(tag, at, len, regions),
            Ok(ReplyEvent::End { error: Some(NbdError::Shutdown), .. }) if keep_on_shutdown => {
                return Err(Lost::broken("the server is shutting down"));
            }
            Ok(ReplyEvent::End { tag, error }) => requests.answered(tag, error),
            Err(violation) => return Err(Lost::Broken(format!("the server violates the protocol: {violation}"))),
        }
    }
}

const _: () = assert!(LARGE >= DIRECT_BYTES && INPUT_BYTES_OF_LARGE > 2 * MOST_LEFT);
