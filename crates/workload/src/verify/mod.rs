// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Verified blocks: data in a write from which a later read can tell whether it got the right data.
//!
//! Guarantees: blocks are bit-compatible with fio 3.33 on little-endian machines. fio verifies what we write, and we verify
//! what fio wrote (`tests/it/fio_verify.rs` does both). Bodies are fio's as well. So every byte of a block that we wrote is
//! compared, not only the checksum. A stale block (right checksum, older write) is detected by its seed and number. Needs
//! from callers: the whole I/O in one buffer.
//!
//! Kinds: `crc32c`, `md5`, `sha256` and `xxhash` put a header and a checksum in front of each block; `pattern` has no
//! header. With `verify_pattern` the body of the other kinds is the pattern. If block sizes vary, there is a header in
//! every smallest block, so that reads of any size can check them.

pub mod digest;
pub mod header;
pub mod log;
#[cfg(test)]
mod tests;

use crate::buffer::{pattern_fill, random_fill};
use crate::error::SetupError;
use crate::job::{Dir, Job, Pattern, RwMode, VerifyKind};
use blk::time::Instant;
use header::Header;

/// What distinguishes one written block from every other write of the job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Seed of the body.
    pub seed: u64,
    /// Number of the write in its job, modulo 2^16.
    pub number: u16,
}

/// The block that a read is expected to return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// A valid block of any writer.
    Valid,
    /// The block of exactly this write, which covered the same bytes as this read.
    Exactly(Stamp),
}

/// A block that differs from what is expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("verify {kind}: {fault} at offset {offset}, length {len}")]
pub struct VerifyError {
    /// fio's name of the check.
    pub kind: &'static str,
    /// Byte offset of the bad block in the target.
    pub offset: u64,
    /// Length of the bad block.
    pub len: u32,
    /// The fault.
    pub fault: Fault,
}

/// A fault of a block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// There is no header.
    #[error("bad magic {0:#x}, wanted 0xacca (never written, or overwritten)")]
    Magic(u16),
    /// The header belongs to a block of another size.
    #[error("bad header length {0}")]
    Length(u32),
    /// The block belongs to another offset.
    #[error("block belongs to offset {0}")]
    Misplaced(u64),
    /// The block is from an older or newer write to the same offset.
    #[error("stale block: number {got}, wanted {want}")]
    Stale {
        /// Number found.
        got: u16,
        /// Number of the last write.
        want: u16,
    },
    /// The seed is not that of the write.
    #[error("bad seed {got:#x}, wanted {want:#x}")]
    Seed {
        /// Seed found.
        got: u64,
        /// Seed of the last write.
        want: u64,
    },
    /// The header itself is damaged.
    #[error("bad header checksum")]
    HeaderChecksum,
    /// The checksum does not match the body.
    #[error("checksum mismatch")]
    Checksum,
    /// The body differs from what was written.
    #[error("wrong byte {got:#04x}, wanted {want:#04x}, {at} bytes into the I/O")]
    Content {
        /// Position in the I/O.
        at: usize,
        /// Byte found.
        got: u8,
        /// Byte written.
        want: u8,
    },
}

/// Writes and checks the blocks of one job thread.
#[derive(Clone, Debug)]
pub struct Verifier {
    kind: VerifyKind,
    pattern: Option<Pattern>,
    /// Distance between headers in bytes; `None` = one header per I/O.
    interval: Option<u32>,
    thread: u16,
    /// Scratch: the expected body during a comparison.
    want: Vec<u8>,
}

impl Verifier {
    /// Makes the verifier of `job`; `None` without `verify`. `thread` is the thread number in headers.
    pub fn new(job: &Job, thread: u32) -> Result<Option<Verifier>, SetupError> {
        let Some(kind) = job.verify else { return Ok(None) };
        let dir = if job.rw.mode == RwMode::Read { Dir::Read } else { Dir::Write };
        let sizes = &job.block_sizes[dir];
        let (min, max) = (sizes.min_bytes(), sizes.max_bytes());
        let header = header_len(kind);
        if min <= header as u64 {
            let rule = format!("verify={} puts {header} bytes in front of every block", kind.name());
            return Err(SetupError::new(&job.name, "bs", min, rule, "raise bs to 512 or more"));
        }
        let interval = (min != max).then_some(min as u32);
        Ok(Some(Verifier {
            kind,
            pattern: job.verify_pattern.clone(),
            interval,
            thread: thread as u16,
            want: Vec::new(),
        }))
    }

    /// Makes `buf` the block of a write to `offset` that was created at `now`.
    pub fn prepare(&self, buf: &mut [u8], offset: u64, stamp: Stamp, now: Instant) {
        match &self.pattern {
            Some(p) => pattern_fill(buf, p, 0, offset),
            None => random_fill(buf, stamp.seed),
        }
        if self.kind == VerifyKind::Pattern {
            return;
        }
        let mut at = offset;
        for block in buf.chunks_mut(self.step(buf.len())) {
            if block.len() <= header_len(self.kind) {
                // A remainder too short for a header contains only body; it exists only with `bs_unaligned`.
                break;
            }
            let header = Header {
                kind: self.kind,
                len: block.len() as u32,
                seed: if self.pattern.is_some() { 0 } else { stamp.seed },
                offset: at,
                time: now,
                thread: self.thread,
                number: stamp.number,
            };
            let (head, body) = block.split_at_mut(header_len(self.kind));
            head[..header::LEN].copy_from_slice(&header.encode());
            digest::store(self.kind, body, &mut head[header::LEN..]);
            at += u64::from(header.len);
        }
    }

    /// Checks the block that a read of `offset` returned.
    pub fn check(&mut self, buf: &[u8], offset: u64, expect: Expect) -> Result<(), VerifyError> {
        let kind = self.kind.name();
        let fail = |offset, len: usize, fault| VerifyError { kind, offset, len: len as u32, fault };
        if self.kind != VerifyKind::Pattern {
            let mut at = offset;
            for block in buf.chunks(self.step(buf.len())) {
                if block.len() > header_len(self.kind) {
                    self.check_header(block, at, expect).map_err(|fault| fail(at, block.len(), fault))?;
                }
                at += block.len() as u64;
            }
        }
        let mut want = std::mem::take(&mut self.want);
        want.resize(buf.len(), 0);
        let checked = self.check_body(buf, offset, expect, &mut want);
        self.want = want;
        checked.map_err(|fault| fail(offset, buf.len(), fault))
    }

    fn step(&self, io_len: usize) -> usize {
        match self.interval {
            Some(interval) if (interval as usize) < io_len => interval as usize,
            _ => io_len,
        }
    }

    fn check_header(&self, block: &[u8], at: u64, expect: Expect) -> Result<(), Fault> {
        let (head, body) = block.split_at(header_len(self.kind));
        let raw = head.first_chunk::<{ header::LEN }>().expect("a block holds a header");
        let h = header::decode(raw)?;
        if h.len != block.len() as u32 {
            return Err(Fault::Length(h.len));
        }
        if h.offset != at {
            return Err(Fault::Misplaced(h.offset));
        }
        if let Expect::Exactly(stamp) = expect {
            if h.number != stamp.number {
                return Err(Fault::Stale { got: h.number, want: stamp.number });
            }
            if self.pattern.is_none() && h.seed != stamp.seed {
                return Err(Fault::Seed { got: h.seed, want: stamp.seed });
            }
        }
        header::check_sum(raw)?;
        if digest::matches(self.kind, body, &head[header::LEN..]) { Ok(()) } else { Err(Fault::Checksum) }
    }

    /// Compares the body if its content is known.
    fn check_body(&self, buf: &[u8], offset: u64, expect: Expect, want: &mut [u8]) -> Result<(), Fault> {
        match (&self.pattern, expect) {
            (Some(p), _) => pattern_fill(want, p, 0, offset),
            (None, Expect::Exactly(stamp)) => random_fill(want, stamp.seed),
            (None, Expect::Valid) => return Ok(()),
        }
        let (step, skip) = (self.step(buf.len()), header_len(self.kind));
        for (i, (block, want)) in buf.chunks(step).zip(want.chunks(step)).enumerate() {
            // A remainder too short for a header is all body.
            let skip = if block.len() > skip { skip } else { 0 };
            if block[skip..] != want[skip..] {
                let at = (skip..block.len()).find(|&k| block[k] != want[k]).expect("they differ");
                return Err(Fault::Content { at: i * step + at, got: block[at], want: want[at] });
            }
        }
        Ok(())
    }
}

/// Bytes in front of the body: header and checksum.
pub const fn header_len(kind: VerifyKind) -> usize {
    match kind {
        VerifyKind::Pattern => 0,
        other => header::LEN + digest::len(other),
    }
}
