// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether any queued request may start or end at a sector: a counting filter that is read without the elevator's lock.
//!
//! Guarantees: when a mergeable request adjoins a bio and its insertion is visible to the reader, the answer is "may".
//! "No" is therefore final, up to insertions that happen at the same time, which might as well have come later. "May"
//! can be wrong (other sectors share a counter); then the search under the lock finds nothing.
//!
//! Why: nearly every bio of a random load adjoins nothing. The kernel's mq-deadline takes its lock for each of them all
//! the same; here such a bio costs two reads.
//!
//! Needs: writers under the elevator's lock.

use crate::bio::BioSlot;
use crate::relaxed::FieldU32;

/// Counters of start and end sectors.
pub(crate) struct MergeFilter {
    counts: Box<[Counts]>,
    /// 64 minus the number of bits of an index.
    shift: u32,
}

#[derive(Default)]
struct Counts {
    starts: FieldU32,
    ends: FieldU32,
}

/// Above this the filter would push the requests themselves out of the first-level cache.
const MAX_COUNTERS: usize = 4096;

/// 2^64 divided by the golden ratio: spreads consecutive sectors over the upper bits.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

impl MergeFilter {
    /// For a disk with `nr_requests` requests.
    pub(crate) fn new(nr_requests: usize) -> MergeFilter {
        let nr_counters = (4 * nr_requests).next_power_of_two().clamp(2, MAX_COUNTERS);
        MergeFilter {
            counts: (0..nr_counters).map(|_| Counts::default()).collect(),
            shift: 64 - nr_counters.trailing_zeros(),
        }
    }

    #[inline]
    fn at(&self, sector: u64) -> &Counts {
        &self.counts[(sector.wrapping_mul(MULTIPLIER) >> self.shift) as usize]
    }

    /// A request that starts at `start` and ends before `end` can be merged with now.
    #[inline]
    pub(crate) fn add(&self, start: u64, end: u64) {
        let (starts, ends) = (&self.at(start).starts, &self.at(end).ends);
        starts.set(starts.get() + 1);
        ends.set(ends.get() + 1);
    }

    /// The request that was added with these sectors can no longer be merged with.
    #[inline]
    pub(crate) fn remove(&self, start: u64, end: u64) {
        let (starts, ends) = (&self.at(start).starts, &self.at(end).ends);
        starts.set(starts.get() - 1);
        ends.set(ends.get() - 1);
    }

    /// Whether a queued request may start where `bio` ends or end where it starts.
    #[inline]
    pub(crate) fn may_adjoin(&self, bio: &BioSlot) -> bool {
        self.at(bio.sector.get()).ends.get() != 0 || self.at(bio.end_sector()).starts.get() != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bio::{Bio, DataRef};
    use crate::id::Sector;
    use crate::time::Instant;

    fn may_adjoin(f: &MergeFilter, sector: u64, nr_sectors: u32) -> bool {
        let slot = BioSlot::default();
        slot.fill(&Bio::read(Sector(sector), nr_sectors, DataRef::NONE), 0, Instant::ZERO);
        f.may_adjoin(&slot)
    }

    #[test]
    fn both_neighbours_are_seen_until_they_leave() {
        let f = MergeFilter::new(64);
        f.add(100, 108);
        f.add(100, 116);
        assert!(may_adjoin(&f, 108, 8) && may_adjoin(&f, 116, 8) && may_adjoin(&f, 92, 8));
        assert!(!may_adjoin(&f, 100, 8), "the same sectors are no neighbours");
        f.remove(100, 116);
        assert!(may_adjoin(&f, 92, 8) && !may_adjoin(&f, 116, 8));
        f.remove(100, 108);
        assert!(!may_adjoin(&f, 92, 8) && !may_adjoin(&f, 108, 8));
    }

    #[test]
    fn most_sectors_are_told_apart() {
        let f = MergeFilter::new(256);
        for i in 0..32u64 {
            f.add(i * 1_000_003 * 8, i * 1_000_003 * 8 + 8);
        }
        let wrong = (0..10_000u64).filter(|i| may_adjoin(&f, 5 + i * 7919 * 8, 8)).count();
        assert!(wrong < 1000, "{wrong} of 10000 strangers taken for neighbours");
    }
}
