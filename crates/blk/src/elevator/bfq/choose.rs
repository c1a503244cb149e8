// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which of two requests of a queue is nearer to the disk's head.
//!
//! A seek backwards costs `back_seek_penalty` times as much as one forwards. A request farther back than
//! `back_seek_max` waits for a new sweep, which starts at the lowest such sector. Synchronous requests go before
//! asynchronous ones, metadata before data. Guarantees: a total preference for a given head position (no cycles).
//! Source: `bfq_choose_req`.

use super::tunables::Rules;
use crate::bio::OpFlags;
use crate::request::Request;

/// Distance from the head; `None`: only a new sweep gets there.
#[inline]
fn distance(sector: u64, head: u64, rules: &Rules) -> Option<u64> {
    if sector >= head {
        Some(sector - head)
    } else if head - sector <= rules.back_seek_max {
        Some((head - sector).saturating_mul(rules.back_seek_penalty))
    } else {
        None
    }
}

/// Whether `b` is to be served before `a`, with the head at sector `head`.
#[inline]
pub(crate) fn is_better(b: &Request, a: &Request, head: u64, rules: &Rules) -> bool {
    let rank = |r: &Request| (is_sync(r), r.flags().contains(OpFlags::META));
    if rank(a) != rank(b) {
        return rank(b) > rank(a);
    }
    let (sa, sb) = (a.sector().0, b.sector().0);
    match (distance(sa, head, rules), distance(sb, head, rules)) {
        // At equal distance the request ahead of the head is better.
        (Some(da), Some(db)) => db < da || db == da && sb > sa,
        (None, None) => sb < sa,
        (da, _) => da.is_none(),
    }
}

/// Whether a thread waits for the request.
#[inline]
pub(crate) fn is_sync(rq: &Request) -> bool {
    !rq.op().is_write() || rq.flags().contains(OpFlags::SYNC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bio::{Bio, DataRef};
    use crate::elevator::bfq::tunables::BfqTunables;
    use crate::elevator::testbed::TestBed;
    use crate::id::Sector;
    use crate::limits::Limits;
    use crate::time::Instant;

    /// The preferred of two reads, by sector.
    fn nearer(a: u64, b: u64, head: u64) -> u64 {
        let mut bed = TestBed::new(2, 2, Limits::default());
        let rules = BfqTunables::new().rules(&bed.cx(Instant::ZERO));
        let [ra, rb] = [a, b].map(|s| {
            let bio = bed.bio(Bio::read(Sector(s), 8, DataRef::NONE), Instant::ZERO);
            bed.request(bio, Instant::ZERO)
        });
        let better = is_better(bed.get(&rb), bed.get(&ra), head, &rules);
        if a != b {
            assert_ne!(better, is_better(bed.get(&ra), bed.get(&rb), head, &rules), "one of the two is better");
        }
        if better { b } else { a }
    }

    #[test]
    fn near_beats_far_and_forwards_beats_backwards() {
        assert_eq!(nearer(1100, 1050, 1000), 1050);
        assert_eq!(nearer(1100, 960, 1000), 960, "40 back costs 80");
        assert_eq!(nearer(1100, 940, 1000), 1100, "60 back costs 120");
        assert_eq!(nearer(1100, 950, 1000), 1100, "of equals the one ahead");
    }

    #[test]
    fn far_behind_waits_for_a_new_sweep_from_the_lowest() {
        // 16 MiB are 32768 sectors.
        assert_eq!(nearer(100_000, 10_000_000, 132_768), 100_000, "just near enough");
        assert_eq!(nearer(100_000, 10_000_000, 132_769), 10_000_000);
        assert_eq!(nearer(500, 100, 1_000_000), 100);
    }

    #[test]
    fn sync_and_metadata_come_first() {
        let mut bed = TestBed::new(3, 3, Limits::default());
        let rules = BfqTunables::new().rules(&bed.cx(Instant::ZERO));
        let near = Bio::write(Sector(0), 8, DataRef::NONE);
        let far = Bio::write(Sector(5000), 8, DataRef::NONE);
        let [near, sync, meta] = [near, far.with_flags(OpFlags::SYNC), far.with_flags(OpFlags::META)].map(|b| {
            let bio = bed.bio(b, Instant::ZERO);
            bed.request(bio, Instant::ZERO)
        });
        assert!(is_better(bed.get(&sync), bed.get(&near), 0, &rules));
        assert!(is_better(bed.get(&meta), bed.get(&near), 0, &rules));
        assert!(is_better(bed.get(&sync), bed.get(&meta), 0, &rules));
    }
}
