// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Observations of a simulated run in progress: progress, bios in flight, and the counters at the start of the measured part.
//!
//! Guarantees: as in a run on this host ([`RunOutcome`](host::run::RunOutcome)), counters begin when `ramp_time` is over
//! for all of the threads that started first. Observations are about a millisecond of virtual time apart. Their intervals
//! follow no period, so periodic activity is not always sampled at the same phase. The intervals are the same in each run.

use std::sync::atomic::Ordering;

use blk::stat::{DiskStats, HctxStats};
use blk::time::Duration;
use host::run::{InFlight, LogFiles, Progress, ThreadProgress, ThreadState};
use sim::machine::jobs::{NextLook, View, Watch};
use sim::machine::world::CpuTimes;
use workload::logs::LogChunk;

use crate::run::{Observer, RunSpec};
use crate::simulated::Simulated;
use crate::stack::{self, Setting};

/// Minimum time between two observations, nanoseconds. On average the time is twice as long.
const LOOK_NS: u64 = 500_000;
/// Progress is reported once in this many observations.
const TELL: u64 = 8;

/// Counters at the start of the measured part.
#[derive(Default)]
pub(super) struct Baseline {
    pub elapsed_ns: u64,
    pub disk: DiskStats,
    pub hctxs: Vec<HctxStats>,
    pub cpu: CpuTimes,
    pub thread_cpu_ns: Vec<u64>,
    pub ios: u64,
}

/// The results of a sampler.
#[derive(Default)]
pub(super) struct Sampled {
    pub baseline: Baseline,
    pub in_flight: InFlight,
    pub settings: Vec<Setting>,
    pub scheduler: String,
    /// Logs that could not be written.
    pub not_done: Vec<String>,
}

/// Observes a run on behalf of an observer.
pub(super) struct Sampler<'a, 'o> {
    spec: &'a RunSpec<'a, 'a>,
    asked: &'a [(String, String)],
    machine: &'a Simulated,
    observer: &'o mut dyn Observer,
    looks: u64,
    /// Whether the baseline is final.
    settled: bool,
    /// Sum of squared deviations of the number in flight (Welford).
    squares: f64,
    seen: Sampled,
    /// When each thread was first observed to run.
    began_ns: Vec<Option<u64>>,
    /// Files of per-interval logs.
    logs: Option<LogFiles>,
}

impl<'a, 'o> Sampler<'a, 'o> {
    pub(super) fn new(
        spec: &'a RunSpec<'a, 'a>,
        asked: &'a [(String, String)],
        machine: &'a Simulated,
        observer: &'o mut dyn Observer,
        logs: Option<LogFiles>,
    ) -> Sampler<'a, 'o> {
        let settled = spec.file.jobs.iter().all(|j| j.ramp_time_ns == 0);
        let (seen, began_ns) = (Sampled::default(), Vec::new());
        Sampler { spec, asked, machine, observer, looks: 0, settled, squares: 0.0, seen, began_ns, logs }
    }

    pub(super) fn seen(mut self) -> Sampled {
        let n = self.seen.in_flight.samples as f64;
        self.seen.in_flight.std_error = if n > 1.0 { (self.squares / (n - 1.0) / n).sqrt() } else { 0.0 };
        self.seen.not_done = self.logs.take().map(LogFiles::failures).unwrap_or_default();
        self.seen
    }

    fn first(&mut self, view: &View<'_>) {
        let disk = view.machine.disk(0);
        self.seen.settings = stack::in_effect(disk, self.asked);
        self.seen.scheduler = disk.scheduler();
        self.seen.baseline = baseline(view);
        self.began_ns = vec![None; view.instances.len()];
        self.observer.simulated(self.machine, view.instances);
    }

    /// Adds the present number in flight.
    fn sample(&mut self, view: &View<'_>) {
        let in_flight = disks(view).in_flight as f64;
        let s = &mut self.seen.in_flight;
        s.samples += 1;
        let delta = in_flight - s.mean;
        s.mean += delta / s.samples as f64;
        self.squares += delta * (in_flight - s.mean);
    }

    fn progress(&self, view: &View<'_>) -> Progress {
        let threads = (0..view.instances.len()).map(|i| self.thread(view, i)).collect();
        Progress { elapsed: Duration::from_ns(view.elapsed_ns), threads }
    }

    fn thread(&self, view: &View<'_>, i: usize) -> ThreadProgress {
        let mut p = ThreadProgress {
            state: state(view, i),
            ran: Duration::from_ns(self.began_ns[i].map_or(0, |at| view.elapsed_ns.saturating_sub(at))),
            ios: Default::default(),
            bytes: Default::default(),
            planned_bytes: None,
        };
        if let Some(thread) = view.threads[i] {
            for (d, dir) in view.machine.stats(thread).dirs.iter().enumerate() {
                (p.ios[d], p.bytes[d]) = (dir.ios, dir.bytes);
            }
        }
        p
    }
}

fn state(view: &View<'_>, i: usize) -> ThreadState {
    match view.threads[i] {
        None => ThreadState::Waiting,
        Some(_) if view.ended[i] => ThreadState::Ended,
        Some(thread) if view.machine.is_ramping(thread) => ThreadState::Ramping,
        Some(_) => ThreadState::Running,
    }
}

fn disks(view: &View<'_>) -> DiskStats {
    let mut sum = DiskStats::default();
    (0..view.luns).for_each(|lun| sum.add(&view.machine.disk(lun).stats()));
    sum
}

fn baseline(view: &View<'_>) -> Baseline {
    let m = view.machine;
    let threads = || view.threads.iter().copied();
    Baseline {
        elapsed_ns: view.elapsed_ns,
        disk: disks(view),
        hctxs: (0..view.luns).flat_map(|lun| m.disk(lun).hctx_stats()).collect(),
        cpu: m.cpu_times(),
        thread_cpu_ns: threads().map(|t| t.map_or(0, |t| m.thread_cpu_ns(t))).collect(),
        ios: threads().flatten().map(|t| m.stats(t).total_ios()).sum(),
    }
}

impl Watch for Sampler<'_, '_> {
    fn keeps_slices(&self) -> bool {
        self.spec.slices
    }

    fn keeps_logs(&self) -> bool {
        self.logs.is_some()
    }

    fn log(&mut self, thread: usize, chunk: LogChunk) {
        if let Some(logs) = &mut self.logs {
            logs.write(thread, &chunk);
        }
    }

    fn look(&mut self, view: &View<'_>) -> NextLook {
        if self.looks == 0 {
            self.first(view);
        }
        if self.spec.stop.load(Ordering::Relaxed) {
            return NextLook::Stop;
        }
        let (mut running, mut ramping) = (false, false);
        for i in 0..view.instances.len() {
            let state = state(view, i);
            running |= state == ThreadState::Running;
            ramping |= state == ThreadState::Ramping;
            if state != ThreadState::Waiting && self.began_ns[i].is_none() {
                self.began_ns[i] = Some(view.elapsed_ns);
            }
        }
        // At the first observation no thread has begun, not even to ramp.
        if !self.settled && running && !ramping && self.looks > 0 {
            self.seen.baseline = baseline(view);
            self.settled = true;
        }
        if self.settled && (running || ramping) && self.looks > 0 {
            self.sample(view);
        }
        if self.looks.is_multiple_of(TELL) {
            let progress = self.progress(view);
            self.observer.progress(&progress);
        }
        self.looks += 1;
        // The golden ratio gives intervals of half to one and a half times the mean, without a period.
        let part = self.looks.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        NextLook::In(LOOK_NS + ((part * 2 * LOOK_NS) >> 32))
    }
}
