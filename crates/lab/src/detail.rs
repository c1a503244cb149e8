// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Details of a run that a report shows beside metrics, stages and histograms: settings in effect, each job, latencies over time.
//!
//! Guarantees: plain data that is written with the raw results and read back. Times are relative to the beginning of the
//! measured part. Needs from callers: slices only if the run kept them. Does not: measure.

use serde::{Deserialize, Serialize};
use workload::slices::TimeSlices;
use workload::stats::DIRS;

use crate::metric::RunMetrics;
use crate::stack::Setting;

/// Detail of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunDetail {
    /// The targets. In a comparison only the runs of the first pair have them, because they are the same in the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetDetail>,
    /// The jobs that ran, in the order of the file.
    pub jobs: Vec<JobDetail>,
    /// Length of the measured part, nanoseconds.
    pub measured_ns: u64,
    /// Latencies over time, if they were kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slices: Option<SliceTable>,
}

/// One target and its settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetDetail {
    /// The target as the user named it.
    pub name: String,
    /// All settings in effect.
    pub settings: Vec<Setting>,
}

/// One job, summed over all its threads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct JobDetail {
    /// Its name.
    pub job: String,
    /// Jobs with the same number run together. The next ones begin when these have completed (`stonewall`).
    pub wave: u32,
    /// Number of its threads.
    pub threads: u32,
    /// Maximum number of I/Os in flight per thread.
    pub iodepth: u32,
    /// fio's name for its pattern: `randread`, ...
    pub rw: String,
    /// Smallest and largest I/O in bytes.
    pub bytes: (u64, u64),
    /// Whether it has a rate, so that latency counts from the intended start.
    pub rated: bool,
    /// Its metrics.
    pub metrics: RunMetrics,
}

/// Rates and latencies per slice of time, for all jobs or for those that a comparison covers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceTable {
    /// Length of a slice, nanoseconds.
    pub width_ns: u64,
    /// The slices. The first begins with the measured part (rounded to a slice).
    pub columns: Vec<SliceColumn>,
}

/// One slice of time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceColumn {
    /// Measured time in the slice, nanoseconds; over several runs their sum.
    pub covered_ns: u64,
    /// I/Os that completed: reads, writes, trims.
    pub ios: [u64; DIRS],
    /// Their bytes.
    pub bytes: [u64; DIRS],
    /// (class of latency, I/Os), ascending. [`workload::slices::row_range`] gives the range of a class.
    pub latencies: Vec<(u32, u64)>,
}

impl SliceTable {
    /// Makes the table from the slices that the job threads kept.
    pub fn of(t: &TimeSlices) -> SliceTable {
        let (from, to) = t.span_ns();
        let width_ns = t.width_ns();
        let columns = t.slices().map(|s| {
            let rows = s.rows.iter().enumerate().filter(|(_, n)| **n > 0);
            SliceColumn {
                covered_ns: to.min(s.began_ns + width_ns).saturating_sub(from.max(s.began_ns)),
                ios: s.ios,
                bytes: s.bytes,
                latencies: rows.map(|(row, n)| (row as u32, *n)).collect(),
            }
        });
        SliceTable { width_ns, columns: columns.collect() }
    }

    /// Joins neighbouring slices in pairs.
    fn halve(&mut self) {
        let columns = std::mem::take(&mut self.columns);
        self.columns = columns
            .chunks(2)
            .map(|two| {
                let mut sum = two[0].clone();
                two[1..].iter().for_each(|c| sum.add(c));
                sum
            })
            .collect();
        self.width_ns *= 2;
    }

    /// Joins neighbouring slices until there are at most `columns` of them.
    ///
    /// # Panics
    /// When `columns` is 0.
    #[must_use]
    pub fn at_most(mut self, columns: usize) -> SliceTable {
        assert!(columns > 0, "a table has columns");
        while self.columns.len() > columns {
            self.halve();
        }
        self
    }

    /// Adds another run, aligned at the beginnings. One width has to be a power of two times the other.
    pub fn add(&mut self, other: &SliceTable) {
        if self.columns.is_empty() {
            self.clone_from(other);
            return;
        }
        let mut other = other.clone();
        while self.width_ns < other.width_ns {
            self.halve();
        }
        while other.width_ns < self.width_ns && !other.columns.is_empty() {
            other.halve();
        }
        self.columns.resize(self.columns.len().max(other.columns.len()), SliceColumn::default());
        self.columns.iter_mut().zip(&other.columns).for_each(|(a, b)| a.add(b));
    }
}

impl SliceColumn {
    /// I/Os of all directions.
    pub fn total(&self) -> u64 {
        self.ios.iter().sum()
    }

    fn add(&mut self, other: &SliceColumn) {
        self.covered_ns += other.covered_ns;
        for d in 0..DIRS {
            self.ios[d] += other.ios[d];
            self.bytes[d] += other.bytes[d];
        }
        for (row, n) in &other.latencies {
            match self.latencies.binary_search_by_key(row, |(r, _)| *r) {
                Ok(i) => self.latencies[i].1 += n,
                Err(i) => self.latencies.insert(i, (*row, *n)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(n: u64, row: u32) -> SliceColumn {
        SliceColumn { covered_ns: 10, ios: [n, 0, 0], bytes: [n * 4096, 0, 0], latencies: vec![(row, n)] }
    }

    #[test]
    fn runs_lie_over_each_other_and_lose_nothing() {
        let mut long = SliceTable { width_ns: 20, columns: vec![column(5, 3), column(7, 9)] };
        let short = SliceTable { width_ns: 10, columns: vec![column(1, 3), column(2, 8), column(4, 3)] };
        long.add(&short);
        let counts: Vec<_> = long.columns.iter().map(|c| (c.total(), c.covered_ns)).collect();
        assert_eq!((long.width_ns, counts), (20, vec![(8, 30), (11, 20)]));
        assert_eq!(long.columns[0].latencies, [(3, 6), (8, 2)]);
        let mut other_way = short;
        other_way.add(&SliceTable { width_ns: 20, columns: vec![column(5, 3), column(7, 9)] });
        assert_eq!(other_way, long);
        assert_eq!(long.at_most(1).columns[0].latencies, [(3, 10), (8, 2), (9, 7)]);
    }

    #[test]
    fn a_table_of_no_width_does_not_hang() {
        let mut a = SliceTable { width_ns: 10, columns: vec![column(1, 1)] };
        a.add(&SliceTable::default());
        assert_eq!(a.columns.len(), 1);
    }
}
