// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What every job thread does now and then beside its I/O: it reports its progress, and checks whether it is to stop.
//!
//! Guarantees: a thread that calls [`Checkpoint::look`] whenever [`Checkpoint::is_due`] ends soon after its run is told to stop, whatever
//! its load and its devices are. The load is stopped. When a device cannot complete the I/O in flight ([`give_up`](super::give_up)), the
//! thread is told to leave that I/O. Needs from callers: the thread then returns from its loop, calls [`Checkpoint::end`], and leaks the
//! memory that the I/O in flight needs. Does not do: wait, or complete I/O.

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
    /// `ramp_time` is over, or there is none.
    pub(super) measuring: AtomicBool,
    /// The thread has ended.
    pub(super) done: AtomicBool,
}

impl Live {
    fn publish(&self, stats: &JobStats) {
        for (dir, (ios, bytes)) in stats.dirs.iter().zip(self.ios.iter().zip(&self.bytes)) {
            ios.store(dir.ios, Ordering::Relaxed);
            bytes.store(dir.bytes, Ordering::Relaxed);
        }
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
}

/// The trace of one thread.
#[derive(Clone, Debug)]
pub struct ThreadTrace {
    /// Index of the device in [`RunOutcome::devices`](super::RunOutcome::devices).
    pub disk: usize,
    /// Its events.
    pub log: TraceLog,
}

/// See the module's text.
pub(super) struct Checkpoint {
    stop: Arc<AtomicBool>,
    live: Arc<Live>,
    again: Instant,
    leaves: bool,
    /// Resources of the thread when its measured part began.
    before: CpuUse,
}

impl Checkpoint {
    /// Of the calling thread, whose load begins now.
    pub(super) fn new(stop: Arc<AtomicBool>, live: Arc<Live>) -> Checkpoint {
        Checkpoint { stop, live, again: Instant::ZERO, leaves: false, before: process::usage(UsageScope::Thread) }
    }

    #[inline]
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.again
    }

    /// Looks around; `is_left` tells whether I/O is out that never ends.
    pub(super) fn look<L: Load + ?Sized>(&mut self, load: &mut L, now: Instant, is_left: impl FnOnce() -> bool) {
        self.again = now + LOOK_AROUND;
        if self.stop.load(Ordering::Relaxed) {
            load.stop(StopReason::Asked);
            // Once set, it stays set: I/O that was being submitted has been dropped.
            self.leaves |= is_left();
        }
        self.live.publish(load.stats());
        if !load.is_ramping() && !self.live.measuring.load(Ordering::Relaxed) {
            self.before = process::usage(UsageScope::Thread);
            // Pairs with: run::watch::thread_progress
            self.live.measuring.store(true, Ordering::Release);
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
        self.live.publish(load.stats());
        load.stats_mut().cpu = process::since(process::usage(UsageScope::Thread), self.before);
        // Pairs with: run::watch::thread_progress
        self.live.done.store(true, Ordering::Release);
    }
}
