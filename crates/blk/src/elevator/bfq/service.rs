// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The queue in service: how it is chosen, how long it stays, and what it is charged for its service slot.
//!
//! Guarantees: once another queue has requests, a slot whose time limit has passed ends at the next dispatch. A wait
//! ends at its time even if no thread polls then: it is charged as if one had. [`BfqState::choose_queue`] terminates: a
//! slot whose budget is too small is requeued with a larger one.
//!
//! Source: `bfq_select_queue`, `bfq_bfqq_expire`, `bfq_bfqq_handle_idle_busy_switch`.

use super::budget::{Expiry, ServiceSlot};
use super::state::BfqState;
use super::tunables::Rules;
use super::wf2q::IDLE;
use crate::elevator::interface::ElvCx;
use crate::time::Instant;

impl BfqState {
    /// Returns the queue whose next request goes to the disk now, and the cost of that request. `None`: nothing is
    /// queued, or the disk waits for a request until `held_until`.
    #[inline]
    pub(crate) fn choose_queue(&mut self, cx: &ElvCx<'_>, rules: &Rules) -> Option<(u32, u32)> {
        self.held_until = None;
        if self.nr_queued == 0 {
            return None;
        }
        loop {
            let id = match self.wf2q.in_service() {
                Some(id) => id,
                None => self.begin_turn(rules)?,
            };
            let ends = self.turn_ends;
            let Some(cost) = self.next_cost(cx, id) else {
                match self.wait_for(id, ends, rules) {
                    Ok(until) => {
                        self.held_until = Some(until);
                        return None;
                    }
                    Err(reason) => self.expire(cx, id, reason, rules),
                }
                continue;
            };
            if rules.now >= ends {
                self.expire(cx, id, Expiry::BudgetTimeout, rules);
            } else if cost > self.wf2q.get(id).budget_left() {
                self.expire(cx, id, Expiry::BudgetExhausted, rules);
            } else {
                self.waiting_until = None;
                return Some((id, cost));
            }
        }
    }

    /// Returns until when the disk waits for the queue in service, which has no request; or the reason why it does not
    /// wait.
    fn wait_for(&self, id: u32, turn_ends: Instant, rules: &Rules) -> Result<Instant, Expiry> {
        let now = rules.now;
        match self.waiting_until {
            Some(until) if until <= now => Err(Expiry::TooIdle),
            _ if turn_ends <= now => Err(Expiry::BudgetTimeout),
            Some(until) => Ok(until.min(turn_ends)),
            // Its requests are still at the disk: the wait begins with their completion.
            None if self.queues[id as usize].nr_out > 0 && self.worth_waiting(id, rules) => Ok(turn_ends),
            None => Err(Expiry::NoMoreRequests),
        }
    }

    fn begin_turn(&mut self, rules: &Rules) -> Option<u32> {
        let id = self.wf2q.select(rules.now)?;
        self.queues[id as usize].begin_turn();
        self.nr_turns += 1;
        self.turn_began = rules.now;
        self.turn_ends = self.queues[id as usize].raising.begin_turn(rules.now, rules.timeout);
        self.waiting_until = None;
        Some(id)
    }

    /// Ends an overdue wait before anything else happens, as a timer would have done.
    pub(crate) fn end_overdue_wait(&mut self, cx: &ElvCx<'_>, rules: &Rules) {
        if let Some(until) = self.waiting_until
            && until <= rules.now
            && let Some(id) = self.wf2q.in_service()
        {
            self.expire(cx, id, Expiry::TooIdle, rules);
        }
    }

    /// Ends the turn of the queue in service.
    pub(crate) fn expire(&mut self, cx: &ElvCx<'_>, id: u32, reason: Expiry, rules: &Rules) {
        let (max_budget, min_budget) = (self.max_budget(rules), self.min_budget(rules));
        let ended = self.waiting_until.take().map_or(rules.now, |until| until.min(rules.now));
        let (service, budget) = (self.wf2q.get(id).service, self.wf2q.get(id).budget);
        let lasted = ended.since(self.turn_began);
        let slot = ServiceSlot { reason, service, budget, lasted, max_budget, min_budget };
        let q = &mut self.queues[id as usize];
        let charge = slot.charge(q, rules);
        if charge > service {
            self.wf2q.serve(id, charge - service);
        }
        let q = &mut self.queues[id as usize];
        q.max_budget = slot.next_budget(q);
        if let Some(cost) = self.next_cost(cx, id) {
            let q = &self.queues[id as usize];
            let old_weight = self.wf2q.get(id).weight();
            self.wf2q.expire(id, Some((q.effective_weight(), q.max_budget.max(cost))));
            return self.reweighed(id, old_weight);
        }
        self.queues[id as usize].may_resume = !matches!(reason, Expiry::BudgetTimeout | Expiry::BudgetExhausted);
        self.wf2q.expire(id, None);
        self.became_idle(id, ended, rules);
    }

    /// A queue has become backlogged while another is in service. Ends the other's turn if the new queue would be served
    /// next and one of these holds:
    ///
    /// - the new queue has the higher class, or the greater weight in the same class, unless that is the idle class;
    /// - the new queue is raised or back in time for the rest of its turn (`wants`), and the other is not raised more;
    /// - the other queue is only idling, without need.
    pub(crate) fn consider_preemption(&mut self, cx: &ElvCx<'_>, id: u32, wants: bool, rules: &Rules) {
        let Some(served) = self.wf2q.in_service() else { return };
        let (new, old) = (&self.queues[id as usize], &self.queues[served as usize]);
        let by_class = self.wf2q.get(id).class() < self.wf2q.get(served).class();
        let by_raising = wants && new.raising.coefficient() >= old.raising.coefficient();
        let by_weight = self.wf2q.get(id).class() == self.wf2q.get(served).class()
            && self.wf2q.get(id).class() != IDLE
            && self.wf2q.get(id).weight() > self.wf2q.get(served).weight();
        let idles_in_vain = old.nr_queued == 0 && !self.worth_waiting(served, rules);
        if (by_class || by_raising || by_weight || idles_in_vain) && self.wf2q.peek(rules.now) == Some(id) {
            self.expire(cx, served, Expiry::Preempted, rules);
        }
    }
}
