// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Decides which job instances start when: `stonewall`, `startdelay`, `wait_for`, `numjobs`, and the reporting groups.
//!
//! It works on plain data. [`plan`] lists every instance of a job file with the condition under which it starts. A
//! [`Schedule`] receives the instances that ended and returns those that may start. A stonewall waits for all jobs above it
//! in the file. A start delay counts from the moment at which the instance could otherwise start (for the jobs of a
//! stonewall group, the group's start).

use crate::job::Job;
use crate::rng::{Purpose, Taus88};
use blk::time::{Duration, Instant};

/// One thread to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Index of the job in the file.
    pub job: usize,
    /// 0-based instance of the job.
    pub instance: u32,
    /// 1-based number over the whole file ([`crate::engine::ThreadId::number`]).
    pub number: u32,
    /// Stonewall group: 0 first; a group starts when the one before it has ended.
    pub wave: u32,
    /// Reporting group, fio's `groupid`.
    pub group: u32,
    /// Index of the job that must have ended first (`wait_for`).
    pub after_job: Option<usize>,
    /// Delay after the other conditions are met.
    pub delay: Duration,
}

/// A job waits for a job that does not exist above it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("wait_for={name}: must name a job above this one; reorder the jobs or fix the name (job '{job}')")]
pub struct WaitForError {
    /// The name in `wait_for`.
    pub name: String,
    /// The job that waits.
    pub job: String,
}

/// Lists all instances of `jobs` in the order of the file. `entropy` replaces the seed of jobs with `randrepeat=0`.
pub fn plan(jobs: &[Job], entropy: u64) -> Result<Vec<Instance>, WaitForError> {
    let mut out = Vec::new();
    let (mut wave, mut group) = (0, 0);
    for (index, job) in jobs.iter().enumerate() {
        // A stonewall at the first job has nothing to wait for, and opens no second group.
        wave += u32::from(job.stonewall && index > 0);
        group += u32::from((job.stonewall || job.new_group) && index > 0);
        let after_job = match &job.wait_for {
            None => None,
            Some(name) => Some(
                jobs[..index]
                    .iter()
                    .position(|j| j.name == *name)
                    .ok_or_else(|| WaitForError { name: name.clone(), job: job.name.clone() })?,
            ),
        };
        for instance in 0..job.numjobs {
            let number = out.len() as u32 + 1;
            let delay = delay(job, number, entropy);
            out.push(Instance { job: index, instance, number, wave, group, after_job, delay });
        }
    }
    Ok(out)
}

fn delay(job: &Job, number: u32, entropy: u64) -> Duration {
    let (min, max) = (job.startdelay_min_ns, job.startdelay_max_ns.max(job.startdelay_min_ns));
    let seeds = job.seeds(entropy, number);
    let part = if max > min { Taus88::new(seeds.of(Purpose::StartDelay) as u32).unit() } else { 0.0 };
    Duration::from_ns(min + ((max - min) as f64 * part) as u64)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobState {
    /// Its conditions are not met.
    Blocked,
    /// Its conditions are met; it starts at this time.
    Ready(Instant),
    Running,
    Ended,
}

/// The state of all instances.
#[derive(Clone, Debug)]
pub struct Schedule {
    instances: Vec<Instance>,
    states: Vec<JobState>,
}

impl Schedule {
    /// A schedule that has started nothing.
    pub fn new(instances: Vec<Instance>) -> Schedule {
        let states = vec![JobState::Blocked; instances.len()];
        Schedule { instances, states }
    }

    /// The instances, in the order of the file; other methods name them by index.
    pub fn instances(&self) -> &[Instance] {
        &self.instances
    }

    /// Returns the instances to start at `now`. They count as running from now on.
    pub fn start_ready(&mut self, now: Instant) -> Vec<usize> {
        for i in 0..self.instances.len() {
            if self.states[i] == JobState::Blocked && self.conditions_hold(i) {
                self.states[i] = JobState::Ready(now + self.instances[i].delay);
            }
        }
        let ready = |s: &JobState| matches!(s, JobState::Ready(at) if *at <= now);
        let start: Vec<usize> = (0..self.states.len()).filter(|&i| ready(&self.states[i])).collect();
        start.iter().for_each(|&i| self.states[i] = JobState::Running);
        start
    }

    fn conditions_hold(&self, i: usize) -> bool {
        let me = &self.instances[i];
        let mut others = self.instances.iter().zip(&self.states);
        others.all(|(other, state)| {
            let before = other.wave < me.wave || me.after_job == Some(other.job);
            !before || *state == JobState::Ended
        })
    }

    /// When the next delayed instance starts, if one is waiting for its time.
    pub fn next_start(&self) -> Option<Instant> {
        self.states.iter().filter_map(|s| if let JobState::Ready(at) = s { Some(*at) } else { None }).min()
    }

    /// Instance `index` has ended.
    ///
    /// # Panics
    /// When it was not running.
    pub fn ended(&mut self, index: usize) {
        assert!(self.states[index] == JobState::Running, "instance {index} ended without running");
        self.states[index] = JobState::Ended;
    }

    /// Whether everything has ended.
    pub fn is_done(&self) -> bool {
        self.states.iter().all(|s| *s == JobState::Ended)
    }

    /// Whether instance `index` has started and not ended.
    pub fn is_running(&self, index: usize) -> bool {
        self.states[index] == JobState::Running
    }

    /// Cancels the start of those of `indices` that have not started. They count as ended, and are returned.
    pub fn cancel_those(&mut self, indices: &[usize]) -> Vec<usize> {
        let waits = |i: &usize| matches!(self.states[*i], JobState::Blocked | JobState::Ready(_));
        let cancelled: Vec<usize> = indices.iter().copied().filter(waits).collect();
        cancelled.iter().for_each(|&i| self.states[i] = JobState::Ended);
        cancelled
    }

    /// Cancels the remaining starts (the run is interrupted). Instances that have not started count as ended, and are returned.
    pub fn cancel(&mut self) -> Vec<usize> {
        self.cancel_those(&Vec::from_iter(0..self.states.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, set: impl FnOnce(&mut Job)) -> Job {
        let mut j = Job::new(name);
        set(&mut j);
        j
    }

    fn t(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_ms(ms)
    }

    #[test]
    fn stonewalls_delays_and_wait_for_hold_instances_back() {
        let jobs = [
            job("a", |j| j.numjobs = 2),
            job("b", |j| (j.startdelay_min_ns, j.startdelay_max_ns) = (5_000_000, 5_000_000)),
            job("c", |j| j.wait_for = Some("a".into())),
            job("d", |j| j.stonewall = true),
        ];
        let mut s = Schedule::new(plan(&jobs, 0).unwrap());
        assert_eq!(s.start_ready(t(0)), [0, 1]);
        assert_eq!(s.next_start(), Some(t(5)));
        assert_eq!(s.start_ready(t(6)), [2]);
        s.ended(0);
        assert!(s.start_ready(t(7)).is_empty(), "one instance of a still runs");
        s.ended(1);
        assert_eq!(s.start_ready(t(8)), [3]);
        s.ended(3);
        s.ended(2);
        assert!(!s.is_done());
        assert_eq!(s.start_ready(t(9)), [4]);
        s.ended(4);
        assert!(s.is_done());
    }

    #[test]
    fn groups_and_numbers_run_over_the_file() {
        let jobs = [job("a", |j| j.numjobs = 2), job("b", |j| j.new_group = true), job("c", |j| j.stonewall = true)];
        let all = plan(&jobs, 0).unwrap();
        let ids: Vec<(u32, u32, u32)> = all.iter().map(|i| (i.number, i.group, i.wave)).collect();
        assert_eq!(ids, [(1, 0, 0), (2, 0, 0), (3, 1, 0), (4, 2, 1)]);
    }

    #[test]
    fn a_delay_range_is_drawn_per_instance_and_repeats() {
        let j = job("a", |j| {
            j.numjobs = 50;
            (j.startdelay_min_ns, j.startdelay_max_ns) = (1_000, 9_000);
        });
        let delays: Vec<u64> = plan(std::slice::from_ref(&j), 0).unwrap().iter().map(|i| i.delay.as_ns()).collect();
        assert!(delays.iter().all(|d| (1_000..=9_000).contains(d)));
        assert!(delays.iter().any(|d| *d < 4_000) && delays.iter().any(|d| *d > 6_000), "{delays:?}");
        assert_eq!(delays, plan(&[j], 7).unwrap().iter().map(|i| i.delay.as_ns()).collect::<Vec<_>>());
    }

    #[test]
    fn waiting_for_no_job_is_rejected_and_cancel_ends_the_rest() {
        let e = plan(&[job("a", |j| j.wait_for = Some("zz".into()))], 0).unwrap_err();
        assert!(e.to_string().starts_with("wait_for=zz: must name a job"));
        let mut s = Schedule::new(plan(&[job("a", |_| ()), job("b", |j| j.stonewall = true)], 0).unwrap());
        s.start_ready(t(0));
        assert_eq!(s.cancel(), [1]);
        s.ended(0);
        assert!(s.is_done());
    }
}
