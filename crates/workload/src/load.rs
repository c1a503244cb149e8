// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The interface of any kind of job thread to its driver: the calls of [`JobThread`], and the targets of its I/O.
//!
//! Guarantees: the protocol is that of [`crate::engine`]. The slots of a load are numbered over all its volumes, the first
//! volume's slots first. Needs from callers: those of [`crate::engine`]. Does not do: I/O, time.

use crate::engine::{Completed, IoReq, JobThread, Next, StopReason};
use crate::flow::FlowShare;
use crate::job::Job;
use crate::logs::LogChunk;
use crate::stats::JobStats;
use crate::verify::VerifyError;
use crate::verify::state::VerifyState;
use blk::status::BlkStatus;
use blk::time::Instant;
use std::sync::Arc;

/// The slots and buffers that a load needs for one of its volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Maximum number of I/Os in flight on the volume, each with a buffer; at least 1.
    pub slots: u32,
    /// Bytes of a buffer.
    pub slot_bytes: u32,
}

/// A job thread as a state machine. See [`crate::engine`] for the calls and their order.
pub trait Load {
    /// The volumes of its I/O: a plain job has one volume, a database one for data and one for redo.
    fn volumes(&self) -> Vec<Volume>;

    /// As [`JobThread::fill_first`], for every slot in order.
    fn fill_first(&mut self, buf: &mut [u8]);

    /// As [`JobThread::next`].
    fn next(&mut self, now: Instant) -> Next;

    /// As [`JobThread::next_uniform`]; `None` for a load without such I/O.
    fn next_uniform(&mut self, _now: Instant) -> Option<IoReq> {
        None
    }

    /// As [`JobThread::next_other`].
    fn next_other(&mut self, now: Instant) -> Next {
        self.next(now)
    }

    /// As [`JobThread::fill`].
    fn fill(&mut self, slot: u32, buf: &mut [u8]);

    /// As [`JobThread::submitted`].
    fn submitted(&mut self, now: Instant);

    /// As [`JobThread::complete`].
    fn complete(&mut self, slot: u32, status: BlkStatus, now: Instant) -> Completed;

    /// As [`JobThread::reaped`].
    fn reaped(&mut self, n: u32);

    /// As [`JobThread::complete_one`].
    fn complete_one(&mut self, slot: u32, status: BlkStatus, now: Instant) -> Completed {
        let completed = self.complete(slot, status, now);
        self.reaped(1);
        completed
    }

    /// As [`JobThread::ended_at_once`].
    fn ended_at_once(&mut self, slot: u32, status: BlkStatus, now: Instant) -> Completed {
        self.submitted(now);
        self.complete_one(slot, status, now)
    }

    /// As [`JobThread::exchanges`]; false for a load without this way.
    fn exchanges(&self, _now: Instant) -> bool {
        false
    }

    /// As [`JobThread::exchanged`].
    fn exchanged(&mut self, slot: u32, status: BlkStatus, now: Instant) -> Completed {
        self.submitted(now);
        self.complete_one(slot, status, now)
    }

    /// As [`JobThread::settle`].
    fn settle(&mut self) {}

    /// As [`JobThread::verify`].
    ///
    /// # Errors
    /// The block does not contain what was written.
    fn verify(&mut self, slot: u32, buf: &[u8]) -> Result<(), VerifyError>;

    /// As [`JobThread::stop`].
    fn stop(&mut self, why: StopReason);

    /// As [`JobThread::abandon`].
    fn abandon(&mut self, now: Instant);

    /// As [`JobThread::is_ramping`].
    fn is_ramping(&self) -> bool;

    /// As [`JobThread::keep_slices`]; a load without slices ignores it.
    fn keep_slices(&mut self) {}

    /// As [`JobThread::keep_logs`]; a load without logs ignores it.
    fn keep_logs(&mut self) {}

    /// As [`JobThread::take_log`]; `None` for a load without logs.
    fn take_log(&mut self, _all: bool) -> Option<LogChunk> {
        None
    }

    /// As [`JobThread::join_flow`]; a load without a flow ignores it.
    fn join_flow(&mut self, _job: &Job, _share: Arc<FlowShare>) {}

    /// As [`JobThread::verify_state`]; `None` for a load that verifies nothing.
    fn verify_state(&self) -> Option<Vec<u8>> {
        None
    }

    /// As [`JobThread::load_verify_state`]; a load that verifies nothing ignores it.
    fn load_verify_state(&mut self, _state: VerifyState) {}

    /// As [`JobThread::stats`].
    fn stats(&self) -> &JobStats;

    /// As [`JobThread::stats_at`].
    fn stats_at(&mut self, _now: Instant) -> JobStats {
        self.stats().clone()
    }

    /// As [`JobThread::stats_mut`].
    fn stats_mut(&mut self) -> &mut JobStats;
}

impl Load for JobThread {
    fn volumes(&self) -> Vec<Volume> {
        vec![Volume { slots: self.depth(), slot_bytes: self.max_io_bytes() }]
    }

    fn fill_first(&mut self, buf: &mut [u8]) {
        JobThread::fill_first(self, buf);
    }

    #[inline]
    fn next(&mut self, now: Instant) -> Next {
        JobThread::next(self, now)
    }

    #[inline(always)] // The loop of a job thread, for each I/O.
    fn next_uniform(&mut self, now: Instant) -> Option<IoReq> {
        JobThread::next_uniform(self, now)
    }

    #[inline]
    fn next_other(&mut self, now: Instant) -> Next {
        JobThread::next_other(self, now)
    }

    fn fill(&mut self, slot: u32, buf: &mut [u8]) {
        JobThread::fill(self, slot, buf);
    }

    #[inline]
    fn submitted(&mut self, now: Instant) {
        JobThread::submitted(self, now);
    }

    #[inline]
    fn complete(&mut self, slot: u32, status: BlkStatus, now: Instant) -> Completed {
        JobThread::complete(self, slot, status, now)
    }

    #[inline]
    fn reaped(&mut self, n: u32) {
        JobThread::reaped(self, n);
    }

    #[inline]
    fn complete_one(&mut self, slot: u32, status: BlkStatus, now: Instant) -> Completed {
        JobThread::complete_one(self, slot, status, now)
    }

    #[inline]
    fn ended_at_once(&mut self, slot: u32, status: BlkStatus, now: Instant) -> Completed {
        JobThread::ended_at_once(self, slot, status, now)
    }

    #[inline(always)] // The loop of a job thread, for each I/O.
    fn exchanges(&self, now: Instant) -> bool {
        JobThread::exchanges(self, now)
    }

    #[inline]
    fn exchanged(&mut self, slot: u32, status: BlkStatus, now: Instant) -> Completed {
        JobThread::exchanged(self, slot, status, now)
    }

    fn settle(&mut self) {
        JobThread::settle(self);
    }

    fn verify(&mut self, slot: u32, buf: &[u8]) -> Result<(), VerifyError> {
        JobThread::verify(self, slot, buf)
    }

    fn stop(&mut self, why: StopReason) {
        JobThread::stop(self, why);
    }

    fn abandon(&mut self, now: Instant) {
        JobThread::abandon(self, now);
    }

    #[inline]
    fn is_ramping(&self) -> bool {
        JobThread::is_ramping(self)
    }

    fn keep_slices(&mut self) {
        JobThread::keep_slices(self);
    }

    fn keep_logs(&mut self) {
        JobThread::keep_logs(self);
    }

    fn take_log(&mut self, all: bool) -> Option<LogChunk> {
        JobThread::take_log(self, all)
    }

    fn join_flow(&mut self, job: &Job, share: Arc<FlowShare>) {
        JobThread::join_flow(self, job, share);
    }

    fn verify_state(&self) -> Option<Vec<u8>> {
        JobThread::verify_state(self)
    }

    fn load_verify_state(&mut self, state: VerifyState) {
        JobThread::load_verify_state(self, state);
    }

    fn stats(&self) -> &JobStats {
        JobThread::stats(self)
    }

    fn stats_at(&mut self, now: Instant) -> JobStats {
        JobThread::stats_at(self, now)
    }

    fn stats_mut(&mut self) -> &mut JobStats {
        JobThread::stats_mut(self)
    }
}
