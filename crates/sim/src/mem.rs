// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory that bios point into: one word stands for one sector of data. Submitters and the disk share it. In tests with
//! threads they access different parts of it at any one time.

use std::sync::atomic::{AtomicU64, Ordering};

/// The memory of one simulated host.
pub struct Mem(Vec<AtomicU64>);

impl Mem {
    /// `sectors` words of zero.
    pub fn new(sectors: usize) -> Mem {
        Mem((0..sectors).map(|_| AtomicU64::new(0)).collect())
    }

    /// The word of a sector. Panics when there is no such sector.
    pub fn get(&self, sector: u64) -> u64 {
        self.0[sector as usize].load(Ordering::Relaxed)
    }

    /// Writes the word of a sector. Panics when there is no such sector.
    pub fn set(&self, sector: u64, v: u64) {
        self.0[sector as usize].store(v, Ordering::Relaxed);
    }
}
