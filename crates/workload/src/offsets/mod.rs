// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The offset of the next I/O of a job: sequential, uniform with or without a random map, skewed or zoned.
//!
//! Guarantees: offsets lie inside the job's [`Region`], and with fio's seeds they are fio's. With the random map every block
//! is used once per pass. Needs from callers: [`Offsets::issued`] after the size of the I/O is known, before the next
//! [`Offsets::next`]. Does not know rates, mixes or limits in bytes.
//!
//! A job has one [`FileOffsets`] for each of its files: positions, random map, distribution. [`Offsets`] holds that of the
//! file whose I/O is next, and the random numbers, which all files of a thread share.
//!
//! One map serves all directions, and each direction counts its blocks in its own size. With sizes that differ, block n is
//! another place for each of them, as in fio: the map then only keeps one direction from using a block twice, and a pass
//! ends early when it hands a long block out that begins past the end.
//!
//! A sequential I/O of a random job is not marked in the map. If none is possible, because the file or the pass is over, the job's next
//! I/O is not marked either, as in fio: its block may be used again.
//!
//! Memory: one bit per block for the random map ([`map`]), nothing otherwise. Source: the behaviour of fio 3.33, as its
//! HOWTO describes it and as its I/O logs show.

mod lfsr;
mod map;
pub(crate) mod skewed;
mod zoned;
mod strided;
mod region;

pub(crate) use region::Amount;
pub use region::{FileTarget, Region};

use crate::error::SetupError;
use crate::job::{Dir, Distribution, Job, RandomGenerator, RwMode, RwSequencer};
use crate::rng::{FioRng, Purpose, Seeds, Taus88};
use crate::stats::DIRS;
use lfsr::Lfsr;
use map::BlockMap;
use skewed::Skewed;
use strided::Zone;
use zoned::{ZoneError, Zones};

const NOWHERE: u64 = u64::MAX;

/// How one direction draws a random block.
#[derive(Clone, Debug)]
enum Draw {
    Uniform,
    /// From `Offsets::skewed`. Directions share its state, so that reads and writes have the same hot blocks.
    Skewed,
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

/// Where a job thread is in one of its files.
#[derive(Clone, Debug)]
pub struct FileOffsets {
    region: Region,
    /// The zone of a strided job.
    zone: Option<Zone>,
    target_bytes: u64,
    /// Number of grid points per direction.
    blocks: [u64; DIRS],
    draw: [Draw; DIRS],
    skewed: Option<Skewed>,
    last_pos: [u64; DIRS],
    last_start: [u64; DIRS],
    map: Option<BlockMap>,
    lfsr: Option<Lfsr>,
}

/// Offsets of one job thread.
#[derive(Clone, Debug)]
pub struct Offsets {
    file: FileOffsets,
    random: bool,
    trim_then_write: bool,
    /// A sequential stream that is at its end begins again.
    wraps: bool,
    /// A file whose random blocks are used up begins again.
    starts_over: bool,
    seq_add: i64,
    every: u32,
    until_fresh: u32,
    identical: bool,
    /// The next I/O leaves the random map as it is.
    unmarked: bool,
    percent_random: [u8; DIRS],
    /// Grid of random offsets in bytes, per direction.
    align: [u64; DIRS],
    rng: FioRng,
    /// The generator before the first draw.
    first_rng: FioRng,
    zone_rng: Taus88,
    seq_or_random: [Taus88; DIRS],
    seeds: Seeds,
}

fn grid(job: &Job) -> [u64; DIRS] {
    Dir::ALL.map(|d| job.grid_bytes(d).max(1))
}

impl FileOffsets {
    /// The start of `job` in `region` of the target `file`, which has `target_bytes`.
    pub fn new(
        job: &Job,
        region: Region,
        (file, target_bytes): (&str, u64),
        seeds: Seeds,
    ) -> Result<FileOffsets, SetupError> {
        let align = grid(job);
        let zone = job.strided.map(|zones| Zone::new(zones, region));
        let span = zone.map_or(region.len, |zone| zone.range());
        let blocks = Dir::ALL.map(|d| {
            let short = job.block_sizes[d].min_bytes().saturating_sub(align[d as usize]);
            span.saturating_sub(short) / align[d as usize]
        });
        let mut offsets = FileOffsets { zone, blocks, ..FileOffsets::empty(region, target_bytes) };
        if job.rw.random {
            offsets.set_up_draws(job, (file, seeds), &align)?;
            offsets.set_up_cover(job, seeds)?;
        }
        Ok(offsets)
    }

    /// A file without any block.
    fn empty(region: Region, target_bytes: u64) -> FileOffsets {
        FileOffsets {
            region,
            zone: None,
            target_bytes,
            blocks: [0; DIRS],
            draw: [Draw::Uniform, Draw::Uniform, Draw::Uniform],
            skewed: None,
            last_pos: [region.start; DIRS],
            last_start: [NOWHERE; DIRS],
            map: None,
            lfsr: None,
        }
    }

    /// What is in place of the file that [`Offsets`] holds.
    pub fn nothing() -> FileOffsets {
        FileOffsets::empty(Region { start: 0, len: 0 }, 0)
    }

    /// The region the offsets lie in.
    pub fn region(&self) -> Region {
        self.region
    }

    /// Starts over: all blocks untouched, sequential streams at their start. A skewed distribution continues.
    pub fn start_pass(&mut self) {
        if let Some(zone) = &mut self.zone {
            zone.start_pass(self.region);
        }
        self.clear();
    }

    /// Start of what offsets count from: the region, or the zone of a strided job.
    fn start(&self) -> u64 {
        self.zone.map_or(self.region.start, |zone| zone.start)
    }

    /// Moves to the zone of the next I/O, of a strided job.
    fn enter_zone(&mut self, dir: Dir) {
        let Some(zone) = &mut self.zone else { return };
        if zone.advance(self.region) {
            self.clear();
        } else if self.last_pos[dir as usize] >= zone.end() {
            self.last_pos[dir as usize] = zone.start;
        }
    }

    /// Makes all blocks of the region, or of a strided job's zone, unused.
    fn clear(&mut self) {
        self.last_pos = [self.start(); DIRS];
        self.last_start = [NOWHERE; DIRS];
        if let Some(map) = &mut self.map {
            map.clear();
        }
        if let Some(lfsr) = &mut self.lfsr {
            lfsr.reset();
        }
    }

    fn set_up_draws(&mut self, job: &Job, (file, seeds): (&str, Seeds), align: &[u64; DIRS]) -> Result<(), SetupError> {
        let unit = job.block_sizes.read.min_bytes().min(job.block_sizes.write.min_bytes()).max(1);
        for dir in Dir::ALL.into_iter().filter(|d| job.rw.has(*d)) {
            let d = dir as usize;
            self.draw[d] = match &job.random_distribution[dir] {
                Distribution::Random => Draw::Uniform,
                Distribution::Zoned(zones) => {
                    let zones = Zones::new(zones, self.blocks[d], align[d]);
                    Draw::Zoned(Box::new(zones.map_err(|e| zone_error(job, e, self.region.len))?))
                }
                skewed => {
                    let blocks = (self.region.len / unit).max(1);
                    self.skewed = Skewed::new(skewed, blocks, seeds.of_file(file));
                    Draw::Skewed
                }
            };
        }
        Ok(())
    }

    /// Applies fio's rules for how a job comes to use every block: by a shift register, by a random map or not at all.
    fn set_up_cover(&mut self, job: &Job, seeds: Seeds) -> Result<(), SetupError> {
        let blocks = self.zone.map_or(self.region.len, |zone| zone.range()) / job.min_bs().max(1);
        if job.random_generator == RandomGenerator::Lfsr {
            self.lfsr = Some(Lfsr::new(blocks, seeds.of(Purpose::Offset)));
            return Ok(());
        }
        if job.has_no_map() {
            return Ok(());
        }
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
}

impl Offsets {
    /// The offsets of `job`, which begin in `first`. `others`: the job's other files.
    pub fn new(job: &Job, first: FileOffsets, others: &[FileOffsets], seeds: Seeds) -> Offsets {
        let is_wide = |f: &FileOffsets| f.blocks.iter().any(|&b| b > u64::from(u32::MAX));
        let wide = is_wide(&first) || others.iter().any(is_wide);
        let rng = if wide { FioRng::new(seeds.of(Purpose::Offset), true) } else { seeds.rng(Purpose::Offset) };
        Offsets {
            file: first,
            random: job.rw.random,
            trim_then_write: job.rw.mode == RwMode::TrimWrite && job.rw.random,
            wraps: job.time_based && others.is_empty(),
            starts_over: job.time_based || (job.file_service.restarts_files() && !others.is_empty()),
            seq_add: job.seq_offset_add_bytes,
            every: job.rand_offset_every,
            until_fresh: 1,
            unmarked: false,
            identical: job.rw_sequencer == RwSequencer::Identical,
            percent_random: Dir::ALL.map(|d| job.percentage_random[d] as u8),
            align: grid(job),
            rng: rng.clone(),
            first_rng: rng,
            zone_rng: Taus88::new(seeds.of(Purpose::Zone) as u32),
            seq_or_random: std::array::from_fn(|_| Taus88::new(seeds.of(Purpose::SequentialOrRandom) as u32)),
            seeds,
        }
    }

    /// The state of the file whose I/O is next.
    pub fn file_mut(&mut self) -> &mut FileOffsets {
        &mut self.file
    }

    /// The region the offsets lie in.
    pub fn region(&self) -> Region {
        self.file.region
    }

    /// What draws random offsets, of a random job.
    pub(crate) fn generator(&self) -> Option<&FioRng> {
        self.random.then_some(&self.rng)
    }

    /// Whether a random map is kept, so that each block is used once per pass.
    pub fn has_map(&self) -> bool {
        self.file.map.is_some()
    }

    /// Whether every I/O is an independent uniform draw without a map, which the engine's shortest path may inline.
    pub fn is_plain_uniform(&self, dir: Dir) -> bool {
        let d = dir as usize;
        self.random
            && self.file.zone.is_none()
            && !self.trim_then_write
            && self.file.map.is_none()
            && self.file.lfsr.is_none()
            && self.every == 1
            && self.percent_random[d] == 100
            && matches!(self.file.draw[d], Draw::Uniform)
            && self.file.blocks[d] > 0
    }

    /// A plain uniform offset; only where [`Offsets::is_plain_uniform`] holds for `dir`.
    #[inline]
    pub fn plain_uniform(&mut self, dir: Dir) -> u64 {
        let d = dir as usize;
        let block = self.rng.below(self.file.blocks[d]);
        self.file.region.start + block * self.align[d]
    }

    /// Whether `len` bytes from `offset` lie in the region.
    #[inline]
    pub fn fits(&self, offset: u64, len: u64) -> bool {
        offset + len <= self.file.region.end()
    }

    /// The offset of the next I/O in direction `dir`; `None` when the pass is over.
    #[inline]
    pub fn next(&mut self, dir: Dir) -> Option<Pick> {
        let pick = self.candidate(dir)?;
        (pick.offset < self.file.region.end()).then_some(pick)
    }

    fn candidate(&mut self, dir: Dir) -> Option<Pick> {
        let d = dir as usize;
        self.file.enter_zone(dir);
        self.until_fresh -= 1;
        let between = self.until_fresh > 0;
        if !between {
            self.until_fresh = self.every;
        }
        if self.trim_then_write && dir == Dir::Write {
            self.unmarked = true;
            let offset = self.file.last_start[Dir::Trim as usize];
            return (offset != NOWHERE).then_some(Pick { offset, random: true, mapped: None });
        }
        if between {
            self.unmarked = true;
            return self.between_fresh(dir);
        }
        if !self.random {
            return self.sequential(dir);
        }
        let percent = self.percent_random[d];
        if percent == 100 || self.seq_or_random[d].between(1, 100) <= u32::from(percent) {
            self.fresh(dir)
        } else {
            self.unmarked = true;
            self.sequential(dir).or_else(|| self.fresh_in_sequence(dir))
        }
    }

    /// Returns the offset between two fresh offsets of `rw=randread:N`.
    fn between_fresh(&mut self, dir: Dir) -> Option<Pick> {
        if !self.identical {
            return self.sequential(dir).or_else(|| self.fresh_in_sequence(dir));
        }
        let last = self.file.last_start[dir as usize];
        let offset = if last == NOWHERE { self.file.start() } else { last };
        Some(Pick { offset, random: false, mapped: None })
    }

    /// Continues the stream. One with holes or backward steps follows fio to the letter, where regions that do not begin at
    /// 0 have surprises: the stream wraps at the end of the target, to the region's start counted twice; backwards, it begins
    /// at the size of the region, counted from the start of the target.
    fn sequential(&mut self, dir: Dir) -> Option<Pick> {
        let d = dir as usize;
        let (start, len) = (self.file.start(), self.file.region.len);
        if self.file.last_pos[d] >= self.file.region.end() && self.wraps {
            self.file.last_pos[d] = start;
        }
        if self.file.last_pos[d] >= self.file.target_bytes {
            return None;
        }
        let mut at = self.file.last_pos[d] - start;
        if self.seq_add != 0 {
            if at == 0 && self.seq_add < 0 && start != 0 {
                at = len.wrapping_sub(start);
            }
            if at != 0 {
                at = at.wrapping_add_signed(self.seq_add);
                if at >= self.file.target_bytes {
                    at = if self.seq_add > 0 { start } else { len.wrapping_add_signed(self.seq_add) };
                }
            }
        }
        (at < len).then_some(Pick { offset: start + at, random: false, mapped: None })
    }

    /// A random offset in the place of a sequential one. It counts as sequential.
    fn fresh_in_sequence(&mut self, dir: Dir) -> Option<Pick> {
        self.fresh(dir).map(|pick| Pick { random: false, ..pick })
    }

    fn fresh(&mut self, dir: Dir) -> Option<Pick> {
        if let Some(pick) = self.fresh_block(dir) {
            return Some(pick);
        }
        if !self.starts_over {
            return None;
        }
        self.file.clear();
        self.fresh_block(dir)
    }

    fn fresh_block(&mut self, dir: Dir) -> Option<Pick> {
        let d = dir as usize;
        if self.file.blocks[d] == 0 {
            return None;
        }
        let drawn = match &mut self.file.draw[d] {
            Draw::Uniform => self.uniform(self.file.blocks[d])?,
            Draw::Skewed => self.file.skewed.as_mut().expect("a skewed draw has its distribution").next_block(),
            Draw::Zoned(zones) => {
                let (first, blocks) = zones.span(self.zone_rng.between(1, 100));
                first + self.uniform(blocks)?
            }
        };
        let mapped = match &self.file.map {
            Some(map) => Some(map.pick(drawn)?),
            None => None,
        };
        // A grid that is coarser than what is drawn leaves the region; then the pass is over.
        let offset = mapped.unwrap_or(drawn).checked_mul(self.align[d])?.checked_add(self.file.start())?;
        Some(Pick { offset, random: true, mapped })
    }

    /// A block below `blocks`, or any block of the region that the shift register has not returned yet.
    #[inline]
    fn uniform(&mut self, blocks: u64) -> Option<u64> {
        match &mut self.file.lfsr {
            Some(lfsr) => lfsr.next_block(),
            None => Some(self.rng.below(blocks)),
        }
    }

    /// Records an I/O that needs no offset.
    pub fn issued_other(&mut self) {
        self.unmarked = false;
    }

    /// Records that an I/O of `len` bytes is issued at `pick`. Returns its length, which is shorter if a touched block in
    /// the random map is in the way.
    #[inline]
    pub fn issued(&mut self, dir: Dir, pick: Pick, len: u64) -> u64 {
        let d = dir as usize;
        let mut len = len;
        let unmarked = std::mem::take(&mut self.unmarked);
        if let Some(first) = pick.mapped
            && !unmarked
            && let Some(map) = &mut self.file.map
        {
            let block = self.align[d];
            if len == block {
                map.touch(first, 1);
            } else {
                len = len.min(map.touch(first, len.div_ceil(block)) * block);
            }
        }
        if self.trim_then_write && dir == Dir::Trim && self.file.last_start[d] == pick.offset {
            // The same block drawn twice in a row must still alternate between trim and write.
            self.file.last_start[Dir::Write as usize] = NOWHERE - 1;
        }
        self.file.last_start[d] = pick.offset;
        self.file.last_pos[d] = pick.offset + len;
        if let Some(zone) = &mut self.file.zone {
            zone.issued(len);
        }
        len
    }

    /// For `trimwrite`: whether the last trimmed block was written, so that the next one is to be trimmed.
    pub fn trim_is_next(&self) -> bool {
        self.file.last_start[Dir::Write as usize] == self.file.last_start[Dir::Trim as usize]
    }

    /// For `randtrimwrite`: length of the last trim, which the write after it repeats.
    pub fn last_trim_len(&self) -> Option<u64> {
        let t = Dir::Trim as usize;
        (self.trim_then_write && self.file.last_start[t] != NOWHERE)
            .then(|| self.file.last_pos[t] - self.file.last_start[t])
    }

    /// Starts a new pass: all blocks untouched, sequential streams at their start. The random sequence continues.
    pub fn start_pass(&mut self) {
        self.file.start_pass();
    }

    /// Restarts the random sequence, so that it repeats that of the first pass. A skewed one continues.
    pub fn reseed(&mut self) {
        self.rng = self.first_rng.clone();
        let seed = self.seeds.of(Purpose::SequentialOrRandom) as u32;
        self.seq_or_random = std::array::from_fn(|_| Taus88::new(seed));
        self.zone_rng = Taus88::new(self.seeds.of(Purpose::Zone) as u32);
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
