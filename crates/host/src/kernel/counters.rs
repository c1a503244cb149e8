// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel counts of a device (/sys/block/DEV/stat), and what `iostat -x` makes of it.
//!
//! Guarantees: differences are over the time between two readings. A figure without a count is `None`, not 0. Needs: `queue/iostats` to
//! be 1, or the kernel counts nothing. Does not: resolve less than milliseconds, as the kernel's counters do not.
//!
//! Source: Linux Documentation/block/stat.rst; sysstat's iostat(1) for the names of the figures.

use super::device::KernelDevice;
use std::fs;

/// Counters of reads, writes or discards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Direction {
    /// Requests that ended.
    pub ios: u64,
    /// Bios or requests that joined another one.
    pub merges: u64,
    /// Sectors of 512 bytes.
    pub sectors: u64,
    /// Milliseconds from a request's allocation to its end, summed.
    pub ticks_ms: u64,
}

impl Direction {
    fn since(self, before: Direction) -> Direction {
        Direction {
            ios: self.ios.wrapping_sub(before.ios),
            merges: self.merges.wrapping_sub(before.merges),
            sectors: self.sectors.wrapping_sub(before.sectors),
            ticks_ms: self.ticks_ms.wrapping_sub(before.ticks_ms),
        }
    }

    /// iostat's `await`, milliseconds.
    pub fn await_ms(&self) -> Option<f64> {
        (self.ios > 0).then(|| self.ticks_ms as f64 / self.ios as f64)
    }

    /// iostat's `areq-sz`, bytes.
    pub fn mean_bytes(&self) -> Option<f64> {
        (self.ios > 0).then(|| (self.sectors << 9) as f64 / self.ios as f64)
    }

    /// iostat's `%rqm`: the share that joined another one.
    pub fn merged_percent(&self) -> Option<f64> {
        let all = self.ios + self.merges;
        (all > 0).then(|| 100.0 * self.merges as f64 / all as f64)
    }
}

/// The counters of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCounters {
    /// Reads.
    pub read: Direction,
    /// Writes.
    pub write: Direction,
    /// Discards (Linux 4.18).
    pub discard: Direction,
    /// Flushes that ended (Linux 5.5), and their milliseconds.
    pub flush_ios: u64,
    /// Milliseconds of flushes, summed.
    pub flush_ticks_ms: u64,
    /// Milliseconds in which something was in flight.
    pub io_ticks_ms: u64,
    /// Milliseconds of all requests, summed.
    pub time_in_queue_ms: u64,
}

impl DiskCounters {
    /// As they are now; zeroes where the kernel does not tell.
    pub fn read(device: &KernelDevice) -> DiskCounters {
        fs::read_to_string(device.dir.join("stat"))
            .map_or_else(|_| DiskCounters::default(), |text| DiskCounters::parse(&text))
    }

    fn parse(text: &str) -> DiskCounters {
        let fields: Vec<u64> = text.split_whitespace().map_while(|f| f.parse().ok()).collect();
        let at = |i: usize| fields.get(i).copied().unwrap_or(0);
        let of = |i: usize| Direction { ios: at(i), merges: at(i + 1), sectors: at(i + 2), ticks_ms: at(i + 3) };
        DiskCounters {
            read: of(0),
            write: of(4),
            discard: of(11),
            flush_ios: at(15),
            flush_ticks_ms: at(16),
            io_ticks_ms: at(9),
            time_in_queue_ms: at(10),
        }
    }

    /// What came on top of `before`.
    #[must_use]
    pub fn since(&self, before: &DiskCounters) -> DiskCounters {
        DiskCounters {
            read: self.read.since(before.read),
            write: self.write.since(before.write),
            discard: self.discard.since(before.discard),
            flush_ios: self.flush_ios.wrapping_sub(before.flush_ios),
            flush_ticks_ms: self.flush_ticks_ms.wrapping_sub(before.flush_ticks_ms),
            io_ticks_ms: self.io_ticks_ms.wrapping_sub(before.io_ticks_ms),
            time_in_queue_ms: self.time_in_queue_ms.wrapping_sub(before.time_in_queue_ms),
        }
    }

    /// Requests that ended, flushes not included: those are counted apart.
    pub fn ios(&self) -> u64 {
        self.read.ios + self.write.ios + self.discard.ios
    }

    /// What joined another request.
    pub fn merges(&self) -> u64 {
        self.read.merges + self.write.merges + self.discard.merges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_stat_is_read_and_subtracted() {
        let text = "   29243      171   624308    30780    35441     1226   861413    66199        0    16352   104611       22        0  2059112      189     6551     7441\n";
        let now = DiskCounters::parse(text);
        assert_eq!((now.read.ios, now.write.merges, now.discard.sectors), (29243, 1226, 2_059_112));
        assert_eq!(
            (now.flush_ios, now.flush_ticks_ms, now.io_ticks_ms, now.time_in_queue_ms),
            (6551, 7441, 16352, 104_611)
        );
        assert_eq!(now.since(&now), DiskCounters::default());
        let half = DiskCounters { read: Direction { ios: 100, merges: 300, sectors: 1600, ticks_ms: 50 }, ..now };
        assert_eq!(half.read.await_ms(), Some(0.5));
        assert_eq!(half.read.mean_bytes(), Some(8192.0));
        assert_eq!(half.read.merged_percent(), Some(75.0));
        assert_eq!(Direction::default().await_ms(), None);
    }

    #[test]
    fn an_old_kernel_tells_less() {
        let old = DiskCounters::parse("1 2 3 4 5 6 7 8 9 10 11\n");
        assert_eq!((old.write.ticks_ms, old.io_ticks_ms, old.discard, old.flush_ios), (8, 10, Direction::default(), 0));
        assert_eq!(DiskCounters::parse(""), DiskCounters::default());
    }
}
