// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `random_distribution=zoned` and `zoned_abs`: shares of the accesses over consecutive parts of the range.
//!
//! A draw of 1..=100 selects the zone by its access share; the block inside the zone is uniform. Zones are given in percent
//! of the range or in bytes. Blocks after the last zone are not accessed.

use crate::job::{Extent, Zone};

/// Zone table of one direction.
#[derive(Clone, Debug)]
pub struct Zones {
    /// Zone of each draw 1..=100.
    of_draw: [u8; 100],
    /// First block and number of blocks of each zone.
    spans: Vec<(u64, u64)>,
}

/// The error of a zone table for this range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ZoneError {
    /// The zones need this many bytes, and the range has fewer.
    TooLong(u64),
    /// A zone with accesses is smaller than one block.
    Empty,
    /// The access shares do not sum to 100.
    Shares(u32),
}

impl Zones {
    /// Makes the table for `blocks` blocks of `block_bytes`.
    pub fn new(zones: &[Zone], blocks: u64, block_bytes: u64) -> Result<Zones, ZoneError> {
        let shares: u32 = zones.iter().map(|z| z.access_pct).sum();
        if shares != 100 {
            return Err(ZoneError::Shares(shares));
        }
        let mut of_draw = Vec::with_capacity(100);
        let mut spans = Vec::new();
        let (mut percent, mut bytes) = (0u64, 0u64);
        for zone in zones {
            let (first, end) = match zone.span {
                Extent::Percent(p) => {
                    percent += u64::from(p);
                    let at = |pct: u64| (u128::from(blocks) * u128::from(pct) / 100) as u64;
                    // fio rounds the start and the length down separately.
                    let first = at(percent - u64::from(p));
                    (first, first + at(u64::from(p)))
                }
                Extent::Bytes(b) => {
                    bytes = bytes.saturating_add(b);
                    ((bytes - b) / block_bytes, bytes / block_bytes)
                }
            };
            if end > blocks {
                return Err(ZoneError::TooLong(bytes.max(end * block_bytes)));
            }
            if zone.access_pct > 0 {
                if first == end {
                    return Err(ZoneError::Empty);
                }
                of_draw.extend(std::iter::repeat_n(spans.len() as u8, zone.access_pct as usize));
                spans.push((first, end - first));
            }
        }
        let of_draw = of_draw.try_into().expect("shares sum to 100");
        Ok(Zones { of_draw, spans })
    }

    /// Returns the zone of a draw of 1..=100: its first block and its length.
    #[inline]
    pub fn span(&self, draw: u32) -> (u64, u64) {
        self.spans[usize::from(self.of_draw[draw as usize - 1])]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pct(access_pct: u32, percent: u32) -> Zone {
        Zone { access_pct, span: Extent::Percent(percent) }
    }

    #[test]
    fn accesses_follow_the_shares() {
        // The manual's example: 60 % of accesses on the first 10 %, 30 % on the next 20 %, 8 % and 2 % on the rest.
        let zones = [pct(60, 10), pct(30, 20), pct(8, 30), pct(2, 40)];
        let z = Zones::new(&zones, 1000, 4096).unwrap();
        let spans: Vec<(u64, u64)> = (1..=100).map(|draw| z.span(draw)).collect();
        for (span, draws) in [((0, 100), 60), ((100, 200), 30), ((300, 300), 8), ((600, 400), 2)] {
            assert_eq!(spans.iter().filter(|&&s| s == span).count(), draws, "{span:?}");
        }
    }

    #[test]
    fn byte_zones_lie_one_after_the_other() {
        let zone = |access_pct, bytes| Zone { access_pct, span: Extent::Bytes(bytes) };
        let z = Zones::new(&[zone(0, 8192), zone(100, 4096)], 100, 4096).unwrap();
        assert!((1..=100).all(|draw| z.span(draw) == (2, 1)));
    }

    #[test]
    fn tables_that_do_not_fit_are_refused() {
        let zone = |access_pct, bytes| Zone { access_pct, span: Extent::Bytes(bytes) };
        assert_eq!(Zones::new(&[zone(100, 1 << 20)], 10, 4096).unwrap_err(), ZoneError::TooLong(1 << 20));
        assert_eq!(Zones::new(&[zone(100, 100)], 10, 4096).unwrap_err(), ZoneError::Empty);
        assert_eq!(Zones::new(&[pct(50, 100)], 10, 4096).unwrap_err(), ZoneError::Shares(50));
    }
}
