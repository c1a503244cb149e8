// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The numbers and fixed layouts of the NBD protocol, shared by server and client.
//!
//! Guarantees: plain functions from and to byte arrays, big-endian as on the wire, no allocation, no panic whatever the
//! bytes. Limits that the specification leaves to the server are here, too. Does not decide anything: which message may follow
//! which is in [`crate::export::nbd::handshake`] and [`crate::export::nbd::session`].
//!
//! Source: the NBD protocol (doc/proto.md of the reference implementation), sections "Newstyle negotiation", "Request
//! message", "Structured reply chunk message", "Extended reply chunk message" and "Values".

/// First magic of the server's greeting, `NBDMAGIC`.
pub const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second magic of the greeting and first word of each option, `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// First word of each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First word of a compact request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First word of an extended request.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// First word of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First word of a structured reply chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// First word of an extended reply chunk.
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Bytes of a compact request's header.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of an extended request's header.
pub const EXTENDED_REQUEST_BYTES: usize = 32;
/// Bytes of an option's header.
pub const OPTION_BYTES: usize = 16;
/// Bytes of a simple reply.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Bytes of a structured chunk's header.
pub const STRUCTURED_REPLY_BYTES: usize = 20;
/// Bytes of an extended chunk's header.
pub const EXTENDED_REPLY_BYTES: usize = 32;

/// Longest payload of one request or one content chunk: what clients may take for granted ("Block size constraints").
pub const MAX_PAYLOAD: u32 = 32 << 20;
/// Longest payload that the server takes from clients that ask for its limits: nbdkit's, and that of libnbd's clients.
pub const MAX_SERVED: u32 = 64 << 20;
/// Longest string: export names, descriptions, queries, error messages ("Conventions").
pub const MAX_STRING: usize = 4096;
/// Longest option data that is read; longer data is skipped and answered with `NBD_REP_ERR_TOO_BIG`.
pub const MAX_OPTION_DATA: u32 = 32 << 10;
/// What a client may send in all options of one handshake together, headers included.
pub const MAX_HANDSHAKE_BYTES: u64 = 4 << 20;
/// How many options a client may send in one handshake.
pub const MAX_OPTIONS: u32 = 4096;
/// Bytes of zeroes behind the answer to `NBD_OPT_EXPORT_NAME`, unless both sides agreed to leave them out.
pub const EXPORT_NAME_PADDING: usize = 124;

/// Handshake flags (server) and client flags: the two have the same bits.
pub mod handshake_flag {
    /// Fixed newstyle negotiation.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// No 124 zeroes behind the answer to `NBD_OPT_EXPORT_NAME`.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Transmission flags: what an export can do.
pub mod transmission_flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes fail with `NBD_EPERM`.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `NBD_CMD_FLUSH` is served.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// `NBD_CMD_FLAG_FUA` is served.
    pub const SEND_FUA: u16 = 1 << 3;
    /// A rotational medium.
    pub const ROTATIONAL: u16 = 1 << 4;
    /// `NBD_CMD_TRIM` is served.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `NBD_CMD_WRITE_ZEROES` is served.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// `NBD_CMD_FLAG_DF` is served; only with structured or extended replies.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers what all connections completed.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// `NBD_CMD_CACHE` is served.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// `NBD_CMD_FLAG_FAST_ZERO` is understood.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Option codes.
pub mod opt {
    /// Choose an export; no error can be answered.
    pub const EXPORT_NAME: u32 = 1;
    /// End the session.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Continue under TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Choose an export.
    pub const GO: u32 = 7;
    /// Structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List metadata contexts of an export.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose metadata contexts for an export.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Extended requests and replies.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Types of replies to options.
pub mod rep {
    /// Done.
    pub const ACK: u32 = 1;
    /// An export of the list.
    pub const SERVER: u32 = 2;
    /// An item about an export.
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The bit that all errors have.
    pub const ERROR: u32 = 1 << 31;
    /// Unknown option.
    pub const ERR_UNSUP: u32 = ERROR | 1;
    /// Forbidden by the server's configuration.
    pub const ERR_POLICY: u32 = ERROR | 2;
    /// Malformed, or not at this time.
    pub const ERR_INVALID: u32 = ERROR | 3;
    /// Only under TLS.
    pub const ERR_TLS_REQD: u32 = ERROR | 5;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = ERROR | 6;
    /// The server is shutting down.
    pub const ERR_SHUTDOWN: u32 = ERROR | 7;
    /// Only for clients that ask for the block sizes.
    pub const ERR_BLOCK_SIZE_REQD: u32 = ERROR | 8;
    /// The option's data is too long.
    pub const ERR_TOO_BIG: u32 = ERROR | 9;
    /// Extended headers were negotiated and cannot be given back.
    pub const ERR_EXT_HEADER_REQD: u32 = ERROR | 10;
}

/// Items of `NBD_REP_INFO`.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The export's name.
    pub const NAME: u16 = 1;
    /// The export's description.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum, preferred and maximum block size.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Flags of a request.
pub mod command_flag {
    /// Reply only when what was written is on stable storage.
    pub const FUA: u16 = 1 << 0;
    /// Write zeroes without making a hole.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Answer a read in one piece.
    pub const DF: u16 = 1 << 2;
    /// One extent is enough.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fail a write of zeroes that is not faster than a write.
    pub const FAST_ZERO: u16 = 1 << 4;
    /// `length` is that of a payload behind the header (extended requests only).
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Request types.
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write; the data follows the header.
    pub const WRITE: u16 = 1;
    /// The client leaves.
    pub const DISC: u16 = 2;
    /// Make completed writes stable.
    pub const FLUSH: u16 = 3;
    /// Data is no longer needed.
    pub const TRIM: u16 = 4;
    /// Data will be needed.
    pub const CACHE: u16 = 5;
    /// Write zeroes without sending them.
    pub const WRITE_ZEROES: u16 = 6;
    /// Ask for extents.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Types of reply chunks, and their flag.
pub mod chunk {
    /// Flag: the last chunk of its reply.
    pub const DONE: u16 = 1 << 0;
    /// Nothing more.
    pub const NONE: u16 = 0;
    /// Data at an offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Zeroes at an offset.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents of 32 bits.
    pub const BLOCK_STATUS: u16 = 5;
    /// Extents of 64 bits (extended replies only).
    pub const BLOCK_STATUS_EXT: u16 = 6;
    /// An error of the whole request.
    pub const ERROR: u16 = 1 << 15 | 1;
    /// An error at an offset.
    pub const ERROR_OFFSET: u16 = 1 << 15 | 2;
}

/// Flags of an extent of `base:allocation`.
pub mod extent_flag {
    /// Not allocated.
    pub const HOLE: u32 = 1 << 0;
    /// Reads as zeroes.
    pub const ZERO: u32 = 1 << 1;
}

/// The one metadata context that is served.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// Its number in replies to `NBD_OPT_SET_META_CONTEXT` and in status chunks.
pub const BASE_ALLOCATION_ID: u32 = 1;

/// The error numbers that the protocol allows in replies ("Error values").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum NbdError {
    /// A write on a read-only export.
    Perm = 1,
    /// The I/O failed.
    Io = 5,
    /// The server lacks memory.
    NoMem = 12,
    /// The request is malformed, unknown, not offered, unaligned or out of range.
    Inval = 22,
    /// A write past the end, or the disk is full.
    NoSpc = 28,
    /// An unfragmented read is too long for one chunk.
    Overflow = 75,
    /// A fast zero would not be fast.
    NotSup = 95,
    /// The server is shutting down.
    Shutdown = 108,
}

impl NbdError {
    /// All of them.
    pub const ALL: [NbdError; 8] = [
        NbdError::Perm,
        NbdError::Io,
        NbdError::NoMem,
        NbdError::Inval,
        NbdError::NoSpc,
        NbdError::Overflow,
        NbdError::NotSup,
        NbdError::Shutdown,
    ];

    /// The number on the wire.
    #[inline]
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// The error a client read from the wire; unknown ones count as `NBD_EINVAL`, as the specification wants.
    pub fn from_code(code: u32) -> NbdError {
        NbdError::ALL.into_iter().find(|e| e.code() == code).unwrap_or(NbdError::Inval)
    }
}

/// Which replies the client negotiated; [`ReplyStyle::Extended`] means extended requests as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplyStyle {
    /// Simple replies.
    #[default]
    Simple,
    /// Structured replies (simple ones where there is only success to report).
    Structured,
    /// Extended headers in both directions.
    Extended,
}

/// A window on received bytes that is consumed from its front.
#[derive(Clone, Copy, Debug)]
pub struct BytesIn<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> BytesIn<'a> {
    /// A window on all of `bytes`.
    #[inline]
    pub const fn new(bytes: &'a [u8]) -> BytesIn<'a> {
        BytesIn { bytes, at: 0 }
    }

    /// What is not consumed yet.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// Whether everything is consumed.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// How many bytes are consumed, that is where in the caller's buffer the window begins.
    #[inline]
    pub const fn position(&self) -> usize {
        self.at
    }

    /// Consumes `n` bytes, or all there are if they are fewer.
    #[inline]
    pub fn take(&mut self, n: usize) -> &'a [u8] {
        let rest = self.rest();
        let taken = rest.get(..n).unwrap_or(rest);
        self.at += taken.len();
        taken
    }

    /// Consumes exactly `N` bytes, or none.
    #[inline]
    pub fn take_array<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let taken = self.rest().first_chunk::<N>()?;
        self.at += N;
        Some(taken)
    }

    /// Consumes a big-endian u16, or nothing.
    pub fn u16(&mut self) -> Option<u16> {
        self.take_array().map(|b| u16::from_be_bytes(*b))
    }

    /// Consumes a big-endian u32, or nothing.
    pub fn u32(&mut self) -> Option<u32> {
        self.take_array().map(|b| u32::from_be_bytes(*b))
    }

    /// Consumes a big-endian u64, or nothing.
    pub fn u64(&mut self) -> Option<u64> {
        self.take_array().map(|b| u64::from_be_bytes(*b))
    }

    /// Consumes exactly `n` bytes, or none.
    pub fn take_exact(&mut self, n: usize) -> Option<&'a [u8]> {
        (self.rest().len() >= n).then(|| self.take(n))
    }
}

/// `N` bytes at a place that the compiler checks.
#[inline]
pub(crate) fn field<const AT: usize, const N: usize, const LEN: usize>(bytes: &[u8; LEN]) -> [u8; N] {
    const { assert!(AT + N <= LEN) };
    std::array::from_fn(|i| bytes[AT + i])
}

/// Writes `N` bytes at a place that the compiler checks.
#[inline]
pub(crate) fn set<const AT: usize, const N: usize, const LEN: usize>(bytes: &mut [u8; LEN], value: [u8; N]) {
    const { assert!(AT + N <= LEN) };
    bytes[AT..AT + N].copy_from_slice(&value);
}

/// The header of a request, compact or extended; nothing in it is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// [`command_flag`] bits.
    pub flags: u16,
    /// A [`command`].
    pub kind: u16,
    /// The client's name for the request, given back in its replies.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes; 32 bits in a compact header.
    pub length: u64,
}

impl RequestHeader {
    /// Reads a compact header; the magic it has instead, if it is not one.
    #[inline]
    pub fn from_compact(bytes: &[u8; REQUEST_BYTES]) -> Result<RequestHeader, u32> {
        let magic = u32::from_be_bytes(field::<0, _, _>(bytes));
        if magic != REQUEST_MAGIC {
            return Err(magic);
        }
        Ok(RequestHeader {
            flags: u16::from_be_bytes(field::<4, _, _>(bytes)),
            kind: u16::from_be_bytes(field::<6, _, _>(bytes)),
            cookie: u64::from_be_bytes(field::<8, _, _>(bytes)),
            offset: u64::from_be_bytes(field::<16, _, _>(bytes)),
            length: u64::from(u32::from_be_bytes(field::<24, _, _>(bytes))),
        })
    }

    /// Reads an extended header; the magic it has instead, if it is not one.
    #[inline]
    pub fn from_extended(bytes: &[u8; EXTENDED_REQUEST_BYTES]) -> Result<RequestHeader, u32> {
        let magic = u32::from_be_bytes(field::<0, _, _>(bytes));
        if magic != EXTENDED_REQUEST_MAGIC {
            return Err(magic);
        }
        Ok(RequestHeader {
            flags: u16::from_be_bytes(field::<4, _, _>(bytes)),
            kind: u16::from_be_bytes(field::<6, _, _>(bytes)),
            cookie: u64::from_be_bytes(field::<8, _, _>(bytes)),
            offset: u64::from_be_bytes(field::<16, _, _>(bytes)),
            length: u64::from_be_bytes(field::<24, _, _>(bytes)),
        })
    }

    /// The compact header, for clients. None if the length has more than 32 bits.
    pub fn to_compact(self) -> Option<[u8; REQUEST_BYTES]> {
        let mut bytes = [0; REQUEST_BYTES];
        self.put_common(&mut bytes, REQUEST_MAGIC);
        set::<24, _, _>(&mut bytes, u32::try_from(self.length).ok()?.to_be_bytes());
        Some(bytes)
    }

    /// The extended header, for clients.
    pub fn to_extended(self) -> [u8; EXTENDED_REQUEST_BYTES] {
        let mut bytes = [0; EXTENDED_REQUEST_BYTES];
        self.put_common(&mut bytes, EXTENDED_REQUEST_MAGIC);
        set::<24, _, _>(&mut bytes, self.length.to_be_bytes());
        bytes
    }

    fn put_common<const LEN: usize>(self, bytes: &mut [u8; LEN], magic: u32) {
        let words = [
            &magic.to_be_bytes()[..],
            &self.flags.to_be_bytes(),
            &self.kind.to_be_bytes(),
            &self.cookie.to_be_bytes(),
            &self.offset.to_be_bytes(),
        ];
        for (to, from) in bytes.iter_mut().zip(words.into_iter().flatten()) {
            *to = *from;
        }
    }
}

/// The header of an option as a client sends it.
pub fn option_header(option: u32, data_bytes: u32) -> [u8; OPTION_BYTES] {
    let mut bytes = [0; OPTION_BYTES];
    set::<0, _, _>(&mut bytes, OPTION_MAGIC.to_be_bytes());
    set::<8, _, _>(&mut bytes, option.to_be_bytes());
    set::<12, _, _>(&mut bytes, data_bytes.to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn request_headers_round_trip(flags: u16, kind: u16, cookie: u64, offset: u64, length: u64) {
            let long = RequestHeader { flags, kind, cookie, offset, length };
            prop_assert_eq!(RequestHeader::from_extended(&long.to_extended()), Ok(long));
            prop_assert_eq!(long.to_compact().is_none(), length > u64::from(u32::MAX));
            let short = RequestHeader { length: length >> 32, ..long };
            prop_assert_eq!(RequestHeader::from_compact(&short.to_compact().unwrap()), Ok(short));
        }
    }

    #[test]
    fn layouts_are_those_of_the_specification() {
        let h = RequestHeader { flags: 0x0102, kind: 0x0304, cookie: 0x05, offset: 0x06, length: 0x07 };
        let mut want = vec![0x25, 0x60, 0x95, 0x13, 1, 2, 3, 4];
        want.extend([0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 7]);
        assert_eq!(h.to_compact().unwrap()[..], want[..]);
        assert_eq!(h.to_extended()[..4], [0x21, 0xe4, 0x1c, 0x71]);
        assert_eq!(RequestHeader::from_extended(&[0; 32]), Err(0));
        assert_eq!(NBD_MAGIC.to_be_bytes(), *b"NBDMAGIC");
        assert_eq!(OPTION_MAGIC.to_be_bytes(), *b"IHAVEOPT");
        assert_eq!(option_header(7, 9)[8..], [0, 0, 0, 7, 0, 0, 0, 9]);
    }

    #[test]
    fn a_window_gives_all_or_nothing() {
        let mut b = BytesIn::new(&[0, 0, 0, 7, 1, 2]);
        assert_eq!((b.u64(), b.u32(), b.position()), (None, Some(7), 4));
        assert_eq!((b.take_exact(3), b.take(3), b.is_empty()), (None, &[1, 2][..], true));
        assert_eq!((b.u16(), b.take(1)), (None, &[][..]));
    }

    #[test]
    fn unknown_errors_count_as_invalid() {
        for e in NbdError::ALL {
            assert_eq!(NbdError::from_code(e.code()), e);
        }
        assert_eq!(NbdError::from_code(4711), NbdError::Inval);
    }
}
