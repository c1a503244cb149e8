// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Latencies over time: counts per slice of time and class of latency, in fixed memory however long the run is.
//!
//! Guarantees: there is no work per I/O. At the end of a slice the histogram is compared with its state at the end of the
//! slice before (see `Slicer`). This takes 2.4 us for each direction every `FIRST_WIDTH` or more; without a slicer it takes
//! nothing. A table has at most [`COLUMNS`] slices of [`ROWS`] classes (119 KB). When it is full, neighbouring slices are
//! joined and become twice as long. Slices begin at multiples of their length on the clock, so tables of several threads
//! merge without rounding.
//!
//! Needs from callers: one clock for all threads. Does not: record when inside a slice an I/O completed. An I/O without a
//! histogram (`clat_percentiles=0`) counts in the rates and in no class.

use crate::hist::{BUCKETS, Histogram};
use crate::stats::{DIRS, DirStats};
use blk::time::Duration;

/// Maximum number of slices of a table. A long run uses at least half of them.
pub const COLUMNS: usize = 128;
/// Buckets of a [`Histogram`] per class: four classes per octave.
const BUCKETS_PER_ROW: usize = 16;
/// Number of classes of latency.
pub const ROWS: usize = BUCKETS / BUCKETS_PER_ROW;
/// Initial length of a slice.
const FIRST_WIDTH: Duration = Duration::from_ms(10);

/// Smallest latency of a class and of the next one, in nanoseconds. The last class ends where the histogram's groups end.
///
/// # Panics
/// When `row` is not below [`ROWS`].
pub fn row_range(row: usize) -> (u64, u64) {
    assert!(row < ROWS, "class of latency out of range");
    let low = |row: usize| Histogram::range_of(row * BUCKETS_PER_ROW).0;
    // The histogram's groups end at 2^34 ns.
    (low(row), if row + 1 < ROWS { low(row + 1) } else { 1 << 34 })
}

/// I/Os that completed in one slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice<'a> {
    /// When it began, nanoseconds on the clock.
    pub began_ns: u64,
    /// I/Os by direction.
    pub ios: [u64; DIRS],
    /// Bytes by direction.
    pub bytes: [u64; DIRS],
    /// I/Os by class of latency ([`row_range`]).
    pub rows: &'a [u64],
}

/// Counts per slice of time and class of latency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeSlices {
    width_ns: u64,
    /// Number of the first slice, counted from time 0 of the clock.
    first: u64,
    used: usize,
    from_ns: u64,
    to_ns: u64,
    ios: [[u64; DIRS]; COLUMNS],
    bytes: [[u64; DIRS]; COLUMNS],
    cells: Vec<u64>,
}

impl TimeSlices {
    /// Makes an empty table that begins at `now_ns`.
    pub fn new(now_ns: u64) -> TimeSlices {
        let width_ns = FIRST_WIDTH.as_ns();
        TimeSlices {
            width_ns,
            first: now_ns / width_ns,
            used: 0,
            from_ns: now_ns,
            to_ns: now_ns,
            ios: [[0; DIRS]; COLUMNS],
            bytes: [[0; DIRS]; COLUMNS],
            cells: vec![0; COLUMNS * ROWS],
        }
    }

    /// Length of a slice in nanoseconds.
    pub fn width_ns(&self) -> u64 {
        self.width_ns
    }

    /// Beginning and end of the measured time, nanoseconds on the clock. The first and the last slice may be covered in part.
    pub fn span_ns(&self) -> (u64, u64) {
        (self.from_ns, self.to_ns)
    }

    /// The slices from the first to the last, those without an I/O included.
    pub fn slices(&self) -> impl Iterator<Item = Slice<'_>> {
        (0..self.used).map(|i| Slice {
            began_ns: (self.first + i as u64) * self.width_ns,
            ios: self.ios[i],
            bytes: self.bytes[i],
            rows: &self.cells[i * ROWS..(i + 1) * ROWS],
        })
    }

    fn restart(&mut self, now_ns: u64) {
        (self.ios, self.bytes) = ([[0; DIRS]; COLUMNS], [[0; DIRS]; COLUMNS]);
        self.cells.fill(0);
        (self.width_ns, self.used) = (FIRST_WIDTH.as_ns(), 0);
        (self.first, self.from_ns, self.to_ns) = (now_ns / self.width_ns, now_ns, now_ns);
    }

    /// Returns the index of the slice that contains `ns`, and makes room for it.
    fn column(&mut self, ns: u64) -> usize {
        while (ns / self.width_ns).saturating_sub(self.first) >= COLUMNS as u64 {
            self.halve();
        }
        let column = (ns / self.width_ns).saturating_sub(self.first) as usize;
        self.used = self.used.max(column + 1);
        column
    }

    /// Joins neighbouring slices into slices twice as long, which begin at multiples of that length.
    fn halve(&mut self) {
        let (odd, before) = ((self.first % 2) as usize, self.used);
        for old in 0..before {
            let new = (old + odd) / 2;
            // The first old slice that goes to `new` overwrites it. `new` is never after `old`, so nothing is lost.
            let begins = (old + odd).is_multiple_of(2) || old == 0;
            let (ios, bytes) = (self.ios[old], self.bytes[old]);
            if begins {
                (self.ios[new], self.bytes[new]) = ([0; DIRS], [0; DIRS]);
            }
            for d in 0..DIRS {
                self.ios[new][d] += ios[d];
                self.bytes[new][d] += bytes[d];
            }
            for row in 0..ROWS {
                let n = self.cells[old * ROWS + row];
                let cell = &mut self.cells[new * ROWS + row];
                *cell = if begins { n } else { *cell + n };
            }
        }
        let used = if before == 0 { 0 } else { (before + odd).div_ceil(2) };
        self.ios[used..before].fill([0; DIRS]);
        self.bytes[used..before].fill([0; DIRS]);
        self.cells[used * ROWS..before * ROWS].fill(0);
        (self.used, self.first, self.width_ns) = (used, self.first / 2, self.width_ns * 2);
    }

    /// Adds the I/Os of another thread or run with the same clock.
    pub fn merge(&mut self, other: &TimeSlices) {
        if other.used == 0 {
            return;
        }
        if self.used == 0 {
            self.clone_from(other);
            return;
        }
        let mut other = other.clone();
        while self.width_ns != other.width_ns || self.joined(&other).1 > COLUMNS as u64 {
            // Joins neighbouring slices of the one whose slices are narrower, or of both if they have the same width.
            let (mine, theirs) = (self.width_ns, other.width_ns);
            if mine <= theirs {
                self.halve();
            }
            if theirs <= mine {
                other.halve();
            }
        }
        let (first, used) = self.joined(&other);
        self.shift((self.first - first) as usize, used as usize);
        self.first = first;
        let at = (other.first - first) as usize;
        for i in 0..other.used {
            for d in 0..DIRS {
                self.ios[at + i][d] += other.ios[i][d];
                self.bytes[at + i][d] += other.bytes[i][d];
            }
        }
        let theirs = &other.cells[..other.used * ROWS];
        self.cells[at * ROWS..].iter_mut().zip(theirs).for_each(|(a, b)| *a += b);
        self.from_ns = self.from_ns.min(other.from_ns);
        self.to_ns = self.to_ns.max(other.to_ns);
    }

    /// Returns the first slice and the number of slices that cover both tables.
    fn joined(&self, other: &TimeSlices) -> (u64, u64) {
        let first = self.first.min(other.first);
        let end = (self.first + self.used as u64).max(other.first + other.used as u64);
        (first, end - first)
    }

    /// Moves all slices back by `by` positions.
    fn shift(&mut self, by: usize, used: usize) {
        self.ios.copy_within(..self.used, by);
        self.bytes.copy_within(..self.used, by);
        self.cells.copy_within(..self.used * ROWS, by * ROWS);
        self.ios[..by].fill([0; DIRS]);
        self.bytes[..by].fill([0; DIRS]);
        self.cells[..by * ROWS].fill(0);
        self.used = used;
    }
}

/// Fills a table from a job's histograms, slice by slice.
#[derive(Clone, Debug)]
pub(crate) struct Slicer {
    table: Box<TimeSlices>,
    /// The histograms at the end of the last slice.
    seen: [Option<Box<Histogram>>; DIRS],
    ios: [u64; DIRS],
    bytes: [u64; DIRS],
    /// End of the present slice.
    next: u64,
}

/// The I/O that showed that a slice is over. It completed after the end of the slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Late {
    pub dir: u8,
    pub latency_ns: u64,
    pub bytes: u32,
}

/// The latency that is shown: from the intended start if the job has a rate, as in comparisons.
fn histogram(dir: &DirStats) -> Option<&Histogram> {
    dir.intended.hist.as_deref().or(dir.clat.hist.as_deref())
}

impl Slicer {
    pub fn new(dirs: &[DirStats; DIRS]) -> Slicer {
        let seen = dirs.each_ref().map(|d| histogram(d).map(|_| Box::default()));
        Slicer { table: Box::new(TimeSlices::new(0)), seen, ios: [0; DIRS], bytes: [0; DIRS], next: u64::MAX }
    }

    /// When the present slice ends, nanoseconds.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Starts a new table. The job's histograms are empty.
    pub fn start(&mut self, now_ns: u64) {
        self.table.restart(now_ns);
        self.seen.iter_mut().flatten().for_each(|h| h.reset());
        (self.ios, self.bytes) = ([0; DIRS], [0; DIRS]);
        self.set_next(now_ns);
    }

    fn set_next(&mut self, now_ns: u64) {
        self.next = (now_ns / self.table.width_ns + 1).saturating_mul(self.table.width_ns);
    }

    /// Adds to the present slice everything in `dirs` since the last call, except `late`, which completed at `now_ns` in a
    /// later slice.
    pub fn take(&mut self, dirs: &[DirStats; DIRS], now_ns: u64, late: Option<Late>) {
        let present = self.table.column(now_ns.min(self.next.saturating_sub(1)));
        for (d, dir) in dirs.iter().enumerate() {
            self.table.ios[present][d] += dir.ios - self.ios[d];
            self.table.bytes[present][d] += dir.bytes - self.bytes[d];
            (self.ios[d], self.bytes[d]) = (dir.ios, dir.bytes);
            if let (Some(seen), Some(hist)) = (&mut self.seen[d], histogram(dir)) {
                let table = &mut self.table;
                seen.catch_up(hist, |bucket, n| table.cells[present * ROWS + bucket / BUCKETS_PER_ROW] += n);
            }
        }
        if let Some(late) = late {
            self.put_back(present, now_ns, late);
        }
        self.table.to_ns = now_ns;
        self.set_next(now_ns);
    }

    fn put_back(&mut self, present: usize, now_ns: u64, late: Late) {
        let (d, bytes) = (usize::from(late.dir), u64::from(late.bytes));
        let row = Histogram::bucket_of(late.latency_ns) / BUCKETS_PER_ROW;
        let in_class = u64::from(self.seen[d].is_some());
        self.table.ios[present][d] -= 1;
        self.table.bytes[present][d] -= bytes;
        self.table.cells[present * ROWS + row] -= in_class;
        // This may join slices, including `present`.
        let column = self.table.column(now_ns);
        self.table.ios[column][d] += 1;
        self.table.bytes[column][d] += bytes;
        self.table.cells[column * ROWS + row] += in_class;
    }

    pub fn table(&self) -> &TimeSlices {
        &self.table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn totals(t: &TimeSlices) -> Vec<(u64, u64, u64)> {
        t.slices().map(|s| (s.began_ns / MS, s.ios.iter().sum(), s.rows.iter().sum())).collect()
    }

    /// Completes one read of `latency` at each of the times, as the engine does.
    fn filled(times_ms: &[u64], latency: u64) -> TimeSlices {
        let mut dirs: [DirStats; DIRS] = Default::default();
        dirs[0].clat.hist = Some(Box::default());
        let mut s = Slicer::new(&dirs);
        s.start(times_ms[0] * MS);
        for t in times_ms {
            dirs[0].ios += 1;
            dirs[0].bytes += 4096;
            dirs[0].clat.record(latency);
            if t * MS >= s.next() {
                s.take(&dirs, t * MS, Some(Late { dir: 0, latency_ns: latency, bytes: 4096 }));
            }
        }
        s.take(&dirs, times_ms.last().unwrap() * MS, None);
        s.table().clone()
    }

    #[test]
    fn classes_touch_and_ascend() {
        for row in 1..ROWS {
            assert_eq!(row_range(row - 1).1, row_range(row).0);
        }
        assert_eq!((row_range(0), row_range(8), row_range(ROWS - 1).1), ((0, 16), (128, 160), 1 << 34));
    }

    #[test]
    fn an_io_is_in_the_slice_in_which_it_ended() {
        let t = filled(&[103, 105, 109, 112, 125, 126, 260], 70_000);
        let want = [(100, 3, 3), (110, 1, 1), (120, 2, 2)];
        let got = totals(&t);
        assert_eq!(got[..3], want);
        assert_eq!(got.last(), Some(&(260, 1, 1)), "one after a long pause is not in the slice before it");
        assert_eq!((got.iter().map(|s| s.1).sum::<u64>(), got.len(), t.span_ns()), (7, 17, (103 * MS, 260 * MS)));
        let rows: Vec<usize> = t.slices().flat_map(|s| s.rows.iter().position(|n| *n > 0)).collect();
        assert!(rows.iter().all(|r| (row_range(*r).0..row_range(*r).1).contains(&70_000)), "{rows:?}");
    }

    #[test]
    fn a_long_run_has_longer_slices_and_loses_nothing() {
        let times: Vec<u64> = (0..5_000).map(|i| 37 + 3 * i).collect();
        let t = filled(&times, 1_000);
        assert_eq!((t.width_ns(), totals(&t).len()), (160 * MS, 94));
        let sum = totals(&t).iter().fold((0, 0), |s, x| (s.0 + x.1, s.1 + x.2));
        assert_eq!(sum, (5_000, 5_000));
        for (at, n, _) in &totals(&t)[1..93] {
            assert!((53..=54).contains(n), "{n} at {at} ms");
        }
    }

    #[test]
    fn tables_of_one_clock_merge_exactly() {
        let (early, late) = (filled(&[5, 15, 25], 500), filled(&[1_000, 1_015, 4_000], 9_000));
        let mut both = late.clone();
        both.merge(&early);
        let mut other_way = early.clone();
        other_way.merge(&late);
        assert_eq!(both, other_way);
        assert_eq!((both.width_ns(), both.span_ns()), (40 * MS, (5 * MS, 4_000 * MS)));
        let got = totals(&both);
        assert_eq!((got[0], got[25], got[100], got.len()), ((0, 3, 3), (1_000, 2, 2), (4_000, 1, 1), 101));
        let mut none = TimeSlices::new(0);
        none.merge(&early);
        both.merge(&TimeSlices::new(9));
        assert_eq!((&none, totals(&both)), (&early, got));
    }
}
