// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A job thread on a virtual CPU: `workload`'s state machine, and its submitters to the disks.
//!
//! Guarantees: a turn ends when the thread would sleep, or when another event on the machine is due first; the return value
//! says which. Its work costs the CPU time as [`PathCosts`] say. Does not do: data.

use super::costs::PathCosts;
use super::meter::{self, MeteredLock};
use blk::id::HctxId;
use blk::submitter::{SubmitError, Submitter};
use blk::time::Instant;
use workload::engine::{IoReq, Next, StopReason};
use workload::load::Load;
use workload::logs::LogChunk;
use workload::stats::JobStats;

/// A disk on which one volume of the load does its I/O.
pub(super) struct TaskVolume {
    /// Number of the disk.
    pub disk: u16,
    pub sub: Submitter<MeteredLock>,
    /// The load's first slot on this volume, and its first slot on the next volume.
    pub slots: (u32, u32),
    plugged: bool,
}

/// Why a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum YieldReason {
    /// The thread waits for completions.
    Sleep,
    /// The thread waits for completions, or until a time.
    SleepUntil(u64),
    /// The thread could continue, but another event is due first.
    Again,
    /// The thread computes for so many nanoseconds; no other thread waits for it.
    Compute(u64),
    /// The job has completed.
    Done,
}

/// A job thread.
pub(super) struct Task {
    /// The CPU on which it runs, or ran last.
    pub cpu: u32,
    /// It may run on another CPU of the socket than the one it submits from.
    pub floats: bool,
    load: Box<dyn Load>,
    pub volumes: Vec<TaskVolume>,
    /// The load has one volume, whose slots are dealt to the disks in turn.
    spread: bool,
    /// The disk from which the next completions are reaped.
    reaps_from: usize,
    /// Set while it completes I/Os: the least and the most to complete, and how many it has.
    reaping: Option<(u32, u32, u32)>,
    /// Some of its bios wait, and a notification says that they can continue.
    pub notified: bool,
    /// No other thread collects its completions: it polls after each sleep.
    pub polls: bool,
    /// Number of its present or latest sleep.
    pub sleep: u32,
    pub state: TaskState,
    /// Maximum number of I/Os of one system call.
    batch: u32,
    /// Work of the program that is still to be done.
    owed_ns: u64,
    /// CPU time so far.
    pub cpu_ns: u64,
    /// Since when the thread has been runnable with I/Os in flight, without a CPU; 0: it has one.
    pub could_run_at: u64,
    /// I/Os of its load that are in flight, or completed and not reaped.
    pub out: u32,
    /// Its waits for a CPU so far, with I/Os in flight.
    pub cpu_waits: CpuWaits,
}

/// How long threads waited for a CPU while their I/Os were in flight, or completed and not reaped. Waiting for a CPU to wake
/// up counts, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuWaits {
    /// Time of all waits, nanoseconds.
    pub ns: u64,
    /// How often the threads reaped at least one completion.
    pub reaps: u64,
}

impl CpuWaits {
    /// Adds the waits of other threads.
    pub fn add(&mut self, other: CpuWaits) {
        self.ns += other.ns;
        self.reaps += other.reaps;
    }
}

/// The least program work per I/O that is simulated as a computation, which can be interrupted. Shorter work is part of a
/// piece that runs as a whole.
const LONG_NS: u32 = 5_000;

/// The state of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskState {
    /// On a CPU or in its run queue.
    Runs,
    Sleeps,
    /// Another CPU has been notified to run it.
    Waking,
    Done,
}

impl Task {
    /// Makes a thread on `cpu` that has to be woken for its first turn. `disks` has one disk for each volume of its load, or
    /// several disks over which the slots of one volume are spread.
    pub fn new(cpu: u32, load: Box<dyn Load>, batch: u32, disks: Vec<(u16, Submitter<MeteredLock>)>) -> Task {
        let volumes = load.volumes();
        let spread = volumes.len() == 1;
        assert!(spread || volumes.len() == disks.len(), "one disk for each volume");
        let mut first = 0;
        let volume = |((disk, sub), slots): ((u16, Submitter<MeteredLock>), u32)| {
            let range = (first, first + slots);
            first += slots;
            TaskVolume { disk, sub, slots: range, plugged: false }
        };
        let slots = volumes.iter().map(|v| v.slots).cycle();
        let volumes = disks.into_iter().zip(slots).map(volume).collect();
        Task {
            cpu,
            floats: false,
            load,
            volumes,
            spread,
            reaps_from: 0,
            reaping: None,
            notified: false,
            polls: false,
            sleep: 0,
            state: TaskState::Sleeps,
            batch,
            owed_ns: 0,
            cpu_ns: 0,
            could_run_at: 0,
            out: 0,
            cpu_waits: CpuWaits::default(),
        }
    }

    /// Its results so far.
    pub fn stats(&self) -> &JobStats {
        self.load.stats()
    }

    /// Whether it is in its `ramp_time`.
    pub fn is_ramping(&self) -> bool {
        self.load.is_ramping()
    }

    /// What its load has logged, as [`Load::take_log`].
    pub fn take_log(&mut self, all: bool) -> Option<LogChunk> {
        self.load.take_log(all)
    }

    /// Ends its job as soon as its I/Os in flight have completed.
    pub fn stop(&mut self) {
        self.load.stop(StopReason::Asked);
    }

    /// Takes its results.
    pub fn into_stats(mut self) -> JobStats {
        std::mem::take(self.load.stats_mut())
    }

    /// The hardware queue of a disk in which it sleeps.
    pub fn sleeps_in(&self, disk: u16) -> Option<HctxId> {
        self.volumes.iter().find(|s| s.disk == disk).and_then(|s| s.sub.hctxs().next())
    }

    /// Whether enough completions are ready for it to continue.
    pub fn has_what_it_waits_for(&self) -> bool {
        let ready = self.volumes.iter().map(|s| s.sub.ready() as u32).sum::<u32>();
        match self.reaping {
            Some((min, _, got)) => got + ready >= min,
            None => ready > 0,
        }
    }

    /// Ends its wait for a CPU at `at`, if there was one.
    #[inline]
    pub fn has_a_cpu(&mut self, at: u64) {
        if self.could_run_at > 0 {
            self.cpu_waits.ns += at.saturating_sub(self.could_run_at);
            self.could_run_at = 0;
        }
    }

    /// Runs until it would sleep, or until something else on the machine is due.
    pub fn turn(&mut self, path: &PathCosts) -> YieldReason {
        if std::mem::take(&mut self.notified) {
            self.poll();
        }
        loop {
            if let Some((min, max, got)) = self.reaping {
                match self.reap(path, min, max, got) {
                    Some(turn) => return turn,
                    None => self.reaping = None,
                }
                if let Some(turn) = self.work(path) {
                    return turn;
                }
            }
            match self.load.next(now()) {
                Next::Io(io) => self.queue(path, io),
                Next::Reap { min, max } => {
                    self.commit(path);
                    meter::charge(path.syscall_ns);
                    self.reaping = Some((min, max, 0));
                }
                Next::Wait(until) => {
                    self.commit(path);
                    if self.polls {
                        self.poll();
                    }
                    let got = self.complete(path, u32::MAX);
                    if got == 0 && until > now() {
                        self.rest();
                        return YieldReason::SleepUntil(until.as_ns());
                    }
                }
                Next::Spin(until) => {
                    self.commit(path);
                    let left = until.as_ns().saturating_sub(meter::now());
                    if left > 0 {
                        return YieldReason::Compute(left);
                    }
                }
                Next::Done => return YieldReason::Done,
            }
            // A thread with an open plug is interrupted like any other: only sleep would flush it.
            if meter::is_due() {
                return YieldReason::Again;
            }
        }
    }

    /// Hands an I/O to its disk, through the plug unless it is a batch of its own.
    fn queue(&mut self, path: &PathCosts, io: IoReq) {
        meter::charge(path.submit_ns);
        self.out += 1;
        let bio = io.bio(blk::bio::DataRef::new(0, 0));
        let alone = io.commit && self.volumes.iter().all(|s| !s.plugged);
        let nr_disks = self.volumes.len() as u32;
        let volume = match self.spread {
            true => self.volumes.get_mut((io.slot % nr_disks) as usize),
            false => self.volumes.iter_mut().find(|s| io.slot < s.slots.1),
        };
        let volume = volume.expect("a slot of one of the volumes");
        if !alone && !volume.plugged {
            volume.plugged = true;
            volume.sub.start_plug(self.batch);
        }
        match volume.sub.submit(&bio, now()) {
            Ok(()) => {}
            Err(SubmitError::NoBio) => panic!("a thread has as many bio slots as its depth and its splits need"),
        }
        if alone {
            meter::charge(path.syscall_ns);
            self.load.submitted(now());
        } else if io.commit {
            self.commit(path);
        }
    }

    /// Submits the I/Os of a batch.
    fn commit(&mut self, path: &PathCosts) {
        let mut any = false;
        for volume in self.volumes.iter_mut().filter(|s| s.plugged) {
            volume.plugged = false;
            volume.sub.finish_plug(now());
            any = true;
        }
        if any {
            meter::charge(path.syscall_ns);
            self.load.submitted(now());
        }
    }

    /// Reaps I/Os that an interrupt has collected. Returns `None` if there were enough.
    fn reap(&mut self, path: &PathCosts, min: u32, max: u32, mut got: u32) -> Option<YieldReason> {
        got += self.complete(path, max - got);
        if got >= min {
            return None;
        }
        if self.polls {
            self.poll();
            got += self.complete(path, max - got);
            if got >= min {
                return None;
            }
        }
        self.reaping = Some((min, max, got));
        self.rest();
        self.notified |= self.polls;
        Some(YieldReason::Sleep)
    }

    /// Passes up to `max` completed I/Os to the load.
    fn complete(&mut self, path: &PathCosts, max: u32) -> u32 {
        let (mut n, nr) = (0, self.volumes.len());
        // In turn, or a busy disk would keep the completions of the others from the program.
        for _ in 0..nr {
            let volume = self.reaps_from;
            while n < max
                && let Some(done) = self.volumes[volume].sub.reap_one()
            {
                let ended = self.load.complete(done.user_data as u32, done.status, now());
                assert!(!ended.needs_verify, "a simulated machine has no data to verify");
                n += 1;
            }
            self.reaps_from = (volume + 1) % nr;
            if n == max {
                break;
            }
        }
        if n > 0 {
            self.load.reaped(n);
            self.out -= n;
            self.cpu_waits.reaps += 1;
            self.owed_ns += u64::from(path.app_ns) * u64::from(n);
        }
        n
    }

    /// Does the program's own work for the I/Os that it reaped. Long work can be interrupted like any computation.
    fn work(&mut self, path: &PathCosts) -> Option<YieldReason> {
        let owed = std::mem::take(&mut self.owed_ns);
        if path.app_ns >= LONG_NS {
            return (owed > 0).then_some(YieldReason::Compute(owed));
        }
        meter::charge(owed as u32);
        meter::is_due().then_some(YieldReason::Again)
    }

    fn poll(&mut self) {
        self.volumes.iter_mut().for_each(|s| s.sub.poll(now()));
    }

    fn rest(&mut self) {
        self.volumes.iter_mut().for_each(|s| s.sub.rest());
    }
}

/// The CPU's time in the block layer's type.
#[inline]
fn now() -> Instant {
    Instant::from_ns(meter::now())
}
