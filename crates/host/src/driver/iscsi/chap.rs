// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CHAP with MD5: proves the initiator's and the target's identity without sending a password.
//!
//! Guarantees: binary values in any text are parsed (hexadecimal and base64) or refused, up to [`MAX_BINARY`] bytes; answers are compared
//! in constant time.
//! Source: RFC 7143, 6.1 (values) and 12.1.3; RFC 1994.

use md5::{Digest, Md5};

/// Longest binary value (RFC 7143, 12.1.3).
const MAX_BINARY: usize = 1024;
/// Bytes of an answer.
const RESPONSE_BYTES: usize = 16;

/// Returns the answer to a challenge.
pub(super) fn respond(id: u8, secret: &[u8], challenge: &[u8]) -> [u8; RESPONSE_BYTES] {
    let mut md5 = Md5::new();
    md5.update([id]);
    md5.update(secret);
    md5.update(challenge);
    md5.finalize().into()
}

/// Whether two answers are the same.
pub(super) fn is_same(a: &[u8; RESPONSE_BYTES], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// Formats a binary value as text.
pub(super) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

/// Parses text as a binary value; `None` if it is not one.
pub(super) fn from_text(text: &str) -> Option<Vec<u8>> {
    let (kind, digits) = text.split_at_checked(2)?;
    match kind {
        "0x" | "0X" if digits.len() <= 2 * MAX_BINARY => from_hex(digits),
        "0b" | "0B" if digits.len() <= 4 * MAX_BINARY.div_ceil(3) => from_base64(digits),
        _ => None,
    }
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let digits = digits.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect::<Option<Vec<u8>>>()?;
    // With an odd number of digits, the first digit is a byte by itself.
    let (first, rest) = digits.split_at(digits.len() % 2);
    Some(first.iter().copied().chain(rest.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1])).collect())
}

fn from_base64(digits: &str) -> Option<Vec<u8>> {
    let digits = digits.trim_end_matches('=');
    let (mut bits, mut count, mut bytes) = (0_u32, 0, Vec::new());
    for c in digits.bytes() {
        let value = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary_values_are_read_in_both_forms() {
        assert_eq!(from_text("0x0aFf"), Some(vec![0x0a, 0xff]));
        assert_eq!(from_text("0xaff"), Some(vec![0x0a, 0xff]));
        assert_eq!(from_text("0bAQIDBA=="), Some(vec![1, 2, 3, 4]));
        for bad in ["", "0", "0xzz", "0b!!", "12", "0x\u{e9}"] {
            assert_eq!(from_text(bad), None, "{bad}");
        }
        assert_eq!(from_text(&format!("0x{}", "00".repeat(MAX_BINARY + 1))), None);
        assert_eq!(to_hex(&[1, 0xab]), "0x01ab");
    }

    #[test]
    fn an_answer_is_md5_of_id_secret_and_challenge() {
        // md5("\x01" "secret" "challenge"), by md5sum.
        let answer = respond(1, b"secret", b"challenge");
        let mut md5 = Md5::new();
        md5.update(b"\x01secretchallenge");
        assert_eq!(answer[..], md5.finalize()[..]);
        assert!(is_same(&answer, &answer.clone()) && !is_same(&answer, &[0; 16]) && !is_same(&answer, &answer[..15]));
    }
}
