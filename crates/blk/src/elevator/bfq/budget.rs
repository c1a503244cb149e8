// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a turn ends, what the queue is charged for it, and how large its next budget is.
//!
//! Budgets follow what a queue does with them. A queue that always uses up its budget gets a larger one (throughput). A
//! queue that keeps the disk waiting gets a smaller one (other queues wait less). A budget never changes a queue's
//! share: a larger one moves its virtual finish by as much.
//!
//! A turn is charged the sectors it was served. A slow turn is charged the sectors that the disk could have served in its
//! time. So a queue of random I/O gets no more than its share of the disk's time. Asynchronous service costs three times as
//! much while all queues are alike, because writes come back as slow reads later. Source: `__bfq_bfqq_recalc_budget`,
//! `bfq_bfqq_charge_time`, `bfq_serv_to_charge`.

use super::queue::Queue;
use super::tunables::Rules;
use crate::time::Duration;

/// Why a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expiry {
    /// The disk waited for a request of the queue, and none came.
    TooIdle,
    /// `timeout_sync` is over.
    BudgetTimeout,
    /// The next request costs more than what is left of the budget, or an IDLE queue had its one request.
    BudgetExhausted,
    /// No request, and no reason to wait for one.
    NoMoreRequests,
    /// A queue that takes precedence has become backlogged.
    Preempted,
}

/// Largest budget before the disk's rate is known, in sectors.
pub const DEFAULT_MAX_BUDGET: u32 = 16 * 1024;
/// Turns after which the measured rate determines first and smallest budgets. The kernel's counter moves an eighth of
/// the way to 256 with each turn; after this many turns it reaches the kernel's threshold of 194.
pub(crate) const MIN_TURNS: u64 = 11;
/// The smallest budget is this part of the largest.
const MIN_BUDGET_PART: u32 = 32;
/// Asynchronous service costs this many times as much as synchronous service.
const ASYNC_CHARGE_FACTOR: u32 = 3;
/// A turn shorter than this says nothing about a queue's speed. If the queue is seeky, the turn is charged the time of
/// a seek: `slice_idle` on a disk with a head, [`LEAST_CHARGED`] on others.
const TOO_SHORT: Duration = Duration::from_ms(1);
const LEAST_CHARGED: Duration = Duration::from_ms(2);
/// A turn longer than this is slow if it served less than half of the largest budget.
const LONG: Duration = Duration::from_ms(20);

/// What is known when a turn ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServiceSlot {
    pub(crate) reason: Expiry,
    /// Cost of the sectors served.
    pub(crate) service: u32,
    pub(crate) budget: u32,
    pub(crate) lasted: Duration,
    /// Largest budget of the disk.
    pub(crate) max_budget: u32,
    /// Smallest budget of the disk.
    pub(crate) min_budget: u32,
}

/// The smallest budget that feedback can give a queue.
pub(crate) fn min_budget(max_budget: u32) -> u32 {
    (max_budget / MIN_BUDGET_PART).max(1)
}

/// What a request of `sectors` costs its queue. `alike`: all busy queues have one weight and class.
#[inline]
pub(crate) fn cost(q: &Queue, sectors: u32, alike: bool) -> u32 {
    if q.sync || q.raising.is_raised() || !alike { sectors } else { sectors.saturating_mul(ASYNC_CHARGE_FACTOR) }
}

impl ServiceSlot {
    /// Returns the sectors that the turn is charged: those served, or those that the disk could have served in that
    /// time.
    pub(crate) fn charge(&self, q: &Queue, rules: &Rules) -> u32 {
        let wasted =
            self.reason == Expiry::BudgetTimeout && self.budget - self.budget.min(self.service) >= self.budget / 3;
        let (slow, lasted) = self.slowness(q, rules);
        if q.raising.is_raised() || !(slow || wasted) {
            return self.service;
        }
        let timeout = rules.timeout.as_ns();
        let by_time = u64::from(self.max_budget) * lasted.as_ns().min(timeout) / timeout;
        self.service.max(by_time as u32)
    }

    /// Whether the queue is slow, and the time to charge if it is.
    fn slowness(&self, q: &Queue, rules: &Rules) -> (bool, Duration) {
        let seeky = q.io_pattern.is_seeky();
        if !q.sync {
            (false, self.lasted)
        } else if self.lasted < TOO_SHORT {
            (seeky, if rules.rotational { rules.slice_idle } else { LEAST_CHARGED })
        } else if self.lasted > LONG {
            (self.service < self.max_budget / 2, self.lasted)
        } else {
            (seeky, self.lasted)
        }
    }

    /// The budget that feedback gives the queue for its next turn.
    pub(crate) fn next_budget(&self, q: &Queue) -> u32 {
        let (max, min) = (self.max_budget, self.min_budget);
        if q.raising.is_raised() {
            // A raised queue is served often; small budgets keep the wait of other queues short.
            return 2 * min;
        }
        if !q.sync {
            return max;
        }
        let old = q.max_budget;
        let new = match self.reason {
            // The queue has requests at the disk: no new one came because the submitter waits for these.
            Expiry::TooIdle if q.nr_out > 0 => old.saturating_mul(2),
            Expiry::TooIdle => old.saturating_sub(4 * min).max(min),
            Expiry::BudgetTimeout => old.saturating_mul(2),
            Expiry::BudgetExhausted => old.saturating_mul(4),
            Expiry::NoMoreRequests => self.service.max(min),
            Expiry::Preempted => old,
        };
        new.min(max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elevator::bfq::tunables::BfqTunables;
    use crate::elevator::deadline_lists::SortNodes;
    use crate::elevator::testbed::TestBed;
    use crate::limits::Limits;
    use crate::time::Instant;

    const MAX: u32 = 3200;

    fn queue(sync: bool, max_budget: u32) -> Queue {
        Queue::new(&SortNodes::new(1), sync, max_budget, Instant::ZERO)
    }

    fn turn(reason: Expiry, service: u32, ms: u64) -> ServiceSlot {
        ServiceSlot {
            reason,
            service,
            budget: 1000,
            lasted: Duration::from_ms(ms),
            max_budget: MAX,
            min_budget: min_budget(MAX),
        }
    }

    fn rules() -> Rules {
        BfqTunables::new().rules(&TestBed::new(1, 1, Limits::default()).cx(Instant::ZERO))
    }

    #[test]
    fn budgets_follow_their_use() {
        let next = |reason, old| turn(reason, 300, 1).next_budget(&queue(true, old));
        // The smallest budget is 3200 / 32 = 100.
        assert_eq!(next(Expiry::BudgetExhausted, 200), 800);
        assert_eq!(next(Expiry::BudgetExhausted, 2000), MAX);
        assert_eq!(next(Expiry::BudgetTimeout, 200), 400);
        assert_eq!(next(Expiry::TooIdle, 1000), 600);
        assert_eq!(next(Expiry::TooIdle, 450), 100);
        assert_eq!(next(Expiry::NoMoreRequests, 2000), 300);
        assert_eq!(next(Expiry::Preempted, 700), 700);
        let mut waits_for_disk = queue(true, 1000);
        waits_for_disk.nr_out = 1;
        assert_eq!(turn(Expiry::TooIdle, 300, 1).next_budget(&waits_for_disk), 2000);
        assert_eq!(turn(Expiry::TooIdle, 300, 1).next_budget(&queue(false, 10)), MAX, "async I/O has no waiter");
    }

    #[test]
    fn a_slow_turn_pays_for_its_time() {
        let q = queue(true, MAX);
        let charge = |reason, service, ms| turn(reason, service, ms).charge(&q, &rules());
        assert_eq!(charge(Expiry::NoMoreRequests, 300, 10), 300);
        // 50 of 125 ms could have served 3200 x 50 / 125.
        assert_eq!(charge(Expiry::NoMoreRequests, 300, 50), 1280);
        assert_eq!(charge(Expiry::NoMoreRequests, 1600, 100), 1600, "half of the largest budget is not slow");
        assert_eq!(charge(Expiry::BudgetTimeout, 600, 125), 3200, "a third of the budget was left");
        assert_eq!(charge(Expiry::BudgetTimeout, 1900, 1000), 1900, "nearly used up");
        assert_eq!(turn(Expiry::NoMoreRequests, 300, 50).charge(&queue(false, 10), &rules()), 300);
    }

    #[test]
    fn async_costs_more_while_all_are_alike() {
        assert_eq!(cost(&queue(true, 1), 8, true), 8);
        assert_eq!(cost(&queue(false, 1), 8, true), 24);
        assert_eq!(cost(&queue(false, 1), 8, false), 8);
    }
}
