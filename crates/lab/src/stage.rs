// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the time went: per-stage sums, merges, per-hctx counts and costs of a run, as plain data.
//!
//! Guarantees: everything is a sum, so runs, job threads and hctxs add up by [`StageFacts::merge`] in any order and means are taken once, at
//! the end. Needs from callers: stages that do not overlap, so that their means add up to the request's total time.
//! Does not: measure; the block layer counts and converts into these structs.

use serde::{Deserialize, Serialize};

use crate::little::Little;

/// Nanoseconds spent in each stage, summed over `n` requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageTimes {
    /// From submit until the request left plug and ctx.
    pub ctx_ns: u64,
    /// In the elevator.
    pub scheduler_ns: u64,
    /// Waiting for a driver tag.
    pub tag_wait_ns: u64,
    /// From tag to the driver having taken it.
    pub dispatch_ns: u64,
    /// With the driver and the device.
    pub device_ns: u64,
    /// From the device's completion to the end of the bios.
    pub completion_ns: u64,
    /// Requests measured.
    pub n: u64,
}

impl StageTimes {
    /// Names of the stages in the order a request meets them.
    pub const NAMES: [&str; 6] = ["ctx", "scheduler", "tag wait", "dispatch", "device", "completion"];
    /// Index of the device stage in [`StageTimes::sums`].
    pub const DEVICE: usize = 4;

    /// The sums in the order of [`StageTimes::NAMES`].
    pub const fn sums(&self) -> [u64; 6] {
        [self.ctx_ns, self.scheduler_ns, self.tag_wait_ns, self.dispatch_ns, self.device_ns, self.completion_ns]
    }

    /// Mean nanoseconds per request of each stage; all zero when nothing was measured.
    pub fn means(&self) -> [f64; 6] {
        self.sums().map(|s| if self.n == 0 { 0.0 } else { s as f64 / self.n as f64 })
    }

    /// Share of each stage in the total, 0 to 1; all zero when the total is zero.
    pub fn shares(&self) -> [f64; 6] {
        let total: f64 = self.sums().iter().map(|&s| s as f64).sum();
        self.sums().map(|s| if total == 0.0 { 0.0 } else { s as f64 / total })
    }

    /// Adds the sums of `other`.
    pub fn merge(&mut self, other: &StageTimes) {
        self.ctx_ns += other.ctx_ns;
        self.scheduler_ns += other.scheduler_ns;
        self.tag_wait_ns += other.tag_wait_ns;
        self.dispatch_ns += other.dispatch_ns;
        self.device_ns += other.device_ns;
        self.completion_ns += other.completion_ns;
        self.n += other.n;
    }
}

/// Bios that joined another request, by where they met it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Merges {
    /// In the submitter's plug.
    pub plug: u64,
    /// At the end of a queued request.
    pub back: u64,
    /// At the start of a queued request.
    pub front: u64,
}

impl Merges {
    /// All merges.
    pub const fn total(&self) -> u64 {
        self.plug + self.back + self.front
    }

    fn merge(&mut self, other: &Merges) {
        self.plug += other.plug;
        self.back += other.back;
        self.front += other.front;
    }
}

/// Counts of one hardware queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HctxCounts {
    /// Requests handed to the driver.
    pub requests: u64,
    /// Times the queue was run.
    pub runs: u64,
    /// Requests that had to wait for a driver tag.
    pub tag_waits: u64,
    /// Times the driver refused for want of a resource.
    pub busy: u64,
}

impl HctxCounts {
    fn merge(&mut self, other: &HctxCounts) {
        self.requests += other.requests;
        self.runs += other.runs;
        self.tag_waits += other.tag_waits;
        self.busy += other.busy;
    }
}

/// What fio cannot tell about a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StageFacts {
    /// Time per stage.
    pub times: StageTimes,
    /// Merged bios.
    pub merges: Merges,
    /// One entry per hardware queue, by its index; empty in single-queue mode without hctxs.
    pub hctx: Vec<HctxCounts>,
    /// I/Os completed.
    pub ios: u64,
    /// CPU time of the whole process over the measured part, nanoseconds.
    pub cpu_ns: u64,
    /// Context switches of the whole process over the measured part.
    pub context_switches: u64,
    /// Little's law over the run, where in-flight was measured.
    pub little: Option<Little>,
}

impl StageFacts {
    /// CPU nanoseconds per I/O; `None` without I/O.
    pub fn cpu_per_io_ns(&self) -> Option<f64> {
        (self.ios > 0).then(|| self.cpu_ns as f64 / self.ios as f64)
    }

    /// Context switches per I/O; `None` without I/O.
    pub fn context_switches_per_io(&self) -> Option<f64> {
        (self.ios > 0).then(|| self.context_switches as f64 / self.ios as f64)
    }

    /// Adds another run or another queue's share. `little` is that of one run and does not add up: it is kept when equal, else dropped.
    pub fn merge(&mut self, other: &StageFacts) {
        self.times.merge(&other.times);
        self.merges.merge(&other.merges);
        if self.hctx.len() < other.hctx.len() {
            self.hctx.resize(other.hctx.len(), HctxCounts::default());
        }
        for (mine, theirs) in self.hctx.iter_mut().zip(&other.hctx) {
            mine.merge(theirs);
        }
        if self.little != other.little {
            self.little = None;
        }
        self.ios += other.ios;
        self.cpu_ns += other.cpu_ns;
        self.context_switches += other.context_switches;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(k: u64, hctxs: usize) -> StageFacts {
        StageFacts {
            times: StageTimes { ctx_ns: k, scheduler_ns: 2 * k, device_ns: 7 * k, n: 10, ..StageTimes::default() },
            merges: Merges { plug: k, back: 1, front: 2 },
            hctx: vec![HctxCounts { requests: k, runs: 1, tag_waits: 2, busy: 3 }; hctxs],
            ios: 100,
            cpu_ns: 5_000,
            context_switches: 25,
            little: None,
        }
    }

    #[test]
    fn means_and_shares() {
        let t = facts(100, 1).times;
        assert_eq!(t.means(), [10.0, 20.0, 0.0, 0.0, 70.0, 0.0]);
        assert_eq!(t.shares()[StageTimes::DEVICE], 0.7);
        assert_eq!(StageTimes::NAMES[StageTimes::DEVICE], "device");
        assert!((t.shares().iter().sum::<f64>() - 1.0).abs() < 1e-12);
        assert_eq!((StageTimes::default().means(), StageTimes::default().shares()), ([0.0; 6], [0.0; 6]));
    }

    #[test]
    fn merging_adds_and_grows_the_hctx_table() {
        let mut a = facts(1, 1);
        a.merge(&facts(10, 3));
        assert_eq!(a.hctx.iter().map(|h| h.requests).collect::<Vec<_>>(), [11, 10, 10]);
        assert_eq!((a.times.n, a.merges.total(), a.ios), (20, 11 + 2 + 4, 200));
        assert_eq!((a.cpu_per_io_ns(), a.context_switches_per_io()), (Some(50.0), Some(0.25)));
        assert_eq!(StageFacts::default().cpu_per_io_ns(), None);
    }
}
