// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The goal of a tuning: one metric to improve, and limits that others must keep.
//!
//! Guarantees: a parsed goal or limit names an existing job. A limit relative to the default (`>=95%`) is distinguished from
//! an absolute one (`>=500MiB/s`, `<=2ms`). Every figure has one unit: I/Os or bytes per second, nanoseconds. Does not:
//! measure, or weigh metrics against each other. A limit is kept or not.

use std::fmt;

use blk::suggest::did_you_mean;
use serde::{Deserialize, Serialize};

/// The name that stands for all jobs of the file together.
pub const ALL_JOBS: &str = "all";

/// The kind of metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// I/Os per second, all directions.
    Iops,
    /// Bytes per second, all directions.
    Bandwidth,
    /// Mean completion latency in nanoseconds; for a rated job from the intended start.
    LatencyMean,
    /// A percentile of that latency, in tenths of a percent (500: the median), 500..=999.
    Percentile(u16),
    /// CPU time per I/O in nanoseconds. For all jobs it is that of the whole process, for one job that of its threads.
    CpuPerIo,
    /// Transactions completed per second, in `workload=oltp` jobs.
    Transactions,
    /// Transactions completed per minute, as published by database benchmarks.
    TransactionsPerMinute,
    /// Mean latency of a transaction in nanoseconds.
    TransactionMean,
    /// 99th percentile of a transaction's latency in nanoseconds.
    TransactionP99,
    /// Mean wait for a commit in nanoseconds.
    CommitMean,
}

/// The percentiles that have a name.
const PERCENTILES: [(&str, u16); 8] = [
    ("p50", 500),
    ("p75", 750),
    ("p90", 900),
    ("p95", 950),
    ("p98", 980),
    ("p99", 990),
    ("p99.5", 995),
    ("p99.9", 999),
];

impl Quantity {
    /// Whether a larger value is the better one.
    pub const fn higher_is_better(self) -> bool {
        matches!(self, Quantity::Iops | Quantity::Bandwidth | Quantity::Transactions | Quantity::TransactionsPerMinute)
    }

    /// Whether only transaction loops (`workload=oltp`) have it.
    pub const fn is_of_transactions(self) -> bool {
        matches!(
            self,
            Quantity::Transactions
                | Quantity::TransactionsPerMinute
                | Quantity::TransactionMean
                | Quantity::TransactionP99
                | Quantity::CommitMean
        )
    }

    fn parse(text: &str) -> Option<Quantity> {
        Some(match text {
            "iops" => Quantity::Iops,
            "bw" => Quantity::Bandwidth,
            "lat" => Quantity::LatencyMean,
            "cpu" => Quantity::CpuPerIo,
            "tps" => Quantity::Transactions,
            "tpm" => Quantity::TransactionsPerMinute,
            "tx" => Quantity::TransactionMean,
            "tx_p99" => Quantity::TransactionP99,
            "commit" => Quantity::CommitMean,
            _ => Quantity::Percentile(PERCENTILES.iter().find(|(name, _)| *name == text)?.1),
        })
    }

    fn names() -> impl Iterator<Item = &'static str> {
        let transactions = ["tps", "tpm", "tx", "tx_p99", "commit"];
        ["iops", "bw", "lat", "cpu"].into_iter().chain(PERCENTILES.iter().map(|(name, _)| *name)).chain(transactions)
    }

    /// Formats a value with its unit.
    pub fn show(self, value: f64) -> String {
        use crate::report::num;
        match self {
            Quantity::Iops => num::short(value.round() as u64, num::RATE_DIGITS, num::Scale::Decimal, " IOPS"),
            Quantity::Bandwidth => num::bytes_per_second(value.round() as u64, num::Scale::Binary),
            Quantity::Transactions => {
                num::short(value.round() as u64, num::RATE_DIGITS, num::Scale::Decimal, " transactions/s")
            }
            Quantity::TransactionsPerMinute => {
                num::short(value.round() as u64, num::RATE_DIGITS, num::Scale::Decimal, " transactions/min")
            }
            _ => num::latency(value),
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Quantity::Iops => "iops",
            Quantity::Bandwidth => "bw",
            Quantity::LatencyMean => "lat",
            Quantity::CpuPerIo => "cpu",
            Quantity::Transactions => "tps",
            Quantity::TransactionsPerMinute => "tpm",
            Quantity::TransactionMean => "tx",
            Quantity::TransactionP99 => "tx_p99",
            Quantity::CommitMean => "commit",
            Quantity::Percentile(tenths) => {
                return match tenths % 10 {
                    0 => write!(f, "p{}", tenths / 10),
                    rest => write!(f, "p{}.{rest}", tenths / 10),
                };
            }
        })
    }
}

/// `JOB.METRIC`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MetricId {
    /// Name of the job, or [`ALL_JOBS`].
    pub job: String,
    /// The kind of metric.
    pub quantity: Quantity,
}

impl fmt::Display for MetricId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.job, self.quantity)
    }
}

impl MetricId {
    /// Parses `JOB.METRIC`. `jobs` are those of the file. The name of a job may contain dots.
    pub fn parse(text: &str, jobs: &[String]) -> Result<MetricId, String> {
        let known = || jobs.iter().map(String::as_str).chain([ALL_JOBS]);
        let metrics = || Quantity::names().collect::<Vec<_>>().join(", ");
        // `p99.9` contains a dot as well. So the metric is the text after the name of a known job, if there is one.
        let of_job = known().filter_map(|job| Some((job, text.strip_prefix(job)?.strip_prefix('.')?)));
        let Some((job, metric)) = of_job.max_by_key(|(job, _)| job.len()) else {
            let Some((job, metric)) = text.split_once('.') else {
                return Err(format!(
                    "'{text}': must be JOB.METRIC, such as {}.iops; metrics: {}",
                    example(jobs),
                    metrics()
                ));
            };
            let near = did_you_mean(job, known());
            let jobs = known().collect::<Vec<_>>().join(", ");
            return Err(format!(
                "'{job}.{metric}': there is no job '{job}'; {near}jobs: {jobs} (all of them together)"
            ));
        };
        let Some(quantity) = Quantity::parse(metric) else {
            let near = did_you_mean(metric, Quantity::names());
            return Err(format!("'{text}': there is no metric '{metric}'; {near}metrics: {}", metrics()));
        };
        Ok(MetricId { job: job.to_owned(), quantity })
    }
}

fn example(jobs: &[String]) -> &str {
    jobs.first().map_or(ALL_JOBS, String::as_str)
}

/// The metric to improve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Goal {
    /// The metric.
    pub metric: MetricId,
}

impl Goal {
    /// Parses the value of `--maximize` (`maximize`) or `--minimize`. A direction that makes the metric worse is rejected
    /// as a mistake.
    pub fn parse(maximize: bool, text: &str, jobs: &[String]) -> Result<Goal, String> {
        let flag = if maximize { "--maximize" } else { "--minimize" };
        let metric = MetricId::parse(text, jobs).map_err(|e| format!("{flag} {e}"))?;
        if maximize != metric.quantity.higher_is_better() {
            let (better, other) = if maximize { ("smaller", "--minimize") } else { ("larger", "--maximize") };
            return Err(format!("{flag} {metric}: {better} is better; use {other} {metric}"));
        }
        Ok(Goal { metric })
    }

    /// ln(b/a), positive when `b` is better.
    pub fn gain(&self, a: f64, b: f64) -> f64 {
        let log = (b / a).ln();
        if self.metric.quantity.higher_is_better() { log } else { -log }
    }
}

/// The kind of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// A fraction of the default settings' figure.
    OfDefault(f64),
    /// A figure in the metric's unit.
    Absolute(f64),
}

/// `JOB.METRIC>=BOUND` or `JOB.METRIC<=BOUND`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Keep {
    /// The metric.
    pub metric: MetricId,
    /// Whether the limit is `>=`; otherwise it is `<=`.
    pub at_least: bool,
    /// The limit.
    pub bound: Bound,
    /// As typed.
    pub text: String,
}

impl Keep {
    /// Parses the value of `--keep`.
    pub fn parse(text: &str, jobs: &[String]) -> Result<Keep, String> {
        let plain: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let (metric, at_least, bound) = match (plain.split_once(">="), plain.split_once("<=")) {
            (Some((metric, bound)), None) => (metric, true, bound),
            (None, Some((metric, bound))) => (metric, false, bound),
            _ => {
                let example = example(jobs);
                return Err(format!(
                    "--keep '{text}': must be JOB.METRIC>=BOUND or JOB.METRIC<=BOUND, such as {example}.bw>=95%"
                ));
            }
        };
        let metric = MetricId::parse(metric, jobs).map_err(|e| format!("--keep {e}"))?;
        let value = parse_bound(bound, metric.quantity).ok_or_else(|| {
            let forms = match metric.quantity {
                Quantity::Iops | Quantity::Transactions | Quantity::TransactionsPerMinute => {
                    "a share of the default setting's value (95%), or a rate (20000, 20k)"
                }
                Quantity::Bandwidth => "a share of the default setting's value (95%), or a rate (500MiB/s, 1.2GB/s)",
                _ => "a share of the default setting's value (110%), or a time (2ms, 150us)",
            };
            format!("--keep '{text}': '{bound}' must be {forms}")
        })?;
        Ok(Keep { metric, at_least, bound: value, text: plain })
    }

    /// Returns the distance of `value` from the limit as a logarithm; it is negative if the limit is not kept. `default` is
    /// the figure with the default settings.
    pub fn margin(&self, default: f64, value: f64) -> f64 {
        let limit = match self.bound {
            Bound::OfDefault(fraction) => default * fraction,
            Bound::Absolute(limit) => limit,
        };
        let log = (value / limit).ln();
        if self.at_least { log } else { -log }
    }

    /// Returns the metric as a goal, for a limit that is not kept: how near can the metric come to the limit?
    pub fn as_goal(&self) -> Goal {
        Goal { metric: self.metric.clone() }
    }
}

/// Parses a positive figure with its unit.
fn parse_bound(text: &str, quantity: Quantity) -> Option<Bound> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let number: f64 = digits.parse().ok().filter(|n: &f64| n.is_finite() && *n > 0.0)?;
    if unit == "%" {
        return Some(Bound::OfDefault(number / 100.0));
    }
    let factor = match quantity {
        Quantity::Iops | Quantity::Transactions | Quantity::TransactionsPerMinute => match unit {
            "" => 1.0,
            "k" | "K" => 1e3,
            "m" | "M" => 1e6,
            _ => return None,
        },
        Quantity::Bandwidth => match unit.strip_suffix("/s").unwrap_or(unit) {
            "" | "B" => 1.0,
            "KiB" | "k" | "K" => 1024.0,
            "MiB" | "m" | "M" => 1024.0 * 1024.0,
            "GiB" | "g" | "G" => 1024.0 * 1024.0 * 1024.0,
            "kB" | "KB" => 1e3,
            "MB" => 1e6,
            "GB" => 1e9,
            _ => return None,
        },
        _ => match unit {
            "ns" => 1.0,
            "us" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            _ => return None,
        },
    };
    Some(Bound::Absolute(number * factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs() -> Vec<String> {
        ["seq_write", "seq_read", "v1.db"].map(str::to_owned).to_vec()
    }

    #[test]
    fn metrics_are_read_and_shown_alike() {
        for text in
            ["seq_write.iops", "seq_read.bw", "v1.db.p99.9", "all.p99.5", "seq_read.p50", "all.cpu", "v1.db.lat"]
                .into_iter()
                .chain(["v1.db.tps", "all.tpm", "v1.db.tx", "all.tx_p99", "all.commit"])
        {
            assert_eq!(MetricId::parse(text, &jobs()).unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_typo_is_answered_with_the_nearest_job_or_metric() {
        let e = |text| MetricId::parse(text, &jobs()).unwrap_err();
        assert!(
            e("seq_wirte.iops").contains("no job 'seq_wirte'; did you mean 'seq_write'?"),
            "{}",
            e("seq_wirte.iops")
        );
        assert!(e("seq_read.iosp").contains("no metric 'iosp'; did you mean 'iops'?"), "{}", e("seq_read.iosp"));
        assert!(e("iops").contains("must be JOB.METRIC, such as seq_write.iops"), "{}", e("iops"));
        assert!(e("seq_read.p42").contains("metrics: iops, bw"), "{}", e("seq_read.p42"));
    }

    #[test]
    fn latencies_are_never_maximized() {
        let e = Goal::parse(true, "all.p99", &jobs()).unwrap_err();
        assert_eq!(e, "--maximize all.p99: smaller is better; use --minimize all.p99");
        assert!(Goal::parse(false, "all.bw", &jobs()).unwrap_err().ends_with("use --maximize all.bw"));
        assert!(Goal::parse(false, "all.tps", &jobs()).unwrap_err().ends_with("use --maximize all.tps"));
        assert!(Goal::parse(false, "all.tpm", &jobs()).unwrap_err().ends_with("use --maximize all.tpm"));
        assert!(Goal::parse(true, "all.commit", &jobs()).unwrap_err().ends_with("use --minimize all.commit"));
        let goal = Goal::parse(false, "all.p99", &jobs()).unwrap();
        assert!(goal.gain(200.0, 100.0) > 0.69 && goal.gain(100.0, 200.0) < 0.0);
    }

    #[test]
    fn limits_are_relative_or_absolute() {
        let keep = |text| Keep::parse(text, &jobs()).unwrap();
        assert_eq!(keep("seq_read.bw >= 95%").bound, Bound::OfDefault(0.95));
        assert_eq!(keep("seq_read.bw>=500MiB/s").bound, Bound::Absolute(524_288_000.0));
        assert_eq!(keep("seq_read.p99<=2ms").bound, Bound::Absolute(2e6));
        assert_eq!(keep("all.iops>=20k").bound, Bound::Absolute(20_000.0));
        assert_eq!(keep("all.tpm>=1.5M").bound, Bound::Absolute(1_500_000.0));
        let k = keep("seq_read.bw>=95%");
        assert!(k.margin(100.0, 96.0) > 0.0 && k.margin(100.0, 94.0) < 0.0);
        let k = keep("seq_read.p99<=2ms");
        assert!(k.margin(9e9, 1.9e6) > 0.0 && k.margin(1.0, 2.1e6) < 0.0);
        for bad in
            ["seq_read.bw=95%", "seq_read.bw>=2ms", "seq_read.bw>=-1%", "all.lat<=0ms", "all.iops>=many", "x.bw>=1%"]
        {
            assert!(Keep::parse(bad, &jobs()).unwrap_err().starts_with("--keep "), "{bad}");
        }
    }
}
