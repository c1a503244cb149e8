// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The measurements of one job thread, as plain data with fio's meanings.
//!
//! - slat: from the creation of an I/O to its submission; clat: from submission to completion; lat: both together.
//!   All three have running statistics; percentiles belong to clat unless the job asks otherwise (`slat_percentiles`,
//!   `lat_percentiles`).
//! - `intended` is ours: for jobs with a rate, the time from the moment the rate wanted the I/O to its completion. It
//!   shows the waiting that clat omits when a slow device holds back the submitter.
//! - bandwidth and IOPS samples are taken over intervals of `bwavgtime` and `iopsavgtime`.
//!
//! [`JobStats::merge`] gives the values that fio's `group_reporting` prints: counts and histograms add up, run times take
//! the longest, and rate samples add up as for jobs running at the same time. [`crate::engine`] fills all fields except
//! [`CpuUse`], which the host fills. Nothing here allocates after [`JobStats::new`].

use crate::hist::{BUCKETS, Histogram, Running};
pub use crate::job::Dir;
use crate::job::RATE_INTERVAL_MS;
pub use crate::oltp::stats::TxStats;
use crate::slices::TimeSlices;
use blk::bio::{IoPrio, Op};
use blk::time::Duration;

/// Length of one bandwidth and IOPS sample, unless `bwavgtime` or `iopsavgtime` gives another.
pub const RATE_INTERVAL: Duration = Duration::from_ms(RATE_INTERVAL_MS);

/// Rate per second of `count` in `ns`; 0 in no time.
pub(crate) fn per_second(count: u64, ns: u64) -> u64 {
    (u128::from(count) * 1_000_000_000).checked_div(ns.into()).unwrap_or(0) as u64
}

/// Number of directions: the length of tables indexed by `dir as usize`.
pub const DIRS: usize = Dir::ALL.len();

impl Dir {
    /// Number of directions.
    pub const COUNT: usize = DIRS;

    /// fio's name of the direction.
    pub const fn name(self) -> &'static str {
        match self {
            Dir::Read => "read",
            Dir::Write => "write",
            Dir::Trim => "trim",
        }
    }

    /// The operation that the direction issues.
    #[inline]
    pub const fn op(self) -> Op {
        match self {
            Dir::Read => Op::Read,
            Dir::Write => Op::Write,
            Dir::Trim => Op::Discard,
        }
    }
}

/// One kind of latency: running statistics, and a histogram if percentiles are required.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LatencyStats {
    /// Count, min, max, mean and deviation in nanoseconds.
    pub run: Running,
    /// Percentiles; `None` if the job does not require them for this latency.
    pub hist: Option<Box<Histogram>>,
}

impl LatencyStats {
    /// Empty, with or without a histogram.
    pub fn new(percentiles: bool) -> LatencyStats {
        LatencyStats { run: Running::new(), hist: percentiles.then(Box::default) }
    }

    /// Records one latency in nanoseconds.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.run.record(ns);
        if let Some(hist) = &mut self.hist {
            hist.record(ns);
        }
    }

    /// Records each latency.
    pub fn record_all(&mut self, ns: &[u32]) {
        self.run.record_all(ns);
        if let Some(hist) = &mut self.hist {
            hist.record_all(ns);
        }
    }

    /// Records the same latency `times` times.
    #[inline]
    pub fn record_n(&mut self, ns: u64, times: u64) {
        self.run.record_n(ns, times);
        if let Some(hist) = &mut self.hist {
            hist.record_n(ns, times);
        }
    }

    /// Adds the samples of `other`. A histogram stays only if both sides have one, because percentiles over a part of the
    /// samples would be wrong. An empty side does not count.
    pub fn merge(&mut self, other: &LatencyStats) {
        match (&mut self.hist, &other.hist) {
            (Some(a), Some(b)) => a.merge(b),
            (None, Some(b)) if self.run.count() == 0 => self.hist = Some(b.clone()),
            (Some(_), None) if other.run.count() != 0 => self.hist = None,
            _ => {}
        }
        self.run.merge(&other.run);
    }

    pub(crate) fn reset(&mut self) {
        self.run = Running::new();
        if let Some(hist) = &mut self.hist {
            hist.reset();
        }
    }
}

/// Bandwidth or IOPS over sampling intervals.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RateSamples {
    /// Number of samples.
    pub samples: u64,
    /// Lowest sample; 0 without samples.
    pub min: u64,
    /// Highest sample.
    pub max: u64,
    /// Mean of the samples.
    pub mean: f64,
    /// Sum of squared distances from the mean.
    pub squares: f64,
}

impl RateSamples {
    /// Adds one sample (Welford's update).
    pub fn record(&mut self, value: u64) {
        self.min = if self.samples == 0 { value } else { self.min.min(value) };
        self.max = self.max.max(value);
        self.samples += 1;
        let delta = value as f64 - self.mean;
        self.mean += delta / self.samples as f64;
        self.squares += delta * (value as f64 - self.mean);
    }

    /// Sample standard deviation; 0 with fewer than two samples.
    pub fn stdev(&self) -> f64 {
        if self.samples < 2 { 0.0 } else { (self.squares / (self.samples - 1) as f64).sqrt() }
    }

    /// Adds the rates of a job that ran at the same time, as fio does: minimum, maximum and mean add up.
    pub fn merge_parallel(&mut self, other: &RateSamples) {
        self.samples += other.samples;
        self.min += other.min;
        self.max += other.max;
        self.mean += other.mean;
        self.squares += other.squares;
    }
}

/// Latencies of the I/Os of one priority.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PrioStats {
    /// The priority.
    pub prio: IoPrio,
    /// Completion latencies; total latencies with `lat_percentiles`.
    pub lat: LatencyStats,
}

/// What was measured in one direction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DirStats {
    /// I/Os completed without error (fio's `total_ios`).
    pub ios: u64,
    /// Bytes they moved.
    pub bytes: u64,
    /// I/Os that moved fewer bytes than requested.
    pub short_ios: u64,
    /// I/Os given up (fio's `drop_ios`).
    pub drop_ios: u64,
    /// I/Os completed with an error.
    pub errors: u64,
    /// How long this direction ran, in nanoseconds; rates are per this time.
    pub runtime_ns: u64,
    /// Submission latency.
    pub slat: LatencyStats,
    /// Completion latency.
    pub clat: LatencyStats,
    /// Total latency.
    pub lat: LatencyStats,
    /// Latency from the intended start; only jobs with a rate fill it.
    pub intended: LatencyStats,
    /// Bandwidth samples in KiB/s.
    pub bw_kib: RateSamples,
    /// IOPS samples.
    pub iops: RateSamples,
    /// Per priority, the job's own first; empty unless `cmdprio_*` apply to the direction.
    pub prios: Vec<PrioStats>,
}

impl DirStats {
    fn merge(&mut self, other: &DirStats) {
        self.ios += other.ios;
        self.bytes += other.bytes;
        self.short_ios += other.short_ios;
        self.drop_ios += other.drop_ios;
        self.errors += other.errors;
        self.runtime_ns = self.runtime_ns.max(other.runtime_ns);
        self.slat.merge(&other.slat);
        self.clat.merge(&other.clat);
        self.lat.merge(&other.lat);
        self.intended.merge(&other.intended);
        self.bw_kib.merge_parallel(&other.bw_kib);
        self.iops.merge_parallel(&other.iops);
        for theirs in &other.prios {
            match self.prios.iter_mut().find(|p| p.prio == theirs.prio) {
                Some(ours) => ours.lat.merge(&theirs.lat),
                None => self.prios.push(theirs.clone()),
            }
        }
    }

    fn reset(&mut self) {
        let own = [&mut self.slat, &mut self.clat, &mut self.lat, &mut self.intended];
        own.into_iter().chain(self.prios.iter_mut().map(|p| &mut p.lat)).for_each(LatencyStats::reset);
        let take = |l: &mut LatencyStats| std::mem::take(l);
        *self = DirStats {
            slat: take(&mut self.slat),
            clat: take(&mut self.clat),
            lat: take(&mut self.lat),
            intended: take(&mut self.intended),
            prios: std::mem::take(&mut self.prios),
            ..DirStats::default()
        };
    }
}

/// fsync and fdatasync.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SyncStats {
    /// Flushes completed.
    pub ios: u64,
    /// Flushes that failed.
    pub errors: u64,
    /// Latency from submission to completion.
    pub lat: LatencyStats,
}

/// Processor time and scheduling of the job's thread. The host fills it; a simulator may leave it zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuUse {
    /// Time in user mode, nanoseconds.
    pub usr_ns: u64,
    /// Time in the kernel, nanoseconds.
    pub sys_ns: u64,
    /// Context switches, voluntary and not.
    pub ctx: u64,
    /// Page faults that needed I/O.
    pub majf: u64,
    /// Page faults that did not.
    pub minf: u64,
}

impl CpuUse {
    fn merge(&mut self, other: &CpuUse) {
        self.usr_ns += other.usr_ns;
        self.sys_ns += other.sys_ns;
        self.ctx += other.ctx;
        self.majf += other.majf;
        self.minf += other.minf;
    }
}

/// Number of classes of fio's depth and batch tables.
pub const DEPTH_CLASSES: usize = 7;
/// fio's names of the classes of [`JobStats::depth`].
pub const DEPTH_NAMES: [&str; DEPTH_CLASSES] = ["1", "2", "4", "8", "16", "32", ">=64"];
/// fio's names of the classes of [`JobStats::submit`] and [`JobStats::complete`].
pub const BATCH_NAMES: [&str; DEPTH_CLASSES] = ["0", "4", "8", "16", "32", "64", ">=64"];
/// fio's names of the classes of [`JobStats::lat_ns`] (upper bound, nanoseconds).
pub const LAT_NS_NAMES: [&str; 10] = ["2", "4", "10", "20", "50", "100", "250", "500", "750", "1000"];
/// fio's names of the classes of [`JobStats::lat_us`] (upper bound, microseconds).
pub const LAT_US_NAMES: [&str; 10] = LAT_NS_NAMES;
/// fio's names of the classes of [`JobStats::lat_ms`] (upper bound, milliseconds).
pub const LAT_MS_NAMES: [&str; 12] = ["2", "4", "10", "20", "50", "100", "250", "500", "750", "1000", "2000", ">=2000"];

const LAT_BOUNDS: [u64; 10] = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000];

const CLASSES: usize = 10 + 10 + 12;

/// Class of a latency over all three tables: 0..10 ns, 10..20 us, 20..32 ms.
const fn latency_class(ns: u64) -> u8 {
    let (value, first) = match ns {
        0..1_000 => (ns, 0),
        1_000..1_000_000 => (ns / 1_000, 10),
        _ => (ns / 1_000_000, 20),
    };
    if value >= 1_000 {
        return if value < 2_000 { first + 10 } else { first + 11 };
    }
    let mut class = 0;
    while value >= LAT_BOUNDS[class as usize] {
        class += 1;
    }
    first + class
}

/// A bucket whose values belong to two classes.
const SPLIT: u8 = u8::MAX;

/// Class of each histogram bucket: one load per I/O instead of divisions and compares.
static CLASS_OF_BUCKET: [u8; BUCKETS] = {
    let mut table = [SPLIT; BUCKETS];
    let mut bucket = 0;
    while bucket < BUCKETS {
        let (low, high) = Histogram::range_of(bucket);
        let class = latency_class(low);
        if class == latency_class(high) {
            table[bucket] = class;
        }
        bucket += 1;
    }
    table
};

/// fio's latency tables while a job runs: counts per class, exact, at the cost of one table look-up per I/O.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencyClasses {
    counts: [u64; CLASSES],
}

impl LatencyClasses {
    /// Counts `times` equal latencies.
    #[inline]
    pub fn count(&mut self, ns: u64, times: u64) {
        let mut class = CLASS_OF_BUCKET[Histogram::bucket_of(ns)];
        if class == SPLIT {
            class = latency_class(ns);
        }
        self.counts[usize::from(class)] += times;
    }

    /// Stores the counts in a job's tables.
    pub fn publish(&self, stats: &mut JobStats) {
        stats.lat_ns.copy_from_slice(&self.counts[..10]);
        stats.lat_us.copy_from_slice(&self.counts[10..20]);
        stats.lat_ms.copy_from_slice(&self.counts[20..]);
    }
}

/// Class of a queue depth: 1, 2-3, 4-7, ..., 64 and more.
#[inline]
pub(crate) const fn depth_class(depth: u32) -> usize {
    let class = (depth | 1).ilog2() as usize;
    if class < DEPTH_CLASSES { class } else { DEPTH_CLASSES - 1 }
}

/// Class of a batch size: 0, 1-4, 5-8, 9-16, ..., 33-64, more than 64.
#[inline]
pub(crate) const fn batch_class(n: u32) -> usize {
    match n {
        0 => 0,
        1..=4 => 1,
        5..=8 => 2,
        9..=16 => 3,
        17..=32 => 4,
        33..=64 => 5,
        _ => 6,
    }
}

/// Why a job ended with an error although no I/O failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndedBy {
    /// `rate_min`.
    #[error("rate_min={want}: got {got} bytes/s; lower it, or raise rate_cycle")]
    RateMin {
        /// Bytes per second that the job asks for.
        want: u64,
        /// Those of the last `rate_cycle`.
        got: u64,
    },
    /// `rate_iops_min`.
    #[error("rate_iops_min={want}: got {got} I/Os per second; lower it, or raise rate_cycle")]
    RateIopsMin {
        /// I/Os per second that the job asks for.
        want: u64,
        /// Those of the last `rate_cycle`.
        got: u64,
    },
    /// `max_latency`.
    #[error("max_latency={max_ns}ns: the {dir} at {offset} took {latency_ns} ns; raise it to continue after such I/O")]
    MaxLatency {
        /// Direction of the I/O.
        dir: Dir,
        /// Its offset.
        offset: u64,
        /// How long it took, from its creation.
        latency_ns: u64,
        /// The limit.
        max_ns: u64,
    },
    /// `latency_target` with a percentile of 100.
    #[error(
        "latency_target={target_ns}ns: the {dir} at {offset} took {latency_ns} ns alone; raise it, or lower latency_percentile"
    )]
    LatencyTarget {
        /// Direction of the I/O.
        dir: Dir,
        /// Its offset.
        offset: u64,
        /// How long it took, from its creation.
        latency_ns: u64,
        /// The target.
        target_ns: u64,
    },
    /// `exec_prerun` failed, so the job did not run.
    #[error("exec_prerun={command}: ended with {status}; the job did not run")]
    Prerun {
        /// The command.
        command: String,
        /// How it ended.
        status: String,
    },
}

impl EndedBy {
    /// The job's error; 0 for one that did not run, as in fio.
    pub fn errno(&self) -> i32 {
        match self {
            EndedBy::RateMin { .. } | EndedBy::RateIopsMin { .. } => 5,
            EndedBy::MaxLatency { .. } | EndedBy::LatencyTarget { .. } => 110,
            EndedBy::Prerun { .. } => 0,
        }
    }
}

/// Everything measured by one job thread, or by a group of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobStats {
    /// Read, write and trim, indexed by [`Dir`].
    pub dirs: [DirStats; DIRS],
    /// fsync and fdatasync.
    pub sync: SyncStats,
    /// I/Os issued at each depth class ([`DEPTH_NAMES`]); the I/O itself counts.
    pub depth: [u64; DEPTH_CLASSES],
    /// Submission batches by size ([`BATCH_NAMES`]).
    pub submit: [u64; DEPTH_CLASSES],
    /// Reaps by number of completions found ([`BATCH_NAMES`]).
    pub complete: [u64; DEPTH_CLASSES],
    /// Completion latencies below 1 us ([`LAT_NS_NAMES`]).
    pub lat_ns: [u64; 10],
    /// Completion latencies below 1 ms ([`LAT_US_NAMES`]).
    pub lat_us: [u64; 10],
    /// Completion latencies from 1 ms ([`LAT_MS_NAMES`]).
    pub lat_ms: [u64; 12],
    /// Time from the start of the measured part to its end, nanoseconds.
    pub runtime_ns: u64,
    /// Blocks read back and found as written (verify).
    pub verified: u64,
    /// Blocks read back and found different.
    pub verify_errors: u64,
    /// I/Os and flushes that failed, over all directions.
    pub total_errors: u64,
    /// errno of the first failure; 0 when there was none.
    pub first_error: i32,
    /// What ended the job with an error, if that was no I/O.
    pub ended_by: Option<EndedBy>,
    /// The depth that `latency_target` has found so far.
    pub latency_depth: Option<u32>,
    /// Priority of the job's I/Os.
    pub prio: IoPrio,
    /// Measurements of a transaction loop (`workload=oltp`).
    pub tx: Option<Box<TxStats>>,
    /// Latencies over time, once the job is done, if [`crate::engine::JobThread::keep_slices`] was called.
    pub slices: Option<Box<TimeSlices>>,
    /// Filled by the host.
    pub cpu: CpuUse,
}

/// The latencies for which percentiles are kept (fio's `clat_percentiles`, `slat_percentiles`, `lat_percentiles`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percentiles {
    /// For slat.
    pub slat: bool,
    /// For clat.
    pub clat: bool,
    /// For lat.
    pub lat: bool,
}

impl Default for Percentiles {
    fn default() -> Self {
        Percentiles { slat: false, clat: true, lat: false }
    }
}

impl JobStats {
    /// Makes empty measurements. Histograms are made only for the directions in `dirs`; `rated` adds those of the intended start.
    pub fn new(dirs: &[Dir], percentiles: Percentiles, rated: bool) -> JobStats {
        let mut stats = JobStats::default();
        for &dir in dirs {
            let d = &mut stats.dirs[dir as usize];
            d.slat = LatencyStats::new(percentiles.slat);
            d.clat = LatencyStats::new(percentiles.clat);
            d.lat = LatencyStats::new(percentiles.lat);
            d.intended = LatencyStats::new(rated);
        }
        stats.sync.lat = LatencyStats::new(true);
        stats
    }

    /// Resets all samples and keeps the allocations (end of `ramp_time`). [`CpuUse`] is zeroed as well; a host that fills
    /// it has to take its baseline again.
    pub fn reset(&mut self) {
        for d in &mut self.dirs {
            d.reset();
        }
        self.sync.lat.reset();
        let lat = std::mem::take(&mut self.sync.lat);
        let dirs = std::mem::take(&mut self.dirs);
        let mut tx = self.tx.take();
        tx.iter_mut().for_each(|tx| tx.reset());
        let (sync, prio) = (SyncStats { lat, ..SyncStats::default() }, self.prio);
        *self = JobStats { dirs, sync, tx, prio, ..JobStats::default() };
    }

    /// Measurements of one direction.
    pub fn dir(&self, dir: Dir) -> &DirStats {
        &self.dirs[dir as usize]
    }

    /// I/Os of all directions, without flushes.
    pub fn total_ios(&self) -> u64 {
        self.dirs.iter().map(|d| d.ios).sum()
    }

    /// Bytes of all directions.
    pub fn total_bytes(&self) -> u64 {
        self.dirs.iter().map(|d| d.bytes).sum()
    }

    /// Sum of the completion latencies of all directions, nanoseconds.
    pub fn total_clat_ns(&self) -> u64 {
        self.dirs.iter().map(|d| d.clat.run.sum() as u64).sum()
    }

    /// Counts a failure, and keeps the errno of the first one.
    pub fn count_error(&mut self, errno: i32) {
        self.total_errors += 1;
        if self.first_error == 0 {
            self.first_error = errno;
        }
    }

    /// Adds the measurements of `other`, which ran at the same time (group reporting).
    pub fn merge(&mut self, other: &JobStats) {
        for (a, b) in self.dirs.iter_mut().zip(&other.dirs) {
            a.merge(b);
        }
        self.sync.ios += other.sync.ios;
        self.sync.errors += other.sync.errors;
        self.sync.lat.merge(&other.sync.lat);
        fn add(a: &mut [u64], b: &[u64]) {
            a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
        }
        add(&mut self.depth, &other.depth);
        add(&mut self.submit, &other.submit);
        add(&mut self.complete, &other.complete);
        add(&mut self.lat_ns, &other.lat_ns);
        add(&mut self.lat_us, &other.lat_us);
        add(&mut self.lat_ms, &other.lat_ms);
        self.runtime_ns = self.runtime_ns.max(other.runtime_ns);
        self.verified += other.verified;
        self.verify_errors += other.verify_errors;
        self.total_errors += other.total_errors;
        if self.first_error == 0 {
            self.first_error = other.first_error;
        }
        if self.ended_by.is_none() {
            self.ended_by.clone_from(&other.ended_by);
        }
        self.latency_depth = self.latency_depth.or(other.latency_depth);
        self.cpu.merge(&other.cpu);
        match (&mut self.tx, &other.tx) {
            (Some(a), Some(b)) => a.merge(b),
            (None, Some(b)) => self.tx = Some(b.clone()),
            _ => {}
        }
        match (&mut self.slices, &other.slices) {
            (Some(a), Some(b)) => a.merge(b),
            (None, Some(b)) => self.slices = Some(b.clone()),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_and_batch_classes_are_fio_s() {
        let classes = |f: fn(u32) -> usize, v: &[u32]| v.iter().map(|&n| f(n)).collect::<Vec<_>>();
        assert_eq!(classes(depth_class, &[1, 2, 3, 4, 31, 32, 63, 64, 9999]), [0, 1, 1, 2, 4, 5, 5, 6, 6]);
        assert_eq!(classes(batch_class, &[0, 1, 4, 5, 16, 17, 64, 65]), [0, 1, 1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn latencies_fall_into_the_tables_at_their_edges() {
        let mut s = JobStats::default();
        let mut classes = LatencyClasses::default();
        for ns in [0, 1, 2, 999, 1_000, 1_999, 2_000, 999_999, 1_000_000, 1_999_999_999, 2_000_000_000] {
            classes.count(ns, 1);
        }
        classes.publish(&mut s);
        assert_eq!(s.lat_ns, [2, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(s.lat_us, [2, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(s.lat_ms, [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
    }

    #[test]
    fn the_bucket_table_agrees_with_the_definition() {
        let mut ns = 0;
        while ns < 1 << 36 {
            let mut classes = LatencyClasses::default();
            classes.count(ns, 1);
            assert_eq!(classes.counts[usize::from(latency_class(ns))], 1, "{ns} ns");
            ns += 1 + ns / 509;
        }
    }

    #[test]
    fn merging_adds_counts_and_keeps_the_longest_run() {
        let mut a = JobStats::new(&[Dir::Read], Percentiles::default(), false);
        let mut b = JobStats::new(&[Dir::Read, Dir::Write], Percentiles::default(), true);
        a.dirs[0].clat.record(100);
        a.dirs[0].runtime_ns = 5;
        b.dirs[0].clat.record(300);
        b.dirs[0].runtime_ns = 9;
        b.dirs[1].clat.record(7);
        b.count_error(5);
        b.count_error(28);
        a.merge(&b);
        assert_eq!(a.dirs[0].clat.run.mean(), 200.0);
        assert_eq!(a.dirs[0].clat.hist.as_ref().unwrap().total(), 2);
        assert_eq!(a.dirs[1].clat.hist.as_ref().unwrap().total(), 1, "a missing side takes the other's histogram");
        assert_eq!((a.dirs[0].runtime_ns, a.total_errors, a.first_error), (9, 2, 5));
    }

    #[test]
    fn percentiles_over_a_part_of_the_samples_are_not_reported() {
        let mut with = LatencyStats::new(true);
        let mut without = LatencyStats::new(false);
        with.record(1);
        without.record(2);
        let mut a = with.clone();
        a.merge(&without);
        assert!(a.hist.is_none());
        assert_eq!(a.run.count(), 2);
        with.merge(&LatencyStats::new(false));
        assert!(with.hist.is_some());
    }

    #[test]
    fn reset_keeps_the_histograms_it_has() {
        let mut s = JobStats::new(&[Dir::Write], Percentiles { slat: true, clat: true, lat: false }, false);
        s.dirs[1].slat.record(4);
        s.dirs[1].ios = 1;
        s.depth[3] = 8;
        s.sync.ios = 2;
        s.reset();
        assert_eq!(s, JobStats::new(&[Dir::Write], Percentiles { slat: true, clat: true, lat: false }, false));
    }

    #[test]
    fn rate_samples_have_mean_and_deviation() {
        let mut r = RateSamples::default();
        [2, 4, 4, 4, 5, 5, 7, 9].into_iter().for_each(|v| r.record(v));
        assert_eq!((r.min, r.max, r.mean), (2, 9, 5.0));
        assert!((r.stdev() - (32.0f64 / 7.0).sqrt()).abs() < 1e-12);
        let one = r;
        r.merge_parallel(&one);
        assert_eq!((r.min, r.max, r.mean, r.samples), (4, 18, 10.0, 16));
    }
}
