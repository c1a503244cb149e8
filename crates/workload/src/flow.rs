// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Jobs that share their I/Os in proportion: `flow`, `flow_id`.
//!
//! As in fio, a job that has issued more than its share of the group's I/Os waits. Guarantees: counters only, which job
//! threads share. Differs from fio: a job counts from its start to its end, so a job that has not started holds up no other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The counters of the jobs with one `flow_id`.
#[derive(Debug)]
pub struct FlowGroup {
    /// I/Os of the jobs that run, and one more, as in fio.
    issued: AtomicU64,
    /// Their weights.
    weights: AtomicU64,
}

impl FlowGroup {
    /// A group without jobs.
    pub fn new() -> Arc<FlowGroup> {
        Arc::new(FlowGroup { issued: AtomicU64::new(1), weights: AtomicU64::new(0) })
    }
}

/// A job's part of its group.
#[derive(Debug)]
pub struct FlowShare {
    group: Arc<FlowGroup>,
    weight: u64,
    issued: AtomicU64,
}

impl FlowShare {
    /// The share of a job that has not started.
    pub fn new(group: &Arc<FlowGroup>, weight: u64) -> Arc<FlowShare> {
        Arc::new(FlowShare { group: Arc::clone(group), weight, issued: AtomicU64::new(0) })
    }

    /// The job starts.
    pub fn enter(&self) {
        self.group.weights.fetch_add(self.weight, Ordering::Relaxed);
    }

    /// The job has ended.
    pub fn leave(&self) {
        self.group.issued.fetch_sub(self.issued.load(Ordering::Relaxed), Ordering::Relaxed);
        self.group.weights.fetch_sub(self.weight, Ordering::Relaxed);
    }

    /// Takes the turn for one I/O; false: the job is ahead of its share.
    pub fn take_turn(&self) -> bool {
        let own = self.issued.load(Ordering::Relaxed);
        let (all, weights) = (self.group.issued.load(Ordering::Relaxed), self.group.weights.load(Ordering::Relaxed));
        if u128::from(own) * u128::from(weights) > u128::from(self.weight) * u128::from(all) {
            return false;
        }
        self.issued.store(own + 1, Ordering::Relaxed);
        self.group.issued.fetch_add(1, Ordering::Relaxed);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_follow_the_weights_of_the_jobs_that_run() {
        let group = FlowGroup::new();
        let jobs = [FlowShare::new(&group, 1), FlowShare::new(&group, 3)];
        jobs[0].enter();
        assert!((0..100).all(|_| jobs[0].take_turn()), "a job alone is never ahead");
        jobs[0].leave();
        let jobs = [FlowShare::new(&group, 1), FlowShare::new(&group, 3)];
        jobs.iter().for_each(|job| job.enter());
        let mut turns = [0u32; 2];
        for _ in 0..4000 {
            (0..2).for_each(|i| turns[i] += u32::from(jobs[i].take_turn()));
        }
        assert!(turns[1].abs_diff(3 * turns[0]) <= 3, "{turns:?}");
        jobs[1].leave();
        assert!((0..10_000).all(|_| jobs[0].take_turn()), "the other one has ended");
    }
}
