// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When completions must be reaped before more is issued: `iodepth_low`, `iodepth_batch_complete_min` and `_max`.
//!
//! As in fio: a full queue reaps at least the minimum, and again until no more than `iodepth_low` are in flight; only then is
//! it filled up again. A minimum of 0 means to look for completions after every submission without waiting.

use super::plan::Plan;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reap {
    /// Issue nothing while more than this are out.
    target: Option<u32>,
    /// Look once, without waiting.
    poll: bool,
}

impl Reap {
    /// Whether nothing prevents issuing.
    #[inline]
    pub fn idle(&self) -> bool {
        self.target.is_none() && !self.poll
    }

    /// A batch was handed out.
    #[inline]
    pub fn committed(&mut self, plan: &Plan) {
        self.poll = plan.reap_min == 0;
    }

    /// What to reap before the next I/O: (min, max); `None` = issue.
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
            // One round is over; another one follows while too many are out.
            self.target = (in_flight > plan.low).then(|| in_flight - plan.reap_min.clamp(1, in_flight));
        }
        if std::mem::take(&mut self.poll) && in_flight > 0 {
            return Some((0, plan.reap_max));
        }
        None
    }

    /// Some I/Os were reaped: ends the round when nothing more has to be.
    #[inline]
    pub fn reaped(&mut self, plan: &Plan, in_flight: u32) {
        if self.target.is_some_and(|target| in_flight <= target) && in_flight <= plan.low {
            self.target = None;
        }
    }

    /// Forgets what was due: the queue is drained for another reason.
    pub fn cancel(&mut self) {
        *self = Reap::default();
    }
}
