// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A job while its options are being read: the [`Job`] so far, and options that only `resolve` can decide.
//!
//! Guarantees: options applied in order leave the draft as fio would (the last one wins; `a,,c` keeps what was there for
//! the empty part). Needs from callers: `resolve` turns it into a [`Job`]. Does not do: checks between options.

use std::collections::BTreeMap;

use super::error::{JobError, Origin};
use super::oltp::OltpJob;
use super::policy::{DataShape, Flow, LatencyGoal, Steady, SteadyMetric, Strided};
use super::spec::Job;
use super::units::Units;
use super::values::{Dir, Pattern, PerDir, SizeWeight};
use crate::replay::ReplayOptions;

/// Where an option that is in force was given.
#[derive(Clone, Debug)]
pub(super) struct OptionOrigin {
    pub origin: Origin,
    /// Position in reading order, to print errors in that order.
    pub seq: u32,
    /// `key=value` as typed.
    pub typed: String,
}

/// An option that adds files to a job, or says how many of them it has.
#[derive(Clone, Debug)]
pub(super) enum FileOption {
    /// `filename=`: a list.
    Names(String),
    /// `opendir=`.
    Below(String),
    /// `nrfiles=`.
    Count(u32),
}

/// An unfinished job.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub job: Job,
    pub units: Units,
    /// In the order in which fio reads them.
    pub files: Vec<FileOption>,
    pub bs: PerDir<Option<u64>>,
    pub bsrange: PerDir<Option<(u64, u64)>>,
    pub bssplit: PerDir<Option<Vec<SizeWeight>>>,
    /// Text after the colon of `rw=read:8k`.
    pub rw_modifier: Option<i64>,
    pub iodepth_low: Option<u64>,
    pub batch_submit: Option<u64>,
    pub batch_complete_min: Option<u64>,
    pub batch_complete_max: Option<u64>,
    pub verify_backlog_batch: Option<u64>,
    pub zero_buffers: bool,
    pub fsync_on_close: bool,
    pub randseed: Option<u64>,
    pub buffer_pattern: Option<Pattern>,
    /// `zonemode=`: whether it is strided; `None`: not given.
    pub zone_mode: Option<bool>,
    /// `zonesize=`, `zonerange=`, `zoneskip=`; 0 = not given.
    pub zones: Strided,
    /// `latency_*`; the target is 0 if it was not given.
    pub latency: LatencyGoal,
    /// `steadystate*`; the duration is 0 if it was not given.
    pub steady: Steady,
    /// `flow*`; the weight is 0 if it was not given.
    pub flow: Flow,
    /// `buffer_compress_*` and `dedupe_*`.
    pub shape: DataShape,
    /// `dedupe_mode=working_set`.
    pub has_working_set: bool,
    pub dedupe_global: bool,
    /// `workload=oltp`.
    pub is_oltp: bool,
    pub oltp: OltpJob,
    /// `read_iolog=`.
    pub read_iolog: Option<String>,
    /// `replay_*=`.
    pub replay: ReplayOptions,
    /// Options in force, by canonical name.
    pub given: BTreeMap<&'static str, OptionOrigin>,
    /// Options in force that mqblk does not support. Kept until the job is complete, because a job may override its global section.
    pub refused: BTreeMap<&'static str, (u32, JobError)>,
}

impl Draft {
    pub(super) fn new() -> Self {
        Draft {
            job: Job::new(""),
            units: Units { kb_base: 1024 },
            files: Vec::new(),
            bs: PerDir::all(None),
            bsrange: PerDir::all(None),
            bssplit: PerDir::all(None),
            rw_modifier: None,
            iodepth_low: None,
            batch_submit: None,
            batch_complete_min: None,
            batch_complete_max: None,
            verify_backlog_batch: None,
            zero_buffers: false,
            fsync_on_close: false,
            randseed: None,
            buffer_pattern: None,
            zone_mode: None,
            zones: Strided { size_bytes: 0, range_bytes: 0, skip_bytes: 0 },
            latency: LatencyGoal { target_ns: 0, window_ns: 0, percentile: 100.0, runs_on: false },
            steady: Steady {
                metric: SteadyMetric::Iops,
                is_slope: true,
                limit: 0.01,
                is_percent: true,
                duration_s: 0,
                ramp_ns: 0,
                interval_s: 1,
            },
            flow: Flow { weight: 0, id: 0, sleep_ns: 0 },
            shape: DataShape {
                compress_pct: 0,
                chunk_bytes: 512,
                dedupe_pct: 0,
                working_set_pct: Some(5),
                global_threads: None,
            },
            has_working_set: false,
            dedupe_global: false,
            is_oltp: false,
            oltp: OltpJob::default(),
            read_iolog: None,
            replay: ReplayOptions::default(),
            given: BTreeMap::new(),
            refused: BTreeMap::new(),
        }
    }
}

/// Copies the values of those directions that were given.
pub(super) fn merge<T>(into: &mut PerDir<T>, from: PerDir<Option<T>>) {
    for (dir, value) in Dir::ALL.into_iter().zip([from.read, from.write, from.trim]) {
        if let Some(value) = value {
            into[dir] = value;
        }
    }
}

/// As [`merge`], for targets that are optional themselves.
pub(super) fn merge_some<T>(into: &mut PerDir<Option<T>>, from: PerDir<Option<T>>) {
    for (dir, value) in Dir::ALL.into_iter().zip([from.read, from.write, from.trim]) {
        if value.is_some() {
            into[dir] = value;
        }
    }
}
