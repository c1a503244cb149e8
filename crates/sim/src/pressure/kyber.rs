// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What kyber guarantees a request, from its rules (block/kyber-iosched.c; blk's `elevator/kyber.rs`).
//!
//! **Between domains.** A hardware queue serves the domains in turn: up to 16 reads, 8 writes, 1 discard, 1 other request.
//! It passes over a domain that has no requests or finds no token. A waiting domain with no request at the device finds a
//! token, because each domain has at least one. So until its turn each other domain gets at most one batch: the sum of
//! their batches. While requests of the domain are at the device, all its tokens may be in use. Then the domain waits for
//! one of them. The device delays it, not another domain's turn: those dispatches do not count.
//!
//! **Within a domain.** The requests of one CPU leave in order of arrival. Requests of other CPUs may go first only if they
//! are in their CPU's list when all lists of the domain are taken over together. That happens at most once while a request
//! waits behind them. So at most as many go first as the other CPUs ever have in flight.

use super::bound::{Bound, Pressed, SeenRequest};
use super::turns::Turns;
use super::unfair::{StarvingElevator, Unfair};
use super::world::{Client, Speed, World};
use crate::rng::Rng;
use crate::trace::Trace;
use blk::bio::{IoPrioClass, Op};
use blk::limits::Limits;

/// Requests of each domain in a turn.
pub(crate) const BATCH: [u64; 4] = [16, 8, 1, 1];

/// The number of an operation's domain.
pub(crate) fn domain(op: Op) -> usize {
    match op {
        Op::Read => 0,
        Op::Write => 1,
        Op::Discard => 2,
        Op::Flush | Op::WriteZeroes => 3,
    }
}

/// Counts what each domain of a hardware queue waits for: one batch of each other domain.
pub(crate) fn between_domains() -> Turns {
    let sum: u64 = BATCH.iter().sum();
    Turns::new("kyber: domain", BATCH.map(|b| sum - b))
}

struct Domains {
    turns: Turns,
    /// The number of the last request given of each domain, to tell whether it may still be at the device.
    recent: [u64; 4],
    given: u64,
    cap: u64,
    /// Waiting requests in order of insertion, each with how often it was overtaken.
    waiting: Vec<(SeenRequest, u64)>,
    /// Maximum number of requests that the clients of a CPU have in flight, by CPU and domain.
    depth: Vec<[u64; 4]>,
}

impl Domains {
    fn new(clients: &[Client], speed: Speed) -> Domains {
        let mut depth = vec![[0; 4]; 4];
        for c in clients {
            depth[usize::from(c.cpu)][domain(c.op)] += u64::from(c.depth);
        }
        Domains {
            turns: between_domains(),
            recent: [0; 4],
            given: 0,
            cap: speed.cap as u64,
            waiting: Vec::new(),
            depth,
        }
    }

    /// Whether a request of the domain may be at the device. The device serves in order, so its requests are the last ones given.
    fn may_be_at_device(&self, domain: usize) -> bool {
        self.recent[domain] > 0 && self.given - self.recent[domain] < self.cap
    }
}

impl Bound for Domains {
    fn queued(&mut self, r: &SeenRequest) {
        self.turns.queued(domain(r.op));
        self.waiting.push((*r, 0));
    }

    fn asked(&mut self, _now: u64) {
        for d in 0..BATCH.len() {
            if self.may_be_at_device(d) {
                self.turns.excuse(d);
            }
        }
    }

    fn given(&mut self, r: &SeenRequest) {
        let d = domain(r.op);
        self.turns.given(d, 1, r);
        self.given += 1;
        self.recent[d] = self.given;
        let at = self.waiting.iter().position(|(w, _)| w.id == r.id).expect("it was queued");
        self.waiting.remove(at);
        let others: u64 = self.depth.iter().map(|cpu| cpu[d]).sum();
        for (w, overtaken) in self.waiting[..at].iter_mut().filter(|(w, _)| domain(w.op) == d) {
            assert_ne!(w.cpu, r.cpu, "kyber: {r:?} overtook {w:?} of its CPU and domain");
            *overtaken += 1;
            let most = others - self.depth[w.cpu][d];
            assert!(*overtaken <= most, "kyber: {w:?} starves, overtaken {overtaken} times of at most {most}");
        }
    }

    fn closest(&self) -> u64 {
        self.turns.closest()
    }
}

pub(super) fn run(rng: &mut Rng, unfair: Option<Unfair>, trace: &Trace) -> Pressed {
    let n = 2 + rng.below(5);
    const OPS: [Op; 6] = [Op::Read, Op::Read, Op::Write, Op::Write, Op::Discard, Op::WriteZeroes];
    let clients: Vec<Client> = (0..n).map(|_| Client::draw(rng, &OPS, |_| IoPrioClass::Be)).collect();
    let speed = Speed::draw(rng);
    let (read_lat, write_lat) = (rng.pick(&[1000, 2_000_000]), rng.pick(&[1000, 10_000_000]));
    let requests = 500 + rng.below(1500);
    let mut bound = Domains::new(&clients, speed);
    let mut world = World::new("kyber", clients, speed, Limits::default(), rng, trace);
    world.set(&[("read_lat_nsec", read_lat), ("write_lat_nsec", write_lat)]);
    if unfair == Some(Unfair::Starves) {
        world.wrap(|e| Box::new(StarvingElevator::new(e)));
    }
    world.run(requests, &mut bound)
}
