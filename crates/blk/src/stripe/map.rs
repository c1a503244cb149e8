// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Maps a sector of a striped disk to a stripe and a sector there.
//!
//! Guarantees: every sector below the capacity is mapped, no two to the same place, and none outside its stripe. The
//! mapping is pure arithmetic; a map does not change after it was made. Does not do: chunks that are not a power of
//! two. dm-stripe supports these; there is no demand for them here. Source: see [`super`].

use crate::id::{SECTOR_SHIFT, Sector};

/// Maximum number of stripes of one disk.
pub const MAX_STRIPES: usize = 256;
/// Largest chunk, sectors (1 GiB).
const MAX_CHUNK_SECTORS: u64 = 1 << (30 - SECTOR_SHIFT);
/// Largest disk, sectors: its size in bytes is a number of 63 bits, like the size of a file.
const MAX_SECTORS: u64 = i64::MAX as u64 >> SECTOR_SHIFT;

/// A stripe: the part of a disk that it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripe {
    /// First sector of the stripe on its disk.
    pub start: Sector,
    /// Number of sectors of the stripe.
    pub nr_sectors: u64,
}

/// Why a map was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StripeError {
    /// The number of stripes is out of range.
    #[error("{0} stripes: must be 2..={MAX_STRIPES}")]
    Stripes(usize),
    /// The chunk is out of range: bytes of a chunk, and of a logical block.
    #[error("chunk={0}: must be a power of two, {1}..={max} bytes (a logical block to 1 GiB)", max = MAX_CHUNK_SECTORS << SECTOR_SHIFT)]
    Chunk(u64, u32),
    /// A stripe is smaller than one chunk.
    #[error(
        "chunk={chunk}: stripe {stripe} has {has} bytes: must be at least one chunk; make it larger or the chunk smaller"
    )]
    Small {
        /// Bytes of a chunk.
        chunk: u64,
        /// Number of the stripe.
        stripe: usize,
        /// Bytes of the stripe.
        has: u64,
    },
    /// All stripes together are too large: their bytes.
    #[error("stripes of {0} bytes together: must be less than 8 EiB")]
    Large(u128),
}

/// Maps sectors of a striped disk to its stripes. See the module's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripeMap {
    /// Sectors of a chunk, as a shift.
    chunk_shift: u32,
    /// Number of stripes as a shift, if it is a power of two.
    stripes_shift: Option<u32>,
    starts: Box<[Sector]>,
    /// Sectors used of each stripe.
    used: u64,
}

impl StripeMap {
    /// Makes a map of chunks of `chunk_bytes` that go to the stripes in turn. Every stripe gets as many chunks as fit
    /// into the smallest; the rest of larger stripes is unused. `block_size` is the largest logical block of the
    /// stripes in bytes.
    ///
    /// # Errors
    /// The number of stripes, the chunk, or the size of a stripe or of all stripes together is out of range.
    pub fn new(chunk_bytes: u64, block_size: u32, stripes: &[Stripe]) -> Result<StripeMap, StripeError> {
        let (n, chunk) = (stripes.len(), chunk_bytes >> SECTOR_SHIFT);
        if !(2..=MAX_STRIPES).contains(&n) {
            return Err(StripeError::Stripes(n));
        }
        if !chunk_bytes.is_power_of_two()
            || chunk_bytes < block_size.into()
            || !(1..=MAX_CHUNK_SECTORS).contains(&chunk)
        {
            return Err(StripeError::Chunk(chunk_bytes, block_size));
        }
        let smallest = stripes.iter().enumerate().min_by_key(|(_, s)| s.nr_sectors);
        let (stripe, has) = smallest.map_or((0, 0), |(i, s)| (i, s.nr_sectors));
        if has < chunk {
            let has = has << SECTOR_SHIFT;
            return Err(StripeError::Small { chunk: chunk_bytes, stripe, has });
        }
        let used = has & !(chunk - 1);
        if u128::from(used) * n as u128 > MAX_SECTORS.into() {
            return Err(StripeError::Large((u128::from(used) * n as u128) << SECTOR_SHIFT));
        }
        Ok(StripeMap {
            chunk_shift: chunk.trailing_zeros(),
            stripes_shift: n.is_power_of_two().then(|| n.trailing_zeros()),
            starts: stripes.iter().map(|s| s.start).collect(),
            used,
        })
    }

    /// Returns the number of stripes, `2..=`[`MAX_STRIPES`].
    pub fn nr_stripes(&self) -> usize {
        self.starts.len()
    }

    /// Sectors of a chunk, a power of two.
    pub fn chunk_sectors(&self) -> u64 {
        1 << self.chunk_shift
    }

    /// Sectors of all stripes together.
    #[inline]
    pub fn capacity(&self) -> Sector {
        Sector(self.used * self.starts.len() as u64)
    }

    /// Sectors of each stripe that are used.
    pub fn used_sectors(&self) -> u64 {
        self.used
    }

    /// Returns the number of a sector's chunk on its stripe, and the stripe.
    #[inline]
    fn chunk_of(&self, sector: Sector) -> (u64, usize) {
        let chunk = sector.0 >> self.chunk_shift;
        let n = self.starts.len() as u64;
        match self.stripes_shift {
            Some(shift) => (chunk >> shift, (chunk & (n - 1)) as usize),
            None => (chunk / n, (chunk % n) as usize),
        }
    }

    /// Returns the stripe that a sector lies on, and the sector on that stripe's disk.
    #[inline]
    pub fn locate(&self, sector: Sector) -> (usize, Sector) {
        let (row, stripe) = self.chunk_of(sector);
        let within = sector.0 & (self.chunk_sectors() - 1);
        (stripe, Sector(self.starts[stripe].0 + (row << self.chunk_shift) + within))
    }

    /// Returns the number of sectors from this one to the end of its chunk, this one included.
    #[inline]
    pub(crate) fn sectors_to_chunk_end(&self, sector: Sector) -> u64 {
        self.chunk_sectors() - (sector.0 & (self.chunk_sectors() - 1))
    }

    /// Returns how many sectors of a stripe come before `sector`.
    fn before(&self, stripe: usize, sector: Sector) -> u64 {
        let (row, at) = self.chunk_of(sector);
        let part = match stripe.cmp(&at) {
            std::cmp::Ordering::Less => self.chunk_sectors(),
            std::cmp::Ordering::Equal => sector.0 & (self.chunk_sectors() - 1),
            std::cmp::Ordering::Greater => 0,
        };
        (row << self.chunk_shift) + part
    }

    /// Returns the part of a range that lies on a stripe, as first sector on its disk and length. The part is a single
    /// range there, even if it has many chunks. `None` if no part is on the stripe. This is for operations without
    /// data, because the order of chunks is lost.
    pub fn range(&self, stripe: usize, sector: Sector, nr_sectors: u64) -> Option<(Sector, u64)> {
        let from = self.before(stripe, sector);
        let to = self.before(stripe, Sector(sector.0 + nr_sectors));
        (to > from).then(|| (Sector(self.starts[stripe].0 + from), to - from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn even(n: usize, nr_sectors: u64) -> Vec<Stripe> {
        vec![Stripe { start: Sector(0), nr_sectors }; n]
    }

    /// Assigns chunks to stripes one by one, as a simple reference.
    fn dealt(chunk: u64, stripes: &[Stripe]) -> Vec<(usize, u64)> {
        let rows = stripes.iter().map(|s| s.nr_sectors).min().unwrap() / chunk;
        let mut next: Vec<u64> = stripes.iter().map(|s| s.start.0).collect();
        let mut all = Vec::new();
        for _ in 0..rows {
            for (stripe, at) in next.iter_mut().enumerate() {
                for _ in 0..chunk {
                    all.push((stripe, *at));
                    *at += 1;
                }
            }
        }
        all
    }

    fn maps() -> impl Strategy<Value = (u64, Vec<Stripe>)> {
        let stripe = |chunk: u64| {
            (0u64..100, chunk..chunk * 6).prop_map(|(start, nr_sectors)| Stripe { start: Sector(start), nr_sectors })
        };
        (0u32..6)
            .prop_map(|s| 1u64 << s)
            .prop_flat_map(move |chunk| (Just(chunk), proptest::collection::vec(stripe(chunk), 2..9)))
    }

    proptest! {
        #[test]
        fn every_sector_is_where_dealing_chunks_puts_it((chunk, stripes) in maps()) {
            let map = StripeMap::new(chunk << 9, 512, &stripes).unwrap();
            let all = dealt(chunk, &stripes);
            prop_assert_eq!(map.capacity().0, all.len() as u64);
            for (sector, (stripe, at)) in all.iter().enumerate() {
                let sector = sector as u64;
                prop_assert_eq!(map.locate(Sector(sector)), (*stripe, Sector(*at)));
                let room = map.sectors_to_chunk_end(Sector(sector));
                prop_assert_eq!(room, chunk - sector % chunk);
                let last = (sector + room - 1) as usize;
                prop_assert_eq!(all[last], (*stripe, at + room - 1), "in a row to the chunk's end");
            }
        }

        #[test]
        fn a_range_is_on_each_stripe_what_its_sectors_are((chunk, stripes) in maps(), a in any::<u64>(), b in any::<u64>()) {
            let map = StripeMap::new(chunk << 9, 512, &stripes).unwrap();
            let all = dealt(chunk, &stripes);
            let (a, b) = (a % (all.len() as u64 + 1), b % (all.len() as u64 + 1));
            let (from, to) = (a.min(b), a.max(b));
            for stripe in 0..stripes.len() {
                let mut here: Vec<u64> =
                    all[from as usize..to as usize].iter().filter(|p| p.0 == stripe).map(|p| p.1).collect();
                here.sort_unstable();
                let expected = here.first().map(|first| (Sector(*first), here.len() as u64));
                prop_assert!(here.windows(2).all(|w| w[0] + 1 == w[1]), "one range");
                prop_assert_eq!(map.range(stripe, Sector(from), to - from), expected);
            }
        }
    }

    #[test]
    fn what_dm_stripe_says_of_an_example() {
        // dmsetup create: "0 N striped 4 128 ...": chunk 9 (sectors 1152..1280) is the third of stripe 1.
        let map = StripeMap::new(64 << 10, 4096, &even(4, 1 << 20)).unwrap();
        assert_eq!(map.locate(Sector(1152)), (1, Sector(256)));
        assert_eq!(map.locate(Sector(1279)), (1, Sector(383)));
        assert_eq!((map.sectors_to_chunk_end(Sector(1152)), map.sectors_to_chunk_end(Sector(1279))), (128, 1));
        // From the middle of chunk 0 to the middle of chunk 5.
        let ranges: Vec<_> = (0..4).map(|s| map.range(s, Sector(64), 640)).collect();
        assert_eq!(ranges, [(64, 192), (0, 192), (0, 128), (0, 128)].map(|(at, n)| Some((Sector(at), n))).to_vec());
    }

    #[test]
    fn the_rest_of_stripes_is_not_used() {
        let stripes = [3000, 1000, 1255].map(|nr_sectors| Stripe { start: Sector(8), nr_sectors });
        let map = StripeMap::new(64 << 10, 512, &stripes).unwrap();
        assert_eq!((map.used_sectors(), map.capacity()), (896, Sector(3 * 896)));
        assert_eq!(map.locate(Sector(3 * 896 - 1)), (2, Sector(8 + 895)));
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let refused = |chunk, block, stripes: &[Stripe]| StripeMap::new(chunk, block, stripes).unwrap_err().to_string();
        assert_eq!(refused(65536, 512, &even(1, 4096)), "1 stripes: must be 2..=256");
        assert!(refused(65536, 512, &even(257, 4096)).starts_with("257 stripes"));
        for (chunk, block) in [(0, 512), (256, 512), (3 << 10, 512), (2048, 4096), (2 << 30, 512), (u64::MAX, 512)] {
            let e = refused(chunk, block, &even(2, 1 << 30));
            assert!(e.starts_with(&format!("chunk={chunk}: must be a power of two, {block}..=")), "{e}");
        }
        let mut small = even(3, 4096);
        small[2].nr_sectors = 127;
        assert!(refused(65536, 512, &small).contains("stripe 2 has 65024 bytes: must be at least one chunk"));
        assert!(refused(65536, 512, &even(2, 1 << 54)).contains("must be less than 8 EiB"));
        assert!(StripeMap::new(65536, 512, &even(2, 1 << 52)).is_ok());
    }
}
