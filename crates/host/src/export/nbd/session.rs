// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The receiving side of the transmission phase: parses bytes into checked requests.
//!
//! Guarantees: a returned request is within the export, aligned, allowed and offered. Every other request is refused with the error that
//! the specification names, after its payload was skipped, so the stream stays synchronized. Nothing is allocated, and the outcome does
//! not depend on how the bytes were split. Payload is not copied; only a header that arrives in pieces is buffered (up to 32 bytes). A
//! client that breaks the framing, or announces a payload beyond [`MAX_SERVED`], is a [`Violation`]: close the connection.
//!
//! Needs from callers: they answer each request and each refusal exactly once ([`super::reply`]), and limit the unanswered requests by not
//! asking for the next event.
//!
//! Source: the NBD protocol, sections "Request message", "Block size constraints", "Request types", "Error values".

use std::fmt;

use super::export::FastZero;
use super::handshake::Negotiated;
use super::reply::ReplyTo;
use crate::nbd::wire::{
    BytesIn, EXTENDED_REQUEST_BYTES, MAX_SERVED, NbdError, REQUEST_BYTES, ReplyStyle, RequestHeader, command,
    command_flag as flag,
};

/// The command of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Command {
    /// Read `length` bytes, at most the export's maximum block size.
    Read,
    /// Write `length` bytes, at most the export's maximum block size, which follow as [`Event::Payload`].
    Write,
    /// Make stable what was completed before; `offset` and `length` are 0.
    Flush,
    /// Discard; any length up to the size of the export.
    Trim,
    /// Prefetch; any length up to the size of the export.
    Cache,
    /// Write zeroes; any length up to the size of the export.
    WriteZeroes,
    /// Report the extents; any length up to the size of the export.
    BlockStatus,
}

/// A request that may be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The client's identifier of the request. Clients should not use one cookie for two requests in flight; that is not checked.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes, at least 1 except for a flush; `offset + length` is within the export.
    pub length: u64,
    /// What to do.
    pub command: Command,
    flags: u16,
}

impl Request {
    /// Reply only when the data is stable. May be set on any command, but has an effect only on those that write.
    #[inline]
    pub const fn fua(&self) -> bool {
        self.flags & flag::FUA != 0
    }

    /// The zeroes must not become a hole.
    #[inline]
    pub const fn no_hole(&self) -> bool {
        self.flags & flag::NO_HOLE != 0
    }

    /// Fail with [`NbdError::NotSup`] if zeroing is not faster than writing.
    #[inline]
    pub const fn fast_zero(&self) -> bool {
        self.flags & flag::FAST_ZERO != 0
    }

    /// Answer the read with one content chunk.
    #[inline]
    pub const fn unfragmented(&self) -> bool {
        self.flags & flag::DF != 0
    }

    /// One extent is enough.
    #[inline]
    pub const fn one_extent(&self) -> bool {
        self.flags & flag::REQ_ONE != 0
    }

    /// Returns what replies need of the request.
    #[inline]
    pub const fn reply_to(&self) -> ReplyTo {
        ReplyTo { cookie: self.cookie, offset: self.offset }
    }
}

/// A request that may not be served: answer it with the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The request to answer.
    pub reply_to: ReplyTo,
    /// The request's type on the wire, for logs.
    pub kind: u16,
    /// The error to answer with.
    pub error: NbdError,
}

/// What the received bytes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The input is used up completely, so its memory may be reused.
    NeedMore,
    /// A request. If it is a write, the next events are its payload, `length` bytes in all.
    Request(Request),
    /// Part of the payload of the last write, in place in the caller's buffer.
    Payload {
        /// The write's cookie.
        cookie: u64,
        /// The bytes, at least one.
        bytes: &'a [u8],
        /// Number of payload bytes that follow.
        left: u32,
    },
    /// A request to refuse. Its payload has been skipped.
    Refused(Refusal),
    /// The client disconnects: answer requests in flight, then close. Further bytes are ignored.
    Disconnect,
}

/// A violation of the protocol's framing or limits. The connection cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A request does not begin with the negotiated magic; holds what was there instead.
    BadMagic(u32),
    /// A payload of this many bytes is more than [`MAX_SERVED`].
    PayloadTooLong(u64),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::BadMagic(magic) => write!(f, "{magic:#010x} in place of a request: client out of step"),
            Violation::PayloadTooLong(bytes) => {
                write!(f, "a request with {bytes} bytes of data: at most {MAX_SERVED} are taken")
            }
        }
    }
}

/// The checks of one command, computed once per session.
#[derive(Clone, Copy, Debug)]
struct Rule {
    command: Command,
    /// The error with which the command is always refused.
    refused: Option<NbdError>,
    /// Flags that may be set, and (`must`) flags that must be set.
    may: u16,
    must: u16,
    /// The error for a request beyond the end.
    beyond: NbdError,
    /// Longest request, in bytes.
    max: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionState {
    Header,
    Payload {
        cookie: u64,
        left: u32,
    },
    /// Payload of a request that is refused when all of it has arrived.
    Skip {
        left: u32,
        refusal: Refusal,
    },
    Left,
    Violated(Violation),
}

/// One connection in its transmission phase.
#[derive(Clone, Debug)]
pub struct Session {
    state: SessionState,
    style: ReplyStyle,
    size_bytes: u64,
    /// Minimum block size minus one.
    unaligned: u64,
    rules: [Option<Rule>; 8],
    fast_zero: FastZero,
    shutting_down: bool,
    /// The beginning of a header whose rest has not arrived.
    partial: [u8; EXTENDED_REQUEST_BYTES],
    partial_bytes: u8,
}

impl Session {
    /// Makes the session that follows a handshake.
    pub fn new(negotiated: &Negotiated) -> Session {
        let export = &negotiated.export;
        Session {
            state: SessionState::Header,
            style: negotiated.style,
            size_bytes: export.size_bytes,
            unaligned: u64::from(export.block.min) - 1,
            rules: rules(negotiated),
            fast_zero: export.fast_zero,
            shutting_down: false,
            partial: [0; EXTENDED_REQUEST_BYTES],
            partial_bytes: 0,
        }
    }

    /// Returns the style of its replies.
    #[inline]
    pub const fn style(&self) -> ReplyStyle {
        self.style
    }

    /// Sets the export's size from the next request on. The protocol has no message to notify the client; after a reconnect the client
    /// sees the new size.
    pub fn set_size_bytes(&mut self, size_bytes: u64) {
        self.size_bytes = size_bytes;
    }

    /// Refuses all further requests with [`NbdError::Shutdown`], after which clients must disconnect.
    pub fn shut_down(&mut self) {
        self.shutting_down = true;
    }

    /// Returns how many bytes of the last write's payload have not arrived. The caller may read up to that many bytes directly into the
    /// write's buffer, without the input, and report them by [`Session::payload_received`].
    #[inline]
    pub const fn payload_left(&self) -> u32 {
        match self.state {
            SessionState::Payload { left, .. } => left,
            _ => 0,
        }
    }

    /// Reports that `bytes` of payload were read without the input. The input must be used up before.
    ///
    /// # Panics
    /// If `bytes` is more than [`Session::payload_left`].
    pub fn payload_received(&mut self, bytes: u32) {
        let left = self.payload_left().checked_sub(bytes).expect("payload was read beyond its end");
        if let SessionState::Payload { cookie, .. } = self.state {
            self.state = if left == 0 { SessionState::Header } else { SessionState::Payload { cookie, left } };
        }
    }

    /// Returns the next event of the input. Call until [`Event::NeedMore`], or stop earlier to throttle the client.
    ///
    /// # Errors
    /// The client must be dropped. Further calls return the same error.
    #[inline]
    pub fn next_event<'a>(&mut self, input: &mut BytesIn<'a>) -> Result<Event<'a>, Violation> {
        if self.state != SessionState::Header
            && let Some(event) = self.between(input)?
        {
            return Ok(event);
        }
        let header = if self.style == ReplyStyle::Extended {
            let Some(bytes) = self.header::<EXTENDED_REQUEST_BYTES>(input) else { return Ok(Event::NeedMore) };
            RequestHeader::from_extended(&bytes)
        } else {
            let Some(bytes) = self.header::<REQUEST_BYTES>(input) else { return Ok(Event::NeedMore) };
            RequestHeader::from_compact(&bytes)
        };
        match header {
            Ok(header) => self.request(&header, input),
            Err(magic) => self.violated(Violation::BadMagic(magic)),
        }
    }

    /// Handles any state but [`SessionState::Header`]. Returns `None` if a header is next.
    fn between<'a>(&mut self, input: &mut BytesIn<'a>) -> Result<Option<Event<'a>>, Violation> {
        match self.state {
            SessionState::Header => Ok(None),
            SessionState::Violated(violation) => Err(violation),
            SessionState::Left => Ok(Some(Event::Disconnect)),
            SessionState::Payload { cookie, left } => {
                let bytes = input.take(left as usize);
                if bytes.is_empty() {
                    return Ok(Some(Event::NeedMore));
                }
                self.payload_received(bytes.len() as u32);
                Ok(Some(Event::Payload { cookie, bytes, left: left - bytes.len() as u32 }))
            }
            SessionState::Skip { left, refusal } => Ok(Some(self.skip(left, refusal, input))),
        }
    }

    /// Skips `left` bytes of payload and refuses their request. The refusal comes last, because libnbd ends a connection on a reply to a
    /// request that it has not sent completely.
    fn skip<'a>(&mut self, left: u32, refusal: Refusal, input: &mut BytesIn<'_>) -> Event<'a> {
        let left = left - input.take(left as usize).len() as u32;
        if left > 0 {
            self.state = SessionState::Skip { left, refusal };
            return Event::NeedMore;
        }
        self.state = SessionState::Header;
        Event::Refused(refusal)
    }

    #[cold]
    fn violated<'a>(&mut self, violation: Violation) -> Result<Event<'a>, Violation> {
        self.state = SessionState::Violated(violation);
        Err(violation)
    }

    /// Returns a complete header: from the input if it is there in one piece, otherwise assembled from several.
    #[inline]
    fn header<const N: usize>(&mut self, input: &mut BytesIn<'_>) -> Option<[u8; N]> {
        if self.partial_bytes == 0
            && let Some(header) = input.take_array::<N>()
        {
            return Some(*header);
        }
        self.piece(input)
    }

    #[cold]
    fn piece<const N: usize>(&mut self, input: &mut BytesIn<'_>) -> Option<[u8; N]> {
        const { assert!(N <= EXTENDED_REQUEST_BYTES) };
        let have = usize::from(self.partial_bytes);
        let more = input.take(N - have);
        for (to, from) in self.partial.iter_mut().skip(have).zip(more) {
            *to = *from;
        }
        self.partial_bytes += more.len() as u8;
        if usize::from(self.partial_bytes) < N {
            return None;
        }
        self.partial_bytes = 0;
        self.partial.first_chunk::<N>().copied()
    }

    #[inline]
    fn request<'a>(&mut self, header: &RequestHeader, input: &mut BytesIn<'_>) -> Result<Event<'a>, Violation> {
        if header.kind == command::DISC {
            self.state = SessionState::Left;
            return Ok(Event::Disconnect);
        }
        let has_payload = match self.style {
            ReplyStyle::Extended => header.flags & flag::PAYLOAD_LEN != 0,
            _ => header.kind == command::WRITE,
        };
        let payload = if has_payload { header.length } else { 0 };
        if payload > u64::from(MAX_SERVED) {
            return self.violated(Violation::PayloadTooLong(payload));
        }
        let left = payload as u32;
        match self.check(header) {
            Ok(command) => {
                if left > 0 {
                    self.state = SessionState::Payload { cookie: header.cookie, left };
                }
                let RequestHeader { flags, cookie, offset, length, .. } = *header;
                Ok(Event::Request(Request { cookie, offset, length, command, flags }))
            }
            Err(error) => {
                let reply_to = ReplyTo { cookie: header.cookie, offset: header.offset };
                Ok(self.skip(left, Refusal { reply_to, kind: header.kind, error }, input))
            }
        }
    }

    #[inline]
    fn check(&self, header: &RequestHeader) -> Result<Command, NbdError> {
        if self.shutting_down {
            return Err(NbdError::Shutdown);
        }
        let rule = self.rules.get(usize::from(header.kind)).and_then(Option::as_ref).ok_or(NbdError::Inval)?;
        if let Some(error) = rule.refused {
            return Err(error);
        }
        if header.flags & !rule.may != 0 || header.flags & rule.must != rule.must {
            return Err(NbdError::Inval);
        }
        if rule.command == Command::Flush {
            let reserved = header.offset | header.length;
            return if reserved == 0 { Ok(Command::Flush) } else { Err(NbdError::Inval) };
        }
        // The specification does not define a length of 0, so it is refused.
        if header.length == 0 {
            return Err(NbdError::Inval);
        }
        if header.offset.checked_add(header.length).is_none_or(|end| end > self.size_bytes) {
            return Err(rule.beyond);
        }
        if (header.offset | header.length) & self.unaligned != 0 {
            return Err(NbdError::Inval);
        }
        if header.length > rule.max {
            let unfragmented = header.flags & flag::DF != 0;
            return Err(if unfragmented { NbdError::Overflow } else { NbdError::Inval });
        }
        if header.flags & flag::FAST_ZERO != 0 && self.fast_zero == FastZero::Refused {
            return Err(NbdError::NotSup);
        }
        Ok(rule.command)
    }
}

/// Returns the rules for what was negotiated, by request type. DISC has none, because it is not checked.
fn rules(negotiated: &Negotiated) -> [Option<Rule>; 8] {
    let export = &negotiated.export;
    let chunks = negotiated.style != ReplyStyle::Simple;
    let fua = if export.fua { flag::FUA } else { 0 };
    let fast = if export.fast_zero == FastZero::NotOffered { 0 } else { flag::FAST_ZERO };
    let payload = if negotiated.style == ReplyStyle::Extended { flag::PAYLOAD_LEN } else { 0 };
    let df = if chunks { flag::DF } else { 0 };
    let offered = |yes: bool| if yes { None } else { Some(NbdError::Inval) };
    // On a read-only export all commands that write fail with `NBD_EPERM`, whether they are offered or not.
    let writes = |yes: bool| if export.read_only { Some(NbdError::Perm) } else { offered(yes) };
    let max = u64::from(export.block.max);
    let rule = |command, refused, more: u16, max| {
        Some(Rule { command, refused, may: fua | more, must: 0, beyond: NbdError::Inval, max })
    };
    let full = |rule: Option<Rule>, must| rule.map(|r| Rule { must, beyond: NbdError::NoSpc, ..r });
    [
        rule(Command::Read, None, df, max),
        full(rule(Command::Write, writes(true), payload, max), payload),
        None,
        rule(Command::Flush, offered(export.flush), 0, u64::MAX),
        rule(Command::Trim, writes(export.trim), 0, u64::MAX),
        rule(Command::Cache, offered(export.cache), 0, u64::MAX),
        full(rule(Command::WriteZeroes, writes(export.write_zeroes), flag::NO_HOLE | fast, u64::MAX), 0),
        rule(Command::BlockStatus, offered(chunks && negotiated.base_allocation), flag::REQ_ONE, u64::MAX),
    ]
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
