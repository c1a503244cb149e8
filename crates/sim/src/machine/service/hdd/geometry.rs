// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a sector is on the platters, and how long the heads take to reach it.
//!
//! Guarantees: a longer seek never takes less time; sectors that follow each other in one zone pass under the head without
//! a gap. Needs: figures that [`HddSpec::check`](super::HddSpec::check) accepts.
//!
//! Sources: the seek curve a + b*sqrt(d) + c*d through three published times is that of E. K. Lee and R. H. Katz, "An
//! Analytic Performance Model of Disk Arrays", SIGMETRICS 1993. The average is weighted by the distances of random
//! seeks, as data sheets do it (Hitachi 5K320 specification, section 4.4.2.1).

use super::HddSpec;

/// Zones of equal radial width. Drives have 15 to 30 (Hitachi Deskstar 7K500: 30).
const ZONES: u64 = 20;

/// Tracks with the same number of sectors.
#[derive(Clone, Copy, Debug)]
struct Zone {
    first_sector: u64,
    first_track: u64,
    sectors_per_track: u64,
}

/// A place on the platters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub cylinder: u64,
    /// When it passes under the heads, in nanoseconds from the beginning of each revolution.
    pub angle_ns: u64,
}

/// The platters and the arm of a disk.
#[derive(Clone, Debug)]
pub(super) struct Geometry {
    zones: Vec<Zone>,
    heads: u64,
    cylinders: u64,
    pub rev_ns: u64,
    /// Factors of the seek curve, nanoseconds: constant, of the square root, and linear in the share of the full stroke.
    curve: [f64; 3],
}

impl Geometry {
    /// The platters of a disk with this many sectors. The data sheet's sustained rates include the switches of heads and
    /// tracks, so the model's tracks follow each other without a gap.
    pub fn new(spec: &HddSpec, sectors: u64) -> Geometry {
        let rev_ns = 60_000_000_000 / u64::from(spec.rpm);
        let per_track = |zone: u64| {
            let mb = spec.outer_mb + (spec.inner_mb - spec.outer_mb) * zone as f64 / (ZONES - 1) as f64;
            ((mb * rev_ns as f64 / 1e3 / 512.0) as u64).max(1)
        };
        let of_all_zones: u64 = (0..ZONES).map(per_track).sum();
        let tracks_per_zone = sectors.div_ceil(of_all_zones);
        let mut zones: Vec<Zone> = Vec::new();
        let mut first_sector = 0;
        for zone in 0..ZONES {
            let sectors_per_track = per_track(zone);
            zones.push(Zone { first_sector, first_track: zone * tracks_per_zone, sectors_per_track });
            first_sector += sectors_per_track * tracks_per_zone;
        }
        let heads = u64::from(spec.heads);
        let cylinders = (ZONES * tracks_per_zone).div_ceil(heads).max(2);
        Geometry { zones, heads, cylinders, rev_ns, curve: curve(spec) }
    }

    fn zone(&self, sector: u64) -> &Zone {
        let after = self.zones.partition_point(|z| z.first_sector <= sector);
        &self.zones[after - 1]
    }

    /// Returns the place of a sector.
    pub fn spot(&self, sector: u64) -> Spot {
        let z = self.zone(sector);
        let in_zone = sector - z.first_sector;
        let track = z.first_track + in_zone / z.sectors_per_track;
        let angle_ns = in_zone % z.sectors_per_track * self.rev_ns / z.sectors_per_track;
        Spot { cylinder: track / self.heads, angle_ns }
    }

    /// Returns how long `sectors` from `sector` on take to pass under the head.
    pub fn transfer_ns(&self, sector: u64, sectors: u64) -> u64 {
        (u128::from(sectors) * u128::from(self.rev_ns)).div_ceil(u128::from(self.zone(sector).sectors_per_track)) as u64
    }

    /// Returns how many sectors from `sector` on pass under the head in `ns`.
    pub fn passed(&self, sector: u64, ns: u64) -> u64 {
        (u128::from(ns) * u128::from(self.zone(sector).sectors_per_track) / u128::from(self.rev_ns)) as u64
    }

    /// Returns how long a seek between two cylinders takes.
    pub fn seek_ns(&self, from: u64, to: u64) -> u64 {
        let distance = from.abs_diff(to);
        if distance == 0 {
            return 0;
        }
        let [constant, root, linear] = self.curve;
        let share = (distance - 1) as f64 / (self.cylinders - 1) as f64;
        (constant + root * share.sqrt() + linear * share) as u64
    }

    /// Returns how long it takes from `at_ns` until `angle_ns` is under the heads. A sector whose beginning passed less than
    /// a sector's time ago counts as under the head: times are rounded to nanoseconds.
    pub fn turn_ns(&self, at_ns: u64, angle_ns: u64) -> u64 {
        let wait = (angle_ns + self.rev_ns - at_ns % self.rev_ns) % self.rev_ns;
        let sector_ns = self.rev_ns / self.zones[0].sectors_per_track;
        if wait + sector_ns >= self.rev_ns { 0 } else { wait }
    }
}

/// Returns the seek curve through the three times of a data sheet. The mean of sqrt(d) over random seeks is 8/15 and that of
/// d is 1/3.
fn curve(spec: &HddSpec) -> [f64; 3] {
    let HddSpec { seek_track_us: track, seek_avg_us: avg, seek_full_us: full, .. } = *spec;
    let root = (15.0 * avg - 10.0 * track - 5.0 * full) / 3.0;
    [track, root, full - track - root].map(|us| us * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    const SECTORS: u64 = 4_000_000_000_000 / 512;

    fn geometry() -> Geometry {
        Geometry::new(&HddSpec::default(), SECTORS)
    }

    #[test]
    fn random_seeks_take_the_published_average() {
        let spec = HddSpec::default();
        let g = geometry();
        let mut rng = Rng::new(1);
        let n = 100_000;
        let sum: u64 = (0..n).map(|_| g.seek_ns(rng.below(g.cylinders), rng.below(g.cylinders))).sum();
        let mean_us = sum as f64 / f64::from(n) / 1e3;
        assert!((mean_us / spec.seek_avg_us - 1.0).abs() < 0.01, "{mean_us}");
        let us = |ns: u64| ns as f64 / 1e3;
        assert_eq!((us(g.seek_ns(5, 6)), us(g.seek_ns(7, 7))), (spec.seek_track_us, 0.0));
        let full = us(g.seek_ns(0, g.cylinders));
        assert!((full / spec.seek_full_us - 1.0).abs() < 0.01, "{full}");
    }

    #[test]
    fn a_longer_seek_takes_no_less_time() {
        let g = geometry();
        let times: Vec<u64> = (0..=1000).map(|i| g.seek_ns(0, 1 + i * (g.cylinders - 1) / 1000)).collect();
        assert!(times.is_sorted(), "{times:?}");
    }

    #[test]
    fn outer_tracks_are_as_fast_as_published() {
        let (g, spec) = (geometry(), HddSpec::default());
        let mb = |sector: u64| 1e3 * 512.0 * 1e6 / g.transfer_ns(sector, 1_000_000) as f64;
        assert!((mb(0) / spec.outer_mb - 1.0).abs() < 0.01, "{}", mb(0));
        assert!((mb(SECTORS - 1) / spec.inner_mb - 1.0).abs() < 0.01, "{}", mb(SECTORS - 1));
    }

    #[test]
    fn sectors_follow_each_other_without_a_gap() {
        let g = geometry();
        let mut at = g.spot(0).angle_ns;
        for i in 0..10_000 {
            at += g.turn_ns(at, g.spot(i * 1000).angle_ns);
            at += g.transfer_ns(i * 1000, 1000);
        }
        let streamed = g.transfer_ns(0, 10_000_000);
        assert!(at.abs_diff(streamed) < 100_000, "{at} against {streamed}");
    }
}
