// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From a row of a scenario to a machine with its disk, and the run of its jobs there.

use super::effect::{self, Effect};
use super::file::{Attach, Disk, Row, Scenario, ServerTimes};
use crate::machine::device::DeviceSpec;
use crate::machine::dm::DmSpec;
use crate::machine::guest::{self, GuestsRun, GuestsSpec, ServerSpec, Transaction};
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
    let d = scenario.disk.changed(&row.disk);
    let of_each = d.clone();
    let luns = u64::from(d.luns);
    let legacy = (config.mode == Mode::Sq).then_some(d.kernel);
    let dm = DmSpec { paths: d.paths, hosts: d.hosts, legacy, costs: d.dm };
    let spec = DiskSpec {
        device: DeviceSpec { sectors: d.size_gib << 21, limits: limits() },
        service: Box::new(move |lun| service(&of_each, luns, seed.wrapping_add(u64::from(lun) << 8))),
        luns: d.luns,
        scsi: (d.attach == Attach::Scsi).then(|| ScsiSpec {
            lun_queue_depth: d.lun_queue_depth.unwrap_or(d.queue_depth),
            can_queue: d.queue_depth,
            dm: (d.paths > 0).then_some(dm),
        }),
        config,
    };
    let costs = row.costs.unwrap_or(scenario.costs);
    let run = jobs::run(scenario.machine, costs, &spec, jobs, seed)?;
    Ok(RowRun { run, no_effect })
}

/// Runs the databases of a row with so many users each.
///
/// # Errors
/// A number that does not fit.
pub fn run_guests(scenario: &Scenario, row: &Row, users: u32, seed: u64) -> Result<GuestsRun, JobsError> {
    let g = scenario.guests.as_ref().expect("a scenario of guests");
    let ns = |us: f64| (us * 1e3) as u64;
    let server =
        |t: &ServerTimes| ServerSpec { serve_ns: ns(t.serve_us), wake_ns: ns(t.wake_us), poll_ns: ns(t.poll_us) };
    let spec = GuestsSpec {
        vms: row.vms.unwrap_or(1),
        vcpus: g.vcpus,
        queues: g.queues,
        users,
        iothreads: row.iothreads.unwrap_or(0),
        host_cores: scenario.machine.cpus(),
        kick_ns: ns(g.kick_us) as u32,
        inject_ns: ns(g.inject_us),
        main_loop: server(&g.main_loop),
        iothread: server(&g.iothread),
        transaction: Transaction {
            cpu_ns: ns(g.cpu_us),
            reads: g.reads,
            writes: g.writes,
            per_user_ns: ns(g.per_user_us),
        },
    };
    let disk = scenario.disk.changed(&row.disk);
    let storage = |vm| modelled(&disk, seed.wrapping_add(u64::from(vm)));
    Ok(guest::run(&spec, row.costs.unwrap_or(scenario.costs), storage, seed)?)
}

/// A disk without odd limits: requests of up to 1 MiB in up to 256 pieces.
fn limits() -> Limits {
    Limits { max_hw_sectors: 2048, max_sectors: 2048, max_segments: 256, ..Limits::default() }
}

/// One of so many LUNs: each has its share of what they can do together.
fn service(d: &Disk, luns: u64, seed: u64) -> Box<dyn Service> {
    let share = Disk { iops: d.iops.div_ceil(luns), bw_mb: d.bw_mb / luns as f64, ..d.clone() };
    let one = |n: u64| modelled(&share, seed.wrapping_add(n));
    if d.split { Box::new(Split { read: one(1), write: one(2) }) } else { Box::new(one(1)) }
}

fn modelled(d: &Disk, seed: u64) -> Modelled {
    let us = |us: f64| Duration::from_ns((us * 1e3) as u64);
    let speed = Speed {
        jitter_pct: d.jitter_pct,
        seed,
        iops: d.iops,
        bytes_per_sec: (d.bw_mb * 1e6) as u64,
        burst: Duration::from_ms(d.burst_ms),
        parallel: d.parallel,
    };
    Modelled::new(&speed, us(d.read_us), us(d.write_us))
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
