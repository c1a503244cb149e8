// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A record of blktrace's binary format, version 7: what the kernel's tracer, blktrace and `blkparse -d` write.
//!
//! Guarantees: strict about the format (magic, version, whole records). Uses no more memory than a payload needs, at most 64 KiB. Does not
//! do: version 8, machines of the other byte order, the meaning of payloads.
//!
//! Source: include/uapi/linux/blktrace_api.h of Linux 6.12.

use std::io::{self, Read};
use thiserror::Error;

/// `BLK_IO_TRACE_MAGIC`, in the upper 24 bits.
const MAGIC: u32 = 0x6561_7400;
const VERSION: u32 = 7;
/// Bytes of a record without its payload.
pub const RECORD_BYTES: usize = 48;
/// `__BLK_TA_CGROUP`: the payload begins with the number of a cgroup.
const TA_CGROUP: u32 = 1 << 8;

/// `BLK_TC_*`: categories, in the upper half of an action.
#[allow(missing_docs, reason = "the kernel's names")]
pub mod category {
    pub const READ: u32 = 1 << 0;
    pub const WRITE: u32 = 1 << 1;
    pub const FLUSH: u32 = 1 << 2;
    pub const SYNC: u32 = 1 << 3;
    pub const QUEUE: u32 = 1 << 4;
    pub const REQUEUE: u32 = 1 << 5;
    pub const ISSUE: u32 = 1 << 6;
    pub const COMPLETE: u32 = 1 << 7;
    pub const FS: u32 = 1 << 8;
    pub const PC: u32 = 1 << 9;
    pub const NOTIFY: u32 = 1 << 10;
    pub const AHEAD: u32 = 1 << 11;
    pub const META: u32 = 1 << 12;
    pub const DISCARD: u32 = 1 << 13;
    pub const FUA: u32 = 1 << 15;
}

/// `__BLK_TA_*`: actions, in the lower half.
#[allow(missing_docs, reason = "the kernel's names")]
pub mod action {
    pub const QUEUE: u32 = 1;
    pub const BACKMERGE: u32 = 2;
    pub const FRONTMERGE: u32 = 3;
    pub const GETRQ: u32 = 4;
    pub const REQUEUE: u32 = 6;
    pub const ISSUE: u32 = 7;
    pub const COMPLETE: u32 = 8;
    pub const PLUG: u32 = 9;
    pub const UNPLUG: u32 = 10;
    pub const INSERT: u32 = 12;
    pub const SPLIT: u32 = 13;
}

/// The operation of an I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordOp {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A discard.
    Trim,
    /// A flush without data.
    Flush,
}

/// One record, in the order of its fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Counts the records of a CPU.
    pub sequence: u32,
    /// Nanoseconds since the trace began.
    pub time_ns: u64,
    /// First sector of 512 bytes.
    pub sector: u64,
    /// Length in bytes.
    pub bytes: u32,
    /// Action and categories.
    pub action: u32,
    /// The process.
    pub pid: u32,
    /// Major number in the upper 12 bits, minor in the lower 20.
    pub device: u32,
    /// The CPU.
    pub cpu: u32,
    /// The negative error number, in 16 bits.
    pub error: u16,
    /// Bytes that follow the record.
    pub payload_bytes: u16,
}

/// What is wrong with a record.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RecordError {
    /// The file cannot be read.
    #[error("{0}")]
    Io(String),
    /// The file ends within the record, which begins at this byte.
    #[error("incomplete last record")]
    Cut(u64),
    /// The record is of a machine with another byte order.
    #[error("was recorded on a big-endian machine")]
    BigEndian,
    /// There is no record.
    #[error("magic is {0:#010x}, must be 0x65617407: not a blktrace record")]
    Magic(u32),
    /// The record is of another version.
    #[error("version {0}: must be {VERSION}")]
    Version(u32),
}

impl Record {
    /// The record as bytes.
    pub fn to_bytes(&self) -> [u8; RECORD_BYTES] {
        let mut b = [0u8; RECORD_BYTES];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            b[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&(MAGIC | VERSION).to_le_bytes());
        put(&self.sequence.to_le_bytes());
        put(&self.time_ns.to_le_bytes());
        put(&self.sector.to_le_bytes());
        put(&self.bytes.to_le_bytes());
        put(&self.action.to_le_bytes());
        put(&self.pid.to_le_bytes());
        put(&self.device.to_le_bytes());
        put(&self.cpu.to_le_bytes());
        put(&self.error.to_le_bytes());
        put(&self.payload_bytes.to_le_bytes());
        assert!(at == RECORD_BYTES, "the record's fields fill it");
        b
    }

    fn of(b: &[u8; RECORD_BYTES]) -> Result<Record, RecordError> {
        let u32_at = |at: usize| u32::from_le_bytes(b[at..at + 4].try_into().expect("four bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(b[at..at + 8].try_into().expect("eight bytes"));
        match u32_at(0) {
            magic if magic.swap_bytes() & !0xff == MAGIC => return Err(RecordError::BigEndian),
            magic if magic & !0xff != MAGIC => return Err(RecordError::Magic(magic)),
            magic if magic & 0xff != VERSION => return Err(RecordError::Version(magic & 0xff)),
            _ => {}
        }
        Ok(Record {
            sequence: u32_at(4),
            time_ns: u64_at(8),
            sector: u64_at(16),
            bytes: u32_at(24),
            action: u32_at(28),
            pid: u32_at(32),
            device: u32_at(36),
            cpu: u32_at(40),
            error: u16::from_le_bytes([b[44], b[45]]),
            payload_bytes: u16::from_le_bytes([b[46], b[47]]),
        })
    }

    /// The action without categories.
    pub fn act(&self) -> u32 {
        self.action & 0xffff & !TA_CGROUP
    }

    /// The categories.
    pub fn categories(&self) -> u32 {
        self.action >> 16
    }

    /// Whether it is a note, such as the name of a process, and not about an I/O.
    pub fn is_note(&self) -> bool {
        self.categories() & category::NOTIFY != 0
    }

    /// Whether the device's cache is flushed, before the data if there is any.
    pub fn flushes_first(&self) -> bool {
        self.categories() & category::FLUSH != 0
    }

    /// The operation; `None`: it has none, or is a passthrough command (SG_IO), which is no workload of the disk.
    pub fn op(&self) -> Option<RecordOp> {
        match self.categories() {
            c if c & category::PC != 0 => None,
            c if c & category::DISCARD != 0 => Some(RecordOp::Trim),
            c if c & category::FLUSH != 0 && self.bytes == 0 => Some(RecordOp::Flush),
            c if c & category::WRITE != 0 => Some(RecordOp::Write),
            c if c & category::READ != 0 => Some(RecordOp::Read),
            _ => None,
        }
    }
}

/// Whether a file that begins with `head` contains records.
pub fn is_record(head: &[u8]) -> bool {
    let word = head.first_chunk::<4>().copied().unwrap_or_default();
    [u32::from_le_bytes(word), u32::from_be_bytes(word)].iter().any(|w| w & !0xff == MAGIC)
}

/// Reads records one after the other.
pub struct Records<R> {
    from: R,
    /// Where the last record began, and where it ended; bytes.
    at: u64,
    end: u64,
    payload: Vec<u8>,
}

impl<R: Read> Records<R> {
    /// Of a file.
    pub fn new(from: R) -> Records<R> {
        Records { from, at: 0, end: 0, payload: Vec::new() }
    }

    /// Where the record begins that was read last, or could not be read.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Returns the next record with its payload; `None` at the end of the file.
    ///
    /// # Errors
    /// It is no record.
    pub fn next_record(&mut self) -> Result<Option<(Record, &[u8])>, RecordError> {
        self.at = self.end;
        let mut bytes = [0; RECORD_BYTES];
        match fill(&mut self.from, &mut bytes)? {
            0 => return Ok(None),
            RECORD_BYTES => {}
            _ => return Err(RecordError::Cut(self.at)),
        }
        let record = Record::of(&bytes)?;
        self.payload.resize(record.payload_bytes.into(), 0);
        if fill(&mut self.from, &mut self.payload)? < self.payload.len() {
            return Err(RecordError::Cut(self.at));
        }
        self.end = self.at + (RECORD_BYTES + self.payload.len()) as u64;
        Ok(Some((record, &self.payload)))
    }
}

/// Fills `into` as far as there is data.
fn fill(from: &mut impl Read, into: &mut [u8]) -> Result<usize, RecordError> {
    let mut got = 0;
    while got < into.len() {
        match from.read(&mut into[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(RecordError::Io(e.to_string())),
        }
    }
    Ok(got)
}
