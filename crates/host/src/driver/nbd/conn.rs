// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A connection in the transmission phase: sends requests and receives replies, as far as that does not block.
//!
//! Guarantees: long data is not copied between the socket and requests' memory. Short data goes through one receive buffer, so one system
//! call receives many replies. Every failure is a [`Lost`]. If a request's memory is gone (a client's client truncated its file, so system
//! calls return EFAULT), only that request fails. Its payload is read and dropped, or never sent. Only if a part of the payload was
//! already sent, the connection is lost. [`Stream`] handles the socket, with or without TLS.

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

/// Why the connection is lost.
#[derive(Debug)]
pub(super) enum Lost {
    /// The server or the network has failed; the reason, as text for users.
    Broken(String),
    /// The server works, but waits for the rest of a request whose memory is gone. That request has completed.
    HalfSent,
    /// An operator gave up the unanswered requests.
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
    /// Takes over a non-blocking socket, and registers it with the epoll set `set`.
    pub(super) fn new(dialed: Dialed, set: &OwnedFd) -> Result<Link, String> {
        let Dialed { socket, tls, style, .. } = dialed;
        let stream = match tls {
            Some(tls) => Stream::sealed(socket, tls, MOST_LEFT, set)?,
            None => Stream::new(socket, set)?,
        };
        Ok(Link { stream, replies: Replies::new(style) })
    }

    /// Sends a disconnect request if that does not block, and closes the connection.
    pub(super) fn disconnect(mut self) {
        let bye = RequestHeader { flags: 0, kind: command::DISC, cookie: 0, offset: 0, length: 0 };
        if let Some(bye) = bye.to_compact() {
            self.stream.leave(&bye);
        }
    }

    /// Sends as much as the socket takes.
    pub(super) fn transmit(&mut self, requests: &mut Requests, regions: &Regions, set: &OwnedFd) -> Result<(), Lost> {
        self.stream.send(&mut Unsent { requests, regions }, set)
    }

    /// Receives what has arrived, and completes answered requests. With `keep_on_shutdown`, a request that is answered with "shutting
    /// down" stays in flight, and the connection is lost.
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

/// Handles these bytes. Returns how many of them were used.
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
