// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ends jobs whose rate no longer changes: `steadystate`, `steadystate_duration`, `steadystate_ramp_time`.
//!
//! As in fio, one sample per interval is taken of each job, or of all jobs of a group with `group_reporting`. The samples of
//! the last `steadystate_duration` are judged: by the slope of the line through them, or by their largest distance from the
//! mean. Guarantees: plain data, no clock. Source: fio 3.33; latency as the criterion is from later versions.

use crate::job::{Job, Steady, SteadyMetric};
use crate::schedule::Instance;
use crate::stats::per_second;
use blk::time::{Duration, Instant};
use std::collections::VecDeque;

/// What a job has done since its measured part began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Time, nanoseconds.
    pub ran_ns: u64,
    /// I/Os completed.
    pub ios: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Sum of their completion latencies, nanoseconds.
    pub clat_ns: u64,
}

/// Rates over an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// I/Os per second.
    pub iops: u64,
    /// Bytes per second.
    pub bw: u64,
    /// Mean completion latency, nanoseconds.
    pub lat_ns: u64,
}

/// What was found about a job or group.
#[derive(Clone, Debug, PartialEq)]
pub struct SteadyReport {
    /// What was asked for.
    pub steady: Steady,
    /// The job was steady, and was ended.
    pub attained: bool,
    /// What is compared with the limit; 0 before there are enough samples.
    pub criterion: f64,
    /// Largest distance of a sample from the mean.
    pub deviation: f64,
    /// Slope of the line through the samples, per interval.
    pub slope: f64,
    /// The last samples, oldest first, at most [`Steady::samples`].
    pub samples: VecDeque<Sample>,
}

impl SteadyReport {
    fn new(steady: Steady) -> SteadyReport {
        let samples = VecDeque::with_capacity(steady.samples());
        SteadyReport { steady, attained: false, criterion: 0.0, deviation: 0.0, slope: 0.0, samples }
    }

    fn value(&self, sample: &Sample) -> f64 {
        match self.steady.metric {
            SteadyMetric::Iops => sample.iops as f64,
            SteadyMetric::Bandwidth => sample.bw as f64,
            SteadyMetric::Latency => sample.lat_ns as f64,
        }
    }

    /// Adds a sample. Returns whether the job is steady.
    fn add(&mut self, sample: Sample) -> bool {
        if self.samples.len() == self.steady.samples() {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
        if self.samples.len() < self.steady.samples() {
            return false;
        }
        let values: Vec<f64> = self.samples.iter().map(|s| self.value(s)).collect();
        let n = values.len() as f64;
        let sum: f64 = values.iter().sum();
        let mean = sum / n;
        let (found, base) = if self.steady.is_slope {
            let sum_xy: f64 = values.iter().enumerate().map(|(x, y)| x as f64 * y).sum();
            let sum_x = n * (n - 1.0) / 2.0;
            let sum_xx = (n - 1.0) * n * (2.0 * n - 1.0) / 6.0;
            self.slope = (sum_xy - sum_x * sum / n) / (sum_xx - sum_x * sum_x / n);
            (self.slope, mean.trunc())
        } else {
            self.deviation = values.iter().map(|v| (v - mean).abs()).fold(0.0, f64::max);
            (self.deviation, mean)
        };
        self.criterion = if self.steady.is_percent { 100.0 * found / base } else { found };
        self.criterion.abs() < self.steady.limit
    }
}

struct Watched {
    index: usize,
    group: u32,
    is_grouped: bool,
    steady: Steady,
    before: Counts,
    has_ramped: bool,
    /// The last job of a group keeps what was found for all; other jobs of it have none.
    report: Option<SteadyReport>,
}

/// The jobs of a file that end when they are steady.
pub struct SteadyWatch {
    watched: Vec<Watched>,
    interval: Duration,
    next: Option<Instant>,
}

impl SteadyWatch {
    /// Makes the watch over `jobs`, whose instances are `instances`; `None` if no job has `steadystate_duration`.
    pub fn new(jobs: &[Job], instances: &[Instance]) -> Option<SteadyWatch> {
        let steady = instances.iter().enumerate().filter_map(|(i, at)| Some((i, at, jobs[at.job].steady?)));
        let mut watched: Vec<Watched> = steady
            .map(|(index, at, steady)| Watched {
                index,
                group: at.group,
                is_grouped: jobs[at.job].group_reporting,
                steady,
                before: Counts::default(),
                has_ramped: steady.ramp_ns == 0,
                report: Some(SteadyReport::new(steady)),
            })
            .collect();
        for i in 1..watched.len() {
            if watched[i - 1].is_grouped && watched[i].is_grouped && watched[i - 1].group == watched[i].group {
                watched[i - 1].report = None;
            }
        }
        // As in fio, the interval is one for all jobs.
        let seconds = watched.last()?.steady.interval_s;
        Some(SteadyWatch { watched, interval: Duration::from_ns(seconds * 1_000_000_000), next: None })
    }

    /// When the next samples are due.
    pub fn next_look(&self) -> Option<Instant> {
        self.next
    }

    /// Takes the samples that are due at `now`. `counts`: what an instance has done; `None`: it does not run, or it is in its
    /// `ramp_time`. Returns the instances that are to end.
    pub fn look(
        &mut self,
        now: Instant,
        counts: &dyn Fn(usize) -> Option<Counts>,
        instances: &[Instance],
    ) -> Vec<usize> {
        let due = *self.next.get_or_insert(now + self.interval);
        if now < due {
            return Vec::new();
        }
        self.next = Some((due + self.interval).max(now));
        let mut to_end = Vec::new();
        let mut sum = Sum::default();
        let mut last_group = None;
        for w in &mut self.watched {
            if w.report.as_ref().is_some_and(|r| r.attained) {
                continue;
            }
            let Some(counts) = counts(w.index) else { continue };
            if !w.is_grouped || last_group != Some(w.group) {
                sum = Sum::default();
            }
            last_group = Some(w.group);
            w.has_ramped |= counts.ran_ns >= w.steady.ramp_ns + self.interval.as_ns();
            if w.has_ramped {
                sum.add(&w.before, &counts);
            }
            w.before = counts;
            let Some(report) = w.report.as_mut().filter(|_| sum.jobs > 0) else { continue };
            if report.add(sum.sample()) {
                report.attained = true;
                match w.is_grouped {
                    true => to_end.extend((0..instances.len()).filter(|&i| instances[i].group == w.group)),
                    false => to_end.push(w.index),
                }
            }
        }
        to_end
    }

    /// What was found about an instance or, at its last one, about a group.
    pub fn report(&self, index: usize) -> Option<&SteadyReport> {
        self.watched.iter().find(|w| w.index == index)?.report.as_ref()
    }
}

/// Rates of the jobs of a group.
#[derive(Default)]
struct Sum {
    jobs: u32,
    iops: u64,
    bw: u64,
    ios: u64,
    clat_ns: u64,
}

impl Sum {
    fn add(&mut self, before: &Counts, now: &Counts) {
        let spent = now.ran_ns.saturating_sub(before.ran_ns);
        self.jobs += 1;
        self.iops += per_second(now.ios.saturating_sub(before.ios), spent);
        self.bw += per_second(now.bytes.saturating_sub(before.bytes), spent);
        self.ios += now.ios.saturating_sub(before.ios);
        self.clat_ns += now.clat_ns.saturating_sub(before.clat_ns);
    }

    fn sample(&self) -> Sample {
        Sample { iops: self.iops, bw: self.bw, lat_ns: self.clat_ns.checked_div(self.ios).unwrap_or(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule;

    fn steady(metric: SteadyMetric, is_slope: bool, limit: f64, is_percent: bool) -> Steady {
        Steady { metric, is_slope, limit, is_percent, duration_s: 3, ramp_ns: 0, interval_s: 1 }
    }

    fn judge(steady: Steady, iops: &[u64]) -> (SteadyReport, Vec<bool>) {
        let mut report = SteadyReport::new(steady);
        let found = iops.iter().map(|&iops| report.add(Sample { iops, bw: iops * 4096, lat_ns: 1000 })).collect();
        (report, found)
    }

    #[test]
    fn slope_and_deviation_are_those_of_the_last_samples() {
        let (report, found) = judge(steady(SteadyMetric::Iops, true, 1.0, true), &[100, 700, 800, 900, 905, 907]);
        // The slope of 900, 905, 907 is 3.5; of 800, 900, 905 it is 52.5.
        assert_eq!((found, report.slope), (vec![false, false, false, false, false, true], 3.5));
        assert!((report.criterion - 350.0 / 904.0).abs() < 1e-9);
        let (report, found) = judge(steady(SteadyMetric::Bandwidth, false, 8192.0, false), &[100, 102, 104, 103]);
        assert_eq!((found, report.deviation), (vec![false, false, false, true], 4096.0));
        assert!(judge(steady(SteadyMetric::Latency, false, 1.0, true), &[1, 5, 9]).1[2], "the latency is the same");
        assert_eq!(judge(steady(SteadyMetric::Iops, false, 1.0, true), &[7, 9]).0.criterion, 0.0, "not enough samples");
    }

    #[test]
    fn a_group_is_judged_as_a_whole_and_ends_as_a_whole() {
        let job = |name: &str, is_grouped: bool| {
            let mut job = Job::new(name);
            job.group_reporting = is_grouped;
            job.steady = Some(steady(SteadyMetric::Iops, false, 1.0, true));
            job
        };
        let mut other = job("c", false);
        other.new_group = true;
        let jobs = [job("a", true), job("b", true), other];
        let instances = schedule::plan(&jobs, 0).unwrap();
        let mut watch = SteadyWatch::new(&jobs, &instances).unwrap();
        // a and b change by turns, their sum does not; c grows.
        let counts = |seconds: u64, i: usize| {
            let part = |even: u64, odd: u64| (1..=seconds).map(|s| if s % 2 == 0 { even } else { odd }).sum();
            let ios = [part(100, 300), part(300, 100), seconds * seconds * 100][i];
            Some(Counts { ran_ns: seconds * 1_000_000_000, ios, bytes: 0, clat_ns: 0 })
        };
        let mut look = |s: u64| watch.look(Instant::from_ns(s * 1_000_000_000), &|i| counts(s, i), &instances);
        let ended: Vec<Vec<usize>> = (0..=4).map(&mut look).collect();
        assert_eq!(ended, [vec![], vec![], vec![], vec![0, 1], vec![]]);
        assert!(watch.report(0).is_none());
        assert_eq!(watch.report(1).map(|r| (r.attained, r.samples[0].iops)), Some((true, 400)));
        assert_eq!(watch.report(2).map(|r| r.attained), Some(false));
    }

    #[test]
    fn samples_before_the_ramp_do_not_count() {
        let mut job = Job::new("a");
        job.steady = Some(Steady { ramp_ns: 2_000_000_000, ..steady(SteadyMetric::Iops, false, 1.0, true) });
        let instances = schedule::plan(std::slice::from_ref(&job), 0).unwrap();
        let mut watch = SteadyWatch::new(&[job], &instances).unwrap();
        let counts = |s: u64| Some(Counts { ran_ns: s * 1_000_000_000, ios: s * 100, bytes: 0, clat_ns: 0 });
        let mut look = |s: u64| watch.look(Instant::from_ns(s * 1_000_000_000), &|_| counts(s), &instances).len();
        assert_eq!((0..=6).map(&mut look).collect::<Vec<_>>(), [0, 0, 0, 0, 0, 1, 0]);
    }
}
