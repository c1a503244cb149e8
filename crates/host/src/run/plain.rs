// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The single disk of a job thread, with what only one disk allows: a hardware queue of the thread's own, lazy submission, and polling
//! instead of waiting (`hipri`).

use super::checkpoint::ThreadTrace;
use super::job_loop::JobDevice;
use super::waiter::{Waiter, WaiterSetup};
use crate::disk::{Disk, Submitter};
use crate::error::{Error, Result};
use blk::bio::Bio;
use blk::id::CpuId;
use blk::submitter::{Done, SubmitError};
use blk::time::{Duration, Instant};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How a thread submits to a disk of ours.
pub(super) struct Submitting {
    pub(super) cpu: CpuId,
    /// Share of the disk, for elevators that go by it.
    pub(super) weight: Option<u16>,
    /// Events to trace at most; 0 = no trace.
    pub(super) trace_events: usize,
}

/// The disk of a thread that is ready to run.
pub(super) struct PlainDisk {
    pub(super) disk: Arc<Disk>,
    /// Index of the disk in the run.
    pub(super) index: usize,
    /// CPUs of the run's other threads on the disk.
    pub(super) others: Arc<[CpuId]>,
    /// `hipri`: the thread polls while I/O is out, and does not sleep.
    pub(super) polled: bool,
}

/// See the module's text.
pub(super) struct Plain {
    sub: Submitter,
    disk: Arc<Disk>,
    waiter: Waiter,
    polled: bool,
    /// Index of the disk in the run, if there is a trace.
    traced: Option<usize>,
}

impl PlainDisk {
    /// Of the calling thread, which submits up to `batch` I/Os before it waits.
    pub(super) fn open(self, batch: u32, how: &Submitting) -> Result<Plain> {
        let setup = WaiterSetup { cpu: how.cpu, others: self.others, polled: self.polled, batch };
        let waiter_lock = self.disk.waiter_lock.lock();
        let sub = submitter(&self.disk, how)?;
        let waiter = Waiter::take(&self.disk, &sub, setup);
        drop(waiter_lock);
        let traced = (how.trace_events > 0).then_some(self.index);
        Ok(Plain { sub, disk: self.disk, waiter, polled: self.polled, traced })
    }
}

impl JobDevice for Plain {
    const ENDS_IN_SUBMIT: bool = true;
    const PLUGS_SINGLE: bool = false;

    #[inline]
    fn plug(&mut self, _target: usize, is_first: bool, nr_ios: u32) {
        if is_first {
            self.sub.start_plug(nr_ios);
        }
    }

    #[inline]
    fn submit(&mut self, _target: usize, bio: &Bio, now: Instant) -> std::result::Result<(), SubmitError> {
        self.sub.submit(bio, now)
    }

    fn flush_plug(&mut self, now: Instant) {
        self.sub.flush_plug(now);
    }

    #[inline]
    fn finish_plug(&mut self, now: Instant) {
        self.sub.finish_plug(now);
    }

    #[inline]
    fn poll(&mut self, now: Instant) {
        self.sub.poll(now);
    }

    #[inline(always)] // So that the result stays in registers.
    fn reap_one(&mut self) -> Option<Done> {
        self.sub.reap_one()
    }

    #[inline]
    fn is_ready(&mut self) -> bool {
        self.sub.ready() > 0
    }

    fn outstanding(&self) -> u32 {
        self.sub.outstanding()
    }

    #[inline]
    fn waits_first(&self) -> bool {
        self.waiter.wait_first
    }

    #[inline]
    fn wait(&mut self, min: u32, timeout: Option<Duration>) {
        if let Some(timeout) = timeout
            && self.sub.outstanding() == 0
        {
            self.sub.rest();
            return std::thread::sleep(std::time::Duration::from_nanos(timeout.as_ns()));
        }
        if self.polled {
            return core::hint::spin_loop();
        }
        self.waiter.wait(&self.disk, &mut self.sub, min, timeout);
    }

    fn is_stuck(&mut self, _now: Instant) -> bool {
        self.disk.leave.load(Ordering::Relaxed) && self.sub.outstanding() > 0
    }

    fn leave(&mut self) {
        self.waiter.leave(&self.disk);
    }

    fn traces(&mut self) -> Vec<ThreadTrace> {
        self.traced.iter().map(|&disk| ThreadTrace { disk, log: self.sub.stop_trace() }).collect()
    }
}

/// A submitter of the calling thread.
pub(super) fn submitter(disk: &Disk, how: &Submitting) -> Result<Submitter> {
    let mut sub = disk
        .queue
        .submitter(how.cpu)
        .ok_or_else(|| Error::usage(format!("numjobs: at most {} job threads per disk", blk::id::MAX_SUBMITTERS)))?;
    sub.set_weight(how.weight).map_err(|e| Error::usage(e.to_string()))?;
    if how.trace_events > 0 {
        sub.start_trace(how.trace_events);
    }
    Ok(sub)
}
