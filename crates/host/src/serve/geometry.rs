// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The block sizes that a disk, or one of its exports, shows to its clients.
//!
//! Guarantees: smaller blocks than the targets' are served exactly ([`blk::rmw`]). A size that the disk does not have in whole blocks is
//! refused. Does not do: check requests; an export that has a size of its own does that.

use blk::id::SECTOR_SIZE;
use blk::limits::Limits;

/// Settings of a disk or an export; `None` = the default, which for an export is what its disk shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Geometry {
    /// `logical_block_size`, bytes: smallest unit of address and length.
    pub logical: Option<u32>,
    /// `physical_block_size`, bytes: unit that clients should write whole.
    pub physical: Option<u32>,
}

/// Logical block sizes that may be set, bytes.
pub const LOGICAL_BLOCK_SIZES: [u32; 4] = [512, 1024, 2048, 4096];
/// Largest physical block size that may be set, bytes.
pub const PHYSICAL_BLOCK_MAX: u32 = 1 << 16;

impl Geometry {
    /// Checks the settings by themselves. The error is the key, and the rule.
    pub fn check(self) -> Result<(), (&'static str, String)> {
        if let Some(size) = self.logical
            && !LOGICAL_BLOCK_SIZES.contains(&size)
        {
            return Err(("logical_block_size", format!("logical_block_size={size}: must be 512, 1024, 2048 or 4096")));
        }
        let least = self.logical.unwrap_or(512);
        if let Some(size) = self.physical
            && !(size.is_power_of_two() && (least..=PHYSICAL_BLOCK_MAX).contains(&size))
        {
            let text = format!("physical_block_size={size}: must be a power of two, {least}..={PHYSICAL_BLOCK_MAX}");
            return Err(("physical_block_size", text));
        }
        Ok(())
    }

    /// Returns the limits that clients of a disk of `bytes` see, over targets with the limits `below`; or those that clients of an export
    /// see, of a disk that shows `below`. What is not set is as in `below`.
    ///
    /// # Errors
    /// The disk does not consist of whole blocks. A last sector that the disk has in part counts as a whole one.
    pub(super) fn shown(self, below: &Limits, bytes: u64) -> Result<Limits, String> {
        let logical = self.logical.unwrap_or(below.logical_block_size);
        if !bytes.next_multiple_of(u64::from(SECTOR_SIZE)).is_multiple_of(u64::from(logical)) {
            whole_blocks(logical, bytes)?;
        }
        let physical = self.physical.unwrap_or(below.physical_block_size).max(logical);
        let granularity = match below.discard_granularity {
            0 => 0,
            bytes => bytes.next_multiple_of(logical),
        };
        Ok(Limits {
            logical_block_size: logical,
            physical_block_size: physical,
            discard_granularity: granularity,
            ..*below
        })
    }
}

/// Checks that a disk of `bytes` consists of whole blocks of `logical` bytes. The error is the rule.
pub(super) fn whole_blocks(logical: u32, bytes: u64) -> Result<(), String> {
    let rest = bytes % u64::from(logical);
    if rest == 0 {
        return Ok(());
    }
    // No block is small enough for an end within a sector.
    let remedy = if bytes.is_multiple_of(u64::from(SECTOR_SIZE)) { "set a smaller one" } else { "leave it out" };
    Err(format!(
        "logical_block_size={logical}: the disk has {bytes} bytes, {rest} more than whole blocks; {remedy}, or make the image larger"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(g: Geometry, below: &Limits) -> (u32, u32, u32) {
        let l = g.shown(below, 1 << 20).unwrap();
        assert_eq!(l.check(), Ok(()));
        (l.logical_block_size, l.physical_block_size, l.discard_granularity)
    }

    #[test]
    fn blocks_are_those_that_the_data_was_made_for() {
        let coarse = Limits {
            logical_block_size: 4096,
            physical_block_size: 4096,
            discard_granularity: 4096,
            ..Limits::default()
        };
        let (plain, of_file) = (Geometry::default(), Geometry { logical: Some(512), physical: None });
        assert_eq!(shown(of_file, &coarse), (512, 4096, 4096));
        assert_eq!(shown(plain, &coarse), (4096, 4096, 4096));
        assert_eq!(shown(plain, &Limits::default()), (512, 512, 0));
        let large = Geometry { logical: Some(4096), physical: Some(16384) };
        assert_eq!(shown(large, &Limits::default()), (4096, 16384, 0));
        let fine = Limits { discard_granularity: 512, ..Limits::default() };
        assert_eq!(shown(large, &fine), (4096, 16384, 4096));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let odd = Geometry { logical: Some(4096), physical: None }.shown(&Limits::default(), (1 << 20) + 512);
        assert!(odd.unwrap_err().contains("1049088 bytes, 512 more than whole blocks"));
        let within = Geometry { logical: Some(4096), physical: None }.shown(&Limits::default(), 4097);
        assert!(within.unwrap_err().contains("4097 bytes, 1 more than whole blocks"));
        for bytes in [1, 511, 513, 4097] {
            assert!(Geometry::default().shown(&Limits::default(), bytes).is_ok(), "the last sector counts");
        }
        for (logical, physical, key) in [
            (Some(256), None, "logical_block_size"),
            (Some(3000), None, "logical_block_size"),
            (Some(8192), None, "logical_block_size"),
            (Some(4096), Some(512), "physical_block_size"),
            (None, Some(1000), "physical_block_size"),
            (None, Some(1 << 17), "physical_block_size"),
        ] {
            assert_eq!(Geometry { logical, physical }.check().unwrap_err().0, key);
        }
        assert_eq!(Geometry { logical: Some(512), physical: Some(4096) }.check(), Ok(()));
    }
}
