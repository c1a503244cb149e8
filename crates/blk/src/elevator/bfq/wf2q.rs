// SPDX-License-Identifier: Apache-2.0 OR MIT
//! B-WF2Q+: which queue is served next, so that over time each gets service in proportion to its weight.
//!
//! Every class (RT, BE, IDLE) has a virtual time V that advances by `service / sum of weights`. A backlogged queue has a
//! virtual start S and a finish F = S + budget / weight. Only a queue with S <= V is eligible. The eligible queue with the
//! smallest F is served until its budget is used up or its turn expires otherwise. Then S becomes the finish it really had,
//! S + service / weight. If no queue is eligible, V jumps to the smallest S: the scheduler never idles by itself.
//!
//! A queue that runs empty with F > V keeps its times until V has passed them; until then it counts in the sum of
//! weights. So leaving and coming back earns nothing. When a whole class has run empty, all its queues are forgotten at
//! once.
//!
//! Guarantees (for continuously backlogged queues of one class): between any two of them the difference of
//! `service / weight` stays within `budget_i / weight_i + budget_j / weight_j`. RT goes before BE before IDLE, except that
//! a backlogged IDLE queue is next if the class had no turn for [`IDLE_CLASS_TIMEOUT`]. All operations O(log n) in the queues
//! concerned. Needs: one lock around all calls. Not here: requests, budgets' sizes, idling.
//!
//! Source: Valente and Checconi (2010), section 4; Bennett and Zhang, "Hierarchical packet fair queueing algorithms".

use super::heap::Heap;
use super::vtime::VTime;
use crate::time::{Duration, Instant};

/// Priority classes in the order they are served.
pub(crate) const NR_CLASSES: usize = 3;
pub(crate) const RT: u8 = 0;
pub(crate) const BE: u8 = 1;
pub(crate) const IDLE: u8 = 2;

/// Longest time that backlogged queues of the IDLE class wait for a turn (`BFQ_CL_IDLE_TIMEOUT`).
pub const IDLE_CLASS_TIMEOUT: Duration = Duration::from_ms(200);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntityState {
    /// Its times are of no interest any more.
    Forgotten,
    /// No backlog, but its finish lies ahead of V.
    Remembered,
    /// Backlogged and not served now.
    Backlogged,
    InService,
}

/// A queue as the scheduler sees it.
#[derive(Debug)]
pub(crate) struct Entity {
    class: u8,
    state: EntityState,
    weight: u32,
    /// Sectors it may be served in its turn.
    pub(crate) budget: u32,
    /// Sectors it has been served in its turn.
    pub(crate) service: u32,
    start: VTime,
    finish: VTime,
}

/// The queues of one class.
struct ServiceTree {
    /// Backlogged with S > V, by S.
    waiting: Heap,
    /// Backlogged with S <= V, by F.
    eligible: Heap,
    /// Without backlog, with F > V, by F.
    remembered: Heap,
    vtime: VTime,
    /// Weights of all queues that are not forgotten.
    weights: u64,
    /// Backlogged or in service.
    nr_active: u32,
}

/// The scheduler of one disk.
pub(crate) struct Wf2q {
    entities: Vec<Entity>,
    trees: [ServiceTree; NR_CLASSES],
    in_service: Option<u32>,
    /// When the IDLE class last had a turn or became backlogged.
    idle_class_served: Instant,
}

impl Entity {
    /// Sectors left of the budget.
    #[inline]
    pub(crate) fn budget_left(&self) -> u32 {
        self.budget.saturating_sub(self.service)
    }

    /// The weight it is scheduled with.
    #[inline]
    pub(crate) fn weight(&self) -> u32 {
        self.weight
    }

    /// Its class.
    #[inline]
    pub(crate) fn class(&self) -> u8 {
        self.class
    }

    /// Backlogged or in service.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        matches!(self.state, EntityState::Backlogged | EntityState::InService)
    }
}

impl ServiceTree {
    fn with_capacity(nr: usize) -> ServiceTree {
        let heap = || Heap::with_capacity(nr);
        let (waiting, eligible, remembered) = (heap(), heap(), heap());
        ServiceTree { waiting, eligible, remembered, vtime: VTime::ZERO, weights: 0, nr_active: 0 }
    }

    fn insert(&mut self, id: u32, e: &Entity) {
        if e.start.is_after(self.vtime) {
            self.waiting.insert(id, e.start);
        } else {
            self.eligible.insert(id, e.finish);
        }
    }

    /// Queues whose start V has reached become eligible.
    fn admit(&mut self, entities: &[Entity]) {
        while let Some((id, start)) = self.waiting.first()
            && !start.is_after(self.vtime)
        {
            self.waiting.remove(id);
            self.eligible.insert(id, entities[id as usize].finish);
        }
    }

    /// Queues without backlog whose finish V has reached are forgotten.
    fn forget(&mut self, entities: &mut [Entity]) {
        while let Some((id, finish)) = self.remembered.first()
            && !finish.is_after(self.vtime)
        {
            self.remembered.remove(id);
            self.drop_weight(&mut entities[id as usize]);
        }
    }

    /// No queue wants service: V goes past all finishes, and all queues start anew.
    fn forget_all(&mut self, entities: &mut [Entity]) {
        while let Some((id, finish)) = self.remembered.first() {
            self.vtime = self.vtime.max(finish);
            self.remembered.remove(id);
            self.drop_weight(&mut entities[id as usize]);
        }
        debug_assert_eq!(self.weights, 0);
    }

    fn drop_weight(&mut self, e: &mut Entity) {
        e.state = EntityState::Forgotten;
        self.weights -= u64::from(e.weight);
    }

    fn has_backlog(&self) -> bool {
        !self.eligible.is_empty() || !self.waiting.is_empty()
    }

    /// The queue to be served next, without taking it. If none is eligible, V goes to the smallest S. While a queue is in service, V stays
    /// where it is.
    fn first(&mut self, entities: &mut [Entity], in_service: bool) -> Option<u32> {
        self.admit(entities);
        if self.eligible.is_empty() {
            let (_, start) = self.waiting.first()?;
            if in_service {
                let finish = |id: &u32| entities[*id as usize].finish;
                return self.waiting.all_first().reduce(|a, b| if finish(&a).is_after(finish(&b)) { b } else { a });
            }
            self.vtime = start;
            self.forget(entities);
            self.admit(entities);
        }
        self.eligible.first().map(|(id, _)| id)
    }
}

impl Wf2q {
    /// Without queues, with memory for `nr` of them.
    pub(crate) fn with_capacity(nr: usize) -> Wf2q {
        Wf2q {
            entities: Vec::with_capacity(nr),
            trees: [(); NR_CLASSES].map(|()| ServiceTree::with_capacity(nr)),
            in_service: None,
            idle_class_served: Instant::ZERO,
        }
    }

    /// Adds a queue of a class and returns its number; queues are numbered from 0.
    pub(crate) fn add(&mut self, class: u8) -> u32 {
        let id = self.entities.len() as u32;
        self.entities.push(Entity {
            class,
            state: EntityState::Forgotten,
            weight: 1,
            budget: 0,
            service: 0,
            start: VTime::ZERO,
            finish: VTime::ZERO,
        });
        for tree in &mut self.trees {
            for heap in [&mut tree.waiting, &mut tree.eligible, &mut tree.remembered] {
                heap.make_room(self.entities.len());
            }
        }
        id
    }

    #[inline]
    pub(crate) fn get(&self, id: u32) -> &Entity {
        &self.entities[id as usize]
    }

    /// The queue that is served now.
    #[inline]
    pub(crate) fn in_service(&self) -> Option<u32> {
        self.in_service
    }

    /// A queue becomes backlogged. It starts where V is, or where its last turn ended if that lies ahead.
    ///
    /// With `resumes`, which is the coefficient of its raising (1: it is not raised), it starts where its last turn ended in any case,
    /// because it was without backlog only briefly. If F is behind V, S and F move on together by (V - F) / coefficient. So a queue that
    /// comes back soon again and again cannot lag far behind V, and then be served before all others (`bfq_update_fin_time_enqueue`).
    pub(crate) fn activate(&mut self, id: u32, weight: u32, budget: u32, resumes: Option<u32>, now: Instant) {
        let e = &mut self.entities[id as usize];
        let tree = &mut self.trees[usize::from(e.class)];
        assert!(!e.is_active(), "queue {id} is active already");
        if e.class == IDLE && tree.nr_active == 0 {
            self.idle_class_served = now;
        }
        e.start = match e.state {
            _ if resumes.is_some() => e.finish,
            EntityState::Forgotten => tree.vtime,
            _ => e.finish.max(tree.vtime),
        };
        if e.state == EntityState::Remembered {
            tree.remembered.remove(id);
            tree.weights -= u64::from(e.weight);
        }
        tree.nr_active += 1;
        tree.weights += u64::from(weight);
        e.state = EntityState::Backlogged;
        e.weight = weight;
        e.budget = budget;
        e.service = 0;
        e.finish = e.start.after_service(u64::from(budget), u64::from(weight));
        if let Some(coefficient) = resumes {
            let push = tree.vtime.lead_over(e.finish) / u64::from(coefficient);
            (e.start, e.finish) = (e.start.later_by(push), e.finish.later_by(push));
        }
        tree.insert(id, e);
    }

    /// The class whose turn it is.
    fn next_class(&self, now: Instant) -> Option<usize> {
        let idle = usize::from(IDLE);
        if self.trees[idle].has_backlog() && now.since(self.idle_class_served) >= IDLE_CLASS_TIMEOUT {
            return Some(idle);
        }
        self.trees.iter().position(ServiceTree::has_backlog)
    }

    /// The queue [`Wf2q::select`] would choose.
    pub(crate) fn peek(&mut self, now: Instant) -> Option<u32> {
        let class = self.next_class(now)?;
        self.trees[class].first(&mut self.entities, self.in_service.is_some())
    }

    /// Chooses the queue to serve. No other queue may be in service.
    pub(crate) fn select(&mut self, now: Instant) -> Option<u32> {
        assert!(self.in_service.is_none(), "the queue in service has not expired");
        let id = self.peek(now)?;
        let e = &mut self.entities[id as usize];
        self.trees[usize::from(e.class)].eligible.remove(id);
        e.state = EntityState::InService;
        e.service = 0;
        if e.class == IDLE {
            self.idle_class_served = now;
        }
        self.in_service = Some(id);
        Some(id)
    }

    /// The queue in service gets `sectors`; V advances.
    #[inline]
    pub(crate) fn serve(&mut self, id: u32, sectors: u32) {
        debug_assert_eq!(self.in_service, Some(id));
        let e = &mut self.entities[id as usize];
        e.service = e.service.saturating_add(sectors);
        let tree = &mut self.trees[usize::from(e.class)];
        tree.vtime = tree.vtime.after_service(u64::from(sectors), tree.weights);
        tree.forget(&mut self.entities);
    }

    /// Ends the turn of the queue in service. `again`: the queue is still backlogged, and is queued again with this
    /// weight and budget.
    pub(crate) fn expire(&mut self, id: u32, again: Option<(u32, u32)>) {
        assert!(self.in_service.take() == Some(id), "queue {id} is not in service");
        let e = &mut self.entities[id as usize];
        let tree = &mut self.trees[usize::from(e.class)];
        e.finish = e.start.after_service(u64::from(e.service), u64::from(e.weight));
        if let Some((weight, budget)) = again {
            tree.weights = tree.weights - u64::from(e.weight) + u64::from(weight);
            e.start = e.finish;
            e.weight = weight;
            e.budget = budget;
            e.service = 0;
            e.finish = e.start.after_service(u64::from(budget), u64::from(weight));
            e.state = EntityState::Backlogged;
            return tree.insert(id, e);
        }
        tree.nr_active -= 1;
        Self::retire(tree, &mut self.entities, id);
    }

    fn retire(tree: &mut ServiceTree, entities: &mut [Entity], id: u32) {
        let e = &mut entities[id as usize];
        if e.finish.is_after(tree.vtime) {
            e.state = EntityState::Remembered;
            tree.remembered.insert(id, e.finish);
        } else {
            tree.drop_weight(e);
        }
        if tree.nr_active == 0 {
            tree.forget_all(entities);
        }
    }
}

#[cfg(test)]
mod tests;
