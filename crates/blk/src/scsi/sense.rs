// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sense data: what a SCSI device reports about a command that failed.
//!
//! Guarantees: any bytes from a device or the network are accepted: fixed and descriptor format, truncated anywhere.
//! Missing fields are zero, and bytes that are no sense data give `None`. Source: SPC-5, 4.4 ("Sense data");
//! drivers/scsi/scsi_common.c (`scsi_normalize_sense`).

use super::sense_text::Additional;

/// Longest sense data that is read, which is also the maximum that a command may return (SPC-5, 4.4.1).
pub(crate) const SENSE_BYTES: usize = 252;

/// Sense keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "the standard's names, SPC-5 table 49")]
pub enum SenseKey {
    NoSense = 0,
    RecoveredError = 1,
    NotReady = 2,
    MediumError = 3,
    HardwareError = 4,
    IllegalRequest = 5,
    UnitAttention = 6,
    DataProtect = 7,
    BlankCheck = 8,
    VendorSpecific = 9,
    CopyAborted = 10,
    AbortedCommand = 11,
    Reserved = 12,
    VolumeOverflow = 13,
    Miscompare = 14,
    Completed = 15,
}

const KEYS: [SenseKey; 16] = [
    SenseKey::NoSense,
    SenseKey::RecoveredError,
    SenseKey::NotReady,
    SenseKey::MediumError,
    SenseKey::HardwareError,
    SenseKey::IllegalRequest,
    SenseKey::UnitAttention,
    SenseKey::DataProtect,
    SenseKey::BlankCheck,
    SenseKey::VendorSpecific,
    SenseKey::CopyAborted,
    SenseKey::AbortedCommand,
    SenseKey::Reserved,
    SenseKey::VolumeOverflow,
    SenseKey::Miscompare,
    SenseKey::Completed,
];

/// The fields of sense data, of either format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sense {
    /// The key.
    pub key: SenseKey,
    /// Additional sense code.
    pub asc: u8,
    /// Its qualifier.
    pub ascq: u8,
    /// The sense data is about an earlier command that has already completed.
    pub is_deferred: bool,
    /// For a medium error, the first block that could not be transferred.
    pub information: Option<u64>,
}

impl Sense {
    /// Sense data about the current command.
    pub const fn new(key: SenseKey, asc: u8, ascq: u8) -> Sense {
        Sense { key, asc, ascq, is_deferred: false, information: None }
    }

    /// Parses sense data; `None` if the bytes are no sense data.
    pub fn parse(bytes: &[u8]) -> Option<Sense> {
        let bytes = &bytes[..bytes.len().min(SENSE_BYTES)];
        let code = bytes.first()? & 0x7f;
        match code {
            0x70 | 0x71 => Some(fixed(bytes, code == 0x71)),
            0x72 | 0x73 => Some(descriptors(bytes, code == 0x73)),
            _ => None,
        }
    }

    /// Returns the sense data as bytes of the fixed format, for simulated devices.
    pub fn to_fixed(self) -> [u8; 18] {
        let mut bytes = [0; 18];
        bytes[0] = 0x70 | u8::from(self.is_deferred);
        bytes[2] = self.key as u8;
        bytes[7] = 10;
        (bytes[12], bytes[13]) = (self.asc, self.ascq);
        if let Some(information) = self.information.and_then(|i| u32::try_from(i).ok()) {
            bytes[0] |= 0x80;
            bytes[3..7].copy_from_slice(&information.to_be_bytes());
        }
        bytes
    }
}

impl Sense {
    /// Whether the unit was stopped and waits for START UNIT.
    pub(super) fn wants_start(&self) -> bool {
        (self.key, self.asc, self.ascq) == (SenseKey::NotReady, 0x04, 0x02)
    }
}

impl core::fmt::Display for Sense {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let deferred = if self.is_deferred { " (deferred)" } else { "" };
        write!(f, "{}, {}{deferred}", self.key, Additional(self.asc, self.ascq))
    }
}

fn fixed(bytes: &[u8], is_deferred: bool) -> Sense {
    let at = |i: usize| bytes.get(i).copied().unwrap_or(0);
    // Bytes after the reported length are not part of the sense data.
    let end = 8 + usize::from(at(7));
    let told = |i: usize| if i < end { at(i) } else { 0 };
    let information = bytes.get(3..7).filter(|_| at(0) & 0x80 != 0);
    Sense {
        key: KEYS[usize::from(at(2) & 0xf)],
        asc: told(12),
        ascq: told(13),
        is_deferred,
        information: information.map(|b| b.iter().fold(0, |n, byte| n << 8 | u64::from(*byte))),
    }
}

fn descriptors(bytes: &[u8], is_deferred: bool) -> Sense {
    let at = |i: usize| bytes.get(i).copied().unwrap_or(0);
    let end = bytes.len().min(8 + usize::from(at(7)));
    let mut list = bytes.get(8..end).unwrap_or_default();
    let mut information = None;
    while let [kind, len, rest @ ..] = list {
        let len = usize::from(*len);
        let Some(body) = rest.get(..len) else { break };
        if let (0x00, [valid, _, value @ ..]) = (kind, body)
            && valid & 0x80 != 0
            && value.len() == 8
        {
            information = Some(value.iter().fold(0, |n, byte| n << 8 | u64::from(*byte)));
        }
        list = &rest[len..];
    }
    Sense { key: KEYS[usize::from(at(1) & 0xf)], asc: at(2), ascq: at(3), is_deferred, information }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_say_the_same() {
        let fixed = [0xf0, 0, 0x03, 0, 0, 0x12, 0x34, 10, 0, 0, 0, 0, 0x11, 0x04, 0, 0, 0, 0];
        let descriptor = [0x72, 0x03, 0x11, 0x04, 0, 0, 0, 12, 0, 0x0a, 0x80, 0, 0, 0, 0, 0, 0, 0, 0x12, 0x34];
        let is = Sense { information: Some(0x1234), ..Sense::new(SenseKey::MediumError, 0x11, 4) };
        assert_eq!(Sense::parse(&fixed), Some(is));
        assert_eq!(Sense::parse(&descriptor), Some(is));
        assert_eq!(Sense::parse(&is.to_fixed()), Some(is));
    }

    #[test]
    fn a_deferred_error_is_told_apart() {
        for code in [0x71, 0x73] {
            assert!(Sense::parse(&[code, 0, 0, 0]).unwrap().is_deferred);
        }
    }

    #[test]
    fn what_is_cut_reads_as_zero_and_what_is_none_is_none() {
        assert_eq!(Sense::parse(&[]), None);
        assert_eq!(Sense::parse(&[0x7f, 1, 2, 3]), None);
        assert_eq!(Sense::parse(&[0x70]), Some(Sense::new(SenseKey::NoSense, 0, 0)));
        assert_eq!(Sense::parse(&[0x70, 0, 5]).unwrap().key, SenseKey::IllegalRequest);
        // The reported length is shorter than the data.
        let short = [0x70, 0, 5, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0x24, 1, 0, 0, 0, 0];
        assert_eq!(Sense::parse(&short).unwrap().asc, 0);
        let longer = [0x72, 5, 0x24, 0, 0, 0, 0, 255, 0, 200, 0x80];
        assert_eq!(Sense::parse(&longer), Some(Sense::new(SenseKey::IllegalRequest, 0x24, 0)));
    }

    #[test]
    fn any_bytes_are_taken() {
        let mut state = 1_u64;
        for len in 0..300 {
            for code in 0x70..=0x74 {
                let mut bytes: Vec<u8> = (0..len)
                    .map(|_| {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        (state >> 33) as u8
                    })
                    .collect();
                if let Some(first) = bytes.first_mut() {
                    *first = code;
                }
                assert_eq!(Sense::parse(&bytes).is_some(), len > 0 && code != 0x74);
            }
        }
    }
}
