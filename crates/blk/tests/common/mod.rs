// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the core's tests share: a disk that forgets nothing and forgives nothing, and a rig that runs submitters on it.
//!
//! Everything here is deterministic: time is a counter, choices come from a seed that a failing test prints.
#![allow(dead_code, reason = "each test binary uses a part of the common code")]

pub mod memdisk;
pub mod model;
pub mod rig;

use std::sync::atomic::{AtomicU64, Ordering};

/// The lock the tests run the core with.
pub type Lock = parking_lot::RawMutex;

/// SplitMix64: the same numbers for the same seed, for ever.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0);
        self.next() % n
    }

    /// True for `n` of a thousand calls.
    pub fn per_mille(&mut self, n: u32) -> bool {
        n > 0 && self.below(1000) < u64::from(n)
    }

    /// One of `from`.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// Memory that bios point into: one word stands for one sector of data.
pub struct Mem(Vec<AtomicU64>);

impl Mem {
    pub fn new(sectors: usize) -> Mem {
        Mem((0..sectors).map(|_| AtomicU64::new(0)).collect())
    }

    pub fn get(&self, sector: u64) -> u64 {
        self.0[sector as usize].load(Ordering::Relaxed)
    }

    pub fn set(&self, sector: u64, v: u64) {
        self.0[sector as usize].store(v, Ordering::Relaxed);
    }
}
