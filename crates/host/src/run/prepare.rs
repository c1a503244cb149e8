// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From a job file to disks and job threads that are ready to run.
//!
//! Everything that can be refused is refused here, before the first I/O. A file is created or extended only if the user named it: as
//! `filename`, by fio's naming rule, or as target. Nothing else is written.

use super::checkpoint::Live;
use super::kernel::{self, KernelTarget};
use super::layout::{guard_files, holes, make_files, needs, share_locks};
use super::open::{Opened, check_limits};
use super::plain::{PlainDisk, Submitting};
use super::settings::{RunSettings, probe};
use super::wide::WideVolume;
use super::worker::{Worker, WorkerDevice, WorkerLoad, slot_bytes};
use crate::disk::Disk;
use crate::driver::HostDriver;
use crate::driver::null::NullOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::image_lock::ImageLocks;
use crate::kernel::SettingsGuard;
use crate::mem::{BufferPool, Regions};
use crate::secrets::without_secrets;
use crate::target::{TargetSpec, TargetWarning, has_kind};
use blk::bio::MAX_BIOS_PER_SUBMITTER;
use blk::cpumap::HctxType;
use blk::id::CpuId;
use blk::limits::Limits;
use blk::settings::QueueConfig;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use workload::engine::{JobThread, ThreadId};
use workload::job::{CpusPolicy, Extent, Job, REDO_WRITE_MAX, Submit};
use workload::load::{Load, Volume};
use workload::oltp::Oltp;
use workload::schedule::{self, Instance};

/// What a run is to be made of, besides the jobs.
pub struct RunPlan<'a> {
    /// Target of every job, instead of its `filename`.
    pub target: Option<&'a str>,
    /// Settings of every disk, an unset CPU count being this host's, and of the run ([`RUN_SETTINGS`](super::RUN_SETTINGS)).
    pub settings: &'a [(String, String)],
    /// Called on file creation: path, bytes done, bytes in all. May interrupt it.
    pub laying_out: &'a mut dyn FnMut(&Path, u64, u64) -> ControlFlow<()>,
    /// Ends the run early when set.
    pub stop: Arc<AtomicBool>,
    /// Fresh random number for jobs that want one (`randrepeat=0`).
    pub entropy: u64,
    /// Also allows a kernel device that is in use, or that has a signature which a job overwrites. Only for targets `kernel:/dev/X`.
    pub force: bool,
}

/// Disks and threads, ready.
pub struct Prepared {
    pub(super) workers: Vec<Worker>,
    pub(super) instances: Vec<Instance>,
    /// One per device, with its name: the target's, or `TARGET#N` for device N of a striped target.
    pub disks: Vec<(String, Arc<Disk>)>,
    /// The distinct targets.
    pub targets: Vec<RunTarget>,
    /// The kernel's devices, instead of `disks` and `targets`, in a run on those.
    pub kernel: Vec<KernelTarget>,
    /// Guards that restore the settings of the kernel's devices when the run ends.
    pub(super) kept: Vec<SettingsGuard>,
    /// Warnings for the user: what differs from the request.
    pub warnings: Vec<TargetWarning>,
    /// Some job has a `ramp_time`.
    pub(super) ramps: bool,
    pub(super) stop: Arc<AtomicBool>,
    /// Dropped after the disks.
    pub(super) locks: ImageLocks,
}

/// A target of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunTarget {
    /// As the user named it.
    pub name: String,
    /// Its devices among [`Prepared::disks`]: one, or those it is striped over.
    pub disks: Range<usize>,
}

impl Prepared {
    /// The job threads, in the order of the file.
    pub fn instances(&self) -> &[Instance] {
        &self.instances
    }

    /// Makes every thread trace the life of its requests, up to `events` events of 32 bytes each at each device. Later events are only
    /// counted ([`ThreadEnd::traces`](super::ThreadEnd::traces)). 0 = no trace.
    pub fn trace(&mut self, events: usize) {
        // The kernel's requests are not ours to trace.
        self.workers.iter_mut().for_each(|w| w.submitting.trace_events = events);
    }

    /// Makes every job keep its latencies over time ([`workload::stats::JobStats::slices`]); transaction loops have none.
    pub fn keep_slices(&mut self) {
        self.workers.iter_mut().for_each(|w| w.load.load_mut().keep_slices());
    }
}

/// One target and the threads that use it.
pub(super) struct Target {
    pub(super) text: String,
    pub(super) spec: TargetSpec,
    pub(super) users: Vec<User>,
}

/// A thread that uses a target, and the volume that the target is for it.
pub(super) struct User {
    pub(super) instance: Instance,
    /// 0: its data; 1: its redo log, if that is elsewhere.
    pub(super) volume: usize,
}

/// The disks of a target that was started.
struct Started {
    opened: Opened,
    disks: Vec<Arc<Disk>>,
    /// Number in the run of the target's first disk.
    first: usize,
}

/// Checks the plan, creates missing files, opens and starts the disks and makes the threads.
pub fn prepare(jobs: &[Job], plan: RunPlan<'_>) -> Result<Prepared> {
    let instances = schedule::plan(jobs, plan.entropy).map_err(|e| Error::usage(e.to_string()))?;
    let targets = targets(jobs, &instances, plan.target)?;
    if targets.iter().any(kernel::is_kernel) {
        return kernel::prepare(jobs, plan, instances, &targets);
    }
    let settings = settings_of(&plan)?;
    let shared = settings.shared()?;
    let config = settings.disk;
    for t in &targets {
        check_limits(&t.text, &t.spec, plan.settings)?;
    }
    let regions = Arc::new(Regions::new());
    let mut prepared = Prepared {
        workers: Vec::new(),
        instances,
        disks: Vec::new(),
        targets: Vec::new(),
        kernel: Vec::new(),
        kept: Vec::new(),
        warnings: Vec::new(),
        ramps: jobs.iter().any(|j| j.ramp_time_ns > 0),
        stop: Arc::clone(&plan.stop),
        locks: ImageLocks::default(),
    };
    let (mut started, mut numbered): (Vec<Started>, Vec<(u32, Worker)>) = (Vec::new(), Vec::new());
    for target in &targets {
        let needs = needs(jobs, target, config.read_ahead_kb);
        make_files(jobs, target, &needs, &mut prepared.locks, plan.laying_out)?;
        guard_files(jobs, target, &needs)?;
        prepared.warnings.extend(holes(jobs, target)?.into_iter().map(TargetWarning::new));
        let mut opened = Opened::new(&target.text, &target.spec, &needs, &regions)?;
        share_locks(&opened.drivers, &needs, &prepared.locks)?;
        prepared.warnings.append(&mut opened.warnings);
        let made = threads(jobs, target, &opened, plan.entropy)?;
        let volumes = made.iter().map(|(_, t)| t.volumes()[0]).chain(loops_of(jobs, target));
        let mut config = config.clone();
        config.bios_per_submitter = bios_needed(volumes, opened.drivers[0].as_ref(), &config);
        let disks = opened.start(&config, shared.as_ref())?;
        check_polling(jobs, target, &disks)?;
        let start = Started { opened, disks, first: prepared.disks.len() };
        for (user, thread) in made {
            let worker = worker(&jobs[user.job], &user, thread, &start, &regions, &plan.stop)?;
            numbered.push((user.number, worker));
        }
        let shown = without_secrets(&target.text);
        prepared.disks.extend(start.disks.iter().enumerate().map(|(i, disk)| {
            let name = if start.opened.map.is_some() { format!("{shown}#{i}") } else { shown.clone() };
            (name, Arc::clone(disk))
        }));
        let disks = start.first..prepared.disks.len();
        prepared.targets.push(RunTarget { name: shown, disks });
        started.push(start);
    }
    for instance in prepared.instances.iter().filter(|i| jobs[i.job].oltp.is_some()) {
        let job = &jobs[instance.job];
        let of = |volume| {
            let is_its = |u: &User| u.instance.number == instance.number && u.volume == volume;
            targets.iter().position(|t| t.users.iter().any(is_its)).map(|t| &started[t])
        };
        let data = of(0).expect("every instance has a target");
        let worker = oltp_worker(job, instance, [data, of(1).unwrap_or(data)], of(1).is_some(), &regions, &plan)?;
        numbered.push((instance.number, worker));
    }
    numbered.sort_by_key(|(number, _)| *number);
    prepared.workers = numbered.into_iter().map(|(_, w)| w).collect();
    introduce(&mut prepared.workers);
    Ok(prepared)
}

/// The settings of a run on our block layer.
fn settings_of(plan: &RunPlan<'_>) -> Result<RunSettings> {
    if plan.force {
        let text = "--force: is for devices of the kernel (kernel:/dev/X); a job's allow_mounted_write=1 is for others";
        return Err(Error::usage(text));
    }
    let settings = RunSettings::read(plan.settings)?;
    probe(&settings)?;
    Ok(settings)
}

/// Returns the distinct targets in order of first use. A target that replaces those of all jobs replaces the redo logs, too.
fn targets(jobs: &[Job], instances: &[Instance], over: Option<&str>) -> Result<Vec<Target>> {
    let mut targets: Vec<Target> = Vec::new();
    for i in instances {
        let job = &jobs[i.job];
        let is_null = job.ioengine.submit() == Submit::Null;
        let text = match over {
            Some(over) => over.to_owned(),
            None if is_null => null_target(job, i.instance),
            None => job.file_name(i.instance, &has_kind),
        };
        let redo = job.redo_file_name(i.instance, &has_kind).filter(|_| over.is_none() && !is_null);
        // On the same target the redo log is behind the data.
        let redo = redo.filter(|redo| *redo != text);
        for (volume, text) in std::iter::once(text).chain(redo).enumerate() {
            let user = User { instance: i.clone(), volume };
            match targets.iter_mut().find(|t| t.text == text) {
                Some(t) => t.users.push(user),
                None => {
                    let spec = TargetSpec::parse(&text)?;
                    targets.push(Target { text, spec, users: vec![user] });
                }
            }
        }
    }
    Ok(targets)
}

/// Returns the target for `ioengine=null`: a null disk large enough for the job, whatever `filename` says.
fn null_target(job: &Job, instance: u32) -> String {
    let size = reach(job, instance).unwrap_or(0).max(NullOptions::default().size_bytes);
    format!("null:size={size}")
}

/// Returns the end of the bytes that an instance touches, if the job gives it in bytes.
pub(super) fn reach(job: &Job, instance: u32) -> Option<u64> {
    let bytes = |e: &Extent| if let Extent::Bytes(b) = e { Some(*b) } else { None };
    let start = bytes(&job.offset)?.saturating_add(bytes(&job.offset_increment)?.saturating_mul(u64::from(instance)));
    // With `filesize` random offsets reach to the end of the file, whatever `size` says.
    job.filesize_bytes.or_else(|| Some(start.saturating_add(bytes(job.size.as_ref()?)?)))
}

/// Returns the bytes that the redo logs of a job take on a target of their own, if the job gives them in bytes.
pub(super) fn redo_bytes(job: &Job) -> Option<u64> {
    match job.oltp.as_ref()?.redo_size? {
        Extent::Bytes(bytes) => Some(bytes.saturating_mul(u64::from(job.numjobs))),
        Extent::Percent(_) => None,
    }
}

/// Makes the threads of fio jobs on a target.
fn threads(jobs: &[Job], target: &Target, opened: &Opened, entropy: u64) -> Result<Vec<(Instance, JobThread)>> {
    let block = opened.block_bytes();
    let users = target.users.iter().map(|u| &u.instance).filter(|i| jobs[i.job].oltp.is_none());
    users
        .map(|user| {
            let job = &jobs[user.job];
            check_block(job, "bs", job.min_block_bytes(), block)?;
            let id = ThreadId { instance: user.instance, number: user.number, entropy };
            let thread = JobThread::new(job, id, opened.bytes()).map_err(|e| Error::usage(e.to_string()))?;
            Ok((user.clone(), thread))
        })
        .collect()
}

pub(super) fn check_block(job: &Job, option: &str, bytes: u64, block: u32) -> Result<()> {
    if bytes.is_multiple_of(u64::from(block)) {
        return Ok(());
    }
    Err(Error::usage(format!(
        "{option}={bytes} (job '{}', line {}): must be a multiple of the target's logical block size {block}",
        job.name, job.line
    )))
}

/// Returns the volumes of transaction loops on a target.
fn loops_of<'a>(jobs: &'a [Job], target: &'a Target) -> impl Iterator<Item = Volume> + 'a {
    target.users.iter().filter_map(|u| Some((&jobs[u.instance.job], jobs[u.instance.job].oltp.as_ref()?))).flat_map(
        |(job, oltp)| {
            let data = Volume { slots: oltp.most_ios(), slot_bytes: job.max_block_bytes() as u32 };
            // The redo log is behind the data, or alone.
            [data, Volume { slots: 1, slot_bytes: REDO_WRITE_MAX }]
        },
    )
}

/// Makes the buffers for one volume of a job's thread.
pub(super) fn buffers(job: &Job, volume: Volume, regions: &Regions) -> Result<BufferPool> {
    let bytes = (volume.slot_bytes as usize).max(512);
    BufferPool::new(regions, volume.slots, bytes, true).map_err(|e| e.within(&buffers_asked(job, volume)))
}

/// Returns how much memory the buffers of a job need and which option lowers it, for the message when allocation fails.
fn buffers_asked(job: &Job, volume: Volume) -> String {
    let (depth, slot) = (u64::from(volume.slots), u64::from(volume.slot_bytes).max(512));
    let all = depth.saturating_mul(slot).saturating_mul(u64::from(job.numjobs));
    format!(
        "job '{}' (line {}): buffers of iodepth={depth} x bs={slot} x numjobs={} are {} MiB; lower one of the three",
        job.name,
        job.line,
        job.numjobs,
        all.div_ceil(1 << 20)
    )
}

/// Returns the bio slots per submitter: the depth, and for each I/O the pieces that it may be split into.
fn bios_needed(volumes: impl Iterator<Item = Volume>, driver: &dyn HostDriver, config: &QueueConfig) -> u32 {
    let piece = piece_sectors(&driver.limits(), config.max_sectors_kb);
    let need = volumes
        .map(|v| {
            let pieces = u64::from(v.slot_bytes >> 9).div_ceil(u64::from(piece)) + 1;
            u64::from(v.slots + 1) * pieces
        })
        .max()
        .unwrap_or(1);
    // With fewer slots than pieces a large I/O is split step by step as slots come free.
    need.clamp(64, u64::from(MAX_BIOS_PER_SUBMITTER).min(1 << 20)) as u32
}

/// Returns the sectors of the pieces that a large I/O is split into; the first one, up to a physical block, may be shorter.
fn piece_sectors(limits: &Limits, max_sectors_kb: Option<u32>) -> u32 {
    let max_sectors = max_sectors_kb.map_or(limits.max_sectors, |kb| kb.saturating_mul(2).min(limits.max_hw_sectors));
    let physical = limits.physical_block_size >> 9;
    // Cuts fall on physical blocks, or on logical blocks if a piece cannot hold a physical one.
    let whole = max_sectors / physical * physical;
    if whole > 0 { whole } else { limits.logical_block_sectors() }
}

fn check_polling(jobs: &[Job], target: &Target, disks: &[Arc<Disk>]) -> Result<()> {
    let polled = target.users.iter().map(|u| &jobs[u.instance.job]).find(|j| j.hipri);
    let Some(job) = polled else { return Ok(()) };
    let refuse = |text: &str| Err(Error::usage(format!("hipri (job '{}', line {}): {text}", job.name, job.line)));
    match disks {
        [disk] if disk.queue.map().nr_queues(HctxType::Poll) == 0 => {
            refuse("the disk has no poll queue; set nr_poll_queues=1 or leave hipri out")
        }
        [disk] => {
            disk.polled.store(true, Ordering::Relaxed);
            Ok(())
        }
        _ => refuse("a striped target cannot be polled; leave hipri out"),
    }
}

/// Refuses a device that is smaller than what its jobs need.
pub(super) fn check_size(shown: &str, has: u64, needs: u64) -> Result<()> {
    if has >= needs && has > 0 {
        return Ok(());
    }
    let text = format!("'{shown}' has {has} bytes, the job needs {needs}: use a larger device or a smaller size=");
    Err(Error::new(ErrorKind::NoSpace, text))
}

/// Returns the CPUs that a thread is pinned to.
pub(super) fn pin_of(job: &Job, user: &Instance) -> Option<Vec<u32>> {
    job.cpus_allowed.as_ref().map(|cpus| match job.cpus_allowed_policy {
        CpusPolicy::Shared => cpus.clone(),
        CpusPolicy::Split => vec![cpus[user.instance as usize % cpus.len()]],
    })
}

/// Returns the CPUs that a thread runs on, and the CPU whose software queue it uses.
fn place(job: &Job, user: &Instance, disk: &Disk) -> (Option<Vec<u32>>, CpuId) {
    let nr_cpus = u32::from(disk.queue.config().topology.nr_cpus);
    let pin = pin_of(job, user);
    // A thread pinned to one CPU submits to that CPU's software queue; others are distributed round robin.
    let cpu = match pin.as_deref() {
        Some([one]) => *one % nr_cpus,
        _ => (user.number - 1) % nr_cpus,
    };
    (pin, CpuId::new(cpu))
}

/// Makes the thread of a fio job.
fn worker(
    job: &Job,
    user: &Instance,
    thread: JobThread,
    target: &Started,
    regions: &Regions,
    stop: &Arc<AtomicBool>,
) -> Result<Worker> {
    let volume = Volume { slots: thread.depth(), slot_bytes: slot_bytes(&thread) as u32 };
    let pools = vec![buffers(job, volume, regions)?];
    let device = if target.opened.map.is_some() {
        WorkerDevice::Wide(vec![wide_volume(target)])
    } else {
        let disk = Arc::clone(&target.disks[0]);
        WorkerDevice::Plain(PlainDisk { disk, index: target.first, others: Arc::default(), polled: job.hipri })
    };
    Ok(ready(job, WorkerLoad::Job(Box::new(thread)), pools, device, place(job, user, &target.disks[0]), stop))
}

/// Makes the thread of a transaction loop, with data and redo on these targets, which may be the same.
fn oltp_worker(
    job: &Job,
    user: &Instance,
    [data, redo]: [&Started; 2],
    apart: bool,
    regions: &Regions,
    plan: &RunPlan<'_>,
) -> Result<Worker> {
    let oltp = job.oltp.as_ref().expect("a transaction loop");
    check_block(job, "bs", job.min_block_bytes(), data.opened.block_bytes())?;
    check_block(job, "redo_block_size", u64::from(oltp.redo_block_bytes), redo.opened.block_bytes())?;
    let id = ThreadId { instance: user.instance, number: user.number, entropy: plan.entropy };
    let load = Oltp::new(job, id, data.opened.bytes(), apart.then(|| redo.opened.bytes()));
    let load = load.map_err(|e| Error::usage(e.to_string()))?;
    let pools = load.volumes().into_iter().map(|v| buffers(job, v, regions)).collect::<Result<Vec<_>>>()?;
    let volumes = [data, redo].into_iter().take(pools.len()).map(wide_volume).collect();
    let (load, device) = (WorkerLoad::Other(Box::new(load)), WorkerDevice::Wide(volumes));
    Ok(ready(job, load, pools, device, place(job, user, &data.disks[0]), &plan.stop))
}

fn wide_volume(target: &Started) -> WideVolume {
    let disks = target.disks.iter().enumerate().map(|(i, d)| (target.first + i, Arc::clone(d))).collect();
    WideVolume { disks, map: target.opened.map.clone() }
}

pub(super) fn ready(
    job: &Job,
    load: WorkerLoad,
    pools: Vec<BufferPool>,
    device: WorkerDevice,
    (pin, cpu): (Option<Vec<u32>>, CpuId),
    stop: &Arc<AtomicBool>,
) -> Worker {
    let submitting = Submitting { cpu, weight: job.weight, trace_events: 0 };
    let (live, stop, batch) = (Arc::new(Live::default()), Arc::clone(stop), job.iodepth_batch_submit);
    Worker { load, pools, device, submitting, pin, live, stop, batch }
}

/// Gives every thread the CPUs of the other threads on its disk.
fn introduce(workers: &mut [Worker]) {
    let homes: Vec<(Vec<usize>, CpuId)> = workers.iter().map(|w| (w.disks(), w.submitting.cpu)).collect();
    for (i, w) in workers.iter_mut().enumerate() {
        let WorkerDevice::Plain(plain) = &mut w.device else { continue };
        let others = homes.iter().enumerate().filter(|(j, (disks, _))| *j != i && disks.contains(&plain.index));
        plain.others = others.map(|(_, (_, cpu))| *cpu).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_whole_physical_blocks_where_one_fits() {
        let limits = Limits { physical_block_size: 4096, max_sectors: 2048, max_hw_sectors: 2048, ..Limits::default() };
        let cases = [(None, 2048), (Some(6), 8), (Some(4), 8), (Some(1 << 20), 2048)];
        for (kb, sectors) in cases {
            assert_eq!(piece_sectors(&limits, kb), sectors, "max_sectors_kb={kb:?}");
        }
        let coarse = Limits { physical_block_size: 16384, logical_block_size: 4096, ..limits };
        assert_eq!(piece_sectors(&coarse, Some(12)), 8, "less than a physical block: logical blocks");
    }
}
