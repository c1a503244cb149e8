// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The due time of the next I/O: `rate`, `rate_iops`, `rate_process`.
//!
//! Each limited direction has a schedule that begins at the start of the job. An I/O is due once the time for all bytes (or
//! I/Os) issued before it has passed. A job that falls behind catches up, as in fio. The schedule itself is never delayed,
//! so the due time is the *intended* start, from which latency counts. `poisson` draws the gaps from an exponential
//! distribution with the same mean.
//!
//! Times are nanoseconds since the start of the job, with an exact remainder, so a rate is accurate over days.

use crate::job::{Dir, Job, RateProcess};
use crate::rng::{Purpose, Seeds, Taus88};
use crate::stats::DIRS;

const NS: u64 = 1_000_000_000;

#[derive(Clone, Debug)]
enum Gap {
    /// Even gaps. `debt` is the fraction of a nanosecond that is carried over, in units of 1/rate.
    Linear { debt: u64 },
    /// Exponential gaps.
    Poisson { rng: Taus88, bytes_per_gap: u64 },
}

/// The schedule of one direction.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Bytes or I/Os per second.
    per_second: u64,
    counts_bytes: bool,
    due_ns: u64,
    gap: Gap,
}

impl Schedule {
    fn new(job: &Job, dir: Dir, seeds: Seeds) -> Option<Schedule> {
        let bytes = job.rate_bytes_per_s[dir].filter(|&r| r > 0);
        let iops = job.rate_iops[dir].filter(|&r| r > 0);
        let per_second = bytes.or(iops)?;
        let gap = match job.rate_process {
            RateProcess::Linear => Gap::Linear { debt: 0 },
            RateProcess::Poisson => {
                let seed = seeds.of(poisson(dir)) as u32;
                let bytes_per_gap = if bytes.is_some() { job.block_sizes[dir].min_bytes() } else { 1 };
                Gap::Poisson { rng: Taus88::new(seed), bytes_per_gap }
            }
        };
        Some(Schedule { per_second, counts_bytes: bytes.is_some(), due_ns: 0, gap })
    }

    /// When the next I/O is due, in nanoseconds since the start of the job.
    #[inline]
    pub fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Records that an I/O of `len` bytes was issued.
    pub fn issued(&mut self, len: u64) {
        let units = if self.counts_bytes { len } else { 1 };
        let gap_ns = match &mut self.gap {
            Gap::Linear { debt } => {
                let total = u128::from(units) * u128::from(NS) + u128::from(*debt);
                *debt = (total % u128::from(self.per_second)) as u64;
                (total / u128::from(self.per_second)) as u64
            }
            Gap::Poisson { rng, bytes_per_gap } => {
                // The mean gap is that of one smallest block. A larger block takes as many gaps as it contains smallest blocks.
                let mean = *bytes_per_gap as f64 * NS as f64 / self.per_second as f64;
                let gaps = (units as f64 / *bytes_per_gap as f64).max(1.0);
                (mean * gaps * -rng.unit().ln()) as u64
            }
        };
        self.due_ns = self.due_ns.saturating_add(gap_ns);
    }
}

/// The schedules of a job thread.
#[derive(Clone, Debug)]
pub struct Rates {
    dirs: [Option<Schedule>; DIRS],
}

/// The answer of the schedules about an I/O in some direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Issue in this direction now. The value is the due time (nanoseconds since the start), `None` if the direction has no limit.
    Go(Dir, Option<u64>),
    /// Nothing is due before this time.
    NotBefore(u64),
}

impl Rates {
    /// Makes the schedules of `job`; `None` when it has no rate at all.
    pub fn new(job: &Job, seeds: Seeds) -> Option<Rates> {
        let dirs = Dir::ALL.map(|d| Schedule::new(job, d, seeds).filter(|_| job.rw.has(d)));
        dirs.iter().any(Option::is_some).then_some(Rates { dirs })
    }

    /// Returns whether an I/O in direction `dir` may be issued at `now_ns`. `other` is the direction that a mixed job may use
    /// instead when `dir` is ahead of its schedule.
    pub fn ask(&self, dir: Dir, other: Option<Dir>, now_ns: u64) -> Verdict {
        let due = |d: Dir| self.dirs[d as usize].as_ref().map(Schedule::due_ns);
        let go = |d: Dir| Verdict::Go(d, due(d));
        let wait = due(dir).unwrap_or(0);
        if wait <= now_ns {
            return go(dir);
        }
        match other {
            Some(other) => match due(other).unwrap_or(0) {
                due if due <= now_ns => go(other),
                due => Verdict::NotBefore(due.min(wait)),
            },
            None => Verdict::NotBefore(wait),
        }
    }

    /// Records that an I/O of `len` bytes in direction `dir` was issued.
    #[inline]
    pub fn issued(&mut self, dir: Dir, len: u64) {
        if let Some(schedule) = &mut self.dirs[dir as usize] {
            schedule.issued(len);
        }
    }
}

fn poisson(dir: Dir) -> Purpose {
    match dir {
        Dir::Read => Purpose::PoissonRead,
        Dir::Write => Purpose::PoissonWrite,
        Dir::Trim => Purpose::PoissonTrim,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{PerDir, Rw, RwMode};
    use crate::rng::Seeding;

    fn job(set: impl FnOnce(&mut Job)) -> Job {
        let mut job = Job::new("a");
        job.rw = Rw { mode: RwMode::ReadWrite, random: true };
        set(&mut job);
        job
    }

    fn seeds() -> Seeds {
        Seeds::new(Seeding::Repeat, false, false, 1)
    }

    #[test]
    fn a_linear_rate_does_not_drift() {
        let mut rates = Rates::new(&job(|j| j.rate_iops = PerDir::all(Some(7))), seeds()).unwrap();
        for _ in 0..7 * 1000 {
            rates.issued(Dir::Read, 4096);
        }
        assert_eq!(rates.ask(Dir::Read, None, 0), Verdict::NotBefore(1000 * NS));
        let mut bytes = Rates::new(&job(|j| j.rate_bytes_per_s = PerDir::all(Some(3_000_000))), seeds()).unwrap();
        (0..3000).for_each(|_| bytes.issued(Dir::Write, 1000));
        assert_eq!(bytes.ask(Dir::Write, None, 0), Verdict::NotBefore(NS));
    }

    #[test]
    fn poisson_gaps_have_the_mean_and_spread_of_their_rate() {
        let j = job(|j| {
            j.rate_iops = PerDir::all(Some(1000));
            j.rate_process = RateProcess::Poisson;
        });
        let mut s = Schedule::new(&j, Dir::Read, seeds()).unwrap();
        let (mut last, mut gaps) = (0, Vec::new());
        for _ in 0..50_000 {
            s.issued(4096);
            gaps.push((s.due_ns() - last) as f64);
            last = s.due_ns();
        }
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let sd = (gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        assert!((mean / 1e6 - 1.0).abs() < 0.02 && (sd / 1e6 - 1.0).abs() < 0.03, "mean {mean} deviation {sd}");
    }

    #[test]
    fn a_mixed_job_turns_to_the_direction_that_is_behind() {
        let mut r = Rates::new(&job(|j| j.rate_iops = PerDir { read: Some(10), write: Some(20), trim: None }), seeds())
            .unwrap();
        assert_eq!(r.ask(Dir::Read, Some(Dir::Write), 0), Verdict::Go(Dir::Read, Some(0)));
        r.issued(Dir::Read, 4096);
        assert_eq!(r.ask(Dir::Read, Some(Dir::Write), 5), Verdict::Go(Dir::Write, Some(0)));
        r.issued(Dir::Write, 4096);
        assert_eq!(r.ask(Dir::Read, Some(Dir::Write), 5), Verdict::NotBefore(NS / 20));
        assert_eq!(r.ask(Dir::Read, None, 5), Verdict::NotBefore(NS / 10));
    }

    #[test]
    fn a_direction_without_a_rate_is_free() {
        let r = Rates::new(&job(|j| j.rate_iops.write = Some(1)), seeds()).unwrap();
        assert_eq!(r.ask(Dir::Read, None, 0), Verdict::Go(Dir::Read, None));
        assert!(Rates::new(&job(|_| ()), seeds()).is_none());
    }
}
