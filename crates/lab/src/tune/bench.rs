// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The backend that a tuning runs its points on: this machine's stack, a kernel's device, a simulated machine.
//!
//! Needs from implementations: a run depends only on its point; no setting of the previous run stays. A point with a value
//! that the target cannot have is rejected, not rounded. Does not: choose, repeat or judge.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::no_effect::LeftOut;
use super::objective::MetricId;
use super::point::{Knob, Point};
use crate::results::RawHistogram;
use crate::stage::StageFacts;

/// The length of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Length {
    /// For screening. Its figures are never claimed as results.
    Short,
    /// For confirmation.
    Full,
}

/// Random reads in place of the jobs, to find the limits of the device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Bytes per I/O.
    pub block_bytes: u32,
    /// I/Os in flight.
    pub iodepth: u32,
    /// Length in seconds.
    pub seconds: f64,
}

/// A requested run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ask {
    /// The differences from the default.
    pub point: Point,
    /// The length.
    pub length: Length,
    /// A load that replaces the jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
    /// Random number for jobs without a fixed seed; the same for runs that are compared with each other.
    pub entropy: u64,
}

/// The state of a run at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Seconds since the run began.
    pub at: f64,
    /// I/Os completed until then.
    pub ios: u64,
    /// Bytes moved until then.
    pub bytes: u64,
}

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// The requested metrics that could be measured, by name (`JOB.METRIC`). For a [`Load`]: `all.iops`, `all.bw`, `all.lat`.
    pub values: BTreeMap<String, f64>,
    /// Duration of the run including opening and closing, which is charged to the budget.
    pub seconds: f64,
    /// Duration by the clock of the jobs, if they run in virtual time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_seconds: Option<f64>,
    /// Where the time went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stages: Option<StageFacts>,
    /// CPU time of the job threads in percent of one CPU each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_cpu_percent: Option<f64>,
    /// I/Os that failed, plus blocks that did not verify.
    #[serde(default)]
    pub errors: u64,
    /// The progress over time, if it was requested (a [`Load`], or the first run).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moments: Vec<Snapshot>,
    /// Raw latencies, only of full runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub histograms: Vec<RawHistogram>,
}

impl Reading {
    /// Returns the duration by the clock that its figures and moments use.
    pub fn own_seconds(&self) -> f64 {
        self.virtual_seconds.unwrap_or(self.seconds)
    }

    /// The value of a metric.
    pub fn get(&self, metric: &MetricId) -> Option<f64> {
        self.values.get(&metric.to_string()).copied().filter(|v| v.is_finite() && *v > 0.0)
    }
}

/// The reason for a missing reading.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BenchError {
    /// The target rejects this point; other points can run.
    #[error("{0}")]
    Refused(String),
    /// The run was interrupted.
    #[error("interrupted")]
    Stopped,
    /// No point can run.
    #[error("{0}")]
    Failed(String),
}

/// The backend that runs points.
pub trait Bench {
    /// Names of the jobs.
    fn jobs(&self) -> Vec<String>;

    /// Returns all knobs, before the caller narrows them.
    fn knobs(&self) -> Vec<Knob>;

    /// Returns the knobs that cannot matter for the load, with the reasons. They are not among [`Bench::knobs`].
    fn without_effect(&self) -> LeftOut {
        LeftOut::new()
    }

    /// Returns the target's settings in effect today.
    fn today(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Returns the rules of thumb in use for this target, each with its usual wording. A recommendation has to beat them.
    fn rules(&self) -> Vec<(String, Point)>;

    /// Returns the expected seconds of a run, if that is known beforehand.
    fn seconds(&self, length: Length) -> Option<f64>;

    /// Rejects an invalid point without running it.
    fn check(&self, point: &Point) -> Result<(), String>;

    /// Runs a point and measures `wanted`.
    fn run(&mut self, ask: &Ask, wanted: &[MetricId]) -> Result<Reading, BenchError>;
}
