// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What bfq's lock protects: the queues, the queue in service, and the path of requests through the queues.
//!
//! Guarantees: a request belongs to one queue from its insertion to its completion; a queue is backlogged in the
//! service tree, or in service, if and only if it has requests or the disk waits for its next one. Service slots begin
//! and end in `service`; this file handles requests. Needs: one lock around all calls, with times that do not go
//! backwards by more than CPUs' clocks differ.

use super::budget::{self, DEFAULT_MAX_BUDGET, Expiry, MIN_TURNS};
use super::burst::Burst;
use super::choose::is_sync;
use super::device::Device;
use super::idling::{self, IdlingContext};
use super::population::Population;
use super::queue::{Queue, class_of, weight_of};
use super::tunables::Rules;
use super::weight_raising::Arrival;
use super::wf2q::{IDLE, NR_CLASSES, Wf2q};
use crate::bio::{BioSlot, IoPrio};
use crate::elevator::bio_merge::{MergeCache, MergeQueue, request};
use crate::elevator::deadline_lists::SortNodes;
use crate::elevator::fifo::Fifo;
use crate::elevator::interface::ElvCx;
use crate::id::MAX_SUBMITTERS;
use crate::request::Rq;
use crate::time::{Duration, Instant};

/// No queue.
pub(crate) const NONE: u32 = u32::MAX;
/// Queues a submitter may have: sync and async of each class.
const KINDS: usize = 2 * NR_CLASSES;
/// Queues for which memory is allocated at the start: those of 64 submitters with reads and writes of two classes. For
/// more queues the memory is doubled each time.
const ROOM: usize = 256;
/// A queue that ran empty is back in time within so many idle slices of its last completion.
const IN_TIME_SLICES: u64 = 3;

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Not in the elevator.
    Away,
    /// In its queue, or being inserted.
    Queued,
    /// Dispatched.
    Out,
}

/// The state of one disk.
pub(crate) struct BfqState {
    pub(crate) nodes: SortNodes,
    pub(crate) cache: MergeCache,
    pub(crate) queues: Vec<Queue>,
    pub(crate) wf2q: Wf2q,
    pub(crate) device: Device,
    pub(crate) burst: Burst,
    /// Per submitter and kind: the queue's number.
    by_source: Box<[u32]>,
    /// Per request: its queue and stage.
    home: Box<[(u32, Stage)]>,
    /// Requests that the driver requeued; they go before all others.
    at_head: Fifo,
    pub(crate) nr_queued: u32,
    /// Queues with requests or in service, and how many of them are raised.
    pub(crate) nr_busy: u32,
    pub(crate) nr_raised: u32,
    population: Population,
    /// Turns begun.
    pub(crate) nr_turns: u64,
    pub(crate) turn_began: Instant,
    /// When the present turn times out, however much of its budget is used by then.
    pub(crate) turn_ends: Instant,
    /// The queue in service has no request, and the disk waits for its next one until then.
    pub(crate) waiting_until: Option<Instant>,
    /// Retry time, if the last `dispatch` returned nothing although requests are queued.
    pub(crate) held_until: Option<Instant>,
}

/// The state as the search for merge candidates sees it: a bio may join requests of `queue` only.
pub(crate) struct Merging<'a> {
    pub(crate) st: &'a mut BfqState,
    pub(crate) queue: u32,
    pub(crate) rules: Rules,
}

impl BfqState {
    /// For requests 0..`nr_requests`.
    pub(crate) fn new(nr_requests: usize) -> BfqState {
        BfqState {
            nodes: SortNodes::new(nr_requests),
            cache: MergeCache::new(nr_requests),
            queues: Vec::with_capacity(ROOM),
            wf2q: Wf2q::with_capacity(ROOM),
            device: Device::new(),
            burst: Burst::new(),
            by_source: vec![NONE; MAX_SUBMITTERS as usize * KINDS].into_boxed_slice(),
            home: vec![(NONE, Stage::Away); nr_requests].into_boxed_slice(),
            at_head: Fifo::new(),
            nr_queued: 0,
            nr_busy: 0,
            nr_raised: 0,
            population: Population::default(),
            nr_turns: 0,
            turn_began: Instant::ZERO,
            turn_ends: Instant::ZERO,
            waiting_until: None,
            held_until: None,
        }
    }

    /// Returns what an idling decision depends on.
    pub(crate) fn idling_context(&self) -> IdlingContext {
        IdlingContext {
            device_queues: self.device.queues(),
            nr_busy: self.nr_busy,
            nr_raised: self.nr_raised,
            asymmetric: self.population.is_asymmetric(),
            nr_out: self.device.nr_out,
        }
    }

    pub(crate) fn max_budget(&self, rules: &Rules) -> u32 {
        if rules.max_budget == 0 { self.device.max_budget(rules) } else { rules.max_budget }
    }

    /// Returns the budget of which first and smallest budgets are fractions. The measured rate counts only after
    /// [`MIN_TURNS`] turns, because it is not reliable before.
    fn reference_budget(&self, rules: &Rules) -> u32 {
        let unknown = rules.max_budget == 0 && self.nr_turns < MIN_TURNS;
        if unknown { DEFAULT_MAX_BUDGET } else { self.max_budget(rules) }
    }

    pub(crate) fn min_budget(&self, rules: &Rules) -> u32 {
        budget::min_budget(self.reference_budget(rules))
    }

    pub(crate) fn worth_waiting(&self, id: u32, rules: &Rules) -> bool {
        idling::worth_waiting(&self.queues[id as usize], self.wf2q.get(id).class(), &self.idling_context(), rules)
    }

    /// Returns the cost of a queue's next request; `None` if the queue has none.
    #[inline]
    pub(crate) fn next_cost(&self, cx: &ElvCx<'_>, id: u32) -> Option<u32> {
        let q = &self.queues[id as usize];
        let rq = q.next()?;
        Some(budget::cost(q, request(cx, rq).nr_sectors(), !self.population.is_asymmetric()))
    }

    /// Returns the queue for a submitter's requests of a kind. Makes the queue on first use.
    fn queue_of(&mut self, submitter: usize, sync: bool, prio: IoPrio, rules: &Rules) -> u32 {
        let class = class_of(prio);
        let slot = submitter * KINDS + usize::from(sync) * NR_CLASSES + usize::from(class);
        if self.by_source[slot] == NONE {
            self.by_source[slot] = self.wf2q.add(class);
            // A medium budget, until the queue has shown how it uses its budget.
            let first_budget = (u64::from(self.reference_budget(rules)) * 2 / 3) as u32;
            self.queues.push(Queue::new(&self.nodes, sync, first_budget.max(1), rules.now));
        }
        self.by_source[slot]
    }

    /// Returns the queue that a bio would enter; `NONE` if that queue does not exist yet, so there is nothing to merge
    /// with.
    pub(crate) fn queue_of_bio(&self, submitter: usize, bio: &BioSlot) -> u32 {
        let sync = !bio.op().is_write() || bio.flags().contains(crate::bio::OpFlags::SYNC);
        let class = class_of(IoPrio::from_bits(bio.prio.get()));
        self.by_source[submitter * KINDS + usize::from(sync) * NR_CLASSES + usize::from(class)]
    }

    /// Returns the queue of a request that is in the elevator.
    #[inline]
    pub(crate) fn queue_of_rq(&self, rq: u32) -> u32 {
        self.home[rq as usize].0
    }

    /// Finds the queue an arriving request belongs to.
    pub(crate) fn admit(&mut self, cx: &ElvCx<'_>, rq: u32, rules: &Rules) -> u32 {
        let fields = request(cx, rq);
        let submitter = fields.bio_head().submitter();
        let id = self.queue_of(submitter, is_sync(fields), fields.prio(), rules);
        let weight = cx.bios.weight(submitter);
        self.queues[id as usize].weight = if weight == 0 { weight_of(fields.prio()) } else { u32::from(weight) };
        debug_assert_eq!(self.home[rq as usize].1, Stage::Away);
        self.home[rq as usize] = (id, Stage::Queued);
        id
    }

    /// Queues an admitted request.
    pub(crate) fn insert(&mut self, cx: &ElvCx<'_>, rq: &Rq, rules: &Rules) {
        let (rq, fields) = (rq.id().index() as u32, cx.rqs.get(rq.id()));
        let id = self.queue_of_rq(rq);
        self.end_overdue_wait(cx, rules);
        let q = &mut self.queues[id as usize];
        q.io_pattern.note_request(fields, rules);
        let was_empty = q.nr_queued == 0;
        if was_empty && q.nr_out == 0 {
            let idle = rules.now.since(q.last_completion);
            if !self.wf2q.get(id).is_active() {
                q.io_pattern.note_think_time(idle, rules);
            }
            q.io_pattern.note_idle(idle, rules);
        }
        if q.io_pattern.only_seeks() {
            q.raising.only_seeks(rules.now, || self.device.start_duration(rules));
        }
        q.insert(&mut self.nodes, cx, rq, self.device.head, rules);
        self.nr_queued += 1;
        self.cache.queued(fields, rq);
        if !self.wf2q.get(id).is_active() {
            self.became_busy(cx, id, rules);
        } else if was_empty && self.wf2q.in_service() == Some(id) {
            self.waiting_until = None;
        }
    }

    /// A queue that had no request and is not in service has got a request.
    fn became_busy(&mut self, cx: &ElvCx<'_>, id: u32, rules: &Rules) {
        let class = self.wf2q.get(id).class();
        if self.queues[id as usize].sync && self.queues[id as usize].raising.is_new() {
            let (burst, queues) = (&mut self.burst, &mut self.queues);
            burst.started(id, self.nr_busy, rules.now, |q| queues[q as usize].raising.in_large_burst = true);
        }
        let smallest = self.min_budget(rules);
        let q = &mut self.queues[id as usize];
        if q.nr_out > 0 {
            // The queue is still counted, with its previous weight, because it has requests at the disk.
            self.population.remove(self.wf2q.get(id).weight(), class);
        }
        q.raising.arrived(&Arrival {
            now: rules.now,
            low_latency: rules.low_latency,
            may_be_raised: q.sync && q.weight == weight_of(IoPrio::default()) && class != IDLE,
            only_seeks: q.io_pattern.only_seeks(),
            has_out: q.nr_out > 0,
            start_duration: self.device.start_duration(rules),
        });
        let (weight, raised, coefficient) = (q.effective_weight(), q.raising.is_raised(), q.raising.coefficient());
        let in_time_until = q.last_completion + Duration::from_ns(IN_TIME_SLICES * rules.slice_idle.as_ns());
        let left = self.wf2q.get(id).budget_left();
        let in_time = core::mem::take(&mut q.may_resume) && rules.now <= in_time_until && left > 0;
        let mut budget = if in_time { left.min(q.max_budget) } else { q.max_budget };
        if raised {
            budget = budget.min(2 * smallest);
        }
        q.counted_raised = raised;
        self.nr_busy += 1;
        self.nr_raised += u32::from(raised);
        self.population.add(weight, class);
        let budget = budget.max(self.next_cost(cx, id).expect("it has a request"));
        self.wf2q.activate(id, weight, budget, in_time.then_some(coefficient), rules.now);
        self.consider_preemption(cx, id, in_time || raised, rules);
    }

    /// A queue is neither backlogged nor in service any more; `since` is when that began.
    pub(crate) fn became_idle(&mut self, id: u32, since: Instant, rules: &Rules) {
        let e = self.wf2q.get(id);
        let q = &mut self.queues[id as usize];
        self.nr_busy -= 1;
        self.nr_raised -= u32::from(core::mem::take(&mut q.counted_raised));
        if q.nr_out == 0 {
            self.population.remove(e.weight(), e.class());
        }
        q.raising.ran_empty(since, q.nr_out > 0, rules.slice_idle);
    }

    /// A busy queue is queued again, perhaps with a weight that differs from `old`.
    pub(crate) fn reweighed(&mut self, id: u32, old: u32) {
        let e = self.wf2q.get(id);
        self.population.remove(old, e.class());
        self.population.add(e.weight(), e.class());
        let q = &mut self.queues[id as usize];
        let was = core::mem::replace(&mut q.counted_raised, q.raising.is_raised());
        self.nr_raised = self.nr_raised - u32::from(was) + u32::from(q.counted_raised);
    }

    /// Queues, before all others, a request that has been at the driver. It is not merged any more. It still counts as
    /// being at the disk, because its service has been charged.
    pub(crate) fn insert_at_head(&mut self, rq: &Rq) {
        self.at_head.push_front(&mut self.nodes.fifo, rq.id().index() as u32);
        self.nr_queued += 1;
    }

    /// Takes the next request for the disk out of all lists.
    #[inline]
    pub(crate) fn dispatch(&mut self, cx: &ElvCx<'_>, rules: &Rules) -> Option<u32> {
        if let Some(rq) = self.at_head.pop_front(&mut self.nodes.fifo) {
            self.nr_queued -= 1;
            return Some(rq);
        }
        if rules.strict_guarantees && self.device.nr_out > 0 {
            // Only the completion of the request at the disk allows another dispatch.
            self.held_until = Some(Instant::MAX);
            return None;
        }
        let (id, cost) = self.choose_queue(cx, rules)?;
        let q = &mut self.queues[id as usize];
        let rq = q.take_next(&mut self.nodes, cx, rules)?;
        let fields = request(cx, rq);
        q.nr_out += 1;
        q.raising.served(fields.nr_sectors(), rules.now, rules.low_latency, || self.device.start_duration(rules));
        let seeky = q.io_pattern.is_seeky();
        self.wf2q.serve(id, cost);
        self.device.given_out(fields, seeky, rules);
        self.cache.forget(rq);
        self.home[rq as usize].1 = Stage::Out;
        self.nr_queued -= 1;
        if self.wf2q.get(id).class() == IDLE && self.nr_busy > 1 {
            // One request at a time is its turn, while others wait.
            self.expire(cx, id, Expiry::BudgetExhausted, rules);
        }
        Some(rq)
    }

    /// A request has completed or failed, or was joined to another before it was dispatched.
    pub(crate) fn gone(&mut self, cx: &ElvCx<'_>, rq: u32, rules: &Rules) {
        let (id, stage) = core::mem::replace(&mut self.home[rq as usize], (NONE, Stage::Away));
        if stage != Stage::Out {
            return;
        }
        self.device.completed(self.nr_queued, rules);
        let q = &mut self.queues[id as usize];
        q.nr_out -= 1;
        q.last_completion = rules.now;
        if q.nr_out == 0 && q.nr_queued == 0 {
            let gave_up = !self.wf2q.get(id).is_active();
            q.raising.all_done(rules.now, gave_up, rules.slice_idle);
            if gave_up {
                let e = self.wf2q.get(id);
                self.population.remove(e.weight(), e.class());
            }
        }
        if self.wf2q.in_service() == Some(id) {
            self.after_completion(cx, id, rules);
        }
        if self.held_until.is_some() {
            self.held_until = Some(self.waiting_until.map_or(Instant::ZERO, |until| until.min(self.turn_ends)));
        }
    }

    /// A request of the queue in service completed. If it was the queue's last, the disk starts to wait for another, or
    /// the turn ends. The turn also ends if its time is over.
    fn after_completion(&mut self, cx: &ElvCx<'_>, id: u32, rules: &Rules) {
        let q = &self.queues[id as usize];
        if self.waiting_until.is_some() {
            return;
        }
        let empty = q.nr_queued == 0;
        if empty && self.worth_waiting(id, rules) {
            if q.nr_out == 0 {
                self.waiting_until = Some(rules.now + idling::slice(q, &self.idling_context(), rules));
            }
        } else if rules.now >= self.turn_ends {
            self.expire(cx, id, Expiry::BudgetTimeout, rules);
        } else if empty {
            self.expire(cx, id, Expiry::NoMoreRequests, rules);
        }
    }
}

impl MergeQueue for Merging<'_> {
    fn cache(&mut self) -> &mut MergeCache {
        &mut self.st.cache
    }

    fn admits(&self, rq: u32) -> bool {
        self.st.queue_of_rq(rq) == self.queue
    }

    fn front_candidate(&self, bio: &BioSlot) -> Option<u32> {
        self.st.queues[self.queue as usize].starting_at(&self.st.nodes, bio.end_sector())
    }

    fn former(&self, _cx: &ElvCx<'_>, rq: u32) -> Option<u32> {
        self.st.nodes.rb.former(rq)
    }

    fn latter(&self, _cx: &ElvCx<'_>, rq: u32) -> Option<u32> {
        self.st.nodes.rb.latter(rq)
    }

    fn front_merged(&mut self, cx: &ElvCx<'_>, rq: u32) {
        let head = self.st.device.head;
        // A request that grows at its front passes another one only if the two overlap.
        let passed =
            self.st.nodes.rb.former(rq).is_some_and(|before| request(cx, rq).sector() < request(cx, before).sector());
        if passed {
            self.st.queues[self.queue as usize].reposition(&mut self.st.nodes, cx, rq, head, &self.rules);
        }
    }

    fn joined(&mut self, _cx: &ElvCx<'_>, kept: u32, gone: u32) {
        if self.st.nodes.fifo.is_linked(gone) {
            self.st.queues[self.queue as usize].absorb(&mut self.st.nodes, kept, gone);
            self.st.nr_queued -= 1;
        }
    }
}
