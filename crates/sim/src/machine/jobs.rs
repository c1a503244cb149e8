// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A job file on a simulated machine: which thread runs where and when, and the results.
//!
//! Guarantees: threads start as on the host (`stonewall`, `wait_for`, `startdelay`). Threads of jobs without `cpus_allowed`
//! are assigned to the CPUs by round robin, in the order of the file. Does not do: verification, because a simulated machine
//! has no data.

use super::costs::{Costs, Shape};
use super::device::{DeviceSpec, SimDevice};
use super::dm::{Adapters, Paths};
use super::kernel::driver::DriverKind;
use super::kernel::{self, Layer};
use super::scsi::{self, ScsiSpec};
use super::service::Service;
pub use super::station::{OpTimes, Spent, Sums};
pub use super::task::CpuWaits;
use super::world::{CpuTimes, Machine, START_NS};
use blk::bio::MAX_BIOS_PER_SUBMITTER;
use blk::cpumap::CpuTopology;
use blk::id::SECTOR_SIZE;
use blk::settings::{QueueConfig, SettingError};
use blk::stat::{DiskStats, HctxStats};
use blk::time::Instant;
use std::sync::Arc;
use thiserror::Error;
use workload::engine::{FileTarget, JobThread, OffGrid, ThreadId};
use workload::error::SetupError;
use workload::job::{Job, REDO_WRITE_MAX};
use workload::load::Load;
use workload::logs::LogChunk;
use workload::oltp::Oltp;
use workload::schedule::{self, Instance, Schedule, WaitForError};
use workload::stats::JobStats;
use workload::steady::{Counts, SteadyReport};
use workload::together::Together;

/// Why jobs cannot be run.
#[derive(Debug, Error)]
pub enum JobsError {
    /// A setting that the disk or the machine does not have.
    #[error("{0}")]
    Setting(#[from] SettingError),
    /// A job does not fit the disk.
    #[error("{0}")]
    Setup(#[from] SetupError),
    /// A job waits for a job that does not exist.
    #[error("{0}")]
    WaitFor(#[from] WaitForError),
    /// A job needs something that a machine without data does not have.
    #[error("{0}")]
    Unsupported(String),
    /// The run was stopped before it had figures.
    #[error("interrupted")]
    Stopped,
}

/// The disk that the jobs run on.
pub struct DiskSpec {
    /// The device.
    pub device: DeviceSpec,
    /// Makes the service times of each LUN.
    pub service: Box<dyn Fn(u16) -> Box<dyn Service>>,
    /// Number of LUNs, each with its own block layer. A thread's I/O goes to one LUN; threads are distributed over the LUNs.
    pub luns: u16,
    /// Each thread spreads its I/Os in flight over all LUNs.
    pub spread: bool,
    /// The block layer of each LUN; the topology is the machine's.
    pub config: QueueConfig,
    /// The disk has no interrupts: as with the driver `model` in real time, waiting threads poll it.
    pub polled: bool,
    /// The disk is a LUN behind the SCSI midlayer.
    pub scsi: Option<ScsiSpec>,
    /// Whose block layer the machine has.
    pub layer: Layer,
    /// The driver, where there is no SCSI midlayer.
    pub driver: DriverKind,
}

/// The results of jobs on a machine.
pub struct JobsRun {
    /// The threads, in the order of the file.
    pub instances: Vec<Instance>,
    /// The results of each thread; as many as instances.
    pub stats: Vec<JobStats>,
    /// What `steadystate` has found about each thread, or about a group at its last thread.
    pub steady: Vec<Option<SteadyReport>>,
    /// Which threads were started. All are, unless the run was stopped.
    pub started: Vec<bool>,
    /// CPU time of each thread, nanoseconds.
    pub thread_cpu_ns: Vec<u64>,
    /// How long each thread waited for a CPU with I/Os in flight.
    pub cpu_waits: Vec<CpuWaits>,
    /// The disk's counters.
    pub disk: DiskStats,
    /// Where the disk's requests spent their time, by operation.
    pub seen: OpTimes,
    /// Counters of the hardware queues, LUN by LUN.
    pub hctxs: Vec<HctxStats>,
    /// What the CPUs spent their time on.
    pub cpu: CpuTimes,
    /// Virtual duration of the run, nanoseconds.
    pub elapsed_ns: u64,
    /// Number of simulated events.
    pub events: u64,
    /// The observer stopped the run.
    pub stopped: bool,
    /// Settings that were in effect.
    pub config: QueueConfig,
}

/// What an observer sees of jobs while they run.
pub struct View<'a> {
    /// The machine; its disks are those of the jobs, LUN by LUN.
    pub machine: &'a Machine,
    /// The job threads, in the order of the file.
    pub instances: &'a [Instance],
    /// Number of each thread on the machine; `None`: not started yet.
    pub threads: &'a [Option<u32>],
    /// Which threads have ended.
    pub ended: &'a [bool],
    /// Number of LUNs; their disks are numbered from 0.
    pub luns: u16,
    /// Virtual time since the beginning, nanoseconds.
    pub elapsed_ns: u64,
}

/// What an observer requests: when to call it next, or to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextLook {
    /// Call again after so many nanoseconds of virtual time, at least one.
    In(u64),
    /// Do not call again.
    Never,
    /// Stop the jobs: no new I/O is issued, I/Os in flight are waited for.
    Stop,
}

/// Observes jobs while they run. An observer does not change the results, except by [`NextLook::Stop`].
pub trait Watch {
    /// Whether jobs keep their latencies over time.
    fn keeps_slices(&self) -> bool {
        false
    }

    /// Takes what a thread has logged, if [`Watch::keeps_logs`]; `thread` counts in the order of the file.
    fn log(&mut self, _thread: usize, _chunk: LogChunk) {}

    /// Whether jobs keep their per-interval logs.
    fn keeps_logs(&self) -> bool {
        false
    }

    /// Called before anything has run, and after that as its last answer says.
    fn look(&mut self, view: &View<'_>) -> NextLook;
}

/// An observer that is never called.
#[derive(Clone, Copy, Debug)]
pub struct NoObserver;

impl Watch for NoObserver {
    fn look(&mut self, _: &View<'_>) -> NextLook {
        NextLook::Never
    }
}

/// Returns why a simulated machine cannot run a job, and what to do about it.
pub fn refusal(job: &Job) -> Option<&'static str> {
    match job {
        j if j.verify.is_some() => Some("verify: a simulated machine has no data to verify; leave it out"),
        j if j.logs.any() && j.logs.epoch_clock().is_some() => {
            Some("log_unix_epoch, log_alternate_epoch: virtual time has no date; leave them out")
        }
        j if !j.commands.is_empty() => {
            Some("exec_prerun, exec_postrun: a simulated run starts no commands; leave them out")
        }
        j if j.hipri => Some("hipri: polled I/O is not simulated; leave it out"),
        _ => None,
    }
}

/// Makes the machine with its disk, without a job. Rejects settings that the disk or the machine does not have.
///
/// # Errors
/// A setting that does not fit the disk or the machine.
pub fn idle(shape: Shape, costs: Costs, spec: &DiskSpec) -> Result<Machine, JobsError> {
    build(shape, costs, spec, 64)
}

/// Runs jobs on a machine with one disk.
///
/// # Errors
/// A setting or a job that does not fit.
pub fn run(shape: Shape, costs: Costs, spec: &DiskSpec, jobs: &[Job], entropy: u64) -> Result<JobsRun, JobsError> {
    run_watched(shape, costs, spec, jobs, entropy, &mut NoObserver)
}

/// The same, with an observer.
///
/// # Errors
/// The errors of [`run`].
pub fn run_watched(
    shape: Shape,
    costs: Costs,
    spec: &DiskSpec,
    jobs: &[Job],
    entropy: u64,
    watch: &mut dyn Watch,
) -> Result<JobsRun, JobsError> {
    if let Some((job, why)) = jobs.iter().find_map(|j| Some((j, refusal(j)?))) {
        return Err(JobsError::Unsupported(format!("{why} (job '{}', line {})", job.name, job.line)));
    }
    let mut machine = build(shape, costs, spec, bios_needed(jobs, spec)?)?;
    let bytes = spec.device.sectors << 9;
    let instances = schedule::plan(jobs, entropy)?;
    instances.iter().try_for_each(|i| check_sectors(&jobs[i.job], i, bytes, entropy))?;
    let mut together = Together::new(jobs, &instances);
    let mut schedule = Schedule::new(instances.clone());
    let mut tasks: Vec<Option<u32>> = vec![None; instances.len()];
    let (mut ended, mut stopped) = (vec![false; instances.len()], false);
    let (mut of_task, mut began) = (Vec::new(), vec![0; instances.len()]);
    let mut look_at = START_NS - 1;
    while !schedule.is_done() {
        let now = Instant::from_ns(machine.now_ns());
        let steady = together.look(now, &|i| counts(&machine, tasks[i].filter(|_| !ended[i])?, began[i]), &instances);
        end_early(&steady, &mut schedule, &tasks, &mut machine);
        for index in together.start_ready(&mut schedule, now) {
            let i = &instances[index];
            let mut load = load(&jobs[i.job], i, bytes, entropy, watch)?;
            if let Some(share) = together.flow(index) {
                load.join_flow(&jobs[i.job], share);
            }
            let task = start(&mut machine, &jobs[i.job], i, load, spec)?;
            tasks[index] = Some(task);
            began[index] = now.as_ns() + jobs[i.job].ramp_time_ns;
            of_task.resize(task as usize + 1, 0);
            of_task[task as usize] = index;
        }
        let start_at =
            schedule.next_start().into_iter().chain(together.next_look()).min().map_or(u64::MAX, Instant::as_ns);
        match machine.run(start_at.min(look_at)) {
            Some(task) => {
                let index = of_task[task as usize];
                ended[index] = true;
                schedule.ended(index);
                let others = together.ended(index, machine.stats(task).first_error != 0, &schedule);
                end_early(&others, &mut schedule, &tasks, &mut machine);
            }
            None if look_at < start_at => {
                let elapsed_ns = look_at.saturating_sub(START_NS);
                let (threads, luns) = (&tasks[..], spec.luns);
                let view = View { machine: &machine, instances: &instances, threads, ended: &ended, luns, elapsed_ns };
                let next = watch.look(&view);
                take_logs(&mut machine, &tasks, watch, false);
                match next {
                    NextLook::In(ns) => look_at += ns.max(1),
                    NextLook::Never => look_at = u64::MAX,
                    NextLook::Stop => {
                        (stopped, look_at) = (true, u64::MAX);
                        machine.stop();
                        schedule.cancel();
                    }
                }
            }
            None => machine.sleep_until(start_at),
        }
    }
    take_logs(&mut machine, &tasks, watch, true);
    let steady = (0..instances.len()).map(|i| together.steady(i)).collect();
    Ok(JobsRun { steady, ..conclude(machine, spec.luns, instances, &tasks, stopped) })
}

/// Rejects a job that has I/O in parts of sectors.
fn check_sectors(job: &Job, i: &Instance, bytes: u64, entropy: u64) -> Result<(), JobsError> {
    let shares = job.file_shares(entropy, i.number, |_| 0);
    let off_grid = |share| OffGrid::of(job, i.instance, FileTarget { bytes, share }, SECTOR_SIZE);
    let Some(OffGrid { option, value }) = shares.into_iter().find_map(off_grid) else { return Ok(()) };
    let place = job.place();
    let text = format!("{option}={value}: a simulated disk has whole sectors of {SECTOR_SIZE}; round it ({place})");
    Err(JobsError::Unsupported(text))
}

/// Ends instances that run, and cancels the start of those that have not started.
fn end_early(which: &[usize], schedule: &mut Schedule, tasks: &[Option<u32>], machine: &mut Machine) {
    schedule.cancel_those(which);
    which.iter().filter_map(|&i| tasks[i]).for_each(|task| machine.stop_task(task));
}

/// What `steadystate` is judged by, of a thread whose measured part began at `began`.
fn counts(machine: &Machine, task: u32, began: u64) -> Option<Counts> {
    let stats = machine.stats(task);
    (!machine.is_ramping(task)).then(|| Counts {
        ran_ns: machine.now_ns().saturating_sub(began),
        ios: stats.total_ios(),
        bytes: stats.total_bytes(),
        clat_ns: stats.total_clat_ns(),
    })
}

/// Passes on what the threads have logged.
fn take_logs(machine: &mut Machine, tasks: &[Option<u32>], watch: &mut dyn Watch, all: bool) {
    if !watch.keeps_logs() {
        return;
    }
    for (thread, task) in tasks.iter().enumerate() {
        if let Some(chunk) = task.and_then(|task| machine.take_log(task, all)) {
            watch.log(thread, chunk);
        }
    }
}

/// Starts a thread on its CPU, with one of the LUNs as its disk.
fn start(
    machine: &mut Machine,
    job: &Job,
    i: &Instance,
    load: Box<dyn Load>,
    spec: &DiskSpec,
) -> Result<u32, JobsError> {
    let cpus = machine.shape().cpus();
    let cpu = match &job.cpus_allowed {
        Some(cpus) => cpus[i.instance as usize % cpus.len()],
        None => (i.number - 1) % cpus,
    };
    if cpu >= cpus {
        let most = cpus - 1;
        let text = format!("cpus_allowed={cpu}: the machine has the CPUs 0 to {most} (job '{}')", job.name);
        return Err(JobsError::Unsupported(text));
    }
    let disks = match load.volumes().len() {
        1 if spec.spread => (0..spec.luns).collect(),
        n => vec![((i.number - 1) % u32::from(spec.luns)) as u16; n],
    };
    let task = machine.add_task(cpu, load, job.iodepth_batch_submit, &disks)?;
    machine.set_weight(task, job.weight)?;
    if job.cpus_allowed.is_none() {
        machine.let_float(task);
    }
    Ok(task)
}

/// Collects the results of all threads.
fn conclude(machine: Machine, luns: u16, instances: Vec<Instance>, tasks: &[Option<u32>], stopped: bool) -> JobsRun {
    let (mut disk, mut seen, mut hctxs) = (DiskStats::default(), OpTimes::default(), Vec::new());
    for lun in 0..luns {
        disk.add(&machine.disk(lun).stats());
        seen.add(&machine.seen(lun));
        hctxs.extend(machine.disk(lun).hctx_stats());
    }
    let config = machine.disk(0).config();
    let (cpu, events) = (machine.cpu_times(), machine.events());
    let elapsed_ns = machine.now_ns() - START_NS;
    let thread_cpu_ns = tasks.iter().map(|t| t.map_or(0, |t| machine.thread_cpu_ns(t))).collect();
    let cpu_waits = tasks.iter().map(|t| t.map_or(CpuWaits::default(), |t| machine.cpu_waits(t))).collect();
    let mut all: Vec<Option<JobStats>> = machine.into_stats().into_iter().map(Some).collect();
    let started = tasks.iter().map(Option::is_some).collect();
    let stats = tasks.iter().map(|task| task.and_then(|t| all[t as usize].take()).unwrap_or_default()).collect();
    JobsRun {
        instances,
        stats,
        steady: Vec::new(),
        started,
        thread_cpu_ns,
        cpu_waits,
        disk,
        seen,
        hctxs,
        cpu,
        elapsed_ns,
        events,
        stopped,
        config,
    }
}

/// Makes the machine with its disk.
fn build(shape: Shape, costs: Costs, spec: &DiskSpec, bios_per_submitter: u32) -> Result<Machine, JobsError> {
    let mut machine = Machine::new(shape, costs);
    let mut config = spec.config.clone();
    config.topology = CpuTopology::symmetric(shape.sockets, shape.cores, shape.threads);
    config.bios_per_submitter = bios_per_submitter;
    config.custom_elevators = kernel::elevators(spec.layer);
    let adapters = Adapters::new(spec.scsi.and_then(|s| s.dm).map_or(1, |dm| dm.hosts));
    for lun in 0..spec.luns {
        let (service, config) = ((spec.service)(lun), config.clone());
        match &spec.scsi {
            None => {
                let driver = if spec.layer.is_kernel() { spec.driver } else { DriverKind::Other };
                let device = if spec.polled {
                    SimDevice::polled(spec.device, costs.path, service)
                } else {
                    SimDevice::new(spec.device, costs.path, service, driver)
                };
                let station = device.station();
                let disk = machine.add_disk(station, Arc::new(device), config)?;
                if spec.polled {
                    machine.let_waiters_poll(disk);
                }
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
    Ok(machine)
}

/// Minimum and maximum number of bio slots of a thread: memory is allocated for all of them.
const BIOS_MIN: u64 = 64;
const BIOS_MAX: u64 = if MAX_BIOS_PER_SUBMITTER < 1 << 20 { MAX_BIOS_PER_SUBMITTER as u64 } else { 1 << 20 };

/// Returns the bio slots that a thread needs: its depth, times the pieces into which an I/O may be split.
fn bios_needed(jobs: &[Job], spec: &DiskSpec) -> Result<u32, JobsError> {
    let limits = &spec.device.limits;
    let most = spec.config.max_sectors_kb.map_or(limits.max_sectors, |kb| (kb * 2).min(limits.max_hw_sectors));
    let need = |job: &Job| {
        let pieces = |bytes: u64| bytes.div_ceil(u64::from(most.max(8)) << 9) + 1;
        let redo = job.oltp.as_ref().map_or(0, |_| pieces(REDO_WRITE_MAX.into()));
        (u64::from(job.iodepth) + 1) * pieces(job.max_block_bytes()) + redo
    };
    for job in jobs {
        let (need, name, line) = (need(job), &job.name, job.line);
        if need > BIOS_MAX {
            let (iodepth, bytes, kb) = (job.iodepth, job.max_block_bytes(), most.max(8) / 2);
            return Err(JobsError::Unsupported(format!(
                "iodepth={iodepth}: blocks of {bytes} bytes split into pieces of {kb} KiB (max_sectors_kb) put {need} \
                 pieces in flight per thread; at most {BIOS_MAX} are simulated: lower iodepth or bs, or raise \
                 max_sectors_kb (job '{name}', line {line})"
            )));
        }
    }
    Ok(jobs.iter().map(need).max().unwrap_or(1).max(BIOS_MIN) as u32)
}

fn load(job: &Job, i: &Instance, bytes: u64, entropy: u64, watch: &dyn Watch) -> Result<Box<dyn Load>, JobsError> {
    let id = ThreadId { instance: i.instance, number: i.number, entropy };
    if job.oltp.is_some() {
        return Ok(Box::new(Oltp::new(job, id, bytes, None)?));
    }
    let mut thread = JobThread::on_one_target(job, id, bytes)?;
    if watch.keeps_slices() {
        thread.keep_slices();
    }
    if watch.keeps_logs() {
        thread.keep_logs();
    }
    Ok(Box::new(thread))
}
