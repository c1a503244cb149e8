// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of a job of `workload=oltp`.
//!
//! Guarantees: an [`OltpJob`] from a job file is within the ranges that its fields state, and has an end. No other option
//! of its job contradicts it. Needs from callers: checks that depend on targets (see [`crate::oltp`]). Does not do: I/O.
//! The names follow SLOB's (`UPDATE_PCT`, `THREADS_PER_SCHEMA`), and Oracle's for the writers.

use super::values::Extent;

/// Maximum number of sessions (`users` times `threads_per_user`) of an instance: each has a buffer and a slot.
pub const SESSIONS_MAX: u32 = 16_384;
/// Largest `redo_bytes`, and the largest write of the log writer, as in Oracle.
pub const REDO_WRITE_MAX: u32 = 1 << 20;

/// A transaction loop, as users of a database run it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OltpJob {
    /// `users=`, 1..=4096.
    pub users: u32,
    /// `threads_per_user=`: sessions of each user, 1..=256.
    pub threads_per_user: u32,
    /// `reads_per_tx=`: blocks that a transaction reads, one after the other, 1..=4096.
    pub reads_per_tx: u32,
    /// `update_pct=`: percent of transactions that change blocks, 0..=100.
    pub update_pct: u32,
    /// `writes_per_tx=`: how many of the blocks it reads such a transaction changes; `None` = all.
    pub writes_per_tx: Option<u32>,
    /// `hot_pct=`: percent of reads that go to the hot part, 0..=100; the others go to the rest.
    pub hot_pct: u32,
    /// `hot_size=`: size of the hot part of the data.
    pub hot_size: Extent,
    /// `redo_filename=`: the target of redo; `None` = after the data.
    pub redo_filename: Option<String>,
    /// `redo_size=`: redo log of each instance; `None` = its share of `redo_filename`, or a sixteenth of the region.
    pub redo_size: Option<Extent>,
    /// `redo_bytes=`: redo of a transaction that changes blocks, 1..=1 MiB.
    pub redo_bytes: u32,
    /// `redo_block_size=`: redo is written in whole blocks of this size: 512, 1024, 2048 or 4096.
    pub redo_block_bytes: u32,
    /// `group_commit_us=`: how long the log writer waits for more records before it writes, nanoseconds.
    pub group_commit_ns: u64,
    /// `dirty_max=`: most blocks that are changed and not written back, 1..=1048576.
    pub dirty_max: u32,
    /// `writer_batch=`: blocks that the database writer writes at once, 1..=4096.
    pub writer_batch: u32,
    /// `transactions=`: an instance ends after this many; `None` = time ends it.
    pub transactions: Option<u64>,
}

impl Default for OltpJob {
    fn default() -> Self {
        OltpJob {
            users: 1,
            threads_per_user: 1,
            reads_per_tx: 64,
            update_pct: 25,
            writes_per_tx: None,
            hot_pct: 0,
            hot_size: Extent::Percent(10),
            redo_filename: None,
            redo_size: None,
            redo_bytes: 8192,
            redo_block_bytes: 512,
            group_commit_ns: 0,
            dirty_max: 16_384,
            writer_batch: 32,
            transactions: None,
        }
    }
}

impl OltpJob {
    /// Sessions per instance.
    pub fn sessions(&self) -> u32 {
        self.users.saturating_mul(self.threads_per_user)
    }

    /// Blocks that an updating transaction changes.
    pub fn changes(&self) -> u32 {
        self.writes_per_tx.unwrap_or(self.reads_per_tx)
    }

    /// Maximum number of I/Os in flight: one per session, those of the database writer, and one of the log writer.
    pub fn most_ios(&self) -> u32 {
        self.sessions().saturating_add(self.writer_batch).saturating_add(1)
    }
}
