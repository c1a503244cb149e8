// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads blktrace's binary records, version 7, little endian: `NAME.blktrace.CPU`, and the output of `blkparse -d` and
//! `blktrace -o -`.
//!
//! Guarantees: strict about the format (magic, version, whole records), tolerant of actions that are not needed. Uses no
//! more memory than the events need, however long a record claims to be. Does not do: traces of big-endian machines,
//! version 8.
//!
//! Source: include/uapi/linux/blktrace_api.h of Linux 6.12.

use super::{Act, Class, ProfileError, Trace, TraceEvent};
use std::io::{self, Read};

/// `BLK_IO_TRACE_MAGIC`, in the upper 24 bits.
const MAGIC: u32 = 0x6561_7400;
const VERSION: u32 = 7;
const RECORD_BYTES: usize = crate::trace::blktrace::RECORD_BYTES;
/// `__BLK_TA_CGROUP`: the payload begins with the number of a cgroup.
const TA_CGROUP: u32 = 1 << 8;

/// `BLK_TC_*`.
const READ: u32 = 1 << 0;
const WRITE: u32 = 1 << 1;
const FLUSH: u32 = 1 << 2;
const PC: u32 = 1 << 9;
const NOTIFY: u32 = 1 << 10;
const DISCARD: u32 = 1 << 13;

/// Whether a file that begins with `head` contains binary records.
pub fn is_binary(head: &[u8]) -> bool {
    let word = head.first_chunk::<4>().copied().unwrap_or_default();
    [u32::from_le_bytes(word), u32::from_be_bytes(word)].iter().any(|w| w & !0xff == MAGIC)
}

/// Adds the records of `from` to `trace`.
///
/// # Errors
/// The first invalid record, with its place.
pub fn read(file: &str, mut from: impl Read, trace: &mut Trace) -> Result<(), ProfileError> {
    let mut at = 0;
    loop {
        let mut record = [0; RECORD_BYTES];
        let got = fill(&mut from, &mut record).map_err(|e| ProfileError::byte(file, at, e.to_string()))?;
        if got == 0 {
            return Ok(());
        }
        if got < RECORD_BYTES {
            return Err(cut(file, at));
        }
        let r = Raw::of(&record).map_err(|text| ProfileError::byte(file, at, text))?;
        let mut payload = vec![0; usize::from(r.payload_bytes)];
        let got = fill(&mut from, &mut payload).map_err(|e| ProfileError::byte(file, at, e.to_string()))?;
        if got < payload.len() {
            return Err(cut(file, at));
        }
        r.add(&payload, trace).map_err(|text| ProfileError::byte(file, at, text))?;
        at += (RECORD_BYTES + payload.len()) as u64;
    }
}

fn cut(file: &str, at: u64) -> ProfileError {
    let text = format!(
        "incomplete last record: cut it off with 'truncate -s {at} FILE', and end the next blktrace with SIGINT"
    );
    ProfileError::byte(file, at, text)
}

/// Fills `into` as far as there is data.
fn fill(from: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < into.len() {
        match from.read(&mut into[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(got)
}

struct Raw {
    time_ns: u64,
    sector: u64,
    bytes: u32,
    action: u32,
    pid: u32,
    device: u32,
    payload_bytes: u16,
}

impl Raw {
    fn of(b: &[u8; RECORD_BYTES]) -> Result<Raw, String> {
        let u32_at = |at: usize| u32::from_le_bytes(b[at..at + 4].try_into().expect("four bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(b[at..at + 8].try_into().expect("eight bytes"));
        let magic = u32_at(0);
        if magic.swap_bytes() & !0xff == MAGIC {
            return Err("was recorded on a big-endian machine: run blkparse there, and profile its output".into());
        }
        if magic & !0xff != MAGIC {
            return Err(format!("magic is {magic:#010x}, must be {:#010x}: not a blktrace record", MAGIC | VERSION));
        }
        if magic & 0xff != VERSION {
            return Err(format!(
                "version {}: must be {VERSION}; run blkparse on it, and profile its output",
                magic & 0xff
            ));
        }
        Ok(Raw {
            time_ns: u64_at(8),
            sector: u64_at(16),
            bytes: u32_at(24),
            action: u32_at(28),
            pid: u32_at(32),
            device: u32_at(36),
            payload_bytes: u16::from_le_bytes([b[46], b[47]]),
        })
    }

    fn add(&self, payload: &[u8], trace: &mut Trace) -> Result<(), String> {
        let (category, act) = (self.action >> 16, self.action & 0xffff & !TA_CGROUP);
        if category & NOTIFY != 0 {
            if act == 0 {
                let end = payload.iter().position(|b| *b == 0).unwrap_or(payload.len());
                trace.name(self.pid, &String::from_utf8_lossy(&payload[..end]));
            }
            return Ok(());
        }
        // Passthrough commands (SG_IO) are no workload of the disk.
        if category & PC != 0 {
            return Ok(());
        }
        let act = match act {
            1 => Act::Queue,
            6 => Act::Requeue,
            7 => Act::Issue,
            8 => Act::Complete,
            _ => return Ok(()),
        };
        let class = match category {
            c if c & DISCARD != 0 => Class::Trim,
            c if c & FLUSH != 0 && self.bytes == 0 => Class::Flush,
            c if c & WRITE != 0 => Class::Write,
            c if c & READ != 0 => Class::Read,
            _ => return Ok(()),
        };
        let (time_ns, sector, bytes, pid, device) = (self.time_ns, self.sector, self.bytes, self.pid, self.device);
        trace.push(TraceEvent { time_ns, sector, bytes, pid, device, act, class })
    }
}
