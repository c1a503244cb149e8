// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands for SCSI disks as bytes: command descriptor blocks, and the parameter list of UNMAP.
//!
//! Guarantees: every block that can be built is well-formed. Values that do not fit their fields cause a panic, because
//! lengths come from limits that were checked, not from outside. Does not do: send commands, or know their timeouts.
//! Source: SPC-5 (TEST UNIT READY, INQUIRY, REPORT LUNS, REQUEST SENSE, MODE SENSE, MAINTENANCE IN, PERSISTENT RESERVE),
//! SBC-4 (the others); drivers/scsi/sd.c for the choice between several forms of a command.

/// Operation codes.
pub mod opcode {
    #![allow(missing_docs, reason = "the standards' names")]
    pub const TEST_UNIT_READY: u8 = 0x00;
    pub const REQUEST_SENSE: u8 = 0x03;
    pub const INQUIRY: u8 = 0x12;
    pub const START_STOP_UNIT: u8 = 0x1b;
    pub(crate) const READ_10: u8 = 0x28;
    pub(crate) const WRITE_10: u8 = 0x2a;
    pub(crate) const SYNCHRONIZE_CACHE_10: u8 = 0x35;
    pub const UNMAP: u8 = 0x42;
    pub const MODE_SENSE_10: u8 = 0x5a;
    pub(crate) const PERSISTENT_RESERVE_IN: u8 = 0x5e;
    pub(crate) const PERSISTENT_RESERVE_OUT: u8 = 0x5f;
    pub(crate) const READ_16: u8 = 0x88;
    pub(crate) const COMPARE_AND_WRITE: u8 = 0x89;
    pub(crate) const WRITE_16: u8 = 0x8a;
    pub(crate) const SYNCHRONIZE_CACHE_16: u8 = 0x91;
    pub(crate) const WRITE_SAME_16: u8 = 0x93;
    pub(crate) const SERVICE_ACTION_IN_16: u8 = 0x9e;
    pub const REPORT_LUNS: u8 = 0xa0;
    pub(crate) const MAINTENANCE_IN: u8 = 0xa3;
    pub(crate) const MAINTENANCE_OUT: u8 = 0xa4;
}

/// READ CAPACITY (16) is this service action of SERVICE ACTION IN (16).
const READ_CAPACITY_16: u8 = 0x10;
/// REPORT TARGET PORT GROUPS is this service action of MAINTENANCE IN.
const REPORT_TARGET_PORT_GROUPS: u8 = 0x0a;
/// SET TARGET PORT GROUPS is this service action of MAINTENANCE OUT.
const SET_TARGET_PORT_GROUPS: u8 = 0x0a;
/// Flag of REPORT TARGET PORT GROUPS: the answer begins with how long a transition may take. Not every target supports
/// it.
const EXTENDED_HEADER: u8 = 1 << 5;
/// The data is on the medium when the write completes.
const FUA: u8 = 1 << 3;

/// A command descriptor block of 6, 10, 12 or 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cdb {
    bytes: [u8; 16],
    len: u8,
}

impl Cdb {
    const fn new(opcode: u8) -> Cdb {
        let mut bytes = [0; 16];
        bytes[0] = opcode;
        let len = match opcode >> 5 {
            0 => 6,
            1 | 2 => 10,
            4 => 16,
            5 => 12,
            _ => panic!("no group of this length"),
        };
        Cdb { bytes, len }
    }

    /// The bytes, operation code first.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The operation code.
    #[inline]
    pub fn opcode(&self) -> u8 {
        self.bytes[0]
    }

    /// Returns the block in a field of 16 bytes, padded with zeroes, as transports carry it.
    #[inline]
    pub fn padded(&self) -> &[u8; 16] {
        &self.bytes
    }

    #[inline]
    fn put<const N: usize>(mut self, at: usize, value: [u8; N]) -> Cdb {
        self.bytes[at..at + N].copy_from_slice(&value);
        self
    }

    /// TEST UNIT READY.
    pub fn test_unit_ready() -> Cdb {
        Cdb::new(opcode::TEST_UNIT_READY)
    }

    /// REQUEST SENSE in fixed format, up to `allocation` bytes.
    pub(crate) fn request_sense(allocation: u8) -> Cdb {
        Cdb::new(opcode::REQUEST_SENSE).put(4, [allocation])
    }

    /// INQUIRY: the standard data, or a page of vital product data.
    pub fn inquiry(page: Option<u8>, allocation: u16) -> Cdb {
        let page = [u8::from(page.is_some()), page.unwrap_or(0)];
        Cdb::new(opcode::INQUIRY).put(1, page).put(3, allocation.to_be_bytes())
    }

    /// START STOP UNIT: start.
    pub(crate) fn start_unit() -> Cdb {
        Cdb::new(opcode::START_STOP_UNIT).put(4, [1])
    }

    /// REPORT LUNS, all but well-known ones.
    pub fn report_luns(allocation: u32) -> Cdb {
        Cdb::new(opcode::REPORT_LUNS).put(6, allocation.to_be_bytes())
    }

    /// READ CAPACITY (16).
    pub fn read_capacity_16(allocation: u32) -> Cdb {
        Cdb::new(opcode::SERVICE_ACTION_IN_16).put(1, [READ_CAPACITY_16]).put(10, allocation.to_be_bytes())
    }

    /// MODE SENSE (10) of a page's current values, without block descriptors.
    pub fn mode_sense_10(page: u8, allocation: u16) -> Cdb {
        assert!(page < 0x40, "mode page {page:#x}: must be below 0x40");
        Cdb::new(opcode::MODE_SENSE_10).put(1, [1 << 3, page]).put(7, allocation.to_be_bytes())
    }

    /// REPORT TARGET PORT GROUPS, with the extended header or not.
    pub fn report_target_port_groups(allocation: u32, extended: bool) -> Cdb {
        let format = if extended { EXTENDED_HEADER } else { 0 };
        let cdb = Cdb::new(opcode::MAINTENANCE_IN);
        cdb.put(1, [REPORT_TARGET_PORT_GROUPS | format]).put(6, allocation.to_be_bytes())
    }

    /// SET TARGET PORT GROUPS, with a parameter list of this many bytes.
    pub(crate) fn set_target_port_groups(parameters: u32) -> Cdb {
        let cdb = Cdb::new(opcode::MAINTENANCE_OUT);
        cdb.put(1, [SET_TARGET_PORT_GROUPS]).put(6, parameters.to_be_bytes())
    }

    /// READ of at least one block: READ (10) if the values fit, otherwise or with `wide` READ (16).
    #[inline]
    pub fn read(lba: u64, blocks: u32, wide: bool) -> Cdb {
        Cdb::transfer(opcode::READ_10, opcode::READ_16, lba, blocks, 0, wide)
    }

    /// WRITE of at least one block; with `fua`, its data is on the medium when the command completes.
    #[inline]
    pub fn write(lba: u64, blocks: u32, fua: bool, wide: bool) -> Cdb {
        Cdb::transfer(opcode::WRITE_10, opcode::WRITE_16, lba, blocks, if fua { FUA } else { 0 }, wide)
    }

    #[inline]
    fn transfer(narrow: u8, full: u8, lba: u64, blocks: u32, flags: u8, wide: bool) -> Cdb {
        assert!(blocks > 0, "a transfer of no blocks");
        match (u32::try_from(lba), u16::try_from(blocks)) {
            (Ok(lba), Ok(blocks)) if !wide => {
                Cdb::new(narrow).put(1, [flags]).put(2, lba.to_be_bytes()).put(7, blocks.to_be_bytes())
            }
            _ => Cdb::new(full).put(1, [flags]).put(2, lba.to_be_bytes()).put(10, blocks.to_be_bytes()),
        }
    }

    /// SYNCHRONIZE CACHE of the whole medium: (10), or (16) with `wide`.
    pub(crate) fn synchronize_cache(wide: bool) -> Cdb {
        Cdb::new(if wide { opcode::SYNCHRONIZE_CACHE_16 } else { opcode::SYNCHRONIZE_CACHE_10 })
    }

    /// UNMAP with a parameter list of `UNMAP_BYTES`.
    pub fn unmap() -> Cdb {
        Cdb::new(opcode::UNMAP).put(7, (UNMAP_BYTES as u16).to_be_bytes())
    }

    /// WRITE SAME (16) with one block of zeroes as data. With `unmap` the device may unmap the blocks; unmapped blocks read as
    /// zeroes only if READ CAPACITY says so (LBPRZ).
    pub fn write_same_16(lba: u64, blocks: u32, unmap: bool) -> Cdb {
        assert!(blocks > 0, "WRITE SAME of no blocks means all of the medium");
        let flags = if unmap { FUA } else { 0 };
        Cdb::new(opcode::WRITE_SAME_16).put(1, [flags]).put(2, lba.to_be_bytes()).put(10, blocks.to_be_bytes())
    }

    /// COMPARE AND WRITE: the data has `blocks` blocks to compare, then as many to write.
    pub fn compare_and_write(lba: u64, blocks: u8) -> Cdb {
        Cdb::new(opcode::COMPARE_AND_WRITE).put(2, lba.to_be_bytes()).put(13, [blocks])
    }

    /// PERSISTENT RESERVE IN with one of its service actions (0 = keys, 1 = reservation, 2 = capabilities, 3 = full status).
    pub fn persistent_reserve_in(action: u8, allocation: u16) -> Cdb {
        assert!(action < 0x20, "service action {action:#x}: must be below 0x20");
        Cdb::new(opcode::PERSISTENT_RESERVE_IN).put(1, [action]).put(7, allocation.to_be_bytes())
    }

    /// PERSISTENT RESERVE OUT with one of its service actions, and scope and type of the reservation.
    pub fn persistent_reserve_out(action: u8, scope_and_type: u8, parameters: u32) -> Cdb {
        assert!(action < 0x20, "service action {action:#x}: must be below 0x20");
        let cdb = Cdb::new(opcode::PERSISTENT_RESERVE_OUT).put(1, [action, scope_and_type]);
        cdb.put(5, parameters.to_be_bytes())
    }
}

/// Bytes of the parameter list of an UNMAP of one range.
pub(crate) const UNMAP_BYTES: usize = 24;

/// The parameter list of an UNMAP of one range.
pub(crate) fn unmap_parameters(lba: u64, blocks: u32) -> [u8; UNMAP_BYTES] {
    let mut list = [0; UNMAP_BYTES];
    list[0..2].copy_from_slice(&(UNMAP_BYTES as u16 - 2).to_be_bytes());
    list[2..4].copy_from_slice(&(UNMAP_BYTES as u16 - 8).to_be_bytes());
    list[8..16].copy_from_slice(&lba.to_be_bytes());
    list[16..20].copy_from_slice(&blocks.to_be_bytes());
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_the_standards_bytes() {
        let cases: [(Cdb, &[u8]); 14] = [
            (Cdb::test_unit_ready(), &[0; 6]),
            (Cdb::inquiry(Some(0x83), 0x104), &[0x12, 1, 0x83, 1, 4, 0]),
            (Cdb::inquiry(None, 36), &[0x12, 0, 0, 0, 36, 0]),
            (Cdb::read(0x0102_0304, 8, false), &[0x28, 0, 1, 2, 3, 4, 0, 0, 8, 0]),
            (Cdb::write(1, 0xffff, true, false), &[0x2a, 8, 0, 0, 0, 1, 0, 0xff, 0xff, 0]),
            (Cdb::synchronize_cache(false), &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            (Cdb::unmap(), &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0]),
            (Cdb::read_capacity_16(32), &[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0]),
            (Cdb::report_luns(256), &[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]),
            (Cdb::report_target_port_groups(512, false), &[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0]),
            (Cdb::report_target_port_groups(512, true), &[0xa3, 0x2a, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0]),
            (Cdb::set_target_port_groups(8), &[0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0]),
            (Cdb::write_same_16(5, 2, true), &[0x93, 8, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0]),
            (Cdb::persistent_reserve_out(1, 5, 24), &[0x5f, 1, 5, 0, 0, 0, 0, 0, 24, 0]),
        ];
        for (cdb, bytes) in cases {
            assert_eq!(cdb.as_bytes(), bytes);
            assert_eq!(cdb.padded()[bytes.len()..], [0; 16][bytes.len()..]);
        }
    }

    #[test]
    fn long_cdb_is_used_where_the_short_one_does_not_fit() {
        let opcodes = [
            Cdb::read(u64::from(u32::MAX), 1, false),
            Cdb::read(1 << 32, 1, false),
            Cdb::write(0, 0x1_0000, false, false),
            Cdb::write(0, 1, false, true),
        ]
        .map(|cdb| cdb.opcode());
        assert_eq!(opcodes, [opcode::READ_10, opcode::READ_16, opcode::WRITE_16, opcode::WRITE_16]);
        let far = Cdb::write(0x0102_0304_0506_0708, 0x0a0b_0c0d, true, false);
        assert_eq!(far.as_bytes(), [0x8a, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0x0a, 0x0b, 0x0c, 0x0d, 0, 0]);
    }

    #[test]
    fn an_unmap_says_its_lengths() {
        let list = unmap_parameters(0x10, 0x20);
        assert_eq!(list[..8], [0, 22, 0, 16, 0, 0, 0, 0]);
        assert_eq!(list[8..], [0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0x20, 0, 0, 0, 0]);
    }
}
