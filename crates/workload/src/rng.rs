// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random numbers as fio draws them: the same generators, the same seeds for the same purposes.
//!
//! Guarantees: with the same `randseed`, `randrepeat`, `allrandrepeat`, `random_generator` and thread number a job draws the
//! numbers that fio 3.33 draws. So the offsets, sizes and verify seeds of a job are fio's (`tests/it/fio_parity.rs` and
//! `fio_random.rs` check them against fio itself). Not for cryptography. One difference: where a job without a random map has
//! more than 2^32 blocks, fio stays with 32 bits and never reaches some of them; here the wide generator takes over.
//!
//! Sources: P. L'Ecuyer, "Maximally Equidistributed Combined Tausworthe Generators", Math. of Computation 65 (1996), and
//! "Tables of Maximally Equidistributed Combined LFSR Generators", Math. of Computation 68 (1999); fio HOWTO 3.33.

/// fio's default `randseed`.
pub const FIO_RANDSEED: u64 = 0x89;
/// fio's seed of what repeats whatever `randseed` is. It is multiplied by the thread number.
const FIO_REPEAT_SEED: u64 = 0xb189_9bed;
const SEED_STEP: u64 = 0x9e37_0001;
const TWO_POW_32: f64 = 4_294_967_296.0;
const TWO_POW_64: f64 = TWO_POW_32 * TWO_POW_32;

/// Steps discarded after seeding, to mix a poor seed.
const WARM_UP: u32 = 6;

/// L'Ecuyer's taus88: 32-bit output, period about 2^88.
#[derive(Clone, Debug)]
pub struct Taus88 {
    s: [u32; 3],
}

impl Taus88 {
    /// Seeded as fio seeds it.
    pub fn new(seed: u32) -> Taus88 {
        let lcg = |x: u32, least: u32| {
            let v = x.wrapping_mul(69069) ^ seed;
            if v < least { v + least } else { v }
        };
        let s1 = lcg(53, 1);
        let s2 = lcg(s1, 7);
        let s3 = lcg(s2, 15);
        let mut rng = Taus88 { s: [s1, s2, s3] };
        (0..WARM_UP).for_each(|_| _ = rng.next_u32());
        rng
    }

    /// The next number.
    #[inline]
    pub fn next_u32(&mut self) -> u32 {
        let [s1, s2, s3] = self.s;
        let s1 = ((s1 & !1) << 12) ^ (((s1 << 13) ^ s1) >> 19);
        let s2 = ((s2 & !7) << 4) ^ (((s2 << 2) ^ s2) >> 25);
        let s3 = ((s3 & !15) << 17) ^ (((s3 << 3) ^ s3) >> 11);
        self.s = [s1, s2, s3];
        s1 ^ s2 ^ s3
    }

    /// Uniform in `lo..=hi`.
    #[inline]
    pub fn between(&mut self, lo: u32, hi: u32) -> u32 {
        let span = f64::from(hi - lo) + 1.0;
        lo + (span * (f64::from(self.next_u32()) / TWO_POW_32)) as u32
    }

    /// Uniform in (0, 1].
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (f64::from(self.next_u32()) + 1.0) / TWO_POW_32
    }
}

/// L'Ecuyer's lfsr258: 64-bit output, period about 2^258.
#[derive(Clone, Debug)]
pub struct Taus258 {
    s: [u64; 5],
}

impl Taus258 {
    /// Seeded as fio seeds it.
    pub fn new(seed: u64) -> Taus258 {
        let lcg = |x: u64, least: u64| {
            let v = x.wrapping_mul(6_906_969_069) ^ seed;
            if v < least { v + least } else { v }
        };
        let s1 = lcg(53, 1);
        let s2 = lcg(s1, 7);
        let s3 = lcg(s2, 15);
        let s4 = lcg(s3, 33);
        let s5 = lcg(s4, 49);
        let mut rng = Taus258 { s: [s1, s2, s3, s4, s5] };
        (0..WARM_UP).for_each(|_| _ = rng.next_u64());
        rng
    }

    /// The next number.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let step = |s: u64, q: u32, r: u32, low: u32, up: u32| ((s & (!0 << low)) << up) ^ (((s << q) ^ s) >> r);
        let [s1, s2, s3, s4, s5] = self.s;
        self.s = [
            step(s1, 1, 53, 1, 10),
            step(s2, 24, 50, 9, 5),
            step(s3, 3, 23, 12, 29),
            step(s4, 5, 24, 17, 23),
            step(s5, 3, 33, 23, 8),
        ];
        self.s.iter().fold(0, |x, s| x ^ s)
    }
}

/// The generator of a job. The 64-bit one is used only if 32 bits could not reach every block.
#[derive(Clone, Debug)]
pub enum FioRng {
    /// fio's `tausworthe`.
    Narrow(Taus88),
    /// fio's `tausworthe64`.
    Wide(Taus258),
}

impl FioRng {
    /// Seeded as fio seeds it.
    pub fn new(seed: u64, wide: bool) -> FioRng {
        if wide { FioRng::Wide(Taus258::new(seed)) } else { FioRng::Narrow(Taus88::new(seed as u32)) }
    }

    /// The state as fio's verify states hold it: 0 or 1 for 64 bits, then the words.
    pub(crate) fn to_bytes(&self) -> [u8; 56] {
        let mut bytes = [0; 56];
        let (kind, words) = bytes.split_at_mut(8);
        match self {
            FioRng::Narrow(r) => words.chunks_mut(4).zip(r.s).for_each(|(at, w)| at.copy_from_slice(&w.to_le_bytes())),
            FioRng::Wide(r) => {
                kind[0] = 1;
                words.chunks_mut(8).zip(r.s).for_each(|(at, w)| at.copy_from_slice(&w.to_le_bytes()));
            }
        }
        bytes
    }

    /// Returns a uniform number in `0..n`; 0 when `n` is 0. fio computes it in floating point. Up to 2^21 that product is
    /// exact, and a multiply and shift gives the same result; above, its rounding matters.
    #[inline(always)] // Once per I/O of a random job.
    pub fn below(&mut self, n: u64) -> u64 {
        if let FioRng::Narrow(r) = self
            && n <= 1 << 21
        {
            return (n * u64::from(r.next_u32())) >> 32;
        }
        self.below_large(n)
    }

    #[inline(always)] // As its caller.
    fn below_large(&mut self, n: u64) -> u64 {
        // The product is below 2^63 for every n that a disk can have, so the signed conversion is cheap and exact.
        let n = n as i64 as f64;
        match self {
            FioRng::Narrow(r) => (n * (f64::from(r.next_u32()) / TWO_POW_32)) as i64 as u64,
            FioRng::Wide(r) => (n * (r.next_u64() as f64 / TWO_POW_64)) as i64 as u64,
        }
    }

    /// Returns the next number, and the largest possible one.
    #[inline]
    pub fn raw(&mut self) -> (u64, u64) {
        match self {
            FioRng::Narrow(r) => (u64::from(r.next_u32()), u64::from(u32::MAX)),
            FioRng::Wide(r) => (r.next_u64(), u64::MAX),
        }
    }

    /// Returns a 64-bit seed for one block of data: the product of two draws, as in fio.
    #[inline]
    pub fn block_seed(&mut self) -> u64 {
        let (a, _) = self.raw();
        let (b, _) = self.raw();
        a.wrapping_mul(b)
    }
}

/// The purpose of a random sequence. The numbers are fio's slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// Block sizes of reads.
    SizeRead = 0,
    /// Block sizes of writes.
    SizeWrite = 1,
    /// Block sizes of trims.
    SizeTrim = 2,
    /// Seeds of verified blocks.
    Verify = 3,
    /// Read or write in a mixed job.
    Mix = 4,
    /// Which of several files is next.
    NextFile = 5,
    /// Random offsets.
    Offset = 6,
    /// Sizes of files.
    FileSize = 7,
    /// Which verified blocks are trimmed.
    Trim = 8,
    /// Buffer contents.
    Buffer = 9,
    /// Random or sequential, for `percentage_random`.
    SequentialOrRandom = 10,
    /// `startdelay` given as a range.
    StartDelay = 13,
    /// Whether a write repeats earlier data.
    Dedupe = 14,
    /// Poisson gaps of reads.
    PoissonRead = 15,
    /// Zone of a zoned distribution.
    Zone = 16,
    /// Poisson gaps of writes.
    PoissonWrite = 17,
    /// Poisson gaps of trims.
    PoissonTrim = 18,
    /// Priorities of single I/Os (`cmdprio_*`).
    Prio = 19,
    /// Which data of a working set a write repeats.
    WorkingSet = 20,
}

/// Where the seeds of a job come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seeding {
    /// `randrepeat=1` without a `randseed`: fio's default seeds.
    Repeat,
    /// `randseed=`.
    Given(u64),
    /// `randrepeat=0` without a `randseed`: a random number from the host.
    Entropy(u64),
}

/// Seeds of all sequences of one job thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seeds {
    base: u64,
    thread: u64,
    repeat: bool,
    all_repeat: bool,
    wide: bool,
}

impl Seeds {
    /// Seeds for thread number `thread` (1-based, counted over all instances of all jobs of a file, as in fio).
    /// `all_repeat` is `allrandrepeat`: seeds that depend on nothing but the thread. `wide` is `random_generator=tausworthe64`.
    pub fn new(seeding: Seeding, all_repeat: bool, wide: bool, thread: u32) -> Seeds {
        let mut base = match seeding {
            _ if all_repeat => 0,
            Seeding::Repeat => FIO_RANDSEED,
            Seeding::Given(seed) | Seeding::Entropy(seed) => seed,
        };
        (0..4).for_each(|_| base = base.wrapping_mul(SEED_STEP));
        Seeds { base, thread: u64::from(thread), repeat: seeding == Seeding::Repeat, all_repeat, wide }
    }

    /// The seeds of another thread with the same options.
    pub fn of_thread(&self, thread: u32) -> Seeds {
        Seeds { thread: u64::from(thread), ..*self }
    }

    /// The seed for one purpose.
    pub fn of(&self, purpose: Purpose) -> u64 {
        let slot = purpose as u64;
        match purpose {
            Purpose::Offset if self.repeat => FIO_REPEAT_SEED * self.thread,
            _ if self.all_repeat => FIO_REPEAT_SEED * self.thread + slot,
            _ => {
                let mut seed = self.base;
                (0..slot).for_each(|_| seed = seed.wrapping_mul(SEED_STEP));
                seed.wrapping_mul(self.thread).wrapping_add(slot)
            }
        }
    }

    /// The generator for a purpose that fio draws with `random_generator`.
    pub fn rng(&self, purpose: Purpose) -> FioRng {
        FioRng::new(self.of(purpose), self.wide)
    }

    /// The seed of a skewed distribution over the file `file`. With fio's default seeds it depends on the name.
    pub fn of_file(&self, file: &str) -> u32 {
        if !self.repeat {
            return self.of(Purpose::Offset) as u32;
        }
        jenkins(file.as_bytes()).wrapping_mul(self.thread as u32)
    }
}

/// Bob Jenkins' hash of a short key ("lookup3", 2006), read byte by byte.
fn jenkins(key: &[u8]) -> u32 {
    let start = 0x61c8_8647u32.wrapping_add(key.len() as u32);
    let mut state = [start; 3];
    let mut rest = key;
    while rest.len() > 12 {
        // fio adds single bytes here, not words.
        for (word, at) in state.iter_mut().zip([0, 4, 8]) {
            *word = word.wrapping_add(u32::from(rest[at]));
        }
        for (n, turn) in [4, 6, 8, 16, 19, 4].into_iter().enumerate() {
            let (a, b, c) = (n % 3, (n + 1) % 3, (n + 2) % 3);
            state[a] = state[a].wrapping_sub(state[c]) ^ state[c].rotate_left(turn);
            state[c] = state[c].wrapping_add(state[b]);
        }
        rest = &rest[12..];
    }
    if rest.is_empty() {
        return state[2];
    }
    for (n, &byte) in rest.iter().enumerate() {
        state[n / 4] = state[n / 4].wrapping_add(u32::from(byte) << (8 * (n % 4)));
    }
    for (n, turn) in [14, 11, 25, 16, 4, 14, 24].into_iter().enumerate() {
        let (into, from) = ((n + 2) % 3, (n + 1) % 3);
        state[into] = (state[into] ^ state[from]).wrapping_sub(state[from].rotate_left(turn));
    }
    state[2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_and_verify_seeds_are_those_of_fio_3_33() {
        // Printed by fio 3.33: --debug=random of a default randread job, and the rand_seed of its first verify headers.
        let seeds = Seeds::new(Seeding::Repeat, false, false, 1);
        let mut r = Taus88::new(seeds.of(Purpose::Offset) as u32);
        let drawn: Vec<u32> = (0..4).map(|_| r.next_u32()).collect();
        assert_eq!(drawn, [259_043_585, 3_179_521_932, 3_621_444_214, 2_018_697_059]);
        let mut v = seeds.rng(Purpose::Verify);
        assert_eq!([v.block_seed(), v.block_seed()], [0x00a4_cc01_c509_543c, 0x88bb_0a8c_f6db_562e]);
    }

    #[test]
    fn threads_purposes_and_seeds_draw_different_numbers() {
        let first = |s: Seeds, p| Taus88::new(s.of(p) as u32).next_u32();
        let base = Seeds::new(Seeding::Repeat, false, false, 1);
        let others = [
            first(Seeds::new(Seeding::Repeat, false, false, 2), Purpose::Offset),
            first(Seeds::new(Seeding::Given(5), false, false, 1), Purpose::Offset),
            first(Seeds::new(Seeding::Given(5), true, false, 1), Purpose::Offset),
            first(base, Purpose::Mix),
        ];
        assert!(others.iter().all(|&n| n != first(base, Purpose::Offset)), "{others:?}");
    }

    #[test]
    fn small_and_large_ranges_agree() {
        let (mut a, mut b) = (FioRng::new(9, false), FioRng::new(9, false));
        for i in 0..100_000u64 {
            let n = 1 + i * 20;
            assert_eq!(a.below(n), b.below_large(n));
        }
    }

    #[test]
    fn ranges_are_kept_and_filled() {
        for wide in [false, true] {
            let mut r = FioRng::new(42, wide);
            let mut seen = [0u32; 7];
            (0..70_000).for_each(|_| seen[r.below(7) as usize] += 1);
            assert!(seen.iter().all(|&n| (9_500..10_500).contains(&n)), "{seen:?}");
            assert_eq!(r.below(0), 0);
            assert!((0..1000).all(|_| r.below(1 << 45) < 1 << 45));
        }
        let mut r = Taus88::new(1);
        let drawn: Vec<u32> = (0..1000).map(|_| r.between(1, 100)).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&1), Some(&100)));
        assert!((0..1000).map(|_| r.unit()).all(|u| u > 0.0 && u <= 1.0));
    }
}
