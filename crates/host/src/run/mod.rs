// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs a job file on this machine: one thread per job instance, each with a submitter of its disk.
//!
//! [`prepare`] checks and opens everything. [`Prepared::run`] starts the threads at their start times, and reports progress to an
//! observer. It returns what was measured, also when the run was stopped early, whatever the devices do then.

pub(crate) mod settings;
mod waiter;
mod io_channel;
mod change;
mod cpus;
mod wait_set;
mod checkpoint;
mod worker;
mod job_loop;
mod plain;
mod wide;
mod direct;
mod kernel;
mod open;
mod layout;
mod prepare;
mod watch;
mod give_up;

pub(crate) use change::{Frozen, change_settings, drain, replace_settings, wait_ended};
pub use checkpoint::{ThreadEnd, ThreadTrace};
pub use cpus::CpuChange;
pub use give_up::GivenUp;
pub use io_channel::IoChannel;
pub use kernel::{KernelOutcome, KernelTarget, check_kernel_settings};
pub use prepare::{Prepared, RunPlan, RunTarget, prepare};
pub use settings::{RUN_SETTINGS, RunSettings, check_settings};
pub use watch::{InFlight, Progress, ThreadProgress, ThreadState};

use crate::clock;
use crate::disk::Disk;
use crate::error::{Error, Result};
use crate::process::{UsageScope, since, usage};
use blk::stat::{DiskStats, HctxStats};
use blk::time::Duration;
use cpus::CpuWatch;
use give_up::GiveUp;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use watch::Watch;
use worker::Worker;
use workload::schedule::{Instance, Schedule};
use workload::stats::CpuUse;

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
}

impl Prepared {
    /// Runs all threads. Calls `observe` every few milliseconds. Returns the error of the first thread that could not run at all; I/O
    /// errors are part of the measurements.
    pub fn run(self, observe: &mut dyn FnMut(&Progress)) -> Result<RunOutcome> {
        let mut schedule = Schedule::new(self.instances.clone());
        let mut workers: Vec<_> = self.workers.into_iter().map(Some).collect();
        assert_eq!(workers.len(), self.instances.len(), "one worker per scheduled thread");
        let mut running: Vec<Option<JoinHandle<Result<ThreadEnd>>>> = workers.iter().map(|_| None).collect();
        let mut ends: Vec<Option<ThreadEnd>> = workers.iter().map(|_| None).collect();
        let watched = workers.iter().flatten().map(Worker::watched);
        let mut watch = Watch::new(&self.disks, &self.kernel, watched.collect(), self.ramps);
        let cpus = CpuWatch::start(&self.disks);
        let mut give_up = GiveUp::new(&self.disks);
        let (ended, endings) = mpsc::channel();
        let began = clock::now();
        let mut failure = None;
        while !schedule.is_done() {
            let now = clock::now();
            if self.stop.load(Ordering::Relaxed) {
                schedule.cancel();
                give_up.look(now);
            }
            for i in schedule.start_ready(now) {
                let worker = workers[i].take().expect("a thread starts once");
                running[i] = Some(spawn(i, worker, ended.clone())?);
                watch.threads[i].started = Some(now);
            }
            observe(&watch.tick(now));
            let pause = schedule.next_start().map_or(TICK, |t| t.since(now).min(TICK));
            match endings.recv_timeout(std::time::Duration::from_nanos(pause.as_ns())) {
                Ok(i) => {
                    schedule.ended(i);
                    let handle = running[i].take().expect("a thread that ended was running");
                    match handle.join() {
                        Ok(Ok(end)) => ends[i] = Some(end),
                        Ok(Err(e)) => {
                            self.stop.store(true, Ordering::Relaxed);
                            failure.get_or_insert(e);
                        }
                        Err(panic) => std::panic::resume_unwind(panic),
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("this function holds a sender"),
            }
        }
        if let Some(e) = failure {
            return Err(e);
        }
        let now = clock::now();
        let process = since(usage(UsageScope::Process), watch.baseline.process);
        let (kernel, given_up) = kernel::conclude(&self.kernel, &watch, give_up.ends());
        let total: u64 = ends.iter().flatten().map(|e| e.stats.total_ios()).sum();
        Ok(RunOutcome {
            threads: ends,
            instances: self.instances,
            disks: outcome(&self.targets, &self.disks, &watch.baseline.disks),
            kernel,
            not_put_back: kernel::put_back(self.kept, given_up.is_empty()),
            devices: self.disks.iter().map(|(name, _)| name.clone()).collect(),
            elapsed: now.since(began),
            measured: now.since(watch.baseline.at),
            process,
            ios: total.saturating_sub(watch.baseline.ios),
            in_flight: watch.in_flight(),
            cpus: cpus.map(|c| c.seen()).unwrap_or_default(),
            stopped: self.stop.load(Ordering::Relaxed),
            given_up,
        })
    }
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
