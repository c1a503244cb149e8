// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pauses: `thinktime`, `thinktime_spin`, `thinktime_blocks`, `thinktime_blocks_type`, `thinktime_iotime`.
//!
//! After a number of blocks, or after a time of I/O, the job waits for its I/Os in flight, spins for a while if configured, and sleeps for the rest
//! of the pause.

use crate::job::{Job, ThinktimeBlocks};

/// The state of a job's pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// Not pausing.
    No,
    /// Waits until nothing is in flight.
    Drain,
    /// Spins until this time (nanoseconds).
    Spin(u64),
    /// Sleeps until this time.
    Sleep(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThinkState {
    Working,
    Draining,
    Pausing { spin_until: u64, until: u64 },
}

#[derive(Clone, Debug)]
pub(super) struct Think {
    pause_ns: u64,
    spin_ns: u64,
    blocks: u64,
    /// From the begin of a pause to that of the next one; `None`: only blocks decide.
    round_ns: Option<u64>,
    /// Begin of the last pause, or of the job.
    last_at: Option<u64>,
    pub count_issued: bool,
    last: u64,
    state: ThinkState,
}

impl Think {
    pub fn new(job: &Job) -> Option<Think> {
        (job.thinktime_ns > 0).then(|| Think {
            pause_ns: job.thinktime_ns,
            spin_ns: job.thinktime_spin_ns.min(job.thinktime_ns),
            blocks: job.thinktime_blocks.max(1),
            round_ns: (job.thinktime_iotime_ns > 0).then(|| job.thinktime_iotime_ns.saturating_add(job.thinktime_ns)),
            last_at: None,
            count_issued: job.thinktime_blocks_type == ThinktimeBlocks::Issue,
            last: 0,
            state: ThinkState::Working,
        })
    }

    /// Returns the state at `now_ns`, with `count` blocks done so far and `out` I/Os in flight.
    pub fn ask(&mut self, count: u64, out: u32, now_ns: u64) -> Pause {
        let since = now_ns - *self.last_at.get_or_insert(now_ns);
        let is_due =
            count >= self.last.saturating_add(self.blocks) || self.round_ns.is_some_and(|round| since >= round);
        if self.state == ThinkState::Working && is_due {
            self.last = count;
            self.last_at = Some(now_ns);
            self.state = ThinkState::Draining;
        }
        if self.state == ThinkState::Draining {
            if out > 0 {
                return Pause::Drain;
            }
            self.state = ThinkState::Pausing {
                spin_until: now_ns.saturating_add(self.spin_ns),
                until: now_ns.saturating_add(self.pause_ns),
            };
        }
        match self.state {
            ThinkState::Pausing { spin_until, .. } if now_ns < spin_until => Pause::Spin(spin_until),
            ThinkState::Pausing { until, .. } if now_ns < until => Pause::Sleep(until),
            _ => {
                self.state = ThinkState::Working;
                Pause::No
            }
        }
    }

    /// The measured part begins: counts start at zero.
    pub fn restart_counts(&mut self) {
        self.last = 0;
    }
}
