// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parsers for what a logical unit reports about itself: INQUIRY and its pages of vital product data, READ CAPACITY
//! (16), MODE SENSE (10), REPORT LUNS.
//!
//! Guarantees: any bytes from a device or the network are accepted, truncated anywhere. A missing field is `None`, or
//! zero if the standard defines shorter answers that way. Lengths in an answer are limited to the bytes that are
//! present. Does not do: send commands, or check that the values are those of a usable disk. Source: SPC-5 (6.6, 6.12,
//! 6.32, 7.7), SBC-4 (5.20, 6.5.3, 6.6).

use super::transport::LunId;

/// Pages of vital product data.
pub mod vpd {
    #![allow(missing_docs, reason = "the standards' names")]
    pub const SUPPORTED_PAGES: u8 = 0x00;
    pub const UNIT_SERIAL_NUMBER: u8 = 0x80;
    pub const DEVICE_IDENTIFICATION: u8 = 0x83;
    pub const BLOCK_LIMITS: u8 = 0xb0;
    pub const BLOCK_DEVICE_CHARACTERISTICS: u8 = 0xb1;
    pub const LOGICAL_BLOCK_PROVISIONING: u8 = 0xb2;
}

/// The mode page of caching.
pub const CACHING_PAGE: u8 = 0x08;
/// Maximum number of designators that are read.
const MAX_DESIGNATORS: usize = 32;

fn be<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    be(bytes, at).map(u16::from_be_bytes)
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    be(bytes, at).map(u32::from_be_bytes)
}

fn be64(bytes: &[u8], at: usize) -> Option<u64> {
    be(bytes, at).map(u64::from_be_bytes)
}

/// Returns the text without blanks around it; characters that are not printable become `?`.
pub(super) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    let all: String =
        bytes[..end].iter().map(|b| if b.is_ascii_graphic() || *b == b' ' { char::from(*b) } else { '?' }).collect();
    all.trim().to_owned()
}

/// The standard INQUIRY data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inquiry {
    /// Peripheral qualifier. 0: a device is connected; other values: no device is connected, or none is possible.
    pub qualifier: u8,
    /// Peripheral device type; 0 is a disk.
    pub device_type: u8,
    /// The manufacturer.
    pub vendor: String,
    /// The product identification.
    pub product: String,
    /// The product revision.
    pub revision: String,
}

impl Inquiry {
    /// Parses an answer to INQUIRY; `None` if it is too short.
    pub fn parse(bytes: &[u8]) -> Option<Inquiry> {
        let [first, _, _, _, _, ..] = bytes else { return None };
        let part = |from: usize, to: usize| text(bytes.get(from..to.min(bytes.len())).unwrap_or_default());
        Some(Inquiry {
            qualifier: first >> 5,
            device_type: first & 0x1f,
            vendor: part(8, 16),
            product: part(16, 32),
            revision: part(32, 36),
        })
    }

    /// Whether the unit is a connected disk (direct access or host-managed zoned).
    pub fn is_disk(&self) -> bool {
        self.qualifier == 0 && self.device_type == 0
    }
}

/// Returns the part of a page of vital product data after its header; `None` if the bytes are another page or no page.
pub fn page(bytes: &[u8], code: u8) -> Option<&[u8]> {
    let [_, is, _, _, rest @ ..] = bytes else { return None };
    let len = usize::from(be16(bytes, 2)?);
    (*is == code).then(|| rest.get(..len).unwrap_or(rest))
}

/// Whether the list of supported pages contains this page.
pub fn has_page(supported: &[u8], code: u8) -> bool {
    page(supported, vpd::SUPPORTED_PAGES).is_some_and(|list| list.contains(&code))
}

/// The serial number; `None` if there is none.
pub fn serial_number(bytes: &[u8]) -> Option<String> {
    page(bytes, vpd::UNIT_SERIAL_NUMBER).map(text).filter(|serial| !serial.is_empty())
}

/// A designator (identifier) of a logical unit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Designator {
    /// Designator type: 1 = T10 vendor, 2 = EUI-64, 3 = NAA, 8 = SCSI name.
    pub kind: u8,
    /// 1 = binary, 2 = ASCII, 3 = UTF-8.
    pub code_set: u8,
    /// The bytes of the identifier.
    pub name: Vec<u8>,
}

/// Identity of a logical unit: its identifiers, which are the same on every path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Designators of the logical unit, not of ports, sorted by their bytes.
    pub designators: Vec<Designator>,
    /// The serial number of page 0x80.
    pub serial: Option<String>,
}

impl Identity {
    /// Makes the identity from pages 0x83 and 0x80; a page that the device does not have is empty.
    pub fn parse(designation: &[u8], serial: &[u8]) -> Identity {
        Identity { designators: designators(designation), serial: serial_number(serial) }
    }

    /// Returns all identifiers and the serial number as text for comparison. The text is the same on all paths to a
    /// disk.
    pub fn in_full(&self) -> String {
        self.names().join(", ")
    }

    /// Returns the identifiers that only this identity has, and those that only `other` has. `None` instead of none.
    pub fn difference(&self, other: &Identity) -> [Option<String>; 2] {
        let (ours, theirs) = (self.names(), other.names());
        let only = |of: &[String], others: &[String]| {
            let own: Vec<&str> = of.iter().filter(|name| !others.contains(name)).map(String::as_str).collect();
            (!own.is_empty()).then(|| own.join(", "))
        };
        [only(&ours, &theirs), only(&theirs, &ours)]
    }

    fn names(&self) -> Vec<String> {
        let name = |d: &Designator| -> String {
            let name: String = match d.code_set {
                1 => d.name.iter().map(|byte| format!("{byte:02x}")).collect(),
                _ => text(&d.name),
            };
            format!("{}.{name}", d.kind)
        };
        let serial = self.serial.iter().map(|serial| format!("serial {serial}"));
        self.designators.iter().map(name).chain(serial).collect()
    }

    /// Whether the unit has any identifier or serial number.
    pub fn is_known(&self) -> bool {
        !self.designators.is_empty() || self.serial.is_some()
    }
}

impl core::fmt::Display for Identity {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // The best designator: NAA before EUI-64 before others.
        let rank = |d: &&Designator| match d.kind {
            3 => 0,
            2 => 1,
            8 => 2,
            _ => 3,
        };
        match (self.designators.iter().min_by_key(rank), &self.serial) {
            (Some(d), _) if d.code_set == 1 => d.name.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
            (Some(d), _) => f.write_str(&text(&d.name)),
            (None, Some(serial)) => write!(f, "serial {serial}"),
            (None, None) => f.write_str("without a name"),
        }
    }
}

fn designators(bytes: &[u8]) -> Vec<Designator> {
    let mut all = unit_designators(bytes);
    all.sort();
    all
}

/// Returns the designators of the logical unit in page 0x83, in the order of the page.
pub(super) fn unit_designators(bytes: &[u8]) -> Vec<Designator> {
    let mut list = page(bytes, vpd::DEVICE_IDENTIFICATION).unwrap_or_default();
    let mut all = Vec::new();
    while let [sets, kinds, _, len, rest @ ..] = list {
        let Some(name) = rest.get(..usize::from(*len)) else { break };
        // Association 0: the logical unit.
        if kinds & 0x30 == 0 && !name.is_empty() && all.len() < MAX_DESIGNATORS {
            all.push(Designator { kind: kinds & 0xf, code_set: sets & 0xf, name: name.to_owned() });
        }
        list = &rest[name.len()..];
    }
    all
}

/// Page 0xb0 (block limits). Zero: not reported by the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockLimits {
    /// Maximum number of blocks of one transfer.
    pub max_transfer: u32,
    /// Maximum number of blocks of one UNMAP.
    pub max_unmap: u32,
    /// Maximum number of ranges of one UNMAP.
    pub max_unmap_ranges: u32,
    /// Blocks that are unmapped together.
    pub unmap_granularity: u32,
    /// Maximum number of blocks of one WRITE SAME.
    pub max_write_same: u64,
}

impl BlockLimits {
    /// Parses the page; without a page all fields are zero.
    pub fn parse(bytes: &[u8]) -> BlockLimits {
        let Some(page) = page(bytes, vpd::BLOCK_LIMITS) else { return BlockLimits::default() };
        // Offsets in the standard include the header.
        let at = |offset: usize| be32(page, offset - 4).unwrap_or(0);
        BlockLimits {
            max_transfer: at(8),
            max_unmap: at(20),
            max_unmap_ranges: at(24),
            unmap_granularity: at(28),
            max_write_same: be64(page, 36 - 4).unwrap_or(0),
        }
    }
}

/// Whether page 0xb1 says that the medium rotates; `None` if that is not reported, so that the medium may rotate.
pub fn is_rotational(bytes: &[u8]) -> Option<bool> {
    let rate = be16(page(bytes, vpd::BLOCK_DEVICE_CHARACTERISTICS)?, 0)?;
    // 0: not reported; 1: does not rotate.
    (rate != 0).then_some(rate != 1)
}

/// Page 0xb2 (logical block provisioning): the commands that unmap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Provisioning {
    /// UNMAP.
    pub unmap: bool,
    /// WRITE SAME (16) with the unmap bit.
    pub write_same_16: bool,
}

impl Provisioning {
    /// Parses the page; without a page no command unmaps.
    pub fn parse(bytes: &[u8]) -> Provisioning {
        let flags = page(bytes, vpd::LOGICAL_BLOCK_PROVISIONING).and_then(|p| p.get(1)).copied().unwrap_or(0);
        Provisioning { unmap: flags & 0x80 != 0, write_same_16: flags & 0x40 != 0 }
    }
}

/// The answer to READ CAPACITY (16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Blocks of the medium.
    pub blocks: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// Logical blocks per physical block, as an exponent of two.
    pub physical_exponent: u8,
    /// Blocks may be unmapped.
    pub is_thin: bool,
    /// Unmapped blocks read as zeroes.
    pub reads_zeroes: bool,
}

impl Capacity {
    /// Parses the answer; `None` if it is too short, or if its number of blocks is not valid.
    pub fn parse(bytes: &[u8]) -> Option<Capacity> {
        let flags = |at: usize| bytes.get(at).copied().unwrap_or(0);
        Some(Capacity {
            blocks: be64(bytes, 0)?.checked_add(1)?,
            block_size: be32(bytes, 8)?,
            physical_exponent: flags(13) & 0xf,
            is_thin: flags(14) & 0x80 != 0,
            reads_zeroes: flags(14) & 0x40 != 0,
        })
    }
}

/// The answer to MODE SENSE (10) of [`CACHING_PAGE`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caching {
    /// Writes are rejected.
    pub write_protected: bool,
    /// FUA is honoured.
    pub fua: bool,
    /// There is a volatile write cache.
    pub write_cache: bool,
}

impl Caching {
    /// Parses the answer; `None` if it is not valid. Without the page there is no write cache.
    pub fn parse(bytes: &[u8]) -> Option<Caching> {
        let specific = *bytes.get(3)?;
        let descriptors = usize::from(be16(bytes, 6)?);
        let page = bytes.get(8 + descriptors..).unwrap_or_default();
        let is_caching = page.first().is_some_and(|code| code & 0x3f == CACHING_PAGE);
        let flags = page.get(2).copied().filter(|_| is_caching).unwrap_or(0);
        Some(Caching {
            write_protected: specific & 0x80 != 0,
            fua: specific & 0x10 != 0,
            write_cache: flags & 0x04 != 0,
        })
    }
}

/// Returns the logical units with simple addresses in the answer to REPORT LUNS.
pub fn luns(bytes: &[u8]) -> Vec<LunId> {
    let told = be32(bytes, 0).map_or(0, |n| n as usize);
    let list = bytes.get(8..).unwrap_or_default();
    let list = list.get(..told).unwrap_or(list);
    list.chunks_exact(8).filter_map(|lun| LunId::from_wire(*lun.first_chunk()?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vpd_page(code: u8, body: &[u8]) -> Vec<u8> {
        [&[0, code, 0, body.len() as u8], body].concat()
    }

    #[test]
    fn standard_data_is_read_and_cleaned() {
        let mut bytes = [0_u8; 36];
        bytes[8..16].copy_from_slice(b"IET     ");
        bytes[16..32].copy_from_slice(b"VIRTUAL\x1b-DISK   ");
        bytes[32..36].copy_from_slice(b"0001");
        let inquiry = Inquiry::parse(&bytes).unwrap();
        assert_eq!((inquiry.vendor.as_str(), inquiry.product.as_str()), ("IET", "VIRTUAL?-DISK"));
        assert_eq!(inquiry.revision, "0001");
        assert!(inquiry.is_disk());
        bytes[0] = 0x7f;
        assert!(!Inquiry::parse(&bytes).unwrap().is_disk());
        assert_eq!(Inquiry::parse(&bytes[..4]), None);
        assert_eq!(Inquiry::parse(&bytes[..12]).unwrap().vendor, "IET");
    }

    #[test]
    fn names_of_the_unit_are_told_from_those_of_its_port_and_sorted() {
        let naa = [0x01, 0x03, 0, 8, 0x60, 1, 2, 3, 4, 5, 6, 7];
        let vendor = [0x02, 0x01, 0, 3, b'a', b'b', b'c'];
        let port = [0x01, 0x13, 0, 4, 9, 9, 9, 9];
        let one = vpd_page(0x83, &[&naa[..], &vendor, &port].concat());
        let other = vpd_page(0x83, &[&vendor[..], &naa].concat());
        let serial = vpd_page(0x80, b" SN1 ");
        let identity = Identity::parse(&one, &serial);
        assert_eq!(identity, Identity::parse(&other, &serial), "order and port do not matter");
        assert_eq!(identity.designators.len(), 2);
        assert_eq!(identity.to_string(), "6001020304050607");
        assert_ne!(identity, Identity::parse(&vpd_page(0x83, &vendor), &serial));
        assert_eq!(Identity::parse(&[], &serial).to_string(), "serial SN1");
        // The best designator is the same.
        let of_serial = |serial: &str| Identity { serial: Some(serial.to_owned()), ..identity.clone() };
        let differences = of_serial("A").difference(&of_serial("B"));
        assert_eq!(differences, [Some("serial A".to_owned()), Some("serial B".to_owned())]);
        let nameless = Identity { serial: None, ..identity.clone() };
        assert_eq!(nameless.difference(&of_serial("B")), [None, Some("serial B".to_owned())]);
        assert!(!Identity::parse(&one[..3], &[]).is_known());
        // Truncated in the middle of the second designator: only the first counts.
        let mut cut = one.clone();
        cut.truncate(4 + naa.len() + 5);
        assert_eq!(Identity::parse(&cut, &[]).designators.len(), 1);
    }

    #[test]
    fn limits_provisioning_and_capacity_are_the_standards_fields() {
        let mut body = [0; 60];
        body[4..8].copy_from_slice(&8192_u32.to_be_bytes());
        body[16..20].copy_from_slice(&0x8000_u32.to_be_bytes());
        body[24..28].copy_from_slice(&8_u32.to_be_bytes());
        body[32..40].copy_from_slice(&0x1_0000_u64.to_be_bytes());
        let limits = BlockLimits::parse(&vpd_page(0xb0, &body));
        assert_eq!((limits.max_transfer, limits.max_unmap, limits.unmap_granularity), (8192, 0x8000, 8));
        assert_eq!(limits.max_write_same, 0x1_0000);
        assert_eq!(BlockLimits::parse(&vpd_page(0xb0, &body[..12])).max_unmap, 0);
        assert_eq!(BlockLimits::parse(&vpd_page(0xb1, &body)), BlockLimits::default());
        assert!(Provisioning::parse(&vpd_page(0xb2, &[0, 0xc0])).write_same_16);
        assert_eq!(
            [[0, 0], [0, 1], [0x1c, 0x20]].map(|r| is_rotational(&vpd_page(0xb1, &r))),
            [None, Some(false), Some(true)]
        );
        let mut answer = [0; 32];
        answer[..8].copy_from_slice(&1023_u64.to_be_bytes());
        answer[8..12].copy_from_slice(&512_u32.to_be_bytes());
        (answer[13], answer[14]) = (3, 0xc0);
        let is = Capacity { blocks: 1024, block_size: 512, physical_exponent: 3, is_thin: true, reads_zeroes: true };
        assert_eq!(Capacity::parse(&answer), Some(is));
        assert_eq!(Capacity::parse(&answer[..11]), None);
        assert_eq!(Capacity::parse(&[0xff; 32]), None, "2^64 blocks");
    }

    #[test]
    fn caching_is_found_behind_block_descriptors() {
        let plain = [0, 0, 0, 0x90, 0, 0, 0, 0, 0x08, 0x12, 0x04];
        assert_eq!(Caching::parse(&plain), Some(Caching { write_protected: true, fua: true, write_cache: true }));
        let behind = [0, 0, 0, 0, 0, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0x88, 0x12, 0x04];
        assert!(Caching::parse(&behind).unwrap().write_cache);
        assert!(!Caching::parse(&behind[..18]).unwrap().write_cache);
        assert_eq!(Caching::parse(&plain[..7]), None);
    }

    #[test]
    fn luns_are_read_as_far_as_they_go() {
        let mut answer = vec![0, 0, 0, 24, 0, 0, 0, 0];
        [LunId(0), LunId(1), LunId(0x123)].iter().for_each(|lun| answer.extend(lun.to_wire()));
        assert_eq!(luns(&answer), [LunId(0), LunId(1), LunId(0x123)]);
        assert_eq!(luns(&answer[..20]), [LunId(0)]);
        answer[3] = 8;
        assert_eq!(luns(&answer), [LunId(0)], "more than it says");
        answer[..4].fill(0xff);
        assert_eq!(luns(&answer).len(), 3);
        answer[8] = 0xc0;
        assert_eq!(luns(&answer).len(), 2, "a well known one is left out");
        assert_eq!((luns(&[]), luns(&[0; 7])), (vec![], vec![]));
    }

    #[test]
    fn any_bytes_are_taken() {
        let mut state = 7_u64;
        for len in 0..400 {
            for code in [0x00, 0x80, 0x83, 0xb0, 0xb1, 0xb2] {
                let mut bytes: Vec<u8> = (0..len)
                    .map(|_| {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        (state >> 33) as u8
                    })
                    .collect();
                if let Some(second) = bytes.get_mut(1) {
                    *second = code;
                }
                let _ =
                    (Inquiry::parse(&bytes), Identity::parse(&bytes, &bytes).to_string(), BlockLimits::parse(&bytes));
                let _ = (Capacity::parse(&bytes), Caching::parse(&bytes), Provisioning::parse(&bytes));
                let _ = (is_rotational(&bytes), has_page(&bytes, code), luns(&bytes).len());
            }
        }
    }
}
