// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bandwidth or IOPS in windows of equal length, which follow each other from the start of what is measured.

use crate::stats::{DIRS, per_second};

/// The present window of one rate.
#[derive(Clone, Debug, Default)]
pub(super) struct RateWindow {
    len_ns: u64,
    until: u64,
    /// Counts at its beginning, per direction.
    seen: [u64; DIRS],
}

impl RateWindow {
    /// Begins the first window; counts are zero.
    pub fn new(len_ns: u64, now: u64) -> RateWindow {
        RateWindow { len_ns, until: now.saturating_add(len_ns), seen: [0; DIRS] }
    }

    /// When it ends, nanoseconds.
    pub fn until(&self) -> u64 {
        self.until
    }

    /// Ends it if it is over at `now`, and with it the empty ones that follow. Returns its end, and the rate per second of
    /// each direction that moved. `counts` is everything until now, which is everything until its end.
    pub fn end(&mut self, now: u64, counts: [u64; DIRS]) -> Option<(u64, [Option<u64>; DIRS])> {
        if now < self.until {
            return None;
        }
        let ended = self.until;
        let rates = std::array::from_fn(|d| {
            (counts[d] > self.seen[d]).then(|| per_second(counts[d] - self.seen[d], self.len_ns))
        });
        self.seen = counts;
        self.until = ended.saturating_add(self.len_ns * ((now - ended) / self.len_ns + 1));
        Some((ended, rates))
    }
}
