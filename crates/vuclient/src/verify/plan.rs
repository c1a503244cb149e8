// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sequence of requests, and the layout of their data in memory.
//!
//! Guarantees: the plan depends on seed and limits only, never on the server's timing; every request lies inside the
//! area and within the device's limits. About one write or read in two has its data in segments cut at any byte, at odd
//! addresses, as virtio allows (5.2.6: only the total is a multiple of 512); the gaps between segments must stay
//! unchanged.

use crate::disk::Info;
use crate::random::Random;

/// Longest read or write.
pub const MAX_IO: u64 = 1 << 20;

/// Maximum number of segments used, if the device takes so many.
const MAX_SEGMENTS: u64 = 64;

/// Longest write of zeroes or discard: longer than a read, so that limits are crossed inside the server.
const MAX_ZERO: u64 = 4 << 20;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Read and compare.
    Read,
    /// Write the next generation.
    Write {
        /// Whether the write is forced to the medium (blkio sends a FLUSH after it).
        fua: bool,
    },
    /// Write zeroes.
    WriteZeroes {
        /// Whether the UNMAP flag is left out, so that the space stays allocated.
        no_unmap: bool,
    },
    /// Discard: afterwards the old data or zeroes.
    Discard,
    /// Flush.
    Flush,
}

/// One request: blocks of the area, none for a flush.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// Kind of the request.
    pub kind: Kind,
    /// First block, counted from the area's first.
    pub first: u64,
    /// Blocks.
    pub blocks: u64,
    /// For reads and writes: offset in the slot's memory and length of each segment, in the order of the data.
    pub segments: Vec<(usize, usize)>,
}

impl Op {
    /// Whether both requests touch a common block.
    pub fn overlaps(&self, other: &Op) -> bool {
        self.first < other.first + other.blocks && other.first < self.first + self.blocks
    }
}

/// Limits of requests.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Blocks of the area.
    pub area: u64,
    /// Bytes of a block.
    pub block: u64,
    /// Maximum number of segments of a request.
    pub segments: u64,
    /// Longest segment in bytes.
    pub segment_len: u64,
    /// Longest discard in bytes; 0: no discards.
    pub discard: u64,
    /// Longest write of zeroes in bytes; 0: none.
    pub zeroes: u64,
}

impl Limits {
    /// Returns the limits of the device, in an area of `area` blocks.
    pub fn of(info: &Info, area: u64) -> Limits {
        let or_any = |len: u64| if len == 0 { u64::MAX } else { len };
        Limits {
            area,
            block: info.block_size.max(512),
            segments: u64::from(info.max_segments).clamp(1, MAX_SEGMENTS),
            segment_len: or_any(info.max_segment_len),
            discard: info.max_discard_len.min(MAX_ZERO),
            zeroes: info.max_write_zeroes_len.min(MAX_ZERO),
        }
    }

    /// Bytes that suffice for the segments and gaps of any request.
    pub const SLOT: usize = MAX_IO as usize + (MAX_SEGMENTS as usize + 1) * MAX_GAP;
}

/// Maximum number of bytes between segments.
const MAX_GAP: usize = 64;

/// The endless plan of one queue.
#[derive(Clone)]
pub struct Plan {
    random: Random,
    limits: Limits,
}

impl Plan {
    /// The plan of stream `stream` under `seed`.
    pub fn new(seed: u64, stream: u64, limits: Limits) -> Plan {
        Plan { random: Random::new(seed, stream), limits }
    }

    /// The next request.
    pub fn draw(&mut self) -> Op {
        let kind = self.kind();
        let most = match kind {
            Kind::Flush => return Op { kind, first: 0, blocks: 0, segments: Vec::new() },
            Kind::Discard => self.limits.discard,
            Kind::WriteZeroes { .. } => self.limits.zeroes,
            Kind::Read | Kind::Write { .. } => MAX_IO.min(self.limits.segment_len.saturating_mul(self.limits.segments)),
        };
        let (first, blocks) = self.range(most / self.limits.block);
        let is_data = matches!(kind, Kind::Read | Kind::Write { .. });
        let segments = if is_data { self.segments(blocks * self.limits.block) } else { Vec::new() };
        Op { kind, first, blocks, segments }
    }

    fn kind(&mut self) -> Kind {
        let limits = self.limits;
        match self.random.below(100) {
            0..40 => Kind::Write { fua: self.random.chance(10) },
            40..72 => Kind::Read,
            72..82 if limits.zeroes >= limits.block => Kind::WriteZeroes { no_unmap: self.random.chance(50) },
            82..90 if limits.discard >= limits.block => Kind::Discard,
            72..90 => Kind::Write { fua: false },
            _ => Kind::Flush,
        }
    }

    /// Draws a range. Lengths are spread evenly over the powers of two up to `most` blocks, so that short ranges are as
    /// frequent as long ones.
    fn range(&mut self, most: u64) -> (u64, u64) {
        let most = most.clamp(1, self.limits.area);
        let power = self.random.below(u64::from(most.ilog2()) + 1);
        let blocks = ((1 << power) + self.random.below(1 << power)).min(most);
        (self.random.below(self.limits.area - blocks + 1), blocks)
    }

    fn segments(&mut self, len: u64) -> Vec<(usize, usize)> {
        let Limits { segments, segment_len, block, .. } = self.limits;
        let unit = if self.random.chance(50) { block } else { 1 };
        let fewest = len.div_ceil(segment_len);
        // If one segment is not enough, cut at any byte, because whole blocks may not divide evenly.
        let (unit, count) = match fewest {
            1 => (unit, 1 + self.random.below(segments.min(len / unit))),
            _ => (1, segments.min(len)),
        };
        let mut cuts = vec![0, len];
        if fewest == 1 {
            cuts.extend((1..count).map(|_| unit * (1 + self.random.below((len / unit).saturating_sub(1).max(1)))));
        } else {
            let step = len.div_ceil(count);
            cuts.extend((1..count).map(|i| (i * step).min(len)));
        }
        cuts.retain(|&cut| cut <= len);
        cuts.sort_unstable();
        cuts.dedup();
        self.place(&cuts)
    }

    /// Lays the pieces between `cuts` into memory: in any order, with gaps.
    fn place(&mut self, cuts: &[u64]) -> Vec<(usize, usize)> {
        let lengths: Vec<usize> = cuts.windows(2).map(|pair| (pair[1] - pair[0]) as usize).collect();
        let mut order: Vec<usize> = (0..lengths.len()).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, self.random.below(i as u64 + 1) as usize);
        }
        let mut placed = vec![(0, 0); lengths.len()];
        let mut at = self.gap();
        for index in order {
            placed[index] = (at, lengths[index]);
            at += lengths[index] + self.gap();
        }
        placed
    }

    fn gap(&mut self) -> usize {
        1 + self.random.below(MAX_GAP as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits =
        Limits { area: 5000, block: 512, segments: 20, segment_len: u64::MAX, discard: 1 << 20, zeroes: 3 << 20 };

    fn ops(seed: u64, limits: Limits) -> Vec<Op> {
        let mut plan = Plan::new(seed, 0, limits);
        (0..3000).map(|_| plan.draw()).collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_plan() {
        assert_eq!(ops(1, LIMITS), ops(1, LIMITS));
        assert_ne!(ops(1, LIMITS), ops(2, LIMITS));
    }

    #[test]
    fn every_request_keeps_to_the_limits_and_its_segments_apart() {
        let short = Limits { segment_len: 65_536, ..LIMITS };
        for limits in [LIMITS, short, Limits { area: 1, ..LIMITS }, Limits { block: 4096, segments: 1, ..LIMITS }] {
            for op in ops(5, limits) {
                assert!(op.first + op.blocks <= limits.area, "{op:?}");
                assert!(op.segments.len() as u64 <= limits.segments, "{op:?}");
                let mut sorted = op.segments.clone();
                sorted.sort_unstable();
                assert!(sorted.windows(2).all(|pair| pair[0].0 + pair[0].1 < pair[1].0), "{op:?}");
                assert!(sorted.iter().all(|&(at, len)| at + len < Limits::SLOT && len > 0));
                assert!(sorted.iter().all(|&(_, len)| len as u64 <= limits.segment_len), "{op:?}");
                let sum: usize = op.segments.iter().map(|&(_, len)| len).sum();
                let is_data = matches!(op.kind, Kind::Read | Kind::Write { .. });
                assert_eq!(sum as u64, if is_data { op.blocks * limits.block } else { 0 }, "{op:?}");
            }
        }
    }

    #[test]
    fn every_kind_and_every_size_class_comes() {
        let all = ops(9, LIMITS);
        assert!(all.iter().any(|op| op.kind == Kind::Discard));
        assert!(all.iter().any(|op| op.kind == Kind::Flush));
        assert!(all.iter().any(|op| op.kind == Kind::WriteZeroes { no_unmap: true }));
        assert!(all.iter().any(|op| op.kind == Kind::Write { fua: true }));
        let reads = || all.iter().filter(|op| op.kind == Kind::Read);
        assert!(reads().any(|op| op.blocks == 1) && reads().any(|op| op.blocks > 1000));
        assert!(reads().any(|op| op.segments.len() == 1) && reads().any(|op| op.segments.len() > 10));
        assert!(reads().any(|op| op.segments.iter().any(|&(_, len)| len % 512 != 0)));
        let none = ops(9, Limits { discard: 0, zeroes: 0, ..LIMITS });
        assert!(!none.iter().any(|op| matches!(op.kind, Kind::Discard | Kind::WriteZeroes { .. })));
    }
}
