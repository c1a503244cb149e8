// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A job file on a simulated machine: which thread runs where and when, and what it all came to.
//!
//! Guarantees: threads start as on the host (`stonewall`, `wait_for`, `startdelay`); a job without `cpus_allowed` has its threads
//! dealt to the CPUs one by one, in the order of the file. Does not do: verification, which a machine without data cannot.

use super::costs::{Costs, Shape};
use super::device::{DeviceSpec, SimDevice};
use super::dm::{Adapters, Paths};
use super::scsi::{self, ScsiSpec};
use super::service::Service;
use super::station::Seen;
use super::world::{CpuTimes, Machine};
use blk::cpumap::CpuTopology;
use blk::settings::{QueueConfig, SettingError};
use blk::stat::{DiskStats, HctxStats};
use blk::time::Instant;
use std::sync::Arc;
use thiserror::Error;
use workload::engine::{JobThread, ThreadId};
use workload::error::SetupError;
use workload::job::Job;
use workload::load::Load;
use workload::oltp::Oltp;
use workload::schedule::{self, Instance, Schedule, WaitForError};
use workload::stats::JobStats;

/// Why jobs cannot be run.
#[derive(Debug, Error)]
pub enum JobsError {
    /// A setting that the disk or the machine does not have.
    #[error("{0}")]
    Setting(#[from] SettingError),
    /// A job does not fit the disk.
    #[error("{0}")]
    Setup(#[from] SetupError),
    /// A job waits for one that is not there.
    #[error("{0}")]
    WaitFor(#[from] WaitForError),
    /// A job asks for what a machine without data does not have.
    #[error("{0}")]
    Unsupported(String),
}

/// The disk that the jobs run on.
pub struct DiskSpec {
    /// What it is.
    pub device: DeviceSpec,
    /// How fast each of them is.
    pub service: Box<dyn Fn(u16) -> Box<dyn Service>>,
    /// So many of them, each with a block layer of its own: a thread's I/O goes to one, the threads are dealt to them.
    pub luns: u16,
    /// The block layer of each; the topology is the machine's.
    pub config: QueueConfig,
    /// It is a LUN behind the SCSI midlayer.
    pub scsi: Option<ScsiSpec>,
}

/// What jobs came to on a machine.
pub struct JobsRun {
    /// The threads, in the order of the file.
    pub instances: Vec<Instance>,
    /// What each measured; as many as instances.
    pub stats: Vec<JobStats>,
    /// The disk's counters.
    pub disk: DiskStats,
    /// Where its requests spent their time, by operation.
    pub seen: Seen,
    /// Of its hardware queues, LUN by LUN.
    pub hctxs: Vec<HctxStats>,
    /// What the CPUs did.
    pub cpu: CpuTimes,
    /// Virtual time it took, nanoseconds.
    pub elapsed_ns: u64,
    /// Events it took.
    pub events: u64,
    /// Settings that were in effect.
    pub config: QueueConfig,
}

/// Runs jobs on a machine with one disk.
///
/// # Errors
/// What does not fit: a setting, a job.
pub fn run(shape: Shape, costs: Costs, spec: &DiskSpec, jobs: &[Job], entropy: u64) -> Result<JobsRun, JobsError> {
    let mut machine = Machine::new(shape, costs);
    let bytes = spec.device.sectors << 9;
    let mut config = spec.config.clone();
    config.topology = CpuTopology::symmetric(shape.sockets, shape.cores, shape.threads);
    config.bios_per_submitter = jobs.iter().map(|j| j.iodepth * 4).max().unwrap_or(1).clamp(64, 4096);
    let adapters = Adapters::new(spec.scsi.and_then(|s| s.dm).map_or(1, |dm| dm.hosts));
    for lun in 0..spec.luns {
        let (service, config) = ((spec.service)(lun), config.clone());
        match &spec.scsi {
            None => {
                let device = SimDevice::new(spec.device, costs.path, service);
                let station = device.station();
                machine.add_disk(station, Arc::new(device), config)?;
            }
            Some(scsi) => {
                let queues = config.nr_hw_queues.unwrap_or(0);
                let paths = scsi.dm.map(|dm| Paths::new(dm, costs.path, adapters.clone(), lun));
                let (disk, station) = scsi::lun(spec.device, scsi, queues, costs.path, service, paths)?;
                let config = QueueConfig { queue_depth: scsi.can_queue, ..config };
                machine.add_disk(station, Arc::new(disk), config)?;
            }
        }
    }
    let instances = schedule::plan(jobs, entropy)?;
    let mut schedule = Schedule::new(instances.clone());
    let mut tasks: Vec<Option<u32>> = vec![None; instances.len()];
    let mut of_task = Vec::new();
    while !schedule.is_done() {
        for index in schedule.start_ready(Instant::from_ns(machine.now_ns())) {
            let i = &instances[index];
            let job = &jobs[i.job];
            let cpu = match &job.cpus_allowed {
                Some(cpus) => cpus[i.instance as usize % cpus.len()],
                None => (i.number - 1) % shape.cpus(),
            };
            if cpu >= shape.cpus() {
                let most = shape.cpus() - 1;
                let text = format!("cpus_allowed={cpu}: the machine has the CPUs 0 to {most} (job '{}')", job.name);
                return Err(JobsError::Unsupported(text));
            }
            let load = load(job, i, bytes, entropy)?;
            let disks = vec![((i.number - 1) % u32::from(spec.luns)) as u16; load.volumes().len()];
            let task = machine.add_task(cpu, load, job.iodepth_batch_submit, &disks)?;
            if job.cpus_allowed.is_none() {
                machine.let_float(task);
            }
            tasks[index] = Some(task);
            of_task.resize(task as usize + 1, 0);
            of_task[task as usize] = index;
        }
        let until = schedule.next_start().map_or(u64::MAX, Instant::as_ns);
        match machine.run(until) {
            Some(task) => schedule.ended(of_task[task as usize]),
            None => machine.sleep_until(until),
        }
    }
    let (mut disk, mut seen, mut hctxs) = (DiskStats::default(), Seen::default(), Vec::new());
    for lun in 0..spec.luns {
        disk.add(&machine.disk(lun).stats());
        seen.add(&machine.seen(lun));
        hctxs.extend(machine.disk(lun).hctx_stats());
    }
    let config = machine.disk(0).config();
    let (cpu, events) = (machine.cpu_times(), machine.events());
    let elapsed_ns = machine.now_ns() - super::world::START_NS;
    let mut all: Vec<Option<JobStats>> = machine.into_stats().into_iter().map(Some).collect();
    let mut take = |task: Option<u32>| all[task.expect("all have run") as usize].take().expect("one each");
    let stats = tasks.into_iter().map(&mut take).collect();
    Ok(JobsRun { instances, stats, disk, seen, hctxs, cpu, elapsed_ns, events, config })
}

fn load(job: &Job, i: &Instance, bytes: u64, entropy: u64) -> Result<Box<dyn Load>, JobsError> {
    let id = ThreadId { instance: i.instance, number: i.number, entropy };
    if job.oltp.is_some() {
        return Ok(Box::new(Oltp::new(job, id, bytes, None)?));
    }
    Ok(Box::new(JobThread::new(job, id, bytes)?))
}
