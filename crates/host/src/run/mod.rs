// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs a job file on this machine: one thread per job instance, each with a submitter of its disk.
//!
//! [`prepare`] checks and opens everything; [`Prepared::run`] starts the threads when their turn comes, tells an observer
//! how it goes, and returns what was measured, also when it was stopped before its end.

mod wake;
mod disk;
mod usage;
mod worker;
mod prepare;

pub use disk::{Disk, Queue, Submitter};
pub use prepare::{Prepared, RunPlan, configure, prepare};
pub use usage::{Who, nr_cpus, since, usage};
pub use wake::{WakeTable, Waker};
pub use worker::ThreadEnd;

use crate::clock;
use crate::error::{Error, Result};
use blk::stat::{DiskStats, HctxStats};
use blk::time::{Duration, Instant};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use worker::Live;
use workload::schedule::{Instance, Schedule};
use workload::stats::CpuUse;

/// How often the run looks at itself: in-flight samples, progress, the stop flag.
const TICK: Duration = Duration::from_ms(20);

/// How a run is going.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Time since the run began.
    pub elapsed: Duration,
    /// Threads running now.
    pub running: usize,
    /// Threads not yet started.
    pub waiting: usize,
    /// I/Os completed by all threads.
    pub ios: u64,
    /// Bytes completed by all threads.
    pub bytes: u64,
}

/// What happened on one disk during a run.
#[derive(Clone, Debug)]
pub struct DiskOutcome {
    /// The target as the user named it.
    pub name: String,
    /// Counters of the run.
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
    /// Per disk.
    pub disks: Vec<DiskOutcome>,
    /// From the first thread's start to the last one's end.
    pub elapsed: Duration,
    /// Resources of the whole process.
    pub process: CpuUse,
    /// Mean number of bios in flight, sampled.
    pub mean_in_flight: f64,
    /// It was stopped before its end.
    pub stopped: bool,
}

struct Running {
    handle: JoinHandle<Result<ThreadEnd>>,
    live: Arc<Live>,
}

impl Prepared {
    /// Runs all threads. `observe` is called every few milliseconds. The error is that of the first thread which could
    /// not run at all; I/O errors are part of the measurements.
    pub fn run(self, observe: &mut dyn FnMut(&Progress)) -> Result<RunOutcome> {
        let mut schedule = Schedule::new(self.instances.clone());
        let mut workers: Vec<_> = self.workers.into_iter().map(Some).collect();
        assert_eq!(workers.len(), self.instances.len(), "one worker per scheduled thread");
        let mut running: Vec<Option<Running>> = (0..workers.len()).map(|_| None).collect();
        let mut ends: Vec<Option<ThreadEnd>> = (0..workers.len()).map(|_| None).collect();
        let lives: Vec<Arc<Live>> = workers.iter().flatten().map(|w| Arc::clone(&w.live)).collect();
        let before: Vec<DiskStats> = self.disks.iter().map(|(_, d)| d.queue.stats()).collect();
        let (ended, endings) = mpsc::channel();
        let process = usage(Who::Process);
        let began = clock::now();
        let mut sampler = Sampler::default();
        let mut failure = None;
        while !schedule.is_done() {
            if self.stop.load(Ordering::Relaxed) {
                schedule.cancel();
            }
            let now = clock::now();
            for i in schedule.start_ready(now) {
                let worker = workers[i].take().expect("a thread starts once");
                running[i] = Some(spawn(i, worker, ended.clone())?);
            }
            sampler.sample(&self.disks);
            observe(&progress(began, &lives, &running, &workers));
            let pause = schedule.next_start().map_or(TICK, |t| t.since(now).min(TICK));
            match endings.recv_timeout(std::time::Duration::from_nanos(pause.as_ns())) {
                Ok(i) => {
                    schedule.ended(i);
                    let r = running[i].take().expect("a thread that ended was running");
                    match r.handle.join() {
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
        Ok(RunOutcome {
            threads: ends,
            instances: self.instances,
            disks: outcome(&self.disks, &before),
            elapsed: clock::now().since(began),
            process: since(usage(Who::Process), process),
            mean_in_flight: sampler.mean(),
            stopped: self.stop.load(Ordering::Relaxed),
        })
    }
}

fn spawn(i: usize, worker: worker::Worker, ended: mpsc::Sender<usize>) -> Result<Running> {
    let live = Arc::clone(&worker.live);
    let handle = std::thread::Builder::new()
        .name(format!("job-{i}"))
        .spawn(move || {
            // Sent also when the thread panics, or the run would wait for it for ever.
            let _tell = Tell(ended, i);
            worker.run()
        })
        .map_err(|e| Error::os(e, "cannot start a job thread; lower numjobs"))?;
    Ok(Running { handle, live })
}

struct Tell(mpsc::Sender<usize>, usize);

impl Drop for Tell {
    fn drop(&mut self) {
        // The receiver is gone only when the run has failed already.
        let _ = self.0.send(self.1);
    }
}

fn progress(
    began: Instant,
    lives: &[Arc<Live>],
    running: &[Option<Running>],
    workers: &[Option<worker::Worker>],
) -> Progress {
    Progress {
        elapsed: clock::now().since(began),
        // Pairs with: Worker::run
        running: running.iter().flatten().filter(|r| !r.live.done.load(Ordering::Acquire)).count(),
        waiting: workers.iter().flatten().count(),
        ios: lives.iter().map(|l| l.ios.load(Ordering::Relaxed)).sum(),
        bytes: lives.iter().map(|l| l.bytes.load(Ordering::Relaxed)).sum(),
    }
}

fn outcome(disks: &[(String, Arc<Disk>)], before: &[DiskStats]) -> Vec<DiskOutcome> {
    disks
        .iter()
        .zip(before)
        .map(|((name, d), before)| DiskOutcome {
            name: name.clone(),
            stats: d.queue.stats().since(before),
            hctxs: d.queue.hctx_stats(),
            scheduler: d.queue.scheduler(),
        })
        .collect()
}

/// Bios in flight, looked at now and then: what Little's law is checked against.
#[derive(Default)]
struct Sampler {
    sum: u64,
    samples: u64,
}

impl Sampler {
    fn sample(&mut self, disks: &[(String, Arc<Disk>)]) {
        let in_flight: u64 = disks.iter().map(|(_, d)| d.queue.stats().in_flight).sum();
        if in_flight > 0 {
            self.sum += in_flight;
            self.samples += 1;
        }
    }

    fn mean(&self) -> f64 {
        if self.samples == 0 { 0.0 } else { self.sum as f64 / self.samples as f64 }
    }
}
