// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From a job file to disks and job threads that are ready to run.
//!
//! Everything that can be refused is refused here, before the first I/O. A file is created or extended only if the user named it: as
//! `filename`, by fio's naming rule, or as target. Nothing else is written.

use super::checkpoint::RunLinks;
use super::commands::Commands;
use super::grid::check_block;
use super::kernel::{self, KernelTarget};
use super::layout::{any_size, begin_new_files, guard_files, holes, make_files, needs, share_locks, to_remove};
use super::logs::LogFiles;
use super::open::{Opened, check_limits};
use super::plain::{PlainDisk, Submitting};
use super::settings::{RunSettings, probe};
use super::verify_files::{Dumps, VerifyFiles};
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
use crate::target::{TargetSpec, TargetWarning, add_new, has_kind, is_word};
use blk::bio::MAX_BIOS_PER_SUBMITTER;
use blk::cpumap::HctxType;
use blk::id::{CpuId, SECTOR_SIZE};
use blk::limits::Limits;
use blk::settings::QueueConfig;
use std::collections::HashMap;
use std::fs;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use workload::engine::{FileTarget, JobThread, ThreadId};
use workload::job::{CpusPolicy, Extent, FileShare, Job, OltpJob, REDO_WRITE_MAX, Submit};
use workload::load::{Load, Volume};
use workload::oltp::Oltp;
use workload::schedule::{self, Instance};
use workload::together::Together;

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
    /// Directory of verify states; empty for the working directory.
    pub aux_dir: &'a Path,
}

/// Disks and threads, ready.
pub struct Prepared {
    pub(super) workers: Vec<Worker>,
    pub(super) instances: Vec<Instance>,
    /// One per device, with its name: the target's, or `TARGET#N` for device N of a striped target.
    pub disks: Vec<(String, Arc<Disk>)>,
    /// The distinct targets; the many files of a thread are one.
    pub targets: Vec<RunTarget>,
    /// The kernel's devices, instead of `disks` and `targets`, in a run on those.
    pub kernel: Vec<KernelTarget>,
    /// Guards that restore the settings of the kernel's devices when the run ends.
    pub(super) kept: Vec<SettingsGuard>,
    /// Warnings for the user: what differs from the request.
    pub warnings: Vec<TargetWarning>,
    pub(super) together: Together,
    /// Some job has a `ramp_time`.
    pub(super) ramps: bool,
    /// Files of per-interval logs.
    pub(super) logs: Option<LogFiles>,
    /// Files of verified jobs.
    pub(super) verify_files: Option<VerifyFiles>,
    pub(super) stop: Arc<AtomicBool>,
    /// Files to remove when the run has ended (`unlink`).
    pub(super) to_remove: Vec<PathBuf>,
    /// Dropped after the disks.
    pub(super) locks: ImageLocks,
}

/// A target of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunTarget {
    /// As the user named it.
    pub name: String,
    /// Its devices among [`Prepared::disks`]: one, those it is striped over, or those of the files it stands for.
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

    /// Makes the jobs write the files that they leave: the per-interval logs that they ask for, and verify states and bad blocks in
    /// the directory `dir`. `jobs` and `target` are those that were prepared.
    pub fn write_files(&mut self, jobs: &[Job], dir: &Path, target: Option<&str>) {
        for (worker, instance) in self.workers.iter_mut().zip(&self.instances) {
            worker.links.dumps = Dumps::of(&jobs[instance.job], instance, dir, target);
        }
        self.verify_files = Some(VerifyFiles::of(jobs, &self.instances, dir));
        self.logs = LogFiles::of(jobs, &self.instances);
        if self.logs.is_some() {
            self.workers.iter_mut().for_each(|w| w.load.load_mut().keep_logs());
        }
    }
}

/// One target and the threads that use it.
pub(super) struct Target {
    pub(super) text: String,
    pub(super) spec: TargetSpec,
    /// As with fio, missing directories are made if they are part of a job's `filename`, not those of `directory`.
    pub(super) makes_directories: bool,
    pub(super) users: Vec<User>,
}

impl Target {
    /// Bytes that its users need, if they give them in bytes.
    pub(super) fn bytes_planned(&self, jobs: &[Job]) -> Option<u64> {
        self.users.iter().filter_map(|user| user.reach(jobs)).max()
    }
}

/// A thread that uses a target.
pub(super) struct User {
    pub(super) instance: Instance,
    /// Number of the target among those of the thread.
    pub(super) number: usize,
    pub(super) content: Content,
}

/// What a thread has on a target.
#[derive(Clone, Copy)]
pub(super) enum Content {
    /// Data, of which it asks this.
    Data(FileShare),
    /// The redo log of a database, if that is elsewhere.
    Redo,
}

impl User {
    pub(super) fn has_data(&self) -> bool {
        matches!(self.content, Content::Data(_))
    }

    /// Bytes that the target needs for it, if its job gives them in bytes.
    pub(super) fn reach(&self, jobs: &[Job]) -> Option<u64> {
        let job = &jobs[self.instance.job];
        match self.content {
            Content::Data(share) => job.reach(share, self.instance.instance),
            Content::Redo => redo_bytes(job),
        }
    }
}

/// The targets of each thread, as numbers among all targets, in the thread's order.
pub(super) fn targets_by_thread(targets: &[Target], instances: &[Instance]) -> Vec<Vec<(usize, Content)>> {
    let mut of: Vec<Vec<(usize, usize, Content)>> = vec![Vec::new(); instances.len()];
    for (t, target) in targets.iter().enumerate() {
        for user in &target.users {
            // Threads are numbered from 1.
            of[user.instance.number as usize - 1].push((user.number, t, user.content));
        }
    }
    let in_order = |mut own: Vec<(usize, usize, Content)>| {
        own.sort_by_key(|(number, ..)| *number);
        own.into_iter().map(|(_, target, content)| (target, content)).collect()
    };
    of.into_iter().map(in_order).collect()
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
    let (targets, mut warnings) = targets(jobs, &instances, &plan)?;
    let mut jobs = jobs.to_vec();
    begin_new_files(&mut jobs, &targets, &mut warnings);
    let jobs = &jobs[..];
    if targets.iter().any(kernel::is_kernel) {
        let aux_dir = plan.aux_dir;
        let prepared = kernel::prepare(jobs, plan, instances, &targets)?;
        return load_states(jobs, join_flows(jobs, prepared), aux_dir);
    }
    let settings = settings_of(&plan)?;
    let shared = settings.shared()?;
    let config = settings.disk;
    targets.iter().try_for_each(|t| check_limits(&t.text, &t.spec, plan.settings))?;
    let regions = Arc::new(Regions::new());
    let mut prepared = Prepared {
        workers: Vec::new(),
        together: Together::new(jobs, &instances),
        instances,
        disks: Vec::new(),
        targets: Vec::new(),
        kernel: Vec::new(),
        kept: Vec::new(),
        warnings,
        ramps: jobs.iter().any(|j| j.ramp_time_ns > 0),
        logs: None,
        verify_files: None,
        stop: Arc::clone(&plan.stop),
        to_remove: Vec::new(),
        locks: ImageLocks::default(),
    };
    let mut started: Vec<Started> = Vec::new();
    for target in &targets {
        let needs = needs(jobs, target, config.read_ahead_kb);
        make_files(jobs, target, &needs, &mut prepared.locks, plan.laying_out)?;
        guard_files(jobs, target, &needs)?;
        prepared.to_remove.extend(to_remove(jobs, target).into_iter().cloned());
        prepared.warnings.extend(holes(jobs, target)?.into_iter().map(TargetWarning::new));
        let mut opened = Opened::new((&target.text, &target.spec), any_size(jobs, target, &needs), &needs, &regions)?;
        share_locks(&opened.drivers, &needs, &prepared.locks)?;
        prepared.warnings.append(&mut opened.warnings);
        let mut config = config.clone();
        config.bios_per_submitter = bios_needed(volumes_of(jobs, target), opened.drivers[0].as_ref(), &config);
        let disks = opened.start(&config, shared.as_ref())?;
        check_polling(jobs, target, &disks)?;
        let start = Started { opened, disks, first: prepared.disks.len() };
        let shown = without_secrets(&target.text);
        prepared.disks.extend(start.disks.iter().enumerate().map(|(i, disk)| {
            let name = if start.opened.map.is_some() { format!("{shown}#{i}") } else { shown.clone() };
            (name, Arc::clone(disk))
        }));
        started.push(start);
    }
    prepared.targets = run_targets(&targets, &started);
    let of_threads = targets_by_thread(&targets, &prepared.instances);
    for (instance, own) in prepared.instances.iter().zip(of_threads) {
        let job = &jobs[instance.job];
        let own: Vec<(&Started, Content)> = own.into_iter().map(|(t, content)| (&started[t], content)).collect();
        let worker = match job.oltp {
            None => worker(job, instance, &own, &regions, &plan, &mut prepared.warnings)?,
            Some(_) => oltp_worker(job, instance, &own, &regions, &plan)?,
        };
        prepared.workers.push(worker);
    }
    introduce(&mut prepared.workers);
    load_states(jobs, join_flows(jobs, prepared), plan.aux_dir)
}

/// A thread with more files than this has the counters of all of them together.
const MOST_SHOWN: usize = 16;

/// Returns what the run shows counters of: each target, or the files together that a thread is the first to use.
fn run_targets(targets: &[Target], started: &[Started]) -> Vec<RunTarget> {
    let of_same_thread = |a: &Target, b: &Target| a.users[0].instance.number == b.users[0].instance.number;
    let (mut shown, mut begin) = (Vec::new(), 0);
    for files in targets.chunk_by(of_same_thread) {
        let started = &started[begin..begin + files.len()];
        begin += files.len();
        let name = |target: &Target| without_secrets(&target.text);
        let end = |s: &Started| s.first + s.disks.len();
        if files.len() > MOST_SHOWN {
            let name = format!("{} and {} more", name(&files[0]), files.len() - 1);
            shown.push(RunTarget { name, disks: started[0].first..end(&started[files.len() - 1]) });
        } else {
            let each = files.iter().zip(started);
            shown.extend(each.map(|(t, s)| RunTarget { name: name(t), disks: s.first..end(s) }));
        }
    }
    shown
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

/// Returns the distinct targets in order of first use. A target that replaces those of all jobs replaces their files and redo
/// logs. A file in the working directory comes before a target that is called the same, which is noted.
fn targets(jobs: &[Job], instances: &[Instance], plan: &RunPlan<'_>) -> Result<(Vec<Target>, Vec<TargetWarning>)> {
    let (mut targets, mut warnings): (Vec<Target>, _) = (Vec::new(), Vec::new());
    let mut known: HashMap<String, usize> = HashMap::new();
    for i in instances {
        let job = &jobs[i.job];
        let is_null = job.ioengine.submit() == Submit::Null;
        let own = plan.target.is_none() && !is_null;
        let names: Vec<String> = match plan.target {
            Some(target) => vec![target.to_owned()],
            None if is_null => Vec::new(),
            None => (0..job.nr_files()).map(|file| target_name(job, i.instance, file, &mut warnings)).collect(),
        };
        let planned = |name: &String| known.get(name).and_then(|&t| targets[t].bytes_planned(jobs));
        let bytes_of = |file: usize| planned(&names[file]).unwrap_or(0).max(bytes_now(&names[file]));
        // One target in place of the job's files is used as the only file of a job.
        let shares = match plan.target {
            Some(_) => vec![FileShare::of(job)],
            None if is_null => job.file_shares(plan.entropy, i.number, |_| 0),
            None => job.file_shares(plan.entropy, i.number, bytes_of),
        };
        let names = match names.is_empty() {
            true => vec![null_target(job, i.instance, &shares); shares.len()],
            false => names,
        };
        let redo = job.redo_file_name(i.instance, &has_kind).filter(|_| own);
        // On the same target the redo log is behind the data.
        let redo = redo.filter(|redo| *redo != names[0]).map(|redo| (redo, Content::Redo));
        let data = names.into_iter().zip(shares.into_iter().map(Content::Data));
        for (number, (text, content)) in data.chain(redo).enumerate() {
            let user = User { instance: i.clone(), number, content };
            match known.get(&text) {
                Some(&t) => targets[t].users.push(user),
                None => {
                    let spec = TargetSpec::parse(&text)?;
                    let makes_directories = plan.target.is_none() && job.directory.is_empty() && job.replay.is_none();
                    known.insert(text.clone(), targets.len());
                    targets.push(Target { text, spec, makes_directories, users: vec![user] });
                }
            }
        }
    }
    Ok((targets, warnings))
}

/// The target that a job names as one of its files.
fn target_name(job: &Job, instance: u32, file: usize, warnings: &mut Vec<TargetWarning>) -> String {
    match job.file_name(instance, file, &has_kind) {
        word if is_word(&word) && fs::metadata(&word).is_ok_and(|meta| !meta.is_dir()) => {
            let text = format!("filename={word}: the file './{word}' is used; write '{word}:' for the target");
            add_new(warnings, vec![TargetWarning::new(text)]);
            format!("./{word}")
        }
        // What has an escaped colon and is no target is a file.
        name if job.filename.get(file).is_some_and(|typed| typed.contains("\\:"))
            && !has_kind(&name)
            && !name.starts_with('/') =>
        {
            format!("./{name}")
        }
        name => name,
    }
}

/// Size of a file that exists, else 0.
fn bytes_now(name: &str) -> u64 {
    match TargetSpec::parse(name) {
        Ok(TargetSpec::File(path)) => fs::metadata(path).map_or(0, |meta| meta.len()),
        _ => 0,
    }
}

/// Returns the target for `ioengine=null`: a null disk large enough for each file, whatever `filename` says.
fn null_target(job: &Job, instance: u32, shares: &[FileShare]) -> String {
    let reach = shares.iter().filter_map(|&share| job.reach(share, instance)).max();
    format!("null:size={}", reach.unwrap_or(0).max(NullOptions::default().size_bytes))
}

/// Returns the bytes that the redo logs of a job take on a target of their own, if the job gives them in bytes.
pub(super) fn redo_bytes(job: &Job) -> Option<u64> {
    match job.oltp.as_ref()?.redo_size? {
        Extent::Bytes(bytes) => Some(bytes.saturating_mul(u64::from(job.numjobs))),
        Extent::Percent(_) => None,
    }
}

/// Returns a file of a job on a target of `target_bytes`. A job uses what is there after its offset if that is less than the
/// size it asks for, as on a smaller device.
fn fitted(job: &Job, share: FileShare, instance: u32, target_bytes: u64) -> (FileTarget, Option<TargetWarning>) {
    let as_asked = (FileTarget { bytes: target_bytes, share }, None);
    if job.replay.is_some() {
        return as_asked;
    }
    let end = job.reach(share, instance).filter(|&end| end > target_bytes && share.filesize_bytes.is_none());
    let (Some(end), Some(Extent::Bytes(asked))) = (end, share.size) else { return as_asked };
    let size = asked.saturating_sub(end - target_bytes);
    if size == 0 {
        return as_asked;
    }
    if end - target_bytes < SECTOR_SIZE as u64 && job.seq_offset_add_bytes >= 0 {
        // A file ends within a sector, which no I/O reaches. Its bytes count when the job ends by bytes.
        return (FileTarget { bytes: end, share }, None);
    }
    let place = job.place();
    let text = format!("size ({place}): the target has only {size} bytes after the job's offset; they are used");
    let warning = (end - target_bytes >= SECTOR_SIZE as u64).then(|| TargetWarning::new(text));
    let share = FileShare { size: Some(Extent::Bytes(size)), ..share };
    (FileTarget { bytes: target_bytes, share }, warning)
}

/// Returns the volumes of the threads on a target.
fn volumes_of<'a>(jobs: &'a [Job], target: &'a Target) -> impl Iterator<Item = Volume> + 'a {
    target.users.iter().flat_map(|user| {
        let job = &jobs[user.instance.job];
        let slots = job.oltp.as_ref().map_or(job.iodepth, OltpJob::most_ios);
        let data = Volume { slots, slot_bytes: job.max_block_bytes() as u32 };
        // The redo log is behind the data, or alone.
        let redo = Volume { slots: 1, slot_bytes: REDO_WRITE_MAX };
        [Some(data), job.oltp.as_ref().map(|_| redo)].into_iter().flatten()
    })
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
    let refuse = |text: &str| Err(Error::usage(format!("hipri ({}): {text}", job.place())));
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

/// Makes the thread of a fio job on its targets.
fn worker(
    job: &Job,
    user: &Instance,
    own: &[(&Started, Content)],
    regions: &Regions,
    plan: &RunPlan<'_>,
    warnings: &mut Vec<TargetWarning>,
) -> Result<Worker> {
    let mut files = Vec::with_capacity(own.len());
    for (target, content) in own {
        let Content::Data(share) = *content else { unreachable!("a fio job has no redo log") };
        let (file, warning) = fitted(job, share, user.instance, target.opened.bytes());
        add_new(warnings, Vec::from_iter(warning));
        files.push(file);
    }
    let id = ThreadId { instance: user.instance, number: user.number, entropy: plan.entropy };
    let thread = JobThread::with_files(job, id, &files).map_err(|e| Error::usage(e.to_string()))?;
    for ((target, _), file) in own.iter().zip(files) {
        target.opened.grid().check(job, user.instance, file)?;
    }
    let volume = Volume { slots: thread.depth(), slot_bytes: slot_bytes(&thread) as u32 };
    let pools = vec![buffers(job, volume, regions)?];
    let first = own[0].0;
    let device = if own.len() > 1 || first.opened.map.is_some() {
        WorkerDevice::Wide(own.iter().map(|(target, _)| wide_volume(target)).collect())
    } else {
        let disk = Arc::clone(&first.disks[0]);
        WorkerDevice::Plain(PlainDisk { disk, index: first.first, others: Arc::default(), polled: job.hipri })
    };
    let place = place(job, user, &first.disks[0]);
    Ok(ready(job, WorkerLoad::Job(Box::new(thread)), pools, device, place, &plan.stop))
}

/// Makes the thread of a transaction loop, with data and redo on its targets; there is one if they are together.
fn oltp_worker(
    job: &Job,
    user: &Instance,
    own: &[(&Started, Content)],
    regions: &Regions,
    plan: &RunPlan<'_>,
) -> Result<Worker> {
    let oltp = job.oltp.as_ref().expect("a transaction loop");
    let (data, apart) = (own[0].0, own.get(1).map(|(redo, _)| *redo));
    let redo = apart.unwrap_or(data);
    check_block(job, "bs", job.min_block_bytes(), data.opened.block_bytes())?;
    check_block(job, "redo_block_size", u64::from(oltp.redo_block_bytes), redo.opened.block_bytes())?;
    let id = ThreadId { instance: user.instance, number: user.number, entropy: plan.entropy };
    let load = Oltp::new(job, id, data.opened.bytes(), apart.map(|redo| redo.opened.bytes()));
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
    let links = RunLinks { stop: Arc::clone(stop), live: Arc::default(), logs: None, dumps: None };
    Worker { load, pools, device, submitting, pin, links, batch: job.iodepth_batch_submit, commands: Commands::of(job) }
}

/// Gives the threads of jobs with a `flow` their share of it.
fn join_flows(jobs: &[Job], mut prepared: Prepared) -> Prepared {
    for (i, worker) in prepared.workers.iter_mut().enumerate() {
        if let Some(share) = prepared.together.flow(i) {
            worker.load.load_mut().join_flow(&jobs[prepared.instances[i].job], share);
        }
    }
    prepared
}

/// Gives the threads of jobs with a `verify_state_load` the states of an earlier run.
fn load_states(jobs: &[Job], mut prepared: Prepared, dir: &Path) -> Result<Prepared> {
    let files = VerifyFiles::of(jobs, &prepared.instances, dir);
    for (i, worker) in prepared.workers.iter_mut().enumerate() {
        if let Some(state) = files.load(i, &jobs[prepared.instances[i].job])? {
            worker.load.load_mut().load_verify_state(state);
        }
    }
    Ok(prepared)
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
