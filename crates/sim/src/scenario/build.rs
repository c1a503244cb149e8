// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From a row of a scenario to a machine with its disk, and the run of the row's jobs on that machine.

use super::effect::{self, Effect};
use super::file::{Attach, Disk, Row, Scenario, ServerTimes, Settings, key};
use crate::machine::device::DeviceSpec;
use crate::machine::dm::DmSpec;
use crate::machine::guest::{self, GuestsRun, GuestsSpec, ServerSpec, Transaction};
use crate::machine::guest_host::{LockSpec, LogSpec};
use crate::machine::jobs::{self, DiskSpec, JobsError, JobsRun};
use crate::machine::scsi::ScsiSpec;
use crate::machine::service::array::Array;
use crate::machine::service::hdd::Hdd;
use crate::machine::service::{Modelled, Service, Split};
use blk::cpumap::CpuTopology;
use blk::driver::model::Speed;
use blk::id::BLK_MQ_MAX_DEPTH;
use blk::limits::Limits;
use blk::settings::{Mode, QueueConfig, SettingError};
use blk::time::Duration;
use std::sync::atomic::AtomicBool;
use workload::job::Job;

/// The results of a row.
pub struct RowRun {
    /// The results of the jobs.
    pub run: JobsRun,
    /// Settings without effect, each with the reason.
    pub no_effect: Vec<String>,
}

/// A disk for jobs, made from a file and from settings that override the file's.
pub struct Built {
    /// The disk.
    pub disk: DiskSpec,
    /// Settings without effect, each with the reason.
    pub no_effect: Vec<String>,
    /// Settings with an effect, by name, as they were given.
    pub effective: Settings,
}

/// Makes the disk of a row.
///
/// # Errors
/// A setting that the disk or the machine cannot have.
pub fn disk(scenario: &Scenario, row: &Row, seed: u64) -> Result<Built, SettingError> {
    let RowSettings { config, disk: d, no_effect, effective } = asked(scenario, row)?;
    let of_each = d.clone();
    let luns = u64::from(d.luns);
    let legacy = (config.mode == Mode::Sq).then_some(d.kernel);
    let dm = DmSpec { paths: d.paths, hosts: d.hosts, legacy, costs: d.dm };
    let disk = DiskSpec {
        device: DeviceSpec { sectors: d.size_gib << 21, limits: limits(&d) },
        service: Box::new(move |lun| service(&of_each, luns, seed.wrapping_add(u64::from(lun) << 8))),
        luns: d.luns,
        spread: d.spread,
        polled: d.attach == Attach::Model,
        scsi: (d.attach == Attach::Scsi).then(|| ScsiSpec {
            lun_queue_depth: d.lun_queue_depth.unwrap_or(d.queue_depth),
            can_queue: d.queue_depth,
            dm: (d.paths > 0).then_some(dm),
        }),
        layer: row.layer.unwrap_or(scenario.layer),
        driver: d.driver,
        config,
    };
    Ok(Built { disk, no_effect, effective })
}

/// Checks that a machine, its disk and its settings fit each other.
///
/// # Errors
/// The setting that does not fit.
pub fn check(scenario: &Scenario, row: &Row) -> Result<Built, SettingError> {
    let mut built = disk(scenario, row, 0)?;
    // All LUNs are alike, so one is enough.
    built.disk.luns = 1;
    match jobs::idle(scenario.machine, row.costs.unwrap_or(scenario.costs), &built.disk) {
        Ok(_) => Ok(built),
        Err(JobsError::Setting(e)) => Err(e),
        Err(other) => Err(SettingError(other.to_string())),
    }
}

/// Runs the jobs of a row.
///
/// # Errors
/// A setting or a job that does not fit.
pub fn run(scenario: &Scenario, row: &Row, jobs: &[Job], seed: u64) -> Result<RowRun, JobsError> {
    let built = disk(scenario, row, seed)?;
    let costs = row.costs.unwrap_or(scenario.costs);
    let run = jobs::run(scenario.machine, costs, &built.disk, jobs, seed)?;
    Ok(RowRun { run, no_effect: built.no_effect })
}

/// Runs the databases of a row with `users` users each.
///
/// # Errors
/// A number that does not fit.
pub fn run_guests(scenario: &Scenario, row: &Row, users: u32, seed: u64) -> Result<GuestsRun, JobsError> {
    run_guests_for(scenario, row, users, guest::RUN_NS, seed, &AtomicBool::new(false))
}

/// As [`run_guests`], but counts transactions for `run_ns`. If `stop` is set, the run ends soon, without figures.
///
/// # Errors
/// A number that does not fit; [`JobsError::Stopped`].
pub fn run_guests_for(
    scenario: &Scenario,
    row: &Row,
    users: u32,
    run_ns: u64,
    seed: u64,
    stop: &AtomicBool,
) -> Result<GuestsRun, JobsError> {
    let g = scenario.guests.as_ref().expect("a scenario of guests");
    let ns = |us: f64| (us * 1e3) as u64;
    let server = |t: &ServerTimes| ServerSpec {
        serve_ns: ns(t.serve_us),
        wake_ns: ns(t.wake_us),
        awake_ns: ns(t.awake_us.unwrap_or(t.wake_us)),
        poll_ns: ns(t.poll_us),
    };
    let host_cores = scenario.machine.cpus();
    let spec = GuestsSpec {
        vms: row.vms.unwrap_or(1),
        vcpus: g.vcpus,
        queues: g.queues,
        users,
        iothreads: row.iothreads.unwrap_or(0),
        mapping: g.mapping,
        run_ns,
        host_cores,
        near_cores: if g.l3_cores > 0 { g.l3_cores } else { host_cores },
        deep_after_ns: ns(g.deep_after_us),
        log: g.log.map(|log| LogSpec { flush_ns: ns(log.flush_us), commit_ns: ns(log.commit_us) }),
        kick_ns: ns(g.kick_us) as u32,
        inject_ns: ns(g.inject_us),
        main_loop: server(&g.main_loop),
        iothread: server(&g.iothread),
        transaction: Transaction {
            cpu_ns: ns(g.cpu_us),
            reads: g.reads,
            writes: g.writes,
            per_user_ns: ns(g.per_user_us),
            lock: LockSpec { hold_ns: ns(g.lock_us), waiter_ns: ns(g.waiter_us) },
        },
    };
    let disk = scenario.disk.changed(&row.disk);
    let storage = |vm| modelled(&disk, seed.wrapping_add(u64::from(vm)));
    guest::run(&spec, row.costs.unwrap_or(scenario.costs), storage, seed, stop)
}

/// A disk without odd limits: requests of up to 1 MiB in up to 256 pieces.
fn limits(d: &Disk) -> Limits {
    let (rotational, write_cache) = (d.hdd.is_some(), d.hdd.is_some_and(|h| h.write_cache));
    Limits { max_hw_sectors: 2048, max_sectors: 2048, max_segments: 256, rotational, write_cache, ..Limits::default() }
}

/// Makes the service of one of `luns` LUNs. Each LUN has its share of their common caps.
fn service(d: &Disk, luns: u64, seed: u64) -> Box<dyn Service> {
    if let Some(hdd) = &d.hdd {
        return Box::new(Hdd::new(hdd, d.size_gib << 21));
    }
    let share = Disk { iops: d.iops.div_ceil(luns), bw_mb: d.bw_mb / luns as f64, ..d.clone() };
    let one = |n: u64| modelled(&share, seed.wrapping_add(n));
    if let Some(array) = &d.array {
        return Box::new(Array::new(&array.shared(luns), one(1), d.jitter_pct, seed));
    }
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

/// The result of applying the settings of a row.
struct RowSettings {
    config: QueueConfig,
    disk: Disk,
    no_effect: Vec<String>,
    effective: Settings,
}

/// Checks that the disk of a file supports the file's settings.
///
/// # Errors
/// The first setting that does not fit, and its place in the file.
pub fn check_settings(scenario: &Scenario) -> Result<(), (Vec<String>, SettingError)> {
    let mut asked = RowSettings::nothing(scenario, &Row::default());
    for (name, value) in &scenario.settings {
        asked.set(name, &value.text()).map_err(|e| (key(["settings", name]), e))?;
    }
    // With guests, the disk and its block layer belong to the guests.
    let whole = if scenario.guests.is_none() { check(scenario, &Row::default()).map(drop) } else { Ok(()) };
    // Settings that do not fit together are found late. The message then begins with the name of a setting.
    whole.map_err(|e| {
        let at = e.to_string().split_once('=').map(|(name, _)| name.to_owned());
        (key(["settings", at.as_deref().unwrap_or_default()]), e)
    })
}

/// Applies the settings of a row: the scenario's, then the row's.
fn asked(scenario: &Scenario, row: &Row) -> Result<RowSettings, SettingError> {
    let mut asked = RowSettings::nothing(scenario, row);
    let all: Settings = scenario.settings.iter().chain(&row.set).map(|(k, v)| (k.clone(), v.clone())).collect();
    for (name, value) in all {
        if asked.set(&name, &value.text())? {
            asked.effective.insert(name, value);
        }
    }
    let most = asked.disk.hw_queues_max(scenario.machine.cpus());
    if most < scenario.machine.cpus() {
        let queues = asked.config.nr_hw_queues.map_or(most, u32::from);
        if queues > most {
            let text =
                format!("must be at most {most}, the hardware queues of [disk]; lower it or raise disk.hw_queues");
            return Err(SettingError(format!("nr_hw_queues={queues}: {text}")));
        }
        asked.config.nr_hw_queues = Some(queues as u16);
    }
    if asked.config.mode == Mode::Sq {
        asked.config.nr_hw_queues = None;
    }
    asked.config.check()?;
    Ok(asked)
}

impl RowSettings {
    fn nothing(scenario: &Scenario, row: &Row) -> RowSettings {
        let (disk, shape) = (scenario.disk.changed(&row.disk), scenario.machine);
        let mut config = QueueConfig { queue_depth: disk.queue_depth, ..QueueConfig::default() };
        config.topology = CpuTopology::symmetric(shape.sockets, shape.cores, shape.threads);
        if disk.attach == Attach::Mmc {
            // The MMC driver had one queue, whatever SCSI had.
            config.mode = Mode::Sq;
        }
        RowSettings { config, disk, no_effect: Vec::new(), effective: Settings::new() }
    }

    /// Applies a setting. Returns whether it has an effect.
    fn set(&mut self, name: &str, value: &str) -> Result<bool, SettingError> {
        let attach = self.disk.attach;
        match name {
            "nr_cpus" => {
                let text = format!("nr_cpus={value}: [machine] of the file sets the number of CPUs; change it there");
                return Err(SettingError(text));
            }
            "nr_poll_queues" if value != "0" => {
                let text = format!("nr_poll_queues={value}: polled I/O is not simulated; leave it out");
                return Err(SettingError(text));
            }
            "lun_queue_depth" => {
                if attach != Attach::Scsi {
                    let text = "only a disk with attach = \"scsi\" has one; use queue_depth for other disks";
                    return Err(SettingError(format!("lun_queue_depth={value}: {text}")));
                }
                let Some(depth) = value.parse().ok().filter(|n| (1..=BLK_MQ_MAX_DEPTH).contains(n)) else {
                    let text = format!("lun_queue_depth={value}: must be 1..={BLK_MQ_MAX_DEPTH}");
                    return Err(SettingError(text));
                };
                self.disk.lun_queue_depth = Some(depth);
                return Ok(true);
            }
            "read_ahead_kb" => {
                self.config.set(name, value)?;
                self.no_effect.push(format!(
                    "{name}={value}: no effect: read-ahead fills the page cache, which is not simulated"
                ));
                return Ok(false);
            }
            _ => {}
        }
        match effect::of(name, value, attach) {
            None => self.config.set(name, value)?,
            Some(Effect::Sets(setting, to)) => self.config.set(setting, to)?,
            Some(Effect::None(why)) => {
                self.no_effect.push(format!("{name}={value}: {why}"));
                return Ok(false);
            }
        }
        if name == "queue_depth" {
            self.disk.queue_depth = self.config.queue_depth;
        }
        Ok(true)
    }
}
