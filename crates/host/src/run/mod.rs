// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs a job file on this machine: one thread per job instance, each with a submitter of its disk.
//!
//! [`prepare`] checks and opens everything. [`Prepared::run`] starts the threads at their start times, and reports progress to an
//! observer. It returns what was measured, also when the run was stopped early, whatever the devices do then.

pub(crate) mod settings;
mod waiter;
mod io_channel;
mod answer;
mod change;
mod cpus;
mod wait_set;
mod checkpoint;
mod commands;
mod worker;
mod job_loop;
mod plain;
mod wide;
mod direct;
mod kernel;
mod open;
mod layout;
mod logs;
mod prepare;
mod status;
mod verify_files;
mod watch;
mod give_up;
mod grid;

pub(crate) use change::{Frozen, change_settings, drain, replace_settings, wait_ended};
pub use checkpoint::{ThreadEnd, ThreadTrace};
pub use cpus::CpuChange;
pub use give_up::GivenUp;
pub use io_channel::IoChannel;
pub use kernel::{KernelOutcome, KernelTarget, check_kernel_settings};
pub use logs::LogFiles;
pub use prepare::{Prepared, RunPlan, RunTarget, prepare};
pub use settings::{RUN_SETTINGS, RunSettings, check_settings};
pub use status::Observe;
pub use watch::{InFlight, Progress, ThreadProgress, ThreadState};

use crate::clock;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::process::{UsageScope, since, usage};
use blk::stat::{DiskStats, HctxStats};
use blk::time::{Duration, Instant};
use cpus::CpuWatch;
use give_up::GiveUp;
use logs::LogWriter;
use status::{OnlyProgress, Request};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use watch::Watch;
use worker::Worker;
use workload::schedule::{Instance, Schedule};
use workload::stats::CpuUse;
use workload::steady::SteadyReport;

/// How often a run samples the I/O in flight, reports its progress and checks the stop flag.
const TICK: Duration = Duration::from_ms(20);

/// What happened on one disk while it was measured.
#[derive(Clone, Debug)]
pub struct DiskOutcome {
    /// The target as the user named it.
    pub name: String,
    /// Its counters.
    pub stats: DiskStats,
    /// Counters per hardware queue.
    pub hctxs: Vec<HctxStats>,
    /// Elevator in effect.
    pub scheduler: String,
}

/// What a run measured.
pub struct RunOutcome {
    /// Per thread, in the order of the job file; `None` for one that never started.
    pub threads: Vec<Option<ThreadEnd>>,
    /// What `steadystate` has found about each thread, or about a group at its last thread.
    pub steady: Vec<Option<SteadyReport>>,
    /// Which job instance each thread is.
    pub instances: Vec<Instance>,
    /// Per target, over [`RunOutcome::measured`]; for a stripe the sums over its devices.
    pub disks: Vec<DiskOutcome>,
    /// Outcomes of a run on the kernel's devices, instead of `disks`.
    pub kernel: Vec<KernelOutcome>,
    /// Names of the devices, indexed by [`ThreadTrace::disk`].
    pub devices: Vec<String>,
    /// From the first thread's start to the last one's end.
    pub elapsed: Duration,
    /// The measured part of `elapsed`: without the first group's `ramp_time`.
    pub measured: Duration,
    /// Resources of the whole process over [`RunOutcome::measured`].
    pub process: CpuUse,
    /// I/Os of all threads over [`RunOutcome::measured`], flushes not included.
    pub ios: u64,
    /// Bios in flight over [`RunOutcome::measured`], while threads ran.
    pub in_flight: InFlight,
    /// CPUs that went offline or came back during the run.
    pub cpus: Vec<CpuChange>,
    /// The run was stopped before its end.
    pub stopped: bool,
    /// Disks whose I/O did not complete when the run was stopped.
    pub given_up: Vec<GivenUp>,
    /// Settings of the kernel's devices that could not be restored.
    pub not_put_back: Vec<String>,
    /// What could not be done beside the I/O: logs that were not written, files that were not removed.
    pub not_done: Vec<String>,
}

impl Prepared {
    /// Runs all threads. Calls `observe` every few milliseconds. Returns the error of the first thread that could not run at all; I/O
    /// errors are part of the measurements.
    pub fn run(self, observe: &mut dyn FnMut(&Progress)) -> Result<RunOutcome> {
        self.run_observed(&mut OnlyProgress(observe))
    }

    /// As [`Prepared::run`], for an observer that may ask for measurements meanwhile.
    pub fn run_observed(mut self, observe: &mut dyn Observe) -> Result<RunOutcome> {
        let mut schedule = Schedule::new(self.instances.clone());
        let mut workers: Vec<_> = std::mem::take(&mut self.workers).into_iter().map(Some).collect();
        assert_eq!(workers.len(), self.instances.len(), "one worker per scheduled thread");
        let mut running: Vec<Option<JoinHandle<Result<ThreadEnd>>>> = workers.iter().map(|_| None).collect();
        let mut ends: Vec<Option<ThreadEnd>> = workers.iter().map(|_| None).collect();
        let watched = workers.iter().flatten().map(Worker::watched).collect();
        let mut watch = Watch::new(&self.disks, &self.kernel, watched, self.ramps);
        let cpus = CpuWatch::start(&self.disks);
        let mut give_up = GiveUp::new(&self.disks);
        let (ended, endings) = mpsc::channel();
        let logs = self.logs.take().map(LogWriter::start).transpose()?;
        let began = clock::now();
        let (mut failure, mut request) = (None, Request::default());
        let mut not_saved = Vec::new();
        while !schedule.is_done() {
            let now = clock::now();
            if self.stop.load(Ordering::Relaxed) {
                schedule.cancel();
                give_up.look(now);
            }
            let steady = self.together.look(now, &|i| watch::counts(&watch.threads[i]), &self.instances);
            end_early(&steady, &mut schedule, &watch);
            for i in self.together.start_ready(&mut schedule, now) {
                let mut worker = workers[i].take().expect("a thread starts once");
                worker.links.logs = logs.as_ref().map(|logs| logs.sink(i));
                running[i] = Some(spawn(i, worker, ended.clone())?);
                watch.threads[i].started = Some(now);
            }
            observe.progress(&watch.tick(now));
            if request.is_answered(now, &watch.threads, observe) {
                observe.status(self.so_far(&watch, status::so_far(&ends, &watch.threads), began));
            }
            let pause = schedule.next_start().map_or(TICK, |t| t.since(now).min(TICK));
            match endings.recv_timeout(std::time::Duration::from_nanos(pause.as_ns())) {
                Ok(i) => {
                    schedule.ended(i);
                    match join(running[i].take().expect("a thread that ended was running")) {
                        Ok(end) => {
                            end_early(
                                &self.together.ended(i, end.stats.first_error != 0, &schedule),
                                &mut schedule,
                                &watch,
                            );
                            not_saved.extend(self.verify_files.as_ref().and_then(|files| files.save(i, &end)));
                            not_saved.extend(end.not_dumped.clone());
                            ends[i] = Some(end);
                        }
                        Err(e) => {
                            self.stop.store(true, Ordering::Relaxed);
                            failure.get_or_insert(e);
                        }
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("this function holds a sender"),
            }
        }
        failure.map_or(Ok(()), Err)?;
        let mut outcome = self.so_far(&watch, ends, began);
        (outcome.kernel, outcome.given_up) = kernel::conclude(&self.kernel, &watch, give_up.ends());
        outcome.not_put_back = kernel::put_back(std::mem::take(&mut self.kept), outcome.given_up.is_empty());
        outcome.cpus = cpus.map(|c| c.seen()).unwrap_or_default();
        outcome.not_done = logs.map(LogWriter::finish).unwrap_or_default();
        outcome.not_done.append(&mut not_saved);
        outcome.not_done.extend(remove_files(&self.to_remove));
        Ok(outcome)
    }

    /// The run as measured by these threads until now.
    fn so_far(&self, watch: &Watch<'_>, threads: Vec<Option<ThreadEnd>>, began: Instant) -> RunOutcome {
        let now = clock::now();
        let total: u64 = threads.iter().flatten().map(|e| e.stats.total_ios()).sum();
        RunOutcome {
            threads,
            steady: (0..self.instances.len()).map(|i| self.together.steady(i)).collect(),
            instances: self.instances.clone(),
            disks: outcome(&self.targets, &self.disks, &watch.baseline.disks),
            kernel: self.kernel.iter().zip(&watch.baseline.kernel).map(|(k, before)| k.outcome(before)).collect(),
            devices: self.disks.iter().map(|(name, _)| name.clone()).collect(),
            elapsed: now.since(began),
            measured: now.since(watch.baseline.at),
            process: since(usage(UsageScope::Process), watch.baseline.process),
            ios: total.saturating_sub(watch.baseline.ios),
            in_flight: watch.in_flight(),
            cpus: Vec::new(),
            stopped: self.stop.load(Ordering::Relaxed),
            given_up: Vec::new(),
            not_put_back: Vec::new(),
            not_done: Vec::new(),
        }
    }
}

/// Removes these files. Returns what could not be removed, with the reason.
fn remove_files(paths: &[PathBuf]) -> Vec<String> {
    let remove = |path: &PathBuf| match std::fs::remove_file(path) {
        // It may have been removed by another of its names.
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Some(format!("unlink: cannot remove '{}': {e}", path.display()))
        }
        _ => None,
    };
    paths.iter().filter_map(remove).collect()
}

/// Ends instances that run, and cancels the start of those that have not started.
fn end_early(which: &[usize], schedule: &mut Schedule, watch: &Watch<'_>) {
    schedule.cancel_those(which);
    which.iter().for_each(|&i| watch.threads[i].live.stop.store(true, Ordering::Relaxed));
}

/// Returns the result of a thread that has ended. A panic of the thread continues here.
fn join(handle: JoinHandle<Result<ThreadEnd>>) -> Result<ThreadEnd> {
    handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn spawn(i: usize, worker: Worker, ended: mpsc::Sender<usize>) -> Result<JoinHandle<Result<ThreadEnd>>> {
    std::thread::Builder::new()
        .name(format!("job-{i}"))
        .spawn(move || {
            // Sent also when the thread panics; otherwise the run would wait for it forever.
            let _tell = ExitNotice(ended, i);
            worker.run()
        })
        .map_err(|e| Error::os(e, "cannot start a job thread; lower numjobs"))
}

struct ExitNotice(mpsc::Sender<usize>, usize);

impl Drop for ExitNotice {
    fn drop(&mut self) {
        // The receiver is gone only when the run has failed already.
        let _ = self.0.send(self.1);
    }
}

fn outcome(
    targets: &[RunTarget],
    disks: &[(String, Arc<Disk>)],
    before: &[(DiskStats, Vec<HctxStats>)],
) -> Vec<DiskOutcome> {
    let of_target = |t: &RunTarget| {
        let (mut stats, mut hctxs) = (None::<DiskStats>, Vec::<HctxStats>::new());
        for ((_, disk), (then, hctxs_then)) in disks[t.disks.clone()].iter().zip(&before[t.disks.clone()]) {
            let own = disk.queue.stats().since(then);
            match &mut stats {
                None => stats = Some(own),
                Some(sum) => sum.add(&own),
            }
            // There may be more of them now.
            let then = hctxs_then.iter().copied().chain(std::iter::repeat(HctxStats::default()));
            for (i, (now, then)) in disk.queue.hctx_stats().iter().zip(then).enumerate() {
                let own = now.since(&then);
                match hctxs.get_mut(i) {
                    None => hctxs.push(own),
                    Some(sum) => sum.add(&own),
                }
            }
        }
        let scheduler = disks[t.disks.start].1.queue.scheduler();
        DiskOutcome { name: t.name.clone(), stats: stats.unwrap_or_default(), hctxs, scheduler }
    };
    targets.iter().map(of_target).collect()
}
