// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What k2 guarantees a request, from its rules (blk's `elevator/k2.rs`).
//!
//! Clients have a fixed class here, so that the bound knows it. With `latency_depth=0` each client with a request is deep,
//! and only a request of class RT is a latency request.
//!
//! **Between classes.** Bulk is eligible when a bulk request is queued and fewer than `max_inflight` are at the disk. Each
//! dispatch of a latency request while bulk is eligible is counted, and after `latency_batch` of them bulk is next. So
//! between two dispatches of bulk, at most `latency_batch` latency requests go while bulk is eligible. While the disk has
//! `max_inflight` bulk requests, the disk itself delays bulk: those dispatches are not counted, and the count stops.
//!
//! In the other direction, at most one bulk request goes between two latency requests. After a dispatch of bulk that passes
//! a latency request, the count restarts at a value below `latency_batch`, which is at least 1. So the next dispatch is not
//! bulk as long as a latency request waits.
//!
//! **At the disk** there are never more than `max_inflight` bulk requests. With `max_inflight=0` k2 finds the limit itself.
//! That limit may be any number from 1 on, and bulk beyond it is not counted as passed either. But whether the disk has
//! reached that limit is not visible from outside. So the case then checks only the order of bulk requests, and that all
//! complete.
//!
//! **Within a class** requests leave in order of arrival, because here nothing merges and nothing is requeued.

use super::bound::{Bound, Pressed, SeenRequest};
use super::turns::Turns;
use super::unfair::{StarvingElevator, Unfair};
use super::world::{Client, Speed, World};
use crate::rng::Rng;
use crate::trace::Trace;
use blk::bio::{IoPrioClass, Op};
use blk::limits::Limits;
use std::collections::VecDeque;

const LATENCY: usize = 0;
const BULK: usize = 1;

struct Classes {
    /// How many requests of the other class may pass each.
    turns: Turns,
    /// Waiting requests by class, in order of insertion.
    waiting: [VecDeque<SeenRequest>; 2],
    /// Bulk requests at the disk, and the most there may be; 0 = not known.
    at_disk: u64,
    max_inflight: u64,
}

fn class(r: &SeenRequest) -> usize {
    if r.class == IoPrioClass::Rt { LATENCY } else { BULK }
}

impl Classes {
    fn new(max_inflight: u64, latency_batch: u64) -> Classes {
        let turns = Turns::new("k2: class", [1, latency_batch]);
        Classes { turns, waiting: Default::default(), at_disk: 0, max_inflight }
    }

    /// Whether the disk takes no more bulk, or its limit is not known.
    fn is_full(&self) -> bool {
        self.at_disk >= self.max_inflight
    }
}

impl Bound for Classes {
    fn queued(&mut self, r: &SeenRequest) {
        self.turns.queued(class(r));
        self.waiting[class(r)].push_back(*r);
    }

    fn asked(&mut self, _now: u64) {}

    fn given(&mut self, r: &SeenRequest) {
        let class = class(r);
        let first = self.waiting[class].pop_front();
        assert_eq!(first.as_ref(), Some(r), "k2: {r:?} overtook {first:?} of its class, which starves");
        if class == LATENCY && self.is_full() {
            return self.turns.given_aside(LATENCY);
        }
        self.turns.given(class, 1, r);
        if class == BULK {
            self.at_disk += 1;
            let (n, most) = (self.at_disk, self.max_inflight);
            assert!(most == 0 || n <= most, "k2: {n} bulk requests at the disk, above the limit of {most}");
        }
    }

    fn completed(&mut self, r: &SeenRequest) {
        self.at_disk -= u64::from(class(r) == BULK);
    }

    fn closest(&self) -> u64 {
        self.turns.closest()
    }
}

pub(super) fn run(rng: &mut Rng, unfair: Option<Unfair>, trace: &Trace) -> Pressed {
    let n = 2 + rng.below(5);
    const OPS: [Op; 5] = [Op::Read, Op::Read, Op::Write, Op::Write, Op::Discard];
    // At least one of each class.
    let class = |rng: &mut Rng, i| match i {
        0 => IoPrioClass::Rt,
        1 => IoPrioClass::Be,
        _ => rng.pick(&[IoPrioClass::Rt, IoPrioClass::Be, IoPrioClass::Be, IoPrioClass::Idle]),
    };
    let clients: Vec<Client> = (0..n).map(|i| Client::draw(rng, &OPS, |rng| class(rng, i))).collect();
    let speed = Speed::draw(rng);
    let (max_inflight, latency_batch) = (rng.pick(&[0, 1, 2, 16, 65_536]), rng.pick(&[1, 2, 8, 64]));
    let requests = 500 + rng.below(1500);
    let mut bound = Classes::new(max_inflight, latency_batch);
    let mut world = World::new("k2", clients, speed, Limits::default(), rng, trace);
    world.set(&[("max_inflight", max_inflight), ("latency_batch", latency_batch), ("latency_depth", 0)]);
    if unfair == Some(Unfair::Starves) {
        world.wrap(|e| Box::new(StarvingElevator::new(e)));
    }
    world.run(requests, &mut bound)
}
