// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Option values of the policies around the I/O of a job: what ends it early, what runs before and after it, what it
//! measures, and the priorities of single I/Os.
//!
//! Guarantees: times are nanoseconds; 0 and `None` are "off". Source: the behaviour of fio 3.33.

use super::values::{PerDir, PrioClass};

/// The shape of written data: how much of it compresses or repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataShape {
    /// `buffer_compress_percentage=`, 0..=99: this part of each piece is zeroes, or the `buffer_pattern`.
    pub compress_pct: u32,
    /// `buffer_compress_chunk=`: bytes of a piece; 0 = the smallest write, which is also the limit.
    pub chunk_bytes: u64,
    /// `dedupe_percentage=`: percent of the writes that repeat others, 0..=100.
    pub dedupe_pct: u32,
    /// `dedupe_working_set_percentage=` with `dedupe_mode=working_set`: percent of the size that is repeated; `None`:
    /// `dedupe_mode=repeat`.
    pub working_set_pct: Option<u32>,
    /// `dedupe_global=1`: the number of threads of the file, which share the working set.
    pub global_threads: Option<u32>,
}

/// `zonemode=strided`: zones with gaps between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strided {
    /// `zonesize=`: bytes to issue in a zone before the next one, at least 1.
    pub size_bytes: u64,
    /// `zonerange=`: length of a zone, at least 1; default `zonesize`.
    pub range_bytes: u64,
    /// `zoneskip=`: gap between two zones.
    pub skip_bytes: u64,
}

/// Limits at which a job ends with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobLimits {
    /// `rate_min=`, bytes/s: below it over a `rate_cycle_ns`, the job ends with EIO.
    pub min_bytes_per_s: PerDir<Option<u64>>,
    /// `rate_iops_min=`; a direction that has `rate_min` does not check it (fio's rule).
    pub min_iops: PerDir<Option<u64>>,
    /// `rate_cycle=`: what the minimum rates are averaged over.
    pub rate_cycle_ns: u64,
    /// `max_latency=`: an I/O that takes longer, from its creation, ends the job with ETIMEDOUT.
    pub max_latency_ns: PerDir<Option<u64>>,
}

impl Default for JobLimits {
    fn default() -> Self {
        let none = PerDir::all(None);
        JobLimits { min_bytes_per_s: none, min_iops: none, rate_cycle_ns: 1_000_000_000, max_latency_ns: none }
    }
}

impl JobLimits {
    /// Whether the job has a minimum rate.
    pub fn has_min_rate(&self) -> bool {
        [self.min_bytes_per_s, self.min_iops].iter().any(|m| m.read.or(m.write).or(m.trim).is_some())
    }
}

/// `exit_what=`: the jobs that end when a job ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExitWhat {
    /// Those of its reporting group, whether they run or wait.
    #[default]
    Group,
    /// Those that run.
    Stonewall,
    /// All.
    All,
}

/// The rules by which the end of one job ends others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExitRules {
    /// `exitall`. As in fio, it holds for all jobs of the file once one has it.
    pub exitall: bool,
    /// `exit_what=`.
    pub what: ExitWhat,
    /// `exitall_on_error`: if this job ends with an error.
    pub on_error: bool,
}

/// Shell commands around a job. Their output goes to `NAME.prerun.txt` and `NAME.postrun.txt`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobCommands {
    /// `exec_prerun=`: before the first I/O; if it fails, the job does not run.
    pub prerun: Option<String>,
    /// `exec_postrun=`: after the last I/O.
    pub postrun: Option<String>,
}

impl JobCommands {
    /// The job has none.
    pub fn is_empty(&self) -> bool {
        self.prerun.is_none() && self.postrun.is_none()
    }
}

/// `latency_target=`: the job looks for the largest depth at which its I/Os are this fast.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyGoal {
    /// `latency_target=`, from the creation of an I/O to its completion.
    pub target_ns: u64,
    /// `latency_window=`: time at each depth.
    pub window_ns: u64,
    /// `latency_percentile=`: percent of the I/Os that have to be fast enough, in (0, 100].
    pub percentile: f64,
    /// `latency_run=`: continues to adapt the depth instead of ending.
    pub runs_on: bool,
}

/// What `steadystate=` watches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SteadyMetric {
    /// I/Os per second.
    #[default]
    Iops,
    /// Bytes per second.
    Bandwidth,
    /// Completion latency.
    Latency,
}

/// `steadystate=`: the job ends when its rate no longer changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steady {
    /// What is watched.
    pub metric: SteadyMetric,
    /// The slope of a line through the samples counts, rather than the largest distance from their mean.
    pub is_slope: bool,
    /// The job is steady below this limit.
    pub limit: f64,
    /// The limit is percent of the mean.
    pub is_percent: bool,
    /// `steadystate_duration=` in whole seconds: what the samples cover.
    pub duration_s: u64,
    /// `steadystate_ramp_time=`: time before the first sample.
    pub ramp_ns: u64,
    /// `steadystate_check_interval=` in whole seconds: between two samples.
    pub interval_s: u64,
}

impl Steady {
    /// Number of samples that are judged together.
    pub fn samples(&self) -> usize {
        (self.duration_s / self.interval_s).max(1) as usize
    }
}

/// `flow=`: jobs of a group share their I/Os in proportion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// `flow=`, at least 1.
    pub weight: u64,
    /// `flow_id=`: the group.
    pub id: u64,
    /// `flow_sleep=`: pause of a job that is ahead, with nothing in flight; 0 = it checks again soon.
    pub sleep_ns: u64,
}

/// A priority of an I/O: class and level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoClass {
    /// Class.
    pub class: PrioClass,
    /// 0 (highest) to 7.
    pub level: u8,
}

/// Part of the I/Os of one size, and their priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrioShare {
    /// Percent of the I/Os, 1..=100.
    pub pct: u32,
    /// Their priority; `None`: that of `cmdprio` and `cmdprio_class`.
    pub prio: Option<IoClass>,
}

/// Priorities of the I/Os of one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizePrios {
    /// Length of the I/Os.
    pub bytes: u64,
    /// Shares that sum to at most 100; the rest has the job's priority.
    pub shares: Vec<PrioShare>,
}

/// Priorities of single I/Os, for reads and writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CmdPrio {
    /// `cmdprio_percentage=`: percent of the I/Os that have [`CmdPrio::prio`].
    pub pct: PerDir<u32>,
    /// `cmdprio_class=` (default 1, real time) and `cmdprio=`.
    pub prio: PerDir<IoClass>,
    /// `cmdprio_bssplit=`: shares by size.
    pub by_size: PerDir<Vec<SizePrios>>,
}

impl CmdPrio {
    /// Whether some I/Os have another priority than the job.
    pub fn is_used(&self) -> bool {
        [self.pct.read, self.pct.write].iter().any(|pct| *pct > 0)
            || [&self.by_size.read, &self.by_size.write].iter().any(|sizes| !sizes.is_empty())
    }
}
