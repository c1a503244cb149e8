// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Completed I/Os of one direction that wait to be counted together, which costs a fraction of counting them singly.

use crate::stats::{DirStats, LatencyClasses};

/// I/Os that are counted together.
const GATHERED: usize = 64;

/// See the module's text. Latencies are in nanoseconds.
#[derive(Clone, Debug)]
pub(super) struct Gathered {
    n: usize,
    bytes: u64,
    slat: [u32; GATHERED],
    clat: [u32; GATHERED],
    lat: [u32; GATHERED],
}

impl Default for Gathered {
    fn default() -> Self {
        Gathered { n: 0, bytes: 0, slat: [0; GATHERED], clat: [0; GATHERED], lat: [0; GATHERED] }
    }
}

impl Gathered {
    /// Adds a completed I/O, and the submission latency of another one. There is room until [`Gathered::is_full`].
    #[inline]
    pub fn push(&mut self, len: u32, slat: u32, clat: u32, lat: u32) {
        debug_assert!(!self.is_full(), "an I/O would be lost");
        let n = self.n % GATHERED;
        (self.slat[n], self.clat[n], self.lat[n]) = (slat, clat, lat);
        self.bytes += u64::from(len);
        self.n = n + 1;
    }

    /// Whether it is time to count them.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.n == GATHERED
    }

    /// Counts all, and returns how many they were.
    pub fn count(&mut self, dir: &mut DirStats, classes: &mut LatencyClasses) -> u64 {
        let n = core::mem::take(&mut self.n);
        dir.ios += n as u64;
        dir.bytes += core::mem::take(&mut self.bytes);
        dir.slat.record_all(&self.slat[..n]);
        dir.clat.record_all(&self.clat[..n]);
        dir.lat.record_all(&self.lat[..n]);
        self.clat[..n].iter().for_each(|&ns| classes.count(u64::from(ns), 1));
        n as u64
    }
}
