// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a job of `workload=oltp` says, and the checks of it that need no device.
//!
//! Guarantees: an [`OltpJob`] out of a job file is inside the ranges its fields state, has an end, and came with no option that
//! would say something else. Needs from callers: what depends on targets is theirs to check (see [`crate::oltp`]). Does not
//! do: I/O. The names follow SLOB's (`UPDATE_PCT`, `THREADS_PER_SCHEMA`), and Oracle's for what writes.

use super::draft::Draft;
use super::resolve::Check;
use super::values::{Dir, Extent, Rw, RwMode};

/// Most sessions (`users` times `threads_per_user`) of an instance: each has a buffer and a slot.
pub const SESSIONS_MAX: u32 = 16_384;
/// Largest `redo_bytes`, and the largest write of the log writer: what Oracle's writes at most.
pub const REDO_WRITE_MAX: u32 = 1 << 20;

/// A transaction loop, as users of a database make it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OltpJob {
    /// `users=`, 1..=4096.
    pub users: u32,
    /// `threads_per_user=`: sessions of each user, 1..=256.
    pub threads_per_user: u32,
    /// `reads_per_tx=`: blocks a transaction reads, one after the other, 1..=4096.
    pub reads_per_tx: u32,
    /// `update_pct=`: percent of transactions that change blocks, 0..=100.
    pub update_pct: u32,
    /// `writes_per_tx=`: blocks such a transaction changes of those it reads; `None` = all.
    pub writes_per_tx: Option<u32>,
    /// `hot_pct=`: percent of reads that go to the hot part, 0..=100; the others go to the rest.
    pub hot_pct: u32,
    /// `hot_size=`: the hot part, of what holds data.
    pub hot_size: Extent,
    /// `redo_filename=`: where redo goes; `None` = behind the data.
    pub redo_filename: Option<String>,
    /// `redo_size=`: redo log of each instance; `None` = its share of `redo_filename`, or a sixteenth of the region.
    pub redo_size: Option<Extent>,
    /// `redo_bytes=`: redo of a transaction that changes blocks, 1..=1 MiB.
    pub redo_bytes: u32,
    /// `redo_block_size=`: redo is written in whole blocks of this, 512, 1024, 2048 or 4096.
    pub redo_block_bytes: u32,
    /// `group_commit_us=`: how long the log writer waits for company before it writes, nanoseconds.
    pub group_commit_ns: u64,
    /// `dirty_max=`: blocks that may be changed and not written back, 1..=1048576.
    pub dirty_max: u32,
    /// `writer_batch=`: blocks the database writer writes at once, 1..=4096.
    pub writer_batch: u32,
    /// `transactions=`: an instance ends after this many; `None` = by time.
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
    /// Sessions of an instance.
    pub fn sessions(&self) -> u32 {
        self.users.saturating_mul(self.threads_per_user)
    }

    /// Blocks that a transaction changes, if it changes any.
    pub fn changes(&self) -> u32 {
        self.writes_per_tx.unwrap_or(self.reads_per_tx)
    }

    /// I/Os that may be out at a time: of each session, of the database writer, and the log writer's one.
    pub fn most_ios(&self) -> u32 {
        self.sessions().saturating_add(self.writer_batch).saturating_add(1)
    }
}

/// Options of other jobs that mean the same for a transaction loop.
const COMMON: [&str; 45] = [
    "name",
    "description",
    "wait_for",
    "filename",
    "directory",
    "filename_format",
    "size",
    "offset",
    "offset_align",
    "direct",
    "buffered",
    "invalidate",
    "overwrite",
    "allow_file_create",
    "allow_mounted_write",
    "bs",
    "ioengine",
    "runtime",
    "time_based",
    "ramp_time",
    "startdelay",
    "thinktime",
    "randseed",
    "randrepeat",
    "allrandrepeat",
    "buffer_pattern",
    "zero_buffers",
    "refill_buffers",
    "scramble_buffers",
    "numjobs",
    "group_reporting",
    "new_group",
    "stonewall",
    "cpus_allowed",
    "cpumask",
    "cpus_allowed_policy",
    "prio",
    "prioclass",
    "cgroup_weight",
    "clat_percentiles",
    "lat_percentiles",
    "slat_percentiles",
    "percentile_list",
    "kb_base",
    "workload",
];

/// Whether an option belongs to transaction loops alone.
fn is_own(name: &str) -> bool {
    super::table_oltp::ROWS.iter().any(|row| row.name == name)
}

impl Check<'_> {
    /// Before all other checks: what kind of job it is.
    pub(super) fn oltp(&mut self) {
        if !self.draft.is_oltp {
            if self.draft.oltp != OltpJob::default() {
                let names: Vec<&str> = self.draft.given.keys().copied().filter(|n| is_own(n)).collect();
                self.conflict(&names, "acts only with workload=oltp", "add workload=oltp, or remove the line");
            }
            return;
        }
        let foreign: Vec<&str> =
            self.draft.given.keys().copied().filter(|n| !is_own(n) && !COMMON.contains(n)).collect();
        for name in foreign {
            let remedy = "move it from [global] into the sections it is for, or remove it";
            self.conflict(&[name], "says nothing to workload=oltp", remedy);
        }
        let o = self.draft.oltp.clone();
        if o.sessions() > SESSIONS_MAX {
            let rule = format!("make {} sessions: at most {SESSIONS_MAX} of an instance", o.sessions());
            self.conflict(&["users", "threads_per_user"], &rule, "lower one of them, or use more numjobs");
        }
        if o.changes() > o.reads_per_tx {
            let rule = format!("is more than reads_per_tx={}: only what was read is changed", o.reads_per_tx);
            self.conflict(&["writes_per_tx", "reads_per_tx"], &rule, "lower writes_per_tx");
        }
        if o.dirty_max < o.changes() {
            let rule = format!("cannot hold the {} blocks that a transaction changes", o.changes());
            self.conflict(&["dirty_max", "writes_per_tx", "reads_per_tx"], &rule, "raise dirty_max");
        }
        if o.transactions.is_none() && self.draft.job.runtime_ns.is_none() {
            self.conflict(&["workload"], "needs an end", "add runtime=SECONDS or transactions=N");
        }
        let Draft { job, bs, .. } = &mut self.draft;
        job.rw = Rw { mode: RwMode::ReadWrite, random: true };
        let or_default = |dir: Dir| bs[dir].unwrap_or_else(|| job.block_sizes[dir].max_bytes());
        if or_default(Dir::Read) != or_default(Dir::Write) {
            self.conflict(&["bs"], "must be one size: what is read is what is written back", "give one size");
        }
    }

    /// After all other checks: what reports say of it.
    pub(super) fn oltp_depth(&mut self) {
        if !self.draft.is_oltp {
            return;
        }
        let Draft { job, oltp, .. } = &mut self.draft;
        job.iodepth = oltp.most_ios();
        (job.iodepth_low, job.iodepth_batch_submit) = (job.iodepth, job.iodepth);
        job.rwmixread_pct = mix(oltp);
        job.oltp = Some(oltp.clone());
        debug_assert!(job.rw.has(Dir::Read) && job.rw.has(Dir::Write));
    }
}

/// Percent of block I/Os that read, for reports.
fn mix(o: &OltpJob) -> u32 {
    let reads = 100 * u64::from(o.reads_per_tx);
    let writes = u64::from(o.update_pct) * u64::from(o.changes());
    (100 * reads / (reads + writes)) as u32
}
