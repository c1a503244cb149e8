// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fill patterns: `0xdeadface"abcd"-12%o`.
//!
//! Guarantees: the bytes are those that fio 3.33 makes of the same text (measured). Hex is in the order written, with an
//! odd digit count padded in front. A decimal takes as few little-endian bytes as it needs, four if negative. Text in
//! double quotes stays as it is. Does not do: `'file'` parts, which would make the parser read files; they are rejected by
//! name.

use super::error::{Reject, quote};
use super::values::Pattern;

/// Longest pattern; fio's bound.
pub(super) const PATTERN_MAX_BYTES: usize = 512;
/// Bytes that a `%o` takes.
const OFFSET_BYTES: usize = 8;
const REMEDY: &str = "write hex (0xdeadbeef), a decimal number, text in \"\", or a sequence of these";

/// Parses a pattern; `offsets`: whether `%o` is allowed (verify patterns).
pub(super) fn parse(text: &str, offsets: bool) -> Result<Pattern, Reject> {
    let mut pattern = Pattern { bytes: Vec::new(), offset_at: Vec::new() };
    let mut rest = text.trim();
    while !rest.is_empty() {
        rest = if let Some(quoted) = rest.strip_prefix('"') {
            let (body, after) = quoted.split_once('"').ok_or_else(|| Reject::new("has no closing '\"'", REMEDY))?;
            pattern.bytes.extend_from_slice(body.as_bytes());
            after
        } else if rest.starts_with('\'') {
            let remedy = "mqblk reads no pattern files; give the bytes as hex";
            return Err(Reject::new("names a pattern file", remedy));
        } else if let Some(after) = rest.strip_prefix("%o") {
            if !offsets {
                return Err(Reject::new("has %o, which only verify_pattern takes", REMEDY));
            }
            pattern.offset_at.push(pattern.bytes.len());
            pattern.bytes.resize(pattern.bytes.len() + OFFSET_BYTES, 0);
            after
        } else if let Some(hex) = rest.strip_prefix("0x").or_else(|| rest.strip_prefix("0X")) {
            push_hex(hex, &mut pattern.bytes)?
        } else {
            push_decimal(rest, &mut pattern.bytes)?
        };
        if pattern.bytes.len() > PATTERN_MAX_BYTES {
            let rule = format!("is longer than {PATTERN_MAX_BYTES} bytes");
            return Err(Reject::new(&rule, "give a shorter pattern; it is repeated over the block"));
        }
    }
    if pattern.bytes.is_empty() {
        return Err(Reject::new("is an empty pattern", REMEDY));
    }
    Ok(pattern)
}

fn push_hex<'a>(text: &'a str, out: &mut Vec<u8>) -> Result<&'a str, Reject> {
    let end = text.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(text.len());
    if end == 0 {
        return Err(Reject::new("has no digits after 0x", REMEDY));
    }
    let (digits, rest) = text.split_at(end);
    let mut nibbles = digits.chars().filter_map(|c| c.to_digit(16)).map(|n| n as u8);
    if digits.len() % 2 == 1 {
        out.extend(nibbles.next());
    }
    while let (Some(high), Some(low)) = (nibbles.next(), nibbles.next()) {
        out.push(high << 4 | low);
    }
    Ok(rest)
}

fn push_decimal<'a>(text: &'a str, out: &mut Vec<u8>) -> Result<&'a str, Reject> {
    let sign = usize::from(text.starts_with(['-', '+']));
    let digits_end = text[sign..].find(|c: char| !c.is_ascii_digit()).map_or(text.len(), |n| n + sign);
    let value: i32 = text[..digits_end].parse().map_err(|_| {
        let rule = format!("has a part that is no number of 32 bits: '{}'", quote(text));
        Reject::new(&rule, REMEDY)
    })?;
    let bytes = value.to_le_bytes();
    let length = match u32::try_from(value) {
        Err(_) => 4,
        Ok(value) => (4 - value.leading_zeros() as usize / 8).max(1),
    };
    out.extend_from_slice(&bytes[..length]);
    Ok(&text[digits_end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Vec<u8> {
        parse(text, true).map(|p| p.bytes).unwrap_or_default()
    }

    /// Expected bytes were read from a file that fio 3.33 wrote with `verify=pattern`.
    #[test]
    fn bytes_are_those_fio_writes() {
        assert_eq!(bytes("0x12345"), [0x01, 0x23, 0x45]);
        assert_eq!(bytes("0x1"), [0x01]);
        assert_eq!(bytes("0XAB"), [0xab]);
        assert_eq!(bytes("0x00ff"), [0x00, 0xff]);
        assert_eq!(bytes("0"), [0]);
        assert_eq!(bytes("07"), [7]);
        assert_eq!(bytes("+5"), [5]);
        assert_eq!(bytes("255"), [0xff]);
        assert_eq!(bytes("256"), [0x00, 0x01]);
        assert_eq!(bytes("300"), [0x2c, 0x01]);
        assert_eq!(bytes("65536"), [0, 0, 1]);
        assert_eq!(bytes("-1"), [0xff; 4]);
        assert_eq!(bytes("-12"), [0xf4, 0xff, 0xff, 0xff]);
        assert_eq!(bytes("-2147483648"), [0, 0, 0, 0x80]);
        assert_eq!(bytes("12\"ab\""), [12, b'a', b'b']);
        assert_eq!(bytes("0x0102\"a b\"0x03"), [1, 2, b'a', b' ', b'b', 3]);
        assert_eq!(bytes("-12\"ab\"300"), [0xf4, 0xff, 0xff, 0xff, b'a', b'b', 0x2c, 1]);
    }

    #[test]
    fn offsets_are_marked() {
        let pattern = parse("0xff%o\"ab\"%o", true).expect("valid");
        assert_eq!(pattern.offset_at, [1, 11]);
        assert_eq!(pattern.bytes.len(), 19);
        assert!(parse("%o", false).is_err());
    }

    #[test]
    fn refused_forms_say_what_to_write() {
        for text in ["", "\"\"", "0x", "\"a", "deadbeef", "4294967295", "0x12zz", "1234abc", "'file'", "0xab 0xcd", "-"]
        {
            let reject = parse(text, true).expect_err(text);
            assert!(!reject.rule.is_empty() && !reject.remedy.is_empty(), "{text}");
        }
        assert!(parse(&format!("0x{}", "ab".repeat(512)), false).is_ok());
        assert!(parse(&format!("0x{}", "ab".repeat(513)), false).is_err());
    }
}
