// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What every job thread does now and then beside its I/O: it reports its progress, and checks whether it is to stop.
//!
//! Guarantees: a thread that calls [`Checkpoint::look`] whenever [`Checkpoint::is_due`] ends soon after its run is told to stop, whatever
//! its load and its devices are. The load is stopped. When a device cannot complete the I/O in flight ([`give_up`](super::give_up)), the
//! thread is told to leave that I/O. Needs from callers: the thread then returns from its loop, calls [`Checkpoint::end`], and leaks the
//! memory that the I/O in flight needs. Does not do: wait, or complete I/O.

use super::answer::Answer;
use super::logs::LogSink;
use super::verify_files::Dumps;
use crate::process::{self, UsageScope};
use blk::time::{Duration, Instant};
use blk::trace::TraceLog;
use crossbeam_utils::CachePadded;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use workload::engine::StopReason;
use workload::load::Load;
use workload::stats::{CpuUse, DIRS, JobStats};
use workload::verify::VerifyError;

/// How often a busy thread tells how far it is and checks whether it is to stop.
const LOOK_AROUND: Duration = Duration::from_ms(5);
/// Bad blocks described per thread; further ones are only counted.
pub(super) const VERIFY_REPORTS: usize = 8;

/// What others see of a running thread, a few milliseconds late.
#[derive(Debug, Default)]
pub(super) struct Live {
    /// I/Os completed so far per direction, since the end of the ramp.
    pub(super) ios: CachePadded<[AtomicU64; DIRS]>,
    /// Bytes completed so far per direction, since the end of the ramp.
    pub(super) bytes: [AtomicU64; DIRS],
    /// Bios out at a device of the kernel; they are counted only here.
    pub(super) in_flight: AtomicU64,
    /// Its measurements, on request.
    pub(super) answer: Answer,
    /// The thread alone is to stop; the run continues.
    pub(super) stop: AtomicBool,
    /// Sum of the completion latencies of these I/Os, nanoseconds.
    pub(super) clat_ns: AtomicU64,
    /// When the counts were last published, and when the measured part began; nanoseconds of the clock.
    pub(super) at: AtomicU64,
    pub(super) began: AtomicU64,
    /// `ramp_time` is over, or there is none.
    pub(super) measuring: AtomicBool,
    /// The thread has ended.
    pub(super) done: AtomicBool,
}

impl Live {
    fn publish(&self, stats: &JobStats, now: Instant) {
        for (dir, (ios, bytes)) in stats.dirs.iter().zip(self.ios.iter().zip(&self.bytes)) {
            ios.store(dir.ios, Ordering::Relaxed);
            bytes.store(dir.bytes, Ordering::Relaxed);
        }
        self.clat_ns.store(stats.total_clat_ns(), Ordering::Relaxed);
        self.at.store(now.as_ns(), Ordering::Relaxed);
    }
}

/// What a thread leaves behind.
pub struct ThreadEnd {
    /// The measurements.
    pub stats: JobStats,
    /// Descriptions of the first blocks that failed verification.
    pub verify_errors: Vec<VerifyError>,
    /// What was traced at each device it has I/O at, if that was asked for.
    pub traces: Vec<ThreadTrace>,
    /// How far the writes of a verified job got: the content of its file.
    pub verify_state: Option<Vec<u8>>,
    /// The first bad block that could not be written to its file, with the reason.
    pub not_dumped: Option<String>,
}

/// The trace of one thread.
#[derive(Clone, Debug)]
pub struct ThreadTrace {
    /// Index of the device in [`RunOutcome::devices`](super::RunOutcome::devices).
    pub disk: usize,
    /// Its events.
    pub log: TraceLog,
}

/// What connects a job thread with its run.
pub(super) struct RunLinks {
    /// Set when the thread is to stop.
    pub(super) stop: Arc<AtomicBool>,
    /// What others see of it.
    pub(super) live: Arc<Live>,
    /// Takes what it logs.
    pub(super) logs: Option<LogSink>,
    /// Takes its bad blocks.
    pub(super) dumps: Option<Dumps>,
}

/// See the module's text.
pub(super) struct Checkpoint {
    links: RunLinks,
    again: Instant,
    leaves: bool,
    /// Resources of the thread when its measured part began.
    before: CpuUse,
}

impl Checkpoint {
    /// Of the calling thread, whose load begins now.
    pub(super) fn new(links: RunLinks) -> Checkpoint {
        Checkpoint { links, again: Instant::ZERO, leaves: false, before: process::usage(UsageScope::Thread) }
    }

    #[inline]
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.again
    }

    /// Looks around; `is_left` tells whether I/O is out that never ends.
    pub(super) fn look<L: Load + ?Sized>(&mut self, load: &mut L, now: Instant, is_left: impl FnOnce() -> bool) {
        self.again = now + LOOK_AROUND;
        if self.links.stop.load(Ordering::Relaxed) {
            load.stop(StopReason::Asked);
            // Once set, it stays set: I/O that was being submitted has been dropped.
            self.leaves |= is_left();
        }
        if self.links.live.stop.load(Ordering::Relaxed) {
            load.stop(StopReason::Asked);
        }
        load.settle();
        self.links.live.publish(load.stats(), now);
        self.log(load, false);
        self.links.live.answer.give(|| {
            let cpu = process::since(process::usage(UsageScope::Thread), self.before);
            JobStats { cpu, ..load.stats_at(now) }
        });
        if !load.is_ramping() && !self.links.live.measuring.load(Ordering::Relaxed) {
            self.before = process::usage(UsageScope::Thread);
            self.links.live.began.store(now.as_ns(), Ordering::Relaxed);
            // Pairs with: run::watch::thread_progress
            self.links.live.measuring.store(true, Ordering::Release);
        }
    }

    /// The thread is to return from its loop without the I/O that is out.
    #[inline]
    pub(super) fn leaves(&self) -> bool {
        self.leaves
    }

    /// The loop has ended: so has the load.
    pub(super) fn end<L: Load + ?Sized>(&self, load: &mut L, now: Instant) {
        if self.leaves {
            load.abandon(now);
        }
        self.links.live.publish(load.stats(), now);
        self.log(load, true);
        load.stats_mut().cpu = process::since(process::usage(UsageScope::Thread), self.before);
        // Pairs with: run::watch::thread_progress
        self.links.live.done.store(true, Ordering::Release);
    }

    /// Passes on a bad block.
    pub(super) fn dump(&mut self, error: &mut VerifyError) {
        if let (Some(dumps), Some(bad)) = (&mut self.links.dumps, error.dump.take()) {
            dumps.write(error.file, &bad);
        }
    }

    /// The first bad block that could not be passed on, with the reason.
    pub(super) fn not_dumped(&mut self) -> Option<String> {
        self.links.dumps.as_mut()?.failed.take()
    }

    /// Passes on what the load has logged.
    fn log<L: Load + ?Sized>(&self, load: &mut L, all: bool) {
        if let Some(logs) = &self.links.logs
            && let Some(chunk) = load.take_log(all)
        {
            logs.take(chunk);
        }
    }
}
