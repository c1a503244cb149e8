// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Verified blocks: data in a write from which a later read can tell whether it got the right data.
//!
//! Guarantees: blocks are bit-compatible with fio 3.33 on little-endian machines. fio verifies what we write, and we verify
//! what fio wrote (`tests/it/fio_verify.rs` does both). Bodies are fio's as well. So every byte of a block that we wrote is
//! compared, not only the checksum. A stale block (right checksum, older write) is detected by its seed and number. Needs
//! from callers: the whole I/O in one buffer.
//!
//! Kinds: most put a header and a checksum in front of each block, `meta` only the header, `pattern` and `null` nothing.
//! `null` checks nothing. With `verify_pattern` the body of the other kinds is the pattern. If block sizes vary, there is
//! a header in every smallest block, so that reads of any size can check them; with `bs_unaligned` there is one in front of
//! each I/O. `verify_offset` swaps header and checksum with the data at that place of the block.

pub mod digest;
pub mod dump;
pub mod header;
pub mod log;
pub(crate) mod progress;
pub mod state;
pub(crate) mod trims;
#[cfg(test)]
mod tests;

use crate::buffer::{pattern_fill, random_fill};
use crate::error::SetupError;
use crate::job::{BlockSizes, Dir, Job, Pattern, RwMode, VerifyKind};
use blk::time::Instant;
use dump::BadBlock;
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
    /// Zeroes, as the block was trimmed.
    Zeroes,
    /// The block of exactly this write, which covered the same bytes as this read.
    Exactly(Stamp),
}

/// A block that differs from what is expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("verify {kind}: {fault} at offset {offset}, length {len}")]
pub struct VerifyError {
    /// fio's name of the check.
    pub kind: &'static str,
    /// Number of the job's file, 0-based.
    pub file: u32,
    /// Byte offset of the bad block in the file.
    pub offset: u64,
    /// Length of the bad block.
    pub len: u32,
    /// The fault.
    pub fault: Fault,
    /// The block, if the job dumps bad blocks.
    pub dump: Option<Box<BadBlock>>,
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
    /// The block was trimmed and has data.
    #[error("trimmed block has byte {got:#04x}, {at} bytes into the I/O")]
    NotZero {
        /// Position in the I/O.
        at: usize,
        /// Byte found.
        got: u8,
    },
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
    /// Distance between headers in bytes; every I/O is a multiple of it. `None` = one header per I/O.
    interval: Option<u32>,
    /// Where header and checksum are in a block.
    header_at: usize,
    checks_number: bool,
    checks_seed: bool,
    dumps: bool,
    thread: u16,
    /// Scratch: the expected body during a comparison.
    want: Vec<u8>,
    /// Scratch: blocks with their headers moved back to the front.
    moved_back: Vec<u8>,
}

impl Verifier {
    /// Makes the verifier of `job`; `None` without `verify`. `thread` is the thread number in headers.
    pub fn new(job: &Job, thread: u32) -> Result<Option<Verifier>, SetupError> {
        let Some(kind) = job.verify else { return Ok(None) };
        let header = header_len(kind) as u64;
        let sizes = &job.block_sizes[if job.rw.mode == RwMode::Read { Dir::Read } else { Dir::Write }];
        let interval = if job.bs_unaligned { sizes.min_bytes() } else { interval(job) };
        if interval <= header {
            let rule = format!("verify={} puts {header} bytes in front of every block", kind.name());
            let remedy = match interval == sizes.min_bytes() {
                true => "raise bs to 512 or more",
                false => "use sizes with a common divisor of 512 or more, or one size",
            };
            return Err(SetupError::new(&job.name, "bs", interval, rule, remedy));
        }
        // With bs_unaligned, each I/O is a block. Otherwise a block is what a multiple of the interval leaves.
        let rest = |len: u64| if job.bs_unaligned { len } else { len % interval };
        if let Some(len) = lengths(job, interval).find(|&len| (1..=header).contains(&rest(len))) {
            let rule = format!(
                "verify={} puts {header} bytes in front of every {interval} bytes, and I/Os of {len} bytes have no room for the last of \
                 these headers",
                kind.name()
            );
            return Err(SetupError::new(&job.name, "bs", len, rule, "use one size, or multiples of the smallest one"));
        }
        let header_at = if kind.has_header() { job.verify_offset.unwrap_or(0) } else { 0 };
        if header_at > 0 && (header_at < header || header_at + header > interval) {
            let most = interval.saturating_sub(header);
            let rule = format!(
                "must be {header}..={most}: a block of {interval} bytes has {header} bytes of header and checksum"
            );
            return Err(SetupError::new(&job.name, "verify_offset", header_at, rule, "change it, or raise bs"));
        }
        Ok(Some(Verifier {
            kind,
            pattern: job.verify_pattern.clone(),
            interval: (!job.bs_unaligned).then_some(interval as u32),
            header_at: header_at as usize,
            checks_number: job.verify_write_sequence,
            checks_seed: job.verify_header_seed,
            dumps: job.verify_dump,
            thread: thread as u16,
            want: Vec::new(),
            moved_back: Vec::new(),
        }))
    }

    /// Whether it decides what a block holds.
    pub fn fills(&self) -> bool {
        self.kind != VerifyKind::Null
    }

    /// Makes `buf` the block of a write to `offset` that was created at `now`.
    pub fn prepare(&self, buf: &mut [u8], offset: u64, stamp: Stamp, now: Instant) {
        match &self.pattern {
            Some(p) => pattern_fill(buf, p, 0, offset),
            None => random_fill(buf, stamp.seed),
        }
        if !self.kind.has_header() {
            return;
        }
        let mut at = offset;
        for block in buf.chunks_mut(self.step(buf.len())) {
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
            self.swap_header(block);
            at += u64::from(header.len);
        }
    }

    /// Swaps header and checksum of a block with the data that has their place.
    fn swap_header(&self, block: &mut [u8]) {
        if self.header_at > 0 {
            let len = header_len(self.kind);
            let (front, rest) = block.split_at_mut(self.header_at);
            front[..len].swap_with_slice(&mut rest[..len]);
        }
    }

    /// Checks the block that a read of `offset` returned.
    pub fn check(&mut self, buf: &[u8], offset: u64, expect: Expect) -> Result<(), VerifyError> {
        let mut checked = self.check_read(buf, offset, expect);
        if let Err(error) = &mut checked
            && self.dumps
        {
            error.dump = self.bad_block(buf, offset, expect, error);
        }
        checked
    }

    fn check_read(&mut self, buf: &[u8], offset: u64, expect: Expect) -> Result<(), VerifyError> {
        if expect == Expect::Zeroes && self.kind != VerifyKind::Null {
            let Some(at) = buf.iter().position(|&b| b != 0) else { return Ok(()) };
            let (len, fault) = (buf.len() as u32, Fault::NotZero { at, got: buf[at] });
            return Err(VerifyError { kind: "trim", file: 0, offset, len, fault, dump: None });
        }
        if self.header_at == 0 {
            return self.check_blocks(buf, offset, expect);
        }
        let mut blocks = std::mem::take(&mut self.moved_back);
        blocks.clear();
        blocks.extend_from_slice(buf);
        blocks.chunks_mut(self.step(buf.len())).for_each(|block| self.swap_header(block));
        let checked = self.check_blocks(&blocks, offset, expect);
        self.moved_back = blocks;
        checked
    }

    fn check_blocks(&mut self, buf: &[u8], offset: u64, expect: Expect) -> Result<(), VerifyError> {
        let kind = self.kind.name();
        let fail =
            |offset, len: usize, fault| VerifyError { kind, file: 0, offset, len: len as u32, fault, dump: None };
        if self.kind == VerifyKind::Null {
            return Ok(());
        }
        if self.kind.has_header() {
            let mut at = offset;
            for block in buf.chunks(self.step(buf.len())) {
                self.check_header(block, at, expect).map_err(|fault| fail(at, block.len(), fault))?;
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
            if self.checks_number && h.number != stamp.number {
                return Err(Fault::Stale { got: h.number, want: stamp.number });
            }
            if self.checks_seed && self.pattern.is_none() && h.seed != stamp.seed {
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
            (None, Expect::Exactly(stamp)) if self.checks_seed => random_fill(want, stamp.seed),
            (None, _) => return Ok(()),
        }
        let (step, skip) = (self.step(buf.len()), header_len(self.kind));
        for (i, (block, want)) in buf.chunks(step).zip(want.chunks(step)).enumerate() {
            if block[skip..] != want[skip..] {
                let at = (skip..block.len()).find(|&k| block[k] != want[k]).expect("they differ");
                return Err(Fault::Content { at: i * step + at, got: block[at], want: want[at] });
            }
        }
        Ok(())
    }
}

/// Returns the distance between headers, by fio's rules: `verify_interval`, or the smallest block, if that divides all sizes
/// of writes; otherwise what divides the smallest and the largest.
fn interval(job: &Job) -> u64 {
    let (min, max) = (job.block_sizes.write.min_bytes(), job.block_sizes.write.max_bytes());
    let (mut interval, read_min) = (job.verify_interval.unwrap_or(min), job.block_sizes.read.min_bytes());
    if interval > min {
        interval = min;
    } else if job.rw.has(Dir::Read) {
        interval = interval.min(read_min);
    }
    if min.is_multiple_of(interval) && max.is_multiple_of(interval) { interval } else { common_divisor(min, max) }
}

/// Lengths of the I/Os with headers. Of the multiples of a size, only so many are among them that no other one leaves another rest in an
/// interval.
fn lengths(job: &Job, interval: u64) -> impl Iterator<Item = u64> {
    let reads = job.rw.mode == RwMode::Read || job.bs_is_seq_rand;
    let used = [(reads, &job.block_sizes.read), (job.rw.has(Dir::Write), &job.block_sizes.write)];
    let used = used.into_iter().filter(|(is_used, _)| *is_used).map(|(_, sizes)| sizes);
    let largest = used.clone().map(BlockSizes::max_bytes).max().unwrap_or(0);
    // Where a touched block of the random map is in the way, an I/O is shortened to a multiple of the smallest size.
    let shortens = job.rw.random && !job.has_no_map();
    let multiples =
        move |of: u64, most: u64| (1..=(most / of).min(interval / common_divisor(of, interval))).map(move |n| n * of);
    used.flat_map(move |sizes| {
        let shortened = multiples(sizes.min_bytes(), if shortens { largest } else { 0 });
        let asked: Box<dyn Iterator<Item = u64>> = match sizes {
            BlockSizes::Fixed(bytes) => Box::new([*bytes].into_iter()),
            BlockSizes::Range { min_bytes, max_bytes } => {
                Box::new(multiples(*min_bytes, *max_bytes).chain([*max_bytes]))
            }
            BlockSizes::Split(split) => Box::new(split.iter().filter(|size| size.pct > 0).map(|size| size.bytes)),
        };
        asked.chain(shortened)
    })
}

fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Bytes in front of the body: header and checksum.
pub const fn header_len(kind: VerifyKind) -> usize {
    if kind.has_header() { header::LEN + digest::len(kind) } else { 0 }
}
