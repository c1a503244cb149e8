// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Data that compresses or repeats: `buffer_compress_percentage`, `buffer_compress_chunk`, `dedupe_percentage`, `dedupe_mode`,
//! `dedupe_working_set_percentage`, `dedupe_global`.
//!
//! Guarantees: with the same seeds the bytes are those of fio 3.33. A write is filled in pieces of `buffer_compress_chunk`,
//! at most the smallest write. Each piece has random bytes at its start, and zeroes or the `buffer_pattern` at its end. A
//! write that repeats draws its pieces from an earlier state of the generator: with `dedupe_mode=repeat` from the one that
//! the next new write begins with, with `working_set` from one of a fixed set.

use crate::buffer::{pattern_fill, random_fill};
use crate::error::SetupError;
use crate::job::{DataShape, Job, Pattern};
use crate::rng::{FioRng, Purpose, Seeds, Taus88};

/// Most blocks of a working set; each takes 24 bytes of memory.
const WORKING_SET_MAX: u64 = 1 << 26;

/// The shape of the data of one job thread.
#[derive(Clone, Debug)]
pub struct Shaped {
    shape: DataShape,
    /// Length of a piece.
    piece_bytes: usize,
    /// Whether the next write repeats.
    repeats: Taus88,
    /// What repeated writes begin with, for `dedupe_mode=repeat`.
    before: FioRng,
    /// What repeated writes begin with, for `dedupe_mode=working_set`; and which of them is next.
    working_set: Vec<FioRng>,
    next: FioRng,
    seeds: Seeds,
}

impl Shaped {
    /// Returns `None` for a job whose data has no shape. `region_bytes`: what the job works in.
    pub fn new(job: &Job, seeds: Seeds, number: u32, region_bytes: u64) -> Result<Option<Box<Shaped>>, SetupError> {
        let Some(shape) = job.shape else { return Ok(None) };
        let write = job.block_sizes.write.min_bytes().max(1);
        let piece = if shape.chunk_bytes > 0 { shape.chunk_bytes.min(write) } else { write };
        let mut shaped = Shaped {
            shape,
            piece_bytes: piece as usize,
            repeats: Taus88::new(seeds.of(Purpose::Dedupe) as u32),
            before: seeds.rng(Purpose::Buffer),
            working_set: Vec::new(),
            next: seeds.rng(Purpose::WorkingSet),
            seeds,
        };
        if let Some(percent) = shape.working_set_pct.filter(|_| shape.dedupe_pct > 0) {
            let blocks = (u128::from(region_bytes) * u128::from(percent) / 100 / u128::from(write)) as u64;
            let value = u64::from(percent);
            let refuse = |rule: &str, remedy: &str| {
                Err(SetupError::new(&job.name, "dedupe_working_set_percentage", value, rule, remedy))
            };
            match blocks {
                0 => return refuse("the working set has no block", "raise it, or raise size"),
                1..=WORKING_SET_MAX => shaped.working_set = working_set(shape, seeds, number, blocks, write / piece),
                _ => return refuse("the working set has more than 67108864 blocks", "lower it, or raise bs"),
            }
        }
        Ok(Some(Box::new(shaped)))
    }

    /// Fills `buf`; `rng` draws what is new.
    pub fn fill(&mut self, rng: &mut FioRng, buf: &mut [u8], pattern: Option<&Pattern>) {
        match self.shape.dedupe_pct {
            0 => self.fill_pieces(rng, buf, pattern),
            100 => {
                // Every piece is the same.
                for piece in buf.chunks_mut(self.piece_bytes) {
                    self.fill_piece(rng.clone().block_seed(), piece, pattern);
                }
            }
            percent if self.repeats.between(1, 100) <= percent => {
                let mut from = if self.working_set.is_empty() {
                    self.before.clone()
                } else {
                    let blocks = self.working_set.len() as u64;
                    self.working_set[self.next.below(blocks) as usize].clone()
                };
                self.fill_pieces(&mut from, buf, pattern);
            }
            _ => {
                self.fill_pieces(rng, buf, pattern);
                self.before = rng.clone();
            }
        }
    }

    fn fill_pieces(&self, rng: &mut FioRng, buf: &mut [u8], pattern: Option<&Pattern>) {
        for piece in buf.chunks_mut(self.piece_bytes) {
            self.fill_piece(rng.block_seed(), piece, pattern);
        }
    }

    fn fill_piece(&self, seed: u64, piece: &mut [u8], pattern: Option<&Pattern>) {
        let random = piece.len() * (100 - self.shape.compress_pct as usize) / 100;
        let (random, rest) = piece.split_at_mut(random);
        random_fill(random, seed);
        match pattern {
            Some(pattern) if !rest.is_empty() => pattern_fill(rest, pattern, 0, 0),
            _ => rest.fill(0),
        }
    }

    /// A pass begins that repeats the random numbers of the first one.
    pub fn reseed(&mut self) {
        self.before = self.seeds.rng(Purpose::Buffer);
        self.repeats = Taus88::new(self.seeds.of(Purpose::Dedupe) as u32);
        self.next = self.seeds.rng(Purpose::WorkingSet);
    }
}

/// The states of the generator at the start of the first `blocks` writes; with `dedupe_global`, of writes of all threads.
fn working_set(shape: DataShape, seeds: Seeds, number: u32, blocks: u64, pieces: u64) -> Vec<FioRng> {
    let threads = u64::from(shape.global_threads.unwrap_or(1));
    let blocks_per_thread = (blocks / threads).max(1);
    let mut thread = u64::from(number) - 1;
    let mut rng = seeds.rng(Purpose::Buffer);
    let mut states = vec![rng.clone()];
    for block in 1..blocks {
        (0..pieces).for_each(|_| _ = rng.block_seed());
        if shape.global_threads.is_some() && block.is_multiple_of(blocks_per_thread) {
            thread += 1;
            rng = seeds.of_thread((thread % threads) as u32 + 1).rng(Purpose::Buffer);
        }
        states.push(rng.clone());
    }
    states
}
