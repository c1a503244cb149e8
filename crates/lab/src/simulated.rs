// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The simulated machine of a run, for the run's results.

use serde::{Deserialize, Serialize};
use sim::machine::costs::Shape;
use sim::scenario::file::Scenario;
use std::path::Path;

/// The machine that a run was simulated on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Simulated {
    /// Its file.
    pub file: String,
    /// Sockets, cores of each, threads of each.
    pub shape: Shape,
    /// CPUs.
    pub cpus: u32,
    /// Share of the CPU time in the measured part that was not idle.
    #[serde(default)]
    pub busy: f64,
    /// Share of the CPU time in the measured part that was spent waiting for locks.
    #[serde(default)]
    pub spin: f64,
    /// Events that were simulated.
    #[serde(default)]
    pub events: u64,
}

impl Simulated {
    /// `simulated machine of 32 CPUs (1 x 16 cores x 2 threads, m.toml): all times are virtual`.
    pub fn text(&self) -> String {
        let Shape { sockets, cores, threads } = self.shape;
        let (file, cpus) = (&self.file, self.cpus);
        format!(
            "simulated machine of {cpus} CPUs ({sockets} x {cores} cores x {threads} threads, {file}): all times are virtual"
        )
    }

    /// One line about what its CPUs did.
    pub fn cpus_text(&self) -> String {
        format!(
            "  its CPUs     : busy={:.1}%, waiting for locks={:.1}%, {} events simulated",
            100.0 * self.busy,
            100.0 * self.spin,
            self.events
        )
    }

    /// The machine that the file at `path` describes, before a run.
    pub(crate) fn of(path: &Path, scenario: &Scenario) -> Simulated {
        let shape = scenario.machine;
        Simulated { file: path.display().to_string(), shape, cpus: shape.cpus(), ..Simulated::default() }
    }
}
