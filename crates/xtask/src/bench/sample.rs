// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The results of one run of one side.

use serde::Serialize;
use serde_json::Value;

use super::job::Figures;

/// One run.
#[derive(Clone, Serialize)]
pub struct Sample {
    /// The side's name.
    pub side: &'static str,
    /// Its figures.
    #[serde(flatten)]
    pub figures: Figures,
    /// User and system seconds of the whole process, start-up included, as the kernel counts.
    pub process_cpu_s: f64,
    /// The `jobs` of its JSON, zeros left out.
    pub jobs: Value,
}
