// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replies of the transmission phase.
//!
//! Guarantees: each function writes one complete reply, or the part before a content chunk's data, in the negotiated [`ReplyStyle`]. The
//! reply goes into a [`HeadBuf`] of the caller, so that one `writev` sends head and data. Block status and errors with a message are
//! appended to a vector. Heads allocate nothing.
//!
//! Needs from callers: they send one final reply per request, and content chunks that lie within the request and do not overlap.
//! [`ReplyHead`] is the other direction, for clients.
//!
//! Source: the NBD protocol, sections "Simple reply message", "Structured reply chunk message", "Extended reply chunk
//! message", "Structured reply types", "Error values".

use blk::status::BlkStatus;

use super::session::{Command, Request};
use crate::nbd::wire::{
    BASE_ALLOCATION_ID, BytesIn, EXTENDED_REPLY_BYTES, EXTENDED_REPLY_MAGIC, MAX_STRING, NbdError, ReplyStyle,
    SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_BYTES, STRUCTURED_REPLY_MAGIC, chunk, set,
};

/// Size of a buffer that any head fits into: one cache line.
pub const HEAD_BYTES: usize = 64;
/// Where a head is written to.
pub type HeadBuf = [u8; HEAD_BYTES];
/// Maximum number of extents of one block status reply; the client asks again for what follows the last.
pub const MAX_EXTENTS: usize = 4096;

/// The parts of a request that its reply repeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplyTo {
    /// The request's cookie.
    pub cookie: u64,
    /// The request's offset; extended replies repeat it.
    pub offset: u64,
}

/// A range of an export with one state ([`crate::nbd::wire::extent_flag`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes, at least 1.
    pub length: u64,
    /// Flags of `base:allocation`.
    pub flags: u32,
}

/// Returns the error for an I/O's status; `None` for success.
///
/// `NBD_ENOTSUP` is for fast zeroes alone, so anything else that a disk does not support is `NBD_EINVAL`. A status without a number in the
/// protocol is `NBD_EIO`. So is a disk that is gone, because `NBD_ESHUTDOWN` would mean that the server shuts down.
pub fn error_of(status: BlkStatus, request: &Request) -> Option<NbdError> {
    let fast_zero = request.command == Command::WriteZeroes && request.fast_zero();
    Some(match status {
        BlkStatus::Ok => return None,
        BlkStatus::NotSupp if fast_zero => NbdError::NotSup,
        BlkStatus::NotSupp | BlkStatus::Inval => NbdError::Inval,
        BlkStatus::NoSpc => NbdError::NoSpc,
        BlkStatus::Resource => NbdError::NoMem,
        BlkStatus::Timeout
        | BlkStatus::Transport
        | BlkStatus::Target
        | BlkStatus::ResvConflict
        | BlkStatus::Medium
        | BlkStatus::Protection
        | BlkStatus::IoErr
        | BlkStatus::Again
        | BlkStatus::DevResource
        | BlkStatus::Offline
        | BlkStatus::DurationLimit => NbdError::Io,
    })
}

impl ReplyStyle {
    /// Writes the reply of a request that succeeded, for anything but a read. Returns how many bytes of `to` are the reply. Under
    /// structured replies it is a simple reply, which is allowed and shorter.
    #[inline]
    pub fn success(self, reply_to: ReplyTo, to: &mut HeadBuf) -> usize {
        match self {
            ReplyStyle::Simple | ReplyStyle::Structured => simple(reply_to, 0, to),
            ReplyStyle::Extended => self.chunk(reply_to, chunk::NONE, true, 0, to),
        }
    }

    /// Writes the end of a reply whose chunks were all sent without `done`. Not for simple replies, which have no chunks. Returns how many
    /// bytes of `to` are the reply.
    #[inline]
    pub fn end(self, reply_to: ReplyTo, to: &mut HeadBuf) -> usize {
        self.chunk(reply_to, chunk::NONE, true, 0, to)
    }

    /// Writes an error for the whole request; the client discards chunks that were sent before. Returns how many bytes of `to` are the
    /// reply.
    #[inline]
    pub fn error(self, reply_to: ReplyTo, error: NbdError, to: &mut HeadBuf) -> usize {
        if self == ReplyStyle::Simple {
            return simple(reply_to, error.code(), to);
        }
        let at = self.chunk(reply_to, chunk::ERROR, true, 6, to);
        let at = put(to, at, error.code().to_be_bytes());
        put(to, at, [0; 2])
    }

    /// Writes an error for a read at the offset `place` within it; chunks for other offsets stay valid. Under simple replies the whole
    /// request fails. Returns how many bytes of `to` are the reply.
    pub fn error_at(self, reply_to: ReplyTo, error: NbdError, place: u64, done: bool, to: &mut HeadBuf) -> usize {
        if self == ReplyStyle::Simple {
            return simple(reply_to, error.code(), to);
        }
        let at = self.chunk(reply_to, chunk::ERROR_OFFSET, done, 14, to);
        let at = put(to, at, error.code().to_be_bytes());
        let at = put(to, at, [0; 2]);
        put(to, at, place.to_be_bytes())
    }

    /// Appends an error for the whole request to `to`, with a message for the client's user. The message is cut after 4096 bytes; simple
    /// replies omit it.
    pub fn error_with_message(self, reply_to: ReplyTo, error: NbdError, message: &str, to: &mut Vec<u8>) {
        let mut head = [0; HEAD_BYTES];
        if self == ReplyStyle::Simple {
            let bytes = simple(reply_to, error.code(), &mut head);
            to.extend(head.iter().take(bytes));
            return;
        }
        let text = message.get(..message.floor_char_boundary(MAX_STRING)).unwrap_or_default();
        let bytes = self.chunk(reply_to, chunk::ERROR, true, 6 + text.len() as u32, &mut head);
        to.extend(head.iter().take(bytes));
        to.extend_from_slice(&error.code().to_be_bytes());
        to.extend_from_slice(&(text.len() as u16).to_be_bytes());
        to.extend_from_slice(text.as_bytes());
    }

    /// Writes the head of a chunk with `length` bytes of a read's data from `offset` on. `done` marks the last chunk. Returns how many
    /// bytes of `to` are the head; the data follows.
    ///
    /// # Panics
    /// Under simple replies, unless the chunk is the whole read.
    #[inline]
    pub fn data(self, reply_to: ReplyTo, offset: u64, length: u32, done: bool, to: &mut HeadBuf) -> usize {
        if self == ReplyStyle::Simple {
            assert!(done && offset == reply_to.offset, "a simple reply has all the data of its read");
            return simple(reply_to, 0, to);
        }
        assert!(length > 0 && length <= u32::MAX - 8, "a content chunk of {length} bytes");
        let at = self.chunk(reply_to, chunk::OFFSET_DATA, done, 8 + length, to);
        put(to, at, offset.to_be_bytes())
    }

    /// Writes a chunk that stands for `length` zeroes of a read at `offset`. Not for [`Request::unfragmented`] reads that also have data.
    /// Returns how many bytes of `to` are the reply.
    ///
    /// # Panics
    /// Under simple replies, which have no holes.
    #[inline]
    pub fn hole(self, reply_to: ReplyTo, offset: u64, length: u32, done: bool, to: &mut HeadBuf) -> usize {
        assert!(length > 0, "a hole of no bytes");
        let at = self.chunk(reply_to, chunk::OFFSET_HOLE, done, 12, to);
        let at = put(to, at, offset.to_be_bytes());
        put(to, at, length.to_be_bytes())
    }

    /// Appends the complete reply to a block status request to `to`. `extents` are in order from the request's offset, each a multiple of
    /// the export's minimum block size. Adjacent extents of one state are merged, and the last is cut at the request's end. After
    /// [`MAX_EXTENTS`] extents (or one, if the client wants one) the iterator is not read further; the client asks again for the rest.
    /// Without extents the whole range is reported as allocated data, which is always safe.
    ///
    /// # Panics
    /// Under simple replies, where block status is not negotiated.
    pub fn block_status(self, request: &Request, extents: impl IntoIterator<Item = Extent>, to: &mut Vec<u8>) {
        let start = to.len();
        let mut head = [0; HEAD_BYTES];
        // The length is filled in at the end.
        let head_bytes = self.chunk(request.reply_to(), self.status_kind(), true, 0, &mut head);
        to.extend(head.iter().take(head_bytes));
        to.extend_from_slice(&BASE_ALLOCATION_ID.to_be_bytes());
        if self == ReplyStyle::Extended {
            to.extend_from_slice(&[0; 4]);
        }
        let count = self.put_extents(request, extents, to);
        let payload = (to.len() - start - head_bytes) as u32;
        self.chunk(request.reply_to(), self.status_kind(), true, payload, &mut head);
        for (to, from) in to.iter_mut().skip(start).zip(head.iter().take(head_bytes)) {
            *to = *from;
        }
        if self == ReplyStyle::Extended {
            for (to, from) in to.iter_mut().skip(start + head_bytes + 4).zip(count.to_be_bytes()) {
                *to = from;
            }
        }
    }

    const fn status_kind(self) -> u16 {
        match self {
            ReplyStyle::Extended => chunk::BLOCK_STATUS_EXT,
            _ => chunk::BLOCK_STATUS,
        }
    }

    /// Appends the extents. Returns how many it wrote, at least one.
    fn put_extents(self, request: &Request, extents: impl IntoIterator<Item = Extent>, to: &mut Vec<u8>) -> u32 {
        let limit = if request.one_extent() { 1 } else { MAX_EXTENTS as u32 };
        let mut count = 0;
        let mut left = request.length;
        let mut open = Extent { length: 0, flags: 0 };
        for extent in extents {
            let length = extent.length.min(left);
            if open.length > 0 && open.flags != extent.flags {
                self.put_extent(open, to);
                count += 1;
                open.length = 0;
            }
            if count == limit || length == 0 {
                break;
            }
            left -= length;
            open = Extent { length: open.length + length, ..extent };
        }
        if count == 0 && open.length == 0 {
            open.length = request.length;
        }
        if open.length > 0 {
            self.put_extent(open, to);
            count += 1;
        }
        count
    }

    fn put_extent(self, extent: Extent, to: &mut Vec<u8>) {
        if self == ReplyStyle::Extended {
            to.extend_from_slice(&extent.length.to_be_bytes());
            to.extend_from_slice(&[0; 4]);
        } else {
            // Compact requests have lengths of 32 bits, and no extent is longer than its request.
            to.extend_from_slice(&u32::try_from(extent.length).unwrap_or(u32::MAX).to_be_bytes());
        }
        to.extend_from_slice(&extent.flags.to_be_bytes());
    }

    /// Writes the header of a chunk. Returns its length.
    #[inline]
    fn chunk(self, reply_to: ReplyTo, kind: u16, done: bool, payload: u32, to: &mut HeadBuf) -> usize {
        let flags = if done { chunk::DONE } else { 0 };
        set::<4, _, _>(to, flags.to_be_bytes());
        set::<6, _, _>(to, kind.to_be_bytes());
        set::<8, _, _>(to, reply_to.cookie.to_be_bytes());
        match self {
            ReplyStyle::Simple => panic!("simple replies have no chunks"),
            ReplyStyle::Structured => {
                set::<0, _, _>(to, STRUCTURED_REPLY_MAGIC.to_be_bytes());
                set::<16, _, _>(to, payload.to_be_bytes());
                STRUCTURED_REPLY_BYTES
            }
            ReplyStyle::Extended => {
                set::<0, _, _>(to, EXTENDED_REPLY_MAGIC.to_be_bytes());
                set::<16, _, _>(to, reply_to.offset.to_be_bytes());
                set::<24, _, _>(to, u64::from(payload).to_be_bytes());
                EXTENDED_REPLY_BYTES
            }
        }
    }
}

#[inline]
fn simple(reply_to: ReplyTo, error: u32, to: &mut HeadBuf) -> usize {
    set::<0, _, _>(to, SIMPLE_REPLY_MAGIC.to_be_bytes());
    set::<4, _, _>(to, error.to_be_bytes());
    set::<8, _, _>(to, reply_to.cookie.to_be_bytes());
    SIMPLE_REPLY_BYTES
}

/// Writes `bytes` at offset `at`. Returns the offset after them; any head fits into [`HEAD_BYTES`].
#[inline]
fn put<const N: usize>(to: &mut HeadBuf, at: usize, bytes: [u8; N]) -> usize {
    to[at..at + N].copy_from_slice(&bytes);
    at + N
}

/// The header of a reply as a client reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyHead {
    /// A simple reply; the data of a successful read follows.
    Simple {
        /// 0 or an [`NbdError`] code.
        error: u32,
        /// The request's.
        cookie: u64,
    },
    /// A chunk; `length` bytes of payload follow.
    Chunk {
        /// Flags of [`chunk`].
        flags: u16,
        /// A type of [`chunk`].
        kind: u16,
        /// The request's.
        cookie: u64,
        /// The request's, in extended replies.
        offset: Option<u64>,
        /// Of the payload.
        length: u64,
    },
}

impl ReplyHead {
    /// Consumes the header of a reply. If the header has not arrived completely, nothing is consumed.
    ///
    /// # Errors
    /// The bytes do not begin with a known magic; holds what is there instead.
    pub fn take(input: &mut BytesIn<'_>) -> Result<Option<ReplyHead>, u32> {
        let mut ahead = *input;
        let Some(magic) = ahead.u32() else { return Ok(None) };
        let head = match magic {
            SIMPLE_REPLY_MAGIC => ReplyHead::take_simple(&mut ahead),
            STRUCTURED_REPLY_MAGIC => ReplyHead::take_chunk(&mut ahead, false),
            EXTENDED_REPLY_MAGIC => ReplyHead::take_chunk(&mut ahead, true),
            _ => return Err(magic),
        };
        if head.is_some() {
            *input = ahead;
        }
        Ok(head)
    }

    fn take_simple(input: &mut BytesIn<'_>) -> Option<ReplyHead> {
        Some(ReplyHead::Simple { error: input.u32()?, cookie: input.u64()? })
    }

    fn take_chunk(input: &mut BytesIn<'_>, extended: bool) -> Option<ReplyHead> {
        let (flags, kind, cookie) = (input.u16()?, input.u16()?, input.u64()?);
        let offset = if extended { Some(input.u64()?) } else { None };
        let length = if extended { input.u64()? } else { u64::from(input.u32()?) };
        Some(ReplyHead::Chunk { flags, kind, cookie, offset, length })
    }
}

#[cfg(test)]
#[path = "reply_tests.rs"]
mod tests;
