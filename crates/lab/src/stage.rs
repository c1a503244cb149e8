// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the time went: per-stage sums, merges, per-hctx counts and costs of a run, as plain data.
//!
//! Guarantees: all fields are sums, so [`StageFacts::merge`] can add runs, job threads and hctxs in any order. Means are
//! computed once, at the end. Needs from callers: stages that do not overlap, so that their means add up to the request's
//! total time. Does not: measure; the block layer counts and converts into these structs.

use blk::stat::{DiskStats, HctxStats, StageStats};
use serde::{Deserialize, Serialize};

use crate::little::Little;
use sim::scenario::unmodelled::Traffic;

/// Nanoseconds in each stage, summed over `n` requests. The stages are those of [`StageStats`], plus completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageTimes {
    /// Waiting for a tag (with an elevator: a scheduler tag) or a place in the request list.
    pub tag_wait_ns: u64,
    /// In the plug and the software queue.
    pub ctx_ns: u64,
    /// In the elevator.
    pub scheduler_ns: u64,
    /// From leaving the elevator until the driver accepted it: driver tag, dispatch list, busy driver.
    pub dispatch_ns: u64,
    /// At the driver and the device.
    pub device_ns: u64,
    /// From completion at the device until the submitter reaped it; `None` when not measured.
    pub completion_ns: Option<u64>,
    /// Requests measured.
    pub n: u64,
}

impl From<&StageStats> for StageTimes {
    fn from(s: &StageStats) -> StageTimes {
        StageTimes {
            tag_wait_ns: s.tag_wait_ns,
            ctx_ns: s.ctx_ns,
            scheduler_ns: s.scheduler_ns,
            dispatch_ns: s.dispatch_ns,
            device_ns: s.device_ns,
            completion_ns: None,
            n: s.requests,
        }
    }
}

impl StageTimes {
    /// Names of the stages in the order a request meets them.
    pub const NAMES: [&str; 6] = ["tag wait", "ctx", "scheduler", "dispatch", "device", "completion"];
    /// Index of the device stage in [`StageTimes::NAMES`].
    pub const DEVICE: usize = 4;

    /// Sets completion to the remainder of `clat_ns`, the submitters' completion latency summed over `ios` I/Os. This is
    /// done only if every I/O was one request, because a merged or split I/O has no such remainder.
    pub fn with_completion(mut self, clat_ns: u64, ios: u64) -> StageTimes {
        let measured: u64 = self.sums().iter().flatten().sum();
        self.completion_ns = (ios == self.n && ios > 0).then(|| clat_ns.saturating_sub(measured));
        self
    }

    /// The sums in the order of [`StageTimes::NAMES`].
    const fn sums(&self) -> [Option<u64>; 6] {
        let some = [self.tag_wait_ns, self.ctx_ns, self.scheduler_ns, self.dispatch_ns, self.device_ns];
        [Some(some[0]), Some(some[1]), Some(some[2]), Some(some[3]), Some(some[4]), self.completion_ns]
    }

    /// Mean nanoseconds per request of each stage; `None` where nothing was measured.
    pub fn means(&self) -> [Option<f64>; 6] {
        self.sums().map(|s| s.filter(|_| self.n > 0).map(|s| s as f64 / self.n as f64))
    }

    /// Share of each stage in the measured total, 0 to 1; `None` where nothing was measured.
    pub fn shares(&self) -> [Option<f64>; 6] {
        let total: f64 = self.sums().iter().flatten().map(|&s| s as f64).sum();
        self.sums().map(|s| s.filter(|_| total > 0.0).map(|s| s as f64 / total))
    }

    /// Adds the sums of `other`. Completion stays known only if both have it (or one is empty).
    pub fn merge(&mut self, other: &StageTimes) {
        self.completion_ns = match (self.n, other.n) {
            (_, 0) => self.completion_ns,
            (0, _) => other.completion_ns,
            _ => self.completion_ns.zip(other.completion_ns).map(|(a, b)| a + b),
        };
        self.tag_wait_ns += other.tag_wait_ns;
        self.ctx_ns += other.ctx_ns;
        self.scheduler_ns += other.scheduler_ns;
        self.dispatch_ns += other.dispatch_ns;
        self.device_ns += other.device_ns;
        self.n += other.n;
    }
}

/// Counts of one hardware queue, as [`HctxStats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HctxCounts {
    /// Requests queued to it.
    pub queued: u64,
    /// Times its dispatch loop ran.
    pub run: u64,
    /// Requests the driver accepted.
    pub dispatched: u64,
    /// Calls of the driver.
    pub batches: u64,
    /// Requests the driver returned because it was busy.
    pub requeues: u64,
}

impl From<&HctxStats> for HctxCounts {
    fn from(s: &HctxStats) -> HctxCounts {
        HctxCounts { queued: s.queued, run: s.run, dispatched: s.dispatched, batches: s.batches, requeues: s.requeues }
    }
}

impl HctxCounts {
    fn merge(&mut self, other: &HctxCounts) {
        self.queued += other.queued;
        self.run += other.run;
        self.dispatched += other.dispatched;
        self.batches += other.batches;
        self.requeues += other.requeues;
    }
}

/// Figures of a run that fio does not report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StageFacts {
    /// Time per stage.
    pub times: StageTimes,
    /// Bios that were merged into an existing request.
    pub merges: u64,
    /// One entry per hardware queue, by index; empty in single-queue mode, which has no hctxs.
    pub hctx: Vec<HctxCounts>,
    /// I/Os completed.
    pub ios: u64,
    /// CPU time of the whole process over the measured part, nanoseconds.
    pub cpu_ns: u64,
    /// Context switches of the whole process over the measured part.
    pub context_switches: u64,
    /// Little's law over the run, where in-flight was measured.
    pub little: Option<Little>,
    /// The parts of transaction times, for simulated databases in virtual machines; else empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PartTime>,
    /// The requests at a simulated device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<Traffic>,
}

/// A part of the time of transactions, summed over all transactions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PartTime {
    /// Its name.
    pub name: String,
    /// What the time is spent on.
    pub means: String,
    /// Nanoseconds, summed over all transactions.
    pub sum_ns: u64,
    /// Number of transactions.
    pub n: u64,
}

impl PartTime {
    /// Mean nanoseconds per transaction; `None` without transactions.
    pub fn mean_ns(&self) -> Option<f64> {
        (self.n > 0).then(|| self.sum_ns as f64 / self.n as f64)
    }
}

impl StageFacts {
    /// Makes the facts from the block layer's counters over the measured part of a run ([`DiskStats::since`]). `ios` is the
    /// number of I/Os that the submitters completed. The caller fills in costs and Little's law.
    pub fn of(disk: &DiskStats, hctx: &[HctxStats], ios: u64) -> StageFacts {
        StageFacts {
            times: StageTimes::from(&disk.stages),
            merges: disk.merges(),
            hctx: hctx.iter().map(HctxCounts::from).collect(),
            ios,
            ..StageFacts::default()
        }
    }

    /// CPU nanoseconds per I/O; `None` without I/O.
    pub fn cpu_per_io_ns(&self) -> Option<f64> {
        (self.ios > 0).then(|| self.cpu_ns as f64 / self.ios as f64)
    }

    /// Context switches per I/O; `None` without I/O.
    pub fn context_switches_per_io(&self) -> Option<f64> {
        (self.ios > 0).then(|| self.context_switches as f64 / self.ios as f64)
    }

    /// Returns why the difference between these runs and `other` cannot be told, if the simulated disk's model does not have
    /// what makes it.
    pub fn unmodelled(&self, other: &StageFacts, names: [&str; 2]) -> Option<String> {
        self.traffic?.unmodelled(&other.traffic?, names)
    }

    /// Adds another run or another queue's share. `little` combines all runs that have it.
    pub fn merge(&mut self, other: &StageFacts) {
        self.times.merge(&other.times);
        self.merges += other.merges;
        if self.hctx.len() < other.hctx.len() {
            self.hctx.resize(other.hctx.len(), HctxCounts::default());
        }
        for (mine, theirs) in self.hctx.iter_mut().zip(&other.hctx) {
            mine.merge(theirs);
        }
        self.little = match (&self.little, &other.little) {
            (Some(mine), Some(theirs)) => Some(mine.and(theirs)),
            (mine, theirs) => mine.or(*theirs),
        };
        for part in &other.parts {
            match self.parts.iter_mut().find(|mine| mine.name == part.name) {
                Some(mine) => (mine.sum_ns, mine.n) = (mine.sum_ns + part.sum_ns, mine.n + part.n),
                None => self.parts.push(part.clone()),
            }
        }
        match (&mut self.traffic, &other.traffic) {
            (Some(mine), Some(theirs)) => mine.add(theirs),
            (mine, theirs) => *mine = mine.or(*theirs),
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
            merges: k,
            hctx: vec![HctxCounts { queued: k, run: 1, dispatched: k, batches: 2, requeues: 3 }; hctxs],
            ios: 100,
            cpu_ns: 5_000,
            context_switches: 25,
            ..StageFacts::default()
        }
    }

    #[test]
    fn means_and_shares() {
        let t = facts(100, 1).times;
        assert_eq!(t.means(), [Some(0.0), Some(10.0), Some(20.0), Some(0.0), Some(70.0), None]);
        assert_eq!(t.shares()[StageTimes::DEVICE], Some(0.7));
        assert_eq!(StageTimes::NAMES[StageTimes::DEVICE], "device");
        assert_eq!((StageTimes::default().means(), StageTimes::default().shares()), ([None; 6], [None; 6]));
    }

    #[test]
    fn completion_is_the_rest_of_clat_when_ios_are_requests() {
        let t = facts(100, 1).times;
        assert_eq!(t.with_completion(1_500, 10).completion_ns, Some(500));
        assert_eq!(t.with_completion(1_500, 12).completion_ns, None, "merged");
        assert_eq!(t.with_completion(900, 10).completion_ns, Some(0), "clock noise does not wrap");
        let (mut known, unknown) = (t.with_completion(1_500, 10), t);
        known.merge(&StageTimes::default());
        assert_eq!(known.completion_ns, Some(500));
        let mut sum = StageTimes::default();
        sum.merge(&known);
        sum.merge(&known);
        assert_eq!(sum.completion_ns, Some(1_000));
        sum.merge(&unknown);
        assert_eq!((sum.completion_ns, sum.n), (None, 30));
    }

    #[test]
    fn merging_adds_and_grows_the_hctx_table() {
        let mut a = facts(1, 1);
        a.merge(&facts(10, 3));
        assert_eq!(a.hctx.iter().map(|h| h.queued).collect::<Vec<_>>(), [11, 10, 10]);
        assert_eq!((a.times.n, a.merges, a.ios), (20, 11, 200));
        assert_eq!((a.cpu_per_io_ns(), a.context_switches_per_io()), (Some(50.0), Some(0.25)));
        assert_eq!(StageFacts::default().cpu_per_io_ns(), None);
    }

    #[test]
    fn parts_of_transactions_add_up_by_name() {
        let part = |name: &str, sum_ns| PartTime { name: name.into(), means: "m".into(), sum_ns, n: 2 };
        let of = |parts: &[PartTime]| StageFacts { parts: parts.to_vec(), ..StageFacts::default() };
        let mut sum = of(&[part("turn", 10)]);
        sum.merge(&of(&[part("storage", 4), part("turn", 30)]));
        let means: Vec<(&str, Option<f64>)> = sum.parts.iter().map(|p| (p.name.as_str(), p.mean_ns())).collect();
        assert_eq!(means, [("turn", Some(10.0)), ("storage", Some(2.0))]);
        assert_eq!(PartTime::default().mean_ns(), None);
    }

    #[test]
    fn little_survives_runs_that_are_not_alike() {
        let of = |in_flight| StageFacts { little: Little::new(in_flight, 1e6, 32_000.0), ..StageFacts::default() };
        let mut sum = of(60.0);
        sum.merge(&of(62.0));
        sum.merge(&StageFacts::default());
        assert!(sum.little.is_some_and(|l| l.in_flight == 61.0 && !l.holds()), "{:?}", sum.little);
    }

    #[test]
    fn converts_the_block_layer_s_counters() {
        let stages =
            StageStats { requests: 1, tag_wait_ns: 2, ctx_ns: 3, scheduler_ns: 4, dispatch_ns: 5, device_ns: 6 };
        let mut disk = DiskStats { stages, ..DiskStats::default() };
        disk.ops[0].merges = 7;
        disk.ops[1].merges = 1;
        let hctx = HctxStats { queued: 1, run: 2, dispatched: 3, batches: 4, requeues: 5, timeouts: 0 };
        let f = StageFacts::of(&disk, &[hctx], 9);
        assert_eq!(f.times.sums(), [Some(2), Some(3), Some(4), Some(5), Some(6), None]);
        assert_eq!((f.times.n, f.merges, f.ios), (1, 8, 9));
        assert_eq!(f.hctx, [HctxCounts { queued: 1, run: 2, dispatched: 3, batches: 4, requeues: 5 }]);
    }
}
