// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A job while its options are being read: the [`Job`] so far, and options that only `resolve` can decide.
//!
//! Guarantees: options applied in order leave the draft as fio would (the last one wins; `a,,c` keeps what was there for
//! the empty part). Needs from callers: `resolve` turns it into a [`Job`]. Does not do: checks between options.

use std::collections::BTreeMap;

use super::error::{JobError, Origin};
use super::oltp::OltpJob;
use super::spec::Job;
use super::units::Units;
use super::values::{Dir, Pattern, PerDir, SizeWeight};

/// Where an option that is in force was given.
#[derive(Clone, Debug)]
pub(super) struct OptionOrigin {
    pub origin: Origin,
    /// Position in reading order, to print errors in that order.
    pub seq: u32,
    /// `key=value` as typed.
    pub typed: String,
}

/// An unfinished job.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub job: Job,
    pub units: Units,
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
    pub allrandrepeat: bool,
    pub buffer_pattern: Option<Pattern>,
    /// `workload=oltp`.
    pub is_oltp: bool,
    pub oltp: OltpJob,
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
            allrandrepeat: false,
            buffer_pattern: None,
            is_oltp: false,
            oltp: OltpJob::default(),
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
