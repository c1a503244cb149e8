// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The checks of a job of `workload=oltp` that need no device.

use super::draft::Draft;
use super::oltp::{OltpJob, SESSIONS_MAX};
use super::resolve::Check;
use super::values::{Dir, Rw, RwMode};

/// Options of other jobs that have the same meaning for a transaction loop.
const COMMON: [&str; 48] = [
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
    "fallocate",
    "create_fsync",
    "unlink",
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
    /// Runs before all other checks: determines the kind of job.
    pub(super) fn oltp(&mut self) {
        if !self.draft.is_oltp {
            if self.draft.oltp != OltpJob::default() {
                let names: Vec<&str> = self.draft.given.keys().copied().filter(|n| is_own(n)).collect();
                self.conflict(&names, "has an effect only with workload=oltp", "add workload=oltp, or remove the line");
            }
            return;
        }
        let foreign: Vec<&str> =
            self.draft.given.keys().copied().filter(|n| !is_own(n) && !COMMON.contains(n)).collect();
        for name in foreign {
            let remedy = "move it from [global] into the sections it is for, or remove it";
            self.conflict(&[name], "has no effect with workload=oltp", remedy);
        }
        let o = self.draft.oltp.clone();
        if o.sessions() > SESSIONS_MAX {
            let rule = format!("make {} sessions: must be at most {SESSIONS_MAX} per instance", o.sessions());
            self.conflict(&["users", "threads_per_user"], &rule, "lower one of them, or use more numjobs");
        }
        if o.changes() > o.reads_per_tx {
            let rule = format!(
                "is more than reads_per_tx={}: a transaction changes only blocks that it has read",
                o.reads_per_tx
            );
            self.conflict(&["writes_per_tx", "reads_per_tx"], &rule, "lower writes_per_tx");
        }
        if o.dirty_max < o.changes() {
            let rule = format!("cannot hold the {} blocks that a transaction changes", o.changes());
            self.conflict(&["dirty_max", "writes_per_tx", "reads_per_tx"], &rule, "raise dirty_max");
        }
        if o.transactions.is_none() && self.draft.job.runtime_ns.is_none() {
            self.conflict(&["workload"], "has no end condition", "add runtime=SECONDS or transactions=N");
        }
        let Draft { job, bs, .. } = &mut self.draft;
        job.rw = Rw { mode: RwMode::ReadWrite, random: true };
        let or_default = |dir: Dir| bs[dir].unwrap_or_else(|| job.block_sizes[dir].max_bytes());
        if or_default(Dir::Read) != or_default(Dir::Write) {
            self.conflict(&["bs"], "must be one size: the blocks read are the blocks written back", "give one size");
        }
    }

    /// Runs after all other checks: sets the values that reports show.
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

/// Percent of block I/Os that are reads, for reports.
fn mix(o: &OltpJob) -> u32 {
    let reads = 100 * u64::from(o.reads_per_tx);
    let writes = u64::from(o.update_pct) * u64::from(o.changes());
    (100 * reads / (reads + writes)) as u32
}
