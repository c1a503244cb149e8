// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What jobs of a file do to each other: `exitall`, `exit_what`, `exitall_on_error`, `steadystate` by group, `flow`.
//!
//! Guarantees: plain data, no clock. Needs from callers: a driver of jobs starts instances by
//! [`Together::start_ready`], reports each end, and lets
//! [`Together::look`] look now and then. It stops the instances that the answers name, and cancels the start of those that
//! have not started ([`Schedule::cancel_those`]). Threads join their flow before their first I/O ([`Together::flow`]).
//!
//! [`Schedule::cancel_those`]: crate::schedule::Schedule::cancel_those

use crate::flow::{FlowGroup, FlowShare};
use crate::job::{ExitRules, ExitWhat, Job};
use crate::schedule::{Instance, Schedule};
use crate::steady::{Counts, SteadyReport, SteadyWatch};
use blk::time::Instant;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The rules of a job file.
pub struct Together {
    rules: Vec<ExitRules>,
    flows: Vec<Option<Arc<FlowShare>>>,
    steady: Option<SteadyWatch>,
}

impl Together {
    /// Makes the rules of `jobs`, whose instances are `instances`.
    pub fn new(jobs: &[Job], instances: &[Instance]) -> Together {
        // In fio, one job with exitall sets it for all jobs.
        let exitall = jobs.iter().any(|job| job.exit.exitall);
        let mut groups: BTreeMap<u64, Arc<FlowGroup>> = BTreeMap::new();
        let share = |i: &Instance| {
            let flow = jobs[i.job].flow?;
            Some(FlowShare::new(groups.entry(flow.id).or_insert_with(FlowGroup::new), flow.weight))
        };
        Together {
            rules: instances.iter().map(|i| ExitRules { exitall, ..jobs[i.job].exit }).collect(),
            flows: instances.iter().map(share).collect(),
            steady: SteadyWatch::new(jobs, instances),
        }
    }

    /// The flow that instance `index` has to join, if its job has one.
    pub fn flow(&self, index: usize) -> Option<Arc<FlowShare>> {
        self.flows[index].clone()
    }

    /// As [`Schedule::start_ready`]. No instance may run before this returns.
    pub fn start_ready(&self, schedule: &mut Schedule, now: Instant) -> Vec<usize> {
        let ready = schedule.start_ready(now);
        ready.iter().filter_map(|&i| self.flows[i].as_ref()).for_each(|share| share.enter());
        ready
    }

    /// When [`Together::look`] has something to do, after its first call.
    pub fn next_look(&self) -> Option<Instant> {
        self.steady.as_ref().and_then(SteadyWatch::next_look)
    }

    /// Looks at the running instances. `counts` is as for [`SteadyWatch::look`]. Returns the instances that are to end.
    pub fn look(
        &mut self,
        now: Instant,
        counts: &dyn Fn(usize) -> Option<Counts>,
        instances: &[Instance],
    ) -> Vec<usize> {
        self.steady.as_mut().map_or_else(Vec::new, |steady| steady.look(now, counts, instances))
    }

    /// What `steadystate` has found about an instance, or about its group at the last one of it.
    pub fn steady(&self, index: usize) -> Option<SteadyReport> {
        self.steady.as_ref()?.report(index).cloned()
    }

    /// Returns the instances that are to end because instance `index` has ended; `failed`: with an error. Some of them may
    /// have ended already, or not have started.
    pub fn ended(&self, index: usize, failed: bool, schedule: &Schedule) -> Vec<usize> {
        if let Some(share) = &self.flows[index] {
            share.leave();
        }
        let rules = self.rules[index];
        if !(rules.exitall || rules.on_error && failed) {
            return Vec::new();
        }
        let instances = schedule.instances();
        let is_meant = |&i: &usize| match rules.what {
            ExitWhat::Group => instances[i].group == instances[index].group,
            ExitWhat::Stonewall => schedule.is_running(i),
            ExitWhat::All => true,
        };
        (0..instances.len()).filter(is_meant).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule;
    use blk::time::Instant;

    /// Instances 0 and 1 run, 2 waits in their group, 3 and 4 behind a stonewall.
    fn ends(what: ExitWhat, set: impl Fn(usize, &mut ExitRules), failed: bool) -> Vec<usize> {
        let mut jobs: Vec<Job> = ["a", "b", "c", "d", "e"].map(Job::new).into();
        jobs[2].startdelay_min_ns = 1;
        jobs[3].stonewall = true;
        for (i, job) in jobs.iter_mut().enumerate() {
            job.exit.what = what;
            set(i, &mut job.exit);
        }
        let mut schedule = Schedule::new(schedule::plan(&jobs, 0).unwrap());
        assert_eq!(schedule.start_ready(Instant::ZERO), [0, 1]);
        schedule.ended(0);
        Together::new(&jobs, schedule.instances()).ended(0, failed, &schedule)
    }

    #[test]
    fn the_end_of_a_job_ends_those_that_exit_what_names() {
        let exitall = |i: usize, rules: &mut ExitRules| rules.exitall = i == 4;
        assert_eq!(ends(ExitWhat::Group, exitall, false), [0, 1, 2], "any job's exitall holds for all");
        assert_eq!(ends(ExitWhat::Stonewall, exitall, false), [1]);
        assert_eq!(ends(ExitWhat::All, exitall, false), [0, 1, 2, 3, 4]);
        assert!(ends(ExitWhat::All, |_, _| (), true).is_empty());
    }

    #[test]
    fn an_error_ends_others_only_of_the_job_that_says_so() {
        let on_error = |of: usize| move |i: usize, rules: &mut ExitRules| rules.on_error = i == of;
        assert_eq!(ends(ExitWhat::Group, on_error(0), true), [0, 1, 2]);
        assert!(ends(ExitWhat::Group, on_error(0), false).is_empty());
        assert!(ends(ExitWhat::Group, on_error(1), true).is_empty());
    }
}
