// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What one run of one side gave.

use serde::Serialize;
use serde_json::Value;

use super::job::Figures;

/// One run.
#[derive(Clone, Serialize)]
pub struct Sample {
    /// The side's name.
    pub side: &'static str,
    /// What it reached.
    #[serde(flatten)]
    pub figures: Figures,
    /// User and system seconds of the whole process, start-up included, as the kernel counts.
    pub process_cpu_s: f64,
    /// The `jobs` of its JSON, zeros left out.
    pub jobs: Value,
}
