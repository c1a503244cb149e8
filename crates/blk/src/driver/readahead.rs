// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Read-ahead: which sectors to fetch into a cache before they are read.
//!
//! Guarantees: the sectors to fetch come after the read that caused the fetch, and are inside the disk. Windows grow as in
//! the kernel, and never beyond `read_ahead_kb`. Each sector of a stream is fetched once, as long as the stream is
//! remembered. Random reads cause no read-ahead. The kernel remembers one position per open file and guesses others from its
//! page cache. This code remembers several streams, about as many as the clients that usually share one disk.
//!
//! Needs from callers: every read of the cache's user, in order of arrival, and a lock around the calls. Does not do: store
//! data; the owner of the cache starts the reads (the file driver has the kernel's page cache). Source: mm/readahead.c
//! (`ondemand_readahead`, `get_init_ra_size`, `get_next_ra_size`).

use crate::id::{SECTOR_SHIFT, Sector};

/// Maximum number of streams that are remembered; a new stream replaces the least recently read one.
const STREAMS: usize = 16;

/// Sectors to be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first.
    pub sector: Sector,
    /// How many.
    pub nr_sectors: u32,
}

/// A sequential reader.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// Sector at which the next read is expected.
    next: u64,
    /// End of the sectors that were fetched so far; 0 = none.
    end: u64,
    /// Length of the last window.
    size: u64,
    /// A read that ends beyond this sector causes the next window.
    marker: u64,
    /// When it was read last.
    used: u64,
}

/// See the module's text.
#[derive(Debug)]
pub struct ReadAhead {
    max: u64,
    capacity: u64,
    streams: [Stream; STREAMS],
    reads: u64,
}

impl ReadAhead {
    /// Makes the read-ahead for a disk of `capacity` sectors, with windows of at most `read_ahead_kb` KiB; 0 = no
    /// read-ahead.
    pub fn new(read_ahead_kb: u32, capacity: Sector) -> ReadAhead {
        let max = u64::from(read_ahead_kb) << (10 - SECTOR_SHIFT);
        ReadAhead { max, capacity: capacity.0, streams: [Stream::default(); STREAMS], reads: 0 }
    }

    /// Notes a read. Returns the sectors to fetch because of it.
    #[inline]
    pub fn read(&mut self, sector: Sector, nr_sectors: u32) -> Option<Range> {
        if self.max == 0 {
            return None;
        }
        self.reads += 1;
        let (start, len) = (sector.0, u64::from(nr_sectors));
        // A read at sector 0 begins a stream at once, as in the kernel.
        let known = self.streams.iter().position(|s| s.used != 0 && s.next == start);
        let Some(i) = known else {
            let i = (0..STREAMS).min_by_key(|i| self.streams[*i].used).expect("there are some");
            self.streams[i] = Stream { next: start + len, used: self.reads, ..Stream::default() };
            return if start == 0 { self.first_window(i, start, len) } else { None };
        };
        let s = &mut self.streams[i];
        (s.next, s.used) = (start + len, self.reads);
        if s.end == 0 {
            return self.first_window(i, start, len);
        }
        if s.next <= s.marker {
            return None;
        }
        // The window begins after the fetched sectors, or after the read if the read ends beyond them.
        let from = s.end.max(s.next);
        s.size = next_size(s.size, self.max);
        s.end = from + s.size;
        s.marker = from;
        let size = s.size;
        self.clip(from, size)
    }

    /// The window of a stream that was just recognised contains the read itself.
    fn first_window(&mut self, i: usize, start: u64, len: u64) -> Option<Range> {
        let size = first_size(len, self.max);
        let s = &mut self.streams[i];
        s.size = size;
        s.end = start + size.max(len);
        s.marker = start + len;
        self.clip(start + len, size.saturating_sub(len))
    }

    fn clip(&self, from: u64, len: u64) -> Option<Range> {
        let len = len.min(self.capacity.saturating_sub(from));
        (len > 0).then_some(Range { sector: Sector(from), nr_sectors: len as u32 })
    }
}

/// `get_init_ra_size`: four or two times the read, rounded up to a power of two.
fn first_size(len: u64, max: u64) -> u64 {
    let size = len.next_power_of_two();
    if size <= max / 32 {
        size * 4
    } else if size <= max / 4 {
        size * 2
    } else {
        max
    }
}

/// `get_next_ra_size`.
fn next_size(size: u64, max: u64) -> u64 {
    if size < max / 16 {
        size * 4
    } else if size <= max / 2 {
        size * 2
    } else {
        max
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim::rng::Rng;

    const KB: u64 = 2;

    fn ra(kb: u32) -> ReadAhead {
        ReadAhead::new(kb, Sector(1 << 30))
    }

    /// First sector and length, in KiB.
    fn kib(r: Option<Range>) -> Option<(u64, u64)> {
        r.map(|r| (r.sector.0 / KB, u64::from(r.nr_sectors) / KB))
    }

    #[test]
    fn windows_grow_as_in_the_kernel() {
        // 4 KiB reads with 128 KiB: 16, 32, 64, 128, 128.
        let mut ra = ra(128);
        let windows: Vec<_> = (0..120).filter_map(|n| kib(ra.read(Sector(n * 8), 8))).collect();
        assert_eq!(windows[..6], [(4, 12), (16, 32), (48, 64), (112, 128), (240, 128), (368, 128)]);
        // Larger reads begin with a larger window: a read of 64 KiB gets the largest window at once, if that is 128 KiB.
        let mut ra = super::ReadAhead::new(128, Sector(1 << 30));
        let windows: Vec<_> = (0..6).filter_map(|n| kib(ra.read(Sector(n * 128), 128))).collect();
        assert_eq!(windows[..3], [(64, 64), (128, 128), (256, 128)]);
    }

    #[test]
    fn second_read_starts_a_stream_and_random_reads_never_do() {
        let mut ra = ra(128);
        assert_eq!(ra.read(Sector(1000), 8), None);
        assert_eq!(kib(ra.read(Sector(1008), 8)), Some((508, 12)));
        for n in 0..100 {
            assert_eq!(ra.read(Sector(5000 + n * 17), 8), None);
        }
    }

    #[test]
    fn several_streams_are_told_apart() {
        let mut ra = ra(64);
        let mut asked = [0u64; 8];
        for n in 0..64u64 {
            for (i, sum) in asked.iter_mut().enumerate() {
                let at = ((i as u64) << 20) + n * 8;
                *sum += ra.read(Sector(at), 8).map_or(0, |r| u64::from(r.nr_sectors));
            }
        }
        assert!(asked.iter().all(|a| *a >= 60 * 8), "{asked:?}");
    }

    #[test]
    fn nothing_is_asked_for_twice_nor_behind_the_end() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let capacity = 1000 + rng.below(9000);
            let mut ra = ReadAhead::new([16, 128, 2296][rng.below(3) as usize], Sector(capacity));
            let (mut at, mut end) = (0, 0);
            while at < capacity {
                let len = (8 * (1 + rng.below(8))).min(capacity - at);
                if let Some(r) = ra.read(Sector(at), len as u32) {
                    assert!(r.sector.0 >= (at + len).max(end), "seed {seed}: {r:?} at {at}+{len}, asked up to {end}");
                    end = r.sector.0 + u64::from(r.nr_sectors);
                    assert!(end <= capacity, "seed {seed}");
                }
                at += len;
            }
            assert!(capacity - end < 64, "seed {seed}: fetched ahead up to {end} of {capacity}, but for the last read");
        }
    }

    #[test]
    fn zero_is_off() {
        let mut ra = ra(0);
        assert!((0..10).all(|n| ra.read(Sector(n * 8), 8).is_none()));
    }
}
