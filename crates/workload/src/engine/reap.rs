// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When completions must be reaped before more is issued: `iodepth_low`, `iodepth_batch_complete_min` and `_max`.
//!
//! As in fio, a full queue reaps at least the minimum, repeatedly, until no more than `iodepth_low` are in flight. Only
//! then is the queue filled again. With a minimum of 0, completions are polled after every submission without waiting.

use super::plan::Plan;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reap {
    /// While more than this are in flight, nothing is issued.
    target: Option<u32>,
    /// Poll once, without waiting.
    poll: bool,
}

impl Reap {
    /// Whether nothing prevents issuing.
    #[inline]
    pub fn idle(&self) -> bool {
        self.target.is_none() && !self.poll
    }

    /// A batch was submitted.
    #[inline]
    pub fn committed(&mut self, plan: &Plan) {
        self.poll = plan.reap_min == 0;
    }

    /// Returns what to reap before the next I/O: (min, max). `None` = issue.
    #[inline]
    pub fn ask(&mut self, plan: &Plan, in_flight: u32, full: bool) -> Option<(u32, u32)> {
        if full && self.target.is_none() {
            self.target = Some(in_flight - plan.reap_min.clamp(1, in_flight));
        }
        while let Some(target) = self.target {
            if in_flight > target {
                let min = in_flight - target;
                self.poll = false;
                return Some((min, plan.reap_max.max(min)));
            }
            // One round is over. Another one follows while too many I/Os are in flight.
            self.target = (in_flight > plan.low).then(|| in_flight - plan.reap_min.clamp(1, in_flight));
        }
        if std::mem::take(&mut self.poll) && in_flight > 0 {
            return Some((0, plan.reap_max));
        }
        None
    }

    /// Some I/Os were reaped. Ends the round when no more are required.
    #[inline]
    pub fn reaped(&mut self, plan: &Plan, in_flight: u32) {
        if self.target.is_some_and(|target| in_flight <= target) && in_flight <= plan.low {
            self.target = None;
        }
    }

    /// Cancels the pending reap, because the queue is drained for another reason.
    pub fn cancel(&mut self) {
        *self = Reap::default();
    }
}
