// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The checksum after the header of a verified block.
//!
//! | kind | bytes | content |
//! |---|---|---|
//! | crc32c | 4 | CRC-32C of the body, without the final inversion |
//! | crc7 | 1 | CRC-7/MMC |
//! | crc16 | 2 | CRC-16/ARC |
//! | crc32 | 4 | the polynomial of CRC-32, high bit first, starting at 0, without a final inversion |
//! | crc64 | 8 | CRC-64 of Jones' polynomial, starting at 0 |
//! | md5 | 16 | MD5 of the body |
//! | xxhash | 4 | XXH32 of the body, seed 1 |
//! | sha1 | 20 | SHA-1, each word little-endian |
//! | sha256 | 64 | fio's own: the low byte of each of SHA-256's eight state words, then the rest of the padded last block |
//! | sha512 | 128 | fio's own: the first 128 bytes of the body, of which the rest of the body replaces the first ones |
//! | sha3-N | N / 8 | SHA3-N |
//!
//! fio 3.33's sha256 is not the standard digest. It pads with the length in little-endian and keeps one byte of each word.
//! Its 64-byte field is the work buffer into which those eight bytes were written. Its sha512 never stores the digest: the
//! field is the work buffer, so most of the body is not checked by it. Both were found in blocks that fio wrote, and are
//! kept because fio compares the whole field. Our own reading back compares the whole body with any kind but `null`.

use super::header::crc;
use crate::job::VerifyKind;
use crc::{Algorithm, CRC_7_MMC, CRC_16_ARC, CRC_64_REDIS, Crc};
use md5::{Digest, Md5};
use sha1::Sha1;
use sha3::{Sha3_224, Sha3_256, Sha3_384, Sha3_512};

const CRC7: Crc<u8> = Crc::<u8>::new(&CRC_7_MMC);
const CRC16: Crc<u16> = Crc::<u16>::new(&CRC_16_ARC);
/// CRC-32/BZIP2 without its inversions.
const FIO_CRC32: Algorithm<u32> = Algorithm { init: 0, xorout: 0, ..crc::CRC_32_BZIP2 };
const CRC32: Crc<u32> = Crc::<u32>::new(&FIO_CRC32);
const CRC64: Crc<u64> = Crc::<u64>::new(&CRC_64_REDIS);

/// Length of the longest checksum.
const LONGEST: usize = SHA512_BLOCK;
const SHA512_BLOCK: usize = 128;
const SHA256_BLOCK: usize = 64;
/// FIPS 180-4, 5.3.3.
const SHA256_START: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];

/// Length of the checksum in bytes; 0 for kinds without one.
pub const fn len(kind: VerifyKind) -> usize {
    match kind {
        VerifyKind::Crc7 => 1,
        VerifyKind::Crc16 => 2,
        VerifyKind::Crc32 | VerifyKind::Crc32c | VerifyKind::Xxhash => 4,
        VerifyKind::Crc64 => 8,
        VerifyKind::Md5 => 16,
        VerifyKind::Sha1 => 20,
        VerifyKind::Sha3_224 => 28,
        VerifyKind::Sha3_256 => 32,
        VerifyKind::Sha3_384 => 48,
        VerifyKind::Sha3_512 => 64,
        VerifyKind::Sha256 => SHA256_BLOCK,
        VerifyKind::Sha512 => SHA512_BLOCK,
        VerifyKind::Meta | VerifyKind::Pattern | VerifyKind::Null => 0,
    }
}

/// Writes the checksum of `body` into `field`, which is [`len`] bytes long.
pub fn store(kind: VerifyKind, body: &[u8], field: &mut [u8]) {
    match kind {
        VerifyKind::Crc32c => field.copy_from_slice(&crc(body).to_le_bytes()),
        VerifyKind::Xxhash => field.copy_from_slice(&xxhash_rust::xxh32::xxh32(body, 1).to_le_bytes()),
        VerifyKind::Md5 => field.copy_from_slice(&Md5::digest(body)),
        VerifyKind::Crc7 => field.copy_from_slice(&CRC7.checksum(body).to_le_bytes()),
        VerifyKind::Crc16 => field.copy_from_slice(&CRC16.checksum(body).to_le_bytes()),
        VerifyKind::Crc32 => field.copy_from_slice(&CRC32.checksum(body).to_le_bytes()),
        VerifyKind::Crc64 => field.copy_from_slice(&CRC64.checksum(body).to_le_bytes()),
        VerifyKind::Sha1 => {
            field.copy_from_slice(&Sha1::digest(body));
            field.chunks_mut(4).for_each(<[u8]>::reverse);
        }
        VerifyKind::Sha256 => field.copy_from_slice(&fio_sha256(body)),
        VerifyKind::Sha512 => field.copy_from_slice(&fio_sha512(body)),
        VerifyKind::Sha3_224 => field.copy_from_slice(&Sha3_224::digest(body)),
        VerifyKind::Sha3_256 => field.copy_from_slice(&Sha3_256::digest(body)),
        VerifyKind::Sha3_384 => field.copy_from_slice(&Sha3_384::digest(body)),
        VerifyKind::Sha3_512 => field.copy_from_slice(&Sha3_512::digest(body)),
        VerifyKind::Meta | VerifyKind::Pattern | VerifyKind::Null => {}
    }
}

/// Whether `field` is the checksum of `body`.
pub fn matches(kind: VerifyKind, body: &[u8], field: &[u8]) -> bool {
    let mut want = [0u8; LONGEST];
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

/// What fio 3.33 leaves in its work buffer.
fn fio_sha512(body: &[u8]) -> [u8; SHA512_BLOCK] {
    let mut buffer = [0u8; SHA512_BLOCK];
    let first = body.len().min(SHA512_BLOCK);
    buffer[..first].copy_from_slice(&body[..first]);
    let rest = &body[body.len() - body.len() % SHA512_BLOCK..];
    buffer[..rest.len()].copy_from_slice(rest);
    buffer
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
        // The check values of the catalogue of CRCs; FIPS 180-4 and 202 for "abc".
        assert_eq!(field(VerifyKind::Crc7, b"123456789"), [0x75]);
        assert_eq!(field(VerifyKind::Crc16, b"123456789"), 0xbb3du16.to_le_bytes());
        assert_eq!(field(VerifyKind::Crc64, b"123456789"), 0xe9c6_d914_c4b8_d9cau64.to_le_bytes());
        assert_eq!(field(VerifyKind::Sha1, b"abc")[..4], 0xa999_3e36u32.to_le_bytes());
        assert_eq!(field(VerifyKind::Sha3_256, b"abc")[..4], [0x3a, 0x98, 0x5d, 0xa7]);
        for (kind, _) in VerifyKind::ALL.into_iter().filter(|(kind, _)| len(*kind) > 0) {
            for n in [1, 55, 56, 63, 64, 3992] {
                let mut body = vec![7u8; n];
                let sum = field(kind, &body);
                assert!(matches(kind, &body, &sum));
                body[n - 1] ^= 1;
                assert!(!matches(kind, &body, &sum), "{kind:?} of {n} bytes misses a bit");
            }
        }
    }
}
