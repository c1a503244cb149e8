// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a disk can take in one request (`struct queue_limits`), with the kernel's defaults.
//!
//! Source: block/blk-settings.c, include/linux/blkdev.h (Linux 6.19).

use crate::id::{SECTOR_SHIFT, SECTOR_SIZE};

/// Limits and features of a disk. A driver reports them once, before its first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Smallest unit of address and length, in bytes; a power of two, 512..=65536.
    pub logical_block_size: u32,
    /// Unit the medium writes without a read-modify-write, in bytes; at least `logical_block_size`.
    pub physical_block_size: u32,
    /// Maximum number of sectors of one read or write that the hardware takes.
    pub max_hw_sectors: u32,
    /// Maximum number of sectors of one read or write the block layer builds (`max_sectors_kb`); at most `max_hw_sectors`.
    pub max_sectors: u32,
    /// No request crosses a multiple of this many sectors; 0 = no such boundary. A power of two.
    pub chunk_sectors: u32,
    /// Maximum number of data segments of one request, at least 1.
    pub max_segments: u16,
    /// Maximum number of bytes of one segment.
    pub max_segment_size: u32,
    /// Maximum number of sectors of one discard; 0 = no discard.
    pub max_discard_sectors: u32,
    /// Discards start and end on multiples of this many bytes to have an effect; 0 = any.
    pub discard_granularity: u32,
    /// Maximum number of sectors of one write zeroes; 0 = none.
    pub max_write_zeroes_sectors: u32,
    /// The disk has a volatile write cache, so flushes have an effect.
    pub write_cache: bool,
    /// The disk honours FUA writes itself.
    pub fua: bool,
    /// Reads and writes may begin and end within a sector ([`OpFlags::BYTES`](crate::bio::OpFlags::BYTES)). Needs a logical block of a sector.
    pub takes_bytes: bool,
    /// Writes fail.
    pub read_only: bool,
    /// The medium rotates. This affects the default target of write-back throttling and the advice that is given, not
    /// the data path.
    pub rotational: bool,
}

/// `BLK_SAFE_MAX_SECTORS`: default when a driver reports no limit.
pub const BLK_SAFE_MAX_SECTORS: u32 = 255;
/// `BLK_DEF_MAX_SECTORS_CAP` (4 MiB): the block layer builds no larger request unless `max_sectors_kb` is set.
pub(crate) const BLK_DEF_MAX_SECTORS_CAP: u32 = 4 << 11;
/// `BLK_MAX_SEGMENTS`.
pub(crate) const BLK_MAX_SEGMENTS: u16 = 128;
/// `BLK_MAX_SEGMENT_SIZE`.
pub(crate) const BLK_MAX_SEGMENT_SIZE: u32 = 65536;

impl Default for Limits {
    fn default() -> Self {
        Limits {
            logical_block_size: 512,
            physical_block_size: 512,
            max_hw_sectors: BLK_SAFE_MAX_SECTORS,
            max_sectors: BLK_SAFE_MAX_SECTORS,
            chunk_sectors: 0,
            max_segments: BLK_MAX_SEGMENTS,
            max_segment_size: BLK_MAX_SEGMENT_SIZE,
            max_discard_sectors: 0,
            discard_granularity: 0,
            max_write_zeroes_sectors: 0,
            write_cache: false,
            fua: false,
            takes_bytes: false,
            read_only: false,
            rotational: false,
        }
    }
}

impl Limits {
    /// Returns the limits of a disk whose hardware takes `max_hw_sectors` at once. By the kernel's rule, `max_sectors`
    /// is that or 4 MiB, whichever is smaller.
    pub fn with_max_hw_sectors(max_hw_sectors: u32) -> Limits {
        Limits { max_hw_sectors, max_sectors: max_hw_sectors.min(BLK_DEF_MAX_SECTORS_CAP), ..Limits::default() }
    }

    /// Checks that the fields agree with each other; the message names the field, its value and the rule.
    pub fn check(&self) -> Result<(), String> {
        let lbs = self.logical_block_size;
        if !lbs.is_power_of_two() || !(512..=65536).contains(&lbs) {
            return Err(format!("logical_block_size={lbs}: must be a power of two, 512..=65536"));
        }
        if self.takes_bytes && lbs != SECTOR_SIZE {
            return Err(format!("logical_block_size={lbs}: must be {SECTOR_SIZE} with takes_bytes"));
        }
        if self.physical_block_size < lbs || !self.physical_block_size.is_power_of_two() {
            let v = self.physical_block_size;
            return Err(format!("physical_block_size={v}: must be a power of two, at least logical_block_size={lbs}"));
        }
        if self.max_sectors == 0 || self.max_sectors > self.max_hw_sectors || self.max_sectors < lbs >> 9 {
            let (v, hw) = (self.max_sectors, self.max_hw_sectors);
            return Err(format!("max_sectors={v}: must be one logical block to max_hw_sectors={hw}"));
        }
        // Lengths in bytes are 32-bit numbers, as in a bio of the kernel.
        let most = u32::MAX >> SECTOR_SHIFT;
        if self.max_hw_sectors > most {
            return Err(format!("max_hw_sectors={}: must be at most {most} (4 GiB)", self.max_hw_sectors));
        }
        if self.chunk_sectors != 0 && !self.chunk_sectors.is_power_of_two() {
            return Err(format!("chunk_sectors={}: must be 0 or a power of two", self.chunk_sectors));
        }
        let block = lbs >> SECTOR_SHIFT;
        // Pieces are whole blocks, so a limit below one block cannot be met.
        for (name, v) in [
            ("chunk_sectors", self.chunk_sectors),
            ("max_discard_sectors", self.max_discard_sectors),
            ("max_write_zeroes_sectors", self.max_write_zeroes_sectors),
        ] {
            if v != 0 && v < block {
                return Err(format!("{name}={v}: must be 0 or at least {block} (logical_block_size={lbs})"));
            }
        }
        if self.discard_granularity > lbs && !self.discard_granularity.is_multiple_of(lbs) {
            let v = self.discard_granularity;
            return Err(format!(
                "discard_granularity={v}: must be at most logical_block_size={lbs}, or a multiple of it"
            ));
        }
        if self.max_segments == 0 {
            return Err("max_segments=0: must be at least 1".into());
        }
        if self.max_segment_size < lbs {
            let v = self.max_segment_size;
            return Err(format!("max_segment_size={v}: must be at least logical_block_size={lbs}"));
        }
        Ok(())
    }

    /// Returns the limits of a disk whose bios go to any of these disks, and may be split on the way: the strictest value
    /// of each limit (`blk_stack_limits`). There is no chunk boundary; discards and write zeroes are supported only if
    /// all support them.
    pub fn stacked<'a>(all: impl IntoIterator<Item = &'a Limits>) -> Limits {
        let both = |a: &Limits, b: &Limits| {
            // 0 = not supported, so the minimum is correct for 0, too.
            let discard = a.max_discard_sectors.min(b.max_discard_sectors);
            Limits {
                logical_block_size: a.logical_block_size.max(b.logical_block_size),
                physical_block_size: a.physical_block_size.max(b.physical_block_size),
                max_hw_sectors: a.max_hw_sectors.min(b.max_hw_sectors),
                max_sectors: a.max_sectors.min(b.max_sectors),
                chunk_sectors: 0,
                max_segments: a.max_segments.min(b.max_segments),
                max_segment_size: a.max_segment_size.min(b.max_segment_size),
                max_discard_sectors: discard,
                discard_granularity: common_multiple(a.discard_granularity, b.discard_granularity),
                max_write_zeroes_sectors: a.max_write_zeroes_sectors.min(b.max_write_zeroes_sectors),
                write_cache: a.write_cache || b.write_cache,
                fua: a.fua && b.fua,
                // A bio that is split on the way would need the margins of its pieces.
                takes_bytes: false,
                read_only: a.read_only || b.read_only,
                rotational: a.rotational || b.rotational,
            }
        };
        let all = all.into_iter().map(|l| Limits { chunk_sectors: 0, takes_bytes: false, ..*l });
        all.reduce(|a, b| both(&a, &b)).unwrap_or_default()
    }

    /// Logical block size in sectors.
    #[inline]
    pub const fn logical_block_sectors(&self) -> u32 {
        self.logical_block_size >> 9
    }
}

/// Returns the least common multiple of two granularities; 0 means any granularity. Returns 0 if the multiple is too
/// large.
fn common_multiple(a: u32, b: u32) -> u32 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    match (a, b) {
        (0, only) | (only, 0) => only,
        _ => (a / x).checked_mul(b).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_as_strict_as_the_strictest() {
        let coarse = Limits {
            logical_block_size: 4096,
            physical_block_size: 4096,
            max_discard_sectors: 1 << 10,
            discard_granularity: 3 << 12,
            max_write_zeroes_sectors: 1 << 12,
            write_cache: true,
            chunk_sectors: 256,
            ..Limits::with_max_hw_sectors(1 << 12)
        };
        let fine = Limits {
            physical_block_size: 512,
            max_discard_sectors: 1 << 16,
            discard_granularity: 1 << 13,
            max_segments: 7,
            fua: true,
            ..Limits::with_max_hw_sectors(1 << 10)
        };
        let stack = Limits::stacked([&coarse, &fine, &coarse]);
        assert_eq!(stack.check(), Ok(()));
        let expected = Limits {
            max_hw_sectors: 1 << 10,
            max_sectors: 1 << 10,
            max_segments: 7,
            discard_granularity: 3 << 13,
            max_write_zeroes_sectors: 0,
            chunk_sectors: 0,
            ..coarse
        };
        assert_eq!(stack, expected);
        assert_eq!(Limits::stacked([&fine]), fine);
        assert_eq!([(0, 5), (5, 0), (4, 6), (1 << 31, 3)].map(|(a, b)| common_multiple(a, b)), [5, 5, 12, 0]);
    }

    #[test]
    fn defaults_are_consistent_and_broken_ones_are_named() {
        assert_eq!(Limits::default().check(), Ok(()));
        assert_eq!(Limits::with_max_hw_sectors(1 << 20).max_sectors, BLK_DEF_MAX_SECTORS_CAP);
        let bad = Limits { max_sectors: 300, ..Limits::default() };
        assert!(bad.check().unwrap_err().contains("max_sectors=300"));
        let bad = Limits::with_max_hw_sectors(u32::MAX);
        assert!(bad.check().unwrap_err().contains("max_hw_sectors=4294967295"));
        let bad = Limits { logical_block_size: 1000, ..Limits::default() };
        assert!(bad.check().unwrap_err().contains("power of two"));
        let bad =
            Limits { takes_bytes: true, logical_block_size: 4096, physical_block_size: 4096, ..Limits::default() };
        assert!(bad.check().unwrap_err().contains("with takes_bytes"));
        let blocks = Limits { logical_block_size: 4096, physical_block_size: 4096, ..Limits::default() };
        for (name, bad) in [
            ("chunk_sectors=4", Limits { chunk_sectors: 4, ..blocks }),
            ("max_discard_sectors=7", Limits { max_discard_sectors: 7, ..blocks }),
            ("max_write_zeroes_sectors=1", Limits { max_write_zeroes_sectors: 1, ..blocks }),
            ("discard_granularity=6144", Limits { discard_granularity: 6144, ..blocks }),
        ] {
            assert!(bad.check().unwrap_err().starts_with(name), "{name}");
        }
        assert_eq!(Limits { discard_granularity: 512, ..blocks }.check(), Ok(()));
    }
}
