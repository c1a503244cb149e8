// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The specification of a run, its execution on this host, and its measurements as reports, metrics and records.
//!
//! Guarantees: reports follow fio's rules for groups (`group_reporting`, `new_group`, `stonewall`). Stage times, costs and
//! Little's law cover the same part of the run, and figures that could not be measured well enough are `None`. Needs from
//! callers: a parsed job file, a stop flag and an [`Observer`]. Does not: print, or decide what an error means for an exit
//! code. [`pairs`](crate::pairs) runs pairs of such runs.

mod detail;
mod fio;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use host::error::Result;
use host::kernel::DiskCounters;
use host::run::{DiskOutcome, Observe, Prepared, Progress, RunOutcome, RunPlan, RunTarget};
use sim::scenario::unmodelled::Traffic;
use workload::job::JobFile;
use workload::schedule::Instance;
use workload::stats::{DirStats, EndedBy, JobStats, LatencyStats};
use workload::verify::VerifyError;

use crate::iostat::Iostat;
use crate::little::Little;
use crate::metric::{JobMetrics, RunMetrics};
use crate::plan::{Side, Step};
use crate::results::{RawHistogram, RunRecord};
use crate::simulated::Simulated;
use crate::stack::{self, Setting};
use crate::stage::StageFacts;

/// With fewer samples of the number in flight, Little's law is not checked.
const IN_FLIGHT_SAMPLES_MIN: u64 = 30;
/// Largest standard error of the number in flight, relative to its mean, with which Little's law is checked. It is a third
/// of the tolerance, so that a disagreement is not due to sampling.
const IN_FLIGHT_ERROR_MAX: f64 = crate::little::TOLERANCE / 3.0;

/// A run to make.
#[derive(Clone)]
pub struct RunSpec<'f, 's> {
    /// The jobs.
    pub file: &'f JobFile,
    /// The target of every job, instead of its `filename`.
    pub target: Option<&'s str>,
    /// Settings of every disk.
    pub settings: &'s [(String, String)],
    /// Random number for jobs without a fixed seed (`randrepeat=0`).
    pub entropy: u64,
    /// Ends the run early when set. The result is then what was measured until that time.
    pub stop: Arc<AtomicBool>,
    /// Maximum number of events each thread traces; 0 = no trace.
    pub trace_events: usize,
    /// Also use a kernel device that is in use or contains data; see [`RunPlan::force`].
    pub force: bool,
    /// Keep latencies over time, for reports ([`workload::slices`]).
    pub slices: bool,
    /// Write the files that jobs leave: the per-interval logs that they ask for, and, in this directory, verify states. `None`:
    /// write none, and read states in the working directory.
    pub files: Option<&'s Path>,
}

/// Receives progress of a run.
pub trait Observer {
    /// A file is being created: bytes written so far, and total bytes. The return value may interrupt it.
    fn laying_out(&mut self, _path: &Path, _done: u64, _all: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// Everything is checked and open; the run begins.
    fn prepared(&mut self, _run: &Prepared) {}

    /// The run begins on a simulated machine. There is nothing to prepare, and progress is in virtual time.
    fn simulated(&mut self, _machine: &Simulated, _instances: &[Instance]) {}

    /// The run is in progress; called every few milliseconds.
    fn progress(&mut self, _progress: &Progress) {}

    /// Whether [`Observer::status`] is to be called soon. Asked after each progress.
    fn wants_status(&mut self) -> bool {
        false
    }

    /// The run as measured so far. A simulated run is not asked for it.
    fn status(&mut self, _so_far: &Run<'_>) {}

    /// A comparison begins run number `index` (from 0) of `runs`.
    fn step(&mut self, _index: u32, _runs: u32, _step: Step) {}
}

/// An observer that ignores everything.
#[derive(Clone, Copy, Debug)]
pub struct Unobserved;

impl Observer for Unobserved {}

/// A run that completed or was stopped.
pub struct Run<'a> {
    /// The jobs.
    pub file: &'a JobFile,
    /// The measurements.
    pub outcome: RunOutcome,
    /// Settings in effect, per disk in the order of [`RunOutcome::disks`], or of [`RunOutcome::kernel`].
    pub settings: Vec<Vec<Setting>>,
    /// Deviations from what was requested.
    pub warnings: Vec<String>,
    /// The machine that the run was simulated on; then all times are virtual. `None`: it ran on this host.
    pub simulated: Option<Simulated>,
    /// The requests that reached the simulated device.
    pub traffic: Option<Traffic>,
}

/// Checks `spec` and opens its targets on this host. Nothing runs yet.
pub(crate) fn prepare_here(spec: &RunSpec<'_, '_>, observer: &mut dyn Observer) -> Result<Prepared> {
    host::run::prepare(
        &spec.file.jobs,
        RunPlan {
            target: spec.target,
            settings: spec.settings,
            laying_out: &mut |path, done, all| observer.laying_out(path, done, all),
            stop: Arc::clone(&spec.stop),
            entropy: spec.entropy,
            force: spec.force,
            aux_dir: spec.files.unwrap_or(Path::new("")),
        },
    )
}

/// Passes on what happens in a run of this host.
struct Watcher<'a> {
    file: &'a JobFile,
    settings: &'a [Vec<Setting>],
    observer: &'a mut dyn Observer,
}

impl Observe for Watcher<'_> {
    fn progress(&mut self, progress: &Progress) {
        self.observer.progress(progress);
    }

    fn wants_status(&mut self) -> bool {
        self.observer.wants_status()
    }

    fn status(&mut self, outcome: RunOutcome) {
        let (file, settings) = (self.file, self.settings.to_vec());
        self.observer.status(&Run { file, outcome, settings, warnings: Vec::new(), simulated: None, traffic: None });
    }
}

/// Executes `spec` in one of the worlds of this host.
pub(crate) fn execute_here<'f>(spec: &RunSpec<'f, '_>, observer: &mut dyn Observer) -> Result<Run<'f>> {
    let mut prepared = prepare_here(spec, observer)?;
    // All devices of a target have the same settings.
    let first = |t: &RunTarget| &prepared.disks[t.disks.start].1.queue;
    let ours = prepared.targets.iter().map(|t| stack::in_effect(first(t), spec.settings));
    let kernels = prepared.kernel.iter().map(|k| stack::of_kernel(&k.settings, spec.settings));
    let settings: Vec<Vec<Setting>> = ours.chain(kernels).collect();
    let mut warnings: Vec<String> = prepared.warnings.iter().map(ToString::to_string).collect();
    prepared.trace(spec.trace_events);
    if spec.slices {
        prepared.keep_slices();
    }
    if let Some(dir) = spec.files {
        prepared.write_files(&spec.file.jobs, dir, spec.target);
    }
    observer.prepared(&prepared);
    let disks: Vec<_> = prepared.disks.iter().map(|(_, disk)| Arc::clone(disk)).collect();
    let outcome = prepared.run_observed(&mut Watcher { file: spec.file, settings: &settings, observer })?;
    warnings.extend(outcome.cpus.iter().map(ToString::to_string));
    warnings.extend(outcome.given_up.iter().map(ToString::to_string));
    warnings.extend(outcome.not_put_back.iter().cloned());
    warnings.extend(outcome.not_done.iter().cloned());
    warnings.extend(disks.iter().flat_map(|disk| disk.driver.path().troubles()));
    Ok(Run { file: spec.file, outcome, settings, warnings, simulated: None, traffic: None })
}

impl Run<'_> {
    /// Measurements of the threads that ran.
    pub fn stats(&self) -> impl Iterator<Item = &JobStats> {
        self.outcome.threads.iter().flatten().map(|t| &t.stats)
    }

    /// I/Os that failed, plus blocks that did not verify, plus jobs that ended with an error of another kind.
    pub fn errors(&self) -> u64 {
        let ended = |s: &JobStats| u64::from(s.first_error != 0 || s.ended_by.is_some());
        self.stats().map(|s| s.total_errors.max(ended(s))).sum()
    }

    /// The first bad blocks of each thread, with the names of the job and, of several files, the file.
    pub fn verify_errors(&self) -> impl Iterator<Item = (String, &VerifyError)> {
        let threads = self.outcome.threads.iter().zip(&self.outcome.instances);
        threads.flat_map(|(end, i)| {
            let job = &self.file.jobs[i.job];
            let place = move |e: &VerifyError| match job.nr_files() {
                1 => format!("job '{}'", job.name),
                _ => format!("job '{}', file '{}'", job.name, job.file_name(i.instance, e.file as usize, &|_| false)),
            };
            end.iter().flat_map(|e| &e.verify_errors).map(move |e| (place(e), e))
        })
    }

    /// The jobs that ended with an error although no I/O failed, with their names.
    pub fn ended_by(&self) -> impl Iterator<Item = (&str, &EndedBy)> {
        let threads = self.outcome.threads.iter().zip(&self.outcome.instances);
        threads
            .filter_map(|(end, i)| Some((self.file.jobs[i.job].name.as_str(), end.as_ref()?.stats.ended_by.as_ref()?)))
    }

    /// Blocks that did not verify.
    pub fn verify_error_count(&self) -> u64 {
        self.stats().map(|s| s.verify_errors).sum()
    }

    /// Stages, merges and hctx counts of one disk. There are no costs, because costs cannot be split between disks.
    pub fn disk_facts(&self, disk: &DiskOutcome) -> StageFacts {
        StageFacts::of(&disk.stats, &disk.hctxs, 0)
    }

    /// The kernel's counters, if the run used the kernel's devices.
    pub fn iostat(&self) -> Vec<Iostat> {
        let measured = self.outcome.measured.as_ns();
        self.outcome.kernel.iter().map(|k| Iostat::of(k, measured)).collect()
    }

    /// Stages, merges, hctx counts, costs and Little's law of the run, over all disks.
    pub fn facts(&self) -> StageFacts {
        let mut facts = StageFacts::default();
        for disk in &self.outcome.disks {
            facts.merge(&self.disk_facts(disk));
        }
        facts.merges +=
            self.outcome.kernel.iter().filter_map(|k| k.counters.as_ref()).map(DiskCounters::merges).sum::<u64>();
        facts.ios = self.outcome.ios;
        facts.cpu_ns = self.outcome.process.usr_ns + self.outcome.process.sys_ns;
        facts.context_switches = self.outcome.process.ctx;
        let (count, lat_ns) = self.latency_sum();
        // Completion is the remainder of the latency that the submitters measured.
        facts.times = facts.times.with_completion(lat_ns as u64, count);
        facts.little = self.little(count, lat_ns);
        facts.traffic = self.traffic;
        facts
    }

    /// I/Os and flushes that the threads completed, and the sum of their latencies from creation to completion.
    fn latency_sum(&self) -> (u64, f64) {
        let latencies = |s: &JobStats| -> Vec<(u64, f64)> {
            let all = s.dirs.iter().map(|d| &d.lat).chain([&s.sync.lat]);
            all.map(|l: &LatencyStats| (l.run.count(), l.run.mean())).collect()
        };
        self.stats().flat_map(latencies).fold((0, 0.0), |(n, sum), (count, mean)| {
            (n + count, if count > 0 { sum + count as f64 * mean } else { sum })
        })
    }

    fn little(&self, count: u64, lat_ns: f64) -> Option<Little> {
        let seen = self.outcome.in_flight;
        let precise = seen.samples >= IN_FLIGHT_SAMPLES_MIN && seen.std_error <= IN_FLIGHT_ERROR_MAX * seen.mean;
        let seconds = self.outcome.measured.as_ns() as f64 / 1e9;
        Little::new(seen.mean, count as f64 / seconds, lat_ns / count as f64)
            .filter(|_| precise)
            .map(|l| l.over(seconds))
    }

    /// The metrics that a comparison compares.
    pub fn metrics(&self) -> RunMetrics {
        let stats: Vec<JobStats> = self.stats().cloned().collect();
        let cpu = self.outcome.process.usr_ns + self.outcome.process.sys_ns;
        let mut metrics = RunMetrics::of(&stats, None);
        if !self.all_at_once() {
            // Rates of threads that ran one after the other do not add up.
            metrics.rates_over(&stats, self.outcome.measured.as_ns());
        }
        // Costs are over the measured part of the run, whose I/Os the outcome counts.
        metrics.cpu_per_io_ns = (cpu > 0 && self.outcome.ios > 0).then(|| cpu as f64 / self.outcome.ios as f64);
        metrics
    }

    /// The metrics of the jobs called `name` alone. CPU time is left out, because the process spends it for all jobs.
    pub fn metrics_of(&self, name: &str) -> RunMetrics {
        let stats: Vec<JobStats> = self.threads_of(Some(name)).cloned().collect();
        let mut metrics = RunMetrics::of(&stats, None);
        let of_job = |i: &&Instance| self.file.jobs[i.job].name == name;
        if !began_together(self.outcome.instances.iter().filter(of_job)) {
            metrics.rates_over(&stats, self.outcome.measured.as_ns());
        }
        metrics
    }

    /// Statistics of the threads of the jobs called `name`; `None`: of all.
    pub(crate) fn threads_of(&self, name: Option<&str>) -> impl Iterator<Item = &JobStats> {
        let threads = self.outcome.threads.iter().zip(&self.outcome.instances);
        threads
            .filter(move |(_, i)| name.is_none_or(|name| self.file.jobs[i.job].name == name))
            .filter_map(|(t, _)| Some(&t.as_ref()?.stats))
    }

    /// The metrics of every job but those called `judged`, by name in the order of the file.
    fn others(&self, judged: &str) -> Vec<JobMetrics> {
        let mut found: Vec<JobMetrics> = Vec::new();
        for job in self.file.jobs.iter().map(|j| &j.name).filter(|name| *name != judged) {
            if found.iter().all(|f| f.job != *job) {
                found.push(JobMetrics { job: job.clone(), metrics: self.metrics_of(job) });
            }
        }
        found
    }

    /// Whether all threads began together: no `stonewall`, `wait_for` or `startdelay`.
    fn all_at_once(&self) -> bool {
        began_together(self.outcome.instances.iter())
    }

    /// CPU time of the job threads in percent of one CPU each.
    pub fn job_cpu_percent(&self) -> Option<f64> {
        let (cpu, ran) =
            self.stats().fold((0, 0), |(cpu, ran), s| (cpu + s.cpu.usr_ns + s.cpu.sys_ns, ran + s.runtime_ns));
        (ran > 0).then(|| 100.0 * cpu as f64 / ran as f64)
    }

    /// Makes the record of a run of a comparison. With `judge` the comparison covers only the jobs of that name.
    pub fn record(&self, pair: u32, side: Side, first: bool, judge: Option<&str>) -> RunRecord {
        RunRecord {
            pair,
            side,
            first,
            metrics: judge.map_or_else(|| self.metrics(), |name| self.metrics_of(name)),
            others: judge.map_or_else(Vec::new, |name| self.others(name)),
            stages: Some(self.facts()),
            job_cpu_percent: self.job_cpu_percent(),
            errors: self.errors(),
            verify_errors: self.verify_error_count(),
            histograms: self.histograms(),
            detail: Some(Box::new(self.detail(pair == 0, judge))),
        }
    }

    /// Raw latencies per job, over its instances.
    pub(crate) fn histograms(&self) -> Vec<RawHistogram> {
        let mut found = Vec::new();
        for (index, job) in self.file.jobs.iter().enumerate() {
            let mut sum = JobStats::default();
            let threads = self.outcome.threads.iter().zip(&self.outcome.instances);
            threads.filter(|(_, i)| i.job == index).filter_map(|(t, _)| t.as_ref()).for_each(|t| sum.merge(&t.stats));
            for dir in workload::job::Dir::ALL {
                found.extend(of_direction(&job.name, dir.name(), sum.dir(dir)));
            }
            found.extend(raw(&job.name, "sync", "lat", &sum.sync.lat));
            if let Some(tx) = &sum.tx {
                let kinds = [("lat", &tx.lat), ("read", &tx.read), ("commit", &tx.commit), ("redo", &tx.redo_lat)];
                found.extend(kinds.into_iter().filter_map(|(kind, l)| raw(&job.name, "transaction", kind, l)));
            }
        }
        found
    }
}

fn began_together<'a>(instances: impl Iterator<Item = &'a Instance>) -> bool {
    let mut first = None;
    instances.into_iter().all(|i| {
        let first = first.get_or_insert((i.wave, i.delay));
        i.after_job.is_none() && *first == (i.wave, i.delay)
    })
}

fn of_direction<'a>(job: &'a str, dir: &'a str, d: &'a DirStats) -> impl Iterator<Item = RawHistogram> + use<'a> {
    let kinds = [("slat", &d.slat), ("clat", &d.clat), ("lat", &d.lat), ("intended", &d.intended)];
    kinds.into_iter().filter_map(move |(kind, l)| raw(job, dir, kind, l))
}

fn raw(job: &str, dir: &str, kind: &str, l: &LatencyStats) -> Option<RawHistogram> {
    let hist = l.hist.as_deref().filter(|h| h.total() > 0)?;
    Some(RawHistogram { job: job.into(), dir: dir.into(), kind: kind.into(), bins: hist.bins().collect() })
}

#[cfg(test)]
mod tests;
