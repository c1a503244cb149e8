// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a bio has to be cut so that every piece is one valid request.
//!
//! Guarantees: repeated cuts of the returned length yield pieces that cover the bio exactly, each within the limits of
//! its operation. A cut falls on a multiple of the physical block if the limits leave room for one, so a split does not
//! cause read-modify-write. For discards it falls on a multiple of the discard granularity. Needs: limits that passed
//! [`Limits::check`], and a bio aligned to logical blocks.
//!
//! Not here: the cutting itself, and the rule that a `NOWAIT` bio fails instead of being split. A cut that the number
//! of segments makes necessary also prefers physical blocks; the kernel aligns such a cut to logical blocks only.
//!
//! Source: Linux 6.19 block/blk-merge.c (`bio_split_rw`, `bio_split_discard`, `bio_split_write_zeroes`).

use crate::bio::Op;
use crate::limits::Limits;
use crate::path::merge::{max_sectors_of, sectors_to_boundary};

/// Length of the first piece when a bio of `nr_sectors` at `sector` has to be split; `None` when it fits as it is. Also
/// `None` when the disk does not know the operation: the caller rejects that.
#[inline]
pub(crate) fn bio_split_sectors(limits: &Limits, op: Op, sector: u64, nr_sectors: u32) -> Option<u32> {
    // Nearly every bio: one segment, short, inside a chunk.
    if op.has_data()
        && nr_sectors <= limits.max_sectors
        && u64::from(nr_sectors) << 9 <= u64::from(limits.max_segment_size)
        && nr_sectors <= sectors_to_boundary(limits, sector)
    {
        return None;
    }
    match op {
        Op::Read | Op::Write => split_data(limits, sector, nr_sectors),
        Op::Discard => split_discard(limits, sector, nr_sectors),
        Op::WriteZeroes => split_write_zeroes(limits, sector, nr_sectors),
        Op::Flush => None,
    }
}

fn split_data(limits: &Limits, sector: u64, nr_sectors: u32) -> Option<u32> {
    // A bio's data is one contiguous range, so every segment but the last has the maximum size.
    let bytes = u64::from(limits.max_segments) * u64::from(limits.max_segment_size);
    let by_segments = u32::try_from(bytes >> 9).unwrap_or(u32::MAX);
    let max = limits.max_sectors.min(sectors_to_boundary(limits, sector)).min(by_segments);
    (nr_sectors > max).then(|| align_cut(limits, sector, max))
}

fn split_write_zeroes(limits: &Limits, sector: u64, nr_sectors: u32) -> Option<u32> {
    if limits.max_write_zeroes_sectors == 0 {
        return None;
    }
    let max = limits.max_write_zeroes_sectors.min(sectors_to_boundary(limits, sector));
    (nr_sectors > max).then(|| align_cut(limits, sector, max))
}

/// The greatest length up to `max` that ends on a physical block, or else on a logical block.
fn align_cut(limits: &Limits, sector: u64, max: u32) -> u32 {
    let physical = u64::from(limits.physical_block_size >> 9);
    let end = (sector + u64::from(max)) & !(physical - 1);
    if end > sector {
        return (end - sector) as u32;
    }
    let logical = limits.logical_block_sectors();
    // A limit below one logical block cannot be met; one block is the least that makes progress.
    (max & !(logical - 1)).max(logical)
}

fn split_discard(limits: &Limits, sector: u64, nr_sectors: u32) -> Option<u32> {
    let logical = limits.logical_block_sectors();
    let limit = max_sectors_of(limits, Op::Discard) & !(logical - 1);
    if limit == 0 || nr_sectors <= limit {
        return None;
    }
    let granularity = (limits.discard_granularity >> 9).max(logical);
    if granularity > limit {
        // No piece can span a granule, so only the hard limit applies.
        return Some(limit);
    }
    let max = limit - limit % granularity;
    let past = ((sector + u64::from(max)) % u64::from(granularity)) as u32;
    Some(max - past)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim::rng::Rng;

    /// All pieces of a bio, cut as the core does.
    fn pieces(limits: &Limits, op: Op, sector: u64, nr_sectors: u32) -> Vec<(u64, u32)> {
        let (mut at, mut left, mut out) = (sector, nr_sectors, Vec::new());
        while let Some(n) = bio_split_sectors(limits, op, at, left) {
            assert!(n > 0 && n < left, "cut of {n} from {left} sectors at {at} under {limits:?}");
            out.push((at, n));
            at += u64::from(n);
            left -= n;
        }
        out.push((at, left));
        out
    }

    fn random_limits(rng: &mut Rng) -> Limits {
        let lbs = 512u32 << rng.below(4);
        let lb = lbs >> 9;
        let max_sectors = lb + rng.below(2000) as u32;
        Limits {
            logical_block_size: lbs,
            physical_block_size: lbs << rng.below(4),
            max_hw_sectors: max_sectors,
            max_sectors,
            chunk_sectors: if rng.below(2) == 0 { 0 } else { lb << rng.below(9) },
            max_segments: 1 + rng.below(8) as u16,
            max_segment_size: lbs + rng.below(100_000) as u32,
            max_discard_sectors: lb + rng.below(3000) as u32,
            discard_granularity: lbs << rng.below(8),
            max_write_zeroes_sectors: lb + rng.below(3000) as u32,
            ..Limits::default()
        }
    }

    fn check_piece(limits: &Limits, op: Op, sector: u64, n: u32, last: bool) -> Result<(), String> {
        let lb = limits.logical_block_sectors();
        let crosses = limits.chunk_sectors != 0
            && sector / u64::from(limits.chunk_sectors)
                != (sector + u64::from(n) - 1) / u64::from(limits.chunk_sectors);
        let segments = (u64::from(n) << 9).div_ceil(u64::from(limits.max_segment_size));
        let ends_physical = (sector + u64::from(n)).is_multiple_of(u64::from(limits.physical_block_size >> 9));
        if !n.is_multiple_of(lb) {
            return Err("not whole logical blocks".into());
        }
        if n > max_sectors_of(limits, op) {
            return Err(format!("above the limit {}", max_sectors_of(limits, op)));
        }
        if op != Op::Discard && crosses {
            return Err("crosses a chunk boundary".into());
        }
        if op.has_data() && segments > u64::from(limits.max_segments) {
            return Err(format!("{segments} segments"));
        }
        // A piece with a physical block boundary inside could have ended at that boundary.
        let physical = u64::from(limits.physical_block_size >> 9);
        if op != Op::Discard && !last && !ends_physical && (sector + u64::from(n)) / physical != sector / physical {
            return Err("ends inside a physical block without need".into());
        }
        Ok(())
    }

    #[test]
    fn pieces_cover_the_bio_exactly_and_each_is_within_limits() {
        for seed in 0..2000 {
            let mut rng = Rng::new(seed);
            let limits = random_limits(&mut rng);
            limits.check().expect("test limits are consistent");
            let lb = limits.logical_block_sectors();
            for op in [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes] {
                let sector = rng.below(100_000) * u64::from(lb);
                let nr = (1 + rng.below(4000) as u32) * lb;
                let parts = pieces(&limits, op, sector, nr);
                let mut at = sector;
                for (i, (s, n)) in parts.iter().enumerate() {
                    assert_eq!(*s, at, "seed {seed}: gap");
                    at += u64::from(*n);
                    if let Err(e) = check_piece(&limits, op, *s, *n, i + 1 == parts.len()) {
                        panic!("seed {seed}: {op:?} {s}+{n} of {sector}+{nr}: {e}; {limits:?}");
                    }
                }
                assert_eq!(at, sector + u64::from(nr), "seed {seed}: length");
            }
        }
    }

    #[test]
    fn what_fits_is_not_cut() {
        let l = Limits { chunk_sectors: 256, max_hw_sectors: 512, max_sectors: 512, ..Limits::default() };
        assert_eq!(bio_split_sectors(&l, Op::Read, 0, 256), None);
        assert_eq!(bio_split_sectors(&l, Op::Read, 248, 8), None);
        assert_eq!(bio_split_sectors(&l, Op::Flush, 0, 0), None);
        // Not supported: nothing sensible to cut.
        assert_eq!(bio_split_sectors(&l, Op::Discard, 0, 1 << 20), None);
        assert_eq!(bio_split_sectors(&l, Op::WriteZeroes, 0, 1 << 20), None);
    }

    #[test]
    fn cuts_fall_on_chunks_physical_blocks_and_granules() {
        let l = Limits { chunk_sectors: 256, max_hw_sectors: 512, max_sectors: 512, ..Limits::default() };
        assert_eq!(bio_split_sectors(&l, Op::Write, 250, 8), Some(6));
        // 255 sectors would end inside a 4 KiB block: 248 is the last whole one.
        let l = Limits { physical_block_size: 4096, ..Limits::default() };
        assert_eq!(bio_split_sectors(&l, Op::Write, 0, 1024), Some(248));
        // If the bio starts inside a block, the first piece ends on a block boundary.
        assert_eq!(bio_split_sectors(&l, Op::Write, 3, 1024), Some(253));
        let l = Limits { max_discard_sectors: 1000, discard_granularity: 65536, ..Limits::default() };
        assert_eq!(bio_split_sectors(&l, Op::Discard, 0, 5000), Some(896));
        assert_eq!(bio_split_sectors(&l, Op::Discard, 100, 5000), Some(896 - 100));
        // A granule larger than one discard: the limit wins.
        let l = Limits { max_discard_sectors: 64, discard_granularity: 65536, ..Limits::default() };
        assert_eq!(bio_split_sectors(&l, Op::Discard, 100, 5000), Some(64));
        // Four gigabytes and more do not wrap.
        let l = Limits { max_hw_sectors: 1 << 30, max_sectors: 1 << 30, ..Limits::default() };
        assert_eq!(bio_split_sectors(&l, Op::Read, 0, 1 << 24), Some(128 * 128));
    }
}
