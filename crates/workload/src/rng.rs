// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random numbers as fio draws them: the same generators, the same seeds for the same purposes.
//!
//! Guarantees: with the same `randseed`, `randrepeat` and thread number a job draws the numbers that fio 3.33 draws. So the
//! offsets, sizes and verify seeds of a job are fio's (`tests/it/fio_parity.rs` checks them against fio itself). Not for
//! cryptography. There are two differences. fio 3.33 ignores a `randseed` for offsets while `randrepeat` is on, against its own
//! manual; here a `randseed` other than the default changes the offsets as well. Where a job without a random map has more than
//! 2^32 blocks, fio stays with 32 bits and never reaches some of them; here the wide generator takes over.
//!
//! Sources: P. L'Ecuyer, "Maximally Equidistributed Combined Tausworthe Generators", Math. of Computation 65 (1996), and
//! "Tables of Maximally Equidistributed Combined LFSR Generators", Math. of Computation 68 (1999); fio HOWTO 3.33.

/// fio's default `randseed`.
pub const FIO_RANDSEED: u64 = 0x89;
/// fio's seed of the offset generator if the sequence repeats. It is multiplied by the thread number.
const FIO_OFFSET_SEED: u64 = 0xb189_9bed;
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
    /// Random offsets.
    Offset = 6,
    /// Buffer contents.
    Buffer = 9,
    /// Random or sequential, for `percentage_random`.
    SequentialOrRandom = 10,
    /// `startdelay` given as a range.
    StartDelay = 13,
    /// Poisson gaps of reads.
    PoissonRead = 15,
    /// Zone of a zoned distribution.
    Zone = 16,
    /// Poisson gaps of writes.
    PoissonWrite = 17,
    /// Poisson gaps of trims.
    PoissonTrim = 18,
}

/// Seeds of all sequences of one job thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seeds {
    base: u64,
    thread: u64,
    offset: u64,
}

impl Seeds {
    /// Seeds for thread number `thread` (1-based, counted over all instances of all jobs of a file, as in fio).
    ///
    /// `entropy` is `None` when the sequence repeats from run to run (`randrepeat=1`). Otherwise it is a random number from
    /// the host, which replaces `randseed`.
    pub fn new(randseed: u64, entropy: Option<u64>, thread: u32) -> Seeds {
        let mut base = entropy.unwrap_or(randseed);
        (0..4).for_each(|_| base = base.wrapping_mul(SEED_STEP));
        let mut seeds = Seeds { base, thread: u64::from(thread), offset: 0 };
        let own = entropy.is_some() || randseed != FIO_RANDSEED;
        seeds.offset = if own { seeds.slot(Purpose::Offset as u64) } else { FIO_OFFSET_SEED * u64::from(thread) };
        seeds
    }

    fn slot(&self, slot: u64) -> u64 {
        let mut seed = self.base;
        (0..slot).for_each(|_| seed = seed.wrapping_mul(SEED_STEP));
        seed.wrapping_mul(self.thread).wrapping_add(slot)
    }

    /// The seed for one purpose.
    pub fn of(&self, purpose: Purpose) -> u64 {
        match purpose {
            Purpose::Offset => self.offset,
            other => self.slot(other as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_and_verify_seeds_are_those_of_fio_3_33() {
        // Printed by fio 3.33: --debug=random of a default randread job, and the rand_seed of its first verify headers.
        let seeds = Seeds::new(FIO_RANDSEED, None, 1);
        let mut r = Taus88::new(seeds.of(Purpose::Offset) as u32);
        let drawn: Vec<u32> = (0..4).map(|_| r.next_u32()).collect();
        assert_eq!(drawn, [259_043_585, 3_179_521_932, 3_621_444_214, 2_018_697_059]);
        let mut v = FioRng::new(seeds.of(Purpose::Verify), false);
        assert_eq!([v.block_seed(), v.block_seed()], [0x00a4_cc01_c509_543c, 0x88bb_0a8c_f6db_562e]);
    }

    #[test]
    fn threads_purposes_and_seeds_draw_different_numbers() {
        let first = |s: Seeds, p| Taus88::new(s.of(p) as u32).next_u32();
        let base = Seeds::new(FIO_RANDSEED, None, 1);
        let others = [
            first(Seeds::new(FIO_RANDSEED, None, 2), Purpose::Offset),
            first(Seeds::new(5, None, 1), Purpose::Offset),
            first(Seeds::new(FIO_RANDSEED, Some(5), 1), Purpose::Offset),
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
