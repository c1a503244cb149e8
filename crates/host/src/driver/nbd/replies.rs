// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parses a server's replies in the transmission phase: received bytes in, data and completions of requests out. No socket,
//! no memory of requests, no clock.
//!
//! Guarantees, whatever a server sends: no panic, and no memory except a bounded list per scattered read. Data is accepted
//! only for a read in flight, inside its range, each byte of it once. A read succeeds only with all of its bytes. A
//! completion is reported once per request that was [`Calls::begin`]-ed. Everything else is a [`Violation`], after which the
//! connection must not be used. The outcome does not depend on how the bytes were split.
//! Needs from callers: bytes that [`Replies::next`] leaves in its window come again in front of the next ones; they are fewer
//! than [`MOST_LEFT`].
//! Source: the NBD protocol, sections "Simple reply message" and "Structured reply chunk message".

use crate::nbd::wire::{
    BytesIn, MAX_STRING, NbdError, ReplyStyle, SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_BYTES,
    STRUCTURED_REPLY_MAGIC, chunk,
};
use std::fmt;

/// Fewer bytes than this are left unread by [`Replies::next`].
pub const MOST_LEFT: usize = STRUCTURED_REPLY_BYTES + 14;
/// Minimum length of a read for which a direct receive into its memory pays off.
pub const LARGE: u32 = 64 << 10;
/// Longest payload of an error chunk: the fixed part of the longest form, and a text.
const MAX_ERROR_BYTES: u32 = 14 + MAX_STRING as u32;
/// Maximum number of pieces of one read that may have arrived while an earlier one is missing.
const MAX_SCATTERED: usize = 64;
/// No request.
const NONE: u64 = 0;

/// Something that a server must not send. The connection is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A reply does not begin with a known magic; holds what is there instead.
    Magic(u32),
    /// A reply to a request that is not in flight.
    Cookie(u64),
    /// A kind of chunk that was not negotiated.
    Chunk(u16),
    /// A chunk's length does not fit its kind.
    Length(u32),
    /// Data outside of the read, or data that was already sent.
    Range,
    /// A read that succeeds without all of its data.
    Missing,
    /// A simple reply to a read although structured replies were negotiated.
    Simple,
    /// A read in more out-of-order pieces than any real server sends.
    Scattered,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Magic(magic) => write!(f, "a reply that begins with {magic:#010x}"),
            Violation::Cookie(cookie) => write!(f, "a reply to request {cookie:#x}, which is not outstanding"),
            Violation::Chunk(kind) => write!(f, "an unsolicited chunk of type {kind}"),
            Violation::Length(bytes) => write!(f, "a chunk of {bytes} bytes, a length that its type does not allow"),
            Violation::Range => f.write_str("data outside of the read, or repeated"),
            Violation::Missing => f.write_str("the end of a read without all of its data"),
            Violation::Simple => f.write_str("a simple reply to a read, with structured replies agreed on"),
            Violation::Scattered => f.write_str("a read in too many scattered pieces"),
        }
    }
}

/// An event in a server's replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyEvent<'a> {
    /// No event: more bytes must be received.
    NeedMore,
    /// Data of the read with this tag, from its byte `at` on.
    Data {
        /// The request's tag.
        tag: u16,
        /// Offset in the request.
        at: u32,
        /// The data.
        bytes: &'a [u8],
    },
    /// A range of the read with this tag is zeroes.
    Zeroes {
        /// The request's tag.
        tag: u16,
        /// Offset in the request.
        at: u32,
        /// Bytes.
        len: u32,
    },
    /// The request with this tag is complete.
    End {
        /// The request's tag.
        tag: u16,
        /// The error, if it failed.
        error: Option<NbdError>,
    },
}

/// Which bytes of a read have arrived: all before `next`, and some ranges after it.
#[derive(Debug, Default)]
struct Coverage {
    next: u32,
    ahead: Vec<(u32, u32)>,
}

impl Coverage {
    fn add(&mut self, at: u32, len: u32) -> Result<(), Violation> {
        let end = at + len;
        if at != self.next {
            let index = self.ahead.partition_point(|(from, _)| *from < at);
            let clear_before = index == 0 || self.ahead[index - 1].1 <= at;
            let clear_behind = self.ahead.get(index).is_none_or(|(from, _)| *from >= end);
            if at < self.next || !clear_before || !clear_behind {
                return Err(Violation::Range);
            }
            if self.ahead.len() == MAX_SCATTERED {
                return Err(Violation::Scattered);
            }
            self.ahead.insert(index, (at, end));
            return Ok(());
        }
        self.next = end;
        let mut joined = 0;
        for (from, to) in &self.ahead {
            if *from > self.next {
                break;
            }
            if *from < self.next {
                return Err(Violation::Range);
            }
            (self.next, joined) = (*to, joined + 1);
        }
        self.ahead.drain(..joined);
        Ok(())
    }

    fn clear(&mut self) {
        self.next = 0;
        self.ahead.clear();
    }
}

/// The state of one tag: a request in flight, or none.
#[derive(Debug, Default)]
struct Call {
    cookie: u64,
    is_read: bool,
    offset: u64,
    len: u32,
    covered: Coverage,
    error: Option<NbdError>,
}

/// The requests in flight, by tag.
#[derive(Debug)]
pub struct Calls {
    calls: Box<[Call]>,
    large_reads: u32,
}

/// Bits of the tag in a cookie; the other bits distinguish uses of a tag.
const TAG_BITS: u32 = 16;

/// Returns the cookie that the server repeats in its answer. `serial` must differ for each use of a tag, and not be 0.
pub fn cookie(tag: u16, serial: u64) -> u64 {
    serial << TAG_BITS | u64::from(tag)
}

impl Calls {
    /// Makes room for tags below `depth`.
    pub fn new(depth: usize) -> Calls {
        Calls { calls: (0..depth).map(|_| Call::default()).collect(), large_reads: 0 }
    }

    /// Puts a request in flight, with the tag of the cookie. Panics when the tag is not below the depth, or in flight
    /// already.
    pub fn begin(&mut self, cookie: u64, is_read: bool, offset: u64, len: u32) {
        let call = &mut self.calls[usize::from(cookie as u16)];
        assert!(call.cookie == NONE, "tag {} sent twice", cookie as u16);
        (call.cookie, call.is_read, call.offset, call.len, call.error) = (cookie, is_read, offset, len, None);
        call.covered.clear();
        self.large_reads += u32::from(is_read && len >= LARGE);
    }

    /// Removes all requests, because they will not be answered.
    pub fn clear(&mut self) {
        self.calls.iter_mut().for_each(|c| c.cookie = NONE);
        self.large_reads = 0;
    }

    /// Whether a read in flight is [`LARGE`].
    pub fn has_large_reads(&self) -> bool {
        self.large_reads > 0
    }

    #[inline]
    fn of(&mut self, cookie: u64) -> Result<(u16, &mut Call), Violation> {
        let tag = cookie as u16;
        match self.calls.get_mut(usize::from(tag)) {
            Some(call) if call.cookie == cookie && cookie != NONE => Ok((tag, call)),
            _ => Err(Violation::Cookie(cookie)),
        }
    }

    #[inline]
    fn end<'a>(&mut self, tag: u16) -> Result<ReplyEvent<'a>, Violation> {
        let call = &mut self.calls[usize::from(tag)];
        if call.is_read && call.error.is_none() && call.covered.next != call.len {
            return Err(Violation::Missing);
        }
        call.cookie = NONE;
        let error = call.error;
        self.large_reads -= u32::from(call.is_read && call.len >= LARGE);
        Ok(ReplyEvent::End { tag, error })
    }
}

/// What the next bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Reply,
    /// Data of a read; with `last` it completes the request.
    Payload {
        tag: u16,
        at: u32,
        left: u32,
        last: bool,
    },
    /// The text of an error, which is skipped.
    Skip {
        tag: u16,
        left: u32,
        last: bool,
    },
    End {
        tag: u16,
    },
}

/// The replies of one connection.
#[derive(Debug)]
pub struct Replies {
    style: ReplyStyle,
    next: Next,
}

impl Replies {
    /// Makes the parser of a connection that negotiated `style`; extended headers are not supported.
    pub fn new(style: ReplyStyle) -> Replies {
        Replies { style, next: Next::Reply }
    }

    /// Returns which data of a read comes next: tag, offset in the request, length. It may be received directly into its
    /// memory and reported by [`Replies::payload_received`] instead.
    pub fn payload_left(&self) -> Option<(u16, u32, u32)> {
        match self.next {
            Next::Payload { tag, at, left, .. } => Some((tag, at, left)),
            _ => None,
        }
    }

    /// Reports that `bytes` bytes of [`Replies::payload_left`] were received directly. Panics if that is more than are left.
    pub fn payload_received(&mut self, bytes: u32) {
        let Next::Payload { tag, at, left, last } = self.next else { panic!("no payload is awaited") };
        assert!(bytes <= left, "{bytes} bytes received of {left}");
        self.next = payload(tag, at + bytes, left - bytes, last);
    }

    /// Returns the next event.
    ///
    /// # Errors
    /// See [`Violation`].
    #[inline]
    pub fn next<'a>(&mut self, input: &mut BytesIn<'a>, calls: &mut Calls) -> Result<ReplyEvent<'a>, Violation> {
        loop {
            match self.next {
                Next::Reply => {
                    if let Some(said) = self.reply(input, calls)? {
                        return Ok(said);
                    }
                }
                Next::Payload { tag, at, left, last } => {
                    let bytes = input.take(left as usize);
                    if bytes.is_empty() {
                        return Ok(ReplyEvent::NeedMore);
                    }
                    let n = bytes.len() as u32;
                    self.next = payload(tag, at + n, left - n, last);
                    return Ok(ReplyEvent::Data { tag, at, bytes });
                }
                Next::Skip { tag, left, last } => {
                    let left = left - input.take(left as usize).len() as u32;
                    if left > 0 {
                        self.next = Next::Skip { tag, left, last };
                        return Ok(ReplyEvent::NeedMore);
                    }
                    self.next = behind(tag, last);
                }
                Next::End { tag } => {
                    self.next = Next::Reply;
                    return calls.end(tag);
                }
            }
        }
    }

    /// Parses the head of a reply. `None`: the head makes no event, and `self.next` says what follows it.
    #[inline]
    fn reply<'a>(&mut self, input: &mut BytesIn<'a>, calls: &mut Calls) -> Result<Option<ReplyEvent<'a>>, Violation> {
        let mut ahead = *input;
        let Some(magic) = ahead.u32() else { return Ok(Some(ReplyEvent::NeedMore)) };
        let said = match (magic, self.style) {
            (SIMPLE_REPLY_MAGIC, _) => self.simple(&mut ahead, calls)?,
            (STRUCTURED_REPLY_MAGIC, ReplyStyle::Structured) => self.structured(&mut ahead, calls)?,
            _ => return Err(Violation::Magic(magic)),
        };
        if !matches!(said, Some(ReplyEvent::NeedMore)) {
            *input = ahead;
        }
        Ok(said)
    }

    #[inline]
    fn simple<'a>(&mut self, input: &mut BytesIn<'a>, calls: &mut Calls) -> Result<Option<ReplyEvent<'a>>, Violation> {
        const { assert!(SIMPLE_REPLY_BYTES == 4 + 4 + 8) };
        let (Some(error), Some(cookie)) = (input.u32(), input.u64()) else { return Ok(Some(ReplyEvent::NeedMore)) };
        let (tag, call) = calls.of(cookie)?;
        call.error = call.error.or((error != 0).then(|| NbdError::from_code(error)));
        self.next = Next::End { tag };
        if call.is_read && error == 0 {
            if self.style != ReplyStyle::Simple {
                return Err(Violation::Simple);
            }
            call.covered.add(0, call.len)?;
            self.next = payload(tag, 0, call.len, true);
        }
        Ok(None)
    }

    fn structured<'a>(
        &mut self,
        input: &mut BytesIn<'a>,
        calls: &mut Calls,
    ) -> Result<Option<ReplyEvent<'a>>, Violation> {
        let (Some(flags), Some(kind), Some(cookie), Some(bytes)) = (input.u16(), input.u16(), input.u64(), input.u32())
        else {
            return Ok(Some(ReplyEvent::NeedMore));
        };
        let last = flags & chunk::DONE != 0;
        let (tag, call) = calls.of(cookie)?;
        match kind {
            chunk::NONE if bytes == 0 && last => self.next = Next::End { tag },
            chunk::OFFSET_DATA if call.is_read => {
                let Some(len) = bytes.checked_sub(8).filter(|n| *n > 0) else { return Err(Violation::Length(bytes)) };
                let Some(offset) = input.u64() else { return Ok(Some(ReplyEvent::NeedMore)) };
                let at = inside(call, offset, len)?;
                call.covered.add(at, len)?;
                self.next = payload(tag, at, len, last);
            }
            chunk::OFFSET_HOLE if call.is_read => {
                if bytes != 12 {
                    return Err(Violation::Length(bytes));
                }
                let (Some(offset), Some(len)) = (input.u64(), input.u32()) else {
                    return Ok(Some(ReplyEvent::NeedMore));
                };
                let at = inside(call, offset, len)?;
                call.covered.add(at, len)?;
                self.next = behind(tag, last);
                return Ok(Some(ReplyEvent::Zeroes { tag, at, len }));
            }
            _ if kind & ERROR_BIT != 0 => {
                if !(6..=MAX_ERROR_BYTES).contains(&bytes) {
                    return Err(Violation::Length(bytes));
                }
                let Some(code) = input.u32() else { return Ok(Some(ReplyEvent::NeedMore)) };
                // An error without a code is still an error.
                let error = if code == 0 { NbdError::Io } else { NbdError::from_code(code) };
                call.error = call.error.or(Some(error));
                self.next = Next::Skip { tag, left: bytes - 4, last };
            }
            // Invalid: with payload, or not marked as the last.
            chunk::NONE => return Err(Violation::Length(bytes)),
            _ => return Err(Violation::Chunk(kind)),
        }
        Ok(None)
    }
}

/// This bit marks error chunks, known or not.
const ERROR_BIT: u16 = 1 << 15;

#[inline]
fn payload(tag: u16, at: u32, left: u32, last: bool) -> Next {
    if left > 0 { Next::Payload { tag, at, left, last } } else { behind(tag, last) }
}

#[inline]
fn behind(tag: u16, last: bool) -> Next {
    if last { Next::End { tag } } else { Next::Reply }
}

/// Returns the offset in the request of a range of the disk.
#[inline]
fn inside(call: &Call, offset: u64, len: u32) -> Result<u32, Violation> {
    let at = offset.checked_sub(call.offset).ok_or(Violation::Range)?;
    let fits = len > 0 && at.checked_add(u64::from(len)).is_some_and(|end| end <= u64::from(call.len));
    if fits { Ok(at as u32) } else { Err(Violation::Range) }
}

#[cfg(test)]
#[path = "replies_tests.rs"]
mod tests;
