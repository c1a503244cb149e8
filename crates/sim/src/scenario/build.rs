// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From a row of a scenario to a machine with its disk, and the run of its jobs there.

use super::effect::{self, Effect};
use super::file::{Attach, Disk, Row, Scenario};
use crate::machine::device::DeviceSpec;
use crate::machine::jobs::{self, DiskSpec, JobsError, JobsRun};
use crate::machine::scsi::ScsiSpec;
use crate::machine::service::{Modelled, Service, Split};
use blk::limits::Limits;
use blk::model::Speed;
use blk::settings::{Mode, QueueConfig, SettingError};
use blk::time::Duration;
use workload::job::Job;

/// A row that was run.
pub struct RowRun {
    /// What it came to.
    pub run: JobsRun,
    /// Settings without effect, and why.
    pub no_effect: Vec<String>,
}

/// Runs the jobs of a row.
///
/// # Errors
/// A setting or a job that does not fit.
pub fn run(scenario: &Scenario, row: &Row, jobs: &[Job], seed: u64) -> Result<RowRun, JobsError> {
    let (config, no_effect) = config(scenario, row)?;
    let d = &scenario.disk;
    let spec = DiskSpec {
        device: DeviceSpec { sectors: d.size_gib << 21, limits: limits() },
        service: service(d, seed),
        scsi: (d.attach == Attach::Scsi).then(|| ScsiSpec {
            lun_queue_depth: d.lun_queue_depth.unwrap_or(d.queue_depth),
            can_queue: d.queue_depth,
        }),
        config,
    };
    let costs = row.costs.unwrap_or(scenario.costs);
    let run = jobs::run(scenario.machine, costs, spec, jobs, seed)?;
    Ok(RowRun { run, no_effect })
}

/// A disk without odd limits: requests of up to 1 MiB in up to 256 pieces.
fn limits() -> Limits {
    Limits { max_hw_sectors: 2048, max_sectors: 2048, max_segments: 256, ..Limits::default() }
}

fn service(d: &Disk, seed: u64) -> Box<dyn Service> {
    let us = |us: f64| Duration::from_ns((us * 1e3) as u64);
    let speed = |n| Speed {
        jitter_pct: d.jitter_pct,
        seed: seed.wrapping_add(n),
        iops: d.iops,
        bytes_per_sec: (d.bw_mb * 1e6) as u64,
        burst: Duration::from_ms(d.burst_ms),
        parallel: d.parallel,
    };
    let one = |n| Modelled::new(&speed(n), us(d.read_us), us(d.write_us));
    if d.split { Box::new(Split { read: one(1), write: one(2) }) } else { Box::new(one(1)) }
}

/// The settings of a row: the scenario's, then its own.
fn config(scenario: &Scenario, row: &Row) -> Result<(QueueConfig, Vec<String>), SettingError> {
    let attach = scenario.disk.attach;
    let mut config = QueueConfig { queue_depth: scenario.disk.queue_depth, ..QueueConfig::default() };
    if attach == Attach::Mmc {
        // Its driver had one queue, whatever SCSI had.
        config.mode = Mode::Sq;
    }
    let mut no_effect = Vec::new();
    for (name, value) in scenario.settings.iter().chain(&row.set) {
        let value = value.text();
        match effect::of(name, &value, attach) {
            None => config.set(name, &value)?,
            Some(Effect::Sets(setting, to)) => config.set(setting, to)?,
            Some(Effect::None(why)) => no_effect.push(format!("{name}={value}: {why}")),
        }
    }
    if config.mode == Mode::Sq {
        config.nr_hw_queues = None;
    }
    Ok((config, no_effect))
}
