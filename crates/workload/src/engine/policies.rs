// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a job thread follows its policies: minimum rates, latency limits, the search for a depth, flow, priorities.
//!
//! The policies themselves are in files of their own, and know nothing of the thread.

use super::flow_turn::Turn;
use super::search::Step;
use super::{JobThread, Next, StopReason};
use crate::job::Dir;
use crate::stats::EndedBy;
use blk::bio::IoPrio;
use blk::time::Instant;

impl JobThread {
    /// Ends the job if it is slower than its minimum rates.
    pub(super) fn check_min_rates(&mut self, now: u64) {
        if let Some(rates) = self.min_rates.as_mut().filter(|_| !self.clock.ramping)
            && let Some(why) = rates.check(&self.stats, self.clock.phase_start, now)
        {
            self.end_by(why);
        }
    }

    /// Ends the job if the I/O in `slot` took too long, or counts it against the latency goal.
    pub(super) fn check_latency(&mut self, slot: u32, now: u64) {
        let s = self.slots[slot as usize];
        let (dir, offset) = (Dir::ALL[usize::from(s.dir)], s.offset);
        let latency_ns = now.saturating_sub(s.start_ns);
        let max_ns = self.plan.max_latency_ns[usize::from(s.dir)];
        if latency_ns > max_ns {
            self.end_by(EndedBy::MaxLatency { dir, offset, latency_ns, max_ns });
        }
        if let Some(search) = &mut self.search
            && let Some(target_ns) = search.completed(s.start_ns, latency_ns)
        {
            self.end_by(EndedBy::LatencyTarget { dir, offset, latency_ns, target_ns });
        }
    }

    fn end_by(&mut self, why: EndedBy) {
        self.stop(StopReason::Failed(why.errno()));
        self.stats.ended_by.get_or_insert(why);
    }

    /// Continues the search for a depth. Returns what has to happen before the next I/O.
    pub(super) fn search_depth(&mut self, now: Instant) -> Option<Next> {
        let ios = self.stats.total_ios();
        let search = self.search.as_mut().filter(|_| !self.clock.ramping)?;
        let step = search.step(now.as_ns(), ios, self.in_flight > 0);
        self.stats.latency_depth = Some(search.depth());
        match step {
            Step::Continue => {}
            Step::Drain => return Some(Next::Reap { min: self.in_flight, max: self.in_flight }),
            Step::Drained => self.reap.cancel(),
            Step::MeasureAnew => {
                let depth = self.stats.latency_depth;
                self.reap.cancel();
                self.end_ramp(now.as_ns());
                self.stats.latency_depth = depth;
            }
            Step::Done => self.stop(StopReason::Asked),
        }
        None
    }

    /// Waits for the turn of the next I/O.
    pub(super) fn wait_for_flow(&mut self, now: Instant) -> Option<Next> {
        match self.flow.as_mut()?.ask(self.in_flight) {
            Turn::Go => None,
            Turn::Drain => Some(Next::Reap { min: self.in_flight, max: self.in_flight }),
            Turn::Wait(ns) => Some(Next::Wait(Instant::from_ns(now.as_ns().saturating_add(ns).min(self.check_at)))),
        }
    }

    /// The priority of the next I/O.
    pub(super) fn draw_prio(&mut self, slot: u32, dir: Dir, len: u32) -> IoPrio {
        let drawn = self.prios.as_mut().and_then(|prios| prios.draw(slot, dir, len.into()));
        drawn.unwrap_or(self.plan.prio)
    }

    /// Records a latency in the statistics of its priority.
    pub(super) fn record_prio(&mut self, slot: u32, ns: u64) {
        let Some(prios) = &self.prios else { return };
        let s = &self.slots[slot as usize];
        if let Some(stats) = self.stats.dirs[usize::from(s.dir)].prios.get_mut(prios.of_slot(slot)) {
            let from = if prios.records_total { s.start_ns } else { s.issue_ns };
            stats.lat.record(ns.saturating_sub(from));
        }
    }
}
