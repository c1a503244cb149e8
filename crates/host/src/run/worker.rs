// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One job thread: carries what the job engine asks for to a submitter and completions back.
//!
//! Guarantees that every I/O the engine handed out is completed before the thread ends, also when it is stopped; unless the disk's
//! driver cannot bring that about ([`checkpoint`](super::checkpoint)): then the thread ends without it, and leaves behind what that I/O needs. One
//! clock reading serves everything between two system calls or polls.

use super::checkpoint::{Checkpoint, Live, ThreadEnd, ThreadTrace, VERIFY_REPORTS};
use super::waiter::{STOP_CHECK, Waiter, WaiterSetup};
use crate::clock;
use crate::disk::{Disk, Submitter};
use crate::error::{Error, Result};
use crate::mem::BufferPool;
use crate::process;
use blk::bio::DataRef;
use blk::id::CpuId;
use blk::status::BlkStatus;
use blk::submitter::{Done, SubmitError};
use blk::time::{Duration, Instant};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use workload::engine::{Completed, IoReq, JobThread, Next};
use workload::verify::VerifyError;

/// A job thread that is ready to run.
pub(super) struct Worker {
    pub(super) job: JobThread,
    pub(super) disk: Arc<Disk>,
    /// Index of the disk in the run.
    pub(super) disk_index: usize,
    pub(super) buffers: BufferPool,
    pub(super) cpu: CpuId,
    pub(super) pin: Option<Vec<u32>>,
    pub(super) live: Arc<Live>,
    pub(super) stop: Arc<AtomicBool>,
    /// CPUs of the run's other threads on the disk.
    pub(super) others: Arc<[CpuId]>,
    /// `hipri`: the thread polls while I/O is out, and does not sleep.
    pub(super) polled: bool,
    /// Share of the disk, for elevators that go by it.
    pub(super) weight: Option<u16>,
    /// I/Os the job submits at once (`iodepth_batch_submit`).
    pub(super) batch: u32,
    /// Events to trace at most; 0 = no trace.
    pub(super) trace_events: usize,
}

struct Loop {
    job: JobThread,
    sub: Submitter,
    buffers: BufferPool,
    /// I/Os handed to the plug since the last commit.
    queued: u32,
    batch: u32,
    disk: Arc<Disk>,
    waiter: Waiter,
    verify_errors: Vec<VerifyError>,
    /// As in [`Worker`].
    polled: bool,
    checkpoint: Checkpoint,
    now: Instant,
}

impl Worker {
    /// Runs the job to its end.
    pub(super) fn run(mut self) -> Result<ThreadEnd> {
        if let Some(cpus) = &self.pin {
            process::pin_thread(cpus)?;
        }
        // I/Os that it submits before a wait: the device should start on a whole batch while others are prepared.
        let batch = if self.job.depth() == 1 { 2 } else { self.batch };
        let setup = WaiterSetup { cpu: self.cpu, others: self.others, polled: self.polled, batch };
        let waiter_lock = self.disk.waiter_lock.lock();
        let mut sub = self.disk.queue.submitter(self.cpu).ok_or_else(|| {
            Error::usage(format!("numjobs: at most {} job threads per disk", blk::id::MAX_SUBMITTERS))
        })?;
        let waiter = Waiter::take(&self.disk, &sub, setup);
        drop(waiter_lock);
        sub.set_weight(self.weight).map_err(|e| Error::usage(e.to_string()))?;
        if self.trace_events > 0 {
            sub.start_trace(self.trace_events);
        }
        for slot in 0..self.buffers.slots() {
            self.buffers.with_slot(slot, |buf| self.job.fill_first(buf));
        }
        let mut l = Loop {
            job: self.job,
            sub,
            buffers: self.buffers,
            queued: 0,
            batch: self.batch,
            disk: Arc::clone(&self.disk),
            waiter,
            verify_errors: Vec::new(),
            polled: self.polled,
            now: clock::now(),
            checkpoint: Checkpoint::new(self.stop, self.live),
        };
        l.run();
        if !l.checkpoint.leaves() {
            l.waiter.leave(&self.disk);
        }
        l.checkpoint.end(&mut l.job, l.now);
        let trace = (self.trace_events > 0).then(|| ThreadTrace { disk: self.disk_index, log: l.sub.stop_trace() });
        let traces = trace.into_iter().collect();
        let end =
            ThreadEnd { stats: l.job.stats().clone(), verify_errors: std::mem::take(&mut l.verify_errors), traces };
        if l.checkpoint.leaves() {
            // The disk may still write to its buffers, and end what its submitter has out.
            std::mem::forget(l);
        }
        Ok(end)
    }
}

impl Loop {
    fn run(&mut self) {
        loop {
            if let Some(io) = self.job.next_uniform(self.now) {
                self.queue(io);
                continue;
            }
            match self.job.next_other(self.now) {
                Next::Io(io) => {
                    self.queue(io);
                    continue;
                }
                Next::Reap { min, max } => {
                    self.commit();
                    self.reap(min, max);
                }
                Next::Wait(until) => {
                    self.commit();
                    self.wait_until(until);
                }
                Next::Spin(until) => {
                    self.commit();
                    while self.now < until {
                        self.now = clock::now();
                        self.sub.poll(self.now);
                    }
                }
                Next::Done => break,
            }
            self.look_around();
            if self.checkpoint.leaves() {
                return;
            }
        }
        assert!(self.sub.outstanding() == 0, "the engine ended with I/O outstanding");
    }

    /// Now and then: tells how far the job is and checks whether it is to stop.
    #[inline]
    fn look_around(&mut self) {
        if self.checkpoint.is_due(self.now) {
            self.look_around_now();
        }
    }

    fn look_around_now(&mut self) {
        // I/O that ends while it is submitted needs no poll, but others may wait for what one does.
        self.sub.poll(self.now);
        let is_left = || self.disk.leave.load(Ordering::Relaxed) && self.sub.outstanding() > 0;
        self.checkpoint.look(&mut self.job, self.now, is_left);
    }

    /// Hands an I/O to the disk, alone or through the plug with others of its batch.
    #[inline]
    fn queue(&mut self, io: IoReq) {
        if io.fill {
            let job = &mut self.job;
            self.buffers.with_slot(io.slot, |buf| job.fill(io.slot, &mut buf[..io.len_bytes as usize]));
        }
        let data = if io.op.has_data() { self.buffers.lend(io.slot) } else { DataRef::NONE };
        let bio = io.bio(data);
        let alone = self.queued == 0 && io.commit;
        if !alone {
            if self.queued == 0 {
                self.sub.start_plug(self.batch);
            }
            self.queued += 1;
        }
        while let Err(SubmitError::NoBio) = self.sub.submit(&bio, self.now) {
            self.wait_for_bio();
            if self.checkpoint.leaves() {
                return;
            }
        }
        if alone {
            self.now = clock::now();
            // The only I/O that can be out ended while it was submitted: one clock reading serves both ends.
            if self.job.depth() == 1
                && let Some(done) = self.sub.reap_one()
            {
                self.hand_back(done, JobThread::ended_at_once);
                self.look_around();
            } else {
                self.job.submitted(self.now);
            }
        } else if io.commit {
            self.commit();
        }
    }

    /// Waits for pieces of large I/Os to end: they share the bio slots, of which there are more than I/Os of the depth,
    /// so some come free without an I/O being handed to the engine.
    #[cold]
    fn wait_for_bio(&mut self) {
        self.sub.flush_plug(self.now);
        self.wait(1, None);
        self.now = clock::now();
        self.sub.poll(self.now);
        self.look_around();
    }

    /// Ends a batch: its I/Os count as submitted from here. The clock is read again, for the submission took its time.
    #[inline]
    fn commit(&mut self) {
        if self.queued > 0 {
            self.queued = 0;
            self.sub.finish_plug(self.now);
            self.now = clock::now();
            self.job.submitted(self.now);
        }
    }

    /// Completes `min` to `max` I/Os, waiting for them. A job that is told to stop meanwhile issues nothing after that;
    /// what is in flight is waited for, all of it and however slow the disk, as long as it may end.
    fn reap(&mut self, min: u32, max: u32) {
        // What ended while it was submitted is there already, and was seen under the clock reading that followed.
        if max == 1
            && let Some(done) = self.sub.reap_one()
        {
            return self.hand_back(done, JobThread::complete_one);
        }
        let mut got = 0;
        if self.sub.ready() > 0 {
            // Read again for a batch, or every completion latency would be 0.
            self.now = clock::now();
            got = self.complete(max);
            if got >= min {
                return;
            }
        }
        loop {
            if self.waiter.wait_first && min > got && self.sub.ready() == 0 {
                self.wait(min - got, None);
            }
            self.now = clock::now();
            self.sub.poll(self.now);
            got += self.complete(max - got);
            if got >= min || got >= max {
                return;
            }
            self.look_around();
            if self.checkpoint.leaves() {
                return;
            }
            if !self.waiter.wait_first {
                self.wait(min - got, None);
            }
        }
    }

    /// Hands up to `max` ended I/Os to the engine; how many there were.
    fn complete(&mut self, max: u32) -> u32 {
        let mut n = 0;
        while n < max
            && let Some(done) = self.sub.reap_one()
        {
            self.hand_back(done, JobThread::complete);
            n += 1;
        }
        if n > 0 {
            self.job.reaped(n);
        }
        n
    }

    /// The buffer of an ended I/O is the job's again; `complete` is how the engine is told.
    #[inline]
    fn hand_back(&mut self, done: Done, complete: impl FnOnce(&mut JobThread, u32, BlkStatus, Instant) -> Completed) {
        let slot = done.user_data as u32;
        if done.op.has_data() {
            // SAFETY: the bio with this buffer's DataRef has ended: the block layer returns each bio once.
            unsafe { self.buffers.give_back(slot) };
        }
        if complete(&mut self.job, slot, done.status, self.now).needs_verify {
            verify(&mut self.job, &mut self.buffers, slot, &mut self.verify_errors);
        }
    }

    /// Nothing may be issued before `until`; what ends meanwhile is completed.
    fn wait_until(&mut self, until: Instant) {
        let left = until.since(clock::now()).min(STOP_CHECK);
        if self.sub.outstanding() > 0 {
            self.wait(1, Some(left));
            self.now = clock::now();
            self.sub.poll(self.now);
            self.complete(u32::MAX);
        } else {
            self.sub.rest();
            std::thread::sleep(std::time::Duration::from_nanos(left.as_ns()));
            self.now = clock::now();
        }
    }

    /// Waits for completions in the driver, at most until `timeout` or delayed work of the disk is due.
    /// Polled I/O is not waited for.
    fn wait(&mut self, min: u32, timeout: Option<Duration>) {
        if self.polled {
            return core::hint::spin_loop();
        }
        self.waiter.wait(&self.disk, &mut self.sub, min, timeout);
    }
}

#[cold]
fn verify(job: &mut JobThread, buffers: &mut BufferPool, slot: u32, errors: &mut Vec<VerifyError>) {
    if let Err(e) = buffers.with_slot(slot, |buf| job.verify(slot, buf))
        && errors.len() < VERIFY_REPORTS
    {
        errors.push(e);
    }
}

/// Bytes of buffer an operation of a job needs per slot.
pub(super) fn slot_bytes(job: &JobThread) -> usize {
    (job.max_io_bytes() as usize).max(512)
}
