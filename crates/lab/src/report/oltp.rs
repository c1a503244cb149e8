// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures of transaction loops, as text and as data for `--json`.
//!
//! Guarantees: rates are over the measured part of the run. Latencies in the data are nanoseconds. Figures that were not
//! measured are left out of the text. Does not: repeat the I/O figures of fio's block.

use std::fmt::Write;

use serde::{Deserialize, Serialize};
use workload::stats::{JobStats, LatencyStats};

use super::num;

/// Percentiles that are reported.
const PERCENTILES: [f64; 4] = [50.0, 95.0, 99.0, 99.9];

/// Statistics of a latency.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Samples.
    pub n: u64,
    /// Smallest, nanoseconds.
    pub min_ns: u64,
    /// Mean, nanoseconds.
    pub mean_ns: f64,
    /// Median, nanoseconds.
    pub p50_ns: u64,
    /// 95th percentile, nanoseconds.
    pub p95_ns: u64,
    /// 99th percentile, nanoseconds.
    pub p99_ns: u64,
    /// 99.9th percentile, nanoseconds.
    pub p999_ns: u64,
    /// Largest, nanoseconds.
    pub max_ns: u64,
}

impl Latency {
    fn of(l: &LatencyStats) -> Latency {
        let p = l.hist.as_deref().map_or_else(|| vec![0; PERCENTILES.len()], |h| h.percentiles(&PERCENTILES));
        Latency {
            n: l.run.count(),
            min_ns: l.run.min(),
            mean_ns: l.run.mean(),
            p50_ns: p[0],
            p95_ns: p[1],
            p99_ns: p[2],
            p999_ns: p[3],
            max_ns: l.run.max(),
        }
    }
}

/// The transactions of a job, or of a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OltpReport {
    /// Name of the job.
    pub job: String,
    /// Number of instances summed up here.
    pub instances: u32,
    /// Transactions that completed.
    pub transactions: u64,
    /// Transactions per second.
    pub tps: f64,
    /// Commits acknowledged.
    pub commits: u64,
    /// Commits per second.
    pub commits_per_second: f64,
    /// Blocks read, per second.
    pub reads_per_second: f64,
    /// Percent of these blocks in the hot part.
    pub hot_percent: f64,
    /// Time of a transaction, from its beginning to its end.
    pub transaction: Latency,
    /// Part of that time until all blocks were read.
    pub read: Latency,
    /// Part of that time until the commit was acknowledged.
    pub commit: Latency,
    /// Writes to the redo log.
    pub redo_writes: u64,
    /// Redo writes per second.
    pub redo_writes_per_second: f64,
    /// Bytes written to the redo log per second.
    pub redo_bytes_per_second: f64,
    /// Mean number of commits that a redo write acknowledged.
    pub commits_per_redo_write: f64,
    /// Latency of redo writes.
    pub redo: Latency,
    /// Blocks written back.
    pub block_writes: u64,
    /// Blocks written back per second.
    pub block_writes_per_second: f64,
    /// Changes without a write of their own, because their block was to be written anyway.
    pub rewritten: u64,
    /// Transactions that waited for blocks to be written back.
    pub buffer_waits: u64,
    /// How often a redo log wrapped round.
    pub redo_wraps: u64,
}

impl OltpReport {
    /// Makes the report of the instances of a job or group; `None` if they are no transaction loops.
    pub fn of(job: &str, members: &[JobStats]) -> Option<OltpReport> {
        let (first, others) = members.split_first()?;
        let mut sum = first.clone();
        others.iter().for_each(|m| sum.merge(m));
        let tx = sum.tx.as_deref()?;
        // For instances that ran at the same time this is the longest time, as fio computes it for groups.
        let seconds = (sum.runtime_ns as f64 / 1e9).max(1e-9);
        let rate = |n: u64| n as f64 / seconds;
        Some(OltpReport {
            job: job.to_owned(),
            instances: u32::try_from(members.len()).unwrap_or(u32::MAX),
            transactions: tx.transactions,
            tps: rate(tx.transactions),
            commits: tx.commits,
            commits_per_second: rate(tx.commits),
            reads_per_second: rate(sum.dir(workload::job::Dir::Read).ios),
            hot_percent: 100.0 * tx.hot_reads as f64 / tx.reads.max(1) as f64,
            transaction: Latency::of(&tx.lat),
            read: Latency::of(&tx.read),
            commit: Latency::of(&tx.commit),
            redo_writes: tx.redo_writes,
            redo_writes_per_second: rate(tx.redo_writes),
            redo_bytes_per_second: rate(tx.redo_bytes),
            commits_per_redo_write: tx.commits_per_redo_write(),
            redo: Latency::of(&tx.redo_lat),
            block_writes: tx.block_writes,
            block_writes_per_second: rate(tx.block_writes),
            rewritten: tx.rewritten,
            buffer_waits: tx.buffer_waits,
            redo_wraps: tx.redo_wraps,
        })
    }
}

/// Returns the text blocks; empty without transaction loops.
pub fn text(reports: &[OltpReport]) -> String {
    let mut out = String::new();
    for r in reports {
        block(&mut out, r);
    }
    out
}

// Writing to a String cannot fail, so the results of write! are dropped.

fn block(out: &mut String, r: &OltpReport) {
    let whole = |rate: f64| match rate {
        r if r < 100.0 => format!("{r:.1}"),
        r => num::short(r.round() as u64, num::RATE_DIGITS, num::Scale::Decimal, ""),
    };
    let _ = writeln!(out, "\nTransactions of {} ({} instances):", r.job, r.instances);
    let _ = writeln!(
        out,
        "  transactions : {}/s, {} in all; commits={}/s, reads={}/s, {:.1}% of them hot",
        whole(r.tps),
        r.transactions,
        whole(r.commits_per_second),
        whole(r.reads_per_second),
        r.hot_percent
    );
    for (name, l) in [("latency", &r.transaction), ("  reads", &r.read), ("  commit wait", &r.commit)] {
        latency(out, name, l);
    }
    if r.redo_writes > 0 {
        let _ = writeln!(
            out,
            "  redo         : {} writes/s, {}, {:.1} commits per write, log wrapped {} times",
            whole(r.redo_writes_per_second),
            num::bytes_per_second(r.redo_bytes_per_second as u64, num::Scale::Binary),
            r.commits_per_redo_write,
            r.redo_wraps
        );
        latency(out, "  redo write", &r.redo);
    }
    if r.commits > 0 {
        let _ = writeln!(
            out,
            "  blocks       : {} written back/s, {} changes to already dirty blocks, {} waits for write-back",
            whole(r.block_writes_per_second),
            r.rewritten,
            r.buffer_waits
        );
    }
}

fn latency(out: &mut String, name: &str, l: &Latency) {
    if l.n == 0 {
        return;
    }
    let of = |ns: f64| num::latency(ns);
    let _ = writeln!(
        out,
        "  {name:<13}: avg={}, p50={}, p95={}, p99={}, p99.9={}, max={}",
        of(l.mean_ns),
        of(l.p50_ns as f64),
        of(l.p95_ns as f64),
        of(l.p99_ns as f64),
        of(l.p999_ns as f64),
        of(l.max_ns as f64)
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use workload::stats::TxStats;

    fn member(transactions: u64, commits: u64) -> JobStats {
        let mut tx = TxStats { transactions, commits, redo_writes: 5, ..TxStats::default() };
        (tx.reads, tx.hot_reads) = (100, 6);
        (0..transactions).for_each(|_| tx.lat.record(2_000_000));
        (0..commits).for_each(|_| tx.commit.record(500_000));
        JobStats { tx: Some(Box::new(tx)), runtime_ns: 2_000_000_000, ..JobStats::default() }
    }

    #[test]
    fn instances_add_up() {
        let r = OltpReport::of("db", &[member(30, 10), member(50, 20)]).unwrap();
        assert_eq!((r.instances, r.transactions, r.tps, r.commits_per_second), (2, 80, 40.0, 15.0));
        assert_eq!((r.hot_percent, r.commits_per_redo_write, r.transaction.n), (6.0, 3.0, 80));
        let text = text(&[r]);
        for line in [
            "\nTransactions of db (2 instances):\n",
            "  transactions : 40.0/s, 80 in all; commits=15.0/s, reads=0.0/s, 6.0% of them hot\n",
            "  latency      : avg=2",
            "    commit wait: avg=500us, p50=",
            "3.0 commits per write",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains("  reads        :"), "what was not measured is not told\n{text}");
    }

    #[test]
    fn other_jobs_have_none() {
        assert!(OltpReport::of("a", &[JobStats::default()]).is_none() && OltpReport::of("a", &[]).is_none());
    }
}
