// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The length of the next I/O: `bs`, `bsrange`, `bssplit`, `bs_unaligned`.
//!
//! Guarantees: a size is between the smallest and the largest of the direction, and fits the region. Unless `bs_unaligned`
//! is set, it is a multiple of the smallest, or the largest itself. With fio's seeds the sizes are fio's, including its
//! peculiarities. A range favours its largest size, because fio adds a draw of up to the maximum to the minimum, and clamps
//! the sum. A size that would leave the region is drawn again. Does not handle: the random map, which may shorten an I/O
//! afterwards.

use crate::job::{BlockSizes, Dir, Job, RwMode};
use crate::rng::{FioRng, Purpose, Seeds};
use crate::stats::DIRS;

/// Maximum number of draws before a size is taken from the remaining room instead. Only sizes that almost never fit reach
/// this; fio draws on.
const MAX_DRAWS: u32 = 100_000;

#[derive(Clone, Debug)]
enum Rule {
    Fixed,
    Range,
    /// Each size with the largest scaled draw that still selects it (cumulative percent).
    Split(Vec<(u64, u64)>),
}

/// Sizes of one direction.
#[derive(Clone, Debug)]
pub struct Sizes {
    min: u64,
    max: u64,
    unaligned: bool,
    rule: Rule,
    rng: FioRng,
    /// The generator before the first draw.
    first: FioRng,
}

impl Sizes {
    /// Sizes of direction `dir` of `job`.
    pub fn new(job: &Job, dir: Dir, seeds: Seeds) -> Sizes {
        let sizes = &job.block_sizes[dir];
        let rule = match sizes {
            BlockSizes::Split(split) if sizes.min_bytes() != sizes.max_bytes() => {
                let mut sum = 0;
                // fio sorts a split by share; the order decides which size a draw selects.
                let mut split = split.clone();
                split.sort_by_key(|s| s.pct);
                let cumulative = split.iter().filter(|s| s.pct > 0).map(|s| {
                    sum += u64::from(s.pct);
                    (s.bytes, sum)
                });
                Rule::Split(cumulative.collect())
            }
            _ if sizes.min_bytes() == sizes.max_bytes() => Rule::Fixed,
            _ => Rule::Range,
        };
        let rng = seeds.rng(purpose(job, dir));
        Sizes {
            min: sizes.min_bytes(),
            max: sizes.max_bytes(),
            unaligned: job.bs_unaligned,
            rule,
            first: rng.clone(),
            rng,
        }
    }

    /// Makes the sizes of all directions of a job.
    pub fn for_job(job: &Job, seeds: Seeds) -> [Sizes; DIRS] {
        Dir::ALL.map(|d| Sizes::new(job, d, seeds))
    }

    /// The size, if every I/O has the same one.
    pub fn fixed(&self) -> Option<u64> {
        matches!(self.rule, Rule::Fixed).then_some(self.min)
    }

    /// Restarts the sequence of sizes.
    pub fn reseed(&mut self) {
        self.rng = self.first.clone();
    }

    /// Returns the next size when `room` bytes are left in the region; `None` when not even the smallest fits.
    #[inline]
    pub fn next(&mut self, room: u64) -> Option<u64> {
        if room < self.min {
            return None;
        }
        match &self.rule {
            Rule::Fixed => Some(self.min),
            _ => Some(self.draw(room)),
        }
    }

    fn draw(&mut self, room: u64) -> u64 {
        for _ in 0..MAX_DRAWS {
            let (r, max) = self.rng.raw();
            let raw = match &self.rule {
                Rule::Split(split) => pick_split(split, r, max, room),
                _ => self.min + (self.max as f64 * (r as f64 / (max as f64 + 1.0))) as u64,
            };
            let aligned = if self.unaligned { raw } else { raw - raw % self.min };
            let size = aligned.min(self.max);
            if size <= room {
                return size;
            }
        }
        room.min(self.max) / self.min * self.min
    }
}

/// Returns the first entry whose cumulative share covers the draw and that fits; the last one if none does.
fn pick_split(split: &[(u64, u64)], r: u64, max: u64, room: u64) -> u64 {
    let covered = |&&(bytes, percent): &&(u64, u64)| r / percent <= max / 100 && bytes <= room;
    split.iter().find(covered).or(split.last()).expect("a split has entries").0
}

/// Returns the sequence that a direction's sizes come from. Verified blocks are read back with the sizes of their writes,
/// and a trimwrite job writes what it trimmed. So these directions share a seed.
fn purpose(job: &Job, dir: Dir) -> Purpose {
    match dir {
        Dir::Read => Purpose::SizeRead,
        Dir::Write if job.verify.is_some() => Purpose::SizeRead,
        Dir::Write => Purpose::SizeWrite,
        Dir::Trim if job.rw.mode == RwMode::TrimWrite => purpose(job, Dir::Write),
        Dir::Trim => Purpose::SizeTrim,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::SizeWeight;
    use crate::rng::Seeding;

    fn sizes(block_sizes: BlockSizes, unaligned: bool) -> Sizes {
        let mut job = Job::new("a");
        job.block_sizes.read = block_sizes;
        job.bs_unaligned = unaligned;
        Sizes::new(&job, Dir::Read, Seeds::new(Seeding::Repeat, false, false, 1))
    }

    fn split(entries: &[(u64, u32)]) -> BlockSizes {
        BlockSizes::Split(entries.iter().map(|&(bytes, pct)| SizeWeight { bytes, pct }).collect())
    }

    #[test]
    fn a_split_keeps_its_percentages() {
        let mut s = sizes(split(&[(4096, 10), (8192, 60), (65536, 30)]), false);
        let drawn: Vec<u64> = (0..100_000).map(|_| s.next(u64::MAX).unwrap()).collect();
        for (bytes, pct) in [(4096, 10), (8192, 60), (65536, 30)] {
            let got = drawn.iter().filter(|&&d| d == bytes).count();
            assert!(got.abs_diff(pct * 1000) < 600, "{bytes}: {got} of 100000, want {pct} %");
        }
    }

    #[test]
    fn a_range_stays_inside_and_on_its_grid() {
        let range = BlockSizes::Range { min_bytes: 3000, max_bytes: 10_000 };
        let mut aligned = sizes(range.clone(), false);
        let mut unaligned = sizes(range, true);
        let (mut off_grid, mut largest) = (0, 0);
        for _ in 0..10_000 {
            let a = aligned.next(u64::MAX).unwrap();
            assert!([3000, 6000, 9000, 10_000].contains(&a), "{a}");
            largest = largest.max(a);
            let u = unaligned.next(u64::MAX).unwrap();
            assert!((3000..=10_000).contains(&u), "{u}");
            off_grid += u32::from(!u.is_multiple_of(3000));
        }
        assert!(off_grid > 5_000 && largest == 10_000);
    }

    #[test]
    fn sizes_fit_what_is_left() {
        let mut s = sizes(split(&[(4096, 1), (65536, 99)]), false);
        assert!((0..1000).all(|_| s.next(5000) == Some(4096)));
        assert_eq!(s.next(4095), None);
        // The smallest size is never drawn (0 %), but it is the only one that fits.
        let mut s = sizes(split(&[(4096, 0), (65536, 100)]), false);
        assert_eq!(s.next(10_000), Some(8192));
    }

    #[test]
    fn verified_writes_draw_the_sizes_of_reads() {
        let mut job = Job::new("a");
        let range = BlockSizes::Range { min_bytes: 512, max_bytes: 1 << 20 };
        job.block_sizes.read = range.clone();
        job.block_sizes.write = range;
        let draw = |job: &Job, dir| {
            let mut s = Sizes::new(job, dir, Seeds::new(Seeding::Repeat, false, false, 1));
            (0..8).map(|_| s.next(u64::MAX).unwrap()).collect::<Vec<_>>()
        };
        assert_ne!(draw(&job, Dir::Read), draw(&job, Dir::Write));
        job.verify = Some(crate::job::VerifyKind::Md5);
        assert_eq!(draw(&job, Dir::Read), draw(&job, Dir::Write));
    }
}
