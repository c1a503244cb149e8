// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A simulated machine as a world: `sim:FILE` runs the jobs in virtual time on the machine that a file describes.
//!
//! Guarantees: the machine runs our block layer, so a run has the same figures as on this host (stages, hardware queues,
//! settings in effect), all in virtual time. The same file, jobs, settings and random number give the same figures. Jobs
//! that need data or a page cache are rejected before anything runs. Needs: a file that [`Scenario::parse_machine`]
//! accepts. Does not: read a clock; the caller measures how long a simulation takes.

pub mod guests;
mod watch;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use blk::time::Duration;
use host::error::{Error, Result};
use host::run::{DiskOutcome, LogFiles, RunOutcome, ThreadEnd};
use host::target::{TargetSpec, has_kind};
use sim::machine::jobs::{self, DiskSpec, JobsRun, refusal};
use sim::scenario::build::{self, Built};
use sim::scenario::file::{Attach, Row, Scalar, Scenario};
use sim::scenario::unmodelled::Traffic;
use workload::job::{Dir, Job, JobFile};
use workload::schedule;
use workload::stats::{CpuUse, JobStats};

use super::{SimulatedMachines, World};
use crate::run::{Observer, Run, RunSpec};
use crate::simulated::Simulated;
use crate::stack::{self, Setting};
use crate::tune::point::Knobs;
use crate::tune::stack_knobs::{self, Ends};
use watch::{Sampled, Sampler};

/// Largest machine file that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The random number of a run without a given one. Any constant is suitable.
const ENTROPY: u64 = 1;

impl World for SimulatedMachines {
    fn name(&self) -> &'static str {
        "a simulated machine"
    }

    fn check(&self, target: Option<&str>, settings: &[(String, String)]) -> Result<()> {
        let Some(path) = target.map(path_of).transpose()? else { return Ok(()) };
        built(&load(&path)?, settings).map(drop)
    }

    fn same(&self, target: Option<&str>, a: &[(String, String)], b: &[(String, String)]) -> Option<String> {
        let scenario = load(&path_of(target?).ok()?).ok()?;
        let (a, b) = (built(&scenario, a).ok()?, built(&scenario, b).ok()?);
        let why = a.no_effect.iter().chain(&b.no_effect).next()?;
        (a.effective == b.effective && a.no_effect != b.no_effect).then(|| {
            // The sentence names the setting of one side, but the answer is about both.
            why.split_once(": ")
                .map_or_else(|| why.clone(), |(_, why)| why.trim_start_matches("no effect: ").to_owned())
        })
    }

    fn entropy(&self, _fresh: u64) -> u64 {
        ENTROPY
    }

    fn machine(&self, file: &JobFile, target: Option<&str>) -> Option<String> {
        let (_, path) = target_of(file, target).ok()?;
        Some(Simulated::of(&path, &load(&path).ok()?).text())
    }

    fn behind(&self, file: &JobFile, target: Option<&str>) -> Result<Option<String>> {
        let (_, path) = target_of(file, target)?;
        read(&path).map(Some)
    }

    fn knobs(&self, spec: &RunSpec<'_, '_>, _observer: &mut dyn Observer) -> Result<Knobs> {
        let (_, path) = target_of(spec.file, spec.target)?;
        refuse(spec)?;
        let scenario = load(&path)?;
        let built = built(&scenario, spec.settings)?;
        let machine =
            jobs::idle(scenario.machine, scenario.costs, &built.disk).map_err(|e| Error::usage(e.to_string()))?;
        let mut now = stack::in_effect(machine.disk(0), spec.settings);
        now.extend(lun_queue_depth(&built.disk, spec.settings));
        let (cpus, disk) = (scenario.machine.cpus(), &scenario.disk);
        let ends = Ends {
            hw_queues: disk.hw_queues_max(cpus),
            // Tags that the user gave the disk are there.
            tags: disk.queue_depth.max(built.disk.config.queue_depth),
            // Drivers of NVMe and virtio never had the single-queue path.
            has_sq: matches!(disk.attach, Attach::Scsi | Attach::Mmc),
            ..Ends::of(machine.disk(0))
        };
        Ok(stack_knobs::of(&now, ends))
    }

    fn run<'f>(&self, spec: &RunSpec<'f, '_>, observer: &mut dyn Observer) -> Result<Run<'f>> {
        let (text, path) = target_of(spec.file, spec.target)?;
        refuse(spec)?;
        let scenario = load(&path)?;
        let Built { disk, no_effect, .. } = build::check(&scenario, &row(spec.settings))
            .and_then(|_| build::disk(&scenario, &row(spec.settings), spec.entropy))
            .map_err(|e| Error::usage(e.to_string()))?;
        let machine = Simulated::of(&path, &scenario);
        let files = scenario.settings.iter().map(|(k, v)| (k.clone(), v.text()));
        let asked: Vec<(String, String)> = files.chain(spec.settings.iter().cloned()).collect();
        let jobs = &spec.file.jobs;
        let instances = schedule::plan(jobs, spec.entropy).map_err(|e| Error::usage(e.to_string()))?;
        let logs = if spec.files.is_some() { LogFiles::of(jobs, &instances) } else { None };
        let mut sampler = Sampler::new(spec, &asked, &machine, observer, logs);
        let run = jobs::run_watched(scenario.machine, scenario.costs, &disk, jobs, spec.entropy, &mut sampler)
            .map_err(|e| Error::usage(e.to_string()))?;
        let mut seen = sampler.seen();
        seen.settings.extend(lun_queue_depth(&disk, &asked));
        let traffic = Traffic::of(&scenario.disk, &run);
        let mut ran = outcome(spec.file, text, run, machine, seen);
        ran.traffic = Some(traffic);
        ran.warnings = no_effect;
        ran.warnings.extend(ran.outcome.not_done.iter().cloned());
        Ok(ran)
    }
}

/// The setting that only SCSI disks have.
fn lun_queue_depth(disk: &DiskSpec, asked: &[(String, String)]) -> Option<Setting> {
    Some(Setting {
        name: "lun_queue_depth".to_owned(),
        value: disk.scsi?.lun_queue_depth.to_string(),
        default: !asked.iter().any(|(key, _)| key == "lun_queue_depth"),
        help: "maximum of commands in flight per LUN, over all hardware queues".to_owned(),
    })
}

/// CPUs of the machine of a target, if it is not this host. A file that cannot be read is rejected later.
pub(super) fn cpus_of(target: &str) -> Option<u32> {
    Some(load(&path_of(target).ok()?).ok()?.machine.cpus())
}

fn path_of(target: &str) -> Result<PathBuf> {
    match TargetSpec::parse(target)? {
        TargetSpec::Sim(path) => Ok(path),
        _ => Err(Error::usage(format!("target '{target}': is not a simulated machine"))),
    }
}

/// The one machine of a run, as the user named it.
fn target_of(file: &JobFile, target: Option<&str>) -> Result<(String, PathBuf)> {
    if let Some(target) = target {
        return Ok((target.to_owned(), path_of(target)?));
    }
    let first = file.jobs.first().map(|j| j.file_name(0, 0, &has_kind)).unwrap_or_default();
    for job in &file.jobs {
        let own = (0..job.numjobs).flat_map(|i| job.file_names(i, &has_kind));
        let redo = (0..job.numjobs).filter_map(|i| job.redo_file_name(i, &has_kind));
        if let Some(other) = own.chain(redo).find(|name| *name != first) {
            let (name, line) = (&job.name, job.line);
            return Err(Error::usage(format!(
                "job '{name}', line {line}: '{other}' and '{first}': all jobs run on one simulated machine; name the \
                 same one in each, or use --target {first}"
            )));
        }
    }
    Ok((first.clone(), path_of(&first)?))
}

/// Reads the text of a machine file.
fn read(path: &Path) -> Result<String> {
    let name = path.display().to_string();
    let mut text = String::new();
    let read = File::open(path).and_then(|f| f.take(FILE_BYTES_MAX + 1).read_to_string(&mut text));
    let remedy = "name a machine file: TOML with [machine] and [disk], such as scenarios/azure-p80.toml";
    read.map_err(|e| Error::os(e, format!("target 'sim:{name}': cannot be read; {remedy}")))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(Error::usage(format!("target 'sim:{name}': is larger than {FILE_BYTES_MAX} bytes; {remedy}")));
    }
    Ok(text)
}

fn parse(path: &Path, text: &str) -> Result<Scenario> {
    Scenario::parse_machine(&path.display().to_string(), text).map_err(|e| Error::usage(e.to_string()))
}

fn load(path: &Path) -> Result<Scenario> {
    let scenario = parse(path, &read(path)?)?;
    if let Some(guests) = &scenario.guests {
        let (name, n) = (path.display(), guests.users[0]);
        return Err(Error::usage(format!(
            "target 'sim:{name}': has [guests]: their users are the load, so it runs no jobs; use mqblk sim {name}, or \
             mqblk tune --target sim:{name} --maximize users{n}.tpm without a job"
        )));
    }
    Ok(scenario)
}

/// Makes a row of the file from settings.
fn row(settings: &[(String, String)]) -> Row {
    let set = settings.iter().map(|(k, v)| (k.clone(), Scalar::Word(v.clone()))).collect();
    Row { name: "settings".to_owned(), set, ..Row::default() }
}

fn built(scenario: &Scenario, settings: &[(String, String)]) -> Result<Built> {
    build::check(scenario, &row(settings)).map_err(|e| Error::usage(e.to_string()))
}

/// Rejects what a simulated machine does not model.
fn refuse(spec: &RunSpec<'_, '_>) -> Result<()> {
    if spec.trace_events > 0 {
        let text = "--trace: simulated machines record no request events; leave it out (the report has stage times)";
        return Err(Error::usage(text));
    }
    if spec.force {
        return Err(Error::usage("--force: is for devices of the kernel (kernel:/dev/X); leave it out"));
    }
    let discards = |job: &Job| job.rw.has(Dir::Trim).then_some("rw: a simulated disk has no discard; leave trims out");
    let remedy = |job: &Job| refusal(job).or_else(|| discards(job));
    match spec.file.jobs.iter().find_map(|j| Some((j, remedy(j)?))) {
        None => Ok(()),
        Some((job, text)) => Err(Error::usage(format!("{text} (job '{}', line {})", job.name, job.line))),
    }
}

/// Makes a run from a simulation.
fn outcome<'f>(file: &'f JobFile, target: String, run: JobsRun, machine: Simulated, seen: Sampled) -> Run<'f> {
    let before = &seen.baseline;
    let (elapsed, measured) = (run.elapsed_ns, run.elapsed_ns.saturating_sub(before.elapsed_ns).max(1));
    let all_cpus = measured as f64 * f64::from(machine.cpus);
    let spent = |now: u64, then: u64| now.saturating_sub(then);
    let (now, then) = (&run.cpu, &before.cpu);
    let compute = spent(now.compute_ns, then.compute_ns);
    let busy = spent(now.busy_ns(), then.busy_ns());
    let ended = |(i, mut stats): (usize, JobStats)| {
        let cpu = spent(run.thread_cpu_ns[i], before.thread_cpu_ns.get(i).copied().unwrap_or(0));
        stats.cpu = CpuUse { sys_ns: cpu, ..CpuUse::default() };
        run.started[i].then_some(ThreadEnd {
            stats,
            verify_errors: Vec::new(),
            traces: Vec::new(),
            verify_state: None,
            not_dumped: None,
        })
    };
    let threads: Vec<Option<ThreadEnd>> = run.stats.into_iter().enumerate().map(ended).collect();
    let total: u64 = threads.iter().flatten().map(|t| t.stats.total_ios()).sum();
    let hctxs = run.hctxs.iter().zip(&before.hctxs).map(|(now, then)| now.since(then)).collect();
    let disk = DiskOutcome {
        name: target.clone(),
        stats: run.disk.since(&before.disk),
        hctxs,
        scheduler: seen.scheduler.clone(),
    };
    let outcome = RunOutcome {
        threads,
        steady: run.steady,
        instances: run.instances,
        disks: vec![disk],
        kernel: Vec::new(),
        devices: vec![target],
        elapsed: Duration::from_ns(elapsed),
        measured: Duration::from_ns(measured),
        process: CpuUse { usr_ns: compute, sys_ns: busy - compute.min(busy), ..CpuUse::default() },
        ios: total.saturating_sub(before.ios),
        in_flight: seen.in_flight,
        cpus: Vec::new(),
        stopped: run.stopped,
        given_up: Vec::new(),
        not_put_back: Vec::new(),
        not_done: seen.not_done,
    };
    let simulated = Simulated {
        busy: busy as f64 / all_cpus,
        spin: spent(now.spin_ns, then.spin_ns) as f64 / all_cpus,
        events: run.events,
        ..machine
    };
    Run {
        file,
        outcome,
        settings: vec![seen.settings],
        warnings: Vec::new(),
        simulated: Some(simulated),
        traffic: None,
    }
}
