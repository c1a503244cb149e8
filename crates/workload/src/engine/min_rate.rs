// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Minimum rates, below which a job ends with an error: `rate_min`, `rate_iops_min`, `rate_cycle`.
//!
//! As in fio, a minimum rate is checked after completions, so a device that completes nothing ends no job. The first two
//! seconds of a pass are not checked. After that, each check covers at least `rate_cycle`.

use crate::job::{Dir, Job};
use crate::stats::{DIRS, EndedBy, JobStats, per_second};

/// Time at the start of a pass in which rates are not checked.
const SETTLE_NS: u64 = 2_000_000_000;

/// A minimum rate of one direction.
#[derive(Clone, Copy, Debug)]
struct MinRate {
    per_second: u64,
    counts_bytes: bool,
    /// The last check: its time and the count then.
    last: Option<(u64, u64)>,
}

/// The minimum rates of a job.
#[derive(Clone, Debug)]
pub(super) struct MinRates {
    dirs: [Option<MinRate>; DIRS],
    cycle_ns: u64,
    /// Start of the pass that is checked.
    pass_start: u64,
}

impl MinRates {
    pub fn new(job: &Job) -> Option<Box<MinRates>> {
        let of = |dir: Dir| {
            let bytes = job.limits.min_bytes_per_s[dir];
            let per_second = bytes.or(job.limits.min_iops[dir])?;
            Some(MinRate { per_second, counts_bytes: bytes.is_some(), last: None })
        };
        let rates = MinRates { dirs: Dir::ALL.map(of), cycle_ns: job.limits.rate_cycle_ns.max(1), pass_start: 0 };
        job.limits.has_min_rate().then(|| Box::new(rates))
    }

    /// Returns the rate that is too low at `now`, in a pass that began at `pass_start`.
    pub fn check(&mut self, stats: &JobStats, pass_start: u64, now: u64) -> Option<EndedBy> {
        if self.pass_start != pass_start {
            self.pass_start = pass_start;
            self.dirs.iter_mut().flatten().for_each(|d| d.last = None);
        }
        if now < pass_start.saturating_add(SETTLE_NS) {
            return None;
        }
        let cycle_ns = self.cycle_ns;
        let dirs = self.dirs.iter_mut().zip(&stats.dirs);
        let checked = dirs.filter_map(|(min, done)| min.as_mut().filter(|_| done.ios > 0).map(|min| (min, done)));
        checked.fold(None, |ended, (min, done)| {
            let count = if min.counts_bytes { done.bytes } else { done.ios };
            ended.or(min.check(count, now, cycle_ns))
        })
    }
}

impl MinRate {
    fn check(&mut self, count: u64, now: u64, cycle_ns: u64) -> Option<EndedBy> {
        let (at, before) = *self.last.get_or_insert((now, count));
        let spent_ns = now - at;
        if spent_ns < cycle_ns {
            return None;
        }
        self.last = Some((now, count));
        let got = per_second(count - before, spent_ns);
        let want = self.per_second;
        let ended = if self.counts_bytes { EndedBy::RateMin { want, got } } else { EndedBy::RateIopsMin { want, got } };
        (got < want).then_some(ended)
    }
}
