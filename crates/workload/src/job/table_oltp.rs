// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Option rows of our own: the kind of load of a job, and transaction loops (`workload=oltp`). See `options` and `oltp`.

use super::oltp::REDO_WRITE_MAX;
use super::option::Parser::{Int, Size, Text, Words};
use super::option::{OptionInfo, own};
use super::setters;
use super::units::USEC_NS;
use super::values::Extent;

#[rustfmt::skip] // A table: one row per line.
pub(super) static ROWS: &[OptionInfo] = &[
    own("workload", Words { words: &["io", "oltp"], set: |d, v| d.is_oltp = v == "oltp" }, "io", "io: reads and writes by rw, like fio; oltp: transactions of database users"),
    own("users", Int { min: 1, max: 4096, set: |d, v| d.oltp.users = v as u32 }, "1", "oltp: users of the database"),
    own("threads_per_user", Int { min: 1, max: 256, set: |d, v| d.oltp.threads_per_user = v as u32 }, "1", "oltp: sessions of each user, which run transactions one after the other"),
    own("transactions", Int { min: 1, max: u64::MAX, set: |d, v| d.oltp.transactions = Some(v) }, "", "oltp: end after this many per instance; default: by runtime"),
    own("reads_per_tx", Int { min: 1, max: 4096, set: |d, v| d.oltp.reads_per_tx = v as u32 }, "64", "oltp: blocks a transaction reads, one after the other"),
    own("update_pct", Int { min: 0, max: 100, set: |d, v| d.oltp.update_pct = v as u32 }, "25", "oltp: percent of transactions that change blocks and commit"),
    own("writes_per_tx", Int { min: 1, max: 4096, set: |d, v| d.oltp.writes_per_tx = Some(v as u32) }, "", "oltp: blocks that such a transaction changes; default: all it has read"),
    own("hot_pct", Int { min: 0, max: 100, set: |d, v| d.oltp.hot_pct = v as u32 }, "0", "oltp: percent of reads that go to the hot part, which the storage's cache holds"),
    own("hot_size", Size(|d, v| d.oltp.hot_size = v), "10%", "oltp: size of the hot part, at the start of the data"),
    own("redo_filename", Text { syntax: "PATH|TARGET", set: setters::set_redo_filename }, "", "oltp: file, device or target of the redo log; default: after the data"),
    own("redo_size", Size(|d, v| d.oltp.redo_size = Some(v).filter(|v| *v != Extent::Bytes(0))), "", "oltp: redo log size per instance (a ring); default: its share of redo_filename"),
    own("redo_bytes", Int { min: 1, max: REDO_WRITE_MAX as u64, set: |d, v| d.oltp.redo_bytes = v as u32 }, "8192", "oltp: redo of a transaction that changes blocks"),
    own("redo_block_size", Text { syntax: "512|1024|2048|4096 BYTES", set: setters::set_redo_block_size }, "512", "oltp: redo is written in whole blocks of this size"),
    own("group_commit_us", Int { min: 0, max: 1_000_000, set: |d, v| d.oltp.group_commit_ns = v * USEC_NS }, "0", "oltp: log writer's wait for more commits; 0 = only until its last write ends"),
    own("dirty_max", Int { min: 1, max: 1 << 20, set: |d, v| d.oltp.dirty_max = v as u32 }, "16384", "oltp: limit of changed blocks not yet written back; at the limit sessions wait"),
    own("writer_batch", Int { min: 1, max: 4096, set: |d, v| d.oltp.writer_batch = v as u32 }, "32", "oltp: changed blocks that the database writer writes per batch"),
];
