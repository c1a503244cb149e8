// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `verify_only`: the I/Os of a pass are chosen and not issued, and then its writes are read back.
//!
//! Guarantees: offsets, sizes and seeds are those of the same job without `verify_only`. As with fio, skipped I/Os count in
//! the results; they have no latencies and take no time. Rates, pauses and flushes do not apply.

use super::issue::Chosen;
use super::{JobThread, Next, Phase};
use crate::job::Dir;
use blk::time::{Duration, Instant};

/// The driver is asked now and then whether the run is to stop: after this many skipped I/Os.
const LOOK_AFTER: u64 = 4096;

impl JobThread {
    /// Counts an I/O that is not issued. `None`: choose the next one.
    pub(super) fn skip(&mut self, c: Chosen, now: Instant) -> Option<Next> {
        let holds_data = self.holds_data(&c);
        if self.phase != Phase::Io {
            return None;
        }
        if c.dir == Dir::Write {
            let stamp = self.next_stamp();
            if holds_data && self.plan.read_back {
                let piece = self.log.begin(self.address(c.offset), c.len, stamp);
                self.log.finish(piece, true);
            }
        }
        self.passes.issued(c.len);
        self.count_skipped(c.dir, c.len, now)
    }

    /// Counts an I/O as if it had completed.
    pub(super) fn count_skipped(&mut self, dir: Dir, len: u32, now: Instant) -> Option<Next> {
        let (d, bytes) = (dir as usize, u64::from(len));
        self.issued_ios[d] += 1;
        self.issued_bytes[d] += bytes;
        self.stats.dirs[d].ios += 1;
        self.stats.dirs[d].bytes += bytes;
        let all: u64 = self.issued_ios.iter().sum();
        all.is_multiple_of(LOOK_AFTER).then(|| Next::Wait(now + Duration::from_ns(1)))
    }
}
