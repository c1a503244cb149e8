// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows that compare the simulator with the machine: the same jobs on the same device, in real time and in virtual time.
//!
//! Guarantees and form: see [`super`]. The figures that decided the published experiment 2 are judged: within 5 percent.

use super::row::{Agrees, Goal, Metric, Need, Program, Row, Side};

/// In the order of a full run.
pub const ROWS: &[Row] = &[
    row("model-agrees-1", "driver model and simulated device, jobs of the storvsc patch, one hardware queue", &SIDES_1),
    row("model-agrees-2", "the same, two hardware queues", &SIDES_2),
];

const SIDES_1: [Side; 2] = sides(1);
const SIDES_2: [Side; 2] = sides(2);

const fn row(name: &'static str, title: &'static str, sides: &'static [Side]) -> Row {
    Row { name, title, cpus: 2, sides, turns: false, goals: GOALS }
}

const fn sides(queues: u16) -> [Side; 2] {
    [side("simulated", queues, true), side("real", queues, false)]
}

const fn side(name: &'static str, queues: u16, is_simulated: bool) -> Side {
    Side { name, program: Program::Agrees(Agrees { is_simulated, queues }), job: "", extra: "", args: &[] }
}

const GOALS: &[Goal] = &[within(Metric::ReadMb), within(Metric::WriteIops)];

const fn within(metric: Metric) -> Goal {
    Goal { metric, of: "simulated", to: Some("real"), need: Need::Within(0.05) }
}
