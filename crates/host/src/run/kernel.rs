// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs on the kernel's own block devices (`kernel:/dev/X`): checked, opened, their settings written.
//!
//! Guarantees: everything that can be refused without a write is refused before the first write. Settings are written last, and restored
//! when the run ends or fails ([`kernel::SettingsGuard`](crate::kernel::SettingsGuard)). Without `force` a device is refused if it is in
//! use, or if a job would overwrite a known signature on it. Needs: only kernel devices in one run, because settings mean something else
//! on other targets.

use super::direct::DirectDevices;
use super::give_up::GivenUp;
use super::grid::{Grid, check_block};
use super::prepare::{Content, Prepared, RunPlan, Target, buffers, check_size, pin_of, ready, targets_by_thread};
use super::watch::Watch;
use super::worker::{Worker, WorkerDevice, WorkerLoad};
use crate::create;
use crate::error::{Error, ErrorKind, Result};
use crate::image_lock::ImageLocks;
use crate::kernel::{self, Claim, DiskCounters, Effect, KernelDevice, Planned, SettingsGuard};
use crate::mem::Regions;
use crate::secrets::without_secrets;
use crate::target::{TargetSpec, TargetWarning};
use blk::id::CpuId;
use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use workload::engine::{FileTarget, JobThread, ThreadId};
use workload::job::{Dir, Job};
use workload::load::{Load, Volume};
use workload::oltp::Oltp;
use workload::schedule::Instance;
use workload::together::Together;

/// A device of the kernel in a run.
pub struct KernelTarget {
    /// The target as the user named it.
    pub name: String,
    /// What it is.
    pub device: KernelDevice,
    /// Settings of its disk, as they are while it runs.
    pub settings: Vec<(String, String)>,
    _claim: Option<Arc<Claim>>,
}

/// What happened on one of the kernel's devices while it was measured.
#[derive(Clone, Debug)]
pub struct KernelOutcome {
    /// The target as the user named it.
    pub name: String,
    /// What it is: kind, size, model.
    pub identity: String,
    /// What the kernel counted; `None` if its counters are off (`iostats=0`).
    pub counters: Option<DiskCounters>,
}

impl KernelTarget {
    pub(super) fn outcome(&self, before: &DiskCounters) -> KernelOutcome {
        let counts = !self.settings.iter().any(|(name, value)| name == "iostats" && value == "0");
        KernelOutcome {
            name: self.name.clone(),
            identity: self.device.identity(),
            counters: counts.then(|| DiskCounters::read(&self.device).since(before)),
        }
    }
}

/// Returns the outcome of the run on the kernel's devices: their counters, and what was given up on all devices.
pub(super) fn conclude(
    kernel: &[KernelTarget],
    watch: &Watch<'_>,
    mut given_up: Vec<GivenUp>,
) -> (Vec<KernelOutcome>, Vec<GivenUp>) {
    let counted = kernel.iter().zip(&watch.baseline.kernel).map(|(k, before)| k.outcome(before)).collect();
    let left: u64 = watch.threads.iter().map(|t| t.live.in_flight.load(Ordering::Relaxed)).sum();
    if left > 0 {
        let disk = kernel.iter().map(|k| k.name.as_str()).collect::<Vec<_>>().join(", ");
        given_up.push(GivenUp { disk, ios: left, left });
    }
    (counted, given_up)
}

/// Restores settings. Returns what could not be restored. Restores none with I/O in flight that does not complete, because the kernel
/// would wait for that I/O.
pub(super) fn put_back(kept: Vec<SettingsGuard>, is_idle: bool) -> Vec<String> {
    let end = |kept: SettingsGuard| if is_idle { kept.put_back() } else { vec![kept.leave()] };
    kept.into_iter().flat_map(end).collect()
}

/// A target that is open.
struct Opened {
    /// The descriptor for direct I/O, if jobs ask for it.
    direct: Option<Arc<OwnedFd>>,
    buffered: Option<Arc<OwnedFd>>,
    bytes: u64,
    block: u32,
}

/// Whether a target is a device of the kernel.
pub(super) fn is_kernel(target: &Target) -> bool {
    matches!(target.spec, TargetSpec::Kernel(_))
}

/// Refuses settings that the device cannot have; nothing is written.
///
/// # Errors
/// The device is not there, or cannot have a setting.
pub fn check_kernel_settings(path: &Path, settings: &[(String, String)]) -> Result<Planned> {
    kernel::plan(&KernelDevice::find(path)?, settings, Effect::Any)
}

/// Checks, opens, makes the threads and writes the settings.
pub(super) fn prepare(
    jobs: &[Job],
    plan: RunPlan<'_>,
    instances: Vec<Instance>,
    targets: &[Target],
) -> Result<Prepared> {
    check_alike(targets)?;
    let mut warnings = Vec::new();
    let (mut opened, mut shown) = (Vec::new(), Vec::<(KernelTarget, Planned)>::new());
    let mut claims = Claims::default();
    let effects = effects(jobs, targets)?;
    for target in targets {
        let TargetSpec::Kernel(path) = &target.spec else { unreachable!("all are, as was just found") };
        let device = KernelDevice::find(path)?;
        let (said, whole) = kernel::put_back_left(Some(&device))?;
        if !whole {
            return Err(Error::new(ErrorKind::Io, said.join("; ")));
        }
        warnings.extend(said);
        check_jobs(jobs, target)?;
        let effect = effects.iter().find(|(disk, _)| *disk == device.disk).map_or(Effect::Any, |(_, effect)| *effect);
        let planned = kernel::plan(&device, plan.settings, effect)?;
        if !planned.writes.is_empty() {
            SettingsGuard::check_free(&device)?;
        }
        warnings.extend(planned.without_effect.iter().map(ToString::to_string));
        let writes = target.users.iter().any(|u| writes(&jobs[u.instance.job]));
        let claim = guard(&device, writes, !planned.writes.is_empty(), plan.force, &mut claims, &mut warnings)?;
        opened.push(open(jobs, target, &device, writes, plan.force, &mut warnings)?);
        shown.push((KernelTarget { name: target.text.clone(), device, settings: Vec::new(), _claim: claim }, planned));
    }
    let regions = Arc::new(Regions::new());
    let mut workers = Vec::new();
    for (instance, own) in instances.iter().zip(targets_by_thread(targets, &instances)) {
        let own: Vec<_> = own.into_iter().map(|(target, content)| (&opened[target], content)).collect();
        workers.push(worker(&jobs[instance.job], instance, &own, &regions, &plan)?);
    }
    let mut kept: Vec<(String, SettingsGuard)> = Vec::new();
    for (target, planned) in &shown {
        // Two partitions have one disk.
        if kept.iter().all(|(disk, _)| *disk != target.device.disk) {
            let (own, said) = SettingsGuard::apply(&target.device, planned)?;
            kept.extend(own.map(|own| (target.device.disk.clone(), own)));
            warnings.extend(said);
        }
    }
    shown.iter_mut().for_each(|(target, _)| target.settings = kernel::in_effect(&target.device));
    warnings.dedup();
    Ok(Prepared {
        workers,
        together: Together::new(jobs, &instances),
        instances,
        disks: Vec::new(),
        targets: Vec::new(),
        kernel: shown.into_iter().map(|(target, _)| target).collect(),
        kept: kept.into_iter().map(|(_, kept)| kept).collect(),
        warnings: warnings.into_iter().map(TargetWarning::new).collect(),
        ramps: jobs.iter().any(|j| j.ramp_time_ns > 0),
        logs: None,
        verify_files: None,
        stop: Arc::clone(&plan.stop),
        to_remove: Vec::new(),
        locks: ImageLocks::default(),
    })
}

/// Refuses other targets beside devices of the kernel.
fn check_alike(targets: &[Target]) -> Result<()> {
    let Some(other) = targets.iter().find(|t| !is_kernel(t)) else { return Ok(()) };
    let shown = without_secrets(&other.text);
    let device = targets.iter().find(|t| is_kernel(t)).map_or("", |t| t.text.as_str());
    Err(Error::usage(format!(
        "'{shown}' beside '{device}': a run uses the kernel's block layer or mqblk's, not both; give all jobs one kind of target, or use --target"
    )))
}

/// Refuses job options that only our block layer can carry out.
fn check_jobs(jobs: &[Job], target: &Target) -> Result<()> {
    for job in target.users.iter().map(|u| &jobs[u.instance.job]) {
        let refuse = |text: &str| Err(Error::usage(format!("{text} ({})", job.place())));
        if job.hipri {
            return refuse(&format!("hipri: {} does not support polled I/O; leave hipri out", target.text));
        }
        if job.weight.is_some() {
            return refuse(
                "cgroup_weight: the kernel takes weights from cgroups: leave it out, and start the run in a cgroup with io.bfq.weight",
            );
        }
    }
    Ok(())
}

/// Whether the jobs on each disk all bypass the page cache. Partitions of a disk share one queue, with one value of each setting.
fn effects(jobs: &[Job], targets: &[Target]) -> Result<Vec<(String, Effect)>> {
    let mut effects: Vec<(String, Effect)> = Vec::new();
    for target in targets {
        let TargetSpec::Kernel(path) = &target.spec else { unreachable!("all are, as was just found") };
        let disk = KernelDevice::find(path)?.disk;
        let own = match target.users.iter().all(|u| jobs[u.instance.job].direct) {
            true => Effect::DirectOnly,
            false => Effect::Any,
        };
        match effects.iter_mut().find(|(other, _)| *other == disk) {
            Some((_, of_disk)) if own == Effect::Any => *of_disk = own,
            Some(_) => {}
            None => effects.push((disk, own)),
        }
    }
    Ok(effects)
}

fn writes(job: &Job) -> bool {
    job.rw.has(Dir::Write) || job.rw.has(Dir::Trim) || job.oltp.is_some()
}

/// Claims of a run, by the kernel's name of the device: one claim for all targets that need it.
#[derive(Default)]
struct Claims(Vec<(String, Arc<Claim>)>);

impl Claims {
    /// Claims a device, or its whole disk. `Ok(Err(user))`: the device is in use.
    fn take(&mut self, device: &KernelDevice, whole_disk: bool) -> Result<std::result::Result<Arc<Claim>, String>> {
        let name = if whole_disk { &device.disk } else { &device.name };
        if let Some((_, claim)) = self.0.iter().find(|(claimed, _)| claimed == name) {
            return Ok(Ok(Arc::clone(claim)));
        }
        let Some(claim) = Claim::take(device, whole_disk)? else {
            // A disk and its partition cannot both be claimed.
            let related =
                |other: &&(String, Arc<Claim>)| other.0 == device.disk || device.partitions().contains(&other.0);
            return Ok(Err(match self.0.iter().find(related) {
                Some((other, _)) => format!("another job of this run uses {other}, which shares blocks with it"),
                None => format!("another process has {} open exclusively", device.name),
            }));
        };
        let claim = Arc::new(claim);
        self.0.push((name.clone(), Arc::clone(&claim)));
        Ok(Ok(claim))
    }
}

/// Rejects a device in use if the run writes to it, or to its disk's settings, which are shared.
fn guard(
    device: &KernelDevice,
    writes: bool,
    sets: bool,
    force: bool,
    claims: &mut Claims,
    warnings: &mut Vec<String>,
) -> Result<Option<Arc<Claim>>> {
    if !writes && !sets {
        return Ok(None);
    }
    let mut found = kernel::uses(device, sets)?;
    let mut claim = None;
    if found.is_empty() {
        match claims.take(device, sets)? {
            Ok(taken) => claim = Some(taken),
            Err(user) => found.push(user),
        }
    }
    if found.is_empty() {
        return Ok(claim);
    }
    let what = match (writes, sets) {
        (true, true) => "the job would write to it, and its settings would change under its users",
        (true, false) => "the job would write to it",
        _ => kernel::SETTINGS_CHANGE,
    };
    warnings.push(kernel::use_anyway(device, &found, what, force)?);
    Ok(None)
}

/// Opens the device, and refuses to overwrite a known signature.
fn open(
    jobs: &[Job],
    target: &Target,
    device: &KernelDevice,
    write: bool,
    force: bool,
    warnings: &mut Vec<String>,
) -> Result<Opened> {
    let shown = device.node.display().to_string();
    let used = || target.users.iter().map(|u| &jobs[u.instance.job]);
    let open = |direct: bool| -> Result<std::fs::File> {
        let flags = if direct { libc::O_DIRECT } else { 0 };
        OpenOptions::new().read(true).write(write).custom_flags(flags).open(&device.node).map_err(|e| {
            let how = if write { "for writing" } else { "for reading" };
            Error::os(
                e,
                format!(
                    "kernel:{shown}: cannot be opened {how}; this needs root, and for writing a device that is not read-only"
                ),
            )
        })
    };
    let mut first = open(false)?;
    let bytes =
        first.seek(SeekFrom::End(0)).map_err(|e| Error::os(e, format!("kernel:{shown}: its size is not known")))?;
    if write {
        let mut found: Vec<String> = kernel::found_on(&device.node, bytes)?.into_iter().map(str::to_owned).collect();
        let partitions = if device.is_partition() { Vec::new() } else { device.partitions() };
        if !partitions.is_empty() {
            found.push(format!("partitions ({})", partitions.join(", ")));
        }
        if !found.is_empty() && force {
            warnings.push(format!(
                "{}: there is {} on it, which is overwritten because of --force",
                device.name,
                found.join(" and ")
            ));
        } else if !found.is_empty() {
            let found = found.join(" and ");
            return Err(Error::usage(format!(
                "kernel:{shown}: there is {found} on it, and the job would write over it. Take another device, wipe this one (wipefs \
                 --all), or add --force"
            )));
        }
    }
    let block = logical_block(&first, &shown)?;
    let usable = bytes / u64::from(block) * u64::from(block);
    check_size(&shown, usable, target.bytes_planned(jobs).unwrap_or(0))?;
    if used().any(|j| !j.direct && j.invalidate) {
        create::drop_cached_pages(&device.node)?;
    }
    let direct = if used().any(|j| j.direct) { Some(Arc::new(open(true)?.into())) } else { None };
    let buffered = used().any(|j| !j.direct).then(|| Arc::new(first.into()));
    Ok(Opened { direct, buffered, bytes: usable, block })
}

const BLKSSZGET: libc::c_ulong = 0x1268;

fn logical_block(file: &std::fs::File, shown: &str) -> Result<u32> {
    let mut block: libc::c_int = 0;
    // SAFETY: the request writes an int to the address.
    match unsafe { libc::ioctl(file.as_raw_fd(), BLKSSZGET as _, &raw mut block) } {
        0 if block >= 512 => Ok(block as u32),
        _ => Err(Error::last_os(format!("kernel:{shown}: its logical block size is not known"))),
    }
}

/// The thread of an instance on its devices.
fn worker(
    job: &Job,
    instance: &Instance,
    own: &[(&Opened, Content)],
    regions: &Arc<Regions>,
    plan: &RunPlan<'_>,
) -> Result<Worker> {
    let data = own[0].0;
    let id = ThreadId { instance: instance.instance, number: instance.number, entropy: plan.entropy };
    let usage = |e: &dyn std::fmt::Display| Error::usage(e.to_string());
    let mut devices: Vec<&Opened> = own.iter().map(|(device, _)| *device).collect();
    let (load, volumes) = match &job.oltp {
        None => {
            let file = |(device, content): &(&Opened, Content)| match content {
                Content::Data(share) => FileTarget { bytes: device.bytes, share: *share },
                Content::Redo => unreachable!("a fio job has no redo log"),
            };
            let files: Vec<FileTarget> = own.iter().map(file).collect();
            let thread = JobThread::with_files(job, id, &files).map_err(|e| usage(&e))?;
            for ((device, _), file) in own.iter().zip(files) {
                let grid = Grid { block: device.block, takes_bytes: !job.direct, is_direct: job.direct };
                grid.check(job, instance.instance, file)?;
            }
            let volume = Volume { slots: thread.depth(), slot_bytes: super::worker::slot_bytes(&thread) as u32 };
            (WorkerLoad::Job(Box::new(thread)), vec![volume])
        }
        Some(oltp) => {
            check_block(job, "bs", job.min_block_bytes(), data.block)?;
            let redo = own.get(1).map(|(redo, _)| *redo);
            check_block(job, "redo_block_size", u64::from(oltp.redo_block_bytes), redo.unwrap_or(data).block)?;
            let load = Oltp::new(job, id, data.bytes, redo.map(|r| r.bytes)).map_err(|e| usage(&e))?;
            let volumes = load.volumes();
            // The redo log may be behind the data.
            devices = vec![data, redo.unwrap_or(data)];
            (WorkerLoad::Other(Box::new(load)), volumes)
        }
    };
    let open = |device: &&Opened| {
        let opened = if job.direct { &device.direct } else { &device.buffered };
        Arc::clone(opened.as_ref().expect("opened as its jobs ask for it"))
    };
    let devices = devices.iter().map(open).collect();
    let pools = volumes.into_iter().map(|volume| buffers(job, volume, regions)).collect::<Result<Vec<_>>>()?;
    let device = WorkerDevice::Direct(DirectDevices { devices, regions: Arc::clone(regions) });
    // The kernel's software queues do not depend on this CPU.
    Ok(ready(job, load, pools, device, (pin_of(job, instance), CpuId::new(0)), &plan.stop))
}
