// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Messages of `/dev/fuse`: numbers, layouts, parsing of requests, encoding of replies.
//!
//! Guarantees: no I/O, no allocation, no panic whatever the bytes are. A request is accepted only if its length matches its header and its
//! body has all the fields that its operation needs. A newer kernel may send a longer body, whose unknown fields are ignored. Does not do:
//! check ranges against a disk (`session`).
//!
//! Source: Linux include/uapi/linux/fuse.h, protocol 7.31 to 7.45; numbers are in the machine's byte order.

/// Major version of the protocol, the only one that is supported.
pub const MAJOR: u32 = 7;
/// Oldest minor version that is served: that of Linux 5.4.
pub const OLDEST_MINOR: u32 = 31;
/// Newest minor version that is supported.
pub const NEWEST_MINOR: u32 = 38;
/// The only inode: the disk.
pub const ROOT: u64 = 1;
/// Bytes of a request's header.
pub const IN_HEADER: usize = 40;
/// Bytes of a write's header and its fields; its data follows.
pub const WRITE_HEAD: usize = IN_HEADER + 40;
/// Bytes of a reply's header.
pub const OUT_HEADER: usize = 16;
/// Maximum data of one read or write.
pub const MAX_DATA: usize = 1 << 20;
/// Longest known request that is not a write.
pub const MAX_HEAD: usize = 256;
/// Longest body of a reply that is not data.
pub const MAX_BODY: usize = 104;

/// Operations.
#[allow(missing_docs, reason = "the names of fuse.h")]
pub mod opcode {
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const ACCESS: u32 = 34;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const LSEEK: u32 = 46;
}

/// Flags of INIT; those above bit 31 are in its second word.
#[allow(missing_docs, reason = "the names of fuse.h")]
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
}

/// Flags of the reply to OPEN.
#[allow(missing_docs, reason = "the names of fuse.h")]
pub mod fopen {
    pub const DIRECT_IO: u32 = 1 << 0;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// `fuse_setattr_in.valid`.
#[allow(missing_docs, reason = "the names of fuse.h")]
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
}

/// `fuse_write_in.write_flags`: the write comes from the page cache, of any process.
pub const WRITE_CACHE: u32 = 1 << 0;
/// Code of a notification, in the place of a reply's error: cached attributes of an inode are out of date.
const NOTIFY_INVAL_INODE: i32 = 2;

/// The header of every request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Which operation.
    pub opcode: u32,
    /// The request's number, which its reply repeats.
    pub unique: u64,
    /// Which inode.
    pub node: u64,
}

/// A parsed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of fuse.h")]
pub enum Request {
    Init(InitIn),
    GetAttr,
    SetAttr {
        valid: u32,
        size: u64,
        mode: u32,
        uid: u32,
        gid: u32,
    },
    Open {
        flags: u32,
    },
    /// `size` is at most [`MAX_DATA`].
    Read {
        offset: u64,
        size: u32,
    },
    /// `size` is at most [`MAX_DATA`], and as many bytes came with the request. `flags` are those of the open file and of the single call.
    Write {
        offset: u64,
        size: u32,
        write_flags: u32,
        flags: u32,
    },
    StatFs,
    Release,
    Fsync,
    Flush,
    Fallocate {
        offset: u64,
        length: u64,
        mode: u32,
    },
    /// `whence` is as in lseek(2). A negative offset reads as one beyond any file.
    Seek {
        offset: u64,
        whence: u32,
    },
    Access,
    Destroy,
    /// No answer is expected.
    Silent,
    /// An operation that is not served: INTERRUPT, and everything that does not apply to a single file.
    Unknown,
}

/// The version and features that the kernel offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of fuse.h")]
pub struct InitIn {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: u64,
}

/// Why bytes are no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The header is incomplete, so no answer is possible.
    NoHeader,
    /// The header is complete. The rest is cut short, longer than the header says, or its data exceeds [`MAX_DATA`].
    Body(Header),
}

/// Reads fields one after the other.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }

    fn skip(&mut self, bytes: usize) -> Option<()> {
        self.0 = self.0.get(bytes..)?;
        Some(())
    }
}

/// Whether a message that begins so is a write.
#[inline]
pub fn is_write(head: &[u8]) -> bool {
    head.get(4..8).is_some_and(|operation| operation == opcode::WRITE.to_ne_bytes())
}

/// Parses a request of `total` bytes. `head` is the whole request, or at least its first [`MAX_HEAD`] bytes; for a write [`WRITE_HEAD`]
/// are enough.
///
/// # Errors
/// The bytes are not a valid request.
#[inline]
pub fn parse(head: &[u8], total: usize) -> Result<(Header, Request), Malformed> {
    let mut fields = Fields(head);
    let (header, said) = header(&mut fields).ok_or(Malformed::NoHeader)?;
    let body = Malformed::Body(header);
    if said as usize != total || head.len() > total {
        return Err(body);
    }
    let request = request(header, &mut fields).ok_or(body)?;
    match request {
        Request::Write { size, .. } if size as usize > MAX_DATA || WRITE_HEAD + size as usize != total => Err(body),
        Request::Read { size, .. } if size as usize > MAX_DATA => Err(body),
        request => Ok((header, request)),
    }
}

fn header(f: &mut Fields<'_>) -> Option<(Header, u32)> {
    let said = f.u32()?;
    let header = Header { opcode: f.u32()?, unique: f.u64()?, node: f.u64()? };
    // User, group, process, and the length of extensions, which INIT did not ask for.
    f.skip(16)?;
    Some((header, said))
}

#[inline]
fn request(header: Header, f: &mut Fields<'_>) -> Option<Request> {
    Some(match header.opcode {
        opcode::READ => {
            f.skip(8)?;
            let (offset, size) = (f.u64()?, f.u32()?);
            f.skip(20)?;
            Request::Read { offset, size }
        }
        opcode::WRITE => {
            f.skip(8)?;
            let (offset, size, write_flags) = (f.u64()?, f.u32()?, f.u32()?);
            f.skip(8)?;
            let flags = f.u32()?;
            f.skip(4)?;
            Request::Write { offset, size, write_flags, flags }
        }
        opcode::GETATTR => Request::GetAttr,
        opcode::SETATTR => {
            let valid = f.u32()?;
            f.skip(12)?;
            let size = f.u64()?;
            f.skip(44)?;
            let mode = f.u32()?;
            f.skip(4)?;
            let (uid, gid) = (f.u32()?, f.u32()?);
            f.skip(4)?;
            Request::SetAttr { valid, size, mode, uid, gid }
        }
        opcode::OPEN => {
            let flags = f.u32()?;
            f.skip(4)?;
            Request::Open { flags }
        }
        opcode::FALLOCATE => {
            f.skip(8)?;
            let (offset, length, mode) = (f.u64()?, f.u64()?, f.u32()?);
            f.skip(4)?;
            Request::Fallocate { offset, length, mode }
        }
        opcode::LSEEK => {
            f.skip(8)?;
            let (offset, whence) = (f.u64()?, f.u32()?);
            f.skip(4)?;
            Request::Seek { offset, whence }
        }
        opcode::INIT => {
            let (major, minor, max_readahead, low) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
            // Before 7.36 there is no second word of flags.
            let high = if u64::from(low) & init::INIT_EXT != 0 { f.u32()? } else { 0 };
            Request::Init(InitIn { major, minor, max_readahead, flags: u64::from(high) << 32 | u64::from(low) })
        }
        opcode::STATFS => Request::StatFs,
        opcode::RELEASE => Request::Release,
        opcode::FSYNC => Request::Fsync,
        opcode::FLUSH => Request::Flush,
        opcode::ACCESS => Request::Access,
        opcode::DESTROY => Request::Destroy,
        opcode::FORGET | opcode::BATCH_FORGET | opcode::NOTIFY_REPLY => Request::Silent,
        _ => Request::Unknown,
    })
}

/// Returns the header of a reply with a body of `body` bytes; `error` is 0 or an errno.
#[inline]
pub fn out_header(unique: u64, error: i32, body: usize) -> [u8; OUT_HEADER] {
    let mut out = [0; OUT_HEADER];
    out[..4].copy_from_slice(&((OUT_HEADER + body) as u32).to_ne_bytes());
    out[4..8].copy_from_slice(&(-error).to_ne_bytes());
    out[8..].copy_from_slice(&unique.to_ne_bytes());
    out
}

/// The body of a reply that is not data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Body {
    bytes: [u8; MAX_BODY],
    len: usize,
}

impl Body {
    /// A body without bytes.
    pub const EMPTY: Body = Body { bytes: [0; MAX_BODY], len: 0 };

    /// Returns the body's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn put<const N: usize>(mut self, field: [u8; N]) -> Body {
        self.bytes[self.len..self.len + N].copy_from_slice(&field);
        self.len += N;
        self
    }

    fn u16s(self, fields: &[u16]) -> Body {
        fields.iter().fold(self, |body, f| body.put(f.to_ne_bytes()))
    }

    fn u32s(self, fields: &[u32]) -> Body {
        fields.iter().fold(self, |body, f| body.put(f.to_ne_bytes()))
    }

    fn u64s(self, fields: &[u64]) -> Body {
        fields.iter().fold(self, |body, f| body.put(f.to_ne_bytes()))
    }
}

/// Attributes of the only file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    /// Bytes.
    pub size: u64,
    /// Bytes that are stored, without holes.
    pub stored: u64,
    /// All times of the file, in seconds since 1970.
    pub time: u64,
    /// Kind and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Preferred size of a read or write, in bytes.
    pub block: u32,
}

/// Encodes the reply to GETATTR and SETATTR. The kernel may cache it for one second.
pub fn attr_out(attr: &Attr) -> Body {
    let Attr { size, stored, time, mode, uid, gid, block } = *attr;
    let times = [time, time, time];
    let body = Body::EMPTY.u64s(&[1]).u32s(&[0, 0]).u64s(&[ROOT, size, stored.div_ceil(512)]).u64s(&times);
    body.u32s(&[0, 0, 0, mode, 1, uid, gid, 0, block, 0])
}

/// Encodes the reply to OPEN; `flags` are those of [`fopen`].
pub fn open_out(flags: u32) -> Body {
    Body::EMPTY.u64s(&[0]).u32s(&[flags, 0])
}

/// Encodes the reply to WRITE: the number of bytes written.
#[inline]
pub fn write_out(size: u32) -> Body {
    Body::EMPTY.u32s(&[size, 0])
}

/// Encodes the reply to LSEEK: the offset that was found.
pub fn lseek_out(offset: u64) -> Body {
    Body::EMPTY.u64s(&[offset])
}

/// Encodes the reply to STATFS: a full file system with one file.
pub fn statfs_out(size: u64, block: u32) -> Body {
    let body = Body::EMPTY.u64s(&[size / u64::from(block.max(1)), 0, 0, 1, 0]);
    body.u32s(&[block, 255, block, 0, 0, 0, 0, 0, 0, 0])
}

/// The reply to INIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitOut {
    /// Minor version, as negotiated.
    pub minor: u32,
    /// Bytes.
    pub max_readahead: u32,
    /// Flags of [`init`]; only flags that the kernel offered.
    pub flags: u64,
    /// Maximum number of background requests (read-ahead, asynchronous I/O) in flight.
    pub max_background: u16,
}

impl InitOut {
    /// Returns the body's bytes.
    pub fn body(&self) -> Body {
        let InitOut { minor, max_readahead, flags, max_background } = *self;
        let body = Body::EMPTY.u32s(&[MAJOR, minor, max_readahead, flags as u32]);
        let body = body.u16s(&[max_background, (u32::from(max_background) * 3 / 4) as u16]);
        let body = body.u32s(&[MAX_DATA as u32, 1]).u16s(&[(MAX_DATA / 4096) as u16, 0]);
        body.u32s(&[(flags >> 32) as u32, 0, 0, 0, 0, 0, 0, 0])
    }
}

/// Returns a notification that makes the kernel fetch the size and owner again.
pub fn notify_attr() -> [u8; OUT_HEADER + 24] {
    let mut out = [0; OUT_HEADER + 24];
    out[..OUT_HEADER].copy_from_slice(&out_header(0, -NOTIFY_INVAL_INODE, 24));
    out[16..24].copy_from_slice(&ROOT.to_ne_bytes());
    // A negative offset leaves cached data alone.
    out[24..32].copy_from_slice(&(-1i64).to_ne_bytes());
    out
}
