// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Time and measurements of a transaction loop, kept as [`crate::engine`] keeps those of a fio job.
//!
//! Guarantees: nothing is measured before the end of `ramp_time`. A transaction that began before that end and completes
//! after it counts.

use crate::job::{Dir, Job};
use crate::stats::{
    DIRS, JobStats, LatencyClasses, Percentiles, RATE_INTERVAL, TxStats, batch_class, depth_class, per_second,
};

/// An I/O in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Io {
    pub dir: Dir,
    pub len: u32,
    pub start_ns: u64,
    pub issue_ns: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Account {
    pub stats: JobStats,
    classes: LatencyClasses,
    ramp_ns: u64,
    runtime_ns: Option<u64>,
    started: bool,
    pub ramping: bool,
    ramp_ends: u64,
    /// When `runtime` is over.
    pub end_at: u64,
    measured_from: u64,
    sampled_at: u64,
    sample_due: u64,
    sampled: [(u64, u64); DIRS],
}

impl Account {
    pub fn new(job: &Job) -> Account {
        let percentiles =
            Percentiles { slat: job.slat_percentiles, clat: job.clat_percentiles, lat: job.lat_percentiles };
        let mut stats = JobStats::new(&[Dir::Read, Dir::Write], percentiles, false);
        stats.tx = Some(Box::default());
        Account {
            stats,
            classes: LatencyClasses::default(),
            ramp_ns: job.ramp_time_ns,
            runtime_ns: job.runtime_ns,
            started: false,
            ramping: false,
            ramp_ends: 0,
            end_at: u64::MAX,
            measured_from: 0,
            sampled_at: 0,
            sample_due: 0,
            sampled: [(0, 0); DIRS],
        }
    }

    /// Follows the clock: the start and the end of the ramp.
    pub fn tick(&mut self, now_ns: u64) {
        if !self.started {
            self.started = true;
            self.ramping = self.ramp_ns > 0;
            self.ramp_ends = now_ns.saturating_add(self.ramp_ns);
            self.end_at = self.runtime_ns.map_or(u64::MAX, |r| self.ramp_ends.saturating_add(r));
            self.measure_from(now_ns);
        }
        if self.ramping && now_ns >= self.ramp_ends {
            self.ramping = false;
            self.stats.reset();
            self.classes = LatencyClasses::default();
            self.measure_from(now_ns);
        }
    }

    fn measure_from(&mut self, now_ns: u64) {
        self.measured_from = now_ns;
        self.sampled_at = now_ns;
        self.sample_due = now_ns.saturating_add(RATE_INTERVAL.as_ns());
        self.sampled = [(0, 0); DIRS];
    }

    /// Whether `runtime` is over.
    pub fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.end_at
    }

    /// The measurements of transactions. Those of the ramp are discarded at its end.
    pub fn tx(&mut self) -> &mut TxStats {
        self.stats.tx.as_mut().expect("made with it")
    }

    /// Records that `n` I/Os were submitted at once.
    pub fn batch(&mut self, n: u32, in_flight: u32) {
        if !self.ramping {
            self.stats.depth[depth_class(in_flight)] += u64::from(n);
            self.stats.submit[batch_class(n)] += 1;
        }
    }

    /// Records that an I/O was submitted.
    pub fn submitted(&mut self, io: &Io) {
        if !self.ramping {
            self.stats.dirs[io.dir as usize].slat.record(io.issue_ns.saturating_sub(io.start_ns));
        }
    }

    /// Records that an I/O completed without error.
    pub fn completed(&mut self, io: &Io, now_ns: u64) {
        if self.ramping {
            return;
        }
        let clat = now_ns.saturating_sub(io.issue_ns);
        let d = &mut self.stats.dirs[io.dir as usize];
        d.ios += 1;
        d.bytes += u64::from(io.len);
        d.clat.record(clat);
        d.lat.record(now_ns.saturating_sub(io.start_ns));
        self.classes.count(clat, 1);
        if now_ns >= self.sample_due {
            self.sample(now_ns);
        }
    }

    /// Records that an I/O failed.
    pub fn failed(&mut self, io: &Io, errno: i32) {
        self.stats.dirs[io.dir as usize].errors += 1;
        self.stats.count_error(errno);
    }

    /// Records that `n` completions were found at once.
    pub fn reaped(&mut self, n: u32) {
        if !self.ramping {
            self.stats.complete[batch_class(n)] += 1;
        }
    }

    fn sample(&mut self, now_ns: u64) {
        let spent = (now_ns - self.sampled_at).max(1);
        for (dir, (ios, bytes)) in self.stats.dirs.iter_mut().zip(&mut self.sampled) {
            if dir.ios > *ios {
                dir.iops.record(per_second(dir.ios - *ios, spent));
                dir.bw_kib.record(per_second(dir.bytes - *bytes, spent) / 1024);
            }
            (*ios, *bytes) = (dir.ios, dir.bytes);
        }
        self.sampled_at = now_ns;
        let interval = RATE_INTERVAL.as_ns();
        let late = now_ns - self.sample_due;
        self.sample_due = self.sample_due.saturating_add(interval * (late / interval + 1));
        self.update_run_times(now_ns);
    }

    /// Updates run times and latency classes to `now_ns`.
    pub fn update_run_times(&mut self, now_ns: u64) {
        if self.ramping {
            return;
        }
        let ran = now_ns.saturating_sub(self.measured_from);
        self.stats.runtime_ns = ran;
        for dir in self.stats.dirs.iter_mut().filter(|d| d.ios > 0) {
            dir.runtime_ns = ran;
        }
        self.classes.publish(&mut self.stats);
    }
}
