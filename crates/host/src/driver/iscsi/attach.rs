// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads a logical unit's identity, size and limits, in a session of its own.
//!
//! Guarantees: a unit that cannot be used as a disk is refused with the reason. Does not support devices that have only READ CAPACITY
//! (10).
//! Source: SPC-5, SBC-4; which answers are believed: drivers/scsi/sd.c (`sd_revalidate_disk`) of Linux 6.19.

use super::dial::{Answer, Line};
use crate::driver::path::DiskNames;
use crate::error::{Error, ErrorKind, Result};
use blk::id::SECTOR_SHIFT;
use blk::limits::Limits;
use blk::scsi::cdb::{Cdb, opcode};
use blk::scsi::disk::{DiskOptions, SD_MAX_RETRIES};
use blk::scsi::disposition::{Failfast, sam};
use blk::scsi::inquiry::{
    BlockLimits, CACHING_PAGE, Caching, Capacity, Identity, Inquiry, Provisioning, has_page, is_rotational, vpd,
};
use blk::scsi::sense::{Sense, SenseKey};
use blk::scsi::transport::LunId;
use blk::scsi::wwid::wwid;

/// Maximum number of bytes of an answer that are requested.
const ALLOCATION: u16 = 1024;
/// Maximum number of restarts of the inquiry.
const MAX_CHANGES: u32 = 4;
/// Maximum number of sectors of one command here: 16 MiB, which is less than `SD_MAX_XFER_BLOCKS`.
pub(super) const MAX_SECTORS: u32 = 16 << 11;
/// Maximum number of blocks of one WRITE SAME or UNMAP if the device reports no limit (`SD_MAX_WS16_BLOCKS`).
const MAX_RANGE_BLOCKS: u64 = 0x7f_ffff;

/// The properties that must not change while a logical unit is in use, and its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    pub(super) identity: Identity,
    /// These may change: new firmware has another revision.
    pub(super) names: DiskNames,
    pub(super) blocks: u64,
    pub(super) block_size: u32,
}

impl Unit {
    /// Whether `now` is still the same unit for its user. It may have grown; the old size is used until the new one is adopted.
    pub(super) fn is_still(&self, now: &Unit) -> bool {
        self.identity == now.identity && self.block_size == now.block_size && self.blocks <= now.blocks
    }

    /// Describes how `now` differs, for a unit that is not the same: by the identifiers that differ, or by its size.
    pub(super) fn change_to(&self, now: &Unit) -> String {
        match self.identity.difference(&now.identity) {
            [Some(was), Some(is)] => format!("was {was} and is now {is}"),
            [Some(was), None] => format!("was {was} and now reports no such identifier"),
            [None, Some(is)] => format!("is {is}, which it did not report before"),
            [None, None] => format!("was {self} and is now {now}"),
        }
    }
}

impl std::fmt::Display for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} blocks of {} bytes", self.identity, self.blocks, self.block_size)
    }
}

fn refused(lun: LunId, why: &str) -> Error {
    Error::new(ErrorKind::Denied, format!("LUN {}: {why}", lun.0))
}

/// Additional sense code LOGICAL UNIT NOT SUPPORTED. SPC requires an answer to INQUIRY even then, but Linux's target does not give one.
const NO_SUCH_UNIT: u8 = 0x25;

fn no_unit(lun: LunId) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no LUN {} at this target", lun.0))
}

/// Returns the answer to a command that the unit must support.
///
/// # Errors
/// NotFound: there is no such unit. Denied: the unit refuses the command, over each path and for good. Io: the failure may be temporary, or
/// of this path only.
pub(super) fn must(line: &mut Line<'_>, lun: LunId, cdb: &Cdb, most: u16, what: &str) -> Result<Vec<u8>> {
    let failed = |kind: ErrorKind, how: String| Err(Error::new(kind, format!("LUN {}: {what} failed {how}", lun.0)));
    match line.ask(lun, cdb, u32::from(most))? {
        Answer::Good(data) => Ok(data),
        Answer::Check(Some(sense)) if (sense.key, sense.asc) == (SenseKey::IllegalRequest, NO_SUCH_UNIT) => {
            Err(no_unit(lun))
        }
        Answer::Check(Some(sense)) if matches!(sense.key, SenseKey::IllegalRequest | SenseKey::DataProtect) => {
            failed(ErrorKind::Denied, format!("({sense})"))
        }
        // Such as a unit that is becoming ready, or is served over another path now (ALUA).
        Answer::Check(Some(sense)) => failed(ErrorKind::Io, format!("({sense})")),
        Answer::Check(None) => failed(ErrorKind::Io, "without sense data".to_owned()),
        // Such as a unit that stays busy, or is reserved by another host until that releases it.
        Answer::Status(status) => failed(ErrorKind::Io, format!("(status {status:#04x})")),
    }
}

/// Returns the answer to an optional command, empty if the device does not support it. Any other failure is an error, to be
/// retried later: a missing answer would make the unit look like another one.
pub(super) fn may(line: &mut Line<'_>, lun: LunId, cdb: &Cdb) -> Result<Vec<u8>> {
    let failed = |how: String| Err(Error::new(ErrorKind::Io, format!("LUN {}: {} {how}", lun.0, name_of(cdb))));
    match line.ask(lun, cdb, u32::from(ALLOCATION))? {
        Answer::Good(data) => Ok(data),
        Answer::Check(Some(Sense { key: SenseKey::IllegalRequest, .. })) => Ok(Vec::new()),
        // By the rules of reservations, an initiator without the right to read modes gets this status.
        Answer::Status(sam::RESERVATION_CONFLICT) if cdb.opcode() == opcode::MODE_SENSE_10 => Ok(Vec::new()),
        Answer::Check(Some(sense)) => failed(format!("failed ({sense})")),
        Answer::Check(None) => failed("failed without sense data".to_owned()),
        Answer::Status(status) => failed(format!("failed (status {status:#04x})")),
    }
}

fn name_of(cdb: &Cdb) -> String {
    match cdb.as_bytes() {
        [opcode::INQUIRY, _, page, ..] => format!("INQUIRY of page {page:#04x}"),
        _ => "MODE SENSE".to_owned(),
    }
}

/// Runs `ask`, and repeats it if the unit reports meanwhile that it may have become another one. So all answers are of one
/// logical unit.
pub(super) fn settled<T>(
    line: &mut Line<'_>,
    lun: LunId,
    mut ask: impl FnMut(&mut Line<'_>) -> Result<T>,
) -> Result<T> {
    for _ in 0..MAX_CHANGES {
        // INQUIRY does not report unit attentions, so TEST UNIT READY does. Its result does not matter otherwise.
        line.ask(lun, &Cdb::test_unit_ready(), 0)?;
        let before = line.attentions();
        let said = ask(line);
        if line.attentions() == before {
            return said;
        }
    }
    Err(Error::new(ErrorKind::Io, format!("LUN {} keeps reporting unit attentions (resets or changes)", lun.0)))
}

/// Reads identity and size: on each connection, before it carries requests.
pub(super) fn identify(line: &mut Line<'_>, lun: LunId) -> Result<(Unit, Capacity)> {
    settled(line, lun, |line| identify_once(line, lun))
}

fn identify_once(line: &mut Line<'_>, lun: LunId) -> Result<(Unit, Capacity)> {
    let inquiry = must(line, lun, &Cdb::inquiry(None, 96), 96, "INQUIRY")?;
    let inquiry = Inquiry::parse(&inquiry).ok_or_else(|| refused(lun, "the INQUIRY data is incomplete"))?;
    match (inquiry.qualifier, inquiry.device_type) {
        (0, 0) => {}
        (0, kind) => return Err(refused(lun, &format!("is not a disk, but a device of type {kind:#04x}"))),
        _ => return Err(no_unit(lun)),
    }
    let designation = may(line, lun, &Cdb::inquiry(Some(vpd::DEVICE_IDENTIFICATION), ALLOCATION))?;
    let serial = may(line, lun, &Cdb::inquiry(Some(vpd::UNIT_SERIAL_NUMBER), ALLOCATION))?;
    let capacity = must(line, lun, &Cdb::read_capacity_16(32), 32, "READ CAPACITY (16)")?;
    let capacity = Capacity::parse(&capacity).ok_or_else(|| refused(lun, "READ CAPACITY (16) was not answered"))?;
    let identity = Identity::parse(&designation, &serial);
    let wwid = wwid(&inquiry, &designation, &serial);
    let Inquiry { vendor, product, revision, .. } = inquiry;
    let names = DiskNames { wwid, vendor, product, revision };
    Ok((Unit { identity, names, blocks: capacity.blocks, block_size: capacity.block_size }, capacity))
}

/// Checks that the unit takes commands that use the medium.
pub(super) fn is_ready(line: &mut Line<'_>, lun: LunId) -> Result<()> {
    must(line, lun, &Cdb::test_unit_ready(), 0, "TEST UNIT READY").map(drop)
}

/// Reads everything that the driver needs to know about a disk.
pub(super) fn attach(line: &mut Line<'_>, lun: LunId) -> Result<(Unit, DiskOptions)> {
    settled(line, lun, |line| attach_once(line, lun))
}

/// Checks that the unit is not too large.
pub(super) fn check_size(lun: LunId, unit: &Unit) -> Result<()> {
    let fits = unit.blocks.checked_mul(u64::from(unit.block_size)).is_some_and(|bytes| bytes <= i64::MAX as u64);
    let why = || refused(lun, &format!("has {} blocks: must be at most 2^63 bytes", unit.blocks));
    if fits { Ok(()) } else { Err(why()) }
}

fn attach_once(line: &mut Line<'_>, lun: LunId) -> Result<(Unit, DiskOptions)> {
    let (unit, capacity) = identify_once(line, lun)?;
    let block = capacity.block_size;
    if !block.is_power_of_two() || !(512..=65536).contains(&block) {
        return Err(refused(lun, &format!("has blocks of {block} bytes: must be a power of two, 512..=65536")));
    }
    check_size(lun, &unit)?;
    let supported = may(line, lun, &Cdb::inquiry(Some(vpd::SUPPORTED_PAGES), ALLOCATION))?;
    let mut page = |code: u8| {
        if has_page(&supported, code) { may(line, lun, &Cdb::inquiry(Some(code), ALLOCATION)) } else { Ok(Vec::new()) }
    };
    let block_limits = BlockLimits::parse(&page(vpd::BLOCK_LIMITS)?);
    let rotational = is_rotational(&page(vpd::BLOCK_DEVICE_CHARACTERISTICS)?).unwrap_or(true);
    let provisioning = Provisioning::parse(&page(vpd::LOGICAL_BLOCK_PROVISIONING)?);
    let caching = may(line, lun, &Cdb::mode_sense_10(CACHING_PAGE, ALLOCATION))?;
    // A unit that does not report its caching: no FUA, and treated as if it had a write cache.
    let caching = Caching::parse(&caching).unwrap_or(Caching { write_cache: true, ..Caching::default() });
    let has_unmap = capacity.is_thin && provisioning.unmap && takes_unmap(&block_limits);
    let options = DiskOptions {
        block_size: block,
        blocks: capacity.blocks,
        limits: limits(&capacity, &block_limits, provisioning, caching, rotational),
        has_unmap,
        unmap_zeroes: unmap_zeroes(&capacity, provisioning),
        wide: capacity.blocks > u64::from(u32::MAX),
        retries: SD_MAX_RETRIES,
        failfast: Failfast::default(),
    };
    options.limits.check().map_err(|why| refused(lun, &why))?;
    Ok((unit, options))
}

/// Whether zeroes may be written by unmapping, as in drivers/scsi/sd.c (`sd_config_write_same`): WRITE SAME unmaps, and unmapped blocks
/// read as zeroes. A device that does only the former would return old data.
fn unmap_zeroes(capacity: &Capacity, provisioning: Provisioning) -> bool {
    capacity.is_thin && capacity.reads_zeroes && provisioning.write_same_16
}

/// Whether UNMAP may be used: the unit accepts descriptors and blocks (`sd_read_block_limits` checks both).
fn takes_unmap(told: &BlockLimits) -> bool {
    told.max_unmap > 0 && told.max_unmap_ranges > 0
}

fn limits(
    capacity: &Capacity,
    told: &BlockLimits,
    provisioning: Provisioning,
    caching: Caching,
    rotational: bool,
) -> Limits {
    let block = capacity.block_size;
    let sectors = |blocks: u64| -> u32 {
        let most = u64::from(i32::MAX as u32 / block);
        ((blocks.min(most) * u64::from(block)) >> SECTOR_SHIFT) as u32
    };
    let most = if told.max_transfer > 0 { sectors(u64::from(told.max_transfer)).min(MAX_SECTORS) } else { MAX_SECTORS };
    let same = if told.max_write_same > 0 { told.max_write_same } else { MAX_RANGE_BLOCKS };
    let discard = match provisioning {
        _ if !capacity.is_thin => 0,
        Provisioning { unmap: true, .. } if takes_unmap(told) => sectors(u64::from(told.max_unmap)),
        Provisioning { write_same_16: true, .. } => sectors(same),
        _ => 0,
    };
    let physical = block.checked_shl(u32::from(capacity.physical_exponent)).filter(|n| *n <= 1 << 16 && *n >= block);
    Limits {
        logical_block_size: block,
        physical_block_size: physical.unwrap_or(block),
        max_segment_size: u32::MAX,
        max_discard_sectors: discard,
        discard_granularity: match discard {
            0 => 0,
            _ => block.saturating_mul(told.unmap_granularity.max(1)).min(1 << 30) / block * block,
        },
        max_write_zeroes_sectors: sectors(same.min(MAX_RANGE_BLOCKS)),
        write_cache: caching.write_cache,
        fua: caching.fua && caching.write_cache,
        read_only: caching.write_protected,
        rotational,
        ..Limits::with_max_hw_sectors(most.max(block >> SECTOR_SHIFT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: Capacity =
        Capacity { blocks: 1 << 20, block_size: 512, physical_exponent: 3, is_thin: true, reads_zeroes: true };

    #[test]
    fn change_of_a_unit_is_told_by_what_differs() {
        let of = |serial: Option<&str>, blocks| {
            let page = serial.map_or_else(Vec::new, |s| [&[0, 0x80, 0, s.len() as u8], s.as_bytes()].concat());
            // A vendor's designator that is always the same.
            let designation = [0, 0x83, 0, 6, 2, 1, 0, 2, b'v', b'd'];
            let (identity, names) = (Identity::parse(&designation, &page), DiskNames::default());
            Unit { identity, names, blocks, block_size: 512 }
        };
        let (a, b, none) = (of(Some("A"), 8), of(Some("B"), 8), of(None, 8));
        assert_eq!(a.change_to(&b), "was serial A and is now serial B");
        assert_eq!(a.change_to(&none), "was serial A and now reports no such identifier");
        assert_eq!(none.change_to(&a), "is serial A, which it did not report before");
        assert_eq!(
            a.change_to(&of(Some("A"), 4)),
            "was vd of 8 blocks of 512 bytes and is now vd of 4 blocks of 512 bytes"
        );
    }

    #[test]
    fn limits_of_any_answer_hold_together() {
        let extremes = [0, 1, 7, 0xffff_ffff];
        for i in 0..64 {
            let (transfer, unmap, granularity) = (extremes[i % 4], extremes[i / 4 % 4], extremes[i / 16]);
            for block in [512, 4096, 65536] {
                let capacity = Capacity { block_size: block, physical_exponent: 15, ..CAPACITY };
                let told = BlockLimits {
                    max_transfer: transfer,
                    max_unmap: unmap,
                    max_unmap_ranges: extremes[i % 3],
                    unmap_granularity: granularity,
                    max_write_same: u64::from(unmap) << 16,
                };
                let can = Provisioning { unmap: true, write_same_16: true };
                let limits = limits(&capacity, &told, can, Caching::default(), false);
                assert_eq!(limits.check(), Ok(()), "{told:?}");
                assert!(limits.max_sectors <= MAX_SECTORS);
            }
        }
    }

    #[test]
    fn write_zeroes_does_not_unmap_where_old_data_would_stay() {
        let can = Provisioning { unmap: true, write_same_16: true };
        assert!(unmap_zeroes(&CAPACITY, can));
        assert!(!unmap_zeroes(&Capacity { reads_zeroes: false, ..CAPACITY }, can));
        assert!(!unmap_zeroes(&Capacity { is_thin: false, ..CAPACITY }, can));
        assert!(!unmap_zeroes(&CAPACITY, Provisioning { write_same_16: false, ..can }));
    }

    #[test]
    fn fua_is_for_caches_and_unmap_for_units_that_have_it() {
        let caching = Caching { fua: true, write_cache: true, write_protected: true };
        let plain = limits(&CAPACITY, &BlockLimits::default(), Provisioning::default(), caching, true);
        assert!(plain.fua && plain.write_cache && plain.read_only && plain.rotational);
        assert_eq!((plain.max_discard_sectors, plain.physical_block_size), (0, 4096));
        let through = limits(
            &CAPACITY,
            &BlockLimits { max_unmap: 64, max_unmap_ranges: 1, ..BlockLimits::default() },
            Provisioning { unmap: true, ..Provisioning::default() },
            Caching { fua: true, ..Caching::default() },
            false,
        );
        let no_list = BlockLimits { max_unmap: 64, max_write_same: 32, ..BlockLimits::default() };
        let can = Provisioning { unmap: true, write_same_16: true };
        let by_same = limits(&CAPACITY, &no_list, can, Caching::default(), false);
        assert_eq!(by_same.max_discard_sectors, 32, "UNMAP may have no descriptor: WRITE SAME unmaps");
        assert!(!through.fua, "nothing to force through");
        assert_eq!((through.max_discard_sectors, through.discard_granularity), (64, 512));
    }
}
