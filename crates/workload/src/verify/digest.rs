// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The checksum after the header of a verified block.
//!
//! | kind | bytes | content |
//! |---|---|---|
//! | crc32c | 4 | CRC-32C of the body, without the final inversion |
//! | md5 | 16 | MD5 of the body |
//! | xxhash | 4 | XXH32 of the body, seed 1 |
//! | sha256 | 64 | fio's own: the low byte of each of SHA-256's eight state words, then the rest of the padded last block |
//!
//! fio 3.33's sha256 is not the standard digest. It pads with the length in little-endian and keeps one byte of each word.
//! Its 64-byte field is the work buffer into which those eight bytes were written. This was found in blocks that fio wrote,
//! and is kept because fio compares all 64 bytes. The field still depends on every bit of the body.

use super::header::crc;
use crate::job::VerifyKind;
use md5::{Digest, Md5};

const SHA256_BLOCK: usize = 64;
/// FIPS 180-4, 5.3.3.
const SHA256_START: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

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
        VerifyKind::Sha256 => field.copy_from_slice(&fio_sha256(body)),
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

/// SHA-256 as fio 3.33 computes and stores it.
fn fio_sha256(body: &[u8]) -> [u8; SHA256_BLOCK] {
    let (whole, rest) = body.as_chunks::<SHA256_BLOCK>();
    let mut state = SHA256_START;
    let mut compress = |block: &[u8; SHA256_BLOCK]| sha2::compress256(&mut state, &[(*block).into()]);
    whole.iter().for_each(&mut compress);
    let mut last = [0u8; SHA256_BLOCK];
    last[..rest.len()].copy_from_slice(rest);
    last[rest.len()] = 0x80;
    if rest.len() >= SHA256_BLOCK - 8 {
        compress(&last);
        last = [0; SHA256_BLOCK];
    }
    last[SHA256_BLOCK - 8..].copy_from_slice(&(body.len() as u64 * 8).to_le_bytes());
    compress(&last);
    for (byte, word) in last.iter_mut().zip(state) {
        *byte = word as u8;
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        let field = |kind, body: &[u8]| {
            let mut f = vec![0; len(kind)];
            store(kind, body, &mut f);
            f
        };
        // RFC 3720 B.4: CRC-32C of 32 zero bytes is aa36918a (stored here without the final inversion); RFC 1321 A.5.
        assert_eq!(field(VerifyKind::Crc32c, &[0; 32]), (!0x8a91_36aau32).to_le_bytes());
        assert_eq!(field(VerifyKind::Md5, b"abc")[..4], [0x90, 0x01, 0x50, 0x98]);
        assert_eq!(len(VerifyKind::Pattern), 0);
        for kind in [VerifyKind::Crc32c, VerifyKind::Md5, VerifyKind::Sha256, VerifyKind::Xxhash] {
            for n in [1, 55, 56, 63, 64, 3992] {
                let mut body = vec![7u8; n];
                let sum = field(kind, &body);
                assert!(matches(kind, &body, &sum));
                body[0] ^= 1;
                assert!(!matches(kind, &body, &sum), "{kind:?} of {n} bytes misses a bit");
            }
        }
    }
}
