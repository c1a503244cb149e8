// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The checksum behind the header of a verified block.
//!
//! | kind | bytes | content |
//! |---|---|---|
//! | crc32c | 4 | CRC-32C of the body, without the final inversion |
//! | md5 | 16 | MD5 of the body |
//! | xxhash | 4 | XXH32 of the body, seed 1 |
//! | sha256 | 64 | the last block SHA-256 works on: end of the body, 0x80, zeroes, length in bits (little-endian) |
//!
//! The last line is what fio 3.33 stores: its digest never leaves the hash state, and the 64-byte field holds the work
//! buffer. Found in blocks written by fio; kept because fio compares all 64 bytes.

use super::header::crc;
use crate::job::VerifyKind;
use md5::{Digest, Md5};

const SHA256_BLOCK: usize = 64;

/// Length of the checksum in bytes; 0 for `pattern`.
pub const fn len(kind: VerifyKind) -> usize {
    match kind {
        VerifyKind::Crc32c | VerifyKind::Xxhash => 4,
        VerifyKind::Md5 => 16,
        VerifyKind::Sha256 => SHA256_BLOCK,
        VerifyKind::Pattern => 0,
    }
}

/// Writes the checksum of `body` into `field`, which is [`len`] bytes long.
pub fn store(kind: VerifyKind, body: &[u8], field: &mut [u8]) {
    match kind {
        VerifyKind::Crc32c => field.copy_from_slice(&crc(body).to_le_bytes()),
        VerifyKind::Xxhash => field.copy_from_slice(&xxhash_rust::xxh32::xxh32(body, 1).to_le_bytes()),
        VerifyKind::Md5 => field.copy_from_slice(&Md5::digest(body)),
        VerifyKind::Sha256 => field.copy_from_slice(&sha256_work_buffer(body)),
        VerifyKind::Pattern => {}
    }
}

/// Whether `field` is the checksum of `body`.
pub fn matches(kind: VerifyKind, body: &[u8], field: &[u8]) -> bool {
    let mut want = [0u8; SHA256_BLOCK];
    let want = &mut want[..len(kind)];
    store(kind, body, want);
    want == field
}

fn sha256_work_buffer(body: &[u8]) -> [u8; SHA256_BLOCK] {
    let mut block = [0u8; SHA256_BLOCK];
    let rest = body.len() % SHA256_BLOCK;
    if rest < SHA256_BLOCK - 8 {
        block[..rest].copy_from_slice(&body[body.len() - rest..]);
        block[rest] = 0x80;
    }
    block[SHA256_BLOCK - 8..].copy_from_slice(&(body.len() as u64 * 8).to_le_bytes());
    block
}
