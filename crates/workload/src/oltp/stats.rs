// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The measurements of a transaction loop, in addition to those of its I/Os.
//!
//! Guarantees: a transaction is counted when its last step has completed. An update is counted when its commit was
//! acknowledged, which is after its redo was written. Needs from callers: as [`JobStats`](crate::stats::JobStats), of which
//! this is a part.

use crate::stats::LatencyStats;

/// Transactions and commits, and the resulting writes of redo and blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct TxStats {
    /// Transactions that completed, read-only ones included.
    pub transactions: u64,
    /// Transactions that changed blocks and whose commit was acknowledged.
    pub commits: u64,
    /// Time of a transaction from beginning to end, without think time.
    pub lat: LatencyStats,
    /// Time from its beginning until its last block was read.
    pub read: LatencyStats,
    /// Time from appending its redo record to the acknowledgement of its commit.
    pub commit: LatencyStats,
    /// Blocks read; `hot_reads` of them are in the hot part.
    pub reads: u64,
    /// See [`TxStats::reads`].
    pub hot_reads: u64,
    /// Writes to the redo log.
    pub redo_writes: u64,
    /// Bytes of these writes, including the padding of the last block.
    pub redo_bytes: u64,
    /// Time of a redo write from submission to completion.
    pub redo_lat: LatencyStats,
    /// How often the log was full and wrapped round to its beginning.
    pub redo_wraps: u64,
    /// Blocks written back.
    pub block_writes: u64,
    /// Changes of blocks whose earlier change was not written back yet. They cost no write of their own.
    pub rewritten: u64,
    /// Transactions that waited because too many blocks were still to be written back.
    pub buffer_waits: u64,
}

impl Default for TxStats {
    fn default() -> Self {
        let lat = || LatencyStats::new(true);
        TxStats {
            transactions: 0,
            commits: 0,
            lat: lat(),
            read: lat(),
            commit: lat(),
            reads: 0,
            hot_reads: 0,
            redo_writes: 0,
            redo_bytes: 0,
            redo_lat: lat(),
            redo_wraps: 0,
            block_writes: 0,
            rewritten: 0,
            buffer_waits: 0,
        }
    }
}

impl TxStats {
    /// Resets all samples and keeps the allocations.
    pub(crate) fn reset(&mut self) {
        for lat in [&mut self.lat, &mut self.read, &mut self.commit, &mut self.redo_lat] {
            lat.reset();
        }
        self.counts_mut().into_iter().for_each(|n| *n = 0);
    }

    /// Adds the measurements of `other`, which ran at the same time.
    pub fn merge(&mut self, other: &TxStats) {
        self.lat.merge(&other.lat);
        self.read.merge(&other.read);
        self.commit.merge(&other.commit);
        self.redo_lat.merge(&other.redo_lat);
        let mut other = other.clone();
        self.counts_mut().into_iter().zip(other.counts_mut()).for_each(|(a, b)| *a += *b);
    }

    /// Commits that a redo write made durable, on average; 0 without one.
    pub fn commits_per_redo_write(&self) -> f64 {
        if self.redo_writes == 0 { 0.0 } else { self.commits as f64 / self.redo_writes as f64 }
    }

    fn counts_mut(&mut self) -> [&mut u64; 10] {
        [
            &mut self.transactions,
            &mut self.commits,
            &mut self.reads,
            &mut self.hot_reads,
            &mut self.redo_writes,
            &mut self.redo_bytes,
            &mut self.redo_wraps,
            &mut self.block_writes,
            &mut self.rewritten,
            &mut self.buffer_waits,
        ]
    }
}
