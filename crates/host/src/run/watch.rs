// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is seen of a run from outside while it goes: progress, bios in flight, and the counters at the start of what is
//! measured.
//!
//! Guarantees: resources, disk counters and I/Os of an outcome cover the same time. This time begins when the last of the
//! threads that started first has left its `ramp_time` (at the start, without one) and lasts to the end; a later stonewall
//! group's ramp is part of it. Needs from callers: [`Watch::tick`] every few milliseconds.

use super::checkpoint::Live;
use super::kernel::KernelTarget;
use crate::clock;
use crate::disk::Disk;
use crate::kernel::DiskCounters;
use crate::process::{UsageScope, usage};
use blk::stat::{DiskStats, HctxStats};
use blk::time::{Duration, Instant};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use workload::stats::{CpuUse, DIRS};
use workload::steady::Counts;

/// What a thread is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadState {
    /// Its turn has not come.
    Waiting,
    /// It runs, and what it does is thrown away (`ramp_time`).
    Ramping,
    /// It runs.
    Running,
    /// It has ended.
    Ended,
}

/// How one thread is getting on.
#[derive(Clone, Copy, Debug)]
pub struct ThreadProgress {
    /// What it is doing.
    pub state: ThreadState,
    /// How long it has run, its ramp included.
    pub ran: Duration,
    /// I/Os completed per direction, since the end of the ramp.
    pub ios: [u64; DIRS],
    /// Bytes completed per direction, since the end of the ramp.
    pub bytes: [u64; DIRS],
    /// Bytes it moves if nothing ends it earlier; `None` when only time ends it.
    pub planned_bytes: Option<u64>,
}

/// How a run is getting on.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Time since the run began.
    pub elapsed: Duration,
    /// In the order of the job file.
    pub threads: Vec<ThreadProgress>,
}

/// A sampled number of bios in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct InFlight {
    /// Mean over the samples.
    pub mean: f64,
    /// Standard error of the mean.
    pub std_error: f64,
    /// Number of samples.
    pub samples: u64,
}

/// One thread as seen from outside.
pub(super) struct Watched {
    pub(super) live: Arc<Live>,
    pub(super) planned_bytes: Option<u64>,
    pub(super) started: Option<Instant>,
}

/// Counters at the start of what is measured.
pub(super) struct Baseline {
    pub(super) at: Instant,
    pub(super) process: CpuUse,
    pub(super) disks: Vec<(DiskStats, Vec<HctxStats>)>,
    pub(super) kernel: Vec<DiskCounters>,
    pub(super) ios: u64,
}

/// The watcher of one run.
pub(super) struct Watch<'a> {
    disks: &'a [(String, Arc<Disk>)],
    kernel: &'a [KernelTarget],
    pub(super) threads: Vec<Watched>,
    pub(super) baseline: Baseline,
    /// The baseline is the right one.
    settled: bool,
    began: Instant,
    samples: u64,
    mean: f64,
    squares: f64,
}

impl<'a> Watch<'a> {
    pub(super) fn new(
        disks: &'a [(String, Arc<Disk>)],
        kernel: &'a [KernelTarget],
        threads: Vec<Watched>,
        ramps: bool,
    ) -> Watch<'a> {
        let began = clock::now();
        let baseline = Baseline::take(disks, kernel, &threads);
        Watch { disks, kernel, threads, baseline, settled: !ramps, began, samples: 0, mean: 0.0, squares: 0.0 }
    }

    /// Samples and says how it goes.
    pub(super) fn tick(&mut self, now: Instant) -> Progress {
        let threads: Vec<ThreadProgress> = self.threads.iter().map(|t| thread_progress(t, now)).collect();
        let running = threads.iter().any(|t| t.state == ThreadState::Running);
        let ramping = threads.iter().any(|t| t.state == ThreadState::Ramping);
        if !self.settled && running && !ramping {
            self.baseline = Baseline::take(self.disks, self.kernel, &self.threads);
            self.settled = true;
        }
        if self.settled && (running || ramping) {
            self.sample();
        }
        Progress { elapsed: now.since(self.began), threads }
    }

    /// Adds the bios in flight now (Welford's update).
    fn sample(&mut self) {
        let ours: u64 = self.disks.iter().map(|(_, d)| d.queue.stats().in_flight).sum();
        let kernels: u64 = self.threads.iter().map(|t| t.live.in_flight.load(Ordering::Relaxed)).sum();
        let in_flight = (ours + kernels) as f64;
        self.samples += 1;
        let delta = in_flight - self.mean;
        self.mean += delta / self.samples as f64;
        self.squares += delta * (in_flight - self.mean);
    }

    pub(super) fn in_flight(&self) -> InFlight {
        let n = self.samples as f64;
        let std_error = if self.samples > 1 { (self.squares / (n - 1.0) / n).sqrt() } else { 0.0 };
        InFlight { mean: self.mean, std_error, samples: self.samples }
    }
}

impl Baseline {
    fn take(disks: &[(String, Arc<Disk>)], kernel: &[KernelTarget], threads: &[Watched]) -> Baseline {
        let of_thread = |t: &Watched| t.live.ios.iter().map(|n| n.load(Ordering::Relaxed)).sum::<u64>();
        Baseline {
            at: clock::now(),
            process: usage(UsageScope::Process),
            disks: disks.iter().map(|(_, d)| (d.queue.stats(), d.queue.hctx_stats())).collect(),
            kernel: kernel.iter().map(|k| DiskCounters::read(&k.device)).collect(),
            ios: threads.iter().map(of_thread).sum(),
        }
    }
}

/// What `steadystate` is judged by; `None`: the thread does not run, or it is in its `ramp_time`.
pub(super) fn counts(t: &Watched) -> Option<Counts> {
    // Pairs with: Checkpoint::look
    let runs = t.live.measuring.load(Ordering::Acquire) && !t.live.done.load(Ordering::Acquire);
    let sum = |counters: &[AtomicU64]| counters.iter().map(|n| n.load(Ordering::Relaxed)).sum();
    let at = |time: &AtomicU64| time.load(Ordering::Relaxed);
    runs.then(|| Counts {
        ran_ns: at(&t.live.at).saturating_sub(at(&t.live.began)),
        ios: sum(&t.live.ios[..]),
        bytes: sum(&t.live.bytes),
        clat_ns: at(&t.live.clat_ns),
    })
}

fn thread_progress(t: &Watched, now: Instant) -> ThreadProgress {
    // Pairs with: Checkpoint::end
    let done = t.live.done.load(Ordering::Acquire);
    // Pairs with: Checkpoint::look
    let measuring = t.live.measuring.load(Ordering::Acquire);
    let state = match (t.started, done, measuring) {
        (None, ..) => ThreadState::Waiting,
        (_, true, _) => ThreadState::Ended,
        (_, _, false) => ThreadState::Ramping,
        _ => ThreadState::Running,
    };
    ThreadProgress {
        state,
        ran: t.started.map_or(Duration::ZERO, |at| now.since(at)),
        ios: std::array::from_fn(|d| t.live.ios[d].load(Ordering::Relaxed)),
        bytes: std::array::from_fn(|d| t.live.bytes[d].load(Ordering::Relaxed)),
        planned_bytes: t.planned_bytes,
    }
}
