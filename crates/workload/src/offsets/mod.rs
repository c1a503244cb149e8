// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The offset of the next I/O of a job: sequential, uniform with or without a random map, skewed or zoned.
//!
//! Guarantees: offsets lie inside the job's [`Region`]. With the random map every block is used once per pass. With fio's
//! seeds, sequential, uniform and zoned offsets are fio's. Zipf, pareto and normal have fio's definition with other seeds
//! (fio's seeds depend on the name of the file). Needs from callers: [`Offsets::issued`] after the size of the I/O is
//! known, before the next [`Offsets::next`]. Does not know rates, mixes or limits in bytes.
//!
//! Memory: one bit per block for the random map ([`map`]), nothing otherwise. Source: the behaviour of fio 3.33, as its
//! HOWTO describes it and as its I/O logs show.

mod map;
mod skewed;
mod zoned;
mod region;

pub use region::Region;

use crate::error::SetupError;
use crate::job::{Dir, Distribution, Job, PerDir, RwMode, RwSequencer};
use crate::rng::{FioRng, Purpose, Seeds, Taus88};
use crate::stats::DIRS;
use map::BlockMap;
use skewed::Skewed;
use zoned::{ZoneError, Zones};

const NOWHERE: u64 = u64::MAX;

/// How one direction draws a random block.
#[derive(Clone, Debug)]
enum Draw {
    Uniform,
    /// Index into `Offsets::skewed`. Directions with the same distribution share its state, so that reads and writes have
    /// the same hot blocks.
    Skewed(u8),
    Zoned(Box<Zones>),
}

/// An offset for one I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Byte offset in the target.
    pub offset: u64,
    /// Drawn at random, rather than continued from the last one.
    pub random: bool,
    /// First block of this I/O in the random map; `None` when it does not use the map.
    pub mapped: Option<u64>,
}

/// Offsets of one job thread.
#[derive(Clone, Debug)]
pub struct Offsets {
    region: Region,
    random: bool,
    trim_then_write: bool,
    time_based: bool,
    wrap_sequential: bool,
    seq_add: i64,
    every: u32,
    until_fresh: u32,
    identical: bool,
    percent_random: [u8; DIRS],
    /// Grid of random offsets in bytes, and number of grid points, per direction.
    align: [u64; DIRS],
    blocks: [u64; DIRS],
    draw: [Draw; DIRS],
    skewed: Vec<Skewed>,
    last_pos: [u64; DIRS],
    last_start: [u64; DIRS],
    map: Option<BlockMap>,
    map_unit: u64,
    /// Map blocks per grid point.
    map_blocks: [u64; DIRS],
    rng: FioRng,
    seq_or_random: [Taus88; DIRS],
    seeds: Seeds,
}

impl Offsets {
    /// The offsets of `job` in `region`.
    pub fn new(job: &Job, region: Region, seeds: Seeds) -> Result<Offsets, SetupError> {
        let align = Dir::ALL.map(|d| job.blockalign_bytes[d].unwrap_or(job.block_sizes[d].min_bytes()).max(1));
        let blocks = Dir::ALL.map(|d| {
            let short = job.block_sizes[d].min_bytes().saturating_sub(align[d as usize]);
            region.len.saturating_sub(short) / align[d as usize]
        });
        let map_unit = job.min_block_bytes().max(1);
        let wide = blocks.iter().any(|&b| b > u64::from(u32::MAX));
        let mut offsets = Offsets {
            region,
            random: job.rw.random,
            trim_then_write: job.rw.mode == RwMode::TrimWrite && job.rw.random,
            time_based: job.time_based,
            wrap_sequential: job.time_based
                || (job.rw.mode == RwMode::ReadWrite && job.io_size.is_some_and(|s| s.of(region.len) > region.len)),
            seq_add: job.seq_offset_add_bytes,
            every: job.rand_offset_every,
            until_fresh: 1,
            identical: job.rw_sequencer == RwSequencer::Identical,
            percent_random: Dir::ALL.map(|d| job.percentage_random[d] as u8),
            align,
            blocks,
            draw: [Draw::Uniform, Draw::Uniform, Draw::Uniform],
            skewed: Vec::new(),
            last_pos: [region.start; DIRS],
            last_start: [NOWHERE; DIRS],
            map: None,
            map_unit,
            map_blocks: align.map(|a| (a / map_unit).max(1)),
            rng: FioRng::new(seeds.of(Purpose::Offset), wide),
            seq_or_random: std::array::from_fn(|_| Taus88::new(seeds.of(Purpose::SequentialOrRandom) as u32)),
            seeds,
        };
        if job.rw.random {
            offsets.set_up_draws(job)?;
            offsets.set_up_map(job)?;
        }
        Ok(offsets)
    }

    fn set_up_draws(&mut self, job: &Job) -> Result<(), SetupError> {
        let dists: &PerDir<Distribution> = &job.random_distribution;
        let mut kinds: Vec<(&Distribution, u64)> = Vec::new();
        for dir in Dir::ALL.into_iter().filter(|d| job.rw.has(*d)) {
            let (d, dist) = (dir as usize, &dists[dir]);
            self.draw[d] = match dist {
                Distribution::Random => Draw::Uniform,
                Distribution::Zoned(zones) => {
                    let seed = self.seeds.of(Purpose::Zone) as u32;
                    let zones = Zones::new(zones, self.blocks[d], self.align[d], seed);
                    Draw::Zoned(Box::new(zones.map_err(|e| zone_error(job, e, self.region.len))?))
                }
                skewed => {
                    let key = (skewed, self.blocks[d]);
                    let known = kinds.iter().position(|k| *k == key).unwrap_or_else(|| {
                        let seed = self.seeds.of(Purpose::Offset) as u32;
                        kinds.push(key);
                        self.skewed.extend(Skewed::new(skewed, self.blocks[d].max(1), seed));
                        kinds.len() - 1
                    });
                    Draw::Skewed(known as u8)
                }
            };
        }
        Ok(())
    }

    /// Applies fio's rules for when a random map is kept.
    fn set_up_map(&mut self, job: &Job) -> Result<(), SetupError> {
        let used = || Dir::ALL.into_iter().filter(|d| job.rw.has(*d));
        let aligned_apart = used().any(|d| self.align[d as usize] != job.block_sizes[d].min_bytes());
        let skewed = used().any(|d| matches!(self.draw[d as usize], Draw::Skewed(_)));
        if job.norandommap || aligned_apart || skewed {
            return Ok(());
        }
        let blocks = self.region.len / self.map_unit;
        if blocks > map::MAX_BLOCKS {
            let rule = format!("the random map would need {} MiB, at most 1024 MiB are used", blocks >> 23);
            let remedy = "set norandommap=1, a larger bs or a smaller size";
            return Err(SetupError::new(&job.name, "norandommap", 0, rule, remedy));
        }
        let made = (blocks > 0).then(|| BlockMap::new(blocks)).transpose();
        self.map = made.map_err(|_| {
            let rule = format!("there is no memory for a random map of {} MiB", (blocks >> 23).max(1));
            let remedy = "set norandommap=1, a larger bs, a smaller size or fewer numjobs (each has a map)";
            SetupError::new(&job.name, "norandommap", 0, rule, remedy)
        })?;
        Ok(())
    }

    /// The region the offsets lie in.
    pub fn region(&self) -> Region {
        self.region
    }

    /// Whether a random map is kept, so that each block is used once per pass.
    pub fn has_map(&self) -> bool {
        self.map.is_some()
    }

    /// Whether every I/O is an independent uniform draw without a map, which the engine's shortest path may inline.
    pub fn is_plain_uniform(&self, dir: Dir) -> bool {
        let d = dir as usize;
        self.random
            && !self.trim_then_write
            && self.map.is_none()
            && self.every == 1
            && self.percent_random[d] == 100
            && matches!(self.draw[d], Draw::Uniform)
            && self.blocks[d] > 0
    }

    /// A plain uniform offset; only where [`Offsets::is_plain_uniform`] holds for `dir`.
    #[inline]
    pub fn plain_uniform(&mut self, dir: Dir) -> u64 {
        let d = dir as usize;
        let block = self.rng.below(self.blocks[d]);
        self.region.start + block * self.align[d]
    }

    /// Whether `len` bytes from `offset` lie in the region.
    #[inline]
    pub fn fits(&self, offset: u64, len: u64) -> bool {
        offset + len <= self.region.end()
    }

    /// The offset of the next I/O in direction `dir`; `None` when the pass is over.
    #[inline]
    pub fn next(&mut self, dir: Dir) -> Option<Pick> {
        let pick = self.candidate(dir)?;
        (pick.offset < self.region.end()).then_some(pick)
    }

    fn candidate(&mut self, dir: Dir) -> Option<Pick> {
        let d = dir as usize;
        if self.trim_then_write && dir == Dir::Write {
            let offset = self.last_start[Dir::Trim as usize];
            return (offset != NOWHERE).then_some(Pick { offset, random: true, mapped: None });
        }
        self.until_fresh -= 1;
        if self.until_fresh > 0 {
            return self.between_fresh(dir);
        }
        self.until_fresh = self.every;
        if !self.random {
            return self.sequential(dir);
        }
        let percent = self.percent_random[d];
        if percent == 100 || self.seq_or_random[d].between(1, 100) <= u32::from(percent) {
            self.fresh(dir)
        } else {
            self.sequential(dir).or_else(|| self.fresh(dir))
        }
    }

    /// Returns the offset between two fresh offsets of `rw=randread:N`.
    fn between_fresh(&mut self, dir: Dir) -> Option<Pick> {
        if !self.identical {
            return self.sequential(dir).or_else(|| self.fresh(dir));
        }
        let last = self.last_start[dir as usize];
        let offset = if last == NOWHERE { self.region.start } else { last };
        Some(Pick { offset, random: false, mapped: None })
    }

    fn sequential(&mut self, dir: Dir) -> Option<Pick> {
        let d = dir as usize;
        let Region { start, len, .. } = self.region;
        if self.last_pos[d] >= start + len && self.wrap_sequential {
            self.last_pos[d] = start;
        }
        let mut at = self.last_pos[d] - start;
        if self.seq_add != 0 {
            // fio begins a backward stream at the end only if the region does not start at 0.
            if at == 0 && self.seq_add < 0 && start != 0 {
                at = len;
            }
            if at != 0 {
                at = match at.checked_add_signed(self.seq_add) {
                    Some(at) if at < len => at,
                    _ if self.seq_add > 0 => 0,
                    _ => len.checked_add_signed(self.seq_add)?,
                };
            }
        }
        (at < len).then_some(Pick { offset: start + at, random: false, mapped: None })
    }

    fn fresh(&mut self, dir: Dir) -> Option<Pick> {
        if let Some(pick) = self.fresh_block(dir) {
            return Some(pick);
        }
        if !self.time_based {
            return None;
        }
        self.start_pass();
        self.fresh_block(dir)
    }

    fn fresh_block(&mut self, dir: Dir) -> Option<Pick> {
        let d = dir as usize;
        if self.blocks[d] == 0 {
            return None;
        }
        let mut block = match &mut self.draw[d] {
            Draw::Uniform => self.rng.below(self.blocks[d]),
            Draw::Skewed(n) => self.skewed[usize::from(*n)].next_block(),
            Draw::Zoned(zones) => zones.next_block(&mut self.rng),
        };
        let Some(map) = &self.map else {
            return Some(Pick { offset: self.region.start + block * self.align[d], random: true, mapped: None });
        };
        let per_point = self.map_blocks[d];
        if per_point == 1 {
            block = map.pick(block)?;
            let offset = self.region.start + block * self.align[d];
            return Some(Pick { offset, random: true, mapped: Some(block) });
        }
        // The grid of this direction is coarser than the map. The remainder of a partly touched larger block is used as it is.
        let block = map.pick(block * per_point)?;
        Some(Pick { offset: self.region.start + block * self.map_unit, random: true, mapped: Some(block) })
    }

    /// Records that an I/O of `len` bytes is issued at `pick`. Returns its length, which is shorter if a touched block in
    /// the random map is in the way.
    #[inline]
    pub fn issued(&mut self, dir: Dir, pick: Pick, len: u64) -> u64 {
        let d = dir as usize;
        let mut len = len;
        if let Some(first) = pick.mapped
            && let Some(map) = &mut self.map
        {
            if len == self.map_unit {
                map.touch(first, 1);
            } else {
                len = len.min(map.touch(first, len.div_ceil(self.map_unit)) * self.map_unit);
            }
        }
        if self.trim_then_write && dir == Dir::Trim && self.last_start[d] == pick.offset {
            // The same block drawn twice in a row must still alternate between trim and write.
            self.last_start[Dir::Write as usize] = NOWHERE - 1;
        }
        self.last_start[d] = pick.offset;
        self.last_pos[d] = pick.offset + len;
        len
    }

    /// For `trimwrite`: whether the last trimmed block was written, so that the next one is to be trimmed.
    pub fn trim_is_next(&self) -> bool {
        self.last_start[Dir::Write as usize] == self.last_start[Dir::Trim as usize]
    }

    /// For `randtrimwrite`: length of the last trim, which the write after it repeats.
    pub fn last_trim_len(&self) -> Option<u64> {
        let t = Dir::Trim as usize;
        (self.trim_then_write && self.last_start[t] != NOWHERE).then(|| self.last_pos[t] - self.last_start[t])
    }

    /// Starts a new pass: all blocks untouched, sequential streams at their start. The random sequence continues.
    pub fn start_pass(&mut self) {
        self.last_pos = [self.region.start; DIRS];
        self.last_start = [NOWHERE; DIRS];
        if let Some(map) = &mut self.map {
            map.clear();
        }
    }

    /// Restarts the random sequence, so that it repeats that of the first pass.
    pub fn reseed(&mut self) {
        let wide = matches!(self.rng, FioRng::Wide(_));
        self.rng = FioRng::new(self.seeds.of(Purpose::Offset), wide);
        let seed = self.seeds.of(Purpose::SequentialOrRandom) as u32;
        self.seq_or_random = std::array::from_fn(|_| Taus88::new(seed));
        self.skewed.iter_mut().for_each(Skewed::reseed);
        for draw in &mut self.draw {
            if let Draw::Zoned(zones) = draw {
                zones.reseed();
            }
        }
    }
}

fn zone_error(job: &Job, error: ZoneError, region_bytes: u64) -> SetupError {
    let (value, rule, remedy) = match error {
        ZoneError::TooLong(bytes) => (
            format!("zones of {bytes} bytes"),
            format!("the job's region has {region_bytes} bytes"),
            "shorten the zones or raise size",
        ),
        ZoneError::Empty => {
            ("a zone".into(), "an accessed zone must hold at least one block".into(), "enlarge the zone or lower bs")
        }
        ZoneError::Shares(sum) => {
            (format!("access shares of {sum} %"), "the shares must sum to 100 %".into(), "change the shares")
        }
    };
    SetupError::new(&job.name, "random_distribution", value, rule, remedy)
}
