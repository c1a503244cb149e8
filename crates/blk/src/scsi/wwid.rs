// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The world wide identifier (WWID) that udev and multipath use for a SCSI disk: `wwid` of multipath.conf(5).
//!
//! Guarantees: any input bytes are accepted, and the text is printable. Of the designators in page 0x83 it takes the one that
//! multipath-tools prefers, in this order: NAA (6, 5, 2), EUI-64, a SCSI name, T10 vendor, a locally assigned NAA. Of two with
//! equal rank it takes the first. Without any, the WWID is `S`, vendor, product and serial number, as in scsi_id. Does not do:
//! vendor specific designators (type 0). Source: multipath-tools, libmultipath/discovery.c (`parse_vpd_pg83`); systemd,
//! src/udev/scsi_id (`do_scsi_page80_inquiry`).

use super::inquiry::{Designator, Inquiry, serial_number, text, unit_designators};

/// Returns the WWID from standard INQUIRY data and pages 0x83 and 0x80; a page that the device does not have is empty.
/// `None`: the disk has no WWID.
pub fn wwid(inquiry: &Inquiry, designation: &[u8], serial: &[u8]) -> Option<String> {
    let all = unit_designators(designation);
    // `max_by_key` returns the last maximum, so the first one of the page because of `rev`.
    let best = all.iter().rev().filter_map(|d| Some((rank(d)?, d))).max_by_key(|(rank, _)| *rank);
    match best {
        Some((_, name)) => Some(named(name)),
        None => {
            let serial = serial_number(serial)?;
            let Inquiry { vendor, product, .. } = inquiry;
            Some(joined(&format!("S{vendor:8}{product:16}{serial}")))
        }
    }
}

/// Returns the rank of a designator, higher is better; `None`: the designator is not well-formed.
fn rank(designator: &Designator) -> Option<u32> {
    let name = &designator.name[..];
    match (designator.kind, name.len()) {
        (3, 16) if name[0] >> 4 == 6 => Some(8),
        (3, 8) => match name[0] >> 4 {
            5 => Some(7),
            2 => Some(6),
            3 => Some(1),
            _ => None,
        },
        (2, 8 | 12 | 16) => Some(4),
        (8, _) => [&b"eui."[..], b"naa.", b"iqn."].iter().any(|form| name.starts_with(form)).then_some(3),
        (1, 8..) => Some(2),
        _ => None,
    }
}

/// Returns the identifier as text, after the digit of its type.
fn named(designator: &Designator) -> String {
    let name = &designator.name[..];
    match designator.kind {
        kind @ (2 | 3) => {
            let digits: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{kind}{digits}")
        }
        8 => {
            let rest = text(name.get(4..).unwrap_or_default());
            match name.get(..4) {
                Some(b"eui.") => format!("2{}", rest.to_ascii_lowercase()),
                Some(b"naa.") => format!("3{}", rest.to_ascii_lowercase()),
                _ => format!("8{rest}"),
            }
        }
        _ => joined(&format!("1{}", text(name))),
    }
}

/// Replaces each run of blanks with one `_`.
fn joined(text: &str) -> String {
    text.split_ascii_whitespace().collect::<Vec<_>>().join("_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(designators: &[(u8, &[u8])], serial: &str) -> Option<String> {
        let body: Vec<u8> =
            designators.iter().flat_map(|(kind, name)| [&[2, *kind, 0, name.len() as u8], *name].concat()).collect();
        let page = |code: u8, body: &[u8]| [&[0, code, 0, body.len() as u8], body].concat();
        let mut data = [b' '; 36];
        data[..8].copy_from_slice(&[0, 0, 5, 2, 31, 0, 0, 0]);
        data[8..11].copy_from_slice(b"IET");
        data[16..28].copy_from_slice(b"VIRTUAL-DISK");
        wwid(&Inquiry::parse(&data).unwrap(), &page(0x83, &body), &page(0x80, serial.as_bytes()))
    }

    #[test]
    fn the_name_is_the_one_that_multipath_prefers() {
        let t10: (u8, &[u8]) = (1, b"IET     00010001");
        let naa6: (u8, &[u8]) = (3, &[0x60, 0, 0, 0, 0, 0, 0, 0, 0x0e, 0, 0, 0, 0, 1, 0, 1]);
        let naa5: (u8, &[u8]) = (3, &[0x50, 1, 2, 3, 4, 5, 6, 0xab]);
        let local: (u8, &[u8]) = (3, &[0x30, 0, 0, 1, 0, 0, 0, 1]);
        let is = |designators: &[(u8, &[u8])], wwid: &str| assert_eq!(of(designators, "").as_deref(), Some(wwid));
        is(&[t10, naa5, naa6], "360000000000000000e00000000010001");
        is(&[t10, naa5], "350010203040506ab");
        is(&[naa5, (3, &[0x50, 9, 9, 9, 9, 9, 9, 9])], "350010203040506ab");
        is(&[local, t10], "1IET_00010001");
        is(&[local], "33000000100000001");
        is(&[t10, (2, &[1; 8])], "20101010101010101");
        is(&[t10, (8, b"naa.600A0B8000ABCDEF\0\0")], "3600a0b8000abcdef");
        is(&[(8, b"iqn.2026-11.test:d,L,0x01")], "82026-11.test:d,L,0x01");
        // Designators that are not of the unit, or not well-formed.
        assert_eq!(
            of(&[(0x13, &[0x50, 1, 2, 3, 4, 5, 6, 7]), (3, &[0x60; 8]), (1, b"short"), (0, b"anything")], ""),
            None
        );
        assert_eq!(of(&[], "beaf 11").as_deref(), Some("SIET_VIRTUAL-DISK_beaf_11"));
    }

    #[test]
    fn any_bytes_are_taken() {
        let data = Inquiry::parse(&[0; 5]).unwrap();
        let bytes: Vec<u8> = (0..600_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
        for cut in 0..bytes.len() {
            let page = [&[0, 0x83, 0xff, 0xff], &bytes[cut..]].concat();
            if let Some(name) = wwid(&data, &page, &page) {
                assert!(name.chars().all(|c| c.is_ascii_graphic()), "{name:?}");
            }
        }
    }
}
