// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Time and measurements: submissions, completions, rate samples, the end of `ramp_time`, run times.

use super::issue::NOT_RATED;
use super::rates::RateWindow;
use super::{Completed, JobThread, Kind, Phase, SlotState, StopReason};
use crate::job::{Dir, LogKind};
use crate::logs::IoEnd;
use crate::slices::Late;
use crate::stats::{DIRS, JobStats, LatencyClasses, batch_class, depth_class};
use blk::status::BlkStatus;
use blk::time::Instant;

/// The job's times, in nanoseconds of the driver's clock.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock {
    started: bool,
    /// Start of the job; rates count from here.
    pub epoch: u64,
    /// Start of what is measured: after the end of `ramp_time`.
    measured_from: u64,
    pub(super) ramping: bool,
    /// A submission is more than a measurement: it is in the ramp, or goes to a log.
    pub(super) rare_submissions: bool,
    /// `ramp_time` is over, and what is measured begins after this many completions.
    opens_after: Option<u32>,
    /// When `runtime` is over; it begins where the ramp ends.
    pub end_at: u64,
    /// `runtime` is over.
    pub expired: bool,
    /// Start of the current part of a pass.
    pub phase_start: u64,
    pub last_completed_read: bool,
}

/// What is sampled over time.
#[derive(Clone, Debug, Default)]
pub(super) struct Sampling {
    bw: RateWindow,
    iops: RateWindow,
    /// When the next sample is due: at the end of a window or of a slice, or at once if a log has a line for each I/O.
    pub(super) next: u64,
    /// I/Os and bytes read back, which windows do not count.
    read_back: (u64, u64),
    /// Run time of completed parts, per direction.
    ran: [u64; DIRS],
}

/// Consecutive completions with the same latencies. They are from one batch, share their times, and are recorded at once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LatencyRun {
    clat: u64,
    lat: u64,
    times: u64,
    dir: u8,
}

impl JobThread {
    /// Follows the clock: the start, the end of the ramp, the end of the run.
    pub(super) fn tick(&mut self, now: Instant) {
        let now = now.as_ns();
        if !self.clock.started {
            self.clock = Clock {
                started: true,
                epoch: now,
                measured_from: now,
                ramping: self.plan.ramp_ns > 0,
                end_at: if self.plan.ramp_ns > 0 { u64::MAX } else { self.ends_at(now) },
                phase_start: now,
                ..Clock::default()
            };
            self.start_sampling(now);
        }
        if self.clock.ramping && now >= self.clock.epoch.saturating_add(self.plan.ramp_ns) {
            if self.in_flight == 0 {
                self.end_ramp(now);
            } else {
                self.clock.opens_after.get_or_insert(self.in_flight);
            }
        }
        if now >= self.clock.end_at {
            self.clock.expired = true;
            self.leave_fast_path();
        }
        self.check_at = match self.clock.opens_after {
            // A completion ends the ramp.
            Some(_) => u64::MAX,
            None if self.clock.ramping => self.clock.epoch.saturating_add(self.plan.ramp_ns),
            None => self.clock.end_at,
        };
    }

    /// When `runtime` is over, if it begins at `from`.
    fn ends_at(&self, from: u64) -> u64 {
        self.plan.runtime_ns.map_or(u64::MAX, |runtime| from.saturating_add(runtime))
    }

    /// Counts a completion after `ramp_time`. What is measured begins when as many I/Os have completed as were in flight at
    /// the end of the ramp, so that I/Os that complete together are all before the beginning.
    fn open_after(&mut self, now: u64) {
        if let Some(left) = &mut self.clock.opens_after {
            *left -= 1;
            if *left == 0 {
                self.end_ramp(now);
            }
        }
    }

    /// Discards the measurements so far, which were warm-up. `runtime` begins again.
    pub(super) fn end_ramp(&mut self, now: u64) {
        self.clock.ramping = false;
        self.clock.opens_after = None;
        self.clock.end_at = self.ends_at(now);
        self.check_at = self.clock.end_at;
        self.clock.measured_from = now;
        self.clock.phase_start = now;
        self.run = LatencyRun::default();
        self.stats.reset();
        self.classes = LatencyClasses::default();
        self.issued_ios = [0; DIRS];
        self.issued_bytes = [0; DIRS];
        self.sampling = Sampling::default();
        self.start_sampling(now);
        self.leave_fast_path();
        if let Some(think) = &mut self.think {
            think.restart_counts();
        }
    }

    fn start_sampling(&mut self, now: u64) {
        let [bw_ns, iops_ns] = self.plan.rate_windows_ns;
        self.sampling.bw = RateWindow::new(bw_ns, now);
        self.sampling.iops = RateWindow::new(iops_ns, now);
        if let Some(slicer) = &mut self.slicer {
            slicer.start(now);
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.start(now);
        }
        self.clock.rare_submissions =
            self.clock.ramping || self.recorder.as_ref().is_some_and(|r| r.wants_submissions());
        self.set_next();
    }

    fn set_next(&mut self) {
        let slice_ends = self.slicer.as_ref().map_or(u64::MAX, |s| s.next());
        let logs = self.recorder.as_ref().map_or(u64::MAX, |r| r.next());
        self.sampling.next = self.sampling.bw.until().min(self.sampling.iops.until()).min(slice_ends).min(logs);
    }

    /// Records that all I/Os returned since the last call are submitted at `now`.
    #[inline]
    pub fn submitted(&mut self, now: Instant) {
        if let [slot] = self.queued[..] {
            self.submitted_one(slot, now.as_ns());
        } else {
            self.submitted_batch(now);
        }
    }

    /// A batch of one, which is every batch at a queue depth of one.
    #[inline(always)] // The loop of a job thread, for each I/O.
    fn submitted_one(&mut self, slot: u32, now_ns: u64) {
        self.queued.clear();
        let s = &mut self.slots[slot as usize];
        s.issue_ns = now_ns;
        s.state = SlotState::Submitted;
        let (kind, dir, slat_ns) = (s.kind, s.dir, now_ns.saturating_sub(s.start_ns));
        if self.clock.rare_submissions && !self.log_submission(slot) {
            return;
        }
        if kind != Kind::Flush {
            self.stats.dirs[usize::from(dir)].slat.record(slat_ns);
        }
        self.stats.depth[depth_class(self.in_flight)] += 1;
        self.stats.submit[batch_class(1)] += 1;
    }

    /// Writes a submitted I/O to its log, if it has one. Returns whether it is measured, which it is not in the ramp.
    #[inline(never)]
    fn log_submission(&mut self, slot: u32) -> bool {
        if self.clock.ramping {
            return false;
        }
        let s = &self.slots[slot as usize];
        if let Some(recorder) = &mut self.recorder
            && s.kind != Kind::Flush
        {
            recorder.submitted(s.issue_ns, s.issue_ns.saturating_sub(s.start_ns), s.dir, s.len, s.offset);
        }
        true
    }

    #[inline(never)]
    fn submitted_batch(&mut self, now: Instant) {
        let n = self.queued.len() as u32;
        if n == 0 {
            return;
        }
        let now = now.as_ns();
        let measured = !self.clock.ramping;
        // The I/Os of a batch were usually created at the same time, so consecutive equal latencies are recorded in one step.
        let (mut run_dir, mut run_ns, mut run) = (0u8, 0, 0);
        for &i in &self.queued {
            let slot = &mut self.slots[i as usize];
            slot.issue_ns = now;
            slot.state = SlotState::Submitted;
            if slot.kind == Kind::Flush {
                continue;
            }
            let (dir, ns) = (slot.dir, now.saturating_sub(slot.start_ns));
            if (dir, ns) != (run_dir, run_ns) {
                if measured {
                    self.stats.dirs[usize::from(run_dir)].slat.record_n(run_ns, run);
                }
                (run_dir, run_ns, run) = (dir, ns, 0);
            }
            run += 1;
        }
        if measured {
            self.stats.dirs[usize::from(run_dir)].slat.record_n(run_ns, run);
        }
        if self.clock.rare_submissions {
            for k in 0..self.queued.len() {
                self.log_submission(self.queued[k]);
            }
        }
        self.queued.clear();
        if measured {
            self.stats.depth[depth_class(self.in_flight)] += u64::from(n);
            self.stats.submit[batch_class(n)] += 1;
        }
    }

    /// Completes the I/O in `slot` at `now`. If the result has `needs_verify` set, the caller passes the data to
    /// [`JobThread::verify`]; otherwise the slot is free again.
    ///
    /// # Panics
    /// When the slot's I/O was not submitted, or completed before.
    #[inline]
    pub fn complete(&mut self, slot: u32, status: BlkStatus, now: Instant) -> Completed {
        let s = &self.slots[slot as usize];
        assert!(s.state == SlotState::Submitted, "completion for slot {slot}, which is {:?}", s.state);
        let (kind, ns) = (s.kind, now.as_ns());
        if !status.is_ok() || kind == Kind::Flush || self.clock.ramping {
            return self.complete_rare(slot, status, now);
        }
        let clat = ns.saturating_sub(s.issue_ns);
        let d = &mut self.stats.dirs[usize::from(s.dir)];
        d.ios += 1;
        d.bytes += u64::from(s.len);
        if s.due_ns != NOT_RATED {
            d.intended.record(ns.saturating_sub(s.due_ns));
        }
        let (dir, lat) = (s.dir, ns.saturating_sub(s.start_ns));
        if (self.run.clat, self.run.lat, self.run.dir) != (clat, lat, dir) {
            if self.run.times > 0 {
                self.settle_latencies();
            }
            self.run = LatencyRun { clat, lat, times: 0, dir };
        }
        self.run.times += 1;
        if ns >= self.sampling.next {
            self.sample(ns, slot);
        }
        self.completed(slot, kind, ns)
    }

    /// Combines [`JobThread::complete`] and [`JobThread::reaped`] for a reap that found one I/O.
    ///
    /// # Panics
    /// As [`JobThread::complete`].
    #[inline]
    pub fn complete_one(&mut self, slot: u32, status: BlkStatus, now: Instant) -> Completed {
        let s = &self.slots[slot as usize];
        let plain = status.is_ok() && !self.clock.ramping && s.kind != Kind::Flush && s.due_ns == NOT_RATED;
        if !plain || self.plan.inspects {
            let completed = self.complete(slot, status, now);
            self.reaped(1);
            return completed;
        }
        assert!(s.state == SlotState::Submitted, "completion for slot {slot}, which is {:?}", s.state);
        let ns = now.as_ns();
        let (dir, len, clat, lat) = (s.dir, s.len, ns.saturating_sub(s.issue_ns), ns.saturating_sub(s.start_ns));
        let d = &mut self.stats.dirs[usize::from(dir)];
        d.ios += 1;
        d.bytes += u64::from(len);
        d.clat.record(clat);
        d.lat.record(lat);
        self.classes.count(clat, 1);
        self.stats.complete[batch_class(1)] += 1;
        if ns >= self.sampling.next {
            self.sample(ns, slot);
        }
        self.release(slot);
        self.reap.reaped(&self.plan, self.in_flight);
        Completed { needs_verify: false }
    }

    /// Completes the only I/O in flight, if it was submitted and completed within one call. Replaces
    /// [`JobThread::submitted`], [`JobThread::complete`] and [`JobThread::reaped`], all at `now`. As with fio's engines
    /// that complete in their queue function, its latency is all completion latency and it has no submission latency.
    /// # Panics
    /// When another I/O is in flight, or as [`JobThread::complete`].
    #[inline]
    pub fn ended_at_once(&mut self, slot: u32, status: BlkStatus, now: Instant) -> Completed {
        assert!(self.in_flight == 1 && self.queued == [slot], "slot {slot} is not the only one out");
        self.queued.clear();
        let s = &mut self.slots[slot as usize];
        s.issue_ns = s.start_ns;
        s.state = SlotState::Submitted;
        if !self.clock.ramping {
            self.stats.depth[depth_class(1)] += 1;
            self.stats.submit[batch_class(1)] += 1;
        }
        self.complete_one(slot, status, now)
    }

    #[inline]
    fn completed(&mut self, slot: u32, kind: Kind, ns: u64) -> Completed {
        if self.plan.inspects {
            return self.inspect(slot, kind, ns);
        }
        self.release(slot);
        Completed { needs_verify: false }
    }

    /// Completes an I/O whose job needs more than its counts and latencies.
    #[inline(never)]
    fn inspect(&mut self, slot: u32, kind: Kind, ns: u64) -> Completed {
        if !self.clock.ramping {
            self.check_latency(slot, ns);
            self.record_prio(slot, ns);
        }
        if self.plan.verify {
            return self.complete_verified(slot, kind);
        }
        self.release(slot);
        Completed { needs_verify: false }
    }

    #[inline(never)]
    fn complete_rare(&mut self, slot: u32, status: BlkStatus, now: Instant) -> Completed {
        if self.clock.ramping {
            self.tick(now);
        }
        let kind = self.slots[slot as usize].kind;
        let completed = if !status.is_ok() {
            self.failed(slot, status)
        } else if kind == Kind::Flush {
            self.flushed(slot, now.as_ns());
            Completed { needs_verify: false }
        } else {
            self.completed(slot, kind, now.as_ns())
        };
        self.open_after(now.as_ns());
        completed
    }

    #[inline(never)]
    fn complete_verified(&mut self, slot: u32, kind: Kind) -> Completed {
        self.clock.last_completed_read = matches!(kind, Kind::Read | Kind::ReadBack);
        if kind == Kind::Write
            && let Some(piece) = self.verify_slots[slot as usize].piece.take()
        {
            self.log.finish(piece, true);
        }
        if kind == Kind::Write {
            self.write_completed(
                self.files.as_ref().map_or(0, |files| files.of(slot)),
                self.slots[slot as usize].offset,
            );
        }
        if let Some((piece, keeps)) = self.verify_slots[slot as usize].trims.take() {
            self.log.finish_trim(piece, keeps);
        }
        if kind == Kind::ReadBack {
            self.sampling.read_back.0 += 1;
            self.sampling.read_back.1 += u64::from(self.slots[slot as usize].len);
        }
        // Reads of a job that also writes may hit blocks that were not written. Only the reading back of such a job verifies.
        let needs_verify = kind == Kind::ReadBack || (kind == Kind::Read && !self.plan.writes);
        if needs_verify {
            self.slots[slot as usize].state = SlotState::Verifying;
        } else {
            self.release(slot);
        }
        Completed { needs_verify }
    }

    #[inline(never)]
    fn flushed(&mut self, slot: u32, ns: u64) {
        // fio counts the flushes of fsync and fdatasync, not those between the parts of a job.
        let counts = !matches!(self.phase, Phase::EndSync | Phase::VerifySync);
        if counts && !self.clock.ramping {
            self.stats.sync.ios += 1;
            self.stats.sync.lat.record(ns.saturating_sub(self.slots[slot as usize].issue_ns));
        }
        self.release(slot);
    }

    #[inline(never)]
    fn failed(&mut self, slot: u32, status: BlkStatus) -> Completed {
        let kind = self.slots[slot as usize].kind;
        if kind == Kind::Flush {
            self.stats.sync.errors += 1;
            self.issuing.was_flush = false;
        } else {
            self.stats.dirs[usize::from(self.slots[slot as usize].dir)].errors += 1;
        }
        if self.plan.verify
            && let Some(piece) = self.verify_slots[slot as usize].piece.take()
        {
            match kind {
                Kind::ReadBack => self.log.finish_read(piece),
                _ => self.log.finish(piece, false),
            }
        }
        if self.plan.verify {
            self.write_or_trim_failed(slot, kind);
        }
        self.stats.count_error(status.errno());
        self.stop(StopReason::Failed(status.errno()));
        self.release(slot);
        Completed { needs_verify: false }
    }

    /// Ends a reap that found `n` completions at once. Latencies are in [`JobThread::stats`] from now on.
    #[inline]
    pub fn reaped(&mut self, n: u32) {
        self.settle_latencies();
        self.reap.reaped(&self.plan, self.in_flight);
        if !self.clock.ramping {
            self.stats.complete[batch_class(n)] += 1;
        }
    }

    /// Records the latencies that were held back because the next ones could be equal.
    #[inline]
    fn settle_latencies(&mut self) {
        let LatencyRun { clat, lat, times, dir } = self.run;
        self.run.times = 0;
        let d = &mut self.stats.dirs[usize::from(dir)];
        match times {
            0 => return,
            1 => {
                d.clat.record(clat);
                d.lat.record(lat);
            }
            n => {
                d.clat.record_n(clat, n);
                d.lat.record_n(lat, n);
            }
        }
        self.classes.count(clat, times);
    }

    #[inline]
    pub(super) fn release(&mut self, slot: u32) {
        self.slots[slot as usize].state = SlotState::Free;
        self.free.push(slot);
        self.in_flight -= 1;
    }

    /// Takes the samples that are due. The I/O in `slot`, which has just been counted, showed that they are.
    #[inline(never)]
    pub(super) fn sample(&mut self, now: u64, slot: u32) {
        self.settle();
        self.settle_latencies();
        let s = &self.slots[slot as usize];
        let (dir, bytes) = (s.dir, s.len);
        let clat_ns = now.saturating_sub(s.issue_ns);
        let io = IoEnd { dir, len: s.len, offset: s.offset, lat_ns: now.saturating_sub(s.start_ns), clat_ns };
        let latency_ns = if s.due_ns == NOT_RATED { clat_ns } else { now.saturating_sub(s.due_ns) };
        if let Some(slicer) = self.slicer.as_mut().filter(|s| now >= s.next()) {
            slicer.take(&self.stats.dirs, now, Some(Late { dir, latency_ns, bytes }));
        }
        self.end_windows(now, Some((dir, bytes)));
        if let Some(recorder) = &mut self.recorder {
            recorder.ended(now, &io, &self.stats.dirs);
        }
        self.set_next();
    }

    /// Ends the windows that are over. `late`: direction and bytes of an I/O that is counted and completed after them.
    fn end_windows(&mut self, now: u64, late: Option<(u8, u32)>) {
        let Sampling { bw, iops, read_back, .. } = &mut self.sampling;
        if now < bw.until() && now < iops.until() {
            return;
        }
        let mut counts = self.stats.dirs.each_ref().map(|d| (d.ios, d.bytes));
        counts[Dir::Read as usize].0 -= read_back.0;
        counts[Dir::Read as usize].1 -= read_back.1;
        if let Some((dir, bytes)) = late {
            counts[usize::from(dir)].0 -= 1;
            counts[usize::from(dir)].1 -= u64::from(bytes);
        }
        for (kind, window) in [(LogKind::Bw, bw), (LogKind::Iops, iops)] {
            let is_bw = kind == LogKind::Bw;
            let counts = counts.map(|(ios, bytes)| if is_bw { bytes } else { ios });
            let Some((ended, rates)) = window.end(now, counts) else { continue };
            for (d, rate) in rates.into_iter().enumerate() {
                let Some(rate) = rate else { continue };
                let rate = if is_bw { rate / 1024 } else { rate };
                let dir = &mut self.stats.dirs[d];
                let samples = if is_bw { &mut dir.bw_kib } else { &mut dir.iops };
                samples.record(rate);
                if let Some(recorder) = &mut self.recorder {
                    recorder.rate(kind, ended, d as u8, rate);
                }
            }
        }
        self.update_run_times(now, None);
    }

    /// Updates run times to `now`, including the current part of the pass.
    fn update_run_times(&mut self, now: u64, only: Option<Dir>) {
        self.stats.runtime_ns = now.saturating_sub(self.clock.measured_from);
        self.classes.publish(&mut self.stats);
        let part = now.saturating_sub(self.clock.phase_start);
        for dir in Dir::ALL {
            let d = dir as usize;
            let counts = only.is_none_or(|o| o == dir) && self.stats.dirs[d].ios > 0;
            self.stats.dirs[d].runtime_ns = self.sampling.ran[d] + if counts { part } else { 0 };
        }
    }

    /// Ends a part of a pass. `only` names the direction in which it ran; `None` stands for all directions that moved data.
    pub(super) fn end_timed_phase(&mut self, now: Instant, only: Option<Dir>) {
        if self.clock.ramping {
            return;
        }
        self.update_run_times(now.as_ns(), only);
        self.sampling.ran = self.stats.dirs.each_ref().map(|d| d.runtime_ns);
        self.clock.phase_start = now.as_ns();
    }

    /// Returns the measurements until `now` of a job in progress. In `ramp_time` there are none.
    pub fn stats_at(&mut self, now: Instant) -> JobStats {
        self.settle();
        self.settle_latencies();
        if !self.clock.ramping && self.phase != Phase::Finished {
            let reads_back = matches!(self.phase, Phase::Verify | Phase::EndOfVerify);
            self.update_run_times(now.as_ns(), reads_back.then_some(Dir::Read));
        }
        self.stats.clone()
    }

    /// Ends the job.
    pub(super) fn finish(&mut self, now: Instant) {
        self.settle();
        self.settle_latencies();
        if !self.clock.ramping {
            self.end_windows(now.as_ns(), None);
            if let Some(recorder) = &mut self.recorder {
                recorder.finish(now.as_ns());
            }
            self.stats.runtime_ns = now.as_ns().saturating_sub(self.clock.measured_from);
            self.classes.publish(&mut self.stats);
            if let Some(mut slicer) = self.slicer.take() {
                slicer.take(&self.stats.dirs, now.as_ns(), None);
                self.stats.slices = Some(Box::new(slicer.table().clone()));
            }
        }
    }
}
