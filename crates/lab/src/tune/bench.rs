// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The backend that a tuning runs its points on: this machine's stack, a kernel's device, a simulated machine.
//!
//! Needs from implementations: a run depends only on its point; no setting of the previous run stays. A point with a value
//! that the target cannot have is rejected, not rounded. Does not: choose, repeat or judge.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::objective::MetricId;
use super::point::{Knob, Point};
use crate::results::RawHistogram;
use crate::stage::StageFacts;

/// How long a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Length {
    /// For screening: what is seen in it is never claimed.
    Short,
    /// For confirmation.
    Full,
}

/// A load in place of the jobs, to find out what the device can do: random reads.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Bytes per I/O.
    pub block_bytes: u32,
    /// I/Os in flight.
    pub iodepth: u32,
    /// Length in seconds.
    pub seconds: f64,
}

/// One run that is asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ask {
    /// What differs from the default.
    pub point: Point,
    /// How long.
    pub length: Length,
    /// In place of the jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
    /// Fresh random number for jobs that want one; the same for runs that are compared with each other.
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
    /// The metrics that were wanted and could be measured, by their names (`JOB.METRIC`); of a [`Load`]: `all.iops`,
    /// `all.bw`, `all.lat`.
    pub values: BTreeMap<String, f64>,
    /// How long the run took, opening and closing included: this is charged to the budget.
    pub seconds: f64,
    /// How long it was by the clock of its jobs, if they run in virtual time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_seconds: Option<f64>,
    /// Where the time went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stages: Option<StageFacts>,
    /// CPU time of the job threads in percent of one CPU each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_cpu_percent: Option<f64>,
    /// I/Os that failed and blocks that did not verify.
    #[serde(default)]
    pub errors: u64,
    /// Its course over time, if that was requested (a [`Load`], or the first run).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moments: Vec<Snapshot>,
    /// Raw latencies, of full runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub histograms: Vec<RawHistogram>,
}

impl Reading {
    /// Returns the duration by the clock of its figures and moments.
    pub fn own_seconds(&self) -> f64 {
        self.virtual_seconds.unwrap_or(self.seconds)
    }

    /// The value of a metric.
    pub fn get(&self, metric: &MetricId) -> Option<f64> {
        self.values.get(&metric.to_string()).copied().filter(|v| v.is_finite() && *v > 0.0)
    }
}

/// Why there is no reading.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BenchError {
    /// The target rejects this point; other points can run.
    #[error("{0}")]
    Refused(String),
    /// It was interrupted.
    #[error("interrupted")]
    Stopped,
    /// No point can run.
    #[error("{0}")]
    Failed(String),
}

/// Where points are run.
pub trait Bench {
    /// Names of the jobs.
    fn jobs(&self) -> Vec<String>;

    /// Returns all knobs, before the caller narrows them.
    fn knobs(&self) -> Vec<Knob>;

    /// Rules of thumb in use for this target, with the sentence people say: what a recommendation has to beat.
    fn rules(&self) -> Vec<(String, Point)>;

    /// Returns the expected seconds of a run, if that is known beforehand.
    fn seconds(&self, length: Length) -> Option<f64>;

    /// Rejects an invalid point without running it.
    fn check(&self, point: &Point) -> Result<(), String>;

    /// Runs a point and measures `wanted`.
    fn run(&mut self, ask: &Ask, wanted: &[MetricId]) -> Result<Reading, BenchError>;
}
