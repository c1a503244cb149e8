// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The header of a verified block, as fio 3.33 lays it out on a little-endian machine.
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | magic 0xacca |
//! | 2..4 | kind of check, a number of fio's |
//! | 4..8 | length of the block, header included |
//! | 8..16 | seed of the body; 0 with a pattern |
//! | 16..24 | byte offset in the file |
//! | 24..28, 28..32 | time of creation: seconds, nanoseconds |
//! | 32..34 | thread number |
//! | 34..36 | number of the write, modulo 2^16 |
//! | 36..40 | crc32c of bytes 0..36, without the final inversion |
//!
//! Source: blocks written by fio 3.33.

use super::Fault;
use crate::job::VerifyKind;
use blk::time::Instant;

/// Length of the header, without the checksum that follows it.
pub const LEN: usize = 40;
/// First two bytes.
pub const MAGIC: u16 = 0xacca;

const SUMMED: usize = 36;
const NS_PER_SEC: u64 = 1_000_000_000;

/// A decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Kind of check, one with a header.
    pub kind: VerifyKind,
    /// Length of the block in bytes.
    pub len: u32,
    /// Seed of the body.
    pub seed: u64,
    /// Byte offset of the block.
    pub offset: u64,
    /// When the write was created.
    pub time: Instant,
    /// Thread number of the writer.
    pub thread: u16,
    /// Number of the write.
    pub number: u16,
}

/// What [`decode`] returns: the fields a check needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Kind number, fio's.
    pub kind: u16,
    /// Length of the block in bytes.
    pub len: u32,
    /// Seed of the body.
    pub seed: u64,
    /// Byte offset of the block.
    pub offset: u64,
    /// Number of the write.
    pub number: u16,
}

impl Header {
    /// The header's bytes.
    ///
    /// # Panics
    /// For a kind without a header.
    pub fn encode(&self) -> [u8; LEN] {
        let kind: u16 = match self.kind {
            VerifyKind::Meta => 1,
            VerifyKind::Md5 => 2,
            VerifyKind::Crc64 => 3,
            VerifyKind::Crc32 => 4,
            VerifyKind::Crc32c => 5,
            VerifyKind::Crc16 => 7,
            VerifyKind::Crc7 => 8,
            VerifyKind::Sha256 => 9,
            VerifyKind::Sha512 => 10,
            VerifyKind::Sha3_224 => 11,
            VerifyKind::Sha3_256 => 12,
            VerifyKind::Sha3_384 => 13,
            VerifyKind::Sha3_512 => 14,
            VerifyKind::Xxhash => 15,
            VerifyKind::Sha1 => 16,
            VerifyKind::Pattern | VerifyKind::Null => panic!("verify={} has no header", self.kind.name()),
        };
        let ns = self.time.as_ns();
        let mut raw = [0u8; LEN];
        raw[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        raw[2..4].copy_from_slice(&kind.to_le_bytes());
        raw[4..8].copy_from_slice(&self.len.to_le_bytes());
        raw[8..16].copy_from_slice(&self.seed.to_le_bytes());
        raw[16..24].copy_from_slice(&self.offset.to_le_bytes());
        raw[24..28].copy_from_slice(&((ns / NS_PER_SEC) as u32).to_le_bytes());
        raw[28..32].copy_from_slice(&((ns % NS_PER_SEC) as u32).to_le_bytes());
        raw[32..34].copy_from_slice(&self.thread.to_le_bytes());
        raw[34..36].copy_from_slice(&self.number.to_le_bytes());
        let sum = crc(&raw[..SUMMED]);
        raw[SUMMED..].copy_from_slice(&sum.to_le_bytes());
        raw
    }
}

/// Returns the fields of a header; an error when the magic is missing. [`check_sum`] checks the header's checksum
/// separately, so that a misplaced or stale block is reported as such.
pub fn decode(raw: &[u8; LEN]) -> Result<Found, Fault> {
    let u16_at = |i| u16::from_le_bytes([raw[i], raw[i + 1]]);
    let u32_at = |i: usize| u32::from_le_bytes(*raw[i..].first_chunk().expect("inside the header"));
    let u64_at = |i: usize| u64::from_le_bytes(*raw[i..].first_chunk().expect("inside the header"));
    if u16_at(0) != MAGIC {
        return Err(Fault::Magic(u16_at(0)));
    }
    Ok(Found { kind: u16_at(2), len: u32_at(4), seed: u64_at(8), offset: u64_at(16), number: u16_at(34) })
}

/// Checks the header's own checksum.
pub fn check_sum(raw: &[u8; LEN]) -> Result<(), Fault> {
    if raw[SUMMED..] == crc(&raw[..SUMMED]).to_le_bytes() { Ok(()) } else { Err(Fault::HeaderChecksum) }
}

/// CRC-32C as fio stores it: the usual one without its final inversion.
pub(super) fn crc(bytes: &[u8]) -> u32 {
    !crc32c::crc32c(bytes)
}
