// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The data of a write that is not verified: random bytes, zeroes or a pattern.
//!
//! Guarantees: contents depend only on the job's seeds and the order of calls. Each slot's buffer is filled once before the
//! job starts ([`Buffers::fill_first`]). After that a write changes the buffer only as the job's options require.
//! `refill_buffers` fills it with new data. `scramble_buffers` (fio's default) writes the offset and the time into each 512
//! bytes, so no two blocks are equal for a deduplicating device. Zeroes and plain patterns stay as they are. Needs from
//! callers: a buffer belongs to one slot. A read into the same buffer leaves its data there for the next write, as with
//! fio.
//!
//! [`random_fill`] is fio's filler and gives the same words: four interleaved multiplicative sequences from one seed.

use crate::job::{BufferFill, Job, Pattern};
use crate::rng::{FioRng, Purpose, Seeds};
use crate::shaped::Shaped;
use blk::time::Instant;

/// 2^64 divided by the golden ratio, odd.
const GOLDEN_RATIO: u64 = 0x61C8_8646_80B5_83EB;
/// Seeds of the interleaved sequences are the block's seed times these.
const LANES: [u64; 4] = [1, 2, 3, 5];
const LANE_BYTES: usize = 8 * LANES.len();
const SCRAMBLE_STEP: usize = 512;

/// Fills `buf` from `seed` as fio fills a verified block.
pub fn random_fill(buf: &mut [u8], seed: u64) {
    let mut lanes = LANES.map(|l| seed.wrapping_mul(l));
    let (whole, rest) = buf.as_chunks_mut::<LANE_BYTES>();
    for chunk in whole {
        for (word, lane) in chunk.as_chunks_mut::<8>().0.iter_mut().zip(&mut lanes) {
            *word = lane.to_le_bytes();
            *lane = lane.wrapping_mul(GOLDEN_RATIO);
        }
    }
    let mut lane = lanes[0];
    for word in rest.chunks_mut(8) {
        word.copy_from_slice(&lane.to_le_bytes()[..word.len()]);
        lane = lane.wrapping_mul(GOLDEN_RATIO);
    }
}

/// Repeats `pattern` over `buf`. The first byte of `buf` lies `phase` bytes into a block that starts with the pattern.
/// `offset`, the block's offset in the target, replaces `%o`.
///
/// # Panics
/// When the pattern is empty.
pub fn pattern_fill(buf: &mut [u8], pattern: &Pattern, phase: usize, offset: u64) {
    let period = pattern.bytes.len();
    assert!(period > 0, "empty pattern");
    let offset = offset.to_le_bytes();
    let byte = |i: usize| {
        let placed = pattern.offset_at.iter().find(|&&at| (at..at + 8).contains(&i));
        placed.map_or(pattern.bytes[i], |at| offset[i - at])
    };
    let first = buf.len().min(period);
    for (i, b) in buf[..first].iter_mut().enumerate() {
        *b = byte((phase + i) % period);
    }
    let mut done = first;
    while done < buf.len() {
        let n = done.min(buf.len() - done);
        buf.copy_within(..n, done);
        done += n;
    }
}

/// The change of a buffer at each write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EachWrite {
    Nothing,
    Scramble,
    Refill,
}

/// Buffer contents of one job thread.
#[derive(Clone, Debug)]
pub struct Buffers {
    fill: BufferFill,
    each: EachWrite,
    rng: FioRng,
    seeds: Seeds,
    /// `dedupe_percentage` and `buffer_compress_percentage`.
    shaped: Option<Box<Shaped>>,
}

impl Buffers {
    /// Makes the buffers of `job`.
    pub fn new(job: &Job, seeds: Seeds, shaped: Option<Box<Shaped>>) -> Buffers {
        let with_offset = matches!(&job.buffer_fill, BufferFill::Pattern(p) if !p.offset_at.is_empty());
        let each = match &job.buffer_fill {
            _ if shaped.is_some() => {
                if job.refill_buffers {
                    EachWrite::Refill
                } else {
                    EachWrite::Nothing
                }
            }
            _ if with_offset => EachWrite::Refill,
            BufferFill::Random if job.refill_buffers => EachWrite::Refill,
            BufferFill::Random if job.scramble_buffers => EachWrite::Scramble,
            _ => EachWrite::Nothing,
        };
        Buffers { fill: job.buffer_fill.clone(), each, rng: seeds.rng(Purpose::Buffer), seeds, shaped }
    }

    /// Whether [`Buffers::fill_write`] has to be called for each write.
    pub fn each_write_fills(&self) -> bool {
        self.each != EachWrite::Nothing
    }

    /// Fills a buffer before the job starts.
    pub fn fill_first(&mut self, buf: &mut [u8]) {
        self.refill(buf, 0);
    }

    /// A pass begins that repeats the random numbers of the first one, and so the data.
    pub fn reseed(&mut self) {
        self.rng = self.seeds.rng(Purpose::Buffer);
        self.shaped.iter_mut().for_each(|shaped| shaped.reseed());
    }

    fn refill(&mut self, buf: &mut [u8], offset: u64) {
        if let Some(shaped) = &mut self.shaped {
            let pattern = if let BufferFill::Pattern(p) = &self.fill { Some(p) } else { None };
            return shaped.fill(&mut self.rng, buf, pattern);
        }
        match &self.fill {
            BufferFill::Random => {
                let seed = self.rng.block_seed();
                random_fill(buf, seed);
            }
            BufferFill::Zero => buf.fill(0),
            BufferFill::Pattern(p) => pattern_fill(buf, p, 0, offset),
        }
    }

    /// Prepares `buf` for a write to `offset` that was created at `now`.
    pub fn fill_write(&mut self, buf: &mut [u8], offset: u64, now: Instant) {
        match self.each {
            EachWrite::Nothing => {}
            EachWrite::Refill => self.refill(buf, offset),
            EachWrite::Scramble => scramble(buf, offset, now),
        }
    }
}

/// Writes the offset into one of the eight cache lines of each 512 bytes, and the time after the offset.
fn scramble(buf: &mut [u8], offset: u64, now: Instant) {
    let line = ((now.as_ns() ^ (offset / SCRAMBLE_STEP as u64)) & 7) as usize * 64;
    let time = now.as_ns().to_le_bytes();
    for (i, sector) in buf.chunks_exact_mut(SCRAMBLE_STEP).enumerate() {
        let at = offset + (i * SCRAMBLE_STEP) as u64;
        sector[line..line + 8].copy_from_slice(&at.to_le_bytes());
        sector[line + 8..line + 16].copy_from_slice(&time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Seeding;

    fn buffers(set: impl FnOnce(&mut Job)) -> Buffers {
        let mut job = Job::new("a");
        set(&mut job);
        Buffers::new(&job, Seeds::new(Seeding::Repeat, false, false, 1), None)
    }

    #[test]
    fn random_fill_is_fio_s() {
        // Words 6 and 7 of a block that fio 3.33 wrote with this seed.
        let mut buf = [0u8; 64 + 13];
        random_fill(&mut buf, 0x00a4_cc01_c509_543c);
        assert_eq!(buf[48..56], [0x3c, 0x15, 0x45, 0x9c, 0xb6, 0xc6, 0xe0, 0x0a]);
        assert_eq!(buf[56..64], [0x64, 0x23, 0x73, 0x04, 0xdb, 0xf5, 0xcb, 0xbc]);
        assert!(buf[64..].iter().any(|&b| b != 0), "the rest of a chunk is filled too");
    }

    #[test]
    fn patterns_repeat_with_their_offset() {
        let p = Pattern { bytes: vec![1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 9], offset_at: vec![2] };
        let mut buf = [0u8; 30];
        pattern_fill(&mut buf, &p, 0, 0x1122);
        let unit = [1, 2, 0x22, 0x11, 0, 0, 0, 0, 0, 0, 9];
        assert!(buf.iter().enumerate().all(|(i, &b)| b == unit[i % 11]), "{buf:?}");
        let mut tail = [0u8; 7];
        pattern_fill(&mut tail, &p, 9, 0x1122);
        assert_eq!(tail, [0, 9, 1, 2, 0x22, 0x11, 0]);
    }

    #[test]
    fn each_rule_changes_what_it_says() {
        let now = Instant::from_ns(77);
        let write = |b: &mut Buffers, offset| {
            let mut buf = vec![0xEE; 1024];
            b.fill_write(&mut buf, offset, now);
            buf
        };
        let mut zero = buffers(|j| j.buffer_fill = BufferFill::Zero);
        assert!(!zero.each_write_fills());
        let mut buf = vec![1; 10];
        zero.fill_first(&mut buf);
        assert_eq!(buf, [0; 10]);

        let mut scramble = buffers(|_| ());
        let (a, b) = (write(&mut scramble, 0), write(&mut scramble, 1024));
        assert_ne!(a, b);
        assert_eq!(a.iter().filter(|&&x| x != 0xEE).count(), 2 * 16, "only 16 bytes of each 512");

        let mut refill = buffers(|j| j.refill_buffers = true);
        assert_ne!(write(&mut refill, 0), write(&mut refill, 0), "a new seed for every write");

        let mut off = buffers(|j| j.scramble_buffers = false);
        assert!(!off.each_write_fills());
        assert_eq!(write(&mut off, 0), [0xEE; 1024]);
    }
}
