// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From a job file to disks and job threads that are ready to run.
//!
//! Everything that can be refused is refused here, before the first I/O. A file is created or made longer only if the
//! user named it (as `filename`, by fio's naming rule, or as target), and nothing else is written.

use super::disk::Disk;
use super::settings::{RunSettings, probe};
use super::worker::{Live, Worker, slot_bytes};
use crate::create::{self, Layout};
use crate::driver::HostDriver;
use crate::driver::file::FileWarning;
use crate::driver::null::NullOptions;
use crate::error::{Error, Result};
use crate::mem::{BufferPool, Regions};
use crate::target::{Needs, TargetSpec, TargetWarning, has_kind};
use blk::bio::MAX_BIOS_PER_SUBMITTER;
use blk::cpumap::HctxType;
use blk::id::CpuId;
use blk::limits::Limits;
use blk::settings::QueueConfig;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use workload::engine::{JobThread, ThreadId};
use workload::job::{CpusPolicy, Dir, Extent, Job, Submit};
use workload::schedule::{self, Instance};

/// What a run is to be made of, besides the jobs.
pub struct RunPlan<'a> {
    /// Put under every job instead of its `filename`.
    pub target: Option<&'a str>,
    /// Settings of every disk, an unset CPU count being this host's, and of the run ([`RUN_SETTINGS`](super::RUN_SETTINGS)).
    pub settings: &'a [(String, String)],
    /// Told of file creation: path, bytes done, bytes in all. May break off.
    pub laying_out: &'a mut dyn FnMut(&Path, u64, u64) -> ControlFlow<()>,
    /// Ends the run early when set.
    pub stop: Arc<AtomicBool>,
    /// Fresh random number for jobs that want one (`randrepeat=0`).
    pub entropy: u64,
}

/// Disks and threads, ready.
pub struct Prepared {
    pub(super) workers: Vec<Worker>,
    pub(super) instances: Vec<Instance>,
    /// One per distinct target, with its name.
    pub disks: Vec<(String, Arc<Disk>)>,
    /// What is not as asked, to be said aloud.
    pub warnings: Vec<TargetWarning>,
    /// Some job has a `ramp_time`.
    pub(super) ramps: bool,
    pub(super) stop: Arc<AtomicBool>,
}

impl Prepared {
    /// The job threads, in the order of the file.
    pub fn instances(&self) -> &[Instance] {
        &self.instances
    }

    /// Has every thread trace the life of its requests, up to `events` events of 32 bytes each; those that come later
    /// are counted ([`ThreadEnd::trace`](super::ThreadEnd::trace)). 0 = no trace.
    pub fn trace(&mut self, events: usize) {
        self.workers.iter_mut().for_each(|w| w.trace_events = events);
    }
}

/// One target and the threads that use it.
struct Target {
    text: String,
    spec: TargetSpec,
    users: Vec<Instance>,
}

/// Checks the plan, creates missing files, opens and starts the disks and makes the threads.
pub fn prepare(jobs: &[Job], plan: RunPlan<'_>) -> Result<Prepared> {
    let settings = RunSettings::read(plan.settings)?;
    probe(&settings)?;
    let shared = settings.shared()?;
    let config = settings.disk;
    let instances = schedule::plan(jobs, plan.entropy).map_err(|e| Error::usage(e.to_string()))?;
    let targets = targets(jobs, &instances, plan.target)?;
    let regions = Arc::new(Regions::new());
    let mut prepared = Prepared {
        workers: Vec::new(),
        instances,
        disks: Vec::new(),
        warnings: Vec::new(),
        ramps: jobs.iter().any(|j| j.ramp_time_ns > 0),
        stop: Arc::clone(&plan.stop),
    };
    let mut numbered: Vec<(u32, Worker)> = Vec::new();
    for target in targets {
        let needs = Needs { read_ahead_kb: config.read_ahead_kb, ..needs(jobs, &target) };
        make_file(jobs, &target, &needs, plan.laying_out)?;
        guard_file(jobs, &target, &needs)?;
        prepared.warnings.extend(holes(jobs, &target)?.map(TargetWarning::File));
        let open = target.spec.open(&needs, Arc::clone(&regions))?;
        prepared.warnings.extend(open.warnings);
        let made = threads(jobs, &target, &open.driver, &regions, plan.entropy)?;
        let mut config = config.clone();
        config.bios_per_submitter = bios_needed(made.iter().map(|(_, job, _)| job), open.driver.as_ref(), &config);
        let disk = Arc::new(Disk::new(open.driver, config, shared.as_ref())?);
        check_polling(jobs, &target, &disk)?;
        for (user, job, buffers) in made {
            let number = user.number;
            numbered.push((number, worker(&jobs[user.job], &user, job, buffers, &disk, &plan.stop)));
            numbered.last_mut().expect("pushed").1.disk_index = prepared.disks.len();
        }
        prepared.disks.push((target.text, disk));
    }
    numbered.sort_by_key(|(number, _)| *number);
    prepared.workers = numbered.into_iter().map(|(_, w)| w).collect();
    introduce(&mut prepared.workers);
    Ok(prepared)
}

/// Distinct targets in order of first use.
fn targets(jobs: &[Job], instances: &[Instance], over: Option<&str>) -> Result<Vec<Target>> {
    let mut targets: Vec<Target> = Vec::new();
    for i in instances {
        let job = &jobs[i.job];
        let text = match over {
            Some(over) => over.to_owned(),
            None if job.ioengine.submit() == Submit::Null => null_target(job, i.instance),
            None => job.file_name(i.instance, &is_target),
        };
        match targets.iter_mut().find(|t| t.text == text) {
            Some(t) => t.users.push(i.clone()),
            None => {
                let spec = TargetSpec::parse(&text)?;
                targets.push(Target { text, spec, users: vec![i.clone()] });
            }
        }
    }
    Ok(targets)
}

/// What `ioengine=null` asks for: a null disk large enough for the job, whatever `filename` says.
fn null_target(job: &Job, instance: u32) -> String {
    let size = reach(job, instance).unwrap_or(0).max(NullOptions::default().size_bytes);
    format!("null:size={size}")
}

/// Whether a job's `filename` names a target with a kind (`null:`, `file:PATH`, `nbd://`, ...), so that its `:` does not separate files.
pub fn is_target(name: &str) -> bool {
    has_kind(name)
}

fn needs(jobs: &[Job], target: &Target) -> Needs {
    let used = || target.users.iter().map(|u| &jobs[u.job]);
    Needs {
        write: used().any(|j| j.rw.has(Dir::Write) || j.rw.has(Dir::Trim)),
        direct: used().any(|j| j.direct),
        min_bytes: target.users.iter().filter_map(|u| reach(&jobs[u.job], u.instance)).max().unwrap_or(0),
        in_use: used().all(|j| j.allow_mounted_write),
        read_ahead_kb: None,
    }
}

/// One past the last byte an instance touches, as far as the job says it in bytes.
fn reach(job: &Job, instance: u32) -> Option<u64> {
    let bytes = |e: &Extent| if let Extent::Bytes(b) = e { Some(*b) } else { None };
    let start = bytes(&job.offset)?.saturating_add(bytes(&job.offset_increment)?.saturating_mul(u64::from(instance)));
    // With `filesize` random offsets reach to the end of the file, whatever `size` says.
    job.filesize_bytes.or_else(|| Some(start.saturating_add(bytes(job.size.as_ref()?)?)))
}

/// Creates or extends the target's file where it is one and is too small.
fn make_file(
    jobs: &[Job],
    target: &Target,
    needs: &Needs,
    laying_out: &mut dyn FnMut(&Path, u64, u64) -> ControlFlow<()>,
) -> Result<()> {
    let TargetSpec::File(path) = &target.spec else { return Ok(()) };
    let filesize = target.users.iter().filter_map(|u| jobs[u.job].filesize_bytes).max().unwrap_or(0);
    let size = needs.min_bytes.max(filesize);
    let users = || target.users.iter().map(|u| &jobs[u.job]);
    if !path.exists() {
        if let Some(job) = users().find(|j| !j.allow_file_create) {
            let text = format!("'{}' does not exist and job '{}' says allow_file_create=0", path.display(), job.name);
            return Err(Error::usage(text));
        }
        if size == 0 {
            let (name, line) = users().map(|j| (&j.name, j.line)).next().expect("a target has a user");
            let text = format!(
                "job '{name}' (line {line}): '{}' does not exist and the job gives no size; add e.g. size=1g",
                path.display()
            );
            return Err(Error::usage(text));
        }
    }
    if size == 0 {
        return Ok(());
    }
    let written = users().any(|j| j.rw.has(Dir::Read) || j.overwrite);
    let layout = if written { Layout::WriteOut } else { Layout::Allocate };
    create::create(path, size, layout, &mut |done, all| laying_out(path, done, all))?;
    Ok(())
}

/// Refuses to write to a mounted block device unless the job allows it; drops cached pages of buffered files.
fn guard_file(jobs: &[Job], target: &Target, needs: &Needs) -> Result<()> {
    let TargetSpec::File(path) = &target.spec else { return Ok(()) };
    let used = || target.users.iter().map(|u| &jobs[u.job]);
    if needs.write
        && let Some(job) = used().find(|j| !j.allow_mounted_write)
        && let Some(at) = create::mounted_at(path)?
    {
        return Err(Error::usage(format!(
            "'{}' is mounted at '{at}' and job '{}' would write to it: unmount it, or set allow_mounted_write=1 if its \
             content may be destroyed",
            path.display(),
            job.name
        )));
    }
    if !needs.direct && used().any(|j| j.invalidate) {
        create::drop_cached_pages(path)?;
    }
    Ok(())
}

/// The warning that reads may not reach the device.
fn holes(jobs: &[Job], target: &Target) -> Result<Option<FileWarning>> {
    let TargetSpec::File(path) = &target.spec else { return Ok(None) };
    let reads = target.users.iter().any(|u| jobs[u.job].rw.has(Dir::Read));
    Ok((reads && create::has_holes(path)?).then(|| FileWarning::Holes { path: path.clone() }))
}

type Made = (Instance, JobThread, BufferPool);

fn threads(
    jobs: &[Job],
    target: &Target,
    driver: &Arc<dyn HostDriver>,
    regions: &Regions,
    entropy: u64,
) -> Result<Vec<Made>> {
    let bytes = driver.capacity().0 << 9;
    let limits = driver.limits();
    let block = u64::from(limits.logical_block_size);
    target
        .users
        .iter()
        .map(|user| {
            let job = &jobs[user.job];
            let min = job.min_block_bytes();
            if !min.is_multiple_of(block) {
                return Err(Error::usage(format!(
                    "bs={min} (job '{}', line {}): must be a multiple of the target's logical block size {block}",
                    job.name, job.line
                )));
            }
            let id = ThreadId { instance: user.instance, number: user.number, entropy };
            let thread = JobThread::new(job, id, bytes).map_err(|e| Error::usage(e.to_string()))?;
            let buffers = BufferPool::new(regions, thread.depth(), slot_bytes(&thread), true)
                .map_err(|e| e.within(&buffers_asked(job, &thread)))?;
            Ok((user.clone(), thread, buffers))
        })
        .collect()
}

/// What the buffers of a job come to, and what makes them less, for the message when they cannot be had.
fn buffers_asked(job: &Job, thread: &JobThread) -> String {
    let (depth, slot) = (u64::from(thread.depth()), slot_bytes(thread) as u64);
    let all = depth.saturating_mul(slot).saturating_mul(u64::from(job.numjobs));
    format!(
        "job '{}' (line {}): buffers of iodepth={depth} x bs={slot} x numjobs={} are {} MiB; lower one of the three",
        job.name,
        job.line,
        job.numjobs,
        all.div_ceil(1 << 20)
    )
}

/// Bio slots per submitter: the depth, and for each I/O the pieces it may be split into.
fn bios_needed<'a>(threads: impl Iterator<Item = &'a JobThread>, driver: &dyn HostDriver, config: &QueueConfig) -> u32 {
    let piece = piece_sectors(&driver.limits(), config.max_sectors_kb);
    let need = threads
        .map(|t| {
            let pieces = u64::from(t.max_io_bytes() >> 9).div_ceil(u64::from(piece)) + 1;
            u64::from(t.depth() + 1) * pieces
        })
        .max()
        .unwrap_or(1);
    // With fewer slots than pieces a large I/O is split step by step as slots come free.
    need.clamp(64, u64::from(MAX_BIOS_PER_SUBMITTER).min(1 << 20)) as u32
}

/// Sectors of the pieces that a large I/O is split into; the first one, up to a physical block, may be shorter.
fn piece_sectors(limits: &Limits, max_sectors_kb: Option<u32>) -> u32 {
    let max_sectors = max_sectors_kb.map_or(limits.max_sectors, |kb| kb.saturating_mul(2).min(limits.max_hw_sectors));
    let physical = limits.physical_block_size >> 9;
    // Cuts fall on physical blocks; where a piece cannot hold one, on logical blocks.
    let whole = max_sectors / physical * physical;
    if whole > 0 { whole } else { limits.logical_block_sectors() }
}

fn check_polling(jobs: &[Job], target: &Target, disk: &Disk) -> Result<()> {
    let polled = target.users.iter().map(|u| &jobs[u.job]).find(|j| j.hipri);
    match polled {
        Some(job) if disk.queue.map().nr_queues(HctxType::Poll) == 0 => Err(Error::usage(format!(
            "hipri (job '{}', line {}): the disk has no poll queue; set nr_poll_queues=1 or leave hipri out",
            job.name, job.line
        ))),
        job => {
            disk.polled.store(job.is_some(), Ordering::Relaxed);
            Ok(())
        }
    }
}

fn worker(
    job: &Job,
    user: &Instance,
    thread: JobThread,
    buffers: BufferPool,
    disk: &Arc<Disk>,
    stop: &Arc<AtomicBool>,
) -> Worker {
    let nr_cpus = u32::from(disk.queue.config().topology.nr_cpus);
    let pin = job.cpus_allowed.as_ref().map(|cpus| match job.cpus_allowed_policy {
        CpusPolicy::Shared => cpus.clone(),
        CpusPolicy::Split => vec![cpus[user.instance as usize % cpus.len()]],
    });
    // A thread pinned to one CPU submits from that CPU's software queue; others are dealt out in turn.
    let cpu = match pin.as_deref() {
        Some([one]) => *one % nr_cpus,
        _ => (user.number - 1) % nr_cpus,
    };
    Worker {
        job: thread,
        disk: Arc::clone(disk),
        disk_index: 0,
        buffers,
        cpu: CpuId::new(cpu),
        pin,
        live: Arc::new(Live::default()),
        stop: Arc::clone(stop),
        others: Arc::default(),
        polled: job.hipri,
        weight: job.weight,
        batch: job.iodepth_batch_submit,
        trace_events: 0,
    }
}

/// Tells every thread on which CPUs the others on its disk are.
fn introduce(workers: &mut [Worker]) {
    let homes: Vec<(usize, CpuId)> = workers.iter().map(|w| (w.disk_index, w.cpu)).collect();
    for (i, w) in workers.iter_mut().enumerate() {
        let others = homes.iter().enumerate().filter(|(j, (disk, _))| *j != i && *disk == w.disk_index);
        w.others = others.map(|(_, (_, cpu))| *cpu).collect();
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
