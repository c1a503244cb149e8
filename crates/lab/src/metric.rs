// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The metrics of one run that a comparison compares, their units, and which direction is better.
//!
//! Guarantees: a metric that a run cannot give (no I/O, no percentile, no CPU accounting) is `None`, never 0 or NaN. So
//! tables omit it instead of comparing it. Needs from callers: the measurements of all jobs of the run. Does not: round.
//! Latencies are fio's clat. Latencies of rated jobs count from the intended start of each I/O. Otherwise a slow side would
//! hide its queueing by issuing less.

use serde::{Deserialize, Serialize};
use workload::hist::{Histogram, Running};
use workload::stats::{DirStats, JobStats, LatencyStats, TxStats};

/// A quantity measured in every run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// I/Os completed per second, all directions.
    Iops,
    /// Bytes moved per second, all directions.
    BytesPerSecond,
    /// Mean latency in nanoseconds.
    LatencyMean,
    /// Median latency in nanoseconds.
    LatencyP50,
    /// 99th percentile of latency in nanoseconds.
    LatencyP99,
    /// 99.9th percentile of latency in nanoseconds.
    LatencyP999,
    /// Longest latency in nanoseconds.
    LatencyMax,
    /// CPU time of the whole process per I/O, in nanoseconds.
    CpuPerIo,
    /// Transactions completed per second.
    Transactions,
    /// Mean latency of a transaction in nanoseconds.
    TransactionMean,
    /// 99th percentile of a transaction's latency in nanoseconds.
    TransactionP99,
    /// Mean wait for a commit in nanoseconds.
    CommitMean,
}

impl Metric {
    /// All metrics in the order of the table.
    pub const ALL: [Metric; 12] = [
        Metric::Iops,
        Metric::BytesPerSecond,
        Metric::LatencyMean,
        Metric::LatencyP50,
        Metric::LatencyP99,
        Metric::LatencyP999,
        Metric::LatencyMax,
        Metric::CpuPerIo,
        Metric::Transactions,
        Metric::TransactionMean,
        Metric::TransactionP99,
        Metric::CommitMean,
    ];

    /// The metric that a verdict uses, fixed before the first run. It is I/Os per second for a closed loop, and mean
    /// latency for a job with a rate, because the rate determines the IOPS. Transaction loops use [`Metric::Transactions`]
    /// instead. The mean is used and not p99, because it uses every sample, while the 99th percentile of a short run is
    /// noise.
    pub const fn primary(rated: bool) -> Metric {
        if rated { Metric::LatencyMean } else { Metric::Iops }
    }

    /// Whether a larger value is the better one.
    pub const fn higher_is_better(self) -> bool {
        matches!(self, Metric::Iops | Metric::BytesPerSecond | Metric::Transactions)
    }

    /// Whether a difference in this metric can be marked. The longest latency cannot: it grows with the number of I/Os, and
    /// the faster side has more.
    pub const fn can_be_marked(self) -> bool {
        !matches!(self, Metric::LatencyMax)
    }

    /// The name that reports show.
    pub const fn name(self) -> &'static str {
        match self {
            Metric::Iops => "IOPS",
            Metric::BytesPerSecond => "bandwidth",
            Metric::LatencyMean => "mean latency",
            Metric::LatencyP50 => "p50 latency",
            Metric::LatencyP99 => "p99 latency",
            Metric::LatencyP999 => "p99.9 latency",
            Metric::LatencyMax => "max latency",
            Metric::CpuPerIo => "CPU per I/O",
            Metric::Transactions => "transactions",
            Metric::TransactionMean => "tx mean",
            Metric::TransactionP99 => "tx p99",
            Metric::CommitMean => "commit wait",
        }
    }
}

/// The metrics of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunMetrics {
    /// [`Metric::Iops`].
    pub iops: Option<f64>,
    /// [`Metric::BytesPerSecond`].
    pub bytes_per_second: Option<f64>,
    /// [`Metric::LatencyMean`].
    pub latency_mean_ns: Option<f64>,
    /// [`Metric::LatencyP50`].
    pub latency_p50_ns: Option<f64>,
    /// [`Metric::LatencyP99`].
    pub latency_p99_ns: Option<f64>,
    /// [`Metric::LatencyP999`].
    pub latency_p999_ns: Option<f64>,
    /// [`Metric::LatencyMax`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_max_ns: Option<f64>,
    /// [`Metric::CpuPerIo`].
    pub cpu_per_io_ns: Option<f64>,
    /// [`Metric::Transactions`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tps: Option<f64>,
    /// [`Metric::TransactionMean`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_mean_ns: Option<f64>,
    /// [`Metric::TransactionP99`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_p99_ns: Option<f64>,
    /// [`Metric::CommitMean`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit_mean_ns: Option<f64>,
}

/// The metrics of one job of a run, over all its threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobMetrics {
    /// Its name in the job file.
    pub job: String,
    /// Its metrics.
    pub metrics: RunMetrics,
}

impl RunMetrics {
    /// Returns one metric.
    pub fn get(&self, metric: Metric) -> Option<f64> {
        match metric {
            Metric::Iops => self.iops,
            Metric::BytesPerSecond => self.bytes_per_second,
            Metric::LatencyMean => self.latency_mean_ns,
            Metric::LatencyP50 => self.latency_p50_ns,
            Metric::LatencyP99 => self.latency_p99_ns,
            Metric::LatencyP999 => self.latency_p999_ns,
            Metric::LatencyMax => self.latency_max_ns,
            Metric::CpuPerIo => self.cpu_per_io_ns,
            Metric::Transactions => self.tps,
            Metric::TransactionMean => self.tx_mean_ns,
            Metric::TransactionP99 => self.tx_p99_ns,
            Metric::CommitMean => self.commit_mean_ns,
        }
    }

    /// Computes the metrics of a run: rates and latencies over all directions of `jobs`, which has one entry per thread or
    /// per group. `cpu_ns` is the CPU time of the whole process over the measured part (job threads and reactors). It is
    /// `None` if the system does not report it.
    pub fn of(jobs: &[JobStats], cpu_ns: Option<u64>) -> RunMetrics {
        let dirs = || jobs.iter().flat_map(|j| &j.dirs).filter(|d| d.ios > 0);
        let ios: u64 = dirs().map(|d| d.ios).sum();
        let per_second = |count: fn(&DirStats) -> u64| {
            let sum: f64 =
                dirs().filter(|d| d.runtime_ns > 0).map(|d| count(d) as f64 * 1e9 / d.runtime_ns as f64).sum();
            (sum > 0.0).then_some(sum)
        };
        let (mut run, mut hist) = (Running::new(), Some(Histogram::new()));
        for d in dirs() {
            let lat = latency_of(d);
            run.merge(&lat.run);
            match (&mut hist, &lat.hist) {
                (Some(sum), Some(h)) => sum.merge(h),
                _ => hist = None,
            }
        }
        let hist = hist.filter(|h| h.total() > 0);
        // A percentile is only reported when the run holds enough samples above it to mean more than the maximum.
        let percentile = |p: f64| {
            let h = hist.as_ref()?;
            (h.total() as f64 * (100.0 - p) / 100.0 >= 1.0).then(|| h.percentile(p) as f64).filter(|v| *v > 0.0)
        };
        RunMetrics {
            iops: per_second(|d| d.ios),
            bytes_per_second: per_second(|d| d.bytes),
            latency_mean_ns: Some(run.mean()).filter(|m| *m > 0.0),
            latency_p50_ns: percentile(50.0),
            latency_p99_ns: percentile(99.0),
            latency_p999_ns: percentile(99.9),
            latency_max_ns: Some(run.max() as f64).filter(|m| *m > 0.0),
            cpu_per_io_ns: cpu_ns.filter(|ns| *ns > 0 && ios > 0).map(|ns| ns as f64 / ios as f64),
            ..RunMetrics::of_transactions(jobs)
        }
    }

    /// Computes the metrics of transaction loops among `jobs`; all other metrics are `None`.
    fn of_transactions(jobs: &[JobStats]) -> RunMetrics {
        let loops = || jobs.iter().filter(|j| j.runtime_ns > 0).filter_map(|j| Some((j, j.tx.as_deref()?)));
        let tps: f64 = loops().map(|(j, tx)| tx.transactions as f64 * 1e9 / j.runtime_ns as f64).sum();
        let mut sum = TxStats::default();
        loops().for_each(|(_, tx)| sum.merge(tx));
        let positive = |v: f64| Some(v).filter(|v| *v > 0.0);
        let many = |l: &LatencyStats| l.run.count() >= 100;
        let p99 = sum.lat.hist.as_deref().filter(|_| many(&sum.lat)).map(|h| h.percentile(99.0) as f64);
        RunMetrics {
            tps: positive(tps),
            tx_mean_ns: positive(sum.lat.run.mean()),
            tx_p99_ns: p99.and_then(positive),
            commit_mean_ns: positive(sum.commit.run.mean()),
            ..RunMetrics::default()
        }
    }
}

impl RunMetrics {
    /// Replaces the rates by the totals of `jobs` over `measured_ns`, the whole run. For threads that did not run at the same time.
    pub fn rates_over(&mut self, jobs: &[JobStats], measured_ns: u64) {
        let per_second = |count: fn(&DirStats) -> u64| {
            let sum: u64 = jobs.iter().flat_map(|j| &j.dirs).map(count).sum();
            (sum > 0 && measured_ns > 0).then(|| sum as f64 * 1e9 / measured_ns as f64)
        };
        self.iops = per_second(|d| d.ios);
        self.bytes_per_second = per_second(|d| d.bytes);
        let transactions: u64 = jobs.iter().filter_map(|j| j.tx.as_deref()).map(|tx| tx.transactions).sum();
        self.tps = (transactions > 0 && measured_ns > 0).then(|| transactions as f64 * 1e9 / measured_ns as f64);
    }
}

/// The latency that is compared: from the intended start if the job has a rate, else clat.
pub(crate) fn latency_of(d: &DirStats) -> &LatencyStats {
    if d.intended.run.count() > 0 { &d.intended } else { &d.clat }
}

#[cfg(test)]
mod tests {
    use super::*;
    use workload::stats::{Dir, Percentiles};

    fn job(dir: Dir, rated: bool, clat_ns: &[u64], runtime_ns: u64) -> JobStats {
        let mut j = JobStats::new(&[dir], Percentiles::default(), rated);
        let d = &mut j.dirs[dir as usize];
        d.ios = clat_ns.len() as u64;
        d.bytes = d.ios * 4096;
        d.runtime_ns = runtime_ns;
        clat_ns.iter().for_each(|&ns| d.clat.record(ns));
        j
    }

    #[test]
    fn sums_jobs_and_directions() {
        let read = job(Dir::Read, false, &[100; 1000], 500_000_000);
        let write = job(Dir::Write, false, &[120; 3000], 1_000_000_000);
        let m = RunMetrics::of(&[read, write], Some(8_000_000));
        assert_eq!(m.iops, Some(5000.0));
        assert_eq!(m.bytes_per_second, Some(5000.0 * 4096.0));
        assert_eq!(m.latency_mean_ns, Some(115.0));
        assert_eq!(m.latency_p50_ns, Some(120.0));
        assert_eq!(m.cpu_per_io_ns, Some(2000.0));
    }

    #[test]
    fn threads_one_after_the_other_have_one_rate() {
        let jobs = [1, 2].map(|_| job(Dir::Read, false, &[100; 1000], 500_000_000));
        let mut m = RunMetrics::of(&jobs, None);
        m.rates_over(&jobs, 1_000_000_000);
        assert_eq!((m.iops, m.bytes_per_second), (Some(2000.0), Some(2000.0 * 4096.0)));
        m.rates_over(&[], 0);
        assert_eq!((m.iops, m.bytes_per_second), (None, None));
    }

    #[test]
    fn rated_jobs_count_from_the_intended_start() {
        let mut j = job(Dir::Read, true, &[100; 10], 1_000_000_000);
        (0..10).for_each(|_| j.dirs[0].intended.record(900));
        assert_eq!(RunMetrics::of(&[j], None).latency_mean_ns, Some(900.0));
    }

    #[test]
    fn what_cannot_be_told_is_none() {
        assert_eq!(RunMetrics::of(&[JobStats::default()], Some(5)), RunMetrics::default());
        let m = RunMetrics::of(&[job(Dir::Read, false, &[50; 150], 1_000_000_000)], None);
        assert_eq!((m.latency_p99_ns, m.latency_p999_ns), (Some(50.0), None), "150 samples have no 99.9th percentile");
        assert_eq!(m.cpu_per_io_ns, None);
        let mut partial = job(Dir::Read, false, &[50; 150], 1_000_000_000);
        partial.dirs[0].clat.hist = None;
        let m = RunMetrics::of(&[partial], None);
        assert_eq!((m.latency_mean_ns, m.latency_p50_ns), (Some(50.0), None));
    }

    #[test]
    fn transactions_are_counted_over_all_instances() {
        let of = |n: u64, ns: u64| {
            let mut tx = TxStats { transactions: n, ..TxStats::default() };
            (0..n).for_each(|_| tx.lat.record(ns));
            JobStats { tx: Some(Box::new(tx)), runtime_ns: 500_000_000, ..JobStats::default() }
        };
        let m = RunMetrics::of(&[of(60, 100), of(40, 100), JobStats::default()], None);
        assert_eq!((m.tps, m.tx_mean_ns, m.tx_p99_ns, m.commit_mean_ns), (Some(200.0), Some(100.0), Some(100.0), None));
        assert_eq!(RunMetrics::of(&[of(60, 100)], None).tx_p99_ns, None, "too few for a 99th percentile");
    }

    #[test]
    fn get_reaches_every_metric() {
        let m = RunMetrics {
            iops: Some(1.0),
            bytes_per_second: Some(2.0),
            latency_mean_ns: Some(3.0),
            latency_p50_ns: Some(4.0),
            latency_p99_ns: Some(5.0),
            latency_p999_ns: Some(6.0),
            latency_max_ns: Some(7.0),
            cpu_per_io_ns: Some(8.0),
            tps: Some(9.0),
            tx_mean_ns: Some(10.0),
            tx_p99_ns: Some(11.0),
            commit_mean_ns: Some(12.0),
        };
        let got: Vec<f64> = Metric::ALL.iter().filter_map(|&x| m.get(x)).collect();
        assert_eq!(got, (1..=12).map(f64::from).collect::<Vec<_>>());
    }
}
